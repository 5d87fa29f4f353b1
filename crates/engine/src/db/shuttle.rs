//! Interleavings of what changes more than one row, explored by `shuttle`: batches, changes of the catalog, and loads, met by readers, writers,
//! snapshots and a process that is killed.
//!
//! Run as `index/shuttle.rs` says. The store is large enough for writers to have appenders of their own: who must keep all of them from
//! writing has to lock more than his own.

use ::shuttle::rand::{Rng, thread_rng};
use ::shuttle::thread;
use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier, Survivors};

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, explore_store};
use crate::{Batch, CacheMode, Db, Durability, ErrorKind, Options, Schema, Table, Type, Value};

const ROUNDS: usize = 150;

const TIER_BYTES: u64 = 8 << 20;

fn explore(test: impl Fn() + Copy + Send + Sync + 'static) {
    explore_store(ROUNDS, test);
}

fn open(sim: &CrashSim) -> Db {
    let options = Options {
        durability: Durability::Process,
        segment_bytes: 64 << 10,
        fast_tier_bytes_max: TIER_BYTES,
        index_bytes_max: 1 << 20,
        cache_mode: CacheMode::Off,
        background: false,
        recovery_threads: 1,
        ..Options::default()
    };
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    Db::open_at(tiers, options, Clock::manual(1_000)).expect("a store")
}

/// A store and the table `rows` of it.
pub(crate) struct Store {
    sim: CrashSim,
    pub(crate) db: Db,
    pub(crate) table: Table,
    /// The number of the last batch that was written when the call returned.
    done: AtomicU64,
}

impl Store {
    /// With the table `rows`, and an appender for each writer.
    pub(crate) fn new(schema: Schema) -> Arc<Store> {
        let sim = CrashSim::new(CrashModel::Pages, TIER_BYTES);
        let db = open(&sim);
        let table = db.create_table("rows", schema).expect("a table");
        table.engine().log.use_all_appenders();
        Arc::new(Store { sim, db, table, done: AtomicU64::new(0) })
    }

    /// The store that is there after its process was killed at this moment.
    pub(crate) fn killed(&self) -> Db {
        let after = open(&CrashSim::from_image(&self.sim.process_kill()));
        after.check_counts().expect("what is counted is there after a kill");
        after
    }
}

/// Runs each of `tasks` on a thread, all at once.
pub(crate) fn together(store: &Arc<Store>, tasks: &[fn(&Store)]) {
    let run = |task: &fn(&Store)| {
        let (store, task) = (store.clone(), *task);
        thread::spawn(move || task(&store))
    };
    let running: Vec<_> = tasks.iter().map(run).collect();
    running.into_iter().for_each(|task| task.join().expect("a task"));
}

/// Moves what can move.
pub(crate) fn move_rows(store: &Store) {
    store.table.engine().move_now();
}

pub(crate) fn numbers() -> Schema {
    Schema::new().field("n", Type::U64)
}

pub(crate) fn put(table: &Table, key: &[u8], n: u64) -> crate::Result<()> {
    table.put(key, &[("n", Value::UInt(n))])
}

pub(crate) fn number(table: &Table, key: &[u8]) -> Option<u64> {
    let n = table.get_field(key, "n").expect("a row can be read")?;
    n.borrow().as_u64()
}

/// Each batch gives one number to two rows, `a` and `b`.
fn batches(store: &Store) {
    for n in 1..=3 {
        let mut batch = Batch::new();
        for key in [b"a", b"b"] {
            batch.put(&store.table, key, &[("n", Value::UInt(n))]).expect("a part");
        }
        store.db.write(&batch).expect("room");
        store.done.store(n, Ordering::SeqCst);
    }
}

#[test]
fn a_snapshot_sees_a_batch_whole_or_not_at_all() {
    explore(|| {
        let store = Store::new(numbers());
        let look = |store: &Store| {
            for _ in 0..3 {
                let snapshot = store.db.snapshot();
                let [a, b] = [b"a", b"b"].map(|key| {
                    let n = snapshot.get_field(&store.table, key, "n").expect("a row can be read");
                    n.and_then(|n| n.borrow().as_u64())
                });
                assert_eq!(a, b, "half a batch");
            }
        };
        together(&store, &[batches, look, |store| put(&store.table, b"c", 1).expect("room")]);
    });
}

#[test]
fn a_kill_leaves_a_batch_whole_or_not_at_all() {
    explore(|| {
        let store = Store::new(numbers());
        let kill = |store: &Store| {
            let done = store.done.load(Ordering::SeqCst);
            let table = store.killed().table("rows").expect("the table");
            let left = number(&table, b"a");
            assert_eq!(left, number(&table, b"b"), "half a batch");
            assert!(left.unwrap_or(0) >= done, "{done} was written, {left:?} is left");
        };
        together(&store, &[batches, kill, |store| put(&store.table, b"c", 1).expect("room")]);
    });
}

