//! The bytes of a sorted table. All numbers are little-endian but for the table's in a composite key.
//!
//! Owns all of them. Promises that decoding what encoding gave is the same, that whatever else is found is `Corrupted`, and that no checksum of one place
//! matches at another. Must not know how a file is read.
//!
//! A file is whole pages of 4 KiB:
//!
//! ```text
//!  page 0      data blocks      index blocks       summary        filter        last page
//!  +--------+-----------------+-----------------+--------------+-------------+----------+
//!  | header | records         | bounds of data  | counts, keys | words of 32 | footer   |
//!  |        |                 | blocks          | index bounds | bits        |          |
//!  +--------+-----------------+-----------------+--------------+-------------+----------+
//! ```
//!
//! * **Header**: magic `HDGTABL2`, store (u128), file number (u64), what a reader needs to know (u32, a bit each; none so far), crc32c of those 36 bytes (u32), zeros.
//! * **Footer**: magic `HDGTABLE`, file number (u64), of the summary and then of the filter first page (u32), bytes (u32) and crc32c (u32), crc32c of
//!   those 40 bytes (u32), zeros.
//! * **Block**: begins on a page, so that a look costs one request of as few pages as there are. Head of 16 bytes: crc32c of all that follows (u32),
//!   stored bytes (u32), raw bytes (u32), codec (u8: 0 raw, 1 LZ4), what its entries are (u8: 1 records, 3 bounds), 2 zeros. Then the stored bytes, then zeros up to a whole page. What is stored is,
//!   under the codec, of records the entries, the end of each (u32), how many there are (u32); of bounds what `sst/bounds.rs` says.
//! * **Entry of a data block**: a record of the log (`log/format.rs`) without checksums of its own, for the block's stands over it; without what it replaced; without
//!   flags that speak of the log. A delta's base is in an older table, or nowhere. A multiple of 8 bytes.
//! * **Bounds**: a lower bound of a data block is the shortest string above all keys before the block and not above its first. What an index block has of some of them is said in
//!   `sst/bounds.rs`. Of the summary: page (u32) and pages (u32) of an index block, then the bound of its first data block.
//! * **Key** here: table (u32, big-endian), then the row's key. So tables follow one another, each in the order of its keys.
//! * **Summary**: least and greatest sequence (u64 each); rows, deltas, tombstones, bytes of records (u64 each); least and greatest key, bytes (u32) before each; how many tables (u32) and of
//!   each its number (u32), flags (u32: 1 something in it expires), bytes of the longest body, rows, deltas, tombstones, bytes of records (u64 each); how many index blocks
//!   (u32), and of each an entry with its bytes (u32) before it.
//! * **Checksums** of blocks, summary and filter are seeded with store, file number and place (`log/format.rs`, `Seed`).

use hedgerow_device::{CAPACITY_PAGE_BYTES, crc32c};
use hedgerow_row::le_bytes::{u32_at, u64_at, u128_at};

use crate::log::format::{RecordKind, Seed};
use crate::manifest::root::PLACED;
use crate::{Error, ErrorKind, Result};

/// Bytes of a page, in which all places are counted.
pub(super) const PAGE_BYTES: usize = CAPACITY_PAGE_BYTES;
/// Bytes of a block before what it stores.
pub(super) const HEAD_BYTES: usize = 16;
/// More than any block has, compressed or not: a row of the largest size alone.
pub(super) const RAW_BYTES_MAX: usize = 80 << 20;
const HEADER_MAGIC: &[u8; 8] = b"HDGTABL2";
const FOOTER_MAGIC: &[u8; 8] = b"HDGTABLE";
const HEADER_BYTES: usize = 36;
const FOOTER_BYTES: usize = 40;
/// A table with a row, a delta or a field that expires.
const TABLE_EXPIRES: u32 = 1;

/// Which sorted table: its number is given to no other of its store, ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SstId {
    /// The store's.
    pub store: u128,
    /// The file's.
    pub number: u64,
}

