//! What checksums begin with, and the words that say in which life a block is.
//!
//! Owns [`BlockSeed`], [`SeedSecret`] and the block word. Promises that what was written in another life of a block, at another place, or by another device does not verify; and that nobody who
//! does not know the device's secret can say what a checksum begins with: what a client stores as a value is taken for a record only by a chance of one in 2^64 a guess. Must not know what is under the
//! checksums.
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

use std::fmt;

use hedgerow_device::crc32c;

/// What seeds are made with: two words that follow from the device's secret (`HashSecret::seed_secret`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeedSecret(pub(crate) [u64; 2]);

/// Not the words: what is printed may get to those who choose values.
impl fmt::Debug for SeedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeedSecret(..)")
    }
}

/// What the checksums of a block's records and of its footer begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockSeed {
    /// Of headers and footers.
    header: u32,
    /// Of values.
    value: u32,
}

impl BlockSeed {
    /// Of what lies at `offset` of the tier, in a block of this generation. Spreads both (the finaliser of splitmix64): a place is multiplied by an odd number
    /// before it meets the generation, so that no two of a block begin with the same 64 bits. The second word of the secret comes last: nothing is ever shown that was computed from it, so to
    /// whoever does not know it each seed is any of 2^64, whatever they know of places and generations.
    pub(crate) fn new(secret: SeedSecret, generation: u64, offset: u64) -> BlockSeed {
        let mixed = secret.0[0] ^ generation.rotate_left(40) ^ offset.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        let seed = mixed ^ mixed >> 31 ^ secret.0[1];
        BlockSeed { header: seed as u32, value: (seed >> 32) as u32 }
    }

    /// Of a header or a footer.
    pub(crate) fn header_crc32c(self, bytes: &[u8]) -> u32 {
        crc32c(self.header, bytes)
    }

    /// Of a value.
    pub(crate) fn value_crc32c(self, bytes: &[u8]) -> u32 {
        crc32c(self.value, bytes)
    }
}

const GENERATION_BITS: u32 = 48;
/// No block is erased half as often as this.
pub(crate) const GENERATION_MAX: u64 = 1 << (GENERATION_BITS - 1);

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
        for secret in [SeedSecret([0, 0]), SeedSecret([1, 0]), SeedSecret([0, 1 << 32 | 1])] {
            for generation in 0..30 {
                for place in 0..30 {
                    let BlockSeed { header, value } = BlockSeed::new(secret, generation, place * 32);
                    seeds.extend([u64::from(header), 1 << 32 | u64::from(value)]);
                }
            }
        }
        // Of 2,700 numbers of 32 bits two are alike once in 1,200 times.
        assert!(seeds.len() >= 5399, "{}", seeds.len());
        let seed = BlockSeed::new(SeedSecret([0x0102_0304_0506_0708, 0x1112_1314_1516_1718]), 7, 65536);
        assert_eq!((seed.header, seed.value), GOLDEN_SEED);
        assert_eq!(format!("{:?}", SeedSecret([1, 2])), "SeedSecret(..)");
    }

    const GOLDEN_SEED: (u32, u32) = (2532840981, 4247350857);
}
