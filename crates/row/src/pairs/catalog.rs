//! The catalog of rows over pairs: one pair for each table, and one that counts.
//!
//! Owns the bytes of these pairs. Promises that a value which decodes is, whole, what was stored under this name; arbitrary bytes end in
//! `Corrupted` or `Version`. Must not know how pairs are got or stored.
//!
//! All of them are in group 0. The key of a table's pair is the table's name; that of the counter is empty, which no name is.
//!
//! ```text
//!  0        4   5      8        12       16
//!  +--------+---+------+--------+--------+------------------------+
//!  |  crc   | 1 |  0   | table  | group  | schema (see            |
//!  |        |   |      |        |        | `schema/catalog.rs`)   |   of a table
//!  +--------+---+------+--------+--------+------------------------+
//!  |  crc   | 1 |  0   |  next  |                                     of the counter
//!  +--------+---+------+--------+
//! ```
//!
//! * All integers are little-endian. `crc` is the crc32c of what follows it, seeded with that of the pair's key: a value that comes with another
//!   name's pair does not match. Byte 4 is the format.
//! * `table` tells the table from all others there ever were, and never changes; `group` is the group of its rows, which is another once the
//!   table was cleared. Both are counted by the counter: `next` is the first number that was not given yet, from 1.

use std::sync::Arc;

use hedgerow_device::crc32c;

use crate::backend::{Mark, pair_key};
use crate::le_bytes::u32_at;
use crate::schema::catalog;
use crate::schema::table::TableSchema;
use crate::{Error, ErrorKind, Result};

/// The group of the catalog's pairs. Tables have others.
pub(super) const CATALOG_GROUP: u32 = 0;

const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 8;
const COUNTER_BYTES: usize = HEAD_BYTES + 4;
const TABLE_BYTES: usize = HEAD_BYTES + 8;

/// A table as its pair in the catalog says it is.
#[derive(Debug, Clone)]
pub(super) struct CatalogEntry {
    /// Tells it from all other tables.
    pub(super) table: u32,
    /// The group of its rows.
    pub(super) group: u32,
    pub(super) schema: Arc<TableSchema>,
}

/// A table's entry and the mark that it had.
#[derive(Debug, Clone)]
pub(super) struct SeenEntry {
    pub(super) entry: CatalogEntry,
    pub(super) mark: Mark,
    /// Of the entry as it is stored.
    pub(super) bytes: usize,
}

/// The key of a table's pair.
pub(super) fn entry_key(name: &str) -> Vec<u8> {
    pair_key(CATALOG_GROUP, name.as_bytes())
}

/// The key of the counter's pair.
pub(super) fn counter_key() -> Vec<u8> {
    pair_key(CATALOG_GROUP, b"")
}

impl CatalogEntry {
    /// The value of the pair under this key.
    pub(super) fn encode(&self, key: &[u8]) -> Vec<u8> {
        let mut value = head();
        value.extend_from_slice(&self.table.to_le_bytes());
        value.extend_from_slice(&self.group.to_le_bytes());
        catalog::encode(&self.schema, &mut value);
        sealed(key, value)
    }

    pub(super) fn decode(key: &[u8], value: &[u8]) -> Result<CatalogEntry> {
        check(key, value, TABLE_BYTES..=usize::MAX)?;
        let schema = catalog::decode(&value[TABLE_BYTES..])?;
        let (table, group) = (u32_at(value, HEAD_BYTES), u32_at(value, HEAD_BYTES + 4));
        Ok(CatalogEntry { table, group, schema: Arc::new(schema) })
    }
}

/// The value of the counter's pair.
pub(super) fn encode_counter(next: u32) -> Vec<u8> {
    let mut value = head();
    value.extend_from_slice(&next.to_le_bytes());
    sealed(&counter_key(), value)
}

pub(super) fn decode_counter(value: &[u8]) -> Result<u32> {
    check(&counter_key(), value, COUNTER_BYTES..=COUNTER_BYTES)?;
    Ok(u32_at(value, HEAD_BYTES))
}

