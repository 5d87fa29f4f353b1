//! Looking keys up in a sorted table.
//!
//! Owns [`Sst`], an opened file, and the way from a key to its record: filter, index block, data block. Promises that a key costs no request where the filter denies
//! it, and otherwise one of the device once the index blocks are in the cache; and that damage is an error that names the file and the page, never a
//! wrong answer. Must not know which files count, nor what a record means.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use hedgerow_device::{CapacityFile, CapacityTier, OwnedBytes, Random, SharedCopy};
use smallvec::SmallVec;

use super::block::{Block, BlockAddress, BlockCache, is_of_key, parsed_first};
use super::file_reads::FileReads;
use super::filter::{Filter, hash_of};
use super::format::{
    Counted, EntryKind, Footer, IndexBound, PAGE_BYTES, PageRange, Section, SstCounts, SstId, SstSummary,
    SstTable, check_header, composite_key,
};
use super::key_prefixes::KeyPrefixes;
use super::look_counts::LookCount;
use crate::log::format::{FLAG_FIELD_EXPIRY, Record, RecordHead};
use crate::{Error, Result};

/// A file has a header, a data block, an index block, a summary, a filter, a footer.
const PAGES_MIN: u64 = 6;

/// A key, as it is looked up in many files.
#[derive(Debug, Clone)]
pub struct SstKey {
    composite: SmallVec<[u8; 64]>,
    hash: u64,
}

impl SstKey {
    /// A hash of the table and the key.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Of a row's key in the table of this number.
    pub fn new(table: u32, key: &[u8]) -> SstKey {
        let mut composite = SmallVec::from_slice(&table.to_be_bytes());
        composite.extend_from_slice(key);
        let hash = hash_of(&composite);
        SstKey { composite, hash }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.composite
    }

    /// The table's number.
    pub(crate) fn table(&self) -> u32 {
        u32::from_be_bytes([self.composite[0], self.composite[1], self.composite[2], self.composite[3]])
    }

    /// With a hash that it has not.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn hashed_to(self, hash: u64) -> SstKey {
        SstKey { hash, ..self }
    }
}

/// Of how many records of a data block, from the first on, the keys are below `composite`, which has a table.
pub(super) fn records_below(block: &Block, composite: &[u8]) -> usize {
    let (table, key) = composite.split_at(4);
    block.partition(|n| {
        let record = block.head(n);
        (record.table().to_be_bytes().as_slice(), record.key()) < (table, key)
    })
}

/// Where a data block lies, and the index block that says so.
pub(super) struct DataWay {
    pub(super) index: Arc<Block>,
    pub(super) index_pages: PageRange,
    pub(super) pages: PageRange,
}

/// Where a look has its blocks from.
pub(super) trait BlockSource {
    /// Why it has one not.
    type Refusal: From<Error>;

    /// A verified block of these pages.
    fn block(&mut self, sst: &Sst, pages: PageRange, kind: EntryKind) -> Result<Arc<Block>, Self::Refusal>;
}

/// The cache, or the disk, and then it stays in the cache.
struct Waiting;

impl BlockSource for Waiting {
    type Refusal = Error;

    #[inline]
    fn block(&mut self, sst: &Sst, pages: PageRange, kind: EntryKind) -> Result<Arc<Block>> {
        sst.block(pages, kind, true)
    }
}

/// An opened sorted table. Clones are the same.
#[derive(Clone)]
pub struct Sst {
    inner: Arc<Inner>,
}

struct Inner {
    id: SstId,
    file: CapacityFile,
    /// Where what is read whole begins: blocks lie before it.
    blocks_end: u32,
    summary: SstSummary,
    /// Of the bounds of its index blocks.
    prefixes: KeyPrefixes,
    filter: Filter,
    /// What it takes as long as it is open, besides blocks in the cache.
    memory_bytes: usize,
    cache: BlockCache,
    reads: FileReads,
}

impl fmt::Debug for Sst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sst").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

/// A record, held in memory for as long as this is.
#[derive(Debug, Clone)]
pub struct FoundRecord {
    held: HeldRecord,
}

#[derive(Debug, Clone)]
enum HeldRecord {
    /// With its block.
    InBlock(Arc<Block>, usize),
    /// In a copy of the records of its key, from this byte on.
    InCopy(SharedCopy, u32),
}

