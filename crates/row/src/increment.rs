//! What adding to a field comes to.
//!
//! Owns that rule, for every store. Must not know how the row is found or written.

use crate::schema::unknown_field;
use crate::{Error, FieldName, OwnedValue, Result, Schema, Value};

/// The sum of what an integer field holds and `by`. `read` gives the field's value; what is absent counts as 0.
///
/// # Errors
/// `NotFound` if there is no such field, `Invalid` if it is no integer or holds none of 64 bits, or if no such number is the sum; those of
/// `read`. That the sum fits the field's type is checked by whoever writes it.
pub fn incremented<F: FieldName>(
    schema: &Schema,
    field: F,
    read: impl FnOnce() -> Result<OwnedValue>,
    by: i64,
) -> Result<i64> {
    let position = field.find(schema).ok_or_else(|| unknown_field(field))?;
    if !schema.fields()[position].kind().is_integer() {
        let name = field.describe();
        return Err(Error::invalid(format!("field {name} holds no integer")));
    }
    let base = match read()?.borrow() {
        Value::Null => Some(0),
        value => value.as_i64(),
    };
    let describe = || field.describe();
    let base = base.ok_or_else(|| Error::invalid(format!("field {} holds no 64-bit integer", describe())))?;
    base.checked_add(by).ok_or_else(|| Error::invalid(format!("field {} cannot hold the sum", describe())))
}
