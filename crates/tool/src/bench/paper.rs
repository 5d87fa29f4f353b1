//! What all suites share that repeat the experiments of papers.
//!
//! Owns the options of such a suite, and the order in which its experiments run. Each opens the stores it needs through the `rig`, runs
//! phases with the driver, and answers with a `finding`; `page` tells it all to a person. Promises that every phase
//! checks what it reads, and that figures measured on the emulated medium are called so. Must not know which suites there are.

pub(in crate::bench) mod experiment;
pub(in crate::bench) mod finding;
pub(in crate::bench) mod machine;
pub(in crate::bench) mod page;
pub(in crate::bench) mod rig;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::report;
use super::setting::EngineArgs;
use crate::store_url::{Medium, StoreUrl};
use experiment::{Experiment, PaperSuite};
use finding::{Finding, Result};
use rig::Rig;

/// Arguments of every suite that repeats a paper's experiments.
#[derive(Debug, Clone, clap::Args)]
pub struct PaperArgs {
    /// Where the stores are made, as tiered:DIRECTORY; each is removed when its experiment is over, but those of one that is interrupted
    /// (Ctrl-C) are left. On tmpfs (/dev/shm) no disk takes part.
    #[arg(long, value_parser = StoreUrl::measured)]
    pub(in crate::bench) store: StoreUrl,
    /// Where the sorted tables of stores with a bounded fast tier are made [default: in their stores' directories].
    #[arg(long, value_name = "DIRECTORY")]
    pub(in crate::bench) capacity: Option<PathBuf>,
    /// What the stores rest on: a file, or the same slowed to persistent memory.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "file,emulated")]
    pub(in crate::bench) media: Vec<Medium>,
    /// Which experiments, by name [default: all].
    #[arg(long, value_delimiter = ',')]
    pub(in crate::bench) experiments: Vec<String>,
    /// Rows of the data set; fewer where rows are longer than 1,000 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    pub(in crate::bench) records: u64,
    /// Seconds a phase; load takes as long as it needs.
    #[arg(long, default_value_t = 2.0)]
    pub(in crate::bench) seconds: f64,
    /// How often all of it is run: medians and ranges are told.
    #[arg(long, default_value_t = 1)]
    pub(in crate::bench) rounds: usize,
    /// Numbers of threads to scale over; the other experiments use the first [default: 1, 2 and, if the suite says so, 4].
    #[arg(long, value_delimiter = ',')]
    pub(in crate::bench) threads: Vec<usize>,
    #[command(flatten)]
    pub(in crate::bench) engine: EngineArgs,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 42)]
    pub(in crate::bench) seed: u64,
    /// Writes the report there: one file, with its charts.
    #[arg(long)]
    pub(in crate::bench) html: Option<PathBuf>,
    /// Writes all figures there.
    #[arg(long)]
    pub(in crate::bench) json: Option<PathBuf>,
}

/// Runs a suite's experiments and writes the report.
///
/// # Errors
/// Wrong arguments; a report that cannot be written; and experiments that failed, which the report tells too.
pub(in crate::bench) fn run(suite: &PaperSuite, mut args: PaperArgs) -> std::result::Result<(), String> {
    let StoreUrl::Tiered(_, directory) = args.store.clone() else {
        return Err(format!("bench {} makes its own stores: give --store tiered:DIRECTORY", suite.name));
    };
    if args.media.is_empty() {
        return Err("--media must name at least one".into());
    }
    if args.rounds == 0 || args.records == 0 {
        return Err("--rounds and --records must be at least 1".into());
    }
    if args.threads.is_empty() {
        args.threads = suite.threads.to_vec();
    }
    args.experiments.iter().try_for_each(|name| suite.find(name).map(|_| ()))?;
    [&args.json, &args.html].into_iter().flatten().try_for_each(|path| check_writable(path))?;
    let results = run_all(suite, &args, &directory);
    let settings = args.to_json(suite, &directory);
    print!("{}", page::text(&settings, &results));
    write_reports(suite, &args, settings, &results)?;
    match results.iter().find(|result| !result.failures.is_empty()) {
        Some(failed) => {
            Err(format!("{} on {}: {}", failed.experiment, failed.medium.name(), failed.failures[0]))
        }
        None => Ok(()),
    }
}

