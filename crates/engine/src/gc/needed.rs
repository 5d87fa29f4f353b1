//! What of a victim the snapshots still need.
//!
//! Owns the rule by which a record that was replaced is needed by a snapshot, and how much gc spends on victims that have to wait
//! for one. Promises: what it calls needed by none is never read through a snapshot again, neither the oldest nor one taken later.
//! Must not know how a segment is emptied.
//!
//! A snapshot goes from a key's newest version down to the first that is not younger than itself, over every record between
//! (`db/chain.rs`, `version_before`). So a record is needed as long as it lies on the way of the oldest snapshot, and what lies below the version
//! that this one sees is needed by none: no snapshot older than the oldest will ever be taken. A victim need not wait for a snapshot
//! only because it was emptied after it: what was replaced before is in nobody's way, and a row that was copied is found by its copy.
//!
//! **What gc spends.** A victim that must wait takes room, for the copies of what lives in it, and gives none back until the
//! snapshot is dropped. Under short snapshots, one after the other, that is the way to go on: each victim waits for a moment. Under a
//! long one it takes from writers what they could have used. Nobody knows how long a snapshot will be held, so gc copies out of victims
//! that wait as much as a part of the space below which space counts as low. From then on it looks first whether a victim would have
//! to wait, and leaves those that would as they are until the snapshots that need them are gone.

use std::ops::ControlFlow;

use super::victims::low_extents;
use super::{Emptied, PrefetchDepth};
use crate::Result;
use crate::db::chain::replaced_by;
use crate::db::engine::{Engine, TableShared};
use crate::index::LogSlot;
use crate::log::LogView;
use crate::log::format::{Record, RecordKind};

/// Records on the way of the oldest snapshot that are walked for one victim's record. A row that changes all the time has as many
/// versions above the one that a snapshot sees, and a version in every segment: what such a walk finds is remembered.
const STEPS_MAX: usize = 32;
/// Records that are walked once for such a row. With more above what the oldest snapshot sees, all its versions count as needed.
const LONG_STEPS_MAX: usize = 1 << 16;
/// What gc spends on victims that wait for snapshots, as a part of the space below which space is low.
const SPENT_PART: u32 = 4;

/// Where a walk from a key's newest version down the way of the oldest snapshot ends.
enum WayEnd {
    /// At the record that is looked for.
    Met,
    /// Behind the row of the version which that snapshot sees, or where it sees none, without that record.
    NotMet,
    /// Nowhere yet.
    Long,
}

/// Goes down from `now` to `record`, or to the row that the snapshot of `oldest` sees. That one is held.
fn walk(log: LogView<'_>, now: LogSlot, record: &Record<'_>, oldest: u64) -> Result<WayEnd> {
    let mut on_the_way = Some(now);
    for _ in 0..STEPS_MAX {
        let Some(slot) = on_the_way else { return Ok(WayEnd::NotMet) };
        let version = log.record(slot.offset())?;
        if version.offset() == record.offset() {
            return Ok(WayEnd::Met);
        }
        if is_row_seen(&version, oldest) {
            return Ok(WayEnd::NotMet);
        }
        on_the_way = replaced_by(&version)?;
    }
    Ok(WayEnd::Long)
}

/// Whether the way of the snapshot of `oldest` ends at a version: deltas that it sees need what is below them.
fn is_row_seen(version: &Record<'_>, oldest: u64) -> bool {
    version.sequence() <= oldest && version.ends_version()
}

/// The sequence of the row that the snapshot of `oldest` sees: no older version is on its way. 0 if that is too far down.
fn row_seen(log: LogView<'_>, now: LogSlot, oldest: u64) -> Result<u64> {
    let mut on_the_way = Some(now);
    for _ in 0..LONG_STEPS_MAX {
        let Some(slot) = on_the_way else { break };
        let version = log.record(slot.offset())?;
        if is_row_seen(&version, oldest) {
            return Ok(version.sequence());
        }
        on_the_way = replaced_by(&version)?;
    }
    Ok(0)
}

impl Engine {
    /// Which snapshots need `record`, of a victim, once that is empty: those older than the sequence returned. `oldest` is held.
    pub(super) fn needed_before(&self, table: &TableShared, record: &Record<'_>, oldest: u64) -> Option<u64> {
        // Another record of the key may be corrupted. That is no reason to give this victim up: it waits for all there are.
        self.try_needed_before(table, record, oldest).unwrap_or_else(|_| Some(self.log.last_sequence()))
    }

    fn try_needed_before(
        &self,
        table: &TableShared,
        record: &Record<'_>,
        oldest: u64,
    ) -> Result<Option<u64>> {
        let guard = self.log.pin();
        // What left the index is found by nobody. But of a key that is written again after it was deleted there is no slot for a moment, and this record may be on the way from the next.
        let Some(slot) = table.levels.locate_version_surely(record.key(), &guard) else { return Ok(None) };
        let slot = self.cache.log_slot(slot, &guard);
        if slot.offset() == record.offset() && record.kind() == RecordKind::Row {
            // Its copy is found in its place.
            return Ok(None);
        }
        let log = guard.view();
        let newest = log.record(slot.offset())?.sequence();
        if newest <= oldest {
            // Every snapshot sees the newest version.
            return Ok(None);
        }
        let mut rows_seen = self.gc.rows_seen.lock();
        let mut seen = rows_seen.get(oldest, record.table(), record.key());
        if seen.is_none() {
            match walk(log, slot, record, oldest)? {
                WayEnd::Met => return Ok(Some(newest)),
                WayEnd::NotMet => return Ok(None),
                WayEnd::Long => {
                    let sequence = row_seen(log, slot, oldest)?;
                    rows_seen.insert(oldest, record.table(), record.key(), sequence);
                    seen = Some(sequence);
                }
            }
        }
        Ok(seen.filter(|seen| record.sequence() >= *seen).map(|_| newest))
    }

    /// Whether gc has spent what it spends on victims that wait for the snapshot of `oldest`, with those that this cycle has `emptied`.
    pub(super) fn has_spent_enough_for(&self, oldest: u64, emptied: &[Emptied]) -> bool {
        let waits = |victim: &&Emptied| victim.needed_before.is_some_and(|before| oldest < before);
        let now: u64 = emptied.iter().filter(waits).map(|victim| victim.copied).sum();
        let (_, all) = self.log.space().room();
        let max = u64::from(low_extents(all) / SPENT_PART) * self.log.extent_bytes();
        self.gc.spent_for_snapshots(oldest) + now >= max
    }

    /// Whether the segment at `extent`, were it emptied, would have to wait for the snapshot of `oldest`, which is held; then it is
    /// left alone until that is gone.
    pub(super) fn would_wait_for(&self, oldest: u64, extent: u32) -> bool {
        let mut needed = None;
        let seen = self.each_record(extent, PrefetchDepth::Slots, |table, record| {
            needed = self.needed_before(table, record, oldest);
            Ok(if needed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        if let Some(before) = needed {
            self.log.keep_for_snapshots(extent, before);
        }
        // What is wrong with a record is found again, and told, when the segment is emptied.
        seen.is_ok() && needed.is_some()
    }
}

#[cfg(test)]
mod tests;
