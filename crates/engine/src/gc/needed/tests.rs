//! Snapshots beside gc: what they see stays, and what none sees goes.

use std::collections::BTreeMap;

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Random};

use crate::db::fixture::options;
use crate::{Db, ErrorKind, Schema, Snapshot, Table, Type, Value};

const FIELDS: usize = 3;

fn open(bytes: u64) -> (Db, Table) {
    let (_, db, table) = open_on(bytes);
    (db, table)
}

fn open_on(bytes: u64) -> (CrashSim, Db, Table) {
    let sim = CrashSim::new(CrashModel::Pages, bytes);
    let db = Db::open_at(FastTier::simulated(&sim), options(), Clock::manual(1_000)).unwrap();
    let schema = (0..FIELDS).fold(Schema::new(), |schema, i| schema.field(format!("f{i}"), Type::Bytes));
    let table = db.create_table("rows", schema).unwrap();
    (sim, db, table)
}

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// A value of a field of `bytes` bytes, that says which it is.
fn value(n: u64, bytes: usize) -> Vec<u8> {
    n.to_le_bytes().iter().copied().cycle().take(bytes).collect()
}

fn put(table: &Table, i: u64, n: u64, bytes: usize) -> crate::Result<()> {
    let value = value(n, bytes);
    let names: [String; FIELDS] = std::array::from_fn(|field| format!("f{field}"));
    let fields: Vec<_> = names.iter().map(|name| (name.as_str(), Value::Bytes(&value))).collect();
    table.put(&key(i), &fields)
}

/// Puts of rows of 10 KB to a store of 64 MiB, over a snapshot, until it is full: how many.
fn puts_until_full(gc: bool) -> (u64, Db) {
    let (db, table) = open(64 << 20);
    (0..3_000).for_each(|i| put(&table, i, i, 3_300).unwrap());
    (0..300).for_each(|i| put(&table, i * 10, i, 3_300).unwrap());
    let _snapshot = db.snapshot();
    for n in 0.. {
        if gc && n % 20 == 0 {
            db.collect().unwrap();
        }
        if let Err(error) = put(&table, n * 7 % 3_000, n, 3_300) {
            assert_eq!(error.kind(), ErrorKind::Full);
            return (n, db);
        }
    }
    unreachable!("a store of 64 MiB is never full")
}

/// A long snapshot costs what it keeps, and not what gc copies for nothing.
#[test]
fn gc_takes_no_room_from_writers_under_a_long_snapshot() {
    let (without, _) = puts_until_full(false);
    let (with, db) = puts_until_full(true);
    assert!(with * 100 >= without * 96, "{with} puts with gc, {without} without");
    drop(db);
}

/// What was replaced before a snapshot was taken is no reason to wait for it.
#[test]
fn what_was_obsolete_before_a_snapshot_is_freed_under_it() {
    let (db, table) = open(64 << 20);
    (0..2_000).for_each(|i| put(&table, i, i, 3_300).unwrap());
    (0..2_000).filter(|i| i % 2 == 0).for_each(|i| put(&table, i, i + 1, 3_300).unwrap());
    let snapshot = db.snapshot();
    put(&table, 1, 1, 3_300).unwrap();
    let mut freed = 0;
    (0..20).for_each(|_| freed += db.collect().unwrap());
    assert!(freed >= 5, "{freed} segments of ten megabytes that nobody sees");
    for i in 0..2_000 {
        let row = snapshot.get(&table, &key(i)).unwrap().unwrap();
        let n = if i % 2 == 0 { i + 1 } else { i };
        assert_eq!(row.get("f0").unwrap(), Value::Bytes(&value(n, 3_300)));
    }
}

/// Fills the store, half of it replaced before the snapshot that is returned.
fn half_replaced() -> (CrashSim, Db, Table, Snapshot) {
    let (sim, db, table) = open_on(64 << 20);
    (0..2_000).for_each(|i| put(&table, i, i, 3_300).unwrap());
    (0..1_000).for_each(|i| put(&table, i, i + 1, 3_300).unwrap());
    let snapshot = db.snapshot();
    (sim, db, table, snapshot)
}

