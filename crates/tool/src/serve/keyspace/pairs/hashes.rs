//! Keys that are hashes: the fields of one row.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use hedgerow::{OwnedValue, Type, Value};
use hedgerow_row::pairs::{Edit, HeldRow};
use hedgerow_row::schema::plan::FieldExpiries;
use hedgerow_row::schema::table::TableSchema;

use super::field_names::{decoded, encoded};
use super::{PairKeyspace, kind_of, locate, value};
use crate::serve::failure::{Failure, Outcome, quote};
use crate::serve::keyspace::text::{parse_value, type_name};
use crate::serve::keyspace::{FieldWrite, Kind};

/// A hash in a row that is at hand.
pub struct PairHashView<'a, 'r> {
    row: &'a HeldRow<'r>,
}

impl PairHashView<'_, '_> {
    /// Runs `read` on the value of a field, `Null` if there is none.
    pub fn field<R>(&self, name: &[u8], read: impl FnOnce(Value<'_>) -> R) -> hedgerow::Result<R> {
        Ok(read(value(self.row, &encoded(name))?))
    }

    /// The expiry of a field: None if there is no such field, else its time if it has one.
    pub fn field_expiry(&self, name: &[u8]) -> hedgerow::Result<Option<Option<u64>>> {
        let name = encoded(name);
        match value(self.row, &name)?.is_null() {
            true => Ok(None),
            false => Ok(Some(self.row.field_expires_at_ms(&*name)?)),
        }
    }

    /// Runs `visit` on each field's name and value, until it says false.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], Value<'_>) -> bool) -> hedgerow::Result<()> {
        let mut goes_on = true;
        self.row.for_each(|name, value| {
            if goes_on && let Some(name) = decoded(name) {
                goes_on = visit(&name, value);
            }
        })
    }

    /// When the first field expires, if one does, in ms since 1970.
    pub(super) fn first_expiry_ms(&self) -> hedgerow::Result<Option<u64>> {
        if !self.row.has_field_expiry() {
            return Ok(None);
        }
        let mut names: Vec<String> = Vec::new();
        self.row.for_each(|name, _| names.extend(decoded(name).map(|_| name.to_owned())))?;
        let expiries = names.iter().map(|name| self.row.field_expires_at_ms(name.as_str()));
        Ok(expiries.collect::<hedgerow::Result<Vec<_>>>()?.into_iter().flatten().min())
    }

    /// How many fields there are.
    pub fn count(&self) -> hedgerow::Result<u64> {
        let mut count = 0;
        self.row.for_each(|name, _| count += u64::from(decoded(name).is_some()))?;
        Ok(count)
    }
}

/// What is written of one field.
struct StagedField<'v> {
    name: Cow<'v, str>,
    value: Value<'v>,
    expires_at_ms: Option<u64>,
}

/// Names and values, as edits take them.
fn values<'s>(staged: impl Iterator<Item = &'s StagedField<'s>>) -> Vec<(&'s str, Value<'s>)> {
    staged.map(|field| (&*field.name, field.value)).collect()
}

impl PairKeyspace {
    /// Runs `read` on a hash. None if the key does not exist; WRONGTYPE if it is a string.
    pub fn hash<R>(
        &self,
        space: usize,
        key: &[u8],
        read: impl FnOnce(&PairHashView<'_, '_>) -> hedgerow::Result<R>,
    ) -> Outcome<Option<R>> {
        let found = self.row(space, key, |row| {
            let Some(row) = row else { return Ok(Ok(None)) };
            Ok(match kind_of(row)? {
                None => Ok(None),
                Some(Kind::String) => Err(Failure::WRONG_TYPE),
                Some(Kind::Hash) => Ok(Some(read(&PairHashView { row })?)),
            })
        });
        found?
    }

