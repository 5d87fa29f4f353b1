//! How the charts of this suite look, and what all of its experiments do alike.
//!
//! Owns the common shape of charts and stores. Must not know what is measured.

use super::bound::Bound;
use crate::bench::distribution::Distribution;
use crate::bench::paper::finding::Finding;
use crate::bench::paper::rig::{Layout, Rig, Run, Subject};
use crate::bench::row::RowShape;
use crate::bench::workload::Workload;

/// A new store with a bound on its fast tier, loaded with so many records, and called so.
pub(super) fn loaded<'a>(
    rig: &'a Rig<'a>,
    (bound, shape, records): (Bound, RowShape, u64),
    name: String,
    finding: &mut Finding,
) -> Result<Subject<'a>, String> {
    let mut subject = rig.open(Layout::Rows, shape, bound.options(rig, shape, records)?)?;
    subject.call(name);
    subject.hold(records);
    subject.load(finding)?;
    Ok(subject)
}

/// Runs a phase on keys that are chosen alike.
pub(super) fn uniform(subject: &mut Subject<'_>, phase: &str, finding: &mut Finding) -> Result<(), String> {
    let run = Run { distribution: Some(Distribution::Uniform), ..Run::default() };
    subject.run(Workload::find(phase)?, run, finding)
}
