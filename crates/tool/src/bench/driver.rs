//! Runs a phase: threads that draw operations, do them, and record how long each took.
//!
//! Owns the measured loop, the open and the closed. Promises that every result is checked, that in an open loop the time an
//! operation waits for its turn counts as its latency (no coordinated omission), and that the clock is read once an
//! operation. Knows stores by their traits only, and does not print.

mod course;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use hedgerow_device::Random;
use serde::Serialize;

use super::distribution::{Distribution, KeyChooser};
use super::process::{self, Neighbours, Usage};
use super::row::{RowShape, RowSink, RowSource, key_of};
use super::store::{BenchStore, Columns, Session};
use super::workload::{Extent, Operation, Workload};
use course::PhaseCourse;

/// The most threads a phase may have.
pub const THREADS_MAX: usize = 256;
/// How long background work may go on after a phase, where nothing else is said.
pub const REST_MAX: Duration = Duration::from_secs(180);
/// Latencies are recorded up to this; beyond, they count as this.
const LATENCY_MAX_NS: u64 = 600_000_000_000;

/// How a phase is to be run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What to do.
    pub workload: &'static Workload,
    /// Rows of the data set.
    pub records: u64,
    /// Operations at most, all threads together.
    pub operations: u64,
    /// Time at most, unless the workload builds the data set.
    pub seconds: f64,
    /// Threads.
    pub threads: usize,
    /// Overrides the workload's own.
    pub distribution: Option<Distribution>,
    /// Operations a second, all threads together, begun on schedule whatever the store does; none: as fast as it goes.
    pub rate: Option<f64>,
    /// Same seed, same sequence of operations per thread.
    pub seed: u64,
    /// How long to wait at most for background work to end after the operations.
    pub rest_max: Duration,
}

/// What a phase gave.
#[derive(Debug)]
pub struct PhaseOutcome {
    /// Operations done.
    pub operations: u64,
    /// From the first operation's start to the last one's end.
    pub elapsed: Duration,
    /// Nanoseconds per operation.
    pub latencies: Histogram<u64>,
    /// Processor time from the start until background work came to rest.
    pub cpu: Duration,
    /// Bytes written from the start until background work came to rest.
    pub bytes_written: u64,
    /// Bytes fetched from storage meanwhile.
    pub bytes_read: u64,
    /// How long background work went on after the last operation.
    pub settled: Duration,
    /// Processors that others kept busy during the operations.
    pub neighbours: f64,
    /// Operations in each full second.
    pub per_second: Vec<u64>,
    /// The phase by stretches of time, where that was asked for.
    pub windows: Vec<Window>,
}

/// One stretch of a phase: the operations that ended in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Window {
    /// Seconds from the start of the phase to its own.
    pub from_s: f64,
    /// How long it was: a last one may be shorter than the others.
    pub length_s: f64,
    /// Operations a second, all threads together.
    pub ops_per_s: f64,
    /// Latency: median, in microseconds.
    pub p50_us: f64,
    /// Latency: 99 of 100 are at or below.
    pub p99_us: f64,
    /// Latency: 999 of 1,000.
    pub p999_us: f64,
    /// Latency: the longest.
    pub max_us: f64,
    /// Reads that found their row in the store's row cache, of all in this stretch; none where there were none to count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
    /// What the process used in this stretch; none where nobody looked at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<WindowUsage>,
}

/// What the process used in a stretch of a phase: all of it, background work and harness included. Where nobody looked at the end of the
/// stretch itself it is the mean of the time between the looks around.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WindowUsage {
    /// Processors kept busy.
    pub processors: f64,
    /// Bytes a second dirtied in files, by the kernel's account.
    pub written_per_s: f64,
    /// Bytes a second fetched from storage, by the kernel's account.
    pub read_per_s: f64,
    /// Bytes a second put into the log, by the store's account and to a segment; 0 where it has none.
    pub log_per_s: f64,
    /// Bytes a second that moved or merged below the log, by the store's account; 0 where it has none.
    pub below_log_per_s: f64,
}

