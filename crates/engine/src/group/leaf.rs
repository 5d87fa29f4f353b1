//! The bytes of a leaf: keys in order, each with a slot.
//!
//! Owns [`LeafBuilder`], which packs entries into leaves, and [`Leaf`], which looks into one. Promises that a leaf which [verifies](Leaf::parse) is what was written at that place of that extent. Must not know
//! where extents are, nor what a slot leads to.
//!
//! Saved indexes lead to leaves, whose layout is a part of their version (`manifest/saved_index.rs`).
//!
//! A leaf is written once and never changed: 1 KiB, or as many of them as its only key needs.
//!
//! ```text
//!  0     4      6      8          12   16
//!  +-----+------+------+----------+----+--------+------+---------+-------+------+----------------+
//!  | crc | count| KiB  | bytes of |head| prefix | tags | padding | slots | ends | suffixes ... 0 |
//!  |     | n: 2 |  2   | prefix 4 |crc |        |  n   | to 8    | 8 n   | 2 n  |                |
//!  +-----+------+------+----------+----+--------+------+---------+-------+------+----------------+
//! ```
//! * `crc`: the crc32c of all behind it, seeded with the number of the extent (of its segment: each use of an extent has another) and the leaf's place in it: a leaf of another extent, or of another place, does not verify.
//! * `head crc`: the same of what stands before it, the other checksum left out, and of the prefix and the tags: who is told by these that a key is not there has looked at a line or two, and not at all of the leaf.
//! * `prefix`: what all keys of the leaf begin with; of one key all, however long it is. `ends`: where each suffix ends, counted from the first. A key of 24 bytes of which 8 are common takes 27 bytes.
//! * `tags`: eight bits of each key's hash (BushStore's fingerprints): who looks for a key compares the suffixes of those alone that have its tag, one in 256 of the others.
//! * Integers are little-endian. What is behind the last suffix is zero.

use std::cmp::Ordering;

use hedgerow_device::crc32c;

/// Bytes of a leaf, unless its only key needs more: then a multiple of it.
pub const LEAF_BYTES: usize = 1024;
const HEADER_BYTES: usize = 16;
/// Where the parts of a leaf begin.
#[derive(Debug, Clone, Copy)]
struct LeafLayout {
    count: usize,
    tags: usize,
    slots: usize,
    ends: usize,
    suffixes: usize,
}

impl LeafLayout {
    fn of(count: usize, prefix: usize) -> LeafLayout {
        let tags = HEADER_BYTES + prefix;
        let slots = (tags + count).next_multiple_of(8);
        let ends = slots + 8 * count;
        LeafLayout { count, tags, slots, ends, suffixes: ends + 2 * count }
    }

    /// As a leaf says that begins with these bytes.
    fn said_by(bytes: &[u8]) -> Option<LeafLayout> {
        let count = u16::from_le_bytes(bytes.get(4..6)?.try_into().ok()?);
        let prefix = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?);
        Some(LeafLayout::of(usize::from(count), prefix as usize))
    }
}

/// The tag of a key with this hash.
fn tag_of(hash: u64) -> u8 {
    (hash >> 56) as u8
}

/// Gathers the entries of one leaf after the other.
#[derive(Debug, Default)]
pub struct LeafBuilder {
    /// The keys, end to end, and where each ends.
    keys: Vec<u8>,
    ends: Vec<usize>,
    slots: Vec<u64>,
    tags: Vec<u8>,
}

impl LeafBuilder {
    fn key(&self, n: usize) -> &[u8] {
        let start = if n == 0 { 0 } else { self.ends[n - 1] };
        &self.keys[start..self.ends[n]]
    }

    /// Bytes that all entries begin with, of those that are there and of `next`.
    fn prefix_with(&self, next: &[u8]) -> usize {
        match self.ends.is_empty() {
            true => next.len(),
            // In order: what the first and the last have in common all have.
            false => self.key(0).iter().zip(next).take_while(|(one, other)| one == other).count(),
        }
    }

