//! Closing a store so that it opens at once: the index is saved, and what else a walk over the log would have found.
//!
//! Owns what is saved and when, and that it is taken over whole or not at all. Promises that a store that was opened by a saved index is as it was closed: with the same slots, and the same counts of what is obsolete and what
//! no key counts. Must not know where it lies (`manifest/saved_index.rs`, `log/saved.rs`).
//!
//! A walk reads all of the log, a second or more for each GiB; a saved index takes 20 to 40 bytes for each key. It is of use exactly once, right after the store was closed in order: what a crash leaves is walked, and so is
//! everything whenever anything about a saved index is not as it should be. So nothing rests on it, and the log alone is the store.
//!
//! **What is saved** besides slots is what nothing in the log says: of each segment how much is obsolete and when something expires, and of records that left the index uncounted where they are and which keys they
//! have ([32](../../../../docs/decisions/0032-moving.md)). Forgotten, such a record would be taken off the count of a later one of its key, and that would move, or lose its tombstone, before the record is gone.
//!
//! **When not**: while gc is at work on a segment, or victims wait for readers or snapshots (in which order they are freed is known to memory alone), when counts were lost, or a leaf of a group was found damaged, when a change of the catalog is in the log alone, when
//! there is no room; and of a log so short that nobody would notice ([`Options::saved_index_bytes_min`](crate::Options::saved_index_bytes_min)).
//!
//! Payloads are sections, none of which is in two pieces: kind, table and bytes of what follows (u32 each), all little-endian.
//!
//! * 1: segments, as `log/saved.rs` has them.
//! * 2: records that left the index uncounted: extent, how many (u32 each), their offsets (u64 each).
//! * 3: the hashes of such records' keys, in the same way.
//! * 5, of no bytes: rows may move in this store, so that 3 has the keys of all that 2 has. Where they may not, nobody asks for them; a store that may move rows when it is opened is not opened by what lacks them.
//! * 8: of a table, where the leaves of its groups lie, which stay there (`saved_index/groups.rs`). (6 was the same with one group in an extent: what has it is passed over.)
//! * 7: of a checkpoint (`saved_index/checkpoint.rs`): what was written since is in segments of this number (u64), and of higher ones; the extent in which the journal of what was freed begins (u32).
//! * 4: of a table, keys in order, those of groups left out, each with the slot of its newest version: how many bytes it shares with the one before in the section, how many it has besides (LEB128 each), the slot's word (u64), and those bytes.

mod checkpoint;
mod groups;
pub(super) mod look;
mod since;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hedgerow_device::{make_parts, share_work};
use hedgerow_row::le_bytes::{u32_at, u64_at};

use groups::{GROUPS, OpenedGroups, SavedGroups};

use super::engine::{Engine, TableShared};
use super::recover::Recovery;
use crate::Result;
use crate::index::{LogSlot, Slot, Tag};
use crate::levels::LevelsBuilder;
use crate::log::saved::{BegunCheckpoint, PieceWriter, SavedSegment, WrittenCheckpoint};
use crate::log::{OpenState, SegmentEnd};
use crate::manifest::saved_index::SavedPiece;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const SEGMENTS: u32 = 1;
const DROPPED: u32 = 2;
const DROPPED_KEYS: u32 = 3;
const VERSIONS: u32 = 4;
const KEYS_KNOWN: u32 = 5;
const CHECKPOINT: u32 = 7;
const SECTION_BYTES: usize = 12;
/// Keys whose count of older records has reached its end, as many as may be, or one in so many of all.
const UNCOUNTED_MAX: u64 = 1000;
const UNCOUNTED_ONE_IN: u64 = 1000;
/// So many offsets or hashes are in one entry.
const LIST_MAX: usize = 4096;
/// What an entry of a key takes at most, besides its bytes.
const VERSION_BYTES: usize = 2 * 5 + 8;

/// Sections on their way into pieces.
struct SectionWriter<'l> {
    pieces: PieceWriter<'l>,
    payload: Vec<u8>,
    /// Kind and table of the one that is being written, and where it begins.
    section: Option<((u32, u32), usize)>,
    /// The last key of it.
    key: Vec<u8>,
}

