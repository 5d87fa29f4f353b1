//! More data, the fast tier always a fifth of it.
//!
//! Owns the experiment's entry. Must not know how phases are run.

use super::bound::{Bound, PAIRS};
use super::drawing::{loaded, uniform};
use crate::bench::chart::{Chart, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::Rig;
use crate::bench::report::count;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "growth",
    title: "One to five times the data",
    paper: "BushStore's presets: 40 to 200 GB of data, persistent memory of 20 % of it. DecouKV, evaluation: 500 GB beside 100 GB. Throughput \
            should not depend on how much there is.",
    run,
};

const BOUND: Bound = Bound::Percent(20);
const STEPS: u64 = 5;
const PHASES: [(&str, &str); 3] = [("load", "inserts"), ("overwrite", "puts"), ("read-full", "gets")];

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let most = rig.records(PAIRS);
    let records = |step: u64| (most.saturating_mul(step) / STEPS).max(1);
    for step in 1..=STEPS {
        let mut subject = loaded(rig, (BOUND, PAIRS, records(step)), variant(step), &mut finding)?;
        for (phase, _) in &PHASES[1..] {
            uniform(&mut subject, phase, &mut finding)?;
        }
        subject.remove()?;
    }
    for (phase, shown) in PHASES {
        let [least, most] = [1, STEPS].map(|step| finding.rate(&variant(step), phase));
        let what = format!("{shown} of {STEPS} times the data, against those of the least");
        finding.factors.push(Factor::times(what, most, least, None));
    }
    let line = |(phase, shown): (&str, &str)| {
        let rates = (1..=STEPS).map(|step| Some(finding.rate(&variant(step), phase)));
        Series::over_names(shown, rates)
    };
    let names = (1..=STEPS).map(|step| format!("{step}x")).collect();
    let label = format!("rows, in terms of {}", count(records(1) as f64));
    let chart = Chart::over_names(
        "Throughput by size of the data",
        (&label, names),
        ("operations/s", Unit::Rate),
        (Shape::Lines, 640),
        PHASES.map(line).into(),
    );
    let keys = format!("uniform; at its most: {}", BOUND.describe(PAIRS, most));
    finding.figures = vec![Figure {
        title: "Growth".into(),
        see: "Flat lines are the aim: what sinks with the data is work that grows with it, merges among it."
            .into(),
        settings: rig.settings(PAIRS, &keys),
        paper: None,
        charts: vec![chart],
    }];
    Ok(finding)
}

fn variant(step: u64) -> String {
    format!("{step}x")
}
