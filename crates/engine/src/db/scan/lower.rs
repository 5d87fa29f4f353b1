//! Scans of tables that may have rows in sorted tables.
//!
//! Owns how a step brings both together: what the index has of a key decides, over what the runs have of it, or hides that. Promises that all of a step was so at one moment,
//! and that nothing is pinned while it waits for the disk. Must not know how runs are walked.
//!
//! A step first reads what the runs have of the next keys, then pins, and takes from the index what that has up to the last of them. If the runs and the table's
//! number are then what they were, no key can have moved between the two meanwhile: what moves is in the runs before the index forgets it. Else it begins again. What was
//! read and not visited is kept for the next step.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use super::super::at_hand::check_all_at_hand;
use super::super::lacked::look_at_hand;
use super::super::read::{ReadView, RowRef};
use super::super::{Snapshot, Table};
use super::{NEWEST_AHEAD, STEP_MAX, Scan, as_slice};
use crate::index::{ScanBatch, ScanEnd, Slot};
use crate::runs::cursor::RunsCursor;
use crate::runs::{FoundVersions, ParkedWalk, Runs};
use crate::sst::{FoundRecord, WalkBlocks};
use crate::sync::{Backoff, atomic};
use crate::{Error, ErrorKind, FieldId, Result, Row};

/// No more is read ahead once it has so many bytes of records.
const AHEAD_BYTES: usize = 1 << 20;

/// What the runs have of the keys that a scan comes to next.
pub(super) struct RunsAhead {
    /// [`TableShared::content`](super::super::engine::TableShared::content).
    content: u32,
    /// Whether there may be something at all.
    below: bool,
    /// None while it is parked.
    cursor: Option<RunsCursor>,
    parked: Option<Arc<ParkedWalk>>,
    found: VecDeque<FoundVersions>,
    /// Of the records in `found`.
    bytes: usize,
    /// Nothing comes after `found`.
    is_at_end: bool,
    /// What comes after `found`.
    failed: Option<Error>,
}

/// The key that was looked for.
fn key_of(found: &FoundVersions) -> Option<&[u8]> {
    found.records().first().map(FoundRecord::key)
}

fn bytes_of(found: &FoundVersions) -> usize {
    found.records().iter().map(|found| found.head().record_bytes()).sum()
}

impl RunsAhead {
    fn new(table: &Table, bounds: (Bound<&[u8]>, Bound<&[u8]>), reverse: bool, upto: u64) -> Box<RunsAhead> {
        let (shared, mut backoff) = (table.shared(), Backoff::new());
        let content = loop {
            match shared.content() {
                Some(content) => break content,
                None => backoff.wait(),
            }
        };
        // The number before the runs: those that are loaded for a table count before it has their number.
        let (id, below) = (shared.id.load(atomic::Ordering::Acquire), shared.below());
        let runs = if below { Arc::clone(&table.engine().runs.current()) } else { Arc::default() };
        Box::new(RunsAhead {
            cursor: Some(RunsCursor::new(&runs, id, bounds, reverse, upto)),
            parked: None,
            content,
            below,
            found: VecDeque::new(),
            bytes: 0,
            is_at_end: false,
            failed: None,
        })
    }

    /// Whether what counts for the table is still what it was.
    fn is_current(&self, table: &Table) -> bool {
        let is_of = || {
            let current = table.engine().runs.current();
            self.cursor.as_ref().is_some_and(|cursor| cursor.is_of(&current))
        };
        let shared = table.shared();
        shared.content() == Some(self.content) && shared.below() == self.below && (!self.below || is_of())
    }

    /// Lets go of the runs if they are replaced before the next step, however long that takes to come.
    fn park(&mut self, runs: &Runs) {
        if self.below
            && let Some(cursor) = self.cursor.take()
        {
            runs.park(&mut self.parked, cursor);
        }
    }

    /// What was parked, if it is there still: else nothing can be gone on with.
    fn unpark(&mut self) {
        if let Some(parked) = &self.parked
            && self.cursor.is_none()
        {
            self.cursor = parked.take();
        }
    }

