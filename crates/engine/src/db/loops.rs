//! The background loops of a store: which it has, and those that belong to no other part: prefaulting, syncing, and when the cache's worker is called.
//!
//! Owns the list. Promises that a store whose threads cannot all be started is closed in order. Must not know how threads are
//! started, woken and stopped (`scheduler.rs`), nor what the other loops do.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::cached::{CacheWorker, POLL_INTERVAL, Round};
use super::engine::Engine;
use super::merging::TablesForMerge;
use crate::runs::merging::{MergeJob, MergeLimits, Merged};
use crate::scheduler::{IdleBackoff, Job};
use crate::{Durability, Result};

/// How much index memory is touched ahead of its use.
const INDEX_LEAD_BYTES: u64 = 4 << 20;

/// How long the one thread of a store whose queues are coupled sleeps while there is work.
const COUPLED_PAUSE: Duration = Duration::from_millis(2);

/// And how many cycles of gc follow one another before anything else is done.
const COUPLED_CYCLES: usize = 8;

/// A shorter interval between syncs would be no pause at all.
const SYNC_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// So much of all runs may be garbage, in percent; so much in a store that nobody writes to, or where what moves found no room in them; and so much where there is no room in them for anything that moves, or they take more than they may. The range that
/// has the most of it is merged first in any case.
const GARBAGE_PERCENT_MAX: [u64; 3] = [30, 8, 1];
/// How long runs are left alone when there is nothing to be merged.
const MERGE_PAUSE: Duration = Duration::from_millis(250);
/// Nobody writes to a store that has not been written to for so long.
const QUIET: Duration = Duration::from_secs(2);
/// How long runs are left alone when a merge failed, and at most: twice as long each time.
const MERGE_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// A merge that waits for the budget looks so often whether it is waited for.
const LOOK_AGAIN_NS: u64 = 1_000_000_000;

/// How long at most what writers made durable by themselves is not written down in the root.
const CHECKPOINT_DELAY_MAX: Duration = Duration::from_secs(1);

/// Merges of sorted tables, slice by slice.
struct TableMerges {
    begun: Option<MergeJob>,
    /// How long to wait if the next fails.
    again: Duration,
    /// What was written last, and when that was seen.
    written: (u64, u64),
}

impl Default for TableMerges {
    fn default() -> TableMerges {
        TableMerges { begun: None, again: MERGE_AGAIN[0], written: (0, 0) }
    }
}

impl TableMerges {
    /// The next slice, if any; returns how long there is to be none.
    fn next(&mut self, engine: &Engine) -> Duration {
        engine.remove_runs_of_tables_gone();
        let (last, now_ns) = (engine.log.last_sequence(), engine.clock.monotonic_ns());
        if self.written.0 != last {
            self.written = (last, now_ns);
        }
        let quiet = Duration::from_nanos(now_ns - self.written.1);
        let pause = match engine.bring_or_merge(&mut self.begun, quiet) {
            Ok(true) => Duration::ZERO,
            Ok(false) => MERGE_PAUSE,
            // What is damaged is left alone from now on; what was refused may be so again. Nobody is held for it.
            Err(_) => {
                engine.runs.forget_backlog();
                self.again
            }
        };
        self.again = if pause == self.again { (2 * pause).min(MERGE_AGAIN[1]) } else { MERGE_AGAIN[0] };
        pause
    }
}

/// When a store syncs by itself, and when it looks whether what others have synced is to be written down in the root.
#[derive(Debug)]
struct SyncPace {
    /// `None`: it does not sync.
    interval: Option<Duration>,
    /// Until the next sync.
    left: Duration,
}

impl SyncPace {
    fn of(durability: Durability) -> SyncPace {
        let interval = match durability {
            Durability::Interval(interval) => Some(interval.max(SYNC_INTERVAL_MIN)),
            Durability::Immediate | Durability::Process => None,
        };
        SyncPace { interval, left: interval.unwrap_or(CHECKPOINT_DELAY_MAX) }
    }

