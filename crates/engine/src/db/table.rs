//! `Table`: a handle to one table, and its operations.

use std::sync::Arc;

use hedgerow_row::comparison::is_equal;
use hedgerow_row::increment::incremented;
use hedgerow_row::schema::plan::PlanError;
use hedgerow_row::schema::table::NewField;
use hedgerow_row::schema::unknown_field;
use smallvec::SmallVec;

use super::Db;
use super::counters::Count;
use super::engine::{Engine, TableShared};
use super::read::{GROUP, ReadView, RowRef};
use super::shared_table::expiring::Expiring;
use super::write::{At, Edit, Step};
use crate::index::Slot;
use crate::sync::atomic::Ordering;
use crate::{
    Change, Expiry, FieldId, FieldName, Key, OwnedValue, Result, Row, Schema, Type, TypedRow, Value,
};

/// A table. Cheap to clone, `Send + Sync`.
///
/// Keys have 1 to 65,536 bytes: strings and bytes are keys as they are, integers and tuples are encoded so that their order is the
/// order of rows ([`Key`]). Fields are given as `(name, value)` pairs, where a name is a `&str`, or a [`FieldId`]
/// where the look-up should be paid once. In an open table an unknown `&str` is learned as a new field.
///
/// All calls can fail with `Corrupted` (bytes at rest are not what was written); writes also with `Invalid` (a key, name,
/// type or size that cannot be), `Full` (the fast tier holds as much live data as it may), `Closed` and `Io`.
#[derive(Clone)]
pub struct Table {
    engine: Arc<Engine>,
    shared: Arc<TableShared>,
    /// Keeps the store open.
    _db: Db,
}

/// Keeps what is found under it where it is; see [`Db::pin`].
#[derive(Debug)]
pub struct ReadGuard<'d>(pub(super) ReadView<'d>);

/// Where the row of a key was when it was [looked up](Table::look_up): writes since then are not seen through it.
#[derive(Debug, Clone, Copy)]
pub struct RowHandle<'p> {
    slot: Option<Slot>,
    /// The table, as the log numbers it: clearing a table changes it.
    table: u32,
    view: &'p ReadView<'p>,
}

/// Ids of fields; on the stack as long as they are few.
pub(super) type FieldIds = SmallVec<[FieldId; 8]>;

#[inline]
fn id_in<F: FieldName>(schema: &Schema, field: F) -> Result<FieldId> {
    let position = field.find(schema).ok_or_else(|| unknown_field(field))?;
    Ok(schema.fields()[position].id())
}

impl Table {
    pub(super) fn new(db: &Db, shared: Arc<TableShared>) -> Table {
        Table { engine: Arc::clone(&db.engine), shared, _db: db.clone() }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn shared(&self) -> &Arc<TableShared> {
        &self.shared
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The table's fields now.
    pub fn schema(&self) -> Arc<Schema> {
        self.shared.schema.load().shared()
    }

    /// Resolves a name, for hot paths.
    ///
    /// # Errors
    /// `NotFound` if there is no such field.
    pub fn field(&self, name: &str) -> Result<FieldId> {
        self.field_id(name)
    }

    /// The ids of fields in the current schema, which is looked up once for all of them.
    #[inline]
    pub(super) fn field_ids<F: FieldName>(&self, fields: &[F]) -> Result<FieldIds> {
        let schema = self.shared.schema.load();
        let mut ids = FieldIds::new();
        for &field in fields {
            ids.push(id_in(schema.fields(), field)?);
        }
        Ok(ids)
    }

    pub(super) fn field_id<F: FieldName>(&self, field: F) -> Result<FieldId> {
        id_in(self.shared.schema.load().fields(), field)
    }

    /// Adds a nullable field. Rows are not rewritten.
    ///
    /// # Errors
    /// `Exists`, or `Invalid` for a bad name or one field too many.
    pub fn add_field(&self, name: &str, kind: Type) -> Result<()> {
        self.engine.evolve(&self.shared, |schema| schema.with_added(name, kind, NewField::Nullable))
    }

    /// Adds a field that rows written without it hold `default` in. Rows are not rewritten.
    ///
    /// # Errors
    /// As [`Table::add_field`], and `Invalid` if `default` does not fit the type.
    pub fn add_field_with_default<'v>(
        &self,
        name: &str,
        kind: Type,
        default: impl Into<Value<'v>>,
    ) -> Result<()> {
        let default = default.into();
        self.engine
            .evolve(&self.shared, |schema| schema.with_added(name, kind, NewField::Default(Some(default))))
    }

    /// Gives a field another name. Its [`FieldId`] stays.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, or `Invalid` for a bad name.
    pub fn rename_field(&self, name: &str, to: &str) -> Result<()> {
        self.engine.evolve(&self.shared, |schema| schema.with_renamed(name, to))
    }

    /// Drops a field. Its values are gone at once; the bytes go when rows are next rewritten.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn drop_field(&self, name: &str) -> Result<()> {
        self.engine.evolve(&self.shared, |schema| schema.with_dropped(name))
    }

