//! What experiments run on: stores in directories of their own, and phases on them.
//!
//! Owns the making and removing of stores, the progress shown, and what all phases have in common. Promises that a store's
//! directory is new and is removed with the store, and that the driver checks all that is read. Must not know what an
//! experiment is after.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hedgerow::{CAPACITY_DIRECTORY, Capacity, Options};

use super::PaperArgs;
use super::finding::{Finding, Measured};
use crate::bench::distribution::Distribution;
use crate::bench::driver::{Plan, Population, run_phase_by_window};
use crate::bench::process;
use crate::bench::report::{PhaseReport, count};
use crate::bench::row::RowShape;
use crate::bench::store::BenchStore;
use crate::bench::store::flat::FlatHedgerow;
use crate::bench::store::hedgerow::HedgerowStore;
use crate::bench::store::mapping::{Mapped, Mapping};
use crate::bench::store::null::NullStore;
use crate::bench::workload::{LOAD, Workload};
use crate::bench::{advance, phase_bar};
use crate::process::Memory;
use crate::store_url::Medium;

/// The paper's rows: ten fields of 100 bytes.
pub(in crate::bench) const SHAPE: RowShape = RowShape { fields: 10, field_bytes: 100 };
/// How long background work may go on after a phase.
const REST_MAX: Duration = Duration::from_secs(5);
/// Shorter phases are for trying out, and nothing is waited for after them.
const TRIAL_SECONDS: f64 = 0.2;
/// Longer than any phase that ends after its operations.
const SECONDS_MAX: f64 = 1e6;

/// What inserts before scans has one operation for so many records.
const BEFORE_SCANS_ONE_IN: u64 = 5;

/// How rows are put into the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Layout {
    /// As rows of fields.
    Rows,
    /// As flat values.
    Flat(Mapping),
}

/// All there are, the engine's own first.
pub(in crate::bench) const LAYOUTS: [Layout; 4] = [
    Layout::Rows,
    Layout::Flat(Mapping::Consolidated),
    Layout::Flat(Mapping::Scattered),
    Layout::Flat(Mapping::Hybrid),
];

impl Layout {
    /// What it is called in figures.
    pub(in crate::bench) fn name(self) -> &'static str {
        match self {
            Layout::Rows => "rows",
            Layout::Flat(Mapping::Consolidated) => "consolidated",
            Layout::Flat(Mapping::Scattered) => "scattered",
            Layout::Flat(Mapping::Hybrid) => "hybrid",
        }
    }
}

/// Where one experiment runs, on one medium.
pub(in crate::bench) struct Rig<'a> {
    args: &'a PaperArgs,
    medium: Medium,
    /// New, and removed with the rig.
    directory: PathBuf,
    /// As new, where the command line says where sorted tables are to be.
    capacity: Option<PathBuf>,
    /// Which experiment this is, of how many.
    step: (usize, usize),
    name: &'static str,
    /// Which round of the suite this is, from 0.
    round: usize,
    stores: AtomicU64,
    /// All phases so far: an experiment that fails keeps them.
    measured: RefCell<Vec<Measured>>,
}

