//! The levels of a table's index: the one door to all that says where a key's newest record is.
//!
//! Owns: the order in which levels are asked, and which of them a change goes to. Promises: whoever looks a key up finds the newest
//! slot that was published before; a walk comes by each key once, in order. Must not know: records, the cache, snapshots.
//!
//! **The order of a look-up.** There is one level, the young one: the trees of the table in DRAM (`index/rows.rs`). What lies below it, the sorted tables
//! (`db/lower.rs`), is asked only for keys of which it says nothing, and a tombstone says something. A tombstone that hides something is among the rows; the others
//! are kept apart, and whoever only wants a row need not ask them: of their keys nothing is below.
//!
//! Writes go to the young level, and so does what is built from the log on opening. Nobody else calls the trees.

use std::ops::Bound;

use hedgerow_device::Random;

use crate::epoch::{Epoch, Guard};
use crate::index::{
    Decision, Index, IndexBuilder, IndexFull, LeafPosition, Located, LogSlot, NewKey, NodeArena, RowIndex,
    ScanBatch, ScanEnd, Slot, Tag,
};
use crate::sync::Arc;
use crate::{Error, ErrorKind};

/// How full the leaves of a tree are that was built from the log.
const FILL_PERCENT: u32 = 90;

/// Where a table's keys are.
pub(crate) struct Levels {
    young: RowIndex,
}

/// Look-ups.
impl Levels {
    /// Of a table without rows.
    pub(crate) fn new(arena: &Arc<NodeArena>, epoch: &Arc<Epoch>) -> Levels {
        Levels { young: RowIndex::new(arena, epoch) }
    }

    /// The slot of the row of `key`, for whoever reads it. May be a tombstone's, which is no row.
    #[inline]
    pub(crate) fn locate(&self, key: &[u8], guard: &Guard<'_>) -> Option<Slot> {
        self.young.rows().get(key, guard)
    }

    /// [`Levels::locate`] for all `keys`, whose misses overlap; `out[i]` is for `keys[i]`. `out` is no shorter than `keys`.
    #[inline]
    pub(crate) fn locate_many(&self, keys: &[&[u8]], guard: &Guard<'_>, out: &mut [Option<Slot>]) {
        self.young.rows().multi_get(keys, guard, out);
    }

    /// The slot of the newest version of `key`, for whoever changes it or its records: a tombstone's wherever that is kept. `None`
    /// also while the key changes from deleted to written.
    #[inline]
    pub(crate) fn locate_version(&self, key: &[u8], guard: &Guard<'_>) -> Option<Slot> {
        self.young.find(key, guard)
    }

    /// [`Levels::locate_version`], with all writers of the key kept out if it finds none: `None` of a key that was never written, or has been forgotten.
    pub(crate) fn locate_version_surely(&self, key: &[u8], guard: &Guard<'_>) -> Option<Slot> {
        self.locate_version(key, guard).or_else(|| self.change(key, guard, |now| (Decision::Keep, now))?)
    }

    /// [`Levels::locate_version`] for all `keys`, as [`Levels::locate_many`].
    #[inline]
    pub(crate) fn locate_versions(&self, keys: &[&[u8]], guard: &Guard<'_>, out: &mut [Option<Slot>]) {
        self.young.multi_find(keys, guard, out);
    }

    /// [`Levels::locate_versions`] that remembers for [`Levels::publish`] where the keys are.
    #[inline]
    pub(crate) fn locate_to_publish<'g>(
        &'g self,
        keys: &[&[u8]],
        guard: &'g Guard<'_>,
        out: &mut [Located<'g>],
    ) {
        self.young.multi_locate(keys, guard, out);
    }

    /// Tries once to choose a row's or a tombstone's slot at random, and puts its key into `key`.
    pub(crate) fn sample(&self, random: &mut Random, guard: &Guard<'_>, key: &mut Vec<u8>) -> Option<Slot> {
        self.young.rows().sample(random, guard, key)
    }
}

