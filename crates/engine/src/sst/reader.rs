//! Looking keys up in a sorted table.
//!
//! Owns [`Sst`], an opened file, and the way from a key to its record: filter, index block, data block. Promises that a key costs no request where the filter denies
//! it, and otherwise one of the device once the index blocks are in the cache; and that damage is an error that names the file and the page, never a
//! wrong answer. Must not know which files count, nor what a record means.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use hedgerow_device::{CapacityFile, CapacityTier, OwnedBytes};
use smallvec::SmallVec;

use super::block::{Block, BlockAddress, BlockCache, EntryKind};
use super::filter::{Filter, hash_of};
use super::format::{
    Footer, IndexBound, PAGE_BYTES, PageRange, Section, SstCounts, SstSummary, SstTable, check_header,
    damaged, sum, take_bound,
};
use crate::Result;
use crate::log::format::Record;

/// A file has a header, a data block, an index block, a summary, a filter, a footer.
const PAGES_MIN: u64 = 6;

/// A key, as it is looked up in many files.
#[derive(Debug, Clone)]
pub struct SstKey {
    composite: SmallVec<[u8; 64]>,
    hash: u64,
}

impl SstKey {
    /// Of a row's key in the table of this number.
    pub fn new(table: u32, key: &[u8]) -> SstKey {
        let mut composite = SmallVec::from_slice(&table.to_be_bytes());
        composite.extend_from_slice(key);
        let hash = hash_of(&composite);
        SstKey { composite, hash }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.composite
    }
}

/// Of how many records of a data block, from the first on, the keys are below `composite`, which has a table.
pub(super) fn records_below(block: &Block, composite: &[u8]) -> usize {
    let (table, key) = composite.split_at(4);
    block.partition(|n| {
        let record = block.record(n);
        (record.table().to_be_bytes().as_slice(), record.key()) < (table, key)
    })
}

/// The entry of an index block for the data block that has the key if any has: the last whose bound is not above it, or the first.
pub(super) fn bound_for(index: &Block, key: &[u8]) -> usize {
    index.partition(|n| bound_of(index.entry(n)) <= key).saturating_sub(1)
}

/// An opened sorted table. Clones are the same.
#[derive(Clone)]
pub struct Sst {
    inner: Arc<Inner>,
}

struct Inner {
    number: u64,
    file: CapacityFile,
    summary: SstSummary,
    filter: Filter,
    cache: BlockCache,
}

impl fmt::Debug for Sst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sst").field("number", &self.inner.number).finish_non_exhaustive()
    }
}

/// A record, held in memory for as long as this is.
#[derive(Debug, Clone)]
pub struct FoundRecord {
    block: Arc<Block>,
    n: usize,
}

impl FoundRecord {
    pub(super) fn new(block: &Arc<Block>, n: usize) -> FoundRecord {
        FoundRecord { block: Arc::clone(block), n }
    }

    pub(crate) fn record(&self) -> Record<'_> {
        self.block.record(self.n)
    }

    /// The row's key.
    pub fn key(&self) -> &[u8] {
        self.record().key()
    }

    /// The table's number.
    pub fn table(&self) -> u32 {
        self.record().table()
    }

    /// Its sequence.
    pub fn sequence(&self) -> u64 {
        self.record().sequence()
    }

    /// Its body.
    pub fn body(&self) -> &[u8] {
        self.record().raw_body()
    }
}

impl Sst {
    pub(super) fn of(
        (file, number): (CapacityFile, u64),
        summary: SstSummary,
        filter: Filter,
        cache: &BlockCache,
    ) -> Sst {
        Sst { inner: Arc::new(Inner { number, file, summary, filter, cache: cache.clone() }) }
    }

    /// Opens the file `name`, which is number `number` of the store `store`.
    ///
    /// # Errors
    /// `Corrupted` if it is not whole, or another; what the capacity tier refuses.
    pub fn open(
        tier: &CapacityTier,
        name: &str,
        (store, number): (u128, u64),
        cache: &BlockCache,
    ) -> Result<Sst> {
        let file = tier.open_file(name)?;
        let bytes = file.bytes()?;
        let pages = bytes / PAGE_BYTES as u64;
        if bytes % PAGE_BYTES as u64 != 0 || pages < PAGES_MIN || pages > u64::from(u32::MAX) {
            return Err(damaged(number, &format!("it has {bytes} bytes, as no whole file has")));
        }
        let mut page = [0; PAGE_BYTES];
        file.read_at(0, &mut page)?;
        check_header(&page, store, number)?;
        file.read_at(bytes - PAGE_BYTES as u64, &mut page)?;
        let footer = Footer::decode(&page, number, pages as u32)?;
        let summary = SstSummary::decode(&read_section(&file, number, footer.summary)?, number)?;
        if summary.keys.iter().any(|key| key.len() < 5) {
            return Err(damaged(number, "its summary has no keys"));
        }
        let filter = Filter::decode(&read_section(&file, number, footer.filter)?);
        let filter = filter.ok_or_else(|| damaged(number, "its filter has no whole number of blocks"))?;
        Ok(Sst::of((file, number), summary, filter, cache))
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// What is in it.
    pub fn counts(&self) -> SstCounts {
        self.inner.summary.counts
    }

    /// The tables that have something in it.
    pub fn tables(&self) -> &[SstTable] {
        &self.inner.summary.tables
    }

    /// The least and the greatest sequence in it.
    pub fn sequences(&self) -> RangeInclusive<u64> {
        let [least, greatest] = self.inner.summary.sequences;
        least..=greatest
    }

    /// Bytes of memory that it takes as long as it is open, besides blocks in the cache.
    pub fn memory_bytes(&self) -> usize {
        let bounds = self.inner.summary.index.iter().map(|bound| size_of::<IndexBound>() + bound.bound.len());
        self.inner.filter.bytes() + bounds.sum::<usize>()
    }

    /// Whether it may hold the key: if not, it surely does not.
    #[inline]
    pub fn may_hold(&self, key: &SstKey) -> bool {
        let [least, greatest] = &self.inner.summary.keys;
        self.inner.filter.may_hold(key.hash) && (&**least..=&**greatest).contains(&key.bytes())
    }

    /// The record of a key.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub fn get(&self, key: &SstKey) -> Result<Option<FoundRecord>> {
        if !self.may_hold(key) {
            return Ok(None);
        }
        let pages = self.data_block_of(key.bytes())?;
        let block = self.block(pages, EntryKind::Record)?;
        let n = records_below(&block, key.bytes());
        let is_it = n < block.len() && {
            let record = block.record(n);
            record.table().to_be_bytes() == key.bytes()[..4] && *record.key() == key.bytes()[4..]
        };
        Ok(is_it.then(|| FoundRecord::new(&block, n)))
    }

