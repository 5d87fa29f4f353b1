//! Iterator buckets: which keys begin with which four bytes.
//!
//! Owns [`Buckets`] and the open iterators. Promises that a key that is there throughout is in its bucket, under its hash; what else is in a bucket is no promise: whoever
//! walks one looks each hash up in the index, and gives out what is there. So a key that was deleted cannot come back from here. Must not know where
//! records lie. In memory only, and rebuilt on opening.

use std::collections::BTreeSet;

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
    /// Behind all keys of its hash; none is the end.
    pub(super) fn behind(&self) -> Option<WalkPosition> {
        let (hash, is_last) = self.hash.overflowing_add(1);
        let group = if is_last { self.group.checked_add(1)? } else { self.group };
        Some(WalkPosition { group, hash, after: Vec::new() })
    }
}

/// Key space, group and hash, in this order: 8, 32 and 64 bits.
fn packed(space: SpaceId, group: u32, hash: u64) -> u128 {
    u128::from(space.number()) << 96 | u128::from(group) << 64 | u128::from(hash)
}

/// Some hashes of selected groups.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HashBatch {
    /// Groups and hashes, in order.
    pub(super) hashes: Vec<(u32, u64)>,
    /// So many places were looked at.
    pub(super) looks: usize,
    /// Where it goes on; none is the end.
    pub(super) next: Option<WalkPosition>,
}

/// All buckets in one ordered set: where first bytes all differ a bucket of its own would cost more than what is in it.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    hashes: BTreeSet<u128>,
}

impl Buckets {
    pub(super) fn insert(&mut self, space: SpaceId, group: u32, hash: u64) {
        self.hashes.insert(packed(space, group, hash));
    }

    pub(super) fn has(&self, space: SpaceId, group: u32, hash: u64) -> bool {
        self.hashes.contains(&packed(space, group, hash))
    }

    pub(super) fn remove(&mut self, space: SpaceId, group: u32, hash: u64) {
        self.hashes.remove(&packed(space, group, hash));
    }

    /// At most `count` hashes of selected groups, from a position on, in its order; and no more than `looks_max` looks, at a hash each, or at a group that is passed over: what the mask
    /// refuses costs a look wherever it is, and the next position is behind it.
    pub(super) fn hashes(
        &self,
        space: SpaceId,
        selected: &KeyPattern,
        from: &WalkPosition,
        count: usize,
        looks_max: usize,
    ) -> HashBatch {
        let mut batch = HashBatch { hashes: Vec::new(), looks: 0, next: None };
        let last = packed(space, u32::MAX, u64::MAX);
        let mut position = (from.group, from.hash);
        while let Some(group) = selected.next_group(position.0) {
            let start = if group == position.0 { position.1 } else { 0 };
            let mut is_last = true;
            for &found in self.hashes.range(packed(space, group, start)..=last) {
                let (of, hash) = ((found >> 64) as u32, found as u64);
                if batch.looks == looks_max || batch.hashes.len() == count {
                    batch.next = Some(WalkPosition { group: of, hash, after: Vec::new() });
                    return batch;
                }
                batch.looks += 1;
                if of != group {
                    (position, is_last) = ((of, hash), false);
                    break;
                }
                batch.hashes.push((of, hash));
            }
            if is_last {
                return batch;
            }
        }
        batch
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
        let missing = || KvError::IteratorMissing { iterator: handle };
        self.open.iter().find(|open| open.handle == handle).ok_or_else(missing)
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

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    /// Any mask, budgets of a few looks: all selected hashes come, once, in order, and each batch stays within its budget.
    #[test]
    fn batches_give_all_that_is_selected_within_their_budgets() {
        let mut random = Random::from_seed(1);
        let mut buckets = Buckets::default();
        let mut all = BTreeSet::new();
        for n in 0..5000u32 {
            let group = if n % 2 == 0 { random.next_u64() as u32 } else { random.below(40) as u32 };
            let hash = if n % 50 == 0 { u64::MAX } else { random.next_u64() };
            let group = if n % 70 == 0 { u32::MAX } else { group };
            buckets.insert(SpaceId(3), group, hash);
            buckets.insert(SpaceId(2), group, hash);
            all.insert((group, hash));
        }
        buckets.insert(SpaceId(4), 0, 0);
        for mask in [[0; 4], [0xFF; 4], [0, 0, 0, 0xFF], [0xF0, 0, 3, 0], [0x80, 0, 0, 1]] {
            let selected = KeyPattern { mask, pattern: (random.next_u64() as u32 & 31).to_be_bytes() };
            let expected: Vec<_> =
                all.iter().copied().filter(|(group, _)| selected.selects(*group)).collect();
            for (count, looks_max) in [(4096, 4096), (3, 100), (100, 3), (1, 1)] {
                let (mut found, mut position) = (Vec::new(), Some(WalkPosition::default()));
                while let Some(from) = position {
                    let batch = buckets.hashes(SpaceId(3), &selected, &from, count, looks_max);
                    assert!(batch.looks <= looks_max && batch.hashes.len() <= count);
                    assert!(batch.next.is_none() || batch.looks == looks_max || batch.hashes.len() == count);
                    found.extend(batch.hashes);
                    position = batch.next;
                }
                assert!(found == expected, "{mask:?}: {} of {}", found.len(), expected.len());
            }
        }
    }

    #[test]
    fn behind_the_last_hash_of_the_last_group_is_the_end() {
        let at = |group, hash| WalkPosition { group, hash, after: b"k".to_vec() };
        let fresh = |group, hash| WalkPosition { after: Vec::new(), ..at(group, hash) };
        assert_eq!(at(1, 2).behind(), Some(fresh(1, 3)));
        assert_eq!(at(1, u64::MAX).behind(), Some(fresh(2, 0)));
        assert_eq!(at(u32::MAX, u64::MAX).behind(), None);
    }
}
