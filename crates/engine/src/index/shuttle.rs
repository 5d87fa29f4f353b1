//! Interleavings of the index, explored by `shuttle`: `RUSTFLAGS="--cfg shuttle" cargo test -p hedgerow --lib shuttle`.
//!
//! Nodes are 16 cells here and hold three to five entries, so that a few steps split and unlink them. `shuttle` runs
//! sequentially consistent interleavings: it finds wrong protocols, not missing fences; for those see the argument in
//! `node.rs`.

use std::ops::Bound;

use ::shuttle::{check_pct, check_random, thread};

use super::*;
use crate::sync::atomic::{AtomicBool, AtomicU64};

const ROUNDS: usize = 3000;

/// Runs `test` under a random and a priority-based scheduler.
fn explore(test: fn()) {
    check_random(test, ROUNDS);
    check_pct(test, ROUNDS, 3);
}

fn slot(n: u64) -> Slot {
    Slot::from(LogSlot::new(Tag::Row, n * 8, 32))
}

fn fresh() -> Arc<Index> {
    let arena = NodeArena::new(1 << 20).expect("an arena");
    Arc::new(Index::new(Arc::new(arena), Arc::new(Epoch::new())))
}

fn put(index: &Index, key: &[u8], to: Slot) {
    index.upsert(key, &index.epoch.pin(), |_| (Decision::Store(to), ())).expect("room");
}

fn remove(index: &Index, key: &[u8]) {
    index.upsert(key, &index.epoch.pin(), |_| (Decision::Remove, ())).expect("no room needed");
}

fn key(n: u64) -> [u8; 3] {
    [b'k', b'0' + (n / 10) as u8, b'0' + (n % 10) as u8]
}

#[test]
fn readers_see_every_key_while_leaves_split_and_slots_change() {
    explore(|| {
        let index = fresh();
        for n in [1, 3, 5, 7] {
            put(&index, &key(n), slot(n));
        }
        let splitting = index.clone();
        let inserter = thread::spawn(move || {
            for n in [0, 2, 4, 6, 8] {
                put(&splitting, &key(n), slot(n));
            }
        });
        let storing = index.clone();
        let overwriter = thread::spawn(move || {
            for version in 1..4 {
                put(&storing, &key(5), slot(5 + 100 * version));
            }
        });
        let guard = index.epoch.pin();
        let mut newest = 0;
        for _ in 0..3 {
            for n in [1, 3, 7] {
                assert_eq!(index.get(&key(n), &guard), Some(slot(n)), "a key that is not touched");
            }
            let seen = index.get(&key(5), &guard).expect("a key that stays").log_offset() / 8;
            assert!(seen % 100 == 5 && seen >= newest, "slots of one key do not go back");
            newest = seen;
        }
        drop(guard);
        inserter.join().unwrap();
        overwriter.join().unwrap();
        let guard = index.epoch.pin();
        for n in [0, 1, 2, 3, 4, 6, 7, 8] {
            assert_eq!(index.get(&key(n), &guard), Some(slot(n)));
        }
        assert_eq!(index.get(&key(5), &guard), Some(slot(305)));
        assert_eq!(index.len(), 9);
    });
}

#[test]
fn what_was_located_is_written_where_it_is_while_its_leaf_splits() {
    explore(|| {
        let index = fresh();
        for n in [1, 3, 5, 7] {
            put(&index, &key(n), slot(n));
        }
        let other = index.clone();
        let changer = thread::spawn(move || {
            for n in [4, 2, 6] {
                put(&other, &key(n), slot(n));
            }
            remove(&other, &key(1));
        });
        let guard = index.epoch.pin();
        let (there, new) = (key(5), key(8));
        let mut located = [Located::default(); 2];
        index.multi_locate(&[&there, &new], &guard, &mut located);
        for (key, found) in [there, new].iter().zip(located) {
            let old = index.upsert_at(key, found.at, NewKey::Stored(Budget::Writes), &guard, |old| {
                (Decision::Store(slot(50)), old)
            });
            assert_eq!(old.expect("room"), found.slot, "nobody else writes it");
        }
        drop(guard);
        changer.join().unwrap();
        let guard = index.epoch.pin();
        for (n, expected) in
            [(1, None), (2, Some(2)), (3, Some(3)), (4, Some(4)), (5, Some(50)), (6, Some(6)), (8, Some(50))]
        {
            assert_eq!(index.get(&key(n), &guard), expected.map(slot));
        }
        assert_eq!(index.len(), 7);
    });
}

