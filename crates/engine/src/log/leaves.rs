//! Leaves of groups on the tier, in extents that are free on the medium.
//!
//! Owns [`LeafWriter`], which takes extents and writes leaves to them, and the way of such extents back once nobody reads them. Promises that leaves stay as they were written until whoever looks has let go of his guard. Must not know
//! what an entry leads to, nor which groups there are.
//!
//! Groups do not outlive the process: what an extent of leaves says of itself, in the page of its header, is still that it is free ([38](../../../../docs/decisions/0038-sealing.md)). So a crash leaves nothing that
//! would have to be found or forgotten, and nothing of them is made durable. Leaves lie behind that page, as pieces of a saved index do.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Log, LogView};
use crate::group::{LeafBytes, LeafExtents, LeafPlace};
use crate::space::{Claim, KEPT_BYTES};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::{Error, ErrorKind, Result};

/// Extents of leaves.
#[derive(Debug)]
pub(super) struct LeafSpace {
    /// All that are taken, those that wait for readers among them.
    taken: Mutex<BTreeSet<u32>>,
    /// First to wait first: since which epoch nobody is led to an extent.
    retired: Mutex<Vec<(u64, u32)>>,
}

impl LeafSpace {
    pub(super) fn new() -> LeafSpace {
        LeafSpace { taken: Mutex::new(BTreeSet::new()), retired: Mutex::new(Vec::new()) }
    }
}

/// Writes leaves to extents of its own, which are free again if it is dropped before they are [kept](LeafWriter::keep).
#[derive(Debug)]
pub(crate) struct LeafWriter<'l> {
    log: &'l Log,
    taken: Vec<u32>,
}

impl Log {
    /// To write leaves with.
    pub(crate) fn leaf_writer(&self) -> LeafWriter<'_> {
        LeafWriter { log: self, taken: Vec::new() }
    }

    /// Bytes of leaves that an extent has room for.
    pub(crate) fn leaf_bytes_max(&self) -> u64 {
        self.extent_bytes() - KEPT_BYTES
    }

    /// Nobody is led to these extents any more: they are free once all have let go who were.
    pub(crate) fn retire_leaves(&self, places: impl IntoIterator<Item = LeafPlace>) {
        let epoch = self.epoch.current();
        let extents = places.into_iter().map(|place| (epoch, (place.at >> self.space.extent_shift()) as u32));
        self.leaves.retired.lock().extend(extents);
    }

    /// Frees extents of leaves that nobody reads any more; returns how many.
    pub(crate) fn free_retired_leaves(&self) -> usize {
        let mut retired = self.leaves.retired.lock();
        let ready = retired.iter().take_while(|(epoch, _)| self.epoch.is_quiescent_since(*epoch)).count();
        retired.drain(..ready).for_each(|(_, extent)| self.free_leaves(extent));
        ready
    }

    /// Whether extents of leaves wait for those who may still read them.
    pub(crate) fn has_retired_leaves(&self) -> bool {
        !self.leaves.retired.lock().is_empty()
    }

    /// Extents of leaves, those that wait for readers among them.
    pub(crate) fn leaf_extents(&self) -> u32 {
        self.leaves.taken.lock().len() as u32
    }

    /// Whether leaves are at this place of the tier, and no record.
    pub(crate) fn is_leaf(&self, offset: u64) -> bool {
        let extent = (offset >> self.space.extent_shift()) as u32;
        self.leaves.taken.lock().contains(&extent)
    }

    fn free_leaves(&self, extent: u32) {
        self.leaves.taken.lock().remove(&extent);
        self.space.free(extent..extent + 1);
    }
}

impl LeafWriter<'_> {
    /// What was written stays, until it is [retired](Log::retire_leaves).
    pub(crate) fn keep(mut self) {
        self.taken.clear();
    }
}

impl LeafExtents for LeafWriter<'_> {
    type Error = Error;

    fn take(&mut self) -> Result<(LeafPlace, usize)> {
        self.log.check_open()?;
        let Ok(extent) = self.log.space.take(1, Claim::Write)? else {
            return Err(Error::new(ErrorKind::Full, "there is no room for leaves of the index"));
        };
        self.log.leaves.taken.lock().insert(extent);
        self.taken.push(extent);
        // That of a segment which is never begun.
        let number = self.log.next_segment_number.fetch_add(1, Ordering::Relaxed);
        let at = self.log.extent_offset(extent) + KEPT_BYTES;
        Ok((LeafPlace { number, at }, self.log.leaf_bytes_max() as usize))
    }

    fn write(&mut self, place: LeafPlace, leaves: &[u8]) -> Result<()> {
        self.log.tier.write(place.at, leaves.len(), |out| out.copy_from_slice(leaves));
        Ok(())
    }
}

impl Drop for LeafWriter<'_> {
    fn drop(&mut self) {
        self.taken.drain(..).for_each(|extent| self.log.free_leaves(extent));
    }
}

impl LeafBytes for LogView<'_> {
    fn leaf_bytes(&self, at: u64, range: Range<usize>) -> Option<&[u8]> {
        let at = at + range.start as u64;
        // All of it is looked at, for the sake of its checksum.
        self.tier.prefetch(at, range.len() as u64);
        self.tier.try_read(at, range.len())
    }
}
