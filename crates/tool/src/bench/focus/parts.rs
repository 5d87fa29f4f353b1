//! What a read takes where its row is cached and where it is not, and what it is made of (section VI-C, figure 13).
//!
//! Owns the experiment's entry. Hits and misses are told apart by making all reads the one or the other: a cache that holds all
//! rows, and one that holds hardly any but is asked for all the same. Must not know how phases are run.

use crate::bench::chart::{Across, Chart, Point, Scale, Series, Shape, Unit};
use crate::bench::distribution::Distribution;
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::{Layout, Rig, Run, SHAPE, Subject};
use crate::bench::setting::Setting;
use crate::bench::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "parts",
    title: "Hits and misses",
    paper: "Section VI-C, figure 13: what the latency of a read, and of a step of a scan, is made of; reading a cached row takes 74.6 % \
            less time. Here the index's part is that of a look-up that does not touch the row, and the harness's that of a store that \
            does nothing.",
    run,
};

/// What the cache may take, as a share of the rows' bytes in percent.
const VARIANTS: [(&str, u64, &str); 3] =
    [(HIT, 200, "cache-mode=on"), (MISS, 1, "cache-mode=on"), (OFF, 0, "cache-mode=off")];
const HIT: &str = "hit";
const MISS: &str = "miss";
const OFF: &str = "no cache";
const HARNESS: &str = "harness";
const LOOK_UP: &str = "look-up";
/// An operation's name, what it is called, and the rows it reads.
const READS: [(&str, &str, f64); 3] = [
    ("read-full", "a row", 1.0),
    ("read-partial", "one field", 1.0),
    ("scan-full", "a step of a scan", 100.0),
];
/// Hits are measured when so many of a hundred reads are; after so many tries as the cache gets.
const FILLED: f64 = 0.995;
const FILLING_MAX: usize = 8;

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let mut harness = rig.open_null(SHAPE)?;
    for phase in phases() {
        one(&mut harness, phase, HARNESS, &mut finding)?;
    }
    harness.remove()?;
    let mut subject = rig.open(Layout::Rows, SHAPE, options(rig, VARIANTS[0].1, VARIANTS[0].2)?)?;
    subject.call("loading");
    subject.load(&mut finding)?;
    for (name, percent, setting) in VARIANTS {
        subject = rig.reopen(subject, Layout::Rows, options(rig, percent, setting)?)?;
        for _ in 0..if name == OFF { 1 } else { FILLING_MAX } {
            one(&mut subject, "read-full", "filling", &mut finding)?;
            let hits = finding.phases.last().and_then(|phase| phase.hit_ratio);
            if name != HIT || hits.is_some_and(|ratio| ratio >= FILLED) {
                break;
            }
        }
        for phase in phases() {
            one(&mut subject, phase, name, &mut finding)?;
        }
    }
    subject.remove()?;
    let settings = rig.settings(SHAPE, "uniform; medians");
    finding.factors = factors(&finding);
    finding.figures = vec![figure(&finding, settings)];
    Ok(finding)
}

fn phases() -> impl Iterator<Item = &'static str> {
    [LOOK_UP].into_iter().chain(READS.map(|(phase, ..)| phase))
}

fn one(subject: &mut Subject<'_>, phase: &str, name: &str, finding: &mut Finding) -> Result<(), String> {
    subject.call(name);
    let run = Run { distribution: Some(Distribution::Uniform), ..Run::default() };
    subject.run(Workload::find(phase)?, run, finding)
}

fn options(rig: &Rig<'_>, percent: u64, setting: &str) -> Result<hedgerow::Options, String> {
    let mut options = rig.options_with_cache(SHAPE, percent)?;
    setting.parse::<Setting>()?.apply(&mut options)?;
    Ok(options)
}

/// Microseconds of one row's reading: the harness's, the index's, and the row's own.
fn parts(finding: &Finding, variant: &str, (phase, _, rows): (&str, &str, f64)) -> [f64; 3] {
    let median =
        |variant: &str, phase: &str| finding.phase(variant, phase).map_or(f64::NAN, |m| m.report.p50_us);
    let (whole, harness) = (median(variant, phase) / rows, median(HARNESS, phase) / rows);
    let index = (median(variant, LOOK_UP) - median(HARNESS, LOOK_UP)) / rows;
    [harness, index, whole - harness - index]
}

fn factors(finding: &Finding) -> Vec<Factor> {
    let mut factors = Vec::new();
    for read in READS {
        let [hit, miss, off] = [HIT, MISS, OFF].map(|variant| parts(finding, variant, read));
        let sum = |parts: [f64; 3], from: usize| parts[from..].iter().sum::<f64>();
        let (_, shown, _) = read;
        let paper = |read: &str| (read == "a row").then_some("3.9x");
        let what = format!("{shown}: a miss takes so many times a hit, without the harness");
        factors.push(Factor::times(what, sum(miss, 1), sum(hit, 1), None));
        let what = format!("{shown}: the same, the index left out");
        factors.push(Factor::times(what, miss[2], hit[2], paper(shown)));
        let what = format!("{shown}: no cache takes so many times a hit, without the harness and the index");
        factors.push(Factor::times(what, off[2], hit[2], None));
    }
    let ratio = |variant| finding.phase(variant, "read-full").and_then(|m| m.hit_ratio).unwrap_or(0.0);
    for (variant, what) in [(HIT, "hits among the hits"), (MISS, "hits among the misses")] {
        factors.push(Factor::new(what, ratio(variant), Unit::Share, None));
    }
    factors
}

fn figure(finding: &Finding, settings: String) -> Figure {
    let charts = READS.map(|read| {
        let line = |(variant, ..): (&str, u64, &str)| {
            let points = parts(finding, variant, read).into_iter().enumerate();
            let point = |(at, y): (usize, f64)| Point::new(at as f64, y.max(0.0));
            Series { name: variant.into(), points: points.map(point).collect() }
        };
        Chart {
            title: format!("Reading {}", read.1),
            x_label: "part of the time".into(),
            across: Across::Names([HARNESS, "index", "row"].map(String::from).into()),
            y_label: "median time".into(),
            unit: Unit::Microseconds,
            scale: Scale::Linear,
            shape: Shape::Bars,
            series: VARIANTS.map(line).into(),
            marks: vec![],
            width: 316,
            height: 260,
        }
    });
    Figure {
        title: "What a read is made of".into(),
        see: "The row's part is where the medium is; harness and index are the same for a hit and a miss."
            .into(),
        settings,
        paper: Some("reading a cached row takes 74.6 % less time"),
        charts: charts.into(),
    }
}
