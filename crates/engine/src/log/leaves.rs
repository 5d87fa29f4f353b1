//! Leaves of groups on the tier, in extents that are free on the medium.
//!
//! Owns [`LeafWriter`], which takes extents and writes leaves to them, and the way of such extents back once nobody reads them. Promises that leaves stay as they were written until whoever looks has let go of his guard. Must not know
//! what an entry leads to, nor which groups there are.
//!
//! Groups outlive the process where it ends in order, and nothing on the medium but a saved index leads to them: what an extent of leaves says of itself, in the page of its header, is still that it is free ([38](../../../../docs/decisions/0038-sealing.md)). So a crash leaves nothing that
//! would have to be found or forgotten, and nothing of them is made durable. Leaves lie behind that page, as pieces of a saved index do.
//!
//! Groups of few leaves share extents: what one leaves of an extent is kept for the next that is small, of whatever table. An extent is free again when the last that has leaves in it has let go.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Log, LogView};
use crate::group::{LeafBytes, LeafExtent, LeafExtents, LeafPlace};
use crate::space::{Claim, KEPT_BYTES};
use crate::stripes::Stripes;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::{Error, ErrorKind, Result};

/// Extents of leaves.
#[derive(Debug)]
pub(super) struct LeafSpace {
    /// How many have leaves in each that is taken, those that wait for readers among them, and who may write more there.
    taken: Mutex<BTreeMap<u32, u32>>,
    /// What is left of those that are shared, and nobody writes to.
    rests: Mutex<Vec<LeafRest>>,
    /// First to wait first: since which epoch nobody is led to an extent.
    retired: Mutex<Vec<(u64, u32)>>,
    /// Looks for a key, and the leaves that these came by.
    looks: Stripes<2>,
    /// The number of the next extent of leaves.
    next_number: AtomicU64,
    /// Somebody came by a leaf that is not what was written.
    damaged: AtomicBool,
}

/// What is left of an extent behind the leaves in it.
#[derive(Debug, Clone, Copy)]
struct LeafRest {
    extent: u32,
    at: u64,
    bytes: u64,
}

/// Less of an extent is not worth keeping. A leaf of the longest key that is sealed takes a quarter of it.
const REST_BYTES_MIN: u64 = 4 << 10;

/// Of the numbers of leaves; those of segments, which are told by their order, have it not. (The bit above it says of a segment's in which format its records are.)
const NUMBER_BIT: u64 = 1 << 62;

impl LeafSpace {
    /// Of a store whose first segment from now on would have this number: no opening before had it.
    pub(super) fn new(first_number: u64) -> LeafSpace {
        LeafSpace {
            taken: Mutex::new(BTreeMap::new()),
            rests: Mutex::new(Vec::new()),
            retired: Mutex::new(Vec::new()),
            looks: Stripes::default(),
            next_number: AtomicU64::new(first_number | NUMBER_BIT),
            damaged: AtomicBool::new(false),
        }
    }
}

/// Writes leaves to extents of its own, which are free again if it is dropped before they are [kept](LeafWriter::keep).
#[derive(Debug)]
pub(crate) struct LeafWriter<'l> {
    log: &'l Log,
    taken: Vec<u32>,
    /// So many extents are left to others.
    left: u32,
    shares: bool,
    /// Where it goes on, if it shares.
    rest: Option<LeafRest>,
}

