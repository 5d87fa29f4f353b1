//! A manager's local table: what was written since the last merge.
//!
//! Owns [`LocalTable`]: up to 4,096 entries under a Bloom filter (Bloom 1970) of 10 bits each, so that a read of a key that was not written lately passes it over. Promises
//! that a batch comes out in the order of hashes. Must not know keys.

use std::collections::BTreeMap;

use super::page::IndexEntry;

/// Entries before a merge.
pub(super) const LOCAL_ENTRIES: usize = 4096;
const BITS_A_KEY: usize = 10;
/// Bits that a key sets: `ln 2` times the bits a key.
const BITS_SET: u64 = 7;
const FILTER_BITS: u64 = (LOCAL_ENTRIES * BITS_A_KEY) as u64;

/// An entry that is newer than what the global table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocalEntry {
    pub(super) entry: IndexEntry,
    /// The place of the global table's entry of the same key, which this one takes the place of.
    pub(super) replaces: Option<u64>,
}

#[derive(Debug)]
pub(super) struct LocalTable {
    /// By hash, and a number that tells those that share one.
    entries: BTreeMap<(u64, u32), LocalEntry>,
    next_number: u32,
    filter: Box<[u64]>,
}

impl Default for LocalTable {
    fn default() -> LocalTable {
        let filter = vec![0; (FILTER_BITS as usize).div_ceil(64)].into();
        LocalTable { entries: BTreeMap::new(), next_number: 0, filter }
    }
}

/// The bits of a hash, by double hashing (Kirsch and Mitzenmacher 2006).
fn bits_of(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    let step = (hash >> 32) | 1;
    (0..BITS_SET).map(move |n| {
        let bit = hash.wrapping_add(n.wrapping_mul(step)) % FILTER_BITS;
        ((bit / 64) as usize, 1 << (bit % 64))
    })
}

impl LocalTable {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there may be an entry with this hash.
    pub(super) fn may_have(&self, hash: u64) -> bool {
        bits_of(hash).all(|(word, bit)| self.filter[word] & bit != 0)
    }

    /// The entries with this hash.
    pub(super) fn find(&self, hash: u64) -> impl Iterator<Item = &LocalEntry> {
        self.entries.range((hash, 0)..=(hash, u32::MAX)).map(|(_, entry)| entry)
    }

    fn locate(&self, hash: u64, place: u64) -> Option<(u64, u32)> {
        let mut of_hash = self.entries.range((hash, 0)..=(hash, u32::MAX));
        of_hash.find(|(_, local)| local.entry.place == place).map(|(&at, _)| at)
    }

    /// The entry with this hash and place, to be changed.
    pub(super) fn get_mut(&mut self, hash: u64, place: u64) -> Option<&mut LocalEntry> {
        let at = self.locate(hash, place)?;
        self.entries.get_mut(&at)
    }

    /// One more entry.
    pub(super) fn insert(&mut self, local: LocalEntry) {
        let hash = local.entry.hash;
        for (word, bit) in bits_of(hash) {
            self.filter[word] |= bit;
        }
        self.entries.insert((hash, self.next_number), local);
        self.next_number = self.next_number.wrapping_add(1);
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, hash: u64, place: u64) -> Option<LocalEntry> {
        let at = self.locate(hash, place)?;
        self.entries.remove(&at)
    }

    /// Takes all entries out, in the order of their hashes.
    pub(super) fn drain(&mut self) -> Vec<LocalEntry> {
        self.filter.fill(0);
        self.next_number = 0;
        std::mem::take(&mut self.entries).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    fn local(hash: u64, place: u64) -> LocalEntry {
        let entry = IndexEntry { hash, place, older: 0, is_tombstone: false };
        LocalEntry { entry, replaces: None }
    }

    #[test]
    fn the_filter_has_no_false_negatives_and_about_one_false_positive_in_a_hundred() {
        let mut random = Random::from_seed(1);
        let mut table = LocalTable::default();
        let hashes: Vec<u64> = (0..LOCAL_ENTRIES).map(|_| random.next_u64()).collect();
        for &hash in &hashes {
            table.insert(local(hash, 0));
        }
        assert!(hashes.iter().all(|&hash| table.may_have(hash)));
        let wrong = (0..100_000).filter(|_| table.may_have(random.next_u64())).count();
        assert!((300..2_000).contains(&wrong), "{wrong} of 100,000");
        let drained = table.drain();
        assert!(drained.is_sorted_by_key(|local| local.entry.hash) && drained.len() == LOCAL_ENTRIES);
        assert!(!table.may_have(hashes[0]) && table.len() == 0);
    }

    #[test]
    fn entries_that_share_a_hash_are_told_by_their_places() {
        let mut table = LocalTable::default();
        table.insert(local(5, 1));
        table.insert(local(5, 2));
        table.insert(local(6, 1));
        assert_eq!(table.find(5).count(), 2);
        assert_eq!(table.remove(5, 1), Some(local(5, 1)));
        assert_eq!(table.remove(5, 1), None);
        table.get_mut(5, 2).unwrap().entry.place = 9;
        assert_eq!(table.find(5).copied().collect::<Vec<_>>(), [local(5, 9)]);
    }
}
