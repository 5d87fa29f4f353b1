//! Waiting for a store of pairs away from the event loop.
//!
//! Owns: the thread that goes on with the attempts of commands, with a session of its own, and with the sweep when it is asked to. Promises: it tells how each
//! step ended and wakes the loop for it; what all of them need of the store is asked together, so that many clients wait no longer than one, as far as there is memory for their rows; whoever
//! comes meanwhile joins with the next exchange, the first to come first; what takes many exchanges holds the others up by a few at a time; what a client
//! waits for goes before the sweep. Must not know clients: only their numbers.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hedgerow_row::backend::Session;
use hedgerow_row::pairs::{FetchRoom, PairDb, Transaction, may_be_of_a_broken_session};
use mio::Waker;

use super::failure::Failure;
use super::keyspace::pairs::attempt::{Attempt, Ended, Step};
use super::keyspace::pairs::scan::PairSweep;
use super::limits;
use super::reader::Client;
use super::worker::{Answers, Worker};

/// A step that is asked for.
pub struct Job {
    /// Whose command it is.
    pub client: Client,
    /// Its attempt.
    pub attempt: Box<Attempt>,
    /// Which step it is.
    pub step: Step,
    /// Commands, and what they did to tables, that are done with this one: it commits what all of them made of a row, one after the other.
    pub before: Vec<(Client, Box<Attempt>)>,
}

/// A step that has ended.
pub struct Advanced {
    /// Whose command it is.
    pub client: Client,
    /// Its attempt.
    pub attempt: Box<Attempt>,
    /// Which step it was.
    pub step: Step,
    /// Commands for which it ended so, too.
    pub before: Vec<(Client, Box<Attempt>)>,
    /// How it ended.
    pub ended: Ended,
}

impl Job {
    fn ended(self, ended: Ended) -> Advanced {
        let Job { client, attempt, step, before } = self;
        Advanced { client, attempt, step, before, ended }
    }
}

/// What is asked for, and what has ended.
#[derive(Default)]
struct Queue {
    wanted: VecDeque<Job>,
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
            return Some(Task::Jobs(self.take_jobs(limits::EXCHANGED_ATTEMPTS_MAX, false)));
        }
        self.is_sweeping = std::mem::take(&mut self.wants_sweep);
        self.is_sweeping.then_some(Task::Sweep)
    }

    /// The sweep rests, until it is asked for again. What the store refuses now it may do then; what has expired is hidden meanwhile.
    fn swept(&mut self, goes_on: hedgerow::Result<bool>) -> bool {
        self.is_sweeping = false;
        self.rounds += u64::from(!goes_on.unwrap_or(true));
        false
    }

    /// The first that came, so many at most; and if room for rows is lacking all those that have some: they let go of them, or are waited for by no others than those that are here.
    fn take_jobs(&mut self, most: usize, lacks_room: bool) -> Vec<Job> {
        let mut jobs: Vec<Job> = self.wanted.drain(..most.min(self.wanted.len())).collect();
        if lacks_room {
            let has_rows = |job: &Job| job.attempt.transaction.bytes_at_hand() > 0;
            let (with, without): (Vec<Job>, Vec<Job>) = self.wanted.drain(..).partition(has_rows);
            jobs.extend(with);
            self.wanted = without.into();
        }
        jobs
    }
}

/// The steps that are under way.
struct Steps {
    db: PairDb,
    session: Box<dyn Session>,
    /// They go on with the next exchange.
    begun: Vec<Job>,
    /// They have chores, which are done a little at a time.
    slow: VecDeque<Job>,
    /// Whether one that takes one step is to go first the next time.
    is_short_next: bool,
    sweep: PairSweep,
    /// Bytes of rows that the commands of all clients may have at hand together.
    bytes_max: Arc<AtomicUsize>,
}

/// How long nothing is got if there is no room for it, before it is looked again.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// Exchanges after which the sweep has its turn, however many wait.
const SWEEP_TURN: u32 = 16;

