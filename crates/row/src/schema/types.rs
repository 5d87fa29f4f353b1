//! The types of fields: their names, their widths, and the bytes of one value.
//!
//! Owns what a value of a type looks like at rest (see the table at `Type::raw`) and which values a type takes. It
//! promises that a value which passed `Type::check` encodes to exactly the length `check` gave, and decodes to an equal
//! value. It must not know about rows, layouts or tables.

use std::fmt;
use std::str::FromStr;

use super::Value;
use crate::{Error, Result};

/// Bytes in a [`Type::FixedBytes`]: 1 to this.
pub(crate) const FIXED_BYTES_MAX: u16 = 4096;

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Type {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
    /// Microseconds since 1970-01-01 UTC.
    Timestamp,
    /// Exactly this many bytes, 1 to 4096.
    FixedBytes(u16),
    /// Bytes of any length up to the row limit.
    Bytes,
    /// UTF-8 text of any length up to the row limit.
    String,
}

/// Types without a parameter, their names in text and their tags at rest. Tags are never reused.
const NAMED: [(Type, &str, u8); 14] = [
    (Type::Bool, "bool", 1),
    (Type::I8, "i8", 2),
    (Type::I16, "i16", 3),
    (Type::I32, "i32", 4),
    (Type::I64, "i64", 5),
    (Type::U8, "u8", 6),
    (Type::U16, "u16", 7),
    (Type::U32, "u32", 8),
    (Type::U64, "u64", 9),
    (Type::F32, "f32", 10),
    (Type::F64, "f64", 11),
    (Type::Timestamp, "timestamp", 12),
    (Type::Bytes, "bytes", 14),
    (Type::String, "string", 15),
];
const FIXED_BYTES_TAG: u8 = 13;

/// Why a value is not one of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    /// Another kind of value altogether.
    Kind,
    /// A number the type cannot hold.
    Range,
    /// Not the length a fixed-length type has; this many bytes instead.
    Length(usize),
    /// Bytes that are no UTF-8 text.
    Utf8,
}

impl Type {
    /// The bytes a value takes, if that is the same for all values of the type.
    #[inline]
    pub(crate) const fn width(self) -> Option<usize> {
        match self {
            Type::Bool | Type::I8 | Type::U8 => Some(1),
            Type::I16 | Type::U16 => Some(2),
            Type::I32 | Type::U32 | Type::F32 => Some(4),
            Type::I64 | Type::U64 | Type::F64 | Type::Timestamp => Some(8),
            Type::FixedBytes(n) => Some(n as usize),
            Type::Bytes | Type::String => None,
        }
    }

