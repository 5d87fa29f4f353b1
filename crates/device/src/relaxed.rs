//! Bytes that others may store into while they are looked at.
//!
//! Owns [`SharedBytes`], which such bytes are handed out as, [`OwnedBytes`], which are lent like them, and [`CopiedBlocks`], where a reader keeps what it read of them. Promises: no load
//! here is a data race with [`TierBytes::patch`](crate::TierBytes::patch) or [`TierBytes::store_u32`](crate::TierBytes::store_u32), and a copy
//! does not change any more. Must not know: what the bytes mean, or how a copy is found to be whole.
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
//!
//! # Why not slices
//!
//! Bytes behind a `&[u8]` do not change as long as it lives: the language promises that to the compiler, however they are loaded. Behind a
//! `&SharedBytes` they may, as behind any atomic. What of them nobody stores to is lent as a slice ([`SharedBytes::frozen`]): most of a record, always.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell, UnsafeCell};
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::ptr::NonNull;
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

/// Bytes that others may store into while they are looked at: whole words, at addresses that are multiples of 8.
#[repr(transparent)]
pub struct SharedBytes([AtomicU64]);

impl SharedBytes {
    /// Those of `words`, in the order they have in memory, which nobody else has.
    pub fn of(words: &mut [u64]) -> &SharedBytes {
        // SAFETY: a slice that the caller lends to us alone; the layout of an atomic is its number's.
        unsafe { SharedBytes::from_raw(words.as_mut_ptr(), words.len()) }
    }

    /// The `count` words at `words`.
    ///
    /// # Safety
    /// They begin at a multiple of 8 and lie in one allocation. For the lifetime they may be read, and stored to only by atomics, of 8 bytes; or of 4, which nobody reads but by
    /// [`SharedBytes::u32_at`]. What is asked for by [`SharedBytes::frozen`] nobody stores to while the answer lives. What is
    /// never looked at through them is nobody's concern.
    #[inline(always)]
    pub(crate) unsafe fn from_raw<'a>(words: *const u64, count: usize) -> &'a SharedBytes {
        // SAFETY: the caller's. `SharedBytes` is a slice of atomics, which are numbers in memory.
        unsafe { &*(std::ptr::slice_from_raw_parts(words, count) as *const SharedBytes) }
    }

    /// A multiple of 8.
    #[inline(always)]
    pub fn len(&self) -> usize {
        size_of_val(self)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those in `range`, of which both ends are multiples of 8, if they are all there.
    #[inline(always)]
    pub fn get(&self, range: Range<usize>) -> Option<&SharedBytes> {
        if !(range.start | range.end).is_multiple_of(WORD_BYTES) {
            return None;
        }
        let words = self.0.get(range.start / WORD_BYTES..range.end / WORD_BYTES)?;
        // SAFETY: words of ours.
        Some(unsafe { SharedBytes::from_raw(words.as_ptr().cast(), words.len()) })
    }

    /// Those of `range`, to which nobody stores while the answer is looked at: whoever holds the bytes of a tier has
    /// promised that ([`TierBytes::new`](crate::TierBytes::new), rule 4).
    ///
    /// # Panics
    /// They all exist.
    #[inline(always)]
    pub fn frozen(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len(), "bytes that are not there");
        // SAFETY: in the words, checked just now; that they do not change is the promise of `from_raw`.
        unsafe { slice::from_raw_parts(self.0.as_ptr().cast::<u8>().add(range.start), range.len()) }
    }

    /// The little-endian number in the eight bytes at `at`, a multiple of 8. A relaxed load.
    ///
    /// # Panics
    /// They all exist.
    #[inline(always)]
    pub fn u64_at(&self, at: usize) -> u64 {
        debug_assert!(at.is_multiple_of(WORD_BYTES), "no word begins at {at}");
        u64::from_le(self.0[at / WORD_BYTES].load(Ordering::Relaxed))
    }

    /// The little-endian number in the four bytes at `at`, a multiple of 4, which are stored to as four. A relaxed load.
    ///
    /// # Panics
    /// They all exist.
    #[inline(always)]
    pub fn u32_at(&self, at: usize) -> u32 {
        debug_assert!(at.is_multiple_of(size_of::<u32>()), "no half of a word begins at {at}");
        let word = self.0[at / WORD_BYTES].as_ptr().cast::<u32>();
        // SAFETY: a half of a word of ours, the second where `at` is no multiple of 8. Whoever stores there does so by an atomic of this size.
        let half = unsafe { AtomicU32::from_ptr(word.add(at / size_of::<u32>() % 2)) };
        u32::from_le(half.load(Ordering::Relaxed))
    }

