//! Hedgerow as a store of flat values: what the mappings of rows to flat values cost over the same engine.
//!
//! Owns a table of one `Bytes` field, so that a key has one value and no more. Promises the engine's own paths for
//! everything: what differs from [`super::hedgerow`] is the mapping alone. Must not know which mapping is used.

use std::path::{Path, PathBuf};

use hedgerow::{Batch, Db, FieldId, Options, Schema, Table, Type, Value};

use super::StoreAccount;
use super::hedgerow::{account, open_db, text};
use super::mapping::{Cell, FlatSession, FlatStore, Stripes};
use crate::store_url::Medium;

const TABLE: &str = "flat";
const FIELD: &str = "value";

/// See the module.
pub struct FlatHedgerow {
    directory: PathBuf,
    db: Db,
    table: Table,
    value: FieldId,
    stripes: Stripes,
}

impl FlatHedgerow {
    /// Opens or creates the store in `directory` and the table in it.
    pub fn open(medium: Medium, directory: &Path, options: Options) -> Result<FlatHedgerow, String> {
        let db = open_db(medium, directory, options)?;
        let (table, value) = create(&db)?;
        let stripes = Stripes::default();
        Ok(FlatHedgerow { directory: directory.to_path_buf(), db, table, value, stripes })
    }
}

fn create(db: &Db) -> Result<(Table, FieldId), String> {
    let table = db.create_table(TABLE, Schema::new().field(FIELD, Type::Bytes)).map_err(text)?;
    let value = table.field(FIELD).map_err(text)?;
    Ok((table, value))
}

impl FlatStore for FlatHedgerow {
    type Session<'a> = FlatHedgerowSession<'a>;

    fn session(&self) -> Result<FlatHedgerowSession<'_>, String> {
        Ok(FlatHedgerowSession { store: self, changed: Vec::new() })
    }

    fn settle(&self) -> Result<(), String> {
        Ok(())
    }

    fn directory(&self) -> &Path {
        &self.directory
    }

    fn values(&self) -> Result<u64, String> {
        Ok(self.table.len())
    }

    fn clear(&mut self) -> Result<(), String> {
        self.db.drop_table(TABLE).map_err(text)?;
        (self.table, self.value) = create(&self.db)?;
        Ok(())
    }

    fn account(&self) -> Option<StoreAccount> {
        Some(account(&self.db))
    }
}

/// One thread's handle.
pub struct FlatHedgerowSession<'a> {
    store: &'a FlatHedgerow,
    /// The value being changed, kept to allocate nothing per change.
    changed: Vec<u8>,
}

impl FlatHedgerowSession<'_> {
    #[inline]
    fn read(&self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<(), String> {
        let store = self.store;
        let read = store.table.read(key, |row| {
            // What is no byte string is shown as an empty one, which no mapping takes for a value.
            visit(row.get(store.value)?.as_bytes().unwrap_or_default());
            Ok(())
        });
        read.map(|_| ()).map_err(text)
    }
}

impl FlatSession for FlatHedgerowSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.store.table.put(key, &[(self.store.value, Value::Bytes(value))]).map_err(text)
    }

    fn put_all<'v>(&mut self, cells: impl Iterator<Item = (Cell, &'v [u8])>) -> Result<(), String> {
        let mut batch = Batch::new();
        for (cell, value) in cells {
            batch.put(&self.store.table, &cell, &[(self.store.value, Value::Bytes(value))]).map_err(text)?;
        }
        self.store.db.write(batch).map_err(text)
    }

    fn get(&mut self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<(), String> {
        self.read(key, visit)
    }

    fn change(&mut self, key: &[u8], change: impl FnOnce(&mut [u8])) -> Result<(), String> {
        let _alone = self.store.stripes.lock(key);
        let mut changed = std::mem::take(&mut self.changed);
        changed.clear();
        self.read(key, |value| changed.extend_from_slice(value))?;
        let there = !changed.is_empty();
        if there {
            change(&mut changed);
        }
        self.changed = changed;
        match there {
            true => {
                self.store.table.put(key, &[(self.store.value, Value::Bytes(&self.changed))]).map_err(text)
            }
            false => Ok(()),
        }
    }

    fn walk(&mut self, from: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), String> {
        let value = self.store.value;
        let scan = self.store.table.scan().from(from);
        scan.for_each(|key, row| Ok(visit(key, row.get(value)?.as_bytes().unwrap_or_default()))).map_err(text)
    }
}
