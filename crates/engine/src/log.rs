//! The log: every row's bytes are written here once. It is the write-ahead log and the store.
//!
//! Owns the root, segments, appenders, sequences, and the point up to which all is durable. Promises
//! that a record, once published, stays where it is until its segment is freed, and that after a crash what is left is
//! everything that was durable plus a prefix of the rest. Must know of tables their numbers only, and nothing of
//! fields or the index.
//!
//! Writers do not meet: each thread appends in its own **appender**, which has an open segment for rows and one for deltas.
//! An appender is locked for the whole of a write, from the reservation to the publication in the index. So whoever locks
//! each appender once ([`Log::barrier`]) knows that all sequences given out before are published.

mod appender;
mod copy;
mod due;
mod forgotten;
pub(crate) mod format;
mod freed;
mod leaves;
mod open;
mod replay;
mod salvage;
pub(crate) mod saved;
pub(crate) mod segment;
mod segments;
#[cfg(all(test, shuttle))]
mod shuttle;
mod view;
mod write_back;

use std::ops::Range;
use std::time::Duration;

use hedgerow_device::{Clock, DeviceError, FastTier, SyncFailure, TierBytes};
use smallvec::SmallVec;

pub(crate) use appender::{
    Appender, EncodedRecord, LockedAppender, NoSpace, Reservation, SealedRecord, check_fits,
    check_waits_alone,
};
pub(crate) use copy::{Extract, SegmentToCopy};
pub(crate) use freed::FreedRecords;
use leaves::LeafSpace;
pub(crate) use leaves::LeafWriter;
pub(crate) use replay::{SegmentWalk, WalkEnd};
pub(crate) use salvage::LostRecord;
use segment::{
    Deltas, Extent, Extents, HEADER_COPY_BYTES, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, SegmentState,
    add_obsolete_bytes,
};
use segments::Segments;
pub(crate) use view::{LogGuard, LogView, PlaceState};
use write_back::WriteBack;

use self::format::END_BYTES;
use crate::epoch::Epoch;
use crate::manifest::root::{Root, SegmentList};
use crate::manifest::segment_list::SegmentEntry;
use crate::space::Space;
use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use crate::{Error, ErrorKind, Result};

const APPENDERS_MAX: u32 = 16;
/// What is read from a file at the least. Where pages are larger, some are asked for twice.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Of a record that is about to be read, so much is prefetched at once.
const PREFETCH_BYTES_MAX: u64 = 1280;
/// How often, at most, segment headers and the root are brought up to date with what has become durable: a little less than
/// a second, so that of syncs at intervals of one (the default) each does.
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(900);

/// The log of one open store.
#[derive(Debug)]
pub(crate) struct Log {
    tier: TierBytes,
    /// The store's: paces the upkeep of headers.
    clock: Clock,
    space: Space,
    /// Extents that the root takes.
    root_extents: u32,
    extents: Extents,
    segments: Mutex<Segments>,
    filled: Mutex<segments::Filled>,
    leaves: LeafSpace,
    appenders: Box<[CachePadded<Mutex<Appender>>]>,
    /// So many of them are written to: one while there is little data.
    appenders_in_use: AtomicUsize,
    /// The number of the thread that goes on in the first appender when all come into use.
    first_writer: AtomicUsize,
    gc_appender: Mutex<Appender>,
    write_back: WriteBack,
    next_sequence: CachePadded<AtomicU64>,
    /// Every sequence up to it is published, or given up; somebody waited for that.
    published: AtomicU64,
    durable_sequence: AtomicU64,
    next_segment_number: AtomicU64,
    commit: Mutex<Commit>,
    /// Held through a checkpoint, from the writing of its list of segments to the root that names it.
    checkpointing: Mutex<()>,
    /// Of a killed process.
    forgotten: forgotten::Forgotten,
    /// Whether a group commit has a leader, and the others, who wait for it to be done.
    has_leader: Mutex<bool>,
    leader_done: Condvar,
    root: Mutex<Root>,
    /// The log is being closed: no more segments. Set before the appenders are sealed, so that what is published after its
    /// last sync cannot be.
    closing: AtomicBool,
    /// The store was closed in order, and the root says so: no more writes.
    closed: AtomicBool,
    /// There are no more writes though no sync of the log failed.
    is_halted: AtomicBool,
    /// Of this store alone.
    store_seed: u64,
    /// Of the index.
    checkpoint_that_counts: Mutex<saved::CheckpointThatCounts>,
    /// Why, and since when: known before anybody sees that it is so.
    halted: Mutex<Option<WriteFailure>>,
    /// When readers have let go of what is freed of it, and of all else of its store.
    epoch: Arc<Epoch>,
    syncs: AtomicU64,
    verify_reads: bool,
    /// Until recovery has put them right, walks pass on rows up to this sequence that a merge in place may have torn.
    torn_through: AtomicU64,
    /// A catalog of so many bytes has room in the root: known without the root's lock, which is held while that becomes durable.
    catalog_room: AtomicU64,
}

