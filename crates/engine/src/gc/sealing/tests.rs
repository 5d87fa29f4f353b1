//! Keys that are sealed while others read and write them.

use std::cell::Cell;
use std::collections::BTreeMap;

use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier, Random};
use hedgerow_row::key::read_key;
use hedgerow_sim::eventually;

use crate::db::fixture::options;
use crate::db::lower::tests::{Twins, alike};
use crate::sync::atomic::Ordering;
use crate::{
    Batch, Capacity, Db, Durability, ErrorKind, Expiry, Options, Result, Schema, Table, Type, Value, row,
};

/// One of the twins seals, merges groups of any number, and has rows move or be collected in between.
fn seal_and_more(twins: &mut Twins, step: u64, sealed: &Cell<u64>) {
    let engine = twins.tables[0].engine();
    sealed.set(sealed.get() + engine.seal_now(step as usize % 3));
    if step % 5 < 2 {
        engine.merge_in_l0_now(0..2);
    }
    match step % 4 {
        0 => engine.move_now(),
        1 => drop(twins.dbs[0].as_ref().unwrap().collect().unwrap()),
        2 => {
            engine.move_now();
            sealed.set(sealed.get() + engine.seal_now(0));
        }
        _ => {}
    }
    assert!(engine.log.leaf_extents() <= 8, "those of groups that were merged are free again");
}

#[test]
fn a_store_whose_keys_are_sealed_answers_as_one_whose_are_not() {
    let sealed = Cell::new(0);
    alike(200..216, false, |twins, step| seal_and_more(twins, step, &sealed));
    alike(216..232, true, |twins, step| seal_and_more(twins, step, &sealed));
    assert!(sealed.get() > 500, "{} keys were sealed", sealed.get());
}

#[test]
fn so_it_does_when_it_is_opened_again() {
    let sealed = Cell::new(0);
    for expires in [false, true] {
        let seeds = if expires { 240..250 } else { 250..260 };
        alike(seeds, expires, |twins, step| {
            seal_and_more(twins, step, &sealed);
            if step.is_multiple_of(3) {
                twins.reopen(step.is_multiple_of(2));
            }
        });
    }
    assert!(sealed.get() > 300, "{} keys were sealed", sealed.get());
}

const INDEX_BYTES: u64 = 1 << 20;

fn small_index() -> Options {
    Options {
        durability: Durability::Process,
        segment_bytes: 256 << 10,
        index_bytes_max: INDEX_BYTES,
        capacity: Capacity::None,
        ..options()
    }
}

fn open(sim: &CrashSim, options: Options) -> Db {
    Db::open_at(FastTier::simulated(sim), options, Clock::manual(1_000)).unwrap()
}

fn table_of(db: &Db) -> Table {
    let schema = Schema::new().field("n", Type::U64).nullable("text", Type::String);
    db.create_table("t", schema).unwrap()
}

/// Does it; when the index is full, after what a thread would have done.
fn with_room<R>(db: &Db, write: impl Fn() -> Result<R>) -> R {
    for _ in 0..20 {
        match write() {
            Err(error) if error.kind() == ErrorKind::Full => drop(db.collect().unwrap()),
            done => return done.unwrap(),
        }
    }
    write().unwrap()
}