/// Changes.
impl Levels {
    /// Runs `decide` with the slot of the newest version of `key`, while all other writers of the key are kept out, then does what
    /// it decided. For a key that was looked up `at` this place under the same guard the way down is saved. A tombstone that is
    /// stored over a row is kept apart if `apart` says so, which is asked after `decide`.
    ///
    /// # Errors
    /// `IndexFull` if it is a `new_key` and there is no memory for it. Of one that is not stored only in a table that never had a key: it is not there then.
    #[inline]
    pub(crate) fn publish<'g, R>(
        &'g self,
        (key, at): (&[u8], Option<LeafPosition<'g>>),
        new_key: NewKey<'g>,
        guard: &'g Guard<'_>,
        apart: impl FnOnce() -> bool,
        decide: impl FnOnce(Option<Slot>) -> (Decision, R),
    ) -> Result<R, IndexFull> {
        self.young.upsert_at((key, at), new_key, guard, apart, decide)
    }

    /// Does to the slot of `key` what is decided, if it has one, however full the index is. `None` of a key that has none and of which nobody was asked.
    fn change<R>(
        &self,
        key: &[u8],
        guard: &Guard<'_>,
        decide: impl FnOnce(Option<Slot>) -> (Decision, R),
    ) -> Option<R> {
        // Where there is no memory even for a first leaf no key is.
        self.young.upsert_at((key, None), NewKey::NotStored, guard, || false, decide).ok()
    }

    /// Puts another slot of the same version in the place of that of `key`: what `replace` makes of it. Returns what stands
    /// there then; `None` if there was no slot, or `replace` left it as it was.
    pub(crate) fn replace(
        &self,
        key: &[u8],
        guard: &Guard<'_>,
        replace: impl FnOnce(Slot) -> Option<Slot>,
    ) -> Option<Slot> {
        self.change(key, guard, |now| match now.and_then(replace) {
            Some(new) => (Decision::Store(new), Some(new)),
            None => (Decision::Keep, None),
        })?
    }

    /// Forgets `key` if `slot`, a droppable tombstone, is still its slot; whether it was. The caller keeps out whoever clears the
    /// table.
    pub(crate) fn remove(&self, key: &[u8], slot: Slot, guard: &Guard<'_>) -> bool {
        let removed = self.change(key, guard, |now| match now == Some(slot) {
            true => (Decision::Remove, true),
            false => (Decision::Keep, false),
        });
        removed == Some(true)
    }

    /// Forgets those of `entries`, which are in the order of their keys, whose slot is the one that comes with the key; `forgotten[i]` says whether the `i`-th was one of them. Tombstones
    /// that are kept apart are not. The caller keeps out whoever clears the table.
    ///
    /// # Panics
    /// If `forgotten` is shorter than `entries`.
    pub(crate) fn forget_in_order(
        &self,
        entries: &[(&[u8], Slot)],
        guard: &Guard<'_>,
        forgotten: &mut [bool],
    ) {
        self.young.remove_in_order(entries, guard, forgotten);
    }

    /// Bytes of memory that new keys of so many bytes each take at most: to be [reserved](NodeArena::reserve) for them.
    pub(crate) fn bytes_for(&self, lens: impl IntoIterator<Item = usize>, guard: &Guard<'_>) -> u64 {
        self.young.rows().bytes_for(lens, guard)
    }

    /// Forgets all keys. The caller keeps out all writers.
    pub(crate) fn clear(&self) {
        self.young.clear();
    }

    /// Takes over what was built on opening.
    ///
    /// # Errors
    /// `IndexFull`.
    pub(crate) fn build(&self, built: LevelsBuilder) -> Result<(), IndexFull> {
        let tombstones = built.tombstones.finish()?;
        let rows = if tombstones.len() > 0 { built.rows.finish_with_leaf() } else { built.rows.finish() };
        self.young.replace_with((rows?, built.hiding), tombstones);
        Ok(())
    }
}

