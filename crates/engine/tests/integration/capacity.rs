//! When rows move to sorted tables, and where these are: what bounds a store has its rows move, and what has no place for them is full.

use std::path::Path;

use hedgerow::{
    CAPACITY_DIRECTORY, Capacity, Db, Durability, ErrorKind, Options, Result, Schema, Table, Type, row,
};
use hedgerow_device::{CapacityTier, CrashModel, CrashSim, FastTier};
use hedgerow_sim::Scratch;

const LIMIT: u64 = 8 << 20;
const ROW_BYTES: usize = 1_000;
/// Of these more than twice the limit.
const ROWS: u64 = 20_000;

fn options() -> Options {
    Options {
        durability: Durability::Process,
        segment_bytes: 256 << 10,
        background: false,
        recovery_threads: 1,
        ..Options::default()
    }
}

fn limited() -> Options {
    options().fast_tier_bytes_max(LIMIT)
}

/// Puts a row; where there is no room for it the store, which has no threads, is told to make some.
fn put(db: &Db, table: &Table, n: u64, bytes: usize) -> Result<()> {
    let put = || table.put(&n, &row! { n: n, text: &vec![n as u8; bytes][..] });
    put().or_else(|_| db.collect().and_then(|_| put()))
}

/// Puts rows, as many as are taken; returns how many those are, and why it was not all.
fn fill(db: &Db, bytes: usize) -> (u64, Option<ErrorKind>) {
    let table = db.ensure_table("t", Schema::new().field("n", Type::U64).field("text", Type::Bytes)).unwrap();
    let refused = (0..ROWS).find_map(|n| Some((n, put(db, &table, n, bytes).err()?.kind())));
    let rows = refused.map_or(ROWS, |(rows, _)| rows);
    has(db, rows);
    (rows, refused.map(|(_, kind)| kind))
}

fn has(db: &Db, rows: u64) {
    let table = db.table("t").unwrap();
    // Of keys that were put again over rows below `len` may count too many.
    assert_eq!(table.scan().count() as u64, rows);
    for n in 0..rows {
        let row = table.get(&n).unwrap().unwrap_or_else(|| panic!("row {n} is gone"));
        assert_eq!(row.get_as::<u64>("n").unwrap(), n);
    }
}

fn moved(db: &Db) -> u64 {
    let metrics = db.metrics();
    assert_eq!(metrics.records_moved > 0, metrics.sorted_tables.runs > 0, "{metrics:?}");
    metrics.records_moved
}

fn has_capacity(store: &Path) -> bool {
    store.join(CAPACITY_DIRECTORY).exists()
}

#[test]
fn a_limit_of_the_fast_tier_has_rows_move() {
    let scratch = Scratch::made("capacity-fast");
    let db = Db::open_with(scratch.path(), limited()).unwrap();
    assert!(!has_capacity(scratch.path()), "nothing has moved yet");
    assert_eq!(fill(&db, ROW_BYTES), (ROWS, None));
    assert!(moved(&db) > 0 && has_capacity(scratch.path()));
    db.close().unwrap();
    has(&Db::open_with(scratch.path(), options()).unwrap(), ROWS);
}

#[test]
fn a_limit_of_the_index_has_rows_move() {
    // Sealed keys would leave room for others.
    let bounded = |capacity| options().index_bytes_max(256 << 10).seal(false).capacity(capacity);
    let scratch = Scratch::made("capacity-index");
    let [beside, none] = ["beside", "none"].map(|name| scratch.join(name));
    let db = Db::open_with(&beside, bounded(Capacity::Beside)).unwrap();
    assert_eq!(fill(&db, 10), (ROWS, None));
    assert!(moved(&db) > 0 && has_capacity(&beside));

    let db = Db::open_with(&none, bounded(Capacity::None)).unwrap();
    let (rows, refused) = fill(&db, 10);
    assert!(rows < ROWS && refused == Some(ErrorKind::Full), "{rows} rows");
    assert!(moved(&db) == 0 && !has_capacity(&none));
}

/// The disk of the log has little room; with a directory named, which may be on another, rows leave it.
#[test]
fn a_directory_that_is_named_has_rows_move() {
    let scratch = Scratch::made("capacity-named");
    let directory = scratch.join("large");
    let filled = |capacity: Capacity| {
        let sim = CrashSim::new(CrashModel::Pages, 1 << 40);
        sim.limit_disk(LIMIT);
        let db = Db::open_on(FastTier::simulated(&sim), options().capacity(capacity)).unwrap();
        let (rows, refused) = fill(&db, ROW_BYTES);
        (rows, refused, moved(&db) > 0)
    };
    assert_eq!(filled(directory.as_path().into()), (ROWS, None, true));
    assert!(directory.exists());
    let (rows, refused, moved) = filled(Capacity::Beside);
    assert!(rows < ROWS && refused == Some(ErrorKind::Full) && !moved, "{rows} rows");
}

