//! `Db`, `Table`, `Batch`, `Snapshot`: what a user of the library holds.
//!
//! INTERIM SIGNATURES, bodies follow.
#![allow(unused_variables, missing_docs, clippy::todo)]

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use hedgerow_device::FastTier;

use crate::{Error, FieldName, Options, OwnedValue, Result, Schema, Type, Value};

/// An open store. Cheap to clone, `Send + Sync`.
#[derive(Clone)]
pub struct Db(Arc<()>);

impl Db {
    /// Opens the store in the directory `path`, creating it if there is none, with default options.
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        todo!()
    }
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        todo!()
    }
    /// Opens the store on a given fast tier (DRAM, emulated persistent memory, crash simulation).
    pub fn open_on(tier: FastTier, options: Options) -> Result<Db> {
        todo!()
    }
    /// Creates a table, or opens it if it exists with the same schema; another schema is `Exists`.
    pub fn create_table(&self, name: &str, schema: Schema) -> Result<Table> {
        todo!()
    }
    /// `NotFound` if there is none.
    pub fn table(&self, name: &str) -> Result<Table> {
        todo!()
    }
    pub fn table_names(&self) -> Vec<String> {
        todo!()
    }
    /// Drops a table and its rows; false if there is none. A table of the same name may be created again at once.
    pub fn drop_table(&self, name: &str) -> Result<bool> {
        todo!()
    }
    /// Writes all operations of `batch`, or none: one atomic step for readers with a snapshot and for crashes.
    pub fn write(&self, batch: Batch) -> Result<()> {
        todo!()
    }
    pub fn snapshot(&self) -> Snapshot {
        todo!()
    }
    /// Makes everything written so far durable against a power cut.
    pub fn persist(&self) -> Result<()> {
        todo!()
    }
    pub fn metrics(&self) -> Metrics {
        todo!()
    }
    /// Persists and closes. Later calls on other clones fail with `Closed`. Dropping the last clone does the same, silently.
    pub fn close(self) -> Result<()> {
        todo!()
    }
}

/// Counters and gauges at one moment.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    pub rows: u64,
    pub tables: u64,
    pub index_bytes: u64,
    pub fast_tier_bytes: u64,
    pub fast_tier_bytes_max: u64,
    pub live_bytes: u64,
    pub dead_bytes: u64,
    pub puts: u64,
    pub updates: u64,
    pub gets: u64,
    pub deletes: u64,
    pub scans: u64,
    pub syncs: u64,
    pub segments_collected: u64,
    pub bytes_collected: u64,
    pub expired: u64,
}

/// A table. Cheap to clone, `Send + Sync`.
///
/// `fields` arguments are slices or arrays of `(name, value)`; a name is `&str` or [`FieldId`](crate::FieldId). In an
/// open table an unknown `&str` name is learned.
#[derive(Clone)]
pub struct Table(Arc<()>);

