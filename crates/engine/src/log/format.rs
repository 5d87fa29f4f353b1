//! Record format: every byte of the log between two segment headers.
//!
//! A record is a header, the key, the checksums of the body's blocks, and the body, each part at once after the other. All that is before the body
//! is the **record prefix**:
//!
//! ```text
//!  0        4        8                16                24       28       32   34   36 37 38 39 40
//!  +--------+--------+----------------+-----------------+--------+--------+----+----+--+--+--+--+
//!  | header | record |    sequence    |    previous     | table  |  body  |ver-|key |ki|fl|bl|0 |
//!  |  crc   | bytes  |                |    reference    |        |  bytes |sion|-1  |nd|ag|sh|  |
//!  +--------+--------+----------------+-----------------+--------+--------+----+----+--+--+--+--+
//!  40: expiry, 8 bytes, ms since 1970, only with flag EXPIRES (0 in a delta: "the row no longer expires")
//!      key bytes, then zeros to a multiple of 4
//!      one crc32c for each block of the body, 4 bytes each, then zeros to a multiple of 8
//!      merged through, 8 bytes, only with flag MERGEABLE
//!      body (row and delta bodies: see `schema/layout.rs`), then zeros to a multiple of 8
//! ```
//!
//! * All integers are little-endian. `record bytes` counts everything and is a multiple of 8.
//! * `header crc` is the crc32c of bytes 4 up to the body, seeded (see `Seed`) with the number of the segment, so that a
//!   record of the segment's earlier life is never taken for a live one, and with the place of the record in the tier, so that
//!   one which the medium put in the place of another is not either. In stores of versions 1 and 2 the place is left out.
//!   The complement of the crc marks an **invalidated** record: whole, but not to be replayed. One 8-byte store invalidates a record.
//! * After the last record of a segment that is not full come 8 zero bytes. The checksum of a record under way is 0, too,
//!   until it is whole. So after a killed process, any other checksum that does not match is corruption, not the end.
//! * With flag MERGEABLE (rows on a medium whose lines are cheap to flush) fixed fields of the body may be overwritten by
//!   those of deltas, see `consolidate/in_place.rs`. Then the header crc ends before the blocks' checksums, each checksum is XORed with the
//!   seed instead, and `merged through` is 0 or, in 48 bits, the sequence of the last delta that is in the
//!   body whole, under 16 bits of the crc32c of that number, seeded likewise. The number counts as the record's sequence where
//!   it is the higher.
//! * A block has `1 << block shift` bytes, which follows from the length of the body (`body_blocks.rs` of `crates/row`). A
//!   partial read verifies the header and the blocks it touches.
//! * `sequence` orders the versions of all keys of a store. Records of one batch share one.
//! * `previous` refers to what this record replaced when it was written, the version under it (`format/record_ref.rs`); 0 is nothing
//!   in the log. In a delta it is what that goes over; in a row it serves snapshots.
//! * Flag 32, of deltas: what it goes over is not in the log but in sorted tables, if it is anywhere; its `previous`, as a row's, serves
//!   snapshots. A whole record with a flag not known here is refused by name.
//! * `table` 0 is no table's. A row of it changes the catalog: its key is one zero byte, its body is described in
//!   `manifest/catalog.rs`. It takes its sequence as every write does, so the log is cut before it or after it.
//! * Kind `BATCH` frames a batch: its body is one u32, the number of bytes of the records that follow and belong to it.
//!   The batch counts only if they are all whole.

mod mergeable;
mod record_ref;

use std::cell::Cell;
use std::ops::Range;

use hedgerow_device::{SharedBytes, any_emulated, crc32c, crc32c_blocks};
use hedgerow_row::body_blocks::{BLOCKS_MAX, block_shift, bytes_verified};
use hedgerow_row::le_bytes::{u16_at, u32_at, u64_at};
use hedgerow_row::schema::body::BodyBytes;

use crate::manifest::root::PLACED;
use crate::sync::atomic::{Ordering, compiler_fence};
use crate::{Error, ErrorKind, Result};

use mergeable::{MERGED_BYTES, merged_word_matches};
pub(crate) use record_ref::RecordRef;

