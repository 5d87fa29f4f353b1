//! Whether the slots of an open store count what the log holds.
//!
//! Owns one invariant: for every key, the records of the log that are neither invalidated nor [dropped](super::super::gc)
//! are those of its version and as many more as its slot counts as older; and each record a slot leads to is among them. The
//! rule by which a tombstone may go rests on it (`docs/decisions/0004-tombstones.md`). Beside it another: a slot says
//! whether its row has an expiry, and the table counts the slots that do. Nobody may write meanwhile. Must not know how
//! the counts come about.

use std::collections::{HashMap, HashSet};

use super::super::Db;
use super::super::chain::Chain;
use super::super::engine::{Engine, TableShared};
use crate::cache::Cache;
use crate::epoch::Epoch;
use crate::index::{ScanBatch, Slot, Tag};
use crate::levels::Cursor;
use crate::log::{Log, LogView};
use crate::scheduler::gc_state::GcState;
use crate::{Error, Result};

/// Slots looked at together.
const STEP: usize = 4096;

/// What the log holds.
#[derive(Default)]
struct LogRecords {
    /// Records by table and key.
    records: HashMap<u32, HashMap<Vec<u8>, usize>>,
    places: HashSet<u64>,
}

impl Db {
    /// Compares the slots' older-version counts with the log, as [`hedgerow::inspect`](crate::inspect) does not: for tests, of a
    /// store without threads of its own. It walks the whole log.
    ///
    /// # Errors
    /// `Corrupted`, with the key that is counted wrong.
    #[doc(hidden)]
    pub fn check_counts(&self) -> Result<()> {
        let Engine { log, gc, cache, epoch, catalog, .. } = &*self.engine;
        let check = CountsCheck { log, gc, cache, epoch };
        let mut held = check.held()?;
        for table in catalog.all() {
            check.check_table(&table, &mut held)?;
        }
        Ok(())
    }
}

/// What is compared with what.
struct CountsCheck<'e> {
    log: &'e Log,
    gc: &'e GcState,
    cache: &'e Cache,
    epoch: &'e Epoch,
}

impl CountsCheck<'_> {
    fn held(&self) -> Result<LogRecords> {
        let mut held = LogRecords::default();
        for (extent, ..) in self.log.segments() {
            let dropped = self.gc.dropped_in(extent);
            let Some(mut walk) = self.log.walk(extent) else { continue };
            while let Some(record) = walk.next_record()? {
                held.places.insert(record.offset());
                if !dropped.contains(&record.offset()) {
                    let keys = held.records.entry(record.table()).or_default();
                    *keys.entry(record.key().to_vec()).or_default() += 1;
                }
            }
        }
        Ok(held)
    }

    fn check_table(&self, table: &TableShared, held: &mut LogRecords) -> Result<()> {
        let id = table.id.load(crate::sync::atomic::Ordering::Acquire);
        let mut keys = held.records.remove(&id).unwrap_or_default();
        let (mut mixed, mut expiring) = (0, 0);
        let guard = self.epoch.pin();
        each_slot(
            |cursor, batch| table.levels.next_rows(cursor, STEP, &guard, batch),
            |key, slot| {
                let slot = self.cache.log_slot(slot);
                mixed += u64::from(slot.tag() == Tag::Tombstone);
                expiring += u64::from(slot.expires());
                self.check_slot(
                    (table, key),
                    (slot, self.log.view(&guard)),
                    keys.remove(key).unwrap_or(0),
                    &held.places,
                )
            },
        )?;
        each_slot(
            |cursor, batch| table.levels.next_tombstones(cursor, STEP, &guard, batch),
            |key, slot| match slot.tag() {
                Tag::Tombstone => self.check_slot(
                    (table, key),
                    (slot, self.log.view(&guard)),
                    keys.remove(key).unwrap_or(0),
                    &held.places,
                ),
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
        (slot, log): (Slot, LogView<'_>),
        records: usize,
        places: &HashSet<u64>,
    ) -> Result<()> {
        let (version, word): (Vec<u64>, _) = match slot.tag() {
            Tag::Delta => {
                let chain = Chain::of(log, slot)?;
                let word = chain.records()?.find_map(|record| record.expires_at_ms());
                (chain.records()?.map(|record| record.offset()).collect(), word)
            }
            _ => (vec![slot.offset()], log.record(slot.offset())?.expires_at_ms()),
        };
        if slot.expires() != word.is_some_and(|at_ms| at_ms != 0) {
            return Err(wrong(table, key, &format!("has the expiry {word:?}, but {slot:?}")));
        }
        if version.len() != usize::from(slot.depth()) + 1 {
            return Err(wrong(table, key, &format!("has {} records in its chain: {slot:?}", version.len())));
        }
        if let Some(lost) = version.iter().find(|place| !places.contains(place)) {
            return Err(wrong(table, key, &format!("has a record at {lost}, in no segment: {slot:?}")));
        }
        let older = usize::from(slot.older_versions());
        if older < usize::from(Slot::OLDER_VERSIONS_SATURATED) && records != version.len() + older {
            return Err(wrong(table, key, &format!("has {records} records in the log, but {slot:?}")));
        }
        Ok(())
    }
}

/// Calls `visit` with all entries of a walk.
fn each_slot(
    next: impl Fn(&mut Cursor, &mut ScanBatch) -> bool,
    mut visit: impl FnMut(&[u8], Slot) -> Result<()>,
) -> Result<()> {
    let (mut batch, mut cursor) = (ScanBatch::default(), Cursor::default());
    loop {
        let more = next(&mut cursor, &mut batch);
        batch.iter().try_for_each(|(key, slot)| visit(key, slot))?;
        if !more {
            return Ok(());
        }
    }
}

fn wrong(table: &TableShared, key: &[u8], what: &str) -> Error {
    Error::corrupted(format!("the key {} of table {:?} {what}", key.escape_ascii(), table.name))
}