#[derive(Debug)]
struct Commit {
    /// When segment headers were last brought up to date, by the log's clock.
    headers_at: Duration,
    /// And the root with them. Apart, or whoever has headers written often would put it off for good.
    checkpointed_at: Duration,
    /// Where recovery found the segments to end, until a sync has made that durable.
    recovered: Option<Vec<SegmentEnd>>,
}

/// Why an open store takes no more writes, and since when: a sync that failed, what a killed process left that could not be made durable, an edit of the manifest of
/// sorted tables that failed, or a batch that stopped half-way. Reads go on, and opened again it takes writes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteFailure {
    /// What failed, and what the system said to it.
    pub message: String,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

/// What a sync writes down besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checkpoint {
    Nothing,
    /// In the segments' headers, durable with the next sync.
    Headers,
    /// There, and in a list for the root.
    Root,
}

/// What a sync made durable.
#[derive(Debug, Clone, Copy)]
struct Synced {
    /// All sequences up to this one.
    last: u64,
    /// The list of segments as of then, if it was asked for and there is room for one.
    list: Option<SegmentList>,
}

/// What was found when the log was opened; the caller replays it and then calls [`Log::recovered`].
#[derive(Debug)]
pub(crate) struct OpenState {
    /// First extents of the segments in use.
    pub(crate) segments: Vec<u32>,
    /// The machine went down, and not only the process: stores after the last sync may be missing in any order.
    pub(crate) power_cut: bool,
    /// The store was closed in order.
    pub(crate) clean: bool,
    /// Everything up to this sequence was durable.
    pub(crate) watermark: u64,
    /// Of a damaged log: there may have been segments of which nothing is left.
    pub(crate) lacks_segments: bool,
}

/// Where a segment's records were found to end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentEnd {
    pub(crate) extent: u32,
    pub(crate) end: u64,
    pub(crate) max_sequence: u64,
    pub(crate) deltas: Deltas,
}

/// Whether what was brought up to date `at` that time is to be so again. A clock that was set back makes it due rather than putting it off for as long.
fn is_due(now: Duration, at: Duration) -> bool {
    now.abs_diff(at) >= CHECKPOINT_INTERVAL
}

/// The leader of a group commit, until it is dropped: however its sync ends, the others wake.
struct GroupCommitLeader<'a>(&'a Log);

impl Drop for GroupCommitLeader<'_> {
    fn drop(&mut self) {
        *self.0.has_leader.lock() = false;
        self.0.leader_done.notify_all();
    }
}

impl Log {
    pub(crate) fn extent_bytes(&self) -> u64 {
        self.space.extent_bytes()
    }

    /// The epoch of its store.
    pub(crate) fn epoch(&self) -> &Arc<Epoch> {
        &self.epoch
    }

    fn extent_offset(&self, extent: u32) -> u64 {
        self.space.extent_offset(extent)
    }

