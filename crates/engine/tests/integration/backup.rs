//! Backups of stores at work: what is restored is one moment of them, and nothing else ever passes for a backup.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hedgerow::backup::{Progress, restore};
use hedgerow::inspect::View;
use hedgerow::{Batch, Db, Durability, Error, ErrorKind, Expiry, Options, Schema, Table, Type, Value, row};
use hedgerow_device::{CrashModel, CrashSim, FastTier, FastTierOptions, Random};
use hedgerow_sim::{Call, Effect, FORMATS, History, Scratch, rounds};

use crate::concurrency::{
    ACCOUNTS, EACH, KEYS, Recorder, StopAtEnd, account, db_with, key_of, registers, transfer,
};
use crate::rot::rot;

/// Of a store of the newest version; one of those in memory is of the oldest.
/// Nothing bounds the store: its rows stay where they are, and a second backup keeps what the first one copied.
pub(crate) fn options() -> Options {
    Options { segment_bytes: FORMATS[0].segment_bytes, ..Options::default() }
}

/// Restores a backup, checks every byte of it and opens it.
pub(crate) fn restored(backup: &Path, to: &Path) -> Db {
    std::fs::remove_dir_all(to).ok();
    restore(backup, to, |_| Ok(())).unwrap();
    let report = View::open(to).unwrap().check(|_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    Db::open_with(to, Options { create: false, ..options() }).unwrap()
}

/// Threads call, and backups are made meanwhile: each backup is as good as a read of every key at one moment between its
/// beginning and its end.
fn backups_fit_the_history(name: &str, db: &Db) {
    let scratch = Scratch::made(name);
    let table = registers(db);
    let clock = AtomicU64::new(0);
    let mut backups = 0;
    for round in 0..rounds(10, 150) {
        table.clear().unwrap();
        let mut history = History::default();
        let working = AtomicU64::new(3);
        std::thread::scope(|scope| {
            let work = |thread: u64| {
                let random = Random::from_seed(round * 100 + thread);
                let mut recorder = Recorder {
                    table: &table,
                    db,
                    clock: &clock,
                    random,
                    history: Vec::new(),
                    stamp: thread << 32,
                };
                (0..6_000).for_each(|_| recorder.one());
                working.fetch_sub(1, Ordering::SeqCst);
                recorder.history
            };
            let threads: Vec<_> = (1..4).map(|thread| scope.spawn(move || work(thread))).collect();
            let mut moments = Vec::new();
            while moments.is_empty() || working.load(Ordering::SeqCst) > 0 && moments.len() < 6 {
                // Into two directories in turn, so that each is gone on with.
                let began = clock.fetch_add(1, Ordering::SeqCst);
                let to = scratch.join(format!("{}", moments.len() % 2));
                db.backup(&to).unwrap();
                let returned = clock.fetch_add(1, Ordering::SeqCst);
                let copy = restored(&to, &scratch.join("restored"));
                moments.push((began, returned, copy.table("registers").unwrap()));
                read_all(&mut history, moments.last().unwrap());
                copy.close().unwrap();
            }
            backups += moments.len();
            for thread in threads {
                thread.join().unwrap().into_iter().for_each(|call| history.push(call));
            }
        });
        history.check().unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    println!("{backups} backups; {:?}", db.metrics());
}

/// The last of a round's backups as a read of every key.
fn read_all(history: &mut History, (began, returned, table): &(u64, u64, Table)) {
    for key in 0..KEYS {
        let row = table.get(&key_of(key)).unwrap();
        let value = row.map(|row| {
            assert_eq!(row.get("value").unwrap(), row.get("echo").unwrap(), "a row of two versions");
            row.get("value").unwrap().as_u64().unwrap()
        });
        history.push(Call { key, effect: Effect::Read(value), began: *began, returned: *returned });
    }
}

#[test]
fn a_backup_under_load_fits_the_history() {
    let options = Options { durability: Durability::Process, ..Options::default() };
    backups_fit_the_history("history", &db_with(options, 48));
}

#[test]
fn a_backup_under_load_fits_the_history_when_durable_at_once() {
    let options = Options { durability: Durability::Immediate, ..Options::default() };
    backups_fit_the_history("immediate", &db_with(options, 48));
}

#[test]
fn a_backup_of_a_file_under_load_fits_the_history() {
    let scratch = Scratch::made("file-store");
    let options = Options { fast_tier_bytes_max: 48 << 20, delta_chain_max: 3, ..options() };
    let db = Db::open_with(scratch.join("store"), options).unwrap();
    backups_fit_the_history("file", &db);
}

/// Batches are whole, and a write that was made knowing another is not there without it.
#[test]
fn a_backup_is_a_prefix_with_batches_whole() {
    let scratch = Scratch::made("prefix");
    let db = db_with(Options { durability: Durability::Process, ..Options::default() }, 48);
    let schema = Schema::new().field("money", Type::U64).nullable("filler", Type::Bytes);
    let accounts = db.create_table("accounts", schema).unwrap();
    let chain = db.create_table("chain", Schema::open()).unwrap();
    (0..ACCOUNTS).for_each(|n| accounts.put(&account(n), &row! { money: EACH }).unwrap());
    let (stop, last) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (db, accounts, stop) = (&db, &accounts, &stop);
            scope.spawn(move || {
                let mut random = Random::from_seed(thread);
                while !stop.load(Ordering::Relaxed) {
                    transfer(db, accounts, &mut random);
                }
            });
        }
        // Each writes one more than the last value that it knows another has written; now and then a field that is new, and a
        // table that is.
        for thread in 0..2u64 {
            let (db, chain, stop, last) = (&db, &chain, &stop, &last);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let mine = last.load(Ordering::SeqCst) + 1;
                    let field = format!("field {}", mine / 2_000 % 100);
                    chain.update(&mine.to_be_bytes(), &[(field.as_str(), Value::Bytes(b"x"))]).unwrap();
                    if mine.is_multiple_of(1_000) {
                        let name = format!("table {}", mine / 1_000 % 20);
                        if thread == 0 {
                            db.drop_table(&name).unwrap();
                        }
                        db.create_table(&name, Schema::flat()).unwrap();
                    }
                    last.fetch_max(mine, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
            });
        }
        let _stop = StopAtEnd(&stop);
        for backup in 0..rounds(6, 90) {
            let before = last.load(Ordering::SeqCst);
            let to = scratch.join(format!("{}", backup % 3));
            db.backup(&to).unwrap();
            let copy = restored(&to, &scratch.join("restored"));
            let held = copy.table("accounts").unwrap();
            let money: Vec<u64> =
                held.scan().map(|row| row.unwrap().get("money").unwrap().as_u64().unwrap()).collect();
            assert_eq!((money.len() as u64, money.iter().sum::<u64>()), (ACCOUNTS, ACCOUNTS * EACH));
            let chain = copy.table("chain").unwrap();
            let links: Vec<u64> =
                chain.scan().map(|row| u64::from_be_bytes(row.unwrap().key().try_into().unwrap())).collect();
            // The newest link may be written by one and known to nobody.
            assert!(links.iter().copied().eq(1..=links.len() as u64), "a write is missing before others");
            assert!(links.len() as u64 >= before, "{} writes of {before} are there", links.len());
        }
        println!("{} links; {:?}", last.load(Ordering::SeqCst), db.metrics());
    });
}

