//! Keys with many older records, counted anew.
//!
//! A slot counts the older records of its key up to 254; beyond that they are "many", and stay many when their segments are freed. So a counter that was hot once would
//! keep its row in the log for as long as the store is open: only what has no older record moves ([`moving`](super::moving)). Opening counts all records; here those of
//! the keys alone that a move came by.
//!
//! **By pieces.** A log is large, and where rows move there is always a cycle to be made. So segments are counted one by one, at least one at a time and for no more than a fiftieth of the time while cycles are
//! wanted, and the count goes on where it stopped. So it is with looking up the keys before: writers are held while what is open is sealed, and for none of that. [`ManyCount`] says what must be told meanwhile, and why the outcome is right.
//!
//! Owns which keys those are, and their count. Promises that a count is exact where it replaces "many": while a piece is counted, or a count is taken over, no segment is freed, no row relocated by gc and
//! none merged in place, and a key that was written since is left as it is. Must not know why a row did not move.

use std::collections::BTreeMap;

use crate::db::deleted::is_droppable_tombstone;
use crate::db::engine::Engine;
use crate::index::{LogSlot, Slot};
use crate::log::check_waits_alone;
use crate::log::format::Record;
use crate::scheduler::gc_state::{CountedKey, ManyCount};
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

/// They are counted when so much of what is live is theirs: one part in so many.
const LIVE_PART: u64 = 64;
/// Counting takes no more than one part in so many of the time, but for one segment now and then.
const TIME_PART: u64 = 50;

/// So many keys are looked up at least, where cycles are wanted: each may be a read of the disk.
const KEYS_TOGETHER: usize = 256;

/// And it is not begun anew before so long.
const PAUSE_NS: u64 = 10_000_000_000;

impl Engine {
    /// A row stays in the log because its key has many older records, by its slot; it takes so many bytes.
    pub(super) fn note_many(&self, table: u32, key: &[u8], bytes: u64) {
        self.gc.many.lock().insert(table, key, bytes);
    }

    /// Goes on with the count of the older records of the keys that were noted, if they keep much in the log. Not while a cycle is under way; while one is waited for, by one segment.
    pub(super) fn count_many(&self) {
        let now_ns = self.clock.monotonic_ns();
        let live_part = || self.log.filling().live() / LIVE_PART;
        if !self.gc.many.lock().is_due(now_ns, live_part) {
            return;
        }
        // Nothing is freed or relocated while it is held, and nothing merged in place.
        let Some(_alone) = self.gc.lock.try_write() else { return };
        let under_way = self.gc.many.lock().count.take();
        let mut count = under_way.unwrap_or_else(|| self.begin_count());
        // What cannot be read keeps its keys where they are; whoever comes by it says so.
        let is_done = self.count_piece(&mut count).unwrap_or(true);
        let ended_ns = self.clock.monotonic_ns();
        let pause_ns = ended_ns.saturating_sub(now_ns) * TIME_PART;
        let mut many = self.gc.many.lock();
        many.not_before(ended_ns + if is_done { pause_ns.max(PAUSE_NS) } else { pause_ns });
        many.count = (!is_done).then_some(count);
    }

    /// Whether somebody waits for a cycle, or soon will, or for the store to be closed.
    fn is_cycle_wanted(&self) -> bool {
        self.scheduler.is_stopped()
            || self.gc.requested.load(Ordering::Relaxed)
            || self.room_for_gc().is_low()
    }

    /// A count of the keys that were noted, with none looked up and nothing counted yet.
    fn begin_count(&self) -> ManyCount {
        let noted = self.gc.many.lock().take_keys().collect();
        // Who is writing has published it: no record is there that a slot does not count. What is written from now on is in later segments, and changes a slot.
        let (mut appenders, mut gc) = self.log.every_appender();
        appenders.iter_mut().for_each(|appender| appender.seal_all(&self.log));
        gc.seal_all(&self.log);
        let left =
            self.log.segments().into_iter().map(|(extent, of, _)| (of.segment_number, extent)).collect();
        ManyCount::new(noted, left)
    }