impl SstId {
    /// The name of its file.
    pub fn file_name(self) -> String {
        format!("{:08}.sst", self.number)
    }

    /// The number of the file of this name, if it is one of a sorted table.
    pub(crate) fn number_in(name: &str) -> Option<u64> {
        let number = name.strip_suffix(".sst")?.parse().ok()?;
        (SstId { store: 0, number }.file_name() == name).then_some(number)
    }

    /// The seeded checksum of bytes at a page of the file.
    pub(super) fn sum(self, page: u32, bytes: &[u8]) -> u32 {
        let of_file = self.number ^ (self.store as u64).rotate_left(32);
        Seed::new(PLACED | of_file, u64::from(page) * PAGE_BYTES as u64).crc32c(bytes)
    }

    #[cold]
    pub(super) fn damaged(self, why: &str) -> Error {
        Error::corrupted(format!("the sorted table {} is damaged: {why}", self.file_name()))
    }

    #[cold]
    pub(super) fn newer(self, what: &str) -> Error {
        let name = self.file_name();
        Error::new(
            ErrorKind::Version,
            format!("the sorted table {name} has {what}, which this build does not know"),
        )
    }
}

/// How one block is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Raw = 0,
    Lz4 = 1,
}

/// Some pages of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PageRange {
    pub(super) first: u32,
    pub(super) count: u32,
}

impl PageRange {
    pub(super) fn offset(self) -> u64 {
        u64::from(self.first) * PAGE_BYTES as u64
    }

    pub(super) fn bytes(self) -> usize {
        self.count as usize * PAGE_BYTES
    }
}

/// A part of the file that is read whole when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) first: u32,
    pub(super) bytes: u32,
    pub(super) checksum: u32,
}

impl Section {
    /// Of these bytes, at this page.
    pub(super) fn of(id: SstId, first: u32, bytes: &[u8]) -> Section {
        Section { first, bytes: bytes.len() as u32, checksum: id.sum(first, bytes) }
    }

    pub(super) fn offset(self) -> u64 {
        u64::from(self.first) * PAGE_BYTES as u64
    }
}

/// A key of the file: `table` and the row's.
pub fn composite_key(table: u32, key: &[u8]) -> Vec<u8> {
    [&table.to_be_bytes(), key].concat()
}

pub(super) fn encode_header(id: SstId) -> [u8; HEADER_BYTES + 4] {
    let mut out = [0; HEADER_BYTES + 4];
    out[..8].copy_from_slice(HEADER_MAGIC);
    out[8..24].copy_from_slice(&id.store.to_le_bytes());
    out[24..32].copy_from_slice(&id.number.to_le_bytes());
    let checksum = crc32c(0, &out[..HEADER_BYTES]);
    out[HEADER_BYTES..].copy_from_slice(&checksum.to_le_bytes());
    out
}

/// The store that a file is of, as its first page says; `None` if that is not whole.
pub(crate) fn store_in_header(page: &[u8]) -> Option<u128> {
    let is_whole =
        u32_at(page, HEADER_BYTES) == crc32c(0, &page[..HEADER_BYTES]) && page[..7] == HEADER_MAGIC[..7];
    is_whole.then(|| u128_at(page, 8))
}

/// Whether a first page begins as no sorted table does, nor what a crash leaves of one: of its bytes any may be missing.
pub(crate) fn is_foreign_header(page: &[u8]) -> bool {
    page[..7] != HEADER_MAGIC[..7] && page[..8].iter().any(|&byte| byte != 0)
}

/// Checks that the first page is that of this file of this store, and that this build knows all that it asks for.
pub(super) fn check_header(page: &[u8], id: SstId) -> Result<()> {
    if store_in_header(page).is_none() {
        return Err(id.damaged("its first page is not that of a sorted table"));
    }
    if page[7] != HEADER_MAGIC[7] {
        return Err(id.newer(&format!("format {}", page[7].escape_ascii())));
    }
    match (u128_at(page, 8), u64_at(page, 24), u32_at(page, 32)) {
        (of_store, _, _) if of_store != id.store => Err(id.damaged("it is of another store")),
        (_, of_file, _) if of_file != id.number => {
            Err(id.damaged(&format!("its first page is that of file {of_file}")))
        }
        (_, _, 0) => Ok(()),
        (_, _, needs) => Err(id.newer(&format!("needs {needs:#x}"))),
    }
}

