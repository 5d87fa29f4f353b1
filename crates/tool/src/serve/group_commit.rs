//! Group commit: commands that change one row at a store of pairs go together.
//!
//! Owns the steps that the commands of a turn wait for, and the queues of rows that are being written. Promises: commands that write one row, and come while
//! none of this server is at it, run one after the other in the order in which they came, each on what the one before it leaves, and what the last leaves is stored for all
//! of them at once, or for none; who comes meanwhile waits without having anything, and they are the next that go together. Must not know what commands do.
//!
//! It is a matter of how many exchanges are needed, not of who may write: others may at any time, other servers and commands of several keys. What
//! was read is the condition of each write, whoever waited for whom.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use super::attempts::Job;
use super::keyspace::pairs::attempt::{Attempt, Step};
use super::limits;
use super::reader::Client;

/// A row: database and key.
type RowName = (usize, Box<[u8]>);

/// Who writes a row, and who waits for that.
#[derive(Default)]
struct RowQueue {
    /// That of those who are at it: gone when the last of them is.
    place: Weak<()>,
    /// How many they are, and the turn in which they begin: others may join them in it.
    members: usize,
    turn: u64,
    waiting: VecDeque<Job>,
}

impl RowQueue {
    fn is_free(&self) -> bool {
        self.place.strong_count() == 0
    }

    /// A place among those who are about to begin.
    fn join(&mut self, turn: u64) -> Option<Arc<()>> {
        if !self.waiting.is_empty() {
            return None;
        }
        if self.is_free() {
            let place = Arc::new(());
            (self.place, self.members, self.turn) = (Arc::downgrade(&place), 1, turn);
            return Some(place);
        }
        let may_join = self.turn == turn && self.members < limits::EXCHANGED_ATTEMPTS_MAX;
        self.members += usize::from(may_join);
        self.place.upgrade().filter(|_| may_join)
    }

    /// Those who begin now, if it is free; `is_there` says whether a client still waits.
    fn begin(&mut self, turn: u64, is_there: impl Fn(Client) -> bool, begun: &mut Vec<Job>) {
        if !self.is_free() {
            return;
        }
        let place = Arc::new(());
        (self.place, self.members, self.turn) = (Arc::downgrade(&place), 0, turn);
        while self.members < limits::EXCHANGED_ATTEMPTS_MAX
            && let Some(mut job) = self.waiting.pop_front()
        {
            if is_there(job.client) {
                job.attempt.place = Some(Arc::clone(&place));
                begun.push(job);
                self.members += 1;
            }
        }
    }
}

/// See [the module](self).
#[derive(Default)]
pub struct GroupCommit {
    /// What is to be asked of the store at the end of this turn.
    steps: Vec<Job>,
    /// Which of them commit one row, by the key of its pair: of several the first.
    commits: HashMap<Box<[u8]>, usize>,
    rows: HashMap<RowName, RowQueue>,
    /// Rows for which somebody waits.
    contended: Vec<RowName>,
    /// So many rows are to be known before those are forgotten that nobody writes.
    rows_max: usize,
    turn: u64,
}

/// Rows that may be known without a look whether anybody still writes them.
const ROWS_MIN: usize = 64;

impl GroupCommit {
    /// Whether a command that writes this row may go on; else it waits ([`Step::Turn`]) until those of this server are done who are at it.
    pub fn enter(&mut self, space: usize, key: &[u8], attempt: &mut Attempt) -> bool {
        if attempt.place.is_some() {
            return true;
        }
        if self.rows.len() >= self.rows_max {
            self.rows.retain(|_, queue| !queue.is_free() || !queue.waiting.is_empty());
            self.rows_max = (self.rows.len() * 2).max(ROWS_MIN);
        }
        let name: RowName = (space, key.into());
        attempt.place = self.rows.entry(name.clone()).or_default().join(self.turn);
        if attempt.place.is_none() {
            attempt.wait_for_turn(name);
        }
        attempt.place.is_some()
    }

    /// Has a command that is about to run do so on what another of this turn is about to store, if both have read the same row.
    pub fn follow(&self, attempt: &mut Attempt) {
        let known = attempt.transaction.only_row().and_then(|row| self.commits.get(row));
        if let Some(job) = known.and_then(|at| self.steps.get(*at)) {
            attempt.follow(&job.attempt);
        }
    }

    /// Takes in a step that a command waits for.
    pub fn push(&mut self, mut job: Job) {
        if job.step == Step::Turn {
            return self.wait(job);
        }
        if job.step == Step::Commit && job.attempt.transaction.changes_only_row() {
            let row = job.attempt.transaction.only_row().unwrap_or_default();
            match self.commits.get(row).and_then(|at| self.steps.get_mut(*at)) {
                None => drop(self.commits.insert(row.into(), self.steps.len())),
                Some(first) if job.attempt.follows() => {
                    // This one stores what both made of the row.
                    std::mem::swap(first, &mut job);
                    first.before = std::mem::take(&mut job.before);
                    job.attempt.restart();
                    return first.before.push((job.client, job.attempt));
                }
                Some(_) => {}
            }
        }
        self.steps.push(job);
    }

    fn wait(&mut self, mut job: Job) {
        let Some(name) = job.attempt.take_awaited_row() else { return };
        let queue = self.rows.entry(name.clone()).or_default();
        if queue.waiting.is_empty() {
            self.contended.push(name);
        }
        queue.waiting.push_back(job);
    }

    /// The steps of this turn, which ends.
    pub fn take_steps(&mut self) -> Vec<Job> {
        self.turn += 1;
        self.commits.clear();
        std::mem::take(&mut self.steps)
    }

    /// Those whose wait for others is over.
    pub fn begin_waiting(&mut self, is_there: impl Fn(Client) -> bool) -> Vec<Job> {
        let (mut begun, turn) = (Vec::new(), self.turn);
        let rows = &mut self.rows;
        self.contended.retain(|name| {
            let Some(queue) = rows.get_mut(name) else { return false };
            queue.begin(turn, &is_there, &mut begun);
            !queue.waiting.is_empty()
        });
        begun
    }
}
