//! A checkpoint of the index: what an opening after a kill goes by, so that it reads what was written since and not all of the log.
//!
//! Owns what is in one, when one is taken, and when none counts. Promises that it says what the store was at one moment, at which nobody wrote: all that came later is in segments that were begun later. Must not know how a store is opened by it
//! (`saved_index/since.rs`).
//!
//! It has what the index of a store that is closed has (`saved_index.rs`): the segments and what is obsolete in them, the young level, and where the leaves of groups are. It is taken where keys are sealed, while few are in memory:
//!
//! 1. Cycles of gc are kept out, until it counts, and victims that wait for readers are freed. The catalog in the root is whole. Nobody waits for a cycle that is under way: the thread of gc takes it behind that one.
//! 2. All appenders are locked: their open segments end, and what is young is copied. Writers wait for as long as that takes, some 40 ns a key.
//! 3. With all of them unlocked it is written, and named. What the one before named may be free then.
//!
//! Leaves of groups that are merged, and its own pieces, are not free before another counts, or none does: for [want of room](Engine::forget_checkpoint_for_room), or because a table is cleared or dropped, of which the segments from before say nothing.
//!
//! What is freed from then on of the segments that there were is written down (`log/freed.rs`).
//!
//! Nothing of it is made durable: after a killed process every store is there, and after a power cut the log is walked ([39](../../../../../docs/decisions/0039-opening-after-a-kill.md)).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{
    CHECKPOINT, DROPPED, DROPPED_KEYS, KEYS_KNOWN, SEGMENTS, SectionWriter, UNCOUNTED_MAX, UNCOUNTED_ONE_IN,
};
use crate::Result;
use crate::db::engine::{Engine, TableShared};
use crate::group::GroupLevels;
use crate::index::{LogSlot, Slot};
use crate::log::LogGuard;
use crate::log::saved::{BegunCheckpoint, CheckpointedSegments, NamedLeaves, OPEN_SEGMENTS_MAX};
use crate::sync::atomic::Ordering;

/// With more keys in memory writers would wait for too long: 50 ms, about.
const YOUNG_KEYS_MAX: u64 = 1 << 20;
/// Or where these take so much of the index.
const YOUNG_BYTES_MAX: u64 = 128 << 20;
/// So much is written between two at most for each byte that the index may take: half of what it has room for, of records
/// of a hundred bytes and more.
const BYTES_PER_INDEX_BYTE: u64 = 2;
/// Extents that a checkpoint may keep for itself as long as it likes: pieces and the journal.
const HELD_EXTENTS_MAX: u32 = 64;
/// To go beyond an index that is smaller, by so much at most, for as long as keys are sealed, is nothing.
pub(super) const SMALL_INDEX_BYTES: u64 = 16 << 20;
/// What a key takes in it, besides a part of its bytes.
const KEY_BYTES: u64 = 24;
/// One that was not to be had is tried again when this share of what is written between two has been.
const AGAIN_SHARE: u64 = 4;
/// So many segments are begun from one to the next for each that one ends, which are half empty: else the next would be
/// due as soon as all writers go on.
const BEGUN_PER_END: u64 = 8;
/// One after which so many times as much was written as from one to the next is of no use any more: what is replayed stays in memory.
const SINCE_TIMES: u64 = 4;
/// So often, and so far apart, is looked whether readers have let go of what was emptied.
const READERS_LOOKS: u32 = 20;
const READERS_PAUSE: Duration = Duration::from_millis(1);

/// How many segments are begun from a checkpoint to the next, of which those that it ended count little.
fn interval(extents: u64, ended: u64) -> u64 {
    extents.max(ended * BEGUN_PER_END)
}

/// What is copied of a table.
struct CheckpointedTable {
    id: u32,
    /// One behind the other, and of each its length and its slot.
    keys: Vec<u8>,
    entries: Vec<(u32, LogSlot)>,
    groups: Arc<GroupLevels>,
    /// That groups alone have.
    rows: u64,
}

