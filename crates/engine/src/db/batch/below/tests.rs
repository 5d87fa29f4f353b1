//! Batches over rows of sorted tables. That nobody waits for the capacity tier with an appender locked is looked at in all of them (`log/appender.rs`).

use std::sync::Arc;

use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier, Fault, FileCall, Refusal};

use crate::db::batch::{Attempt, Batch};
use crate::db::fixture::options;
use crate::db::lower::SeenBelow;
use crate::runs::merging::MergeJob;
use crate::sst::{Compression, SstKey};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{
    Db, ErrorKind, Expiry, Key, Options, OwnedValue, Result, Schema, Table, Type, Value, limits, row,
};

fn open(sim: &CrashSim) -> Db {
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    let options =
        Options { delta_chain_max: 3, compression: Compression::None, cache_bytes: 1 << 20, ..options() };
    Db::open_at(tiers, options, Clock::manual(1_000)).unwrap()
}

fn schema() -> Schema {
    Schema::new().field("n", Type::I64).nullable("m", Type::I64).nullable("pad", Type::Bytes)
}

/// A store with `rows` rows in sorted tables, each with so many bytes.
fn loaded(rows: u64, pad_bytes: usize) -> (CrashSim, Db, Table) {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim);
    let table = db.create_table("t", schema()).unwrap();
    load(&table, rows, pad_bytes).unwrap();
    (sim, db, table)
}

fn load(table: &Table, rows: u64, pad_bytes: usize) -> Result<()> {
    let pad = vec![7; pad_bytes];
    table.load(|loader| (0..rows).try_for_each(|n| loader.push(&n, &row! { n: n as i64, pad: &pad[..] })))
}

/// One of each that has to see its row.
fn all_kinds(table: &Table) -> Batch {
    let mut batch = Batch::new();
    batch.increment(table, &1u64, "n", 100).unwrap();
    batch.compare_and_set(table, &2u64, "n", Value::Int(2), Value::Int(200)).unwrap();
    batch.update_existing(table, &3u64, &row! { m: 300 }).unwrap();
    batch.require_version(table, &4u64, table.version(&4u64).unwrap()).unwrap();
    batch.expire(table, &5u64, Expiry::at_unix_ms(9_000)).unwrap();
    batch.update_expiring(table, &6u64, &row! { m: 600 }, Expiry::at_unix_ms(9_000)).unwrap();
    batch.update(table, &7u64, &row! { m: 700 }).unwrap();
    batch.delete(table, &8u64).unwrap();
    batch.put(table, &9u64, &row! { n: 900 }).unwrap();
    batch.increment(table, &1_000_000u64, "m", 1).unwrap();
    batch
}

fn field(table: &Table, n: u64, name: &str) -> Option<i64> {
    match table.get_field(&n, name).unwrap()? {
        OwnedValue::Int(n) => Some(n),
        _ => Some(-1),
    }
}

#[test]
fn each_kind_of_part_sees_its_row() {
    let (_sim, db, table) = loaded(10, 0);
    db.write(all_kinds(&table)).unwrap();
    let found = [1, 2, 7, 9].map(|n| field(&table, n, "n"));
    assert_eq!(found, [Some(101), Some(200), Some(7), Some(900)]);
    assert_eq!([3, 6, 7].map(|n| field(&table, n, "m")), [Some(300), Some(600), Some(700)]);
    assert_eq!(field(&table, 1_000_000, "m"), Some(1));
    assert!(!table.exists(&8u64).unwrap());
    let expires = |n: u64| table.get(&n).unwrap().unwrap().expires_at().is_some();
    assert_eq!([5, 6, 7].map(expires), [true, false, false]);
    db.check_counts().unwrap();
}

/// What cannot be read fails the batch, by its part, with nothing written; and nobody reads what need not be seen.
#[test]
fn what_cannot_be_read_fails_all_of_the_batch() {
    let (sim, db, table) = loaded(10, 0);
    let fault = Fault { after: 0, sticky: true, refusal: Refusal::Io };
    // With nothing in the cache of blocks.
    drop((table, db));
    let db = open(&sim);
    let table = db.table("t").unwrap();
    let mut blind = Batch::new();
    blind.update(&table, &7u64, &row! { m: 1 }).unwrap();
    blind.delete(&table, &8u64).unwrap();
    blind.put(&table, &9u64, &row! { n: 1 }).unwrap();
    let mut seen = Batch::new();
    seen.put(&table, &0u64, &row! { n: 77 }).unwrap();
    seen.increment(&table, &1u64, "n", 100).unwrap();
    sim.fail_file_calls(FileCall::Read, fault);
    db.write(&blind).unwrap();
    assert_eq!(db.write(&seen).unwrap_err().kind(), ErrorKind::Io);
    sim.clear_faults();
    assert_eq!((field(&table, 0, "n"), field(&table, 1, "n")), (Some(0), Some(1)), "nothing is written");
    db.write(&seen).unwrap();
    assert_eq!((field(&table, 0, "n"), field(&table, 1, "n")), (Some(77), Some(101)));
}

