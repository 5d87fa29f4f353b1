//! The walk of a group, both ways.
//!
//! Owns [`GroupCursor`]. Promises that each entry it is at is of a leaf that verified. Must not know what a slot leads to.

use super::leaf::Leaf;
use super::{DamagedLeaf, Group, LeafBytes};

/// A walk of a group, at an entry or beyond all.
#[derive(Debug)]
pub struct GroupCursor<'g, B> {
    group: &'g Group,
    bytes: &'g B,
    at: Option<EntryPlace<'g>>,
    key: Vec<u8>,
}

/// An entry: its leaf, and its place in that.
#[derive(Debug, Clone, Copy)]
struct EntryPlace<'g> {
    leaf: (usize, u32),
    bytes: Leaf<'g>,
    entry: usize,
}

impl<'g, B: LeafBytes> GroupCursor<'g, B> {
    /// One that is at no entry yet.
    pub fn new(group: &'g Group, bytes: &'g B) -> GroupCursor<'g, B> {
        GroupCursor { group, bytes, at: None, key: Vec::new() }
    }

    /// What it walks.
    pub fn group(&self) -> &'g Group {
        self.group
    }

    /// The key that it is at.
    #[inline]
    pub fn key(&self) -> Option<&[u8]> {
        self.at.is_some().then_some(self.key.as_slice())
    }

    /// The key and the slot that it is at.
    #[inline]
    pub fn entry(&self) -> Option<(&[u8], u64)> {
        self.at.map(|at| (self.key.as_slice(), at.bytes.slot(at.entry)))
    }

    fn set(&mut self, at: Option<EntryPlace<'g>>) {
        self.at = at;
        if let Some(EntryPlace { bytes, entry, .. }) = at {
            bytes.key_into(entry, &mut self.key);
        }
    }

    /// To the first entry whose key is not below this one.
    ///
    /// # Errors
    /// If a leaf on the way is damaged; the walk is at no entry then, as with all that follow.
    pub fn seek(&mut self, key: &[u8]) -> Result<(), DamagedLeaf> {
        self.at = None;
        if self.group.extents.is_empty() {
            return Ok(());
        }
        let extent = self.group.separators.find(key).unwrap_or(0);
        let leaf = (extent, self.group.extents[extent].leaf_of(key).unwrap_or(0));
        let bytes = self.group.leaf(leaf, self.bytes)?;
        let entry = bytes.lower_bound(key);
        match entry < bytes.count() {
            true => self.set(Some(EntryPlace { leaf, bytes, entry })),
            false => self.enter(self.group.next_leaf(leaf), |_| 0)?,
        }
        Ok(())
    }

    /// To the last entry whose key is below this one.
    pub fn seek_below(&mut self, key: &[u8]) -> Result<(), DamagedLeaf> {
        self.at = None;
        let Some(extent) = self.group.separators.find(key) else { return Ok(()) };
        let Some(leaf) = self.group.extents[extent].leaf_of(key) else { return Ok(()) };
        let bytes = self.group.leaf((extent, leaf), self.bytes)?;
        match bytes.lower_bound(key).checked_sub(1) {
            Some(entry) => self.set(Some(EntryPlace { leaf: (extent, leaf), bytes, entry })),
            None => self.enter(self.group.previous_leaf((extent, leaf)), |count| count - 1)?,
        }
        Ok(())
    }

    /// To the last of all.
    pub fn seek_last(&mut self) -> Result<(), DamagedLeaf> {
        self.at = None;
        let Some(last) = self.group.extents.len().checked_sub(1) else { return Ok(()) };
        self.enter(Some((last, self.group.extents[last].leaves() - 1)), |count| count - 1)
    }

    /// To the entry of a leaf that `which` picks of so many; to none if there is no leaf.
    fn enter(
        &mut self,
        leaf: Option<(usize, u32)>,
        which: impl Fn(usize) -> usize,
    ) -> Result<(), DamagedLeaf> {
        self.at = None;
        if let Some(leaf) = leaf {
            let bytes = self.group.leaf(leaf, self.bytes)?;
            self.set(Some(EntryPlace { leaf, bytes, entry: which(bytes.count()) }));
        }
        Ok(())
    }

    /// On to the next entry.
    pub fn advance(&mut self) -> Result<(), DamagedLeaf> {
        let Some(at) = self.at else { return Ok(()) };
        match at.entry + 1 < at.bytes.count() {
            true => self.set(Some(EntryPlace { entry: at.entry + 1, ..at })),
            false => self.enter(self.group.next_leaf(at.leaf), |_| 0)?,
        }
        Ok(())
    }

    /// Back to the entry before.
    pub fn go_back(&mut self) -> Result<(), DamagedLeaf> {
        let Some(at) = self.at else { return Ok(()) };
        match at.entry.checked_sub(1) {
            Some(entry) => self.set(Some(EntryPlace { entry, ..at })),
            None => self.enter(self.group.previous_leaf(at.leaf), |count| count - 1)?,
        }
        Ok(())
    }
}
