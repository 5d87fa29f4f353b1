//! What is behind a `Db`: the log, the tables with their indexes, and what watches over them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use hedgerow_device::{Clock, FastTier};
use parking_lot::{Condvar, Mutex};

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
use crate::schema::table::{FieldAccess, TableSchema};
use crate::{Durability, Error, ErrorKind, Options, Result};

/// How much index memory is touched ahead of its use.
const INDEX_LEAD_BYTES: u64 = 4 << 20;

/// A shorter interval between syncs would be no pause at all.
const SYNC_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// How long at most what writers made durable by themselves is not written down in the root.
const CHECKPOINT_DELAY_MAX: Duration = Duration::from_secs(1);

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
    pub(crate) housekeeping: Housekeeping,
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
            housekeeping: Housekeeping::default(),
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
        self.housekeeping.stop();
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

/// How long a background thread sleeps between two rounds: `busy` after one that found work, twice as long after each
/// that found none. An idle store uses no processor to speak of, and a busy one is looked after at once.
pub(crate) struct IdleBackoff {
    busy: Duration,
    next: Duration,
}

impl IdleBackoff {
    /// The longest sleep of a thread with nothing to do.
    const IDLE: Duration = Duration::from_millis(32);

    pub(crate) fn new(busy: Duration) -> IdleBackoff {
        IdleBackoff { busy, next: busy }
    }

    fn next_sleep(&mut self, worked: bool) -> Duration {
        self.next = if worked { self.busy } else { (self.next * 2).min(Self::IDLE) };
        self.next
    }
}

/// What a background thread does until the store is closed.
type Loop = fn(&Engine);