/// Records of a key, newest first.
pub(crate) type FoundRecords = SmallVec<[FoundRecord; 2]>;

impl FoundRecord {
    pub(super) fn new(block: &Arc<Block>, n: usize) -> FoundRecord {
        FoundRecord { held: HeldRecord::InBlock(Arc::clone(block), n) }
    }

    /// The first of a [copy](FoundRecord::copy_to) of some.
    pub(super) fn first_of(copy: SharedCopy) -> FoundRecord {
        FoundRecord { held: HeldRecord::InCopy(copy, 0) }
    }

    /// It and all behind it in the copy that it is the first of.
    pub(super) fn with_rest(self) -> FoundRecords {
        let mut at = self.head().record_bytes();
        let copy = match &self.held {
            HeldRecord::InCopy(copy, _) if at < copy.shared().len() => copy.clone(),
            _ => return FoundRecords::from_iter([self]),
        };
        let mut all = FoundRecords::from_iter([self]);
        while at < copy.shared().len() {
            let next = FoundRecord { held: HeldRecord::InCopy(copy.clone(), at as u32) };
            at += next.head().record_bytes();
            all.push(next);
        }
        all
    }

    /// Appends its bytes, as they are in memory.
    pub(super) fn copy_to(&self, words: &mut Vec<u64>) {
        match &self.held {
            HeldRecord::InBlock(block, n) => block.shared_entry(*n).append_to(words),
            HeldRecord::InCopy(copy, at) => {
                let (from, bytes) = (*at as usize, self.head().record_bytes());
                let record = copy.shared().get(from..from + bytes);
                record.expect("it was looked at when its block was read").append_to(words);
            }
        }
    }

    /// Bytes of memory that are held with it: others of one [block](FoundRecord::block_address) hold the same.
    pub(crate) fn block_bytes(&self) -> usize {
        match &self.held {
            HeldRecord::InBlock(block, _) => block.memory_bytes(),
            HeldRecord::InCopy(copy, _) => copy.shared().len(),
        }
    }

    /// Tells its block from others that are held.
    pub(crate) fn block_address(&self) -> usize {
        match &self.held {
            HeldRecord::InBlock(block, _) => Arc::as_ptr(block).addr(),
            HeldRecord::InCopy(copy, _) => std::ptr::from_ref(copy.shared()).addr(),
        }
    }

    pub(crate) fn record(&self) -> Record<'_> {
        match &self.held {
            HeldRecord::InBlock(block, n) => block.record(*n),
            HeldRecord::InCopy(copy, at) => {
                let from = copy.shared().get(*at as usize..copy.shared().len()).and_then(parsed_first);
                from.expect("it was looked at when its block was read")
            }
        }
    }

    /// What it says before its body.
    #[inline]
    pub(crate) fn head(&self) -> RecordHead<'_> {
        match &self.held {
            HeldRecord::InBlock(block, n) => block.head(*n),
            HeldRecord::InCopy(copy, at) => {
                let from = copy.shared().get(*at as usize..copy.shared().len());
                RecordHead::of_parsed(from.expect("it was looked at when its block was read"))
            }
        }
    }

    /// The row's key.
    pub fn key(&self) -> &[u8] {
        self.head().key()
    }

    /// The table's number and the row's key.
    pub(crate) fn composite(&self) -> Vec<u8> {
        composite_key(self.table(), self.key())
    }

    /// The table's number.
    pub fn table(&self) -> u32 {
        self.head().table()
    }

    /// Its sequence.
    pub fn sequence(&self) -> u64 {
        self.head().sequence()
    }

    /// Its body.
    pub fn body(&self) -> &[u8] {
        self.record().raw_body()
    }
}

impl Sst {
    pub(super) fn of(
        (file, id): (CapacityFile, SstId),
        summary: SstSummary,
        (filter, blocks_end): (Filter, u32),
        cache: &BlockCache,
    ) -> Sst {
        let prefixes = KeyPrefixes::of(summary.index.iter().map(|index| &*index.bound));
        let memory_bytes = filter.bytes() + memory_of(&summary) + prefixes.memory_bytes();
        let cache = cache.clone();
        let reads = FileReads::default();
        let inner = Inner { id, file, blocks_end, summary, prefixes, filter, memory_bytes, cache, reads };
        Sst { inner: Arc::new(inner) }
    }

