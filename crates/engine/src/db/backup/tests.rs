//! Backups and restores of stores with rows in sorted tables, loaded and moved.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hedgerow_device::{
    CapacityTier, CrashDirectory, CrashModel, CrashSim, FastTier, Fault, FileCall, Refusal, Survivors,
    record_copy,
};

use super::{Summary, restore, restore_with};
use crate::db::fixture::{Scratch, options};
use crate::db::lower::tests::alike;
use crate::inspect::View;
use crate::{Batch, Db, Durability, ErrorKind, Options, Row, Schema, Table, Type, row};

/// Keys and what each row has, with its version.
type Rows = Vec<(Vec<u8>, String)>;

fn rows(table: &Table) -> Rows {
    let told = |row: Row| {
        let fields: Vec<_> = row.fields().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        (row.key().to_vec(), format!("{fields:?} {}", row.version()))
    };
    table.scan().map(|row| told(row.unwrap())).collect()
}

fn rows_of(db: &Db) -> Rows {
    rows(&db.table("t").unwrap())
}

pub(in crate::db) fn moving() -> Options {
    Options { fast_tier_bytes_max: 64 << 20, segment_bytes: 256 << 10, ..options() }
}

/// Victims of gc that a snapshot kept to the end are sealed as all segments are.
#[test]
fn a_store_that_was_closed_under_a_snapshot_is_restored() {
    let scratch = Scratch::new("restore-pinned");
    let [at, to] = ["store", "to"].map(|name| scratch.at(name));
    let limits = Options { segment_bytes: 256 << 10, durability: Durability::Process, ..options() };
    let db = Db::open_with(&at, limits.clone()).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    let text = "x".repeat(2_000);
    let put = |round: u64| {
        (0..1_000u64).for_each(|n| table.put(&n, &row! { n: n + round, text: text.as_str() }).unwrap());
    };
    put(1);
    let snapshot = db.snapshot();
    put(2);
    db.collect().unwrap();
    assert!(!db.engine().gc.waiting_to_free().is_empty(), "nothing is kept: the test proves nothing");
    let expected = rows(&table);
    drop(table);
    db.close().unwrap();
    drop(snapshot);
    let report = restore(&at, &to, |_| Ok(())).unwrap();
    assert!(report.segments > 0, "{report:?}");
    for at in [at, to] {
        assert!(View::open(&at).unwrap().check(|_| ()).unwrap().problems.is_empty());
        assert_eq!(rows_of(&Db::open_with(&at, limits.clone()).unwrap()), expected);
    }
}

fn open(at: &Path) -> Db {
    Db::open_with(at, Options { create: false, ..moving() }).unwrap()
}

pub(in crate::db) fn schema() -> Schema {
    Schema::new().field("n", Type::U64).nullable("text", Type::String).nullable("m", Type::U64)
}

/// Every second key is loaded; some rows are changed, deleted and put; most move; some are changed again.
pub(in crate::db) fn fill(db: &Db) -> Table {
    let table = db.ensure_table("t", schema()).unwrap();
    let text = "x".repeat(200);
    table
        .load(|loader| {
            (0..3_000u64)
                .filter(|n| n % 2 == 0)
                .try_for_each(|n| loader.push(&n, &row! { n: n, text: text.as_str() }))
        })
        .unwrap();
    change(&table, 1);
    table.engine().move_now();
    change(&table, 2);
    table
}

/// Deltas over what is below, rows, tombstones.
pub(in crate::db) fn change(table: &Table, round: u64) {
    for n in 0..3_000u64 {
        match (n + round) % 11 {
            0 | 1 => table.update(&n, &row! { m: n + round }).unwrap(),
            2 => drop(table.delete(&n).unwrap()),
            3 => table.put(&n, &row! { n: n, text: "anew" }).unwrap(),
            _ => {}
        }
    }
}

/// How many sorted tables a copy has, every byte of it verified.
fn verified(at: &Path) -> u64 {
    let report = View::open(at).unwrap().check(|_| ()).unwrap();
    assert!(report.problems.is_empty() && report.left_over.is_empty(), "{report:?}");
    report.sorted_tables
}

/// A copy with sorted tables that is open, every byte of it verified.
fn checked(at: &Path) -> Db {
    assert!(verified(at) > 0);
    open(at)
}

