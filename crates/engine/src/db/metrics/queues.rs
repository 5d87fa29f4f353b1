//! `QueueMetrics`: what waits behind writers, and the knobs of the controller.
//!
//! Owns what is known of these. Promises that asking turns no knob. Must not know when one turns.

use crate::scheduler::controller::Controller;

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
}

impl QueueMetrics {
    /// Of groups that wait for a merge there are `groups_owed` times as many as may, and a move takes out `move_bytes` now.
    pub(super) fn of(controller: &Controller, groups_owed: f64, move_bytes: u64) -> QueueMetrics {
        QueueMetrics {
            groups_max: controller.groups_max().into(),
            groups_owed_percent: (groups_owed * 100.0) as u64,
            move_bytes,
            runs_max: controller.runs_max() as u64,
            knob_turns: controller.turns().into(),
        }
    }
}
