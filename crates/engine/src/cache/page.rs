//! The cache's memory in pages, and which parts of it hold rows.
//!
//! Owns two things. [`Pages`], the worker's state: the pool of free pages, the list of pages of each table and size, and in
//! each page's header the table, the size of its slots, the number of rows and the occupancy bitmap (FOCUS section V-C1,
//! figure 8). And [`Marks`], shared with all writers: which rows have been replaced and wait to be freed. Promises that a
//! slot is given out to one row at a time, and that a mark is found by the first [`Marks::take`] that begins after it was
//! set. Must not know what is in a slot.
//!
//! Headers are not in the pages themselves: so the worker goes through them without touching a page, and safe code can
//! share the marks. Rows of all schema versions of a table share its pages; each record says which version it has.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 128 << 10;
/// The largest slot. Larger rows are not cached.
pub(crate) const SLOT_BYTES_MAX: u64 = PAGE_BYTES / 4;
/// Slots begin at multiples of this, and none is smaller.
const GRANULE_BYTES: u64 = 64;
/// Words of a bitmap with a bit for each granule of a page.
const WORDS: usize = (PAGE_BYTES / GRANULE_BYTES / 64) as usize;

/// The size of the slots that hold `bytes`, at most an eighth more than asked for or the next multiple of 64; `None` if
/// there are none so large.
pub(crate) fn slot_bytes(bytes: u64) -> Option<u64> {
    let step = bytes.max(2).ilog2().saturating_sub(3);
    let slot = bytes.max(1).next_multiple_of(GRANULE_BYTES.max(1 << step));
    Some(slot).filter(|&slot| slot <= SLOT_BYTES_MAX)
}

/// The page that a place lies in.
fn page_of(place: u64) -> u32 {
    (place / PAGE_BYTES) as u32
}

/// A page's header.
#[derive(Debug)]
struct Page {
    table: u32,
    slot_bytes: u32,
    /// Slots occupied, rows on their way out included.
    rows: u32,
    /// A bit for each slot that is not to be given out.
    occupied: [u64; WORDS],
    /// A bit for each slot whose row is not on its way out.
    live: [u64; WORDS],
}

impl Page {
    fn capacity(&self) -> u32 {
        PAGE_BYTES as u32 / self.slot_bytes
    }

    /// Takes the first free slot.
    fn take(&mut self) -> Option<u32> {
        if self.rows == self.capacity() {
            return None;
        }
        let word = self.occupied.iter().position(|&word| word != u64::MAX)?;
        let bit = self.occupied[word].trailing_ones();
        self.occupied[word] |= 1 << bit;
        self.live[word] |= 1 << bit;
        self.rows += 1;
        Some(word as u32 * 64 + bit)
    }

    fn release(&mut self, slot: u32) {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        debug_assert!(self.occupied[word] & bit != 0, "slot {slot} is free already");
        debug_assert!(self.live[word] & bit == 0, "slot {slot} is in use");
        self.rows -= u32::from(self.occupied[word] & bit != 0);
        self.occupied[word] &= !bit;
    }

    /// Takes a row out of those that live; false if it is not among them.
    fn leave(&mut self, slot: u32) -> bool {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        let lives = self.live[word] & bit != 0;
        self.live[word] &= !bit;
        lives
    }
}

/// The pages of one table and size.
#[derive(Debug, Default)]
struct List {
    pages: Vec<u32>,
    /// Those with room, the one to fill next at the end.
    open: Vec<u32>,
    /// Rows that live.
    rows: u64,
}

/// The worker's state of all pages.
#[derive(Debug)]
pub(crate) struct Pages {
    headers: Vec<Option<Box<Page>>>,
    free: Vec<u32>,
    lists: BTreeMap<(u32, u32), List>,
    /// Shares of pages that hold rows that live, in millionths of a page.
    held: u64,
    /// Rows that live.
    rows: u64,
}

/// A full page, in the unit of [`Pages::held`].
const WHOLE: u64 = 1_000_000;

impl Pages {
    /// A pool of `count` free pages.
    pub(crate) fn new(count: u32) -> Pages {
        Pages {
            headers: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            lists: BTreeMap::new(),
            held: 0,
            rows: 0,
        }
    }

    /// A slot for a row of `bytes` bytes of a table, from a page with room or from the pool.
    pub(crate) fn allocate(&mut self, table: u32, bytes: u64) -> Option<u64> {
        let slot_bytes = slot_bytes(bytes)? as u32;
        let list = self.lists.entry((table, slot_bytes)).or_default();
        if list.open.is_empty() {
            let Some(page) = self.free.pop() else {
                if list.pages.is_empty() {
                    self.lists.remove(&(table, slot_bytes));
                }
                return None;
            };
            let header = Page { table, slot_bytes, rows: 0, occupied: [0; WORDS], live: [0; WORDS] };
            self.headers[page as usize] = Some(Box::new(header));
            list.pages.push(page);
            list.open.push(page);
        }
        let page = *list.open.last()?;
        let header = self.headers[page as usize].as_mut()?;
        let slot = header.take()?;
        if header.rows == header.capacity() {
            list.open.pop();
        }
        list.rows += 1;
        self.rows += 1;
        self.held += WHOLE / u64::from(header.capacity());
        Some(u64::from(page) * PAGE_BYTES + u64::from(slot) * u64::from(slot_bytes))
    }

