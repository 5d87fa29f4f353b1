//! The pool: which units of the fast tier are used and which are free.
//!
//! Owns the books of the fast tier's units and the rule how many are kept back from whom. Promises that what a claim may
//! not use is there for those that may. Must not know the medium: `log/space.rs` makes it grow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::segment::{Claim, Segment};

/// Which units are used and which are free.
#[derive(Debug)]
pub(crate) struct Pool {
    /// By first unit.
    pub(crate) used: BTreeMap<u32, Segment>,
    free: BTreeSet<u32>,
    /// Free, and touched already, so that writing them faults no page.
    ready: VecDeque<u32>,
    /// Units that are being touched: neither free nor ready, but soon to be had.
    preparing: u32,
    /// Units the tier has been grown to, unit 0 (the root) included.
    pub(crate) grown: u32,
    pub(crate) grown_max: u32,
    /// How many units to keep ready; rises when a lane finds none.
    ready_target: usize,
    /// First units of segments that were sealed and are mapped still as they were written.
    to_remap: VecDeque<u32>,
}

/// Segments that wait to be mapped anew; more are left as they are.
const TO_REMAP_MAX: usize = 256;

/// Units made ready ahead, at most: a sync that comes before they are used writes them for nothing.
const READY_MAX: usize = 2;

impl Pool {
    pub(crate) fn new(grown: u32, grown_max: u32) -> Pool {
        Pool {
            used: BTreeMap::new(),
            free: BTreeSet::new(),
            ready: VecDeque::new(),
            preparing: 0,
            grown,
            grown_max,
            ready_target: 1,
            to_remap: VecDeque::with_capacity(TO_REMAP_MAX),
        }
    }

    /// Closes a segment: it ends at `end` with the sequence `max_sequence`.
    pub(crate) fn seal(&mut self, unit: u32, end: u64, max_sequence: u64) {
        let Some(segment) = self.used.get_mut(&unit) else { return };
        (segment.end, segment.max_sequence, segment.sealed) = (end, max_sequence, true);
        if self.to_remap.len() < TO_REMAP_MAX {
            self.to_remap.push_back(unit);
        }
    }

    /// A sealed segment to be mapped anew: its first unit and how many it has.
    pub(crate) fn next_to_remap(&mut self) -> Option<(u32, u32)> {
        while let Some(unit) = self.to_remap.pop_front() {
            if let Some(segment) = self.used.get(&unit).filter(|segment| segment.sealed) {
                return Some((unit, segment.units));
            }
        }
        None
    }

    /// [`Pool::available`], and those that will be in a moment.
    pub(crate) fn available_soon(&self) -> u32 {
        self.available() + self.preparing
    }

    /// Units that can be had now, growth included.
    pub(crate) fn available(&self) -> u32 {
        (self.free.len() + self.ready.len()) as u32 + (self.grown_max - self.grown)
    }

    pub(crate) fn add_free(&mut self, unit: u32) {
        self.free.insert(unit);
    }

    /// Takes `units` adjoining free units, or says by how many units the tier must grow first.
    pub(crate) fn take(&mut self, units: u32, claim: Claim) -> Result<u32, NoUnit> {
        if self.available() < units + claim.reserve() {
            return Err(NoUnit::Full);
        }
        if units == 1 {
            if let Some(unit) = self.ready.pop_front() {
                return Ok(unit);
            }
            self.ready_target = (self.ready_target * 2).min(READY_MAX);
            return self.free.pop_first().ok_or(NoUnit::Grow(1));
        }
        self.free.extend(self.ready.drain(..));
        let mut run: Option<(u32, u32)> = None;
        for &unit in &self.free {
            run = match run {
                Some((first, count)) if first + count == unit => Some((first, count + 1)),
                _ => Some((unit, 1)),
            };
            if let Some((first, count)) = run
                && count == units
            {
                (first..first + units).for_each(|u| {
                    self.free.remove(&u);
                });
                return Ok(first);
            }
        }
        // The run at the end of the tier, if it is free, is a start for the new one.
        let tail = run.filter(|&(first, count)| first + count == self.grown).map_or(0, |(_, count)| count);
        let missing = units - tail;
        if missing > self.grown_max - self.grown { Err(NoUnit::Full) } else { Err(NoUnit::Grow(missing)) }
    }

