//! Segments: fixed extents of the fast tier that the log is written into, and their headers.
//!
//! A segment is one extent, or several in a row when one record is bigger than an extent. Every extent that begins a segment,
//! and every extent that once did, starts with a header, kept twice (at 0 and 64) so that a torn write spoils one copy:
//!
//! ```text
//!  0        8             16            24            32        36    37    38           60    64
//!  +--------+-------------+-------------+-------------+---------+-----+-----+------------+-----+
//!  | magic  | segment     | durable end | max sequence| extents |state|kind | 0          | crc |
//!  |        | number      |             |             |         |     |     |            |     |
//!  +--------+-------------+-------------+-------------+---------+-----+-----+------------+-----+
//! ```
//!
//! * `state` 0 free, 1 open, 2 sealed. `kind` 0 row, 1 delta, 2 relocated. `crc` is the crc32c of bytes 0..60, seeded
//!   (`log/format.rs`) with the segment number and the place of the extent in the tier; in stores of versions 1 and 2 not seeded.
//! * `segment number` is unique in the life of the store and seeds the checksums of the segment's records. Its highest bit
//!   (`PLACED`) is set in stores of version 3, and in no others: so whoever finds a header knows how it is seeded, and whoever
//!   knows the version tells it from what a store of another version left on the same blocks.
//! * Below `durable end` (bytes from the segment's start) everything was known to be durable when the header was
//!   written: what does not parse there is corruption. In an open segment the log may go on above it, up to a torn end;
//!   a sealed segment ends there.
//! * Of two valid copies the one later in the order (segment number, free, durable end) counts. An extent is taken into use by
//!   writing the first copy; the second says "used" only after a sync. An extent is freed by writing both, each durable
//!   before the next step. In between, updates go to the two copies in turn, a sync apart. So whatever ends the process,
//!   at most one copy is torn. `Log::may_be_free` says which tears are legal; both copies spoiled are corruption.
//! * Only a segment's first extent has a header; it is durable before the others are written. When such a segment is freed,
//!   all of `extents` are free at first; then the others' first bytes are made zero, durably, and `extents` 1.

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u32_at, u64_at};

use super::format::Seed;
use crate::manifest::root::PLACED;
pub(crate) use crate::manifest::root::SEGMENT_HEADER_BYTES;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::zeroed_words;

/// Bytes of one copy of the header.
pub(crate) const HEADER_COPY_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"HDGSEG01";
const _: () = {
    assert!(HEADER_COPY_BYTES == 64 && SEGMENT_HEADER_BYTES == 2 * HEADER_COPY_BYTES as u64);
    assert!(SegmentState::Free as u8 == 0 && SegmentState::Sealed as u8 == 2);
    assert!(SegmentKind::Row as u8 == 0 && SegmentKind::Relocated as u8 == 2);
};

/// What a segment holds, by how long its records are expected to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentKind {
    /// Rows, tombstones and batches, as written.
    Row = 0,
    /// Deltas, as written: they die young, when their chain is merged.
    Delta = 1,
    /// What gc kept: cold.
    Relocated = 2,
}

/// Where a segment is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentState {
    Free = 0,
    Open = 1,
    Sealed = 2,
}

/// A segment header, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) state: SegmentState,
    pub(crate) kind: SegmentKind,
    pub(crate) extents: u32,
    pub(crate) segment_number: u64,
    pub(crate) durable_end: u64,
    pub(crate) max_sequence: u64,
}

