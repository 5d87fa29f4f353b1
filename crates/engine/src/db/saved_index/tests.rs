use std::collections::BTreeMap;

use hedgerow_device::{
    CapacityTier, Clock, CrashModel, CrashSim, FastTier, FastTierOptions, Image, Random, Survivors,
};

use super::*;
use crate::db::fixture::{Scratch, options};
use crate::{Capacity, Db, Durability, Expiry, Options, Schema, Table, Type, row};

pub(super) const FAST_BYTES: u64 = 8 << 20;

pub(super) fn opened(sim: &CrashSim, clock: &Clock, options: Options) -> Db {
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    Db::open_at(tiers, options, clock.clone()).unwrap()
}

pub(super) fn small() -> Options {
    Options {
        segment_bytes: 256 << 10,
        fast_tier_bytes_max: FAST_BYTES,
        durability: Durability::Process,
        ..options()
    }
}

fn is_saved(db: &Db) -> bool {
    db.metrics().index_was_saved
}

/// All slots of all tables, as they lead into the log.
pub(super) fn slots_of(db: &Db) -> BTreeMap<(u32, Vec<u8>), Slot> {
    slots_in(db.engine())
}

fn slots_in(engine: &Engine) -> BTreeMap<(u32, Vec<u8>), Slot> {
    let (guard, mut slots) = (engine.log.pin(), BTreeMap::new());
    for table in engine.catalog.all() {
        let id = table.id.load(Ordering::Acquire);
        let visit = |key: &[u8], slot| {
            let slot = *engine.cache.log_slot(slot, &guard);
            assert_eq!(slots.insert((id, key.to_vec()), slot), None, "{}", key.escape_ascii());
            Ok(())
        };
        table.levels.each_version(&guard, visit).unwrap();
    }
    slots
}

pub(super) fn fields(table: &Table) -> BTreeMap<Vec<u8>, (i64, Option<u64>)> {
    table
        .scan()
        .map(|row| {
            let row = row.unwrap();
            (row.key().to_vec(), (row.get_as::<i64>("n").unwrap(), row.expires_at_ms()))
        })
        .collect()
}

/// Everything that leaves something behind which a walk would find: deltas, deletes, rows that expire and that did, rows that were collected and that moved, tables that were cleared and dropped.
pub(super) struct Busy {
    pub(super) db: Option<Db>,
    pub(super) clock: Clock,
    pub(super) random: Random,
    pub(super) next_table: u32,
}

