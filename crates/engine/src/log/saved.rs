//! What of the log is kept in a saved index: how far its segments go, and what of them is obsolete, or expires.
//!
//! Owns [`SavedSegment`], and the pieces' way to free extents and back. Promises that what is taken over fits the segments that there are, or nothing is. Must not know what of tables is saved beside it.

use std::collections::HashMap;

use hedgerow_row::le_bytes::{u32_at, u64_at};

use super::freed::{FreedJournal, JournalLacksRoom};
use super::segment::{Deltas, Segment};
use super::{APPENDERS_MAX, LockedAppender, Log, SegmentEnd};
use crate::group::LeafPlace;
use crate::manifest::saved_index::{SavedAs, SavedIndex, SavedPiece, payload_max, write_piece};
use crate::space::Claim;
use crate::sync::atomic::Ordering::Relaxed;
use crate::{Error, ErrorKind, Result};

/// Bytes of an entry before its extents' words.
const SEGMENT_BYTES: usize = 64;
const WORDS: usize = 5;
/// An extent is no longer than so many payloads.
const WASTE_MAX: u64 = 4;
const WORDS_BYTES: usize = WORDS * 8;

/// What is known of a segment, besides its header.
///
/// ```text
///  0        4         8                16    24              32       36      40        48          56       64
///  +--------+---------+----------------+-----+---------------+--------+-------+---------+----------+--------+--------------------
///  | extent | extents | segment number | end | last sequence | deltas | flags | bytes of| vanished |   0    | 5 words of each
///  |        |         |                |     |               |        |       | deltas  |          |        | extent
///  +--------+---------+----------------+-----+---------------+--------+-------+---------+----------+--------+--------------------
/// ```
///
/// Flags: 1, it may hold rows of a table that went which are not counted. The words are those of [`Extent`](super::segment::Extent) behind the number: obsolete bytes, chains, urgency, swept, worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedSegment {
    extent: u32,
    segment: SegmentNumbers,
    /// Of each extent.
    words: Vec<[u64; WORDS]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SegmentNumbers {
    segment_number: u64,
    end: u64,
    max_sequence: u64,
    deltas: Deltas,
    vanished: u64,
    miscounted: bool,
}

impl SegmentNumbers {
    fn of(segment: &Segment) -> SegmentNumbers {
        let Segment { segment_number, end, max_sequence, deltas, vanished, miscounted, .. } = *segment;
        SegmentNumbers { segment_number, end, max_sequence, deltas, vanished, miscounted }
    }
}

impl SavedSegment {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let SegmentNumbers { segment_number, end, max_sequence, deltas, vanished, miscounted } = self.segment;
        out.extend(self.extent.to_le_bytes());
        out.extend((self.words.len() as u32).to_le_bytes());
        [segment_number, end, max_sequence].iter().for_each(|word| out.extend(word.to_le_bytes()));
        out.extend(deltas.count.to_le_bytes());
        out.extend(u32::from(miscounted).to_le_bytes());
        [deltas.bytes, vanished, 0].iter().for_each(|word| out.extend(word.to_le_bytes()));
        self.words.iter().flatten().for_each(|word| out.extend(word.to_le_bytes()));
    }

    /// Its extents.
    pub(crate) fn extents(&self) -> std::ops::Range<u32> {
        self.extent..self.extent + self.words.len() as u32
    }

    /// The number of the segment.
    pub(crate) fn segment_number(&self) -> u64 {
        self.segment.segment_number
    }

    /// Bytes of the log that it has.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.segment.end
    }

    /// The bytes it takes when it is saved.
    pub(crate) fn bytes(&self) -> usize {
        SEGMENT_BYTES + self.words.len() * WORDS_BYTES
    }

    /// The one that `bytes` begin with, and what is behind it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(SavedSegment, &[u8])> {
        let (of_segment, rest) = bytes.split_at_checked(SEGMENT_BYTES)?;
        let extents = u32_at(of_segment, 4) as usize;
        let (of_extents, rest) = rest.split_at_checked(extents.checked_mul(WORDS_BYTES)?)?;
        let segment = SegmentNumbers {
            segment_number: u64_at(of_segment, 8),
            end: u64_at(of_segment, 16),
            max_sequence: u64_at(of_segment, 24),
            deltas: Deltas { count: u32_at(of_segment, 32), bytes: u64_at(of_segment, 40) },
            vanished: u64_at(of_segment, 48),
            miscounted: u32_at(of_segment, 36) & 1 != 0,
        };
        let words = of_extents.chunks_exact(WORDS_BYTES);
        let words = words.map(|words| std::array::from_fn(|i| u64_at(words, i * 8))).collect();
        Some((SavedSegment { extent: u32_at(of_segment, 0), segment, words }, rest))
    }
}

