//! Many simulated runs, every history checked.

use super::run::{Plan, Run};
use crate::client::{ClientCall, ClientOptions, Condition, Outcome, Request};
use crate::cluster::{Cluster, ClusterOptions};
use crate::fabric::sim::SimOptions;
use crate::fabric::{Nanos, NodeId};
use crate::manager::{ManagerCall, ManagerOptions};

/// So many runs, or as many as the environment says.
fn runs(brief: u64) -> u64 {
    std::env::var("HEDGEROW_POOL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(brief)
}

#[test]
fn every_history_is_linearizable_whatever_fails() {
    let (mut calls, mut open, mut crashes, mut losses) = (0, 0, 0, 0);
    let mut client = crate::client::ClientCounters::default();
    let mut proxy = crate::ProxyCounters::default();
    let (mut completed, mut undone, mut posthumous, mut refused, mut reclaimed) = (0, 0, 0, 0, 0);
    for seed in 0..runs(2000) {
        let mut plan = Plan::new(seed);
        if seed % 4 == 0 {
            // So short that what comes late is late.
            plan.client.quarantine_ns = 60_000;
        }
        // Some values are in parts.
        plan.client.part_units = [u8::MAX, 2, u8::MAX, u8::MAX, 1, 3, u8::MAX, u8::MAX][(seed % 8) as usize];
        let report = Run::new(plan).run(false).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        calls += report.calls;
        open += report.open;
        crashes += report.crashes;
        losses += report.losses;
        client = client.plus(report.client);
        proxy = proxy.plus(report.proxy);
        completed += report.manager.completed;
        undone += report.manager.undone;
        reclaimed += report.manager.reclaimed;
        posthumous += report.fabric.posthumous;
        refused += report.fabric.refused;
    }
    let all = format!(
        "{calls} calls, {open} open, {crashes} crashes, {losses} losses, {completed} completed, {undone} undone, \
         {posthumous} posthumous, {refused} refused, {reclaimed} reclaimed, {client:?}, {proxy:?}"
    );
    // What is to be survived has happened.
    assert!(calls > 1000 && open > 10 && crashes > 10 && losses > 10 && completed > 5, "{all}");
    assert!(posthumous > 100 && refused > 5 && reclaimed > 100, "{all}");
    assert!(
        client.absorbed > 10 && client.arbitrated > 10 && client.cache_hits > 100 && client.released > 5,
        "{all}"
    );
    assert!(proxy.reads > 1000 && proxy.changes > 1000 && proxy.repeated > 10, "{all}");
    assert!(proxy.combined > 10 && proxy.stale > 10, "{all}");
    assert!(client.value_hits > 500 && client.address_hits > 50 && client.invalidated > 500, "{all}");
    assert!(client.late > 0 && client.collected > 100, "{all}");
    assert!(client.verdicts_applied > 5 && client.verdicts_refused > 5, "{all}");
}

/// Mostly reads, of few keys, so that most of them are granted when they are written.
fn read_mostly(seed: u64) -> Plan {
    let mut plan = Plan::new(seed);
    (plan.reads, plan.keys, plan.calls, plan.deletes) = (8, 2, 260, 1);
    plan.assign_one_in = 40;
    plan
}

#[test]
fn caches_say_what_is_whatever_fails() {
    let mut client = crate::client::ClientCounters::default();
    for seed in 0..runs(600) {
        let report =
            Run::new(read_mostly(seed)).run(false).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        client = client.plus(report.client);
    }
    assert!(client.value_hits > 2000 && client.address_hits > 100 && client.invalidated > 2000, "{client:?}");
}

/// Whatever fails meanwhile: what a walk comes by was there, and what is there throughout it comes by.
#[test]
fn walks_come_by_what_stays() {
    let (mut walked, mut ranges) = (0, 0);
    for seed in 0..runs(400) {
        let mut plan = Plan::new(seed);
        (plan.walk_one_in, plan.keys, plan.calls) = (6, 9, 260);
        let report = Run::new(plan).run(false).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        walked += report.walked;
        ranges += report.proxy.ranges;
    }
    assert!(walked > 1000 && ranges > 1000, "{walked} walks, {ranges} steps by proxies");
}

/// A put that was combined was in doubt, and freed what it had replaced once that block had been taken back.
#[test]
fn what_a_combined_put_replaced_is_not_freed_too_late() {
    Run::new(Plan::new(6538)).run(false).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_byte() {
    for seed in [3, 4, 5] {
        let run = || Run::new(Plan::new(seed)).run(true).unwrap();
        let (first, second) = (run(), run());
        assert!(first.recorded.len() > 50_000, "{}", first.recorded.len());
        assert_eq!(first.trace, second.trace);
        assert!(first.recorded == second.recorded);
    }
    let trace = |seed| Run::new(Plan::new(seed)).run(false).unwrap().trace;
    assert_ne!(trace(3), trace(4));
}

/// Runs seeds until one fails, with a repair left out; how many runs that took.
fn runs_until_failure(what: &str, most: u64, plan: impl Fn(&mut Plan)) -> u64 {
    for seed in 0..most {
        let mut one = Plan::new(seed);
        one.memory_losses = 0;
        plan(&mut one);
        if Run::new(one).run(false).is_err() {
            return seed + 1;
        }
    }
    panic!("{what} is left out, and {most} runs notice nothing");
}

/// Each repair is needed: without it histories are wrong.
#[test]
fn each_repair_left_out_is_noticed() {
    let mut taken = Vec::new();
    let mut without = |what: &str, plan: &dyn Fn(&mut Plan)| {
        taken.push((what.to_owned(), runs_until_failure(what, 300, plan)))
    };
    without("the claim of new keys", &|plan| {
        plan.repairs.claim = false;
        plan.layout.partition_bits = 0;
        plan.deletes = 6;
        plan.keys = 8;
        plan.reads = 2;
    });
    without("the quarantine", &|plan| {
        plan.repairs.quarantine = false;
        plan.client.cached_keys = 0;
        plan.keys = 2;
    });
    without("that losers wait", &|plan| {
        plan.repairs.losers_wait = false;
        plan.keys = 1;
    });
    without("that losers count before winners without a condition only", &|plan| {
        plan.repairs.absorb_unconditional = false;
        plan.keys = 1;
        plan.conditional = 6;
    });
    without("the checksum", &|plan| {
        plan.repairs.checksum = false;
        plan.repairs.quarantine = false;
        plan.client.cached_keys = 0;
        plan.keys = 2;
    });
    without("making copies one", &|plan| {
        plan.repairs.align_copies = false;
        plan.compute_crash_one_in = 20;
    });
    without("verdicts", &|plan| {
        plan.repairs.verdicts = false;
        plan.suspicion_one_in = 15;
        plan.keys = 2;
    });
    without("that slots lead into blocks", &|plan| {
        plan.repairs.reclaim_unreferenced = false;
        plan.compute_crash_one_in = 20;
    });
    without("that who was given up is told", &|plan| {
        plan.repairs.tells_given_up = false;
        plan.suspicion_one_in = 15;
    });
    without("waiting for caches", &|plan| {
        *plan = read_mostly(plan.seed);
        plan.repairs.invalidate = false;
    });
    without("granting nothing while a slot changes", &|plan| {
        *plan = read_mostly(plan.seed);
        plan.repairs.grant_unlocked = false;
    });
    without("the taint", &|plan| {
        *plan = read_mostly(plan.seed);
        plan.repairs.taint = false;
    });
    assert_eq!(taken.len(), 12, "{taken:?}");
}

/// Steps until the call of that number is answered, and no longer than that.
fn outcome_within(cluster: &mut Cluster, id: u64, at_most: Nanos) -> Option<Outcome> {
    let until = cluster.now() + at_most;
    while cluster.now() < until && cluster.step() {
        let answers = cluster.take_answers();
        if let Some((_, answer)) = answers.into_iter().find(|(_, answer)| answer.id == id) {
            return Some(answer.outcome);
        }
    }
    None
}

/// Its proxy finds out who has a pair in its cache and says nothing, and tells the manager.
#[test]
fn a_reader_that_vanishes_unnoticed_holds_up_a_write_for_two_leases() {
    let Plan { layout, client, repairs, .. } = Plan::new(1);
    let client = ClientOptions { timeout_ns: 40_000_000, ..client };
    let manager = ManagerOptions {
        retry_ns: 60_000,
        prepare_ns: 2_000_000,
        lease_ns: client.lease_ns,
        placement: None,
    };
    let fabric = SimOptions::CHAOS;
    let options = ClusterOptions { layout, compute_nodes: 3, client, manager, fabric };
    let mut cluster = Cluster::with_repairs(options, 7, repairs).unwrap();
    let mut id = 0;
    let mut ask = |cluster: &mut Cluster, node: u16, request: Request, at_most: Nanos| {
        id += 1;
        cluster.call(NodeId(node), ClientCall { id, key: b"k".to_vec(), request });
        outcome_within(cluster, id, at_most)
    };
    let second = 1_000_000_000;
    assert!(matches!(
        ask(&mut cluster, 1, Request::Put(vec![1], Condition::Any), second),
        Some(Outcome::Stored(_))
    ));
    for partition in [0, 1] {
        cluster.tell_manager(ManagerCall::Assign(partition, Some(NodeId(0))));
    }
    outcome_within(&mut cluster, u64::MAX, 10_000_000);
    let hits = |cluster: &Cluster| cluster.client(NodeId(2)).map_or(0, |client| client.counters().value_hits);
    for _ in 0..4 {
        assert!(matches!(ask(&mut cluster, 2, Request::Get, second), Some(Outcome::Value(..))));
    }
    assert!(hits(&cluster) > 0);
    cluster.crash_compute(NodeId(2));
    let began = cluster.now();
    let put = ask(&mut cluster, 1, Request::Put(vec![2], Condition::Any), 20_000_000);
    assert!(matches!(put, Some(Outcome::Stored(_))), "{put:?}");
    let took = cluster.now() - began;
    assert!(took > client.lease_ns && took < 10 * client.lease_ns, "{took} ns");
    assert!(
        matches!(ask(&mut cluster, 1, Request::Get, second), Some(Outcome::Value(value, _)) if value == [2])
    );
}
