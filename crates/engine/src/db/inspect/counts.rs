//! Whether the slots of an open store count what the log holds.
//!
//! Owns one invariant: for every key, the records of the log that are neither invalidated nor [dropped](super::super::gc)
//! are those of its version and as many more as its slot counts as older; and each record a slot leads to is among them. The
//! rule by which a tombstone may go rests on it (`docs/decisions/0004-tombstones.md`). Beside it others: a slot says
//! whether its row has an expiry, and the table counts the slots that do; the records under a slot are of its key, the older the
//! further down; and a segment counts as obsolete what no slot leads to, each record as its own length or as what the size class of that
//! stands for. Nobody may write meanwhile. Must not know how the counts come about.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::catalog::Catalog;
use super::super::chain::Chain;
use super::super::deleted::is_droppable_tombstone;
use super::super::engine::{Engine, TableShared};
use super::super::{Db, Handle};
use crate::cache::Cache;
use crate::index::{LogSlot, ScanBatch, Slot, Tag};
use crate::levels::Cursor;
use crate::log::format::CATALOG_TABLE;
use crate::log::segment::SEGMENT_HEADER_BYTES;
use crate::log::{Log, LogView};
use crate::scheduler::gc_state::GcState;
use crate::size_class::{class_bytes, class_of};
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

/// Slots looked at together.
const STEP: usize = 4096;

/// What the log holds.
#[derive(Default)]
struct LogRecords {
    /// Records by table and key.
    records: HashMap<u32, HashMap<Vec<u8>, usize>>,
    /// Records that no slot was found to lead to, by their place: table and bytes. Droppable tombstones stay among them.
    unneeded: BTreeMap<u64, (u32, u64)>,
}

impl Db {
    /// Compares the slots' older-version counts with the log, as [`hedgerow::inspect`](crate::inspect) does not: for tests, of a
    /// store without threads of its own. It walks the whole log.
    ///
    /// # Errors
    /// `Corrupted`, with the key that is counted wrong.
    #[doc(hidden)]
    pub fn check_counts(&self) -> Result<()> {
        self.handle.check_counts()
    }
}

impl Handle {
    /// [`Db::check_counts`].
    fn check_counts(&self) -> Result<()> {
        self.counts_check().check(Err)
    }

    /// The same of a store that has just been closed. Damage is told by whoever comes by it, and no invariant is broken then.
    pub(in crate::db) fn check_closed(&self) -> std::result::Result<(), String> {
        if self.engine.log.tier().is_read_only() || self.engine.gc.counts_lost.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Whoever collects by hand may be at it still.
        let _no_cycle = self.engine.gc.lock.write();
        self.engine.log.check_closed()?;
        let checked = self.counts_check().check(|_| Ok(()));
        // Of keys whose leaf is damaged nobody knows what they have, nor what of it is obsolete.
        if self.engine.log.has_damaged_leaf() { Ok(()) } else { checked.map_err(|error| error.to_string()) }
    }

    fn counts_check(&self) -> CountsCheck<'_> {
        let Engine { log, gc, cache, catalog, .. } = &*self.engine;
        CountsCheck { log, gc, cache, catalog }
    }
}

/// What is compared with what.
struct CountsCheck<'e> {
    log: &'e Log,
    gc: &'e GcState,
    cache: &'e Cache,
    catalog: &'e Catalog,
}

