//! Measurements of a store: `hedgerow bench`.
//!
//! Owns the command's options and the order of its phases. The work is in the modules: [`workload`] (what is done),
//! [`distribution`] (to which records), [`row`] (with which bytes, and how they are checked), [`store`] (on what), [`setting`] (with what switched off),
//! [`driver`] (how it is timed), [`process`] (what it used), [`report`] (how it is told). [`focus`] and [`tiers`] repeat papers'
//! experiments with them, on what [`paper`] has for both, and draw [`chart`]s. `kvsb` measures key-value devices by themselves, and `pool` the pool, in virtual time. The comparison with other engines
//! (`compare/`) uses the same modules.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod chart;
pub mod distribution;
pub mod driver;
pub mod focus;
mod kvsb;
pub mod paper;
mod pool;
pub mod process;
pub mod report;
pub mod row;
pub mod setting;
pub mod store;
pub mod tiers;
pub mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hedgerow_row::backend::Backend;
use hedgerow_row::backend::memory::MemoryBackend;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::kvssd_store;
use crate::pool_store::PoolStore;
use crate::process::Memory;
use crate::store_url::StoreUrl;
use distribution::Distribution;
use driver::{Plan, Population, Progress};
use report::PhaseReport;
use row::RowShape;
use setting::EngineArgs;
use store::BenchStore;
use store::hedgerow::HedgerowStore;
use store::null::NullStore;
use store::pairs::PairsStore;
use workload::Workload;

/// Arguments of `hedgerow bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Debug, clap::Subcommand)]
enum Suite {
    /// YCSB core's workloads.
    Ycsb {
        /// Which, in order; load empties the benchmark's table and writes the data set.
        #[arg(long, value_delimiter = ',', default_value = "load,a,b,c,d,e,f")]
        workloads: Vec<String>,
        #[command(flatten)]
        settings: Settings,
    },
    /// FOCUS's six operations: whole rows and single fields, read, written and scanned. Keys are uniform.
    Fields {
        /// Which, in order; load empties the benchmark's table and writes the data set.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "load,read-full,read-partial,scan-full,scan-partial,update,insert"
        )]
        workloads: Vec<String>,
        #[command(flatten)]
        settings: Settings,
    },
    /// Key-value devices in software, without rows: stores, reads and deletions of pairs on several devices at once, each answer verified.
    Kvsb(kvsb::KvsbArgs),
    /// The pool: loads of YCSB in virtual time, by the costs of network cards, step by step from a pool without proxies to all that there is, beside one whose partitions have owners; as a report with charts.
    Pool(pool::PoolBenchArgs),
    /// The experiments of the FOCUS paper, as a report with charts.
    Focus(paper::PaperArgs),
    /// The experiments of two papers on data larger than the fast tier, BushStore and DecouKV, as a report with charts.
    Tiers(tiers::TiersArgs),
}

