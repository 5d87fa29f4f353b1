//! What of a mergeable row changes while it is in the log.
//!
//! Owns: the word that says how far a row was merged, and the checksums of blocks that are overwritten. Must not know: who merges
//! (`consolidate/in_place.rs`).

use hedgerow_device::crc32c;

use super::{FLAG_MERGEABLE, Record, Seed};
use crate::le_bytes::{u32_at, u64_at};

/// Bytes of the word that says how far a row was merged.
pub(super) const MERGED_BYTES: usize = 8;
/// Bits of a sequence in that word.
const MERGED_SEQUENCE_BITS: u32 = 48;

impl Record<'_> {
    /// Whether fields may be merged in place.
    pub(crate) fn is_mergeable(&self) -> bool {
        self.flags() & FLAG_MERGEABLE != 0
    }

    /// The sequence of the newest write that the record holds: its own, or the last delta's that was merged into it.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        match self.is_mergeable() {
            true => self.sequence().max(merged_sequence(self.bytes, self.body as usize)),
            false => self.sequence(),
        }
    }

    /// Where in the tier the word lies that says how far the row was merged.
    pub(crate) fn merged_word_offset(&self) -> u64 {
        self.offset + u64::from(self.body) - MERGED_BYTES as u64
    }

    /// The word for it to hold once all deltas up to `through` are in the body of this row, which is mergeable.
    pub(crate) fn merged_word(&self, through: u64) -> u64 {
        // Of such a row the checksums' mask is the seed.
        merged_word(through, Seed(self.checksum_mask))
    }

    /// Whether `content` is what the stored checksum of `block` is of.
    pub(crate) fn block_matches(&self, block: usize, content: &[u8]) -> bool {
        self.checksum_of(content) == u32_at(self.bytes, self.crcs as usize + 4 * block)
    }

    /// The checksum to be stored for a block of `content`.
    pub(crate) fn checksum_of(&self, content: &[u8]) -> u32 {
        crc32c(0, content) ^ self.checksum_mask
    }

    /// Where in the tier the checksum of `block` lies.
    pub(crate) fn checksum_offset(&self, block: usize) -> u64 {
        self.offset + u64::from(self.crcs) + 4 * block as u64
    }
}

/// The word that says how far a row was merged.
pub(super) fn merged_word(sequence: u64, seed: Seed) -> u64 {
    debug_assert!(sequence >> MERGED_SEQUENCE_BITS == 0, "sequence {sequence} in 48 bits");
    let check = crc32c(seed.0, &sequence.to_le_bytes());
    sequence | u64::from(check) << MERGED_SEQUENCE_BITS
}

/// How far a row was merged, by the word before its body.
#[inline]
fn merged_sequence(record: &[u8], body: usize) -> u64 {
    sequence_in(u64_at(record, body - MERGED_BYTES))
}

fn sequence_in(merged_word: u64) -> u64 {
    merged_word & ((1 << MERGED_SEQUENCE_BITS) - 1)
}

pub(super) fn merged_word_matches(record: &[u8], body: usize, seed: Seed) -> bool {
    // Loaded once: a merge may store the next meanwhile.
    let word = u64_at(record, body - MERGED_BYTES);
    word == 0 || word == merged_word(sequence_in(word), seed)
}
