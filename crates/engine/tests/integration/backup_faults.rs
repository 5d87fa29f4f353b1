//! Backups whose disk, or whose store's disk, is full, and backups that a power cut ends: what is half written never passes for
//! a backup, and the next call makes one.

use std::path::Path;

use hedgerow::backup::restore;
use hedgerow::inspect::View;
use hedgerow::{Db, ErrorKind, Options, Schema, row};
use hedgerow_device::{CapacityTier, CrashDirectory, CrashModel, CrashSim, FastTier, Survivors, record_copy};
use hedgerow_sim::{Scratch, rounds, skip};

use crate::backup::{fill, load, options, restored, rows};
use crate::full_disk::{DIRECTORY, again};

type Rows = Vec<(Vec<u8>, u32)>;

/// Whether there is a backup at `at`. There may be none; if there is, it verifies to its last byte and holds one of `whole`.
fn is_backup(at: &Path, anew: &Path, whole: &[&Rows], place: &str) -> bool {
    std::fs::remove_dir_all(anew).ok();
    match restore(at, anew, |_| Ok(())) {
        Ok(_) => {
            let report = View::open(anew).unwrap().check(|_| ()).unwrap();
            assert!(report.problems.is_empty(), "{place}: {:?}", report.problems);
            let found = rows(&Db::open_with(anew, Options { create: false, ..options() }).unwrap());
            assert!(
                whole.iter().any(|rows| **rows == found),
                "{place}: what is there is no backup of the store"
            );
            true
        }
        Err(error) => {
            let open = Db::open_with(at, Options { create: false, ..options() }).map(drop).unwrap_err();
            for error in [error, open, View::open(at).map(drop).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{place}: {error}");
            }
            false
        }
    }
}

/// A small store: rows in few segments, and in a sorted table.
fn small(at: &Path) -> Db {
    let db = Db::open_with(at, options()).unwrap();
    let table = db.create_table("t", Schema::open()).unwrap();
    load(&table);
    fill(&db, &table, 0..2_000);
    db
}

/// The power is cut after each step that a first backup takes, and a second one into the same directory, and a restore.
#[test]
fn a_power_cut_after_any_step_leaves_a_backup_or_none() {
    let scratch = Scratch::made("cut");
    let [to, cut, anew] = ["to", "cut", "anew"].map(|name| scratch.join(name));
    let db = small(&scratch.join("store"));
    let mut before: Rows = Vec::new();
    let (mut images, mut found, mut made) = (0u64, 0, 0);
    for round in 0..3 {
        let now = rows(&db);
        let mut directory = CrashDirectory::of(&to).unwrap();
        let (summary, steps) = record_copy(|| db.backup(&to).unwrap());
        assert_eq!(summary.segments_kept > 0, round > 0, "{summary:?}");
        assert!(steps.len() > 15, "{steps:?}");
        for (n, step) in steps.iter().enumerate() {
            directory.apply(step);
            for seed in 0..2 + rounds(1, 20) {
                let kind = [Survivors::None, Survivors::All, Survivors::Random][seed.min(2) as usize];
                let place = format!("round {round}, {kind:?} ({seed}) after step {n} of {}", steps.len());
                std::fs::remove_dir_all(&cut).ok();
                directory.leave(kind, seed, &cut).unwrap();
                images += 1;
                let there = is_backup(&cut, &anew, &[&before, &now], &place);
                found += u64::from(there);
                let is_last = n + 1 == steps.len();
                assert!(there || !is_last, "{place}: a backup that was finished is none");
                if images.is_multiple_of(7) {
                    db.backup(&cut).unwrap_or_else(|error| panic!("{place}: the next backup: {error}"));
                    assert!(is_backup(&cut, &anew, &[&now], &place), "{place}: the next backup is none");
                    made += 1;
                }
            }
        }
        before = now;
        let table = db.table("t").unwrap();
        fill(&db, &table, 10..400 * (round + 1));
        db.collect().unwrap();
    }
    println!("{images} images, {found} of them a backup; {made} backups were made over them");
    assert!(found > 6 && found < images / 2);
}

/// A restore writes as a backup does, to be a store.
#[test]
fn a_power_cut_after_any_step_of_a_restore_leaves_a_store_or_none() {
    let scratch = Scratch::made("cut-restore");
    let [backup, to, cut, anew] = ["backup", "to", "cut", "anew"].map(|name| scratch.join(name));
    let db = small(&scratch.join("store"));
    let expected = rows(&db);
    db.backup(&backup).unwrap();
    let mut directory = CrashDirectory::of(&to).unwrap();
    let (_, steps) = record_copy(|| restore(&backup, &to, |_| Ok(())).unwrap());
    let mut again = 0;
    for (n, step) in steps.iter().enumerate() {
        directory.apply(step);
        for (seed, kind) in [Survivors::None, Survivors::All, Survivors::Random].into_iter().enumerate() {
            let place = format!("{kind:?} after step {n} of {}", steps.len());
            std::fs::remove_dir_all(&cut).ok();
            directory.leave(kind, seed as u64, &cut).unwrap();
            let there = is_backup(&cut, &anew, &[&expected], &place);
            if !there && (n + seed) % 3 == 0 {
                restore(&backup, &cut, |_| Ok(())).unwrap_or_else(|error| panic!("{place}: again: {error}"));
                assert!(is_backup(&cut, &anew, &[&expected], &place));
                again += 1;
            }
        }
    }
    assert!(again > 10, "{again} restores were made again");
}

