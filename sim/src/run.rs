//! A store and its model side by side.

mod answers;
mod caller;
mod pairs;

use std::fmt;

use answers::{Got, Versions, compare_schemas, same_table, unexpected};
pub(crate) use answers::{fields_of, same_row};
use caller::{Caller, one, rows};
use hedgerow::{
    CacheMode, Db, Durability, Error, ErrorKind, Options, PersistGranule, Result, Snapshot, Store,
    StoreTable, Table, TableChanges,
};
use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier, Survivors};
pub use pairs::PairRunner;

use crate::model::{Answer, Model, OPEN_TABLE, ReadRow, first_schema};
use crate::op::{self, How, Op, SNAPSHOTS, TABLES};

/// Where a store and its model went different ways.
#[derive(Debug, Clone)]
pub struct Divergence(pub String);

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Divergence {}

/// What a store is made as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// See [`Options::segment_bytes`].
    pub segment_bytes: u64,
    /// See [`Options::format_version`].
    pub version: u32,
}

/// One of each version that the root may be of: 3, 2 and, where it takes one segment, 1.
pub const FORMATS: [Format; 3] = [
    Format { segment_bytes: 256 << 10, version: 3 },
    Format { segment_bytes: 256 << 10, version: 2 },
    Format { segment_bytes: 1 << 20, version: 2 },
];

impl Format {
    /// These options, of a store of this format.
    pub fn with(self, options: Options) -> Options {
        Options { segment_bytes: self.segment_bytes, format_version: self.version, ..options }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "format {} in segments of {} bytes", self.version, self.segment_bytes)
    }
}

/// How the store is made.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// What the simulated medium loses in a crash.
    pub model: CrashModel,
    /// Bytes the tier may grow to.
    pub tier_bytes: u64,
    /// Default version 3, in segments of 1 MiB.
    pub format: Format,
    /// Default `Process`.
    pub durability: Durability,
    /// Default `Sync`.
    pub persist_granule: PersistGranule,
    /// How much is written between two checkpoints of the index. Default `u64::MAX`: there is none.
    pub index_checkpoint_bytes: u64,
    /// Default 5.
    pub delta_chain_max: u8,
    /// Default 0: no cache. Else rows are cached, whether it pays or not.
    pub cache_bytes: u64,
    /// Default no. Else rows move to sorted tables with each collection, in every other out of open segments, too.
    pub moving: bool,
    /// Default as a store has it. Where it is small keys are sealed, with collections and when a store is opened.
    pub index_bytes_max: u64,
    /// Bytes of stores that the medium remembers; a crash sweep needs all.
    pub log_bytes: usize,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            model: CrashModel::Pages,
            tier_bytes: 12 << 20,
            format: Format { segment_bytes: 1 << 20, version: 3 },
            durability: Durability::Process,
            persist_granule: PersistGranule::Sync,
            index_checkpoint_bytes: u64::MAX,
            delta_chain_max: 5,
            cache_bytes: 0,
            moving: false,
            index_bytes_max: Options::default().index_bytes_max,
            log_bytes: 1 << 20,
        }
    }
}

impl Setup {
    /// Whether all keys stay in memory: else rows move for want of room there, too, and writes are refused for it.
    fn has_whole_index(&self) -> bool {
        self.index_bytes_max == Options::default().index_bytes_max
    }

    /// The options of a store with small segments and no threads of its own.
    pub fn options(&self) -> Options {
        self.format.with(Options {
            durability: self.durability,
            persist_granule: self.persist_granule,
            delta_chain_max: self.delta_chain_max,
            cache_bytes: self.cache_bytes,
            cache_mode: if self.cache_bytes > 0 { CacheMode::On } else { CacheMode::Off },
            // Rows move where something bounds the store.
            fast_tier_bytes_max: if self.moving { self.tier_bytes } else { u64::MAX },
            index_bytes_max: self.index_bytes_max,
            // However short the log is, a store whose keys are sealed is opened by what it saved.
            saved_index_bytes_min: if self.has_whole_index() { u64::MAX } else { 0 },
            index_checkpoint_bytes: self.index_checkpoint_bytes,
            background: false,
            recovery_threads: 1,
            ..Options::default()
        })
    }
}

