//! Waiting for rows that are not in memory away from the event loop, so that one row on the disk holds up only those who want it.
//!
//! Owns: the thread that has them brought. Promises: what several clients lack is asked for at once, each client goes on as soon as its own is
//! there, and the loop is woken for it. Must not know clients: only their numbers.

use std::sync::Arc;

use hedgerow::Missing;
use mio::Waker;

use super::worker::Worker;

/// A client: the loop's number for its connection, and the one that no other ever has.
pub type Client = (usize, u64);

/// Who lacks what, and for whom it was brought.
#[derive(Default)]
struct Fetches {
    wanted: Vec<(Client, Missing)>,
    brought: Vec<(Client, Missing)>,
}

/// The thread that reads.
pub struct Reader(Worker<Fetches>);

impl Reader {
    /// Starts the thread; it wakes `waker` when something was brought.
    pub fn start(waker: Arc<Waker>) -> std::io::Result<Reader> {
        let take =
            |fetches: &mut Fetches| (!fetches.wanted.is_empty()).then(|| std::mem::take(&mut fetches.wanted));
        let worker = Worker::start("read", waker, take, |wanted, answers| {
            for (client, mut missing) in wanted {
                missing.bring();
                answers.put(|fetches| {
                    fetches.brought.push((client, missing));
                    fetches.brought.len() == 1
                })?;
            }
            Ok(())
        })?;
        Ok(Reader(worker))
    }

    /// Has what a client lacks brought.
    pub fn request(&self, client: Client, missing: Missing) {
        // By the loop, which asks for one thing after the other, rather than when the thread comes to it: it may be waiting for others.
        missing.ask();
        self.0.request(|fetches| fetches.wanted.push((client, missing)));
    }

    /// What was brought since the last call, and for whom: to be held until it is used.
    pub fn brought(&self) -> Vec<(Client, Missing)> {
        self.0.with(|fetches| std::mem::take(&mut fetches.brought))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Nobody is left to go on with what has not been begun.
        self.0.with(|fetches| fetches.wanted.clear());
    }
}
