//! What is measured of a pool over TCP, and how it is told.
//!
//! Owns the options of `hedgerow bench pool measured`, and its tables and charts. Must not know how a phase is run: that is [`measured`](super::measured)'s.

use serde_json::json;

use super::figures::RUN_COLUMNS;
use super::load::{PoolLoad, VALUE_BYTES_MIN};
use super::measured::{MeasuredFigures, MeasuredMode, MeasuredScale, MeasuredSetting, measure};
use super::page::{PoolOutput, PoolReport, PoolSection};
use super::setting::distribution_name;
use super::{VALUE_BYTES_MAX, within};
use crate::bench::chart::{Chart, Scale, Series, Shape, Unit};
use crate::bench::distribution::Distribution;
use crate::bench::paper::finding::{Figure, FigureTable, Finding, median_and_range};
use crate::bench::paper::machine;
use crate::bench::report::{count, latency};

/// Arguments of `hedgerow bench pool measured`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct MeasuredArgs {
    /// Loads of YCSB: a, b, c, d.
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d")]
    loads: Vec<String>,
    /// How keys are chosen.
    #[arg(long, value_enum, default_value_t = Distribution::Zipfian)]
    distribution: Distribution,
    /// Bytes in a value; all loads have the first, and load A each.
    #[arg(long, value_delimiter = ',', default_value = "128,1024,8192")]
    value_bytes: Vec<usize>,
    /// Compute nodes: a thread each, and one of a caller.
    #[arg(long, default_value_t = 2)]
    compute_nodes: u16,
    /// Memory nodes: a thread each.
    #[arg(long, default_value_t = 3)]
    memory_nodes: u8,
    /// Copies of everything [default: as many as memory nodes, three at most].
    #[arg(long)]
    copies: Option<u8>,
    /// Partitions of the index are two to the power of this.
    #[arg(long, default_value_t = 5)]
    partition_bits: u32,
    /// Pairs that are there before anything is measured.
    #[arg(long, default_value_t = 5_000)]
    keys: u64,
    /// Seconds of each phase.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Calls under way on each compute node.
    #[arg(long, default_value_t = 16)]
    depth: usize,
    /// Seed of the first round; each other one has the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often all of it is run, on new pools: medians and ranges are told.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    #[command(flatten)]
    output: PoolOutput,
}

/// A phase in all rounds.
type MeasuredRounds = (MeasuredSetting, String, Vec<MeasuredFigures>);

impl MeasuredArgs {
    /// # Errors
    /// A sentence for a person: what makes no sense.
    fn scale(&self) -> Result<MeasuredScale, String> {
        within("--compute-nodes", self.compute_nodes.into(), 1, 64)?;
        within("--memory-nodes", self.memory_nodes.into(), 1, 16)?;
        let copies = self.copies.unwrap_or(self.memory_nodes.min(3));
        within("--copies", copies.into(), 1, self.memory_nodes.into())?;
        within("--partition-bits", self.partition_bits.into(), 0, super::PARTITION_BITS_MAX.into())?;
        within("--keys", self.keys, 1, 10_000_000)?;
        within("--depth", self.depth as u64, 1, 1_000)?;
        within("--rounds", self.rounds as u64, 1, 1_000)?;
        within("--seed", self.seed, 0, u64::MAX - 1_000)?;
        if !(self.seconds >= 0.01 && self.seconds <= 3_600.0) {
            return Err(format!("--seconds must be 0.01 to 3600, not {}", self.seconds));
        }
        for &bytes in &self.value_bytes {
            within("--value-bytes", bytes as u64, VALUE_BYTES_MIN as u64, VALUE_BYTES_MAX as u64)?;
        }
        Ok(MeasuredScale {
            compute_nodes: self.compute_nodes,
            memory_nodes: self.memory_nodes,
            copies,
            partition_bits: self.partition_bits,
            keys: self.keys,
            seconds: self.seconds,
            depth: self.depth,
        })
    }

