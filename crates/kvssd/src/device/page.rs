//! Pages of the global table: 4 KiB of entries, and where they are kept.
//!
//! Owns [`IndexEntry`], [`IndexPage`] and the interface [`IndexPages`] that the global table reads and changes pages through. Promises that an entry is 16 bytes
//! and a page 4 KiB, as they would be on flash. Must not know how pages make a table.
//!
//! ```text
//!  page:   0             240    244     248   256
//!          +-------------+------+-------+-----+---------+---------+--
//!          |  240 tags   | next | count |  0  | entry 0 | entry 1 | ...
//!          +-------------+------+-------+-----+---------+---------+--
//!  entry:  0                8                14        16
//!          +----------------+----------------+---------+
//!          |      hash      |     place      |  older  |
//!          +----------------+----------------+---------+
//! ```
//!
//! A tag is a byte of an entry's hash: a look-up compares eight of them at once, and looks at an entry where one is equal, a page's header being four cache lines and all of it 64.
//! `place`: in units of 32 bytes from the start of the tier. `older`, 15 bits: how many older records of the key are on the flash; 32,767 is saturated. The highest bit says that it is a tombstone. In memory
//! only, so no format: it is rebuilt from footers on opening.

/// Bytes of a page.
pub(super) const INDEX_PAGE_BYTES: usize = 4096;
/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 16;
/// Entries of a page: what is left beside their tags and the header.
pub(super) const PAGE_ENTRIES: usize = 240;
const TAG_WORDS: usize = PAGE_ENTRIES / 8;
/// An older-version count that has reached its end, and stays there.
pub(super) const OLDER_SATURATED: u16 = (1 << 15) - 1;
const PLACE_BITS: u32 = 40;
const NO_PAGE: u32 = u32::MAX;

/// Where the newest record of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) hash: u64,
    /// In units from the start of the tier.
    pub(super) place: u64,
    /// Older records of the key on the flash.
    pub(super) older: u16,
    pub(super) is_tombstone: bool,
}

/// An entry as it is kept.
pub(super) type PackedEntry = [u64; 2];

impl IndexEntry {
    pub(super) fn pack(&self) -> PackedEntry {
        let place = self.place & ((1 << PLACE_BITS) - 1);
        [self.hash, place | u64::from(self.older) << 48 | u64::from(self.is_tombstone) << 63]
    }

    pub(super) fn unpack([hash, packed]: PackedEntry) -> IndexEntry {
        IndexEntry {
            hash,
            place: packed & ((1 << PLACE_BITS) - 1),
            older: (packed >> 48) as u16 & OLDER_SATURATED,
            is_tombstone: packed >> 63 != 0,
        }
    }
}

/// A page of entries, and which page its bucket goes on with.
#[derive(Debug, Clone)]
#[repr(C)]
pub(super) struct IndexPage {
    tags: [u64; TAG_WORDS],
    next: u32,
    len: u32,
    zeros: u64,
    entries: [PackedEntry; PAGE_ENTRIES],
}

const _: () = assert!(size_of::<IndexPage>() == INDEX_PAGE_BYTES);

/// A byte of the hash that neither buckets nor managers are chosen by.
fn tag_of(hash: u64) -> u64 {
    hash >> 48 & 0xFF
}

const LOWEST: u64 = 0x0101_0101_0101_0101;
const HIGHEST: u64 = 0x8080_8080_8080_8080;

