//! Interleavings of a move with what is done to the rows that move, explored by `shuttle`. Run as `index/shuttle.rs` says.
//!
//! What must hold while rows move must hold while keys are sealed (`gc/sealing/shuttle.rs`): each case is told what is done before the others begin, and what is done beside them.

use crate::db::shuttle::{Store, move_rows, number, numbers, put, together};
use crate::sync::{Arc, explore_store};
use crate::{Batch, Change, Table, Value};

const ROUNDS: usize = 100;

/// What happens to rows that nobody changes by it: before a case begins, and beside it.
pub(in crate::gc) type Steps = (fn(&Store), fn(&Store));

const MOVES: Steps = (|_| (), move_rows);

/// With rows `a` and `b`, both 1, and an appender for each writer.
fn store_of_two(before: fn(&Store)) -> Arc<Store> {
    let store = Store::new(numbers());
    [b"a", b"b"].iter().for_each(|key| put(&store.table, *key, 1).expect("room"));
    before(&store);
    store
}

/// What is there: now, after what could move has moved, and after a kill.
fn check(store: &Store, check: impl Fn(&Table)) {
    check(&store.table);
    store.db.check_counts().expect("what is counted is there");
    (0..2).for_each(|_| move_rows(store));
    check(&store.table);
    store.db.check_counts().expect("what is counted is there after moves");
    check(&store.killed().table("rows").expect("the table"));
}

pub(in crate::gc) fn a_row_that_is_deleted_while_it_moves_stays_deleted((before, beside): Steps) {
    explore_store(ROUNDS, move || {
        let store = store_of_two(before);
        let delete = |store: &Store| assert!(store.table.delete(b"a").expect("room"));
        together(&store, &[beside, delete]);
        check(&store, |table| assert_eq!((number(table, b"a"), number(table, b"b")), (None, Some(1))));
    });
}

pub(in crate::gc) fn nobody_misses_a_row_that_moves_nor_sees_it_grow_old((before, beside): Steps) {
    explore_store(ROUNDS, move || {
        let store = store_of_two(before);
        let write = |store: &Store| (2..=3).for_each(|n| put(&store.table, b"a", n).expect("room"));
        let read = |store: &Store| {
            let mut last = 0;
            for _ in 0..4 {
                let now = number(&store.table, b"a").expect("it is there at all times");
                assert!(now >= last, "{now} after {last}");
                last = now;
                assert_eq!(number(&store.table, b"b"), Some(1));
                assert_eq!(store.table.scan().count(), 2);
            }
        };
        together(&store, &[beside, write, read]);
        check(&store, |table| assert_eq!(number(table, b"a"), Some(3)));
    });
}