    /// Writes a whole row over whatever was there. Fields not named take their default; the row does not expire.
    ///
    /// # Errors
    /// See [`Table`].
    #[inline]
    pub fn put<F: FieldName>(&self, key: &(impl Key + ?Sized), fields: &[(F, Value<'_>)]) -> Result<()> {
        self.engine.put(&self.shared, key.key_bytes().as_ref(), fields, None)
    }

    /// [`Table::put`] of a row that expires: after a `Duration`, or at a `SystemTime`.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn put_expiring<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        self.engine.put(&self.shared, key.key_bytes().as_ref(), fields, self.unix_ms(expiry.into()))
    }

    /// [`Table::put`] of a struct with `#[derive(Row)]`: all its fields; others of the table take their default.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn put_row<T: TypedRow>(&self, key: &(impl Key + ?Sized), row: &T) -> Result<()> {
        self.put(key, row.to_fields().as_ref())
    }

    /// Writes the named fields, without reading the row; makes it if there is none. Keeps the row's expiry, clears that of
    /// the fields it writes. `Null` removes a nullable field.
    ///
    /// # Errors
    /// See [`Table`].
    #[inline]
    pub fn update<F: FieldName>(&self, key: &(impl Key + ?Sized), fields: &[(F, Value<'_>)]) -> Result<()> {
        self.engine.update(&self.shared, key.key_bytes().as_ref(), fields, false).map(drop)
    }

    /// [`Table::update`], but only if the row exists. Returns whether it does.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn update_existing<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
    ) -> Result<bool> {
        self.engine.update(&self.shared, key.key_bytes().as_ref(), fields, true)
    }

    /// The whole row, copied.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn get(&self, key: &(impl Key + ?Sized)) -> Result<Option<Row>> {
        self.get_bytes(key.key_bytes().as_ref())
    }

    fn get_bytes(&self, key: &[u8]) -> Result<Option<Row>> {
        self.engine.read(&self.shared, key, None, None, |row| row.to_row())
    }

    /// The row as a struct with `#[derive(Row)]`.
    ///
    /// # Errors
    /// See [`Table`]; those of [`TypedRow::from_row`].
    pub fn get_row<T: TypedRow>(&self, key: &(impl Key + ?Sized)) -> Result<Option<T>> {
        self.read(key, |row| T::from_row(row))
    }

    /// Some fields of the row, copied. Only their bytes are read.
    ///
    /// # Errors
    /// See [`Table`]; `NotFound` if there is no such field.
    pub fn get_fields<F: FieldName>(&self, key: &(impl Key + ?Sized), fields: &[F]) -> Result<Option<Row>> {
        let ids = self.field_ids(fields)?;
        self.get_ids(key.key_bytes().as_ref(), &ids)
    }

    fn get_ids(&self, key: &[u8], ids: &[FieldId]) -> Result<Option<Row>> {
        self.engine.read(&self.shared, key, None, Some(ids), |row| row.copy(Some(ids)))
    }