    /// Opens a file.
    ///
    /// # Errors
    /// `Corrupted` if it is not whole, or another; `Version` if a later build wrote it; what the capacity tier refuses.
    pub fn open(tier: &CapacityTier, id: SstId, cache: &BlockCache) -> Result<Sst> {
        let file = tier.open_file(&id.file_name())?;
        let bytes = file.bytes()?;
        let pages = bytes / PAGE_BYTES as u64;
        if bytes % PAGE_BYTES as u64 != 0 || pages < PAGES_MIN || pages > u64::from(u32::MAX) {
            return Err(id.damaged(&format!("it has {bytes} bytes, as no whole file has")));
        }
        let mut page = [0; PAGE_BYTES];
        file.read_at(0, &mut page)?;
        check_header(&page, id)?;
        file.read_at(bytes - PAGE_BYTES as u64, &mut page)?;
        let footer = Footer::decode(&page, id, pages as u32)?;
        let summary = SstSummary::decode(&read_section(&file, id, footer.summary)?, id)?;
        if summary.keys.iter().any(|key| key.len() < 5) {
            return Err(id.damaged("its summary has no keys"));
        }
        let filter = Filter::decode(&read_section(&file, id, footer.filter)?);
        let filter = filter.ok_or_else(|| id.damaged("its filter has no whole number of blocks"))?;
        let sst = Sst::of((file, id), summary, (filter, footer.summary.first), cache);
        sst.inner.summary.index.iter().try_for_each(|index| sst.check_place(index.pages).map(drop))?;
        Ok(sst)
    }

    /// Which it is.
    pub fn id(&self) -> SstId {
        self.inner.id
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

    /// The least and the greatest key in it, composite.
    pub(crate) fn keys(&self) -> &[Box<[u8]>; 2] {
        &self.inner.summary.keys
    }

    /// Bytes of records from one key to another (composite): as many as there are index blocks about them, and all of the whole file.
    pub(crate) fn bytes_between(&self, [least, greatest]: &[Box<[u8]>; 2]) -> u64 {
        let (all, keys) = (self.counts().bytes, self.keys());
        if *least <= keys[0] && *greatest >= keys[1] {
            return all;
        }
        let blocks = self.index_of(greatest) + 1 - self.index_of(least).min(self.index_of(greatest));
        all / self.index_blocks() as u64 * blocks as u64
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// What the capacity tier refuses.
    pub(crate) fn file_bytes(&self) -> Result<u64> {
        Ok(self.inner.file.bytes()?)
    }

    /// Whether anybody else holds it open by a clone of this one.
    pub(crate) fn is_held_elsewhere(&self) -> bool {
        Arc::strong_count(&self.inner) > 1
    }

    /// Bytes of its filter.
    pub(crate) fn filter_bytes(&self) -> u64 {
        self.inner.filter.bytes() as u64
    }

    /// How many data blocks it has; all of its index is read for it.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub(crate) fn data_blocks(&self) -> Result<u64> {
        (0..self.index_blocks()).try_fold(0, |blocks, n| {
            let index = self.block(self.index_pages(n), EntryKind::Bound, false)?;
            Ok(blocks + index.len() as u64)
        })
    }

    /// Bytes of memory that it takes as long as it is open, besides blocks in the cache.
    pub fn memory_bytes(&self) -> usize {
        self.inner.memory_bytes
    }

    /// Whether it may hold the key: if not, it surely does not.
    #[inline]
    pub fn may_hold(&self, key: &SstKey) -> bool {
        let [least, greatest] = &self.inner.summary.keys;
        self.inner.filter.may_hold(key.hash) && (&**least..=&**greatest).contains(&key.bytes())
    }

    /// Has what [`Sst::may_hold`] looks at on its way.
    #[inline]
    pub(crate) fn prefetch_filter(&self, key: &SstKey) {
        self.inner.filter.prefetch(key.hash);
    }

    /// The record of a key.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub fn get(&self, key: &SstKey) -> Result<Option<FoundRecord>> {
        if !self.may_hold(key) {
            return Ok(None);
        }
        self.find(key.bytes(), &mut Waiting)
    }

