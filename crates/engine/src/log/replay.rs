//! Walking a segment's records after a crash, and telling a torn end from corruption.

use hedgerow_device::SharedBytes;

use super::format::{FLAG_BATCHED, FLAG_RELOCATED, HEADER_BYTES, NotARecord, Record, RecordKind};
use super::segment::SEGMENT_HEADER_BYTES;
use crate::{Error, Result};

/// Walks the records of one segment, whole ones only, batches unfolded.
#[derive(Debug)]
pub(crate) struct SegmentWalk<'a> {
    bytes: &'a SharedBytes,
    start: u64,
    segment_number: u64,
    durable_end: usize,
    /// Rows with sequences up to this one may have been torn by a merge in place: they are passed on unverified.
    torn_through: u64,
    sealed: bool,
    position: usize,
    /// Where the record last returned, or the batch it is part of, starts.
    write_start: usize,
    /// Records before this position belong to a batch that was found whole.
    batch_end: usize,
    /// Where in that batch the first record lies that is not whole.
    torn_at: usize,
    /// Of the last record that was not a copy: its sequence, and whether it was part of a batch.
    last: (u64, bool),
    /// Where the batch at the end, which is not whole, would end: its records are no sign of more beyond.
    torn_batch_end: usize,
}

/// Where and why a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WalkEnd {
    /// Bytes from the segment's start.
    pub(crate) end: u64,
    /// There are whole records of this segment number after the end (and after the batch that stands there, if it is not
    /// whole).
    pub(crate) beyond: bool,
    /// At the end stands a checksum. After a killed process that is a record which was whole.
    pub(crate) dirty: bool,
    /// The lowest sequence among them, copies made by gc left out: those do not come in order.
    pub(crate) beyond_sequence: Option<u64>,
}

