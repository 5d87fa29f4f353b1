//! Reading what is at hand, for a thread that serves many callers and must not wait for a disk on behalf of one.
//!
//! Such a thread says so for the time of a call ([`Db::at_hand_only`]). A read of a row that is not in memory then fails with
//! [`NotInMemory`](ErrorKind::NotInMemory), changes nothing, and leaves a list of the bytes it lacks. Another thread brings those
//! ([`Missing::bring`]), all of them at once; then the call is made again. A row under deltas may take that twice: where the row is
//! stands in the newest delta.
//!
//! Of rows below the log the blocks are lacked and brought; those are held until the call was made again ([`Missing::hold`]), and not only in memory that others may take away.
//!
//! Owns: looking whether rows of the log are at hand, and bringing what is not (`lacked.rs` has the lists). Promises: nothing of it costs more than a look at a word of the thread's own while no thread of the store has to wait for the disk;
//! that is found out by waiting (`disk_waits.rs`). Must not know who serves whom.

use std::sync::Arc;

use super::Db;
use super::disk_waits::{DiskWaits, bytes_to_ask_for, has_waited_lately};
use super::engine::Engine;
pub use super::lacked::AtHandOnly;
use super::lacked::{Lack, Places, hold_below, reads_at_hand_only, record_lack, take_lacked};
use crate::index::{LogSlot, Slot, Tag};
use crate::log::LogView;
use crate::log::format::RecordRef;
use crate::sst::BlockReads;
use crate::{Error, ErrorKind, Result};

/// What reads lacked that failed with [`NotInMemory`](ErrorKind::NotInMemory), to be [brought](Missing::bring) by another thread.
pub struct Missing {
    engine: Arc<Engine>,
    places: Places,
    below: Option<BlockReads>,
}

impl Missing {
    /// Has it read from the disk, all at once, and waits for none of it.
    pub fn ask(&self) {
        // What was freed since is read for nothing.
        self.engine.log.will_read(self.places.iter().copied());
        self.below.iter().for_each(BlockReads::ask);
    }

    /// Waits until it is in memory. What is of the log stays there as long as what is used stays; what is of sorted tables as long as this lives.
    pub fn bring(&mut self) {
        self.places.iter().for_each(|&(offset, bytes)| self.engine.log.tier().bring(offset, bytes));
        self.below.iter_mut().for_each(BlockReads::run);
    }

    /// Has the calling thread's reads find what was brought until it next asks [what was missing](Db::take_missing): for the call that lacked it, which so ends however little is kept
    /// in memory.
    pub fn hold(self) {
        if let Some(below) = self.below {
            hold_below(self.engine.disk_waits.store_id(), below);
        }
    }
}

impl Db {
    /// Has the reads of the calling thread, those of writes that look at their row included, fail with
    /// [`NotInMemory`](ErrorKind::NotInMemory) instead of waiting for the disk, until what is returned is dropped. For a thread that serves many: it lets another
    /// bring [what was missing](Db::take_missing), does something else, and makes the call again. It goes for reads of all stores; where
    /// several of these live, until the last is dropped.
    ///
    /// Best effort: where memory always sufficed so far nobody looks, and memory may be taken away between the look and the read.
    pub fn at_hand_only(&self) -> AtHandOnly {
        AtHandOnly::new()
    }

    /// What the calling thread's reads of this store have lacked since it last asked; `None` if nothing. Of very many only the latest.
    pub fn take_missing(&self) -> Option<Missing> {
        let store = self.engine.disk_waits.store_id();
        let (places, below) = take_lacked(store)?;
        Some(Missing { engine: Arc::clone(&self.engine), places, below })
    }
}

/// Whether the calling thread reads only what is at hand, where that may not be all.
#[inline]
pub(super) fn may_lack() -> bool {
    reads_at_hand_only() && has_waited_lately()
}

/// Fails if the thread reads only what is at hand and the row at `slot` is not.
#[inline]
pub(super) fn check_at_hand(log: LogView<'_>, waits: &DiskWaits, slot: Slot) -> Result<()> {
    check_all_at_hand(log, waits, [slot].into_iter())
}

/// The same for rows that will be read together: if one is not at hand, whatever any of them lacks is recorded.
#[inline]
pub(super) fn check_all_at_hand(
    log: LogView<'_>,
    waits: &DiskWaits,
    slots: impl Iterator<Item = Slot>,
) -> Result<()> {
    if may_lack() { look_at_hand(log, waits, slots) } else { Ok(()) }
}

#[cold]
fn look_at_hand(log: LogView<'_>, waits: &DiskWaits, slots: impl Iterator<Item = Slot>) -> Result<()> {
    let in_log = slots.filter(|slot| slot.tag() != Tag::Tombstone).filter_map(Slot::in_log);
    let lacking = in_log.filter(|&slot| lacks(log, waits, slot)).count();
    if lacking == 0 {
        return Ok(());
    }
    waits.count_refused(&log, lacking as u64);
    Err(Error::new(
        ErrorKind::NotInMemory,
        "the row is not in memory, and this thread does not wait for the disk",
    ))
}

