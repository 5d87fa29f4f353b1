//! Which segments gc empties next.
//!
//! Owns the price of emptying a segment, what is gained by it, and the order that follows. Promises that what is chosen
//! fits into the room there is, and that a store whose rows are under deltas always has something worth emptying. Must not
//! know how a segment is emptied.
//!
//! **Cost** is what emptying writes. A live row is copied, or merged with its deltas: about its own length either way. A
//! live delta makes its whole row be written, so it costs a mean row.
//!
//! **Gain** is what becomes free: the segment, less what is copied out of it, and the deltas elsewhere that merging its
//! rows makes obsolete. The latter is why a bounded store does not wedge. When updates have filled all room with live
//! deltas, no segment holds anything obsolete, and merging the rows under one segment of deltas may take several segments
//! of room. But emptying a segment of *rows* takes one, gives that one back at once, and frees the deltas over them on top.
//! The arithmetic is in `docs/decisions/0018-tight-stores.md`.
//!
//! Segments are taken in the order of gain over cost.

use std::cmp::Reverse;

use crate::db::engine::Engine;
use crate::log::segment::{SEGMENT_HEADER_BYTES, Segment, SegmentKind};
use crate::scheduler::throttle::SpaceLeft;
use crate::space::Claim;
use crate::sync::atomic::Ordering;

/// Victims of one cycle, at most.
const VICTIMS_MAX: usize = 8;
/// Without need of space, a segment is worth collecting from this share of obsolete bytes on, in percent.
const IDLE_OBSOLETE_PERCENT: u64 = 50;
/// Obsolete bytes that are tolerated before the idle rule applies.
const IDLE_OBSOLETE_BYTES: u64 = 64 << 20;
/// Segments with nothing live in them are given back without need when they come to this share of what is used, in percent:
/// there is nothing to copy, but the checkpoint before it is a sync, and after a sync each page written to faults again.
const IDLE_EMPTY_PERCENT: u64 = 10;
/// They go many at a time, so that a sync is seldom.
const IDLE_EMPTY_MAX: usize = 256;
/// And no more often than that.
const IDLE_COOLDOWN_NS: u64 = 1_000_000_000;
/// For range reordering, from this share on: the originals lie all over the log, and a store of 1.5 times its rows has no more
/// room than for a quarter of them at once.
const REORDERING_OBSOLETE_PERCENT: u64 = 15;
/// When a writer waits for space, a segment is emptied for a gain of this share of its cost on, in percent. Below it the
/// store counts as full.
const NEED_GAIN_PERCENT: u64 = 3;
/// A segment with no more live bytes than this is collected rather than emptied by moving rows: what it gains for a byte that is copied is as much as a third of what a byte
/// costs that goes to the capacity tier, and is merged there later.
const COLLECTED_LIVE_PERCENT: u64 = 60;
/// While space has only begun to be low, for this share: what is left alone gains more by itself.
const LOW_GAIN_PERCENT: u64 = 30;
/// With live deltas at this share of what can be kept up with, in percent, it is time for the rows under them.
const EARLY_PERCENT: u64 = 60;
/// No record is smaller.
const RECORD_BYTES_MIN: u64 = 40;

/// With fewer extents to be had than this, space is low.
pub(super) fn low_extents(all: u32) -> u32 {
    (all / 8).clamp(8, 64)
}

/// What a cycle is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nobody is short of space.
    Idle,
    /// Nobody but range reordering.
    Reordering,
    /// Somebody will be.
    Low(SpaceLeft),
    /// Somebody waits for space, or asked for a cycle.
    Now,
}

/// The victims of a cycle.
pub(crate) struct Chosen {
    pub(crate) victims: Vec<u32>,
    /// For the space that their copies take.
    pub(crate) claim: Claim,
}

/// What prices are made of.
#[derive(Debug, Clone, Copy)]
struct Means {
    /// Bytes of a row's record.
    row: u64,
    /// Bytes of all deltas over a row that has any.
    chain: u64,
}

/// A sealed segment, in bytes of records.
#[derive(Debug, Clone, Copy)]
struct Facts {
    kind: SegmentKind,
    /// What it could hold, holds, and holds of obsolete records.
    bytes: u64,
    filled: u64,
    obsolete: u64,
    /// Live deltas in it and their bytes, and rows in it that have deltas over them.
    deltas: u64,
    delta_bytes: u64,
    chains: u64,
}

/// A segment worth collecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate {
    extent: u32,
    /// Bytes that become free in the end.
    gain: u64,
    /// Bytes that emptying writes, about.
    cost: u64,
    /// Each record in it costs about its own length: there are no deltas.
    certain: bool,
}

