//! Keys about as long as a sealed one may be, that share most of it.

use super::*;

type Model = BTreeMap<Vec<u8>, u64>;

/// Of each length about the longest that is sealed, with prefixes that leaves of some share and of some do not.
fn keys() -> Vec<Vec<u8>> {
    let mut keys = vec![b"a".to_vec(), vec![7], vec![7; 255], vec![7; 256], vec![7; 257], vec![0xff; 256]];
    for tail in 0..200u8 {
        keys.push([&[7; 255][..], &[tail]].concat());
        keys.push([&[7; 255][..], &[tail, 0]].concat());
        keys.push([&[7; 200][..], &[tail; 56]].concat());
        keys.push([&[7; 200][..], &[tail; 57]].concat());
        keys.push([&[tail][..], &[9; 255]].concat());
        keys.push([&[tail][..], &[9; 256]].concat());
    }
    keys.sort();
    keys.dedup();
    keys
}

fn check(table: &Table, model: &Model) {
    let n_of = |key: &[u8]| table.get_field(key, "n").unwrap().and_then(|n| n.borrow().as_u64());
    for key in &keys() {
        assert_eq!(n_of(key), model.get(key).copied(), "{} bytes: {}", key.len(), key.escape_ascii());
        for other in [[key, [0].as_slice()].concat(), key[..key.len() - 1].to_vec()] {
            assert!(other.is_empty() || n_of(&other) == model.get(&other).copied(), "beside a key");
        }
    }
    let found = |scan: crate::Scan| scan.map(|row| row.unwrap().key().to_vec());
    assert!(found(table.scan()).eq(model.keys().cloned()));
    assert!(found(table.scan().reverse()).eq(model.keys().rev().cloned()));
    assert_eq!(table.len(), model.len() as u64);
}

/// Whether what is young and what is sealed is what may be, of rows that were all looked at.
fn check_levels(table: &Table, model: &Model) {
    let levels = &table.shared().levels;
    let long = model.keys().filter(|key| key.len() > 256).count() as u64;
    assert!(long > 100 && levels.sealed_rows() == model.len() as u64 - long, "{}", levels.sealed_rows());
    assert_eq!(levels.young_keys() - levels.tombstones(), long);
}

#[test]
fn long_keys_with_long_prefixes_are_sealed_up_to_their_bound() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim, small_index());
    let (table, mut model) = (table_of(&db), Model::new());
    for round in 0..4u64 {
        for (n, key) in keys().iter().enumerate() {
            let (n, value) = (n as u64 + round, n as u64 + 10_000 * round);
            match n % 5 {
                _ if round == 0 => table.put(key.as_slice(), &row! { n: value }).unwrap(),
                0 | 1 => table.put(key.as_slice(), &row! { n: value }).unwrap(),
                2 => table.update(key.as_slice(), &row! { n: value }).unwrap(),
                3 => {
                    assert_eq!(table.delete(key.as_slice()).unwrap(), model.remove(key).is_some());
                    continue;
                }
                _ => continue,
            }
            model.insert(key.clone(), value);
        }
        check(&table, &model);
        table.engine().seal_now(if round == 2 { 0 } else { 9 });
        check_levels(&table, &model);
        check(&table, &model);
        if round == 1 {
            table.engine().seal_all_and_collect();
            table.engine().seal_now(9);
            check_levels(&table, &model);
        }
        check(&table, &model);
        db.check_counts().unwrap();
    }
    // What memory has no room for is sealed as the index is built.
    let small = Options { index_bytes_max: 128 << 10, ..small_index() };
    let killed = open(&CrashSim::from_image(&sim.process_kill()), small);
    let opened = killed.table("t").unwrap();
    assert!(opened.shared().levels.has_groups());
    check(&opened, &model);
    killed.check_counts().unwrap();
    drop(table);
    db.close().unwrap();
    let db = open(&sim, small_index());
    assert!(db.metrics().index_was_saved);
    check(&db.table("t").unwrap(), &model);
    check_levels(&db.table("t").unwrap(), &model);
    db.check_counts().unwrap();
}
