//! What has expired goes, by the segment it lies in, and nothing else does, whatever happens meanwhile.

use std::collections::{BTreeMap, HashMap};

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Random};

use super::*;
use crate::db::fixture::options;
use crate::gc::victims::Need;
use crate::{Batch, Db, Expiry, Options, Schema, Table, Value};

fn open(sim: &CrashSim, now_ms: u64) -> (Db, Table, Clock) {
    let clock = Clock::manual(now_ms);
    let db = Db::open_at(FastTier::simulated(sim), options(), clock.clone()).unwrap();
    let table = db.table("t").unwrap_or_else(|_| db.create_table("t", Schema::flat()).unwrap());
    (db, table, clock)
}

fn put(table: &Table, n: u64, at_ms: Option<u64>) {
    let (key, bytes) = (n.to_be_bytes(), [n as u8; 100]);
    let fields = [("value", Value::Bytes(&bytes))];
    match at_ms {
        Some(at_ms) => table.put_expiring(&key, &fields, Expiry::at_unix_ms(at_ms)).unwrap(),
        None => table.put(&key, &fields).unwrap(),
    }
}

/// Looks through all segments in which something has expired, without a rest for others to follow.
fn sweep_by_time(table: &Table, clock: &Clock) -> usize {
    const LONG_MS: u64 = 10_000;
    let engine = table.engine();
    let due = engine.log.due(clock.now_ms() + LONG_MS);
    due.iter().map(|due| engine.sweep_segment(due.extent).removed).sum()
}

/// Rows, tombstones among them, and tombstones elsewhere.
fn entries(table: &Table) -> (u64, u64, u64) {
    let levels = &table.shared().levels;
    let among_rows = levels.tombstones_among_rows();
    (levels.rows() + among_rows, among_rows, levels.tombstones_apart())
}

#[test]
fn the_sweeper_forgets_tables_that_are_gone() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table, _) = open(&sim, 1_000);
    let mut positions = HashMap::new();
    for _ in 0..10 {
        put(&table, 1, Some(2_000));
        table.engine().sweep_all(&mut positions);
        assert_eq!(positions.len(), 1);
        table.clear().unwrap();
    }
    db.drop_table("t").unwrap();
    table.engine().sweep_all(&mut positions);
    assert!(positions.is_empty());
}

/// After a kill what was found becomes the whole past, where it had been durable before, too.
#[test]
fn the_sweeper_makes_the_first_sync() {
    for persisted in [false, true] {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let (db, table, _) = open(&sim, 1_000);
        put(&table, 1, None);
        if persisted {
            db.persist().unwrap();
        }
        let killed = CrashSim::from_image(&sim.process_kill());
        let (_db, table, _) = open(&killed, 2_000);
        let engine = table.engine();
        assert!(engine.log.awaits_first_sync());
        // It ends with its first look then.
        engine.scheduler.stop();
        engine.sweep_loop();
        assert!(!engine.log.awaits_first_sync(), "persisted: {persisted}");
    }
}

