//! The blocks of a body, each under a checksum of its own.
//!
//! Owns how a body is divided: a read of a part verifies the blocks that the part lies in, and touches no others. Must not know where the
//! checksums are kept, nor what they begin with.

use std::ops::Range;

/// The most blocks a body is divided into.
pub const BLOCKS_MAX: usize = 128;
/// log2 of the smallest block.
pub const BLOCK_SHIFT_MIN: u8 = 8;

const _: () = assert!(
    BLOCKS_MAX == u128::BITS as usize && block_shift(BLOCKS_MAX << BLOCK_SHIFT_MIN) == BLOCK_SHIFT_MIN
);

/// log2 of the bytes in a block: 256 bytes up to a body of 32 KiB, else the smallest power of two that needs at most 128 blocks.
#[inline]
pub const fn block_shift(body_bytes: usize) -> u8 {
    let mut shift = BLOCK_SHIFT_MIN;
    while body_bytes > BLOCKS_MAX << shift {
        shift += 1;
    }
    shift
}

/// What of a body of `body_bytes`, in blocks of `1 << shift`, a read of `part` verifies.
#[inline]
pub fn bytes_verified(shift: u8, body_bytes: usize, part: &Range<usize>) -> Range<usize> {
    part.start >> shift << shift..part.end.next_multiple_of(1 << shift).min(body_bytes)
}
