//! The controller of what is done behind writers' backs: two queues, merges of the index (of the processors) and moves of rows (of the disk), and a knob for each (DecouKV, USENIX ATC 2025: IMTN and DFTS).
//!
//! Owns the knobs, and when they turn. Promises that one does so only after three looks in a row that all say the same, a tenth of a second apart: one hesitation of a disk changes
//! nothing. Must not know what is moved or merged, nor how room is counted.
//!
//! **How much a move takes out of the log** (DFTS). Larger runs are fewer. So while moves are what writers wait for, a move takes twice as much, and there may be twice as many runs before they are merged: the disk and the
//! processors are left to moves, and what was put off is done when there is time (DecouKV's elastic levels). The price is room: before a move begins, as much of the fast tier is
//! to be free as one takes out, and half of the least more.
//!
//! **How many groups of sealed keys wait for a merge** (IMTN). More of them are merged together, and the group below them is written less often; the price is that who looks for a key
//! may have more of them to look into. So while merges do not keep up more may wait, and fewer while moves alone do not: the processors have time then.
//!
//! With nothing to do either goes back. Groups turn no other knob than theirs: smaller moves would leave merges no more of the processors, and what keeps groups from being merged (no room, a
//! reader, a damaged leaf) is no reason to move otherwise.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use crate::{Error, Result};

/// Eighths of the fast tier that a move takes out: at rest, and at most.
const EIGHTHS: [u32; 2] = [1, 4];
/// So many runs there may be for each of these.
const RUNS_PER_EIGHTH: usize = 8;
/// Groups of a table that wait for a merge: at rest, at least and at most, and by how many that changes.
const GROUPS: u32 = 16;
const GROUPS_RANGE: [u32; 2] = [8, 32];
const GROUPS_STEP: u32 = 2;
/// No more may be asked for.
const GROUPS_FIXED_MAX: u32 = 64;
/// How far looks are apart, and how many in a row have to say the same.
const TICK_NS: u64 = 100_000_000;
const TICKS: u32 = 3;
/// From this share of missing room on moves do not keep up: writers are held to what these make.
const LAGS_FROM: f64 = 0.5;
/// And merges do not with so many times the groups that wait for one.
const GROUPS_LAG_FROM: f64 = 1.5;

/// What is set by whoever opens the store, for ablations, and not found at run time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FixedKnobs {
    pub(crate) eighths: Option<u32>,
    pub(crate) groups_max: Option<u32>,
}

/// The knobs.
#[derive(Debug)]
pub(crate) struct Controller {
    eighths: AtomicU32,
    groups_max: AtomicU32,
    /// As many runs as nobody is held for: as there may be, or may have been when they came.
    runs_let: AtomicUsize,
    fixed: FixedKnobs,
    /// How often one of them turned.
    turns: AtomicU32,
    /// The most extents that were free, up to as many as are wanted.
    reached: AtomicU32,
    watch: Mutex<Watch>,
}

/// What is seen at one look.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Look {
    /// Of the room that is to be there for writers so much is not, from 0 to 1.
    pub(crate) missing: f64,
    /// Rows move now.
    pub(crate) is_moving: bool,
    /// There is less room than what moves of the least size wait for.
    pub(crate) is_short: bool,
}

/// What was seen lately.
#[derive(Debug, Default)]
struct Watch {
    tick_ns: u64,
    /// In this tick: the most of the room that was missing while rows moved, and whether any moved, or were about to whatever a move takes.
    worst: f64,
    is_busy: bool,
    moves: TicksInARow,
    merges: TicksInARow,
}

impl FixedKnobs {
    /// Those of a store that is opened with these.
    ///
    /// # Errors
    /// `Invalid`: a value out of its range.
    pub(crate) fn new(eighths: Option<u32>, groups_max: Option<u32>) -> Result<FixedKnobs> {
        let check = |name: &str, value: Option<u32>, most: u32| match value {
            Some(value) if !(1..=most).contains(&value) => {
                Err(Error::invalid(format!("{name} is {value}; it must be 1 to {most}")))
            }
            value => Ok(value),
        };
        let eighths = check("run_eighths", eighths, EIGHTHS[1])?;
        Ok(FixedKnobs { eighths, groups_max: check("groups_max", groups_max, GROUPS_FIXED_MAX)? })
    }
}