impl Busy {
    pub(super) fn work(&mut self, steps: u32) {
        let db = self.db.as_ref().unwrap();
        for _ in 0..steps {
            let name = format!("t{}", self.random.below(3));
            let table =
                db.ensure_table(&name, Schema::new().field("n", Type::I64).nullable("s", Type::String));
            let table = table.unwrap();
            let n = self.random.below(2_000);
            let key = format!("{:032x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes();
            let text = "x".repeat(self.random.below(600) as usize);
            let at_ms = Expiry::at_unix_ms(self.clock.now_ms() + 1 + self.random.below(2_000));
            let done = match self.random.below(1_000) {
                0..400 => table.put(&key, &row! { n: n as i64, s: text.as_str() }),
                400..600 => table.update(&key, &row! { n: -(n as i64) }).map(drop),
                600..700 => table.delete(&key).map(drop),
                700..850 => table.put_expiring(&key, &row! { n: n as i64, s: text.as_str() }, at_ms),
                850..900 => table.get(&key).map(drop),
                900..950 => {
                    self.clock.advance_ms(50);
                    Ok(())
                }
                950..985 => db.collect().map(drop),
                985..995 => {
                    db.engine().sweep_now();
                    Ok(())
                }
                995 => table.clear(),
                996 => {
                    drop(table);
                    db.drop_table(&name).map(drop)
                }
                _ => {
                    self.next_table += 1;
                    db.create_table(&format!("other{}", self.next_table), Schema::flat()).map(drop)
                }
            };
            match done {
                Err(error) if error.kind() == crate::ErrorKind::Full => drop(db.collect()),
                done => done.unwrap(),
            }
        }
    }
}

/// A store that was closed and opened is as it was: each slot, each count, and what it does from then on.
#[test]
fn a_store_is_opened_as_it_was_closed() {
    let whole_index = small().index_bytes_max;
    let in_turn = [(1, 1), (2, 2), (3, 7), (4, 1)].map(|(seed, threads)| (seed, threads, whole_index));
    // What memory has no room for is sealed by each opening.
    let sealed = [(5, 1, 24 << 10), (6, 3, 32 << 10), (7, 2, 48 << 10)];
    for (seed, threads, index_bytes_max) in in_turn.into_iter().chain(sealed) {
        let mut sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
        let clock = Clock::manual(1_000);
        let options = || Options { recovery_threads: threads, index_bytes_max, ..small() };
        let db = Some(opened(&sim, &clock, options()));
        let mut busy = Busy { db, clock: clock.clone(), random: Random::from_seed(seed), next_table: 0 };
        let (mut taken_over, mut sealed) = (0, 0);
        for round in 0..12 {
            busy.work(3_000);
            let db = busy.db.take().unwrap();
            let tables: Vec<Table> = (0..3).filter_map(|n| db.table(&format!("t{n}")).ok()).collect();
            let before: Vec<_> = tables.iter().map(fields).collect();
            if round % 4 == 3 {
                // What is killed is walked; nothing that was saved once counts.
                let image = sim.process_kill();
                drop((tables, db));
                sim = CrashSim::from_image(&image);
            } else {
                let expiring: Vec<_> = tables.iter().map(|table| table.expiring().rows).collect();
                let held = db.create_table("held", Schema::flat()).or_else(|_| db.table("held")).unwrap();
                db.close().unwrap();
                let slots = slots_in(held.engine());
                drop((held, tables));
                let db = opened(&sim, &clock, options());
                taken_over += u32::from(is_saved(&db));
                if is_saved(&db) {
                    assert_eq!(slots_of(&db), slots, "seed {seed}, round {round}");
                }
                let tables: Vec<Table> = (0..3).filter_map(|n| db.table(&format!("t{n}")).ok()).collect();
                assert!(tables.iter().map(fields).eq(before), "seed {seed}, round {round}");
                sealed += tables.iter().map(|table| table.shared().levels.sealed_rows()).sum::<u64>();
                assert!(tables.iter().map(|table| table.expiring().rows).eq(expiring) || !is_saved(&db));
                db.check_counts().unwrap();
                busy.db = Some(db);
                continue;
            }
            let db = opened(&sim, &clock, options());
            let tables: Vec<Table> = (0..3).filter_map(|n| db.table(&format!("t{n}")).ok()).collect();
            assert!(tables.iter().map(fields).eq(before), "seed {seed}, round {round}");
            sealed += tables.iter().map(|table| table.shared().levels.sealed_rows()).sum::<u64>();
            db.check_counts().unwrap();
            busy.db = Some(db);
        }
        assert!(taken_over >= 7, "seed {seed}: {taken_over}");
        assert_eq!(sealed > 400, index_bytes_max < whole_index, "seed {seed}: {sealed} keys");
    }
}

/// Where the machine gives no more threads, or fewer than are wanted, a store is opened by those that there are.
#[test]
fn a_store_is_opened_by_as_many_threads_as_there_are() {
    const ROWS: i64 = 40_000;
    let (sim, clock) = (CrashSim::new(CrashModel::Pages, FAST_BYTES), Clock::manual(1_000));
    let options = |index_bytes_max| Options { recovery_threads: 4, index_bytes_max, ..small() };
    let whole_index = small().index_bytes_max;
    let db = opened(&sim, &clock, options(whole_index));
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    (0..ROWS).for_each(|n| table.put(&n, &row! { n: n }).unwrap());
    drop(table);
    let killed = sim.process_kill();
    db.close().unwrap();
    let closed = sim.process_kill();
    let sim = CrashSim::from_image(&killed);
    opened(&sim, &clock, options(200 << 10)).close().unwrap();
    let sealed = sim.process_kill();
    for (of, image, index_bytes_max, wanted) in [
        ("walked", &killed, whole_index, 6),
        ("saved", &closed, whole_index, 2),
        ("groups", &sealed, 200 << 10, 2),
    ] {
        for left in [1_000, 0, 1] {
            hedgerow_device::limit_threads(left);
            let db = opened(&CrashSim::from_image(image), &clock, options(index_bytes_max));
            let taken = left - hedgerow_device::limit_threads(usize::MAX);
            assert!(left < 1_000 || taken >= wanted, "{of}: {taken} threads");
            assert_eq!(is_saved(&db), of != "walked", "{of}");
            let table = db.table("t").unwrap();
            assert_eq!(table.shared().levels.has_groups(), of == "groups", "{of}");
            assert_eq!((table.len(), fields(&table).len()), (ROWS as u64, ROWS as usize), "{of}");
            assert!(fields(&table).into_values().map(|(n, _)| n).eq(0..ROWS), "{of}");
            db.check_counts().unwrap();
        }
    }
}

/// What is killed after it was opened, with nothing written or with something, is walked, and so is what has a saved index of another time.
#[test]
fn a_saved_index_counts_once() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let clock = Clock::manual(1_000);
    let db = opened(&sim, &clock, small());
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    (0..2_000u64).for_each(|n| table.put(&n, &row! { n: n as i64 }).unwrap());
    drop(table);
    db.close().unwrap();
    let mut expected = 7;
    for written in [false, true, false] {
        let db = opened(&sim, &clock, small());
        assert!(is_saved(&db));
        let table = db.table("t").unwrap();
        if written {
            expected = -7;
            table.put(&7u64, &row! { n: expected }).unwrap();
        }
        let killed = opened(&CrashSim::from_image(&sim.process_kill()), &clock, small());
        assert!(!is_saved(&killed));
        let n = killed.table("t").unwrap().read(&7u64, |row| row.get_as::<i64>("n")).unwrap();
        assert_eq!(n, Some(expected));
        assert_eq!(killed.table("t").unwrap().len(), 2_000);
        drop(table);
        db.close().unwrap();
    }
}

