//! Scans: rows in key order, a leaf's worth of slots at a time.
//!
//! A step copies the next slots out of the index, then visits their rows with the records some places ahead already on
//! their way into the cache. Each step pins the epoch anew, and one that lasts too long ends early: what callers do with the rows of
//! a slow scan keeps freed memory from reuse for about [`STEP_NS_MAX`] only, or for one look at the clock if they take longer.
//! The rows of a step of an iterator are copied, about [`COPIED_BYTES_MAX`] of them: the same goes for it, however long they are.
//! Without a snapshot the rows of a step are those of its beginning.
//! Of a table that may have rows in sorted tables, a step brings those together with what the index has (`scan/lower.rs`).

mod lower;

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;

use hedgerow_row::key::{KeyRange, prefix_end};
use lower::RunsAhead;

use super::at_hand::check_all_at_hand;
use super::counters::Count;
use super::disk_waits::has_waited_lately;
use super::read::RowRef;
use super::table::FieldIds;
use super::{Snapshot, Table};
use crate::index::{ScanBatch, ScanEnd, Slot, Tag};
use crate::{Error, FieldId, FieldName, Key, Result, Row};

/// Slots copied in the first step, and the most in later ones.
const STEP_FIRST: usize = 32;
const STEP_MAX: usize = 256;
/// How many rows ahead the newest record is prefetched, and under a delta what it was written over.
const NEWEST_AHEAD: usize = 8;
const BELOW_AHEAD: usize = 4;
/// How long the callbacks of a step may take, and how many rows are visited between two looks at the clock.
const STEP_NS_MAX: u64 = 1_000_000;
/// The same of a thread that has to wait for the disk: what a step asks for comes together, and a short one asks for little.
const COLD_STEP_NS_MAX: u64 = 32 * STEP_NS_MAX;
const ROWS_A_LOOK: usize = 8;
/// No more rows are copied in a step of an iterator once they take so many bytes: they wait in memory for whoever takes them one by one.
const COPIED_BYTES_MAX: usize = 1 << 20;

