//! An appender: where one thread appends, and how a record gets there.
//!
//! Bytes are **reserved**, a record is **encoded** there, and **sealed**, with which it counts. Each step takes what the one before gave: who
//! has a reservation has its appender to himself; a record is encoded within what is reserved, behind those before it; it is sealed once, and
//! in the order that it lies in. What was sealed somebody may have found, and nothing that is written after it goes over it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

use super::Log;
use super::format::{self, END_BYTES, RecordKind, RecordRef, RecordSpec, Seed};
use super::segment::{Deltas, SEGMENT_HEADER_BYTES, SegmentKind};
use super::write_back::WrittenBack;
use crate::invariants;
use crate::space::{Claim, NoRoom};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

thread_local! {
    /// How many appenders the calling thread has locked, where that is counted.
    static LOCKED: Cell<u32> = const { Cell::new(0) };
}

/// An appender, locked: nobody else writes in it, and where all are, nobody writes.
#[derive(Debug)]
pub(crate) struct LockedAppender<'l>(MutexGuard<'l, Appender>);

impl<'l> LockedAppender<'l> {
    #[inline]
    pub(super) fn new(locked: MutexGuard<'l, Appender>) -> LockedAppender<'l> {
        if invariants::ARE_OF_THREADS {
            LOCKED.set(LOCKED.get() + 1);
        }
        LockedAppender(locked)
    }
}

impl Drop for LockedAppender<'_> {
    #[inline]
    fn drop(&mut self) {
        if invariants::ARE_OF_THREADS {
            LOCKED.set(LOCKED.get() - 1);
        }
    }
}

impl Deref for LockedAppender<'_> {
    type Target = Appender;

    #[inline]
    fn deref(&self) -> &Appender {
        &self.0
    }
}

impl DerefMut for LockedAppender<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Appender {
        &mut self.0
    }
}

/// Fails the test in which the calling thread waits for the disk, or may, and has an appender locked: all who write in that would wait with it.
#[inline]
pub(crate) fn check_waits_alone() {
    if invariants::ARE_OF_THREADS {
        invariants::check("a wait for the disk", || match LOCKED.get() {
            0 => Ok(()),
            locked => Err(format!("the thread that waits has {locked} appenders locked")),
        });
    }
}

/// A thread's open segments, one for each kind it writes.
#[derive(Debug, Default)]
pub(crate) struct Appender {
    open: [Option<Open>; 3],
}

#[derive(Debug)]
struct Open {
    extent: u32,
    segment_number: u64,
    /// Absolute offsets in the tier.
    start: u64,
    limit: u64,
    /// Where its sealed records end; and of those, the last sequence, and the deltas. A reservation is the only one to change them.
    cursor: Cell<u64>,
    max_sequence: Cell<u64>,
    deltas: Cell<Deltas>,
    written_back: WrittenBack,
}

impl Open {
    /// Bytes up to where its records end.
    fn used(&self) -> u64 {
        self.cursor.get() - self.start
    }
}

/// Space in an open segment, whose appender does nothing else meanwhile. What of it was not sealed is not taken: the next reservation of
/// the kind gets the same bytes.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    log: &'a Log,
    open: &'a Open,
    start: u64,
    end: u64,
    /// Where the next record goes.
    next: Cell<u64>,
}

