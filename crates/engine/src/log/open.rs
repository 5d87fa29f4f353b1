//! Opening the log: the root, the segments' headers, and what a crash left half-done in them.
//!
//! Owns which tears of a header are legal, and the end of recovery, after which what was found is the whole past. The
//! records are walked by `db/recover.rs`. Must not know what they say.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hedgerow_device::{Clock, FastTier, TierBytes};

use super::appender::Appender;
use super::format::{END_BYTES, Record, RecordRef};
use super::leaves::LeafSpace;
use super::segment::{
    Decoded, Extents, HEADER_COPY_BYTES, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, SegmentState,
};
use super::segments::Segments;
use super::write_back::WriteBack;
use super::{APPENDERS_MAX, Checkpoint, Commit, Log, OpenState, Root, SegmentEnd, forgotten, header_of};
use crate::epoch::Epoch;
use crate::manifest::root::{
    CATALOG_START, EXTENT_BYTES_MIN, ROOT_BYTES_MIN, SegmentList, VERSION_NEWEST, VERSION_OLDER,
};
use crate::manifest::segment_list::SegmentEntry;
use crate::space::{KEPT_BYTES, Space, SpaceLayout};
use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::tier::bytes_of;
use crate::{Durability, Error, ErrorKind, Options, Result};

/// A tier with fewer extents gets smaller ones.
const SMALL_TIER_EXTENTS: u64 = 128;
/// No tier has room for fewer: those kept back, and some to write to.
const SEGMENTS_MIN: u64 = 7;
/// Extents are no larger, nor is the root.
const EXTENT_BYTES_MAX: u64 = 1 << 30;
/// Where nothing speaks for less an extent has so many: a store of few rows takes a few of them, and the processor maps one
/// with one entry.
const EXTENT_BYTES_CHOSEN: u64 = 2 << 20;
/// And the root so many.
const LARGE_EXTENT_BYTES: u64 = 8 << 20;
/// For so many extents writers may have an appender of their own: its open segments hold room that nobody else can use.
const EXTENTS_PER_APPENDER: u32 = 40;
/// Without a limit a tier has no more extents, for which there is state in memory: 2 TiB of 2 MiB each.
const EXTENTS_MAX: u32 = 1 << 20;

/// Whether an extent may have so many bytes.
fn is_extent(bytes: u64) -> bool {
    bytes.is_power_of_two() && (EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&bytes)
}

/// How many extents are as long as a large one: what should be ready, or left, in bytes, is so many times as many extents.
fn extents_per_large(extent_bytes: u64) -> u32 {
    (LARGE_EXTENT_BYTES / extent_bytes).clamp(1, 8) as u32
}

/// Bytes of an extent and of the root in a store that may take `room` bytes.
fn sizes_for(room: u64) -> (u64, u64) {
    let share = 1 << (room / SMALL_TIER_EXTENTS).max(1).ilog2();
    (share.clamp(EXTENT_BYTES_MIN, EXTENT_BYTES_CHOSEN), share.clamp(ROOT_BYTES_MIN, LARGE_EXTENT_BYTES))
}

/// Refuses a limit that leaves no room beside the root and what is kept back.
fn check_limit(limit: u64, extent_bytes: u64, root_bytes: u64) -> Result<()> {
    let limit_min = root_bytes + SEGMENTS_MIN * extent_bytes;
    if limit < limit_min {
        return Err(Error::invalid(format!(
            "the fast tier may take {limit} bytes; it needs at least {limit_min}: seven segments of {extent_bytes} and the root"
        )));
    }
    Ok(())
}

/// Refuses a tier longer than offsets in a log can say.
pub(super) fn check_length(tier_bytes: u64) -> Result<()> {
    if tier_bytes > RecordRef::OFFSET_END {
        return Err(Error::invalid(format!(
            "the fast tier has {tier_bytes} bytes; it may have at most {}",
            RecordRef::OFFSET_END
        )));
    }
    Ok(())
}

/// The most bytes that the log may take of `tier`.
fn limit_on(tier: &TierBytes, options: &Options) -> u64 {
    tier.bytes_max().min(options.fast_tier_bytes_max).min(RecordRef::OFFSET_END)
}

