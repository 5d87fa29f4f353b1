//! What happens between two steps of a seal or of a merge of groups: a sync that fails, a backup.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use hedgerow_device::Survivors;

use super::*;
use crate::backup;
use crate::gc::moving::tests::{check_sealed_rows, move_begun_within};
use crate::gc::sealing::{SealBegun, SealRun};
use crate::group::MergedGroups;
use crate::levels::Cursor;

const KEYS: u64 = 1_000;

/// Where between the steps of a seal something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Marked,
    Written,
    Published,
    Forgotten,
}

const EACH: [At; 4] = [At::Marked, At::Written, At::Published, At::Forgotten];

/// The steps of a seal one by one, with something between two of them; returns how many keys were sealed.
fn seal_in_steps(table: &Table, now: At, meanwhile: impl Fn()) -> Result<u64> {
    let (engine, shared) = (table.engine(), table.shared());
    let run = SealRun {
        table: shared,
        id: shared.id.load(Ordering::Acquire),
        below: engine.log.next_segment_number(),
    };
    let at = |step| {
        if now == step {
            meanwhile();
        }
    };
    let _alone = (engine.gc.sealing.lock(), engine.gc.seal_slice.lock());
    let begun = SealBegun::of(engine, shared);
    at(At::Marked);
    let (mut leaves, number) = (engine.log.leaf_writer(0), shared.levels.number_of_group(false));
    let (group, is_last) =
        engine.write_group((shared, number), run.below, &mut Cursor::default(), &mut leaves)?;
    let group = std::sync::Arc::new(group.stamped(run.below));
    assert!(is_last && group.entries() > 0);
    at(At::Written);
    let is_published = engine.publish_groups(shared, run.id, leaves, |levels| {
        levels.add_group(&group, number);
        true
    });
    assert!(is_published);
    at(At::Published);
    engine.log.barrier();
    drop(engine.log.gc_appender());
    let sealed = engine.forget_sealed_keys(&run, &group)?;
    drop(begun);
    at(At::Forgotten);
    Ok(sealed)
}

/// The steps of a merge of all groups, with something between them and before the leaves of before are free.
fn merge_in_steps(table: &Table, meanwhile: impl Fn()) -> Result<()> {
    let (engine, shared) = (table.engine(), table.shared());
    let run = SealRun {
        table: shared,
        id: shared.id.load(Ordering::Acquire),
        below: engine.log.next_segment_number(),
    };
    let _alone = engine.gc.merging_groups.lock();
    let (groups, emptied) = (shared.levels.groups(), engine.log.segments_emptied());
    let upto = groups.l0()[0].number;
    let mut leaves = engine.log.leaf_writer(0);
    let which = MergedGroups::IntoL1(upto);
    let merged = engine.write_merged_group(&run, (&groups, &which), &mut leaves)?.unwrap().stamped(run.below);
    meanwhile();
    let is_published = engine.publish_groups(shared, run.id, leaves, |levels| {
        levels.set_merged(&groups, (&which, emptied), merged, &engine.log)
    });
    assert!(is_published);
    meanwhile();
    engine.log.free_retired_leaves();
    Ok(())
}

fn check_rows(db: &Db, more: u64, when: &str) {
    let table = db.table("t").unwrap();
    for key in 0..KEYS {
        let n = table.get_field(&key, "n").unwrap().and_then(|n| n.borrow().as_u64());
        assert_eq!(n, Some(key + more), "{when}: row {key}");
    }
    let keys = table.scan().range(..KEYS).map(|row| row.unwrap().key_as::<u64>().unwrap());
    assert!(keys.eq(0..KEYS), "{when}: a scan");
}

/// Leaves are made durable by nobody, and nothing leads to them after a crash: what was durable is there, whatever the seal had done.
#[test]
fn a_sync_that_fails_between_two_steps_loses_no_row() {
    for (model, at) in
        [CrashModel::Pages, CrashModel::CacheLines].into_iter().flat_map(|model| EACH.map(|at| (model, at)))
    {
        for durability in
            [Durability::Immediate, Durability::Interval(Duration::from_secs(3_600)), Durability::Process]
        {
            let when = format!("{model:?}, {at:?}, {durability:?}");
            let sim = CrashSim::new(model, 32 << 20);
            let options = || Options { durability, ..small_index() };
            let db = open(&sim, options());
            let table = table_of(&db);
            (0..KEYS).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
            db.persist().unwrap();
            let refuse = || {
                sim.fail_persist_after(0, true);
                // Some are told at once, and all by the next.
                let put = table.put(&(KEYS + 1), &row! { n: 1u64 });
                assert!(put.is_err() || durability != Durability::Immediate, "{when}");
                assert!(db.persist().is_err() && db.engine().log.check_writable().is_err(), "{when}");
            };
            let sealed = seal_in_steps(&table, at, refuse);
            let is_sealed = sealed.is_ok();
            assert!(is_sealed || matches!(at, At::Marked | At::Written), "{when}: {sealed:?}");
            check_rows(&db, 0, &when);
            // Nothing is written any more, and what is tried for it harms nobody.
            drop(table.engine().seal_if_wanted().and(table.engine().merge_groups_where_wanted()));
            assert!(db.collect().is_err(), "{when}");
            check_rows(&db, 0, &when);
            let mut walk = sim.walk();
            walk.seek(u64::MAX);
            for (n, kind) in Survivors::EACH.into_iter().enumerate() {
                let left = CrashSim::from_image(&walk.image(kind, n as u64));
                let db = open(&left, options());
                check_rows(&db, 0, &format!("{when}, {kind:?}"));
                db.check_counts().unwrap();
            }
            drop(table);
            assert!(db.close().is_err(), "{when}");
            sim.clear_faults();
            let db = open(&sim, options());
            assert!(!db.metrics().index_was_saved, "{when}");
            check_rows(&db, 0, &when);
            assert!(db.table("t").unwrap().engine().seal_now(9) >= KEYS, "{when}");
            check_rows(&db, 0, &when);
            db.check_counts().unwrap();
        }
    }
}