impl SegmentHeader {
    /// Either copy of the header of the extent that begins `offset` bytes into the tier.
    pub(crate) fn encode(&self, offset: u64) -> [u8; HEADER_COPY_BYTES] {
        let mut bytes = [0; HEADER_COPY_BYTES];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.segment_number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.durable_end.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.max_sequence.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.extents.to_le_bytes());
        bytes[36] = self.state as u8;
        bytes[37] = self.kind as u8;
        let crc = crc32c(Seed::of_header(self.segment_number, offset), &bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode_copy(bytes: &[u8], offset: u64, placed: bool) -> Option<SegmentHeader> {
        let segment_number = u64_at(bytes, 8);
        let is_of_store = (segment_number & PLACED != 0) == placed;
        let seed = Seed::of_header(segment_number, offset);
        if !is_of_store || bytes[..8] != MAGIC[..] || crc32c(seed, &bytes[..60]) != u32_at(bytes, 60) {
            return None;
        }
        let kind = match bytes[37] {
            0 => SegmentKind::Row,
            1 => SegmentKind::Delta,
            2 => SegmentKind::Relocated,
            _ => return None,
        };
        let state = match bytes[36] {
            0 => SegmentState::Free,
            1 => SegmentState::Open,
            2 => SegmentState::Sealed,
            _ => return None,
        };
        Some(SegmentHeader {
            state,
            kind,
            extents: u32_at(bytes, 32),
            segment_number,
            durable_end: u64_at(bytes, 16),
            max_sequence: u64_at(bytes, 24),
        })
    }

    /// Reads a header from the first 128 bytes of the extent that begins `offset` bytes into the tier of a store of version 3
    /// (`placed`) or of an older one.
    pub(crate) fn decode(bytes: &[u8], offset: u64, placed: bool) -> Decoded {
        let (first, second) = bytes[..2 * HEADER_COPY_BYTES].split_at(HEADER_COPY_BYTES);
        let copies = [first, second].map(|copy| SegmentHeader::decode_copy(copy, offset, placed));
        let order = |h: &SegmentHeader| (h.segment_number, h.state == SegmentState::Free, h.durable_end);
        let counts = u8::from(copies[1].as_ref().map(order) > copies[0].as_ref().map(order));
        let [header, other] = [counts, counts ^ 1].map(|copy| copies[usize::from(copy)]);
        let other_is_used = other.is_some_and(|other| other.state != SegmentState::Free);
        Decoded {
            header,
            copy: counts,
            spoiled: SegmentHeader::spoiled(bytes, offset, placed),
            other_is_used,
        }
    }

    /// Which of the two copies hold something that is not a header.
    fn spoiled(bytes: &[u8], offset: u64, placed: bool) -> [bool; 2] {
        let (first, second) = bytes[..2 * HEADER_COPY_BYTES].split_at(HEADER_COPY_BYTES);
        let is_bad = |bytes: &[u8]| {
            SegmentHeader::decode_copy(bytes, offset, placed).is_none() && bytes.iter().any(|&b| b != 0)
        };
        [is_bad(first), is_bad(second)]
    }
}

/// What the first bytes of an extent say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// `None`: the extent never began a segment, or (if a copy is spoiled) nothing can be told.
    pub(crate) header: Option<SegmentHeader>,
    /// Which copy that is.
    pub(crate) copy: u8,
    /// Which copies hold something that is not a header: torn by a crash, or corrupted.
    pub(crate) spoiled: [bool; 2],
    /// The copy that does not count says "in use".
    pub(crate) other_is_used: bool,
}

/// What is kept in DRAM for every extent, read and written without locks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent<'a> {
    /// Of the segment that the extent is part of.
    pub(crate) segment_number: &'a AtomicU64,
    /// Of the last segment here into which no slot led any more, and whose records may therefore be freed; 0 if there was none since the store was opened.
    pub(super) emptied_number: &'a AtomicU64,
    /// Bytes of records in this extent that no reader needs any more (estimated from size classes).
    pub(crate) obsolete_bytes: &'a AtomicU64,
    /// Rows in this extent that have deltas over them: emptying it makes the deltas obsolete, wherever they are. Those who
    /// count the beginning and the end of a chain may meet in any order, so it may be below zero for a moment: a signed
    /// number.
    pub(crate) chains: &'a AtomicU64,
    /// See `log/due.rs`.
    pub(super) expiry: ExtentExpiry<'a>,
}