/// Records what is missing of the records that `slot` leads to, as far down as they can be followed.
fn lacks(log: LogView<'_>, waits: &DiskWaits, slot: LogSlot) -> bool {
    let tier = log.tier();
    let mut record = RecordRef::from(slot);
    for _ in 0..=Slot::DEPTH_MAX {
        let bytes = bytes_to_ask_for(record);
        if !tier.is_in_memory(record.offset(), bytes) {
            record_lack(Lack { store: waits.store_id(), offset: record.offset(), bytes });
            return true;
        }
        let below = record.is_delta().then(|| log.peek_previous(record.offset()));
        let Some(below) = below.flatten() else { return false };
        record = below;
    }
    false
}

#[cfg(test)]
mod tests {
    use hedgerow_device::{Clock, FastTier, FastTierOptions};

    use super::super::lacked::LACKED_MAX;
    use super::*;
    use crate::db::fixture::{Scratch, options};
    use crate::{Batch, Expiry, Schema, Table, Type, Value, row};

    const ROWS: u64 = 2_000;

    fn key(n: u64) -> [u8; 8] {
        n.to_be_bytes()
    }

    /// A store in a file, of rows of a page each, a third of them with a delta over them, and none in memory. `None` where the file system
    /// keeps everything in memory.
    fn cold_store(dir: &Scratch) -> Option<(Db, Table)> {
        let tier = FastTier::open_file(&dir.at("fast"), &FastTierOptions::default(), true).unwrap();
        let db = Db::open_at(tier, options(), Clock::manual(1_000)).unwrap();
        let schema =
            Schema::new().field("n", Type::U64).field("text", Type::Bytes).nullable("mark", Type::U64);
        let table = db.create_table("rows", schema).unwrap();
        let text = [b'x'; 4000];
        (0..ROWS).for_each(|n| table.put(&key(n), &row! { n: n, text: &text[..] }).unwrap());
        (0..ROWS).step_by(3).for_each(|n| table.update(&key(n), &row! { n: n + ROWS }).map(drop).unwrap());
        make_cold(&db).then_some((db, table))
    }

    fn make_cold(db: &Db) -> bool {
        db.persist().unwrap();
        let tier = db.engine.log.tier();
        tier.evict(0, tier.bytes());
        // The thread has met one that was cold.
        db.engine.disk_waits.count_refused(&db.engine.log, 1);
        !tier.is_in_memory(0, tier.bytes())
    }