    /// Looks up keys that were noted, some together, and others as long as nobody waits; whether all were. Writers go on: one whose record is in no segment that is to be counted was written
    /// since these were sealed, or copied, and is left as it is.
    fn look_up_noted(&self, count: &mut ManyCount) -> bool {
        while !count.noted.is_empty() {
            let (guard, from) = (self.log.pin(), count.noted.len().saturating_sub(KEYS_TOGETHER));
            for (table, key) in count.noted.split_off(from) {
                let of_table = self.catalog.by_id(table);
                let slot = of_table.and_then(|table| table.levels.locate_version(&key, &guard));
                let is_many = |slot: &LogSlot| slot.older_versions() == Slot::OLDER_VERSIONS_SATURATED;
                let Some(slot) = slot.and_then(Slot::in_log).filter(is_many) else { continue };
                let segment = self.segment_at(slot.offset());
                if !count.left.contains_key(&segment) {
                    continue;
                }
                // These are the oldest rows of the log, whose pages may be on the disk alone.
                check_waits_alone();
                let Ok(record) = guard.view().record(slot.offset()) else { continue };
                let version = record.version();
                count.add_key(CountedKey { table, key, slot, segment, version, records: 0 });
            }
            if self.is_cycle_wanted() && !count.noted.is_empty() {
                return false;
            }
        }
        true
    }

    /// The number of the segment at a place in the log.
    fn segment_at(&self, offset: u64) -> u64 {
        self.log.segment_number((offset / self.log.extent_bytes()) as u32)
    }

    /// Looks up what is to be counted, or counts a segment, and others as long as nobody waits; then what it comes to, which ends it. Whether it has ended.
    fn count_piece(&self, count: &mut ManyCount) -> Result<bool> {
        let there: BTreeMap<u64, u32> =
            self.log.segments().into_iter().map(|(extent, of, _)| (of.segment_number, extent)).collect();
        // What is free has no record any more.
        count.left.retain(|number, extent| there.get(number) == Some(extent));
        // All of them before the first segment is counted, or what that has of the others would be missing.
        if !self.look_up_noted(count) {
            return Ok(false);
        }
        while let Some((_, extent)) = count.left.pop_first() {
            self.count_in(extent, count)?;
            if self.is_cycle_wanted() && !count.left.is_empty() {
                return Ok(false);
            }
        }
        std::mem::take(count).into_keys().try_for_each(|counted| self.set_count(&counted))?;
        Ok(true)
    }

    fn count_in(&self, extent: u32, count: &mut ManyCount) -> Result<()> {
        let mut dropped = self.gc.dropped_in(extent);
        dropped.sort_unstable();
        // What is not counted would be taken for not there.
        let walk = self.log.walk(extent);
        let mut walk = walk.ok_or_else(|| Error::corrupted(format!("segment {extent} cannot be read")))?;
        while let Some(record) = walk.next_record()? {
            if dropped.binary_search(&record.offset()).is_err() {
                count.found(record.table(), record.key());
            }
        }
        Ok(())
    }

    /// The version of a key was copied, from one slot to another.
    pub(super) fn record_copy_of_many(
        &self,
        table: u32,
        key: &[u8],
        (from, to): (LogSlot, LogSlot),
        version: u64,
    ) {
        if from.older_versions() == Slot::OLDER_VERSIONS_SATURATED
            && let Some(count) = &mut self.gc.many.lock().count
        {
            count.copied((table, key), from, (to, self.segment_at(to.offset())), version);
        }
    }

    /// A record is gone with its segment, and its key has this slot.
    pub(super) fn record_freed_of_many(&self, record: &Record<'_>, slot: Option<Slot>, extent: u32) {
        if slot.is_some_and(|slot| slot.older_versions() == Slot::OLDER_VERSIONS_SATURATED)
            && let Some(count) = &mut self.gc.many.lock().count
        {
            count.freed(record.table(), record.key(), self.log.segment_number(extent));
        }
    }

