//! The one door to atomics, locks and threads for code whose interleavings are tested.
//!
//! Owns: the choice between the standard library and `shuttle` (under `cfg(shuttle)`, where a scheduler picks every
//! interleaving). Promises: the same names and meaning in both. Must not know: who uses it.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Arc, atomic};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Arc, atomic};

#[cfg(not(shuttle))]
use std::sync as imp;

#[cfg(shuttle)]
use shuttle::sync as imp;

/// Keeps what is written often off the cache lines of its neighbours, or what is read often off those that are written.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

/// A mutex that ignores poisoning: its users keep what it guards valid at every step.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(imp::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> imp::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The guard if nobody holds the lock now.
    pub(crate) fn try_lock(&self) -> Option<imp::MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(imp::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(imp::TryLockError::WouldBlock) => None,
        }
    }
}

/// Waiting for another thread's short critical section: spins a little, then yields the core, since that thread may
/// have been preempted inside it.
#[derive(Debug, Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Rounds of spinning, each twice as long as the one before (about 0.5 us in all), before yielding.
    #[cfg(not(shuttle))]
    const SPINS: u32 = 6;

    pub(crate) fn new() -> Backoff {
        Backoff(0)
    }

    /// Waits a little; longer each time.
    #[cfg(not(shuttle))]
    pub(crate) fn wait(&mut self) {
        if self.0 < Self::SPINS {
            for _ in 0..1u32 << self.0 {
                std::hint::spin_loop();
            }
            self.0 += 1;
        } else {
            std::thread::yield_now();
        }
    }

    /// Lets the scheduler run somebody else.
    #[cfg(shuttle)]
    pub(crate) fn wait(&mut self) {
        self.0 += 1;
        shuttle::thread::yield_now();
    }
}
