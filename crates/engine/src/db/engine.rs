//! What is behind a `Db`: the log, the tables with their indexes, and what watches over them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use hedgerow_device::{Clock, FastTier};
use parking_lot::Mutex;

use super::backup::BackupPins;
use super::cached::check_options;
use super::catalog::Catalog;
use super::expiry::TableExpiry;
use super::metrics::Counters;
use crate::cache::{Cache, Traffic};
use crate::consolidate::Consolidation;
use crate::gc::Gc;
use crate::gc::reorder::Reordering;
use crate::index::{Epoch, Guard, IndexFull, NodeArena, RowIndex, Slot};
use crate::log::{Log, OpenState};
use crate::scheduler::Scheduler;
use crate::schema::table::{FieldAccess, TableSchema};
use crate::{Durability, Error, ErrorKind, Options, Result};

/// One open store.
pub(crate) struct Engine {
    pub(crate) log: Log,
    pub(crate) epoch: Arc<Epoch>,
    pub(crate) arena: Arc<NodeArena>,
    pub(crate) catalog: Catalog,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) counters: Counters,
    /// How often readers found what they touched not in memory, as far as they looked.
    pub(crate) waits_for_disk: AtomicU64,
    /// The tier reads ahead of who waits: until memory turns out to be less than the data.
    pub(crate) reads_ahead: AtomicBool,
    pub(crate) snapshots: Snapshots,
    pub(crate) backups: BackupPins,
    pub(crate) gc: Gc,
    pub(crate) consolidation: Consolidation,
    pub(crate) reordering: Reordering,
    pub(crate) cache: Cache,
    pub(crate) scheduler: Scheduler,
}

/// A table as all its handles share it.
pub(crate) struct TableShared {
    /// Of the table's rows in the log. Changes when the table is cleared.
    pub(crate) id: AtomicU32,
    pub(crate) name: Arc<str>,
    pub(crate) schema: ArcSwap<TableSchema>,
    pub(crate) index: RowIndex,
    /// Of its rows with an expiry.
    pub(crate) expiry: TableExpiry,
    pub(crate) dropped: AtomicBool,
    /// For the cache's policy.
    pub(crate) traffic: Traffic,
}

impl TableShared {
    pub(crate) fn new(id: u32, name: &str, schema: TableSchema, index: RowIndex) -> TableShared {
        TableShared {
            id: AtomicU32::new(id),
            name: name.into(),
            schema: ArcSwap::from_pointee(schema),
            index,
            expiry: TableExpiry::default(),
            dropped: AtomicBool::new(false),
            traffic: Traffic::default(),
        }
    }

    /// The table's id in the log, for a write. Call with an appender locked: clearing and dropping lock all appenders.
    #[inline]
    pub(crate) fn id_for_write(&self) -> Result<u32> {
        self.check_there()?;
        Ok(self.id.load(Ordering::Acquire))
    }

    /// `NotFound` for a table that was dropped.
    #[inline]
    pub(crate) fn check_there(&self) -> Result<()> {
        if self.dropped.load(Ordering::Acquire) { Err(self.gone()) } else { Ok(()) }
    }

    #[cold]
    fn gone(&self) -> Error {
        Error::new(ErrorKind::NotFound, format!("the table {:?} has been dropped", self.name))
    }

    /// Rows, as the index counts them.
    pub(crate) fn rows(&self) -> u64 {
        self.index.len()
    }
}

impl Engine {
    /// Opens a store on a tier: root, catalog, replay. Starts no threads.
    pub(crate) fn open(tier: Arc<FastTier>, options: Options, clock: Clock) -> Result<Engine> {
        let threads = options.recovery_threads.max(1);
        let (engine, found) = Engine::load(tier, options, clock)?;
        engine.recover(&found, threads)?;
        Ok(engine)
    }

    /// The part of opening before the log is replayed: root, segment headers, catalog.
    pub(crate) fn load(tier: Arc<FastTier>, options: Options, clock: Clock) -> Result<(Engine, OpenState)> {
        if !(1..=Slot::DEPTH_MAX).contains(&options.delta_chain_max) {
            return Err(Error::invalid(format!(
                "delta_chain_max is {}; it must be from 1 to {}",
                options.delta_chain_max,
                Slot::DEPTH_MAX
            )));
        }
        check_options(&options)?;
        let (log, found) = Log::open(tier, &options, clock.clone())?;
        Ok((Engine::over(log, options, clock, Catalog::load)?, found))
    }

    /// [`Engine::load`] of what is left of a damaged store, and what is wrong with it.
    pub(crate) fn load_damaged(
        tier: Arc<FastTier>,
        options: Options,
        clock: Clock,
    ) -> Result<(Engine, OpenState, Vec<Error>)> {
        let (log, found, mut damage) = Log::open_damaged(tier, &options, clock.clone())?;
        let engine = Engine::over(log, options, clock, |log, arena, epoch, access| {
            let (catalog, error) = Catalog::salvage(log, arena, epoch, access);
            damage.extend(error);
            Ok(catalog)
        })?;
        Ok((engine, found, damage))
    }

