//! What a queue pair and a device's driver share: two rings a queue, and a doorbell.
//!
//! Owns [`QueueRings`] and [`Doorbell`]. Promises that what is pushed to a ring is taken from it once, by the other side, in its order; that neither side misses that there is something: a push comes before its
//! notice, and whoever is about to sleep looks first, under the same lock; and that a queue that is closed wakes all who wait. Must not know commands' meaning, nor who drives the device.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use hedgerow_device::EventFd;

use super::locks::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use crate::code::{KvError, Result};
use crate::command::{KvAnswer, KvCommand};

/// A command that is complete: its slot, what came of it, and its buffer.
pub(super) type RingCompletion = (u32, Result<KvAnswer>, Vec<u8>);

/// The locked part of [`QueueRings`].
#[derive(Debug)]
pub(super) struct RingsState {
    pub(super) submitted: VecDeque<(u32, KvCommand)>,
    pub(super) complete: VecDeque<RingCompletion>,
    /// A task that waits for a completion.
    pub(super) waker: Option<Waker>,
    /// Readable while there are completions, once somebody asked for it.
    pub(super) event: Option<Arc<EventFd>>,
    /// The driver ends when what was submitted is done: no more.
    pub(super) is_refusing: bool,
    /// Nobody drives the device any more.
    pub(super) closed: Option<KvError>,
    /// The queue pair is gone: nobody takes completions.
    pub(super) is_abandoned: bool,
}

/// The rings of one queue. Each holds as many as the queue is deep: the pair gives no more.
#[derive(Debug)]
pub(super) struct QueueRings {
    state: Mutex<RingsState>,
    arrived: Condvar,
}

impl QueueRings {
    pub(super) fn new(depth: usize) -> QueueRings {
        let state = RingsState {
            submitted: VecDeque::with_capacity(depth),
            complete: VecDeque::with_capacity(depth),
            waker: None,
            event: None,
            is_refusing: false,
            closed: None,
            is_abandoned: false,
        };
        QueueRings { state: Mutex::new(state), arrived: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RingsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a notice, or so long.
    pub(super) fn wait<'a>(
        &self,
        state: MutexGuard<'a, RingsState>,
        timeout: Duration,
    ) -> MutexGuard<'a, RingsState> {
        let waited = self.arrived.wait_timeout(state, timeout);
        waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state)
    }

    /// Tells whoever waits that there are completions, or that the queue is closed.
    pub(super) fn tell(&self, mut state: MutexGuard<'_, RingsState>) {
        let (waker, event) = (state.waker.take(), state.event.clone());
        drop(state);
        self.arrived.notify_all();
        if let Some(event) = event {
            event.notify();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// No command of this queue is taken any more, and those under way have no answer but this.
    pub(super) fn close(&self, error: &KvError) {
        let mut state = self.lock();
        state.closed.get_or_insert_with(|| error.clone());
        state.submitted.clear();
        self.tell(state);
    }
}

/// The locked part of [`Doorbell`].
#[derive(Debug, Default)]
struct DoorbellState {
    is_rung: bool,
    is_stopping: bool,
    /// Queues that the driver does not have yet.
    opened: Vec<Arc<QueueRings>>,
    /// Why there is no driver any more.
    closed: Option<KvError>,
}

/// How queue pairs wake a driver.
#[derive(Debug)]
pub(super) struct Doorbell {
    state: Mutex<DoorbellState>,
    rung: Condvar,
}

impl Doorbell {
    pub(super) fn new() -> Doorbell {
        Doorbell { state: Mutex::new(DoorbellState::default()), rung: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, DoorbellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is something to do.
    pub(super) fn ring(&self) {
        let mut state = self.lock();
        if !state.is_rung {
            state.is_rung = true;
            drop(state);
            self.rung.notify_all();
        }
    }

    /// Has the driver take no more commands, and end when what was submitted is done.
    pub(super) fn stop(&self) {
        self.lock().is_stopping = true;
        self.rung.notify_all();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Gives a queue to the driver; refused where there is none any more, or soon.
    pub(super) fn open(&self, rings: Arc<QueueRings>) -> Result<()> {
        let mut state = self.lock();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        if state.is_stopping {
            return Err(KvError::Closed { why: "its driver is ending".into() });
        }
        state.opened.push(rings);
        Ok(())
    }

    /// The queues that were opened since.
    pub(super) fn take_opened(&self) -> Vec<Arc<QueueRings>> {
        std::mem::take(&mut self.lock().opened)
    }

    /// There is no driver from now on. The queues that it never had.
    pub(super) fn close(&self, error: &KvError) -> Vec<Arc<QueueRings>> {
        let mut state = self.lock();
        state.closed.get_or_insert_with(|| error.clone());
        std::mem::take(&mut state.opened)
    }

    /// Forgets what was rung for: before the driver looks what there is.
    pub(super) fn hush(&self) {
        self.lock().is_rung = false;
    }

    /// Sleeps until it is rung, or has to stop; not at all if it was rung since it was hushed.
    pub(super) fn sleep(&self) {
        let mut state = self.lock();
        while !state.is_rung && !state.is_stopping {
            state = self.rung.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
