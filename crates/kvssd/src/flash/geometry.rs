//! Where things lie on the medium, and how much there is of them.
//!
//! Owns [`Geometry`]. Promises that one that was [checked](Geometry::check) leads to no place outside of the device. Must not know what lies there.
//!
//! ```text
//!  0          4096       8192          8192 + T      8192 + 2 T   data start
//!  +----------+----------+-------------+-------------+---....-----+---------+---------+--
//!  | super-   | super-   | block words | block words | to a whole | block 0 | block 1 | ...
//!  | block A  | block B  |      A      |      B      | page       |         |         |
//!  +----------+----------+-------------+-------------+---....-----+---------+---------+--
//!  T: 8 bytes a block, filled up to 4096
//! ```

use super::footer::{ENTRY_BYTES, TRAILER_BYTES};
use super::record::{END_BYTES, UNIT_BYTES, record_bytes};
use crate::code::{KvError, Result};
use crate::command::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Bytes that a sector of any medium divides: superblocks and tables of block words lie apart by them.
pub(crate) const SECTOR_BYTES: u64 = 4096;
const WORD_BYTES: u64 = 8;
/// Blocks that no pair may count on: one open for commands, one for gc, and two that gc begins to work with.
pub(crate) const RESERVE_BLOCKS: u32 = 4;
/// At least so many blocks has a device.
const BLOCKS_MIN: u32 = 8;
const BLOCKS_MAX: u32 = 1 << 20;
/// A place in a block is 24 bits of units in a footer.
const BLOCK_BYTES_MAX: u32 = 512 << 20;
const PAGE_BYTES_MAX: u32 = 1 << 20;
/// A place on the medium is 40 bits of units in an entry of the index.
const BYTES_MAX: u64 = (UNIT_BYTES as u64) << 40;

/// Pages and blocks of a device. Fixed when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes that are programmed at once. A power of two from 4096 to 1 MiB; default 32 KiB.
    pub page_bytes: u32,
    /// Bytes that are erased at once. A multiple of `page_bytes`, at least 32 KiB, at most 512 MiB; default 32 MiB. A record lies in one block.
    pub block_bytes: u32,
    /// How many blocks there are: 8 to 1,048,576.
    pub blocks: u32,
}

impl Geometry {
    /// A device of pages of 32 KiB and blocks of 32 MiB that takes about `bytes` of the medium.
    pub fn with_bytes(bytes: u64) -> Geometry {
        let blocks = (bytes / (32 << 20)).clamp(u64::from(BLOCKS_MIN), u64::from(BLOCKS_MAX));
        Geometry { page_bytes: 32 << 10, block_bytes: 32 << 20, blocks: blocks as u32 }
    }

    /// # Errors
    /// [`KvError::Param`]: which of its numbers is out of bounds.
    pub fn check(&self) -> Result<()> {
        let is_page = self.page_bytes.is_power_of_two() && (4096..=PAGE_BYTES_MAX).contains(&self.page_bytes);
        let what = if !is_page {
            "a page has a power of two of bytes, 4096 to 1048576"
        } else if !self.block_bytes.is_multiple_of(self.page_bytes)
            || !(32 << 10..=BLOCK_BYTES_MAX).contains(&self.block_bytes)
        {
            "a block is whole pages, 32 KiB to 512 MiB"
        } else if !(BLOCKS_MIN..=BLOCKS_MAX).contains(&self.blocks) {
            "a device has 8 to 1048576 blocks"
        } else if self.bytes() > BYTES_MAX {
            "a device has at most 32 TiB"
        } else {
            return Ok(());
        };
        Err(KvError::Param { what })
    }

    /// Bytes of the medium that the device takes.
    pub fn bytes(&self) -> u64 {
        self.block_offset(self.blocks)
    }

    /// Bytes in a value, at most: 2 MiB, or an eighth of a block.
    pub fn value_bytes_max(&self) -> u64 {
        (VALUE_BYTES_MAX as u64).min(u64::from(self.block_bytes) / 8)
    }

    /// Bytes of the longest record, with its entry in the footer.
    pub(crate) fn charge_max(&self) -> u64 {
        (record_bytes(KEY_BYTES_MAX, self.value_bytes_max() as usize) + ENTRY_BYTES) as u64
    }

    /// Bytes of a block that records and their entries share.
    pub(crate) fn usable_bytes(&self) -> u64 {
        u64::from(self.block_bytes) - (TRAILER_BYTES + END_BYTES) as u64
    }

