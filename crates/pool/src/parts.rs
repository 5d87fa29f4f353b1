//! Values that are longer than an object is: the bytes of the list of their parts, and how they are divided.
//!
//! Owns the layout of what an indirect object has in its value's place ([`PartList`]), and which values are in parts ([`ObjectSizes`]). Promises that what decodes is a list by which the value has the length that it says, and
//! that no part is taken for that of another value: it has the generation of the object that lists it, and its number. Must not know who reads parts, or when they are free.
//!
//! ```text
//!  0             8        16
//!  +-------------+--------+--------+-- ...
//!  | value bytes | part 0 | part 1 |
//!  +-------------+--------+--------+-- ...
//! ```
//!
//! * All integers are little-endian. It is under the checksum of its object (`object.rs`).
//! * A part is 8 bytes: a live slot word (`word.rs`) with fingerprint and version 0, which says where the part is and how large.
//! * A part is an object of kind 4 with the generation of the one that lists it, no key, and its number as its slot; its value are bytes of the value, as many as it has room for, and those that are left in the last one.
//! * The object and its parts are in blocks of one session: who frees the object frees its parts (`client/slab.rs`).

use hedgerow_row::le_bytes::u64_at;

use crate::error::{PoolError, Result};
use crate::object::{Generation, KEY_BYTES_MAX, OBJECT_HEADER_BYTES, Object, ObjectKind, object_units};
use crate::region::PoolLayout;
use crate::word::{LiveWord, LogicalAddress, OBJECT_UNITS_MAX, SlotState, SlotWord, UNIT_BYTES};

/// Bytes of a value at most, where blocks have at least 8 KiB.
pub const VALUE_BYTES_MAX: usize = 2 << 20;

const LIST_HEAD_BYTES: usize = 8;
const LISTED_BYTES: usize = 8;

/// Where a part is, and how large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListedPart {
    /// Where.
    pub address: LogicalAddress,
    /// Units of 64 bytes of its object.
    pub units: u8,
}

impl ListedPart {
    /// Bytes of its object.
    pub fn object_bytes(self) -> usize {
        usize::from(self.units) * UNIT_BYTES
    }
}

/// The parts of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartList {
    /// Bytes of all.
    pub value_bytes: usize,
    /// In the order of the value.
    pub parts: Vec<ListedPart>,
}

/// Bytes of a value that a part of so many units has.
fn room_in(units: u8) -> usize {
    (usize::from(units) * UNIT_BYTES).saturating_sub(OBJECT_HEADER_BYTES)
}

impl PartList {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LIST_HEAD_BYTES + LISTED_BYTES * self.parts.len());
        bytes.extend_from_slice(&(self.value_bytes as u64).to_le_bytes());
        for &ListedPart { address, units } in &self.parts {
            let word = SlotWord::live(LiveWord { fingerprint: 0, units, address, version: 0 });
            bytes.extend_from_slice(&word.0.to_le_bytes());
        }
        bytes
    }

    /// The list that `bytes` are.
    ///
    /// # Errors
    /// What is wrong with them: among others that the parts have more bytes, or fewer, than the value is to have.
    pub fn decode(bytes: &[u8]) -> Result<PartList> {
        if bytes.len() < LIST_HEAD_BYTES + LISTED_BYTES {
            return Err(PoolError::TooShort("list of parts", bytes.len(), LIST_HEAD_BYTES + LISTED_BYTES));
        }
        let value_bytes = usize::try_from(u64_at(bytes, 0)).unwrap_or(usize::MAX);
        if value_bytes > VALUE_BYTES_MAX {
            return Err(PoolError::TooLong("value", value_bytes, VALUE_BYTES_MAX));
        }
        let listed = bytes[LIST_HEAD_BYTES..].chunks(LISTED_BYTES);
        let mut parts = Vec::with_capacity(listed.len());
        let mut left = value_bytes;
        for word in listed {
            let word = word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            let Ok(SlotState::Live(LiveWord { fingerprint: 0, units, address, version: 0 })) =
                SlotWord(word).decode()
            else {
                return Err(PoolError::Unknown("part", word));
            };
            let taken = left.min(room_in(units));
            let must = object_units(0, taken)?;
            if taken == 0 || must != units {
                return Err(PoolError::Contradicts("part's size", units.into(), must.into()));
            }
            left -= taken;
            parts.push(ListedPart { address, units });
        }
        match left {
            0 => Ok(PartList { value_bytes, parts }),
            _ => Err(PoolError::Contradicts("value's size", value_bytes as u64, (value_bytes - left) as u64)),
        }
    }
}

