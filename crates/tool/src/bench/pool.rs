//! Benchmarks of the pool: `hedgerow bench pool`.
//!
//! Owns the command's options, and which runs are done, by how many threads. Promises that no figure is of a run with an answer that cannot be right: such a run ends in an error. [`modelled`] is a pool in virtual time, and
//! [`experiments`] what is compared there; [`load`] says what is asked and checked, [`page`] how it is told.

mod experiments;
mod figures;
mod load;
mod measured;
mod measured_report;
mod modelled;
mod page;
mod primitives;
mod setting;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hedgerow_pool::fabric::nic::NicModel;
use serde_json::{Value, json};

use super::distribution::Distribution;
use super::paper::machine;
use super::phase_bar;
use experiments::{ModelledPlan, ModelledResults, PoolExperiment};
use figures::PoolFigures;
use load::{PoolLoad, VALUE_BYTES_MIN};
use modelled::ModelledRun;
use page::{PoolOutput, PoolReport};
use setting::{PoolScale, PoolSetting, STATIC_SHARE, distribution_name};

/// All partitions may have a proxy: 240 at most have one.
const PARTITION_BITS_MAX: u32 = 7;
/// Longer ones are kept in parts, which is not compared here.
const VALUE_BYTES_MAX: usize = 16_000;
/// Calls that a client of the pool has under way at most.
const UNDER_WAY_MAX: usize = 128;
/// Of FlexKV's testbed (arXiv 2512.16148, section 5.1).
const PAPER_NODES: (u16, u8) = (20, 3);
const PAPER_THREADS: usize = 10;
const PAPER_KEYS: u64 = 100_000;
const PAPER_CALLS: u64 = 200_000;

/// What is not modelled alone.
#[derive(Debug, Clone, clap::Subcommand)]
enum PoolSuite {
    /// Loads of YCSB over TCP on this machine, all nodes threads of this process.
    Measured(measured_report::MeasuredArgs),
    /// Each verb of both fabrics: modelled in virtual time, and measured over TCP.
    Primitives(primitives::PrimitivesArgs),
}

/// Arguments of `hedgerow bench pool`.
#[derive(Debug, Clone, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct PoolBenchArgs {
    #[command(subcommand)]
    suite: Option<PoolSuite>,
    /// Which, in order: loads, ablation, values, updates, nodes, costs [default: all].
    #[arg(long, value_delimiter = ',')]
    experiments: Vec<String>,
    /// Loads of YCSB: a, b, c, d.
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d")]
    loads: Vec<String>,
    /// How keys are chosen, over which loads are run.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "zipfian,uniform")]
    distributions: Vec<Distribution>,
    /// Bytes in a value; where nothing else is compared the first.
    #[arg(long, value_delimiter = ',', default_value = "128,16,512,1024")]
    value_bytes: Vec<usize>,
    /// Percents of updates; the rest are reads.
    #[arg(long, value_delimiter = ',', default_value = "0,5,25,50,75,100")]
    updates: Vec<u64>,
    /// Compute and memory nodes; where nothing else is compared the first.
    #[arg(long, value_delimiter = ',', default_value = "4:3,2:3,8:3,4:6")]
    nodes: Vec<String>,
    /// Threads of callers on each compute node [default: 2].
    #[arg(long)]
    threads: Option<usize>,
    /// Calls under way on each of them.
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// Pairs that are there before anything is measured [default: 5000].
    #[arg(long)]
    keys: Option<u64>,
    /// Calls that are measured in each run [default: 20000].
    #[arg(long)]
    calls: Option<u64>,
    /// The scale of FlexKV's testbed, but for 100,000 pairs in the place of ten million: 20 compute and 3 memory nodes, 10 threads on each, 200,000 calls.
    #[arg(long)]
    paper: bool,
    /// Partitions of the index are two to the power of this.
    #[arg(long, default_value_t = PARTITION_BITS_MAX)]
    partition_bits: u32,
    /// Bytes of values that a compute node caches.
    #[arg(long, default_value_t = 64 << 20)]
    cached_bytes: usize,
    /// Nanoseconds of its thread that a caller takes for a call: assumed, and among the costs that are halved and doubled.
    #[arg(long, default_value_t = 500)]
    call_ns: u64,
    /// Microseconds between two looks of whoever chooses proxies.
    #[arg(long, default_value_t = 1000)]
    period_us: u64,
    /// Seed of the first round; each other one has the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often all of it is run, with other seeds: medians and ranges are told.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    #[command(flatten)]
    output: PoolOutput,
}

