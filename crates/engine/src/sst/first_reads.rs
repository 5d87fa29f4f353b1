//! Which blocks of sorted tables are read for the first time in a while.
//!
//! Owns [`FirstReads`]. Promises that of a block that is read again while not many more others were read than memory has room for, it knows that, but for one in 256 that it takes for another; and that asking
//! costs a cache miss. Must not know files, nor what is done with the answer.
//!
//! # What it is for
//!
//! A read through the page cache leaves the block there, which is in vain if nobody comes back for it, and costs half as much again as a read past it. So the first read of a block goes past the page
//! cache, and the second through it: a set of blocks that are asked for again and again, and that memory has room for, is read twice and stays; one of which each block is asked for once
//! pushes nothing else out of memory.

use std::sync::OnceLock;

use hedgerow_device::memory_bytes;

use crate::sync::atomic::{AtomicU8, Ordering};

/// A byte is kept for so many of memory: as many bytes as the shortest block has.
const MEMORY_A_PLACE: u64 = 4096;
/// Where nothing says how much memory there is. Schedules are explored with few: each place is an object there.
const PLACES: usize = if cfg!(any(shuttle, miri)) { 16 } else { 1 << 16 };

/// A part of the hash of the block that was read last, of those that share a place.
#[derive(Debug, Default)]
pub(super) struct FirstReads {
    /// So many of them; where none are said, as memory has room for blocks.
    wanted: Option<usize>,
    /// A power of two of them, made when the first is asked for.
    places: OnceLock<Box<[AtomicU8]>>,
}

impl FirstReads {
    /// Of about as many as the last `reads`.
    pub(super) fn of_last(reads: usize) -> FirstReads {
        FirstReads { wanted: Some(reads), ..FirstReads::default() }
    }

    /// Whether the block with this hash, which is read now, was not read lately.
    pub(super) fn is_first(&self, hash: u64) -> bool {
        let places = self.places.get_or_init(|| {
            let of_memory = || (memory_bytes().unwrap_or(0) / MEMORY_A_PLACE) as usize;
            let wanted =
                if cfg!(shuttle) { PLACES } else { self.wanted.unwrap_or_else(of_memory).max(PLACES) };
            (0..wanted.next_power_of_two() / 2).map(|_| AtomicU8::new(0)).collect()
        });
        let (place, part) = (&places[hash as usize & (places.len() - 1)], (hash >> 56) as u8);
        let is_first = place.load(Ordering::Relaxed) != part;
        if is_first {
            place.store(part, Ordering::Relaxed);
        }
        is_first
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    #[test]
    fn what_was_read_lately_is_known_and_what_was_not_is_first() {
        let (reads, mut random) = (FirstReads::default(), Random::from_seed(1));
        let hashes: Vec<u64> = (0..1000).map(|_| random.next_u64()).collect();
        let first = hashes.iter().filter(|&&hash| reads.is_first(hash)).count();
        assert!(first > 980, "{first} of 1000 were new");
        let again = hashes.iter().filter(|&&hash| reads.is_first(hash)).count();
        assert!(again < 60, "{again} of 1000 were forgotten");
    }
}
