//! Which part of a batch an error is about.
//!
//! Owns the way from a write as it was folded back to the one that was added. Promises that of several writes to a row the first that cannot be is
//! named, or the last if only all together cannot. Nothing here runs unless a batch is refused. Must not know: the log, the index, what is in the store.

use std::sync::Arc;

use hedgerow_row::schema::plan::{DeltaPlan, FieldExpiries, RowPlan};
use hedgerow_row::schema::table::TableSchema;

use super::staged::{FieldWrite, Op, Staged, StagedWrite};
use crate::db::engine::TableShared;
use crate::{Error, FieldName, Result};

impl Staged {
    /// `error`, which a write to a row has met, with the part of the batch that is at fault.
    #[cold]
    pub(super) fn blame(&self, write: &StagedWrite, error: Error) -> Error {
        let (table, key) = (self.table(write), self.key(write));
        let schema = table.schema.load();
        let is_it = |of: &Arc<TableShared>, other: &[u8]| Arc::ptr_eq(of, table) && other == key;
        let writes = self.writes.iter().enumerate();
        let mut of_row = writes.filter(|(_, other)| is_it(self.table(other), self.key(other)));
        let wrong = of_row.clone().find(|(_, other)| self.check(other, &schema).is_err());
        let place = |(at, _)| self.place_of_write(at);
        // Those that depend on the row were looked at one by one when they were worked out.
        let dependents = self.dependents.iter().enumerate();
        let mut of_row_too = dependents.filter(|(_, one)| {
            let (of, other) = self.row_of(one);
            one.what.writes() && is_it(of, other)
        });
        let last_too = of_row_too.next_back().map(|(at, _)| self.place_of_dependent(at));
        let last = of_row.next_back().map(place).max(last_too);
        match wrong.map(place).or(last) {
            Some(place) => error.in_batch(&table.name, key, place),
            None => error,
        }
    }

    /// `error`, which a part that depends on its row has met, with its place in the batch.
    #[cold]
    pub(super) fn blame_dependent(&self, at: usize, error: Error) -> Error {
        let (table, key) = self.row_of(&self.dependents[at]);
        error.in_batch(&table.name, key, self.place_of_dependent(at))
    }

    /// Fails if the write at this place cannot be made of any row, whatever comes after it.
    pub(super) fn check_at(&self, at: usize) -> Result<()> {
        let write = &self.writes[at];
        let table = self.table(write);
        let checked = self.check(write, &table.schema.load_full());
        checked.map_err(|error| error.in_batch(&table.name, self.key(write), self.place_of_write(at)))
    }

    fn place_of_write(&self, at: usize) -> usize {
        at + self.dependents.iter().filter(|dependent| dependent.writes_before <= at).count()
    }

    fn place_of_dependent(&self, at: usize) -> usize {
        at + self.dependents[at].writes_before
    }

    /// Whether a write could be made of some row, on its own.
    fn check(&self, write: &StagedWrite, schema: &Arc<TableSchema>) -> Result<()> {
        let (Op::Put(fields, _) | Op::Update(fields, _)) = &write.op else { return Ok(()) };
        if self.body(write, fields, schema).is_some() {
            return Ok(());
        }
        let fields = self.fields(write, fields);
        let names: Vec<&str> = fields.iter().filter_map(FieldWrite::text).collect();
        let is_new = |name: &&str| FieldName::find(*name, schema.fields()).is_none();
        let learned = match schema.fields().is_open() && names.iter().any(is_new) {
            true => Some(schema.with_learned(&names)?),
            false => None,
        };
        let schema: &TableSchema = learned.as_ref().unwrap_or(schema);
        let resolved = self.resolved(schema, &fields)?;
        match write.op {
            Op::Put(..) => RowPlan::new(schema, &resolved).map(drop)?,
            _ => {
                let expiries: Vec<Option<u64>> = fields.iter().map(|field| field.expires_at_ms).collect();
                DeltaPlan::new(schema, &resolved, FieldExpiries::Each(&expiries)).map(drop)?;
            }
        }
        Ok(())
    }
}
