//! The bytes of a table's schema in the catalog, format 1. All numbers are little-endian.
//!
//! Owns these bytes. It promises that decoding what encoding gave is the same schema, and that decoding anything else ends in
//! `Version` or `Corrupted`: nothing is allocated because of a length read, but as bytes are found to be there. It must not know
//! the catalog around them, checksums included.
//!
//! ```text
//! +------------------+---------------------------------------------------------------------------------------------+
//! | u8 format        | 1                                                                                           |
//! | u8 flags         | 1 = open                                                                                    |
//! | u16 version      | of the schema, from 1                                                                       |
//! | u16 next id      | of the next field to be added                                                               |
//! | u16 count        | fields that ever were; for each, ascending by id:                                           |
//! +------------------+---------------------------------------------------------------------------------------------+
//! | u16 id           |                                                                                             |
//! | u16 added        | the first version with the field                                                            |
//! | u16 dropped      | the first version without it again, or 0                                                    |
//! | u8 type          | bool 1, i8 2, i16 3, i32 4, i64 5, u8 6, u16 7, u32 8, u64 9, f32 10, f64 11, timestamp 12, |
//! |                  | bytes(N) 13, bytes 14, string 15                                                            |
//! | u8 flags         | 1 = nullable                                                                                |
//! | u16 N            | of bytes(N), else 0                                                                         |
//! | u8, u16          | lengths of the name and of the default                                                      |
//! | name, default    | the default as a value of the type, of length 0 if nullable                                 |
//! +------------------+---------------------------------------------------------------------------------------------+
//! ```

use super::table::{FieldLife, TableSchema};
use super::types::Type;
use super::{DEFAULT_BYTES_MAX, Field, FieldId, OwnedValue};
use crate::le_bytes::u16_at;
use crate::limits::FIELDS_MAX;
use crate::{Error, ErrorKind, Result};

const FORMAT: u8 = 1;
const OPEN: u8 = 1;
const NULLABLE: u8 = 1;

/// Appends the schema's bytes to `out`.
pub fn encode(schema: &TableSchema, out: &mut Vec<u8>) {
    let u16 = |out: &mut Vec<u8>, n: u16| out.extend_from_slice(&n.to_le_bytes());
    out.extend_from_slice(&[FORMAT, if schema.fields().is_open() { OPEN } else { 0 }]);
    u16(out, schema.version());
    u16(out, schema.next_id());
    u16(out, schema.history().len() as u16);
    for life in schema.history() {
        let field = &life.field;
        let (tag, width) = field.kind.to_tag();
        let default = field.default();
        let mut buffer = [0; 8];
        let default = if default.is_null() { &[][..] } else { field.kind.raw(&default, &mut buffer) };
        u16(out, field.id.0);
        u16(out, life.added);
        u16(out, life.dropped);
        out.extend_from_slice(&[tag, if field.nullable { NULLABLE } else { 0 }]);
        u16(out, width);
        out.push(field.name.len() as u8);
        u16(out, default.len() as u16);
        out.extend_from_slice(field.name.as_bytes());
        out.extend_from_slice(default);
    }
}

/// The schema whose bytes these are, all of them.
pub fn decode(bytes: &[u8]) -> Result<TableSchema> {
    let mut input = Input { bytes, at: 0 };
    let format = input.u8()?;
    if format != FORMAT {
        return Err(Error::new(
            ErrorKind::Version,
            format!("a table's schema in format {format}; this build knows {FORMAT}"),
        ));
    }
    let flags = input.u8()?;
    let (version, next_id, count) = (input.u16()?, input.u16()?, input.u16()?);
    if flags & !OPEN != 0 || version == 0 {
        return Err(input.malformed("flags or version"));
    }
    let mut history: Vec<FieldLife> = Vec::new();
    for _ in 0..count {
        let life = field(&mut input, version)?;
        let after_last = history.last().is_none_or(|last| last.field.id < life.field.id);
        if !after_last || life.field.id.0 >= next_id {
            return Err(input.malformed("field ids"));
        }
        history.push(life);
    }
    if input.at != bytes.len() {
        return Err(input.malformed("length"));
    }
    check_names(&history).map_err(|what| input.malformed(what))?;
    check_counts(&history).map_err(|what| input.malformed(what))?;
    Ok(TableSchema::assemble(history, next_id, version, flags & OPEN != 0, Vec::new()))
}

fn field(input: &mut Input<'_>, version: u16) -> Result<FieldLife> {
    let (id, added, dropped) = (FieldId(input.u16()?), input.u16()?, input.u16()?);
    let (tag, flags, width) = (input.u8()?, input.u8()?, input.u16()?);
    let (name_bytes, default_bytes) = (input.u8()?, input.u16()?);
    let lived = dropped == 0 || (added < dropped && dropped <= version);
    if added == 0 || added > version || !lived || flags & !NULLABLE != 0 {
        return Err(input.malformed("field's versions or flags"));
    }
    let Some(kind) = Type::from_tag(tag, width) else { return Err(input.malformed("field's type")) };
    let name = std::str::from_utf8(input.take(name_bytes as usize)?).map(str::to_owned);
    let Some(name) = name.ok().filter(|name| !name.is_empty()) else {
        return Err(input.malformed("field's name"));
    };
    let raw = input.take(default_bytes as usize)?;
    let nullable = flags & NULLABLE != 0;
    let default = match nullable {
        true if raw.is_empty() => OwnedValue::Null,
        false if raw.len() <= DEFAULT_BYTES_MAX => {
            kind.decode(raw).map_err(|_| input.malformed("field's default"))?.to_owned()
        }
        _ => return Err(input.malformed("field's default")),
    };
    Ok(FieldLife { field: Field { id, name, kind, nullable, default }, added, dropped })
}

/// No two living fields share a name.
fn check_names(history: &[FieldLife]) -> std::result::Result<(), &'static str> {
    let living = history.iter().filter(|life| life.dropped == 0);
    let mut names: Vec<&str> = living.map(|life| life.field.name()).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) { Err("field names") } else { Ok(()) }
}

/// No version has too many fields.
fn check_counts(history: &[FieldLife]) -> std::result::Result<(), &'static str> {
    // Drops sort before additions of the same version.
    let mut changes: Vec<(u16, i32)> = history.iter().map(|life| (life.added, 1)).collect();
    changes.extend(history.iter().filter(|life| life.dropped != 0).map(|life| (life.dropped, -1)));
    changes.sort_unstable();
    let mut living = 0;
    for (_, change) in changes {
        living += change;
        if living > FIELDS_MAX as i32 {
            return Err("number of fields");
        }
    }
    Ok(())
}

struct Input<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Input<'b> {
    fn take(&mut self, len: usize) -> Result<&'b [u8]> {
        let Some(bytes) = self.bytes.get(self.at..self.at + len) else {
            return Err(self.malformed("length"));
        };
        self.at += len;
        Ok(bytes)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16_at(self.take(2)?, 0))
    }

    #[cold]
    fn malformed(&self, what: &str) -> Error {
        Error::corrupted(format!("malformed {what} in a table's schema, at or before byte {}", self.at))
    }
}
