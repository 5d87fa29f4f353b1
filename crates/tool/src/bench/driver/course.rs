//! The course of a phase: what the process and its store had used and done, moment by moment.
//!
//! Owns what is known at such moments and how it is told by window. Promises that the windows add up to what was used from the first moment to
//! the last: what was used between two moments is spread evenly over the time between them, however many windows that is.
//! Must not know what is run.

use std::time::Duration;

use super::WindowUsage;
use crate::bench::process::Usage;
use crate::bench::store::BenchStore;

/// What had been used and done up to a moment. None of it shrinks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct UsedSoFar {
    cpu_s: f64,
    written: f64,
    read: f64,
    log: f64,
    below_log: f64,
    /// Reads that the row cache had the row of, and those it had not.
    hits: f64,
    misses: f64,
}

impl UsedSoFar {
    /// Puts two together, number by number.
    fn with(self, other: UsedSoFar, put: impl Fn(f64, f64) -> f64) -> UsedSoFar {
        UsedSoFar {
            cpu_s: put(self.cpu_s, other.cpu_s),
            written: put(self.written, other.written),
            read: put(self.read, other.read),
            log: put(self.log, other.log),
            below_log: put(self.below_log, other.below_log),
            hits: put(self.hits, other.hits),
            misses: put(self.misses, other.misses),
        }
    }
}

/// The process and its store at one moment.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Duration,
    totals: UsedSoFar,
}

/// Moments of a phase, from its start to its end.
#[derive(Debug)]
pub(super) struct PhaseCourse {
    length: Duration,
    moments: Vec<Moment>,
}

impl PhaseCourse {
    /// Of a phase that is told by windows of that length.
    pub(super) fn new(length: Duration) -> PhaseCourse {
        PhaseCourse { length: length.max(Duration::from_nanos(1)), moments: Vec::new() }
    }

    /// When to look next: at the end of the window that the last moment is in, however many have ended since.
    pub(super) fn next(&self) -> Duration {
        let length = self.length.as_nanos();
        let end = |moment: &Moment| (moment.at.as_nanos() / length + 1) * length;
        Duration::from_nanos(self.moments.last().map_or(0, |moment| end(moment) as u64))
    }

    /// Looks at the process and the store.
    pub(super) fn look(&mut self, at: Duration, store: &dyn BenchStore) -> Result<(), String> {
        let (usage, account) = (Usage::now()?, store.account().unwrap_or_default());
        let (hits, misses) = account.cache_reads;
        self.push(
            at,
            UsedSoFar {
                cpu_s: usage.cpu.as_secs_f64(),
                written: usage.bytes_written as f64,
                read: usage.bytes_read as f64,
                log: account.log_bytes as f64,
                below_log: account.below_log_bytes as f64,
                hits: hits as f64,
                misses: misses as f64,
            },
        );
        Ok(())
    }

    fn push(&mut self, at: Duration, totals: UsedSoFar) {
        // What is accounted for by estimate may shrink a little.
        let before = self.moments.last().map_or(totals, |moment| moment.totals);
        self.moments.push(Moment { at, totals: totals.with(before, f64::max) });
    }

    /// What had been used up to then, as if it had been used evenly between the moments around it.
    fn until(&self, at: Duration) -> Option<UsedSoFar> {
        let next = self.moments.partition_point(|moment| moment.at < at);
        let Some(to) = self.moments.get(next) else { return self.moments.last().map(|moment| moment.totals) };
        let Some(from) = next.checked_sub(1).map(|before| self.moments[before]) else {
            return Some(to.totals);
        };
        let share = (at - from.at).as_secs_f64() / (to.at - from.at).as_secs_f64();
        Some(from.totals.with(to.totals, |from, to| from + (to - from) * share))
    }

    /// What was used from one time to another; none where nobody looked after the first.
    fn between(&self, from: Duration, to: Duration) -> Option<UsedSoFar> {
        self.moments.last().filter(|last| last.at > from)?;
        Some(self.until(to)?.with(self.until(from)?, |to, from| to - from))
    }

    /// What the process used from one time to another.
    pub(super) fn used(&self, from: Duration, to: Duration) -> Option<WindowUsage> {
        let (used, seconds) = (self.between(from, to)?, to.saturating_sub(from).as_secs_f64());
        (seconds > 0.0).then(|| WindowUsage {
            processors: used.cpu_s / seconds,
            written_per_s: used.written / seconds,
            read_per_s: used.read / seconds,
            log_per_s: used.log / seconds,
            below_log_per_s: used.below_log / seconds,
        })
    }

    /// The share of hits from one time to another.
    pub(super) fn hit_ratio(&self, from: Duration, to: Duration) -> Option<f64> {
        let used = self.between(from, to)?;
        (used.hits + used.misses > 0.0).then(|| used.hits / (used.hits + used.misses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    const SLOT: u64 = 10;

    /// A store that fills 1 MB of log each ms, looked at then.
    fn looked_at(times: &[u64]) -> PhaseCourse {
        let mut course = PhaseCourse::new(MS(SLOT));
        for &at in times {
            let totals = UsedSoFar {
                log: at as f64 * 1e6,
                hits: at as f64,
                misses: at as f64,
                ..UsedSoFar::default()
            };
            course.push(MS(at), totals);
        }
        course
    }

    fn log_rates(course: &PhaseCourse, slots: u64) -> Vec<f64> {
        let used = |slot| course.used(MS(slot * SLOT), MS((slot + 1) * SLOT));
        (0..slots).filter_map(used).map(|used| used.log_per_s).collect()
    }

    #[test]
    fn one_who_is_late_looks_once_and_what_was_missed_is_spread() {
        // Nobody looked from 12 to 57 ms.
        let course = looked_at(&[0, 12, 57, 60]);
        let rates = log_rates(&course, 6);
        assert_eq!(rates.len(), 6);
        assert!(rates.iter().all(|rate| (rate / 1e9 - 1.0).abs() < 1e-9), "{rates:?}");
        assert_eq!(course.hit_ratio(MS(20), MS(30)), Some(0.5));
        let next = |times: &[u64]| looked_at(times).next();
        assert_eq!(
            [next(&[]), next(&[0]), next(&[0, 12]), next(&[0, 12, 57])],
            [MS(0), MS(10), MS(20), MS(60)]
        );
    }

    #[test]
    fn windows_add_up_to_what_was_used() {
        let mut course = PhaseCourse::new(MS(SLOT));
        for (at, log) in [(0, 5.0), (11, 70.0), (48, 90.0), (51, 85.0), (90, 305.0)] {
            course.push(MS(at), UsedSoFar { log, ..UsedSoFar::default() });
        }
        let rates = log_rates(&course, 9);
        let sum: f64 = rates.iter().map(|rate| rate * SLOT as f64 / 1e3).sum();
        assert!(rates.len() == 9 && (sum - 300.0).abs() < 1e-9, "{rates:?}");
        assert!(
            rates.iter().all(|rate| *rate >= 0.0),
            "an account that shrinks is no rate below 0: {rates:?}"
        );
        assert_eq!(course.used(MS(90), MS(100)), None, "nobody looked after it began");
        assert_eq!(PhaseCourse::new(MS(SLOT)).used(MS(0), MS(10)), None);
    }
}
