//! Commands of one session, together, and their answers, in order.
//!
//! Owns waiting for them. Promises that nothing of it is under way once it returns, whatever went wrong, so that the session can be used again.
//! Must not know what the commands are for.

use std::collections::HashMap;
use std::time::Duration;

use crate::backend::{Answer, Command, Expect, Mark, Pair, Session, Ticket};
use crate::{Error, ErrorKind, Result};

/// How long a wait is at most, before the session is asked again.
const WAIT: Duration = Duration::from_secs(1);

/// What the backend answers to each of these commands, which are under way together, as many as may be.
pub(super) fn ask(session: &mut dyn Session, commands: &[Command<'_>]) -> Vec<Result<Answer>> {
    let mut asked = Asked::new(commands.len());
    for (index, command) in commands.iter().enumerate() {
        match asked.start(session, command) {
            // Of two commands that wait for one answer neither can be told.
            Ok(ticket) => {
                if let Some(other) = asked.waiting.insert(ticket, index) {
                    asked.answers[other] = Some(Err(unexpected("a ticket of its own")));
                }
            }
            Err(error) => asked.answers[index] = Some(Err(error)),
        }
    }
    while !asked.waiting.is_empty() {
        asked.take(session);
    }
    asked.answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unexpected("nothing")))).collect()
}

/// What the backend answers to one command.
pub(super) fn ask_one(session: &mut dyn Session, command: Command<'_>) -> Result<Answer> {
    ask(session, &[command]).pop().unwrap_or_else(|| Err(unexpected("nothing")))
}

/// The pair under a key.
pub(super) fn get(session: &mut dyn Session, key: &[u8]) -> Result<Option<Pair>> {
    match ask_one(session, Command::Get { key })? {
        Answer::Got(pair) => Ok(pair),
        _ => Err(unexpected("a pair")),
    }
}

/// Stores a pair, if what is there is what is expected; else `Conflict`.
pub(super) fn put(session: &mut dyn Session, key: &[u8], value: &[u8], expect: Expect) -> Result<Mark> {
    match ask_one(session, Command::Put { key, value, expect })? {
        Answer::Stored(mark) => Ok(mark),
        _ => Err(unexpected("a mark")),
    }
}

/// The error for a backend that does not answer what it was asked.
pub(super) fn unexpected(what: &str) -> Error {
    Error::new(ErrorKind::Io, format!("the backend answered something else than {what}"))
}

struct Asked {
    waiting: HashMap<Ticket, usize>,
    answers: Vec<Option<Result<Answer>>>,
    polled: Vec<(Ticket, Result<Answer>)>,
}

impl Asked {
    fn new(commands: usize) -> Asked {
        let answers = (0..commands).map(|_| None).collect();
        Asked { waiting: HashMap::with_capacity(commands), answers, polled: Vec::new() }
    }

    /// Starts a command, once fewer are under way, if need be.
    fn start(&mut self, session: &mut dyn Session, command: &Command<'_>) -> Result<Ticket> {
        loop {
            match session.start(command.clone()) {
                Err(error) if error.kind() == ErrorKind::Busy && !self.waiting.is_empty() => {
                    self.take(session)
                }
                other => return other,
            }
        }
    }

    /// Takes what has come; waits if that is nothing.
    fn take(&mut self, session: &mut dyn Session) {
        if self.poll(session) {
            return;
        }
        // It fails only with nothing under way, and then nothing will be answered.
        if let Err(error) = session.wait(WAIT) {
            for (_, index) in self.waiting.drain() {
                let message = format!("no answer came: {error}");
                self.answers[index] = Some(Err(Error::new(ErrorKind::Indeterminate, message)));
            }
        }
        self.poll(session);
    }

    /// Whether an answer came that was waited for.
    fn poll(&mut self, session: &mut dyn Session) -> bool {
        let waiting = self.waiting.len();
        session.poll(&mut self.polled);
        for (ticket, answer) in self.polled.drain(..) {
            if let Some(index) = self.waiting.remove(&ticket) {
                self.answers[index] = Some(answer);
            }
        }
        self.waiting.len() < waiting
    }
}
