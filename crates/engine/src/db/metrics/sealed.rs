//! `SealedMetrics`: the keys that left memory for groups on the fast tier, and what looks for them cost.
//!
//! Owns what is known of these. Promises that asking waits for nobody who seals. Must not know how a key is sealed.

use std::sync::Arc;

use crate::db::engine::TableShared;
use crate::log::Log;
use crate::scheduler::gc_state::GcState;

/// Counters and gauges of the part of the index that is on the fast tier ([`Options::seal`](crate::Options::seal)); all zero where it is whole in memory. Counters start at zero when the store is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SealedMetrics {
    /// Rows whose keys are not in memory.
    pub rows: u64,
    /// Groups of keys that there are; one that came by merging is one.
    pub groups: u64,
    /// Bytes of the fast tier that their leaves take, in whole segments: those too that wait for readers.
    pub fast_tier_bytes: u64,
    /// Bytes of DRAM that finds the right leaf; they are part of [`Metrics::index_bytes`](crate::Metrics::index_bytes).
    pub memory_bytes: u64,
    /// Looks for a key that memory did not have.
    pub looks: u64,
    /// Leaves that were looked into for that.
    pub leaves_read: u64,
    /// Keys that left memory.
    pub keys_sealed: u64,
    /// Keys that were written anew when groups were merged.
    pub keys_merged: u64,
}

impl SealedMetrics {
    pub(super) fn of(tables: &[Arc<TableShared>], log: &Log, gc: &GcState) -> SealedMetrics {
        let groups = |table: &Arc<TableShared>| table.levels.groups().newest_first().count() as u64;
        let (looks, leaves_read) = log.leaf_looks();
        let (keys_sealed, keys_merged) = gc.keys_sealed();
        SealedMetrics {
            rows: tables.iter().map(|table| table.levels.sealed_rows()).sum(),
            groups: tables.iter().filter(|table| table.levels.has_groups()).map(groups).sum(),
            fast_tier_bytes: u64::from(log.leaf_extents()) * log.extent_bytes(),
            memory_bytes: tables.iter().map(|table| table.levels.sealed_memory_bytes()).sum(),
            looks,
            leaves_read,
            keys_sealed,
            keys_merged,
        }
    }
}
