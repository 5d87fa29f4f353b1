//! What clients are asked in an exploration, and what they answered.
//!
//! Owns the history of one run. Promises that two runs in which the same calls ended before the same others began have the same history. Must not know how answers come about.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use hedgerow_sim::{Call, Effect, History, Precondition};

use super::run::{key_bytes, value_bytes};
use crate::client::{ClientAnswer, Condition, Outcome, Request};
use crate::fabric::NodeId;
use crate::object::Generation;

/// A condition, as a program has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum If {
    Any,
    Absent,
    Present,
    /// The version that was there before the programs began.
    Same,
}

/// A call, as a program has it. Values are all different.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Ask {
    Get(u64),
    Put(u64, u64, If),
    Delete(u64, If),
}

impl Ask {
    fn key(self) -> u64 {
        match self {
            Ask::Get(key) | Ask::Put(key, ..) | Ask::Delete(key, _) => key,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fate {
    Pending,
    /// It may have happened.
    Open,
    Nothing,
    Value(Option<u64>),
    Stored,
    Deleted(bool),
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Record {
    node: NodeId,
    ask: Ask,
    fate: Fate,
    began: u64,
    returned: u64,
}

/// Programs, how far they are, and the history.
#[derive(Debug, Clone, Hash)]
pub(super) struct Asked {
    programs: Rc<Vec<Vec<Ask>>>,
    next: Vec<usize>,
    records: Vec<Record>,
    /// Grows with each call that begins after one has returned: that is all that a history says of time.
    moment: u64,
    has_returned: bool,
    /// The first call of a program has begun.
    has_begun: bool,
    first: BTreeMap<u64, (Generation, u64)>,
    error: Option<String>,
}

impl Asked {
    pub(super) fn new(programs: Vec<Vec<Ask>>) -> Asked {
        Asked {
            next: vec![0; programs.len()],
            programs: Rc::new(programs),
            records: Vec::new(),
            moment: 0,
            has_returned: false,
            has_begun: false,
            first: BTreeMap::new(),
            error: None,
        }
    }

    /// Whether the node has something to ask, and is not waiting for an answer.
    pub(super) fn has_next(&self, node: NodeId) -> bool {
        let at = usize::from(node.0);
        let is_waiting = self.records.iter().any(|r| r.node == node && r.fate == Fate::Pending);
        !is_waiting && self.next[at] < self.programs[at].len()
    }

    /// Whether somebody waits for an answer.
    pub(super) fn is_waiting(&self) -> bool {
        self.records.iter().any(|record| record.fate == Fate::Pending)
    }

    pub(super) fn begin_next(&mut self, node: NodeId) -> Option<(u64, Vec<u8>, Request)> {
        let at = usize::from(node.0);
        let ask = *self.programs[at].get(self.next[at])?;
        self.next[at] += 1;
        self.has_begun = true;
        Some(self.begin(node, &ask))
    }

    /// A call begins: its number, key and request.
    pub(super) fn begin(&mut self, node: NodeId, ask: &Ask) -> (u64, Vec<u8>, Request) {
        self.moment += u64::from(std::mem::replace(&mut self.has_returned, false));
        let began = 2 * self.moment;
        self.records.push(Record { node, ask: *ask, fate: Fate::Pending, began, returned: began });
        let condition = |of: If| match of {
            If::Any => Condition::Any,
            If::Absent => Condition::Absent,
            If::Present => Condition::Present,
            If::Same => Condition::Same(
                self.first.get(&ask.key()).map_or(Generation(1), |(generation, _)| *generation),
            ),
        };
        let request = match *ask {
            Ask::Get(_) => Request::Get,
            Ask::Put(_, value, of) => Request::Put(value_bytes(value), condition(of)),
            Ask::Delete(_, of) => Request::Delete(condition(of)),
        };
        (self.records.len() as u64 - 1, key_bytes(ask.key()), request)
    }

    pub(super) fn crashed(&mut self, node: NodeId) {
        let of_it = |record: &&mut Record| record.node == node && record.fate == Fate::Pending;
        self.records.iter_mut().filter(of_it).for_each(|record| record.fate = Fate::Open);
        self.next[usize::from(node.0)] = self.programs[usize::from(node.0)].len();
    }

    pub(super) fn answered(&mut self, node: NodeId, answer: ClientAnswer) {
        let Some(record) = self.records.get_mut(answer.id as usize).filter(|record| record.node == node)
        else {
            self.error = Some(format!("{answer:?} was not asked for"));
            return;
        };
        self.has_returned = true;
        record.returned = 2 * self.moment + 1;
        let key = record.ask.key();
        record.fate = match answer.outcome {
            Outcome::Value(bytes, _) => {
                let value = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
                if bytes != value_bytes(value) {
                    self.error = Some(format!("a value that nobody wrote: {bytes:?}"));
                }
                Fate::Value(Some(value))
            }
            Outcome::Absent => Fate::Value(None),
            Outcome::Stored(generation) => {
                if let (Ask::Put(_, value, _), false) = (record.ask, self.has_begun) {
                    self.first.insert(key, (generation, value));
                }
                Fate::Stored
            }
            Outcome::Deleted(was) => Fate::Deleted(was),
            Outcome::Conflict => Fate::Refused,
            Outcome::Indeterminate => Fate::Open,
            Outcome::Full | Outcome::TooLong | Outcome::Unavailable | Outcome::Walked(..) => Fate::Nothing,
        };
    }

    /// What was wrong with an answer, if something was.
    pub(super) fn wrong(&self) -> Result<(), String> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// All keys that anybody asked about.
    pub(super) fn keys(&self) -> BTreeSet<u64> {
        let programs = self.programs.iter().flatten().map(|ask| ask.key());
        programs.chain(self.records.iter().map(|record| record.ask.key())).collect()
    }

    /// Whether there is one order for each key.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut history = History::default();
        for record in &self.records {
            let key = record.ask.key();
            let first = self.first.get(&key).map_or(0, |(_, value)| *value);
            let (value, of) = match record.ask {
                Ask::Get(_) => (0, If::Any),
                Ask::Put(_, value, of) => (value, of),
                Ask::Delete(_, of) => (0, of),
            };
            let expected = match of {
                If::Any => Precondition::Any,
                If::Absent => Precondition::Absent,
                If::Present => Precondition::Present,
                If::Same => Precondition::Value(first),
            };
            let effect = match (record.fate, record.ask) {
                (Fate::Nothing, _) | (Fate::Open | Fate::Pending, Ask::Get(_)) => continue,
                (Fate::Pending, _) => return Err(format!("{record:?} was never answered")),
                (Fate::Open, Ask::Delete(..)) => Effect::MayRemoveIf(expected),
                (Fate::Open, _) => Effect::MayWriteIf(expected, value),
                (Fate::Value(seen), _) => Effect::Read(seen),
                (Fate::Stored, _) => Effect::WriteIf(expected, value),
                (Fate::Deleted(was), _) => Effect::RemoveIf(expected, was),
                (Fate::Refused, _) => Effect::Refused(expected),
            };
            history.push(Call { key, effect, began: record.began, returned: record.returned });
        }
        history.check().map_err(|error| error.to_string())
    }
}
