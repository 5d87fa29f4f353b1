//! Tombstones: what is one, and those that were left among the rows put apart.
//!
//! Owns: the walk that finds them, and the rule which of them can go. Promises: once no snapshot is held, scans come by them for a moment more and not for good.
//! Must not know: why a scan would mind (`index/rows.rs` does).

use super::pins::Snapshots;
use crate::index::{Budget, Decision, NewKey, ScanBatch, Slot, Tag};
use crate::levels::{Cursor, Levels};
use crate::log::Log;
use crate::scheduler::Scheduler;

/// Slots looked at under one guard, and at most in one call.
const STEP: usize = 1000;
const SLOTS_MAX: usize = 50_000;

/// Who walks over rows and sets tombstones apart, and what it needs of the store.
pub(super) struct TombstoneWalk<'e> {
    pub(super) log: &'e Log,
    pub(super) snapshots: &'e Snapshots,
    pub(super) scheduler: &'e Scheduler,
}

impl TombstoneWalk<'_> {
    /// Goes on with the walk over the rows of a table that found the tombstones before `cursor`.
    pub(super) fn go_on(&self, levels: &Levels, cursor: &mut Cursor) {
        let mut batch = ScanBatch::default();
        for _ in 0..SLOTS_MAX / STEP {
            let has_none = levels.tombstones_to_set_apart() == 0;
            if has_none || !self.snapshots.are_none() || self.scheduler.is_stopped() {
                return;
            }
            let guard = self.log.pin();
            let more = levels.next_young_rows(cursor, STEP, &guard, &mut batch);
            let to_set_apart = |slot: Slot| slot.tag() == Tag::Tombstone && !slot.hides_below();
            for (key, slot) in batch.iter().filter(|&(_, slot)| to_set_apart(slot)) {
                self.set_apart(levels, key, slot);
            }
            if !more {
                return;
            }
        }
    }

    fn set_apart(&self, levels: &Levels, key: &[u8], tombstone: Slot) {
        let guard = self.log.pin();
        // Clearing the table locks all appenders before it drops the index.
        let _appender = self.log.gc_appender();
        let same = |now: Option<Slot>| match now == Some(tombstone) {
            true => (Decision::Store(tombstone), ()),
            false => (Decision::Keep, ()),
        };
        // Stored anew, it goes apart. Where there is no memory for it, it stays; the next walk comes by again.
        let apart = || self.snapshots.are_none();
        let _ = levels.publish((key, None), (NewKey::NotStored, Budget::Writes), &guard, apart, same);
    }
}

/// Whether a slot stands for a row.
#[inline]
pub(super) fn is_row(slot: Option<impl Into<Slot>>) -> bool {
    slot.is_some_and(|slot| slot.into().tag() != Tag::Tombstone)
}

/// Whether a slot is a tombstone with no older record under it, and nothing below. Its record is counted as obsolete already.
pub(crate) fn is_droppable_tombstone(slot: Slot) -> bool {
    slot.tag() == Tag::Tombstone && slot.older_versions() == 0 && !slot.hides_below()
}

#[cfg(test)]
mod tests {
    use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier};

    use crate::db::fixture::options;
    use crate::levels::Cursor;
    use crate::{Db, Schema, Table, Value};

    fn open(sim: &CrashSim) -> (Db, Table) {
        let db = Db::open_at(FastTier::simulated(sim), options(), Clock::manual(1_000)).unwrap();
        let table = db.create_table("queue", Schema::flat()).unwrap();
        (db, table)
    }

    fn put(table: &Table, n: u32) {
        table.put(&n.to_be_bytes(), &[("value", Value::Bytes(&n.to_le_bytes()))]).unwrap();
    }

    /// Entries that a scan comes by, tombstones among them, and tombstones elsewhere.
    fn entries(table: &Table) -> (u64, u64, u64) {
        let levels = &table.shared().levels;
        let among_rows = levels.tombstones_among_rows();
        (levels.rows() + among_rows, among_rows, levels.tombstones_apart())
    }

    #[test]
    fn a_scan_does_not_come_by_what_was_deleted() {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let (db, table) = open(&sim);
        (0..1000).for_each(|n| put(&table, n));
        (0..900u32).for_each(|n| assert!(table.delete(&n.to_be_bytes()).unwrap()));
        assert_eq!(entries(&table), (100, 0, 900));
        assert_eq!(table.len(), 100);
        (0..10).for_each(|n| put(&table, n));
        assert_eq!(entries(&table), (110, 0, 890));
        db.check_counts().unwrap();
        let (db, table) = open(&CrashSim::from_image(&sim.process_kill()));
        assert_eq!(entries(&table), (110, 0, 890), "opened anew");
        db.check_counts().unwrap();
        table.clear().unwrap();
        assert_eq!(entries(&table), (0, 0, 0));
    }

    #[test]
    fn what_a_snapshot_needs_stays_until_it_is_gone() {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let (db, table) = open(&sim);
        (0..1000).for_each(|n| put(&table, n));
        (0..100u32).for_each(|n| assert!(table.delete(&n.to_be_bytes()).unwrap()));
        let snapshot = db.snapshot();
        (100..900u32).for_each(|n| assert!(table.delete(&n.to_be_bytes()).unwrap()));
        assert_eq!(entries(&table), (900, 800, 100));
        (0..200).for_each(|n| put(&table, n));
        assert_eq!((table.len(), entries(&table)), (300, (1000, 700, 0)));
        let seen = |scan: crate::Scan| scan.map(|row| row.unwrap().key().to_vec()).collect::<Vec<_>>();
        let all = |from: u32, to: u32| (from..to).map(|n| n.to_be_bytes().to_vec());
        assert!(seen(snapshot.scan(&table)).into_iter().eq(all(100, 1000)));
        assert!(seen(table.scan()).into_iter().eq(all(0, 200).chain(all(900, 1000))));
        let (engine, mut cursor) = (table.engine(), Cursor::default());
        engine.tombstone_walk().go_on(&table.shared().levels, &mut cursor);
        assert_eq!(entries(&table), (1000, 700, 0), "the snapshot looks under them");
        drop(snapshot);
        engine.tombstone_walk().go_on(&table.shared().levels, &mut cursor);
        assert_eq!((entries(&table), cursor.is_at_start()), ((300, 0, 700), true));
        db.check_counts().unwrap();
    }
}
