//! Filling a store and reading it, by share of the fast tier and by size of values.
//!
//! Owns the experiment's entry. Must not know how phases are run.

use super::bound::{Bound, PAIRS};
use super::drawing::{loaded, uniform};
use crate::bench::chart::{Chart, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::Rig;
use crate::bench::report::count;
use crate::bench::row::RowShape;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "fill",
    title: "Random writes and reads by size of values",
    paper: "BushStore, abstract in its repository: random writes 5.4 times and random reads 5.0 times as fast as MioDB's on average; its repository's presets \
            have 80 GB of values of 256 bytes to 64 KB, on 8 to 64 GiB of persistent memory. DecouKV, evaluation, micro-benchmarks: 100 GB of \
            24-byte keys and 1,000-byte values (256 bytes to 16 KB in another run), a fast tier of 10 % of it; inserts 4.3 times and \
            reads 1.2 times as fast as RocksDB's. Both say that gains shrink where values are small, for the processor then bounds all.",
    run,
};

const SIZES: [(&str, usize); 4] = [("64 B", 64), ("256 B", 256), ("1 KiB", 1024), ("4 KiB", 4096)];
/// The size that is nearest to the papers'.
const PAPERS: &str = SIZES[2].0;
const BOUNDS: [Bound; 4] = [Bound::All, Bound::Percent(10), Bound::Percent(20), Bound::ShortIndex(20)];
/// What is run, what it is called, and the papers' factors.
const PHASES: [(&str, &str, &str); 2] = [
    ("load", "puts", "4.3x RocksDB's (DecouKV), 5.4x MioDB's (BushStore)"),
    ("read-full", "gets", "1.2x RocksDB's (DecouKV), 5.0x MioDB's (BushStore)"),
];
const DIFFERS: &str = "persistent memory over SATA SSDs, 80 to 100 GB, keys of 24 (DecouKV) or 8 bytes (BushStore); over other engines";

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    for bound in rig.in_turn(BOUNDS) {
        for (size, field_bytes) in SIZES {
            let shape = RowShape { fields: 1, field_bytes };
            let held = (bound, shape, rig.records(shape));
            let mut subject = loaded(rig, held, variant(bound, size), &mut finding)?;
            uniform(&mut subject, "read-full", &mut finding)?;
            subject.remove()?;
        }
    }
    for (phase, shown, paper) in PHASES {
        for bound in &BOUNDS[1..] {
            for (size, _) in SIZES {
                let [bounded, all] =
                    [*bound, Bound::All].map(|bound| finding.rate(&variant(bound, size), phase));
                let what = format!("{shown} of {size}, fast tier of {}: against one for all", bound.name());
                let of_paper = (size == PAPERS && *bound == Bound::Percent(10)).then_some(paper);
                let factor = Factor::times(what, bounded, all, of_paper);
                finding.factors.push(if of_paper.is_some() { factor.beside(DIFFERS) } else { factor });
            }
        }
    }
    finding.figures = vec![figure(rig, &finding)];
    Ok(finding)
}

fn variant(bound: Bound, size: &str) -> String {
    format!("{}, {size}", bound.name())
}

fn figure(rig: &Rig<'_>, finding: &Finding) -> Figure {
    let charts = PHASES.map(|(phase, shown, _)| {
        let line = |bound: &Bound| {
            let rates = SIZES.iter().map(|(size, _)| Some(finding.rate(&variant(*bound, size), phase)));
            Series::over_names(&bound.name(), rates)
        };
        Chart::over_names(
            format!("Random {shown}"),
            ("bytes in a value", SIZES.map(|(size, _)| size.to_owned()).into()),
            (&format!("{shown}/s"), Unit::Rate),
            (Shape::Lines, 480),
            BOUNDS.iter().map(line).collect(),
        )
    });
    let records = rig.records(PAIRS);
    let data = format!("{} values, fewer where they are longer than 1,000 B", count(records as f64));
    let bounds = BOUNDS[1..].iter().map(|bound| bound.describe(PAIRS, records)).collect::<Vec<_>>();
    let keys = format!("uniform; with 1,000 B: {}", bounds.join("; "));
    Figure {
        title: "Throughput by size of values and share of the fast tier".into(),
        see: "The distance of a line to that of a fast tier for all is what it costs that rows move; where it is none, nothing moved \
              or the processor is what bounds."
            .into(),
        settings: rig.describe(&data, &keys, &rig.threads()[..1]),
        paper: Some("inserts 4.3x and reads 1.2x RocksDB's, 5.4x and 5.0x MioDB's"),
        charts: charts.into(),
    }
}
