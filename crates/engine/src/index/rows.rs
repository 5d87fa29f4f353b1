//! The index of a table: its rows in one tree, and apart from them, in another, the keys that were deleted.
//!
//! Owns: which tree a key's slot is in. Promises: a key whose slot is stored is found at every moment, by writers and by
//! gc; a scan of [`RowIndex::rows`] comes by no tombstone, but for those that a snapshot may look under, and those that hide what is below: who finds nothing
//! among the rows may look there. Must not know: records, snapshots.
//!
//! A tombstone must be known for as long as an older record of its key is in the log, which is until that is collected:
//! in a queue, for as many keys as were taken off its head since. Among the rows they would lie where every scan from the
//! head begins.
//!
//! **Order.** The tree of the rows decides: whoever changes a key holds the lock of its leaf there, whether the key is in
//! it or not (where there is no leaf and none is to be made, that of the node above), and takes that of a leaf of tombstones inside it. So where anything is kept apart that tree has a node. A tombstone is put apart before its key leaves the rows,
//! and taken away before the key is back among them: whoever looks without the lock finds each row that was not deleted.

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};

use super::{Decision, Index, IndexFull, LeafPosition, Located, NewKey, NodeArena, Slot, Tag};
use crate::epoch::{Epoch, Guard};

/// One table's index: its rows, and apart from them the keys that were deleted.
pub(crate) struct RowIndex {
    rows: Index,
    tombstones: Index,
    /// Tombstones among the rows.
    mixed: AtomicU64,
    /// Those of them that hide what is below.
    hiding: AtomicU64,
}

impl RowIndex {
    /// An empty index.
    pub(crate) fn new(arena: &Arc<NodeArena>, epoch: &Arc<Epoch>) -> RowIndex {
        let index = || Index::new(Arc::clone(arena), Arc::clone(epoch));
        RowIndex { rows: index(), tombstones: index(), mixed: AtomicU64::new(0), hiding: AtomicU64::new(0) }
    }

    /// The rows in key order; and such tombstones as a snapshot may look under. To read, and to put a row's slot in the place
    /// of another of the same row.
    #[inline]
    pub(crate) fn rows(&self) -> &Index {
        &self.rows
    }

    /// The tombstones that are kept apart. To read.
    pub(crate) fn tombstones(&self) -> &Index {
        &self.tombstones
    }

    /// Rows. While writers are at work, a number between what it was and what it will be.
    pub(crate) fn len(&self) -> u64 {
        self.rows.len().saturating_sub(self.mixed())
    }

    /// Tombstones among the rows.
    pub(crate) fn mixed(&self) -> u64 {
        self.mixed.load(Ordering::Relaxed)
    }

    /// Those of them that hide what is below.
    pub(crate) fn hiding(&self) -> u64 {
        self.hiding.load(Ordering::Relaxed)
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.rows.bytes() + self.tombstones.bytes()
    }

    /// The slot of `key`, a tombstone's too. `None` also while the key changes from deleted to written.
    pub(crate) fn find(&self, key: &[u8], guard: &Guard<'_>) -> Option<Slot> {
        self.rows.get(key, guard).or_else(|| self.tombstones.get(key, guard))
    }