/// Of a log that was closed in order.
impl Log {
    /// All segments, as they are; `None` if gc is at work on one, or the root does not say that all is in them. Nor, if there are groups, where one was emptied and is there.
    pub(crate) fn saved_segments(&self, has_groups: bool) -> Option<Vec<SavedSegment>> {
        let root = self.root.lock();
        if self.tier.is_read_only()
            || !root.clean
            || root.changes_in_log
            || root.watermark != self.last_sequence()
        {
            return None;
        }
        drop(root);
        let segments = self.segments.lock();
        let of_segment = |(&extent, segment): (&u32, &Segment)| {
            // An entry of a group that leads into one which was emptied is gone, and nothing says so any more when the store is opened.
            let is_still = segment.sealed
                && !segment.in_gc
                && segment.in_header == (segment.end, true)
                && !(has_groups && self.is_emptied(extent, segment));
            is_still.then(|| SavedSegment {
                extent,
                segment: SegmentNumbers::of(segment),
                words: (extent..extent + segment.extents).map(|extent| self.words_of(extent)).collect(),
            })
        };
        segments.used.iter().map(of_segment).collect()
    }

    fn words_of(&self, extent: u32) -> [u64; WORDS] {
        let of = self.extents.at(extent);
        let expiry = of.expiry;
        [of.obsolete_bytes, of.chains, expiry.urgency, expiry.swept_ms, expiry.worth_ms]
            .map(|word| word.load(Relaxed))
    }

    /// Whether what was saved is of all segments that there are, and as far as they go.
    pub(crate) fn has_exactly(&self, saved: &[SavedSegment]) -> bool {
        let segments = self.segments.lock();
        let is_this = |saved: &SavedSegment| {
            segments.used.get(&saved.extent).is_some_and(|segment| {
                segment.segment_number == saved.segment.segment_number
                    && segment.extents as usize == saved.words.len()
                    // Of two copies that say the same end either may count: one that says that it is sealed, or the other.
                    && segment.in_header.0 == saved.segment.end
            })
        };
        segments.used.len() == saved.len() && saved.iter().all(is_this)
    }

    /// Takes over what is known of the segments, in the place of a walk over them. For whoever opens the store; the log [has exactly](Log::has_exactly) these.
    pub(crate) fn take_over(&self, saved: &[SavedSegment]) -> Vec<SegmentEnd> {
        let mut segments = self.segments.lock();
        let mut ends = Vec::with_capacity(saved.len());
        for SavedSegment { extent, segment: numbers, words } in saved {
            let Some(segment) = segments.used.get_mut(extent) else { continue };
            (segment.vanished, segment.miscounted) = (numbers.vanished, numbers.miscounted);
            let SegmentNumbers { end, max_sequence, deltas, .. } = *numbers;
            ends.push(SegmentEnd { extent: *extent, end, max_sequence, deltas });
            for (extent, words) in (*extent..).zip(words) {
                let of = self.extents.at(extent);
                let expiry = of.expiry;
                let places = [of.obsolete_bytes, of.chains, expiry.urgency, expiry.swept_ms, expiry.worth_ms];
                places.into_iter().zip(words).for_each(|(place, word)| place.store(*word, Relaxed));
            }
        }
        ends
    }

    /// Whether extents are not so long that a piece in each wastes them.
    pub(crate) fn has_extents_for_pieces(&self) -> bool {
        self.extent_bytes() <= payload_max(self.extent_bytes()) as u64 * WASTE_MAX
    }

