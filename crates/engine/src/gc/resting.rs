//! What moves though there is room: tombstones, of a store that nobody writes to.
//!
//! Owns when they do. Promises that it comes to an end while nobody writes. Must not know how records move, nor how sorted tables are merged.
//!
//! What a row below took is given back by merges, and those know nothing of what is in the log. A tombstone is a twentieth of the row that it hides: half of all rows may be
//! deleted and there be no need of room in the log, so that nothing would ever move. Once nobody has written for [`REST_NS`] they go, and the rows beside them stay in the log.
//!
//! **What it costs.** All else that lives in a segment is copied for the tombstones in it. So only segments with some that hide are emptied; and those that a pass had to leave are no
//! reason for another for a minute, whatever is written and paused meanwhile; as many more are.

use std::cell::Cell;
use std::ops::ControlFlow;

use super::Engine;
use super::moving::{ChosenToMove, MoveKind};
use crate::index::{Slot, Tag};
use crate::log::format::{Record, RecordKind};
use crate::scheduler::gc_state::{Rest, RestPass};
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

/// A store that was not written to for so long is at rest.
const REST_NS: u64 = 2_000_000_000;
/// Tombstones of the log move if they hide one in so many of the records of sorted tables.
const HIDDEN_ONE_IN: u64 = 50;
/// Or, where nothing else makes room, if they take one in so many of the bytes of an extent, of so many bytes each at most.
const TOMBSTONES_ONE_IN: u64 = 4;
const TOMBSTONE_BYTES: u64 = 64;
/// Those that a pass had to leave are no reason for another for so long.
const LEFT_NS: u64 = 60_000_000_000;

impl Engine {
    /// The next step; returns how many segments it emptied.
    pub(super) fn move_at_rest(&self) -> Result<usize> {
        let (now, sequence) = (self.clock.monotonic_ns(), self.log.last_sequence());
        let mut rest = self.gc.rest.lock();
        if rest.sequence != sequence || rest.since_ns == 0 {
            let Rest { left, left_ns, .. } = *rest;
            *rest = Rest { sequence, since_ns: now.max(1), pass: RestPass::NotYet, left, left_ns };
        }
        if now.saturating_sub(rest.since_ns) < REST_NS || !self.can_move() {
            return Ok(0);
        }
        if let RestPass::NotYet = rest.pass {
            let hiding = self.hiding_tombstones();
            let is_old = now.saturating_sub(rest.left_ns) >= LEFT_NS;
            rest.left = if is_old { 0 } else { rest.left.min(hiding) };
            rest.pass = self.next_pass(hiding, hiding - rest.left);
        }
        let RestPass::UnderWay { from, upto, hiding } = rest.pass else { return Ok(0) };
        let mut looked = None;
        let choose = |oldest| {
            let is_cut = || self.is_at_work(sequence);
            let (chosen, upto) = self.choose_with_tombstones(oldest, (from, upto), is_cut);
            looked = Some(upto);
            chosen
        };
        let moved = self.move_out_of_chosen(MoveKind::Tombstones, choose);
        // What makes no room is not what writers wait for.
        self.gc.set_moving_bytes(0);
        // Another move is under way, or has not ended.
        let Some(looked) = looked else { return moved };
        rest.pass = RestPass::UnderWay { from: looked, upto, hiding };
        if looked > upto {
            // A tombstone goes once what it hides in the log has gone, which may have been in the same pass.
            (rest.left, rest.left_ns) = (self.hiding_tombstones(), now);
            let gone = hiding.saturating_sub(rest.left);
            rest.pass = if gone > hiding / 8 { self.next_pass(rest.left, rest.left) } else { RestPass::Done };
        }
        moved
    }

    /// Whether somebody has written since, waits for gc, or closes the store.
    fn is_at_work(&self, sequence: u64) -> bool {
        self.scheduler.is_stopped()
            || self.gc.requested.load(Ordering::Relaxed)
            || self.log.last_sequence() != sequence
    }

    /// A move was `refused` because sorted tables have no room: what is deleted makes some, once its tombstones are merged. Those may have half of what is kept for merges.
    pub(super) fn move_tombstones(&self, refused: Error) -> Result<usize> {
        // It may be that the store takes no writes any more: then that is what is wrong with it.
        self.log.check_writable()?;
        let hiding = self.hiding_tombstones();
        // However many rows there are below: no more tombstones find room in the log than a few extents hold.
        let is_room = hiding * TOMBSTONE_BYTES * TOMBSTONES_ONE_IN >= self.log.extent_bytes();
        if !(is_room || self.are_enough(hiding)) {
            return Err(refused);
        }
        let choose_now = |oldest| {
            let is_stopped = || self.scheduler.is_stopped();
            self.choose_with_tombstones(oldest, (0, u64::MAX), is_stopped).0
        };
        let choose = |oldest| {
            let chosen = choose_now(oldest);
            if !chosen.is_empty() {
                return chosen;
            }
            // They are in what is written to. What a snapshot keeps of it may not leave.
            if oldest.is_none() {
                self.seal_all();
            }
            choose_now(oldest)
        };
        let moved = self.move_out_of_chosen(MoveKind::Tombstones, choose);
        // Nor does it tell what a move of rows costs.
        self.gc.set_moving_bytes(0);
        // And so it may be now.
        self.log.check_writable()?;
        match moved {
            Ok(0) | Err(_) => Err(refused),
            moved => {
                // Rows find no more room than before, until what these hide is merged. And some may have had to stay: the next try is not at once.
                self.gc.moving_failed(&refused, self.clock.monotonic_ns());
                moved
            }
        }
    }

