//! Waiting for a store of pairs away from the event loop.
//!
//! Owns: the thread that goes on with the attempts of commands, with a session of its own, and with the sweep when it is asked to. Promises: it tells how each
//! step ended and wakes the loop for it; what a client waits for goes before the sweep. Must not know clients: only their numbers.

use std::sync::Arc;

use hedgerow_row::pairs::PairDb;
use mio::Waker;

use super::keyspace::pairs::attempt::{Attempt, Ended, Step};
use super::keyspace::pairs::scan::PairSweep;
use super::reader::Client;
use super::worker::Worker;

/// A step that is asked for.
struct Job {
    client: Client,
    attempt: Box<Attempt>,
    step: Step,
}

/// A step that has ended.
pub struct Advanced {
    /// Whose command it is.
    pub client: Client,
    /// Its attempt.
    pub attempt: Box<Attempt>,
    /// Which step it was.
    pub step: Step,
    /// How it ended.
    pub ended: Ended,
}

/// What is asked for, and what has ended.
#[derive(Default)]
struct Queue {
    wanted: Vec<Job>,
    ended: Vec<Advanced>,
    wants_sweep: bool,
    is_sweeping: bool,
    /// Rounds of the sweep that are done.
    rounds: u64,
}

enum Task {
    Jobs(Vec<Job>),
    Sweep,
}

impl Queue {
    fn take(&mut self) -> Option<Task> {
        if !self.wanted.is_empty() {
            return Some(Task::Jobs(std::mem::take(&mut self.wanted)));
        }
        self.is_sweeping = std::mem::take(&mut self.wants_sweep);
        self.is_sweeping.then_some(Task::Sweep)
    }
}

/// The thread that waits.
pub struct Attempts(Worker<Queue>);

impl Attempts {
    /// Starts the thread; it wakes `waker` when a step has ended.
    pub fn start(db: PairDb, waker: Arc<Waker>) -> std::io::Result<Attempts> {
        let mut session = db.session().map_err(std::io::Error::other)?;
        let mut sweep = PairSweep::default();
        let worker = Worker::start("attempts", waker, Queue::take, move |task, answers| match task {
            Task::Jobs(jobs) => jobs.into_iter().try_for_each(|Job { client, mut attempt, step }| {
                let ended = attempt.advance(step, &db, &mut *session);
                answers.put(|queue: &mut Queue| {
                    queue.ended.push(Advanced { client, attempt, step, ended });
                    queue.ended.len() == 1
                })
            }),
            Task::Sweep => {
                // What the store refuses now it may do in the next round; what has expired is hidden until then.
                let goes_on = sweep.step(&db).unwrap_or(false);
                answers.put(|queue| {
                    queue.is_sweeping = false;
                    queue.rounds += u64::from(!goes_on);
                    false
                })
            }
        })?;
        Ok(Attempts(worker))
    }

    /// Has an attempt go a step on.
    pub fn request(&self, client: Client, attempt: Box<Attempt>, step: Step) {
        self.0.request(|queue| queue.wanted.push(Job { client, attempt, step }));
    }

    /// The steps that have ended since the last call.
    pub fn ended(&self) -> Vec<Advanced> {
        self.0.with(|queue| std::mem::take(&mut queue.ended))
    }

    /// Has the sweep go on a little, unless it is doing so; says how many rounds it has done.
    pub fn sweep(&self) -> u64 {
        self.0.request(|queue| {
            queue.wants_sweep = !queue.is_sweeping;
            queue.rounds
        })
    }

    /// Stops the thread once it has done what was asked of it.
    pub fn stop(&mut self) {
        self.0.stop();
    }
}

impl Drop for Attempts {
    fn drop(&mut self) {
        // Nobody is left to be told.
        self.0.with(|queue| queue.wanted.clear());
    }
}