    /// What is run: over loads, and over sizes.
    fn groups(&self) -> Result<[Vec<(String, MeasuredSetting)>; 2], String> {
        let first = self.value_bytes.first().copied().unwrap_or(128);
        let setting = |load, value_bytes| MeasuredSetting { mode: MeasuredMode::Direct, load, value_bytes };
        let mut loads = Vec::new();
        for name in &self.loads {
            let load = PoolLoad::find(name, self.distribution)?;
            loads.push((name.to_uppercase(), setting(load, first)));
        }
        let a = PoolLoad::find("a", self.distribution)?;
        let sizes = self.value_bytes.iter().map(|&bytes| (format!("{bytes} B"), setting(a, bytes)));
        Ok([loads, sizes.collect()])
    }
}

fn run_all(
    args: &MeasuredArgs,
    scale: MeasuredScale,
    points: &[(String, MeasuredSetting)],
) -> Result<Vec<MeasuredRounds>, String> {
    let mut all: Vec<MeasuredRounds> = Vec::new();
    for (name, setting) in points {
        let modes = MeasuredMode::ALL.map(|mode| MeasuredSetting { mode, ..*setting });
        all.extend(modes.map(|setting| (setting, name.clone(), Vec::new())));
    }
    // Round by round, so that what drifts on the machine is in the ranges.
    for round in 0..args.rounds as u64 {
        for (setting, name, rounds) in &mut all {
            let mode = setting.mode.name();
            let figures = measure(*setting, scale, args.seed + round, false);
            let (figures, _) = figures.map_err(|error| format!("{name}, {mode}: {error}"))?;
            let note = if figures.is_disturbed() { "  (others used the machine)" } else { "" };
            eprintln!("{name:<7} {mode:<22} {:>8} calls/s{note}", count(figures.calls_per_s));
            rounds.push(figures);
        }
    }
    Ok(all)
}

/// A number of all rounds; `-` where there is none.
fn cell(
    rounds: &[MeasuredFigures],
    of: impl Fn(&MeasuredFigures) -> Option<f64>,
    show: impl Fn(f64) -> String,
) -> String {
    let numbers: Vec<f64> = rounds.iter().filter_map(of).collect();
    if numbers.is_empty() { "-".into() } else { median_and_range(&numbers, show) }
}

fn table_of(title: &str, settings: &str, all: &[MeasuredRounds]) -> FigureTable {
    let row = |(setting, name, rounds): &MeasuredRounds| {
        let star = if rounds.iter().any(MeasuredFigures::is_disturbed) { "*" } else { "" };
        let rate = cell(rounds, |figures| Some(figures.calls_per_s), count);
        let mut row = vec![format!("{name} {}", setting.mode.name()), format!("{rate}{star}")];
        for path in ["read", "write"] {
            for quantile in ["p50", "p99", "p99.9"] {
                let us = |figures: &MeasuredFigures| Some(figures.latency(path)?.ns(quantile) as f64 / 1e3);
                row.push(cell(rounds, us, latency));
            }
        }
        let hits = |figures: &MeasuredFigures| Some(figures.value_hits as f64 / figures.calls.max(1) as f64);
        row.push(cell(rounds, hits, |share| format!("{:.1} %", share * 100.0)));
        row.push(cell(rounds, |figures| Some(figures.cpu_us_per_call), |us| format!("{us:.2}")));
        row.push(cell(rounds, |figures| Some(figures.refused as f64), count));
        row
    };
    FigureTable {
        title: title.into(),
        settings: settings.into(),
        head: [&RUN_COLUMNS[..], &["value hits", "cpu us/call", "refused"]].concat(),
        rows: all.iter().map(row).collect(),
    }
}