impl Reservation<'_> {
    /// All that is reserved.
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Writes the next record, all but what [`EncodedRecord::seal`] adds. It gets a mark of the log's end behind it where the segment has
    /// room (`log/format.rs`): all of it, or nothing. The next record is written over that.
    ///
    /// # Panics
    /// If the record is longer than what is left.
    #[inline]
    pub(crate) fn encode(&self, spec: &RecordSpec<'_>, fill: impl FnOnce(&mut [u8])) -> EncodedRecord<'_> {
        let Reservation { log, open, ref next, end, .. } = *self;
        // Nothing is left while this record is written: `fill` may call this again, and would write over it.
        let (offset, bytes) = (next.replace(end), spec.record_bytes());
        assert!(bytes as u64 <= end - offset, "a record is no longer than what was reserved for it");
        let end_bytes = if open.limit - offset > bytes as u64 { END_BYTES } else { 0 };
        log.tier.write(offset, bytes + end_bytes, |out| {
            spec.encode(out, Seed::new(open.segment_number, offset), fill);
        });
        next.set(offset + bytes as u64);
        let (prefix_bytes, is_delta) = (spec.prefix_bytes(), spec.kind == RecordKind::Delta);
        EncodedRecord { log, open, offset, prefix_bytes, bytes, is_delta, reserved: PhantomData }
    }

    /// Takes the prefix, with the checksums, of a record away that was encoded as `spec` says, alone, and was not sealed: what is written
    /// here next may not be taken for it. All of its prefix is gone, durably, when this returns.
    ///
    /// # Errors
    /// If it could not be made durable. The log takes no more writes then.
    ///
    /// # Panics
    /// If a record was sealed.
    #[cold]
    pub(crate) fn clear(self, spec: &RecordSpec<'_>) -> Result<()> {
        assert_eq!(self.open.cursor.get(), self.start, "somebody may have found a record that was sealed");
        let bytes = (spec.prefix_bytes() as u64).min(self.end - self.start);
        self.log.tier.write(self.start, bytes as usize, |prefix| prefix.fill(0));
        // PERSIST: gone before the next record's prefix can be there.
        self.log.persist_range(self.start, bytes);
        self.log.check_writable()
    }
}

/// A record at its place in the log, all of it but what sealing adds. Nobody can find it yet. It borrows its reservation, which cannot be
/// cleared nor its appender unlocked before it is sealed, or given up.
#[derive(Debug)]
pub(crate) struct EncodedRecord<'r> {
    log: &'r Log,
    open: &'r Open,
    offset: u64,
    prefix_bytes: usize,
    bytes: usize,
    is_delta: bool,
    reserved: PhantomData<&'r Reservation<'r>>,
}

impl<'r> EncodedRecord<'r> {
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Makes it durable, as it is. A failure closes the log for writing.
    pub(crate) fn persist(&self) {
        self.log.persist_range(self.offset, self.bytes as u64);
    }

    /// Gives it its sequence, what it replaces, and its checksum: from now on it is whole, counts, and may be found.
    ///
    /// # Panics
    /// If a record before it in the reservation is not sealed.
    #[inline(always)]
    pub(crate) fn seal(self, sequence: u64, previous: Option<RecordRef>) -> SealedRecord<'r> {
        let EncodedRecord { log, open, offset, prefix_bytes, bytes, is_delta, .. } = self;
        let Open { ref cursor, ref max_sequence, ref deltas, .. } = *open;
        assert!(cursor.get() == offset, "records are sealed in the order that they lie in");
        cursor.set(offset + bytes as u64);
        max_sequence.set(max_sequence.get().max(sequence));
        if is_delta {
            deltas.set(deltas.get().with(bytes));
        }
        log.tier.write(offset, prefix_bytes, |prefix| {
            format::seal(prefix, Seed::new(open.segment_number, offset), sequence, previous);
        });
        SealedRecord { log, offset, bytes, reserved: PhantomData }
    }
}

/// A whole record, which may be found, and is not written any more.
#[derive(Debug)]
pub(crate) struct SealedRecord<'r> {
    log: &'r Log,
    offset: u64,
    bytes: usize,
    reserved: PhantomData<&'r Reservation<'r>>,
}

