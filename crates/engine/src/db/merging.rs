//! What merges of sorted tables ask of their store.
//!
//! Owns [`TablesForMerge`]. Promises that what a merge is told of a table is as young as what it reads of it. Must not know runs, nor how they are merged.

use std::sync::Arc;

use hedgerow_device::Clock;
use hedgerow_row::schema::table::TableSchema;

use super::catalog::Catalog;
use super::pins::Snapshots;
use crate::Result;
use crate::log::Log;
use crate::runs::merging::MergeStore;
use crate::scheduler::Scheduler;

/// The tables of a store, and who may look at them still.
#[derive(Clone, Copy)]
pub(crate) struct TablesForMerge<'e> {
    pub(super) log: &'e Log,
    pub(super) catalog: &'e Catalog,
    pub(super) snapshots: &'e Snapshots,
    pub(super) clock: &'e Clock,
    pub(super) scheduler: &'e Scheduler,
}

impl MergeStore for TablesForMerge<'_> {
    fn schema(&self, table: u32) -> Option<Arc<TableSchema>> {
        self.catalog.by_id(table).map(|table| table.schema.load_full())
    }

    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn oldest_snapshot(&self) -> Option<u64> {
        self.snapshots.oldest()
    }

    fn persist_tables(&self) -> Result<()> {
        // A change that is under way is waited for: it may be what was seen.
        let (_, sequence) = self.catalog.ids();
        self.log.persist_to(sequence)
    }

    fn is_stopped(&self) -> bool {
        self.scheduler.is_stopped()
    }
}
