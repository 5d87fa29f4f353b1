//! Sealing: keys leave memory for groups on the fast tier, and their rows stay where they are (DecouKV, USENIX ATC 2025: the index is merged apart from its data; BushStore, ICDE 2024: what it is merged to).
//!
//! Owns the steps of a seal, and when there is one. Promises that a key is in a group that everybody sees before the young index forgets it, and that what changed meanwhile stays as it is. Must not know what is in a leaf.
//!
//! 1. The table is **marked**: what is deleted from now on hides what groups may have of it. All appenders are passed.
//! 2. Its young index is **walked** in the order of keys, and what may be sealed is written to leaves. May be sealed: a row, with or without deltas over it, that is neither cached nor expiring. Of such a key nothing but a write changes the slot, and the freeing of an
//!    older record of it, which makes the count of these one less: then the key is [unsealed](crate::levels::Levels::subtract_older_version), and sealed again when there is need.
//! 3. The group is **published**: who finds nothing in the young index finds it there. All appenders are passed once more: who looked before has published what he wrote.
//! 4. The young index **forgets** what is as it was found. What was changed meanwhile stays there, and hides the group's entry.
//!
//! Groups survive no crash: an opening finds all keys in the log then, and seals those that memory has no room for as it builds the index (`levels/builder.rs`). Groups of a table are [merged](merging) once they are many. An entry whose record is gone is left out; what is hidden by the young index is not looked for.
//!
//! **What fails** changes nothing: leaves that no group has are free again. Where there is no room for more of them what was written by then is a group.

mod merging;
mod small_tables;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::victims::low_extents;
use crate::db::engine::{Engine, TableShared};
use crate::group::{Group, GroupCursor, GroupFilter, GroupLevels, GroupWriter, LeafExtents, hash_of};
use crate::index::{LogSlot, ScanBatch, Slot};
use crate::levels::{Cursor, LEAF_BYTES_OF_KEY, Levels, SealAtOpening, damaged_leaf, is_sealable};
use crate::log::{LeafWriter, LogView, PlaceState};
use crate::scheduler::IdleBackoff;
use crate::scheduler::gc_state::LeftBySeal;
use crate::scheduler::throttle::SpaceLeft;
use crate::sync::atomic::Ordering;
use crate::{ErrorKind, Result};

/// Keys are sealed once the young index takes this share of what all of it may, less what groups take; before rows [move](super::moving) for it.
const SEALS_FROM: u64 = 2;
/// And at this share of all at the least.
const SEALS_FROM_LEAST: u64 = 16;
/// What the last seal left is looked at again when the young index has grown by this share.
const SEALS_AGAIN_AFTER: u64 = 16;
/// Or by half of what is left of the index, if that is less, but not by less than this share of it all.
const SEALS_AGAIN_AFTER_LEAST: u64 = 256;
/// Or, while the index takes more than three quarters, when this share of the log was freed: what was written over is the only record of its key by then.
const FREED_SHARE: u64 = 16;
/// With tombstones at this share of the keys of a tight index it is worth the copies to free what they hide.
const TOMBSTONES_SHARE: u64 = 4;
/// Keys that are sealed together: a move that is about to take keys out of the index waits meanwhile.
const SLICE_KEYS: u64 = 512 << 10;
/// And those that are looked at in vain.
const LOOKED_AT_KEYS: u64 = 64 << 10;
/// Keys that are looked at under one guard, and those that the young index forgets together: meanwhile an appender is held.
const STEP: usize = 1024;
const FORGOTTEN_TOGETHER: usize = 128;
/// The slots of a filter are loaded so many keys ahead.
const FILTER_AHEAD: usize = 16;
/// Entries that are merged under one guard.
const MERGE_STEP: usize = 16 << 10;
/// With so many no more are made: merging them finds no room.
const GROUPS_HELD_AT: usize = 64;

/// A table whose keys are sealed, or whose groups are merged, as it was when that began.
struct SealRun<'t> {
    table: &'t TableShared,
    id: u32,
    /// Segments that were begun since have this number or a higher one.
    below: u64,
}

