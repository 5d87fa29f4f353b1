//! Writing a sorted table: records in key order in, a durable file out.
//!
//! Owns how records are put into blocks, and how blocks are stored. Promises that a file which was finished is whole on the device, and that one that
//! was not is never taken for whole. Must not know where records come from.
//!
//! # Packing
//!
//! A block begins on a page, so compressing it is of use only if it takes fewer pages. Therefore the writer aims at what is *stored*: it keeps how well blocks
//! were compressed lately, and puts as many records into the next as should then fill its pages. Where compression gains less than an eighth, blocks are
//! stored as they are, and one in sixteen is tried, in case later rows are of another kind. A block that takes a page more than it was meant to has the next ones filled less. A block of short records is meant to take one page, others two.

use hedgerow_device::{CapacityTier, NewFile, OwnedBytes, WritePath};

use super::block::{BlockBuilder, BlockCache};
use super::bounds::{fitting, put_bounds};
use super::filter::{Filter, hash_of};
use super::format::{
    Codec, Counted, EntryKind, Footer, HEAD_BYTES, IndexBound, PAGE_BYTES, PageRange, RAW_BYTES_MAX, Section,
    SstId, SstSummary, bound_len, encode_header, seal_block,
};
use super::reader::Sst;
use crate::log::format::{FLAG_FIELD_EXPIRY, Record, RecordKind, RecordSpec};
use crate::options::Compression;
use crate::{Error, Result, limits};

/// So many index blocks of a new file go into the cache at once: those of a file of small rows are more, and push out what is read.
const KEPT_BLOCKS_MAX: usize = 256;
/// An index block as it was written.
type WrittenBlock = (PageRange, OwnedBytes);

/// One block in so many is tried while compression gains too little.
const TRIED_ONE_IN: u32 = 16;
/// Compression is worth while if it leaves at most this share.
const LEFT_MAX: f32 = 0.88;
/// Blocks are meant to be filled so far at least and at most: some compress a little worse than those before, and a page too many is a page wasted. How far follows from how often that happens: a
/// block that was filled too far has the aim lowered by the one, any other has it raised by the other, so that one in some twenty is.
const FILLED: [f32; 2] = [0.85, 0.97];
const FILLED_STEPS: [f32; 2] = [0.02, 0.001];
/// However well it compresses, a block holds no more than so many times what it is meant to store, or what two pages are: all of it is unpacked for one row.
const RAW_TIMES_MAX: usize = 4;
const BLOCK_PAGES_MAX: u32 = 64;
/// A block takes one page where so many records or more fit into it, compressed or not: half a record, which is what is left free at its end, is then no more than a thirty-second of it. A block is
/// read, verified and unpacked whole for one row, so a smaller one is the cheaper; of longer rows two pages lose less.
const RECORDS_A_PAGE: usize = 16;
/// A file takes no record more that would make it longer.
const FILE_BYTES_MAX: u64 = 4 << 30;
/// Nor one of a table more: what is known of each is in memory.
const TABLES_MAX: usize = 4096;

/// The largest row alone, with its checksums and the longest key, and the largest block of several.
const _: () = assert!(
    limits::BODY_BYTES_MAX + limits::ROW_BYTES_MAX / 8 + 2 * limits::KEY_BYTES_MAX < RAW_BYTES_MAX
        && RAW_TIMES_MAX * BLOCK_PAGES_MAX as usize * PAGE_BYTES < RAW_BYTES_MAX
);

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SstOptions {
    /// How blocks are stored.
    pub compression: Compression,
    /// Pages of 4 KiB that a block is meant to take: 1 to 64. Without a number one where records are so short that they fill it, else two.
    pub block_pages: Option<u32>,
    /// Whether its bytes stay in memory.
    pub path: WritePath,
}

impl Default for SstOptions {
    fn default() -> SstOptions {
        SstOptions { compression: Compression::Lz4, block_pages: None, path: WritePath::PastPageCache }
    }
}

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SstRecordKind {
    /// A whole row.
    Row,
    /// Fields that go over a row in an older file, if there is one there.
    Delta,
    /// There is no row, whatever older files say.
    Tombstone,
}

/// A record to be written, but for its body.
#[derive(Debug, Clone, Copy)]
pub struct SstRecord<'a> {
    /// What it is.
    pub kind: SstRecordKind,
    /// The table's number.
    pub table: u32,
    /// The row's key.
    pub key: &'a [u8],
    /// Of the table's schema.
    pub schema_version: u16,
    /// Its sequence.
    pub sequence: u64,
    /// As in the record's header: 0 in a delta takes an expiry away.
    pub expires_at_ms: Option<u64>,
    /// Whether the body has expiries of fields.
    pub has_field_expiries: bool,
    /// Bytes of the body.
    pub body_bytes: usize,
}