/// Bytes of the fixed part of a record header.
pub(crate) const HEADER_BYTES: usize = 40;
/// Bytes of the mark after the last record of a segment: zeros where the next header's checksum and length will be.
pub(crate) const END_BYTES: usize = 8;

/// A row or delta carries an expiry in its header.
pub(crate) const FLAG_EXPIRES: u8 = 1;
/// The body ends with a section of per-field expiries.
pub(crate) const FLAG_FIELD_EXPIRY: u8 = 2;
/// Written by gc: a copy, or a merge of a chain, under the sequence of its newest part.
pub(crate) const FLAG_RELOCATED: u8 = 4;
/// Part of a batch; counts only if the batch's frame does.
pub(crate) const FLAG_BATCHED: u8 = 8;

/// A row whose fixed fields may be merged in place.
pub(crate) const FLAG_MERGEABLE: u8 = 16;
/// A delta whose base is below the log.
pub(crate) const FLAG_BASE_BELOW: u8 = 32;
/// What this build knows. A record with another flag was written by one that gives it a meaning.
const FLAGS_KNOWN: u8 =
    FLAG_EXPIRES | FLAG_FIELD_EXPIRY | FLAG_RELOCATED | FLAG_BATCHED | FLAG_MERGEABLE | FLAG_BASE_BELOW;

/// Set in a record's offset: it is a copy in the cache, and the rest is its place there.
pub(crate) const CACHED_OFFSET: u64 = 1 << 63;

/// The table of records that change the catalog, and of the frames of batches.
pub(crate) const CATALOG_TABLE: u32 = 0;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Row = 1,
    Delta = 2,
    Tombstone = 3,
    Batch = 4,
}

impl RecordKind {
    fn of(number: u16) -> Option<RecordKind> {
        [RecordKind::Row, RecordKind::Delta, RecordKind::Tombstone, RecordKind::Batch]
            .into_iter()
            .find(|&kind| kind as u16 == number)
    }
}

/// The parts of a record that are known before its sequence is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordSpec<'a> {
    pub(crate) kind: RecordKind,
    pub(crate) flags: u8,
    pub(crate) table: u32,
    pub(crate) schema_version: u16,
    pub(crate) key: &'a [u8],
    /// `Some` sets `FLAG_EXPIRES`.
    pub(crate) expires_at_ms: Option<u64>,
    pub(crate) body_bytes: usize,
}

const fn align(bytes: usize, to: usize) -> usize {
    bytes.next_multiple_of(to)
}

/// Where in a record its prefix ends, and what a read of `part` of its body verifies apart from the prefix.
pub(crate) fn span_verified(
    flags: u8,
    key_bytes: usize,
    body_bytes: usize,
    part: &Range<usize>,
) -> (usize, Range<usize>) {
    let parts = Parts::new(flags, key_bytes, body_bytes, block_shift(body_bytes));
    let verified = bytes_verified(parts.shift, body_bytes, part);
    (parts.body, parts.body + verified.start..parts.body + verified.end)
}

/// Where the parts of a record lie.
#[derive(Debug, Clone, Copy)]
struct Parts {
    key: usize,
    crcs: usize,
    body: usize,
    record: usize,
    /// Where the bytes under the header crc end.
    checksummed: usize,
    shift: u8,
}

impl Parts {
    #[inline]
    const fn new(flags: u8, key_bytes: usize, body_bytes: usize, shift: u8) -> Parts {
        let key = HEADER_BYTES + if flags & FLAG_EXPIRES != 0 { 8 } else { 0 };
        let crcs = key + align(key_bytes, 4);
        let checksums_end = align(crcs + 4 * body_bytes.div_ceil(1 << shift), 8);
        let (body, checksummed) = match flags & FLAG_MERGEABLE {
            0 => (checksums_end, checksums_end),
            _ => (checksums_end + MERGED_BYTES, crcs),
        };
        Parts { key, crcs, body, record: body + align(body_bytes, 8), checksummed, shift }
    }
}

