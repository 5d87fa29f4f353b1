//! The tail of latencies: BushStore's table.
//!
//! Owns the experiment's entry, and the paper's numbers. Must not know how phases are run.

use super::bound::{Bound, PAIRS};
use super::drawing::{loaded, uniform};
use crate::bench::chart::{Chart, Scale, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, FigureTable, Finding};
use crate::bench::paper::rig::Rig;
use crate::bench::report::{PhaseReport, latency};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tail",
    title: "Tail latency",
    paper: "BushStore, README of its repository, table \"Tail Latency\": six stores, and BushStore with its log made durable page by page and in \
            smaller pieces, which costs 5.7 % of throughput and takes 67 % off p99.9 and 77 % off p99.99. DecouKV, evaluation: p99 \
            of an insert 3.2 ms, against 37.6 for RocksDB, 12.5 for MatrixKV and 17.9 for ADOC.",
    run,
};

const BOUNDS: [Bound; 2] = [Bound::All, Bound::Percent(20)];
const PHASES: [(&str, &str); 3] = [("load", "an insert"), ("overwrite", "a put"), ("read-full", "a get")];
const HEAD: [&str; 9] = ["store", "mean", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "longest"];
/// The paper's table: mean, p95, p99, p99.9 and p99.99 of a write, in microseconds.
const PAPER: [(&str, [f64; 5]); 7] = [
    ("RocksDB", [18.87, 26.0, 41.0, 1097.0, 1113.0]),
    ("NoveLSM", [20.582, 24.0, 27.0, 60.0, 527.0]),
    ("SLM-DB", [33.98, 18.0, 1085.0, 1195.0, 1225.0]),
    ("MatrixKV", [20.54, 18.0, 199.0, 1100.0, 1107.0]),
    ("MioDB", [10.21, 19.0, 22.0, 32.0, 62.0]),
    ("BushStore, log by the page", [2.915, 3.0, 4.0, 46.0, 116.0]),
    ("BushStore, log in pieces", [3.083, 10.0, 11.0, 15.0, 26.0]),
];
const DIFFERS: &str =
    "real persistent memory, keys of 8 bytes; the table says neither which values nor how many threads";

/// What is compared with the paper: a name, where it is in our row, and the paper's numbers.
type Compared = (&'static str, fn(&PhaseReport) -> f64, &'static str);
const COMPARED: [Compared; 4] = [
    ("mean", |r| r.mean_us, "2.92us or 3.08us; MioDB 10us, RocksDB 19us"),
    ("p99", |r| r.p99_us, "4us or 11us; MioDB 22us, RocksDB 41us"),
    ("p99.9", |r| r.p999_us, "46us or 15us; MioDB 32us, RocksDB 1.1ms"),
    ("p99.99", |r| r.p9999_us, "116us or 26us; MioDB 62us, RocksDB 1.1ms"),
];

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let records = rig.records(PAIRS);
    for bound in rig.in_turn(BOUNDS) {
        let mut subject = loaded(rig, (bound, PAIRS, records), bound.name(), &mut finding)?;
        for (phase, _) in &PHASES[1..] {
            uniform(&mut subject, phase, &mut finding)?;
        }
        subject.remove()?;
    }
    for bound in BOUNDS {
        let Some(insert) = finding.phase(&bound.name(), "load").map(|measured| measured.report.clone())
        else {
            continue;
        };
        for (name, number, paper) in COMPARED {
            let what = format!("{name} of an insert, fast tier of {}", bound.name());
            let factor = Factor::new(what, number(&insert), Unit::Microseconds, Some(paper));
            finding.factors.push(factor.beside(DIFFERS));
        }
    }
    let settings = rig.settings(PAIRS, &format!("uniform; {}", BOUNDS[1].describe(PAIRS, records)));
    finding.tables = vec![table(&finding, settings.clone())];
    finding.figures = vec![figure(&finding, settings)];
    Ok(finding)
}

fn table(finding: &Finding, settings: String) -> FigureTable {
    let mut rows = Vec::new();
    for (phase, shown) in PHASES {
        for bound in BOUNDS {
            let Some(measured) = finding.phase(&bound.name(), phase) else { continue };
            let mut row = vec![format!("{shown}, fast tier of {}", bound.name())];
            let r = &measured.report;
            row.push(latency(r.mean_us));
            row.extend(percentiles(r).map(latency));
            rows.push(row);
        }
    }
    for (store, [mean, p95, p99, p999, p9999]) in PAPER {
        let none = || "-".to_owned();
        let mut row = vec![format!("{store} (paper)"), latency(mean), none(), none(), latency(p95)];
        row.extend([p99, p999, p9999].map(latency));
        row.push(none());
        rows.push(row);
    }
    let settings = format!("{settings}; lines of the paper: {DIFFERS}");
    FigureTable { title: "Latencies".into(), settings, head: HEAD.into(), rows }
}

/// From the median to the longest, as in [`HEAD`].
pub(super) fn percentiles(report: &PhaseReport) -> [f64; 7] {
    let r = report;
    [r.p50_us, r.p90_us, r.p95_us, r.p99_us, r.p999_us, r.p9999_us, r.max_us]
}

fn figure(finding: &Finding, settings: String) -> Figure {
    let charts = PHASES.map(|(phase, shown)| {
        let line = |bound: Bound| {
            let numbers = finding.phase(&bound.name(), phase).map(|measured| percentiles(&measured.report));
            Series::over_names(&bound.name(), numbers.into_iter().flatten().map(Some))
        };
        let names = HEAD[2..].iter().map(ToString::to_string).collect();
        let chart = Chart::over_names(
            format!("Latency of {shown}"),
            ("percentile of operations", names),
            ("latency (log scale)", Unit::Microseconds),
            (Shape::Lines, 400),
            BOUNDS.map(line).into(),
        );
        Chart { scale: Scale::Log, ..chart }
    });
    Figure {
        title: "Latency by percentile".into(),
        see: "A line that turns up late has the calm tail; where that of the bounded fast tier leaves the other is the first \
              operation in so many that waits for a move or for a sorted table."
            .into(),
        settings,
        paper: Some("p99.99 of a write 26us to 116us in BushStore, 62us in MioDB, 1.1ms in RocksDB"),
        charts: charts.into(),
    }
}