impl<'a> SstRecord<'a> {
    /// What a sorted table has of a record of the log, or of another sorted table.
    pub(crate) fn of(record: &Record<'a>) -> SstRecord<'a> {
        SstRecord {
            kind: match record.kind() {
                RecordKind::Delta => SstRecordKind::Delta,
                RecordKind::Tombstone => SstRecordKind::Tombstone,
                RecordKind::Row | RecordKind::Batch => SstRecordKind::Row,
            },
            table: record.table(),
            key: record.key(),
            schema_version: record.schema_version(),
            sequence: record.version(),
            expires_at_ms: record.expires_at_ms(),
            has_field_expiries: record.flags() & FLAG_FIELD_EXPIRY != 0,
            body_bytes: record.body_len(),
        }
    }

    fn spec(&self) -> RecordSpec<'a> {
        RecordSpec {
            kind: match self.kind {
                SstRecordKind::Row => RecordKind::Row,
                SstRecordKind::Delta => RecordKind::Delta,
                SstRecordKind::Tombstone => RecordKind::Tombstone,
            },
            flags: if self.has_field_expiries { FLAG_FIELD_EXPIRY } else { 0 },
            table: self.table,
            schema_version: self.schema_version,
            key: self.key,
            expires_at_ms: self.expires_at_ms,
            body_bytes: self.body_bytes,
        }
    }
}

/// How blocks are filled and stored.
#[derive(Debug)]
struct Packing {
    options: SstOptions,
    compresses: bool,
    /// What compression left of the blocks before, of one that is not compressed at all 1.
    left: f32,
    /// See [`FILLED`].
    filled: f32,
    /// Bytes of a record in the block before: the mean over its bytes, for it is long ones that do not fit at its end.
    record_bytes: usize,
    blocks: u32,
    compressed: Vec<u8>,
}

impl Packing {
    fn new(options: SstOptions) -> Packing {
        let compresses = options.compression == Compression::Lz4;
        let filled = FILLED[1];
        Packing { options, compresses, left: 1.0, filled, record_bytes: 0, blocks: 0, compressed: Vec::new() }
    }

    /// Raw bytes that the next block should have at most.
    fn raw_bytes(&self) -> usize {
        let pages = self.block_pages() as usize;
        let (room, most) = (pages * PAGE_BYTES - HEAD_BYTES, RAW_TIMES_MAX * pages.max(2) * PAGE_BYTES);
        match self.compresses && self.left < 1.0 {
            true => ((room as f32 * self.filled / self.left) as usize).clamp(room, most),
            false => room,
        }
    }

    /// Pages that the next block is meant to take.
    fn block_pages(&self) -> u32 {
        let are_short = self.record_bytes * RECORDS_A_PAGE <= PAGE_BYTES - HEAD_BYTES;
        let by_records = || if are_short { 1 } else { 2 };
        self.options.block_pages.unwrap_or_else(by_records).clamp(1, BLOCK_PAGES_MAX)
    }

    /// How a block, in `raw` behind room for its head, is stored; and its bytes, with that room.
    fn store<'b>(&'b mut self, raw: &'b mut [u8]) -> (Codec, &'b mut [u8]) {
        let is_tried = self.blocks.is_multiple_of(TRIED_ONE_IN);
        self.blocks = self.blocks.wrapping_add(1);
        if self.options.compression == Compression::None || !(self.compresses || is_tried) {
            return (Codec::Raw, raw);
        }
        let payload = &raw[HEAD_BYTES..];
        let is_as_meant = payload.len() <= self.raw_bytes();
        self.compressed.resize(HEAD_BYTES + lz4_flex::block::get_maximum_output_size(payload.len()), 0);
        let stored = lz4_flex::block::compress_into(payload, &mut self.compressed[HEAD_BYTES..]);
        let Ok(stored) = stored else { return (Codec::Raw, raw) };
        let left = stored as f32 / payload.len() as f32;
        self.left = if self.compresses && self.left < 1.0 { 0.75 * self.left + 0.25 * left } else { left };
        self.compresses = self.left <= LEFT_MAX;
        let is_too_full = (HEAD_BYTES + stored).div_ceil(PAGE_BYTES) > self.block_pages() as usize;
        let step = if is_too_full { -FILLED_STEPS[0] } else { FILLED_STEPS[1] };
        // A long record has as many pages as it takes.
        if is_as_meant {
            self.filled = (self.filled + step).clamp(FILLED[0], FILLED[1]);
        }
        match (HEAD_BYTES + stored).div_ceil(PAGE_BYTES) < raw.len().div_ceil(PAGE_BYTES) {
            true => (Codec::Lz4, &mut self.compressed[..HEAD_BYTES + stored]),
            false => (Codec::Raw, raw),
        }
    }
}

