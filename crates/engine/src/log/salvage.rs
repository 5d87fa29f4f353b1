//! Opening a log of which parts are spoiled: what can still be found, and what is known to be lost.
//!
//! Owns finding segments without their headers and records behind ones that do not verify. Promises to give out no record
//! that does not verify, to write nothing, and to name every place where something is missing. Must not know what records
//! say; `db/salvage.rs` makes rows of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use hedgerow_device::{Clock, FastTier, SharedBytes, TierBytes};

use super::format::{FLAG_RELOCATED, HEADER_BYTES, NotARecord, Record, RecordKind};
use super::open::check_length;
use super::segment::{Decoded, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, SegmentKind, SegmentState};
use super::{Log, OpenState};
use crate::manifest::root::Root;
use crate::manifest::segment_list::SegmentEntry;
use crate::sync::atomic::Ordering;
use crate::tier::bytes_of;
use crate::{Error, Options, Result};

/// Of a record whose prefix does not verify, so many bytes are tried for one that is wrong.
const MENDED_PREFIX_BYTES_MAX: usize = 512;
/// Segment numbers that are tried, at most, for a segment whose header is lost.
const GUESSES_MAX: u64 = 1 << 21;

/// Something of a segment that cannot be read.
#[derive(Debug, Clone)]
pub(crate) struct Gap {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The record that was there, if that can be told.
    pub(crate) record: Option<LostRecord>,
    /// All records that were there had lower sequences than this.
    pub(crate) before_sequence: u64,
    /// What begins it is no damage: a record that this build does not know.
    pub(crate) unknown: Option<NotARecord>,
}

impl Gap {
    /// Told to whoever asked for what is left.
    pub(crate) fn error(&self) -> Error {
        if let Some(unknown) = self.unknown {
            return unknown.error(self.offset);
        }
        let what = match &self.record {
            Some(record) => format!("a record of the key {}", record.key.escape_ascii()),
            None => "it is not known of which rows".to_owned(),
        };
        Error::corrupted(format!(
            "the log is corrupted at byte {} of the fast tier: {} bytes are not what was written ({what})",
            self.offset, self.bytes
        ))
    }
}

/// A record of which one byte is wrong, and so not its place in the order of versions.
#[derive(Debug, Clone)]
pub(crate) struct LostRecord {
    pub(crate) table: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) sequence: u64,
    pub(crate) is_tombstone: bool,
    /// It says how the catalog changes, and nothing of a row.
    pub(crate) changes_catalog: bool,
}

/// What a segment still gives.
#[derive(Debug, Default)]
pub(crate) struct Salvaged<'a> {
    /// Records whose prefixes verify, in their order, batches unfolded.
    pub(crate) records: Vec<Record<'a>>,
    pub(crate) gaps: Vec<Gap>,
}

impl Log {
    /// Opens what is left of a log for reading, and says what of its frame is damaged.
    pub(crate) fn open_damaged(
        tier: Arc<FastTier>,
        options: &Options,
        clock: Clock,
    ) -> Result<(Log, OpenState, Vec<Error>)> {
        let tier = bytes_of(tier)?;
        check_length(tier.bytes())?;
        let (root, mut damage) =
            Root::salvage(&tier, |start, placed| segment_number_at(&tier, start, placed))?;
        let grown = tier.bytes().div_ceil(root.extent_bytes.max(1)) as u32;
        let log = Log::over(tier, options, clock, root, grown)?;
        let root = log.root();
        let listed = root.load_list(&log.tier).unwrap_or_else(|error| {
            damage.push(error);
            Vec::new()
        });
        // What a store that was closed in order lists is all there was.
        let is_all_listed = root.clean && !listed.is_empty();
        let mut lacks = !is_all_listed && grown < root.extents;
        let segments = log.find_segments(grown, (&listed, is_all_listed), &mut damage, &mut lacks);
        let found = OpenState { lacks_segments: lacks, ..log.found(segments) };
        Ok((log, found, damage))
    }