/// The time at which every run begins, ms since 1970.
pub(crate) const START_MS: u64 = 1_000_000;

/// What a store is opened on that is wholly simulated.
pub(crate) fn tiers_of(sim: &CrashSim) -> (FastTier, CapacityTier) {
    (FastTier::simulated(sim), CapacityTier::simulated(sim))
}

struct Open {
    db: Db,
    /// The same, as operations see it.
    store: Store,
    tables: Vec<StoreTable>,
    snapshots: Vec<Option<Snapshot>>,
}

impl Open {
    fn new(db: Db) -> Result<Open> {
        let store = Store::Tiered(db.clone());
        let tables = open_tables(&store)?;
        // Scripts begin with tables that no crash takes away.
        db.persist()?;
        Ok(Open { db, store, tables, snapshots: vec![None; SNAPSHOTS] })
    }

    /// A table as snapshots take it.
    fn tiered(&self, table: u8) -> Result<Table> {
        self.db.table(self.tables[usize::from(table)].name())
    }
}

/// The tables of operations, made where they are not there yet.
fn open_tables(store: &Store) -> Result<Vec<StoreTable>> {
    let table = |table| match store.table(table_name(table)) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            store.create_table(table_name(table), first_schema(table))
        }
        found => found,
    };
    (0..TABLES).map(table).collect()
}

/// The name of a table.
pub(crate) fn table_name(table: usize) -> &'static str {
    ["typed", "open", "flat"][table]
}

/// What a store's consolidation has done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Merged {
    /// Chains of deltas merged, because reads had queued them or writes had filled them.
    pub chains: u64,
    /// Those of them that were merged in place.
    pub in_place: u64,
    /// Rows copied into the order of their keys.
    pub reordered: u64,
}

impl std::ops::AddAssign for Merged {
    fn add_assign(&mut self, more: Merged) {
        self.chains += more.chains;
        self.in_place += more.in_place;
        self.reordered += more.reordered;
    }
}

/// Runs operations on a store and on its model, and compares.
pub struct Runner {
    setup: Setup,
    sim: CrashSim,
    clock: Clock,
    open: Option<Open>,
    /// What the store must be like.
    pub model: Model,
    versions: Versions,
    /// Operations that the store refused because it was full.
    pub refused_full: u64,
    /// Segments that collections freed.
    pub segments_freed: u64,
    /// Tables that got rows in sorted tables.
    pub loads: u64,
    collections: u64,
    /// Chains merged before the store was last opened.
    merged_before: Merged,
    /// Reads of cached rows and records moved before the store was last opened.
    hits_before: u64,
    moved_before: u64,
    /// Keys that left memory before it was.
    sealed_before: u64,
    steps: u64,
}

/// After one operation in so many, the cache's worker has its round.
const CACHE_ROUNDS: u64 = 4;

/// After one collection in so many, the older-version counts are compared with the log.
const CHECKED_COLLECTIONS: u64 = 16;

impl Runner {
    /// A new store.
    ///
    /// # Errors
    /// It could not be made.
    pub fn new(setup: Setup) -> std::result::Result<Runner, Divergence> {
        let sim = CrashSim::new(setup.model, setup.tier_bytes);
        sim.limit_log(setup.log_bytes);
        Runner::open(setup, sim, Model::new(START_MS))
    }

    /// The store on `sim`, which must be like `model`.
    ///
    /// # Errors
    /// It could not be opened.
    pub fn open(setup: Setup, sim: CrashSim, mut model: Model) -> std::result::Result<Runner, Divergence> {
        model.rows_move = setup.moving || !setup.has_whole_index();
        let clock = Clock::manual(model.now_ms);
        let open = Db::open_at(tiers_of(&sim), setup.options(), clock.clone()).and_then(Open::new);
        let open = open.map_err(|error| Divergence(format!("opening: {:?}: {error}", error.kind())))?;
        let versions = Versions::default();
        Ok(Runner {
            setup,
            sim,
            clock,
            open: Some(open),
            model,
            versions,
            refused_full: 0,
            segments_freed: 0,
            loads: 0,
            collections: 0,
            merged_before: Merged::default(),
            hits_before: 0,
            moved_before: 0,
            sealed_before: 0,
            steps: 0,
        })
    }