/// Bytes of all deltas over a row that has any. A chain has so many deltas at most, and that bounds the mean: how many bytes of deltas are
/// live is taken from what of a segment is, and where all chains have been merged, or lie over rows of open segments, that is rows alone.
/// Over next to no chain those bytes made each look too long to be merged, and nothing was worth emptying.
fn mean_chain(live_deltas: u64, chains: u64, segments: &[(u32, Segment, u64)], depth_max: u64) -> u64 {
    let (count, bytes) = segments.iter().fold((0, 0), |(count, bytes), (_, segment, _)| {
        (count + u64::from(segment.deltas.count), bytes + segment.deltas.bytes)
    });
    let longest = (bytes * depth_max.max(1)).div_ceil(count.max(1));
    (live_deltas / chains.max(1)).min(longest)
}

impl Facts {
    fn live(&self) -> u64 {
        self.filled - self.obsolete
    }

    /// What is free once the live records are elsewhere. A tail that was never written is as good as obsolete. But not the
    /// gc's own, unless it was cut short by a closing: the next record of its kind did not fit, and would not the
    /// next time either.
    fn free(&self) -> u64 {
        let packed = self.kind == SegmentKind::Relocated && self.filled * 2 >= self.bytes;
        if packed { self.obsolete } else { self.bytes - self.live() }
    }

    /// Gain and cost of emptying it.
    fn price(&self, means: Means) -> (u64, u64) {
        let live = self.live();
        if live == 0 {
            return (self.bytes, 0);
        }
        let rows = live - self.delta_bytes;
        let chains = self.chains.min(rows / RECORD_BYTES_MIN);
        let over_its_deltas_rows = (self.deltas * means.chain).saturating_sub(self.delta_bytes);
        let gain = self.free() + self.delta_bytes + over_its_deltas_rows + chains * means.chain;
        (gain, rows + self.deltas * means.row.max(means.chain))
    }
}

/// Those of `candidates` whose copies fit into `room` bytes together, from the first on. What is not certain must leave
/// room for a segment of rows, whatever it comes to.
fn fitting(candidates: &[Candidate], mut room: u64, extent_bytes: u64) -> Vec<u32> {
    let fits = |candidate: &&Candidate| {
        let spared = if candidate.certain { 0 } else { extent_bytes };
        let fits = candidate.cost == 0 || candidate.cost + spared <= room;
        room -= if fits { candidate.cost } else { 0 };
        fits
    };
    candidates.iter().filter(fits).take(VICTIMS_MAX).map(|candidate| candidate.extent).collect()
}

/// The best first: the most gained for a byte written.
fn by_benefit(candidate: &Candidate) -> Reverse<u64> {
    const SCALE: u64 = 1 << 16;
    Reverse((candidate.gain * SCALE) / (candidate.cost + 1))
}

impl Need {
    /// The least gain for a segment to be worth its cost, in percent.
    fn gain_percent(self) -> u64 {
        match self {
            Need::Idle | Need::Reordering => 0,
            Need::Now => NEED_GAIN_PERCENT,
            Need::Low(room) => {
                let more = (LOW_GAIN_PERCENT - NEED_GAIN_PERCENT) as f64;
                let percent = NEED_GAIN_PERCENT + (more * room.left()) as u64;
                // A pass over all rows must begin while there is room to write until it ends, though each gains little.
                let of_a_pass = room.deltas_even * EARLY_PERCENT / room.live.max(1);
                percent.min(of_a_pass.max(NEED_GAIN_PERCENT))
            }
        }
    }
}

impl Engine {
    /// The room there is.
    pub(crate) fn room(&self) -> SpaceLeft {
        let (available, all) = self.log.space().room();
        let low = low_extents(all);
        let filling = self.log.filling();
        let kept = u64::from(Claim::Write.reserve() + low / 4) * self.log.extent_bytes();
        let rows = filling.live() - filling.live_deltas;
        let leaves = u64::from(self.log.leaf_extents()) * self.log.extent_bytes();
        let for_deltas = (u64::from(all) * self.log.extent_bytes()).saturating_sub(rows + leaves + kept);
        // What writers may not have is not there for them.
        let available = available.saturating_sub(Claim::Write.reserve());
        // Where some rows change far more often than others, the more of it is obsolete.
        let deltas = filling.live_deltas.max(filling.deltas / 2);
        SpaceLeft { available, low, deltas, deltas_even: for_deltas / 2, live: filling.live() }
    }

    /// The room, as far as gc is to make it. Where rows move, deltas leave the log with them or as they are: however many there are, merging them is not what makes room.
    pub(crate) fn room_for_gc(&self) -> SpaceLeft {
        let room = self.room();
        if self.moves_help() { SpaceLeft { deltas: 0, ..room } } else { room }
    }

