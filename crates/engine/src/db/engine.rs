//! What is behind a `Db`: the log, the tables with their indexes, and what watches over them.

use std::path::{Path, absolute};
use std::sync::Arc;

use hedgerow_device::{CapacityTier, Clock};
use hedgerow_row::schema::table::FieldAccess;

use super::catalog::Catalog;
use super::counters::Counters;
use super::disk_waits::DiskWaits;
use super::pins::{BackupPins, Snapshots};
use super::recover::Recovery;
pub(crate) use super::shared_table::TableShared;
use super::tiers::Tiers;
use crate::cache::{Cache, check_options};
use crate::epoch::Epoch;
use crate::index::{NodeArena, Slot};
use crate::log::{Log, OpenState};
use crate::runs::{CapacityPlace, Runs, RunsSettings};
use crate::scheduler::Scheduler;
use crate::scheduler::controller::FixedKnobs;
use crate::scheduler::gc_state::GcState;
use crate::scheduler::io_budget::IoBudget;
use crate::scheduler::merge_queue::MergeQueue;
use crate::scheduler::reorder_queue::ReorderQueue;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::{Capacity, Durability, Error, ErrorKind, Options, Result};

/// One open store.
pub(crate) struct Engine {
    pub(crate) log: Log,
    pub(crate) epoch: Arc<Epoch>,
    pub(crate) arena: Arc<NodeArena>,
    pub(crate) catalog: Catalog,
    /// What lies below the log.
    pub(crate) runs: Runs,
    pub(crate) options: Options,
    /// A record is made durable before its publication: what the durability mode asks of a medium where that costs cache lines.
    pub(crate) persists_in_place: bool,
    /// Rows are written so that deltas can be merged into them in place.
    pub(crate) merges_in_place: bool,
    pub(crate) clock: Clock,
    pub(crate) counters: Counters,
    pub(crate) disk_waits: DiskWaits,
    pub(crate) snapshots: Snapshots,
    pub(crate) backups: BackupPins,
    pub(crate) gc: GcState,
    pub(crate) io_budget: IoBudget,
    pub(crate) merge_queue: MergeQueue,
    pub(crate) reorder_queue: ReorderQueue,
    pub(crate) cache: Cache,
    pub(crate) scheduler: Scheduler,
    /// It was opened by a saved index, or by a checkpoint of it.
    pub(super) index_was_saved: AtomicBool,
    pub(super) index_was_checkpointed: AtomicBool,
    /// Checkpoints of the index that were taken, and the number of the segment with which the next is due.
    pub(super) index_checkpoints: AtomicU64,
    pub(super) next_checkpoint: AtomicU64,
}

impl Engine {
    /// Opens a store on its tiers: root, catalog, sorted tables, replay. Starts no threads.
    pub(crate) fn open(tiers: impl Into<Tiers>, options: Options, clock: Clock) -> Result<Engine> {
        let threads = options.opening_threads();
        let (engine, found) = Engine::load(tiers, options, clock)?;
        if !engine.open_saved(&found, threads)? && !engine.open_checkpointed(&found, threads)? {
            engine.recovery().run(&found, threads)?;
        }
        engine.arena.is_opened();
        engine.settle_runs()?;
        Ok(engine)
    }

    /// The part of opening before the log is replayed: root, segment headers, catalog, sorted tables.
    pub(crate) fn load(
        tiers: impl Into<Tiers>,
        options: Options,
        clock: Clock,
    ) -> Result<(Engine, OpenState)> {
        let tiers = tiers.into();
        if !(1..=Slot::DEPTH_MAX).contains(&options.delta_chain_max) {
            return Err(Error::invalid(format!(
                "delta_chain_max is {}; it must be from 1 to {}",
                options.delta_chain_max,
                Slot::DEPTH_MAX
            )));
        }
        check_options(&options)?;
        FixedKnobs::new(options.run_eighths, options.groups_max)?;
        let (log, found) = Log::open(tiers.fast, &options, clock.clone())?;
        let runs = Runs::open(
            &log,
            place_of(tiers.capacity, tiers.directory.as_deref(), &options),
            RunsSettings::of(&options),
        )?;
        Ok((Engine::over(log, runs, options, clock, Catalog::load)?, found))
    }