    /// Where its segments are taken from.
    #[inline]
    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    #[inline]
    fn extent_of(&self, offset: u64) -> Extent<'_> {
        self.extents.at((offset >> self.space.extent_shift()) as u32)
    }

    /// The medium; its bytes are the log's.
    pub(crate) fn tier(&self) -> &FastTier {
        &self.tier
    }

    /// Writes `bytes` over those of a row that may be merged into, in whole words. One caller at a time.
    pub(crate) fn patch_row(&self, offset: u64, bytes: &[u8]) {
        self.tier.patch(offset, bytes);
    }

    /// Changes the checksum at `offset` of a block of such a row. It may share a word with the end of the key, which is not touched.
    pub(crate) fn patch_checksum(&self, offset: u64, checksum: u32) {
        self.tier.store_u32(offset, checksum);
    }

    /// The time since some fixed moment, by the store's clock. Nothing that is kept depends on it.
    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_ns())
    }

    /// Whether reads verify checksums.
    pub(crate) fn verifies_reads(&self) -> bool {
        self.verify_reads
    }

    /// Prefetches the lines of a small record, all at once: their misses overlap.
    #[inline]
    pub(crate) fn prefetch_record(&self, offset: u64, bytes: u64) {
        self.tier.prefetch(offset, bytes.min(PREFETCH_BYTES_MAX));
    }

    /// Has records read from the disk that may not be in memory, all at once.
    pub(crate) fn will_read(&self, records: impl Iterator<Item = (u64, u64)>) {
        let pages = |(offset, bytes): (u64, u64)| {
            offset / PAGE_BYTES * PAGE_BYTES..(offset + bytes).next_multiple_of(PAGE_BYTES)
        };
        let mut wanted: SmallVec<[Range<u64>; 64]> = records.map(pages).collect();
        wanted.sort_unstable_by_key(|range| range.start);
        let mut wanted = wanted.into_iter();
        let Some(mut run) = wanted.next() else { return };
        for next in wanted {
            if next.start <= run.end {
                run.end = run.end.max(next.end);
                continue;
            }
            self.tier.will_need(run.start, run.end - run.start);
            run = next;
        }
        self.tier.will_need(run.start, run.end - run.start);
    }

    /// Prefetches of a row what a read of parts of its body touches: the prefix, and the blocks they lie in.
    #[inline]
    pub(crate) fn prefetch_parts(
        &self,
        offset: u64,
        (flags, key_bytes): (u8, usize),
        body_bytes: usize,
        parts: &[Range<usize>],
    ) {
        for part in parts {
            let (prefix, span) = format::span_verified(flags, key_bytes, body_bytes, part);
            self.tier.prefetch(offset, prefix as u64);
            self.tier.prefetch(offset + span.start as u64, span.len() as u64);
        }
    }

    /// The calling thread's appender, locked.
    #[inline]
    pub(crate) fn appender(&self) -> LockedAppender<'_> {
        let mine = thread_number().wrapping_sub(self.first_writer.load(Ordering::Relaxed));
        LockedAppender::new(self.appenders[mine % self.appenders_in_use.load(Ordering::Relaxed)].0.lock())
    }

    /// Gc's appender, locked.
    pub(crate) fn gc_appender(&self) -> LockedAppender<'_> {
        LockedAppender::new(self.gc_appender.lock())
    }

    /// All appenders, gc's too.
    pub(crate) fn every_appender(&self) -> (Vec<LockedAppender<'_>>, LockedAppender<'_>) {
        (self.all_appenders(), self.gc_appender())
    }

    /// All writers' appenders, locked: nobody writes while this is held. In a fixed order, so that two such do not meet.
    pub(crate) fn all_appenders(&self) -> Vec<LockedAppender<'_>> {
        self.appenders.iter().map(|appender| LockedAppender::new(appender.0.lock())).collect()
    }

    /// Returns when every sequence given out before the call is published, or given up. Returns the last one.
    pub(crate) fn barrier(&self) -> u64 {
        let last = self.next_sequence.0.load(Ordering::SeqCst) - 1;
        for appender in &self.appenders {
            drop(appender.0.lock());
        }
        last
    }

    /// Returns when the write `sequence`, and all others of its batch, are published; an error if it was given up half-way.
    pub(crate) fn wait_until_published(&self, sequence: u64) -> Result<()> {
        if self.published.load(Ordering::Acquire) < sequence {
            self.published.fetch_max(self.barrier(), Ordering::AcqRel);
        }
        self.check_writable()
    }

    /// The next sequence. Call with the appender locked.
    #[inline]
    pub(crate) fn take_sequence(&self) -> u64 {
        self.next_sequence.0.fetch_add(1, Ordering::SeqCst)
    }

    /// The last sequence given out.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.next_sequence.0.load(Ordering::SeqCst) - 1
    }

    pub(crate) fn durable_sequence(&self) -> u64 {
        self.durable_sequence.load(Ordering::Acquire)
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Counts `bytes` at `offset` as no longer needed.
    #[inline]
    pub(crate) fn add_obsolete(&self, offset: u64, bytes: u64) {
        add_obsolete_bytes(self.extent_of(offset), bytes);
    }

    /// Records that the row at `offset` got its first delta.
    #[inline]
    pub(crate) fn chain_begun(&self, offset: u64) {
        self.extent_of(offset).chains.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the row at `offset` and the deltas over it were replaced, or merged.
    #[inline]
    pub(crate) fn chain_ended(&self, offset: u64) {
        self.extent_of(offset).chains.fetch_sub(1, Ordering::Relaxed);
    }

    /// `Err` once a sync or an edit of the manifest has failed, a batch has stopped half-way, or the store was closed. The tier itself remembers a failed sync, and
    /// refuses every later one; this says so before anything is written.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if let Some(failure) = self.tier.sync_failure() {
            return Err(DeviceError::Closed { failure: failure.clone() }.into());
        }
        if let Some(failure) = self.halted() {
            return Err(Error::new(ErrorKind::Closed, failure.message));
        }
        match self.closed.load(Ordering::Acquire) {
            true if self.tier.is_read_only() => {
                Err(Error::new(ErrorKind::ReadOnly, "the store was opened for reading only"))
            }
            true => Err(closed()),
            false => Ok(()),
        }
    }

    /// `Err` once a segment can no longer be begun. With an appender locked: the log is not being closed until that is let go of.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_writable()?;
        if self.closing.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// Takes no more writes: some rows of a batch can be seen and its records do not count. All writers' appenders are given, so that none
    /// writes over those records; opened anew the store has all of the batch, or nothing. Returns the error that every write gets.
    #[cold]
    pub(crate) fn halt(&self, appenders: &mut [LockedAppender<'_>]) -> Error {
        let failure = self.halt_for(
            "a batch stopped half-way for want of memory for the index, and the store takes no more writes; opened again it has all of that batch, or nothing".to_owned(),
        );
        appenders.iter_mut().for_each(|appender| appender.seal_all(self));
        Error::new(ErrorKind::Closed, failure.message)
    }

    /// Takes no more writes: whether an edit of the manifest of sorted tables counts is for the next opening to find out.
    #[cold]
    pub(crate) fn halt_after_edit(&self, cause: &Error) {
        self.halt_for(format!(
            "an edit of the manifest of sorted tables failed ({cause}), and the store takes no more writes; opened again it has all of what the edit said, or nothing"
        ));
    }

    /// Takes no more writes: what an earlier process left cannot be made durable.
    #[cold]
    fn halt_for_forgotten_pages(&self) -> Error {
        let failure = self.halt_for(
            "the system cannot write again what a killed process left in memory, and the store takes no more writes; opened again it may".to_owned(),
        );
        Error::new(ErrorKind::Closed, failure.message)
    }

    /// Takes no more writes, unless a failed sync of the tier has said so before: what an earlier process left is not sealed, and no later sync would do it. Returns `cause`.
    #[cold]
    fn halt_unsealed(&self, cause: Error) -> Error {
        if self.tier.sync_failure().is_none() {
            self.halt_for(format!(
                "what a killed process left could not be made durable ({cause}), and the store takes no more writes; opened again it may"
            ));
        }
        cause
    }

    /// Takes no more writes, for `message` unless there was a reason before. Returns the one that counts.
    #[cold]
    fn halt_for(&self, message: String) -> WriteFailure {
        let failure = WriteFailure { message, at_ms: Clock::system().now_ms() };
        let first = self.halted.lock().get_or_insert(failure).clone();
        self.is_halted.store(true, Ordering::Release);
        first
    }

    /// Why there are no more writes though no sync of the log failed.
    #[inline]
    fn halted(&self) -> Option<WriteFailure> {
        if self.is_halted.load(Ordering::Acquire) { self.halted.lock().clone() } else { None }
    }

    /// Why there are no more writes though the log was not closed.
    pub(crate) fn write_failure(&self) -> Option<WriteFailure> {
        match self.tier.sync_failure() {
            Some(SyncFailure { message, at_ms }) => {
                Some(WriteFailure { message: format!("a sync failed: {message}"), at_ms: *at_ms })
            }
            None => self.halted(),
        }
    }

    /// Makes a range durable on a medium where that costs cache lines only. A failure closes the log for writing:
    /// [`Log::check_writable`] tells.
    pub(crate) fn persist_range(&self, offset: u64, bytes: u64) {
        drop(self.tier.persist(offset, bytes));
    }

    /// Returns when everything up to `sequence` is durable. Callers at the same time share syncs (group commit): one leads, the
    /// others wait for what it finds, and wake together. A lock would let them in one by one, behind whoever came since.
    pub(crate) fn persist_to(&self, sequence: u64) -> Result<()> {
        while self.durable_sequence() < sequence {
            let mut has_leader = self.has_leader.lock();
            if *has_leader {
                // The durable sequence is raised before the leader is done, under this lock: no waking is missed.
                self.leader_done.wait(&mut has_leader);
                continue;
            }
            *has_leader = true;
            drop(has_leader);
            let _leader = GroupCommitLeader(self);
            let mut commit = self.commit.lock();
            if self.durable_sequence() < sequence {
                self.check_writable()?;
                let due = is_due(self.now(), commit.headers_at);
                self.sync(&mut commit, if due { Checkpoint::Headers } else { Checkpoint::Nothing })?;
            }
        }
        Ok(())
    }

    /// Returns when everything up to `sequence` is durable and the root says so, with the segments it lies in: what is
    /// missing of it later will be missed. Who waits for another's checkpoint is content with it, if it covers him.
    pub(crate) fn persist_checkpointed(&self, sequence: u64) -> Result<()> {
        let checkpointing = self.checkpointing.lock();
        if self.checkpointed_sequence() >= sequence && !self.awaits_first_sync() {
            // That may be a root which could not be stored.
            return self.check_writable();
        }
        self.checkpoint_alone(&checkpointing).map(|_| ())
    }

    /// [`Log::persist_to`], or from time to time, however often others sync meanwhile, [`Log::persist_checkpointed`]: for whoever syncs at intervals.
    pub(crate) fn persist_at_interval(&self, sequence: u64) -> Result<()> {
        let checkpointed_at = self.commit.lock().checkpointed_at;
        if is_due(self.now(), checkpointed_at) {
            self.persist_checkpointed(sequence)
        } else {
            self.persist_to(sequence)
        }
    }

    /// Everything up to this sequence is durable, and the root says so.
    pub(crate) fn checkpointed_sequence(&self) -> u64 {
        self.root.lock().watermark
    }

    /// Makes everything durable and says so in the root, so that segments up to now may be freed. Returns the sequence up
    /// to which that is so; all up to it have been published.
    pub(crate) fn checkpoint(&self) -> Result<u64> {
        self.checkpoint_alone(&self.checkpointing.lock())
    }

    fn checkpoint_alone(&self, _checkpointing: &MutexGuard<'_, ()>) -> Result<u64> {
        let synced = {
            let mut commit = self.commit.lock();
            self.check_writable()?;
            self.sync(&mut commit, Checkpoint::Root)?
        };
        // Not under `commit`: whoever waits for a sync does not wait for the root, too.
        let mut root = self.root.lock();
        root.watermark = root.watermark.max(synced.last);
        root.name_list(&self.tier, synced.list);
        // PERSIST: the list was durable with the sync, before the root that names it.
        root.store(&self.tier)?;
        Ok(root.watermark)
    }

    /// Makes everything durable, and says so as `checkpoint` asks for.
    fn sync(&self, commit: &mut Commit, checkpoint: Checkpoint) -> Result<Synced> {
        let wants_list = checkpoint == Checkpoint::Root || commit.recovered.is_some();
        let headers = checkpoint != Checkpoint::Nothing;
        let last = self.next_sequence.0.load(Ordering::SeqCst) - 1;
        let mut ends = Vec::new();
        for appender in self.appenders.iter().map(|appender| &appender.0).chain([&self.gc_appender]) {
            let appender = appender.lock();
            if headers {
                ends.extend(appender.ends());
            }
        }
        if headers {
            let segments = self.segments.lock();
            let sealed = segments.used.iter().filter(|(_, s)| s.sealed && s.in_header != (s.end, true));
            ends.extend(sealed.map(|(&extent, s)| (extent, s.segment_number, s.end, s.max_sequence)));
        }
        let list = if wants_list { self.write_list() } else { None };
        while self.rewrite_forgotten()? {}
        let extents = (self.tier.bytes() >> self.space.extent_shift()) as u32;
        self.tier.persist_all()?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        {
            let mut root = self.root.lock();
            root.extents = root.extents.max(extents);
        }
        if let Some(ends) = commit.recovered.take()
            && let Err(error) = self.seal_recovered(&ends, last, list)
        {
            commit.recovered = Some(ends);
            return Err(self.halt_unsealed(error));
        }
        self.durable_sequence.fetch_max(last, Ordering::AcqRel);
        if headers {
            self.checkpoint_headers(&ends);
            commit.headers_at = self.now();
        }
        if checkpoint == Checkpoint::Root {
            commit.checkpointed_at = self.now();
        }
        Ok(Synced { last, list })
    }

    /// Lists the segments in use and how far they are written, for a root to name once that is durable.
    fn write_list(&self) -> Option<SegmentList> {
        let every_appender = self.appenders.iter().map(|appender| &appender.0).chain([&self.gc_appender]);
        let open: Vec<_> =
            every_appender.flat_map(|appender| appender.lock().ends().collect::<Vec<_>>()).collect();
        let segments = self.segments.lock();
        let written_to = |extent: u32, segment: &Segment| {
            // A segment may have been sealed since its appender was looked at: then it says how far it got.
            let open = open
                .iter()
                .find(|(u, segment_number, ..)| (*u, *segment_number) == (extent, segment.segment_number));
            open.map_or(segment.end, |(_, _, end, _)| segment.end.max(*end))
        };
        let entry = |(&extent, segment): (&u32, &Segment)| SegmentEntry {
            extent,
            segment_number: segment.segment_number,
            end: written_to(extent, segment),
        };
        let entries = segments.used.iter().map(entry).collect();
        drop(segments);
        self.root.lock().write_list(&self.tier, entries)
    }

    /// Writes into the headers what the sync just made durable; the headers themselves become durable with the next.
    fn checkpoint_headers(&self, ends: &[(u32, u64, u64, u64)]) {
        let mut segments = self.segments.lock();
        for &(extent, segment_number, end, max_sequence) in ends {
            let Some(segment) = segments.used.get_mut(&extent) else { continue };
            let sealed = segment.sealed && segment.end == end;
            if segment.segment_number != segment_number || segment.in_gc || segment.in_header == (end, sealed)
            {
                continue;
            }
            segment.in_header = (end, sealed);
            let mut header =
                header_of(segment, if sealed { SegmentState::Sealed } else { SegmentState::Open });
            header.durable_end = end;
            header.max_sequence = max_sequence;
            // PERSIST: only one copy changes between two syncs, so a torn one leaves the other.
            self.write_header_copy(extent, segment.next_copy, &header);
            segment.next_copy ^= 1;
        }
    }

    /// Seals all appenders, makes everything durable, and marks the store as closed in order. `has_changes` says, once no more
    /// can be written, whether the log holds changes of the catalog that the root's catalog does not. No collection is under way, which would have
    /// the headers of its victims to itself.
    pub(crate) fn close(&self, has_changes: impl FnOnce() -> bool) -> Result<()> {
        if self.tier.is_read_only() {
            return Ok(());
        }
        let earlier = self.check_writable();
        self.closing.store(true, Ordering::Release);
        for appender in self.appenders.iter().map(|appender| &appender.0).chain([&self.gc_appender]) {
            appender.lock().seal_all(self);
        }
        let has_changes = has_changes();
        let _checkpointing = self.checkpointing.lock();
        let mut commit = self.commit.lock();
        earlier.and_then(|()| self.check_writable())?;
        let synced = self.sync(&mut commit, Checkpoint::Root)?;
        let mut segments = self.segments.lock();
        let extents: Vec<u32> = segments.used.keys().copied().collect();
        for extent in extents {
            let Some(segment) = segments.used.get_mut(&extent) else { continue };
            // Victims that wait for a reader or a snapshot, too: what is copied of a closed store are sealed segments.
            if segment.in_header != (segment.end, true) && !segment.is_freed {
                segment.in_header = (segment.end, true);
                let (header, first) = (header_of(segment, SegmentState::Sealed), segment.next_copy);
                self.write_header(extent, first, &header)?;
            }
        }
        let mut root = self.root.lock();
        root.watermark = self.durable_sequence();
        root.name_list(&self.tier, synced.list);
        root.clean = true;
        // PERSIST: never before a catalog that holds all changes is durable; else they count still when it is opened.
        root.changes_in_log = has_changes;
        root.store(&self.tier)?;
        self.closed.store(true, Ordering::Release);
        Ok(())
    }

    /// What may be catalogs of tables, where none that the root names is whole.
    pub(crate) fn catalog_areas(&self) -> Vec<&[u8]> {
        self.root.lock().catalog_areas(&self.tier).collect()
    }

    /// The catalog of tables as last stored.
    pub(crate) fn load_catalog(&self) -> Result<&[u8]> {
        self.root.lock().load_catalog(&self.tier)
    }

    /// Sees to it that a catalog of `bytes` can be stored when it has to be. Waits for nobody's sync where there is room already.
    pub(crate) fn make_room_for_catalog(&self, bytes: u64) -> Result<()> {
        self.check_open()?;
        if bytes <= self.catalog_room.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut root = self.root.lock();
        root.make_room_for_catalog(&self.tier, bytes)?;
        self.catalog_room.store(root.catalog_room(), Ordering::Relaxed);
        Ok(())
    }

    /// Stores the catalog of tables, durably. The records of all changes in it must be durable.
    pub(crate) fn store_catalog(&self, catalog: &[u8]) -> Result<()> {
        let mut root = self.root.lock();
        self.check_writable()?;
        // A failed sync half-way leaves copies of the root that differ; a further change would spoil the catalog of one, and is
        // refused as all that comes after a failed sync.
        root.store_catalog(&self.tier, catalog)
    }

    /// Has the root name the manifest of this number, durably: what it says counts on return. With an error that is for the next
    /// opening to find out.
    pub(crate) fn name_manifest(&self, number: u64) -> Result<()> {
        let mut root = self.root.lock();
        self.check_writable()?;
        root.manifest = number;
        root.store(&self.tier)
    }

    /// Marks the log of a segment as empty, before any store that follows.
    fn write_end(&self, extent: u32) {
        let start = self.extent_offset(extent) + SEGMENT_HEADER_BYTES;
        self.tier.write(start, END_BYTES, |out| out.fill(0));
        compiler_fence(Ordering::Release);
    }

    fn write_header_copy(&self, extent: u32, copy: u8, header: &SegmentHeader) {
        let extent_offset = self.extent_offset(extent);
        let bytes = header.encode(extent_offset);
        self.tier.write_apart(extent_offset + u64::from(copy) * HEADER_COPY_BYTES as u64, &bytes);
    }

    /// Writes both copies, each durable before the next step; first the one that does not count.
    fn write_header(&self, extent: u32, first: u8, header: &SegmentHeader) -> Result<()> {
        for pass in 0..2 {
            self.write_header_copy(extent, first ^ pass, header);
            // PERSIST: one copy is whole at any moment.
            self.tier.persist(self.extent_offset(extent), SEGMENT_HEADER_BYTES)?;
        }
        Ok(())
    }

    /// Invalidates the record at `offset`: replay will pass over it. Not durable by itself. On a tier that is only read,
    /// nothing.
    pub(crate) fn invalidate(&self, offset: u64) {
        if self.tier.is_read_only() {
            return;
        }
        // One store that no kill tears: a record that is neither whole nor invalidated would hide all that follow it.
        self.tier.store_u64(offset, format::invalidated_word(self.tier.load_u64(offset)));
    }
}