/// How far a running phase is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Operations done.
    pub operations: u64,
    /// From 0 to 1: of the operations or of the time, whichever is further.
    pub fraction: f64,
    /// Operations a second so far.
    pub per_second: f64,
}

/// The rows that exist: those loaded and those inserted since. Shared by all threads and all phases.
#[derive(Debug)]
pub struct Population {
    next: AtomicU64,
    /// Per thread, a lower bound of the record it is inserting; `u64::MAX` for none.
    inserting: Vec<Padded>,
}

#[derive(Debug)]
#[repr(align(128))]
struct Padded(AtomicU64);

impl Population {
    /// Records `0..rows` exist.
    pub fn new(rows: u64) -> Population {
        let inserting = (0..THREADS_MAX).map(|_| Padded(AtomicU64::new(u64::MAX))).collect();
        Population { next: AtomicU64::new(rows), inserting }
    }

    /// Only records `0..rows` exist.
    pub fn reset(&self, rows: u64) {
        self.next.store(rows, Ordering::SeqCst);
    }

    /// The record that `thread` is to insert now.
    fn claim(&self, thread: usize) -> u64 {
        // Announced before it is taken, so that `existing` never passes a record whose insert has not returned.
        self.inserting[thread].0.store(self.next.load(Ordering::SeqCst), Ordering::SeqCst);
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    fn inserted(&self, thread: usize) {
        self.inserting[thread].0.store(u64::MAX, Ordering::Release);
    }

    /// All records below this have been inserted.
    #[inline]
    pub fn existing(&self, threads: usize) -> u64 {
        let next = self.next.load(Ordering::SeqCst);
        self.inserting[..threads]
            .iter()
            .fold(next, |least, record| least.min(record.0.load(Ordering::Acquire)))
    }
}

/// Runs one phase and waits for the store's background work to end. `watch` is told how far it is ten times a second.
pub fn run_phase(
    store: &mut dyn BenchStore,
    shape: RowShape,
    population: &Population,
    plan: &Plan,
    watch: &mut dyn FnMut(Progress),
) -> Result<PhaseOutcome, String> {
    run_phase_by_window(store, shape, population, plan, None, watch)
}

/// [`run_phase`], with the course of the phase in windows of a given length.
pub fn run_phase_by_window(
    store: &mut dyn BenchStore,
    shape: RowShape,
    population: &Population,
    plan: &Plan,
    window: Option<Duration>,
    watch: &mut dyn FnMut(Progress),
) -> Result<PhaseOutcome, String> {
    check_plan(plan)?;
    if plan.workload.builds() {
        store.clear()?;
        population.reset(0);
    } else if population.existing(plan.threads) == 0 {
        return Err(format!("workload {} needs rows: run load before it", plan.workload.name));
    }
    let before = Usage::now()?;
    let phase = Phase::new(store, shape, population, plan, window);
    let mut per_second = Vec::new();
    let neighbours = Neighbours::watch()?;
    let mut course = window.map(PhaseCourse::new);
    let results = phase.run(&mut per_second, course.as_mut(), watch)?;
    let neighbours = neighbours.processors()?;
    let rest = Instant::now();
    if plan.workload.builds() {
        if plan.workload.insert_share() == 0.0 {
            population.reset(0);
        }
        store.settle()?;
    }
    process::wait_until_idle(plan.rest_max);
    let settled = rest.elapsed();
    let after = Usage::now()?;
    let mut latencies = new_histogram()?;
    for result in &results {
        latencies.add(&result.latencies).map_err(|error| error.to_string())?;
    }
    let first = results.iter().map(|result| result.start).min().ok_or("no threads")?;
    let last = results.iter().map(|result| result.end).max().ok_or("no threads")?;
    Ok(PhaseOutcome {
        operations: results.iter().map(|result| result.operations).sum(),
        elapsed: last - first,
        latencies,
        cpu: after.cpu - before.cpu,
        bytes_written: after.bytes_written - before.bytes_written,
        bytes_read: after.bytes_read - before.bytes_read,
        settled,
        neighbours,
        per_second,
        windows: match (&course, window) {
            (Some(course), Some(length)) => windows(&results, course, length, last - first)?,
            _ => Vec::new(),
        },
    })
}

/// Puts the threads' windows together. A last one shorter than half is left out.
fn windows(
    results: &[ThreadResult],
    course: &PhaseCourse,
    length: Duration,
    elapsed: Duration,
) -> Result<Vec<Window>, String> {
    let count = results.iter().map(|result| result.windows.len()).max().unwrap_or(0);
    let mut windows: Vec<Window> = Vec::with_capacity(count);
    let mut latencies = new_histogram()?;
    for at in 0..count {
        latencies.reset();
        for (value, count) in results.iter().filter_map(|result| result.windows.get(at)).flatten() {
            latencies.saturating_record_n(*value, *count);
        }
        let from = length.as_secs_f64() * at as f64;
        let seconds = length.as_secs_f64().min(elapsed.as_secs_f64() - from);
        if at > 0 && seconds < length.as_secs_f64() / 2.0 {
            break;
        }
        let start = length * at as u32;
        let end = start + Duration::from_secs_f64(seconds.max(0.0));
        let microseconds = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
        windows.push(Window {
            from_s: from,
            length_s: seconds.max(0.0),
            ops_per_s: latencies.len() as f64 / seconds.max(1e-9),
            p50_us: microseconds(0.5),
            p99_us: microseconds(0.99),
            p999_us: microseconds(0.999),
            max_us: latencies.max() as f64 / 1000.0,
            hit_ratio: course.hit_ratio(start, end),
            used: course.used(start, end),
        });
    }
    Ok(windows)
}

fn check_plan(plan: &Plan) -> Result<(), String> {
    if !(1..=THREADS_MAX).contains(&plan.threads) {
        return Err(format!("--threads must be 1 to {THREADS_MAX}, not {}", plan.threads));
    }
    if plan.records == 0 || plan.operations == 0 {
        return Err("--records and --operations must be at least 1".into());
    }
    if !(plan.seconds > 0.0 && plan.seconds <= 1e6) {
        return Err(format!("--seconds must be above 0 and at most a million, not {}", plan.seconds));
    }
    match plan.rate {
        Some(rate) if !(rate > 0.0 && rate <= 1e9) => {
            Err(format!("--rate must be above 0 and at most 1e9, not {rate}"))
        }
        _ => Ok(()),
    }
}

fn new_histogram() -> Result<Histogram<u64>, String> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).map_err(|error| error.to_string())
}

