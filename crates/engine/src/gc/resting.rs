//! What moves though there is room: tombstones, of a store that nobody writes to.
//!
//! Owns when they do. Promises that it comes to an end while nobody writes. Must not know how records move, nor how sorted tables are merged.
//!
//! What a row below took is given back by merges, and those know nothing of what is in the log. A tombstone is a twentieth of the row that it hides: half of all rows may be
//! deleted and there be no need of room in the log, so that nothing would ever move. Once nobody has written for [`REST_NS`] they go, and the rows beside them stay in the log.

use super::Engine;
use super::moving::MoveKind;
use crate::Result;
use crate::scheduler::gc_state::{Rest, RestPass};

/// A store that was not written to for so long is at rest.
const REST_NS: u64 = 2_000_000_000;
/// Tombstones of the log move if they hide one in so many of the records of sorted tables.
const HIDDEN_ONE_IN: u64 = 50;

impl Engine {
    /// The next step; returns how many segments it emptied.
    pub(super) fn move_at_rest(&self) -> Result<usize> {
        let (now, sequence) = (self.clock.monotonic_ns(), self.log.last_sequence());
        let mut rest = self.gc.rest.lock();
        if rest.sequence != sequence || rest.since_ns == 0 {
            *rest = Rest { sequence, since_ns: now.max(1), pass: RestPass::NotYet };
        }
        if now.saturating_sub(rest.since_ns) < REST_NS || !self.can_move() {
            return Ok(0);
        }
        if let RestPass::NotYet = rest.pass {
            rest.pass = self.next_pass(u64::MAX);
        }
        let RestPass::UnderWay { upto, hiding } = rest.pass else { return Ok(0) };
        let moved = self.move_rows(MoveKind::Tombstones { upto });
        // What makes no room is not what writers wait for.
        self.gc.set_moving_bytes(0);
        if matches!(moved, Ok(0)) && self.gc.unfinished_moves() == 0 {
            // A tombstone goes once what it hides in the log has gone, which may have been in the same pass.
            rest.pass = self.next_pass(hiding - hiding / 8);
        }
        moved
    }

    /// A pass, if fewer than `most` tombstones hide something, and enough.
    fn next_pass(&self, most: u64) -> RestPass {
        let hiding = self.catalog.all().iter().map(|table| table.levels.hiding_tombstones()).sum();
        let counts = self.runs.current().counts();
        if hiding >= most || hiding * HIDDEN_ONE_IN < (counts.rows + counts.deltas).max(1) {
            return RestPass::Done;
        }
        let upto = self.log.candidates().iter().map(|(_, segment, _)| segment.segment_number).max();
        upto.map_or(RestPass::Done, |upto| RestPass::UnderWay { upto, hiding })
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