/// The box at the top, of a record of the most parts: an expiry, a key of 3 bytes, 3 blocks, the word of a merge.
const _: () = {
    let parts = Parts::new(FLAG_EXPIRES | FLAG_MERGEABLE, 3, 700, block_shift(700));
    assert!(HEADER_BYTES == 40 && parts.key == HEADER_BYTES + 8);
    assert!(
        parts.crcs == parts.key + 4 && parts.checksummed == parts.crcs,
        "a key is filled up to a multiple of 4"
    );
    assert!(
        parts.body == 64 + MERGED_BYTES,
        "3 checksums of 4 bytes, filled up to a multiple of 8, and the word"
    );
    assert!(parts.record == parts.body + 704);
    // What is stored at once, and what is counted in bits.
    assert!(parts.crcs.is_multiple_of(4) && parts.body.is_multiple_of(8) && END_BYTES == 8);
    assert!(RecordKind::Row as u8 == 1 && RecordKind::Batch as u8 == 4);
};

impl RecordSpec<'_> {
    /// All flags, those that follow from other parts included.
    fn all_flags(&self) -> u8 {
        self.flags | if self.expires_at_ms.is_some() { FLAG_EXPIRES } else { 0 }
    }

    fn parts(&self) -> Parts {
        Parts::new(self.all_flags(), self.key.len(), self.body_bytes, block_shift(self.body_bytes))
    }

    /// Bytes of the whole record.
    pub(crate) fn record_bytes(&self) -> usize {
        self.parts().record
    }

    /// Writes everything but what [`seal`] adds. `out` must be `record_bytes` long, or longer by [`END_BYTES`] where the
    /// segment has room for the end mark; `seed` is that of the record's place; `fill` writes the body.
    pub(crate) fn encode(&self, out: &mut [u8], seed: Seed, fill: impl FnOnce(&mut [u8])) {
        let parts = self.parts();
        let (record, end) = out.split_at_mut(parts.record);
        if let Some(end) = end.first_chunk_mut() {
            *end = [0; END_BYTES];
        }
        let (prefix, tail) = record.split_at_mut(parts.body);
        // First of all, and last in `seal`: whenever the process is killed, a checksum other than 0 is that of a whole
        // record.
        prefix[..4].fill(0);
        compiler_fence(Ordering::Release);
        // What fills parts up, before those are written over it: so many bytes as are known here are a store each, and no call.
        if let Some(last) = tail.last_chunk_mut() {
            *last = [0; 8];
        }
        prefix[..HEADER_BYTES].fill(0);
        prefix[parts.crcs - 4..parts.crcs].fill(0);
        if let Some(last) = prefix.last_chunk_mut() {
            *last = [0; 8 + MERGED_BYTES];
        }
        fill(&mut tail[..self.body_bytes]);
        let flags = self.all_flags();
        self.put_fields(prefix, &parts, flags);
        let mut crcs = [0u32; BLOCKS_MAX];
        let crcs = &mut crcs[..self.body_bytes.div_ceil(1 << parts.shift)];
        crc32c_blocks(&tail[..self.body_bytes], 1 << parts.shift, crcs);
        let mask = checksum_mask(flags, seed);
        for (bytes, crc) in prefix[parts.crcs..].chunks_exact_mut(4).zip(crcs) {
            bytes.copy_from_slice(&(*crc ^ mask).to_le_bytes());
        }
    }

    /// Writes a whole record over zeros, as many as it has bytes, that stands under the checksum of something larger: all its own are 0, and it
    /// replaced nothing.
    pub(crate) fn encode_without_checksums(
        &self,
        zeros: &mut [u8],
        sequence: u64,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let parts = self.parts();
        let (prefix, tail) = zeros.split_at_mut(parts.body);
        fill(&mut tail[..self.body_bytes]);
        self.put_fields(prefix, &parts, self.all_flags());
        prefix[8..16].copy_from_slice(&sequence.to_le_bytes());
    }

    /// What the header says, and the key.
    #[inline(always)]
    fn put_fields(&self, prefix: &mut [u8], parts: &Parts, flags: u8) {
        prefix[4..8].copy_from_slice(&(parts.record as u32).to_le_bytes());
        prefix[24..28].copy_from_slice(&self.table.to_le_bytes());
        prefix[28..32].copy_from_slice(&(self.body_bytes as u32).to_le_bytes());
        prefix[32..34].copy_from_slice(&self.schema_version.to_le_bytes());
        prefix[34..36].copy_from_slice(&((self.key.len() - 1) as u16).to_le_bytes());
        prefix[36..39].copy_from_slice(&[self.kind as u8, flags, parts.shift]);
        if let Some(at) = self.expires_at_ms {
            prefix[40..48].copy_from_slice(&at.to_le_bytes());
        }
        prefix[parts.key..parts.key + self.key.len()].copy_from_slice(self.key);
    }

    /// Bytes from the record's start up to its body: what [`seal`] needs.
    pub(crate) fn prefix_bytes(&self) -> usize {
        self.parts().body
    }
}

