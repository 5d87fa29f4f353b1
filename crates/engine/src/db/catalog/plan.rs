//! A change of the catalog in the making: what several steps, one after the other, come to.
//!
//! Owns [`TableChanges`], the steps as callers name them, and [`Plan`], the tables as they will be. Promises that nothing is
//! changed before all of it has been found possible. Must not know the log or who waits for what.

use std::collections::HashMap;
use std::sync::Arc;

use hedgerow_row::schema::table::{NewField, TableSchema};

use super::{Catalog, Tables};
use crate::db::shared_table::TableShared;
use crate::levels::Levels;
use crate::limits::TABLE_NAME_BYTES_MAX;
use crate::manifest::catalog::{ChangesBody, entry_bytes};
use crate::sync::atomic::Ordering;
use crate::{Error, ErrorKind, Result, Schema, Type};

/// Changes of tables, to be made together by [`Db::change_tables`](crate::Db::change_tables): all of them or none, in one
/// write to the log, however many they are. Later ones see what earlier ones have changed.
#[derive(Debug, Default, Clone)]
pub struct TableChanges {
    steps: Vec<TableStep>,
}

#[derive(Debug, Clone)]
enum TableStep {
    Create(String, Schema),
    Ensure(String, Schema),
    Drop(String),
    Clear(String),
    AddField(String, String, Type),
    DropField(String, String),
}

impl TableChanges {
    /// No changes.
    pub fn new() -> TableChanges {
        TableChanges::default()
    }

    /// Adds a [`Db::create_table`](crate::Db::create_table).
    pub fn create(&mut self, name: impl Into<String>, schema: Schema) -> &mut TableChanges {
        self.add(TableStep::Create(name.into(), schema))
    }

    /// Adds a [`Db::ensure_table`](crate::Db::ensure_table).
    pub fn ensure(&mut self, name: impl Into<String>, schema: Schema) -> &mut TableChanges {
        self.add(TableStep::Ensure(name.into(), schema))
    }

    /// Adds a [`Db::drop_table`](crate::Db::drop_table).
    pub fn drop(&mut self, name: impl Into<String>) -> &mut TableChanges {
        self.add(TableStep::Drop(name.into()))
    }

    /// Adds a [`Table::clear`](crate::Table::clear).
    pub fn clear(&mut self, name: impl Into<String>) -> &mut TableChanges {
        self.add(TableStep::Clear(name.into()))
    }

    /// Adds a [`Table::add_field`](crate::Table::add_field).
    pub fn add_field(
        &mut self,
        table: impl Into<String>,
        name: impl Into<String>,
        kind: Type,
    ) -> &mut TableChanges {
        self.add(TableStep::AddField(table.into(), name.into(), kind))
    }

    /// Adds a [`Table::drop_field`](crate::Table::drop_field). There is room for another field then.
    pub fn drop_field(&mut self, table: impl Into<String>, name: impl Into<String>) -> &mut TableChanges {
        self.add(TableStep::DropField(table.into(), name.into()))
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    fn add(&mut self, step: TableStep) -> &mut TableChanges {
        self.steps.push(step);
        self
    }

    /// Does all steps in `plan`.
    pub(in crate::db) fn apply(&self, plan: &mut Plan<'_>, new_levels: &dyn Fn() -> Levels) -> Result<()> {
        for step in &self.steps {
            match step {
                TableStep::Create(name, schema) => drop(plan.create(name, schema, new_levels)?),
                TableStep::Ensure(name, schema) => drop(plan.ensure(name, schema, new_levels)?),
                TableStep::Drop(name) => drop(plan.drop_table(name)),
                TableStep::Clear(name) => plan.clear(name)?,
                TableStep::AddField(table, name, kind) => {
                    plan.evolve(table, |schema| schema.with_added(name, *kind, NewField::Nullable))?;
                }
                TableStep::DropField(table, name) => {
                    plan.evolve(table, |schema| schema.with_dropped(name))?
                }
            }
        }
        Ok(())
    }
}

/// What the steps so far come to.
pub(in crate::db) struct Plan<'c> {
    catalog: &'c Catalog,
    next_id: u32,
    /// The tables that are touched, in the order in which they first were.
    planned: Vec<PlannedTable>,
    by_name: HashMap<String, usize>,
    /// An id was taken for a table to be.
    takes_id: bool,
}

