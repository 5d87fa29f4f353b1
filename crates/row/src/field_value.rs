//! Rust's types as values of fields.
//!
//! Owns which Rust type stands for which [`Type`], both ways. It promises that a value which is read as a type is the one that was
//! written, never a near one: what does not fit is an error. But a field holds a moment in whole microseconds since 1970, of 292,000 years on
//! either side: a `SystemTime` is rounded down to one when it is written, and one beyond them is the last of them. It must not know rows or their
//! bytes.

use std::time::SystemTime;

use crate::schema::time_of_micros;
use crate::{Error, FieldName, Result, Schema, Type, Value};

/// What a field's value can be read as: [`Row::get_as`](crate::Row::get_as).
///
/// `None` is for values that are no such thing: of another type, out of its range, or absent. What may be absent is read as an `Option`.
pub trait FromValue<'v>: Sized {
    /// The value, if it is one of this type.
    fn from_value(value: Value<'v>) -> Option<Self>;
}

/// A type that a field of a struct can have: it knows the field's type, and how to write and read it.
pub trait FieldValue: for<'v> FromValue<'v> {
    /// The type of the field.
    const KIND: Type;
    /// Whether rows may be without the field.
    const NULLABLE: bool = false;

    /// The value to write.
    fn to_value(&self) -> Value<'_>;
}

impl Schema {
    /// Adds a field of a Rust type: an `Option` is nullable.
    pub fn field_of<T: FieldValue>(self, name: impl Into<String>) -> Schema {
        match T::NULLABLE {
            true => self.nullable(name, T::KIND),
            false => self.field(name, T::KIND),
        }
    }

    /// Adds a field of a Rust type: `default` in rows that are written without it. A row never is without such a field, so the type is no
    /// `Option`:
    ///
    /// ```compile_fail
    /// let _ = hedgerow_row::Schema::new().field_of_with_default::<Option<u8>>("age", &Some(3));
    /// ```
    pub fn field_of_with_default<T: FieldValue>(self, name: impl Into<String>, default: &T) -> Schema {
        const { assert!(!T::NULLABLE, "a field with a default is never absent: its type is no Option") };
        self.field_with_default(name, T::KIND, default.to_value())
    }
}

/// Reads `value`, which `field` holds, as a `T`.
///
/// # Errors
/// `Invalid` if it is none.
#[inline]
#[doc(hidden)]
pub fn read_as<'v, T: FromValue<'v>>(field: impl FieldName, value: Value<'v>) -> Result<T> {
    match T::from_value(value) {
        Some(read) => Ok(read),
        None => Err(misread(field.describe(), value, std::any::type_name::<T>())),
    }
}

#[cold]
fn misread(field: String, value: Value<'_>, wanted: &str) -> Error {
    Error::invalid(match value {
        Value::Null => format!("field {field} is absent, and {wanted} cannot say so: read it as an Option"),
        Value::Bool(_) | Value::Int(_) | Value::UInt(_) | Value::Float(_) | Value::Timestamp(_) => {
            format!("field {field} holds the {} {value}, which is no {wanted}", value.kind_name())
        }
        Value::Bytes(_) | Value::Str(_) => {
            format!("field {field} holds a value of kind {}, which is no {wanted}", value.kind_name())
        }
    })
}

macro_rules! integers {
    ($($rust:ty => $kind:ident),*) => {$(
        impl FromValue<'_> for $rust {
            #[inline]
            fn from_value(value: Value<'_>) -> Option<$rust> {
                match value {
                    Value::Int(n) => <$rust>::try_from(n).ok(),
                    Value::UInt(n) => <$rust>::try_from(n).ok(),
                    _ => None,
                }
            }
        }

        impl FieldValue for $rust {
            const KIND: Type = Type::$kind;

            #[inline]
            fn to_value(&self) -> Value<'_> {
                Value::from(*self)
            }
        }
    )*};
}

integers! { i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64 }

macro_rules! plain {
    ($($rust:ty => $kind:ident, $value:pat => $read:expr;)*) => {$(
        impl FromValue<'_> for $rust {
            #[inline]
            fn from_value(value: Value<'_>) -> Option<$rust> {
                match value {
                    $value => $read,
                    _ => None,
                }
            }
        }

        impl FieldValue for $rust {
            const KIND: Type = Type::$kind;

            #[inline]
            fn to_value(&self) -> Value<'_> {
                Value::from(*self)
            }
        }
    )*};
}

plain! {
    bool => Bool, Value::Bool(b) => Some(b);
    f64 => F64, Value::Float(x) => Some(x);
    // A field of 64 bits may hold what 32 do not.
    f32 => F32, Value::Float(x) => Some(x as f32).filter(|&near| f64::from(near) == x || x.is_nan());
    SystemTime => Timestamp, Value::Timestamp(us) => time_of_micros(us);
}

impl<'v> FromValue<'v> for Value<'v> {
    #[inline]
    fn from_value(value: Value<'v>) -> Option<Value<'v>> {
        Some(value)
    }
}

impl<'v> FromValue<'v> for &'v str {
    #[inline]
    fn from_value(value: Value<'v>) -> Option<&'v str> {
        value.as_str()
    }
}

impl<'v> FromValue<'v> for &'v [u8] {
    #[inline]
    fn from_value(value: Value<'v>) -> Option<&'v [u8]> {
        value.as_bytes()
    }
}

impl FromValue<'_> for String {
    fn from_value(value: Value<'_>) -> Option<String> {
        value.as_str().map(str::to_owned)
    }
}

impl FieldValue for String {
    const KIND: Type = Type::String;

    fn to_value(&self) -> Value<'_> {
        Value::Str(self)
    }
}

impl FromValue<'_> for Vec<u8> {
    fn from_value(value: Value<'_>) -> Option<Vec<u8>> {
        value.as_bytes().map(<[u8]>::to_vec)
    }
}

impl FieldValue for Vec<u8> {
    const KIND: Type = Type::Bytes;

    fn to_value(&self) -> Value<'_> {
        Value::Bytes(self)
    }
}

impl<const N: usize> FromValue<'_> for [u8; N] {
    fn from_value(value: Value<'_>) -> Option<[u8; N]> {
        value.as_bytes().and_then(|bytes| bytes.try_into().ok())
    }
}

impl<const N: usize> FieldValue for [u8; N] {
    const KIND: Type = {
        assert!(N > 0 && N <= crate::schema::types::FIXED_BYTES_MAX as usize, "1 to 4096 bytes");
        Type::FixedBytes(N as u16)
    };

    fn to_value(&self) -> Value<'_> {
        Value::Bytes(self)
    }
}

impl<'v, T: FromValue<'v>> FromValue<'v> for Option<T> {
    #[inline]
    fn from_value(value: Value<'v>) -> Option<Option<T>> {
        match value {
            Value::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

impl<T: FieldValue> FieldValue for Option<T> {
    const KIND: Type = {
        assert!(!T::NULLABLE, "a field is absent or not: an Option of an Option says no more");
        T::KIND
    };
    const NULLABLE: bool = true;

    #[inline]
    fn to_value(&self) -> Value<'_> {
        self.as_ref().map_or(Value::Null, T::to_value)
    }
}

#[cfg(test)]
mod tests;