/// At whatever moment the machine goes down while a store is closed, it is opened with all that was durable, by what was saved or without.
#[test]
fn a_cut_while_an_index_is_saved_loses_nothing() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, FAST_BYTES);
        let clock = Clock::manual(1_000);
        let db = opened(&sim, &clock, small());
        let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
        // Two pieces.
        let key = |n: u64| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(2).into_bytes();
        (0..9_000u64).for_each(|n| table.put(&key(n), &row! { n: n as i64 }).unwrap());
        (0..9_000u64).step_by(300).for_each(|n| assert!(table.delete(&key(n)).unwrap()));
        let before = fields(&table);
        db.persist().unwrap();
        drop(table);
        let first = sim.ops();
        db.close().unwrap();
        let last = sim.ops();
        let (mut by_saved, mut walked) = (0, 0);
        let mut walk = sim.walk();
        for op in first..=last {
            walk.seek(op);
            for (kind, seed) in [
                (Survivors::None, 1),
                (Survivors::All, 1),
                (Survivors::Random, op),
                (Survivors::Random, op + 7),
            ] {
                let cut = CrashSim::from_image(&walk.image(kind, seed));
                let db = opened(&cut, &clock, small());
                *if is_saved(&db) { &mut by_saved } else { &mut walked } += 1;
                assert_eq!(
                    fields(&db.table("t").unwrap()),
                    before,
                    "{model:?}, cut at {op} of {first}..{last}, {kind:?}"
                );
                db.check_counts().unwrap();
            }
        }
        assert!(by_saved > 0 && walked > 0, "{by_saved} by what was saved, {walked} walked");
        let (engine, _) = Engine::load(FastTier::simulated(&sim), small(), clock.clone()).unwrap();
        assert_eq!(engine.log.saved_index().unwrap().len(), 2, "pieces");
    }
}

/// Damage in what was saved costs the time of a walk.
#[test]
fn a_damaged_saved_index_is_passed_over() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let clock = Clock::manual(1_000);
    let db = opened(&sim, &clock, small());
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    (0..30_000u64).for_each(|n| {
        table
            .put(
                &format!("{:032x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes(),
                &row! { n: n as i64 },
            )
            .unwrap()
    });
    let before = fields(&table);
    drop(table);
    db.close().unwrap();
    let image = sim.process_kill();
    assert!(is_saved(&opened(&CrashSim::from_image(&image), &clock, small())));
    let pieces: Vec<(u64, u64)> = {
        let (engine, _) = Engine::load(FastTier::from_image(&image), small(), clock.clone()).unwrap();
        let pieces = engine.log.saved_index().unwrap();
        pieces.iter().map(|piece| (piece.at, piece.bytes.len() as u64)).collect()
    };
    assert!(pieces.len() > 1);
    let of_pieces =
        pieces.iter().flat_map(|(at, bytes)| [at - 32, at - 24, at - 1, *at, at + bytes / 2, at + bytes - 1]);
    for at in (8192..8256).step_by(5).chain(of_pieces) {
        let mut damaged = image.clone();
        damaged.corrupt(at, 0x20);
        let db = opened(&CrashSim::from_image(&damaged), &clock, small());
        assert!(!is_saved(&db), "byte {at}");
        assert_eq!(fields(&db.table("t").unwrap()), before, "byte {at}");
    }
}