fn restored(from: &Path, to: &Path) -> Db {
    std::fs::remove_dir_all(to).ok();
    restore(from, to, |_| Ok(())).unwrap();
    checked(to)
}

/// Of the sorted tables in a store's directory: name, inode.
pub(in crate::db) fn sorted_tables(at: &Path) -> Vec<(String, u64)> {
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().ino())
    };
    let entries = std::fs::read_dir(at.join("capacity")).unwrap();
    let mut found: Vec<_> = entries.map(of).filter(|(name, _)| name.ends_with(".sst")).collect();
    found.sort();
    found
}

#[test]
fn a_copy_has_what_was_loaded_and_what_moved() {
    let scratch = Scratch::new("copy-below");
    let [store, to, anew] = ["store", "to", "anew"].map(|name| scratch.at(name));
    let db = Db::open_with(&store, moving()).unwrap();
    let table = fill(&db);
    let expected = rows(&table);
    let mut told = (0, 0);
    let first = db
        .backup_with(&to, |progress| {
            match progress {
                super::Progress::Copying(done, total) | super::Progress::Verifying(done, total) => {
                    assert!(done <= total, "{progress:?}");
                    told = (done, total);
                }
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(told.0, told.1, "all of it was read again");
    assert!(told.1 > first.bytes_linked, "{told:?}");
    let Summary { sorted_tables: in_it, sorted_tables_linked, sorted_tables_kept, bytes_linked, .. } = first;
    assert!(in_it > 1 && in_it == sorted_tables_linked && sorted_tables_kept == 0, "{first:?}");
    assert!(bytes_linked > 100_000 && first.bytes_copied > 0, "{first:?}");
    assert_eq!(sorted_tables(&to), sorted_tables(&store), "the same files");
    assert_eq!(rows_of(&restored(&to, &anew)), expected);
    assert_eq!(sorted_tables(&anew), sorted_tables(&store));
    // Again into the same directory: what is there stays, what came is added, what went goes.
    change(&table, 3);
    table.engine().move_now();
    let second = db.backup(&to).unwrap();
    assert!(second.sorted_tables_kept == in_it && second.sorted_tables_linked > 0, "{second:?}");
    assert_eq!(rows_of(&restored(&to, &anew)), rows(&table));
    table.clear().unwrap();
    table.load(|loader| loader.push(&7u64, &row! { n: 7u64 })).unwrap();
    let third = db.backup(&to).unwrap();
    assert_eq!((third.sorted_tables, third.sorted_tables_kept), (1, 0), "{third:?}");
    assert_eq!(sorted_tables(&to).len(), 1);
    assert_eq!(rows_of(&restored(&to, &anew)), rows(&table));
    table.clear().unwrap();
    assert_eq!(db.backup(&to).unwrap().sorted_tables, 0);
    assert!(sorted_tables(&to).is_empty() && View::open(&to).unwrap().runs().unwrap().manifest == 0);
}

/// What one of them removes the other keeps.
#[test]
fn a_store_and_its_copies_do_not_touch_each_other() {
    let scratch = Scratch::new("copy-apart");
    let [store, to, anew, third] = ["store", "to", "anew", "third"].map(|name| scratch.at(name));
    let db = Db::open_with(&store, moving()).unwrap();
    let table = fill(&db);
    let expected = rows(&table);
    db.backup(&to).unwrap();
    restore(&to, &anew, |_| Ok(())).unwrap();
    // The source goes on, and what it had is gone there.
    change(&table, 4);
    table.engine().move_now();
    table.clear().unwrap();
    change(&table, 5);
    table.engine().move_now();
    let of_source = rows(&table);
    drop(table);
    db.close().unwrap();
    assert_eq!(rows_of(&checked(&to)), expected, "the backup is a store");
    // So does what was restored, with files of its own beside those of the source.
    let copy = checked(&anew);
    let table = copy.table("t").unwrap();
    assert_eq!(rows(&table), expected);
    change(&table, 6);
    table.engine().move_now();
    let of_copy = rows(&table);
    // A copy of it has files of two stores.
    copy.backup(&third).unwrap();
    drop(table);
    copy.drop_table("t").unwrap();
    copy.close().unwrap();
    assert!(sorted_tables(&anew).is_empty());
    let of_third = checked(&third);
    assert_eq!(rows_of(&of_third), of_copy);
    change(&of_third.table("t").unwrap(), 7);
    of_third.table("t").unwrap().engine().move_now();
    let later = rows_of(&of_third);
    of_third.close().unwrap();
    assert_eq!(rows_of(&checked(&third)), later, "opened again");
    assert_eq!(rows_of(&checked(&store)), of_source);
    assert_eq!(rows_of(&checked(&to)), expected);
}

#[test]
fn a_backup_is_opened_to_be_read() {
    let scratch = Scratch::new("copy-read");
    let [store, to] = ["store", "to"].map(|name| scratch.at(name));
    let db = Db::open_with(&store, moving()).unwrap();
    let table = fill(&db);
    db.backup(&to).unwrap();
    let before = sorted_tables(&to);
    let read = Db::open_with(&to, Options { read_only: true, ..moving() }).unwrap();
    assert_eq!(rows_of(&read), rows(&table));
    drop(read);
    assert_eq!(sorted_tables(&to), before);
    // It was not opened for writing, and is gone on with.
    assert_eq!(db.backup(&to).unwrap().sorted_tables_kept, before.len() as u64);
}

/// Sorted tables that lie elsewhere come to lie in the copy's directory.
#[test]
fn sorted_tables_elsewhere_are_copied_into_the_copy() {
    let scratch = Scratch::new("copy-elsewhere");
    let [store, elsewhere, to, anew] = ["store", "elsewhere", "to", "anew"].map(|name| scratch.at(name));
    let db = Db::open_with(&store, Options { capacity: elsewhere.clone().into(), ..moving() }).unwrap();
    let table = fill(&db);
    let expected = rows(&table);
    db.backup(&to).unwrap();
    assert_eq!(rows_of(&restored(&to, &anew)), expected);
    drop(table);
    db.close().unwrap();
    std::fs::remove_dir_all(&anew).unwrap();
    assert_eq!(
        restore(&store, &anew, |_| Ok(())).unwrap_err().kind(),
        ErrorKind::Invalid,
        "nobody said where"
    );
    restore_with(&store, &elsewhere, &anew, |_| Ok(())).unwrap();
    assert_eq!(rows_of(&checked(&anew)), expected);
}

/// A directory with somebody's sorted tables is not taken for that of a backup.
#[test]
fn sorted_tables_of_no_backup_are_left_alone() {
    let scratch = Scratch::new("copy-taken");
    let [store, other, to] = ["store", "other", "to"].map(|name| scratch.at(name));
    let db = Db::open_with(&store, moving()).unwrap();
    fill(&db);
    let elsewhere = Options { capacity: to.join("capacity").into(), ..moving() };
    std::fs::create_dir_all(&to).unwrap();
    let theirs = Db::open_with(&other, elsewhere.clone()).unwrap();
    let expected = rows(&fill(&theirs));
    assert_eq!(db.backup(&to).unwrap_err().kind(), ErrorKind::Exists, "it is open");
    theirs.close().unwrap();
    assert_eq!(db.backup(&to).unwrap_err().kind(), ErrorKind::Exists, "it is closed");
    assert_eq!(rows_of(&Db::open_with(&other, elsewhere).unwrap()), expected);
    // What is no sorted table is nobody's business.
    let beside = scratch.at("beside");
    std::fs::create_dir_all(beside.join("capacity")).unwrap();
    std::fs::write(beside.join("capacity").join("notes"), b"mine").unwrap();
    db.backup(&beside).unwrap();
    assert_eq!(std::fs::read(beside.join("capacity").join("notes")).unwrap(), b"mine");
    drop(checked(&beside));
}

/// A file that rotted in the backup alone is found by a restore and by the next backup, which says so; the one after it begins anew.
#[test]
fn a_sorted_table_that_rotted_is_found() {
    let scratch = Scratch::new("copy-rotten");
    let [store, to, anew] = ["store", "to", "anew"].map(|name| scratch.at(name));
    let db = Db::open_with(&store, moving()).unwrap();
    let table = fill(&db);
    db.backup(&to).unwrap();
    let (name, _) = sorted_tables(&to).remove(0);
    let path = to.join("capacity").join(&name);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 + 100] ^= 1;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let refused = restore(&to, &anew, |_| Ok(())).unwrap_err();
    assert!(refused.kind() == ErrorKind::Corrupted && refused.message().contains(&name), "{refused}");
    assert_eq!(View::open(&anew).map(drop).unwrap_err().kind(), ErrorKind::NotFound);
    let refused = db.backup(&to).unwrap_err();
    assert!(refused.kind() == ErrorKind::Corrupted && refused.message().contains(&name), "{refused}");
    let summary = db.backup(&to).unwrap();
    assert_eq!((summary.sorted_tables_kept, summary.segments_kept), (0, 0));
    std::fs::remove_dir_all(&anew).unwrap();
    assert_eq!(rows_of(&restored(&to, &anew)), rows(&table));
}

/// A store in memory, whose files have no names to be linked.
fn in_memory(model: CrashModel) -> (CrashSim, Db, Table) {
    let sim = CrashSim::new(model, 64 << 20);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let db = Db::open_on(tiers, moving()).unwrap();
    let table = fill(&db);
    (sim, db, table)
}

#[test]
fn files_that_cannot_be_linked_are_copied() {
    let scratch = Scratch::new("copy-bytes");
    let [to, anew] = ["to", "anew"].map(|name| scratch.at(name));
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        std::fs::remove_dir_all(&to).ok();
        let (_sim, db, table) = in_memory(model);
        let first = db.backup(&to).unwrap();
        assert!(first.sorted_tables > 1 && first.sorted_tables_linked == 0, "{first:?}");
        assert!(first.bytes_copied > 200_000, "{first:?}");
        assert_eq!(rows_of(&restored(&to, &anew)), rows(&table));
        change(&table, 3);
        table.engine().move_now();
        let second = db.backup(&to).unwrap();
        assert!(second.sorted_tables_kept > 0 && second.sorted_tables_kept < second.sorted_tables);
        assert_eq!(rows_of(&restored(&to, &anew)), rows(&table));
    }
}

/// What is taken off gives its room back as soon as the copy has it: while the other files are copied, and while all of the copy is read again.
#[test]
fn files_go_as_soon_as_the_copy_has_them() {
    let scratch = Scratch::new("copy-let-go");
    let [store, to, anew] = ["store", "to", "anew"].map(|name| scratch.at(name));
    let linked = Db::open_with(&store, moving()).unwrap();
    fill(&linked);
    let (_sim, copied, _) = in_memory(CrashModel::Pages);
    for db in [&linked, &copied] {
        let (engine, table) = (db.engine(), db.table("t").unwrap());
        let (expected, all) = (rows(&table), engine.runs.bytes().0);
        std::fs::remove_dir_all(&to).ok();
        let (mut held, mut is_verified) = (Vec::new(), false);
        let summary = db.backup_with(&to, |at| {
            if held.is_empty() {
                table.clear().unwrap();
                engine.remove_garbage_runs().unwrap();
            }
            engine.runs.remove_dropped();
            let bytes = engine.runs.bytes().0;
            held.push(bytes);
            if let super::Progress::Verifying(..) = at {
                assert_eq!(bytes, 0, "the copy is read, and files of the store wait for that");
                is_verified = true;
            }
            Ok(())
        });
        let summary = summary.unwrap();
        assert!(is_verified && summary.sorted_tables > 1 && held[0] == all, "{summary:?}, {held:?} of {all}");
        held.dedup();
        assert_eq!(held.len() as u64, summary.sorted_tables + 1, "one after the other: {held:?}");
        assert_eq!(rows_of(&restored(&to, &anew)), expected);
    }
}

/// A store whose disk fails has the backup that was made before, however often another is asked for.
#[test]
fn a_store_that_cannot_be_synced_leaves_the_backup_before() {
    let scratch = Scratch::new("copy-unsynced");
    let to = scratch.at("to");
    let (sim, db, table) = in_memory(CrashModel::Pages);
    db.backup(&to).unwrap();
    let before = rows(&table);
    change(&table, 1);
    sim.fail_persist_after(0, true);
    for _ in 0..2 {
        db.backup(&to).unwrap_err();
        assert!(verified(&to) > 0);
    }
    let options = Options { read_only: true, ..moving() };
    assert_eq!(rows_of(&Db::open_with(&to, options).unwrap()), before);
}

/// What the store's own files refuse to tell ends the backup; the next one is whole.
#[test]
fn a_file_that_cannot_be_read_ends_the_backup() {
    let scratch = Scratch::new("copy-refused");
    let [to, anew] = ["to", "anew"].map(|name| scratch.at(name));
    let (sim, db, table) = in_memory(CrashModel::Pages);
    let (mut refused, expected) = (0, rows(&table));
    for after in 0.. {
        sim.fail_file_calls(FileCall::Read, Fault { after, sticky: false, refusal: Refusal::Io });
        let outcome = db.backup(&to);
        sim.clear_faults();
        match outcome {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
        }
        refused += 1;
        assert_eq!(View::open(&to).map(drop).unwrap_err().kind(), ErrorKind::NotFound);
        if after % 3 == 0 {
            db.backup(&to).unwrap();
            assert_eq!(rows_of(&restored(&to, &anew)), expected);
            std::fs::remove_dir_all(&to).unwrap();
        }
    }
    assert!(refused >= 3, "{refused}");
    assert_eq!(rows_of(&restored(&to, &anew)), expected);
}

/// Power cuts after each step of backups into one directory, the first and the second, and of a restore.
fn cut_everywhere(scratch: &Scratch, db: &Db, table: &Table) {
    let [to, cut, anew] = ["to", "cut", "anew"].map(|name| scratch.at(name));
    let (mut states, mut images, mut found) = (Vec::new(), 0u32, 0u32);
    let is_copy = |states: &[Rows], place: &str| {
        std::fs::remove_dir_all(&anew).ok();
        match restore(&cut, &anew, |_| Ok(())) {
            Ok(_) => {
                let now = rows_of(&checked(&anew));
                assert!(states.contains(&now), "{place}: what is there was never so");
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{place}: {error}");
                false
            }
        }
    };
    for round in 0..3 {
        states.push(rows(table));
        let mut directory = CrashDirectory::of(&to).unwrap();
        let (_, steps) = record_copy(|| match round {
            0 | 1 => db.backup(&to).unwrap(),
            _ => {
                let from = scratch.at("from");
                std::fs::rename(&to, &from).unwrap();
                directory = CrashDirectory::of(&to).unwrap();
                restore(&from, &to, |_| Ok(())).unwrap()
            }
        });
        for (n, step) in steps.iter().enumerate() {
            directory.apply(step);
            for (seed, kind) in [Survivors::None, Survivors::All, Survivors::Random].into_iter().enumerate() {
                let place = format!("round {round}, {kind:?} after step {n} of {}", steps.len());
                std::fs::remove_dir_all(&cut).ok();
                directory.leave(kind, (n + seed) as u64, &cut).unwrap();
                images += 1;
                let there = is_copy(&states, &place);
                found += u32::from(there);
                assert!(there || n + 1 < steps.len(), "{place}: one that was finished is none");
                let is_backup = there && cut.join("backup").exists();
                assert!(round < 2 || !is_backup, "{place}: what was restored counts as a backup");
                if images.is_multiple_of(5) && round < 2 {
                    db.backup(&cut).unwrap_or_else(|error| panic!("{place}: the next backup: {error}"));
                    assert!(is_copy(&states[round..], &place), "{place}: the next backup is none");
                }
            }
        }
        if round == 0 {
            change(table, 3);
            table.engine().move_now();
        }
    }
    assert!(found > 8 && found < images / 2, "{found} of {images}");
}

#[test]
fn a_cut_at_any_step_leaves_a_linked_copy_or_none() {
    let scratch = Scratch::new("copy-cut-links");
    let db = Db::open_with(scratch.at("store"), moving()).unwrap();
    let table = fill(&db);
    cut_everywhere(&scratch, &db, &table);
}

#[test]
fn a_cut_at_any_step_leaves_a_copied_copy_or_none() {
    let scratch = Scratch::new("copy-cut-bytes");
    let (_sim, db, table) = in_memory(CrashModel::Pages);
    cut_everywhere(&scratch, &db, &table);
}

/// Whatever was done to a store, with moves, its copies answer as it does.
#[test]
fn copies_of_a_store_whose_rows_move_answer_alike() {
    let scratch = Scratch::new("copy-alike");
    let [to, anew] = ["to", "anew"].map(|name| scratch.at(name));
    alike(300..312, false, |twins, step| {
        if step % 2 == 0 {
            twins.tables[0].engine().move_now();
        }
        std::fs::remove_dir_all(&to).ok();
        std::fs::remove_dir_all(&anew).ok();
        twins.dbs[0].as_ref().unwrap().backup(&to).unwrap();
        restore(&to, &anew, |_| Ok(())).unwrap();
        let report = View::open(&anew).unwrap().check(|_| ()).unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
        let copy = Db::open_with(&anew, Options { segment_bytes: 0, ..options() }).unwrap();
        copy.check_counts().unwrap();
        let fields = |table: &Table| -> Vec<_> {
            let of = |row: Row| -> Vec<_> {
                row.fields().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
            };
            table.scan().map(|row| row.unwrap()).map(|row| (row.key().to_vec(), of(row))).collect()
        };
        assert_eq!(fields(&copy.table("t").unwrap()), fields(&twins.tables[1]));
    });
}

const PAIRS: u64 = 200;

/// Looks at a copy that was made beside [`a_backup_beside_moves_is_of_one_moment`]'s writers; returns the newest round in it.
fn check_pairs(copy: &Db) -> u64 {
    let table = copy.table("t").unwrap();
    let m = |n: u64| {
        let row = table.get(&n).unwrap().unwrap_or_else(|| panic!("row {n} is gone"));
        let (number, text) = (row.get_as::<u64>("n").unwrap(), row.get_as::<Option<&str>>("text").unwrap());
        assert_eq!((number, text.map(str::len)), (n, Some(300)), "what a delta was written over is gone");
        row.get_as::<u64>("m").unwrap()
    };
    let rounds: Vec<u64> =
        copy.table("loaded").unwrap().scan().map(|row| row.unwrap().get_as("n").unwrap()).collect();
    assert!(rounds.is_empty() || rounds.len() == 50 && rounds.iter().all(|&n| n == rounds[0]), "{rounds:?}");
    copy.check_counts().unwrap();
    let newest = (0..PAIRS).map(|n| {
        assert_eq!(m(n), m(n + PAIRS), "pair {n}");
        m(n)
    });
    newest.max().unwrap()
}

/// Writers, moves, loads and clears beside backups: each copy is the store at one moment.
#[test]
fn a_backup_beside_moves_is_of_one_moment() {
    let scratch = Scratch::new("copy-beside");
    let [to, anew] = ["to", "anew"].map(|name| scratch.at(name));
    let db = Db::open_with(scratch.at("store"), moving()).unwrap();
    let pairs = db.create_table("t", schema()).unwrap();
    let loaded = db.create_table("loaded", schema()).unwrap();
    let text = "y".repeat(300);
    (0..2 * PAIRS).for_each(|n| pairs.put(&n, &row! { n: n, text: text.as_str(), m: 0u64 }).unwrap());
    let (stop, written, loads) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let goes_on = || !stop.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        // Both rows of a pair get the same number, by deltas over rows that have often moved.
        scope.spawn(|| {
            for round in (1u64..).take_while(|_| goes_on()) {
                let n = round * 7 % PAIRS;
                let mut batch = Batch::new();
                batch.update(&pairs, &n, &row! { m: round }).unwrap();
                batch.update(&pairs, &(n + PAIRS), &row! { m: round }).unwrap();
                db.write(batch).unwrap();
                written.store(round, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
        });
        scope.spawn(|| {
            while goes_on() {
                pairs.engine().move_now();
                db.collect().unwrap();
            }
        });
        // All rows of a load have its number, or there are none.
        scope.spawn(|| {
            for round in (1u64..).take_while(|_| goes_on()) {
                let rows = |loader: &mut crate::Loader<'_>| {
                    (0..50u64).try_for_each(|n| loader.push(&n, &row! { n: round }))
                };
                loaded.load(rows).unwrap();
                loads.store(round, Ordering::SeqCst);
                if round.is_multiple_of(3) {
                    loaded.clear().unwrap();
                }
            }
        });
        let _stop = StopAtEnd(&stop);
        let mut below = 0;
        while below < 12 {
            let before = written.load(Ordering::SeqCst);
            db.backup(&to).unwrap();
            std::fs::remove_dir_all(&anew).ok();
            restore(&to, &anew, |_| Ok(())).unwrap();
            below += verified(&anew).min(1);
            assert!(check_pairs(&open(&anew)) >= before, "a write is missing");
        }
    });
    assert!(loads.load(Ordering::SeqCst) > 3 && pairs.engine().gc.moved().0 > 100);
}

struct StopAtEnd<'s>(&'s AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