    /// What consolidation has done so far.
    pub fn merged(&self) -> Merged {
        let mut merged = self.merged_before;
        if let Some(open) = &self.open {
            let metrics = open.db.metrics();
            merged += Merged {
                chains: metrics.chains_merged,
                in_place: metrics.chains_merged_in_place,
                reordered: metrics.rows_reordered,
            };
        }
        merged
    }

    /// Records that moved to sorted tables.
    pub fn moved(&self) -> u64 {
        self.moved_before + self.open.as_ref().map_or(0, |open| open.db.metrics().records_moved)
    }

    /// Keys that left memory, and those that an opening left out of it.
    pub fn sealed(&self) -> u64 {
        let of_open = |open: &Open| {
            let sealed = open.db.metrics().sealed;
            sealed.keys_sealed.max(sealed.rows)
        };
        self.sealed_before + self.open.as_ref().map_or(0, of_open)
    }

    /// Reads of rows that were in the cache.
    pub fn cache_hits(&self) -> u64 {
        self.hits_before + self.open.as_ref().map_or(0, |open| open.db.metrics().cache_hits)
    }

    /// Whether the store takes no more writes.
    pub(crate) fn is_closed(&self) -> bool {
        self.open.as_ref().is_none_or(|open| open.db.sync().is_err())
    }

    /// The medium.
    pub fn sim(&self) -> &CrashSim {
        &self.sim
    }

    fn parts(&self) -> std::result::Result<&Open, Divergence> {
        self.open.as_ref().ok_or_else(|| Divergence("the store is not open: an earlier step failed".into()))
    }

    /// Does one operation on both sides and compares the answers. Returns whether it was done: a full store may refuse.
    ///
    /// # Errors
    /// The sides differ.
    pub fn step(&mut self, op: &Op) -> std::result::Result<bool, Divergence> {
        match self.try_step(op)? {
            Stepped::Done(done) => Ok(done),
            Stepped::Refused(error) => Err(unexpected(&format!("{op:?}"), &error)),
        }
    }

    /// [`Runner::step`], on a medium that may fail.
    pub(crate) fn try_step(&mut self, op: &Op) -> std::result::Result<Stepped, Divergence> {
        let describe = |d: Divergence| Divergence(format!("{op:?}: {d}"));
        let mut given_up_snapshots = false;
        self.steps += 1;
        if self.setup.cache_bytes > 0 && self.steps.is_multiple_of(CACHE_ROUNDS) {
            self.parts()?.db.tend_cache();
        }
        loop {
            match self.attempt(op).map_err(describe)? {
                Attempted::Done => return Ok(Stepped::Done(true)),
                Attempted::Refused(error) => return Ok(Stepped::Refused(error)),
                Attempted::Full if self.make_room().map_err(describe)? => {}
                Attempted::Full if !given_up_snapshots => {
                    given_up_snapshots = true;
                    self.drop_snapshots()?;
                }
                Attempted::Full => {
                    self.refused_full += 1;
                    self.relieve().map_err(describe)?;
                    return Ok(Stepped::Done(false));
                }
            }
        }
    }

    /// Does one operation on the store alone.
    pub(crate) fn call(&mut self, op: &Op) -> Result<()> {
        self.run(op).map(drop)
    }

    fn drop_snapshots(&mut self) -> std::result::Result<(), Divergence> {
        self.model.drop_snapshots();
        if let Some(open) = &mut self.open {
            open.snapshots.iter_mut().for_each(|s| *s = None);
        }
        self.make_room().map(drop)
    }

