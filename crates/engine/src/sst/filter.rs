//! Which keys a sorted table may have: a split-block Bloom filter.
//!
//! Owns its bits. Promises that a key that was added is never denied; of others about one in 190 is not. Must not know what keys are of.
//!
//! A key's hash picks one block of 32 bytes, and in each of the block's eight words one bit: a look is one miss of the processor's caches, where the filter of
//! textbooks takes one for each bit. (Putze, Sanders, Singler: "Cache-, hash- and space-efficient Bloom filters", 2007; the multiplications are
//! those of Apache Parquet's filter.) That locality costs bits: at [`BITS_A_KEY`] of them it errs about as often as a plain filter would with 11.

use hedgerow_device::prefetch;
use hedgerow_row::le_bytes::u32_at;
use twox_hash::XxHash3_64;

/// Bits for each key.
pub(super) const BITS_A_KEY: usize = 12;
const WORDS: usize = 8;
const BLOCK_BYTES: usize = WORDS * 4;
/// Odd numbers, one for each word: the top five bits of the hash times it say which bit.
const SALTS: [u32; WORDS] =
    [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];

/// The hash of a composite key: XXH3, 64 bits, without a seed.
pub(super) fn hash_of(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

/// The filter of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Filter {
    blocks: Box<[[u32; WORDS]]>,
}

impl Filter {
    /// Of these hashes.
    pub(super) fn of(hashes: &[u64]) -> Filter {
        let blocks = (hashes.len() * BITS_A_KEY).div_ceil(BLOCK_BYTES * 8).max(1);
        let mut filter = Filter { blocks: vec![[0; WORDS]; blocks].into_boxed_slice() };
        for &hash in hashes {
            let (block, bits) = (filter.block_of(hash), bits_of(hash));
            filter.blocks[block].iter_mut().zip(bits).for_each(|(word, bit)| *word |= bit);
        }
        filter
    }

    /// Whether a key with this hash may be there.
    #[inline]
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        let block = &self.blocks[self.block_of(hash)];
        block.iter().zip(bits_of(hash)).fold(0, |missing, (word, bit)| missing | (bit & !word)) == 0
    }

    /// Has what [`Filter::may_hold`] looks at on its way: with many filters to ask their misses overlap.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.blocks[self.block_of(hash)]);
    }

    /// The upper half of the hash, as a fraction of the blocks; the lower picks bits.
    #[inline]
    fn block_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.blocks.len() as u64) >> 32) as usize
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }

    /// The words in order.
    pub(super) fn encode(&self) -> Vec<u8> {
        self.blocks.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// `None` if there are not whole blocks.
    pub(super) fn decode(bytes: &[u8]) -> Option<Filter> {
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        let block = |bytes: &[u8; BLOCK_BYTES]| std::array::from_fn(|word| u32_at(bytes, 4 * word));
        let blocks: Box<[[u32; WORDS]]> = blocks.iter().map(block).collect();
        (rest.is_empty() && !blocks.is_empty()).then_some(Filter { blocks })
    }
}

#[inline]
fn bits_of(hash: u64) -> [u32; WORDS] {
    SALTS.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        hash_of(&n.to_be_bytes())
    }

    #[test]
    fn a_key_that_was_added_is_never_denied_and_others_mostly_are() {
        for keys in [0, 1, 21, 22, 1000, 60_000] {
            let hashes: Vec<u64> = (0..keys).map(hash).collect();
            let filter = Filter::decode(&Filter::of(&hashes).encode()).unwrap();
            assert_eq!(filter, Filter::of(&hashes));
            assert!(hashes.iter().all(|&hash| filter.may_hold(hash)), "{keys}");
            let asked = 200_000;
            let wrong = (0..asked).filter(|n| filter.may_hold(hash(1_000_000 + n))).count();
            let one_in = asked as f64 / wrong.max(1) as f64;
            assert!(one_in > 150.0, "of {keys} keys one in {one_in} is wrong");
        }
    }

    #[test]
    fn golden_bits() {
        let filter = Filter::of(&[hash_of(b"\0\0\0\x07ada")]);
        let hex: String = filter.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0100000000000800001000000000004000080000000001000000200010000000");
        assert_eq!(Filter::decode(&[0; 33]), None);
        assert_eq!(Filter::decode(&[]), None);
    }
}