    /// The record of a composite key that the filter does not deny, if there is one.
    pub(super) fn find<S: BlockSource>(
        &self,
        key: &[u8],
        source: &mut S,
    ) -> Result<Option<FoundRecord>, S::Refusal> {
        let block = self.data_block(key, source)?;
        Ok(self.find_in(&block, key))
    }

    /// The record of a composite key, of the data block that has it if any has.
    pub(super) fn find_in(&self, block: &Arc<Block>, key: &[u8]) -> Option<FoundRecord> {
        let n = records_below(block, key);
        let is_it = n < block.len() && is_of_key(block.head(n), key);
        self.inner.cache.counts().add(LookCount::Look);
        if !is_it {
            self.inner.cache.counts().add(LookCount::FalsePositive);
        }
        is_it.then(|| FoundRecord::new(block, n))
    }

    /// A record of a table, if the block that was chosen has one: see [`Sst::sample`].
    pub(super) fn sample_from<S: BlockSource>(
        &self,
        table: u32,
        random: &mut Random,
        source: &mut S,
    ) -> Result<Option<FoundRecord>, S::Refusal> {
        let mut among = |from: usize, to: usize| from + random.below((to - from) as u64) as usize;
        let from = composite_key(table, &[]);
        let Some(end) = table.checked_add(1).map(|next| composite_key(next, &[])) else { return Ok(None) };
        let (first, last) = (self.index_of(&from), self.index_below(&end));
        let index =
            source.block(self, self.index_pages(among(first, last.max(first) + 1)), EntryKind::Bound)?;
        let (first, last) = (index.bounds().at_or_below(&from), index.bounds().below(&end));
        let pages = self.bound_at(&index, among(first, last.max(first) + 1))?;
        let block = source.block(self, pages, EntryKind::Record)?;
        let (first, end) = (records_below(&block, &from), records_below(&block, &end));
        Ok((first < end).then(|| FoundRecord::new(&block, among(first, end))))
    }

    /// The data block that has the key if any has.
    pub(super) fn data_block<S: BlockSource>(
        &self,
        key: &[u8],
        source: &mut S,
    ) -> Result<Arc<Block>, S::Refusal> {
        let way = self.data_pages(key, source)?;
        source.block(self, way.pages, EntryKind::Record)
    }

    /// Where the data block lies that has the key if any has.
    pub(super) fn data_pages<S: BlockSource>(
        &self,
        key: &[u8],
        source: &mut S,
    ) -> Result<DataWay, S::Refusal> {
        let index_pages = self.index_pages(self.index_of(key));
        let index = source.block(self, index_pages, EntryKind::Bound)?;
        let pages = self.bound_at(&index, index.bounds().at_or_below(key))?;
        Ok(DataWay { index, index_pages, pages })
    }

    /// The index block whose bounds are about the key.
    pub(super) fn index_of(&self, key: &[u8]) -> usize {
        let bounds = &self.inner.summary.index;
        self.inner.prefixes.partition(key, |n| *bounds[n].bound <= *key).saturating_sub(1)
    }

    /// The index block whose bounds are about what is below the key.
    pub(super) fn index_below(&self, key: &[u8]) -> usize {
        let bounds = &self.inner.summary.index;
        self.inner.prefixes.partition(key, |n| *bounds[n].bound < *key).saturating_sub(1)
    }

    /// The page behind the last block.
    pub(super) fn blocks_end(&self) -> u32 {
        self.inner.blocks_end
    }

    /// How many index blocks there are.
    pub(super) fn index_blocks(&self) -> usize {
        self.inner.summary.index.len()
    }

    /// The lower bound of the `n`-th of them, if there are so many.
    pub(super) fn index_bound(&self, n: usize) -> Option<&[u8]> {
        self.inner.summary.index.get(n).map(|index| &*index.bound)
    }

    /// Where the `n`-th of them lies.
    pub(super) fn index_pages(&self, n: usize) -> PageRange {
        self.inner.summary.index[n].pages
    }

    /// Where the data block lies that the `n`-th entry of an index block is about.
    pub(super) fn bound_at(&self, index: &Block, n: usize) -> Result<PageRange> {
        self.check_place(index.bounds().pages(n))
    }