/// Looking without changing; see `db/inspect.rs`.
impl Log {
    /// The root as last stored.
    pub(crate) fn root(&self) -> Root {
        self.root.lock().clone()
    }

    /// All segments in use, by place: first extent, segment, obsolete bytes as counted so far.
    pub(crate) fn segments(&self) -> Vec<(u32, Segment, u64)> {
        let segments = self.segments.lock();
        segments.used.iter().map(|(&extent, s)| (extent, s.clone(), self.obsolete_bytes(extent, s))).collect()
    }

    /// What of a log that has been closed is not as promised: each extent that was taken is in a segment or has leaves of groups, and the root lists each
    /// segment as far as it goes, where it has room for a list.
    pub(crate) fn check_closed(&self) -> std::result::Result<(), String> {
        let segments = self.segments.lock();
        let in_segments: u32 = segments.used.values().map(|segment| segment.extents).sum();
        let taken = self.space.segment_extents() - self.leaf_extents();
        if taken != in_segments {
            return Err(format!("{taken} extents are taken, and {in_segments} are in segments"));
        }
        let root = self.root.lock();
        if root.list.is_none() {
            return Ok(());
        }
        let listed = root.load_list(&self.tier).map_err(|error| error.to_string())?;
        let entry = |(&extent, segment): (&u32, &Segment)| SegmentEntry {
            extent,
            segment_number: segment.segment_number,
            end: segment.end,
        };
        match segments.used.iter().map(entry).find(|entry| !listed.contains(entry)) {
            Some(missing) => Err(format!("the root does not list {missing:?}")),
            None => Ok(()),
        }
    }

