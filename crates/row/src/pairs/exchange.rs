//! Commands of one session, together, and their answers, in order.
//!
//! Owns waiting for them. Promises that nothing of it is under way once it returns, whatever went wrong, so that the session can be used again.
//! Must not know what the commands are for.

use std::collections::HashMap;
use std::time::Duration;

use super::catalog::CATALOG_GROUP;
use crate::backend::{Answer, Command, Expect, Mark, Pair, Session, Ticket};
use crate::{Error, ErrorKind, Result};

/// How long a wait is at most, before the session is asked again.
const WAIT: Duration = Duration::from_secs(1);

/// Bytes that may be under way in one exchange if each value is as long as it can be: answers are as long as they are, and nobody knows before.
const UNDER_WAY_MAX: usize = 1 << 30;

/// How much may come with one exchange.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskRoom {
    /// Of a value, at most.
    pub(super) value_bytes_max: usize,
    /// After so many bytes have come, nothing more is got.
    pub(super) bytes: usize,
    /// Commands that are started all the same: so many of the first.
    pub(super) always: usize,
}

impl AskRoom {
    /// As much as comes.
    fn boundless() -> AskRoom {
        AskRoom { value_bytes_max: 0, bytes: usize::MAX, always: usize::MAX }
    }

    /// Bytes that may come if the command of this number is to be started.
    fn left(&self, index: usize) -> usize {
        if index < self.always { usize::MAX } else { self.bytes }
    }

    /// Bytes that the answer may have.
    fn of(&self, command: &Command<'_>) -> usize {
        match command {
            Command::Get { .. } => self.value_bytes_max,
            // The catalog's pairs are short.
            Command::Walk { group, .. } if *group == CATALOG_GROUP => 0,
            Command::Walk { pairs, .. } => self.value_bytes_max.saturating_mul(*pairs),
            _ => 0,
        }
    }
}

/// Rows of one step of a walk, so that they are not more under way than may be.
pub(super) fn rows_under_way(value_bytes_max: usize) -> usize {
    (UNDER_WAY_MAX / value_bytes_max.max(1)).max(1)
}

fn bytes_of(answer: &Result<Answer>) -> usize {
    match answer {
        Ok(Answer::Got(Some(pair))) => pair.value.len(),
        Ok(Answer::Walked(pairs, _)) => pairs.iter().map(|pair| pair.value.len()).sum(),
        _ => 0,
    }
}

/// What the backend answers to each of these commands, which are under way together, as many as may be.
pub(super) fn ask(session: &mut dyn Session, commands: &[Command<'_>]) -> Vec<Result<Answer>> {
    let answers = ask_within(session, commands, AskRoom::boundless()).into_iter();
    answers.map(|answer| answer.unwrap_or_else(|| Err(unexpected("nothing")))).collect()
}

/// [`ask`], as far as there is room; `None` for a command that was not started.
pub(super) fn ask_within(
    session: &mut dyn Session,
    commands: &[Command<'_>],
    room: AskRoom,
) -> Vec<Option<Result<Answer>>> {
    let mut asked = Asked::new(commands.len());
    for (index, command) in commands.iter().enumerate() {
        let bytes = room.of(command);
        if !asked.make_room(session, bytes, room.left(index)) {
            asked.is_left_out[index] = true;
            continue;
        }
        asked.bytes[index] = bytes;
        match asked.start(session, command) {
            // Of two commands that wait for one answer neither can be told.
            Ok(ticket) => {
                asked.under_way += bytes;
                if let Some(other) = asked.waiting.insert(ticket, index) {
                    asked.under_way -= asked.bytes[other];
                    asked.answers[other] = Some(Err(unexpected("a ticket of its own")));
                }
            }
            Err(error) => asked.answers[index] = Some(Err(error)),
        }
    }
    while !asked.waiting.is_empty() {
        asked.take(session);
    }
    let answers = asked.answers.into_iter().zip(asked.is_left_out);
    let answered = |(answer, is_left_out): (Option<Result<Answer>>, bool)| match is_left_out {
        true => None,
        false => Some(answer.unwrap_or_else(|| Err(unexpected("nothing")))),
    };
    answers.map(answered).collect()
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
    is_left_out: Vec<bool>,
    /// Bytes that each answer may have, and those of all that are under way.
    bytes: Vec<usize>,
    under_way: usize,
    /// Bytes that have come.
    came: usize,
    polled: Vec<(Ticket, Result<Answer>)>,
}

impl Asked {
    fn new(commands: usize) -> Asked {
        let answers = (0..commands).map(|_| None).collect();
        let (waiting, polled) = (HashMap::with_capacity(commands), Vec::new());
        let (is_left_out, bytes) = (vec![false; commands], vec![0; commands]);
        Asked { waiting, answers, is_left_out, bytes, under_way: 0, came: 0, polled }
    }

    /// Waits until a command whose answer may have so many bytes can be started; false if so many have come that it is not to be. Where one alone is longer than what is left it is
    /// started all the same: it may be short.
    fn make_room(&mut self, session: &mut dyn Session, bytes: usize, most: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        while !self.waiting.is_empty() {
            let left = UNDER_WAY_MAX.min(most.saturating_sub(self.came));
            if self.under_way.saturating_add(bytes) <= left {
                return true;
            }
            self.take(session);
        }
        self.came < most
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
            self.under_way = 0;
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
                self.under_way -= self.bytes[index];
                self.came = self.came.saturating_add(bytes_of(&answer));
                self.answers[index] = Some(answer);
            }
        }
        self.waiting.len() < waiting
    }
}
