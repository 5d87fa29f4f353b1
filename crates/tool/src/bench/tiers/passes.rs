//! Overwriting all rows, five times over.
//!
//! Owns the experiment's entry. Must not know how phases are run.

use super::bound::{Bound, PAIRS, row_bytes};
use super::drawing::loaded;
use crate::bench::chart::{Chart, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding, Measured};
use crate::bench::paper::rig::Rig;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "passes",
    title: "Five passes of overwriting all",
    paper: "BushStore's presets: 200 GB written five times over, with the collection of garbage in persistent memory at a live ratio of a half.",
    run,
};

const BOUND: Bound = Bound::Percent(20);
const PASSES: usize = 5;
const PHASE: &str = "overwrite-all";

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let records = rig.records(PAIRS);
    let mut subject = loaded(rig, (BOUND, PAIRS, records), "fill".into(), &mut finding)?;
    for pass in 1..=PASSES {
        subject.call(variant(pass));
        subject.phase(PHASE, &mut finding)?;
    }
    subject.call("after");
    subject.phase("read-full", &mut finding)?;
    subject.remove()?;
    let passes: Vec<Measured> =
        (1..=PASSES).filter_map(|pass| finding.phase(&variant(pass), PHASE)).cloned().collect();
    let [Some(first), Some(last)] = [passes.first(), passes.last()] else {
        return Err("no pass was run".into());
    };
    let fill = finding.rate("fill", "load");
    let ops = |measured: &Measured| measured.report.ops_per_s;
    finding.factors = vec![
        Factor::times("first pass of overwriting against the fill", ops(first), fill, None),
        Factor::times("fifth pass of overwriting against the first", ops(last), ops(first), None),
        Factor::new("bytes written a user byte in the fifth pass", amplification(last), Unit::Times, None),
        Factor::times(
            "disk taken after the fifth pass, of keys and values",
            last.report.disk_bytes as f64,
            (records * row_bytes(PAIRS)) as f64,
            None,
        ),
    ];
    let settings = rig.settings(
        PAIRS,
        &format!("each key once a pass, in random order; {}", BOUND.describe(PAIRS, records)),
    );
    finding.figures = vec![figure(&passes, settings)];
    Ok(finding)
}

fn variant(pass: usize) -> String {
    format!("pass {pass}")
}

/// Bytes that the store says it wrote, for each byte of keys and values.
fn amplification(measured: &Measured) -> f64 {
    let written = (measured.log_bytes + measured.below_log_bytes) as f64;
    written / (measured.report.operations * row_bytes(PAIRS)).max(1) as f64
}

/// A line of a chart: its name, and what it shows of a pass.
type PassLine = (&'static str, fn(&Measured) -> f64);

fn figure(passes: &[Measured], settings: String) -> Figure {
    let names: Vec<String> = (1..=passes.len()).map(|pass| pass.to_string()).collect();
    let chart = |title: &str, y: (&str, Unit), lines: &[PassLine]| {
        let line = |(name, number): &PassLine| {
            Series::over_names(name, passes.iter().map(|measured| Some(number(measured))))
        };
        let series = lines.iter().map(line).collect();
        Chart::over_names(title, ("pass", names.clone()), y, (Shape::Lines, 316), series)
    };
    Figure {
        title: "Pass by pass".into(),
        see: "Flat lines are the aim: a store that does not keep up with its garbage is slower, writes more or grows from pass to pass."
            .into(),
        settings,
        paper: None,
        charts: vec![
            chart("Throughput", ("puts/s", Unit::Rate), &[("puts", |m| m.report.ops_per_s)]),
            chart(
                "Bytes written a user byte",
                ("by the store's account", Unit::Times),
                &[
                    ("log", |m| m.log_bytes as f64 / (m.report.operations * row_bytes(PAIRS)).max(1) as f64),
                    ("in all", amplification),
                ],
            ),
            chart("Disk taken", ("bytes", Unit::Bytes), &[("disk", |m| m.report.disk_bytes as f64)]),
        ],
    }
}