/// Threads that free room have ended by then: neither the sweeper, which closing waits for, nor a writer waits for what they would free.
#[test]
fn nobody_waits_for_room_in_a_store_that_is_being_closed() {
    let sim = CrashSim::new(CrashModel::Pages, 12 << 20);
    let clock = Clock::manual(1_000);
    let options = Options { background: true, ..options() };
    let db = Db::open_at(FastTier::simulated(&sim), options, clock.clone()).unwrap();
    let [table, expiring] = ["t", "expiring"].map(|name| db.create_table(name, Schema::flat()).unwrap());
    put(&expiring, 1, Some(5_000));
    let text = [7; 20];
    let full =
        (0..u64::MAX).find_map(|n| table.put(&n, &[("value", Value::Bytes(&text))]).err().map(|e| (n, e)));
    let (rows, full) = full.unwrap();
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    let engine = table.engine();
    engine.scheduler.stop();
    let began = std::time::Instant::now();
    let refused = (0..rows).find_map(|n| table.delete(&n).err()).expect("room for deletes ends, too");
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    assert!(engine.may_gain_space(), "there is nothing to wait for: the test proves nothing");
    let refused = table.put(&rows, &[("value", Value::Bytes(&text))]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    let _snapshot = db.snapshot();
    clock.advance_ms(5_000);
    engine.sweep_due();
    engine.sweep_all(&mut HashMap::new());
    assert_eq!(db.metrics().expired, 0, "there was room: the test proves nothing");
    drop(db.clone().close());
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
}

/// Nothing is left of them but the records: no tombstone in the log, no entry of the index. A kill brings none back.
#[test]
fn rows_that_were_written_once_go_without_a_tombstone() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let (db, table, clock) = open(&sim, 1_000);
    (0..20_000).for_each(|n| put(&table, n, Some(2_000 + n / 10)));
    (20_000..20_100).for_each(|n| put(&table, n, None));
    let written = db.metrics().sequence;
    assert_eq!(sweep_by_time(&table, &clock), 0, "nothing has expired");
    clock.step_to_ms(2_999);
    table.engine().sweep_due();
    assert_eq!((entries(&table), db.metrics().expired), ((10_100, 0, 0), 10_000));
    assert_eq!((table.expiring().rows, db.metrics().sequence), (10_000, written));
    db.check_counts().unwrap();

    let killed = CrashSim::from_image(&sim.process_kill());
    let (again, found, later) = open(&killed, 2_999);
    assert_eq!(sweep_by_time(&found, &later), 10_000);
    assert_eq!(entries(&found), (10_100, 0, 0));
    again.check_counts().unwrap();

    clock.step_to_ms(10_000);
    assert_eq!(sweep_by_time(&table, &clock), 10_000);
    (0..100).for_each(|_| assert!(db.collect().is_ok()));
    assert!(db.metrics().obsolete_bytes < 2 << 20, "{:?}", db.metrics());
    db.check_counts().unwrap();
    let (again, found, _) = open(&CrashSim::from_image(&sim.process_kill()), 10_000);
    assert_eq!(found.scan().count(), 100);
    again.check_counts().unwrap();
}

/// Their segments are freed and used again; no power cut meanwhile takes anything from what lives.
#[test]
fn a_power_cut_finds_what_lives() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let (db, table, clock) = open(&sim, 1_000);
    (0..20_000).for_each(|n| put(&table, n, Some(2_000)));
    (20_000..20_100).for_each(|n| put(&table, n, None));
    db.persist().unwrap();
    let persisted = sim.ops();
    clock.step_to_ms(2_000);
    assert_eq!(sweep_by_time(&table, &clock), 20_000);
    while db.collect().unwrap() > 0 {}
    (30_000..40_000).for_each(|n| put(&table, n, Some(2_500)));
    assert!(db.metrics().segments_collected > 1);
    let between = (sim.ops() - persisted) / 40;
    for op in (persisted..=sim.ops()).step_by(between.max(1) as usize) {
        for image in sim.images_at(op, op, 2) {
            let (again, found, clock) = open(&CrashSim::from_image(&image), 2_500);
            sweep_by_time(&found, &clock);
            assert_eq!((found.scan().count(), found.len()), (100, 100), "cut at {op} of {}", sim.ops());
            again.check_counts().unwrap();
        }
    }
}

/// Nobody is short of space, and most of what is there lives.
#[test]
fn segments_of_expired_rows_go_back_without_need() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let (_db, table, clock) = open(&sim, 1_000);
    let engine = table.engine();
    (0..20_000).for_each(|n| put(&table, n, Some(2_000)));
    (20_000..80_000).for_each(|n| put(&table, n, None));
    assert!(engine.choose(Need::Idle).victims.is_empty());
    clock.advance_ms(1_000);
    sweep_by_time(&table, &clock);
    let (empty, _) = engine.log.empty_segments();
    assert_eq!((empty.len(), engine.choose(Need::Idle).victims), (3, empty));
    assert_eq!(engine.run_gc(Need::Idle).unwrap(), 3);
    assert_eq!((table.len(), engine.gc.totals().1), (60_000, 0), "nothing was copied");
    // The sync before it makes every page that is written to fault again: not more often than once a second.
    (20_000..40_000).for_each(|n| put(&table, n, Some(2_100)));
    clock.advance_ms(100);
    sweep_by_time(&table, &clock);
    let (empty, _) = engine.log.empty_segments();
    assert!(empty.len() > 2 && engine.choose(Need::Idle).victims.is_empty());
    clock.advance_ms(900);
    assert_eq!(engine.choose(Need::Idle).victims, empty);
}