    fn set_count(&self, counted: &CountedKey) -> Result<()> {
        let CountedKey { table: id, key, slot, segment, version, records } = counted;
        let Some(table) = self.catalog.by_id(*id) else { return Ok(()) };
        let Some(older) = records.checked_sub(slot.records().into()) else { return Ok(()) };
        let older = u8::try_from(older).unwrap_or(Slot::OLDER_VERSIONS_SATURATED);
        if older == Slot::OLDER_VERSIONS_SATURATED {
            return Ok(());
        }
        let guard = self.log.pin();
        if self.segment_at(slot.offset()) != *segment
            || guard.view().record(slot.offset()).map_or(true, |record| record.version() != *version)
        {
            return Ok(());
        }
        // Who clears a table holds all appenders.
        let _appender = self.log.appender();
        let exact = table.levels.replace(key, &guard, |now| {
            let is_same = now == Slot::from(*slot) && table.id.load(Ordering::Acquire) == *id;
            is_same.then(|| slot.with_older_versions(older).into())
        });
        // None of its records is needed any more, and its own not either: it counts as obsolete from here on.
        if let Some(slot) = exact
            && is_droppable_tombstone(slot)
            && let Some(slot) = slot.in_log()
        {
            self.log.add_obsolete(slot.offset(), slot.bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier, Random};

    use super::KEYS_TOGETHER;
    use crate::db::fixture::options;
    use crate::gc::victims::Need;
    use crate::index::Slot;
    use crate::sync::atomic::Ordering;
    use crate::{Db, Durability, Key, Options, Schema, Table, Type, row};

    /// A store of counters, the last of which is deleted, that were written far more often than a slot can count.
    fn store_of_hot_rows() -> (Clock, Db, Table) {
        let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
        let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
        let options = Options {
            durability: Durability::Process,
            segment_bytes: 256 << 10,
            fast_tier_bytes_max: 16 << 20,
            background: false,
            ..options()
        };
        let clock = Clock::manual(1_000);
        let db = Db::open_at(tiers, options, clock.clone()).unwrap();
        let schema = Schema::new().field("n", Type::I64).nullable("text", Type::String);
        let table = db.create_table("t", schema).unwrap();
        for n in 0..400 {
            (0..HOT).for_each(|key| put_long(&table, key, n));
        }
        assert!((0..HOT).all(|key| slot(&table, key).is_some_and(|slot| slot.older_versions() == MANY)));
        // Written while they are hot, and deleted: what hides them is counted, too.
        assert!(table.delete(&(HOT - 1)).unwrap());
        (clock, db, table)
    }

    const HOT: u64 = 8;
    const MANY: u8 = Slot::OLDER_VERSIONS_SATURATED;

    fn put_long(table: &Table, key: u64, n: i64) {
        let text = "x".repeat(2_000);
        table.put(&key, &row! { n: n, text: text.as_str() }).unwrap();
    }

    fn slot(table: &Table, key: u64) -> Option<Slot> {
        table.shared().levels.locate_version(key.key_bytes().as_ref(), &table.engine().log.pin())
    }

    /// A counter that was written far more often than a slot can count, and then never again, leaves the log like any row.
    #[test]
    fn a_row_that_was_hot_moves_once_it_is_cold() {
        let (clock, db, table) = store_of_hot_rows();
        for _ in 0..4 {
            table.engine().move_now();
            clock.advance_ms(60_000);
            db.check_counts().unwrap();
        }
        for key in 0..HOT {
            assert!(slot(&table, key).is_none(), "row {key} is in the log still: {:?}", slot(&table, key));
        }
        for key in 0..HOT - 1 {
            assert_eq!(table.get(&key).unwrap().unwrap().get_as::<i64>("n").unwrap(), 399);
        }
        assert!(!table.exists(&(HOT - 1)).unwrap());
    }

    /// Keys are looked up after all is sealed, with nobody held: what was written in between is in no segment that is counted, and its key is left as it is.
    #[test]
    fn a_key_that_was_written_before_it_was_looked_up_is_left_as_it_is() {
        let (_clock, db, table) = store_of_hot_rows();
        let engine = table.engine();
        // Of each hardly more than one record is left, and its slot does not know.
        while engine.run_gc(Need::Now).unwrap() > 0 {}
        assert!((0..HOT - 1).all(|key| slot(&table, key).is_some_and(|slot| slot.older_versions() == MANY)));
        let id = table.shared().id.load(Ordering::Relaxed);
        (0..HOT - 1).for_each(|key| engine.note_many(id, key.key_bytes().as_ref(), 2_000));
        let mut count = engine.begin_count();
        put_long(&table, 0, 400);
        assert!(engine.count_piece(&mut count).unwrap());
        assert_eq!(slot(&table, 0).unwrap().older_versions(), MANY);
        for key in 1..HOT - 1 {
            let older = slot(&table, key).unwrap().older_versions();
            assert!(older < MANY, "row {key} has {older} older records by its slot");
        }
        db.check_counts().unwrap();
    }

    /// Nor does a cycle wait until all are looked up, nor is anything counted before.
    #[test]
    fn keys_are_looked_up_some_at_a_time_where_cycles_are_wanted() {
        let (_clock, _db, table) = store_of_hot_rows();
        let engine = table.engine();
        let id = table.shared().id.load(Ordering::Relaxed);
        let noted = 2 * KEYS_TOGETHER as u64 + 10;
        (0..noted).for_each(|key| engine.note_many(id, key.key_bytes().as_ref(), 2_000));
        let mut count = engine.begin_count();
        let segments = count.left.len();
        engine.gc.requested.store(true, Ordering::Relaxed);
        for left in [KEYS_TOGETHER + 10, 10] {
            assert!(!engine.count_piece(&mut count).unwrap());
            assert_eq!((count.noted.len(), count.left.len()), (left, segments));
        }
        assert!(!engine.count_piece(&mut count).unwrap());
        assert_eq!((count.noted.len(), count.left.len()), (0, segments - 1));
        assert_eq!(count.into_keys().count() as u64, HOT);
    }

    /// With cycles wanted all the time a count goes on by a segment at a time, beside segments that are freed, rows that are copied and keys that are written: what it comes to is exact, and
    /// counts of nobody who was written since it began.
    #[test]
    fn a_count_gets_through_though_there_is_no_pause() {
        let (mut under_way, mut rewritten) = (0, 0);
        for seed in 0..4 {
            let (clock, db, table) = store_of_hot_rows();
            let (engine, mut random) = (table.engine(), Random::from_seed(seed));
            let mut newest = [399; HOT as usize - 1];
            let mut rounds = 0;
            while (0..HOT).any(|key| slot(&table, key).is_some()) {
                rounds += 1;
                assert!(rounds < 400, "they are in the log still, {under_way} rounds of counting");
                // As it is where writers wait for room all the time.
                engine.gc.requested.store(true, Ordering::Relaxed);
                for n in 0..40 {
                    put_long(&table, 1_000 + random.below(2_000), n);
                }
                if rounds < 60 && random.below(4) == 0 {
                    let key = random.below(HOT - 1);
                    rewritten +=
                        u64::from(slot(&table, key).is_some_and(|slot| slot.older_versions() == MANY));
                    newest[key as usize] += 1;
                    match random.below(2) {
                        0 => put_long(&table, key, newest[key as usize]),
                        _ => table.update(&key, &row! { n: newest[key as usize] }).unwrap(),
                    }
                }
                match random.below(3) {
                    0 => engine.move_now(),
                    1 => engine.move_sealed(),
                    _ => drop(engine.run_gc(Need::Now).unwrap()),
                }
                under_way += u64::from(engine.gc.many.lock().count.is_some());
                clock.advance_ms(11_000);
                db.check_counts().unwrap();
            }
            for (key, n) in newest.into_iter().enumerate() {
                assert_eq!(table.get(&(key as u64)).unwrap().unwrap().get_as::<i64>("n").unwrap(), n);
            }
            assert!(!table.exists(&(HOT - 1)).unwrap());
        }
        assert!(
            under_way >= 4 && rewritten >= 2,
            "{under_way} rounds of counting, {rewritten} writes beside it"
        );
    }
}
