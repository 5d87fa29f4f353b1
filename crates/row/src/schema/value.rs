//! Field values as callers give and get them.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A field's value, borrowed. Integers of any width are carried as `Int` or `UInt`; which of the two does not matter
/// when writing (the field's type decides, and a value out of its range is [`Invalid`](crate::ErrorKind::Invalid)).
/// Reading gives `Int` for signed fields and `UInt` for unsigned ones; `==` compares the two by number.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// No value: the field is absent. Only nullable fields take it.
    Null,
    /// `Type::Bool`.
    Bool(bool),
    /// A signed integer: `Type::I8` to `Type::I64`.
    Int(i64),
    /// An unsigned integer: `Type::U8` to `Type::U64`.
    UInt(u64),
    /// `Type::F32` or `Type::F64`.
    Float(f64),
    /// Microseconds since 1970-01-01 UTC: `Type::Timestamp`.
    Timestamp(i64),
    /// `Type::Bytes` or `Type::FixedBytes`.
    Bytes(&'a [u8]),
    /// `Type::String`.
    Str(&'a str),
}

impl Value<'_> {
    /// Whether this is [`Value::Null`].
    #[inline]
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The integer, if this is one and it fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::Int(n) => Some(n),
            Value::UInt(n) => i64::try_from(n).ok(),
            Value::Timestamp(n) => Some(n),
            _ => None,
        }
    }

    /// The unsigned integer, if this is one and it fits.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::Int(n) => u64::try_from(n).ok(),
            Value::UInt(n) => Some(n),
            _ => None,
        }
    }

    /// The number as a float, if this is a float.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::Float(x) => Some(x),
            _ => None,
        }
    }

    /// The boolean, if this is one.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(b) => Some(b),
            _ => None,
        }
    }

    /// What kind of value this is, for a person.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::UInt(_) => "integer",
            Value::Float(_) => "float",
            Value::Timestamp(_) => "timestamp",
            Value::Bytes(_) => "bytes",
            Value::Str(_) => "string",
        }
    }

    /// Copies the value so that it borrows nothing.
    pub fn to_owned(&self) -> OwnedValue {
        match *self {
            Value::Null => OwnedValue::Null,
            Value::Bool(b) => OwnedValue::Bool(b),
            Value::Int(n) => OwnedValue::Int(n),
            Value::UInt(n) => OwnedValue::UInt(n),
            Value::Float(x) => OwnedValue::Float(x),
            Value::Timestamp(n) => OwnedValue::Timestamp(n),
            Value::Bytes(b) => OwnedValue::Bytes(b.into()),
            Value::Str(s) => OwnedValue::Str(s.into()),
        }
    }
}

impl<'a> Value<'a> {
    /// The bytes of `Bytes` or `Str`.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match *self {
            Value::Bytes(b) => Some(b),
            Value::Str(s) => Some(s.as_bytes()),
            _ => None,
        }
    }

    /// The text of `Str`.
    pub fn as_str(&self) -> Option<&'a str> {
        match *self {
            Value::Str(s) => Some(s),
            _ => None,
        }
    }
}

impl PartialEq for Value<'_> {
    fn eq(&self, other: &Value<'_>) -> bool {
        match (*self, *other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::UInt(a), Value::UInt(b)) => a == b,
            (Value::Int(a), Value::UInt(b)) | (Value::UInt(b), Value::Int(a)) => u64::try_from(a) == Ok(b),
            (Value::Float(a), Value::Float(b)) => a == b,
            (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Str(a), Value::Str(b)) => a == b,
            _ => false,
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Value::Null => f.write_str("null"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Int(n) => write!(f, "{n}"),
            Value::UInt(n) => write!(f, "{n}"),
            Value::Float(x) => write!(f, "{x}"),
            Value::Timestamp(n) => write!(f, "{n}us"),
            Value::Bytes(b) => write!(f, "{}", b.escape_ascii()),
            Value::Str(s) => f.write_str(s),
        }
    }
}

macro_rules! value_from {
    ($($from:ty => $variant:ident as $to:ty),* $(,)?) => {$(
        impl From<$from> for Value<'_> {
            fn from(value: $from) -> Self {
                Value::$variant(value as $to)
            }
        }
    )*};
}

value_from! {
    i8 => Int as i64, i16 => Int as i64, i32 => Int as i64, i64 => Int as i64,
    u8 => UInt as u64, u16 => UInt as u64, u32 => UInt as u64, u64 => UInt as u64, usize => UInt as u64,
    f32 => Float as f64, f64 => Float as f64,
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

/// A moment in microseconds since 1970, as a [`Type::Timestamp`] has it: rounded down. What lies farther away than 292,000 years is
/// taken for the farthest.
fn micros_of(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => {
            let micros = before.duration().as_nanos().div_ceil(1_000);
            i64::try_from(micros).map_or(i64::MIN, |micros| -micros)
        }
    }
}

/// The moment of so many microseconds since 1970, if the system can tell it.
pub(crate) fn time_of_micros(us: i64) -> Option<SystemTime> {
    let distance = Duration::from_micros(us.unsigned_abs());
    if us < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) }
}

/// A moment for a [`Type::Timestamp`](crate::Type::Timestamp), in microseconds: rounded down. What lies farther from 1970 than 292,000
/// years is taken for the farthest that a field can hold.
impl From<SystemTime> for Value<'_> {
    fn from(value: SystemTime) -> Self {
        Value::Timestamp(micros_of(value))
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(value: &'a str) -> Self {
        Value::Str(value)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(value: &'a String) -> Self {
        Value::Str(value)
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(value: &'a [u8]) -> Self {
        Value::Bytes(value)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Value<'a> {
    fn from(value: &'a [u8; N]) -> Self {
        Value::Bytes(value)
    }
}

impl<'a> From<&'a Vec<u8>> for Value<'a> {
    fn from(value: &'a Vec<u8>) -> Self {
        Value::Bytes(value)
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

impl<'a> From<&'a OwnedValue> for Value<'a> {
    fn from(value: &'a OwnedValue) -> Self {
        value.borrow()
    }
}

/// A field's value that owns its bytes; otherwise [`Value`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum OwnedValue {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float(f64),
    Timestamp(i64),
    Bytes(Box<[u8]>),
    Str(Box<str>),
}

impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> OwnedValue {
        value.to_owned()
    }
}

impl OwnedValue {
    /// The value, borrowed.
    #[inline]
    pub fn borrow(&self) -> Value<'_> {
        match self {
            OwnedValue::Null => Value::Null,
            OwnedValue::Bool(b) => Value::Bool(*b),
            OwnedValue::Int(n) => Value::Int(*n),
            OwnedValue::UInt(n) => Value::UInt(*n),
            OwnedValue::Float(x) => Value::Float(*x),
            OwnedValue::Timestamp(n) => Value::Timestamp(*n),
            OwnedValue::Bytes(b) => Value::Bytes(b),
            OwnedValue::Str(s) => Value::Str(s),
        }
    }
}
