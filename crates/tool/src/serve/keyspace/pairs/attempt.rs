//! An attempt of one command at a store of pairs: what is at hand for it, and what it would change.
//!
//! Owns a transaction, and beside it the questions and changes that are none of rows: keys in no order, tables. Promises that nothing but
//! [`Attempt::start`] waits, and that a change of tables happens once an attempt, however often the command is given. Must not
//! know commands or clients.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use hedgerow::{ErrorKind, Schema, Type};
use hedgerow_row::backend::Session;
use hedgerow_row::pairs::{PairDb, Transaction};

use super::scan::{KeyScan, ScannedKeys};
use crate::serve::failure::{Failure, Outcome};
use crate::serve::limits;

/// What is asked for beside rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Chore {
    /// Keys, in no order.
    Scan(KeyScan),
    /// A table of this name and schema.
    Create(String, Schema),
    /// The table of this name is to go.
    Drop(String),
    /// A table's schema is to change.
    Evolve(String, FieldChange),
}

/// A change of a schema.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldChange {
    /// A nullable field more.
    Add(String, Type),
    /// Another name for a field.
    Rename(String, String),
    /// A field less.
    Drop(String),
}

/// What came of it.
#[derive(Debug)]
pub enum Done {
    /// These keys.
    Scanned(ScannedKeys),
    /// Whether it changed something.
    Changed(bool),
}

/// What an attempt waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// What it lacks.
    Fetch,
    /// That its changes are there.
    Commit,
    /// That what it read was there at one time.
    Check,
}

/// How a step ended.
#[derive(Debug)]
pub enum Ended {
    /// As it should.
    Well,
    /// Somebody came in between: the command is to be given again, from nothing.
    Conflict,
    /// The command can not be done.
    Failed(Failure),
}

/// See [the module](self).
pub struct Attempt {
    /// Rows.
    pub transaction: Transaction,
    wanted: RefCell<Vec<Chore>>,
    done: Vec<(Chore, Outcome<Done>)>,
    /// Something was asked for that is not at hand.
    missed: Cell<bool>,
    /// Keys of the command that were asked for together.
    prefetched: Cell<usize>,
    /// The command can not be done.
    failure: Option<Failure>,
    /// What it reads is to have been there at one time.
    is_to_check: bool,
    /// How often that was checked.
    checks: u32,
}

impl Attempt {
    /// One that has nothing at hand.
    pub fn new(db: &PairDb) -> Attempt {
        Attempt {
            transaction: db.transaction(),
            wanted: RefCell::default(),
            done: Vec::new(),
            missed: Cell::new(false),
            prefetched: Cell::new(0),
            failure: None,
            is_to_check: false,
            checks: 0,
        }
    }

    /// Whether something was asked for that is not at hand.
    pub fn has_missed(&self) -> bool {
        self.missed.get()
    }

    /// The same, with a look at why a call failed.
    pub fn checked<R>(&self, result: hedgerow::Result<R>) -> Outcome<R> {
        result.map_err(|error| match error.kind() {
            ErrorKind::NotInMemory => self.miss(),
            _ => error.into(),
        })
    }

    fn miss(&self) -> Failure {
        self.missed.set(true);
        Failure::NOT_YET
    }

    /// What came of a chore, or that it is yet to be done.
    pub fn chore(&self, chore: Chore) -> Outcome<&Done> {
        if let Some((_, done)) = self.done.iter().find(|(known, _)| *known == chore) {
            return done.as_ref().map_err(Failure::clone);
        }
        let mut wanted = self.wanted.borrow_mut();
        if !wanted.contains(&chore) {
            wanted.push(chore);
        }
        Err(self.miss())
    }

    /// Whether a chore is done already.
    pub fn has_done(&self, chore: &Chore) -> bool {
        self.done.iter().any(|(known, _)| known == chore)
    }

    /// Which of the command's keys are to be asked for together now: twice as many each time, since all that is at hand is looked at again then; fewer
    /// if those before were long.
    pub fn next_keys(&self) -> Range<usize> {
        let (first, bytes) = (self.prefetched.get(), self.transaction.bytes_at_hand());
        let room = limits::AT_HAND_BYTES_MAX.saturating_sub(bytes) / (bytes / first.max(1) + 1);
        let next = first.min(room).max(limits::PREFETCHED_KEYS_MAX);
        self.prefetched.set(first.saturating_add(next));
        first..self.prefetched.get()
    }