impl Table {
    pub fn name(&self) -> String {
        todo!()
    }
    pub fn schema(&self) -> Arc<Schema> {
        todo!()
    }
    /// Resolves a name once.
    pub fn field(&self, name: &str) -> Result<crate::FieldId> {
        todo!()
    }
    /// Adds a nullable field.
    pub fn add_field(&self, name: &str, kind: Type) -> Result<()> {
        todo!()
    }
    pub fn rename_field(&self, name: &str, to: &str) -> Result<()> {
        todo!()
    }
    pub fn drop_field(&self, name: &str) -> Result<()> {
        todo!()
    }
    /// Writes a whole row over whatever was there; fields not named take their default. Clears the row's expiry.
    pub fn put<'v, F: FieldName>(&self, key: &[u8], fields: &[(F, Value<'v>)]) -> Result<()> {
        todo!()
    }
    /// `put` with an expiry in ms since 1970.
    pub fn put_expiring<'v, F: FieldName>(
        &self,
        key: &[u8],
        fields: &[(F, Value<'v>)],
        expires_at_ms: u64,
    ) -> Result<()> {
        todo!()
    }
    /// Writes the named fields, blind: makes the row if there is none. Keeps the row's expiry.
    /// `Null` removes a nullable field. Clears the expiry of the fields it writes.
    pub fn update<'v, F: FieldName>(&self, key: &[u8], fields: &[(F, Value<'v>)]) -> Result<()> {
        todo!()
    }
    /// Like `update`, but only if the row exists; says whether it did.
    pub fn update_existing<'v, F: FieldName>(&self, key: &[u8], fields: &[(F, Value<'v>)]) -> Result<bool> {
        todo!()
    }
    /// The whole row, copied.
    pub fn get(&self, key: &[u8]) -> Result<Option<Row>> {
        todo!()
    }
    /// The named fields only.
    pub fn get_fields<F: FieldName>(&self, key: &[u8], fields: &[F]) -> Result<Option<Row>> {
        todo!()
    }
    pub fn get_field<F: FieldName>(&self, key: &[u8], field: F) -> Result<Option<OwnedValue>> {
        todo!()
    }
    /// Runs `read` on the row in place, without copying it. `read` must be short: it holds back reclamation.
    pub fn read<R>(&self, key: &[u8], read: impl FnOnce(&RowRef<'_>) -> Result<R>) -> Result<Option<R>> {
        todo!()
    }
    /// One entry a key, in order; whole rows.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Row>>> {
        todo!()
    }
    /// Rows in key order; narrow it with the builder's methods, then iterate.
    pub fn scan(&self) -> Scan {
        todo!()
    }
    /// Whether there was a row.
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        todo!()
    }
    pub fn exists(&self, key: &[u8]) -> Result<bool> {
        todo!()
    }
    /// Adds to an integer field (a missing row or null counts as 0) and returns the sum; overflow is `Invalid`.
    pub fn increment<F: FieldName>(&self, key: &[u8], field: F, by: i64) -> Result<i64> {
        todo!()
    }
    /// Writes `new` if the field now equals `expected` (`Null` = absent); says whether it did.
    pub fn compare_and_set<F: FieldName>(
        &self,
        key: &[u8],
        field: F,
        expected: Value<'_>,
        new: Value<'_>,
    ) -> Result<bool> {
        todo!()
    }
    /// Read-modify-write of one row: `change` sees the row (or None) and says what to write. Atomic: repeated if the row changed.
    pub fn modify<R>(
        &self,
        key: &[u8],
        change: impl FnMut(Option<&RowRef<'_>>) -> Result<(Change, R)>,
    ) -> Result<R> {
        todo!()
    }
    /// Sets or clears the row's expiry (ms since 1970); false if there is no row.
    pub fn expire(&self, key: &[u8], at_ms: Option<u64>) -> Result<bool> {
        todo!()
    }
    /// Sets or clears the expiry of single fields; false if there is no row. Absent fields stay absent.
    pub fn expire_fields<F: FieldName>(&self, key: &[u8], fields: &[F], at_ms: Option<u64>) -> Result<bool> {
        todo!()
    }
    /// A number that changes with every write of the row; None if there is no row.
    pub fn version(&self, key: &[u8]) -> Result<Option<u64>> {
        todo!()
    }
    /// Rows in the table, expired ones not yet collected included.
    pub fn len(&self) -> u64 {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Removes all rows at once, whatever their number.
    pub fn clear(&self) -> Result<()> {
        todo!()
    }
}

/// What `Table::modify` writes.
#[derive(Debug, Clone)]
pub enum Change {
    /// Nothing.
    Keep,
    /// The whole row; expiry ms or None.
    Put {
        fields: Vec<(String, OwnedValue)>,
        expires_at_ms: Option<u64>,
    },
    /// Some fields, optionally with a field expiry for all of them.
    Update {
        fields: Vec<(String, OwnedValue)>,
    },
    Delete,
}

/// A row in place: borrowed from the log, checksums verified for the bytes that are read.
pub struct RowRef<'a>(std::marker::PhantomData<&'a ()>);

