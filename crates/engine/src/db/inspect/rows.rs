//! Walking all rows of a table that nobody changes: those of the log and those of sorted tables, in the order of their keys.
//!
//! Owns how both are brought together for whoever looks at a store as a whole: a check, a repair, a list of rows. Promises that each key comes once, with what counts of
//! it. Must not know what is made of the rows.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use hedgerow_row::schema::table::TableSchema;

use super::super::read::RowRef;
use super::super::shared_table::TableShared;
use super::View;
use crate::Result;
use crate::index::ScanBatch;
use crate::levels::Cursor;
use crate::runs::FoundVersions;
use crate::runs::cursor::RunsCursor;
use crate::sst::{FoundRecord, WalkBlocks};
use crate::sync::atomic::Ordering;

/// Slots between two calls of a progress function.
const STEP: usize = 4096;
/// Fewer where rows of sorted tables are held until the step ends.
const STEP_OVER_RUNS: usize = 256;

/// What the runs have of the keys that come next.
struct RunsPeeked {
    cursor: RunsCursor,
    next: VecDeque<FoundVersions>,
}

fn key_of(found: &FoundVersions) -> &[u8] {
    found.records().first().map_or(&[], FoundRecord::key)
}

impl RunsPeeked {
    /// Takes what comes next, if its key is below `end` or there is no end. One is always known ahead.
    fn take_below(&mut self, end: Option<&[u8]>) -> Result<Option<FoundVersions>> {
        if self.next.is_empty() {
            self.next.extend(self.cursor.next(&mut WalkBlocks::Disk { keeps: false })?);
        }
        let is_below = |found: &FoundVersions| end.is_none_or(|end| key_of(found) < end);
        Ok(self.next.pop_front_if(|found| is_below(found)))
    }

    /// Takes what there is of `key`, if that comes next.
    fn take(&mut self, key: &[u8]) -> Option<FoundVersions> {
        self.next.pop_front_if(|found| key_of(found) == key)
    }
}

impl View {
    /// Calls `visit` with each key of a table from `from` on, in order, and the row that counts of it, if there is one or something is wrong with it, until it says false. `step` is
    /// called now and then.
    ///
    /// # Errors
    /// `Corrupted` where a sorted table cannot be read on.
    pub(in crate::db) fn walk_rows(
        &self,
        table: &TableShared,
        from: &[u8],
        mut step: impl FnMut(),
        mut visit: impl FnMut(&[u8], Result<Option<RowRef<'_>>>) -> bool,
    ) -> Result<()> {
        let (mut batch, mut cursor) = (ScanBatch::default(), Cursor::at(from));
        let id = table.id.load(Ordering::Acquire);
        let mut ahead = table.below().then(|| {
            let bounds = (Bound::Included(from), Bound::Unbounded);
            let runs = Arc::clone(&self.engine.runs.current());
            RunsPeeked { cursor: RunsCursor::new(&runs, id, bounds, false, u64::MAX), next: VecDeque::new() }
        });
        let count = if ahead.is_some() { STEP_OVER_RUNS } else { STEP };
        loop {
            step();
            let view = self.engine.read_view();
            let more = table.levels.next_rows(&mut cursor, count, view.guard(), &mut batch)?;
            let schema = table.schema.load();
            for (key, slot) in batch.iter() {
                let found = match &mut ahead {
                    None => None,
                    Some(ahead) => {
                        if !self.walk_below(&schema, (ahead, Some(key)), &mut visit)? {
                            return Ok(());
                        }
                        ahead.take(key)
                    }
                };
                if !visit(key, view.row_over(&schema, Some(slot), found, None)) {
                    return Ok(());
                }
            }
            if !more {
                return match &mut ahead {
                    None => Ok(()),
                    Some(ahead) => self.walk_below(&schema, (ahead, None), &mut visit).map(drop),
                };
            }
        }
    }

    /// The rows below `end` that are in the runs alone; false once `visit` said so.
    fn walk_below(
        &self,
        schema: &Arc<TableSchema>,
        (ahead, end): (&mut RunsPeeked, Option<&[u8]>),
        visit: &mut impl FnMut(&[u8], Result<Option<RowRef<'_>>>) -> bool,
    ) -> Result<bool> {
        while let Some(found) = ahead.take_below(end)? {
            // One for each: a view holds what was looked up under it until it goes.
            let (view, key) = (self.engine.read_view(), key_of(&found).to_vec());
            if !visit(&key, view.row_over(schema, None, Some(found), None)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