/// A file that cannot be written is told before hours of measuring. One that is there keeps what is in it until the report is.
pub(in crate::bench) fn check_writable(path: &Path) -> std::result::Result<(), String> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| format!("writing {}: {error}", path.display()))
}

/// Writes both reports that were asked for, the one where the other cannot be.
fn write_reports(
    suite: &PaperSuite,
    args: &PaperArgs,
    settings: Value,
    results: &[Result],
) -> std::result::Result<(), String> {
    let html = args.html.as_ref().map_or(Ok(()), |path| {
        let page = page::html(suite, &settings, results);
        std::fs::write(path, page).map_err(|error| format!("writing {}: {error}", path.display()))?;
        eprintln!("report: {}", path.display());
        Ok(())
    });
    let json = args.json.as_ref().map_or(Ok(()), |path| {
        report::write_json(path, settings, &results)?;
        eprintln!("figures: {}", path.display());
        Ok(())
    });
    let failures: Vec<String> = [json, html].into_iter().filter_map(std::result::Result::err).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

/// Runs an experiment; one that fails is told with what it measured until then.
fn run_one(experiment: &Experiment, rig: std::result::Result<Rig<'_>, String>) -> Finding {
    let failed = |error, phases| Finding { failures: vec![error], phases, ..Finding::default() };
    match rig {
        Ok(rig) => (experiment.run)(&rig).unwrap_or_else(|error| failed(error, rig.measured())),
        Err(error) => failed(error, Vec::new()),
    }
}

fn run_all(suite: &PaperSuite, args: &PaperArgs, directory: &Path) -> Vec<Result> {
    let wanted = |experiment: &&Experiment| {
        args.experiments.is_empty() || args.experiments.iter().any(|name| name == experiment.name)
    };
    let chosen: Vec<&'static Experiment> = suite.experiments.iter().filter(wanted).collect();
    let runs: Vec<(&'static Experiment, Medium)> = chosen
        .into_iter()
        .flat_map(|experiment| args.media.iter().map(move |&medium| (experiment, medium)))
        .collect();
    let mut findings: Vec<Vec<Finding>> = runs.iter().map(|_| Vec::new()).collect();
    // Round by round, so that what drifts on the machine is in the ranges.
    for round in 0..args.rounds {
        for (at, &(experiment, medium)) in runs.iter().enumerate() {
            let step = (round * runs.len() + at + 1, runs.len() * args.rounds);
            let rig = Rig::new(args, medium, (directory, suite.name), (round, step), experiment.name);
            let finding = run_one(experiment, rig);
            finding.failures.iter().for_each(|failure| {
                eprintln!("{} {}: FAILED: {failure}", experiment.name, medium.name());
            });
            findings[at].push(finding);
        }
    }
    let findings = runs.into_iter().zip(findings).map(|((experiment, medium), rounds)| {
        let Finding { figures, tables, factors, phases, failures } = Finding::of_rounds(rounds);
        let Experiment { name, title, paper, .. } = *experiment;
        Result { experiment: name, title, paper, medium, figures, tables, factors, phases, failures }
    });
    findings.collect()
}

impl PaperArgs {
    pub(in crate::bench) fn to_json(&self, suite: &PaperSuite, directory: &Path) -> Value {
        let capacity = self.capacity.as_deref();
        json!({
            "suite": suite.name,
            "media": self.media,
            "emulation": machine::emulation(),
            "place": machine::place(directory),
            "capacity": machine::place(capacity.unwrap_or(directory)),
            "records": self.records,
            "seconds": self.seconds,
            "rounds": self.rounds,
            "threads": self.threads,
            "durability": self.engine.durability_name(),
            "set": self.engine.set_names(),
            "seed": self.seed,
            "machine": machine::machine(),
            "version": env!("CARGO_PKG_VERSION"),
        })
    }
}

#[cfg(test)]
pub(in crate::bench) mod tests;