    fn check_place(&self, pages: PageRange) -> Result<PageRange> {
        let end = u64::from(pages.first) + u64::from(pages.count);
        match pages.first > 0 && pages.count > 0 && end <= u64::from(self.inner.blocks_end) {
            true => Ok(pages),
            false => {
                let PageRange { first, count } = pages;
                Err(self.id().damaged(&format!("its index has a block of {count} pages at page {first}")))
            }
        }
    }

    /// A verified block, of the cache or of the file. `keeps`: it stays in the cache.
    pub(super) fn block(&self, pages: PageRange, kind: EntryKind, keeps: bool) -> Result<Arc<Block>> {
        if let Some(block) = self.cached_block(pages, kind) {
            return Ok(block);
        }
        let block = self.read_block(pages, kind)?;
        if keeps {
            self.keep(pages, &block);
        }
        Ok(block)
    }

    /// A verified block, if the cache has it.
    pub(super) fn cached_block(&self, pages: PageRange, kind: EntryKind) -> Option<Arc<Block>> {
        self.inner.cache.get(self.address(pages), kind)
    }

    /// Puts an index block that was just written into the cache: the first look would else wait for two reads of the disk, one after the other.
    pub(super) fn keep_written(&self, pages: PageRange, bytes: OwnedBytes) -> Result<()> {
        let block = self.open_block(bytes, pages, EntryKind::Bound)?;
        self.inner.cache.insert(self.address(pages), &block);
        Ok(())
    }

    /// Puts a block of these pages, which was read because it was not there, into the cache.
    pub(super) fn keep(&self, pages: PageRange, block: &Arc<Block>) {
        self.inner.reads.add();
        self.inner.cache.counts().add(LookCount::CacheMiss);
        self.inner.cache.insert(self.address(pages), block);
    }

    /// Whether a block, which is read now, was not read lately.
    pub(super) fn is_first_read(&self, pages: PageRange) -> bool {
        self.inner.cache.is_first_read(self.address(pages))
    }

    fn address(&self, pages: PageRange) -> BlockAddress {
        BlockAddress { number: self.id().number, page: pages.first }
    }

    /// Reads a block, and verifies it.
    pub(super) fn read_block(&self, pages: PageRange, kind: EntryKind) -> Result<Arc<Block>> {
        self.open_block(self.inner.file.read(pages.offset(), pages.bytes())?, pages, kind)
    }

    /// A verified block that the page cache has. `keeps`: it stays in the cache.
    pub(super) fn read_block_at_hand(
        &self,
        pages: PageRange,
        kind: EntryKind,
        keeps: bool,
    ) -> Result<Option<Arc<Block>>> {
        let mut bytes = OwnedBytes::zeroed(pages.bytes());
        if !self.inner.file.read_at_hand(pages.offset(), bytes.as_mut_slice())? {
            return Ok(None);
        }
        let block = self.open_block(bytes, pages, kind)?;
        if keeps {
            self.keep(pages, &block);
        }
        Ok(Some(block))
    }

    /// Verifies a block that was read of these pages.
    pub(super) fn open_block(
        &self,
        bytes: OwnedBytes,
        pages: PageRange,
        kind: EntryKind,
    ) -> Result<Arc<Block>> {
        Block::open(bytes, self.id(), pages, kind).map(Arc::new)
    }

    /// A reader's walk came by a key of it, or of another file of its store.
    pub(crate) fn count_walked(&self) {
        self.inner.cache.counts().add(LookCount::Walked);
    }

    /// Whether much of it was read since it was written, or since the store was opened.
    pub(crate) fn is_read_much(&self) -> bool {
        self.inner.reads.are_many()
    }

