//! The index of a partition: a RACE hash table (Zuo and others, USENIX ATC 2021) of fixed size.
//!
//! Owns the layout of buckets and sub-tables, and which of them a key may be in. Promises that a key's two combined buckets are all of the places it can
//! have, and that buckets of another partition are refused. Must not know what slots say.
//!
//! ```text
//!  bucket    64 bytes: header {local depth u32, suffix u32}, 7 slots of 8 bytes
//!  group     3 buckets in a row: main 0, overflow, main 1
//!  combined  main 0 + overflow, or overflow + main 1: 128 bytes in a row, one read
//!  sub-table `groups` groups: one partition
//! ```
//!
//! * Slot `j` of bucket `b` of a partition has the number `7 b + j`.
//! * Of the key's hash (XXH3-64, seed 0): the highest `partition_bits` choose the partition, bits 42 to 49 are the fingerprint, bits 26 to 41 the tag, the lowest
//!   26 the bucket. With `g` groups: `i1 = low mod g`, `i2 = g + ((i1 xor tag * M) mod g)`, `M` an odd number. The first bucket of `i` is `i / 2 * 3`, and one more where
//!   `i` is odd; its main bucket is the first of the two where `i` is even, else the second.
//! * The two choices are in different halves, and yet may share an overflow bucket: where `g` is odd, `g - 1` and `g` are of one group. Whoever walks both passes over
//!   a slot that comes twice.
//! * `local depth` is `partition_bits`, `suffix` the number of the partition. Partitions do not split yet.

use hedgerow_row::le_bytes::{u32_at, u64_at};
use twox_hash::XxHash3_64;

use crate::error::{PoolError, Result};
use crate::word::SlotWord;

/// Bytes of a bucket.
pub const BUCKET_BYTES: usize = 64;
/// Slots of a bucket.
pub const BUCKET_SLOTS: usize = 7;
/// Bytes of a combined bucket.
pub const COMBINED_BYTES: usize = 2 * BUCKET_BYTES;
/// Bits of the hash that choose a partition, at most.
pub const PARTITION_BITS_MAX: u32 = 14;
/// Groups of a sub-table, at most.
pub const GROUPS_MAX: u32 = 1 << 16;

const BUCKETS_PER_GROUP: u32 = 3;
/// Buckets that one step of a walk looks at, at most: 12 KiB of the index.
const WALK_BUCKETS: u32 = 192;
const SLOT_BYTES: usize = 8;
const LOW_BITS: u32 = 26;
const TAG_SHIFT: u32 = 26;
const FINGERPRINT_SHIFT: u32 = 42;
const TAG_MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// The hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// That of `key`.
    pub fn of(key: &[u8]) -> KeyHash {
        KeyHash(XxHash3_64::oneshot(key))
    }

    /// The partition, one of `1 << partition_bits`.
    pub fn partition(self, partition_bits: u32) -> u16 {
        self.0.checked_shr(64 - partition_bits).unwrap_or(0) as u16
    }

    /// A hash that leads into a partition.
    pub(crate) fn in_partition(partition: u16, partition_bits: u32) -> KeyHash {
        KeyHash(u64::from(partition).checked_shl(64 - partition_bits).unwrap_or(0))
    }

    /// The eight bits that slots keep.
    pub fn fingerprint(self) -> u8 {
        (self.0 >> FINGERPRINT_SHIFT) as u8
    }

    /// The first buckets of the two combined ones.
    pub fn combined(self, groups: u32) -> [Combined; 2] {
        let groups = u64::from(groups.max(1));
        let low = self.0 & ((1 << LOW_BITS) - 1);
        let tag = (self.0 >> TAG_SHIFT) & 0xFFFF;
        let first = low % groups;
        let second = groups + (first ^ tag.wrapping_mul(TAG_MULTIPLIER)) % groups;
        [Combined::at(first), Combined::at(second)]
    }
}

/// Two buckets in a row, one of which is the main one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Combined {
    /// The first of the two.
    pub first_bucket: u32,
    /// Whether the main one is the first.
    pub main_is_first: bool,
}

