//! Batches into an index that is as good as full: all or nothing, whatever others take of it meanwhile.

use std::sync::Arc;

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Survivors};

use super::*;
use crate::db::chain::Chain;
use crate::db::fixture::options;
use crate::levels::Cursor;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{Db, Options, Schema};

/// With so little memory for the index.
fn open(sim: &CrashSim, index_bytes_max: u64) -> (Db, Table) {
    let options = Options { index_bytes_max, ..options() };
    let db = Db::open_at(FastTier::simulated(sim), options, Clock::manual(1_000)).unwrap();
    let table = match db.table("t") {
        Ok(table) => table,
        Err(_) => db.create_table("t", Schema::flat()).unwrap(),
    };
    (db, table)
}

fn row(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

fn put(table: &Table, key: &[u8], n: u64) -> Result<()> {
    table.put(key, &[("value", Value::Bytes(&row(n)))])
}

fn get(table: &Table, key: &[u8]) -> Option<u64> {
    let found = table.get(key).unwrap()?;
    let Value::Bytes(bytes) = found.get("value").unwrap() else { panic!("a row without its value") };
    Some(u64::from_le_bytes(bytes.try_into().unwrap()))
}

/// Keys that come in order and fill a node with few of them.
fn tall(n: u64) -> Vec<u8> {
    format!("{:x<46}{n:010}", "").into_bytes()
}

/// In a tree of four levels that are full a key splits a node of each and makes a root: five nodes, and not four.
#[test]
fn a_batch_that_makes_the_tree_higher_is_all_or_nothing() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let (db, table) = open(&sim, 64 << 20);
    let used = |table: &Table| table.engine().arena.bytes();
    // How much is in use before the key that takes five.
    let (last, before) = (0..100_000)
        .find_map(|n| {
            let before = used(&table);
            put(&table, &tall(n), n).unwrap();
            (used(&table) - before == 5 * 1024).then_some((n, before))
        })
        .expect("the tree grows");
    drop((table, db));
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    // So much for writes, besides the sixty-fourth that is kept for deletes.
    let for_writes = before + 4 * 1024 + 512;
    let bytes_max = (for_writes..).find(|bytes| bytes - bytes / 64 / 1024 * 1024 >= for_writes).unwrap();
    let (db, table) = open(&sim, bytes_max);
    (0..last).for_each(|n| put(&table, &tall(n), n).unwrap());
    assert_eq!(used(&table), before);
    let mut batch = Batch::new();
    batch.put(&table, &tall(0), &[("value", Value::Bytes(&row(77)))]).unwrap();
    batch.put(&table, &tall(last), &[("value", Value::Bytes(&row(77)))]).unwrap();
    assert_eq!(db.write(&batch).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!((get(&table, &tall(0)), get(&table, &tall(last))), (Some(0), None));
    assert_eq!(used(&table), before, "what was held for it went back");
    // What needs no memory goes on.
    put(&table, &tall(0), 1).unwrap();
    db.check_counts().unwrap();
}

/// Batches of eight new rows each, by two threads, until the index is full; of each either all rows are there, or none.
fn write_until_full(db: &Db, table: &Table, thread: u64, done: &AtomicBool) -> Vec<(Vec<u8>, bool)> {
    let (mut batches, mut refused) = (Vec::new(), 0);
    for n in 0.. {
        let name = format!("{thread}-{n:06}");
        let mut batch = Batch::new();
        for part in 0..8 {
            batch.put(table, &part_of(name.as_bytes(), part), &[("value", Value::Bytes(&row(n)))]).unwrap();
        }
        match db.write(&batch) {
            Ok(()) => batches.push((name.into_bytes(), true)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                batches.push((name.into_bytes(), false));
                refused += 1;
            }
        }
        if refused == 40 {
            break;
        }
    }
    done.store(true, Ordering::Release);
    batches
}

/// Parts of a batch lie far from one another.
fn part_of(name: &[u8], part: u8) -> Vec<u8> {
    [&[part * 31], name, &[b'z'; 20]].concat()
}

fn check_whole(table: &Table, batches: &[(Vec<u8>, bool)], when: &str) {
    for (name, written) in batches {
        let there = (0..8).filter(|&part| get(table, &part_of(name, part)).is_some()).count();
        assert_eq!(there, if *written { 8 } else { 0 }, "{when}: {}", name.escape_ascii());
    }
}

/// What takes memory of the index besides: gc, which puts tombstones apart, and comes by keys that are gone.
fn collect_meanwhile(db: &Db, table: &Table, done: &AtomicBool) {
    let mut cursor = Cursor::default();
    for n in 0u64.. {
        if done.load(Ordering::Acquire) && n > 20 {
            return;
        }
        let snapshot = db.snapshot();
        for old in 0..20 {
            let key = (n % 50 * 20 + old).to_be_bytes();
            let _ = put(table, &key, n);
            table.delete(&key).unwrap();
        }
        drop(snapshot);
        table.engine().tombstone_walk().go_on(&table.shared().levels, &mut cursor);
        db.collect().unwrap();
    }
}

#[test]
fn batches_at_once_near_a_full_index_are_all_or_nothing() {
    for collecting in [false, true] {
        let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
        let (db, table) = open(&sim, 300 << 10);
        let done = [AtomicBool::new(false), AtomicBool::new(false)];
        let batches: Vec<_> = std::thread::scope(|scope| {
            let writer = |thread: usize| {
                let (db, table, done) = (&db, &table, &done[thread]);
                scope.spawn(move || write_until_full(db, table, thread as u64, done))
            };
            let writers = [writer(0), writer(1)];
            if collecting {
                scope.spawn(|| collect_meanwhile(&db, &table, &done[0]));
            }
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        assert!(batches.iter().any(|(_, written)| *written) && batches.iter().any(|(_, written)| !written));
        check_whole(&table, &batches, "at once");
        db.check_counts().unwrap();
        db.persist().unwrap();
        drop((table, db));
        let mut walk = sim.walk();
        walk.seek(u64::MAX);
        let cut = CrashSim::from_image(&walk.image(Survivors::None, 1));
        let (_db, table) = open(&cut, 1 << 20);
        check_whole(&table, &batches, "after a power cut");
    }
}

/// A store whose index has no memory for the second row of a batch, so that publishing it stops after the first: the first is in
/// the table `t`, which has it already, the second in `empty`.
struct Stopping {
    sim: CrashSim,
    db: Db,
    table: Table,
    empty: Table,
    batch: Batch,
}

impl Stopping {
    /// `update`: whether the batch updates the first row, or puts it anew.
    fn new(update: bool) -> Stopping {
        let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
        let (db, table) = open(&sim, 1 << 20);
        let empty = db.create_table("empty", Schema::flat()).unwrap();
        put(&table, b"row", 1).unwrap();
        let (mut batch, two) = (Batch::new(), row(2));
        let fields = [("value", Value::Bytes(&two))];
        match update {
            true => batch.update(&table, b"row", &fields).unwrap(),
            false => batch.put(&table, b"row", &fields).unwrap(),
        }
        batch.put(&empty, b"new", &fields).unwrap();
        Stopping { sim, db, table, empty, batch }
    }

    /// Publishes the first row, with all appenders locked, and halts the log after `meanwhile`.
    fn publish_half(&self, meanwhile: impl FnOnce(&Engine)) -> Error {
        let engine = self.table.engine();
        let mut appenders = engine.log.all_appenders();
        let view = engine.read_view();
        let writes = self.batch.staged.folded(0);
        let (parts, made) = engine.parts(&self.batch.staged, &writes, (&view, 0)).unwrap();
        let bytes = frame_spec().record_bytes() + parts.iter().map(|part| part.bytes).sum::<usize>();
        let reservation = appenders[0].reserve(&engine.log, SegmentKind::Row, bytes, Claim::Write).unwrap();
        let reserved = engine.arena.reserve(0, Budget::Writes).unwrap();
        let others = engine.arena.reserve((1 << 20) - engine.arena.bytes(), Budget::Deletes).unwrap();
        let stopped = engine.publish_batch(reservation, (&parts, &made), &reserved, &view);
        assert!(stopped.is_err(), "there was memory");
        drop(others);
        meanwhile(engine);
        engine.log.halt(&mut appenders)
    }

    /// Nothing of the batch is there once the process was killed, and the store takes writes.
    fn check_killed(&self) {
        let killed = CrashSim::from_image(&self.sim.process_kill());
        let (db, table) = open(&killed, 1 << 20);
        let empty = db.table("empty").unwrap();
        assert_eq!((get(&table, b"row"), get(&empty, b"new")), (Some(1), None));
        put(&table, b"row", 4).unwrap();
    }
}

/// What is reserved suffices. Where the allocator itself has no more it does not: then nothing is written any more.
#[test]
fn a_batch_that_stops_half_way_ends_all_writes() {
    let store = Stopping::new(false);
    let told = store.publish_half(|_| ());
    assert_eq!(told.kind(), ErrorKind::Closed);
    let Stopping { db, table, empty, batch, .. } = &store;
    let refusals = [
        put(table, b"row", 3).unwrap_err(),
        put(table, b"another", 3).unwrap_err(),
        table.delete(b"row").map(drop).unwrap_err(),
        db.write(batch).unwrap_err(),
        db.persist().unwrap_err(),
    ];
    for refused in refusals {
        assert_eq!((refused.kind(), refused.message()), (ErrorKind::Closed, told.message()));
    }
    assert!(get(table, b"row").is_some() && get(empty, b"new").is_none(), "reads go on");
    store.check_killed();
}

/// gc and consolidation copy rows all the while, and a copy has no part in its batch: what is copied of a batch that is not whole
/// would stay without the others.
#[test]
fn no_row_of_a_batch_is_copied_before_all_are_published() {
    // An update is merged into a row; a row is copied.
    for update in [true, false] {
        let store = Stopping::new(update);
        let (engine, table) = (Arc::clone(store.table.engine()), store.table.shared());
        let copied = std::thread::scope(|scope| {
            let mut copying = None;
            store.publish_half(|_| {
                copying = Some(scope.spawn(|| {
                    let guard = engine.log.pin();
                    let slot = table.levels.locate_version(b"row", &guard).and_then(Slot::in_log).unwrap();
                    Chain::walked(guard.view(), slot).and_then(|chain| engine.merge_row(table, slot, &chain))
                }));
                // Long enough for a copy that waits for nobody.
                std::thread::sleep(std::time::Duration::from_millis(100));
                store.check_killed();
            });
            copying.unwrap().join().unwrap()
        });
        assert_eq!(
            copied.unwrap_err().kind(),
            ErrorKind::Closed,
            "nor is it afterwards, for want of the others"
        );
        store.check_killed();
    }
}