/// A file that is being written. Dropped before it is finished it is left as it is, to be removed by its name.
#[derive(Debug)]
pub struct SstWriter {
    file: NewFile,
    id: SstId,
    path: WritePath,
    packing: Packing,
    block: BlockBuilder,
    /// Lower bound of the block that is being filled.
    bound: Box<[u8]>,
    /// Of the last record; empty before the first.
    last_key: Vec<u8>,
    key: Vec<u8>,
    hashes: Vec<u64>,
    /// Of data blocks.
    bounds: Vec<IndexBound>,
    summary: SstSummary,
}

impl SstWriter {
    /// Begins a file.
    ///
    /// # Errors
    /// What the capacity tier refuses; then there is no file of it. One of that name that was there stays.
    pub fn create(tier: &CapacityTier, id: SstId, options: SstOptions) -> Result<SstWriter> {
        let mut file = tier.create(&id.file_name(), options.path)?;
        let begun = file.append(&encode_header(id)).and_then(|()| file.fill_page());
        if let Err(refused) = begun {
            drop(file);
            // If it stays, opening removes it.
            let _ = tier.remove(&id.file_name());
            return Err(refused.into());
        }
        Ok(SstWriter {
            file,
            id,
            path: options.path,
            packing: Packing::new(options),
            block: BlockBuilder::new(),
            bound: Box::default(),
            last_key: Vec::new(),
            key: Vec::new(),
            hashes: Vec::new(),
            bounds: Vec::new(),
            summary: SstSummary::default(),
        })
    }

    /// Which file it is.
    pub(crate) fn id(&self) -> SstId {
        self.id
    }

    /// Bytes of the file so far, without what is still to come behind its records.
    pub fn bytes(&self) -> u64 {
        self.file.bytes() + self.block.raw_bytes_with(0) as u64
    }

    /// Records so far.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Appends a record, whose key is above all before it; `fill` writes its body.
    ///
    /// # Errors
    /// `Invalid` if the key is not above the last, is empty or longer than any, if the row is larger than any, or the file full; what the
    /// capacity tier refuses: then the file is of no use any more.
    pub fn push(&mut self, record: &SstRecord<'_>, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        check_lengths(record)?;
        self.key.clear();
        self.key.extend(record.table.to_be_bytes());
        self.key.extend_from_slice(record.key);
        if !self.is_empty() && self.key <= self.last_key {
            return Err(Error::invalid(format!(
                "the keys of a sorted table rise: {} of table {} does not come after the one before",
                record.key.escape_ascii(),
                record.table
            )));
        }
        let spec = record.spec();
        let bytes = spec.record_bytes();
        if self.is_full_for(record) {
            return Err(Error::invalid(format!("the sorted table {} is full", self.id.file_name())));
        }
        if !self.block.is_empty() && self.block.raw_bytes_with(bytes) > self.packing.raw_bytes() {
            self.end_block()?;
        }
        if self.is_empty() {
            self.packing.record_bytes = bytes;
        }
        if self.block.is_empty() {
            // The first of all is whole: what is shorter is below all keys as well, but has nothing in common with the bounds behind it.
            let is_first = self.last_key.is_empty();
            let len = if is_first { self.key.len() } else { bound_len(&self.last_key, &self.key) };
            self.bound = self.key[..len].into();
        }
        spec.encode_without_checksums(self.block.push(bytes), record.sequence, fill);
        self.hashes.push(hash_of(&self.key));
        self.summary.add(
            &self.key,
            Counted {
                table: record.table,
                kind: spec.kind,
                sequence: record.sequence,
                expires: record.has_field_expiries || record.expires_at_ms.is_some_and(|ms| ms != 0),
                body_bytes: record.body_bytes as u64,
                bytes: bytes as u64,
            },
        );
        std::mem::swap(&mut self.last_key, &mut self.key);
        Ok(())
    }

    /// Whether the record needs another file: this would be too long with it, or it is the first of one table too many.
    pub(crate) fn is_full_for(&self, record: &SstRecord<'_>) -> bool {
        let tables = &self.summary.tables;
        self.bytes() + record.spec().record_bytes() as u64 > FILE_BYTES_MAX
            || tables.len() == TABLES_MAX && tables.last().is_some_and(|last| last.table != record.table)
    }

