//! Looking into a store without changing it.
//!
//! Owns [`View`]: what the root, the segment headers, the catalog and the log's records say, and [`View::check`], which
//! verifies every byte that means something. Decodes nothing itself: it walks with the log's own decoders and replays with
//! the same code that opens a store. Promises not to write (the tier is opened for reading) and not to stop at the first
//! damaged segment. Must not know how its findings are shown.
//!
//! ```
//! # fn main() -> hedgerow::Result<()> {
//! # let dir = std::env::temp_dir().join(format!("hedgerow-doc-inspect-{}", std::process::id()));
//! use hedgerow::inspect::View;
//! use hedgerow::{Db, Schema, Type, row};
//! let db = Db::open(&dir)?;
//! let users = db.create_table("users", Schema::new().field("name", Type::String))?;
//! users.put(b"42", &row! { name: "Ada" })?;
//! db.close()?;
//! # drop(users);
//!
//! let view = View::open(&dir)?;
//! let report = view.check(|_| ())?;
//! assert!(report.problems.is_empty());
//! // The record that made the table, and the row's.
//! assert_eq!((report.records, report.rows), (2, 1));
//! # drop(view); std::fs::remove_dir_all(dir).ok();
//! # Ok(())
//! # }
//! ```

mod counts;
mod left_rows;
mod levels;
mod rows;

pub(super) use left_rows::LeftStep;
pub use levels::{GarbageInfo, MergeInfo, MergesInfo};

pub use super::saved_index::look::{GroupInfo, SavedIndexInfo, SavedTableInfo};

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use hedgerow_device::{Clock, FastTier};

use super::FAST_TIER_FILE;
use super::engine::Engine;
use super::identity::Witness;
use super::read::RowRef;
use super::recover::checked_end;
use super::salvage::{Salvage, open_damaged};
use super::shared_table::TableShared;
use super::tiers::Tiers;
use crate::log::OpenState;
use crate::log::format::{FLAG_BATCHED, FLAG_FIELD_EXPIRY, FLAG_RELOCATED, Record, RecordKind};
use crate::log::segment::{Segment, SegmentKind};
use crate::manifest::root::spoiled_copy;
use crate::runs::salvage::RunsLeft;
use crate::sst::{Sst, SstCounts, SstTable};
use crate::{Capacity, Error, ErrorKind, Options, Result, Schema};

/// Rows between two calls of a progress function.
pub(super) const ROWS_STEP: usize = 4096;

/// A store, opened for looking only. Other views may be open beside it, but no [`Db`](crate::Db).
pub struct View {
    pub(super) engine: Engine,
    found: OpenState,
    /// Of a view on a damaged store: what is missing.
    pub(super) salvage: Option<Salvage>,
    /// And what is left of its sorted tables.
    left: RunsLeft,
}

/// What the root says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RootInfo {
    /// Random, made with the store.
    pub store_id: u128,
    /// See [`Options::format_version`]; 1 for a store of version 2 whose root takes one segment.
    pub format_version: u32,
    /// Counts how often the root was written.
    pub generation: u64,
    /// Bytes in a segment of one extent.
    pub segment_bytes: u64,
    /// Bytes of the whole fast tier.
    pub fast_tier_bytes: u64,
    /// Bytes of it that the root takes, with the catalog.
    pub root_bytes: u64,
    /// How often the store has been opened for writing.
    pub opens: u64,
    /// Everything up to this sequence was durable when the root was written.
    pub watermark: u64,
    /// How the store was shut down.
    pub shutdown: ShutdownState,
    /// Where the catalog of tables lies in the tier.
    pub catalog_offset: u64,
    /// Bytes of the catalog.
    pub catalog_bytes: u64,
}

/// How a store was shut down by whoever had it open last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownState {
    /// Closed in order.
    Closed,
    /// The process ended without closing; the machine has not been down since.
    Killed,
    /// The machine went down (or the file came from another machine): what was not synced may be missing.
    PowerCut,
}

/// One segment of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Its first extent: its place in the tier, in extents of [`RootInfo::segment_bytes`].
    pub extent: u32,
    /// Its place in the tier, in bytes.
    pub offset: u64,
    /// Extents it takes.
    pub extents: u32,
    /// `row`, `delta` or `relocated`.
    pub kind: &'static str,
    /// Nothing is appended any more.
    pub sealed: bool,
    /// Its number, unique in the life of the store: later segments in the same extents have others.
    pub number: u64,
    /// Bytes from its start up to which all is known to be durable; its end, if sealed.
    pub durable_bytes: u64,
    /// The youngest record, as its header says.
    pub max_sequence: u64,
    /// Bytes of obsolete records; zero before [`View::replay`].
    pub obsolete_bytes: u64,
}

