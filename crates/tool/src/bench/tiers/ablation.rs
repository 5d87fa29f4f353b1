//! The engine's techniques, each switched off or set otherwise, on data larger than the fast tier.
//!
//! Owns the table of ablations: another one is a line of [`ABLATIONS`], by the names of `--set`. Promises that all are measured by turns,
//! several times, so that what drifts on the machine hits all alike. Must not know what a setting does.

use super::bound::Bound;
use super::drawing::uniform;
use crate::bench::chart::{Chart, Point, Series, Shape, Unit};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::{Layout, Rig, SHAPE};
use crate::bench::setting::Setting;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "ablation",
    title: "Techniques switched off",
    paper: "DecouKV, evaluation: with decoupling alone, with its scheduler, and with elastic levels besides. BushStore's presets: trees \
            of a fixed size, Bloom filters or none for its Cuckoo filter, and an allocator that flushes. Here what this engine has that can be switched \
            off: the parts of its keys on the fast tier (BushStore's leaves there, inner nodes in DRAM), merging and reordering off the \
            write path, the caches over sorted tables, their compression.",
    run,
};

/// One technique off.
struct Ablation {
    name: &'static str,
    /// What it is compared with.
    base: Base,
    /// What is set, as `--set` has it.
    set: &'static [&'static str],
}

/// A store as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    /// A fast tier of a fifth of the data.
    Tier,
    /// The same, with an index too short for its keys.
    ShortIndex,
}

const BASES: [Base; 2] = [Base::Tier, Base::ShortIndex];

const ABLATIONS: &[Ablation] = &[
    Ablation { name: "no sealing", base: Base::ShortIndex, set: &["seal=off"] },
    Ablation { name: "coupled", base: Base::ShortIndex, set: &["coupled=on"] },
    Ablation { name: "knobs fixed", base: Base::ShortIndex, set: &["groups_max=16", "run_eighths=1"] },
    Ablation { name: "no merge", base: Base::Tier, set: &["merge=off"] },
    Ablation { name: "merge by copy", base: Base::Tier, set: &["swim=off"] },
    Ablation { name: "a flush for each field", base: Base::Tier, set: &["line_flush=off"] },
    Ablation { name: "no reordering", base: Base::Tier, set: &["reorder=off"] },
    Ablation { name: "no early stop", base: Base::Tier, set: &["early_stop=off"] },
    Ablation { name: "no schema layout", base: Base::Tier, set: &["layout=off"] },
    Ablation { name: "no checksums on reads", base: Base::Tier, set: &["verify_reads=off"] },
    Ablation { name: "no compression", base: Base::Tier, set: &["compression=none"] },
    Ablation { name: "least cache", base: Base::Tier, set: &["cache=0"] },
];

/// What is run, in this order, and what it is called.
const PHASES: [(&str, &str); 6] = [
    ("load", "load"),
    ("overwrite", "put"),
    ("update", "update of a field"),
    ("read-full", "get"),
    ("read-partial", "get of a field"),
    ("scan-full", "scan of 100"),
];
/// How often each is measured, within one round of the suite.
const ROUNDS: usize = 3;
const TRIAL_ROUNDS: usize = 2;
/// As many as have room for the numbers at their bars.
const IN_A_CHART: usize = 4;

impl Base {
    fn bound(self) -> Bound {
        match self {
            Base::Tier => Bound::Percent(20),
            Base::ShortIndex => Bound::ShortIndex(20),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Base::Tier => "as it is",
            Base::ShortIndex => "short index",
        }
    }
}

