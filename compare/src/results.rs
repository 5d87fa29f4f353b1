//! What the run says: net times, ratios, tables, JSON.
//!
//! Owns the arithmetic. The net time of an operation is its mean wall time less the null store's in the same phase of the same
//! group and round; a ratio is a peer's net time over Hedgerow's, again within a group; over rounds both are medians.

use std::collections::BTreeMap;
use std::path::Path;

use hedgerow_tool::bench::report::{PhaseReport, count, latency, table};
use hedgerow_tool::bench::store::mapping::Mapping;
use serde::Serialize;

use crate::peers::Engine;

/// One phase of one engine in one round.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) engine: Engine,
    pub(crate) mapping: Option<Mapping>,
    /// The mapping of the peers it ran beside.
    pub(crate) group: Mapping,
    pub(crate) round: usize,
    pub(crate) report: PhaseReport,
}

/// An engine's result in a phase: medians over its runs.
#[derive(Debug, Clone, Serialize)]
struct Summary {
    engine: &'static str,
    mapping: &'static str,
    net_us_per_op: f64,
    runs: usize,
    #[serde(flatten)]
    report: PhaseReport,
}

/// How many times Hedgerow's net time an engine takes.
#[derive(Debug, Clone, Serialize)]
struct Ratio {
    phase: String,
    peer: &'static str,
    mapping: &'static str,
    /// Median over rounds.
    ratio: f64,
    least: f64,
    most: f64,
}

/// A net time below this is told as this: 1 ns.
const NET_LEAST_US: f64 = 0.001;

fn mapping_name(engine: Engine, mapping: Option<Mapping>) -> &'static str {
    match (engine, mapping) {
        (Engine::Null, _) => "none",
        (_, None) => "fields",
        (_, Some(Mapping::Consolidated)) => "consolidated",
        (_, Some(Mapping::Scattered)) => "scattered",
    }
}

/// What an engine is called in tables.
pub(crate) fn name_of(engine: Engine, mapping: Option<Mapping>) -> String {
    match mapping {
        None => engine.name().to_string(),
        Some(Mapping::Consolidated) => format!("{} con", engine.name()),
        Some(Mapping::Scattered) => format!("{} sct", engine.name()),
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    match numbers.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => numbers[n / 2],
        n => (numbers[n / 2 - 1] + numbers[n / 2]) / 2.0,
    }
}

/// The run of `engine` beside `run`: same phase, group and round, and where a phase was run more than once the same time of it.
fn beside<'a>(runs: &'a [Run], run: &Run, engine: Engine) -> Option<&'a Run> {
    let together = |other: &&Run| {
        other.group == run.group && other.round == run.round && other.report.phase == run.report.phase
    };
    let is_own = |other: &&Run| other.engine == run.engine && other.mapping == run.mapping;
    let time = runs.iter().filter(together).filter(is_own).position(|other| std::ptr::eq(other, run))?;
    runs.iter().filter(together).filter(|other| other.engine == engine).nth(time)
}

fn net_us(runs: &[Run], run: &Run) -> f64 {
    let harness = beside(runs, run, Engine::Null).map_or(0.0, |null| null.report.us_per_op());
    (run.report.us_per_op() - harness).max(NET_LEAST_US)
}

type Contender = (Engine, Option<Mapping>);

fn contenders(runs: &[Run]) -> Vec<Contender> {
    let mut all: Vec<_> = runs.iter().map(|run| (run.engine, run.mapping)).collect();
    all.sort_by_key(|&(engine, mapping)| (engine, mapping.map(|m| m as u8)));
    all.dedup();
    all
}

fn phases(runs: &[Run]) -> Vec<&str> {
    let mut names = Vec::new();
    for run in runs {
        if !names.contains(&run.report.phase.as_str()) {
            names.push(run.report.phase.as_str());
        }
    }
    names
}

fn of<'a>(runs: &'a [Run], (engine, mapping): Contender, phase: &str) -> Vec<&'a Run> {
    let matches = |run: &&Run| run.engine == engine && run.mapping == mapping && run.report.phase == phase;
    runs.iter().filter(matches).collect()
}

fn summary(runs: &[Run], contender: Contender, phase: &str) -> Option<Summary> {
    let own = of(runs, contender, phase);
    let first = own.first()?;
    let all = |number: fn(&PhaseReport) -> f64| median(own.iter().map(|run| number(&run.report)).collect());
    let report = PhaseReport {
        phase: phase.to_string(),
        threads: first.report.threads,
        operations: all(|r| r.operations as f64) as u64,
        seconds: all(|r| r.seconds),
        ops_per_s: all(|r| r.ops_per_s),
        p50_us: all(|r| r.p50_us),
        p99_us: all(|r| r.p99_us),
        p999_us: all(|r| r.p999_us),
        p9999_us: all(|r| r.p9999_us),
        max_us: all(|r| r.max_us),
        cpu_s: all(|r| r.cpu_s),
        bytes_written: all(|r| r.bytes_written as f64) as u64,
        disk_bytes: all(|r| r.disk_bytes as f64) as u64,
        rss_bytes: all(|r| r.rss_bytes as f64) as u64,
        rss_anon_bytes: all(|r| r.rss_anon_bytes as f64) as u64,
        settle_s: all(|r| r.settle_s),
        neighbours_cpus: all(|r| r.neighbours_cpus),
        ops_in_second: first.report.ops_in_second.clone(),
    };
    Some(Summary {
        engine: contender.0.name(),
        mapping: mapping_name(contender.0, contender.1),
        net_us_per_op: median(own.iter().map(|run| net_us(runs, run)).collect()),
        runs: own.len(),
        report,
    })
}