    /// Whether it can be gone on with: nothing has changed, and it did not end for want of what may have been brought since, or may be waited for now.
    fn goes_on(&self, table: &Table) -> bool {
        let was_cut_short = self.failed.as_ref().is_some_and(|error| error.kind() == ErrorKind::NotInMemory);
        self.is_current(table) && !(was_cut_short && self.found.is_empty())
    }

    /// Reads what is there of the next `count` keys, or of fewer long rows; of one at least, if there is one.
    fn fill(&mut self, count: usize, store: u64) -> Result<()> {
        // A walk that lacked something is at its end: who waits reads on from where it is.
        let at_hand = look_at_hand(store, |reads| self.fill_from(count, &mut WalkBlocks::AtHand(reads)));
        at_hand.unwrap_or_else(|| self.fill_from(count, &mut WalkBlocks::Disk { keeps: true }))
    }

    fn fill_from(&mut self, count: usize, blocks: &mut WalkBlocks<'_>) -> Result<()> {
        while self.found.len() < count
            && self.bytes < AHEAD_BYTES
            && !self.is_at_end
            && self.failed.is_none()
            && let Some(cursor) = &mut self.cursor
        {
            match cursor.next(blocks) {
                Ok(Some(found)) => {
                    self.bytes += bytes_of(&found);
                    self.found.push_back(found);
                }
                Ok(None) => self.is_at_end = true,
                Err(error) => self.failed = Some(error),
            }
        }
        if self.found.is_empty() { self.failed.take().map_or(Ok(()), Err) } else { Ok(()) }
    }

    /// The last key of which it is known what the runs have; `None` if that is known of all.
    fn last_key(&self) -> Option<&[u8]> {
        self.found.back().filter(|_| !self.is_at_end).and_then(key_of)
    }

    fn next_key(&self) -> Option<&[u8]> {
        self.found.front().and_then(key_of)
    }

    fn take(&mut self) -> Option<FoundVersions> {
        let found = self.found.pop_front()?;
        self.bytes -= bytes_of(&found);
        Some(found)
    }
}

/// The slots of a step's keys and what the runs have of them, side by side.
struct StepMerge<'s> {
    batch: &'s ScanBatch,
    /// Whether the index has nothing more up to where the runs were read.
    end: ScanEnd,
    reverse: bool,
    next: usize,
}

impl StepMerge<'_> {
    /// What there is of the next key: its place in the batch, and what the runs have.
    fn next(&mut self, ahead: &mut RunsAhead) -> Option<(Option<usize>, Option<FoundVersions>)> {
        let slot = (self.next < self.batch.len()).then_some(self.next);
        let order = match (slot, ahead.next_key()) {
            (Some(slot), Some(key)) => match self.reverse {
                false => self.batch.key(slot).cmp(key),
                true => key.cmp(self.batch.key(slot)),
            },
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) if self.end == ScanEnd::Done => Ordering::Greater,
            // Behind the last of the batch the index may have others before it.
            (None, _) => return None,
        };
        self.next += usize::from(order.is_le());
        Some((slot.filter(|_| order.is_le()), if order.is_ge() { ahead.take() } else { None }))
    }
}

impl Scan {
    /// How many keys the next step is to take in: with few rows left to visit as many as went by without one before, for these may, too.
    fn wanted(&self) -> usize {
        self.state.step.min(self.limit.saturating_add(self.state.passed))
    }

    /// Reads what the next step needs of the runs, if it is known that there is something to read.
    pub(super) fn read_ahead(&mut self) -> Result<()> {
        let wanted = self.wanted();
        match self.state.ahead.as_mut().filter(|ahead| ahead.goes_on(&self.table)) {
            Some(ahead) => ahead.fill(wanted, self.table.engine().disk_waits.store_id()),
            None => Ok(()),
        }
    }

    /// Between two steps of an iterator.
    pub(super) fn park(&mut self) {
        if let Some(ahead) = &mut self.state.ahead {
            ahead.park(&self.table.engine().runs);
        }
    }

    pub(super) fn unpark(&mut self) {
        if let Some(ahead) = &mut self.state.ahead {
            ahead.unpark();
        }
    }

