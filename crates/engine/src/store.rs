//! `Store`: a store of rows whose kind is chosen when the program runs.
//!
//! Owns the choice: the tiered store of this crate, or rows over a backend that keeps pairs. Promises that a call means the same to both, or is refused by one
//! of them with `Unsupported`, having changed nothing. Who knows the kind takes [`Db`] or [`PairDb`], and pays for no choice. Must not know how either
//! does what it does.
//!
//! | | tiered | pairs |
//! |---|---|---|
//! | rows: read, put, update, delete, modify, increment, compare and set, expiry, evolution, walk | yes | yes |
//! | update without reading the row | yes: a delta | no: read, changed, written if it is still the same |
//! | a batch of several rows | yes | on key-value devices, and in memory if wanted; else `Unsupported` |
//! | a scan in order; a snapshot | yes | `Unsupported` |
//! | who writes | one process | whoever has the backend |
//! | `len` | exact | about, while others write |

use std::ops::Bound;
use std::sync::Arc;

use hedgerow_row::pairs::{HeldRow, PairBatch, PairDb, PairTable, WalkCursor};

use crate::db::{Batch, Db, RowRef, Scan, Table};
use crate::{Change, Error, ErrorKind, Expiry, FieldName, Key, Result, Row, Schema, Type, TypedRow, Value};

/// A store of rows, of one kind or the other. Cheap to clone, `Send + Sync`.
#[derive(Clone)]
pub enum Store {
    /// The tiered store.
    Tiered(Db),
    /// Rows over a backend that keeps pairs.
    Pairs(PairDb),
}

/// A table of a [`Store`].
#[derive(Clone)]
pub enum StoreTable {
    /// Of the tiered store.
    Tiered(Table),
    /// Of rows that are pairs.
    Pairs(PairTable),
}

/// Changes of a [`Store`] that happen together: of several rows in the tiered one and on key-value devices, of one row elsewhere.
pub enum StoreBatch {
    /// For the tiered store.
    Tiered(Batch),
    /// For rows that are pairs.
    Pairs(PairBatch),
}

/// A row of a [`Store`] while it is read.
#[derive(Clone, Copy)]
pub enum RowView<'v, 'r> {
    /// In place.
    InPlace(&'v RowRef<'r>),
    /// Held by its reader.
    Held(&'v HeldRow<'r>),
}

/// Where a walk through a [`StoreTable`] goes on.
#[derive(Debug, Clone, PartialEq)]
pub enum StoreCursor {
    /// After the row with this key.
    After(Vec<u8>),
    /// Where a backend says.
    At(WalkCursor),
}

/// Does the same with either kind.
macro_rules! either {
    ($kind:ident, $this:expr, $that:ident => $call:expr) => {
        match $this {
            $kind::Tiered($that) => $call,
            $kind::Pairs($that) => $call,
        }
    };
}

/// A kind of store does not do this.
#[cold]
fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("rows over pairs have no {what}; the tiered store has"))
}

/// What is of one kind was given to the other.
#[cold]
fn another_kind() -> Error {
    Error::invalid("a batch and its tables are of one store")
}

impl Store {
    /// See [`Db::create_table`].
    ///
    /// # Errors
    /// Those of [`Db::create_table`].
    pub fn create_table(&self, name: &str, schema: Schema) -> Result<StoreTable> {
        Ok(match self {
            Store::Tiered(db) => StoreTable::Tiered(db.create_table(name, schema)?),
            Store::Pairs(db) => StoreTable::Pairs(db.create_table(name, schema)?),
        })
    }

    /// See [`Db::ensure_table`].
    ///
    /// # Errors
    /// Those of [`Db::ensure_table`].
    pub fn ensure_table(&self, name: &str, schema: Schema) -> Result<StoreTable> {
        Ok(match self {
            Store::Tiered(db) => StoreTable::Tiered(db.ensure_table(name, schema)?),
            Store::Pairs(db) => StoreTable::Pairs(db.ensure_table(name, schema)?),
        })
    }

