//! The segments in use: extents taken into use as segments, and given back when what they held is needed no more.
//!
//! Owns which segments there are and what is known of each. Promises that a segment's header is durable when and as
//! `log/segment.rs` says. Must not know records, nor where extents come from (`space.rs`).

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::appender::NoSpace;
use super::replay::SegmentWalk;
use super::segment::{Deltas, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, SegmentKind, SegmentState};
use super::{Log, SegmentToCopy, header_of, thread_number};
use crate::Result;
use crate::space::Claim;
use crate::sync::atomic::Ordering;

/// An appender may have so many extents open, of rows and of deltas.
const EXTENTS_OF_AN_APPENDER: usize = 2;

/// Segments that wait to be mapped anew; more are left as they are.
const TO_REMAP_MAX: usize = 256;

/// The segments in use.
#[derive(Debug)]
pub(super) struct Segments {
    /// By first extent.
    pub(super) used: BTreeMap<u32, Segment>,
    /// First extents of segments that were sealed and are mapped still as they were written.
    to_remap: VecDeque<u32>,
    /// How many were emptied since the store was opened.
    emptied: u64,
}

impl Segments {
    pub(super) fn new() -> Segments {
        Segments { used: BTreeMap::new(), to_remap: VecDeque::with_capacity(TO_REMAP_MAX), emptied: 0 }
    }

    /// Closes a segment: it ends at `end` with the sequence `max_sequence`, and holds such deltas.
    pub(super) fn seal(&mut self, extent: u32, end: u64, max_sequence: u64, deltas: Deltas) {
        let Some(segment) = self.used.get_mut(&extent) else { return };
        (segment.end, segment.max_sequence, segment.sealed) = (end, max_sequence, true);
        segment.deltas = deltas;
        if self.to_remap.len() < TO_REMAP_MAX {
            self.to_remap.push_back(extent);
        }
    }

    /// A sealed segment to be mapped anew: its first extent and how many it has.
    pub(super) fn next_to_remap(&mut self) -> Option<(u32, u32)> {
        while let Some(extent) = self.to_remap.pop_front() {
            if let Some(segment) = self.used.get(&extent).filter(|segment| segment.sealed) {
                return Some((extent, segment.extents));
            }
        }
        None
    }
}

/// What fills the segments, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Filling {
    /// All that they could hold.
    pub(crate) used: u64,
    /// Records that are not needed, and what was never written before a segment was sealed.
    pub(crate) obsolete: u64,
    /// Live deltas and all deltas, as far as their segments are sealed.
    pub(crate) live_deltas: u64,
    pub(crate) deltas: u64,
}

/// What filled the segments when it was counted.
#[derive(Debug, Default)]
pub(super) struct Filled {
    filling: Filling,
    at_ns: u64,
    /// What counting took; 0 if it is done anew each time.
    took_ns: u64,
}

/// It is counted once in so many times what it took: it is asked for every few milliseconds, and holds up who begins a segment.
const FILLING_PAUSES: u64 = 20;
/// If it took so long.
const FILLING_TAKES_LONG_NS: u64 = 50_000;
/// Whoever counted for longer was not at work all of the time.
const FILLING_TAKES_NS_MAX: u64 = 5_000_000;

impl Filling {
    /// Live records, and what is left of open segments.
    pub(crate) fn live(&self) -> u64 {
        self.used - self.obsolete
    }
}

