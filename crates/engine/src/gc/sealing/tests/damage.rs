//! Leaves that decayed, under keys of which the log has several records: what nobody can count is not taken for less than it is.

use super::*;
use crate::space::Claim;

const KEYS: u64 = 300;
/// Records of each key, in as many segments.
const RECORDS: u64 = 3;

fn reopened(sim: &CrashSim) -> (Db, Table) {
    let options = Options { capacity: Capacity::Beside, ..small_index() };
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    let db = Db::open_at(tiers, options, Clock::manual(1_000)).unwrap();
    let table = db.table("t").unwrap_or_else(|_| table_of(&db));
    (db, table)
}

fn value_of(table: &Table, key: u64) -> Result<Option<u64>> {
    Ok(table.get_field(&key, "n")?.and_then(|n| n.borrow().as_u64()))
}

/// Rows of keys that were sealed after each had been written several times, and those of them whose leaf decayed since.
struct Decayed {
    sim: CrashSim,
    db: Db,
    table: Table,
    model: BTreeMap<u64, u64>,
    damaged: Vec<u64>,
    /// Where the older records are.
    older: Vec<u32>,
}

fn decayed() -> Decayed {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = reopened(&sim);
    let (mut model, mut older) = (BTreeMap::new(), Vec::new());
    for round in 0..RECORDS {
        for key in 0..KEYS {
            table.put(&key, &row! { n: key + round * 1_000 }).unwrap();
            model.insert(key, key + round * 1_000);
        }
        table.engine().seal_all();
        let all = table.engine().log.candidates().into_iter().map(|(extent, ..)| extent);
        older.extend(all.filter(|extent| !older.contains(extent)).collect::<Vec<_>>());
    }
    assert_eq!((table.engine().seal_now(9), older.len() as u64), (KEYS, RECORDS));
    let place = table.shared().levels.groups().l0()[0].group.extents()[0].place();
    crate::tier::rot(&sim, place.at + 1024 + 700, 0x10);
    let is_damaged = |key: &u64| value_of(&table, *key).is_err();
    let damaged: Vec<u64> = (0..KEYS).filter(is_damaged).collect();
    assert!((20..150).contains(&damaged.len()), "{} keys", damaged.len());
    Decayed { sim, db, table, model, damaged, older }
}

impl Decayed {
    /// Every key of the leaf is deleted or written over, or both: until then nothing of its records is freed.
    fn change_all(&mut self) {
        for (n, key) in self.damaged.iter().enumerate() {
            if n % 3 != 1 {
                assert!(self.table.delete(key).unwrap());
                self.model.remove(key);
            }
            if n % 3 != 0 {
                self.table.put(key, &row! { n: key + 9_000 }).unwrap();
                self.model.insert(*key, key + 9_000);
            }
        }
    }

    /// A cycle of which these segments are the victims.
    fn collect(&self, wanted: impl Fn(u32) -> bool) {
        let engine = self.table.engine();
        engine.seal_all();
        let _cycle = engine.gc.lock.read();
        let mut emptied = Vec::new();
        for (extent, ..) in engine.log.candidates() {
            if wanted(extent) && engine.log.begin_gc(extent) {
                match engine.empty_segment(extent, Claim::Gc, None) {
                    Ok(victim) => emptied.push(victim),
                    Err(_) => engine.log.abandon_gc(extent),
                }
            }
        }
        engine.settle(emptied).unwrap();
    }

    /// What a kill leaves has all rows as they are, and no others.
    fn check_killed(&self, when: &str) {
        let (db, table) = reopened(&CrashSim::from_image(&self.sim.process_kill()));
        let is_another = |key: &u64| value_of(&table, *key).unwrap() != self.model.get(key).copied();
        let others: Vec<u64> = (0..KEYS).filter(is_another).collect();
        assert!(others.is_empty(), "{when}: {} rows are others than they were: {others:?}", others.len());
        assert_eq!(table.len(), self.model.len() as u64, "{when}");
        db.check_counts().unwrap();
    }

    /// The store that is closed now opens as one that was killed.
    fn check_closed(self, when: &str) {
        let Decayed { sim, db, table, model, .. } = self;
        drop(table);
        db.close().unwrap();
        let (db, table) = reopened(&sim);
        assert!(!db.metrics().index_was_saved, "{when}");
        for key in 0..KEYS {
            assert_eq!(value_of(&table, key).unwrap(), model.get(&key).copied(), "{when}: {key}");
        }
        assert_eq!(table.len(), model.len() as u64, "{when}");
        db.check_counts().unwrap();
    }
}

/// Older records are freed one after the other, in each order, and tombstones whenever they may go.
#[test]
fn what_was_deleted_over_a_damaged_leaf_stays_so_while_an_older_record_is_there() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut store = decayed();
        store.change_all();
        let older = store.older.clone();
        for at in order {
            store.collect(|extent| extent == older[at]);
            store.check_killed("an older record was freed");
            for _ in 0..2 {
                store.collect(|extent| !older.contains(&extent));
                store.check_killed("tombstones were collected");
            }
        }
        store.check_closed("after all that");
    }
}

/// Rows move only once nothing older is in the log, and that is found out by counting.
#[test]
fn what_was_written_over_a_damaged_leaf_moves_once_its_records_were_counted() {
    for seed in 0..6 {
        let (mut store, mut random) = (decayed(), Random::from_seed(seed));
        store.change_all();
        for step in 0..12 {
            let engine = store.table.engine();
            match random.below(4) {
                0 => drop(engine.move_by_hand(true)),
                1 => drop(engine.run_gc(crate::gc::victims::Need::Now)),
                2 => drop(engine.seal_if_wanted().and(engine.merge_groups_where_wanted())),
                _ => {
                    let one = random.below(8) as u32;
                    store.collect(|extent| extent % 8 == one);
                }
            }
            store.check_killed(&format!("seed {seed}, step {step}"));
        }
        store.check_closed(&format!("seed {seed}"));
    }
}

/// A victim that was emptied before the leaf decayed is freed after that: whose count is one less is not known, and nothing is stored for it.
#[test]
fn a_record_that_is_freed_under_a_damaged_leaf_is_taken_off_no_count() {
    let mut store = decayed();
    let engine = store.table.engine();
    let (guard, older) = (engine.log.pin(), store.older.clone());
    // The leaf is as it was for as long as the victims are looked at.
    let place = store.table.shared().levels.groups().l0()[0].group.extents()[0].place();
    crate::tier::rot(&store.sim, place.at + 1024 + 700, 0x10);
    store.collect(|extent| extent == older[0]);
    crate::tier::rot(&store.sim, place.at + 1024 + 700, 0x10);
    let young = store.table.shared().levels.young_keys();
    drop(guard);
    engine.settle(Vec::new()).unwrap();
    let unsealed = store.table.shared().levels.young_keys() - young;
    assert_eq!(unsealed, KEYS - store.damaged.len() as u64, "the others have one older record less");
    assert!((0..KEYS).all(|key| value_of(&store.table, key).is_ok() != store.damaged.contains(&key)));
    store.check_killed("a victim was freed");
    store.change_all();
    for at in [1, 2] {
        store.collect(|extent| extent == older[at]);
        (0..2).for_each(|_| store.collect(|extent| !older.contains(&extent)));
        store.check_killed("an older record was freed");
    }
    store.check_closed("after all that");
}