    /// Begins to save an index of so many bytes, about, of the root that counts; `None` where there is no room for it, where extents are so long that it would take many times as much, and where the tier is longer than it
    /// may be: then what is free is given back to the disk when the store is opened, before anybody looks at it.
    pub(crate) fn save_index(&self, bytes: u64) -> Option<PieceWriter<'_>> {
        let (payload_max, (tier_bytes, tier_bytes_max)) =
            (payload_max(self.extent_bytes()) as u64, self.space.tier_bytes());
        let extents = bytes.div_ceil(payload_max) + u64::from(Claim::Write.reserve()) + 2;
        let is_room = u64::from(self.space.room().0) >= extents;
        if !is_room || !self.has_extents_for_pieces() || tier_bytes > tier_bytes_max {
            return None;
        }
        let generation = self.root.lock().generation;
        Some(PieceWriter {
            log: self,
            saved_as: SavedAs::Closed,
            generation,
            first: None,
            current: None,
            taken: Vec::new(),
            written: (0, 0),
        })
    }

    /// Whether an index was saved of the root that counts, whatever is left of it.
    pub(crate) fn names_saved_index(&self) -> bool {
        let root = self.root.lock();
        SavedIndex::load(&self.tier, SavedAs::Closed, (root.generation, root.store_id)).is_some()
    }

    /// What was saved of the root that counts, if anything was.
    pub(crate) fn saved_index(&self) -> Option<Vec<SavedPiece<'_>>> {
        let root = self.root.lock();
        let (is_whole, watermark) = (root.clean && !root.changes_in_log, root.watermark);
        let saved = SavedIndex::load(&self.tier, SavedAs::Closed, (root.generation, root.store_id))?;
        drop(root);
        let pieces = saved.pieces(&self.tier, self.extent_bytes())?;
        (is_whole && saved.sequence == watermark as u32).then_some(pieces)
    }

    /// Keeps the extents of pieces, which are free, from whoever takes extents, as long as what is returned is there.
    pub(crate) fn hold_pieces(&self, pieces: &[SavedPiece<'_>]) -> HeldPieces<'_> {
        let extents = pieces.iter().map(|piece| (piece.at >> self.space.extent_shift()) as u32);
        let held = if self.tier.is_read_only() { Vec::new() } else { self.space.hold_found(extents) };
        HeldPieces { log: self, extents: held }
    }

    /// A piece is about to be read. False if its blocks are not there: of a tier in memory that is full, who looks at them would be ended.
    pub(crate) fn will_read_piece(&self, piece: &SavedPiece<'_>) -> bool {
        let (from, to) = (piece.at & !4095, piece.at + piece.bytes.len() as u64);
        self.tier.will_need(from, to - from);
        self.tier.is_read_only() || self.tier.allocate(from, to - from).is_ok()
    }
}

/// Extents of pieces that are being read, for who opens the store.
pub(crate) struct HeldPieces<'l> {
    log: &'l Log,
    /// Whether each is known to have blocks.
    extents: Vec<(u32, bool)>,
}

impl HeldPieces<'_> {
    /// They are of no use any more.
    pub(crate) fn release(mut self) {
        self.log.space.give_back_found(&std::mem::take(&mut self.extents), true);
    }
}

impl Drop for HeldPieces<'_> {
    fn drop(&mut self) {
        self.log.space.give_back_found(&self.extents, false);
    }
}

/// Writes pieces into free extents. Of a log that is closed nobody else takes these.
pub(crate) struct PieceWriter<'l> {
    log: &'l Log,
    saved_as: SavedAs,
    generation: u64,
    first: Option<u32>,
    /// The extent that the next piece is written to.
    current: Option<u32>,
    /// All that were taken. They are free again in the end, but for those of a checkpoint that counts: nobody takes them before the store is opened anew, and then what is saved is read first.
    taken: Vec<u32>,
    /// Pieces, and bytes of payload.
    written: (u32, u64),
}

