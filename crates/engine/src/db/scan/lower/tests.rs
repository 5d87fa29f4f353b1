//! Scans over rows that were loaded and written since, against a model.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier, Random};

use crate::db::fixture::options;
use crate::db::{Db, Scan, Snapshot, Table};
use crate::sst::Compression;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{ErrorKind, Options, Result, Row, Schema, Type, row};

/// The number and the length of the pad of each row.
type Model = BTreeMap<u64, (u64, usize)>;

const KEYS: u64 = 400;

fn store() -> (CrashSim, Db) {
    store_by(Clock::system())
}

fn store_by(clock: Clock) -> (CrashSim, Db) {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let options = Options { compression: Compression::None, ..options() };
    let db = Db::open_at((FastTier::simulated(&sim), CapacityTier::simulated(&sim)), options, clock).unwrap();
    (sim, db)
}

fn table(db: &Db, name: &str) -> Table {
    db.create_table(name, Schema::new().field("n", Type::U64).nullable("pad", Type::Bytes)).unwrap()
}

/// Replaces all by rows at some of the keys; beside them are some that have expired.
fn load(table: &Table, random: &mut Random) -> Model {
    let (mut model, pad) = (Model::new(), [7; 9_000]);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let loaded = table.load(|loader| {
        for key in 0..KEYS {
            let (n, bytes) = (random.below(1000), [0, 20, 9_000][random.below(3) as usize]);
            match random.below(8) {
                0 | 1 => {}
                2 => loader.push_expiring(&key, &row! { n: n }, long_ago)?,
                _ => {
                    loader.push(&key, &row! { n: n, pad: &pad[..bytes] })?;
                    model.insert(key, (n, bytes));
                }
            }
        }
        Ok(())
    });
    loaded.unwrap();
    model
}

fn write(table: &Table, model: &mut Model, random: &mut Random) {
    let (key, n) = (random.below(KEYS), random.below(1000));
    match random.below(6) {
        0 | 1 => {
            table.delete(&key).unwrap();
            model.remove(&key);
        }
        2 => {
            table.put(&key, &row! { n: n }).unwrap();
            model.insert(key, (n, 0));
        }
        3 => {
            let pad = vec![1; n as usize];
            table.update(&key, &row! { pad: &pad }).unwrap();
            model.entry(key).or_default().1 = n as usize;
        }
        _ => {
            table.update(&key, &row! { n: n }).unwrap();
            model.entry(key).or_default().0 = n;
        }
    }
}

fn read(row: &Row) -> (u64, (u64, usize)) {
    let pad: Option<Vec<u8>> = row.get_as("pad").unwrap();
    (row.key_as().unwrap(), (row.get_as("n").unwrap(), pad.map_or(0, |pad| pad.len())))
}

/// Scans some part of the table, one way or the other, in one of the ways that there are to run a scan.
fn check(scan: Scan, model: &Model, random: &mut Random) {
    let [from, to] = [random.below(KEYS + 9), random.below(KEYS + 9)];
    let (from, to) = if random.below(3) == 0 { (0, KEYS) } else { (from.min(to), from.max(to)) };
    let limit = [usize::MAX, random.below(90) as usize][random.below(2) as usize];
    let mut expected: Vec<_> = model.range(from..to).map(|(&key, &row)| (key, row)).collect();
    let mut scan = scan.range(from..to).limit(limit);
    if random.below(2) == 0 {
        scan = scan.reverse();
        expected.reverse();
    }
    expected.truncate(limit);
    let mut found = Vec::new();
    match random.below(2) {
        0 => found.extend(scan.map(|row| read(&row.unwrap()))),
        _ => scan
            .for_each(|key, row| {
                assert_eq!(key, row.key());
                found.push(read(&row.to_row()?));
                Ok(true)
            })
            .unwrap(),
    }
    assert_eq!(found, expected, "of {from}..{to}, at most {limit}");
}

