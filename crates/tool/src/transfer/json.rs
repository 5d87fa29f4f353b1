//! One line of an export.
//!
//! ```text
//! {"hedgerow":1,"table":"users","open":false,"fields":[{"name":"age","type":"u32","nullable":false,"default":0}]}
//! {"key":"42","fields":{"age":36,"photo":{"hex":"89504e47"}},"expires_at_ms":1764000000000,"field_expires_at_ms":{"age":1764000000000}}
//! {"end":true,"rows":1}
//! ```
//!
//! * Keys and bytes are text where they are UTF-8, else `{"hex":"..."}`. Either is read.
//! * Integers are exact over the whole range of 64 bits. Timestamps are microseconds since 1970, expiries milliseconds.
//! * Floats have as many digits as it takes to read the same number back; `"NaN"`, `"Infinity"` and `"-Infinity"` are text.
//! * A field that is absent, or null, is absent in the row.
//! * A hash with fields that the server keeps as rows of their own is refused, by either: what leads to these means others in another store.
//!
//! Owns that form. Must not know files or stores.

use hedgerow::{Error, Field, OwnedValue, RowRef, Schema, Type, Value};
use serde_json::{Map, Number, Value as Json, json};

use crate::serve::keyspace::tiered::overflow_fields::{self, OverflowFields};

/// The version in the first line.
const VERSION: u64 = 1;

/// A line, read.
#[derive(Debug)]
pub enum Line {
    /// The first.
    Schema {
        /// The table's name.
        table: String,
        /// And its fields.
        schema: Schema,
    },
    /// A row.
    Row(StoredRow),
    /// The last: how many rows there are.
    End(u64),
}

/// A row of a line.
#[derive(Debug, PartialEq)]
pub struct StoredRow {
    /// Its key.
    pub key: Vec<u8>,
    fields: Vec<StoredField>,
    /// When it expires, ms since 1970.
    pub expires_at_ms: Option<u64>,
}

/// A field of a line.
#[derive(Debug, PartialEq)]
struct StoredField {
    name: String,
    value: OwnedValue,
    /// When it expires on its own, ms since 1970.
    expires_at_ms: Option<u64>,
}

impl StoredRow {
    /// Its fields that do not expire on their own, to be written.
    pub fn lasting(&self) -> Vec<(&str, Value<'_>)> {
        let lasting = self.fields.iter().filter(|field| field.expires_at_ms.is_none());
        lasting.map(|field| (field.name.as_str(), field.value.borrow())).collect()
    }

    /// Its other fields, and when they expire.
    pub fn expiring(&self) -> impl Iterator<Item = (&str, Value<'_>, u64)> {
        let expiring = self.fields.iter().filter_map(|field| Some((field, field.expires_at_ms?)));
        expiring.map(|(field, at_ms)| (field.name.as_str(), field.value.borrow(), at_ms))
    }
}

/// The first line.
pub fn schema_line(table: &str, schema: &Schema) -> Json {
    let fields: Vec<Json> = schema.fields().iter().map(field).collect();
    json!({ "hedgerow": VERSION, "table": table, "open": schema.is_open(), "fields": fields })
}

fn field(field: &Field) -> Json {
    let mut line = json!({
        "name": field.name(),
        "type": field.kind().to_string(),
        "nullable": field.is_nullable(),
    });
    if !field.is_nullable() {
        line["default"] = value(field.default());
    }
    line
}

/// How many of a hash's fields the server keeps elsewhere, if this field says so.
fn overflow_count(name: &str, value: Value<'_>) -> Option<u64> {
    let is_pointer = name == overflow_fields::FIELD;
    is_pointer.then(|| OverflowFields::decode(value)).flatten().map(|overflow_fields| overflow_fields.count)
}

