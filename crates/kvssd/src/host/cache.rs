//! Pairs that a host keeps beside a queue.
//!
//! Owns [`CachedQueue`]. Promises that what it answers is what this queue's last change of the pair made it, or what was read since; and that it keeps no more bytes than it was told. Must not know when
//! somebody else changes a pair: who shares a key space with other writers does not cache it.
//!
//! Pairs go in as they are read or stored; which leave is up to `quick_cache`, a relative of S3-FIFO (Yang et al. 2023), which keeps what a plain LRU loses to one walk over many keys. Memory of what is cached is beside that of
//! the queue.

use quick_cache::Weighter;
use quick_cache::unsync::Cache;

use super::queue::QueuePair;
use super::{HostRequest, HostTicket};
use crate::code::{KvError, Result};
use crate::command::{KvAnswer, KvCommand, PairKey, SpaceId, StoreMode};

/// What an entry takes beside key and value, about.
const ENTRY_OVERHEAD_BYTES: u64 = 64;
/// A pair of about so many bytes is what the cache is laid out for.
const PAIR_BYTES_EXPECTED: u64 = 512;
/// A pair is kept if the cache holds at least so many of its size.
const PAIRS_MIN: u64 = 8;

#[derive(Debug, Clone, Copy)]
struct PairWeight;

impl Weighter<Vec<u8>, Box<[u8]>> for PairWeight {
    fn weight(&self, key: &Vec<u8>, value: &Box<[u8]>) -> u64 {
        (key.len() + value.len()) as u64 + ENTRY_OVERHEAD_BYTES
    }
}

/// A queue pair that keeps pairs, for calls that wait. For one writer.
#[derive(Debug)]
pub struct CachedQueue {
    queue: QueuePair,
    /// By key space, four bytes, and key.
    pairs: Cache<Vec<u8>, Box<[u8]>, PairWeight>,
    bytes_max: u64,
    value_bytes_max: usize,
    key: Vec<u8>,
    hits: u64,
    misses: u64,
}

impl CachedQueue {
    /// Keeps pairs of so many bytes at most beside `queue`, whose buffers take values of `value_bytes_max`.
    pub fn new(queue: QueuePair, value_bytes_max: usize, bytes_max: u64) -> CachedQueue {
        let expected = usize::try_from(bytes_max / PAIR_BYTES_EXPECTED).unwrap_or(usize::MAX);
        let pairs = Cache::with_weighter(expected.max(1), bytes_max, PairWeight);
        CachedQueue { queue, pairs, bytes_max, value_bytes_max, key: Vec::new(), hits: 0, misses: 0 }
    }

    /// The queue, without what was kept.
    pub fn into_queue(self) -> QueuePair {
        self.queue
    }

    /// Look-ups that were answered from what is kept, and those that were not.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    /// Bytes that are kept.
    pub fn cached_bytes(&self) -> u64 {
        self.pairs.weight()
    }

    fn cache_key(&mut self, space: SpaceId, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(&space.number().to_le_bytes());
        self.key.extend_from_slice(key);
    }

    /// Keeps a value under `self.key`, if it is not so long that it would push most others out.
    fn keep(&mut self, value: &[u8]) {
        let bytes = (self.key.len() + value.len()) as u64 + ENTRY_OVERHEAD_BYTES;
        if bytes > self.bytes_max / PAIRS_MIN {
            self.pairs.remove(self.key.as_slice());
        } else {
            self.pairs.insert(self.key.clone(), value.into());
        }
    }