/// How long the sweep goes on at a time, unless somebody comes.
const SWEEP_TIME: Duration = Duration::from_millis(5);

impl Steps {
    /// Goes on with these steps, and with those that are asked for meanwhile, until all have ended.
    fn run(&mut self, mut jobs: Vec<Job>, answers: &Answers<'_, Queue>) -> io::Result<()> {
        for turn in 1_u32.. {
            let mut ended = Vec::new();
            for job in jobs {
                match job.step == Step::Fetch && job.attempt.has_chores() {
                    true => self.slow.push_back(job),
                    false => self.start(job, &mut ended),
                }
            }
            let lacks_room = !self.exchange(&mut ended, answers.is_stopping());
            if lacks_room {
                // The loop is about to do the commands that have it.
                answers.wait(ROOM_WAIT);
            }
            self.do_chore(&mut ended);
            let room = limits::EXCHANGED_ATTEMPTS_MAX.saturating_sub(self.begun.len());
            jobs = Vec::new();
            answers.put(|queue| {
                let wakes = queue.ended.is_empty() && !ended.is_empty();
                queue.ended.append(&mut ended);
                jobs = queue.take_jobs(room, lacks_room);
                wakes
            })?;
            if jobs.is_empty() && self.begun.is_empty() && self.slow.is_empty() {
                return Ok(());
            }
            if turn.is_multiple_of(SWEEP_TURN) && answers.with(|queue| std::mem::take(&mut queue.wants_sweep))
            {
                let goes_on = self.sweep.step(&self.db);
                answers.put(|queue| queue.swept(goes_on))?;
            }
        }
        Ok(())
    }

    /// Goes on with the sweep until somebody waits, or it has had its time.
    fn sweep(&mut self, answers: &Answers<'_, Queue>) -> io::Result<()> {
        let began = Instant::now();
        loop {
            let goes_on = self.sweep.step(&self.db);
            let is_over = !goes_on.as_ref().is_ok_and(|goes_on| *goes_on) || began.elapsed() >= SWEEP_TIME;
            if is_over || answers.with(|queue| !queue.wanted.is_empty()) {
                return answers.put(|queue| queue.swept(goes_on));
            }
        }
    }

    fn start(&mut self, mut job: Job, ended: &mut Vec<Advanced>) {
        match job.attempt.start(job.step, &mut *self.session) {
            Some(how) => ended.push(job.ended(how)),
            None => self.begun.push(job),
        }
    }

    /// Goes on a little with the chores of the first that has some. What takes one step goes before it every other time. Of those that take many one is under
    /// way: what they have found so far is in memory.
    fn do_chore(&mut self, ended: &mut Vec<Advanced>) {
        self.is_short_next = !self.is_short_next;
        let short = |slow: &VecDeque<Job>| slow.iter().position(|job| job.attempt.has_short_chore());
        let at = Some(&self.slow).filter(|_| self.is_short_next).and_then(short).unwrap_or(0);
        let Some(mut job) = self.slow.remove(at) else { return };
        match job.attempt.go_on_with_chores(&self.db) {
            true => self.start(job, ended),
            false => self.slow.insert(at, job),
        }
    }

    /// How much may be got now. The rows at hand are those of attempts that are here, and of commands that the loop is about to do, which then lets go of them. The first of
    /// those that are here goes on once it waits for no others than these: else all might wait for each other. So it does while the server stops: what the
    /// loop has it keeps then.
    fn room(&self, is_stopping: bool) -> FetchRoom {
        let here = self.begun.iter().chain(&self.slow).map(|job| job.attempt.transaction.bytes_at_hand());
        let all = self.db.bytes_at_hand();
        FetchRoom {
            // Nothing is ordered by it.
            bytes: self.bytes_max.load(Ordering::Relaxed).saturating_sub(all),
            first_goes: is_stopping || all <= here.sum::<usize>(),
        }
    }