/// What in an extent expires, and when. Zero where nothing does, or nobody has looked.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExtentExpiry<'a> {
    /// `u64::MAX` less the earliest time at which something expires that no sweep has come to.
    pub(super) urgency: &'a AtomicU64,
    /// What expired up to this time, a sweep has come to.
    pub(super) swept_ms: &'a AtomicU64,
    /// From this time on much of what was left by the last sweep has expired.
    pub(super) worth_ms: &'a AtomicU64,
}

impl ExtentExpiry<'_> {
    /// For a new segment.
    pub(super) fn reset(self) {
        [self.urgency, self.swept_ms, self.worth_ms].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// Those of all extents there may ever be. They take memory as they come into use.
#[derive(Debug)]
pub(crate) struct Extents(Box<[AtomicU64]>);

impl Extents {
    const WORDS: usize = 7;

    pub(crate) fn new(count: u32) -> Extents {
        Extents(zeroed_words(count as usize * Extents::WORDS))
    }

    #[inline]
    pub(crate) fn get(&self, extent: u64) -> Option<Extent<'_>> {
        let first = (extent as usize).checked_mul(Extents::WORDS)?;
        let [segment_number, emptied_number, obsolete_bytes, chains, urgency, swept_ms, worth_ms] =
            self.0.get(first..first.checked_add(Extents::WORDS)?)?
        else {
            return None;
        };
        let expiry = ExtentExpiry { urgency, swept_ms, worth_ms };
        Some(Extent { segment_number, emptied_number, obsolete_bytes, chains, expiry })
    }

    /// # Panics
    /// There is such an extent.
    #[inline]
    pub(crate) fn at(&self, extent: u32) -> Extent<'_> {
        self.get(extent.into()).expect("an extent of the tier")
    }
}

/// Deltas among the records of a segment, live or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Deltas {
    pub(crate) count: u32,
    /// Of their records.
    pub(crate) bytes: u64,
}

impl Deltas {
    /// With one more, of a record of so many bytes.
    #[inline]
    pub(crate) fn with(self, bytes: usize) -> Deltas {
        Deltas { count: self.count + 1, bytes: self.bytes + bytes as u64 }
    }
}

/// A used segment.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) extents: u32,
    pub(crate) kind: SegmentKind,
    pub(crate) segment_number: u64,
    /// Bytes from the segment's start to the end of its last record; final once sealed.
    pub(crate) end: u64,
    pub(crate) max_sequence: u64,
    /// Final once sealed.
    pub(crate) deltas: Deltas,
    /// No appender writes to it any more.
    pub(crate) sealed: bool,
    /// The `durable end` its header says, and whether it says "sealed".
    pub(crate) in_header: (u64, bool),
    /// Bytes from its start up to which all is known to have been durable, by its header or the root's list.
    pub(crate) durable_end: u64,
    /// Which copy of the header the next update goes to: never the one that counts, for the other may hold nothing.
    pub(crate) next_copy: u8,
    /// Gc is at work on it, or waits for readers and snapshots to let go of it.
    pub(crate) in_gc: bool,
    /// Its header says that it is free, or is about to: it is in use only until its extents are given back.
    pub(crate) is_freed: bool,
    /// A table went while it was in use: it may hold rows of it that are not counted as obsolete.
    pub(crate) miscounted: bool,
    /// Bytes of records of tables that are gone, and of changes of the catalog, as far as they have been counted among the obsolete.
    pub(crate) vanished: u64,
    /// Gc came upon corruption in it, or under a record in it: gc leaves it as it is.
    pub(crate) quarantined: bool,
    /// Gc failed to empty it for want of room, and leaves it alone for a while.
    pub(crate) skip: Skip,
    /// Snapshots older than this need something in it that was replaced. What is needed grows: later on it may be more.
    pub(crate) kept_before: u64,
    /// In a log that is looked into because it is damaged: the root's list has it, and knows of all in it up to the root's watermark.
    pub(crate) is_listed: bool,
}