    /// [`Engine::load`] of what is left of a damaged store, and what is wrong with it.
    pub(crate) fn load_damaged(
        tiers: impl Into<Tiers>,
        options: Options,
        clock: Clock,
    ) -> Result<(Engine, OpenState, Vec<Error>)> {
        let tiers = tiers.into();
        let (log, found, mut damage) = Log::open_damaged(tiers.fast, &options, clock.clone())?;
        let runs = Runs::open(
            &log,
            place_of(tiers.capacity, tiers.directory.as_deref(), &options),
            RunsSettings::of(&options),
        );
        let runs = runs.unwrap_or_else(|error| {
            damage.push(error);
            Runs::default()
        });
        let engine = Engine::over(log, runs, options, clock, |log, arena, epoch, access| {
            let (catalog, error) = Catalog::salvage(log, arena, epoch, access);
            damage.extend(error);
            Ok(catalog)
        })?;
        Ok((engine, found, damage))
    }

    fn over(
        log: Log,
        runs: Runs,
        options: Options,
        clock: Clock,
        catalog: impl FnOnce(&Log, &Arc<NodeArena>, &Arc<Epoch>, FieldAccess) -> Result<Catalog>,
    ) -> Result<Engine> {
        let cache = Cache::new(&options, !log.tier().is_read_only());
        let epoch = Arc::clone(log.epoch());
        let arena = NodeArena::new(options.index_bytes_max)
            .map_err(|error| Error::io("cannot reserve memory for the index", error))?;
        arena.prefer_huge_pages();
        let arena = Arc::new(arena);
        let access = FieldAccess { by_offset: options.schema_layout, early_stop: options.early_stop };
        let catalog = catalog(&log, &arena, &epoch, access)?;
        let merge_queue = MergeQueue::new(options.merge, !options.background);
        let reorder_queue = ReorderQueue::new(options.merge && options.reorder);
        let flush_is_cheap = log.tier().flush_is_cheap();
        let gc = GcState::with(FixedKnobs::new(options.run_eighths, options.groups_max)?);
        let io_budget = IoBudget::new(options.io_bytes_per_s)?;
        Ok(Engine {
            log,
            epoch,
            arena,
            catalog,
            runs,
            persists_in_place: options.durability == Durability::Immediate && flush_is_cheap,
            merges_in_place: options.swim && flush_is_cheap,
            options,
            clock,
            counters: Counters::default(),
            disk_waits: DiskWaits::default(),
            snapshots: Snapshots::default(),
            backups: BackupPins::default(),
            gc,
            io_budget,
            merge_queue,
            reorder_queue,
            cache,
            scheduler: Scheduler::default(),
            index_was_saved: AtomicBool::new(false),
            index_was_checkpointed: AtomicBool::new(false),
            index_checkpoints: AtomicU64::new(0),
            next_checkpoint: AtomicU64::new(0),
        })
    }

    /// Brings what lies below the log together with what was replayed: what nothing names is removed, what no table has does not count any more, and tables know whether
    /// they have something there.
    fn settle_runs(&self) -> Result<()> {
        if !self.log.tier().is_read_only() {
            self.runs.remove_unnamed(&self.log)?;
            match self.remove_garbage_runs() {
                // For want of room nothing is changed. What is garbage stays, and is asked for by nobody.
                Err(error) if error.kind() == ErrorKind::Full && self.log.check_writable().is_ok() => {}
                removed => removed?,
            }
        }
        self.mark_below();
        Ok(())
    }