impl Log {
    /// Takes `extents` extents into use as a segment of `kind`.
    pub(super) fn open_segment(
        &self,
        extents: u32,
        kind: SegmentKind,
        claim: Claim,
    ) -> std::result::Result<u32, NoSpace> {
        // Held until it is there: whoever looks at the segments in use finds each extent free, or in one of them.
        let mut segments = self.segments.lock();
        let extent = self.space.take(extents, claim).map_err(NoSpace::Failed)?.map_err(NoSpace::Full)?;
        let segment_number = self.next_segment_number.fetch_add(1, Ordering::Relaxed);
        for u in extent..extent + extents {
            let extent = self.extents.at(u);
            // Release: who sees it sees that the one before was emptied.
            extent.segment_number.store(segment_number, Ordering::Release);
            extent.obsolete_bytes.store(0, Ordering::Relaxed);
            extent.chains.store(0, Ordering::Relaxed);
            extent.expiry.reset();
        }
        let header = SegmentHeader {
            state: SegmentState::Open,
            kind,
            extents,
            segment_number,
            durable_end: SEGMENT_HEADER_BYTES,
            max_sequence: 0,
        };
        let segment = Segment { next_copy: 1, ..Segment::of(&header) };
        // Whoever is killed before the first record leaves an end mark there.
        self.write_end(extent);
        // PERSIST: the first copy alone. If a power cut loses it, the second still says "free", and nothing in the
        // segment was durable, for the sync that makes a record durable makes this durable too. But where a record will
        // cover the headers of further extents, it must not be there without this.
        // Through the mapping: what lies beside it is about to be written anyway, and a system call would wait for one that allocates.
        let bytes = header.encode(self.extent_offset(extent));
        self.tier.write(self.extent_offset(extent), bytes.len(), |out| out.copy_from_slice(&bytes));
        if self.tier.flush_is_cheap() || extents > 1 {
            self.tier
                .persist(self.extent_offset(extent), SEGMENT_HEADER_BYTES)
                .map_err(|error| NoSpace::Failed(error.into()))?;
        }
        segments.used.insert(extent, segment);
        if kind != SegmentKind::Relocated {
            self.use_appenders_for(self.space.segment_extents());
        }
        Ok(extent)
    }

    /// Lets writers have an appender each once `extents` extents of segments are worth it: each appender keeps room that nobody else can use.
    pub(super) fn use_appenders_for(&self, extents: u32) {
        let few = self.appenders_in_use.load(Ordering::Relaxed) < self.appenders.len();
        if few && extents as usize >= self.appenders.len() * EXTENTS_OF_AN_APPENDER {
            // Who wrote alone goes on where it is: what is open in an appender that nobody comes back to stays open.
            self.first_writer.store(thread_number(), Ordering::Relaxed);
            self.appenders_in_use.store(self.appenders.len(), Ordering::Relaxed);
        }
    }

    /// Lets each writer have an appender of its own, however small the store is.
    #[cfg(test)]
    pub(crate) fn use_all_appenders(&self) {
        self.use_appenders_for(u32::MAX);
        assert!(self.appenders_in_use.load(Ordering::Relaxed) > 1, "there is one for all");
    }

    /// Touches free extents ahead of the appenders (`space.rs`), as long as segments may be begun; if everything is `synced_soon`, without making them dirty.
    pub(crate) fn prefault_extents(&self, synced_soon: bool) -> bool {
        self.space.prefault(synced_soon, || self.check_open().is_ok())
    }

    /// Gives free extents that nobody wants back to the disk (`space.rs`), as long as segments may be begun.
    pub(crate) fn give_back(&self) -> u32 {
        // PERSIST: the header of a free extent says durably that it is free, or there never was one, and it stays: whatever a crash
        // leaves of the rest, old bytes or zeros, nobody looks at it.
        self.space.give_back(|| self.check_open().is_ok())
    }

    /// Maps the segments that were sealed anew ([`FastTier::remap`]), and has them written to the disk from now on if `written_back`, not only when somebody waits for
    /// that. Called by the prefault thread. False if there were none.
    pub(crate) fn remap_sealed(&self, written_back: bool) -> bool {
        let mut remapped = false;
        loop {
            let next = self.segments.lock().next_to_remap();
            let Some((extent, extents)) = next else { return remapped };
            let (offset, bytes) =
                (self.extent_offset(extent), u64::from(extents) << self.space.extent_shift());
            self.tier.remap(offset, bytes);
            if written_back {
                self.tier.start_write_back(offset, bytes);
            }
            remapped = true;
        }
    }