impl Default for Controller {
    fn default() -> Controller {
        Controller::with(FixedKnobs::default())
    }
}

impl Controller {
    /// With the knobs as they are at rest, but for those that are fixed.
    pub(crate) fn with(fixed: FixedKnobs) -> Controller {
        Controller {
            eighths: AtomicU32::new(fixed.eighths.unwrap_or(EIGHTHS[0])),
            groups_max: AtomicU32::new(fixed.groups_max.unwrap_or(GROUPS)),
            runs_let: AtomicUsize::new(RUNS_PER_EIGHTH * EIGHTHS[1] as usize),
            fixed,
            turns: AtomicU32::new(0),
            reached: AtomicU32::new(0),
            watch: Mutex::default(),
        }
    }

    /// Eighths of the fast tier that a move takes out: 1, 2 or 4.
    pub(crate) fn eighths(&self) -> u32 {
        self.eighths.load(Ordering::Relaxed)
    }

    /// How many runs there may be before some are merged: 8, 16 or 32.
    pub(crate) fn runs_max(&self) -> usize {
        RUNS_PER_EIGHTH * self.eighths() as usize
    }

    /// For how many of the `runs` that there are nobody is held. The knob goes back within a second of rest; merging what was
    /// let pass takes minutes, and who writes meanwhile does not owe it. It goes down as runs are merged. Of a store that was just
    /// opened nobody knows how many there might be when they came: as many as ever may, and no more, or a store that is opened again
    /// and again would have runs without end.
    pub(crate) fn runs_let(&self, runs: usize) -> usize {
        let runs_let = self.runs_let.load(Ordering::Relaxed).min(runs).max(self.runs_max());
        self.runs_let.store(runs_let, Ordering::Relaxed);
        runs_let
    }

    /// How many groups of a table may wait for a merge: 8 to 32.
    pub(crate) fn groups_max(&self) -> u32 {
        self.groups_max.load(Ordering::Relaxed)
    }

    /// How often a knob turned since the store was opened.
    pub(crate) fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Of how many free extents it is said that some are missing, where `available` are free, with the smallest moves `least` should be, and with those of now `wanted`. That rises
    /// with what moves make, not at once with what they take: else writers would stand still until the difference is there.
    pub(crate) fn expected(&self, available: u32, least: u32, wanted: u32) -> u32 {
        let reached = self.reached.load(Ordering::Relaxed).max(available).clamp(least, wanted.max(least));
        self.reached.store(reached, Ordering::Relaxed);
        reached
    }

    /// Somebody looked. Room that is missing while no row moves is for gc to make: larger moves would not help, and take out rows for which there is room. `groups` says of the groups that wait for a merge how many times as
    /// many there are as may; above 1 one is wanted. It is asked once in each tick.
    pub(crate) fn record(&self, look: Look, groups: impl FnOnce() -> f64, now_ns: u64) {
        let mut watch = self.watch.lock();
        watch.worst = if look.is_moving { watch.worst.max(look.missing) } else { watch.worst };
        watch.is_busy |= look.is_moving || look.is_short;
        if now_ns.saturating_sub(watch.tick_ns) < TICK_NS {
            return;
        }
        watch.tick_ns = now_ns;
        let (eighths, groups_max) = watch.end_tick(groups(), (self.eighths(), self.groups_max()));
        self.turn(&self.eighths, self.fixed.eighths.unwrap_or(eighths));
        self.turn(&self.groups_max, self.fixed.groups_max.unwrap_or(groups_max));
    }

    fn turn(&self, knob: &AtomicU32, to: u32) {
        let has_turned = knob.swap(to, Ordering::Relaxed) != to;
        self.turns.fetch_add(u32::from(has_turned), Ordering::Relaxed);
    }
}

