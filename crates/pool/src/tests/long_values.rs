//! Pools with values in parts: seeded runs, memory that comes back, limits.

use super::run::{Plan, Run};
use crate::bucket::KeyHash;
use crate::client::{Client, ClientCall, ClientCounters, ClientOptions, Condition, Outcome, Request};
use crate::cluster::{Cluster, ClusterOptions};
use crate::fabric::nic::NicModel;
use crate::fabric::sim::SimOptions;
use crate::fabric::{Nanos, NodeId};
use crate::manager::{ManagerCall, ManagerOptions};
use crate::parts::VALUE_BYTES_MAX;
use crate::region::{PoolLayout, SlotId};
use crate::repairs::Repairs;

/// Most values are in one to seven parts.
fn long(seed: u64) -> Plan {
    let mut plan = Plan::new(seed);
    plan.client.part_units = if seed.is_multiple_of(2) { 1 } else { 2 };
    (plan.walk_one_in, plan.keys, plan.calls) = (8, 7, 220);
    if seed.is_multiple_of(4) {
        plan.client.quarantine_ns = 60_000;
    }
    plan
}

#[test]
fn every_history_is_linearizable_whatever_fails() {
    let (mut client, mut reclaimed, mut walked) = (ClientCounters::default(), 0, 0);
    for seed in 0..500 {
        let report = Run::new(long(seed)).run(false).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        client = client.plus(report.client);
        reclaimed += report.manager.reclaimed;
        walked += report.walked;
    }
    let all = format!("{client:?}, {reclaimed} reclaimed, {walked} walked");
    assert!(client.long_writes > 10_000 && client.long_reads > 5_000, "{all}");
    assert!(client.value_hits > 100 && client.collected > 100 && reclaimed > 100 && walked > 300, "{all}");
}

fn fails(most: u64, plan: impl Fn(&mut Plan)) -> bool {
    (0..most).any(|seed| {
        let mut one = long(seed);
        plan(&mut one);
        Run::new(one).run(false).is_err()
            // It is for what is left out, and nothing else, that the run fails.
            && Run::new(Plan { repairs: Repairs::ALL, ..one })
                .run(false)
                .map_or_else(|error| panic!("seed {seed}, with everything: {error}"), |_| true)
    })
}

#[test]
fn each_protection_left_out_is_noticed() {
    assert!(
        fails(300, |plan| {
            plan.repairs.parts_first = false;
            plan.compute_crash_one_in = 20;
        }),
        "parts first"
    );
    assert!(
        fails(300, |plan| {
            (plan.repairs.parts_bound, plan.repairs.parts_quarantine) = (false, false);
            (plan.keys, plan.client.cached_keys) = (2, 0);
        }),
        "parts that wait, and say whose they are"
    );
    // A value has several parts, and a block only a few.
    assert!(
        fails(300, |plan| {
            plan.repairs.reclaim_sees_parts = false;
            (plan.compute_crash_one_in, plan.keys, plan.deletes, plan.client.part_units) = (20, 24, 1, 1);
        }),
        "parts keep their blocks"
    );
}

/// 36 blocks of 4,032 bytes for objects.
const LAYOUT: PoolLayout =
    PoolLayout { memory_nodes: 3, copies: 2, partition_bits: 1, groups: 4, block_bytes: 4096, blocks: 12 };
const SECOND: Nanos = 1_000_000_000;

struct Pool {
    cluster: Cluster,
    calls: u64,
}

impl Pool {
    fn new(layout: PoolLayout) -> Pool {
        let client = ClientOptions { depth: 64, ..Plan::new(1).client };
        Pool::with(layout, client, SimOptions::CHAOS)
    }

    fn with(layout: PoolLayout, client: ClientOptions, fabric: SimOptions) -> Pool {
        let manager = ManagerOptions {
            retry_ns: 60_000,
            prepare_ns: 2_000_000,
            lease_ns: client.lease_ns,
            placement: None,
        };
        let options = ClusterOptions { layout, compute_nodes: 2, client, manager, fabric };
        Pool { cluster: Cluster::new(options, 5).unwrap(), calls: 0 }
    }

