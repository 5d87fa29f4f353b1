//! Deleting a group of keys, some a step.
//!
//! Owns [`GroupDelete`], what is under way of one. Promises that each pair is deleted whole, and a key space's name after all of its pairs. Must not know how a pair is deleted.

use super::Device;
use super::bucket::WalkPosition;
use crate::code::Result;
use crate::command::{KeyPattern, KvAnswer, PairKey, SpaceId};

/// Hashes that a step goes over.
const LOOKS_A_STEP: usize = 64;

/// A group's deletion that is under way.
#[derive(Debug)]
pub(super) struct GroupDelete {
    tag: u64,
    space: SpaceId,
    selected: KeyPattern,
    position: WalkPosition,
    deleted: u64,
    /// The key space goes, too.
    name: Option<PairKey>,
}

impl GroupDelete {
    pub(super) fn new(tag: u64, space: SpaceId, selected: KeyPattern) -> GroupDelete {
        GroupDelete { tag, space, selected, position: WalkPosition::default(), deleted: 0, name: None }
    }

    pub(super) fn of_space(tag: u64, space: SpaceId, name: PairKey) -> GroupDelete {
        GroupDelete { name: Some(name), ..GroupDelete::new(tag, space, KeyPattern::ALL) }
    }
}

impl Device {
    /// Goes on with the deletion that is under way; its completion when it is done.
    pub(super) fn step_group_delete(&mut self) -> Option<(u64, Result<KvAnswer>)> {
        let mut group = self.group_delete.take()?;
        self.tag = group.tag;
        if let Some(error) = &self.failed {
            return Some((group.tag, Err(error.clone())));
        }
        match self.delete_some(&mut group) {
            Ok(false) => {
                self.group_delete = Some(group);
                None
            }
            Ok(true) => Some((group.tag, Ok(KvAnswer::GroupDeleted(group.deleted)))),
            Err(error) => Some((group.tag, Err(error))),
        }
    }

    /// Whether none are left.
    fn delete_some(&mut self, group: &mut GroupDelete) -> Result<bool> {
        let hashes = self.buckets.hashes(group.space, &group.selected, &group.position, LOOKS_A_STEP);
        for &(of_group, hash) in &hashes {
            for (key, _) in self.keys_of(group.space, of_group, hash, &[])? {
                self.delete(group.space, &key, false)?;
                group.deleted += 1;
            }
            // Those that are deleted are no longer in the bucket; what is there still, under a hash that others have, is passed over.
            group.position = WalkPosition { group: of_group, hash, after: Vec::new() }.behind();
        }
        if hashes.len() == LOOKS_A_STEP {
            return Ok(false);
        }
        if let Some(name) = &group.name {
            self.delete(SpaceId::DIRECTORY, name.bytes(), false)?;
            self.spaces.remove(group.space);
            self.iterators.close(|open| open.space == group.space);
        }
        Ok(true)
    }
}
