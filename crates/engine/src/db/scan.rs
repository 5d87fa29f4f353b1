//! Scans: rows in key order, a leaf's worth of slots at a time.
//!
//! A step copies the next slots out of the index, then visits their rows with the records some places ahead already on
//! their way into the cache. Each step pins the epoch anew, so a slow scan holds nothing back. Without a snapshot each row
//! is the latest when it is visited.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;

use hedgerow_row::key::{KeyRange, prefix_end};

use super::at_hand::check_all_at_hand;
use super::chain::version_before;
use super::counters::Count;
use super::read::RowRef;
use super::table::FieldIds;
use super::{Snapshot, Table};
use crate::index::{ScanBatch, ScanEnd, Slot, Tag};
use crate::{FieldId, FieldName, Key, Result, Row};

/// Slots copied in the first step, and the most in later ones.
const STEP_FIRST: usize = 32;
const STEP_MAX: usize = 256;
/// How many rows ahead the newest record is prefetched, and under a delta what it was written over.
const NEWEST_AHEAD: usize = 8;
const BELOW_AHEAD: usize = 4;

/// A scan: described by its methods, then run by [`for_each`](Scan::for_each) or as an iterator over `Result<Row>`.
///
/// ```
/// # fn main() -> hedgerow::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("hedgerow-doc-scan-{}", std::process::id()));
/// use hedgerow::{Db, Schema, Type, row};
/// let db = Db::open(&dir)?;
/// let users = db.create_table("users", Schema::new().field("name", Type::String))?;
/// users.put(b"41", &row! { name: "Ada" })?;
/// users.put(b"52", &row! { name: "Grace" })?;
/// let names: Vec<_> = users.scan().prefix(b"4").collect::<hedgerow::Result<Vec<_>>>()?;
/// assert_eq!(names.len(), 1);
/// # drop((users, db)); std::fs::remove_dir_all(dir).ok();
/// # Ok(())
/// # }
/// ```
pub struct Scan {
    table: Table,
    snapshot: Option<Snapshot>,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    reverse: bool,
    limit: usize,
    ids: Option<FieldIds>,
    state: State,
}

/// Where a scan stands.
#[derive(Default)]
struct State {
    batch: ScanBatch,
    step: usize,
    finished: bool,
    rows: VecDeque<Row>,
}

impl Table {
    /// Rows in key order; narrow the scan with its methods, then run it.
    pub fn scan(&self) -> Scan {
        Scan::new(self.clone(), None)
    }
}

impl Snapshot {
    /// Rows in key order, as they were. Of a table of another store the scan fails with `Invalid`.
    pub fn scan(&self, table: &Table) -> Scan {
        Scan::new(table.clone(), Some(self.clone()))
    }
}

impl Scan {
    fn new(table: Table, snapshot: Option<Snapshot>) -> Scan {
        table.engine().counters.add(Count::Scan);
        Scan {
            table,
            snapshot,
            from: Bound::Unbounded,
            to: Bound::Unbounded,
            reverse: false,
            limit: usize::MAX,
            ids: None,
            state: State { step: STEP_FIRST, ..State::default() },
        }
    }

    /// Only keys in this range: `scan().range("a".."b")`. With other bounds of the scan: keys in all of them.
    pub fn range(mut self, range: impl KeyRange) -> Scan {
        let (from, to) = range.key_bounds();
        self.narrow(from, to);
        self
    }

    /// Only keys from this one on. With other bounds of the scan: keys in all of them.
    pub fn from(mut self, key: &(impl Key + ?Sized)) -> Scan {
        self.narrow(Bound::Included(key.key_bytes().as_ref().to_vec()), Bound::Unbounded);
        self
    }

    /// Only keys after this one, to go on where a scan ended. With other bounds of the scan: keys in all of them.
    pub fn after(mut self, key: &(impl Key + ?Sized)) -> Scan {
        self.narrow(Bound::Excluded(key.key_bytes().as_ref().to_vec()), Bound::Unbounded);
        self
    }

    /// Only keys that begin with `prefix`: with these bytes, or of a tuple with these parts. With other bounds of the scan: keys in
    /// all of them.
    pub fn prefix<K: Key + ?Sized>(mut self, prefix: &K) -> Scan {
        let prefix = prefix.key_bytes().as_ref().to_vec();
        let end = prefix_end::<K>(&prefix);
        self.narrow(Bound::Included(prefix), end);
        self
    }