    /// Opens a table.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn table(&self, name: &str) -> Result<StoreTable> {
        Ok(match self {
            Store::Tiered(db) => StoreTable::Tiered(db.table(name)?),
            Store::Pairs(db) => StoreTable::Pairs(db.table(name)?),
        })
    }

    /// The tables' names, in order.
    ///
    /// # Errors
    /// Those of the backend.
    pub fn table_names(&self) -> Result<Vec<String>> {
        match self {
            Store::Tiered(db) => Ok(db.table_names()),
            Store::Pairs(db) => db.table_names(),
        }
    }

    /// Drops a table with all its rows; false if there is none.
    ///
    /// # Errors
    /// Those of [`Db::drop_table`].
    pub fn drop_table(&self, name: &str) -> Result<bool> {
        either!(Store, self, db => db.drop_table(name))
    }

    /// A batch for this store.
    pub fn batch(&self) -> StoreBatch {
        match self {
            Store::Tiered(_) => StoreBatch::Tiered(Batch::new()),
            Store::Pairs(_) => StoreBatch::Pairs(PairBatch::new()),
        }
    }

    /// Writes all of a batch, or nothing.
    ///
    /// # Errors
    /// Those of [`Db::write`]; `Unsupported` if it is about more rows than the store changes at a time; `Invalid` if it is of another kind of
    /// store.
    pub fn write(&self, batch: &StoreBatch) -> Result<()> {
        match (self, batch) {
            (Store::Tiered(db), StoreBatch::Tiered(batch)) => db.write(batch),
            (Store::Pairs(db), StoreBatch::Pairs(batch)) => db.write(batch),
            _ => Err(another_kind()),
        }
    }

    /// Makes durable what was written before.
    ///
    /// # Errors
    /// Those of [`Db::persist`]; `Unsupported` where nothing is kept.
    pub fn persist(&self) -> Result<()> {
        either!(Store, self, db => db.persist())
    }

    /// Closes the store; where it is pairs, the backend, for everybody.
    ///
    /// # Errors
    /// Those of [`Db::close`].
    pub fn close(self) -> Result<()> {
        either!(Store, self, db => db.close())
    }
}

impl StoreTable {
    /// The table's name.
    pub fn name(&self) -> &str {
        either!(StoreTable, self, table => table.name())
    }

    /// The table's fields now.
    ///
    /// # Errors
    /// Those of the backend.
    pub fn schema(&self) -> Result<Arc<Schema>> {
        match self {
            StoreTable::Tiered(table) => Ok(table.schema()),
            StoreTable::Pairs(table) => table.schema(),
        }
    }

    /// See [`Table::add_field`].
    ///
    /// # Errors
    /// Those of [`Table::add_field`].
    pub fn add_field(&self, name: &str, kind: Type) -> Result<()> {
        either!(StoreTable, self, table => table.add_field(name, kind))
    }