    fn number(n: u64) -> Value<'static> {
        Value::UInt(if n.is_multiple_of(3) { n + ROWS } else { n })
    }

    /// Repeats a call until nothing is missing; how often it was put off.
    fn brought<R>(db: &Db, call: impl Fn() -> Result<R>) -> (R, u32) {
        let mut put_off = 0;
        loop {
            let only = db.at_hand_only();
            let answer = call();
            drop(only);
            let missing = db.take_missing();
            match answer {
                Ok(answer) => return (answer, put_off),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotInMemory, "{error}"),
            }
            let mut missing = missing.expect("an error without a list");
            std::thread::scope(|scope| {
                scope.spawn(|| (missing.ask(), missing.bring()));
            });
            missing.hold();
            put_off += 1;
            assert!(put_off < 100, "what is brought is not there");
        }
    }

    #[test]
    fn what_is_missing_is_brought_and_then_read() {
        let dir = Scratch::new("at-hand");
        let Some((db, table)) = cold_store(&dir) else { return };
        let mut put_off = 0;
        for n in (0..ROWS).rev() {
            let (row, times) = brought(&db, || table.get(&key(n)));
            assert_eq!(row.unwrap().get("n").unwrap(), number(n));
            put_off += times;
        }
        assert!(put_off > 0, "everything was in memory");
        let keys: Vec<[u8; 8]> = (100..140).map(key).collect();
        let rows = put_off_once(&db, || table.multi_get(&keys));
        assert!(rows.into_iter().zip(100..).all(|(row, n)| row.unwrap().get("n").unwrap() == number(n)));
        let rows = put_off_once(&db, || table.scan().take(50).collect::<Result<Vec<_>>>());
        assert!(rows.iter().zip(0..).all(|(row, n)| row.get("n").unwrap() == number(n)));
    }

    /// Makes a call on a cold store until it is put off. It asks for all its rows before it looks whether they are there: where the thread
    /// has to wait for a processor in between, they may be.
    fn put_off_once<R>(db: &Db, call: impl Fn() -> Result<R>) -> R {
        for _ in 0..100 {
            assert!(make_cold(db));
            if let (answer, 1..) = brought(db, &call) {
                return answer;
            }
        }
        panic!("it was never put off");
    }

    /// Writes that look at their row change nothing while it is not there.
    #[test]
    fn a_write_is_made_once() {
        let dir = Scratch::new("at-hand-writes");
        let Some((db, table)) = cold_store(&dir) else { return };
        let mut put_off = 0;
        for n in 0..ROWS {
            let sequence = db.engine.log.last_sequence();
            let times = match n % 4 {
                0 => brought(&db, || table.increment(&key(n), "n", 1)).1,
                1 => brought(&db, || table.delete(&key(n))).1,
                2 => brought(&db, || table.put(&key(n), &row! { n: n })).1,
                _ => {
                    let batch = || {
                        let mut batch = Batch::new();
                        batch.update_expiring(
                            &table,
                            &key(n),
                            &row! { mark: 7 },
                            Expiry::at_unix_ms(10_000),
                        )?;
                        batch.put(&table, &key(n + ROWS), &row! { n: 8 })?;
                        db.write(batch)
                    };
                    brought(&db, batch).1
                }
            };
            let written = db.engine.log.last_sequence() - sequence;
            assert!(written <= if n % 4 == 3 { 3 } else { 1 }, "{written} records for row {n}");
            put_off += times;
        }
        assert!(put_off > 0, "everything was in memory");
        assert_eq!(table.get(&key(0)).unwrap().unwrap().get("n").unwrap(), Value::UInt(ROWS + 1));
        assert_eq!((table.get(&key(1)).unwrap().is_none(), table.len()), (true, ROWS - ROWS / 4 + ROWS / 4));
    }

    /// What is written over deltas counts their records as obsolete, and reads them for it.
    #[test]
    fn a_batch_looks_for_the_deltas_it_replaces() {
        let dir = Scratch::new("at-hand-batch");
        let Some((db, table)) = cold_store(&dir) else { return };
        let mut put_off = [0; 2];
        for n in (0..ROWS).step_by(3) {
            let is_put = n % 2 == 0;
            let (_, times) = brought(&db, || {
                let mut batch = Batch::new();
                match is_put {
                    true => batch.put(&table, &key(n), &row! { n: n })?,
                    false => batch.delete(&table, &key(n))?,
                }
                db.write(batch)
            });
            put_off[usize::from(is_put)] += times;
        }
        assert!(put_off.iter().all(|&times| times > 0), "{put_off:?}");
        db.check_counts().unwrap();
    }

    /// Each store gets what was lacked of it, and no more of it is kept than so much.
    #[test]
    fn what_is_missing_is_of_one_store() {
        let dir = Scratch::new("at-hand-stores");
        let open = |name: &str| {
            let tier = FastTier::open_file(&dir.at(name), &FastTierOptions::default(), true).unwrap();
            Db::open_at(tier, options(), Clock::manual(1_000)).unwrap()
        };
        let (a, b) = (open("a"), open("b"));
        let lack = |db: &Db, offset| {
            record_lack(Lack { store: db.engine.disk_waits.store_id(), offset, bytes: 64 });
        };
        lack(&a, 1);
        lack(&b, 2);
        lack(&a, 3);
        let taken = |db: &Db| db.take_missing().map(|missing| missing.places);
        assert_eq!(taken(&a), Some(vec![(1, 64), (3, 64)]));
        assert_eq!(taken(&a), None);
        assert_eq!(taken(&b), Some(vec![(2, 64)]));
        (0..3 * LACKED_MAX as u64).for_each(|offset| lack(&a, offset));
        lack(&b, 7);
        assert_eq!(taken(&b), Some(vec![(7, 64)]), "the latest is kept");
        assert_eq!(taken(&a).unwrap().last(), Some(&(3 * LACKED_MAX as u64 - 1, 64)));
    }

    /// The inner of two does not end the outer, and one that was ended early ends nothing when it is dropped.
    #[test]
    fn the_last_one_dropped_ends_it() {
        let dir = Scratch::new("at-hand-nested");
        let tier = FastTier::open_file(&dir.at("fast"), &FastTierOptions::default(), true).unwrap();
        let db = Db::open_at(tier, options(), Clock::manual(1_000)).unwrap();
        db.engine.disk_waits.count_refused(&db.engine.log, 1);
        let outer = db.at_hand_only();
        drop(db.at_hand_only());
        assert!(may_lack(), "the outer one lives");
        AtHandOnly::end_early();
        assert!(!may_lack());
        let later = db.at_hand_only();
        drop(outer);
        assert!(may_lack(), "it was ended before this one");
        drop(later);
        assert!(!may_lack());
    }

    /// What one thread said is nothing to another, and nothing once it is dropped.
    #[test]
    fn others_wait_as_ever() {
        let dir = Scratch::new("at-hand-others");
        let Some((db, table)) = cold_store(&dir) else { return };
        let only = db.at_hand_only();
        assert!((0..ROWS).any(|n| table.get(&key(n)).is_err()));
        std::thread::scope(|scope| {
            scope.spawn(|| (0..ROWS).for_each(|n| assert!(table.get(&key(n)).unwrap().is_some())));
        });
        drop(only);
        assert!(db.take_missing().is_some() && db.take_missing().is_none());
        assert!(make_cold(&db));
        (0..ROWS).for_each(|n| assert!(table.get(&key(n)).unwrap().is_some()));
    }
}
