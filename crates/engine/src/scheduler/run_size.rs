//! How much one move takes out of the log: DecouKV's data-flush trigger size (DFTS), and with it how many runs there may be.
//!
//! Owns the size, and when it changes. Promises that it does so only after three looks in a row that all say the same, a tenth of a second apart: one hesitation of a disk changes
//! nothing. Must not know what is moved, nor how room is counted.
//!
//! Larger runs are fewer. So while moves are what writers wait for, a move takes twice as much, and there may be twice as many runs before they are merged: the disk and the
//! processors are left to moves, and what was put off is done when there is time (DecouKV's elastic levels). The price is room: before a move begins, as much of the fast tier is
//! to be free as one takes out, and half of the least more.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Eighths of the fast tier that a move takes out: at rest, and at most.
const EIGHTHS: [u32; 2] = [1, 4];
/// So many runs there may be for each of these.
const RUNS_PER_EIGHTH: usize = 8;
/// How far looks are apart, and how many in a row have to say the same.
const TICK_NS: u64 = 100_000_000;
const TICKS: u32 = 3;
/// From this share of missing room on moves do not keep up: writers are held to what these make.
const LAGS_FROM: f64 = 0.5;

/// The size of moves.
#[derive(Debug)]
pub(crate) struct RunSize {
    eighths: AtomicU32,
    /// The most extents that were free, up to as many as are wanted.
    reached: AtomicU32,
    watch: Mutex<Watch>,
}

/// What is seen at one look.
#[derive(Debug, Clone, Copy)]
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
    /// Ticks in a row in which moves lagged, or there was nothing to move.
    lagging: u32,
    resting: u32,
}

impl Default for RunSize {
    fn default() -> RunSize {
        RunSize { eighths: AtomicU32::new(EIGHTHS[0]), reached: AtomicU32::new(0), watch: Mutex::default() }
    }
}

impl RunSize {
    /// Eighths of the fast tier that a move takes out: 1, 2 or 4.
    pub(crate) fn eighths(&self) -> u32 {
        self.eighths.load(Ordering::Relaxed)
    }

    /// How many runs there may be before some are merged: 8, 16 or 32.
    pub(crate) fn runs_max(&self) -> usize {
        RUNS_PER_EIGHTH * self.eighths() as usize
    }

    /// Of how many free extents it is said that some are missing, where `available` are free, with the smallest moves `least` should be, and with those of now `wanted`. That rises
    /// with what moves make, not at once with what they take: else writers would stand still until the difference is there.
    pub(crate) fn expected(&self, available: u32, least: u32, wanted: u32) -> u32 {
        let reached = self.reached.load(Ordering::Relaxed).max(available).clamp(least, wanted.max(least));
        self.reached.store(reached, Ordering::Relaxed);
        reached
    }

    /// Somebody looked. Room that is missing while no row moves is for gc to make: larger moves would not help, and take out rows for which there is room.
    pub(crate) fn record(&self, look: Look, now_ns: u64) {
        let mut watch = self.watch.lock();
        watch.worst = if look.is_moving { watch.worst.max(look.missing) } else { watch.worst };
        watch.is_busy |= look.is_moving || look.is_short;
        if now_ns.saturating_sub(watch.tick_ns) < TICK_NS {
            return;
        }
        let (worst, is_busy) = (std::mem::take(&mut watch.worst), std::mem::take(&mut watch.is_busy));
        watch.tick_ns = now_ns;
        watch.lagging = if worst >= LAGS_FROM { watch.lagging + 1 } else { 0 };
        watch.resting = if is_busy { 0 } else { watch.resting + 1 };
        let eighths = self.eighths();
        let next = match (watch.lagging >= TICKS, watch.resting >= TICKS) {
            (true, _) => (2 * eighths).min(EIGHTHS[1]),
            (_, true) => (eighths / 2).max(EIGHTHS[0]),
            _ => return,
        };
        (watch.lagging, watch.resting) = (0, 0);
        self.eighths.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Look = Look { missing: 0.0, is_moving: false, is_short: false };

    fn moving(missing: f64) -> Look {
        Look { missing, is_moving: true, is_short: true }
    }

    /// The sizes after each of these looks, a tenth of a second apart.
    fn sizes(size: &RunSize, from_tick: u64, looks: &[Look]) -> Vec<u32> {
        let each = |(tick, look): (u64, &Look)| {
            size.record(*look, (from_tick + tick) * TICK_NS);
            size.eighths()
        };
        (1..).zip(looks).map(each).collect()
    }

    #[test]
    fn a_move_takes_more_while_moves_lag_and_less_at_rest() {
        let size = RunSize::default();
        assert_eq!((size.eighths(), size.runs_max()), (1, 8));
        assert_eq!(sizes(&size, 0, &[moving(0.5); 10]), [1, 1, 2, 2, 2, 4, 4, 4, 4, 4]);
        assert_eq!(size.runs_max(), 32);
        assert_eq!(sizes(&size, 10, &[REST; 8]), [4, 4, 2, 2, 2, 1, 1, 1]);
    }

    #[test]
    fn what_is_not_seen_three_times_in_a_row_changes_nothing() {
        let size = RunSize::default();
        let looks = [0.9, 0.9, 0.4, 0.9, 0.9, 0.0, 0.9, 0.9].map(moving);
        assert_eq!(sizes(&size, 0, &looks), [1; 8]);
        assert_eq!(sizes(&size, 8, &[0.9, 0.3, 0.2, 0.3].map(moving)), [2; 4]);
        assert_eq!(sizes(&size, 12, &[REST, REST, moving(0.1), REST, REST]), [2; 5]);
    }

    /// A store whose rows all have room is no reason to take them out, however fast they are written over.
    #[test]
    fn room_that_gc_makes_is_no_reason_for_larger_moves() {
        let size = RunSize::default();
        let collected = Look { is_moving: false, ..moving(1.0) };
        assert_eq!(sizes(&size, 0, &[collected; 10]), [1; 10]);
        assert_eq!(sizes(&size, 10, &[moving(0.6); 3]), [1, 1, 2]);
        assert_eq!(sizes(&size, 13, &[collected; 10]), [2; 10], "nor at rest");
        let has_room = Look { is_short: false, ..collected };
        assert_eq!(sizes(&size, 23, &[has_room; 3]), [2, 2, 1], "what is missing for a larger move alone");
    }

    #[test]
    fn what_is_missing_rises_with_what_moves_make() {
        let size = RunSize::default();
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
        let size = RunSize::default();
        for n in 1..=31 {
            size.record(if n % 10 == 4 { moving(0.7) } else { REST }, n * TICK_NS / 10);
        }
        assert_eq!(size.eighths(), 2);
        for n in 32..=92 {
            size.record(if n % 10 == 4 { moving(0.1) } else { REST }, n * TICK_NS / 10);
        }
        assert_eq!(size.eighths(), 2, "something moved in each");
    }
}
