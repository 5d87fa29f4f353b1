//! What the run says: net times, ratios, tables, JSON.
//!
//! Owns the arithmetic. The gross time of an operation is its mean wall time, the net time is that less the null store's in the
//! same phase of the same group and round; a ratio is a peer's time over Hedgerow's, again within a group and round. Over rounds
//! all are medians, beside them the least and the most.

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
    /// What the device wrote meanwhile, until nothing of the file system was dirty.
    pub(crate) device_bytes: Option<u64>,
}

/// One number over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    /// Of at least one number.
    fn of(mut numbers: Vec<f64>) -> Option<Spread> {
        numbers.sort_by(f64::total_cmp);
        Some(Spread { least: *numbers.first()?, most: *numbers.last()?, median: median(numbers) })
    }

    /// The median, and the range where there is one.
    fn text(&self, number: impl Fn(f64) -> String) -> String {
        let [median, least, most] = [self.median, self.least, self.most].map(number);
        if least == most { median } else { format!("{median} ({least} to {most})") }
    }
}

/// An engine's result in a phase.
#[derive(Debug, Clone, Serialize)]
struct Summary {
    engine: &'static str,
    mapping: &'static str,
    runs: usize,
    /// Operations a second, with the harness in them.
    rate: Spread,
    gross_us_per_op: Spread,
    net_us_per_op: Spread,
    p999_us_spread: Spread,
    max_us_spread: Spread,
    device_bytes: Option<Spread>,
    /// Medians, each by itself.
    #[serde(flatten)]
    report: PhaseReport,
}

/// How many times Hedgerow's time an engine takes.
#[derive(Debug, Clone, Serialize)]
struct Ratio {
    phase: String,
    peer: &'static str,
    mapping: &'static str,
    net: Spread,
    gross: Spread,
}

/// A net time below this is told as this: 1 ns.
const NET_LEAST_US: f64 = 0.001;

fn mapping_name(engine: Engine, mapping: Option<Mapping>) -> &'static str {
    match (engine, mapping) {
        (Engine::Null, _) => "none",
        (_, None) => "fields",
        (_, Some(Mapping::Consolidated)) => "consolidated",
        (_, Some(Mapping::Scattered)) => "scattered",
        (_, Some(Mapping::Hybrid)) => "hybrid",
    }
}

/// What an engine is called in tables.
pub(crate) fn name_of(engine: Engine, mapping: Option<Mapping>) -> String {
    match mapping {
        None => engine.name().to_string(),
        Some(Mapping::Consolidated) => format!("{} con", engine.name()),
        Some(Mapping::Scattered) => format!("{} sct", engine.name()),
        Some(Mapping::Hybrid) => format!("{} hyb", engine.name()),
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
        mean_us: all(|r| r.mean_us),
        p90_us: all(|r| r.p90_us),
        p95_us: all(|r| r.p95_us),
        p99_us: all(|r| r.p99_us),
        p999_us: all(|r| r.p999_us),
        p9999_us: all(|r| r.p9999_us),
        max_us: all(|r| r.max_us),
        cpu_s: all(|r| r.cpu_s),
        bytes_written: all(|r| r.bytes_written as f64) as u64,
        bytes_read: all(|r| r.bytes_read as f64) as u64,
        disk_bytes: all(|r| r.disk_bytes as f64) as u64,
        rss_bytes: all(|r| r.rss_bytes as f64) as u64,
        rss_anon_bytes: all(|r| r.rss_anon_bytes as f64) as u64,
        settle_s: all(|r| r.settle_s),
        neighbours_cpus: all(|r| r.neighbours_cpus),
        ops_in_second: first.report.ops_in_second.clone(),
    };
    let spread = |number: &dyn Fn(&Run) -> f64| Spread::of(own.iter().map(|run| number(run)).collect());
    Some(Summary {
        engine: contender.0.name(),
        mapping: mapping_name(contender.0, contender.1),
        runs: own.len(),
        rate: spread(&|run| run.report.ops_per_s)?,
        gross_us_per_op: spread(&|run| run.report.us_per_op())?,
        net_us_per_op: spread(&|run| net_us(runs, run))?,
        p999_us_spread: spread(&|run| run.report.p999_us)?,
        max_us_spread: spread(&|run| run.report.max_us)?,
        device_bytes: Spread::of(own.iter().filter_map(|run| Some(run.device_bytes? as f64)).collect()),
        report,
    })
}