impl Combined {
    fn at(index: u64) -> Combined {
        let odd = index % 2;
        Combined {
            first_bucket: (index / 2 * u64::from(BUCKETS_PER_GROUP) + odd) as u32,
            main_is_first: odd == 0,
        }
    }

    /// Offset in the sub-table.
    pub fn offset(self) -> u32 {
        self.first_bucket * BUCKET_BYTES as u32
    }

    /// The slots in `bytes`, which were read at [`offset`](Combined::offset), those of the main bucket first.
    ///
    /// # Errors
    /// Where there are too few bytes, or the buckets are those of another partition.
    pub fn decode(self, bytes: &[u8], header: BucketHeader) -> Result<Vec<(u32, SlotWord)>> {
        if bytes.len() < COMBINED_BYTES {
            return Err(PoolError::TooShort("combined bucket", bytes.len(), COMBINED_BYTES));
        }
        let mut slots = Vec::with_capacity(2 * BUCKET_SLOTS);
        let order = if self.main_is_first { [0, 1] } else { [1, 0] };
        for bucket in order {
            let bytes = &bytes[bucket * BUCKET_BYTES..(bucket + 1) * BUCKET_BYTES];
            header.check(bytes)?;
            let number = (self.first_bucket + bucket as u32) * BUCKET_SLOTS as u32;
            for slot in 0..BUCKET_SLOTS {
                slots.push((number + slot as u32, SlotWord(u64_at(bytes, SLOT_BYTES * (1 + slot)))));
            }
        }
        Ok(slots)
    }
}

/// A free slot of the emptier of two combined buckets, of the main bucket rather than of the overflow bucket.
pub(crate) fn free_slot(slots: &[Vec<(u32, SlotWord)>; 2]) -> Option<(u32, SlotWord)> {
    let count = |slots: &Vec<(u32, SlotWord)>| slots.iter().filter(|(_, word)| word.is_free()).count();
    let emptier = if count(&slots[1]) > count(&slots[0]) { &slots[1] } else { &slots[0] };
    emptier.iter().find(|(_, word)| word.is_free()).copied()
}

/// The slots in `bytes`, which are those of whole buckets in a row, `first_bucket` the first of them.
///
/// # Errors
/// Where a bucket is one of another partition.
pub(crate) fn slots_in_row(
    bytes: &[u8],
    first_bucket: u32,
    header: BucketHeader,
) -> Result<Vec<(u32, SlotWord)>> {
    let mut slots = Vec::new();
    for (number, bucket) in (first_bucket..).zip(bytes.chunks_exact(BUCKET_BYTES)) {
        header.check(bucket)?;
        let words = bucket[SLOT_BYTES..].chunks_exact(SLOT_BYTES);
        let first = number * BUCKET_SLOTS as u32;
        slots.extend((first..).zip(words.map(|word| SlotWord(u64_at(word, 0)))));
    }
    Ok(slots)
}

/// The buckets that one step of a walk looks at, from that of a slot on; none behind the end of the sub-table.
pub(crate) fn walk_buckets(slot: u32, groups: u32) -> std::ops::Range<u32> {
    let end = groups * BUCKETS_PER_GROUP;
    let first = (slot / BUCKET_SLOTS as u32).min(end);
    first..end.min(first + WALK_BUCKETS)
}

/// What each bucket of a partition begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BucketHeader {
    /// Bits of the hash that lead here.
    pub local_depth: u32,
    /// What these bits are.
    pub suffix: u32,
}

impl BucketHeader {
    fn check(self, bucket: &[u8]) -> Result<()> {
        let found = BucketHeader { local_depth: u32_at(bucket, 0), suffix: u32_at(bucket, 4) };
        if found.local_depth != self.local_depth {
            let (is, must) = (found.local_depth.into(), self.local_depth.into());
            return Err(PoolError::Contradicts("bucket's depth", is, must));
        }
        if found.suffix != self.suffix {
            return Err(PoolError::Contradicts("bucket's suffix", found.suffix.into(), self.suffix.into()));
        }
        Ok(())
    }