    /// [`RowIndex::find`] for all `keys`; `out[i]` is for `keys[i]`.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    pub(crate) fn multi_find(&self, keys: &[&[u8]], guard: &Guard<'_>, out: &mut [Option<Slot>]) {
        self.rows.multi_get(keys, guard, out);
        for (key, out) in keys.iter().zip(out).filter(|(_, out)| out.is_none()) {
            *out = self.tombstones.get(key, guard);
        }
    }

    /// [`RowIndex::multi_find`] that remembers for [`RowIndex::upsert_at`] where among the rows the keys are.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    pub(crate) fn multi_locate<'g>(&'g self, keys: &[&[u8]], guard: &'g Guard<'_>, out: &mut [Located<'g>]) {
        self.rows.multi_locate(keys, guard, out);
        for (key, out) in keys.iter().zip(out).filter(|(_, out)| out.slot.is_none()) {
            out.slot = self.tombstones.get(key, guard);
        }
    }

    /// [`RowIndex::upsert_at`] of a key of which nothing is known.
    ///
    /// # Errors
    /// As [`Index::upsert`].
    #[cfg(test)]
    #[inline]
    pub(crate) fn upsert<R>(
        &self,
        key: &[u8],
        guard: &Guard<'_>,
        apart: impl FnOnce() -> bool,
        decide: impl FnOnce(Option<Slot>) -> (Decision, R),
    ) -> Result<R, IndexFull> {
        self.upsert_at((key, None), NewKey::Stored(super::Budget::Writes), guard, apart, decide)
    }

    /// [`Index::upsert_at`] of a key in whichever tree it is. A tombstone that is stored over a row goes apart if `apart` says so,
    /// which is asked after `decide`; else, and where there is no memory for it, it takes the row's place. What is reserved is for the
    /// rows alone: a tombstone for which there is no other memory stays among them. A key that is not stored if it is not there may be a tombstone that is kept apart: it is changed there.
    ///
    /// The caller keeps [`RowIndex::clear`] out if it stores what may change trees.
    ///
    /// # Errors
    /// As [`Index::upsert_at`].
    #[inline]
    pub(crate) fn upsert_at<'g, R>(
        &'g self,
        (key, at): (&[u8], Option<LeafPosition<'g>>),
        new_key: NewKey<'g>,
        guard: &'g Guard<'_>,
        apart: impl FnOnce() -> bool,
        decide: impl FnOnce(Option<Slot>) -> (Decision, R),
    ) -> Result<R, IndexFull> {
        self.rows.upsert_at(key, at, new_key, guard, |now| {
            let buried = if now.is_none() { self.tombstones.get(key, guard) } else { None };
            let (decision, result) = decide(now.or(buried));
            let decision = match (decision, buried) {
                (Decision::Keep, _) => decision,
                (_, Some(old)) => self.decided_apart(key, guard, old, decision),
                (Decision::Store(slot), None) if now.is_some() && goes_apart(slot) && apart() => {
                    self.bury(key, guard, slot)
                }
                _ => decision,
            };
            self.count_mixed(now, decision);
            (decision, result)
        })
    }

    /// [`Index::remove_in_order`] of what is among the rows.
    pub(crate) fn remove_in_order(&self, entries: &[(&[u8], Slot)], guard: &Guard<'_>, removed: &mut [bool]) {
        self.rows.remove_in_order(entries, guard, removed);
        for ((_, slot), _) in entries.iter().zip(removed).filter(|(_, removed)| **removed) {
            self.count_mixed(Some(*slot), Decision::Remove);
        }
    }

    /// Does to the tombstone `old`, which is kept apart, what was decided; returns what is left to do to the rows.
    fn decided_apart(&self, key: &[u8], guard: &Guard<'_>, old: Slot, decision: Decision) -> Decision {
        let stays = matches!(decision, Decision::Store(slot) if goes_apart(slot));
        let apart = if stays { decision } else { Decision::Remove };
        // No memory is needed to change what is there. What is not there any more was cleared meanwhile.
        let _ = self.tombstones.upsert(key, guard, |now| match now == Some(old) {
            true => (apart, ()),
            false => (Decision::Keep, ()),
        });
        if stays || decision == Decision::Remove { Decision::Keep } else { decision }
    }

    /// Puts the tombstone of a key among the rows apart; returns what is to be done to the rows.
    fn bury(&self, key: &[u8], guard: &Guard<'_>, slot: Slot) -> Decision {
        match self.tombstones.upsert(key, guard, |_| (Decision::Store(slot), ())) {
            Ok(()) => Decision::Remove,
            Err(IndexFull { .. }) => Decision::Store(slot),
        }
    }

    #[inline]
    fn count_mixed(&self, old: Option<Slot>, decision: Decision) {
        let was = old.filter(|slot| is_tombstone(*slot));
        let is = match decision {
            Decision::Keep => was,
            Decision::Remove => None,
            Decision::Store(new) => Some(new).filter(|slot| is_tombstone(*slot)),
        };
        if was.is_some() || is.is_some() {
            count(&self.mixed, was.is_some(), is.is_some());
            count(&self.hiding, was.is_some_and(Slot::hides_below), is.is_some_and(Slot::hides_below));
        }
    }

    /// Puts the contents of two trees in the place of these, as [`Index::replace_with`]. So many tombstones are among `rows`, all of which hide
    /// what is below.
    pub(crate) fn replace_with(&self, (rows, hiding): (Index, u64), tombstones: Index) {
        self.rows.replace_with(rows);
        self.tombstones.replace_with(tombstones);
        self.mixed.store(hiding, Ordering::Relaxed);
        self.hiding.store(hiding, Ordering::Relaxed);
    }

    /// Drops all entries. The caller keeps out all writers that store what may change trees.
    pub(crate) fn clear(&self) {
        self.rows.clear();
        self.tombstones.clear();
        self.mixed.store(0, Ordering::Relaxed);
        self.hiding.store(0, Ordering::Relaxed);
    }
}

/// Counts something that was, or is, one more than the rest.
fn count(counter: &AtomicU64, was: bool, is: bool) {
    match (was, is) {
        (false, true) => drop(counter.fetch_add(1, Ordering::Relaxed)),
        (true, false) => drop(counter.fetch_sub(1, Ordering::Relaxed)),
        _ => {}
    }
}

/// Whether a slot is a tombstone that may be kept apart.
fn goes_apart(slot: Slot) -> bool {
    is_tombstone(slot) && !slot.hides_below()
}