    /// Whether so many tombstones that hide something are worth a move.
    fn are_enough(&self, tombstones: u64) -> bool {
        let counts = self.runs.current().counts();
        tombstones * HIDDEN_ONE_IN >= (counts.rows + counts.deltas).max(1)
    }

    fn hiding_tombstones(&self) -> u64 {
        self.catalog.all().iter().map(|table| table.levels.hiding_tombstones()).sum()
    }

    /// A pass for the `hiding` tombstones that hide something, if those that may move now are enough.
    fn next_pass(&self, hiding: u64, may_move: u64) -> RestPass {
        if !self.are_enough(may_move) {
            return RestPass::Done;
        }
        // What was written last, and what the last pass copied.
        self.seal_all();
        let upto = self.log.candidates().iter().map(|(_, segment, _)| segment.segment_number).max();
        upto.map_or(RestPass::Done, |upto| RestPass::UnderWay { from: 0, upto, hiding })
    }

    /// Of the segments with these numbers, the next that have tombstones which hide something; and below which number all were looked through.
    fn choose_with_tombstones(
        &self,
        oldest: Option<u64>,
        (from, upto): (u64, u64),
        is_ended: impl Fn() -> bool,
    ) -> (Vec<ChosenToMove>, u64) {
        let (looked, is_cut) = (Cell::new(from), Cell::new(false));
        // They take next to no room below.
        let chosen = self.choose_among(oldest, u64::MAX, |extent, segment| {
            let number = segment.segment_number;
            if !(from..=upto).contains(&number) || is_cut.get() {
                return false;
            }
            // A look through all of a large log takes a while.
            is_cut.set(is_ended());
            looked.set(if is_cut.get() { looked.get() } else { number + 1 });
            !is_cut.get() && self.has_hiding_tombstones(extent)
        });
        let looked = match chosen.last() {
            // One more was looked at, and was too much for one move.
            Some(last) if looked.get() > last.segment_number + 1 => last.segment_number + 1,
            _ if is_cut.get() => looked.get(),
            Some(last) => last.segment_number + 1,
            None => upto.saturating_add(1),
        };
        (chosen, looked)
    }

