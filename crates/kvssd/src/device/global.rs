//! The global table: where the newest record of every key is, by linear hashing.
//!
//! Owns [`GlobalTable`]. Promises that a look-up touches the pages of one bucket only, and that a batch touches each bucket once. Must not know keys: several may share a
//! hash, and whoever looks one up compares it with the record's.
//!
//! Linear hashing (Litwin 1980): there are `2^level + split` buckets; the lower bits of a hash say which. When the buckets are filled beyond four fifths the bucket at
//! `split` is parted in two by the next bit, whichever it was that overflowed, so the table grows by a page at a time, and none is ever rehashed as a whole.

use super::page::{IndexEntry, IndexPages, MemoryPages, PAGE_ENTRIES};

/// A bucket is parted when the table has so many entries a bucket.
const ENTRIES_A_BUCKET: u64 = PAGE_ENTRIES as u64 * 4 / 5;

/// Where an entry of the table is, until the next change of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageSlot {
    page: u32,
    n: u32,
}

#[derive(Debug)]
pub(super) struct GlobalTable<P = MemoryPages> {
    pages: P,
    /// The first page of each bucket.
    buckets: Vec<u32>,
    level: u32,
    /// The next bucket to be parted.
    split: u64,
    entries: u64,
    splits: u64,
}

impl<P: IndexPages + Default> Default for GlobalTable<P> {
    fn default() -> GlobalTable<P> {
        let mut pages = P::default();
        let buckets = vec![pages.take()];
        GlobalTable { pages, buckets, level: 0, split: 0, entries: 0, splits: 0 }
    }
}

impl<P: IndexPages> GlobalTable<P> {
    /// The bucket of a hash.
    fn bucket_of(&self, hash: u64) -> usize {
        let bucket = hash & ((1 << self.level) - 1);
        let bucket = if bucket < self.split { hash & ((2 << self.level) - 1) } else { bucket };
        bucket as usize
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    pub(super) fn pages(&self) -> usize {
        self.pages.taken()
    }

    /// The pages of the bucket of a hash, first to last.
    fn chain(&self, hash: u64) -> impl Iterator<Item = u32> {
        let first = self.buckets[self.bucket_of(hash)];
        std::iter::successors(Some(first), |&page| self.pages.page(page).next())
    }

    /// The entries with this hash, and where they are.
    #[inline]
    pub(super) fn find(&self, hash: u64) -> impl Iterator<Item = (PageSlot, IndexEntry)> {
        self.chain(hash).flat_map(move |page| {
            let found = self.pages.page(page).find(hash);
            found.map(move |(n, entry)| (PageSlot { page, n: n as u32 }, entry))
        })
    }

    /// See [`IndexPage::touch`](super::page::IndexPage::touch).
    pub(super) fn touch(&self, hash: u64) -> u64 {
        self.pages.page(self.buckets[self.bucket_of(hash)]).touch()
    }

    /// Changes an entry.
    pub(super) fn set(&mut self, at: PageSlot, entry: &IndexEntry) {
        self.pages.page_mut(at.page).set(at.n as usize, entry);
    }

    /// One more entry.
    pub(super) fn insert(&mut self, entry: &IndexEntry) {
        let last = self.chain(entry.hash).last();
        if let Some(last) = last
            && !self.pages.page_mut(last).push(entry)
        {
            let more = self.pages.take();
            self.pages.page_mut(more).push(entry);
            self.pages.page_mut(last).set_next(Some(more));
        }
        self.entries += 1;
        while self.entries > self.buckets.len() as u64 * ENTRIES_A_BUCKET {
            self.split_next();
        }
    }

    /// Takes an entry with this hash out. The last entry of the bucket takes its room.
    pub(super) fn remove(&mut self, hash: u64, at: PageSlot) {
        let chain: Vec<u32> = self.chain(hash).collect();
        let Some(&last) = chain.last() else { return };
        let (page, n) = (at.page, at.n as usize);
        if let Some(moved) = self.pages.page_mut(last).pop()
            && (page, n) != (last, self.pages.page(last).len())
        {
            self.pages.page_mut(page).set(n, &moved);
        }
        if self.pages.page(last).len() == 0 && chain.len() > 1 {
            self.pages.page_mut(chain[chain.len() - 2]).set_next(None);
            self.pages.give_back(last);
        }
        self.entries -= 1;
    }

    /// Takes a batch in, in the order of the buckets. Gives back how many buckets it is for.
    pub(super) fn merge(&mut self, mut batch: Vec<IndexEntry>) -> usize {
        batch.sort_unstable_by_key(|entry| (self.bucket_of(entry.hash), entry.hash));
        let mut buckets: Vec<usize> = batch.iter().map(|entry| self.bucket_of(entry.hash)).collect();
        buckets.dedup();
        for entry in &batch {
            self.insert(entry);
        }
        buckets.len()
    }

    /// Parts the next bucket in two.
    fn split_next(&mut self) {
        let mut page = Some(self.buckets[self.split as usize]);
        let mut entries = Vec::with_capacity(PAGE_ENTRIES);
        while let Some(number) = page {
            entries.extend(self.pages.page(number).entries());
            page = self.pages.page(number).next();
            self.pages.give_back(number);
        }
        let (stays, goes): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| entry.hash >> self.level & 1 == 0);
        self.buckets[self.split as usize] = self.chain_of(&stays);
        let more = self.chain_of(&goes);
        self.buckets.push(more);
        self.splits += 1;
        self.split += 1;
        if self.split == 1 << self.level {
            (self.level, self.split) = (self.level + 1, 0);
        }
    }

