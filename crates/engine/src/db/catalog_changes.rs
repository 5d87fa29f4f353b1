//! Changing the catalog, and storing it.
//!
//! Owns the way of a change into the log and the order of changes, and when the root's catalog is stored anew. Promises what `db/catalog.rs`
//! says. Must not know rows, nor what a step comes to (`catalog/plan.rs`).

mod replay;

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::append::Seal;
use super::catalog::TableChanges;
use super::catalog::plan::Plan;
use super::engine::Engine;
use super::shared_table::TableShared;
use crate::levels::Levels;
use crate::log::format::{CATALOG_TABLE, RecordKind, RecordSpec};
use crate::log::segment::{Claim, SegmentKind};
use crate::log::{Appender, NoSpace};
use crate::schema::table::TableSchema;
use crate::{Result, Schema};

pub(super) use self::replay::LoggedChange;

/// With so many bytes of changes in the log that the root's catalog does not hold, it is stored whether or not they are durable:
/// so much is replayed at most when the store is opened.
const CHANGES_BYTES_MAX: u64 = 1 << 20;

/// What a change came to.
enum Tried<R> {
    /// Done; if anything changed, under this sequence.
    Done(R, Option<u64>),
    /// There is no segment for so many bytes. Wait, and begin anew.
    NoSpace(usize, NoSpace),
}

/// The appenders that are locked through a change.
enum Locked<'l> {
    /// Nobody writes: rows go.
    Every((Vec<MutexGuard<'l, Appender>>, MutexGuard<'l, Appender>)),
    Mine(MutexGuard<'l, Appender>),
}

impl Locked<'_> {
    fn appender(&mut self) -> &mut Appender {
        match self {
            Locked::Every((appenders, _)) => &mut appenders[0],
            Locked::Mine(appender) => appender,
        }
    }
}

/// The record of a change, but for its body.
fn change_spec(body_bytes: usize) -> RecordSpec<'static> {
    RecordSpec {
        kind: RecordKind::Row,
        flags: 0,
        table: CATALOG_TABLE,
        schema_version: 0,
        key: &[0],
        expires_at_ms: None,
        body_bytes,
    }
}

/// Changing it.
impl Engine {
    /// Creates a table; one that exists and accepts `schema` is opened.
    pub(super) fn create_table(&self, name: &str, schema: &Schema) -> Result<Arc<TableShared>> {
        self.change(|plan| plan.create(name, schema, &|| self.new_levels()))
    }

    /// Drops a table; false if there is none of that name.
    pub(super) fn drop_table(&self, name: &str) -> Result<bool> {
        self.change(|plan| Ok(plan.drop_table(name)))
    }

    /// Removes all rows of a table.
    pub(super) fn clear_table(&self, table: &Arc<TableShared>) -> Result<()> {
        self.change(|plan| {
            table.check_there()?;
            plan.clear(&table.name)
        })
    }

    /// Changes a table's schema.
    pub(super) fn evolve(
        &self,
        table: &TableShared,
        change: impl Fn(&TableSchema) -> Result<TableSchema>,
    ) -> Result<()> {
        self.change(|plan| {
            table.check_there()?;
            plan.evolve(&table.name, &change)
        })
    }

    /// Makes several changes together.
    pub(super) fn change_tables(&self, changes: &TableChanges) -> Result<()> {
        self.change(|plan| changes.apply(plan, &|| self.new_levels()))
    }

    fn new_levels(&self) -> Levels {
        Levels::new(&self.arena, &self.epoch)
    }

