//! What a node remembers of keys: the slot and the word that it saw, and of those that their proxy grants to it the value, too.
//!
//! Owns a bounded map by the keys' hashes. Promises that what is granted is the key's pair for as long as the session's lease holds: whoever is told that the key is about to change removes it here before he says so, and nothing that was
//! granted before comes in after that (`client/proxied.rs`). Of what is not granted it promises nothing: in direct mode it is checked against the slot, in the same batch that reads the object (Aceso, SOSP 2024, and what FlexKV's direct
//! mode needs: a valid bit in the object, cleared on another node than the index is on, would let a reader see an old value after another saw the new one), and in proxied mode the proxy compares it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hedgerow_device::Clock;

use crate::bucket::KeyHash;
use crate::fabric::Nanos;
use crate::object::{Generation, OBJECT_BYTES_MAX};
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::word::SlotWord;

/// A value takes at most one part in so many of the room for values of its shard.
const VALUE_PARTS: usize = 8;
/// So many shards has a cache of at least so many keys, and so many bytes, for each: the longest value that is in its object fits into a part of that.
const SHARDS: usize = 64;
const SHARD_KEYS: usize = 64;
const SHARD_BYTES: usize = VALUE_PARTS * OBJECT_BYTES_MAX;

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
    value: Option<Arc<[u8]>>,
    hits: u32,
    /// Its place in the order.
    number: u64,
}

/// The keys whose hashes are one number after a division by that of shards.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct CacheShard {
    pairs: BTreeMap<KeyHash, CachedPair>,
    /// Pairs in the order in which they came, those that are gone among them.
    order: VecDeque<(KeyHash, u64)>,
    next_number: u64,
    /// Values in the order in which they came, those that are gone among them.
    values: VecDeque<(KeyHash, Generation)>,
    bytes: usize,
    granted: usize,
}

impl CacheShard {
    fn remove(&mut self, hash: KeyHash) -> Option<u32> {
        let pair = self.pairs.remove(&hash)?;
        self.bytes -= pair.value.map_or(0, |value| value.len());
        self.granted -= usize::from(pair.seen.is_granted);
        Some(pair.hits)
    }

    fn insert(&mut self, hash: KeyHash, key: &[u8], seen: CachedSlot, keys_max: usize) {
        let known = self.pairs.get(&hash).map(|pair| pair.number);
        self.remove(hash);
        let number = known.unwrap_or_else(|| {
            self.next_number += 1;
            self.order.push_back((hash, self.next_number));
            self.next_number
        });
        self.granted += usize::from(seen.is_granted);
        self.pairs.insert(hash, CachedPair { key: key.to_vec(), seen, value: None, hits: 0, number });
        // Keys that were removed are still in the order, once for each time they came: such a place is nobody's.
        while self.pairs.len() > keys_max || self.order.len() > 2 * keys_max {
            let Some((oldest, number)) = self.order.pop_front() else { break };
            if self.pairs.get(&oldest).is_some_and(|pair| pair.number == number) {
                self.remove(oldest);
            }
        }
    }

    fn insert_value(&mut self, (hash, generation): (KeyHash, Generation), value: &[u8], bounds: CacheBounds) {
        let Some(pair) = self.pairs.get_mut(&hash) else { return };
        let is_its = pair.seen.is_granted && pair.seen.generation == generation && pair.value.is_none();
        if !is_its || value.len() > bounds.bytes_max / VALUE_PARTS {
            return;
        }
        pair.value = Some(value.into());
        self.bytes += value.len();
        self.values.push_back((hash, generation));
        while self.bytes > bounds.bytes_max || self.values.len() > 2 * bounds.keys_max {
            let Some((oldest, generation)) = self.values.pop_front() else { break };
            let pair = self.pairs.get_mut(&oldest).filter(|pair| pair.seen.generation == generation);
            self.bytes -= pair.and_then(|pair| pair.value.take()).map_or(0, |value| value.len());
        }
    }
}

/// Of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CacheBounds {
    keys_max: usize,
    bytes_max: usize,
}

struct CacheShards {
    bounds: CacheBounds,
    shards: Vec<Mutex<CacheShard>>,
    /// Pairs that others read, and of them those of each partition that the client does not know of yet.
    read: AtomicU64,
    read_of: Vec<AtomicU32>,
    partition_bits: u32,
    /// Until when others may answer from what is granted: 0 while the session works in no configuration.
    valid_until: AtomicU64,
}

impl CacheShards {
    fn shard(&self, hash: KeyHash) -> MutexGuard<'_, CacheShard> {
        self.shards[hash.0 as usize % self.shards.len()].lock()
    }
}