/// Writes of all kinds over ten times as many keys as the index has room for, against a model.
#[test]
fn a_store_has_more_keys_than_its_index() {
    const KEYS: u64 = 120_000;
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, small_index());
    let table = table_of(&db);
    let (mut model, mut random) = (BTreeMap::new(), Random::from_seed(3));
    for step in 0..400_000u64 {
        let key = if step < KEYS { step } else { random.below(KEYS) };
        match random.below(if step < KEYS { 1 } else { 10 }) {
            0..=2 => {
                with_room(&db, || table.put(&key, &row! { n: step }));
                model.insert(key, step);
            }
            3 => {
                with_room(&db, || table.update(&key, &row! { n: step }));
                model.insert(key, step);
            }
            4 => assert_eq!(with_room(&db, || table.delete(&key)), model.remove(&key).is_some(), "{key}"),
            _ => {
                let found = table.get_field(&key, "n").unwrap().and_then(|n| n.borrow().as_u64());
                assert_eq!(found, model.get(&key).copied(), "{key}");
            }
        }
        if step % 100_000 == 99_999 {
            db.collect().unwrap();
            let engine = table.engine();
            // What is copied, and what has one older record less, is young again before it is sealed.
            assert!(engine.arena.bytes() <= INDEX_BYTES / 4 * 5, "{}", engine.arena.bytes());
            let levels = &table.shared().levels;
            assert!(levels.sealed_rows() > KEYS / 2);
            assert!(
                levels.filter_bytes() <= INDEX_BYTES / super::merging::FILTERS_SHARE,
                "{}",
                levels.filter_bytes()
            );
            assert_eq!(table.len(), model.len() as u64);
            let keys = |scan: crate::Scan| scan.map(|row| row.unwrap().key_as::<u64>().unwrap());
            assert!(keys(table.scan()).eq(model.keys().copied()));
            assert!(keys(table.scan().reverse()).eq(model.keys().rev().copied()));
            db.check_counts().unwrap();
        }
    }
    let image = sim.process_kill();
    drop(table);
    db.close().unwrap();
    for (is_saved, threads) in [(true, 1), (true, 2), (false, 2), (false, 1)] {
        let killed = CrashSim::from_image(&image);
        let options = Options { recovery_threads: threads, ..small_index() };
        let db = open(if is_saved { &sim } else { &killed }, options);
        let table = db.table("t").unwrap();
        assert_eq!(db.metrics().index_was_saved, is_saved);
        let bytes = table.engine().arena.bytes();
        assert!(bytes <= INDEX_BYTES / 4 * 3, "what is more is sealed as it is built: {bytes}");
        assert_eq!(table.len(), model.len() as u64);
        for key in 0..KEYS {
            let found = table.get_field(&key, "n").unwrap().and_then(|n| n.borrow().as_u64());
            assert_eq!(found, model.get(&key).copied(), "{key}");
        }
        db.check_counts().unwrap();
        drop(table);
        db.close().unwrap();
    }
}

/// What is deleted takes neither memory nor leaves nor log for good.
#[test]
fn a_store_of_sealed_keys_can_be_emptied() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim, small_index());
    let table = table_of(&db);
    for round in 0..3 {
        (0..40_000u64).for_each(|key| with_room(&db, || table.put(&key, &row! { n: key })));
        db.collect().unwrap();
        assert!(table.shared().levels.sealed_rows() > 20_000);
        (0..40_000u64).for_each(|key| assert!(with_room(&db, || table.delete(&key))));
        assert_eq!((table.len(), table.scan().count()), (0, 0));
        table.engine().seal_all_and_collect();
        let engine = table.engine();
        assert_eq!(engine.log.leaf_extents(), 0, "in round {round}");
        assert!(table.shared().levels.young_keys() < 2_000, "{}", table.shared().levels.young_keys());
        db.check_counts().unwrap();
    }
}

fn few_sealed() -> (CrashSim, Db, Table) {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim, small_index());
    let table = table_of(&db);
    (0..1_000u64).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
    assert_eq!(table.engine().seal_now(9), 1_000);
    (sim, db, table)
}

/// A leaf that decayed says nothing of its keys: neither that they are there nor that they are not. Opened again the store has them.
#[test]
fn a_damaged_leaf_hides_no_row_and_frees_none() {
    let (sim, _db, table) = few_sealed();
    let engine = table.engine();
    let place = table.shared().levels.groups().l0()[0].group.extents()[0].place();
    crate::tier::rot(&sim, place.at + 5 * 1024 + 700, 0x10);
    let kind_of = |key: u64| table.get_field(&key, "n").map(drop).map_err(|error| error.kind());
    let damaged: Vec<u64> = (0..1_000).filter(|key| kind_of(*key) == Err(ErrorKind::Corrupted)).collect();
    assert!((10..200).contains(&damaged.len()), "{} keys", damaged.len());
    let in_it = damaged[3];
    let told = |result: Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupted);
    told(table.update(&in_it, &row! { n: 1 }));
    told(table.scan().for_each(|_, _| Ok(true)));
    told(table.scan().reverse().for_each(|_, _| Ok(true)));
    table.put(&in_it, &row! { n: 77 }).unwrap();
    assert!(table.delete(&damaged[4]).unwrap());
    // Nothing of its segment is taken for obsolete.
    engine.seal_all_and_collect();
    let after = CrashSim::from_image(&sim.process_kill());
    let db = open(&after, small_index());
    let table = db.table("t").unwrap();
    for key in 0..1_000u64 {
        let found = table.get_field(&key, "n").unwrap().and_then(|n| n.borrow().as_u64());
        let expected = if key == in_it { Some(77) } else { Some(key).filter(|key| *key != damaged[4]) };
        assert_eq!(found, expected, "{key}");
    }
}