    /// Sealed segments that can be collected and are not being: first extent, segment, obsolete bytes.
    pub(crate) fn candidates(&self) -> Vec<(u32, Segment, u64)> {
        let segments = self.segments.lock();
        let sealed = segments.used.iter().filter(|(_, s)| s.sealed && !s.in_gc && !s.quarantined);
        sealed.map(|(&extent, s)| (extent, s.clone(), self.obsolete_bytes(extent, s))).collect()
    }

    /// Whether any segment is written to.
    pub(crate) fn has_open_segments(&self) -> bool {
        self.segments.lock().used.values().any(|segment| !segment.sealed)
    }

    /// Those of [`Log::candidates`] with nothing live in them, and all their bytes together.
    pub(crate) fn empty_segments(&self) -> (Vec<u32>, u64) {
        let segments = self.segments.lock();
        let sealed = segments.used.iter().filter(|(_, s)| s.sealed && !s.in_gc && !s.quarantined);
        let empty =
            sealed.filter(|&(&extent, s)| self.obsolete_bytes(extent, s) == s.end - SEGMENT_HEADER_BYTES);
        empty.fold((Vec::new(), 0), |(mut empty, bytes), (&extent, s)| {
            empty.push(extent);
            (empty, bytes + (u64::from(s.extents) << self.space.extent_shift()))
        })
    }

    pub(super) fn obsolete_bytes(&self, extent: u32, segment: &Segment) -> u64 {
        self.counted_obsolete(extent, segment).min(segment.end - SEGMENT_HEADER_BYTES)
    }

    fn counted_obsolete(&self, extent: u32, segment: &Segment) -> u64 {
        let obsolete_in = |u| self.extents.at(u).obsolete_bytes.load(Ordering::Relaxed);
        (extent..extent + segment.extents).map(obsolete_in).sum()
    }

    /// Bytes of records that are needed, of those that are not, and of segments where there is no record: the rest of open
    /// ones, and what was left over when they were sealed.
    pub(crate) fn record_bytes(&self) -> (u64, u64, u64) {
        let mut ends = HashMap::new();
        for appender in self.appenders.iter().map(|appender| &appender.0).chain([&self.gc_appender]) {
            ends.extend(appender.lock().ends().map(|(extent, _, end, _)| (extent, end)));
        }
        let segments = self.segments.lock();
        segments.used.iter().fold((0, 0, 0), |(live, obsolete, unused), (&extent, s)| {
            let open_end = ends.get(&extent).copied().unwrap_or(s.end);
            let end = if s.sealed { s.end } else { open_end };
            let filled = end - SEGMENT_HEADER_BYTES;
            let obsolete_here = self.counted_obsolete(extent, s).min(filled);
            let rest = (u64::from(s.extents) << self.space.extent_shift()) - end;
            (live + filled - obsolete_here, obsolete + obsolete_here, unused + rest)
        })
    }

    /// What fills the segments. Where these are so many that counting takes long, as it was a moment ago.
    pub(crate) fn filling(&self) -> Filling {
        let mut last = self.filled.lock();
        let now_ns = self.clock.monotonic_ns();
        if now_ns.saturating_sub(last.at_ns) < last.took_ns * FILLING_PAUSES {
            return last.filling;
        }
        let segments = self.segments.lock();
        let began_ns = self.clock.monotonic_ns();
        let filling = self.count_filling(&segments);
        let at_ns = self.clock.monotonic_ns();
        drop(segments);
        let took_ns = at_ns.saturating_sub(began_ns).min(FILLING_TAKES_NS_MAX);
        let took_ns = if took_ns < FILLING_TAKES_LONG_NS { 0 } else { took_ns };
        *last = Filled { filling, at_ns, took_ns };
        filling
    }

    fn count_filling(&self, segments: &Segments) -> Filling {
        segments.used.iter().fold(Filling::default(), |sum, (&extent, s)| {
            let bytes = (u64::from(s.extents) << self.space.extent_shift()) - SEGMENT_HEADER_BYTES;
            let filled = if s.sealed { s.end - SEGMENT_HEADER_BYTES } else { bytes };
            let obsolete = self.obsolete_bytes(extent, s);
            let deltas = s.deltas.bytes;
            Filling {
                used: sum.used + bytes,
                obsolete: sum.obsolete + obsolete + bytes - filled,
                live_deltas: sum.live_deltas + s.of_live(deltas, obsolete),
                deltas: sum.deltas + deltas,
            }
        })
    }