impl<'a> SegmentWalk<'a> {
    pub(super) fn new(
        bytes: &'a SharedBytes,
        start: u64,
        segment_number: u64,
        durable_end: u64,
        sealed: bool,
        torn_through: u64,
    ) -> SegmentWalk<'a> {
        let position = SEGMENT_HEADER_BYTES as usize;
        SegmentWalk {
            bytes,
            start,
            segment_number,
            durable_end: durable_end as usize,
            torn_through,
            sealed,
            position,
            write_start: position,
            batch_end: position,
            torn_at: 0,
            torn_batch_end: position,
            last: (0, false),
        }
    }

    /// The next record; `None` at the end. It is verified, unless a merge may have torn it. What does not parse where all was durable is `Corrupted`.
    pub(crate) fn next_record(&mut self) -> Result<Option<Record<'a>>> {
        while let Some(record) = self.parse_at(self.position)? {
            if record.kind() == RecordKind::Batch && !self.batch_is_whole(&record)? {
                let torn = record.record_bytes().saturating_add(record.batch_bytes()?);
                self.torn_batch_end = self.position.saturating_add(torn);
                return Ok(None);
            }
            self.check_order(&record)?;
            if self.position >= self.batch_end {
                self.write_start = self.position;
            }
            self.position += record.record_bytes();
            if record.kind() == RecordKind::Batch {
                self.batch_end = self.position + record.batch_bytes()?;
            } else if !record.is_invalidated() {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// A record that the walk came by, by its offset in the tier. It was verified then.
    pub(crate) fn record_again(&self, offset: u64) -> Result<Record<'a>> {
        let position = (offset - self.start) as usize;
        let rest = self.bytes.get(position..self.bytes.len()).ok_or_else(|| self.corrupted(position))?;
        Record::parse(rest, offset, self.segment_number, false).map_err(|_| self.corrupted(position))
    }

    /// An appender writes in the order of sequences. Where a whole record comes after a younger one, the medium put a page in
    /// the place of another of the same segment, and what was there is lost: in older stores checksums do not tell. Copies
    /// carry old sequences in any order.
    fn check_order(&mut self, record: &Record<'_>) -> Result<()> {
        if record.is_invalidated() || record.flags() & FLAG_RELOCATED != 0 {
            return Ok(());
        }
        let (sequence, batched) = (record.sequence(), record.flags() & FLAG_BATCHED != 0);
        let follows = sequence > self.last.0 || (sequence, batched) == (self.last.0, true) && self.last.1;
        self.last = (sequence, batched);
        if follows { Ok(()) } else { Err(self.corrupted(self.position)) }
    }

    /// Bytes from the segment's start to the record last returned, or to the frame of its batch.
    pub(crate) fn write_start(&self) -> u64 {
        self.write_start as u64
    }

    /// The record at `position`, verified to its last byte; `None` at the end of the log.
    fn parse_at(&self, position: usize) -> Result<Option<Record<'a>>> {
        let whole = match self.parsed(position) {
            Ok(record) => match record.verify_all() {
                Err(_) if record.is_mergeable() && record.sequence() <= self.torn_through => Ok(record),
                verified => verified.map(|()| record),
            },
            Err(why @ NotARecord::Flags(_)) => return Err(why.error(self.start + position as u64)),
            Err(_) => Err(self.corrupted(position)),
        };
        match whole {
            Ok(record) => Ok(Some(record)),
            Err(error) if position < self.durable_end => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn parsed(&self, position: usize) -> Result<Record<'a>, NotARecord> {
        let rest = self.bytes.get(position..self.bytes.len()).ok_or(NotARecord::Lengths)?;
        Record::parse(rest, self.start + position as u64, self.segment_number, true)
    }

    fn is_dirty(&self) -> bool {
        let at = self.position.max(self.torn_at);
        !self.sealed && self.bytes.get(at..at + 8).is_some_and(|word| word.u32_at(0) != 0)
    }

    fn batch_is_whole(&mut self, frame: &Record<'_>) -> Result<bool> {
        let mut position = self.position + frame.record_bytes();
        let end = position.saturating_add(frame.batch_bytes()?);
        while position < end.min(self.bytes.len()) {
            match self.parse_at(position)? {
                Some(record) => position += record.record_bytes(),
                None => {
                    self.torn_at = position;
                    return Ok(false);
                }
            }
        }
        if position != end && position < self.durable_end {
            return Err(self.corrupted(position));
        }
        Ok(position == end)
    }

    /// Where the walk stands, and whether records go on beyond. Call when `next_record` has returned `None`. `Version` if one of those is
    /// of a kind that this build does not know.
    pub(crate) fn end(&self) -> Result<WalkEnd> {
        let end = self.position as u64;
        let mut found = WalkEnd { end, beyond: false, dirty: self.is_dirty(), beyond_sequence: None };
        if !self.sealed {
            self.find_beyond(&mut found)?;
        }
        Ok(found)
    }

    /// Looks for a record after the place where parsing ended. Almost always there are only zeros.
    fn find_beyond(&self, found: &mut WalkEnd) -> Result<()> {
        let mut position = self.torn_batch_end.max(self.position + 8);
        while position.saturating_add(HEADER_BYTES) <= self.bytes.len() {
            if self.bytes.get(position..position + 8).is_some_and(|word| word.u64_at(0) == 0) {
                position += 8;
                continue;
            }
            position += match self.parsed(position) {
                Ok(record) => {
                    found.beyond = true;
                    if record.flags() & FLAG_RELOCATED == 0 {
                        let lowest = found.beyond_sequence.unwrap_or(u64::MAX);
                        found.beyond_sequence = Some(lowest.min(record.sequence()));
                    }
                    record.record_bytes()
                }
                Err(why @ NotARecord::Flags(_)) => return Err(why.error(self.start + position as u64)),
                Err(_) => 8,
            };
        }
        Ok(())
    }

    /// The error for a record that does not parse at `position`.
    pub(crate) fn corrupted(&self, position: usize) -> Error {
        Error::corrupted(format!(
            "the log is corrupted at byte {} of the fast tier (byte {position} of the segment at {}): what is there is not a record",
            self.start + position as u64,
            self.start
        ))
    }
}
