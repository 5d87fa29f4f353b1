//! Redis keys as rows of a tiered store: which table and row a key is, what type it has, and every change of it.
//!
//! Owns: the mapping below and the tables it needs. Promises: a key has one type; a key is never in two places; changes made
//! between [`TieredKeyspace::begin`] and [`TieredKeyspace::end`] happen together or not at all. Must not know replies or connections.
//!
//! | key | table of database 0 | row |
//! |---|---|---|
//! | a string | `@strings` (one field, `value`) | the whole key |
//! | a hash `users:42` (split at the first `:`) | `users` | `42` |
//! | a hash without `:`, or with nothing before or after it | `@plain` | the whole key |
//! | a hash whose prefix can have no table: too long for a name, or over the limit of open tables | `@overflow` | the whole key |
//! | a field that its table does not have and can not learn | `@more` | see [`overflow_fields`] |
//!
//! Database `n` above 0 has `@n/` before each name. In names made of prefixes, `%`, `@` and bytes that are not
//! printable ASCII are written `%XX`.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use hedgerow::{AtHandOnly, Db, ErrorKind, FieldId, Missing, Schema, Table, Type, Value};
use hedgerow_device::Clock;
use slab::Slab;

use super::naming::{self, Place, TableName};
use super::wants::{Tries, Wants};
use super::{Kind, TIME_STEP, check_key};
use crate::serve::failure::{Failure, Outcome};
use crate::serve::limits;

pub mod expiry;
pub mod hashes;
pub mod iterate;
pub mod keys;
pub mod overflow_fields;
pub mod overflown;
pub mod prefetch;
pub mod schemas;
pub mod strings;
pub mod table;
pub mod watch;
pub mod writer;

use expiry::Expiries;
use overflow_fields::OverflowFieldsTable;
use overflown::Overflown;
use table::{HashTable, Seeded};
use watch::Watches;
use writer::Writer;

/// The position of a table in `TieredKeyspace::tables`.
pub type TableIndex = usize;

/// All databases of one tiered store.
pub struct TieredKeyspace {
    db: Db,
    spaces: Vec<Space>,
    tables: Slab<HashTable>,
    overflow_fields: Option<OverflowFieldsTable>,
    open_tables: usize,
    /// Bytes of all schemas, about.
    schema_bytes: usize,
    writer: Writer,
    /// Shared with the store, so that a command and the store see the same time all through.
    clock: Clock,
    now_ms: u64,
    /// When it last looked at the clock.
    refreshed: Instant,
    /// Keys that will expire.
    pub expiries: Expiries,
    /// Keys that clients watch.
    pub watches: Watches,
    /// Memory for the fields of one write, kept between writes.
    fields: Vec<(FieldId, Value<'static>)>,
}

/// One database.
#[derive(Default)]
struct Space {
    strings: Option<Strings>,
    plain: Option<TableIndex>,
    overflow: Option<TableIndex>,
    /// Of the prefixes that have keys there.
    overflown: Overflown,
    by_prefix: HashMap<Box<[u8]>, TableIndex, Seeded>,
    /// The same, in the order scans follow.
    in_order: BTreeMap<Box<[u8]>, TableIndex>,
}

/// The table of strings of one database.
#[derive(Clone)]
struct Strings {
    table: Table,
    value: FieldId,
}

impl TieredKeyspace {
    /// Finds the tables of `db`, which goes by `clock`, that belong to keys. Tables whose names are not of the mapping stay
    /// untouched and unseen.
    pub fn new(db: Db, clock: Clock) -> Outcome<TieredKeyspace> {
        let now_ms = clock.refresh();
        let mut keyspace = TieredKeyspace {
            spaces: (0..limits::DATABASES).map(|_| Space::default()).collect(),
            tables: Slab::new(),
            overflow_fields: None,
            open_tables: 0,
            schema_bytes: 0,
            writer: Writer::new(db.clone()),
            clock,
            now_ms,
            refreshed: Instant::now(),
            expiries: Expiries::default(),
            watches: Watches::default(),
            fields: Vec::new(),
            db,
        };
        for name in keyspace.db.table_names() {
            let Some(parsed) = TableName::parse(&name) else { continue };
            let table = keyspace.db.table(&name)?;
            keyspace.attach(parsed, table)?;
        }
        keyspace.expiries.sweep_all();
        Ok(keyspace)
    }

    /// The store under the keys.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Looks at the clock: between commands, never within one. What expires does so between commands, too. `now` is now.
    pub fn refresh_time(&mut self, now: Instant) {
        self.now_ms = self.clock.refresh();
        self.refreshed = now;
    }

    /// Looks at the clock unless it did so just before.
    #[inline]
    pub fn refresh_old_time(&mut self, now: Instant) {
        if now.saturating_duration_since(self.refreshed) >= TIME_STEP {
            self.refresh_time(now);
        }
    }

