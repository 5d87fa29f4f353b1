//! The map of an array: which of its devices has which keys, and which keys are on the move.
//!
//! Owns its bytes, of which each device keeps a copy, which shard a key is of, and which shards go where so that each device has its share. Promises that bytes that decode are, whole, what was encoded. Must
//! not know how copies are compared.
//!
//! ```text
//!  0        4   5      6        8                24               32               40       42       44                      2092             2100
//!  +--------+---+------+--------+------- 16 -----+----------------+----------------+--------+--------+-----------------------+----------------+
//!  |  crc   | 2 | work | source |    array id    |   generation   |     marks      | device |devices | 1,024 words of 16 bits|    switches    |
//!  +--------+---+------+--------+----------------+----------------+----------------+--------+--------+-----------------------+----------------+
//! ```
//!
//! * All integers are little-endian. `crc` is the crc32c of what follows it. Byte 4 is the format.
//! * `work` is what is under way: 0 nothing, 1 each device is to have its share, 2 the device `source` is to have none. `source` is the device that shards go from; 0 where `work` is.
//! * `array id` is drawn when the array is made. It is the key of the hash that spreads keys, too: SipHash-1-3 (Aumasson and Bernstein 2012) of the whole key, whose upper ten bits are its shard. So who
//!   chooses keys cannot choose many of one device.
//! * `generation`: 0 while the array is being made, and then two more with each opening at least, and one with each change of the map. Of two copies the difference is 1 at most. Among maps of one generation that with more marks counts.
//! * `marks`: no pair was ever stored with this mark or a higher one.
//! * `device` is the number of the device that has this copy, of so many `devices`. A number is a device's as long as it is of the array: others that go or come do not change it.
//! * Word `n` says four things. Bits 0 to 9: the device that has the keys of shard `n`, or, where bit 15 is set, the one that they go to, and `source` has them. Bit 14: the device of number `n` is of the
//!   array. Bit 13: it may have pairs of shards that it has not (strays). Bits 10 to 12 are 0.
//! * `switches`: how often shards changed their device. A walk that began before goes on from its beginning.
//!
//! Format 3 is that of an array with two copies of each shard. It has 1,536 bytes more behind `switches`: 12 bits for each shard, those of shards `2n` and `2n + 1` in three bytes, the first in the lower ones. Bits 0 to 9:
//! the device that has the second copy. Bit 10: there is one. Bit 11: the shard is on the move, and bits 0 to 9 are the device that gets a copy, in the place of `source`'s where bit 10 is set, else as the second one. Bit 12 of word `n` is then: the device of
//! number `n` is out, it has no copy of any shard. `work` may be 3: shards with one copy are to have two. Bit 15 of words is 0, and `source` is the device whose copies go. An array of one copy has format 2.
//!
//! Format 1, which has 3 zero bytes behind the format, a device in each word and nothing behind them, is read as an array of the devices from 0 on with nothing under way. Records are filled up to 32 bytes, so
//! that format 2 takes no more of a device.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

mod seconds;

pub(super) use seconds::CopyMove;

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u16_at, u32_at, u64_at, u128_at};
use siphasher::sip::SipHasher13;

/// Shards that keys are spread over.
pub(super) const SHARDS: usize = 1_024;
/// Devices of an array: each has a shard at least.
pub(super) const DEVICES_MAX: usize = SHARDS;

const FORMAT_FIXED: u8 = 1;
const FORMAT: u8 = 2;
const FORMAT_COPIES: u8 = 3;
const HEAD_BYTES: usize = 44;
const WORDS_END: usize = HEAD_BYTES + 2 * SHARDS;
const MAP_BYTES: usize = WORDS_END + 8;
const COPIES_MAP_BYTES: usize = MAP_BYTES + seconds::SECONDS_BYTES;

const DEVICE_BITS: u16 = 0x3FF;
const OUT_BIT: u16 = 1 << 12;
const STRAY_BIT: u16 = 1 << 13;
const MEMBER_BIT: u16 = 1 << 14;
const MOVES_BIT: u16 = 1 << 15;

/// What is to become of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MapWork {
    Nothing,
    /// Each device is to have its share.
    Spread,
    /// This device is to have no shard, and then to go.
    Remove(u16),
    /// Shards that have one copy are to have two.
    Rebuild,
}

