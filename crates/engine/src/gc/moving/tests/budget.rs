//! Moves within the budget of background I/O, and beyond it.

use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier};

use crate::db::fixture::options;
use crate::{Compression, Db, Options, Schema, Table, row};

const MIB: u64 = 1 << 20;
const FAST_BYTES: u64 = 64 * MIB;
const SEGMENT_BYTES: u64 = 256 << 10;

/// A store with so many bytes a second to move, whose clock stands.
fn open(io_bytes_per_s: u64) -> (Db, Table, Clock) {
    let (sim, clock) = (CrashSim::new(CrashModel::Pages, FAST_BYTES), Clock::manual(1_000));
    let options = Options {
        durability: crate::Durability::Process,
        segment_bytes: SEGMENT_BYTES,
        fast_tier_bytes_max: FAST_BYTES,
        io_bytes_per_s: Some(io_bytes_per_s),
        compression: Compression::None,
        ..options()
    };
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let db = Db::open_at(tiers, options, clock.clone()).unwrap();
    let table = db.create_table("t", Schema::open()).unwrap();
    (db, table, clock)
}

/// Writes rows of 1,000 bytes, from key `first` on, until so many bytes were written.
fn write(table: &Table, first: &mut u64, bytes: u64) {
    for n in *first..*first + bytes / 1_000 {
        table.put(&n, &row! { f: [n as u8; 1_000].as_slice() }).unwrap();
    }
    *first += bytes / 1_000;
}

/// Writes until rows would move.
fn fill(table: &Table, first: &mut u64) {
    while !table.engine().is_short_of_room() {
        write(table, first, SEGMENT_BYTES);
    }
}

#[test]
fn what_moves_keeps_to_the_budget_while_there_is_room() {
    let (db, table, clock) = open(MIB);
    let (engine, mut rows) = (table.engine(), 0);
    fill(&table, &mut rows);
    let begun = engine.io_budget.taken().bytes;
    assert_eq!((begun, db.metrics().records_moved), (0, 0));
    // As much as may move, and a little more: what is missing grows, and is not much after five seconds.
    for _ in 0..500 {
        clock.advance_ms(10);
        write(&table, &mut rows, MIB / 100 + 2_000);
        engine.gc_cycle();
    }
    let (queues, moved) = (db.metrics().queues, db.metrics().bytes_moved);
    assert!(queues.io_bytes <= 5 * MIB + MIB + SEGMENT_BYTES, "{queues:?}");
    assert!(moved > 3 * MIB && queues.io_bytes > 3 * MIB, "{moved}: {queues:?}");
    assert_eq!((queues.io_bytes_beyond, queues.io_bytes_per_s), (0, MIB), "{queues:?}");
    assert!(queues.io_waited_ns > 1_000_000_000, "{queues:?}");
    assert!(engine.missing_landing() > 0);
}

/// A store whose clock stands has spent its budget with the first move.
#[test]
fn no_write_is_refused_for_want_of_budget() {
    let (db, table, _) = open(64 << 10);
    let (engine, mut rows) = (table.engine(), 0);
    for _ in 0..4 * FAST_BYTES / MIB {
        write(&table, &mut rows, MIB);
        while engine.gc_cycle() {}
    }
    let queues = db.metrics().queues;
    assert!(queues.io_bytes_beyond > 2 * FAST_BYTES, "{queues:?}");
    assert_eq!(table.len(), rows);
    assert!((0..rows).step_by(997).all(|n| table.get(&n).unwrap().is_some()));
    // Once there is room it is kept to.
    assert!(!engine.is_move_urgent(), "{}", engine.missing_landing());
    let moved = db.metrics().records_moved;
    fill(&table, &mut rows);
    assert!((0..100).all(|_| !engine.gc_cycle()));
    assert_eq!(db.metrics().records_moved, moved, "nobody waits for it");
}

#[test]
fn a_rate_at_which_nothing_is_done_is_refused() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let options = Options { io_bytes_per_s: Some(1_000), ..options() };
    let refused = Db::open_at(FastTier::simulated(&sim), options, Clock::manual(1_000)).err().unwrap();
    assert!(refused.message().contains("io_bytes_per_s is 1000"), "{refused}");
}