fn ratio(runs: &[Run], contender: Contender, phase: &str) -> Option<Ratio> {
    let mut ratios: Vec<f64> = of(runs, contender, phase)
        .into_iter()
        .filter_map(|run| {
            let hedgerow = beside(runs, run, Engine::Hedgerow)?;
            Some(net_us(runs, run) / net_us(runs, hedgerow))
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    Some(Ratio {
        phase: phase.to_string(),
        peer: contender.0.name(),
        mapping: mapping_name(contender.0, contender.1),
        least: *ratios.first()?,
        most: *ratios.last()?,
        ratio: median(ratios),
    })
}

fn ratios(runs: &[Run]) -> Vec<Ratio> {
    let peers: Vec<_> = contenders(runs).into_iter().filter(|c| c.1.is_some()).collect();
    let phases = phases(runs);
    phases.iter().flat_map(|phase| peers.iter().filter_map(|&peer| ratio(runs, peer, phase))).collect()
}

/// The least ratio to each peer, over its mappings, and to the best of all that are not Hedgerow itself.
fn best(ratios: &[Ratio], phase: &str) -> BTreeMap<&'static str, f64> {
    let mut best = BTreeMap::new();
    for ratio in ratios.iter().filter(|ratio| ratio.phase == phase) {
        let is_other = ratio.peer != Engine::Flat.name();
        for name in std::iter::once(ratio.peer).chain(is_other.then_some("best of all")) {
            let least = best.entry(name).or_insert(f64::INFINITY);
            *least = ratio.ratio.min(*least);
        }
    }
    best
}

/// Writes `{"settings", "results", "ratios"}`.
pub(crate) fn write_json(path: &Path, settings: serde_json::Value, runs: &[Run]) -> Result<(), String> {
    let contenders = contenders(runs);
    let phases = phases(runs);
    let summaries: Vec<_> =
        phases.iter().flat_map(|phase| contenders.iter().filter_map(|&c| summary(runs, c, phase))).collect();
    let document = serde_json::json!({ "settings": settings, "results": summaries, "ratios": ratios(runs) });
    let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("writing {}: {error}", path.display()))
}

/// All tables for a person.
pub(crate) fn tables(runs: &[Run]) -> String {
    let contenders = contenders(runs);
    let phases = phases(runs);
    let grid = |title: &str, cell: &dyn Fn(&Summary) -> String| {
        let names: Vec<_> = contenders.iter().map(|&(engine, mapping)| name_of(engine, mapping)).collect();
        let head: Vec<_> = std::iter::once("phase").chain(names.iter().map(String::as_str)).collect();
        let rows = phases.iter().map(|phase| {
            let cells = contenders.iter().map(|&c| summary(runs, c, phase).map_or("-".into(), |s| cell(&s)));
            std::iter::once(phase.to_string()).chain(cells).collect()
        });
        format!("\n{title}\n{}", table(&head, rows))
    };
    let per_op = |s: &Summary, total: f64| total / s.report.operations.max(1) as f64;
    let mut text = grid("operations a second", &|s| count(s.report.ops_per_s));
    text += &grid("net us per operation", &|s| match s.engine {
        "null" => format!("({:.3})", s.report.us_per_op()),
        _ => format!("{:.3}", s.net_us_per_op),
    });
    text += &ratio_table(runs, &phases);
    text += &grid("latency p50", &|s| latency(s.report.p50_us));
    text += &grid("latency p99", &|s| latency(s.report.p99_us));
    text += &grid("latency p99.9", &|s| latency(s.report.p999_us));
    text += &grid("latency p99.99", &|s| latency(s.report.p9999_us));
    text += &grid("processor us per operation, background work included", &|s| {
        format!("{:.2}", per_op(s, s.report.cpu_s * 1e6))
    });
    text += &grid("KB written per operation, background work included", &|s| {
        format!("{:.3}", per_op(s, s.report.bytes_written as f64 / 1e3))
    });
    text += &grid("disk MB at the end", &|s| format!("{:.0}", s.report.disk_bytes as f64 / 1e6));
    text += &grid("resident MB at the end: all (own)", &|s| {
        format!("{:.0} ({:.0})", s.report.rss_bytes as f64 / 1e6, s.report.rss_anon_bytes as f64 / 1e6)
    });
    text += &grid("processors busy with others meanwhile", &|s| format!("{:.2}", s.report.neighbours_cpus));
    text + &fill_series(runs)
}