    /// A sub-table in which nothing is.
    pub fn empty_table(self, groups: u32) -> Vec<u8> {
        let mut bytes = vec![0; table_bytes(groups)];
        for bucket in bytes.chunks_exact_mut(BUCKET_BYTES) {
            bucket[..4].copy_from_slice(&self.local_depth.to_le_bytes());
            bucket[4..8].copy_from_slice(&self.suffix.to_le_bytes());
        }
        bytes
    }
}

/// Bytes of a sub-table.
pub fn table_bytes(groups: u32) -> usize {
    groups as usize * BUCKETS_PER_GROUP as usize * BUCKET_BYTES
}

/// Slots of a sub-table.
pub fn table_slots(groups: u32) -> u32 {
    groups * BUCKETS_PER_GROUP * BUCKET_SLOTS as u32
}

/// Offset of a slot in its sub-table.
pub fn slot_offset(slot: u32) -> u32 {
    let (bucket, at) = (slot / BUCKET_SLOTS as u32, slot % BUCKET_SLOTS as u32);
    bucket * BUCKET_BYTES as u32 + SLOT_BYTES as u32 * (1 + at)
}

/// Groups a sub-table needs so that `keys` keys over all partitions take 60 % of the slots.
pub fn groups_for(keys: u64, partitions: u64) -> u32 {
    let slots = u64::from(BUCKETS_PER_GROUP) * BUCKET_SLOTS as u64;
    let groups = (keys * 10).div_ceil(6 * slots * partitions.max(1));
    groups.clamp(1, u64::from(GROUPS_MAX)) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const HEADER: BucketHeader = BucketHeader { local_depth: 3, suffix: 5 };

    #[test]
    fn golden() {
        let hash = KeyHash::of(b"hedgerow");
        assert_eq!(hash.0, 0x522b752161993df2);
        assert_eq!((hash.partition(10), hash.fingerprint()), (328, 221));
        assert_eq!(hash.combined(776).map(|combined| combined.first_bucket), [1119, 1239]);
        let table = HEADER.empty_table(1);
        assert_eq!((table.len(), &table[64..72]), (192, &[3, 0, 0, 0, 5, 0, 0, 0][..]));
        assert_eq!([slot_offset(0), slot_offset(6), slot_offset(7)], [8, 56, 72]);
        assert_eq!(groups_for(10_000_000, 1024), 776);
    }

    #[test]
    fn all_slots_of_a_key_are_inside_of_the_table_and_its_own() {
        for groups in [1, 2, 3, 7, 776] {
            let mut reached = BTreeSet::new();
            for key in 0..5000u32 {
                let hash = KeyHash::of(&key.to_le_bytes());
                let [first, second] = hash.combined(groups);
                for combined in [first, second] {
                    assert!(combined.offset() as usize + COMBINED_BYTES <= table_bytes(groups));
                    reached.insert(combined.first_bucket);
                }
                let share = first.first_bucket.abs_diff(second.first_bucket) < 2;
                assert!(groups % 2 == 1 || !share, "only an odd number of groups lets two choices touch");
            }
            assert_eq!(reached.len(), 2 * groups as usize, "every combined bucket is somebody's");
        }
    }

    #[test]
    fn the_main_bucket_comes_first() {
        let table = HEADER.empty_table(1);
        let even = Combined::at(0).decode(&table[..128], HEADER).unwrap();
        let odd = Combined::at(1).decode(&table[64..], HEADER).unwrap();
        assert_eq!((even.len(), even[0].0, even[7].0), (14, 0, 7));
        assert_eq!((odd.len(), odd[0].0, odd[7].0), (14, 14, 7));
    }

    #[test]
    fn buckets_of_others_are_refused() {
        let table = HEADER.empty_table(1);
        let at = Combined::at(0);
        let deeper = BucketHeader { local_depth: 4, ..HEADER };
        let other = BucketHeader { suffix: 4, ..HEADER };
        assert_eq!(at.decode(&table[..128], deeper), Err(PoolError::Contradicts("bucket's depth", 3, 4)));
        assert_eq!(at.decode(&table[..128], other), Err(PoolError::Contradicts("bucket's suffix", 5, 4)));
        assert_eq!(at.decode(&table[..127], HEADER), Err(PoolError::TooShort("combined bucket", 127, 128)));
    }
}
