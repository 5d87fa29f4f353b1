//! The count of rows with an expiry against a model, through every way of writing, and after a kill.

use std::collections::BTreeMap;

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier};

use super::*;
use crate::db::fixture::options;
use crate::{Batch, Db, Expiry, Schema, Table, Type, Value};

const KEYS: u64 = 40;

fn open(sim: &CrashSim) -> Db {
    Db::open_at(FastTier::simulated(sim), options(), Clock::manual(1_000)).unwrap()
}

fn table(db: &Db) -> Table {
    let schema = Schema::new().field("a", Type::I64).field("b", Type::I64);
    db.table("t").unwrap_or_else(|_| db.create_table("t", schema).unwrap())
}

/// Numbers that look random, the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What each key's expiry should be.
type Model = BTreeMap<u64, Option<u64>>;

fn change(db: &Db, t: &Table, numbers: &mut Numbers, model: &mut Model) {
    let number = numbers.below(KEYS);
    let key = format!("key {number}").into_bytes();
    let fields = [("a", Value::Int(numbers.below(9) as i64)), ("b", Value::Int(1))];
    let at_ms = 2_000 + numbers.below(1_000);
    let expiry = match numbers.below(9) {
        0 => t.put(&key, &fields).map(|()| Some(None)),
        1 => t.put_expiring(&key, &fields, Expiry::at_unix_ms(at_ms)).map(|()| Some(Some(at_ms))),
        2 | 3 => t.update(&key, &fields[..1]).map(|()| Some(model.get(&number).copied().flatten())),
        4 => t.expire(&key, Expiry::at_unix_ms(at_ms)).map(|found| found.then_some(Some(at_ms))),
        5 | 6 => t.expire(&key, Expiry::Never).map(|found| found.then_some(None)),
        7 => t.delete(&key).map(|_| None),
        _ => {
            let mut batch = Batch::new();
            batch.put_expiring(t, &key, &fields, Expiry::at_unix_ms(at_ms)).unwrap();
            db.write(batch).map(|()| Some(Some(at_ms)))
        }
    };
    match expiry.unwrap() {
        Some(expiry) => model.insert(number, expiry),
        None => model.remove(&number),
    };
}

fn check(db: &Db, t: &Table, model: &Model) {
    let expected = model.values().filter(|at_ms| at_ms.is_some()).count() as u64;
    assert_eq!(t.expiring().rows, expected);
    assert_eq!(db.metrics().rows_expiring, expected);
    assert_eq!(t.len(), model.len() as u64);
    db.check_counts().unwrap();
}

#[test]
fn rows_with_an_expiry_are_counted_through_every_write_and_after_a_kill() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (mut model, mut numbers) = (Model::new(), Numbers(7));
    let db = open(&sim);
    let t = table(&db);
    for step in 0..3_000 {
        change(&db, &t, &mut numbers, &mut model);
        if step % 100 == 0 {
            // Chains that were read are merged, and segments taken apart.
            t.scan().for_each(|_, _| Ok(true)).unwrap();
            db.collect().unwrap();
            check(&db, &t, &model);
        }
    }
    assert!(model.values().any(Option::is_some) && model.values().any(Option::is_none));
    check(&db, &t, &model);
    let killed = open(&CrashSim::from_image(&sim.process_kill()));
    check(&killed, &table(&killed), &model);
    t.clear().unwrap();
    assert_eq!(t.expiring(), Expiring::default());
    check(&db, &t, &Model::new());
}

#[test]
fn the_sweeper_finds_the_mean() {
    let db = open(&CrashSim::new(CrashModel::Pages, 32 << 20));
    let t = table(&db);
    for i in 0..3_000u64 {
        let at_ms = (i % 2 == 0).then_some(5_000 + i);
        t.put(&i.to_be_bytes(), &[("a", Value::Int(1))]).unwrap();
        t.expire(&i.to_be_bytes(), Expiry::at_unix_ms(at_ms)).unwrap();
    }
    assert_eq!(t.expiring(), Expiring { rows: 1_500, mean_at_ms: None });
    let mut pass = Pass::default();
    t.engine().sweep(t.shared(), &mut pass).unwrap();
    assert_eq!(t.expiring().mean_at_ms, None, "not before the pass is whole");
    t.engine().sweep(t.shared(), &mut pass).unwrap();
    assert_eq!(t.expiring(), Expiring { rows: 1_500, mean_at_ms: Some(5_000 + 1_499) });
}

#[test]
fn writers_at_once_count_right() {
    let db = open(&CrashSim::new(CrashModel::Pages, 64 << 20));
    let t = table(&db);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (db, t) = (&db, &t);
            scope.spawn(move || {
                let (mut numbers, mut model) = (Numbers(seed), Model::new());
                (0..2_000).for_each(|_| change(db, t, &mut numbers, &mut model));
            });
        }
    });
    db.check_counts().unwrap();
}
