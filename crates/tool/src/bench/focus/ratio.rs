//! One to seven of eight fields updated at once (section VI-C, figure 12 b).
//!
//! Owns the experiment's entry. Must not know how phases are run.

use crate::bench::chart::{Across, Chart, Scale, Series, Shape, Unit};
use crate::bench::distribution::Distribution;
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding, Measured};
use crate::bench::paper::rig::{LAYOUTS, Layout, Rig, Run};
use crate::bench::row::RowShape;
use crate::bench::setting::Setting;
use crate::bench::workload::RATIOS;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "ratio",
    title: "Share of a row that is updated",
    paper: "Section VI-C, figure 12 (b): rows of eight fields of 32 bytes, 1/8 to 7/8 of them updated; cache-line-aware \
            merging is 13.6 times as fast as merging without (the text gives that factor for 1/8, where it also says that there \
            is hardly any difference).",
    run,
};

/// Rows with merging done otherwise.
const VARIANTS: [(&str, &str); 2] =
    [("rows, merged by copy", "swim=off"), ("rows, fields flushed one by one", "line_flush=off")];
/// 256 bytes: the granule of persistent memory.
const SHAPE: RowShape = RowShape { fields: 8, field_bytes: 32 };

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let layouts = LAYOUTS.map(|layout| (layout, layout.name(), None));
    let variants = VARIANTS.map(|(name, setting)| (Layout::Rows, name, Some(setting)));
    for (layout, name, setting) in layouts.into_iter().chain(variants) {
        // The log is counted by the segment: small ones count it finer.
        let mut options = rig.options()?;
        options.segment_bytes = 1 << 20;
        setting.map_or(Ok(()), |setting| setting.parse::<Setting>()?.apply(&mut options))?;
        let mut subject = rig.open(layout, SHAPE, options)?;
        subject.call(name);
        subject.load(&mut finding)?;
        for workload in RATIOS {
            let run = Run { distribution: Some(Distribution::Zipfian), ..Run::default() };
            subject.run(workload, run, &mut finding)?;
        }
        subject.remove()?;
    }
    for (workload, share) in [(&RATIOS[0], "1/8"), (&RATIOS[6], "7/8")] {
        let [rows, flat] = [0, 1].map(|at| finding.rate(LAYOUTS[at].name(), workload.name));
        let what = format!("update of {share} of a row: rows against consolidated");
        finding.factors.push(Factor::times(what, rows, flat, None));
    }
    let settings = rig.settings(SHAPE, "zipfian 0.99; segments of 1 MiB");
    finding.figures = vec![figure(&finding, settings)];
    Ok(finding)
}

fn figure(finding: &Finding, settings: String) -> Figure {
    let names = || LAYOUTS.iter().map(|layout| layout.name()).chain(VARIANTS.map(|(name, _)| name));
    let chart = |title: &str, y_label: &str, unit, number: fn(&Measured) -> f64| {
        let line = |layout: &str| {
            let numbers = RATIOS.iter().map(|workload| finding.phase(layout, workload.name).map(number));
            Series::over_names(layout, numbers)
        };
        Chart {
            title: title.into(),
            x_label: "fields updated at once, of the row's".into(),
            across: Across::Names((1..=RATIOS.len()).map(|fields| format!("{fields}/8")).collect()),
            y_label: y_label.into(),
            unit,
            scale: Scale::Linear,
            shape: Shape::Lines,
            series: names().map(line).collect(),
            marks: vec![],
            width: 480,
            height: 260,
        }
    };
    Figure {
        title: "Throughput and bytes by ratio".into(),
        see: "A store that writes what changed starts low in bytes and rises with the share, and consolidated pays for the \
              whole row from the first field on; rows lie where the lower of the two would be."
            .into(),
        settings,
        paper: Some("up to 13.6x from cache-line-aware merging"),
        charts: vec![
            chart("Throughput", "updates/s", Unit::Rate, |m| m.report.ops_per_s),
            chart("Log written per update, background merging included", "bytes an update", Unit::Bytes, |m| {
                m.log_bytes as f64 / m.report.operations.max(1) as f64
            }),
        ],
    }
}