    /// See [`Table::add_field_with_default`].
    ///
    /// # Errors
    /// Those of [`Table::add_field_with_default`].
    pub fn add_field_with_default<'v>(
        &self,
        name: &str,
        kind: Type,
        default: impl Into<Value<'v>>,
    ) -> Result<()> {
        either!(StoreTable, self, table => table.add_field_with_default(name, kind, default))
    }

    /// See [`Table::rename_field`].
    ///
    /// # Errors
    /// Those of [`Table::rename_field`].
    pub fn rename_field(&self, name: &str, to: &str) -> Result<()> {
        either!(StoreTable, self, table => table.rename_field(name, to))
    }

    /// See [`Table::drop_field`].
    ///
    /// # Errors
    /// Those of [`Table::drop_field`].
    pub fn drop_field(&self, name: &str) -> Result<()> {
        either!(StoreTable, self, table => table.drop_field(name))
    }

    /// See [`Table::put`].
    ///
    /// # Errors
    /// Those of [`Table::put`].
    pub fn put<F: FieldName>(&self, key: &(impl Key + ?Sized), fields: &[(F, Value<'_>)]) -> Result<()> {
        either!(StoreTable, self, table => table.put(key, fields))
    }

    /// See [`Table::put_row`].
    ///
    /// # Errors
    /// Those of [`Table::put_row`].
    pub fn put_row<T: TypedRow>(&self, key: &(impl Key + ?Sized), row: &T) -> Result<()> {
        either!(StoreTable, self, table => table.put_row(key, row))
    }

    /// See [`Table::get_row`].
    ///
    /// # Errors
    /// Those of [`Table::get_row`].
    pub fn get_row<T: TypedRow>(&self, key: &(impl Key + ?Sized)) -> Result<Option<T>> {
        either!(StoreTable, self, table => table.get_row(key))
    }

    /// See [`Table::put_expiring`].
    ///
    /// # Errors
    /// Those of [`Table::put_expiring`].
    pub fn put_expiring<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        either!(StoreTable, self, table => table.put_expiring(key, fields, expiry))
    }

    /// See [`Table::update`].
    ///
    /// # Errors
    /// Those of [`Table::update`].
    pub fn update<F: FieldName>(&self, key: &(impl Key + ?Sized), fields: &[(F, Value<'_>)]) -> Result<()> {
        either!(StoreTable, self, table => table.update(key, fields))
    }

    /// See [`Table::update_existing`].
    ///
    /// # Errors
    /// Those of [`Table::update_existing`].
    pub fn update_existing<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
    ) -> Result<bool> {
        either!(StoreTable, self, table => table.update_existing(key, fields))
    }

    /// See [`Table::update_expiring`].
    ///
    /// # Errors
    /// Those of [`Table::update_expiring`].
    pub fn update_expiring<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        either!(StoreTable, self, table => table.update_expiring(key, fields, expiry))
    }

    /// The whole row, copied.
    ///
    /// # Errors
    /// Those of [`Table::get`].
    pub fn get(&self, key: &(impl Key + ?Sized)) -> Result<Option<Row>> {
        either!(StoreTable, self, table => table.get(key))
    }

    /// Some fields of the row, copied.
    ///
    /// # Errors
    /// Those of [`Table::get_fields`].
    pub fn get_fields<F: FieldName>(&self, key: &(impl Key + ?Sized), fields: &[F]) -> Result<Option<Row>> {
        either!(StoreTable, self, table => table.get_fields(key, fields))
    }

    /// Whole rows, one answer for each key, in order.
    ///
    /// # Errors
    /// Those of [`Table::multi_get`].
    pub fn multi_get<K: Key + AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Row>>> {
        either!(StoreTable, self, table => table.multi_get(keys))
    }

    /// Runs `read` on the row.
    ///
    /// # Errors
    /// Those of [`Table::read`], and of `read`.
    pub fn read<R>(
        &self,
        key: &(impl Key + ?Sized),
        read: impl Fn(RowView<'_, '_>) -> Result<R>,
    ) -> Result<Option<R>> {
        match self {
            StoreTable::Tiered(table) => table.read(key, |row| read(RowView::InPlace(row))),
            StoreTable::Pairs(table) => table.read(key, |row| read(RowView::Held(row))),
        }
    }

    /// See [`Table::modify`].
    ///
    /// # Errors
    /// Those of [`Table::modify`], and of `change`.
    pub fn modify<R>(
        &self,
        key: &(impl Key + ?Sized),
        mut change: impl FnMut(Option<RowView<'_, '_>>) -> Result<(Change, R)>,
    ) -> Result<R> {
        match self {
            StoreTable::Tiered(table) => table.modify(key, |row| change(row.map(RowView::InPlace))),
            StoreTable::Pairs(table) => table.modify(key, |row| change(row.map(RowView::Held))),
        }
    }

    /// Removes a row. Returns whether there was one.
    ///
    /// # Errors
    /// Those of [`Table::delete`].
    pub fn delete(&self, key: &(impl Key + ?Sized)) -> Result<bool> {
        either!(StoreTable, self, table => table.delete(key))
    }

    /// Whether there is a row.
    ///
    /// # Errors
    /// Those of [`Table::exists`].
    pub fn exists(&self, key: &(impl Key + ?Sized)) -> Result<bool> {
        either!(StoreTable, self, table => table.exists(key))
    }

    /// See [`Table::increment`].
    ///
    /// # Errors
    /// Those of [`Table::increment`].
    pub fn increment<F: FieldName>(&self, key: &(impl Key + ?Sized), field: F, by: i64) -> Result<i64> {
        either!(StoreTable, self, table => table.increment(key, field, by))
    }

    /// See [`Table::compare_and_set`].
    ///
    /// # Errors
    /// Those of [`Table::compare_and_set`].
    pub fn compare_and_set<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        field: F,
        expected: Value<'_>,
        new: Value<'_>,
    ) -> Result<bool> {
        either!(StoreTable, self, table => table.compare_and_set(key, field, expected, new))
    }

    /// See [`Table::expire`].
    ///
    /// # Errors
    /// Those of [`Table::expire`].
    pub fn expire(&self, key: &(impl Key + ?Sized), expiry: impl Into<Expiry>) -> Result<bool> {
        either!(StoreTable, self, table => table.expire(key, expiry))
    }

    /// See [`Table::expire_fields`].
    ///
    /// # Errors
    /// Those of [`Table::expire_fields`].
    pub fn expire_fields<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[F],
        expiry: impl Into<Expiry>,
    ) -> Result<bool> {
        either!(StoreTable, self, table => table.expire_fields(key, fields, expiry))
    }

    /// See [`Table::version`].
    ///
    /// # Errors
    /// Those of [`Table::version`].
    pub fn version(&self, key: &(impl Key + ?Sized)) -> Result<Option<u64>> {
        either!(StoreTable, self, table => table.version(key))
    }

    /// How many rows there are, expired ones that nobody has come by included; about, where others write.
    ///
    /// # Errors
    /// Those of the backend.
    pub fn len(&self) -> Result<u64> {
        match self {
            StoreTable::Tiered(table) => Ok(table.len()),
            StoreTable::Pairs(table) => table.len(),
        }
    }

    /// Whether there is no row, as far as [`StoreTable::len`] says.
    ///
    /// # Errors
    /// Those of the backend.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Removes all rows at once.
    ///
    /// # Errors
    /// Those of [`Table::clear`].
    pub fn clear(&self) -> Result<()> {
        either!(StoreTable, self, table => table.clear())
    }

    /// A scan in the order of keys.
    ///
    /// # Errors
    /// `Unsupported` where rows have no order.
    pub fn scan(&self) -> Result<Scan> {
        match self {
            StoreTable::Tiered(table) => Ok(table.scan()),
            StoreTable::Pairs(_) => Err(unsupported("order to be scanned in")),
        }
    }

    /// Runs `look` on some rows, in no order that may be relied on: at most `rows` of them (one at least), and perhaps none. What is there
    /// throughout a walk comes at least once. Goes on where the walk before it said, or begins; gives where to go on, `None` at the end.
    ///
    /// # Errors
    /// Those of [`Table::scan`], and of `look`; `Invalid` if the cursor is of another kind of store.
    pub fn walk(
        &self,
        from: Option<&StoreCursor>,
        rows: usize,
        mut look: impl FnMut(RowView<'_, '_>) -> Result<()>,
    ) -> Result<Option<StoreCursor>> {
        match (self, from) {
            (StoreTable::Tiered(table), None) => walk_scan(table, Bound::Unbounded, rows, look),
            (StoreTable::Tiered(table), Some(StoreCursor::After(key))) => {
                walk_scan(table, Bound::Excluded(key), rows, look)
            }
            (StoreTable::Pairs(table), None) => {
                let next = table.walk(&WalkCursor::START, rows, |row| look(RowView::Held(row)))?;
                Ok(next.map(StoreCursor::At))
            }
            (StoreTable::Pairs(table), Some(StoreCursor::At(at))) => {
                Ok(table.walk(at, rows, |row| look(RowView::Held(row)))?.map(StoreCursor::At))
            }
            _ => Err(Error::invalid("a walk goes on in the store that it began in")),
        }
    }
}