/// Finishes a record: its sequence, what it replaced, and the checksum over its prefix. `prefix` is all bytes up to the body.
pub(crate) fn seal(prefix: &mut [u8], seed: Seed, sequence: u64, previous: Option<RecordRef>) {
    prefix[8..16].copy_from_slice(&sequence.to_le_bytes());
    prefix[16..24].copy_from_slice(&previous.map_or(0, RecordRef::word).to_le_bytes());
    let crc = crc32c(seed.0, &prefix[4..checksummed_end(prefix)]);
    compiler_fence(Ordering::Release);
    prefix[0..4].copy_from_slice(&crc.to_le_bytes());
}

/// The first word of a sealed record, turned into that of an invalidated one.
pub(crate) fn invalidated_word(word: u64) -> u64 {
    word ^ u64::from(u32::MAX)
}

/// What a prefix that is not verified refers to.
#[inline]
pub(crate) fn previous_of(prefix: &[u8]) -> Option<RecordRef> {
    RecordRef::from_word(u64_at(prefix, 16))
}

/// What the delta at the beginning of a prefix goes over, if that is in the log.
#[inline]
pub(crate) fn base_of(prefix: &[u8]) -> Option<RecordRef> {
    previous_of(prefix).filter(|_| prefix[37] & FLAG_BASE_BELOW == 0)
}

/// Where in a prefix, all bytes up to the body, those under its checksum end.
#[inline]
fn checksummed_end(prefix: &[u8]) -> usize {
    match prefix[37] & FLAG_MERGEABLE {
        0 => prefix.len(),
        _ => Parts::new(prefix[37], key_bytes(prefix), 0, 0).checksummed,
    }
}

/// What the checksums of a record's blocks are XORed with.
#[inline]
fn checksum_mask(flags: u8, seed: Seed) -> u32 {
    if flags & FLAG_MERGEABLE == 0 { 0 } else { seed.0 }
}

/// What checksums begin with, so that the same bytes do not verify elsewhere: of which segment they are, and where they lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seed(u32);

impl Seed {
    /// Of what lies `offset` bytes into the tier, in the segment with the number `segment_number`.
    ///
    /// Spreads both over 32 bits (splitmix64). The halves of a segment number count openings and segments; folding them by XOR
    /// would give segment 3 of opening 2 the seed of segment 0 of opening 1, and stale records a second life. Places are
    /// spread before they meet it: they would cancel what two numbers differ by. No two places share the product.
    #[inline(always)]
    pub(crate) fn new(segment_number: u64, offset: u64) -> Seed {
        // All ones with `PLACED`: readers pass here, and no branch is theirs.
        let placed = (segment_number as i64 >> 63) as u64;
        let mixed = segment_number ^ (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) & placed);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        Seed((mixed ^ mixed >> 31) as u32)
    }

    /// The checksum of `bytes` that begins with it.
    pub(crate) fn crc32c(self, bytes: &[u8]) -> u32 {
        crc32c(self.0, bytes)
    }

    /// Of what lies at `offset` under its own checksum, such as a header: 0 where the place is left out, since of which
    /// segment it is it says itself.
    pub(super) fn of_header(segment_number: u64, offset: u64) -> u32 {
        if segment_number & PLACED == 0 { 0 } else { Seed::new(segment_number, offset).0 }
    }
}