/// A row that changes all the time has a version in every segment, and many above the one that the snapshot sees.
#[test]
fn a_hot_row_does_not_keep_what_nobody_sees() {
    let (_sim, db, table) = open_on(64 << 20);
    for i in 0..2_000 {
        put(&table, i, i, 3_300).unwrap();
        if i % 20 == 0 {
            put(&table, 5_000, i, 10).unwrap();
        }
    }
    (0..1_000).for_each(|i| put(&table, i, i + 1, 3_300).unwrap());
    let snapshot = db.snapshot();
    (0..200).for_each(|n| put(&table, 5_000, n, 10).unwrap());
    let freed: usize = (0..20).map(|_| db.collect().unwrap()).sum();
    assert!(freed >= 8, "{freed} segments of ten that nobody sees");
    assert_eq!(
        snapshot.get(&table, &key(5_000)).unwrap().unwrap().get("f0").unwrap(),
        Value::Bytes(&value(1_980, 10))
    );
}

/// Rows newer than the snapshot that are only copied are on nobody's way.
#[test]
fn rows_written_since_a_snapshot_are_copied_and_need_not_wait() {
    let (_sim, db, table) = open_on(64 << 20);
    let other = db.create_table("others", Schema::new().field("f0", Type::Bytes)).unwrap();
    put(&table, 0, 0, 10).unwrap();
    let _snapshot = db.snapshot();
    for i in 0..1_000 {
        put(&table, i, i, 3_300).unwrap();
        other.put(&key(i), &[("f0", Value::Bytes(&value(i, 9_900)))]).unwrap();
    }
    other.clear().unwrap();
    let freed: usize = (0..20).map(|_| db.collect().unwrap()).sum();
    assert!(freed >= 10, "{freed} segments, of twenty that are half empty");
}

/// A version that cannot be read costs nothing but its own segment, also where a walk comes by it.
#[test]
fn a_corrupted_version_gives_up_no_other_segment() {
    let (sim, db, table, snapshot) = half_replaced();
    // Of a row with versions in many segments, one is corrupted that a walk comes by.
    let hot = 5_000;
    let mut places = Vec::new();
    for n in 0..60 {
        put(&table, hot, n, 10).unwrap();
        (0..20).for_each(|i| put(&table, 1_000 + (n * 20 + i) % 1_000, n, 3_300).unwrap());
        places.push(place(&table, hot));
    }
    crate::tier::rot(&sim, places[30] + 8, 0x10);
    let collect = || (0..20).filter_map(|_| db.collect().ok()).sum::<usize>();
    assert!(collect() >= 8, "what was obsolete before the snapshot");
    drop(snapshot);
    assert!(collect() >= 8, "what the snapshot saw");
    assert!(db.metrics().segments_quarantined <= 1, "{:?}", db.metrics());
}

fn place(table: &Table, i: u64) -> u64 {
    let guard = table.engine().log.pin();
    table.shared().levels.locate(&key(i), &guard).unwrap().log_offset()
}

/// A snapshot that sees a row by its deltas needs the records below the newest of them, too.
#[test]
fn the_row_under_the_deltas_that_a_snapshot_sees_stays() {
    let (db, table) = open(40 << 20);
    (0..200).for_each(|i| put(&table, i, i, 3_300).unwrap());
    // The first segment holds nothing but rows that are to lie under deltas. Nothing merges them: no round of consolidation comes.
    let replaced = value(1_000, 100);
    for i in 0..200 {
        table.update(&key(i), &[("f1", Value::Bytes(&replaced))]).unwrap();
    }
    let snapshot = db.snapshot();
    let mut n = 2_000;
    for round in 0..40 {
        for i in 0..200 {
            n += 1;
            if put(&table, i, n, 3_300).is_err() {
                assert!(round > 4, "the store is full in round {round}");
                break;
            }
        }
        db.collect().unwrap();
    }
    for i in 0..200 {
        let row = snapshot.get(&table, &key(i)).unwrap().unwrap();
        assert_eq!(row.get("f0").unwrap(), Value::Bytes(&value(i, 3_300)), "row {i}");
        assert_eq!(row.get("f1").unwrap(), Value::Bytes(&replaced), "row {i}");
    }
}

