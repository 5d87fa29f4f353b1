//! A caller's way to the pool.
//!
//! Owns what a session has under way. Promises that what is wrong with a command by itself is said as it is started, that each is answered once, and that a wait ends when there is an answer, since the node answers everything in time.
//! Must not know how the pool keeps pairs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hedgerow_device::Clock;
use hedgerow_row::backend::{
    Answer, Capabilities, Command, Expect, GROUP_BYTES, Mark, Pair, PairCache, Session, Ticket, no_batches,
};
use hedgerow_row::{Error, ErrorKind, Result};

use super::outcome::refused;
use super::progress::{Progress, WalkPlace};
use super::{CAPABILITIES, PoolShared, closed};
use crate::client::{Condition, Outcome, Request};
use crate::compute_node::{AnswerInbox, CallEnd};
use crate::object::Generation;

/// A wait looks up so often.
const WAIT_STEP: Duration = Duration::from_secs(1);

/// A session; for one thread at a time.
pub(super) struct PoolSession {
    shared: Arc<PoolShared>,
    inbox: Arc<AnswerInbox>,
    clock: Clock,
    /// Commands whose answers have not come, by ticket: the tag of all their calls.
    under_way: BTreeMap<u64, StartedCommand>,
    /// Answers that nobody has taken.
    answered: Vec<(Ticket, Result<Answer>)>,
    came: Vec<(u64, CallEnd)>,
    tickets: u64,
}

enum StartedCommand {
    /// With its key.
    Get(Box<[u8]>),
    Change,
    Several(Progress),
}

/// A call of the pool, and what is remembered of its command.
type Begun = (Vec<u8>, Request, StartedCommand);

impl PoolSession {
    pub(super) fn new(shared: Arc<PoolShared>) -> PoolSession {
        PoolSession {
            shared,
            inbox: Arc::default(),
            clock: Clock::system(),
            under_way: BTreeMap::new(),
            answered: Vec::new(),
            came: Vec::new(),
            tickets: 0,
        }
    }

    /// Takes in what came, and goes on with what takes several calls.
    fn go_on(&mut self) {
        self.inbox.take(&mut self.came);
        for (tag, end) in std::mem::take(&mut self.came) {
            let Some(command) = self.under_way.get_mut(&tag) else { continue };
            let answer = match command {
                StartedCommand::Get(key) => answer_of(end, std::mem::take(key)),
                StartedCommand::Change => answer_of(end, Box::default()),
                StartedCommand::Several(progress) => {
                    let mut calls = Vec::new();
                    match progress.came(end, &mut calls) {
                        Some(answer) => answer,
                        None => {
                            for (key, request) in calls {
                                self.shared.node.ask(tag, key, request, &self.inbox);
                            }
                            continue;
                        }
                    }
                }
            };
            self.under_way.remove(&tag);
            self.answered.push((Ticket::new(tag), answer));
        }
    }
}

impl Session for PoolSession {
    fn start(&mut self, command: Command<'_>) -> Result<Ticket> {
        let cached = match command {
            Command::Get { key } => self.shared.get(key),
            _ => None,
        };
        let (key, request, started) = begun(command, &self.shared.capabilities)?;
        self.shared.check_open()?;
        let depth = CAPABILITIES.depth_max;
        if self.under_way.len() + self.answered.len() >= depth {
            let message = format!("{depth} commands are under way in this session, as many as may be");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        self.tickets += 1;
        if let Some(pair) = cached {
            self.answered.push((Ticket::new(self.tickets), Ok(Answer::Got(Some(pair)))));
            return Ok(Ticket::new(self.tickets));
        }
        self.under_way.insert(self.tickets, started);
        self.shared.node.ask(self.tickets, key, request, &self.inbox);
        Ok(Ticket::new(self.tickets))
    }

    fn poll(&mut self, answered: &mut Vec<(Ticket, Result<Answer>)>) {
        self.go_on();
        answered.append(&mut self.answered);
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        let began = self.clock.monotonic_ns();
        loop {
            self.go_on();
            if !self.answered.is_empty() {
                return Ok(());
            }
            if self.under_way.is_empty() {
                return self.shared.check_open();
            }
            let waited = Duration::from_nanos(self.clock.monotonic_ns().saturating_sub(began));
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Ok(());
            };
            self.inbox.wait(left.min(WAIT_STEP));
        }
    }
}

/// What the pool is asked first, if the command can be.
fn begun(command: Command<'_>, capabilities: &Capabilities) -> Result<Begun> {
    let change = |key: &[u8], request| Ok((checked_key(key)?, request, StartedCommand::Change));
    match command {
        Command::Get { key } => Ok((checked_key(key)?, Request::Get, StartedCommand::Get(Box::from(key)))),
        Command::Put { key, value, expect } => {
            let max = capabilities.value_bytes_max;
            if value.len() > max {
                let bytes = value.len();
                let message = format!("a value of {bytes} bytes; in a pool it has at most {max}");
                return Err(Error::invalid(message));
            }
            change(key, Request::Put(value.to_vec(), condition(expect)))
        }
        Command::Delete { key, expect } => change(key, Request::Delete(condition(expect))),
        Command::Batch { .. } => Err(no_batches()),
        Command::Walk { group, from, pairs } => {
            let place = WalkPlace::of(&from, group)?;
            several(Progress::walk(group, pairs.max(1)), place)
        }
        Command::Count { group } => several(Progress::count(group), WalkPlace::START),
        Command::Clear { group } => several(Progress::clear(group), WalkPlace::START),
        Command::Persist => {
            let message = "pairs in a pool cannot be made durable: they are in the memory of its nodes";
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

fn several(progress: Progress, from: WalkPlace) -> Result<Begun> {
    let (key, request) = progress.step(from);
    Ok((key, request, StartedCommand::Several(progress)))
}

fn checked_key(key: &[u8]) -> Result<Vec<u8>> {
    let max = CAPABILITIES.key_bytes_max;
    match key.len() {
        GROUP_BYTES.. if key.len() <= max => Ok(key.to_vec()),
        bytes => {
            let message = format!("a pair's key of {bytes} bytes; in a pool it has {GROUP_BYTES} to {max}");
            Err(Error::invalid(message))
        }
    }
}

fn condition(expect: Expect) -> Condition {
    match expect {
        Expect::Any => Condition::Any,
        Expect::Absent => Condition::Absent,
        Expect::Present => Condition::Present,
        Expect::Same(mark) => Condition::Same(Generation(mark.number())),
    }
}

/// Of a command that is one call.
fn answer_of(end: CallEnd, key: Box<[u8]>) -> Result<Answer> {
    match end.map_err(|_| closed())? {
        Outcome::Value(value, generation) => {
            Ok(Answer::Got(Some(Pair { key, value: value.into(), mark: Mark::new(generation.0) })))
        }
        Outcome::Absent => Ok(Answer::Got(None)),
        Outcome::Stored(generation) => Ok(Answer::Stored(Mark::new(generation.0))),
        Outcome::Deleted(was) => Ok(Answer::Deleted(was)),
        other => Err(refused(&other)),
    }
}