impl<'l> SectionWriter<'l> {
    fn new(pieces: PieceWriter<'l>) -> SectionWriter<'l> {
        SectionWriter { pieces, payload: Vec::new(), section: None, key: Vec::new() }
    }

    fn end_section(&mut self) {
        if let Some((_, begins)) = self.section.take() {
            let bytes = (self.payload.len() - begins - SECTION_BYTES) as u32;
            self.payload[begins + 8..begins + SECTION_BYTES].copy_from_slice(&bytes.to_le_bytes());
        }
        self.key.clear();
    }

    /// Where an entry of a section goes that takes so many bytes at most.
    fn entry(&mut self, of: (u32, u32), bytes_max: usize) -> Result<&mut Vec<u8>> {
        if self.payload.len() + SECTION_BYTES + bytes_max > self.pieces.payload_max() {
            self.end_section();
            self.pieces.write(&self.payload)?;
            self.payload.clear();
        }
        if self.section.is_none_or(|(section, _)| section != of) {
            self.end_section();
            self.section = Some((of, self.payload.len()));
            [of.0, of.1, 0].iter().for_each(|word| self.payload.extend(word.to_le_bytes()));
        }
        Ok(&mut self.payload)
    }

    fn list(&mut self, kind: u32, extent: u32, words: &[u64]) -> Result<()> {
        for words in words.chunks(LIST_MAX) {
            let out = self.entry((kind, 0), 8 + words.len() * 8)?;
            [extent, words.len() as u32].iter().for_each(|word| out.extend(word.to_le_bytes()));
            words.iter().for_each(|word| out.extend(word.to_le_bytes()));
        }
        Ok(())
    }

    fn version(&mut self, table: u32, key: &[u8], slot: Slot) -> Result<()> {
        self.entry((VERSIONS, table), VERSION_BYTES + key.len())?;
        let shared = self.key.iter().zip(key).take_while(|(a, b)| a == b).count();
        push_number(&mut self.payload, shared);
        push_number(&mut self.payload, key.len() - shared);
        self.payload.extend(slot.raw().to_le_bytes());
        self.payload.extend(&key[shared..]);
        self.key.truncate(shared);
        self.key.extend(&key[shared..]);
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.end_section();
        self.pieces.finish(&self.payload)
    }

    fn finish_checkpoint(mut self, begun: BegunCheckpoint<'_>) -> Result<WrittenCheckpoint> {
        self.end_section();
        self.pieces.finish_checkpoint(&self.payload, begun)
    }
}

fn push_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 128 {
        out.push(number as u8 | 128);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in (0..35).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= usize::from(byte & 127) << shift;
        if byte < 128 {
            return Some(number);
        }
    }
    None
}

/// What pieces have, by what it is of.
#[derive(Default)]
struct Sections<'p> {
    segments: Vec<SavedSegment>,
    dropped: Vec<(u32, Vec<u64>)>,
    dropped_keys: Vec<(u32, Vec<u64>)>,
    keys_known: bool,
    /// By table, in the order of keys.
    versions: BTreeMap<u32, Vec<&'p [u8]>>,
    groups: BTreeMap<u32, SavedGroups>,
    /// Of a checkpoint: the number of the first segment since, and where its journal begins.
    checkpoint: Option<(u64, u32)>,
}

