//! The calls that operations are.
//!
//! Owns the way from an operation to calls of a store of any kind. Must not know what they should answer.

use hedgerow::{Change, Expiry, OwnedValue, Result, Row, Store, StoreBatch, StoreTable, Table, Value};

use super::answers::Got;
use crate::model::{Model, kind_of, value_of};
use crate::op::{self, Given, NAMES, Op, Part, PartKind, Require};

pub(super) fn one(row: Result<Option<Row>>) -> Result<Got> {
    Ok(Got::Rows(vec![row?]))
}

pub(super) fn rows(scan: hedgerow::Scan) -> Result<Got> {
    Ok(Got::Rows(scan.map(|row| row.map(Some)).collect::<Result<_>>()?))
}

/// A store as one operation sees it.
pub(super) struct Caller<'c> {
    pub(super) model: &'c Model,
    pub(super) store: &'c Store,
    pub(super) tables: &'c [StoreTable],
    pub(super) now_ms: u64,
}

type Values = Vec<(&'static str, OwnedValue)>;

fn borrowed(values: &Values) -> Vec<(&'static str, Value<'_>)> {
    values.iter().map(|(name, value)| (*name, value.borrow())).collect()
}

fn owned(values: Values) -> Vec<(String, OwnedValue)> {
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl Caller<'_> {
    /// Any operation that is a call of rows and tables.
    pub(super) fn call(&self, op: &Op) -> Result<Got> {
        match op {
            Op::Batch { parts, require } => self.batch(parts, *require),
            Op::AddField { .. } | Op::RenameField { .. } | Op::DropField { .. } | Op::Clear { .. } => {
                self.change_table(op)
            }
            Op::Get { .. }
            | Op::GetFields { .. }
            | Op::MultiGet { .. }
            | Op::Exists { .. }
            | Op::Scan { .. }
            | Op::Prefix { .. } => self.read(op),
            write => self.write(write),
        }
    }

    fn table(&self, table: u8) -> &StoreTable {
        &self.tables[usize::from(table)]
    }

    fn given(&self, table: u8, fields: &[Given]) -> Values {
        self.model.given(table, fields)
    }

    fn at(&self, expires_in: Option<u64>) -> Expiry {
        Expiry::at_unix_ms(expires_in.map(|ms| self.now_ms + ms))
    }

    /// [`Op::Load`], of a tiered store.
    pub(super) fn load(
        &self,
        (number, table): (u8, &Table),
        keys: &[u16],
        fields: &[Given],
        expires_in: Option<u64>,
    ) -> Result<Got> {
        let values = self.given(number, fields);
        table.load(|loader| {
            let mut rows = op::loaded(keys, expires_in).into_iter();
            rows.try_for_each(|(key, expires_in)| {
                loader.push_expiring(&key, &borrowed(&values), self.at(expires_in))
            })
        })?;
        Ok(Got::Done)
    }

    fn write(&self, op: &Op) -> Result<Got> {
        match op {
            Op::Put { table, key, fields, expires_in } => {
                let values = self.given(*table, fields);
                let (table, key) = (self.table(*table), op::key(*key));
                match expires_in {
                    None => table.put(&key, &borrowed(&values))?,
                    expires_in => table.put_expiring(&key, &borrowed(&values), self.at(*expires_in))?,
                }
                Ok(Got::Done)
            }
            Op::Update { table, key, fields, only_existing } => {
                let values = self.given(*table, fields);
                // `update` does not say so itself.
                let (existing, key) = (self.model.has(*table, *key), op::key(*key));
                if *only_existing {
                    return self.table(*table).update_existing(&key, &borrowed(&values)).map(Got::Bool);
                }
                self.table(*table).update(&key, &borrowed(&values))?;
                Ok(Got::Bool(existing))
            }
            Op::Delete { table, key } => self.table(*table).delete(&op::key(*key)).map(Got::Bool),
            Op::Increment { table, key, field, by } => {
                self.table(*table).increment(&op::key(*key), NAMES[usize::from(*field)], *by).map(Got::Int)
            }
            Op::CompareAndSet { table, key, field, expected, new } => {
                let expected = self.model.expected(*table, *key, *field, *expected);
                let new = self.model.value(*table, *field, *new);
                let name = NAMES[usize::from(*field)];
                let (table, key) = (self.table(*table), op::key(*key));
                table.compare_and_set(&key, name, expected.borrow(), new.borrow()).map(Got::Bool)
            }
            Op::Expire { table, key, expires_in } => {
                self.table(*table).expire(&op::key(*key), self.at(*expires_in)).map(Got::Bool)
            }
            Op::ExpireFields { table, key, fields, expires_in } => {
                let names: Vec<&str> = fields.iter().map(|&field| NAMES[usize::from(field)]).collect();
                self.table(*table).expire_fields(&op::key(*key), &names, self.at(*expires_in)).map(Got::Bool)
            }
            modify => self.modify(modify),
        }
    }

    fn modify(&self, op: &Op) -> Result<Got> {
        let (table, key, change) = match op {
            Op::ModifyPut { table, key, fields, expires_in } => {
                let fields = owned(self.given(*table, fields));
                (*table, *key, Change::Put { fields, expiry: self.at(*expires_in) })
            }
            Op::ModifyUpdate { table, key, fields, expires_in } => {
                let fields = owned(self.given(*table, fields));
                (*table, *key, Change::Update { fields, expiry: self.at(*expires_in) })
            }
            Op::ModifyDelete { table, key } => (*table, *key, Change::Delete),
            _ => return Ok(Got::Done),
        };
        self.table(table).modify(&op::key(key), |_| Ok((change.clone(), ())))?;
        Ok(Got::Done)
    }

    fn add_part(&self, batch: &mut StoreBatch, part: &Part) -> Result<()> {
        let (table, key) = (self.table(part.table), op::key(part.key));
        match &part.kind {
            PartKind::Put(fields, expires_in) => {
                let values = self.given(part.table, fields);
                batch.put(table, &key, &borrowed(&values), self.at(*expires_in))
            }
            PartKind::Update(fields, expires_in) => {
                let values = self.given(part.table, fields);
                batch.update(table, &key, &borrowed(&values), self.at(*expires_in))
            }
            PartKind::UpdateExisting(fields) => {
                let values = self.given(part.table, fields);
                batch.update_existing(table, &key, &borrowed(&values))
            }
            PartKind::Increment { field, by } => {
                batch.increment(table, &key, NAMES[usize::from(*field)], *by)
            }
            PartKind::CompareAndSet { field, expected, new } => {
                let expected = self.model.expected(part.table, part.key, *field, *expected);
                let new = self.model.value(part.table, *field, *new);
                let name = NAMES[usize::from(*field)];
                batch.compare_and_set(table, &key, name, expected.borrow(), new.borrow())
            }
            PartKind::Expire(expires_in) => batch.expire(table, &key, self.at(*expires_in)),
            PartKind::Delete => batch.delete(table, &key),
        }
    }

    fn batch(&self, parts: &[Part], require: Require) -> Result<Got> {
        let mut batch = self.store.batch();
        for part in parts {
            self.add_part(&mut batch, part)?;
        }
        if let (Some(part), true) = (parts.first(), require != Require::Nothing) {
            let (table, key) = (self.table(part.table), op::key(part.key));
            let version = table.version(&key)?;
            let version = match require {
                Require::AnotherVersion => Some(version.map_or(1, |version| version + 1)),
                _ => version,
            };
            batch.require_version(table, &key, version)?;
        }
        self.store.write(&batch)?;
        Ok(Got::Done)
    }

    fn change_table(&self, op: &Op) -> Result<Got> {
        let name = |field: &u8| NAMES[usize::from(*field)];
        match op {
            Op::AddField { table, field, kind, with_default } => {
                let kind = kind_of(*kind);
                match with_default {
                    None => self.table(*table).add_field(name(field), kind)?,
                    Some(stamp) => {
                        let default = value_of(kind, *stamp, 12);
                        self.table(*table).add_field_with_default(name(field), kind, &default)?;
                    }
                }
            }
            Op::RenameField { table, from, to } => self.table(*table).rename_field(name(from), name(to))?,
            Op::DropField { table, field } => self.table(*table).drop_field(name(field))?,
            Op::Clear { table } => self.table(*table).clear()?,
            _ => {}
        }
        Ok(Got::Done)
    }

    fn read(&self, op: &Op) -> Result<Got> {
        let names = |fields: &[u8]| fields.iter().map(|&f| NAMES[usize::from(f)]).collect::<Vec<_>>();
        match op {
            Op::Get { table, key } => one(self.table(*table).get(&op::key(*key))),
            Op::GetFields { table, key, fields } => {
                one(self.table(*table).get_fields(&op::key(*key), &names(fields)))
            }
            Op::MultiGet { table, keys } => {
                let keys: Vec<Vec<u8>> = keys.iter().map(|&key| op::key(key)).collect();
                self.table(*table).multi_get(&keys).map(Got::Rows)
            }
            Op::Exists { table, key } => self.table(*table).exists(&op::key(*key)).map(Got::Bool),
            Op::Scan { table, from, to, reverse, limit, fields } => {
                let (from, to) = (from.map(op::key), to.map(op::key));
                let mut scan = self.table(*table).scan()?.range((from, to));
                if *reverse {
                    scan = scan.reverse();
                }
                if let Some(limit) = limit {
                    scan = scan.limit(usize::from(*limit));
                }
                if let Some(fields) = fields {
                    scan = scan.fields(&names(fields))?;
                }
                rows(scan)
            }
            Op::Prefix { table, key, bytes, reverse } => {
                let key = op::key(*key);
                let scan = self.table(*table).scan()?.prefix(&key[..usize::from(*bytes).min(key.len())]);
                rows(if *reverse { scan.reverse() } else { scan })
            }
            _ => Ok(Got::Done),
        }
    }
}