/// What becomes of the table of one name.
struct PlannedTable {
    /// As the catalog has it.
    before: Option<Arc<TableShared>>,
    after: Option<TableAfter>,
}

struct TableAfter {
    shared: Arc<TableShared>,
    id: u32,
    schema: Arc<TableSchema>,
}

impl TableAfter {
    fn of(shared: Arc<TableShared>) -> TableAfter {
        let (id, schema) = (shared.id.load(Ordering::Relaxed), shared.schema.load_full());
        TableAfter { shared, id, schema }
    }

    fn is_evolved(&self) -> bool {
        !Arc::ptr_eq(&self.schema, &self.shared.schema.load())
    }
}

impl PlannedTable {
    /// The table that goes, or whose rows do.
    fn vanishing(&self) -> Option<(&Arc<TableShared>, u32)> {
        let before = self.before.as_ref()?;
        let id = before.id.load(Ordering::Relaxed);
        match &self.after {
            Some(after) if Arc::ptr_eq(&after.shared, before) && after.id == id => None,
            _ => Some((before, id)),
        }
    }

    fn is_changed(&self) -> bool {
        let is_new = self.before.is_none() && self.after.is_some();
        is_new || self.vanishing().is_some() || self.after.as_ref().is_some_and(TableAfter::is_evolved)
    }
}

