//! Tiers in which there is hardly room: nothing stops moves for good, and what is deleted or replaced makes room.

use hedgerow_device::{
    CapacityTier, Clock, CrashModel, CrashSim, FastTier, Fault, FileCall, Random, Refusal,
};

use super::{FAST_BYTES, move_and_meanwhile, tight_options};
use crate::runs::RoomFor;
use crate::space::Claim;
use crate::{Capacity, Compression, Db, ErrorKind, Expiry, Options, Result, Schema, Table, Type, row};

/// A store of the smallest segments, and its table of bytes.
fn open_of_bytes(sim: &CrashSim, options: Options) -> (Db, Table) {
    open_of_bytes_at(sim, options, &Clock::manual(1_000))
}

fn open_of_bytes_at(sim: &CrashSim, options: Options, clock: &Clock) -> (Db, Table) {
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    let db = Db::open_at(tiers, options, clock.clone()).unwrap();
    let table = db.ensure_table("t", Schema::new().field("f", Type::Bytes).nullable("n", Type::I64)).unwrap();
    (db, table)
}

/// Does it; when the store is full, after rows have moved. The last refusal, if there is room no more.
fn with_room(db: &Db, write: impl Fn() -> Result<()>) -> Result<()> {
    let mut done = write();
    for _ in 0..20 {
        match done {
            Err(error) if error.kind() == ErrorKind::Full => drop(db.collect()),
            done => return done,
        }
        done = write();
    }
    done
}

/// The oldest row takes many extents and is under a delta: it stays in the log, and finds nowhere the room for that until others have moved.
#[test]
fn a_long_row_that_finds_no_room_holds_up_no_move() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let (db, table) = open_of_bytes(&sim, tight_options(false));
    let long = vec![3; 2_060_000];
    table.put(&0u64, &row! { f: long.as_slice() }).unwrap();
    table.update(&0u64, &row! { n: 7 }).unwrap();
    let rows = 3 * FAST_BYTES / 1_000;
    for n in 1..=rows {
        with_room(&db, || table.put(&n, &row! { f: [n as u8; 1_000].as_slice() }))
            .unwrap_or_else(|error| panic!("row {n}: {error}"));
    }
    let row = table.get(&0u64).unwrap().unwrap();
    assert_eq!((row.get_as::<&[u8]>("f").unwrap(), row.get_as::<i64>("n").unwrap()), (&long[..], 7));
    assert_eq!(table.scan().count() as u64, rows + 1);
    db.check_counts().unwrap();
}

/// A store that had no place for sorted tables is full of rows under deltas: with a place for them they move, though each has to find room in the log first.
#[test]
fn a_full_store_that_is_given_a_capacity_tier_goes_on() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let alone = Options { capacity: Capacity::None, ..tight_options(false) };
    let (db, table) = open_of_bytes(&sim, alone);
    let put = |table: &Table, n: u64| table.put(&n, &row! { f: [n as u8; 1_000].as_slice() });
    let rows = (0..).take_while(|n| with_room(&db, || put(&table, *n)).is_ok()).count() as u64;
    let updated =
        (0..).take_while(|n| with_room(&db, || table.update(&(n % rows), &row! { n: *n as i64 })).is_ok());
    assert!(rows > 5_000 && updated.take(40_000).count() > 100);
    drop((table, db));
    let sim = CrashSim::from_image(&sim.process_kill());
    let (db, table) = open_of_bytes(&sim, tight_options(false));
    for n in rows..2 * rows {
        with_room(&db, || put(&table, n)).unwrap_or_else(|error| panic!("row {n} after {rows}: {error}"));
    }
    assert_eq!(table.scan().count() as u64, 2 * rows);
    db.check_counts().unwrap();
}

