//! The changes of the catalog that the log holds, and replaying them.
//!
//! Owns what their records count as, and what a catalog becomes by records that were written after it was stored. Promises that it is then as it was when the last
//! of them was written; and of a catalog of which it is not known when it was stored, that no table becomes older by it. Must
//! not know which records a crash has left: `db/recover.rs` does, and `db/salvage.rs`.
//!
//! **Ids do not say which of two states of a table is the younger**: a load takes its id when it begins, and the table has it when the load ends, perhaps after a clear with a greater one. Sequences do.
//! They are compared wherever it is known which sequence the catalog is as of. Where it is not, ids are, until one change of a name was taken: what follows that in the log is younger than it.

use std::collections::HashSet;
use std::sync::Arc;

use crate::db::catalog::{Catalog, CatalogState, Tables};
use crate::db::shared_table::TableShared;
use crate::log::Log;
use crate::log::format::Record;
use crate::manifest::catalog::{CatalogChange, Changes, EMPTY_BYTES, TableEntry, entry_bytes};
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

/// A record that changes the catalog, as a walk has met it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LoggedChange {
    pub(crate) sequence: u64,
    /// Of its record.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl LoggedChange {
    pub(crate) fn of(record: &Record<'_>) -> LoggedChange {
        let bytes = record.record_bytes() as u64;
        LoggedChange { sequence: record.sequence(), offset: record.offset(), bytes }
    }
}

impl Catalog {
    /// Brings the catalog up to date with those of `changes` that it does not hold yet, of a log whose last record has the sequence `last_in_log`. Returns what is wrong with records that
    /// could not be understood; the others were replayed.
    pub(in crate::db) fn replay_changes(
        &self,
        log: &Log,
        changes: &[LoggedChange],
        last_in_log: u64,
    ) -> Result<(), Vec<Error>> {
        let mut changes = changes.to_vec();
        changes.sort_unstable();
        let mut state = self.changing.lock();
        let mut tables = self.copy();
        let mut wrong = Vec::new();
        let mut order = Order::of(self, last_in_log);
        let last = state.sequence;
        for change in changes.iter().filter(|change| self.replays && change.sequence > last) {
            let guard = log.pin();
            let record = guard.view().verified_record(change.offset);
            let decoded = record.and_then(|record| {
                record.verify_all()?;
                Changes::decode(record.raw_body())
            });
            match decoded {
                Ok(decoded) => {
                    order.at(change.sequence);
                    self.replay_one(decoded, &mut tables, &mut state, &mut order);
                }
                Err(error) => wrong.push(error),
            }
            (state.sequence, state.logged_bytes) = (change.sequence, state.logged_bytes + change.bytes);
        }
        let bytes = |table: &Arc<TableShared>| entry_bytes(&table.name, &table.schema.load());
        state.bytes = EMPTY_BYTES + tables.by_id.values().map(bytes).sum::<u64>();
        self.tables.store(Arc::new(tables));
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    fn replay_one(&self, decoded: Changes, tables: &mut Tables, state: &mut CatalogState, order: &mut Order) {
        state.next_id = state.next_id.max(decoded.next_id);
        for change in decoded.changes {
            match change {
                CatalogChange::Gone(id) => {
                    state.gone.insert(id);
                    if let Some(table) = tables.by_id.get(&id).cloned() {
                        tables.remove(&table);
                    }
                }
                CatalogChange::Table(entry) if order.takes(&entry, tables) => {
                    let schema = entry.schema.with_access(self.access);
                    let shared = TableShared::new(entry.id, &entry.name, schema, self.new_levels());
                    let before = tables.insert(Arc::new(shared)).filter(|&id| id != entry.id);
                    state.gone.extend(before);
                }
                // The catalog has a younger one of that name.
                CatalogChange::Table(entry)
                    if matches!(order, Order::Known(..)) && !tables.by_id.contains_key(&entry.id) =>
                {
                    state.gone.insert(entry.id);
                }
                CatalogChange::Table(_) => {}
            }
        }
    }

    /// The catalog's bytes as of `sequence`, if it is one of a build that wrote none behind it.
    pub(in crate::db) fn upgraded_catalog(&self, sequence: u64) -> Option<Vec<u8>> {
        let mut stored = self.stored.lock();
        let mut state = self.changing.lock();
        if self.replays || state.sequence > 0 || self.tables.load().by_id.is_empty() {
            return None;
        }
        (state.sequence, *stored) = (sequence, sequence);
        Some(self.encode(&state, sequence))
    }
}

/// Counts the record of a change as obsolete: nobody has to move it (see the second promise of `db/catalog.rs`), and no table has its id.
pub(in crate::db) fn count_change(log: &Log, offset: u64, bytes: u64) {
    log.add_obsolete(offset, bytes);
    log.record_vanished((offset / log.extent_bytes()) as u32, bytes);
}

/// Which states of tables are younger than what the catalog has.
enum Order {
    /// All that are met.
    All,
    /// Those of changes after this sequence, as of which the catalog is; and whether the one that is looked at is. Of earlier ones those of names that it does not have: nobody verifies what it
    /// says, and a table that comes back is told of as doubtful.
    Known(u64, bool),
    /// It is not known as of when it is. The names of which a change was taken.
    Unknown(HashSet<String>),
}

impl Order {
    /// The records of all changes that a stored catalog holds were durable before it: one that says that it is as of a sequence which the log never came to is not believed.
    fn of(catalog: &Catalog, last_in_log: u64) -> Order {
        let claimed = catalog.claimed_sequence;
        match (catalog.whole, claimed > 0 && claimed <= last_in_log) {
            (true, _) => Order::All,
            (false, true) => Order::Known(claimed, false),
            (false, false) => Order::Unknown(HashSet::new()),
        }
    }

    /// A change with this sequence is looked at.
    fn at(&mut self, sequence: u64) {
        if let Order::Known(as_of, is_after) = self {
            *is_after = sequence > *as_of;
        }
    }

    fn takes(&mut self, entry: &TableEntry, tables: &Tables) -> bool {
        match self {
            Order::All => true,
            Order::Known(_, is_after) => *is_after || !tables.by_name.contains_key(&*entry.name),
            Order::Unknown(taken) => {
                let takes = taken.contains(&entry.name) || !is_older(entry, tables);
                if takes {
                    taken.insert(entry.name.clone());
                }
                takes
            }
        }
    }
}

/// Whether `tables` have a younger state of the table, by what mostly ascends.
fn is_older(entry: &TableEntry, tables: &Tables) -> bool {
    tables.by_name.get(&*entry.name).is_some_and(|table| {
        let known = (table.id.load(Ordering::Relaxed), table.schema.load().version());
        (entry.id, entry.schema.version()) < known
    })
}
