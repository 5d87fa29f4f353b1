//! `Row`: a row that owns its bytes.
//!
//! Owns the copy of a row that callers keep. It promises to hold what was given to it and nothing of the store it came from, so that it may outlive
//! that. It must not know where a row comes from: a store makes one with `Row::new` and `Row::push`.

use std::sync::Arc;
use std::time::SystemTime;

use crate::expiry::time_of_unix_ms;
use crate::field_value::{FromValue, read_as};
use crate::key::{FromKey, read_key};
use crate::schema::table::TableSchema;
use crate::schema::unknown_field;
use crate::{Error, ErrorKind, FieldName, Result, Schema, Value};

/// A row that owns its bytes: all its fields, or those that were asked for.
#[derive(Debug, Clone)]
pub struct Row {
    schema: Arc<TableSchema>,
    /// The key, then the contents of byte and text fields.
    bytes: Vec<u8>,
    key_bytes: usize,
    /// Fields by their position in the schema: of a whole row those that are there, else all that were asked for.
    fields: Vec<(u16, OwnedField)>,
    is_whole: bool,
    expires_at_ms: Option<u64>,
    version: u64,
}

/// A value whose bytes are in the row's buffer.
#[derive(Debug, Clone, Copy)]
enum OwnedField {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float(f64),
    Timestamp(i64),
    Bytes(usize, usize),
    Str(usize, usize),
}

impl Row {
    /// A whole row with no fields yet, which are [pushed](Row::push): room is made for so many, and for so many bytes of their
    /// contents.
    #[inline]
    #[doc(hidden)]
    pub fn new(
        schema: &Arc<TableSchema>,
        key: &[u8],
        (version, expires_at_ms): (u64, Option<u64>),
        (fields, bytes): (usize, usize),
    ) -> Row {
        let mut row = Row {
            schema: Arc::clone(schema),
            bytes: Vec::with_capacity(key.len() + bytes),
            key_bytes: key.len(),
            fields: Vec::with_capacity(fields),
            is_whole: true,
            expires_at_ms,
            version,
        };
        row.bytes.extend_from_slice(key);
        row
    }

    /// The same row, of which only the fields that are pushed were asked for: those that are absent are pushed as well, as `Null`.
    #[inline]
    #[doc(hidden)]
    pub fn in_part(mut self) -> Row {
        self.is_whole = false;
        self
    }

    /// Adds the field at `position` of the schema.
    #[inline]
    #[doc(hidden)]
    pub fn push(&mut self, position: usize, value: Value<'_>) {
        let held = match value {
            Value::Null if self.is_whole => return,
            Value::Null => OwnedField::Null,
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

    #[inline]
    fn hold(&mut self, bytes: &[u8]) -> (usize, usize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        (start, self.bytes.len())
    }

    #[inline]
    fn value(&self, held: OwnedField) -> Value<'_> {
        match held {
            OwnedField::Null => Value::Null,
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

    /// Bytes of memory that it takes.
    #[inline]
    #[doc(hidden)]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.fields.capacity() * size_of::<(u16, OwnedField)>()
    }

    /// The row's key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes]
    }

    /// The row's key as a Rust type: `row.key_as::<(u32, String)>()?`.
    ///
    /// # Errors
    /// `Invalid` if it is the key of none.
    pub fn key_as<T: FromKey>(&self) -> Result<T> {
        read_key(self.key())
    }

    /// The table's fields, as they were when the row was read.
    pub fn schema(&self) -> &Schema {
        self.schema.fields()
    }

    /// The field's value; `Null` if it is absent.
    ///
    /// # Errors
    /// `NotFound` if the table has no such field, or if it was not among those asked for.
    #[inline]
    pub fn get<F: FieldName>(&self, field: F) -> Result<Value<'_>> {
        let Some(position) = field.find(self.schema.fields()) else { return Err(unknown_field(field)) };
        match self.fields.iter().find(|(at, _)| usize::from(*at) == position) {
            Some(&(_, held)) => Ok(self.value(held)),
            None if self.is_whole => Ok(Value::Null),
            None => Err(not_asked_for(field)),
        }
    }

    /// The field's value as a Rust type, an `Option` of one where it may be absent: `row.get_as::<u32>("age")?`.
    ///
    /// # Errors
    /// As [`Row::get`]; `Invalid` if the value is none of that type: another kind, out of its range, or absent.
    #[inline]
    pub fn get_as<'r, T: FromValue<'r>>(&'r self, field: impl FieldName) -> Result<T> {
        read_as(field, self.get(field)?)
    }

    /// The names and values of the fields that are there: in the schema's order, or in the order they were asked for.
    #[inline]
    pub fn fields(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let names = self.schema.fields().fields();
        let there = self.fields.iter().filter(|(_, held)| !matches!(held, OwnedField::Null));
        there.map(move |&(position, held)| (names[usize::from(position)].name(), self.value(held)))
    }

    /// When the row expires, if it does.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expires_at_ms().map(time_of_unix_ms)
    }

    /// [`expires_at`](Self::expires_at), in ms since 1970.
    #[doc(hidden)]
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }

    /// A number that changes with every write of the row.
    pub fn version(&self) -> u64 {
        self.version
    }
}

#[cold]
fn not_asked_for(field: impl FieldName) -> Error {
    Error::new(ErrorKind::NotFound, format!("field {} was not among those asked for", field.describe()))
}
