//! `QueueMetrics`: what waits behind writers, the knobs of the controller, and the budget of background I/O.
//!
//! Owns what is known of these. Promises that asking turns no knob. Must not know when one turns.

use crate::scheduler::controller::Controller;
use crate::scheduler::io_budget::{IoBudget, IoTaken};

/// The two queues of background work, and what may wait in each: merges of groups of sealed keys, which take processors, and moves of rows and merges of sorted tables, which take the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueMetrics {
    /// How many groups of a table may wait for a merge before there is one: 16 at rest, 8 to 32 (DecouKV's IMTN).
    pub groups_max: u64,
    /// Of the table that has most of them beside that, in percent: above 100 a merge is wanted, far above they do not keep up.
    pub groups_owed_percent: u64,
    /// Bytes that one move takes out of the log (DecouKV's DFTS).
    pub move_bytes: u64,
    /// How many runs of sorted tables there may be before some are merged: 8 at rest, up to 32.
    pub runs_max: u64,
    /// How often one of these knobs turned since the store was opened.
    pub knob_turns: u64,
    /// Bytes a second that moves and merges of sorted tables may take ([`Options::io_bytes_per_s`](crate::Options::io_bytes_per_s)); 0: as many as there are.
    pub io_bytes_per_s: u64,
    /// Bytes that moves wrote, and that merges read and wrote, about.
    pub io_bytes: u64,
    /// Those of them that were taken while the budget was spent, because writers would have waited: much more than none for long says that it is too small for what is written.
    pub io_bytes_beyond: u64,
    /// How long merges waited for the budget, and moves were put off for it, in ns.
    pub io_waited_ns: u64,
}

impl QueueMetrics {
    /// Of groups that wait for a merge there are `groups_owed` times as many as may, and a move takes out `move_bytes` now.
    pub(super) fn of(
        (controller, budget): (&Controller, &IoBudget),
        groups_owed: f64,
        move_bytes: u64,
    ) -> QueueMetrics {
        let IoTaken { bytes, beyond, waited_ns } = budget.taken();
        QueueMetrics {
            groups_max: controller.groups_max().into(),
            groups_owed_percent: (groups_owed * 100.0) as u64,
            move_bytes,
            runs_max: controller.runs_max() as u64,
            knob_turns: controller.turns().into(),
            io_bytes_per_s: budget.bytes_per_s().unwrap_or(0),
            io_bytes: bytes,
            io_bytes_beyond: beyond,
            io_waited_ns: waited_ns,
        }
    }
}