impl PieceWriter<'_> {
    /// How long a payload may be.
    pub(crate) fn payload_max(&self) -> usize {
        payload_max(self.log.extent_bytes())
    }

    fn take(&mut self) -> Result<u32> {
        let taken = match self.saved_as {
            SavedAs::Closed => self.log.space.take(1, Claim::Write)?.ok(),
            SavedAs::Checkpoint => self.log.take_for_checkpoint(CHECKPOINT_LEAVES)?,
        };
        let no_room = || Error::new(ErrorKind::Full, "there is no room to save the index");
        let extent = taken.ok_or_else(no_room)?;
        self.taken.push(extent);
        Ok(extent)
    }

    /// Writes a piece, behind which another comes.
    ///
    /// # Errors
    /// `Full`; what the tier refuses.
    pub(crate) fn write(&mut self, payload: &[u8]) -> Result<()> {
        self.write_before(payload, true)
    }

    fn write_before(&mut self, payload: &[u8], is_followed: bool) -> Result<()> {
        let extent = match self.current {
            Some(extent) => extent,
            None => self.take()?,
        };
        self.current = if is_followed { Some(self.take()?) } else { None };
        self.first.get_or_insert(extent);
        let piece = (self.generation, self.written.0, self.current.unwrap_or(0));
        write_piece(&self.log.tier, self.log.extent_offset(extent), piece, payload);
        self.written = (self.written.0 + 1, self.written.1 + payload.len() as u64);
        Ok(())
    }

    /// Writes the last piece, and has the saved index count. What was written without is free, and found by nobody.
    ///
    /// # Errors
    /// As [`PieceWriter::write`].
    pub(crate) fn finish(mut self, payload: &[u8]) -> Result<()> {
        self.write_before(payload, false)?;
        // PERSIST: all pieces are durable before anything leads to them, and with them the leaves of groups, which nothing made durable before.
        self.log.tier.persist_all()?;
        let watermark = self.log.root.lock().watermark;
        self.reference(watermark as u32).store(&self.log.tier)
    }

    fn reference(&self, sequence: u32) -> SavedIndex {
        SavedIndex {
            generation: self.generation,
            store_id: self.log.root.lock().store_id,
            first_extent: self.first.unwrap_or(0),
            pieces: self.written.0,
            payload_bytes: self.written.1,
            sequence,
        }
    }

    /// Writes the last piece of a checkpoint, which names these extents of leaves besides. It does not count before it is [named](Log::name_checkpoint).
    ///
    /// # Errors
    /// As [`PieceWriter::write`].
    pub(crate) fn finish_checkpoint(
        mut self,
        payload: &[u8],
        begun: BegunCheckpoint<'_>,
    ) -> Result<WrittenCheckpoint> {
        self.write_before(payload, false)?;
        let BegunCheckpoint { mut leaves, journal, uncounted, outlived_at } = begun;
        let mut own = std::mem::take(&mut self.taken);
        own.push(journal.extent());
        let mut extents = std::mem::take(&mut leaves.extents);
        extents.extend(own);
        let (reference, journal) = (self.reference(0), journal.begun());
        Ok(WrittenCheckpoint { reference, extents, journal, uncounted, outlived_at })
    }
}

/// No more segments are ever open at a time: one of each kind in each appender.
pub(crate) const OPEN_SEGMENTS_MAX: u64 = 3 * (APPENDERS_MAX as u64 + 1);

/// So many extents are left to others when a checkpoint is written.
const CHECKPOINT_LEAVES: u32 = 8;

/// A checkpoint of the index whose pieces are written.
#[derive(Debug)]
pub(crate) struct WrittenCheckpoint {
    reference: SavedIndex,
    /// Those of leaves that it leads to, and its own.
    extents: Vec<u32>,
    journal: FreedJournal,
    /// By segment, where records lie that no key counted when it was taken, in order.
    uncounted: HashMap<u32, Vec<u64>>,
    outlived_at: u64,
}

/// What a checkpoint has besides its pieces.
#[derive(Debug)]
pub(crate) struct BegunCheckpoint<'l> {
    pub(crate) leaves: NamedLeaves<'l>,
    pub(crate) journal: BegunJournal<'l>,
    /// By segment, where records lie that no key counts, in order.
    pub(crate) uncounted: HashMap<u32, Vec<u64>>,
    /// It is of no use any more once a segment of this number was begun.
    pub(crate) outlived_at: u64,
}

/// The journal of what will be freed, whose extent is free again if it is dropped.
#[derive(Debug)]
pub(crate) struct BegunJournal<'l> {
    log: &'l Log,
    journal: Option<FreedJournal>,
    extent: u32,
}

impl BegunJournal<'_> {
    /// Where it begins.
    pub(crate) fn extent(&self) -> u32 {
        self.extent
    }

    fn begun(mut self) -> FreedJournal {
        self.journal.take().expect("it is begun once")
    }
}

impl Drop for BegunJournal<'_> {
    fn drop(&mut self) {
        if self.journal.is_some() {
            self.log.free_leaves(self.extent);
        }
    }
}

/// Extents of leaves that a checkpoint will name.
#[derive(Debug)]
pub(crate) struct NamedLeaves<'l> {
    log: &'l Log,
    extents: Vec<u32>,
}

impl Drop for NamedLeaves<'_> {
    fn drop(&mut self) {
        self.log.unname_extents(&self.extents);
    }
}

