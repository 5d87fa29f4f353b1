//! Iterator buckets: which keys begin with which four bytes.
//!
//! Owns [`Buckets`] and the open iterators. Promises that a key that is there throughout is in its bucket, under its hash; what else is in a bucket is no promise: whoever
//! walks one looks each hash up in the index, and gives out what is there. So a key that was deleted cannot come back from here. Must not know where
//! records lie. In memory only, and rebuilt on opening.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{KvError, Result};
use crate::command::{ITERATORS_MAX, IteratorContent, KeyPattern, SpaceId};

/// Where a walk over buckets goes on: at a group and a hash, behind a key if some of that hash were given out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct WalkPosition {
    pub(super) group: u32,
    pub(super) hash: u64,
    pub(super) after: Vec<u8>,
}

impl WalkPosition {
    /// Behind all keys of its hash.
    pub(super) fn behind(&self) -> WalkPosition {
        match self.hash.checked_add(1) {
            Some(hash) => WalkPosition { group: self.group, hash, after: Vec::new() },
            None => WalkPosition { group: self.group.saturating_add(1), ..WalkPosition::default() },
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Buckets {
    buckets: BTreeMap<(SpaceId, u32), BTreeSet<u64>>,
}

impl Buckets {
    pub(super) fn insert(&mut self, space: SpaceId, group: u32, hash: u64) {
        self.buckets.entry((space, group)).or_default().insert(hash);
    }

    pub(super) fn remove(&mut self, space: SpaceId, group: u32, hash: u64) {
        if let Some(bucket) = self.buckets.get_mut(&(space, group)) {
            bucket.remove(&hash);
            if bucket.is_empty() {
                self.buckets.remove(&(space, group));
            }
        }
    }

    /// At most `count` hashes of selected groups, from a position on, in its order. Fewer: those were the last. Groups that the mask's leading ones leave out
    /// are passed over at once; others are looked at one by one.
    pub(super) fn hashes(
        &self,
        space: SpaceId,
        selected: &KeyPattern,
        from: &WalkPosition,
        count: usize,
    ) -> Vec<(u32, u64)> {
        let (least, greatest) = selected.groups();
        let first = least.max(from.group);
        if first > greatest {
            return Vec::new();
        }
        let groups = self.buckets.range((space, first)..=(space, greatest));
        let hashes =
            groups.filter(|((_, group), _)| selected.selects(*group)).flat_map(|(&(_, group), bucket)| {
                let start = if group == from.group { from.hash } else { 0 };
                bucket.range(start..).map(move |&hash| (group, hash))
            });
        hashes.take(count).collect()
    }
}

/// An iterator that is open.
#[derive(Debug, Clone)]
pub(super) struct OpenIterator {
    pub(super) handle: u32,
    pub(super) owner: u64,
    pub(super) space: SpaceId,
    pub(super) selected: KeyPattern,
    pub(super) content: IteratorContent,
    /// None at its end.
    pub(super) position: Option<WalkPosition>,
}

#[derive(Debug, Default)]
pub(super) struct Iterators {
    open: Vec<OpenIterator>,
    last_handle: u32,
}

impl Iterators {
    /// Opens one; its handle.
    pub(super) fn open(
        &mut self,
        space: SpaceId,
        selected: KeyPattern,
        content: IteratorContent,
        owner: u64,
    ) -> Result<u32> {
        let same = |open: &&OpenIterator| {
            open.space == space && open.content == content && open.selected.is_same(&selected)
        };
        if let Some(open) = self.open.iter().find(same) {
            return Err(KvError::IteratorOpen { iterator: open.handle });
        }
        if self.open.len() == ITERATORS_MAX {
            return Err(KvError::IteratorMax { max: ITERATORS_MAX });
        }
        self.last_handle = self.last_handle.wrapping_add(1).max(1);
        let (handle, position) = (self.last_handle, Some(WalkPosition::default()));
        self.open.push(OpenIterator { handle, owner, space, selected, content, position });
        Ok(handle)
    }

    pub(super) fn get(&self, handle: u32) -> Result<&OpenIterator> {
        let missing = KvError::IteratorMissing { iterator: handle };
        self.open.iter().find(|open| open.handle == handle).ok_or(missing)
    }

    pub(super) fn set_position(&mut self, handle: u32, position: Option<WalkPosition>) {
        if let Some(open) = self.open.iter_mut().find(|open| open.handle == handle) {
            open.position = position;
        }
    }

    /// Closes those that `which` chooses; how many.
    pub(super) fn close(&mut self, which: impl Fn(&OpenIterator) -> bool) -> u32 {
        let before = self.open.len();
        self.open.retain(|open| !which(open));
        (before - self.open.len()) as u32
    }
}
