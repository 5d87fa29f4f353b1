//! Backends of pairs that answer after a while, or not any more.
//!
//! Owns the wait, of all that a session has under way together, and counts it. All else is that of the backend in memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hedgerow::Result;
use hedgerow_row::backend::memory::MemoryBackend;
use hedgerow_row::backend::{Answer, Backend, Capabilities, Command, Session, Ticket};

/// How long an exchange takes.
const EXCHANGE: Duration = Duration::from_micros(100);

/// See the module. All clones count together.
#[derive(Clone, Default)]
pub(crate) struct SlowBackend {
    behind: MemoryBackend,
    exchanges: Arc<AtomicU64>,
    changes: Arc<AtomicU64>,
}

impl SlowBackend {
    /// How many exchanges there were.
    pub(crate) fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::SeqCst)
    }

    /// How many pairs were to be stored or deleted.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }
}

impl Backend for SlowBackend {
    fn capabilities(&self) -> &Capabilities {
        // As many as there are clients, so that what is asked together is one exchange.
        const DEEP: Capabilities = Capabilities {
            name: "slow",
            key_bytes_max: 1 << 10,
            value_bytes_max: 1 << 20,
            depth_max: 64,
            persists: false,
            batch_bytes_max: 0,
        };
        &DEEP
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let behind = self.behind.session()?;
        Ok(Box::new(SlowSession { of: self.clone(), behind, has_waited: false }))
    }

    fn close(&self) -> Result<()> {
        self.behind.close()
    }
}

struct SlowSession {
    of: SlowBackend,
    behind: Box<dyn Session>,
    has_waited: bool,
}

impl Session for SlowSession {
    fn start(&mut self, command: Command<'_>) -> Result<Ticket> {
        self.has_waited = false;
        let changes = matches!(command, Command::Put { .. } | Command::Delete { .. });
        self.of.changes.fetch_add(u64::from(changes), Ordering::SeqCst);
        self.behind.start(command)
    }

    fn poll(&mut self, answered: &mut Vec<(Ticket, Result<Answer>)>) {
        if self.has_waited {
            self.behind.poll(answered);
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        if !self.has_waited {
            std::thread::sleep(EXCHANGE);
            self.of.exchanges.fetch_add(1, Ordering::SeqCst);
            self.has_waited = true;
        }
        self.behind.wait(timeout)
    }
}

/// What a backend that is stuck does not answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stuck {
    Nothing,
    Reads,
    Changes,
}

/// A backend that stops answering, though sessions can be had and commands are taken. All clones are stuck together.
#[derive(Clone)]
pub(crate) struct StuckBackend {
    behind: MemoryBackend,
    stuck: Arc<Mutex<Stuck>>,
    unanswered: Arc<AtomicU64>,
}

impl StuckBackend {
    pub(crate) fn new() -> StuckBackend {
        let stuck = Arc::new(Mutex::new(Stuck::Nothing));
        StuckBackend { behind: MemoryBackend::default(), stuck, unanswered: Arc::default() }
    }

    pub(crate) fn set(&self, stuck: Stuck) {
        *self.stuck.lock().unwrap() = stuck;
    }

    fn stuck(&self) -> Stuck {
        *self.stuck.lock().unwrap()
    }

    /// How many commands will never be answered.
    pub(crate) fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::SeqCst)
    }
}

impl Backend for StuckBackend {
    fn capabilities(&self) -> &Capabilities {
        self.behind.capabilities()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(StuckSession { of: self.clone(), behind: self.behind.session()?, unanswered: 0 }))
    }

    fn close(&self) -> Result<()> {
        self.behind.close()
    }
}

struct StuckSession {
    of: StuckBackend,
    behind: Box<dyn Session>,
    unanswered: u64,
}

impl Session for StuckSession {
    fn start(&mut self, command: Command<'_>) -> Result<Ticket> {
        let is_stuck = match command {
            Command::Put { .. } | Command::Delete { .. } => self.of.stuck() == Stuck::Changes,
            _ => self.of.stuck() == Stuck::Reads,
        };
        if !is_stuck {
            return self.behind.start(command);
        }
        self.of.unanswered.fetch_add(1, Ordering::SeqCst);
        self.unanswered += 1;
        Ok(Ticket::new(u64::MAX - self.unanswered))
    }

    fn poll(&mut self, answered: &mut Vec<(Ticket, Result<Answer>)>) {
        self.behind.poll(answered);
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        if self.unanswered > 0 {
            std::thread::sleep(timeout.min(EXCHANGE * 10));
        }
        self.behind.wait(timeout)
    }
}
