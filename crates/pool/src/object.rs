//! The bytes of an object: one immutable pair in the memory of a memory node.
//!
//! Owns the layout. Promises that what decodes is whole: readers race with writers that use memory again, and every byte that a reader acts on is
//! under the checksum, the state alone excepted. Must not know where objects lie.
//!
//! ```text
//!  0        8              16       20    22   23   24      28      32
//!  +--------+--------------+--------+-----+----+----+-------+-------+-----+-------+-------+
//!  | state  |  generation  | crc32c | key |kind| 1  | value | slot  | key | value | zeros |
//!  |        |              |        | len |    |    | len   |       |     |       |       |
//!  +--------+--------------+--------+-----+----+----+-------+-------+-----+-------+-------+
//! ```
//!
//! * All integers are little-endian. An object is filled up to a multiple of 64 bytes; slot words say how many.
//! * `state`: bit 0, the object is valid. A word of its own, so that one 8-byte write changes it; not under the checksum. P1 sets it and never clears it: in direct
//!   mode a cached address is checked against its slot.
//! * `generation`: session (16 bits) and a counter of that session (48 bits). No two objects have the same. It is what conditional writes compare.
//! * `crc32c` is that of bytes 20 to 32, then of the generation, then of key and value.
//! * `kind`: 1 a put without a condition, 2 a claim (a key that takes a slot and has no value yet; read as absent), 5 a put with a condition. 3 and 6 are *indirect*: as 1 and 5, but the value is in
//!   parts, and what is in its place lists them (`parts.rs`). 4 is such a part: it has no key, and the generation of its indirect object; no slot leads to it. Losers of a race must know 1 and 3 from 5 and 6 (`client/write.rs`).
//! * `slot` is the slot in the partition that the writer meant: a hint for scans; of a part it is its number, from 0. The byte 23 is the version of the format.

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u16_at, u32_at, u64_at};

use crate::error::{PoolError, Result};
use crate::word::{OBJECT_UNITS_MAX, UNIT_BYTES};

/// Bytes before the key.
pub const OBJECT_HEADER_BYTES: usize = 32;
/// Bytes of a key at most.
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes of header, key and value together at most.
pub const OBJECT_BYTES_MAX: usize = OBJECT_UNITS_MAX * UNIT_BYTES;

const FORMAT: u8 = 1;
const STATE_VALID: u64 = 1;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A pair, put without a condition.
    Put = 1,
    /// A key that takes a slot and has no value yet.
    Claim = 2,
    /// As `Put`; the value is in parts, which this one lists.
    Indirect = 3,
    /// A part of an indirect object's value.
    Part = 4,
    /// A pair, put with a condition.
    ConditionalPut = 5,
    /// As `ConditionalPut`; the value is in parts, which this one lists.
    ConditionalIndirect = 6,
}

impl ObjectKind {
    fn of(byte: u8) -> Result<ObjectKind> {
        Ok(match byte {
            1 => ObjectKind::Put,
            2 => ObjectKind::Claim,
            3 => ObjectKind::Indirect,
            4 => ObjectKind::Part,
            5 => ObjectKind::ConditionalPut,
            6 => ObjectKind::ConditionalIndirect,
            other => return Err(PoolError::Unknown("object's kind", u64::from(other))),
        })
    }

    /// What an object's first bytes say, unverified; none where they are none.
    pub(crate) fn of_header(bytes: &[u8]) -> Option<ObjectKind> {
        bytes.get(22).and_then(|&byte| ObjectKind::of(byte).ok())
    }

    /// Whether the value is in parts.
    pub fn is_indirect(self) -> bool {
        matches!(self, ObjectKind::Indirect | ObjectKind::ConditionalIndirect)
    }

    /// Whether it is a pair that was put whatever was there.
    pub fn is_unconditional(self) -> bool {
        matches!(self, ObjectKind::Put | ObjectKind::Indirect)
    }

    /// The same with its value in parts.
    pub(crate) fn with_parts(self) -> ObjectKind {
        match self {
            ObjectKind::Put => ObjectKind::Indirect,
            ObjectKind::ConditionalPut => ObjectKind::ConditionalIndirect,
            other => other,
        }
    }
}

/// The number of a version of a pair: unique for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

impl Generation {
    /// The `counter`-th object of a session.
    pub fn new(session: u16, counter: u64) -> Generation {
        Generation(u64::from(session) << 48 | counter & ((1 << 48) - 1))
    }
}

/// A decoded object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object<'b> {
    /// What it is.
    pub kind: ObjectKind,
    /// Which version of its key.
    pub generation: Generation,
    /// The slot that its writer meant.
    pub slot: u32,
    /// The key.
    pub key: &'b [u8],
    /// The value.
    pub value: &'b [u8],
}

/// Units of 64 bytes of an object with so much in it.
///
/// # Errors
/// [`PoolError::TooLong`] over [`KEY_BYTES_MAX`] or [`OBJECT_BYTES_MAX`].
pub fn object_units(key_bytes: usize, value_bytes: usize) -> Result<u8> {
    if key_bytes > KEY_BYTES_MAX {
        return Err(PoolError::TooLong("key", key_bytes, KEY_BYTES_MAX));
    }
    let bytes = OBJECT_HEADER_BYTES.saturating_add(key_bytes).saturating_add(value_bytes);
    match u8::try_from(bytes.div_ceil(UNIT_BYTES)) {
        Ok(units) => Ok(units),
        Err(_) => Err(PoolError::TooLong("object", bytes, OBJECT_BYTES_MAX)),
    }
}