impl<'p> Sections<'p> {
    /// `None` if a section is of another kind, or ends too soon.
    fn of(pieces: &[SavedPiece<'p>]) -> Option<Sections<'p>> {
        let mut sections = Sections::default();
        for piece in pieces {
            let mut rest = piece.bytes;
            while !rest.is_empty() {
                let (head, behind) = rest.split_at_checked(SECTION_BYTES)?;
                let (section, behind) = behind.split_at_checked(u32_at(head, 8) as usize)?;
                match u32_at(head, 0) {
                    SEGMENTS => sections.segments.extend(segments_of(section)?),
                    DROPPED => sections.dropped.extend(lists_of(section)?),
                    DROPPED_KEYS => sections.dropped_keys.extend(lists_of(section)?),
                    KEYS_KNOWN => sections.keys_known = true,
                    CHECKPOINT => {
                        let section = section.get(..12)?;
                        sections.checkpoint = Some((u64_at(section, 0), u32_at(section, 8)));
                    }
                    GROUPS => sections.groups.entry(u32_at(head, 4)).or_default().add(section)?,
                    VERSIONS => sections.versions.entry(u32_at(head, 4)).or_default().push(section),
                    _ => return None,
                }
                rest = behind;
            }
        }
        Some(sections)
    }
}

fn segments_of(mut section: &[u8]) -> Option<Vec<SavedSegment>> {
    let mut segments = Vec::new();
    while !section.is_empty() {
        let (segment, rest) = SavedSegment::decode(section)?;
        segments.push(segment);
        section = rest;
    }
    Some(segments)
}

fn lists_of(mut section: &[u8]) -> Option<Vec<(u32, Vec<u64>)>> {
    let mut lists = Vec::new();
    while !section.is_empty() {
        let (head, rest) = section.split_at_checked(8)?;
        let (words, rest) = rest.split_at_checked(u32_at(head, 4) as usize * 8)?;
        lists.push((u32_at(head, 0), words.chunks_exact(8).map(|word| u64_at(word, 0)).collect()));
        section = rest;
    }
    Some(lists)
}

/// The first key of a section, which shares nothing.
fn first_key(mut section: &[u8]) -> Option<Vec<u8>> {
    let _none = take_number(&mut section)?;
    let bytes = take_number(&mut section)?;
    Some(section.get(8..8 + bytes)?.to_vec())
}

/// What a slot of a saved index leads into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SegmentAt {
    There,
    /// There was one, of a checkpoint, and it was freed since.
    Freed,
    Nowhere,
}

/// Keys whose record was freed since a checkpoint, each with the slot that it had. They do not go to the index: what is at that place by now is another record, which may even be one of the same key.
type GoneKeys = Vec<(Vec<u8>, LogSlot)>;

/// Adds what a section has to what is built, behind the last `key` of the one before; returns how many rows of it expire. `None` if keys do not rise, or a slot leads where no record is. Keys of records that were freed since go to `gone`.
fn push_all(
    mut section: &[u8],
    key: &mut Vec<u8>,
    (levels, gone): (&mut LevelsBuilder<'_>, &mut GoneKeys),
    segment_at: &impl Fn(u64) -> SegmentAt,
) -> Option<u64> {
    let (mut expiring, mut begins) = (0, true);
    while !section.is_empty() {
        let (shared, bytes) = (take_number(&mut section)?, take_number(&mut section)?);
        let (word, rest) = section.split_at_checked(8)?;
        let (tail, rest) = rest.split_at_checked(bytes)?;
        let slot = Slot::from_raw(u64_at(word, 0)).and_then(Slot::in_log)?;
        // Nothing is shared with another section, and what comes behind what is shared is greater.
        let rises = tail > key.get(shared..)? && !(begins && shared > 0);
        let is_known = matches!(slot.tag(), Tag::Row | Tag::Delta | Tag::Tombstone | Tag::Blind);
        let place = segment_at(slot.offset());
        if !rises || !is_known || place == SegmentAt::Nowhere {
            return None;
        }
        begins = false;
        key.truncate(shared);
        key.extend(tail);
        match place {
            SegmentAt::Freed => gone.push((key.clone(), slot)),
            _ => {
                expiring += u64::from(slot.expires());
                levels.push(key, slot).ok()?;
            }
        }
        section = rest;
    }
    Some(expiring)
}

/// What a table's index is made of, and how many of its rows expire.
struct Built<'l> {
    table: Arc<TableShared>,
    levels: LevelsBuilder<'l>,
    expiring: u64,
    gone: GoneKeys,
}

/// Saving.
impl Engine {
    /// Saves the index of a store that is closed now, if there is something to be gained.
    ///
    /// # Errors
    /// What the tier refuses. The store is closed all the same, and is walked when it is opened.
    pub(super) fn save_index(&self) -> Result<()> {
        // Nobody changes a slot any more, or frees a segment: the log is closed, and no cycle is under way.
        let _alone = self.gc.lock.write();
        // Nor does a key go from the young level to a group, by whoever collects by hand meanwhile.
        let _sealing = self.gc.sealing.lock();
        let _merging = self.gc.merging_groups.lock();
        let has_groups = self.catalog.all().iter().any(|table| table.levels.has_groups());
        let Some(segments) = self.log.saved_segments(has_groups) else { return Ok(()) };
        let bytes: u64 = segments.iter().map(SavedSegment::log_bytes).sum();
        if bytes < self.options.saved_index_bytes_min || !self.gc.knows_all() || self.log.has_damaged_leaf() {
            return Ok(());
        }
        // More than it takes: a tree has room in its leaves, and keys share what they begin with.
        let Some(pieces) = self.log.save_index(self.arena.bytes()) else { return Ok(()) };
        let mut sections = SectionWriter::new(pieces);
        for segment in &segments {
            let out = sections.entry((SEGMENTS, 0), segment.bytes())?;
            segment.encode(out);
        }
        self.gc.each_dropped(|extent, offsets| sections.list(DROPPED, extent, offsets))?;
        if self.may_move() {
            sections.entry((KEYS_KNOWN, 0), 0)?;
        }
        self.gc.each_dropped_key(|extent, hashes| sections.list(DROPPED_KEYS, extent, hashes))?;
        let (guard, mut keys, mut uncounted) = (self.log.pin(), 0, 0);
        for table in self.catalog.all() {
            let id = table.id.load(Ordering::Acquire);
            sections.groups(id, &table.levels.groups(), table.levels.sealed_rows())?;
            keys += table.levels.sealed_rows();
            table.levels.each_young_version(&guard, |key, slot| {
                let slot = *self.cache.log_slot(slot, &guard);
                keys += 1;
                uncounted += u64::from(slot.older_versions() == Slot::OLDER_VERSIONS_SATURATED);
                sections.version(id, key, slot)
            })?;
        }
        // Of too many keys it is not known how many records they have in the log: a walk counts them anew, and else their tombstones would never go.
        if uncounted > UNCOUNTED_MAX.max(keys / UNCOUNTED_ONE_IN) { Ok(()) } else { sections.finish() }
    }
}

/// Taking over.
impl Engine {
    /// Opens the store by its saved index; false, and nothing is changed, if it has none that counts.
    pub(super) fn open_saved(&self, found: &OpenState, threads: usize) -> Result<bool> {
        let Some(pieces) = self.log.saved_index().filter(|_| found.clean) else { return Ok(false) };
        let held = self.log.hold_pieces(&pieces);
        if !self.are_whole(&pieces, threads) {
            return Ok(false);
        }
        let Some(sections) = Sections::of(&pieces) else { return Ok(false) };
        let lacks_keys = self.may_move() && !sections.keys_known && !sections.dropped.is_empty();
        if lacks_keys || !self.log.has_exactly(&sections.segments) {
            return Ok(false);
        }
        let is_of_table = |id: &u32| self.catalog.by_id(*id).is_some();
        if !sections.groups.keys().all(|id| self.options.seal && is_of_table(id)) {
            return Ok(false);
        }
        let Some((groups, leaves)) = groups::take_over(&sections.groups, &self.log, threads) else {
            return Ok(false);
        };
        let extents: BTreeSet<u32> = sections.segments.iter().flat_map(SavedSegment::extents).collect();
        let segment_at = |offset| match extents.contains(&((offset / self.log.extent_bytes()) as u32)) {
            true => SegmentAt::There,
            false => SegmentAt::Nowhere,
        };
        let Some(built) = self.build_saved(&sections, threads, &segment_at) else { return Ok(false) };
        let ends = self.log.take_over(&sections.segments);
        sections
            .dropped
            .into_iter()
            .for_each(|(extent, offsets)| self.gc.record_all_dropped(extent, offsets));
        for (extent, hashes) in sections.dropped_keys {
            hashes.into_iter().for_each(|hash| self.gc.will_drop_key(extent, hash));
        }
        self.recovery().took_over(built, groups, (ends, found))?;
        leaves.keep();
        held.release();
        self.index_was_saved.store(true, Ordering::Relaxed);
        Ok(true)
    }

