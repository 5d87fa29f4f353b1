//! Who may have which pairs of a proxy's partitions in a cache, and how often they are read and written.
//!
//! Owns, for each slot that was asked for, FlexKV's eight bytes (arXiv 2512.16148, section 5): a bit for each of up to 32 sharers, and two counters. Promises that whoever was granted a pair and was not told of its change is among its sharers;
//! others may be, too. Must not know what a cache does with a pair.
//!
//! A pair is granted while less than a quarter as many writes of its slot were counted as reads. Reads from a cache are counted there, and said when the pair is dropped: the only time at which they decide anything, since it was granted until then.

use std::collections::BTreeMap;

use crate::fabric::NodeId;

/// Sessions that may have pairs of one proxy in their caches, at most: the bits of a slot.
const SHARERS_MAX: usize = 32;

/// A session with a cache, and where it is.
pub(super) type Sharer = (u16, NodeId);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct SlotHeat {
    sharers: u32,
    reads: u16,
    writes: u16,
}

impl SlotHeat {
    fn is_read_often(self) -> bool {
        4 * u32::from(self.writes) < u32::from(self.reads)
    }

    /// What was long ago counts for less and less.
    fn count(&mut self, reads: u32, writes: u32) {
        let mut reads = u32::from(self.reads).saturating_add(reads);
        let mut writes = u32::from(self.writes).saturating_add(writes);
        while reads > u16::MAX.into() || writes > u16::MAX.into() {
            (reads, writes) = (reads >> 2, writes >> 2);
        }
        (self.reads, self.writes) = (reads as u16, writes as u16);
    }
}

/// All of them, of one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Directory {
    sharers: Vec<Sharer>,
    slots: BTreeMap<(u16, u32), SlotHeat>,
}

impl Directory {
    pub(super) fn clear(&mut self) {
        *self = Directory::default();
    }

    fn bit(&mut self, sharer: Sharer) -> Option<u32> {
        let known = self.sharers.iter().position(|other| *other == sharer);
        if known.is_none() && self.sharers.len() < SHARERS_MAX {
            self.sharers.push(sharer);
            return Some(1 << (self.sharers.len() - 1));
        }
        known.map(|at| 1 << at)
    }

    /// A slot was read for `sharer`, none where it has no cache: whether the pair is granted to it.
    pub(super) fn read(&mut self, partition: u16, slot: u32, sharer: Option<Sharer>) -> bool {
        self.accessed((partition, slot), (1, 0), sharer)
    }

    /// A slot was read or written so often: whether the pair is granted, and so `sharer` is one.
    fn accessed(&mut self, slot: (u16, u32), (reads, writes): (u32, u32), sharer: Option<Sharer>) -> bool {
        let bit = sharer.and_then(|sharer| self.bit(sharer)).unwrap_or(0);
        let heat = self.slots.entry(slot).or_default();
        heat.count(reads, writes);
        let bit = if heat.is_read_often() { bit } else { 0 };
        heat.sharers |= bit;
        bit != 0
    }

    /// Reads that a cache counted.
    pub(super) fn count_hits(&mut self, partition: u16, slot: u32, hits: u32) {
        if let Some(heat) = self.slots.get_mut(&(partition, slot)) {
            heat.count(hits, 0);
        }
    }

    /// A slot is about to change: who must be told. From here on nobody is its sharer.
    pub(super) fn take_sharers(&mut self, partition: u16, slot: u32) -> Vec<Sharer> {
        let Some(heat) = self.slots.get_mut(&(partition, slot)) else { return Vec::new() };
        let bits = std::mem::take(&mut heat.sharers);
        let has = |at: &usize| bits >> at & 1 == 1;
        (0..self.sharers.len()).filter(has).map(|at| self.sharers[at]).collect()
    }

    /// A slot has another value of its key: whether the pair is granted to its writer.
    pub(super) fn written(&mut self, partition: u16, slot: u32, writer: Option<Sharer>) -> bool {
        self.accessed((partition, slot), (0, 1), writer)
    }

    /// A slot has another key, or none: what was counted was of the one before.
    pub(super) fn changed_key(&mut self, partition: u16, slot: u32) {
        self.slots.remove(&(partition, slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sharer(number: u16) -> Option<Sharer> {
        Some((number, NodeId(number)))
    }

    #[test]
    fn a_slot_that_is_written_as_often_as_it_is_read_is_granted_to_nobody() {
        let mut directory = Directory::default();
        assert!(directory.read(0, 5, sharer(1)));
        assert!(!directory.read(0, 5, None));
        assert!(directory.read(0, 5, sharer(2)));
        assert_eq!(directory.take_sharers(0, 5), [(1, NodeId(1)), (2, NodeId(2))]);
        assert_eq!(directory.take_sharers(0, 5), []);
        // Three reads for one write: it takes five.
        assert!(!directory.written(0, 5, sharer(3)));
        assert!(!directory.read(0, 5, sharer(1)));
        assert!(directory.read(0, 5, sharer(1)));
        assert!((0..3).all(|_| !directory.written(0, 5, sharer(3))));
        directory.count_hits(0, 5, 12);
        assert!(directory.read(0, 5, sharer(1)));
        assert!(!directory.written(0, 5, sharer(1)));
        // The other slots are not its.
        assert!(directory.read(1, 5, sharer(1)) && directory.read(0, 6, sharer(1)));
        directory.changed_key(0, 5);
        assert!(directory.read(0, 5, sharer(1)));
    }

    #[test]
    fn as_many_are_sharers_as_there_are_bits() {
        let mut directory = Directory::default();
        assert!((0..SHARERS_MAX as u16).all(|number| directory.read(0, 5, sharer(number))));
        assert!(!directory.read(0, 5, sharer(99)));
        assert!(directory.read(0, 6, sharer(31)));
        assert_eq!(directory.take_sharers(0, 5).len(), SHARERS_MAX);
        assert_eq!(directory.take_sharers(0, 6), [(31, NodeId(31))]);
    }

    #[test]
    fn counters_do_not_overflow() {
        let mut heat = SlotHeat::default();
        heat.count(u32::from(u16::MAX), 100);
        heat.count(1, 0);
        assert_eq!((heat.reads, heat.writes), (16_384, 25));
        heat.count(u32::MAX, 0);
        assert!(heat.reads > 16_384 && heat.writes == 0);
    }
}
