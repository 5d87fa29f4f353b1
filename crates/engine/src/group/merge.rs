//! Several groups made one: of each key the newest entry.
//!
//! Owns [`MergedEntries`], the walk of several groups as one. Promises that each key comes once, in order, with the entry of the newest group that has it, and
//! that each entry which is older is told. It takes memory for a key of each group. Must not know what is made of the entries, nor what a slot leads to.

use std::cmp::Ordering;

use super::{DamagedLeaf, Group, GroupCursor, LeafBytes};

/// The entries of groups, in the order of keys.
#[derive(Debug)]
pub struct MergedEntries<'g, B> {
    /// Newest first.
    cursors: Vec<GroupCursor<'g, B>>,
    /// Places of cursors that are at an entry, as a heap: the first is the one whose entry comes next.
    heap: Vec<usize>,
    /// The one that is left behind.
    key: Vec<u8>,
}

impl<'g, B: LeafBytes> MergedEntries<'g, B> {
    /// Of groups, newest first, from `from` on.
    ///
    /// # Errors
    /// If a leaf is damaged: nothing can be said of its keys.
    pub fn new(groups: &[&'g Group], bytes: &'g B, from: &[u8]) -> Result<MergedEntries<'g, B>, DamagedLeaf> {
        let mut cursors: Vec<_> = groups.iter().map(|group| GroupCursor::new(group, bytes)).collect();
        cursors.iter_mut().try_for_each(|cursor| cursor.seek(from))?;
        let heap = (0..cursors.len()).filter(|n| cursors[*n].key().is_some()).collect();
        let mut merged = MergedEntries { cursors, heap, key: Vec::new() };
        (0..merged.heap.len()).rev().for_each(|at| merged.sink(at));
        Ok(merged)
    }

    /// Whether the entry of one cursor comes before that of another: of the lesser key, and of one key the newest.
    fn is_before(&self, one: usize, other: usize) -> bool {
        match self.cursors[one].key().cmp(&self.cursors[other].key()) {
            Ordering::Less => true,
            Ordering::Equal => one < other,
            Ordering::Greater => false,
        }
    }

    /// Moves what is at `at` down to where it belongs.
    fn sink(&mut self, mut at: usize) {
        loop {
            let children = [2 * at + 1, 2 * at + 2].into_iter().filter(|child| *child < self.heap.len());
            let least =
                children.reduce(|one, other| match self.is_before(self.heap[other], self.heap[one]) {
                    true => other,
                    false => one,
                });
            let Some(least) = least else { return };
            if !self.is_before(self.heap[least], self.heap[at]) {
                return;
            }
            self.heap.swap(least, at);
            at = least;
        }
    }

    /// The first cursor goes on by one entry.
    fn step(&mut self) -> Result<(), DamagedLeaf> {
        let Some(&first) = self.heap.first() else { return Ok(()) };
        self.cursors[first].advance()?;
        if self.cursors[first].key().is_none() {
            self.heap.swap_remove(0);
        }
        self.sink(0);
        Ok(())
    }

    /// Goes on to the next key. `older` is told what older groups have of the one it was at.
    ///
    /// # Errors
    /// If a leaf is damaged: nothing can be said of what follows.
    pub fn advance(&mut self, mut older: impl FnMut(&[u8], u64)) -> Result<(), DamagedLeaf> {
        let mut left = std::mem::take(&mut self.key);
        if let Some((key, _)) = self.entry() {
            left.clear();
            left.extend_from_slice(key);
            self.step()?;
        }
        while let Some((key, slot)) = self.entry().filter(|(key, _)| *key == left) {
            older(key, slot);
            self.step()?;
        }
        self.key = left;
        Ok(())
    }

    /// The [stamp](Group::stamp) of the group whose entry it is at; 0 at the end.
    pub fn stamp(&self) -> u64 {
        self.heap.first().map_or(0, |first| self.cursors[*first].group().stamp())
    }

    /// The entry that it is at.
    pub fn entry(&self) -> Option<(&[u8], u64)> {
        self.cursors[*self.heap.first()?].entry()
    }
}