    /// Whether a segment has a tombstone that hides something below, or cannot be read to its end.
    fn has_hiding_tombstones(&self, extent: u32) -> bool {
        // Nobody frees it meanwhile.
        if !self.log.begin_gc(extent) {
            return false;
        }
        let mut has_any = false;
        let read = self.each_group(extent, |table, group| {
            let guard = self.log.pin();
            let hides = |record: &Record<'_>| {
                let slot = table.levels.locate_version(record.key(), &guard);
                // A tombstone is never in the cache.
                slot.and_then(Slot::in_log).is_some_and(|slot| {
                    slot.tag() == Tag::Tombstone && slot.hides_below() && slot.offset() == record.offset()
                })
            };
            has_any = group.iter().any(|record| record.kind() == RecordKind::Tombstone && hides(record));
            Ok(if has_any { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        self.log.abandon_gc(extent);
        has_any || read.is_err()
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier};

    use super::super::victims::Need;
    use crate::db::fixture::options;
    use crate::{Db, Options, Schema, Table, Type, row};

    const FAST_BYTES: u64 = 8 << 20;
    const ROWS: u64 = 12_000;

    fn open(sim: &CrashSim, clock: &Clock) -> Db {
        let options = Options { segment_bytes: 256 << 10, fast_tier_bytes_max: FAST_BYTES, ..options() };
        let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
        Db::open_at(tiers, options, clock.clone()).unwrap()
    }

    /// A table most of whose rows have moved.
    fn filled(db: &Db) -> Table {
        let table =
            db.create_table("t", Schema::new().field("n", Type::U64).field("text", Type::String)).unwrap();
        for n in 0..ROWS {
            let text = format!("{n:>900}");
            table.put(&n, &row! { n: n, text: text.as_str() }).unwrap();
            if n % 1_000 == 999 {
                table.engine().move_now();
            }
        }
        table
    }

    fn is_deleted(n: u64) -> bool {
        n % 2 == 1
    }

    fn check(table: &Table) {
        for n in 0..ROWS {
            assert_eq!(table.exists(&n).unwrap(), !is_deleted(n), "row {n}");
        }
        assert_eq!(table.scan().count() as u64, ROWS / 2);
    }

    /// There is room, so nothing has to move; and yet what deleted rows took is given back, once nobody writes, and all is done that can be then.
    #[test]
    fn what_deleted_rows_took_is_given_back_while_nobody_writes() {
        let (sim, clock) = (CrashSim::new(CrashModel::Pages, FAST_BYTES), Clock::manual(1_000));
        let db = open(&sim, &clock);
        let table = filled(&db);
        (0..ROWS).filter(|&n| is_deleted(n)).for_each(|n| table.remove(&n).unwrap());
        let lower = || db.metrics().sorted_tables;
        let before = lower();
        db.collect().unwrap();
        clock.advance_ms(1_900);
        db.collect().unwrap();
        assert_eq!(lower().tombstones, 0, "it was written to a moment ago");
        clock.advance_ms(200);
        (0..20).for_each(|_| _ = db.collect().unwrap());
        let after = lower();
        // The tombstones of rows that are in the log as well wait for those, and merges by hand leave some garbage.
        assert!(after.tombstones + (before.rows - after.rows) > ROWS * 4 / 10, "{after:?} after {before:?}");
        assert!(after.merges > 0 && after.record_bytes < before.record_bytes * 85 / 100, "{after:?}");
        check(&table);
        let moved = db.metrics().records_moved;
        clock.advance_ms(10_000);
        (0..20).for_each(|_| _ = db.collect().unwrap());
        assert_eq!(db.metrics().records_moved, moved, "it has come to an end");
        db.check_counts().unwrap();
        drop((table, db));
        let killed = CrashSim::from_image(&sim.process_kill());
        check(&open(&killed, &clock).table("t").unwrap());
    }

    /// Tombstones in what was written last are sealed with it and go; those that have to stay are no reason to copy the log after each pause in the writing.
    #[test]
    fn the_log_is_not_copied_after_each_pause_for_the_same_tombstones() {
        let (sim, clock) = (CrashSim::new(CrashModel::Pages, FAST_BYTES), Clock::manual(1_000));
        let db = open(&sim, &clock);
        let table = filled(&db);
        let pause = || {
            db.collect().unwrap();
            clock.advance_ms(2_100);
            (0..20).for_each(|_| _ = db.collect().unwrap());
        };
        let put = |n: u64| table.put(&n, &row! { n: n, text: format!("{n:>900}").as_str() }).unwrap();
        let copied = || db.metrics().bytes_collected;
        // Rows that stay in the log, and rows of which it has nothing but that they are deleted, in a segment that is written to.
        (ROWS..ROWS + 4_000).for_each(put);
        (0..300).for_each(|n| table.remove(&n).unwrap());
        assert_eq!(db.metrics().sorted_tables.tombstones, 0);
        pause();
        assert!(copied() < 1 << 20, "{} bytes for some hundred tombstones", copied());
        assert_eq!(table.shared().levels.hiding_tombstones(), 0);
        // A snapshot keeps these where they are.
        let snapshot = db.snapshot();
        (300..700).for_each(|n| table.remove(&n).unwrap());
        pause();
        let mut before = copied();
        for n in 0..3 {
            put(ROWS + n);
            pause();
            assert!(copied() - before < 256 << 10, "{} bytes after pause {n}", copied() - before);
            before = copied();
        }
        assert!(table.shared().levels.hiding_tombstones() >= 300);
        drop(snapshot);
        put(ROWS);
        pause();
        assert!(table.shared().levels.hiding_tombstones() >= 300, "not yet");
        clock.advance_ms(60_000);
        put(ROWS);
        pause();
        assert_eq!(table.shared().levels.hiding_tombstones(), 0, "a minute later");
        assert_eq!(table.scan().count() as u64, ROWS + 4_000 - 700);
    }

    /// Deltas over rows of sorted tables are no reason to collect, however many: they leave the log as they are.
    #[test]
    fn deltas_are_not_merged_for_room_where_rows_move() {
        let (sim, clock) = (CrashSim::new(CrashModel::Pages, FAST_BYTES), Clock::manual(1_000));
        let db = open(&sim, &clock);
        let table = filled(&db);
        let engine = table.engine();
        for n in 0..ROWS / 2 {
            let text = format!("{n:>300}");
            table.update(&n, &row! { text: text.as_str() }).unwrap();
        }
        assert!(engine.room().is_low(), "by what they take in the log: {:?}", engine.room());
        assert_eq!((engine.missing_landing(), engine.need()), (0, Need::Idle));
    }
}
