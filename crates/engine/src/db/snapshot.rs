//! `Snapshot`: the store as it was.

use std::sync::Arc;

use super::Table;
use super::engine::Engine;
use super::read::RowRef;
use crate::{Error, FieldId, FieldName, Key, OwnedValue, Result, Row, TypedRow};

/// The store as it was at one moment: a sequence. Reads through it see every write up to then and none after, batches
/// whole. While it lives, the versions it may need keep their place in the fast tier. Rows that have expired since are
/// not shown; a table cleared or dropped since is empty. Fields are those of now: one dropped since is gone from its rows,
/// and one added since shows as in any row from before it. It reads all that tables read, but for how many rows there were, which [scan](Snapshot::scan)
/// counts, and random ones.
pub struct Snapshot {
    engine: Arc<Engine>,
    sequence: u64,
}

impl Snapshot {
    pub(super) fn take(engine: Arc<Engine>) -> Snapshot {
        let sequence = engine.snapshots.take(&engine.log, engine.clock.monotonic_ns());
        Snapshot { sequence, engine }
    }

    /// The last sequence it sees.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Refuses a table of another store.
    pub(super) fn check(&self, table: &Table) -> Result<()> {
        match Arc::ptr_eq(&self.engine, table.engine()) {
            true => Ok(()),
            false => Err(another_store()),
        }
    }

    /// The whole row, copied.
    ///
    /// # Errors
    /// As [`Table::get`]; `Invalid` for a table of another store.
    pub fn get(&self, table: &Table, key: &(impl Key + ?Sized)) -> Result<Option<Row>> {
        self.read(table, key, |row| row.to_row())
    }

    /// The row as a struct with `#[derive(Row)]`.
    ///
    /// # Errors
    /// As [`Table::get_row`]; `Invalid` for a table of another store.
    pub fn get_row<T: TypedRow>(&self, table: &Table, key: &(impl Key + ?Sized)) -> Result<Option<T>> {
        self.read(table, key, |row| T::from_row(row))
    }

    /// Some fields of the row, copied.
    ///
    /// # Errors
    /// As [`Table::get_fields`]; `Invalid` for a table of another store.
    pub fn get_fields<F: FieldName>(
        &self,
        table: &Table,
        key: &(impl Key + ?Sized),
        fields: &[F],
    ) -> Result<Option<Row>> {
        let ids = table.field_ids(fields)?;
        self.read_ids(table, key.key_bytes().as_ref(), Some(&ids), |row| row.copy(Some(&ids)))
    }

    /// One field of the row, copied; `Null` if the row is there but the field is not.
    ///
    /// # Errors
    /// As [`Table::get_field`]; `Invalid` for a table of another store.
    pub fn get_field<F: FieldName>(
        &self,
        table: &Table,
        key: &(impl Key + ?Sized),
        field: F,
    ) -> Result<Option<OwnedValue>> {
        self.read_fields(table, key, &[field], |row| Ok(row.get(field)?.to_owned()))
    }

    /// Runs `read` on the row in place; see [`Table::read`].
    ///
    /// # Errors
    /// As [`Table::read`]; `Invalid` for a table of another store.
    pub fn read<R>(
        &self,
        table: &Table,
        key: &(impl Key + ?Sized),
        read: impl FnOnce(&RowRef<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        self.read_ids(table, key.key_bytes().as_ref(), None, read)
    }

    /// [`Snapshot::read`] for whoever will ask for these fields; see [`Table::read_fields`].
    ///
    /// # Errors
    /// As [`Table::read_fields`]; `Invalid` for a table of another store.
    pub fn read_fields<F: FieldName, R>(
        &self,
        table: &Table,
        key: &(impl Key + ?Sized),
        fields: &[F],
        read: impl FnOnce(&RowRef<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        let ids = table.field_ids(fields)?;
        self.read_ids(table, key.key_bytes().as_ref(), Some(&ids), read)
    }

    fn read_ids<R>(
        &self,
        table: &Table,
        key: &[u8],
        ids: Option<&[FieldId]>,
        read: impl FnOnce(&RowRef<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        self.check(table)?;
        self.engine.read(table.shared(), key, Some(self.sequence), ids, read)
    }

    /// Whole rows, one answer for each key, in order. The look-ups overlap.
    ///
    /// # Errors
    /// As [`Table::multi_get`]; `Invalid` for a table of another store.
    pub fn multi_get<K: Key>(&self, table: &Table, keys: &[K]) -> Result<Vec<Option<Row>>> {
        let mut rows = Vec::with_capacity(keys.len());
        self.read_many(table, keys, |row| {
            rows.push(row.map(RowRef::to_row).transpose()?);
            Ok(())
        })?;
        Ok(rows)
    }

    /// Runs `read` on the row of each key in place, in order. The look-ups overlap.
    ///
    /// # Errors
    /// As [`Table::read_many`]; `Invalid` for a table of another store.
    pub fn read_many<K: Key>(
        &self,
        table: &Table,
        keys: &[K],
        read: impl FnMut(Option<&RowRef<'_>>) -> Result<()>,
    ) -> Result<()> {
        self.check(table)?;
        self.engine.read_many(table.shared(), keys, Some(self.sequence), read)
    }

    /// Whether there was a row.
    ///
    /// # Errors
    /// As [`Table::exists`]; `Invalid` for a table of another store.
    pub fn exists(&self, table: &Table, key: &(impl Key + ?Sized)) -> Result<bool> {
        self.read(table, key, |_| Ok(())).map(|row| row.is_some())
    }

    /// The row's [version](Table::version) as it was; `None` if there was no row.
    ///
    /// # Errors
    /// As [`Table::version`]; `Invalid` for a table of another store.
    pub fn version(&self, table: &Table, key: &(impl Key + ?Sized)) -> Result<Option<u64>> {
        self.read(table, key, |row| Ok(row.version()))
    }
}

#[cold]
fn another_store() -> Error {
    Error::invalid("a snapshot reads tables of the store that it was taken of; this table is of another")
}

impl Clone for Snapshot {
    fn clone(&self) -> Snapshot {
        self.engine.snapshots.retain(self.sequence);
        Snapshot { engine: Arc::clone(&self.engine), sequence: self.sequence }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.engine.snapshots.release(self.sequence);
    }
}