    fn begin(&mut self, node: u16, key: &str, request: Request) -> u64 {
        self.calls += 1;
        let call = ClientCall { id: self.calls, key: key.into(), request };
        self.cluster.call(NodeId(node), call);
        self.calls
    }

    fn outcome(&mut self, id: u64) -> Outcome {
        let until = self.cluster.now() + SECOND;
        while self.cluster.now() < until && self.cluster.step() {
            if let Some((_, answer)) = self.cluster.take_answers().into_iter().find(|(_, one)| one.id == id) {
                return answer.outcome;
            }
        }
        panic!("no answer to {id}");
    }

    fn ask(&mut self, node: u16, key: &str, request: Request) -> Outcome {
        let id = self.begin(node, key, request);
        self.outcome(id)
    }

    fn put(&mut self, node: u16, key: &str, value: &[u8]) -> Outcome {
        self.ask(node, key, Request::Put(value.to_vec(), Condition::Any))
    }

    fn has(&mut self, node: u16, key: &str, value: &[u8]) -> bool {
        matches!(self.ask(node, key, Request::Get), Outcome::Value(there, _) if there == value)
    }

    fn rest(&mut self, ns: Nanos) {
        let until = self.cluster.now() + ns;
        while self.cluster.now() < until {
            self.cluster.step();
        }
    }

    /// Objects and parts that both nodes have given out.
    fn used(&self) -> usize {
        let clients = [0, 1].into_iter().filter_map(|node| self.cluster.client(NodeId(node)));
        clients.map(Client::slab).map(|slab| slab.counts().0).sum()
    }
}

fn is_stored(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Stored(_))
}

/// Values of five parts and their object take turns at two nodes, who free what the other one has: sixty times as much as there is memory.
#[test]
fn memory_of_parts_comes_back() {
    let mut pool = Pool::new(LAYOUT);
    for proxied in [false, true] {
        for round in 0..240_u16 {
            let value = vec![round as u8; 18_000 + usize::from(round)];
            let outcome = pool.put(round % 2, "key", &value);
            assert!(is_stored(&outcome), "{round}: {outcome:?}");
            assert!(round % 8 != 0 || pool.has(1 - round % 2, "key", &value), "{round}");
            // A bit is seen by housekeeping, and memory waits in quarantine.
            pool.rest(2_000_000);
            if round % 5 == 0 {
                assert_eq!(pool.ask(0, "key", Request::Delete(Condition::Any)), Outcome::Deleted(true));
            }
        }
        pool.ask(1, "key", Request::Delete(Condition::Any));
        pool.rest(5_000_000);
        assert_eq!(pool.used(), 0, "nothing is left of anything");
        if !proxied {
            for partition in [0, 1] {
                pool.cluster.tell_manager(ManagerCall::Assign(partition, Some(NodeId(0))));
            }
            pool.rest(10_000_000);
        }
    }
}

/// What does not fit is refused, and leaves nothing behind that a short value would lack.
#[test]
fn without_room_a_long_value_takes_nothing() {
    let mut pool = Pool::new(LAYOUT);
    let (first, second) = (vec![1; 60_000], vec![2; 100_000]);
    assert!(is_stored(&pool.put(0, "first", &first)));
    let used = pool.used();
    assert_eq!(pool.put(0, "second", &second), Outcome::Full);
    assert_eq!(pool.ask(0, "second", Request::Get), Outcome::Absent);
    assert_eq!(pool.used(), used);
    for key in 0..40 {
        let outcome = pool.put(0, &format!("short-{key}"), &[3; 1_000]);
        assert!(is_stored(&outcome), "{key}: {outcome:?}");
    }
    assert!(pool.has(1, "first", &first));
}