impl<'c> Plan<'c> {
    pub(in crate::db) fn new(catalog: &'c Catalog, next_id: u32) -> Plan<'c> {
        Plan { catalog, next_id, planned: Vec::new(), by_name: HashMap::new(), takes_id: false }
    }

    fn planned(&mut self, name: &str) -> &mut PlannedTable {
        let at = match self.by_name.get(name) {
            Some(&at) => at,
            None => {
                let before = self.catalog.by_name(name);
                self.planned.push(PlannedTable { after: before.clone().map(TableAfter::of), before });
                self.by_name.insert(name.to_owned(), self.planned.len() - 1);
                self.planned.len() - 1
            }
        };
        &mut self.planned[at]
    }

    /// The table of that name: a new one, or one that is there and takes `schema`.
    pub(in crate::db) fn create(
        &mut self,
        name: &str,
        schema: &Schema,
        new_levels: &dyn Fn() -> Levels,
    ) -> Result<Arc<TableShared>> {
        if name.is_empty() || name.len() > TABLE_NAME_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a table's name has 1 to {TABLE_NAME_BYTES_MAX} bytes; this one has {}",
                name.len()
            )));
        }
        let (id, access) = (self.next_id, self.catalog.access);
        let planned = self.planned(name);
        if let Some(after) = &planned.after {
            if after.schema.accepts(schema) {
                return Ok(Arc::clone(&after.shared));
            }
            return Err(Error::new(
                ErrorKind::Exists,
                format!("the table {name:?} exists with another schema"),
            ));
        }
        let schema = TableSchema::create(schema)?.with_access(access);
        let shared = Arc::new(TableShared::new(id, name, schema, new_levels()));
        planned.after = Some(TableAfter::of(Arc::clone(&shared)));
        self.next_id += 1;
        Ok(shared)
    }

    /// The table of that name: a new one, or one that is there, with the fields of `schema` that it did not have.
    pub(in crate::db) fn ensure(
        &mut self,
        name: &str,
        schema: &Schema,
        new_levels: &dyn Fn() -> Levels,
    ) -> Result<Arc<TableShared>> {
        if self.planned(name).after.is_none() {
            return self.create(name, schema, new_levels);
        }
        self.evolve(name, |there| there.with_ensured(name, schema))?;
        Ok(Arc::clone(&self.existing(name)?.shared))
    }

    /// Whether there was one.
    pub(in crate::db) fn drop_table(&mut self, name: &str) -> bool {
        self.planned(name).after.take().is_some()
    }

    /// Gives the table a new id: its rows in the log belong to the old one, which no table has any more.
    pub(in crate::db) fn clear(&mut self, name: &str) -> Result<()> {
        let id = self.next_id;
        self.existing(name)?.id = id;
        self.next_id += 1;
        Ok(())
    }

    /// Takes an id that no table gets but the one that is to have what is loaded under it.
    pub(in crate::db) fn take_id(&mut self) -> u32 {
        self.takes_id = true;
        self.next_id += 1;
        self.next_id - 1
    }

    /// Gives the table an id that was taken for it: what it has under that takes the place of its rows.
    pub(in crate::db) fn replace(&mut self, name: &str, id: u32) -> Result<()> {
        self.existing(name)?.id = id;
        Ok(())
    }

    pub(in crate::db) fn evolve(
        &mut self,
        name: &str,
        change: impl FnOnce(&TableSchema) -> Result<TableSchema>,
    ) -> Result<()> {
        let after = self.existing(name)?;
        let new = change(&after.schema)?;
        if new.fields() != after.schema.fields() {
            after.schema = Arc::new(new);
        }
        Ok(())
    }

    fn existing(&mut self, name: &str) -> Result<&mut TableAfter> {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no table {name:?}"));
        self.planned(name).after.as_mut().ok_or_else(missing)
    }

    /// Whether all is to stay as it is.
    pub(in crate::db) fn is_empty(&self) -> bool {
        !self.takes_id && !self.planned.iter().any(PlannedTable::is_changed)
    }

    /// Whether rows are to go.
    pub(in crate::db) fn removes_rows(&self) -> bool {
        self.planned.iter().any(|planned| planned.vanishing().is_some())
    }

    /// Whether nothing else is to happen.
    pub(in crate::db) fn only_removes(&self) -> bool {
        let adds = |planned: &PlannedTable| match (&planned.before, &planned.after) {
            (None, Some(_)) => true,
            (_, after) => after.as_ref().is_some_and(TableAfter::is_evolved),
        };
        !self.takes_id && !self.planned.iter().any(adds)
    }

    pub(in crate::db) fn next_id(&self) -> u32 {
        self.next_id
    }

    /// Bytes of the entries that go, and of those that take their places.
    pub(in crate::db) fn bytes(&self) -> (u64, u64) {
        let bytes = |(less, more): (u64, u64), planned: &PlannedTable| {
            let before = planned.before.as_ref().map_or(0, |t| entry_bytes(&t.name, &t.schema.load()));
            let after = planned.after.as_ref().map_or(0, |t| entry_bytes(&t.shared.name, &t.schema));
            (less + before, more + after)
        };
        self.planned.iter().fold((0, 0), bytes)
    }

    /// The body of the record that says all of it.
    pub(in crate::db) fn body(&self) -> Vec<u8> {
        let mut body = ChangesBody::new();
        for planned in self.planned.iter().filter(|planned| planned.is_changed()) {
            match (&planned.after, planned.vanishing()) {
                (Some(after), _) => body.table(after.id, &after.shared.name, &after.schema),
                (None, Some((_, id))) => body.gone(id),
                (None, None) => {}
            }
        }
        body.finish(self.next_id)
    }

    /// Makes it so: `tables` become those of the catalog. Whose rows go is returned, to be emptied: their [content](TableShared::content) has begun to be replaced.
    pub(in crate::db) fn publish(self) -> Vec<Arc<TableShared>> {
        let mut tables: Option<Tables> = None;
        let mut vanished = Vec::new();
        for planned in self.planned.into_iter().filter(PlannedTable::is_changed) {
            let is_vanishing = planned.vanishing().is_some();
            let PlannedTable { before, after } = planned;
            if let Some(before) = before.as_ref().filter(|_| is_vanishing) {
                before.begin_replacing();
                if !after.as_ref().is_some_and(|after| Arc::ptr_eq(&after.shared, before)) {
                    before.dropped.store(true, Ordering::Release);
                }
                tables.get_or_insert_with(|| self.catalog.copy()).remove(before);
                vanished.push(Arc::clone(before));
            }
            let Some(TableAfter { shared, id, schema }) = after else { continue };
            if !Arc::ptr_eq(&schema, &shared.schema.load()) {
                shared.schema.store(schema);
            }
            if is_vanishing || before.is_none() {
                shared.id.store(id, Ordering::Release);
                tables.get_or_insert_with(|| self.catalog.copy()).insert(shared);
            }
        }
        if let Some(tables) = tables {
            self.catalog.tables.store(Arc::new(tables));
        }
        vanished
    }
}
