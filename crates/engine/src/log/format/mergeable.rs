//! What of a mergeable row changes while it is in the log.
//!
//! Owns: the word that says how far a row was merged, the checksums of blocks that are overwritten, and how those three, the body the
//! third, are read while they may be: by relaxed atomic copies, which then are verified (`crates/device/src/relaxed.rs` has
//! the reasons). Promises: no other byte of a record changes, and no slice of those is made here. Must not know: who merges (`consolidate/in_place.rs`).

use std::ops::Range;

use hedgerow_device::{CopiedBlocks, SharedBytes, crc32c};

use super::{FLAG_MERGEABLE, Record, Seed};
use crate::Result;
use crate::sync::atomic::{Ordering, fence};

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

    /// Whether `content` is what the stored checksum of `block` is of. If it was copied while a merge may be under way, an acquire fence
    /// comes before: the checksum was stored before the content.
    pub(crate) fn block_matches(&self, block: usize, content: &[u8]) -> bool {
        self.checksum_of(content) == self.stored_checksum(block)
    }

    /// The checksum of `block` as it is now.
    #[inline(always)]
    pub(super) fn stored_checksum(&self, block: usize) -> u32 {
        self.bytes.u32_at(self.crcs as usize + 4 * block)
    }

    /// Where a reader keeps what it copies of the body.
    pub(crate) fn no_copies(&self) -> CopiedBlocks {
        CopiedBlocks::new(self.bytes.len() - self.body as usize, self.shift)
    }

    /// The bytes of `range` of the body out of `copies`, verified, while fields may be being merged into it.
    pub(crate) fn slice_copied<'c>(&self, copies: &'c CopiedBlocks, range: Range<usize>) -> Result<&'c [u8]> {
        if range.start > range.end || range.end > self.body_bytes as usize {
            return Err(self.outside());
        }
        if range.is_empty() {
            return Ok(&[]);
        }
        if let Some(slice) = copies.get(&range) {
            return Ok(slice);
        }
        for block in self.blocks_of(&range) {
            let is_whole = |content: &[u8]| {
                // Of the last block, the zeros behind the body were copied as well.
                let content = &content[..self.block_range(block).len()];
                fence(Ordering::Acquire);
                self.is_trusted || self.all_verified.get() || self.block_matches(block, content)
            };
            if !copies.copy(self.padded_body(), block, is_whole) {
                return Err(self.corrupted(self.body as usize + (block << self.shift)));
            }
        }
        copies.get(&range).ok_or_else(|| self.outside())
    }

    /// The body as it is now, unverified, while fields may be being merged into it. An acquire fence comes before it is compared with
    /// checksums.
    pub(crate) fn copy_body(&self) -> Vec<u8> {
        let mut body = self.padded_body().to_vec();
        body.truncate(self.body_bytes as usize);
        body
    }

    /// The body with the zeros that fill its last word.
    fn padded_body(&self) -> &SharedBytes {
        self.bytes
            .get(self.body as usize..self.bytes.len())
            .expect("a body begins with a word, in its record")
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
fn merged_sequence(record: &SharedBytes, body: usize) -> u64 {
    sequence_in(record.u64_at(body - MERGED_BYTES))
}

fn sequence_in(merged_word: u64) -> u64 {
    merged_word & ((1 << MERGED_SEQUENCE_BITS) - 1)
}

pub(super) fn merged_word_matches(record: &SharedBytes, body: usize, seed: Seed) -> bool {
    // Loaded once: a merge may store the next meanwhile.
    let word = record.u64_at(body - MERGED_BYTES);
    word == 0 || word == merged_word(sequence_in(word), seed)
}
