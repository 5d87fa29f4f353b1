//! Which group of L0 has the newest entry of a key: a cuckoo filter from which millions of keys are deleted by one store.
//!
//! Owns the table of tags and groups. Promises never to deny a key of a group that whoever asks can see; of other keys about one in 8,000 is sent to a group in vain. Must not know what
//! a group is, nor what is in it: it has hashes, and numbers that rise.
//!
//! A slot is a tag of 16 bits and the number of a group, 16 bits of it: one word, so that no reader sees the tag of one key with the group of another. A key has two buckets of four slots, each
//! found from the other by its tag alone (Fan, Andersen, Kaminsky, Mitzenmacher: "Cuckoo Filter: Practically Better Than Bloom", 2014).
//!
//! * **Of any size.** The other bucket is that which comes to a sum with the first that the tag alone says, so that their number need be no power of two: memory is what the keys need, and not up to twice as much.
//! * **Update in place.** There is one slot for a tag in its two buckets: the next group with such a key writes its number there. So the number is a bound: a key is in that group, or
//!   in an older one, or in none.
//! * **Lazy deletion** (BushStore, ICDE 2024). Groups leave L0 the oldest first, and what they left counts as deleted as soon as the *watermark* is above their number: one
//!   store. Their slots are taken by whoever needs one.
//! * **No answer is better than a wrong one.** A slot is taken only once the watermark is above its group, and a reader looks at the watermark after the slots: one whose groups are older
//!   than that is told [`FilterLook::Unknown`], and asks them all. (He holds an old version of the levels, in which groups are left that have gone since.)
//! * **Kicks.** Where no slot is free, slots move to their other buckets along a path, the last of it first: each is written where it goes before it is overwritten where it was, and a count rises between the two.
//!   A reader who found nothing, and sees that the count has risen, looks again.
//! * **Full.** Where no path is found among [`LOOKED_AT_MAX`] buckets the filter takes no more. It is not right any more then, for a key is missing: whoever fills it lets nobody ask, and makes a larger one.
//!
//! One thread fills it; any number look.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Slots of a bucket: one line of the processor's caches has four buckets.
const WAYS: usize = 4;
/// Buckets that are looked at for a free slot, at most. Those that are next to one another come first, so that paths are short: five steps.
const LOOKED_AT_MAX: usize = 2_000;
/// Keys for each 20 slots, at most: beyond that paths become long.
const KEYS_OF_20_SLOTS: u64 = 19;
const BUCKET_BYTES: u64 = (WAYS * size_of::<AtomicU32>()) as u64;

/// The filter of L0.
#[derive(Debug)]
pub struct GroupFilter {
    buckets: Box<[[AtomicU32; WAYS]]>,
    /// Groups with lower numbers have gone from L0. With the number of the newest it tells which of the 16 bits in a slot are still of a group.
    watermark: AtomicU64,
    /// How often a slot has moved.
    moved: AtomicU64,
}

/// What the filter says of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterLook {
    /// In no group that the asker sees.
    Nowhere,
    /// In the group of this number, or an older one, or in none.
    UpTo(u64),
    /// The filter knows nothing of the groups that the asker sees.
    Unknown,
}

/// The filter has no slot for a key, and is not right without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterFull;

/// A slot's tag and the lower half of its group's number; 0: free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FilterSlot(u32);

impl FilterSlot {
    const FREE: FilterSlot = FilterSlot(0);

    fn new(tag: u16, group: u64) -> FilterSlot {
        FilterSlot(u32::from(tag) << 16 | u32::from(group as u16))
    }

    fn tag(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The number of the group: the one of those with its lower half that is next to `near`, from 32,768 below it on.
    fn group(self, near: u64) -> u64 {
        let ahead = (self.0 as u16).wrapping_sub(near as u16);
        near.wrapping_add_signed(i64::from(ahead.cast_signed()))
    }

    fn is_free(self) -> bool {
        self == FilterSlot::FREE
    }
}

fn buckets_for(keys: u64) -> u64 {
    let slots = (keys * 20).div_ceil(KEYS_OF_20_SLOTS).max(1);
    slots.div_ceil(WAYS as u64)
}

impl GroupFilter {
    /// For so many keys; `oldest` is the number of the oldest group that it will be asked about.
    pub fn for_keys(keys: u64, oldest: u64) -> GroupFilter {
        GroupFilter {
            buckets: (0..buckets_for(keys)).map(|_| Default::default()).collect(),
            watermark: AtomicU64::new(oldest),
            moved: AtomicU64::new(0),
        }
    }