    /// The tier has been grown by `units`.
    pub(crate) fn has_grown(&mut self, units: u32) {
        self.free.extend(self.grown..self.grown + units);
        self.grown += units;
    }

    /// A unit to make ready, if more are wanted: a free one, or `Grow`.
    pub(crate) fn next_to_prepare(&mut self) -> Option<Result<u32, NoUnit>> {
        if self.ready.len() >= self.ready_target {
            return None;
        }
        match self.free.pop_first() {
            Some(unit) => {
                self.preparing += 1;
                Some(Ok(unit))
            }
            None if self.grown < self.grown_max => Some(Err(NoUnit::Grow(1))),
            None => None,
        }
    }

    pub(crate) fn add_ready(&mut self, unit: u32) {
        self.preparing -= 1;
        self.ready.push_back(unit);
    }
}

/// Why there is no unit to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoUnit {
    /// The tier must grow by so many units.
    Grow(u32),
    /// There is no room, and growing is not allowed.
    Full,
}

#[cfg(test)]
mod tests {
    use super::super::segment::{SEGMENT_HEADER_BYTES, SegmentKind};
    use super::*;

    #[test]
    fn a_sealed_segment_is_mapped_anew_once_unless_it_was_freed() {
        let mut pool = Pool::new(8, 8);
        let open = Segment {
            units: 2,
            kind: SegmentKind::Row,
            incarnation: 1,
            end: SEGMENT_HEADER_BYTES,
            max_sequence: 0,
            sealed: false,
            noted: (0, false),
            next_copy: 0,
            in_collection: false,
            miscounted: false,
            vanished: 0,
            unreadable: false,
        };
        for unit in [1, 3, 5] {
            pool.used.insert(unit, open.clone());
        }
        pool.seal(1, 4096, 7);
        pool.seal(3, 4096, 9);
        pool.seal(7, 4096, 9);
        assert!(!pool.used[&5].sealed);
        assert_eq!((pool.used[&3].end, pool.used[&3].max_sequence), (4096, 9));
        pool.used.remove(&1);
        assert_eq!(pool.next_to_remap(), Some((3, 2)));
        assert_eq!(pool.next_to_remap(), None);
    }

    #[test]
    fn runs_are_found_and_the_reserve_is_kept() {
        let mut pool = Pool::new(1, 12);
        pool.has_grown(11);
        assert_eq!(pool.take(1, Claim::Write), Ok(1));
        assert_eq!(pool.take(3, Claim::Write), Ok(2));
        pool.add_free(3);
        assert_eq!(pool.take(2, Claim::Write), Ok(5));
        assert_eq!(pool.take(3, Claim::Write), Err(NoUnit::Full));
        assert_eq!(pool.take(2, Claim::Write), Ok(7));
        assert_eq!(pool.take(1, Claim::Write), Err(NoUnit::Full));
        assert_eq!(pool.take(1, Claim::Delete), Ok(3));
        assert_eq!(pool.take(3, Claim::Collector), Err(NoUnit::Full));
        assert_eq!(pool.take(2, Claim::Collector), Ok(9));
        assert_eq!(pool.take(1, Claim::Collector), Err(NoUnit::Full));
        assert_eq!(pool.take(1, Claim::LastUnit), Ok(11));
    }

    #[test]
    fn a_free_tail_shortens_the_growth() {
        let mut pool = Pool::new(1, 20);
        pool.has_grown(2);
        assert_eq!(pool.take(5, Claim::Write), Err(NoUnit::Grow(3)));
        pool.has_grown(3);
        assert_eq!(pool.take(5, Claim::Write), Ok(1));
    }
}
