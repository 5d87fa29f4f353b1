//! Which part of a batch an error is about.
//!
//! Owns the way from a write as it was folded back to the one that was added. Promises that of several writes to a row the first that cannot be is
//! named, or the last if only all together cannot. Nothing here runs unless a batch is refused. Must not know: the log, the index, what is in the store.

use std::sync::Arc;

use hedgerow_row::schema::plan::{DeltaPlan, FieldExpiries, RowPlan};
use hedgerow_row::schema::table::TableSchema;

use super::staged::{FieldWrite, Op, Requirement, Staged, StagedWrite};
use crate::{Error, Result};

impl Staged {
    /// `error`, which a write to a row has met, with the part of the batch that is at fault.
    #[cold]
    pub(super) fn blame(&self, write: &StagedWrite, error: Error) -> Error {
        let (table, key) = (self.table(write), self.key(write));
        let schema = table.schema.load();
        let is_same = |other: &StagedWrite| Arc::ptr_eq(self.table(other), table) && self.key(other) == key;
        let mut of_row = self.writes.iter().enumerate().filter(|(_, other)| is_same(other));
        let wrong = of_row.clone().find(|(_, other)| self.check(other, &schema).is_err());
        match wrong.or(of_row.next_back()) {
            Some((at, _)) => {
                let before = self.requirements.iter().filter(|requirement| requirement.writes_before <= at);
                error.in_batch(&table.name, key, at + before.count())
            }
            None => error,
        }
    }

    /// `error`, which a requirement has met, with its place in the batch.
    #[cold]
    pub(super) fn blame_requirement(&self, at: usize, error: Error) -> Error {
        let requirement: &Requirement = &self.requirements[at];
        let (table, key) = self.required_row(requirement);
        error.in_batch(&table.name, key, at + requirement.writes_before)
    }

    /// Whether a write could be made of some row, on its own.
    fn check(&self, write: &StagedWrite, schema: &TableSchema) -> Result<()> {
        let (Op::Put(fields, _) | Op::Update(fields, _)) = &write.op else { return Ok(()) };
        let fields = self.fields(write, fields);
        let names: Vec<&str> = fields.iter().filter_map(FieldWrite::text).collect();
        let learned = match schema.fields().is_open() {
            true => Some(schema.with_learned(&names)?),
            false => None,
        };
        let schema = learned.as_ref().unwrap_or(schema);
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