#[test]
fn a_table_that_is_cleared_or_dropped_gives_its_leaves_back() {
    let (_sim, db, table) = few_sealed();
    let engine = table.engine();
    let snapshot = db.snapshot();
    table.clear().unwrap();
    assert_eq!((table.len(), table.scan().count(), table.get(&7u64).unwrap().is_some()), (0, 0, false));
    drop(snapshot);
    engine.log.free_retired_leaves();
    assert_eq!(engine.log.leaf_extents(), 0);
    (0..500u64).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
    engine.seal_now(9);
    assert_eq!(table.len(), 500);
    db.drop_table("t").unwrap();
    engine.log.free_retired_leaves();
    assert_eq!(engine.log.leaf_extents(), 0);
    db.check_counts().unwrap();
}

/// What was written over is in the log still, and in each merge: none is made before some of it has gone.
#[test]
fn groups_are_not_merged_for_what_a_merge_would_keep() {
    let (_sim, _db, table) = few_sealed();
    (0..1_000u64).for_each(|key| table.put(&key, &row! { n: key + 1 }).unwrap());
    let (engine, levels) = (table.engine(), &table.shared().levels);
    let before = levels.groups();
    assert_eq!((levels.sealed_rows(), before.l0().len()), (0, 1));
    engine.merge_groups_where_wanted().unwrap();
    assert!(std::sync::Arc::ptr_eq(&before, &levels.groups()));
    engine.seal_all_and_collect();
    assert!(!levels.has_groups(), "it has gone");
}

/// A snapshot sees rows as they were, whether their keys were sealed before it or after.
#[test]
fn a_snapshot_sees_what_is_sealed_as_it_was() {
    let (_sim, db, table) = few_sealed();
    let before = db.snapshot();
    (0..300u64).for_each(|key| table.put(&key, &row! { n: key + 5_000 }).unwrap());
    (300..400u64).for_each(|key| assert!(table.delete(&key).unwrap()));
    let mut batch = Batch::new();
    for key in 400..500u64 {
        batch.update(&table, &key, &[("n", Value::UInt(key + 5_000))]).unwrap();
    }
    db.write(&batch).unwrap();
    table.engine().seal_now(0);
    let seen = |key: u64| {
        let n = before.get_field(&table, &key, "n").unwrap();
        n.and_then(|n| n.borrow().as_u64())
    };
    assert!((0..1_000).all(|key| seen(key) == Some(key)));
    assert_eq!(before.scan(&table).count(), 1_000);
    assert_eq!((table.scan().count(), table.len()), (900, 900));
    table.engine().seal_all_and_collect();
    assert!((0..1_000).all(|key| seen(key) == Some(key)));
    drop(before);
    table.engine().seal_all_and_collect();
    db.check_counts().unwrap();
}

/// Every row that is there is as likely as any other, wherever its key is.
#[test]
fn a_random_key_is_sealed_as_often_as_others() {
    let (_sim, _db, table) = few_sealed();
    // A third is young, some under tombstones, and entries are hidden.
    (0..200u64).for_each(|key| assert!(table.delete(&key).unwrap()));
    (800..1_000u64).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
    (1_000..1_200u64).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
    let (mut random, mut seen) = (Random::from_seed(5), BTreeMap::new());
    for _ in 0..30_000 {
        let key = table.random_key(&mut random).unwrap().unwrap();
        *seen.entry(read_key::<u64>(&key).unwrap()).or_insert(0u32) += 1;
    }
    assert!(seen.keys().all(|key| (200..1_200).contains(key)));
    for part in [200..500, 500..800, 800..1_000, 1_000..1_200] {
        let count = part.end - part.start;
        let mean =
            f64::from(part.map(|key| seen.get(&key).copied().unwrap_or(0)).sum::<u32>()) / count as f64;
        assert!((25.0..35.0).contains(&mean), "{mean} of 30");
    }
}

