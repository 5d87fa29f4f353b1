//! Bytes that others may store into while they are read.
//!
//! Owns: the loads of such bytes, and [`CopiedBlocks`], where a reader keeps what it read. Promises: nothing here is a data race with
//! [`TierBytes::patch`](crate::TierBytes::patch) and [`TierBytes::store_u32`](crate::TierBytes::store_u32), and a copy does not change any more. Must
//! not know: what the bytes mean, or how a copy is found to be whole.
//!
//! # Why not plain loads
//!
//! A reader of a block with a checksum, as that of a seqlock, looks first and asks afterwards whether what it saw was whole. With
//! plain loads it is too late then: two accesses of one place, one of them a store and not both atomic, that nothing orders are a data race,
//! and undefined whatever becomes of the result. Compilers make use of it: what was loaded once for the checksum may be loaded again for its
//! value. So, as Boehm has it ("Can seqlocks get along with programming language memory models?", MSPC 2012):
//!
//! * The data are loaded by relaxed atomics into memory of the reader's own, which is what it looks at from then on.
//! * Then comes an acquire fence, then the load of what tells whether the copy is whole, the checksum.
//! * The writer stores the new checksum before the data, and the data by release stores. So a reader whose copy has anything of the new
//!   data finds the new checksum behind its fence.
//! * Atomic accesses of one place that may meet must be of one size: of bodies, whole words of 8 bytes, the bytes beside a field included; of checksums, the 4
//!   bytes of one, which may share a word with the end of a key that is read by plain loads.
//!
//! On the processors at hand a relaxed load is a plain load. What is paid is the copy.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::emulate::touch;

const WORD_BYTES: usize = size_of::<u64>();
/// Most blocks that [`CopiedBlocks`] tells apart.
const BLOCKS_MAX: usize = u128::BITS as usize;
/// Words of memory that a thread keeps for its next copies, at most.
const SPARE_WORDS_MAX: usize = 2048;

/// Memory that copies are made in.
type Words = Box<[MaybeUninit<UnsafeCell<u64>>]>;

thread_local! {
    /// The memory of copies that are gone: most threads read one row at a time.
    static SPARE: Cell<Option<Words>> = const { Cell::new(None) };
}

/// The little-endian number in the eight bytes at `at`, which others may store at once.
///
/// # Panics
/// They all exist.
#[inline(always)]
pub fn relaxed_u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes[at..at + 8].as_ptr().cast::<u64>();
    u64::from_le(if is_private(word) {
        // SAFETY: eight bytes of a borrowed slice, checked above.
        unsafe { word.read_unaligned() }
    } else {
        // SAFETY: eight bytes of a borrowed slice, aligned. Whoever stores there meanwhile does so by an atomic of this size.
        unsafe { AtomicU64::from_ptr(word.cast_mut()) }.load(Ordering::Relaxed)
    })
}

/// The little-endian number in the four bytes at `at`, which others may store at once.
///
/// # Panics
/// They all exist.
#[inline(always)]
pub fn relaxed_u32_at(bytes: &[u8], at: usize) -> u32 {
    let half = bytes[at..at + 4].as_ptr().cast::<u32>();
    u32::from_le(if is_private(half) {
        // SAFETY: four bytes of a borrowed slice, checked above.
        unsafe { half.read_unaligned() }
    } else {
        // SAFETY: four bytes of a borrowed slice, aligned. Whoever stores there meanwhile does so by an atomic of this size.
        unsafe { AtomicU32::from_ptr(half.cast_mut()) }.load(Ordering::Relaxed)
    })
}

/// Whether a number lies where no tier puts one: in memory of the reader's own, which nobody else stores into. (Under Miri, which has no
/// tiers to share, all is.)
#[inline(always)]
fn is_private<T>(number: *const T) -> bool {
    cfg!(miri) || !number.is_aligned()
}

/// A copy of `bytes`, which others may store into meanwhile in words of 8 bytes. Whoever needs it whole finds out after an acquire
/// fence.
pub fn copy_relaxed(bytes: &[u8]) -> Vec<u8> {
    let (words, rest) = bytes.as_chunks::<WORD_BYTES>();
    let mut copy = Vec::with_capacity(bytes.len());
    words.iter().for_each(|word| copy.extend_from_slice(&relaxed_u64_at(word, 0).to_le_bytes()));
    // What does not fill a word is in none that is stored to.
    copy.extend_from_slice(rest);
    copy
}

