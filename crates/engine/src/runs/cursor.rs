//! Walking runs: the keys of one table, one after the other.
//!
//! Owns [`RunsCursor`], which merges a walk over each run. Promises that it meets each key between its bounds once, in order, with
//! what [`OpenRuns::find`] has of it; and that an error is told once, after the keys that surely come before it, and ends the walk.
//! Must not know what a record's body says.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::{Bound, Range};
use std::sync::Arc;

use super::{FoundVersions, OpenRange, OpenRun, OpenRuns};
use crate::sst::{BlockReads, FoundRecord, SstCursor, WalkBlocks, composite_key};
use crate::{Error, ErrorKind, Result};

/// The keys that a cursor meets, and the way it goes.
#[derive(Debug)]
pub(super) struct KeySpan {
    /// Composite, included.
    from: Vec<u8>,
    /// Composite, excluded; `None` behind the last of all tables.
    end: Option<Vec<u8>>,
    reverse: bool,
}

impl KeySpan {
    /// From the first key (composite, included) to before the second, of whatever tables.
    pub(super) fn forward(from: Vec<u8>, end: Vec<u8>) -> KeySpan {
        KeySpan { from, end: Some(end), reverse: false }
    }

    fn new(table: u32, (from, to): (Bound<&[u8]>, Bound<&[u8]>), reverse: bool) -> KeySpan {
        let after = |key| successor(composite_key(table, key));
        let from = match from {
            Bound::Included(key) => composite_key(table, key),
            Bound::Excluded(key) => after(key),
            Bound::Unbounded => composite_key(table, &[]),
        };
        let end = match to {
            Bound::Included(key) => Some(after(key)),
            Bound::Excluded(key) => Some(composite_key(table, key)),
            Bound::Unbounded => table.checked_add(1).map(|next| composite_key(next, &[])),
        };
        KeySpan { from, end, reverse }
    }

    /// Which ranges of the run have keys of the span.
    fn ranges(&self, run: &OpenRun) -> Range<usize> {
        let first = run.ranges.partition_point(|range| *range.keys[1] < *self.from);
        let is_below_end = |range: &OpenRange| self.end.as_ref().is_none_or(|end| *range.keys[0] < **end);
        first..run.ranges.partition_point(is_below_end).max(first)
    }
}