    /// Takes sorted tables off that have nothing but rows of tables which were dropped or cleared.
    pub(crate) fn remove_garbage_runs(&self) -> Result<()> {
        let has_removed = self.runs.remove_tables(&self.log, || {
            let (ids, sequence) = self.catalog.ids();
            (move |id| ids.contains(&id), sequence)
        })?;
        if has_removed {
            // A move may have failed for want of what they took.
            self.gc.may_move_again();
        }
        Ok(())
    }

    /// The same, if a table was dropped or cleared since. It takes syncs, and a file each to be removed: whoever changed the table waits for none of that where a thread does it.
    pub(super) fn remove_runs_of_tables_gone(&self) {
        if self.runs.take_tables_gone() && self.remove_garbage_runs().is_err() {
            // For want of room, perhaps, which there may be later.
            self.runs.record_tables_gone();
        }
    }

    /// Has tables that were opened know whether some of their rows may be in sorted tables.
    pub(super) fn mark_below(&self) {
        let runs = self.runs.current();
        for table in self.catalog.all() {
            table.set_below(runs.of_table(table.id.load(Ordering::Relaxed)).is_some());
        }
    }

    /// Whether rows leave the log for sorted tables once room is short: there is a place for these, and something bounds the store.
    #[inline]
    pub(crate) fn may_move(&self) -> bool {
        let takes_files = self.runs.has_place() && self.options.capacity_bytes_max > 0;
        takes_files && self.options.is_bounded() && !self.log.tier().is_read_only()
    }

    /// What fills the indexes from the log.
    pub(super) fn recovery(&self) -> Recovery<'_> {
        Recovery {
            log: &self.log,
            catalog: &self.catalog,
            runs: &self.runs,
            persists_in_place: self.persists_in_place,
            seal: self.seal_at_opening(),
        }
    }

    /// Frees index memory that nobody can see any more; whether there was any. Holding no guard, or it may be kept back.
    pub(crate) fn free_garbage(&self) -> bool {
        let before = self.arena.bytes();
        // The epoch must move on twice before what was unlinked in it goes.
        for _ in 0..3 {
            self.epoch.collect();
        }
        self.arena.bytes() < before
    }

    /// Makes everything written so far durable, and writes that down in the root, which holds all tables as they are then.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.log.check_writable()?;
        self.log.persist_checkpointed(self.log.last_sequence())?;
        self.catalog.checkpoint(&self.log)
    }

    /// Makes everything durable and marks the store as closed in order.
    pub(crate) fn close(&self) -> Result<()> {
        self.scheduler.stop();
        self.remove_runs_of_tables_gone();
        self.runs.remove_dropped();
        // What waits for nobody any more is free then, and need not be remembered.
        drop(self.free_what_was_emptied());
        let stored = self.catalog.checkpoint(&self.log);
        // Nobody frees a segment whose header is written. Threads have ended, but whoever has the store may collect by hand.
        let alone = self.gc.lock.write();
        // What was changed since, by whoever still had a table, is in the log alone and counts from there.
        self.log.close(|| self.catalog.has_logged_changes()).and(stored)?;
        drop(alone);
        // What a checkpoint kept may be what there is too little of.
        self.log.forget_checkpoint();
        self.log.free_retired_leaves();
        // Without it the log is walked.
        drop(self.save_index());
        Ok(())
    }
}

/// Where sorted tables of the store in the directory `store` are: nowhere if the options say so, else on the tier that was given, or in a directory.
fn place_of(given: Option<CapacityTier>, store: Option<&Path>, options: &Options) -> CapacityPlace {
    match (given, options.capacity.directory(store)) {
        _ if options.capacity == Capacity::None => CapacityPlace::Nowhere,
        (Some(tier), _) => CapacityPlace::Opened(tier),
        // It may be made much later, when the process works elsewhere.
        (None, Some(path)) => CapacityPlace::Directory(absolute(&path).unwrap_or(path)),
        (None, None) => CapacityPlace::Nowhere,
    }
}