/// How long a segment is left alone that had no room to be emptied into: for a number of cycles, or until a writer would be told that the store is full although
/// extents have come back since. That early it is tried once in as many cycles, for what is copied in vain is collected, too, and comes back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Skip {
    /// Up to this cycle.
    until: u64,
    /// How often extents had come back when it was skipped.
    returns: u64,
    /// Up to this cycle it is not tried early again.
    tried_until: u64,
}

impl Skip {
    /// It failed after so many `cycles`, and is left alone for the next `for_cycles`.
    pub(crate) fn begin(&mut self, cycles: u64, for_cycles: u64, returns: u64) {
        (self.until, self.returns) = (cycles + for_cycles, returns);
    }

    /// Whether it is left alone after so many cycles.
    pub(crate) fn is_skipped(&self, cycles: u64) -> bool {
        self.until > cycles
    }

    /// Ends it if extents have come back since it began, once while it would have lasted; whether it did.
    pub(crate) fn end_early(&mut self, cycles: u64, returns: u64) -> bool {
        let may_end = self.is_skipped(cycles) && self.tried_until <= cycles && self.returns != returns;
        if may_end {
            (self.tried_until, self.until) = (self.until, cycles);
        }
        may_end
    }
}

impl Segment {
    /// A segment that nobody is at work on, as `header` says it is; the first copy of the header is the next to be written.
    pub(crate) fn of(header: &SegmentHeader) -> Segment {
        let sealed = header.state == SegmentState::Sealed;
        Segment {
            extents: header.extents,
            kind: header.kind,
            segment_number: header.segment_number,
            end: header.durable_end.max(SEGMENT_HEADER_BYTES),
            max_sequence: header.max_sequence,
            deltas: Deltas::default(),
            sealed,
            in_header: (header.durable_end, sealed),
            durable_end: header.durable_end,
            next_copy: 0,
            in_gc: false,
            is_freed: false,
            miscounted: false,
            vanished: 0,
            quarantined: false,
            skip: Skip::default(),
            kept_before: 0,
            is_listed: false,
        }
    }

    /// So much of something in it, in proportion to what is not among the `obsolete` bytes of its records. No more than that: where a power cut took the end of a segment its deltas were counted before.
    pub(crate) fn of_live(&self, all: u64, obsolete: u64) -> u64 {
        let filled = self.end - SEGMENT_HEADER_BYTES;
        let live = filled - obsolete;
        (all * live).div_ceil(filled.max(1)).min(live)
    }

    /// To be counted anew, and nobody is at work on it.
    pub(crate) fn is_miscounted(&self) -> bool {
        self.miscounted && self.sealed && !self.in_gc && !self.quarantined
    }
}