/// On a medium where fields are merged into rows in place, the rows being copied stand still, and both kinds of copies come out
/// right.
#[test]
fn rows_that_are_merged_in_place_are_backed_up_whole() {
    let scratch = Scratch::made("in-place");
    let sim = CrashSim::new(CrashModel::CacheLines, 64 << 20);
    let db = Db::open_on(
        FastTier::simulated(&sim),
        FORMATS[2].with(Options { index_bytes_max: 64 << 20, ..Options::default() }),
    )
    .unwrap();
    let schema = Schema::new().field("a", Type::U64).field("b", Type::U64);
    let table = db.create_table("pairs", schema).unwrap();
    for n in 0..2_000u64 {
        table.put(&n.to_be_bytes(), &row! { a: 0u64, b: 0u64 }).unwrap();
    }
    let (stop, round) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::from_seed(1);
            while !stop.load(Ordering::Relaxed) {
                let n = round.fetch_add(1, Ordering::SeqCst) + 1;
                let key = random.below(2_000).to_be_bytes();
                table.update(&key, &row! { a: n, b: n }).unwrap();
            }
        });
        for backup in 0..6 {
            let to = scratch.join(format!("{}", backup % 2));
            db.backup(&to).unwrap();
            let copy = restored(&to, &scratch.join("restored"));
            let mut rows = 0;
            for row in copy.table("pairs").unwrap().scan() {
                let row = row.unwrap();
                assert_eq!(row.get("a").unwrap(), row.get("b").unwrap(), "a row of two versions");
                rows += 1;
            }
            assert_eq!(rows, 2_000);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let metrics = db.metrics();
    assert!(metrics.chains_merged_in_place > 0, "{metrics:?}");
}

