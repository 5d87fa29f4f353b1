//! The seam for backends that keep pairs of a key and a value: key-value devices, memory of other machines, and for reference
//! [memory of this process](memory).
//!
//! Owns what such a backend is asked and what it answers. A row is one pair: [`pair_key`] is its key, a [stored
//! row](crate::stored_row) its value. The log of the tiered store is no such backend: it reads rows in place.
//!
//! Answers come after microseconds, and a backend is quick only with many commands under way: a session starts them and takes
//! their answers later, in any order. Commands that are under way together are concurrent, also those of one session on one key;
//! each that names a key is atomic. What a caller wants in order it starts after the answer to what went before. Traits are object-safe on purpose:
//! beside such a wait a virtual call is nothing.
//!
//! Must not know what a value says, nor who keeps it.

pub mod memory;

use std::collections::HashSet;
use std::time::Duration;

use crate::{Error, ErrorKind, Result};

/// Bytes of a group at the front of a key: the table's number.
pub const GROUP_BYTES: usize = 4;

/// The key of the pair that keeps the row with this key of this table.
pub fn pair_key(table: u32, key: &[u8]) -> Vec<u8> {
    [&table.to_be_bytes(), key].concat()
}

/// For backends: what is wrong with a batch by itself.
///
/// # Errors
/// `Invalid`: it comes to more than this, or has a key twice.
pub fn check_batch(changes: &[PairChange<'_>], bytes_max: usize) -> Result<()> {
    let bytes = batch_bytes(changes);
    if bytes > bytes_max {
        let message = format!("a batch of {bytes} bytes with its keys; here it has at most {bytes_max}");
        return Err(Error::invalid(message));
    }
    let mut keys = HashSet::with_capacity(changes.len());
    match changes.iter().all(|change| keys.insert(change.key)) {
        true => Ok(()),
        false => Err(Error::invalid("a batch changes each pair once, and a key is in this one twice")),
    }
}

/// For backends that have no batches.
pub fn no_batches() -> Error {
    Error::new(ErrorKind::Unsupported, "this store changes one pair at a time")
}

/// A backend that keeps pairs.
pub trait Backend: Send + Sync {
    /// What it can, and how much it takes: always the same.
    fn capabilities(&self) -> &Capabilities;

    /// A session, for one thread at a time.
    ///
    /// # Errors
    /// `Closed`.
    fn session(&self) -> Result<Box<dyn Session>>;

    /// Pairs that it has at once: none by default.
    fn cache(&self) -> Option<&dyn PairCache> {
        None
    }

    /// What it has counted since it began, by name, for people who look at a server: none by default.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Takes no more commands, from this session or another. Those under way happen, or are answered with `Closed`; their sessions take the
    /// answers as before.
    ///
    /// # Errors
    /// What it failed to make durable.
    fn close(&self) -> Result<()>;
}

/// Pairs that a backend has at once, for callers on any thread.
pub trait PairCache: Send + Sync {
    /// The pair under a key, as new as what [`Command::Get`] would answer, without waiting for anybody. `None` says nothing: it is to be asked for.
    fn get(&self, key: &[u8]) -> Option<Pair>;
}

/// What a backend can, and how much it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// What it is called in a URL.
    pub name: &'static str,
    /// Bytes in a pair's key: from those of a group to this.
    pub key_bytes_max: usize,
    /// Bytes in a pair's value: 0 to this.
    pub value_bytes_max: usize,
    /// Commands that a session may have under way.
    pub depth_max: usize,
    /// Whether [`Command::Persist`] makes anything durable; else it is `Unsupported`.
    pub persists: bool,
    /// How much one [`Command::Batch`] may come to, as [`batch_bytes`] counts; 0 where they are `Unsupported`.
    pub batch_bytes_max: usize,
}

/// Bytes that a change counts in a batch besides those of its key and its value.
pub const CHANGE_BYTES: usize = 32;

/// How much the changes of a batch come to.
pub fn batch_bytes(changes: &[PairChange<'_>]) -> usize {
    let of = |change: &PairChange<'_>| {
        CHANGE_BYTES + change.key.len() + change.becomes.value().map_or(0, <[u8]>::len)
    };
    changes.iter().map(of).sum()
}

/// One caller's way to a backend. What is under way as it is dropped happens or does not, and nobody is told.
pub trait Session: Send {
    /// Starts a command. What it borrows is free again when this returns.
    ///
    /// # Errors
    /// Only what is known at once; nothing was started then. `Invalid`: the key or the value is over a limit. `Unsupported`: no
    /// backend of this kind does it. `Busy`: so many commands are under way as may be; take answers first. `Closed`.
    fn start(&mut self, command: Command<'_>) -> Result<Ticket>;

    /// Appends the answers that have come to `answered`, each once, in any order. Never blocks.
    fn poll(&mut self, answered: &mut Vec<(Ticket, Result<Answer>)>);

    /// Blocks until `poll` has an answer, or nothing is under way, or this much time has passed.
    ///
    /// # Errors
    /// `Closed`, only with nothing under way: who waits for an answer gets it.
    fn wait(&mut self, timeout: Duration) -> Result<()>;
}

/// Which of a session's commands an answer is for. Never given twice by one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    /// For backends: one that their session has not given before.
    pub fn new(number: u64) -> Ticket {
        Ticket(number)
    }