/// A counter for each partition.
fn zeros(partition_bits: u32) -> Vec<AtomicU32> {
    (0..1_u32 << partition_bits).map(|_| AtomicU32::new(0)).collect()
}

/// The last so many keys that were seen, in the order in which they came, and of the last of them that were granted the values. Of two keys with one hash it has the later one.
///
/// It is its client's, and others may read what is granted ([`CacheReader`]): it is in shards, each with a lock that is held for a look-up. A copy has everything for itself, as an exploration needs.
pub(crate) struct PairCache(Arc<CacheShards>);

impl PairCache {
    /// For keys of two to the power of `partition_bits` partitions.
    pub(crate) fn new(keys_max: usize, bytes_max: usize, partition_bits: u32) -> PairCache {
        let is_large = keys_max >= SHARDS * SHARD_KEYS && bytes_max >= SHARDS * SHARD_BYTES;
        let count = if is_large { SHARDS } else { 1 };
        let bounds = CacheBounds { keys_max: keys_max / count, bytes_max: bytes_max / count };
        let shards = (0..count).map(|_| Mutex::default()).collect();
        let (read, valid_until) = (AtomicU64::new(0), AtomicU64::new(0));
        let read_of = zeros(partition_bits);
        PairCache(Arc::new(CacheShards { bounds, shards, read, read_of, partition_bits, valid_until }))
    }

    /// Whether it remembers anything at all.
    pub(crate) fn is_used(&self) -> bool {
        self.0.bounds.keys_max > 0
    }

    /// Whether something in it is granted, which counts while the session has a lease only.
    pub(crate) fn has_granted(&self) -> bool {
        self.0.shards.iter().any(|shard| shard.lock().granted > 0)
    }

    pub(crate) fn get(&self, hash: KeyHash, key: &[u8]) -> Option<CachedSlot> {
        let shard = self.0.shard(hash);
        shard.pairs.get(&hash).filter(|pair| pair.key == key).map(|pair| pair.seen)
    }

    /// Counts a read of a pair that is granted. Its value, if that is here.
    pub(crate) fn hit(&self, hash: KeyHash) -> Option<Arc<[u8]>> {
        let mut shard = self.0.shard(hash);
        let pair = shard.pairs.get_mut(&hash)?;
        pair.hits = pair.hits.saturating_add(1);
        pair.value.clone()
    }

    pub(crate) fn insert(&self, hash: KeyHash, key: &[u8], seen: CachedSlot) {
        if self.is_used() {
            self.0.shard(hash).insert(hash, key, seen, self.0.bounds.keys_max);
        }
    }

    /// The value of a pair that is granted, in that version: if another one is here by now, or none, it is not kept.
    pub(crate) fn insert_value(&self, hash: KeyHash, generation: Generation, value: &[u8]) {
        self.0.shard(hash).insert_value((hash, generation), value, self.0.bounds);
    }

    /// How often the pair was read from here, if there was one.
    pub(crate) fn remove(&self, hash: KeyHash) -> Option<u32> {
        self.0.shard(hash).remove(hash)
    }

    pub(crate) fn clear(&self) {
        self.0.shards.iter().for_each(|shard| *shard.lock() = CacheShard::default());
    }

    /// Others may answer from what is granted until then. Whoever is told something after this returned is told it after they can see it. Before it is another time than 0 again what was granted in an earlier configuration is cleared.
    pub(crate) fn set_valid_until(&self, until: Nanos) {
        // Only the client sets it, so that what it reads is the last that it set.
        if self.0.valid_until.load(Ordering::Relaxed) != until {
            self.0.valid_until.store(until, Ordering::SeqCst);
        }
    }

    /// Pairs of each partition that others have read since this was last asked.
    pub(crate) fn take_reads(&self) -> impl Iterator<Item = (u16, u32)> {
        let reads = (0..).zip(&self.0.read_of);
        // Nothing is ordered by it.
        reads
            .map(|(partition, read)| (partition, read.swap(0, Ordering::Relaxed)))
            .filter(|(_, read)| *read > 0)
    }

    /// For others. This cache stays what they read.
    pub(crate) fn reader(&self) -> CacheReader {
        CacheReader { shards: Arc::clone(&self.0), clock: Clock::system() }
    }

    /// The cache that others read, empty, for another client.
    pub(crate) fn of_reader(reader: &CacheReader) -> PairCache {
        let cache = PairCache(Arc::clone(&reader.shards));
        cache.set_valid_until(0);
        cache.clear();
        cache
    }

    fn contents(&self) -> impl Iterator<Item = CacheShard> {
        self.0.shards.iter().map(|shard| shard.lock().clone())
    }
}

