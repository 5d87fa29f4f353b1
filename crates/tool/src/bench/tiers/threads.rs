//! More threads, on data larger than the fast tier.
//!
//! Owns the experiment's entry. Must not know how phases are run.

use super::bound::{Bound, PAIRS};
use super::drawing::loaded;
use crate::bench::chart::{Chart, Series, Shape, Unit};
use crate::bench::distribution::Distribution;
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::machine;
use crate::bench::paper::rig::{Rig, Run};
use crate::bench::report::count;
use crate::bench::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "threads",
    title: "Threads",
    paper: "DecouKV, evaluation: 2 to 16 cores; gains over RocksDB shrink at both ends. BushStore's presets: YCSB with 20 threads.",
    run,
};

const BOUND: Bound = Bound::Percent(20);
const PHASES: [(&str, &str); 3] = [("overwrite", "puts"), ("read-full", "gets"), ("a", "A")];

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let records = rig.records(PAIRS);
    let mut subject = loaded(rig, (BOUND, PAIRS, records), "loading".into(), &mut finding)?;
    for &threads in rig.threads() {
        subject.call(variant(threads));
        for (phase, _) in PHASES {
            let uniform = (phase != "a").then_some(Distribution::Uniform);
            let run = Run { threads: Some(threads), distribution: uniform, ..Run::default() };
            subject.run(Workload::find(phase)?, run, &mut finding)?;
        }
    }
    subject.remove()?;
    let first = rig.threads()[0];
    for &threads in &rig.threads()[1..] {
        for (phase, shown) in PHASES {
            let [one, many] = [first, threads].map(|threads| finding.rate(&variant(threads), phase));
            let what = format!("{threads} threads against {first}: {shown}");
            finding.factors.push(Factor::times(what, many, one, None));
        }
    }
    let line = |(phase, shown): (&str, &str)| {
        let rates = rig.threads().iter().map(|&threads| Some(finding.rate(&variant(threads), phase)));
        Series::over_names(shown, rates)
    };
    let names = rig.threads().iter().map(ToString::to_string).collect();
    let label = format!("threads, on {} processors", machine::processors());
    let chart = Chart::over_names(
        "Throughput by threads",
        (&label, names),
        ("operations/s", Unit::Rate),
        (Shape::Lines, 640),
        PHASES.map(line).into(),
    );
    let data = format!("{} rows of 1 x 1000 B in one store", count(records as f64));
    let keys = format!("uniform, A zipfian 0.99; {}", BOUND.describe(PAIRS, records));
    finding.figures = vec![Figure {
        title: "Scaling".into(),
        see: "Background threads take their part of the processors: with as many threads as processors, lines bend where those have most to do.".into(),
        settings: rig.describe(&data, &keys, rig.threads()),
        paper: Some("gains are largest between 2 and 16 cores (DecouKV)"),
        charts: vec![chart],
    }];
    Ok(finding)
}

fn variant(threads: usize) -> String {
    format!("{threads} threads")
}
