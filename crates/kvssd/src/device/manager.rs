//! Index managers: each has a range of hashes and a local table, and all share the global one.
//!
//! Owns [`Index`]: the order of a look-up (Bloom filter, local table, global table), and where a change goes: to the entry that was found, wherever it is; that of a key that has none to its
//! manager's local table, which is merged when it has 4,096 entries. So a key has one entry, and no look-up is made twice: an entry's place is good until [`Index::changes`] moves. Must not know keys: several
//! may share a hash.

use std::cell::Cell;

use super::global::{GlobalTable, PageSlot};
use super::local::{LOCAL_ENTRIES, LocalTable};
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

/// Where an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntrySlot {
    Local(usize),
    Global(PageSlot),
}

/// An entry, and where it is until the next change of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocatedEntry {
    pub(super) entry: IndexEntry,
    slot: EntrySlot,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    managers: [LocalTable; MANAGERS],
    global: GlobalTable,
    counters: IndexCounters,
    passed_over: Cell<u64>,
    looked_up: Cell<u64>,
    changes: u64,
}

/// The manager of a hash, by its upper bits; the lower ones choose a bucket.
fn manager_of(hash: u64) -> usize {
    ((u128::from(hash) * MANAGERS as u128) >> 64) as usize
}

impl Index {
    pub(super) fn counters(&self) -> IndexCounters {
        IndexCounters {
            local_passed_over: self.passed_over.get(),
            local_lookups: self.looked_up.get(),
            ..self.counters
        }
    }

    /// Moves with every change that may move an entry, or change one.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Bytes of the global table's pages.
    pub(super) fn bytes(&self) -> u64 {
        (self.global.pages() * super::page::INDEX_PAGE_BYTES) as u64
    }

    /// Entries, tombstones among them; those that only local tables have are counted as they are merged.
    pub(super) fn entries_merged(&self) -> u64 {
        self.global.entries()
    }

    /// Entries, tombstones among them.
    pub(super) fn entries(&self) -> u64 {
        self.managers.iter().map(|local| local.len() as u64).sum::<u64>() + self.global.entries()
    }

    /// The entries with this hash, one a key.
    #[inline]
    pub(super) fn find(&self, hash: u64) -> impl Iterator<Item = LocatedEntry> {
        let local = &self.managers[manager_of(hash)];
        let may_have = local.len() > 0 && local.may_have(hash);
        let counter = if may_have { &self.looked_up } else { &self.passed_over };
        counter.set(counter.get() + 1);
        let of_local = may_have.then(|| local.find(hash)).into_iter().flatten();
        let of_local = of_local.map(|(slot, entry)| LocatedEntry { entry, slot: EntrySlot::Local(slot) });
        let of_global = self.global.find(hash);
        of_local.chain(of_global.map(|(slot, entry)| LocatedEntry { entry, slot: EntrySlot::Global(slot) }))
    }

    /// Reads what a look-up of this hash will read first. Reads of several hashes do not wait for one another, as those of look-ups do.
    pub(super) fn touch(&self, hash: u64) -> u64 {
        self.global.touch(hash)
    }

    /// A record that a look-up of this hash will read: its place.
    pub(super) fn peek(&self, hash: u64) -> Option<u64> {
        self.global.find(hash).next().map(|(_, entry)| entry.place)
    }

    #[cfg(test)]
    pub(super) fn find_all(&self, hash: u64) -> Vec<IndexEntry> {
        self.find(hash).map(|found| found.entry).collect()
    }

    /// The entry with this hash and place.
    pub(super) fn entry_at(&self, hash: u64, place: u64) -> Option<LocatedEntry> {
        self.find(hash).find(|found| found.entry.place == place)
    }

    /// The first entry of a key. Gives back whether that made a merge.
    pub(super) fn insert(&mut self, entry: &IndexEntry) -> bool {
        self.changes += 1;
        let local = &mut self.managers[manager_of(entry.hash)];
        local.insert(entry);
        if local.len() < LOCAL_ENTRIES {
            return false;
        }
        let batch = local.drain();
        self.counters.merges += 1;
        self.counters.merged_entries += batch.len() as u64;
        self.counters.merged_buckets += self.global.merge(batch) as u64;
        true
    }

    /// Changes an entry, which was found since the last change, to another one with its hash.
    pub(super) fn set(&mut self, found: &LocatedEntry, entry: &IndexEntry) {
        debug_assert_eq!(found.entry.hash, entry.hash);
        self.changes += 1;
        match found.slot {
            EntrySlot::Local(slot) => self.managers[manager_of(entry.hash)].set(slot, entry),
            EntrySlot::Global(slot) => self.global.set(slot, entry),
        }
    }

    /// Takes an entry out, which was found since the last change.
    pub(super) fn remove(&mut self, found: &LocatedEntry) {
        self.changes += 1;
        match found.slot {
            EntrySlot::Local(slot) => self.managers[manager_of(found.entry.hash)].remove(slot),
            EntrySlot::Global(slot) => self.global.remove(found.entry.hash, slot),
        }
    }

    /// Of a record of which nothing is known yet: straight into the global table, on opening.
    pub(super) fn build(&mut self, entry: &IndexEntry) {
        self.changes += 1;
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

    /// Insertions, changes and removals through many merges, against a map from hash (a key each here) to place.
    #[test]
    fn one_entry_a_key_is_seen_through_merges() {
        let mut random = Random::from_seed(1);
        let mut index = Index::default();
        let mut map: BTreeMap<u64, u64> = BTreeMap::new();
        let hashes: Vec<u64> = (0..60_000).map(|_| random.next_u64()).collect();
        for place in 1..200_000u64 {
            let hash = hashes[random.below(hashes.len() as u64) as usize];
            let changes = index.changes();
            match map.get(&hash).copied() {
                Some(old) if random.below(6) == 0 => {
                    let found = index.entry_at(hash, old).unwrap();
                    index.remove(&found);
                    map.remove(&hash);
                }
                Some(old) => {
                    let found = index.entry_at(hash, old).unwrap();
                    index.set(&found, &entry(hash, place));
                    map.insert(hash, place);
                }
                None => {
                    index.insert(&entry(hash, place));
                    map.insert(hash, place);
                }
            }
            assert!(index.changes() > changes);
        }
        assert!(index.counters().merges >= 4 && index.entries_merged() > 0 && index.bytes() > 4096);
        for hash in hashes {
            let found: Vec<u64> = index.find(hash).map(|found| found.entry.place).collect();
            assert_eq!(found, map.get(&hash).copied().into_iter().collect::<Vec<_>>());
        }
        let counters = index.counters();
        assert!(
            counters.merged_buckets * 4 < counters.merged_entries,
            "entries of a bucket follow each other"
        );
    }

    #[test]
    fn counts_of_older_records_stay_saturated() {
        assert_eq!(
            (one_more(32_766), one_more(32_767), one_fewer(32_767), one_fewer(1), one_fewer(0)),
            (32_767, 32_767, 32_767, 0, 0)
        );
    }
}