    /// The value of a key, handed to `done`; none: there is no such pair.
    ///
    /// # Errors
    /// Those of [`QueuePair::submit`], and the device's own.
    pub fn retrieve<R>(
        &mut self,
        space: SpaceId,
        key: &[u8],
        done: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        self.cache_key(space, key);
        if let Some(value) = self.pairs.get(self.key.as_slice()) {
            self.hits += 1;
            return Ok(Some(done(value)));
        }
        self.misses += 1;
        let bytes = self.value_bytes_max;
        let ticket =
            self.queue.submit(HostRequest::Retrieve { space, key, offset: 0, bytes, delete: false })?;
        let mut read = Vec::new();
        let result = self.wait(ticket, |value| read.extend_from_slice(value));
        match result {
            Ok(_) => {
                self.keep(&read);
                Ok(Some(done(&read)))
            }
            Err(KvError::KeyMissing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores a pair.
    ///
    /// # Errors
    /// As [`CachedQueue::retrieve`]. Nothing is kept of the key then.
    pub fn store(&mut self, space: SpaceId, key: &[u8], value: &[u8], mode: StoreMode) -> Result<()> {
        self.cache_key(space, key);
        // What comes of a store that fails nobody may know: so it is forgotten first.
        self.pairs.remove(self.key.as_slice());
        let ticket = self.queue.submit(HostRequest::Store { space, key, value, mode })?;
        self.wait(ticket, |_| ())?;
        if mode != StoreMode::Append {
            self.keep(value);
        }
        Ok(())
    }

    /// Deletes a pair; whether there was one.
    ///
    /// # Errors
    /// As [`CachedQueue::store`].
    pub fn delete(&mut self, space: SpaceId, key: &[u8]) -> Result<bool> {
        self.cache_key(space, key);
        self.pairs.remove(self.key.as_slice());
        let command = KvCommand::Delete { space, key: PairKey::new(key)?, must_exist: false };
        let answer = self.queue.call(HostRequest::Other(command))?;
        Ok(answer == KvAnswer::Deleted(true))
    }

    fn wait(&mut self, ticket: HostTicket, mut read: impl FnMut(&[u8])) -> Result<KvAnswer> {
        self.queue.wait_for(ticket, |result, value| {
            read(value);
            result
        })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::BTreeMap;

    use hedgerow_device::{FastTier, FastTierOptions, Random};

    use super::*;
    use crate::device::{Device, DeviceOptions};
    use crate::flash::geometry::Geometry;
    use crate::host::driver::DeviceThread;

    /// A cache much smaller than the pairs, and one larger, against a map: whatever is stored, appended, refused and deleted.
    #[test]
    fn the_cache_answers_as_the_device_does() {
        for (seed, bytes_max) in [(1, 0), (2, 4 << 10), (3, 1 << 20)] {
            let geometry = Geometry { page_bytes: 4096, block_bytes: 256 << 10, blocks: 16 };
            let tier = FastTier::dram(&FastTierOptions::default()).unwrap();
            let device = Device::format(tier, geometry, DeviceOptions::default()).unwrap();
            let thread = DeviceThread::start(device).unwrap();
            let mut queue = thread.opener().open(1, 2048).unwrap();
            let mut spaces = Vec::new();
            for name in [b"one", b"two"] {
                let name = PairKey::new(name).unwrap();
                let made = KvCommand::CreateSpace { name, bytes_max: 0 };
                let Ok(KvAnswer::Space(info)) = queue.call(HostRequest::Other(made)) else { panic!() };
                spaces.push(info.id);
            }
            let mut cached = CachedQueue::new(queue, 2048, bytes_max);
            let (mut random, mut map) = (Random::from_seed(seed), BTreeMap::new());
            for n in 0..20_000u64 {
                let (which, key) = (random.below(2) as usize, random.below(100).to_le_bytes());
                let (space, of) = (spaces[which], (which, key));
                let value = vec![n as u8; random.below(300) as usize];
                match random.below(8) {
                    0 => {
                        let existed = cached.delete(space, &key).unwrap();
                        assert_eq!(existed, map.remove(&of).is_some());
                    }
                    1 => {
                        let stored = cached.store(space, &key, &value, StoreMode::NoOverwrite);
                        assert_eq!(stored.is_ok(), !map.contains_key(&of), "{stored:?}");
                        map.entry(of).or_insert(value);
                    }
                    2 => {
                        let old: &mut Vec<u8> = map.entry(of).or_default();
                        if old.len() + value.len() <= 2048 {
                            cached.store(space, &key, &value, StoreMode::Append).unwrap();
                            old.extend(value);
                        } else {
                            cached.store(space, &key, &value, StoreMode::Post).unwrap();
                            *old = value;
                        }
                    }
                    3 => {
                        cached.store(space, &key, &value, StoreMode::Post).unwrap();
                        map.insert(of, value);
                    }
                    _ => {
                        let read = cached.retrieve(space, &key, <[u8]>::to_vec).unwrap();
                        assert_eq!(read.as_ref(), map.get(&of), "{n}");
                    }
                }
                assert!(cached.cached_bytes() <= bytes_max);
            }
            let (hits, misses) = cached.hits_and_misses();
            assert!(hits + misses > 5_000 && (hits == 0) == (bytes_max == 0), "{hits} {misses}");
            assert!(bytes_max < 1 << 20 || hits > misses, "{hits} hits, {misses} misses");
        }
    }
}