/// Walks.
impl Levels {
    /// Puts the rows between two keys into `batch`, from the one on, or from the other back: at most `count`. There are more if it
    /// says so. Such tombstones as a snapshot may look under are among them.
    #[inline]
    pub(crate) fn scan(
        &self,
        (low, high): (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        count: usize,
        guard: &Guard<'_>,
        batch: &mut ScanBatch,
    ) -> ScanEnd {
        match reverse {
            false => self.young.rows().scan_forward(low, high, count, guard, batch),
            true => self.young.rows().scan_reverse(low, high, count, guard, batch),
        }
    }

    /// Comes by all keys in order, rows and tombstones, each with the slot of its newest version.
    ///
    /// # Errors
    /// Those of `visit`, which ends it.
    pub(crate) fn each_version<E>(
        &self,
        guard: &Guard<'_>,
        mut visit: impl FnMut(&[u8], Slot) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut rows, mut apart) = (TreeWalk::of(self.young.rows()), TreeWalk::of(self.young.tombstones()));
        loop {
            let row_is_next = match (rows.head(guard), apart.head(guard)) {
                (None, None) => return Ok(()),
                (Some((row, _)), Some((tombstone, _))) => row < tombstone,
                (row, _) => row.is_some(),
            };
            let next = if row_is_next { &mut rows } else { &mut apart };
            if let Some((key, slot)) = next.head(guard) {
                visit(key, slot)?;
            }
            next.at += 1;
        }
    }

    /// Puts the next rows of a walk into `batch`, at most `count`, as [`Levels::scan`]; whether there are more. If not, the cursor is
    /// back at the first row.
    pub(crate) fn next_rows(
        &self,
        cursor: &mut Cursor,
        count: usize,
        guard: &Guard<'_>,
        batch: &mut ScanBatch,
    ) -> bool {
        cursor.step(self.young.rows(), count, guard, batch)
    }

    /// [`Levels::next_rows`] of the tombstones that are kept apart.
    pub(crate) fn next_tombstones(
        &self,
        cursor: &mut Cursor,
        count: usize,
        guard: &Guard<'_>,
        batch: &mut ScanBatch,
    ) -> bool {
        cursor.step(self.young.tombstones(), count, guard, batch)
    }
}

/// Counts.
impl Levels {
    /// Rows. While writers are at work, a number between what it was and what it will be.
    pub(crate) fn rows(&self) -> u64 {
        self.young.len()
    }

    /// Keys, those that were deleted included.
    pub(crate) fn keys(&self) -> u64 {
        self.young.rows().len() + self.young.tombstones().len()
    }

    /// Tombstones that a walk over the rows comes by.
    pub(crate) fn tombstones_among_rows(&self) -> u64 {
        self.young.mixed()
    }

    /// Those of them that hide what sorted tables may have.
    pub(crate) fn hiding_tombstones(&self) -> u64 {
        self.young.hiding()
    }

    /// Those of them that may be put apart, once no snapshot looks under them.
    pub(crate) fn tombstones_to_set_apart(&self) -> u64 {
        self.young.mixed().saturating_sub(self.young.hiding())
    }

    /// Tombstones that are kept apart.
    #[cfg(test)]
    pub(crate) fn tombstones_apart(&self) -> u64 {
        self.young.tombstones().len()
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.young.bytes()
    }
}

/// Where a walk over a table goes on, from one guard to the next.
#[derive(Debug)]
pub(crate) struct Cursor(Bound<Vec<u8>>);

impl Default for Cursor {
    fn default() -> Cursor {
        Cursor(Bound::Unbounded)
    }
}

impl Cursor {
    /// At `key`, or the first after it.
    pub(crate) fn at(key: &[u8]) -> Cursor {
        Cursor(Bound::Included(key.to_vec()))
    }