    /// One field of the row, copied; `Null` if the row is there but the field is not.
    ///
    /// # Errors
    /// See [`Table`]; `NotFound` if there is no such field.
    pub fn get_field<F: FieldName>(&self, key: &(impl Key + ?Sized), field: F) -> Result<Option<OwnedValue>> {
        self.read_fields(key.key_bytes().as_ref(), &[field], |row| Ok(row.get(field)?.to_owned()))
    }

    /// Runs `read` on the row in place, without copying it. While it runs nothing that was freed is reused, so it should be
    /// short. A write that it makes where space is short waits for space in vain, and may fail with `Full`.
    ///
    /// # Errors
    /// See [`Table`], and those of `read`.
    #[inline]
    pub fn read<R>(
        &self,
        key: &(impl Key + ?Sized),
        read: impl FnOnce(&RowRef<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        self.engine.read(&self.shared, key.key_bytes().as_ref(), None, None, read)
    }

    /// [`Table::read`] for whoever will ask for these fields: only they are prefetched, which is quicker where they are a small
    /// part of the row. Others can be read as well, and are waited for.
    ///
    /// # Errors
    /// See [`Table`], and those of `read`; `NotFound` if there is no such field.
    #[inline]
    pub fn read_fields<F: FieldName, R>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[F],
        read: impl FnOnce(&RowRef<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        let ids = self.field_ids(fields)?;
        self.engine.read(&self.shared, key.key_bytes().as_ref(), None, Some(&ids), read)
    }

    /// Brings the rows of these keys into the processor's caches, as far as they lie in the log: for reads and updates that
    /// follow at once, one by one. Their misses overlap. Neither the rows nor what calls return depend on it.
    pub fn prefetch(&self, keys: &[&[u8]]) {
        self.engine.prefetch_rows(&self.shared, keys);
    }

    /// Looks `keys` up for reads that follow at once, and brings their rows into the processor's caches as [`Table::prefetch`]
    /// does; `visit` is called with the position of each key and a handle of its row, in order.
    pub fn look_up<'p>(
        &self,
        guard: &'p ReadGuard<'_>,
        keys: &[&[u8]],
        mut visit: impl FnMut(usize, RowHandle<'p>),
    ) {
        let table = self.shared.id.load(Ordering::Acquire);
        for (group, keys) in keys.chunks(GROUP).enumerate() {
            self.engine.look_up_rows(&self.shared, keys, |index, slot| {
                visit(group * GROUP + index, RowHandle { slot, table, view: &guard.0 });
            });
        }
    }

    /// [`Table::read`] of a key that was looked up before: without looking it up again.
    ///
    /// # Errors
    /// See [`Table`], and those of `read`.
    #[inline]
    pub fn read_handle<R>(
        &self,
        key: &(impl Key + ?Sized),
        row: RowHandle<'_>,
        read: impl FnOnce(&RowRef<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        // A guard of another store holds nothing here, and a handle of another table's row leads to no row of this one.
        if !row.view.is_of(&self.engine) || row.table != self.shared.id.load(Ordering::Acquire) {
            return self.read(key.key_bytes().as_ref(), read);
        }
        self.engine.read_handle(&self.shared, key.key_bytes().as_ref(), (row.view, row.slot), read)
    }

    /// Whole rows, one answer for each key, in order. The look-ups overlap.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn multi_get<K: Key>(&self, keys: &[K]) -> Result<Vec<Option<Row>>> {
        let mut rows = Vec::with_capacity(keys.len());
        self.engine.read_many(&self.shared, keys, None, |row| {
            rows.push(row.map(RowRef::to_row).transpose()?);
            Ok(())
        })?;
        Ok(rows)
    }

    /// Runs `read` on the row of each key in place, in order. The look-ups overlap.
    ///
    /// # Errors
    /// See [`Table`], and those of `read`.
    pub fn read_many<K: Key>(
        &self,
        keys: &[K],
        read: impl FnMut(Option<&RowRef<'_>>) -> Result<()>,
    ) -> Result<()> {
        self.engine.read_many(&self.shared, keys, None, read)
    }

    /// [`Table::update`] of fields that expire: after a `Duration`, or at a `SystemTime`. The row stays.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn update_expiring<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        let at_ms = self.unix_ms(expiry.into());
        self.with_row(key.key_bytes().as_ref(), |at| {
            Ok(self.engine.apply(at, Edit::Update(fields, at_ms))?.then(()))
        })
    }

    /// Removes a row. Returns whether there was one; [`Table::remove`] does not.
    ///
    /// # Errors
    /// See [`Table`]. Works while the store is `Full`.
    pub fn delete(&self, key: &(impl Key + ?Sized)) -> Result<bool> {
        self.engine.delete(&self.shared, key.key_bytes().as_ref())
    }

    /// Removes a row if there is one, and does not say whether. So it never waits for the disk, as [`Table::delete`] may for rows in sorted tables.
    ///
    /// # Errors
    /// See [`Table`]. Works while the store is `Full`.
    pub fn remove(&self, key: &(impl Key + ?Sized)) -> Result<()> {
        self.engine.remove(&self.shared, key.key_bytes().as_ref())
    }

    /// Whether there is a row.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn exists(&self, key: &(impl Key + ?Sized)) -> Result<bool> {
        self.engine.exists(&self.shared, key.key_bytes().as_ref())
    }