    /// How many of its blocks were read that the cache had not, up to many.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn blocks_read(&self) -> u32 {
        self.inner.reads.count()
    }

    /// Whether so much of it is read that memory is to have all of it, and nobody saw to that.
    pub(crate) fn is_to_be_brought(&self) -> bool {
        self.is_read_much() && !self.was_all_in_memory()
    }

    /// Whether memory had all of it once, or that was tried.
    pub(crate) fn was_all_in_memory(&self) -> bool {
        self.inner.reads.all_was_in_memory()
    }

    /// It was written through the page cache, which has all of it.
    pub(super) fn stays_in_memory(&self) {
        self.inner.reads.have_all_in_memory();
    }

    /// Brings all of it into the page cache as long as `goes_on`, once; returns how many bytes were not there.
    ///
    /// # Errors
    /// What the capacity tier refuses.
    pub(crate) fn bring(&self, goes_on: impl Fn() -> bool) -> Result<u64> {
        self.inner.reads.have_all_in_memory();
        Ok(self.inner.file.bring(goes_on)?)
    }

    /// The file itself.
    pub(crate) fn file(&self) -> &CapacityFile {
        &self.inner.file
    }

    /// Asks for blocks that will be read soon.
    pub(super) fn will_read(&self, pages: PageRange) {
        self.inner.file.will_read(pages.offset(), pages.bytes() as u64);
    }

    /// Reads and verifies all blocks, past the cache, and that index, filter and summary agree with what is in them.
    ///
    /// # Errors
    /// `Corrupted`, of the first that is wrong; what the capacity tier refuses.
    pub fn verify(&self) -> Result<()> {
        let summary = &self.inner.summary;
        let (mut found, mut last) = (SstSummary::default(), Vec::new());
        for bound in &summary.index {
            let index = self.read_block(bound.pages, EntryKind::Bound)?;
            if *index.bounds().bound(0) != *bound.bound {
                return Err(self.id().damaged("its summary and its index do not agree"));
            }
            for n in 0..index.len() {
                let pages = self.bound_at(&index, n)?;
                self.will_read(PageRange { first: pages.first, count: VERIFIED_AHEAD_PAGES });
                let block = self.read_block(pages, EntryKind::Record)?;
                let bound = index.bounds().bound(n);
                if !last.is_empty() && last >= bound {
                    return Err(self.id().damaged("a bound in its index is not above the keys before"));
                }
                self.verify_block(&block, &bound, &mut last, &mut found)?;
            }
        }
        found.keys[1] = last.into();
        found.index.clone_from(&summary.index);
        match found == *summary {
            true => Ok(()),
            false => Err(self.id().damaged("its records are not those that its summary counts")),
        }
    }

    /// Verifies what is known of the records of a block, of which `last` is the key before.
    fn verify_block(
        &self,
        block: &Block,
        bound: &[u8],
        last: &mut Vec<u8>,
        found: &mut SstSummary,
    ) -> Result<()> {
        for n in 0..block.len() {
            let record = block.record(n);
            let key = composite_key(record.table(), record.key());
            if key <= *last || *key < *bound || !self.inner.filter.may_hold(hash_of(&key)) {
                let key = key.escape_ascii();
                return Err(self
                    .id()
                    .damaged(&format!("its order or its filter does not lead to the key {key}")));
            }
            let expires = record.expires_at_ms().is_some_and(|ms| ms != 0);
            found.add(
                &key,
                Counted {
                    table: record.table(),
                    kind: record.kind(),
                    sequence: record.sequence(),
                    expires: expires || record.flags() & FLAG_FIELD_EXPIRY != 0,
                    body_bytes: record.body_len() as u64,
                    bytes: record.record_bytes() as u64,
                },
            );
            *last = key;
        }
        Ok(())
    }
}

/// What is asked for ahead of a block that is verified.
const VERIFIED_AHEAD_PAGES: u32 = 32;

/// What a summary takes in memory.
fn memory_of(summary: &SstSummary) -> usize {
    let bounds = summary.index.iter().map(|bound| size_of::<IndexBound>() + bound.bound.len());
    let keys = summary.keys.iter().map(|key| key.len());
    bounds.chain(keys).sum::<usize>() + size_of_val(summary.tables.as_slice())
}

/// Reads and verifies a part that is read whole.
fn read_section(file: &CapacityFile, id: SstId, section: Section) -> Result<Vec<u8>> {
    let mut bytes = vec![0; section.bytes as usize];
    file.read_at(section.offset(), &mut bytes)?;
    match id.sum(section.first, &bytes) == section.checksum {
        true => Ok(bytes),
        false => {
            let why = format!("what is at its page {} does not match its checksum", section.first);
            Err(id.damaged(&why))
        }
    }
}