fn head() -> Vec<u8> {
    vec![0, 0, 0, 0, FORMAT, 0, 0, 0]
}

fn sealed(key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
    let crc = crc32c(crc32c(0, key), &value[4..]);
    value[..4].copy_from_slice(&crc.to_le_bytes());
    value
}

fn check(key: &[u8], value: &[u8], bytes: std::ops::RangeInclusive<usize>) -> Result<()> {
    let shown = || format!("the catalog's pair of key {}", key.escape_ascii());
    if value.len() < HEAD_BYTES || u32_at(value, 0) != crc32c(crc32c(0, key), &value[4..]) {
        return Err(Error::corrupted(format!("{}: it does not match its checksum", shown())));
    }
    if value[4..HEAD_BYTES] != [FORMAT, 0, 0, 0] {
        let format = value[4..HEAD_BYTES].escape_ascii();
        let message = format!("{}: it is in format {format}; this build knows {FORMAT}", shown());
        return Err(Error::new(ErrorKind::Version, message));
    }
    match bytes.contains(&value.len()) {
        true => Ok(()),
        false => Err(Error::corrupted(format!("{}: it has {} bytes", shown(), value.len()))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Schema, Type};

    fn entry() -> CatalogEntry {
        let schema = TableSchema::create(&Schema::new().field("a", Type::U8)).unwrap();
        CatalogEntry { table: 0x0102, group: 0x0304, schema: Arc::new(schema) }
    }

    #[test]
    fn golden_bytes() {
        let (key, entry) = (entry_key("t"), entry());
        assert_eq!(key, [0, 0, 0, 0, b't']);
        let value = entry.encode(&key);
        let mut schema = Vec::new();
        catalog::encode(&entry.schema, &mut schema);
        assert_eq!(value[..4], GOLDEN_CRC);
        assert_eq!(value[4..TABLE_BYTES], [1, 0, 0, 0, 2, 1, 0, 0, 4, 3, 0, 0]);
        assert_eq!(value[TABLE_BYTES..], schema);
        assert_eq!(encode_counter(7), GOLDEN_COUNTER);
        assert_eq!(decode_counter(&encode_counter(u32::MAX)).unwrap(), u32::MAX);
    }

    const GOLDEN_CRC: [u8; 4] = [123, 88, 166, 47];
    const GOLDEN_COUNTER: [u8; 12] = [176, 112, 92, 123, 1, 0, 0, 0, 7, 0, 0, 0];

    #[test]
    fn what_was_encoded_is_decoded() {
        let key = entry_key("t");
        let decoded = CatalogEntry::decode(&key, &entry().encode(&key)).unwrap();
        assert_eq!((decoded.table, decoded.group), (0x0102, 0x0304));
        assert_eq!(decoded.schema.fields(), entry().schema.fields());
    }

    #[test]
    fn other_bytes_are_refused() {
        let key = entry_key("t");
        let value = entry().encode(&key);
        let kind = |key: &[u8], value: &[u8]| CatalogEntry::decode(key, value).unwrap_err().kind();
        assert_eq!(kind(&entry_key("u"), &value), ErrorKind::Corrupted, "of another name");
        for at in 0..value.len() {
            let mut spoiled = value.clone();
            spoiled[at] ^= 0x10;
            assert_eq!(kind(&key, &spoiled), ErrorKind::Corrupted, "byte {at}");
            assert_eq!(kind(&key, &value[..at]), ErrorKind::Corrupted, "cut at {at}");
        }
        let mut later = value;
        later[4] = 2;
        assert_eq!(kind(&key, &sealed(&key, later)), ErrorKind::Version);
        let counter = encode_counter(7);
        assert_eq!(kind(&counter_key(), &counter), ErrorKind::Corrupted, "the counter is no table");
        assert_eq!(decode_counter(&counter[..8]).unwrap_err().kind(), ErrorKind::Corrupted);
    }
}
