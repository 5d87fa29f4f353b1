//! Values as the text that clients see, and types by the names that our own commands use, both ways.
//!
//! Must not know tables or keys.

use hedgerow::{Type, Value};

use crate::serve::number;

/// Appends a value as the text a client sees.
pub fn write_text(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Null => {}
        Value::Bytes(bytes) => out.extend_from_slice(bytes),
        Value::Str(text) => out.extend_from_slice(text.as_bytes()),
        Value::Bool(value) => out.push(if value { b'1' } else { b'0' }),
        Value::Int(value) | Value::Timestamp(value) => {
            out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        }
        Value::UInt(value) => out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
        Value::Float(value) => number::write_f64(out, value),
    }
}

/// `text` as a value of type `kind`.
pub fn parse_value(kind: Type, text: &[u8]) -> Option<Value<'_>> {
    let signed =
        |min: i64, max: i64| number::parse_i64(text).filter(|n| (min..=max).contains(n)).map(Value::Int);
    let unsigned = |max: u64| number::parse_u64(text).filter(|n| *n <= max).map(Value::UInt);
    match kind {
        Type::Bool => match text {
            b"1" | b"true" => Some(Value::Bool(true)),
            b"0" | b"false" => Some(Value::Bool(false)),
            _ => None,
        },
        Type::I8 => signed(i8::MIN.into(), i8::MAX.into()),
        Type::I16 => signed(i16::MIN.into(), i16::MAX.into()),
        Type::I32 => signed(i32::MIN.into(), i32::MAX.into()),
        Type::I64 => signed(i64::MIN, i64::MAX),
        Type::U8 => unsigned(u8::MAX.into()),
        Type::U16 => unsigned(u16::MAX.into()),
        Type::U32 => unsigned(u32::MAX.into()),
        Type::U64 => unsigned(u64::MAX),
        Type::F32 => {
            number::parse_f64(text).filter(|x| x.is_infinite() || (*x as f32).is_finite()).map(Value::Float)
        }
        Type::F64 => number::parse_f64(text).map(Value::Float),
        Type::Timestamp => number::parse_i64(text).map(Value::Timestamp),
        Type::FixedBytes(len) => (text.len() == usize::from(len)).then_some(Value::Bytes(text)),
        Type::Bytes => Some(Value::Bytes(text)),
        Type::String => std::str::from_utf8(text).ok().map(Value::Str),
    }
}

/// The name of a type in the commands of our own.
pub fn type_name(kind: Type) -> String {
    match kind {
        Type::Bool => "bool".into(),
        Type::I8 => "i8".into(),
        Type::I16 => "i16".into(),
        Type::I32 => "i32".into(),
        Type::I64 => "i64".into(),
        Type::U8 => "u8".into(),
        Type::U16 => "u16".into(),
        Type::U32 => "u32".into(),
        Type::U64 => "u64".into(),
        Type::F32 => "f32".into(),
        Type::F64 => "f64".into(),
        Type::Timestamp => "timestamp".into(),
        Type::FixedBytes(len) => format!("bytes({len})"),
        Type::Bytes => "bytes".into(),
        Type::String => "string".into(),
    }
}

/// The type of that name.
pub fn parse_type(name: &[u8]) -> Option<Type> {
    let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
    Some(match name.as_str() {
        "bool" => Type::Bool,
        "i8" => Type::I8,
        "i16" => Type::I16,
        "i32" => Type::I32,
        "i64" | "int" => Type::I64,
        "u8" => Type::U8,
        "u16" => Type::U16,
        "u32" => Type::U32,
        "u64" => Type::U64,
        "f32" => Type::F32,
        "f64" | "float" => Type::F64,
        "timestamp" => Type::Timestamp,
        "bytes" => Type::Bytes,
        "string" => Type::String,
        other => {
            let len = other.strip_prefix("bytes(")?.strip_suffix(')')?.parse().ok()?;
            (1..=4096).contains(&len).then_some(Type::FixedBytes(len))?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_fits_its_type_or_not() {
        assert_eq!(parse_value(Type::U8, b"255"), Some(Value::UInt(255)));
        for (kind, text) in [
            (Type::U8, "256"),
            (Type::U8, "-1"),
            (Type::I8, "128"),
            (Type::I64, "1.5"),
            (Type::F64, "abc"),
            (Type::F32, "1e300"),
            (Type::Bool, "yes"),
            (Type::FixedBytes(4), "abc"),
            (Type::Timestamp, ""),
        ] {
            assert!(parse_value(kind, text.as_bytes()).is_none(), "{kind:?} {text}");
        }
        assert!(parse_value(Type::String, b"\xff").is_none());
        assert_eq!(parse_value(Type::FixedBytes(3), b"abc"), Some(Value::Bytes(b"abc")));
    }

    #[test]
    fn type_names_read_back() {
        for kind in
            [Type::Bool, Type::I8, Type::U64, Type::F32, Type::Timestamp, Type::FixedBytes(16), Type::String]
        {
            assert_eq!(parse_type(type_name(kind).as_bytes()), Some(kind));
        }
        assert_eq!(parse_type(b"bytes(0)"), None);
        assert_eq!(parse_type(b"text"), None);
    }
}
