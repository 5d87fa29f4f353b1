//! The levels of a table's index: the one door to all that says where a key's newest record is.
//!
//! Owns: the order in which levels are asked, and which of them a change goes to. Promises: whoever looks a key up finds the newest
//! slot that was published before; a walk comes by each key once, in order. Must not know: records, the cache, snapshots.
//!
//! **The order of a look-up.** First the young level: the trees of the table in DRAM (`index/rows.rs`). Of what it says nothing, groups may have an entry, whose keys were sealed (`levels/sealed.rs`). What lies below both, the sorted tables
//! (`db/lower.rs`), is asked only for keys of which neither says anything, and a tombstone says something. A tombstone that hides something is among the rows; the others
//! are kept apart, and whoever only wants a row need not ask them: of their keys nothing is below.
//!
//! Writes go to the young level, and so does what is built from the log on opening; of a key that only a group has, a write counts that entry's record as what it replaces. Nobody else calls the trees; groups are written, and walked for that, by who seals (`gc/sealing.rs`).

mod builder;
mod sealed;

use std::ops::Bound;

use hedgerow_device::Random;

use crate::epoch::{Epoch, Guard};
use crate::group::{DamagedLeaf, Group, GroupFilter, GroupLevels, MergedGroups};
use crate::index::{
    Budget, Decision, Index, IndexFull, LeafPosition, Located, LogSlot, NewKey, NodeArena, RowIndex,
    ScanBatch, ScanEnd, Slot, Tag,
};
use crate::log::{Log, LogGuard};
use crate::sync::Arc;
use crate::{Error, ErrorKind, Result};

pub(crate) use builder::{LEAF_BYTES_OF_KEY, LevelsBuilder, SealAtOpening, is_worth_leaves, leaf_bytes_min};
use sealed::{Groups, Sealed, SealedLook, is_unknown, look_into};
pub(crate) use sealed::{NOTHING, is_sealable};

/// Where a table's keys are.
pub(crate) struct Levels {
    young: RowIndex,
    sealed: Sealed,
}

/// Look-ups.
impl Levels {
    /// Of a table without rows.
    pub(crate) fn new(arena: &Arc<NodeArena>, epoch: &Arc<Epoch>) -> Levels {
        Levels { young: RowIndex::new(arena, epoch), sealed: Sealed::new() }
    }

    /// The slot of the row of `key`, for whoever reads it. May be a tombstone's, which is no row.
    #[inline]
    pub(crate) fn locate(&self, key: &[u8], guard: &LogGuard<'_>) -> Option<Slot> {
        self.look_up(key, guard, || self.young.rows().get(key, guard))
    }

    /// [`Levels::locate`] for all `keys`, whose misses overlap; `out[i]` is for `keys[i]`. `out` is no shorter than `keys`.
    #[inline]
    pub(crate) fn locate_many(&self, keys: &[&[u8]], guard: &LogGuard<'_>, out: &mut [Option<Slot>]) {
        let groups = self.sealed.groups_for(keys);
        self.young.rows().multi_get(keys, guard, out);
        if self.sealed.is_any() || groups.is_some() {
            for (key, out) in keys.iter().zip(out).filter(|(_, out)| out.is_none()) {
                let young = || self.young.rows().get(key, guard);
                *out = self.look_into_groups(key, guard, groups.as_ref(), &young);
            }
        }
    }

    /// [`Levels::locate_many`] of what is in the young level alone.
    pub(crate) fn locate_young(&self, keys: &[&[u8]], guard: &LogGuard<'_>, out: &mut [Option<Slot>]) {
        self.young.rows().multi_get(keys, guard, out);
    }

    /// The slot of the newest version of `key`, for whoever changes it or its records: a tombstone's wherever that is kept. `None`
    /// also while the key changes from deleted to written.
    #[inline]
    pub(crate) fn locate_version(&self, key: &[u8], guard: &LogGuard<'_>) -> Option<Slot> {
        self.look_up(key, guard, || self.young.find(key, guard))
    }

