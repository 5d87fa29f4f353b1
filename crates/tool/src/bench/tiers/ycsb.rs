//! YCSB on five times as much data as the fast tier holds.
//!
//! Owns the experiment's entry. Must not know how phases are run.

use super::bound::{Bound, PAIRS};
use super::drawing::loaded;
use crate::bench::chart::{Chart, Point, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::Rig;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "ycsb",
    title: "YCSB, five times the fast tier",
    paper: "DecouKV, evaluation: load and A to F, 100 million operations on 100 GB, uniform and zipfian, one field of 1,000 bytes. Abstract: 2.3 to \
            4.9 times the throughput of RocksDB, MatrixKV, PrismDB, SplitDB and ADOC where much is written, 1.2 to 2.3 times where \
            much is read. BushStore's presets: load of 80 million pairs of 1 KB, 100,000 operations each of A to F, zipfian.",
    run,
};

const BOUNDS: [Bound; 2] = [Bound::All, Bound::Percent(20)];
/// In the order they run in: those that insert come last. E scans the rows that D left.
const ORDER: [&str; 6] = ["a", "b", "c", "f", "d", "e"];
const WRITES: &str = "2.3x to 4.9x other engines' (DecouKV)";
const READS: &str = "1.2x to 2.3x other engines' (DecouKV)";
const PHASES: [(&str, &str, &str); 7] = [
    ("load", "load", WRITES),
    ("a", "A", WRITES),
    ("b", "B", READS),
    ("c", "C", READS),
    ("d", "D", READS),
    ("e", "E", "1.5x RocksDB's scans (DecouKV)"),
    ("f", "F", WRITES),
];
const DIFFERS: &str =
    "persistent memory of a tenth of the data over a SATA SSD, 64 clients, 100 GB; over other engines";

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let records = rig.records(PAIRS);
    for bound in rig.in_turn(BOUNDS) {
        let mut subject = loaded(rig, (bound, PAIRS, records), bound.name(), &mut finding)?;
        ORDER.iter().try_for_each(|&name| match name {
            "d" => subject.phase_before_scans(name, &mut finding),
            _ => subject.phase(name, &mut finding),
        })?;
        subject.remove()?;
    }
    let rate = |bound: Bound, phase: &str| finding.rate(&bound.name(), phase);
    let factors = PHASES.map(|(phase, shown, paper)| {
        let what = format!("YCSB {shown}: fast tier of 20 % against one for all");
        let [all, bounded] = BOUNDS.map(|bound| rate(bound, phase));
        Factor::times(what, bounded, all, Some(paper)).beside(DIFFERS)
    });
    let series = BOUNDS.map(|bound| {
        let points = PHASES.iter().enumerate().map(|(at, (phase, ..))| {
            let rate = rate(bound, phase);
            Point::new(at as f64, rate / finding.rate(&Bound::All.name(), phase)).labelled(rate)
        });
        Series { name: bound.name(), points: points.collect() }
    });
    let names = PHASES.map(|(_, shown, _)| shown.to_owned()).into();
    let chart = Chart::over_names(
        "Throughput",
        ("workload (bars are labelled with operations/s)", names),
        ("throughput (fast tier for all = 1)", Unit::Times),
        (Shape::Bars, 900),
        series.into(),
    );
    let settings = format!(
        "zipfian 0.99 (D: latest, a fifth as many operations as rows); {}",
        BOUNDS[1].describe(PAIRS, records)
    );
    let figure = Figure {
        title: "Throughput".into(),
        see: "Bars near 1 lose nothing by being larger than the fast tier; those that read what is seldom written lose most.".into(),
        settings: rig.settings(PAIRS, &settings),
        paper: Some("2.3x to 4.9x (writes) and 1.2x to 2.3x (reads) over other engines"),
        charts: vec![chart],
    };
    finding.factors = factors.into();
    finding.figures = vec![figure];
    Ok(finding)
}
