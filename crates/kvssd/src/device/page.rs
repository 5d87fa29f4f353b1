//! Pages of the global table: 4 KiB of entries, and where they are kept.
//!
//! Owns [`IndexEntry`], [`IndexPage`] and the interface [`IndexPages`] that the global table reads and changes pages through. Promises that an entry is 16 bytes
//! and a page 4 KiB, as they would be on flash. Must not know how pages make a table.
//!
//! ```text
//!  entry:  0                8                13   14        16
//!          +----------------+----------------+----+---------+
//!          |      hash      |     place      |len |  older  |
//!          +----------------+----------------+----+---------+
//! ```
//!
//! `place`: in units of 32 bytes from the start of the tier. `len`: the length class, log2 of the record's units, rounded up. `older`, 15 bits: how many older records of
//! the key are on the flash; 32,767 is saturated. The highest bit says that it is a tombstone. In memory only, so no format: it is rebuilt from footers on opening.

use hedgerow_row::le_bytes::{u32_at, u64_at};

/// Bytes of a page.
pub(super) const INDEX_PAGE_BYTES: usize = 4096;
/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 16;
/// Entries of a page: one entry's room is its header.
pub(super) const PAGE_ENTRIES: usize = INDEX_PAGE_BYTES / ENTRY_BYTES - 1;
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

impl IndexEntry {
    fn encode(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.hash.to_le_bytes());
        let place = self.place & ((1 << PLACE_BITS) - 1);
        let packed = place | u64::from(self.older) << 48 | u64::from(self.is_tombstone) << 63;
        out[8..].copy_from_slice(&packed.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> IndexEntry {
        let packed = u64_at(bytes, 8);
        IndexEntry {
            hash: u64_at(bytes, 0),
            place: packed & ((1 << PLACE_BITS) - 1),
            older: (packed >> 48) as u16 & OLDER_SATURATED,
            is_tombstone: packed >> 63 != 0,
        }
    }
}

/// A page of entries, and which page its bucket goes on with.
#[derive(Debug, Clone)]
pub(super) struct IndexPage(Box<[u8]>);

impl IndexPage {
    fn new() -> IndexPage {
        let mut page = IndexPage(vec![0; INDEX_PAGE_BYTES].into());
        page.set_next(None);
        page
    }

    pub(super) fn len(&self) -> usize {
        u32_at(&self.0, 0) as usize
    }

    fn set_len(&mut self, len: usize) {
        self.0[..4].copy_from_slice(&(len as u32).to_le_bytes());
    }

    pub(super) fn next(&self) -> Option<u32> {
        Some(u32_at(&self.0, 4)).filter(|&next| next != NO_PAGE)
    }

    pub(super) fn set_next(&mut self, next: Option<u32>) {
        self.0[4..8].copy_from_slice(&next.unwrap_or(NO_PAGE).to_le_bytes());
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = IndexEntry> {
        self.0[ENTRY_BYTES..].chunks_exact(ENTRY_BYTES).take(self.len()).map(IndexEntry::decode)
    }

    fn entry_mut(&mut self, n: usize) -> &mut [u8] {
        &mut self.0[(n + 1) * ENTRY_BYTES..][..ENTRY_BYTES]
    }

    pub(super) fn set(&mut self, n: usize, entry: &IndexEntry) {
        entry.encode(self.entry_mut(n));
    }

    /// False: the page is full.
    pub(super) fn push(&mut self, entry: &IndexEntry) -> bool {
        let len = self.len();
        if len == PAGE_ENTRIES {
            return false;
        }
        self.set(len, entry);
        self.set_len(len + 1);
        true
    }

    /// Takes the last entry off.
    pub(super) fn pop(&mut self) -> Option<IndexEntry> {
        let last = self.len().checked_sub(1)?;
        let entry = IndexEntry::decode(self.entry_mut(last));
        self.set_len(last);
        Some(entry)
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
    pages: Vec<IndexPage>,
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
            self.pages[number as usize] = IndexPage::new();
            return number;
        }
        self.pages.push(IndexPage::new());
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
        assert!(!page.push(&entry(0)), "a page of 4 KiB has 255 entries");
        assert!(page.entries().eq((0..PAGE_ENTRIES as u64).map(entry)));
        assert_eq!(page.next(), None);
        page.set_next(Some(3));
        assert_eq!((page.pop(), page.len(), page.next()), (Some(entry(254)), 254, Some(3)));
    }
}
