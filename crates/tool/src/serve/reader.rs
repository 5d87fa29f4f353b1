//! Waiting for rows that are not in memory away from the event loop, so that one row on the disk holds up only those who want it.
//!
//! Owns: the thread that has them brought. Promises: what several clients lack is asked for at once, each client goes on as soon as its own is
//! there, and the loop is woken for it. Must not know clients: only their numbers.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use hedgerow::Missing;
use mio::Waker;

/// A client: the loop's number for its connection, and the one that no other ever has.
pub type Client = (usize, u64);

/// What the thread and the loop share.
#[derive(Default)]
struct Shared {
    wanted: Vec<(Client, Missing)>,
    brought: Vec<Client>,
    stopping: bool,
}

type Cell = Arc<(Mutex<Shared>, Condvar)>;

/// The thread that reads.
pub struct Reader {
    shared: Cell,
    thread: Option<JoinHandle<()>>,
}

fn lock(cell: &Cell) -> std::sync::MutexGuard<'_, Shared> {
    cell.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reader {
    /// Starts the thread; it wakes `waker` when something was brought.
    pub fn start(waker: Arc<Waker>) -> std::io::Result<Reader> {
        let shared: Cell = Arc::default();
        let cell = shared.clone();
        let thread = std::thread::Builder::new().name("read".into()).spawn(move || run(&cell, &waker))?;
        Ok(Reader { shared, thread: Some(thread) })
    }

    /// Has what a client lacks brought.
    pub fn request(&self, client: Client, missing: Missing) {
        // By the loop, which asks for one thing after the other, rather than when the thread comes to it: it may be waiting for others.
        missing.ask();
        lock(&self.shared).wanted.push((client, missing));
        self.shared.1.notify_one();
    }

    /// The clients for whom it was brought since the last call.
    pub fn brought(&self) -> Vec<Client> {
        std::mem::take(&mut lock(&self.shared).brought)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        lock(&self.shared).stopping = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already; there is nothing to add here.
            drop(thread.join());
        }
    }
}

fn run(cell: &Cell, waker: &Waker) {
    loop {
        let wanted = {
            let mut shared = lock(cell);
            while shared.wanted.is_empty() && !shared.stopping {
                shared = cell.1.wait(shared).unwrap_or_else(PoisonError::into_inner);
            }
            if shared.stopping {
                return;
            }
            std::mem::take(&mut shared.wanted)
        };
        for (client, missing) in wanted {
            missing.bring();
            let mut shared = lock(cell);
            shared.brought.push(client);
            let is_first = shared.brought.len() == 1;
            drop(shared);
            if is_first && waker.wake().is_err() {
                return;
            }
        }
    }
}
