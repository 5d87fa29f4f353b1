//! The proxy by itself, without a network.
//!
//! Owns a proxy of one empty partition, and writes to it. Must not know who carries its posts.

use super::*;
use crate::region::MemoryNode;
use crate::word::{LiveWord, LogicalAddress};

const LAYOUT: PoolLayout =
    PoolLayout { memory_nodes: 1, copies: 1, partition_bits: 0, groups: 64, block_bytes: 4096, blocks: 4 };
const LEASE_NS: Nanos = 8_000;
const WRITER: NodeId = NodeId(7);

type Outs = Vec<Out<()>>;

/// A proxy, without a lease, that has read its table.
fn proxy() -> Proxy {
    let mut proxy = Proxy::new(NodeId(1), LAYOUT, LEASE_NS, Repairs::ALL);
    let grant = Grant { epoch: 1, session: SessionId(1), living: NodeSet::first(1) };
    let mut out = Outs::new();
    proxy.install(0, grant, vec![0], &mut out);
    let table = LAYOUT.bucket_header(0).empty_table(LAYOUT.groups);
    let tag = tags(&out)[0];
    proxy.done(0, tag as u32, Ok(vec![OpResult::Bytes(table)]), &mut Outs::new());
    proxy
}

fn tags(out: &Outs) -> Vec<u64> {
    let posts = out.iter().map(|one| match one {
        Out::Post { to: MemoryNode(0), tag, .. } => Some(*tag),
        _ => None,
    });
    posts.flatten().collect()
}

/// The session's sequences that were answered, and what.
fn answers(out: &Outs) -> Vec<(u32, WriteStatus)> {
    let answer = |one: &Out<()>| match one {
        Out::Send { to: WRITER, bytes } => match Message::decode(bytes) {
            Ok((_, Message::Index(IndexRpc::Written { sequence, status, .. }))) => Some((sequence, status)),
            _ => None,
        },
        _ => None,
    };
    out.iter().filter_map(answer).collect()
}

/// A put of a key that was absent.
fn insert(sequence: u32, hash: KeyHash) -> IndexRpc {
    let address = LogicalAddress { region: 0, offset: 64 * sequence };
    let word = SlotWord::live(LiveWord { fingerprint: hash.fingerprint(), units: 1, address, version: 0 });
    let change = IndexChange {
        slot: ANY_SLOT,
        expected: SlotWord::NEVER_USED,
        word,
        combines: false,
        seen: Some(Vec::new()),
    };
    IndexRpc::Write { epoch: 1, session: 2, sequence, acknowledged: 0, hash, caches: false, change }
}

fn key(number: u64) -> KeyHash {
    KeyHash::of(&number.to_le_bytes())
}

/// Asks for an insert; the tags of its posts.
fn ask(proxy: &mut Proxy, sequence: u32, hash: KeyHash, out: &mut Outs) -> Vec<u64> {
    let mut own = Outs::new();
    proxy.asked(0, WRITER, insert(sequence, hash), &mut own);
    let tags = tags(&own);
    out.append(&mut own);
    tags
}

fn written(proxy: &mut Proxy, tag: u64) -> Vec<(u32, WriteStatus)> {
    let mut out = Outs::new();
    proxy.done(0, tag as u32, Ok(vec![OpResult::Written]), &mut out);
    answers(&out)
}

/// A change whose memory node is slow, while numbers go round.
#[test]
fn numbers_of_what_is_under_way_are_passed_over() {
    let (mut proxy, mut out) = (proxy(), Outs::new());
    proxy.next_post = u16::MAX;
    let slow = ask(&mut proxy, 1, key(1), &mut out);
    proxy.next_post = u16::MAX - 1;
    let second = ask(&mut proxy, 2, key(2), &mut out);
    let third = ask(&mut proxy, 3, key(3), &mut out);
    for (tags, sequence) in [(third, 3), (second, 2), (slow, 1)] {
        assert_eq!(tags.len(), 1);
        assert_eq!(written(&mut proxy, tags[0]), [(sequence, WriteStatus::Done)]);
    }
}

/// As many changes under way as there are numbers: the next is told, and the table that is being read is not taken for one.
#[test]
fn without_a_free_number_a_write_is_refused() {
    let (mut proxy, mut out) = (proxy(), Outs::new());
    ask(&mut proxy, 1, key(1), &mut out);
    let (_, change) = proxy.pending.pop_first().unwrap();
    let change = PendingChange { partition: 1, ..change };
    proxy.pending = (0..u16::MAX).map(|number| (number, change.clone())).collect();
    proxy.loading.insert(u16::MAX, 0);
    assert!(ask(&mut proxy, 2, key(2), &mut out).is_empty());
    assert_eq!(answers(&out), [(2, WriteStatus::Busy)]);
    proxy.loading.clear();
    assert_eq!(ask(&mut proxy, 3, key(3), &mut out).len(), 1);
}