    /// Whether its values are counted in whole steps: integers, and timestamps in microseconds.
    #[doc(hidden)]
    #[inline]
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            Type::I8
                | Type::I16
                | Type::I32
                | Type::I64
                | Type::U8
                | Type::U16
                | Type::U32
                | Type::U64
                | Type::Timestamp
        )
    }

    /// In which order types' fields lie in a row body: numbers by falling width, so that each is naturally aligned without
    /// padding, then fixed-length bytes, then what is variable.
    pub(super) const fn rank(self) -> u8 {
        match self {
            Type::I64 | Type::U64 | Type::F64 | Type::Timestamp => 0,
            Type::I32 | Type::U32 | Type::F32 => 1,
            Type::I16 | Type::U16 => 2,
            Type::Bool | Type::I8 | Type::U8 => 3,
            Type::FixedBytes(_) => 4,
            Type::Bytes | Type::String => 5,
        }
    }

    /// The type's own limits.
    pub(crate) fn validate(self) -> Result<()> {
        match self {
            Type::FixedBytes(n) if n == 0 || n > FIXED_BYTES_MAX => Err(Error::invalid(format!(
                "bytes({n}): fixed-length bytes are 1 to {FIXED_BYTES_MAX} bytes long"
            ))),
            _ => Ok(()),
        }
    }

    /// What a field of the type holds where nothing was given: false, zero, or empty.
    pub(crate) fn zero(self) -> super::OwnedValue {
        use super::OwnedValue as Owned;
        match self {
            Type::Bool => Owned::Bool(false),
            Type::I8 | Type::I16 | Type::I32 | Type::I64 => Owned::Int(0),
            Type::U8 | Type::U16 | Type::U32 | Type::U64 => Owned::UInt(0),
            Type::F32 | Type::F64 => Owned::Float(0.0),
            Type::Timestamp => Owned::Timestamp(0),
            Type::FixedBytes(n) => Owned::Bytes(vec![0; n as usize].into()),
            Type::Bytes => Owned::Bytes([].into()),
            Type::String => Owned::Str("".into()),
        }
    }

    /// How many bytes `value` takes as this type, or why it is none. `Null` is of no type.
    #[inline]
    #[doc(hidden)]
    pub fn check(self, value: &Value<'_>) -> std::result::Result<usize, Misfit> {
        match (self, value) {
            (Type::FixedBytes(n), Value::Bytes(bytes)) => exactly(n, bytes.len()),
            (Type::Bytes, Value::Bytes(bytes)) => Ok(bytes.len()),
            (Type::Bytes | Type::String, Value::Str(text)) => Ok(text.len()),
            _ => self.check_rest(value),
        }
    }

    /// The value that reading gives where `value` was written, or why it is none of the type. `Null` stays.
    #[doc(hidden)]
    pub fn as_stored<'v>(self, value: Value<'v>) -> std::result::Result<Value<'v>, Misfit> {
        if value.is_null() {
            return Ok(value);
        }
        self.check(&value)?;
        match (self, value) {
            (Type::Bytes | Type::FixedBytes(_), Value::Str(text)) => Ok(Value::Bytes(text.as_bytes())),
            (Type::String, Value::Bytes(bytes)) => {
                std::str::from_utf8(bytes).map(Value::Str).map_err(|_| Misfit::Utf8)
            }
            (_, Value::Bytes(_) | Value::Str(_)) => Ok(value),
            (_, number) => {
                let bits = self.bits(&number).to_le_bytes();
                self.decode_number(&bits[..self.width().unwrap_or(0).min(8)]).map_err(|_| Misfit::Kind)
            }
        }
    }

    fn check_rest(self, value: &Value<'_>) -> std::result::Result<usize, Misfit> {
        let width = self.width().unwrap_or(0);
        let fits = |fits: bool| if fits { Ok(width) } else { Err(Misfit::Range) };
        match (self, *value) {
            (Type::FixedBytes(n), Value::Str(text)) => exactly(n, text.len()),
            (Type::String, Value::Bytes(bytes)) => match std::str::from_utf8(bytes) {
                Ok(_) => Ok(bytes.len()),
                Err(_) => Err(Misfit::Utf8),
            },
            (Type::Bool, Value::Bool(_)) | (Type::Timestamp, Value::Timestamp(_)) => Ok(width),
            (Type::F64, Value::Float(_)) => Ok(width),
            (Type::F32, Value::Float(x)) => fits(!x.is_finite() || (x as f32).is_finite()),
            (Type::F32 | Type::F64, Value::Int(n)) => {
                fits(i128::from(n).unsigned_abs() <= self.exact_integer_max())
            }
            (Type::F32 | Type::F64, Value::UInt(n)) => fits(u128::from(n) <= self.exact_integer_max()),
            (Type::I64 | Type::Timestamp, Value::Int(_)) | (Type::U64, Value::UInt(_)) => Ok(width),
            (Type::I8, Value::Int(n)) => fits(i8::try_from(n).is_ok()),
            (Type::I16, Value::Int(n)) => fits(i16::try_from(n).is_ok()),
            (Type::I32, Value::Int(n)) => fits(i32::try_from(n).is_ok()),
            (Type::U8, Value::UInt(n)) => fits(u8::try_from(n).is_ok()),
            (Type::U16, Value::UInt(n)) => fits(u16::try_from(n).is_ok()),
            (Type::U32, Value::UInt(n)) => fits(u32::try_from(n).is_ok()),
            (Type::I8 | Type::I16 | Type::I32 | Type::I64 | Type::Timestamp, Value::UInt(n)) => {
                i64::try_from(n).map_err(|_| Misfit::Range).and_then(|n| self.check_rest(&Value::Int(n)))
            }
            (Type::U8 | Type::U16 | Type::U32 | Type::U64, Value::Int(n)) => {
                u64::try_from(n).map_err(|_| Misfit::Range).and_then(|n| self.check_rest(&Value::UInt(n)))
            }
            _ => Err(Misfit::Kind),
        }
    }

    /// The largest integer below which a float type holds every integer.
    fn exact_integer_max(self) -> u128 {
        if self == Type::F32 { 1 << 24 } else { 1 << 53 }
    }

    /// The bytes of `value`, which passed [`Type::check`], at rest:
    ///
    /// | type | bytes |
    /// |---|---|
    /// | bool | one, 0 or 1 |
    /// | integers, timestamp | two's complement, little-endian, of the type's width |
    /// | f32, f64 | IEEE 754, little-endian |
    /// | bytes(n), bytes, string | the bytes themselves |
    #[inline]
    pub(crate) fn raw<'b>(self, value: &Value<'b>, buffer: &'b mut [u8; 8]) -> &'b [u8] {
        match *value {
            Value::Bytes(bytes) => bytes,
            Value::Str(text) => text.as_bytes(),
            ref number => {
                *buffer = self.bits(number).to_le_bytes();
                &buffer[..self.width().unwrap_or(0).min(8)]
            }
        }
    }

    fn bits(self, value: &Value<'_>) -> u64 {
        let float = |x: f64| if self == Type::F32 { u64::from((x as f32).to_bits()) } else { x.to_bits() };
        match (*value, self) {
            (Value::Int(n), Type::F32 | Type::F64) => float(n as f64),
            (Value::UInt(n), Type::F32 | Type::F64) => float(n as f64),
            (Value::Int(n) | Value::Timestamp(n), _) => n as u64,
            (Value::UInt(n), _) => n,
            (Value::Bool(b), _) => u64::from(b),
            (Value::Float(x), _) => float(x),
            (Value::Null | Value::Bytes(_) | Value::Str(_), _) => 0,
        }
    }

    /// Whether these bytes have the length of a value of the type; `Corrupted` if not.
    #[inline]
    pub(crate) fn check_raw(self, raw: &[u8]) -> Result<()> {
        match self.width() {
            Some(width) if width != raw.len() => Err(self.wrong_length(raw.len())),
            _ => Ok(()),
        }
    }

    #[cold]
    fn wrong_length(self, len: usize) -> Error {
        Error::corrupted(format!("{len} bytes where a {self} should be"))
    }

    /// The value whose bytes these are; `Corrupted` if they are no value of the type.
    // Always inline: a value returned through memory in parts and reloaded whole stalls for longer than the rest takes.
    #[inline(always)]
    #[doc(hidden)]
    pub fn decode(self, raw: &[u8]) -> Result<Value<'_>> {
        if let Some(width) = self.width()
            && width != raw.len()
        {
            return Err(self.wrong_length(raw.len()));
        }
        Ok(match self {
            Type::FixedBytes(_) | Type::Bytes => Value::Bytes(raw),
            Type::String => match std::str::from_utf8(raw) {
                Ok(text) => Value::Str(text),
                Err(_) => return Err(Error::corrupted("a string that is not UTF-8")),
            },
            _ => return self.decode_number(raw),
        })
    }

    /// [`Type::decode`] of as many bytes as the type is wide.
    #[inline(always)]
    #[doc(hidden)]
    pub fn decode_fixed(self, raw: &[u8]) -> Result<Value<'_>> {
        match self {
            Type::FixedBytes(_) => Ok(Value::Bytes(raw)),
            _ => self.decode(raw),
        }
    }

    fn decode_number(self, raw: &[u8]) -> Result<Value<'static>> {
        let mut bytes = [0; 8];
        bytes[..raw.len()].copy_from_slice(raw);
        let bits = u64::from_le_bytes(bytes);
        Ok(match self {
            Type::Bool if bits > 1 => return Err(Error::corrupted(format!("a bool of {bits}"))),
            Type::Bool => Value::Bool(bits == 1),
            Type::I8 => Value::Int(i64::from(bits as i8)),
            Type::I16 => Value::Int(i64::from(bits as i16)),
            Type::I32 => Value::Int(i64::from(bits as i32)),
            Type::I64 => Value::Int(bits as i64),
            Type::F32 => Value::Float(f64::from(f32::from_bits(bits as u32))),
            Type::F64 => Value::Float(f64::from_bits(bits)),
            Type::Timestamp => Value::Timestamp(bits as i64),
            _ => Value::UInt(bits),
        })
    }

    /// The type's tag and width parameter in the catalog.
    pub(crate) fn to_tag(self) -> (u8, u16) {
        match self {
            Type::FixedBytes(n) => (FIXED_BYTES_TAG, n),
            other => {
                let (_, _, tag) =
                    NAMED[NAMED.iter().position(|named| named.0 == other).expect("every type is named")];
                (tag, 0)
            }
        }
    }

    /// The type of a tag and width, if there is one.
    pub(crate) fn from_tag(tag: u8, width: u16) -> Option<Type> {
        match (tag, width) {
            (FIXED_BYTES_TAG, 1..=FIXED_BYTES_MAX) => Some(Type::FixedBytes(width)),
            (FIXED_BYTES_TAG, _) => None,
            (_, 0) => NAMED.iter().find(|named| named.2 == tag).map(|named| named.0),
            _ => None,
        }
    }
}

