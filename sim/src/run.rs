//! A store and its model side by side.

use std::collections::HashMap;
use std::fmt;
use std::ops::Bound;

use hedgerow::{
    Batch, CacheMode, Change, Db, Durability, Error, ErrorKind, Expiry, Options, OwnedValue, Result, Row,
    Schema, Snapshot, Table, TableChanges, Type, Value,
};
use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Survivors};

use crate::model::{Answer, Model, OPEN_TABLE, ReadRow, first_schema, kind_of, value_of};
use crate::op::{self, Given, How, NAMES, Op, Part, PartKind, Require, SNAPSHOTS, TABLES};

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
    /// Default 5.
    pub delta_chain_max: u8,
    /// Default 0: no cache. Else rows are cached, whether it pays or not.
    pub cache_bytes: u64,
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
            delta_chain_max: 5,
            cache_bytes: 0,
            log_bytes: 1 << 20,
        }
    }
}

impl Setup {
    /// The options of a store with small segments and no threads of its own.
    pub fn options(&self) -> Options {
        self.format.with(Options {
            durability: self.durability,
            delta_chain_max: self.delta_chain_max,
            cache_bytes: self.cache_bytes,
            cache_mode: if self.cache_bytes > 0 { CacheMode::On } else { CacheMode::Off },
            index_bytes_max: 64 << 20,
            background: false,
            recovery_threads: 1,
            ..Options::default()
        })
    }
}

/// The time at which every run begins, ms since 1970.
pub(crate) const START_MS: u64 = 1_000_000;

struct Open {
    db: Db,
    tables: Vec<Table>,
    snapshots: Vec<Option<Snapshot>>,
}

