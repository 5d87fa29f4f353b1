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

use super::PrefetchDepth;
use super::victims::low_extents;
use crate::Result;
use crate::db::engine::{Engine, TableShared};
use crate::index::Slot;
use crate::log::Log;
use crate::log::format::{Record, RecordKind};

/// Records on the way of a snapshot that are looked at before it is taken for granted that another one is among them. A row
/// that changes all the time has as many versions above the one that a snapshot sees.
const STEPS_MAX: usize = 32;
/// What gc spends on victims that wait for snapshots, as a part of the space below which space is low.
const SPENT_PART: u32 = 4;

/// Whether the snapshot of `oldest`, which is held, or a later one comes by `record`, a version of the key whose version is `now` that
/// is not live any more: until when. Snapshots of that sequence or a later one need it no more.
fn needed_before(log: &Log, now: Slot, record: &Record<'_>, oldest: u64) -> Result<Option<u64>> {
    let newest = log.record(now.offset())?.sequence();
    if newest <= oldest {
        // Every snapshot sees the newest version.
        return Ok(None);
    }
    // Down to the version that the oldest sees, and to its row.
    let mut on_the_way = Some(now);
    for _ in 0..STEPS_MAX {
        let Some(slot) = on_the_way else { break };
        let version = log.record(slot.offset())?;
        if version.offset() == record.offset() {
            break;
        }
        if version.sequence() <= oldest && version.kind() != RecordKind::Delta {
            return Ok((record.sequence() >= version.sequence()).then_some(newest));
        }
        on_the_way = version.previous().map(Slot::from);
    }
    Ok(Some(newest))
}

impl Engine {
    /// Which snapshots need `record`, of a victim, when it was emptied of it: those older than the sequence returned. `oldest` is held.
    pub(super) fn needed_before(
        &self,
        table: &TableShared,
        record: &Record<'_>,
        oldest: u64,
    ) -> Result<Option<u64>> {
        let guard = self.epoch.pin();
        // What left the index is found by nobody.
        let Some(slot) = table.levels.locate_version(record.key(), &guard) else { return Ok(None) };
        let slot = self.cache.log_slot(slot);
        let is_live_row = slot.offset() == record.offset() && record.kind() == RecordKind::Row;
        if is_live_row { Ok(None) } else { needed_before(&self.log, slot, record, oldest) }
    }

    /// Whether gc has spent what it spends on victims that wait for the snapshot of `oldest`.
    pub(super) fn has_spent_enough_for(&self, oldest: u64) -> bool {
        let (_, all) = self.log.space().room();
        let max = u64::from(low_extents(all) / SPENT_PART) * self.log.extent_bytes();
        self.gc.spent_for_snapshots(oldest) >= max
    }

    /// Whether the segment at `extent`, were it emptied, would have to wait for the snapshot of `oldest`, which is held; then it is
    /// left alone until that is gone.
    pub(super) fn would_wait_for(&self, oldest: u64, extent: u32) -> bool {
        let mut needed = None;
        let seen = self.each_record(extent, PrefetchDepth::Slots, |table, record| {
            needed = self.needed_before(table, record, oldest)?;
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