#[inline]
fn exactly(width: u16, len: usize) -> std::result::Result<usize, Misfit> {
    if len == width as usize { Ok(len) } else { Err(Misfit::Length(len)) }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::FixedBytes(n) => write!(f, "bytes({n})"),
            other => f.write_str(NAMED.iter().find(|named| named.0 == *other).map_or("?", |named| named.1)),
        }
    }
}

impl FromStr for Type {
    type Err = Error;

    /// Reads what `Display` writes: `u32`, `timestamp`, `bytes`, `bytes(16)`. Upper case is taken too.
    fn from_str(text: &str) -> Result<Type> {
        let lower = text.trim().to_ascii_lowercase();
        if let Some(named) = NAMED.iter().find(|named| named.1 == lower) {
            return Ok(named.0);
        }
        let width = lower.strip_prefix("bytes(").and_then(|rest| rest.strip_suffix(')'));
        match width.map(str::trim).map(str::parse::<u16>) {
            Some(Ok(n)) => Type::FixedBytes(n).validate().map(|()| Type::FixedBytes(n)),
            Some(Err(_)) => Err(Error::invalid(format!(
                "{text:?}: fixed-length bytes are written bytes(N), N from 1 to {FIXED_BYTES_MAX}"
            ))),
            None => Err(Error::invalid(format!(
                "{text:?} is no type; the types are {}, bytes(N)",
                NAMED.map(|named| named.1).join(", ")
            ))),
        }
    }
}
