//! Interleavings of the cache's shared parts, explored by `shuttle`: the ring, the marks, and an entry's life.
//!
//! Run as `index/shuttle.rs` says. The entry here is one word, and freeing it writes over it: a reader who sees that had
//! its entry taken away.

use ::shuttle::{check_pct, check_random, thread};

use super::page::Marks;
use super::ring::Ring;
use crate::epoch::Epoch;
use crate::index::{Decision, Index, LogSlot, NodeArena, Slot, Tag};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ROUNDS: usize = 2000;

fn explore(test: fn()) {
    check_random(test, ROUNDS);
    check_pct(test, ROUNDS, 3);
}

#[test]
fn the_ring_loses_and_tears_nothing_it_took() {
    explore(|| {
        let ring = Arc::new(Ring::new(2));
        let pushers: Vec<_> = (1..3u32)
            .map(|table| {
                let ring = ring.clone();
                thread::spawn(move || (0..3).filter(|_| ring.push(table, &[table as u8; 4])).count())
            })
            .collect();
        let mut popped = 0;
        let mut count = |ring: &Ring| {
            while let Some(request) = ring.pop() {
                assert_eq!(request.key(), &[request.table as u8; 4]);
                popped += 1;
            }
        };
        for _ in 0..4 {
            count(&ring);
            thread::yield_now();
        }
        let pushed: usize = pushers.into_iter().map(|pusher| pusher.join().expect("a pusher")).sum();
        count(&ring);
        assert_eq!(popped, pushed);
    });
}

#[test]
fn every_mark_is_taken_once() {
    explore(|| {
        let marks = Arc::new(Marks::new(2));
        let setters: Vec<_> = (0..2u64)
            .map(|setter| {
                let marks = marks.clone();
                thread::spawn(move || (0..2).for_each(|n| marks.set(setter * 64 + n * 128)))
            })
            .collect();
        let mut taken = Vec::new();
        marks.take(&mut taken);
        thread::yield_now();
        marks.take(&mut taken);
        setters.into_iter().for_each(|setter| setter.join().expect("a setter"));
        marks.take(&mut taken);
        taken.sort_unstable();
        assert_eq!(taken, [0, 64, 128, 192]);
    });
}

/// A row is cached, read, replaced by a writer and freed by the worker, in any order there is.
#[test]
fn an_entry_is_freed_after_its_readers() {
    const FREED: u64 = u64::MAX;
    explore(|| {
        let epoch = Arc::new(Epoch::new());
        let arena = Arc::new(NodeArena::new(1 << 20).expect("an arena"));
        let index = Arc::new(Index::new(arena, epoch.clone()));
        let log_slot = LogSlot::new(Tag::Row, 800, 32);
        index.upsert(b"k", &epoch.pin(), |_| (Decision::Store(log_slot.into()), ())).expect("room");
        let (entry, marks) = (Arc::new(AtomicU64::new(0)), Arc::new(Marks::new(1)));
        let written = Arc::new(AtomicBool::new(false));
        let reader = {
            let (index, epoch, entry) = (index.clone(), epoch.clone(), entry.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let guard = epoch.pin();
                    let slot = index.get(b"k", &guard).expect("a key that stays");
                    if slot.is_cached() {
                        // A row takes a while to read.
                        for _ in 0..40 {
                            assert_eq!(
                                entry.load(Ordering::SeqCst),
                                log_slot.raw(),
                                "read after it was freed"
                            );
                        }
                    }
                }
            })
        };
        let writer = {
            let (index, epoch, marks, written) =
                (index.clone(), epoch.clone(), marks.clone(), written.clone());
            thread::spawn(move || {
                let guard = epoch.pin();
                let new = LogSlot::new(Tag::Row, 1_600, 32);
                let old = index.upsert(b"k", &guard, |now| (Decision::Store(new.into()), now)).expect("room");
                // As `Engine::publish` does it: marked after another slot stands there, under the guard from before.
                if old.is_some_and(Slot::is_cached) {
                    marks.set(0);
                }
                written.store(true, Ordering::SeqCst);
            })
        };
        // The worker: fills, publishes, takes the mark, waits for the epoch, frees.
        entry.store(log_slot.raw(), Ordering::SeqCst);
        let cached = Slot::cached(log_slot, 0, 32);
        let publish = |now| match now == Some(*log_slot) {
            true => (Decision::Store(cached), true),
            false => (Decision::Keep, false),
        };
        let published = index.upsert(b"k", &epoch.pin(), publish).expect("room");
        let mut taken = Vec::new();
        while published && taken.is_empty() {
            marks.take(&mut taken);
            thread::yield_now();
        }
        if published {
            let since = epoch.current();
            while !epoch.is_quiescent_since(since) {
                thread::yield_now();
            }
            entry.store(FREED, Ordering::SeqCst);
        }
        reader.join().expect("a reader");
        writer.join().expect("a writer");
        assert_eq!(index.get(b"k", &epoch.pin()).map(Slot::log_offset), Some(1_600));
        assert!(written.load(Ordering::SeqCst));
    });
}
