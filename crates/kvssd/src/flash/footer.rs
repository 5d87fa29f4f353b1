//! The bytes of a block's footer: which of its records count, and where they are.
//!
//! Owns the layout. Promises that a footer verifies only in the life of the block it was written in. Must not know what is made of its entries.
//!
//! ```text
//!  block end - 32 - 32 n                      block end - 32
//!  +-------------+--- ... ---+-------------+--------+--------+--------+--------+----------------+--------+--------+
//!  |  entry 0    |           |  entry n-1  |  crc   | "KVFT" |   n    | repair |   generation   |  lost  |   0    |
//!  +-------------+--- ... ---+-------------+--------+--------+--------+--------+----------------+--------+--------+
//!
//!  entry:  0                8                16               24       28       32
//!          +----------------+----------------+----------------+--------+--------+
//!          |      hash      |sequence,  kind |     packed     | group  | space  |
//!          +----------------+----------------+----------------+--------+--------+
//!  packed, from the least bit on: 24 place in the block, in units of 32 bytes; 24 bytes of the value; 8 of the key; 8 zeros
//! ```
//!
//! * `crc` is the crc32c of all entries and of the trailer's bytes 4 to 32, seeded with the generation and the place of the trailer.
//! * `repair` is 0, or, of a footer that an opening made anew of damaged records, the number of that repair (see `superblock.rs`). Records that are missing are the gaps between entries, and `lost` bytes behind
//!   the last one.
//! * A footer is written when all records of its block are durable. What it does not list does not count, whole or not: it was cut off by a power cut.

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u32_at, u64_at};

use super::record::RecordHeader;
use super::seed::BlockSeed;
use crate::command::SpaceId;

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 32;
/// Bytes of the trailer, which ends where the block does.
pub(crate) const TRAILER_BYTES: usize = 32;
const MAGIC: &[u8; 4] = b"KVFT";

/// What a footer says of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FooterEntry {
    pub(crate) hash: u64,
    /// The group of its key.
    pub(crate) group: u32,
    /// In units from the start of the block.
    pub(crate) unit: u32,
    pub(crate) header: RecordHeader,
}

/// What a footer says of its own making.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FooterRepair {
    /// The number of the repair that made it anew; 0 is none.
    pub(crate) number: u32,
    /// Bytes behind the last record where others may have been.
    pub(crate) lost_tail: u32,
}

/// What a whole footer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockFooter {
    pub(crate) entries: Vec<FooterEntry>,
    pub(crate) repair: FooterRepair,
}

impl FooterEntry {
    /// Bytes that the record takes, with its entry.
    pub(crate) fn charge(&self) -> u64 {
        (self.header.record_bytes() + ENTRY_BYTES) as u64
    }

