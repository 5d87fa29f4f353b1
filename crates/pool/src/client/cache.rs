//! Which slot a key was last seen in.
//!
//! Owns a bounded map. Promises nothing: what it says is checked against the slot, in the same batch that reads the object (Aceso, SOSP 2024, and what FlexKV's direct
//! mode needs: a valid bit in the object, cleared on another node than the index is on, would let a reader see an old value after another saw the new one).

use std::collections::{BTreeMap, VecDeque};

use crate::object::Generation;
use crate::word::SlotWord;

/// What was seen of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CachedSlot {
    pub(crate) slot: u32,
    pub(crate) word: SlotWord,
    pub(crate) generation: Generation,
}

/// The last so many keys that were seen, in the order in which they came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SlotCache {
    capacity: usize,
    slots: BTreeMap<Vec<u8>, CachedSlot>,
    order: VecDeque<Vec<u8>>,
}

impl SlotCache {
    pub(crate) fn new(capacity: usize) -> SlotCache {
        SlotCache { capacity, slots: BTreeMap::new(), order: VecDeque::new() }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<CachedSlot> {
        self.slots.get(key).copied()
    }

    pub(crate) fn insert(&mut self, key: &[u8], seen: CachedSlot) {
        if self.capacity == 0 {
            return;
        }
        if self.slots.insert(key.to_vec(), seen).is_none() {
            self.order.push_back(key.to_vec());
        }
        // Keys that were removed are still in the order, once for each time they came.
        while self.slots.len() > self.capacity || self.order.len() > 2 * self.capacity {
            let Some(oldest) = self.order.pop_front() else { break };
            self.slots.remove(&oldest);
        }
    }

    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.slots.remove(key);
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_within_its_bounds() {
        let mut cache = SlotCache::new(10);
        for round in 0..1000u32 {
            let seen = CachedSlot { slot: round, word: SlotWord(1), generation: Generation(2) };
            let key = (round % 37).to_le_bytes();
            cache.insert(&key, seen);
            assert_eq!(cache.get(&key), Some(seen));
            if round % 3 == 0 {
                cache.remove(&key);
                assert_eq!(cache.get(&key), None);
            }
            assert!(cache.slots.len() <= 10 && cache.order.len() <= 20);
        }
    }
}
