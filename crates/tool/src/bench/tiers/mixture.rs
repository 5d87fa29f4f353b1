//! Reads, writes and scans at once, as a production store has them.
//!
//! Owns the experiment's entry. Must not know how phases are run.

use super::bound::{Bound, PAIRS};
use super::drawing::{loaded, uniform};
use crate::bench::chart::{Chart, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::Rig;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "mix",
    title: "Reads, writes and scans at once",
    paper: "DecouKV, evaluation: the mix of Nutanix's production stores, 57 % updates, 41 % reads and 2 % scans. Here that, and the same with \
            57 % reads and 41 % writes; a scan is of 1 to 100 rows, as YCSB's.",
    run,
};

const BOUNDS: [Bound; 2] = [Bound::All, Bound::Percent(20)];
const PHASES: [(&str, &str); 2] =
    [("mix-writes", "57 % puts, 41 % gets, 2 % scans"), ("mix-reads", "57 % gets, 41 % puts, 2 % scans")];

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let records = rig.records(PAIRS);
    for bound in rig.in_turn(BOUNDS) {
        let mut subject = loaded(rig, (bound, PAIRS, records), bound.name(), &mut finding)?;
        for (phase, _) in PHASES {
            uniform(&mut subject, phase, &mut finding)?;
        }
        subject.remove()?;
    }
    for (phase, shown) in PHASES {
        let [all, bounded] = BOUNDS.map(|bound| finding.rate(&bound.name(), phase));
        let what = format!("{shown}: fast tier of 20 % against one for all");
        finding.factors.push(Factor::times(what, bounded, all, None));
    }
    let series = BOUNDS.map(|bound| {
        let rates = PHASES.map(|(phase, _)| Some(finding.rate(&bound.name(), phase)));
        Series::over_names(&bound.name(), rates)
    });
    let chart = Chart::over_names(
        "Throughput of the mixes",
        ("mix", PHASES.map(|(_, shown)| shown.to_owned()).into()),
        ("operations/s", Unit::Rate),
        (Shape::Bars, 640),
        series.into(),
    );
    finding.figures = vec![Figure {
        title: "Mixes".into(),
        see: "A scan is a hundredth of the operations twice over and most of the rows that are read; what it costs more beneath the log \
              is most of the distance."
            .into(),
        settings: rig.settings(PAIRS, &format!("uniform; {}", BOUNDS[1].describe(PAIRS, records))),
        paper: None,
        charts: vec![chart],
    }];
    Ok(finding)
}
