//! What consolidation makes of rows whose keys are sealed.

use super::*;

const KEYS: u64 = 2_000;

/// Rows under a delta each, all of them sealed.
fn sealed_under_deltas(sim: &CrashSim, options: Options) -> (Db, Table) {
    let db = open(sim, options);
    let table = table_of(&db);
    for key in 0..KEYS {
        table.put(&key, &row! { n: key }).unwrap();
        table.update(&key, &row! { n: key + 1 }).unwrap();
    }
    assert_eq!((table.engine().seal_now(9), table.shared().levels.young_keys()), (KEYS, 0));
    (db, table)
}

/// Reads all of them, and lets what they are left to have its rounds.
fn read_and_consolidate(table: &Table) {
    for key in 0..KEYS {
        let row = table.get(&key).unwrap().unwrap();
        assert_eq!(row.get_as::<u64>("n").unwrap(), key + 1);
    }
    table.engine().consolidate_now();
}

fn check_rows(db: &Db) {
    let table = db.table("t").unwrap();
    let is_right = |key: u64| table.get(&key).unwrap().unwrap().get_as::<u64>("n").unwrap() == key + 1;
    assert!((0..KEYS).all(is_right) && table.len() == KEYS && table.scan().count() as u64 == KEYS);
    db.check_counts().unwrap();
}

/// A tight index with keys that stay young beside those that are sealed: `fill` until it is, and then not.
fn tight_beside(db: &Db) -> Table {
    let other = db.create_table("other", Schema::new().field("n", Type::U64)).unwrap();
    let later = || Expiry::at_unix_ms(1_000_000_000);
    let full = (0..200_000u64).take_while(|key| {
        !other.engine().is_index_tight() && other.put_expiring(key, &row! { n: 1u64 }, later()).is_ok()
    });
    assert!(full.count() > 1_000 && other.engine().is_index_tight());
    other
}

/// Each copy is a young key: with an index that nothing makes room in they would go on without a bound.
#[test]
fn sealed_rows_that_are_read_fill_no_tight_index() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, 64 << 20);
        let (db, table) = sealed_under_deltas(&sim, small_index());
        let other = tight_beside(&db);
        let (levels, bytes) = (&table.shared().levels, table.engine().arena.bytes());
        (0..3).for_each(|_| read_and_consolidate(&table));
        assert_eq!((db.metrics().chains_merged, levels.young_keys()), (0, 0), "{model:?}");
        assert_eq!(table.engine().arena.bytes(), bytes, "{model:?}");
        // A young one is merged, as ever.
        table.update(&7u64, &row! { n: 8 }).unwrap();
        (0..2).for_each(|_| read_and_consolidate(&table));
        assert_eq!((db.metrics().chains_merged, levels.young_keys()), (1, 1), "{model:?}");
        // And they are once there is room.
        other.clear().unwrap();
        other.engine().free_garbage();
        assert!(!table.engine().is_index_tight());
        (0..2).for_each(|_| read_and_consolidate(&table));
        assert_eq!((db.metrics().chains_merged, levels.young_keys()), (KEYS, KEYS), "{model:?}");
        check_rows(&db);
        assert_eq!(table.engine().seal_now(9), KEYS);
        check_rows(&db);
    }
}

/// A row that is merged in place is not copied for the sake of its entry in a group.
#[test]
fn sealed_rows_are_merged_in_place() {
    let sim = CrashSim::new(CrashModel::CacheLines, 32 << 20);
    let (db, table) = sealed_under_deltas(&sim, small_index());
    let levels = &table.shared().levels;
    read_and_consolidate(&table);
    assert_eq!((db.metrics().chains_merged_in_place, db.metrics().chains_merged), (KEYS, KEYS));
    assert_eq!((levels.young_keys(), levels.sealed_rows()), (KEYS, 0));
    check_rows(&db);
    // Read without a look at a delta, before they are sealed and after.
    for is_sealed in [false, true] {
        assert!(!is_sealed || table.engine().seal_now(0) == KEYS);
        let guard = table.engine().log.pin();
        let slot = levels.locate(crate::Key::key_bytes(&5u64).as_ref(), &guard).unwrap();
        assert_eq!((slot.tag(), slot.depth(), slot.older_versions()), (crate::index::Tag::Row, 0, 1));
    }
    check_rows(&db);
    check_rows(&open(&CrashSim::from_image(&sim.process_kill()), small_index()));
    // Deltas are freed, and the count of each row with them.
    table.engine().seal_all_and_collect();
    check_rows(&db);
    check_rows(&open(&CrashSim::from_image(&sim.process_kill()), small_index()));
    drop(table);
    db.close().unwrap();
    check_rows(&open(&sim, small_index()));
}
