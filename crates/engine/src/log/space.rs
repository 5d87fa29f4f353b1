//! Space: units taken into use as segments, grown, touched ahead, freed and used again.
//!
//! Owns the way of a unit from the medium into a segment and back. Promises that a segment's header is durable when and as
//! `log/segment.rs` says. Must not know records.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hedgerow_device::DeviceError;

use super::appender::NoSpace;
use super::pool::{NoUnit, Pool};
use super::replay::Walk;
use super::segment::{Claim, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, SegmentKind, SegmentState};
use super::{Log, header_of, thread_number};
use crate::Result;

/// What is kept of a unit that is given back: the page of its header.
pub(super) const KEPT_BYTES: u64 = 4096;

/// An appender may have so many units open, of rows and of deltas.
const UNITS_OF_AN_APPENDER: usize = 2;

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
    /// Takes `units` units into use as a segment of `kind`.
    pub(super) fn open_segment(
        &self,
        units: u32,
        kind: SegmentKind,
        claim: Claim,
    ) -> std::result::Result<u32, NoSpace> {
        let mut pool = self.pool.lock();
        self.look_at_disk(&mut pool);
        let unit = loop {
            match pool.take(units, claim, self.now()) {
                Ok(unit) => break unit,
                Err(NoUnit::Grow(more)) => self.grow(&mut pool, more).map_err(NoSpace::Failed)?,
                Err(NoUnit::Full) => return Err(NoSpace::Full(claim)),
            }
        };
        let incarnation = self.next_incarnation.fetch_add(1, Ordering::Relaxed);
        for u in unit..unit + units {
            let unit = self.units.at(u);
            unit.incarnation.store(incarnation, Ordering::Relaxed);
            unit.dead_bytes.store(0, Ordering::Relaxed);
            unit.chains.store(0, Ordering::Relaxed);
            unit.expiry.reset();
        }
        let header = SegmentHeader {
            state: SegmentState::Open,
            kind,
            units,
            incarnation,
            durable_end: SEGMENT_HEADER_BYTES,
            max_sequence: 0,
        };
        let segment = Segment { next_copy: 1, ..Segment::of(&header) };
        // Whoever is killed before the first record leaves an end mark there.
        self.write_end(unit);
        // PERSIST: the first copy alone. If a power cut loses it, the second still says "free", and nothing in the
        // segment was durable, for the sync that makes a record durable makes this durable too. But where a record will
        // cover the headers of further units, it must not be there without this.
        // Through the mapping: what lies beside it is about to be written anyway, and a system call would wait for one that allocates.
        let bytes = header.encode(self.unit_offset(unit));
        self.tier.write(self.unit_offset(unit), bytes.len(), |out| out.copy_from_slice(&bytes));
        if self.tier.flush_is_cheap() || units > 1 {
            self.tier
                .persist(self.unit_offset(unit), SEGMENT_HEADER_BYTES)
                .map_err(|error| NoSpace::Failed(error.into()))?;
        }
        pool.used.insert(unit, segment);
        if kind != SegmentKind::Relocated {
            self.use_appenders_for(pool.segment_units());
        }
        Ok(unit)
    }

    /// Lets writers have an appender each once `units` units of segments are worth it: each appender keeps room that nobody else can use.
    pub(super) fn use_appenders_for(&self, units: u32) {
        let few = self.appenders_in_use.load(Ordering::Relaxed) < self.appenders.len();
        if few && units as usize >= self.appenders.len() * UNITS_OF_AN_APPENDER {
            // Who wrote alone goes on where it is: what is open in an appender that nobody comes back to stays open.
            self.first_writer.store(thread_number(), Ordering::Relaxed);
            self.appenders_in_use.store(self.appenders.len(), Ordering::Relaxed);
        }
    }

    /// Grows the tier by `units`, by more while it is large, or by fewer where there is no room for so many. A disk that is
    /// full is noted in the pool, and no error.
    fn grow(&self, pool: &mut Pool, units: u32) -> Result<()> {
        // A little at a time while the store is small, 64 MiB at a time later.
        if let Some(unit) = pool.first_bare() {
            let outcome = self.tier.allocate(self.unit_offset(unit), self.unit_bytes());
            return self.note_growth(pool, outcome, |pool| pool.has_allocated(unit));
        }
        let step = units.max((pool.segment_units() / 2).min((64 << 20 >> self.unit_shift) as u32));
        let room = pool.units_max.saturating_sub(pool.grown);
        let (mut outcome, mut wanted) = (Ok(()), 0);
        for units in [step, units, 1].map(|units| units.min(room)) {
            wanted = units;
            outcome = self.tier.grow(u64::from(pool.grown + wanted) << self.unit_shift);
            if !matches!(outcome, Err(DeviceError::Full { .. })) {
                break;
            }
        }
        self.note_growth(pool, outcome, |pool| pool.has_grown(wanted))
    }

    /// What the medium answered to a growth goes into the pool's books, and is an error unless the disk is full.
    fn note_growth(
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

    /// Gives free units that nobody wants back to the disk, all but the page of their header. Called by the housekeeper; its
    /// calls must not meet. Returns how many.
    pub(crate) fn give_back(&self) -> u32 {
        let surplus = self.pool.lock().surplus(self.now());
        (0..surplus).map_while(|_| self.give_back_one().then_some(())).count() as u32
    }

    fn give_back_one(&self) -> bool {
        if self.check_open().is_err() {
            return false;
        }
        let Some(unit) = self.pool.lock().next_to_release() else { return false };
        let released = self.release_free(unit);
        self.pool.lock().has_released(unit, released);
        released
    }

    /// Gives back a free unit that nobody can take meanwhile.
    pub(super) fn release_free(&self, unit: u32) -> bool {
        // PERSIST: the header says durably that the unit is free, or there never was one, and it stays: whatever a crash
        // leaves of the rest, old bytes or zeros, nobody looks at it.
        let (offset, bytes) = (self.unit_offset(unit) + KEPT_BYTES, self.unit_bytes() - KEPT_BYTES);
        self.units.at(unit).small_pages.store(0, Ordering::Relaxed);
        self.tier.release(offset, bytes)
    }

    /// Finds, of the free units, enough that have blocks or are given some: what was held back when the store was closed, or
    /// its process killed, is held back again. Called when the store is opened.
    pub(super) fn hold_back(&self, pool: &mut Pool) -> Result<()> {
        // The low ones stayed when units were given back.
        const TRIES_MAX: usize = 64;
        for unit in pool.all_bare().into_iter().take(TRIES_MAX) {
            if pool.is_held_back() {
                return Ok(());
            }
            match self.tier.allocate(self.unit_offset(unit), self.unit_bytes()) {
                Ok(()) => pool.has_allocated(unit),
                // The disk is full: but the next one may have its blocks still.
                Err(DeviceError::Full { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Asks the disk how much room it has.
    pub(super) fn look_at_disk(&self, pool: &mut Pool) {
        let units = |bytes: u64| u32::try_from(bytes >> self.unit_shift).unwrap_or(u32::MAX);
        pool.set_disk_units(self.tier.free_bytes().map(units));
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

    /// Whether there is no room for a segment of `units` now, growth included.
    pub(crate) fn lacks(&self, units: u32, claim: Claim) -> bool {
        self.pool.lock().lacks(units, claim)
    }

    /// Touches free units ahead of the appenders, so that writing them faults no page. Called by the housekeeper. False if there
    /// was none to touch.
    pub(crate) fn prepare_units(&self) -> bool {
        let mut prepared = false;
        self.look_at_disk(&mut self.pool.lock());
        while self.check_open().is_ok() {
            let mut pool = self.pool.lock();
            let unit = match pool.next_to_prepare(self.now()) {
                None | Some(Err(NoUnit::Full)) => return prepared,
                Some(Ok(unit)) => unit,
                Some(Err(NoUnit::Grow(units))) => {
                    if self.grow(&mut pool, units).is_err() {
                        return prepared;
                    }
                    continue;
                }
            };
            drop(pool);
            prepared = true;
            let small = self.units.at(unit).small_pages;
            let anew = self.syncs_each_write && small.swap(1, Ordering::Relaxed) == 0;
            // In steps, so that the pages of an appender's own segment are not kept waiting for the mapping's lock.
            const STEP: u64 = 512 << 10;
            for step in 0..self.unit_bytes().div_ceil(STEP) {
                let offset = self.unit_offset(unit) + step * STEP;
                let bytes = STEP.min(self.unit_bytes() - step * STEP);
                match self.syncs_each_write {
                    true => self.tier.populate_for_small_syncs(offset, bytes, anew),
                    false => self.tier.populate(offset, bytes),
                }
            }
            self.pool.lock().add_ready(unit);
        }
        prepared
    }

    /// Maps the segments that were sealed anew ([`FastTier::remap`]). Called by the housekeeper. False if there were none.
    pub(crate) fn remap_sealed(&self) -> bool {
        let mut remapped = false;
        loop {
            let next = self.pool.lock().next_to_remap();
            let Some((unit, units)) = next else { return remapped };
            self.tier.remap(self.unit_offset(unit), u64::from(units) << self.unit_shift);
            remapped = true;
        }
    }

    /// Units that can still be taken, now or in a moment, growth that the disk has room for included, and all there may be.
    pub(crate) fn space(&self) -> (u32, u32) {
        self.pool.lock().space()
    }

    /// Waits until a segment is freed, at most `timeout`; false if none was.
    pub(crate) fn wait_for_space(&self, timeout: Duration) -> bool {
        let mut pool = self.pool.lock();
        !self.space_freed.wait_for(&mut pool, timeout).timed_out()
    }

    /// Sealed segments that can be collected and are not being: first unit, segment, dead bytes.
    pub(crate) fn candidates(&self) -> Vec<(u32, Segment, u64)> {
        let pool = self.pool.lock();
        let sealed = pool.used.iter().filter(|(_, s)| s.sealed && !s.in_collection && !s.unreadable);
        sealed.map(|(&unit, s)| (unit, s.clone(), self.dead_bytes(unit, s))).collect()
    }

    /// Those of them with nothing live in them, and all their bytes together.
    pub(crate) fn empty_segments(&self) -> (Vec<u32>, u64) {
        let pool = self.pool.lock();
        let sealed = pool.used.iter().filter(|(_, s)| s.sealed && !s.in_collection && !s.unreadable);
        let empty = sealed.filter(|&(&unit, s)| self.dead_bytes(unit, s) == s.end - SEGMENT_HEADER_BYTES);
        empty.fold((Vec::new(), 0), |(mut empty, bytes), (&unit, s)| {
            empty.push(unit);
            (empty, bytes + (u64::from(s.units) << self.unit_shift))
        })
    }

    pub(super) fn dead_bytes(&self, unit: u32, segment: &Segment) -> u64 {
        self.counted_dead(unit, segment).min(segment.end - SEGMENT_HEADER_BYTES)
    }

    fn counted_dead(&self, unit: u32, segment: &Segment) -> u64 {
        let dead_in = |u| self.units.at(u).dead_bytes.load(Ordering::Relaxed);
        (unit..unit + segment.units).map(dead_in).sum()
    }

    /// Bytes of records that are needed, of those that are not, and of segments where there is no record: the rest of open
    /// ones, and what was left over when they were sealed.
    pub(crate) fn record_bytes(&self) -> (u64, u64, u64) {
        let mut ends = HashMap::new();
        for appender in self.appenders.iter().map(|appender| &appender.0).chain([&self.gc_appender]) {
            ends.extend(appender.lock().ends().map(|(unit, _, end, _)| (unit, end)));
        }
        let pool = self.pool.lock();
        pool.used.iter().fold((0, 0, 0), |(live, dead, unused), (&unit, s)| {
            let open_end = ends.get(&unit).copied().unwrap_or(s.end);
            let end = if s.sealed { s.end } else { open_end };
            let filled = end - SEGMENT_HEADER_BYTES;
            let dead_here = self.counted_dead(unit, s).min(filled);
            let rest = (u64::from(s.units) << self.unit_shift) - end;
            (live + filled - dead_here, dead + dead_here, unused + rest)
        })
    }

    /// What fills the segments.
    pub(crate) fn filling(&self) -> Filling {
        let pool = self.pool.lock();
        pool.used.iter().fold(Filling::default(), |sum, (&unit, s)| {
            let bytes = (u64::from(s.units) << self.unit_shift) - SEGMENT_HEADER_BYTES;
            let filled = if s.sealed { s.end - SEGMENT_HEADER_BYTES } else { bytes };
            let obsolete = self.dead_bytes(unit, s);
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
        (u64::from(pool.grown) << self.unit_shift, u64::from(pool.units_max) << self.unit_shift)
    }

    /// Bytes of the segments in use and the root, and how many there may be.
    pub(crate) fn bytes_used(&self) -> (u64, u64) {
        let pool = self.pool.lock();
        (u64::from(pool.units_used()) << self.unit_shift, u64::from(pool.units_max) << self.unit_shift)
    }

    /// A table is gone: there may be rows of it in any segment of today. Call with every appender locked.
    pub(crate) fn rows_vanished(&self) {
        self.pool.lock().used.values_mut().for_each(|segment| segment.miscounted = true);
    }

    /// Sealed segments that may hold rows of tables that are gone, not counted as dead.
    pub(crate) fn miscounted(&self) -> Vec<u32> {
        let pool = self.pool.lock();
        pool.used.iter().filter(|(_, s)| s.is_miscounted()).map(|(&unit, _)| unit).collect()
    }

    /// Takes a miscounted segment to count it anew, as [`Log::begin_collection`] takes a victim: the bytes of its records,
    /// those of them that are dead, and those that were counted so because their table was gone.
    pub(crate) fn begin_recount(&self, unit: u32) -> Option<(u64, u64, u64)> {
        let mut pool = self.pool.lock();
        let segment = pool.used.get_mut(&unit).filter(|s| s.is_miscounted())?;
        (segment.miscounted, segment.in_collection) = (false, true);
        Some((segment.end - SEGMENT_HEADER_BYTES, self.dead_bytes(unit, segment), segment.vanished))
    }

    /// Notes that `bytes` in the segment which the unit is part of were counted as dead because their table was gone.
    pub(crate) fn note_vanished(&self, unit: u32, bytes: u64) {
        if let Some((_, segment)) = self.pool.lock().used.range_mut(..=unit).next_back() {
            segment.vanished += bytes;
        }
    }

    /// Marks a segment as being collected; false if it is gone or not sealed.
    pub(crate) fn begin_collection(&self, unit: u32) -> bool {
        let mut pool = self.pool.lock();
        match pool.used.get_mut(&unit) {
            Some(segment) if segment.sealed && !segment.in_collection => {
                segment.in_collection = true;
                true
            }
            _ => false,
        }
    }

    /// Lets go of a segment that was taken for collection, or to be counted anew.
    pub(crate) fn abandon_collection(&self, unit: u32) {
        if let Some(segment) = self.pool.lock().used.get_mut(&unit) {
            segment.in_collection = false;
        }
    }

    /// Leaves a segment with corruption in it out of [`Log::candidates`] from now on, for as long as the store is open.
    pub(crate) fn leave_out(&self, unit: u32) {
        if let Some(segment) = self.pool.lock().used.get_mut(&unit) {
            segment.unreadable = true;
        }
    }

    /// Leaves a segment alone up to the collector's round `until`.
    pub(crate) fn put_aside(&self, unit: u32, until: u64) {
        if let Some(segment) = self.pool.lock().used.get_mut(&unit) {
            segment.aside_until = until;
        }
    }

    /// Rows with deltas over them in a segment.
    pub(crate) fn chains(&self, unit: u32, segment: &Segment) -> u64 {
        let chains_in = |u| self.units.at(u).chains.load(Ordering::Relaxed) as i64;
        let chains: i64 = (unit..unit + segment.units).map(chains_in).sum();
        u64::try_from(chains).unwrap_or(0)
    }

    /// Segments that are left out.
    pub(crate) fn segments_unreadable(&self) -> u64 {
        self.pool.lock().used.values().filter(|segment| segment.unreadable).count() as u64
    }

    /// Marks a collected segment free, durably. Its units are not reused before [`Log::reuse`].
    ///
    /// Everything that replaces what it held must be durable, and the root's watermark above its sequences.
    pub(crate) fn free_segment(&self, unit: u32) -> Result<()> {
        self.check_writable()?;
        let (first, header) = {
            let pool = self.pool.lock();
            let Some(segment) = pool.used.get(&unit) else { return Ok(()) };
            (segment.next_copy, header_of(segment, SegmentState::Free))
        };
        if header.durable_end == SEGMENT_HEADER_BYTES {
            // For `holds_nothing_since`: what a crash left there is no record of this segment.
            self.write_end(unit);
        }
        self.write_header(unit, first, &header)
    }

    /// Puts a freed segment's units back into the pool. No reader may hold a reference into it any more.
    pub(crate) fn reuse(&self, unit: u32) -> Result<()> {
        let Some(segment) = self.pool.lock().used.get(&unit).cloned() else { return Ok(()) };
        if segment.units > 1 {
            let freed = header_of(&segment, SegmentState::Free);
            self.part(unit, segment.units, segment.next_copy, freed)?;
        }
        let mut pool = self.pool.lock();
        pool.used.remove(&unit);
        (unit..unit + segment.units).for_each(|u| pool.add_free(u));
        self.space_freed.notify_all();
        Ok(())
    }

    /// For whoever will walk the records of a segment soon.
    pub(crate) fn will_walk(&self, unit: u32) {
        if let Some(segment) = self.pool.lock().used.get(&unit) {
            self.tier.will_need(self.unit_offset(unit), u64::from(segment.units) << self.unit_shift);
        }
    }

    /// Walks the records of a segment. `Found::power_cut` says how to read an end that does not parse.
    pub(crate) fn walk(&self, unit: u32) -> Option<Walk<'_>> {
        let segment = self.pool.lock().used.get(&unit)?.clone();
        let start = self.unit_offset(unit);
        let limit = if segment.sealed { segment.end } else { u64::from(segment.units) << self.unit_shift };
        self.tier.will_need(start, limit);
        let bytes = self.tier.try_view(start, limit as usize)?;
        // Whoever sealed it knows where its records end, whether or not its header does.
        let whole_end = if segment.sealed { segment.end } else { segment.durable_end };
        let torn_through = self.torn_through.load(Ordering::Relaxed);
        Some(Walk::new(bytes, start, segment.incarnation, whole_end, segment.sealed, torn_through))
    }
}
