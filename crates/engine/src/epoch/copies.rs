//! Copies of records that are found by a hash, without a lock, by whoever holds a guard.
//!
//! Owns [`CopySets`]. Promises that what is found was there when it was asked for and stays as long as it is held, whatever is put in its place; and that it is known how many bytes all take. Must not know what
//! the copies are of, nor which are worth their room.
//!
//! A hash picks a set, a cache line of eight words, each the address of a copy with a part of the hash and whether it was asked for lately. Whoever changes a set holds a lock. What is taken out is freed once no guard is
//! left that was there then: a reader who has found an address makes a clone of his own meanwhile.
#![allow(unsafe_code)]

use hedgerow_device::SharedCopy;

use super::{Epoch, Garbage, Guard};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, zeroed_words};

/// Copies that share a set.
const WAYS: usize = 8;
/// A fraction of 32 bits picks a set.
const SETS_MAX: usize = 1 << 31;
/// Locks of those who change sets.
const LOCKS: usize = if cfg!(shuttle) { 2 } else { 64 };
/// What a copy takes besides its bytes: counts, its length, the head of its memory.
const OVERHEAD_BYTES: u64 = 40;
/// In a word: the copy was asked for since the hand came by. Addresses are multiples of 8.
const ASKED: u64 = 1;
/// In a word: the address of a copy; above it a part of the hash.
const ADDRESS: u64 = (1 << TAG_SHIFT) - 8;
const TAG_SHIFT: u32 = 48;

/// The word of a copy with this hash, which is at this address.
fn word_of(hash: u64, address: usize) -> u64 {
    hash >> TAG_SHIFT << TAG_SHIFT | address as u64
}

fn address_of(word: u64) -> usize {
    (word & ADDRESS) as usize
}

/// Whether there is a copy, and of a hash that looks like this one.
fn is_like(word: u64, hash: u64) -> bool {
    word >> TAG_SHIFT == hash >> TAG_SHIFT && address_of(word) != 0
}

/// Bytes of memory that a copy takes.
pub(crate) fn bytes_of(copy: &SharedCopy) -> u64 {
    copy.shared().len() as u64 + OVERHEAD_BYTES
}

/// A copy that was taken out.
struct TakenOut {
    copy: SharedCopy,
    waiting: Arc<AtomicU64>,
}

impl Garbage for TakenOut {
    fn free(self: Box<Self>, _: &mut usize) -> Option<Box<dyn Garbage>> {
        self.waiting.fetch_sub(bytes_of(&self.copy), Ordering::Relaxed);
        None
    }
}

/// Sets of copies, under the guards of one epoch.
pub(crate) struct CopySets {
    epoch: Arc<Epoch>,
    words: Box<[AtomicU64]>,
    /// The first word that begins a cache line.
    first: usize,
    count: usize,
    locks: Box<[Mutex<()>]>,
    /// The set that is passed next.
    hand: AtomicUsize,
    /// What the words and all copies take.
    bytes: AtomicU64,
    /// What was taken out and may be looked at still.
    waiting: Arc<AtomicU64>,
}

impl CopySets {
    /// With room for about so many copies.
    pub(crate) fn new(epoch: Arc<Epoch>, copies: usize) -> CopySets {
        let count = if cfg!(shuttle) { 1 } else { (copies / WAYS).clamp(1, SETS_MAX) };
        let words = zeroed_words((count + 1) * WAYS);
        let first = if cfg!(shuttle) { 0 } else { words.as_ptr().align_offset(WAYS * size_of::<u64>()) };
        CopySets {
            epoch,
            bytes: AtomicU64::new(size_of_val(&*words) as u64),
            words,
            first: first.min(WAYS),
            count,
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            hand: AtomicUsize::new(0),
            waiting: Arc::default(),
        }
    }

    /// How many sets there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// What they take, with all copies in them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What was taken out, and is not freed yet.
    pub(crate) fn bytes_waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Which is that of a hash: its lower half, as a fraction of them all. The upper bits tell copies of a set apart.
    #[inline]
    fn number_of(&self, hash: u64) -> usize {
        (((hash & u64::from(u32::MAX)) * self.count as u64) >> 32) as usize
    }

    #[inline]
    fn set(&self, n: usize) -> &[AtomicU64] {
        let first = self.first + n * WAYS;
        &self.words[first..first + WAYS]
    }

    fn lock_of(&self, n: usize) -> &Mutex<()> {
        &self.locks[n % LOCKS]
    }