    /// A copy, in words as they are in memory: for [`SharedBytes::of`], or for whoever finds out after an acquire fence whether it is whole.
    pub fn to_words(&self) -> Vec<u64> {
        self.words().collect()
    }

    /// Appends a copy, in words as they are in memory.
    pub fn append_to(&self, words: &mut Vec<u64>) {
        words.extend(self.words());
    }

    /// The words, each as it is when it is come by.
    pub(crate) fn words(&self) -> impl ExactSizeIterator<Item = u64> {
        self.0.iter().map(|word| word.load(Ordering::Relaxed))
    }

    /// A copy. Whoever needs it whole finds out after an acquire fence.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    /// Waits, where those of `range` lie in an emulated tier, as long as reading them takes there: for whoever looks at bytes of
    /// [`TierBytes::try_view`](crate::TierBytes::try_view). One relaxed load where no emulated tier is open.
    #[inline(always)]
    pub fn touch(&self, range: Range<usize>) {
        touch(self.0.as_ptr().cast(), range);
    }
}

/// What devices read at least, and the least that memory for direct reads is aligned to.
const SECTOR_BYTES: usize = 512;

/// Words of a sector, at an address that a direct read can begin at.
#[repr(C, align(512))]
struct Sector([AtomicU64; SECTOR_BYTES / WORD_BYTES]);

const _: () = assert!(size_of::<Sector>() == SECTOR_BYTES && align_of::<Sector>() == SECTOR_BYTES);

impl Sector {
    fn zeroed() -> Sector {
        Sector([const { AtomicU64::new(0) }; SECTOR_BYTES / WORD_BYTES])
    }
}

/// Bytes of one owner, in whole sectors of 512: written through it alone, and lent as [`SharedBytes`] for whoever looks at both kinds.
pub struct OwnedBytes {
    sectors: Box<[Sector]>,
}

/// Memory of what was dropped is kept for what is read next, where it has no more sectors than this: a block of a sorted table, mostly, as it is stored or unpacked.
const KEPT_SECTORS_MAX: usize = 32;
/// So many of each length: 4 MiB for a thread that reads blocks of all lengths.
const KEPT_MAX: usize = 16;

thread_local! {
    /// By the number of sectors less one. All of it was stored to once. Aligned memory is slow to get and to give back: about a tenth of what a read costs the processor.
    static KEPT: RefCell<[Vec<Box<[Sector]>>; KEPT_SECTORS_MAX]> =
        const { RefCell::new([const { Vec::new() }; KEPT_SECTORS_MAX]) };
}

/// Where memory of so many sectors is kept, if it is.
fn kept_place(sectors: usize) -> Option<usize> {
    sectors.checked_sub(1).filter(|&place| place < KEPT_SECTORS_MAX)
}

fn take_kept(sectors: usize) -> Option<Box<[Sector]>> {
    let place = kept_place(sectors)?;
    KEPT.try_with(|kept| kept.borrow_mut()[place].pop()).ok().flatten()
}

fn keep(memory: Box<[Sector]>) {
    let Some(place) = kept_place(memory.len()) else { return };
    // A thread that is ending keeps nothing.
    let _ = KEPT.try_with(|kept| {
        let kept = &mut kept.borrow_mut()[place];
        if kept.len() < KEPT_MAX {
            kept.push(memory);
        }
    });
}

impl Drop for OwnedBytes {
    fn drop(&mut self) {
        keep(std::mem::take(&mut self.sectors));
    }
}

impl OwnedBytes {
    /// Zeros: `bytes` of them, and so many more as fill the last sector.
    pub fn zeroed(bytes: usize) -> OwnedBytes {
        OwnedBytes { sectors: (0..bytes.div_ceil(SECTOR_BYTES)).map(|_| Sector::zeroed()).collect() }
    }

