//! What an experiment is.
//!
//! Owns [`Experiment`]. Must not know which there are, nor how anything is measured.

use super::finding::Finding;
use super::rig::Rig;

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
