//! `Row`: a row that owns its bytes.
//!
//! Owns the copy of a row that callers keep. It promises to hold what was given to it and nothing of the store it came from, so that it may outlive
//! that. It must not know where a row comes from: a store makes one with `Row::new` and `Row::push`.

use std::sync::Arc;

use crate::Value;
use crate::schema::table::TableSchema;

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

impl Row {
    /// A row with no fields yet, which are [pushed](Row::push): room is made for so many, and for so many bytes of their contents.
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
            expires_at_ms,
            version,
        };
        row.bytes.extend_from_slice(key);
        row
    }

    /// Adds the field at `position` of the schema; `Null` is as good as none.
    #[inline]
    #[doc(hidden)]
    pub fn push(&mut self, position: usize, value: Value<'_>) {
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

    #[inline]
    fn hold(&mut self, bytes: &[u8]) -> (usize, usize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        (start, self.bytes.len())
    }

    #[inline]
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
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes]
    }

    /// The field's value; `Null` if it is absent, unknown, or not among the fields asked for.
    #[inline]
    pub fn get(&self, field: &str) -> Value<'_> {
        let names = self.schema.fields().fields();
        let found = self.fields.iter().find(|(position, _)| names[*position as usize].name() == field);
        found.map_or(Value::Null, |&(_, held)| self.value(held))
    }

    /// The names and values of the fields that are there: in the schema's order, or in the order they were asked for.
    #[inline]
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
