//! An extent of leaves, one behind the other, and what is kept in memory to find the right one.
//!
//! Owns [`LeafExtentWriter`], which packs entries that come in the order of their keys, and [`LeafExtent`], which says where they are; and that the latter is made anew from the bytes alone. Promises that each leaf
//! it hands out verified. Must not know which extents are a group, nor how their bytes come to the medium.
//!
//! Leaves follow one another without links. A place is counted in KiB from the first.

use std::ops::Range;

use super::LeafPlace;
use super::leaf::{LEAF_BYTES, Leaf, LeafBuilder};
use super::separators::{Separators, SeparatorsBuilder, separator};

/// Where leaves are: one behind the other, of which few are longer than [`LEAF_BYTES`].
#[derive(Debug, Default)]
struct LeafPlaces {
    /// Leaves that are longer, and the place behind each.
    long: Vec<(u32, u32)>,
}

impl LeafPlaces {
    fn of(&self, leaf: u32) -> u32 {
        let before = self.long.partition_point(|(long, _)| *long < leaf);
        match before.checked_sub(1).map(|at| self.long[at]) {
            None => leaf,
            Some((long, behind)) => behind + (leaf - long - 1),
        }
    }

    fn push(&mut self, leaf: u32, place: u32, kib: u32) {
        if kib > 1 {
            self.long.push((leaf, place + kib));
        }
    }
}

/// What is known of the leaves so far.
#[derive(Debug, Default)]
struct LeavesSoFar {
    separators: SeparatorsBuilder,
    places: LeafPlaces,
    leaves: u32,
    entries: u64,
    least: Vec<u8>,
    greatest: Vec<u8>,
}

impl LeavesSoFar {
    /// Takes a leaf in that is at this place, with its first key and its last.
    fn push(&mut self, [first, last]: [&[u8]; 2], count: usize, (place, kib): (u32, u32)) {
        match self.leaves {
            0 => {
                self.least = first.to_vec();
                self.separators.push(first);
            }
            _ => self.separators.push(separator(&self.greatest, first)),
        }
        self.places.push(self.leaves, place, kib);
        self.leaves += 1;
        self.entries += count as u64;
        self.greatest.clear();
        self.greatest.extend_from_slice(last);
    }

    fn finish(self, place: LeafPlace, bytes: u32) -> LeafExtent {
        let LeavesSoFar { separators, places, leaves, entries, least, greatest } = self;
        let keys = [least.into(), greatest.into()];
        LeafExtent { place, separators: separators.finish(), places, leaves, entries, bytes, keys }
    }
}

/// Packs the entries of one extent.
#[derive(Debug)]
pub struct LeafExtentWriter {
    place: LeafPlace,
    bytes_max: usize,
    bytes: Vec<u8>,
    leaf: LeafBuilder,
    first: Vec<u8>,
    last: Vec<u8>,
    known: LeavesSoFar,
}

impl LeafExtentWriter {
    /// Of this extent, which takes no more than `bytes_max`.
    pub fn new(place: LeafPlace, bytes_max: usize) -> LeafExtentWriter {
        LeafExtentWriter {
            place,
            bytes_max,
            bytes: Vec::with_capacity(bytes_max),
            leaf: LeafBuilder::default(),
            first: Vec::new(),
            last: Vec::new(),
            known: LeavesSoFar::default(),
        }
    }

    /// Adds an entry, whose key is above those before; false if it belongs to the next extent, for this one is full.
    #[must_use]
    pub fn push(&mut self, key: &[u8], slot: u64, hash: u64) -> bool {
        if !self.leaf.has_room_for(key) {
            self.finish_leaf();
        }
        if self.leaf.is_empty() {
            if self.bytes.len() + LeafBuilder::bytes_for(key) > self.bytes_max {
                return false;
            }
            self.first.clear();
            self.first.extend_from_slice(key);
        }
        self.leaf.push(key, slot, hash);
        self.last.clear();
        self.last.extend_from_slice(key);
        true
    }

    fn finish_leaf(&mut self) {
        if self.leaf.is_empty() {
            return;
        }
        let (place, count) = ((self.bytes.len() / LEAF_BYTES) as u32, self.leaf.count());
        let kib = self.leaf.finish(self.place.number, place, &mut self.bytes);
        self.known.push([&self.first, &self.last], count, (place, kib));
    }