#[test]
fn a_reader_between_parent_and_child_notices_the_split_of_the_child() {
    explore(|| {
        let index = fresh();
        // Two levels, and leaves full enough that one insert splits.
        for n in 0..8 {
            put(&index, &key(n * 4), slot(n * 4));
        }
        let splitting = index.clone();
        let writer = thread::spawn(move || {
            for n in [13, 14, 15] {
                put(&splitting, &key(n), slot(n));
            }
        });
        for n in [16, 12] {
            assert_eq!(index.get(&key(n), &index.epoch.pin()), Some(slot(n)));
        }
        writer.join().unwrap();
    });
}

#[test]
fn scans_are_in_order_and_whole_while_leaves_come_and_go() {
    explore(|| {
        let index = fresh();
        let stays = [1, 4, 7, 10];
        for n in 0..12 {
            put(&index, &key(n), slot(n));
        }
        let changing = index.clone();
        let writer = thread::spawn(move || {
            for n in [2, 3, 5, 6, 8, 9] {
                remove(&changing, &key(n));
            }
            for n in [3, 2, 12, 13] {
                put(&changing, &key(n), slot(n));
            }
        });
        let mut batch = ScanBatch::new();
        for reverse in [false, true] {
            let guard = index.epoch.pin();
            if reverse {
                index.scan_reverse(Bound::Unbounded, Bound::Unbounded, 50, &guard, &mut batch);
            } else {
                index.scan_forward(Bound::Unbounded, Bound::Unbounded, 50, &guard, &mut batch);
            }
            let mut keys: Vec<_> = batch.iter().map(|(key, _)| key.to_vec()).collect();
            if reverse {
                keys.reverse();
            }
            assert!(keys.is_sorted_by(|a, b| a < b));
            assert!(
                stays.iter().all(|n| keys.iter().any(|k| k == &key(*n))),
                "keys that stay are in every scan"
            );
            assert!(
                batch.iter().all(|(k, slot)| k == key(slot.log_offset() / 8)),
                "slots are with their keys"
            );
        }
        writer.join().unwrap();
    });
}