    /// A table is gone: there may be rows of it in any segment of today. Call with every appender locked.
    pub(crate) fn rows_vanished(&self) {
        self.segments.lock().used.values_mut().for_each(|segment| segment.miscounted = true);
    }

    /// Sealed segments that may hold rows of tables that are gone, not counted as obsolete.
    pub(crate) fn miscounted(&self) -> Vec<u32> {
        let segments = self.segments.lock();
        segments.used.iter().filter(|(_, s)| s.is_miscounted()).map(|(&extent, _)| extent).collect()
    }

    /// Takes a miscounted segment to count it anew, as [`Log::begin_gc`] takes a victim: the bytes of its records,
    /// those of them that are obsolete, and those that were counted so because their table was gone.
    pub(crate) fn begin_recount(&self, extent: u32) -> Option<(u64, u64, u64)> {
        let mut segments = self.segments.lock();
        let segment = segments.used.get_mut(&extent).filter(|s| s.is_miscounted())?;
        (segment.miscounted, segment.in_gc) = (false, true);
        Some((segment.end - SEGMENT_HEADER_BYTES, self.obsolete_bytes(extent, segment), segment.vanished))
    }

    /// Records that `bytes` in the segment which the extent is part of were counted as obsolete because their table was gone.
    pub(crate) fn record_vanished(&self, extent: u32, bytes: u64) {
        if let Some((_, segment)) = self.segments.lock().used.range_mut(..=extent).next_back() {
            segment.vanished += bytes;
        }
    }

    /// Leaves those that are in use and that gc has not begun to empty: they are not freed before all guards have gone that are pinned now.
    pub(crate) fn retain_outside_gc(&self, listed: &mut Vec<SegmentToCopy>) {
        let segments = self.segments.lock();
        listed.retain(|listed| {
            let segment = segments.used.get(&listed.extent);
            segment.is_some_and(|segment| segment.segment_number == listed.segment_number && !segment.in_gc)
        });
    }

    /// Marks a segment as being collected; false if it is gone or not sealed.
    pub(crate) fn begin_gc(&self, extent: u32) -> bool {
        let mut segments = self.segments.lock();
        match segments.used.get_mut(&extent) {
            Some(segment) if segment.sealed && !segment.in_gc => {
                segment.in_gc = true;
                true
            }
            _ => false,
        }
    }

    /// No slot leads into these segments any more: whoever has a place there from elsewhere is told by [`LogView::kept`](super::LogView::kept). Before the epoch is read since which that
    /// is so: who pins later sees it, and those who were before are waited for.
    pub(crate) fn record_emptied(&self, firsts: impl IntoIterator<Item = u32>) {
        let mut segments = self.segments.lock();
        for first in firsts {
            let Some(segment) = segments.used.get(&first) else { continue };
            for u in first..first + segment.extents {
                self.extents.at(u).emptied_number.store(segment.segment_number, Ordering::Release);
            }
            segments.emptied += 1;
        }
    }

    /// How many segments [`Log::record_emptied`] was told of since the store was opened.
    pub(crate) fn segments_emptied(&self) -> u64 {
        self.segments.lock().emptied
    }

    /// Whether [`Log::record_emptied`] was told of the segment that begins at this extent.
    pub(super) fn is_emptied(&self, first: u32, segment: &Segment) -> bool {
        self.extents.at(first).emptied_number.load(Ordering::Relaxed) == segment.segment_number
    }

    /// Segments that are begun from now on have this number or a higher one.
    pub(crate) fn next_segment_number(&self) -> u64 {
        self.next_segment_number.load(Ordering::Relaxed)
    }

    /// The number of the segment that an extent is in, or was in last.
    pub(crate) fn segment_number(&self, extent: u32) -> u64 {
        self.extents.at(extent).segment_number.load(Ordering::Relaxed)
    }

