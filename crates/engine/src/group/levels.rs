//! The levels of groups: several that came one after the other, and below them one that has what was merged.
//!
//! Owns [`GroupLevels`]: the order of a look, and how many groups it asks. Promises that of a key which several groups have the newest entry is found, by whoever holds levels of whatever age. Must not know what
//! a slot leads to, nor where extents are.
//!
//! *L0* are groups as they came, numbered in that order; any of them may have any key. *L1* is one group. Levels do not change: who adds a group to L0, or merges some into L1, makes others, lets everybody see them, and only then
//! raises the filter's watermark ([`GroupLevels::deletes`]). The filter is one for levels of all ages; it has the keys of a group before anybody sees that. So a look asks L1 alone for most keys, and one group of L0 for the others
//! (BushStore, ICDE 2024: "expired" is an answer).
//!
//! Groups of L0 that are next to one another may be made one that stays there ([`MergedGroups`]). It has the number of the oldest of them: what the filter says of its keys is that number or a higher one, and below that of the next group.

use std::ops::RangeInclusive;

use super::filter::{FilterLook, GroupFilter};
use super::{DamagedLeaf, Group, LeafBytes, hash_of};
use crate::sync::Arc;

/// A group of L0.
#[derive(Debug, Clone)]
pub struct NumberedGroup {
    /// Which of all that ever came it is.
    pub number: u64,
    /// What it has.
    pub group: Arc<Group>,
}

/// Groups of which one is made: those of L0 from a number to another, both included, and L1 if that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergedGroups {
    /// All up to this number, and L1: what they come to is L1.
    IntoL1(u64),
    /// Those of L0 alone that have these numbers.
    OfL0(RangeInclusive<u64>),
}

impl MergedGroups {
    fn has(&self, number: u64) -> bool {
        match self {
            MergedGroups::IntoL1(upto) => number <= *upto,
            MergedGroups::OfL0(numbers) => numbers.contains(&number),
        }
    }
}

/// Groups by level.
#[derive(Debug, Clone, Default)]
pub struct GroupLevels {
    /// Newest first.
    l0: Vec<NumberedGroup>,
    l1: Arc<Group>,
    /// Of L0; without one all are asked.
    filter: Option<Arc<GroupFilter>>,
}

/// What a look found, and how many groups it asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLook {
    /// The slot of the newest entry.
    pub slot: Option<u64>,
    /// The [stamp](Group::stamp) of the group that has it; 0 of none.
    pub stamp: u64,
    /// The groups that were asked: a leaf of each.
    pub asked: u32,
}

impl GroupLevels {
    /// The groups of L0, newest first.
    pub fn l0(&self) -> &[NumberedGroup] {
        &self.l0
    }

    /// The group below them.
    pub fn l1(&self) -> &Arc<Group> {
        &self.l1
    }

