//! Repair: all of a damaged store that verifies, copied into a new one, and a list of what is lost.
//!
//! Owns [`repair`]. Promises that what it copies was the newest version of its row, or says of which rows that is not sure;
//! that no row which is known to be lost is replaced by an older version, and none that is known to be deleted returns; that
//! the damaged store is not written to. Must not know bytes: `db/salvage.rs` finds rows of the log, `runs/salvage.rs` those of sorted tables, tables take them.
//!
//! What the log has of a key is newer than all that sorted tables have. Where a part of one cannot be read, rows of older ones between the same keys are doubtful, and a delta that may have
//! gone over a row there is of a row that is lost.

use std::collections::HashSet;
use std::path::Path;

use super::engine::TableShared;
use super::inspect::{LeftStep, ROWS_STEP, View};
use super::read::RowRef;
use super::salvage::Salvage;
use super::{Db, FAST_TIER_FILE};
use crate::index::{Slot, Tag};
use crate::runs::salvage::{LeftRow, RunsLeft};
use crate::sst::KeyGap;
use crate::sync::atomic::Ordering;
use crate::{Capacity, Durability, Error, ErrorKind, Expiry, Loader, Options, Result, Table, Value};

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
    /// A part of a sorted table cannot be read: rows of these keys that were there, and nowhere newer, are lost, and nothing can tell which.
    LostKeys {
        /// Their table.
        table: &'a str,
        /// The first key that may have been there.
        from: &'a [u8],
        /// The first key behind; `None` behind the table's last.
        to: Option<&'a [u8]>,
        /// What is wrong with the sorted table.
        why: &'a str,
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
    /// Parts of sorted tables that cannot be read: see [`RepairEvent::LostKeys`].
    pub lost_ranges: u64,
    /// Places of the log that cannot be read, and of which nothing can tell what was there: rows that had been written there alone are lost, and are not among [`lost`](RepairReport::lost).
    pub lost_places: u64,
}

impl RepairReport {
    /// Whether the new store has all that the old one had.
    pub fn is_complete(&self) -> bool {
        self.lost == 0 && self.doubtful == 0 && self.lost_ranges == 0 && self.lost_places == 0
    }
}

/// Copies all that verifies of the store in the directory `from`, damaged or not, into a new store in the directory `to`.
///
/// A row counts by its newest version. If that is damaged the row is lost, and an older version is not put in its place. Where
/// nothing can be told of what was in a damaged place, rows that were last written before it are copied and told to be
/// doubtful. After a power cut, writes that were never synced and happen to be whole are copied even where others before
/// them are missing. The new store has the same tables and, where their size was given, segments of the same size; expiries stay. Tables that have rows in sorted tables are loaded into such.
///
/// # Errors
/// As [`repair_with`].
pub fn repair(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    visit: impl FnMut(RepairEvent<'_>),
) -> Result<RepairReport> {
    repair_with(from, Capacity::Beside, to, visit)
}

/// [`repair`] of a store whose sorted tables are at `capacity`: a path, or as [`Options::capacity`] says. Those of the new store are in its own directory. If they are lost, an empty
/// directory stands for theirs.
///
/// # Errors
/// `Exists` if there is a store in `to`; `NotFound` if there is none in `from`, `Locked` while it is open for writing;
/// `Corrupted` if nothing of it can be found, or its sorted tables are of a later time than its log; `Invalid` if their directory is not there; `Full`, `Io` from writing the new store, of which a part may be there then.
pub fn repair_with(
    from: impl AsRef<Path>,
    capacity: impl Into<Capacity>,
    to: impl AsRef<Path>,
    mut visit: impl FnMut(RepairEvent<'_>),
) -> Result<RepairReport> {
    let to = to.as_ref();
    if super::exists(&to.join(FAST_TIER_FILE)) {
        return Err(Error::new(ErrorKind::Exists, format!("there is a store in {}", to.display())));
    }
    let (from, capacity) = (from.as_ref(), capacity.into());
    let view = View::open_damaged_with(from, capacity.clone())?;
    let engine = view.engine();
    let root = engine.log.root();
    let left = RunsLeft::open(&engine.log, capacity.directory(Some(from)).as_ref())?;
    let options = Options {
        durability: Durability::Process,
        // A root longer than a segment is that of a store which chose for itself.
        segment_bytes: if root.root_extents > 1 { 0 } else { root.extent_bytes },
        ..Options::default()
    };
    let target = Db::open_with(to, options)?;
    let mut work = Repair::new(&view, &left, &mut visit);
    work.tell_damage();
    for info in view.tables() {
        let table = target.create_table(&info.name, info.schema)?;
        if let Some(shared) = engine.catalog.by_name(&info.name) {
            work.copy_table(&shared, &table)?;
        }
    }
    work.tell_lost();
    let report = work.report;
    target.close()?;
    Ok(report)
}

struct Repair<'v> {
    view: &'v View,
    left: &'v RunsLeft,
    report: RepairReport,
    seen: u64,
    total: u64,
    /// Keys whose newest record in the log is damaged, and that sorted tables have as new.
    recovered: HashSet<(u32, Vec<u8>)>,
    /// Keys of the table under way whose rows the new store has refused.
    refused: HashSet<Vec<u8>>,
    visit: &'v mut dyn FnMut(RepairEvent<'_>),
}

