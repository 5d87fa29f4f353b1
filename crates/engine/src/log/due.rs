//! Which segments hold what has expired: the log as its own timer.
//!
//! Rows lie in the log in the order in which they were written, and so nearly in that in which they expire. What a timer
//! would keep of every row, three words keep here of every extent: when the first thing in it expires that no sweep has come
//! to, up to when one has come to all, and when the next is worth its while. A sweep walks the segment and looks up the
//! keys of those records that have expired since the last.
//!
//! Owns: these words. Promises: a record that has the newest expiry of its row is found by a sweep of its segment
//! that begins at that time or later, wherever collection has moved it. Must not know: what becomes of what has expired.

use super::Log;
use super::replay::SegmentWalk;
use super::segment::Extent;
use crate::sync::CachePadded;
use crate::sync::atomic::Ordering::Relaxed;

/// A segment is looked at for the first time when its first row has expired for so long: the others have followed.
const FIRST_REST_MS: u64 = 50;
/// It is looked at again, for however few, when one has expired for so long.
const REST_MS: u64 = 500;
/// For one in so many of what is left it is looked at at once.
const WORTH_SHARE: usize = 8;

/// A segment in which something has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Due {
    /// Only a few are expected; comes after those where there are many.
    pub(crate) few: bool,
    /// When the first of them expired.
    pub(crate) since_ms: u64,
    /// An extent of the segment.
    pub(crate) extent: u32,
}

/// A segment being swept.
#[derive(Debug)]
pub(crate) struct Sweeping<'a> {
    pub(crate) extent: u32,
    extents: u32,
    /// What expired up to then was looked at by earlier sweeps.
    pub(crate) after_ms: u64,
    pub(crate) walk: SegmentWalk<'a>,
}

impl Log {
    /// Records that by the record at `offset` its row expires at `at_ms`. With the appender locked that it was written in, before
    /// that is let go of.
    #[inline]
    pub(crate) fn record_expiry(&self, offset: u64, at_ms: u64) {
        let expiry = self.extent_of(offset).expiry;
        let urgency = u64::MAX - at_ms;
        if expiry.urgency.load(Relaxed) < urgency {
            expiry.urgency.fetch_max(urgency, Relaxed);
        }
        // The clock went back, or a copy was made of what no sweep had come to.
        if expiry.swept_ms.load(Relaxed) >= at_ms {
            expiry.swept_ms.fetch_min(at_ms.saturating_sub(1), Relaxed);
        }
    }

    /// The segments to sweep at `now_ms`, the most worth it first.
    pub(crate) fn due(&self, now_ms: u64) -> Vec<Due> {
        let grown = self.space.grown();
        let mut due: Vec<Due> =
            (0..grown).filter_map(|extent| due_at(self.extents.at(extent), extent, now_ms)).collect();
        due.sort_unstable();
        due
    }

    /// Begins to sweep the segment that `extent` is part of: `None` if gc has it, or it is gone. The caller has
    /// pinned the epoch, and keeps out who changes records in place.
    pub(crate) fn begin_sweep(&self, extent: u32, now_ms: u64) -> Option<Sweeping<'_>> {
        let offset = self.extent_offset(extent);
        for appender in self.appenders.iter().map(|CachePadded(appender)| appender).chain([&self.gc_appender])
        {
            let appender = appender.lock();
            if let Some((first, segment_number, end)) = appender.written_at(offset) {
                let extents = self.segments.lock().used.get(&first)?.extents;
                // Under the appender's lock: what is behind `end` will be recorded after this.
                return self.sweeping((first, extents), segment_number, end, now_ms);
            }
        }
        let segments = self.segments.lock();
        let (&first, segment) = segments.used.range(..=extent).next_back()?;
        if !segment.sealed || segment.in_gc || extent >= first + segment.extents {
            return None;
        }
        self.sweeping((first, segment.extents), segment.segment_number, segment.end, now_ms)
    }

    /// Resets what was recorded of what will have been looked at.
    fn sweeping(
        &self,
        (extent, extents): (u32, u32),
        segment_number: u64,
        end: u64,
        now_ms: u64,
    ) -> Option<Sweeping<'_>> {
        let start = self.extent_offset(extent);
        self.tier.will_need(start, end);
        let bytes = self.tier.try_view(start, end as usize)?;
        let mut after_ms = u64::MAX;
        for expiry in (extent..extent + extents).map(|u| self.extents.at(u).expiry) {
            expiry.urgency.store(0, Relaxed);
            after_ms = after_ms.min(expiry.swept_ms.fetch_max(now_ms, Relaxed));
        }
        let walk = SegmentWalk::new(bytes, start, segment_number, end, true, self.torn_through.load(Relaxed));
        Some(Sweeping { extent, extents, after_ms, walk })
    }

    /// Ends a sweep that left what expires at the times in `left`. Under the guard it was begun under.
    pub(crate) fn end_sweep(&self, sweeping: &Sweeping<'_>, left: &mut [u64]) {
        let first = self.extents.at(sweeping.extent).expiry;
        let worth_at = left.len() / WORTH_SHARE;
        let worth_ms = if left.is_empty() { 0 } else { *left.select_nth_unstable(worth_at).1 };
        for expiry in (sweeping.extent..sweeping.extent + sweeping.extents).map(|u| self.extents.at(u).expiry)
        {
            expiry.worth_ms.store(worth_ms, Relaxed);
        }
        if let Some(earliest) = left.iter().min() {
            first.urgency.fetch_max(u64::MAX - earliest, Relaxed);
        }
    }

    /// Ends a sweep that could not do all it had to: the next one begins where this did, at `at_ms` or later.
    pub(crate) fn sweep_again(&self, sweeping: &Sweeping<'_>, at_ms: u64) {
        self.extents.at(sweeping.extent).expiry.urgency.fetch_max(u64::MAX - at_ms, Relaxed);
        for extent in sweeping.extent..sweeping.extent + sweeping.extents {
            self.extents.at(extent).expiry.swept_ms.fetch_min(sweeping.after_ms, Relaxed);
        }
    }

    /// The first extent of the segment that holds `offset`.
    pub(crate) fn segment_of(&self, offset: u64) -> Option<u32> {
        let extent = (offset >> self.space.extent_shift()) as u32;
        self.segments.lock().used.range(..=extent).next_back().map(|(&first, _)| first)
    }
}

fn due_at(of: Extent<'_>, extent: u32, now_ms: u64) -> Option<Due> {
    let urgency = of.expiry.urgency.load(Relaxed);
    let since_ms = u64::MAX - urgency;
    if urgency == 0 || since_ms > now_ms {
        return None;
    }
    let (worth_ms, rested_ms) = (of.expiry.worth_ms.load(Relaxed), now_ms - since_ms);
    let few = worth_ms > now_ms;
    let rest_ms = match worth_ms {
        0 => FIRST_REST_MS,
        _ if few => REST_MS,
        _ => 0,
    };
    (rested_ms >= rest_ms).then_some(Due { few, since_ms, extent })
}
