//! One table of hashes: its fields by the names clients use, and how text becomes a field's value.
//!
//! Owns: the cache of fields of one table. Promises: the cache agrees with the engine's schema, since all changes of
//! schemas in a served store go through it. Must not know keys.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use hedgerow::{Db, FieldId, Table, TableChanges, Type, Value};

use super::overflow_fields;
use super::writer::Writer;
use crate::serve::failure::{Failure, Outcome, quote};
use crate::serve::keyspace::naming::{Place, TableName};
use crate::serve::keyspace::text::{parse_value, type_name};
use crate::serve::limits;

/// The field that says that fields of this table expire on their own, or were dropped: so that a row may have none.
const EXPIRING_FIELD: &str = "@expiring";

/// Bytes a field takes in the engine's catalog beside its name, about; and a table.
const FIELD_BYTES: usize = 32;
/// See above.
pub const TABLE_BYTES: usize = 256;

/// A field as the server knows it.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    /// The engine's name for it.
    pub id: FieldId,
    /// Its type.
    pub kind: Type,
    /// Whether it can be removed from a row.
    pub nullable: bool,
}

/// A table of hashes.
pub struct HashTable {
    table: Table,
    name: TableName,
    open: bool,
    fields: HashMap<Box<[u8]>, Slot, Seeded>,
    overflow_fields: Option<FieldId>,
    has_expiring_fields: bool,
}

/// Whether a field is the server's own.
#[inline]
pub fn is_reserved(name: &[u8]) -> bool {
    name.first() == Some(&b'@')
        && (name == overflow_fields::FIELD.as_bytes() || name == EXPIRING_FIELD.as_bytes())
}

impl HashTable {
    /// Reads the schema of `table`.
    pub fn new(table: Table, name: TableName) -> Outcome<HashTable> {
        let open = table.schema().is_open();
        let mut known = HashTable {
            table,
            name,
            open,
            fields: HashMap::with_hasher(Seeded::default()),
            overflow_fields: None,
            has_expiring_fields: false,
        };
        known.reload()?;
        Ok(known)
    }

    /// Reads the schema again, after a change of it.
    pub fn reload(&mut self) -> Outcome<()> {
        self.fields.clear();
        for field in self.table.schema().fields() {
            let id = self.table.field(field.name())?;
            match field.name() {
                overflow_fields::FIELD => self.overflow_fields = Some(id),
                EXPIRING_FIELD => self.has_expiring_fields = true,
                name => {
                    let slot = Slot { id, kind: field.kind(), nullable: field.is_nullable() };
                    self.fields.insert(name.as_bytes().into(), slot);
                }
            }
        }
        Ok(())
    }

    /// The engine's table.
    #[inline]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The engine's name of it.
    pub fn name(&self) -> String {
        self.name.to_string()
    }

    /// The database.
    pub fn space(&self) -> usize {
        self.name.space
    }

    /// What the table holds.
    pub fn place(&self) -> &Place {
        &self.name.place
    }

    /// Whether it learns fields.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The field that points to overflow fields, if any row ever had some.
    pub fn overflow_fields(&self) -> Option<FieldId> {
        self.overflow_fields
    }

    /// Whether fields of this table may expire on their own, or rows have lost theirs otherwise.
    pub fn has_expiring_fields(&self) -> bool {
        self.has_expiring_fields
    }

    /// Whether there may be rows that have no field but this one of the table's.
    pub fn may_leave_no_field(&self, name: &[u8]) -> bool {
        let has_another = self.fields.iter().any(|(other, slot)| !slot.nullable && **other != *name);
        self.fields.contains_key(name) && !has_another
    }

    /// Whether a write of `count` different fields leaves no other field in the row, given whether there is a row.
    #[inline]
    pub fn is_whole(&self, count: usize, exists: bool) -> bool {
        match exists {
            true => count == self.fields.len() && self.overflow_fields.is_none() && !self.has_expiring_fields,
            // In an open table no field has a default; a declared one may refuse a row without some.
            false => self.open,
        }
    }

    /// The field clients call `name`.
    #[inline]
    pub fn slot(&self, name: &[u8]) -> Option<Slot> {
        self.fields.get(name).copied()
    }

