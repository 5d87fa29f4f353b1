//! Opening a store whose process was killed by the last checkpoint of its index: what was written since is replayed over that.
//!
//! Owns what is left of a checkpoint when segments have been freed and begun since, and what that says of a key. Promises the rows that a walk over all of the log would find, and counts of older records that are not lower; and that nothing is changed
//! where a checkpoint does not count. Must not know when one is taken (`saved_index/checkpoint.rs`).
//!
//! *All that was written since is newer.* Whatever a segment has that was begun since came after the last of all slots that the checkpoint has: writes, and copies, which are published over the slot that they were made from. So these segments are walked as ever, and a key of theirs is resolved as ever
//! ([`Recovery::fill`]), with what the checkpoint has of it as one version more below.
//!
//! *What was freed since*: a slot of the checkpoint that leads into a segment which is not there any more is gone. If the key has no record that was written since it has none at all, or its row is in sorted tables: as long as an older record of a key is in the log its newest is. Entries of groups are told from one
//! another by that themselves ([`LogView::kept`](crate::log::LogView::kept)), but of those that counted some count no more, and are taken off the rows of their table.
//!
//! *How many older records* a key has is what the checkpoint said, and those that were written since, less those that were freed since, which were written down (`log/freed.rs`). If something could not be, it may be too much, by which rows stay in the log, and tombstones: such a store saves no index when it is closed, and takes no
//! checkpoint. It is walked when it is opened next.

use std::collections::{BTreeMap, HashMap, HashSet};

use hedgerow_device::share_work;

use super::checkpoint::SMALL_INDEX_BYTES;
use super::{GoneKeys, SavedSegment, Sections, SegmentAt, groups};
use crate::Result;
use crate::db::engine::{Engine, TableShared};
use crate::db::recover::{BasePlace, BaseVersion, BaseVersions};
use crate::group::GroupLevels;
use crate::index::{LogSlot, Slot};
use crate::levels::damaged_leaf;
use crate::log::saved::SinceCheckpoint;
use crate::log::{FreedRecords, Log, LogView, OpenState, PlaceState};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Segments that were freed since, by extent: the numbers that they had.
#[derive(Debug)]
struct FreedSegments(HashMap<u32, u64>);

impl FreedSegments {
    fn of(saved: &[SavedSegment], there: &[SavedSegment]) -> FreedSegments {
        let mut freed = HashMap::new();
        for segment in saved {
            freed.extend(segment.extents().map(|extent| (extent, segment.segment_number())));
        }
        there.iter().flat_map(SavedSegment::extents).for_each(|extent| {
            freed.remove(&extent);
        });
        FreedSegments(freed)
    }

    fn numbers(&self) -> HashSet<u64> {
        self.0.values().copied().collect()
    }

    /// Whether an entry of a group with this stamp counted that led into an extent, and does no more.
    fn has(&self, extent: u32, stamp: u64) -> bool {
        self.0.get(&extent).is_some_and(|number| *number < stamp)
    }
}

/// What a checkpoint has of keys.
struct CheckpointedKeys<'e> {
    log: &'e Log,
    freed: FreedSegments,
    /// By table, the young keys whose records were freed.
    gone: BTreeMap<u32, HashMap<Vec<u8>, LogSlot>>,
    /// What was freed, record by record.
    records: FreedRecords,
    /// What was written since is in segments of this number, and of higher ones.
    below: u64,
}