impl SealRun<'_> {
    /// The table was cleared or dropped: where its leaves were, others may be once the guards of before have gone.
    fn is_over(&self) -> bool {
        self.table.id.load(Ordering::Acquire) != self.id || self.table.check_there().is_err()
    }
}

/// What became of some keys.
struct SealedSlice {
    /// Entries of the group.
    written: u64,
    /// Those that the young index has forgotten.
    sealed: u64,
    is_last: bool,
}

/// A table is marked as long as it is there.
struct SealBegun<'t>(&'t TableShared);

impl<'t> SealBegun<'t> {
    fn of(engine: &Engine, table: &'t TableShared) -> SealBegun<'t> {
        table.levels.begin_seal();
        engine.log.barrier();
        SealBegun(table)
    }
}

impl Drop for SealBegun<'_> {
    fn drop(&mut self) {
        self.0.levels.end_seal();
    }
}

/// Whether a table gets no more groups before those that it has are merged.
fn is_held(table: &Arc<TableShared>) -> bool {
    table.levels.groups().l0().len() >= GROUPS_HELD_AT
}

/// The slot of a key that may be sealed by whoever began when segments had the number `below`.
fn sealable((key, slot): (&[u8], Slot), log: LogView<'_>, below: u64) -> Option<LogSlot> {
    let slot = slot.in_log().filter(|_| is_sealable(key, slot))?;
    (log.kept(slot.offset(), below) == PlaceState::There).then_some(slot)
}

/// By how much the young index grows before what a seal `left` of it is looked at again, of `most` bytes. Where a seal left much that is less, so that keys which can be sealed are not refused for those that cannot.
fn growth_to_seal(left: u64, most: u64) -> u64 {
    (most.saturating_sub(left) / 2).clamp(most / SEALS_AGAIN_AFTER_LEAST, most / SEALS_AGAIN_AFTER)
}

