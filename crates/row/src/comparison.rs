//! What comparing a field with a value comes to.
//!
//! Owns that rule, for every store. Must not know how the row is found.

use crate::schema::unknown_field;
use crate::{FieldName, Result, Schema, Value};

/// Whether a field that holds `held` (`Null`: it is absent) is what it would be if `expected` was written to it: text for bytes, an integer for a float and so on, as writing takes
/// them. What can not be written to the field is equal to nothing.
///
/// # Errors
/// `NotFound` if there is no such field.
pub fn is_equal<F: FieldName>(
    schema: &Schema,
    field: F,
    held: Value<'_>,
    expected: Value<'_>,
) -> Result<bool> {
    let position = field.find(schema).ok_or_else(|| unknown_field(field))?;
    Ok(schema.fields()[position].kind().as_stored(expected).is_ok_and(|expected| held == expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Type;

    #[test]
    fn a_value_is_equal_to_what_it_was_written_as() {
        let schema = Schema::new()
            .nullable("bytes", Type::Bytes)
            .nullable("text", Type::String)
            .nullable("single", Type::F32)
            .nullable("double", Type::F64)
            .nullable("at", Type::Timestamp)
            .nullable("small", Type::U8);
        let is =
            |field, held: Value<'_>, expected: Value<'_>| is_equal(&schema, field, held, expected).unwrap();
        assert!(is("bytes", Value::Bytes(b"new"), Value::Str("new")));
        assert!(is("text", Value::Str("new"), Value::Bytes(b"new")));
        assert!(!is("text", Value::Str("new"), Value::Bytes(b"\xff")), "no text");
        assert!(is("single", Value::Float(f64::from(0.1f32)), Value::Float(0.1)));
        assert!(!is("double", Value::Float(f64::from(0.1f32)), Value::Float(0.1)));
        assert!(
            is("double", Value::Float(5.0), Value::Int(5)) && is("double", Value::Float(5.0), Value::UInt(5))
        );
        assert!(
            is("at", Value::Timestamp(7), Value::Int(7)) && !is("at", Value::Timestamp(7), Value::Int(8))
        );
        assert!(
            is("small", Value::UInt(200), Value::Int(200)) && !is("small", Value::UInt(44), Value::Int(300))
        );
        for field in ["bytes", "text", "small"] {
            assert!(is(field, Value::Null, Value::Null) && !is(field, Value::Null, Value::Int(0)));
        }
        assert!(is_equal(&schema, "none", Value::Null, Value::Null).is_err());
    }
}