#[test]
fn scans_are_as_the_model_says() {
    for seed in 0..12 {
        let mut random = Random::from_seed(seed);
        let (_sim, db) = store();
        let (table, other) = (table(&db, "t"), table(&db, "u"));
        load(&other, &mut random);
        let mut model = load(&table, &mut random);
        let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
        for round in 0..120 {
            for _ in 0..random.below(20) {
                write(&table, &mut model, &mut random);
            }
            check(table.scan(), &model, &mut random);
            match random.below(12) {
                0 => snapshots.push((db.snapshot(), model.clone())),
                1 => drop(snapshots.pop()),
                2 => drop(db.collect().unwrap()),
                // What is older sees the table empty.
                3 if round == 60 => {
                    model = load(&table, &mut random);
                    snapshots.iter_mut().for_each(|(_, model)| model.clear());
                }
                _ => {}
            }
            for (snapshot, model) in &snapshots {
                check(snapshot.scan(&table), model, &mut random);
            }
            assert_eq!(table.is_empty(), model.is_empty());
            assert!(table.len() >= model.len() as u64);
        }
    }
}

/// All that was loaded is deleted: the table is empty, whatever the sorted tables count.
#[test]
fn a_table_is_empty_once_all_is_deleted() {
    let (_sim, db) = store();
    let table = table(&db, "t");
    let model = load(&table, &mut Random::from_seed(1));
    assert!(!table.is_empty());
    for key in model.keys() {
        assert!(table.delete(key).unwrap());
    }
    assert!(table.is_empty() && table.scan().next().is_none());
    table.update(&7, &row! { n: 7 }).unwrap();
    assert!(!table.is_empty());
}

/// What counts is another in the middle of a scan: it goes on with that.
#[test]
fn a_scan_goes_on_over_what_was_loaded_meanwhile() {
    for reverse in [false, true] {
        let (_sim, db) = store();
        let table = table(&db, "t");
        let fill = |n: u64, keys: std::ops::Range<u64>| {
            table
                .load(|loader| keys.into_iter().try_for_each(|key| loader.push(&key, &row! { n: n })))
                .unwrap();
        };
        fill(1, 0..1000);
        let mut seen = Vec::new();
        let scan = if reverse { table.scan().reverse() } else { table.scan() };
        for row in scan {
            let (key, (n, _)) = read(&row.unwrap());
            if seen.len() == 500 {
                fill(2, 0..1000);
            }
            seen.push((key, n));
        }
        if reverse {
            seen.iter_mut().for_each(|(key, _)| *key = 999 - *key);
        }
        assert!(seen.iter().map(|(key, _)| *key).eq(0..1000), "each key once");
        let first = seen.iter().take_while(|(_, n)| *n == 1).count();
        assert!((501..800).contains(&first), "a step is at most 256 rows: {first}");
        assert!(seen[first..].iter().all(|(_, n)| *n == 2));
        let mut scan = table.scan();
        assert!(scan.next().is_some());
        table.clear().unwrap();
        assert!(scan.count() < 256, "what was cleared is gone but for the step");
    }
}

/// The rows before a damaged block come before its error, and then nothing.
#[test]
fn the_rows_before_a_damaged_block_come_before_its_error() {
    let (sim, db) = store();
    let table = table(&db, "t");
    let pad = [7; 900];
    table
        .load(|loader| (0..200u64).try_for_each(|key| loader.push(&key, &row! { n: key, pad: &pad })))
        .unwrap();
    table.put(&300, &row! { n: 300 }).unwrap();
    let name = sim.process_kill().file_names().into_iter().find(|name| name.ends_with(".sst")).unwrap();
    sim.corrupt_file(&name, 20 * 4096 + 50, 1);
    for reverse in [false, true] {
        let scan = if reverse { table.scan().reverse() } else { table.scan() };
        let mut found: Vec<Result<Row>> = scan.collect();
        assert_eq!(found.pop().unwrap().unwrap_err().kind(), ErrorKind::Corrupted);
        let keys: Vec<u64> = found.into_iter().map(|row| read(&row.unwrap()).0).collect();
        assert!(keys.len() > 20, "{keys:?}");
        match reverse {
            false => assert!(keys.iter().copied().eq(0..keys.len() as u64), "{keys:?}"),
            true => {
                assert!(keys[0] == 300 && keys[1..].iter().copied().eq((0..200).rev().take(keys.len() - 1)))
            }
        }
    }
}