/// The store at one moment.
struct CheckpointedStore<'l> {
    segments: CheckpointedSegments,
    dropped: Vec<(u32, Vec<u64>)>,
    dropped_keys: Vec<(u32, Vec<u64>)>,
    tables: Vec<CheckpointedTable>,
    leaves: NamedLeaves<'l>,
    forgotten_before: u64,
}

/// When.
impl Engine {
    /// Whether so much was written since the last checkpoint, in a log of that length, that one is wanted, and few enough keys are in memory.
    pub(crate) fn is_index_checkpoint_due(&self) -> bool {
        let Some(extents) = self.checkpoint_extents() else { return false };
        u64::from(self.log.space().segment_extents()) >= extents
            && self.log.next_segment_number() >= self.next_checkpoint.load(Ordering::Relaxed)
            && self.young_are_few()
    }

    fn young_are_few(&self) -> bool {
        let (mut keys, mut bytes) = (0, 0);
        for table in self.catalog.all() {
            keys += table.levels.young_keys();
            bytes += table.levels.young_bytes();
        }
        // What left the index uncounted is copied, too.
        keys + self.gc.dropped_count() <= YOUNG_KEYS_MAX && bytes <= YOUNG_BYTES_MAX
    }

    /// How many extents are written from one checkpoint to the next; `None` where there are none.
    fn checkpoint_extents(&self) -> Option<u64> {
        // What is merged in place leaves no record that would be met.
        let may = self.options.seal && !self.merges_in_place && !self.log.tier().is_read_only();
        let bytes = self.options.index_checkpoint_bytes;
        let may = may && bytes != u64::MAX && self.log.has_extents_for_pieces();
        // What is written since is replayed into the index, which has to have room for it.
        let index_bytes_max = self.options.index_bytes_max.max(SMALL_INDEX_BYTES);
        let bytes = bytes.min(index_bytes_max.saturating_mul(BYTES_PER_INDEX_BYTE));
        may.then(|| bytes.div_ceil(self.log.extent_bytes()).max(1))
    }

    /// As many segments as may have been begun since a checkpoint that counts, however many were open when it was taken.
    pub(super) fn since_checkpoint_max(&self) -> u64 {
        let extents = self.options.index_checkpoint_bytes.div_ceil(self.log.extent_bytes());
        interval(extents, OPEN_SEGMENTS_MAX).saturating_mul(SINCE_TIMES)
    }

    /// None is due before so many segments were begun.
    fn put_checkpoint_off(&self, from: u64, extents: u64, ended: u64) {
        self.next_checkpoint.store(from + interval(extents, ended), Ordering::Relaxed);
    }

    /// Takes a checkpoint if one is due, unless a cycle of gc is under way; whether one was taken. Nobody holds a lock of gc who calls this.
    ///
    /// # Errors
    /// What the tier refuses.
    pub(crate) fn checkpoint_index_if_due(&self) -> Result<bool> {
        let Some(extents) = self.checkpoint_extents() else { return Ok(false) };
        self.log.forget_outlived_checkpoint();
        // What a killed process left is made durable first: by that the store counts as opened once more.
        if !self.is_index_checkpoint_due() || self.log.awaits_first_sync() {
            return Ok(false);
        }
        // What is freed is written down from the moment on that it counts: so nothing is before.
        let Some(_alone) = self.gc.lock.try_write() else { return Ok(false) };
        self.put_checkpoint_off(self.log.next_segment_number(), extents / AGAIN_SHARE + 1, 0);
        self.checkpoint_index(extents)
    }

    /// No checkpoint counts from now on if extents that it alone has are what writers lack: where half of what is low is gone.
    pub(crate) fn forget_checkpoint_for_room(&self) {
        let room = self.room();
        if room.available < room.low / 2 {
            self.forget_checkpoint_that_holds(room.low - room.available);
        }
    }

    /// A checkpoint is due at once if the one that counts keeps more than half of all leaves, which were merged since: where
    /// nobody writes the next would be far off.
    pub(crate) fn renew_checkpoint_that_holds_much(&self) {
        let alone = self.log.extents_of_checkpoint_alone();
        if alone > HELD_EXTENTS_MAX && u64::from(alone) * 2 > u64::from(self.log.leaf_extents()) {
            self.next_checkpoint.store(0, Ordering::Relaxed);
        }
    }

