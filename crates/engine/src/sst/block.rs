//! Blocks of sorted tables in memory.
//!
//! Owns their parts, building them, and [`BlockCache`], where those that were read stay. Promises that what is in a block was verified when it was read: each
//! entry lies in it, and of a data block is a record. Must not know files.

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use hedgerow_device::{OwnedBytes, SharedBytes};
use hedgerow_row::le_bytes::u32_at;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use super::bounds::Bounds;
use super::first_reads::FirstReads;
use super::format::{
    Codec, EntryKind, HEAD_BYTES, PAGE_BYTES, PageRange, RAW_BYTES_MAX, SstId, StoredBlock, open_block,
};
use super::look_counts::{LookCount, LookCounts};
use crate::Result;
use crate::log::format::{FLAG_EXPIRES, FLAG_FIELD_EXPIRY, Record, RecordHead, RecordKind};

/// What a cached block takes besides its bytes.
const OVERHEAD_BYTES: usize = 128;

/// Flags of records that sorted tables have.
const FLAGS_HERE: u8 = FLAG_EXPIRES | FLAG_FIELD_EXPIRY;

/// A part of the cache has at least so many, unless it is the only one.
const SHARD_BYTES_MIN: u64 = 4 << 20;
const SHARDS_MAX: u64 = 256;
/// A part of the cache is made for so many blocks at most, and grows.
const ITEMS_AT_FIRST_MAX: u64 = 1 << 16;

/// A verified block.
pub(super) struct Block {
    bytes: OwnedBytes,
    /// Where in them the entries begin.
    from: usize,
    /// Where the ends of the entries are; of an index block, where it ends.
    ends: usize,
    count: usize,
    kind: EntryKind,
}

impl Block {
    /// Verifies what was read of `pages` of the file `number`.
    pub(super) fn open(bytes: OwnedBytes, id: SstId, pages: PageRange, kind: EntryKind) -> Result<Block> {
        let StoredBlock { codec, raw_bytes, stored } = open_block(bytes.as_slice(), id, pages.first, kind)?;
        let malformed = || id.damaged(&format!("the block at its page {} is malformed", pages.first));
        let stored_bytes = stored.len();
        let (bytes, from, len) = match codec {
            Codec::Raw => (bytes, HEAD_BYTES, stored_bytes),
            Codec::Lz4 => {
                if raw_bytes > RAW_BYTES_MAX {
                    return Err(malformed());
                }
                let mut raw = OwnedBytes::to_be_stored_to(raw_bytes);
                match lz4_flex::block::decompress_into(stored, &mut raw.as_mut_slice()[..raw_bytes]) {
                    Ok(bytes) if bytes == raw_bytes => (raw, 0, raw_bytes),
                    _ => return Err(malformed()),
                }
            }
        };
        if kind == EntryKind::Bound {
            let count = Bounds::of(&bytes.as_slice()[from..from + len]).ok_or_else(malformed)?.len();
            return Ok(Block { bytes, from, ends: from + len, count, kind });
        }
        let count_at = (from + len).checked_sub(4).filter(|_| len >= 4).ok_or_else(malformed)?;
        let count = u32_at(bytes.as_slice(), count_at) as usize;
        let ends = count.checked_mul(4).and_then(|ends| count_at.checked_sub(ends)).filter(|&at| at >= from);
        let block = Block { ends: ends.ok_or_else(malformed)?, bytes, from, count, kind };
        if !block.is_well_formed() {
            return Err(malformed());
        }
        block.check_records(id)?;
        Ok(block)
    }

    /// Whether there are entries, one after the other, and nothing else.
    fn is_well_formed(&self) -> bool {
        let mut start = 0;
        let each = (0..self.count).all(|n| {
            let end = u32_at(self.bytes.as_slice(), self.ends + 4 * n) as usize;
            let before = std::mem::replace(&mut start, end);
            before < end && end <= self.ends - self.from
        });
        each && self.count > 0 && start == self.ends - self.from
    }

    /// Whether all entries are records as they are in sorted tables.
    fn check_records(&self, id: SstId) -> Result<()> {
        for n in 0..self.count {
            let head = self.bytes.shared().get(self.range(n)).and_then(RecordHead::of_whole);
            if head.is_some_and(|head| head.kind() != RecordKind::Batch && head.flags() & !FLAGS_HERE == 0) {
                continue;
            }
            // What the block's checksum stands over somebody meant.
            let unknown = self.entry(n).get(37).map_or(0, |flags| flags & !FLAGS_HERE);
            return match unknown {
                0 => Err(id.damaged("one of its entries is no record of a row")),
                _ => Err(id.newer(&format!("a record with flags {unknown}"))),
            };
        }
        Ok(())
    }