/// Copies of blocks of some bytes that others may store into, each made when it is first asked for. One that was found to be whole
/// stays as it was.
pub struct CopiedBlocks {
    /// At least as many as are copied.
    words: Words,
    bytes: usize,
    block_shift: u8,
    /// A copy is being made.
    is_busy: Cell<bool>,
    /// A bit for each block that is whole. Its words are never stored to again.
    whole: Cell<u128>,
}

impl CopiedBlocks {
    /// None yet, of `bytes` bytes (a multiple of 8) in blocks of `1 << block_shift`.
    ///
    /// # Panics
    /// A block has at least 8 bytes, and there are at most 128.
    pub fn new(bytes: usize, block_shift: u8) -> CopiedBlocks {
        assert!(
            bytes.is_multiple_of(WORD_BYTES) && 1 << block_shift >= WORD_BYTES,
            "{bytes} bytes are no words"
        );
        assert!(bytes.div_ceil(1 << block_shift) <= BLOCKS_MAX, "too many blocks in {bytes} bytes");
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let kept = spare.filter(|words| words.len() >= bytes / WORD_BYTES);
        let words = kept.unwrap_or_else(|| Box::new_uninit_slice(bytes / WORD_BYTES));
        CopiedBlocks { words, bytes, block_shift, is_busy: Cell::new(false), whole: Cell::new(0) }
    }

    /// The bytes of `range`, which is not empty, if the blocks that they lie in were all copied.
    #[inline]
    pub fn get(&self, range: &Range<usize>) -> Option<&[u8]> {
        let last = range.end.checked_sub(1).filter(|last| range.start <= *last)? >> self.block_shift;
        let first = range.start >> self.block_shift;
        if last >= BLOCKS_MAX || range.end > self.bytes {
            return None;
        }
        let wanted = (!0u128 << first) & (!0u128 >> (BLOCKS_MAX - 1 - last));
        // SAFETY: in the words, checked above; all blocks of the range are whole, so they are initialized and will not be
        // stored to while `self` is borrowed.
        (self.whole.get() & wanted == wanted).then(|| unsafe {
            slice::from_raw_parts(self.words.as_ptr().cast::<u8>().add(range.start), range.len())
        })
    }

    /// Copies a block of `bytes`, if that was not done before, and asks whether the copy is whole. Only then it is kept.
    ///
    /// # Panics
    /// `bytes` has as many as were told, and has the block; `is_whole` copies nothing here.
    pub fn copy(&self, bytes: &[u8], block: usize, is_whole: impl FnOnce(&[u8]) -> bool) -> bool {
        assert!(bytes.len() == self.bytes && block < BLOCKS_MAX, "not what was told");
        if self.whole.get() & 1 << block != 0 {
            return true;
        }
        assert!(!self.is_busy.replace(true), "one copy at a time");
        let start = block << self.block_shift;
        let from = &bytes[start..((block + 1) << self.block_shift).min(bytes.len())];
        touch(from);
        let to =
            self.words[start / WORD_BYTES..][..from.len() / WORD_BYTES].as_ptr().cast::<UnsafeCell<u64>>();
        // SAFETY: as many words as were cut out of the cells just now. No slice over this block is alive: its bit is not set, and
        // nobody else makes a copy, by the flag. The cells cannot be shared by threads.
        let copied = unsafe {
            copy_words(from, UnsafeCell::raw_get(to));
            slice::from_raw_parts(to.cast::<u8>(), from.len())
        };
        let found = is_whole(copied);
        self.whole.set(self.whole.get() | u128::from(found) << block);
        self.is_busy.set(false);
        found
    }
}

impl Drop for CopiedBlocks {
    fn drop(&mut self) {
        if self.words.len() <= SPARE_WORDS_MAX {
            let words = std::mem::take(&mut self.words);
            // A thread that is ending keeps nothing.
            SPARE.try_with(|spare| spare.set(Some(words))).ok();
        }
    }
}