/// Snapshots that are taken one after the other, each before the last is dropped, do not keep gc from freeing what none of them sees.
#[test]
fn short_snapshots_without_end_do_not_fill_the_store() {
    let (db, table) = open(64 << 20);
    (0..3_000).for_each(|i| put(&table, i, i, 3_300).unwrap());
    let mut random = Random::from_seed(7);
    let mut snapshot = db.snapshot();
    for n in 0..40_000 {
        if n % 300 == 0 {
            let next = db.snapshot();
            snapshot = next;
        }
        let i = random.below(3_000);
        if put(&table, i, n, 3_300).is_err() {
            // No thread makes room here.
            db.collect().unwrap();
            put(&table, i, n, 3_300).unwrap_or_else(|error| panic!("after {n} puts: {error}"));
        } else if n % 40 == 0 {
            db.collect().unwrap();
        }
    }
    drop(snapshot);
}

/// What a snapshot was taken of: by key, the number in each field.
type Rows = BTreeMap<u64, [u64; FIELDS]>;

fn check(table: &Table, snapshot: &Snapshot, rows: &Rows, bytes: usize) {
    for i in 0..64 {
        let row = snapshot.get(table, &key(i)).unwrap();
        assert_eq!(row.is_some(), rows.contains_key(&i), "row {i}");
        let Some((row, numbers)) = row.as_ref().zip(rows.get(&i)) else { continue };
        for (field, n) in numbers.iter().enumerate() {
            assert_eq!(
                row.get(format!("f{field}").as_str()).unwrap(),
                Value::Bytes(&value(*n, bytes)),
                "row {i}, field {field}"
            );
        }
    }
}

/// Rows that are put, updated by deltas and deleted, snapshots held for longer and for shorter, and gc all the time, with its
/// share for victims that wait used up, and not: each snapshot sees what it saw.
#[test]
fn every_snapshot_sees_what_it_saw() {
    for seed in 0..6 {
        let bytes = 4_000;
        let (db, table) = open(24 << 20);
        let (mut random, mut rows) = (Random::from_seed(seed), Rows::new());
        let mut held: Vec<(Snapshot, Rows)> = Vec::new();
        let (mut freed, mut refused) = (0, 0);
        for n in 0..12_000u64 {
            let i = random.below(64);
            let done = match random.below(10) {
                0 => table.delete(&key(i)).map(|_| rows.remove(&i)).map(|_| ()),
                1..4 => put(&table, i, n, bytes).map(|()| rows.insert(i, [n; FIELDS])).map(|_| ()),
                _ if rows.contains_key(&i) => {
                    let field = random.below(FIELDS as u64) as usize;
                    let name = format!("f{field}");
                    let update = table.update(&key(i), &[(name.as_str(), Value::Bytes(&value(n, bytes)))]);
                    update.map(|_| rows.entry(i).or_default()[field] = n)
                }
                _ => Ok(()),
            };
            if let Err(error) = done {
                assert_eq!(error.kind(), ErrorKind::Full);
                refused += 1;
                held.clear();
            }
            if random.below(100) == 0 && held.len() < 4 {
                held.push((db.snapshot(), rows.clone()));
            }
            if random.below(300) == 0 && !held.is_empty() {
                held.swap_remove(random.below(held.len() as u64) as usize);
            }
            if n % 16 == 0 {
                freed += db.collect().unwrap();
            }
            if n % 400 == 0 {
                held.iter().for_each(|(snapshot, rows)| check(&table, snapshot, rows, bytes));
                db.check_counts().unwrap();
            }
        }
        assert!(freed > 20, "seed {seed}: {freed} segments freed, {refused} writes refused");
    }
}
