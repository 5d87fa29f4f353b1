//! Groups: parts of the index that are on the fast tier, of which memory has the separators alone (BushStore, ICDE 2024).
//!
//! Owns [`Group`], a sequence of keys with a slot each in the leaves of several extents, and [`GroupWriter`], which writes one. Promises that a group is never changed once it is written, so that whoever looks takes no lock; and that
//! what is found is of a leaf that verified. Must not know what a slot leads to, nor when a group is written, merged or let go.
//!
//! * `group/leaf.rs`: the bytes of a leaf. `group/extent.rs`: leaves one behind the other in one extent, and which of them may have a key. `group/separators.rs`: what memory keeps of them.
//! * `group/cursor.rs`: the walk of a group. `group/merge.rs`: several made one.
//! * `group/filter.rs`: which of several groups has the newest entry of a key. `group/levels.rs`: in which order they are asked.
//!
//! A look costs the separators on the way (half a dozen lines of memory for a group of a hundred million keys) and one leaf: of that the lines of its tags, of one suffix and of one slot, but all of it where
//! the checksum is looked at; of a key that is not there the head alone, which has its own.

mod cursor;
mod extent;
mod filter;
mod leaf;
mod levels;
mod merge;
mod separators;

use std::ops::Range;

use crate::sync::Arc;

pub use cursor::GroupCursor;
pub use extent::{DamagedLeaf, LeafExtent, LeafExtentWriter};
pub use filter::{FilterFull, FilterLook, GroupFilter};
pub use leaf::{LEAF_BYTES, Leaf, LeafBuilder};
pub use levels::{GroupLevels, GroupLook, MergedGroups, NumberedGroup};
pub use merge::MergedEntries;
pub use separators::{Separators, SeparatorsBuilder, separator};

/// Which extent leaves are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafPlace {
    /// What no other use of an extent has, as long as there is the store.
    pub number: u64,
    /// Where the leaves begin, to whoever lends them.
    pub at: u64,
}

/// Who lends the bytes of extents.
pub trait LeafBytes {
    /// A part of the leaves that begin at `at`; `None` if nothing is there, or less.
    fn leaf_bytes(&self, at: u64, range: Range<usize>) -> Option<&[u8]>;
}

/// Where a [`GroupWriter`] writes.
pub trait LeafExtents {
    /// What may go wrong.
    type Error;

    /// An extent to be written, and how many bytes of leaves it takes.
    ///
    /// # Errors
    /// If there is none.
    fn take(&mut self) -> Result<(LeafPlace, usize), Self::Error>;

    /// Writes the leaves of the extent that was taken last.
    ///
    /// # Errors
    /// If the medium does not take them.
    fn write(&mut self, place: LeafPlace, leaves: &[u8]) -> Result<(), Self::Error>;
}

/// Entries of keys in order, each key once.
#[derive(Debug, Default)]
pub struct Group {
    extents: Vec<Arc<LeafExtent>>,
    /// By the least keys of extents.
    separators: Separators,
    entries: u64,
    stamp: u64,
}

impl Group {
    /// Of extents in the order of their keys, of which none has keys of another.
    pub fn of(extents: Vec<Arc<LeafExtent>>) -> Group {
        debug_assert!(extents.windows(2).all(|two| two[0].keys()[1] < two[1].keys()[0]));
        let mut separators = SeparatorsBuilder::default();
        extents.iter().for_each(|extent| separators.push(extent.keys()[0]));
        let entries = extents.iter().map(|extent| extent.entries()).sum();
        Group { extents, separators: separators.finish(), entries, stamp: 0 }
    }

    /// The same with this stamp: what whoever wrote it wants to be told with each of its entries. 0 without.
    #[must_use]
    pub fn stamped(self, stamp: u64) -> Group {
        Group { stamp, ..self }
    }

    /// Its stamp.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// What it is in, in the order of keys.
    pub fn extents(&self) -> &[Arc<LeafExtent>] {
        &self.extents
    }