    /// Whether there is no entry yet.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many entries are there.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of a leaf of this key alone.
    pub fn bytes_for(key: &[u8]) -> usize {
        LeafLayout::of(1, key.len()).suffixes.next_multiple_of(LEAF_BYTES)
    }

    /// Whether an entry of this key, above all before it, has room in the leaf. One alone always has.
    pub fn has_room_for(&self, key: &[u8]) -> bool {
        let (count, prefix) = (self.ends.len() + 1, self.prefix_with(key));
        let suffixes = self.keys.len() + key.len() - count * prefix;
        self.is_empty() || LeafLayout::of(count, prefix).suffixes + suffixes <= LEAF_BYTES
    }

    /// Adds an entry.
    pub fn push(&mut self, key: &[u8], slot: u64, hash: u64) {
        debug_assert!(self.has_room_for(key));
        debug_assert!(self.is_empty() || self.key(self.ends.len() - 1) < key, "keys come in order");
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
        self.slots.push(slot);
        self.tags.push(tag_of(hash));
    }

    /// Adds the bytes of the leaf, which is to be at `place` of the extent of this number, to `out`, and returns how many KiB it takes; the next begins empty.
    pub fn finish(&mut self, number: u64, place: u32, out: &mut Vec<u8>) -> u32 {
        let count = self.ends.len();
        let prefix = if count == 0 { 0 } else { self.prefix_with(self.key(count - 1)) };
        let layout = LeafLayout::of(count, prefix);
        let used = layout.suffixes + self.keys.len() - count * prefix;
        let begins = out.len();
        out.resize(begins + used.max(1).next_multiple_of(LEAF_BYTES), 0);
        let bytes = &mut out[begins..];
        let kib = bytes.len() / LEAF_BYTES;
        bytes[4..6].copy_from_slice(&(count as u16).to_le_bytes());
        bytes[6..8].copy_from_slice(&(kib as u16).to_le_bytes());
        bytes[8..12].copy_from_slice(&(prefix as u32).to_le_bytes());
        if count > 0 {
            bytes[HEADER_BYTES..layout.tags].copy_from_slice(&self.key(0)[..prefix]);
        }
        bytes[layout.tags..layout.tags + count].copy_from_slice(&self.tags);
        let mut end = 0;
        for (n, slot) in self.slots.iter().enumerate() {
            let suffix = &self.key(n)[prefix..];
            let start = layout.suffixes + end;
            bytes[start..start + suffix.len()].copy_from_slice(suffix);
            end += suffix.len();
            bytes[layout.ends + 2 * n..][..2].copy_from_slice(&(end as u16).to_le_bytes());
            bytes[layout.slots + 8 * n..][..8].copy_from_slice(&slot.to_le_bytes());
        }
        let head = head_crc(bytes, layout, (number, place));
        bytes[12..16].copy_from_slice(&head.to_le_bytes());
        let crc = crc32c(seed(number, place), &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        let LeafBuilder { keys, ends, slots, tags } = self;
        keys.clear();
        ends.clear();
        slots.clear();
        tags.clear();
        kib as u32
    }
}

/// What a leaf's checksum begins with.
fn seed(number: u64, place: u32) -> u32 {
    // One behind the other: as a start of the sum, the place would part extents with numbers next to one another no better than the numbers do.
    let (number, place) = (number.to_le_bytes(), place.to_le_bytes());
    crc32c(crc32c(0, &number), &place)
}

/// The checksum of the head of a leaf.
fn head_crc(bytes: &[u8], layout: LeafLayout, (number, place): (u64, u32)) -> u32 {
    crc32c(crc32c(seed(number, place), &bytes[4..12]), &bytes[HEADER_BYTES..layout.tags + layout.count])
}

/// A leaf, looked into.
#[derive(Debug, Clone, Copy)]
pub struct Leaf<'a> {
    bytes: &'a [u8],
    layout: LeafLayout,
}

