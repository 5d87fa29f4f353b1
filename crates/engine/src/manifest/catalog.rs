//! The bytes of the catalog, and of the records that change it. All numbers are little-endian.
//!
//! Owns both. Promises that decoding what encoding gave is the same, and that decoding anything else is `Corrupted` or
//! `Version`. Must not know where they lie: checksums are those of the root and of the record.
//!
//! The catalog in the root extent, a checkpoint:
//!
//! ```text
//!  0         4        8
//!  +---------+--------+---------------------------------------------------------+----------+
//!  | next id | tables | per table an entry: id u32, name bytes u16, schema bytes | sequence |
//!  |         |        | u32, name, schema (see `schema/catalog.rs`)             |          |
//!  +---------+--------+---------------------------------------------------------+----------+
//! ```
//!
//! * `sequence`: it holds all changes up to this one, and none after. Builds that wrote no changes into the log end with the
//!   last entry: their catalog is whole.
//! * No bytes at all: no table yet, as of sequence 0.
//!
//! The body of a record that changes it (a row of table 0, see `log/format.rs`):
//!
//! ```text
//!  0        1         5         9
//!  +--------+---------+---------+----------------------------------------------------------------+
//!  | format | next id | changes | per change: u8 1 and an entry: the table of that name is this  |
//!  |   1    |         |         | from now on; or u8 2 and u32 id: the table with this id is gone |
//!  +--------+---------+---------+----------------------------------------------------------------+
//! ```
//!
//! All changes of one record happen together. An entry is whole, so of several changes of one table the last says all.

use hedgerow_row::le_bytes::{u16_at, u32_at, u64_at};
use hedgerow_row::schema::catalog as schema_format;
use hedgerow_row::schema::table::TableSchema;

use crate::{Error, ErrorKind, Result};

const CHANGES_FORMAT: u8 = 1;
const TABLE_IS: u8 = 1;
const TABLE_IS_GONE: u8 = 2;

/// Bytes of a catalog without tables.
pub(crate) const EMPTY_BYTES: u64 = 16;
const _: () = assert!(EMPTY_BYTES as usize == 2 * size_of::<u32>() + size_of::<u64>());

/// A table as the catalog has it.
#[derive(Debug)]
pub(crate) struct TableEntry {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) schema: TableSchema,
}

/// A catalog as it was stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) next_id: u32,
    pub(crate) entries: Vec<TableEntry>,
    /// What follows the entries.
    rest: Vec<u8>,
}

/// What a record says of the catalog.
#[derive(Debug)]
pub(crate) struct Changes {
    pub(crate) next_id: u32,
    pub(crate) changes: Vec<CatalogChange>,
}

/// One of them.
#[derive(Debug)]
pub(crate) enum CatalogChange {
    /// The table of that name is this.
    Table(TableEntry),
    /// The table with this id is gone.
    Gone(u32),
}

impl Stored {
    /// No table yet.
    pub(crate) fn empty() -> Stored {
        Stored { next_id: 1, entries: Vec::new(), rest: 0u64.to_le_bytes().to_vec() }
    }

    /// Takes a catalog from the beginning of `bytes`.
    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Stored> {
        if bytes.is_empty() {
            return Ok(Stored::empty());
        }
        let next_id = take_u32(&mut bytes)?;
        let mut entries = Vec::new();
        for _ in 0..take_u32(&mut bytes)? {
            entries.push(take_entry(&mut bytes)?);
        }
        Ok(Stored { next_id, entries, rest: bytes[..bytes.len().min(9)].to_vec() })
    }

    /// The sequence that it says it is whole as of, of bytes that nothing verifies and that others may follow: no more than a claim.
    pub(crate) fn claimed_sequence(&self) -> u64 {
        self.rest.get(..8).map_or(0, |bytes| u64_at(bytes, 0))
    }

    /// The sequence that it is whole as of; `None` of one that no sequence was written behind. Of bytes that end with it.
    pub(crate) fn sequence(&self) -> Result<Option<u64>> {
        match self.rest.len() {
            0 => Ok(None),
            8 => Ok(Some(u64_at(&self.rest, 0))),
            _ => Err(malformed()),
        }
    }
}

/// A catalog of `tables`, whole as of `sequence`.
pub(crate) fn encode_catalog<'t>(
    next_id: u32,
    tables: impl ExactSizeIterator<Item = (u32, &'t str, &'t TableSchema)>,
    sequence: u64,
) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(next_id.to_le_bytes());
    out.extend((tables.len() as u32).to_le_bytes());
    tables.for_each(|(id, name, schema)| put_entry(id, name, schema, &mut out));
    out.extend(sequence.to_le_bytes());
    out
}

/// The body of a record in the making.
#[derive(Debug)]
pub(crate) struct ChangesBody {
    bytes: Vec<u8>,
    count: u32,
}

impl ChangesBody {
    pub(crate) fn new() -> ChangesBody {
        ChangesBody { bytes: vec![0; 9], count: 0 }
    }

    pub(crate) fn table(&mut self, id: u32, name: &str, schema: &TableSchema) {
        self.count += 1;
        self.bytes.push(TABLE_IS);
        put_entry(id, name, schema, &mut self.bytes);
    }

    pub(crate) fn gone(&mut self, id: u32) {
        self.count += 1;
        self.bytes.push(TABLE_IS_GONE);
        self.bytes.extend(id.to_le_bytes());
    }