    /// All fields that clients know.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.fields.values().copied()
    }

    /// `name`, which the table does not have, as text, if it can learn it. A table with overflow fields learns no more: some hash may have one of that name, which nobody would find beside a field of the table.
    pub fn learnable<'n>(&self, name: &'n [u8]) -> Option<&'n str> {
        if !self.open || self.overflow_fields.is_some() || self.fields.len() >= limits::LEARNED_FIELDS_MAX {
            return None;
        }
        let may_be = (1..=limits::LEARNED_NAME_BYTES_MAX).contains(&name.len()) && name[0] != b'@';
        std::str::from_utf8(name).ok().filter(|_| may_be)
    }

    /// Learns names in the order they are given, as many as there is room for; says how many bytes of schema that took.
    pub(super) fn learn(&mut self, names: &[&str], writer: &mut Writer) -> Outcome<usize> {
        let mut seen = HashSet::new();
        let new = names.iter().copied().filter(|name| seen.insert(*name));
        let names: Vec<&str> = new.take(limits::LEARNED_FIELDS_MAX - self.fields.len()).collect();
        let absent: Vec<(&str, Value<'_>)> = names.iter().map(|name| (*name, Value::Null)).collect();
        // The engine learns the names of a write all at once, before it looks for the row: this changes nothing but the
        // schema, and that only once however many names there are.
        writer.prepare(|| self.table.update_existing(b"@", &absent))?;
        for name in &names {
            let slot = Slot { id: self.table.field(name)?, kind: Type::Bytes, nullable: true };
            self.fields.insert(name.as_bytes().into(), slot);
        }
        Ok(names.iter().map(|name| name.len() + FIELD_BYTES).sum())
    }

    /// Bytes the schema takes, about.
    pub fn schema_bytes(&self) -> usize {
        TABLE_BYTES + self.fields.keys().map(|name| name.len() + FIELD_BYTES).sum::<usize>()
    }

    /// The error of a name that a table with a declared schema does not have.
    pub fn unknown_field(&self, name: &[u8]) -> Failure {
        Failure::new(format!(
            "ERR table '{}' has no field '{}': its schema is declared, HR.SCHEMA shows it and HR.ADDFIELD extends it",
            self.name,
            quote(name)
        ))
    }

    /// The field that points to overflow fields, created if need be.
    pub(super) fn overflow_fields_or_create(&mut self, writer: &mut Writer) -> Outcome<FieldId> {
        if let Some(id) = self.overflow_fields {
            return Ok(id);
        }
        writer.prepare(|| self.table.add_field(overflow_fields::FIELD, Type::Bytes))?;
        let id = self.table.field(overflow_fields::FIELD)?;
        self.overflow_fields = Some(id);
        Ok(id)
    }

    /// Records, for ever, that fields of this table may expire on their own, or rows lose theirs otherwise.
    pub(super) fn record_expiring_fields(&mut self, writer: &mut Writer) -> Outcome<()> {
        if !self.has_expiring_fields {
            writer.prepare(|| self.table.add_field(EXPIRING_FIELD, Type::Bool))?;
            self.has_expiring_fields = true;
        }
        Ok(())
    }

    /// Drops a field and records that rows may have lost theirs, together. What is known of the table is to be read again.
    pub(super) fn drop_field_and_mark(&self, db: &Db, name: &str) -> hedgerow::Result<()> {
        let mut changes = TableChanges::new();
        changes.drop_field(self.table.name(), name);
        if !self.has_expiring_fields {
            changes.add_field(self.table.name(), EXPIRING_FIELD, Type::Bool);
        }
        db.change_tables(&changes)
    }

    /// Refuses an expiry of a field that every row has.
    pub fn check_may_expire(&self, slot: Slot, name: &[u8]) -> Outcome<()> {
        if slot.nullable {
            return Ok(());
        }
        Err(Failure::new(format!(
            "ERR field '{}' of table '{}' is not NULLABLE: it can not expire, see HR.SCHEMA",
            quote(name),
            self.name
        )))
    }

    /// The key of a row of this table.
    pub fn key_of(&self, row: &[u8], key: &mut Vec<u8>) {
        key.clear();
        if let Place::Prefix(prefix) = &self.name.place {
            key.extend_from_slice(prefix);
            key.push(b':');
        }
        key.extend_from_slice(row);
    }

    /// `text` as a value of the field `name`, or why it does not fit.
    #[inline]
    pub fn value_of<'v>(&self, slot: Slot, name: &[u8], text: &'v [u8]) -> Outcome<Value<'v>> {
        if slot.kind == Type::Bytes {
            return Ok(Value::Bytes(text));
        }
        parse_value(slot.kind, text).ok_or_else(|| {
            Failure::new(format!(
                "ERR field '{}' of table '{}' is {}: '{}' does not fit",
                quote(name),
                self.name,
                type_name(slot.kind),
                quote(text)
            ))
        })
    }
}

/// A hash of field names and key prefixes: short strings, looked up on every command. Seeded, so that nobody can choose
/// names that collide; the maps it serves are bounded besides.
#[derive(Debug, Clone)]
pub struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Seeded {
        Seeded(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for Seeded {
    type Hasher = SeededHasher;

    #[inline]
    fn build_hasher(&self) -> SeededHasher {
        SeededHasher(self.0)
    }
}

/// See [`Seeded`].
#[derive(Debug)]
pub struct SeededHasher(u64);

impl SeededHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9E37_79B9_7F4A_7C15_u128;
        self.0 = (product as u64) ^ ((product >> 64) as u64) ^ word.rotate_left(23);
    }
}

impl Hasher for SeededHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.0 = self.0.wrapping_add((value as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_differ_for_near_names() {
        let seeded = Seeded::default();
        let mut seen = std::collections::HashSet::new();
        for index in 0..10_000 {
            assert!(seen.insert(seeded.hash_one(format!("field{index}").as_bytes())));
        }
    }
}