impl<'a> Leaf<'a> {
    /// How many bytes the leaf has that begins with these, as it says: to be known before it can be verified.
    pub fn bytes_of(head: &[u8]) -> Option<usize> {
        let kib = u16::from_le_bytes(head.get(6..8)?.try_into().ok()?);
        (kib > 0).then_some(usize::from(kib) * LEAF_BYTES)
    }

    /// The leaf at `place` of the extent of this number, if these bytes are that.
    pub fn parse(bytes: &'a [u8], number: u64, place: u32) -> Option<Leaf<'a>> {
        let bytes = bytes.get(..Leaf::bytes_of(bytes)?)?;
        let crc = u32::from_le_bytes(bytes[..4].try_into().ok()?);
        if crc32c(seed(number, place), &bytes[4..]) != crc {
            return None;
        }
        Leaf::trusted(bytes)
    }

    /// Whether the leaf at `place` of the extent of this number, if these bytes are that, may have this key, whose hash is that: by its head alone, which is all that is verified. Else it has not.
    pub fn may_have(bytes: &[u8], (number, place): (u64, u32), key: &[u8], hash: u64) -> Option<bool> {
        let layout = LeafLayout::said_by(bytes)?;
        let tags = bytes.get(layout.tags..layout.tags + layout.count)?;
        let crc = u32::from_le_bytes(bytes[12..16].try_into().ok()?);
        if head_crc(bytes, layout, (number, place)) != crc {
            return None;
        }
        Some(key.starts_with(&bytes[HEADER_BYTES..layout.tags]) && tags.contains(&tag_of(hash)))
    }

    /// The same of bytes that were verified before.
    pub fn trusted(bytes: &'a [u8]) -> Option<Leaf<'a>> {
        let leaf = Leaf { bytes, layout: LeafLayout::said_by(bytes)? };
        let layout = leaf.layout;
        // What follows may rely on it.
        (layout.suffixes <= bytes.len() && leaf.suffix_end(layout.count) <= bytes.len()).then_some(leaf)
    }

    /// How many entries it has.
    pub fn count(&self) -> usize {
        self.layout.count
    }

    /// Bytes of the leaf.
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// The key of entry `n`, in the place of what `key` is.
    pub fn key_into(&self, n: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.suffix(n));
    }

    /// Where the first `n` suffixes end.
    fn suffix_end(&self, n: usize) -> usize {
        let Some(last) = n.checked_sub(1) else { return self.layout.suffixes };
        let at = self.layout.ends + 2 * last;
        let end = self.bytes.get(at..at + 2).map_or([0; 2], |end| [end[0], end[1]]);
        self.layout.suffixes + usize::from(u16::from_le_bytes(end))
    }

    /// What all keys begin with.
    pub fn prefix(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..self.layout.tags]
    }

