//! Changing the catalog.
//!
//! Owns the way of a change into the log and the order of changes. Promises what `db/catalog.rs`
//! says. Must not know rows, nor what a step comes to (`catalog/plan.rs`).

use std::cell::Cell;
use std::sync::Arc;

use hedgerow_row::schema::table::TableSchema;

use super::append::Seal;
use super::catalog::TableChanges;
use super::catalog::plan::Plan;
use super::catalog::replay::count_change;
use super::engine::Engine;
use super::shared_table::TableShared;
use super::write::SpaceWaits;
use crate::log::format::{CATALOG_TABLE, RecordKind, RecordSpec};
use crate::log::segment::SegmentKind;
use crate::log::{Appender, LockedAppender, NoSpace};
use crate::space::Claim;
use crate::sync::atomic::Ordering;
use crate::{Result, Schema};

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
    Every((Vec<LockedAppender<'l>>, LockedAppender<'l>)),
    Mine(LockedAppender<'l>),
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

impl Engine {
    /// Creates a table; one that exists and accepts `schema` is opened.
    pub(super) fn create_table(&self, name: &str, schema: &Schema) -> Result<Arc<TableShared>> {
        self.change(|plan| plan.create(name, schema, &|| self.catalog.new_levels()))
    }

    /// Creates a table, or adds the fields of `schema` that it does not have.
    pub(super) fn ensure_table(&self, name: &str, schema: &Schema) -> Result<Arc<TableShared>> {
        self.change(|plan| plan.ensure(name, schema, &|| self.catalog.new_levels()))
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

    /// Takes an id for a table to be, durably. The sequence of the record that says so is nobody else's.
    pub(super) fn take_table_id(&self) -> Result<(u32, u64)> {
        let sequence = Cell::new(0);
        let id = self.change_and(|plan| Ok(plan.take_id()), &|taken| sequence.set(taken))?;
        // PERSIST: whatever is found under the id later, no other table had it.
        self.log.persist_to(sequence.get())?;
        Ok((id, sequence.get()))
    }

    /// Gives the table an id that was taken for it, and what lies below under that, in the place of its rows. `install` is told the sequence of the change before
    /// anybody can see it.
    pub(super) fn replace_table(
        &self,
        table: &Arc<TableShared>,
        id: u32,
        install: &dyn Fn(u64),
    ) -> Result<()> {
        let replace = |plan: &mut Plan<'_>| {
            table.check_there()?;
            plan.replace(&table.name, id)
        };
        self.change_and(replace, &|sequence| {
            install(sequence);
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
        self.change(|plan| changes.apply(plan, &|| self.catalog.new_levels()))
    }

    /// Makes the change that `steps` comes to, waiting for space; it is asked again then.
    fn change<R>(&self, steps: impl Fn(&mut Plan<'_>) -> Result<R>) -> Result<R> {
        self.change_and(steps, &|_| ())
    }

    /// [`Engine::change`]; `install` is told the sequence of the change, with the appenders locked and before anybody can see it.
    fn change_and<R>(&self, steps: impl Fn(&mut Plan<'_>) -> Result<R>, install: &dyn Fn(u64)) -> Result<R> {
        let mut waits = SpaceWaits::default();
        loop {
            match self.try_change(&steps, install)? {
                Tried::Done(result, None) => return Ok(result),
                Tried::Done(result, Some(sequence)) => {
                    self.make_durable(sequence)?;
                    if !self.options.background {
                        self.remove_runs_of_tables_gone();
                    }
                    return Ok(result);
                }
                Tried::NoSpace(bytes, no_space) => self.wait_for_space(bytes, no_space, &mut waits)?,
            }
        }
    }

    fn try_change<R>(
        &self,
        steps: impl Fn(&mut Plan<'_>) -> Result<R>,
        install: &dyn Fn(u64),
    ) -> Result<Tried<R>> {
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
        if let Locked::Every(_) = &locked {
            // What it says of rows that go would be met by no walk. Before the change counts.
            self.log.forget_checkpoint();
        }
        let (sequence, record_bytes) = match self.log_change(locked.appender(), &body, claim) {
            Ok(logged) => logged,
            Err((bytes, no_space)) => return Ok(Tried::NoSpace(bytes, no_space)),
        };
        (state.next_id, state.sequence, state.bytes) = (plan.next_id(), sequence, bytes);
        state.logged_bytes += record_bytes as u64;
        install(sequence);
        let vanished = plan.publish();
        for table in &vanished {
            // Of a table that was dropped nothing is to be found: it keeps its number, and would have what was deleted of it.
            let is_dropped = table.dropped.load(Ordering::Acquire);
            let runs = self.runs.current();
            let below = !is_dropped && runs.of_table(table.id.load(Ordering::Relaxed)).is_some();
            // Before the index is empty: who finds nothing there looks below, and waits there until all of this is done. Not the other way round.
            table.set_below(below || table.below());
            table.levels.clear(&self.log);
            table.expiry.reset(0);
            // A move that has begun goes by what it said of the table.
            table.set_below(below || !is_dropped && table.is_moving());
            table.end_replacing();
        }
        if !vanished.is_empty() {
            self.log.rows_vanished();
            self.runs.raise_generation();
            self.runs.record_tables_gone();
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
        let record = reservation.encode(&spec, |out| out.copy_from_slice(body));
        let sequence = self.log.take_sequence();
        let offset = self.seal(record, &Seal { sequence, previous: None }).offset();
        count_change(&self.log, offset, bytes as u64);
        Ok((sequence, bytes))
    }
}