/// One table.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TableInfo {
    /// In the log's records.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Of its schema; goes up when fields are added or dropped.
    pub schema_version: u16,
    /// Its fields.
    pub schema: Schema,
    /// Rows, in the log and in sorted tables: as [`Table::len`](crate::Table::len) has them; zero before [`View::replay`].
    pub rows: u64,
}

/// The sorted tables of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunsInfo {
    /// Number of the manifest that says which count; 0 if there is none.
    pub manifest: u64,
    /// Everything up to this sequence was durable in the log when the manifest was last edited.
    pub watermark: u64,
    /// What counts, newest first, in the order of keys; a file that has parts in several places once for each.
    pub ranges: Vec<SortedTableInfo>,
    /// Files in the directory that nothing names, as a crash may leave them.
    pub left_over: Vec<String>,
    /// Why files that count, or did, cannot be read. Only a view by [`View::open_damaged`] has any.
    pub unreadable: Vec<String>,
}

/// A part of a sorted table that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SortedTableInfo {
    /// Number of its run: of two runs the one with the higher number is newer.
    pub run: u64,
    /// The file.
    pub file: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Blocks of records in it; `None` if its index cannot be read.
    pub blocks: Option<u64>,
    /// Bytes of its filter, which is in memory as long as the store is open.
    pub filter_bytes: u64,
    /// Whole rows in the file.
    pub rows: u64,
    /// Deltas in it, whose rows are older.
    pub deltas: u64,
    /// Deleted keys in it.
    pub tombstones: u64,
    /// What the file has of each table, by rising id.
    pub tables: Vec<SortedTablePart>,
    /// The least and the greatest key that count, each behind its table's id (big-endian).
    pub keys: [Vec<u8>; 2],
}

/// What a sorted table has of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SortedTablePart {
    /// The table's id.
    pub table: u32,
    /// Whole rows.
    pub rows: u64,
    /// Deltas, whose rows are older.
    pub deltas: u64,
    /// Deleted keys.
    pub tombstones: u64,
    /// Bytes of all these before they were compressed.
    pub record_bytes: u64,
}

impl SortedTablePart {
    fn of(known: &SstTable) -> SortedTablePart {
        let SstCounts { rows, deltas, tombstones, bytes } = known.counts;
        SortedTablePart { table: known.table, rows, deltas, tombstones, record_bytes: bytes }
    }
}

/// One record of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordInfo<'a> {
    /// Its place in the tier.
    pub offset: u64,
    /// Bytes it takes, all told.
    pub bytes: usize,
    /// `row`, `delta` or `tombstone`; or `catalog`, which says how tables and fields change.
    pub kind: &'static str,
    /// Gc wrote it.
    pub relocated: bool,
    /// Part of a batch.
    pub batched: bool,
    /// Has fields that expire.
    pub field_expiry: bool,
    /// The table's id.
    pub table: u32,
    /// Of the schema it was written under.
    pub schema_version: u16,
    /// Orders the versions of all keys.
    pub sequence: u64,
    /// The row's key.
    pub key: &'a [u8],
    /// Bytes of its fields.
    pub body_bytes: usize,
    /// ms since 1970; `Some(0)` takes an expiry away.
    pub expires_at_ms: Option<u64>,
}

/// How far a check has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckProgress {
    /// So many bytes of so many of the log have been verified.
    Log(u64, u64),
    /// The indexes are being rebuilt in memory.
    Replay,
    /// So many rows of so many have been read through their delta chains.
    Rows(u64, u64),
    /// So many sorted tables of so many have been verified.
    SortedTables(u64, u64),
}

/// What a check found.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// What is wrong, and where. Empty: the store is sound.
    pub problems: Vec<Error>,
    /// Copies of the root or of headers, by place, that are spoiled beside a good one, as a crash may leave them.
    pub spoiled_copies: Vec<u64>,
    /// Segments walked.
    pub segments: u64,
    /// Records verified to their last byte.
    pub records: u64,
    /// Bytes of those records.
    pub record_bytes: u64,
    /// Rows read through their delta chains, every field.
    pub rows: u64,
    /// Sorted tables verified to their last byte.
    pub sorted_tables: u64,
    /// Files of sorted tables that nothing names, and copies of their manifest that lack something, as a crash may leave them.
    pub left_over: Vec<String>,
}

/// What a store is looked at with.
fn looking() -> Options {
    Options { create: false, background: false, ..Options::default() }
}

/// [`looking`], with its sorted tables at `capacity`.
fn looking_beside(capacity: impl Into<Capacity>) -> Options {
    looking().capacity(capacity)
}

