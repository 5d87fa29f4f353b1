//! The changes of the catalog that the log holds, and replaying them.
//!
//! Owns what their records count as, and what a catalog becomes by records that were written after it was stored. Promises that it is then as it was when the last
//! of them was written; and of a catalog of which it is not known when it was stored, that no table becomes older by it. Must
//! not know which records a crash has left: `db/recover.rs` does, and `db/salvage.rs`.

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
    /// Brings the catalog up to date with those of `changes` that it does not hold yet. Returns what is wrong with records that
    /// could not be understood; the others were replayed.
    pub(in crate::db) fn replay_changes(
        &self,
        log: &Log,
        changes: &[LoggedChange],
    ) -> Result<(), Vec<Error>> {
        let mut changes = changes.to_vec();
        changes.sort_unstable();
        let mut state = self.changing.lock();
        let mut tables = self.copy();
        let mut wrong = Vec::new();
        let last = state.sequence;
        for change in changes.iter().filter(|change| self.replays && change.sequence > last) {
            let guard = log.pin();
            let record = guard.view().verified_record(change.offset);
            let decoded = record.and_then(|record| {
                record.verify_all()?;
                Changes::decode(record.raw_body())
            });
            match decoded {
                Ok(decoded) => self.replay_one(decoded, &mut tables, &mut state),
                Err(error) => wrong.push(error),
            }
            (state.sequence, state.logged_bytes) = (change.sequence, state.logged_bytes + change.bytes);
        }
        let bytes = |table: &Arc<TableShared>| entry_bytes(&table.name, &table.schema.load());
        state.bytes = EMPTY_BYTES + tables.by_id.values().map(bytes).sum::<u64>();
        self.tables.store(Arc::new(tables));
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    fn replay_one(&self, decoded: Changes, tables: &mut Tables, state: &mut CatalogState) {
        state.next_id = state.next_id.max(decoded.next_id);
        for change in decoded.changes {
            match change {
                CatalogChange::Gone(id) => {
                    state.gone.insert(id);
                    if let Some(table) = tables.by_id.get(&id).cloned() {
                        tables.remove(&table);
                    }
                }
                CatalogChange::Table(entry) if self.whole || !is_older(&entry, tables) => {
                    let schema = entry.schema.with_access(self.access);
                    let shared = TableShared::new(entry.id, &entry.name, schema, self.new_levels());
                    let before = tables.insert(Arc::new(shared)).filter(|&id| id != entry.id);
                    state.gone.extend(before);
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

/// Whether `tables` have a younger state of the table: ids ascend, and so do versions.
fn is_older(entry: &TableEntry, tables: &Tables) -> bool {
    tables.by_name.get(&*entry.name).is_some_and(|table| {
        let known = (table.id.load(Ordering::Relaxed), table.schema.load().version());
        (entry.id, entry.schema.version()) < known
    })
}