impl Log {
    /// To write leaves with, as long as more than `left` extents can be had beside those that are held back.
    pub(crate) fn leaf_writer(&self, left: u32) -> LeafWriter<'_> {
        LeafWriter { log: self, taken: Vec::new(), left, shares: false, rest: None }
    }

    /// The same for few leaves, in extents that have those of others, too.
    pub(crate) fn shared_leaf_writer(&self, left: u32) -> LeafWriter<'_> {
        LeafWriter { log: self, taken: Vec::new(), left, shares: true, rest: None }
    }

    /// Where the leaves of an extent begin.
    pub(crate) fn leaves_at(&self, extent: u32) -> u64 {
        self.extent_offset(extent) + KEPT_BYTES
    }

    /// Takes the extents of leaves that were written before the store was opened, and are free to everybody else; none of them, and `None`, if one is not. Nothing is taken of a store that is only read.
    pub(crate) fn hold_leaves(&self, places: impl Iterator<Item = LeafPlace>) -> Option<LeafWriter<'_>> {
        let mut held = self.leaf_writer(0);
        if self.tier.is_read_only() {
            return Some(held);
        }
        for place in places {
            let extent = u32::try_from(place.at >> self.space.extent_shift()).ok()?;
            if self.leaves.taken.lock().contains_key(&extent) {
                held.add_use(extent);
                continue;
            }
            let found = self.space.hold_found([extent].into_iter());
            if found.is_empty() {
                return None;
            }
            // A full disk may have no blocks for the holes of a copy: then it is not to be stored to, as what is free may be.
            if self.tier.allocate(self.extent_offset(extent), self.extent_bytes()).is_err() {
                self.space.give_back_found(&found, false);
                return None;
            }
            held.add_use(extent);
        }
        self.space.hold_back_again().ok()?;
        Some(held)
    }

    /// Leaves that were written before the store was opened are about to be read.
    pub(crate) fn will_need_leaves(&self, place: LeafPlace, bytes: u32) {
        self.tier.will_need(place.at, u64::from(bytes));
    }

    /// What was written there before the store was opened; `None` if a leaf is something else.
    pub(crate) fn read_leaves(&self, place: LeafPlace, bytes: u32) -> Option<LeafExtent> {
        // Behind the header of an extent, and before its end.
        let begins = place.at & (self.extent_bytes() - 1);
        if begins < KEPT_BYTES || begins + u64::from(bytes) > self.extent_bytes() {
            return None;
        }
        LeafExtent::walked(place, self.tier.try_read(place.at, bytes as usize)?).ok()
    }

    /// Bytes of leaves that an extent has room for.
    pub(crate) fn leaf_bytes_max(&self) -> u64 {
        self.extent_bytes() - KEPT_BYTES
    }

    /// Nobody is led to these extents any more: they are free once all have let go who were, and no checkpoint of the index names them.
    pub(crate) fn retire_leaves(&self, places: impl IntoIterator<Item = LeafPlace>) {
        self.retire(places.into_iter().map(|place| (place.at >> self.space.extent_shift()) as u32));
    }

    fn retire(&self, extents: impl Iterator<Item = u32>) {
        let epoch = self.epoch.current();
        self.leaves.retired.lock().extend(extents.map(|extent| (epoch, extent)));
    }

    /// A checkpoint of the index names these extents from now on, as one more that has leaves there.
    pub(super) fn name_extents(&self, extents: &[u32]) {
        let mut taken = self.leaves.taken.lock();
        extents.iter().for_each(|extent| *taken.entry(*extent).or_default() += 1);
    }

    /// A checkpoint of the index that named these extents, and had taken some of them for itself, counts no more.
    pub(super) fn unname_extents(&self, extents: &[u32]) {
        self.retire(extents.iter().copied());
    }

    /// How many of these extents, which were named as often as they are given, nobody else has.
    pub(super) fn named_by_these_alone(&self, extents: &[u32]) -> u32 {
        let mut named = BTreeMap::<u32, u32>::new();
        extents.iter().for_each(|extent| *named.entry(*extent).or_default() += 1);
        let taken = self.leaves.taken.lock();
        named.iter().filter(|(extent, times)| taken.get(extent) == Some(times)).count() as u32
    }

    /// An extent to be written of a checkpoint of the index, beside leaves, where more than `left` can be had.
    pub(super) fn take_for_checkpoint(&self, left: u32) -> Result<Option<u32>> {
        if self.space.room().0 <= left + Claim::Write.reserve() {
            return Ok(None);
        }
        let taken = self.space.take(1, Claim::Write)?.ok();
        self.name_extents(taken.as_slice());
        Ok(taken)
    }

    /// Frees extents of leaves that nobody reads any more; returns how many.
    pub(crate) fn free_retired_leaves(&self) -> usize {
        let mut retired = self.leaves.retired.lock();
        let ready = retired.iter().take_while(|(epoch, _)| self.epoch.is_quiescent_since(*epoch)).count();
        retired.drain(..ready).for_each(|(_, extent)| self.free_leaves(extent));
        drop(retired);
        self.leaves.rests.lock().retain(|rest| {
            let is_shared = self.leaves.taken.lock().get(&rest.extent).is_some_and(|uses| *uses > 1);
            if !is_shared {
                self.free_leaves(rest.extent);
            }
            is_shared
        });
        ready
    }

    /// Whether extents of leaves wait for those who may still read them.
    pub(crate) fn has_retired_leaves(&self) -> bool {
        !self.leaves.retired.lock().is_empty()
    }

    /// A look for a key came by so many leaves.
    #[inline]
    pub(crate) fn record_leaf_look(&self, leaves: u32) {
        self.leaves.looks.add(0);
        (0..leaves).for_each(|_| self.leaves.looks.add(1));
    }

    /// Looks for a key, and the leaves that these came by.
    pub(crate) fn leaf_looks(&self) -> (u64, u64) {
        (self.leaves.looks.sum(0), self.leaves.looks.sum(1))
    }

    /// Somebody came by a leaf that is not what was written: of its keys nobody knows any more how many records they have.
    #[cold]
    pub(crate) fn record_damaged_leaf(&self) {
        self.leaves.damaged.store(true, Ordering::Relaxed);
    }

    /// Whether anybody did since the store was opened.
    pub(crate) fn has_damaged_leaf(&self) -> bool {
        self.leaves.damaged.load(Ordering::Relaxed)
    }

    /// Extents of leaves, those that wait for readers among them.
    pub(crate) fn leaf_extents(&self) -> u32 {
        self.leaves.taken.lock().len() as u32
    }

    /// Whether leaves are at this place of the tier, and no record.
    pub(crate) fn is_leaf(&self, offset: u64) -> bool {
        let extent = (offset >> self.space.extent_shift()) as u32;
        self.leaves.taken.lock().contains_key(&extent)
    }

    /// One that has leaves in an extent has let go.
    pub(super) fn free_leaves(&self, extent: u32) {
        let mut taken = self.leaves.taken.lock();
        if let Some(uses) = taken.get_mut(&extent).filter(|uses| **uses > 1) {
            *uses -= 1;
            return;
        }
        taken.remove(&extent);
        drop(taken);
        self.space.free(extent..extent + 1);
    }
}