impl View {
    /// Opens the store in the directory `path` for looking.
    ///
    /// # Errors
    /// `NotFound` if there is none, `Locked` while a [`Db`](crate::Db) has it open, `Corrupted` if the root, a segment
    /// header or the catalog is, `Version`, `Io`.
    pub fn open(path: impl AsRef<Path>) -> Result<View> {
        View::open_with(path, Capacity::Beside)
    }

    /// [`View::open`] of a store whose sorted tables are at `capacity`: a path, or as [`Options::capacity`] says.
    ///
    /// # Errors
    /// As [`View::open`].
    pub fn open_with(path: impl AsRef<Path>, capacity: impl Into<Capacity>) -> Result<View> {
        let path = path.as_ref();
        let file = path.join(FAST_TIER_FILE);
        if let Some(error) = super::identity::unfinished(path) {
            return Err(error);
        }
        let witness = Witness::read(path)?;
        if !super::exists(&file) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no store in {}", path.display())));
        }
        let tier = Arc::new(FastTier::open_file_read_only(&file)?);
        witness.check(&tier)?;
        View::open_at(Tiers::in_directory(tier, path), looking_beside(capacity))
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether the store was closed in order.
    pub(super) fn is_closed_in_order(&self) -> bool {
        self.found.clean
    }

    /// Looks at a store on a tier that was opened for reading only.
    ///
    /// # Errors
    /// As [`View::open`]; `Invalid` if the tier can be written.
    pub fn open_on(tiers: impl Into<Tiers>) -> Result<View> {
        View::open_at(tiers, looking())
    }

    fn open_at(tiers: impl Into<Tiers>, options: Options) -> Result<View> {
        let tiers = tiers.into();
        if !tiers.fast.is_read_only() {
            return Err(Error::invalid("a view needs a tier that was opened for reading only"));
        }
        let (engine, found) = Engine::load(tiers, options, Clock::system())?;
        engine.recovery().catalog_only(&found, engine.options.opening_threads());
        Ok(View { engine, found, salvage: None, left: RunsLeft::default() })
    }

    /// Opens what is left of a damaged store for looking, its rows and all: see [`View::damage`] for what is wrong with it.
    /// Segments without a header are found by the root's list, records behind ones that do not verify by their checksums.
    ///
    /// # Errors
    /// As [`View::open`]; `Corrupted` only if nothing can be found.
    pub fn open_damaged(path: impl AsRef<Path>) -> Result<View> {
        View::open_damaged_with(path, Capacity::Beside)
    }