    /// As [`OwnedBytes::zeroed`], but the first `bytes` of them are any: for who stores to all of those, and spares himself the zeros where memory was kept.
    pub fn to_be_stored_to(bytes: usize) -> OwnedBytes {
        let Some(mut sectors) = take_kept(bytes.div_ceil(SECTOR_BYTES)) else {
            return OwnedBytes::zeroed(bytes);
        };
        if let Some(last) = sectors.last_mut()
            && !bytes.is_multiple_of(SECTOR_BYTES)
        {
            *last = Sector::zeroed();
        }
        OwnedBytes { sectors }
    }

    /// All of them, to be read and written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let bytes = size_of_val(&*self.sectors);
        // SAFETY: the words are ours, and by `&mut self` nobody else looks at them; any bytes are atomics' numbers.
        unsafe { slice::from_raw_parts_mut(self.sectors.as_mut_ptr().cast::<u8>(), bytes) }
    }

    /// All of them, to be read.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.shared().frozen(0..size_of_val(&*self.sectors))
    }

    /// All of them, as those of a tier are lent.
    #[inline]
    pub fn shared(&self) -> &SharedBytes {
        // SAFETY: the words are ours; through `SharedBytes` nobody can store, and otherwise only by `&mut self`.
        unsafe {
            SharedBytes::from_raw(self.sectors.as_ptr().cast(), size_of_val(&*self.sectors) / WORD_BYTES)
        }
    }
}

/// Memory for [`OwnedBytes`] that a device will fill: nothing is stored there before.
pub(crate) struct UnfilledBytes {
    /// A `Box` that was let go of: whoever moves one says that nobody else has its memory.
    sectors: NonNull<[MaybeUninit<Sector>]>,
    bytes: usize,
}

impl UnfilledBytes {
    /// For `bytes` of them.
    pub(crate) fn new(bytes: usize) -> UnfilledBytes {
        let count = bytes.div_ceil(SECTOR_BYTES);
        let mut sectors = match take_kept(count) {
            // SAFETY: what is initialized may be taken for what need not be; sectors have nothing to drop.
            Some(kept) => unsafe { Box::from_raw(Box::into_raw(kept) as *mut [MaybeUninit<Sector>]) },
            None => Box::new_uninit_slice(count),
        };
        if let Some(last) = sectors.last_mut()
            && !bytes.is_multiple_of(SECTOR_BYTES)
        {
            // A part of it is filled by nobody.
            last.write(Sector::zeroed());
        }
        UnfilledBytes { sectors: NonNull::from(Box::leak(sectors)), bytes }
    }

    /// How many they are to be.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Where they are to be put.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.sectors.cast().as_ptr()
    }

    /// The bytes.
    ///
    /// # Safety
    /// All [`UnfilledBytes::len`] of them were stored to, and nobody stores to them any more.
    pub(crate) unsafe fn assume_filled(self) -> OwnedBytes {
        let sectors = ManuallyDrop::new(self).sectors;
        // SAFETY: it was let go of in `new`, and is let go of by `self`; any bytes are atomics' numbers, and these are there.
        OwnedBytes { sectors: unsafe { Box::from_raw(sectors.as_ptr()).assume_init() } }
    }
}

impl Drop for UnfilledBytes {
    fn drop(&mut self) {
        // SAFETY: it was let go of in `new`. It may have been filled in part, so it is not kept.
        drop(unsafe { Box::from_raw(self.sectors.as_ptr()) });
    }
}