/// What is in the table after it was cleared was written after that, to whoever reads it and to who opens the store.
#[test]
fn a_row_is_cleared_with_its_table_or_written_after() {
    explore(|| {
        let store = Store::new(numbers());
        put(&store.table, b"before", 1).expect("room");
        let write = |store: &Store| {
            for n in 1..=3 {
                put(&store.table, b"a", n).expect("room");
                put(&store.table, &[b'k', n as u8], n).expect("room");
            }
        };
        together(&store, &[write, |store| store.table.clear().expect("room")]);
        assert_eq!(number(&store.table, b"before"), None, "the table was cleared");
        store.db.check_counts().expect("what is counted is there");
        let after = store.killed().table("rows").expect("the table");
        for key in [b"a".to_vec(), vec![b'k', 1], vec![b'k', 2], vec![b'k', 3], b"before".to_vec()] {
            assert_eq!(number(&store.table, &key), number(&after, &key), "{}", key.escape_ascii());
        }
    });
}

/// A writer that holds a table which is dropped is told so, and nothing of it is in the next one of that name.
#[test]
fn a_dropped_table_takes_no_more_rows() {
    explore(|| {
        let store = Store::new(numbers());
        let write = |store: &Store| {
            for n in 1..=4 {
                match put(&store.table, &[n as u8], n) {
                    Ok(()) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
                }
            }
        };
        let drop_it = |store: &Store| {
            assert!(store.db.drop_table("rows").expect("no room needed"));
            let anew = store.db.create_table("rows", numbers()).expect("the name is free");
            put(&anew, b"new", 9).expect("room");
            assert!(put(&store.table, b"old", 9).is_err_and(|e| e.kind() == ErrorKind::NotFound));
        };
        together(&store, &[write, drop_it]);
        let there = store.db.table("rows").expect("the table");
        for table in [&there, &store.killed().table("rows").expect("the table")] {
            assert_eq!(table.scan().count(), 1, "rows of the table that was dropped");
            assert_eq!(number(table, b"new"), Some(9));
        }
    });
}

/// Writers teach an open table names at once: each finds its own again, here and after a kill.
#[test]
fn names_that_are_learned_at_once_are_all_there() {
    explore(|| {
        let store = Store::new(Schema::open());
        fn learn(store: &Store, name: &str) {
            store
                .table
                .put(name, &[(name, Value::Bytes(b"own")), ("shared", Value::Bytes(b"all"))])
                .expect("room");
        }
        together(&store, &[|s| learn(s, "x"), |s| learn(s, "y"), |s| learn(s, "z")]);
        let after = store.killed().table("rows").expect("the table");
        for (table, name) in [&store.table, &after].into_iter().flat_map(|t| ["x", "y", "z"].map(|n| (t, n)))
        {
            for (field, value) in [(name, b"own"), ("shared", b"all")] {
                let found = table.get_field(name, field).expect("a row can be read").expect("a row");
                assert_eq!(found.borrow().as_bytes(), Some(&value[..]), "{field} of {name}");
            }
        }
    });
}

/// Whatever a power cut leaves while the catalog is being stored: tables and rows are a prefix of what was done.
#[test]
fn a_stored_catalog_is_not_ahead_of_the_rows() {
    explore(|| {
        let store = Store::new(numbers());
        store.db.persist().expect("no sync fails");
        let from = store.sim.ops();
        let change = |store: &Store| {
            for n in 1..=3 {
                put(&store.table, &[n as u8], n).expect("room");
                store.db.create_table(&format!("table {n}"), numbers()).expect("room");
            }
        };
        let checkpoint = |store: &Store| {
            for _ in 0..3 {
                let engine = store.table.engine();
                engine.catalog.checkpoint(&engine.log).expect("no sync fails");
            }
        };
        together(&store, &[change, checkpoint]);
        let ops = thread_rng().gen_range(from..=store.sim.ops());
        let kind = [Survivors::None, Survivors::Random, Survivors::All][thread_rng().gen_range(0..3)];
        let mut walk = store.sim.walk();
        walk.seek(ops);
        let after = open(&CrashSim::from_image(&walk.image(kind, ops)));
        let rows = after.table("rows").expect("it was durable");
        let mut done = Vec::new();
        for n in 1..=3u64 {
            done.push(number(&rows, &[n as u8]).is_some());
            done.push(after.table(&format!("table {n}")).is_ok());
        }
        assert!(done.is_sorted_by(|before, after| before >= after), "no prefix: {done:?}, {kind:?} at {ops}");
    });
}