    fn end_block(&mut self) -> Result<()> {
        self.packing.record_bytes = self.block.entry_bytes();
        let raw = self.block.finish();
        let raw_bytes = raw.len() - HEAD_BYTES;
        let (codec, bytes) = self.packing.store(raw);
        let pages = write_block((&mut self.file, self.id), (EntryKind::Record, codec), (bytes, raw_bytes))?;
        self.bounds.push(IndexBound { pages, bound: std::mem::take(&mut self.bound) });
        self.block.clear();
        Ok(())
    }

    /// Writes what is left: all of the file is on the device on return. Its name is not, before [`CapacityTier::sync_names`].
    ///
    /// # Errors
    /// `Invalid` without records; what the capacity tier refuses: then the file is of no use.
    pub fn finish(mut self, cache: &BlockCache) -> Result<Sst> {
        if self.is_empty() {
            return Err(Error::invalid("a sorted table has records"));
        }
        self.end_block()?;
        let (index, blocks) = self.write_index()?;
        self.summary.index = index;
        self.summary.keys[1] = self.last_key.as_slice().into();
        let filter = Filter::of(&self.hashes);
        let footer = Footer {
            summary: self.write_section(&self.summary.encode())?,
            filter: self.write_section(&filter.encode())?,
        };
        self.file.append(&footer.encode(self.id))?;
        let file = self.file.finish()?;
        let sst = Sst::of((file, self.id), self.summary, (filter, footer.summary.first), cache);
        if self.path == WritePath::ThroughPageCache {
            sst.stays_in_memory();
        }
        blocks.into_iter().try_for_each(|(pages, bytes)| sst.keep_written(pages, bytes))?;
        Ok(sst)
    }

    /// Writes the index blocks, and returns where they are, and the bytes of those that come first.
    fn write_index(&mut self) -> Result<(Vec<IndexBound>, Vec<WrittenBlock>)> {
        let (mut raw, mut index, mut written) = (Vec::new(), Vec::new(), Vec::new());
        let bounds = std::mem::take(&mut self.bounds);
        let mut rest = bounds.as_slice();
        while let Some(first) = rest.first() {
            let (these, behind) = rest.split_at(fitting(rest));
            rest = behind;
            raw.clear();
            raw.resize(HEAD_BYTES, 0);
            put_bounds(these, &mut raw);
            let how = (EntryKind::Bound, Codec::Raw);
            let raw_bytes = raw.len() - HEAD_BYTES;
            let pages = write_block((&mut self.file, self.id), how, (&mut raw[..], raw_bytes))?;
            index.push(IndexBound { pages, bound: first.bound.clone() });
            if written.len() < KEPT_BLOCKS_MAX {
                let mut bytes = OwnedBytes::zeroed(pages.bytes());
                bytes.as_mut_slice()[..raw.len()].copy_from_slice(&raw);
                written.push((pages, bytes));
            }
        }
        Ok((index, written))
    }

    fn write_section(&mut self, bytes: &[u8]) -> Result<Section> {
        let first = next_page(&self.file);
        self.file.append(bytes)?;
        self.file.fill_page()?;
        Ok(Section::of(self.id, first, bytes))
    }
}

fn check_lengths(record: &SstRecord<'_>) -> Result<()> {
    let (key, body) = (record.key.len(), record.body_bytes);
    if key == 0 || key > limits::KEY_BYTES_MAX {
        let most = limits::KEY_BYTES_MAX;
        return Err(Error::invalid(format!("a key has 1 to {most} bytes, and this has {key}")));
    }
    if body > limits::BODY_BYTES_MAX {
        let most = limits::BODY_BYTES_MAX;
        return Err(Error::invalid(format!("a row has {body} bytes; the limit is {most}")));
    }
    Ok(())
}

fn next_page(file: &NewFile) -> u32 {
    (file.bytes() / PAGE_BYTES as u64) as u32
}

/// Writes a block behind room for its head, on pages of its own.
fn write_block(
    (file, id): (&mut NewFile, SstId),
    how: (EntryKind, Codec),
    (bytes, raw_bytes): (&mut [u8], usize),
) -> Result<PageRange> {
    let first = next_page(file);
    seal_block(bytes, (id, first), how, raw_bytes);
    file.append(bytes)?;
    file.fill_page()?;
    Ok(PageRange { first, count: next_page(file) - first })
}
