//! Loading: rows in the order of their keys, straight into sorted tables.
//!
//! Owns [`Table::load`] and [`Loader`]. Promises that the table has all of what was loaded in the place of all that it had, or after any crash or error what it had; and that
//! memory and locks do not depend on how much is loaded. Must not know how sorted tables come to count.
//!
//! The order, each durable before the next:
//!
//! 1. An id is taken in the catalog. Its record's sequence is that of every row that is loaded: no other record has it.
//! 2. The rows, in files under that id, which no table has; then their names.
//! 3. A checkpoint: no row's schema is younger than the log, and the root knows of all that the edit rests on.
//! 4. The edit of the manifest. From here on the files count, and nobody asks for them.
//! 5. The catalog: the table has that id. All at once, with every appender locked, its index is emptied, and it is known to have rows below.
//!    It is synced in every mode.
//! 6. What it had before is garbage.
//!
//! A crash before 5 leaves files of an id that no table has; opening takes them off.

use std::sync::Arc;

use hedgerow_row::schema::plan::{PlanError, RowPlan};

use super::append::past_zero;
use super::engine::{Engine, TableShared};
use super::table::Table;
use super::write::check_key;
use crate::runs::{LoadingTable, RunWriter};
use crate::sst::{Sst, SstRecord, SstRecordKind};
use crate::sync::atomic::Ordering;
use crate::{Error, ErrorKind, Expiry, FieldName, Key, Result, TypedRow, Value};

/// Takes the rows of a [`Table::load`], in rising order of their keys. A row that is refused is left out, and others may follow, unless `fill` gives its error back, which ends the load.
pub struct Loader<'t> {
    table: &'t Table,
    id: u32,
    sequence: u64,
    /// What it is written to, or why nothing comes any more.
    run: Result<RunWriter<'t>>,
    last_key: Vec<u8>,
    rows: u64,
}

/// Files that count for nobody. They go with this, unless it is not sure that they do not count.
struct LoadedFiles<'e> {
    engine: &'e Engine,
    files: Vec<Sst>,
}

impl Drop for LoadedFiles<'_> {
    fn drop(&mut self) {
        if !self.files.is_empty() {
            self.engine.runs.discard(std::mem::take(&mut self.files));
        }
    }
}