    /// Writes fields of a hash, making it if need be; says how many of them it did not have. The last value of a name wins. Keeps
    /// the key's expiry; that of the fields is as given.
    pub fn hash_set<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        writes: impl Iterator<Item = FieldWrite<'v>>,
    ) -> Outcome<usize> {
        let (table, row) = locate(space, key);
        let schema = self.schema(&table)?;
        let (mut staged, mut places) = (Vec::<StagedField<'v>>::new(), HashMap::new());
        for write in writes {
            let field = stage(&schema, &table, write)?;
            match places.entry(field.name.clone()) {
                Entry::Occupied(place) => staged[*place.get()] = field,
                Entry::Vacant(place) => {
                    place.insert(staged.len());
                    staged.push(field);
                }
            }
        }
        let is_new = |view: &PairHashView<'_, '_>| {
            let absent = staged.iter().map(|field| Ok(value(view.row, &field.name)?.is_null()));
            absent.collect::<hedgerow::Result<Vec<bool>>>()
        };
        let new = self.hash(space, key, is_new)?;
        let count = match &new {
            Some(new) => new.iter().filter(|is_new| **is_new).count(),
            None => staged.len(),
        };
        if new.is_none() {
            // Not onto what may be left there: it has no fields any more, but perhaps an expiry.
            let lasting = values(staged.iter().filter(|field| field.expires_at_ms.is_none()));
            self.edit(&table, row, &Edit::Put(&lasting, None))?;
            staged.retain(|field| field.expires_at_ms.is_some());
        }
        if !staged.is_empty() {
            let expiries: Vec<Option<u64>> = staged.iter().map(|field| field.expires_at_ms).collect();
            let edit = Edit::Update(&values(staged.iter()), FieldExpiries::Each(&expiries));
            self.edit(&table, row, &edit)?;
        }
        Ok(count)
    }

    /// Removes fields of a hash, and the hash with its last field; says how many it had.
    pub fn hash_delete<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        names: impl Iterator<Item = &'v [u8]>,
    ) -> Outcome<usize> {
        let mut present: HashSet<Cow<'v, str>> = HashSet::new();
        let count = self.hash(space, key, |view| {
            for name in names.map(encoded) {
                if !present.contains(&name) && !value(view.row, &name)?.is_null() {
                    present.insert(name);
                }
            }
            view.count()
        })?;
        let Some(count) = count.filter(|_| !present.is_empty()) else { return Ok(0) };
        if present.len() as u64 == count {
            self.delete(space, key)?;
            return Ok(present.len());
        }
        let (table, row) = locate(space, key);
        let schema = self.schema(&table)?;
        if present.iter().any(|name| !is_nullable(&schema, name)) {
            return Err(Failure::text(
                "ERR a field of that table's schema is not NULLABLE: it can not be removed, see HR.SCHEMA",
            ));
        }
        let removed: Vec<(&str, Value<'_>)> = present.iter().map(|name| (&**name, Value::Null)).collect();
        self.edit(&table, row, &Edit::Update(&removed, FieldExpiries::All(None)))?;
        Ok(removed.len())
    }

    /// Sets or clears the expiry of those of these fields that exist, all of them or none.
    pub fn hash_expire_fields<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        names: impl Iterator<Item = &'v [u8]>,
        at_ms: Option<u64>,
    ) -> Outcome<()> {
        let present = self.hash(space, key, |view| {
            let mut present: Vec<(Cow<'v, str>, OwnedValue)> = Vec::new();
            let mut seen = HashSet::new();
            // A value is copied once, however often its field is named.
            for name in names.filter(|name| seen.insert(*name)).map(encoded) {
                let value = value(view.row, &name)?;
                if !value.is_null() {
                    present.push((name, value.to_owned()));
                }
            }
            Ok(present)
        })?;
        let Some(present) = present.filter(|present| !present.is_empty()) else { return Ok(()) };
        let (table, row) = locate(space, key);
        let schema = self.schema(&table)?;
        if at_ms.is_some() {
            present.iter().try_for_each(|(name, _)| check_may_expire(&schema, &table, name))?;
        }
        let fields: Vec<(&str, Value<'_>)> =
            present.iter().map(|(name, value)| (&**name, value.borrow())).collect();
        self.edit(&table, row, &Edit::Update(&fields, FieldExpiries::All(at_ms))).map(drop)
    }
}

/// A field as it is to be written, or why it can not be.
fn stage<'v>(schema: &TableSchema, table: &str, write: FieldWrite<'v>) -> Outcome<StagedField<'v>> {
    let FieldWrite { name, text, expires_at_ms } = write;
    let field_name = encoded(name);
    let value = match schema.fields().field_by_name(&field_name).map(|field| field.kind()) {
        None if !schema.fields().is_open() => {
            return Err(Failure::new(format!(
                "ERR table '{table}' has no field '{}': its schema is declared, HR.SCHEMA shows it and HR.ADDFIELD extends it",
                quote(name)
            )));
        }
        None | Some(Type::Bytes) => Value::Bytes(text),
        Some(kind) => parse_value(kind, text).ok_or_else(|| {
            Failure::new(format!(
                "ERR field '{}' of table '{table}' is {}: '{}' does not fit",
                quote(name),
                type_name(kind),
                quote(text)
            ))
        })?,
    };
    if expires_at_ms.is_some() {
        check_may_expire(schema, table, &field_name)?;
    }
    Ok(StagedField { name: field_name, value, expires_at_ms })
}

/// Whether a field can be absent; one that is yet to be learned can.
fn is_nullable(schema: &TableSchema, name: &str) -> bool {
    schema.fields().field_by_name(name).is_none_or(|field| field.is_nullable())
}

/// Refuses an expiry of a field that every row has.
fn check_may_expire(schema: &TableSchema, table: &str, name: &str) -> Outcome<()> {
    match is_nullable(schema, name) {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "ERR field '{name}' of table '{table}' is not NULLABLE: it can not expire, see HR.SCHEMA"
        ))),
    }
}