impl<'b> Object<'b> {
    /// The object's bytes, filled up.
    ///
    /// # Errors
    /// As [`object_units`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let units = object_units(self.key.len(), self.value.len())?;
        let mut bytes = vec![0; usize::from(units) * UNIT_BYTES];
        bytes[..8].copy_from_slice(&STATE_VALID.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generation.0.to_le_bytes());
        bytes[20..22].copy_from_slice(&(self.key.len() as u16).to_le_bytes());
        bytes[22..24].copy_from_slice(&[self.kind as u8, FORMAT]);
        bytes[24..28].copy_from_slice(&(self.value.len() as u32).to_le_bytes());
        bytes[28..32].copy_from_slice(&self.slot.to_le_bytes());
        let value_at = OBJECT_HEADER_BYTES + self.key.len();
        let end = value_at + self.value.len();
        bytes[OBJECT_HEADER_BYTES..value_at].copy_from_slice(self.key);
        bytes[value_at..end].copy_from_slice(self.value);
        let crc = object_crc(&bytes, end);
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
        Ok(bytes)
    }

    /// The object that `bytes` are, which have the length that its slot word says.
    ///
    /// # Errors
    /// What is wrong with them; [`PoolError::Checksum`] is what a reader sees that raced with a writer.
    pub fn decode(bytes: &'b [u8]) -> Result<Object<'b>> {
        let object = Object::decode_unchecked(bytes)?;
        let end = OBJECT_HEADER_BYTES + object.key.len() + object.value.len();
        let (stored, crc) = (u32_at(bytes, 16), object_crc(bytes, end));
        if stored != crc {
            return Err(PoolError::Checksum("object", stored, crc));
        }
        Ok(object)
    }

    /// The same without the checksum: lengths and numbers only.
    pub(crate) fn decode_unchecked(bytes: &'b [u8]) -> Result<Object<'b>> {
        if bytes.len() < OBJECT_HEADER_BYTES {
            return Err(PoolError::TooShort("object", bytes.len(), OBJECT_HEADER_BYTES));
        }
        let (key_bytes, value_bytes) = (usize::from(u16_at(bytes, 20)), u32_at(bytes, 24) as usize);
        let units = usize::from(object_units(key_bytes, value_bytes)?);
        if units * UNIT_BYTES != bytes.len() {
            return Err(PoolError::Contradicts(
                "object's size",
                (units * UNIT_BYTES) as u64,
                bytes.len() as u64,
            ));
        }
        let kind = ObjectKind::of(bytes[22])?;
        if bytes[23] != FORMAT {
            return Err(PoolError::Unknown("object's format", u64::from(bytes[23])));
        }
        let value_at = OBJECT_HEADER_BYTES + key_bytes;
        Ok(Object {
            kind,
            generation: Generation(u64_at(bytes, 8)),
            slot: u32_at(bytes, 28),
            key: &bytes[OBJECT_HEADER_BYTES..value_at],
            value: &bytes[value_at..value_at + value_bytes],
        })
    }
}

fn object_crc(bytes: &[u8], end: usize) -> u32 {
    let crc = crc32c(0, &bytes[20..32]);
    let crc = crc32c(crc, &bytes[8..16]);
    crc32c(crc, &bytes[OBJECT_HEADER_BYTES..end])
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    fn sample<'b>(key: &'b [u8], value: &'b [u8]) -> Object<'b> {
        Object { kind: ObjectKind::Put, generation: Generation::new(2, 7), slot: 9, key, value }
    }

    #[test]
    fn golden() {
        let bytes = sample(b"key", b"value").encode().unwrap();
        let mut expected = vec![
            1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 2, 0, 0x00, 0x00, 0x00, 0x00, 3, 0, 1, 1, 5, 0, 0, 0,
            9, 0, 0, 0,
        ];
        expected[16..20].copy_from_slice(&0xe50d0ccb_u32.to_le_bytes());
        expected.extend_from_slice(b"keyvalue");
        expected.resize(64, 0);
        assert_eq!(bytes, expected);
        assert_eq!(Object::decode(&bytes), Ok(sample(b"key", b"value")));
    }

    #[test]
    fn every_flipped_bit_under_the_checksum_is_found() {
        let bytes = sample(b"key", b"value").encode().unwrap();
        for bit in 64..(OBJECT_HEADER_BYTES + 8) * 8 {
            let mut spoiled = bytes.clone();
            spoiled[bit / 8] ^= 1 << (bit % 8);
            assert!(Object::decode(&spoiled).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn limits_say_what_they_are() {
        assert_eq!(object_units(KEY_BYTES_MAX + 1, 0), Err(PoolError::TooLong("key", 1025, 1024)));
        assert_eq!(object_units(8, OBJECT_BYTES_MAX), Err(PoolError::TooLong("object", 16_360, 16_320)));
        assert_eq!(object_units(8, OBJECT_BYTES_MAX - 40), Ok(255));
        assert_eq!(object_units(0, 0), Ok(1));
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let mut random = Random::from_seed(3);
        let good = sample(b"key", &[7; 200]).encode().unwrap();
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..=random.below(4) {
                let at = 8 + random.below(bytes.len() as u64 - 8) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            bytes.truncate(random.below(bytes.len() as u64 * 2) as usize);
            if let Ok(object) = Object::decode(&bytes) {
                assert_eq!((object.key, object.value), (&b"key"[..], &[7; 200][..]));
            }
        }
    }
}
