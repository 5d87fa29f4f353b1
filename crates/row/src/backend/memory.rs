//! Pairs in memory of this process: the reference that other backends are held against, and a store for tests.
//!
//! Owns a sorted map under one lock. Promises to be unhelpful where callers would soon rely on more than the seam says: a command
//! happens when its session polls, in an order that is drawn, and a poll need not bring all answers. Its walks are in the order of keys and its
//! counts exact, though, which callers may not rely on. Nothing survives the process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use hedgerow_device::Random;

use super::{
    Answer, Backend, Becomes, Capabilities, Command, Cursor, Expect, GROUP_BYTES, Mark, Pair, PairChange,
    Session, Ticket, check_batch, no_batches,
};
use crate::limits::{FIELDS_MAX, KEY_BYTES_MAX, ROW_BYTES_MAX};
use crate::sync::Mutex;
use crate::{Error, ErrorKind, Result};

const CAPABILITIES: Capabilities = Capabilities {
    name: "memory",
    key_bytes_max: GROUP_BYTES + KEY_BYTES_MAX,
    // A row's values, room for fixed fields that are null, and what is beside them in its body and before it.
    value_bytes_max: ROW_BYTES_MAX + FIELDS_MAX * 4096 + (1 << 20),
    depth_max: 64,
    persists: false,
    batch_bytes_max: 0,
};

/// Bytes in a batch at most.
const BATCH_BYTES_MAX: usize = 1 << 28;

const WITH_BATCHES: Capabilities = Capabilities { batch_bytes_max: BATCH_BYTES_MAX, ..CAPABILITIES };

/// Pairs in memory. All clones have the same ones. By default one pair changes at a time, as in a pool.
#[derive(Clone, Default)]
pub struct MemoryBackend {
    shared: Arc<Mutex<Pairs>>,
    has_batches: bool,
}

impl MemoryBackend {
    /// One of which several pairs may change at a time, as of key-value devices.
    pub fn with_batches() -> MemoryBackend {
        MemoryBackend { has_batches: true, ..MemoryBackend::default() }
    }
}

#[derive(Default)]
struct Pairs {
    pairs: BTreeMap<Box<[u8]>, Stored>,
    /// Of all pairs ever stored.
    stored: u64,
    /// Ever begun.
    sessions: u64,
    is_closed: bool,
}

/// What is under a key.
struct Stored {
    value: Box<[u8]>,
    mark: Mark,
}

impl Backend for MemoryBackend {
    fn capabilities(&self) -> &Capabilities {
        if self.has_batches { &WITH_BATCHES } else { &CAPABILITIES }
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let mut pairs = self.shared.lock();
        pairs.check_open()?;
        pairs.sessions += 1;
        let (random, shared) = (Random::from_seed(pairs.sessions), Arc::clone(&self.shared));
        let has_batches = self.has_batches;
        Ok(Box::new(MemorySession { shared, started: Vec::new(), random, tickets: 0, has_batches }))
    }

    fn close(&self) -> Result<()> {
        self.shared.lock().is_closed = true;
        Ok(())
    }
}

struct MemorySession {
    shared: Arc<Mutex<Pairs>>,
    started: Vec<(Ticket, OwnedCommand)>,
    /// What happens next.
    random: Random,
    tickets: u64,
    has_batches: bool,
}

/// A [`Command`] that borrows nothing.
enum OwnedCommand {
    Get(Box<[u8]>),
    Put(Box<[u8]>, Box<[u8]>, Expect),
    Delete(Box<[u8]>, Expect),
    Batch(Vec<OwnedChange>),
    Walk(u32, Cursor, usize),
    Count(u32),
    Clear(u32),
}

/// A [`PairChange`] that borrows nothing.
struct OwnedChange {
    key: Box<[u8]>,
    expect: Expect,
    becomes: OwnedBecomes,
}

enum OwnedBecomes {
    Unchanged,
    Value(Box<[u8]>),
    Nothing,
}

impl OwnedChange {
    fn of(change: PairChange<'_>) -> Result<OwnedChange> {
        let becomes = match change.becomes {
            Becomes::Unchanged => OwnedBecomes::Unchanged,
            Becomes::Value(value) => OwnedBecomes::Value(checked_value(value)?),
            Becomes::Nothing => OwnedBecomes::Nothing,
        };
        Ok(OwnedChange { key: checked_key(change.key)?, expect: change.expect, becomes })
    }
}

