use std::sync::atomic::AtomicBool;

use super::*;
use crate::log::format::{RecordKind, RecordSpec};

fn key_of(n: u32) -> SstKey {
    SstKey::new(1, &n.to_be_bytes())
}

/// The row of key `n`, with a body of so many bytes.
fn row(n: u32, sequence: u64, body_bytes: usize) -> FoundRecord {
    let spec = RecordSpec {
        kind: RecordKind::Row,
        flags: 0,
        table: 1,
        schema_version: 1,
        key: &n.to_be_bytes(),
        expires_at_ms: None,
        body_bytes,
    };
    let mut bytes = vec![0; spec.record_bytes()];
    spec.encode_without_checksums(&mut bytes, sequence, |body| body.fill(n as u8));
    let mut words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    FoundRecord::first_of(SharedCopy::of(SharedBytes::of(&mut words)))
}

struct Cached {
    epoch: Arc<Epoch>,
    records: RecordCache,
}

impl Cached {
    fn new(bytes: u64, lent: u64) -> Cached {
        let epoch = Arc::new(Epoch::new());
        Cached { records: RecordCache::new(Arc::clone(&epoch), bytes, lent), epoch }
    }

    fn get(&self, n: u32) -> Option<u64> {
        let found = self.records.get(&key_of(n), &self.epoch.pin())?.remove(0);
        assert_eq!(found.key(), n.to_be_bytes());
        assert!(found.body().iter().all(|&byte| byte == n as u8));
        Some(found.sequence())
    }

    /// Asked for as often as it takes to come in.
    fn put(&self, n: u32, sequence: u64, generation: u64) {
        let row = row(n, sequence, 100);
        (0..2).for_each(|_| self.records.offer(&key_of(n), std::slice::from_ref(&row), generation));
        self.records.take_in();
    }
}

#[test]
fn a_row_comes_in_when_it_is_found_again_and_goes_when_it_is_forgotten() {
    let cached = Cached::new(1 << 20, 0);
    cached.records.offer(&key_of(1), &[row(1, 7, 100)], 0);
    assert_eq!((cached.records.take_in(), cached.get(1)), (0, None), "nobody asked for it before");
    assert!(!cached.records.is_in_use() && cached.records.bytes() == 0);
    cached.records.offer(&key_of(1), &[row(1, 7, 100)], 0);
    assert_eq!(cached.get(1), None, "nobody took it in");
    assert_eq!((cached.records.take_in(), cached.get(1)), (1, Some(7)));
    let alone = cached.records.bytes();
    cached.put(2, 8, 0);
    assert_eq!((cached.get(1), cached.get(2), cached.get(3)), (Some(7), Some(8), None));
    assert!(cached.records.bytes() > alone);
    cached.records.forget(&key_of(2));
    assert_eq!((cached.get(1), cached.get(2)), (Some(7), None));
    assert_eq!((cached.records.bytes(), cached.records.hits()), (alone, 4));
    // Found anew, it comes in the place of what was there.
    cached.put(1, 9, 0);
    assert_eq!((cached.get(1), cached.records.bytes()), (Some(9), alone));
}

#[test]
fn what_was_found_before_rows_moved_does_not_come_in_after() {
    let cached = Cached::new(1 << 20, 0);
    cached.put(1, 7, 0);
    let old = row(1, 7, 100);
    cached.records.offer(&key_of(1), &[old], 0);
    cached.records.rise_to(3);
    cached.records.forget(&key_of(1));
    assert_eq!((cached.records.take_in(), cached.get(1)), (1, None));
    cached.put(1, 7, 2);
    assert_eq!(cached.get(1), None);
    cached.put(1, 8, 3);
    assert_eq!(cached.get(1), Some(8));
}

#[test]
fn keys_that_are_alike_in_their_hashes_are_told_apart() {
    let cached = Cached::new(1 << 20, 0);
    cached.put(1, 7, 0);
    let other = key_of(2).hashed_to(key_of(1).hash());
    assert!(!cached.records.has(&other, &cached.epoch.pin()));
    (0..2).for_each(|_| cached.records.offer(&other, &[row(2, 8, 100)], 0));
    cached.records.take_in();
    assert!(cached.records.has(&other, &cached.epoch.pin()) && cached.get(1).is_none());
}

