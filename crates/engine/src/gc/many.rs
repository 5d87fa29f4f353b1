//! Keys with many older records, counted anew.
//!
//! A slot counts the older records of its key up to 254; beyond that they are "many", and stay many when their segments are freed. So a counter that was hot once would
//! keep its row in the log for as long as the store is open: only what has no older record moves ([`moving`](super::moving)). Opening counts all records; here those of
//! the keys alone that a move came by.
//!
//! Owns which keys those are, and their count. Promises that a count is exact where it replaces "many": meanwhile no segment is freed and no row relocated, and a key that is
//! written is left as it is. Must not know why a row did not move.

use std::collections::HashMap;

use crate::db::deleted::is_droppable_tombstone;
use crate::db::engine::Engine;
use crate::index::{LogSlot, Slot};
use crate::levels::index_full;
use crate::scheduler::gc_state::ManyKeys;
use crate::sst::SstKey;
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

/// They are counted when so much of what is live is theirs: one part in so many.
const LIVE_PART: u64 = 64;
/// Counting takes no more than one part in so many of the time.
const TIME_PART: u64 = 50;

/// And it is not repeated before so long.
const PAUSE_NS: u64 = 10_000_000_000;

/// A key that is counted.
struct KeyRecords {
    table: u32,
    key: Box<[u8]>,
    /// Leads into the log: a place in the cache may be another row's by the end, and this key's again.
    slot: LogSlot,
    /// Records of it, those of its version included.
    records: u64,
}

impl Engine {
    /// A row stays in the log because its key has many older records, by its slot; it takes so many bytes.
    pub(super) fn note_many(&self, table: u32, key: &[u8], bytes: u64) {
        self.gc.many.lock().insert(table, key, bytes);
    }

    /// Counts the older records of the keys that were noted, if they keep much in the log. Not while a cycle is under way, and not when one is waited for.
    pub(super) fn count_many(&self) {
        let now_ns = self.clock.monotonic_ns();
        let live_part = || self.log.filling().live() / LIVE_PART;
        if !self.gc.many.lock().is_due(now_ns, live_part) || self.is_cycle_wanted() {
            return;
        }
        // Nothing is freed or relocated while it is held, and nothing merged in place.
        let Some(_alone) = self.gc.lock.try_write() else { return };
        let noted = self.gc.many.lock().take();
        // What cannot be read keeps its keys where they are; whoever comes by it says so.
        drop(self.count_records_of(noted));
        let ended_ns = self.clock.monotonic_ns();
        let took_ns = ended_ns.saturating_sub(now_ns);
        self.gc.many.lock().not_before(ended_ns + (took_ns * TIME_PART).max(PAUSE_NS));
    }

    /// Whether somebody waits for a cycle, or soon will, or for the store to be closed.
    fn is_cycle_wanted(&self) -> bool {
        self.scheduler.is_stopped() || self.gc.requested.load(Ordering::Relaxed) || self.room().is_low()
    }

    fn count_records_of(&self, noted: ManyKeys) -> Result<()> {
        let mut keys: HashMap<u64, KeyRecords> = HashMap::new();
        let extents: Vec<u32> = {
            // Who is writing has published it: no record is there that a slot does not count. What is written from now on is in later segments, and changes a slot.
            let (mut appenders, mut gc) = self.log.every_appender();
            let guard = self.log.pin();
            for (table, key) in noted.into_keys() {
                let slot =
                    self.catalog.by_id(table).and_then(|table| table.levels.locate_version(&key, &guard));
                let is_many = |slot: &LogSlot| slot.older_versions() == Slot::OLDER_VERSIONS_SATURATED;
                if let Some(slot) = slot.and_then(Slot::in_log).filter(is_many) {
                    let hash = SstKey::new(table, &key).hash();
                    keys.insert(hash, KeyRecords { table, key, slot, records: 0 });
                }
            }
            appenders.iter_mut().for_each(|appender| appender.seal_all(&self.log));
            gc.seal_all(&self.log);
            self.log.segments().into_iter().map(|(extent, ..)| extent).collect()
        };
        for extent in extents {
            if self.is_cycle_wanted() {
                return Ok(());
            }
            self.count_in(extent, &mut keys)?;
        }
        keys.into_values().try_for_each(|counted| self.set_count(&counted))
    }

    fn count_in(&self, extent: u32, keys: &mut HashMap<u64, KeyRecords>) -> Result<()> {
        let mut dropped = self.gc.dropped_in(extent);
        dropped.sort_unstable();
        // What is not counted would be taken for not there.
        let walk = self.log.walk(extent);
        let mut walk = walk.ok_or_else(|| Error::corrupted(format!("segment {extent} cannot be read")))?;
        while let Some(record) = walk.next_record()? {
            if dropped.binary_search(&record.offset()).is_ok() {
                continue;
            }
            let of_key = keys.get_mut(&SstKey::new(record.table(), record.key()).hash());
            let is_same = |of: &&mut KeyRecords| of.table == record.table() && *of.key == *record.key();
            if let Some(counted) = of_key.filter(is_same) {
                counted.records += 1;
            }
        }
        Ok(())
    }

    fn set_count(&self, counted: &KeyRecords) -> Result<()> {
        let KeyRecords { table: id, key, slot, records } = counted;
        let Some(table) = self.catalog.by_id(*id) else { return Ok(()) };
        let Some(older) = records.checked_sub(slot.records().into()) else { return Ok(()) };
        let older = u8::try_from(older).unwrap_or(Slot::OLDER_VERSIONS_SATURATED);
        if older == Slot::OLDER_VERSIONS_SATURATED {
            return Ok(());
        }
        let guard = self.log.pin();
        // Who clears a table holds all appenders.
        let _appender = self.log.appender();
        let exact = table.levels.replace(key, &guard, |now| {
            let is_same = now == Slot::from(*slot) && table.id.load(Ordering::Acquire) == *id;
            is_same.then(|| slot.with_older_versions(older).into())
        });
        // None of its records is needed any more, and its own not either: it counts as obsolete from here on.
        if let Some(slot) = exact.map_err(index_full)?
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
    use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier};

    use crate::db::fixture::options;
    use crate::index::Slot;
    use crate::{Db, Durability, Key, Options, Schema, Type, row};

    /// A counter that was written far more often than a slot can count, and then never again, leaves the log like any row.
    #[test]
    fn a_row_that_was_hot_moves_once_it_is_cold() {
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
        let (engine, text) = (table.engine(), "x".repeat(2_000));
        for n in 0..400 {
            for key in 0..8u64 {
                table.put(&key, &row! { n: n, text: text.as_str() }).unwrap();
            }
        }
        let slot =
            |key: u64| table.shared().levels.locate_version(key.key_bytes().as_ref(), &engine.epoch.pin());
        let many = Slot::OLDER_VERSIONS_SATURATED;
        assert!((0..8).all(|key| slot(key).is_some_and(|slot| slot.older_versions() == many)));
        // Written while they are hot, and deleted: what hides them is counted, too.
        assert!(table.delete(&7u64).unwrap());
        for _ in 0..4 {
            engine.move_now();
            clock.advance_ms(60_000);
            db.check_counts().unwrap();
        }
        for key in 0..8u64 {
            assert!(slot(key).is_none(), "row {key} is in the log still: {:?}", slot(key));
        }
        for key in 0..7u64 {
            assert_eq!(table.get(&key).unwrap().unwrap().get_as::<i64>("n").unwrap(), 399);
        }
        assert!(!table.exists(&7u64).unwrap());
    }
}