#[test]
fn the_longest_value_and_one_byte_more() {
    let layout = PoolLayout { block_bytes: 64 << 10, blocks: 80, ..LAYOUT };
    let mut pool = Pool::new(layout);
    let mut value: Vec<u8> = (0..VALUE_BYTES_MAX).map(|at| (at / 7) as u8).collect();
    assert!(is_stored(&pool.put(0, "key", &value)));
    assert!(pool.has(0, "key", &value) && pool.has(1, "key", &value));
    value.push(0);
    assert_eq!(pool.put(0, "key", &value), Outcome::TooLong);
    // So many at once that they wait for one another: no memory node is posted more than a fabric takes.
    value.truncate(1 << 20);
    let ids: Vec<u64> = (0..40_u16)
        .map(|n| {
            pool.begin(0, "other", Request::Put([&value[..], &n.to_le_bytes()].concat(), Condition::Any))
        })
        .collect();
    let mut outcomes = Vec::new();
    while outcomes.len() < ids.len() {
        pool.cluster.step();
        outcomes.extend(pool.cluster.take_answers().into_iter().map(|(_, answer)| answer.outcome));
        let client = pool.cluster.client(NodeId(0)).unwrap();
        assert!(client.long_bytes_under_way() <= 16 << 20);
    }
    assert!(outcomes.iter().any(is_stored), "{outcomes:?}");
}

/// A node is gone that had a long value and forty short ones: its objects are looked at in the first change of the configuration, and in no other one.
#[test]
fn objects_of_who_is_gone_are_looked_at_once() {
    let mut pool = Pool::new(LAYOUT);
    let long = vec![7; 18_000];
    assert!(is_stored(&pool.put(1, "long", &long)));
    for key in 0..40 {
        assert!(is_stored(&pool.put(1, &format!("short-{key}"), &[3])));
    }
    // Its blocks of parts are those into which no slot leads.
    pool.cluster.crash_compute(NodeId(1));
    let mut operations = |what: Option<ManagerCall>| {
        let before = pool.cluster.fabric().counters().operations;
        what.into_iter().for_each(|what| pool.cluster.tell_manager(what));
        pool.rest(10_000_000);
        assert!(pool.has(0, "long", &long));
        pool.cluster.fabric().counters().operations - before
    };
    let first = operations(Some(ManagerCall::Suspect(NodeId(1))));
    let second = operations(Some(ManagerCall::Assign(0, Some(NodeId(0)))));
    let third = operations(Some(ManagerCall::Assign(0, None)));
    let idle = operations(None);
    assert!(first > idle + 40 && second > idle && third > idle, "{first}, {second}, {third}, {idle}");
    assert!(second + 30 < first && third + 30 < first, "{first}, {second}, {third}, {idle}");
    assert_eq!(pool.cluster.manager().epoch(), (4, false));
}

/// Long puts that find no memory wait for it, and for one another, until their time is over; nobody else waits behind them.
#[test]
fn others_pass_long_puts_that_wait_for_memory() {
    let layout = PoolLayout { block_bytes: 8192, ..LAYOUT };
    let mut pool = Pool::new(layout);
    let long = vec![2; 20_000];
    assert!(is_stored(&pool.put(0, "short", &[1])) && is_stored(&pool.put(0, "long", &long)));
    let value = vec![3; VALUE_BYTES_MAX];
    let put = |value: &[u8]| Request::Put(value.to_vec(), Condition::Any);
    let puts: Vec<u64> = (0..20).map(|key| pool.begin(0, &format!("new-{key}"), put(&value))).collect();
    let began = pool.cluster.now();
    assert!(pool.has(0, "short", &[1]) && pool.has(0, "long", &long));
    assert!(is_stored(&pool.put(0, "short", &[4])));
    let took = pool.cluster.now() - began;
    assert!(took < 1_000_000, "{took}");
    // Both those that had begun and those that had not are answered in time.
    let mut outcomes = Vec::new();
    while outcomes.len() < puts.len() && pool.cluster.now() < began + 6_000_000 {
        pool.cluster.step();
        outcomes.extend(pool.cluster.take_answers().into_iter().map(|(_, answer)| answer.outcome));
    }
    let count = |what| outcomes.iter().filter(|outcome| **outcome == what).count();
    assert_eq!((count(Outcome::Full), count(Outcome::Unavailable)), (8, 12), "{outcomes:?}");
}

