//! Whole rows against single fields (section VI-B, figures 10 and 11).
//!
//! Owns the experiment's entry. Must not know how phases are run.

use super::ycsb::normalised;
use crate::bench::chart::{Across, Chart, Scale, Series, Shape, Unit};
use crate::bench::distribution::Distribution;
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::{LAYOUTS, Rig, Run, SHAPE};
use crate::bench::row::RowShape;
use crate::bench::workload::FIELDS;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "access",
    title: "Full and partial access",
    paper: "Section VI-B, figures 10 and 11: six operations on whole rows and on single fields. Partial reads and updates \
            3.5 to 5.9 times as fast as under the consolidated mapping (section I), partial access up to 3.1 times as fast \
            as under the scattered one, full access up to 2.1 times.",
    run,
};

const FULL: [(&str, &str); 3] = [("insert", "insert"), ("read-full", "read"), ("scan-full", "scan of 100")];
const PARTIAL: [(&str, &str); 3] =
    [("update", "update"), ("read-partial", "read"), ("scan-partial", "scan of 100")];

/// Which pair is compared, and the paper's factor.
const FACTORS: [(&str, usize, Option<&str>); 12] = [
    ("update", 1, Some("3.9x to 5.6x")),
    ("read-partial", 1, Some("2.3x to 4.3x")),
    ("scan-partial", 1, Some("above 1x")),
    ("update", 2, Some("about 1x")),
    ("read-partial", 2, Some("up to 3.1x")),
    ("read-full", 2, Some("at least 2.2x, other engines")),
    ("read-full", 1, Some("at least 2.2x, other engines")),
    ("scan-full", 1, Some("at least 1.9x, other engines")),
    ("update", 3, None),
    ("read-partial", 3, None),
    ("read-full", 3, None),
    ("scan-full", 3, None),
];

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    measure(rig, SHAPE)
}

/// The experiment on rows of `shape`.
pub(super) fn measure(rig: &Rig<'_>, shape: RowShape) -> Result<Finding, String> {
    let mut finding = Finding::default();
    for layout in LAYOUTS {
        let mut subject = rig.open(layout, shape, rig.options()?)?;
        subject.load(&mut finding)?;
        for workload in FIELDS {
            let run = Run { distribution: Some(Distribution::Zipfian), ..Run::default() };
            subject.run(workload, run, &mut finding)?;
        }
        subject.remove()?;
    }
    for (phase, other, paper) in FACTORS {
        let [rows, other_rate] = [0, other].map(|at| finding.rate(LAYOUTS[at].name(), phase));
        let fields = shape.fields;
        let what = format!("{phase} of {fields} fields: rows against {}", LAYOUTS[other].name());
        let paper = paper.filter(|_| shape == SHAPE);
        finding.factors.push(Factor::times(what, rows, other_rate, paper));
    }
    let settings = rig.settings(shape, "zipfian 0.99");
    finding.figures = vec![throughput(&finding, &settings), latency(&finding, &settings)];
    Ok(finding)
}

fn throughput(finding: &Finding, settings: &str) -> Figure {
    let charts = [("Whole rows", FULL), ("Single fields", PARTIAL)]
        .map(|(title, phases)| normalised(finding, title, &phases, 480));
    Figure {
        title: "Throughput".into(),
        see: "Each flat mapping has a side where it falls behind, consolidated on single fields, scattered on whole rows, hybrid on \
              both a little; rows should fall behind on neither."
            .into(),
        settings: settings.into(),
        paper: Some("partial reads and updates 3.5x to 5.9x over consolidated, up to 3.1x over scattered"),
        charts: charts.into(),
    }
}

fn latency(finding: &Finding, settings: &str) -> Figure {
    let charts = [("Whole rows", FULL), ("Single fields", PARTIAL)].map(|(title, phases)| {
        let line = |layout: &str| {
            let mean = |(phase, _): &(&str, &str)| finding.phase(layout, phase).map(|m| m.report.us_per_op());
            Series::over_names(layout, phases.iter().map(mean))
        };
        Chart {
            title: title.into(),
            x_label: "operation".into(),
            across: Across::Names(phases.map(|(_, shown)| shown.to_owned()).into()),
            y_label: "mean latency (log scale)".into(),
            unit: Unit::Microseconds,
            scale: Scale::Log,
            shape: Shape::Dots,
            series: LAYOUTS.map(|layout| line(layout.name())).into(),
            marks: vec![],
            width: 480,
            height: 240,
        }
    });
    Figure {
        title: "Mean latency".into(),
        see: "The lowest dot of each column is the fastest; the distance between dots is the cost of a mapping.".into(),
        settings: settings.into(),
        paper: Some("read latency 56.1 % to 76.7 % and update latency 74.5 % to 82.1 % below consolidated"),
        charts: charts.into(),
    }
}