/// What the last page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) summary: Section,
    pub(super) filter: Section,
}

impl Footer {
    pub(super) fn encode(&self, id: SstId) -> [u8; FOOTER_BYTES + 4] {
        let mut out = [0; FOOTER_BYTES + 4];
        out[..8].copy_from_slice(FOOTER_MAGIC);
        out[8..16].copy_from_slice(&id.number.to_le_bytes());
        for (at, section) in [(16, self.summary), (28, self.filter)] {
            out[at..at + 4].copy_from_slice(&section.first.to_le_bytes());
            out[at + 4..at + 8].copy_from_slice(&section.bytes.to_le_bytes());
            out[at + 8..at + 12].copy_from_slice(&section.checksum.to_le_bytes());
        }
        let checksum = crc32c(0, &out[..FOOTER_BYTES]);
        out[FOOTER_BYTES..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Takes the footer of a file of `pages` pages from its last.
    pub(super) fn decode(page: &[u8], id: SstId, pages: u32) -> Result<Footer> {
        let is_footer = u32_at(page, FOOTER_BYTES) == crc32c(0, &page[..FOOTER_BYTES])
            && page[..8] == *FOOTER_MAGIC
            && u64_at(page, 8) == id.number;
        if !is_footer {
            return Err(id.damaged("its last page is not the end of this table: it is not whole"));
        }
        let section = |at| Section {
            first: u32_at(page, at),
            bytes: u32_at(page, at + 4),
            checksum: u32_at(page, at + 8),
        };
        let footer = Footer { summary: section(16), filter: section(28) };
        let fits = |section: Section| {
            let end = u64::from(section.first) + u64::from(section.bytes).div_ceil(PAGE_BYTES as u64);
            section.first > 0 && end < u64::from(pages)
        };
        match fits(footer.summary) && fits(footer.filter) {
            true => Ok(footer),
            false => Err(id.damaged("its last page points outside of it")),
        }
    }
}

/// What a file, or one table in it, has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SstCounts {
    /// Whole rows.
    pub rows: u64,
    /// Deltas, whose base is in an older table.
    pub deltas: u64,
    /// Deleted keys.
    pub tombstones: u64,
    /// Bytes of all these records.
    pub bytes: u64,
}

impl SstCounts {
    /// Rows, deltas and tombstones.
    pub(crate) fn records(self) -> u64 {
        self.rows + self.deltas + self.tombstones
    }

    /// Adds what is somewhere else.
    pub(crate) fn add(&mut self, other: SstCounts) {
        let SstCounts { rows, deltas, tombstones, bytes } = other;
        self.rows += rows;
        self.deltas += deltas;
        self.tombstones += tombstones;
        self.bytes += bytes;
    }

    fn put(&self, out: &mut Vec<u8>) {
        [self.rows, self.deltas, self.tombstones, self.bytes]
            .iter()
            .for_each(|n| out.extend(n.to_le_bytes()));
    }
}

/// One table in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SstTable {
    /// Its number in the catalog.
    pub table: u32,
    /// Whether a row, a delta or a field of it expires.
    pub expires: bool,
    /// Bytes of its longest body, of a row or a delta.
    pub longest_body: u64,
    /// What is in the file of it.
    pub counts: SstCounts,
}

impl SstTable {
    /// Takes in what another file has of the table; not the same keys, but those of one run.
    pub(crate) fn add(&mut self, other: &SstTable) {
        self.expires |= other.expires;
        self.longest_body = self.longest_body.max(other.longest_body);
        self.counts.add(other.counts);
    }
}

/// Where a block lies, and a lower bound of its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexBound {
    pub(super) pages: PageRange,
    pub(super) bound: Box<[u8]>,
}