impl fmt::Debug for PairCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: usize = self.0.shards.iter().map(|shard| shard.lock().pairs.len()).sum();
        f.debug_struct("PairCache").field("bounds", &self.0.bounds).field("pairs", &pairs).finish()
    }
}

impl Clone for PairCache {
    fn clone(&self) -> PairCache {
        let CacheShards { bounds, partition_bits, valid_until, .. } = &*self.0;
        PairCache(Arc::new(CacheShards {
            bounds: *bounds,
            shards: self.contents().map(Mutex::new).collect(),
            read: AtomicU64::new(0),
            read_of: zeros(*partition_bits),
            partition_bits: *partition_bits,
            valid_until: AtomicU64::new(valid_until.load(Ordering::Relaxed)),
        }))
    }
}

impl PartialEq for PairCache {
    fn eq(&self, other: &PairCache) -> bool {
        self.0.bounds == other.0.bounds && self.contents().eq(other.contents())
    }
}

impl Eq for PairCache {}

impl Hash for PairCache {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.bounds.hash(state);
        self.0.shards.iter().for_each(|shard| shard.lock().hash(state));
    }
}

/// A value and its version.
type CachedValue = (Arc<[u8]>, Generation);

/// Reads what is granted to a node's cache, on any thread.
#[derive(Clone)]
pub(crate) struct CacheReader {
    shards: Arc<CacheShards>,
    clock: Clock,
}

impl CacheReader {
    /// One that reads nothing, of a cache that clients to come may have.
    pub(crate) fn new(keys_max: usize, bytes_max: usize, partition_bits: u32) -> CacheReader {
        PairCache::new(keys_max, bytes_max, partition_bits).reader()
    }