    /// What the present space asks of a cycle.
    pub(crate) fn need(&self) -> Need {
        let room = self.room_for_gc();
        match room.is_low() {
            true => Need::Low(room),
            // While a snapshot, a backup or a reader pins what was emptied, emptying more only takes room from writers.
            false if self.reorder_queue.take_lack_of_room() && self.gc.waiting_to_free().is_empty() => {
                Need::Reordering
            }
            false => Need::Idle,
        }
    }

    /// Whether collecting makes the room that is missing, at a lower price than moving rows does: of what is emptied much is obsolete.
    pub(super) fn is_better_collected(&self) -> bool {
        let wanted = self.missing_landing().min(self.bytes_to_move(self.runs.room_to_move()));
        let (cycle, oldest) = (self.gc.cycles(), self.snapshots.oldest());
        let is_left_alone = |segment: &Segment| {
            segment.skip.is_skipped(cycle) || oldest.is_some_and(|oldest| oldest < segment.kept_before)
        };
        let gain = |(extent, segment, obsolete): (u32, Segment, u64)| {
            let facts = self.facts(extent, &segment, obsolete);
            let is_worth_it = facts.live() * 100 <= facts.bytes * COLLECTED_LIVE_PERCENT;
            if is_worth_it && !is_left_alone(&segment) { facts.free() } else { 0 }
        };
        let gained: u64 = self.log.candidates().into_iter().map(gain).sum();
        gained >= wanted.max(1) && !self.gc.made_no_progress()
    }

    /// The segments most worth collecting.
    pub(crate) fn choose(&self, need: Need) -> Chosen {
        let filling = self.log.filling();
        let (used, obsolete_in_all) = (filling.used, filling.obsolete);
        // Where next to nothing would have to be copied, as after a table was cleared, the space goes back at once.
        let is_mostly_obsolete = obsolete_in_all / 3 > used - obsolete_in_all;
        let is_tolerable = obsolete_in_all < IDLE_OBSOLETE_BYTES || obsolete_in_all * 2 < used;
        if need == Need::Idle && is_tolerable && !is_mostly_obsolete {
            let victims = self.wholly_obsolete(used, obsolete_in_all);
            return Chosen { victims, claim: Claim::Gc };
        }
        let mut candidates = self.worth_collecting(need, filling.live());
        candidates.sort_by_key(by_benefit);
        // What is copied must fit where gc may write, with a segment to spare. Odd lengths may need more: then
        // the last victims are given up.
        let (available, _) = self.log.space().room();
        let begun = self.log.gc_appender().room(SegmentKind::Relocated);
        let extent_bytes = self.log.extent_bytes();
        let room = u64::from(available.saturating_sub(Claim::Gc.reserve())) * extent_bytes + begun;
        let victims = fitting(&candidates, room, extent_bytes);
        let enough = !victims.is_empty() && !self.gc.made_no_progress();
        if enough || available != 1 || self.snapshots.oldest().is_some() || self.backups.is_active() {
            return Chosen { victims, claim: Claim::Gc };
        }
        // What was spared is for victims that are freed at once and whose rows fit it, those with deltas included.
        candidates.retain(|candidate| candidate.certain);
        Chosen { victims: fitting(&candidates, extent_bytes / 4 * 3, 0), claim: Claim::LastExtent }
    }

    /// Segments that cost nothing to empty, if they come to enough of the bytes `used`: rows that expire leave them behind in
    /// the order in which they were written.
    fn wholly_obsolete(&self, used: u64, obsolete: u64) -> Vec<u32> {
        let is_enough = |bytes: u64| bytes * 100 >= used * IDLE_EMPTY_PERCENT;
        let idle_for = self.clock.monotonic_ns().abs_diff(self.gc.gave_back_ns.load(Ordering::Relaxed));
        if !is_enough(obsolete) || idle_for < IDLE_COOLDOWN_NS {
            return Vec::new();
        }
        let (mut empty, bytes) = self.log.empty_segments();
        empty.truncate(if is_enough(bytes) { IDLE_EMPTY_MAX } else { 0 });
        empty
    }