    pub(crate) fn finish(mut self, next_id: u32) -> Vec<u8> {
        self.bytes[0] = CHANGES_FORMAT;
        self.bytes[1..5].copy_from_slice(&next_id.to_le_bytes());
        self.bytes[5..9].copy_from_slice(&self.count.to_le_bytes());
        self.bytes
    }
}

impl Changes {
    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Changes> {
        let format = take(&mut bytes, 1)?[0];
        if format != CHANGES_FORMAT {
            return Err(Error::new(
                ErrorKind::Version,
                format!(
                    "a change of the catalog has format {format}; this build knows format {CHANGES_FORMAT}"
                ),
            ));
        }
        let next_id = take_u32(&mut bytes)?;
        let mut changes = Vec::new();
        for _ in 0..take_u32(&mut bytes)? {
            changes.push(match take(&mut bytes, 1)?[0] {
                TABLE_IS => CatalogChange::Table(take_entry(&mut bytes)?),
                TABLE_IS_GONE => CatalogChange::Gone(take_u32(&mut bytes)?),
                _ => return Err(malformed()),
            });
        }
        if bytes.is_empty() { Ok(Changes { next_id, changes }) } else { Err(malformed()) }
    }
}

/// Bytes of a table's entry in the catalog.
pub(crate) fn entry_bytes(name: &str, schema: &TableSchema) -> u64 {
    let mut out = Vec::new();
    put_entry(0, name, schema, &mut out);
    out.len() as u64
}

fn put_entry(id: u32, name: &str, schema: &TableSchema, out: &mut Vec<u8>) {
    out.extend(id.to_le_bytes());
    out.extend((name.len() as u16).to_le_bytes());
    let length_at = out.len();
    out.extend([0; 4]);
    out.extend(name.as_bytes());
    let schema_at = out.len();
    schema_format::encode(schema, out);
    let schema_bytes = (out.len() - schema_at) as u32;
    out[length_at..length_at + 4].copy_from_slice(&schema_bytes.to_le_bytes());
}

fn take_entry(bytes: &mut &[u8]) -> Result<TableEntry> {
    let id = take_u32(bytes)?;
    let name_bytes = u16_at(take(bytes, 2)?, 0) as usize;
    let schema_bytes = take_u32(bytes)? as usize;
    let name = std::str::from_utf8(take(bytes, name_bytes)?).map_err(|_| malformed())?;
    let schema = schema_format::decode(take(bytes, schema_bytes)?)?;
    Ok(TableEntry { id, name: name.to_owned(), schema })
}

fn take<'b>(bytes: &mut &'b [u8], count: usize) -> Result<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or_else(malformed)?;
    *bytes = rest;
    Ok(taken)
}

fn take_u32(bytes: &mut &[u8]) -> Result<u32> {
    Ok(u32_at(take(bytes, 4)?, 0))
}

pub(crate) fn malformed() -> Error {
    Error::corrupted("the catalog of tables is malformed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Schema, Type};

    fn schema() -> TableSchema {
        TableSchema::create(&Schema::new().field("a", Type::U8)).unwrap()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    const ENTRY: &str = "070000000100170000007401000100010001000000010000000600000001010061";

    #[test]
    fn catalog_golden_bytes() {
        let bytes = encode_catalog(9, [(7, "t", &schema())].into_iter(), 0x0102);
        assert_eq!(hex(&bytes), format!("0900000001000000{ENTRY}000201000000000000"));
        assert_eq!(bytes.len() as u64, EMPTY_BYTES + entry_bytes("t", &schema()));
        let stored = Stored::decode(&bytes).unwrap();
        assert_eq!((stored.next_id, stored.sequence().unwrap()), (9, Some(0x0102)));
        assert_eq!((stored.entries[0].id, &*stored.entries[0].name), (7, "t"));
        assert_eq!(stored.entries[0].schema.fields(), schema().fields());
        let older = Stored::decode(&bytes[..bytes.len() - 8]).unwrap();
        assert_eq!((older.entries.len(), older.sequence().unwrap()), (1, None), "of a build without changes");
        for cut in [1, 7, 9] {
            let cut = Stored::decode(&bytes[..bytes.len() - cut]).and_then(|stored| stored.sequence());
            assert_eq!(cut.unwrap_err().kind(), ErrorKind::Corrupted);
        }
        assert_eq!(Stored::decode(&[]).unwrap().sequence().unwrap(), Some(0));
    }

    #[test]
    fn changes_golden_bytes() {
        let mut body = ChangesBody::new();
        body.gone(0x0304);
        body.table(7, "t", &schema());
        let mut bytes = body.finish(8);
        assert_eq!(hex(&bytes), format!("0108000000020000000204030000{}{ENTRY}00", "01"));
        let changes = Changes::decode(&bytes).unwrap();
        assert_eq!(changes.next_id, 8);
        let [CatalogChange::Gone(0x0304), CatalogChange::Table(entry)] = &changes.changes[..] else {
            panic!("{changes:?}")
        };
        assert_eq!((entry.id, &*entry.name, entry.schema.fields()), (7, "t", schema().fields()));
        for cut in 0..bytes.len() {
            assert_eq!(Changes::decode(&bytes[..cut]).unwrap_err().kind(), ErrorKind::Corrupted, "{cut}");
        }
        bytes[0] = 2;
        assert_eq!(Changes::decode(&bytes).unwrap_err().kind(), ErrorKind::Version);
        bytes[0] = 1;
        bytes[9] = 3;
        assert_eq!(Changes::decode(&bytes).unwrap_err().kind(), ErrorKind::Corrupted);
    }
}