#[test]
fn concurrent_upserts_of_one_key_lose_nothing() {
    explore(|| {
        let index = fresh();
        // Neighbours, so that the key's leaf is about to split.
        for n in [1, 2] {
            put(&index, &key(n), slot(n));
        }
        let threads: Vec<_> = (0..3)
            .map(|t| {
                let index = index.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let guard = index.epoch.pin();
                        let add = |old: Option<Slot>| {
                            let now = old.map_or(0, |old| old.log_offset() / 8) + 1;
                            (Decision::Store(slot(now)), now)
                        };
                        index.upsert(b"k99", &guard, add).expect("room");
                        drop(guard);
                        put(&index, &key(t + 20), slot(t));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let guard = index.epoch.pin();
        assert_eq!(index.get(b"k99", &guard), Some(slot(6)));
        assert_eq!(index.len(), 6);
    });
}

#[test]
fn a_key_removed_and_inserted_by_two_has_one_outcome() {
    explore(|| {
        let index = fresh();
        put(&index, b"a", slot(1));
        let threads: Vec<_> = (0..2)
            .map(|t| {
                let index = index.clone();
                thread::spawn(move || {
                    let mut balance = 0;
                    for _ in 0..3 {
                        let guard = index.epoch.pin();
                        balance += index
                            .upsert(b"a", &guard, |old| match old {
                                Some(_) => (Decision::Remove, -1),
                                None => (Decision::Store(slot(t)), 1),
                            })
                            .expect("room");
                    }
                    balance
                })
            })
            .collect();
        let balance: i64 = 1 + threads.into_iter().map(|thread| thread.join().unwrap()).sum::<i64>();
        let guard = index.epoch.pin();
        assert_eq!(index.get(b"a", &guard).is_some(), balance == 1, "balance {balance}");
        assert_eq!(index.len() as i64, balance);
    });
}

/// Many are removed while one of them is written anew, new ones split their leaf, and a reader looks at what stays.
#[test]
fn what_is_written_while_many_are_removed_stays() {
    explore(|| {
        let index = fresh();
        (0..40).for_each(|n| put(&index, &key(n), slot(n + 1)));
        let remover = {
            let index = index.clone();
            thread::spawn(move || {
                let keys: Vec<_> = (0..40).filter(|n| n % 4 != 3).map(|n| (key(n), slot(n + 1))).collect();
                let entries: Vec<(&[u8], Slot)> = keys.iter().map(|(key, slot)| (&key[..], *slot)).collect();
                let mut removed = vec![false; entries.len()];
                index.remove_in_order(&entries, &index.epoch.pin(), &mut removed);
                let gone = |(entry, removed): (&(&[u8], Slot), bool)| removed.then(|| entry.0.to_vec());
                entries.iter().zip(removed).filter_map(gone).collect::<Vec<_>>()
            })
        };
        let writer = {
            let index = index.clone();
            thread::spawn(move || {
                put(&index, &key(20), slot(100));
                (50..62).for_each(|n| put(&index, &key(n), slot(n + 1)));
            })
        };
        let guard = index.epoch.pin();
        assert_eq!(index.get(&key(23), &guard), Some(slot(24)));
        drop(guard);
        let gone = remover.join().unwrap();
        writer.join().unwrap();
        let guard = index.epoch.pin();
        assert_eq!(index.get(&key(20), &guard), Some(slot(100)), "written anew");
        for n in 0..40 {
            let is_removed = gone.contains(&key(n).to_vec());
            assert_eq!(is_removed, n % 4 != 3 && (n != 20 || is_removed));
            assert_eq!(index.get(&key(n), &guard).is_none(), is_removed && n != 20, "key {n}");
        }
        (50..62).for_each(|n| assert_eq!(index.get(&key(n), &guard), Some(slot(n + 1))));
        assert_eq!(index.len(), 40 - 30 + 1 + 12);
    });
}

/// What a reader of this model may reach, and whether it was freed.
struct Thing {
    linked: AtomicBool,
    freed: AtomicBool,
}

#[test]
fn nothing_is_freed_while_a_guard_can_reach_it() {
    explore(|| {
        let epoch = Arc::new(Epoch::new());
        let things: Arc<Vec<Thing>> = Arc::new(
            (0..2).map(|_| Thing { linked: AtomicBool::new(true), freed: AtomicBool::new(false) }).collect(),
        );
        // More tasks than places: some pin by place, some by the shared counters.
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let (epoch, things) = (epoch.clone(), things.clone());
                thread::spawn(move || {
                    for thing in things.iter() {
                        let guard = epoch.pin();
                        if thing.linked.load(Ordering::SeqCst) {
                            for _ in 0..2 {
                                assert!(!thing.freed.load(Ordering::SeqCst), "freed under a guard");
                            }
                        }
                        drop(guard);
                    }
                })
            })
            .collect();
        for i in 0..things.len() {
            things[i].linked.store(false, Ordering::SeqCst);
            let freed = things.clone();
            epoch.defer(Box::new(move || freed[i].freed.store(true, Ordering::SeqCst)));
            epoch.collect();
        }
        for reader in readers {
            reader.join().unwrap();
        }
        while epoch.collect() > 0 {}
        assert!(things.iter().all(|thing| thing.freed.load(Ordering::SeqCst)), "all is freed in the end");
    });
}