    /// [`Levels::locate_version`], with all writers of the key kept out if it finds none: `None` of a key that was never written, or has been forgotten.
    pub(crate) fn locate_version_surely(&self, key: &[u8], guard: &LogGuard<'_>) -> Option<Slot> {
        let sealed = || self.sealed.look(key, guard.view()).slot();
        let locked = || self.change(key, guard, |now| (Decision::Keep, now.or_else(sealed)))?;
        self.locate_version(key, guard).or_else(locked)
    }

    /// [`Levels::locate_version`] for all `keys`, as [`Levels::locate_many`]; `sealed[i]` says whether only a group has `keys[i]`.
    #[inline]
    pub(crate) fn locate_versions(
        &self,
        keys: &[&[u8]],
        guard: &LogGuard<'_>,
        (out, sealed): (&mut [Option<Slot>], &mut [bool]),
    ) {
        let groups = self.sealed.groups_for(keys);
        self.young.multi_find(keys, guard, out);
        if self.sealed.is_any() || groups.is_some() {
            for ((key, out), sealed) in keys.iter().zip(out).zip(sealed).filter(|((_, out), _)| out.is_none())
            {
                *out = self.look_into_groups(key, guard, groups.as_ref(), &|| self.young.find(key, guard));
                *sealed = out.is_some() && self.young.find(key, guard).is_none();
            }
        }
    }

    /// [`Levels::locate_version`] for all `keys` that remembers for [`Levels::publish`] where the keys are.
    #[inline]
    pub(crate) fn locate_to_publish<'g>(
        &'g self,
        keys: &[&[u8]],
        guard: &'g LogGuard<'_>,
        out: &mut [Located<'g>],
    ) {
        let groups = self.sealed.groups_for(keys);
        self.young.multi_locate(keys, guard, out);
        if self.sealed.is_any() || groups.is_some() {
            for (key, out) in keys.iter().zip(out).filter(|(_, out)| out.slot.is_none()) {
                let young = || self.young.find(key, guard);
                out.slot = self.look_into_groups(key, guard, groups.as_ref(), &young);
                out.is_sealed = out.slot.is_some();
            }
        }
    }

    /// Asks the young level, by `young`, then groups.
    #[inline]
    fn look_up(&self, key: &[u8], guard: &LogGuard<'_>, young: impl Fn() -> Option<Slot>) -> Option<Slot> {
        let groups = self.sealed.groups_for(&[key]);
        match young() {
            None if self.sealed.is_any() || groups.is_some() => {
                self.look_into_groups(key, guard, groups.as_ref(), &young)
            }
            found => found,
        }
    }

    /// What groups have of a key that the young level was found not to have, after these groups had been there.
    ///
    /// A key goes both ways: into a group and out of the young level, and by gc into the young level, when its entry is gone and may be left out by the next merge. So the young level is asked again if the groups are others by then, and where an entry is gone.
    #[inline(never)]
    fn look_into_groups(
        &self,
        key: &[u8],
        guard: &LogGuard<'_>,
        before: Option<&Groups>,
        young: &dyn Fn() -> Option<Slot>,
    ) -> Option<Slot> {
        let (mut last, mut gone) = (None, None);
        loop {
            let now = self.sealed.groups_for(&[key]);
            let is_same = match (last.as_ref().map_or(before, Option::as_ref), &now) {
                (Some(before), Some(now)) => std::sync::Arc::ptr_eq(before, now),
                (None, None) => true,
                _ => false,
            };
            if is_same {
                match now.as_ref().map_or(SealedLook::Absent, |now| look_into(now, key, guard.view())) {
                    SealedLook::Absent => return None,
                    SealedLook::There(slot) => return Some(slot),
                    // By then the young level had been asked after it went.
                    SealedLook::Gone(mark) if gone == Some(mark) => return None,
                    SealedLook::Gone(mark) => gone = Some(mark),
                }
            }
            last = Some(now);
            if let Some(slot) = young() {
                return Some(slot);
            }
        }
    }

