//! When rows are brought together, and when not.

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, FastTierOptions};

use super::*;
use crate::db::fixture::options;
use crate::scheduler::reorder_queue::{MARKS, MARKS_MAX, ReorderQueue, SAMPLE};
use crate::{Db, Options, Schema, Table, Type, Value};

const KEYS: u64 = 400;

fn open(sim: &CrashSim, options: Options) -> Db {
    Db::open_at(FastTier::simulated(sim), options, Clock::manual(1_000)).unwrap()
}

fn sim() -> CrashSim {
    CrashSim::new(CrashModel::Pages, 32 << 20)
}

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// A table with rows of 2 KiB, written in the order of `places`.
fn table_of(db: &Db, places: impl Iterator<Item = u64>) -> Table {
    let schema = Schema::new().field("n", Type::U64).field("wide", Type::FixedBytes(2000));
    let table = db.create_table("t", schema).unwrap();
    for i in places {
        table.put(&key(i), &[("n", Value::UInt(i)), ("wide", Value::Bytes(&[i as u8; 2000]))]).unwrap();
    }
    table
}

fn in_order() -> impl Iterator<Item = u64> {
    0..KEYS
}

/// Neighbours are written far from one another.
fn apart() -> impl Iterator<Item = u64> {
    (0..KEYS).map(|i| i * 37 % KEYS)
}

fn check(table: &Table, reverse: bool) {
    let scan = if reverse { table.scan().reverse() } else { table.scan() };
    let mut seen = 0;
    for row in scan {
        let row = row.unwrap();
        let i = if reverse { KEYS - 1 - seen } else { seen };
        assert_eq!(row.key(), key(i));
        assert_eq!(row.get("n").unwrap(), Value::UInt(i));
        assert_eq!(row.get("wide").unwrap(), Value::Bytes(&[i as u8; 2000]));
        seen += 1;
    }
    assert_eq!(seen, KEYS);
}

fn lie_apart(table: &Table) -> bool {
    let (engine, mut batch) = (table.engine(), ScanBatch::new());
    let guard = engine.log.pin();
    let all = usize::try_from(KEYS).unwrap();
    table.shared().levels.next_young_rows(&mut Cursor::default(), all, &guard, &mut batch);
    are_out_of_order(batch.slots())
}

/// Scans and rounds of consolidation until nothing more is copied; how many rows were in all.
fn reorder_all(db: &Db, table: &Table, reverse: bool) -> u64 {
    let mut before = u64::MAX;
    while before != db.metrics().rows_reordered {
        before = db.metrics().rows_reordered;
        check(table, reverse);
        db.collect().unwrap();
    }
    before
}

#[test]
fn rows_scanned_again_and_again_come_together() {
    for reverse in [false, true] {
        let sim = sim();
        let db = open(&sim, options());
        let table = table_of(&db, apart());
        check(&table, reverse);
        db.collect().unwrap();
        assert_eq!(db.metrics().rows_reordered, 0, "once is not enough");
        let reordered = reorder_all(&db, &table, reverse);
        assert!((KEYS * 3 / 4..KEYS * 2).contains(&reordered), "{reordered} rows were copied");
        assert!(!lie_apart(&table), "the rows lie apart still");
        // What was copied is what is recovered, by a walk and by what is saved.
        let killed = open(&CrashSim::from_image(&sim.process_kill()), options());
        check(&killed.table("t").unwrap(), false);
        drop(table);
        db.close().unwrap();
        let db = open(&sim, options());
        check(&db.table("t").unwrap(), false);
    }
}

#[test]
fn a_range_takes_along_those_that_follow_it() {
    const ROWS_ALL: u64 = 3_000;
    let sim = sim();
    let db = open(&sim, options());
    let table = table_of(&db, (0..ROWS_ALL).map(|i| i * 37 % ROWS_ALL));
    for _ in 0..3 {
        assert_eq!(table.scan().limit(200).count(), 200);
        db.collect().unwrap();
    }
    let wanted = (ROWS * RANGES_EACH) as u64;
    let reordered = db.metrics().rows_reordered;
    assert!((wanted / 2..=wanted).contains(&reordered), "{reordered} rows were copied for a scan of 200");
}

#[test]
fn rows_that_lie_together_stay() {
    let sim = sim();
    let db = open(&sim, options());
    let table = table_of(&db, in_order());
    assert_eq!(reorder_all(&db, &table, false), 0);
}

#[test]
fn it_can_be_switched_off() {
    for off in [Options { reorder: false, ..options() }, Options { merge: false, ..options() }] {
        let sim = sim();
        let db = open(&sim, off);
        let table = table_of(&db, apart());
        (0..4).for_each(|_| {
            check(&table, false);
            db.collect().unwrap();
        });
        assert_eq!(db.metrics().rows_reordered, 0);
    }
}

#[test]
fn a_store_short_of_space_keeps_it_for_writers() {
    let sim = sim();
    let db = open(&sim, options());
    let table = table_of(&db, apart());
    let mut fill = KEYS;
    while table.engine().has_room_to_reorder() {
        table.put(&key(fill), &[("n", Value::UInt(fill)), ("wide", Value::Bytes(&[0; 2000]))]).unwrap();
        fill += 1;
    }
    for _ in 0..4 {
        table.scan().for_each(|_, _| Ok(true)).unwrap();
        db.collect().unwrap();
    }
    assert_eq!(db.metrics().rows_reordered, 0);
}

const ROWS_ALL: u64 = 10_000;