/// A row must not uncover what it was written over.
#[test]
fn an_older_record_does_not_come_back() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table, clock) = open(&sim, 1_000);
    (0..100).for_each(|n| put(&table, n, None));
    (0..50).for_each(|n| put(&table, n, Some(2_000)));
    (50..100).for_each(|n| assert!(table.expire(&u64::to_be_bytes(n), Expiry::at_unix_ms(2_000)).unwrap()));
    clock.step_to_ms(2_000);
    assert_eq!(sweep_by_time(&table, &clock), 100);
    assert_eq!(entries(&table), (0, 0, 100));
    db.check_counts().unwrap();
    let (again, found, _) = open(&CrashSim::from_image(&sim.process_kill()), 1_500);
    assert!(found.scan().next().is_none());
    again.check_counts().unwrap();
}

#[test]
fn a_segment_is_swept_when_it_is_worth_it_or_has_waited() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (_db, table, clock) = open(&sim, 1_000);
    let log = &table.engine().log;
    (0..1_000).for_each(|n| put(&table, n, Some(10_000 + 20 * n)));
    let due = |ms: u64| {
        clock.step_to_ms(ms);
        log.due(ms).first().map(|due| (due.few, due.since_ms))
    };
    let left_by_sweep = || {
        table.engine().sweep_due();
        table.len()
    };
    assert_eq!(due(9_999), None);
    assert_eq!(due(10_049), None, "others will follow");
    assert_eq!((due(10_050), left_by_sweep()), (Some((false, 10_000)), 997));
    assert_eq!(due(10_559), None, "there are not many yet");
    assert_eq!((due(10_560), left_by_sweep()), (Some((true, 10_060)), 971));
    assert_eq!((due(13_000), left_by_sweep()), (Some((false, 10_580)), 849));
    assert_eq!((due(40_000), left_by_sweep()), (Some((false, 13_020)), 0));
    assert_eq!(due(100_000), None);
}

/// A clock that goes back makes nothing come back, and what is written then expires in its time.
#[test]
fn a_clock_may_step() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table, clock) = open(&sim, 5_000);
    put(&table, 1, Some(6_000));
    put(&table, 2, Some(1 << 50));
    clock.step_to_ms(1 << 40);
    assert_eq!(sweep_by_time(&table, &clock), 1);
    clock.step_to_ms(5_000);
    put(&table, 3, Some(6_000));
    assert_eq!((table.len(), sweep_by_time(&table, &clock)), (2, 0));
    clock.step_to_ms(6_000);
    assert_eq!(sweep_by_time(&table, &clock), 1);
    assert_eq!(table.len(), 1);
    db.check_counts().unwrap();
}

#[test]
fn while_a_snapshot_is_held_rows_leave_a_tombstone() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table, clock) = open(&sim, 1_000);
    (0..10).for_each(|n| put(&table, n, Some(2_000)));
    let snapshot = db.snapshot();
    clock.step_to_ms(2_000);
    assert_eq!(sweep_by_time(&table, &clock), 10);
    assert_eq!((table.len(), entries(&table)), (0, (10, 10, 0)));
    clock.step_to_ms(1_999);
    assert_eq!(snapshot.scan(&table).count(), 10, "it sees what it saw");
    db.check_counts().unwrap();
}

/// What each key's expiry should be.
type Model = BTreeMap<u64, Option<u64>>;

fn change(db: &Db, table: &Table, now_ms: u64, random: &mut Random, model: &mut Model) {
    let n = random.below(60);
    let (key, at_ms) = (n.to_be_bytes(), now_ms + 1 + random.below(300));
    let there = model.contains_key(&n);
    let fields = [("value", Value::Bytes(b"short"))];
    let expiry = match random.below(9) {
        0 => Some(None),
        1 | 2 => Some(Some(at_ms)),
        3 | 4 => Some(model.get(&n).copied().flatten()),
        5 => there.then_some(Some(at_ms)),
        6 => there.then_some(None),
        7 => None,
        _ => Some(Some(at_ms)),
    };
    match (expiry, random.below(4)) {
        (Some(_), 0) if !there => return,
        (Some(at_ms), 0) => drop(table.expire(&key, Expiry::at_unix_ms(at_ms)).unwrap()),
        (Some(at_ms), 1) if there && model[&n] == at_ms => table.update(&key, &fields).map(drop).unwrap(),
        (Some(Some(at_ms)), 2) => {
            let mut batch = Batch::new();
            batch.put_expiring(table, &key, &fields, Expiry::at_unix_ms(at_ms)).unwrap();
            batch.put(table, &n.to_le_bytes(), &fields).unwrap();
            batch.delete(table, &n.to_le_bytes()).unwrap();
            db.write(batch).unwrap();
        }
        (Some(at_ms), _) => put(table, n, at_ms),
        (None, _) => drop(table.delete(&key).unwrap()),
    }
    // 0 is the same in any order of its bytes.
    match (expiry, n) {
        (Some(expiry), _) if n != 0 => model.insert(n, expiry),
        _ => {
            table.delete(&key).unwrap();
            model.remove(&n)
        }
    };
}