/// A store with rows, deltas, deletes, expiries, batches and several segments, over rows of a sorted table.
pub(crate) fn filled(at: &Path) -> Db {
    let db = Db::open_with(at, options()).unwrap();
    let table = db.create_table("t", Schema::open()).unwrap();
    load(&table);
    fill(&db, &table, 0..6_000);
    db
}

/// Rows in a sorted table, some of which [`fill`] changes.
pub(crate) fn load(table: &Table) {
    let body = vec![9; 300];
    let keys = (0..4_000).step_by(3).map(|n| format!("key/{n:05}"));
    let more = (0..400).map(|n| format!("low/{n:05}"));
    table
        .load(|loader| {
            keys.chain(more).try_for_each(|key| loader.push(key.as_bytes(), &row! { body: &body }))
        })
        .unwrap();
}

pub(crate) fn fill(db: &Db, table: &Table, range: std::ops::Range<u64>) {
    for n in range {
        let key = format!("key/{:05}", n % 4_000).into_bytes();
        match n % 7 {
            0 => table.update(&key, &row! { changed: &n.to_be_bytes() }).unwrap(),
            1 => drop(table.delete(&key).unwrap()),
            2 => {
                table
                    .put_expiring(
                        &key,
                        &row! { expires: &n.to_be_bytes() },
                        Expiry::at_unix_ms(u64::MAX >> 1),
                    )
                    .unwrap();
            }
            3 => {
                let mut batch = Batch::new();
                batch.put(table, &key, &row! { batched: &n.to_be_bytes() }).unwrap();
                batch.put(table, format!("pair/{n}").as_bytes(), &row! { of: &key }).unwrap();
                db.write(batch).unwrap();
            }
            _ => table.put(&key, &row! { body: &vec![n as u8; 700] }).unwrap(),
        }
    }
}

/// All rows of a store's table: keys, and the checksum of all else.
pub(crate) fn rows(db: &Db) -> Vec<(Vec<u8>, u32)> {
    let table = db.table("t").unwrap();
    let digest = |row: hedgerow::Row| {
        let fields: Vec<_> = row.fields().collect();
        let text = format!("{fields:?} {:?} {}", row.expires_at_ms(), row.version());
        (row.key().to_vec(), hedgerow_device::crc32c(0, text.as_bytes()))
    };
    table.scan().map(|row| digest(row.unwrap())).collect()
}

/// An error after so many calls.
fn stop_after(calls: u64) -> impl FnMut(Progress) -> hedgerow::Result<()> {
    let mut left = calls;
    move |_| {
        left = left.checked_sub(1).ok_or_else(Error::cancelled)?;
        Ok(())
    }
}

#[test]
fn a_backup_that_was_ended_is_no_store_and_is_gone_on_with() {
    let scratch = Scratch::made("ended");
    let (to, anew) = (scratch.join("to"), scratch.join("anew"));
    let db = filled(&scratch.join("store"));
    let expected = rows(&db);
    // Ended at every place, until one is not any more.
    let mut calls = 0;
    let first = loop {
        let error = match db.backup_with(&to, stop_after(calls)) {
            Ok(summary) => break summary,
            Err(error) => error,
        };
        calls += 1;
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        for error in [
            Db::open(&to).map(drop).unwrap_err(),
            View::open(&to).map(drop).unwrap_err(),
            restore(&to, &anew, |_| Ok(())).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert!(error.message().contains("not finished"), "{error}");
        }
    };
    assert!(calls > 10, "{calls}");
    assert_eq!(rows(&restored(&to, &anew)), expected);
    // Only what has changed is copied the next time.
    let table = db.table("t").unwrap();
    fill(&db, &table, 10..40);
    let second = db.backup(&to).unwrap();
    assert!(first.segments_kept > 0, "what the ended ones had copied was copied again: {first:?}");
    assert!(second.segments_kept > 0 && second.segments_kept < second.segments, "{first:?} {second:?}");
    assert!(second.sequence > first.sequence);
    assert_eq!(rows(&restored(&to, &anew)), rows(&db));
}