/// A step of a walk, which in the tiered store follows the order of keys.
fn walk_scan(
    table: &Table,
    from: Bound<&[u8]>,
    rows: usize,
    mut look: impl FnMut(RowView<'_, '_>) -> Result<()>,
) -> Result<Option<StoreCursor>> {
    let rows = rows.max(1);
    let (mut walked, mut last) = (0, Vec::new());
    table.scan().range((from, Bound::Unbounded)).limit(rows).for_each(|key, row| {
        walked += 1;
        key.clone_into(&mut last);
        look(RowView::InPlace(row))?;
        Ok(true)
    })?;
    Ok((walked == rows).then_some(StoreCursor::After(last)))
}

impl StoreBatch {
    /// Adds a whole row, with when it expires, if it does.
    ///
    /// # Errors
    /// Those of [`Batch::put_expiring`]; `Invalid` if the table is of another kind of store.
    pub fn put<F: FieldName>(
        &mut self,
        table: &StoreTable,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        match (self, table) {
            (StoreBatch::Tiered(batch), StoreTable::Tiered(table)) => {
                batch.put_expiring(table, key, fields, expiry)
            }
            (StoreBatch::Pairs(batch), StoreTable::Pairs(table)) => batch.put(table, key, fields, expiry),
            _ => Err(another_kind()),
        }
    }