    /// Whether a tombstone of `key` must hide what groups have of it, or will when what is being sealed now is there. With an appender locked, which is held until the tombstone is published.
    #[inline]
    pub(crate) fn may_be_sealed(&self, key: &[u8], guard: &LogGuard<'_>) -> bool {
        self.sealed.is_sealing()
            || self.sealed.is_any() && self.sealed.look(key, guard.view()).slot().is_some()
    }

    /// Tries once to choose a row's or a tombstone's slot at random, and puts its key into `key`.
    pub(crate) fn sample(
        &self,
        random: &mut Random,
        guard: &LogGuard<'_>,
        key: &mut Vec<u8>,
    ) -> Option<Slot> {
        /// Of the level that was chosen: several of ten tries come to no entry, or to one that does not count.
        const TRIES: usize = 64;
        let sealed = self.sealed.rows();
        // With the tombstones among them: whoever asks draws again where one comes.
        if sealed == 0 || random.below(sealed + self.young.rows().len()) >= sealed {
            let tries = if sealed == 0 { 1 } else { TRIES };
            return (0..tries).find_map(|_| self.young.rows().sample(random, guard, key));
        }
        (0..TRIES).find_map(|_| {
            let chosen = self.sealed.sample(random, guard.view(), key)?;
            (self.locate(key, guard) == Some(chosen)).then_some(chosen)
        })
    }
}

/// Changes.
impl Levels {
    /// Runs `decide` with the slot of the newest version of `key`, while all other writers of the key are kept out, then does what
    /// it decided. For a key that was looked up `at` this place under the same guard the way down is saved. A tombstone that is
    /// stored over a row is kept apart if `apart` says so, which is asked after `decide`.
    ///
    /// `new_key` says what it takes if nobody has it, and what if only a group does. The caller has an appender locked, or that of gc: meanwhile no key leaves the young level for a group.
    ///
    /// # Errors
    /// `IndexFull` if it is a `new_key` and there is no memory for it. Of one that is not stored only in a table that never had a key: it is not there then.
    #[inline]
    pub(crate) fn publish<'g, R>(
        &'g self,
        entry: (&[u8], Option<LeafPosition<'g>>),
        new_key: (NewKey<'g>, Budget<'g>),
        guard: &'g LogGuard<'_>,
        apart: impl Fn() -> bool,
        decide: impl FnOnce(Option<Slot>) -> (Decision, R),
    ) -> std::result::Result<R, IndexFull> {
        match self.sealed.is_any() {
            false => self.young.upsert_at(entry, new_key.0, guard, apart, decide),
            true => self.publish_over_groups(entry, new_key, guard, apart, decide),
        }
    }

