//! The hot spot moves (section VI-C, figure 14).
//!
//! Owns the experiment's entry. Must not know how phases are run.

use super::finding::{Experiment, Factor, Figure, Finding};
use super::rig::{Layout, Rig, Run, SHAPE};
use crate::bench::chart::{Across, Chart, Mark, Point, Scale, Series, Shape, Unit};
use crate::bench::distribution::Distribution;
use crate::bench::driver::Window;
use crate::bench::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "hotspot",
    title: "The hot spot moves",
    paper: "Section VI-C, figure 14: after other rows become the hot ones, SeaCache needs 0.5 s to a hit ratio above 0.6 and \
            2.0 s to a steady one. On a plain file the row cache stands aside: what moves there is what the processor's caches hold.",
    run,
};

const PHASES: [(&str, &str); 3] = [("c", "C: reads"), ("a", "A: reads and updates"), ("e", "E: scans")];
/// The course of a phase is looked at in windows of so many seconds.
const WINDOW: f64 = 0.1;
/// Short phases have so many windows all the same.
const WINDOWS_MIN: f64 = 10.0;
/// Throughput is back where it reached this share of what it was.
const BACK: f64 = 0.95;

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let mut subject = rig.open(Layout::Rows, SHAPE, rig.options()?)?;
    subject.load(&mut finding)?;
    let mut charts = Vec::new();
    for (name, title) in PHASES {
        let mut course = Vec::new();
        for (variant, distribution) in [("before", Distribution::Zipfian), ("after", Distribution::Moved)] {
            subject.call(variant);
            let run = Run {
                distribution: Some(distribution),
                window: Some(WINDOW.min(rig.seconds() / WINDOWS_MIN)),
                restless: true,
                ..Run::default()
            };
            subject.run(Workload::find(name)?, run, &mut finding)?;
            course.push(finding.phases.last().map(|measured| measured.windows.clone()).unwrap_or_default());
        }
        let (before, after) = (&course[0], &course[1]);
        let was = before[before.len() / 2..].iter().map(|w| w.ops_per_s).sum::<f64>()
            / (before.len() - before.len() / 2).max(1) as f64;
        finding.factors.extend(factors(name, was, after));
        charts.push(chart(title, before, after, rig.seconds()));
    }
    subject.remove()?;
    finding.figures = vec![Figure {
        title: "Throughput while the hot spot moves".into(),
        see: "Right of the mark other rows are the hot ones; the depth and the length of the dip there are what it costs to \
              follow them."
            .into(),
        settings: rig.settings(SHAPE, "zipfian 0.99; by 100 ms, or a tenth of a phase"),
        paper: Some("hit ratio above 0.6 after 0.5 s, steady after 2.0 s"),
        charts,
    }];
    Ok(finding)
}

/// The depth of the dip, and how long until throughput was back.
fn factors(name: &str, was: f64, after: &[Window]) -> Vec<Factor> {
    let name = name.to_uppercase();
    let first = after.first().map_or(f64::NAN, |window| window.ops_per_s);
    let mut factors =
        vec![Factor::times(format!("{name}: first moment after the move against before"), first, was, None)];
    if let Some(back) = after.iter().find(|window| window.ops_per_s >= BACK * was) {
        let here = back.from_s;
        let what = format!("{name}: until 95 % of the throughput before the move");
        factors.push(Factor { what, here, unit: Unit::Seconds, paper: Some("2.0 s") });
    }
    factors
}

fn chart(title: &str, before: &[Window], after: &[Window], seconds: f64) -> Chart {
    let point = |from: f64| move |w: &Window| Point { x: from + w.from_s, y: w.ops_per_s, label: None };
    let points = before.iter().map(point(0.0)).chain(after.iter().map(point(seconds)));
    Chart {
        title: title.into(),
        x_label: "time (s)".into(),
        across: Across::Numbers(Unit::Seconds),
        y_label: "throughput (operations/s)".into(),
        unit: Unit::Rate,
        scale: Scale::Linear,
        shape: Shape::Lines,
        series: vec![Series { name: "rows".into(), points: points.collect() }],
        marks: vec![Mark { x: seconds, text: "hot spot moves".into() }],
        width: 316,
        height: 240,
    }
}