/// Adds to an extent's obsolete bytes.
pub(crate) fn add_obsolete_bytes(extent: Extent<'_>, bytes: u64) {
    extent.obsolete_bytes.fetch_add(bytes, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            state: SegmentState::Open,
            kind: SegmentKind::Delta,
            extents: 3,
            segment_number: 77,
            durable_end: 4096,
            max_sequence: 12,
        }
    }

    /// Where the headers of these tests lie.
    const OFFSET: u64 = 5 << 20;

    /// That of a store whose checksums know their place.
    fn placed() -> SegmentHeader {
        SegmentHeader { segment_number: PLACED | 77, ..header() }
    }

    #[test]
    fn header_golden_bytes() {
        let hex: String = header().encode(OFFSET).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "48444753454730314d0000000000000000100000000000000c0000000000000003000000010100",
                "00000000000000000000000000000000000000000004c20b56"
            )
        );
    }

    /// Version 3: only the highest bit of the segment number differs, and the checksum.
    #[test]
    fn golden_bytes_of_a_placed_header() {
        let (older, bytes) = (header().encode(OFFSET), placed().encode(OFFSET));
        assert_eq!((&bytes[..15], bytes[15]), (&older[..15], 0x80));
        assert_eq!(bytes[16..60], older[16..60]);
        assert_eq!(u32_at(&bytes, 60), 0x76A9_E9DE);
    }

    /// A header that the medium put where another extent begins: it would say that what is there is free, or another segment.
    #[test]
    fn a_header_of_another_extent_does_not_count() {
        let both = [placed().encode(OFFSET), placed().encode(OFFSET)].concat();
        assert_eq!(SegmentHeader::decode(&both, OFFSET, true).header, Some(placed()));
        let step = if cfg!(miri) { 97 } else { 1 };
        for extent in (0..4096u64).step_by(step).filter(|extent| extent << 18 != OFFSET) {
            let decoded = SegmentHeader::decode(&both, extent << 18, true);
            assert_eq!((decoded.header, decoded.spoiled), (None, [true; 2]), "extent {extent}");
        }
    }

    /// What a store of another version left on the same blocks matches its checksum, and is no header of this one; nor does it hide one.
    #[test]
    fn a_header_of_a_store_of_another_version_does_not_count() {
        for (of_store, stale) in [(placed(), header()), (header(), placed())] {
            let placed = of_store.segment_number & PLACED != 0;
            let decode = |copies: [SegmentHeader; 2]| {
                SegmentHeader::decode(&copies.map(|copy| copy.encode(OFFSET)).concat(), OFFSET, placed)
            };
            let decoded = decode([stale; 2]);
            assert_eq!((decoded.header, decoded.spoiled), (None, [true; 2]));
            let decoded = decode([stale, of_store]);
            assert_eq!((decoded.header, decoded.spoiled), (Some(of_store), [true, false]));
        }
    }

    #[test]
    fn one_spoiled_copy_is_survived() {
        [header(), placed()].into_iter().for_each(spoil_each_bit);
        let nothing = Decoded { header: None, copy: 0, spoiled: [false; 2], other_is_used: false };
        assert_eq!(SegmentHeader::decode(&[0; 128], OFFSET, true), nothing);
        assert_eq!(SegmentHeader::decode(&[1; 128], OFFSET, true), Decoded { spoiled: [true; 2], ..nothing });
    }

    fn spoil_each_bit(header: SegmentHeader) {
        let copy = header.encode(OFFSET);
        let mut both = [copy, copy].concat();
        // Interpreted it takes a fifth of a second a bit, and what it does is arithmetic.
        for bit in (0..HEADER_COPY_BYTES * 8 * 2).step_by(if cfg!(miri) { 31 } else { 1 }) {
            both[bit / 8] ^= 1 << (bit % 8);
            let first = bit < HEADER_COPY_BYTES * 8;
            let decoded = SegmentHeader::decode(&both, OFFSET, header.segment_number & PLACED != 0);
            assert_eq!((decoded.header, decoded.copy), (Some(header), u8::from(first)));
            assert_eq!((decoded.spoiled, decoded.other_is_used), ([first, !first], false));
            both[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn the_later_copy_counts() {
        let open = header();
        let freed = SegmentHeader { state: SegmentState::Free, ..open };
        let reused = SegmentHeader { segment_number: 78, durable_end: 0, ..open };
        let pick = |a: SegmentHeader, b: SegmentHeader| {
            let both = [a.encode(OFFSET), b.encode(OFFSET)].concat();
            SegmentHeader::decode(&both, OFFSET, false).header.unwrap()
        };
        assert_eq!(pick(open, freed), freed);
        assert_eq!(pick(freed, open), freed);
        assert_eq!(pick(reused, freed), reused);
        assert_eq!(pick(SegmentHeader { durable_end: 5000, ..open }, open).durable_end, 5000);
    }
}