/// A store that is measured: its name, what it is made from, and what is set.
type Variant = (&'static str, Base, &'static [&'static str]);

fn variants() -> Vec<Variant> {
    let bases = BASES.map(|base| (base.name(), base, &[][..]));
    let off = ABLATIONS.iter().map(|ablation| (ablation.name, ablation.base, ablation.set));
    bases.into_iter().chain(off).collect()
}

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let rounds = if rig.is_trial() { TRIAL_ROUNDS } else { ROUNDS };
    let mut findings = Vec::new();
    for round in 0..rounds {
        let mut order = variants();
        let first = round * order.len() / rounds;
        order.rotate_left(first);
        let mut finding = Finding::default();
        let outcome = order.into_iter().try_for_each(|variant| measure(rig, variant, &mut finding));
        match &outcome {
            Ok(()) => compare(rig, rounds, &mut finding),
            // The rounds before it are whole.
            Err(failure) => finding.failures.push(failure.clone()),
        }
        findings.push(finding);
        if outcome.is_err() {
            break;
        }
    }
    Ok(Finding::of_rounds(findings))
}

fn measure(rig: &Rig<'_>, (name, base, set): Variant, finding: &mut Finding) -> Result<(), String> {
    let mut options = base.bound().options(rig, SHAPE, rig.records(SHAPE))?;
    set.iter().try_for_each(|setting| setting.parse::<Setting>()?.apply(&mut options))?;
    let mut subject = rig.open(Layout::Rows, SHAPE, options)?;
    subject.call(name);
    subject.load(finding)?;
    for (phase, _) in &PHASES[1..] {
        uniform(&mut subject, phase, finding)?;
    }
    subject.remove()
}

/// Each technique against what it is compared with, of one round.
fn compare(rig: &Rig<'_>, rounds: usize, finding: &mut Finding) {
    for ablation in ABLATIONS {
        for (phase, shown) in PHASES {
            let [base, off] = [ablation.base.name(), ablation.name].map(|name| finding.rate(name, phase));
            let what = format!("{} against {}: {shown}", ablation.name, ablation.base.name());
            finding.factors.push(Factor::times(what, off, base, None));
        }
    }
    let records = rig.records(SHAPE);
    let settings = format!(
        "uniform; {rounds} rounds by turns; {}; {}",
        Base::Tier.bound().describe(SHAPE, records),
        Base::ShortIndex.bound().describe(SHAPE, records),
    );
    let charts = ABLATIONS.chunks(IN_A_CHART).enumerate();
    let charts = charts.map(|(number, part)| chart(finding, number + 1, part)).collect();
    finding.figures = vec![Figure {
        title: "On and off".into(),
        see: "Below 1 the technique that is off was helping; above 1, it was the price of what it is for. Whiskers that \
              reach across 1 say that nothing was seen."
            .into(),
        settings: rig.settings(SHAPE, &settings),
        paper: None,
        charts,
    }];
}

/// Some of the techniques, each in terms of what it is compared with.
fn chart(finding: &Finding, number: usize, part: &[Ablation]) -> Chart {
    let series = PHASES.map(|(phase, shown)| {
        let points = part.iter().enumerate().map(|(at, ablation)| {
            let rate = finding.rate(ablation.name, phase);
            let base = finding.rate(ablation.base.name(), phase);
            Point::new(at as f64, rate / base).labelled(rate)
        });
        Series { name: shown.into(), points: points.collect() }
    });
    Chart::over_names(
        format!("Techniques off, {number}"),
        (
            "what is off (bars are labelled with operations/s)",
            part.iter().map(|ablation| ablation.name.into()).collect(),
        ),
        ("throughput (as it is = 1)", Unit::Times),
        (Shape::Bars, 980),
        series.into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ablation_sets_something_that_there_is() {
        let mut names: Vec<_> = variants().iter().map(|(name, ..)| *name).collect();
        for ablation in ABLATIONS {
            let mut options = hedgerow::Options::new();
            let set = ablation.set.iter().map(|setting| setting.parse::<Setting>().unwrap());
            set.for_each(|setting| setting.apply(&mut options).unwrap());
            assert_ne!(options, hedgerow::Options::new(), "{} changes nothing", ablation.name);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), variants().len(), "each has a name of its own");
    }
}
