//! Scans of keys alone.
//!
//! Owns the experiment's entry. Must not know how phases are run.

use super::bound::{Bound, PAIRS};
use super::drawing::{loaded, uniform};
use crate::bench::chart::{Chart, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::Rig;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "keys",
    title: "Scans of keys alone",
    paper: "BushStore's benchmark has scans of the index alone: of its skip list, its B+ trees and its sorted tables, without a value being read. \
            Here a scan that asks for no field: it walks the index, and looks at the head of each row's newest record, which says whether \
            there is a row still. DecouKV, evaluation: scans of up to 100 rows 1.5 times as fast as RocksDB's.",
    run,
};

const BOUNDS: [Bound; 2] = [Bound::All, Bound::Percent(20)];
const KEYS: &str = "scan-keys";
const ROWS: &str = "scan-full";
const WARMING_UP: &str = "warming up";
const PHASES: [(&str, &str); 2] = [(KEYS, "keys"), (ROWS, "keys and values")];

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let records = rig.records(PAIRS);
    for bound in rig.in_turn(BOUNDS) {
        let mut subject = loaded(rig, (bound, PAIRS, records), WARMING_UP.into(), &mut finding)?;
        // What is scanned first is brought into order, and into memory, for those that follow.
        uniform(&mut subject, ROWS, &mut finding)?;
        subject.call(bound.name());
        for (phase, _) in PHASES {
            uniform(&mut subject, phase, &mut finding)?;
        }
        subject.remove()?;
    }
    let rate = |bound: Bound, phase: &str| finding.rate(&bound.name(), phase);
    let mut factors = Vec::new();
    for bound in BOUNDS {
        let what = format!("scans of keys against scans of rows, fast tier of {}", bound.name());
        factors.push(Factor::times(what, rate(bound, KEYS), rate(bound, ROWS), None));
    }
    for (phase, shown) in PHASES {
        let what = format!("scans of {shown}: fast tier of 20 % against one for all");
        let [all, bounded] = BOUNDS.map(|bound| rate(bound, phase));
        let factor = Factor::times(what, bounded, all, (phase == ROWS).then_some("1.5x RocksDB's (DecouKV)"));
        factors.push(match phase {
            ROWS => factor.beside("persistent memory over a SATA SSD, 10 GB scanned; over another engine"),
            _ => factor,
        });
    }
    let series = BOUNDS.map(|bound| {
        let rates = PHASES.map(|(phase, _)| Some(rate(bound, phase)));
        Series::over_names(&bound.name(), rates)
    });
    let chart = Chart::over_names(
        "Scans of 100",
        ("what is read", PHASES.map(|(_, shown)| shown.to_owned()).into()),
        ("scans/s", Unit::Rate),
        (Shape::Bars, 480),
        series.into(),
    );
    let settings = format!(
        "uniform first keys, 100 rows a scan, after as many of rows; {}",
        BOUNDS[1].describe(PAIRS, records)
    );
    let figure = Figure {
        title: "Scans".into(),
        see: "The distance between the two groups is what values cost; that within a group, what sorted tables do."
            .into(),
        settings: rig.settings(PAIRS, &settings),
        paper: None,
        charts: vec![chart],
    };
    finding.factors = factors;
    finding.figures = vec![figure];
    Ok(finding)
}
