//! The engine's techniques, each switched off or set otherwise (section VI-C, figure 12 a).
//!
//! Owns the variants: another technique is one entry of [`SWITCHES`] or another setting's name. Must not know what a
//! setting does.

use crate::bench::chart::{Across, Chart, Point, Scale, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::{Layout, Rig, SHAPE};
use crate::bench::setting::Setting;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "ablation",
    title: "Techniques switched off",
    paper: "Section VI-C, figure 12 (a): swim (merging deltas into their row off the write path) on and off: 112 % more reads \
            for 8.3 % fewer updates. Here rows are merged in place where all deltas are of fixed fields, and copied otherwise.",
    run,
};

/// What is run, in this order, and what it is called in charts. Reads come before and after the updates, so that they meet the
/// rows as loaded and with deltas; updates of five fields come before the reads of one, so that the newest delta names it as often as not.
const PHASES: [(&str, &str); 7] = [
    ("c", "C"),
    ("a", "A"),
    ("update", "update"),
    ("read-full", "read after updates"),
    ("update-5", "update of 5 fields"),
    ("read-partial", "read of 1 field"),
    ("scan-full", "scan of 100 rows"),
];
/// Those that the length of chains is looked at in.
const CHAIN_PHASES: usize = 4;
/// What the variant that changes nothing is called.
const BASE: &str = "as it is";
/// What is switched off, in charts of their own: of what updates leave behind, and of where rows are.
const SWITCHES: [(&str, &[(&str, &str)]); 2] = [
    (
        "One technique off: deltas and fields",
        &[
            ("no merge", "merge=off"),
            ("merge by copy", "swim=off"),
            ("a flush for each field", "line_flush=off"),
            ("no early stop", "early_stop=off"),
            ("no schema layout", "layout=off"),
        ],
    ),
    (
        "One technique off: where rows are",
        &[
            ("no reordering", "reorder=off"),
            ("no row cache", "cache-mode=off"),
            ("row cache by LRU", "cache-policy=lru"),
            ("no checksums on reads", "verify_reads=off"),
        ],
    ),
];
const NO_MERGE: &str = SWITCHES[0].1[0].0;
const CHAINS: std::ops::RangeInclusive<u8> = 1..=7;

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let chains: Vec<_> =
        CHAINS.map(|length| (chain_name(length), format!("delta_chain_max={length}"))).collect();
    measure(rig, BASE, None, PHASES.len(), &mut finding)?;
    for (name, setting) in SWITCHES.iter().flat_map(|(_, switches)| *switches) {
        measure(rig, name, Some(setting.parse()?), PHASES.len(), &mut finding)?;
    }
    for (name, setting) in &chains {
        measure(rig, name, Some(setting.parse()?), CHAIN_PHASES, &mut finding)?;
    }
    for (phase, what, paper) in [
        ("read-full", "merge on against off: reads after updates", "2.12x"),
        ("update", "merge on against off: updates", "0.92x"),
    ] {
        let factor =
            Factor::times(what, finding.rate(BASE, phase), finding.rate(NO_MERGE, phase), Some(paper));
        finding.factors.push(factor);
    }
    for (phase, what, off) in [
        (
            "read-partial",
            "early stop on against off: reads of one field after updates of five",
            "no early stop",
        ),
        ("read-partial", "schema layout on against off: reads of one field", "no schema layout"),
        ("scan-full", "reordering on against off: scans of 100 rows", "no reordering"),
    ] {
        let factor = Factor::times(what, finding.rate(BASE, phase), finding.rate(off, phase), None);
        finding.factors.push(factor);
    }
    let settings = rig.settings(SHAPE, "C and A zipfian 0.99, all others uniform");
    finding.figures = vec![switched(&finding, &settings), chained(&finding, &settings)];
    Ok(finding)
}

fn chain_name(length: u8) -> String {
    format!("chains of {length}")
}

fn measure(
    rig: &Rig<'_>,
    name: &str,
    setting: Option<Setting>,
    phases: usize,
    finding: &mut Finding,
) -> Result<(), String> {
    let mut options = rig.options()?;
    setting.iter().try_for_each(|setting| setting.apply(&mut options))?;
    let mut subject = rig.open(Layout::Rows, SHAPE, options)?;
    subject.call(name);
    subject.load(finding)?;
    PHASES[..phases].iter().try_for_each(|(phase, _)| subject.phase(phase, finding))?;
    subject.remove()
}

fn switched(finding: &Finding, settings: &str) -> Figure {
    Figure {
        title: "On and off".into(),
        see: "Below 1 the technique that is off was helping; above 1, it was the price of what it protects."
            .into(),
        settings: settings.into(),
        paper: Some("swim: 112 % more reads for 8.3 % fewer updates"),
        charts: SWITCHES.iter().map(|(title, switches)| switched_chart(finding, title, switches)).collect(),
    }
}

fn switched_chart(finding: &Finding, title: &str, switches: &[(&str, &str)]) -> Chart {
    let names = [BASE].into_iter().chain(switches.iter().map(|(name, _)| *name));
    let series = names.map(|name| {
        let points = PHASES.iter().enumerate().map(|(at, (phase, _))| {
            let rate = finding.rate(name, phase);
            Point::new(at as f64, rate / finding.rate(BASE, phase)).labelled(rate)
        });
        Series { name: name.into(), points: points.collect() }
    });
    Chart {
        title: title.into(),
        x_label: "workload (bars are labelled with operations/s)".into(),
        across: Across::Names(PHASES.map(|(_, shown)| shown.to_owned()).into()),
        y_label: "throughput (as it is = 1)".into(),
        unit: Unit::Times,
        scale: Scale::Linear,
        shape: Shape::Bars,
        series: series.collect(),
        marks: vec![],
        width: 980,
        height: 270,
    }
}

fn chained(finding: &Finding, settings: &str) -> Figure {
    let series = PHASES[..CHAIN_PHASES].iter().map(|(phase, shown)| {
        let rate = |length| Some(finding.rate(&chain_name(length), phase));
        Series::over_names(shown, CHAINS.map(rate))
    });
    let chart = Chart {
        title: "Deltas on a row before it is rewritten".into(),
        x_label: "delta_chain_max (5 is the default)".into(),
        across: Across::Names(CHAINS.map(|length| length.to_string()).collect()),
        y_label: "throughput (operations/s)".into(),
        unit: Unit::Rate,
        scale: Scale::Linear,
        shape: Shape::Lines,
        series: series.collect(),
        marks: vec![],
        width: 640,
        height: 270,
    };
    Figure {
        title: "Length of delta chains".into(),
        see: "Updates gain with longer chains as whole rows are written less often, until reads that walk them lose more.".into(),
        settings: settings.into(),
        paper: Some("rows are rewritten at chains of 5"),
        charts: vec![chart],
    }
}
