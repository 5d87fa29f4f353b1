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
    watch: Mutex<Watch>,
}

/// What was seen lately.
#[derive(Debug, Default)]
struct Watch {
    tick_ns: u64,
    /// The most of the room that was missing since then.
    worst: f64,
    /// Ticks in a row in which moves lagged, or nothing was missing.
    lagging: u32,
    resting: u32,
}

impl Default for RunSize {
    fn default() -> RunSize {
        RunSize { eighths: AtomicU32::new(EIGHTHS[0]), watch: Mutex::default() }
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

    /// Of the room that is to be there for writers `missing` is not, from 0 to 1.
    pub(crate) fn record(&self, missing: f64, now_ns: u64) {
        let mut watch = self.watch.lock();
        watch.worst = watch.worst.max(missing);
        if now_ns.saturating_sub(watch.tick_ns) < TICK_NS {
            return;
        }
        let worst = std::mem::take(&mut watch.worst);
        watch.tick_ns = now_ns;
        watch.lagging = if worst >= LAGS_FROM { watch.lagging + 1 } else { 0 };
        watch.resting = if worst <= 0.0 { watch.resting + 1 } else { 0 };
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

    /// The sizes after each of these looks, a tenth of a second apart.
    fn sizes(size: &RunSize, from_tick: u64, looks: &[f64]) -> Vec<u32> {
        let each = |(tick, missing): (u64, &f64)| {
            size.record(*missing, (from_tick + tick) * TICK_NS);
            size.eighths()
        };
        (1..).zip(looks).map(each).collect()
    }

    #[test]
    fn a_move_takes_more_while_moves_lag_and_less_at_rest() {
        let size = RunSize::default();
        assert_eq!((size.eighths(), size.runs_max()), (1, 8));
        assert_eq!(sizes(&size, 0, &[0.5; 10]), [1, 1, 2, 2, 2, 4, 4, 4, 4, 4]);
        assert_eq!(size.runs_max(), 32);
        assert_eq!(sizes(&size, 10, &[0.0; 8]), [4, 4, 2, 2, 2, 1, 1, 1]);
    }

    #[test]
    fn what_is_not_seen_three_times_in_a_row_changes_nothing() {
        let size = RunSize::default();
        assert_eq!(sizes(&size, 0, &[0.9, 0.9, 0.4, 0.9, 0.9, 0.0, 0.9, 0.9]), [1; 8]);
        assert_eq!(sizes(&size, 8, &[0.9, 0.3, 0.2, 0.3]), [2; 4]);
        assert_eq!(sizes(&size, 12, &[0.0, 0.0, 0.1, 0.0, 0.0]), [2; 5]);
    }

    /// However often somebody looks, and whatever was seen in between.
    #[test]
    fn the_worst_of_a_tick_counts() {
        let size = RunSize::default();
        for n in 1..=31 {
            let missing = if n % 10 == 4 { 0.7 } else { 0.0 };
            size.record(missing, n * TICK_NS / 10);
        }
        assert_eq!(size.eighths(), 2);
    }
}