fn section(
    (name, title): (&'static str, &str),
    settings: &str,
    rounds: usize,
    all: &[MeasuredRounds],
) -> PoolSection {
    let mut names: Vec<String> = Vec::new();
    for (_, point, _) in all {
        if !names.contains(point) {
            names.push(point.clone());
        }
    }
    let of_round = |round: usize| {
        let series = |path: &'static str, of: fn(&MeasuredFigures, &str) -> Option<f64>| {
            let line = |mode: MeasuredMode| {
                let own = all.iter().filter(|(setting, ..)| setting.mode == mode);
                let number = |(_, _, rounds): &MeasuredRounds| of(rounds.get(round)?, path);
                Series::over_names(mode.name(), own.map(number))
            };
            MeasuredMode::ALL.map(line).to_vec()
        };
        let us = ("latency", Unit::Microseconds);
        let chart = |title: &str, y, shape, series| {
            Chart::over_names(title, (title, names.clone()), y, (shape, 500), series)
        };
        let p99 = |figures: &MeasuredFigures, path: &str| Some(figures.latency(path)?.ns("p99") as f64 / 1e3);
        let in_decades = |chart: Chart| Chart { scale: Scale::Log, ..chart };
        let charts = vec![
            chart(
                "Throughput",
                ("calls/s", Unit::Rate),
                Shape::Bars,
                series("", |one, _| Some(one.calls_per_s)),
            ),
            in_decades(chart("p99 of reads", us, Shape::Dots, series("read", p99))),
            in_decades(chart("p99 of writes", us, Shape::Dots, series("write", p99))),
        ];
        let figure = Figure {
            title: title.into(),
            see: "All nodes and callers share this machine's processors: what takes fewer messages is quicker here.".into(),
            settings: format!("Measured. {settings}"),
            paper: None,
            charts,
        };
        Finding { figures: vec![figure], ..Finding::default() }
    };
    let mut finding = Finding::of_rounds((0..rounds).map(of_round).collect());
    finding.tables.push(table_of(title, settings, all));
    let stars = all.iter().flat_map(|(_, _, rounds)| rounds).filter(|one| one.is_disturbed()).count();
    let phases = all.iter().map(|(_, _, rounds)| rounds.len()).sum::<usize>();
    let mut notes = Vec::new();
    if stars > 0 {
        notes.push(format!(
            "* Others kept 0.2 processors or more busy in {stars} of {phases} phases [measured]."
        ));
    }
    PoolSection { name, title: title.into(), finding, notes }
}

/// All phases, run and told.
pub(super) fn report(args: &MeasuredArgs) -> Result<PoolReport, String> {
    let scale = args.scale()?;
    let [loads, sizes] = args.groups()?;
    let (by_load, by_size) = (run_all(args, scale, &loads)?, run_all(args, scale, &sizes)?);
    let MeasuredScale { compute_nodes, memory_nodes, copies, keys, seconds, depth, .. } = scale;
    let distribution = distribution_name(args.distribution);
    let settings = format!(
        "{compute_nodes} compute and {memory_nodes} memory nodes, {copies} copies, {keys} pairs, {depth} calls under way on each compute node, {distribution}, {seconds} s a phase, rounds: {}",
        args.rounds
    );
    let first = args.value_bytes.first().copied().unwrap_or(128);
    let of_loads = format!("{settings}; values of {first} bytes");
    let of_sizes = format!("{settings}; half reads, half updates");
    let results: Vec<&MeasuredFigures> =
        by_load.iter().chain(&by_size).flat_map(|(_, _, rounds)| rounds).collect();
    Ok(PoolReport {
        title: "A pool of memory over TCP, on this machine",
        kind: "measured",
        about: vec![
            format!(
                "Measured on {}: all nodes are threads of one process, over TCP on 127.0.0.1, which takes every message through two processors and the kernel. It says what the code takes of this machine, and nothing of networks.",
                machine::machine()
            ),
            "Processor time is that of the whole process: callers with their checks, compute nodes, memory nodes and the manager. Latencies are from a call to its answer, as its caller has it.".into(),
            "direct: no proxies, and a cache of slots. proxies: each partition has one, and nothing is cached. proxies, pairs cached: with caches of 64 MiB. Every answer is compared with what was written.".into(),
        ],
        settings: json!({
            "suite": "pool measured",
            "scale": scale,
            "loads": args.loads,
            "value_bytes": args.value_bytes,
            "distribution": distribution,
            "machine": machine::machine(),
            "seed": args.seed,
            "rounds": args.rounds,
            "version": env!("CARGO_PKG_VERSION"),
        }),
        sections: vec![
            section(("loads", "Loads of YCSB"), &of_loads, args.rounds, &by_load),
            section(("values", "Sizes of values"), &of_sizes, args.rounds, &by_size),
        ],
        results: json!(results),
    })
}

/// Runs the benchmark.
pub(super) fn run(args: &MeasuredArgs) -> Result<(), String> {
    args.output.check()?;
    report(args)?.tell(&args.output)
}
