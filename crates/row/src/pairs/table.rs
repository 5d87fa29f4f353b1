//! `PairTable`: a table of rows that are pairs, for callers that wait.
//!
//! Owns the operations of a table, each a few calls of an attempt, made until it is committed. Names and meaning are those of the tiered store's
//! `Table`. Must not know commands or answers.

use std::sync::Arc;

use super::edit::{Edit, borrowed};
use super::held_row::HeldRow;
use super::transaction::{Transaction, WalkCursor, no_table};
use super::{PairDb, PairStore};
use crate::backend::Session;
use crate::comparison::is_equal;
use crate::increment::incremented;
use crate::schema::plan::FieldExpiries;
use crate::schema::table::{NewField, TableSchema};
use crate::schema::unknown_field;
use crate::{
    Change, ErrorKind, Expiry, FieldId, FieldName, Key, OwnedValue, Result, Row, Schema, Type, TypedRow,
    Value,
};

/// A table of rows that are pairs. Cheap to clone, `Send + Sync`.
///
/// Keys and fields are given as for the tiered store's `Table`. All calls wait for the backend, and can fail with its errors: `Corrupted`,
/// `Closed`, `Unavailable` (nothing happened), `Indeterminate` (it may have happened); and with `NotFound` once the table was dropped.
#[derive(Clone)]
pub struct PairTable {
    db: PairDb,
    name: Arc<str>,
    /// Tells it from a later table of the same name.
    number: u32,
}

impl PairTable {
    pub(super) fn new(db: &PairDb, name: &str, number: u32) -> PairTable {
        PairTable { db: db.clone(), name: name.into(), number }
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The table's fields now.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn schema(&self) -> Result<Arc<Schema>> {
        self.transact(None, |transaction| self.with_schema(transaction, |schema| Ok(schema.shared())))
    }

    /// Resolves a name.
    ///
    /// # Errors
    /// `NotFound` if there is no such field.
    pub fn field(&self, name: &str) -> Result<FieldId> {
        let schema = self.schema()?;
        Ok(schema.field_by_name(name).ok_or_else(|| unknown_field(name))?.id())
    }

    /// Adds a nullable field. Rows are not rewritten.
    ///
    /// # Errors
    /// `Exists`, or `Invalid` for a bad name or one field too many.
    pub fn add_field(&self, name: &str, kind: Type) -> Result<()> {
        self.evolve(|schema| schema.with_added(name, kind, NewField::Nullable))
    }

