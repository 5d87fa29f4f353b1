//! Whole pools whose manager chooses proxies.

use super::run::{Plan, Run};
use crate::client::ClientOptions;
use crate::cluster::{Cluster, ClusterOptions};
use crate::fabric::nic::NicModel;
use crate::fabric::sim::SimOptions;
use crate::fabric::{Nanos, NodeId};
use crate::manager::{ManagerCall, ManagerOptions};
use crate::place::PlacementOptions;
use crate::region::PoolLayout;

/// So quick, and content with so little, that much is chosen in a few hundred calls.
fn placed(seed: u64) -> Plan {
    let share = [None, Some(50), Some(100), None][seed as usize % 4];
    let mut plan = Plan::new(seed);
    plan.placement = Some(PlacementOptions {
        first_share: 0,
        share,
        period_ns: 80_000,
        settle_ns: 10_000,
        gather_ns: 20_000,
        rank_ops: 2,
        probe_ops: 3,
    });
    (plan.calls, plan.layout.partition_bits) = (300, 2);
    if !seed.is_multiple_of(5) {
        plan.assign_one_in = 0;
    }
    plan
}

#[test]
fn every_history_is_linearizable_while_proxies_are_chosen() {
    let (mut calls, mut crashes, mut losses, mut rounds, mut moves, mut again) = (0, 0, 0, 0, 0, 0);
    let mut proxy = crate::ProxyCounters::default();
    for seed in 0..400 {
        let report = Run::new(placed(seed)).run(false).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        (calls, crashes, losses) = (calls + report.calls, crashes + report.crashes, losses + report.losses);
        rounds += report.placement.rounds;
        moves += report.placement.moves;
        again += report.placement.reassignments;
        proxy = proxy.plus(report.proxy);
    }
    let all = format!(
        "{calls} calls, {crashes} crashes, {losses} losses, {rounds} rounds, {moves} moves, {again} again, {proxy:?}"
    );
    assert!(calls > 20_000 && crashes > 500 && losses > 100, "{all}");
    assert!(rounds > 100 && moves > 1000 && again > 200, "{all}");
    assert!(proxy.reads > 5000 && proxy.changes > 2000, "{all}");
}

#[test]
fn the_same_seed_chooses_the_same() {
    for seed in [1, 2, 3] {
        let run = || Run::new(placed(seed)).run(true).unwrap();
        let (first, second) = (run(), run());
        assert!(first.placement.moves > 0, "{:?}", first.placement);
        assert_eq!((first.trace, first.placement), (second.trace, second.placement));
        assert!(first.recorded == second.recorded);
    }
}

/// How long a change takes in which partitions of a pool of 128 get their proxies: so many at once, or one.
fn pause(share: Option<u8>) -> (u64, Nanos) {
    let layout = PoolLayout {
        memory_nodes: 3,
        copies: 3,
        partition_bits: 7,
        groups: 16,
        block_bytes: 4096,
        blocks: 64,
    };
    let placement = share.map(|share| PlacementOptions { share: Some(share), ..PlacementOptions::default() });
    let options = ClusterOptions {
        layout,
        compute_nodes: 4,
        client: ClientOptions::default(),
        manager: ManagerOptions { placement, ..ManagerOptions::default() },
        fabric: SimOptions::modelled(NicModel::CONNECTX3),
    };
    let mut cluster = Cluster::new(options, 1).unwrap();
    while !(0..4).all(|node| cluster.client(NodeId(node)).unwrap().is_ready()) {
        assert!(cluster.step());
    }
    if share.is_none() {
        cluster.tell_manager(ManagerCall::Assign(5, Some(NodeId(1))));
    }
    while !cluster.manager().epoch().1 {
        assert!(cluster.step() && cluster.now() < 5_000_000_000);
    }
    let began = cluster.now();
    while cluster.manager().epoch().1 {
        assert!(cluster.step());
    }
    assert_eq!(cluster.manager().counters().epochs, 1);
    let proxies = cluster.manager().proxies();
    (proxies.nodes.values().copied().map(u64::from).sum(), cluster.now() - began)
}

#[test]
fn a_hundred_moves_are_one_pause() {
    let (one, many) = (pause(None), pause(Some(78)));
    assert_eq!((one.0, many.0), (1, 100));
    assert!(many.1 < 2 * one.1 && many.1 < 20_000_000, "{many:?} for many, {one:?} for one");
}