impl OwnedCommand {
    fn of(command: Command<'_>) -> Result<OwnedCommand> {
        Ok(match command {
            Command::Get { key } => OwnedCommand::Get(checked_key(key)?),
            Command::Put { key, value, expect } => {
                OwnedCommand::Put(checked_key(key)?, checked_value(value)?, expect)
            }
            Command::Delete { key, expect } => OwnedCommand::Delete(checked_key(key)?, expect),
            Command::Batch { changes } => {
                check_batch(&changes, BATCH_BYTES_MAX)?;
                OwnedCommand::Batch(changes.into_iter().map(OwnedChange::of).collect::<Result<_>>()?)
            }
            Command::Walk { group, from, pairs } => OwnedCommand::Walk(group, from, pairs.max(1)),
            Command::Count { group } => OwnedCommand::Count(group),
            Command::Clear { group } => OwnedCommand::Clear(group),
            Command::Persist => {
                let message = "pairs in memory cannot be made durable: they end with the process";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        })
    }
}

fn checked_value(value: &[u8]) -> Result<Box<[u8]>> {
    let (bytes, max) = (value.len(), CAPABILITIES.value_bytes_max);
    match bytes <= max {
        true => Ok(value.into()),
        false => Err(Error::invalid(format!("a value of {bytes} bytes; it has at most {max}"))),
    }
}

fn checked_key(key: &[u8]) -> Result<Box<[u8]>> {
    let max = CAPABILITIES.key_bytes_max;
    match key.len() {
        GROUP_BYTES.. if key.len() <= max => Ok(key.into()),
        bytes => Err(Error::invalid(format!("a pair's key of {bytes} bytes; it has {GROUP_BYTES} to {max}"))),
    }
}

impl Session for MemorySession {
    fn start(&mut self, command: Command<'_>) -> Result<Ticket> {
        if matches!(command, Command::Batch { .. }) && !self.has_batches {
            return Err(no_batches());
        }
        let command = OwnedCommand::of(command)?;
        self.shared.lock().check_open()?;
        if self.started.len() == CAPABILITIES.depth_max {
            let depth = CAPABILITIES.depth_max;
            let message = format!("{depth} commands are under way in this session, as many as may be");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        self.tickets += 1;
        let ticket = Ticket::new(self.tickets);
        self.started.push((ticket, command));
        Ok(ticket)
    }

    fn poll(&mut self, answered: &mut Vec<(Ticket, Result<Answer>)>) {
        let under_way = self.started.len() as u64;
        let left = self.random.below(under_way) as usize;
        while self.started.len() > left {
            let next = self.random.below(self.started.len() as u64) as usize;
            let (ticket, command) = self.started.swap_remove(next);
            // Let go of between two commands: other sessions come in between them.
            let answer = self.shared.lock().answer(command);
            answered.push((ticket, answer));
        }
    }

    fn wait(&mut self, _timeout: Duration) -> Result<()> {
        // What is under way is answered by the next poll, also once the backend is closed.
        if self.started.is_empty() { self.shared.lock().check_open() } else { Ok(()) }
    }
}

impl Pairs {
    fn check_open(&self) -> Result<()> {
        match self.is_closed {
            true => Err(Error::new(ErrorKind::Closed, "the backend was closed")),
            false => Ok(()),
        }
    }

    fn answer(&mut self, command: OwnedCommand) -> Result<Answer> {
        self.check_open()?;
        Ok(match command {
            OwnedCommand::Get(key) => {
                let found = self.pairs.get(&key);
                Answer::Got(found.map(|stored| Pair { key, value: stored.value.clone(), mark: stored.mark }))
            }
            OwnedCommand::Put(key, value, expect) => {
                self.check_expected(&key, expect)?;
                Answer::Stored(self.store(key, value))
            }
            OwnedCommand::Delete(key, expect) => {
                self.check_expected(&key, expect)?;
                Answer::Deleted(self.pairs.remove(&key).is_some())
            }
            OwnedCommand::Batch(changes) => {
                for change in &changes {
                    self.check_expected(&change.key, change.expect)?;
                }
                Answer::Batched(changes.into_iter().map(|change| self.change(change)).collect())
            }
            OwnedCommand::Walk(group, from, pairs) => self.walk(group, &from, pairs)?,
            OwnedCommand::Count(group) => Answer::Counted(self.of_group(group, None).count() as u64),
            OwnedCommand::Clear(group) => {
                let keys: Vec<Box<[u8]>> = self.of_group(group, None).map(|(key, _)| key.into()).collect();
                keys.iter().for_each(|key| drop(self.pairs.remove(key)));
                Answer::Cleared
            }
        })
    }

    fn store(&mut self, key: Box<[u8]>, value: Box<[u8]>) -> Mark {
        self.stored += 1;
        let mark = Mark::new(self.stored);
        self.pairs.insert(key, Stored { value, mark });
        mark
    }

    fn change(&mut self, change: OwnedChange) -> Option<Mark> {
        match change.becomes {
            OwnedBecomes::Unchanged => None,
            OwnedBecomes::Value(value) => Some(self.store(change.key, value)),
            OwnedBecomes::Nothing => {
                self.pairs.remove(&change.key);
                None
            }
        }
    }

    fn check_expected(&self, key: &[u8], expect: Expect) -> Result<()> {
        let is_expected = match (expect, self.pairs.get(key)) {
            (Expect::Any, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => true,
            (Expect::Same(seen), Some(stored)) => seen == stored.mark,
            (Expect::Absent, Some(_)) | (Expect::Present | Expect::Same(_), None) => false,
        };
        match is_expected {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Conflict, "what is under the key is not what was expected")),
        }
    }

    /// The pairs of a group, those after a key.
    fn of_group(&self, group: u32, after: Option<&[u8]>) -> impl Iterator<Item = (&[u8], &Stored)> {
        let prefix = group.to_be_bytes();
        let from = match after {
            Some(key) => Bound::Excluded(key),
            None => Bound::Included(&prefix[..]),
        };
        let found = self.pairs.range::<[u8], _>((from, Bound::Unbounded));
        found.take_while(move |(key, _)| key[..GROUP_BYTES] == prefix).map(|(key, stored)| (&**key, stored))
    }

    fn walk(&self, group: u32, from: &Cursor, pairs: usize) -> Result<Answer> {
        if from.place().is_some_and(|place| !place.starts_with(&group.to_be_bytes())) {
            return Err(Error::invalid("the cursor is of a walk of another group".to_owned()));
        }
        let mut rest = self.of_group(group, from.place());
        let owned = |(key, stored): (&[u8], &Stored)| {
            let (key, value) = (key.into(), stored.value.clone());
            Pair { key, value, mark: stored.mark }
        };
        let walked: Vec<Pair> = rest.by_ref().take(pairs).map(owned).collect();
        let last = rest.next().and(walked.last()).map(|pair| Cursor::at(pair.key.clone()));
        Ok(Answer::Walked(walked, last))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