/// When.
impl Engine {
    /// For who builds the index: the room that there is then is what is found free.
    pub(crate) fn seal_at_opening(&self) -> SealAtOpening<'_> {
        let seals = self.options.seal && !self.log.tier().is_read_only();
        SealAtOpening {
            log: &self.log,
            index_bytes_max: seals.then_some(self.options.index_bytes_max),
            left: low_extents(self.log.space().room().1) / 2,
        }
    }

    /// The thread that seals.
    pub(crate) fn seal_loop(&self) {
        // A leaf that is damaged is told to whoever looks into it.
        drop(self.tell_opened_groups_apart());
        self.work_while_writable(|_| false, Engine::seal_if_wanted);
    }

    /// Works whenever something was written, or something else `is_due`.
    fn work_while_writable(&self, is_due: impl Fn(&Engine) -> bool, work: impl Fn(&Engine) -> Result<()>) {
        let (mut backoff, mut seen) = (IdleBackoff::new(Duration::from_millis(2)), 0);
        let anything_new =
            |seen: &mut u64| std::mem::replace(seen, self.log.last_sequence()) != *seen || is_due(self);
        while self.scheduler.back_off(&mut backoff, || anything_new(&mut seen))
            && self.log.check_writable().is_ok()
        {
            // A leaf that is damaged is told to whoever looks into it, and what the tier refuses to whoever writes.
            drop(work(self));
        }
    }

    /// Seals keys if the index is short of room, and there is room for them in the log.
    ///
    /// # Errors
    /// `Corrupted`, of a leaf; what the tier refuses. What can be done is done before.
    pub(crate) fn seal_if_wanted(&self) -> Result<()> {
        let Some(_alone) = self.gc.sealing.try_lock() else { return Ok(()) };
        let mut done = Ok(());
        if self.wants_seal() {
            let (before, keys) = (self.young_index_bytes(), self.young_keys());
            let (sealed, failed) = self.seal_largest_tables();
            done = done.and(failed);
            // What came meanwhile is not among it: that was not looked at.
            let gone = u128::from(before) * u128::from(sealed.min(keys)) / u128::from(keys.max(1));
            let left = before - gone as u64;
            let growth = growth_to_seal(left, self.options.index_bytes_max);
            self.gc.sealed(left, growth, self.gc.segments.load(Ordering::Relaxed));
            self.free_garbage();
            self.log.space().has_changed();
        }
        self.log.free_retired_leaves();
        done
    }

    /// How many keys left the young index, and what went wrong first.
    fn seal_largest_tables(&self) -> (u64, Result<()>) {
        let mut tables = self.tables_to_seal();
        tables.sort_by_cached_key(|table| Reverse(table.levels.young_bytes()));
        let (mut sealed, mut done) = (0, Ok(()));
        // All tables are looked through once, not for each of them: there may be thousands. What comes to the others meanwhile the next seal finds.
        let (mut young, least) = (self.young_index_bytes(), self.seals_from() / 4);
        for table in &tables {
            if self.scheduler.is_stopped() || young < least {
                break;
            }
            let before = table.levels.young_bytes();
            let of_table = self.seal_table(table);
            young = young.saturating_sub(before.saturating_sub(table.levels.young_bytes()));
            sealed += of_table.as_ref().map_or(0, |keys| *keys);
            done = done.and(of_table.map(drop));
        }
        (sealed, done)
    }

    /// Those of them that may get another group.
    fn tables_to_seal(&self) -> Vec<Arc<TableShared>> {
        let mut tables = self.tables_worth_leaves();
        tables.retain(|table| !is_held(table));
        tables
    }

    /// Whether any key was sealed.
    pub(super) fn has_groups(&self) -> bool {
        self.catalog.all().iter().any(|table| table.levels.has_groups())
    }

    fn young_keys(&self) -> u64 {
        self.catalog.all().iter().map(|table| table.levels.young_keys()).sum()
    }

    /// Bytes of leaves that the young keys of a table take, about.
    fn bytes_to_seal(&self, table: &TableShared) -> u64 {
        let (keys, bytes) = (table.levels.young_keys(), table.levels.young_bytes());
        // A key takes as much there as here, but for what the tree takes besides.
        (keys * LEAF_BYTES_OF_KEY).max(bytes / 2)
    }

    fn young_index_bytes(&self) -> u64 {
        self.catalog.all().iter().map(|table| table.levels.young_bytes()).sum()
    }

    /// As soon as the young index takes so many bytes keys are sealed.
    fn seals_from(&self) -> u64 {
        let (most, tables) = (self.options.index_bytes_max, self.catalog.all());
        let of_groups: u64 = tables.iter().map(|table| table.levels.sealed_memory_bytes()).sum();
        (most.saturating_sub(of_groups) / SEALS_FROM).max(most / SEALS_FROM_LEAST)
    }

    /// Whether the index is short of room that a seal would make.
    fn wants_seal(&self) -> bool {
        if !self.may_be_sealed() {
            return false;
        }
        let (young, from) = (self.young_index_bytes(), self.seals_from());
        if young < from {
            return false;
        }
        let LeftBySeal { young_bytes: left, growth, freed } = self.gc.left_by_seal(young);
        let has_grown = young >= left + growth.min(self.options.index_bytes_max / SEALS_AGAIN_AFTER);
        let freed = self.gc.segments.load(Ordering::Relaxed).saturating_sub(freed);
        let was_freed = freed * FREED_SHARE > u64::from(self.log.space().segment_extents());
        (has_grown || self.is_index_tight() && was_freed) && self.has_room_to_seal()
    }

    /// Extents that the next seal is to find, the more of them the nearer it is: none until the young index is halfway there. None while a seal is under way: what it took is gone from the room that there is.
    pub(super) fn leaf_extents_owed(&self) -> u32 {
        if !self.may_be_sealed() || self.is_sealing() {
            return 0;
        }
        // To look through all tables, which may be thousands, is for when it may have become another number.
        let (arena, step) = (self.arena.bytes(), (self.options.index_bytes_max / 256).max(1));
        let at = (arena / step, self.gc.keys_sealed().0);
        self.gc.leaves_owed(at, || {
            let (young, from) = (self.young_index_bytes(), self.seals_from());
            let due = ((2 * young) as f64 / from.max(1) as f64 - 1.0).clamp(0.0, 1.0);
            if due == 0.0 {
                0
            } else {
                (self.extents_to_seal(&self.tables_to_seal(), young) as f64 * due).ceil() as u32
            }
        })
    }

    /// Extents that a seal of these tables takes, about, where all young keys take `young` bytes: those that the last one left stay young. No more than an eighth of all: what finds room is sealed, if not all does.
    fn extents_to_seal(&self, tables: &[Arc<TableShared>], young: u64) -> u32 {
        let bytes: u64 = tables.iter().map(|table| self.bytes_to_seal(table)).sum();
        let leaving = young - self.gc.left_by_seal(young).young_bytes;
        let bytes = u128::from(bytes) * u128::from(leaving) / u128::from(young.max(1));
        let extents = (bytes as u64).div_ceil(self.log.leaf_bytes_max()) + 1;
        u64::from(self.log.space().room().1 / 8).min(extents).max(2) as u32
    }

    /// Whether the trees take so much, with what nobody sees any more, that it is worth a look how much of it is young: most of the time this is all that is asked.
    fn may_be_sealed(&self) -> bool {
        self.arena.bytes() >= self.options.index_bytes_max / SEALS_FROM_LEAST
            && self.options.seal
            && !self.log.tier().is_read_only()
    }

    /// Whether the index takes more than three quarters of what it may.
    pub(crate) fn is_index_tight(&self) -> bool {
        self.arena.bytes() >= self.options.index_bytes_max / 4 * 3
    }

    /// Whether the index is tight with tombstones, which cannot be sealed: they go once what they hide is freed, and collecting does that. Other keys that stay young (expiring, cached, long) stay however much is collected.
    pub(super) fn tombstones_wait_for_gc(&self) -> bool {
        let are_many = || {
            let tables = self.catalog.all();
            let tombstones: u64 = tables.iter().map(|table| table.levels.tombstones()).sum();
            tombstones >= (self.young_keys() / TOMBSTONES_SHARE).max(1)
        };
        self.options.seal && self.is_index_tight() && are_many()
    }

    /// Whether there is something to seal, and room for the leaves that nobody waits for; while the index is tight, for leaves at all.
    fn has_room_to_seal(&self) -> bool {
        let tables = self.tables_to_seal();
        if tables.is_empty() {
            return false;
        }
        let extents = self.extents_to_seal(&tables, self.young_index_bytes());
        let room = self.room();
        // What finds room is sealed, if not all does.
        let (kept, extents) = match self.is_index_tight() {
            true => (0, extents.min(2)),
            false => (self.left_to_writers(room), extents),
        };
        room.available.saturating_sub(kept) >= extents
    }

    /// Extents that leaves which nobody waits for are not written to: with fewer of them there is little room.
    fn left_to_writers(&self, room: SpaceLeft) -> u32 {
        if self.can_move() { room.low.max(self.landing_extents()) } else { room.low }
    }

    /// A new key was refused for want of room in the index: whether a seal is about to make some.
    pub(crate) fn may_gain_index_by_seal(&self) -> bool {
        // What a seal made nobody's is free once readers have gone.
        let is_garbage = || self.arena.bytes() > self.young_index_bytes() + self.options.index_bytes_max / 32;
        let waits_for_leaves = || self.may_gain_leaves() && !self.has_room_to_seal();
        self.wants_seal() || self.is_sealing() || self.waits_for_merge() || is_garbage() || waits_for_leaves()
    }

    /// Whether room in the index comes of seals: there is enough that they left, or can be sealed, or is nobody's and about to be free. Where most of it is keys that stay young
    /// (expiring, cached, long), there is no room for leaves, or all tables have as many groups as they may and none are merged, it does not. Asks nobody who asks for a move.
    pub(super) fn seals_make_room(&self) -> bool {
        if !self.options.seal || self.log.tier().is_read_only() {
            return false;
        }
        let young = self.young_index_bytes();
        if young < self.options.index_bytes_max / 4 * 3 {
            return true;
        }
        let can_seal = || {
            self.is_sealing()
                || self.has_room_to_seal()
                || self.is_merging_groups() && !self.log.has_damaged_leaf()
        };
        self.gc.left_by_seal(young).young_bytes < self.seals_from() && can_seal()
    }

    /// Whether what a new key that was refused waits for is under way: a seal, or a merge without which there is none.
    pub(crate) fn is_making_room_in_index(&self) -> bool {
        self.is_sealing() || self.waits_for_merge() && self.may_gain_leaves()
    }

    fn is_sealing(&self) -> bool {
        self.gc.sealing.try_lock().is_none()
    }

    /// Whether leaves are about to be free: a merge of groups is under way, or those that it has replaced wait for readers.
    pub(super) fn may_gain_leaves(&self) -> bool {
        self.log.has_retired_leaves() || self.is_merging_groups()
    }

    fn is_merging_groups(&self) -> bool {
        self.log.leaf_extents() > 0 && self.gc.merging_groups.try_lock().is_none()
    }
}

