//! YCSB A to F on rows and on the flat mappings (section VI-B, figure 9).
//!
//! Owns the experiment's entry. Must not know how phases are run.

use crate::bench::chart::{Across, Chart, Point, Scale, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::{LAYOUTS, Layout, Rig, SHAPE};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "ycsb",
    title: "YCSB A to F",
    paper: "Section VI-B, figure 9: FOCUS against the best of six baselines (Pmem-RocksDB, ListDB and others under both flat \
            mappings). Here the baselines are three flat mappings over this engine's own tables, so that a factor shows what \
            the row layout is worth and nothing else.",
    run,
};

/// In the order they run in: those that insert come last. E scans the rows that D left.
const ORDER: [&str; 6] = ["a", "b", "c", "f", "d", "e"];
const WORKLOADS: [(&str, &str); 6] =
    [("a", "2.2x"), ("b", "1.4x"), ("c", "1.5x"), ("d", "2.4x"), ("e", "2.8x"), ("f", "2.6x")];

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    for layout in LAYOUTS {
        let mut subject = rig.open(layout, SHAPE, rig.options()?)?;
        subject.load(&mut finding)?;
        ORDER.iter().try_for_each(|&name| match name {
            "d" => subject.phase_before_scans(name, &mut finding),
            _ => subject.phase(name, &mut finding),
        })?;
        subject.remove()?;
    }
    for (name, paper) in WORKLOADS {
        let [rows, flat @ ..] = LAYOUTS.map(|layout| finding.rate(layout.name(), name));
        let what = format!("YCSB {}: rows against the best flat mapping", name.to_uppercase());
        finding.factors.push(Factor::times(what, rows, best(&flat), Some(paper)));
    }
    let settings = rig.settings(SHAPE, "zipfian 0.99 (D: latest, a fifth as many operations as rows)");
    finding.figures = vec![throughput(&finding, &settings), latencies(&finding, &settings)];
    Ok(finding)
}

/// The highest of the flat mappings' rates.
pub(super) fn best(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(0.0, f64::max)
}

/// Bars beside each other, each in terms of the consolidated mapping's, labelled with its own throughput.
pub(super) fn normalised(finding: &Finding, title: &str, phases: &[(&str, &str)], width: u32) -> Chart {
    let base = LAYOUTS[1].name();
    let series = LAYOUTS.map(|layout| {
        let points = phases.iter().enumerate().map(|(at, (phase, _))| {
            let rate = finding.rate(layout.name(), phase);
            Point::new(at as f64, rate / finding.rate(base, phase)).labelled(rate)
        });
        Series { name: layout.name().into(), points: points.collect() }
    });
    Chart {
        title: title.into(),
        x_label: "operation".into(),
        across: Across::Names(phases.iter().map(|(_, shown)| (*shown).to_owned()).collect()),
        y_label: "throughput (consolidated = 1)".into(),
        unit: Unit::Times,
        scale: Scale::Linear,
        shape: Shape::Bars,
        series: series.into(),
        marks: vec![],
        width,
        height: 270,
    }
}

fn throughput(finding: &Finding, settings: &str) -> Figure {
    let phases = [("load", "load"), ("a", "A"), ("b", "B"), ("c", "C"), ("d", "D"), ("e", "E"), ("f", "F")];
    let mut chart = normalised(finding, "Throughput", &phases, 900);
    chart.x_label = "workload (bars are labelled with operations/s)".into();
    Figure {
        title: "Throughput".into(),
        see: "Rows should stand above all flat mappings wherever single fields are written (A, F) and not below the \
              consolidated one where whole rows are read (B to E)."
            .into(),
        settings: settings.into(),
        paper: Some("2.2x A, 1.4x B, 1.5x C, 2.4x D, 2.8x E, 2.6x F over the best baseline"),
        charts: vec![chart],
    }
}

fn latencies(finding: &Finding, settings: &str) -> Figure {
    let names = ["p50", "p99", "p99.9", "p99.99", "max"].map(String::from);
    let line = |layout: Layout, name: &str| {
        let report = finding.phase(layout.name(), name).map(|measured| &measured.report);
        let numbers = report.map(|r| [r.p50_us, r.p99_us, r.p999_us, r.p9999_us, r.max_us]);
        Series::over_names(layout.name(), numbers.into_iter().flatten().map(Some))
    };
    let chart = |(name, _): (&str, &str)| Chart {
        title: format!("Workload {}", name.to_uppercase()),
        x_label: "percentile of operations".into(),
        across: Across::Names(names.to_vec()),
        y_label: "latency (log scale)".into(),
        unit: Unit::Microseconds,
        scale: Scale::Log,
        shape: Shape::Lines,
        series: LAYOUTS.map(|layout| line(layout, name)).into(),
        marks: vec![],
        width: 316,
        height: 240,
    };
    Figure {
        title: "Latency by percentile".into(),
        see: "The lower line is the faster store, and a line that turns up late has the calmer tail; an operation of E is a \
              scan of 1 to 100 rows."
            .into(),
        settings: settings.into(),
        paper: None,
        charts: WORKLOADS.map(chart).into(),
    }
}
