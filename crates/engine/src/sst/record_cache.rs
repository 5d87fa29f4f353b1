//! Records of sorted tables in memory, found by their keys: of each a row, and the deltas over it if there are any.
//!
//! Owns [`RecordCache`]. Promises that what it says of a key counted when it was asked, as long as whoever changes what counts of one keeps to the order below; that a look takes no lock; and that it takes no more
//! memory than it was given, but for what nobody has let go of yet. Must not know which files count, nor what is in the log.
//!
//! # What it is for
//!
//! A look for a row goes through all runs, newest first: the bounds of each, its filter, a block of its index, a block of records and a search in each of these, on several dozen lines
//! of memory of which hardly any is in a cache of the processor. And a block that is kept has half a dozen records that nobody asked for. Here a record is found by a hash of
//! its key, on two lines, and is there alone.
//!
//! # What counts
//!
//! What sorted tables have of a key changes when a row moves, and at no other time: merges leave every answer as it is, and a table that is cleared or loaded has another number. But a merge drops what
//! has expired, and from then on deltas are written over that key as over one that has no row: so a row that expires, or a field of which does, is not for this cache ([`OpenRuns::was_found`](crate::runs::OpenRuns::was_found) keeps to that).
//!
//! 1. Who moves rows lets everybody see the new runs,
//! 2. then has the cache [rise](RecordCache::rise_to) to their generation,
//! 3. then has it [forget](RecordCache::forget) each key that moved,
//! 4. and lets the index forget it after that.
//!
//! Who looked a key up in runs and [offers](RecordCache::offer) what he found compares generations under the lock that step 3 takes for that key. If he comes before step 3, his record is taken
//! away by it; if he comes after, he sees that what he found may not count any more. So a key that the index does not have is answered by no record that is older than what the index had of it.
//!
//! A record that was replaced in the log since stays until it moves: the index has the key, and is asked before. It leaves as those do that nobody asks for.
//!
//! # Its memory
//!
//! Copies in sets ([`CopySets`]), a hand that goes round them where there is no room, and lets go of what was not asked for since it came by last. What comes in is a row that is looked up for the second time within
//! about as many looks as the cache has room for records. A
//! reader leaves no more than a copy of it: memory is got by a background thread, the one that makes memory ready for writers. What is let go of is freed when no reader is left who may be at it.

use std::fmt;
use std::sync::OnceLock;

use hedgerow_device::{SharedBytes, SharedCopy};

use super::block::is_of_key;
use super::first_reads::FirstReads;
use super::reader::{FoundRecord, FoundRecords, SstKey};
use crate::epoch::copies::{CopySets, bytes_of};
use crate::epoch::{Epoch, Guard};
use crate::stripes::Stripes;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Arc, Mutex};

/// There are places for records of so many bytes on average: a thirty-second part of the memory is theirs.
const RECORD_BYTES: u64 = 256;
/// One that takes more than this share of the cache would push out too many others,
const SHARE_MAX: u64 = 64;
/// and one that is longer, all that the hand may pass for it.
const RECORD_BYTES_MAX: u64 = 32 << 10;
/// While more than this share is let go of and may be looked at still, nothing comes in.
const WAITING_SHARE: u64 = 8;
/// The hand passes no more sets for one record.
const PASSED_MAX: usize = 256;
/// So many words wait to be taken in, twice.
const OFFERED_WORDS_MAX: usize = 1 << 17;
/// Of these before each record: hash, generation, length.
const HEAD_WORDS: usize = 3;
/// The counter of those that were found.
const HIT: usize = 0;

/// Records of keys. Those asked for least lately go first.
pub(crate) struct RecordCache {
    epoch: Arc<Epoch>,
    /// Made when the first record comes.
    sets: OnceLock<CopySets>,
    /// The most that it will ever have.
    bytes_most: u64,
    /// What it may have now.
    bytes_max: AtomicU64,
    /// Of the runs from which on what was looked up counts.
    generation: AtomicU64,
    looked_up: FirstReads,
    /// Records to be taken in, those of a key together, with its hash, the generation and their length before them, in words.
    offered: Mutex<Vec<u64>>,
    /// Those that are being taken in. Whose lock is held by who takes the one of `offered`.
    taking: Mutex<Vec<u64>>,
    hits: Stripes<1>,
}

impl RecordCache {
    /// One that may have `bytes`, and `lent` besides while it is [lent](RecordCache::set_bytes_max) these. Its readers pin `epoch`.
    pub(crate) fn new(epoch: Arc<Epoch>, bytes: u64, lent: u64) -> RecordCache {
        let bytes_most = bytes.saturating_add(lent);
        RecordCache {
            epoch,
            sets: OnceLock::new(),
            bytes_most,
            bytes_max: AtomicU64::new(bytes),
            offered: Mutex::default(),
            taking: Mutex::default(),
            generation: AtomicU64::new(0),
            looked_up: FirstReads::of_last(usize::try_from(bytes_most / RECORD_BYTES).unwrap_or(0)),
            hits: Stripes::default(),
        }
    }

    fn made_sets(&self) -> &CopySets {
        self.sets.get_or_init(|| {
            let records = usize::try_from(self.bytes_most / RECORD_BYTES).unwrap_or(usize::MAX);
            CopySets::new(Arc::clone(&self.epoch), records)
        })
    }

