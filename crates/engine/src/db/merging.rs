//! What merges of sorted tables ask of their store.
//!
//! Owns [`TablesForMerge`]. Promises that what a merge is told of a table is as young as what it reads of it, that a merge makes way for moves that writers wait for, and keeps within the budget of background I/O where nobody waits for it. Must not
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
use crate::scheduler::io_budget::IoBudget;

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
    pub(super) budget: &'e IoBudget,
    /// Whether what is merged may wait until the budget is paid, where it may at all: nobody waits for what is merged.
    pub(super) may_wait: Option<&'e dyn Fn() -> bool>,
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

    fn took(&self, bytes: u64) {
        let now_ns = self.clock.monotonic_ns();
        match self.may_wait {
            Some(may_wait) if !may_wait() => self.budget.take_in_spite(bytes, now_ns),
            _ => self.budget.take(bytes, now_ns),
        }
    }

    fn goes_on(&self) -> bool {
        self.makes_way() && self.waits_for_budget()
    }
}

impl TablesForMerge<'_> {
    /// Pauses where moves are what writers wait for.
    fn makes_way(&self) -> bool {
        let now_ns = self.clock.monotonic_ns();
        let pause_ns = self.gc.merge_pause_ns(now_ns.saturating_sub(self.since_ns.get()));
        let goes_on = match pause_ns {
            0 => !self.scheduler.is_stopped(),
            _ => self.scheduler.sleep(Duration::from_nanos(pause_ns).min(PAUSE_MAX)),
        };
        self.bring_now_and_then(now_ns);
        self.since_ns.set(self.clock.monotonic_ns());
        goes_on
    }

    /// Waits until what was read and written is paid, unless somebody waits for this merge. It holds no lock that anybody waits for.
    fn waits_for_budget(&self) -> bool {
        let Some(may_wait) = self.may_wait else { return true };
        let mut now_ns = self.clock.monotonic_ns();
        loop {
            let owed_ns = self.budget.owed_ns(now_ns);
            if owed_ns == 0 || !may_wait() {
                return true;
            }
            if !self.scheduler.sleep(Duration::from_nanos(owed_ns).min(PAUSE_MAX)) {
                return false;
            }
            let before_ns = std::mem::replace(&mut now_ns, self.clock.monotonic_ns());
            self.budget.waited(now_ns.saturating_sub(before_ns));
            self.bring_now_and_then(now_ns);
            self.since_ns.set(self.clock.monotonic_ns());
        }
    }

    fn bring_now_and_then(&self, now_ns: u64) {
        if let Some(bring) = self.brings
            && now_ns.saturating_sub(self.brought_ns.get()) >= BRING_PAUSE_NS
        {
            bring();
            self.brought_ns.set(self.clock.monotonic_ns());
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use hedgerow_device::{CapacityTier, CrashModel, CrashSim, FastTier};
    use hedgerow_sim::eventually;

    use super::*;
    use crate::db::engine::Engine;
    use crate::db::fixture::options;
    use crate::runs::merging::{MergeJob, Merged};
    use crate::{Compression, Db, Options, Schema, row};

    const MIB: u64 = 1 << 20;

    /// A store with runs of 4,000 rows of 1,000 bytes, each twice.
    fn open(clock: &Clock, io_bytes_per_s: Option<u64>) -> Db {
        let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
        let options = Options {
            fast_tier_bytes_max: 16 << 20,
            compression: Compression::None,
            io_bytes_per_s,
            ..options()
        };
        let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
        let db = Db::open_at(tiers, options, clock.clone()).unwrap();
        let table = db.create_table("t", Schema::open()).unwrap();
        for round in 0..2u8 {
            (0..4_000u64).for_each(|n| table.put(&n, &row! { f: [round; 1_000].as_slice() }).unwrap());
            // One takes an eighth of the tier.
            (0..4).for_each(|_| db.engine().move_now());
        }
        db
    }

    /// Merges all, waiting for the budget as long as nobody waits for the merge.
    fn merge(engine: &Engine, may_wait: &dyn Fn() -> bool) -> Merged {
        let runs = engine.runs.current().runs().iter().map(|run| run.number).collect();
        let mut job = MergeJob { runs, from: Vec::new(), upto: None };
        let tables = TablesForMerge { may_wait: Some(may_wait), ..engine.tables_for_merge() };
        loop {
            match engine.runs.merge_slice(&engine.log, &mut job, &tables).unwrap() {
                Merged::Slice => {}
                ended => return ended,
            }
        }
    }

    #[test]
    fn what_is_merged_keeps_to_the_budget() {
        let clock = Clock::manual(1_000);
        let db = open(&clock, Some(4 * MIB));
        let (engine, is_over) = (db.engine(), AtomicBool::new(false));
        // What the moves took is paid.
        clock.advance_ms(60_000);
        let (before, begun_ns) = (engine.io_budget.taken(), clock.monotonic_ns());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    clock.advance_ms(5);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            assert_eq!(merge(engine, &|| true), Merged::Nothing);
            is_over.store(true, Ordering::SeqCst);
        });
        let (taken, took_ns) = (engine.io_budget.taken(), clock.monotonic_ns() - begun_ns);
        let bytes = taken.bytes - before.bytes;
        assert!(bytes > 9 * MIB, "{bytes} were read and written");
        // The last pieces are paid by whoever comes next.
        let most = 4 * MIB * took_ns / 1_000_000_000 + MIB;
        assert!(bytes <= most, "{bytes} in {took_ns} ns");
        assert!(taken.waited_ns > 1_000_000_000 && taken.beyond == before.beyond, "{taken:?}");
        assert_eq!(engine.runs.current().runs().len(), 1);
    }

    /// The clock stands: it would wait for ever.
    #[test]
    fn a_merge_that_somebody_waits_for_does_not_wait() {
        let db = open(&Clock::manual(1_000), Some(64 << 10));
        assert_eq!(merge(db.engine(), &|| false), Merged::Nothing);
        assert!(db.metrics().queues.io_bytes_beyond > 8 * MIB);
        let by_hand = open(&Clock::manual(1_000), Some(64 << 10));
        by_hand.collect().unwrap();
    }

    #[test]
    fn a_merge_that_waits_ends_with_the_store() {
        let db = open(&Clock::manual(1_000), Some(64 << 10));
        let (engine, asked) = (db.engine(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let may_wait = || {
                asked.store(true, Ordering::SeqCst);
                true
            };
            let merging = scope.spawn(move || merge(engine, &may_wait));
            eventually("it waits", || asked.load(Ordering::SeqCst));
            assert!(!merging.is_finished());
            engine.scheduler.stop();
            assert_eq!(merging.join().unwrap(), Merged::Stopped);
        });
    }
}