impl Table {
    /// Replaces all rows of the table by those that `fill` pushes, in rising order of their keys: many times quicker than to put them, for they are written once,
    /// into sorted tables on the capacity tier ([`Options::capacity`](crate::Options::capacity)), and take no room in the log or in the index.
    ///
    /// Until it returns the table has the rows that it had, and takes writes; those are lost with them. A reader sees the old rows or the new; a scan that is under way
    /// then goes on with the new ones from where it is. After a crash, an
    /// error or a panic of `fill` it has what it had, and nothing of what was pushed. When it returns the new rows are durable, in every durability mode. Snapshots that were taken before
    /// see the table empty, as after [`Table::clear`]. A load waits for the disk, and holds no lock while rows are pushed; memory does not depend on how many they are. The files of
    /// the old rows go once the new ones count: the capacity tier has to have room for both.
    ///
    /// ```
    /// # fn main() -> hedgerow::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("hedgerow-doc-load-{}", std::process::id()));
    /// use hedgerow::{Db, Schema, Type, row};
    /// let db = Db::open(&dir)?;
    /// let squares = db.create_table("squares", Schema::new().field("square", Type::U64))?;
    /// squares.load(|loader| {
    ///     for n in 0..100_000u64 {
    ///         loader.push(&n, &row! { square: n * n })?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(squares.len(), 100_000);
    /// # drop((squares, db)); std::fs::remove_dir_all(dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `fill`; `Invalid` if the store has no place for sorted tables, as one on a given fast tier without a capacity tier beside it; `Full` if the disk, or
    /// [`Options::capacity_bytes_max`](crate::Options::capacity_bytes_max), does not suffice; `NotFound` if the table was dropped meanwhile; `ReadOnly`; `Closed`; `Io`.
    /// If the sync of the last step fails, readers see the new rows, the store takes no writes any more, and which rows there are is for the next opening to say.
    pub fn load<R>(&self, fill: impl FnOnce(&mut Loader<'_>) -> Result<R>) -> Result<R> {
        let engine = &**self.engine();
        engine.log.check_writable()?;
        engine.runs.check_place()?;
        self.shared().check_there()?;
        // What is to go anyway makes room for what comes.
        engine.remove_runs_of_tables_gone();
        let (id, sequence) = engine.take_table_id()?;
        let loading = engine.runs.loading(id);
        let mut loader = Loader {
            table: self,
            id,
            sequence,
            run: Ok(RunWriter::of_load(&engine.runs, &engine.log)),
            last_key: Vec::new(),
            rows: 0,
        };
        let result = fill(&mut loader)?;
        loader.finish().and_then(|files| engine.install_loaded(self.shared(), id, files, loading))?;
        Ok(result)
    }
}

impl Loader<'_> {
    /// Loads a row. Its key is above all that were pushed before (bytes in their order; what that is for other types of keys says [`Key`]); fields that are not named take their default.
    ///
    /// # Errors
    /// `Invalid` of a key that does not rise, so of one that was pushed already, and `Invalid` or `NotFound` of what [`Table::put`] refuses: such a row is left out, and others may follow.
    /// `Full`, `Io` and what else the capacity tier says end the load: all that is pushed afterwards is refused with the same error.
    pub fn push<F: FieldName>(&mut self, key: &(impl Key + ?Sized), fields: &[(F, Value<'_>)]) -> Result<()> {
        self.push_bytes(key.key_bytes().as_ref(), fields, None)
    }

    /// [`Loader::push`] of a row that expires: after a `Duration` from now, or at a `SystemTime`. Fields that expire by themselves cannot be loaded.
    ///
    /// # Errors
    /// As those of [`Loader::push`].
    pub fn push_expiring<F: FieldName>(
        &mut self,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        let at_ms = self.table.unix_ms(expiry.into());
        self.push_bytes(key.key_bytes().as_ref(), fields, at_ms)
    }

    /// [`Loader::push`] of a struct with `#[derive(Row)]`.
    ///
    /// # Errors
    /// As those of [`Loader::push`].
    pub fn push_row<T: TypedRow>(&mut self, key: &(impl Key + ?Sized), row: &T) -> Result<()> {
        self.push(key, row.to_fields().as_ref())
    }

    /// Rows that were taken so far, those that were refused left out.
    pub fn len(&self) -> u64 {
        self.rows
    }

    /// Whether none were.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    fn push_bytes<F: FieldName>(
        &mut self,
        key: &[u8],
        fields: &[(F, Value<'_>)],
        expires_at_ms: Option<u64>,
    ) -> Result<()> {
        if let Err(failed) = &self.run {
            return Err(failed.clone());
        }
        check_key(key)?;
        if self.rows > 0 && key <= &*self.last_key {
            return Err(not_rising(key, &self.last_key));
        }
        let table = self.table;
        table.engine().planned(table.shared(), |schema| {
            let plan = RowPlan::new(schema, fields)?;
            let record = SstRecord {
                kind: SstRecordKind::Row,
                table: self.id,
                key,
                schema_version: schema.version(),
                sequence: self.sequence,
                expires_at_ms: expires_at_ms.map(past_zero),
                has_field_expiries: false,
                body_bytes: plan.body_bytes(),
            };
            self.append(&record, |body| plan.encode(body)).map_err(PlanError::Invalid)
        })
    }

    fn append(&mut self, record: &SstRecord<'_>, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let run = self.run.as_mut().map_err(|failed| failed.clone())?;
        match run.push(record, fill) {
            Ok(()) => {
                self.rows += 1;
                self.last_key.clear();
                self.last_key.extend_from_slice(record.key);
                Ok(())
            }
            Err(error) => {
                if error.kind() != ErrorKind::Invalid {
                    self.run = Err(error.clone());
                }
                Err(error)
            }
        }
    }

    /// The files, durable.
    fn finish(self) -> Result<Vec<Sst>> {
        self.run?.finish()
    }
}

impl Engine {
    /// Steps 3 to 6.
    fn install_loaded(
        &self,
        table: &Arc<TableShared>,
        id: u32,
        files: Vec<Sst>,
        loading: LoadingTable<'_>,
    ) -> Result<()> {
        let mut loaded = LoadedFiles { engine: self, files };
        let visible_from = match loaded.files.is_empty() {
            true => Arc::default(),
            false => {
                // PERSIST: the rows' schemas, and the record that has their sequence, are durable before the files count, and the root says so.
                self.log.persist_checkpointed(self.log.last_sequence())?;
                let added = self.runs.add_run(&self.log, &loaded.files);
                if added.is_ok() || self.log.check_writable().is_err() {
                    // They count, or may.
                    loaded.files.clear();
                }
                added?
            }
        };
        let replaced = self.replace_table(table, id, &|sequence| {
            // Who reads as of an earlier sequence sees none of it.
            visible_from.store(sequence, Ordering::Release);
        });
        // PERSIST: all of the files is durable; one sync more, and that they are the table's is, too.
        let replaced = replaced.and_then(|()| self.log.persist_to(visible_from.load(Ordering::Acquire)));
        drop(loading);
        if replaced.is_err() {
            // Those of no table go, though they count. What is left of them goes when the store is next opened.
            let _ = self.remove_garbage_runs();
        }
        replaced
    }

    /// Rows of a table, those of sorted tables included that were written or deleted since, until they are merged with that.
    pub(super) fn rows_of(&self, table: &TableShared) -> u64 {
        if !table.below() {
            return table.rows();
        }
        // The index first: what leaves it is in the runs by then.
        let rows = table.rows();
        rows + self.runs.current().rows_of(table.id.load(Ordering::Acquire))
    }

    /// Whether neither the index nor sorted tables have a row of a table, or anything that may make one.
    pub(super) fn has_nothing_of(&self, table: &TableShared) -> bool {
        let is_below = || self.runs.current().of_table(table.id.load(Ordering::Acquire)).is_some();
        table.rows() == 0 && !(table.below() && is_below())
    }
}

#[cold]
fn not_rising(key: &[u8], last: &[u8]) -> Error {
    Error::invalid(format!(
        "rows are loaded in rising order of their keys: {} does not come after {}",
        key.escape_ascii(),
        last.escape_ascii()
    ))
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