impl Rig<'_> {
    pub(in crate::bench) fn new<'a>(
        args: &'a PaperArgs,
        medium: Medium,
        (parent, suite): (&Path, &str),
        (round, step): (usize, (usize, usize)),
        name: &'static str,
    ) -> Result<Rig<'a>, String> {
        let own = format!("{suite}-{}-{}-{name}", std::process::id(), medium.name());
        let directory = parent.join(&own);
        make_new(&directory)?;
        // From here on what was made is removed with the rig, and nothing else.
        let mut rig = Rig {
            args,
            medium,
            directory,
            capacity: None,
            step,
            name,
            round,
            stores: AtomicU64::new(0),
            measured: RefCell::new(Vec::new()),
        };
        if let Some(capacity) = &args.capacity {
            // By a name of its own: the place may be the stores', whatever it is called.
            let directory = capacity.join(format!("{own}-capacity"));
            make_new(&directory)?;
            rig.capacity = Some(directory);
        }
        Ok(rig)
    }

    /// Seconds a phase.
    pub(in crate::bench) fn seconds(&self) -> f64 {
        self.args.seconds
    }

    /// The numbers of threads to scale over.
    pub(in crate::bench) fn threads(&self) -> &[usize] {
        &self.args.threads
    }

    /// Phases are so short that they are for trying out.
    pub(in crate::bench) fn is_trial(&self) -> bool {
        self.args.seconds < TRIAL_SECONDS
    }

    /// Things to measure in the order of this round: each round another one is first.
    pub(in crate::bench) fn in_turn<T, const N: usize>(&self, mut things: [T; N]) -> [T; N] {
        things.rotate_left(self.round % N.max(1));
        things
    }

    /// All phases that were run so far.
    pub(in crate::bench) fn measured(&self) -> Vec<Measured> {
        self.measured.borrow().clone()
    }

    /// Records of a data set of rows of `shape`, so that no data set is bigger than that of 1,000-byte rows.
    pub(in crate::bench) fn records(&self, shape: RowShape) -> u64 {
        match shape.row_bytes() as u64 {
            0..=1000 => self.args.records,
            bytes => (self.args.records.saturating_mul(1000) / bytes).max(1),
        }
    }

    /// The engine's options: the command line's.
    pub(in crate::bench) fn options(&self) -> Result<Options, String> {
        self.args.engine.options()
    }

    /// The same, with a row cache of so many percent of the rows' bytes. A fifth more than the rows it is to hold: the slots of its
    /// pages are longer than rows.
    pub(in crate::bench) fn options_with_cache(
        &self,
        shape: RowShape,
        percent: u64,
    ) -> Result<Options, String> {
        let mut options = self.options()?;
        let bytes = self.records(shape).saturating_mul(shape.row_bytes() as u64);
        options.cache_bytes = bytes.saturating_mul(percent) / 100;
        Ok(options)
    }

    /// What a figure was measured with, in words.
    pub(in crate::bench) fn settings(&self, shape: RowShape, keys: &str) -> String {
        let rows = count(self.records(shape) as f64);
        let data = format!("{rows} rows of {} x {} B", shape.fields, shape.field_bytes);
        self.describe(&data, keys, &self.args.threads[..1])
    }

    /// [`Rig::settings`], of data in words and on so many threads.
    pub(in crate::bench) fn describe(&self, data: &str, keys: &str, threads: &[usize]) -> String {
        let medium = match self.medium {
            Medium::File => "file",
            Medium::Emulated => "emulated persistent memory",
        };
        let threads = match threads {
            [1] => "1 thread".to_owned(),
            threads => {
                format!("{} threads", threads.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
            }
        };
        let set: String = self.args.engine.set_names().iter().map(|setting| format!("; {setting}")).collect();
        let durability = self.args.engine.durability_name();
        let seconds = self.args.seconds;
        format!("{medium}; {data}; {keys}; {threads}; {seconds} s a phase; durability {durability}{set}")
    }

    /// Where the sorted tables of a store of this rig are, if it has any.
    fn sorted_tables_of(&self, store: &Path) -> PathBuf {
        match (&self.capacity, store.file_name()) {
            (Some(capacity), Some(name)) => capacity.join(name),
            _ => store.join(CAPACITY_DIRECTORY),
        }
    }

    /// What a store takes, wherever it is.
    fn disk_bytes(&self, store: &Path) -> Result<u64, String> {
        let elsewhere = match self.capacity {
            Some(_) => process::disk_bytes(&self.sorted_tables_of(store))?,
            None => 0,
        };
        Ok(process::disk_bytes(store)? + elsewhere)
    }

    /// A new store, without rows.
    pub(in crate::bench) fn open(
        &self,
        layout: Layout,
        shape: RowShape,
        options: Options,
    ) -> Result<Subject<'_>, String> {
        let number = self.stores.fetch_add(1, Ordering::Relaxed);
        self.open_in(self.directory.join(number.to_string()), layout, shape, options)
    }

    /// The store that does nothing: what is measured on it is the harness.
    pub(in crate::bench) fn open_null(&self, shape: RowShape) -> Result<Subject<'_>, String> {
        let directory = self.directory.join("null");
        let made = std::fs::create_dir_all(&directory);
        made.map_err(|error| format!("making {}: {error}", directory.display()))?;
        let store = Box::new(NullStore::new(shape, self.records(shape)));
        self.subject(store, shape, directory, "harness")
    }

    /// The same store, opened again with other options.
    pub(in crate::bench) fn reopen<'a>(
        &'a self,
        subject: Subject<'a>,
        layout: Layout,
        options: Options,
    ) -> Result<Subject<'a>, String> {
        let (directory, shape) = (subject.directory.clone(), subject.shape);
        subject.close(false)?;
        self.open_in(directory, layout, shape, options)
    }

    fn open_in(
        &self,
        directory: PathBuf,
        layout: Layout,
        shape: RowShape,
        mut options: Options,
    ) -> Result<Subject<'_>, String> {
        if options.fast_tier_bytes_max < u64::MAX && options.capacity == Capacity::Beside {
            options.capacity = Capacity::At(self.sorted_tables_of(&directory));
        }
        let store: Box<dyn BenchStore> = match layout {
            Layout::Rows => Box::new(HedgerowStore::open_on(self.medium, &directory, shape, options)?),
            Layout::Flat(mapping) => {
                let flat = FlatHedgerow::open(self.medium, &directory, options)?;
                Box::new(Mapped::new(flat, shape, mapping)?)
            }
        };
        self.subject(store, shape, directory, layout.name())
    }

    fn subject(
        &self,
        store: Box<dyn BenchStore>,
        shape: RowShape,
        directory: PathBuf,
        variant: &str,
    ) -> Result<Subject<'_>, String> {
        Ok(Subject {
            rig: self,
            population: Population::new(store.rows()?),
            store: Some(store),
            shape,
            records: self.records(shape),
            directory,
            variant: variant.to_owned(),
            phases: 0,
        })
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        // What cannot be removed is left: its name says whose it was.
        let _ = std::fs::remove_dir_all(&self.directory);
        let _ = self.capacity.as_ref().map(std::fs::remove_dir_all);
    }
}