    /// No checkpoint counts from now on if it alone has some of so many extents as somebody wants; whether any are free by that, or will be as soon as readers let go.
    pub(crate) fn forget_checkpoint_that_holds(&self, wanted: u32) -> bool {
        let holds = wanted > 0 && self.log.extents_of_checkpoint_alone() > 0;
        if holds {
            self.log.forget_checkpoint();
            self.log.free_retired_leaves();
        }
        holds
    }
}

/// Taking one.
impl Engine {
    /// Takes a checkpoint, with cycles of gc kept out; false if there is none to be had now.
    ///
    /// # Errors
    /// What the tier refuses.
    fn checkpoint_index(&self, extents: u64) -> Result<bool> {
        if !self.gc.knows_counts() || self.log.has_damaged_leaf() || !self.has_room_for_checkpoint() {
            return Ok(false);
        }
        self.catalog.checkpoint(&self.log)?;
        let Some(store) = self.checkpointed_store(extents)? else { return Ok(false) };
        let (below, ended) = (store.segments.below, store.segments.ended);
        self.put_checkpoint_off(below, extents / AGAIN_SHARE + 1, ended);
        let outlived_at = below + interval(extents, ended).saturating_mul(SINCE_TIMES);
        let counts = self.write_checkpoint(store, outlived_at)?;
        if counts {
            self.put_checkpoint_off(below, extents, ended);
        }
        self.index_checkpoints.fetch_add(u64::from(counts), Ordering::Relaxed);
        Ok(counts)
    }

    /// Whether there is room for pieces and a journal beside what writers are to have: else segments would be ended in vain.
    fn has_room_for_checkpoint(&self) -> bool {
        let tables = self.catalog.all();
        let bytes =
            |table: &Arc<TableShared>| table.levels.young_bytes() + table.levels.young_keys() * KEY_BYTES;
        let bytes = tables.iter().map(bytes).sum::<u64>() + self.gc.dropped_count() * 16;
        // The journal and what is begun of a piece; and a segment for each that ends.
        let extents = bytes.div_ceil(self.log.leaf_bytes_max()) + 2 + self.log.open_segments();
        let room = self.room();
        u64::from(room.available.saturating_sub(room.low)) >= extents
    }

