//! A long mixed load on a store of more rows than its fast tier holds, of which each row that is read is compared with what was written last: whether the store keeps its
//! promises and its budgets, how long calls take, and whether what is deleted is given back.
//!
//! `cargo run --release -p hedgerow --example mixed_load -- dir=DIR seconds=3600 rows=2000000 row-bytes=1000 fast-mib=200 index-mib=25 capacity-mib=8192 threads=2 seed=1 idle=300
//! kills=2 gdb=0`. Rows come in random order, and then in turn, for `seconds` in all: YCSB A (half reads, half updates of one field, zipfian), YCSB E (scans of up to 100 rows, and one
//! write in twenty), a delete of half of the keys, A again, and the deleted rows anew. After that the store rests for 60 seconds, half of the rows are deleted, and it rests for `idle` seconds
//! at most, until the deleted bytes are given back. Then it is closed, opened, read whole, and checked as `hedgerow check` does; and `kills` times another process writes to it and is killed.
//!
//! A line a second: calls a second of each kind, the longest call of the second in ms, and what metrics say. A call that takes more than 100 ms is looked at while it lasts: what the
//! store is doing, and where in the kernel the thread is (and with `gdb=1` where all threads are, which takes gdb, and time).
//!
//! It fails if a row is lost or wrong, a call is refused, a budget is exceeded, or the check finds something; not for calls that take long, which may be the machine's doing.
#![allow(clippy::disallowed_methods, reason = "measures the machine as it is")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "shared/arguments.rs"]
#[allow(dead_code, reason = "its store has other options")]
mod arguments;
#[path = "shared/versioned_rows.rs"]
mod versioned_rows;
#[path = "shared/zipf.rs"]
mod zipf;

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arguments::Arguments;
use hedgerow::inspect::View;
use hedgerow::{Db, Metrics, Options, Result};
use hedgerow_device::Random;
use versioned_rows::{Model, VersionedRows, key_of};
use zipf::Zipf;

const KINDS: [&str; 6] = ["get", "scan", "update", "put", "delete", "remove"];
const GET: usize = 0;
const SCAN: usize = 1;
const UPDATE: usize = 2;
const PUT: usize = 3;
const DELETE: usize = 4;
const REMOVE: usize = 5;
/// Calls that took longer are listed in the end.
const LONG: Duration = Duration::from_millis(50);
/// No call should take so long.
const TOO_LONG: Duration = Duration::from_millis(100);
/// So many problems are told, and the others counted.
const PROBLEMS_TOLD: u64 = 20;
/// A process that is to be killed tells after so many writes how far it is.
const TOLD_EACH: u64 = 64;

struct Settings {
    dir: PathBuf,
    seconds: u64,
    rows: u64,
    row_bytes: u64,
    options: Options,
    threads: u64,
    seed: u64,
    idle: Duration,
    kills: u64,
    gdb: bool,
}

impl Settings {
    fn given(arguments: &Arguments) -> Settings {
        let number = |name, default| arguments.number(name, default);
        let (rows, row_bytes, fast_mib) =
            (number("rows", 2_000_000), number("row-bytes", 1000), number("fast-mib", 200));
        Settings {
            dir: arguments.text("dir").expect("dir=DIR").into(),
            seconds: number("seconds", 3600),
            rows,
            row_bytes,
            options: Options {
                fast_tier_bytes_max: fast_mib << 20,
                index_bytes_max: number("index-mib", (fast_mib / 8).max(8)) << 20,
                capacity_bytes_max: number("capacity-mib", (4 * rows * row_bytes) >> 20) << 20,
                ..Options::default()
            },
            threads: number("threads", 2),
            seed: number("seed", 1),
            idle: Duration::from_secs(number("idle", 300)),
            kills: number("kills", 2),
            gdb: number("gdb", 0) == 1,
        }
    }

