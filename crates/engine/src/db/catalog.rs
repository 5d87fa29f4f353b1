//! The catalog: which tables there are, and their schemas.
//!
//! Persisted as a whole at every change, before the first row that needs it:
//!
//! ```text
//!  0         4        8
//!  +---------+--------+---------------------------------------------------------+
//!  | next id | tables | per table: id u32, name bytes u16, schema bytes u32,    |
//!  |         |        |            name, schema (see `schema/catalog.rs`)       |
//!  +---------+--------+---------------------------------------------------------+
//! ```
//!
//! All little-endian; the checksum over all of it is in the root.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::store::{Store, TableShared};
use crate::index::{Epoch, Index, NodeArena};
use crate::log::Log;
use crate::schema::catalog::{decode, encode};
use crate::schema::table::{FieldAccess, TableSchema};
use crate::words::{u16_at, u32_at};
use crate::{Error, ErrorKind, Result, Schema};

/// Bytes in a table's name.
const NAME_BYTES_MAX: usize = 255;

/// The tables of a store.
pub(crate) struct Catalog {
    tables: ArcSwap<Tables>,
    /// Held while the catalog changes.
    changing: Mutex<u32>,
    /// Of all tables.
    access: FieldAccess,
    /// It is the one that was stored last.
    whole: bool,
}

#[derive(Default, Clone)]
struct Tables {
    by_name: HashMap<String, Arc<TableShared>>,
    by_id: HashMap<u32, Arc<TableShared>>,
}

impl Catalog {
    pub(super) fn load(
        log: &Log,
        arena: &Arc<NodeArena>,
        epoch: &Arc<Epoch>,
        access: FieldAccess,
    ) -> Result<Catalog> {
        let (next_id, tables) = Tables::decode(log.load_catalog()?, arena, epoch, access)?;
        Ok(Catalog {
            tables: ArcSwap::from_pointee(tables),
            changing: Mutex::new(next_id),
            access,
            whole: true,
        })
    }

    /// The catalog of a damaged store: that which counts, or else the younger of what looks like one, and what is wrong then.
    pub(super) fn salvage(
        log: &Log,
        arena: &Arc<NodeArena>,
        epoch: &Arc<Epoch>,
        access: FieldAccess,
    ) -> (Catalog, Option<Error>) {
        // A root made up for a store that lost its own names an empty one.
        let named =
            log.load_catalog().and_then(|bytes| if bytes.is_empty() { Err(malformed()) } else { Ok(bytes) });
        if named.is_ok()
            && let Ok(catalog) = Catalog::load(log, arena, epoch, access)
        {
            return (catalog, None);
        }
        let areas = log.catalog_areas().into_iter();
        let decoded = areas.filter_map(|bytes| Tables::decode(bytes, arena, epoch, access).ok());
        let youngest =
            decoded.filter(|(_, tables)| !tables.by_id.is_empty()).max_by_key(|(next_id, _)| *next_id);
        let (next_id, tables) = youngest.unwrap_or_default();
        let error = named.err().map(|error| match tables.by_id.is_empty() {
            true => error,
            false => Error::corrupted(format!(
                "{}; tables and fields are taken from what looks like its copy",
                error.message()
            )),
        });
        (
            Catalog {
                tables: ArcSwap::from_pointee(tables),
                changing: Mutex::new(next_id),
                access,
                whole: false,
            },
            error,
        )
    }

    /// Whether this is surely all tables, so that rows of others were dropped.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    pub(super) fn by_id(&self, id: u32) -> Option<Arc<TableShared>> {
        self.tables.load().by_id.get(&id).cloned()
    }

    /// Waits until a change of the catalog that is under way is done.
    pub(super) fn wait_for_change(&self) {
        drop(self.changing.lock());
    }

    pub(super) fn by_name(&self, name: &str) -> Option<Arc<TableShared>> {
        self.tables.load().by_name.get(name).cloned()
    }

    /// All tables, in no order.
    pub(super) fn all(&self) -> Vec<Arc<TableShared>> {
        self.tables.load().by_id.values().cloned().collect()
    }

    /// Names in order.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.tables.load().by_name.keys().cloned().collect();
        names.sort_unstable();
        names
    }
}

impl Tables {
    /// What [`Tables::encode`] wrote, and the next id.
    fn decode(
        mut bytes: &[u8],
        arena: &Arc<NodeArena>,
        epoch: &Arc<Epoch>,
        access: FieldAccess,
    ) -> Result<(u32, Tables)> {
        let mut tables = Tables::default();
        if bytes.is_empty() {
            return Ok((1, tables));
        }
        let next_id = take_u32(&mut bytes)?;
        for _ in 0..take_u32(&mut bytes)? {
            let id = take_u32(&mut bytes)?;
            let name_bytes = u16_at(take(&mut bytes, 2)?, 0) as usize;
            let schema_bytes = take_u32(&mut bytes)? as usize;
            let name = std::str::from_utf8(take(&mut bytes, name_bytes)?).map_err(|_| malformed())?;
            let schema = decode(take(&mut bytes, schema_bytes)?)?.with_access(access);
            let index = Index::new(Arc::clone(arena), Arc::clone(epoch));
            tables.insert(Arc::new(TableShared::new(id, name, schema, index)));
        }
        Ok((next_id, tables))
    }

    fn insert(&mut self, table: Arc<TableShared>) {
        self.by_id.insert(table.id.load(Ordering::Relaxed), Arc::clone(&table));
        self.by_name.insert(table.name.clone(), table);
    }