impl CheckpointedKeys<'_> {
    fn extent_of(&self, offset: u64) -> u32 {
        (offset / self.log.extent_bytes()) as u32
    }

    /// The slot that a key had while it was young, if its record was freed since.
    fn gone(&self, table: &TableShared, key: &[u8]) -> Option<LogSlot> {
        if self.gone.is_empty() {
            return None;
        }
        self.gone.get(&table.id.load(Ordering::Relaxed))?.get(key).copied()
    }

    /// How many of the young keys whose records were freed have an entry in a group that leads to a record which is there. It did not count, but is taken for one that does by who stores over it: something was written of such a key, for as long as an older record of it is there its newest is.
    fn count_uncovered(&self, table: &TableShared) -> Result<u64> {
        let guard = self.log.pin();
        let (groups, view) = (table.levels.groups(), guard.view());
        let mut uncovered = 0;
        for key in self.gone.get(&table.id.load(Ordering::Relaxed)).into_iter().flat_map(HashMap::keys) {
            let look = groups.get(key, &view).map_err(damaged_leaf)?;
            let slot = look.slot.and_then(Slot::from_raw).and_then(Slot::in_log);
            let is_there = |slot: LogSlot| view.kept(slot.offset(), look.stamp) == PlaceState::There;
            uncovered += u64::from(slot.is_some_and(is_there));
        }
        Ok(uncovered)
    }

    fn freed_of(&self, table: &TableShared, key: &[u8]) -> usize {
        if self.records.is_empty() {
            return 0;
        }
        self.records.of(self.log.freed_hash(table.id.load(Ordering::Relaxed), key))
    }

    /// Whether a slot leads to what was there at the checkpoint.
    fn is_from_before(&self, slot: Slot) -> bool {
        slot.in_log().is_some_and(|slot| self.log.segment_number(self.extent_of(slot.offset())) < self.below)
    }

    /// The sum of what `visit` makes of each extent of leaves of a table, which it is told by the place of its group, counted from the newest, and its own there.
    fn sum_of_extents(
        &self,
        table: &TableShared,
        threads: usize,
        visit: impl Fn(&GroupLevels, (usize, usize)) -> Result<u64> + Sync,
    ) -> Result<u64> {
        let groups = table.levels.groups();
        let places: Vec<(usize, usize)> = groups
            .newest_first()
            .enumerate()
            .flat_map(|(at, group)| (0..group.extents().len()).map(move |extent| (at, extent)))
            .collect();
        let (next, gone, failure) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(Ok(())));
        let work = || {
            while let Some(&place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
                match visit(&groups, place) {
                    Ok(more) => drop(gone.fetch_add(more, Ordering::Relaxed)),
                    Err(error) => {
                        *failure.lock() = Err(error);
                        return;
                    }
                }
            }
        };
        share_work("open", threads.min(places.len()), work);
        failure.into_inner().map(|()| gone.into_inner())
    }

    /// How many entries of the groups of a table counted and do no more: of those whose records were freed, each that is the newest of its key, which was not young.
    fn count_gone(&self, table: &TableShared, threads: usize) -> Result<u64> {
        self.sum_of_extents(table, threads, |groups, place| self.count_gone_in(table, groups, place))
    }

    fn count_gone_in(
        &self,
        table: &TableShared,
        groups: &GroupLevels,
        (at, extent): (usize, usize),
    ) -> Result<u64> {
        let Some(group) = groups.newest_first().nth(at) else { return Ok(0) };
        let (guard, mut key, mut gone) = (self.log.pin(), Vec::new(), 0);
        let view = guard.view();
        group
            .each_entry_of(extent, &view, |word, key_into| {
                let Some(slot) = Slot::from_raw(word).and_then(Slot::in_log) else { return Ok(()) };
                if !self.freed.has(self.extent_of(slot.offset()), group.stamp()) {
                    return Ok(());
                }
                key_into(&mut key);
                let was_young =
                    table.levels.young_version(&key, &guard).is_some() || self.gone(table, &key).is_some();
                gone += u64::from(!was_young && groups.is_newest(at, &key, &view)?);
                Ok(())
            })
            .map_err(damaged_leaf)?;
        Ok(gone)
    }
}