    /// Bytes of memory of one for so many keys.
    pub fn bytes_for_keys(keys: u64) -> u64 {
        buckets_for(keys) * BUCKET_BYTES
    }

    /// How many keys one has room for that takes so many bytes.
    pub fn keys_for_bytes(bytes: u64) -> u64 {
        bytes / BUCKET_BYTES / 20 * WAYS as u64 * KEYS_OF_20_SLOTS
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.buckets) as u64
    }

    /// The tag of a key, never 0, and its two buckets.
    fn place_of(&self, hash: u64) -> (u16, [usize; 2]) {
        let tag = (hash as u16).max(1);
        let first = self.bucket_of((hash >> 32) as u32);
        (tag, [first, self.other(first, tag)])
    }

    /// The bucket of a hash: its share of all hashes, of all buckets, however many there are.
    fn bucket_of(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.buckets.len() as u64) >> 32) as usize
    }

    /// The other bucket of a tag; of that it is this one: the two come to the same sum, modulo the number of buckets.
    fn other(&self, bucket: usize, tag: u16) -> usize {
        let sum = self.bucket_of(u32::from(tag).wrapping_mul(0x9e37_79b1));
        if sum >= bucket { sum - bucket } else { sum + self.buckets.len() - bucket }
    }

    fn entry(&self, bucket: usize, way: usize) -> FilterSlot {
        // What is read of a slot tells what was written before it: where it was moved from, or above which watermark it was taken.
        FilterSlot(self.buckets[bucket][way].load(Ordering::Acquire))
    }

    fn set_entry(&self, (bucket, way): (usize, usize), entry: FilterSlot) {
        self.buckets[bucket][way].store(entry.0, Ordering::Release);
    }

    /// Where the tag has a slot in one of these buckets.
    fn slot_of(&self, buckets: [usize; 2], tag: u16) -> Option<((usize, usize), FilterSlot)> {
        let slots = buckets.into_iter().flat_map(|bucket| (0..WAYS).map(move |way| (bucket, way)));
        slots.map(|slot| (slot, self.entry(slot.0, slot.1))).find(|(_, entry)| entry.tag() == tag)
    }

    /// Starts loading what a look for a key of this hash looks at.
    pub fn prefetch(&self, hash: u64) {
        let (_, buckets) = self.place_of(hash);
        buckets.into_iter().for_each(|bucket| hedgerow_device::prefetch(&self.buckets[bucket]));
    }

    /// Looks for a key of this hash. `oldest` and `newest` are the numbers of the groups that the asker sees, both included.
    pub fn look(&self, hash: u64, oldest: u64, newest: u64) -> FilterLook {
        let (tag, buckets) = self.place_of(hash);
        loop {
            let moved = self.moved.load(Ordering::Acquire);
            let found = self.slot_of(buckets, tag);
            if self.watermark.load(Ordering::Acquire) > oldest {
                return FilterLook::Unknown;
            }
            match found {
                // A group that came since the asker's levels were made: what the slot said of older ones is gone.
                Some((_, entry)) => match entry.group(newest) {
                    group if group < oldest => return FilterLook::Nowhere,
                    group => return FilterLook::UpTo(group.min(newest)),
                },
                None if self.moved.load(Ordering::Acquire) == moved => return FilterLook::Nowhere,
                None => {}
            }
        }
    }

    /// A key of this hash is in the group of this number, which is no lower than those before, and less than 32,768 above the watermark. Not visible to those who ask before the group is.
    ///
    /// # Errors
    /// If there is no slot: nobody may ask the filter any more.
    pub fn insert(&self, hash: u64, group: u64) -> Result<(), FilterFull> {
        let (tag, buckets) = self.place_of(hash);
        let entry = FilterSlot::new(tag, group);
        // Whoever sees that a slot was taken, or has another group, sees as well above which watermark.
        let watermark = self.watermark.load(Ordering::Acquire);
        if let Some((slot, _)) = self.slot_of(buckets, tag) {
            self.set_entry(slot, entry);
            return Ok(());
        }
        let free = buckets.into_iter().find_map(|bucket| self.free_in(bucket, watermark));
        let slot = free.or_else(|| self.make_free(buckets, watermark)).ok_or(FilterFull)?;
        self.set_entry(slot, entry);
        Ok(())
    }

    /// Groups below this number have gone from L0.
    pub fn raise_watermark(&self, oldest: u64) {
        self.watermark.fetch_max(oldest, Ordering::AcqRel);
    }

    /// A slot that is free, or of a group that has gone.
    fn free_in(&self, bucket: usize, watermark: u64) -> Option<(usize, usize)> {
        let ways = (0..WAYS).map(|way| (way, self.entry(bucket, way)));
        let is_free = |entry: FilterSlot| entry.is_free() || entry.group(watermark) < watermark;
        ways.filter(|(_, entry)| is_free(*entry)).map(|(way, _)| (bucket, way)).next()
    }

    /// Makes a slot free in one of two full buckets by moving others along the shortest path to a bucket with a free one.
    fn make_free(&self, buckets: [usize; 2], watermark: u64) -> Option<(usize, usize)> {
        let mut reached: Vec<Reached> = buckets.map(|bucket| Reached { bucket, from: None }).into();
        let mut next = 0;
        while next < reached.len().min(LOOKED_AT_MAX) {
            for way in 0..WAYS {
                let bucket = self.other(reached[next].bucket, self.entry(reached[next].bucket, way).tag());
                let to = Reached { bucket, from: Some((next, way)) };
                if let Some(free) = self.free_in(bucket, watermark) {
                    return Some(self.move_along(&reached, to, free));
                }
                if reached.len() < LOOKED_AT_MAX && !path_to(&reached, to).any(|(on_it, _)| on_it == bucket) {
                    reached.push(to);
                }
            }
            next += 1;
        }
        None
    }

    /// The last slot of the path to a bucket goes to `free`, which is in that, and each of the others to the next one's place. Returns the first, which is to be overwritten.
    fn move_along(&self, reached: &[Reached], to: Reached, free: (usize, usize)) -> (usize, usize) {
        let mut into = free;
        for from in path_to(reached, to) {
            self.set_entry(into, self.entry(from.0, from.1));
            // A reader who saw neither the one nor the other has seen what overwrites the latter, and this with it.
            self.moved.fetch_add(1, Ordering::AcqRel);
            into = from;
        }
        into
    }
}