/// Loads the words of `from`, a multiple of 8 bytes, one by one.
///
/// # Safety
/// As many may be stored at `to`, and nobody else looks at them.
unsafe fn copy_words(from: &[u8], to: *mut u64) {
    let words = from.as_ptr().cast::<u64>();
    let count = from.len() / WORD_BYTES;
    if is_private(words) {
        // SAFETY: the caller's; what nobody else stores to may be copied as it likes.
        return unsafe { words.cast::<u8>().copy_to_nonoverlapping(to.cast::<u8>(), count * WORD_BYTES) };
    }
    for at in 0..count {
        // SAFETY: `at` words into `from`, aligned as its first is; whoever stores there meanwhile does so by an atomic of this size.
        // `to` is the caller's.
        unsafe { to.add(at).write(AtomicU64::from_ptr(words.add(at).cast_mut()).load(Ordering::Relaxed)) };
    }
}

impl fmt::Debug for CopiedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopiedBlocks").field("whole", &self.whole.get()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FastTier, FastTierOptions};

    #[test]
    fn numbers_are_read_wherever_they_lie() {
        let bytes: Vec<u8> = (0..64).collect();
        for at in 0..50 {
            let word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(relaxed_u64_at(&bytes, at), word);
            assert_eq!(relaxed_u32_at(&bytes, at), word as u32);
        }
        for len in 0..64 {
            assert_eq!(copy_relaxed(&bytes[3..][..len.min(61)]), &bytes[3..][..len.min(61)]);
            assert_eq!(copy_relaxed(&bytes[..len]), &bytes[..len]);
        }
    }

    fn read<'c>(copies: &'c CopiedBlocks, bytes: &[u8], range: Range<usize>) -> &'c [u8] {
        for block in range.start >> 8..=(range.end - 1) >> 8 {
            assert!(copies.copy(bytes, block, |_| true));
        }
        copies.get(&range).unwrap()
    }

    #[test]
    fn a_block_is_copied_once_and_stays_as_it_was() {
        let mut bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let before = bytes.clone();
        let copies = CopiedBlocks::new(1000, 8);
        assert_eq!(copies.get(&(300..310)), None);
        assert!(!copies.copy(&bytes, 1, |copy| copy != &before[256..512]), "refused");
        assert_eq!(copies.get(&(300..310)), None);
        assert_eq!(read(&copies, &bytes, 300..310), &before[300..310]);
        bytes.fill(7);
        assert_eq!(read(&copies, &bytes, 256..512), &before[256..512], "the block copied before");
        assert_eq!(copies.get(&(500..520)), None);
        assert_eq!(
            read(&copies, &bytes, 500..520),
            [&before[500..512], &[7; 8]].concat(),
            "and another beside it"
        );
        assert_eq!(read(&copies, &bytes, 999..1000), [7]);
        assert_eq!(read(&copies, &bytes, 0..256), [7; 256]);
        assert_eq!(copies.get(&(256..512)).unwrap(), &before[256..512]);
        for range in [(3..3), (0..1001), (1000..1 << 40)] {
            assert_eq!(copies.get(&range), None, "{range:?}");
        }
    }

    #[test]
    #[should_panic(expected = "one copy at a time")]
    fn no_copy_is_made_while_another_is_looked_at() {
        let copies = CopiedBlocks::new(8, 8);
        copies.copy(&[0; 8], 0, |_| copies.copy(&[1; 8], 0, |_| true));
    }

    #[test]
    fn every_word_of_a_copy_is_old_or_new_and_stays() {
        const BYTES: usize = 2048;
        let tier = FastTier::dram(&FastTierOptions::default()).unwrap().into_bytes();
        tier.grow(1 << 16).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..2000u64 {
                    tier.patch(0, &[(round % 251) as u8; BYTES]);
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                let copy = CopiedBlocks::new(BYTES, 8);
                let first = read(&copy, tier.read(0, BYTES), 0..BYTES);
                let kept = first.to_vec();
                assert!(first.as_chunks::<8>().0.iter().all(|word| word.iter().all(|byte| *byte == word[0])));
                assert_eq!(read(&copy, tier.read(0, BYTES), 0..BYTES), kept);
            }
        });
    }
}