    /// The same of a place that may be anywhere; `None` beyond the tier.
    pub(crate) fn known_segment_number(&self, extent: u32) -> Option<u64> {
        self.extents.get(extent.into()).map(|of| of.segment_number.load(Ordering::Relaxed))
    }

    /// How many extents a segment takes; none if it is gone.
    pub(crate) fn extents_of(&self, extent: u32) -> u32 {
        self.segments.lock().used.get(&extent).map_or(0, |segment| segment.extents)
    }

    /// Lets go of a segment that was taken for collection, or to be counted anew.
    pub(crate) fn abandon_gc(&self, extent: u32) {
        if let Some(segment) = self.segments.lock().used.get_mut(&extent) {
            segment.in_gc = false;
        }
    }

    /// Leaves a segment with corruption in it out of [`Log::candidates`] from now on, for as long as the store is open.
    pub(crate) fn quarantine(&self, extent: u32) {
        if let Some(segment) = self.segments.lock().used.get_mut(&extent) {
            segment.quarantined = true;
        }
    }

    /// Leaves a segment alone after so many `cycles` of gc, for the next `for_cycles`, or until [`Log::try_skipped_early`].
    pub(crate) fn skip(&self, extent: u32, cycles: u64, for_cycles: u64) {
        let returns = self.space.returns();
        if let Some(segment) = self.segments.lock().used.get_mut(&extent) {
            segment.skip.begin(cycles, for_cycles, returns);
        }
    }

    /// Ends the skip of all segments for which extents have come back since: there may be room for them now. Whether there is any.
    pub(crate) fn try_skipped_early(&self, cycles: u64) -> bool {
        let returns = self.space.returns();
        let mut segments = self.segments.lock();
        let skipped = segments.used.values_mut().filter(|s| s.sealed && !s.in_gc && !s.quarantined);
        skipped.map(|segment| segment.skip.end_early(cycles, returns)).fold(false, |any, ended| any | ended)
    }

    /// Records that snapshots older than `before` need something in a segment.
    pub(crate) fn keep_for_snapshots(&self, extent: u32, before: u64) {
        if let Some(segment) = self.segments.lock().used.get_mut(&extent) {
            segment.kept_before = segment.kept_before.max(before);
        }
    }

    /// Segments that were left as they are for a snapshot of `sequence`.
    pub(crate) fn segments_kept_for(&self, sequence: u64) -> u64 {
        let segments = self.segments.lock();
        let is_kept = |segment: &&Segment| !segment.in_gc && segment.kept_before > sequence;
        segments.used.values().filter(is_kept).count() as u64
    }

    /// Bytes of records in a segment that are not obsolete.
    pub(crate) fn live_bytes(&self, extent: u32) -> u64 {
        let segments = self.segments.lock();
        let live =
            |s: &Segment| (s.end - SEGMENT_HEADER_BYTES).saturating_sub(self.obsolete_bytes(extent, s));
        segments.used.get(&extent).map_or(0, live)
    }

    /// Rows with deltas over them in a segment.
    pub(crate) fn chains(&self, extent: u32, segment: &Segment) -> u64 {
        let chains_in = |u| self.extents.at(u).chains.load(Ordering::Relaxed) as i64;
        let chains: i64 = (extent..extent + segment.extents).map(chains_in).sum();
        u64::try_from(chains).unwrap_or(0)
    }

    /// Segments in quarantine.
    pub(crate) fn segments_quarantined(&self) -> u64 {
        self.segments.lock().used.values().filter(|segment| segment.quarantined).count() as u64
    }

