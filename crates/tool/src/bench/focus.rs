//! `hedgerow bench focus`: the experiments of the FOCUS paper, re-run on what the engine has today.
//!
//! Owns the command's options and the list of experiments (`EXPERIMENTS`): another one is a module with one entry there.
//! Each opens the stores it needs through the `rig`, runs phases with the driver, and answers with a `finding`;
//! `page` tells it all to a person. Promises that every phase checks what it reads, and that figures measured on the
//! emulated medium are called so.

mod ablation;
mod access;
mod cache;
mod experiment;
mod finding;
mod hotspot;
mod overwrite;
mod page;
mod parts;
mod ratio;
mod rig;
mod scaling;
mod sizes;
mod wide;
mod ycsb;

use std::path::{Path, PathBuf};

use hedgerow_device::PersistentMemoryModel;
use serde_json::{Value, json};

use super::report;
use super::setting::EngineArgs;
use crate::store_url::{Medium, StoreUrl};
use experiment::Experiment;
use finding::{Finding, Result};
use rig::Rig;

/// What is re-run, in the order of the report.
const EXPERIMENTS: &[Experiment] = &[
    ycsb::EXPERIMENT,
    access::EXPERIMENT,
    wide::EXPERIMENT,
    ablation::EXPERIMENT,
    ratio::EXPERIMENT,
    sizes::EXPERIMENT,
    scaling::EXPERIMENT,
    parts::EXPERIMENT,
    cache::EXPERIMENT,
    hotspot::EXPERIMENT,
    overwrite::EXPERIMENT,
];

/// Arguments of `hedgerow bench focus`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where the stores are made, as tiered:DIRECTORY; each is removed when its experiment is over. On tmpfs (/dev/shm) no
    /// disk takes part.
    #[arg(long, value_parser = StoreUrl::measured)]
    store: StoreUrl,
    /// What the stores rest on: a file, or the same slowed to persistent memory.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "file,emulated")]
    media: Vec<Medium>,
    /// Which experiments, by name [default: all].
    #[arg(long, value_delimiter = ',', value_parser = parse_experiment)]
    experiments: Vec<String>,
    /// Rows of the data set; fewer where rows are longer than 1,000 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Seconds a phase; load takes as long as it needs.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How often all of it is run: medians and ranges are told.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Numbers of threads to scale over; the other experiments use the first.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Writes the report there: one file, with its charts.
    #[arg(long)]
    html: PathBuf,
    /// Writes all figures there.
    #[arg(long)]
    json: PathBuf,
}

fn parse_experiment(name: &str) -> std::result::Result<String, String> {
    if EXPERIMENTS.iter().any(|experiment| experiment.name == name) {
        return Ok(name.to_owned());
    }
    let names: Vec<_> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
    Err(format!("there is no experiment {name}; there are {}", names.join(", ")))
}

/// Runs the experiments and writes the report.
///
/// # Errors
/// Wrong arguments; a report that cannot be written; and experiments that failed, which the report tells too.
pub fn run(args: Args) -> std::result::Result<(), String> {
    let StoreUrl::Tiered(_, directory) = &args.store else {
        return Err("bench focus makes its own stores: give --store tiered:DIRECTORY".into());
    };
    if args.threads.is_empty() || args.media.is_empty() {
        return Err("--threads and --media must name at least one".into());
    }
    if args.rounds == 0 {
        return Err("--rounds must be at least 1".into());
    }
    let results = run_all(&args, directory)?;
    print!("{}", page::factor_table(&results));
    report::write_json(&args.json, args.to_json(), &results)?;
    let page = page::html(&args.to_json(), &results);
    std::fs::write(&args.html, page).map_err(|error| format!("writing {}: {error}", args.html.display()))?;
    eprintln!("report: {}   figures: {}", args.html.display(), args.json.display());
    match results.iter().find(|result| !result.failures.is_empty()) {
        Some(failed) => {
            Err(format!("{} on {}: {}", failed.experiment, failed.medium.name(), failed.failures[0]))
        }
        None => Ok(()),
    }
}

fn run_all(args: &Args, directory: &Path) -> std::result::Result<Vec<Result>, String> {
    let wanted = |experiment: &&Experiment| {
        args.experiments.is_empty() || args.experiments.iter().any(|name| name == experiment.name)
    };
    let chosen: Vec<&'static Experiment> = EXPERIMENTS.iter().filter(wanted).collect();
    let runs: Vec<(&'static Experiment, Medium)> = chosen
        .into_iter()
        .flat_map(|experiment| args.media.iter().map(move |&medium| (experiment, medium)))
        .collect();
    let mut findings: Vec<Vec<Finding>> = runs.iter().map(|_| Vec::new()).collect();
    // Round by round, so that what drifts on the machine is in the ranges.
    for round in 0..args.rounds {
        for (at, &(experiment, medium)) in runs.iter().enumerate() {
            let step = (round * runs.len() + at + 1, runs.len() * args.rounds);
            let rig = Rig::new(args, medium, directory, step, experiment.name)?;
            let finding = (experiment.run)(&rig)
                .unwrap_or_else(|error| Finding { failures: vec![error], ..Finding::default() });
            finding.failures.iter().for_each(|failure| {
                eprintln!("{} {}: FAILED: {failure}", experiment.name, medium.name());
            });
            findings[at].push(finding);
        }
    }
    let findings = runs.into_iter().zip(findings).map(|((experiment, medium), rounds)| {
        let Finding { figures, factors, phases, failures } = Finding::of_rounds(rounds);
        let Experiment { name, title, paper, .. } = *experiment;
        Result { experiment: name, title, paper, medium, figures, factors, phases, failures }
    });
    Ok(findings.collect())
}

impl Args {
    fn to_json(&self) -> Value {
        json!({
            "suite": "focus",
            "media": self.media,
            "emulation": emulation_text(),
            "records": self.records,
            "seconds": self.seconds,
            "rounds": self.rounds,
            "threads": self.threads,
            "durability": self.engine.durability_name(),
            "set": self.engine.set_names(),
            "seed": self.seed,
            "machine": page::machine(),
            "version": env!("CARGO_PKG_VERSION"),
        })
    }
}

/// What the emulated medium plays, here.
fn emulation_text() -> String {
    let model = PersistentMemoryModel::optane();
    let here = model.latency_here();
    format!(
        "Intel Optane DC persistent memory, one DIMM of the first generation: random read {} ns and sequential read {} ns \
         per 256 bytes against {} ns for DRAM. DRAM takes {} ns a random line here, so those reads take {} ns and {} ns here in all; \
         {} lines of 64 bytes under way from a thread, {:.1} GB/s of read and {:.1} GB/s of write bandwidth shared by all \
         threads, {} KB of write buffer, {} MB of processor cache in front. Izraelevitz et al., Basic Performance Measurements of \
         the Intel Optane DC Persistent Memory Module (2019); Yang et al., An Empirical Guide to the Behavior and Use of \
         Scalable Persistent Memory (FAST 2020). Figures on this medium are the model's.",
        model.read_latency_ns,
        model.sequential_read_latency_ns,
        model.base_latency_ns,
        here.dram_ns,
        here.random_ns,
        here.sequential_ns,
        model.lines_in_flight,
        model.read_bandwidth as f64 / 1e9,
        model.write_bandwidth as f64 / 1e9,
        model.write_buffer_bytes >> 10,
        model.cache_bytes >> 20,
    )
}

#[cfg(test)]
mod tests;