    /// The data block that has the key if any has.
    fn data_block_of(&self, key: &[u8]) -> Result<PageRange> {
        let index = self.index_block(self.index_of(key))?;
        self.bound_at(&index, bound_for(&index, key))
    }

    /// The index block whose bounds are about the key.
    pub(super) fn index_of(&self, key: &[u8]) -> usize {
        self.inner.summary.index.partition_point(|index| *index.bound <= *key).saturating_sub(1)
    }

    /// How many index blocks there are.
    pub(super) fn index_blocks(&self) -> usize {
        self.inner.summary.index.len()
    }

    pub(super) fn index_block(&self, n: usize) -> Result<Arc<Block>> {
        self.block(self.inner.summary.index[n].pages, EntryKind::Bound)
    }

    /// Where the data block lies that the `n`-th entry of an index block is about.
    pub(super) fn bound_at(&self, index: &Block, n: usize) -> Result<PageRange> {
        let bound = take_bound(index.entry(n)).map(|(pages, _)| pages);
        bound.ok_or_else(|| damaged(self.number(), "an entry of its index is too short"))
    }

    /// A verified block, of the cache or of the file.
    pub(super) fn block(&self, pages: PageRange, kind: EntryKind) -> Result<Arc<Block>> {
        let address = BlockAddress { number: self.number(), page: pages.first };
        if let Some(block) = self.inner.cache.get(address) {
            return Ok(block);
        }
        let block = Arc::new(self.read_block(pages, kind)?);
        self.inner.cache.insert(address, &block);
        Ok(block)
    }

    /// Reads a block, and verifies it.
    pub(super) fn read_block(&self, pages: PageRange, kind: EntryKind) -> Result<Block> {
        let mut bytes = OwnedBytes::zeroed(pages.bytes());
        self.inner.file.read_at(pages.offset(), bytes.as_mut_slice())?;
        Block::open(bytes, self.number(), pages, kind)
    }

    /// Asks for blocks that will be read soon.
    pub(super) fn will_read(&self, pages: PageRange) {
        self.inner.file.will_read(pages.offset(), pages.bytes() as u64);
    }

    /// Reads and verifies all blocks, past the cache, and that they are what the summary says.
    ///
    /// # Errors
    /// `Corrupted`, of the first that is wrong; what the capacity tier refuses.
    pub fn verify(&self) -> Result<()> {
        let mut found = SstCounts::default();
        for index in &self.inner.summary.index {
            let index = self.read_block(index.pages, EntryKind::Bound)?;
            for n in 0..index.len() {
                let block = self.read_block(self.bound_at(&index, n)?, EntryKind::Record)?;
                (0..block.len()).for_each(|n| found.add(&block.record(n)));
            }
        }
        match found == self.counts() {
            true => Ok(()),
            false => Err(damaged(self.number(), "its records are not those that its summary counts")),
        }
    }
}

impl SstCounts {
    fn add(&mut self, record: &Record<'_>) {
        use crate::log::format::RecordKind;
        self.bytes += record.record_bytes() as u64;
        *match record.kind() {
            RecordKind::Row => &mut self.rows,
            RecordKind::Delta => &mut self.deltas,
            RecordKind::Tombstone | RecordKind::Batch => &mut self.tombstones,
        } += 1;
    }
}

/// The lower bound in an index entry; nothing, which is below all, in one that is too short.
fn bound_of(entry: &[u8]) -> &[u8] {
    take_bound(entry).map_or(&[], |(_, bound)| bound)
}

/// Reads and verifies a part that is read whole.
fn read_section(file: &CapacityFile, number: u64, section: Section) -> Result<Vec<u8>> {
    let mut bytes = vec![0; section.bytes as usize];
    file.read_at(section.offset(), &mut bytes)?;
    match sum(number, section.first, &bytes) == section.checksum {
        true => Ok(bytes),
        false => {
            let why = format!("what is at its page {} does not match its checksum", section.first);
            Err(damaged(number, &why))
        }
    }
}
