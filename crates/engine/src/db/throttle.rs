//! The write throttle: while space is low, writers are slowed down to the speed of the collector, a little each, so that
//! none has to wait for a round of it.
//!
//! Owns how long a writer is delayed for what it wrote. Promises that the delay follows what the collector gets done, that
//! it is zero while space is not low, and that no single delay is longer than [`SLEEP_MAX_NS`]. Must not know how space is
//! made.
//!
//! The delay for each KiB is `scale * (missing / low)^2`, where `low - missing` units are to be had. After each round the
//! scale grows while the collector is outrun (next to nothing is left, or somebody had to wait) and shrinks while it is
//! not. It shrinks, too, when a round found nothing worth doing: then there is no more space to be had by waiting.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::victims::Need;

/// The scale in ns for each KiB: where it starts and the most it grows to.
const SCALE_MIN: u64 = 8_000;
const SCALE_MAX: u64 = 4_000_000;
/// A delay is owed until it is worth a sleep, and no sleep is longer than the most.
const SLEEP_MIN_NS: u64 = 100_000;
const SLEEP_MAX_NS: u64 = 5_000_000;

/// What the collector and the writers share.
#[derive(Debug)]
pub(super) struct Throttle {
    /// ns for each KiB written. Zero while space is not low.
    ns_per_kib: AtomicU64,
    scale: AtomicU64,
    /// Somebody found no room since the last round.
    waited: AtomicBool,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle {
            ns_per_kib: AtomicU64::new(0),
            scale: AtomicU64::new(SCALE_MIN),
            waited: AtomicBool::new(false),
        }
    }
}

impl Throttle {
    /// What a writer is delayed for each KiB, in ns.
    #[inline]
    pub(super) fn ns_per_kib(&self) -> u64 {
        self.ns_per_kib.load(Ordering::Relaxed)
    }

    /// For a writer that found no room.
    pub(super) fn note_wait(&self) {
        self.waited.store(true, Ordering::Relaxed);
    }

    /// Sets the delay after a round that left `need`, and that did something or not.
    pub(super) fn adjust(&self, need: Need, worked: bool) {
        let waited = self.waited.swap(false, Ordering::Relaxed);
        let scale = self.scale.load(Ordering::Relaxed);
        let (scale, ns) = adjusted(scale, need, worked, waited);
        self.scale.store(scale, Ordering::Relaxed);
        self.ns_per_kib.store(ns, Ordering::Relaxed);
    }
}

/// The scale that follows `scale`, and the delay for each KiB.
fn adjusted(scale: u64, need: Need, worked: bool, waited: bool) -> (u64, u64) {
    let Need::Low { available, low } = need else {
        return ((scale / 8 * 7).max(SCALE_MIN), 0);
    };
    let scale = match (worked, available * 4 < low, available * 2 > low) {
        (false, ..) => scale / 2,
        (true, true, _) => scale + scale / 8,
        (true, false, _) if waited => scale + scale / 8,
        (true, false, true) => scale / 16 * 15,
        (true, false, false) => scale,
    };
    let scale = scale.clamp(SCALE_MIN, SCALE_MAX);
    let (missing, low) = (u64::from(low - available), u64::from(low));
    (scale, scale * missing * missing / (low * low))
}

/// Adds to what the thread owes, and sleeps it off once that is worth a sleep.
#[cold]
pub(super) fn owe(ns: u64) {
    thread_local!(static DEBT_NS: Cell<u64> = const { Cell::new(0) });
    let debt = DEBT_NS.get() + ns;
    if debt < SLEEP_MIN_NS {
        return DEBT_NS.set(debt);
    }
    let sleep = debt.min(SLEEP_MAX_NS);
    // What one sleep does not pay off is forgiven beyond another: a large write is no reason to stand still.
    DEBT_NS.set((debt - sleep).min(SLEEP_MAX_NS));
    std::thread::sleep(Duration::from_nanos(sleep));
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn low(available: u32) -> Need {
        Need::Low { available, low: 16 }
    }

    #[test]
    fn the_delay_rises_while_the_collector_is_outrun_and_falls_afterwards() {
        assert_eq!(adjusted(SCALE_MIN, Need::Idle, true, true), (SCALE_MIN, 0));
        let (mut scale, mut last) = (SCALE_MIN, 0);
        for _ in 0..80 {
            let (next, ns) = adjusted(scale, low(1), true, false);
            assert!(ns >= last);
            (scale, last) = (next, ns);
        }
        assert_eq!(scale, SCALE_MAX);
        assert_eq!(adjusted(scale, low(0), true, true), (SCALE_MAX, SCALE_MAX));
        assert_eq!(adjusted(scale, low(8), true, false), (SCALE_MAX, SCALE_MAX / 4));
        assert!(adjusted(scale, low(12), true, false).0 < scale);
        // All there is to be had: nobody is helped by a delay.
        for _ in 0..20 {
            scale = adjusted(scale, low(1), false, true).0;
        }
        assert_eq!(scale, SCALE_MIN);
    }
}