/// A store of half as much room again as its rows take, which lie apart.
fn tight() -> (Db, Table) {
    let tier = FastTierOptions { bytes_max: 32 << 20, reserve_bytes: 32 << 20 };
    let tight =
        Options { segment_bytes: 256 << 10, fast_tier_bytes_max: 32 << 20, background: false, ..options() };
    let db = Db::open_on(FastTier::dram(&tier).unwrap(), tight).unwrap();
    let table = table_of(&db, (0..ROWS_ALL).map(|i| i * 3_677 % ROWS_ALL));
    (db, table)
}

/// Scans all of it so many times; after each scan a gc cycle, for what it is needed.
fn scan_all(table: &Table, times: u32) {
    for _ in 0..times {
        for first in (0..ROWS_ALL).step_by(200) {
            assert_eq!(table.scan().from(&key(first)).limit(200).count(), 200);
            table.engine().run_gc(table.engine().need()).unwrap();
        }
    }
}

/// The originals lie all over the log, where gc alone would leave them.
#[test]
fn a_store_of_half_as_much_room_again_comes_into_order() {
    let (db, table) = tight();
    let engine = table.engine();
    scan_all(&table, 40);
    let (mut batch, mut apart) = (ScanBatch::new(), 0);
    for first in (0..ROWS_ALL).step_by(100) {
        let mut cursor = Cursor::at(&key(first));
        table.shared().levels.next_young_rows(&mut cursor, 100, &engine.log.pin(), &mut batch);
        apart += u64::from(are_out_of_order(batch.slots()));
    }
    let (reordered, copied) = (db.metrics().rows_reordered, db.metrics().bytes_collected);
    assert!(
        apart <= 10,
        "{apart} of 100 ranges lie apart; {reordered} rows were copied, and {copied} bytes by gc"
    );
    assert!(
        reordered < 3 * ROWS_ALL && copied < 4 * 2_100 * ROWS_ALL,
        "{reordered} rows, {copied} bytes by gc"
    );
}

/// gc frees nothing while a snapshot pins what it empties: emptying more would take the room from writers.
#[test]
fn a_snapshot_ends_the_making_of_room() {
    let (db, table) = tight();
    let engine = table.engine();
    let snapshot = db.snapshot();
    table.put(&key(0), &[("n", Value::UInt(0)), ("wide", Value::Bytes(&[0; 2000]))]).unwrap();
    scan_all(&table, 20);
    let (room, pinned) = (engine.room(), engine.gc.waiting_to_free().len());
    assert!(!room.is_low() && pinned <= 8, "{room:?}, {pinned} segments wait for the snapshot");
    drop(snapshot);
    scan_all(&table, 20);
    assert!(db.metrics().rows_reordered > ROWS_ALL * 9 / 10, "it goes on afterwards");
}

#[test]
fn a_snapshot_sees_what_it_saw() {
    let sim = sim();
    let db = open(&sim, options());
    let table = table_of(&db, apart());
    let snapshot = db.snapshot();
    table.put(&key(7), &[("n", Value::UInt(0)), ("wide", Value::Bytes(&[0; 2000]))]).unwrap();
    let look = || {
        let mut sum = 0;
        for row in snapshot.scan(&table) {
            let Value::UInt(n) = row.unwrap().get("n").unwrap() else { panic!("n is a number") };
            sum += n;
        }
        sum
    };
    let before = look();
    assert_eq!(before, KEYS * (KEYS - 1) / 2);
    for _ in 0..6 {
        table.scan().for_each(|_, _| Ok(true)).unwrap();
        db.collect().unwrap();
        assert_eq!(look(), before);
    }
    assert!(db.metrics().rows_reordered > KEYS / 2);
}

#[test]
fn marks_are_forgotten_before_all_rows_seem_known() {
    let reordering = ReorderQueue::new(true);
    let slots: Vec<Slot> =
        (1..=(MARKS as u64)).map(|i| Slot::from(LogSlot::new(Tag::Row, i * 1024, 1000))).collect();
    let mut scanned = 0;
    while reordering.marks.load(Ordering::Relaxed) < MARKS_MAX && scanned < 64 {
        let part = &slots[scanned * slots.len() / 64..(scanned + 1) * slots.len() / 64];
        reordering.remember(part);
        assert!(reordering.remember(part), "they were there a moment ago");
        scanned += 1;
    }
    let marks = reordering.marks.load(Ordering::Relaxed) as u64;
    let share = slots.len() as u64 * scanned as u64 / 64 / SAMPLE;
    assert!((share / 2..=share * 2).contains(&marks), "{marks} of {share} that were to be");
    reordering.marks.store(MARKS_MAX, Ordering::Relaxed);
    reordering.forget_if_full();
    assert!(!reordering.remember(&slots[..1024]));
}

/// Rows too large to count lie between small ones: the small ones come together, and the large ones stay where they are.
#[test]
fn large_rows_in_between_are_not_copied_for_ever() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, options());
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    for i in apart() {
        let bytes = if i % 2 == 0 { 500 } else { 10_000 };
        flat.put(&key(i), &[("value", Value::Bytes(&vec![1; bytes]))]).unwrap();
    }
    let scan = |times: usize| {
        for _ in 0..times {
            assert_eq!(flat.scan().count() as u64, KEYS);
            db.collect().unwrap();
        }
        db.metrics().rows_reordered
    };
    let copied = scan(30);
    assert!(copied > 0);
    assert_eq!(scan(30), copied, "they are copied again");
}