    /// It may have so many bytes from now on, if that is no more than it was to have ever.
    pub(crate) fn set_bytes_max(&self, bytes: u64) {
        let bytes = bytes.min(self.bytes_most);
        if self.bytes_max.swap(bytes, Ordering::Relaxed) == bytes {
            return;
        }
        let Some(sets) = self.sets.get() else { return };
        // Twice round nothing is left that was not asked for meanwhile.
        for _ in 0..2 * sets.count() {
            if self.has_room_for(0) {
                return;
            }
            sets.pass_one();
        }
    }

    /// Bytes that it may have.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Bytes in it.
    pub(crate) fn bytes(&self) -> u64 {
        self.sets.get().map_or(0, CopySets::bytes)
    }

    fn has_room_for(&self, bytes: u64) -> bool {
        self.bytes().saturating_add(bytes) <= self.bytes_max()
    }

    /// Keys whose records were found in it.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.sum(HIT)
    }

    /// The records of a key, if they are here.
    #[inline]
    pub(crate) fn get(&self, key: &SstKey, guard: &Guard<'_>) -> Option<FoundRecords> {
        let found = self.find(key, (guard, true))?;
        self.hits.add(HIT);
        Some(found.with_rest())
    }

    /// Whether the records of a key are here.
    pub(crate) fn has(&self, key: &SstKey, guard: &Guard<'_>) -> bool {
        self.find(key, (guard, false)).is_some()
    }

    #[inline]
    fn find(&self, key: &SstKey, how: (&Guard<'_>, bool)) -> Option<FoundRecord> {
        self.sets.get()?.find(key.hash(), how, |copy| {
            let record = FoundRecord::first_of(copy);
            // Two keys may be alike in their hashes.
            let is_it = is_of_key(record.head(), key.bytes());
            is_it.then_some(record)
        })
    }

    /// Offers what runs of this generation have of a key, newest first: it is copied, to be [taken in](RecordCache::take_in) if it counts still then. Nothing of one that was not looked up lately, nor
    /// where so much is offered that nobody comes after.
    pub(crate) fn offer(&self, key: &SstKey, records: &[FoundRecord], generation: u64) {
        let bytes: usize = records.iter().map(|record| record.head().record_bytes()).sum();
        let bytes_max = self.bytes_max() / SHARE_MAX;
        if bytes as u64 > bytes_max.min(RECORD_BYTES_MAX) || self.looked_up.is_first(key.hash()) {
            return;
        }
        if let Some(mut offered) = self.offered.try_lock()
            && offered.len() + HEAD_WORDS + bytes / 8 <= OFFERED_WORDS_MAX
        {
            offered.extend([key.hash(), generation, bytes as u64 / 8]);
            records.iter().for_each(|record| record.copy_to(&mut offered));
        }
    }

    /// Takes in what was offered since; returns how many records that were. For one thread, which may have to wait for memory that was never used before.
    pub(crate) fn take_in(&self) -> usize {
        let mut taking = self.taking.lock();
        std::mem::swap(&mut *taking, &mut *self.offered.lock());
        let (mut rest, mut taken) = (&mut taking[..], 0);
        while let [hash, generation, words, after @ ..] = rest {
            let (record, others) = after.split_at_mut(*words as usize);
            self.put(*hash, *generation, SharedCopy::of(SharedBytes::of(record)));
            (rest, taken) = (others, taken + 1);
        }
        taking.clear();
        taken
    }

    /// Puts a record in that runs of this generation have of a key, if it counts still and if there is room for it or may be made.
    fn put(&self, hash: u64, generation: u64, copy: SharedCopy) {
        let sets = self.made_sets();
        if !self.make_room(sets, bytes_of(&copy)) {
            return;
        }
        // Who forgets sees the sets, or what he raised is seen here.
        fence(Ordering::SeqCst);
        // What moved since has been forgotten, or will be by who waits for the lock.
        sets.put(hash, copy, || self.generation.load(Ordering::Relaxed) == generation);
    }

    /// Lets records go until there is room for so many bytes; false if those that are passed are asked for too often, or if too much that was let go of is looked at still.
    fn make_room(&self, sets: &CopySets, bytes: u64) -> bool {
        let waits = || sets.bytes_waiting() > self.bytes_max() / WAITING_SHARE;
        if waits() {
            self.epoch.collect();
            if waits() {
                return false;
            }
        }
        for _ in 0..PASSED_MAX {
            if self.has_room_for(bytes) {
                return true;
            }
            sets.pass_one();
        }
        false
    }

    /// What counts is that of runs of this generation, from now on, for who offers.
    pub(crate) fn rise_to(&self, generation: u64) {
        self.generation.fetch_max(generation, Ordering::Relaxed);
        // Who forgets looks whether there are sets after this, and who makes them asks for the generation afterwards.
        fence(Ordering::SeqCst);
    }

    /// What there is of a key may count no more; nor does what somebody is about to bring. After [`RecordCache::rise_to`].
    pub(crate) fn forget(&self, key: &SstKey) {
        if let Some(sets) = self.sets.get() {
            sets.forget(key.hash());
        }
    }

    /// Whether there may be anything to be forgotten.
    pub(crate) fn is_in_use(&self) -> bool {
        self.sets.get().is_some()
    }
}

impl fmt::Debug for RecordCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;

#[cfg(all(test, shuttle))]
mod shuttle;