    pub(super) fn kind(&self) -> EntryKind {
        self.kind
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    fn range(&self, n: usize) -> Range<usize> {
        let ends = self.bytes.as_slice();
        let end = |n: usize| self.from + u32_at(ends, self.ends + 4 * n) as usize;
        let start = if n == 0 { self.from } else { end(n - 1) };
        start..end(n)
    }

    /// The `n`-th entry of a data block.
    fn entry(&self, n: usize) -> &[u8] {
        &self.bytes.as_slice()[self.range(n)]
    }

    /// The entries of an index block.
    #[inline]
    pub(super) fn bounds(&self) -> Bounds<'_> {
        debug_assert_eq!(self.kind, EntryKind::Bound);
        let bounds = Bounds::of_checked(&self.bytes.as_slice()[self.from..self.ends]);
        bounds.expect("they were looked at when the block was read")
    }

    /// The bytes of the `n`-th entry of a data block.
    pub(super) fn shared_entry(&self, n: usize) -> &SharedBytes {
        self.bytes.shared().get(self.range(n)).expect("it was looked at when the block was read")
    }

    /// The `n`-th entry of a data block.
    pub(super) fn record(&self, n: usize) -> Record<'_> {
        self.parsed(self.range(n)).expect("it was looked at when the block was read")
    }

    /// What the `n`-th entry of a data block says before its body.
    #[inline]
    pub(super) fn head(&self, n: usize) -> RecordHead<'_> {
        RecordHead::of_parsed(self.shared_entry(n))
    }

    /// The record that takes up `range`.
    fn parsed(&self, range: Range<usize>) -> Option<Record<'_>> {
        parsed(self.bytes.shared().get(range)?)
    }

    /// Of how many entries of a data block, from the first on, `is_before` holds, told their places; it holds of none after the first of which it does not.
    pub(super) fn partition(&self, is_before: impl Fn(usize) -> bool) -> usize {
        let (mut from, mut to) = (0, self.count);
        while from < to {
            let middle = (from + to) / 2;
            match is_before(middle) {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        from
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.shared().len() + OVERHEAD_BYTES
    }
}

/// The record that takes up all of `bytes`: it has no place in the log, and stands under the checksum of the block that it is or was in.
fn parsed(bytes: &SharedBytes) -> Option<Record<'_>> {
    parsed_first(bytes).filter(|record| record.record_bytes() == bytes.len())
}

/// The record with which `bytes` begin, of which the same holds.
#[inline]
pub(super) fn parsed_first(bytes: &SharedBytes) -> Option<Record<'_>> {
    Record::parse(bytes, 0, 0, false).ok()
}

/// Whether it is the record of this key (composite).
pub(super) fn is_of_key(record: RecordHead<'_>, key: &[u8]) -> bool {
    record.table().to_be_bytes() == key[..4] && *record.key() == key[4..]
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("count", &self.count).finish_non_exhaustive()
    }
}

/// A block to be.
#[derive(Debug)]
pub(super) struct BlockBuilder {
    /// Room for the head, then the entries.
    bytes: Vec<u8>,
    ends: Vec<u32>,
    /// The sum of the squares of the entries' lengths.
    squares: u64,
}

impl BlockBuilder {
    pub(super) fn new() -> BlockBuilder {
        BlockBuilder { bytes: vec![0; HEAD_BYTES], ends: Vec::new(), squares: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How long the entry is that a byte of it lies in, on the mean.
    pub(super) fn entry_bytes(&self) -> usize {
        (self.squares / (self.bytes.len() - HEAD_BYTES).max(1) as u64) as usize
    }

    /// What would be stored with an entry of so many bytes more.
    pub(super) fn raw_bytes_with(&self, entry_bytes: usize) -> usize {
        self.bytes.len() - HEAD_BYTES + entry_bytes + 4 * (self.ends.len() + 2)
    }

    /// Appends an entry of so many bytes, to be filled.
    pub(super) fn push(&mut self, entry_bytes: usize) -> &mut [u8] {
        let from = self.bytes.len();
        self.bytes.resize(from + entry_bytes, 0);
        self.squares += (entry_bytes as u64).pow(2);
        self.ends.push((self.bytes.len() - HEAD_BYTES) as u32);
        &mut self.bytes[from..]
    }

    /// The block, but for its head, which has room; to be followed by [`BlockBuilder::clear`].
    pub(super) fn finish(&mut self) -> &mut Vec<u8> {
        self.ends.iter().for_each(|end| self.bytes.extend(end.to_le_bytes()));
        self.bytes.extend((self.ends.len() as u32).to_le_bytes());
        &mut self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.bytes.truncate(HEAD_BYTES);
        self.ends.clear();
        self.squares = 0;
    }
}

/// A block's place: files of a store have numbers that are never given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockAddress {
    pub(super) number: u64,
    pub(super) page: u32,
}

impl Hash for BlockAddress {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.number << 32 ^ u64::from(self.page));
    }
}

