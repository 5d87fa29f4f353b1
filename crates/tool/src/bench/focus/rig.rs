//! What experiments run on: stores in directories of their own, and phases on them.
//!
//! Owns the making and removing of stores, the progress shown, and what all phases have in common. Promises that a store's
//! directory is new and is removed with the store, and that the driver checks all that is read. Must not know what an
//! experiment is after.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hedgerow::Options;

use super::Args;
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
pub(super) const SHAPE: RowShape = RowShape { fields: 10, field_bytes: 100 };
/// How long background work may go on after a phase.
const REST_MAX: Duration = Duration::from_secs(5);
/// Shorter phases are for trying out, and nothing is waited for after them.
const TRIAL_SECONDS: f64 = 0.2;

/// How rows are put into the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// As rows of fields.
    Rows,
    /// As flat values.
    Flat(Mapping),
}

/// All there are, the engine's own first.
pub(super) const LAYOUTS: [Layout; 4] = [
    Layout::Rows,
    Layout::Flat(Mapping::Consolidated),
    Layout::Flat(Mapping::Scattered),
    Layout::Flat(Mapping::Hybrid),
];

impl Layout {
    /// What it is called in figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Layout::Rows => "rows",
            Layout::Flat(Mapping::Consolidated) => "consolidated",
            Layout::Flat(Mapping::Scattered) => "scattered",
            Layout::Flat(Mapping::Hybrid) => "hybrid",
        }
    }
}

/// Where one experiment runs, on one medium.
pub(super) struct Rig<'a> {
    args: &'a Args,
    medium: Medium,
    /// New, and removed with the rig.
    directory: PathBuf,
    /// Which experiment this is, of how many.
    step: (usize, usize),
    name: &'static str,
    stores: AtomicU64,
}

impl Rig<'_> {
    pub(super) fn new<'a>(
        args: &'a Args,
        medium: Medium,
        parent: &Path,
        step: (usize, usize),
        name: &'static str,
    ) -> Result<Rig<'a>, String> {
        let directory = parent.join(format!("focus-{}-{}-{name}", std::process::id(), medium.name()));
        let made = std::fs::create_dir_all(parent).and_then(|()| std::fs::create_dir(&directory));
        made.map_err(|error| format!("making {}: {error}", directory.display()))?;
        Ok(Rig { args, medium, directory, step, name, stores: AtomicU64::new(0) })
    }

    /// Seconds a phase.
    pub(super) fn seconds(&self) -> f64 {
        self.args.seconds
    }

    /// The numbers of threads to scale over.
    pub(super) fn threads(&self) -> &[usize] {
        &self.args.threads
    }

    /// Records of a data set of rows of `shape`, so that no data set is bigger than that of 1,000-byte rows.
    pub(super) fn records(&self, shape: RowShape) -> u64 {
        (self.args.records * 1000 / (shape.row_bytes() as u64).max(1000)).max(1)
    }

    /// The engine's options: the command line's.
    pub(super) fn options(&self) -> Result<Options, String> {
        self.args.engine.options()
    }

    /// The same, with a row cache of so many percent of the rows' bytes. A fifth more than the rows it is to hold: the slots of its
    /// pages are longer than rows.
    pub(super) fn options_with_cache(&self, shape: RowShape, percent: u64) -> Result<Options, String> {
        let mut options = self.options()?;
        options.cache_bytes = self.records(shape) * shape.row_bytes() as u64 * percent / 100;
        Ok(options)
    }

    /// What a figure was measured with, in words.
    pub(super) fn settings(&self, shape: RowShape, keys: &str) -> String {
        let rows = count(self.records(shape) as f64);
        let data = format!("{rows} rows of {} x {} B", shape.fields, shape.field_bytes);
        self.describe(&data, keys, &self.args.threads[..1])
    }

    /// [`Rig::settings`], of data in words and on so many threads.
    pub(super) fn describe(&self, data: &str, keys: &str, threads: &[usize]) -> String {
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

    /// A new store, without rows.
    pub(super) fn open(
        &self,
        layout: Layout,
        shape: RowShape,
        options: Options,
    ) -> Result<Subject<'_>, String> {
        let number = self.stores.fetch_add(1, Ordering::Relaxed);
        self.open_in(self.directory.join(number.to_string()), layout, shape, options)
    }

    /// The store that does nothing: what is measured on it is the harness.
    pub(super) fn open_null(&self, shape: RowShape) -> Result<Subject<'_>, String> {
        let directory = self.directory.join("null");
        let made = std::fs::create_dir_all(&directory);
        made.map_err(|error| format!("making {}: {error}", directory.display()))?;
        let store = Box::new(NullStore::new(shape, self.records(shape)));
        let population = Population::new(store.rows()?);
        let variant = "harness".to_owned();
        Ok(Subject { rig: self, store: Some(store), population, shape, directory, variant, phases: 0 })
    }

    /// The same store, opened again with other options.
    pub(super) fn reopen<'a>(
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
        options: Options,
    ) -> Result<Subject<'_>, String> {
        let store: Box<dyn BenchStore> = match layout {
            Layout::Rows => Box::new(HedgerowStore::open_on(self.medium, &directory, shape, options)?),
            Layout::Flat(mapping) => {
                let flat = FlatHedgerow::open(self.medium, &directory, options)?;
                Box::new(Mapped::new(flat, shape, mapping)?)
            }
        };
        let population = Population::new(store.rows()?);
        let variant = layout.name().to_owned();
        Ok(Subject { rig: self, store: Some(store), population, shape, directory, variant, phases: 0 })
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        // What cannot be removed is left: its name says whose it was.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// How a phase differs from the others.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run {
    /// Instead of the workload's own.
    pub(super) distribution: Option<Distribution>,
    /// Instead of the first of the command line's.
    pub(super) threads: Option<usize>,
    /// Instead of the command line's.
    pub(super) seconds: Option<f64>,
    /// Looks at its course in windows of so many seconds.
    pub(super) window: Option<f64>,
    /// Begins the next phase at once, whatever goes on in the background.
    pub(super) restless: bool,
}