/// A capacity tier that has less room than one move takes is filled all the same.
#[test]
fn a_capacity_tier_smaller_than_a_move_is_used() {
    const CAPACITY_BYTES: u64 = 900 << 10;
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let options = Options { capacity_bytes_max: CAPACITY_BYTES, ..tight_options(false) };
    let clock = Clock::manual(1_000);
    let (db, table) = open_of_bytes_at(&sim, options, &clock);
    let mut random = Random::from_seed(1);
    let mut row = move || (0..1_000).map(|_| random.next_u64() as u8).collect::<Vec<u8>>();
    let put = |n: u64, row: &[u8]| {
        with_room(&db, || {
            // What was refused is tried again by and by.
            clock.advance_ms(5_000);
            table.put(&n, &row! { f: row })
        })
    };
    let rows = (0..10_000).take_while(|n| put(*n, &row()).is_ok()).count();
    let used = table.engine().runs.bytes().0;
    assert!(used > CAPACITY_BYTES / 2 && used <= CAPACITY_BYTES, "{used} bytes of {rows} rows");
    assert_eq!(table.scan().count(), rows);
}

/// A disk that says it is full when less than a move has been written: less is tried each time.
#[test]
fn less_moves_after_the_capacity_tier_was_full() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let (_db, table) = open_of_bytes(&sim, tight_options(false));
    let engine = table.engine();
    let whole = engine.bytes_to_move(u64::MAX);
    let refused = crate::Error::new(ErrorKind::Full, "no space left on the device");
    let after_refusals = |count: usize| {
        (0..count).for_each(|_| engine.gc.moving_failed(&refused, 1));
        engine.bytes_to_move(u64::MAX)
    };
    assert_eq!((after_refusals(1), after_refusals(1)), (whole / 2, whole / 4));
    assert_eq!(after_refusals(100), 256 << 10, "an extent");
    let io = crate::Error::new(ErrorKind::Io, "unplugged");
    (0..20).for_each(|_| engine.gc.moved_out_of(1, 0));
    engine.gc.moving_failed(&io, 1);
    assert_eq!(engine.bytes_to_move(u64::MAX), whole);
}

/// A row of many extents that is changed while it moves needs as many adjoining ones: without them it stays where it is, and others move.
#[test]
fn a_long_row_that_is_changed_while_it_moves_holds_up_no_move() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let (db, table) = open_of_bytes(&sim, tight_options(false));
    let engine = table.engine();
    let long = vec![3; 1_000_000];
    table.put(&0u64, &row! { f: long.as_slice() }).unwrap();
    (1..50u64).for_each(|n| table.put(&n, &row! { f: [n as u8; 1_000].as_slice() }).unwrap());
    let mut taken = Vec::new();
    move_and_meanwhile(engine, || {
        table.update(&0u64, &row! { n: 7 }).unwrap();
        table.update(&1u64, &row! { n: 8 }).unwrap();
        taken.extend((0..).map_while(|_| engine.log.space().take(1, Claim::LastExtent).unwrap().ok()));
    });
    assert!(taken.len() > 20 && engine.gc.moved().0 > 40);
    let (even, odd): (Vec<u32>, Vec<u32>) = taken.iter().partition(|extent| **extent % 2 == 0);
    let free = |extents: Vec<u32>| {
        extents.into_iter().for_each(|extent| engine.log.space().free(extent..extent + 1));
    };
    // None of them adjoins another.
    free(even);
    db.collect().unwrap();
    let left = format!("{:?}", engine.gc.moved_from.lock());
    assert!(engine.gc.moved_from.lock().is_empty(), "none waits for room: {left} {:?}", engine.room());
    let moved = engine.gc.moved().0;
    (50..99u64).for_each(|n| table.put(&n, &row! { f: [n as u8; 1_000].as_slice() }).unwrap());
    engine.move_now();
    assert!(engine.gc.moved().0 > moved + 40, "others move");
    let check = |table: &Table| {
        let row = table.get(&0u64).unwrap().unwrap();
        assert_eq!((row.get_as::<&[u8]>("f").unwrap(), row.get_as::<i64>("n").unwrap()), (&long[..], 7));
        assert_eq!(table.get(&1u64).unwrap().unwrap().get_as::<i64>("n").unwrap(), 8);
        assert_eq!(table.scan().count(), 99);
    };
    check(&table);
    db.check_counts().unwrap();
    free(odd);
    drop((table, db));
    let killed = CrashSim::from_image(&sim.process_kill());
    check(&open_of_bytes(&killed, tight_options(false)).1);
}