/// With no room for it, or with a short log, nothing is saved, and the store is closed in order all the same.
#[test]
fn without_room_nothing_is_saved() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let clock = Clock::manual(1_000);
    let alone = || Options { capacity: Capacity::None, ..small() };
    let db = opened(&sim, &clock, alone());
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    let rows = (0..).take_while(|n| table.put(n, &row! { n: *n as i64 }).is_ok()).count() as u64;
    drop(table);
    db.close().unwrap();
    let db = opened(&sim, &clock, alone());
    assert!(!is_saved(&db) && db.table("t").unwrap().len() == rows);
    let table = db.table("t").unwrap();
    for n in 0..rows {
        let deleted = table.delete(&n).or_else(|_| db.collect().and_then(|_| table.delete(&n)));
        assert!(deleted.unwrap());
    }
    while db.collect().unwrap() > 0 {}
    table.put(&7u64, &row! { n: 7 }).unwrap();
    drop(table);
    db.close().unwrap();
    let long = Options { saved_index_bytes_min: FAST_BYTES, ..alone() };
    let db = opened(&sim, &clock, long.clone());
    assert!(is_saved(&db));
    db.close().unwrap();
    let db = opened(&sim, &clock, long);
    assert!(!is_saved(&db), "its log is short");
    assert_eq!(fields(&db.table("t").unwrap()).len(), 1);
}

/// Who only reads has use for it, too, and leaves it for others.
#[test]
fn a_saved_index_serves_who_only_reads() {
    let scratch = Scratch::new("saved-index-read-only");
    let (dir, options) = (scratch.at("store"), || Options { saved_index_bytes_min: 0, ..Options::default() });
    let db = Db::open_with(&dir, options()).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    (0..5_000u64).for_each(|n| table.put(&n, &row! { n: n as i64 }).unwrap());
    drop(table);
    db.close().unwrap();
    for read_only in [true, true, false] {
        let db = Db::open_with(&dir, Options { read_only, ..options() }).unwrap();
        assert!(is_saved(&db));
        assert_eq!(fields(&db.table("t").unwrap()).len(), 5_000);
    }
}

/// A row that expired left the index, and its record is in the log still. Its key is remembered only where rows move: a store of which rows move from now on is walked, or the next row of that key would
/// move from over it, and be hidden by it.
#[test]
fn a_store_that_may_move_rows_now_knows_which_keys_it_forgot() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let clock = Clock::manual(1_000);
    let alone = || Options { capacity: Capacity::None, ..small() };
    let db = opened(&sim, &clock, alone());
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    let expiry = Expiry::at_unix_ms(2_000);
    for n in 0..1_000u64 {
        table.put_expiring(&n, &row! { n: 1 }, if n % 10 == 0 { expiry } else { Expiry::Never }).unwrap();
    }
    clock.advance_ms(5_000);
    table.engine().sweep_now();
    assert_eq!(table.len(), 900);
    drop(table);
    db.close().unwrap();
    let db = opened(&sim, &clock, alone());
    assert!(is_saved(&db));
    db.close().unwrap();
    let db = opened(&sim, &clock, small());
    assert!(!is_saved(&db), "it knows no keys");
    let table = db.table("t").unwrap();
    (0..1_000u64).step_by(10).for_each(|n| table.put(&n, &row! { n: 2 }).unwrap());
    table.engine().move_now();
    drop(table);
    db.close().unwrap();
    let db = opened(&sim, &clock, small());
    assert!(is_saved(&db), "it knows them now");
    drop(db);
    let killed = opened(&CrashSim::from_image(&sim.process_kill()), &clock, small());
    let table = killed.table("t").unwrap();
    assert_eq!(table.scan().count(), 1_000);
    let n = |key: u64| table.read(&key, |row| row.get_as::<i64>("n")).unwrap();
    assert!((0..1_000u64).step_by(10).all(|key| n(key) == Some(2)));
}