/// Who waits when a proxy ends is told that nothing began; who has begun, how it ends.
#[test]
fn who_waits_is_told_when_the_proxy_ends() {
    let (mut proxy, mut out) = (proxy(), Outs::new());
    let under_way = ask(&mut proxy, 1, key(1), &mut out);
    assert!(ask(&mut proxy, 2, key(1), &mut out).is_empty());
    assert!(ask(&mut proxy, 3, key(1), &mut out).is_empty());
    assert_eq!(answers(&out), []);
    proxy.stop(&mut out);
    assert_eq!(answers(&out), [(2, WriteStatus::Busy), (3, WriteStatus::Busy)]);
    assert_eq!(written(&mut proxy, under_way[0]), [(1, WriteStatus::Done)]);
}

/// However many wait for one key, others are not refused for it; nor is who need not wait, although as many wait as may.
#[test]
fn only_who_would_have_to_wait_is_refused() {
    let (mut proxy, mut out) = (proxy(), Outs::new());
    let first = ask(&mut proxy, 0, key(1), &mut out);
    for sequence in 1..=WAITING_MAX as u32 {
        assert!(ask(&mut proxy, sequence, key(1), &mut out).is_empty());
    }
    assert_eq!(answers(&out), []);
    assert!(ask(&mut proxy, 100, key(1), &mut out).is_empty());
    assert_eq!(answers(&out), [(100, WriteStatus::Busy)]);
    // Another key, twice: the one begins, the other waits.
    assert_eq!(ask(&mut proxy, 101, key(2), &mut out).len(), 1);
    assert!(ask(&mut proxy, 102, key(2), &mut out).is_empty());
    assert_eq!(answers(&out).len(), 1);
    let some = proxy.waiting[0].clone();
    let others = (1000..).map(|at| WriteRequest { hash: key(at), ..some.clone() });
    proxy.waiting.extend(others.take(WAITING_IN_ALL_MAX - proxy.waiting.len()));
    assert!(ask(&mut proxy, 103, key(2), &mut out).is_empty());
    assert_eq!(ask(&mut proxy, 104, key(3), &mut out).len(), 1);
    assert_eq!(answers(&out), [(100, WriteStatus::Busy), (103, WriteStatus::Busy)]);
    // The first of those that waited finds the key there, and so do the others.
    assert_eq!(written(&mut proxy, first[0])[..2], [(0, WriteStatus::Done), (1, WriteStatus::Conflict)]);
}

/// Housekeeping comes each microsecond, an answer takes five: the lease begins, and goes on, from when each was asked for.
#[test]
fn a_lease_begins_where_answers_are_slower_than_housekeeping() {
    let (mut proxy, mut under_way) = (proxy(), VecDeque::new());
    proxy.renewals.clear();
    for now in (1_000..40_000).step_by(1_000) {
        let mut out = Outs::new();
        proxy.housekeep(now, false, &mut out);
        assert!(out.len() <= 1);
        under_way.extend(out.iter().map(|_| (now, proxy.next_renewal)));
        assert!(proxy.renewals.len() <= RENEWALS as usize);
        while let Some((asked_at, sequence)) = under_way.pop_front_if(|(at, _)| *at + 5_000 <= now) {
            proxy.renewed(now, sequence, &mut Outs::new());
            assert_eq!(proxy.lease_until, asked_at + LEASE_NS);
        }
        assert_eq!(proxy.lease_until > now, now >= 6_000, "at {now}");
    }
    // What was asked for longer ago than a lease holds counts for nothing.
    let old = proxy.next_renewal;
    let until = proxy.lease_until;
    proxy.housekeep(80_000, false, &mut Outs::new());
    proxy.renewed(80_000, old, &mut Outs::new());
    assert_eq!((proxy.lease_until, proxy.renewals.len()), (until, 1));
}

/// What caches are told: to whom, and under which number.
fn invalidations(out: &Outs) -> Vec<(NodeId, u16, u32)> {
    let told = |one: &Out<()>| match one {
        Out::Send { to, bytes } => match Message::decode(bytes) {
            Ok((_, Message::Index(IndexRpc::Invalidate { session, sequence, .. }))) => {
                Some((*to, session, sequence))
            }
            _ => None,
        },
        _ => None,
    };
    out.iter().filter_map(told).collect()
}

fn silent(out: &Outs) -> Vec<u16> {
    let told = |one: &Out<()>| match one {
        Out::Send { to: NodeId::MANAGER, bytes } => match Message::decode(bytes) {
            Ok((_, Message::Silent { epoch: 1, by: 1, session })) => Some(session),
            _ => None,
        },
        _ => None,
    };
    out.iter().filter_map(told).collect()
}

/// A look-up of the key for a node with a cache: whether the pair is granted, and its word.
fn look_up(proxy: &mut Proxy, now: Nanos, session: u16, hash: KeyHash) -> (bool, SlotAndWord) {
    let mut out = Outs::new();
    let read = IndexRpc::Read { epoch: 1, session, sequence: 1, hash, caches: true };
    proxy.asked(now, NodeId(session), read, &mut out);
    let Some(Out::Send { bytes, .. }) = out.first() else { panic!("nothing was answered") };
    match Message::decode(bytes) {
        Ok((_, Message::Index(IndexRpc::Words { grant, words, .. }))) => (grant, words[0]),
        other => panic!("{other:?}"),
    }
}

