//! `Row`: a row that owns its bytes.

use std::sync::Arc;

use hedgerow_row::schema::table::TableSchema;

use super::read::RowRef;
use crate::{FieldId, FieldName, Result, Value};

/// A row that owns its bytes: all its fields, or those that were asked for.
#[derive(Debug, Clone)]
pub struct Row {
    schema: Arc<TableSchema>,
    /// The key, then the contents of byte and text fields.
    bytes: Vec<u8>,
    key_bytes: usize,
    /// Present fields, by position in the schema.
    fields: Vec<(u16, OwnedField)>,
    expires_at_ms: Option<u64>,
    version: u64,
}

/// A value whose bytes are in the row's buffer.
#[derive(Debug, Clone, Copy)]
enum OwnedField {
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float(f64),
    Timestamp(i64),
    Bytes(usize, usize),
    Str(usize, usize),
}

impl RowRef<'_> {
    /// Copies the row.
    ///
    /// # Errors
    /// As [`RowRef::get`].
    pub fn to_row(&self) -> Result<Row> {
        Row::copy(self, None)
    }
}

impl Row {
    /// Copies a row, or only some fields; one dropped meanwhile is absent.
    pub(super) fn copy(row: &RowRef<'_>, ids: Option<&[FieldId]>) -> Result<Row> {
        let (key, schema) = (row.key(), row.table_schema());
        let mut copy = Row {
            schema: Arc::clone(schema),
            bytes: Vec::with_capacity(key.len() + if ids.is_none() { row.body_bytes() } else { 64 }),
            key_bytes: key.len(),
            fields: Vec::with_capacity(ids.map_or(schema.fields().fields().len(), <[_]>::len)),
            expires_at_ms: row.expires_at_ms(),
            version: row.version(),
        };
        copy.bytes.extend_from_slice(key);
        match ids {
            None => row.for_each_position(|position, value| copy.push(position, value))?,
            Some(ids) => {
                for position in ids.iter().filter_map(|id| id.find(schema.fields())) {
                    copy.push(position, row.value(position)?);
                }
            }
        }
        Ok(copy)
    }

    fn push(&mut self, position: usize, value: Value<'_>) {
        let held = match value {
            Value::Null => return,
            Value::Bool(b) => OwnedField::Bool(b),
            Value::Int(n) => OwnedField::Int(n),
            Value::UInt(n) => OwnedField::UInt(n),
            Value::Float(x) => OwnedField::Float(x),
            Value::Timestamp(n) => OwnedField::Timestamp(n),
            Value::Bytes(bytes) => {
                let (start, end) = self.hold(bytes);
                OwnedField::Bytes(start, end)
            }
            Value::Str(text) => {
                let (start, end) = self.hold(text.as_bytes());
                OwnedField::Str(start, end)
            }
        };
        self.fields.push((position as u16, held));
    }

    fn hold(&mut self, bytes: &[u8]) -> (usize, usize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        (start, self.bytes.len())
    }

    fn value(&self, held: OwnedField) -> Value<'_> {
        match held {
            OwnedField::Bool(b) => Value::Bool(b),
            OwnedField::Int(n) => Value::Int(n),
            OwnedField::UInt(n) => Value::UInt(n),
            OwnedField::Float(x) => Value::Float(x),
            OwnedField::Timestamp(n) => Value::Timestamp(n),
            OwnedField::Bytes(start, end) => Value::Bytes(&self.bytes[start..end]),
            OwnedField::Str(start, end) => match std::str::from_utf8(&self.bytes[start..end]) {
                Ok(text) => Value::Str(text),
                // It was text when it was copied in; kept as bytes rather than trusted blindly.
                Err(_) => Value::Bytes(&self.bytes[start..end]),
            },
        }
    }

    /// The row's key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes]
    }

    /// The field's value; `Null` if it is absent, unknown, or not among the fields asked for.
    pub fn get(&self, field: &str) -> Value<'_> {
        let names = self.schema.fields().fields();
        let found = self.fields.iter().find(|(position, _)| names[*position as usize].name() == field);
        found.map_or(Value::Null, |&(_, held)| self.value(held))
    }

    /// The names and values of the fields that are there: in the schema's order, or in the order they were asked for.
    pub fn fields(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let names = self.schema.fields().fields();
        self.fields.iter().map(move |&(position, held)| (names[position as usize].name(), self.value(held)))
    }

    /// When the row expires, in ms since 1970, if it does.
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }

    /// A number that changes with every write of the row.
    pub fn version(&self) -> u64 {
        self.version
    }
}