/// A record at rest. Its prefix has been verified; blocks of the body are verified as they are read.
#[derive(Debug, Clone)]
pub(crate) struct Record<'a> {
    /// Those that may change are named in `format/mergeable.rs`. All others are lent as slices.
    bytes: &'a SharedBytes,
    offset: u64,
    /// Where the block checksums and the body begin. Not `Parts`: records are moved about on the read path, so they are small.
    crcs: u32,
    body: u32,
    body_bytes: u32,
    checksum_mask: u32,
    shift: u8,
    kind: RecordKind,
    invalidated: bool,
    /// Nothing is verified.
    is_trusted: bool,
    /// All blocks have been verified, or need not be.
    all_verified: Cell<bool>,
    /// A bit for each block that has been.
    verified: Cell<u128>,
}

/// What a record says of itself before its body, of bytes that [`Record::parse`] found to be one: for who compares keys, and needs no place for the rest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordHead<'a> {
    bytes: &'a SharedBytes,
}

impl<'a> RecordHead<'a> {
    /// Of bytes that begin with a record.
    #[inline]
    pub(crate) fn of_parsed(bytes: &'a SharedBytes) -> RecordHead<'a> {
        RecordHead { bytes }
    }

    /// Of bytes that are a record from end to end, by what it says of its lengths; its checksums are not looked at.
    #[inline]
    pub(crate) fn of_whole(bytes: &'a SharedBytes) -> Option<RecordHead<'a>> {
        let is_whole = bytes.len() >= HEADER_BYTES && {
            let header = bytes.frozen(0..HEADER_BYTES);
            RecordKind::of(kind_and_unknown_flags(header)).is_some()
                && parts_told(header).is_some_and(|parts| parts.record == bytes.len())
        };
        is_whole.then_some(RecordHead { bytes })
    }

    /// The part of a fixed length.
    #[inline(always)]
    fn fixed(self) -> &'a [u8] {
        self.bytes.frozen(0..HEADER_BYTES)
    }

    pub(crate) fn kind(self) -> RecordKind {
        RecordKind::of(u16::from(self.fixed()[36])).expect("it was parsed")
    }

    #[inline]
    pub(crate) fn record_bytes(self) -> usize {
        u32_at(self.fixed(), 4) as usize
    }

    #[inline]
    pub(crate) fn sequence(self) -> u64 {
        u64_at(self.fixed(), 8)
    }

    #[inline]
    pub(crate) fn table(self) -> u32 {
        u32_at(self.fixed(), 24)
    }

    #[inline]
    pub(crate) fn flags(self) -> u8 {
        self.fixed()[37]
    }

    #[inline]
    pub(crate) fn key(self) -> &'a [u8] {
        let start = if self.flags() & FLAG_EXPIRES != 0 { HEADER_BYTES + 8 } else { HEADER_BYTES };
        self.bytes.frozen(start..start + key_bytes(self.fixed()))
    }
}

/// Bytes that should begin with a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRecord<'a> {
    pub(crate) bytes: &'a SharedBytes,
    /// Where they lie: in the tier, or with [`CACHED_OFFSET`] in the cache.
    pub(crate) offset: u64,
    /// Of the segment they lie in.
    pub(crate) segment_number: u64,
}

impl<'a> RawRecord<'a> {
    /// [`Record::parse`].
    // Always inline, as all between here and a reader's row: a record that is returned through memory in parts and reloaded
    // whole stalls for longer than its parsing takes.
    #[inline(always)]
    pub(crate) fn record(self, verify: bool) -> std::result::Result<Record<'a>, NotARecord> {
        Record::parse(self.bytes, self.offset, self.segment_number, verify)
    }
}

/// Why bytes are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotARecord {
    /// The lengths do not fit one another or the room there is.
    Lengths,
    /// The lengths fit, the checksum of the prefix does not.
    Checksum,
    /// All fits, but it has these flags, which this build does not know: not to be taken for anything else, nor for torn.
    Flags(u8),
}

