//! The one door to atomics, locks and threads for code whose interleavings are tested.
//!
//! Owns: the choice between the standard library and `shuttle` (under `cfg(shuttle)`, where a scheduler picks every
//! interleaving). Promises: the same names and meaning in both. Must not know: who uses it.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Arc, atomic};

#[cfg(shuttle)]
pub(crate) use scheduled::{Condvar, Mutex, MutexGuard, RwLock};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Arc, atomic};

#[cfg(not(shuttle))]
pub(crate) use hedgerow_device::zeroed_words;

/// `count` words, all zero. An atomic is more than its bytes here.
#[cfg(shuttle)]
pub(crate) fn zeroed_words(count: usize) -> Box<[atomic::AtomicU64]> {
    (0..count).map(|_| atomic::AtomicU64::new(0)).collect()
}

/// A number for the calling thread, from 0 on: each place in the code that asks counts those that come by it.
macro_rules! thread_number {
    () => {{
        #[cfg(not(shuttle))]
        {
            static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
            thread_local!(static MINE: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) });
            MINE.with(|mine| {
                if mine.get() == usize::MAX {
                    mine.set(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
                }
                mine.get()
            })
        }
        // All of them are one thread to the system.
        #[cfg(shuttle)]
        {
            usize::from(::shuttle::current::me())
        }
    }};
}
pub(crate) use thread_number;

/// Keeps what is written often off the cache lines of its neighbours, or what is read often off those that are written.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

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

/// Explores a model of a whole store, in two ways, by so many schedules each.
#[cfg(all(test, shuttle))]
pub(crate) fn explore_store(schedules: usize, model: impl Fn() + Copy + Send + Sync + 'static) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    let mut config = shuttle::Config::new();
    // Of a task: gc and opening keep groups of records on it.
    config.stack_size = 1 << 20;
    shuttle::Runner::new(RandomScheduler::new(schedules), config.clone()).run(model);
    shuttle::Runner::new(PctScheduler::new(3, schedules), config).run(model);
}

/// The locks of `shuttle` as those of `parking_lot` are called.
#[cfg(shuttle)]
mod scheduled {
    use std::fmt;
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    use shuttle::rand::Rng as _;
    use shuttle::sync as imp;

    /// Nothing is poisoned for the product: who panics ends the model.
    fn unpoisoned<G>(locked: Result<G, std::sync::PoisonError<G>>) -> G {
        locked.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[derive(Default)]
    pub(crate) struct Mutex<T>(imp::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(imp::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard { lock: &self.0, held: Some(unpoisoned(self.0.lock())) }
        }

        /// The guard if nobody holds the lock now.
        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let held = self.0.try_lock().ok()?;
            Some(MutexGuard { lock: &self.0, held: Some(held) })
        }

        pub(crate) fn into_inner(self) -> T {
            unpoisoned(self.0.into_inner())
        }
    }

    impl<T> fmt::Debug for Mutex<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Mutex").finish_non_exhaustive()
        }
    }

    pub(crate) struct MutexGuard<'a, T> {
        lock: &'a imp::Mutex<T>,
        /// `None` only while it waits.
        held: Option<imp::MutexGuard<'a, T>>,
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.held.as_deref().expect("a guard that does not wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.held.as_deref_mut().expect("a guard that does not wait")
        }
    }

    impl<T> fmt::Debug for MutexGuard<'_, T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("MutexGuard").finish_non_exhaustive()
        }
    }

    #[derive(Default)]
    pub(crate) struct RwLock<T>(imp::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn read(&self) -> imp::RwLockReadGuard<'_, T> {
            unpoisoned(self.0.read())
        }

        pub(crate) fn write(&self) -> imp::RwLockWriteGuard<'_, T> {
            unpoisoned(self.0.write())
        }

        pub(crate) fn try_write(&self) -> Option<imp::RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(imp::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar::default()
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            guard.held = guard.held.take().map(|held| unpoisoned(self.0.wait(held)));
        }

        /// Time passes as the scheduler will: the wait ends after a step of somebody else, or it is longer than all that the others
        /// do. Then only a wake-up ends it, and one that was lost ends the model as a deadlock.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            if shuttle::rand::thread_rng().gen_bool(0.5) {
                return self.wait(guard);
            }
            drop(guard.held.take());
            shuttle::thread::yield_now();
            guard.held = Some(unpoisoned(guard.lock.lock()));
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