/// A bucket on the way to a free slot.
#[derive(Debug, Clone, Copy)]
struct Reached {
    bucket: usize,
    /// From which of those that were reached before, and by which of its slots; none of the two that a key has.
    from: Option<(usize, usize)>,
}

/// The slots by which a bucket was reached, the last of them first. No bucket is among them twice.
fn path_to(reached: &[Reached], to: Reached) -> impl Iterator<Item = (usize, usize)> {
    std::iter::successors(to.from, |(at, _)| reached[*at].from).map(|(at, way)| (reached[at].bucket, way))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn hash(n: u64) -> u64 {
        let mixed = (n.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ (n >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb)
    }

    #[test]
    fn it_takes_as_many_keys_as_it_is_made_for() {
        for keys in [1, 4, 100, 10_000, 120_000] {
            let filter = GroupFilter::for_keys(keys, 1);
            for n in 0..keys {
                assert_eq!(filter.insert(hash(n), 1 + n * 7 / keys), Ok(()), "{n} of {keys}");
            }
            for n in 0..keys {
                let look = filter.look(hash(n), 1, 7);
                assert!(
                    matches!(look, FilterLook::UpTo(group) if group > n * 7 / keys),
                    "{n} of {keys}: {look:?}"
                );
            }
        }
    }

    #[test]
    fn it_is_filled_to_19_of_20_slots_and_errs_seldom() {
        let slots = 1u64 << 17;
        let keys = slots * 19 / 20;
        let filter = GroupFilter::for_keys(keys, 1);
        assert_eq!((filter.bytes(), GroupFilter::bytes_for_keys(keys)), (slots * 4, slots * 4));
        for n in 0..keys {
            assert_eq!(filter.insert(hash(n), 1), Ok(()), "{n} of {keys}");
        }
        let in_vain = (keys..2 * keys).filter(|n| filter.look(hash(*n), 1, 1) != FilterLook::Nowhere).count();
        assert!(in_vain as u64 * 4_000 < keys, "{in_vain} of {keys}");
        let more = (keys..2 * keys).take_while(|n| filter.insert(hash(*n), 1).is_ok()).count() as u64;
        assert!(keys + more < slots, "it says so when it is full");
    }

    /// Millions of keys come and go, and the newest group of each that is there is never denied.
    #[test]
    fn what_has_gone_makes_room_for_what_comes() {
        const KEYS_OF_A_GROUP: u64 = 1_000;
        let filter = GroupFilter::for_keys(8 * KEYS_OF_A_GROUP, 1);
        let mut newest_of: HashMap<u64, u64> = HashMap::new();
        let mut state = 7;
        for group in 1..=2_000u64 {
            let oldest = group.saturating_sub(7).max(1);
            filter.raise_watermark(oldest);
            for _ in 0..KEYS_OF_A_GROUP {
                state = hash(state);
                let key = state % 50_000;
                assert_eq!(filter.insert(hash(key), group), Ok(()), "group {group}");
                newest_of.insert(key, group);
            }
            if group % 100 != 0 {
                continue;
            }
            let (mut live, mut in_vain) = (0, 0);
            for key in 0..50_000 {
                let newest = newest_of.get(&key).copied().unwrap_or(0);
                let look = filter.look(hash(key), oldest, group);
                match newest >= oldest {
                    true => {
                        live += 1;
                        assert!(matches!(look, FilterLook::UpTo(at) if at >= newest), "{key}: {look:?}");
                        in_vain += u64::from(look != FilterLook::UpTo(newest));
                    }
                    false => in_vain += u64::from(look != FilterLook::Nowhere),
                }
                // One who sees groups that have gone is told that nobody knows.
                if oldest > 1 {
                    assert_eq!(filter.look(hash(key), oldest - 1, group), FilterLook::Unknown);
                }
            }
            assert!(live > 5_000 && in_vain < 50, "{live} live, {in_vain} in vain");
        }
    }

    /// A number is as good after it has passed what a slot has room for.
    #[test]
    fn numbers_may_be_larger_than_a_slot_has_room_for() {
        for first in [65_530u64, 1 << 20, (1 << 40) - 3] {
            let filter = GroupFilter::for_keys(100, first);
            for n in 0..10 {
                filter.insert(hash(n), first + n).unwrap();
            }
            for n in 0..10 {
                assert_eq!(filter.look(hash(n), first, first + 9), FilterLook::UpTo(first + n));
                assert_eq!(filter.look(hash(n), first, first + 3), FilterLook::UpTo(first + n.min(3)));
            }
            filter.raise_watermark(first + 5);
            for n in 0..10 {
                let look = filter.look(hash(n), first + 5, first + 9);
                assert_eq!(look, if n < 5 { FilterLook::Nowhere } else { FilterLook::UpTo(first + n) });
            }
        }
    }

    /// Slots move while others look for their keys.
    #[test]
    fn no_reader_misses_a_key_while_slots_move() {
        let keys = 40_000u64;
        let filter = GroupFilter::for_keys(62_000, 1);
        (0..keys).for_each(|n| filter.insert(hash(n), 1).unwrap());
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for part in 0..2 {
                let (filter, is_done) = (&filter, &is_done);
                scope.spawn(move || {
                    while !is_done.load(Ordering::Relaxed) {
                        for n in (part..keys).step_by(2) {
                            assert_ne!(filter.look(hash(n), 1, 1), FilterLook::Nowhere, "{n}");
                        }
                    }
                });
            }
            (keys..62_000).for_each(|n| filter.insert(hash(n), 1).unwrap());
            is_done.store(true, Ordering::Relaxed);
        });
    }
}