/// A directory of a test's own.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("hedgerow-sealing-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// What a backup has that is made now, and what it is restored to, each opened by a walk and by a saved index.
fn check_backup(db: &Db, at: &Directory, more: u64, when: &str) {
    let [saved, anew] = ["saved", "anew"].map(|name| at.0.join(name));
    let other = db.table("other").unwrap();
    let report = db.backup_with(&saved, |_| {
        // What is written while it is copied is not in it, and rows stay where they are.
        let n = other.len();
        other.put(&n, &row! { n: n })
    });
    assert!(report.unwrap().segments > 0, "{when}");
    std::fs::remove_dir_all(&anew).ok();
    backup::restore(&saved, &anew, |_| Ok(())).unwrap();
    let options = || Options { index_bytes_max: 32 << 10, ..small_index() };
    for opened_again in [false, true] {
        let copy = Db::open_with(&anew, options()).unwrap();
        assert_eq!(copy.metrics().index_was_saved, opened_again, "{when}");
        assert!(copy.table("t").unwrap().shared().levels.has_groups(), "{when}: it has no room for all keys");
        check_rows(&copy, more, when);
        copy.check_counts().unwrap();
        copy.close().unwrap();
    }
}

#[test]
fn a_backup_between_two_steps_has_every_row() {
    let at = Directory::new("backup");
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim, small_index());
    let (table, _other) =
        (table_of(&db), db.create_table("other", Schema::new().field("n", Type::U64)).unwrap());
    let mut more = 0;
    for step in EACH {
        // Some are written over that are sealed, some are not, and all have the same number more.
        more += 1;
        for key in 0..KEYS {
            if key % 3 == 0 {
                assert!(table.delete(&key).unwrap() || more == 1);
            }
            match key % 2 {
                0 => table.put(&key, &row! { n: key + more }).unwrap(),
                _ => table.update(&key, &row! { n: key + more }).unwrap(),
            }
        }
        let sealed =
            seal_in_steps(&table, step, || check_backup(&db, &at, more, &format!("a seal, {step:?}")));
        assert_eq!(sealed.unwrap(), KEYS, "{step:?}");
        check_rows(&db, more, "after it");
        if table.shared().levels.groups().newest_first().count() > 1 {
            merge_in_steps(&table, || check_backup(&db, &at, more, "a merge of groups")).unwrap();
        }
        assert!(table.shared().levels.groups().newest_first().count() == 1);
        table.engine().seal_all_and_collect();
        check_rows(&db, more, "after a merge");
        db.check_counts().unwrap();
    }
}

/// What goes on beside a test ends with it.
struct Over<'o>(&'o crate::sync::atomic::AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads seal, merge and collect while backups begin at any moment: each has all writes before it, and none after.
#[test]
fn backups_beside_seals_and_merges_are_of_one_moment() {
    let at = Directory::new("backups");
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim, small_index());
    let (table, _other) =
        (table_of(&db), db.create_table("other", Schema::new().field("n", Type::U64)).unwrap());
    let (is_over, merges) = (crate::sync::atomic::AtomicBool::new(false), Cell::new(0));
    std::thread::scope(|scope| {
        let sealing = scope.spawn(|| {
            let mut sealed = 0;
            while !is_over.load(Ordering::Relaxed) {
                sealed += table.engine().seal_now(sealed as usize % 3);
                table.engine().free_garbage();
            }
            sealed
        });
        let over = Over(&is_over);
        for more in 1..8 {
            (0..KEYS).for_each(|key| table.put(&key, &row! { n: key + more }).unwrap());
            check_backup(&db, &at, more, &format!("backup {more}"));
            merges.set(merges.get() + 1);
        }
        drop(over);
        assert!(sealing.join().unwrap() >= KEYS);
    });
    check_rows(&db, merges.get(), "in the end");
    db.check_counts().unwrap();
}

/// What has not left the young index when a move looks at it has when the row is below: wherever in a seal the move begins, it takes out what a group has by then.
#[test]
fn a_move_may_begin_at_any_step_of_a_seal() {
    for step in EACH {
        let (_clock, db, table) = store_with_clock();
        let keys = 0..300u64;
        keys.clone().for_each(|key| table.put(&key, &row! { n: key }).unwrap());
        move_begun_within(table.engine(), |begin| {
            let begin = RefCell::new(begin);
            assert_eq!(seal_in_steps(&table, step, || (begin.borrow_mut())()).unwrap(), 300);
        });
        assert_eq!((table.shared().levels.sealed_rows(), table.len()), (0, 300), "{step:?}");
        check_sealed_rows(&table, keys.clone());
        let n_of = |key: u64| table.get_field(&key, "n").unwrap().map(|n| n.borrow().as_u64().unwrap());
        assert!(keys.clone().all(|key| n_of(key) == Some(key)));
        // Of what moved nobody counts an older record any more.
        keys.clone().for_each(|key| table.put(&key, &row! { n: key + 1 }).unwrap());
        db.collect().unwrap();
        db.check_counts().unwrap();
        assert_eq!(table.len(), 600, "those below until they are merged");
    }
}