/// The bytes of a payload never change under their version: slots, lists and segments among them.
#[test]
fn golden_payload() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let clock = Clock::manual(1_000);
    let db = opened(&sim, &clock, small());
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    for key in [&b"apple"[..], b"applet", b"banana"] {
        table.put(key, &row! { n: 1 }).unwrap();
    }
    table.put_expiring(b"banana", &row! { n: 2 }, Expiry::at_unix_ms(5_000)).unwrap();
    table.put_expiring(b"cherry", &row! { n: 3 }, Expiry::at_unix_ms(2_000)).unwrap();
    table.update(b"apple", &row! { n: 4 }).unwrap();
    table.delete(b"applet").unwrap();
    clock.advance_ms(2_000);
    table.engine().sweep_now();
    drop(table);
    db.close().unwrap();
    let (engine, _) = Engine::load(FastTier::simulated(&sim), small(), clock).unwrap();
    let pieces = engine.log.saved_index().unwrap();
    let hex: String = pieces[0].bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(pieces.len(), 1);
    assert_eq!(
        hex,
        "0100000000000000d0000000040000000100000000000000010000809002000000000000080000000000000000000000\
         000000000000000000000000680000000000000000000000000000004801000000000000010000000000000077ecffff\
         ffffffffb80b000000000000881300000000000005000000010000000100000001000080d00000000000000007000000\
         000000000100000000000000500000000000000000000000000000000000000000000000000000000000000000000000\
         000000000000000000000000000000000000000000000000000000000200000000000000100000000400000001000000\
         10021000000000000500000000000000000000000300000000000000100000000400000001000000a1a8e8283c4bab55\
         04000000010000002a000000000510800200000028426170706c6505014c000200000410607400063800020000042830\
         62616e616e61"
    );
}

/// Whoever sweeps a store that is closed meanwhile takes nothing out of the index of which nothing would be saved.
#[test]
fn nothing_leaves_the_index_of_a_closed_store() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let clock = Clock::manual(1_000);
    let db = opened(&sim, &clock, small());
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    (0..1_000u64).for_each(|n| table.put_expiring(&n, &row! { n: 1 }, Expiry::at_unix_ms(2_000)).unwrap());
    clock.advance_ms(5_000);
    db.close().unwrap();
    let slots = slots_in(table.engine());
    table.engine().sweep_now();
    assert_eq!((slots.len(), slots_in(table.engine())), (1_000, slots));
    drop(table);
    let db = opened(&sim, &clock, small());
    assert!(is_saved(&db));
    assert_eq!(db.table("t").unwrap().scan().count(), 0);
    db.engine().sweep_now();
    assert_eq!(db.table("t").unwrap().len(), 0);
    db.check_counts().unwrap();
}

/// In which order victims are freed that wait for a snapshot is known to memory alone.
#[test]
fn what_waits_to_be_freed_is_walked() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let clock = Clock::manual(1_000);
    let options = || Options { capacity: Capacity::None, ..small() };
    let db = opened(&sim, &clock, options());
    let table =
        db.create_table("t", Schema::new().field("n", Type::I64).nullable("s", Type::String)).unwrap();
    let put = |n: u64| table.put(&(n % 400), &row! { n: n as i64, s: "x".repeat(1_000).as_str() });
    (0..800).for_each(|n| put(n).unwrap());
    let snapshot = db.snapshot();
    (800..1_600).for_each(|n| put(n).unwrap());
    db.collect().unwrap();
    assert!(!table.engine().gc.knows_all(), "nothing waits");
    let before = fields(&table);
    drop(table);
    db.close().unwrap();
    drop(snapshot);
    let db = opened(&sim, &clock, options());
    assert!(!is_saved(&db));
    assert_eq!(fields(&db.table("t").unwrap()), before);
    db.check_counts().unwrap();
}

