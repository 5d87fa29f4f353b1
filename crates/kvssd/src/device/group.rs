//! Deleting a group of keys, some a step.
//!
//! Owns [`GroupDelete`], what is under way of one. Promises that each pair is deleted whole, a key space's name after all of its pairs, and that a record that cannot be read keeps
//! no other pair. Must not know how a pair is deleted.

use super::Device;
use super::bucket::WalkPosition;
use crate::code::{KvError, Result};
use crate::command::{KeyPattern, KvAnswer, PairKey, SpaceId};

/// Hashes that a step goes over, and groups that it passes over.
const LOOKS_A_STEP: usize = 64;

/// A group's deletion that is under way.
#[derive(Debug)]
pub(super) struct GroupDelete {
    tag: u64,
    space: SpaceId,
    selected: KeyPattern,
    position: WalkPosition,
    deleted: u64,
    /// A record was in the way that cannot be read: told at the end.
    unreadable: Option<KvError>,
    /// The key space goes, too.
    is_whole_space: bool,
    /// With its name, if it has one that can be read.
    name: Option<PairKey>,
}

impl GroupDelete {
    pub(super) fn new(tag: u64, space: SpaceId, selected: KeyPattern) -> GroupDelete {
        GroupDelete {
            tag,
            space,
            selected,
            position: WalkPosition::default(),
            deleted: 0,
            unreadable: None,
            is_whole_space: false,
            name: None,
        }
    }

    pub(super) fn of_space(tag: u64, space: SpaceId, name: Option<PairKey>) -> GroupDelete {
        GroupDelete { is_whole_space: true, name, ..GroupDelete::new(tag, space, KeyPattern::ALL) }
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
        let batch =
            self.buckets.hashes(group.space, &group.selected, &group.position, LOOKS_A_STEP, LOOKS_A_STEP);
        for &(of_group, hash) in &batch.hashes {
            let (keys, unreadable) = self.keys_of(group.space, of_group, hash, &[])?;
            group.unreadable = group.unreadable.take().or(unreadable);
            for (key, _) in keys {
                match self.delete(group.space, &key, false) {
                    Ok(_) => group.deleted += 1,
                    // Another key with its hash.
                    Err(error @ (KvError::Damaged { .. } | KvError::ReadFault { .. })) => {
                        group.unreadable.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if let Some(next) = batch.next {
            group.position = next;
            return Ok(false);
        }
        if let Some(error) = group.unreadable.take() {
            return Err(error);
        }
        if let Some(name) = &group.name {
            self.delete(SpaceId::DIRECTORY, name.bytes(), false)?;
        }
        if group.is_whole_space {
            self.spaces.remove(group.space);
            self.iterators.close(|open| open.space == group.space);
        }
        Ok(true)
    }
}