/// Runs the benchmark.
pub(super) fn run(args: &PoolBenchArgs) -> Result<(), String> {
    match &args.suite {
        Some(PoolSuite::Measured(args)) => return measured_report::run(args),
        Some(PoolSuite::Primitives(args)) => return primitives::run(args),
        None => {}
    }
    let (experiments, plan, scale) = args.plan()?;
    args.output.check()?;
    report(args, &experiments, &plan, scale)?.tell(&args.output)
}

/// What was asked for, run and put together.
fn report(
    args: &PoolBenchArgs,
    experiments: &[PoolExperiment],
    plan: &ModelledPlan,
    scale: PoolScale,
) -> Result<PoolReport, String> {
    let results = run_all(args, experiments, plan, scale)?;
    let all: Vec<&PoolFigures> = results.0.iter().flat_map(|(_, rounds)| rounds).collect();
    Ok(PoolReport {
        title: "A pool of memory, in virtual time",
        kind: "modelled",
        about: about(args, plan, scale),
        settings: settings_json(args, plan, scale),
        results: json!(all),
        sections: experiments.iter().map(|one| one.section(plan, &results)).collect(),
    })
}

fn about(args: &PoolBenchArgs, plan: &ModelledPlan, scale: PoolScale) -> Vec<String> {
    let PoolScale { keys, calls, threads, depth, call_ns, period_ns, partition_bits, .. } = scale;
    vec![
        format!(
            "Nothing here was measured: time is virtual, and operations cost what {:?} says, of which one way, atomic, issue and datagram are assumed, as are {call_ns} ns of a caller's thread for a call. Of processors nothing else costs, and nothing fails. No number may be quoted as one of a network.",
            NicModel::CONNECTX3
        ),
        format!(
            "{keys} pairs, {calls} calls measured in each run, {threads} threads on each compute node with {depth} calls under way each, {} partitions; seeds {} to {}.",
            1 << partition_bits,
            args.seed,
            args.seed + plan.rounds as u64 - 1
        ),
        format!(
            "direct: SNAPSHOT over the copies of the index and a cache of slots, as FUSEE has it but for its log, which is a round more there. + proxies: {STATIC_SHARE} % of the partitions, by number; addresses are cached. + ranks: the hottest {STATIC_SHARE} %. + values cached. + adaptive split: as many as throughput says, tried every {} us, where the paper's period is a second: caches are empty after each try, and a share is measured at less than it is worth. all proxied: all that there is, without that choice.",
            period_ns / 1000
        ),
        "owners: each partition is one compute node's, to which all calls of it are sent, and which alone caches its pairs: an ownership-partitioned store of the same parts, as FlexKV compares itself with. Its processors cost the handling of datagrams alone. Not built: anything like Aceso, Clover or DINOMO.".into(),
        "Every answer is compared with what was written: one of another key, of nobody, or certainly overwritten before it was asked for ends the run.".into(),
    ]
}

