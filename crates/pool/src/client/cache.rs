//! What a node remembers of keys: the slot and the word that it saw, and of those that their proxy grants to it the value, too.
//!
//! Owns a bounded map by the keys' hashes. Promises that what is granted is the key's pair for as long as the session's lease holds: whoever is told that the key is about to change removes it here before he says so, and nothing that was
//! granted before comes in after that (`client/proxied.rs`). Of what is not granted it promises nothing: in direct mode it is checked against the slot, in the same batch that reads the object (Aceso, SOSP 2024, and what FlexKV's direct
//! mode needs: a valid bit in the object, cleared on another node than the index is on, would let a reader see an old value after another saw the new one), and in proxied mode the proxy compares it.

use std::collections::{BTreeMap, VecDeque};

use crate::bucket::KeyHash;
use crate::fabric::Nanos;
use crate::object::Generation;
use crate::word::SlotWord;

/// A value takes at most one part in so many of the room for values.
const VALUE_PARTS: usize = 8;

/// What was seen of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CachedSlot {
    pub(crate) slot: u32,
    pub(crate) word: SlotWord,
    pub(crate) generation: Generation,
    /// The word was there at this time, or later.
    pub(crate) learnt_at: Nanos,
    /// The proxy says when it changes.
    pub(crate) is_granted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CachedPair {
    key: Vec<u8>,
    seen: CachedSlot,
    /// Of what is granted only.
    value: Option<Vec<u8>>,
    hits: u32,
}

/// The last so many keys that were seen, in the order in which they came, and of the last of them that were granted the values. Of two keys with one hash it has the later one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PairCache {
    keys_max: usize,
    bytes_max: usize,
    pairs: BTreeMap<KeyHash, CachedPair>,
    order: VecDeque<KeyHash>,
    /// Values in the order in which they came, those that are gone among them.
    values: VecDeque<(KeyHash, Generation)>,
    bytes: usize,
    granted: usize,
}

impl PairCache {
    pub(crate) fn new(keys_max: usize, bytes_max: usize) -> PairCache {
        let (pairs, order, values) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        PairCache { keys_max, bytes_max, pairs, order, values, bytes: 0, granted: 0 }
    }

    /// Whether it remembers anything at all.
    pub(crate) fn is_used(&self) -> bool {
        self.keys_max > 0
    }

    /// Whether something in it is granted, which counts while the session has a lease only.
    pub(crate) fn has_granted(&self) -> bool {
        self.granted > 0
    }

    fn pair(&self, hash: KeyHash, key: &[u8]) -> Option<&CachedPair> {
        self.pairs.get(&hash).filter(|pair| pair.key == key)
    }

    pub(crate) fn get(&self, hash: KeyHash, key: &[u8]) -> Option<CachedSlot> {
        self.pair(hash, key).map(|pair| pair.seen)
    }

    /// Counts a read of a pair that is granted. Its value, if that is here.
    pub(crate) fn hit(&mut self, hash: KeyHash) -> Option<&[u8]> {
        let pair = self.pairs.get_mut(&hash)?;
        pair.hits = pair.hits.saturating_add(1);
        pair.value.as_deref()
    }

    pub(crate) fn insert(&mut self, hash: KeyHash, key: &[u8], seen: CachedSlot) {
        if !self.is_used() {
            return;
        }
        if self.remove(hash).is_none() {
            self.order.push_back(hash);
        }
        self.granted += usize::from(seen.is_granted);
        self.pairs.insert(hash, CachedPair { key: key.to_vec(), seen, value: None, hits: 0 });
        // Keys that were removed are still in the order, once for each time they came.
        while self.pairs.len() > self.keys_max || self.order.len() > 2 * self.keys_max {
            let Some(oldest) = self.order.pop_front() else { break };
            self.remove(oldest);
        }
    }

