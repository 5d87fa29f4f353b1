//! Writing a sorted table: records in key order in, a durable file out.
//!
//! Owns how records are put into blocks, and how blocks are stored. Promises that a file which was finished is whole on the device, and that one that
//! was not is never taken for whole. Must not know where records come from.
//!
//! # Packing
//!
//! A block begins on a page, so compressing it is of use only if it takes fewer pages. Therefore the writer aims at what is *stored*: it keeps how well blocks
//! were compressed lately, and puts as many records into the next as should then fill its pages. Where compression gains less than an eighth, blocks are
//! stored as they are, and one in sixteen is tried, in case later rows are of another kind.

use hedgerow_device::{CapacityTier, NewFile};

use super::block::{BlockBuilder, BlockCache};
use super::filter::{Filter, hash_of};
use super::format::{
    Codec, Compression, Footer, HEAD_BYTES, IndexBound, PAGE_BYTES, PageRange, Section, SstSummary, SstTable,
    bound_len, encode_header, put_bound, seal_block,
};
use super::reader::Sst;
use crate::log::format::{FLAG_FIELD_EXPIRY, RecordKind, RecordSpec};
use crate::{Error, Result};

/// One block in so many is tried while compression gains too little.
const TRIED_ONE_IN: u32 = 16;
/// Compression is worth while if it leaves at most this share.
const LEFT_MAX: f32 = 0.88;
/// Blocks are meant to be filled so far: some compress a little worse than those before, and a page too many is a page wasted.
const FILLED: f32 = 0.97;
/// However well it compresses, a block holds no more than so many times what it stores: all of it is unpacked for one row.
const RAW_TIMES_MAX: usize = 4;

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SstOptions {
    /// How blocks are stored.
    pub compression: Compression,
    /// PageRange of 4 KiB that a block is meant to take.
    pub block_pages: u32,
}

impl Default for SstOptions {
    fn default() -> SstOptions {
        SstOptions { compression: Compression::Lz4, block_pages: 2 }
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
    blocks: u32,
    compressed: Vec<u8>,
}

impl Packing {
    fn new(options: SstOptions) -> Packing {
        let compresses = options.compression == Compression::Lz4;
        Packing { options, compresses, left: 1.0, blocks: 0, compressed: Vec::new() }
    }

    /// Raw bytes that the next block should have at most.
    fn raw_bytes(&self) -> usize {
        let room = self.options.block_pages.max(1) as usize * PAGE_BYTES - HEAD_BYTES;
        match self.compresses && self.left < 1.0 {
            true => ((room as f32 * FILLED / self.left) as usize).clamp(room, RAW_TIMES_MAX * room),
            false => room,
        }
    }

