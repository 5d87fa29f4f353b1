//! An index in which there is hardly room: rows move before it is full, however little its memory tells.

use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier};

use super::{FAST_BYTES, tight_options};
use crate::{Db, ErrorKind, Options, Schema, Table, Type, row};

const INDEX_BYTES: u64 = 1 << 20;

fn open(sim: &CrashSim) -> (Db, Table) {
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    let options = Options { index_bytes_max: INDEX_BYTES, ..tight_options(false) };
    let db = Db::open_at(tiers, options, Clock::manual(1_000)).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::U64)).unwrap();
    (db, table)
}

/// The key of row `n`, anywhere among the others.
fn key(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Writes rows until the index is full; how many they were.
fn fill(table: &Table, from: u64) -> u64 {
    let put = |n: &u64| match table.put(&key(*n), &row! { n: *n }) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::Full => false,
        Err(error) => panic!("row {n}: {error}"),
    };
    (from..).take_while(put).count() as u64
}

/// What moved leaves sparse leaves behind, none of which is given back: how full the index is shows by the number of keys, once it was full.
#[test]
fn rows_move_before_an_index_of_sparse_leaves_is_full() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let (_db, table) = open(&sim);
    let engine = table.engine();
    let first = fill(&table, 0);
    assert!(first > 10_000, "{first} rows");
    assert!(engine.wants_move() && engine.missing_landing() == 0);
    engine.move_now();
    // Up to where nothing was asked before.
    let mut n = first;
    while !engine.wants_move() {
        let put = table.put(&key(n), &row! { n: n });
        put.unwrap_or_else(|error| panic!("row {n} of {first} and as many: {error}"));
        n += 1;
    }
    assert!(engine.missing_landing() == 0, "the log has room");
    let refused = fill(&table, n);
    assert!(refused * 8 > first, "{refused} rows later it is full, of {first}");
    assert_eq!(table.scan().count() as u64, n + refused);
}

/// Not even the first time is a key refused, if rows move when they are to.
#[test]
fn an_index_that_was_never_full_does_not_fill_up() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let (_db, table) = open(&sim);
    let engine = table.engine();
    let mut nearly_full = 0;
    for n in 0..400_000 {
        if engine.wants_move() {
            engine.move_now();
        }
        let put = table.put(&key(n), &row! { n: n });
        put.unwrap_or_else(|error| panic!("row {n}: {error}"));
        nearly_full += u64::from(engine.arena.bytes() as u64 * 16 > INDEX_BYTES * 15);
    }
    assert!(nearly_full > 10_000, "{nearly_full} rows came while it was");
}

/// A move makes room in the index, and collecting does not, however much is obsolete.
#[test]
fn a_move_comes_first_where_the_index_is_full() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let (db, table) = open(&sim);
    let engine = table.engine();
    let rows = fill(&table, 0);
    // Most of the log is of rows that were written again, and it is nearly full.
    for n in (0..200u64).flat_map(|_| 0..rows / 16) {
        match table.put(&key(n), &row! { n: n }) {
            Err(error) if error.kind() == ErrorKind::Full => break,
            put => put.unwrap(),
        }
        if engine.missing_landing() > 0 {
            break;
        }
    }
    assert!(engine.missing_landing() > 0);
    let moves = engine.gc.moves();
    db.collect().unwrap();
    assert!(engine.gc.moves() > moves, "no move in the first cycle");
    assert_eq!(table.scan().count() as u64, rows);
}