    /// The same where a group may have the key: asked if the young level does not, before its leaf is locked.
    #[inline(never)]
    fn publish_over_groups<'g, R>(
        &'g self,
        (key, at): (&[u8], Option<LeafPosition<'g>>),
        (new_key, budget): (NewKey<'g>, Budget<'g>),
        guard: &'g LogGuard<'_>,
        apart: impl Fn() -> bool,
        decide: impl FnOnce(Option<Slot>) -> (Decision, R),
    ) -> std::result::Result<R, IndexFull> {
        // A tombstone may be kept apart: what is stored over it is new to the rows.
        let is_among_rows = |slot: &Slot| slot.tag() != Tag::Tombstone || slot.hides_below();
        let (mut decide, mut is_young) = (Some(decide), false);
        let in_young = self.young.upsert_at((key, at), NewKey::NotStored, guard, &apart, |now| {
            is_young = now.is_some();
            match now.filter(is_among_rows).and_then(|now| Some((now, decide.take()?))) {
                Some((now, decide)) => {
                    let (decision, result) = decide(Some(now));
                    (decision, Some(result))
                }
                None => (Decision::Keep, None),
            }
        });
        let decide = match (in_young, decide) {
            (Ok(Some(result)), _) => return Ok(result),
            (_, Some(decide)) => decide,
            (_, None) => unreachable!("what was decided has a result"),
        };
        let sealed = if is_young { None } else { self.sealed.look(key, guard.view()).slot() };
        let new_key = match new_key {
            NewKey::NotStored if sealed.is_some() => NewKey::Stored(budget),
            new_key => new_key,
        };
        self.young.upsert_at((key, at), new_key, guard, apart, |now| {
            let sealed = sealed.filter(|_| now.is_none());
            let (decision, result) = decide(now.or(sealed));
            debug_assert!(sealed.is_none() || decision != Decision::Remove, "what a group has stays there");
            if let (Some(sealed), Decision::Store(_)) = (sealed, decision) {
                self.sealed.record_stored_over(sealed);
            }
            (decision, result)
        })
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

    /// Puts another slot of the same version in the place of that of `key`, if the young level has one: what `replace` makes of it. Returns what stands
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

    /// An older record of `key` was freed: its slot is what `less` makes of it from now on, if that is anything, whether the young level has it or a group; then the young level has it as well. Returns what stands there then. The caller has gc's appender locked.
    pub(crate) fn subtract_older_version(
        &self,
        key: &[u8],
        guard: &LogGuard<'_>,
        less: impl Fn(Slot) -> Option<Slot>,
    ) -> Option<Slot> {
        self.replace_or_unseal(key, guard, less)
    }

    /// [`Levels::replace`] wherever the slot of `key` is: of one that only a group has what `replace` makes of it goes into the young level, however full the index is. The caller has gc's appender locked: meanwhile no key leaves the young level for a group.
    pub(crate) fn replace_or_unseal(
        &self,
        key: &[u8],
        guard: &LogGuard<'_>,
        replace: impl Fn(Slot) -> Option<Slot>,
    ) -> Option<Slot> {
        if let Some(stands) = self.replace(key, guard, &replace) {
            return Some(stands);
        }
        if !self.sealed.is_any() {
            return None;
        }
        // Nothing is made of what nobody can say.
        let sealed = self.sealed.look(key, guard.view()).slot().filter(|sealed| !is_unknown(*sealed));
        let Some(sealed) = sealed else {
            // Written over since it was not found there.
            return self.replace(key, guard, replace);
        };
        let (unsealed, new_key) = (replace(sealed)?, NewKey::Stored(Budget::Beyond));
        let stored = self.young.upsert_at(
            (key, None),
            new_key,
            guard,
            || false,
            |now| match now {
                Some(now) => match replace(now) {
                    Some(new) => (Decision::Store(new), Some(new)),
                    None => (Decision::Keep, None),
                },
                None => {
                    self.sealed.record_stored_over(sealed);
                    (Decision::Store(unsealed), Some(unsealed))
                }
            },
        );
        stored.ok()?
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

    /// Forgets all keys. The caller keeps out all writers, and gc.
    pub(crate) fn clear(&self, log: &Log) {
        // In this order: who found nothing in the young level finds other groups than before, and asks again. The other way round he would find there what had been written over or deleted.
        self.sealed.clear(log);
        self.young.clear();
    }

    /// Takes over what was built on opening.
    ///
    /// # Errors
    /// `Full`, of the index.
    pub(crate) fn build(&self, built: LevelsBuilder<'_>) -> Result<()> {
        let (young, group) = built.finish()?;
        self.young.replace_with((young.rows, young.hiding), young.tombstones);
        if let Some(group) = group {
            self.sealed.open_with(group);
        }
        Ok(())
    }
}

/// Sealing.
impl Levels {
    /// Takes over groups when the store is opened; so many rows are in them alone.
    pub(crate) fn open_groups(&self, groups: GroupLevels, rows: u64) {
        self.sealed.open_groups(groups, rows);
    }

    /// What the young level alone says of the newest version of `key`.
    pub(crate) fn young_version(&self, key: &[u8], guard: &LogGuard<'_>) -> Option<Slot> {
        self.young.find(key, guard)
    }

    /// Keys are being sealed from now on: who deletes one knows it once all appenders have been passed.
    pub(crate) fn begin_seal(&self) {
        self.sealed.set_sealing(true);
    }

    /// What was to be sealed is, or stays as it is.
    pub(crate) fn end_seal(&self) {
        self.sealed.set_sealing(false);
    }

    /// The groups that there are.
    pub(crate) fn groups(&self) -> std::sync::Arc<GroupLevels> {
        self.sealed.groups()
    }

    /// The number of the group that comes next, or of the newest, which `goes_on`.
    pub(crate) fn number_of_group(&self, goes_on: bool) -> u64 {
        self.sealed.number_of_group(goes_on)
    }

    /// Lets everybody see a group of keys that are in the young level, too; as one with the newest, if it has that one's number. The caller keeps out whoever clears the table.
    pub(crate) fn add_group(&self, group: &Arc<Group>, number: u64) {
        self.sealed.add(group, number);
    }

    /// What tells which groups may have a key. To be told of the keys of a group before that is added.
    pub(crate) fn filter_of_groups(&self) -> Option<Arc<GroupFilter>> {
        self.sealed.groups().filter().cloned()
    }

    /// Puts a filter that has the keys of all groups but the lowest in the place of the one there is; or none, and all groups are asked. The caller keeps out whoever clears the table.
    pub(crate) fn set_filter(&self, filter: Option<GroupFilter>) {
        self.sealed.set_filter(filter);
    }

    /// Whether so many entries of groups are gone, or were passed by in vain, that merging them is worth it, now that so many segments of the log have been emptied, and so many are there.
    pub(crate) fn groups_are_worn(&self, emptied_and_segments: (u64, u64)) -> bool {
        self.sealed.is_worn(emptied_and_segments)
    }

    /// Puts a group in the place of some of these, of which it was made since so many segments had been emptied; false if they are others by now. The caller keeps out whoever clears the table, and who adds groups.
    pub(crate) fn set_merged(
        &self,
        of: &GroupLevels,
        which_and_emptied: (&MergedGroups, u64),
        merged: Group,
        log: &Log,
    ) -> bool {
        self.sealed.set_merged(of, which_and_emptied, merged, log)
    }

    /// [`Levels::forget_in_order`] of what a group has that everybody sees, and all appenders have been passed since; returns how many were forgotten. The caller has an appender locked, and keeps out whoever clears the table.
    pub(crate) fn forget_sealed(
        &self,
        entries: &[(&[u8], Slot)],
        guard: &Guard<'_>,
        forgotten: &mut [bool],
    ) -> u64 {
        self.sealed.begin_forgetting();
        self.young.remove_in_order(entries, guard, forgotten);
        let count = forgotten.iter().filter(|forgotten| **forgotten).count() as u64;
        self.sealed.count_sealed(count);
        count
    }
}

/// Walks.
impl Levels {
    /// Puts the rows between two keys into `batch`, from the one on, or from the other back: at most `count`. There are more if it
    /// says so. Such tombstones as a snapshot may look under are among them.
    ///
    /// # Errors
    /// `Corrupted`, if nobody can say which keys are sealed.
    #[inline]
    pub(crate) fn scan(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        count: usize,
        guard: &LogGuard<'_>,
        batch: &mut ScanBatch,
    ) -> Result<ScanEnd> {
        let young = self.young.rows();
        loop {
            let groups = self.sealed.groups_if_any();
            let end = match reverse {
                false => young.scan_forward(range.0, range.1, count, guard, batch),
                true => young.scan_reverse(range.0, range.1, count, guard, batch),
            };
            let now = self.sealed.groups_if_any();
            let (before, groups) = match (groups, now) {
                (None, None) => return Ok(end),
                (before, now) => (before.unwrap_or_default(), now.unwrap_or_default()),
            };
            // As a look-up does: what came out of a group meanwhile is behind the scan, perhaps.
            if std::sync::Arc::ptr_eq(&before, &groups) {
                let newest = |key: &[u8]| self.locate(key, guard);
                let merged =
                    self.sealed.add_to_scan(&groups, (range, reverse), (count, end), guard, batch, newest);
                return merged.map_err(|damaged| {
                    guard.view().record_damaged_leaf();
                    damaged_leaf(damaged)
                });
            }
        }
    }

    /// Comes by all keys in order, rows and tombstones, each with the slot of its newest version.
    ///
    /// # Errors
    /// Those of `visit`, which ends it; those of [`Levels::scan`].
    #[cfg(test)]
    pub(crate) fn each_version(
        &self,
        guard: &LogGuard<'_>,
        visit: impl FnMut(&[u8], Slot) -> Result<()>,
    ) -> Result<()> {
        let next_rows = |cursor: &mut _, batch: &mut _| self.next_rows(cursor, LevelWalk::KEYS, guard, batch);
        self.walk_versions(guard, next_rows, visit)
    }

    /// [`Levels::each_version`] of the young level.
    ///
    /// # Errors
    /// Those of `visit`, which ends it.
    pub(crate) fn each_young_version(
        &self,
        guard: &LogGuard<'_>,
        visit: impl FnMut(&[u8], Slot) -> Result<()>,
    ) -> Result<()> {
        let next_rows =
            |cursor: &mut _, batch: &mut _| Ok(self.next_young_rows(cursor, LevelWalk::KEYS, guard, batch));
        self.walk_versions(guard, next_rows, visit)
    }

    fn walk_versions(
        &self,
        guard: &LogGuard<'_>,
        next_rows: impl Fn(&mut Cursor, &mut ScanBatch) -> Result<bool>,
        mut visit: impl FnMut(&[u8], Slot) -> Result<()>,
    ) -> Result<()> {
        let (mut rows, mut apart) = (LevelWalk::default(), LevelWalk::default());
        loop {
            rows.fill(&next_rows)?;
            apart.fill(|cursor, batch| Ok(self.next_tombstones(cursor, LevelWalk::KEYS, guard, batch)))?;
            let row_is_next = match (rows.head(), apart.head()) {
                (None, None) => return Ok(()),
                (Some((row, _)), Some((tombstone, _))) => row < tombstone,
                (row, _) => row.is_some(),
            };
            let next = if row_is_next { &mut rows } else { &mut apart };
            if let Some((key, slot)) = next.head() {
                visit(key, slot)?;
            }
            next.at += 1;
        }
    }

    /// Puts the next rows of a walk into `batch`, at most `count`, as [`Levels::scan`]; whether there are more. If not, the cursor is
    /// back at the first row.
    ///
    /// # Errors
    /// Those of [`Levels::scan`].
    pub(crate) fn next_rows(
        &self,
        cursor: &mut Cursor,
        count: usize,
        guard: &LogGuard<'_>,
        batch: &mut ScanBatch,
    ) -> Result<bool> {
        let end = self.scan((cursor.from(), Bound::Unbounded), false, count, guard, batch)?;
        Ok(cursor.went_on(end, batch))
    }

    /// [`Levels::next_rows`] of those that are not sealed.
    pub(crate) fn next_young_rows(
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
        self.young.len() + self.sealed.rows()
    }

    /// Bytes of memory of the young level.
    pub(crate) fn young_bytes(&self) -> u64 {
        self.young.bytes()
    }

    /// Those of them that only groups have.
    pub(crate) fn sealed_rows(&self) -> u64 {
        self.sealed.rows()
    }

    /// Keys of the young level, those that were deleted included.
    pub(crate) fn young_keys(&self) -> u64 {
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

    /// All tombstones.
    pub(crate) fn tombstones(&self) -> u64 {
        self.young.tombstones().len() + self.young.mixed()
    }

    /// Tombstones that are kept apart.
    #[cfg(test)]
    pub(crate) fn tombstones_apart(&self) -> u64 {
        self.young.tombstones().len()
    }

    /// Whether any key was sealed.
    pub(crate) fn has_groups(&self) -> bool {
        self.sealed.is_any()
    }

    /// Rows of it move to sorted tables from now on: of which keys that only groups have something is stored meanwhile is [remembered](Levels::was_stored_over). Before all appenders are passed, and before a slot is looked at.
    pub(crate) fn begin_move(&self) {
        self.sealed.begin_move();
    }

    /// Whether keys have left the young index for a group since the move began: what it found there may be in a group alone by now.
    pub(crate) fn was_sealed_meanwhile(&self) -> bool {
        self.sealed.was_sealed_meanwhile()
    }

    /// Whether something was stored over this entry of a group since the move began.
    pub(crate) fn was_stored_over(&self, sealed: LogSlot) -> bool {
        self.sealed.was_stored_over(sealed)
    }

    /// So many keys that only groups have count no more: their rows have moved.
    pub(crate) fn count_moved(&self, keys: u64) {
        self.sealed.count_gone(keys);
    }

    /// So many keys have an entry of a group again that counts.
    pub(crate) fn count_uncovered(&self, keys: u64) {
        self.sealed.count_sealed(keys);
    }

    /// What was on its way has come to sorted tables, or stays.
    pub(crate) fn end_move(&self) {
        self.sealed.end_move();
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.young.bytes() + self.sealed_memory_bytes()
    }

    /// Bytes of memory of what tells which groups may have a key.
    pub(crate) fn filter_bytes(&self) -> u64 {
        self.sealed.filter_bytes()
    }

    /// Those of them that are of groups, and in no arena.
    pub(crate) fn sealed_memory_bytes(&self) -> u64 {
        self.sealed.memory_bytes()
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

    fn from(&self) -> Bound<&[u8]> {
        self.0.as_ref().map(Vec::as_slice)
    }

    fn step(&mut self, tree: &Index, count: usize, guard: &Guard<'_>, batch: &mut ScanBatch) -> bool {
        let end = tree.scan_forward(self.from(), Bound::Unbounded, count, guard, batch);
        self.went_on(end, batch)
    }

    /// To behind a batch that ended so; whether anything is there.
    fn went_on(&mut self, end: ScanEnd, batch: &ScanBatch) -> bool {
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

/// A walk of one level, some keys at a time.
#[derive(Default)]
struct LevelWalk {
    cursor: Cursor,
    batch: ScanBatch,
    at: usize,
    is_done: bool,
}

impl LevelWalk {
    const KEYS: usize = 1024;

    /// Takes the next keys by `step`, if those that were there have been passed.
    fn fill(&mut self, step: impl Fn(&mut Cursor, &mut ScanBatch) -> Result<bool>) -> Result<()> {
        while self.at == self.batch.len() && !self.is_done {
            self.is_done = !step(&mut self.cursor, &mut self.batch)?;
            self.at = 0;
        }
        Ok(())
    }

    fn head(&self) -> Option<(&[u8], Slot)> {
        (self.at < self.batch.len()).then(|| (self.batch.key(self.at), self.batch.slots()[self.at]))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier};

    use super::*;
    use crate::db::fixture::options;

    fn levels() -> (Levels, Log, Arc<NodeArena>) {
        let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
        let tier = Arc::new(FastTier::simulated(&sim));
        let (log, _) = Log::open(tier, &options(), Clock::manual(1_000)).expect("a new log");
        let arena = Arc::new(NodeArena::new(1 << 24).expect("memory"));
        (Levels::new(&arena, log.epoch()), log, arena)
    }

    fn slot(tag: Tag, n: u64) -> LogSlot {
        LogSlot::new(tag, n * 8, 64)
    }

    fn keys_of(
        count: usize,
        next: impl Fn(&mut Cursor, usize, &mut ScanBatch) -> Result<bool>,
    ) -> (Vec<Vec<u8>>, Cursor) {
        let (mut cursor, mut batch, mut keys) = (Cursor::default(), ScanBatch::default(), Vec::new());
        loop {
            let more = next(&mut cursor, count, &mut batch).expect("no leaf is damaged");
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
        let (levels, log, arena) = levels();
        let mut builder = LevelsBuilder::new(&arena, log.epoch(), (None, None));
        for n in 0..60u64 {
            let tag = if n % 3 == 0 { Tag::Tombstone } else { Tag::Row };
            builder.push(&n.to_be_bytes(), slot(tag, n + 1)).unwrap();
        }
        levels.build(builder).unwrap();
        let guard = log.pin();
        let wanted = |apart: bool| (0..60u64).filter(move |n| (n % 3 == 0) == apart).map(u64::to_be_bytes);
        for count in 1..=41 {
            let (rows, cursor) =
                keys_of(count, |cursor, count, batch| levels.next_rows(cursor, count, &guard, batch));
            assert!(rows.into_iter().eq(wanted(false)), "{count} at a time");
            assert!(cursor.is_at_start());
            let (apart, _) = keys_of(count, |cursor, count, batch| {
                Ok(levels.next_tombstones(cursor, count, &guard, batch))
            });
            assert!(apart.into_iter().eq(wanted(true)), "{count} at a time");
        }
        let (mut cursor, mut batch) = (Cursor::at(&31u64.to_be_bytes()), ScanBatch::default());
        assert!(levels.next_rows(&mut cursor, 2, &guard, &mut batch).unwrap());
        assert_eq!((batch.key(0), batch.key(1)), (&31u64.to_be_bytes()[..], &32u64.to_be_bytes()[..]));
        assert!(levels.next_rows(&mut cursor, 1, &guard, &mut batch).unwrap());
        assert_eq!(batch.key(0), 34u64.to_be_bytes());
    }

    #[test]
    fn an_entry_that_was_stored_over_is_not_the_one_that_comes_after_it() {
        let (levels, ..) = levels();
        let slot = slot(Tag::Row, 1);
        levels.count_uncovered(1);
        levels.begin_move();
        // It was unsealed, and sealed again with one older record less.
        levels.sealed.record_stored_over(slot.with_older_versions(1).into());
        assert!(levels.was_stored_over(slot.with_older_versions(1)) && !levels.was_stored_over(slot));
        levels.end_move();
        assert!(!levels.was_stored_over(slot.with_older_versions(1)));
    }

    #[test]
    fn only_the_slot_that_was_meant_is_replaced_or_removed() {
        let (levels, log, arena) = levels();
        let slots = (slot(Tag::Row, 1), slot(Tag::Row, 2), slot(Tag::Tombstone, 3));
        let mut builder = LevelsBuilder::new(&arena, log.epoch(), (None, None));
        builder.push(b"apart", slots.2).unwrap();
        builder.push(b"row", slots.0).unwrap();
        let (row, other, tombstone) = (*slots.0, *slots.1, *slots.2);
        levels.build(builder).unwrap();
        let guard = log.pin();
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

#[cold]
pub(crate) fn damaged_leaf(damaged: DamagedLeaf) -> Error {
    Error::corrupted(format!(
        "the index is corrupted at byte {} of the fast tier: a leaf there does not match its checksum; it is made anew from the log when the store is opened",
        damaged.at()
    ))
}

/// The error for a full index.
#[cold]
pub(crate) fn index_full(_: IndexFull) -> Error {
    Error::new(
        ErrorKind::Full,
        "the index has reached index_bytes_max; reads, deletes, and overwrites of rows that are in it go on",
    )
}
