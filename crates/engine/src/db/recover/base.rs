//! What was known of keys before that which is walked was written: a store is opened by a checkpoint of its index.
//!
//! Owns what is asked of it, and what of it becomes obsolete. Promises that a record which is obsolete now, and was not then, is counted once. Must not know where it is from (`db/saved_index/since.rs`).

use super::Recovery;
use crate::Result;
use crate::db::deleted::is_droppable_tombstone;
use crate::db::shared_table::TableShared;
use crate::index::{LogSlot, Slot};
use crate::log::format::{RecordKind, RecordRef};

/// What is known of a key besides what a walk found.
#[derive(Debug, Clone, Copy)]
pub(in crate::db) struct BaseVersion {
    /// The slot of what was its newest version.
    pub(in crate::db) slot: LogSlot,
    /// So many of the records that it says the key has were freed since.
    pub(in crate::db) freed: usize,
}

/// What became of a record that was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::db) enum BasePlace {
    There,
    /// It was freed; with the place of what it was written over, if it was a delta and that is known.
    Freed {
        below: Option<u64>,
    },
}

/// What is known of keys without a walk over what was written of them.
pub(in crate::db) trait BaseVersions: Sync {
    /// Of a key of a table.
    ///
    /// # Errors
    /// If what should say it is damaged.
    fn of_key(&self, table: &TableShared, key: &[u8]) -> Result<Option<BaseVersion>>;

    /// Of a record, by its place.
    fn of_place(&self, offset: u64) -> BasePlace;
}

impl Recovery<'_> {
    /// Counts what is obsolete of a version now that `chain` is the newest; returns how many records the key had with it, or more than can be counted.
    pub(super) fn count_base(&self, base: BaseVersion, over: &dyn BaseVersions, chain: &[u64]) -> usize {
        let BaseVersion { slot, freed } = base;
        if !is_droppable_tombstone(*slot) {
            self.count_base_records(slot, over, chain);
        }
        let all = usize::from(slot.records()) + usize::from(slot.older_versions());
        match slot.older_versions() == Slot::OLDER_VERSIONS_SATURATED {
            // However many records are taken off for the chain.
            true => all + Slot::DEPTH_MAX as usize + 1,
            false => all.saturating_sub(freed),
        }
    }

    /// Counts the records of a version, as far as they are in the log, that are none of `chain`.
    fn count_base_records(&self, slot: LogSlot, over: &dyn BaseVersions, chain: &[u64]) {
        let (guard, mut next) = (self.log.pin(), Some(slot.offset()));
        for _ in 0..slot.records() {
            let Some(place) = next.take() else { return };
            match over.of_place(place) {
                BasePlace::Freed { below } => next = below,
                BasePlace::There => {
                    // What cannot be read is told by whoever reads it.
                    let Ok(record) = guard.view().record(place) else { return };
                    if slot.records() > 1 && record.kind() == RecordKind::Row {
                        // The chain over it began before, and is another now, or the same, which counts once.
                        self.log.chain_ended(place);
                    }
                    if !chain.contains(&place) {
                        let is_newest = place == slot.offset() && !slot.bytes_unknown();
                        let bytes = if is_newest { slot.bytes() } else { record.record_bytes() as u64 };
                        self.log.add_obsolete(place, bytes);
                    }
                    next = record.previous().filter(|_| !record.ends_version()).map(RecordRef::offset);
                }
            }
        }
    }
}