/// A store that is longer than it may be gives all that is free back when it is opened, what was saved with it: nothing is saved.
#[test]
fn a_store_above_its_limit_is_walked() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let clock = Clock::manual(1_000);
    let db = opened(&sim, &clock, small());
    let table =
        db.create_table("t", Schema::new().field("n", Type::I64).nullable("s", Type::String)).unwrap();
    (0..5_000u64).for_each(|n| table.put(&n, &row! { n: n as i64, s: "x".repeat(900).as_str() }).unwrap());
    let before = fields(&table);
    drop(table);
    db.close().unwrap();
    let lower = || Options { fast_tier_bytes_max: 4 << 20, ..small() };
    for opened_again in [false, true] {
        let db = opened(&sim, &clock, lower());
        assert!(!opened_again || !is_saved(&db));
        assert_eq!(fields(&db.table("t").unwrap()), before);
        db.close().unwrap();
    }
}

/// What was saved takes no room of the disk once the store is open.
#[test]
fn room_of_what_was_saved_is_given_back() {
    let scratch = Scratch::new("saved-index-room");
    let (dir, options) = (scratch.at("store"), || Options {
        saved_index_bytes_min: 0,
        background: false,
        ..Options::default()
    });
    let db = Db::open_with(&dir, options()).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    let key = |n: u64| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(12).into_bytes();
    (0..60_000u64).for_each(|n| table.put(&key(n), &row! { n: n as i64 }).unwrap());
    drop(table);
    let open = db.metrics().fast_tier_allocated_bytes;
    db.close().unwrap();
    let (engine, _) = Engine::load(
        FastTier::open_file(&dir.join("fast"), &FastTierOptions::default(), false).unwrap(),
        options(),
        Clock::system(),
    )
    .unwrap();
    let closed = engine.metrics().fast_tier_allocated_bytes;
    drop(engine);
    let db = Db::open_with(&dir, options()).unwrap();
    assert!(is_saved(&db));
    let opened = db.metrics().fast_tier_allocated_bytes;
    assert!(closed > open && opened < closed, "{open}, closed {closed}, opened {opened}");
    assert_eq!(db.table("t").unwrap().scan().count(), 60_000);
}

/// A store whose table has several groups, rows that were written over since, that were deleted, and that are young.
fn with_groups(sim: &CrashSim, clock: &Clock) -> Db {
    let db = opened(sim, clock, small());
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    let put = |n: i64, to: i64| table.put(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64), &row! { n: to });
    for round in 0..5 {
        (0..6_000).for_each(|n| put(n * (round + 1), n + round).unwrap());
        assert!(table.engine().seal_now(99) > 1_000);
    }
    // A part of what groups have does not count any more, and a part of that was freed.
    (0..9_000).for_each(|n| put(n, n).unwrap());
    (0..1_000i64).for_each(|n| {
        assert!(table.delete(&(n * 3).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)).unwrap());
    });
    db.collect().unwrap();
    for round in 1..5 {
        (0..2_000).for_each(|n| put(n * 3 + round, n).unwrap());
        assert!(round == 4 || table.engine().seal_now(99) > 500);
    }
    db
}

/// Groups stay where they are while the store is closed, and nothing of them is written; what is counted is as it was.
#[test]
fn groups_are_there_when_a_store_is_opened_again() {
    let sim = CrashSim::new(CrashModel::Pages, 2 * FAST_BYTES);
    let clock = Clock::manual(1_000);
    let mut db = with_groups(&sim, &clock);
    let mut image = sim.process_kill();
    for threads in [1, 3, 2] {
        let table = db.table("t").unwrap();
        let (levels, engine) = (&table.shared().levels, table.engine());
        let of = |levels: &crate::levels::Levels| {
            let groups = levels.groups();
            let entries: Vec<u64> = groups.newest_first().map(|group| group.entries()).collect();
            (entries, levels.sealed_rows(), levels.young_keys())
        };
        let (groups, extents, before) = (of(levels), engine.log.leaf_extents(), fields(&table));
        assert!(groups.0.len() > 3 && groups.1 > 5_000 && groups.2 > 0, "{groups:?}");
        let held = table.clone();
        drop(table);
        db.close().unwrap();
        let slots = slots_in(held.engine());
        drop(held);
        image = sim.process_kill();
        db = opened(&sim, &clock, Options { recovery_threads: threads, ..small() });
        assert!(is_saved(&db));
        let table = db.table("t").unwrap();
        assert_eq!((of(&table.shared().levels), table.engine().log.leaf_extents()), (groups, extents));
        assert_eq!(slots_of(&db), slots);
        assert_eq!((fields(&table), table.len()), (before.clone(), before.len() as u64));
        db.check_counts().unwrap();
        table.engine().tell_opened_groups_apart().unwrap();
        assert!(table.shared().levels.filter_of_groups().is_some());
        assert_eq!(fields(&table), before);
        // What comes is above what was there.
        table.put(&7i64, &row! { n: i64::from(threads as u32) }).unwrap();
        assert!(table.engine().seal_now(99) > 0);
        assert_eq!(table.get_field(&7i64, "n").unwrap().unwrap().borrow().as_i64(), Some(threads as i64));
    }
    let before = fields(&db.table("t").unwrap());
    let walked = opened(&CrashSim::from_image(&sim.process_kill()), &clock, small());
    assert!(!is_saved(&walked) && fields(&walked.table("t").unwrap()) == before);
    walked.check_counts().unwrap();
    // Who only reads goes by them, and who has no groups walks.
    let only_reads = Db::open_at(FastTier::from_image(&image), small(), clock.clone()).unwrap();
    assert!(is_saved(&only_reads) && only_reads.table("t").unwrap().shared().levels.has_groups());
    let whole = opened(&CrashSim::from_image(&image), &clock, small().seal(false));
    assert!(!is_saved(&whole) && !whole.table("t").unwrap().shared().levels.has_groups());
    assert_eq!(fields(&only_reads.table("t").unwrap()), fields(&whole.table("t").unwrap()));
}

