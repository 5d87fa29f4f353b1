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

fn install(client: &mut Client, epoch: u32) {
    let view = ClientView { epoch, living: NodeSet::first(1), session: SessionId(2) };
    let owners =
        [0, 1].map(|partition| Owner { partition, node: NodeId(10 + partition), session: 10 + partition });
    client.install(0, view, (&[], &owners), &mut Outs::new());
}

/// A delete of some key of the partition.
fn delete(partition: u16) -> Operation {
    let keys = (0..u64::MAX).map(|number| number.to_le_bytes().to_vec());
    let mut keys = keys.filter(|key| KeyHash::of(key).partition(LAYOUT.partition_bits) == partition);
    let request = Request::Delete(Condition::Any);
    Operation::new(ClientCall { id: 0, key: keys.next().unwrap(), request }, Nanos::MAX)
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
