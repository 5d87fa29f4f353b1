//! What an experiment is, and a suite of them.
//!
//! Owns [`Experiment`] and [`PaperSuite`]. Must not know which there are, nor how anything is measured.

use super::finding::Finding;
use super::rig::Rig;

/// An experiment of a paper.
pub(in crate::bench) struct Experiment {
    /// What it is called on the command line and in results.
    pub(in crate::bench) name: &'static str,
    /// Its heading.
    pub(in crate::bench) title: &'static str,
    /// What the paper did, and where.
    pub(in crate::bench) paper: &'static str,
    /// Runs it. What it measured before it failed is told all the same.
    pub(in crate::bench) run: fn(&Rig<'_>) -> std::result::Result<Finding, String>,
}

/// Experiments that are run and told together.
pub(in crate::bench) struct PaperSuite {
    /// What it is called on the command line.
    pub(in crate::bench) name: &'static str,
    /// The heading of the report.
    pub(in crate::bench) title: &'static str,
    /// What to know before its factors are read beside the papers'.
    pub(in crate::bench) caution: &'static str,
    /// Numbers of threads to scale over, if nobody says others.
    pub(in crate::bench) threads: &'static [usize],
    /// In the order of the report.
    pub(in crate::bench) experiments: &'static [Experiment],
}

impl PaperSuite {
    /// The experiment of that name.
    pub(in crate::bench) fn find(&self, name: &str) -> std::result::Result<&'static Experiment, String> {
        self.experiments.iter().find(|experiment| experiment.name == name).ok_or_else(|| {
            let names: Vec<_> = self.experiments.iter().map(|experiment| experiment.name).collect();
            format!("there is no experiment {name}; there are {}", names.join(", "))
        })
    }
}
