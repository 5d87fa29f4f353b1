//! In what pieces the log is written back: BushStore's choice between throughput and the tail.
//!
//! Owns the experiment's entry, and the paper's numbers. Must not know how phases are run.

use hedgerow::PersistGranule;

use super::bound::PAIRS;
use super::drawing::uniform;
use super::tail::percentiles;
use crate::bench::chart::{Chart, Scale, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, FigureTable, Finding};
use crate::bench::paper::rig::{Layout, Rig};
use crate::bench::report::{PhaseReport, count, latency};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "granule",
    title: "Persist granule",
    paper: "BushStore, README of its repository, table \"Tail Latency\": a log made durable by the page of 512 KiB, when it is full, and in pieces of 16 KiB. \
            Pieces cost 5.7 % of the mean (2.915 us against 3.083), raise p95 from 3 us to 10, and lower p99.9 from 46 us to 15 and p99.99 from 116 us to 26.",
    run,
};

/// The paper's page, and as much as the store chooses for itself.
const SEGMENTS: [(&str, u64); 2] = [("512 KiB", 512 << 10), ("2 MiB", 2 << 20)];
const GRANULES: [(&str, PersistGranule); 3] = [
    ("left to syncs", PersistGranule::Sync),
    ("whole", PersistGranule::Segment),
    ("in 16 KiB", PersistGranule::Block(16 << 10)),
];
const PHASES: [(&str, &str); 2] = [("load", "an insert"), ("overwrite", "a put")];
const HEAD: [&str; 9] = ["log", "operations/s", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "longest"];
const DIFFERS: &str =
    "real persistent memory, keys of 8 bytes; the table says neither which values nor how many threads";

/// What is compared with the paper: a name, where it is in our row, and the paper's two numbers.
type WholeOverBlocks = (&'static str, fn(&PhaseReport) -> f64, &'static str);
const RATIOS: [WholeOverBlocks; 5] = [
    ("mean", |r| r.mean_us, "0.95x (2.92us, 3.08us)"),
    ("p95", |r| r.p95_us, "0.30x (3us, 10us)"),
    ("p99.9", |r| r.p999_us, "3.07x (46us, 15us)"),
    ("p99.99", |r| r.p9999_us, "4.46x (116us, 26us)"),
    ("longest", |r| r.max_us, "-"),
];

fn variant(segment: &str, granule: &str) -> String {
    format!("segments of {segment}, {granule}")
}

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    for (segment, segment_bytes) in SEGMENTS {
        for (name, granule) in rig.in_turn(GRANULES) {
            let options = rig.options()?.segment_bytes(segment_bytes).persist_granule(granule);
            let mut subject = rig.open(Layout::Rows, PAIRS, options)?;
            subject.call(variant(segment, name));
            subject.load(&mut finding)?;
            uniform(&mut subject, PHASES[1].0, &mut finding)?;
            subject.remove()?;
        }
    }
    compare(&mut finding);
    let rows = SEGMENTS.map(|(_, bytes)| count((bytes / (PAIRS.row_bytes() as u64)) as f64));
    let keys = format!("uniform; about {} rows a segment", rows.join(" or "));
    let settings = rig.settings(PAIRS, &keys);
    finding.tables = vec![table(&finding, settings.clone())];
    finding.figures = vec![figure(&finding, settings)];
    Ok(finding)
}

/// Whole segments in terms of pieces.
fn compare(finding: &mut Finding) {
    for (segment, _) in SEGMENTS {
        for (phase, shown) in PHASES {
            let of = |granule: &str| {
                finding.phase(&variant(segment, granule), phase).map(|measured| measured.report.clone())
            };
            let (Some(whole), Some(pieces)) = (of(GRANULES[1].0), of(GRANULES[2].0)) else { continue };
            for (name, number, paper) in RATIOS {
                let what = format!("{name} of {shown}, segments of {segment}: whole against 16 KiB");
                let factor = Factor::times(what, number(&whole), number(&pieces), Some(paper));
                finding.factors.push(factor.beside(DIFFERS));
            }
        }
    }
}

fn table(finding: &Finding, settings: String) -> FigureTable {
    let mut rows = Vec::new();
    for (phase, shown) in PHASES {
        for (segment, _) in SEGMENTS {
            for (granule, _) in GRANULES {
                let Some(measured) = finding.phase(&variant(segment, granule), phase) else { continue };
                let rate = count(measured.report.ops_per_s);
                let mut row = vec![format!("{shown}, {}", variant(segment, granule)), rate];
                row.extend(percentiles(&measured.report).map(latency));
                rows.push(row);
            }
        }
    }
    FigureTable { title: "Latencies by granule".into(), settings, head: HEAD.into(), rows }
}

fn figure(finding: &Finding, settings: String) -> Figure {
    let charts = SEGMENTS.map(|(segment, _)| {
        let line = |(granule, _): (&str, PersistGranule)| {
            let numbers = finding.phase(&variant(segment, granule), PHASES[0].0);
            let numbers = numbers.map(|measured| percentiles(&measured.report));
            Series::over_names(granule, numbers.into_iter().flatten().map(Some))
        };
        let chart = Chart::over_names(
            format!("Latency of an insert, segments of {segment}"),
            ("percentile of operations", HEAD[2..].iter().map(ToString::to_string).collect()),
            ("latency (log scale)", Unit::Microseconds),
            (Shape::Lines, 400),
            GRANULES.map(line).into(),
        );
        Chart { scale: Scale::Log, ..chart }
    });
    Figure {
        title: "Latency by persist granule".into(),
        see: "A line that rises early pays often and little, one that rises late seldom and much: a whole segment is paid for by one row in as many as it holds.".into(),
        settings,
        paper: Some("p99.9 of a write 46us by the page, 15us in pieces of 16 KiB"),
        charts: charts.into(),
    }
}