    /// A row is on its way out: it counts no more, but its slot is not free yet.
    pub(crate) fn leave(&mut self, place: u64) {
        let Some(header) = self.headers[page_of(place) as usize].as_mut() else { return };
        let Some(list) = self.lists.get_mut(&(header.table, header.slot_bytes)) else { return };
        if header.leave((place % PAGE_BYTES) as u32 / header.slot_bytes) {
            list.rows -= 1;
            self.rows -= 1;
            self.held -= WHOLE / u64::from(header.capacity());
        }
    }

    /// Frees the slot of a row that [left](Pages::leave); its page goes back to the pool with its last row. A place in a page that was
    /// [detached](Pages::detach) is left alone: the page goes as a whole.
    pub(crate) fn free(&mut self, place: u64) {
        let page = page_of(place);
        let Some(header) = self.headers[page as usize].as_mut() else { return };
        let key = (header.table, header.slot_bytes);
        let Some(list) = self.lists.get_mut(&key) else { return };
        if header.rows == header.capacity() {
            list.open.insert(0, page);
        }
        header.release((place % PAGE_BYTES) as u32 / header.slot_bytes);
        if header.rows == 0 {
            list.pages.retain(|&other| other != page);
            list.open.retain(|&other| other != page);
            if list.pages.is_empty() {
                self.lists.remove(&key);
            }
            self.headers[page as usize] = None;
            self.free.push(page);
        }
    }

    /// Takes all pages of a table out, to be given back by [`Pages::give_back`].
    pub(crate) fn detach(&mut self, table: u32) -> Vec<u32> {
        let keys: Vec<(u32, u32)> =
            self.lists.range((table, 0)..=(table, u32::MAX)).map(|(&key, _)| key).collect();
        let mut detached = Vec::new();
        for key in keys {
            let Some(list) = self.lists.remove(&key) else { continue };
            self.rows -= list.rows;
            self.held -= list.rows * (WHOLE / (PAGE_BYTES / u64::from(key.1)));
            detached.extend(list.pages);
        }
        detached
    }

    /// Puts a detached page into the pool.
    pub(crate) fn give_back(&mut self, page: u32) {
        self.headers[page as usize] = None;
        self.free.push(page);
    }

    /// The tables that have pages, each once.
    pub(crate) fn tables(&self) -> Vec<u32> {
        let mut tables: Vec<u32> = self.lists.keys().map(|&(table, _)| table).collect();
        tables.dedup();
        tables
    }

    /// The pages of a table.
    pub(crate) fn of_table(&self, table: u32) -> Vec<u32> {
        let lists = self.lists.range((table, 0)..=(table, u32::MAX));
        lists.flat_map(|(_, list)| list.pages.iter().copied()).collect()
    }

    /// Slots of rows that live as a share of all slots in the page list that `page` is in.
    pub(crate) fn occupancy(&self, page: u32) -> f64 {
        let Some(header) = &self.headers[page as usize] else { return 0.0 };
        let Some(list) = self.lists.get(&(header.table, header.slot_bytes)) else { return 0.0 };
        list.rows as f64 / (list.pages.len() as f64 * f64::from(header.capacity()))
    }

    /// The places of the rows in a page that live.
    pub(crate) fn rows_in(&self, page: u32) -> Vec<u64> {
        let Some(header) = &self.headers[page as usize] else { return Vec::new() };
        let base = u64::from(page) * PAGE_BYTES;
        let slots = header.live.iter().enumerate().flat_map(|(at, &word)| bits(word, at as u64 * 64));
        slots.map(|slot| base + slot * u64::from(header.slot_bytes)).collect()
    }

    /// A page whose rows would all find room in the other pages of its list: the emptiest of the list with the most room.
    pub(crate) fn spare(&self) -> Option<u32> {
        let spare_pages = |&(_, slot_bytes): &(u32, u32), list: &List| {
            let capacity = PAGE_BYTES / u64::from(slot_bytes);
            (list.pages.len() as u64 * capacity - list.rows) / capacity
        };
        let lists = self.lists.iter().map(|(key, list)| (spare_pages(key, list), list));
        let (_, list) = lists.filter(|&(spare, _)| spare > 0).max_by_key(|&(spare, _)| spare)?;
        self.emptiest(&list.pages)
    }