/// What is saved of a group never changes under its version.
#[test]
fn golden_groups() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let clock = Clock::manual(1_000);
    let db = opened(&sim, &clock, small());
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    [&b"apple"[..], b"applet", b"banana"].iter().for_each(|key| table.put(key, &row! { n: 1 }).unwrap());
    assert_eq!(table.engine().seal_now(9), 3);
    let group = Arc::clone(&table.shared().levels.groups().l0()[0].group);
    let place = group.extents()[0].place();
    assert_eq!((group.entries(), place.number >> 62 & 1), (3, 1));
    let id = table.shared().id.load(Ordering::Relaxed);
    table.put(b"banana", &row! { n: 2 }).unwrap();
    drop(table);
    db.close().unwrap();
    let (engine, _) = Engine::load(FastTier::simulated(&sim), small(), clock).unwrap();
    let pieces = engine.log.saved_index().unwrap();
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    assert_eq!(place.at % engine.log.extent_bytes(), 4096);
    let expected = [
        words(&[8, id, 44]),
        2u64.to_le_bytes().to_vec(),
        group.stamp().to_le_bytes().to_vec(),
        words(&[1, 1]),
        place.at.to_le_bytes().to_vec(),
        place.number.to_le_bytes().to_vec(),
        words(&[1024]),
    ];
    let expected = expected.concat();
    assert!(pieces[0].bytes.windows(expected.len()).any(|bytes| bytes == expected), "{expected:?}");
    // Only what is young is among the keys.
    assert!(
        pieces[0].bytes.ends_with(b"banana") && !pieces[0].bytes.windows(5).any(|bytes| bytes == b"apple")
    );
}

/// At whatever moment the machine goes down while it is closed: leaves are durable before what leads to them counts.
#[test]
fn a_cut_while_groups_are_saved_loses_nothing() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, 2 * FAST_BYTES);
        let clock = Clock::manual(1_000);
        let db = with_groups(&sim, &clock);
        let before = fields(&db.table("t").unwrap());
        // Records are durable, and leaves are not.
        db.persist().unwrap();
        let table = db.table("t").unwrap();
        assert!(table.engine().seal_now(99) > 500);
        let extents = table.engine().log.leaf_extents();
        drop(table);
        let first = sim.ops();
        db.close().unwrap();
        let last = sim.ops();
        let (mut by_saved, mut walk) = (0, sim.walk());
        for op in first..=last {
            walk.seek(op);
            let kinds = [
                (Survivors::None, 1),
                (Survivors::All, 1),
                (Survivors::Random, op),
                (Survivors::Random, op + 7),
            ];
            for (kind, seed) in kinds {
                let cut = CrashSim::from_image(&walk.image(kind, seed));
                let db = opened(&cut, &clock, small());
                if is_saved(&db) {
                    by_saved += 1;
                    assert_eq!(db.engine().log.leaf_extents(), extents);
                }
                let found = fields(&db.table("t").unwrap());
                assert_eq!(found, before, "{model:?}, cut at {op} of {first}..{last}, {kind:?}");
                db.check_counts().unwrap();
            }
        }
        assert!(by_saved > 0);
    }
}