/// What a step brings together was so at one moment: a row of the index is not among rows that were cleared before it was written.
#[test]
fn a_step_is_of_one_moment() {
    // By a clock that stands still no step lasts too long.
    let (_sim, db) = store_by(Clock::manual(1_000));
    let table = table(&db, "t");
    let scans = AtomicU64::new(0);
    // Has whoever scans come by what there is now; not for ever, if it failed.
    let let_scan = || {
        let enough = scans.load(Ordering::Acquire) + 2;
        (0..100_000)
            .take_while(|_| scans.load(Ordering::Acquire) < enough)
            .for_each(|_| std::thread::yield_now());
    };
    let (mut loaded, mut written) = (0, 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..100 {
                table
                    .load(|loader| (0..20u64).try_for_each(|key| loader.push(&key, &row! { n: 1 })))
                    .unwrap();
                let_scan();
                table.clear().unwrap();
                table.put(&10, &row! { n: 2 }).unwrap();
                let_scan();
                table.clear().unwrap();
            }
        });
        while !writer.is_finished() {
            for reverse in [false, true] {
                let scan = if reverse { table.scan().reverse() } else { table.scan() };
                scans.fetch_add(1, Ordering::Release);
                let rows: Vec<u64> = scan.limit(20).map(|row| read(&row.unwrap()).1.0).collect();
                match rows.as_slice() {
                    [] => {}
                    [2] => written += 1,
                    ones => {
                        assert_eq!(ones, [1; 20]);
                        loaded += 1;
                    }
                }
            }
        }
    });
    assert!(loaded > 0 && written > 0, "{loaded} {written}");
}

/// A scan for one row takes in more and more keys at a time while it finds none.
#[test]
fn a_scan_for_few_rows_passes_deleted_ones_in_few_steps() {
    let (_sim, db) = store();
    let table = table(&db, "t");
    table.load(|loader| (0..1_000u64).try_for_each(|key| loader.push(&key, &row! { n: key }))).unwrap();
    (0..990u64).for_each(|key| assert!(table.delete(&key).unwrap()));
    assert!(!table.is_empty());
    for (limit, steps_max) in [(1, 14), (3, 14)] {
        let (mut scan, mut steps, mut keys) = (table.scan().limit(limit), 0, Vec::new());
        while !scan.state.finished {
            scan.step(
                |_, row, _, _| {
                    keys.push(row.key_as::<u64>()?);
                    Ok(true)
                },
                |_| false,
            )
            .unwrap();
            steps += 1;
        }
        assert!(keys.iter().copied().eq(990..990 + limit as u64), "{keys:?}");
        assert!(steps <= steps_max, "{steps} steps for {limit} rows");
    }
    (990..1_000u64).for_each(|key| assert!(table.delete(&key).unwrap()));
    assert!(table.is_empty());
}

/// A scan that nobody steps, or that has come to its end, keeps no file that was replaced; and it shows of each key what is there when it goes on.
#[test]
fn a_scan_that_rests_keeps_no_file() {
    let (_sim, db) = store();
    let table = table(&db, "t");
    let runs = &db.engine.runs;
    let kept = || {
        runs.remove_dropped();
        let counting: u64 = runs.files_once().iter().map(|sst| sst.file_bytes().unwrap()).sum();
        runs.bytes().0 - counting
    };
    let load = |n: u64| {
        let pad = [7; 2_000];
        table
            .load(|loader| (0..KEYS).try_for_each(|key| loader.push(&key, &row! { n: n, pad: &pad })))
            .unwrap();
    };
    load(1);
    let (mut begun, mut ended) = (table.scan(), table.scan());
    let mut reversed = table.scan().reverse();
    assert!(begun.next().is_some() && reversed.next().is_some() && ended.by_ref().count() as u64 == KEYS);
    let snapshot = db.snapshot();
    let mut of_snapshot = snapshot.scan(&table);
    assert!(of_snapshot.next().is_some());
    drop((of_snapshot, snapshot));
    load(2);
    assert_eq!(kept(), 0);
    let rest: Vec<_> = begun.map(|row| read(&row.unwrap())).collect();
    assert!(rest.iter().map(|(key, _)| *key).eq(1..KEYS), "each comes once");
    assert!(rest.last().is_some_and(|(_, (n, _))| *n == 2));
    assert_eq!(reversed.count() as u64, KEYS - 1);
    assert!(ended.next().is_none());
    // One that goes on goes by what it read before, if nothing has changed.
    let mut scan = table.scan();
    let found: Vec<_> = scan.by_ref().take(100).map(|row| read(&row.unwrap()).0).collect();
    assert!(found.into_iter().eq(0..100) && scan.count() as u64 == KEYS - 100);
    for _ in 0..300 {
        assert!(table.scan().next().is_some());
    }
    assert_eq!(kept(), 0);
}
