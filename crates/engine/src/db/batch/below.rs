//! Which rows a batch has to see that may be in sorted tables.
//!
//! Owns the guess that is made before the batch locks all writers out, and what an attempt found that the guess had left out. Promises that each attempt knows of all that those
//! before it lacked. Must not know how rows are read.
//!
//! A batch decides with every appender locked, and waits for no disk then. So it ends: what an attempt lacks is read before the next. Only rows that move, or a table
//! that is cleared or loaded, make it lack something again; and after some attempts no row moves while it is read and decided.

use std::sync::Arc;

use hedgerow_row::row_expiry::RowExpiry;

use super::staged::{Op, Staged, StagedWrite};
use crate::db::engine::TableShared;
use crate::db::write::UNSEEN_BYTES;
use crate::sst::SstKey;
use crate::sync::atomic::Ordering;

/// After so many attempts that lacked something nothing moves until the next has ended.
const MOVING_ATTEMPTS: u32 = 4;

/// What attempts lacked.
#[derive(Default)]
pub(super) struct Unseen {
    attempts: u32,
    pub(super) keys: Vec<SstKey>,
}

impl Unseen {
    /// One more attempt lacked these.
    pub(super) fn add(&mut self, keys: Vec<SstKey>) {
        self.attempts += 1;
        self.keys.extend(keys);
    }

    /// Whether the next attempt is to hold off all edits of which sorted tables count.
    pub(super) fn holds_off_edits(&self) -> bool {
        self.attempts >= MOVING_ATTEMPTS
    }
}

impl Staged {
    /// Tables that may have rows in sorted tables, each with keys of rows that have to be seen if they are there. `folded`: the writes, if they do not depend on rows.
    /// `must_see`: whether no delta goes over a row of the table of this number without a look at that.
    pub(super) fn rows_to_see<'s>(
        &'s self,
        folded: Option<&'s [StagedWrite]>,
        must_see: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (&'s Arc<TableShared>, Vec<&'s [u8]>)> {
        let of_writes = self.by_table(folded.unwrap_or(&self.writes)).map(move |(table, writes)| {
            let is_seen = table.below() && must_see(table.id.load(Ordering::Acquire));
            let seen = writes.iter().filter(|write| table.below() && self.must_see(table, write, is_seen));
            (table, seen.map(|write| self.key(write)).collect::<Vec<_>>())
        });
        let of_dependents = self.dependent_rows().filter(|(table, _)| table.below());
        of_writes.filter(|(_, keys)| !keys.is_empty()).chain(of_dependents)
    }

    /// Whether a write needs more of a row in sorted tables than that it may be there. `is_seen`: each update of a row of this table does.
    fn must_see(&self, table: &TableShared, write: &StagedWrite, is_seen: bool) -> bool {
        match &write.op {
            Op::Put(..) | Op::Delete => false,
            Op::Expire(_) => true,
            Op::Update(fields, expiry) => {
                let body = self.body(write, fields, &table.schema.load_full());
                is_seen || *expiry != RowExpiry::Keep || body.is_some_and(|body| body.len() > UNSEEN_BYTES)
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