impl Open {
    fn new(db: Db) -> Result<Open> {
        let tables = (0..TABLES).map(|table| match db.table(table_name(table)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                db.create_table(table_name(table), first_schema(table))
            }
            found => found,
        });
        let tables = tables.collect::<Result<_>>()?;
        // Scripts begin with tables that no crash takes away.
        db.persist()?;
        Ok(Open { tables, db, snapshots: vec![None; SNAPSHOTS] })
    }
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
    /// Versions last seen: the model's and the store's.
    versions: HashMap<(u8, Vec<u8>), (u64, u64)>,
    /// Operations that the store refused because it was full.
    pub refused_full: u64,
    /// Segments that collections freed.
    pub segments_freed: u64,
    collections: u64,
    /// Chains merged before the store was last opened.
    merged_before: Merged,
    /// Reads of cached rows before the store was last opened.
    hits_before: u64,
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
    pub fn open(setup: Setup, sim: CrashSim, model: Model) -> std::result::Result<Runner, Divergence> {
        let clock = Clock::manual(model.now_ms);
        let open = Db::open_at(FastTier::simulated(&sim), setup.options(), clock.clone()).and_then(Open::new);
        let open = open.map_err(|error| Divergence(format!("opening: {:?}: {error}", error.kind())))?;
        let versions = HashMap::new();
        Ok(Runner {
            setup,
            sim,
            clock,
            open: Some(open),
            model,
            versions,
            refused_full: 0,
            segments_freed: 0,
            collections: 0,
            merged_before: Merged::default(),
            hits_before: 0,
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

    /// Reads of rows that were in the cache.
    pub fn cache_hits(&self) -> u64 {
        self.hits_before + self.open.as_ref().map_or(0, |open| open.db.metrics().cache_hits)
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
        if live * 6 < self.setup.tier_bytes {
            let bytes = self.setup.tier_bytes;
            return Err(Divergence(format!("full with {live} live bytes in a tier of {bytes}")));
        }
        for table in 0..TABLES {
            for key in self.model.keys(table).iter().step_by(2) {
                let deleted = self.parts()?.tables[table].delete(key);
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
        self.compare(op, &wanted, done)?;
        self.compare_schemas(matches!(wanted, Answer::Fails(_)))?;
        if *op == Op::Collect && self.collections.is_multiple_of(CHECKED_COLLECTIONS) {
            self.check_counts()?;
        }
        Ok(Attempted::Done)
    }

    fn compare(
        &mut self,
        op: &Op,
        wanted: &Answer,
        done: Result<Got>,
    ) -> std::result::Result<(), Divergence> {
        let differ = |got: &dyn fmt::Debug| {
            Err(Divergence(format!("the store answers {got:?}, the model {wanted:?}")))
        };
        match (wanted, done) {
            (Answer::Fails(kinds), Err(error)) if kinds.contains(&error.kind()) => Ok(()),
            (_, Err(error)) => differ(&(error.kind(), error.message())),
            (Answer::Done, Ok(Got::Done)) => Ok(()),
            (Answer::Bool(wanted), Ok(Got::Bool(got))) if *wanted == got => Ok(()),
            (Answer::Int(wanted), Ok(Got::Int(got))) if *wanted == got => Ok(()),
            (Answer::Rows(wanted), Ok(Got::Rows(got))) => {
                if wanted.len() != got.len() {
                    let got: Vec<&[u8]> = got.iter().flatten().map(Row::key).collect();
                    let missing = wanted.iter().flatten().filter(|row| !got.contains(&row.key.as_slice()));
                    let missing: Vec<String> = missing.map(|r| r.key.escape_ascii().to_string()).collect();
                    return Err(Divergence(format!(
                        "{} rows in the store, {} in the model; missing: {missing:?}",
                        got.len(),
                        wanted.len()
                    )));
                }
                for (wanted, got) in wanted.iter().zip(&got) {
                    same_row(wanted.as_ref(), got.as_ref())?;
                    if let (Some(wanted), Some(got), Some(table)) = (wanted, got, table_of(op)) {
                        self.same_version(table, wanted, got)?;
                    }
                }
                Ok(())
            }
            (_, Ok(got)) => differ(&got),
        }
    }

    fn same_version(
        &mut self,
        table: u8,
        wanted: &ReadRow,
        got: &Row,
    ) -> std::result::Result<(), Divergence> {
        let now = (wanted.version, got.version());
        match self.versions.insert((table, wanted.key.clone()), now) {
            Some(before) if (before.0 == now.0) != (before.1 == now.1) => Err(Divergence(format!(
                "the row {} had version {} and has {}, though it was {}written meanwhile",
                wanted.key.escape_ascii(),
                before.1,
                now.1,
                if before.0 == now.0 { "not " } else { "" }
            ))),
            _ => Ok(()),
        }
    }

    /// Compares fields; takes over what an open table learned before it refused a write.
    fn compare_schemas(&mut self, failed: bool) -> std::result::Result<(), Divergence> {
        for table in 0..TABLES {
            let schema = self.parts()?.tables[table].schema();
            let theirs = fields_of(&schema);
            if theirs == self.model.schema(table) {
                continue;
            }
            if !failed || !self.model.adopt(table, &schema) {
                let ours = self.model.schema(table);
                let name = table_name(table);
                return Err(Divergence(format!(
                    "table {name} has the fields {theirs:?}, the model {ours:?}"
                )));
            }
        }
        Ok(())
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
            if handle.len() != self.model.rows(table) {
                return Err(Divergence(format!(
                    "table {} counts {} rows, the model {}",
                    table_name(table),
                    handle.len(),
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
        let Open { db, tables, snapshots } = self.open.take().ok_or_else(|| Divergence("not open".into()))?;
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
        drop((tables, db));
        if let Some(image) = image {
            self.sim = CrashSim::from_image(&image);
            self.sim.limit_log(self.setup.log_bytes);
        }
        let reopened = Db::open_at(FastTier::simulated(&self.sim), self.setup.options(), self.clock.clone());
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
        let call = Caller { model: &self.model, db: &open.db, tables: &open.tables, now_ms };
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
                Some(snapshot) => one(snapshot.get(&open.tables[usize::from(*table)], &op::key(*key))),
                None => Ok(Got::Done),
            },
            Op::SnapshotScan { slot, table, reverse } => match &open.snapshots[usize::from(*slot)] {
                Some(snapshot) => {
                    let scan = snapshot.scan(&open.tables[usize::from(*table)]);
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
                    open.tables[table] = open.db.table(name)?;
                } else {
                    open.db.drop_table(name)?;
                    open.tables[table] = open.db.create_table(name, first_schema(table))?;
                }
                Ok(Got::Done)
            }
            Op::Collect => {
                self.segments_freed += open.db.collect()? as u64;
                self.collections += 1;
                Ok(Got::Done)
            }
            Op::Persist => open.db.persist().map(|()| Got::Done),
            Op::Advance { .. } | Op::Reopen(_) => Ok(Got::Done),
            Op::Batch { parts, require } => call.batch(parts, *require),
            Op::AddField { .. } | Op::RenameField { .. } | Op::DropField { .. } | Op::Clear { .. } => {
                call.change_table(op)
            }
            Op::Get { .. }
            | Op::GetFields { .. }
            | Op::MultiGet { .. }
            | Op::Exists { .. }
            | Op::Scan { .. }
            | Op::Prefix { .. } => call.read(op),
            write => call.write(write),
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

/// What the store answered.
#[derive(Debug)]
enum Got {
    Done,
    Bool(bool),
    Int(i64),
    Rows(Vec<Option<Row>>),
}

fn one(row: Result<Option<Row>>) -> Result<Got> {
    Ok(Got::Rows(vec![row?]))
}

fn rows(scan: hedgerow::Scan) -> Result<Got> {
    Ok(Got::Rows(scan.map(|row| row.map(Some)).collect::<Result<_>>()?))
}

/// The table whose rows, as they are now, an operation reads.
fn table_of(op: &Op) -> Option<u8> {
    match op {
        Op::Get { table, .. } | Op::GetFields { table, .. } | Op::MultiGet { table, .. } => Some(*table),
        Op::Scan { table, .. } | Op::Prefix { table, .. } => Some(*table),
        _ => None,
    }
}

fn unexpected(doing: &str, error: &Error) -> Divergence {
    Divergence(format!("{doing}: {:?}: {error}", error.kind()))
}

/// A store as one operation sees it.
struct Caller<'c> {
    model: &'c Model,
    db: &'c Db,
    tables: &'c [Table],
    now_ms: u64,
}

type Values = Vec<(&'static str, OwnedValue)>;

fn borrowed(values: &Values) -> Vec<(&'static str, Value<'_>)> {
    values.iter().map(|(name, value)| (*name, value.borrow())).collect()
}

fn owned(values: Values) -> Vec<(String, OwnedValue)> {
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl Caller<'_> {
    fn table(&self, table: u8) -> &Table {
        &self.tables[usize::from(table)]
    }

    fn given(&self, table: u8, fields: &[Given]) -> Values {
        self.model.given(table, fields)
    }

    fn at(&self, expires_in: Option<u64>) -> Option<u64> {
        expires_in.map(|ms| self.now_ms + ms)
    }

    fn write(&self, op: &Op) -> Result<Got> {
        match op {
            Op::Put { table, key, fields, expires_in } => {
                let values = self.given(*table, fields);
                let (table, key) = (self.table(*table), op::key(*key));
                match self.at(*expires_in) {
                    None => table.put(&key, &borrowed(&values))?,
                    Some(at_ms) => table.put_expiring(&key, &borrowed(&values), Expiry::at_unix_ms(at_ms))?,
                }
                Ok(Got::Done)
            }
            Op::Update { table, key, fields, only_existing } => {
                let values = self.given(*table, fields);
                // `update` does not say so itself.
                let (existing, key) = (self.model.has(*table, *key), op::key(*key));
                if *only_existing {
                    return self.table(*table).update_existing(&key, &borrowed(&values)).map(Got::Bool);
                }
                self.table(*table).update(&key, &borrowed(&values))?;
                Ok(Got::Bool(existing))
            }
            Op::Delete { table, key } => self.table(*table).delete(&op::key(*key)).map(Got::Bool),
            Op::Increment { table, key, field, by } => {
                self.table(*table).increment(&op::key(*key), NAMES[usize::from(*field)], *by).map(Got::Int)
            }
            Op::CompareAndSet { table, key, field, expected, new } => {
                let expected = self.model.expected(*table, *key, *field, *expected);
                let new = self.model.value(*table, *field, *new);
                let name = NAMES[usize::from(*field)];
                let (table, key) = (self.table(*table), op::key(*key));
                table.compare_and_set(&key, name, expected.borrow(), new.borrow()).map(Got::Bool)
            }
            Op::Expire { table, key, expires_in } => self
                .table(*table)
                .expire(&op::key(*key), Expiry::at_unix_ms(self.at(*expires_in)))
                .map(Got::Bool),
            Op::ExpireFields { table, key, fields, expires_in } => {
                let names: Vec<&str> = fields.iter().map(|&field| NAMES[usize::from(field)]).collect();
                self.table(*table)
                    .expire_fields(&op::key(*key), &names, Expiry::at_unix_ms(self.at(*expires_in)))
                    .map(Got::Bool)
            }
            modify => self.modify(modify),
        }
    }

    fn modify(&self, op: &Op) -> Result<Got> {
        let (table, key, change) = match op {
            Op::ModifyPut { table, key, fields, expires_in } => {
                let fields = owned(self.given(*table, fields));
                (*table, *key, Change::Put { fields, expiry: Expiry::at_unix_ms(self.at(*expires_in)) })
            }
            Op::ModifyUpdate { table, key, fields, expires_in } => {
                let fields = owned(self.given(*table, fields));
                (*table, *key, Change::Update { fields, expiry: Expiry::at_unix_ms(self.at(*expires_in)) })
            }
            Op::ModifyDelete { table, key } => (*table, *key, Change::Delete),
            _ => return Ok(Got::Done),
        };
        self.table(table).modify(&op::key(key), |_| Ok((change.clone(), ())))?;
        Ok(Got::Done)
    }

    fn batch(&self, parts: &[Part], require: Require) -> Result<Got> {
        let mut batch = Batch::new();
        for part in parts {
            let (table, key) = (self.table(part.table), op::key(part.key));
            match &part.kind {
                PartKind::Put(fields, expires_in) => {
                    let values = self.given(part.table, fields);
                    match self.at(*expires_in) {
                        None => batch.put(table, &key, &borrowed(&values))?,
                        Some(at_ms) => {
                            batch.put_expiring(table, &key, &borrowed(&values), Expiry::at_unix_ms(at_ms))?
                        }
                    }
                }
                PartKind::Update(fields, expires_in) => {
                    let values = self.given(part.table, fields);
                    match self.at(*expires_in) {
                        None => batch.update(table, &key, &borrowed(&values))?,
                        Some(at_ms) => batch.update_expiring(
                            table,
                            &key,
                            &borrowed(&values),
                            Expiry::at_unix_ms(at_ms),
                        )?,
                    }
                }
                PartKind::Expire(expires_in) => {
                    batch.expire(table, &key, Expiry::at_unix_ms(self.at(*expires_in)))?
                }
                PartKind::Delete => batch.delete(table, &key)?,
            }
        }
        if let (Some(part), true) = (parts.first(), require != Require::Nothing) {
            let (table, key) = (self.table(part.table), op::key(part.key));
            let version = table.version(&key)?;
            let version = match require {
                Require::AnotherVersion => Some(version.map_or(1, |version| version + 1)),
                _ => version,
            };
            batch.require_version(table, &key, version)?;
        }
        self.db.write(batch)?;
        Ok(Got::Done)
    }

    fn change_table(&self, op: &Op) -> Result<Got> {
        let name = |field: &u8| NAMES[usize::from(*field)];
        match op {
            Op::AddField { table, field, kind, with_default } => {
                let kind = kind_of(*kind);
                match with_default {
                    None => self.table(*table).add_field(name(field), kind)?,
                    Some(stamp) => {
                        let default = value_of(kind, *stamp, 12);
                        self.table(*table).add_field_with_default(name(field), kind, &default)?;
                    }
                }
            }
            Op::RenameField { table, from, to } => self.table(*table).rename_field(name(from), name(to))?,
            Op::DropField { table, field } => self.table(*table).drop_field(name(field))?,
            Op::Clear { table } => self.table(*table).clear()?,
            _ => {}
        }
        Ok(Got::Done)
    }

    fn read(&self, op: &Op) -> Result<Got> {
        let names = |fields: &[u8]| fields.iter().map(|&f| NAMES[usize::from(f)]).collect::<Vec<_>>();
        match op {
            Op::Get { table, key } => one(self.table(*table).get(&op::key(*key))),
            Op::GetFields { table, key, fields } => {
                one(self.table(*table).get_fields(&op::key(*key), &names(fields)))
            }
            Op::MultiGet { table, keys } => {
                let keys: Vec<Vec<u8>> = keys.iter().map(|&key| op::key(key)).collect();
                self.table(*table).multi_get(&keys).map(Got::Rows)
            }
            Op::Exists { table, key } => self.table(*table).exists(&op::key(*key)).map(Got::Bool),
            Op::Scan { table, from, to, reverse, limit, fields } => {
                let (from, to) = (from.map(op::key), to.map(op::key));
                let slice = |bound: &'_ Bound<Vec<u8>>| -> Bound<Vec<u8>> { bound.clone() };
                let (from, to) = (slice(&from), slice(&to));
                let mut scan = self.table(*table).scan();
                scan = scan.from(from.as_ref().map(Vec::as_slice)).to(to.as_ref().map(Vec::as_slice));
                if *reverse {
                    scan = scan.reverse();
                }
                if let Some(limit) = limit {
                    scan = scan.limit(usize::from(*limit));
                }
                if let Some(fields) = fields {
                    scan = scan.fields(&names(fields))?;
                }
                rows(scan)
            }
            Op::Prefix { table, key, bytes, reverse } => {
                let key = op::key(*key);
                let scan = self.table(*table).scan().prefix(&key[..usize::from(*bytes).min(key.len())]);
                rows(if *reverse { scan.reverse() } else { scan })
            }
            _ => Ok(Got::Done),
        }
    }
}

/// A table's fields: name, type and nullability, in order.
pub(crate) fn fields_of(schema: &Schema) -> Vec<(String, Type, bool)> {
    schema.fields().iter().map(|f| (f.name().to_owned(), f.kind(), f.is_nullable())).collect()
}

/// Whether a row read is the row wanted, to the last field.
pub(crate) fn same_row(wanted: Option<&ReadRow>, got: Option<&Row>) -> std::result::Result<(), Divergence> {
    let (wanted, got) = match (wanted, got) {
        (None, None) => return Ok(()),
        (Some(wanted), Some(got)) => (wanted, got),
        (wanted, got) => {
            let key = wanted.map(|w| w.key.as_slice()).or(got.map(Row::key)).unwrap_or_default();
            let says = |there: bool| if there { "has" } else { "has not" };
            return Err(Divergence(format!(
                "the store {} the row {}, the model {} it",
                says(got.is_some()),
                key.escape_ascii(),
                says(wanted.is_some())
            )));
        }
    };
    let fields: Vec<(&str, Value<'_>)> = got.fields().collect();
    let same_fields = fields.len() == wanted.fields.len()
        && fields
            .iter()
            .zip(&wanted.fields)
            .all(|(got, wanted)| got.0 == wanted.0 && got.1 == wanted.1.borrow());
    if got.key() != wanted.key || !same_fields || got.expires_at_ms() != wanted.expires_at_ms {
        return Err(Divergence(format!(
            "the row {} is {} in the store (expiry {:?}), {} in the model (expiry {:?})",
            wanted.key.escape_ascii(),
            show(fields.into_iter()),
            got.expires_at_ms(),
            show(wanted.fields.iter().map(|(name, value)| (name.as_str(), value.borrow()))),
            wanted.expires_at_ms
        )));
    }
    Ok(())
}

/// Whether a table holds these rows and no other.
pub(crate) fn same_table(wanted: &[ReadRow], table: &Table) -> std::result::Result<(), Divergence> {
    let mut scan = table.scan();
    let mut wanted = wanted.iter();
    loop {
        let got = scan.next().transpose().map_err(|error| unexpected("scanning", &error))?;
        let want = wanted.next();
        if got.is_none() && want.is_none() {
            return Ok(());
        }
        same_row(want, got.as_ref())?;
    }
}

fn show<'v>(fields: impl Iterator<Item = (&'v str, Value<'v>)>) -> String {
    let short = |(name, value): (&str, Value<'_>)| {
        let text = value.to_string();
        let head: String = text.chars().take(24).collect();
        if head.len() < text.len() {
            format!("{name}: {head}.. ({})", text.len())
        } else {
            format!("{name}: {head}")
        }
    };
    format!("{{{}}}", fields.map(short).collect::<Vec<_>>().join(", "))
}
