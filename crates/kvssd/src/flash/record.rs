//! The bytes of a record: a pair, or that there is none any more.
//!
//! Owns the layout. Promises that a record verifies only in the life of the block and at the place it was written to, and that its first word, stored last and at
//! once, says that it is whole. Must not know where records are looked up.
//!
//! ```text
//!  0        4        8                16     19   20       24
//!  +--------+--------+----------------+------+----+--------+-----+-------+-------+
//!  | header | value  |    sequence    |value |key |  key   | key | value | zeros |
//!  |  crc   |  crc   |    and kind    |bytes |len | space  |     |       |       |
//!  +--------+--------+----------------+------+----+--------+-----+-------+-------+
//! ```
//!
//! * All integers are little-endian. A record is filled up to a multiple of 32 bytes, and begins at one.
//! * `value crc` is the crc32c of the value, `header crc` that of it and of bytes 8 to the end of the key; both are seeded, with halves of one seed that only the device knows (see `seed.rs`). A header crc that
//!   comes to 0 is stored as 1: no whole record begins with 4 zeros.
//! * `key len` is the key's length, 1 to 255. `key space` is its number, 0 that of the directory of key spaces.
//! * `sequence and kind`: 62 bits that order all that commands wrote to a device, by 1, from 1 on; bit 62, it is a tombstone, and has no value; bit 63, it was copied by gc, and has the
//!   sequence it had.
//! * After the last record of a block come 8 zero bytes. They are stored with the record, whose own first 8 bytes are zero until all else is stored. So what a
//!   killed process leaves ends in zeros, and anything else that does not verify is damage.

use std::ops::Range;

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u32_at, u64_at};

use super::seed::BlockSeed;
use crate::command::{KEY_BYTES_MAX, SpaceId, VALUE_BYTES_MAX};

/// Records are filled up to, and lie at, multiples of this.
pub(crate) const UNIT_BYTES: usize = 32;
/// Bytes of a header, without the key.
pub(crate) const HEADER_BYTES: usize = 24;
/// Bytes of a header with the longest key.
pub(crate) const PREFIX_BYTES_MAX: usize = HEADER_BYTES + KEY_BYTES_MAX;
/// Bytes of the mark after the last record.
pub(crate) const END_BYTES: usize = 8;

/// Sequences are below this: so far none comes, at any speed.
pub(crate) const SEQUENCE_MAX: u64 = 1 << 62;
const FLAG_TOMBSTONE: u64 = SEQUENCE_MAX;
const FLAG_RELOCATED: u64 = 1 << 63;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Pair,
    Tombstone,
}

/// The header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) sequence: u64,
    pub(crate) value_bytes: u32,
    pub(crate) key_bytes: u8,
    pub(crate) kind: RecordKind,
    pub(crate) space: SpaceId,
    /// Copied by gc.
    pub(crate) relocated: bool,
}

/// Bytes of a record with so much in it.
pub(crate) fn record_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    (HEADER_BYTES + key_bytes + value_bytes).next_multiple_of(UNIT_BYTES)
}

/// Bytes of the header and the key that begin with these [`HEADER_BYTES`].
pub(crate) fn prefix_bytes_of(fixed: &[u8]) -> usize {
    HEADER_BYTES + usize::from(fixed[19])
}

impl RecordHeader {
    /// Bytes of the record.
    pub(crate) fn record_bytes(&self) -> usize {
        record_bytes(usize::from(self.key_bytes), self.value_bytes as usize)
    }

    fn prefix_bytes(&self) -> usize {
        HEADER_BYTES + usize::from(self.key_bytes)
    }

    /// Where in the record the value lies.
    pub(crate) fn value_range(&self) -> Range<usize> {
        self.prefix_bytes()..self.prefix_bytes() + self.value_bytes as usize
    }

    /// Writes all of a record but its first word, which it gives back to be stored when this has been, and the mark of the end behind it.
    pub(crate) fn encode(&self, out: &mut [u8], seed: BlockSeed, key: &[u8], value: &[u8]) -> u64 {
        out[..8].fill(0);
        out[8..16].copy_from_slice(&self.sequence_word().to_le_bytes());
        out[16..20].copy_from_slice(&(self.value_bytes | u32::from(self.key_bytes) << 24).to_le_bytes());
        out[20..24].copy_from_slice(&self.space.0.to_le_bytes());
        out[HEADER_BYTES..self.prefix_bytes()].copy_from_slice(key);
        let range = self.value_range();
        out[range.clone()].copy_from_slice(value);
        out[range.end..].fill(0);
        let value_crc = seed.value_crc32c(value);
        let header_crc = header_crc(seed, value_crc, &out[8..self.prefix_bytes()]);
        u64::from(header_crc) | u64::from(value_crc) << 32
    }

    /// Sequence and kind.
    pub(crate) fn sequence_word(&self) -> u64 {
        let tombstone = if self.kind == RecordKind::Tombstone { FLAG_TOMBSTONE } else { 0 };
        self.sequence | tombstone | if self.relocated { FLAG_RELOCATED } else { 0 }
    }