#[test]
fn a_restore_that_was_ended_goes_on() {
    let scratch = Scratch::made("restore-ended");
    let (to, anew) = (scratch.join("to"), scratch.join("anew"));
    let db = filled(&scratch.join("store"));
    db.backup(&to).unwrap();
    for calls in 0..8 {
        let error = restore(&to, &anew, stop_after(calls)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }
    restore(&to, &anew, |_| Ok(())).unwrap();
    assert_eq!(restore(&to, &anew, |_| Ok(())).unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(rows(&Db::open(&anew).unwrap()), rows(&db));
    let ids = [&to, &anew, &scratch.join("store")].map(|dir| match View::open(dir) {
        Ok(view) => view.root().store_id,
        Err(_) => 0,
    });
    assert!(ids[0] != ids[1] && ids[0] != 0 && ids[1] != 0, "each is a store of its own: {ids:?}");
}

#[test]
fn nothing_but_a_backup_of_the_store_is_written_over() {
    let scratch = Scratch::made("taken");
    let to = scratch.join("to");
    let db = filled(&scratch.join("store"));
    let other = filled(&scratch.join("other"));
    // A store, open or closed.
    assert_eq!(db.backup(scratch.join("other")).unwrap_err().kind(), ErrorKind::Exists);
    let before = rows(&other);
    other.close().unwrap();
    assert_eq!(db.backup(scratch.join("other")).unwrap_err().kind(), ErrorKind::Exists);
    let other = Db::open_with(scratch.join("other"), options()).unwrap();
    assert_eq!(rows(&other), before);
    // A backup of another store.
    other.backup(&to).unwrap();
    let refused = db.backup(&to).unwrap_err();
    assert!(refused.kind() == ErrorKind::Exists && refused.message().contains("another store"), "{refused}");
    // A backup that somebody works with as a store.
    other.backup(&to).unwrap();
    let opened = Db::open_with(&to, options()).unwrap();
    opened.table("t").unwrap().put(b"work", &row! { of: b"mine" }).unwrap();
    assert_eq!(other.backup(&to).unwrap_err().kind(), ErrorKind::Exists);
    opened.close().unwrap();
    assert_eq!(other.backup(&to).unwrap_err().kind(), ErrorKind::Exists);
    assert!(Db::open_with(&to, options()).unwrap().table("t").unwrap().exists(b"work").unwrap());
}

/// One backup of a store at a time, and one into a directory.
#[test]
fn a_second_backup_at_the_same_time_is_refused() {
    let scratch = Scratch::made("second");
    let db = filled(&scratch.join("store"));
    let mut refused = 0;
    db.backup_with(scratch.join("to"), |at| {
        assert_eq!(db.backup(scratch.join("to")).unwrap_err().kind(), ErrorKind::Locked);
        if matches!(at, Progress::Copying(done, total) if done < total) {
            assert_eq!(db.backup(scratch.join("elsewhere")).unwrap_err().kind(), ErrorKind::Locked);
            refused += 1;
        }
        Ok(())
    })
    .unwrap();
    assert!(refused > 2);
    db.backup(scratch.join("elsewhere")).unwrap();
}

/// A backup that is refused takes nothing away: because another is under way, or because the store was opened for reading only.
#[test]
fn a_refused_backup_leaves_the_one_before() {
    let scratch = Scratch::made("refused");
    let (store, kept) = (scratch.join("store"), scratch.join("kept"));
    let db = filled(&store);
    db.backup(&kept).unwrap();
    let before = rows(&db);
    let is_kept = || {
        let options = Options { read_only: true, ..options() };
        assert_eq!(rows(&Db::open_with(&kept, options).unwrap()), before);
    };
    let mut refused = 0;
    db.backup_with(scratch.join("to"), |at| {
        if matches!(at, Progress::Copying(done, total) if done < total) {
            assert_eq!(db.backup(&kept).unwrap_err().kind(), ErrorKind::Locked);
            is_kept();
            refused += 1;
        }
        Ok(())
    })
    .unwrap();
    assert!(refused > 2);
    db.close().unwrap();
    let db = Db::open_with(&store, Options { read_only: true, ..options() }).unwrap();
    assert_eq!(db.backup(&kept).unwrap_err().kind(), ErrorKind::ReadOnly);
    is_kept();
    assert_eq!(db.backup(scratch.join("new")).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(!scratch.join("new").exists());
}

/// A damaged record of the store ends the backup with its place. What was there is no backup, and the store goes on.
#[test]
fn a_damaged_record_is_reported_and_not_copied() {
    let scratch = Scratch::made("damaged");
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = Db::open_on(FastTier::simulated(&sim), Options { background: false, ..options() }).unwrap();
    let table = db.create_table("t", Schema::open()).unwrap();
    fill(&db, &table, 0..3_000);
    let mut found = 0;
    // In the segment of rows: that of deltas may be gone.
    for at in (5_001..5_100).step_by(11).map(|at| (1 << 20) + at) {
        rot(&sim, at, 0x10);
        match db.backup(scratch.join("to")) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted);
                assert!(error.message().contains("byte"), "{error}");
                let refused = View::open(scratch.join("to")).map(drop).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::NotFound);
                found += 1;
            }
            // Bytes that mean nothing fill records up.
            Ok(_) => std::fs::remove_dir_all(scratch.join("to")).unwrap(),
        }
        rot(&sim, at, 0x10);
    }
    assert!(found > 5, "{found} of 9");
    table.put(b"more", &row! { body: b"x" }).unwrap();
    // With the bytes as they were, the backup is finished.
    db.backup(scratch.join("to")).unwrap();
    assert_eq!(rows(&restored(&scratch.join("to"), &scratch.join("anew"))), rows(&db));
}

