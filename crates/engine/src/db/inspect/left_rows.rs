//! Walking what is left of a table of a damaged store: its rows in the log and in sorted tables, in the order of their keys.
//!
//! Owns how both are brought together for a repair, and for whoever looks. Promises that each key comes once, and that no older version of a row comes in the place of a newer one that is known to be lost. Must not know
//! what is made of the rows.

use super::super::read::RowRef;
use super::super::shared_table::TableShared;
use super::{ROWS_STEP, View};
use crate::index::{ScanBatch, Slot, Tag};
use crate::levels::Cursor;
use crate::runs::salvage::{LeftRow, LeftWalk, RunsLeft};
use crate::sst::{FoundRecord, KeyGap};
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

/// What a walk comes by.
pub(in crate::db) enum LeftStep<'s> {
    /// Nothing new, now and then.
    Passed,
    /// Keys of which a sorted table had something that cannot be read.
    Gap(KeyGap),
    /// A key, what the log has of it, and what sorted tables have.
    Key(&'s [u8], Option<Slot>, LeftRow),
}

/// Is given each step; says whether the walk is to go on.
type LeftVisitor<'v> = dyn FnMut(LeftStep<'_>) -> Result<bool> + 'v;

impl View {
    /// Calls `visit` with each step of a walk over a table from the key `from` on, until it says false.
    ///
    /// # Errors
    /// Those of `visit`, which end it.
    pub(in crate::db) fn walk_left(
        &self,
        left: &RunsLeft,
        shared: &TableShared,
        from: &[u8],
        visit: &mut LeftVisitor<'_>,
    ) -> Result<()> {
        let (mut batch, mut cursor) = (ScanBatch::default(), Cursor::at(from));
        let id = shared.id.load(Ordering::Relaxed);
        let mut below = left.may_have(id).then(|| left.walk(id));
        if let Some(below) = &mut below {
            while below.next_below(Some(from)).is_some() {}
        }
        loop {
            let view = self.engine.read_view();
            let more = shared.levels.next_rows(&mut cursor, ROWS_STEP, view.guard(), &mut batch)?;
            if !visit(LeftStep::Passed)? {
                return Ok(());
            }
            for (key, slot) in batch.iter() {
                let mut of_runs = LeftRow::default();
                if let Some(below) = &mut below {
                    if !walk_below(below, Some(key), visit)? {
                        return Ok(());
                    }
                    of_runs = below.at(key);
                }
                if !visit(LeftStep::Key(key, Some(slot), of_runs))? {
                    return Ok(());
                }
            }
            if !more {
                return match &mut below {
                    Some(below) => walk_below(below, None, visit).map(drop),
                    None => Ok(()),
                };
            }
        }
    }

    /// Runs `read` on what is left of a row: by its slot in the log if it has one, over what sorted tables have of it, or by that alone where the record of the slot is damaged and has moved. `None` for a
    /// key that is deleted; with the result, whether something of sorted tables is in it.
    ///
    /// # Errors
    /// `Corrupted` if it cannot be had; those of `read`.
    pub(in crate::db) fn read_left<R>(
        &self,
        shared: &TableShared,
        (slot, left): (Option<Slot>, &LeftRow),
        mut read: impl FnMut(RowRef<'_>) -> Result<R>,
    ) -> Result<Option<(R, bool)>> {
        let mut attempt = |slot: Option<Slot>| {
            let is_below = slot.is_none_or(|slot| slot.tag() == Tag::Blind);
            if is_below && left.lacks_base && (slot.is_some() || !left.found.is_empty()) {
                return Err(Error::corrupted(
                    "what it was before its last changes is in a sorted table that cannot be read",
                ));
            }
            let (schema, view) = (shared.schema.load(), self.engine.read_view());
            let row = view.row_over(&schema, slot, Some(left.found.clone()), None)?;
            row.map(|row| read(row).map(|result| (result, is_below))).transpose()
        };
        match attempt(slot) {
            Err(_) if slot.is_some_and(|slot| self.has_moved(slot, left)) => attempt(None),
            row => row,
        }
    }

    /// Whether sorted tables have what the record of a slot was, or newer: one that moved is there twice until its segment is free.
    fn has_moved(&self, slot: Slot, left: &LeftRow) -> bool {
        let log = self.engine.log.pin();
        let version = slot.in_log().and_then(|slot| Some(log.view().record(slot.offset()).ok()?.version()));
        let newest = left.found.records().first().map(FoundRecord::sequence);
        version.is_some() && newest >= version
    }

    /// The rows of a table of a damaged store, as [`View::rows`].
    pub(super) fn rows_left(
        &self,
        shared: &TableShared,
        from: &[u8],
        mut visit: impl FnMut(&[u8], Result<RowRef<'_>>) -> bool,
    ) -> Result<()> {
        self.walk_left(&self.left, shared, from, &mut |step| {
            let LeftStep::Key(key, slot, left) = step else { return Ok(true) };
            let is_hidden = || self.salvage.as_ref().is_some_and(|salvage| salvage.hides(shared, key, &left));
            if slot.is_none() && is_hidden() {
                return Ok(true);
            }
            // Whole, or what has moved since would not be looked for below.
            let look = |row: RowRef<'_>| {
                row.for_each(|_, _| ())?;
                Ok(visit(key, Ok(row)))
            };
            match self.read_left(shared, (slot, &left), look) {
                Ok(row) => Ok(row.is_none_or(|(goes_on, _)| goes_on)),
                Err(error) => Ok(visit(key, Err(error))),
            }
        })
    }
}

/// The keys below `end` that are in sorted tables alone; false once `visit` said so.
fn walk_below(below: &mut LeftWalk<'_>, end: Option<&[u8]>, visit: &mut LeftVisitor<'_>) -> Result<bool> {
    loop {
        let next = below.next_below(end);
        for gap in below.take_gaps() {
            if !visit(LeftStep::Gap(gap))? {
                return Ok(false);
            }
        }
        let Some((key, left)) = next else { return Ok(true) };
        if !visit(LeftStep::Key(&key, None, left))? {
            return Ok(false);
        }
    }
}