/// Which checkpoint of the index counts.
#[derive(Debug, Default)]
pub(super) struct CheckpointThatCounts {
    now: Option<WrittenCheckpoint>,
    forgotten: u64,
}

impl CheckpointThatCounts {
    /// Nor one that has been begun.
    fn forget(&mut self, log: &Log) {
        self.forgotten += 1;
        self.let_go(log);
    }

    /// Another may count in its place.
    fn let_go(&mut self, log: &Log) {
        if let Some(gone) = self.now.take() {
            SavedIndex::name_checkpoint(None, &log.tier);
            log.unname_extents(&gone.extents);
        }
    }
}

/// The segments at a checkpoint of the index.
pub(crate) struct CheckpointedSegments {
    pub(crate) segments: Vec<SavedSegment>,
    /// All that is written from then on is in segments of this number, or of higher ones.
    pub(crate) below: u64,
    /// So many were open, and ended by it.
    pub(crate) ended: u64,
}

/// Of a log that goes on.
impl Log {
    /// Ends all open segments, and says what all have. `None`, as of a log that is [closed](Log::saved_segments), if one is being collected, or was emptied and is there. Whoever has these appenders, which are all, keeps cycles of gc out.
    pub(crate) fn segments_at_checkpoint(
        &self,
        writers: &mut [LockedAppender<'_>],
        gc: &mut LockedAppender<'_>,
    ) -> Option<CheckpointedSegments> {
        // What is in vain is to end no segment.
        if self.are_segments_busy() {
            return None;
        }
        let ended = self.open_segments();
        writers.iter_mut().for_each(|appender| appender.seal_all(self));
        gc.seal_all(self);
        let segments = self.segments.lock();
        let of_segment = |(&extent, segment): (&u32, &Segment)| {
            let is_still = segment.sealed && !segment.in_gc && !self.is_emptied(extent, segment);
            is_still.then(|| SavedSegment {
                extent,
                segment: SegmentNumbers::of(segment),
                words: (extent..extent + segment.extents).map(|extent| self.words_of(extent)).collect(),
            })
        };
        let of_all = segments.used.iter().map(of_segment).collect::<Option<_>>()?;
        Some(CheckpointedSegments { segments: of_all, below: self.next_segment_number(), ended })
    }

    /// Whether a segment is being collected, or was emptied and is there. Nothing of this changes as long as somebody has all appenders and keeps cycles of gc out.
    pub(crate) fn are_segments_busy(&self) -> bool {
        let is_busy =
            |(extent, segment): (&u32, &Segment)| segment.in_gc || self.is_emptied(*extent, segment);
        self.segments.lock().used.iter().any(is_busy)
    }

    /// How many segments appenders write to.
    pub(crate) fn open_segments(&self) -> u64 {
        self.segments.lock().used.values().filter(|segment| !segment.sealed).count() as u64
    }

    /// How many extents are taken for no other reason than the checkpoint that counts.
    pub(crate) fn extents_of_checkpoint_alone(&self) -> u32 {
        let counting = self.checkpoint_that_counts.lock();
        counting.now.as_ref().map_or(0, |checkpoint| self.named_by_these_alone(&checkpoint.extents))
    }

    /// These leaves are not free from now on, as long as what is returned is there, or a checkpoint of the index that is made of it.
    pub(crate) fn name_leaves(&self, places: impl Iterator<Item = LeafPlace>) -> NamedLeaves<'_> {
        let extents: Vec<u32> = places.map(|place| (place.at >> self.space.extent_shift()) as u32).collect();
        self.name_extents(&extents);
        NamedLeaves { log: self, extents }
    }