/// Where the rows of a table go.
type TakingRows<'t> = dyn FnMut(&[u8], &Copied) -> Result<()> + 't;

impl<'v> Repair<'v> {
    fn new(view: &'v View, left: &'v RunsLeft, visit: &'v mut dyn FnMut(RepairEvent<'_>)) -> Repair<'v> {
        let tables = view.engine.catalog.all();
        let in_log: u64 = tables.iter().map(|table| table.rows()).sum();
        let total = in_log + left.tables().values().sum::<u64>();
        Repair {
            view,
            left,
            report: RepairReport::default(),
            seen: 0,
            total,
            recovered: HashSet::new(),
            refused: HashSet::new(),
            visit,
        }
    }

    fn salvage(&self) -> Option<&'v Salvage> {
        self.view.salvage.as_ref()
    }

    fn tell_damage(&mut self) {
        let of_view = self.view.damage();
        let known = |error: &&Error| of_view.iter().any(|known| known.message() == error.message());
        let of_runs = self.left.damage.iter().filter(|error| !known(error));
        for error in of_view.iter().chain(of_runs) {
            self.damaged(error);
        }
        let catalog = &self.view.engine.catalog;
        for (table, rows) in self.left.tables() {
            if catalog.by_id(table).is_none() && !catalog.is_gone(table) {
                self.report.lost += rows;
                self.damaged(&Error::corrupted(format!(
                    "sorted tables have up to {rows} rows of table {table}, whose schema is lost"
                )));
            }
        }
    }

    fn damaged(&mut self, error: &Error) {
        self.report.damaged += 1;
        (self.visit)(RepairEvent::Damaged(error));
    }

    fn tell_lost(&mut self) {
        self.report.lost_places = self.salvage().map_or(0, |salvage| salvage.lost_places);
        for row in self.salvage().map_or(&[][..], |salvage| &salvage.lost) {
            if !self.recovered.contains(&(row.id, row.key.clone())) {
                self.lost(&row.table, &row.key, &row.why);
            }
        }
    }

    fn lost(&mut self, table: &str, key: &[u8], why: &str) {
        self.report.lost += 1;
        (self.visit)(RepairEvent::Lost { table, key, why });
    }

    fn copy_table(&mut self, shared: &TableShared, target: &Table) -> Result<()> {
        self.refused.clear();
        if !self.left.may_have(shared.id.load(Ordering::Relaxed)) {
            return self.copy_rows(shared, &mut |key, row| row.put(key, target));
        }
        // A loader takes no expiries of fields: such rows come after all others.
        let mut any_later = false;
        target.load(|loader| {
            self.copy_rows(shared, &mut |key, row| match row.expiries.is_empty() {
                true => row.load(key, loader),
                false => {
                    any_later = true;
                    Ok(())
                }
            })
        })?;
        if any_later { self.copy_later(shared, target) } else { Ok(()) }
    }

    /// The rows that a loader has not taken.
    fn copy_later(&mut self, shared: &TableShared, target: &Table) -> Result<()> {
        let (mut refused, before) = (Vec::new(), std::mem::take(&mut self.refused));
        let mut silent = |_: RepairEvent<'_>| ();
        let mut again = Repair::new(self.view, self.left, &mut silent);
        again.copy_rows(shared, &mut |key, row| {
            // The fields that expire may have done so since: then it is a row like the others, and there is none of it yet.
            if before.contains(key) || row.expiries.is_empty() && target.exists(key)? {
                return Ok(());
            }
            row.put(key, target).inspect_err(|error| refused.push((key.to_vec(), error.clone())))
        })?;
        for (key, error) in refused {
            self.report.rows -= 1;
            self.lost(&shared.name, &key, error.message());
        }
        Ok(())
    }

    /// Gives `take` each row of a table that is left, in the order of keys. One that it refuses as `Invalid` is lost: it is longer than a row may be that is written, as one becomes by the defaults of fields that
    /// came later.
    fn copy_rows(&mut self, shared: &TableShared, take: &mut TakingRows<'_>) -> Result<()> {
        let (view, left) = (self.view, self.left);
        view.walk_left(left, shared, &[], &mut |step| {
            match step {
                LeftStep::Passed => self.tell_progress(),
                LeftStep::Gap(gap) => self.tell_gap(shared, &gap),
                LeftStep::Key(key, None, left) if self.is_hidden(shared, key, &left) => {}
                LeftStep::Key(key, slot, left) => self.copy_row(shared, (key, slot, &left), take)?,
            }
            Ok(true)
        })
    }

    fn tell_progress(&mut self) {
        (self.visit)(RepairEvent::Progress(self.seen.min(self.total), self.total));
    }

    /// Whether a damaged record of the log is newer than what sorted tables have of a key.
    fn is_hidden(&mut self, shared: &TableShared, key: &[u8], left: &LeftRow) -> bool {
        let Some(salvage) = self.salvage() else { return false };
        let hides = salvage.hides(shared, key, left);
        if !hides && salvage.sequence_over(shared, key).is_some() {
            self.recovered.insert((shared.id.load(Ordering::Relaxed), key.to_vec()));
        }
        hides
    }

    fn tell_gap(&mut self, shared: &TableShared, gap: &KeyGap) {
        let table = shared.id.load(Ordering::Relaxed).to_be_bytes();
        let [from, to] = gap.keys.each_ref().map(|key| key.strip_prefix(&table));
        self.report.lost_ranges += 1;
        (self.visit)(RepairEvent::LostKeys {
            table: &shared.name,
            from: from.unwrap_or_default(),
            to,
            why: gap.why.message(),
        });
    }

    fn copy_row(
        &mut self,
        shared: &TableShared,
        (key, slot, left): (&[u8], Option<Slot>, &LeftRow),
        take: &mut TakingRows<'_>,
    ) -> Result<()> {
        self.seen += u64::from(slot.is_none_or(|slot| slot.tag() != Tag::Tombstone));
        if self.seen.is_multiple_of(ROWS_STEP as u64) {
            self.tell_progress();
        }
        let doubtful_before = self.salvage().map_or(0, |salvage| salvage.doubtful_before);
        let (row, is_below) = match self.view.read_left(shared, (slot, left), |row| Copied::of(&row)) {
            Ok(None) => return Ok(()),
            Ok(Some(row)) => row,
            Err(error) => {
                self.lost(&shared.name, key, error.message());
                return Ok(());
            }
        };
        match take(key, &row) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Invalid => {
                self.lost(&shared.name, key, error.message());
                self.refused.insert(key.to_vec());
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.report.rows += 1;
        if row.version < doubtful_before || is_below && left.is_doubtful {
            self.report.doubtful += 1;
            (self.visit)(RepairEvent::Doubtful { table: &shared.name, key });
        }
        Ok(())
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

    fn fields(&self) -> Vec<(&str, Value<'_>)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.borrow())).collect()
    }

    /// Of a row without fields that expire.
    fn load(&self, key: &[u8], loader: &mut Loader<'_>) -> Result<()> {
        match self.expires_at_ms {
            Some(at_ms) => loader.push_expiring(key, &self.fields(), Expiry::at_unix_ms(at_ms)),
            None => loader.push(key, &self.fields()),
        }
    }

    fn put(&self, key: &[u8], target: &Table) -> Result<()> {
        let fields = self.fields();
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

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