    /// The key's pair at some time of this call, if it is here. None says nothing.
    ///
    /// It was the pair when it was looked up: whoever changes it waits until the client has said that it removed it, which it does first, or until the lease is over, which is why the clock is read after that. Until when it holds is read
    /// with the pair, under the lock: a pair of the configuration before is there until it is cleared, which comes before any later time is set.
    pub(crate) fn get(&self, key: &[u8]) -> Option<CachedValue> {
        let hash = KeyHash::of(key);
        let (found, until) = self.look_up(hash, key)?;
        if self.clock.monotonic_ns() >= until {
            return None;
        }
        let partition = hash.partition(self.shards.partition_bits);
        let counted = self.shards.read_of.get(usize::from(partition));
        // Nothing is ordered by them.
        counted.map(|read| read.fetch_add(1, Ordering::Relaxed));
        self.shards.read.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// The pair, and until when it holds.
    fn look_up(&self, hash: KeyHash, key: &[u8]) -> Option<(CachedValue, Nanos)> {
        let mut shard = self.shards.shard(hash);
        let pair = shard.pairs.get_mut(&hash).filter(|pair| pair.key == key)?;
        let value = pair.value.clone()?;
        pair.hits = pair.hits.saturating_add(1);
        let found = (value, pair.seen.generation);
        // With the shard's lock held.
        Some((found, self.shards.valid_until.load(Ordering::SeqCst)))
    }

    /// How many pairs were read, by all readers, since there is the cache.
    pub(crate) fn read(&self) -> u64 {
        self.shards.read.load(Ordering::Relaxed)
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
        let cache = PairCache::new(10, 100, 1);
        for round in 0..1000u64 {
            let key = (round % 37).to_le_bytes();
            let (hash, seen) = (KeyHash::of(&key), seen(round, true));
            cache.insert(hash, &key, seen);
            assert_eq!(cache.get(hash, &key), Some(seen));
            let value = vec![round as u8; (round % 17) as usize];
            cache.insert_value(hash, seen.generation, &value);
            assert_eq!(cache.hit(hash).as_deref(), (value.len() <= 12).then_some(value.as_slice()));
            if round % 3 == 0 {
                assert_eq!(cache.remove(hash), Some(1));
                assert_eq!(cache.get(hash, &key), None);
            }
            let shard = cache.contents().next().unwrap();
            assert!(shard.pairs.len() <= 10 && shard.order.len() <= 20 && shard.values.len() <= 20);
            let held = shard.pairs.values().filter_map(|pair| pair.value.as_ref());
            assert_eq!(held.map(|value| value.len()).sum::<usize>(), shard.bytes);
            assert!(shard.bytes <= 100);
            assert_eq!((shard.granted, cache.has_granted()), (shard.pairs.len(), !shard.pairs.is_empty()));
        }
    }

    /// One that is told to drop a key again and again still remembers it.
    #[test]
    fn a_key_that_changes_often_does_not_give_way_to_itself() {
        let cache = PairCache::new(10, 100, 1);
        let (hash, other) = (KeyHash::of(b"a"), KeyHash::of(b"b"));
        cache.insert(other, b"b", seen(0, true));
        for round in 1..100 {
            cache.insert(hash, b"a", seen(round, true));
            assert!(cache.get(hash, b"a").is_some(), "round {round}");
            cache.remove(hash);
        }
    }

    #[test]
    fn only_what_is_granted_has_a_value_and_only_its_own() {
        let cache = PairCache::new(10, 100, 1);
        let hash = KeyHash::of(b"a");
        cache.insert(hash, b"a", seen(1, false));
        cache.insert_value(hash, Generation(1), b"x");
        assert_eq!(cache.hit(hash), None);
        cache.insert(hash, b"a", seen(2, true));
        cache.insert_value(hash, Generation(1), b"x");
        assert_eq!(cache.hit(hash), None);
        cache.insert_value(hash, Generation(2), b"y");
        assert_eq!(cache.hit(hash).as_deref(), Some(&b"y"[..]));
        // Another key of the same hash.
        assert_eq!(cache.get(hash, b"b"), None);
        cache.insert(hash, b"b", seen(3, true));
        assert_eq!((cache.get(hash, b"a"), cache.hit(hash)), (None, None));
    }

    /// The order forgets a value that came again only once.
    #[test]
    fn a_value_that_gives_way_leaves_the_slot() {
        let cache = PairCache::new(10, 16, 1);
        for number in 0..9u64 {
            let key = number.to_le_bytes();
            cache.insert(KeyHash::of(&key), &key, seen(number, true));
            cache.insert_value(KeyHash::of(&key), Generation(number), &[7, 7]);
        }
        let key = 0u64.to_le_bytes();
        assert!(cache.get(KeyHash::of(&key), &key).is_some_and(|seen| seen.is_granted));
        assert_eq!(cache.hit(KeyHash::of(&key)), None);
        assert_eq!(cache.hit(KeyHash::of(&8u64.to_le_bytes())).as_deref(), Some(&[7, 7][..]));
    }

    /// Others read what is granted for as long as it is said to hold, and count as the client does.
    #[test]
    fn a_reader_reads_while_it_may() {
        let cache = PairCache::new(10_000, SHARDS * SHARD_BYTES, 1);
        assert_eq!(cache.contents().count(), SHARDS);
        let reader = cache.reader();
        let hash = KeyHash::of(b"a");
        cache.insert(hash, b"a", seen(1, true));
        cache.insert_value(hash, Generation(1), b"x");
        assert_eq!(reader.get(b"a"), None);
        cache.set_valid_until(Nanos::MAX);
        assert_eq!(reader.get(b"a"), Some((b"x"[..].into(), Generation(1))));
        assert_eq!(reader.get(b"b"), None);
        let reads = || cache.take_reads().collect::<Vec<_>>();
        assert_eq!((reads(), reads(), reader.read()), (vec![(hash.partition(1), 1)], vec![], 1));
        cache.set_valid_until(1);
        assert_eq!(reader.get(b"a"), None);
        cache.set_valid_until(Nanos::MAX);
        // One that was too late counts, too.
        assert_eq!(cache.remove(hash), Some(3));
        assert_eq!(reader.get(b"a"), None);
        cache.insert(hash, b"a", seen(2, true));
        cache.insert_value(hash, Generation(2), b"y");
        assert!(reader.get(b"a").is_some());
        let next = PairCache::of_reader(&reader);
        assert_eq!((next.get(hash, b"a"), reader.get(b"a")), (None, None));
    }

    /// A reader that stands still after its look-up, while another configuration begins.
    #[test]
    fn a_pair_holds_no_longer_than_the_lease_that_it_was_there_by() {
        let cache = PairCache::new(10, 100, 1);
        let reader = cache.reader();
        let hash = KeyHash::of(b"a");
        cache.insert(hash, b"a", seen(1, true));
        cache.insert_value(hash, Generation(1), b"x");
        for before in [0, 7] {
            cache.set_valid_until(before);
            let (_, until) = reader.look_up(hash, b"a").unwrap();
            cache.set_valid_until(0);
            cache.set_valid_until(Nanos::MAX);
            assert_eq!(until, before);
        }
    }

    #[test]
    fn a_copy_is_a_cache_of_its_own() {
        let cache = PairCache::new(10, 100, 1);
        let hash = KeyHash::of(b"a");
        cache.insert(hash, b"a", seen(1, true));
        let copy = cache.clone();
        assert_eq!(copy, cache);
        cache.remove(hash);
        assert!(copy != cache && copy.get(hash, b"a").is_some());
    }
}