    /// How a block, in `raw` behind room for its head, is stored; and its bytes, with that room.
    fn store<'b>(&'b mut self, raw: &'b mut [u8]) -> (Codec, &'b mut [u8]) {
        let is_tried = self.blocks.is_multiple_of(TRIED_ONE_IN);
        self.blocks = self.blocks.wrapping_add(1);
        if self.options.compression == Compression::None || !(self.compresses || is_tried) {
            return (Codec::Raw, raw);
        }
        let payload = &raw[HEAD_BYTES..];
        self.compressed.resize(HEAD_BYTES + lz4_flex::block::get_maximum_output_size(payload.len()), 0);
        let stored = lz4_flex::block::compress_into(payload, &mut self.compressed[HEAD_BYTES..]);
        let Ok(stored) = stored else { return (Codec::Raw, raw) };
        let left = stored as f32 / payload.len() as f32;
        self.left = if self.compresses && self.left < 1.0 { 0.75 * self.left + 0.25 * left } else { left };
        self.compresses = self.left <= LEFT_MAX;
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
    number: u64,
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
    /// Begins the file `name` of the store `store`; `number` is given to no other file of it, ever.
    ///
    /// # Errors
    /// What the capacity tier refuses.
    pub fn create(
        tier: &CapacityTier,
        name: &str,
        (store, number): (u128, u64),
        options: SstOptions,
    ) -> Result<SstWriter> {
        let mut file = tier.create(name)?;
        file.append(&encode_header(store, number))?;
        file.fill_page()?;
        Ok(SstWriter {
            file,
            number,
            packing: Packing::new(options),
            block: BlockBuilder::new(),
            bound: Box::default(),
            last_key: Vec::new(),
            key: Vec::new(),
            hashes: Vec::new(),
            bounds: Vec::new(),
            summary: SstSummary { sequences: [u64::MAX, 0], ..SstSummary::default() },
        })
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
    /// `Invalid` if the key is not above the last; what the capacity tier refuses: then the file is of no use any more.
    pub fn push(&mut self, record: &SstRecord<'_>, fill: impl FnOnce(&mut [u8])) -> Result<()> {
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
        if !self.block.is_empty() && self.block.raw_bytes_with(bytes) > self.packing.raw_bytes() {
            self.end_block()?;
        }
        if self.block.is_empty() {
            self.bound = self.key[..bound_len(&self.last_key, &self.key)].into();
        }
        spec.encode_without_checksums(self.block.push(bytes), record.sequence, fill);
        self.hashes.push(hash_of(&self.key));
        self.count(record, bytes as u64);
        std::mem::swap(&mut self.last_key, &mut self.key);
        Ok(())
    }

    fn count(&mut self, record: &SstRecord<'_>, bytes: u64) {
        let summary = &mut self.summary;
        if summary.tables.is_empty() {
            summary.keys[0] = self.key.as_slice().into();
        }
        summary.sequences =
            [summary.sequences[0].min(record.sequence), summary.sequences[1].max(record.sequence)];
        if summary.tables.last().is_none_or(|last| last.table != record.table) {
            let counts = Default::default();
            summary.tables.push(SstTable { table: record.table, expires: false, counts });
        }
        let table = summary.tables.last_mut().expect("it was just pushed");
        table.expires |= record.has_field_expiries || record.expires_at_ms.is_some_and(|ms| ms != 0);
        for counts in [&mut summary.counts, &mut table.counts] {
            counts.bytes += bytes;
            *match record.kind {
                SstRecordKind::Row => &mut counts.rows,
                SstRecordKind::Delta => &mut counts.deltas,
                SstRecordKind::Tombstone => &mut counts.tombstones,
            } += 1;
        }
    }

    fn end_block(&mut self) -> Result<()> {
        let raw = self.block.finish();
        let raw_bytes = raw.len() - HEAD_BYTES;
        let (codec, bytes) = self.packing.store(raw);
        let pages = write_block((&mut self.file, self.number), codec, bytes, raw_bytes)?;
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
        self.summary.index = self.write_index()?;
        self.summary.keys[1] = self.last_key.as_slice().into();
        let filter = Filter::of(&self.hashes);
        let footer = Footer {
            summary: self.write_section(&self.summary.encode())?,
            filter: self.write_section(&filter.encode())?,
        };
        self.file.append(&footer.encode(self.number))?;
        let file = self.file.finish()?;
        Ok(Sst::of((file, self.number), self.summary, filter, cache))
    }

    /// Writes the index blocks, and returns where they are.
    fn write_index(&mut self) -> Result<Vec<IndexBound>> {
        let (mut block, mut index) = (BlockBuilder::new(), Vec::new());
        let bounds = std::mem::take(&mut self.bounds);
        let mut bounds = bounds.into_iter().peekable();
        let mut entry = Vec::new();
        while let Some(next) = bounds.next() {
            if block.is_empty() {
                let bound = next.bound.clone();
                index.push(IndexBound { pages: PageRange { first: 0, count: 0 }, bound });
            }
            entry.clear();
            put_bound(next.pages, &next.bound, &mut entry);
            block.push(entry.len()).copy_from_slice(&entry);
            let room = PAGE_BYTES - HEAD_BYTES;
            let is_full = bounds.peek().is_none_or(|next| block.raw_bytes_with(8 + next.bound.len()) > room);
            if is_full {
                let raw = block.finish();
                let raw_bytes = raw.len() - HEAD_BYTES;
                let pages = write_block((&mut self.file, self.number), Codec::Raw, raw, raw_bytes)?;
                index.last_mut().expect("the block was begun").pages = pages;
                block.clear();
            }
        }
        Ok(index)
    }

    fn write_section(&mut self, bytes: &[u8]) -> Result<Section> {
        let first = next_page(&self.file);
        self.file.append(bytes)?;
        self.file.fill_page()?;
        Ok(Section::of(self.number, first, bytes))
    }
}

fn next_page(file: &NewFile) -> u32 {
    (file.bytes() / PAGE_BYTES as u64) as u32
}

/// Writes a block behind room for its head, on pages of its own.
fn write_block(
    (file, number): (&mut NewFile, u64),
    codec: Codec,
    bytes: &mut [u8],
    raw_bytes: usize,
) -> Result<PageRange> {
    let first = next_page(file);
    seal_block(bytes, number, first, codec, raw_bytes);
    file.append(bytes)?;
    file.fill_page()?;
    Ok(PageRange { first, count: next_page(file) - first })
}
