//! A proxy's copy of one partition's index.
//!
//! Owns its bytes, as they are on memory nodes. Promises that a slot is named only together with a key that may be in it. Must not know who asks.

use std::collections::BTreeMap;

use crate::bucket::{
    BUCKET_BYTES, BucketHeader, KeyHash, free_slot, slot_offset, slots_in_row, walk_buckets,
};
use crate::region::PoolLayout;
use crate::rpc::{SlotAndWord, WORDS_MAX};
use crate::word::SlotWord;

/// The copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ProxyTable {
    header: BucketHeader,
    groups: u32,
    bytes: Vec<u8>,
}

impl ProxyTable {
    pub(super) fn new(layout: &PoolLayout, partition: u16, bytes: Vec<u8>) -> ProxyTable {
        ProxyTable { header: layout.bucket_header(partition), groups: layout.groups, bytes }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The slots of both combined buckets; none where the bytes are not those of this partition.
    fn slots(&self, hash: KeyHash) -> [Vec<SlotAndWord>; 2] {
        hash.combined(self.groups).map(|combined| {
            let bytes = self.bytes.get(combined.offset() as usize..).unwrap_or_default();
            combined.decode(bytes, self.header).unwrap_or_default()
        })
    }

    fn live(&self, hash: KeyHash) -> BTreeMap<u32, SlotWord> {
        let slots = self.slots(hash).into_iter().flatten();
        slots.filter(|(_, word)| word.as_live().is_some()).collect()
    }

    /// The live words with the key's fingerprint, by slot.
    pub(super) fn of_fingerprint(&self, hash: KeyHash) -> Vec<SlotAndWord> {
        let is_same =
            |word: SlotWord| word.as_live().is_some_and(|live| live.fingerprint == hash.fingerprint());
        self.live(hash).into_iter().filter(|(_, word)| is_same(*word)).collect()
    }

    /// The words that may be the key's, whether a slot is free, and whether these are all live words since neither is so.
    pub(super) fn candidates(&self, hash: KeyHash) -> (Vec<SlotAndWord>, bool, bool) {
        let words = self.of_fingerprint(hash);
        let is_free = self.free_slot(hash, &[]).is_some();
        match words.is_empty() && !is_free {
            true => (self.live(hash).into_iter().collect(), false, true),
            false => (words, is_free, false),
        }
    }

    /// The live words that one step of a walk comes by, as many as one answer has.
    pub(super) fn live_from(&self, slot: u32) -> Vec<SlotAndWord> {
        let buckets = walk_buckets(slot, self.groups);
        let at = |bucket: u32| bucket as usize * BUCKET_BYTES;
        let bytes = self.bytes.get(at(buckets.start)..at(buckets.end)).unwrap_or_default();
        let slots = slots_in_row(bytes, buckets.start, self.header).unwrap_or_default().into_iter();
        slots.filter(|&(at, word)| at >= slot && word.as_live().is_some()).take(WORDS_MAX).collect()
    }

    /// A free slot for the key, none of those that are taken.
    pub(super) fn free_slot(&self, hash: KeyHash, taken: &[u32]) -> Option<u32> {
        let slots = self.slots(hash);
        let open = slots.map(|mut slots| {
            slots.retain(|(slot, _)| !taken.contains(slot));
            slots
        });
        free_slot(&open).map(|(slot, _)| slot)
    }

    /// What a slot has, if the key may be in it.
    pub(super) fn word(&self, hash: KeyHash, slot: u32) -> Option<SlotWord> {
        let found = self.slots(hash).into_iter().flatten().find(|(other, _)| *other == slot);
        found.map(|(_, word)| word)
    }

    pub(super) fn set(&mut self, slot: u32, word: SlotWord) {
        let at = slot_offset(slot) as usize;
        if let Some(place) = self.bytes.get_mut(at..at + 8) {
            place.copy_from_slice(&word.0.to_le_bytes());
        }
    }
}
