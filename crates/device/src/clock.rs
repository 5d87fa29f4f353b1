//! Time, from the machine or from a test.
//!
//! Owns [`Clock`]. Promises that a manual clock moves only when told to. Knows nothing of expiry or intervals.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock; cheap to clone, and every clone shows the same time.
#[derive(Debug, Clone)]
pub struct Clock {
    /// Milliseconds of a manual clock; `None` is the machine's.
    manual_ms: Option<Arc<AtomicU64>>,
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Clock {
        Clock { manual_ms: None }
    }

    /// A clock that stands at `start_ms` until [`Clock::advance_ms`].
    pub fn manual(start_ms: u64) -> Clock {
        Clock { manual_ms: Some(Arc::new(AtomicU64::new(start_ms))) }
    }

    /// Wall time in milliseconds since 1970. The machine's is the coarse one: about 5 ns to read, up to 4 ms late.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        match &self.manual_ms {
            None => read(libc::CLOCK_REALTIME_COARSE) / 1_000_000,
            Some(ms) => ms.load(Ordering::Acquire),
        }
    }

    /// Nanoseconds since some fixed moment; never goes back. A manual clock's is its milliseconds.
    #[inline]
    pub fn monotonic_ns(&self) -> u64 {
        match &self.manual_ms {
            None => monotonic_ns(),
            Some(ms) => ms.load(Ordering::Acquire).saturating_mul(1_000_000),
        }
    }

    /// Moves a manual clock forward by `ms`. The machine's clock does not hear it.
    pub fn advance_ms(&self, ms: u64) {
        if let Some(now) = &self.manual_ms {
            now.fetch_add(ms, Ordering::AcqRel);
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