    /// Goes on with all that have begun, as far as there is room. False if there was none for any of them.
    fn exchange(&mut self, ended: &mut Vec<Advanced>, is_stopping: bool) -> bool {
        if self.begun.is_empty() {
            return true;
        }
        let (room, before) = (self.room(is_stopping), ended.len());
        let mut attempts: Vec<&mut Transaction> =
            self.begun.iter_mut().map(|job| &mut job.attempt.transaction).collect();
        let results = Transaction::advance_within(&mut *self.session, &mut attempts, room);
        let mut failures = results.iter().flatten().filter_map(|result| result.as_ref().err());
        let is_broken = failures.any(may_be_of_a_broken_session);
        for (job, result) in std::mem::take(&mut self.begun).into_iter().zip(results) {
            match result {
                // However long it may go on: it is not to get more.
                None if job.attempt.has_too_much() => {
                    ended.push(job.ended(Ended::Failed(Failure::TOO_MUCH_AT_HAND)))
                }
                None => self.begun.push(job),
                Some(result) => {
                    let how = job.attempt.ended(job.step, result);
                    ended.push(job.ended(how));
                }
            }
        }
        // Of changes of one row the first is made. So who came too late goes before who did not, whose next command may change the row again.
        ended.sort_by_key(|advanced| !matches!(advanced.ended, Ended::Conflict));
        // Where there is none to be had, this one may be good still.
        if is_broken && let Ok(session) = self.db.session() {
            self.session = session;
        }
        room.bytes > 0 || room.first_goes || ended.len() > before
    }
}

/// The thread that waits.
pub struct Attempts {
    worker: Worker<Queue>,
    bytes_max: Arc<AtomicUsize>,
}

impl Attempts {
    /// Starts the thread; it wakes `waker` when a step has ended. It gets no more once so many bytes of rows are at hand for commands.
    pub fn start(db: PairDb, waker: Arc<Waker>, bytes_max: usize) -> io::Result<Attempts> {
        let session = db.session().map_err(io::Error::other)?;
        let (begun, slow, is_short_next) = (Vec::new(), VecDeque::new(), false);
        let sweep = PairSweep::default();
        let bytes_max = Arc::new(AtomicUsize::new(bytes_max));
        let mut steps =
            Steps { db, session, begun, slow, is_short_next, sweep, bytes_max: Arc::clone(&bytes_max) };
        let worker = Worker::start("attempts", waker, Queue::take, move |task, answers| match task {
            Task::Jobs(jobs) => steps.run(jobs, answers),
            Task::Sweep => steps.sweep(answers),
        })?;
        Ok(Attempts { worker, bytes_max })
    }

    /// From now on so many bytes of rows may be at hand, for those as well that wait for room.
    pub fn set_bytes_max(&self, bytes_max: usize) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Has attempts go a step on, in this order where it matters.
    pub fn request(&self, jobs: Vec<Job>) {
        self.worker.request(|queue| queue.wanted.extend(jobs));
    }

    /// The steps that have ended since the last call.
    pub fn ended(&self) -> Vec<Advanced> {
        self.worker.with(|queue| std::mem::take(&mut queue.ended))
    }

    /// Has the sweep go on a little, unless it is doing so; says how many rounds it has done.
    pub fn sweep(&self) -> u64 {
        self.worker.request(|queue| {
            queue.wants_sweep = !queue.is_sweeping;
            queue.rounds
        })
    }

    /// Stops the thread once it has done what was asked of it; but not later than [`limits::STORE_PATIENCE`] from now, whether the store
    /// answers or not. Says whether all of it was done.
    pub fn stop(&mut self) -> bool {
        let is_done = self.worker.stop_within(limits::STORE_PATIENCE);
        if !is_done {
            self.forget_wanted();
        }
        is_done
    }

    fn forget_wanted(&self) {
        self.worker.with(|queue| queue.wanted.clear());
    }
}

impl Drop for Attempts {
    fn drop(&mut self) {
        // Nobody is left to be told.
        self.forget_wanted();
        self.worker.stop_within(limits::STORE_PATIENCE);
    }
}