    /// What `take` makes of a copy with this hash, the first of which it makes anything; `marks` it as asked for.
    ///
    /// # Panics
    /// The guard is of the epoch that they were made for.
    #[inline]
    pub(crate) fn find<R>(
        &self,
        hash: u64,
        (guard, marks): (&Guard<'_>, bool),
        take: impl Fn(SharedCopy) -> Option<R>,
    ) -> Option<R> {
        assert!(std::ptr::eq(guard.epoch(), &*self.epoch), "a guard of another store");
        self.set(self.number_of(hash)).iter().find_map(|place| {
            let word = place.load(Ordering::Acquire);
            if !is_like(word, hash) {
                return None;
            }
            // SAFETY: `into_address` gave it. Whoever took it out of its word since lets go of it once no guard is left that was there then, and there is this one.
            let found = take(unsafe { SharedCopy::clone_at(address_of(word)) })?;
            if marks && word & ASKED == 0 {
                // Another may be there by now, and is not taken for this one.
                let _ = place.compare_exchange(word, word | ASKED, Ordering::Relaxed, Ordering::Relaxed);
            }
            Some(found)
        })
    }

    /// Puts a copy under its hash, if it `counts` still, which is asked under the lock that [`CopySets::forget`] takes of that hash. It takes the place of what looks like it, or else a free one; or that of
    /// one that was not asked for lately, or of any.
    pub(crate) fn put(&self, hash: u64, copy: SharedCopy, counts: impl FnOnce() -> bool) {
        let n = self.number_of(hash);
        let taken = {
            let _locked = self.lock_of(n).lock();
            if !counts() {
                return;
            }
            let words = || self.set(n).iter().map(|place| place.load(Ordering::Relaxed));
            let chosen = words().position(|word| is_like(word, hash));
            let chosen = chosen.or_else(|| words().position(|word| address_of(word) == 0));
            let chosen = chosen.or_else(|| words().position(|word| word & ASKED == 0)).unwrap_or(0);
            let bytes = bytes_of(&copy);
            let address = copy.into_address();
            if address as u64 & !ADDRESS != 0 {
                // No memory is there that nobody asked to have there.
                // SAFETY: given just now.
                drop(unsafe { SharedCopy::from_address(address) });
                return;
            }
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.swap(&self.set(n)[chosen], word_of(hash, address))
        };
        self.let_go(taken);
    }

    /// Takes out all whose hashes look like this one.
    pub(crate) fn forget(&self, hash: u64) {
        let n = self.number_of(hash);
        self.take_out(n, |place| {
            is_like(place.load(Ordering::Relaxed), hash).then(|| self.swap(place, 0)).flatten()
        });
    }

    /// Moves the hand on by one set: what was not asked for since it came by goes.
    pub(crate) fn pass_one(&self) {
        let n = self.hand.fetch_add(1, Ordering::Relaxed) % self.count;
        self.take_out(n, |place| {
            let word = place.load(Ordering::Relaxed);
            if word & ASKED == 0 {
                return if word == 0 { None } else { self.swap(place, 0) };
            }
            // Not a store: who finds the address by it would not be sure to find what is there.
            place.fetch_and(!ASKED, Ordering::Relaxed);
            None
        });
    }

    /// Lets go of what `take` takes out of the places of a set, whose lock is held meanwhile.
    fn take_out(&self, n: usize, take: impl Fn(&AtomicU64) -> Option<SharedCopy>) {
        let mut taken = [const { None }; WAYS];
        {
            let _locked = self.lock_of(n).lock();
            self.set(n).iter().zip(&mut taken).for_each(|(place, taken)| *taken = take(place));
        }
        taken.into_iter().for_each(|taken| self.let_go(taken));
    }

    /// Takes what is in a word out, whose lock is held, and puts another there.
    fn swap(&self, place: &AtomicU64, word: u64) -> Option<SharedCopy> {
        // Release: who finds the address finds what is there.
        let address = address_of(place.swap(word, Ordering::AcqRel));
        if address == 0 {
            return None;
        }
        // SAFETY: `into_address` gave it; who swaps it out, under the lock, is the one who takes it back.
        let taken = unsafe { SharedCopy::from_address(address) };
        self.bytes.fetch_sub(bytes_of(&taken), Ordering::Relaxed);
        Some(taken)
    }

    /// Frees it once nobody is at it.
    fn let_go(&self, taken: Option<SharedCopy>) {
        if let Some(copy) = taken {
            self.waiting.fetch_add(bytes_of(&copy), Ordering::Relaxed);
            self.epoch.defer(Box::new(TakenOut { copy, waiting: Arc::clone(&self.waiting) }));
        }
    }
}

impl Drop for CopySets {
    fn drop(&mut self) {
        for word in &mut self.words {
            let address = address_of(*word.get_mut());
            if address != 0 {
                // SAFETY: `into_address` gave it, and what is in a word was not taken back.
                drop(unsafe { SharedCopy::from_address(address) });
            }
        }
    }
}