impl Watch {
    /// What the knobs are to be from now on.
    fn end_tick(&mut self, groups: f64, (eighths, groups_max): (u32, u32)) -> (u32, u32) {
        let (worst, is_busy) = (std::mem::take(&mut self.worst), std::mem::take(&mut self.is_busy));
        self.moves.saw(worst >= LAGS_FROM, !is_busy);
        self.merges.saw(groups >= GROUPS_LAG_FROM, groups <= 1.0);
        let (moves, merges) = (self.moves.seen_often(), self.merges.seen_often());
        // Neither queue has anything to give to the other while both lag.
        let groups_max = match (moves, merges) {
            (_, Some(Seen::Lag)) if !self.moves.lags => (groups_max + GROUPS_STEP).min(GROUPS_RANGE[1]),
            (Some(Seen::Lag), _) if !self.merges.lags => fewer_groups(groups_max),
            (_, Some(Seen::Rest)) if !self.moves.lags => towards(GROUPS, groups_max),
            _ => groups_max,
        };
        (next_eighths(eighths, moves), groups_max)
    }
}

/// What was seen of a queue in several ticks in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// It does not keep up.
    Lag,
    /// There is nothing to do.
    Rest,
}

/// Ticks in a row in which a queue lagged, or had nothing to do.
#[derive(Debug, Default)]
struct TicksInARow {
    lagging: u32,
    resting: u32,
    /// It lagged in the last one.
    lags: bool,
}

impl TicksInARow {
    fn saw(&mut self, lags: bool, rests: bool) {
        self.lags = lags;
        self.lagging = if lags { self.lagging + 1 } else { 0 };
        self.resting = if rests { self.resting + 1 } else { 0 };
    }

    /// What was seen often enough; from then on it has to be seen as often again.
    fn seen_often(&mut self) -> Option<Seen> {
        let seen = match (self.lagging >= TICKS, self.resting >= TICKS) {
            (true, _) => Seen::Lag,
            (false, true) => Seen::Rest,
            (false, false) => return None,
        };
        (self.lagging, self.resting) = (0, 0);
        Some(seen)
    }
}

fn next_eighths(eighths: u32, seen: Option<Seen>) -> u32 {
    match seen {
        Some(Seen::Lag) => (2 * eighths).min(EIGHTHS[1]),
        Some(Seen::Rest) => (eighths / 2).max(EIGHTHS[0]),
        None => eighths,
    }
}

fn fewer_groups(groups_max: u32) -> u32 {
    groups_max.saturating_sub(GROUPS_STEP).max(GROUPS_RANGE[0])
}

