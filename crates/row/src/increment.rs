//! What adding to a field comes to.
//!
//! Owns that rule, for every store. Must not know how the row is found or written.

use crate::schema::unknown_field;
use crate::{Error, FieldName, OwnedValue, Result, Schema, Value};

/// The sum of what an integer field holds and `by`. `read` gives the field's value; what is absent counts as 0.
///
/// # Errors
/// `NotFound` if there is no such field, `Invalid` if it is no integer, or if the sum is none of 64 bits with a sign; those of `read`. That the sum fits the field's type is checked by
/// whoever writes it.
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
        Value::Null => 0,
        Value::UInt(n) => i128::from(n),
        value => value
            .as_i64()
            .map(i128::from)
            .ok_or_else(|| Error::invalid(format!("field {} holds no 64-bit integer", field.describe())))?,
    };
    let sum = i64::try_from(base + i128::from(by));
    sum.map_err(|_| Error::invalid(format!("field {} cannot hold the sum", field.describe())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Type;

    #[test]
    fn sums_of_large_numbers_fit_if_they_fit() {
        let schema = Schema::new().field("n", Type::U64).field("text", Type::String);
        let sum = |base: u64, by| incremented(&schema, "n", || Ok(OwnedValue::UInt(base)), by);
        assert_eq!(sum(1 << 63, -1).unwrap(), i64::MAX);
        assert_eq!(sum(u64::MAX, i64::MIN).unwrap(), i64::MAX);
        assert_eq!(sum(5, -7).unwrap(), -2);
        assert!(sum(1 << 63, 0).is_err() && sum(i64::MAX as u64, 1).is_err());
        assert_eq!(incremented(&schema, "n", || Ok(OwnedValue::Null), 3).unwrap(), 3);
        assert!(incremented(&schema, "text", || Ok(OwnedValue::Null), 3).is_err());
    }
}