#[test]
fn readers_of_a_replaced_tree_end_in_the_old_or_the_new() {
    explore(|| {
        let index = fresh();
        for n in 0..6 {
            put(&index, &key(n), slot(n));
        }
        let replacing = index.clone();
        let replacer = thread::spawn(move || {
            for round in 1..3 {
                let sorted = (0..6).map(|n| (key(n), slot(n + 100 * round)));
                let (arena, epoch) = (replacing.arena.clone(), replacing.epoch.clone());
                replacing.replace_with(Index::bulk_build(arena, epoch, sorted, 100).expect("room"));
                replacing.epoch.collect();
            }
        });
        for n in 0..6 {
            let found = index.get(&key(n), &index.epoch.pin()).expect("in every tree");
            assert_eq!(found.log_offset() / 8 % 100, n);
        }
        replacer.join().unwrap();
        while index.epoch.collect() > 0 {}
        assert_eq!(index.bytes(), index.arena.bytes(), "the old trees are freed");
    });
}

/// A key that is deleted and written in turn by two, and looked for by a third without a lock.
#[test]
fn a_key_that_goes_apart_and_comes_back_is_never_lost() {
    explore(|| {
        let (arena, epoch) = (Arc::new(NodeArena::new(1 << 20).expect("an arena")), Arc::new(Epoch::new()));
        let index = Arc::new(RowIndex::new(&arena, &epoch));
        let write = |index: &RowIndex, epoch: &Epoch, tag, n: u64| {
            let slot = Slot::from(LogSlot::new(tag, n * 8, 32));
            let old = index.upsert(&key(1), &epoch.pin(), || true, |old| (Decision::Store(slot), old));
            old.expect("room")
        };
        write(&index, &epoch, Tag::Row, 1);
        let writers: Vec<_> = [100, 200]
            .into_iter()
            .map(|first| {
                let (index, epoch) = (index.clone(), epoch.clone());
                thread::spawn(move || {
                    let tags = [Tag::Tombstone, Tag::Row, Tag::Tombstone];
                    let each = tags.into_iter().zip(first..);
                    each.map(|(tag, n)| write(&index, &epoch, tag, n)).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut batch = ScanBatch::default();
        for _ in 0..2 {
            let guard = epoch.pin();
            index.rows().scan_forward(Bound::Unbounded, Bound::Unbounded, 9, &guard, &mut batch);
            assert!(batch.slots().iter().all(|slot| slot.tag() == Tag::Row), "a tombstone among the rows");
            if let Some(slot) = index.find(&key(1), &guard) {
                assert!([1, 100, 101, 102, 200, 201, 202].contains(&(slot.log_offset() / 8)));
            }
            let surely = |old| (Decision::Keep, old);
            let found = index.upsert_at((&key(1), None), NewKey::NotStored, &guard, || false, surely);
            assert!(found.expect("a tree with a leaf").is_some(), "not found under its lock");
        }
        let olds: Vec<_> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        assert!(
            olds.iter().all(Option::is_some),
            "a writer did not find what the one before wrote: {olds:?}"
        );
        let mut places: Vec<u64> = olds.into_iter().flatten().map(|slot| slot.log_offset() / 8).collect();
        let last = index.find(&key(1), &epoch.pin()).expect("it was written");
        places.push(last.log_offset() / 8);
        places.sort_unstable();
        assert_eq!(places, [1, 100, 101, 102, 200, 201, 202], "each was replaced once");
        assert_eq!((last.tag(), index.len(), index.mixed()), (Tag::Tombstone, 0, 0));
    });
}

/// Keys to which no leaf is left, of a tree of which the middle went.
fn gap(index: &Index) -> Vec<u64> {
    let guard = index.epoch.pin();
    let gap: Vec<u64> = (0..16).filter(|n| matches!(index.view(&guard).leaf(&key(*n)), Ok(None))).collect();
    assert!(gap.len() > 1, "every key has a leaf");
    gap
}

/// Who decides on a key that is not to be stored keeps out who stores it, whether its leaf is there, is planted meanwhile, or goes.
#[test]
fn a_key_that_is_not_stored_stays_away_while_it_is_decided() {
    explore(|| {
        let index = fresh();
        (0..14).for_each(|n| put(&index, &key(n), slot(n)));
        (2..12).for_each(|n| remove(&index, &key(n)));
        let gap = gap(&index);
        let (first, last) = (gap[0], gap[gap.len() - 1]);
        let decided = Arc::new(AtomicU64::new(0));
        let (storing, seen) = (index.clone(), decided.clone());
        let writer = thread::spawn(move || {
            for n in [first, last] {
                let store = |_| {
                    assert_ne!(
                        seen.load(Ordering::SeqCst),
                        n,
                        "stored while another decides that it is not there"
                    );
                    (Decision::Store(slot(n)), ())
                };
                storing.upsert(&key(n), &storing.epoch.pin(), store).expect("room");
            }
        });
        let taking = index.clone();
        let remover = thread::spawn(move || (0..2).for_each(|n| remove(&taking, &key(n))));
        for n in [first, last, first] {
            let guard = index.epoch.pin();
            let now = index.upsert_at(&key(n), None, NewKey::NotStored, &guard, |now| {
                decided.store(if now.is_none() { n } else { 0 }, Ordering::SeqCst);
                thread::yield_now();
                decided.store(0, Ordering::SeqCst);
                (Decision::Keep, now)
            });
            let now = now.expect("a tree with leaves");
            assert!(now.is_none() || now == Some(slot(n)));
        }
        writer.join().unwrap();
        remover.join().unwrap();
        let guard = index.epoch.pin();
        for n in [first, last] {
            assert_eq!(index.get(&key(n), &guard), Some(slot(n)));
        }
        assert_eq!(index.len(), 4);
    });
}

/// What is kept apart where the rows have no leaf is counted by one, and written by another, who plants one: neither is lost.
#[test]
fn a_tombstone_in_a_gap_is_counted_while_its_key_is_written() {
    explore(|| {
        let (arena, epoch) = (Arc::new(NodeArena::new(1 << 20).expect("an arena")), Arc::new(Epoch::new()));
        let index = Arc::new(RowIndex::new(&arena, &epoch));
        let store = |n, slot: LogSlot| {
            let stored =
                index.upsert(&key(n), &epoch.pin(), || true, |_| (Decision::Store(Slot::from(slot)), ()));
            stored.expect("room");
        };
        (0..14).for_each(|n| store(n, LogSlot::new(Tag::Row, n * 8, 32)));
        let tombstone = |n: u64| LogSlot::new(Tag::Tombstone, n * 8 + 800, 32).add_older_versions(2);
        (2..12).for_each(|n| store(n, tombstone(n)));
        let n = gap(index.rows())[0];
        let (writing, writers) = (index.clone(), epoch.clone());
        let writer = thread::spawn(move || {
            let over = |old: Option<Slot>| {
                let older = old.expect("a tombstone").older_versions();
                let row = LogSlot::new(Tag::Row, 8, 32).add_older_versions(older + 1);
                (Decision::Store(Slot::from(row)), ())
            };
            writing.upsert(&key(n), &writers.pin(), || true, over).expect("room");
        });
        let fewer = |now: Option<Slot>| {
            let fewer = now.expect("a version").subtract_older_versions(1);
            (Decision::Store(fewer), ())
        };
        let guard = epoch.pin();
        index.upsert_at((&key(n), None), NewKey::NotStored, &guard, || false, fewer).expect("it is there");
        writer.join().unwrap();
        let row = index.find(&key(n), &guard).expect("it was written");
        assert_eq!((row.tag(), row.older_versions()), (Tag::Row, 2));
        assert_eq!((index.len(), index.tombstones().len()), (5, 9));
    });
}
