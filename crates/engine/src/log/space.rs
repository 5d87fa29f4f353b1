//! Space: extents taken into use as segments, grown, touched ahead, freed and used again.
//!
//! Owns the way of an extent from the medium into a segment and back. Promises that a segment's header is durable when and as
//! `log/segment.rs` says. Must not know records.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hedgerow_device::DeviceError;

use super::appender::NoSpace;
use super::pool::{NoExtent, Pool};
use super::replay::SegmentWalk;
use super::segment::{Claim, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, SegmentKind, SegmentState};
use super::{Log, header_of, thread_number};
use crate::Result;

/// What is kept of an extent that is given back: the page of its header.
pub(super) const KEPT_BYTES: u64 = 4096;

/// An appender may have so many extents open, of rows and of deltas.
const EXTENTS_OF_AN_APPENDER: usize = 2;

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
        let mut pool = self.pool.lock();
        self.look_at_disk(&mut pool);
        let extent = loop {
            match pool.take(extents, claim, self.now()) {
                Ok(extent) => break extent,
                Err(NoExtent::Grow(more)) => self.grow(&mut pool, more).map_err(NoSpace::Failed)?,
                Err(NoExtent::Full) => return Err(NoSpace::Full(claim)),
            }
        };
        let segment_number = self.next_segment_number.fetch_add(1, Ordering::Relaxed);
        for u in extent..extent + extents {
            let extent = self.extents.at(u);
            extent.segment_number.store(segment_number, Ordering::Relaxed);
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
        pool.used.insert(extent, segment);
        if kind != SegmentKind::Relocated {
            self.use_appenders_for(pool.segment_extents());
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

    /// Grows the tier by `extents`, by more while it is large, or by fewer where there is no room for so many. A disk that is
    /// full is recorded in the pool, and no error.
    fn grow(&self, pool: &mut Pool, extents: u32) -> Result<()> {
        // A little at a time while the store is small, 64 MiB at a time later.
        if let Some(extent) = pool.first_bare() {
            let outcome = self.tier.allocate(self.extent_offset(extent), self.extent_bytes());
            return self.record_growth(pool, outcome, |pool| pool.has_allocated(extent));
        }
        let step = extents.max((pool.segment_extents() / 2).min((64 << 20 >> self.extent_shift) as u32));
        let room = pool.extents_max.saturating_sub(pool.grown);
        let (mut outcome, mut wanted) = (Ok(()), 0);
        for extents in [step, extents, 1].map(|extents| extents.min(room)) {
            wanted = extents;
            outcome = self.tier.grow(u64::from(pool.grown + wanted) << self.extent_shift);
            if !matches!(outcome, Err(DeviceError::Full { .. })) {
                break;
            }
        }
        self.record_growth(pool, outcome, |pool| pool.has_grown(wanted))
    }

    /// What the medium answered to a growth goes into the pool, and is an error unless the disk is full.
    fn record_growth(
        &self,
        pool: &mut Pool,
        outcome: std::result::Result<(), DeviceError>,
        done: impl FnOnce(&mut Pool),
    ) -> Result<()> {
        self.look_at_disk(pool);
        match outcome {
            Ok(()) => done(pool),
            Err(full @ DeviceError::Full { .. }) => pool.refused(full.to_string(), self.now()),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Gives free extents that nobody wants back to the disk, all but the page of their header. Called by the prefault thread; its
    /// calls must not meet. Returns how many.
    pub(crate) fn give_back(&self) -> u32 {
        let surplus = self.pool.lock().surplus(self.now());
        (0..surplus).map_while(|_| self.give_back_one().then_some(())).count() as u32
    }

    fn give_back_one(&self) -> bool {
        if self.check_open().is_err() {
            return false;
        }
        let Some(extent) = self.pool.lock().next_to_release() else { return false };
        let released = self.release_free(extent);
        self.pool.lock().has_released(extent, released);
        released
    }

    /// Gives back a free extent that nobody can take meanwhile.
    pub(super) fn release_free(&self, extent: u32) -> bool {
        // PERSIST: the header says durably that the extent is free, or there never was one, and it stays: whatever a crash
        // leaves of the rest, old bytes or zeros, nobody looks at it.
        let (offset, bytes) = (self.extent_offset(extent) + KEPT_BYTES, self.extent_bytes() - KEPT_BYTES);
        self.extents.at(extent).small_pages.store(0, Ordering::Relaxed);
        self.tier.release(offset, bytes)
    }

    /// Finds, of the free extents, enough that have blocks or are given some: what was held back when the store was closed, or
    /// its process killed, is held back again. Called when the store is opened.
    pub(super) fn hold_back(&self, pool: &mut Pool) -> Result<()> {
        // The low ones stayed when extents were given back.
        const TRIES_MAX: usize = 64;
        for extent in pool.all_bare().into_iter().take(TRIES_MAX) {
            if pool.is_held_back() {
                return Ok(());
            }
            match self.tier.allocate(self.extent_offset(extent), self.extent_bytes()) {
                Ok(()) => pool.has_allocated(extent),
                // The disk is full: but the next one may have its blocks still.
                Err(DeviceError::Full { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Asks the disk how much room it has.
    pub(super) fn look_at_disk(&self, pool: &mut Pool) {
        let extents = |bytes: u64| u32::try_from(bytes >> self.extent_shift).unwrap_or(u32::MAX);
        pool.set_disk_extents(self.tier.free_bytes().map(extents));
    }

    /// Why the tier does not grow, though it has not reached its limit: the disk is full.
    pub(crate) fn disk_is_full(&self) -> Option<String> {
        let pool = self.pool.lock();
        let kept = || {
            let free = self.tier.free_bytes().unwrap_or_default();
            format!("{free} bytes of the disk are free, and kept for overwrites and deletes")
        };
        pool.is_limited_by_disk().then(|| pool.refusal().map_or_else(kept, str::to_owned))
    }

    /// Whether there is no room for a segment of `extents` now, growth included.
    pub(crate) fn lacks(&self, extents: u32, claim: Claim) -> bool {
        self.pool.lock().lacks(extents, claim)
    }

    /// Touches free extents ahead of the appenders, so that writing them faults no page. Called by the prefault thread. False if there
    /// was none to touch.
    pub(crate) fn prefault_extents(&self) -> bool {
        let mut prefaulted = false;
        self.look_at_disk(&mut self.pool.lock());
        while self.check_open().is_ok() {
            let mut pool = self.pool.lock();
            let extent = match pool.next_to_prefault(self.now()) {
                None | Some(Err(NoExtent::Full)) => return prefaulted,
                Some(Ok(extent)) => extent,
                Some(Err(NoExtent::Grow(extents))) => {
                    if self.grow(&mut pool, extents).is_err() {
                        return prefaulted;
                    }
                    continue;
                }
            };
            drop(pool);
            prefaulted = true;
            let small = self.extents.at(extent).small_pages;
            let anew = self.syncs_each_write && small.swap(1, Ordering::Relaxed) == 0;
            // In steps, so that the pages of an appender's own segment are not kept waiting for the mapping's lock.
            const STEP: u64 = 512 << 10;
            for step in 0..self.extent_bytes().div_ceil(STEP) {
                let offset = self.extent_offset(extent) + step * STEP;
                let bytes = STEP.min(self.extent_bytes() - step * STEP);
                match self.syncs_each_write {
                    true => self.tier.populate_for_small_syncs(offset, bytes, anew),
                    false => self.tier.populate(offset, bytes),
                }
            }
            self.pool.lock().add_ready(extent);
        }
        prefaulted
    }

    /// Maps the segments that were sealed anew ([`FastTier::remap`]). Called by the prefault thread. False if there were none.
    pub(crate) fn remap_sealed(&self) -> bool {
        let mut remapped = false;
        loop {
            let next = self.pool.lock().next_to_remap();
            let Some((extent, extents)) = next else { return remapped };
            self.tier.remap(self.extent_offset(extent), u64::from(extents) << self.extent_shift);
            remapped = true;
        }
    }

    /// Extents that can still be taken, now or in a moment, growth that the disk has room for included, and all there may be.
    pub(crate) fn space(&self) -> (u32, u32) {
        self.pool.lock().space()
    }

    /// Waits until a segment is freed, at most `timeout`; false if none was.
    pub(crate) fn wait_for_space(&self, timeout: Duration) -> bool {
        let mut pool = self.pool.lock();
        !self.space_freed.wait_for(&mut pool, timeout).timed_out()
    }

    /// Sealed segments that can be collected and are not being: first extent, segment, obsolete bytes.
    pub(crate) fn candidates(&self) -> Vec<(u32, Segment, u64)> {
        let pool = self.pool.lock();
        let sealed = pool.used.iter().filter(|(_, s)| s.sealed && !s.in_gc && !s.quarantined);
        sealed.map(|(&extent, s)| (extent, s.clone(), self.obsolete_bytes(extent, s))).collect()
    }

    /// Those of them with nothing live in them, and all their bytes together.
    pub(crate) fn empty_segments(&self) -> (Vec<u32>, u64) {
        let pool = self.pool.lock();
        let sealed = pool.used.iter().filter(|(_, s)| s.sealed && !s.in_gc && !s.quarantined);
        let empty =
            sealed.filter(|&(&extent, s)| self.obsolete_bytes(extent, s) == s.end - SEGMENT_HEADER_BYTES);
        empty.fold((Vec::new(), 0), |(mut empty, bytes), (&extent, s)| {
            empty.push(extent);
            (empty, bytes + (u64::from(s.extents) << self.extent_shift))
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
        let pool = self.pool.lock();
        pool.used.iter().fold((0, 0, 0), |(live, obsolete, unused), (&extent, s)| {
            let open_end = ends.get(&extent).copied().unwrap_or(s.end);
            let end = if s.sealed { s.end } else { open_end };
            let filled = end - SEGMENT_HEADER_BYTES;
            let obsolete_here = self.counted_obsolete(extent, s).min(filled);
            let rest = (u64::from(s.extents) << self.extent_shift) - end;
            (live + filled - obsolete_here, obsolete + obsolete_here, unused + rest)
        })
    }

    /// What fills the segments.
    pub(crate) fn filling(&self) -> Filling {
        let pool = self.pool.lock();
        pool.used.iter().fold(Filling::default(), |sum, (&extent, s)| {
            let bytes = (u64::from(s.extents) << self.extent_shift) - SEGMENT_HEADER_BYTES;
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

    /// Bytes of the fast tier the store takes now, and may take.
    pub(crate) fn tier_bytes(&self) -> (u64, u64) {
        let pool = self.pool.lock();
        (u64::from(pool.grown) << self.extent_shift, u64::from(pool.extents_max) << self.extent_shift)
    }

    /// Bytes of the segments in use and the root, and how many there may be.
    pub(crate) fn bytes_used(&self) -> (u64, u64) {
        self.bytes_used_of(&self.pool.lock())
    }

    /// [`Log::bytes_used`] for who must not wait; `None` while others have hold of the extents.
    pub(crate) fn try_bytes_used(&self) -> Option<(u64, u64)> {
        self.pool.try_lock().map(|pool| self.bytes_used_of(&pool))
    }

    fn bytes_used_of(&self, pool: &Pool) -> (u64, u64) {
        (
            u64::from(pool.extents_used()) << self.extent_shift,
            u64::from(pool.extents_max) << self.extent_shift,
        )
    }

    /// A table is gone: there may be rows of it in any segment of today. Call with every appender locked.
    pub(crate) fn rows_vanished(&self) {
        self.pool.lock().used.values_mut().for_each(|segment| segment.miscounted = true);
    }

    /// Sealed segments that may hold rows of tables that are gone, not counted as obsolete.
    pub(crate) fn miscounted(&self) -> Vec<u32> {
        let pool = self.pool.lock();
        pool.used.iter().filter(|(_, s)| s.is_miscounted()).map(|(&extent, _)| extent).collect()
    }

    /// Takes a miscounted segment to count it anew, as [`Log::begin_gc`] takes a victim: the bytes of its records,
    /// those of them that are obsolete, and those that were counted so because their table was gone.
    pub(crate) fn begin_recount(&self, extent: u32) -> Option<(u64, u64, u64)> {
        let mut pool = self.pool.lock();
        let segment = pool.used.get_mut(&extent).filter(|s| s.is_miscounted())?;
        (segment.miscounted, segment.in_gc) = (false, true);
        Some((segment.end - SEGMENT_HEADER_BYTES, self.obsolete_bytes(extent, segment), segment.vanished))
    }

    /// Records that `bytes` in the segment which the extent is part of were counted as obsolete because their table was gone.
    pub(crate) fn record_vanished(&self, extent: u32, bytes: u64) {
        if let Some((_, segment)) = self.pool.lock().used.range_mut(..=extent).next_back() {
            segment.vanished += bytes;
        }
    }

    /// Marks a segment as being collected; false if it is gone or not sealed.
    pub(crate) fn begin_gc(&self, extent: u32) -> bool {
        let mut pool = self.pool.lock();
        match pool.used.get_mut(&extent) {
            Some(segment) if segment.sealed && !segment.in_gc => {
                segment.in_gc = true;
                true
            }
            _ => false,
        }
    }

    /// Lets go of a segment that was taken for collection, or to be counted anew.
    pub(crate) fn abandon_gc(&self, extent: u32) {
        if let Some(segment) = self.pool.lock().used.get_mut(&extent) {
            segment.in_gc = false;
        }
    }

    /// Leaves a segment with corruption in it out of [`Log::candidates`] from now on, for as long as the store is open.
    pub(crate) fn quarantine(&self, extent: u32) {
        if let Some(segment) = self.pool.lock().used.get_mut(&extent) {
            segment.quarantined = true;
        }
    }

    /// Leaves a segment alone up to the gc cycle `until`.
    pub(crate) fn skip_until(&self, extent: u32, until: u64) {
        if let Some(segment) = self.pool.lock().used.get_mut(&extent) {
            segment.skipped_until = until;
        }
    }

    /// Rows with deltas over them in a segment.
    pub(crate) fn chains(&self, extent: u32, segment: &Segment) -> u64 {
        let chains_in = |u| self.extents.at(u).chains.load(Ordering::Relaxed) as i64;
        let chains: i64 = (extent..extent + segment.extents).map(chains_in).sum();
        u64::try_from(chains).unwrap_or(0)
    }

    /// Segments in quarantine.
    pub(crate) fn segments_quarantined(&self) -> u64 {
        self.pool.lock().used.values().filter(|segment| segment.quarantined).count() as u64
    }

    /// Marks a collected segment free, durably. Its extents are not reused before [`Log::reuse`].
    ///
    /// Everything that replaces what it held must be durable, and the root's watermark above its sequences.
    pub(crate) fn free_segment(&self, extent: u32) -> Result<()> {
        self.check_writable()?;
        let (first, header) = {
            let pool = self.pool.lock();
            let Some(segment) = pool.used.get(&extent) else { return Ok(()) };
            (segment.next_copy, header_of(segment, SegmentState::Free))
        };
        if header.durable_end == SEGMENT_HEADER_BYTES {
            // For `holds_nothing_since`: what a crash left there is no record of this segment.
            self.write_end(extent);
        }
        self.write_header(extent, first, &header)
    }

    /// Puts a freed segment's extents back into the pool. No reader may hold a reference into it any more.
    pub(crate) fn reuse(&self, extent: u32) -> Result<()> {
        let Some(segment) = self.pool.lock().used.get(&extent).cloned() else { return Ok(()) };
        if segment.extents > 1 {
            let freed = header_of(&segment, SegmentState::Free);
            self.part(extent, segment.extents, segment.next_copy, freed)?;
        }
        let mut pool = self.pool.lock();
        pool.used.remove(&extent);
        (extent..extent + segment.extents).for_each(|u| pool.add_free(u));
        self.space_freed.notify_all();
        Ok(())
    }

    /// For whoever will walk the records of a segment soon.
    pub(crate) fn will_walk(&self, extent: u32) {
        if let Some(segment) = self.pool.lock().used.get(&extent) {
            self.tier.will_need(self.extent_offset(extent), u64::from(segment.extents) << self.extent_shift);
        }
    }

    /// Walks the records of a segment. `OpenState::power_cut` says how to read an end that does not parse.
    pub(crate) fn walk(&self, extent: u32) -> Option<SegmentWalk<'_>> {
        let segment = self.pool.lock().used.get(&extent)?.clone();
        let start = self.extent_offset(extent);
        let limit =
            if segment.sealed { segment.end } else { u64::from(segment.extents) << self.extent_shift };
        self.tier.will_need(start, limit);
        let bytes = self.tier.try_view(start, limit as usize)?;
        // Whoever sealed it knows where its records end, whether or not its header does.
        let whole_end = if segment.sealed { segment.end } else { segment.durable_end };
        let torn_through = self.torn_through.load(Ordering::Relaxed);
        Some(SegmentWalk::new(bytes, start, segment.segment_number, whole_end, segment.sealed, torn_through))
    }
}
