//! Keys that are sealed while their rows are on their way to sorted tables.

use std::collections::BTreeMap;

use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier};
use hedgerow_row::key::read_key;

use super::{check_sealed_rows, move_and_meanwhile, tight_options};
use crate::{Db, Schema, Table, Type, row};

const FAST_BYTES: u64 = 64 << 20;
const KEYS: u64 = 700;
/// What may become of a key before and after the others are sealed.
const WAYS: u64 = 7;
/// More groups than there are.
const NEVER: usize = 99;

type Model = BTreeMap<u64, u64>;

fn open(sim: &CrashSim) -> Db {
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    Db::open_at(tiers, tight_options(false), Clock::manual(1_000)).unwrap()
}

fn check(db: &Db, table: &Table, model: &Model) {
    let n_of = |key: u64| table.get_field(&key, "n").unwrap().map(|n| n.borrow().as_u64().unwrap());
    assert!((0..KEYS).all(|key| n_of(key) == model.get(&key).copied()));
    let scanned = table.scan().map(|row| row.unwrap());
    let scanned: Model =
        scanned.map(|row| (read_key(row.key()).unwrap(), row.get_as("n").unwrap())).collect();
    assert_eq!(&scanned, model);
    db.check_counts().unwrap();
    check_sealed_rows(table, 0..KEYS);
}

/// Some are written over, deleted or made longer by a delta before the others leave the young index, some after, and some of these leave it again.
fn change(table: &Table, model: &mut Model, when: u64) {
    let put = |key: u64, n: u64| table.put(&key, &row! { n: n }).unwrap();
    for key in 0..KEYS {
        let n = key + 1_000 * (when + 1);
        match (key % WAYS, when) {
            (1, 0) | (2, 1) => drop((put(key, n), model.insert(key, n))),
            (3, 0) | (4, 1) => {
                assert!(table.delete(&key).unwrap());
                model.remove(&key);
            }
            (5, 0) | (6, 1) => {
                table.update(&key, &row! { n: n }).unwrap();
                model.insert(key, n);
            }
            _ => {}
        }
    }
}

/// With groups before and without, and with one seal meanwhile or two.
#[test]
fn keys_may_be_sealed_while_their_rows_move() {
    for (has_groups, seals) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
        let db = open(&sim);
        let table = db.create_table("t", Schema::new().field("n", Type::U64)).unwrap();
        let engine = table.engine();
        let mut model = Model::new();
        for key in (0..KEYS).filter(|key| !has_groups || key % 2 == 0) {
            table.put(&key, &row! { n: key }).unwrap();
            model.insert(key, key);
        }
        if has_groups {
            assert_eq!(engine.seal_now(NEVER), KEYS / 2);
            for key in (0..KEYS).filter(|key| key % 2 == 1) {
                table.put(&key, &row! { n: key }).unwrap();
                model.insert(key, key);
            }
        }
        let mut sealed = 0;
        move_and_meanwhile(engine, || {
            change(&table, &mut model, 0);
            sealed += engine.seal_now(NEVER);
            change(&table, &mut model, 1);
            if seals == 2 {
                sealed += engine.seal_now(NEVER);
            }
            check(&db, &table, &model);
        });
        assert!(sealed > KEYS / 3, "{sealed} keys were sealed");
        let lower = db.metrics().sorted_tables;
        assert_eq!(lower.rows, KEYS, "all that was there when it began");
        check(&db, &table, &model);
        assert_eq!(engine.gc.unfinished_moves(), 0);
        let killed = CrashSim::from_image(&sim.process_kill());
        let after = open(&killed);
        check(&after, &after.table("t").unwrap(), &model);
        // What was left of the index goes on as it should.
        engine.seal_now(0);
        engine.move_now();
        check(&db, &table, &model);
        engine.seal_all_and_collect();
        check(&db, &table, &model);
    }
}