    /// How long to sleep.
    fn pause(&self) -> Duration {
        self.left.min(CHECKPOINT_DELAY_MAX)
    }

    /// So long was slept. Whether a sync is due.
    fn has_paused(&mut self) -> bool {
        self.left -= self.pause();
        if !self.left.is_zero() {
            return false;
        }
        self.left = self.interval.unwrap_or(CHECKPOINT_DELAY_MAX);
        self.interval.is_some()
    }

    /// What was done since took so long: the next sync begins an interval after the one before began, or what was written while that was under way would wait for longer than what came after.
    fn has_worked(&mut self, took: Duration) {
        if self.interval.is_some() {
            self.left = self.left.saturating_sub(took).max(SYNC_INTERVAL_MIN);
        }
    }
}

impl Engine {
    /// Starts the threads of an open store.
    pub(super) fn start_background(self: &Arc<Engine>) -> Result<()> {
        self.scheduler.start(self, &self.background_jobs())
    }

    /// The loops that this store wants: prefaulting extents and index memory, gc, sealing, merging groups, consolidation, the cache, sweeping, merging sorted tables, syncing.
    fn background_jobs(&self) -> Vec<Job<Engine>> {
        // Where a write makes its own lines durable, writing them down would cost a sync that nothing else asks for.
        let syncs = !self.persists_in_place;
        let coupled = self.options.coupled;
        let all: [(bool, Job<Engine>); 10] = [
            (true, ("prefault", Engine::prefault_loop)),
            (coupled, ("coupled", Engine::coupled_loop)),
            (!coupled, ("gc", Engine::gc_loop)),
            (!coupled && self.options.seal, ("seal", Engine::seal_loop)),
            (!coupled && self.options.seal, ("groups", Engine::groups_loop)),
            (self.options.merge, ("consolidate", Engine::consolidation_loop)),
            (self.cache.exists(), ("cache", Engine::cache_loop)),
            (true, ("sweep", Engine::sweep_loop)),
            (!coupled && self.runs.has_place(), ("tables", Engine::tables_loop)),
            (syncs, ("sync", Engine::sync_loop)),
        ];
        all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, job)| job).collect()
    }

    /// One round of the cache's worker.
    pub(crate) fn tend_cache(&self) -> Round {
        self.cache_worker().tend()
    }

    /// What a merge of sorted tables asks of this store.
    pub(crate) fn tables_for_merge(&self) -> TablesForMerge<'_> {
        TablesForMerge {
            log: &self.log,
            catalog: &self.catalog,
            snapshots: &self.snapshots,
            clock: &self.clock,
            scheduler: &self.scheduler,
            gc: &self.gc,
            brings: None,
            budget: &self.io_budget,
            may_wait: None,
            brought_ns: Cell::new(self.clock.monotonic_ns()),
            since_ns: Cell::new(self.clock.monotonic_ns()),
        }
    }

    /// Brings a file of which much is read, or merges some; whether there is more of either.
    ///
    /// Readers wait for the disk until their files are there, and merges read them from memory then. So files are brought first; but where somebody writes, as nobody has for
    /// `quiet`, and is held for merges, a slice is merged for each.
    fn bring_or_merge(&self, begun: &mut Option<MergeJob>, quiet: Duration) -> Result<bool> {
        self.look_for_backlog();
        let has_brought = self.bring_what_is_read();
        let may_bring = || !quiet.is_zero() || !self.merges_hold_writers();
        if has_brought && may_bring() {
            return Ok(true);
        }
        let bring = || {
            if may_bring() {
                self.bring_what_is_read();
            }
        };
        let looked_ns = Cell::new(self.clock.monotonic_ns());
        let may_wait = || {
            // What moves bring meanwhile may be more than there may be.
            let now_ns = self.clock.monotonic_ns();
            if now_ns.saturating_sub(looked_ns.get()) >= LOOK_AGAIN_NS {
                looked_ns.set(now_ns);
                self.look_for_backlog();
            }
            let makes_room = self.runs.is_tight() || self.runs.is_exceeded() || self.gc.moves_lack_room();
            // One thread for all waits between slices only.
            !self.options.coupled && !self.merges_hold_writers() && !makes_room
        };
        let tables =
            TablesForMerge { brings: Some(&bring), may_wait: Some(&may_wait), ..self.tables_for_merge() };
        Ok(self.merge_some(begun, &tables, quiet >= QUIET)? | has_brought)
    }

    /// Writers of a store that was quiet are not held for what was let pass before.
    fn look_for_backlog(&self) {
        let runs_max = self.gc.controller.runs_let(self.runs.current().runs().len());
        let covered_percent = self.covered_percent();
        let limits = MergeLimits { runs_max, garbage_percent_max: GARBAGE_PERCENT_MAX[0], covered_percent };
        self.runs.look_for_backlog(&self.tables_for_merge(), limits);
    }

    /// What merges go by in a store that was just opened, while somebody writes and while nobody does; as long as there is room.
    pub(crate) fn merge_limits_at_first(&self) -> [MergeLimits; 2] {
        let (runs_max, covered_percent) = (self.gc.controller.runs_max(), self.covered_percent());
        [GARBAGE_PERCENT_MAX[0], GARBAGE_PERCENT_MAX[1]].map(|garbage_percent_max| MergeLimits {
            runs_max,
            garbage_percent_max,
            covered_percent,
        })
    }

    fn covered_percent(&self) -> u64 {
        self.runs.covered_percent(self.clock.monotonic_ns(), self.log.last_sequence())
    }

    /// Merges the next slice of what is begun, or of what there is to be merged; whether there is more.
    fn merge_some(
        &self,
        begun: &mut Option<MergeJob>,
        tables: &TablesForMerge<'_>,
        is_quiet: bool,
    ) -> Result<bool> {
        let garbage_percent_max = GARBAGE_PERCENT_MAX[match self.gc.moves_lack_room() {
            _ if self.runs.is_exceeded() => 2,
            true if self.runs.room_to_move() < self.log.extent_bytes() => 2,
            lacks_room => usize::from(is_quiet || lacks_room),
        }];
        let goes_on = begun.is_some();
        // Deltas cost nobody anything but who reads what is under them. Where nobody writes they are merged for whoever will.
        let covered_percent = if is_quiet { 100 } else { self.covered_percent() };
        let runs_max = self.gc.controller.runs_max();
        let limits = MergeLimits { runs_max, garbage_percent_max, covered_percent };
        // Where room has become scarce, what makes some comes first.
        let begun_before = begun.take().filter(|job| job.runs.len() == 1 || !self.runs.is_tight());
        if begun_before.is_some() {
            // Slices make files faster than merges end.
            self.runs.look_for_garbage(tables);
        }
        let chosen = begun_before.or_else(|| self.runs.next_merge(tables, limits));
        let Some(mut job) = chosen else {
            self.runs.forget_backlog();
            return Ok(false);
        };
        match self.runs.merge_slice(&self.log, &mut job, tables)? {
            Merged::Slice => {
                // A move may have failed for want of what it made room for.
                self.gc.may_move_again();
                *begun = Some(job);
                Ok(true)
            }
            // Something else may be there.
            Merged::Nothing => Ok(goes_on),
            Merged::LacksRoom => Ok(true),
            Merged::NotNow | Merged::Stopped => Ok(false),
        }
    }

    /// Merges all that is to be merged, in a store without threads.
    pub(super) fn merge_all(&self) -> Result<()> {
        let (mut begun, tables) = (None, self.tables_for_merge());
        // Nobody comes again by himself for what is found later.
        while self.runs.look_for_garbage(&tables) {}
        while self.merge_some(&mut begun, &tables, false)? {}
        Ok(())
    }

    fn tables_loop(&self) {
        let (mut rounds, mut pause) = (TableMerges::default(), MERGE_PAUSE);
        let sleep = |pause| match pause == MERGE_PAUSE {
            // Whoever waits for space may wait for a merge.
            true => self.scheduler.sleep_or_wake(pause),
            false => self.sleep_after_merge(pause),
        };
        while sleep(pause) && self.log.check_writable().is_ok() {
            pause = rounds.next(self);
        }
    }

    /// What the threads of gc, of sealing, and of merges of groups and of sorted tables do, by one.
    fn coupled_loop(&self) {
        let (mut backoff, mut rounds) = (IdleBackoff::new(COUPLED_PAUSE), TableMerges::default());
        let (mut seen, mut due_ns) = ((0, 0), 0);
        drop(self.tell_opened_groups_apart());
        while self.scheduler.back_off(&mut backoff, || self.is_anything_new(&mut seen))
            && self.log.check_writable().is_ok()
        {
            for _ in 0..COUPLED_CYCLES {
                if !self.gc_cycle() {
                    break;
                }
            }
            // What goes wrong is told to others, as in the threads of these.
            drop(self.seal_if_wanted());
            drop(self.merge_groups_where_wanted());
            drop(self.checkpoint_index_if_due());
            if self.runs.has_place() && self.clock.monotonic_ns() >= due_ns {
                let (pause, now_ns) = (rounds.next(self), self.clock.monotonic_ns());
                due_ns = now_ns + self.io_budget.owed_ns(now_ns).max(pause.as_nanos() as u64);
            }
        }
    }

    /// Sleeps as [`Scheduler::sleep`](crate::scheduler::Scheduler::sleep). That merges are refused for a while is no reason to keep what dropped tables had.
    fn sleep_after_merge(&self, mut pause: Duration) -> bool {
        while pause > MERGE_PAUSE && self.scheduler.sleep(MERGE_PAUSE) {
            self.remove_runs_of_tables_gone();
            pause -= MERGE_PAUSE;
        }
        self.scheduler.sleep(pause)
    }

    /// Brings a file into memory of which much is read, if memory has room for all of them and for the fast tier. Whether there was one.
    fn bring_what_is_read(&self) -> bool {
        let is_room = || self.runs.has_memory_for_all(&self.log);
        self.runs.bring_what_is_read(is_room, || !self.scheduler.is_stopped())
    }

    pub(super) fn cache_worker(&self) -> CacheWorker<'_> {
        CacheWorker {
            cache: &self.cache,
            log: &self.log,
            catalog: &self.catalog,
            epoch: &self.epoch,
            arena: &self.arena,
            clock: &self.clock,
            options: &self.options,
            disk_waits: &self.disk_waits,
            runs: &self.runs,
        }
    }

    fn cache_loop(&self) {
        let mut backoff = IdleBackoff::new(POLL_INTERVAL);
        let mut round = Round::Busy;
        while match round {
            Round::Bypassed(until_probe) => self.scheduler.sleep(until_probe.max(POLL_INTERVAL)),
            Round::Busy => self.scheduler.back_off(&mut backoff, || true),
            Round::Quiet => self.scheduler.back_off(&mut backoff, || false),
        } {
            round = self.tend_cache();
        }
    }

    fn prefault_loop(&self) {
        let (mut backoff, mut worked) = (IdleBackoff::new(Duration::from_millis(1)), true);
        while self.scheduler.back_off(&mut backoff, || worked) {
            // Without it the first touch of a page costs its toucher a fault; nothing worse.
            let populated = self.arena.populate_ahead(INDEX_LEAD_BYTES);
            // Who unlinks frees only now and then, and little of a tree that was cleared, which may be large.
            let garbage = self.epoch.collect() > 0;
            // A move waits until all is durable: the less there is to write then, the better.
            let moves_soon = self.is_short_of_landing();
            worked = self.log.prefault_extents(moves_soon);
            worked |= populated.is_ok_and(|bytes| bytes > 0) | garbage;
            worked |= self.log.remap_sealed(self.is_near_landing());
            // Their memory is new, too.
            worked |= self.runs.take_in_rows();
            // Writers take extents as they fill them, and this thread wakes for each.
            self.pace_writers();
            self.log.give_back();
        }
    }

    /// Syncs at the interval asked for, if one was, and writes down in the root what others have made durable.
    fn sync_loop(&self) {
        let mut pace = SyncPace::of(self.options.durability);
        // A failure closes the log for writing; writers are told by the next write. There is nothing to sync after it.
        while self.scheduler.sleep(pace.pause()) && self.sync_after_pause(&mut pace).is_ok() {}
    }

    /// What is due after a pause, if anything.
    fn sync_after_pause(&self, pace: &mut SyncPace) -> Result<()> {
        let (is_sync_due, started_ns) = (pace.has_paused(), self.clock.monotonic_ns());
        let durable = self.log.durable_sequence();
        let synced = match is_sync_due {
            true => self.log.persist_at_interval(self.log.last_sequence()),
            false if durable > self.log.checkpointed_sequence() => self.log.persist_checkpointed(durable),
            false => Ok(()),
        };
        pace.has_worked(Duration::from_nanos(self.clock.monotonic_ns().saturating_sub(started_ns)));
        synced
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier, Random, WritePath};

    use super::*;
    use crate::db::fixture::options;
    use crate::options::Compression;
    use crate::runs::merging::MergeStore;
    use crate::scheduler::controller::Look;
    use crate::{Db, ErrorKind, Options, Schema};

    #[test]
    fn a_file_of_which_much_is_read_is_brought_into_memory_once_if_there_is_room() {
        let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
        let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
        let db = Db::open_at(tiers, options(), Clock::manual(1_000)).unwrap();
        let table = db.create_table("t", Schema::open()).unwrap();
        let mut random = Random::from_seed(1);
        let mut body = || (0..1000).map(|_| random.next_u64() as u8).collect::<Vec<u8>>();
        table
            .load(|loader| {
                (0..2_000u64)
                    .try_for_each(|n| loader.push(&n.to_be_bytes(), &[("f", body().as_slice().into())]))
            })
            .unwrap();
        let runs = &table.engine().runs;
        let brings = |is_room| runs.bring_what_is_read(|| is_room, || true);
        let read = |keys: std::ops::Range<u64>| {
            for n in keys {
                assert!(table.get(&n.to_be_bytes()).unwrap().is_some());
            }
        };
        assert!(runs.files_once().len() > 2);
        read(0..100);
        assert!(!brings(true), "a dozen blocks are not many");
        read(100..300);
        assert!(!brings(false), "there is no room for all");
        assert!(brings(true) && !brings(true), "one was read much, and is brought once");
        read(300..2_000);
        let brought = (0..).take_while(|_| brings(true)).count();
        assert!(brought + 2 >= runs.files_once().len(), "{brought} more");
    }

    /// A store with so many runs of rows that lie between one another's, of which files are read much.
    fn read_much_of(runs: u64) -> (Db, Arc<Engine>) {
        let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
        let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
        let options = Options { fast_tier_bytes_max: 16 << 20, compression: Compression::None, ..options() };
        let db = Db::open_at(tiers, options, Clock::manual(1_000)).unwrap();
        let table = db.create_table("t", Schema::open()).unwrap();
        table.engine().look_for_backlog();
        let body = [7; 5_000];
        for run in 0..runs {
            for n in (run..2_400).step_by(24) {
                table.put(&n.to_be_bytes(), &[("f", body.as_slice().into())]).unwrap();
            }
            table.engine().move_now();
        }
        for n in (0..2_400u64).filter(|n| n % 24 < 3) {
            assert!(table.get(&n.to_be_bytes()).unwrap().is_some());
        }
        let engine = Arc::clone(table.engine());
        (db, engine)
    }

    #[test]
    fn what_is_read_is_brought_before_merges_unless_writers_wait_for_these() {
        let to_be_brought = |engine: &Engine| {
            engine.runs.current().files().iter().filter(|sst| sst.is_to_be_brought()).count()
        };
        let [now, before] = [0, 1].map(Duration::from_nanos);
        for (runs, quiet) in [(3, now), (20, before)] {
            let (_db, engine) = read_much_of(runs);
            let read = to_be_brought(&engine);
            assert!(read > 2, "{read} of {runs}");
            for left in (0..read).rev() {
                assert!(engine.bring_or_merge(&mut None, quiet).unwrap());
                assert_eq!((to_be_brought(&engine), engine.runs.merged().slices), (left, 0));
                assert_eq!(engine.merges_hold_writers(), runs == 20);
            }
        }
        let (_db, engine) = read_much_of(20);
        let (read, mut begun) = (to_be_brought(&engine), None);
        for slices in 1..=2 {
            assert!(engine.bring_or_merge(&mut begun, now).unwrap());
            assert!(to_be_brought(&engine) < read);
            assert_eq!(engine.runs.merged().slices, slices);
        }
    }

    /// A load has moves take half of the tier, and four times the runs; a second of rest later as few may be there as before it, and merging them takes long.
    #[test]
    fn writers_after_a_rest_are_not_held_for_runs_of_before() {
        let (db, engine) = read_much_of(20);
        let controller = &engine.gc.controller;
        let see = |look, from: u64| {
            (from..from + 6).for_each(|tick| controller.record(look, || 0.0, tick * 1_000_000_000));
        };
        see(Look { missing: 1.0, is_moving: true, is_short: true }, 1_000);
        engine.look_for_backlog();
        assert!(controller.runs_max() == 32 && !engine.merges_hold_writers());
        see(Look::default(), 2_000);
        engine.look_for_backlog();
        assert!(controller.runs_max() == 8 && !engine.merges_hold_writers());
        let mut begun = None;
        while engine.bring_or_merge(&mut begun, Duration::ZERO).unwrap() {}
        let table = db.table("t").unwrap();
        for n in 0..17u64 {
            table.put(&n.to_be_bytes(), &[("f", [8; 5_000].as_slice().into())]).unwrap();
            engine.move_now();
        }
        engine.look_for_backlog();
        assert!(engine.merges_hold_writers(), "these came since");
    }

    /// So much garbage is let be where there is room for it.
    #[test]
    fn garbage_is_merged_earlier_where_moves_found_no_room() {
        let (sim, clock) = (CrashSim::new(CrashModel::Pages, 16 << 20), Clock::manual(1_000));
        let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
        let db = Db::open_at(tiers, options(), clock.clone()).unwrap();
        let table = db.create_table("t", Schema::open()).unwrap();
        let engine = table.engine();
        let put = |keys: std::ops::Range<u64>| {
            keys.for_each(|n| table.put(&n.to_be_bytes(), &[("f", [7; 500].as_slice().into())]).unwrap());
            engine.move_now();
        };
        put(0..4_000);
        put(0..600);
        let merges = || {
            engine.merge_all().unwrap();
            engine.runs.merged().slices
        };
        assert_eq!(merges(), 0, "{:?}", engine.runs.merged());
        let refused = crate::Error::new(ErrorKind::Full, "no space left on the device");
        engine.gc.moving_failed(&refused, clock.monotonic_ns());
        assert!(merges() > 0, "{:?}", engine.runs.merged());
        assert_eq!(table.len(), 4_000);
    }

    /// What is read much while a slice is merged is brought before the slice has ended, a file each time that the merge asks, and not more often than makes sense.
    #[test]
    fn what_is_read_is_brought_in_the_middle_of_a_merge() {
        let (_db, engine) = read_much_of(3);
        let to_be_brought =
            || engine.runs.current().files().iter().filter(|sst| sst.is_to_be_brought()).count();
        let read = to_be_brought();
        assert!(read > 2);
        let (clock, asked) = (Clock::manual(1_000), Cell::new(0));
        let bring = || {
            asked.set(asked.get() + 1);
            engine.bring_what_is_read();
        };
        let tables = TablesForMerge {
            brings: Some(&bring),
            clock: &clock,
            brought_ns: Cell::new(clock.monotonic_ns()),
            ..engine.tables_for_merge()
        };
        (0..1_000).for_each(|_| assert!(tables.goes_on()));
        assert_eq!((asked.get(), to_be_brought()), (0, read));
        for left in (0..read).rev() {
            clock.advance_ms(100);
            (0..100).for_each(|_| assert!(tables.goes_on()));
            assert_eq!((asked.get(), to_be_brought()), (read - left, left));
        }
    }

    /// What is written of files which are read stays in memory, and has to be read itself before what is written of it does.
    #[test]
    fn what_is_written_of_files_that_are_read_stays_in_memory() {
        let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
        let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
        let compression = Compression::None;
        let options = Options { fast_tier_bytes_max: 16 << 20, compression, ..options() };
        let db = Db::open_at(tiers, options, Clock::manual(1_000)).unwrap();
        let table = db.create_table("t", Schema::open()).unwrap();
        let body = [7; 3_000];
        let (engine, key) = (table.engine(), |n: u64| n.to_be_bytes());
        let files = || engine.runs.current().files().to_vec();
        let put = |keys: std::ops::Range<u64>| {
            for n in keys {
                table.put(&key(n), &[("f", body.as_slice().into())]).unwrap();
            }
            engine.move_now();
        };
        let path = || engine.runs.write_path(&engine.log, files().iter());
        let read =
            |keys: std::ops::Range<u64>| keys.for_each(|n| assert!(table.get(&key(n)).unwrap().is_some()));
        put(0..600);
        assert!(files().iter().all(|sst| !sst.is_read_much()) && path() == WritePath::PastPageCache);
        put(600..700);
        read(600..700);
        assert_eq!(path(), WritePath::PastPageCache, "most is not read");
        read(0..600);
        let read_before = files().iter().filter(|sst| sst.is_read_much()).count();
        assert!(read_before > 0 && path() == WritePath::ThroughPageCache);
        let known: Vec<u64> = files().iter().map(|sst| sst.id().number).collect();
        put(300..301);
        let new = files().into_iter().find(|sst| !known.contains(&sst.id().number)).unwrap();
        assert!(!new.is_read_much() && new.was_all_in_memory());
        assert!(
            files().iter().filter(|sst| known.contains(&sst.id().number)).all(|sst| !sst.was_all_in_memory())
        );
        let mut job = MergeJob {
            runs: engine.runs.current().runs().iter().map(|run| run.number).collect(),
            from: Vec::new(),
            upto: Some(vec![0xff; 16]),
        };
        while engine.runs.merge_slice(&engine.log, &mut job, &engine.tables_for_merge()).unwrap()
            == Merged::Slice
        {}
        assert!(files().iter().all(|sst| sst.was_all_in_memory() && !sst.is_to_be_brought()));
        assert_eq!(path(), WritePath::PastPageCache, "nobody reads what was merged");
        // Blocks of records are read from the files, not from the cache of blocks.
        read(0..700);
        assert_eq!(path(), WritePath::ThroughPageCache);
        assert!(!engine.runs.bring_what_is_read(|| true, || true), "it is there");
    }

    #[test]
    fn a_store_looks_every_second_at_least_and_syncs_at_its_interval() {
        let [ms, seconds] = [Duration::from_millis, Duration::from_secs];
        let pauses = |durability| {
            let mut pace = SyncPace::of(durability);
            [(); 5].map(|()| (pace.pause(), pace.has_paused()))
        };
        for durability in [Durability::Immediate, Durability::Process] {
            assert_eq!(pauses(durability), [(seconds(1), false); 5]);
        }
        for interval in [ms(1), ms(200), seconds(1)] {
            assert_eq!(pauses(Durability::Interval(interval)), [(interval, true); 5]);
        }
        assert_eq!(pauses(Durability::Interval(Duration::ZERO)), [(ms(1), true); 5], "no less");
        let second = |is_due| (seconds(1), is_due);
        let long = [second(false), second(false), (ms(500), true), second(false), second(false)];
        assert_eq!(pauses(Durability::Interval(ms(2_500))), long);
    }

    #[test]
    fn syncs_begin_an_interval_apart_however_long_they_take() {
        let ms = Duration::from_millis;
        let mut pace = SyncPace::of(Durability::Interval(ms(900)));
        assert_eq!((pace.pause(), pace.has_paused()), (ms(900), true));
        for (took, pause) in [(300, 600), (0, 900), (899, 1), (900, 1), (5_000, 1), (0, 900)] {
            pace.has_worked(ms(took));
            assert_eq!((pace.pause(), pace.has_paused()), (ms(pause), true), "after {took} ms");
        }
        let mut pace = SyncPace::of(Durability::Interval(ms(2_500)));
        for (took, pause, is_due) in
            [(0, 1_000, false), (200, 1_000, false), (100, 200, true), (0, 1_000, false)]
        {
            pace.has_worked(ms(took));
            assert_eq!((pace.pause(), pace.has_paused()), (ms(pause), is_due), "after {took} ms");
        }
        // What a checkpoint costs a store that does not sync by itself it is not to pay again at once.
        let mut pace = SyncPace::of(Durability::Process);
        pace.has_worked(ms(5_000));
        assert_eq!(pace.pause(), CHECKPOINT_DELAY_MAX);
    }

    /// Each persist takes a tenth of a second by the clock. What is written during a sync waits for the next no longer than what is written after.
    #[test]
    fn what_a_sync_takes_is_slept_less() {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        fn takes_long(_: u64, _: u64) -> bool {
            CLOCK.get().expect("it was made").advance_ms(100);
            false
        }
        let clock = CLOCK.get_or_init(|| Clock::manual(1_000));
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let interval = Duration::from_millis(950);
        let options = Options { durability: Durability::Interval(interval), ..options() };
        let db = Db::open_at(FastTier::simulated(&sim), options, clock.clone()).unwrap();
        let table = db.create_table("t", Schema::open()).unwrap();
        let engine = table.engine();
        sim.lie_about_persists(Some(takes_long));
        let mut pace = SyncPace::of(engine.options.durability);
        for round in 0..20u64 {
            table.put(&round.to_be_bytes(), &[("f", [7; 50].as_slice().into())]).unwrap();
            let (written, before_ns) = (engine.log.last_sequence(), clock.monotonic_ns());
            engine.sync_after_pause(&mut pace).unwrap();
            assert_eq!(engine.log.durable_sequence(), written);
            let took = Duration::from_nanos(clock.monotonic_ns() - before_ns);
            assert!(took >= Duration::from_millis(100), "nothing is tested");
            assert_eq!(pace.pause(), interval - took, "round {round}");
        }
    }

    /// However seldom the store syncs by itself.
    #[test]
    fn what_others_have_synced_is_written_down_in_the_root() {
        for durability in [Durability::Interval(Duration::from_secs(3_600)), Durability::Process] {
            let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
            let options = Options { durability, background: true, ..options() };
            let db = Db::open_at(FastTier::simulated(&sim), options, Clock::manual(1_000)).unwrap();
            let table = db.create_table("t", Schema::open()).unwrap();
            table.put(b"key", &[("f", [7; 500].as_slice().into())]).unwrap();
            db.sync().unwrap();
            let log = &table.engine().log;
            let written = log.last_sequence();
            hedgerow_sim::eventually("the root says so", || log.checkpointed_sequence() >= written);
        }
    }

    /// The threads that were started before one was refused end with the store, whose file is free again then.
    #[test]
    fn threads_end_if_a_later_one_cannot_be_started() {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let db = Db::open_at(FastTier::simulated(&sim), options(), Clock::manual(1_000)).unwrap();
        let engine = Arc::downgrade(db.create_table("flat", Schema::flat()).unwrap().engine());
        let shared = engine.upgrade().unwrap();
        let error = shared.scheduler.start_by(&shared, &shared.background_jobs(), |name, run| match name {
            "sweep" => Err(std::io::Error::from(std::io::ErrorKind::WouldBlock)),
            _ => hedgerow_device::spawn(name, run),
        });
        drop(shared);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Io);
        assert!(engine.strong_count() > 3, "some were started");
        drop(db);
        assert_eq!(engine.strong_count(), 0, "a thread goes on");
    }
}