    /// Makes the change that `steps` comes to, waiting for space; it is asked again then.
    fn change<R>(&self, steps: impl Fn(&mut Plan<'_>) -> Result<R>) -> Result<R> {
        let mut waits = 0;
        loop {
            match self.try_change(&steps)? {
                Tried::Done(result, None) => return Ok(result),
                Tried::Done(result, Some(sequence)) => {
                    return self.make_durable(sequence).map(|()| result);
                }
                Tried::NoSpace(bytes, no_space) => self.wait_for_space(bytes, no_space, &mut waits)?,
            }
        }
    }

    fn try_change<R>(&self, steps: impl Fn(&mut Plan<'_>) -> Result<R>) -> Result<Tried<R>> {
        let mut state = self.catalog.changing.lock();
        let mut plan = Plan::new(&self.catalog, state.next_id);
        let result = steps(&mut plan)?;
        if plan.is_empty() {
            return Ok(Tried::Done(result, None));
        }
        let (less, more) = plan.bytes();
        let bytes = state.bytes + more - less;
        if more > less {
            self.log.make_room_for_catalog(bytes)?;
        }
        let body = plan.body();
        let claim = if plan.only_removes() { Claim::Delete } else { Claim::Write };
        let mut locked = match plan.removes_rows() {
            true => Locked::Every(self.log.every_appender()),
            false => Locked::Mine(self.log.appender()),
        };
        let (sequence, record_bytes) = match self.log_change(locked.appender(), &body, claim) {
            Ok(logged) => logged,
            Err((bytes, no_space)) => return Ok(Tried::NoSpace(bytes, no_space)),
        };
        (state.next_id, state.sequence, state.bytes) = (plan.next_id(), sequence, bytes);
        state.logged_bytes += record_bytes as u64;
        let vanished = plan.publish();
        for table in &vanished {
            table.levels.clear();
            table.expiry.reset(0);
        }
        if !vanished.is_empty() {
            self.log.rows_vanished();
        }
        Ok(Tried::Done(result, Some(sequence)))
    }

    /// Writes the record of a change; returns its sequence and its length.
    fn log_change(
        &self,
        appender: &mut Appender,
        body: &[u8],
        claim: Claim,
    ) -> std::result::Result<(u64, usize), (usize, NoSpace)> {
        let spec = change_spec(body.len());
        let bytes = spec.record_bytes();
        let reservation = appender
            .reserve(&self.log, SegmentKind::Row, bytes, claim)
            .map_err(|no_space| (bytes, no_space))?;
        let record = self.log.encode(&reservation, 0, &spec, |out| out.copy_from_slice(body));
        let sequence = self.log.take_sequence();
        self.seal(&record, &Seal { sequence, previous: None });
        appender.commit(reservation, sequence);
        self.count_change(record.offset(), bytes as u64);
        Ok((sequence, bytes))
    }

    /// Counts the record of a change as obsolete: nobody has to move it (see the second promise of `db/catalog.rs`), and no table has its id.
    pub(super) fn count_change(&self, offset: u64, bytes: u64) {
        self.log.add_obsolete(offset, bytes);
        self.log.record_vanished((offset / self.log.extent_bytes()) as u32, bytes);
    }
}

/// Storing it.
impl Engine {
    /// Stores the catalog in the root, durably, if the root's does not hold all changes.
    pub(crate) fn checkpoint_catalog(&self) -> Result<()> {
        if self.log.tier().is_read_only() {
            return Ok(());
        }
        let mut stored = self.catalog.stored.lock();
        let (bytes, sequence, logged_bytes) = {
            let state = self.catalog.changing.lock();
            if state.sequence <= *stored {
                return Ok(());
            }
            (self.catalog.encode(&state, state.sequence), state.sequence, state.logged_bytes)
        };
        // PERSIST: the records of the changes, and all writes before them, are durable before the catalog that holds them: else a
        // power cut would leave it ahead of the rows.
        self.log.persist_to(sequence)?;
        self.log.store_catalog(&bytes)?;
        *stored = sequence;
        self.catalog.changing.lock().logged_bytes -= logged_bytes;
        Ok(())
    }

    /// [`Engine::checkpoint_catalog`], when it costs no sync of the rows that nobody else asks for, or there is much to be stored: for
    /// housekeeping.
    pub(super) fn store_catalog_if_due(&self) -> Result<()> {
        let (sequence, logged_bytes) = {
            let state = self.catalog.changing.lock();
            (state.sequence, state.logged_bytes)
        };
        let is_due = logged_bytes > 0 && self.log.checkpointed_sequence() >= sequence;
        if is_due || logged_bytes > CHANGES_BYTES_MAX { self.checkpoint_catalog() } else { Ok(()) }
    }

    /// Whether the log holds changes that the root's catalog does not.
    pub(super) fn has_logged_changes(&self) -> bool {
        let stored = self.catalog.stored.lock();
        self.catalog.changing.lock().sequence > *stored
    }

    /// Runs `list` with a sequence, when all up to it is published, and the catalog as it is then: no table is made, changed or
    /// dropped until it returns.
    pub(super) fn at_catalog_barrier<R>(&self, list: impl FnOnce(u64, Vec<u8>) -> R) -> R {
        let state = self.catalog.changing.lock();
        let sequence = self.log.barrier();
        list(sequence, self.catalog.encode(&state, sequence))
    }
}