/// Seals.
impl Engine {
    /// Seals what may be of a table, slice by slice; returns how many keys left its young index. By one thread at a time.
    pub(crate) fn seal_table(&self, table: &Arc<TableShared>) -> Result<u64> {
        let run =
            SealRun { table, id: table.id.load(Ordering::Acquire), below: self.log.next_segment_number() };
        let (mut cursor, mut sealed, mut goes_on) = (Cursor::default(), 0, false);
        loop {
            // A move looks which of its keys were sealed since it found them, and marks their segments; no key may leave the young index between the two.
            let alone = self.gc.seal_slice.lock();
            let slice = self.seal_slice(&run, &mut cursor, goes_on)?;
            drop(alone);
            let Some(slice) = slice else { return Ok(sealed) };
            if slice.written > 0 {
                self.tell_groups_apart(table)?;
            }
            (sealed, goes_on) = (sealed + slice.sealed, goes_on || slice.written > 0);
            if slice.is_last || self.scheduler.is_stopped() {
                return Ok(sealed);
            }
        }
    }

    /// Seals the next keys of a table; `None` if it is another one by now.
    fn seal_slice(
        &self,
        run: &SealRun<'_>,
        cursor: &mut Cursor,
        goes_on: bool,
    ) -> Result<Option<SealedSlice>> {
        let &SealRun { table, id, below } = run;
        let begun = SealBegun::of(self, table);
        let mut leaves = self.leaf_writer(self.bytes_to_seal(table));
        let number = table.levels.number_of_group(goes_on);
        let (group, is_last) = self.write_group((table, number), below, cursor, &mut leaves)?;
        let written = group.entries();
        if written == 0 {
            return Ok(Some(SealedSlice { written, sealed: 0, is_last }));
        }
        let group = Arc::new(group.stamped(below));
        let add = |levels: &Levels| {
            levels.add_group(&group, number);
            true
        };
        if !self.publish_groups(table, id, leaves, add) {
            return Ok(None);
        }
        self.log.barrier();
        drop(self.log.gc_appender());
        let sealed = self.forget_sealed_keys(run, &group)?;
        drop(begun);
        self.gc.count_keys_sealed(sealed, 0);
        Ok(Some(SealedSlice { written, sealed, is_last }))
    }

