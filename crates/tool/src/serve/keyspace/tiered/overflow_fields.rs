//! Overflow fields: those that an open table does not learn (too many, names that are no text). Each is a row of its own, so
//! that a hash of a million odd fields costs no more to change than one of ten.
//!
//! Owns: the bytes below. Promises: the fields of a hash that is gone are unreachable at once and removed in time.
//!
//! The field `@more` of a hash's row, and the keys of the table `@more`:
//!
//! | bytes | `@more` of the row |
//! |---|---|
//! | 0..8 | generation, big-endian: which overflow fields are this hash's |
//! | 8..16 | how many overflow fields it has, little-endian; those that expire are counted until they are removed |
//! | 16 | 1 if some of them may expire, else 0 |
//!
//! | bytes | key in table `@more` |
//! |---|---|
//! | 0..8 | generation, big-endian |
//! | 8 | 0: `value` is the database (one byte) and the key of the hash; 1: `value` is the field's value |
//! | 9.. | for a field, its name |

use hedgerow::{FieldId, RowRef, Schema, Table, Type, Value};

use crate::serve::failure::{Failure, Outcome};

/// The field of a hash's row that points to its overflow fields.
pub const FIELD: &str = "@more";
/// Bytes of [`FIELD`]'s value.
pub const POINTER_BYTES: usize = 17;

/// The value of the field `@more` of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverflowFields {
    /// Which overflow fields are this hash's.
    pub generation: u64,
    /// How many they are, expired ones not yet removed included.
    pub count: u64,
    /// Whether some of them may expire.
    pub expiring: bool,
}

impl OverflowFields {
    /// Reads the value of a row's field; None if the row has none, or its bytes are foreign.
    pub fn decode(value: Value<'_>) -> Option<OverflowFields> {
        let bytes: &[u8; POINTER_BYTES] = value.as_bytes()?.try_into().ok()?;
        let (generation, rest) = bytes.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first_chunk::<8>()?;
        Some(OverflowFields {
            generation: u64::from_be_bytes(*generation),
            count: u64::from_le_bytes(*count),
            expiring: rest.first() == Some(&1),
        })
    }

    /// The value for the row's field.
    pub fn encode(&self) -> [u8; POINTER_BYTES] {
        let mut bytes = [0; POINTER_BYTES];
        bytes[..8].copy_from_slice(&self.generation.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.count.to_le_bytes());
        bytes[16] = u8::from(self.expiring);
        bytes
    }
}

/// The table of overflow fields.
pub struct OverflowFieldsTable {
    table: Table,
    value: FieldId,
    next_generation: u64,
}

fn owner_key(generation: u64) -> Vec<u8> {
    let mut key = generation.to_be_bytes().to_vec();
    key.push(0);
    key
}

fn fields_start(generation: u64) -> Vec<u8> {
    let mut key = generation.to_be_bytes().to_vec();
    key.push(1);
    key
}

/// Refuses a name too long to be that of an overflow field.
pub fn check_name(name: &[u8]) -> Outcome<()> {
    const NAME_BYTES_MAX: usize = hedgerow::limits::KEY_BYTES_MAX - 9;
    match name.len() <= NAME_BYTES_MAX {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "ERR the name of a field has at most {NAME_BYTES_MAX} bytes; this one has {}",
            name.len()
        ))),
    }
}

/// The key of an overflow field.
pub fn field_key(generation: u64, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + name.len());
    key.extend_from_slice(&generation.to_be_bytes());
    key.push(1);
    key.extend_from_slice(name);
    key
}

impl OverflowFieldsTable {
    /// The schema of the table.
    pub fn schema() -> Schema {
        Schema::new().field("value", Type::Bytes)
    }

    /// Takes the engine's table.
    pub fn open(table: Table) -> Outcome<OverflowFieldsTable> {
        let value = table.field("value")?;
        let mut last = 0;
        table.scan().reverse().limit(1).for_each(|key, _| {
            last = generation_of(key);
            Ok(false)
        })?;
        Ok(OverflowFieldsTable { table, value, next_generation: last + 1 })
    }

    /// The engine's table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The field that holds an overflow field's value.
    pub fn value(&self) -> FieldId {
        self.value
    }

    /// A generation never used before.
    pub fn new_generation(&mut self) -> u64 {
        let generation = self.next_generation;
        self.next_generation += 1;
        generation
    }