    /// How many keys it has.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// How many leaves it has.
    pub fn leaves(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.leaves())).sum()
    }

    /// The entry at a place of a leaf, counted from 0 each; `None` if there is none.
    ///
    /// # Errors
    /// If the leaf is damaged.
    pub fn entry_at<B: LeafBytes>(
        &self,
        mut leaf: u64,
        at: usize,
        bytes: &B,
    ) -> Result<Option<(Vec<u8>, u64)>, DamagedLeaf> {
        for (extent, of) in self.extents.iter().enumerate() {
            let Some(behind) = leaf.checked_sub(u64::from(of.leaves())) else {
                let leaf = self.leaf((extent, leaf as u32), bytes)?;
                let mut key = Vec::new();
                return Ok((at < leaf.count()).then(|| {
                    leaf.key_into(at, &mut key);
                    (key, leaf.slot(at))
                }));
            };
            leaf = behind;
        }
        Ok(None)
    }

    /// Calls `visit` with the slot of each entry of one of the extents, and with what puts its key into what it is given.
    ///
    /// # Errors
    /// If a leaf is damaged; those of `visit`.
    pub fn each_entry_of<B: LeafBytes>(
        &self,
        extent: usize,
        bytes: &B,
        mut visit: impl FnMut(u64, &dyn Fn(&mut Vec<u8>)) -> Result<(), DamagedLeaf>,
    ) -> Result<(), DamagedLeaf> {
        for leaf in 0..self.extents[extent].leaves() {
            let leaf = self.leaf((extent, leaf), bytes)?;
            for at in 0..leaf.count() {
                visit(leaf.slot(at), &|key| leaf.key_into(at, key))?;
            }
        }
        Ok(())
    }

    /// Bytes of leaves.
    pub fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.bytes())).sum()
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        let extents: usize = self.extents.iter().map(|extent| extent.memory_bytes()).sum();
        extents + self.separators.memory_bytes() + self.extents.capacity() * size_of::<Arc<LeafExtent>>()
    }

    /// The slot of a key with this [hash](hash_of).
    ///
    /// # Errors
    /// If the leaf that may have it is damaged.
    #[inline]
    pub fn get<B: LeafBytes>(&self, key: &[u8], hash: u64, bytes: &B) -> Result<Option<u64>, DamagedLeaf> {
        let Some(extent) = self.separators.find(key) else { return Ok(None) };
        let of = &self.extents[extent];
        let Some(leaf) = of.leaf_of(key) else { return Ok(None) };
        let bytes = bytes.leaf_bytes(of.place().at, of.range_of(leaf)).unwrap_or_default();
        // Of a key that is not there most of the leaf need not have come yet.
        if !of.may_have((leaf, bytes), key, hash)? {
            return Ok(None);
        }
        let leaf = of.leaf(leaf, bytes)?;
        Ok(leaf.find(key, hash).map(|at| leaf.slot(at)))
    }

    /// A leaf of one of the extents.
    fn leaf<'b, B: LeafBytes>(
        &self,
        (extent, leaf): (usize, u32),
        bytes: &'b B,
    ) -> Result<Leaf<'b>, DamagedLeaf> {
        let extent = &self.extents[extent];
        // Nothing verifies as a leaf.
        let bytes = bytes.leaf_bytes(extent.place().at, extent.range_of(leaf)).unwrap_or_default();
        extent.leaf(leaf, bytes)
    }

    /// The leaf behind this one, if there is any.
    fn next_leaf(&self, (extent, leaf): (usize, u32)) -> Option<(usize, u32)> {
        if leaf + 1 < self.extents[extent].leaves() {
            return Some((extent, leaf + 1));
        }
        (extent + 1 < self.extents.len()).then_some((extent + 1, 0))
    }

    fn previous_leaf(&self, (extent, leaf): (usize, u32)) -> Option<(usize, u32)> {
        match leaf.checked_sub(1) {
            Some(leaf) => Some((extent, leaf)),
            None => extent.checked_sub(1).map(|extent| (extent, self.extents[extent].leaves() - 1)),
        }
    }
}

impl<X: LeafExtents> LeafExtents for &mut X {
    type Error = X::Error;

    fn take(&mut self) -> Result<(LeafPlace, usize), X::Error> {
        (**self).take()
    }

    fn write(&mut self, place: LeafPlace, leaves: &[u8]) -> Result<(), X::Error> {
        (**self).write(place, leaves)
    }
}

/// Writes a group, of entries that come in the order of their keys.
#[derive(Debug)]
pub struct GroupWriter<X> {
    extents: X,
    open: Option<LeafExtentWriter>,
    written: Vec<Arc<LeafExtent>>,
}

impl<X: LeafExtents> GroupWriter<X> {
    /// A group of no entries yet.
    pub fn new(extents: X) -> GroupWriter<X> {
        GroupWriter { extents, open: None, written: Vec::new() }
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.open.is_none() && self.written.is_empty()
    }

    /// How many extents it takes so far.
    pub fn extents(&self) -> usize {
        self.written.len() + usize::from(self.open.is_some())
    }

    /// Adds an entry, whose key is above those before, and no longer than an extent has room for.
    ///
    /// # Errors
    /// What the extents say; the group is to be given up then.
    ///
    /// # Panics
    /// If an extent has no room for the key alone.
    pub fn push(&mut self, key: &[u8], slot: u64) -> Result<(), X::Error> {
        self.push_hashed(key, slot, hash_of(key))
    }

    /// The same of a key with this [hash](hash_of).
    ///
    /// # Errors
    /// As [`GroupWriter::push`].
    ///
    /// # Panics
    /// As [`GroupWriter::push`].
    pub fn push_hashed(&mut self, key: &[u8], slot: u64, hash: u64) -> Result<(), X::Error> {
        if let Some(open) = &mut self.open
            && open.push(key, slot, hash)
        {
            return Ok(());
        }
        self.finish_extent()?;
        let (place, bytes_max) = self.extents.take()?;
        let has_room = self.open.insert(LeafExtentWriter::new(place, bytes_max)).push(key, slot, hash);
        assert!(has_room, "an empty extent has room for any key");
        Ok(())
    }

    fn finish_extent(&mut self) -> Result<(), X::Error> {
        let Some(full) = self.open.take() else { return Ok(()) };
        let (leaves, extent) = full.finish();
        self.extents.write(extent.place(), &leaves)?;
        self.written.push(Arc::new(extent));
        Ok(())
    }

    /// The group, of which all is written.
    ///
    /// # Errors
    /// What the extents say.
    pub fn finish(self) -> Result<Group, X::Error> {
        Ok(Group::of(self.finish_extents()?.0))
    }

    /// The extents of the group, of which all is written, for whoever adds others; and who took them.
    ///
    /// # Errors
    /// What the extents say.
    pub fn finish_extents(mut self) -> Result<(Vec<Arc<LeafExtent>>, X), X::Error> {
        self.finish_extent()?;
        Ok((self.written, self.extents))
    }
}

/// The hash of a key, by which leaves and the filter tell keys apart.
pub fn hash_of(key: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(key)
}

#[cfg(all(test, shuttle))]
mod shuttle;
#[cfg(all(test, not(shuttle)))]
mod tests;