    /// The value of a pair that is granted, in that version: if another one is here by now, or none, it is not kept.
    pub(crate) fn insert_value(&mut self, hash: KeyHash, generation: Generation, value: &[u8]) {
        let Some(pair) = self.pairs.get_mut(&hash) else { return };
        let is_its = pair.seen.is_granted && pair.seen.generation == generation && pair.value.is_none();
        if !is_its || value.len() > self.bytes_max / VALUE_PARTS {
            return;
        }
        pair.value = Some(value.to_vec());
        self.bytes += value.len();
        self.values.push_back((hash, generation));
        while self.bytes > self.bytes_max || self.values.len() > 2 * self.keys_max {
            let Some((oldest, generation)) = self.values.pop_front() else { break };
            let pair = self.pairs.get_mut(&oldest).filter(|pair| pair.seen.generation == generation);
            self.bytes -= pair.and_then(|pair| pair.value.take()).map_or(0, |value| value.len());
        }
    }

    /// How often the pair was read from here, if there was one.
    pub(crate) fn remove(&mut self, hash: KeyHash) -> Option<u32> {
        let pair = self.pairs.remove(&hash)?;
        self.bytes -= pair.value.map_or(0, |value| value.len());
        self.granted -= usize::from(pair.seen.is_granted);
        Some(pair.hits)
    }

    pub(crate) fn clear(&mut self) {
        *self = PairCache::new(self.keys_max, self.bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(generation: u64, is_granted: bool) -> CachedSlot {
        let generation = Generation(generation);
        CachedSlot { slot: 1, word: SlotWord(1), generation, learnt_at: 0, is_granted }
    }

    #[test]
    fn it_stays_within_its_bounds() {
        let mut cache = PairCache::new(10, 100);
        for round in 0..1000u64 {
            let key = (round % 37).to_le_bytes();
            let (hash, seen) = (KeyHash::of(&key), seen(round, true));
            cache.insert(hash, &key, seen);
            assert_eq!(cache.get(hash, &key), Some(seen));
            let value = vec![round as u8; (round % 17) as usize];
            cache.insert_value(hash, seen.generation, &value);
            assert_eq!(cache.hit(hash), (value.len() <= 12).then_some(value.as_slice()));
            if round % 3 == 0 {
                assert_eq!(cache.remove(hash), Some(1));
                assert_eq!(cache.get(hash, &key), None);
            }
            assert!(cache.pairs.len() <= 10 && cache.order.len() <= 20 && cache.values.len() <= 20);
            let held = cache.pairs.values().filter_map(|pair| pair.value.as_ref());
            assert_eq!(held.map(Vec::len).sum::<usize>(), cache.bytes);
            assert!(cache.bytes <= 100);
            assert_eq!((cache.granted, cache.has_granted()), (cache.pairs.len(), !cache.pairs.is_empty()));
        }
    }

    #[test]
    fn only_what_is_granted_has_a_value_and_only_its_own() {
        let mut cache = PairCache::new(10, 100);
        let hash = KeyHash::of(b"a");
        cache.insert(hash, b"a", seen(1, false));
        cache.insert_value(hash, Generation(1), b"x");
        assert_eq!(cache.hit(hash), None);
        cache.insert(hash, b"a", seen(2, true));
        cache.insert_value(hash, Generation(1), b"x");
        assert_eq!(cache.hit(hash), None);
        cache.insert_value(hash, Generation(2), b"y");
        assert_eq!(cache.hit(hash), Some(&b"y"[..]));
        // Another key of the same hash.
        assert_eq!(cache.get(hash, b"b"), None);
        cache.insert(hash, b"b", seen(3, true));
        assert_eq!((cache.get(hash, b"a"), cache.hit(hash)), (None, None));
    }

    /// The order forgets a value that came again only once.
    #[test]
    fn a_value_that_gives_way_leaves_the_slot() {
        let mut cache = PairCache::new(10, 16);
        for number in 0..9u64 {
            let key = number.to_le_bytes();
            cache.insert(KeyHash::of(&key), &key, seen(number, true));
            cache.insert_value(KeyHash::of(&key), Generation(number), &[7, 7]);
        }
        let key = 0u64.to_le_bytes();
        assert!(cache.get(KeyHash::of(&key), &key).is_some_and(|seen| seen.is_granted));
        assert_eq!(cache.hit(KeyHash::of(&key)), None);
        assert_eq!(cache.hit(KeyHash::of(&8u64.to_le_bytes())), Some(&[7, 7][..]));
    }
}
