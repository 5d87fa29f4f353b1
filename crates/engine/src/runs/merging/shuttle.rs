//! Interleavings of a merge with what is done to the rows in it, explored by `shuttle`. Run as `index/shuttle.rs` says.

use super::{MergeJob, Merged};
use crate::db::shuttle::{Store, move_rows, number, numbers, put, together};
use crate::sync::{Arc, explore_store};
use crate::{Batch, Table, Value};

const ROUNDS: usize = 100;

/// Merges all runs that there are.
fn merge(store: &Store) {
    let engine = store.table.engine();
    let runs = engine.runs.current().runs().iter().map(|run| run.number).collect();
    let mut job = MergeJob { runs, from: Vec::new(), upto: None };
    while engine.runs.merge_slice(&engine.log, &mut job, &engine.tables_for_merge()).expect("room")
        == Merged::Slice
    {}
}

fn set(table: &Table, key: &[u8], n: u64) {
    table.update(key, &[("n", Value::UInt(n))]).expect("room");
}

/// Rows `a`, `b` and `c`, all 1, in a run, and over it one with changes of the first two and without the third.
fn store_of_runs() -> Arc<Store> {
    let store = Store::new(numbers());
    [b"a", b"b", b"c"].iter().for_each(|key| put(&store.table, *key, 0).expect("room"));
    move_rows(&store);
    [b"a", b"b"].iter().for_each(|key| set(&store.table, *key, 1));
    store.table.delete(b"c").expect("room");
    move_rows(&store);
    assert_eq!(store.table.engine().runs.current().runs().len(), 2);
    store
}

/// What is there: now, after all has moved and been merged, and after a kill.
fn check(store: &Store, check: impl Fn(&Table)) {
    check(&store.table);
    store.db.check_counts().expect("what is counted is there");
    (0..2).for_each(|_| move_rows(store));
    merge(store);
    check(&store.table);
    check(&store.killed().table("rows").expect("the table"));
}

#[test]
fn nobody_misses_a_row_that_is_merged_nor_sees_one_that_is_gone() {
    explore_store(ROUNDS, || {
        let store = store_of_runs();
        let write = |store: &Store| {
            set(&store.table, b"a", 2);
            move_rows(store);
        };
        let read = |store: &Store| {
            let mut last = 0;
            for _ in 0..3 {
                let now = number(&store.table, b"a").expect("it is there at all times");
                assert!(now >= last.max(1), "{now} after {last}");
                last = now;
                assert_eq!((number(&store.table, b"b"), number(&store.table, b"c")), (Some(1), None));
                assert_eq!(store.table.scan().count(), 2);
            }
        };
        together(&store, &[merge, write, read]);
        check(&store, |table| assert_eq!(number(table, b"a"), Some(2)));
    });
}

#[test]
fn no_change_to_a_row_that_is_merged_is_lost() {
    explore_store(ROUNDS, || {
        let store = store_of_runs();
        let add = |store: &Store| {
            for _ in 0..2 {
                store.table.increment(b"a", "n", 1).expect("room");
            }
        };
        let delete = |store: &Store| {
            assert!(store.table.delete(b"b").expect("room"));
            move_rows(store);
        };
        together(&store, &[merge, add, add, delete]);
        check(&store, |table| {
            let found = [b"a", b"b", b"c"].map(|key| number(table, key));
            assert_eq!(found, [Some(5), None, None]);
        });
    });
}

#[test]
fn a_snapshot_sees_what_it_saw_while_runs_are_merged() {
    explore_store(ROUNDS, || {
        let store = store_of_runs();
        let write = |store: &Store| {
            let mut batch = Batch::new();
            for key in [b"a", b"b"] {
                batch.update(&store.table, key, &[("n", Value::UInt(2))]).expect("a part");
            }
            store.db.write(&batch).expect("room");
            move_rows(store);
            merge(store);
        };
        let look = |store: &Store| {
            let snapshot = store.db.snapshot();
            let mut before = None;
            for _ in 0..2 {
                let [a, b] = [b"a", b"b"].map(|key| {
                    let n = snapshot.get_field(&store.table, key, "n").expect("a row can be read");
                    n.and_then(|n| n.borrow().as_u64())
                });
                assert!(a == b && a.is_some(), "{a:?} and {b:?}");
                assert_eq!(*before.get_or_insert(a), a);
            }
        };
        together(&store, &[merge, write, look]);
        check(&store, |table| assert_eq!((number(table, b"a"), number(table, b"b")), (Some(2), Some(2))));
    });
}

#[test]
fn a_table_that_is_cleared_while_its_rows_are_merged_is_empty() {
    explore_store(ROUNDS, || {
        let store = store_of_runs();
        let clear = |store: &Store| {
            store.table.clear().expect("room");
            put(&store.table, b"d", 4).expect("room");
        };
        together(&store, &[merge, clear]);
        check(&store, |table| {
            assert_eq!((number(table, b"a"), number(table, b"d")), (None, Some(4)));
            assert_eq!(table.scan().count(), 1);
        });
    });
}
