//! What every fabric must do: the contract of `fabric.rs`, as tests over any of them.
//!
//! Owns the suite. A transport gives a [`Bench`] and is run through [`check`]. Must not know which transport it is.

use super::*;

/// A fabric under test: two compute nodes (0 and 1, with sessions 1 and 2), two memory nodes that each export region 0 with 4,096 zero bytes.
pub(super) trait Bench {
    fn port(&mut self, node: NodeId) -> Box<dyn Fabric + '_>;
}

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const M: MemoryNode = MemoryNode(0);

fn at(offset: u32) -> RemoteAddress {
    RemoteAddress { region: 0, offset }
}

fn done(bench: &mut dyn Bench, node: NodeId, tag: u64) -> PostResult {
    let mut port = bench.port(node);
    loop {
        match port.poll() {
            Some(FabricEvent::Done(other, result)) if other == tag => return result,
            Some(_) => {}
            None => panic!("{tag} is never done"),
        }
    }
}

fn ask(bench: &mut dyn Bench, node: NodeId, to: MemoryNode, batch: Batch) -> PostResult {
    bench.port(node).post(SessionId(node.0 + 1), to, batch, 77);
    done(bench, node, 77)
}

fn word(bench: &mut dyn Bench, offset: u32) -> u64 {
    match ask(bench, A, M, vec![RemoteOp::Read(at(offset), 8)]).as_deref() {
        Ok([OpResult::Bytes(bytes)]) => u64::from_le_bytes(bytes[..].try_into().unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Runs the suite; `make` gives a new bench each time.
pub(super) fn check(make: &mut dyn FnMut(u64) -> Box<dyn Bench>) {
    for seed in 0..30 {
        completed_is_visible(&mut *make(seed));
        atomics_are_atomic(&mut *make(seed));
        a_batch_writes_in_order(&mut *make(seed));
        what_is_outside_is_refused_whole(&mut *make(seed));
        if seed == 0 {
            what_is_too_long_is_refused_whole(&mut *make(seed));
        }
        a_fence_ends_a_session(&mut *make(seed));
        datagrams_are_whole(&mut *make(seed));
    }
}

fn completed_is_visible(bench: &mut dyn Bench) {
    let bytes: Vec<u8> = (0..200).collect();
    assert_eq!(ask(bench, A, M, vec![RemoteOp::Write(at(64), bytes.clone())]), Ok(vec![OpResult::Written]));
    let read = ask(bench, B, M, vec![RemoteOp::Read(at(64), 200)]);
    assert_eq!(read, Ok(vec![OpResult::Bytes(bytes)]));
    // The other node's memory is another.
    let other = ask(bench, B, MemoryNode(1), vec![RemoteOp::Read(at(64), 8)]);
    assert_eq!(other, Ok(vec![OpResult::Bytes(vec![0; 8])]));
}

fn atomics_are_atomic(bench: &mut dyn Bench) {
    for round in 0..50u64 {
        for node in [A, B] {
            let batch = vec![
                RemoteOp::FetchAndAdd(at(8), 3),
                RemoteOp::CompareAndSwap(at(16), round, u64::from(node.0) + 1000),
            ];
            bench.port(node).post(SessionId(node.0 + 1), M, batch, round);
        }
        let results = [A, B].map(|node| done(bench, node, round).unwrap());
        let won = results.iter().filter(|result| result[1] == OpResult::Before(round)).count();
        assert_eq!(won, 1, "one of two swaps of one word wins");
        let reset = ask(bench, A, M, vec![RemoteOp::Write(at(16), (round + 1).to_le_bytes().to_vec())]);
        assert_eq!(reset, Ok(vec![OpResult::Written]));
    }
    assert_eq!(word(bench, 8), 300);
}

fn a_batch_writes_in_order(bench: &mut dyn Bench) {
    for round in 1..40u64 {
        let batch =
            (0..8).map(|at_word| RemoteOp::Write(at(8 * at_word), round.to_le_bytes().to_vec())).collect();
        bench.port(A).post(SessionId(1), M, batch, round);
        // Read one word at a time, the last one first: no earlier word may be older.
        let mut newest = 0;
        for at_word in (0..8).rev() {
            let result = ask(bench, B, M, vec![RemoteOp::Read(at(8 * at_word), 8)]);
            let Ok([OpResult::Bytes(bytes)]) = result.as_deref() else { panic!("{result:?}") };
            let seen = u64::from_le_bytes(bytes[..].try_into().unwrap());
            assert!(seen >= newest, "word {at_word} is of round {seen}, a later one of {newest}");
            newest = newest.max(seen);
        }
        done(bench, A, round).unwrap();
    }
}

fn what_is_outside_is_refused_whole(bench: &mut dyn Bench) {
    let outside = RemoteOp::Read(at(4090), 8);
    let batch = vec![RemoteOp::Write(at(0), vec![1; 8]), outside];
    assert_eq!(ask(bench, A, M, batch), Err(PostError::OutOfBounds));
    assert_eq!(word(bench, 0), 0);
    for op in [
        RemoteOp::FetchAndAdd(at(4), 1),
        RemoteOp::CompareAndSwap(at(4096), 0, 1),
        RemoteOp::Read(RemoteAddress { region: 1, offset: 0 }, 8),
        RemoteOp::Read(at(u32::MAX), u32::MAX),
    ] {
        assert_eq!(ask(bench, A, M, vec![op]), Err(PostError::OutOfBounds));
    }
    assert_eq!(ask(bench, A, MemoryNode(9), vec![RemoteOp::Read(at(0), 8)]), Err(PostError::Lost));
}

fn what_is_too_long_is_refused_whole(bench: &mut dyn Bench) {
    let add = || RemoteOp::FetchAndAdd(at(8), 1);
    let reads = RESULT_BYTES_MAX / (4096 + RESULT_HEAD_BYTES);
    let mut batch = vec![RemoteOp::Read(at(0), 4096); reads];
    assert!(ask(bench, A, M, batch.clone()).is_ok());
    batch.extend([add(), RemoteOp::Read(at(0), 4096)]);
    assert_eq!(ask(bench, A, M, batch), Err(PostError::OutOfBounds));
    let writes = BATCH_BYTES_MAX / (4096 + OPERATION_BYTES) + 1;
    let mut batch = vec![RemoteOp::Write(at(0), vec![0; 4096]); writes];
    batch.push(add());
    assert_eq!(ask(bench, A, M, batch), Err(PostError::OutOfBounds));
    assert_eq!(word(bench, 8), 0);
}

fn a_fence_ends_a_session(bench: &mut dyn Bench) {
    for tag in 0..20 {
        bench.port(A).post(SessionId(1), M, vec![RemoteOp::FetchAndAdd(at(8), 1)], tag);
    }
    bench.port(NodeId::agent(M)).fence(SessionId(1), 5);
    assert_eq!(done(bench, NodeId::agent(M), 5), Ok(Vec::new()));
    let read = |bench: &mut dyn Bench| ask(bench, B, M, vec![RemoteOp::Read(at(8), 8)]);
    let after = read(bench);
    for _ in 0..200 {
        assert_eq!(read(bench), after, "something was executed after the fence");
    }
    assert_eq!(ask(bench, A, M, vec![RemoteOp::FetchAndAdd(at(8), 1)]), Err(PostError::Fenced));
    // Elsewhere it is not fenced.
    assert!(ask(bench, A, MemoryNode(1), vec![RemoteOp::FetchAndAdd(at(8), 1)]).is_ok());
}

fn datagrams_are_whole(bench: &mut dyn Bench) {
    let sent: Vec<Vec<u8>> = (0..100u8).map(|number| vec![number; 1 + usize::from(number) * 3]).collect();
    for bytes in &sent {
        bench.port(A).send(B, bytes.clone());
    }
    let mut port = bench.port(B);
    let mut seen = 0;
    while let Some(event) = port.poll() {
        let FabricEvent::Received(bytes) = event else { panic!("{event:?}") };
        assert!(sent.contains(&bytes));
        seen += 1;
    }
    assert!(seen > 50, "{seen} of 100");
}

struct SimBench(sim::SimFabric);

impl Bench for SimBench {
    fn port(&mut self, node: NodeId) -> Box<dyn Fabric + '_> {
        Box::new(self.0.port(node))
    }
}

fn sim_bench(options: sim::SimOptions, seed: u64) -> Box<dyn Bench> {
    let mut fabric = sim::SimFabric::new(options, seed);
    for node in [A, B, NodeId::agent(M), NodeId::agent(MemoryNode(1))] {
        fabric.start(node);
    }
    for node in 0..2 {
        fabric.export(MemoryNode(node), 0, vec![0; 4096]);
    }
    Box::new(SimBench(fabric))
}

#[test]
fn the_simulated_fabric_keeps_the_contract_in_chaos() {
    check(&mut |seed| sim_bench(sim::SimOptions::CHAOS, seed));
}

#[test]
fn the_simulated_fabric_keeps_the_contract_with_costs() {
    check(&mut |seed| sim_bench(sim::SimOptions::modelled(nic::NicModel::CONNECTX3), seed));
}

#[test]
fn what_the_contract_leaves_open_happens() {
    let mut fabric = sim::SimFabric::new(sim::SimOptions::CHAOS, 3);
    let writer = NodeId(0);
    fabric.start(writer);
    fabric.start(B);
    fabric.export(M, 0, vec![0; 4096]);
    let mut torn = 0;
    for round in 1..200u8 {
        fabric.port(writer).post(SessionId(1), M, vec![RemoteOp::Write(at(0), vec![round; 512])], 1);
        fabric.port(B).post(SessionId(2), M, vec![RemoteOp::Read(at(0), 512)], 2);
        let Some(FabricEvent::Done(2, Ok(results))) = fabric.port(B).poll() else { panic!() };
        let OpResult::Bytes(bytes) = &results[0] else { panic!() };
        torn += u32::from(bytes.iter().any(|byte| byte != &bytes[0]));
        assert!(bytes.chunks_exact(8).all(|word| word.iter().all(|byte| byte == &word[0])), "a word is torn");
    }
    assert!(torn > 5, "{torn} reads were torn");
    for _ in 0..100 {
        fabric.port(writer).post(SessionId(1), M, vec![RemoteOp::FetchAndAdd(at(8), 1); 4], 1);
    }
    fabric.crash_compute(writer);
    while fabric.port(B).poll().is_some() {}
    let counters = fabric.counters();
    assert!((100..400).contains(&counters.posthumous), "{counters:?}");
}
