//! Syncs away from the event loop, so that a slow disk holds up only those who wait for it.
//!
//! Owns: the thread that calls `persist`, and the numbering of requests. Promises: [`Persister::done`] reaches a number only after a sync that
//! began after that number was given: so one sync serves all clients that wrote while the one before was under way (group commit). Once a
//! sync has failed it says so to every request that was not done, and to every later one.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use hedgerow::{Db, Error};
use mio::Waker;

use super::failure::Failure;

/// What the thread and the loop share.
#[derive(Debug, Default)]
struct Shared {
    requested: u64,
    /// Requests that were told how they ended.
    answered: u64,
    /// Some request that is not done asks for the medium to say what is durable, too (`SAVE`).
    checkpoint: bool,
    done: u64,
    failure: Option<Failure>,
    stopping: bool,
}

type Cell = Arc<(Mutex<Shared>, Condvar)>;

/// The sync thread.
pub struct Persister {
    shared: Cell,
    thread: Option<JoinHandle<()>>,
}

fn lock(cell: &Cell) -> std::sync::MutexGuard<'_, Shared> {
    cell.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Persister {
    /// Starts the thread; it wakes `waker` after each sync.
    pub fn start(db: Db, waker: Arc<Waker>) -> std::io::Result<Persister> {
        let shared: Cell = Arc::default();
        let cell = shared.clone();
        let thread = std::thread::Builder::new().name("persist".into()).spawn(move || {
            run(&cell, &waker, |checkpoint| {
                let synced = if checkpoint { db.persist() } else { db.sync() };
                synced.map_err(|error| why(&db, &error))
            })
        })?;
        Ok(Persister { shared, thread: Some(thread) })
    }

    /// Asks for a sync of everything written so far, and with `checkpoint` for what [`Db::persist`] does besides; gives its number.
    pub fn request(&self, checkpoint: bool) -> u64 {
        let mut shared = lock(&self.shared);
        shared.checkpoint |= checkpoint;
        // While a sync runs, all requests ask for the one after it.
        shared.requested += 1;
        self.shared.1.notify_one();
        shared.requested
    }

    /// The last request that is durable, and why no further one will be, if a sync failed.
    pub fn done(&self) -> (u64, Option<Failure>) {
        let shared = lock(&self.shared);
        (shared.done, shared.failure.clone())
    }

    /// Stops the thread once it has done what was asked of it.
    pub fn stop(&mut self) {
        lock(&self.shared).stopping = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already; there is nothing to add here.
            drop(thread.join());
        }
    }
}

impl Drop for Persister {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What to tell those who waited for a sync that failed, or that was refused because an earlier one had.
fn why(db: &Db, error: &Error) -> Failure {
    let failure = db.sync_failure();
    Failure::failed_sync(failure.as_ref().map_or(error.message(), |failure| &failure.message))
}

fn run(cell: &Cell, waker: &Waker, mut persist: impl FnMut(bool) -> Result<(), Failure>) {
    loop {
        let (target, checkpoint) = {
            let mut shared = lock(cell);
            while shared.requested == shared.answered && !shared.stopping {
                shared = cell.1.wait(shared).unwrap_or_else(PoisonError::into_inner);
            }
            if shared.requested == shared.answered {
                return;
            }
            (shared.requested, std::mem::take(&mut shared.checkpoint))
        };
        let outcome = persist(checkpoint);
        let mut shared = lock(cell);
        shared.answered = target;
        match outcome {
            Ok(()) if shared.failure.is_none() => shared.done = target,
            Ok(()) => {}
            // The first one: the store refuses every sync that follows.
            Err(failure) => _ = shared.failure.get_or_insert(failure),
        }
        drop(shared);
        if waker.wake().is_err() {
            return;
        }
    }
}