/// Sorted tables have no room for what moves, and much garbage: who collects by hand has them merged, whatever the move said. So it is with little room for merges, and with rows that compress.
#[test]
fn collecting_merges_sorted_tables_that_are_full() {
    const ROWS: u64 = 7_800;
    for (capacity_bytes_max, compression) in
        [(20 << 20, Compression::None), (24 << 20, Compression::None), (8 << 20, Compression::Lz4)]
    {
        let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
        let options = Options { capacity_bytes_max, compression, ..tight_options(false) };
        let clock = Clock::manual(1_000);
        let (db, table) = open_of_bytes_at(&sim, options, &clock);
        let mut random = Random::from_seed(1);
        for n in 0..6 * ROWS {
            let key = if n < ROWS { n } else { random.below(ROWS) };
            let mut row = [n as u8; 1_000];
            row[..300].fill_with(|| random.next_u64() as u8);
            let done = with_room(&db, || {
                clock.advance_ms(5_000);
                table.put(&key, &row! { f: row.as_slice() })
            });
            done.unwrap_or_else(|error| panic!("put {n} of {capacity_bytes_max}: {error}"));
        }
        assert_eq!(table.scan().count() as u64, ROWS);
    }
}

/// Both tiers are full of rows: those that are deleted make room, though each leaves a tombstone first.
#[test]
fn deleting_makes_room_in_full_tiers() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let options = Options { capacity_bytes_max: 4 << 20, ..tight_options(false) };
    let clock = Clock::manual(1_000);
    let (db, table) = open_of_bytes_at(&sim, options, &clock);
    let mut random = Random::from_seed(1);
    let mut row = move || (0..1_000).map(|_| random.next_u64() as u8).collect::<Vec<u8>>();
    let take = |write: &dyn Fn() -> Result<()>| {
        with_room(&db, || {
            clock.advance_ms(5_000);
            write()
        })
    };
    let put = |n: u64, row: &[u8]| take(&|| table.put(&n, &row! { f: row }));
    let rows = (0..20_000).take_while(|n| put(*n, &row()).is_ok()).count() as u64;
    assert!(rows > 8_000, "{rows} rows");
    // The oldest: they are below.
    for n in 0..2_000 {
        take(&|| table.remove(&n)).unwrap_or_else(|error| panic!("delete {n}: {error}"));
    }
    for n in rows..rows + 1_000 {
        put(n, &row()).unwrap_or_else(|error| panic!("put {n} after {rows}: {error}"));
    }
    assert_eq!(table.scan().count() as u64, rows - 1_000);
    db.check_counts().unwrap();
}

/// The same where so many rows are below that no more tombstones than hide a hundredth of them find room in the log.
#[test]
fn deleting_makes_room_however_many_rows_are_below() {
    const LOADED: u64 = 600_000;
    const DELETED: u64 = 80_000;
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let options = Options { capacity_bytes_max: 48 << 20, ..tight_options(false) };
    let clock = Clock::manual(1_000);
    let (db, table) = open_of_bytes_at(&sim, options, &clock);
    let (mut random, mut other) = (Random::from_seed(1), Random::from_seed(2));
    let mut short = || random.next_u64().to_le_bytes();
    table
        .load(|loader| (0..LOADED).try_for_each(|n| loader.push(&n, &row! { f: short().as_slice() })))
        .unwrap();
    let mut long = move || (0..1_000).map(|_| other.next_u64() as u8).collect::<Vec<u8>>();
    let take = |write: &dyn Fn() -> Result<()>| {
        with_room(&db, || {
            clock.advance_ms(5_000);
            write()
        })
    };
    let put = |n: u64, row: &[u8]| take(&|| table.put(&n, &row! { f: row }));
    let rows = (LOADED..LOADED + 60_000).take_while(|n| put(*n, &long()).is_ok()).count() as u64;
    assert!((5_000..60_000).contains(&rows), "{rows} rows");
    for n in 0..DELETED {
        take(&|| table.remove(&n)).unwrap_or_else(|error| panic!("delete {n}: {error}"));
    }
    for n in LOADED + rows..LOADED + rows + 200 {
        put(n, &long()).unwrap_or_else(|error| panic!("put {n} after {rows}: {error}"));
    }
    assert_eq!(table.scan().count() as u64, LOADED + rows + 200 - DELETED);
}