    /// The page with the fewest rows for its size, of all.
    pub(crate) fn least(&self) -> Option<u32> {
        self.lists.values().filter_map(|list| self.emptiest(&list.open)).min_by_key(|&page| self.share(page))
    }

    fn emptiest(&self, pages: &[u32]) -> Option<u32> {
        pages.iter().copied().min_by_key(|&page| self.share(page))
    }

    /// Whether rows are on their way out of the pages of a table and size, so that there will be room without another page.
    pub(crate) fn is_emptying(&self, table: u32, bytes: u64) -> bool {
        let Some(slot_bytes) = slot_bytes(bytes) else { return false };
        let list = self.lists.get(&(table, slot_bytes as u32));
        list.is_some_and(|list| list.rows < list.pages.len() as u64 * (PAGE_BYTES / slot_bytes))
    }

    /// What one row of a page takes up, as a share of it.
    pub(crate) fn share_of_row(&self, page: u32) -> f64 {
        self.headers[page as usize].as_ref().map_or(0.0, |header| 1.0 / f64::from(header.capacity()))
    }

    fn share(&self, page: u32) -> u64 {
        let header = self.headers[page as usize].as_ref();
        header.map_or(0, |header| u64::from(header.rows) * WHOLE / u64::from(header.capacity()))
    }

    /// Keeps new rows out of a page that is being emptied, as far as its list has other pages with room.
    pub(crate) fn close(&mut self, page: u32) {
        let Some(header) = &self.headers[page as usize] else { return };
        if let Some(list) = self.lists.get_mut(&(header.table, header.slot_bytes))
            && let Some(at) = list.open.iter().position(|&open| open == page)
        {
            let page = list.open.remove(at);
            list.open.insert(0, page);
        }
    }

    /// How much of all pages is taken by rows that live, 0 to 1.
    pub(crate) fn usage(&self) -> f64 {
        self.held as f64 / (self.headers.len().max(1) as f64 * WHOLE as f64)
    }

    /// Pages in the pool.
    pub(crate) fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// Bytes of the pages in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        (self.headers.len() - self.free.len()) as u64 * PAGE_BYTES
    }

    /// The table whose rows a page holds.
    pub(crate) fn table_of(&self, page: u32) -> Option<u32> {
        self.headers[page as usize].as_ref().map(|header| header.table)
    }

    /// Whether two places lie in the same page.
    pub(crate) fn share_page(&self, one: u64, other: u64) -> bool {
        page_of(one) == page_of(other)
    }

    /// Rows in all pages that live.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }
}

/// The positions of the bits set in `word`, plus `base`.
fn bits(word: u64, base: u64) -> impl Iterator<Item = u64> {
    let step = |&word: &u64| Some(word & word.wrapping_sub(1)).filter(|&rest| rest != 0);
    let words = std::iter::successors(Some(word).filter(|&word| word != 0), step);
    words.map(move |word| base + u64::from(word.trailing_zeros()))
}

/// Which rows were replaced: a bit for each granule, set by whoever replaced the row that begins there.
#[derive(Debug)]
pub(crate) struct Marks {
    pages: Box<[OnceLock<Box<[AtomicU64; WORDS]>>]>,
    /// A bit for each page with marks.
    marked: Box<[AtomicU64]>,
}

impl Marks {
    /// No marks, for `count` pages.
    pub(crate) fn new(count: u32) -> Marks {
        Marks {
            pages: (0..count).map(|_| OnceLock::new()).collect(),
            marked: (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Marks the row at `place`.
    ///
    /// Sequentially consistent: whoever finds the page's bit set already had its own mark in place before
    /// [`Marks::take`] cleared the bit and went for the marks, so that it is found.
    #[inline]
    pub(crate) fn set(&self, place: u64) {
        let page = page_of(place) as usize;
        let granule = (place % PAGE_BYTES / GRANULE_BYTES) as usize;
        let words = self.pages[page].get_or_init(|| Box::new([const { AtomicU64::new(0) }; WORDS]));
        words[granule / 64].fetch_or(1 << (granule % 64), Ordering::SeqCst);
        let (word, bit) = (&self.marked[page / 64], 1 << (page % 64));
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Takes all marks away and adds the places to `out`.
    pub(crate) fn take(&self, out: &mut Vec<u64>) {
        for (at, word) in self.marked.iter().enumerate() {
            if word.load(Ordering::SeqCst) == 0 {
                continue;
            }
            for page in bits(word.swap(0, Ordering::SeqCst), at as u64 * 64) {
                let Some(words) = self.pages[page as usize].get() else { continue };
                for (at, word) in words.iter().enumerate() {
                    let granules = bits(word.swap(0, Ordering::SeqCst), at as u64 * 64);
                    out.extend(granules.map(|granule| page * PAGE_BYTES + granule * GRANULE_BYTES));
                }
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