fn ratio(runs: &[Run], contender: Contender, phase: &str) -> Option<Ratio> {
    let own = of(runs, contender, phase);
    let pairs: Vec<_> =
        own.into_iter().filter_map(|run| Some((run, beside(runs, run, Engine::Hedgerow)?))).collect();
    let spread = |time: &dyn Fn(&Run) -> f64| {
        Spread::of(pairs.iter().map(|(run, hedgerow)| time(run) / time(hedgerow)).collect())
    };
    Some(Ratio {
        phase: phase.to_string(),
        peer: contender.0.name(),
        mapping: mapping_name(contender.0, contender.1),
        net: spread(&|run| net_us(runs, run))?,
        gross: spread(&|run| run.report.us_per_op())?,
    })
}

fn ratios(runs: &[Run]) -> Vec<Ratio> {
    let peers: Vec<_> = contenders(runs).into_iter().filter(|c| c.1.is_some()).collect();
    let phases = phases(runs);
    phases.iter().flat_map(|phase| peers.iter().filter_map(|&peer| ratio(runs, peer, phase))).collect()
}

/// The least ratio of net times to each peer, over its mappings, and to the best of all that are not Hedgerow itself.
fn best(ratios: &[Ratio], phase: &str) -> BTreeMap<&'static str, f64> {
    let mut best = BTreeMap::new();
    for ratio in ratios.iter().filter(|ratio| ratio.phase == phase) {
        let is_other = ratio.peer != Engine::Flat.name();
        for name in std::iter::once(ratio.peer).chain(is_other.then_some("best of all")) {
            let least = best.entry(name).or_insert(f64::INFINITY);
            *least = ratio.net.median.min(*least);
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
    let rounds = runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    let mut text = match rounds {
        1 => String::from("\nOne round.\n"),
        _ => format!("\nMedians of {rounds} rounds; in parentheses the least and the most.\n"),
    };
    text += &grid("operations a second", &|s| s.rate.text(count));
    text += &grid("gross us per operation", &|s| s.gross_us_per_op.text(microseconds));
    text += &grid("net us per operation: less the null store's", &|s| match s.engine {
        "null" => "-".into(),
        _ => s.net_us_per_op.text(microseconds),
    });
    text += &ratio_table(runs, &phases, "net", &|ratio| ratio.net);
    text += &ratio_table(runs, &phases, "gross", &|ratio| ratio.gross);
    text += &grid("latency p50", &|s| latency(s.report.p50_us));
    text += &grid("latency p99", &|s| latency(s.report.p99_us));
    text += &grid("latency p99.9", &|s| s.p999_us_spread.text(latency));
    text += &grid("latency p99.99", &|s| latency(s.report.p9999_us));
    text += &grid("latency, the longest", &|s| s.max_us_spread.text(latency));
    text += &grid("processor us per operation, background work included", &|s| {
        format!("{:.2}", per_op(s, s.report.cpu_s * 1e6))
    });
    text += &grid("KB written per operation, background work included", &|s| {
        format!("{:.3}", per_op(s, s.report.bytes_written as f64 / 1e3))
    });
    text += &grid("KB that the device wrote per operation, until all was on it", &|s| {
        s.device_bytes
            .map_or("-".into(), |bytes| bytes.text(|bytes| format!("{:.3}", per_op(s, bytes / 1e3))))
    });
    text += &grid("KB read from the disk per operation, background work included", &|s| {
        format!("{:.3}", per_op(s, s.report.bytes_read as f64 / 1e3))
    });
    text += &grid("disk MB at the end", &|s| format!("{:.0}", s.report.disk_bytes as f64 / 1e6));
    text += &grid("resident MB at the end: all (own)", &|s| {
        format!("{:.0} ({:.0})", s.report.rss_bytes as f64 / 1e6, s.report.rss_anon_bytes as f64 / 1e6)
    });
    text += &grid("processors busy with others meanwhile", &|s| format!("{:.2}", s.report.neighbours_cpus));
    text + &fill_series(runs)
}

fn microseconds(number: f64) -> String {
    format!("{number:.3}")
}

fn ratio_table(runs: &[Run], phases: &[&str], kind: &str, spread: &dyn Fn(&Ratio) -> Spread) -> String {
    let ratios = ratios(runs);
    let peers: Vec<_> = contenders(runs).into_iter().filter(|c| c.1.is_some()).collect();
    if peers.is_empty() {
        return String::new();
    }
    let mut head: Vec<String> = vec!["phase".into()];
    head.extend(peers.iter().map(|&(engine, mapping)| name_of(engine, mapping)));
    let is_net = kind == "net";
    if is_net {
        head.extend(["rocksdb better".into(), "best of all".into()]);
    }
    let rows = phases.iter().map(|phase| {
        let mut row = vec![phase.to_string()];
        row.extend(peers.iter().map(|&(engine, mapping)| {
            let wanted = (engine.name(), mapping_name(engine, mapping));
            let of_peer = |r: &&Ratio| r.phase == *phase && (r.peer, r.mapping) == wanted;
            ratios.iter().find(of_peer).map_or("-".into(), |ratio| spread(ratio).text(times))
        }));
        if is_net {
            let best = best(&ratios, phase);
            let names = ["rocksdb", "best of all"];
            row.extend(names.map(|name| best.get(name).map_or("-".into(), |&ratio| times(ratio))));
        }
        row
    });
    let head: Vec<_> = head.iter().map(String::as_str).collect();
    format!("\nhow many times hedgerow's {kind} time\n{}", table(&head, rows))
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2}x")
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
    use hedgerow_tool::bench::row::RowShape;
    use hedgerow_tool::bench::store::null::NullStore;
    use hedgerow_tool::bench::workload::Workload;
    use hedgerow_tool::process::Memory;

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
            device_bytes: None,
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
        assert!((hedgerow.net_us_per_op.median - 1.5).abs() < 1e-9, "the median of 1 and 2 us");
        assert!((hedgerow.gross_us_per_op.median - 2.25).abs() < 1e-9, "the median of 1.5 and 3 us");
        let ratios = ratios(&runs);
        assert_eq!(ratios.len(), 2);
        let medians = [ratios[0].net.median, ratios[1].net.median];
        assert!((medians[0] - 10.0).abs() < 1e-6 && (medians[1] - 20.0).abs() < 1e-6, "{ratios:?}");
        assert!((ratios[0].gross.median - 7.0).abs() < 1e-6, "{ratios:?}");
        assert!((best(&ratios, "c")["best of all"] - 10.0).abs() < 1e-6);
        let mut with_flat = ratios.clone();
        let net = Spread { median: 1.5, least: 1.5, most: 1.5 };
        with_flat.push(Ratio { peer: "flat", net, ..ratios[0].clone() });
        let best = best(&with_flat, "c");
        assert!((best["best of all"] - 10.0).abs() < 1e-6 && (best["flat"] - 1.5).abs() < 1e-6);
        let text = tables(&runs);
        assert!(text.contains("10.00x") && text.contains("rocksdb sct"), "{text}");
    }

    #[test]
    fn rounds_give_a_median_and_a_range() {
        let run = |engine, mapping, round, us: f64| Run {
            engine,
            mapping,
            group: Mapping::Consolidated,
            round,
            report: report(1e6 / us),
            device_bytes: None,
        };
        let con = Some(Mapping::Consolidated);
        // Net: hedgerow 1, 2, 4 us, rocksdb 8, 4, 12 us; by round 8x, 2x, 3x.
        let times = [(1.5, 8.5), (2.5, 4.5), (4.5, 12.5)];
        let runs = (0..).zip(times).flat_map(|(round, (own, rocksdb))| {
            [
                run(Engine::Null, None, round, 0.5),
                run(Engine::Hedgerow, None, round, own),
                run(Engine::RocksDb, con, round, rocksdb),
            ]
        });
        let runs: Vec<_> = runs.collect();
        let near = |spread: Spread, median: f64, least: f64, most: f64| {
            let of = [spread.median - median, spread.least - least, spread.most - most];
            assert!(of.iter().all(|off| off.abs() < 1e-6), "{spread:?}");
        };
        let hedgerow = summary(&runs, (Engine::Hedgerow, None), "c").unwrap();
        near(hedgerow.net_us_per_op, 2.0, 1.0, 4.0);
        near(hedgerow.gross_us_per_op, 2.5, 1.5, 4.5);
        let ratios = ratios(&runs);
        near(ratios[0].net, 3.0, 2.0, 8.0);
        near(ratios[0].gross, 12.5 / 4.5, 4.5 / 2.5, 8.5 / 1.5);
        let text = tables(&runs);
        for said in [
            "Medians of 3 rounds",
            "3.00x (2.00x to 8.00x)",
            "2.000 (1.000 to 4.000)",
            "2.500 (1.500 to 4.500)",
        ] {
            assert!(text.contains(said), "{said} is not in {text}");
        }
        let path = std::env::temp_dir().join(format!("hedgerow-compare-{}.json", std::process::id()));
        write_json(&path, serde_json::json!({}), &runs).unwrap();
        let document: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        for place in ["/results/1/net_us_per_op", "/results/1/rate", "/ratios/0/net", "/ratios/0/gross"] {
            for name in ["median", "least", "most"] {
                let number = document.pointer(&format!("{place}/{name}"));
                assert!(number.is_some_and(serde_json::Value::is_number), "{place}/{name} in {document}");
            }
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