    /// The header of a record of such a [`RecordHeader::sequence_word`].
    pub(crate) fn of_word(word: u64, value_bytes: u32, key_bytes: u8, space: SpaceId) -> RecordHeader {
        let kind = if word & FLAG_TOMBSTONE == 0 { RecordKind::Pair } else { RecordKind::Tombstone };
        let (sequence, relocated) = (word & (SEQUENCE_MAX - 1), word & FLAG_RELOCATED != 0);
        RecordHeader { sequence, value_bytes, key_bytes, kind, space, relocated }
    }

    /// Whether a device writes such a record. What verifies is refused all the same where it is not: a file may have been made by somebody else.
    pub(crate) fn is_possible(&self) -> bool {
        let max = if self.kind == RecordKind::Pair { VALUE_BYTES_MAX } else { 0 };
        self.key_bytes > 0 && self.value_bytes as usize <= max
    }

    /// The header that `bytes` begin with, and the key, if they verify.
    pub(crate) fn decode(bytes: &[u8], seed: BlockSeed) -> Option<(RecordHeader, &[u8])> {
        let fixed = bytes.get(..HEADER_BYTES)?;
        let lengths = u32_at(fixed, 16);
        let key_bytes = (lengths >> 24) as u8;
        let prefix = bytes.get(..HEADER_BYTES + usize::from(key_bytes))?;
        let crc = header_crc(seed, u32_at(fixed, 4), &prefix[8..]);
        if crc != u32_at(fixed, 0) {
            return None;
        }
        let (value_bytes, space) = (lengths & ((1 << 24) - 1), SpaceId(u32_at(fixed, 20)));
        let header = RecordHeader::of_word(u64_at(fixed, 8), value_bytes, key_bytes, space);
        header.is_possible().then_some((header, &prefix[HEADER_BYTES..]))
    }

    /// The value of a record whose header verified; none if it does not verify itself.
    pub(crate) fn value<'a>(&self, record: &'a [u8], seed: BlockSeed) -> Option<&'a [u8]> {
        let value = record.get(self.value_range())?;
        (seed.value_crc32c(value) == u32_at(record, 4)).then_some(value)
    }
}

fn header_crc(seed: BlockSeed, value_crc: u32, rest: &[u8]) -> u32 {
    crc32c(seed.header_crc32c(&value_crc.to_le_bytes()), rest).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::seed::SeedSecret;

    const SECRET: SeedSecret = SeedSecret([0x0102_0304_0506_0708, 0x1112_1314_1516_1718]);

    fn encoded() -> (RecordHeader, Vec<u8>, BlockSeed) {
        let header = RecordHeader {
            sequence: 0x0102_0304,
            value_bytes: 5,
            key_bytes: 3,
            kind: RecordKind::Pair,
            space: SpaceId(0x0102_0302),
            relocated: true,
        };
        let seed = BlockSeed::new(SECRET, 7, 65536);
        let mut bytes = vec![0xEE; header.record_bytes() + END_BYTES];
        let word = header.encode(&mut bytes, seed, b"key", b"value");
        bytes[..8].copy_from_slice(&word.to_le_bytes());
        (header, bytes, seed)
    }

    #[test]
    fn a_record_keeps_its_bytes() {
        let (header, bytes, seed) = encoded();
        assert_eq!(bytes[8..], GOLDEN[8..]);
        assert_eq!(bytes[..8], GOLDEN[..8], "{:?}", &bytes[..8]);
        let (decoded, key) = RecordHeader::decode(&bytes, seed).unwrap();
        assert_eq!((decoded, key), (header, &b"key"[..]));
        assert_eq!(header.value(&bytes, seed), Some(&b"value"[..]));
    }

    const GOLDEN: [u8; 40] = [
        53, 28, 248, 103, 202, 116, 183, 157, 4, 3, 2, 1, 0, 0, 0, 128, 5, 0, 0, 3, 2, 3, 2, 1, 107, 101,
        121, 118, 97, 108, 117, 101, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn every_flipped_bit_is_found() {
        let (header, bytes, seed) = encoded();
        for bit in 0..header.value_range().end * 8 {
            let mut spoiled = bytes.clone();
            spoiled[bit / 8] ^= 1 << (bit % 8);
            let whole = RecordHeader::decode(&spoiled, seed)
                .is_some_and(|(header, _)| header.value(&spoiled, seed).is_some());
            assert!(!whole, "bit {bit}");
        }
    }

    #[test]
    fn another_life_or_place_does_not_verify() {
        let (_, bytes, _) = encoded();
        assert!(RecordHeader::decode(&bytes, BlockSeed::new(SECRET, 9, 65536)).is_none());
        assert!(RecordHeader::decode(&bytes, BlockSeed::new(SECRET, 7, 65568)).is_none());
        assert!(RecordHeader::decode(&bytes[..20], BlockSeed::new(SECRET, 7, 65536)).is_none());
    }
}