    /// What follows in the key of entry `n`.
    pub fn suffix(&self, n: usize) -> &'a [u8] {
        self.bytes.get(self.suffix_end(n)..self.suffix_end(n + 1)).unwrap_or_default()
    }

    /// The slot of entry `n`.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn slot(&self, n: usize) -> u64 {
        let at = self.layout.slots + 8 * n;
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    /// The entry of this key, whose hash is that: its place.
    pub fn find(&self, key: &[u8], hash: u64) -> Option<usize> {
        let suffix = key.strip_prefix(self.prefix())?;
        let tags = &self.bytes[self.layout.tags..self.layout.tags + self.layout.count];
        let tag = tag_of(hash);
        let with_tag = tags.iter().enumerate().filter(|(_, of)| **of == tag).map(|(n, _)| n);
        with_tag.into_iter().find(|&n| self.suffix(n) == suffix)
    }

    /// The place of the first entry whose key is not below this one; as many as there are if all are.
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        let prefix = self.prefix();
        let common = prefix.len().min(key.len());
        match key[..common].cmp(&prefix[..common]) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.count(),
            Ordering::Equal if key.len() < prefix.len() => return 0,
            Ordering::Equal => {}
        }
        let suffix = &key[common..];
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = (low + high) / 2;
            match self.suffix(middle) < suffix {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: &[u8]) -> u64 {
        key.iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    }

    /// Packs all, and gives each leaf's bytes with what is in it.
    fn finished(builder: &mut LeafBuilder, place: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let kib = builder.finish(7, place as u32, &mut bytes);
        assert_eq!(bytes.len(), kib as usize * LEAF_BYTES);
        bytes
    }

    fn leaves(keys: &[Vec<u8>]) -> Vec<(Vec<u8>, std::ops::Range<usize>)> {
        let (mut builder, mut leaves, mut from) = (LeafBuilder::default(), Vec::new(), 0);
        for (n, key) in keys.iter().enumerate() {
            if !builder.has_room_for(key) {
                leaves.push((finished(&mut builder, leaves.len()), from..n));
                from = n;
            }
            builder.push(key, n as u64 + 1, hash(key));
        }
        leaves.push((finished(&mut builder, leaves.len()), from..keys.len()));
        leaves
    }

    fn check(keys: &[Vec<u8>]) -> usize {
        let all = leaves(keys);
        for (place, (bytes, of)) in all.iter().enumerate() {
            let leaf = Leaf::parse(bytes, 7, place as u32).unwrap();
            assert_eq!(leaf.count(), of.len());
            for (at, n) in of.clone().enumerate() {
                assert_eq!(leaf.find(&keys[n], hash(&keys[n])), Some(at));
                assert_eq!((leaf.slot(at), leaf.lower_bound(&keys[n])), (n as u64 + 1, at));
                assert_eq!([leaf.prefix(), leaf.suffix(at)].concat(), keys[n]);
                let mut above = keys[n].clone();
                above.push(0);
                let is_next = of.contains(&(n + 1)) && keys[n + 1] == above;
                assert_eq!(leaf.lower_bound(&above), at + 1);
                assert_eq!(leaf.find(&above, hash(&above)), is_next.then_some(at + 1));
            }
            assert_eq!((leaf.lower_bound(b""), leaf.lower_bound(&[0xff; 40])), (0, leaf.count()));
            assert!(Leaf::parse(bytes, 8, place as u32).is_none(), "of another group");
            assert!(Leaf::parse(bytes, 7, place as u32 + 1).is_none(), "of another place");
        }
        all.len()
    }

    #[test]
    fn what_was_packed_is_found() {
        let users: Vec<Vec<u8>> =
            (0..5_000u32).map(|n| format!("\0\0\0\x01user{n:020}").into_bytes()).collect();
        let count = check(&users);
        assert!(count * LEAF_BYTES <= users.len() * 28, "{count} leaves of {} keys", users.len());
        let numbers: Vec<Vec<u8>> = (0..3_000u64).map(|n| (n * 7919).to_be_bytes().to_vec()).collect();
        check(&numbers);
        for keys in [&users, &numbers] {
            let unused = |leaf: &[u8]| leaf.iter().rev().take_while(|byte| **byte == 0).count();
            let full = leaves(keys);
            let most = full[..full.len() - 1].iter().map(|(leaf, _)| unused(leaf)).max().unwrap();
            assert!(most < LEAF_BYTES / 8, "{most} bytes of a leaf are not used");
        }
        check(&[Vec::new()]);
        check(&[Vec::new(), vec![0], vec![0, 0], vec![1]]);
        let mut mixed: Vec<Vec<u8>> = (0..600usize).map(|n| vec![(n / 7) as u8; n * 53 % 1_900]).collect();
        mixed.extend([vec![9; 5_000], vec![9; 4 + (64 << 10)]]);
        mixed.sort();
        mixed.dedup();
        check(&mixed);
    }

    /// What is on the medium stays what it is.
    #[test]
    fn a_leaf_has_these_bytes() {
        let mut builder = LeafBuilder::default();
        builder.push(b"\0\0\0\x01ab", 0x0102_0304_0506_0708, 0xaa << 56);
        builder.push(b"\0\0\0\x01acd", 2, 0xbb << 56);
        let mut bytes = Vec::new();
        assert_eq!(builder.finish(5, 3, &mut bytes), 1);
        let expected: &[(usize, &[u8])] = &[
            (4, &[2, 0, 1, 0, 5, 0, 0, 0]),
            (16, b"\0\0\0\x01a"),
            (21, &[0xaa, 0xbb, 0]),
            (24, &[8, 7, 6, 5, 4, 3, 2, 1, 2, 0, 0, 0, 0, 0, 0, 0]),
            (40, &[1, 0, 3, 0]),
            (44, b"bcd"),
        ];
        for (at, part) in expected {
            assert_eq!(&bytes[*at..at + part.len()], *part, "at {at}");
        }
        assert!(bytes.len() == LEAF_BYTES && bytes[47..].iter().all(|byte| *byte == 0));
        let seed = crc32c(crc32c(0, &5u64.to_le_bytes()), &3u32.to_le_bytes());
        assert_eq!(bytes[..4], crc32c(seed, &bytes[4..]).to_le_bytes());
        assert_eq!(bytes[12..16], crc32c(crc32c(seed, &bytes[4..12]), &bytes[16..23]).to_le_bytes());
    }

    /// Numbers of extents are next to one another, and so are places.
    #[test]
    fn a_leaf_is_of_one_extent_and_place() {
        let mut builder = LeafBuilder::default();
        builder.push(b"key", 1, 2);
        let mut bytes = Vec::new();
        builder.finish(100, 50, &mut bytes);
        for (number, place) in (90..110).flat_map(|number| (40..60).map(move |place| (number, place))) {
            let is_it = (number, place) == (100, 50);
            assert_eq!(Leaf::parse(&bytes, number, place).is_some(), is_it, "{place} of {number}");
        }
    }

    #[test]
    fn each_flipped_bit_is_noticed() {
        let keys: Vec<Vec<u8>> = (0..30u32).map(|n| format!("key{n:08}").into_bytes()).collect();
        let bytes = leaves(&keys)[0].0.clone();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Leaf::parse(&flipped, 7, 0).is_none(), "bit {bit}");
            // A head that is not what was written denies no key.
            let denied =
                keys.iter().any(|key| Leaf::may_have(&flipped, (7, 0), key, hash(key)) == Some(false));
            assert!(!denied, "bit {bit}");
        }
        let is_there = |key: &[u8]| Leaf::may_have(&bytes, (7, 0), key, hash(key)).unwrap();
        assert!(keys.iter().all(|key| is_there(key)));
        let others = (30..2_030u32).filter(|n| is_there(format!("key{n:08}").as_bytes())).count();
        assert!((1..600).contains(&others), "one in nine of those that look like them: {others}");
        assert!(!is_there(b"kez") && !is_there(b"k"));
        assert_eq!(Leaf::may_have(&bytes[..20], (7, 0), &keys[0], hash(&keys[0])), None);
        assert_eq!(Leaf::may_have(&bytes, (7, 1), &keys[0], hash(&keys[0])), None, "of another place");
        assert!((0..bytes.len()).all(|len| Leaf::parse(&bytes[..len], 7, 0).is_none()));
    }

    /// Bytes that were never written by a builder end no look in a panic.
    #[test]
    fn nonsense_is_looked_into_without_harm() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..LEAF_BYTES)
                .map(|at| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if at < 16 && at % 2 == 1 || (10..12).contains(&at) { 0 } else { (state >> 56) as u8 }
                })
                .collect();
            if let Some(leaf) = Leaf::trusted(&bytes) {
                for n in 0..leaf.count() {
                    let key = [leaf.prefix(), leaf.suffix(n)].concat();
                    leaf.lower_bound(&key);
                    leaf.find(&key, hash(&key));
                    leaf.slot(n);
                }
            }
        }
    }
}