/// Stopping and waking the background threads.
#[derive(Default)]
pub(crate) struct Housekeeping {
    stopped: Mutex<bool>,
    wake: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Housekeeping {
    /// Starts the threads of an open store: prefaulting extents and index memory, gc, consolidation, sweeping, syncing. If one
    /// cannot be started, those before it go on until [`Housekeeping::stop`].
    pub(crate) fn start(engine: &Arc<Engine>) -> Result<()> {
        Housekeeping::start_by(engine, hedgerow_device::spawn)
    }

    fn start_by(
        engine: &Arc<Engine>,
        spawn: impl Fn(&str, Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>>,
    ) -> Result<()> {
        // Where a write makes its own lines durable, writing them down would cost a sync that nothing else asks for.
        let syncs = !engine.persists_in_place();
        let all: [(&str, bool, Loop); 6] = [
            ("prefault", true, Engine::prefault_loop),
            ("gc", true, Engine::gc_loop),
            ("consolidate", engine.options.merge, Engine::consolidation_loop),
            ("cache", engine.cache.exists(), Engine::cache_loop),
            ("sweep", true, Engine::sweep_loop),
            ("sync", syncs, Engine::sync_loop),
        ];
        for (name, _, run) in all.into_iter().filter(|(_, wanted, _)| *wanted) {
            let mine = Arc::clone(engine);
            let thread = spawn(name, Box::new(move || run(&mine))).map_err(|error| {
                Error::new(ErrorKind::Io, format!("cannot start the background thread {name:?}: {error}"))
            })?;
            engine.housekeeping.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Stops and joins the threads.
    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.wake.notify_all();
        let mine = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != mine {
                // A thread that panicked has said so already; there is nothing to add.
                drop(thread.join());
            }
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.stopped.lock()
    }

    /// Sleeps for `duration` at most, until stopped or woken; false once stopped.
    pub(crate) fn sleep(&self, duration: Duration) -> bool {
        self.sleep_unless_stopped(|| duration)
    }

    /// Sleeps for as long as `backoff` says; false once stopped. What `worked` looks at and [`Housekeeping::wake`] was called for
    /// after is never slept over.
    pub(crate) fn back_off(&self, backoff: &mut IdleBackoff, worked: impl FnOnce() -> bool) -> bool {
        self.sleep_unless_stopped(|| backoff.next_sleep(worked()))
    }

    /// Ends everybody's sleep.
    pub(crate) fn wake(&self) {
        let _stopped = self.stopped.lock();
        self.wake.notify_all();
    }

    fn sleep_unless_stopped(&self, duration: impl FnOnce() -> Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            let duration = duration();
            self.wake.wait_for(&mut stopped, duration);
        }
        !*stopped
    }
}

impl Engine {
    fn prefault_loop(&self) {
        let (mut backoff, mut worked) = (IdleBackoff::new(Duration::from_millis(1)), true);
        while self.housekeeping.back_off(&mut backoff, || worked) {
            // Without it the first touch of a page costs its toucher a fault; nothing worse.
            let populated = self.arena.populate_ahead(INDEX_LEAD_BYTES);
            // Who unlinks frees only now and then; a tree that was cleared is a single piece, and may be large.
            let garbage = self.epoch.collect() > 0;
            worked = self.log.prefault_extents() | populated.is_ok_and(|bytes| bytes > 0) | garbage;
            worked |= self.log.remap_sealed();
            self.log.give_back();
        }
    }

    /// Syncs at the interval asked for, or else only writes down in the root what writers have made durable.
    fn sync_loop(&self) {
        let interval = match self.options.durability {
            Durability::Interval(interval) => Some(interval.max(SYNC_INTERVAL_MIN)),
            Durability::Immediate | Durability::Process => None,
        };
        while self.housekeeping.sleep(interval.unwrap_or(CHECKPOINT_DELAY_MAX)) {
            let durable = self.log.durable_sequence();
            let synced = match interval {
                Some(_) => self.log.persist_at_interval(self.log.last_sequence()),
                None if durable > self.log.checkpointed_sequence() => self.log.persist_checkpointed(durable),
                None => Ok(()),
            };
            // A failure closes the log for writing; writers are told by the next write. There is nothing to sync after it.
            if synced.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::{CrashModel, CrashSim};

    use super::*;
    use crate::db::fixture::options;
    use crate::{Db, Schema};

    #[test]
    fn threads_without_work_sleep_longer_and_longer() {
        let mut backoff = IdleBackoff::new(Duration::from_millis(2));
        let sleeps: Vec<u128> = [true, false, false, true, false, false, false, false, false]
            .map(|w| backoff.next_sleep(w).as_millis())
            .into();
        assert_eq!(sleeps, [2, 4, 8, 2, 4, 8, 16, 32, 32]);
    }

    /// The threads that were started before one was refused end with the store, whose file is free again then.
    #[test]
    fn threads_end_if_a_later_one_cannot_be_started() {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let db = Db::open_at(FastTier::simulated(&sim), options(), Clock::manual(1_000)).unwrap();
        let engine = Arc::downgrade(db.create_table("flat", Schema::flat()).unwrap().engine());
        let error = Housekeeping::start_by(&engine.upgrade().unwrap(), |name, run| match name {
            "sweep" => Err(std::io::Error::from(std::io::ErrorKind::WouldBlock)),
            _ => hedgerow_device::spawn(name, run),
        });
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Io);
        assert!(engine.strong_count() > 3, "some were started");
        drop(db);
        assert_eq!(engine.strong_count(), 0, "a thread goes on");
    }

    #[test]
    fn a_sleep_can_be_ended() {
        let housekeeping = Arc::new(Housekeeping::default());
        let sleeping = Arc::clone(&housekeeping);
        let start = std::time::Instant::now();
        let thread = std::thread::spawn(move || sleeping.sleep(Duration::from_secs(3600)));
        while !thread.is_finished() {
            housekeeping.wake();
            assert!(start.elapsed() < Duration::from_secs(600), "nobody woke");
        }
        assert!(thread.join().unwrap(), "woken, not stopped");
    }
}