    fn remove(&mut self, table: &TableShared) {
        self.by_id.remove(&table.id.load(Ordering::Relaxed));
        self.by_name.remove(&table.name);
    }

    /// The catalog's bytes, with `changed` in place of the schema and id of one table.
    fn encode(&self, next_id: u32, changed: Option<(&str, u32, &TableSchema)>) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(next_id.to_le_bytes());
        out.extend((self.by_name.len() as u32).to_le_bytes());
        for table in self.by_name.values() {
            let schema = table.schema.load();
            let (id, schema) = match changed {
                Some((name, id, schema)) if name == table.name => (id, schema),
                _ => (table.id.load(Ordering::Relaxed), &**schema),
            };
            let mut schema_bytes = Vec::new();
            encode(schema, &mut schema_bytes);
            out.extend(id.to_le_bytes());
            out.extend((table.name.len() as u16).to_le_bytes());
            out.extend((schema_bytes.len() as u32).to_le_bytes());
            out.extend(table.name.as_bytes());
            out.extend(schema_bytes);
        }
        out
    }
}

impl Store {
    /// A sequence, when all up to it is published, and the catalog as it is then: no table is made, changed or dropped between.
    pub(super) fn catalog_at_barrier(&self) -> Result<(u64, Vec<u8>)> {
        let _still = self.catalog.changing.lock();
        Ok((self.log.barrier(), self.log.load_catalog()?.to_vec()))
    }

    /// Creates a table; one that exists and accepts `schema` is opened.
    pub(super) fn create_table(&self, name: &str, schema: &Schema) -> Result<Arc<TableShared>> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a table's name has 1 to {NAME_BYTES_MAX} bytes; this one has {}",
                name.len()
            )));
        }
        let mut next_id = self.catalog.changing.lock();
        if let Some(table) = self.catalog.by_name(name) {
            if table.schema.load().accepts(schema) {
                return Ok(table);
            }
            return Err(Error::new(
                ErrorKind::Exists,
                format!("the table {name:?} exists with another schema"),
            ));
        }
        let index = Index::new(Arc::clone(&self.arena), Arc::clone(&self.epoch));
        let schema = TableSchema::create(schema)?.with_access(self.catalog.access);
        let table = Arc::new(TableShared::new(*next_id, name, schema, index));
        let mut tables = Tables::clone(&self.catalog.tables.load());
        tables.insert(Arc::clone(&table));
        // PERSIST: the table is durable before anyone can write a row into it.
        self.log.store_catalog(&tables.encode(*next_id + 1, None))?;
        *next_id += 1;
        self.catalog.tables.store(Arc::new(tables));
        Ok(table)
    }

    /// Drops a table; false if there is none of that name.
    pub(super) fn drop_table(&self, name: &str) -> Result<bool> {
        let next_id = self.catalog.changing.lock();
        let Some(table) = self.catalog.by_name(name) else { return Ok(false) };
        let mut tables = Tables::clone(&self.catalog.tables.load());
        tables.remove(&table);
        let _all = self.log.every_lane();
        self.log.store_catalog(&tables.encode(*next_id, None))?;
        table.dropped.store(true, Ordering::Release);
        self.catalog.tables.store(Arc::new(tables));
        table.index.clear();
        table.tombstones.store(0, Ordering::Relaxed);
        table.expiry.reset(0);
        self.log.rows_vanished();
        Ok(true)
    }

    /// Removes all rows of a table: its rows in the log belong to an id that no table has any more.
    pub(super) fn clear_table(&self, table: &Arc<TableShared>) -> Result<()> {
        let mut next_id = self.catalog.changing.lock();
        let mut tables = Tables::clone(&self.catalog.tables.load());
        let _all = self.log.every_lane();
        table.id_for_write()?;
        let schema = table.schema.load();
        let bytes = tables.encode(*next_id + 1, Some((&table.name, *next_id, &schema)));
        self.log.store_catalog(&bytes)?;
        tables.remove(table);
        table.id.store(*next_id, Ordering::Release);
        tables.insert(Arc::clone(table));
        *next_id += 1;
        self.catalog.tables.store(Arc::new(tables));
        table.index.clear();
        table.tombstones.store(0, Ordering::Relaxed);
        table.expiry.reset(0);
        self.log.rows_vanished();
        Ok(())
    }

    /// Changes a table's schema: durable first, then visible, then used.
    pub(super) fn evolve(
        &self,
        table: &TableShared,
        change: impl FnOnce(&TableSchema) -> Result<TableSchema>,
    ) -> Result<()> {
        let next_id = self.catalog.changing.lock();
        if table.dropped.load(Ordering::Acquire) {
            return Err(table.gone());
        }
        let old = table.schema.load_full();
        let new = change(&old)?;
        if new.fields() == old.fields() {
            return Ok(());
        }
        let id = table.id.load(Ordering::Relaxed);
        let bytes = self.catalog.tables.load().encode(*next_id, Some((&table.name, id, &new)));
        // PERSIST: no row is written under a schema that is not durable.
        self.log.store_catalog(&bytes)?;
        table.schema.store(Arc::new(new));
        Ok(())
    }
}

fn malformed() -> Error {
    Error::corrupted("the catalog of tables is malformed")
}

fn take<'b>(bytes: &mut &'b [u8], count: usize) -> Result<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or_else(malformed)?;
    *bytes = rest;
    Ok(taken)
}

fn take_u32(bytes: &mut &[u8]) -> Result<u32> {
    Ok(u32_at(take(bytes, 4)?, 0))
}