    /// Adds some fields, with when they expire on their own, if they do.
    ///
    /// # Errors
    /// Those of [`Batch::update_expiring`]; `Invalid` if the table is of another kind of store.
    pub fn update<F: FieldName>(
        &mut self,
        table: &StoreTable,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        match (self, table) {
            (StoreBatch::Tiered(batch), StoreTable::Tiered(table)) => {
                batch.update_expiring(table, key, fields, expiry)
            }
            (StoreBatch::Pairs(batch), StoreTable::Pairs(table)) => batch.update(table, key, fields, expiry),
            _ => Err(another_kind()),
        }
    }

    /// Adds when the row expires, or that it does not.
    ///
    /// # Errors
    /// Those of [`Batch::expire`]; `Invalid` if the table is of another kind of store.
    pub fn expire(
        &mut self,
        table: &StoreTable,
        key: &(impl Key + ?Sized),
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        match (self, table) {
            (StoreBatch::Tiered(batch), StoreTable::Tiered(table)) => batch.expire(table, key, expiry),
            (StoreBatch::Pairs(batch), StoreTable::Pairs(table)) => batch.expire(table, key, expiry),
            _ => Err(another_kind()),
        }
    }

    /// Adds the removal of a row.
    ///
    /// # Errors
    /// Those of [`Batch::delete`]; `Invalid` if the table is of another kind of store.
    pub fn delete(&mut self, table: &StoreTable, key: &(impl Key + ?Sized)) -> Result<()> {
        match (self, table) {
            (StoreBatch::Tiered(batch), StoreTable::Tiered(table)) => batch.delete(table, key),
            (StoreBatch::Pairs(batch), StoreTable::Pairs(table)) => batch.delete(table, key),
            _ => Err(another_kind()),
        }
    }

    /// See [`Batch::update_existing`].
    ///
    /// # Errors
    /// Those of [`Batch::update_existing`]; `Invalid` if the table is of another kind of store.
    pub fn update_existing<F: FieldName>(
        &mut self,
        table: &StoreTable,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
    ) -> Result<()> {
        match (self, table) {
            (StoreBatch::Tiered(batch), StoreTable::Tiered(table)) => {
                batch.update_existing(table, key, fields)
            }
            (StoreBatch::Pairs(batch), StoreTable::Pairs(table)) => batch.update_existing(table, key, fields),
            _ => Err(another_kind()),
        }
    }

    /// See [`Batch::increment`].
    ///
    /// # Errors
    /// Those of [`Batch::increment`]; `Invalid` if the table is of another kind of store.
    pub fn increment<F: FieldName>(
        &mut self,
        table: &StoreTable,
        key: &(impl Key + ?Sized),
        field: F,
        by: i64,
    ) -> Result<()> {
        match (self, table) {
            (StoreBatch::Tiered(batch), StoreTable::Tiered(table)) => batch.increment(table, key, field, by),
            (StoreBatch::Pairs(batch), StoreTable::Pairs(table)) => batch.increment(table, key, field, by),
            _ => Err(another_kind()),
        }
    }

