//! A backend of pairs of which some commands go wrong.
//!
//! Owns which do, by their number, and what then becomes of them. Promises that all others are done by the backend behind it. Must not know what they are
//! for.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hedgerow::backend::{Answer, Backend, Capabilities, Command, Expect, Session, Ticket};
use hedgerow::{Error, ErrorKind, Result};

/// What becomes of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendFault {
    /// It is not done, and is answered with `Unavailable`.
    Gone,
    /// It is not done, and nobody knows: `Indeterminate`.
    Lost,
    /// It is done, and nobody knows: `Indeterminate`.
    AnswerLost,
    /// It is not done, and is told that somebody came first, if it has a condition; else it is `Gone`.
    Conflict,
}

impl BackendFault {
    /// All of them.
    pub const ALL: [BackendFault; 4] =
        [BackendFault::Gone, BackendFault::Lost, BackendFault::AnswerLost, BackendFault::Conflict];

    fn error(self, command: &Command<'_>) -> Error {
        let has_condition = match command {
            Command::Put { expect, .. } | Command::Delete { expect, .. } => *expect != Expect::Any,
            Command::Batch { changes } => changes.iter().any(|change| change.expect != Expect::Any),
            _ => false,
        };
        let kind = match self {
            BackendFault::Lost | BackendFault::AnswerLost => ErrorKind::Indeterminate,
            BackendFault::Conflict if has_condition => ErrorKind::Conflict,
            BackendFault::Gone | BackendFault::Conflict => ErrorKind::Unavailable,
        };
        Error::new(kind, "it went wrong, as the test wants it")
    }
}

type Decide = dyn Fn(u64) -> Option<BackendFault> + Send + Sync;

/// A backend of pairs of which some commands go wrong, in front of one of which none do. All clones count together.
#[derive(Clone)]
pub struct FailingBackend {
    behind: Arc<dyn Backend>,
    commands: Arc<AtomicU64>,
    decide: Arc<Decide>,
}

impl FailingBackend {
    /// `decide` is given the number of each command, from 0.
    pub fn new(
        behind: Arc<dyn Backend>,
        decide: impl Fn(u64) -> Option<BackendFault> + Send + Sync + 'static,
    ) -> FailingBackend {
        FailingBackend { behind, commands: Arc::default(), decide: Arc::new(decide) }
    }

    /// How many commands there were.
    pub fn commands(&self) -> u64 {
        self.commands.load(Ordering::SeqCst)
    }
}

impl Backend for FailingBackend {
    fn capabilities(&self) -> &Capabilities {
        self.behind.capabilities()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let behind = self.behind.session()?;
        let (of, failed, lost) = (self.clone(), Vec::new(), HashSet::new());
        Ok(Box::new(FailingSession { of, behind, failed, lost, tickets: u64::MAX }))
    }

    fn close(&self) -> Result<()> {
        self.behind.close()
    }
}

struct FailingSession {
    of: FailingBackend,
    behind: Box<dyn Session>,
    /// Answers of commands that were not done.
    failed: Vec<(Ticket, Result<Answer>)>,
    /// Commands whose answers nobody gets.
    lost: HashSet<Ticket>,
    /// Given from the top down: the session behind counts upwards.
    tickets: u64,
}

impl Session for FailingSession {
    fn start(&mut self, command: Command<'_>) -> Result<Ticket> {
        let number = self.of.commands.fetch_add(1, Ordering::SeqCst);
        match (self.of.decide)(number) {
            None => self.behind.start(command),
            Some(BackendFault::AnswerLost) => {
                let ticket = self.behind.start(command)?;
                self.lost.insert(ticket);
                Ok(ticket)
            }
            Some(fault) => {
                self.tickets -= 1;
                let ticket = Ticket::new(self.tickets);
                self.failed.push((ticket, Err(fault.error(&command))));
                Ok(ticket)
            }
        }
    }

    fn poll(&mut self, answered: &mut Vec<(Ticket, Result<Answer>)>) {
        let from = answered.len();
        self.behind.poll(answered);
        for (ticket, answer) in &mut answered[from..] {
            if self.lost.remove(ticket) {
                *answer = Err(BackendFault::AnswerLost.error(&Command::Persist));
            }
        }
        answered.append(&mut self.failed);
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        if self.failed.is_empty() { self.behind.wait(timeout) } else { Ok(()) }
    }
}