    fn encode(&self, out: &mut [u8]) {
        let header = &self.header;
        let packed =
            u64::from(self.unit) | u64::from(header.value_bytes) << 24 | u64::from(header.key_bytes) << 48;
        out[..8].copy_from_slice(&self.hash.to_le_bytes());
        out[8..16].copy_from_slice(&header.sequence_word().to_le_bytes());
        out[16..24].copy_from_slice(&packed.to_le_bytes());
        out[24..28].copy_from_slice(&self.group.to_le_bytes());
        out[28..].copy_from_slice(&header.space.0.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<FooterEntry> {
        let packed = u64_at(bytes, 16);
        let (value_bytes, key_bytes) = ((packed >> 24) as u32 & ((1 << 24) - 1), (packed >> 48) as u8);
        let space = SpaceId(u32_at(bytes, 28));
        let header = RecordHeader::of_word(u64_at(bytes, 8), value_bytes, key_bytes, space);
        let unit = packed as u32 & ((1 << 24) - 1);
        let entry = FooterEntry { hash: u64_at(bytes, 0), group: u32_at(bytes, 24), unit, header };
        (header.is_possible() && packed >> 56 == 0).then_some(entry)
    }
}

/// Bytes of a footer with so many entries.
pub(crate) fn footer_bytes(entries: usize) -> usize {
    entries * ENTRY_BYTES + TRAILER_BYTES
}

/// Writes a footer to `out`, which is [`footer_bytes`] long. `seed` is that of the trailer's place.
pub(crate) fn encode(
    out: &mut [u8],
    entries: &[FooterEntry],
    repair: FooterRepair,
    generation: u64,
    seed: BlockSeed,
) {
    let (listed, trailer) = out.split_at_mut(entries.len() * ENTRY_BYTES);
    for (entry, bytes) in entries.iter().zip(listed.chunks_exact_mut(ENTRY_BYTES)) {
        entry.encode(bytes);
    }
    trailer[4..8].copy_from_slice(MAGIC);
    trailer[8..12].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    trailer[12..16].copy_from_slice(&repair.number.to_le_bytes());
    trailer[16..24].copy_from_slice(&generation.to_le_bytes());
    trailer[24..28].copy_from_slice(&repair.lost_tail.to_le_bytes());
    trailer[28..].fill(0);
    let crc = crc32c(seed.header_crc32c(listed), &trailer[4..]);
    trailer[..4].copy_from_slice(&crc.to_le_bytes());
}

/// How many entries a trailer says that there are, if it may be one of this generation.
pub(crate) fn entries_of(trailer: &[u8], generation: u64) -> Option<usize> {
    let is_one =
        trailer.len() == TRAILER_BYTES && &trailer[4..8] == MAGIC && u64_at(trailer, 16) == generation;
    is_one.then(|| u32_at(trailer, 8) as usize)
}

/// What a whole footer says, if it verifies.
pub(crate) fn decode(footer: &[u8], seed: BlockSeed) -> Option<BlockFooter> {
    let (listed, trailer) = footer.split_at_checked(footer.len().checked_sub(TRAILER_BYTES)?)?;
    if crc32c(seed.header_crc32c(listed), &trailer[4..]) != u32_at(trailer, 0) {
        return None;
    }
    let repair = FooterRepair { number: u32_at(trailer, 12), lost_tail: u32_at(trailer, 24) };
    let entries = listed.chunks_exact(ENTRY_BYTES).map(FooterEntry::decode).collect::<Option<_>>()?;
    Some(BlockFooter { entries, repair })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::record::RecordKind;
    use crate::flash::seed::SeedSecret;

    const SECRET: SeedSecret = SeedSecret([0x0102_0304_0506_0708, 0x1112_1314_1516_1718]);

    fn entries() -> [FooterEntry; 2] {
        let header = RecordHeader {
            sequence: 0x0102,
            value_bytes: 2 << 20,
            key_bytes: 255,
            kind: RecordKind::Pair,
            space: SpaceId(0x1F2F_3F4F),
            relocated: true,
        };
        let tombstone = RecordHeader {
            sequence: 3,
            value_bytes: 0,
            key_bytes: 1,
            kind: RecordKind::Tombstone,
            space: SpaceId(1),
            relocated: false,
        };
        [
            FooterEntry { hash: 0xA1A2, group: 0x6162_6364, unit: (1 << 24) - 1, header },
            FooterEntry { hash: u64::MAX, group: 0, unit: 0, header: tombstone },
        ]
    }

    #[test]
    fn a_footer_keeps_its_bytes_and_every_flipped_bit_is_found() {
        let seed = BlockSeed::new(SECRET, 5, 4096);
        let mut bytes = vec![0xEE; footer_bytes(2)];
        let repair = FooterRepair { number: 160, lost_tail: 9 };
        encode(&mut bytes, &entries(), repair, 5, seed);
        assert_eq!(bytes[..64], GOLDEN_ENTRIES);
        assert_eq!(bytes[64..], GOLDEN_TRAILER);
        assert_eq!(entries_of(&bytes[64..], 5), Some(2));
        assert_eq!(entries_of(&bytes[64..], 7), None);
        let footer = BlockFooter { entries: entries().to_vec(), repair };
        assert_eq!(decode(&bytes, seed).unwrap(), footer);
        assert!(decode(&bytes, BlockSeed::new(SECRET, 7, 4096)).is_none());
        for bit in 0..bytes.len() * 8 {
            let mut spoiled = bytes.clone();
            spoiled[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&spoiled, seed).is_none(), "bit {bit}");
        }
    }

    const GOLDEN_ENTRIES: [u8; 64] = [
        162, 161, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 128, 255, 255, 255, 0, 0, 32, 255, 0, 100, 99, 98,
        97, 79, 63, 47, 31, 255, 255, 255, 255, 255, 255, 255, 255, 3, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0,
        0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0,
    ];
    const GOLDEN_TRAILER: [u8; 32] = [
        83, 33, 124, 189, 75, 86, 70, 84, 2, 0, 0, 0, 160, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0,
        0, 0,
    ];
}