    fn step(&mut self, tree: &Index, count: usize, guard: &Guard<'_>, batch: &mut ScanBatch) -> bool {
        let from = self.0.as_ref().map(Vec::as_slice);
        let end = tree.scan_forward(from, Bound::Unbounded, count, guard, batch);
        self.0 = match batch.len().checked_sub(1) {
            Some(last) if end == ScanEnd::More => Bound::Excluded(batch.key(last).to_vec()),
            _ => Bound::Unbounded,
        };
        self.0 != Bound::Unbounded
    }

    /// Whether the walk has not begun, or came to its end.
    pub(crate) fn is_at_start(&self) -> bool {
        self.0 == Bound::Unbounded
    }
}

/// A walk of one tree, some keys at a time.
struct TreeWalk<'t> {
    tree: &'t Index,
    cursor: Cursor,
    batch: ScanBatch,
    at: usize,
    more: bool,
}

impl<'t> TreeWalk<'t> {
    const KEYS: usize = 1024;

    fn of(tree: &'t Index) -> TreeWalk<'t> {
        TreeWalk { tree, cursor: Cursor::default(), batch: ScanBatch::default(), at: 0, more: true }
    }

    fn head(&mut self, guard: &Guard<'_>) -> Option<(&[u8], Slot)> {
        while self.at == self.batch.len() && self.more {
            self.more = self.cursor.step(self.tree, TreeWalk::KEYS, guard, &mut self.batch);
            self.at = 0;
        }
        (self.at < self.batch.len()).then(|| (self.batch.key(self.at), self.batch.slots()[self.at]))
    }
}

/// What a table's keys are built from on opening: pushed in order, each with the slot of its newest version.
pub(crate) struct LevelsBuilder {
    rows: IndexBuilder,
    tombstones: IndexBuilder,
    /// Tombstones among the rows.
    hiding: u64,
}

impl LevelsBuilder {
    /// For the keys of a table from `low` on, to below `end`.
    pub(crate) fn new(
        arena: &Arc<NodeArena>,
        epoch: &Arc<Epoch>,
        (low, end): (Option<Vec<u8>>, Option<Vec<u8>>),
    ) -> LevelsBuilder {
        let builder = |low, end| {
            let builder = IndexBuilder::new(Arc::clone(arena), Arc::clone(epoch), FILL_PERCENT);
            builder.beyond_budget().between(low, end)
        };
        LevelsBuilder { rows: builder(low.clone(), end.clone()), tombstones: builder(low, end), hiding: 0 }
    }

    /// Adds a key above all that were added.
    ///
    /// # Errors
    /// `IndexFull`.
    pub(crate) fn push(&mut self, key: &[u8], slot: LogSlot) -> Result<(), IndexFull> {
        self.hiding += u64::from(slot.hides_below());
        match slot.tag() {
            Tag::Tombstone if !slot.hides_below() => self.tombstones.push(key, *slot),
            _ => self.rows.push(key, *slot),
        }
    }