    /// Step 2, for the next keys; whether they are the last.
    fn write_group(
        &self,
        (table, number): (&TableShared, u64),
        below: u64,
        cursor: &mut Cursor,
        leaves: &mut LeafWriter<'_>,
    ) -> Result<(Group, bool)> {
        let (mut writer, mut batch, mut passed) = (GroupWriter::new(leaves), ScanBatch::new(), 0);
        let (mut filter, mut hashes) = (table.levels.filter_of_groups(), Vec::with_capacity(STEP));
        loop {
            let guard = self.log.pin();
            let more = table.levels.next_young_rows(cursor, STEP, &guard, &mut batch);
            hashes.clear();
            hashes.extend(batch.iter().map(|(key, _)| hash_of(key)));
            for (at, (key, slot)) in batch.iter().enumerate() {
                let Some(slot) = sealable((key, slot), guard.view(), below) else { continue };
                if !push_or_end(writer.push_hashed(key, slot.raw(), hashes[at]))? {
                    return Ok((writer.finish()?, true));
                }
                if let (Some(filter), Some(ahead)) = (&filter, hashes.get(at + FILTER_AHEAD)) {
                    filter.prefetch(*ahead);
                }
                // Before anybody sees the group. One that is full is not right any more, and another is made of all groups.
                if filter.as_ref().is_some_and(|filter| filter.insert(hashes[at], number).is_err()) {
                    filter = None;
                    let _appender = self.log.gc_appender();
                    table.levels.set_filter(None);
                }
            }
            passed += batch.len() as u64;
            // Where nothing may be sealed moves are not to wait for that to be seen.
            let keys_max = if writer.is_empty() { LOOKED_AT_KEYS } else { SLICE_KEYS };
            if !more || passed >= keys_max || self.scheduler.is_stopped() {
                return Ok((writer.finish()?, !more));
            }
        }
    }