/// The rows of a table in the models of loads: key, number, mark.
type Content = Vec<(u8, u64, Option<u64>)>;

/// What a load finds, and what it puts in the place of that.
const OLD: [(u8, u64, Option<u64>); 3] = [(b'a', 1, None), (b'b', 1, None), (b'c', 1, None)];
const NEW: [(u8, u64, Option<u64>); 3] = [(b'a', 2, None), (b'b', 2, None), (b'd', 2, None)];

fn marked() -> Schema {
    numbers().nullable("mark", Type::U64)
}

fn load(store: &Store, keys: &[u8], n: u64) {
    let loaded = store
        .table
        .load(|loader| keys.iter().try_for_each(|&key| loader.push(&[key][..], &[("n", Value::UInt(n))])));
    loaded.expect("room");
}

/// [`OLD`]: `a` is below, `b` in the log, `c` both; `d` was deleted.
fn old() -> Arc<Store> {
    let store = Store::new(marked());
    load(&store, b"acd", 1);
    put(&store.table, b"b", 1).expect("room");
    put(&store.table, b"c", 1).expect("room");
    assert!(store.table.delete(b"d").expect("room"));
    assert_eq!(content(&store), OLD);
    store
}

fn content(store: &Store) -> Content {
    let row = |row: crate::Result<crate::Row>| {
        let row = row.expect("a row can be read");
        let mark = row.get("mark").expect("the field is there").as_u64();
        (row.key()[0], row.get_as("n").expect("a number"), mark)
    };
    store.table.scan().map(row).collect()
}

/// A scan finds one content whole, and so do reads one after the other: the old, then the new.
#[test]
fn a_load_is_seen_whole_or_not_at_all() {
    explore(|| {
        let store = old();
        let scan = |store: &Store| {
            let found = content(store);
            assert!(found == OLD || found == NEW, "a mix: {found:?}");
        };
        let read = |store: &Store| {
            let found = [b"a", b"b", b"c", b"d"].map(|key| number(&store.table, key));
            let (old, new) = ([Some(1), Some(1), Some(1), None], [Some(2), Some(2), None, Some(2)]);
            let is_old_then_new = |n: usize| found[..n] == old[..n] && found[n..] == new[n..];
            assert!((0..=4).any(is_old_then_new), "{found:?}");
        };
        together(&store, &[|store| load(store, b"abd", 2), scan, read]);
        assert_eq!(content(&store), NEW);
    });
}

/// After a clear nothing is there; before it, all.
#[test]
fn a_clear_of_loaded_rows_is_seen_whole_or_not_at_all() {
    explore(|| {
        let store = old();
        let scan = |store: &Store| {
            let found = content(store);
            assert!(found == OLD || found.is_empty(), "a mix: {found:?}");
        };
        let drop_it = |store: &Store| {
            let table = &store.table;
            let found = [b"a", b"b", b"c", b"d"].map(|key| number(table, key));
            let is_old_then_none = |n: usize| {
                found[..n] == [Some(1), Some(1), Some(1), None][..n] && found[n..] == [None; 4][n..]
            };
            assert!((0..=4).any(is_old_then_none), "{found:?}");
        };
        together(&store, &[|store| store.table.clear().expect("room"), scan, drop_it]);
        assert!(content(&store).is_empty());
    });
}

/// A write of a row is there with the content it went into, or gone with it: never over the other's row.
#[test]
fn writes_beside_a_load_go_into_one_content() {
    explore(|| {
        let store = old();
        let update = |store: &Store| {
            store.table.update(b"a", &[("mark", Value::UInt(9))]).expect("room");
            let mark = store.table.get_field(b"a", "mark").expect("a row can be read").expect("a row");
            assert!(matches!(mark.borrow().as_u64(), None | Some(9)));
        };
        let increment = |store: &Store| {
            let sum = store.table.increment(b"a", "n", 10).expect("room");
            assert!([11, 12, 111, 112].contains(&sum), "{sum}");
        };
        let batch = |store: &Store| {
            let mut batch = Batch::new();
            for key in [b"a", b"b"] {
                batch.increment(&store.table, key, "n", 100).expect("a part");
            }
            store.db.write(&batch).expect("room");
        };
        together(&store, &[|store| load(store, b"abd", 2), update, increment, batch]);
        let [a, b] = [b"a", b"b"].map(|key| number(&store.table, key).expect("a row"));
        assert!([2, 12, 102, 112].contains(&a) && [2, 102].contains(&b), "{a}, {b}");
        assert_eq!(a >= 100, b >= 100, "half a batch");
        let killed = store.killed().table("rows").expect("the table");
        assert_eq!([b"a", b"b"].map(|key| number(&killed, key)), [Some(a), Some(b)]);
        store.db.check_counts().expect("what is counted is there");
    });
}