impl BaseVersions for CheckpointedKeys<'_> {
    fn of_key(&self, table: &TableShared, key: &[u8]) -> Result<Option<BaseVersion>> {
        let guard = self.log.pin();
        let version = |slot| BaseVersion { slot, freed: self.freed_of(table, key) };
        if let Some(slot) = table.levels.young_version(key, &guard).and_then(Slot::in_log) {
            return Ok(Some(version(slot)));
        }
        if let Some(slot) = self.gone(table, key) {
            return Ok(Some(version(slot)));
        }
        if !table.levels.has_groups() {
            return Ok(None);
        }
        let view: LogView<'_> = guard.view();
        let look = table.levels.groups().get(key, &view).map_err(damaged_leaf)?;
        let Some(slot) = look.slot.and_then(Slot::from_raw).and_then(Slot::in_log) else { return Ok(None) };
        Ok(match view.kept(slot.offset(), look.stamp) {
            PlaceState::There => Some(version(slot)),
            PlaceState::Gone(_) if self.freed.has(self.extent_of(slot.offset()), look.stamp) => {
                Some(version(slot))
            }
            PlaceState::Gone(_) => None,
        })
    }

    fn of_place(&self, offset: u64) -> BasePlace {
        let extent = self.extent_of(offset);
        // A place that is not verified may be anywhere.
        let number = self.log.known_segment_number(extent);
        match self.freed.has(extent, u64::MAX) || number.is_none_or(|number| number >= self.below) {
            true => BasePlace::Freed { below: self.records.below(offset) },
            false => BasePlace::There,
        }
    }
}

/// What was freed of keys that nothing was written of since.
impl Engine {
    /// Takes what was freed since off the counts of older records, of keys of which nothing was written since.
    fn count_freed_of_others(&self, keys: &CheckpointedKeys<'_>, threads: usize) -> Result<()> {
        if keys.records.is_empty() {
            return Ok(());
        }
        for table in self.catalog.all() {
            let guard = self.log.pin();
            let mut fewer = Vec::new();
            table.levels.each_young_version(&guard, |key, slot| {
                if slot.older_versions() > 0 && keys.is_from_before(slot) {
                    fewer.push(key.to_vec());
                }
                Ok(())
            })?;
            drop(guard);
            fewer.iter().for_each(|key| self.count_freed_of(keys, &table, key));
            keys.sum_of_extents(&table, threads, |groups, (at, extent)| {
                self.count_freed_of_leaves(keys, &table, (groups, at), extent)
            })?;
        }
        Ok(())
    }

    /// The same of keys that only a group has, in one extent.
    fn count_freed_of_leaves(
        &self,
        keys: &CheckpointedKeys<'_>,
        table: &TableShared,
        (groups, at): (&GroupLevels, usize),
        extent: usize,
    ) -> Result<u64> {
        let Some(group) = groups.newest_first().nth(at) else { return Ok(0) };
        let (guard, mut key) = (self.log.pin(), Vec::new());
        let view = guard.view();
        let visit = |word, key_into: &dyn Fn(&mut Vec<u8>)| {
            let slot = Slot::from_raw(word).and_then(Slot::in_log).filter(|slot| slot.older_versions() > 0);
            let Some(slot) = slot else { return Ok(()) };
            if view.kept(slot.offset(), group.stamp()) != PlaceState::There {
                return Ok(());
            }
            key_into(&mut key);
            if table.levels.young_version(&key, &guard).is_none() && groups.is_newest(at, &key, &view)? {
                self.count_freed_of(keys, table, &key);
            }
            Ok(())
        };
        group.each_entry_of(extent, &view, visit).map_err(damaged_leaf)?;
        Ok(0)
    }

    fn count_freed_of(&self, keys: &CheckpointedKeys<'_>, table: &TableShared, key: &[u8]) {
        let freed = keys.freed_of(table, key);
        if freed > 0 {
            let (guard, id) = (self.log.pin(), table.id.load(Ordering::Relaxed));
            let freed = freed.min(usize::from(Slot::OLDER_VERSIONS_SATURATED - 1)) as u8;
            self.subtract_freed((table, id), key, freed, &guard);
        }
    }
}