/// What was seen counts only as long as nothing has changed: an attempt with anything older writes nothing, and says what it lacks.
#[test]
fn an_attempt_that_lacks_something_writes_nothing() {
    let (_sim, db, table) = loaded(10, 0);
    let engine = &db.engine;
    let mut batch = Batch::new();
    batch.put(&table, &0u64, &row! { n: 77 }).unwrap();
    batch.increment(&table, &1u64, "n", 100).unwrap();
    let key = SstKey::new(table.shared().id.load(Ordering::Relaxed), 1u64.key_bytes().as_ref());
    let seen = |keys: &[SstKey]| {
        let runs = engine.runs.current();
        Arc::new(SeenBelow::read((0, &runs), keys.to_vec(), 1 << 20).unwrap())
    };
    let lacked = |seen| match engine.try_batch(&batch, None, seen).unwrap() {
        Attempt::Unseen(keys) => keys.len(),
        Attempt::Done(..) | Attempt::NoSpace(..) => panic!("it was written"),
    };
    assert_eq!(lacked(None), 0, "nobody looked before");
    assert_eq!(lacked(Some(seen(&[]))), 1);
    let older = seen(std::slice::from_ref(&key));
    engine.runs.raise_generation();
    assert_eq!(lacked(Some(older)), 1);
    assert_eq!(field(&table, 0, "n"), Some(0), "nothing is written");
    let written = engine.try_batch(&batch, None, Some(seen(&[key]))).unwrap();
    assert!(matches!(written, Attempt::Done(..)));
    assert_eq!((field(&table, 0, "n"), field(&table, 1, "n")), (Some(77), Some(101)));
}

/// A merge drops a row that has expired, and others write deltas over its key without a look then: what was seen of it before would take them away.
#[test]
fn a_row_that_was_seen_and_has_expired_takes_away_no_delta() {
    let (sim, clock) = (CrashSim::new(CrashModel::Pages, 64 << 20), Clock::manual(1_000));
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let options = Options { fast_tier_bytes_max: 32 << 20, ..options() };
    let db = Db::open_at(tiers, options, clock.clone()).unwrap();
    let (table, engine) = (db.create_table("t", schema()).unwrap(), &db.engine);
    // The filters go on saying that there may be something of the key.
    table.put(&1u64, &row! { n: 1 }).unwrap();
    engine.move_now();
    table.put_expiring(&1u64, &row! { n: 2 }, Expiry::at_unix_ms(1_500)).unwrap();
    engine.move_now();
    clock.advance_ms(1_000);
    let key = SstKey::new(table.shared().id.load(Ordering::Relaxed), 1u64.key_bytes().as_ref());
    let runs = Arc::clone(&engine.runs.current());
    let seen = Arc::new(SeenBelow::read((0, &runs), vec![key], 1 << 20).unwrap());
    let mut merge =
        MergeJob { runs: vec![runs.runs()[0].number], from: Vec::new(), upto: Some(vec![0xff; 16]) };
    engine.runs.merge_slice(&engine.log, &mut merge, &engine.tables_for_merge()).unwrap();
    assert_eq!(engine.runs.current().files()[1].counts().tombstones, 1, "in the place of the row");
    table.update(&1u64, &row! { pad: b"new" }).unwrap();
    assert!(table.get(&1u64).unwrap().is_some());
    let mut batch = Batch::new();
    batch.increment(&table, &1u64, "m", 7).unwrap();
    assert!(matches!(engine.try_batch(&batch, None, Some(seen)).unwrap(), Attempt::Unseen(_)));
    db.write(batch).unwrap();
    let row = table.get(&1u64).unwrap().unwrap();
    assert_eq!((row.get_as::<i64>("m").unwrap(), row.get_as::<&[u8]>("pad").unwrap()), (7, &b"new"[..]));
}