/// What is known of a file without looking into its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SstSummary {
    /// Least and greatest.
    pub(super) sequences: [u64; 2],
    pub(super) counts: SstCounts,
    /// Least and greatest, composite.
    pub(super) keys: [Box<[u8]>; 2],
    pub(super) tables: Vec<SstTable>,
    pub(super) index: Vec<IndexBound>,
}

/// No record yet.
impl Default for SstSummary {
    fn default() -> SstSummary {
        SstSummary {
            sequences: [u64::MAX, 0],
            counts: SstCounts::default(),
            keys: Default::default(),
            tables: Vec::new(),
            index: Vec::new(),
        }
    }
}

/// What a summary knows of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    pub(super) table: u32,
    pub(super) kind: RecordKind,
    pub(super) sequence: u64,
    /// It, or a field of it, expires.
    pub(super) expires: bool,
    pub(super) body_bytes: u64,
    pub(super) bytes: u64,
}

impl SstSummary {
    /// Counts a record whose composite key comes after all before.
    pub(super) fn add(&mut self, key: &[u8], record: Counted) {
        if self.tables.is_empty() {
            self.keys[0] = key.into();
        }
        self.sequences = [self.sequences[0].min(record.sequence), self.sequences[1].max(record.sequence)];
        if self.tables.last().is_none_or(|last| last.table != record.table) {
            let counts = SstCounts::default();
            let table = record.table;
            self.tables.push(SstTable { table, expires: false, longest_body: 0, counts });
        }
        let table = self.tables.last_mut().expect("there is one by now");
        table.expires |= record.expires;
        table.longest_body = table.longest_body.max(record.body_bytes);
        for counts in [&mut self.counts, &mut table.counts] {
            counts.bytes += record.bytes;
            *match record.kind {
                RecordKind::Row => &mut counts.rows,
                RecordKind::Delta => &mut counts.deltas,
                RecordKind::Tombstone | RecordKind::Batch => &mut counts.tombstones,
            } += 1;
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.sequences.iter().for_each(|sequence| out.extend(sequence.to_le_bytes()));
        self.counts.put(&mut out);
        for key in &self.keys {
            out.extend((key.len() as u32).to_le_bytes());
            out.extend_from_slice(key);
        }
        out.extend((self.tables.len() as u32).to_le_bytes());
        for table in &self.tables {
            out.extend(table.table.to_le_bytes());
            out.extend((if table.expires { TABLE_EXPIRES } else { 0 }).to_le_bytes());
            out.extend(table.longest_body.to_le_bytes());
            table.counts.put(&mut out);
        }
        out.extend((self.index.len() as u32).to_le_bytes());
        for IndexBound { pages, bound } in &self.index {
            out.extend((8 + bound.len() as u32).to_le_bytes());
            put_bound(*pages, bound, &mut out);
        }
        out
    }

    pub(super) fn decode(bytes: &[u8], id: SstId) -> Result<SstSummary> {
        let mut taking = Taking { bytes, id };
        let sequences = [taking.u64()?, taking.u64()?];
        let counts = taking.counts()?;
        let mut key = || {
            let len = taking.u32()? as usize;
            Ok::<Box<[u8]>, Error>(taking.take(len)?.into())
        };
        let keys = [key()?, key()?];
        let mut tables = Vec::new();
        for _ in 0..taking.u32()? {
            let (table, flags) = (taking.u32()?, taking.u32()?);
            let (expires, longest_body) = (flags & TABLE_EXPIRES != 0, taking.u64()?);
            tables.push(SstTable { table, expires, longest_body, counts: taking.counts()? });
        }
        let mut index = Vec::new();
        for _ in 0..taking.u32()? {
            let len = taking.u32()? as usize;
            let Some((pages, bound)) = take_bound(taking.take(len)?) else { return Err(taking.cut_off()) };
            index.push(IndexBound { pages, bound: bound.into() });
        }
        if index.is_empty() || !taking.bytes.is_empty() {
            return Err(taking.cut_off());
        }
        match index.is_sorted_by(|one, next| one.bound < next.bound) {
            true => Ok(SstSummary { sequences, counts, keys, tables, index }),
            false => Err(id.damaged("the bounds in its summary do not rise")),
        }
    }
}

/// Takes numbers off the beginning of a summary.
struct Taking<'b> {
    bytes: &'b [u8],
    id: SstId,
}

