//! `HeldRow`: a row of a backend that keeps pairs, as it was got.
//!
//! Owns how its fields are read, which is as those of a row in place are. Must not know where the pair came from.

use std::sync::Arc;

use crate::schema::body::{BodyBytes, FieldRead, RowBody, is_past};
use crate::schema::table::TableSchema;
use crate::schema::unknown_field;
use crate::stored_row::StoredRow;
use crate::{Error, FieldId, FieldName, ReadFields, Result, Row, Value};

/// A row, held by its reader. It shows the row as it was when it was got.
#[derive(Debug, Clone)]
pub struct HeldRow<'a> {
    stored: StoredRow<'a>,
    schema: &'a Arc<TableSchema>,
    version: u64,
    now_ms: u64,
}

impl ReadFields for HeldRow<'_> {
    fn value(&self, field: &str) -> Result<Value<'_>> {
        self.get(field)
    }
}

impl<'a> HeldRow<'a> {
    pub(super) fn new(
        stored: StoredRow<'a>,
        schema: &'a Arc<TableSchema>,
        version: u64,
        now_ms: u64,
    ) -> HeldRow<'a> {
        HeldRow { stored, schema, version, now_ms }
    }

    /// The row's key.
    pub fn key(&self) -> &'a [u8] {
        self.stored.key()
    }

    /// The field's value; `Null` if it is absent or has expired.
    ///
    /// # Errors
    /// `NotFound` if the table has no such field, `Corrupted` if its bytes are not what was written.
    pub fn get<F: FieldName>(&self, field: F) -> Result<Value<'_>> {
        self.value(self.position(field)?)
    }

    /// Whether the field is there.
    ///
    /// # Errors
    /// As [`HeldRow::get`].
    pub fn has<F: FieldName>(&self, field: F) -> Result<bool> {
        Ok(!self.get(field)?.is_null())
    }

    /// Calls `visit` with the name and value of each field that is there, in the schema's order.
    ///
    /// # Errors
    /// `Corrupted` if bytes are not what was written.
    pub fn for_each(&self, mut visit: impl FnMut(&str, Value<'_>)) -> Result<()> {
        let fields = self.schema.fields().fields();
        self.for_each_position(|position, value| visit(fields[position].name(), value))
    }

    fn for_each_position(&self, mut visit: impl FnMut(usize, Value<'_>)) -> Result<()> {
        self.body()?.for_each(self.schema, |position, field| {
            let value = field.at(self.now_ms);
            if !value.is_null() {
                visit(position, value);
            }
        })
    }

    /// When the row expires, in ms since 1970, if it does.
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.stored.expires_at_ms()
    }

    /// When the field expires, in ms since 1970, if it is there and does.
    ///
    /// # Errors
    /// As [`HeldRow::get`].
    pub fn field_expires_at_ms<F: FieldName>(&self, field: F) -> Result<Option<u64>> {
        let read = self.read(self.position(field)?)?;
        Ok(if is_past(read.expires_at_ms, self.now_ms) { None } else { read.expires_at_ms })
    }

    /// Whether fields of it expire, or have, on their own.
    pub fn has_field_expiry(&self) -> bool {
        self.stored.has_field_expiry()
    }

    /// A number that changes with every write of the row; 0 of one that is not written yet.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Copies the row, or only some fields; one dropped meanwhile is left out.
    ///
    /// # Errors
    /// As [`HeldRow::get`].
    pub fn to_row(&self, ids: Option<&[FieldId]>) -> Result<Row> {
        let fields = ids.map_or(self.schema.fields().fields().len(), <[_]>::len);
        let bytes = if ids.is_none() { BodyBytes::len(&&self.stored) } else { 64 };
        let mut row =
            Row::new(self.schema, self.key(), (self.version, self.expires_at_ms()), (fields, bytes));
        match ids {
            None => self.for_each_position(|position, value| row.push(position, value))?,
            Some(ids) => {
                row = row.in_part();
                for position in ids.iter().filter_map(|id| id.find(self.schema.fields())) {
                    row.push(position, self.value(position)?);
                }
            }
        }
        Ok(row)
    }

    /// The row's body, its bytes taken as `wrap` says.
    pub(super) fn body_as<'s, B: BodyBytes<'s>>(
        &'s self,
        wrap: impl FnOnce(&'s StoredRow<'a>) -> B,
    ) -> Result<RowBody<'s, B>> {
        let version = self.stored.schema_version();
        match self.schema.layout(version) {
            Some(layout) => Ok(RowBody::new(layout, wrap(&self.stored), self.stored.has_field_expiry())),
            None => Err(Error::corrupted(format!(
                "key {}: a row of schema version {version}; its table has {}",
                self.key().escape_ascii(),
                self.schema.version()
            ))),
        }
    }

    fn body<'s>(&'s self) -> Result<RowBody<'s, &'s StoredRow<'s>>> {
        self.body_as(|stored| stored)
    }

    fn position<F: FieldName>(&self, field: F) -> Result<usize> {
        field.find(self.schema.fields()).ok_or_else(|| unknown_field(field))
    }

    fn read(&self, position: usize) -> Result<FieldRead<'_>> {
        self.body()?.read(self.schema, position)
    }

    fn value(&self, position: usize) -> Result<Value<'_>> {
        Ok(self.read(position)?.at(self.now_ms))
    }
}
