//! Groups of a store that is opened with other options than before.

use std::path::Path;

use super::*;
use crate::{ErrorKind, Key};

/// All extents of leaves are those of groups.
fn check_leaves(db: &Db) {
    let engine = db.engine();
    engine.log.free_retired_leaves();
    let groups = engine.catalog.all().into_iter().map(|table| table.levels.groups());
    let extents: usize =
        groups.map(|groups| groups.newest_first().map(|group| group.extents().len()).sum::<usize>()).sum();
    assert_eq!(engine.log.leaf_extents() as usize, extents);
}

fn name_of(key: i64) -> Vec<u8> {
    Key::key_bytes(&key).as_ref().to_vec()
}

/// How a store is opened: whether keys are sealed, and whether it is only read.
const OPENINGS: [(bool, bool); 14] = [
    (true, false),
    (true, true),
    (false, true),
    (true, false),
    (false, false),
    (false, true),
    (true, true),
    (false, false),
    (true, false),
    (false, true),
    (true, true),
    (false, false),
    (true, true),
    (true, false),
];

fn opened_at(at: &Path, (seal, read_only): (bool, bool)) -> Db {
    let options = Options {
        index_bytes_max: 192 << 10,
        fast_tier_bytes_max: u64::MAX,
        capacity: Capacity::None,
        read_only,
        ..small()
    };
    Db::open_with(at, options.seal(seal)).unwrap()
}

/// Whoever seals takes over the groups of the last who did, if nobody wrote since who does not; who only reads leaves everything as it is.
#[test]
fn groups_of_a_store_that_seals_or_not_and_is_read_in_between() {
    let scratch = Scratch::new("saved-groups-openings");
    let at = scratch.at("store");
    let db = opened_at(&at, (true, false));
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    let mut model = BTreeMap::new();
    let name = name_of;
    for n in 0..12_000i64 {
        while table.put(&n, &row! { n: n }).is_err() {
            db.collect().unwrap();
        }
        model.insert(name(n), (n, None));
    }
    assert!(table.shared().levels.sealed_rows() > 6_000);
    drop(table);
    db.close().unwrap();
    // Whether the index that is saved has groups.
    let mut has_groups = true;
    for (round, (seal, read_only)) in OPENINGS.into_iter().enumerate() {
        let when = format!("opening {round}: seals {seal}, only reads {read_only}");
        let db = opened_at(&at, (seal, read_only));
        let table = db.table("t").unwrap();
        assert_eq!(is_saved(&db), seal || !has_groups, "{when}");
        // Nothing is sealed by who only reads: he has the groups that there are.
        let expected = seal && (has_groups || !read_only);
        assert_eq!(table.shared().levels.has_groups(), expected, "{when}");
        assert_eq!((fields(&table), table.len()), (model.clone(), model.len() as u64), "{when}");
        for key in (0..12_000i64).step_by(37) {
            let found = table.get_field(&key, "n").unwrap().and_then(|n| n.borrow().as_i64());
            assert_eq!(found, model.get(&name(key)).map(|(n, _)| *n), "{when}: {key}");
        }
        if read_only {
            assert!(table.put(&1i64, &row! { n: 1 }).is_err(), "{when}");
            continue;
        }
        db.check_counts().unwrap();
        check_leaves(&db);
        for n in 0..6_000i64 {
            let key = (n * 2 + round as i64) % 13_000;
            if n % 5 == 0 {
                assert_eq!(table.delete(&key).unwrap(), model.remove(&name(key)).is_some(), "{when}");
                continue;
            }
            // Where nobody seals new keys are refused, and others are not.
            let is_new = !model.contains_key(&name(key));
            let told = match table.put(&key, &row! { n: n }) {
                Err(full) if full.kind() == ErrorKind::Full && seal => {
                    db.collect().unwrap();
                    table.put(&key, &row! { n: n })
                }
                told => told,
            };
            match told {
                Ok(()) => drop(model.insert(name(key), (n, None))),
                Err(full) => assert!(full.kind() == ErrorKind::Full && is_new && !seal, "{when}: {full}"),
            }
        }
        db.collect().unwrap();
        assert_eq!((fields(&table), table.len()), (model.clone(), model.len() as u64), "{when}");
        db.check_counts().unwrap();
        has_groups = table.shared().levels.has_groups();
        assert_eq!(has_groups, seal, "{when}");
        drop(table);
        db.close().unwrap();
    }
}