impl<'b> Taking<'b> {
    fn cut_off(&self) -> Error {
        self.id.damaged("its summary does not end where it should")
    }

    fn take(&mut self, len: usize) -> Result<&'b [u8]> {
        let Some((taken, rest)) = self.bytes.split_at_checked(len) else { return Err(self.cut_off()) };
        self.bytes = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32_at(self.take(4)?, 0))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64_at(self.take(8)?, 0))
    }

    fn counts(&mut self) -> Result<SstCounts> {
        let [rows, deltas, tombstones, bytes] = [self.u64()?, self.u64()?, self.u64()?, self.u64()?];
        Ok(SstCounts { rows, deltas, tombstones, bytes })
    }
}

/// Appends an index entry.
pub(super) fn put_bound(pages: PageRange, bound: &[u8], out: &mut Vec<u8>) {
    out.extend(pages.first.to_le_bytes());
    out.extend(pages.count.to_le_bytes());
    out.extend_from_slice(bound);
}

/// Takes an index entry apart.
pub(super) fn take_bound(entry: &[u8]) -> Option<(PageRange, &[u8])> {
    let (pages, bound) = entry.split_at_checked(8)?;
    Some((PageRange { first: u32_at(pages, 0), count: u32_at(pages, 4) }, bound))
}

/// The length of the shortest lower bound of `key` that is above `before`, which is below `key`.
pub(super) fn bound_len(before: &[u8], key: &[u8]) -> usize {
    let common = before.iter().zip(key).take_while(|(a, b)| a == b).count();
    (common + 1).min(key.len())
}

/// What the entries of a block are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EntryKind {
    Record = 1,
    Bound = 3,
}

/// Writes a block's head before what is stored, which begins at [`HEAD_BYTES`] of `out`.
pub(super) fn seal_block(
    out: &mut [u8],
    (id, page): (SstId, u32),
    (kind, codec): (EntryKind, Codec),
    raw_bytes: usize,
) {
    let stored = (out.len() - HEAD_BYTES) as u32;
    out[..HEAD_BYTES].fill(0);
    out[4..8].copy_from_slice(&stored.to_le_bytes());
    out[8..12].copy_from_slice(&(raw_bytes as u32).to_le_bytes());
    out[12..14].copy_from_slice(&[codec as u8, kind as u8]);
    let checksum = id.sum(page, &out[4..]);
    out[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// A verified block as it is stored.
#[derive(Debug)]
pub(super) struct StoredBlock<'b> {
    pub(super) codec: Codec,
    pub(super) raw_bytes: usize,
    pub(super) stored: &'b [u8],
}

/// Verifies a block of this kind, read with all its pages.
pub(super) fn open_block(bytes: &[u8], id: SstId, page: u32, kind: EntryKind) -> Result<StoredBlock<'_>> {
    let wrong = |what| id.damaged(&format!("the block at its page {page} {what}"));
    let stored_bytes = u32_at(bytes, 4) as usize;
    let Some(block) = bytes.get(..HEAD_BYTES + stored_bytes) else {
        return Err(wrong("does not match its checksum"));
    };
    if id.sum(page, &block[4..]) != u32_at(block, 0) {
        return Err(wrong("does not match its checksum"));
    }
    let codec = match block[12] {
        0 => Codec::Raw,
        1 => Codec::Lz4,
        unknown => return Err(id.newer(&format!("a block of codec {unknown} at its page {page}"))),
    };
    if block[13] != kind as u8 {
        return Err(wrong("is one of another kind"));
    }
    Ok(StoredBlock { codec, raw_bytes: u32_at(block, 8) as usize, stored: &block[HEAD_BYTES..] })
}
