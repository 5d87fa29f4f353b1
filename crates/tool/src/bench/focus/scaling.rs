//! More threads (section VI-D, figure 15 a).
//!
//! Owns the experiment's entry. Must not know how phases are run.

use crate::bench::chart::{Across, Chart, Scale, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::{Layout, Rig, Run, SHAPE};
use crate::bench::report::count;
use crate::bench::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "threads",
    title: "Threads",
    paper: "Section VI-D, figure 15 (a): throughput grows almost linearly with the number of threads.",
    run,
};

const PHASES: [&str; 4] = ["a", "b", "c", "f"];

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let mut subject = rig.open(Layout::Rows, SHAPE, rig.options()?)?;
    subject.load(&mut finding)?;
    for &threads in rig.threads() {
        subject.call(variant(threads));
        for name in PHASES {
            let run = Run { threads: Some(threads), ..Run::default() };
            subject.run(Workload::find(name)?, run, &mut finding)?;
        }
    }
    subject.remove()?;
    let (first, last) = (rig.threads()[0], rig.threads()[rig.threads().len() - 1]);
    if first != last {
        for name in PHASES {
            let [one, many] = [first, last].map(|threads| finding.rate(&variant(threads), name));
            let what = format!("{} threads against {first}: {}", last, name.to_uppercase());
            finding.factors.push(Factor::times(what, many, one, Some("almost linear")));
        }
    }
    let line = |name: &str| {
        let rates = rig.threads().iter().map(|&threads| Some(finding.rate(&variant(threads), name)));
        Series::over_names(&name.to_uppercase(), rates)
    };
    let data = format!("{} rows of 10 x 100 B in one store", count(rig.records(SHAPE) as f64));
    let settings = rig.describe(&data, "zipfian 0.99", rig.threads());
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let chart = Chart {
        title: "Throughput by threads".into(),
        x_label: format!("threads, on {cores} processors"),
        across: Across::Names(rig.threads().iter().map(ToString::to_string).collect()),
        y_label: "throughput (operations/s)".into(),
        unit: Unit::Rate,
        scale: Scale::Linear,
        shape: Shape::Lines,
        series: PHASES.map(line).into(),
        marks: vec![],
        width: 640,
        height: 270,
    };
    finding.figures = vec![Figure {
        title: "Scaling".into(),
        see: "Lines that double from one thread to two scale perfectly; beyond the number of processors they must be flat.".into(),
        settings,
        paper: Some("almost linear"),
        charts: vec![chart],
    }];
    Ok(finding)
}

fn variant(threads: usize) -> String {
    format!("{threads} threads")
}
