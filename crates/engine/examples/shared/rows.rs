//! A table of rows of 10 x 100 bytes, and its keys.

use hedgerow::{Db, FieldId, Schema, Table, Type};

pub(super) const FIELDS: usize = 10;
pub(super) const FIELD_BYTES: usize = 100;

/// The key of the row `i`; neighbours lie far from one another.
pub(super) fn key(i: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    key[8..].copy_from_slice(&i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    key
}

/// The empty table, and the ids of its fields.
pub(super) fn make_table(db: &Db) -> (Table, Vec<FieldId>) {
    let schema = (0..FIELDS).fold(Schema::new(), |schema, i| {
        schema.field(format!("field{i}"), Type::FixedBytes(FIELD_BYTES as u16))
    });
    let table = db.create_table("usertable", schema).unwrap();
    let ids = (0..FIELDS).map(|i| table.field(&format!("field{i}")).unwrap()).collect();
    (table, ids)
}