    fn worth_collecting(&self, need: Need, live_in_all: u64) -> Vec<Candidate> {
        let segments = self.log.candidates();
        let live_deltas: u64 = segments
            .iter()
            .map(|(_, segment, obsolete)| segment.of_live(segment.deltas.bytes, *obsolete))
            .sum();
        let chains: u64 = segments.iter().map(|(extent, segment, _)| self.log.chains(*extent, segment)).sum();
        let rows: u64 = self.catalog.all().iter().map(|table| table.rows()).sum();
        let means = Means {
            row: live_in_all.saturating_sub(live_deltas) / rows.max(1),
            chain: mean_chain(live_deltas, chains, &segments, self.options.delta_chain_max.into()),
        };
        let cycle = self.gc.cycles();
        let oldest = self.snapshots.oldest().filter(|oldest| self.has_spent_enough_for(*oldest, &[]));
        let is_kept = |segment: &Segment| oldest.is_some_and(|oldest| oldest < segment.kept_before);
        let mut candidates = Vec::new();
        for (extent, segment, obsolete) in segments {
            let facts = self.facts(extent, &segment, obsolete);
            let (gain, cost) = facts.price(means);
            let worth_it = match need {
                Need::Idle => facts.free() * 100 >= facts.bytes * IDLE_OBSOLETE_PERCENT,
                Need::Reordering => facts.free() * 100 >= facts.bytes * REORDERING_OBSOLETE_PERCENT,
                _ => gain > 0 && gain * 100 >= cost * need.gain_percent(),
            };
            if worth_it && !segment.skip.is_skipped(cycle) && !is_kept(&segment) {
                candidates.push(Candidate { extent, gain, cost, certain: cost == 0 || facts.deltas == 0 });
            }
        }
        candidates
    }

    fn facts(&self, extent: u32, segment: &Segment, obsolete: u64) -> Facts {
        Facts {
            kind: segment.kind,
            bytes: u64::from(segment.extents) * self.log.extent_bytes() - SEGMENT_HEADER_BYTES,
            filled: segment.end - SEGMENT_HEADER_BYTES,
            obsolete,
            deltas: segment.of_live(segment.deltas.count.into(), obsolete),
            delta_bytes: segment.of_live(segment.deltas.bytes, obsolete),
            chains: self.log.chains(extent, segment),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MEANS: Means = Means { row: 1200, chain: 250 };

    fn facts(kind: SegmentKind, obsolete: u64) -> Facts {
        let delta_bytes = if kind == SegmentKind::Delta { MIB - obsolete } else { 0 };
        Facts {
            kind,
            bytes: MIB,
            filled: MIB,
            obsolete,
            deltas: 6000 * delta_bytes / MIB,
            delta_bytes,
            chains: 0,
        }
    }

    #[test]
    fn rows_under_deltas_are_worth_emptying_though_nothing_is_obsolete() {
        let bare = facts(SegmentKind::Row, 0);
        assert_eq!(bare.price(MEANS), (0, MIB));
        let covered = Facts { chains: 800, ..bare };
        assert_eq!(covered.price(MEANS), (800 * 250, MIB));
        // Tables that are gone leave counts behind: no more rows than fit.
        let left_behind = Facts { chains: 1 << 40, obsolete: MIB - 400, ..bare };
        assert_eq!(left_behind.price(MEANS), (MIB - 400 + 10 * 250, 400));
    }

    #[test]
    fn a_delta_costs_a_row() {
        assert_eq!(facts(SegmentKind::Delta, MIB).price(MEANS), (MIB, 0));
        assert_eq!(facts(SegmentKind::Delta, MIB / 2).price(MEANS).1, 3000 * 1200);
        let batch = Facts { deltas: 50, delta_bytes: 50 * 170, ..facts(SegmentKind::Row, MIB / 2) };
        assert_eq!(batch.price(MEANS), (MIB / 2 + 50 * 250, MIB / 2 - 50 * 170 + 50 * 1200));
    }

    #[test]
    fn what_fits_is_taken_in_the_order_of_benefit() {
        let all = [
            Candidate { extent: 1, gain: MIB / 5, cost: MIB, certain: true },
            Candidate { extent: 2, gain: 2 * MIB, cost: 7 * MIB, certain: false },
            Candidate { extent: 3, gain: MIB, cost: 0, certain: true },
            Candidate { extent: 4, gain: MIB, cost: MIB / 2, certain: false },
        ];
        let mut sorted = all;
        sorted.sort_by_key(by_benefit);
        assert_eq!(sorted.map(|candidate| candidate.extent), [3, 4, 2, 1]);
        assert_eq!(fitting(&sorted, 0, MIB), [3]);
        assert_eq!(fitting(&sorted, MIB, MIB), [3, 1]);
        assert_eq!(fitting(&sorted, 2 * MIB, MIB), [3, 4, 1]);
        assert_eq!(fitting(&sorted, 9 * MIB, MIB), [3, 4, 2, 1]);
    }

    #[test]
    fn the_lower_space_is_the_less_gain_will_do() {
        let low = |available, deltas| {
            Need::Low(SpaceLeft { available, low: 20, deltas, deltas_even: 100, live: 0 }).gain_percent()
        };
        assert_eq!([low(0, 0), low(10, 0), low(20, 0)], [3, 16, 30]);
        assert_eq!([low(20, 50), low(20, 75), low(20, 100), low(20, 300)], [30, 16, 3, 3]);
        assert_eq!(Need::Now.gain_percent(), 3);
    }
}