/// A leaf that decayed while the store was closed is not taken over, nor is one whose extent somebody has.
#[test]
fn damaged_groups_are_passed_over() {
    let sim = CrashSim::new(CrashModel::Pages, 2 * FAST_BYTES);
    let clock = Clock::manual(1_000);
    let db = with_groups(&sim, &clock);
    let table = db.table("t").unwrap();
    let groups = table.shared().levels.groups();
    let places: Vec<u64> =
        groups.newest_first().flat_map(|group| group.extents()).map(|of| of.place().at).collect();
    let before = fields(&table);
    let in_header = table.engine().log.extent_bytes() - 1;
    drop((groups, table));
    db.close().unwrap();
    let places = places.iter().flat_map(|at| [(at + 1024 + 99, true), ((at & !in_header) + 2096, false)]);
    for (at, is_damaged) in places {
        let mut damaged = sim.process_kill();
        damaged.corrupt(at, 0x20);
        let db = opened(&CrashSim::from_image(&damaged), &clock, small());
        assert_eq!(is_saved(&db), !is_damaged, "byte {at}");
        assert_eq!(fields(&db.table("t").unwrap()), before, "byte {at}");
        assert!(!is_damaged || db.engine().log.leaf_extents() == 0);
        db.check_counts().unwrap();
    }
}

/// Who looks is told what there is, as long as it counts, and which part is damaged.
#[test]
fn what_was_saved_is_described() {
    let sim = CrashSim::new(CrashModel::Pages, 2 * FAST_BYTES);
    let clock = Clock::manual(1_000);
    let db = with_groups(&sim, &clock);
    let table = db.table("t").unwrap();
    let groups = table.shared().levels.groups();
    let of =
        |group: &crate::group::Group| (group.extents().len(), group.leaves(), group.bytes(), group.entries());
    let in_order = [groups.l1()].into_iter().chain(groups.l0().iter().rev().map(|of| &of.group));
    let there: Vec<_> = in_order.map(|group| of(group)).filter(|(extents, ..)| *extents > 0).collect();
    let last = groups.l0()[0].group.extents()[0].place().at;
    let look = |image: &Image| {
        let (engine, found) = Engine::load(FastTier::from_image(image), small(), clock.clone()).unwrap();
        engine.recovery().catalog_only(&found, 1);
        look::look(&engine.log, &engine.catalog, found.clean)
    };
    let killed = look(&sim.process_kill());
    assert_eq!(killed.refused.as_deref(), Some("the store was not closed in order"));
    assert!(killed.tables.is_empty() && killed.extents.is_empty());
    drop((groups, table));
    let held = db.table("t").unwrap();
    db.close().unwrap();
    let (guard, mut young) = (held.engine().log.pin(), 0);
    let count = |_: &[u8], _| {
        young += 1;
        Ok(())
    };
    held.shared().levels.each_young_version(&guard, count).unwrap();
    drop(guard);

    let info = look(&sim.process_kill());
    assert_eq!((info.refused.as_deref(), info.tables.len(), info.is_for_unbounded), (None, 1, false));
    let of_table = &info.tables[0];
    assert_eq!((of_table.keys, of_table.sealed_rows), (young, held.shared().levels.sealed_rows()));
    let described = of_table.groups.iter().map(|of| (of.extents.len(), of.leaves, of.bytes, of.entries));
    assert_eq!(described.collect::<Vec<_>>(), there);
    let ends: u64 = info.extents.len() as u64 * (256 << 10);
    assert!(info.bytes > of_table.bytes && of_table.bytes > young * 8 && info.bytes < ends, "{info:?}");

    let mut damaged = sim.process_kill();
    damaged.corrupt(last + 1024 + 99, 0x20);
    let info = look(&damaged);
    let extent = (last >> 18) as u32;
    assert!(info.refused.unwrap().contains(&format!("in the extent {extent} are damaged")));
    let groups = &info.tables[0].groups;
    assert_eq!(groups.iter().flat_map(|group| &group.damaged).collect::<Vec<_>>(), [&extent]);
    let described = groups.iter().map(|of| (of.extents.len(), of.leaves, of.bytes, of.entries));
    assert_eq!(described.zip(there).filter(|(is, was)| is != was).count(), 1, "the others are as they were");
}

mod openings;