/// In both directions, from and to every place, in steps of every length.
#[test]
fn a_scan_meets_what_is_sealed_in_its_place() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim, small_index());
    let table = table_of(&db);
    let mut model = BTreeMap::new();
    let mut random = Random::from_seed(11);
    for round in 0..4 {
        for _ in 0..40 {
            let key = random.below(100);
            match random.below(4) {
                0 => drop((table.delete(&key).unwrap(), model.remove(&key))),
                _ => {
                    table.put(&key, &row! { n: key + round }).unwrap();
                    model.insert(key, key + round);
                }
            }
        }
        table.engine().seal_now(if round == 2 { 0 } else { 9 });
        table.engine().seal_all_and_collect();
        for from in (0..100u64).step_by(7) {
            for to in (from + 1..101).step_by(5) {
                let expected: Vec<u64> = model.range(from..to).map(|(key, _)| *key).collect();
                let keys = |scan: crate::Scan| -> Vec<u64> {
                    scan.map(|row| row.unwrap().key_as::<u64>().unwrap()).collect()
                };
                assert_eq!(keys(table.scan().range(from..to)), expected);
                let reversed: Vec<u64> = expected.iter().rev().copied().collect();
                assert_eq!(keys(table.scan().range(from..to).reverse()), reversed);
                let some = (to - from) as usize / 3 + 1;
                let first: Vec<u64> = expected.iter().take(some).copied().collect();
                assert_eq!(keys(table.scan().range(from..to).limit(some)), first);
                let after: Vec<u64> = model.range(from + 1..=to).map(|(key, _)| *key).collect();
                assert_eq!(keys(table.scan().after(&from).range(from..=to)), after);
            }
        }
        let mut seen = Vec::new();
        let key_of = |key: &[u8]| read_key::<u64>(key).unwrap();
        let guard = table.engine().log.pin();
        let visit = |key: &[u8], _| {
            seen.push(key_of(key));
            Ok(())
        };
        table.shared().levels.each_version(&guard, visit).unwrap();
        assert!(seen.windows(2).all(|two| two[0] < two[1]) && model.keys().all(|key| seen.contains(key)));
    }
}

/// A store with a place for sorted tables, and its clock.
fn store_with_clock() -> (Clock, Db, Table) {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (clock, tiers) = (Clock::manual(1_000), (FastTier::simulated(&sim), CapacityTier::simulated(&sim)));
    let options = Options { durability: Durability::Process, segment_bytes: 256 << 10, ..options() };
    let db = Db::open_at(tiers, options, clock.clone()).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::U64)).unwrap();
    (clock, db, table)
}

/// Who takes out what has expired looks for it in the young index alone.
#[test]
fn a_row_that_expires_is_not_sealed_and_goes() {
    let (clock, db, table) = store_with_clock();
    table.put_expiring(&1u64, &row! { n: 1u64 }, Expiry::at_unix_ms(2_000)).unwrap();
    table.put(&2u64, &row! { n: 2u64 }).unwrap();
    table.engine().seal_now(9);
    assert_eq!((table.len(), table.shared().levels.sealed_rows()), (2, 1));
    clock.advance_ms(5_000);
    db.collect().unwrap();
    assert_eq!((table.len(), table.expiring().rows), (1, 0));
    db.check_counts().unwrap();
}

/// Else it would stay in memory and in the log until its own segment is collected, which nothing obsolete calls for.
#[test]
fn a_tombstone_over_a_sealed_row_hides_nothing_once_that_is_freed() {
    let (_clock, db, table) = store_with_clock();
    let levels = &table.shared().levels;
    table.put(&1u64, &row! { n: 1u64 }).unwrap();
    table.engine().seal_now(9);
    table.engine().seal_all();
    assert!(table.delete(&1u64).unwrap());
    assert_eq!(levels.hiding_tombstones(), 1);
    db.collect().unwrap();
    assert_eq!(levels.hiding_tombstones(), 0);
    db.check_counts().unwrap();
}

/// A row is counted once: as one of a group, of the young index, or of sorted tables.
#[test]
fn a_sealed_row_that_is_written_over_or_moves_is_not_counted_twice() {
    let (_clock, db, table) = store_with_clock();
    let levels = &table.shared().levels;
    (0..10u64).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
    assert_eq!(table.engine().seal_now(9), 10);
    table.put(&0u64, &row! { n: 7u64 }).unwrap();
    assert!(table.delete(&1u64).unwrap());
    assert_eq!((table.len(), levels.sealed_rows()), (9, 8));
    table.engine().move_now();
    assert_eq!((table.scan().count(), levels.sealed_rows()), (9, 0));
    // Were too many taken off, these would make up for them.
    (10..20u64).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
    assert_eq!(table.engine().seal_now(9), levels.sealed_rows());
    db.check_counts().unwrap();
}