    /// The command begins anew, with what is at hand.
    pub fn begin(&mut self) {
        self.missed.set(false);
        self.is_to_check = false;
    }

    /// What the command reads is to have been there at one time.
    pub fn check_reads(&mut self) {
        self.is_to_check = true;
    }

    /// What is to come before the command is answered, which has ended well.
    pub fn last_step(&self) -> Option<Step> {
        if self.transaction.has_changes() {
            return Some(Step::Commit);
        }
        let is_to_check = self.is_to_check && self.transaction.has_read_several();
        (is_to_check && self.checks < limits::READ_CHECKS_MAX).then_some(Step::Check)
    }

    /// Why the command can not be done, once.
    pub fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    /// The command is told this when it is given again.
    pub fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    /// Forgets what is at hand of rows and keys. What was done to tables stays done.
    pub fn restart(&mut self) {
        self.transaction.restart();
        self.done.retain(|(chore, _)| !matches!(chore, Chore::Scan(_)));
        self.missed.set(false);
        self.prefetched.set(0);
    }

    /// Whether a step may change something for others.
    pub fn may_change(&self, step: Step) -> bool {
        let changes = |chore: &Chore| !matches!(chore, Chore::Scan(_));
        match step {
            Step::Fetch => self.transaction.wants_changes() || self.wanted.borrow().iter().any(changes),
            Step::Commit => true,
            Step::Check => false,
        }
    }

    /// Whether chores are to be done: each may take many exchanges.
    pub fn has_chores(&self) -> bool {
        !self.wanted.borrow().is_empty()
    }

    /// Begins a step; says how it ended, if it has. Else it goes on with [`Transaction::advance`]. Blocks for what is none of rows: chores, tables.
    pub fn start(&mut self, step: Step, db: &PairDb, session: &mut dyn Session) -> Option<Ended> {
        self.checks += u32::from(step == Step::Check);
        let begun = match step {
            Step::Fetch => {
                self.do_chores(db);
                self.transaction.begin_fetch(session)
            }
            Step::Commit => self.transaction.begin_commit(),
            Step::Check => self.transaction.begin_check(),
        };
        begun.map(|result| self.ended(step, result))
    }

    /// What is at hand of tables, and of their rows, is of before: with a table that went, a row that the command writes would go, too.
    fn do_chores(&mut self, db: &PairDb) {
        let chores = self.wanted.take();
        if chores.iter().any(|chore| !matches!(chore, Chore::Scan(_))) {
            self.transaction.restart();
        }
        for chore in chores {
            let done = chore.run(db);
            self.done.push((chore, done));
        }
    }

    /// What it means for the command how a step ended.
    pub fn ended(&self, step: Step, result: hedgerow::Result<()>) -> Ended {
        match result {
            Ok(()) if step == Step::Fetch && self.transaction.bytes_at_hand() > limits::AT_HAND_BYTES_MAX => {
                Ended::Failed(Failure::TOO_MUCH_AT_HAND)
            }
            Ok(()) => Ended::Well,
            Err(error) => match (error.kind(), step) {
                // With a table that was made, or went, meanwhile the command may mean something else.
                (ErrorKind::Conflict, _) | (ErrorKind::Exists | ErrorKind::NotFound, Step::Fetch) => {
                    Ended::Conflict
                }
                (ErrorKind::Unsupported, Step::Commit) => Ended::Failed(Failure::CROSS_SLOT),
                _ => Ended::Failed(error.into()),
            },
        }
    }
}

impl Chore {
    fn run(&self, db: &PairDb) -> Outcome<Done> {
        match self {
            Chore::Scan(scan) => Ok(Done::Scanned(scan.run(db)?)),
            Chore::Create(table, schema) => {
                db.create_table(table, schema.clone())?;
                Ok(Done::Changed(true))
            }
            Chore::Drop(table) => Ok(Done::Changed(db.drop_table(table)?)),
            Chore::Evolve(table, change) => {
                let table = db.table(table)?;
                match change {
                    FieldChange::Add(name, kind) => table.add_field(name, *kind)?,
                    FieldChange::Rename(name, to) => table.rename_field(name, to)?,
                    FieldChange::Drop(name) => table.drop_field(name)?,
                }
                Ok(Done::Changed(true))
            }
        }
    }
}