/// A row for which there is no room below stands in the way of none behind it.
#[test]
fn a_long_row_that_does_not_fit_below_holds_up_no_other() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let options =
        Options { capacity_bytes_max: 4 << 20, compression: Compression::None, ..tight_options(false) };
    let clock = Clock::manual(1_000);
    let (db, table) = open_of_bytes_at(&sim, options, &clock);
    let long = vec![3; 3_700_000];
    table.put(&0u64, &row! { f: long.as_slice() }).unwrap();
    let rows = 4_500;
    for n in 1..=rows {
        let put = || {
            clock.advance_ms(5_000);
            table.put(&n, &row! { f: [n as u8; 1_000].as_slice() })
        };
        with_room(&db, put).unwrap_or_else(|error| panic!("row {n}: {error}"));
    }
    assert_eq!(table.get(&0u64).unwrap().unwrap().get_as::<&[u8]>("f").unwrap(), &long[..]);
    assert_eq!(table.scan().count() as u64, rows + 1);
}

/// The longest row that there may be leaves the log as others do; its body is longer than its values.
#[test]
fn the_longest_row_moves() {
    let sim = CrashSim::new(CrashModel::Pages, 256 << 20);
    let options = Options { fast_tier_bytes_max: 256 << 20, ..tight_options(false) };
    let (_db, table) = open_of_bytes(&sim, options);
    let engine = table.engine();
    let long = vec![3; crate::limits::ROW_BYTES_MAX];
    table.put(&0u64, &row! { f: long.as_slice() }).unwrap();
    table.put(&1u64, &row! { f: b"short".as_slice() }).unwrap();
    engine.move_now();
    assert_eq!(engine.runs.current().counts().rows, 2);
    assert_eq!(table.get(&0u64).unwrap().unwrap().get_as::<&[u8]>("f").unwrap(), &long[..]);
}

/// What is left of the disk bounds what moves as the limit does, and some of either is kept for merges; loads leave as much of the limit.
#[test]
fn room_is_what_the_disk_has_and_some_of_it_is_kept() {
    const MIB: u64 = 1 << 20;
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let (_db, table) = open_of_bytes(&sim, tight_options(false));
    let runs = &table.engine().runs;
    table.put(&1u64, &row! { f: b"x".as_slice() }).unwrap();
    table.engine().move_now();
    assert!(runs.room_to_move() > 1 << 60, "nothing bounds it");
    sim.limit_disk(100 * MIB);
    let room = runs.room_to_move();
    assert!(room > 50 * MIB && room < 99 * MIB, "{room}");
    sim.limit_disk(10 * MIB);
    assert!(runs.room_to_move() < 9 * MIB && !runs.is_tight());
    {
        // A backup holds them off, or one is under way.
        let _edits = runs.hold_off_edits();
        assert!(runs.room_to_move() < 9 * MIB, "as much as before: {}", runs.room_to_move());
    }
    sim.limit_disk(0);
    assert!(runs.room_to_move() == 0 && runs.is_tight());
    let refused = runs.check_room_to_move(1, RoomFor::Rows).unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Full && refused.message().contains("their disk has 0 free"),
        "{refused}"
    );

    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let options =
        Options { capacity_bytes_max: 4 * MIB, compression: Compression::None, ..tight_options(false) };
    let (_db, table) = open_of_bytes(&sim, options);
    let load = |rows: u64| {
        let row = [7; 1_000];
        table.load(|loader| (0..rows).try_for_each(|n| loader.push(&n, &row! { f: row.as_slice() })))
    };
    let refused = load(3_700).unwrap_err();
    assert!(refused.kind() == ErrorKind::Full && refused.message().contains("kept for merges"), "{refused}");
    load(2_500).unwrap();
    assert_eq!(table.scan().count(), 2_500);
}