/// What a device knows of its array.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ArrayMap {
    pub(super) array_id: u128,
    pub(super) generation: u64,
    pub(super) marks: u64,
    /// Whose copy it is.
    pub(super) device: u16,
    pub(super) work: MapWork,
    /// The numbers of its devices. They are given in this order.
    pub(super) members: BTreeSet<u16>,
    /// Those of them that may have pairs of shards that they have not.
    pub(super) strays: BTreeSet<u16>,
    /// Which device has each shard; of two copies the first, which is the truth.
    pub(super) shards: Box<[u16]>,
    /// Which device has the second copy of each, where arrays have two; none of a shard that has one copy now.
    pub(super) seconds: Option<Box<[Option<u16>]>>,
    /// Devices that failed, or were missing: they have no copy of anything that counts.
    pub(super) out: BTreeSet<u16>,
    /// Shards that are on the move, and where they go: all of them from the same device. Where there are two copies it is the second that goes, or that there is none of; what is copied is the first.
    pub(super) moves: BTreeMap<u16, u16>,
    pub(super) switches: u64,
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
        ArrayMap::fixed(array_id, devices, shards)
    }

    /// With nothing under way.
    fn fixed(array_id: u128, devices: u16, shards: Box<[u16]>) -> ArrayMap {
        ArrayMap {
            array_id,
            generation: 0,
            marks: 1,
            device: 0,
            work: MapWork::Nothing,
            members: (0..devices).collect(),
            strays: BTreeSet::new(),
            shards,
            seconds: None,
            out: BTreeSet::new(),
            moves: BTreeMap::new(),
            switches: 0,
        }
    }

    /// Which device has a key.
    pub(super) fn device_of(&self, key: &[u8]) -> usize {
        usize::from(self.shards[shard_of(self.array_id, key)])
    }

    /// Where a key's shard goes, if it is on the move.
    pub(super) fn target_of(&self, key: &[u8]) -> Option<usize> {
        if self.moves.is_empty() {
            return None;
        }
        self.moves.get(&(shard_of(self.array_id, key) as u16)).copied().map(usize::from)
    }

    /// Whether a device may have pairs that it is not asked for.
    pub(super) fn may_have_others(&self, device: usize) -> bool {
        let device = device as u16;
        self.seconds.is_some() || self.strays.contains(&device) || self.moves.values().any(|&to| to == device)
    }

    /// The place of a device among those of the array, from 0.
    pub(super) fn place_of(&self, device: u16) -> Option<usize> {
        self.members.contains(&device).then(|| self.members.range(..device).count())
    }

    /// Shards stay where they are, and what was copied of them is to go.
    pub(super) fn cancel_moves(&mut self) {
        let targets = std::mem::take(&mut self.moves).into_values();
        self.strays.extend(targets);
    }

    /// Shards are where they went, and what is left of them is to go.
    pub(super) fn switch(&mut self) {
        for (shard, to) in std::mem::take(&mut self.moves) {
            let shard = usize::from(shard);
            let from = match &mut self.seconds {
                None => Some(std::mem::replace(&mut self.shards[shard], to)),
                Some(seconds) => seconds[shard].replace(to),
            };
            self.strays.extend(from);
        }
        self.switches += 1;
    }

    /// All shards that are to move, each with where to: as few as each device's share can be had with.
    pub(super) fn moves_left(&self) -> BTreeMap<u16, u16> {
        let mut has: BTreeMap<u16, Vec<u16>> =
            self.members.iter().map(|&number| (number, Vec::new())).collect();
        for (shard, device) in self.shards.iter().enumerate() {
            has.entry(*device).or_default().push(shard as u16);
        }
        let mut spare: Vec<u16> = match self.work {
            MapWork::Nothing | MapWork::Rebuild => return BTreeMap::new(),
            MapWork::Remove(device) => has.remove(&device).unwrap_or_default(),
            MapWork::Spread => {
                let (share, more) = (SHARDS / has.len(), SHARDS % has.len());
                // Those that have the most keep one more.
                let mut order: Vec<u16> = has.keys().copied().collect();
                order.sort_by_key(|number| std::cmp::Reverse(has[number].len()));
                let mut spare = Vec::new();
                for (n, number) in order.into_iter().enumerate() {
                    let keeps = share + usize::from(n < more);
                    let shards = has.entry(number).or_default();
                    spare.extend(shards.drain(keeps.min(shards.len())..));
                }
                spare
            }
        };
        spare.sort_unstable();
        let mut moves = BTreeMap::new();
        let mut counts: BTreeSet<(usize, u16)> = has.iter().map(|(&number, of)| (of.len(), number)).collect();
        for shard in spare {
            let Some((count, least)) = counts.pop_first() else { break };
            counts.insert((count + 1, least));
            moves.insert(shard, least);
        }
        moves
    }

    fn source(&self) -> u16 {
        let moving = self.moves.keys().next().map(|&shard| usize::from(shard));
        match (self.work, &self.seconds) {
            (MapWork::Nothing, _) => 0,
            (MapWork::Remove(device), _) => device,
            (_, Some(seconds)) => moving.and_then(|shard| seconds[shard]).unwrap_or(0),
            (_, None) => moving.map_or(0, |shard| self.shards[shard]),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAP_BYTES);
        let work = match self.work {
            MapWork::Nothing => 0,
            MapWork::Spread => 1,
            MapWork::Remove(_) => 2,
            MapWork::Rebuild => 3,
        };
        let format = if self.seconds.is_some() { FORMAT_COPIES } else { FORMAT };
        bytes.extend_from_slice(&[0, 0, 0, 0, format, work]);
        bytes.extend_from_slice(&self.source().to_le_bytes());
        bytes.extend_from_slice(&self.array_id.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.marks.to_le_bytes());
        bytes.extend_from_slice(&self.device.to_le_bytes());
        bytes.extend_from_slice(&(self.members.len() as u16).to_le_bytes());
        for (n, &device) in self.shards.iter().enumerate() {
            let n = n as u16;
            let moves = self.moves.get(&n).filter(|_| self.seconds.is_none());
            let mut word = moves.map_or(device, |to| to | MOVES_BIT);
            word |= if self.out.contains(&n) { OUT_BIT } else { 0 };
            word |= if self.members.contains(&n) { MEMBER_BIT } else { 0 };
            word |= if self.strays.contains(&n) { STRAY_BIT } else { 0 };
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.switches.to_le_bytes());
        self.encode_seconds(&mut bytes);
        let crc = crc32c(0, &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<ArrayMap, NoMap> {
        if bytes.len() < 8 || u32_at(bytes, 0) != crc32c(0, &bytes[4..]) {
            return Err(NoMap::Damaged);
        }
        let map = match (bytes[4], bytes.len()) {
            (FORMAT_FIXED, WORDS_END) if bytes[5..8] == [0; 3] => ArrayMap::decode_fixed(bytes),
            (FORMAT, MAP_BYTES) | (FORMAT_COPIES, COPIES_MAP_BYTES) => {
                ArrayMap::decode_words(bytes).ok_or(NoMap::Damaged)?
            }
            (FORMAT_FIXED | FORMAT | FORMAT_COPIES, _) => return Err(NoMap::Damaged),
            (found, _) => return Err(NoMap::Version(found)),
        };
        let map = ArrayMap {
            generation: u64_at(bytes, 24),
            marks: u64_at(bytes, 32),
            device: u16_at(bytes, 40),
            ..map
        };
        let knows_itself = bytes[4] != FORMAT_FIXED || map.members.contains(&map.device);
        if knows_itself && map.is_whole() && map.members.len() == usize::from(u16_at(bytes, 42)) {
            Ok(map)
        } else {
            Err(NoMap::Damaged)
        }
    }

    fn decode_fixed(bytes: &[u8]) -> ArrayMap {
        let shards = (0..SHARDS).map(|shard| u16_at(bytes, HEAD_BYTES + 2 * shard)).collect();
        // More than there may be is no map.
        let devices = u16_at(bytes, 42).min(DEVICES_MAX as u16);
        ArrayMap::fixed(u128_at(bytes, 8), devices, shards)
    }

    fn decode_words(bytes: &[u8]) -> Option<ArrayMap> {
        let source = u16_at(bytes, 6);
        let work = match bytes[5] {
            0 if source == 0 => MapWork::Nothing,
            1 => MapWork::Spread,
            2 => MapWork::Remove(source),
            3 if bytes[4] == FORMAT_COPIES => MapWork::Rebuild,
            _ => return None,
        };
        let has_copies = bytes[4] == FORMAT_COPIES;
        let words: Vec<u16> = (0..SHARDS).map(|n| u16_at(bytes, HEAD_BYTES + 2 * n)).collect();
        let with = |bit: u16| {
            let numbered = words.iter().enumerate().filter(move |(_, word)| **word & bit != 0);
            numbered.map(|(n, word)| (n as u16, word & DEVICE_BITS))
        };
        let is_moving = |word: u16| word & MOVES_BIT != 0;
        let owner = |&word: &u16| if is_moving(word) { source } else { word & DEVICE_BITS };
        let of_format = if has_copies { OUT_BIT } else { MOVES_BIT };
        let known = DEVICE_BITS | STRAY_BIT | MEMBER_BIT | of_format;
        let mut map = words.iter().all(|word| word & !known == 0).then(|| ArrayMap {
            work,
            members: with(MEMBER_BIT).map(|(n, _)| n).collect(),
            strays: with(STRAY_BIT).map(|(n, _)| n).collect(),
            out: with(OUT_BIT).map(|(n, _)| n).collect(),
            moves: with(MOVES_BIT).collect(),
            shards: words.iter().map(owner).collect(),
            switches: u64_at(bytes, WORDS_END),
            ..ArrayMap::new(u128_at(bytes, 8), 1)
        })?;
        if has_copies {
            map.decode_seconds(&bytes[MAP_BYTES..], source)?;
        }
        Some(map).filter(|map| map.source() == source)
    }

    /// Whether all that it names is of the array.
    fn is_whole(&self) -> bool {
        let is_member = |device: &u16| self.members.contains(device);
        let works = match self.work {
            MapWork::Nothing => self.moves.is_empty(),
            MapWork::Spread => true,
            MapWork::Rebuild => self.seconds.is_some(),
            MapWork::Remove(device) => is_member(&device),
        };
        let is_in = |device: &u16| is_member(device) && !self.out.contains(device);
        // A device that was removed has a copy that says so.
        works
            && usize::from(self.device) < DEVICES_MAX
            && self.out.iter().all(is_member)
            && self.shards.iter().chain(self.moves.values()).chain(&self.strays).all(is_in)
            && self.moves.iter().all(|(&shard, to)| self.shards[usize::from(shard)] != *to)
            && self.seconds_are_whole(is_in)
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

    const ID: u128 = 0x0F0E_0D0C_0B0A_0908_0706_0504_0302_0100;

    /// Shards 0 and 3 go from device 0 to 5; device 1 was removed, and 2 has strays.
    fn map() -> ArrayMap {
        let shards = (0..SHARDS).map(|shard| [0, 2, 5][shard % 3]).collect();
        ArrayMap {
            generation: 0x11,
            marks: 0x2222,
            device: 2,
            work: MapWork::Spread,
            members: [0, 2, 5].into(),
            strays: [2].into(),
            shards,
            moves: [(0, 5), (3, 5)].into(),
            switches: 0x33,
            ..ArrayMap::new(ID, 1)
        }
    }

    /// As the format before this one has it.
    fn fixed_bytes() -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 0, 1, 0, 0, 0];
        bytes.extend(0..16);
        bytes.extend([0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0x22, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0]);
        (0..SHARDS).for_each(|shard| bytes.extend([(shard % 3) as u8, 0]));
        bytes[..4].copy_from_slice(&GOLDEN_FIXED_CRC);
        bytes
    }

    #[test]
    fn golden_bytes() {
        let bytes = map().encode();
        assert_eq!(bytes.len(), 2100);
        let head: Vec<u8> = [
            &[2, 1, 0, 0][..],
            &(0..16).collect::<Vec<u8>>(),
            &[0x11, 0, 0, 0, 0, 0, 0, 0],
            &[0x22, 0x22, 0, 0, 0, 0, 0, 0],
            &[2, 0, 3, 0],
            // Shard 0 goes to 5, and device 0 is there; shard 1 is on 2; shard 2 on 5, and device 2 is there, with strays; shard 3 goes to 5; shards 4 and 5, and device 5.
            &[5, 0xC0, 2, 0, 5, 0x60, 5, 0x80, 2, 0, 5, 0x40],
        ]
        .concat();
        assert_eq!(bytes[4..56], head);
        assert_eq!(bytes[2090..], [0, 0, 0x33, 0, 0, 0, 0, 0, 0, 0], "shard 1023, and switches");
        assert_eq!(bytes[..4], GOLDEN_CRC);
        let removal = ArrayMap { work: MapWork::Remove(5), moves: [(2, 0)].into(), ..map() }.encode();
        assert_eq!(removal[4..8], [2, 2, 5, 0]);
        assert_eq!(removal[48..50], [0, 0xE0]);
        let shards = [&b""[..], b"key", b"\0\0\0\x01row", &[7; 255]].map(|key| shard_of(ID, key));
        assert_eq!(shards, GOLDEN_SHARDS);
    }

    const GOLDEN_CRC: [u8; 4] = [207, 141, 172, 238];
    const GOLDEN_FIXED_CRC: [u8; 4] = [134, 13, 237, 219];
    const GOLDEN_SHARDS: [usize; 4] = [686, 209, 938, 447];

    /// A map of the format before is of an array with nothing under way, and takes no more room when it is stored anew.
    #[test]
    fn the_format_before_is_read() {
        let decoded = ArrayMap::decode(&fixed_bytes()).ok().unwrap();
        let expected = ArrayMap { generation: 0x11, marks: 0x2222, device: 2, ..ArrayMap::new(ID, 3) };
        assert!(decoded == expected);
        let record = |value: usize| (24 + b"map".len() + value).next_multiple_of(32);
        assert_eq!(record(fixed_bytes().len()), record(decoded.encode().len()));
        let sealed = |at: usize, byte: u8| {
            let mut bytes = fixed_bytes();
            bytes[at] = byte;
            sealed(bytes).err()
        };
        assert_eq!(sealed(60, 3), Some(NoMap::Damaged), "a shard of a device that there is not");
        assert_eq!(sealed(40, 3), Some(NoMap::Damaged), "a copy of a device that there is not");
        assert_eq!(sealed(6, 1), Some(NoMap::Damaged));
        assert_eq!(sealed(42, 0), Some(NoMap::Damaged), "no device");
        assert_eq!(sealed(43, 0xFF), Some(NoMap::Damaged), "more than there may be");
    }

    /// With a checksum that is right.
    fn sealed(mut bytes: Vec<u8>) -> Result<ArrayMap, NoMap> {
        let crc = crc32c(0, &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        ArrayMap::decode(&bytes)
    }

    #[test]
    fn what_was_encoded_is_decoded_and_nothing_else_is() {
        let removed = ArrayMap { device: 1, work: MapWork::Nothing, moves: BTreeMap::new(), ..map() };
        for map in [map(), removed, ArrayMap { work: MapWork::Remove(2), moves: [(1, 0)].into(), ..map() }] {
            assert!(ArrayMap::decode(&map.encode()).is_ok_and(|decoded| decoded == map));
        }
        let bytes = map().encode();
        for at in 0..bytes.len() {
            let mut spoiled = bytes.clone();
            spoiled[at] ^= 0x10;
            assert!(ArrayMap::decode(&spoiled).is_err(), "byte {at}");
            assert!(ArrayMap::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        let with = |changes: &[(usize, u8)]| {
            let mut bytes = bytes.clone();
            changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
            sealed(bytes).err()
        };
        assert_eq!(with(&[(4, 4)]), Some(NoMap::Version(4)));
        assert_eq!(with(&[(4, 3)]), Some(NoMap::Damaged), "two copies, and nothing of the second ones");
        assert_eq!(with(&[(5, 3)]), Some(NoMap::Damaged), "no work");
        assert_eq!(with(&[(5, 0)]), Some(NoMap::Damaged), "moves, and nothing under way");
        assert_eq!(with(&[(6, 1)]), Some(NoMap::Damaged), "moves from a device that there is not");
        assert_eq!(with(&[(6, 5)]), Some(NoMap::Damaged), "moves to where they are");
        assert_eq!(with(&[(41, 4)]), Some(NoMap::Damaged), "a copy beyond all numbers");
        assert_eq!(with(&[(42, 4)]), Some(NoMap::Damaged), "another count");
        assert_eq!(with(&[(46, 1)]), Some(NoMap::Damaged), "a shard of a device that there is not");
        assert_eq!(with(&[(47, 0x20)]), Some(NoMap::Damaged), "strays of a device that there is not");
        assert_eq!(with(&[(47, 0x04)]), Some(NoMap::Damaged), "a bit that has no meaning");
        assert_eq!(sealed(bytes[..2098].to_vec()).err(), Some(NoMap::Damaged));
    }

    /// Each device has its share after the fewest moves, whichever come and go.
    #[test]
    fn as_few_shards_move_as_can() {
        let mut map = ArrayMap::new(1, 1);
        let count = |map: &ArrayMap, device: u16| map.shards.iter().filter(|of| **of == device).count();
        let carry_out = |map: &mut ArrayMap| {
            map.moves = map.moves_left();
            let moved = map.moves.len();
            map.switch();
            moved
        };
        map.work = MapWork::Spread;
        for devices in 2..=40u16 {
            map.members.insert(devices - 1);
            assert_eq!(carry_out(&mut map), SHARDS / usize::from(devices), "what the new one needs");
            let counts = map.members.iter().map(|&device| count(&map, device));
            let (least, most) = (counts.clone().min().unwrap(), counts.max().unwrap());
            assert!(least > 0 && most - least <= 1);
            assert_eq!(carry_out(&mut map), 0);
        }
        for device in [7, 0, 39, 20] {
            map.work = MapWork::Remove(device);
            let had = count(&map, device);
            assert_eq!(carry_out(&mut map), had, "no others");
            map.members.remove(&device);
            let counts = map.members.iter().map(|&device| count(&map, device));
            assert!(counts.clone().max().unwrap() - counts.min().unwrap() <= 1);
        }
        assert_eq!(map.switches, 39 * 2 + 4);
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