impl fmt::Debug for OwnedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.shared(), f)
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:p}", self.len(), self.0.as_ptr())
    }
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
    /// A block has at least 8 bytes and less than 4 GiB, so that no number of one overflows its place; there are at most 128.
    pub fn new(bytes: usize, block_shift: u8) -> CopiedBlocks {
        assert!(
            bytes.is_multiple_of(WORD_BYTES) && (3..32).contains(&block_shift),
            "{bytes} bytes in blocks of 2^{block_shift} are no words"
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
    pub fn copy(&self, bytes: &SharedBytes, block: usize, is_whole: impl FnOnce(&[u8]) -> bool) -> bool {
        assert!(bytes.len() == self.bytes && block < BLOCKS_MAX, "not what was told");
        if self.whole.get() & 1 << block != 0 {
            return true;
        }
        assert!(!self.is_busy.replace(true), "one copy at a time");
        let start = block << self.block_shift;
        let end = ((block + 1) << self.block_shift).min(bytes.len());
        bytes.touch(start..end);
        let from = &bytes.0[start / WORD_BYTES..end / WORD_BYTES];
        let to = self.words[start / WORD_BYTES..][..from.len()].as_ptr().cast::<UnsafeCell<u64>>();
        // SAFETY: as many words as were cut out of the cells just now. No slice over this block is alive: its bit is not set, and
        // nobody else makes a copy, by the flag. The cells cannot be shared by threads.
        let copied = unsafe {
            copy_words(from, UnsafeCell::raw_get(to));
            slice::from_raw_parts(to.cast::<u8>(), end - start)
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

/// Loads the words of `from` one by one.
///
/// # Safety
/// As many may be stored at `to`, and nobody else looks at them.
unsafe fn copy_words(from: &[AtomicU64], to: *mut u64) {
    // Groups of eight, since loops over atomics are not unrolled.
    let (groups, rest) = from.as_chunks::<8>();
    for (at, group) in groups.iter().enumerate() {
        for (i, word) in group.iter().enumerate() {
            // SAFETY: the caller's.
            unsafe { to.add(8 * at + i).write(word.load(Ordering::Relaxed)) };
        }
    }
    for (i, word) in rest.iter().enumerate() {
        // SAFETY: the caller's.
        unsafe { to.add(8 * groups.len() + i).write(word.load(Ordering::Relaxed)) };
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

    fn words_of(bytes: &[u8]) -> Vec<u64> {
        let (words, rest) = bytes.as_chunks();
        assert!(rest.is_empty(), "whole words");
        words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }

    /// Two blocks would share one place.
    #[test]
    #[should_panic(expected = "in blocks of 2^58")]
    fn no_block_is_so_large_that_its_place_overflows() {
        let _ = CopiedBlocks::new(8, 58);
    }

    /// Memory that is lent anew has nothing of what it had behind its end, of whatever length either was.
    #[test]
    fn memory_is_lent_anew_without_what_it_had() {
        for sectors in [1, 2, 8, KEPT_SECTORS_MAX, KEPT_SECTORS_MAX + 1] {
            let bytes = sectors * SECTOR_BYTES - 5;
            for _ in 0..KEPT_MAX + 2 {
                let mut first = OwnedBytes::zeroed(bytes);
                first.as_mut_slice().fill(0xEE);
            }
            let mut next = OwnedBytes::to_be_stored_to(bytes);
            assert_eq!(next.as_slice().len(), sectors * SECTOR_BYTES);
            next.as_mut_slice()[..bytes].fill(1);
            assert!(next.as_slice()[bytes..].iter().all(|&byte| byte == 0), "{sectors} sectors");
            let filled = UnfilledBytes::new(bytes);
            // SAFETY: as many as there is memory for; and then all of them were stored to.
            let filled = unsafe {
                filled.as_ptr().write_bytes(2, bytes);
                filled.assume_filled()
            };
            assert!(filled.as_slice()[..bytes].iter().all(|&byte| byte == 2));
            assert!(filled.as_slice()[bytes..].iter().all(|&byte| byte == 0), "{sectors} sectors");
            drop(UnfilledBytes::new(bytes));
        }
    }

    #[test]
    fn numbers_and_parts_are_those_of_the_bytes() {
        let bytes: Vec<u8> = (0..64).collect();
        let mut words = words_of(&bytes);
        let shared = SharedBytes::of(&mut words);
        assert_eq!((shared.len(), shared.is_empty()), (64, false));
        for at in (0..64).step_by(4) {
            if at % 8 == 0 {
                assert_eq!(shared.u64_at(at).to_le_bytes(), bytes[at..at + 8]);
            }
            assert_eq!(shared.u32_at(at).to_le_bytes(), bytes[at..at + 4]);
        }
        for (from, to) in (0..=64).flat_map(|from| (from..=64).map(move |to| (from, to))) {
            assert_eq!(shared.frozen(from..to), &bytes[from..to]);
            let part = shared.get(from..to).map(SharedBytes::to_vec);
            let is_whole_words = from % 8 == 0 && to % 8 == 0;
            assert_eq!(part, is_whole_words.then(|| bytes[from..to].to_vec()), "{from}..{to}");
        }
        for (start, end) in [(0, 72), (64, 72), (16, 8), (8, usize::MAX - 7)] {
            assert!(shared.get(start..end).is_none(), "{start}..{end}");
            assert!(std::panic::catch_unwind(|| shared.frozen(start..end).len()).is_err(), "{start}..{end}");
        }
        assert_eq!(shared.to_words(), words_of(&bytes));
    }

    fn read<'c>(copies: &'c CopiedBlocks, bytes: &SharedBytes, range: Range<usize>) -> &'c [u8] {
        for block in range.start >> 8..=(range.end - 1) >> 8 {
            assert!(copies.copy(bytes, block, |_| true));
        }
        copies.get(&range).unwrap()
    }

    #[test]
    fn a_block_is_copied_once_and_stays_as_it_was() {
        let before: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let mut words = words_of(&before);
        let copies = CopiedBlocks::new(1000, 8);
        assert_eq!(copies.get(&(300..310)), None);
        let bytes = SharedBytes::of(&mut words);
        assert!(!copies.copy(bytes, 1, |copy| copy != &before[256..512]), "refused");
        assert_eq!(copies.get(&(300..310)), None);
        assert_eq!(read(&copies, bytes, 300..310), &before[300..310]);
        words.fill(u64::from_ne_bytes([7; 8]));
        let bytes = SharedBytes::of(&mut words);
        assert_eq!(read(&copies, bytes, 256..512), &before[256..512], "the block copied before");
        assert_eq!(copies.get(&(500..520)), None);
        assert_eq!(
            read(&copies, bytes, 500..520),
            [&before[500..512], &[7; 8]].concat(),
            "and another beside it"
        );
        assert_eq!(read(&copies, bytes, 999..1000), [7]);
        assert_eq!(read(&copies, bytes, 0..256), [7; 256]);
        assert_eq!(copies.get(&(256..512)).unwrap(), &before[256..512]);
        for range in [(3..3), (0..1001), (1000..1 << 40)] {
            assert_eq!(copies.get(&range), None, "{range:?}");
        }
    }

    #[test]
    #[should_panic(expected = "one copy at a time")]
    fn no_copy_is_made_while_another_is_looked_at() {
        let copies = CopiedBlocks::new(8, 8);
        let mut words = [0];
        let bytes = SharedBytes::of(&mut words);
        copies.copy(bytes, 0, |_| copies.copy(bytes, 0, |_| true));
    }

    /// With a number beside them that others store to by its four bytes, and bytes that stand still: what a record is.
    #[test]
    fn what_is_stored_to_is_read_beside_what_is_frozen() {
        const ROUNDS: u32 = if cfg!(miri) { 40 } else { 20_000 };
        let mut words = [u64::from_ne_bytes([7; 8]); 34];
        let shared = SharedBytes::of(&mut words);
        let still = shared.frozen(0..12);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    // SAFETY: the second half of the second word, which all others load as the four bytes it is.
                    unsafe { AtomicU32::from_ptr(shared.0[1].as_ptr().cast::<u32>().add(1)) }
                        .store(round.to_le(), Ordering::Release);
                    let word = u64::from_ne_bytes([(round % 251) as u8; 8]);
                    shared.0[2..].iter().for_each(|of| of.store(word, Ordering::Release));
                }
            });
            while shared.u32_at(12) != ROUNDS {
                let copies = CopiedBlocks::new(256, 8);
                let copied = read(&copies, shared.get(16..272).unwrap(), 0..256);
                assert!(
                    copied.as_chunks::<8>().0.iter().all(|word| word.iter().all(|byte| *byte == word[0]))
                );
                assert_eq!(still, [7; 12]);
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn every_word_of_a_copy_is_old_or_new_and_stays() {
        const BYTES: usize = 2048;
        const ROUNDS: u64 = if cfg!(miri) { 4 } else { 2000 };
        let tier = FastTier::dram(&FastTierOptions::default()).unwrap().into_bytes();
        tier.grow(1 << 16).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    tier.patch(0, &[(round % 251) as u8; BYTES]);
                }
                is_over.store(true, Ordering::Relaxed);
            });
            let bytes = tier.try_view(0, BYTES).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let copy = CopiedBlocks::new(BYTES, 8);
                let first = read(&copy, bytes, 0..BYTES);
                let kept = first.to_vec();
                assert!(first.as_chunks::<8>().0.iter().all(|word| word.iter().all(|byte| *byte == word[0])));
                assert_eq!(read(&copy, bytes, 0..BYTES), kept);
            }
        });
    }
}
