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
    let mut asked = Asked::default();
    for (index, command) in commands.iter().enumerate() {
        loop {
            match session.start(command.clone()) {
                Ok(ticket) => {
                    asked.waiting.insert(ticket, index);
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Busy && !asked.waiting.is_empty() => {
                    asked.take(session);
                }
                Err(error) => {
                    asked.answers.push((index, Err(error)));
                    break;
                }
            }
        }
    }
    while !asked.waiting.is_empty() {
        asked.take(session);
    }
    asked.answers.sort_unstable_by_key(|(index, _)| *index);
    asked.answers.into_iter().map(|(_, answer)| answer).collect()
}

/// What the backend answers to one command.
pub(super) fn ask_one(session: &mut dyn Session, command: Command<'_>) -> Result<Answer> {
    ask(session, &[command]).pop().unwrap_or_else(|| Err(unexpected("nothing")))
}

/// The pair under a key.
pub(super) fn get(session: &mut dyn Session, key: &[u8]) -> Result<Option<Pair>> {
    got(ask_one(session, Command::Get { key })?)
}

/// The pair of an answer to a `Get`.
pub(super) fn got(answer: Answer) -> Result<Option<Pair>> {
    match answer {
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

#[derive(Default)]
struct Asked {
    waiting: HashMap<Ticket, usize>,
    answers: Vec<(usize, Result<Answer>)>,
    polled: Vec<(Ticket, Result<Answer>)>,
}

impl Asked {
    /// Takes what has come; waits if that is nothing.
    fn take(&mut self, session: &mut dyn Session) {
        session.poll(&mut self.polled);
        if self.polled.is_empty() {
            // It fails only with nothing under way, and then nothing will be answered.
            if let Err(error) = session.wait(WAIT) {
                let never = self.waiting.drain().map(|(_, index)| (index, Err(error.clone())));
                return self.answers.extend(never);
            }
            session.poll(&mut self.polled);
        }
        for (ticket, answer) in self.polled.drain(..) {
            if let Some(index) = self.waiting.remove(&ticket) {
                self.answers.push((index, answer));
            }
        }
    }
}