    fn over(
        log: Log,
        options: Options,
        clock: Clock,
        catalog: impl FnOnce(&Log, &Arc<NodeArena>, &Arc<Epoch>, FieldAccess) -> Result<Catalog>,
    ) -> Result<Engine> {
        let cache = Cache::new(&options, !log.tier().is_read_only());
        let epoch = Arc::new(Epoch::new());
        let arena = NodeArena::new(options.index_bytes_max).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot reserve memory for the index: {error}"))
        })?;
        arena.prefer_huge_pages();
        let arena = Arc::new(arena);
        let access = FieldAccess { by_offset: options.schema_layout, early_stop: options.early_stop };
        let catalog = catalog(&log, &arena, &epoch, access)?;
        let consolidation = Consolidation::new(options.merge, !options.background);
        let reordering = Reordering::new(options.merge && options.reorder);
        Ok(Engine {
            log,
            epoch,
            arena,
            catalog,
            options,
            clock,
            counters: Counters::default(),
            waits_for_disk: AtomicU64::new(0),
            reads_ahead: AtomicBool::new(true),
            snapshots: Snapshots::default(),
            backups: BackupPins::default(),
            gc: Gc::default(),
            consolidation,
            reordering,
            cache,
            scheduler: Scheduler::default(),
        })
    }

    #[inline]
    pub(crate) fn pin(&self) -> Guard<'_> {
        self.epoch.pin()
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

    /// Does what the durability mode asks for, after a write of `sequence` was published and its appender let go.
    #[inline]
    pub(crate) fn make_durable(&self, sequence: u64) -> Result<()> {
        match self.options.durability {
            Durability::Immediate if self.log.tier().flush_is_cheap() => {
                // The record itself was made durable before it was published. Everything before it must be, too, or
                // recovery would cut the log in front of it.
                self.log.barrier();
                // Closed, or a medium that refused: then only a sync that came after all can say that it is durable.
                if self.log.check_writable().is_err() { self.log.persist_to(sequence) } else { Ok(()) }
            }
            Durability::Immediate => self.log.persist_to(sequence),
            Durability::Interval(_) | Durability::Process => Ok(()),
        }
    }

    /// Makes everything written so far durable, and writes that down in the root, which holds all tables as they are then.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.log.check_writable()?;
        self.log.persist_checkpointed(self.log.last_sequence())?;
        self.checkpoint_catalog()
    }

    /// Makes everything durable and marks the store as closed in order.
    pub(crate) fn close(&self) -> Result<()> {
        self.scheduler.stop();
        let stored = self.checkpoint_catalog();
        // What was changed since, by whoever still had a table, is in the log alone and counts from there.
        self.log.close(|| self.has_logged_changes()).and(stored)
    }

    /// Whether a record must be durable before its publication.
    #[inline]
    pub(crate) fn persists_in_place(&self) -> bool {
        self.options.durability == Durability::Immediate && self.log.tier().flush_is_cheap()
    }
}

/// The error for a full index.
#[cold]
pub(crate) fn index_full(_: IndexFull) -> Error {
    Error::new(ErrorKind::Full, "the index has reached index_bytes_max; reads, overwrites and deletes go on")
}

/// The live snapshots, by sequence.
#[derive(Default)]
pub(crate) struct Snapshots {
    live: Mutex<BTreeMap<u64, Held>>,
    /// How many are held, and being taken.
    held: AtomicU64,
}

/// How many hold a snapshot, and when it was taken.
#[derive(Clone, Copy)]
struct Held {
    count: usize,
    since_ms: u64,
}

impl Snapshots {
    /// Takes a snapshot. The registry is locked meanwhile, so that [`Snapshots::oldest`] never misses one in the making.
    pub(crate) fn take(&self, log: &Log, now_ms: u64) -> u64 {
        let mut live = self.live.lock();
        // For `are_none`, before the sequence is read.
        self.held.fetch_add(1, Ordering::SeqCst);
        let sequence = log.barrier();
        live.entry(sequence).or_insert(Held { count: 0, since_ms: now_ms }).count += 1;
        sequence
    }

    /// Holds one that is live once more.
    pub(crate) fn retain(&self, sequence: u64) {
        if let Some(held) = self.live.lock().get_mut(&sequence) {
            held.count += 1;
            self.held.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn release(&self, sequence: u64) {
        let mut live = self.live.lock();
        if let Some(held) = live.get_mut(&sequence) {
            held.count -= 1;
            self.held.fetch_sub(1, Ordering::SeqCst);
            if held.count == 0 {
                live.remove(&sequence);
            }
        }
    }

    /// Whether there is none, and none in the making that would not see every sequence given out so far. For who holds a
    /// appender, of its own writes: a snapshot that is not counted yet reads its sequence later, and waits for that appender.
    pub(crate) fn are_none(&self) -> bool {
        self.held.load(Ordering::SeqCst) == 0
    }

    /// When the oldest was taken.
    pub(crate) fn oldest_since_ms(&self) -> Option<u64> {
        self.live.lock().first_key_value().map(|(_, held)| held.since_ms)
    }

    pub(crate) fn oldest(&self) -> Option<u64> {
        self.live.lock().first_key_value().map(|(&sequence, _)| sequence)
    }
}
