//! An index in which there is hardly room: rows move before it is full, however little its memory tells.

use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier};

use super::{FAST_BYTES, tight_options};
use crate::gc::moving::pressure::LONG_SNAPSHOT_MS;
use crate::{Batch, Capacity, Db, ErrorKind, Expiry, Options, Schema, Table, Type, row};

const INDEX_BYTES: u64 = 1 << 20;

fn open(sim: &CrashSim) -> (Db, Table) {
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    let options = Options { index_bytes_max: INDEX_BYTES, seal: false, ..tight_options(false) };
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
        nearly_full += u64::from(engine.arena.bytes() * 16 > INDEX_BYTES * 11);
    }
    assert!(nearly_full > 10_000, "{nearly_full} rows came while it was");
}

/// Rows so short that the index is full before the segment that has all of them is: it is sealed.
#[test]
fn rows_move_out_of_what_is_written_to_where_the_index_is_full() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let options = Options {
        fast_tier_bytes_max: 32 << 20,
        index_bytes_max: 256 << 10,
        segment_bytes: 2 << 20,
        seal: false,
        ..tight_options(false)
    };
    let clock = Clock::manual(1_000);
    let db = Db::open_at(tiers, options, clock.clone()).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::U64)).unwrap();
    let engine = table.engine();
    let mut n = fill(&table, 0);
    assert!(engine.log.candidates().is_empty(), "{n} rows filled a segment");
    let snapshot = db.snapshot();
    assert!(engine.may_gain_index(), "a snapshot that may go in a moment keeps all of it");
    clock.advance_ms(LONG_SNAPSHOT_MS);
    assert!(!engine.may_gain_index(), "a snapshot keeps all of it");
    drop(snapshot);
    assert!(engine.may_gain_index(), "a writer with gc's thread beside it would be told Full");
    for _ in 0..3 {
        db.collect().unwrap();
        let more = fill(&table, n);
        assert!(more > 1_000, "{more} rows more than {n}");
        n += more;
    }
    assert_eq!(table.scan().count() as u64, n);
}

/// A short snapshot refuses no new key, neither while it is there nor when it has gone: what a move found nothing for because of it is there to be moved.
#[test]
fn a_short_snapshot_is_waited_for_where_the_index_is_full() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let options = Options { index_bytes_max: INDEX_BYTES, seal: false, ..tight_options(false) };
    let clock = Clock::manual(1_000);
    let db = Db::open_at(tiers, options, clock.clone()).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::U64)).unwrap();
    let engine = table.engine();
    let snapshot = db.snapshot();
    let n = fill(&table, 0);
    assert!(!engine.log.candidates().is_empty(), "{n} rows filled no segment");
    let move_rows = || engine.move_rows().unwrap();
    assert_eq!((move_rows(), engine.may_gain_index()), (0, true), "it may go in a moment");
    drop(snapshot);
    assert!(engine.may_gain_index(), "the next cycle moves what it kept");
    let snapshot = db.snapshot();
    assert!(move_rows() > 0 && fill(&table, n) > 1_000, "it was taken after them");
    clock.advance_ms(LONG_SNAPSHOT_MS);
    while move_rows() > 0 {}
    assert!(!engine.may_gain_index(), "nobody waits for one that may be held for long");
    drop(snapshot);
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

/// Rows with keys in order, which fill each leaf to the brim, until the index is full.
fn fill_in_order(table: &Table, from: u64) -> u64 {
    let put = |n: &u64| match table.put(n, &row! { n: *n }) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::Full => false,
        Err(error) => panic!("row {n}: {error}"),
    };
    (from..).take_while(put).count() as u64
}