/// One step from `now`, or less if it is nearer.
fn towards(rest: u32, now: u32) -> u32 {
    if now > rest { (now - GROUPS_STEP.min(now)).max(rest) } else { (now + GROUPS_STEP).min(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Look = Look { missing: 0.0, is_moving: false, is_short: false };

    fn moving(missing: f64) -> Look {
        Look { missing, is_moving: true, is_short: true }
    }

    /// The sizes after each of these looks, a tenth of a second apart.
    fn sizes(size: &Controller, from_tick: u64, looks: &[Look]) -> Vec<u32> {
        let each = |(tick, look): (u64, &Look)| {
            size.record(*look, || 0.0, (from_tick + tick) * TICK_NS);
            size.eighths()
        };
        (1..).zip(looks).map(each).collect()
    }

    #[test]
    fn a_move_takes_more_while_moves_lag_and_less_at_rest() {
        let size = Controller::default();
        assert_eq!((size.eighths(), size.runs_max()), (1, 8));
        assert_eq!(sizes(&size, 0, &[moving(0.5); 10]), [1, 1, 2, 2, 2, 4, 4, 4, 4, 4]);
        assert_eq!(size.runs_max(), 32);
        assert_eq!(sizes(&size, 10, &[REST; 8]), [4, 4, 2, 2, 2, 1, 1, 1]);
    }

    /// Else a store that was loaded and rested for a moment has four times the runs that there may be.
    #[test]
    fn runs_that_were_let_pass_are_not_owed_at_rest() {
        let size = Controller::default();
        assert_eq!(size.runs_let(500), 32, "an opening finds them");
        assert_eq!(size.runs_let(20), 20);
        assert_eq!((size.runs_let(2), size.runs_let(20)), (8, 8), "more than there might be when they came");
        sizes(&size, 0, &[moving(0.5); 6]);
        assert_eq!(size.runs_let(40), 32);
        sizes(&size, 6, &[REST; 6]);
        assert_eq!((size.runs_max(), size.runs_let(40), size.runs_let(30)), (8, 32, 30));
        assert_eq!((size.runs_let(12), size.runs_let(30)), (12, 12), "what comes now is");
        assert_eq!((size.runs_let(3), size.runs_let(30)), (8, 8));
    }

    #[test]
    fn what_is_not_seen_three_times_in_a_row_changes_nothing() {
        let size = Controller::default();
        let looks = [0.9, 0.9, 0.4, 0.9, 0.9, 0.0, 0.9, 0.9].map(moving);
        assert_eq!(sizes(&size, 0, &looks), [1; 8]);
        assert_eq!(sizes(&size, 8, &[0.9, 0.3, 0.2, 0.3].map(moving)), [2; 4]);
        assert_eq!(sizes(&size, 12, &[REST, REST, moving(0.1), REST, REST]), [2; 5]);
    }

    /// A store whose rows all have room is no reason to take them out, however fast they are written over.
    #[test]
    fn room_that_gc_makes_is_no_reason_for_larger_moves() {
        let size = Controller::default();
        let collected = Look { is_moving: false, ..moving(1.0) };
        assert_eq!(sizes(&size, 0, &[collected; 10]), [1; 10]);
        assert_eq!(sizes(&size, 10, &[moving(0.6); 3]), [1, 1, 2]);
        assert_eq!(sizes(&size, 13, &[collected; 10]), [2; 10], "nor at rest");
        let has_room = Look { is_short: false, ..collected };
        assert_eq!(sizes(&size, 23, &[has_room; 3]), [2, 2, 1], "what is missing for a larger move alone");
    }

    #[test]
    fn what_is_missing_rises_with_what_moves_make() {
        let size = Controller::default();
        assert_eq!(size.expected(1, 3, 3), 3);
        assert_eq!(size.expected(2, 3, 9), 3, "a move takes more from now on, and nothing is free yet");
        assert_eq!(size.expected(6, 3, 9), 6);
        assert_eq!(size.expected(4, 3, 9), 6, "and what was there once is missing");
        assert_eq!(size.expected(20, 3, 9), 9);
        assert_eq!(size.expected(1, 3, 5), 5);
        assert_eq!(size.expected(1, 3, 3), 3);
    }

    /// However often somebody looks, and whatever was seen in between.
    #[test]
    fn the_worst_of_a_tick_counts() {
        let size = Controller::default();
        for n in 1..=31 {
            size.record(if n % 10 == 4 { moving(0.7) } else { REST }, || 0.0, n * TICK_NS / 10);
        }
        assert_eq!(size.eighths(), 2);
        for n in 32..=92 {
            size.record(if n % 10 == 4 { moving(0.1) } else { REST }, || 0.0, n * TICK_NS / 10);
        }
        assert_eq!(size.eighths(), 2, "something moved in each");
    }

    /// What is seen of moves, and of groups.
    type Both = (Look, f64);

    fn merging(groups: f64) -> Both {
        (REST, groups)
    }

    /// Both knobs after each of these looks.
    fn knobs(of: &Controller, from_tick: u64, looks: &[Both]) -> Vec<(u32, u32)> {
        let each = |(tick, (look, groups)): (u64, &Both)| {
            of.record(*look, || *groups, (from_tick + tick) * TICK_NS);
            (of.eighths(), of.groups_max())
        };
        (1..).zip(looks).map(each).collect()
    }

    #[test]
    fn more_groups_wait_while_merges_lag_and_fewer_while_moves_do() {
        let of = Controller::default();
        assert_eq!(of.groups_max(), 16);
        let seen = knobs(&of, 0, &[merging(1.5); 7]);
        assert_eq!(seen, [(1, 16), (1, 16), (1, 18), (1, 18), (1, 18), (1, 20), (1, 20)]);
        knobs(&of, 7, &[merging(9.0); 60]);
        assert_eq!((of.eighths(), of.groups_max()), (1, 32), "no more than that");
        knobs(&of, 67, &[(moving(0.9), 0.5); 60]);
        assert_eq!((of.eighths(), of.groups_max()), (4, 8));
        knobs(&of, 127, &[merging(2.0); 3]);
        assert_eq!((of.eighths(), of.groups_max()), (2, 10));
    }

    #[test]
    fn at_rest_both_knobs_go_back() {
        for looks in [[merging(3.0); 40], [(moving(0.9), 0.0); 40]] {
            let of = Controller::default();
            knobs(&of, 0, &looks);
            assert_ne!(of.groups_max(), 16);
            // As many groups as may wait are no work.
            knobs(&of, 40, &[merging(1.0); 30]);
            assert_eq!((of.eighths(), of.groups_max()), (1, 16));
            let turns = of.turns();
            knobs(&of, 70, &[merging(1.0); 100]);
            assert_eq!(of.turns(), turns, "and stay");
        }
    }

    /// Whatever keeps groups from being merged: moves take what they need.
    #[test]
    fn groups_keep_no_move_from_growing_and_none_large() {
        let of = Controller::default();
        assert_eq!(*knobs(&of, 0, &[(moving(0.9), 2.0); 9]).last().unwrap(), (4, 16));
        knobs(&of, 9, &[merging(2.0); 60]);
        assert_eq!((of.eighths(), of.groups_max()), (1, 32));
    }

    /// A load of any kind: after a while nothing turns any more.
    #[test]
    fn knobs_settle_under_a_load_that_stays_the_same() {
        for (moves, groups) in [(0.0, 1.2), (0.3, 1.4), (0.6, 0.2), (0.2, 1.7), (0.9, 1.9), (0.9, 1.0)] {
            let of = Controller::default();
            let look = |tick: usize| {
                let groups = if tick.is_multiple_of(2) { groups } else { groups - 0.4 };
                (moving(moves), groups)
            };
            let looks: Vec<Both> = (0..200).map(look).collect();
            knobs(&of, 0, &looks);
            let turns = of.turns();
            knobs(&of, 200, &looks);
            assert_eq!(of.turns(), turns, "{moves} {groups}");
        }
    }

    /// Though what is seen of one comes a tick after what is seen of the other.
    #[test]
    fn groups_stay_while_both_queues_lag() {
        let of = Controller::default();
        knobs(&of, 0, &[(moving(0.9), 1.2); 2]);
        let seen = knobs(&of, 2, &[(moving(0.9), 2.0); 20]);
        assert!(seen.iter().all(|(_, groups_max)| *groups_max == 16), "{seen:?}");
    }

    #[test]
    fn a_tick_asks_for_groups_once() {
        let (of, asked) = (Controller::default(), std::cell::Cell::new(0));
        let groups = || {
            asked.set(asked.get() + 1);
            0.0
        };
        (1..=100).for_each(|n| of.record(REST, groups, n * TICK_NS / 10));
        assert_eq!(asked.get(), 10);
    }

    #[test]
    fn a_knob_that_is_fixed_never_turns() {
        let fixed = FixedKnobs::new(Some(2), Some(9)).unwrap();
        let said = |eighths, groups_max| FixedKnobs::new(eighths, groups_max).unwrap_err().to_string();
        assert_eq!(said(Some(5), None), "run_eighths is 5; it must be 1 to 4");
        assert_eq!(said(None, Some(0)), "groups_max is 0; it must be 1 to 64");
        let of = Controller::with(fixed);
        for looks in [[(moving(0.9), 0.0); 40], [merging(3.0); 40], [merging(0.0); 40]] {
            assert!(knobs(&of, 0, &looks).iter().all(|knobs| *knobs == (2, 9)));
        }
        assert_eq!(of.turns(), 0);
        for groups_max in [1, 64] {
            let of = Controller::with(FixedKnobs::new(None, Some(groups_max)).unwrap());
            knobs(&of, 0, &[(moving(0.9), 0.0); 9]);
            assert_eq!((of.eighths(), of.groups_max()), (4, groups_max));
        }
    }
}
