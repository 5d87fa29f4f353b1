//! Interleavings of a seal, of a merge of groups, and of moves and cycles over what is sealed, with what is done to the rows, explored by `shuttle`. Run as `index/shuttle.rs` says.

use ::shuttle::thread;

use crate::db::shuttle::{Store, move_rows, number, numbers, put, together};
use crate::gc::moving::shuttle::{
    Steps, a_batch_over_rows_that_move_is_whole_to_a_snapshot,
    a_row_that_is_deleted_while_it_moves_stays_deleted, a_table_that_is_cleared_while_its_rows_move_is_empty,
    no_change_to_a_row_that_moves_is_lost, nobody_is_told_of_an_older_row_that_is_still_in_memory,
    nobody_misses_a_row_that_moves_nor_sees_it_grow_old, who_saw_no_row_does_not_write_over_one_that_moved,
};
use crate::sync::explore_store;

const ROUNDS: usize = 100;

/// More groups than there will be: none is merged.
const NEVER: usize = 99;

fn seal(store: &Store) {
    store.table.engine().seal_now(NEVER);
}

fn seal_and_merge(store: &Store) {
    store.table.engine().seal_now(0);
}

/// The newest groups are made one, and stay above others.
fn seal_and_merge_some(store: &Store) {
    seal(store);
    store.table.engine().merge_in_l0_now(0..2);
}

fn seal_and_move(store: &Store) {
    seal(store);
    move_rows(store);
}

/// Keys are sealed while their rows are on their way below.
fn seal_beside_a_move(store: &Store) {
    let table = store.table.clone();
    let sealing = thread::spawn(move || table.engine().seal_now(NEVER));
    move_rows(store);
    sealing.join().expect("a seal");
}

/// A cycle of which everything is a victim.
fn relocate(store: &Store) {
    store.table.engine().seal_all_and_collect();
}

fn seal_and_relocate(store: &Store) {
    seal(store);
    relocate(store);
    seal_and_merge(store);
}

/// What was copied has left groups: of that the one that comes of two says nothing.
fn relocate_and_merge_some(store: &Store) {
    relocate(store);
    seal_and_merge_some(store);
}

/// What is done before the others begin, and what beside them.
const CASES: [Steps; 9] = [
    (|_| (), seal),
    (seal, move_rows),
    (|_| (), seal_and_move),
    (|_| (), seal_beside_a_move),
    (seal, seal_beside_a_move),
    (seal, relocate),
    (seal, seal_and_relocate),
    (seal, seal_and_merge_some),
    (seal, relocate_and_merge_some),
];

#[test]
fn a_row_that_is_deleted_while_its_key_is_sealed_stays_deleted() {
    CASES.into_iter().for_each(a_row_that_is_deleted_while_it_moves_stays_deleted);
}

#[test]
fn nobody_misses_a_row_whose_key_is_sealed_nor_sees_it_grow_old() {
    CASES.into_iter().for_each(nobody_misses_a_row_that_moves_nor_sees_it_grow_old);
}

#[test]
fn nobody_is_told_of_an_older_row_that_is_in_memory_and_sealed() {
    CASES.into_iter().for_each(nobody_is_told_of_an_older_row_that_is_still_in_memory);
}

#[test]
fn no_change_to_a_row_whose_key_is_sealed_is_lost() {
    CASES.into_iter().for_each(no_change_to_a_row_that_moves_is_lost);
}

#[test]
fn a_batch_over_rows_whose_keys_are_sealed_is_whole_to_a_snapshot() {
    CASES.into_iter().for_each(a_batch_over_rows_that_move_is_whole_to_a_snapshot);
}

#[test]
fn a_table_that_is_cleared_while_its_keys_are_sealed_is_empty() {
    CASES.into_iter().for_each(a_table_that_is_cleared_while_its_rows_move_is_empty);
}

#[test]
fn who_saw_no_row_does_not_write_over_one_whose_key_was_sealed() {
    CASES.into_iter().for_each(who_saw_no_row_does_not_write_over_one_that_moved);
}

/// A sealed row does not count any more once its segment is marked, and what is below has it by then. In memory is what was below before.
#[test]
fn nobody_is_told_of_an_older_row_in_memory_while_a_sealed_one_moves() {
    explore_store(ROUNDS, || {
        let store = Store::new(numbers());
        put(&store.table, b"a", 1).expect("room");
        move_rows(&store);
        for _ in 0..4 {
            assert_eq!(number(&store.table, b"a"), Some(1));
            store.table.engine().tend_cache();
        }
        assert!(store.table.engine().runs.record_cache().is_some_and(|records| records.hits() > 0));
        put(&store.table, b"a", 2).expect("room");
        seal(&store);
        let read = |store: &Store| (0..6).for_each(|_| assert_eq!(number(&store.table, b"a"), Some(2)));
        together(&store, &[move_rows, read]);
    });
}

/// Whoever reads beside a clear sees a row as it was last, or none: never what a group had of it before.
#[test]
fn a_table_that_is_cleared_shows_nothing_that_was_written_over() {
    for deletes in [false, true] {
        explore_store(ROUNDS, move || {
            let store = Store::new(numbers());
            put(&store.table, b"a", 1).expect("room");
            seal(&store);
            match deletes {
                true => assert!(store.table.delete(b"a").expect("room")),
                false => put(&store.table, b"a", 2).expect("room"),
            }
            let clear = |store: &Store| store.table.clear().expect("room");
            let read = |store: &Store| (0..3).for_each(|_| assert_ne!(number(&store.table, b"a"), Some(1)));
            together(&store, &[clear, read]);
        });
    }
}

/// What moved of the table that it was is not taken off what is counted of the one that it is.
#[test]
fn a_table_that_is_cleared_while_sealed_rows_move_counts_its_own() {
    explore_store(ROUNDS, || {
        let store = Store::new(numbers());
        [b"a", b"b"].iter().for_each(|key| put(&store.table, *key, 1).expect("room"));
        seal(&store);
        let clear = |store: &Store| {
            store.table.clear().expect("room");
            put(&store.table, b"c", 4).expect("room");
        };
        together(&store, &[move_rows, clear]);
        seal(&store);
        assert_eq!(store.table.len(), 1);
    });
}