impl IndexPage {
    fn new() -> IndexPage {
        let (tags, entries) = ([0; TAG_WORDS], [[0; 2]; PAGE_ENTRIES]);
        IndexPage { tags, next: NO_PAGE, len: 0, zeros: 0, entries }
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn next(&self) -> Option<u32> {
        Some(self.next).filter(|&next| next != NO_PAGE)
    }

    pub(super) fn set_next(&mut self, next: Option<u32>) {
        self.next = next.unwrap_or(NO_PAGE);
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = IndexEntry> {
        self.entries[..self.len()].iter().map(|&entry| IndexEntry::unpack(entry))
    }

    /// Reads of each cache line of the tags, so that a look-up will find them at hand.
    pub(super) fn touch(&self) -> u64 {
        self.tags[0] ^ self.tags[8] ^ self.tags[16] ^ self.tags[24]
    }

    /// The entries with this hash, and their numbers.
    #[inline]
    pub(super) fn find(&self, hash: u64) -> impl Iterator<Item = (usize, IndexEntry)> {
        let wanted = tag_of(hash) * LOWEST;
        self.tags[..self.len().div_ceil(8)]
            .iter()
            .enumerate()
            .flat_map(move |(n, tags)| {
                let differ = tags ^ wanted;
                // The highest bit of each byte that is zero. One above such a byte may have it, too: its entry has another hash, and is passed over.
                let mut equal = differ.wrapping_sub(LOWEST) & !differ & HIGHEST;
                std::iter::from_fn(move || {
                    let at = equal.checked_ilog2()? as usize / 8;
                    equal &= !(0xFF << (at * 8));
                    Some(n * 8 + at)
                })
            })
            .filter(move |&n| n < self.len() && self.entries[n][0] == hash)
            .map(|n| (n, IndexEntry::unpack(self.entries[n])))
    }

    pub(super) fn set(&mut self, n: usize, entry: &IndexEntry) {
        self.entries[n] = entry.pack();
        let (word, shift) = (n / 8, n % 8 * 8);
        self.tags[word] = self.tags[word] & !(0xFF << shift) | tag_of(entry.hash) << shift;
    }

    /// False: the page is full.
    pub(super) fn push(&mut self, entry: &IndexEntry) -> bool {
        let len = self.len();
        if len == PAGE_ENTRIES {
            return false;
        }
        self.set(len, entry);
        self.len += 1;
        true
    }

    /// Takes the last entry off.
    pub(super) fn pop(&mut self) -> Option<IndexEntry> {
        self.len = self.len.checked_sub(1)?;
        Some(IndexEntry::unpack(self.entries[self.len()]))
    }
}

/// Where pages are kept: in memory now. A budget of memory with the rest on flash goes behind this.
pub(super) trait IndexPages: std::fmt::Debug + Send {
    /// A page, to be read.
    fn page(&self, number: u32) -> &IndexPage;
    /// A page, to be changed.
    fn page_mut(&mut self, number: u32) -> &mut IndexPage;
    /// A new page without entries.
    fn take(&mut self) -> u32;
    /// Gives a page back that nothing leads to any more.
    fn give_back(&mut self, number: u32);
    /// Pages that are taken.
    fn taken(&self) -> usize;
}

/// All pages in memory.
#[derive(Debug, Default)]
pub(super) struct MemoryPages {
    pages: Vec<Box<IndexPage>>,
    free: Vec<u32>,
}

impl IndexPages for MemoryPages {
    fn page(&self, number: u32) -> &IndexPage {
        &self.pages[number as usize]
    }

    fn page_mut(&mut self, number: u32) -> &mut IndexPage {
        &mut self.pages[number as usize]
    }

    fn take(&mut self) -> u32 {
        if let Some(number) = self.free.pop() {
            *self.pages[number as usize] = IndexPage::new();
            return number;
        }
        self.pages.push(Box::new(IndexPage::new()));
        (self.pages.len() - 1) as u32
    }

    fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }

    fn taken(&self) -> usize {
        self.pages.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_its_entries() {
        let entry = |n: u64| IndexEntry {
            hash: n.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            place: (1 << PLACE_BITS) - 1 - n,
            older: OLDER_SATURATED,
            is_tombstone: n.is_multiple_of(2),
        };
        let mut page = IndexPage::new();
        for n in 0..PAGE_ENTRIES as u64 {
            assert!(page.push(&entry(n)));
        }
        assert!(!page.push(&entry(0)), "a page of 4 KiB has 240 entries");
        assert!(page.entries().eq((0..PAGE_ENTRIES as u64).map(entry)));
        for n in 0..PAGE_ENTRIES {
            let found: Vec<_> = page.find(entry(n as u64).hash).collect();
            assert_eq!(found, [(n, entry(n as u64))]);
        }
        assert_eq!(page.find(5).count(), 0);
        // Bytes that differ by one from the tag that is looked for, above an equal one.
        let mut near = IndexPage::new();
        for n in 0..16u64 {
            let tag = [0x42, 0x43, 0x41][n as usize % 3];
            near.push(&IndexEntry { hash: tag << 48 | n, ..entry(0) });
        }
        for n in 0..16u64 {
            let tag = [0x42, 0x43, 0x41][n as usize % 3];
            assert_eq!(near.find(tag << 48 | n).map(|(at, _)| at).collect::<Vec<_>>(), [n as usize]);
        }
        assert_eq!(page.next(), None);
        page.set_next(Some(3));
        assert_eq!((page.pop(), page.len(), page.next()), (Some(entry(239)), 239, Some(3)));
    }
}