    /// [`Engine::tell_groups_apart`] in all tables of a store that was opened with groups.
    pub(crate) fn tell_opened_groups_apart(&self) -> Result<()> {
        let _alone = self.gc.sealing.lock();
        self.catalog.all().iter().try_for_each(|table| self.tell_groups_apart(table))
    }

    /// Sees to it that a look asks the group that has a key, and those alone that may: a filter of all groups above the lowest, if there is more than one group and none yet.
    fn tell_groups_apart(&self, table: &TableShared) -> Result<()> {
        let groups = table.levels.groups();
        if groups.newest_first().count() < 2 || groups.l0().is_empty() || groups.filter().is_some() {
            return Ok(());
        }
        let keys: u64 = groups.l0().iter().map(|of| of.group.entries()).sum();
        let most = self.filter_keys_max(table, self.filters());
        if keys > most {
            // All are asked until they are merged, which they are.
            return Ok(());
        }
        let oldest = groups.l0().last().map_or(0, |of| of.number);
        let filter = GroupFilter::for_keys((keys * 2).min(most), oldest);
        let mut is_whole = true;
        for of in groups.l0().iter().rev() {
            let insert = |key: &[u8], _| is_whole &= filter.insert(hash_of(key), of.number).is_ok();
            self.each_entry(table, &of.group, insert)?;
        }
        if self.scheduler.is_stopped() {
            return Ok(());
        }
        let _appender = self.log.gc_appender();
        let l0_of =
            |groups: &GroupLevels| groups.l0().iter().map(|of| Arc::as_ptr(&of.group)).collect::<Vec<_>>();
        // None has gone meanwhile.
        if is_whole && l0_of(&groups) == l0_of(&table.levels.groups()) {
            table.levels.set_filter(Some(filter));
        }
        Ok(())
    }

    /// Calls `visit` with each entry of a group of a table, as long as that is one, and the store is not closed.
    fn each_entry(
        &self,
        table: &TableShared,
        group: &Arc<Group>,
        mut visit: impl FnMut(&[u8], u64),
    ) -> Result<()> {
        let mut from = Vec::new();
        loop {
            let guard = self.log.pin();
            // The leaves of one that was merged, or cleared, stay as long as those who were pinned before.
            let is_there = table.levels.groups().newest_first().any(|now| Arc::ptr_eq(now, group));
            if !is_there || self.scheduler.is_stopped() {
                return Ok(());
            }
            let view = guard.view();
            let mut cursor = GroupCursor::new(group, &view);
            cursor.seek(&from).map_err(damaged_leaf)?;
            for _ in 0..MERGE_STEP {
                let Some((key, word)) = cursor.entry() else { return Ok(()) };
                visit(key, word);
                cursor.advance().map_err(damaged_leaf)?;
            }
            match cursor.entry() {
                Some((next, _)) => from = next.to_vec(),
                None => return Ok(()),
            }
        }
    }

    /// Lets everybody see groups of a table whose leaves are written, if it is the one that it was.
    fn publish_groups(
        &self,
        table: &TableShared,
        id: u32,
        leaves: LeafWriter<'_>,
        publish: impl FnOnce(&Levels) -> bool,
    ) -> bool {
        // Who clears or drops it holds all appenders.
        let _appender = self.log.gc_appender();
        let is_same = table.id.load(Ordering::Acquire) == id && table.check_there().is_ok();
        let is_published = is_same && publish(&table.levels);
        if is_published {
            leaves.keep();
        }
        is_published
    }

