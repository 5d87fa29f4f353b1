//! The map of an array: which of its devices has which keys.
//!
//! Owns its bytes, of which each device keeps a copy, and which shard a key is of. Promises that bytes that decode are, whole, what was encoded. Must not know how copies are compared.
//!
//! ```text
//!  0        4   5      8                24               32               40       42       44                      2092
//!  +--------+---+------+------- 16 -----+----------------+----------------+--------+--------+-----------------------+
//!  |  crc   | 1 | zeros|    array id    |   generation   |     marks      | device |devices | device of each shard  |
//!  +--------+---+------+----------------+----------------+----------------+--------+--------+-----------------------+
//! ```
//!
//! * All integers are little-endian. `crc` is the crc32c of what follows it. Byte 4 is the format.
//! * `array id` is drawn when the array is made. It is the key of the hash that spreads keys, too: SipHash-1-3 (Aumasson and Bernstein 2012) of the whole key, whose upper ten bits are its shard. So who
//!   chooses keys cannot choose many of one device.
//! * `generation`: 0 while the array is being made, and then two more with each opening at least. Of two copies the difference is 1 at most.
//! * `marks`: no pair was ever stored with this mark or a higher one.
//! * `device` is the number of the device that has this copy, from 0, of so many `devices`; for each of 1,024 shards two bytes say which device has its keys.

use std::hash::Hasher;

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u16_at, u32_at, u64_at, u128_at};
use siphasher::sip::SipHasher13;

/// Shards that keys are spread over.
pub(super) const SHARDS: usize = 1_024;
/// Devices of an array: each has a shard at least.
pub(super) const DEVICES_MAX: usize = SHARDS;

const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 44;
const MAP_BYTES: usize = HEAD_BYTES + 2 * SHARDS;

/// What a device knows of its array.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ArrayMap {
    pub(super) array_id: u128,
    pub(super) generation: u64,
    pub(super) marks: u64,
    /// Whose copy it is.
    pub(super) device: u16,
    pub(super) devices: u16,
    pub(super) shards: Box<[u16]>,
}

/// Why bytes are no map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoMap {
    Damaged,
    Version(u8),
}

impl ArrayMap {
    /// Of a new array: each device has every so many-th shard.
    pub(super) fn new(array_id: u128, devices: u16) -> ArrayMap {
        let shards = (0..SHARDS).map(|shard| (shard % usize::from(devices)) as u16).collect();
        ArrayMap { array_id, generation: 0, marks: 1, device: 0, devices, shards }
    }

    /// Which device has a key.
    pub(super) fn device_of(&self, key: &[u8]) -> usize {
        usize::from(self.shards[shard_of(self.array_id, key)])
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAP_BYTES);
        bytes.extend_from_slice(&[0, 0, 0, 0, FORMAT, 0, 0, 0]);
        bytes.extend_from_slice(&self.array_id.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.marks.to_le_bytes());
        bytes.extend_from_slice(&self.device.to_le_bytes());
        bytes.extend_from_slice(&self.devices.to_le_bytes());
        self.shards.iter().for_each(|device| bytes.extend_from_slice(&device.to_le_bytes()));
        let crc = crc32c(0, &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<ArrayMap, NoMap> {
        if bytes.len() < 8 || u32_at(bytes, 0) != crc32c(0, &bytes[4..]) {
            return Err(NoMap::Damaged);
        }
        if bytes[4..8] != [FORMAT, 0, 0, 0] {
            return Err(NoMap::Version(bytes[4]));
        }
        if bytes.len() != MAP_BYTES {
            return Err(NoMap::Damaged);
        }
        let map = ArrayMap {
            array_id: u128_at(bytes, 8),
            generation: u64_at(bytes, 24),
            marks: u64_at(bytes, 32),
            device: u16_at(bytes, 40),
            devices: u16_at(bytes, 42),
            shards: (0..SHARDS).map(|shard| u16_at(bytes, HEAD_BYTES + 2 * shard)).collect(),
        };
        let is_whole = map.device < map.devices && map.shards.iter().all(|&device| device < map.devices);
        if is_whole { Ok(map) } else { Err(NoMap::Damaged) }
    }
}

/// The shard of a key.
fn shard_of(array_id: u128, key: &[u8]) -> usize {
    let mut hasher = SipHasher13::new_with_key(&array_id.to_le_bytes());
    hasher.write(key);
    (hasher.finish() >> (u64::BITS - SHARDS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> ArrayMap {
        let map = ArrayMap::new(0x0F0E_0D0C_0B0A_0908_0706_0504_0302_0100, 3);
        ArrayMap { generation: 0x11, marks: 0x2222, device: 2, ..map }
    }

    #[test]
    fn golden_bytes() {
        let bytes = map().encode();
        assert_eq!(bytes.len(), 2092);
        let head: Vec<u8> = [
            &[1, 0, 0, 0][..],
            &(0..16).collect::<Vec<u8>>(),
            &[0x11, 0, 0, 0, 0, 0, 0, 0],
            &[0x22, 0x22, 0, 0, 0, 0, 0, 0],
            &[2, 0, 3, 0],
            &[0, 0, 1, 0, 2, 0, 0, 0],
        ]
        .concat();
        assert_eq!(bytes[4..52], head);
        assert_eq!(bytes[2090..], [0, 0], "shard 1023");
        assert_eq!(bytes[..4], GOLDEN_CRC);
        let shards = [&b""[..], b"key", b"\0\0\0\x01row", &[7; 255]].map(|key| shard_of(map().array_id, key));
        assert_eq!(shards, GOLDEN_SHARDS);
    }

    const GOLDEN_CRC: [u8; 4] = [134, 13, 237, 219];
    const GOLDEN_SHARDS: [usize; 4] = [686, 209, 938, 447];

    #[test]
    fn what_was_encoded_is_decoded_and_nothing_else_is() {
        let bytes = map().encode();
        assert!(ArrayMap::decode(&bytes).is_ok_and(|decoded| decoded == map()));
        for at in 0..bytes.len() {
            let mut spoiled = bytes.clone();
            spoiled[at] ^= 0x10;
            assert!(ArrayMap::decode(&spoiled).is_err(), "byte {at}");
            assert!(ArrayMap::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        let sealed = |mut bytes: Vec<u8>| {
            let crc = crc32c(0, &bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            ArrayMap::decode(&bytes).err()
        };
        let mut later = bytes.clone();
        later[4] = 2;
        assert_eq!(sealed(later), Some(NoMap::Version(2)));
        let mut outside = bytes.clone();
        outside[60] = 3;
        assert_eq!(sealed(outside), Some(NoMap::Damaged), "a shard of a device that there is not");
        assert_eq!(sealed(bytes[..2090].to_vec()), Some(NoMap::Damaged));
    }

    /// Keys that differ in a few bits only are spread evenly.
    #[test]
    fn keys_are_spread_evenly() {
        let map = ArrayMap::new(77, 5);
        let mut of_device = [0u32; 5];
        (0..50_000u32).for_each(|n| of_device[map.device_of(&n.to_be_bytes())] += 1);
        assert!(of_device.iter().all(|keys| (9_500..10_500).contains(keys)), "{of_device:?}");
    }
}
