//! Rows of a hundred small fields: what the layout is worth where a field is a hundredth of its row.
//!
//! Owns the experiment's entry. Must not know how phases are run.

use super::access;
use crate::bench::paper::experiment::Experiment;
use crate::bench::row::RowShape;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "wide",
    title: "Rows of 100 fields",
    paper: "The six operations of figures 10 and 11 on rows of 100 fields of 10 bytes; the paper has ten fields of 100 bytes.",
    run: |rig| access::measure(rig, SHAPE),
};

const SHAPE: RowShape = RowShape { fields: 100, field_bytes: 10 };