    /// The number it was made of.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// What a backend is asked.
#[derive(Debug, Clone)]
pub enum Command<'a> {
    /// The pair under a key: [`Answer::Got`].
    Get {
        /// The pair's key.
        key: &'a [u8],
    },
    /// Stores a pair over whatever is there: [`Answer::Stored`].
    Put {
        /// The pair's key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// What must be there; else the answer is `Conflict`, and nothing was stored.
        expect: Expect,
    },
    /// Removes a pair: [`Answer::Deleted`].
    Delete {
        /// The pair's key.
        key: &'a [u8],
        /// What must be there; else the answer is `Conflict`, and nothing was removed.
        expect: Expect,
    },
    /// Several pairs change together, or none does: [`Answer::Batched`]. Nobody sees some of it: a pair of it as it is to be is never seen before another as it was. Each key is
    /// there once. After a crash it is as if it had happened or not, whatever the backend loses besides; it is durable as a [`Command::Put`] is.
    Batch {
        /// What is to become of each.
        changes: Vec<PairChange<'a>>,
    },
    /// Some pairs of a group, in any order: [`Answer::Walked`]. A pair that is there throughout a walk comes at least once.
    Walk {
        /// The table's number.
        group: u32,
        /// Where to go on.
        from: Cursor,
        /// At most so many pairs; 0 is as good as 1. An answer may have fewer, or none, and not be the last.
        pairs: usize,
    },
    /// About how many pairs a group has: [`Answer::Counted`]. Exact while nobody writes, and where one process keeps all.
    Count {
        /// The table's number.
        group: u32,
    },
    /// Removes all pairs of a group, one by one: [`Answer::Cleared`].
    Clear {
        /// The table's number.
        group: u32,
    },
    /// Makes durable what was answered before: [`Answer::Persisted`].
    Persist,
}

/// What is to become of one pair of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairChange<'a> {
    /// The pair's key.
    pub key: &'a [u8],
    /// What must be there; else the answer is `Conflict`, and nothing of the batch happened.
    pub expect: Expect,
    /// What is to be there.
    pub becomes: Becomes<'a>,
}

/// What a pair becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Becomes<'a> {
    /// It stays as it is.
    Unchanged,
    /// It has this value.
    Value(&'a [u8]),
    /// There is none.
    Nothing,
}

impl<'a> Becomes<'a> {
    /// The value that it has, if it gets one.
    pub fn value(self) -> Option<&'a [u8]> {
        match self {
            Becomes::Value(value) => Some(value),
            Becomes::Unchanged | Becomes::Nothing => None,
        }
    }
}

/// What must be under a key for a command to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Anything or nothing.
    Any,
    /// Nothing.
    Absent,
    /// Some pair.
    Present,
    /// The pair that had this mark, unchanged since.
    Same(Mark),
}

/// Tells a pair as it was seen from all that is ever stored under its key before or after, by the backend's own count: what a value says
/// of its version does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(u64);

impl Mark {
    /// For backends: a number that no pair under this key ever had, nor will have.
    pub fn new(number: u64) -> Mark {
        Mark(number)
    }

    /// The number it was made of.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Where a walk goes on: the backend's own business.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Cursor(Option<Box<[u8]>>);

impl Cursor {
    /// From the start of a group.
    pub const START: Cursor = Cursor(None);

    /// For backends: to go on at a place that they know by these bytes.
    pub fn at(place: Box<[u8]>) -> Cursor {
        Cursor(Some(place))
    }

    /// The bytes it was made of; `None` at the start.
    pub fn place(&self) -> Option<&[u8]> {
        self.0.as_deref()
    }
}

/// A pair as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// Its key.
    pub key: Box<[u8]>,
    /// Its value.
    pub value: Box<[u8]>,
    /// For [`Expect::Same`].
    pub mark: Mark,
}

/// What a backend answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The pair, if there is one.
    Got(Option<Pair>),
    /// It was stored, and has this mark.
    Stored(Mark),
    /// Whether there was one.
    Deleted(bool),
    /// All of it happened; of each change in its order the mark of what was stored, if something was.
    Batched(Vec<Option<Mark>>),
    /// Pairs, and where to go on; `None` at the end.
    Walked(Vec<Pair>, Option<Cursor>),
    /// So many.
    Counted(u64),
    /// None are left of those that were there.
    Cleared,
    /// It is durable.
    Persisted,
}
