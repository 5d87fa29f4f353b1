//! Syncs away from the event loop, so that a slow disk holds up only those who wait for it.
//!
//! Owns: the thread that makes durable what was written, and the numbering of requests. Promises: [`SyncsEnded::done`] reaches a number only after a sync that
//! began after that number was given: so one sync serves all clients that wrote while the one before was under way (group commit). A
//! sync that fails says so to every request that was not done; of a tiered store to every later one, too, which refuses all of them; of a store of pairs to those before it alone: devices may be there again for the next one.

use std::sync::Arc;

use hedgerow::{Db, Error};
use hedgerow_row::pairs::PairDb;
use mio::Waker;

use super::failure::Failure;
use super::limits;
use super::worker::Worker;

/// The syncs that are asked for, and those that have ended.
#[derive(Debug, Default)]
struct Syncs {
    requested: u64,
    /// Requests that were told how they ended.
    answered: u64,
    /// Some request that is not done asks for the medium to say what is durable, too (`SAVE`).
    checkpoint: bool,
    ended: SyncsEnded,
}

/// How requests ended.
#[derive(Debug, Default, Clone)]
pub struct SyncsEnded {
    /// All up to this one are durable.
    pub done: u64,
    /// Why those up to this one that are not done are refused.
    failure: Option<(u64, Failure)>,
}

impl SyncsEnded {
    /// Why this request is refused, if it is.
    pub fn refused(&self, request: u64) -> Option<&Failure> {
        let (last, why) = self.failure.as_ref()?;
        (request > self.done && request <= *last).then_some(why)
    }
}

/// How a sync ended.
enum SyncOutcome {
    Durable,
    Failed(Failure),
    /// No later one will succeed.
    FailedForEver(Failure),
}

impl Syncs {
    /// One sync for all requests that were not answered: the last of them, and whether one is for a checkpoint.
    fn take(&mut self) -> Option<(u64, bool)> {
        let is_wanted = self.requested != self.answered;
        is_wanted.then(|| (self.requested, std::mem::take(&mut self.checkpoint)))
    }

    fn answer(&mut self, target: u64, outcome: SyncOutcome) {
        self.answered = target;
        // The first one counts: the store refuses every sync that follows.
        if matches!(self.ended.failure, Some((u64::MAX, _))) {
            return;
        }
        match outcome {
            SyncOutcome::Durable => self.ended.done = target,
            SyncOutcome::Failed(why) => self.ended.failure = Some((target, why)),
            SyncOutcome::FailedForEver(why) => self.ended.failure = Some((u64::MAX, why)),
        }
    }
}

/// The sync thread.
pub struct Persister(Worker<Syncs>);

impl Persister {
    /// Starts the thread over a tiered store; it wakes `waker` after each sync.
    pub fn start(db: Db, waker: Arc<Waker>) -> std::io::Result<Persister> {
        Persister::start_by(waker, move |checkpoint| {
            let synced = if checkpoint { db.persist() } else { db.sync() };
            synced
                .map_or_else(|error| SyncOutcome::FailedForEver(why(&db, &error)), |()| SyncOutcome::Durable)
        })
    }

    /// The same over a store of pairs, which has to be one that persists.
    pub fn start_over_pairs(db: PairDb, waker: Arc<Waker>) -> std::io::Result<Persister> {
        Persister::start_by(waker, move |_| {
            db.persist().map_or_else(|error| SyncOutcome::Failed(error.into()), |()| SyncOutcome::Durable)
        })
    }

    fn start_by(
        waker: Arc<Waker>,
        mut sync: impl FnMut(bool) -> SyncOutcome + Send + 'static,
    ) -> std::io::Result<Persister> {
        let worker = Worker::start("persist", waker, Syncs::take, move |(target, checkpoint), answers| {
            let outcome = sync(checkpoint);
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

    /// How requests have ended.
    pub fn ended(&self) -> SyncsEnded {
        self.0.with(|syncs| syncs.ended.clone())
    }

    /// Stops the thread once it has done what was asked of it.
    pub fn stop(&mut self) {
        self.0.stop();
    }

    /// The same, but not later than [`limits::STORE_PATIENCE`] from now.
    pub fn stop_in_time(&mut self) {
        self.0.stop_within(limits::STORE_PATIENCE);
    }
}

/// What to tell those who waited for a sync that failed, or that was refused because the store had been closed for writing.
fn why(db: &Db, error: &Error) -> Failure {
    let failure = db.write_failure();
    Failure::writes_refused(failure.as_ref().map_or(error.message(), |failure| &failure.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: Failure = Failure::text("ERR no");

    #[test]
    fn a_failure_is_told_to_those_before_it_or_to_all() {
        let mut syncs = Syncs::default();
        syncs.answer(2, SyncOutcome::Failed(WHY));
        let refused = |syncs: &Syncs| (1..=5).map(|n| syncs.ended.refused(n).is_some()).collect::<Vec<_>>();
        assert_eq!(refused(&syncs), [true, true, false, false, false]);
        // What was refused, and nobody has told yet, is durable with the next.
        syncs.answer(3, SyncOutcome::Durable);
        assert_eq!((syncs.ended.done, refused(&syncs)), (3, vec![false; 5]));
        syncs.answer(4, SyncOutcome::FailedForEver(WHY));
        syncs.answer(5, SyncOutcome::Durable);
        assert_eq!((syncs.ended.done, refused(&syncs)), (3, vec![false, false, false, true, true]));
    }
}
