//! What a client asks proxies, without a network.
//!
//! Owns a client that has a session, and operations of it. Must not know what proxies do.

use super::*;
use crate::bucket::KeyHash;
use crate::client::{ClientCall, ClientOptions, ClientView};
use crate::fabric::{NodeId, SessionId};
use crate::region::{NodeSet, PoolLayout};

const LAYOUT: PoolLayout =
    PoolLayout { memory_nodes: 1, copies: 1, partition_bits: 1, groups: 64, block_bytes: 4096, blocks: 4 };

type Outs = Vec<Out<ClientAnswer>>;

/// A client in an epoch, in which each of the two partitions has a proxy of its own.
fn client(epoch: u32) -> Client {
    let mut client = Client::new(NodeId(1), 1, LAYOUT, ClientOptions::default());
    install(&mut client, epoch);
    client
}

/// A new epoch, and which calls ended by it.
fn install(client: &mut Client, epoch: u32) -> Vec<Outcome> {
    let view = ClientView { epoch, living: NodeSet::first(1), session: SessionId(2) };
    let owners =
        [0, 1].map(|partition| Owner { partition, node: NodeId(10 + partition), session: 10 + partition });
    let mut out = Outs::new();
    client.install(0, view, (&[], &owners), &mut out);
    let outcome = |one| match one {
        Out::Answer(ClientAnswer { outcome, .. }) => Some(outcome),
        _ => None,
    };
    out.into_iter().filter_map(outcome).collect()
}

/// A delete of some key of the partition.
fn delete(partition: u16) -> Operation {
    let keys = (0..u64::MAX).map(|number| number.to_le_bytes().to_vec());
    let mut keys = keys.filter(|key| KeyHash::of(key).partition(LAYOUT.partition_bits) == partition);
    let request = Request::Delete(Condition::Any);
    Operation::new(
        ClientCall { id: 0, key: keys.next().unwrap(), request },
        Nanos::MAX,
        LAYOUT.partition_bits,
    )
}

fn sequence(next: Next) -> Option<u32> {
    match next {
        Next::Ask(rpc, _) => Some(rpc.identity().2),
        Next::Finish(Outcome::Unavailable) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn numbers_of_requests_end_and_begin_again_with_the_epoch() {
    let mut client = client(1);
    let mut operation = delete(0);
    let place = (3, SlotWord::NEVER_USED);
    client.next_sequence = u32::MAX - 2;
    assert_eq!(sequence(client.ask_index(&mut operation, Vec::new())), Some(u32::MAX - 1));
    assert_eq!(sequence(client.submit(&mut operation, Purpose::Delete, place, false)), Some(u32::MAX));
    for _ in 0..2 {
        assert_eq!(sequence(client.submit(&mut operation, Purpose::Delete, place, false)), None);
        assert_eq!(sequence(client.ask_index(&mut operation, Vec::new())), None);
    }
    install(&mut client, 2);
    assert_eq!(sequence(client.ask_index(&mut operation, Vec::new())), Some(1));
}

/// Sends a write of the partition, number `id` of the operations: what it acknowledges.
fn send(client: &mut Client, id: u32, operation: &mut Operation) -> u32 {
    let mut out = Outs::new();
    client.send_rpc(id, operation, 0, &mut out);
    let Some(Out::Send { bytes, .. }) = out.pop() else { panic!("nothing was sent") };
    match Message::decode(&bytes) {
        Ok((_, Message::Index(IndexRpc::Write { acknowledged, .. }))) => acknowledged,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_write_acknowledges_what_no_other_write_to_its_proxy_waits_for() {
    let mut client = client(1);
    let place = (3, SlotWord::NEVER_USED);
    // 1: a read, 2: a write to the other proxy, 3 and 4: writes to this one.
    for (id, partition) in [(1, 0), (2, 1), (3, 0), (4, 0)] {
        let mut operation = delete(partition);
        let next = match id {
            1 => client.ask_index(&mut operation, Vec::new()),
            _ => client.submit(&mut operation, Purpose::Delete, place, false),
        };
        let Next::Ask(rpc, _) = next else { panic!("{next:?}") };
        assert_eq!(rpc.identity().2, id);
        operation.rpc = Some(rpc);
        client.operations.insert(id, operation);
    }
    let mut last = client.operations.remove(&4).unwrap();
    assert_eq!(send(&mut client, 4, &mut last), 3);
    // Sent again once the third is answered.
    client.operations.remove(&3);
    assert_eq!(send(&mut client, 4, &mut last), 4);
}

/// A write that waited for its proxy when the configuration changed, and nobody knows of its slot any more.
#[test]
fn a_write_that_was_told_busy_is_no_doubt() {
    let none = SlotWord::NEVER_USED;
    for is_told in [false, true] {
        let mut client = client(1);
        let mut operation = delete(0);
        let Next::Ask(rpc, _) = client.submit(&mut operation, Purpose::Delete, (3, none), false) else {
            panic!("nothing was asked")
        };
        let (epoch, session, sequence) = rpc.identity();
        operation.rpc = Some(rpc);
        client.operations.insert(1, operation);
        client.preparing = Some(2);
        if is_told {
            let status = WriteStatus::Busy;
            let (old, new, granted_by) = (none, none, 0);
            let busy = IndexRpc::Written { epoch, session, sequence, status, slot: 3, old, new, granted_by };
            client.proxy_answered(busy, 0, &mut Outs::new());
        }
        let (outcomes, goes_on) = match is_told {
            true => (vec![], true),
            false => (vec![Outcome::Indeterminate], false),
        };
        assert_eq!(install(&mut client, 2), outcomes);
        let is_asking = |operation: &Operation| matches!(operation.step, Step::Ask);
        assert_eq!(client.operations.get(&1).is_some_and(is_asking), goes_on);
    }
}
