//! What an experiment is and what it answers with.
//!
//! Owns the shape of the JSON's results. Promises the units that [`PhaseReport`] and [`Window`] promise. Must not know how
//! anything was measured.

use serde::Serialize;

use super::rig::Rig;
use crate::bench::chart::{Chart, Unit};
use crate::bench::driver::Window;
use crate::bench::report::PhaseReport;
use crate::bench::store::Medium;

/// An experiment of the paper.
pub(super) struct Experiment {
    /// What it is called on the command line and in results.
    pub(super) name: &'static str,
    /// Its heading.
    pub(super) title: &'static str,
    /// What the paper did, and where.
    pub(super) paper: &'static str,
    /// Runs it.
    pub(super) run: fn(&Rig<'_>) -> std::result::Result<Finding, String>,
}

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
    /// What it came to here.
    pub(super) here: f64,
    /// Times, or seconds.
    pub(super) unit: Unit,
    /// What the paper has, as it says it.
    pub(super) paper: Option<&'static str>,
}

impl Factor {
    /// One thing in terms of another.
    pub(super) fn times(
        what: impl Into<String>,
        one: f64,
        other: f64,
        paper: Option<&'static str>,
    ) -> Factor {
        Factor { what: what.into(), here: one / other.max(1e-9), unit: Unit::Times, paper }
    }
}

/// One phase.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Measured {
    /// The store it ran on, or what was set otherwise.
    pub(super) variant: String,
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