impl<'l> LeafWriter<'l> {
    /// One for what both have written.
    pub(crate) fn join(mut self, mut other: LeafWriter<'l>) -> LeafWriter<'l> {
        self.taken.append(&mut other.taken);
        // That of one of them; the other's goes to the next who shares, as it is dropped.
        self.rest = self.rest.or_else(|| other.rest.take());
        self
    }

    /// See [`Log::next_segment_number`].
    pub(crate) fn next_segment_number(&self) -> u64 {
        self.log.next_segment_number()
    }

    /// Has leaves in an extent from now on, once more if it has some there.
    fn add_use(&mut self, extent: u32) {
        self.taken.push(extent);
        *self.log.leaves.taken.lock().entry(extent).or_default() += 1;
    }

    /// Where to go on in an extent that is shared: what was left of it is its own then.
    fn take_rest(&mut self) -> Option<LeafRest> {
        let rest = self.rest.take().or_else(|| self.log.leaves.rests.lock().pop())?;
        self.taken.push(rest.extent);
        Some(rest)
    }

    /// What was written stays, until it is [retired](Log::retire_leaves).
    pub(crate) fn keep(mut self) {
        self.taken.clear();
    }
}

impl LeafExtents for LeafWriter<'_> {
    type Error = Error;

    fn take(&mut self) -> Result<(LeafPlace, usize)> {
        self.log.check_open()?;
        let number = self.log.leaves.next_number.fetch_add(1, Ordering::Relaxed);
        if self.shares
            && let Some(LeafRest { at, bytes, .. }) = self.take_rest()
        {
            return Ok((LeafPlace { number, at }, bytes as usize));
        }
        let no_room = || Error::new(ErrorKind::Full, "there is no room for leaves of the index");
        if self.left > 0 && self.log.space.room().0 <= self.left + Claim::Write.reserve() {
            return Err(no_room());
        }
        let Ok(extent) = self.log.space.take(1, Claim::Write)? else { return Err(no_room()) };
        self.add_use(extent);
        let at = self.log.leaves_at(extent);
        Ok((LeafPlace { number, at }, self.log.leaf_bytes_max() as usize))
    }

    fn write(&mut self, place: LeafPlace, leaves: &[u8]) -> Result<()> {
        self.log.tier.write(place.at, leaves.len(), |out| out.copy_from_slice(leaves));
        let extent = (place.at >> self.log.space.extent_shift()) as u32;
        let at = place.at + leaves.len() as u64;
        let bytes = self.log.extent_offset(extent) + self.log.extent_bytes() - at;
        if self.shares && bytes >= REST_BYTES_MIN {
            *self.log.leaves.taken.lock().entry(extent).or_default() += 1;
            self.rest = Some(LeafRest { extent, at, bytes });
        }
        Ok(())
    }
}

impl Drop for LeafWriter<'_> {
    fn drop(&mut self) {
        self.taken.drain(..).for_each(|extent| self.log.free_leaves(extent));
        self.log.leaves.rests.lock().extend(self.rest.take());
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