    fn make_room(&mut self) -> std::result::Result<bool, Divergence> {
        let db = &self.parts()?.db;
        let mut freed = 0;
        // A victim of one round may be free only in a later one.
        for _ in 0..4 {
            freed += db.collect().map_err(|error| unexpected("collecting", &error))?;
        }
        self.segments_freed += freed as u64;
        Ok(freed > 0)
    }

    /// The store is full: it must hold enough to be, and take deletes.
    fn relieve(&mut self) -> std::result::Result<(), Divergence> {
        let live = self.model.live_bytes();
        if live * 6 < self.setup.tier_bytes && self.setup.has_whole_index() {
            let bytes = self.setup.tier_bytes;
            return Err(Divergence(format!("full with {live} live bytes in a tier of {bytes}")));
        }
        for table in 0..TABLES {
            for key in self.model.keys(table).iter().step_by(2) {
                let mut deleted = self.parts()?.tables[table].delete(key);
                // A tombstone of a row that memory knows nothing of takes a key there: so many may have to wait for one another.
                let refused = deleted.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full);
                if refused && !self.setup.has_whole_index() {
                    self.make_room()?;
                    deleted = self.parts()?.tables[table].delete(key);
                }
                deleted.map_err(|error| unexpected("deleting from a full store", &error))?;
                self.model.remove(table, key);
            }
        }
        // A refused write may have taught an open table names.
        self.compare_schemas(true)?;
        self.make_room().map(drop)
    }

    fn attempt(&mut self, op: &Op) -> std::result::Result<Attempted, Divergence> {
        if let Op::Reopen(how) = op {
            self.model.apply(op);
            self.reopen(*how)?;
            return Ok(Attempted::Done);
        }
        if matches!(op, Op::SnapshotGet { slot, .. } | Op::SnapshotScan { slot, .. } if !self.model.has_snapshot(*slot))
        {
            return Ok(Attempted::Done);
        }
        if let Op::Advance { ms } = op {
            self.clock.advance_ms(u64::from(*ms));
        }
        let done = self.run(op);
        if matches!(&done, Err(error) if error.kind() == ErrorKind::Full) {
            return Ok(Attempted::Full);
        }
        let done = match done {
            Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Closed) => {
                return Ok(Attempted::Refused(error));
            }
            done => done,
        };
        let wanted = self.model.apply(op);
        self.versions.compare(op, &wanted, done)?;
        self.compare_schemas(matches!(wanted, Answer::Fails(_)))?;
        if *op == Op::Collect && self.collections.is_multiple_of(CHECKED_COLLECTIONS) {
            self.check_counts()?;
        }
        Ok(Attempted::Done)
    }

    fn compare_schemas(&mut self, failed: bool) -> std::result::Result<(), Divergence> {
        let tables = self.parts()?.tables.clone();
        compare_schemas(&mut self.model, &tables, failed)
    }

    /// Compares everything there is.
    ///
    /// # Errors
    /// The sides differ.
    pub fn verify(&mut self) -> std::result::Result<(), Divergence> {
        self.compare_schemas(false)?;
        let tables = self.parts()?.tables.clone();
        for (table, handle) in tables.iter().enumerate() {
            let wanted: Vec<ReadRow> = self.model.dump(table, self.model.now_ms).collect();
            same_table(&wanted, handle)
                .map_err(|d| Divergence(format!("table {}: {d}", table_name(table))))?;
            let rows = handle.len().map_err(|error| unexpected("counting", &error))?;
            if !self.model.may_count(table, rows) {
                return Err(Divergence(format!(
                    "table {} counts {rows} rows, the model {}",
                    table_name(table),
                    self.model.rows(table)
                )));
            }
        }
        self.check_counts()
    }

    /// Compares the slots' older-version counts with the log.
    fn check_counts(&self) -> std::result::Result<(), Divergence> {
        self.parts()?.db.check_counts().map_err(|error| unexpected("checking the counts", &error))
    }

    fn reopen(&mut self, how: How) -> std::result::Result<(), Divergence> {
        self.merged_before = self.merged();
        self.hits_before = self.cache_hits();
        self.moved_before = self.moved();
        self.sealed_before = self.sealed();
        let Open { db, store, tables, snapshots } =
            self.open.take().ok_or_else(|| Divergence("not open".into()))?;
        drop(snapshots);
        let image = match how {
            How::Closed => {
                db.clone().close().map_err(|error| unexpected("closing", &error))?;
                None
            }
            How::Killed => Some(self.sim.process_kill()),
            How::PowerCut => {
                db.persist().map_err(|error| unexpected("persisting", &error))?;
                let mut walk = self.sim.walk();
                walk.seek(u64::MAX);
                Some(walk.image(Survivors::Random, 1))
            }
        };
        drop((tables, store, db));
        if let Some(image) = image {
            self.sim = CrashSim::from_image(&image);
            self.sim.limit_log(self.setup.log_bytes);
        }
        let reopened = Db::open_at(tiers_of(&self.sim), self.setup.options(), self.clock.clone());
        let open = reopened.and_then(Open::new).map_err(|error| unexpected("opening again", &error))?;
        self.open = Some(open);
        self.verify()
    }

    /// Closes the store for good.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.open.take().map_or(Ok(()), |open| open.db.clone().close())
    }

    /// Closes the store, opens it again and compares everything.
    ///
    /// # Errors
    /// The sides differ.
    pub fn reopen_and_verify(&mut self) -> std::result::Result<(), Divergence> {
        self.check_counts()?;
        self.model.drop_snapshots();
        self.reopen(How::Closed)
    }

    fn run(&mut self, op: &Op) -> Result<Got> {
        let Some(open) = &mut self.open else { return Ok(Got::Done) };
        let now_ms = self.clock.now_ms();
        let call = Caller { model: &self.model, store: &open.store, tables: &open.tables, now_ms };
        match op {
            Op::SnapshotTake { slot } => {
                open.snapshots[usize::from(*slot)] = Some(open.db.snapshot());
                Ok(Got::Done)
            }
            Op::SnapshotDrop { slot } => {
                open.snapshots[usize::from(*slot)] = None;
                Ok(Got::Done)
            }
            Op::SnapshotGet { slot, table, key } => match &open.snapshots[usize::from(*slot)] {
                Some(snapshot) => one(snapshot.get(&open.tiered(*table)?, &op::key(*key))),
                None => Ok(Got::Done),
            },
            Op::SnapshotScan { slot, table, reverse } => match &open.snapshots[usize::from(*slot)] {
                Some(snapshot) => {
                    let scan = snapshot.scan(&open.tiered(*table)?);
                    rows(if *reverse { scan.reverse() } else { scan })
                }
                None => Ok(Got::Done),
            },
            Op::Recreate { table } => {
                let (name, table) = (table_name(usize::from(*table)), usize::from(*table));
                if table == OPEN_TABLE {
                    let mut changes = TableChanges::new();
                    changes.drop(name).create(name, first_schema(table));
                    open.db.change_tables(&changes)?;
                    open.tables[table] = open.store.table(name)?;
                } else {
                    open.store.drop_table(name)?;
                    open.tables[table] = open.store.create_table(name, first_schema(table))?;
                }
                Ok(Got::Done)
            }
            Op::Load { table, keys, fields, expires_in } => {
                let loaded = call.load((*table, &open.tiered(*table)?), keys, fields, *expires_in)?;
                self.loads += u64::from(!keys.is_empty());
                Ok(loaded)
            }
            Op::Collect => {
                self.segments_freed += open.db.collect()? as u64;
                self.collections += 1;
                if self.setup.moving {
                    open.db.move_rows(self.collections.is_multiple_of(2))?;
                }
                Ok(Got::Done)
            }
            Op::Persist => open.db.persist().map(|()| Got::Done),
            Op::Advance { .. } | Op::Reopen(_) => Ok(Got::Done),
            op => call.call(op),
        }
    }
}

enum Attempted {
    Done,
    Full,
    Refused(Error),
}

/// What became of an operation on a medium that may fail.
pub(crate) enum Stepped {
    /// It was done, or refused because the store is full.
    Done(bool),
    /// The medium failed. The model has not done it.
    Refused(Error),
}