impl Engine {
    /// Opens the store by a checkpoint of its index; false, and nothing is changed, if it has none that counts.
    pub(in crate::db) fn open_checkpointed(&self, found: &OpenState, threads: usize) -> Result<bool> {
        let may =
            self.options.seal && !self.merges_in_place && self.options.index_checkpoint_bytes != u64::MAX;
        if !may || found.clean || found.power_cut {
            return Ok(false);
        }
        let Some(pieces) = self.log.checkpointed_index() else { return Ok(false) };
        let held = self.log.hold_pieces(&pieces);
        if !self.are_whole(&pieces, threads) {
            return Ok(false);
        }
        let Some(sections) = Sections::of(&pieces) else { return Ok(false) };
        let lacks_keys = self.may_move() && !sections.keys_known && !sections.dropped.is_empty();
        let is_of_table = |id: &u32| self.catalog.by_id(*id).is_some();
        if lacks_keys || !sections.groups.keys().all(is_of_table) {
            return Ok(false);
        }
        let Some((below, journal)) = sections.checkpoint else { return Ok(false) };
        let split = self.log.since_checkpoint(&sections.segments, below);
        let Some(SinceCheckpoint { there, since }) = split else { return Ok(false) };
        // What is replayed over it stays in memory, where a walk would seal it.
        if since.len() as u64 > self.since_checkpoint_max() {
            return Ok(false);
        }
        let freed = FreedSegments::of(&sections.segments, &there);
        let numbers = freed.numbers();
        let records = self.log.read_freed(journal, below, |number| numbers.contains(&number));
        // One was freed before it was written down, by a process that ended there.
        if !numbers.iter().all(|number| records.has(*number)) {
            return Ok(false);
        }
        // Before anything is given to a table: one whose fields were changed since is another then.
        let walked = self.recovery().walk(&OpenState { segments: since, ..*found }, threads)?;
        if walked.index_bytes() > self.options.index_bytes_max.max(SMALL_INDEX_BYTES) {
            return Ok(false);
        }
        let Some((groups, leaves)) = groups::take_over(&sections.groups, &self.log, threads) else {
            return Ok(false);
        };
        let in_use: HashSet<u32> = there.iter().flat_map(SavedSegment::extents).collect();
        let segment_at = |offset| {
            let extent = (offset / self.log.extent_bytes()) as u32;
            match (in_use.contains(&extent), freed.has(extent, u64::MAX)) {
                (true, _) => SegmentAt::There,
                (false, true) => SegmentAt::Freed,
                (false, false) => SegmentAt::Nowhere,
            }
        };
        let Some(built) = self.build_saved(&sections, threads, &segment_at) else { return Ok(false) };
        // From here on the checkpoint counts: what is wrong now is wrong with the log.
        let mut ends = self.log.take_over(&there);
        for (extent, offsets) in sections.dropped.into_iter().filter(|(extent, _)| in_use.contains(extent)) {
            self.gc.record_all_dropped(extent, offsets);
        }
        for (extent, hashes) in
            sections.dropped_keys.into_iter().filter(|(extent, _)| in_use.contains(extent))
        {
            hashes.into_iter().for_each(|hash| self.gc.will_drop_key(extent, hash));
        }
        let gone = self.recovery().take_over_levels(built, groups)?;
        let gone = gone.into_iter().map(|(id, keys): (u32, GoneKeys)| (id, keys.into_iter().collect()));
        let keys = CheckpointedKeys { log: &self.log, freed, gone: gone.collect(), records, below };
        if !numbers.is_empty() {
            for table in self.catalog.all().iter().filter(|table| table.levels.has_groups()) {
                table.levels.count_moved(keys.count_gone(table, threads)?);
                table.levels.count_uncovered(keys.count_uncovered(table)?);
            }
        }
        let (walked, last) = self.recovery().fill(walked, Some(&keys), threads)?;
        self.count_freed_of_others(&keys, threads)?;
        self.log.rewrite_before_sync(found, &ends, &groups::leaf_ranges(&sections.groups));
        let last = ends.iter().map(|end| end.max_sequence).fold(last, u64::max);
        ends.extend(walked);
        self.recovery().end(ends, last, found)?;
        leaves.keep();
        held.release();
        self.index_was_checkpointed.store(true, Ordering::Relaxed);
        Ok(true)
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