fn is_tombstone(slot: Slot) -> bool {
    slot.tag() == Tag::Tombstone
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Bound;

    use hedgerow_device::Random;

    use super::super::{LogSlot, ScanBatch};
    use super::*;

    fn slots_of(index: &Index, guard: &Guard<'_>) -> BTreeMap<Vec<u8>, Slot> {
        let mut batch = ScanBatch::default();
        index.scan_forward(Bound::Unbounded, Bound::Unbounded, usize::MAX, guard, &mut batch);
        batch.iter().map(|(key, slot)| (key.to_vec(), slot)).collect()
    }

    /// Against one map: a key is found wherever it is; without snapshots no tombstone is among the rows.
    #[test]
    fn it_is_one_map_to_writers_and_rows_alone_to_scans() {
        for seed in 0..20 {
            let mut random = Random::from_seed(seed);
            let (arena, epoch) = (Arc::new(NodeArena::new(1 << 26).unwrap()), Arc::new(Epoch::new()));
            let index = RowIndex::new(&arena, &epoch);
            let mut model: BTreeMap<Vec<u8>, Slot> = BTreeMap::new();
            let mut mixed = BTreeMap::new();
            for n in 1..4000 {
                let key = format!("key{:04}", random.below(300)).into_bytes();
                let guard = epoch.pin();
                let tag = if random.below(2) == 0 { Tag::Row } else { Tag::Tombstone };
                let slot = Slot::from(LogSlot::new(tag, n * 8, 64));
                let (decision, apart) = match random.below(10) {
                    0 => (Decision::Keep, true),
                    1 => (Decision::Remove, true),
                    chosen => (Decision::Store(slot), chosen != 2),
                };
                let was_row_or_mixed = slots_of(index.rows(), &guard).contains_key(&key);
                let found = index.upsert(&key, &guard, || apart, |now| (decision, now)).unwrap();
                assert_eq!(found, model.get(&key).copied(), "seed {seed}, step {n}");
                match decision {
                    Decision::Keep => {}
                    Decision::Remove => drop((model.remove(&key), mixed.remove(&key))),
                    Decision::Store(slot) => {
                        model.insert(key.clone(), slot);
                        mixed.remove(&key);
                        let stays_apart = found.is_some() && !was_row_or_mixed;
                        let goes_apart = was_row_or_mixed && apart;
                        if is_tombstone(slot) && !stays_apart && !goes_apart {
                            mixed.insert(key.clone(), slot);
                        }
                    }
                }
                assert_eq!(index.find(&key, &guard), model.get(&key).copied());
            }
            let guard = epoch.pin();
            let (rows, apart) = (slots_of(index.rows(), &guard), slots_of(index.tombstones(), &guard));
            assert!(rows.iter().all(|(key, &slot)| !is_tombstone(slot) || mixed.get(key) == Some(&slot)));
            assert!(apart.iter().all(|(key, &slot)| is_tombstone(slot) && !rows.contains_key(key)));
            assert!(!apart.is_empty() && !mixed.is_empty());
            assert_eq!(index.mixed(), mixed.len() as u64);
            let both: BTreeMap<_, _> = rows.into_iter().chain(apart).collect();
            assert_eq!(both, model, "seed {seed}");
            assert_eq!(index.len(), model.values().filter(|slot| !is_tombstone(**slot)).count() as u64);
            let keys: Vec<&[u8]> = model.keys().map(Vec::as_slice).collect();
            let mut found = vec![None; keys.len()];
            index.multi_find(&keys, &guard, &mut found);
            assert!(found.into_iter().eq(model.values().map(|slot| Some(*slot))));
            drop(guard);
            index.clear();
            assert_eq!((index.len(), index.mixed(), index.tombstones().len()), (0, 0, 0));
        }
    }

    /// Where there is no memory for it a tombstone takes its row's place, and the key is not lost.
    #[test]
    fn a_tombstone_for_which_there_is_no_memory_stays_among_the_rows() {
        let (arena, epoch) = (Arc::new(NodeArena::new(64 << 10).unwrap()), Arc::new(Epoch::new()));
        let index = RowIndex::new(&arena, &epoch);
        let guard = epoch.pin();
        let key = |n: u64| format!("{n:060}").into_bytes();
        let put = |n, tag| {
            let slot = Slot::from(LogSlot::new(tag, n * 8, 64));
            index.upsert(&key(n), &guard, || true, |_| (Decision::Store(slot), ()))
        };
        let rows = (0..).take_while(|&n| put(n, Tag::Row).is_ok()).count() as u64;
        for n in 0..rows {
            put(n, Tag::Tombstone).unwrap();
            assert_eq!(index.find(&key(n), &guard).unwrap().tag(), Tag::Tombstone);
        }
        assert!(index.mixed() > 0, "all {rows} found memory");
        assert_eq!((index.len(), index.rows().len() + index.tombstones().len()), (0, rows));
    }
}