    /// The time since some fixed moment, for what may not take so long: it goes on evenly however the wall clock is set.
    pub fn uptime(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_ns())
    }

    /// The time in ms since 1970 as of the last look, by which the store judges expiry.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Tells that a command begins, given for the first time or again. In the end a write that finds no room fails, and a read waits for
    /// the disk; before, the command waits beside the loop. What was `brought` for it is there for it. What is returned is to be held until it ends.
    pub fn begin_command(&mut self, tries: Tries, brought: &mut Option<Missing>) -> Option<AtHandOnly> {
        self.writer.begin_command(tries, brought)
    }

    /// Tells that it has ended. If it failed for want of something, having changed nothing, that is what it needs before it is given again.
    pub fn end_command(&mut self) -> Option<Wants> {
        self.writer.end_command()
    }

    /// See [`Keyspace::finish_command`](super::Keyspace::finish_command).
    #[inline]
    pub fn finish_command(&mut self) -> bool {
        self.watches.commit();
        self.writer.has_changed()
    }

    /// Whether it has failed so.
    pub fn wants_again(&mut self) -> bool {
        self.writer.wants_again()
    }

    fn attach(&mut self, name: TableName, table: Table) -> Outcome<()> {
        match name.place {
            Place::OverflowFields => self.overflow_fields = Some(OverflowFieldsTable::open(table)?),
            Place::Strings => {
                let value = table.field("value")?;
                self.space_mut(name.space).strings = Some(Strings { table, value });
            }
            Place::Plain => {
                let index = self.insert(table, name)?;
                let space = self.tables[index].space();
                self.space_mut(space).plain = Some(index);
            }
            Place::Overflow => {
                let index = self.insert(table, name)?;
                let space = self.tables[index].space();
                self.space_mut(space).overflow = Some(index);
            }
            Place::Prefix(ref prefix) => {
                let (space, prefix) = (name.space, prefix.clone());
                let index = self.insert(table, name)?;
                self.open_tables += usize::from(self.tables[index].is_open());
                let space = self.space_mut(space);
                space.by_prefix.insert(prefix.clone(), index);
                space.in_order.insert(prefix, index);
            }
        }
        Ok(())
    }

    fn insert(&mut self, table: Table, name: TableName) -> Outcome<TableIndex> {
        let table = HashTable::new(table, name)?;
        self.schema_bytes += table.schema_bytes();
        Ok(self.tables.insert(table))
    }

    fn detach(&mut self, index: TableIndex) -> HashTable {
        let table = self.tables.remove(index);
        self.schema_bytes = self.schema_bytes.saturating_sub(table.schema_bytes());
        let space = &mut self.spaces[table.space()];
        match table.place() {
            Place::Plain => space.plain = None,
            Place::Overflow => {
                space.overflow = None;
                space.overflown.clear();
            }
            Place::Prefix(prefix) => {
                space.by_prefix.remove(prefix);
                space.in_order.remove(prefix);
                self.open_tables -= usize::from(table.is_open());
            }
            Place::Strings | Place::OverflowFields => {}
        }
        table
    }

    #[inline]
    fn space(&self, space: usize) -> &Space {
        &self.spaces[space]
    }

    fn space_mut(&mut self, space: usize) -> &mut Space {
        &mut self.spaces[space]
    }