/// A proxy with a lease and one key, which was granted to sessions 3 and 4.
fn proxy_with_sharers() -> (Proxy, SlotAndWord) {
    let (mut proxy, mut out) = (proxy(), Outs::new());
    proxy.renewed(0, proxy.next_renewal, &mut out);
    let tags = ask(&mut proxy, 1, key(1), &mut out);
    written(&mut proxy, tags[0]);
    assert!(look_up(&mut proxy, 0, 3, key(1)).0);
    let (granted, place) = look_up(&mut proxy, 0, 4, key(1));
    assert!(granted);
    (proxy, place)
}

/// The key is put over: the tags of the writes, and what is sent.
fn put_over(proxy: &mut Proxy, now: Nanos, (slot, expected): SlotAndWord) -> (Vec<u64>, Outs) {
    let IndexRpc::Write { change, hash, .. } = insert(2, key(1)) else { unreachable!() };
    let change = IndexChange { slot, expected, seen: None, ..change };
    let mut out = Outs::new();
    let rpc =
        IndexRpc::Write { epoch: 1, session: 2, sequence: 2, acknowledged: 0, hash, caches: true, change };
    proxy.asked(now, WRITER, rpc, &mut out);
    (tags(&out), out)
}

fn dropped(proxy: &mut Proxy, session: u16, sequence: u32) -> Vec<(u32, WriteStatus)> {
    let mut out = Outs::new();
    let rpc = IndexRpc::Invalidated { epoch: 1, session, sequence, hits: 0 };
    proxy.asked(0, NodeId(session), rpc, &mut out);
    answers(&out)
}

#[test]
fn a_change_waits_for_all_caches_that_may_have_the_pair() {
    let (mut proxy, place) = proxy_with_sharers();
    let (tags, out) = put_over(&mut proxy, 0, place);
    let told = invalidations(&out);
    let number = told[0].2;
    assert_eq!(told, [(NodeId(3), 3, number), (NodeId(4), 4, number)]);
    // While it changes nothing is granted, and what was is what is read.
    assert_eq!(look_up(&mut proxy, 0, 5, key(1)), (false, place));
    assert_eq!(written(&mut proxy, tags[0]), []);
    // Another change's number, another session, the same one twice: none of it counts.
    assert_eq!(dropped(&mut proxy, 4, number.wrapping_sub(1)), []);
    assert_eq!(dropped(&mut proxy, 9, number), []);
    assert_eq!(dropped(&mut proxy, 3, number), []);
    assert_eq!(dropped(&mut proxy, 3, number), []);
    assert_eq!(dropped(&mut proxy, 4, number), [(2, WriteStatus::Done)]);
    assert_ne!(look_up(&mut proxy, 0, 5, key(1)).1, place);
    assert_eq!(proxy.counters.invalidated, 2);
}

/// Whoever does not answer is asked again, and the manager is told of it once its lease must be over.
#[test]
fn a_cache_that_is_silent_is_told_to_the_manager() {
    let (mut proxy, place) = proxy_with_sharers();
    let (tags, out) = put_over(&mut proxy, 0, place);
    let number = invalidations(&out)[0].2;
    assert_eq!(written(&mut proxy, tags[0]), []);
    assert_eq!(dropped(&mut proxy, 3, number), []);
    // Not more often than each eighth of a lease.
    proxy.housekeep(LEASE_NS / 8 - 1, false, &mut Outs::new());
    for now in [LEASE_NS / 8, 2 * LEASE_NS, 2 * LEASE_NS + LEASE_NS / 8, 3 * LEASE_NS] {
        let mut out = Outs::new();
        proxy.housekeep(now, false, &mut out);
        assert_eq!(invalidations(&out), [(NodeId(4), 4, number)]);
        assert_eq!(silent(&out), if now > 2 * LEASE_NS { vec![4] } else { vec![] });
    }
    assert_eq!(dropped(&mut proxy, 4, number), [(2, WriteStatus::Done)]);
    let mut out = Outs::new();
    proxy.housekeep(4 * LEASE_NS, false, &mut out);
    assert!(invalidations(&out).is_empty() && silent(&out).is_empty());
}

/// A proxy that is about to end still hears that a pair was dropped, and tells its writer.
#[test]
fn a_proxy_that_ends_answers_what_caches_held_up() {
    let (mut proxy, place) = proxy_with_sharers();
    let (tags, out) = put_over(&mut proxy, 0, place);
    let number = invalidations(&out)[0].2;
    proxy.stop(&mut Outs::new());
    assert_eq!(written(&mut proxy, tags[0]), []);
    assert_eq!(dropped(&mut proxy, 3, number), []);
    assert_eq!(dropped(&mut proxy, 4, number), [(2, WriteStatus::Done)]);
}