fn ratio_table(runs: &[Run], phases: &[&str]) -> String {
    let ratios = ratios(runs);
    let peers: Vec<_> = contenders(runs).into_iter().filter(|c| c.1.is_some()).collect();
    if peers.is_empty() {
        return String::new();
    }
    let mut head: Vec<String> = vec!["phase".into()];
    head.extend(peers.iter().map(|&(engine, mapping)| name_of(engine, mapping)));
    head.extend(["rocksdb better".into(), "best of all".into()]);
    let rows = phases.iter().map(|phase| {
        let best = best(&ratios, phase);
        let cell = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{ratio:.2}x"));
        let mut row = vec![phase.to_string()];
        row.extend(peers.iter().map(|&(engine, mapping)| {
            let wanted = (engine.name(), mapping_name(engine, mapping));
            let of_peer = |r: &&Ratio| r.phase == *phase && (r.peer, r.mapping) == wanted;
            cell(ratios.iter().find(of_peer).map(|r| r.ratio))
        }));
        row.extend([cell(best.get("rocksdb").copied()), cell(best.get("best of all").copied())]);
        row
    });
    let head: Vec<_> = head.iter().map(String::as_str).collect();
    format!("\nhow many times hedgerow's net time\n{}", table(&head, rows))
}

/// Thousands of operations in each second of the fill.
fn fill_series(runs: &[Run]) -> String {
    let mut text = String::new();
    for run in runs.iter().filter(|run| run.report.phase == "fill" && run.engine != Engine::Null) {
        let series = run.report.ops_in_second.iter().map(|&n| format!("{:.1}", n as f64 / 1e3));
        let series: Vec<_> = series.collect();
        let name = name_of(run.engine, run.mapping);
        text += &format!("\nfill, {name}, thousands in each second: {}\n", series.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use hedgerow_tool::bench::driver::{Plan, Population, run_phase};
    use hedgerow_tool::bench::process::Memory;
    use hedgerow_tool::bench::row::RowShape;
    use hedgerow_tool::bench::store::null::NullStore;
    use hedgerow_tool::bench::workload::Workload;

    use super::*;

    fn report(ops_per_s: f64) -> PhaseReport {
        let shape = RowShape::new(2, 8).unwrap();
        let plan = Plan {
            workload: Workload::find("c").unwrap(),
            records: 10,
            operations: 10,
            seconds: 1.0,
            threads: 1,
            distribution: None,
            rate: None,
            seed: 1,
            rest_max: std::time::Duration::ZERO,
        };
        let (mut store, population) = (NullStore::new(shape, 10), Population::new(10));
        let outcome = run_phase(&mut store, shape, &population, &plan, &mut |_| {}).unwrap();
        let report = PhaseReport::new("c", 1, &outcome, Memory::now().unwrap(), 0);
        PhaseReport { ops_per_s, ..report }
    }

    #[test]
    fn nets_and_ratios_stay_within_a_group() {
        let run = |engine, mapping, group, ops_per_s| Run {
            engine,
            mapping,
            group,
            round: 0,
            report: report(ops_per_s),
        };
        let (con, sct) = (Mapping::Consolidated, Mapping::Scattered);
        // In the second group the machine is half as fast: 1 us, 3 us, 21 us, 41 us then.
        let runs = [
            run(Engine::Null, None, con, 2e6),
            run(Engine::Hedgerow, None, con, 1e6 / 1.5),
            run(Engine::RocksDb, Some(con), con, 1e6 / 10.5),
            run(Engine::Null, None, sct, 1e6),
            run(Engine::Hedgerow, None, sct, 1e6 / 3.0),
            run(Engine::RocksDb, Some(sct), sct, 1e6 / 41.0),
        ];
        let hedgerow = summary(&runs, (Engine::Hedgerow, None), "c").unwrap();
        assert!((hedgerow.net_us_per_op - 1.5).abs() < 1e-9, "the median of 1 and 2 us");
        let ratios = ratios(&runs);
        assert_eq!(ratios.len(), 2);
        assert!((ratios[0].ratio - 10.0).abs() < 1e-6 && (ratios[1].ratio - 20.0).abs() < 1e-6, "{ratios:?}");
        assert!((best(&ratios, "c")["best of all"] - 10.0).abs() < 1e-6);
        let mut with_flat = ratios.clone();
        with_flat.push(Ratio { peer: "flat", ratio: 1.5, ..ratios[0].clone() });
        let best = best(&with_flat, "c");
        assert!((best["best of all"] - 10.0).abs() < 1e-6 && (best["flat"] - 1.5).abs() < 1e-6);
        let text = tables(&runs);
        assert!(text.contains("10.00x") && text.contains("rocksdb sct"), "{text}");
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