    /// The row that says whose a generation is.
    pub fn owner_row(space: usize, key: &[u8], generation: u64) -> (Vec<u8>, Vec<u8>) {
        let mut value = Vec::with_capacity(1 + key.len());
        value.push(space as u8);
        value.extend_from_slice(key);
        (owner_key(generation), value)
    }

    /// Runs `read` on the value and expiry of an overflow field, if it exists.
    pub fn read<R>(
        &self,
        overflow_fields: OverflowFields,
        name: &[u8],
        read: impl FnOnce(Value<'_>, Option<u64>) -> R,
    ) -> hedgerow::Result<Option<R>> {
        self.table.read(&field_key(overflow_fields.generation, name), |row: &RowRef<'_>| {
            Ok(read(row.get(self.value)?, row.expires_at_ms()))
        })
    }

    /// Whether an overflow field exists.
    pub fn has(&self, overflow_fields: OverflowFields, name: &[u8]) -> hedgerow::Result<bool> {
        self.table.exists(&field_key(overflow_fields.generation, name))
    }

    /// Runs `visit` on name, value and expiry of the overflow fields after `after`, in order of names, until it says false.
    pub fn for_each(
        &self,
        overflow_fields: OverflowFields,
        after: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], Value<'_>, Option<u64>) -> bool,
    ) -> hedgerow::Result<()> {
        let prefix = fields_start(overflow_fields.generation);
        let start = after.map(|name| field_key(overflow_fields.generation, name));
        let mut scan = self.table.scan().prefix(&prefix);
        if let Some(start) = &start {
            scan = scan.after(start);
        }
        scan.for_each(|key, row| {
            let name = key.get(prefix.len()..).unwrap_or(&[]);
            Ok(visit(name, row.get(self.value)?, row.expires_at_ms()))
        })
    }

    /// How many overflow fields there are now.
    pub fn count(&self, overflow_fields: OverflowFields) -> hedgerow::Result<u64> {
        if !overflow_fields.expiring {
            return Ok(overflow_fields.count);
        }
        let mut count = 0;
        self.for_each(overflow_fields, None, |_, _, _| {
            count += 1;
            true
        })?;
        Ok(count)
    }

    /// Removes up to `limit` rows of a generation that nobody points to any more; true when none is left.
    pub fn remove_generation(&self, generation: u64, limit: usize) -> Outcome<bool> {
        let mut keys = Vec::new();
        self.table.scan().prefix(&generation.to_be_bytes()).limit(limit).for_each(|key, _| {
            keys.push(key.to_vec());
            Ok(true)
        })?;
        // The row that names the owner sorts first; it goes last, so that a crash leaves something to find the rest by.
        for key in keys.iter().rev() {
            if key.len() != 9 || key.last() != Some(&0) || keys.len() < limit {
                self.table.delete(key)?;
            }
        }
        Ok(keys.len() < limit)
    }

    /// The next owner row after generation `after`: generation, database, key.
    pub fn next_owner(&self, after: u64) -> Outcome<Option<(u64, usize, Vec<u8>)>> {
        let mut start = after.to_be_bytes().to_vec();
        start.push(0xFF);
        let mut found = None;
        self.table.scan().after(&start).limit(1).for_each(|key, row| {
            let value = row.get(self.value)?;
            let (space, name) = value.as_bytes().and_then(<[u8]>::split_first).unwrap_or((&0, &[]));
            found = Some((generation_of(key), usize::from(*space), name.to_vec()));
            Ok(false)
        })?;
        Ok(found)
    }
}

fn generation_of(key: &[u8]) -> u64 {
    key.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// The failure of a row that points to overflow fields while their table is gone.
pub const LOST: Failure = Failure::text("ERR the table of overflow fields is missing");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let overflow_fields = OverflowFields { generation: 0x0102, count: 3, expiring: true };
        let bytes = overflow_fields.encode();
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(OverflowFields::decode(Value::Bytes(&bytes)), Some(overflow_fields));
        assert_eq!(OverflowFields::decode(Value::Bytes(b"short")), None);
        assert_eq!(OverflowFields::decode(Value::Null), None);
        assert_eq!(field_key(5, b"f"), [0, 0, 0, 0, 0, 0, 0, 5, 1, b'f']);
        assert_eq!(owner_key(5), [0, 0, 0, 0, 0, 0, 0, 5, 0]);
    }
}