impl NotARecord {
    /// Of bytes whose kind or flags are not known: torn, unless their checksum says that somebody meant them.
    #[cold]
    #[inline(never)]
    fn of_unknown(bytes: &SharedBytes, offset: u64, segment_number: u64) -> NotARecord {
        let header = bytes.frozen(0..HEADER_BYTES);
        let unknown = header[37] & !FLAGS_KNOWN;
        let (body_bytes, seed) = (u32_at(header, 28) as usize, Seed::new(segment_number, offset));
        if unknown == 0 || header[38] != block_shift(body_bytes) {
            return NotARecord::Lengths;
        }
        let end = Parts::new(header[37], key_bytes(header), body_bytes, header[38]).checksummed;
        if end > bytes.len() {
            return NotARecord::Lengths;
        }
        let (stored, computed) = (u32_at(header, 0), crc32c(seed.0, bytes.frozen(4..end)));
        if stored == computed || stored == !computed {
            NotARecord::Flags(unknown)
        } else {
            NotARecord::Checksum
        }
    }

    /// Told to the caller, of the bytes at `offset`.
    #[cold]
    pub(crate) fn error(self, offset: u64) -> Error {
        let NotARecord::Flags(flags) = self else { return super::not_a_record(offset) };
        Error::new(
            ErrorKind::Version,
            format!(
                "the record at byte {offset} of the fast tier has flags {flags}, which this build does not know"
            ),
        )
    }
}

