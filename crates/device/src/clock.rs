//! Time, from the machine or from a test.
//!
//! Owns [`Clock`]. Promises that a manual clock moves only when told to, and that a cached one shows one time between two
//! refreshes. Knows nothing of expiry or intervals.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock; cheap to clone, and every clone shows the same time.
#[derive(Debug, Clone)]
pub struct Clock {
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    Machine,
    Manual(Arc<Manual>),
    Cached(Arc<Cached>),
}

#[derive(Debug)]
struct Manual {
    ms: AtomicU64,
    /// By how many milliseconds the monotonic time is ahead, or behind, modulo 2^64: it does not hear of steps.
    ahead_ms: AtomicU64,
    /// By how many milliseconds it moves on with each look at it.
    step_ms: u64,
}

#[derive(Debug)]
struct Cached {
    source: Clock,
    ms: AtomicU64,
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Clock {
        Clock { source: Source::Machine }
    }

    /// A clock that stands at `start_ms` until [`Clock::advance_ms`].
    pub fn manual(start_ms: u64) -> Clock {
        Clock::ticking(start_ms, 0)
    }

    /// A manual clock that also moves on by `step_ms` whenever somebody looks at its wall time: it finds those who look
    /// twice where they should look once.
    pub fn ticking(start_ms: u64, step_ms: u64) -> Clock {
        Clock {
            source: Source::Manual(Arc::new(Manual {
                ms: AtomicU64::new(start_ms),
                ahead_ms: AtomicU64::new(0),
                step_ms,
            })),
        }
    }

    /// A clock whose wall time is that of `source` as of the last [`Clock::refresh`]: between two of them all who look at it
    /// see the same time. Its monotonic time is `source`'s.
    pub fn cached(source: Clock) -> Clock {
        let ms = AtomicU64::new(source.exact_ms());
        Clock { source: Source::Cached(Arc::new(Cached { source, ms })) }
    }

    /// Has a cached clock look at its source. Says the wall time, exact to the millisecond.
    pub fn refresh(&self) -> u64 {
        let now_ms = self.exact_ms();
        if let Source::Cached(cached) = &self.source {
            cached.ms.store(now_ms, Ordering::Release);
        }
        now_ms
    }

    /// The wall time of the clock at the bottom.
    fn exact_ms(&self) -> u64 {
        match &self.source {
            Source::Machine => read(libc::CLOCK_REALTIME) / 1_000_000,
            Source::Manual(_) => self.now_ms(),
            Source::Cached(cached) => cached.source.exact_ms(),
        }
    }

    /// Wall time in milliseconds since 1970. The machine's is the coarse one: about 5 ns to read, up to 4 ms late.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        match &self.source {
            Source::Machine => read(libc::CLOCK_REALTIME_COARSE) / 1_000_000,
            Source::Cached(cached) => cached.ms.load(Ordering::Acquire),
            Source::Manual(manual) => manual.ms.fetch_add(manual.step_ms, Ordering::AcqRel),
        }
    }

    /// Nanoseconds since some fixed moment; never goes back. A manual clock's is its milliseconds, as if it had never stepped.
    #[inline]
    pub fn monotonic_ns(&self) -> u64 {
        match &self.source {
            Source::Machine => monotonic_ns(),
            Source::Cached(cached) => cached.source.monotonic_ns(),
            Source::Manual(manual) => {
                let ms =
                    manual.ms.load(Ordering::Acquire).wrapping_add(manual.ahead_ms.load(Ordering::Acquire));
                ms.saturating_mul(1_000_000)
            }
        }
    }

    /// Moves a manual clock forward by `ms`. The machine's clock does not hear it, and a cached one only hands it on.
    pub fn advance_ms(&self, ms: u64) {
        match &self.source {
            Source::Machine => {}
            Source::Cached(cached) => cached.source.advance_ms(ms),
            Source::Manual(manual) => {
                manual.ms.fetch_add(ms, Ordering::AcqRel);
            }
        }
    }

    /// Has a manual clock step to `ms`, which may be in its past, as a machine's may when it is set. Its monotonic time stays; who looks at that meanwhile may see it jump.
    pub fn step_to_ms(&self, ms: u64) {
        match &self.source {
            Source::Machine => {}
            Source::Cached(cached) => cached.source.step_to_ms(ms),
            Source::Manual(manual) => {
                let before = manual.ms.swap(ms, Ordering::AcqRel);
                manual.ahead_ms.fetch_add(before.wrapping_sub(ms), Ordering::AcqRel);
            }
        }
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::system()
    }
}

/// The machine's monotonic clock, nanoseconds.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to fill; the clock ids used always exist on Linux, so it cannot fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_moves_only_when_told() {
        let clock = Clock::manual(1_000);
        let other = clock.clone();
        assert_eq!((clock.now_ms(), clock.monotonic_ns()), (1_000, 1_000_000_000));
        other.advance_ms(5);
        assert_eq!((clock.now_ms(), clock.monotonic_ns()), (1_005, 1_005_000_000));
    }

    #[test]
    fn a_cached_clock_stands_between_refreshes() {
        let source = Clock::ticking(1_000, 3);
        let clock = Clock::cached(source.clone());
        assert_eq!((clock.now_ms(), clock.clone().now_ms()), (1_000, 1_000));
        assert_eq!((clock.refresh(), clock.now_ms()), (1_003, 1_003));
        clock.advance_ms(100);
        assert_eq!(clock.now_ms(), 1_003);
        assert_eq!((source.now_ms(), source.now_ms(), clock.refresh()), (1_106, 1_109, 1_112));
        let system = Clock::cached(Clock::system());
        for _ in 0..1_000 {
            let std_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            assert!(u128::from(system.refresh()) >= std_ms.as_millis(), "it is not late");
        }
    }

    #[test]
    fn system_clock_agrees_with_std() {
        let clock = Clock::system();
        let std_ms =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
        assert!(clock.now_ms().abs_diff(std_ms) < 1_000);
        let before = clock.monotonic_ns();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(clock.monotonic_ns() >= before + 2_000_000);
        clock.advance_ms(1_000_000_000);
        assert!(clock.now_ms().abs_diff(std_ms) < 10_000, "advancing does not move the machine's clock");
    }
}