fn make_new(directory: &Path) -> Result<(), String> {
    let parent = directory.parent().unwrap_or(directory);
    let made = std::fs::create_dir_all(parent).and_then(|()| std::fs::create_dir(directory));
    made.map_err(|error| format!("making {}: {error}", directory.display()))
}

/// The share of hits from one account of the row cache to another.
fn hit_ratio((hits, misses): (u64, u64), (hits_now, misses_now): (u64, u64)) -> Option<f64> {
    let (hits, misses) = (hits_now - hits, misses_now - misses);
    (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
}

/// How a phase differs from the others.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::bench) struct Run {
    /// Instead of the workload's own.
    pub(in crate::bench) distribution: Option<Distribution>,
    /// Instead of the first of the command line's.
    pub(in crate::bench) threads: Option<usize>,
    /// Instead of the command line's.
    pub(in crate::bench) seconds: Option<f64>,
    /// So many operations, however long they take.
    pub(in crate::bench) operations: Option<u64>,
    /// Looks at its course in windows of so many seconds.
    pub(in crate::bench) window: Option<f64>,
    /// Begins the next phase at once, whatever goes on in the background.
    pub(in crate::bench) restless: bool,
}

/// A store under measurement.
pub(in crate::bench) struct Subject<'a> {
    rig: &'a Rig<'a>,
    store: Option<Box<dyn BenchStore>>,
    population: Population,
    shape: RowShape,
    records: u64,
    directory: PathBuf,
    variant: String,
    phases: u64,
}