    /// Leaves what is in these bounds, too.
    fn narrow(&mut self, from: Bound<Vec<u8>>, to: Bound<Vec<u8>>) {
        let is_narrower =
            |new: &Bound<Vec<u8>>, old: &Bound<Vec<u8>>, wanted: Ordering| match (key_of(new), key_of(old)) {
                (None, _) => false,
                (_, None) => true,
                (Some(one), Some(other)) => match one.cmp(other) {
                    Ordering::Equal => matches!(new, Bound::Excluded(_)),
                    order => order == wanted,
                },
            };
        if is_narrower(&from, &self.from, Ordering::Greater) {
            self.from = from;
        }
        if is_narrower(&to, &self.to, Ordering::Less) {
            self.to = to;
        }
        let (Some(first), Some(last)) = (key_of(&self.from), key_of(&self.to)) else { return };
        let holds_one = matches!((&self.from, &self.to), (Bound::Included(_), Bound::Included(_)));
        self.state.finished |= first > last || first == last && !holds_one;
    }

    /// From the last key to the first.
    pub fn reverse(mut self) -> Scan {
        self.reverse = true;
        self
    }

    /// At most this many rows.
    pub fn limit(mut self, rows: usize) -> Scan {
        self.limit = rows;
        self.state.finished |= rows == 0;
        self
    }

    /// Only these fields (of the rows of the iterator; `for_each` reads what it asks for).
    ///
    /// # Errors
    /// `NotFound` if the table has no such field.
    pub fn fields<F: FieldName>(mut self, fields: &[F]) -> Result<Scan> {
        self.ids = Some(self.table.field_ids(fields)?);
        Ok(self)
    }

    /// Calls `visit` with each row in place, until it answers false.
    ///
    /// # Errors
    /// Those of `visit`, and `Corrupted`.
    pub fn for_each(mut self, mut visit: impl FnMut(&[u8], &RowRef<'_>) -> Result<bool>) -> Result<()> {
        while !self.state.finished {
            self.step(|key, row, _, _| visit(key, row))?;
        }
        Ok(())
    }

    /// Visits the rows of the next step.
    fn step(
        &mut self,
        mut visit: impl FnMut(&[u8], &RowRef<'_>, Option<&[FieldId]>, &mut VecDeque<Row>) -> Result<bool>,
    ) -> Result<()> {
        let Scan { table, snapshot, from, to, reverse, limit, ids, state } = self;
        let engine = table.engine();
        let shared = table.shared();
        snapshot.as_ref().map_or(Ok(()), |snapshot| snapshot.check(table))?;
        let view = engine.read_view();
        let wanted = state.step.min(*limit);
        state.step = (state.step * 2).min(STEP_MAX);
        let range = (as_slice(from), as_slice(to));
        let more = shared.levels.scan(range, *reverse, wanted, view.guard(), &mut state.batch);
        state.finished = more == ScanEnd::Done;
        engine.enqueue_if_out_of_order(shared, &state.batch, *reverse);
        let schema = shared.schema.load();
        let before = snapshot.as_ref().map(Snapshot::sequence);
        let prefetch = engine.row_prefetch(&schema, ids.as_deref());
        let slots: &[Slot] = state.batch.slots();
        engine.disk_waits.ask_for_all(&engine.log, slots);
        check_all_at_hand(&engine.log, &engine.disk_waits, slots.iter().copied())?;
        let newest = |i: usize| prefetch.newest(&engine.log, &engine.cache, slots[i], state.batch.key(i));
        (0..slots.len().min(NEWEST_AHEAD)).for_each(newest);
        for (i, &slot) in slots.iter().enumerate() {
            if i + NEWEST_AHEAD < slots.len() {
                newest(i + NEWEST_AHEAD);
            }
            if let Some(ahead) = slots.get(i + BELOW_AHEAD)
                && ahead.tag() == Tag::Delta
                && let Some(delta) = ahead.in_log()
                && let Some(below) = engine.log.peek_previous(delta.offset())
            {
                engine.log.prefetch_record(below.offset(), below.bytes());
            }
            let version = match before {
                None => Some(slot),
                Some(sequence) => {
                    version_before(view.log(), engine.cache.log_slot(slot), sequence)?.map(Slot::from)
                }
            };
            let Some(row) = view.row_at(&schema, version)? else { continue };
            engine.enqueue_chain(shared, &row);
            *limit -= 1;
            if !visit(state.batch.key(i), &row, ids.as_deref(), &mut state.rows)? || *limit == 0 {
                state.finished = true;
                return Ok(());
            }
        }
        if let Some(last) = state.batch.len().checked_sub(1) {
            let next = Bound::Excluded(state.batch.key(last).to_vec());
            *(if *reverse { to } else { from }) = next;
        }
        Ok(())
    }
}

fn key_of(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl Iterator for Scan {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Result<Row>> {
        while self.state.rows.is_empty() {
            if self.state.finished {
                return None;
            }
            let stepped = self.step(|_, row, ids, rows| {
                rows.push_back(row.copy(ids)?);
                Ok(true)
            });
            if let Err(error) = stepped {
                self.state.finished = true;
                return Some(Err(error));
            }
        }
        self.state.rows.pop_front().map(Ok)
    }
}