    fn open(&self) -> Result<(Db, VersionedRows)> {
        let db = Db::open_with(&self.dir, self.options.clone())?;
        let rows = VersionedRows::ensure(&db, self.row_bytes as usize)?;
        Ok((db, rows))
    }
}

/// A call that took long.
struct Stall {
    kind: usize,
    ended: Duration,
    took: Duration,
    phase: &'static str,
    /// What was done meanwhile, as far as metrics tell: those before are of the second before.
    doing: String,
}

/// What a thread is at.
#[derive(Default)]
struct Caller {
    /// When its call began, in ns since the run did; 0 between calls.
    since: AtomicU64,
    kind: AtomicU64,
    task: AtomicU64,
}

/// What all threads of a run share.
struct Run<'a> {
    settings: &'a Settings,
    began: Instant,
    model: Model,
    zipf: Zipf,
    calls: [AtomicU64; KINDS.len()],
    /// Of this second, in ns.
    longest: AtomicU64,
    callers: Vec<Caller>,
    stalls: Mutex<Vec<Stall>>,
    phase: Mutex<&'static str>,
    problems: AtomicU64,
    /// As of the last line.
    before: Mutex<Metrics>,
    stop: AtomicBool,
}

impl Run<'_> {
    /// A promise is broken.
    fn problem(&self, text: &str) {
        if self.problems.fetch_add(1, Ordering::Relaxed) < PROBLEMS_TOLD {
            println!(
                "BROKEN at {:.1} s, {}: {text}",
                self.began.elapsed().as_secs_f64(),
                self.phase.lock().unwrap()
            );
        }
    }

    fn call<R>(&self, db: &Db, thread: u64, kind: usize, call: impl FnOnce() -> Result<R>) -> Option<R> {
        let (caller, start) = (&self.callers[thread as usize], self.began.elapsed());
        caller.kind.store(kind as u64, Ordering::Relaxed);
        caller.since.store(start.as_nanos() as u64, Ordering::Release);
        let result = call();
        caller.since.store(0, Ordering::Release);
        let (ended, phase) = (self.began.elapsed(), || *self.phase.lock().unwrap());
        let took = ended - start;
        self.calls[kind].fetch_add(1, Ordering::Relaxed);
        self.longest.fetch_max(took.as_nanos() as u64, Ordering::Relaxed);
        if took > LONG {
            let doing = doing(&self.before.lock().unwrap(), &db.metrics());
            self.stalls.lock().unwrap().push(Stall { kind, ended, took, phase: phase(), doing });
        }
        result.map_err(|error| self.problem(&format!("{}: {error}", KINDS[kind]))).ok()
    }

    fn get(&self, db: &Db, rows: &VersionedRows, thread: u64, n: u64) {
        let found = self.call(db, thread, GET, || rows.check(&self.model, n));
        found.flatten().inspect(|problem| self.problem(problem));
    }

    fn put(&self, db: &Db, rows: &VersionedRows, thread: u64, n: u64) {
        self.model.write(n, true, |state| self.call(db, thread, PUT, || rows.put(n, state.version)));
    }

    fn delete(&self, db: &Db, rows: &VersionedRows, thread: u64, n: u64) {
        if n.is_multiple_of(3) {
            self.model.write(n, false, |_| self.call(db, thread, REMOVE, || rows.table.remove(&key_of(n))));
            return;
        }
        let was_there = self.model.state(n).is_there;
        let found =
            self.model.write(n, false, |_| self.call(db, thread, DELETE, || rows.table.delete(&key_of(n))));
        if found.is_some_and(|found| found != was_there) {
            self.problem(&format!("delete of row {n} says {found:?}"));
        }
    }

    /// The key nearest to `n` that this thread may write.
    fn own(&self, thread: u64, n: u64) -> u64 {
        let own = n - n % self.settings.threads + thread;
        if own < self.model.keys() { own } else { thread }
    }

    /// One operation of YCSB A.
    fn point(&self, db: &Db, rows: &VersionedRows, thread: u64, random: &mut Random) {
        let n = self.zipf.next(random);
        let own = self.own(thread, n);
        match random.below(2) == 0 && self.model.state(own).is_there {
            true => {
                self.model.write(own, true, |state| {
                    self.call(db, thread, UPDATE, || rows.update(own, state.version))
                });
            }
            false => self.get(db, rows, thread, n),
        }
    }

    /// One operation of YCSB E.
    fn range(&self, db: &Db, rows: &VersionedRows, thread: u64, random: &mut Random) {
        if random.below(20) == 0 {
            self.put(db, rows, thread, self.own(thread, random.below(self.model.keys())));
            return;
        }
        let (from, limit) = (self.zipf.next(random), 1 + random.below(100) as usize);
        let found = self.call(db, thread, SCAN, || rows.check_scan(&self.model, from, limit));
        found.flatten().inspect(|problem| self.problem(problem));
    }

    /// Runs a phase on all threads: `work` is given the thread's number and a source of its own, and says whether it goes on.
    fn phase(
        &self,
        name: &'static str,
        round: u64,
        time: Duration,
        work: impl Fn(u64, &mut Random, u64) -> bool + Sync,
    ) {
        *self.phase.lock().unwrap() = name;
        let until = self.began.elapsed() + time;
        std::thread::scope(|scope| {
            for thread in 0..self.settings.threads {
                let work = &work;
                scope.spawn(move || {
                    let task = std::fs::read_link("/proc/thread-self").unwrap_or_default();
                    let task = task.file_name().and_then(|name| name.to_str()?.parse().ok());
                    self.callers[thread as usize].task.store(task.unwrap_or(0), Ordering::Relaxed);
                    let mut random = Random::from_seed(self.settings.seed ^ round << 32 ^ thread << 16);
                    for step in 0.. {
                        if self.began.elapsed() > until || !work(thread, &mut random, step) {
                            return;
                        }
                    }
                });
            }
        });
    }

    /// Goes through all keys in random order, as long as there is time.
    fn all_keys(&self, name: &'static str, round: u64, time: Duration, of_key: impl Fn(u64, u64) + Sync) {
        let threads = self.settings.threads;
        self.phase(name, round, time, |thread, _, step| {
            let n = step * threads + thread;
            if n >= self.model.keys() {
                return false;
            }
            let n = scattered(n / threads, round, self.model.keys() / threads) * threads + thread;
            of_key(thread, n);
            true
        });
    }

    fn delete_half(&self, db: &Db, rows: &VersionedRows, round: u64, time: Duration) {
        self.all_keys("delete", round, time, |thread, n| {
            let goes = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(round as u32 + 7) & 1 == 1;
            if goes && self.model.state(n).is_there {
                self.delete(db, rows, thread, n);
            }
        });
    }

    /// All phases, until the time is over.
    fn load(&self, db: &Db, rows: &VersionedRows) {
        let until = Duration::from_secs(self.settings.seconds);
        let left = || until.saturating_sub(self.began.elapsed());
        let share = (until / 10).min(Duration::from_secs(60));
        self.all_keys("fill", 0, Duration::MAX / 2, |thread, n| self.put(db, rows, thread, n));
        for round in 1.. {
            let step = || share.min(left());
            self.phase("A", round, step(), |thread, random, _| {
                self.point(db, rows, thread, random);
                true
            });
            self.phase("E", round, step(), |thread, random, _| {
                self.range(db, rows, thread, random);
                true
            });
            self.delete_half(db, rows, round, left());
            self.phase("A", round + (1 << 20), step(), |thread, random, _| {
                self.point(db, rows, thread, random);
                true
            });
            self.all_keys("insert", round, left(), |thread, n| {
                if !self.model.state(n).is_there {
                    self.put(db, rows, thread, n);
                }
            });
            if left().is_zero() {
                return;
            }
        }
    }

    fn check_budgets(&self, metrics: &Metrics) {
        let (lower, options) = (&metrics.sorted_tables, &self.settings.options);
        let budgets = [
            ("the fast tier", metrics.fast_tier_bytes, options.fast_tier_bytes_max),
            ("the index", metrics.index_bytes, options.index_bytes_max),
            ("the cache of blocks", lower.block_cache_bytes, lower.block_cache_bytes_max),
            ("sorted tables", lower.bytes, options.capacity_bytes_max),
        ];
        for (what, bytes, bytes_max) in budgets {
            if bytes > bytes_max {
                self.problem(&format!("{what} takes {bytes} bytes, and may take {bytes_max}"));
            }
        }
        if let Some(failure) = &lower.move_failure {
            println!("       a move failed {} ms ago: {}", failure.ago_ms, failure.message);
        }
    }

    /// Says each second what is done, and of calls that take too long what the store does meanwhile.
    fn watch(&self, db: &Db) {
        let (mut said, mut calls) = (Instant::now(), [0; KINDS.len()]);
        let mut looked_at = vec![0; self.callers.len()];
        while !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
            for (caller, looked_at) in self.callers.iter().zip(&mut looked_at) {
                let since = caller.since.load(Ordering::Acquire);
                let lasts = self.began.elapsed().saturating_sub(Duration::from_nanos(since));
                if since != 0 && since != *looked_at && lasts > TOO_LONG {
                    *looked_at = since;
                    self.look_at(caller, db);
                }
            }
            if said.elapsed() >= Duration::from_secs(1) {
                let metrics = db.metrics();
                self.say(&metrics, &mut calls, said.elapsed());
                self.check_budgets(&metrics);
                *self.before.lock().unwrap() = metrics;
                said = Instant::now();
            }
        }
    }

    fn look_at(&self, caller: &Caller, db: &Db) {
        let task = caller.task.load(Ordering::Relaxed);
        let stack = std::fs::read_to_string(format!("/proc/self/task/{task}/stack")).unwrap_or_default();
        let stack: Vec<_> = stack.lines().filter_map(|line| line.split_whitespace().nth(1)).take(6).collect();
        let doing = doing(&self.before.lock().unwrap(), &db.metrics());
        let kind = KINDS[caller.kind.load(Ordering::Relaxed) as usize];
        println!("       a {kind} takes more than 100 ms: {doing}; in the kernel: {}", stack.join(" < "));
        if self.settings.gdb {
            let process = std::process::id().to_string();
            let backtraces = ["-p", &process, "-batch", "-ex", "thread apply all bt 14"];
            if let Ok(output) = Command::new("gdb").args(backtraces).output() {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                text.lines()
                    .filter(|line| line.starts_with(['#', 'T']))
                    .for_each(|line| println!("       {line}"));
            }
        }
    }

    fn say(&self, metrics: &Metrics, calls: &mut [u64; KINDS.len()], took: Duration) {
        let mut rates = String::new();
        for (kind, before) in calls.iter_mut().enumerate() {
            let now = self.calls[kind].load(Ordering::Relaxed);
            if now > *before {
                let rate = (now - *before) as f64 / took.as_secs_f64();
                rates += &format!("{} {rate:.0} ", KINDS[kind]);
            }
            *before = now;
        }
        let lower = &metrics.sorted_tables;
        println!(
            "{:>5} s {:<6} {rates:<34} max {:>6.1} ms | fast {:>4} MiB idx {:>5.1} MiB | runs {:>2} files {:>3} {:>5} MiB, to move {:>3} MiB, garbage {:>4} MiB, moves {} merges {} | throttle {} ns/KiB, anon {} MiB",
            self.began.elapsed().as_secs(),
            *self.phase.lock().unwrap(),
            self.longest.swap(0, Ordering::Relaxed) as f64 / 1e6,
            metrics.fast_tier_bytes >> 20,
            metrics.index_bytes as f64 / 1048576.0,
            lower.runs,
            lower.files,
            lower.bytes >> 20,
            lower.bytes_to_move >> 20,
            lower.garbage_bytes >> 20,
            lower.moves,
            lower.merges,
            metrics.write_throttle_ns_per_kib,
            anonymous_bytes() >> 20,
        );
    }

    /// Every row is there that should be, and no other: by gets, and by a scan of all.
    fn verify(&self, rows: &VersionedRows) {
        for n in 0..self.model.keys() {
            match rows.check(&self.model, n) {
                Ok(problem) => drop(problem.inspect(|problem| self.problem(problem))),
                Err(error) => self.problem(&error.to_string()),
            }
        }
        let mut scanned = 0;
        if let Err(error) = rows.table.scan().for_each(|_, _| {
            scanned += 1;
            Ok(true)
        }) {
            self.problem(&error.to_string());
        }
        let there = self.model.there();
        if scanned != there {
            self.problem(&format!("a scan finds {scanned} rows, and there are {there}"));
        }
        println!("{there} rows read, and all keys that have none");
    }

    /// As `hedgerow check` does.
    fn check(&self) {
        let began = Instant::now();
        match View::open(&self.settings.dir).and_then(|view| view.check(|_| ())) {
            Ok(report) => {
                report.problems.iter().for_each(|problem| self.problem(&format!("check: {problem}")));
                println!(
                    "checked {} segments, {} sorted tables, {} rows in {:.1} s: {} problems",
                    report.segments,
                    report.sorted_tables,
                    report.rows,
                    began.elapsed().as_secs_f64(),
                    report.problems.len()
                );
            }
            Err(error) => self.problem(&format!("check: {error}")),
        }
    }

    fn say_stalls(&self) {
        let mut stalls = self.stalls.lock().unwrap();
        stalls.sort_by_key(|stall| std::cmp::Reverse(stall.took));
        let too_long = stalls.iter().filter(|stall| stall.took > TOO_LONG).count();
        println!("{} calls took more than 50 ms, {too_long} more than 100 ms", stalls.len());
        for Stall { kind, ended, took, phase, doing } in stalls.iter().take(30) {
            println!(
                "  {:>7.1} ms, a {} that ended at {:.2} s, {phase}: {doing}",
                took.as_secs_f64() * 1e3,
                KINDS[*kind],
                ended.as_secs_f64()
            );
        }
    }

    /// Bytes of the rows that there are, as they were given.
    fn bytes_of_rows(&self) -> u64 {
        self.model.there() * (self.settings.row_bytes + 24)
    }

    fn say_space(&self, db: &Db, when: &str) {
        let (metrics, of_rows) = (db.metrics(), self.bytes_of_rows());
        let lower = &metrics.sorted_tables;
        println!(
            "{when}: {} MiB of rows; sorted tables {} MiB ({:.2} of it), with the fast tier {:.2}; beside the index {:.2} bytes of memory a key",
            of_rows >> 20,
            lower.bytes >> 20,
            lower.bytes as f64 / of_rows as f64,
            (lower.bytes + metrics.fast_tier_allocated_bytes) as f64 / of_rows as f64,
            lower.memory_bytes as f64 / self.model.there().max(1) as f64,
        );
    }

    /// Deletes half of the rows, and waits until what they took is given back, or for as long as was asked for.
    fn give_back(&self, db: &Db, rows: &VersionedRows) {
        *self.phase.lock().unwrap() = "rest";
        std::thread::sleep(Duration::from_secs(60).min(self.settings.idle));
        self.say_space(db, "after a rest");
        let (bytes, of_rows) = (db.metrics().sorted_tables.bytes, self.bytes_of_rows());
        self.delete_half(db, rows, 20, Duration::MAX / 2);
        let deleted = of_rows - self.bytes_of_rows();
        *self.phase.lock().unwrap() = "rest";
        let (began, mut at_80) = (Instant::now(), None);
        while began.elapsed() < self.settings.idle {
            std::thread::sleep(Duration::from_millis(500));
            let given_back = bytes.saturating_sub(db.metrics().sorted_tables.bytes);
            if at_80.is_none() && given_back * 10 >= deleted * 8 {
                at_80 = Some(began.elapsed().as_secs_f64());
            }
        }
        let now = db.metrics().sorted_tables.bytes;
        println!(
            "{} MiB deleted: {:.0} % given back after {:.0} s, 80 % after {at_80:.1?} s",
            deleted >> 20,
            (bytes as f64 - now as f64) / deleted as f64 * 100.0,
            began.elapsed().as_secs_f64()
        );
        self.say_space(db, "after the deletes");
    }

    /// Another process writes and is killed; what it said that it had done is there.
    fn kill(&self, round: u64) -> Result<()> {
        *self.phase.lock().unwrap() = "killed";
        let states = self.settings.dir.join("states");
        let bytes: Vec<u8> = self.model.bits().iter().flat_map(|bits| bits.to_le_bytes()).collect();
        std::fs::write(&states, bytes).unwrap();
        let seed = self.settings.seed ^ round << 40;
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(std::env::args().skip(1)).arg(format!("to-be-killed={seed}"));
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let (began, mut told) = (Instant::now(), 0);
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines.map_while(std::io::Result::ok) {
            told = line.parse().unwrap();
            if began.elapsed() > Duration::from_secs((self.settings.seconds / 10).clamp(3, 20)) {
                // What it has said since is read as well.
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        std::fs::remove_file(states).unwrap();
        let start = Instant::now();
        let (db, rows) = self.settings.open()?;
        let took = start.elapsed().as_secs_f64();
        let gib = db.metrics().fast_tier_bytes as f64 / f64::from(1 << 30);
        println!(
            "killed after {told} writes; opened in {took:.3} s, {:.2} s a GiB of the fast tier",
            took / gib
        );
        let mut writes = Writes::new(seed);
        (0..told).for_each(|_| _ = writes.next(&self.model));
        // Of what it did not tell, any number of writes were done, and none after one that was not.
        let mut rest: Vec<u64> = Vec::new();
        let later = Model::of(&self.model.bits());
        for _ in 0..=TOLD_EACH {
            rest.push(writes.next(&later).0);
        }
        let mut writes = Writes::again(seed, told);
        let is_so = |rest: &[u64]| {
            rest.iter().all(|&n| rows.check(&self.model, n).is_ok_and(|problem| problem.is_none()))
        };
        let mut more = 0;
        while !is_so(&rest) && more <= TOLD_EACH {
            writes.next(&self.model);
            more += 1;
        }
        if more > TOLD_EACH {
            self.problem("what a killed process wrote last is no row of its writes");
        }
        self.verify(&rows);
        drop(rows);
        db.close()?;
        self.check();
        Ok(())
    }
}

/// The writes of a process that is killed, which another can repeat.
struct Writes(Random);

impl Writes {
    fn new(seed: u64) -> Writes {
        Writes(Random::from_seed(seed))
    }

    /// Those behind the first `skipped`, each of which takes two numbers.
    fn again(seed: u64, skipped: u64) -> Writes {
        let mut writes = Writes::new(seed);
        (0..2 * skipped).for_each(|_| _ = writes.0.next_u64());
        writes
    }

    /// What is written next, which the model has from then on: a row, what to do to it, and the version.
    fn next(&mut self, model: &Model) -> (u64, usize, u32) {
        let (n, choice) = (self.0.next_u64() % model.keys(), self.0.next_u64() % 8);
        let kind = match model.state(n).is_there {
            true if choice == 0 => REMOVE,
            true if choice < 4 => UPDATE,
            _ => PUT,
        };
        (n, kind, model.write(n, kind != REMOVE, |state| Some(state.version)).unwrap())
    }
}

/// Writes until it is killed, and tells now and then how often it has.
fn be_killed(settings: &Settings, seed: u64) -> Result<()> {
    let states = std::fs::read(settings.dir.join("states")).unwrap();
    let states: Vec<u32> =
        states.chunks(4).map(|bits| u32::from_le_bytes(bits.try_into().unwrap())).collect();
    let (_db, rows) = settings.open()?;
    let (model, mut writes) = (Model::of(&states), Writes::new(seed));
    for done in 1u64.. {
        let (n, kind, version) = writes.next(&model);
        match kind {
            REMOVE => rows.table.remove(&key_of(n))?,
            UPDATE => rows.update(n, version)?,
            _ => rows.put(n, version)?,
        }
        if done.is_multiple_of(TOLD_EACH) {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{done}").and_then(|()| out.flush()).unwrap();
        }
    }
    Ok(())
}

/// What the store did between two moments.
fn doing(before: &Metrics, now: &Metrics) -> String {
    let (one, two) = (&before.sorted_tables, &now.sorted_tables);
    format!(
        "moves {}->{}, merges {}->{}, {} segments collected, runs {}, to move {} MiB, live {} obsolete {} unused {} of {} MiB, throttle {} ns/KiB, {} syncs",
        one.moves,
        two.moves,
        one.merges,
        two.merges,
        now.segments_collected - before.segments_collected,
        two.runs,
        two.bytes_to_move >> 20,
        now.live_bytes >> 20,
        now.obsolete_bytes >> 20,
        now.unused_bytes >> 20,
        now.fast_tier_bytes >> 20,
        now.write_throttle_ns_per_kib,
        now.syncs - before.syncs,
    )
}

/// Memory of this process that is no file's.
fn anonymous_bytes() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// Each number below `count` once, in no order to speak of.
fn scattered(n: u64, round: u64, count: u64) -> u64 {
    let bits = 64 - count.saturating_sub(1).leading_zeros().min(63);
    let (mask, mut n) = ((1u64 << bits) - 1, n);
    loop {
        n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
        n ^= n >> (bits / 2 + 1);
        n = n.wrapping_add(round).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
        if n < count {
            return n;
        }
    }
}

fn run(settings: &Settings) -> Result<u64> {
    std::fs::remove_dir_all(&settings.dir).ok();
    // As many keys for each thread.
    let keys = settings.rows.next_multiple_of(settings.threads);
    let run = Run {
        settings,
        began: Instant::now(),
        model: Model::of(&vec![0; keys as usize]),
        zipf: Zipf::new(keys),
        calls: Default::default(),
        longest: AtomicU64::new(0),
        callers: (0..settings.threads).map(|_| Caller::default()).collect(),
        stalls: Mutex::new(Vec::new()),
        phase: Mutex::new(""),
        problems: AtomicU64::new(0),
        before: Mutex::new(Metrics::default()),
        stop: AtomicBool::new(false),
    };
    let (db, rows) = settings.open()?;
    std::thread::scope(|scope| {
        scope.spawn(|| run.watch(&db));
        run.load(&db, &rows);
        run.give_back(&db, &rows);
        run.stop.store(true, Ordering::Relaxed);
    });
    run.say_stalls();
    drop(rows);
    db.close()?;
    let start = Instant::now();
    let (db, rows) = settings.open()?;
    println!("opened in {:.3} s", start.elapsed().as_secs_f64());
    run.verify(&rows);
    drop(rows);
    db.close()?;
    run.check();
    for round in 1..=settings.kills {
        run.kill(round)?;
    }
    Ok(run.problems.load(Ordering::Relaxed))
}

fn main() -> ExitCode {
    let arguments = Arguments::given();
    let settings = Settings::given(&arguments);
    if arguments.text("to-be-killed").is_some() {
        let result = be_killed(&settings, arguments.number("to-be-killed", 0));
        result.unwrap();
        return ExitCode::SUCCESS;
    }
    match run(&settings) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(problems) => {
            println!("{problems} promises broken");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("BROKEN: {error}");
            ExitCode::FAILURE
        }
    }
}