/// A scan: described by its methods, then run by [`for_each`](Scan::for_each) or as an iterator over `Result<Row>`.
///
/// It goes by steps of up to 256 rows (as an iterator of about a MiB at most), each of them as of when its step began: a row that is written meanwhile may come as it was.
/// The rows of a [snapshot](Snapshot::scan) are all as of one moment.
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
    /// Of a table that may have rows in sorted tables.
    ahead: Option<Box<RunsAhead>>,
    /// Keys of such a table that had no row.
    passed: usize,
    step: usize,
    finished: bool,
    rows: VecDeque<Row>,
    /// What ended the scan, for after the rows before it.
    failed: Option<Error>,
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

    /// At most this many rows; of several limits the last counts.
    pub fn limit(mut self, rows: usize) -> Scan {
        self.limit = rows;
        self
    }

    /// Whether no more rows are to be read.
    fn is_over(&self) -> bool {
        self.state.finished || self.limit == 0
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
    /// While it runs nothing that was freed is reused: it should be short. Where space is short, others' writes wait for it, and
    /// one that it makes itself waits in vain, and may fail with `Full`.
    ///
    /// # Errors
    /// Those of `visit`, and `Corrupted`.
    pub fn for_each(mut self, mut visit: impl FnMut(&[u8], &RowRef<'_>) -> Result<bool>) -> Result<()> {
        while !self.is_over() {
            self.step_in_time(|key, row, _, _| visit(key, row), || false)?;
        }
        Ok(())
    }

    /// [`Scan::step`], which ends early once it lasts too long, or `is_enough`.
    fn step_in_time(
        &mut self,
        visit: impl FnMut(&[u8], &RowRef<'_>, Option<&[FieldId]>, &mut VecDeque<Row>) -> Result<bool>,
        is_enough: impl Fn() -> bool,
    ) -> Result<()> {
        // Nothing is pinned while it waits for the disk.
        self.read_ahead()?;
        let clock = self.table.engine().clock.clone();
        let ns_max = if has_waited_lately() { COLD_STEP_NS_MAX } else { STEP_NS_MAX };
        let began = clock.monotonic_ns();
        let lasts_too_long = |rows: usize| {
            rows.is_multiple_of(ROWS_A_LOOK) && clock.monotonic_ns().saturating_sub(began) > ns_max
        };
        self.step(visit, |rows| is_enough() || lasts_too_long(rows))
    }

    /// Visits the rows of the next step, as far as `ends_early` lets it, which is asked after each of so many.
    fn step(
        &mut self,
        mut visit: impl FnMut(&[u8], &RowRef<'_>, Option<&[FieldId]>, &mut VecDeque<Row>) -> Result<bool>,
        ends_early: impl Fn(usize) -> bool,
    ) -> Result<()> {
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| snapshot.check(&self.table))?;
        if self.state.ahead.is_some() {
            return self.step_over_runs(visit, ends_early);
        }
        let Scan { table, snapshot, from, to, reverse, limit, ids, state } = self;
        let engine = table.engine();
        let shared = table.shared();
        let view = engine.read_view();
        let wanted = state.step.min(*limit);
        let range = (as_slice(from), as_slice(to));
        let content = shared.content();
        let more = shared.levels.scan(range, *reverse, wanted, view.guard(), &mut state.batch)?;
        // What was in the index of another content was not all that this had.
        if shared.below() || shared.content() != content {
            drop(view);
            return self.step_over_runs(visit, ends_early);
        }
        state.step = (state.step * 2).min(STEP_MAX);
        state.finished = more == ScanEnd::Done;
        engine.enqueue_if_out_of_order(shared, &state.batch, *reverse);
        let schema = shared.schema.load();
        let before = snapshot.as_ref().map(Snapshot::sequence);
        let prefetch = engine.row_prefetch(&schema, ids.as_deref());
        let slots: &[Slot] = state.batch.slots();
        engine.disk_waits.ask_for_all(view.log(), slots);
        check_all_at_hand(view.log(), &engine.disk_waits, slots.iter().copied())?;
        let newest = |i: usize| prefetch.newest(&engine.log, &engine.cache, slots[i], state.batch.key(i));
        (0..slots.len().min(NEWEST_AHEAD)).for_each(newest);
        let mut visited = slots.len();
        for (i, &slot) in slots.iter().enumerate() {
            if i + NEWEST_AHEAD < slots.len() {
                newest(i + NEWEST_AHEAD);
            }
            if let Some(ahead) = slots.get(i + BELOW_AHEAD)
                && ahead.tag() == Tag::Delta
                && let Some(delta) = ahead.in_log()
                && let Some(below) = view.log().peek_previous(delta.offset())
            {
                engine.log.prefetch_record(below.offset(), below.bytes());
            }
            let entry = (&**shared, state.batch.key(i));
            let Some(row) = view.row_at_or_before(entry, &schema, Some(slot), before)? else { continue };
            engine.enqueue_chain(shared, &row);
            *limit -= 1;
            if !visit(state.batch.key(i), &row, ids.as_deref(), &mut state.rows)? || *limit == 0 {
                state.finished = true;
                return Ok(());
            }
            if ends_early(i + 1) && i + 1 < slots.len() {
                // The rest is looked up anew: as many as can be expected to be visited in time.
                (visited, state.step, state.finished) = (i + 1, i + 1, false);
                break;
            }
        }
        if let Some(last) = visited.checked_sub(1) {
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
            if self.is_over() {
                return self.state.failed.take().map(Err);
            }
            let copied_bytes = Cell::new(0);
            let copy = |_: &[u8], row: &RowRef<'_>, ids: Option<&[FieldId]>, rows: &mut VecDeque<Row>| {
                let row = row.copy(ids)?;
                copied_bytes.set(copied_bytes.get() + row.memory_bytes());
                rows.push_back(row);
                Ok(true)
            };
            self.unpark();
            let stepped = self.step_in_time(copy, || copied_bytes.get() >= COPIED_BYTES_MAX);
            self.park();
            if let Err(error) = stepped {
                (self.state.finished, self.state.failed) = (true, Some(error));
            }
        }
        self.state.rows.pop_front().map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier};

    use crate::db::Db;
    use crate::db::fixture::options;
    use crate::epoch::Epoch;
    use crate::{ErrorKind, Result, Schema, Table, Type, row};

    fn of_rows(rows: u8, clock: &Clock) -> (CrashSim, Db, Table) {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let db = Db::open_at(FastTier::simulated(&sim), options(), clock.clone()).unwrap();
        let table = db.create_table("t", Schema::new().field("n", Type::Bytes)).unwrap();
        (0..rows).for_each(|n| table.put(&[n], &row! { n: &[n; 100][..] }).unwrap());
        (sim, db, table)
    }

    #[test]
    fn the_last_limit_counts() {
        let (_sim, _db, table) = of_rows(20, &Clock::manual(1_000));
        for (limits, rows) in [([0, 3], 3), ([3, 0], 0), ([0, 0], 0), ([5, 40], 20)] {
            let scan = || limits.into_iter().fold(table.scan(), crate::Scan::limit);
            let mut visited = 0;
            let count = |_: &[u8], _: &crate::RowRef<'_>| {
                visited += 1;
                Ok(true)
            };
            scan().for_each(count).unwrap();
            assert_eq!((scan().count(), visited), (rows, rows), "{limits:?}");
        }
    }

    /// A damaged row ends the scan where it is, not some rows before.
    #[test]
    fn the_rows_before_a_damaged_one_come_before_its_error() {
        let (sim, db, table) = of_rows(20, &Clock::manual(1_000));
        let slot = table.shared().levels.locate(&[5], &db.engine.log.pin()).and_then(|slot| slot.in_log());
        // The key is under the checksum of the prefix, which is looked at with every row.
        crate::tier::rot(&sim, slot.unwrap().offset() + 8, 0x10);
        let mut scan = table.scan();
        let before: Vec<u8> = scan
            .by_ref()
            .map_while(|row| {
                row.as_ref()
                    .map(|row| row.key()[0])
                    .map_err(|e| {
                        assert_eq!(e.kind(), ErrorKind::Corrupted);
                    })
                    .ok()
            })
            .collect();
        assert_eq!(before, [0, 1, 2, 3, 4]);
        assert!(scan.next().is_none(), "it is over");
        let all: Vec<Result<_>> = table.scan().reverse().collect();
        assert_eq!((all.len(), all.iter().filter(|row| row.is_err()).count()), (15, 1));
        assert!(all[14].is_err());
    }

    /// Rows of 200 kB: six come to a MiB.
    #[test]
    fn an_iterator_copies_few_long_rows_at_a_time() {
        const ROWS: u8 = 20;
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
        let db = Db::open_at(tiers, options(), Clock::manual(1_000)).unwrap();
        let table = db.create_table("t", Schema::new().field("n", Type::Bytes)).unwrap();
        let fill = || {
            (0..ROWS).for_each(|n| table.put(&[n], &row! { n: &[n; 200_000][..] }).unwrap());
        };
        fill();
        for below in [false, true] {
            if below {
                // What is in sorted tables is brought together with what is in the index by steps of another kind.
                table.load(|loader| loader.push(&[ROWS], &row! { n: &[ROWS][..] })).unwrap();
                fill();
            }
            for reverse in [false, true] {
                let mut scan = if reverse { table.scan().reverse() } else { table.scan() };
                let mut keys = Vec::new();
                while let Some(row) = scan.next() {
                    keys.push(row.unwrap().key()[0]);
                    assert!(scan.state.rows.len() <= 6, "{} rows beside one", scan.state.rows.len());
                }
                if reverse {
                    keys.reverse();
                }
                assert!(keys.iter().copied().eq(0..ROWS + u8::from(below)), "{keys:?}");
            }
            // What is not copied does not count.
            let mut scan = table.scan().fields::<&str>(&[]).unwrap();
            assert!(scan.next().is_some());
            assert_eq!(scan.state.rows.len(), usize::from(ROWS - 1 + u8::from(below)));
        }
    }

    fn is_free_of_guards_since(epoch: &Epoch, then: u64) -> bool {
        std::thread::scope(|scope| scope.spawn(|| epoch.is_quiescent_since(then)).join().unwrap())
    }

    /// What was freed since the first row of a slow scan may be reused before its last: and each row comes once.
    #[test]
    fn a_slow_scan_lets_go_now_and_then() {
        for (reverse, waits_for_disk) in [(false, false), (true, false), (false, true)] {
            let clock = Clock::manual(1_000);
            let (_sim, db, table) = of_rows(200, &clock);
            if waits_for_disk {
                db.engine.disk_waits.count_refused(&db.engine.log, 1);
            }
            let epoch = &db.engine.epoch;
            let (mut seen, mut then, mut let_go) = (Vec::new(), epoch.current(), 0);
            let scan = if reverse { table.scan().reverse() } else { table.scan() };
            scan.for_each(|key, _| {
                seen.push(key[0]);
                clock.advance_ms(1);
                // Each step lets the epoch go on by one; by two, what was freed may be reused.
                if is_free_of_guards_since(epoch, then) {
                    (let_go, then) = (let_go + 1, epoch.current());
                }
                Ok(true)
            })
            .unwrap();
            if reverse {
                seen.reverse();
            }
            assert!(seen.iter().copied().eq(0..200), "{seen:?}");
            assert_eq!(let_go >= 8, !waits_for_disk, "{let_go} times in 25 steps, or in 6");
        }
    }
}
