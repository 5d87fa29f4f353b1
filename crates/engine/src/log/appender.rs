//! An appender: where one thread appends, and how a record gets there.
//!
//! A record is **reserved**, **encoded**, **sealed** and **committed**. Each step takes what the one before gave, so that
//! nothing is written outside a reservation, and nothing is sealed that was not encoded.

use std::marker::PhantomData;

use super::Log;
use super::format::{self, END_BYTES, RecordRef, RecordSpec, Seed};
use super::segment::{Deltas, SEGMENT_HEADER_BYTES, SegmentKind};
use crate::space::{Claim, NoRoom};
use crate::{Error, Result};

/// A thread's open segments, one for each kind it writes.
#[derive(Debug, Default)]
pub(crate) struct Appender {
    open: [Option<Open>; 3],
}

#[derive(Debug, Clone, Copy)]
struct Open {
    extent: u32,
    segment_number: u64,
    /// Absolute offsets in the tier.
    start: u64,
    cursor: u64,
    limit: u64,
    max_sequence: u64,
    deltas: Deltas,
}

impl Open {
    #[inline]
    fn reservation(&self, kind: SegmentKind, bytes: usize) -> Reservation {
        let Open { cursor: offset, segment_number, limit, .. } = *self;
        let end_bytes = if limit - offset > bytes as u64 { END_BYTES } else { 0 };
        Reservation { offset, bytes, segment_number, end_bytes, kind }
    }
}

/// Space in an open segment. It counts only once it is [committed](Appender::commit); until then the next reservation of
/// the kind gets the same bytes.
#[derive(Debug)]
pub(crate) struct Reservation {
    offset: u64,
    bytes: usize,
    segment_number: u64,
    /// Room behind it for the mark of the log's end (`log/format.rs`): all of it, or nothing.
    end_bytes: usize,
    kind: SegmentKind,
}

impl Reservation {
    /// What is reserved, but for the end mark.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset + self.bytes as u64
    }
}

/// A record at its place in the log, all of it but what sealing adds. Nobody can find it yet. It borrows the reservation, which
/// [`Appender::commit`] takes: what was committed cannot be sealed, nor cleared.
#[derive(Debug)]
pub(crate) struct EncodedRecord<'r> {
    offset: u64,
    segment_number: u64,
    prefix_bytes: usize,
    bytes: usize,
    reserved: PhantomData<&'r Reservation>,
}

impl EncodedRecord<'_> {
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Writing records.
impl Log {
    /// Writes a record, all but what [`Log::seal`] adds, `at` bytes into what is reserved. It gets a mark of the log's end behind it
    /// where there is room; the next record is written over that.
    #[inline]
    pub(crate) fn encode<'r>(
        &self,
        reservation: &'r Reservation,
        at: usize,
        spec: &RecordSpec<'_>,
        fill: impl FnOnce(&mut [u8]),
    ) -> EncodedRecord<'r> {
        let (bytes, offset) = (spec.record_bytes(), reservation.offset + at as u64);
        let end_bytes = (reservation.bytes + reservation.end_bytes - at - bytes).min(END_BYTES);
        let segment_number = reservation.segment_number;
        self.tier.write(offset, bytes + end_bytes, |out| {
            spec.encode(out, Seed::new(segment_number, offset), fill);
        });
        EncodedRecord {
            offset,
            segment_number,
            prefix_bytes: spec.prefix_bytes(),
            bytes,
            reserved: PhantomData,
        }
    }

    /// Gives a record its sequence, what it replaces, and its checksum: from now on it is whole.
    #[inline]
    pub(crate) fn seal(&self, record: &EncodedRecord<'_>, sequence: u64, previous: Option<RecordRef>) {
        let seed = Seed::new(record.segment_number, record.offset);
        self.tier.write(record.offset, record.prefix_bytes, |prefix| {
            format::seal(prefix, seed, sequence, previous);
        });
    }

    /// Makes a record durable, as it is. A failure closes the log for writing.
    pub(crate) fn persist_record(&self, record: &EncodedRecord<'_>) {
        self.persist_range(record.offset, record.bytes as u64);
    }

    /// Takes away the prefix, with the checksums, of a record that was encoded and will not be sealed.
    #[cold]
    pub(crate) fn clear_prefix(&self, record: &EncodedRecord<'_>) -> Result<()> {
        self.tier.write(record.offset, record.prefix_bytes, |prefix| prefix.fill(0));
        // PERSIST: gone before the next record's prefix can be there.
        self.persist_range(record.offset, record.prefix_bytes as u64);
        self.check_writable()
    }
}

/// Why a reservation was refused.
#[derive(Debug)]
pub(crate) enum NoSpace {
    /// No free segment now. Let go of the appender, wait for gc, try again.
    Full(NoRoom),
    /// Nothing gc could help with; `Full` if what is full is not the log.
    Failed(Error),
}