/// Spreads places, which nobody else chooses, over 64 bits (splitmix64).
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write_u64(&mut self, n: u64) {
        let mixed = self.0.wrapping_add(n).wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        self.0 = mixed ^ mixed >> 31;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug, Clone, Copy)]
struct ByBytes;

impl Weighter<BlockAddress, Arc<Block>> for ByBytes {
    fn weight(&self, _: &BlockAddress, block: &Arc<Block>) -> u64 {
        block.memory_bytes() as u64
    }
}

type Blocks = Cache<BlockAddress, Arc<Block>, ByBytes, BuildHasherDefault<AddressHasher>>;

/// Verified blocks of all sorted tables of a store, those read least lately first to go. Clones are the same cache.
///
/// Blocks of the index have a part of their own: each leads to more than a hundred blocks of records, and would be pushed out by these before it is asked for again.
#[derive(Clone)]
pub struct BlockCache {
    records: Arc<Blocks>,
    index: Arc<Blocks>,
    /// Of all who look into the files.
    counts: Arc<LookCounts>,
    first_reads: Arc<FirstReads>,
}

/// Into how many parts, each with a lock, a cache of so many bytes is divided: as many as threads are kept apart by, but none so small that it would refuse a block of
/// several records, which is at most a MiB. A record that is larger than a part is not kept.
pub(super) fn shards(bytes: u64) -> usize {
    1 << (bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX).ilog2()
}

impl BlockCache {
    /// One of so many bytes for blocks of records, and as many for blocks of the index.
    pub fn new(bytes: u64) -> BlockCache {
        BlockCache::with_index(bytes, bytes)
    }

    /// One of so many bytes for blocks of records, and so many for blocks of the index.
    pub(crate) fn with_index(bytes: u64, index_bytes: u64) -> BlockCache {
        let part = |bytes: u64| {
            let options = OptionsBuilder::new()
                .estimated_items_capacity((bytes / PAGE_BYTES as u64).min(ITEMS_AT_FIRST_MAX) as usize)
                .weight_capacity(bytes)
                .shards(shards(bytes))
                .build()
                .expect("what has to be given is given");
            let (by_address, on_events) = (BuildHasherDefault::default(), DefaultLifecycle::default());
            Arc::new(Cache::with_options(options, ByBytes, by_address, on_events))
        };
        let (records, index) = (part(bytes), part(index_bytes));
        BlockCache { records, index, counts: Arc::default(), first_reads: Arc::default() }
    }

    fn part(&self, kind: EntryKind) -> &Blocks {
        match kind {
            EntryKind::Record => &self.records,
            EntryKind::Bound => &self.index,
        }
    }

    /// Bytes in it.
    pub fn bytes(&self) -> u64 {
        self.records.weight() + self.index.weight()
    }

    /// Bytes that it may have.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.records.capacity() + self.index.capacity()
    }

    /// What looks into the files have cost whose blocks are in it.
    pub(crate) fn counts(&self) -> &LookCounts {
        &self.counts
    }

    pub(super) fn get(&self, address: BlockAddress, kind: EntryKind) -> Option<Arc<Block>> {
        self.part(kind).get(&address).inspect(|_| self.counts.add(LookCount::CacheHit))
    }

    /// Whether a block that is read because it is not there was not read lately.
    pub(super) fn is_first_read(&self, address: BlockAddress) -> bool {
        self.first_reads.is_first(BuildHasherDefault::<AddressHasher>::default().hash_one(address))
    }

    /// Puts in a block that nobody looked for yet, or that was read because it was not there.
    pub(super) fn insert(&self, address: BlockAddress, block: &Arc<Block>) {
        self.part(block.kind()).insert(address, Arc::clone(block));
    }
}

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
