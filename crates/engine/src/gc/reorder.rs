//! Range reordering: rows that are scanned together are brought together.
//!
//! Owns: which ranges are worth it, and their copying. Promises: a row is copied as consolidation copies it, so readers, snapshots
//! and recovery see nothing new; no more than half of the log is obsolete because of it. Must not know how a copy is published.
//!
//! The log keeps rows in the order in which they were written. A scan over rows that were not written in the order of their
//! keys pays a random access for each: several times what the same rows cost one after the other, in DRAM too, and far more where
//! they come from a disk. So a scan looks at the slots it was given, which costs it nothing more, and where a quarter of the rows or more lie apart
//! it leaves the range's first key behind. The consolidation thread then copies the rows of the range into the log in the order of
//! their keys, and gc frees what they leave.
//!
//! A copy pays only if the range is scanned again. One row in 16, chosen by its place so that all scans choose the same, is
//! remembered in a bitmap by each scan that meets it, and a range is queued only where a scan meets one that was remembered. A
//! single pass over a table copies nothing.
//!
//! WiscKey (FAST 2016) named the price of values in the order of writing; DiffKV (ATC 2021) orders what scans meet. Here nothing
//! has to be sorted: the index has the order.

use smallvec::SmallVec;

use crate::db::chain::{Chain, prefetch_chains};
use crate::db::engine::{Engine, TableShared};
use crate::db::read::GROUP;
use crate::index::{LogSlot, ScanBatch, Slot, Tag};
use crate::levels::Cursor;
use crate::log::LogView;
use crate::scheduler::reorder_queue::{OutOfOrder, WAITING_MAX};
use crate::sync::atomic::Ordering;

/// Rows of a range.
const ROWS: usize = 128;
/// Ranges copied for each that was queued: it, and those that follow it in key order as long as their rows lie apart too. So a table that
/// is scanned all over is in order soon, and a few that are scanned never cost more than so many times themselves.
const RANGES_EACH: usize = 8;
/// Scans of fewer rows say too little.
const ROWS_MIN: usize = 8;
/// So many rows that lie together are left where they are.
const RUN_MIN: usize = 16;
/// Rows this far apart, in bytes, cost no more for it: what a page or the processor's own prefetching covers.
const NEAR_BYTES: u64 = 4096;
/// The slot, if it leads to a row in the log that counts: a large one between small ones would keep them apart for ever.
fn counted(slot: &Slot) -> Option<LogSlot> {
    let counts = |slot: &LogSlot| matches!(slot.tag(), Tag::Row | Tag::Delta) && slot.bytes() <= NEAR_BYTES;
    slot.in_log().filter(counts)
}

/// Whether of two rows, one after the other in key order or against it, the second lies near the first.
fn are_near(one: LogSlot, next: LogSlot) -> bool {
    next.offset().abs_diff(one.offset()) <= NEAR_BYTES + next.bytes()
}

/// Whether at least a quarter of the rows, in key order or against it, do not lie near the one before.
fn are_out_of_order(slots: &[Slot]) -> bool {
    let (mut rows, mut jumps, mut before) = (0, 0, None);
    for slot in slots.iter().filter_map(counted) {
        jumps += usize::from(before.is_some_and(|before| !are_near(before, slot)));
        before = Some(slot);
        rows += 1;
    }
    rows >= ROWS_MIN && jumps * 4 >= rows
}

/// The rows that do not lie in a run with others. Ranges overlap: what was brought together for one stays where it is when it is
/// part of another.
fn isolated(slots: &[Slot]) -> impl Iterator<Item = LogSlot> {
    let runs = slots
        .chunk_by(|one, next| counted(one).zip(counted(next)).is_some_and(|(one, next)| are_near(one, next)));
    runs.filter(|run| run.len() < RUN_MIN).flatten().filter_map(counted)
}

impl Engine {
    /// For a scan: what it was given by the index, in key order or against it.
    #[inline]
    pub(crate) fn enqueue_if_out_of_order(&self, table: &TableShared, batch: &ScanBatch, reverse: bool) {
        if self.reorder_queue.is_wanted()
            && self.merge_queue.reads_prevail()
            && are_out_of_order(batch.slots())
            && self.reorder_queue.remember(batch.slots())
        {
            let first = if reverse { batch.len() - 1 } else { 0 };
            self.reorder_queue.enqueue(table.id.load(Ordering::Relaxed), batch.key(first));
        }
    }

    /// Copies the rows of the ranges that were queued; false if there were none.
    pub(crate) fn reorder_queued(&self) -> bool {
        self.reorder_queue.forget_if_full();
        let ranges: SmallVec<[OutOfOrder; WAITING_MAX]> =
            self.reorder_queue.waiting.lock().drain(..).collect();
        let has_room = ranges.iter().all(|range| self.has_room_to_reorder() && self.reorder(range));
        self.reorder_queue.lacks_room.fetch_or(!has_room, Ordering::Relaxed);
        !ranges.is_empty()
    }

    /// Originals lie obsolete until gc has freed them. Where half of the log is obsolete it is at that, and where space is
    /// short it belongs to the writers: it is kept well above what makes gc work for them.
    fn has_room_to_reorder(&self) -> bool {
        let (filling, (_, all), room) = (self.log.filling(), self.log.space().room(), self.room());
        filling.obsolete * 2 < filling.used
            && room.available > (room.low + room.low / 2).min(all / 4)
            && !self.gc.throttle.is_on()
    }

    /// Copies the rows of a range and of those behind it; false if the room came to an end.
    fn reorder(&self, range: &OutOfOrder) -> bool {
        let Some(table) = self.catalog.by_id(range.table) else { return true };
        let mut cursor = Cursor::at(&range.key);
        let mut batch = ScanBatch::new();
        for _ in 0..RANGES_EACH {
            let guard = self.log.pin();
            let more = table.levels.next_young_rows(&mut cursor, ROWS, &guard, &mut batch);
            // Somebody may have been here before.
            if !are_out_of_order(batch.slots()) {
                return true;
            }
            self.copy_isolated(&table, batch.slots(), guard.view());
            if !more || self.scheduler.is_stopped() {
                return true;
            }
            if !self.has_room_to_reorder() {
                return false;
            }
        }
        true
    }

    /// Copies the rows that do not lie together into the log, one after the other.
    fn copy_isolated(&self, table: &TableShared, slots: &[Slot], log: LogView<'_>) {
        let isolated: SmallVec<[LogSlot; ROWS]> = isolated(slots).collect();
        for group in isolated.chunks(GROUP) {
            let mut log_slots = [None; GROUP];
            log_slots.iter_mut().zip(group).for_each(|(log_slot, slot)| *log_slot = Some(*slot));
            prefetch_chains(log, log_slots);
            for slot in log_slots.into_iter().flatten() {
                // A row that was changed meanwhile is where the next scan finds it, one that cannot be read is told to whoever
                // reads it, and without space the next round does not begin.
                let copied = Chain::walked(log, slot).and_then(|chain| self.merge_row(table, slot, &chain));
                self.reorder_queue.rows.fetch_add(u64::from(copied.unwrap_or(false)), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