/// A store that is full of keys is opened with the memory that it was filled with, though its leaves are not filled to the brim again; it says no more than that new keys have no room, until there is some.
#[test]
fn a_store_with_a_full_index_is_opened_again() {
    for capacity in [Capacity::None, Capacity::Beside] {
        let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
        let options = || Options {
            index_bytes_max: 512 << 10,
            seal: false,
            capacity: capacity.clone(),
            ..tight_options(false)
        };
        let open = |sim: &CrashSim| {
            let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
            let db = Db::open_at(tiers, options(), Clock::manual(1_000)).unwrap();
            let table = db.ensure_table("t", Schema::new().field("n", Type::U64)).unwrap();
            (db, table)
        };
        let (db, table) = open(&sim);
        let rows = fill_in_order(&table, 0);
        assert!(rows > 10_000);
        drop((table, db));
        let sim = CrashSim::from_image(&sim.process_kill());
        let (db, table) = open(&sim);
        let engine = table.engine();
        assert!(engine.arena.bytes() > engine.options.index_bytes_max, "nothing is tested");
        assert_eq!(table.scan().count() as u64, rows);
        let few = fill_in_order(&table, rows);
        assert!(few < 50, "{few} more rows than there is a leaf for");
        table.put(&7u64, &row! { n: 77u64 }).unwrap();
        let mut batch = Batch::new();
        batch.put(&table, &8u64, &row! { n: 88u64 }).unwrap();
        batch.delete(&table, &(rows - 1)).unwrap();
        batch.put(&table, &(rows - 1), &row! { n: rows }).unwrap();
        db.write(&batch).unwrap();
        for n in 0..rows / 4 {
            assert!(table.delete(&n).unwrap(), "row {n}");
        }
        while db.collect().unwrap() > 0 {}
        let more = fill_in_order(&table, rows + few);
        assert!(more > rows / 8, "{more} more rows");
        assert_eq!(table.scan().count() as u64, rows - rows / 4 + few + more);
        db.check_counts().unwrap();
    }
}

/// What had left the index, but not the log, is in the index again when the store is opened: however much that is.
#[test]
fn expired_rows_that_are_in_the_log_still_keep_no_store_closed() {
    let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
    let clock = Clock::manual(1_000);
    let open = |sim: &CrashSim| {
        let options = Options {
            index_bytes_max: 512 << 10,
            capacity: Capacity::None,
            fast_tier_bytes_max: 16 << 20,
            // It is walked.
            saved_index_bytes_min: u64::MAX,
            ..tight_options(false)
        };
        let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
        let db = Db::open_at(tiers, options, clock.clone()).unwrap();
        let table = db.ensure_table("t", Schema::new().field("n", Type::U64)).unwrap();
        (db, table)
    };
    let (db, table) = open(&sim);
    let mut next = 0;
    for wave in 1..=4u64 {
        // Some that stay lie among them, or their segments were freed.
        for n in 0..7_000 {
            let expiry = Expiry::at_unix_ms(if n % 7 == 0 { u64::MAX } else { 1_000 + wave * 1_000 });
            table.put_expiring(&key(next), &row! { n: next }, expiry).unwrap();
            next += 1;
        }
        clock.advance_ms(1_000);
        table.engine().sweep_now();
    }
    assert_eq!(table.len(), 4_000);
    drop((table, db));
    let sim = CrashSim::from_image(&sim.process_kill());
    let (db, table) = open(&sim);
    let engine = table.engine();
    assert!(engine.arena.bytes() > engine.options.index_bytes_max, "nothing is tested");
    engine.sweep_now();
    assert_eq!((table.len(), table.scan().count()), (4_000, 4_000));
    fill_in_order(&table, next);
    db.check_counts().unwrap();
}

/// Rows below are deleted though the index is full and nothing moves: a tombstone that says so has memory kept for it.
#[test]
fn rows_below_are_deleted_where_the_index_is_full() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let (db, table) = open(&sim);
    let below = fill_in_order(&table, 0);
    table.engine().move_now();
    assert!(table.engine().runs.current().counts().rows > below / 8, "little moved");
    let snapshot = db.snapshot();
    let above = fill_in_order(&table, below);
    assert!(table.put(&0u64, &row! { n: 1u64 }).is_err(), "a row below that is written is a new key");
    for n in (0..below / 8).step_by(300) {
        assert!(table.delete(&n).unwrap(), "row {n}");
        table.remove(&(n + 100)).unwrap();
        let mut batch = Batch::new();
        batch.delete(&table, &(n + 200)).unwrap();
        batch.delete(&table, &(n + 201)).unwrap();
        db.write(&batch).unwrap();
        for gone in [n, n + 100, n + 200, n + 201] {
            assert!(table.get(&gone).unwrap().is_none(), "row {gone}");
        }
    }
    drop(snapshot);
    let deleted = (0..below / 8).step_by(300).count() as u64 * 4;
    assert_eq!(table.scan().count() as u64, below + above - deleted);
    db.check_counts().unwrap();
}
