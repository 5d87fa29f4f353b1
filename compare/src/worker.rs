//! One engine in a process of its own, driven over its standard input and output.
//!
//! Owns the protocol: lines of JSON, first the [`Assignment`], then a [`Command`] at a time, each answered by any number of
//! [`Answer::Progress`] and one [`Answer::Done`] or [`Answer::Failed`]. Standard input's end ends the worker.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use hedgerow_tool::bench::distribution::Distribution;
use hedgerow_tool::bench::driver::{Plan, Population, Progress, REST_MAX, run_phase};
use hedgerow_tool::bench::process;
use hedgerow_tool::bench::report::PhaseReport;
use hedgerow_tool::bench::row::RowShape;
use hedgerow_tool::bench::store::mapping::Mapping;
use hedgerow_tool::bench::workload::Workload;
use hedgerow_tool::process::Memory;
use hedgerow_tool::store_url::Medium;
use serde::{Deserialize, Serialize};

use crate::peers::{self, Engine, Opening, Packing, Safety};

/// The first argument of a worker process.
pub(crate) const ARGUMENT: &str = "--as-worker";

/// What a worker is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Assignment {
    pub(crate) engine: Engine,
    pub(crate) mapping: Option<Mapping>,
    pub(crate) directory: PathBuf,
    pub(crate) records: u64,
    pub(crate) operations: u64,
    pub(crate) seconds: f64,
    pub(crate) threads: usize,
    pub(crate) fields: usize,
    pub(crate) field_bytes: usize,
    pub(crate) rate: Option<f64>,
    pub(crate) safety: Safety,
    pub(crate) packing: Packing,
    pub(crate) cache_bytes: u64,
    pub(crate) medium: Medium,
    pub(crate) set: Vec<String>,
}

/// What a worker is to do next.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Command {
    pub(crate) phase: Phase,
    pub(crate) seed: u64,
}

/// A workload, and what its zipfian choices are drawn from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Phase {
    pub(crate) workload: String,
    pub(crate) skew: Skew,
}

impl Phase {
    /// What it is called in results.
    pub(crate) fn name(&self) -> String {
        match self.skew {
            Skew::Ycsb => self.workload.clone(),
            Skew::Records => format!("{}-records", self.workload),
        }
    }
}

/// Which zipfian distribution zipfian workloads have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Skew {
    /// YCSB's: over ten thousand million items, folded onto the records.
    Ycsb,
    /// Over the number of records itself, which is more skewed.
    Records,
}

impl Skew {
    fn distribution(self) -> Option<Distribution> {
        match self {
            Skew::Ycsb => None,
            Skew::Records => Some(Distribution::ZipfianRecords),
        }
    }
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Progress { fraction: f64, per_second: f64 },
    Done(Box<PhaseReport>),
    Failed(String),
}

/// Works until standard input ends.
pub(crate) fn run() -> Result<(), String> {
    let mut lines = std::io::stdin().lock().lines();
    let mut next = move || lines.next().transpose().map_err(|error| format!("a worker's input: {error}"));
    let Some(first) = next()? else { return Ok(()) };
    let assignment: Assignment = serde_json::from_str(&first).map_err(|error| error.to_string())?;
    let shape = RowShape::new(assignment.fields, assignment.field_bytes)?;
    let (directory, records, safety) = (&assignment.directory, assignment.records, assignment.safety);
    let (cache_bytes, medium, set) = (assignment.cache_bytes, assignment.medium, &assignment.set);
    let packing = assignment.packing;
    let opening = Opening { directory, shape, records, safety, packing, cache_bytes, medium, set };
    let opened = peers::open(assignment.engine, assignment.mapping, opening);
    let mut store = match opened {
        Ok(store) => store,
        Err(error) => return say(&Answer::Failed(error)),
    };
    let population = Population::new(store.rows()?);
    while let Some(line) = next()? {
        let command: Command = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        let plan = plan(&assignment, &command)?;
        let outcome = run_phase(&mut *store, shape, &population, &plan, &mut |progress| {
            let Progress { fraction, per_second, .. } = progress;
            if say(&Answer::Progress { fraction, per_second }).is_err() {
                // The run was ended: nobody waits for this phase.
                std::process::exit(1);
            }
        });
        let answer = outcome.and_then(|outcome| {
            let disk = store.directory().map_or(Ok(0), process::disk_bytes)?;
            Ok(PhaseReport::new(&command.phase.name(), plan.threads, &outcome, Memory::now()?, disk))
        });
        match answer {
            Ok(report) => say(&Answer::Done(Box::new(report)))?,
            Err(error) => say(&Answer::Failed(error))?,
        }
    }
    Ok(())
}

fn plan(assignment: &Assignment, command: &Command) -> Result<Plan, String> {
    Ok(Plan {
        workload: Workload::find(&command.phase.workload)?,
        records: assignment.records,
        operations: assignment.operations,
        seconds: assignment.seconds,
        threads: assignment.threads,
        distribution: command.phase.skew.distribution(),
        rate: assignment.rate,
        seed: command.seed,
        rest_max: REST_MAX,
    })
}

fn say(answer: &Answer) -> Result<(), String> {
    let line = serde_json::to_string(answer).map_err(|error| error.to_string())?;
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| error.to_string())
}