impl<'a> RowRef<'a> {
    pub fn schema(&self) -> &Schema {
        todo!()
    }
    /// The field's value; `Null` if absent; error if corrupted or unknown.
    pub fn get<F: FieldName>(&self, field: F) -> Result<Value<'a>> {
        todo!()
    }
    /// All present (non-null) fields in schema order.
    pub fn for_each(&self, f: impl FnMut(&str, Value<'a>)) -> Result<()> {
        todo!()
    }
    pub fn expires_at_ms(&self) -> Option<u64> {
        todo!()
    }
    pub fn field_expires_at_ms<F: FieldName>(&self, field: F) -> Result<Option<u64>> {
        todo!()
    }
    pub fn version(&self) -> u64 {
        todo!()
    }
    pub fn to_row(&self) -> Result<Row> {
        todo!()
    }
}

/// A row that owns its bytes.
#[derive(Debug, Clone)]
pub struct Row {}

impl Row {
    pub fn key(&self) -> &[u8] {
        todo!()
    }
    /// The field's value; `Null` if absent or not among the fields asked for.
    pub fn get(&self, field: &str) -> Value<'_> {
        todo!()
    }
    /// Present (non-null) fields, in schema order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        std::iter::empty()
    }
    pub fn expires_at_ms(&self) -> Option<u64> {
        todo!()
    }
    pub fn version(&self) -> u64 {
        todo!()
    }
}

/// A scan being described, then an iterator over `Result<Row>`.
pub struct Scan(());

impl Scan {
    /// Keys from here. Default unbounded.
    pub fn from(self, key: Bound<&[u8]>) -> Scan {
        todo!()
    }
    pub fn to(self, key: Bound<&[u8]>) -> Scan {
        todo!()
    }
    pub fn prefix(self, prefix: &[u8]) -> Scan {
        todo!()
    }
    pub fn reverse(self) -> Scan {
        todo!()
    }
    pub fn limit(self, rows: usize) -> Scan {
        todo!()
    }
    /// Only these fields.
    pub fn fields<F: FieldName>(self, fields: &[F]) -> Result<Scan> {
        todo!()
    }
    /// Runs `visit` on each row in place (key, row); stops when it returns false.
    pub fn for_each(self, visit: impl FnMut(&[u8], &RowRef<'_>) -> Result<bool>) -> Result<()> {
        todo!()
    }
}

impl Iterator for Scan {
    type Item = Result<Row>;
    fn next(&mut self) -> Option<Result<Row>> {
        todo!()
    }
}

/// Writes that happen together or not at all, over any tables of one store. The last write of a field wins.
#[derive(Default)]
pub struct Batch(());

impl Batch {
    pub fn new() -> Batch {
        todo!()
    }
    pub fn put<F: FieldName>(&mut self, table: &Table, key: &[u8], fields: &[(F, Value<'_>)]) -> Result<()> {
        todo!()
    }
    pub fn put_expiring<F: FieldName>(
        &mut self,
        table: &Table,
        key: &[u8],
        fields: &[(F, Value<'_>)],
        at_ms: u64,
    ) -> Result<()> {
        todo!()
    }
    pub fn update<F: FieldName>(
        &mut self,
        table: &Table,
        key: &[u8],
        fields: &[(F, Value<'_>)],
    ) -> Result<()> {
        todo!()
    }
    pub fn delete(&mut self, table: &Table, key: &[u8]) {
        todo!()
    }
    /// The batch fails with nothing written unless the row's `version` is still this one.
    pub fn require_version(&mut self, table: &Table, key: &[u8], version: Option<u64>) {
        todo!()
    }
    pub fn len(&self) -> usize {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The store as it was at one moment.
pub struct Snapshot(());

impl Snapshot {
    pub fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Row>> {
        todo!()
    }
    pub fn get_fields<F: FieldName>(&self, table: &Table, key: &[u8], fields: &[F]) -> Result<Option<Row>> {
        todo!()
    }
    pub fn scan(&self, table: &Table) -> Scan {
        todo!()
    }
}