    /// All groups, newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.l0.iter().map(|of| &of.group).chain([&self.l1]).filter(|group| group.entries() > 0)
    }

    /// The filter of L0.
    pub fn filter(&self) -> Option<&Arc<GroupFilter>> {
        self.filter.as_ref()
    }

    /// The same with this filter, which has the keys of all groups of L0; or without one.
    #[must_use]
    pub fn with_filter(self, filter: Option<Arc<GroupFilter>>) -> GroupLevels {
        GroupLevels { filter, ..self }
    }

    /// The same with a group more in L0, whose number is above those before. Its keys are in the filter, or that is left out.
    #[must_use]
    pub fn with_group(&self, newest: NumberedGroup) -> GroupLevels {
        debug_assert!(
            self.l0.first().is_none_or(|before| before.number < newest.number),
            "groups come in order"
        );
        let l0 = std::iter::once(newest).chain(self.l0.iter().cloned()).collect();
        GroupLevels { l0, l1: Arc::clone(&self.l1), filter: self.filter.clone() }
    }

    /// The same with another group in the place of the newest of L0, which has that one's number and all of its keys.
    #[must_use]
    pub fn with_newest(&self, newest: NumberedGroup) -> GroupLevels {
        debug_assert!(
            self.l0.first().is_some_and(|before| before.number == newest.number),
            "the newest goes on"
        );
        let l0 = std::iter::once(newest).chain(self.l0.iter().skip(1).cloned()).collect();
        GroupLevels { l0, l1: Arc::clone(&self.l1), filter: self.filter.clone() }
    }

    /// The same once all groups of L0 up to this number were merged with L1.
    #[must_use]
    pub fn merged(&self, upto: u64, l1: Arc<Group>) -> GroupLevels {
        let l0 = self.l0.iter().filter(|of| of.number > upto).cloned().collect();
        GroupLevels { l0, l1, filter: self.filter.clone() }
    }

    /// Those of them of which one is made, newest first.
    pub fn merging(&self, of: &MergedGroups) -> Vec<&Arc<Group>> {
        let of_l0 = self.l0.iter().filter(|group| of.has(group.number)).map(|group| &group.group);
        of_l0.chain(matches!(of, MergedGroups::IntoL1(_)).then_some(&self.l1)).collect()
    }

    /// The same once those of L0 with these numbers were made this group, which stays at their place.
    #[must_use]
    pub fn merged_in_l0(&self, numbers: &RangeInclusive<u64>, group: Arc<Group>) -> GroupLevels {
        let (newer, others): (Vec<_>, Vec<_>) =
            self.l0.iter().cloned().partition(|of| of.number > *numbers.end());
        let (merged, older): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|of| of.number >= *numbers.start());
        let oldest = merged.last().filter(|_| group.entries() > 0).map(|of| of.number);
        let merged = oldest.map(|number| NumberedGroup { number, group });
        let l0 = newer.into_iter().chain(merged).chain(older).collect();
        GroupLevels { l0, l1: Arc::clone(&self.l1), filter: self.filter.clone() }
    }

    /// The same with numbers one behind the other, all below `next`, and without a filter: to that they are not known.
    #[must_use]
    pub fn renumbered(&self, next: u64) -> GroupLevels {
        let of_l0 = self.l0.iter().zip((0..next).rev());
        let l0 = of_l0.map(|(of, number)| NumberedGroup { number, group: Arc::clone(&of.group) }).collect();
        GroupLevels { l0, l1: Arc::clone(&self.l1), filter: None }
    }

    /// Lets the slots be taken that the filter has for what was merged up to this number. To be called once nobody can come by levels from before any more; who holds some is not misled.
    pub fn deletes(&self, upto: u64) {
        if let Some(filter) = &self.filter {
            filter.raise_watermark(upto + 1);
        }
    }

    /// Starts loading what tells which groups may have a key.
    pub fn prefetch(&self, key: &[u8]) {
        if let Some(filter) = self.filter.as_ref().filter(|_| !self.l0.is_empty()) {
            filter.prefetch(hash_of(key));
        }
    }

    /// The newest entry of a key.
    ///
    /// # Errors
    /// If a leaf that may have it is damaged.
    pub fn get<B: LeafBytes>(&self, key: &[u8], bytes: &B) -> Result<GroupLook, DamagedLeaf> {
        let hash = hash_of(key);
        let mut asked = 0;
        for of in self.may_have(hash) {
            asked += 1;
            if let Some(slot) = of.group.get(key, hash, bytes)? {
                return Ok(GroupLook { slot: Some(slot), stamp: of.group.stamp(), asked });
            }
        }
        let asked = asked + u32::from(self.l1.entries() > 0);
        Ok(GroupLook { slot: self.l1.get(key, hash, bytes)?, stamp: self.l1.stamp(), asked })
    }

    /// Whether a key that is in the group at this place, counted from the [newest](GroupLevels::newest_first), is in none that is newer.
    ///
    /// # Errors
    /// If a leaf that may have it is damaged.
    pub fn is_newest<B: LeafBytes>(&self, at: usize, key: &[u8], bytes: &B) -> Result<bool, DamagedLeaf> {
        let hash = hash_of(key);
        for newer in self.newest_first().take(at) {
            if newer.get(key, hash, bytes)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The groups of L0 that may have a key of this hash.
    fn may_have(&self, hash: u64) -> &[NumberedGroup] {
        let (Some(newest), Some(oldest)) = (self.l0.first(), self.l0.last()) else { return &[] };
        let look = self.filter.as_ref().map(|filter| filter.look(hash, oldest.number, newest.number));
        match look {
            Some(FilterLook::Nowhere) => &[],
            // The number is a bound: another key may look the same.
            Some(FilterLook::UpTo(number)) => {
                let newer = self.l0.partition_point(|of| of.number > number);
                &self.l0[newer..]
            }
            Some(FilterLook::Unknown) | None => &self.l0,
        }
    }
}