impl Log {
    /// Opens the log on `tier`, making a new store there if there is none and `options.create` allows it.
    pub(crate) fn open(tier: Arc<FastTier>, options: &Options, clock: Clock) -> Result<(Log, OpenState)> {
        let tier = bytes_of(tier)?;
        check_length(tier.bytes())?;
        let root = match Root::load(&tier)? {
            Some(root) => {
                if !tier.is_read_only() {
                    check_limit(options.fast_tier_bytes_max, root.extent_bytes, root.bytes())?;
                }
                root
            }
            None if options.create => Log::create(&tier, options)?,
            None => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    "there is no store, and it is not to be created",
                ));
            }
        };
        let grown = (tier.bytes() / root.extent_bytes.max(1)) as u32;
        let log = Log::over(tier, options, clock, root, grown)?;
        log.allocate_headers(grown)?;
        let listed = log.root.lock().load_list(&log.tier)?;
        let power_cut = log.left_by_power_cut();
        if log.may_hold_forgotten_pages(power_cut) {
            log.rewrite_headers(grown);
        }
        let segments = log.load_segments(grown, power_cut, &listed)?;
        log.allocate_used()?;
        let found = log.found(segments);
        Ok((log, found))
    }

    /// What opening has found, once it is known which segments there are.
    pub(super) fn found(&self, segments: Vec<u32>) -> OpenState {
        let power_cut = self.left_by_power_cut();
        let root = self.root.lock();
        OpenState { segments, power_cut, clean: root.clean, watermark: root.watermark, lacks_segments: false }
    }

    fn left_by_power_cut(&self) -> bool {
        let root = self.root.lock();
        !root.clean && root.boot_id != self.tier.boot_id()
    }

    /// A log over a tier of `grown` extents, before it is known which segments there are.
    pub(super) fn over(
        tier: TierBytes,
        options: &Options,
        clock: Clock,
        root: Root,
        grown: u32,
    ) -> Result<Log> {
        let (extent_bytes, root_bytes) = (root.extent_bytes, root.bytes());
        if !is_extent(extent_bytes) || !(ROOT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&root_bytes) {
            return Err(Error::corrupted(format!(
                "the root says that a segment has {extent_bytes} bytes, and it itself {root_bytes}"
            )));
        }
        let limit = limit_on(&tier, options);
        let unlimited = options.fast_tier_bytes_max == u64::MAX;
        let states_max = if unlimited { EXTENTS_MAX } else { u32::MAX };
        let extents_max = u32::try_from(limit / extent_bytes).unwrap_or(u32::MAX).min(states_max);
        let extents_max = if unlimited { extents_max.max(grown) } else { extents_max };
        let syncs_each_write = options.durability == Durability::Immediate;
        let appenders = match syncs_each_write && !tier.flush_is_cheap() {
            // Writers wait for a sync, not for the appender, and a sync of one place takes a third of one of eight.
            true => 1,
            false => (extents_max / EXTENTS_PER_APPENDER).clamp(1, APPENDERS_MAX),
        };
        let now = Duration::from_nanos(clock.monotonic_ns());
        let layout = SpaceLayout {
            extent_shift: extent_bytes.trailing_zeros(),
            root_extents: root.root_extents,
            grown,
            extents_max,
            per_large: extents_per_large(extent_bytes),
        };
        let space = Space::new(tier.clone(), clock.clone(), layout, syncs_each_write);
        Ok(Log {
            clock,
            root_extents: root.root_extents,
            extents: Extents::new(extents_max.max(grown)),
            space,
            segments: Mutex::new(Segments::new()),
            filled: Mutex::default(),
            leaves: LeafSpace::new(root.first_segment_number(root.opens + 1)),
            appenders_in_use: AtomicUsize::new(1),
            first_writer: AtomicUsize::new(0),
            appenders: (0..appenders).map(|_| CachePadded(Mutex::new(Appender::default()))).collect(),
            gc_appender: Mutex::new(Appender::default()),
            write_back: WriteBack::new(options)?,
            next_sequence: CachePadded(AtomicU64::new(root.watermark + 1)),
            published: AtomicU64::new(0),
            durable_sequence: AtomicU64::new(root.watermark),
            next_segment_number: AtomicU64::new(root.first_segment_number(root.opens + 1)),
            commit: Mutex::new(Commit { headers_at: now, checkpointed_at: now, recovered: None }),
            forgotten: forgotten::Forgotten::default(),
            checkpointing: Mutex::new(()),
            has_leader: Mutex::new(false),
            leader_done: Condvar::new(),
            closing: AtomicBool::new(false),
            closed: AtomicBool::new(tier.is_read_only()),
            is_halted: AtomicBool::new(false),
            store_seed: root.store_id as u64 ^ (root.store_id >> 64) as u64,
            checkpoint_that_counts: Mutex::default(),
            halted: Mutex::default(),
            epoch: Arc::new(Epoch::new()),
            syncs: AtomicU64::new(0),
            verify_reads: options.verify_reads,
            torn_through: AtomicU64::new(root.watermark),
            catalog_room: AtomicU64::new(0),
            root: Mutex::new(root),
            tier,
        })
    }

    fn create(tier: &TierBytes, options: &Options) -> Result<Root> {
        let limit = limit_on(tier, options);
        let (extent_bytes, root_bytes) = match options.segment_bytes {
            0 => sizes_for(limit.min(tier.disk_bytes().unwrap_or(u64::MAX))),
            extent_bytes => (extent_bytes, extent_bytes.max(ROOT_BYTES_MIN)),
        };
        if !is_extent(extent_bytes) {
            return Err(Error::invalid(format!(
                "segment_bytes is {extent_bytes}; it must be a power of two from 256 KiB to 1 GiB, or 0"
            )));
        }
        let placed = match options.format_version {
            VERSION_NEWEST => true,
            VERSION_OLDER => false,
            version => {
                return Err(Error::invalid(format!(
                    "format_version is {version}; stores are made with {VERSION_OLDER} or {VERSION_NEWEST}"
                )));
            }
        };
        check_limit(limit, extent_bytes, root_bytes)?;
        tier.grow(root_bytes)?;
        // What is not used of it takes no room; where a medium takes nothing back, it does.
        tier.release(CATALOG_START, root_bytes - CATALOG_START);
        let root_extents = (root_bytes / extent_bytes) as u32;
        let mut root = Root::new(extent_bytes, root_extents, placed, (tier.new_id(), tier.boot_id()));
        root.make_room(tier)?;
        root.store(tier)?;
        Ok(root)
    }

    /// A sparse copy of a tier has holes, and a store to a hole of a full disk would be a SIGBUS; on a file system in memory
    /// a load, too. Of the root what is in use.
    fn allocate_headers(&self, grown: u32) -> Result<()> {
        if self.tier.is_read_only() {
            return Ok(());
        }
        let mut root = self.root.lock();
        let places = [(0, CATALOG_START), root.catalog_place(), root.list_place()];
        places.into_iter().try_for_each(|(offset, bytes)| self.tier.allocate(offset, bytes))?;
        match root.make_room(&self.tier) {
            // Then there is none now. Who needs it asks again.
            Err(full) if full.kind() == ErrorKind::Full => {}
            answer => answer?,
        }
        (self.root_extents..grown)
            .try_for_each(|extent| Ok(self.tier.allocate(self.extent_offset(extent), KEPT_BYTES)?))
    }

    /// The same for all of the extents in use, and for what is to be held back.
    fn allocate_used(&self) -> Result<()> {
        if self.tier.is_read_only() {
            return Ok(());
        }
        let (mut from, mut to) = (0, 0);
        for (&extent, segment) in &self.segments.lock().used {
            // Neighbours at one stroke.
            if extent != to {
                self.tier.allocate(self.extent_offset(from), self.extent_offset(to - from))?;
                from = extent;
            }
            to = extent + segment.extents;
        }
        self.tier.allocate(self.extent_offset(from), self.extent_offset(to - from))?;
        self.space.open()
    }

    /// Reads all segment headers, and holds them against what the root lists; fills the space; returns the first extents of
    /// used segments.
    fn load_segments(&self, grown: u32, power_cut: bool, listed: &[SegmentEntry]) -> Result<Vec<u32>> {
        let placed = self.root.lock().is_placed();
        let mut in_use = self.segments.lock();
        let mut extent = self.root_extents;
        let mut segments = Vec::new();
        let mut last_segment_number = 0;
        let mut listed = listed.iter().copied().peekable();
        (extent..grown)
            .for_each(|extent| self.tier.will_need(self.extent_offset(extent), SEGMENT_HEADER_BYTES));
        while extent < grown {
            let offset = self.extent_offset(extent);
            let decoded =
                SegmentHeader::decode(self.tier.read(offset, SEGMENT_HEADER_BYTES as usize), offset, placed);
            last_segment_number = last_segment_number.max(decoded.header.map_or(0, |h| h.segment_number));
            let Some(header) = decoded.header.filter(|h| h.state != SegmentState::Free) else {
                if !self.may_be_free(extent, &decoded, power_cut) {
                    return Err(Error::corrupted(format!(
                        "the segment header at byte {offset} of the fast tier is corrupted: its checksum does not match"
                    )));
                }
                let extents = decoded.header.map_or(1, |h| h.extents).clamp(1, grown - extent);
                let segment_number = decoded.header.map_or(0, |h| h.segment_number);
                while let Some(entry) = listed.next_if(|entry| entry.extent < extent + extents) {
                    if segment_number < entry.segment_number {
                        return Err(self.missing(entry));
                    }
                }
                self.tidy_free(extent, extents, &decoded)?;
                self.space.add_found(extent..extent + extents);
                extent += extents;
                continue;
            };
            if header.extents == 0 || header.extents > grown - extent {
                return Err(Error::corrupted(format!(
                    "the segment at byte {offset} of the fast tier says it has {} extents, more than the tier",
                    header.extents
                )));
            }
            for u in extent..extent + header.extents {
                self.extents.at(u).segment_number.store(header.segment_number, Ordering::Relaxed);
            }
            let mut durable_end = header.durable_end;
            while let Some(entry) = listed.next_if(|entry| entry.extent < extent + header.extents) {
                durable_end = durable_end.max(self.listed_end(extent, &header, entry)?);
            }
            let next_copy = decoded.copy ^ 1;
            in_use.used.insert(extent, Segment { durable_end, next_copy, ..Segment::of(&header) });
            segments.push(extent);
            extent += header.extents;
        }
        self.next_segment_number.fetch_max(last_segment_number + 1, Ordering::Relaxed);
        self.use_appenders_for(self.space.segment_extents());
        listed.next().map_or(Ok(segments), |entry| Err(self.missing(entry)))
    }

    /// How far the segment at `extent` was durable by a list that has `entry` in its place; 0 if that was another, freed since.
    fn listed_end(&self, extent: u32, header: &SegmentHeader, entry: SegmentEntry) -> Result<u64> {
        let is_same = (entry.extent, entry.segment_number) == (extent, header.segment_number);
        let is_older = header.state == SegmentState::Sealed && header.durable_end < entry.end;
        match is_same {
            true if !is_older => Ok(entry.end),
            false if entry.segment_number < header.segment_number => Ok(0),
            _ => Err(self.missing(entry)),
        }
    }

    #[cold]
    pub(super) fn missing(&self, entry: SegmentEntry) -> Error {
        Error::corrupted(format!(
            "the segment at byte {} of the fast tier, which the root lists with {} bytes of durable records, is missing: its header is lost, or older than the list",
            self.extent_offset(entry.extent),
            entry.end - SEGMENT_HEADER_BYTES
        ))
    }

    /// Whether an extent whose header does not say that it is in use is free, given that copies of the header are spoiled.
    ///
    /// A copy is written only while the other is whole, so a crash spoils one, and never both:
    /// * the first while the second is nothing or "free": on its way into use, with no record in it yet, or, of that same
    ///   segment number, on its way out of it;
    /// * the second while the first is "free": on its way out.
    ///
    /// After a power cut an extent on its way into use may hold records whose header was never durable; nor were they.
    fn may_be_free(&self, extent: u32, decoded: &Decoded, power_cut: bool) -> bool {
        match (decoded.spoiled, decoded.header) {
            ([false, false], _) => true,
            ([true, true], _) => false,
            ([false, true], header) => header.is_some(),
            ([true, false], header) => power_cut || self.holds_nothing_since(extent, header),
        }
    }

    /// Whether the log of the segment at `extent` is empty, or of the segment number that `freed` says is free.
    fn holds_nothing_since(&self, extent: u32, freed: Option<SegmentHeader>) -> bool {
        let start = self.extent_offset(extent) + SEGMENT_HEADER_BYTES;
        if self.tier.try_read(start, END_BYTES).is_some_and(|mark| mark == [0; END_BYTES]) {
            return true;
        }
        let Some(freed) = freed else { return false };
        // The record may be bigger than an extent, and `freed` say so no more: as far as the tier goes.
        let room = self.tier.bytes().saturating_sub(start);
        let is_record = |bytes| Record::parse(bytes, start, freed.segment_number, true).is_ok();
        self.tier.try_view(start, room as usize).is_some_and(is_record)
    }

    /// Finishes what a crash left undone of freeing an extent: afterwards no copy says that it is in use, and those of its
    /// segment that follow have no header.
    fn tidy_free(&self, extent: u32, extents: u32, decoded: &Decoded) -> Result<()> {
        if self.tier.is_read_only() {
            return Ok(());
        }
        if decoded.spoiled != [false; 2] || decoded.other_is_used || extents > 1 {
            // PERSIST: the copy that counts, before the other is touched: a killed process may not have got so far.
            self.tier.persist(self.extent_offset(extent), SEGMENT_HEADER_BYTES)?;
        }
        for copy in [0u8, 1].into_iter().filter(|&copy| decoded.spoiled[usize::from(copy)]) {
            let offset = self.extent_offset(extent) + u64::from(copy) * HEADER_COPY_BYTES as u64;
            // Apart: what is behind it may have been given back, and a disk that is full has no blocks for that.
            self.tier.write_apart(offset, &[0; HEADER_COPY_BYTES]);
        }
        let Some(freed) = decoded.header else { return Ok(()) };
        if decoded.other_is_used {
            // PERSIST: or a crash that spoils this copy, when the extent is next taken into use, brings the segment back.
            self.write_header_copy(extent, decoded.copy ^ 1, &freed);
            self.tier.persist(self.extent_offset(extent), SEGMENT_HEADER_BYTES)?;
        }
        if extents > 1 { self.part(extent, extents, decoded.copy ^ 1, freed) } else { Ok(()) }
    }

    /// Parts the extents of a freed segment: from now on each is free for itself.
    pub(super) fn part(&self, extent: u32, extents: u32, first: u8, freed: SegmentHeader) -> Result<()> {
        for inner in extent + 1..extent + extents {
            self.tier.write_apart(self.extent_offset(inner), &[0; SEGMENT_HEADER_BYTES as usize]);
            // PERSIST: what a record left there must not be taken for a header once it is looked at as one.
            self.tier.persist(self.extent_offset(inner), SEGMENT_HEADER_BYTES)?;
        }
        self.write_header(extent, first, &SegmentHeader { extents: 1, ..freed })
    }

    /// Ends recovery: takes sequences above all that were seen, dropped ones included, and lets the first sync seal what
    /// was found. After a power cut, or a clean close, that is done at once; so it is with `sync_now`, for a store whose
    /// writes become durable without a sync. `upgraded` is the catalog of a build that wrote its changes into no log, to be stored
    /// as of a sequence.
    pub(crate) fn recovered(
        &self,
        ends: Vec<SegmentEnd>,
        last_sequence: u64,
        found: &OpenState,
        sync_now: bool,
        upgraded: Option<Vec<u8>>,
    ) -> Result<()> {
        let mut segments = self.segments.lock();
        for end in &ends {
            let Some(segment) = segments.used.get_mut(&end.extent) else { continue };
            (segment.end, segment.max_sequence, segment.sealed) = (end.end, end.max_sequence, true);
            segment.deltas = end.deltas;
        }
        drop(segments);
        self.next_sequence.0.store(last_sequence + 1, Ordering::Release);
        let mut commit = self.commit.lock();
        commit.recovered = Some(ends);
        if self.tier.is_read_only() {
            return Ok(());
        }
        self.torn_through.store(0, Ordering::Relaxed);
        // PERSIST: a killed process may not have got as far as making its last copy of the root durable, and with it what it
        // names. It is, before anything that the copy before it names is written over.
        let persisted = {
            let mut root = self.root.lock();
            let mended = root.persist(&self.tier).and_then(|()| root.mend_catalog(&self.tier));
            // PERSIST: before the root says that changes are in the log: the catalog must say which of them it holds.
            mended.and_then(|()| upgraded.map_or(Ok(()), |bytes| root.store_catalog(&self.tier, &bytes)))
        };
        persisted?;
        if found.power_cut || found.clean || sync_now {
            return self.sync(&mut commit, Checkpoint::Nothing).map(|_| ());
        }
        // PERSIST: the segment numbers of this opening are taken before a segment is begun, or records that a power cut
        // leaves of it without their header would be taken for those of the next opening.
        let mut root = self.root.lock();
        root.opens += 1;
        root.changes_in_log = true;
        root.store(&self.tier)
    }

    /// Whether what recovery found still waits for its first sync.
    pub(crate) fn awaits_first_sync(&self) -> bool {
        self.commit.lock().recovered.is_some()
    }

    /// Whether the list that counts has a segment with more records than recovery left of it.
    fn lists_more_than(&self, ends: &[SegmentEnd]) -> Result<bool> {
        let listed = self.root.lock().load_list(&self.tier)?;
        let ends: HashMap<u32, u64> = ends.iter().map(|end| (end.extent, end.end)).collect();
        let segments = self.segments.lock();
        let was_cut = |entry: &SegmentEntry| {
            let number = segments.used.get(&entry.extent).map(|segment| segment.segment_number);
            number == Some(entry.segment_number)
                && ends.get(&entry.extent).is_some_and(|end| *end < entry.end)
        };
        Ok(listed.iter().any(was_cut))
    }

    /// Seals the segments that recovery found where their records end, and makes the root say that this is the whole past.
    ///
    /// PERSIST: they were all durable before, by the sync that calls this. Until the root says so, the root of the last
    /// opening counts: if the process is killed again, it is right (same boot); if the power goes, the log is cut at the
    /// first sequence that the killed process left out, and nothing after it was acknowledged as durable.
    pub(super) fn seal_recovered(
        &self,
        ends: &[SegmentEnd],
        durable: u64,
        list: Option<SegmentList>,
    ) -> Result<()> {
        let mut segments = self.segments.lock();
        let mut changed = Vec::new();
        for end in ends {
            let Some(segment) = segments.used.get_mut(&end.extent) else { continue };
            if segment.in_header != (segment.end, true) && !segment.in_gc {
                segment.in_header = (segment.end, true);
                changed.push((end.extent, segment.next_copy, header_of(segment, SegmentState::Sealed)));
            }
        }
        drop(segments);
        if self.lists_more_than(ends)? {
            // PERSIST: no list before headers that have less than it: one of a sync that others wrote beside may have records behind one that is missing. What it names is durable, and found without it.
            let mut root = self.root.lock();
            root.name_list(&self.tier, None);
            root.store(&self.tier)?;
        }
        for pass in 0..2 {
            changed
                .iter()
                .for_each(|(extent, first, header)| self.write_header_copy(*extent, first ^ pass, header));
            // PERSIST: one copy of each header is whole at any moment.
            if !changed.is_empty() {
                self.tier.persist_all()?;
            }
        }
        let mut root = self.root.lock();
        root.opens += 1;
        root.clean = false;
        root.changes_in_log = true;
        root.boot_id = self.tier.boot_id();
        root.watermark = durable;
        root.name_list(&self.tier, list);
        root.store(&self.tier)
    }
}