    /// Begins the journal of what will be freed of the segments below a number; `None` where there is no room.
    ///
    /// # Errors
    /// What the tier refuses.
    pub(crate) fn begin_freed_journal(&self, below: u64) -> Result<Option<BegunJournal<'_>>> {
        let journal = self.begin_journal(below, CHECKPOINT_LEAVES)?;
        Ok(journal.map(|journal| BegunJournal {
            log: self,
            extent: journal.extent(),
            journal: Some(journal),
        }))
    }

    /// To write a checkpoint of the index with.
    pub(crate) fn write_checkpoint(&self) -> PieceWriter<'_> {
        let generation = self.root.lock().opens;
        PieceWriter {
            log: self,
            saved_as: SavedAs::Checkpoint,
            generation,
            first: None,
            current: None,
            taken: Vec::new(),
            written: (0, 0),
        }
    }

    /// How often it was said that no checkpoint counts. To be asked when one is begun, with the appenders locked.
    pub(crate) fn checkpoints_forgotten(&self) -> u64 {
        self.checkpoint_that_counts.lock().forgotten
    }

    /// Has a checkpoint count in the place of the one before, unless it was said since it was begun that none does.
    pub(crate) fn count_checkpoint(&self, written: WrittenCheckpoint, forgotten_before: u64) -> bool {
        // Who has the root may wait for the disk.
        let opens = self.root.lock().opens;
        let mut counting = self.checkpoint_that_counts.lock();
        let is_of_now = written.reference.generation == opens;
        let counts = is_of_now && counting.forgotten == forgotten_before;
        let gone = if counts {
            SavedIndex::name_checkpoint(Some(&written.reference), &self.tier);
            counting.now.replace(written)
        } else {
            Some(written)
        };
        gone.into_iter().for_each(|gone| self.unname_extents(&gone.extents));
        counts
    }

    /// No checkpoint of the index counts from now on, nor one that has been begun. Before anything that it must not be followed by.
    pub(crate) fn forget_checkpoint(&self) {
        self.checkpoint_that_counts.lock().forget(self);
    }

    /// The checkpoint that counts does so no more if so much was written since that it is of no use.
    pub(crate) fn forget_outlived_checkpoint(&self) {
        let next = self.next_segment_number();
        let mut counting = self.checkpoint_that_counts.lock();
        if counting.now.as_ref().is_some_and(|now| next >= now.outlived_at) {
            counting.let_go(self);
        }
    }

    /// Writes down what is about to be freed, if a checkpoint counts that knows of it.
    pub(super) fn write_down_freed(&self, extents: &[u32]) {
        for extent in extents {
            // One at a time: whoever clears a table waits for this with all appenders locked.
            let mut counting = self.checkpoint_that_counts.lock();
            let Some(checkpoint) = &mut counting.now else { return };
            let uncounted = checkpoint.uncounted.get(extent).map_or(&[][..], Vec::as_slice);
            match self.write_freed(&mut checkpoint.journal, *extent, uncounted) {
                Ok(taken) => checkpoint.extents.extend(taken),
                // Without what it lacks nobody could count what is older than a row.
                Err(JournalLacksRoom) => counting.forget(self),
            }
        }
    }

    /// Whether a checkpoint of the index counts.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn has_checkpoint(&self) -> bool {
        self.checkpoint_that_counts.lock().now.is_some()
    }

    /// The checkpoint of a store whose process was killed, if it counts.
    pub(crate) fn checkpointed_index(&self) -> Option<Vec<SavedPiece<'_>>> {
        let root = self.root.lock();
        let saved = SavedIndex::load(&self.tier, SavedAs::Checkpoint, (root.opens, root.store_id))?;
        drop(root);
        saved.pieces(&self.tier, self.extent_bytes())
    }

    /// Parts the segments that there are into those of a checkpoint, as they were, and those that were begun since; `None` if one is neither.
    pub(crate) fn since_checkpoint(&self, saved: &[SavedSegment], below: u64) -> Option<SinceCheckpoint> {
        let segments = self.segments.lock();
        let saved: HashMap<u32, &SavedSegment> = saved.iter().map(|saved| (saved.extent, saved)).collect();
        let (mut there, mut since) = (Vec::new(), Vec::new());
        for (extent, segment) in &segments.used {
            if segment.segment_number >= below {
                since.push(*extent);
                continue;
            }
            let saved = saved.get(extent).filter(|saved| {
                saved.segment.segment_number == segment.segment_number
                    && segment.extents as usize == saved.words.len()
                    && segment.in_header.0 <= saved.segment.end
            })?;
            there.push((*saved).clone());
        }
        Some(SinceCheckpoint { there, since })
    }
}

/// The segments that there are of a store with a checkpoint of its index.
pub(crate) struct SinceCheckpoint {
    /// Those that there were then.
    pub(crate) there: Vec<SavedSegment>,
    /// First extents of those that were begun since.
    pub(crate) since: Vec<u32>,
}

impl Drop for PieceWriter<'_> {
    fn drop(&mut self) {
        self.taken.drain(..).for_each(|extent| self.log.free_leaves(extent));
    }
}