/// What rots in the backup while nobody looks is found by the next backup into it, and by a restore.
#[test]
fn a_damaged_backup_is_found() {
    let scratch = Scratch::made("rotten");
    let (to, anew) = (scratch.join("to"), scratch.join("anew"));
    let db = filled(&scratch.join("store"));
    db.backup(&to).unwrap();
    let fast = to.join("fast");
    let mut bytes = std::fs::read(&fast).unwrap();
    bytes[(1 << 20) + 9_000] ^= 4;
    std::fs::write(&fast, &bytes).unwrap();
    assert_eq!(restore(&to, &anew, |_| Ok(())).unwrap_err().kind(), ErrorKind::Corrupted);
    assert!(View::open(&anew).is_err());
    assert_eq!(db.backup(&to).unwrap_err().kind(), ErrorKind::Corrupted);
    // That one said so, and the next begins anew.
    let summary = db.backup(&to).unwrap();
    assert_eq!(summary.segments_kept, 0);
    std::fs::remove_dir_all(&anew).unwrap();
    assert_eq!(rows(&restored(&to, &anew)), rows(&db));
}

/// A small store under updates does not wait for its backup: what gc empties is copied first.
#[test]
fn a_bounded_store_takes_updates_during_a_slow_backup() {
    let scratch = Scratch::made("bounded");
    let options = Options { durability: Durability::Process, ..Options::default() };
    let tier = FastTierOptions { bytes_max: 32 << 20, ..FastTierOptions::default() };
    let db =
        Db::open_on(FastTier::dram(&tier).unwrap(), Options { segment_bytes: 1 << 20, ..options }).unwrap();
    let table = db.create_table("t", Schema::open()).unwrap();
    let put = |n: u64| table.put(&(n % 12_000).to_be_bytes(), &row! { body: &vec![n as u8; 1_000] });
    (0..12_000).for_each(|n| put(n).unwrap());
    let mut written = 12_000u64;
    db.backup_with(scratch.join("to"), |_| {
        // At each step, a segment's worth and more: all in all several times the store.
        for _ in 0..4_000 {
            put(written).unwrap();
            written += 1;
        }
        Ok(())
    })
    .unwrap();
    assert!(written > 40_000, "{written}");
    let copy = restored(&scratch.join("to"), &scratch.join("anew"));
    let copied = copy.table("t").unwrap();
    for n in 0..12_000u64 {
        let row = copied.get(&n.to_be_bytes()).unwrap().unwrap();
        assert_eq!(
            row.get("body").unwrap(),
            Value::Bytes(&vec![n as u8; 1_000]),
            "row {n} is as it was at the beginning"
        );
    }
}