impl CountsCheck<'_> {
    /// All of it; of a log that cannot be read, what `damaged` says.
    fn check(&self, damaged: impl FnOnce(Error) -> Result<()>) -> Result<()> {
        let mut held = match self.held() {
            Ok(held) => held,
            Err(error) => return damaged(error),
        };
        let tables = self.catalog.all();
        for table in &tables {
            self.check_table(table, &mut held)?;
        }
        let known = tables.iter().map(|table| table.id.load(Ordering::Acquire)).collect();
        self.check_obsolete(&held, &known)
    }

    fn held(&self) -> Result<LogRecords> {
        let mut held = LogRecords::default();
        for (extent, ..) in self.log.segments() {
            let dropped = self.gc.dropped_in(extent);
            let Some(mut walk) = self.log.walk(extent) else { continue };
            while let Some(record) = walk.next_record()? {
                held.unneeded.insert(record.offset(), (record.table(), record.record_bytes() as u64));
                if !dropped.contains(&record.offset()) {
                    let keys = held.records.entry(record.table()).or_default();
                    *keys.entry(record.key().to_vec()).or_default() += 1;
                }
            }
        }
        Ok(held)
    }

    fn check_table(&self, table: &TableShared, held: &mut LogRecords) -> Result<()> {
        let id = table.id.load(Ordering::Acquire);
        let mut keys = held.records.remove(&id).unwrap_or_default();
        let (mut mixed, mut expiring) = (0, 0);
        let guard = self.log.pin();
        each_slot(
            |cursor, batch| table.levels.next_rows(cursor, STEP, &guard, batch),
            |key, slot| {
                let slot = self.cache.log_slot(slot, &guard);
                mixed += u64::from(slot.tag() == Tag::Tombstone);
                expiring += u64::from(slot.expires());
                let records = keys.remove(key).unwrap_or(0);
                let slot = (slot, guard.view());
                self.check_slot((table, key), slot, records, &mut held.unneeded)
            },
        )?;
        each_slot(
            |cursor, batch| Ok(table.levels.next_tombstones(cursor, STEP, &guard, batch)),
            |key, slot| match slot.in_log() {
                Some(slot) if slot.tag() == Tag::Tombstone => {
                    let records = keys.remove(key).unwrap_or(0);
                    let slot = (slot, guard.view());
                    self.check_slot((table, key), slot, records, &mut held.unneeded)
                }
                _ => Err(wrong(table, key, "is a row, and kept apart from the rows")),
            },
        )?;
        if let Some((key, records)) = keys.iter().next() {
            return Err(wrong(table, key, &format!("has no slot, and {records} records in the log")));
        }
        let counted = table.levels.tombstones_among_rows();
        if counted != mixed {
            let text =
                format!("table {:?} counts {counted} tombstones among its rows and has {mixed}", table.name);
            return Err(Error::corrupted(text));
        }
        let counted = table.expiry.rows();
        if counted != expiring {
            let text = format!("table {:?} counts {counted} rows that expire and has {expiring}", table.name);
            return Err(Error::corrupted(text));
        }
        Ok(())
    }

    fn check_slot(
        &self,
        (table, key): (&TableShared, &[u8]),
        (slot, log): (LogSlot, LogView<'_>),
        records: usize,
        unneeded: &mut BTreeMap<u64, (u32, u64)>,
    ) -> Result<()> {
        let version = match slot.tag() {
            Tag::Delta | Tag::Blind => Chain::of(log, slot)?.in_log()?.map(|r| r.offset()).collect(),
            _ => vec![slot.offset()],
        };
        let word = check_version((table, key), log, &version)?;
        if slot.expires() != word.is_some_and(|at_ms| at_ms != 0) {
            return Err(wrong(table, key, &format!("has the expiry {word:?}, but {slot:?}")));
        }
        if version.len() != usize::from(slot.records()) {
            return Err(wrong(table, key, &format!("has {} records in its chain: {slot:?}", version.len())));
        }
        let mut is_found = |place: &u64| match is_droppable_tombstone(*slot) {
            true => unneeded.contains_key(place),
            false => unneeded.remove(place).is_some(),
        };
        if let Some(lost) = version.iter().copied().find(|place| !is_found(place)) {
            let text = format!("has a record at {lost}, in no segment, or under another slot: {slot:?}");
            return Err(wrong(table, key, &text));
        }
        let older = usize::from(slot.older_versions());
        if older < usize::from(Slot::OLDER_VERSIONS_SATURATED) && records != version.len() + older {
            return Err(wrong(table, key, &format!("has {records} records in the log, but {slot:?}")));
        }
        Ok(())
    }

    /// Holds what sealed segments count as obsolete against the records that no slot leads to. Records of tables that are gone are counted by
    /// guess (`gc.rs`): a segment that has some is passed over.
    fn check_obsolete(&self, held: &LogRecords, known: &HashSet<u32>) -> Result<()> {
        for (extent, segment, counted) in self.log.segments() {
            let start = u64::from(extent) * self.log.extent_bytes();
            let places = start..start + u64::from(segment.extents) * self.log.extent_bytes();
            let unneeded = || held.unneeded.range(places.clone()).map(|(_, record)| *record);
            let is_gone = |table: u32| table != CATALOG_TABLE && !known.contains(&table);
            if !segment.sealed || segment.miscounted || unneeded().any(|(table, _)| is_gone(table)) {
                continue;
            }
            // A change of the catalog is counted when the segment is counted anew, if it ever is.
            let own = || unneeded().filter(|(table, _)| known.contains(table));
            let exact: u64 = own().map(|(_, bytes)| bytes).sum();
            let rounded: u64 = unneeded().map(|(_, bytes)| bytes.max(class_bytes(class_of(bytes)))).sum();
            if !(exact..=rounded).contains(&counted) && counted < segment.end - SEGMENT_HEADER_BYTES {
                let text = format!(
                    "the segment at {start} counts {counted} bytes as obsolete, and has {exact}, by size classes {rounded}"
                );
                return Err(Error::corrupted(text));
            }
        }
        Ok(())
    }
}

/// Looks at the records of a version, the newest first; returns the expiry that the newest of those that have one says.
fn check_version(
    (table, key): (&TableShared, &[u8]),
    log: LogView<'_>,
    version: &[u64],
) -> Result<Option<u64>> {
    let (mut younger, mut word) = (u64::MAX, None);
    for &place in version {
        let record = log.record(place)?;
        let id = table.id.load(Ordering::Acquire);
        if (record.table(), record.key()) != (id, key) {
            return Err(wrong(table, key, &format!("has a record at {place} that is of another key")));
        }
        if record.sequence() >= younger {
            return Err(wrong(table, key, &format!("has a record at {place} over one that is younger")));
        }
        younger = record.sequence();
        word = word.or(record.expires_at_ms());
    }
    Ok(word)
}