    /// Step 4: the young index forgets what a group has, as far as it is as it was.
    fn forget_sealed_keys(&self, run: &SealRun<'_>, group: &Group) -> Result<u64> {
        let (mut from, mut sealed, mut batch) = (Vec::new(), 0, ScanBatch::new());
        loop {
            let guard = self.log.pin();
            let view = guard.view();
            if run.is_over() {
                return Ok(sealed);
            }
            let mut cursor = GroupCursor::new(group, &view);
            cursor.seek(&from).map_err(damaged_leaf)?;
            batch.clear();
            while let Some((key, word)) = cursor.entry().filter(|_| batch.len() < STEP) {
                let slot = Slot::from_raw(word).and_then(Slot::in_log);
                // What was emptied since lies elsewhere, if not by chance where it lay.
                if let Some(slot) =
                    slot.filter(|slot| view.kept(slot.offset(), run.below) == PlaceState::There)
                {
                    batch.push(key, slot.into());
                }
                cursor.advance().map_err(damaged_leaf)?;
            }
            let entries: Vec<(&[u8], Slot)> = batch.iter().collect();
            for entries in entries.chunks(FORGOTTEN_TOGETHER) {
                let _appender = self.log.appender();
                if run.is_over() {
                    return Ok(sealed);
                }
                let mut gone = [false; FORGOTTEN_TOGETHER];
                sealed += run.table.levels.forget_sealed(entries, &guard, &mut gone[..entries.len()]);
            }
            match cursor.entry() {
                Some((next, _)) => from = next.to_vec(),
                None => return Ok(sealed),
            }
        }
    }
}

/// Whether an entry was written: false where there is no room for more.
fn push_or_end(pushed: std::result::Result<(), <LeafWriter<'_> as LeafExtents>::Error>) -> Result<bool> {
    match pushed {
        Ok(()) => Ok(true),
        Err(full) if full.kind() == ErrorKind::Full => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
impl Engine {
    /// A cycle of which everything is a victim, twice: what the first emptied is freed, and counted no more.
    pub(crate) fn seal_all_and_collect(&self) {
        for _ in 0..2 {
            self.seal_all();
            self.relocate_all();
            drop(self.seal_if_wanted().and(self.merge_groups_where_wanted()));
        }
    }

    fn relocate_all(&self) {
        self.empty_segments(|_| true);
    }

    /// Empties segments, those whose first extents are such.
    pub(crate) fn empty_segments(&self, is_victim: impl Fn(u32) -> bool) {
        let _cycle = self.gc.lock.read();
        let oldest = self.snapshots.hold_oldest();
        let oldest_sequence = oldest.as_ref().map(crate::db::pins::HeldSnapshot::sequence);
        let mut emptied = Vec::new();
        for (extent, ..) in self.log.candidates() {
            if is_victim(extent) && self.log.begin_gc(extent) {
                match self.empty_segment(extent, crate::space::Claim::Gc, oldest_sequence) {
                    Ok(victim) => emptied.push(victim),
                    Err(_) => self.log.abandon_gc(extent),
                }
            }
        }
        drop(oldest);
        self.settle(emptied).expect("no sync fails");
    }

    /// Makes some groups of L0 one, of all tables that have as many: those at these places, the newest first.
    pub(crate) fn merge_in_l0_now(&self, places: std::ops::Range<usize>) {
        let _alone = self.gc.merging_groups.lock();
        for table in self.catalog.all() {
            let groups = table.levels.groups();
            if let Some(l0) = groups.l0().get(places.clone()) {
                let which = crate::group::MergedGroups::OfL0(l0[l0.len() - 1].number..=l0[0].number);
                self.merge_some_groups(&table, &groups, &which).expect("groups can be merged");
            }
        }
        self.log.free_retired_leaves();
    }

    /// Seals what may be of all tables, whether there is need or not, and merges the groups of each if there are more than so many.
    pub(crate) fn seal_now(&self, most: usize) -> u64 {
        let mut sealed = 0;
        for table in self.catalog.all() {
            let alone = self.gc.sealing.lock();
            sealed += self.seal_table(&table).expect("a group can be written");
            drop(alone);
            let _alone = self.gc.merging_groups.lock();
            if table.levels.groups().l0().len() > most {
                self.merge_groups(&table).expect("groups can be merged");
            }
        }
        self.log.free_retired_leaves();
        sealed
    }
}

#[cfg(all(test, shuttle))]
mod shuttle;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