/// 64 values of 2 MiB are read at once from a memory node whose link carries so many bytes in a microsecond, with a quarantine of 60 ms. When all are answered, when a short one is that was asked for a little later, and what the client counted.
fn many_long_reads(request: &Request, link_bytes_per_us: u64) -> (Nanos, Nanos, ClientCounters) {
    let layout = PoolLayout { memory_nodes: 1, copies: 1, block_bytes: 64 << 10, blocks: 80, ..LAYOUT };
    let client = ClientOptions {
        quarantine_ns: 60_000_000,
        timeout_ns: 3 * SECOND,
        depth: 128,
        cached_keys: 0,
        ..Plan::new(1).client
    };
    let nic = NicModel { link_bytes_per_us, ..NicModel::CONNECTX3 };
    let mut pool = Pool::with(layout, client, SimOptions::modelled(nic));
    let value: Vec<u8> = (0..VALUE_BYTES_MAX).map(|at| (at / 7) as u8).collect();
    assert!(is_stored(&pool.put(0, "long", &value)) && is_stored(&pool.put(0, "short", &[1])));
    let began = pool.cluster.now();
    for _ in 0..64 {
        pool.begin(0, "long", request.clone());
    }
    let (mut left, mut short, mut short_took) = (64, None, 0);
    while left > 0 {
        pool.cluster.step();
        if short.is_none() && pool.cluster.now() > began + 1_000_000 {
            short = Some((pool.begin(0, "short", Request::Get), pool.cluster.now()));
        }
        for (_, answer) in pool.cluster.take_answers() {
            let there = match answer.outcome {
                Outcome::Value(there, _) => there,
                Outcome::Walked(mut pairs, _) => pairs.pop().unwrap().value,
                other => panic!("{other:?}"),
            };
            match short {
                Some((id, at)) if id == answer.id => short_took = pool.cluster.now() - at,
                _ => {
                    assert!(there == value);
                    left -= 1;
                }
            }
        }
    }
    let counters = pool.cluster.client(NodeId(0)).unwrap().counters();
    (pool.cluster.now() - began, short_took, counters)
}

/// What all of them take on a link that is never idle.
fn least_ns(link_bytes_per_us: u64) -> Nanos {
    64 * (VALUE_BYTES_MAX as u64) * 1_000 / link_bytes_per_us
}

/// All of them together take more than twice half of a quarantine; so many at a time are read that none comes too late, and a short one does not wait for all.
#[test]
fn long_reads_take_turns() {
    let (took, short_took, counters) = many_long_reads(&Request::Get, 2_000);
    let least = least_ns(2_000);
    assert!((least..least * 5 / 4).contains(&took), "{took} ns, at least {least}");
    assert!((1..20_000_000).contains(&short_took), "{short_took}");
    assert_eq!((counters.late, counters.long_reads), (0, 64));
    // So do walks that come by it.
    let partition = KeyHash::of(b"long").partition(LAYOUT.partition_bits);
    let walk = Request::Walk(SlotId { partition, slot: 0 }, 8);
    let (took, short_took, counters) = many_long_reads(&walk, 2_000);
    assert!((least..least * 5 / 4).contains(&took), "{took} ns, at least {least}");
    assert!((1..20_000_000).contains(&short_took), "{short_took}");
    assert_eq!((counters.late, counters.long_reads), (0, 64));
}

/// Where less than 16 MiB come in half of a quarantine fewer are read at a time.
#[test]
fn long_reads_are_fewer_at_a_time_where_they_come_late() {
    let (took, _, counters) = many_long_reads(&Request::Get, 200);
    let least = least_ns(200);
    assert!((least..least * 3 / 2).contains(&took), "{took} ns, at least {least}, {counters:?}");
    assert!(counters.late > 0);
}
