//! An attempt of one command at a store of pairs: what is at hand for it, and what it would change.
//!
//! Owns a transaction, and beside it the questions and changes that are none of rows: keys in no order, tables. Promises that nothing but
//! [`Attempt::start`] and [`Attempt::go_on_with_chores`] wait, and that a change of tables happens once an attempt, however often the command is given. Must not
//! know commands or clients.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use hedgerow::ErrorKind;
use hedgerow_row::backend::Session;
use hedgerow_row::pairs::{PairDb, Transaction};

use super::chores::{Chore, Done, Work};
use crate::serve::failure::{Failure, Outcome};
use crate::serve::limits;

/// What an attempt waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// What it lacks.
    Fetch,
    /// That its changes are there.
    Commit,
    /// That what it read was there at one time.
    Check,
    /// That other commands of this server, which write its row, are done; it has nothing at hand.
    Turn,
}

/// How a step ended.
#[derive(Debug, Clone)]
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
    wanted: RefCell<VecDeque<Chore>>,
    /// One of those that are wanted, under way.
    work: Option<Work>,
    /// In the order in which they were done.
    done: Vec<(Chore, Outcome<Done>)>,
    /// Of those, so many came before the last change of tables that this run of the command has asked for: what they looked at was before it.
    outdated: Cell<usize>,
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
    /// Its place among those who write its row, if it has one.
    pub place: Option<Arc<()>>,
    /// The row for which it waits until others are done: database and key.
    awaited_row: Option<(usize, Box<[u8]>)>,
    /// This run goes on from what another command is about to store.
    follows: bool,
    /// It is to follow none: it can not be stored with others.
    is_alone: bool,
}

impl Attempt {
    /// One that has nothing at hand.
    pub fn new(db: &PairDb) -> Attempt {
        Attempt {
            transaction: db.transaction(),
            wanted: RefCell::default(),
            work: None,
            done: Vec::new(),
            outdated: Cell::new(0),
            missed: Cell::new(false),
            prefetched: Cell::new(0),
            failure: None,
            is_to_check: false,
            checks: 0,
            place: None,
            awaited_row: None,
            follows: false,
            is_alone: false,
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
        let outdated = self.outdated.get();
        let found = self.done.iter().enumerate().skip(outdated).find(|(_, (known, _))| *known == chore);
        if let Some((at, (_, done))) = found {
            if chore.changes() {
                self.outdated.set(at + 1);
            }
            return done.as_ref().map_err(Failure::clone);
        }
        let mut wanted = self.wanted.borrow_mut();
        if !wanted.contains(&chore) {
            wanted.push_back(chore);
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
        self.outdated.set(0);
        (self.is_to_check, self.follows) = (false, false);
    }

    /// Has the command wait for its turn to write this row.
    pub fn wait_for_turn(&mut self, row: (usize, Box<[u8]>)) {
        self.awaited_row = Some(row);
        self.missed.set(true);
    }

    /// The row that it waits for.
    pub fn take_awaited_row(&mut self) -> Option<(usize, Box<[u8]>)> {
        self.awaited_row.take()
    }

    /// Has the command run on what another is about to store, if that can be.
    pub fn follow(&mut self, other: &Attempt) {
        self.follows = !self.is_alone && self.transaction.follow(&other.transaction);
    }

    /// Whether it ran so.
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// What the command, which has ended, waits for; `is_done` says whether it has ended well.
    pub fn next_step(&mut self, is_done: bool) -> Option<Step> {
        if self.missed.get() {
            return Some(if self.awaited_row.is_some() { Step::Turn } else { Step::Fetch });
        }
        if !self.follows {
            return if is_done { self.last_step() } else { None };
        }
        // What it is to be told, an error too, is so only if what it followed is stored.
        let is_whole = match is_done {
            true => self.transaction.changes_only_row(),
            false => self.transaction.keep_followed(),
        };
        if is_whole {
            return Some(Step::Commit);
        }
        (self.is_alone, self.follows) = (true, false);
        self.transaction.restart();
        Some(Step::Fetch)
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

    /// Whether the command may begin anew without it: nothing of it is done, nor may be, and nothing is to be told of it.
    pub fn may_be_forgotten(&self) -> bool {
        let is_begun = self.work.as_ref().is_some_and(|work| work.chore.changes());
        self.failure.is_none() && !is_begun && !self.done.iter().any(|(chore, _)| chore.changes())
    }

    /// The command is told this when it is given again.
    pub fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    /// Forgets what is at hand of rows and keys. What was done to tables stays done.
    pub fn restart(&mut self) {
        self.transaction.restart();
        self.done.retain(|(chore, _)| chore.changes());
        self.missed.set(false);
        self.prefetched.set(0);
        self.follows = false;
    }

    /// Whether a step may change something for others.
    pub fn may_change(&self, step: Step) -> bool {
        match step {
            Step::Fetch => {
                self.transaction.wants_changes() || self.wanted.borrow().iter().any(Chore::changes)
            }
            Step::Commit => true,
            Step::Check | Step::Turn => false,
        }
    }

    /// Whether chores are to be done: each may take many exchanges.
    pub fn has_chores(&self) -> bool {
        self.work.is_some() || !self.wanted.borrow().is_empty()
    }

    /// Whether the next chore takes one step.
    pub fn has_short_chore(&self) -> bool {
        self.work.is_none() && self.wanted.borrow().front().is_some_and(Chore::is_short)
    }

    /// Goes on with the chores a little; says whether there are none left. Then what else is to be fetched is. Blocks.
    pub fn go_on_with_chores(&mut self, db: &PairDb) -> bool {
        let Some(mut work) = self.work.take().or_else(|| self.wanted.get_mut().pop_front().map(Work::new))
        else {
            return true;
        };
        match work.step(db) {
            None => self.work = Some(work),
            Some(done) => {
                if work.chore.changes() {
                    // What is at hand of tables, and of their rows, is of before: with a table that went, a row that the command writes would go, too.
                    self.transaction.restart();
                }
                self.done.push((work.chore, done));
            }
        }
        !self.has_chores()
    }

    /// Begins a step; says how it ended, if it has. Else it goes on with [`Transaction::advance`]. Blocks where tables are to be made or taught names.
    pub fn start(&mut self, step: Step, session: &mut dyn Session) -> Option<Ended> {
        self.checks += u32::from(step == Step::Check);
        let begun = match step {
            Step::Fetch => self.transaction.begin_fetch(session),
            Step::Commit => self.transaction.begin_commit(),
            Step::Check => self.transaction.begin_check(),
            // The loop sees to it.
            Step::Turn => Some(Ok(())),
        };
        begun.map(|result| self.ended(step, result))
    }

    /// How a fetch ended of what the store has at once, if that is all that the command lacks: nobody is asked.
    pub fn fetch_cached(&mut self) -> Option<Ended> {
        let has_all = !self.has_chores() && self.transaction.fetch_cached();
        has_all.then(|| self.ended(Step::Fetch, Ok(())))
    }

    /// Whether it has more at hand than one command may.
    pub fn has_too_much(&self) -> bool {
        self.transaction.bytes_at_hand() > limits::AT_HAND_BYTES_MAX
    }

    /// What it means for the command how a step ended.
    pub fn ended(&self, step: Step, result: hedgerow::Result<()>) -> Ended {
        match result {
            Ok(()) if step == Step::Fetch && self.has_too_much() => Ended::Failed(Failure::TOO_MUCH_AT_HAND),
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