/// Nothing bounds it but its disk, though there is a place for sorted tables, which loads have.
#[test]
fn a_store_without_a_bound_moves_nothing() {
    let scratch = Scratch::made("capacity-unbounded");
    let db = Db::open_with(scratch.path(), options()).unwrap();
    assert_eq!(fill(&db, ROW_BYTES), (ROWS, None));
    assert!(moved(&db) == 0 && !has_capacity(scratch.path()));
    assert_eq!(db.metrics().sorted_tables.bytes_to_move, 0);

    let sim = CrashSim::new(CrashModel::Pages, LIMIT);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let db = Db::open_on(tiers, options()).unwrap();
    let loaded = db.create_table("loaded", Schema::new().field("n", Type::U64)).unwrap();
    loaded.load(|loader| (0..100u64).try_for_each(|n| loader.push(&n, &row! { n: n }))).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::U64).field("text", Type::Bytes)).unwrap();
    let refused = (0..ROWS).find_map(|n| put(&db, &table, n, ROW_BYTES).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::Full);
    assert_eq!((db.metrics().records_moved, db.metrics().sorted_tables.bytes_to_move), (0, 0));
}

/// What it always was: full at its limit, until it is opened with a place for sorted tables.
#[test]
fn a_store_that_was_full_goes_on_once_it_has_a_place_for_sorted_tables() {
    let scratch = Scratch::made("capacity-none");
    let none = || limited().capacity(Capacity::None);
    let db = Db::open_with(scratch.path(), none()).unwrap();
    let loaded = db.create_table("loaded", Schema::new().field("n", Type::U64)).unwrap();
    let (rows, refused) = fill(&db, ROW_BYTES);
    assert!(rows < LIMIT / ROW_BYTES as u64 && refused == Some(ErrorKind::Full), "{rows} rows");
    assert!(moved(&db) == 0 && !has_capacity(scratch.path()));
    let refused = loaded.load(|loader| loader.push(&1u64, &row! { n: 1 })).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.message().contains("Options::capacity"), "{refused}");
    drop(loaded);
    db.close().unwrap();

    let only_read = Db::open_with(scratch.path(), limited().read_only(true)).unwrap();
    has(&only_read, rows);
    assert_eq!(only_read.metrics().sorted_tables.bytes_to_move, 0);
    drop(only_read);

    let db = Db::open_with(scratch.path(), limited()).unwrap();
    has(&db, rows);
    assert_eq!(fill(&db, ROW_BYTES), (ROWS, None));
    assert!(moved(&db) > 0 && has_capacity(scratch.path()));
    db.close().unwrap();

    let refused = Db::open_with(scratch.path(), none()).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.message().contains("without a place for them"), "{refused}");
    has(&Db::open_with(scratch.path(), limited().read_only(true)).unwrap(), ROWS);
}

/// A store that is to have no sorted tables, of which it has not been told otherwise.
#[test]
fn no_bytes_for_sorted_tables_are_no_place() {
    let scratch = Scratch::made("capacity-no-bytes");
    let db = Db::open_with(scratch.path(), limited().capacity_bytes_max(0)).unwrap();
    let (rows, refused) = fill(&db, ROW_BYTES);
    assert!(rows < ROWS && refused == Some(ErrorKind::Full), "{rows} rows");
    assert!(moved(&db) == 0 && !has_capacity(scratch.path()));
    assert_eq!(db.metrics().sorted_tables.bytes_to_move, 0);
}

/// Keys at random, of which each move takes some out of every leaf: what becomes room in leaves is used.
#[test]
fn an_index_at_its_limit_takes_any_number_of_random_keys() {
    const KEYS: u64 = 1_000_000;
    let scratch = Scratch::made("capacity-random");
    let options = Options { background: true, ..options() };
    let options = options.fast_tier_bytes_max(64 << 20).index_bytes_max(8 << 20);
    let db = Db::open_with(scratch.path(), options).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::U64)).unwrap();
    let key =
        |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    for n in 0..KEYS {
        table
            .put(&key(n), &row! { n: n })
            .unwrap_or_else(|error| panic!("row {n}: {error}, {:?}", db.metrics()));
    }
    assert!(db.metrics().sorted_tables.moves > 1, "{:?}", db.metrics());
    for n in (0..KEYS).step_by(97) {
        assert_eq!(table.get(&key(n)).unwrap().unwrap().get_as::<u64>("n").unwrap(), n);
    }
}