    /// New pages with these entries; the first.
    fn chain_of(&mut self, entries: &[IndexEntry]) -> u32 {
        let first = self.pages.take();
        let mut last = first;
        for entry in entries {
            if !self.pages.page_mut(last).push(entry) {
                let more = self.pages.take();
                self.pages.page_mut(last).set_next(Some(more));
                last = more;
                self.pages.page_mut(last).push(entry);
            }
        }
        first
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

    fn slot_of(table: &GlobalTable, hash: u64, place: u64) -> Option<PageSlot> {
        table.find(hash).find(|(_, entry)| entry.place == place).map(|(at, _)| at)
    }

    /// Random inserts, replacements and removals against a map, with hashes of few bits among them, so that buckets overflow.
    #[test]
    fn the_table_is_the_map() {
        for (seed, mask) in [(1, u64::MAX), (2, 0x3FF), (3, 7)] {
            let mut random = Random::from_seed(seed);
            let mut table = GlobalTable::<MemoryPages>::default();
            let mut map = BTreeMap::new();
            let mut keys = Vec::new();
            for place in 0..20_000u64 {
                let hash = random.next_u64() & mask;
                match random.below(5) {
                    0 if !keys.is_empty() => {
                        let (hash, place) = keys.swap_remove(random.below(keys.len() as u64) as usize);
                        let at = slot_of(&table, hash, place).unwrap();
                        table.remove(hash, at);
                        assert!(map.remove(&(hash, place)).is_some());
                    }
                    1 if !keys.is_empty() => {
                        let n = random.below(keys.len() as u64) as usize;
                        let (hash, old) = keys[n];
                        let new = entry(hash, place);
                        let at = slot_of(&table, hash, old).unwrap();
                        table.set(at, &new);
                        map.remove(&(hash, old));
                        map.insert((hash, place), new);
                        keys[n] = (hash, place);
                    }
                    _ => {
                        table.insert(&entry(hash, place));
                        map.insert((hash, place), entry(hash, place));
                        keys.push((hash, place));
                    }
                }
            }
            assert_eq!(table.entries(), map.len() as u64);
            for (hash, _) in keys.iter().take(2000) {
                let mut found: Vec<_> = table.find(*hash).map(|(_, entry)| entry).collect();
                found.sort_by_key(|entry| entry.place);
                let expected: Vec<_> = map.range((*hash, 0)..=(*hash, u64::MAX)).map(|(_, &e)| e).collect();
                assert_eq!(found, expected);
            }
            assert_eq!(slot_of(&table, 1 << 63, u64::MAX >> 30), None);
        }
    }

    /// Spread hashes take hardly more pages than their entries fill to four fifths, and a batch touches each bucket once.
    #[test]
    fn the_table_grows_by_the_page() {
        let mut random = Random::from_seed(4);
        let mut table = GlobalTable::<MemoryPages>::default();
        let mut most = 0;
        for _ in 0..25 {
            let batch: Vec<_> = (0..4096).map(|n| entry(random.next_u64(), n)).collect();
            let before = table.pages();
            let touched = table.merge(batch);
            assert!(touched <= table.buckets.len());
            most = most.max(table.pages() - before);
        }
        let full = table.entries() as usize / PAGE_ENTRIES;
        assert!(table.pages() < full * 2, "{} pages for {} full ones", table.pages(), full);
        assert!(most * 4 < table.pages(), "one batch of 25 took {most} of {} pages", table.pages());
        assert_eq!(table.splits as usize + 1, table.buckets.len());
    }
}
