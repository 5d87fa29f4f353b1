//! Waiting for gc away from the event loop, so that a full store holds up only those who write.
//!
//! Owns: the thread that sleeps until there may be room. Promises: it wakes the loop once for every wait that was asked for. Must
//! not know clients.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hedgerow::Db;
use mio::Waker;

/// How long one wait takes at most.
pub const ROUND: Duration = Duration::from_millis(10);
/// Waits in which nothing happened, after which the store counts as full.
pub const IDLE_ROUNDS_MAX: u32 = 100;

/// What the thread and the loop share.
#[derive(Debug, Default)]
struct Shared {
    is_wanted: bool,
    /// A wait that ended: whether gc did anything meanwhile.
    ended: Option<bool>,
    stopping: bool,
}

type Cell = Arc<(Mutex<Shared>, Condvar)>;

/// The thread that waits.
pub struct Waiter {
    shared: Cell,
    thread: Option<JoinHandle<()>>,
}

fn lock(cell: &Cell) -> std::sync::MutexGuard<'_, Shared> {
    cell.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiter {
    /// Starts the thread; it wakes `waker` after each wait.
    pub fn start(db: Db, waker: Arc<Waker>) -> std::io::Result<Waiter> {
        let shared: Cell = Arc::default();
        let cell = shared.clone();
        let thread = std::thread::Builder::new()
            .name("wait".into())
            .spawn(move || run(&cell, &waker, || db.wait_for_space(ROUND)))?;
        Ok(Waiter { shared, thread: Some(thread) })
    }

    /// Asks for a wait.
    pub fn request(&self) {
        lock(&self.shared).is_wanted = true;
        self.shared.1.notify_one();
    }

    /// Whether a wait ended since the last call, and then whether gc did anything meanwhile.
    pub fn ended(&self) -> Option<bool> {
        lock(&self.shared).ended.take()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        lock(&self.shared).stopping = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already; there is nothing to add here.
            drop(thread.join());
        }
    }
}

fn run(cell: &Cell, waker: &Waker, wait: impl Fn() -> bool) {
    loop {
        {
            let mut shared = lock(cell);
            while !shared.is_wanted && !shared.stopping {
                shared = cell.1.wait(shared).unwrap_or_else(PoisonError::into_inner);
            }
            if shared.stopping {
                return;
            }
            shared.is_wanted = false;
        }
        let progress = wait();
        let mut shared = lock(cell);
        shared.ended = Some(progress || shared.ended == Some(true));
        drop(shared);
        if waker.wake().is_err() {
            return;
        }
    }
}
