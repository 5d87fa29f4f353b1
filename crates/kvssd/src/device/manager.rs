//! Index managers: each has a range of hashes and a local table, and all share the global one.
//!
//! Owns [`Index`]: the order of a look-up (Bloom filter, local table, global table), and how a change gets from local to global. Promises that the entry of a key is the one written last,
//! that one entry a key is seen, and that a local table is merged when it has 4,096 entries. Must not know keys: entries are told by hash and place.

use super::global::{Change, GlobalTable};
use super::local::{LOCAL_ENTRIES, LocalEntry, LocalTable};
use super::page::{IndexEntry, OLDER_SATURATED};

/// Managers of a device.
const MANAGERS: usize = 4;

/// What the index did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexCounters {
    /// Look-ups that the Bloom filter kept from a local table.
    pub local_passed_over: u64,
    /// Look-ups in local tables.
    pub local_lookups: u64,
    /// Merges of a local table into the global one.
    pub merges: u64,
    /// Entries merged.
    pub merged_entries: u64,
    /// Buckets that merges touched.
    pub merged_buckets: u64,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    managers: [LocalTable; MANAGERS],
    global: GlobalTable,
    counters: IndexCounters,
}

/// The manager of a hash, by its upper bits; the lower ones choose a bucket.
fn manager_of(hash: u64) -> usize {
    ((u128::from(hash) * MANAGERS as u128) >> 64) as usize
}

impl Index {
    pub(super) fn counters(&self) -> IndexCounters {
        self.counters
    }

    /// Bytes of the global table's pages.
    pub(super) fn bytes(&self) -> u64 {
        (self.global.pages() * super::page::INDEX_PAGE_BYTES) as u64
    }

    /// Entries, tombstones among them; those that only local tables have are counted as they are merged.
    pub(super) fn entries_merged(&self) -> u64 {
        self.global.entries()
    }

    /// The entries with this hash, one a key.
    pub(super) fn find(&mut self, hash: u64) -> Vec<IndexEntry> {
        let local = &self.managers[manager_of(hash)];
        if !local.may_have(hash) {
            self.counters.local_passed_over += 1;
            return self.global.find(hash).collect();
        }
        self.counters.local_lookups += 1;
        let mut found: Vec<IndexEntry> = local.find(hash).map(|local| local.entry).collect();
        let is_replaced =
            |entry: &IndexEntry| local.find(hash).any(|local| local.replaces == Some(entry.place));
        found.extend(self.global.find(hash).filter(|entry| !is_replaced(entry)));
        found
    }

    #[cfg(test)]
    pub(super) fn find_all(&mut self, hash: u64) -> Vec<IndexEntry> {
        self.find(hash)
    }

    /// The entry with this hash and place.
    pub(super) fn entry_at(&mut self, hash: u64, place: u64) -> Option<IndexEntry> {
        self.find(hash).into_iter().find(|entry| entry.place == place)
    }

    /// The first entry of a key, or the one that takes the place of the entry at `replaces`. Gives back whether that made a merge.
    pub(super) fn put(&mut self, entry: IndexEntry, replaces: Option<u64>) -> bool {
        let local = &mut self.managers[manager_of(entry.hash)];
        if let Some(place) = replaces
            && let Some(newest) = local.get_mut(entry.hash, place)
        {
            newest.entry = entry;
            return false;
        }
        local.insert(LocalEntry { entry, replaces });
        if local.len() < LOCAL_ENTRIES {
            return false;
        }
        self.merge(manager_of(entry.hash));
        true
    }

    /// Merges all local tables: before a block is erased, so that no entry, not even one that is replaced, has a place in it.
    pub(super) fn merge_all(&mut self) {
        for manager in 0..MANAGERS {
            if self.managers[manager].len() > 0 {
                self.merge(manager);
            }
        }
    }

    fn merge(&mut self, manager: usize) {
        let batch = self.managers[manager].drain();
        self.counters.merges += 1;
        self.counters.merged_entries += batch.len() as u64;
        let batch = batch.into_iter().map(|LocalEntry { entry, replaces }| Change { entry, replaces });
        self.counters.merged_buckets += self.global.merge(batch.collect()) as u64;
    }

