//! Tables that are too small for an extent of leaves each.

use super::*;

const TABLES: u64 = 80;
const KEYS: u64 = 1_500;

fn name_of(table: u64) -> String {
    format!("small{table}")
}

/// What has to be of all tables but those that are gone.
fn check(db: &Db, tables: impl Iterator<Item = u64>, n_of: impl Fn(u64, u64) -> Option<u64>) {
    for at in tables {
        let table = db.table(&name_of(at)).unwrap();
        for key in 0..KEYS {
            let found = table.get_field(&key, "n").unwrap().and_then(|n| n.borrow().as_u64());
            assert_eq!(found, n_of(at, key), "{key} of {at}");
        }
        let expected = (0..KEYS).filter(|key| n_of(at, *key).is_some()).count();
        assert_eq!((table.len() as usize, table.scan().count()), (expected, expected));
    }
    db.check_counts().unwrap();
}

fn many_tables(sim: &CrashSim) -> Db {
    let db = open(sim, small_index());
    for at in 0..TABLES {
        let table = db.create_table(&name_of(at), Schema::new().field("n", Type::U64)).unwrap();
        (0..KEYS).for_each(|key| with_room(&db, || table.put(&key, &row! { n: key + at })));
    }
    db
}

fn sealed_rows(db: &Db) -> u64 {
    db.engine().catalog.all().iter().map(|table| table.levels.sealed_rows()).sum()
}

#[test]
fn tables_with_few_keys_each_share_extents() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = many_tables(&sim);
    let engine = std::sync::Arc::clone(db.engine());
    assert!(sealed_rows(&db) > TABLES * KEYS / 4, "{} of {} keys", sealed_rows(&db), TABLES * KEYS);
    assert!(engine.log.leaf_extents() <= 20, "{} extents", engine.log.leaf_extents());
    let memory = |table: &crate::sync::Arc<_>| {
        let table: &crate::db::engine::TableShared = table;
        table.levels.sealed_memory_bytes() - table.levels.filter_bytes()
    };
    let memory: u64 = engine.catalog.all().iter().map(memory).sum();
    assert!(memory <= TABLES << 11, "{} bytes of memory for the groups of a table", memory / TABLES);
    check(&db, 0..TABLES, |at, key| Some(key + at));
    // Some go, some change, and are sealed again and merged.
    (0..TABLES).filter(|at| at % 3 == 0).for_each(|at| assert!(db.drop_table(&name_of(at)).unwrap()));
    let left = || (0..TABLES).filter(|at| at % 3 != 0);
    for round in 1..4 {
        for at in left().filter(|at| at % 3 == 1) {
            let table = db.table(&name_of(at)).unwrap();
            (0..KEYS).filter(|key| key % 2 == 0).for_each(|key| {
                with_room(&db, || table.put(&key, &row! { n: round }));
            });
            (0..KEYS).filter(|key| key % 5 == 1).for_each(|key| {
                with_room(&db, || table.delete(&key));
            });
        }
        engine.seal_now(round as usize - 1);
    }
    engine.log.free_retired_leaves();
    let n_of = |at: u64, key: u64| match (at % 3, key % 2, key % 5) {
        (1, _, 1) if key % 2 == 1 => None,
        (1, 0, 1) => None,
        (1, 0, _) => Some(3),
        _ => Some(key + at),
    };
    check(&db, left(), n_of);
    let killed = CrashSim::from_image(&sim.process_kill());
    let extents = engine.log.leaf_extents();
    drop(engine);
    db.close().unwrap();
    let mut opened = Vec::new();
    for (sim, is_saved, threads) in [(&sim, true, 1), (&killed, false, 2)] {
        let db = open(sim, Options { recovery_threads: threads, ..small_index() });
        assert_eq!(db.metrics().index_was_saved, is_saved);
        assert!(!is_saved || db.engine().log.leaf_extents() <= extents);
        let bytes = db.engine().arena.bytes();
        assert!(bytes <= INDEX_BYTES / 4 * 3, "what is more is sealed as it is built: {bytes}");
        check(&db, left(), n_of);
        opened.push(db);
    }
    // Nothing of an extent is free before all in it have let go, and all of it is then.
    for db in opened {
        left().for_each(|at| assert!(db.drop_table(&name_of(at)).unwrap()));
        db.engine().log.free_retired_leaves();
        assert_eq!(db.engine().log.leaf_extents(), 0);
    }
}

/// Each of the parts that threads build has fewer keys than an extent of leaves is worth.
#[test]
fn a_table_is_sealed_as_a_whole_by_whoever_builds_a_part_of_it() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim, small_index());
    let table = table_of(&db);
    (0..30_000u64).for_each(|key| with_room(&db, || table.put(&key, &row! { n: key })));
    let killed = CrashSim::from_image(&sim.process_kill());
    drop((table, db));
    let db = open(&killed, Options { recovery_threads: 12, ..small_index() });
    let table = db.table("t").unwrap();
    assert!(table.shared().levels.sealed_rows() > 5_000, "{}", table.shared().levels.sealed_rows());
    assert!((0..30_000u64).all(|key| table.get(&key).unwrap().is_some()));
    db.check_counts().unwrap();
}

/// What is written over again and again leaves extents to those few that nobody writes to: these are written anew, closer to one another.
#[test]
fn a_small_table_that_nobody_writes_to_keeps_no_extent_for_good() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, Options { index_bytes_max: 4 << 20, ..small_index() });
    let table_at = |at: u64| db.create_table(&name_of(at), Schema::new().field("n", Type::U64)).unwrap();
    let busy = db.create_table("busy", Schema::new().field("n", Type::U64)).unwrap();
    let engine = busy.engine();
    let mut most = 0;
    for at in 0..TABLES {
        let table = table_at(at);
        (0..KEYS).for_each(|key| table.put(&key, &row! { n: key + at }).unwrap());
        (0..4_000u64).for_each(|key| busy.put(&key, &row! { n: at }).unwrap());
        engine.seal_now(0);
        most = most.max(engine.log.leaf_extents());
    }
    engine.merge_groups_where_wanted().unwrap();
    assert!(engine.tables_spread_thin().is_empty());
    let bytes: u64 = (0..TABLES)
        .map(|at| {
            let groups = db.table(&name_of(at)).unwrap().shared().levels.groups();
            groups.newest_first().map(|group| group.bytes()).sum::<u64>()
        })
        .sum();
    let needed = bytes.div_ceil(engine.log.leaf_bytes_max());
    let extents = u64::from(engine.log.leaf_extents());
    assert!(extents <= 2 * needed + 5, "{extents} extents for what takes {needed}, {most} at the most");
    check(&db, 0..TABLES, |at, key| Some(key + at));
}