/// The bytes of a value that are in the part of that number, if `bytes` are that part of that object, whole.
pub(crate) fn bytes_of_part(bytes: &[u8], generation: Generation, number: usize) -> Option<&[u8]> {
    let part = Object::decode(bytes).ok()?;
    let is_it = part.generation == generation && part.slot as usize == number;
    (is_it && part.kind == ObjectKind::Part && part.key.is_empty()).then_some(part.value)
}

/// Where a value of some length is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValuePlace {
    /// In its object, which has so many units.
    Inside(u8),
    /// In parts, which an object of so many units lists.
    Parts(u8),
}

/// How large objects are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectSizes {
    /// Units of an object with its value in it, and of a part.
    part_units: u8,
    /// Units of an object that lists parts: what a block has.
    list_units: u8,
}

impl ObjectSizes {
    /// Those of a pool's objects, where none with its value in it, and no part, is to have more than so many units.
    pub fn new(layout: &PoolLayout, part_units: u8) -> ObjectSizes {
        let in_block = layout.block_bytes.saturating_sub(layout.bitmap_bytes()) / UNIT_BYTES as u32;
        let list_units = in_block.clamp(1, OBJECT_UNITS_MAX as u32) as u8;
        ObjectSizes { part_units: part_units.clamp(1, list_units), list_units }
    }

    /// Where a value is.
    ///
    /// # Errors
    /// [`PoolError::TooLong`] for a key or a value, or a list of parts.
    pub fn place(&self, key_bytes: usize, value_bytes: usize) -> Result<ValuePlace> {
        if value_bytes > VALUE_BYTES_MAX {
            return Err(PoolError::TooLong("value", value_bytes, VALUE_BYTES_MAX));
        }
        object_units(key_bytes, 0)?;
        if let Ok(units) = object_units(key_bytes, value_bytes)
            && (units <= self.part_units || value_bytes == 0)
        {
            return Ok(ValuePlace::Inside(units));
        }
        let parts = value_bytes.div_ceil(room_in(self.part_units));
        let units = object_units(key_bytes, LIST_HEAD_BYTES + LISTED_BYTES * parts)?;
        if units > self.list_units {
            let bytes = |units: u8| usize::from(units) * UNIT_BYTES;
            return Err(PoolError::TooLong("list of parts", bytes(units), bytes(self.list_units)));
        }
        Ok(ValuePlace::Parts(units))
    }

    /// Bytes of a value at most, whatever its key.
    pub fn value_bytes_max(&self) -> usize {
        let list = usize::from(self.list_units) * UNIT_BYTES;
        let listed =
            list.saturating_sub(OBJECT_HEADER_BYTES + KEY_BYTES_MAX + LIST_HEAD_BYTES) / LISTED_BYTES;
        VALUE_BYTES_MAX.min(listed * room_in(self.part_units))
    }