    /// `lacks` becomes true if there may have been a segment of which nothing is left.
    fn find_segments(
        &self,
        grown: u32,
        (listed, is_all_listed): (&[SegmentEntry], bool),
        damage: &mut Vec<Error>,
        lacks: &mut bool,
    ) -> Vec<u32> {
        let youngest = listed.iter().map(|entry| entry.segment_number).max().unwrap_or(0);
        let listed: BTreeMap<u32, SegmentEntry> = listed.iter().map(|entry| (entry.extent, *entry)).collect();
        damage.extend(listed.range(grown..).map(|(_, entry)| self.missing(*entry)));
        *lacks |= listed.range(grown..).next().is_some();
        let (mut segments, mut extent, placed) =
            (Vec::new(), self.root_extents, self.root.lock().is_placed());
        while extent < grown {
            let offset = self.extent_offset(extent);
            let bytes = self.tier.try_read(offset, SEGMENT_HEADER_BYTES as usize);
            let bytes = bytes.unwrap_or(&[0; SEGMENT_HEADER_BYTES as usize]);
            let decoded = SegmentHeader::decode(bytes, offset, placed);
            let entry = listed.get(&extent).copied();
            let older =
                |entry: &SegmentEntry| decoded.header.is_none_or(|h| h.segment_number < entry.segment_number);
            let header = match (decoded.header, entry) {
                (_, Some(entry)) if older(&entry) => {
                    damage.push(self.missing(entry));
                    Some(self.header_from(entry))
                }
                (Some(header), _) if header.state != SegmentState::Free => Some(header),
                _ if decoded.spoiled == [false; 2] => None,
                _ => {
                    let guessed = self.guess_header(extent, &decoded, youngest, damage);
                    *lacks |= guessed.is_none() && !is_all_listed;
                    guessed
                }
            };
            let Some(header) = header else {
                let skipped = decoded.header.map_or(1, |h| h.extents).clamp(1, grown - extent);
                // What is listed in there is younger than what was freed, and looked at for itself.
                extent = listed
                    .range(extent + 1..extent + skipped)
                    .next()
                    .map_or(extent + skipped, |(&next, _)| next);
                continue;
            };
            let extents = header.extents.clamp(1, grown - extent);
            let same = entry.filter(|entry| entry.segment_number == header.segment_number);
            self.use_segment(extent, extents, &header, same.map_or(0, |entry| entry.end));
            segments.push(extent);
            extent += extents;
        }
        segments
    }

    fn use_segment(&self, extent: u32, extents: u32, header: &SegmentHeader, listed_end: u64) {
        for u in extent..extent + extents {
            self.extents.at(u).segment_number.store(header.segment_number, Ordering::Relaxed);
        }
        let sealed = header.state == SegmentState::Sealed && listed_end <= header.durable_end;
        let segment = Segment {
            extents,
            sealed,
            in_header: (header.durable_end, sealed),
            durable_end: header.durable_end.max(listed_end),
            is_listed: listed_end > 0,
            ..Segment::of(header)
        };
        self.segments.lock().used.insert(extent, segment);
    }

    /// What the header of a listed segment said, as far as it matters here.
    fn header_from(&self, entry: SegmentEntry) -> SegmentHeader {
        SegmentHeader {
            // Of a store that was closed in order the list says where each ends.
            state: if self.root.lock().clean { SegmentState::Sealed } else { SegmentState::Open },
            kind: SegmentKind::Relocated,
            extents: entry.end.div_ceil(self.extent_bytes()).max(1) as u32,
            segment_number: entry.segment_number,
            durable_end: entry.end,
            max_sequence: u64::MAX,
        }
    }

    /// A segment whose header is spoiled and which no list knows: under the number of which segment its records verify. A
    /// list names all there were, so what is not in it is younger, or free.
    fn guess_header(
        &self,
        extent: u32,
        decoded: &Decoded,
        youngest_listed: u64,
        damage: &mut Vec<Error>,
    ) -> Option<SegmentHeader> {
        let offset = self.extent_offset(extent);
        let bytes =
            self.tier.try_view(offset, self.extent_bytes().min(self.tier.bytes() - offset) as usize)?;
        let above = decoded.header.map_or(0, |h| h.segment_number).max(youngest_listed);
        let parse = |at: usize, segment_number: u64, verify: bool| {
            let rest = bytes.get(at..bytes.len()).ok_or(NotARecord::Lengths)?;
            Record::parse(rest, offset + at as u64, segment_number, verify)
        };
        let looks = |at: &usize| parse(*at, 0, false).is_ok();
        let starts: Vec<usize> = (SEGMENT_HEADER_BYTES as usize..bytes.len().min(64 << 10) - HEADER_BYTES)
            .step_by(8)
            .filter(looks)
            .take(4)
            .collect();
        let root = self.root.lock().clone();
        let opens = root.opens + 1;
        let each = (GUESSES_MAX / opens.max(1)).clamp(64, 1 << 16);
        let all = (1..=opens).rev().flat_map(|open| (root.first_segment_number(open)..).take(each as usize));
        // Where the root is lost, a single header says how many openings there were, and that may be of another store.
        let numbers = all.take(GUESSES_MAX as usize);
        let fits = |segment_number: &u64| {
            let verifies = |at: &usize| parse(*at, *segment_number, true).is_ok();
            *segment_number > above && starts.iter().any(verifies)
        };
        let segment_number = numbers.take_while(|_| !starts.is_empty()).find(fits);
        damage.push(Error::corrupted(format!(
            "the segment header at byte {offset} of the fast tier is corrupted: {}",
            match segment_number {
                Some(_) => "its records say which segment it was",
                None => "it was free, or nothing can be told of what it held",
            }
        )));
        let header = SegmentHeader {
            state: SegmentState::Open,
            kind: SegmentKind::Relocated,
            extents: 1,
            segment_number: 0,
            durable_end: SEGMENT_HEADER_BYTES,
            max_sequence: u64::MAX,
        };
        segment_number.map(|segment_number| SegmentHeader { segment_number, ..header })
    }