/// What one thread did.
struct ThreadResult {
    operations: u64,
    latencies: Histogram<u64>,
    windows: Vec<Sparse>,
    start: Instant,
    end: Instant,
}

/// A histogram's values that occur, and how often.
type Sparse = Vec<(u64, u64)>;

/// Cuts one thread's latencies into windows.
struct Cutter {
    length: Duration,
    end: Instant,
    total: Histogram<u64>,
    windows: Vec<Sparse>,
}

impl Cutter {
    fn new(start: Instant, length: Duration) -> Result<Cutter, String> {
        Ok(Cutter { length, end: start + length, total: new_histogram()?, windows: Vec::new() })
    }

    /// Ends the window, and those that nothing ended in, until `now` lies in the next.
    #[cold]
    fn cut(&mut self, now: Instant, latencies: &mut Histogram<u64>) -> Result<(), String> {
        while now >= self.end {
            self.windows.push(sparse(latencies));
            self.total.add(&*latencies).map_err(|error| error.to_string())?;
            latencies.reset();
            self.end += self.length;
        }
        Ok(())
    }

    /// All windows, and the latencies of all of them together.
    fn finish(mut self, latencies: Histogram<u64>) -> Result<(Vec<Sparse>, Histogram<u64>), String> {
        self.windows.push(sparse(&latencies));
        self.total.add(&latencies).map_err(|error| error.to_string())?;
        Ok((self.windows, self.total))
    }
}