/// A store in memory, and what it holds.
fn in_memory() -> (CrashSim, Db) {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let db = Db::open_on(tiers, options()).unwrap();
    let table = db.create_table("t", Schema::open()).unwrap();
    load(&table);
    fill(&db, &table, 0..6_000);
    (sim, db)
}

/// A backup onto a disk without room is refused as full, and leaves none; the store goes on.
fn refused(db: &Db, to: &Path, anew: &Path, place: &str) {
    let error = db.backup(to).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{place}: {error}");
    assert!(error.message().contains(to.to_str().unwrap()), "{place}: {error}");
    assert!(!is_backup(to, anew, &[], place), "{place}");
    let table = db.table("t").unwrap();
    table.put(place.as_bytes(), &row! { body: b"written since" }).unwrap();
    db.persist().unwrap();
    assert_eq!(db.sync_failure(), None, "{place}");
}

/// There is room for some of the backup: more and more, until there is enough.
fn target_fills_up(directory: &Path) {
    let [to, ballast] = ["to", "ballast"].map(|name| directory.join(name));
    let scratch = Scratch::made("full-target");
    let anew = scratch.join("anew");
    let (_sim, db) = in_memory();
    std::fs::create_dir_all(&to).unwrap();
    let (mut left, mut refusals) = (0, 0);
    loop {
        // All of the disk, but for `left` bytes.
        std::fs::remove_file(&ballast).ok();
        std::fs::remove_dir_all(&to).unwrap();
        std::fs::create_dir_all(&to).unwrap();
        std::fs::write(&ballast, vec![1; (TARGET_DISK - left) as usize]).ok();
        let place = format!("{left} bytes left");
        if db.backup(&to).is_ok() {
            break;
        }
        refused(&db, &to, &anew, &place);
        refusals += 1;
        // With room, what is there is gone on with.
        std::fs::remove_file(&ballast).unwrap();
        db.backup(&to).unwrap_or_else(|error| panic!("{place}: the next backup: {error}"));
        assert!(is_backup(&to, &anew, &[&rows(&db)], &place), "{place}: the next backup is none");
        left += 400_000;
    }
    assert!(refusals > 3, "there was room after {refusals} refusals");
    assert!(is_backup(&to, &anew, &[&rows(&db)], "with room"));
}

const TARGET_DISK: u64 = 8 << 20;

#[test]
fn a_backup_onto_a_full_disk_is_refused_and_gone_on_with() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return target_fills_up(directory.as_ref());
    }
    let directory = Scratch::made("small-target");
    let script =
        format!("mount -t tmpfs -o size={TARGET_DISK} none {} && exec \"$@\"", directory.0.display());
    let wrapper = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh"];
    let name = "backup_faults::a_backup_onto_a_full_disk_is_refused_and_gone_on_with";
    if !again(name, &wrapper, &directory.0) {
        skip("this machine does not let a process mount a file system of its own");
    }
}

#[test]
fn a_backup_above_the_limit_of_file_size_is_refused() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        let directory: &Path = directory.as_ref();
        let (_sim, db) = in_memory();
        return refused(&db, &directory.join("to"), &directory.join("anew"), "above the limit");
    }
    let directory = Scratch::made("limited-target");
    let name = "backup_faults::a_backup_above_the_limit_of_file_size_is_refused";
    if !again(name, &["prlimit", "--fsize=2000000"], &directory.0) {
        skip("there is no prlimit");
    }
}

/// A store whose own disk is full can be backed up, and takes deletes and overwrites meanwhile.
#[test]
fn a_store_on_a_full_disk_is_backed_up() {
    let scratch = Scratch::made("full-source");
    let [to, anew] = ["to", "anew"].map(|name| scratch.join(name));
    let sim = CrashSim::new(CrashModel::Pages, 1 << 40);
    sim.limit_disk(16 << 20);
    let db = Db::open_on(FastTier::simulated(&sim), options()).unwrap();
    let table = db.create_table("t", Schema::open()).unwrap();
    let body = vec![7; 3_000];
    let put = |n: u64| table.put(&n.to_be_bytes(), &row! { body: &body });
    // The first that is refused: gc may find room for another afterwards.
    let (count, refused) = (0..).find_map(|n| put(n).err().map(|error| (n, error.kind()))).unwrap();
    assert_eq!(refused, ErrorKind::Full);
    assert!(count * 3_000 > 10 << 20, "{count} rows");
    let expected = rows(&db);
    let mut n = 0u64;
    db.backup_with(&to, |_| {
        for _ in 0..20 {
            n += 1;
            assert!(table.delete(&(2 * n).to_be_bytes()).unwrap(), "row {}", 2 * n);
            put(2 * n + 1).unwrap();
        }
        Ok(())
    })
    .unwrap();
    assert!(n > 100, "{n} deletes");
    assert_eq!(rows(&restored(&to, &anew)), expected, "the moment when it began");
    // And again, over the first.
    db.backup(&to).unwrap();
    assert_eq!(rows(&restored(&to, &anew)), rows(&db));
    put(1).unwrap();
}
