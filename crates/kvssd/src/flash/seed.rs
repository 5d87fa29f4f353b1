//! What checksums begin with, and the words that say in which life a block is.
//!
//! Owns [`BlockSeed`] and the block word. Promises that what was written in another life of a block, or at another place, does not verify. Must not know
//! what is under the checksums.
//!
//! ```text
//!  block word:  0                                   6       8
//!               +-----------------------------------+-------+
//!               |            generation             | check |
//!               +-----------------------------------+-------+
//! ```
//!
//! * `generation` counts up by one when a block is taken into use and when it is erased: an odd one is in use, an even one is free.
//! * `check` is the lower half of the crc32c of the 6 bytes, seeded with the block's number.
//! * A word lies in each of two tables and is stored by one store of 8 bytes, which no crash tears. Of two that differ the higher counts.

use hedgerow_device::crc32c;

/// What the checksums of a block's records and of its footer begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockSeed(u32);

impl BlockSeed {
    /// Of what lies at `offset` of the tier, in a block of this generation. Spreads both (the finaliser of splitmix64): a place is multiplied by an odd number
    /// before it meets the generation, so that no two of a block begin with the same 64 bits.
    pub(crate) fn new(generation: u64, offset: u64) -> BlockSeed {
        let mixed = generation.rotate_left(40) ^ offset.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        BlockSeed((mixed ^ mixed >> 31) as u32)
    }

    pub(crate) fn crc32c(self, bytes: &[u8]) -> u32 {
        crc32c(self.0, bytes)
    }
}

const GENERATION_BITS: u32 = 48;
/// No block is erased half as often as this.
const GENERATION_MAX: u64 = 1 << (GENERATION_BITS - 1);

/// The word of a block.
pub(crate) fn block_word(block: u32, generation: u64) -> u64 {
    let generation = generation & ((1 << GENERATION_BITS) - 1);
    generation | u64::from(check(block, generation)) << GENERATION_BITS
}

/// The generation that a word says, if it is one of this block.
pub(crate) fn generation_of(block: u32, word: u64) -> Option<u64> {
    let generation = word & ((1 << GENERATION_BITS) - 1);
    (block_word(block, generation) == word && generation < GENERATION_MAX).then_some(generation)
}

fn check(block: u32, generation: u64) -> u16 {
    crc32c(block, &generation.to_le_bytes()[..6]) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_words_keep_their_bytes_and_every_flipped_bit_is_found() {
        let word = block_word(3, 7);
        assert_eq!(word.to_le_bytes(), GOLDEN_WORD);
        assert_eq!(generation_of(3, word), Some(7));
        assert_eq!(generation_of(4, word), None);
        for bit in 0..64 {
            assert_eq!(generation_of(3, word ^ 1 << bit), None, "bit {bit}");
        }
    }

    const GOLDEN_WORD: [u8; 8] = [7, 0, 0, 0, 0, 0, 253, 75];

    #[test]
    fn lives_and_places_have_seeds_of_their_own() {
        let mut seeds = std::collections::BTreeSet::new();
        for generation in 0..50 {
            for place in 0..50 {
                seeds.insert(BlockSeed::new(generation, place * 32).0);
            }
        }
        // Of 2,500 numbers of 32 bits two are alike once in 1,400 times.
        assert!(seeds.len() >= 2499, "{}", seeds.len());
        assert_eq!(BlockSeed::new(7, 65536).0, GOLDEN_SEED);
    }

    const GOLDEN_SEED: u32 = 0xA309F044;
}
