//! The sweeper: rows that have expired leave the store.
//!
//! Owns: their removal, in whichever way they are found, and the pace of it. Promises: where the rows of a segment
//! expire about together they are gone within a second, while the store can be written to and half a processor is left for
//! it; where they do not it takes an eighth of a processor and as long as that takes; writers are kept waiting for the removal
//! of [`GROUP`] rows at most. Must not know: how it is told what has expired (`log/due.rs`).
//!
//! An expired row that no older record of its key is left of needs no tombstone. The record itself says that there is no
//! row: after a crash it is found again, and swept again. It leaves the index, and is counted nowhere from then on, as a
//! droppable tombstone. Any other row is deleted as callers would. `docs/decisions/0021-expiry.md` has the rest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::db::append::IndexEntry;
use crate::db::counters::Count;
use crate::db::deleted::{TombstoneWalk, is_row};
use crate::db::engine::{Engine, TableShared};
use crate::db::read::GROUP;
use crate::db::shared_table::expiring::Pass;
use crate::db::write::{Edit, Step};
use crate::index::{Decision, LogSlot, ScanBatch, Tag};
use crate::log::Appender;
use crate::log::format::Record;
use crate::sync::atomic::Ordering;
use crate::{ErrorKind, Result};

/// How often the sweeper looks.
const ROUND: Duration = Duration::from_millis(100);
/// It rests when it has been at work so long.
const PIECE: Duration = Duration::from_millis(2);
/// For as long as it was at work, where one record in so many was removed; else so many times as long.
const WORTH_SHARE: usize = 16;
const RESTS_FOR_FEW: u32 = 7;
/// Records that could not be removed, for want of room, are tried again after this.
const AGAIN_MS: u64 = 1000;

/// Slots that one call looks at in a walk over the index.
const SLOTS: usize = 2000;

/// What a look through a segment came to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Swept {
    records: usize,
    pub(crate) removed: usize,
}

/// An expired row that takes more than to leave the index.
type Late = (Arc<TableShared>, Vec<u8>);

impl Engine {
    /// The sweeper's thread.
    pub(crate) fn sweep_loop(&self) {
        if self.log.awaits_first_sync() {
            // After a killed process: what it left in the page cache becomes durable now, off the path of opening. Most of it before
            // the sync, for which others may wait. That comes even where all had been durable before: by it the store counts as opened.
            while !self.scheduler.is_stopped() && self.log.rewrite_forgotten().is_ok_and(|more| more) {}
            drop(self.log.persist_checkpointed(self.log.last_sequence()));
        }
        let mut passes = HashMap::new();
        while self.scheduler.sleep(ROUND) && self.log.check_writable().is_ok() {
            self.sweep_due();
            self.sweep_all(&mut passes);
            // A failure closes the log for writing, and this thread's next look at it ends it.
            drop(self.catalog.checkpoint_if_due(&self.log));
            if self.runs.remove_dropped() {
                // A move may have failed for want of what somebody held.
                self.gc.may_move_again();
            }
        }
    }

    /// Removes what has expired in segments that are due, in a store without threads.
    pub(crate) fn sweep_due_now(&self) {
        for due in self.log.due(self.clock.now_ms()) {
            self.sweep_segment(due.extent);
        }
    }

    /// Removes all that has expired in the log, by a walk over the tables of which rows expire.
    pub(crate) fn sweep_now(&self) {
        self.sweep_due_now();
        for table in self.catalog.all().iter().filter(|table| table.expiry.rows() > 0) {
            let mut pass = Pass::default();
            while {
                // What was refused is found again.
                drop(self.sweep(table, &mut pass));
                !pass.cursor.is_at_start()
            } {}
        }
    }

    /// Sweeps all segments that are due, with rests in between.
    pub(crate) fn sweep_due(&self) {
        let mut owed = Duration::ZERO;
        for due in self.log.due(self.clock.now_ms()) {
            if self.scheduler.is_stopped() {
                return;
            }
            let began_ns = self.clock.monotonic_ns();
            let swept = self.sweep_segment(due.extent);
            let rests = if swept.removed * WORTH_SHARE >= swept.records { 1 } else { RESTS_FOR_FEW };
            owed += Duration::from_nanos(self.clock.monotonic_ns() - began_ns) * rests;
            if owed >= PIECE {
                if !self.scheduler.sleep(owed) || self.log.check_writable().is_err() {
                    return;
                }
                owed = Duration::ZERO;
            }
        }
    }