    /// Adds to an integer field and returns the sum. A missing row or field counts as 0.
    ///
    /// # Errors
    /// See [`Table`]; `NotFound` if there is no such field, `Invalid` if it is no integer or the sum does not fit it.
    pub fn increment<F: FieldName>(&self, key: &(impl Key + ?Sized), field: F, by: i64) -> Result<i64> {
        self.with_row(key.key_bytes().as_ref(), |at| {
            let old = || at.row.map_or(Ok(OwnedValue::Null), |row| Ok(row.get(field)?.to_owned()));
            let sum = incremented(at.schema.fields(), field, old, by)?;
            Ok(self.engine.apply(at, Edit::Update(&[(field, Value::Int(sum))], None))?.then(sum))
        })
    }

    /// Writes `new` if the field now is what writing `expected` would make it (`Null`: absent). Returns whether it did.
    ///
    /// # Errors
    /// See [`Table`]; `NotFound` if there is no such field.
    pub fn compare_and_set<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        field: F,
        expected: Value<'_>,
        new: Value<'_>,
    ) -> Result<bool> {
        self.with_row(key.key_bytes().as_ref(), |at| {
            let schema = at.schema.fields();
            if field.find(schema).is_none() {
                return Err(unknown_field(field).into());
            }
            let held = at.row.map_or(Ok(Value::Null), |row| row.get(field))?;
            if !is_equal(schema, field, held, expected)? {
                return Ok(Step::Done(false));
            }
            Ok(self.engine.apply(at, Edit::Update(&[(field, new)], None))?.then(true))
        })
    }

    /// Reads and writes one row as one step: `change` sees the row, or `None`, and says what to write. It is asked again
    /// if the row changed meanwhile. As of [`Table::read`], it should be short, and write nothing itself.
    ///
    /// # Errors
    /// See [`Table`], and those of `change`.
    pub fn modify<R>(
        &self,
        key: &(impl Key + ?Sized),
        mut change: impl FnMut(Option<&RowRef<'_>>) -> Result<(Change, R)>,
    ) -> Result<R> {
        self.with_row(key.key_bytes().as_ref(), |at| {
            let (change, result) = change(at.row)?;
            let outcome = match &change {
                Change::Keep => return Ok(Step::Done(result)),
                Change::Expire(_) | Change::Delete if at.row.is_none() => return Ok(Step::Done(result)),
                Change::Put { fields, expiry } => {
                    self.engine.apply(at, Edit::Put(&borrowed(fields), self.unix_ms(*expiry)))?
                }
                Change::Update { fields, expiry } => {
                    self.engine.apply(at, Edit::Update(&borrowed(fields), self.unix_ms(*expiry)))?
                }
                Change::Expire(expiry) => {
                    self.engine.apply(at, Edit::<&str>::Expire(self.unix_ms(*expiry)))?
                }
                Change::Delete => self.engine.apply(at, Edit::<&str>::Delete)?,
            };
            Ok(outcome.then(result))
        })
    }

    /// Sets when the row expires, or with [`Expiry::Never`] that it does not. Returns whether there is a row.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn expire(&self, key: &(impl Key + ?Sized), expiry: impl Into<Expiry>) -> Result<bool> {
        let at_ms = self.unix_ms(expiry.into());
        self.with_row(key.key_bytes().as_ref(), |at| match at.row {
            None => Ok(Step::Done(false)),
            Some(_) => Ok(self.engine.apply(at, Edit::<&str>::Expire(at_ms))?.then(true)),
        })
    }

    /// Sets when some fields expire, or with [`Expiry::Never`] that they do not. Fields that are absent stay so. Returns
    /// whether there is a row.
    ///
    /// # Errors
    /// See [`Table`]; `Invalid` if a field is not nullable.
    pub fn expire_fields<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[F],
        expiry: impl Into<Expiry>,
    ) -> Result<bool> {
        let at_ms = self.unix_ms(expiry.into());
        self.with_row(key.key_bytes().as_ref(), |at| {
            let Some(row) = at.row else { return Ok(Step::Done(false)) };
            let mut present = Vec::with_capacity(fields.len());
            for &field in fields {
                let value = row.get(field)?;
                if !value.is_null() {
                    present.push((field, value));
                }
            }
            if present.is_empty() {
                return Ok(Step::Done(true));
            }
            Ok(self.engine.apply(at, Edit::Update(&present, at_ms))?.then(true))
        })
    }

    /// A number that changes with every write of the row; `None` if there is no row.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn version(&self, key: &(impl Key + ?Sized)) -> Result<Option<u64>> {
        self.read(key.key_bytes().as_ref(), |row| Ok(row.version()))
    }

    /// Rows in the table, expired ones that are not yet swept included. It reads nothing, and walks nothing.
    ///
    /// Of a table that has rows in sorted tables it is an estimate, and never too low: a row there that was put again, updated or deleted since counts, besides what was written, until both
    /// are merged. It is exact once all rows have left the log and are merged, or if none that had left it was written. It is the same after the store was opened again.
    pub fn len(&self) -> u64 {
        self.engine.rows_of(&self.shared)
    }

    /// How many rows have an expiry, and when they expire on the mean: those of the log, not those of sorted tables. It walks nothing.
    pub fn expiring(&self) -> Expiring {
        self.shared.expiry.get()
    }

    /// Whether the table has no rows. Of one that has some in sorted tables, and few or none besides, the first may have to be looked for there; where that
    /// fails it is taken to have some.
    pub fn is_empty(&self) -> bool {
        match self.shared.below() {
            false => self.len() == 0,
            true => self.scan().limit(1).next().is_none(),
        }
    }

    /// Whether the table surely has no rows: it may have none though it is not known. Nothing is looked for in sorted tables.
    #[doc(hidden)]
    pub fn is_known_to_be_empty(&self) -> bool {
        self.engine.has_nothing_of(&self.shared)
    }

    /// Removes all rows at once, whatever their number.
    ///
    /// # Errors
    /// `NotFound` if the table has been dropped, `Io`, `Closed`.
    pub fn clear(&self) -> Result<()> {
        self.engine.clear_table(&self.shared)
    }

    /// An expiry as the log has it: milliseconds since 1970, by the store's clock.
    pub(super) fn unix_ms(&self, expiry: Expiry) -> Option<u64> {
        expiry.unix_ms(|| self.engine.clock.now_ms())
    }

    fn with_row<R>(
        &self,
        key: &[u8],
        decide: impl for<'r, 's> FnMut(At<'r, 's>) -> Result<Step<R>, PlanError>,
    ) -> Result<R> {
        self.engine.counters.add(Count::Update);
        self.engine.with_row(&self.shared, key, decide)
    }
}

fn borrowed(fields: &[(String, OwnedValue)]) -> Vec<(&str, Value<'_>)> {
    fields.iter().map(|(name, value)| (name.as_str(), value.borrow())).collect()
}