    /// The table a hash of this key is in or would be in, and its row there. None if that table does not exist.
    #[inline]
    pub fn locate<'k>(&self, space: usize, key: &'k [u8]) -> Option<(TableIndex, &'k [u8])> {
        let space = self.space(space);
        match naming::split(key) {
            None => Some((space.plain?, key)),
            Some((prefix, row)) => match space.by_prefix.get(prefix) {
                Some(&index) => Some((index, row)),
                None => Some((space.overflow?, key)),
            },
        }
    }

    /// Like [`TieredKeyspace::locate`], creating the table if need be.
    fn locate_or_create<'k>(&mut self, space: usize, key: &'k [u8]) -> Outcome<(TableIndex, &'k [u8])> {
        let place = match naming::split(key) {
            None => match self.space(space).plain {
                Some(index) => return Ok((index, key)),
                None => Place::Plain,
            },
            Some((prefix, row)) => {
                if let Some(&index) = self.space(space).by_prefix.get(prefix) {
                    return Ok((index, row));
                }
                match self.may_open(space, prefix)? {
                    true => Place::Prefix(prefix.into()),
                    false => match self.space(space).overflow {
                        Some(index) => return Ok((index, key)),
                        None => Place::Overflow,
                    },
                }
            }
        };
        let row = match (&place, naming::split(key)) {
            (Place::Prefix(_), Some((_, row))) => row,
            _ => key,
        };
        let name = TableName { space, place };
        let table = self.create(&name, Schema::open())?;
        self.attach(name, table)?;
        match self.locate(space, key) {
            Some((index, _)) => Ok((index, row)),
            None => Err(Failure::text("ERR the table of this key was dropped")),
        }
    }

    /// Whether a prefix may get a table of its own: its name fits, there are not too many, and no row of it is in the
    /// overflow table already.
    fn may_open(&mut self, space: usize, prefix: &[u8]) -> Outcome<bool> {
        let is_full =
            self.open_tables >= limits::OPEN_TABLES_MAX || self.schema_bytes > limits::SCHEMA_BYTES_MAX;
        // To look for keys of the prefix may take a read of the disk.
        let is_known = || self.space(space).overflown.is_known(prefix, self.now_ms);
        if is_full || is_known() || !naming::fits(space, prefix) {
            return Ok(false);
        }
        let has_overflown = self.has_overflown(space, prefix)?;
        if has_overflown {
            let now_ms = self.now_ms;
            self.space_mut(space).overflown.record(prefix, now_ms);
        }
        Ok(!has_overflown)
    }

    /// Whether rows of `prefix` are in the overflow table.
    pub fn has_overflown(&self, space: usize, prefix: &[u8]) -> Outcome<bool> {
        let Some(overflow) = self.space(space).overflow else { return Ok(false) };
        let table = self.tables[overflow].table();
        if table.is_known_to_be_empty() {
            return Ok(false);
        }
        let start = [prefix, b":"].concat();
        let mut found = false;
        table.scan().prefix(&start).limit(1).for_each(|_, _| {
            found = true;
            Ok(false)
        })?;
        Ok(found)
    }

    /// Creates or opens a table, whatever schema it has if it is there already.
    fn create(&mut self, name: &TableName, schema: Schema) -> Outcome<Table> {
        let text = name.to_string();
        self.writer.prepare(|| match self.db.create_table(&text, schema.clone()) {
            Err(error) if error.kind() == ErrorKind::Exists => self.db.table(&text),
            other => other,
        })
    }

    fn strings_or_create(&mut self, space: usize) -> Outcome<Strings> {
        if let Some(strings) = &self.space(space).strings {
            return Ok(strings.clone());
        }
        let name = TableName { space, place: Place::Strings };
        let table = self.create(&name, Schema::new().field("value", Type::Bytes))?;
        self.attach(name, table)?;
        let strings = self.space(space).strings.clone();
        strings.ok_or(Failure::text("ERR the table of strings was dropped"))
    }

    fn overflow_fields_or_create(&mut self) -> Outcome<&mut OverflowFieldsTable> {
        if self.overflow_fields.is_none() {
            let name = TableName { space: 0, place: Place::OverflowFields };
            let table = self.create(&name, OverflowFieldsTable::schema())?;
            self.attach(name, table)?;
        }
        self.overflow_fields.as_mut().ok_or(Failure::text("ERR the table of overflow fields was dropped"))
    }

    /// Starts staging writes, unless somebody does already; give the result to [`TieredKeyspace::end`].
    pub fn begin(&mut self) -> bool {
        self.writer.begin()
    }

    /// See [`Keyspace::has_staged_too_much`](super::Keyspace::has_staged_too_much).
    pub fn has_staged_too_much(&self) -> bool {
        self.writer.has_staged_too_much()
    }

    /// Makes the staged writes happen, if `opened` says that this caller started it.
    pub fn end(&mut self, opened: bool) -> Outcome<()> {
        if !opened {
            return Ok(());
        }
        self.writer.end()
    }

    /// Forgets the staged writes, if `opened` says that this caller started it.
    pub fn abandon(&mut self, opened: bool) {
        if opened {
            self.writer.abandon();
        }
    }

    /// Runs `change` with its writes staged: all of them happen, or none.
    pub fn together<R>(&mut self, change: impl FnOnce(&mut TieredKeyspace) -> Outcome<R>) -> Outcome<R> {
        let opened = self.begin();
        match change(self) {
            Ok(result) => self.end(opened).map(|()| result),
            Err(failure) => {
                self.abandon(opened);
                Err(failure)
            }
        }
    }

    /// Takes the memory for the fields of a write; give it back with [`TieredKeyspace::return_fields`].
    #[inline]
    fn take_fields<'v>(&mut self) -> Vec<(FieldId, Value<'v>)> {
        std::mem::take(&mut self.fields)
    }

    #[inline]
    fn return_fields(&mut self, mut fields: Vec<(FieldId, Value<'_>)>) {
        fields.clear();
        // Nothing is left to convert: the collect reuses the allocation, with the borrow gone.
        self.fields = fields.into_iter().map(|(id, _)| (id, Value::Null)).collect();
    }
}

#[cfg(test)]
mod tests;