/// The line of a row.
///
/// # Errors
/// `Invalid` for a hash with fields that the server keeps as rows of their own; those of reading the row.
pub fn row_line(key: &[u8], row: &RowRef<'_>) -> hedgerow::Result<Json> {
    let (mut fields, mut expiries, mut elsewhere) = (Map::new(), Map::new(), 0);
    row.for_each(|name, field| match overflow_count(name, field) {
        Some(count) => elsewhere = count,
        None if field.is_null() => {}
        None => drop(fields.insert(name.to_owned(), value(field))),
    })?;
    if elsewhere > 0 {
        return Err(Error::invalid(format!(
            "row {} is a hash with {elsewhere} fields more, which are no fields of the table (names that are no text, or too many): lines of JSON do not hold these; a backup does",
            key.escape_ascii()
        )));
    }
    for name in fields.keys() {
        if let Some(at) = row.field_expires_at_ms(name.as_str())? {
            expiries.insert(name.clone(), Json::from(at));
        }
    }
    let mut line = Map::new();
    line.insert("key".into(), bytes(key));
    line.insert("fields".into(), Json::Object(fields));
    if let Some(at) = row.expires_at_ms() {
        line.insert("expires_at_ms".into(), Json::from(at));
    }
    if !expiries.is_empty() {
        line.insert("field_expires_at_ms".into(), Json::Object(expiries));
    }
    Ok(Json::Object(line))
}

/// The last line.
pub fn end_line(rows: u64) -> Json {
    json!({ "end": true, "rows": rows })
}

fn value(value: Value<'_>) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(b) => Json::Bool(b),
        Value::Int(n) | Value::Timestamp(n) => Json::from(n),
        Value::UInt(n) => Json::from(n),
        Value::Float(x) => match Number::from_f64(x) {
            Some(number) => Json::Number(number),
            None if x.is_nan() => Json::from("NaN"),
            None => Json::from(if x > 0.0 { "Infinity" } else { "-Infinity" }),
        },
        Value::Bytes(raw) => bytes(raw),
        Value::Str(text) => Json::from(text),
    }
}

fn bytes(raw: &[u8]) -> Json {
    match std::str::from_utf8(raw) {
        Ok(text) => Json::from(text),
        Err(_) => {
            let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "hex": hex })
        }
    }
}

/// Reads a line; rows by the schema of the first.
pub fn parse_line(text: &[u8], schema: Option<&Schema>) -> Result<Line, String> {
    let line: Json = serde_json::from_slice(text).map_err(|error| format!("no JSON: {error}"))?;
    let line = line.as_object().ok_or("no JSON object")?;
    match schema {
        _ if line.contains_key("hedgerow") => parse_schema(line),
        _ if line.get("end") == Some(&Json::Bool(true)) => {
            Ok(Line::End(line.get("rows").and_then(Json::as_u64).ok_or("an end line without \"rows\"")?))
        }
        Some(schema) => parse_row(line, schema).map(Line::Row),
        None => Err("no schema of a table: {\"hedgerow\":1,\"table\":...}".into()),
    }
}

fn parse_schema(line: &Map<String, Json>) -> Result<Line, String> {
    if line["hedgerow"].as_u64() != Some(VERSION) {
        return Err(format!("the file has version {}; this build reads {VERSION}", line["hedgerow"]));
    }
    let table = line.get("table").and_then(Json::as_str).ok_or("the table has no name")?;
    let is_open = line.get("open").and_then(Json::as_bool).unwrap_or(false);
    let mut schema = if is_open { Schema::open() } else { Schema::new() };
    for field in line.get("fields").and_then(Json::as_array).ok_or("the schema has no \"fields\"")? {
        let name = field["name"].as_str().ok_or("a field without a name")?;
        let kind: Type = field["type"]
            .as_str()
            .ok_or_else(|| format!("field {name:?} has no type"))?
            .parse()
            .map_err(|error| format!("field {name:?}: {error}"))?;
        schema = match (field["nullable"].as_bool().unwrap_or(false), &field["default"]) {
            (true, _) => schema.nullable(name, kind),
            (false, Json::Null) => schema.field(name, kind),
            (false, default) => {
                let default =
                    parse_value(default, kind).map_err(|error| format!("field {name:?}: {error}"))?;
                schema.field_with_default(name, kind, default.borrow())
            }
        };
    }
    Ok(Line::Schema { table: table.to_owned(), schema })
}

