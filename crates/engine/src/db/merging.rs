//! What merges of sorted tables ask of their store.
//!
//! Owns [`TablesForMerge`]. Promises that what a merge is told of a table is as young as what it reads of it, and that a merge makes way for moves that writers wait for. Must not
//! know runs, nor how they are merged.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use hedgerow_device::Clock;
use hedgerow_row::schema::table::TableSchema;

use super::catalog::Catalog;
use super::pins::Snapshots;
use crate::Result;
use crate::log::Log;
use crate::runs::merging::MergeStore;
use crate::scheduler::Scheduler;
use crate::scheduler::gc_state::GcState;

/// How often it is asked in the middle of a merge whether there is a file to be brought: that asks how much memory is free.
const BRING_PAUSE_NS: u64 = 100_000_000;
/// The longest pause at once: what merging may use is asked again after it.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The tables of a store, and who may look at them still.
pub(crate) struct TablesForMerge<'e> {
    pub(super) log: &'e Log,
    pub(super) catalog: &'e Catalog,
    pub(super) snapshots: &'e Snapshots,
    pub(super) clock: &'e Clock,
    pub(super) scheduler: &'e Scheduler,
    pub(super) gc: &'e GcState,
    /// Brings a file into memory of which much is read, if it may be done in the middle of a merge: a slice that makes way for moves takes many seconds, and readers wait for the disk meanwhile.
    pub(super) brings: Option<&'e dyn Fn()>,
    /// When it was last asked.
    pub(super) brought_ns: Cell<u64>,
    /// When the merge went on last, on the monotonic clock.
    pub(super) since_ns: Cell<u64>,
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

    fn goes_on(&self) -> bool {
        let now_ns = self.clock.monotonic_ns();
        let pause_ns = self.gc.merge_pause_ns(now_ns.saturating_sub(self.since_ns.get()));
        let goes_on = match pause_ns {
            0 => !self.scheduler.is_stopped(),
            _ => self.scheduler.sleep(Duration::from_nanos(pause_ns).min(PAUSE_MAX)),
        };
        if let Some(bring) = self.brings
            && now_ns.saturating_sub(self.brought_ns.get()) >= BRING_PAUSE_NS
        {
            bring();
            self.brought_ns.set(self.clock.monotonic_ns());
        }
        self.since_ns.set(self.clock.monotonic_ns());
        goes_on
    }
}