    /// Bytes that pairs may take. What a block has left where no further record fits is not counted, a sixteenth at least, and one part in sixteen is kept free so that gc
    /// always gains: so much fits whatever lies where.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_without(0)
    }

    /// The capacity without so many blocks.
    pub(crate) fn capacity_without(&self, blocks: u32) -> u64 {
        self.counted_blocks(blocks) * (self.usable_bytes() - self.unused_max()) / 16 * 15
    }

    /// Bytes of a block that are not counted on, for a longest record that does not fit. In blocks of 64 MiB and more that is less than a sixteenth, and a sixteenth is kept all the same: tombstones of pairs as short as
    /// themselves would take more than their part of what is kept free otherwise, before any block had as much garbage as makes it worth emptying.
    fn unused_max(&self) -> u64 {
        self.charge_max().max(self.usable_bytes() / 16)
    }

    fn counted_blocks(&self, without: u32) -> u64 {
        u64::from((self.blocks - RESERVE_BLOCKS).saturating_sub(without))
    }

    /// Bytes that tombstones may take beside the capacity: a quarter of what is kept free. Each hides a record that is at least as long, and that gc gains with
    /// its block. So of what is kept free three quarters are gained at least, which is more than the longest record a block: gc always has a victim.
    pub(crate) fn tombstones_beside(&self, without: u32) -> u64 {
        let raw = self.counted_blocks(without) * self.usable_bytes();
        (raw - self.capacity_without(without)) / 4
    }

    fn table_bytes(&self) -> u64 {
        (u64::from(self.blocks) * WORD_BYTES).next_multiple_of(SECTOR_BYTES)
    }

    /// Where both words of a block lie.
    pub(crate) fn word_offsets(&self, block: u32) -> [u64; 2] {
        let at = 2 * SECTOR_BYTES + u64::from(block) * WORD_BYTES;
        [at, at + self.table_bytes()]
    }

    /// Where the tables of block words lie, and how long both are together.
    pub(crate) fn words_range(&self) -> (u64, u64) {
        (2 * SECTOR_BYTES, 2 * self.table_bytes())
    }

    fn data_start(&self) -> u64 {
        (2 * SECTOR_BYTES + 2 * self.table_bytes()).next_multiple_of(u64::from(self.page_bytes))
    }

    /// Where a block begins.
    pub(crate) fn block_offset(&self, block: u32) -> u64 {
        self.data_start() + u64::from(block) * u64::from(self.block_bytes)
    }

    /// The block that a place, in units from the start of the tier, lies in; none before the first.
    pub(crate) fn block_of(&self, place: u64) -> Option<u32> {
        let at = (place * UNIT_BYTES as u64).checked_sub(self.data_start())?;
        u32::try_from(at / u64::from(self.block_bytes)).ok().filter(|&block| block < self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_bounds_are_refused_by_name() {
        let good = Geometry { page_bytes: 4096, block_bytes: 64 << 10, blocks: 8 };
        good.check().unwrap();
        Geometry::with_bytes(1 << 30).check().unwrap();
        Geometry { block_bytes: 512 << 20, blocks: 65_535, ..good }.check().unwrap();
        for bad in [
            Geometry { page_bytes: 4095, ..good },
            Geometry { page_bytes: 2 << 20, block_bytes: 2 << 20, ..good },
            Geometry { block_bytes: 66 << 10, page_bytes: 8192, ..good },
            Geometry { block_bytes: 16 << 10, ..good },
            Geometry { blocks: 7, ..good },
            // Its places would not fit into entries of the index: 40 bits, in units of 32 bytes.
            Geometry { block_bytes: 512 << 20, blocks: 65_536, ..good },
        ] {
            assert!(matches!(bad.check(), Err(KvError::Param { .. })), "{bad:?}");
        }
    }

    /// What the promise of [`Geometry::tombstones_beside`] rests on.
    #[test]
    fn three_quarters_of_what_is_kept_free_are_more_than_a_record_a_block() {
        for block_bytes in [32 << 10, 64 << 10, 1 << 20, 16 << 20, 32 << 20, 64 << 20, 512 << 20] {
            let geometry = Geometry { page_bytes: 4096, block_bytes, blocks: 64 };
            let kept = geometry.tombstones_beside(0) * 3;
            assert!(kept > geometry.counted_blocks(0) * geometry.unused_max(), "{geometry:?}");
        }
    }

    #[test]
    fn parts_lie_behind_one_another() {
        let geometry = Geometry { page_bytes: 32 << 10, block_bytes: 64 << 10, blocks: 600 };
        assert_eq!(geometry.word_offsets(0), [8192, 8192 + 8192]);
        assert_eq!(geometry.words_range(), (8192, 16384));
        assert_eq!(geometry.block_offset(0), 32 << 10);
        assert_eq!(geometry.bytes(), (32 << 10) + 600 * (64 << 10));
        assert_eq!(geometry.block_of((32 << 10) / 32 - 1), None);
        assert_eq!(geometry.block_of((32 << 10) / 32), Some(0));
        assert_eq!(geometry.block_of(geometry.bytes() / 32), None);
        assert_eq!(Geometry::with_bytes(1 << 40).value_bytes_max(), 2 << 20);
    }
}