    /// Adds a field that rows written without it hold `default` in. Rows are not rewritten.
    ///
    /// # Errors
    /// As [`PairTable::add_field`], and `Invalid` if `default` does not fit the type.
    pub fn add_field_with_default<'v>(
        &self,
        name: &str,
        kind: Type,
        default: impl Into<Value<'v>>,
    ) -> Result<()> {
        let default = default.into();
        self.evolve(|schema| schema.with_added(name, kind, NewField::Default(Some(default))))
    }

    /// Gives a field another name. Its [`FieldId`] stays.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, or `Invalid` for a bad name.
    pub fn rename_field(&self, name: &str, to: &str) -> Result<()> {
        self.evolve(|schema| schema.with_renamed(name, to))
    }

    /// Drops a field. Its values are gone at once; the bytes go when rows are next rewritten.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn drop_field(&self, name: &str) -> Result<()> {
        self.evolve(|schema| schema.with_dropped(name))
    }

    /// Writes a whole row over whatever was there. Fields not named take their default; the row does not expire.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn put<F: FieldName>(&self, key: &(impl Key + ?Sized), fields: &[(F, Value<'_>)]) -> Result<()> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.edit(key, &Edit::Put(fields, None)).map(drop)
    }

    /// [`PairTable::put`] of a struct with `#[derive(Row)]`: all its fields; others of the table take their default.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn put_row<T: TypedRow>(&self, key: &(impl Key + ?Sized), row: &T) -> Result<()> {
        self.put(key, row.to_fields().as_ref())
    }

    /// The row as a struct with `#[derive(Row)]`.
    ///
    /// # Errors
    /// See [`PairTable`]; those of [`TypedRow::from_row`].
    pub fn get_row<T: TypedRow>(&self, key: &(impl Key + ?Sized)) -> Result<Option<T>> {
        self.read(key, |row| T::from_row(row))
    }

    /// [`PairTable::put`] of a row that expires.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn put_expiring<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.edit(key, &Edit::Put(fields, self.unix_ms(expiry))).map(drop)
    }

    /// Writes the named fields, and makes the row if there is none. Keeps the row's expiry, clears that of the fields it writes. `Null`
    /// removes a nullable field.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn update<F: FieldName>(&self, key: &(impl Key + ?Sized), fields: &[(F, Value<'_>)]) -> Result<()> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.edit(key, &Edit::Update(fields, FieldExpiries::All(None))).map(drop)
    }

    /// [`PairTable::update`], but only if the row exists. Returns whether it does.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn update_existing<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
    ) -> Result<bool> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        let edit = Edit::Update(fields, FieldExpiries::All(None));
        self.change(key, |transaction| self.update_existing_in(transaction, key, &edit))
    }

    /// [`PairTable::update`] of fields that expire.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn update_expiring<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.edit(key, &Edit::Update(fields, FieldExpiries::All(self.unix_ms(expiry)))).map(drop)
    }

    /// The whole row, copied.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn get(&self, key: &(impl Key + ?Sized)) -> Result<Option<Row>> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.read(key, |row| row.to_row(None))
    }

    /// Some fields of the row, copied.
    ///
    /// # Errors
    /// See [`PairTable`]; `NotFound` if there is no such field.
    pub fn get_fields<F: FieldName>(&self, key: &(impl Key + ?Sized), fields: &[F]) -> Result<Option<Row>> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.transact(Some(key), |transaction| {
            let ids = self.with_schema(transaction, |schema| field_ids(schema, fields))?;
            self.held(transaction, key, |row| row.map(|row| row.to_row(Some(&ids))).transpose())
        })
    }

    /// One field of the row, copied; `Null` if the row is there but the field is not.
    ///
    /// # Errors
    /// See [`PairTable`]; `NotFound` if there is no such field.
    pub fn get_field<F: FieldName>(&self, key: &(impl Key + ?Sized), field: F) -> Result<Option<OwnedValue>> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.transact(Some(key), |transaction| {
            self.with_schema(transaction, |schema| field_ids(schema, &[field]))?;
            self.held(transaction, key, |row| row.map(|row| Ok(row.get(field)?.to_owned())).transpose())
        })
    }

    /// Runs `read` on the row.
    ///
    /// # Errors
    /// See [`PairTable`], and those of `read`.
    pub fn read<R>(
        &self,
        key: &(impl Key + ?Sized),
        read: impl Fn(&HeldRow<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.transact(Some(key), |transaction| self.held(transaction, key, |row| row.map(&read).transpose()))
    }

    /// Whole rows, one answer for each key, in order. They are got together; each is as it was at some time of the call.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn multi_get<K: Key>(&self, keys: &[K]) -> Result<Vec<Option<Row>>> {
        self.transact(None, |transaction| {
            keys.iter().for_each(|key| transaction.prefetch(&self.name, key.key_bytes().as_ref()));
            let row = |key: &K| {
                let bytes = key.key_bytes();
                self.held(transaction, bytes.as_ref(), |row| row.map(|row| row.to_row(None)).transpose())
            };
            keys.iter().map(row).collect()
        })
    }

    /// Removes a row. Returns whether there was one.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn delete(&self, key: &(impl Key + ?Sized)) -> Result<bool> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.edit(key, &Edit::<&str>::Delete)
    }

    /// Whether there is a row.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn exists(&self, key: &(impl Key + ?Sized)) -> Result<bool> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        Ok(self.read(key, |_| Ok(()))?.is_some())
    }

    /// Adds to an integer field and returns the sum. A missing row or field counts as 0.
    ///
    /// # Errors
    /// See [`PairTable`]; `NotFound` if there is no such field, `Invalid` if it is no integer or the sum does not fit it.
    pub fn increment<F: FieldName>(&self, key: &(impl Key + ?Sized), field: F, by: i64) -> Result<i64> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.change(key, |transaction| self.increment_in(transaction, key, field, by))
    }

    /// Writes `new` if the field now is what writing `expected` would make it (`Null`: absent). Returns whether it did.
    ///
    /// # Errors
    /// See [`PairTable`]; `NotFound` if there is no such field.
    pub fn compare_and_set<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        field: F,
        expected: Value<'_>,
        new: Value<'_>,
    ) -> Result<bool> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.change(key, |transaction| self.compare_and_set_in(transaction, key, field, [expected, new]))
    }

    /// Reads and writes one row as one step: `change` sees the row, or `None`, and says what to write. It is asked again
    /// if the row changed meanwhile.
    ///
    /// # Errors
    /// See [`PairTable`], and those of `change`.
    pub fn modify<R>(
        &self,
        key: &(impl Key + ?Sized),
        mut change: impl FnMut(Option<&HeldRow<'_>>) -> Result<(Change, R)>,
    ) -> Result<R> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.change(key, |transaction| {
            let (change, result) = self.held(transaction, key, &mut change)?;
            let now_ms = transaction.now_ms();
            let now = || now_ms;
            let mut edit = |edit: Edit<'_, &String>| transaction.edit(&self.name, key, &edit).map(drop);
            match &change {
                Change::Keep => {}
                Change::Put { fields, expiry } => edit(Edit::Put(&borrowed(fields), expiry.unix_ms(now)))?,
                Change::Update { fields, expiry } => {
                    edit(Edit::Update(&borrowed(fields), FieldExpiries::All(expiry.unix_ms(now))))?;
                }
                Change::Expire(expiry) => edit(Edit::Expire(expiry.unix_ms(now)))?,
                Change::Delete => edit(Edit::Delete)?,
            }
            Ok(result)
        })
    }

    /// Removes those of these rows of which `is_over` says so, each as one step, all of them together: however many there are, it takes few
    /// exchanges. One that somebody else changes meanwhile stays, and so does one that cannot be read.
    ///
    /// # Errors
    /// See [`PairTable`]: the first, once all were tried.
    pub fn remove_if(&self, keys: &[Vec<u8>], is_over: impl Fn(&HeldRow<'_>) -> Result<bool>) -> Result<()> {
        self.with_store(|_, session| {
            let mut attempts: Vec<Transaction> = keys.iter().map(|_| self.db.transaction()).collect();
            attempts.iter().zip(keys).for_each(|(attempt, key)| attempt.prefetch(&self.name, key));
            let fetched = Transaction::finish_all(session, &mut attempts, |attempt, session| {
                attempt.begin_fetch(session)
            });
            for ((attempt, key), fetched) in attempts.iter_mut().zip(keys).zip(&fetched) {
                let found = |row: Option<&HeldRow<'_>>| row.map_or(Ok(false), &is_over);
                if fetched.is_ok() && self.held(attempt, key, found).unwrap_or(false) {
                    self.edit_in(attempt, key, &Edit::<&str>::Delete)?;
                }
            }
            let removed =
                Transaction::finish_all(session, &mut attempts, |attempt, _| attempt.begin_commit());
            let is_told = |result: &Result<()>| {
                !result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Conflict)
            };
            fetched.into_iter().chain(removed).filter(is_told).collect()
        })
    }

    /// Sets when the row expires, or with [`Expiry::Never`] that it does not. Returns whether there is a row.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn expire(&self, key: &(impl Key + ?Sized), expiry: impl Into<Expiry>) -> Result<bool> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.edit(key, &Edit::<&str>::Expire(self.unix_ms(expiry)))
    }

    /// Sets when some fields expire, or with [`Expiry::Never`] that they do not. Fields that are absent stay so. Returns whether
    /// there is a row.
    ///
    /// # Errors
    /// See [`PairTable`]; `Invalid` if a field is not nullable.
    pub fn expire_fields<F: FieldName>(
        &self,
        key: &(impl Key + ?Sized),
        fields: &[F],
        expiry: impl Into<Expiry>,
    ) -> Result<bool> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        let at_ms = self.unix_ms(expiry);
        self.change(key, |transaction| {
            let found = self.held(transaction, key, |row| {
                let Some(row) = row else { return Ok(None) };
                let values = fields.iter().map(|&field| Ok((field, row.get(field)?.to_owned())));
                values.collect::<Result<Vec<(F, OwnedValue)>>>().map(Some)
            })?;
            let Some(found) = found else { return Ok(false) };
            let values = found.iter().map(|(field, value)| (*field, value.borrow()));
            let present: Vec<(F, Value<'_>)> = values.filter(|(_, value)| !value.is_null()).collect();
            if !present.is_empty() {
                transaction.edit(&self.name, key, &Edit::Update(&present, FieldExpiries::All(at_ms)))?;
            }
            Ok(true)
        })
    }

    /// A number that changes with every write of the row; `None` if there is no row.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn version(&self, key: &(impl Key + ?Sized)) -> Result<Option<u64>> {
        let bytes = key.key_bytes();
        let key = bytes.as_ref();
        self.read(key, |row| Ok(row.version()))
    }

    /// Runs `look` on some rows, in no order: at most `rows` of them, and perhaps none. What is there throughout a walk comes at least
    /// once. Gives where to go on; `None` at the end.
    ///
    /// # Errors
    /// See [`PairTable`], and those of `look`.
    pub fn walk(
        &self,
        from: &WalkCursor,
        rows: usize,
        mut look: impl FnMut(&HeldRow<'_>) -> Result<()>,
    ) -> Result<Option<WalkCursor>> {
        self.walk_over_damage(from, rows, |row| look(&row?))
    }

    /// Whether a walk can go on here. Not if it began in a table of the same name that is gone: then [`PairTable::walk`] refuses it.
    pub fn goes_on(&self, from: &WalkCursor) -> bool {
        from.is_of(self.number)
    }

    /// [`PairTable::walk`] that is told of rows that are damaged, and can go on after them.
    ///
    /// # Errors
    /// See [`PairTable`], and those of `look`.
    pub fn walk_over_damage(
        &self,
        from: &WalkCursor,
        rows: usize,
        mut look: impl FnMut(Result<HeldRow<'_>>) -> Result<()>,
    ) -> Result<Option<WalkCursor>> {
        self.transact(None, |transaction| {
            self.with_schema(transaction, |_| Ok(()))?;
            transaction.walk(&self.name, from, rows, &mut look)
        })
    }

    /// About how many rows there are; exactly where nobody writes meanwhile, expired ones that nobody has come by included.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn len(&self) -> Result<u64> {
        self.transact(None, |transaction| {
            self.with_schema(transaction, |_| Ok(()))?;
            transaction.count(&self.name)
        })
    }

    /// Whether the table has no rows, as far as [`PairTable::len`] says.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Removes all rows. They are gone at once; what they took is freed one by one.
    ///
    /// # Errors
    /// See [`PairTable`].
    pub fn clear(&self) -> Result<()> {
        self.with_store(|store, session| store.clear(session, &self.name, Some(self.number)).map(drop))
    }

    fn evolve(&self, change: impl Fn(&TableSchema) -> Result<TableSchema>) -> Result<()> {
        self.with_store(|store, session| {
            store.evolve(session, &self.name, Some(self.number), &change).map(drop)
        })
    }

    fn with_store<R>(&self, run: impl FnOnce(&PairStore, &mut dyn Session) -> Result<R>) -> Result<R> {
        self.db.store.with_session(|session| run(&self.db.store, session))
    }

    /// Runs `run` on attempts, which want the row of `key` from the beginning.
    fn transact<R>(
        &self,
        key: Option<&[u8]>,
        mut run: impl FnMut(&mut Transaction) -> Result<R>,
    ) -> Result<R> {
        self.db.transact(|transaction| {
            if let Some(key) = key {
                transaction.prefetch(&self.name, key);
            }
            run(transaction)
        })
    }

    /// The same, of a key that a row can have.
    fn change<R>(&self, key: &[u8], run: impl FnMut(&mut Transaction) -> Result<R>) -> Result<R> {
        self.check_key(key)?;
        self.transact(Some(key), run)
    }

    /// Runs `look` on the schema, if the table is still this one.
    fn with_schema<R>(
        &self,
        transaction: &Transaction,
        look: impl FnOnce(&TableSchema) -> Result<R>,
    ) -> Result<R> {
        match transaction.entry(&self.name)? {
            Some(entry) if entry.table == self.number => look(&entry.schema),
            _ => Err(no_table(&self.name)),
        }
    }

    /// An expiry as pairs have it: milliseconds since 1970, by the store's clock.
    pub(super) fn unix_ms(&self, expiry: impl Into<Expiry>) -> Option<u64> {
        expiry.into().unix_ms(|| self.db.store.clock.now_ms())
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn is_of(&self, db: &PairDb) -> bool {
        Arc::ptr_eq(&self.db.store, &db.store)
    }

    pub(super) fn check_key(&self, key: &[u8]) -> Result<()> {
        self.db.store.check_key(key)
    }

    pub(super) fn held<R>(
        &self,
        transaction: &Transaction,
        key: &[u8],
        look: impl FnOnce(Option<&HeldRow<'_>>) -> Result<R>,
    ) -> Result<R> {
        self.with_schema(transaction, |_| Ok(()))?;
        transaction.read(&self.name, key, look)
    }

    fn edit<F: FieldName>(&self, key: &[u8], edit: &Edit<'_, F>) -> Result<bool> {
        let wanted = edit.needs_row().then_some(key);
        self.transact(wanted, |transaction| self.edit_in(transaction, key, edit))
    }

    pub(super) fn edit_in<F: FieldName>(
        &self,
        transaction: &mut Transaction,
        key: &[u8],
        edit: &Edit<'_, F>,
    ) -> Result<bool> {
        self.with_schema(transaction, |_| Ok(()))?;
        transaction.edit(&self.name, key, edit)
    }

    pub(super) fn update_existing_in<F: FieldName>(
        &self,
        transaction: &mut Transaction,
        key: &[u8],
        edit: &Edit<'_, F>,
    ) -> Result<bool> {
        let exists = self.held(transaction, key, |row| Ok(row.is_some()))?;
        match exists {
            true => transaction.edit(&self.name, key, edit).map(drop)?,
            false => transaction.check(&self.name, edit)?,
        }
        Ok(exists)
    }

    pub(super) fn increment_in<F: FieldName>(
        &self,
        transaction: &mut Transaction,
        key: &[u8],
        field: F,
        by: i64,
    ) -> Result<i64> {
        let schema = self.with_schema(transaction, |schema| Ok(schema.shared()))?;
        let sum = self.held(transaction, key, |row| {
            let old = || row.map_or(Ok(OwnedValue::Null), |row| Ok(row.get(field)?.to_owned()));
            incremented(&schema, field, old, by)
        })?;
        let fields = [(field, Value::Int(sum))];
        transaction.edit(&self.name, key, &Edit::Update(&fields, FieldExpiries::All(None)))?;
        Ok(sum)
    }

    pub(super) fn compare_and_set_in<F: FieldName>(
        &self,
        transaction: &mut Transaction,
        key: &[u8],
        field: F,
        [expected, new]: [Value<'_>; 2],
    ) -> Result<bool> {
        let schema = self.with_schema(transaction, |schema| {
            field_ids(schema, &[field])?;
            Ok(schema.shared())
        })?;
        let equal = self.held(transaction, key, |row| {
            let held = row.map_or(Ok(Value::Null), |row| row.get(field))?;
            is_equal(&schema, field, held, expected)
        })?;
        if equal {
            let fields = [(field, new)];
            transaction.edit(&self.name, key, &Edit::Update(&fields, FieldExpiries::All(None)))?;
        }
        Ok(equal)
    }
}

fn field_ids<F: FieldName>(schema: &TableSchema, fields: &[F]) -> Result<Vec<FieldId>> {
    let schema = schema.fields();
    let id = |field: &F| {
        let position = field.find(schema).ok_or_else(|| unknown_field(*field))?;
        Ok(schema.fields()[position].id())
    };
    fields.iter().map(id).collect()
}