    /// Marks collected segments free, durably, in no order. Their extents are not reused before [`Log::reuse`].
    ///
    /// Everything that replaces what they held must be durable, and the root's watermark above its sequences.
    pub(crate) fn free_segments(&self, extents: &[u32]) -> Result<()> {
        /// From so many on one sync of all costs less than one for each.
        const MANY: usize = 4;
        self.check_writable()?;
        self.write_down_freed(extents);
        let mut headers = Vec::with_capacity(extents.len());
        for &extent in extents {
            let mut segments = self.segments.lock();
            let Some(segment) = segments.used.get_mut(&extent) else { continue };
            debug_assert!(self.is_emptied(extent, segment), "who has a place there was not told");
            segment.is_freed = true;
            headers.push((extent, segment.next_copy, header_of(segment, SegmentState::Free)));
        }
        for (extent, _, header) in &headers {
            if header.durable_end == SEGMENT_HEADER_BYTES {
                // For `holds_nothing_since`: what a crash left there is no record of this segment.
                self.write_end(*extent);
            }
        }
        let synced_as_one = headers.len() >= MANY && !self.tier.flush_is_cheap();
        for pass in 0..2 {
            for (extent, first, header) in &headers {
                self.write_header_copy(*extent, first ^ pass, header);
                if !synced_as_one {
                    // PERSIST: one copy is whole at any moment.
                    self.tier.persist(self.extent_offset(*extent), SEGMENT_HEADER_BYTES)?;
                }
            }
            if synced_as_one {
                // PERSIST: of each one copy is whole at any moment.
                self.tier.persist_all()?;
            }
        }
        Ok(())
    }

    /// Gives a freed segment's extents back to the space. No reader may hold a reference into it any more.
    pub(crate) fn reuse(&self, extent: u32) -> Result<()> {
        let Some(segment) = self.segments.lock().used.get(&extent).cloned() else { return Ok(()) };
        if segment.extents > 1 {
            let freed = header_of(&segment, SegmentState::Free);
            self.part(extent, segment.extents, segment.next_copy, freed)?;
        }
        let mut segments = self.segments.lock();
        segments.used.remove(&extent);
        self.space.free(extent..extent + segment.extents);
        Ok(())
    }

    /// For whoever will walk the records of a segment soon.
    pub(crate) fn will_walk(&self, extent: u32) {
        if let Some(segment) = self.segments.lock().used.get(&extent) {
            self.tier.will_need(
                self.extent_offset(extent),
                u64::from(segment.extents) << self.space.extent_shift(),
            );
        }
    }

    /// Walks the records of a segment. `OpenState::power_cut` says how to read an end that does not parse.
    pub(crate) fn walk(&self, extent: u32) -> Option<SegmentWalk<'_>> {
        let segment = self.segments.lock().used.get(&extent)?.clone();
        let start = self.extent_offset(extent);
        let limit = if segment.sealed {
            segment.end
        } else {
            u64::from(segment.extents) << self.space.extent_shift()
        };
        self.tier.will_need(start, limit);
        let bytes = self.tier.try_view(start, limit as usize)?;
        // Whoever sealed it knows where its records end, whether or not its header does.
        let whole_end = if segment.sealed { segment.end } else { segment.durable_end };
        let torn_through = self.torn_through.load(Ordering::Relaxed);
        Some(SegmentWalk::new(bytes, start, segment.segment_number, whole_end, segment.sealed, torn_through))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_segment_is_mapped_anew_once_unless_it_was_freed() {
        let mut segments = Segments::new();
        let open = Segment::of(&SegmentHeader {
            state: SegmentState::Open,
            kind: SegmentKind::Row,
            extents: 2,
            segment_number: 1,
            durable_end: SEGMENT_HEADER_BYTES,
            max_sequence: 0,
        });
        for extent in [1, 3, 5] {
            segments.used.insert(extent, open.clone());
        }
        segments.seal(1, 4096, 7, Deltas::default());
        let two = Deltas { count: 2, bytes: 300 };
        segments.seal(3, 4096, 9, two);
        segments.seal(7, 4096, 9, two);
        assert!(!segments.used[&5].sealed);
        assert_eq!(
            (segments.used[&3].end, segments.used[&3].max_sequence, segments.used[&3].deltas),
            (4096, 9, two)
        );
        segments.used.remove(&1);
        assert_eq!(segments.next_to_remap(), Some((3, 2)));
        assert_eq!(segments.next_to_remap(), None);
    }
}