    /// The bytes of the extent, and what is kept of it in memory.
    pub fn finish(mut self) -> (Vec<u8>, LeafExtent) {
        self.finish_leaf();
        let extent = self.known.finish(self.place, self.bytes.len() as u32);
        (self.bytes, extent)
    }
}

/// What is kept in memory of an extent.
#[derive(Debug)]
pub struct LeafExtent {
    place: LeafPlace,
    separators: Separators,
    places: LeafPlaces,
    leaves: u32,
    entries: u64,
    bytes: u32,
    keys: [Box<[u8]>; 2],
}

/// A leaf that is not what was written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedLeaf {
    /// Its extent.
    pub extent: LeafPlace,
    /// Its place there, in KiB.
    pub place: u32,
}

impl DamagedLeaf {
    /// Where it begins, to whoever lends it.
    pub fn at(&self) -> u64 {
        self.extent.at + u64::from(self.place) * LEAF_BYTES as u64
    }
}

impl LeafExtent {
    /// Of this extent, whose leaves are `bytes`: all are read and verified.
    ///
    /// # Errors
    /// The first leaf that is not of this extent, or not in order.
    pub fn walked(extent: LeafPlace, bytes: &[u8]) -> Result<LeafExtent, DamagedLeaf> {
        let mut known = LeavesSoFar::default();
        let (mut at, mut first, mut last) = (0, Vec::new(), Vec::new());
        while at < bytes.len() {
            let place = (at / LEAF_BYTES) as u32;
            let leaf =
                Leaf::parse(&bytes[at..], extent.number, place).ok_or(DamagedLeaf { extent, place })?;
            let Some(end) = leaf.count().checked_sub(1) else { return Err(DamagedLeaf { extent, place }) };
            leaf.key_into(0, &mut first);
            leaf.key_into(end, &mut last);
            if known.leaves > 0 && known.greatest >= first || end > 0 && first >= last {
                return Err(DamagedLeaf { extent, place });
            }
            let kib = (leaf.bytes_len() / LEAF_BYTES) as u32;
            known.push([&first, &last], leaf.count(), (place, kib));
            at += leaf.bytes_len();
        }
        // An extent without a leaf was never written.
        if known.leaves == 0 {
            Err(DamagedLeaf { extent, place: 0 })
        } else {
            Ok(known.finish(extent, bytes.len() as u32))
        }
    }

    /// Which it is.
    pub fn place(&self) -> LeafPlace {
        self.place
    }

    /// The least key and the greatest.
    pub fn keys(&self) -> [&[u8]; 2] {
        self.keys.each_ref().map(|key| &**key)
    }

    /// How many keys it has.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of all leaves.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// How many leaves it has.
    pub fn leaves(&self) -> u32 {
        self.leaves
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        let keys: usize = self.keys.iter().map(|key| key.len()).sum();
        size_of::<LeafExtent>() + self.separators.memory_bytes() + self.places.long.capacity() * 8 + keys
    }

    /// The leaf that may have a key, if any may.
    pub fn leaf_of(&self, key: &[u8]) -> Option<u32> {
        self.separators.find(key).map(|leaf| leaf as u32)
    }

    /// Where a leaf is among the bytes of the extent.
    pub fn range_of(&self, leaf: u32) -> Range<usize> {
        let end = if leaf + 1 == self.leaves {
            self.bytes as usize / LEAF_BYTES
        } else {
            self.places.of(leaf + 1) as usize
        };
        self.places.of(leaf) as usize * LEAF_BYTES..end * LEAF_BYTES
    }

    /// Whether a leaf may have a key of this hash, by its head alone, of the bytes in [its range](LeafExtent::range_of).
    ///
    /// # Errors
    /// If the head is not what was written there.
    #[inline]
    pub fn may_have(&self, (leaf, bytes): (u32, &[u8]), key: &[u8], hash: u64) -> Result<bool, DamagedLeaf> {
        let (extent, place) = (self.place, self.places.of(leaf));
        Leaf::may_have(bytes, (extent.number, place), key, hash).ok_or(DamagedLeaf { extent, place })
    }