/// Two tiers full of rows that nobody can read any more, of which none was written twice: they make room for others, and go.
#[test]
fn rows_that_expired_in_full_tiers_make_room() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let options = Options { capacity_bytes_max: 2 * FAST_BYTES, ..tight_options(false) };
    let clock = Clock::manual(1_000);
    let (db, table) = open_of_bytes_at(&sim, options, &clock);
    let mut random = Random::from_seed(1);
    let mut row = move || (0..1_000).map(|_| random.next_u64() as u8).collect::<Vec<u8>>();
    let mut put = |n: u64, expiry| {
        let row = row();
        with_room(&db, || {
            clock.advance_ms(5_000);
            table.put_expiring(&n, &row! { f: row.as_slice() }, expiry)
        })
    };
    let at_ms = 1_000_000_000;
    let expiring = (0..).take_while(|n| put(*n, Expiry::at_unix_ms(at_ms)).is_ok()).count() as u64;
    assert!(expiring > 2 * FAST_BYTES / 1_000, "{expiring} rows");
    clock.advance_ms(at_ms);
    let stay = 2 * FAST_BYTES / 1_200;
    for n in 0..stay {
        put(1_000_000 + n, Expiry::Never).unwrap_or_else(|error| panic!("row {n}: {error}"));
    }
    assert_eq!(table.scan().count() as u64, stay);
    db.collect().unwrap();
    let counted = db.engine().runs.current().counts().rows;
    assert!(counted < stay + expiring / 8, "{counted} rows in sorted tables, {stay} of which are there");
    db.check_counts().unwrap();
}

/// Without threads, whoever collects has what expired removed.
#[test]
fn expired_rows_make_room_in_a_store_without_threads() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let options = Options { capacity: Capacity::None, ..tight_options(false) };
    let clock = Clock::manual(1_000);
    let (db, table) = open_of_bytes_at(&sim, options, &clock);
    let put = |n: u64, expiry| table.put_expiring(&n, &row! { f: [n as u8; 1_000].as_slice() }, expiry);
    let mut rows = 0;
    while put(rows, Expiry::at_unix_ms(5_000)).is_ok() {
        rows += 1;
    }
    assert!(rows > 5_000 && db.collect().is_ok() && put(rows, Expiry::Never).is_err(), "{rows} rows");
    clock.advance_ms(5_000);
    db.collect().unwrap();
    assert_eq!(table.len(), 0);
    for n in 0..rows / 2 {
        with_room(&db, || put(n, Expiry::Never)).unwrap_or_else(|error| panic!("row {n}: {error}"));
    }
    db.check_counts().unwrap();
}

/// Which sorted tables count is written into files of a fixed length, of which half is left where the disk has no room for the next: what makes room goes there.
#[test]
fn edits_that_make_room_need_none() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let (db, table) = open_of_bytes(&sim, tight_options(false));
    let engine = table.engine();
    let count = || (engine.log.root().manifest, engine.runs.files_once().len());
    // An edit has the first and the last key of each file: two such take nearly all of the least there is.
    let key = vec![7u8; 60_000];
    for name in ["a", "b", "c"] {
        let table = db.create_table(name, Schema::new().field("n", Type::I64)).unwrap();
        let key = if name == "a" { &b"short"[..] } else { &key };
        table.load(|loader| loader.push(key, &row! { n: 1 })).unwrap();
    }
    let (pair, files) = count();
    assert_eq!(files, 3);
    let refused = |after| Fault { after, sticky: true, refusal: Refusal::NoSpace };
    sim.fail_file_calls(FileCall::Create, refused(0));
    db.drop_table("a").unwrap();
    db.drop_table("b").unwrap();
    assert_eq!(count(), (pair, 1), "no room for another pair, and files went");
    sim.fail_file_calls(FileCall::Create, refused(1 << 30));
    db.drop_table("c").unwrap();
    assert_eq!(count(), (pair + 3, 0), "the third try, long before the pair is used up");
    db.check_counts().unwrap();
}