    /// Where the catalog is spoiled, if its copy serves. No crash leaves that.
    pub(crate) fn spoiled_catalog(&self) -> Option<u64> {
        self.root.lock().spoiled_catalog(&self.tier)
    }

    /// Where a copy of the root or of a segment header is spoiled. The other copy serves; a crash may leave that.
    pub(crate) fn spoiled_copies(&self) -> Vec<u64> {
        let (mut spoiled, placed) = (Root::spoiled_copies(&self.tier), self.root.lock().is_placed());
        let used = self.segments();
        let mut used = used.iter().peekable();
        // Extents below were part of a segment that was freed, and may hold the middle of a record.
        let (mut extent, mut freed_until) = (self.root_extents, 0);
        while let offset = self.extent_offset(extent)
            && let Some(bytes) = self.tier.try_read(offset, SEGMENT_HEADER_BYTES as usize)
        {
            let decoded = SegmentHeader::decode(bytes, offset, placed);
            if extent >= freed_until {
                let copies = [0, HEADER_COPY_BYTES as u64].into_iter().zip(decoded.spoiled);
                spoiled.extend(copies.filter(|&(_, bad)| bad).map(|(at, _)| offset + at));
            }
            if let Some(freed) = decoded.header.filter(|h| h.state == SegmentState::Free) {
                freed_until = freed_until.max(extent.saturating_add(freed.extents));
            }
            extent += match used.next_if(|(first, ..)| *first == extent) {
                Some((_, segment, _)) => segment.extents,
                None => 1,
            };
        }
        spoiled
    }
}

/// The calling thread's, from 0.
#[inline]
fn thread_number() -> usize {
    crate::sync::thread_number!()
}

fn header_of(segment: &Segment, state: SegmentState) -> SegmentHeader {
    SegmentHeader {
        state,
        kind: segment.kind,
        extents: segment.extents,
        segment_number: segment.segment_number,
        durable_end: segment.end,
        max_sequence: segment.max_sequence,
    }
}

#[cold]
fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store has been closed")
}

#[cold]
pub(crate) fn not_a_record(offset: u64) -> Error {
    Error::corrupted(format!(
        "the log is corrupted at byte {offset} of the fast tier: the record there does not match its checksum"
    ))
}

#[cfg(test)]
mod tests;