    /// Removes what has expired in the segment that `extent` is part of.
    pub(crate) fn sweep_segment(&self, extent: u32) -> Swept {
        let (mut swept, mut late, mut left) = (Swept::default(), Vec::new(), Vec::new());
        // Taken before the first row is removed, which may be under way for a while.
        let now_ms = self.clock.now_ms();
        let cycle = self.gc.lock.read();
        let guard = self.epoch.pin();
        let Some(mut sweeping) = self.log.begin_sweep(extent, now_ms) else { return swept };
        let (extent, after_ms) = (sweeping.extent, sweeping.after_ms);
        let mut group: SmallVec<[Record<'_>; GROUP]> = SmallVec::new();
        // What lies behind a record that does not parse is left to the walks over the index.
        while let Ok(Some(record)) = sweeping.walk.next_record() {
            swept.records += 1;
            match record.expires_at_ms() {
                Some(at_ms) if at_ms > now_ms => left.push(at_ms),
                Some(at_ms) if at_ms > after_ms && at_ms != 0 => group.push(record),
                _ => {}
            }
            if group.len() == GROUP {
                swept.removed += self.sweep_group(extent, &group, &mut late);
                group.clear();
            }
        }
        swept.removed += self.sweep_group(extent, &group, &mut late);
        self.log.end_sweep(&sweeping, &mut left);
        // Who writes a tombstone may have to wait for space, and must not hold up those who free some.
        drop((guard, cycle));
        for (table, key) in late {
            match self.remove_expired(&table, &key) {
                Ok(removed) => swept.removed += usize::from(removed),
                // A row that is corrupted stays: whoever reads it is told. For want of room the rest wait, too.
                Err(error) if error.kind() == ErrorKind::Corrupted => {}
                Err(_) => {
                    self.log.sweep_again(&sweeping, now_ms + AGAIN_MS);
                    break;
                }
            }
        }
        swept
    }

    /// Takes out of the index what it can of a segment's records that have expired, as far as they still are their keys'
    /// newest. The others that are go into `late`.
    fn sweep_group(&self, extent: u32, group: &[Record<'_>], late: &mut Vec<Late>) -> usize {
        let mut removed = 0;
        for records in group.chunk_by(|one, next| one.table() == next.table()) {
            let Some(table) = self.catalog.by_id(records[0].table()) else { continue };
            let keys: SmallVec<[&[u8]; GROUP]> = records.iter().map(Record::key).collect();
            let mut found = [None; GROUP];
            let guard = self.log.pin();
            // What expires is not sealed.
            table.levels.locate_young(&keys, &guard, &mut found);
            let slots = found.map(|slot| slot.map(|slot| self.cache.log_slot(slot, &guard)));
            // A batch holds all appenders from its look at a row to its publication; a snapshot waits for them, too.
            let appender = self.log.appender();
            for (record, slot) in records.iter().zip(slots) {
                let Some(slot) = slot.filter(|slot| slot.expires()) else { continue };
                let newest = slot.tag() == Tag::Row && slot.offset() == record.offset();
                if newest && self.drop_row(&appender, extent, &table, record.key(), slot) {
                    removed += 1;
                } else if newest || matches!(slot.tag(), Tag::Delta | Tag::Blind) {
                    late.push((Arc::clone(&table), record.key().to_vec()));
                }
            }
        }
        removed
    }

    /// Takes an expired row that is one record out of the index, if it can go without a tombstone and is there still. The appender
    /// is that of any writer.
    fn drop_row(
        &self,
        _appender: &Appender,
        extent: u32,
        table: &TableShared,
        key: &[u8],
        slot: LogSlot,
    ) -> bool {
        // What is saved of a store that is being closed has it either way, and a tombstone comes too late.
        if self.log.check_open().is_err() {
            return false;
        }
        // An older record that is in the log still would be the newest one then, and one that a snapshot sees would be lost
        // to it.
        if slot.tag() != Tag::Row || slot.older_versions() > 0 || !self.snapshots.are_none() {
            return false;
        }
        // So would be one below.
        if self.may_be_below(table, key) {
            return false;
        }
        let guard = self.log.pin();
        self.will_drop(extent, table.id.load(Ordering::Acquire), key);
        let dropped = self.publish(IndexEntry::of_known(table, key), &guard, |now| match now == Some(slot) {
            true => (Decision::Remove, true),
            false => (Decision::Keep, false),
        });
        let dropped = dropped.is_ok_and(|dropped| dropped);
        if dropped {
            self.gc.record_dropped(extent, slot.offset());
            table.expiry.replaced(Some(slot), false);
            self.count_obsolete(slot, guard.view());
            self.counters.add(Count::Expired);
        }
        dropped
    }

    /// Removes a row if it has expired.
    fn remove_expired(&self, table: &TableShared, key: &[u8]) -> Result<bool> {
        self.with_row(table, key, |at| {
            // Written anew, or deleted, since it was found: leave it.
            let Some(slot) = at.slot.filter(|&slot| at.row.is_none() && is_row(Some(slot))) else {
                return Ok(Step::Done(false));
            };
            if let Some(extent) = self.log.segment_of(slot.offset())
                && self.drop_row(&self.log.appender(), extent, table, key, slot)
            {
                return Ok(Step::Done(true));
            }
            let step = self.apply(at, Edit::<&str>::Delete)?.then(true);
            if matches!(step, Step::Written(..)) {
                self.counters.add(Count::Expired);
            }
            Ok(step)
        })
    }

    /// Walks over some of each table's index, by its id from where the last call ended.
    fn sweep_all(&self, passes: &mut HashMap<u32, Pass>) {
        passes.retain(|&id, _| self.catalog.by_id(id).is_some());
        for table in self.catalog.all() {
            if self.scheduler.is_stopped() {
                return;
            }
            let id = table.id.load(Ordering::Relaxed);
            if table.levels.tombstones_to_set_apart() > 0 && self.snapshots.are_none() {
                let pass = passes.entry(id).or_default();
                self.tombstone_walk().go_on(&table.levels, &mut pass.tombstones);
            }
            if table.expiry.rows() > 0 {
                let pass = passes.entry(id).or_default();
                // What a sweep could not do now, the next will find again.
                drop(self.sweep(&table, pass));
            }
        }
    }

    pub(super) fn tombstone_walk(&self) -> TombstoneWalk<'_> {
        let (snapshots, scheduler) = (&self.snapshots, &self.scheduler);
        TombstoneWalk { log: &self.log, snapshots, scheduler }
    }

    /// Looks when rows expire, a bounded number of slots at a time, going on from where `pass` is; and removes what it finds
    /// expired: behind a record that is corrupted, nobody else does.
    pub(crate) fn sweep(&self, table: &TableShared, pass: &mut Pass) -> Result<()> {
        let mut expired = Vec::new();
        {
            let view = self.read_view();
            let mut batch = ScanBatch::default();
            let more = table.levels.next_young_rows(&mut pass.cursor, SLOTS, view.guard(), &mut batch);
            let schema = table.schema.load();
            for (key, slot) in batch.iter().filter(|&(_, slot)| slot.expires() && is_row(Some(slot))) {
                // A row that is corrupted stays: whoever reads it is told. The others must not wait for it.
                match view.row_at((table, key), &schema, Some(slot)) {
                    Ok(None) => expired.push(key.to_vec()),
                    Ok(Some(row)) => row.expires_at_ms().into_iter().for_each(|at_ms| pass.met(at_ms)),
                    Err(_) => {}
                }
            }
            if !more {
                pass.finish(&table.expiry);
            }
        }
        let mut refused = Ok(());
        for key in &expired {
            match self.remove_expired(table, key) {
                // In a store without threads nobody waits for room, and others may need none.
                Err(full) if full.kind() == ErrorKind::Full && !self.options.background => {
                    refused = Err(full)
                }
                removed => drop(removed?),
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests;