    /// A value's parts.
    pub(crate) fn parts<'v>(
        &self,
        value: &'v [u8],
    ) -> impl ExactSizeIterator<Item = &'v [u8]> + Clone + use<'v> {
        value.chunks(room_in(self.part_units))
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    const LAYOUT: PoolLayout = PoolLayout {
        memory_nodes: 1,
        copies: 1,
        partition_bits: 0,
        groups: 1,
        block_bytes: 1 << 20,
        blocks: 1,
    };

    fn part(offset: u32, units: u8) -> ListedPart {
        ListedPart { address: LogicalAddress { region: 1, offset }, units }
    }

    fn sample() -> PartList {
        PartList { value_bytes: 16_288 + 100, parts: vec![part(0x1000, 255), part(0x40, 3)] }
    }

    #[test]
    fn golden() {
        let mut expected = vec![0x04, 0x40, 0, 0, 0, 0, 0, 0];
        expected.extend_from_slice(&[0x00, 0x10, 0x00, 0x80, 0x00, 0x80, 0xFF, 0x00]);
        expected.extend_from_slice(&[0x40, 0x00, 0x00, 0x80, 0x00, 0x80, 0x03, 0x00]);
        assert_eq!(sample().encode(), expected);
        assert_eq!(PartList::decode(&expected), Ok(sample()));
    }

    /// An indirect object and its only part, as they are in memory.
    #[test]
    fn golden_objects() {
        let generation = Generation::new(2, 7);
        let list = PartList { value_bytes: 5, parts: vec![part(0x40, 1)] }.encode();
        let head = Object { kind: ObjectKind::Indirect, generation, slot: 0, key: b"key", value: &list };
        let mut expected = vec![
            1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 3, 0, 3, 1, 16, 0, 0, 0, 0, 0, 0, 0,
        ];
        expected[16..20].copy_from_slice(&HEAD_CRC.to_le_bytes());
        expected.extend_from_slice(b"key");
        expected.extend_from_slice(&list);
        expected.resize(64, 0);
        assert_eq!(head.encode(), Ok(expected));
        let part = Object { kind: ObjectKind::Part, generation, slot: 9, key: b"", value: b"value" };
        let mut expected = vec![
            1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 4, 1, 5, 0, 0, 0, 9, 0, 0, 0,
        ];
        expected[16..20].copy_from_slice(&PART_CRC.to_le_bytes());
        expected.extend_from_slice(b"value");
        expected.resize(64, 0);
        assert_eq!(part.encode(), Ok(expected));
    }

    const HEAD_CRC: u32 = 0x807d_e3e1;
    const PART_CRC: u32 = 0xe794_3bc4;

    #[test]
    fn a_part_is_that_of_its_object_only() {
        let generation = Generation::new(2, 7);
        let part = |kind, key| Object { kind, generation, slot: 3, key, value: b"value" }.encode().unwrap();
        let bytes = part(ObjectKind::Part, b"");
        assert_eq!(bytes_of_part(&bytes, generation, 3), Some(&b"value"[..]));
        assert_eq!(bytes_of_part(&bytes, Generation::new(2, 8), 3), None);
        assert_eq!(bytes_of_part(&bytes, generation, 4), None);
        assert_eq!(bytes_of_part(&part(ObjectKind::Put, b""), generation, 3), None);
        assert_eq!(bytes_of_part(&part(ObjectKind::Part, b"k"), generation, 3), None);
        for bit in 64..(OBJECT_HEADER_BYTES + 5) * 8 {
            let mut spoiled = bytes.clone();
            spoiled[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(bytes_of_part(&spoiled, generation, 3), None, "bit {bit}");
        }
    }

    #[test]
    fn hostile_lists_are_refused_or_read_as_they_are() {
        let mut random = Random::from_seed(5);
        let (mut refused, mut read) = (0, 0);
        for _ in 0..50_000 {
            let mut bytes = sample().encode();
            for _ in 0..=random.below(2) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            if random.below(4) == 0 {
                bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            }
            match PartList::decode(&bytes) {
                Ok(list) => {
                    read += 1;
                    assert_eq!(list.encode(), bytes);
                    let room: usize = list.parts.iter().map(|part| room_in(part.units)).sum();
                    assert!(room >= list.value_bytes && list.value_bytes <= VALUE_BYTES_MAX);
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 5_000 && read > 5_000, "{refused} refused, {read} read");
        let long = PartList { value_bytes: VALUE_BYTES_MAX + 1, ..sample() };
        let error = PoolError::TooLong("value", VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX);
        assert_eq!(PartList::decode(&long.encode()), Err(error));
        let short = PartList { value_bytes: 3 * 16_288, ..sample() };
        assert!(matches!(PartList::decode(&short.encode()), Err(PoolError::Contradicts(..))));
    }

    #[test]
    fn where_a_value_is() {
        let sizes = ObjectSizes::new(&LAYOUT, 255);
        assert_eq!(sizes.value_bytes_max(), VALUE_BYTES_MAX);
        assert_eq!(sizes.place(8, 0), Ok(ValuePlace::Inside(1)));
        assert_eq!(sizes.place(8, 16_280), Ok(ValuePlace::Inside(255)));
        assert_eq!(sizes.place(8, 16_281), Ok(ValuePlace::Parts(1)));
        assert_eq!(sizes.place(1024, VALUE_BYTES_MAX), Ok(ValuePlace::Parts(33)));
        let error = |what, is, most| Err(PoolError::TooLong(what, is, most));
        assert_eq!(sizes.place(8, VALUE_BYTES_MAX + 1), error("value", VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX));
        assert_eq!(sizes.place(1025, 0), error("key", 1025, 1024));
        // Of small blocks an object has no more than one has.
        let sizes = ObjectSizes::new(&PoolLayout { block_bytes: 4096, ..LAYOUT }, 255);
        assert_eq!(sizes.place(8, 4032 - 40), Ok(ValuePlace::Inside(63)));
        assert_eq!(sizes.place(8, 4032 - 39), Ok(ValuePlace::Parts(1)));
        let most = sizes.value_bytes_max();
        assert!(most > 1 << 20 && most < VALUE_BYTES_MAX, "{most}");
        assert_eq!(sizes.place(1024, most), Ok(ValuePlace::Parts(63)));
        assert_eq!(sizes.place(1024, most + 1), error("list of parts", 4096, 4032));
        // A key is longer than a part, and nothing is in no part.
        let sizes = ObjectSizes::new(&LAYOUT, 1);
        assert_eq!(sizes.place(1024, 0), Ok(ValuePlace::Inside(17)));
        assert_eq!(sizes.place(1024, 1), Ok(ValuePlace::Parts(17)));
        assert_eq!(sizes.parts(&[1; 70]).map(<[u8]>::len).collect::<Vec<_>>(), [32, 32, 6]);
    }
}