/// What a table that was dropped had there is room at once: no move waits out the pause of the last one that was refused.
#[test]
fn a_table_that_is_dropped_makes_room_for_moves() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let options = Options { capacity_bytes_max: 900 << 10, ..tight_options(false) };
    let (db, table) = open_of_bytes(&sim, options);
    let other = db.create_table("other", Schema::new().field("f", Type::Bytes)).unwrap();
    let (mut random, mut rows) = (Random::from_seed(2), 0..);
    let mut noise = move || (0..1_000).map(|_| random.next_u64() as u8).collect::<Vec<u8>>();
    other.load(|loader| (0..400u64).try_for_each(|n| loader.push(&n, &row! { f: &noise()[..] }))).unwrap();
    let mut put = || {
        let (n, row): (u64, _) = (rows.next().unwrap(), noise());
        with_room(&db, || table.put(&n, &row! { f: &row[..] }))
    };
    let refused = (0..10_000).find_map(|_| put().err()).expect("both tiers become full");
    assert_eq!(refused.kind(), ErrorKind::Full);
    let engine = table.engine();
    // As after many refusals, on a clock that stands still.
    (0..10).for_each(|_| engine.gc.moving_failed(&refused, engine.clock.monotonic_ns()));
    assert!(!engine.can_move());
    drop(other);
    db.drop_table("other").unwrap();
    (0..100).for_each(|_| put().expect("there is room again"));
}

/// Sorted tables take more than they may since the store was opened with less: writes are refused once the log is full, and what is deleted makes room in both.
#[test]
fn deleting_makes_room_where_the_limit_is_exceeded() {
    const LOADED: u64 = 6_000;
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let unbounded = Options { compression: Compression::None, ..tight_options(false) };
    let (db, table) = open_of_bytes(&sim, unbounded.clone());
    let row = [7; 1_000];
    table.load(|loader| (0..LOADED).try_for_each(|n| loader.push(&n, &row! { f: row.as_slice() }))).unwrap();
    drop((table, db));
    let (options, clock) = (Options { capacity_bytes_max: 4 << 20, ..unbounded }, Clock::manual(1_000));
    let (db, table) = open_of_bytes_at(&sim, options, &clock);
    let take = |write: &dyn Fn() -> Result<()>| {
        with_room(&db, || {
            clock.advance_ms(5_000);
            write()
        })
    };
    let put = |n: u64| take(&|| table.put(&n, &row! { f: row.as_slice() }));
    let before = db.engine().runs.bytes().0;
    let rows = (LOADED..20_000).take_while(|n| put(*n).is_ok()).count() as u64;
    let there = db.engine().runs.bytes().0;
    assert!(rows > 2_000 && there <= before, "{rows} rows, and {there} bytes of {before}");
    for n in 0..LOADED / 4 * 3 {
        take(&|| table.remove(&n)).unwrap_or_else(|error| panic!("delete {n}: {error}"));
    }
    for n in LOADED + rows..LOADED + rows + 500 {
        put(n).unwrap_or_else(|error| panic!("put {n}: {error}"));
    }
    let there = db.engine().runs.bytes().0;
    assert!(there <= 4 << 20, "{there} bytes");
    assert_eq!(table.scan().count() as u64, LOADED / 4 + rows + 500);
    db.check_counts().unwrap();
}