    /// Steps 1 and 2.
    fn checkpointed_store(&self, extents: u64) -> Result<Option<CheckpointedStore<'_>>> {
        for _ in 0..READERS_LOOKS {
            self.free_what_waits_for_readers()?;
            if self.gc.knows_all() {
                break;
            }
            self.epoch.collect();
            self.scheduler.sleep(READERS_PAUSE);
        }
        let look = || {
            let (mut writers, mut gc) = self.log.every_appender();
            let forgotten_before = self.log.checkpoints_forgotten();
            let may = self.gc.knows_all() && self.log.check_writable().is_ok() && self.young_are_few();
            if !may || self.log.has_damaged_leaf() || self.log.are_segments_busy() {
                return Ok(None);
            }
            let guard = self.log.pin();
            let tables = self.checkpointed_tables(&guard)?;
            // As of a store that is closed: a walk counts them anew. Nothing changes that soon, so that it is not tried again before the next is due.
            if have_many_uncounted(&tables) {
                self.put_checkpoint_off(self.log.next_segment_number(), extents, self.log.open_segments());
                return Ok(None);
            }
            let Some(segments) = self.log.segments_at_checkpoint(&mut writers, &mut gc) else {
                return Ok(None);
            };
            let (mut dropped, mut dropped_keys) = (Vec::new(), Vec::new());
            self.gc.each_dropped(|extent, offsets| add_list(&mut dropped, extent, offsets))?;
            self.gc.each_dropped_key(|extent, hashes| add_list(&mut dropped_keys, extent, hashes))?;
            let groups = tables.iter().flat_map(|table| table.groups.newest_first());
            let extents = groups.flat_map(|group| group.extents());
            let leaves = self.log.name_leaves(extents.map(|extent| extent.place()));
            Ok(Some(CheckpointedStore { segments, dropped, dropped_keys, tables, leaves, forgotten_before }))
        };
        self.catalog.while_stored(look).unwrap_or(Ok(None))
    }

    fn checkpointed_tables(&self, guard: &LogGuard<'_>) -> Result<Vec<CheckpointedTable>> {
        let of_table = |table: &Arc<TableShared>| {
            let levels = &table.levels;
            let young = levels.young_keys() as usize;
            let (mut keys, mut entries) = (Vec::with_capacity(young * 24), Vec::with_capacity(young));
            levels.each_young_version(guard, |key, slot| {
                keys.extend_from_slice(key);
                entries.push((key.len() as u32, self.cache.log_slot(slot, guard)));
                Ok(())
            })?;
            let id = table.id.load(Ordering::Acquire);
            Ok(CheckpointedTable { id, keys, entries, groups: levels.groups(), rows: levels.sealed_rows() })
        };
        self.catalog.all().iter().map(of_table).collect()
    }

    /// Step 3; whether it counts.
    fn write_checkpoint(&self, store: CheckpointedStore<'_>, outlived_at: u64) -> Result<bool> {
        let CheckpointedStore { segments, dropped, dropped_keys, tables, leaves, forgotten_before } = store;
        let Some(journal) = self.log.begin_freed_journal(segments.below)? else { return Ok(false) };
        let mut sections = SectionWriter::new(self.log.write_checkpoint());
        let head = sections.entry((CHECKPOINT, 0), 12)?;
        head.extend(segments.below.to_le_bytes());
        head.extend(journal.extent().to_le_bytes());
        for segment in &segments.segments {
            segment.encode(sections.entry((SEGMENTS, 0), segment.bytes())?);
        }
        dropped.iter().try_for_each(|(extent, offsets)| sections.list(DROPPED, *extent, offsets))?;
        if self.may_move() {
            sections.entry((KEYS_KNOWN, 0), 0)?;
        }
        dropped_keys.iter().try_for_each(|(extent, hashes)| sections.list(DROPPED_KEYS, *extent, hashes))?;
        for table in &tables {
            sections.groups(table.id, &table.groups, table.rows)?;
            let mut rest = table.keys.as_slice();
            for &(bytes, slot) in &table.entries {
                let (key, behind) = rest.split_at(bytes as usize);
                sections.version(table.id, key, *slot)?;
                rest = behind;
            }
        }
        let mut uncounted: HashMap<u32, Vec<u64>> = dropped.into_iter().collect();
        uncounted.values_mut().for_each(|offsets| offsets.sort_unstable());
        let begun = BegunCheckpoint { leaves, journal, uncounted, outlived_at };
        let written = sections.finish_checkpoint(begun)?;
        let counts = self.log.count_checkpoint(written, forgotten_before);
        self.log.free_retired_leaves();
        Ok(counts)
    }
}

/// Whether the counts of so many keys have come to their end that a walk, which counts anew, is worth more. Keys in groups have counts that have not.
fn have_many_uncounted(tables: &[CheckpointedTable]) -> bool {
    let is_saturated = |(_, slot): &&(u32, LogSlot)| slot.older_versions() == Slot::OLDER_VERSIONS_SATURATED;
    let of_table = |table: &CheckpointedTable| table.entries.iter().filter(is_saturated).count() as u64;
    let saturated = tables.iter().map(of_table).sum::<u64>();
    let keys = tables.iter().map(|table| table.rows + table.entries.len() as u64).sum::<u64>();
    saturated > UNCOUNTED_MAX.max(keys / UNCOUNTED_ONE_IN)
}

#[expect(clippy::unnecessary_wraps, reason = "what visits lists may fail")]
fn add_list(lists: &mut Vec<(u32, Vec<u64>)>, extent: u32, words: &[u64]) -> Result<()> {
    lists.push((extent, words.to_vec()));
    Ok(())
}
