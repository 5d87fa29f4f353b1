//! Repair: all of a damaged store that verifies, copied into a new one, and a list of what is lost.
//!
//! Owns [`repair`]. Promises that what it copies was the newest version of its row, or says of which rows that is not sure;
//! that no row which is known to be lost is replaced by an older version, and none that is known to be deleted returns; that
//! the damaged store is not written to. Must not know bytes: `db/salvage.rs` finds rows, tables take them.

use std::path::Path;

use super::engine::TableShared;
use super::inspect::{ROWS_STEP, View};
use super::read::RowRef;
use super::{Db, FAST_TIER_FILE};
use crate::index::ScanBatch;
use crate::levels::Cursor;
use crate::{Durability, Error, ErrorKind, Expiry, Options, Result, Table, Value};

/// What a repair tells while it goes on.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum RepairEvent<'a> {
    /// So many rows of so many have been looked at.
    Progress(u64, u64),
    /// Something of the damaged store is not what was written: where, and what.
    Damaged(&'a Error),
    /// A row that was there, and is not in the new store.
    Lost {
        /// Its table; `(table 7)` where only its id is known.
        table: &'a str,
        /// Its key.
        key: &'a [u8],
        /// What is wrong with it.
        why: &'a str,
    },
    /// A row that is in the new store as it was found, but may have been changed or deleted since by a record that is lost
    /// without a trace of its key.
    Doubtful {
        /// Its table.
        table: &'a str,
        /// Its key.
        key: &'a [u8],
    },
}

/// What a repair did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Rows in the new store.
    pub rows: u64,
    /// Of them those that may be older than they were: see [`RepairEvent::Doubtful`].
    pub doubtful: u64,
    /// Rows that are known to be lost.
    pub lost: u64,
    /// Places of the damaged store that are not what was written.
    pub damaged: u64,
}

impl RepairReport {
    /// Whether the new store has all that the old one had.
    pub fn is_complete(&self) -> bool {
        self.lost == 0 && self.doubtful == 0
    }
}

/// Copies all that verifies of the store in the directory `from`, damaged or not, into a new store in the directory `to`.
///
/// A row counts by its newest version. If that is damaged the row is lost, and an older version is not put in its place. Where
/// nothing can be told of what was in a damaged place, rows that were last written before it are copied and told to be
/// doubtful. After a power cut, writes that were never synced and happen to be whole are copied even where others before
/// them are missing. The new store has the same tables and, where their size was given, segments of the same size; expiries stay.
///
/// # Errors
/// `Exists` if there is a store in `to`; `NotFound` if there is none in `from`, `Locked` while it is open for writing;
/// `Corrupted` if nothing of it can be found; `Full`, `Io` from writing the new store, of which a part may be there then.
pub fn repair(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    mut visit: impl FnMut(RepairEvent<'_>),
) -> Result<RepairReport> {
    let to = to.as_ref();
    if super::exists(&to.join(FAST_TIER_FILE)) {
        return Err(Error::new(ErrorKind::Exists, format!("there is a store in {}", to.display())));
    }
    let view = View::open_damaged(from)?;
    let root = view.engine.log.root();
    if root.manifest != 0 && !view.engine.runs.is_known_to_be_empty() {
        return Err(Error::invalid(
            "the store has rows in sorted tables, which repair does not copy: nothing was written",
        ));
    }
    let options = Options {
        durability: Durability::Process,
        // A root longer than a segment is that of a store which chose for itself.
        segment_bytes: if root.root_extents > 1 { 0 } else { root.extent_bytes },
        ..Options::default()
    };
    let target = Db::open_with(to, options)?;
    let total = view.engine.catalog.all().iter().map(|table| table.rows()).sum();
    let mut work = Repair { view: &view, report: RepairReport::default(), seen: 0, total, visit: &mut visit };
    work.tell_salvage();
    for info in view.tables() {
        let table = target.create_table(&info.name, info.schema)?;
        if let Some(shared) = view.engine.catalog.by_name(&info.name) {
            work.copy_table(&shared, &table)?;
        }
    }
    let report = work.report;
    target.close()?;
    Ok(report)
}

struct Repair<'v> {
    view: &'v View,
    report: RepairReport,
    seen: u64,
    total: u64,
    visit: &'v mut dyn FnMut(RepairEvent<'_>),
}

impl Repair<'_> {
    fn tell_salvage(&mut self) {
        for error in self.view.damage() {
            self.report.damaged += 1;
            (self.visit)(RepairEvent::Damaged(error));
        }
        let lost = self.view.salvage.as_ref().map_or(&[][..], |salvage| &salvage.lost);
        for row in lost {
            self.lost(&row.table, &row.key, &row.why);
        }
    }

    fn lost(&mut self, table: &str, key: &[u8], why: &str) {
        self.report.lost += 1;
        (self.visit)(RepairEvent::Lost { table, key, why });
    }

    fn copy_table(&mut self, shared: &TableShared, target: &Table) -> Result<()> {
        let engine = &self.view.engine;
        let doubtful_before = self.view.salvage.as_ref().map_or(0, |salvage| salvage.doubtful_before);
        let (mut batch, mut cursor) = (ScanBatch::default(), Cursor::default());
        loop {
            (self.visit)(RepairEvent::Progress(self.seen, self.total));
            let view = engine.read_view();
            let more = shared.levels.next_rows(&mut cursor, ROWS_STEP, view.guard(), &mut batch);
            let schema = shared.schema.load();
            for (key, slot) in batch.iter() {
                self.seen += 1;
                let read = view
                    .row_at((shared, key), &schema, Some(slot))
                    .and_then(|row| row.map(|row| Copied::of(&row)).transpose());
                match read {
                    Ok(None) => {}
                    Ok(Some(row)) => {
                        row.put(key, target)?;
                        self.report.rows += 1;
                        if row.version < doubtful_before {
                            self.report.doubtful += 1;
                            (self.visit)(RepairEvent::Doubtful { table: &shared.name, key });
                        }
                    }
                    Err(error) => self.lost(&shared.name, key, error.message()),
                }
            }
            if !more {
                return Ok(());
            }
        }
    }
}

/// A row read whole before any of it is written.
struct Copied {
    fields: Vec<(String, crate::OwnedValue)>,
    /// Fields that expire, and when.
    expiries: Vec<(String, u64)>,
    expires_at_ms: Option<u64>,
    version: u64,
}

impl Copied {
    fn of(row: &RowRef<'_>) -> Result<Copied> {
        let mut fields = Vec::new();
        row.for_each(|name, value| fields.push((name.to_owned(), value.to_owned())))?;
        let mut expiries = Vec::new();
        for (name, _) in &fields {
            expiries.extend(row.field_expires_at_ms(name.as_str())?.map(|at_ms| (name.clone(), at_ms)));
        }
        Ok(Copied { fields, expiries, expires_at_ms: row.expires_at_ms(), version: row.version() })
    }

    fn put(&self, key: &[u8], target: &Table) -> Result<()> {
        let fields: Vec<(&str, Value<'_>)> =
            self.fields.iter().map(|(name, value)| (name.as_str(), value.borrow())).collect();
        match self.expires_at_ms {
            Some(at_ms) => target.put_expiring(key, &fields, Expiry::at_unix_ms(at_ms))?,
            None => target.put(key, &fields)?,
        }
        for (name, at_ms) in &self.expiries {
            target.expire_fields(key, &[name.as_str()], Expiry::at_unix_ms(*at_ms))?;
        }
        Ok(())
    }
}
