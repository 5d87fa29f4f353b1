//! The background threads, and how often they look for work.
//!
//! Owns the threads of an open store, their sleep and its end, the idle backoff, the write throttle ([`throttle`]), and what those who find
//! work leave for those who do it. Promises that an idle store uses no processor to speak of, that a thread which is woken sees
//! what it was woken for, and that none outlives the store. Must not know what the threads do: whoever starts them says.

pub(crate) mod controller;
pub(crate) mod gc_state;
pub(crate) mod io_budget;
pub(crate) mod merge_queue;
pub(crate) mod reorder_queue;
pub(crate) mod throttle;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};
use crate::{Error, Result};

/// How long a background thread sleeps between two rounds: `busy` after one that found work, twice as long after each
/// that found none. An idle store uses no processor to speak of, and a busy one is looked after at once.
pub(crate) struct IdleBackoff {
    busy: Duration,
    next: Duration,
}

impl IdleBackoff {
    /// The longest sleep of a thread with nothing to do.
    const IDLE: Duration = Duration::from_millis(32);

    pub(crate) fn new(busy: Duration) -> IdleBackoff {
        IdleBackoff { busy, next: busy }
    }

    fn next_sleep(&mut self, worked: bool) -> Duration {
        self.next = if worked { self.busy } else { (self.next * 2).min(Self::IDLE) };
        self.next
    }
}

/// The name of a background thread, and what it does until the store is closed.
pub(crate) type Job<T> = (&'static str, fn(&T));

/// The background threads: started, woken and stopped.
#[derive(Default)]
pub(crate) struct Scheduler {
    stopped: Mutex<bool>,
    /// For those whose sleep work ends, and a stop.
    wake: Condvar,
    /// For those whose sleep a stop alone ends.
    stopping: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Scheduler {
    /// Starts a thread for each of the jobs of `shared`. If one cannot be started, those before it go on until [`Scheduler::stop`].
    pub(crate) fn start<T: Send + Sync + 'static>(&self, shared: &Arc<T>, jobs: &[Job<T>]) -> Result<()> {
        self.start_by(shared, jobs, hedgerow_device::spawn)
    }

    pub(crate) fn start_by<T: Send + Sync + 'static>(
        &self,
        shared: &Arc<T>,
        jobs: &[Job<T>],
        spawn: impl Fn(&str, Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>>,
    ) -> Result<()> {
        for &(name, run) in jobs {
            let mine = Arc::clone(shared);
            let thread = spawn(name, Box::new(move || run(&mine))).map_err(|error| {
                Error::io(format_args!("cannot start the background thread {name:?}"), error)
            })?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Stops and joins the threads.
    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.wake.notify_all();
        self.stopping.notify_all();
        let mine = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != mine {
                // A thread that panicked has said so already; there is nothing to add.
                drop(thread.join());
            }
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.stopped.lock()
    }

    /// Sleeps for `duration`, whoever is woken meanwhile, unless stopped; false once stopped.
    pub(crate) fn sleep(&self, duration: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.stopping.wait_for(&mut stopped, duration);
        }
        !*stopped
    }

    /// Sleeps for `duration` at most, until stopped or woken; false once stopped.
    pub(crate) fn sleep_or_wake(&self, duration: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.wake.wait_for(&mut stopped, duration);
        }
        !*stopped
    }

    /// Sleeps for as long as `backoff` says; false once stopped. What `worked` looks at and [`Scheduler::wake`] was called for
    /// after is never slept over.
    pub(crate) fn back_off(&self, backoff: &mut IdleBackoff, worked: impl FnOnce() -> bool) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            let duration = backoff.next_sleep(worked());
            self.wake.wait_for(&mut stopped, duration);
        }
        !*stopped
    }

    /// Ends the sleep of all who sleep until there is work.
    pub(crate) fn wake(&self) {
        let _stopped = self.stopped.lock();
        self.wake.notify_all();
    }
}

#[cfg(all(test, shuttle))]
mod shuttle;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_without_work_sleep_longer_and_longer() {
        let mut backoff = IdleBackoff::new(Duration::from_millis(2));
        let sleeps: Vec<u128> = [true, false, false, true, false, false, false, false, false]
            .map(|w| backoff.next_sleep(w).as_millis())
            .into();
        assert_eq!(sleeps, [2, 4, 8, 2, 4, 8, 16, 32, 32]);
    }

    #[test]
    fn a_sleep_can_be_ended() {
        let scheduler = Arc::new(Scheduler::default());
        let sleeping = Arc::clone(&scheduler);
        let start = std::time::Instant::now();
        let thread = std::thread::spawn(move || sleeping.sleep_or_wake(Duration::from_secs(3600)));
        while !thread.is_finished() {
            scheduler.wake();
            assert!(start.elapsed() < Duration::from_secs(600), "nobody woke");
        }
        assert!(thread.join().unwrap(), "woken, not stopped");
    }

    /// Who syncs at an interval, or tries again after a pause, does so no more often because others have work.
    #[test]
    fn work_for_others_ends_no_interval() {
        let scheduler = Arc::new(Scheduler::default());
        let sleeping = Arc::clone(&scheduler);
        let thread = std::thread::spawn(move || sleeping.sleep(Duration::from_secs(3600)));
        for _ in 0..200 {
            scheduler.wake();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!thread.is_finished(), "woken");
        scheduler.stop();
        assert!(!thread.join().unwrap(), "stopped");
    }
}