/// Rows that nobody could tell would have to be seen: too many bytes of blind deltas over one to fold them.
#[test]
fn what_was_not_foreseen_is_read_for_the_next_attempt() {
    let (_sim, db, table) = loaded(10, 0);
    for name in ["a", "b", "c", "d", "e"] {
        table.add_field(name, Type::Bytes).unwrap();
    }
    let long = [7; 60_000];
    for name in ["a", "b", "c", "d", "e"] {
        let mut batch = Batch::new();
        for n in [3u64, 4, 5] {
            batch.update(&table, &n, &[(name, Value::Bytes(&long))]).unwrap();
        }
        db.write(batch).unwrap();
    }
    for n in [3u64, 4, 5] {
        let row = table.get(&n).unwrap().unwrap();
        assert_eq!(row.get_as::<i64>("n").unwrap(), n as i64);
        assert!(["a", "b", "c", "d", "e"].iter().all(|name| row.get_as::<&[u8]>(name).unwrap() == long));
    }
}

/// Blocks that several rows lie in count once, and hardly more are read than may be held.
#[test]
fn what_a_batch_sees_is_bounded() {
    let read = |rows: u64, pad_bytes| {
        let (_sim, db, table) = loaded(rows, pad_bytes);
        let id = table.shared().id.load(Ordering::Relaxed);
        let keys = (0..rows).map(|n| SstKey::new(id, n.key_bytes().as_ref())).collect();
        let runs = db.engine.runs.current();
        let seen = SeenBelow::read((0, &runs), keys, 1 << 20).map(drop);
        (seen, runs.files().iter().map(|sst| sst.blocks_read()).sum::<u32>())
    };
    let (refused, blocks) = read(400, 6_000);
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.message().contains("the limit is 1048576"), "{refused}");
    assert!((120..160).contains(&blocks), "{blocks} blocks of 8 KiB were read");
    read(100, 6_000).0.unwrap();
    read(2_000, 100).0.unwrap();
}

/// A batch adds to two rows that a load makes alike: they stay so, whatever loads and clears come between its look and its writing.
#[test]
fn batches_beside_loads_see_one_content() {
    let (_sim, db, table) = loaded(2, 0);
    let done = AtomicBool::new(false);
    let alike = |db: &Db| {
        let snapshot = db.snapshot();
        let found = [0u64, 1].map(|n| snapshot.get_field(&table, &n, "m").unwrap());
        // To a snapshot from before it, a table that was cleared or loaded is empty.
        if let [Some(one), Some(other)] = found {
            assert_eq!(one, other);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..60u64 {
                match round % 5 {
                    0 => table.clear().unwrap(),
                    _ => load(&table, 2, 100 * round as usize).unwrap(),
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let mut batch = Batch::new();
            for n in [0u64, 1] {
                batch.increment(&table, &n, "m", 1).unwrap();
            }
            db.write(batch).unwrap();
            alike(&db);
        }
    });
    alike(&db);
    db.check_counts().unwrap();
}

/// Of a table with a row as long as may be, an update looks at its row, alone and in a batch: it may be that one.
#[test]
fn what_would_make_a_row_too_long_is_refused() {
    let (_sim, db, table) = loaded(0, 0);
    table.add_field("more", Type::Bytes).unwrap();
    let (long, more) = (vec![1; limits::ROW_BYTES_MAX - 10_000], [2; 20_000]);
    table
        .load(|loader| {
            loader.push(&1u64, &row! { n: 1, pad: &long[..] })?;
            loader.push(&2u64, &row! { n: 2 })
        })
        .unwrap();
    let refused = table.update(&1u64, &row! { more: &more[..] }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.message().contains(&limits::ROW_BYTES_MAX.to_string()), "{refused}");
    let batch = |n: u64| {
        let mut batch = Batch::new();
        batch.update(&table, &3u64, &row! { n: 3 }).unwrap();
        batch.update(&table, &n, &row! { more: &more[..] }).unwrap();
        db.write(batch)
    };
    let refused = batch(1).unwrap_err();
    assert_eq!((refused.kind(), refused.failed_write().unwrap().position), (ErrorKind::Invalid, 1));
    assert!(!table.exists(&3u64).unwrap());
    batch(2).unwrap();
    table.update(&2u64, &row! { m: 5 }).unwrap();
    assert_eq!((field(&table, 2, "n"), field(&table, 2, "m")), (Some(2), Some(5)));
    assert_eq!(table.get_field(&2u64, "more").unwrap().unwrap().borrow().as_bytes(), Some(&more[..]));
}
