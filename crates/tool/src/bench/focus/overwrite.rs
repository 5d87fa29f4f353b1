//! Overwriting for ever in bounded space: what collecting costs, over time.
//!
//! Owns the experiment's entry. The paper has no such figure: it leaves space unbounded. Must not know how phases are run.

use hedgerow::{Capacity, Options};

use crate::bench::chart::{Across, Chart, Point, Scale, Series, Shape, Unit};
use crate::bench::driver::Window;
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::{Layout, Rig, Run, SHAPE};
use crate::bench::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "overwrite",
    title: "Overwriting in bounded space",
    paper: "Not in the paper, whose space is unbounded. The fast tier may hold 1.5 times the live data, so that space freed by \
            gc is all there is to write to.",
    run,
};

const PHASES: [(&str, &str); 2] =
    [("overwrite", "Whole rows, uniform"), ("a", "A: reads and updates, zipfian")];
/// How much longer than other phases these run.
const LONGER: f64 = 4.0;
/// Windows in a phase.
const WINDOWS: f64 = 60.0;
/// Segments beyond the live data that the engine needs at least: those being written, collected and kept back. Only a
/// data set of a few of them notices.
const SEGMENTS_MIN: u64 = 16;

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let mut options = rig.options()?;
    // Small data sets need small segments, or the bound would be the least number of them.
    let estimate = rig.records(SHAPE) * SHAPE.row_bytes() as u64;
    options.segment_bytes = if estimate < 512 << 20 { 1 << 20 } else { options.segment_bytes };
    let seconds = rig.seconds() * LONGER;
    for (name, shown) in PHASES {
        let mut subject = rig.open(Layout::Rows, SHAPE, options.clone())?;
        subject.load(&mut finding)?;
        let live = subject.log_bytes();
        let bound = live + (live / 2).max(SEGMENTS_MIN * options.segment_bytes);
        // What is measured is gc: no row leaves the log.
        let bounded = Options { fast_tier_bytes_max: bound, capacity: Capacity::None, ..options.clone() };
        subject = rig.reopen(subject, Layout::Rows, bounded)?;
        subject.call(shown);
        let run = Run { seconds: Some(seconds), window: Some(seconds / WINDOWS), ..Run::default() };
        let outcome = subject.run(Workload::find(name)?, run, &mut finding);
        subject.remove()?;
        if let Err(failure) = outcome {
            finding.failures.push(failure);
            continue;
        }
        let settings = format!(
            "{}; this phase {seconds} s; fast tier at most {} for {} of live data",
            rig.settings(SHAPE, "keys as named"),
            Unit::Bytes.show(bound as f64),
            Unit::Bytes.show(live as f64)
        );
        let windows = finding.phase(shown, name).map(|measured| measured.windows.clone()).unwrap_or_default();
        let tenth = (windows.len() / 10).max(1);
        let rate = |windows: &[Window]| {
            windows.iter().map(|w| w.ops_per_s).sum::<f64>() / windows.len().max(1) as f64
        };
        let early = rate(windows.get(tenth..2 * tenth).unwrap_or(&windows));
        let late = rate(&windows[windows.len().saturating_sub(tenth)..]);
        let what = format!("{shown}: last tenth of the time against the second");
        finding.factors.push(Factor::times(what, late, early, None));
        finding.figures.push(figure(shown, &windows, &settings));
    }
    Ok(finding)
}

fn figure(shown: &str, windows: &[Window], settings: &str) -> Figure {
    let line = |name: &str, number: fn(&Window) -> f64| Series {
        name: name.into(),
        // In a window in which nothing ended there is no latency to show.
        points: (windows.iter().map(|w| Point::new(w.from_s, number(w))))
            .filter(|point| point.y > 0.0)
            .collect(),
    };
    let chart = |title: &str, y_label: &str, unit, scale, series| Chart {
        title: title.into(),
        x_label: "time (s)".into(),
        across: Across::Numbers(Unit::Seconds),
        y_label: y_label.into(),
        unit,
        scale,
        shape: Shape::Lines,
        series,
        marks: vec![],
        width: 480,
        height: 250,
    };
    Figure {
        title: shown.into(),
        see:
            "Flat lines are the aim: throughput that sinks or a tail that rises says that gc cannot keep up."
                .into(),
        settings: settings.into(),
        paper: None,
        charts: vec![
            chart(
                "Latency",
                "latency (log scale)",
                Unit::Microseconds,
                Scale::Log,
                vec![
                    line("p50", |w| w.p50_us),
                    line("p99", |w| w.p99_us),
                    line("p99.9", |w| w.p999_us),
                    line("max", |w| w.max_us),
                ],
            ),
            chart(
                "Throughput",
                "throughput (operations/s)",
                Unit::Rate,
                Scale::Linear,
                vec![line("rows", |w| w.ops_per_s)],
            ),
        ],
    }
}