    /// A leaf, of the bytes in [its range](LeafExtent::range_of), verified.
    ///
    /// # Errors
    /// If it is not what was written there.
    pub fn leaf<'b>(&self, leaf: u32, bytes: &'b [u8]) -> Result<Leaf<'b>, DamagedLeaf> {
        let (extent, place) = (self.place, self.places.of(leaf));
        Leaf::parse(bytes, extent.number, place).ok_or(DamagedLeaf { extent, place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: &[u8]) -> u64 {
        key.iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    }

    fn place(number: u64) -> LeafPlace {
        LeafPlace { number, at: 0 }
    }

    fn extents_of(keys: &[Vec<u8>], bytes_max: usize) -> Vec<(Vec<u8>, LeafExtent)> {
        let (mut extents, mut writer) = (Vec::new(), LeafExtentWriter::new(place(1), bytes_max));
        for (n, key) in keys.iter().enumerate() {
            if !writer.push(key, n as u64 + 1, hash(key)) {
                extents.push(writer.finish());
                writer = LeafExtentWriter::new(place(extents.len() as u64 + 1), bytes_max);
                assert!(writer.push(key, n as u64 + 1, hash(key)));
            }
        }
        extents.push(writer.finish());
        extents
    }

    fn slot_in(bytes: &[u8], extent: &LeafExtent, key: &[u8]) -> Option<u64> {
        let leaf = extent.leaf_of(key)?;
        let leaf = extent.leaf(leaf, &bytes[extent.range_of(leaf)]).unwrap();
        leaf.find(key, hash(key)).map(|at| leaf.slot(at))
    }

    fn check(keys: &[Vec<u8>], bytes_max: usize) -> usize {
        let extents = extents_of(keys, bytes_max);
        let mut n = 0;
        for (bytes, extent) in &extents {
            assert!(bytes.len() <= bytes_max && bytes.len() == extent.bytes() as usize);
            let walked = LeafExtent::walked(extent.place(), bytes).unwrap();
            let described =
                |extent: &LeafExtent| format!("{:?} {} {}", extent.keys(), extent.entries(), extent.leaves());
            assert_eq!(described(&walked), described(extent));
            assert_eq!(extent.keys()[0], keys[n]);
            for key in &keys[n..n + extent.entries() as usize] {
                n += 1;
                assert_eq!(slot_in(bytes, extent, key), Some(n as u64));
                assert_eq!(slot_in(bytes, &walked, key), Some(n as u64));
                assert_eq!(slot_in(bytes, extent, &[key, [1].as_slice()].concat()), None);
            }
        }
        assert_eq!(n, keys.len());
        extents.len()
    }

    #[test]
    fn what_was_packed_is_found() {
        let user =
            |n: u64| format!("\0\0\0\x01user{:020}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes();
        let mut users: Vec<Vec<u8>> = (0..40_000u64).map(user).collect();
        users.sort();
        assert_eq!(check(&users, 256 << 10), 5);
        let (_, extent) = extents_of(&users, 4 << 20).pop().unwrap();
        let a_key = extent.memory_bytes() as f64 / extent.entries() as f64;
        assert!(a_key < 0.4, "{a_key} bytes of memory a key");
        let mut mixed: Vec<Vec<u8>> =
            (0..900usize).map(|n| vec![(n / 7) as u8; n * 53 % 1_900 + 1]).collect();
        mixed.extend([vec![9; 5_000], vec![9; 60_000]]);
        mixed.sort();
        mixed.dedup();
        assert!(check(&mixed, 128 << 10) > 5);
    }

    #[test]
    fn an_extent_with_a_flipped_bit_is_refused_and_a_cut_one_is_shorter() {
        let users: Vec<Vec<u8>> = (0..200u32).map(|n| format!("user{n:020}").into_bytes()).collect();
        let (bytes, extent) = extents_of(&users, 64 << 10).pop().unwrap();
        for at in (0..bytes.len()).step_by(13) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            assert_eq!(
                LeafExtent::walked(place(1), &flipped).unwrap_err(),
                DamagedLeaf { extent: place(1), place: (at / LEAF_BYTES) as u32 }
            );
        }
        let walked = |number, bytes: &[u8]| LeafExtent::walked(place(number), bytes);
        let refused = |number, bytes: &[u8]| walked(number, bytes).unwrap_err();
        assert_eq!(refused(2, &bytes), DamagedLeaf { extent: place(2), place: 0 }, "of another extent");
        assert_eq!(refused(1, &[]), DamagedLeaf { extent: place(1), place: 0 }, "of nothing");
        let swapped = [&bytes[LEAF_BYTES..2 * LEAF_BYTES], &bytes[..LEAF_BYTES]].concat();
        assert_eq!(refused(1, &swapped), DamagedLeaf { extent: place(1), place: 0 });
        let cut = walked(1, &bytes[..bytes.len() - LEAF_BYTES]).unwrap();
        assert!(cut.entries() < extent.entries());
    }
}