impl Subject<'_> {
    /// Names what is measured, where that is not the layout.
    pub(in crate::bench) fn call(&mut self, variant: impl Into<String>) {
        self.variant = variant.into();
    }

    /// Holds so many records, and not as many as the data set of the command line.
    pub(in crate::bench) fn hold(&mut self, records: u64) {
        self.records = records;
    }

    /// Writes the data set.
    pub(in crate::bench) fn load(&mut self, finding: &mut Finding) -> Result<(), String> {
        self.run(&LOAD, Run::default(), finding)
    }

    /// Runs a phase by its workload's name.
    pub(in crate::bench) fn phase(&mut self, name: &str, finding: &mut Finding) -> Result<(), String> {
        self.run(Workload::find(name)?, Run::default(), finding)
    }

    /// Runs a phase that inserts and that a scan follows: as many operations for each store, whatever it is capable of, so that the
    /// scans have the same rows before them.
    pub(in crate::bench) fn phase_before_scans(
        &mut self,
        name: &str,
        finding: &mut Finding,
    ) -> Result<(), String> {
        let operations = Some(self.records / BEFORE_SCANS_ONE_IN);
        self.run(Workload::find(name)?, Run { operations, ..Run::default() }, finding)
    }

    /// Runs a phase.
    pub(in crate::bench) fn run(
        &mut self,
        workload: &'static Workload,
        run: Run,
        finding: &mut Finding,
    ) -> Result<(), String> {
        let Subject { rig, store, population, shape, records, .. } = self;
        let store = store.as_mut().ok_or("the store is closed")?.as_mut();
        let args = rig.args;
        let threads = run.threads.unwrap_or(args.threads[0]);
        let seconds = run.seconds.unwrap_or(args.seconds);
        let is_trial = seconds < TRIAL_SECONDS;
        let records = *records;
        // Inserts end when the data set has doubled, as YCSB leaves room for twice as many as there may be operations.
        let operations = if workload.insert_share() > 0.0 { records } else { u64::MAX };
        let (operations, seconds) =
            run.operations.map_or((operations, seconds), |operations| (operations.max(1), SECONDS_MAX));
        let plan = Plan {
            workload,
            records,
            operations,
            seconds,
            threads,
            distribution: run.distribution,
            rate: None,
            seed: args.seed.wrapping_add(self.phases),
            rest_max: if run.restless || is_trial { Duration::ZERO } else { REST_MAX },
        };
        self.phases += 1;
        let (step, steps) = rig.step;
        let medium = rig.medium.name();
        let title = format!("[{step}/{steps}] {} {medium} {}: {}", rig.name, self.variant, workload.name);
        let bar = phase_bar(&title);
        let window = run.window.map(Duration::from_secs_f64);
        let before = store.account().unwrap_or_default();
        let outcome = run_phase_by_window(store, *shape, population, &plan, window, &mut |progress| {
            advance(&bar, progress);
        });
        bar.finish_and_clear();
        let mut outcome = outcome.map_err(|error| format!("{}: {}: {error}", self.variant, workload.name))?;
        let windows = std::mem::take(&mut outcome.windows);
        let disk = rig.disk_bytes(&self.directory)?;
        let report = PhaseReport::new(workload.name, threads, &outcome, Memory::now()?, disk);
        eprintln!("[{step}/{steps}] {} {medium}: {}", rig.name, report.progress_line(&self.variant));
        let after = store.account().unwrap_or_default();
        let measured = Measured {
            variant: self.variant.clone(),
            round: 1,
            disturbed: report.is_disturbed(),
            report,
            log_bytes: after.log_bytes.saturating_sub(before.log_bytes),
            below_log_bytes: after.below_log_bytes.saturating_sub(before.below_log_bytes),
            keys_sealed: after.keys_sealed,
            hit_ratio: hit_ratio(before.cache_reads, after.cache_reads),
            windows,
        };
        rig.measured.borrow_mut().push(measured.clone());
        finding.phases.push(measured);
        Ok(())
    }

    /// Bytes of log that the store has filled since it was opened.
    pub(in crate::bench) fn log_bytes(&self) -> u64 {
        self.store.as_ref().and_then(|store| store.account()).map_or(0, |account| account.log_bytes)
    }

    fn close(mut self, remove: bool) -> Result<(), String> {
        drop(self.store.take());
        let directory = std::mem::take(&mut self.directory);
        let sorted_tables = self.rig.sorted_tables_of(&directory);
        for directory in [sorted_tables, directory].iter().filter(|directory| remove && directory.exists()) {
            let removed = std::fs::remove_dir_all(directory);
            removed.map_err(|error| format!("removing {}: {error}", directory.display()))?;
        }
        Ok(())
    }

    /// Closes the store and removes it.
    pub(in crate::bench) fn remove(self) -> Result<(), String> {
        self.close(true)
    }
}
