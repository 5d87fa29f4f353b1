//! Pages that a killed process left in the page cache, and that the kernel may have forgotten.
//!
//! Owns what is still to be written again of them. Promises that no sync calls durable what a killed process left before all of it was: the headers, the
//! root, what it names and what is walked while the store is opened, all else by slices afterwards. Must not know what the records are.
//!
//! A write-back that fails leaves its pages clean, as if they had been written, and the error is told once, perhaps to a process that was killed over it.
//! So whether there is such a page is not known, and all are written that are not known to be durable.

use super::segment::SEGMENT_HEADER_BYTES;
use super::{Log, OpenState, SegmentEnd};
use crate::Result;
use crate::manifest::root::CATALOG_START;
use crate::sync::Mutex;

/// What is written again under one hold of the lock, which a sync may wait for.
const SLICE_BYTES: u64 = 4 << 20;

/// Ranges of the tier.
#[derive(Debug, Default)]
pub(super) struct Forgotten(Mutex<Vec<(u64, u64)>>);

impl Log {
    /// Whether a process was killed in this boot, of which there may be such pages.
    pub(super) fn may_hold_forgotten_pages(&self, power_cut: bool) -> bool {
        !power_cut && !self.root.lock().clean && !self.tier.is_read_only()
    }

    /// Has the root, what it names and all headers written with the next persist that covers them.
    pub(super) fn rewrite_headers(&self, grown: u32) {
        let [catalog, list] = {
            let root = self.root.lock();
            [root.catalog_place(), root.list_place()]
        };
        // PERSIST: before anything here is made durable on the word of a header or of the root.
        self.tier.rewrite_apart(0, CATALOG_START);
        self.tier.rewrite(catalog.0, catalog.1);
        self.tier.rewrite(list.0, list.1);
        (self.root_extents..grown)
            .for_each(|extent| self.tier.rewrite_apart(self.extent_offset(extent), SEGMENT_HEADER_BYTES));
    }

    /// The same for the records of a segment that was walked, up to its `end`: at once, for a page that was forgotten may leave memory any moment. For whoever
    /// opens the store: nobody else knows of it yet, and no walk over the segment goes on.
    pub(crate) fn rewrite_walked(&self, found: &OpenState, end: &SegmentEnd) {
        if let Some((from, bytes)) = self.in_doubt(found, end) {
            // PERSIST: before the first sync of this opening calls them durable.
            self.tier.rewrite(from, bytes);
        }
    }

    /// The same for those of a segment that was not walked, and for leaves, before the first sync: however much it is, opening does not wait for it. For whoever opens the
    /// store.
    pub(crate) fn rewrite_before_sync(&self, found: &OpenState, ends: &[SegmentEnd], leaves: &[(u64, u64)]) {
        let mut ranges: Vec<_> = ends.iter().filter_map(|end| self.in_doubt(found, end)).collect();
        if self.may_hold_forgotten_pages(found.power_cut) {
            ranges.extend(leaves);
        }
        if self.tier.can_rewrite_beside_readers() {
            self.forgotten.0.lock().extend(ranges);
        } else {
            ranges.into_iter().for_each(|(from, bytes)| self.tier.rewrite(from, bytes));
        }
    }

    /// Where a segment has records that may not be durable, and how many bytes of them: beyond what its header says, whatever became of the header itself.
    fn in_doubt(&self, found: &OpenState, end: &SegmentEnd) -> Option<(u64, u64)> {
        let durable = || self.segments.lock().used.get(&end.extent).map_or(0, |segment| segment.in_header.0);
        self.may_hold_forgotten_pages(found.power_cut).then(|| {
            let durable = durable();
            (self.extent_offset(end.extent) + durable, end.end.saturating_sub(durable))
        })
    }

    /// Writes a slice of what is left again. False if nothing was left, and whoever took the last of it is done with it.
    ///
    /// Nothing is stored, so that it does not matter who reads meanwhile, or that an extent of leaves has become somebody else's.
    ///
    /// # Errors
    /// If the system cannot: the log takes no more writes then.
    pub(crate) fn rewrite_forgotten(&self) -> Result<bool> {
        let mut forgotten = self.forgotten.0.lock();
        let Some((from, bytes)) = forgotten.pop() else { return Ok(false) };
        let now = bytes.min(SLICE_BYTES);
        // PERSIST: before the sync that calls it durable, which finds nothing left under this lock.
        if !self.tier.rewrite_beside_readers(from, now) {
            forgotten.push((from, bytes));
            return Err(self.halt_for_forgotten_pages());
        }
        if now < bytes {
            forgotten.push((from + now, bytes - now));
        }
        drop(forgotten);
        self.tier.start_write_back(from, now);
        Ok(true)
    }
}
