//! A manager's local table: keys that came since the last merge.
//!
//! Owns [`LocalTable`]: up to 4,096 entries in a hash table of fixed size, under a Bloom filter (Bloom 1970), so that a read of a key that did not come lately passes it over. Must not know keys.
//!
//! The table is open, with linear probing, twice as large as its entries. The filter is blocked (Putze, Sanders and Singler 2007): all bits of a key are in one cache line, 16 bits a key.

use super::page::{IndexEntry, PackedEntry};

/// Entries before a merge.
pub(super) const LOCAL_ENTRIES: usize = 4096;
const SLOTS: usize = 2 * LOCAL_ENTRIES;
/// No entry is packed like this: of a place there are 40 bits.
const EMPTY: PackedEntry = [0, u64::MAX];
/// Lines of the filter, 512 bits each.
const FILTER_LINES: usize = 16 * LOCAL_ENTRIES / 512;
/// Bits that a key sets in its line.
const BITS_SET: u32 = 7;

#[derive(Debug)]
pub(super) struct LocalTable {
    slots: Box<[PackedEntry]>,
    len: usize,
    filter: Box<[[u64; 8]]>,
}

impl Default for LocalTable {
    fn default() -> LocalTable {
        LocalTable { slots: vec![EMPTY; SLOTS].into(), len: 0, filter: vec![[0; 8]; FILTER_LINES].into() }
    }
}

/// The line of a hash, and its bits there.
fn bits_of(hash: u64) -> (usize, impl Iterator<Item = (usize, u64)>) {
    let mixed = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let bits = (0..BITS_SET).map(move |n| {
        let bit = mixed >> (n * 9) & 511;
        ((bit / 64) as usize, 1 << (bit % 64))
    });
    ((hash >> 8) as usize % FILTER_LINES, bits)
}

/// The slot that a hash is looked for from on.
fn home_of(hash: u64) -> usize {
    (hash >> 20) as usize % SLOTS
}

impl LocalTable {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether there may be an entry with this hash.
    #[inline]
    pub(super) fn may_have(&self, hash: u64) -> bool {
        let (line, mut bits) = bits_of(hash);
        let line = &self.filter[line];
        bits.all(|(word, bit)| line[word] & bit != 0)
    }

    /// The entries with this hash, and their slots, which stay until the next insertion or removal.
    pub(super) fn find(&self, hash: u64) -> impl Iterator<Item = (usize, IndexEntry)> {
        let home = home_of(hash);
        (0..SLOTS)
            .map(move |n| (home + n) % SLOTS)
            .take_while(|&slot| self.slots[slot] != EMPTY)
            .filter(move |&slot| self.slots[slot][0] == hash)
            .map(|slot| (slot, IndexEntry::unpack(self.slots[slot])))
    }

    /// Changes an entry.
    pub(super) fn set(&mut self, slot: usize, entry: &IndexEntry) {
        self.slots[slot] = entry.pack();
    }

    /// One more entry; there are less than [`LOCAL_ENTRIES`].
    pub(super) fn insert(&mut self, entry: &IndexEntry) {
        let (line, bits) = bits_of(entry.hash);
        for (word, bit) in bits {
            self.filter[line][word] |= bit;
        }
        let mut slot = home_of(entry.hash);
        while self.slots[slot] != EMPTY {
            slot = (slot + 1) % SLOTS;
        }
        self.slots[slot] = entry.pack();
        self.len += 1;
    }

    /// Takes an entry out. Those behind it that would not be found any more move up.
    pub(super) fn remove(&mut self, slot: usize) {
        let mut hole = slot;
        let mut at = (slot + 1) % SLOTS;
        while self.slots[at] != EMPTY {
            let from_home = (at + SLOTS - home_of(self.slots[at][0])) % SLOTS;
            if from_home >= (at + SLOTS - hole) % SLOTS {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = (at + 1) % SLOTS;
        }
        self.slots[hole] = EMPTY;
        self.len -= 1;
    }

    /// Takes all entries out.
    pub(super) fn drain(&mut self) -> Vec<IndexEntry> {
        self.filter.fill([0; 8]);
        self.len = 0;
        let taken = self.slots.iter_mut().filter(|slot| **slot != EMPTY);
        taken.map(|slot| IndexEntry::unpack(std::mem::replace(slot, EMPTY))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hedgerow_device::Random;

    use super::*;

    fn entry(hash: u64, place: u64) -> IndexEntry {
        IndexEntry { hash, place, older: 0, is_tombstone: false }
    }

    #[test]
    fn the_filter_has_no_false_negatives_and_less_than_one_false_positive_in_a_hundred() {
        let mut random = Random::from_seed(1);
        let mut table = LocalTable::default();
        let hashes: Vec<u64> = (0..LOCAL_ENTRIES).map(|_| random.next_u64()).collect();
        for &hash in &hashes {
            table.insert(&entry(hash, 0));
        }
        assert!(hashes.iter().all(|&hash| table.may_have(hash)));
        let wrong = (0..100_000).filter(|_| table.may_have(random.next_u64())).count();
        assert!((10..1_000).contains(&wrong), "{wrong} of 100,000");
        let drained = table.drain();
        assert!(drained.len() == LOCAL_ENTRIES && table.find(hashes[0]).count() == 0);
        assert!(!table.may_have(hashes[0]) && table.len() == 0);
    }

    /// Insertions, changes and removals against a map, with hashes that all have one home, a few, or are spread.
    #[test]
    fn the_table_is_the_map() {
        for (seed, mask) in [(1, u64::MAX), (2, 0xFF << 20), (3, 3), (4, 0x1FFF << 20)] {
            let mut random = Random::from_seed(seed);
            let mut table = LocalTable::default();
            let mut map: BTreeMap<u64, u64> = BTreeMap::new();
            let most = if mask == 3 { 200 } else { LOCAL_ENTRIES as u64 - 1 };
            for place in 0..30_000u64 {
                let any = map.range(random.below(place + 1)..).next().map(|(&place, &hash)| (place, hash));
                match (random.below(5), any) {
                    (0 | 1, Some((old, hash))) => {
                        let at = table.find(hash).find(|(_, entry)| entry.place == old).unwrap().0;
                        map.remove(&old);
                        if random.below(2) == 0 {
                            table.remove(at);
                        } else {
                            table.set(at, &entry(hash, place));
                            map.insert(place, hash);
                        }
                    }
                    _ if (map.len() as u64) < most => {
                        let hash = random.next_u64() & mask;
                        table.insert(&entry(hash, place));
                        map.insert(place, hash);
                    }
                    _ => {}
                }
            }
            assert_eq!(table.len(), map.len());
            for (&place, &hash) in &map {
                assert_eq!(table.find(hash).filter(|(_, entry)| entry.place == place).count(), 1);
            }
            assert_eq!(table.drain().len(), map.len());
        }
    }
}