fn parse_row(line: &Map<String, Json>, schema: &Schema) -> Result<StoredRow, String> {
    const KNOWN: [&str; 4] = ["key", "fields", "expires_at_ms", "field_expires_at_ms"];
    if let Some(name) = line.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        return Err(format!("{name:?} is not part of a row: {}", KNOWN.join(", ")));
    }
    let at_ms = |json: &Json| json.as_u64().ok_or("an expiry is no number of milliseconds");
    let object = |name: &str| match line.get(name) {
        None => Ok(None),
        Some(Json::Object(map)) => Ok(Some(map)),
        Some(_) => Err(format!("{name:?} is no object")),
    };
    let values = object("fields")?;
    let expiries = object("field_expires_at_ms")?;
    let has_value =
        |name: &String| values.and_then(|values| values.get(name)).is_some_and(|value| !value.is_null());
    if let Some(name) = expiries.into_iter().flat_map(Map::keys).find(|name| !has_value(name)) {
        return Err(format!("field {name:?} has an expiry and no value"));
    }
    let mut fields = Vec::new();
    for (name, value) in values.into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        // A field that an open table does not know yet is one of bytes.
        let kind = schema.field_by_name(name).map_or(Type::Bytes, Field::kind);
        let value = parse_value(value, kind).map_err(|error| format!("field {name:?}: {error}"))?;
        match overflow_count(name, value.borrow()) {
            None => {}
            Some(0) => continue,
            Some(_) => {
                return Err(format!(
                    "field {name:?} leads to fields of the hash that are not in the file, but in the store it is of"
                ));
            }
        }
        let expires_at_ms = expiries.and_then(|expiries| expiries.get(name)).map(at_ms).transpose()?;
        fields.push(StoredField { name: name.clone(), value, expires_at_ms });
    }
    Ok(StoredRow {
        key: parse_bytes(line.get("key").ok_or("the row has no \"key\"")?)?,
        fields,
        expires_at_ms: line.get("expires_at_ms").map(at_ms).transpose()?,
    })
}

fn parse_value(json: &Json, kind: Type) -> Result<OwnedValue, String> {
    let misfit = || format!("{json} is no {kind}");
    Ok(match kind {
        Type::Bool => OwnedValue::Bool(json.as_bool().ok_or_else(misfit)?),
        Type::I8 | Type::I16 | Type::I32 | Type::I64 => OwnedValue::Int(json.as_i64().ok_or_else(misfit)?),
        Type::U8 | Type::U16 | Type::U32 | Type::U64 => OwnedValue::UInt(json.as_u64().ok_or_else(misfit)?),
        Type::Timestamp => OwnedValue::Timestamp(json.as_i64().ok_or_else(misfit)?),
        Type::F32 | Type::F64 => OwnedValue::Float(match json.as_str() {
            None => json.as_f64().ok_or_else(misfit)?,
            Some("NaN") => f64::NAN,
            Some("Infinity") => f64::INFINITY,
            Some("-Infinity") => f64::NEG_INFINITY,
            Some(_) => return Err(misfit()),
        }),
        Type::String => OwnedValue::Str(json.as_str().ok_or_else(misfit)?.into()),
        Type::Bytes | Type::FixedBytes(_) => OwnedValue::Bytes(parse_bytes(json)?.into()),
    })
}

fn parse_bytes(json: &Json) -> Result<Vec<u8>, String> {
    if let Some(text) = json.as_str() {
        return Ok(text.as_bytes().to_vec());
    }
    let hex = json.as_object().filter(|map| map.len() == 1).and_then(|map| map.get("hex")?.as_str());
    let wrong = || format!("{json} is neither text nor {{\"hex\":\"...\"}}");
    let hex = hex.ok_or_else(wrong)?;
    if !hex.len().is_multiple_of(2) || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).map_err(|_| wrong());
    (0..hex.len()).step_by(2).map(pair).collect()
}