/// Whoever found his way to a leaf is not shown others in its place.
#[test]
fn leaves_of_merged_groups_stay_as_long_as_somebody_looks() {
    let (_clock, _db, table) = store_with_clock();
    let (engine, log) = (table.engine(), &table.engine().log);
    // Enough for extents of their own.
    for group in 0..2u64 {
        (0..6_000u64).for_each(|key| table.put(&(6_000 * group + key), &row! { n: key }).unwrap());
        assert_eq!(engine.seal_now(9), 6_000);
    }
    let guard = log.pin();
    engine.seal_now(0);
    assert_eq!(log.leaf_extents(), 3, "two that somebody may look at, and what they were merged to");
    drop(guard);
    log.free_retired_leaves();
    assert_eq!(log.leaf_extents(), 1);
}

/// What seals, merges, moves or collects may take as long as it likes: no call waits for it. And reads wait for no writer.
#[test]
fn calls_wait_for_nothing_that_goes_on_beside_them() {
    let (_clock, db, table) = store_with_clock();
    (0..100u64).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
    let engine = table.engine();
    engine.move_now();
    (50..100u64).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
    assert_eq!(engine.seal_now(9), 50);
    (90..100u64).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
    let gc = &engine.gc;
    let work = || {
        let steps = [&gc.sealing, &gc.seal_slice, &gc.merging_groups, &gc.moving, &gc.settling];
        let steps = steps.map(|of| of.lock());
        (steps, gc.lock.write(), engine.runs.hold_off_edits())
    };
    let read = || {
        let n_of = |key: u64| table.get_field(&key, "n").unwrap().map(|n| n.borrow().as_u64().unwrap());
        assert!((0..100).all(|key| n_of(key) == Some(key)), "below, sealed or young");
        assert_eq!((table.scan().count(), db.snapshot().scan(&table).count()), (100, 100));
    };
    let write = || {
        table.put(&1u64, &row! { n: 1u64 }).unwrap();
        table.update(&60u64, &row! { n: 60u64 }).unwrap();
        assert!(table.delete(&2u64).unwrap());
        let mut batch = Batch::new();
        batch.put(&table, &2u64, &row! { n: 2u64 }).unwrap();
        db.write(&batch).unwrap();
    };
    std::thread::scope(|scope| {
        let _work = work();
        let calls = scope.spawn(|| (write(), read()));
        eventually("calls return while others are at work", || calls.is_finished());
    });
    let snapshot = db.snapshot();
    std::thread::scope(|scope| {
        let _locked = (work(), engine.log.every_appender());
        let reads = scope.spawn(|| {
            let of_snapshot = |key: u64| snapshot.get(&table, &key).unwrap().is_some();
            assert!((0..100).all(|key| table.exists(&key).unwrap() && of_snapshot(key)));
            assert_eq!((table.scan().count(), snapshot.scan(&table).count()), (100, 100));
        });
        eventually("reads return while a writer is at work", || reads.is_finished());
    });
}

/// Each group is one more to be asked, where the filter does not know: where merging them does not keep up no more come.
#[test]
fn a_table_of_too_many_groups_gets_no_more_before_they_are_merged() {
    let (_sim, _db, table) = few_sealed();
    let (engine, levels) = (table.engine(), &table.shared().levels);
    for key in 1_001..1_000 + super::GROUPS_HELD_AT as u64 {
        table.put(&key, &row! { n: key }).unwrap();
        engine.seal_now(usize::MAX);
    }
    let mut keys = 2_000u64..;
    while levels.young_bytes() < INDEX_BYTES * 5 / 8 {
        keys.by_ref().take(100).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
    }
    let (groups, young) = (levels.groups().l0().len(), levels.young_keys());
    assert_eq!(groups, super::GROUPS_HELD_AT);
    engine.seal_if_wanted().unwrap();
    assert_eq!((levels.groups().l0().len(), levels.young_keys()), (groups, young));
    engine.merge_groups_where_wanted().unwrap();
    assert!(levels.groups().l0().is_empty());
    engine.seal_if_wanted().unwrap();
    assert!(levels.young_keys() < young / 2 && levels.groups().l0().len() == 1);
}

mod between_steps;
mod damage;
mod long_keys;
mod merged_rows;
mod merging;
mod pressure;
mod refusals;
mod small_tables;
