//! Structs as rows.
//!
//! Owns what `#[derive(Row)]` writes an implementation of, and what it reads from. It must not know how a store keeps rows.

use crate::field_value::{FieldValue, read_as};
use crate::{Result, Row, Schema, Value};

/// A struct that is a row: `#[derive(hedgerow::Row)]` makes it one. Its key is not among its fields.
pub trait TypedRow: Sized {
    /// Names and values.
    type Fields<'r>: AsRef<[(&'static str, Value<'r>)]>
    where
        Self: 'r;

    /// The schema of a table of such rows, for `ensure_table`.
    fn schema() -> Schema;

    /// Reads it from a row.
    ///
    /// # Errors
    /// `NotFound` if the row's table lacks a field, `Invalid` if a value is none of its field's type.
    fn from_row(row: &impl ReadFields) -> Result<Self>;

    /// All its fields, to be written.
    fn to_fields(&self) -> Self::Fields<'_>;
}

/// What fields are read from: a row, in place or copied.
pub trait ReadFields {
    /// The field's value; `Null` if it is absent.
    ///
    /// # Errors
    /// Those of the row.
    fn value(&self, field: &str) -> Result<Value<'_>>;

    /// The field's value as a Rust type.
    ///
    /// # Errors
    /// Those of the row; `Invalid` if the value is none of that type.
    fn field<T: FieldValue>(&self, field: &str) -> Result<T> {
        read_as(field, self.value(field)?)
    }
}

impl ReadFields for Row {
    fn value(&self, field: &str) -> Result<Value<'_>> {
        self.get(field)
    }
}