    /// With what was built of the keys that follow.
    ///
    /// # Errors
    /// `IndexFull`.
    pub(crate) fn join(self, right: LevelsBuilder) -> Result<LevelsBuilder, IndexFull> {
        Ok(LevelsBuilder {
            rows: self.rows.join(right.rows)?,
            tombstones: self.tombstones.join(right.tombstones)?,
            hiding: self.hiding + right.hiding,
        })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn levels() -> (Levels, Arc<Epoch>, Arc<NodeArena>) {
        let (arena, epoch) = (Arc::new(NodeArena::new(1 << 24).expect("memory")), Arc::new(Epoch::new()));
        (Levels::new(&arena, &epoch), epoch, arena)
    }

    fn slot(tag: Tag, n: u64) -> LogSlot {
        LogSlot::new(tag, n * 8, 64)
    }

    fn keys_of(
        count: usize,
        next: impl Fn(&mut Cursor, usize, &mut ScanBatch) -> bool,
    ) -> (Vec<Vec<u8>>, Cursor) {
        let (mut cursor, mut batch, mut keys) = (Cursor::default(), ScanBatch::default(), Vec::new());
        loop {
            let more = next(&mut cursor, count, &mut batch);
            assert!(batch.len() <= count);
            keys.extend(batch.iter().map(|(key, _)| key.to_vec()));
            if !more {
                return (keys, cursor);
            }
        }
    }

    /// In steps of every length, those that end with the last key included.
    #[test]
    fn a_walk_comes_by_each_row_once() {
        let (levels, epoch, arena) = levels();
        let mut builder = LevelsBuilder::new(&arena, &epoch, (None, None));
        for n in 0..60u64 {
            let tag = if n % 3 == 0 { Tag::Tombstone } else { Tag::Row };
            builder.push(&n.to_be_bytes(), slot(tag, n + 1)).unwrap();
        }
        levels.build(builder).unwrap();
        let guard = epoch.pin();
        let wanted = |apart: bool| (0..60u64).filter(move |n| (n % 3 == 0) == apart).map(u64::to_be_bytes);
        for count in 1..=41 {
            let (rows, cursor) =
                keys_of(count, |cursor, count, batch| levels.next_rows(cursor, count, &guard, batch));
            assert!(rows.into_iter().eq(wanted(false)), "{count} at a time");
            assert!(cursor.is_at_start());
            let (apart, _) =
                keys_of(count, |cursor, count, batch| levels.next_tombstones(cursor, count, &guard, batch));
            assert!(apart.into_iter().eq(wanted(true)), "{count} at a time");
        }
        let (mut cursor, mut batch) = (Cursor::at(&31u64.to_be_bytes()), ScanBatch::default());
        assert!(levels.next_rows(&mut cursor, 2, &guard, &mut batch));
        assert_eq!((batch.key(0), batch.key(1)), (&31u64.to_be_bytes()[..], &32u64.to_be_bytes()[..]));
        assert!(levels.next_rows(&mut cursor, 1, &guard, &mut batch));
        assert_eq!(batch.key(0), 34u64.to_be_bytes());
    }

    #[test]
    fn only_the_slot_that_was_meant_is_replaced_or_removed() {
        let (levels, epoch, arena) = levels();
        let slots = (slot(Tag::Row, 1), slot(Tag::Row, 2), slot(Tag::Tombstone, 3));
        let mut builder = LevelsBuilder::new(&arena, &epoch, (None, None));
        builder.push(b"apart", slots.2).unwrap();
        builder.push(b"row", slots.0).unwrap();
        let (row, other, tombstone) = (*slots.0, *slots.1, *slots.2);
        levels.build(builder).unwrap();
        let guard = epoch.pin();
        let replace = |key: &[u8], from, to| levels.replace(key, &guard, |now| (now == from).then_some(to));
        assert_eq!(replace(b"row", other, tombstone), None);
        assert_eq!(replace(b"none", row, other), None);
        assert_eq!(levels.locate(b"none", &guard), None, "nothing is made of nothing");
        assert_eq!(replace(b"row", row, other), Some(other));
        assert_eq!(levels.locate(b"row", &guard), Some(other));
        assert!(!levels.remove(b"row", row, &guard));
        let one_less = *slots.2.with_older_versions(7);
        assert_eq!(replace(b"apart", tombstone, one_less), Some(one_less));
        assert_eq!(levels.locate(b"apart", &guard), None, "it is no row, and kept apart");
        assert_eq!(levels.locate_version(b"apart", &guard), Some(one_less));
        assert!(!levels.remove(b"apart", tombstone, &guard));
        assert!(levels.remove(b"apart", one_less, &guard));
        assert_eq!(levels.locate_version(b"apart", &guard), None);
        assert_eq!((levels.rows(), levels.tombstones_apart()), (1, 0));
    }
}

/// The error for a full index.
#[cold]
pub(crate) fn index_full(_: IndexFull) -> Error {
    Error::new(
        ErrorKind::Full,
        "the index has reached index_bytes_max; reads, deletes, and overwrites of rows in the log go on",
    )
}
