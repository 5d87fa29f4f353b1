//! What an experiment answers with.
//!
//! Owns the shape of the JSON's results. Promises the units that [`PhaseReport`] and [`Window`] promise. Must not know how
//! anything was measured.

use serde::Serialize;

use crate::bench::chart::{Chart, Unit};
use crate::bench::driver::Window;
use crate::bench::report::PhaseReport;
use crate::store_url::Medium;

/// What an experiment found.
#[derive(Debug, Default)]
pub(super) struct Finding {
    /// For the eye.
    pub(super) figures: Vec<Figure>,
    /// To compare with the paper.
    pub(super) factors: Vec<Factor>,
    /// Everything that was measured.
    pub(super) phases: Vec<Measured>,
    /// What went wrong: the rest is told all the same.
    pub(super) failures: Vec<String>,
}

/// One or several charts about one thing.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figure {
    /// Its name.
    pub(super) title: String,
    /// What to see in it, in one sentence.
    pub(super) see: String,
    /// What it was measured with.
    pub(super) settings: String,
    /// What the paper says to it, if it does.
    pub(super) paper: Option<&'static str>,
    /// The charts.
    pub(super) charts: Vec<Chart>,
}

/// One number to compare with the paper's.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Factor {
    /// Of what.
    pub(super) what: String,
    /// What it came to here: the median of the rounds.
    pub(super) here: f64,
    /// The least of them.
    pub(super) least: f64,
    /// The most.
    pub(super) most: f64,
    /// How many there were.
    pub(super) rounds: usize,
    /// In how many of them others used the machine in some phase of the experiment.
    pub(super) disturbed: usize,
    /// Times, or seconds.
    pub(super) unit: Unit,
    /// What the paper has, as it says it.
    pub(super) paper: Option<&'static str>,
}

impl Factor {
    /// A number of one round.
    pub(super) fn new(what: impl Into<String>, here: f64, unit: Unit, paper: Option<&'static str>) -> Factor {
        Factor { what: what.into(), here, least: here, most: here, rounds: 1, disturbed: 0, unit, paper }
    }

    /// What a person reads: the median, the range of several rounds, and a star where others used the machine.
    pub(super) fn text(&self) -> String {
        let show = |number| self.unit.show(number);
        let range = match self.rounds {
            0 | 1 => String::new(),
            _ => format!(" ({} to {})", show(self.least), show(self.most)),
        };
        let star = if self.disturbed > 0 { "*" } else { "" };
        format!("{}{range}{star}", show(self.here))
    }

    /// One thing in terms of another.
    pub(super) fn times(
        what: impl Into<String>,
        one: f64,
        other: f64,
        paper: Option<&'static str>,
    ) -> Factor {
        Factor::new(what, one / other.max(1e-9), Unit::Times, paper)
    }
}

/// One phase.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Measured {
    /// The store it ran on, or what was set otherwise.
    pub(super) variant: String,
    /// Of how many times it was run, this is one; from 1.
    pub(super) round: usize,
    /// Others used the machine meanwhile.
    pub(super) disturbed: bool,
    #[serde(flatten)]
    pub(super) report: PhaseReport,
    /// Bytes put into the log, by the engine's account, to a segment.
    pub(super) log_bytes: u64,
    /// Reads that found their row in the cache, of those there were while it was in use.
    pub(super) hit_ratio: Option<f64>,
    /// Its course, where that was looked at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) windows: Vec<Window>,
}

impl Finding {
    /// The findings of several rounds as one: medians and ranges, the figures of the round that was disturbed least.
    pub(super) fn of_rounds(rounds: Vec<Finding>) -> Finding {
        let disturbed = |finding: &Finding| finding.phases.iter().filter(|phase| phase.disturbed).count();
        let mut whole = Finding::default();
        if let Some(calmest) =
            rounds.iter().min_by_key(|finding| (finding.failures.len(), disturbed(finding)))
        {
            whole.figures.clone_from(&calmest.figures);
        }
        let disturbed_rounds = rounds.iter().filter(|finding| disturbed(finding) > 0).count();
        for factor in rounds.iter().flat_map(|finding| &finding.factors) {
            if whole.factors.iter().any(|other| other.what == factor.what) {
                continue;
            }
            let same = rounds.iter().flat_map(|finding| &finding.factors).filter(|f| f.what == factor.what);
            let mut numbers: Vec<f64> = same.map(|factor| factor.here).collect();
            numbers.sort_by(f64::total_cmp);
            let middle = |at: usize| numbers[at.min(numbers.len() - 1)];
            let here = (middle((numbers.len() - 1) / 2) + middle(numbers.len() / 2)) / 2.0;
            let (least, most) = (numbers[0], numbers[numbers.len() - 1]);
            let rounds = numbers.len();
            whole.factors.push(Factor {
                here,
                least,
                most,
                rounds,
                disturbed: disturbed_rounds,
                ..factor.clone()
            });
        }
        for (at, finding) in rounds.into_iter().enumerate() {
            whole.failures.extend(finding.failures);
            whole.phases.extend(finding.phases.into_iter().map(|phase| Measured { round: at + 1, ..phase }));
        }
        whole
    }

    /// The phase of a variant, which was run.
    pub(super) fn phase(&self, variant: &str, phase: &str) -> Option<&Measured> {
        self.phases.iter().find(|measured| measured.variant == variant && measured.report.phase == phase)
    }

    /// Operations a second of a phase; no number if it was not run.
    pub(super) fn rate(&self, variant: &str, phase: &str) -> f64 {
        self.phase(variant, phase).map_or(f64::NAN, |measured| measured.report.ops_per_s)
    }
}

/// An experiment's finding on a medium.
#[derive(Debug, Serialize)]
pub(super) struct Result {
    pub(super) experiment: &'static str,
    pub(super) title: &'static str,
    #[serde(skip)]
    pub(super) paper: &'static str,
    pub(super) medium: Medium,
    pub(super) failures: Vec<String>,
    pub(super) factors: Vec<Factor>,
    pub(super) figures: Vec<Figure>,
    pub(super) phases: Vec<Measured>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(here: f64) -> Finding {
        Finding { factors: vec![Factor::new("reads", here, Unit::Times, Some("2x"))], ..Finding::default() }
    }

    #[test]
    fn rounds_become_a_median_with_its_range() {
        let whole = Finding::of_rounds([1.5, 1.1, 4.0].map(round).into());
        assert_eq!((whole.factors.len(), whole.factors[0].rounds), (1, 3));
        assert_eq!(whole.factors[0].text(), "1.50x (1.10x to 4.00x)");
        let two = Finding::of_rounds([1.0, 2.0].map(round).into());
        assert_eq!((two.factors[0].here, two.factors[0].paper), (1.5, Some("2x")));
        assert_eq!(Finding::of_rounds(vec![round(1.5)]).factors[0].text(), "1.50x");
        let disturbed = Factor { disturbed: 1, ..Factor::new("hits", 0.5, Unit::Share, None) };
        assert_eq!(disturbed.text(), "50 %*");
    }
}