impl SealedRecord<'_> {
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Makes it durable. A failure closes the log for writing.
    #[inline]
    pub(crate) fn persist(&self) {
        self.log.persist_range(self.offset, self.bytes as u64);
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
    pub(crate) fn reserve<'a>(
        &'a mut self,
        log: &'a Log,
        kind: SegmentKind,
        bytes: usize,
        claim: Claim,
    ) -> std::result::Result<Reservation<'a>, NoSpace> {
        self.reserve_or(log, kind, bytes, claim, Err)
    }

    /// The same for whoever may claim something else if `claim` is refused.
    #[inline]
    pub(crate) fn reserve_or<'a>(
        &'a mut self,
        log: &'a Log,
        kind: SegmentKind,
        bytes: usize,
        claim: Claim,
        other_claim: impl FnOnce(NoSpace) -> std::result::Result<Claim, NoSpace>,
    ) -> std::result::Result<Reservation<'a>, NoSpace> {
        // Whoever appends next writes a full block back: its own writer has published by then, and holds no leaf.
        if let Some(open) = &mut self.open[kind as usize]
            && open.written_back.lacks_block(open.cursor.get())
        {
            open.written_back.write_blocks(log, open.cursor.get());
        }
        // That a sync or an edit failed is found at once, not when the segment is full: nobody would sync what is written after it.
        let is_refused = || log.tier.has_failed() || log.is_halted.load(Ordering::Relaxed);
        let fits = |open: &Open| open.limit - open.cursor.get() >= bytes as u64 && !is_refused();
        if !self.open[kind as usize].as_ref().is_some_and(fits) {
            self.begin_segment(log, kind, bytes, claim, other_claim)?;
        }
        let open = self.open[kind as usize].as_ref().expect("a segment is open");
        let start = open.cursor.get();
        Ok(Reservation { log, open, start, end: start + bytes as u64, next: Cell::new(start) })
    }

    /// Opens a segment of `kind` in which `bytes` fit, in place of the one that is open.
    #[cold]
    fn begin_segment(
        &mut self,
        log: &Log,
        kind: SegmentKind,
        bytes: usize,
        claim: Claim,
        other_claim: impl FnOnce(NoSpace) -> std::result::Result<Claim, NoSpace>,
    ) -> std::result::Result<(), NoSpace> {
        log.check_open().map_err(NoSpace::Failed)?;
        let extents = (bytes as u64 + SEGMENT_HEADER_BYTES).div_ceil(log.extent_bytes()) as u32;
        let extent = match log.open_segment(extents, kind, claim) {
            Ok(extent) => extent,
            Err(no_space) => log.open_segment(extents, kind, other_claim(no_space)?)?,
        };
        if let Some(full) = &mut self.open[kind as usize] {
            full.written_back.write_rest(log, full.cursor.get());
        }
        self.seal(log, kind);
        let start = log.extent_offset(extent);
        self.open[kind as usize] = Some(Open {
            extent,
            segment_number: log.extent_of(start).segment_number.load(Ordering::Relaxed),
            start,
            limit: start + u64::from(extents) * log.extent_bytes(),
            cursor: Cell::new(start + SEGMENT_HEADER_BYTES),
            max_sequence: Cell::new(0),
            deltas: Cell::default(),
            written_back: WrittenBack::new(log, start + SEGMENT_HEADER_BYTES),
        });
        Ok(())
    }

    /// Bytes that the open segment of `kind` still takes.
    pub(crate) fn room(&self, kind: SegmentKind) -> u64 {
        self.open[kind as usize].as_ref().map_or(0, |open| open.limit - open.cursor.get())
    }

    fn seal(&mut self, log: &Log, kind: SegmentKind) {
        let Some(open) = self.open[kind as usize].take() else { return };
        let (used, last) = (open.used(), open.max_sequence.get());
        log.segments.lock().seal(open.extent, used, last, open.deltas.get());
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
        self.open.iter().flatten().find(holds).map(|o| (o.extent, o.segment_number, o.used()))
    }

    /// Of every open segment: extent, segment number, bytes used, last sequence.
    pub(super) fn ends(&self) -> impl Iterator<Item = (u32, u64, u64, u64)> {
        self.open.iter().flatten().map(|o| (o.extent, o.segment_number, o.used(), o.max_sequence.get()))
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