/// A store under measurement.
pub(super) struct Subject<'a> {
    rig: &'a Rig<'a>,
    store: Option<Box<dyn BenchStore>>,
    population: Population,
    shape: RowShape,
    directory: PathBuf,
    variant: String,
    phases: u64,
}

impl Subject<'_> {
    /// Names what is measured, where that is not the layout.
    pub(super) fn call(&mut self, variant: impl Into<String>) {
        self.variant = variant.into();
    }

    /// Writes the data set.
    pub(super) fn load(&mut self, finding: &mut Finding) -> Result<(), String> {
        self.run(&LOAD, Run::default(), finding)
    }

    /// Runs a phase by its workload's name.
    pub(super) fn phase(&mut self, name: &str, finding: &mut Finding) -> Result<(), String> {
        self.run(Workload::find(name)?, Run::default(), finding)
    }

    /// Runs a phase.
    pub(super) fn run(
        &mut self,
        workload: &'static Workload,
        run: Run,
        finding: &mut Finding,
    ) -> Result<(), String> {
        let Subject { rig, store, population, shape, .. } = self;
        let store = store.as_mut().ok_or("the store is closed")?.as_mut();
        let args = rig.args;
        let threads = run.threads.unwrap_or(args.threads[0]);
        let seconds = run.seconds.unwrap_or(args.seconds);
        let records = rig.records(*shape);
        // Inserts end when the data set has doubled, as YCSB leaves room for twice as many as there may be operations.
        let operations = if workload.insert_share() > 0.0 { records } else { u64::MAX };
        let plan = Plan {
            workload,
            records,
            operations,
            seconds,
            threads,
            distribution: run.distribution,
            rate: None,
            seed: args.seed.wrapping_add(self.phases),
            rest_max: if run.restless || seconds < TRIAL_SECONDS { Duration::ZERO } else { REST_MAX },
        };
        self.phases += 1;
        let (step, steps) = rig.step;
        let medium = rig.medium.name();
        let title = format!("[{step}/{steps}] {} {medium} {}: {}", rig.name, self.variant, workload.name);
        let bar = phase_bar(&title);
        let window = run.window.map(Duration::from_secs_f64);
        let before = store.log_bytes().unwrap_or(0);
        let (hits, misses) = store.cache_reads().unwrap_or_default();
        let outcome = run_phase_by_window(store, *shape, population, &plan, window, &mut |progress| {
            advance(&bar, progress);
        });
        bar.finish_and_clear();
        let mut outcome = outcome.map_err(|error| format!("{}: {}: {error}", self.variant, workload.name))?;
        let windows = std::mem::take(&mut outcome.windows);
        let disk = process::disk_bytes(&self.directory)?;
        let report = PhaseReport::new(workload.name, threads, &outcome, Memory::now()?, disk);
        eprintln!("[{step}/{steps}] {} {medium}: {}", rig.name, report.progress_line(&self.variant));
        let log_bytes = store.log_bytes().unwrap_or(0).saturating_sub(before);
        let hit_ratio = store.cache_reads().and_then(|(hits_now, misses_now)| {
            let (hits, misses) = (hits_now - hits, misses_now - misses);
            (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
        });
        finding.phases.push(Measured {
            variant: self.variant.clone(),
            round: 1,
            disturbed: report.is_disturbed(),
            report,
            log_bytes,
            hit_ratio,
            windows,
        });
        Ok(())
    }

    /// Bytes of log that the store has filled since it was opened.
    pub(super) fn log_bytes(&self) -> u64 {
        self.store.as_ref().and_then(|store| store.log_bytes()).unwrap_or(0)
    }

    fn close(mut self, remove: bool) -> Result<(), String> {
        drop(self.store.take());
        let directory = std::mem::take(&mut self.directory);
        match remove {
            true => std::fs::remove_dir_all(&directory)
                .map_err(|error| format!("removing {}: {error}", directory.display())),
            false => Ok(()),
        }
    }

    /// Closes the store and removes it.
    pub(super) fn remove(self) -> Result<(), String> {
        self.close(true)
    }
}