    /// Changes the entry with this hash and place, where it is; false if there is none.
    pub(super) fn change(&mut self, hash: u64, place: u64, change: impl FnOnce(&mut IndexEntry)) -> bool {
        if let Some(local) = self.managers[manager_of(hash)].get_mut(hash, place) {
            change(&mut local.entry);
            return true;
        }
        let Some(mut entry) = self.entry_at(hash, place) else { return false };
        change(&mut entry);
        self.global.replace(place, &entry)
    }

    /// Takes the entry with this hash and place out; false if there is none.
    pub(super) fn remove(&mut self, hash: u64, place: u64) -> bool {
        match self.managers[manager_of(hash)].remove(hash, place) {
            Some(LocalEntry { replaces: Some(replaced), .. }) => self.global.remove(hash, replaced),
            Some(_) => true,
            None => self.entry_at(hash, place).is_some() && self.global.remove(hash, place),
        }
    }

    /// Of a record of which nothing is known yet: straight into the global table, on opening.
    pub(super) fn build(&mut self, entry: &IndexEntry) {
        self.global.insert(entry);
    }
}

/// One more older record. Saturated is for ever.
pub(super) fn one_more(older: u16) -> u16 {
    (older + 1).min(OLDER_SATURATED)
}

/// One older record fewer, if it is known how many there are.
pub(super) fn one_fewer(older: u16) -> u16 {
    if older == OLDER_SATURATED { older } else { older.saturating_sub(1) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hedgerow_device::Random;

    use super::*;

    fn entry(hash: u64, place: u64) -> IndexEntry {
        IndexEntry { hash, place, older: 0, is_tombstone: false }
    }

    /// Puts, changes and removals through many merges, against a map from hash (a key each here) to place.
    #[test]
    fn one_entry_a_key_is_seen_through_merges() {
        let mut random = Random::from_seed(1);
        let mut index = Index::default();
        let mut map: BTreeMap<u64, u64> = BTreeMap::new();
        let hashes: Vec<u64> = (0..40_000).map(|_| random.next_u64()).collect();
        for place in 1..100_000u64 {
            let hash = hashes[random.below(hashes.len() as u64) as usize];
            match (random.below(6), map.get(&hash).copied()) {
                (0, Some(old)) => {
                    assert!(index.remove(hash, old));
                    map.remove(&hash);
                }
                (1, Some(old)) => {
                    assert!(index.change(hash, old, |entry| entry.place = place));
                    map.insert(hash, place);
                }
                (_, old) => {
                    index.put(entry(hash, place), old);
                    map.insert(hash, place);
                }
            }
        }
        assert!(index.counters().merges >= 4 && index.entries_merged() > 0 && index.bytes() > 4096);
        for hash in hashes {
            let found: Vec<u64> = index.find(hash).iter().map(|entry| entry.place).collect();
            assert_eq!(found, map.get(&hash).copied().into_iter().collect::<Vec<_>>());
        }
        let counters = index.counters();
        assert!(
            counters.merged_buckets * 4 < counters.merged_entries,
            "entries of a bucket follow each other"
        );
    }

    /// A change of an entry that is replaced locally would bring an older version back.
    #[test]
    fn what_is_replaced_is_not_there() {
        let mut index = Index::default();
        index.build(&entry(5, 1));
        index.put(entry(5, 2), Some(1));
        assert_eq!(index.entry_at(5, 1), None);
        assert!(!index.change(5, 1, |entry| entry.place = 9) && !index.remove(5, 1));
        assert_eq!(index.find(5), [entry(5, 2)]);
        assert!(index.remove(5, 2));
        assert_eq!(index.find(5), []);
    }

    #[test]
    fn counts_of_older_records_stay_saturated() {
        assert_eq!(
            (one_more(32_766), one_more(32_767), one_fewer(32_767), one_fewer(1), one_fewer(0)),
            (32_767, 32_767, 32_767, 0, 0)
        );
    }
}