/// However much is offered, it takes what it may; and what is asked for again and again stays.
#[test]
fn it_keeps_to_its_memory_and_keeps_what_is_asked_for() {
    let (own, lent) = (1 << 18, 1 << 19);
    let cached = Cached::new(own, lent);
    let keys = if cfg!(miri) { 400 } else { 20_000 };
    let offer_all = |bytes_max: u64| {
        for n in 0..keys {
            cached.put(n, 1, 0);
            let hot = n % 16;
            if cached.get(hot).is_none() {
                cached.put(hot, 1, 0);
            }
            assert!(cached.records.bytes() <= bytes_max, "{} bytes", cached.records.bytes());
        }
    };
    offer_all(own);
    cached.records.set_bytes_max(u64::MAX);
    assert_eq!(cached.records.bytes_max(), own + lent);
    offer_all(own + lent);
    if !cfg!(miri) {
        assert!(cached.records.bytes() > (own + lent) / 4 * 3);
        let hot = (0..16).filter(|&n| cached.get(n).is_some()).count();
        assert!(hot >= 14, "{hot} of 16 that were asked for all the time are there");
    }
    cached.records.set_bytes_max(own);
    assert!(cached.records.bytes() <= own);
    offer_all(own);
}

#[test]
fn a_row_that_would_push_out_many_others_does_not_come_in() {
    let cached = Cached::new(1 << 18, 0);
    for body_bytes in [(1 << 18) / SHARE_MAX as usize + 1, 1 << 18] {
        (0..3).for_each(|_| cached.records.offer(&key_of(1), &[row(1, 7, body_bytes)], 0));
    }
    assert_eq!(cached.records.take_in(), 0);
    let none = Cached::new(0, 0);
    none.put(1, 7, 0);
    assert_eq!((none.get(1), none.records.bytes()), (None, 0));
}

/// What is offered and not taken in takes no more memory than it may, and is dropped.
#[test]
fn what_nobody_takes_in_is_bounded() {
    let cached = Cached::new(1 << 20, 0);
    let offered = || cached.records.offered.lock().len();
    for n in 0..2000 {
        (0..2).for_each(|_| cached.records.offer(&key_of(n), &[row(n, 1, 2000)], 0));
    }
    assert!(offered() <= OFFERED_WORDS_MAX && offered() > OFFERED_WORDS_MAX / 2);
    assert!(cached.records.take_in() > 0 && offered() == 0);
}

/// A reader who stays keeps what he may look at, and no more than that.
#[test]
fn what_a_reader_may_look_at_is_bounded() {
    let bytes = 1 << 16;
    let cached = Cached::new(bytes, 0);
    let waiting = || cached.records.sets.get().map_or(0, CopySets::bytes_waiting);
    let guard = cached.epoch.pin();
    for n in 0..2_000 {
        cached.put(n, 1, 0);
        assert!(cached.records.bytes() <= bytes && waiting() <= bytes / WAITING_SHARE + 2 * 8 * 300);
    }
    assert!(waiting() > bytes / WAITING_SHARE && cached.get(1_999).is_none(), "nothing comes in any more");
    drop(guard);
    while cached.epoch.collect() > 0 {}
    assert_eq!(waiting(), 0);
    cached.put(1_999, 1, 0);
    assert!(cached.get(1_999).is_some());
}

/// Readers find whole rows, each no older than the last, while it is replaced, forgotten and pushed out.
#[test]
fn readers_find_rows_that_are_whole_while_others_change_them() {
    let cached = Cached::new(1 << 16, 0);
    let (rounds, ends) = (if cfg!(miri) { 4 } else { 20_000 }, AtomicBool::new(false));
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                let mut last = [0; 4];
                while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                    for n in 0..4 {
                        let Some(sequence) = cached.get(n) else { continue };
                        assert!(sequence >= last[n as usize]);
                        last[n as usize] = sequence;
                    }
                }
            });
        }
        for round in 1..=rounds {
            cached.records.rise_to(round);
            for n in 0..4 {
                cached.records.forget(&key_of(n));
                cached.put(n, round, round);
            }
            cached.put(4 + round as u32 % 500, round, round);
        }
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    cached.epoch.collect();
}