impl<'a> Record<'a> {
    /// Takes the record that starts at `bytes[0]`, which lies `offset` bytes into the tier.
    ///
    /// `verify` false skips the checksums, here and in the blocks; the lengths are always checked.
    #[inline(always)]
    pub(crate) fn parse(
        bytes: &'a SharedBytes,
        offset: u64,
        segment_number: u64,
        verify: bool,
    ) -> std::result::Result<Record<'a>, NotARecord> {
        if bytes.len() < HEADER_BYTES {
            return Err(NotARecord::Lengths);
        }
        let header = bytes.frozen(0..HEADER_BYTES);
        let (body_bytes, shift, flags) = (u32_at(header, 28), header[38], header[37]);
        let Some(kind) = RecordKind::of(kind_and_unknown_flags(header)) else {
            return Err(NotARecord::of_unknown(bytes, offset, segment_number));
        };
        let Some(parts) = parts_told(header) else { return Err(NotARecord::Lengths) };
        let Some(bytes) = bytes.get(0..parts.record) else { return Err(NotARecord::Lengths) };
        let seed = Seed::new(segment_number, offset);
        let mut invalidated = false;
        if verify {
            bytes.touch(0..parts.body);
            let checksummed = bytes.frozen(4..parts.checksummed);
            let (stored, computed) = (u32_at(header, 0), crc32c(seed.0, checksummed));
            invalidated = stored == !computed;
            if stored != computed && !invalidated {
                return Err(NotARecord::Checksum);
            }
            if flags & FLAG_MERGEABLE != 0 && !merged_word_matches(bytes, parts.body, seed) {
                return Err(NotARecord::Checksum);
            }
        }
        Ok(Record {
            bytes,
            offset,
            crcs: parts.crcs as u32,
            body: parts.body as u32,
            body_bytes,
            checksum_mask: checksum_mask(flags, seed),
            shift,
            kind,
            invalidated,
            is_trusted: !verify,
            // On an emulated medium what is not verified is still charged as it is looked at.
            all_verified: Cell::new(!verify && !any_emulated()),
            verified: Cell::new(0),
        })
    }

    pub(crate) fn kind(&self) -> RecordKind {
        self.kind
    }

    /// Whether no older record of the log belongs to its version: what it replaced serves snapshots alone.
    pub(crate) fn ends_version(&self) -> bool {
        self.kind != RecordKind::Delta || self.flags() & FLAG_BASE_BELOW != 0
    }

    /// Whole, but not to be replayed.
    pub(crate) fn is_invalidated(&self) -> bool {
        self.invalidated
    }

    /// What it says before its body.
    #[inline(always)]
    fn head(&self) -> RecordHead<'a> {
        RecordHead::of_parsed(self.bytes)
    }

    /// The part of a fixed length.
    #[inline(always)]
    fn header(&self) -> &'a [u8] {
        self.head().fixed()
    }

    pub(crate) fn flags(&self) -> u8 {
        self.head().flags()
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn record_bytes(&self) -> usize {
        self.bytes.len()
    }

    #[cfg(test)]
    fn prefix_bytes(&self) -> usize {
        self.body as usize
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.head().sequence()
    }

    /// Whether it says how the catalog of tables changes, and nothing of a row.
    #[inline]
    pub(crate) fn changes_catalog(&self) -> bool {
        self.table() == CATALOG_TABLE && self.kind == RecordKind::Row
    }

    /// Where in the tier the body lies.
    pub(crate) fn body_offset(&self) -> u64 {
        self.offset + u64::from(self.body)
    }

    /// What this record replaced.
    #[inline]
    pub(crate) fn previous(&self) -> Option<RecordRef> {
        previous_of(self.header())
    }

    pub(crate) fn table(&self) -> u32 {
        self.head().table()
    }

    pub(crate) fn schema_version(&self) -> u16 {
        u16_at(self.header(), 32)
    }

    /// The expiry in the header: `None` says nothing, `Some(0)` takes an expiry away.
    pub(crate) fn expires_at_ms(&self) -> Option<u64> {
        (self.flags() & FLAG_EXPIRES != 0)
            .then(|| u64_at(self.bytes.frozen(HEADER_BYTES..HEADER_BYTES + 8), 0))
    }

    pub(crate) fn key(&self) -> &'a [u8] {
        self.head().key()
    }

    /// The number in a batch frame's body.
    pub(crate) fn batch_bytes(&self) -> Result<usize> {
        let body = self.slice(0..4)?;
        Ok(u32_at(body, 0) as usize)
    }

    pub(crate) fn body_len(&self) -> usize {
        self.body_bytes as usize
    }

    /// The body, unverified, of a record that nobody merges into meanwhile.
    #[inline]
    pub(crate) fn raw_body(&self) -> &'a [u8] {
        self.bytes.frozen(self.body as usize..self.body as usize + self.body_bytes as usize)
    }

    /// Charges for a look at `part` of the body.
    #[inline]
    fn touch_body(&self, part: &Range<usize>) {
        self.bytes.touch(self.body as usize + part.start..self.body as usize + part.end);
    }

    /// The blocks that hold bytes of `part` of the body.
    pub(crate) fn blocks_of(&self, part: &Range<usize>) -> Range<usize> {
        part.start >> self.shift..part.end.div_ceil(1 << self.shift)
    }

    /// The bytes of the body that a block holds.
    pub(crate) fn block_range(&self, block: usize) -> Range<usize> {
        block << self.shift..((block + 1) << self.shift).min(self.body_bytes as usize)
    }

    /// Whether all blocks have been verified.
    pub(crate) fn is_verified(&self) -> bool {
        self.all_verified.get() || self.body_bytes == 0
    }

    /// The body has been found right in another way than by its checksums as they stand.
    pub(crate) fn set_verified(&self) {
        self.all_verified.set(true);
    }

    /// Verifies every block of the body.
    #[inline]
    pub(crate) fn verify_all(&self) -> Result<()> {
        if self.all_verified.get() || self.body_bytes == 0 {
            return Ok(());
        }
        if self.is_trusted {
            self.touch_body(&(0..self.body_bytes as usize));
            self.all_verified.set(true);
            return Ok(());
        }
        self.verify_blocks(0, (self.body_bytes as usize - 1) >> self.shift)
    }

    #[inline]
    fn verify_block(&self, block: usize) -> Result<()> {
        if self.verified.get() & 1 << block != 0 {
            return Ok(());
        }
        let start = self.body as usize + (block << self.shift);
        let end = (start + (1 << self.shift)).min(self.body as usize + self.body_bytes as usize);
        self.bytes.touch(start..end);
        if !self.block_matches(block, self.bytes.frozen(start..end)) {
            return Err(self.corrupted(start));
        }
        self.verified.set(self.verified.get() | 1 << block);
        Ok(())
    }

    /// Verifies neighbouring blocks in interleaved chains, in one go.
    #[inline]
    fn verify_blocks(&self, first: usize, last: usize) -> Result<()> {
        const GROUP: usize = 8;
        let body = self.raw_body();
        let mut checksums = [0u32; GROUP];
        for group in (first..=last).step_by(GROUP) {
            let count = (last + 1 - group).min(GROUP);
            let end = ((group + count) << self.shift).min(body.len());
            self.touch_body(&(group << self.shift..end));
            crc32c_blocks(&body[group << self.shift..end], 1 << self.shift, &mut checksums[..count]);
            let stored = self.crcs as usize + 4 * group;
            let stored = self.bytes.frozen(stored..stored + 4 * count).chunks_exact(4);
            for ((block, checksum), stored) in (group..).zip(&checksums).zip(stored) {
                if u32_at(stored, 0) != *checksum ^ self.checksum_mask {
                    return Err(self.corrupted(self.body as usize + (block << self.shift)));
                }
            }
        }
        let count = last + 1 - first;
        if count << self.shift >= body.len() {
            self.all_verified.set(true);
        } else {
            self.verified.set(self.verified.get() | ((1 << count) - 1) << first);
        }
        Ok(())
    }

    /// Verifies the blocks that hold bytes of `part`, which is not empty.
    fn verify(&self, part: &Range<usize>) -> Result<()> {
        if self.is_trusted {
            self.touch_body(part);
            return Ok(());
        }
        let (first, last) = (part.start >> self.shift, (part.end - 1) >> self.shift);
        if first == last {
            self.verify_block(first)
        } else if last - first >= 3 {
            self.verify_blocks(first, last)
        } else {
            (first..=last).try_for_each(|block| self.verify_block(block))
        }
    }

    #[cold]
    fn outside(&self) -> Error {
        Error::corrupted(format!(
            "the record at byte {} of the fast tier (key {}) points outside its own {} bytes",
            self.offset,
            self.key().escape_ascii(),
            self.body_bytes
        ))
    }

    #[cold]
    fn corrupted(&self, at: usize) -> Error {
        if self.offset & CACHED_OFFSET != 0 {
            let (place, key) = (self.offset ^ CACHED_OFFSET, self.key().escape_ascii());
            return Error::corrupted(format!(
                "the cached row at byte {place} of the cache (key {key}) does not match its checksum at its byte {at}"
            ));
        }
        Error::corrupted(format!(
            "the log is corrupted in the {}-byte block at byte {} of the fast tier (record at {}, key {}): its checksum does not match",
            1 << self.shift,
            self.offset + at as u64,
            self.offset,
            self.key().escape_ascii(),
        ))
    }
}