impl Appender {
    /// Reserves `bytes` (a multiple of 8) at the end of the open segment of `kind`, opening a new one if they do not fit.
    #[inline]
    pub(crate) fn reserve(
        &mut self,
        log: &Log,
        kind: SegmentKind,
        bytes: usize,
        claim: Claim,
    ) -> std::result::Result<Reservation, NoSpace> {
        // A sync that failed is found at once, not when the segment is full.
        if let Some(open) = &self.open[kind as usize]
            && open.limit - open.cursor >= bytes as u64
            && !log.tier.has_failed()
        {
            return Ok(open.reservation(kind, bytes));
        }
        self.reserve_in_new(log, kind, bytes, claim)
    }

    #[cold]
    fn reserve_in_new(
        &mut self,
        log: &Log,
        kind: SegmentKind,
        bytes: usize,
        claim: Claim,
    ) -> std::result::Result<Reservation, NoSpace> {
        log.check_open().map_err(NoSpace::Failed)?;
        let extents = (bytes as u64 + SEGMENT_HEADER_BYTES).div_ceil(log.extent_bytes()) as u32;
        let extent = log.open_segment(extents, kind, claim)?;
        self.seal(log, kind);
        let start = log.extent_offset(extent);
        let open = Open {
            extent,
            segment_number: log.extent_of(start).segment_number.load(crate::sync::atomic::Ordering::Relaxed),
            start,
            cursor: start + SEGMENT_HEADER_BYTES,
            limit: start + u64::from(extents) * log.extent_bytes(),
            max_sequence: 0,
            deltas: Deltas::default(),
        };
        self.open[kind as usize] = Some(open);
        Ok(open.reservation(kind, bytes))
    }

    /// Makes a reservation count: its bytes hold whole records up to `sequence`.
    #[inline]
    pub(crate) fn commit(&mut self, reservation: Reservation, sequence: u64) {
        if let Some(open) = &mut self.open[reservation.kind as usize]
            && open.cursor == reservation.offset
        {
            open.cursor += reservation.bytes as u64;
            open.max_sequence = open.max_sequence.max(sequence);
            if reservation.kind == SegmentKind::Delta {
                open.deltas.add(reservation.bytes);
            }
        }
    }

    /// Counts a delta among what was committed to a segment of rows: a part of a batch.
    pub(crate) fn count_delta(&mut self, bytes: usize) {
        if let Some(open) = &mut self.open[SegmentKind::Row as usize] {
            open.deltas.add(bytes);
        }
    }

    /// Bytes that the open segment of `kind` still takes.
    pub(crate) fn room(&self, kind: SegmentKind) -> u64 {
        self.open[kind as usize].map_or(0, |open| open.limit - open.cursor)
    }

    fn seal(&mut self, log: &Log, kind: SegmentKind) {
        let Some(open) = self.open[kind as usize].take() else { return };
        log.segments.lock().seal(open.extent, open.cursor - open.start, open.max_sequence, open.deltas);
    }

    /// Seals all open segments.
    pub(crate) fn seal_all(&mut self, log: &Log) {
        for kind in [SegmentKind::Row, SegmentKind::Delta, SegmentKind::Relocated] {
            self.seal(log, kind);
        }
    }

    /// If `extent` is part of an open segment: its first extent, its segment number, and where its records end.
    pub(super) fn written_at(&self, extent_offset: u64) -> Option<(u32, u64, u64)> {
        let holds = |open: &&Open| (open.start..open.limit).contains(&extent_offset);
        self.open.iter().flatten().find(holds).map(|o| (o.extent, o.segment_number, o.cursor - o.start))
    }

    /// Of every open segment: extent, segment number, bytes used, last sequence.
    pub(super) fn ends(&self) -> impl Iterator<Item = (u32, u64, u64, u64)> {
        self.open.iter().flatten().map(|o| (o.extent, o.segment_number, o.cursor - o.start, o.max_sequence))
    }
}

/// Waiting made into an error, for callers that cannot wait.
impl NoSpace {
    pub(crate) fn into_error(self, log: &Log) -> Error {
        match self {
            NoSpace::Failed(error) => error,
            NoSpace::Full(_) => {
                let (bytes, bytes_max) = log.space.bytes_used();
                let message = match log.space.disk_is_full() {
                    Some(why) => {
                        let path = log.tier().path().map(|path| format!("{}, ", path.display()));
                        let path = path.unwrap_or_default();
                        format!(
                            "the disk is full, and the fast tier ({path}{bytes} bytes) of live data: {why}; reads, deletes and overwrites go on"
                        )
                    }
                    None => format!(
                        "the fast tier is full of live data: it takes {bytes} bytes of at most {bytes_max}; reads and deletes go on"
                    ),
                };
                Error::new(crate::ErrorKind::Full, message)
            }
        }
    }
}

/// Refuses what can never fit.
pub(crate) fn check_fits(log: &Log, bytes: usize) -> Result<()> {
    let (_, bytes_max) = log.space.tier_bytes();
    let limit = bytes_max.saturating_sub(u64::from(5 + log.root_extents) * log.extent_bytes());
    if bytes as u64 + SEGMENT_HEADER_BYTES > limit {
        return Err(Error::invalid(format!(
            "the write takes {bytes} bytes at once; a fast tier of {bytes_max} bytes takes at most {limit}"
        )));
    }
    Ok(())
}