/// Calls `visit` with all entries of a walk.
fn each_slot(
    next: impl Fn(&mut Cursor, &mut ScanBatch) -> Result<bool>,
    mut visit: impl FnMut(&[u8], Slot) -> Result<()>,
) -> Result<()> {
    let (mut batch, mut cursor) = (ScanBatch::default(), Cursor::default());
    loop {
        let more = next(&mut cursor, &mut batch)?;
        batch.iter().try_for_each(|(key, slot)| visit(key, slot))?;
        if !more {
            return Ok(());
        }
    }
}

fn wrong(table: &TableShared, key: &[u8], what: &str) -> Error {
    Error::corrupted(format!("the key {} of table {:?} {what}", key.escape_ascii(), table.name))
}

#[cfg(test)]
mod tests {
    use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier};

    use super::*;
    use crate::db::fixture::options;
    use crate::index::{Budget, Decision, NewKey};
    use crate::{Schema, Table, Type, Value, row};

    /// Two rows, one of them under a delta, and a segment that is sealed with something obsolete in it.
    fn filled() -> (Db, Table) {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let db = Db::open_at(FastTier::simulated(&sim), options(), Clock::manual(1_000)).unwrap();
        let schema = Schema::new().field("n", Type::U64).field("value", Type::Bytes);
        let table = db.create_table("rows", schema).unwrap();
        for n in 0..80u64 {
            let fill = [n as u8; 16_000];
            table
                .put(&[b'f', (n % 40) as u8], &[("n", Value::UInt(n)), ("value", Value::Bytes(&fill))])
                .unwrap();
        }
        for key in [b"a", b"b"] {
            table.put(key, &row! { n: 1, value: b"x" }).unwrap();
        }
        table.update(b"a", &row! { n: 2 }).unwrap();
        (db, table)
    }

    fn told(db: &Db, what: &str) {
        let error = db.check_counts().unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }

    /// Puts another slot in the place of that of `a`, and takes it away again after a look.
    fn told_of(table: &Table, db: &Db, what: &str, other: impl FnOnce(LogSlot) -> LogSlot) {
        let log = &table.engine().log;
        let levels = &table.shared().levels;
        let old = levels.locate(b"a", &log.pin()).unwrap();
        let store = |slot| {
            levels
                .publish(
                    (b"a", None),
                    (NewKey::Stored(Budget::Writes), Budget::Writes),
                    &log.pin(),
                    || false,
                    |_| (Decision::Store(slot), ()),
                )
                .unwrap()
        };
        store(other(old.in_log().unwrap()).into());
        told(db, what);
        store(old);
        db.check_counts().unwrap();
    }

    #[test]
    fn what_is_wrong_with_the_counts_is_told() {
        let (db, table) = filled();
        db.check_counts().unwrap();
        told_of(&table, &db, "records in the log", |slot| slot.add_older_versions(1));
        told_of(&table, &db, "records in its chain", |slot| slot.with_depth(2));
        let guard = table.engine().log.pin();
        let other = table.shared().levels.locate(b"b", &guard).and_then(Slot::in_log).unwrap();
        told_of(&table, &db, "of another key", |_| other);
        drop(guard);
        let log = &table.engine().log;
        let (extent, ..) = log.segments().into_iter().find(|(_, segment, _)| segment.sealed).unwrap();
        let place = u64::from(extent) * log.extent_bytes();
        log.add_obsolete(place, 4_096);
        told(&db, "bytes as obsolete, and has");
        log.add_obsolete(place, 4_096u64.wrapping_neg());
        db.check_counts().unwrap();
    }

    /// What is beyond the largest class was counted as that class on opening: gc took the rest of it for live.
    #[test]
    fn a_long_row_that_was_replaced_is_obsolete_as_a_whole_after_opening() {
        let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
        let walked = || crate::Options { saved_index_bytes_min: u64::MAX, ..options() };
        let open = || Db::open_at(FastTier::simulated(&sim), walked(), Clock::manual(1_000)).unwrap();
        let db = open();
        let table = db.create_table("long", Schema::flat()).unwrap();
        let long = vec![7; 5 << 20];
        table.put(b"key", &[("value", Value::Bytes(&long))]).unwrap();
        table.put(b"key", &[("value", Value::Bytes(b"short"))]).unwrap();
        drop(table);
        db.close().unwrap();
        let db = open();
        let obsolete = |(_, _, obsolete): &(u32, crate::log::segment::Segment, u64)| *obsolete;
        assert!(db.engine.log.segments().iter().map(obsolete).sum::<u64>() >= 5 << 20);
        db.check_counts().unwrap();
    }

    #[test]
    #[should_panic(expected = "a store, as it was closed: the segment at")]
    fn a_store_is_looked_at_when_it_is_closed() {
        let (db, table) = filled();
        let log = &table.engine().log;
        let (extent, ..) = log.segments().into_iter().find(|(_, segment, _)| segment.sealed).unwrap();
        log.add_obsolete(u64::from(extent) * log.extent_bytes(), 4_096);
        drop(table);
        let _closed = db.close();
    }
}
