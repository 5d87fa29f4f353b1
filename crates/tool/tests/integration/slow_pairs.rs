//! A backend of pairs that answers after a while.
//!
//! Owns the wait, of all that a session has under way together, and counts it. All else is that of the backend in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
}

impl SlowBackend {
    /// How many exchanges there were.
    pub(crate) fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::SeqCst)
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