fn check(db: &Db, table: &Table, model: &Model, what: &str) {
    let keys: Vec<u64> =
        table.scan().map(|row| u64::from_be_bytes(row.unwrap().key().try_into().unwrap())).collect();
    assert!(keys.iter().eq(model.keys()), "{what}: {keys:?}, not {model:?}");
    for (n, &at_ms) in model {
        let found = table.read(&n.to_be_bytes(), |row| Ok(row.expires_at_ms())).unwrap();
        assert_eq!(found, Some(at_ms), "{what}: {n}");
    }
    db.check_counts().unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// After a sweep by the segments just those rows are in the index that live, through updates, merges, collection, and kills.
#[test]
fn the_index_holds_what_lives() {
    for seed in 0..12 {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let (db, table, clock) = open(&sim, 1_000);
        let (mut random, mut model, mut now_ms) = (Random::from_seed(seed), Model::new(), 1_000);
        for step in 0..3_000 {
            change(&db, &table, now_ms, &mut random, &mut model);
            now_ms += random.below(5);
            clock.step_to_ms(now_ms);
            model.retain(|_, at_ms| at_ms.is_none_or(|at_ms| at_ms > now_ms));
            if random.below(40) == 0 {
                sweep_by_time(&table, &clock);
                let what = format!("seed {seed}, step {step}");
                assert_eq!(table.len(), model.len() as u64, "{what}");
                check(&db, &table, &model, &what);
            }
            if random.below(100) == 0 {
                table.scan().for_each(|_, _| Ok(true)).unwrap();
                db.collect().unwrap();
            }
            if random.below(500) == 0 {
                let (again, found, clock) = open(&CrashSim::from_image(&sim.process_kill()), now_ms);
                check(&again, &found, &model, &format!("seed {seed}, killed at {step}"));
                sweep_by_time(&found, &clock);
                assert_eq!(found.len(), model.len() as u64);
            }
        }
        assert!(db.metrics().expired > 100);
    }
}

/// Writers, batches, snapshots, gc and the sweeper at once: what has no expiry stays, the counts are right.
#[test]
fn rows_go_while_others_come() {
    let sim = CrashSim::new(CrashModel::Pages, 128 << 20);
    let (db, table, clock) = open(&sim, 1_000);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (db, table, clock, stop) = (&db, &table, &clock, &stop);
        let writers = [1, 2].map(|seed| {
            scope.spawn(move || {
                let mut random = Random::from_seed(seed);
                for step in 0..20_000u64 {
                    let n = random.below(500) * 2 + seed % 2;
                    match random.below(4) {
                        0 => put(table, n, None),
                        1 => {
                            let (mut batch, key) = (Batch::new(), n.to_be_bytes());
                            let fields = [("value", Value::Bytes(b"batch"))];
                            batch.update(table, &key, &fields).unwrap();
                            batch
                                .put_expiring(
                                    table,
                                    &(n + 2).to_be_bytes(),
                                    &fields,
                                    Expiry::at_unix_ms(1_001 + step / 10),
                                )
                                .unwrap();
                            db.write(batch).unwrap();
                        }
                        _ => put(table, n, Some(1_001 + step / 10 + random.below(20))),
                    }
                    clock.step_to_ms(clock.now_ms().max(1_000 + step / 10));
                }
            })
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                sweep_by_time(table, clock);
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(db.snapshot());
                db.collect().unwrap();
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    db.check_counts().unwrap();
    (0..1_002).for_each(|n| put(&table, n, if n % 2 == 0 { None } else { Some(4_000) }));
    clock.step_to_ms(4_000);
    sweep_by_time(&table, &clock);
    assert_eq!((table.len(), table.expiring().rows), (501, 0));
    db.check_counts().unwrap();
}