    /// All that verifies of a segment, and what does not.
    pub(crate) fn salvage_segment(&self, extent: u32, power_cut: bool) -> Option<Salvaged<'_>> {
        let segment = self.segments.lock().used.get(&extent)?.clone();
        let start = self.extent_offset(extent);
        let room = (u64::from(segment.extents) << self.space.extent_shift())
            .min(self.tier.bytes().checked_sub(start)?);
        let limit = if segment.sealed { segment.end.min(room) } else { room };
        let bytes = self.tier.try_view(start, limit as usize)?;
        let mut search = Search { bytes, start, segment: &segment, found: Salvaged::default() };
        let end = search.run(power_cut);
        let mut found = search.found;
        self.leave_out_what_was_cut(&segment, start, &mut found);
        let expected = segment.durable_end.max(if segment.sealed { segment.end } else { 0 });
        if end < expected {
            found.gaps.push(Gap {
                offset: start + end,
                bytes: expected - end,
                record: None,
                before_sequence: u64::MAX,
                unknown: None,
            });
        }
        bound_gaps(&mut found, &segment);
        Some(found)
    }
}

impl Log {
    /// Behind what the root lists of a segment lies nothing as old as the list, but for what a recovery has cut off: whole records, behind one that was missing. Where there are such, the segment ended before them.
    fn leave_out_what_was_cut(&self, segment: &Segment, start: u64, found: &mut Salvaged<'_>) {
        let watermark = self.root.lock().watermark;
        let listed_end = start + segment.durable_end;
        let is_cut = |record: &Record<'_>| {
            record.offset() >= listed_end
                && record.flags() & FLAG_RELOCATED == 0
                && record.sequence() <= watermark
        };
        if segment.is_listed && found.records.iter().any(is_cut) {
            found.records.retain(|record| record.offset() < listed_end);
            found.gaps.retain(|gap| gap.offset < listed_end);
        }
    }
}

/// One way through a segment.
struct Search<'a, 's> {
    bytes: &'a SharedBytes,
    start: u64,
    segment: &'s Segment,
    found: Salvaged<'a>,
}

