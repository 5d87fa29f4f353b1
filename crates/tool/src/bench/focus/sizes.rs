//! Rows of 64 bytes to 16 KB (section VI-D, figure 15 b).
//!
//! Owns the experiment's entry. Must not know how phases are run.

use super::ycsb::best;
use crate::bench::chart::{Across, Chart, Scale, Series, Shape, Unit};
use crate::bench::distribution::Distribution;
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::{LAYOUTS, Layout, Rig, Run};
use crate::bench::report::count;
use crate::bench::row::RowShape;
use crate::bench::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "sizes",
    title: "Size of rows",
    paper: "Section VI-D, figure 15 (b): values of 64 bytes to 16 KB; at 16 KB FOCUS is 7.1 times as fast as the baselines.",
    run,
};

/// Rows of eight fields.
const SIZES: [(&str, usize); 5] = [("64 B", 8), ("256 B", 32), ("1 KB", 128), ("4 KB", 512), ("16 KB", 2048)];
const PHASES: [(&str, &str); 3] =
    [("overwrite", "Put a row"), ("read-full", "Get a row"), ("update", "Update one of eight fields")];

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    for layout in LAYOUTS {
        for (size, field_bytes) in SIZES {
            let mut subject = rig.open(layout, RowShape { fields: 8, field_bytes }, rig.options()?)?;
            subject.call(variant(layout, size));
            subject.load(&mut finding)?;
            for (name, _) in PHASES {
                let run = Run { distribution: Some(Distribution::Zipfian), ..Run::default() };
                subject.run(Workload::find(name)?, run, &mut finding)?;
            }
            subject.remove()?;
        }
    }
    let largest = SIZES[SIZES.len() - 1].0;
    for ((phase, shown), paper) in PHASES.into_iter().zip([None, Some("7.1x"), None]) {
        let [rows, flat @ ..] = LAYOUTS.map(|layout| finding.rate(&variant(layout, largest), phase));
        let what = format!("{largest} rows, {}: rows against the best flat mapping", shown.to_lowercase());
        finding.factors.push(Factor::times(what, rows, best(&flat), paper));
    }
    let rows = count(rig.records(RowShape { fields: 8, field_bytes: 8 }) as f64);
    let data = format!("{rows} rows of 8 fields, fewer where they are longer than 1,000 B");
    let settings = rig.describe(&data, "zipfian 0.99", &rig.threads()[..1]);
    finding.figures = vec![figure(&finding, settings)];
    Ok(finding)
}

fn variant(layout: Layout, size: &str) -> String {
    format!("{}, {size}", layout.name())
}

fn figure(finding: &Finding, settings: String) -> Figure {
    let charts = PHASES.map(|(phase, shown)| {
        let line = |layout: Layout| {
            let rates = SIZES.iter().map(|(size, _)| Some(finding.rate(&variant(layout, size), phase)));
            Series::over_names(layout.name(), rates)
        };
        Chart {
            title: shown.into(),
            x_label: "bytes in a row".into(),
            across: Across::Names(SIZES.map(|(size, _)| size.to_owned()).into()),
            y_label: "operations/s (log scale)".into(),
            unit: Unit::Rate,
            scale: Scale::Log,
            shape: Shape::Lines,
            series: LAYOUTS.map(line).into(),
            marks: vec![],
            width: 316,
            height: 250,
        }
    });
    Figure {
        title: "Throughput by row size".into(),
        see: "Whole rows cost in proportion to their bytes under any layout; the update of one field should part from the \
              consolidated mapping ever more as rows grow."
            .into(),
        settings,
        paper: Some("7.1x at 16 KB"),
        charts: charts.into(),
    }
}