    /// [`View::open_damaged`] of a store whose sorted tables are at `capacity`: a path, or as [`Options::capacity`] says.
    ///
    /// # Errors
    /// As [`View::open_damaged`].
    pub fn open_damaged_with(path: impl AsRef<Path>, capacity: impl Into<Capacity>) -> Result<View> {
        let path = path.as_ref();
        let file = path.join(FAST_TIER_FILE);
        let witness = Witness::read(path)?;
        if !super::exists(&file) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no store in {}", path.display())));
        }
        let tier = Arc::new(FastTier::open_file_read_only(&file)?);
        if witness.is_there() && tier.bytes() == 0 {
            witness.check(&tier)?;
        }
        let (tiers, capacity) = (Tiers::in_directory(tier, path), capacity.into());
        let directory = capacity.directory(Some(path));
        let (engine, found, salvage) = open_damaged(tiers, looking_beside(capacity))?;
        // Why nothing is left of them is told among the damage.
        let left = RunsLeft::open(&engine.log, directory.as_ref()).unwrap_or_default();
        Ok(View { engine, found, salvage: Some(salvage), left })
    }

    /// What is damaged, each with its place. Only a view by [`View::open_damaged`] knows.
    pub fn damage(&self) -> &[Error] {
        self.salvage.as_ref().map_or(&[], |salvage| &salvage.damage)
    }

    /// What the root says.
    pub fn root(&self) -> RootInfo {
        let root = self.engine.log.root();
        let shutdown = match (self.found.clean, self.found.power_cut) {
            (true, _) => ShutdownState::Closed,
            (_, true) => ShutdownState::PowerCut,
            (_, false) => ShutdownState::Killed,
        };
        RootInfo {
            store_id: root.store_id,
            format_version: root.version(),
            generation: root.generation,
            segment_bytes: root.extent_bytes,
            fast_tier_bytes: self.engine.log.tier().bytes(),
            root_bytes: root.bytes(),
            opens: root.opens,
            watermark: root.watermark,
            shutdown,
            catalog_offset: root.catalog_offset,
            catalog_bytes: root.catalog_bytes,
        }
    }

    /// The segments in use, by place.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let info = |(extent, segment, obsolete_bytes): (u32, Segment, u64)| SegmentInfo {
            extent,
            offset: u64::from(extent) * self.engine.log.extent_bytes(),
            extents: segment.extents,
            kind: match segment.kind {
                SegmentKind::Row => "row",
                SegmentKind::Delta => "delta",
                SegmentKind::Relocated => "relocated",
            },
            sealed: segment.sealed,
            number: segment.segment_number,
            durable_bytes: segment.end,
            max_sequence: segment.max_sequence,
            obsolete_bytes,
        };
        self.engine.log.segments().into_iter().map(info).collect()
    }

    /// The tables, by name.
    pub fn tables(&self) -> Vec<TableInfo> {
        let left = self.left.tables();
        let info = |table: Arc<TableShared>| {
            let (schema, id) = (table.schema.load(), table.id.load(crate::sync::atomic::Ordering::Relaxed));
            TableInfo {
                id,
                name: table.name.to_string(),
                schema_version: schema.version(),
                schema: schema.fields().clone(),
                rows: self.engine.rows_of(&table) + left.get(&id).copied().unwrap_or(0),
            }
        };
        let mut tables: Vec<TableInfo> = self.engine.catalog.all().into_iter().map(info).collect();
        tables.sort_by(|a, b| a.name.cmp(&b.name));
        tables
    }

    /// Calls `visit` with each whole record of a segment, in the order they were written, until it says false.
    ///
    /// # Errors
    /// `NotFound` if no segment in use begins at `extent`; `Corrupted` where a record is not what was written.
    pub fn records(&self, segment: u32, mut visit: impl FnMut(RecordInfo<'_>) -> bool) -> Result<()> {
        let Some(mut walk) = self.engine.log.walk(segment) else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no segment {segment} in use")));
        };
        while let Some(record) = walk.next_record()? {
            if !visit(RecordInfo::new(&record)) {
                return Ok(());
            }
        }
        checked_end(&walk, &self.found).map(|_| ())
    }

    /// Rebuilds the indexes in memory, as opening would: afterwards obsolete bytes and rows are known. Once is enough.
    ///
    /// # Errors
    /// `Corrupted`, at the first place.
    pub fn replay(&self) -> Result<()> {
        if self.salvage.is_some() {
            return Ok(());
        }
        self.engine.recovery().run(&self.found, self.engine.options.opening_threads())?;
        self.engine.mark_below();
        Ok(())
    }

    /// Calls `visit` with the keys and rows of a table from the key `from` on, in order, until it says false: those of the log and those of sorted tables. After a
    /// [`View::replay`], or there are none.
    ///
    /// # Errors
    /// `NotFound` for a table that there is none of; `Corrupted` where a sorted table cannot be read on. What is wrong with a row is told to `visit`.
    pub fn rows(
        &self,
        table: &str,
        from: &[u8],
        mut visit: impl FnMut(&[u8], Result<RowRef<'_>>) -> bool,
    ) -> Result<()> {
        let Some(table) = self.engine.catalog.by_name(table) else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no table {table:?}")));
        };
        if self.salvage.is_some() {
            return self.rows_left(&table, from, visit);
        }
        self.walk_rows(
            &table,
            from,
            || (),
            |key, row| match row.transpose() {
                Some(row) => visit(key, row),
                None => true,
            },
        )
    }

    /// Verifies every byte that means something: both copies of the root and of each header, the catalog (already by
    /// opening), every record to its last byte, every delta chain down to its row, every field of every row, every sorted table and both copies of their manifest.
    ///
    /// The one thing it cannot tell from a torn write is a last record that is spoiled in a segment that was still open.
    ///
    /// # Errors
    /// Only what keeps it from going on; what is wrong with the store is in the [`Report`].
    pub fn check(&self, mut progress: impl FnMut(CheckProgress)) -> Result<Report> {
        let mut report = Report::default();
        let spoiled = self.engine.log.spoiled_copies();
        match self.found.clean {
            true => report.problems.extend(spoiled.into_iter().map(spoiled_copy)),
            false => report.spoiled_copies = spoiled,
        }
        report.problems.extend(self.engine.log.spoiled_catalog().map(spoiled_copy));
        self.check_log(&mut report, &mut progress);
        self.check_runs(&mut report, &mut progress)?;
        if report.problems.is_empty() {
            progress(CheckProgress::Replay);
            match self.replay() {
                Ok(()) => self.check_rows(&mut report, &mut progress)?,
                Err(error) if error.kind() == ErrorKind::Corrupted => report.problems.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// Verifies every record of every segment.
    pub(super) fn check_log(&self, report: &mut Report, progress: &mut impl FnMut(CheckProgress)) {
        let segments = self.segments();
        let bytes = |s: &SegmentInfo| u64::from(s.extents) * self.engine.log.extent_bytes();
        let total = segments.iter().map(bytes).sum();
        let mut done = 0;
        for segment in &segments {
            progress(CheckProgress::Log(done, total));
            let walked = self.records(segment.extent, |record| {
                report.records += 1;
                report.record_bytes += record.bytes as u64;
                true
            });
            report.problems.extend(walked.err());
            report.segments += 1;
            done += bytes(segment);
        }
        progress(CheckProgress::Log(total, total));
    }

    /// Verifies every sorted table that counts, and that the copies of the manifest agree.
    fn check_runs(&self, report: &mut Report, progress: &mut impl FnMut(CheckProgress)) -> Result<()> {
        let runs = &self.engine.runs;
        let files = runs.files_once();
        for (done, sst) in files.iter().enumerate() {
            progress(CheckProgress::SortedTables(done as u64, files.len() as u64));
            report.problems.extend(sst.verify().err());
            report.sorted_tables += 1;
        }
        report.left_over = runs.left_over(&self.engine.log)?;
        let lagging = runs.lagging_copies(&self.engine.log)?;
        match self.found.clean {
            true => report.problems.extend(lagging.iter().map(|name| {
                Error::corrupted(format!(
                    "the copy {name} of the manifest is corrupted (the other copy serves)"
                ))
            })),
            false => report.left_over.extend(lagging),
        }
        Ok(())
    }

    /// Bytes of the sorted tables that count.
    pub(super) fn sorted_table_bytes(&self) -> Result<u64> {
        self.engine.runs.files_once().iter().map(Sst::file_bytes).sum()
    }

    /// Verifies every sorted table that counts; `progress` is told of how many bytes before each.
    ///
    /// # Errors
    /// `Corrupted`, of the first that is damaged; those of `progress`; `Io`.
    pub(super) fn verify_sorted_tables(&self, progress: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let mut done = 0;
        for sst in self.engine.runs.files_once() {
            progress(done)?;
            sst.verify()?;
            done += sst.file_bytes()?;
        }
        progress(done)
    }

    fn check_rows(&self, report: &mut Report, progress: &mut impl FnMut(CheckProgress)) -> Result<()> {
        let tables = self.engine.catalog.all();
        let total = tables.iter().map(|table| self.engine.rows_of(table)).sum();
        for table in &tables {
            let (rows, mut problems) = (Cell::new(report.rows), Vec::new());
            let walked = self.walk_rows(
                table,
                &[],
                || progress(CheckProgress::Rows(rows.get(), total)),
                |key, row| {
                    match row {
                        Ok(None) => {}
                        Ok(Some(row)) if row.key() != key => problems.push(misplaced(key)),
                        Ok(Some(row)) => match row.for_each_position(|_, _| ()) {
                            Ok(()) => rows.set(rows.get() + 1),
                            Err(error) => problems.push(error),
                        },
                        Err(error) => problems.push(error),
                    }
                    true
                },
            );
            report.rows = rows.get();
            report.problems.append(&mut problems);
            match walked {
                Err(error) if error.kind() != ErrorKind::Corrupted => return Err(error),
                walked => report.problems.extend(walked.err()),
            }
        }
        progress(CheckProgress::Rows(total, total));
        Ok(())
    }
}

impl<'a> RecordInfo<'a> {
    fn new(record: &Record<'a>) -> RecordInfo<'a> {
        let has = |flag: u8| record.flags() & flag != 0;
        RecordInfo {
            offset: record.offset(),
            bytes: record.record_bytes(),
            kind: match record.kind() {
                RecordKind::Row if record.changes_catalog() => "catalog",
                RecordKind::Row => "row",
                RecordKind::Delta => "delta",
                RecordKind::Tombstone => "tombstone",
                RecordKind::Batch => "batch",
            },
            relocated: has(FLAG_RELOCATED),
            batched: has(FLAG_BATCHED),
            field_expiry: has(FLAG_FIELD_EXPIRY),
            table: record.table(),
            schema_version: record.schema_version(),
            sequence: record.sequence(),
            key: record.key(),
            body_bytes: record.body_len(),
            expires_at_ms: record.expires_at_ms(),
        }
    }
}

fn misplaced(key: &[u8]) -> Error {
    Error::corrupted(format!("the index leads from the key {} to the row of another key", key.escape_ascii()))
}