fn settings_json(args: &PoolBenchArgs, plan: &ModelledPlan, scale: PoolScale) -> Value {
    let nodes: Vec<String> =
        plan.nodes.iter().map(|(compute, memory)| format!("{compute}:{memory}")).collect();
    json!({
        "suite": "pool",
        "kind": "modelled",
        "nic": format!("{:?}", NicModel::CONNECTX3),
        "scale": scale,
        "loads": plan.loads,
        "distributions": plan.distributions.iter().map(|&one| distribution_name(one)).collect::<Vec<_>>(),
        "value_bytes": plan.value_bytes,
        "updates": plan.updates,
        "nodes": nodes,
        "static_share": STATIC_SHARE,
        "quantiles": figures::QUANTILES.map(|(name, _)| name),
        "seed": args.seed,
        "rounds": plan.rounds,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// Every run that some experiment takes, once in each round. They have nothing to do with one another: as many at a time as there are processors.
fn run_all(
    args: &PoolBenchArgs,
    experiments: &[PoolExperiment],
    plan: &ModelledPlan,
    scale: PoolScale,
) -> Result<ModelledResults, String> {
    let mut settings: Vec<PoolSetting> = Vec::new();
    for setting in experiments.iter().flat_map(|experiment| experiment.settings(plan)) {
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    let jobs: Vec<(PoolSetting, u64)> = (0..plan.rounds as u64)
        .flat_map(|round| settings.iter().map(move |&setting| (setting, round)))
        .collect();
    let (bar, next) = (phase_bar("modelled"), AtomicUsize::new(0));
    let done: Mutex<Vec<(usize, Result<PoolFigures, String>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..machine::processors().min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(setting, round)) = jobs.get(at) else { return };
                    let seed = args.seed + round;
                    let run = ModelledRun::new(setting, scale, seed, false);
                    let outcome = run.and_then(|run| run.run(seed)).map(|(figures, _)| figures);
                    let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    done.push((at, outcome));
                    bar.set_position((done.len() * 1000 / jobs.len()) as u64);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    let mut rounds: Vec<(PoolSetting, Vec<PoolFigures>)> =
        settings.iter().map(|&setting| (setting, Vec::new())).collect();
    for (at, outcome) in done {
        rounds[at % settings.len()].1.push(outcome?);
    }
    Ok(ModelledResults(rounds))
}

impl PoolBenchArgs {
    /// # Errors
    /// A sentence for a person: what makes no sense.
    fn plan(&self) -> Result<(Vec<PoolExperiment>, ModelledPlan, PoolScale), String> {
        self.check()?;
        let find = |name: &String| {
            let found = PoolExperiment::ALL.into_iter().find(|one| one.name() == name);
            let names = PoolExperiment::ALL.map(PoolExperiment::name).join(", ");
            found.ok_or_else(|| format!("there is no experiment '{name}': give {names}"))
        };
        let mut experiments = self.experiments.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        if experiments.is_empty() {
            experiments = PoolExperiment::ALL.into();
        }
        self.loads.iter().try_for_each(|name| PoolLoad::find(name, Distribution::Uniform).map(drop))?;
        let mut nodes = self.nodes.iter().map(|text| parse_nodes(text)).collect::<Result<Vec<_>, _>>()?;
        if self.paper {
            nodes.retain(|other| *other != PAPER_NODES);
            nodes.insert(0, PAPER_NODES);
        }
        let or = |given: Option<u64>, paper, otherwise| {
            given.unwrap_or(if self.paper { paper } else { otherwise })
        };
        let scale = PoolScale {
            keys: or(self.keys, PAPER_KEYS, 5_000),
            calls: or(self.calls, PAPER_CALLS, 20_000),
            threads: self.threads(),
            depth: self.depth,
            partition_bits: self.partition_bits,
            cached_bytes: self.cached_bytes,
            call_ns: self.call_ns,
            period_ns: self.period_us * 1000,
        };
        let plan = ModelledPlan {
            loads: self.loads.clone(),
            distributions: self.distributions.clone(),
            value_bytes: self.value_bytes.clone(),
            updates: self.updates.clone(),
            nodes,
            rounds: self.rounds,
        };
        Ok((experiments, plan, scale))
    }

    fn threads(&self) -> usize {
        self.threads.unwrap_or(if self.paper { PAPER_THREADS } else { 2 })
    }

    fn check(&self) -> Result<(), String> {
        within("--depth", self.depth as u64, 1, UNDER_WAY_MAX as u64)?;
        within("--threads", self.threads() as u64, 1, (UNDER_WAY_MAX / self.depth) as u64)?;
        within("--rounds", self.rounds as u64, 1, 1_000)?;
        within("--keys", self.keys.unwrap_or(1), 1, 100_000_000)?;
        within("--calls", self.calls.unwrap_or(1), 1, 1_000_000_000)?;
        within("--partition-bits", self.partition_bits.into(), 0, PARTITION_BITS_MAX.into())?;
        within("--call-ns", self.call_ns, 1, 1_000_000)?;
        within("--period-us", self.period_us, 10, 10_000_000)?;
        within("--seed", self.seed, 0, u64::MAX - 1_000)?;
        for &bytes in &self.value_bytes {
            within("--value-bytes", bytes as u64, VALUE_BYTES_MIN as u64, VALUE_BYTES_MAX as u64)?;
        }
        self.updates.iter().try_for_each(|&percent| within("--updates", percent, 0, 100))
    }
}

/// Whether a setting makes sense.
fn within(name: &str, number: u64, least: u64, most: u64) -> Result<(), String> {
    let fits = (least..=most).contains(&number);
    if fits { Ok(()) } else { Err(format!("{name} must be {least} to {most}, not {number}")) }
}

/// `4:3`.
fn parse_nodes(text: &str) -> Result<(u16, u8), String> {
    let parsed = text
        .split_once(':')
        .and_then(|(compute, memory)| Some((compute.parse::<u16>().ok()?, memory.parse::<u8>().ok()?)));
    let fits = parsed.filter(|(compute, memory)| (1..=64).contains(compute) && (1..=16).contains(memory));
    fits.ok_or_else(|| {
        format!("--nodes must be compute nodes (1 to 64) and memory nodes (1 to 16), as 4:3, not {text}")
    })
}

#[cfg(test)]
mod tests;