/// Rows that were below are in memory as well: who reads them is told nothing older than what he was told before.
pub(in crate::gc) fn nobody_is_told_of_an_older_row_that_is_still_in_memory((before, beside): Steps) {
    explore_store(ROUNDS, move || {
        let store = store_of_two(before);
        move_rows(&store);
        let write_and_move = |store: &Store| {
            for n in 2..=3 {
                put(&store.table, b"a", n).expect("room");
                move_rows(store);
            }
        };
        let read = |store: &Store| {
            let mut last = 0;
            for _ in 0..5 {
                let now = number(&store.table, b"a").expect("it is there at all times");
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
        };
        let tend = |store: &Store| (0..3).for_each(|_| drop(store.table.engine().tend_cache()));
        together(&store, &[write_and_move, read, read, tend, beside]);
        check(&store, |table| assert_eq!(number(table, b"a"), Some(3)));
    });
}

pub(in crate::gc) fn no_change_to_a_row_that_moves_is_lost((before, beside): Steps) {
    explore_store(ROUNDS, move || {
        let store = store_of_two(before);
        let add = |store: &Store| {
            for _ in 0..2 {
                store.table.increment(b"a", "n", 1).expect("room");
            }
        };
        let set = |store: &Store| {
            store.table.update(b"b", &[("n", Value::UInt(7))]).expect("room");
        };
        together(&store, &[beside, add, add, set]);
        check(&store, |table| assert_eq!((number(table, b"a"), number(table, b"b")), (Some(5), Some(7))));
    });
}

pub(in crate::gc) fn a_batch_over_rows_that_move_is_whole_to_a_snapshot((before, beside): Steps) {
    explore_store(ROUNDS, move || {
        let store = store_of_two(before);
        let write = |store: &Store| {
            for n in 2..=3 {
                let mut batch = Batch::new();
                for key in [b"a", b"b"] {
                    batch.update(&store.table, key, &[("n", Value::UInt(n))]).expect("a part");
                }
                store.db.write(&batch).expect("room");
            }
        };
        let look = |store: &Store| {
            for _ in 0..2 {
                let snapshot = store.db.snapshot();
                let [a, b] = [b"a", b"b"].map(|key| {
                    let n = snapshot.get_field(&store.table, key, "n").expect("a row can be read");
                    n.and_then(|n| n.borrow().as_u64())
                });
                assert!(a == b && a.is_some(), "{a:?} and {b:?}");
            }
        };
        together(&store, &[beside, write, look]);
        check(&store, |table| assert_eq!((number(table, b"a"), number(table, b"b")), (Some(3), Some(3))));
    });
}

pub(in crate::gc) fn a_table_that_is_cleared_while_its_rows_move_is_empty((before, beside): Steps) {
    explore_store(ROUNDS, move || {
        let store = store_of_two(before);
        let clear = |store: &Store| {
            store.table.clear().expect("room");
            put(&store.table, b"c", 4).expect("room");
        };
        together(&store, &[beside, clear]);
        check(&store, |table| {
            let found = [b"a", b"b", b"c"].map(|key| number(table, key));
            assert_eq!(found, [None, None, Some(4)]);
            assert_eq!(table.scan().count(), 1);
        });
    });
}

/// Between a look and a write the row is written, and moves: its slot is as if it had never been.
pub(in crate::gc) fn who_saw_no_row_does_not_write_over_one_that_moved((before, beside): Steps) {
    explore_store(ROUNDS, move || {
        let store = store_of_two(before);
        // From here on the table has rows below: else who looks is told by that alone.
        move_rows(&store);
        let put_and_move = |store: &Store| {
            put(&store.table, b"c", 10).expect("room");
            move_rows(store);
        };
        let add = |store: &Store| {
            let change = |row: Option<&crate::RowRef<'_>>| {
                let n: u64 = row.map_or(Ok(0), |row| row.get_as("n"))?;
                Ok((Change::put(&[("n", Value::UInt(n + 1))]), ()))
            };
            store.table.modify(b"c", change).expect("room");
        };
        together(&store, &[put_and_move, add, beside]);
        check(&store, |table| assert!(matches!(number(table, b"c"), Some(10 | 11))));
    });
}

/// Each of them, of moves alone.
mod by_moves {
    use super::MOVES;

    #[test]
    fn a_row_that_is_deleted_while_it_moves_stays_deleted() {
        super::a_row_that_is_deleted_while_it_moves_stays_deleted(MOVES);
    }

    #[test]
    fn nobody_misses_a_row_that_moves_nor_sees_it_grow_old() {
        super::nobody_misses_a_row_that_moves_nor_sees_it_grow_old(MOVES);
    }

    #[test]
    fn nobody_is_told_of_an_older_row_that_is_still_in_memory() {
        super::nobody_is_told_of_an_older_row_that_is_still_in_memory(MOVES);
    }

    #[test]
    fn no_change_to_a_row_that_moves_is_lost() {
        super::no_change_to_a_row_that_moves_is_lost(MOVES);
    }

    #[test]
    fn a_batch_over_rows_that_move_is_whole_to_a_snapshot() {
        super::a_batch_over_rows_that_move_is_whole_to_a_snapshot(MOVES);
    }

    #[test]
    fn a_table_that_is_cleared_while_its_rows_move_is_empty() {
        super::a_table_that_is_cleared_while_its_rows_move_is_empty(MOVES);
    }

    #[test]
    fn who_saw_no_row_does_not_write_over_one_that_moved() {
        super::who_saw_no_row_does_not_write_over_one_that_moved(MOVES);
    }
}
