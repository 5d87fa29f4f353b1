//! Syncs away from the event loop, so that a slow disk holds up only those who wait for it.
//!
//! Owns: the thread that calls `persist`, and the numbering of requests. Promises: [`Persister::done`] reaches a number only after a sync that
//! began after that number was given: so one sync serves all clients that wrote while the one before was under way (group commit). Once a
//! sync has failed it says so to every request that was not done, and to every later one.

use std::sync::Arc;

use hedgerow::{Db, Error};
use mio::Waker;

use super::failure::Failure;
use super::worker::Worker;

/// The syncs that are asked for, and those that have ended.
#[derive(Debug, Default)]
struct Syncs {
    requested: u64,
    /// Requests that were told how they ended.
    answered: u64,
    /// Some request that is not done asks for the medium to say what is durable, too (`SAVE`).
    checkpoint: bool,
    done: u64,
    failure: Option<Failure>,
}

impl Syncs {
    /// One sync for all requests that were not answered: the last of them, and whether one is for a checkpoint.
    fn take(&mut self) -> Option<(u64, bool)> {
        let is_wanted = self.requested != self.answered;
        is_wanted.then(|| (self.requested, std::mem::take(&mut self.checkpoint)))
    }

    fn answer(&mut self, target: u64, outcome: Result<(), Failure>) {
        self.answered = target;
        match outcome {
            Ok(()) if self.failure.is_none() => self.done = target,
            Ok(()) => {}
            // The first one: the store refuses every sync that follows.
            Err(failure) => _ = self.failure.get_or_insert(failure),
        }
    }
}

/// The sync thread.
pub struct Persister(Worker<Syncs>);

impl Persister {
    /// Starts the thread; it wakes `waker` after each sync.
    pub fn start(db: Db, waker: Arc<Waker>) -> std::io::Result<Persister> {
        let worker = Worker::start("persist", waker, Syncs::take, move |(target, checkpoint), answers| {
            let synced = if checkpoint { db.persist() } else { db.sync() };
            let outcome = synced.map_err(|error| why(&db, &error));
            answers.put(|syncs| {
                syncs.answer(target, outcome);
                true
            })
        })?;
        Ok(Persister(worker))
    }

    /// Asks for a sync of everything written so far, and with `checkpoint` for what [`Db::persist`] does besides; gives its number.
    pub fn request(&self, checkpoint: bool) -> u64 {
        self.0.request(|syncs| {
            syncs.checkpoint |= checkpoint;
            // While a sync runs, all requests ask for the one after it.
            syncs.requested += 1;
            syncs.requested
        })
    }

    /// The last request that is durable, and why no further one will be, if a sync failed.
    pub fn done(&self) -> (u64, Option<Failure>) {
        self.0.with(|syncs| (syncs.done, syncs.failure.clone()))
    }

    /// Stops the thread once it has done what was asked of it.
    pub fn stop(&mut self) {
        self.0.stop();
    }
}

/// What to tell those who waited for a sync that failed, or that was refused because the store had been closed for writing.
fn why(db: &Db, error: &Error) -> Failure {
    let failure = db.write_failure();
    Failure::writes_refused(failure.as_ref().map_or(error.message(), |failure| &failure.message))
}