impl<'a> Search<'a, '_> {
    fn rest(&self, at: usize) -> Option<&'a SharedBytes> {
        self.bytes.get(at..self.bytes.len()).filter(|rest| rest.len() >= HEADER_BYTES)
    }

    fn parse(&self, at: usize) -> Option<Record<'a>> {
        Record::parse(self.rest(at)?, self.start + at as u64, self.segment.segment_number, true).ok()
    }

    /// Where the next record lies that verifies, from `at` on, known or not.
    fn resume(&self, mut at: usize) -> Option<usize> {
        while at + HEADER_BYTES <= self.bytes.len() {
            if self.bytes.u64_at(at) != 0 && (self.parse(at).is_some() || self.unknown(at).is_some()) {
                return Some(at);
            }
            at += 8;
        }
        None
    }

    /// Why a record at `at` that was written so is none to this build.
    fn unknown(&self, at: usize) -> Option<NotARecord> {
        let parsed = Record::parse(self.rest(at)?, self.start + at as u64, self.segment.segment_number, true);
        parsed.err().filter(|why| matches!(why, NotARecord::Flags(_)))
    }

    /// Collects records and gaps; returns where the last of them ends.
    fn run(&mut self, power_cut: bool) -> u64 {
        let mut at = SEGMENT_HEADER_BYTES as usize;
        // The batch last met: its first record, and where it ends.
        let mut batch = (0, 0);
        loop {
            if let Some(record) = self.parse(at) {
                let after = at + record.record_bytes();
                if record.kind() == RecordKind::Batch {
                    batch = (self.found.records.len(), after + record.batch_bytes().unwrap_or(0));
                } else if !record.is_invalidated() {
                    let is_whole = record.is_mergeable() || record.verify_all().is_ok();
                    self.found.records.push(record);
                    if !is_whole {
                        // Its length may be that of a record from elsewhere, and others lie where its body should.
                        at = self.resume(at + 8).map_or(after, |next| next.min(after));
                        continue;
                    }
                }
                at = after;
                continue;
            }
            // One that is not known is whole: nothing of it is to be guessed.
            let unknown = self.unknown(at);
            let lost = if unknown.is_none() { self.identify(at) } else { None };
            let after = lost.as_ref().map_or(at + 8, |(bytes, _)| at + bytes);
            let durable = self.segment.durable_end as usize;
            let is_dirty = !power_cut && self.bytes.get(at..at + 8).is_some_and(|word| word.u32_at(0) != 0);
            let next = self.resume(at + 8);
            if next.is_none() && at >= durable && !is_dirty && unknown.is_none() {
                if batch.1 > at {
                    // It was never finished: all or nothing.
                    self.found.records.truncate(batch.0);
                }
                return at as u64;
            }
            let to = next.unwrap_or_else(|| after.max(durable).min(self.bytes.len()));
            let (first, record) = match lost {
                Some((bytes, record)) => (at + bytes, Some(record)),
                None => (at, None),
            };
            if record.is_some() {
                self.push_gap(at, first.min(to), record, None);
            }
            if first < to {
                self.push_gap(first, to, None, unknown);
            }
            match next {
                Some(next) => at = next,
                None => return to as u64,
            }
        }
    }

    fn push_gap(&mut self, from: usize, to: usize, record: Option<LostRecord>, unknown: Option<NotARecord>) {
        let offset = self.start + from as u64;
        let after = self.found.records.len() as u64;
        // A newer build wrote thousands of records one after the other: that is one thing to tell.
        if let Some(last) = self.found.gaps.last_mut()
            && unknown.is_some()
            && (last.unknown, last.offset + last.bytes, last.before_sequence) == (unknown, offset, after)
        {
            last.bytes += (to - from) as u64;
            return;
        }
        // Until `bound_gaps` puts a sequence there: the record that comes next.
        self.found.gaps.push(Gap {
            offset,
            bytes: (to - from) as u64,
            record,
            before_sequence: after,
            unknown,
        });
    }

    /// The record at `at`, if it would verify with one byte other than it is, and its length. A checksum of 32 bits over a
    /// short prefix leaves no other way to read it. It is not given out as a record: it only says what was lost.
    fn identify(&self, at: usize) -> Option<(usize, LostRecord)> {
        let rest = self.rest(at)?;
        let mut copy = rest.to_words();
        let mut tries = HEADER_BYTES;
        if let Ok(record) = Record::parse(rest, 0, 0, false) {
            tries = (record.body_offset() as usize).min(MENDED_PREFIX_BYTES_MAX);
        } else if *rest.frozen(0..HEADER_BYTES) == [0; HEADER_BYTES] {
            return None;
        }
        for i in 0..tries.min(rest.len()) {
            for xor in 1..=255 {
                let mut changed = [0; 8];
                changed[i % 8] = xor;
                copy[i / 8] ^= u64::from_ne_bytes(changed);
                let (bytes, offset) = (SharedBytes::of(&mut copy), self.start + at as u64);
                if let Ok(record) = Record::parse(bytes, offset, self.segment.segment_number, true)
                    && !record.is_invalidated()
                {
                    // The frame of a batch has no row, and its table is 0: no table.
                    let lost = LostRecord {
                        table: record.table(),
                        key: record.key().to_vec(),
                        sequence: record.version(),
                        is_tombstone: record.kind() == RecordKind::Tombstone,
                        changes_catalog: record.changes_catalog(),
                    };
                    return Some((record.record_bytes(), lost));
                }
                copy[i / 8] ^= u64::from_ne_bytes(changed);
            }
        }
        None
    }
}

/// Puts a bound on the sequences that were in each gap: those of the writer's own records ascend.
fn bound_gaps(found: &mut Salvaged<'_>, segment: &Segment) {
    let in_order = segment.kind != SegmentKind::Relocated || segment.max_sequence == u64::MAX;
    let last = if segment.sealed { segment.max_sequence.saturating_add(1) } else { u64::MAX };
    for gap in &mut found.gaps {
        let after = &found.records[(gap.before_sequence as usize).min(found.records.len())..];
        let own = after.iter().find(|record| record.flags() & FLAG_RELOCATED == 0);
        gap.before_sequence = match own {
            Some(record) if in_order => record.sequence(),
            _ => last,
        };
    }
}

/// The number of the segment whose header is at `start`, if there is one.
fn segment_number_at(tier: &TierBytes, start: u64, placed: bool) -> Option<u64> {
    let header = tier.try_read(start, SEGMENT_HEADER_BYTES as usize)?;
    Some(SegmentHeader::decode(header, start, placed).header?.segment_number)
}