/// What a measurement is made with; the same for all suites.
#[derive(Debug, Clone, clap::Args)]
pub struct Settings {
    /// The store: tiered:DIRECTORY; emulated:DIRECTORY for the same slowed to persistent memory; memory: for rows as pairs in memory, which have no
    /// order to scan; or null to measure the harness alone.
    #[arg(long, value_parser = StoreUrl::measured)]
    store: StoreUrl,
    /// Rows of the data set.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Operations a phase at most [default: as many as records].
    #[arg(long)]
    operations: Option<u64>,
    /// Seconds a phase at most; load takes as long as it needs.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Fields in a row.
    #[arg(long, default_value_t = 10)]
    fields: usize,
    /// Bytes in a field.
    #[arg(long, default_value_t = 100)]
    field_bytes: usize,
    /// How records are chosen [default: as each workload says].
    #[arg(long, value_enum)]
    distribution: Option<Distribution>,
    /// Operations a second, begun on schedule, late ones charged with their wait [default: as fast as it goes].
    #[arg(long)]
    rate: Option<f64>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Writes the results there.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Runs the benchmark.
pub fn run(args: Args) -> Result<(), String> {
    let (suite, names, settings) = match args.suite {
        Suite::Ycsb { workloads, settings } => ("ycsb", workloads, settings),
        Suite::Fields { workloads, settings } => ("fields", workloads, settings),
        Suite::Kvsb(args) => return kvsb::run(&args),
        Suite::Pool(args) => return pool::run(&args),
        Suite::Focus(args) => return focus::run(args),
        Suite::Tiers(args) => return tiers::run(args),
    };
    let workloads = names.iter().map(|name| Workload::find(name)).collect::<Result<Vec<_>, _>>()?;
    let shape = RowShape::new(settings.fields, settings.field_bytes)?;
    let reports = match &settings.store {
        StoreUrl::Tiered(medium, directory) => {
            let options = settings.engine.options()?;
            let mut store = HedgerowStore::open_on(*medium, directory, shape, options)?;
            let reports = run_phases(&mut store, shape, &workloads, &settings)?;
            store.close()?;
            reports
        }
        StoreUrl::Memory => {
            let mut store = PairsStore::open(Arc::new(MemoryBackend::default()), shape)?;
            run_phases(&mut store, shape, &workloads, &settings)?
        }
        StoreUrl::Kvssd(url) => {
            let backend = Arc::new(kvssd_store::open(url, settings.engine.ack()?)?);
            let mut store = PairsStore::open(Arc::clone(&backend) as Arc<dyn Backend>, shape)?;
            let reports = run_phases(&mut store, shape, &workloads, &settings)?;
            drop(store);
            backend.close().map_err(|error| format!("closing the store failed: {error}"))?;
            reports
        }
        StoreUrl::Pool(url) => {
            let pool = PoolStore::open(url)?;
            let mut store = PairsStore::open(pool.backend(), shape)?;
            run_phases(&mut store, shape, &workloads, &settings)?
        }
        StoreUrl::Null => {
            run_phases(&mut NullStore::new(shape, settings.records), shape, &workloads, &settings)?
        }
    };
    print!("{}", report::phase_table(&reports));
    if let Some(path) = &settings.json {
        report::write_json(path, settings.to_json(suite), &reports)?;
    }
    Ok(())
}

impl Settings {
    fn plan(&self, workload: &'static Workload, phase: usize) -> Plan {
        Plan {
            workload,
            records: self.records,
            operations: self.operations.unwrap_or(self.records),
            seconds: self.seconds,
            threads: self.threads,
            distribution: self.distribution,
            rate: self.rate,
            seed: self.seed.wrapping_add(phase as u64),
            // A node of a pool has no work left to do in the background, and is never idle: its timers go on.
            rest_max: match self.store {
                StoreUrl::Pool(_) => Duration::ZERO,
                _ => driver::REST_MAX,
            },
        }
    }

    fn to_json(&self, suite: &str) -> serde_json::Value {
        json!({
            "suite": suite,
            "records": self.records,
            "operations": self.operations.unwrap_or(self.records),
            "seconds": self.seconds,
            "threads": self.threads,
            "fields": self.fields,
            "field_bytes": self.field_bytes,
            "distribution": self.distribution.map(|d| format!("{d:?}").to_lowercase()),
            "rate": self.rate,
            "durability": self.engine.durability_name(),
            "set": self.engine.set_names(),
            "seed": self.seed,
        })
    }
}

fn run_phases(
    store: &mut dyn BenchStore,
    shape: RowShape,
    workloads: &[&'static Workload],
    settings: &Settings,
) -> Result<Vec<PhaseReport>, String> {
    // Before anything is loaded.
    if let Some(scan) = workloads.iter().find(|workload| workload.scans() && !store.has_order()) {
        let (store, workload) = (&settings.store, scan.name);
        return Err(format!(
            "{store} has no order of rows, and {workload} scans: leave it out of --workloads"
        ));
    }
    let population = Population::new(store.rows()?);
    let mut reports = Vec::new();
    for (phase, workload) in workloads.iter().enumerate() {
        let plan = settings.plan(workload, phase);
        let bar = phase_bar(workload.name);
        let outcome =
            driver::run_phase(store, shape, &population, &plan, &mut |progress| advance(&bar, progress));
        bar.finish_and_clear();
        let outcome = outcome.map_err(|error| format!("{}: {error}", workload.name))?;
        let disk = store.directory().map_or(Ok(0), process::disk_bytes)?;
        let report = PhaseReport::new(workload.name, settings.threads, &outcome, Memory::now()?, disk);
        eprintln!("{}", report.progress_line(""));
        reports.push(report);
    }
    Ok(reports)
}

/// A bar on standard error; none where that is no terminal.
pub fn phase_bar(name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:<24} [{bar:32}] {percent:>3} %  {msg}");
    let bar = ProgressBar::new(1000).with_prefix(name.to_string());
    match style {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// Moves a bar.
pub fn advance(bar: &ProgressBar, progress: Progress) {
    bar.set_position((progress.fraction * 1000.0) as u64);
    bar.set_message(format!("{} ops/s", report::count(progress.per_second)));
}

#[cfg(test)]
mod tests;