    /// See [`Batch::compare_and_set`].
    ///
    /// # Errors
    /// Those of [`Batch::compare_and_set`]; `Invalid` if the table is of another kind of store.
    pub fn compare_and_set<F: FieldName>(
        &mut self,
        table: &StoreTable,
        key: &(impl Key + ?Sized),
        field: F,
        expected: Value<'_>,
        new: Value<'_>,
    ) -> Result<()> {
        match (self, table) {
            (StoreBatch::Tiered(batch), StoreTable::Tiered(table)) => {
                batch.compare_and_set(table, key, field, expected, new)
            }
            (StoreBatch::Pairs(batch), StoreTable::Pairs(table)) => {
                batch.compare_and_set(table, key, field, expected, new)
            }
            _ => Err(another_kind()),
        }
    }

    /// See [`Batch::require_version`].
    ///
    /// # Errors
    /// Those of [`Batch::require_version`]; `Invalid` if the table is of another kind of store.
    pub fn require_version(
        &mut self,
        table: &StoreTable,
        key: &(impl Key + ?Sized),
        version: Option<u64>,
    ) -> Result<()> {
        match (self, table) {
            (StoreBatch::Tiered(batch), StoreTable::Tiered(table)) => {
                batch.require_version(table, key, version)
            }
            (StoreBatch::Pairs(batch), StoreTable::Pairs(table)) => {
                batch.require_version(table, key, version)
            }
            _ => Err(another_kind()),
        }
    }
}

impl RowView<'_, '_> {
    /// The row's key.
    pub fn key(&self) -> &[u8] {
        match self {
            RowView::InPlace(row) => row.key(),
            RowView::Held(row) => row.key(),
        }
    }

    /// The field's value; `Null` if it is absent or has expired.
    ///
    /// # Errors
    /// `NotFound` if the table has no such field; `Corrupted`.
    pub fn get<F: FieldName>(&self, field: F) -> Result<Value<'_>> {
        match self {
            RowView::InPlace(row) => row.get(field),
            RowView::Held(row) => row.get(field),
        }
    }

    /// Whether the field is there.
    ///
    /// # Errors
    /// As [`RowView::get`].
    pub fn has<F: FieldName>(&self, field: F) -> Result<bool> {
        match self {
            RowView::InPlace(row) => row.has(field),
            RowView::Held(row) => row.has(field),
        }
    }

    /// Calls `visit` with the name and value of each field that is there, in the schema's order.
    ///
    /// # Errors
    /// `Corrupted`.
    pub fn for_each(&self, visit: impl FnMut(&str, Value<'_>)) -> Result<()> {
        match self {
            RowView::InPlace(row) => row.for_each(visit),
            RowView::Held(row) => row.for_each(visit),
        }
    }

    /// When the row expires, in ms since 1970, if it does.
    pub fn expires_at_ms(&self) -> Option<u64> {
        match self {
            RowView::InPlace(row) => row.expires_at_ms(),
            RowView::Held(row) => row.expires_at_ms(),
        }
    }

    /// When the field expires, in ms since 1970, if it is there and does.
    ///
    /// # Errors
    /// As [`RowView::get`].
    pub fn field_expires_at_ms<F: FieldName>(&self, field: F) -> Result<Option<u64>> {
        match self {
            RowView::InPlace(row) => row.field_expires_at_ms(field),
            RowView::Held(row) => row.field_expires_at_ms(field),
        }
    }

    /// A number that changes with every write of the row.
    pub fn version(&self) -> u64 {
        match self {
            RowView::InPlace(row) => row.version(),
            RowView::Held(row) => row.version(),
        }
    }

    /// Copies the row.
    ///
    /// # Errors
    /// As [`RowView::get`].
    pub fn to_row(&self) -> Result<Row> {
        match self {
            RowView::InPlace(row) => row.to_row(),
            RowView::Held(row) => row.to_row(None),
        }
    }
}