    fn are_whole(&self, pieces: &[SavedPiece<'_>], threads: usize) -> bool {
        let (next, are_whole) = (AtomicUsize::new(0), AtomicBool::new(true));
        let look = || {
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                if !self.log.will_read_piece(piece) || !piece.is_whole() {
                    are_whole.store(false, Ordering::Relaxed);
                    return;
                }
            }
        };
        share_work("open", threads.min(pieces.len()), look);
        are_whole.into_inner()
    }

    /// The indexes of all tables; `None` if there is one that nobody knows, or what was saved is not what is written here: what was taken of the index's memory by then is not given back.
    fn build_saved(
        &self,
        sections: &Sections<'_>,
        threads: usize,
        segment_at: &(impl Fn(u64) -> SegmentAt + Sync),
    ) -> Option<Vec<Built<'_>>> {
        let mut versions: Vec<_> = sections.versions.iter().collect();
        // The largest last: its keys are what memory has no room for.
        versions.sort_by_cached_key(|(_, of)| of.iter().map(|section| section.len()).sum::<usize>());
        let tables: Option<Vec<_>> =
            versions.into_iter().map(|(id, of)| Some((self.catalog.by_id(*id)?, of.as_slice()))).collect();
        let build = |(table, of): (Arc<TableShared>, _)| {
            let has_groups = sections.groups.contains_key(&table.id.load(Ordering::Relaxed));
            self.build_table(table, of, has_groups, (threads, segment_at))
        };
        tables?.into_iter().map(build).collect()
    }

