//! Waiting for gc away from the event loop, so that a full store holds up only those who write.
//!
//! Owns: the thread that sleeps until there may be room. Promises: it wakes the loop once for every wait that was asked for. Must
//! not know clients.

use std::sync::Arc;
use std::time::Duration;

use hedgerow::Db;
use mio::Waker;

use super::worker::Worker;

/// How long one wait takes at most.
pub const ROUND: Duration = Duration::from_millis(10);
/// Waits in which nothing happened, after which the store counts as full.
pub const IDLE_ROUNDS_MAX: u32 = 100;

/// A wait that is asked for, and one that has ended.
#[derive(Debug, Default)]
struct Waits {
    is_wanted: bool,
    /// Whether gc did anything meanwhile.
    ended: Option<bool>,
}

/// The thread that waits.
pub struct Waiter(Worker<Waits>);

impl Waiter {
    /// Starts the thread; it wakes `waker` after each wait.
    pub fn start(db: Db, waker: Arc<Waker>) -> std::io::Result<Waiter> {
        let take = |waits: &mut Waits| std::mem::take(&mut waits.is_wanted).then_some(());
        let worker = Worker::start("wait", waker, take, move |(), answers| {
            let progress = db.wait_for_space(ROUND);
            answers.put(|waits| {
                waits.ended = Some(progress || waits.ended == Some(true));
                true
            })
        })?;
        Ok(Waiter(worker))
    }

    /// Asks for a wait.
    pub fn request(&self) {
        self.0.request(|waits| waits.is_wanted = true);
    }

    /// Whether a wait ended since the last call, and then whether gc did anything meanwhile.
    pub fn ended(&self) -> Option<bool> {
        self.0.with(|waits| waits.ended.take())
    }
}