/// The kind and the flags that are not known, as one number: they cost readers no branch.
#[inline]
fn kind_and_unknown_flags(header: &[u8]) -> u16 {
    u16_at(header, 36) & !(u16::from(FLAGS_KNOWN) << 8)
}

/// Where the parts lie of the record with this header, if its lengths agree with one another.
#[inline]
fn parts_told(header: &[u8]) -> Option<Parts> {
    let (record_bytes, body_bytes) = (u32_at(header, 4) as usize, u32_at(header, 28) as usize);
    let (shift, flags) = (header[38], header[37]);
    if body_bytes > record_bytes || shift != block_shift(body_bytes) {
        return None;
    }
    let parts = Parts::new(flags, key_bytes(header), body_bytes, shift);
    (parts.record == record_bytes).then_some(parts)
}

#[inline]
fn key_bytes(record: &[u8]) -> usize {
    u16_at(record, 34) as usize + 1
}

impl<'a> BodyBytes<'a> for &Record<'a> {
    fn len(&self) -> usize {
        self.body_bytes as usize
    }

    // Inline where all is verified: a slice that is returned through memory is waited for.
    #[inline(always)]
    fn slice(&self, range: Range<usize>) -> Result<&'a [u8]> {
        let Some(slice) = self.raw_body().get(range.clone()) else { return Err(self.outside()) };
        if !self.all_verified.get() && !slice.is_empty() {
            self.verify(&range)?;
        }
        Ok(slice)
    }
}

#[cfg(test)]
mod tests;