    /// [`Scan::step`] over a table that may have rows in sorted tables.
    pub(super) fn step_over_runs(
        &mut self,
        mut visit: impl FnMut(&[u8], &RowRef<'_>, Option<&[FieldId]>, &mut VecDeque<Row>) -> Result<bool>,
        ends_early: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let table = self.table.clone();
        let (engine, shared) = (table.engine(), table.shared());
        let before = self.snapshot.as_ref().map(Snapshot::sequence);
        let wanted = self.wanted();
        let (view, mut ahead, end) = self.take_step(&table, before, wanted)?;
        let Scan { from, to, reverse, limit, ids, state, .. } = self;
        let behind = if *reverse { to } else { from };
        engine.enqueue_if_out_of_order(shared, &state.batch, *reverse);
        let schema = shared.schema.load();
        let prefetch = engine.row_prefetch(&schema, ids.as_deref());
        let slots: &[Slot] = state.batch.slots();
        engine.disk_waits.ask_for_all(view.log(), slots);
        check_all_at_hand(view.log(), &engine.disk_waits, slots.iter().copied())?;
        let newest = |i: usize| prefetch.newest(&engine.log, &engine.cache, slots[i], state.batch.key(i));
        (0..slots.len().min(NEWEST_AHEAD)).for_each(newest);
        let last = match end {
            ScanEnd::More => slots.len().checked_sub(1).map(|last| state.batch.key(last).to_vec()),
            ScanEnd::Done => ahead.last_key().map(<[u8]>::to_vec),
        };
        let mut merge = StepMerge { batch: &state.batch, end, reverse: *reverse, next: 0 };
        let mut visited = 0;
        while let Some((place, found)) = merge.next(&mut ahead) {
            if let Some(next) = place.map(|place| place + NEWEST_AHEAD).filter(|&next| next < slots.len()) {
                newest(next);
            }
            let slot = place.map(|place| slots[place]);
            let Some(row) = view.row_over(&schema, slot, found, before)? else {
                state.passed += 1;
                continue;
            };
            engine.enqueue_chain(shared, &row);
            (*limit, visited) = (*limit - 1, visited + 1);
            if !visit(row.key(), &row, ids.as_deref(), &mut state.rows)? || *limit == 0 {
                state.finished = true;
                return Ok(());
            }
            let ends = ends_early(visited);
            if ends || visited == wanted {
                *behind = Bound::Excluded(row.key().to_vec());
                state.ahead = Some(ahead);
                state.step = if ends { visited } else { state.step };
                return Ok(());
            }
        }
        match last {
            Some(last) => (*behind, state.ahead) = (Bound::Excluded(last), Some(ahead)),
            None => state.finished = true,
        }
        Ok(())
    }

    /// What the runs have of the next keys, and in the batch what the index has up to the last of them; all as it was at one moment.
    fn take_step<'t>(
        &mut self,
        table: &'t Table,
        before: Option<u64>,
        wanted: usize,
    ) -> Result<(ReadView<'t>, Box<RunsAhead>, ScanEnd)> {
        loop {
            let bounds = (as_slice(&self.from), as_slice(&self.to));
            let ahead = self.state.ahead.take().filter(|ahead| ahead.goes_on(table));
            let upto = before.unwrap_or(u64::MAX);
            let mut ahead = ahead.unwrap_or_else(|| RunsAhead::new(table, bounds, self.reverse, upto));
            ahead.fill(wanted, table.engine().disk_waits.store_id())?;
            let view = table.engine().read_view();
            let range = match (ahead.last_key().map(Bound::Included), self.reverse) {
                (None, _) => bounds,
                (Some(last), false) => (bounds.0, last),
                (Some(last), true) => (last, bounds.1),
            };
            let batch = &mut self.state.batch;
            let end = table.shared().levels.scan(range, self.reverse, wanted, view.guard(), batch)?;
            if ahead.is_current(table) {
                self.state.step = (self.state.step * 2).min(STEP_MAX);
                return Ok((view, ahead, end));
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