    fn build_table(
        &self,
        table: Arc<TableShared>,
        sections: &[&[u8]],
        has_groups: bool,
        (threads, segment_at): (usize, &(impl Fn(u64) -> SegmentAt + Sync)),
    ) -> Option<Built<'_>> {
        let ranges: Vec<&[&[u8]]> = sections.chunks(sections.len().div_ceil(threads.max(1)).max(1)).collect();
        let fences = ranges.iter().map(|range| first_key(range.first()?)).collect::<Option<Vec<_>>>()?;
        // A leaf shares less of its keys than a section does.
        let bytes = sections.iter().map(|section| section.len() as u64).sum::<u64>();
        let build = |i: usize| {
            let low = fences.get(i).filter(|_| i > 0).cloned();
            let levels = self.catalog.levels_builder((low, fences.get(i + 1).cloned()));
            // What groups have is older than what is sealed here: so nothing is.
            let seal = self.seal_at_opening().of_table(bytes, ranges.len() as u64).filter(|_| !has_groups);
            let mut levels = levels.sealing(seal);
            let (mut key, mut expiring, mut gone) = (Vec::new(), 0, GoneKeys::new());
            for section in ranges[i] {
                expiring += push_all(section, &mut key, (&mut levels, &mut gone), segment_at)?;
            }
            fences.get(i + 1).is_none_or(|fence| key < *fence).then_some((levels, expiring, gone))
        };
        let mut parts = make_parts("open", ranges.len(), build).into_iter().rev();
        let last = parts.next()??;
        let (levels, expiring, gone) = parts.try_fold(last, |(right, more, others), left| {
            let (left, some, mut gone) = left?;
            gone.extend(others);
            Some((left.join(right).ok()?, some + more, gone))
        })?;
        Some(Built { table, levels, expiring, gone })
    }
}

impl Recovery<'_> {
    fn took_over(
        &self,
        built: Vec<Built<'_>>,
        groups: BTreeMap<u32, OpenedGroups>,
        (ends, found): (Vec<SegmentEnd>, &OpenState),
    ) -> Result<()> {
        self.take_over_levels(built, groups)?;
        self.log.recovered(ends, found.watermark, found, self.persists_in_place, None)
    }
}

impl Recovery<'_> {
    /// Takes over the levels of all tables; returns the keys of each whose record was freed since a checkpoint.
    fn take_over_levels(
        &self,
        built: Vec<Built<'_>>,
        groups: BTreeMap<u32, OpenedGroups>,
    ) -> Result<BTreeMap<u32, GoneKeys>> {
        let mut all_gone = BTreeMap::new();
        for Built { table, levels, expiring, gone } in built {
            table.levels.build(levels)?;
            table.expiry.reset(expiring);
            if !gone.is_empty() {
                all_gone.insert(table.id.load(Ordering::Relaxed), gone);
            }
        }
        for (id, OpenedGroups { rows, groups }) in groups {
            if let Some(table) = self.catalog.by_id(id) {
                table.levels.open_groups(groups, rows);
            }
        }
        Ok(all_gone)
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