/// The least key above `key`.
pub(super) fn successor(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

/// How the record's key compares to one which is composite.
fn compare(record: &FoundRecord, composite: &[u8]) -> Ordering {
    let (table, key) = composite.split_at(4);
    (record.table().to_be_bytes().as_slice(), record.key()).cmp(&(table, key))
}

/// The walk over one run: file by file.
#[derive(Debug)]
pub(super) struct RunWalk {
    /// Among the runs, of which the first is the newest.
    run: usize,
    /// The ranges that it has not come to.
    left: Range<usize>,
    open: Option<RangeWalk>,
}

/// The walk over what counts of a file.
#[derive(Debug)]
struct RangeWalk {
    cursor: SstCursor,
    /// The first key behind it, on the way it goes: excluded forward, included back.
    limit: Vec<u8>,
    /// All of the block that it is in lies before that, as nearly all of them do: none of its records needs to be compared.
    is_inside: bool,
}

impl RunWalk {
    /// Over the keys of `span` in `of`, the run of this place.
    pub(super) fn new(run: usize, of: &OpenRun, span: &KeySpan) -> RunWalk {
        RunWalk { run, left: span.ranges(of), open: None }
    }

    /// The place of its run.
    pub(super) fn run(&self) -> usize {
        self.run
    }

    /// The number of the file that a walk forward has come to.
    pub(super) fn file(&self, run: &OpenRun) -> Option<u64> {
        run.ranges[..self.left.start].last().map(|range| range.sst.id().number)
    }

    /// The next record, of this file or of one after it.
    pub(super) fn next(
        &mut self,
        run: &OpenRun,
        span: &KeySpan,
        blocks: &mut WalkBlocks<'_>,
    ) -> Result<Option<FoundRecord>> {
        if let Some(open) = &mut self.open {
            open.step(span.reverse, blocks)?;
        }
        loop {
            if let Some(record) = self.open.as_ref().and_then(|open| open.record(span.reverse)) {
                return Ok(Some(record));
            }
            let next = if span.reverse { self.left.next_back() } else { self.left.next() };
            let Some(next) = next else {
                self.open = None;
                return Ok(None);
            };
            self.open = Some(RangeWalk::begin(&run.ranges[next], span, blocks)?);
        }
    }
}

impl RangeWalk {
    /// At the first record that counts, or at one that does not.
    fn begin(range: &OpenRange, span: &KeySpan, blocks: &mut WalkBlocks<'_>) -> Result<RangeWalk> {
        let [least, greatest] = &range.keys;
        let from = span.from.as_slice().max(least).to_vec();
        let end = match &span.end {
            Some(end) if **end <= **greatest => end.clone(),
            _ => successor(greatest.to_vec()),
        };
        let mut cursor = SstCursor::new(&range.sst);
        match span.reverse {
            true => cursor.seek_below(&end, blocks)?,
            false => cursor.seek(&from, blocks)?,
        }
        Ok(RangeWalk { cursor, limit: if span.reverse { from } else { end }, is_inside: false })
    }

    fn step(&mut self, reverse: bool, blocks: &mut WalkBlocks<'_>) -> Result<()> {
        if reverse {
            self.cursor.step_back(blocks)?
        } else {
            self.cursor.advance(blocks)?
        }
        if let Some(end) = self.cursor.end_of_block_entered(reverse) {
            self.is_inside = self.counts(&end, reverse);
        }
        Ok(())
    }

    /// Whether a record comes before the limit.
    fn counts(&self, record: &FoundRecord, reverse: bool) -> bool {
        (compare(record, &self.limit) == Ordering::Less) != reverse
    }

    /// The record it stands at, if that counts.
    fn record(&self, reverse: bool) -> Option<FoundRecord> {
        self.cursor.record().filter(|record| self.is_inside || self.counts(record, reverse))
    }
}

/// The record that a run has next, and the walk that goes on behind it.
#[derive(Debug)]
struct RunHead {
    record: FoundRecord,
    /// Not inline: the heap moves its heads about.
    walk: Box<RunWalk>,
    reverse: bool,
}

impl RunHead {
    fn new(
        mut walk: RunWalk,
        runs: &OpenRuns,
        span: &KeySpan,
        blocks: &mut WalkBlocks<'_>,
    ) -> Result<Option<RunHead>> {
        let record = walk.next(&runs.runs[walk.run], span, blocks)?;
        let walk = Box::new(walk);
        Ok(record.map(|record| RunHead { record, walk, reverse: span.reverse }))
    }
}

/// The greatest is the one whose record comes next: by key, and of one key the newest.
impl Ord for RunHead {
    fn cmp(&self, other: &RunHead) -> Ordering {
        let by_key = self.record.key().cmp(other.record.key());
        let by_key = if self.reverse { by_key } else { by_key.reverse() };
        by_key.then_with(|| other.walk.run.cmp(&self.walk.run))
    }
}

impl PartialOrd for RunHead {
    fn partial_cmp(&self, other: &RunHead) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RunHead {
    fn eq(&self, other: &RunHead) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for RunHead {}

/// A walk over what all runs have of one table.
#[derive(Debug)]
pub(crate) struct RunsCursor {
    runs: Arc<OpenRuns>,
    span: KeySpan,
    upto: u64,
    /// Whether the heads have been looked for.
    has_begun: bool,
    heads: BinaryHeap<RunHead>,
    /// Met on the way to a record behind those that were yielded.
    failed: Option<Error>,
}

impl RunsCursor {
    /// Over the keys of the table of this number between two bounds, from the least on or back from the greatest, as they were when
    /// the sequence `upto` was the last. Nothing is read yet.
    pub(crate) fn new(
        runs: &Arc<OpenRuns>,
        table: u32,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        upto: u64,
    ) -> RunsCursor {
        RunsCursor {
            runs: Arc::clone(runs),
            span: KeySpan::new(table, bounds, reverse),
            upto,
            has_begun: false,
            heads: BinaryHeap::new(),
            failed: None,
        }
    }

    /// Whether it walks these runs.
    pub(crate) fn is_of(&self, runs: &Arc<OpenRuns>) -> bool {
        Arc::ptr_eq(&self.runs, runs)
    }

    /// What counts of the next key that has a row; nothing behind the last.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses; `NotInMemory`, as `blocks` say. Then it is at its end.
    pub(crate) fn next(&mut self, blocks: &mut WalkBlocks<'_>) -> Result<Option<FoundVersions>> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.failed = self.begin(blocks).err();
        }
        loop {
            if let Some(error) = self.failed.take() {
                self.heads.clear();
                return Err(error);
            }
            match self.next_key(blocks) {
                Some(found) if found.is_empty() => {}
                found => {
                    if found.is_some()
                        && let Some(any) = self.runs.files().first()
                    {
                        any.count_walked();
                    }
                    return Ok(found);
                }
            }
        }
    }

    /// Finds the heads. Where they are on the disk alone it waits for all of them together, and not for one run after the other.
    fn begin(&mut self, blocks: &mut WalkBlocks<'_>) -> Result<()> {
        /// An index block, a block of records, and the next one where the first key is behind all of that.
        const ROUNDS_MAX: usize = 3;
        if !matches!(blocks, WalkBlocks::Disk { keeps: true }) {
            return self.find_heads(blocks);
        }
        let mut reads = BlockReads::at_hand();
        for _ in 0..ROUNDS_MAX {
            match self.find_heads(&mut WalkBlocks::AtHand(&mut reads)) {
                Err(error) if error.kind() == ErrorKind::NotInMemory => reads.run(),
                found => return found,
            }
        }
        self.find_heads(blocks)
    }

    fn find_heads(&mut self, blocks: &mut WalkBlocks<'_>) -> Result<()> {
        self.heads.clear();
        let mut lacking = None;
        let visible = self.runs.runs().iter().enumerate().filter(|(_, of)| of.is_visible(self.upto));
        for (run, of) in visible {
            let walk = RunWalk::new(run, of, &self.span);
            match RunHead::new(walk, &self.runs, &self.span, blocks) {
                Ok(head) => self.heads.extend(head),
                // The first blocks of all runs are wanted together.
                Err(error) if error.kind() == ErrorKind::NotInMemory => lacking = Some(error),
                Err(error) => return Err(error),
            }
        }
        lacking.map_or(Ok(()), Err)
    }

    /// What counts of the next key that any run has, and each of them past it.
    fn next_key(&mut self, blocks: &mut WalkBlocks<'_>) -> Option<FoundVersions> {
        let first = self.heads.peek()?.record.clone();
        let (mut found, mut is_whole) = (FoundVersions::default(), false);
        while let Some(head) = self.heads.peek_mut()
            && head.record.key() == first.key()
        {
            let record = match step(head, (&self.runs, &self.span), blocks) {
                Ok(record) => record,
                Err((record, error)) => {
                    self.failed = Some(error);
                    record
                }
            };
            if !is_whole && record.sequence() <= self.upto {
                is_whole = !found.push(record);
            }
        }
        Some(found)
    }
}

/// Takes the head's record and has its walk go on; a walk that is at its end, or that fails, is taken off.
fn step(
    mut head: PeekMut<'_, RunHead>,
    (runs, span): (&OpenRuns, &KeySpan),
    blocks: &mut WalkBlocks<'_>,
) -> Result<FoundRecord, (FoundRecord, Error)> {
    let RunHead { record, walk, .. } = &mut *head;
    match walk.next(&runs.runs[walk.run], span, blocks) {
        Ok(Some(next)) => Ok(std::mem::replace(record, next)),
        Ok(None) => Ok(PeekMut::pop(head).record),
        Err(error) => Err((PeekMut::pop(head).record, error)),
    }
}

#[cfg(test)]
mod tests;