fn sparse(latencies: &Histogram<u64>) -> Sparse {
    latencies.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
}

struct Phase<'a> {
    store: &'a dyn BenchStore,
    shape: RowShape,
    population: &'a Population,
    plan: &'a Plan,
    window: Option<Duration>,
    operations: u64,
    seconds: f64,
    done: Vec<Padded>,
    finished: AtomicU64,
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
    barrier: Barrier,
}

impl<'a> Phase<'a> {
    fn new(
        store: &'a dyn BenchStore,
        shape: RowShape,
        population: &'a Population,
        plan: &'a Plan,
        window: Option<Duration>,
    ) -> Phase<'a> {
        let (operations, seconds) = match plan.workload.extent {
            Extent::Records => (plan.records, f64::INFINITY),
            Extent::Pass => (population.existing(plan.threads), f64::INFINITY),
            Extent::Asked => (plan.operations, plan.seconds),
        };
        Phase {
            store,
            shape,
            population,
            plan,
            window,
            operations,
            seconds,
            done: (0..plan.threads).map(|_| Padded(AtomicU64::new(0))).collect(),
            finished: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
            barrier: Barrier::new(plan.threads + 1),
        }
    }

    fn run(
        &self,
        per_second: &mut Vec<u64>,
        course: Option<&mut PhaseCourse>,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<Vec<ThreadResult>, String> {
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.plan.threads)
                .map(|thread| {
                    scope.spawn(move || {
                        let result = self.run_thread(thread);
                        self.finished.fetch_add(1, Ordering::Release);
                        result.map_err(|error| self.fail(error)).ok()
                    })
                })
                .collect();
            self.barrier.wait();
            self.watch(per_second, course, watch).unwrap_or_else(|error| self.fail(error));
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        let failure = self.failure.lock().ok().and_then(|mut failure| failure.take());
        if let Some(failure) = failure {
            return Err(failure);
        }
        let results: Option<Vec<_>> = results.into_iter().map(|result| result.ok().flatten()).collect();
        results.ok_or_else(|| format!("a thread of {} panicked", self.plan.workload.name))
    }

    fn fail(&self, error: String) {
        self.stop.store(true, Ordering::Relaxed);
        if let Ok(mut failure) = self.failure.lock() {
            failure.get_or_insert(error);
        }
    }

    fn watch(
        &self,
        per_second: &mut Vec<u64>,
        mut course: Option<&mut PhaseCourse>,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<(), String> {
        const STEP: Duration = Duration::from_millis(100);
        let start = Instant::now();
        let mut counted = 0;
        let mut tick = 1;
        let mut last_done = 0;
        if let Some(course) = &mut course {
            course.look(Duration::ZERO, self.store)?;
        }
        while self.finished.load(Ordering::Acquire) < self.plan.threads as u64 {
            let next = STEP * tick;
            let next_look = course.as_ref().map_or(next, |course| course.next());
            // Short steps at first, so that a phase that is over at once is not waited for.
            let wait = next.min(next_look).saturating_sub(start.elapsed());
            std::thread::sleep(wait.min(Duration::from_millis(10)));
            let elapsed = start.elapsed();
            if let Some(course) = course.as_mut().filter(|course| elapsed >= course.next()) {
                course.look(elapsed, self.store)?;
            }
            if start.elapsed() < next {
                continue;
            }
            let done = self.done.iter().map(|done| done.0.load(Ordering::Relaxed)).sum::<u64>();
            if tick.is_multiple_of(10) {
                per_second.push(done - counted);
                counted = done;
            }
            tick += 1;
            let elapsed = start.elapsed().as_secs_f64();
            let fraction = (done as f64 / self.operations as f64).max(elapsed / self.seconds).min(1.0);
            if done != last_done || tick.is_multiple_of(10) {
                watch(Progress { operations: done, fraction, per_second: done as f64 / elapsed });
            }
            last_done = done;
        }
        // The last window may have ended with the phase.
        course.map_or(Ok(()), |course| course.look(start.elapsed(), self.store))
    }

    fn run_thread(&self, thread: usize) -> Result<ThreadResult, String> {
        let prepared = self.prepare(thread);
        // All threads start together, the failed ones too: the others wait for them.
        self.barrier.wait();
        let (mut actor, mut latencies) = prepared?;
        let threads = self.plan.threads as u64;
        let quota = self.operations / threads + u64::from((thread as u64) < self.operations % threads);
        let done = &self.done[thread].0;
        let start = Instant::now();
        let deadline = start.checked_add(Duration::try_from_secs_f64(self.seconds).unwrap_or(Duration::MAX));
        let schedule =
            self.plan.rate.map(|rate| Schedule::new(start, rate / threads as f64, thread as u64, threads));
        let mut cutter = self.window.map(|length| Cutter::new(start, length)).transpose()?;
        let mut operations = 0;
        let mut before = start;
        while operations < quota {
            if let Some(schedule) = &schedule {
                before = schedule.wait(operations);
            }
            actor.act()?;
            let now = Instant::now();
            let mut resumed = now;
            if let Some(cutter) = cutter.as_mut().filter(|cutter| now >= cutter.end) {
                cutter.cut(now, &mut latencies)?;
                // No operation is charged with the cutting.
                resumed = Instant::now();
            }
            latencies.saturating_record((now - before).as_nanos() as u64);
            before = resumed;
            operations += 1;
            done.store(operations, Ordering::Relaxed);
            if deadline.is_some_and(|deadline| now >= deadline) || self.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        let (windows, latencies) = match cutter {
            Some(cutter) => cutter.finish(latencies)?,
            None => (Vec::new(), latencies),
        };
        Ok(ThreadResult { operations, latencies, windows, start, end: before })
    }

    fn prepare(&self, thread: usize) -> Result<(Actor<'a>, Histogram<u64>), String> {
        let plan = self.plan;
        let seed = plan.seed.wrapping_mul(0x1_0001).wrapping_add(thread as u64);
        let existing = self.population.existing(plan.threads).max(1);
        let records = if plan.workload.builds() { plan.records } else { existing };
        // YCSB leaves room for twice the inserts it expects.
        let expected = (self.operations as f64 * plan.workload.insert_share() * 2.0) as u64;
        let distribution = plan.distribution.filter(|_| !plan.workload.builds());
        let distribution = distribution.unwrap_or(plan.workload.distribution);
        let actor = Actor {
            session: self.store.session()?,
            workload: plan.workload,
            population: self.population,
            thread,
            threads: plan.threads,
            records,
            shape: self.shape,
            chooser: KeyChooser::new(distribution, records, expected),
            random: Random::from_seed(seed),
            source: RowSource::new(self.shape, seed),
            sink: RowSink::new(self.shape),
            chosen: Vec::with_capacity(self.shape.fields),
            turn: thread as u64,
        };
        Ok((actor, new_histogram()?))
    }
}

/// When each operation of a thread is due.
struct Schedule {
    start: Instant,
    interval: f64,
    /// The threads' schedules interleave.
    offset: f64,
}

impl Schedule {
    fn new(start: Instant, rate: f64, thread: u64, threads: u64) -> Schedule {
        let interval = 1.0 / rate;
        Schedule { start, interval, offset: interval * thread as f64 / threads as f64 }
    }

    /// Waits until operation `number` is due and returns when that was: in the past, if the store is late.
    fn wait(&self, number: u64) -> Instant {
        let due = self.start + Duration::from_secs_f64(self.offset + self.interval * number as f64);
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return due;
            }
            if left > Duration::from_micros(200) {
                std::thread::sleep(left - Duration::from_micros(100));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// One thread's state: draws operations and does them.
struct Actor<'a> {
    session: Box<dyn Session + 'a>,
    workload: &'static Workload,
    population: &'a Population,
    thread: usize,
    threads: usize,
    /// Records to choose from in a fill.
    records: u64,
    shape: RowShape,
    chooser: KeyChooser,
    random: Random,
    source: RowSource,
    sink: RowSink,
    /// The fields of an update of several.
    chosen: Vec<usize>,
    /// The next record of a pass over all; each thread has every so manieth.
    turn: u64,
}

impl Actor<'_> {
    #[inline]
    fn act(&mut self) -> Result<(), String> {
        match self.workload.next(&mut self.random) {
            Operation::Insert => {
                let key = key_of(self.population.claim(self.thread));
                let outcome = self.session.insert(&key, self.source.row(&key, &mut self.random));
                self.population.inserted(self.thread);
                outcome
            }
            Operation::Put => {
                let key = key_of(self.chooser.next(&mut self.random, self.records));
                self.session.insert(&key, self.source.row(&key, &mut self.random))
            }
            Operation::ReadFull => self.read(Columns::All, self.shape.fields),
            Operation::ReadPartial => {
                let field = self.field();
                self.read(Columns::Some(&[field]), 1)
            }
            Operation::LookUp => {
                let key = key_of(self.existing());
                match self.session.look_up(&key)? {
                    true => Ok(()),
                    false => Err("a look-up did not find its row".into()),
                }
            }
            Operation::Update => {
                let (record, field) = (self.existing(), self.field());
                let key = key_of(record);
                self.session.update(&key, field, self.source.value(&key, field, &mut self.random))
            }
            Operation::UpdateFields(count) => {
                let (record, first, fields) = (self.existing(), self.field(), self.shape.fields);
                let key = key_of(record);
                self.chosen.clear();
                self.chosen.extend((first..first + count.min(fields)).map(|field| field % fields));
                let values = self.source.values(&key, &self.chosen, &mut self.random);
                self.session.update_fields(&key, &self.chosen, values)
            }
            Operation::ReadModifyWrite => {
                let (record, field) = (self.existing(), self.field());
                let key = key_of(record);
                let value = self.source.value(&key, field, &mut self.random);
                self.sink.clear();
                self.session.read_modify_write(&key, field, value, &mut self.sink)?;
                self.sink.check_read(&key, self.shape.fields)
            }
            Operation::PutNext => {
                let key = key_of(self.turn);
                // Past the end of the records it begins again.
                self.turn = (self.turn + self.threads as u64) % self.population.existing(self.threads).max(1);
                self.session.insert(&key, self.source.row(&key, &mut self.random))
            }
            Operation::ScanFull => self.scan(Columns::All, self.shape.fields),
            Operation::ScanKeys => self.scan(Columns::Some(&[]), 0),
            Operation::ScanPartial => {
                let field = self.field();
                self.scan(Columns::Some(&[field]), 1)
            }
        }
    }

    fn existing(&mut self) -> u64 {
        self.chooser.next(&mut self.random, self.population.existing(self.threads))
    }

    fn field(&mut self) -> usize {
        self.random.below(self.shape.fields as u64) as usize
    }

    fn read(&mut self, columns: Columns<'_>, values: usize) -> Result<(), String> {
        let key = key_of(self.existing());
        self.sink.clear();
        self.session.read(&key, columns, &mut self.sink)?;
        self.sink.check_read(&key, values)
    }

    fn scan(&mut self, columns: Columns<'_>, values: usize) -> Result<(), String> {
        let rows = self.workload.scan.next(&mut self.random);
        let records = self.population.existing(self.threads);
        let key = key_of(self.chooser.next(&mut self.random, records));
        self.sink.clear();
        self.session.scan(&key, rows, columns, &mut self.sink)?;
        self.sink.check_scan(&key, rows, values, records)
    }
}

#[cfg(test)]
mod tests;
