//! Space given back, rows moved and media lost in the worst order: each test is one history that once went wrong.

use std::sync::atomic::{AtomicBool, Ordering};

use hedgerow::{
    Batch, Change, Db, Durability, ErrorKind, Expiry, Options, OwnedValue, Schema, Table, Type, Value, row,
};
use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, FastTierOptions, Random, Survivors, crc32c};
use hedgerow_sim::{eventually, rounds};

use crate::concurrency::StopAtEnd;
use crate::rot::rot;

const SEGMENT: u64 = 1 << 20;

fn options(durability: Durability) -> Options {
    Options {
        segment_bytes: SEGMENT,
        background: false,
        recovery_threads: 1,
        index_bytes_max: 16 << 20,
        durability,
        ..Options::default()
    }
}

fn open(sim: &CrashSim) -> hedgerow::Result<Db> {
    open_in(sim, Durability::Process)
}

fn open_in(sim: &CrashSim, durability: Durability) -> hedgerow::Result<Db> {
    Db::open_at(FastTier::simulated(sim), options(durability), Clock::manual(1_000))
}

/// What a power cut now leaves.
fn cut(sim: &CrashSim, kind: Survivors) -> CrashSim {
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    CrashSim::from_image(&walk.image(kind, 1))
}

fn killed(sim: &CrashSim) -> CrashSim {
    CrashSim::from_image(&sim.process_kill())
}

fn bytes(bytes: &[u8]) -> [(&'static str, Value<'_>); 1] {
    [("value", Value::Bytes(bytes))]
}

/// Fills the open segment, all but 2 %, and begins another.
fn fill(flat: &Table, group: u8) {
    for i in 0..66u8 {
        flat.put(&[b'f', group, i], &bytes(&[i; 16_000])).unwrap();
    }
}

/// Makes most of what [`fill`] wrote obsolete.
fn empty(flat: &Table, group: u8) {
    (0..40u8).for_each(|i| flat.put(&[b'f', group, i], &bytes(b"small")).unwrap());
}

/// Decision 0004: the record of a droppable tombstone must not be taken off the count of another.
#[test]
fn a_tombstone_stays_while_a_row_under_it_does() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    flat.put(b"key", &bytes(b"first")).unwrap();
    fill(&flat, 1);
    assert!(flat.delete(b"key").unwrap());
    fill(&flat, 2);
    empty(&flat, 1);
    assert_eq!(db.collect().unwrap(), 1, "the first row's segment; its tombstone is droppable from now on");
    flat.put(b"key", &bytes(b"second")).unwrap();
    fill(&flat, 3);
    assert!(flat.delete(b"key").unwrap());
    fill(&flat, 4);
    empty(&flat, 2);
    assert_eq!(db.collect().unwrap(), 1, "the first tombstone's segment");
    empty(&flat, 4);
    assert_eq!(
        db.collect().unwrap(),
        1,
        "the second tombstone's segment, while the second row is in the log"
    );
    db.persist().unwrap();
    for crashed in [killed(&sim), cut(&sim, Survivors::None)] {
        let db = open(&crashed).unwrap();
        let flat = db.table("flat").unwrap();
        assert!(flat.get(b"key").unwrap().is_none(), "a deleted row is back");
        db.check_counts().unwrap();
    }
    db.check_counts().unwrap();
}

/// A row with a delta, durable; and the same row made whole again, which is not.
fn merged(sim: &CrashSim, durability: Durability) -> (Db, Table) {
    let db = open_in(sim, durability).unwrap();
    let table = db.create_table("t", Schema::new().field("a", Type::U32).field("b", Type::U32)).unwrap();
    table.put(b"key", &row! { a: 1, b: 1 }).unwrap();
    table.update(b"key", &row! { a: 2 }).unwrap();
    db.persist().unwrap();
    table.get(b"key").unwrap();
    db.collect().unwrap();
    assert_eq!(db.metrics().chains_merged, 1);
    (db, table)
}

fn a_and_b(db: &Db) -> (Option<i64>, Option<i64>) {
    let row = db.table("t").unwrap().get(b"key").unwrap().unwrap();
    (row.get("a").unwrap().as_i64(), row.get("b").unwrap().as_i64())
}

/// A delta over a merged row may outlive it in a power cut: then the delta counts as missing, too.
#[test]
fn a_delta_whose_merged_row_was_lost_is_cut() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, 32 << 20);
        let (_db, table) = merged(&sim, Durability::Process);
        table.update(b"key", &row! { b: 2 }).unwrap();
        let mut outcomes = Vec::new();
        let mut walk = sim.walk();
        walk.seek(u64::MAX);
        for (n, kind) in Survivors::EACH.into_iter().chain([Survivors::Random; 60]).enumerate() {
            let crashed = CrashSim::from_image(&walk.image(kind, n as u64));
            let db = open(&crashed).unwrap_or_else(|error| panic!("{model:?}, {kind:?}: {error}"));
            db.check_counts().unwrap();
            outcomes.push(a_and_b(&db));
            assert!([(Some(2), Some(1)), (Some(2), Some(2))].contains(&a_and_b(&db)), "{kind:?}");
            db.table("t").unwrap().update(b"key", &row! { a: 3 }).unwrap();
            assert_eq!(a_and_b(&db).0, Some(3));
            db.close().unwrap();
            assert_eq!(a_and_b(&open(&crashed).unwrap()).0, Some(3), "{kind:?}");
        }
        assert!(outcomes.contains(&(Some(2), Some(1))) && outcomes.contains(&(Some(2), Some(2))));
    }
}

/// On persistent memory a delta is durable before it is seen; so must be what it is a delta to.
#[test]
fn a_durable_delta_stands_on_a_durable_row() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, 32 << 20);
        let (_db, table) = merged(&sim, Durability::Immediate);
        table.update(b"key", &row! { b: 2 }).unwrap();
        let db = open(&cut(&sim, Survivors::None)).unwrap();
        assert_eq!(a_and_b(&db), (Some(2), Some(2)), "{model:?}: an acknowledged update is lost");
        db.check_counts().unwrap();
    }
}

/// A record that does not parse, in a segment that no header calls durable yet, is corruption and not its end: the rows
/// behind it must not go with the segment.
#[test]
fn a_spoiled_record_does_not_end_a_collection() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    fill(&flat, 1);
    empty(&flat, 1);
    rot(&sim, SEGMENT + 50 * 16_300 + 8_000, 0x10);
    let spoiled = (40..60).find(|&i| flat.get(&[b'f', 1, i]).is_err()).unwrap();
    assert_eq!(db.collect().unwrap_err().kind(), ErrorKind::Corrupted);
    for i in spoiled + 1..66 {
        assert!(flat.get(&[b'f', 1, i]).unwrap().is_some());
    }
}

/// An opening after a killed process that ends in a power cut must not lend its segment numbers to the next.
#[test]
fn segment_numbers_of_an_opening_that_never_synced_are_not_used_again() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    flat.put(b"a", &bytes(b"a")).unwrap();
    db.persist().unwrap();
    let second = killed(&sim);
    let db = open(&second).unwrap();
    let flat = db.table("flat").unwrap();
    flat.put(b"b", &bytes(&[7; 6_000])).unwrap();
    flat.put(b"c", &bytes(&[8; 100])).unwrap();
    // The page with the last record has been written back, the one with the segment's header has not.
    let third = cut(&second, Survivors::LastStore);
    let db = open(&third).unwrap();
    let flat = db.table("flat").unwrap();
    flat.put(b"d", &bytes(b"d")).unwrap();
    let db = open(&killed(&third)).unwrap();
    let flat = db.table("flat").unwrap();
    assert!(flat.get(b"a").unwrap().is_some() && flat.get(b"d").unwrap().is_some());
    assert!(flat.get(b"b").unwrap().is_none() && flat.get(b"c").unwrap().is_none());
}

/// What a killed process left in the caches must be durable before the next acknowledges what comes after it.
#[test]
fn durable_at_once_after_a_killed_process() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, 32 << 20);
        let db = open(&sim).unwrap();
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        flat.put(b"a", &bytes(b"a")).unwrap();
        let second = killed(&sim);
        let db = open_in(&second, Durability::Immediate).unwrap();
        db.table("flat").unwrap().put(b"b", &bytes(b"b")).unwrap();
        let db = open(&cut(&second, Survivors::None)).unwrap();
        let flat = db.table("flat").unwrap();
        assert!(flat.get(b"b").unwrap().is_some(), "{model:?}: an acknowledged write is lost");
        assert!(flat.get(b"a").unwrap().is_some());
    }
}

/// Whoever is told that a write is durable is not told so by a medium that refused to make it so.
#[test]
fn a_write_whose_persist_failed_is_not_acknowledged() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, 32 << 20);
        let db = open_in(&sim, Durability::Immediate).unwrap();
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        flat.put(b"a", &bytes(b"a")).unwrap();
        sim.fail_persist_after(0, true);
        flat.put(b"b", &bytes(b"b")).unwrap_err();
        assert_eq!(flat.put(b"c", &bytes(b"c")).unwrap_err().kind(), ErrorKind::Closed, "{model:?}");
    }
}

/// Storing the catalog closes the log like any failed sync when it fails half-way: the next catalog would be written over the one
/// that a copy of the root may refer to.
#[test]
fn a_failed_store_of_the_catalog_is_the_last() {
    for persists in 0..6 {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let db = open(&sim).unwrap();
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        let table = db.create_table("t", Schema::new().field("a", Type::U32)).unwrap();
        flat.put(b"a", &bytes(b"a")).unwrap();
        db.persist().unwrap();
        table.add_field("b", Type::U32).unwrap();
        sim.fail_persist_after(persists, false);
        assert_eq!(db.persist().unwrap_err().kind(), ErrorKind::Io, "after {persists} persists");
        let before = sim.ops();
        let error = table.add_field("another field", Type::U32).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "after {persists} persists: {error}");
        let mut walk = sim.walk();
        walk.seek(before);
        loop {
            let db = open(&CrashSim::from_image(&walk.image(Survivors::All, 1))).unwrap();
            assert!(db.table("flat").unwrap().get(b"a").unwrap().is_some());
            assert!(db.table("t").unwrap().field("b").is_ok());
            if !walk.next_op() {
                break;
            }
        }
    }
}

/// Killed between the two copies that free a segment: the second must not bring it back once the first is written again.
#[test]
fn a_segment_freed_by_one_copy_stays_free() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    flat.put(b"key", &bytes(b"value")).unwrap();
    fill(&flat, 1);
    flat.delete(b"key").unwrap();
    fill(&flat, 2);
    fill(&flat, 3);
    empty(&flat, 3);
    assert_eq!(db.collect().unwrap(), 1, "a checkpoint, which writes down the other segments' ends");
    empty(&flat, 1);
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    assert_eq!(db.collect().unwrap(), 1);
    let before = walk.op_index();
    let mut walk = sim.walk();
    walk.seek(before);
    let half_freed = loop {
        assert!(walk.next_op());
        let image = walk.image(Survivors::ProcessKill, 0);
        let [first, second] = [36, 64 + 36].map(|state| image.read(SEGMENT + state, 1)[0]);
        if (first, second) == (0, 2) {
            break image;
        }
    };
    let torn = |sim: &CrashSim| {
        let mut walk = sim.walk();
        walk.seek(u64::MAX);
        let mut image = walk.image(Survivors::None, 0);
        image.corrupt(SEGMENT + 8, 0x55);
        open(&CrashSim::from_image(&image))
    };
    let second = CrashSim::from_image(&half_freed);
    let db = open(&second).unwrap();
    let flat = db.table("flat").unwrap();
    empty(&flat, 2);
    // The first segment's extent is in use again. The power goes in the middle of its header's first copy.
    let cut = torn(&second).unwrap();
    assert!(cut.table("flat").unwrap().get(b"key").unwrap().is_none(), "a deleted row is back");
    cut.check_counts().unwrap();
    assert_eq!(db.collect().unwrap(), 2, "the tombstone's segment, and the one that the kill left open");
    fill(&flat, 4);
    fill(&flat, 5);
    // The same header spoiled after the collection's checkpoint listed it: now rows would be missing.
    assert_eq!(torn(&second).map(drop).unwrap_err().kind(), ErrorKind::Corrupted);
}

/// A segment header as `log/segment.rs` draws it: sealed, and with an end that nothing backs.
fn forged_header() -> [u8; 64] {
    let mut header = [0; 64];
    header[..8].copy_from_slice(b"HDGSEG01");
    header[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    header[16..24].copy_from_slice(&1000u64.to_le_bytes());
    header[32..36].copy_from_slice(&1u32.to_le_bytes());
    header[36] = 2;
    let crc = crc32c(0, &header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The middle of a big row may look like a segment header. It must never be taken for one, whenever the crash comes.
#[test]
fn a_row_with_a_forged_header_inside() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, 48 << 20);
        let db = open(&sim).unwrap();
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        flat.put(b"kept", &bytes(b"kept")).unwrap();
        // One header after the other: with one of the shifts an extent begins with one.
        let value: Vec<u8> = forged_header().into_iter().cycle().take(2_500_000).collect();
        let mut hits = 0;
        for shift in 0..64 {
            let before = sim.ops();
            let shifted = &value[shift..];
            flat.put(b"big", &bytes(shifted)).unwrap();
            let image = sim.process_kill();
            let extent_begins = |extent: u64| image.read(extent * SEGMENT, 64) == forged_header();
            if !(1..image.bytes() / SEGMENT).any(extent_begins) {
                sim.limit_log(0);
                flat.put(b"big", &bytes(b"small")).unwrap();
                db.collect().unwrap();
                sim.limit_log(usize::MAX);
                continue;
            }
            hits += 1;
            flat.put(b"big", &bytes(b"small")).unwrap();
            assert!(db.collect().unwrap() > 0);
            flat.put(b"big", &bytes(&vec![shift as u8; 1_200_000])).unwrap();
            flat.put(b"big", &bytes(b"small")).unwrap();
            db.collect().unwrap();
            let mut walk = sim.walk();
            walk.seek(before);
            while walk.next_op() {
                for kind in [Survivors::ProcessKill, Survivors::None, Survivors::LastStore, Survivors::Random]
                {
                    let crashed = CrashSim::from_image(&walk.image(kind, shift as u64));
                    let db = open(&crashed).unwrap_or_else(|error| {
                        panic!("{model:?}, {kind:?} at {}, shift {shift}: {error}", walk.op_index())
                    });
                    db.check_counts().unwrap();
                }
            }
        }
        assert!(hits > 0, "no shift puts a header where an extent begins");
    }
}

/// Whoever was told that a write is done before `close` returned finds it, even after a power cut.
#[test]
fn writes_that_meet_a_close_are_durable_or_refused() {
    for round in 0..30u64 {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let db = open(&sim).unwrap();
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        let acknowledged: Vec<u64> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2u64)
                .map(|writer| {
                    let flat = flat.clone();
                    scope.spawn(move || {
                        let written = |n: &u64| match flat.put(&n.to_be_bytes(), &bytes(b"x")) {
                            Ok(()) => true,
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Closed);
                                false
                            }
                        };
                        (0..).map(|n| 2 * n + writer).take_while(written).collect::<Vec<u64>>()
                    })
                })
                .collect();
            std::thread::sleep(std::time::Duration::from_micros(500 + 50 * round));
            db.close().unwrap();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        let db = open(&cut(&sim, Survivors::None)).unwrap();
        let flat = db.table("flat").unwrap();
        for n in &acknowledged {
            assert!(flat.exists(&n.to_be_bytes()).unwrap(), "round {round}: write {n} is lost");
        }
    }
}

/// The sweeper must leave alone what was written anew since it looked.
#[test]
fn the_sweeper_takes_no_row_written_anew() {
    let options = Options { background: true, ..options(Durability::Process) };
    let clock = Clock::manual(1_000);
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = Db::open_at(FastTier::simulated(&sim), options, clock.clone()).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    for round in 0..10u64 {
        let keys = 2_000u32;
        for key in 0..keys {
            flat.put_expiring(&key.to_be_bytes(), &bytes(b"old"), Expiry::at_unix_ms(clock.now_ms() + 10))
                .unwrap();
        }
        let swept = db.metrics().expired;
        clock.advance_ms(20);
        while db.metrics().expired == swept {
            std::hint::spin_loop();
        }
        for key in (0..keys).rev() {
            flat.put(&key.to_be_bytes(), &bytes(b"new")).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(150));
        let lost = (0..keys).filter(|key| !flat.exists(&key.to_be_bytes()).unwrap()).count();
        assert_eq!(lost, 0, "round {round}: rows lost that were written after they had expired");
    }
}

/// A table counts its tombstones; clearing it while others write must leave that number right, or the table looks empty.
#[test]
fn a_table_cleared_under_writers_counts_its_rows() {
    let sim = CrashSim::new(CrashModel::Pages, 512 << 20);
    sim.limit_log(1 << 20);
    let db = open(&sim).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2u8 {
            let (flat, stop) = (flat.clone(), &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    flat.put(&[writer], &bytes(b"x")).unwrap();
                    flat.delete(&[writer]).unwrap();
                }
            });
        }
        for _ in 0..100 {
            std::thread::sleep(std::time::Duration::from_micros(50));
            flat.clear().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    flat.put(b"row", &bytes(b"x")).unwrap();
    assert_eq!(flat.len(), flat.scan().count() as u64);
    db.check_counts().unwrap();
}

/// Writers, readers, consolidation, two gc threads, the sweeper and a snapshot at once: afterwards the older-version counts are right.
#[test]
fn counts_are_right_after_all_threads_met() {
    let tier = FastTier::dram(&FastTierOptions { bytes_max: 48 << 20, reserve_bytes: 48 << 20 }).unwrap();
    let db = Db::open_on(tier, Options { background: true, ..options(Durability::Process) }).unwrap();
    let table = db.create_table("t", Schema::new().field("a", Type::U32).field("b", Type::Bytes)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let (table, db, stop) = (table.clone(), db.clone(), &stop);
            scope.spawn(move || {
                let mut random = Random::from_seed(writer);
                while !stop.load(Ordering::Relaxed) {
                    let key = random.below(3_000).to_be_bytes();
                    let value = vec![1; random.below(2_000) as usize];
                    match random.below(160) {
                        0..12 => table.put(&key, &row! { a: 1, b: &value[..] }).unwrap(),
                        12..20 => table.update(&key, &row! { a: 2 }).unwrap(),
                        20..30 => drop(table.delete(&key).unwrap()),
                        30 => table
                            .put_expiring(&key, &row! { a: 3, b: &value[..] }, Expiry::at_unix_ms(1))
                            .unwrap(),
                        31 => {
                            let mut batch = Batch::new();
                            batch.delete(&table, &key).unwrap();
                            batch.put(&table, b"batched", &row! { a: 4, b: &value[..] }).unwrap();
                            db.write(batch).unwrap();
                        }
                        _ => drop(table.get(&key).unwrap()),
                    }
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let snapshot = db.snapshot();
                db.collect().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(1));
                drop(snapshot);
                db.collect().unwrap();
            }
        });
        let _stop = StopAtEnd(&stop);
        eventually("segments are collected, and chains merged", || {
            let metrics = db.metrics();
            metrics.segments_collected >= rounds(150, 3_000) && metrics.chains_merged >= rounds(1_000, 20_000)
        });
    });
    db.clone().close().unwrap();
    db.check_counts().unwrap();
}

/// Readers of rows that are merged in place under their eyes: whole, and never older than what was read before.
#[test]
fn rows_merged_in_place_are_read_whole() {
    const KEYS: u64 = 64;
    let tier = FastTier::dram(&FastTierOptions { bytes_max: 64 << 20, reserve_bytes: 64 << 20 }).unwrap();
    let db = Db::open_on(tier, Options { background: true, ..options(Durability::Process) }).unwrap();
    // The two numbers lie in the first block, what repeats them in the next two.
    let schema = Schema::new()
        .field("a", Type::U64)
        .field("b", Type::U64)
        .field("c", Type::FixedBytes(400))
        .field("still", Type::FixedBytes(300));
    let table = db.create_table("t", schema).unwrap();
    for key in 0..KEYS {
        let first = row! { a: 0u64, b: 0u64, c: &[0u8; 400][..], still: &[5u8; 300][..] };
        table.put(&key.to_be_bytes(), &first).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let (table, stop) = (table.clone(), &stop);
            scope.spawn(move || {
                let mut random = Random::from_seed(writer);
                for n in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = random.below(KEYS / 2) * 2 + writer;
                    table.update(&key.to_be_bytes(), &row! { a: n, b: n, c: &[n as u8; 400][..] }).unwrap();
                    // Rest now and then, so that chains age.
                    if n % 64 == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(3));
                    }
                }
            });
        }
        for reader in 0..2u64 {
            let (table, stop) = (table.clone(), &stop);
            scope.spawn(move || {
                let mut random = Random::from_seed(100 + reader);
                let mut seen = vec![0; KEYS as usize];
                while !stop.load(Ordering::Relaxed) {
                    let key = random.below(KEYS);
                    let fields: &[&str] = [&["a", "b", "c", "still"][..], &["b", "c"]][key as usize % 2];
                    let row = table.get_fields(&key.to_be_bytes(), fields).unwrap().unwrap();
                    let n = row.get("b").unwrap().as_u64().unwrap();
                    assert!(
                        n >= seen[key as usize],
                        "key {key} went back from {} to {n}",
                        seen[key as usize]
                    );
                    seen[key as usize] = n;
                    assert!(row.get("c").unwrap().as_bytes().unwrap().iter().all(|byte| *byte == n as u8));
                    if fields.len() == 4 {
                        assert_eq!(row.get("a").unwrap(), Value::UInt(n));
                        assert_eq!(row.get("still").unwrap(), Value::Bytes(&[5; 300]));
                    }
                }
            });
        }
        let _stop = StopAtEnd(&stop);
        eventually("chains are merged in place", || {
            db.metrics().chains_merged_in_place >= rounds(150, 3_000)
        });
    });
    db.clone().close().unwrap();
    db.check_counts().unwrap();
}

/// A row that was refused leaves its bytes where the next one goes. On persistent memory the checksums of a row's blocks are not
/// under the checksum of its prefix, so that a prefix alone over the checksums and blocks of the other must not make a row.
#[test]
fn a_refused_row_lends_the_next_no_bytes() {
    let key_bytes = (8..=72).step_by(8);
    for (key_bytes, durability) in
        key_bytes.flat_map(|n| [(n, Durability::Process), (n, Durability::Immediate)])
    {
        let sim = CrashSim::new(CrashModel::CacheLines, 32 << 20);
        let db = open_in(&sim, durability).unwrap();
        let table = db.create_table("t", Schema::new().field("a", Type::U64).field("b", Type::U64)).unwrap();
        let key = vec![b'k'; key_bytes];
        table.put(&key, &row! { a: 1u64, b: 1u64 }).unwrap();
        let (mut calls, mut before) = (0, 0);
        let change = table.modify(&key, |_| {
            calls += 1;
            match calls {
                // Somebody else is quicker.
                1 => table.put(&key, &row! { a: 2u64, b: 2u64 })?,
                // The processor writes lines back when it likes.
                _ => db.persist()?,
            }
            before = sim.ops();
            let value = OwnedValue::UInt(10 * calls);
            let fields = vec![("a".to_owned(), value.clone()), ("b".to_owned(), value)];
            Ok((Change::Put { fields, expiry: Expiry::Never }, ()))
        });
        change.unwrap();
        assert_eq!(calls, 2);
        let mut walk = sim.walk();
        walk.seek(before);
        loop {
            for (n, kind) in Survivors::EACH.into_iter().chain([Survivors::Random; 8]).enumerate() {
                let db = open(&CrashSim::from_image(&walk.image(kind, n as u64))).unwrap();
                let row = db.table("t").unwrap().get(&key).unwrap().unwrap();
                let (a, b) =
                    (row.get("a").unwrap().as_u64().unwrap(), row.get("b").unwrap().as_u64().unwrap());
                assert!(a == b && [2, 20].contains(&a), "{kind:?}, key of {key_bytes} bytes: {a} and {b}");
            }
            if !walk.next_op() {
                break;
            }
        }
    }
}

/// A deletion that waits for space must not hold up who makes it.
#[test]
fn deletions_that_wait_for_space_get_it() {
    let tier = FastTier::dram(&FastTierOptions { bytes_max: 16 << 20, reserve_bytes: 16 << 20 }).unwrap();
    let db = Db::open_on(tier, Options { background: true, ..options(Durability::Process) }).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let key = |n: u32| [&n.to_be_bytes()[..], &[b'k'; 30_000]].concat();
    let count = (0..).find(|&n| flat.put(&key(n), &bytes(&[7; 30_000])).is_err()).unwrap();
    assert!(count > 100);
    for n in 0..count {
        assert!(flat.delete(&key(n)).unwrap_or_else(|error| panic!("{n} of {count}: {error}")));
    }
}

/// A sync that fails while a segment is begun is a failed sync like any other: nobody knows what else it would have written.
#[test]
fn a_failed_sync_of_a_segment_header_closes_the_log() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    flat.put(b"small", &bytes(b"before")).unwrap();
    sim.fail_persist_after(0, false);
    let error = flat.put(b"big", &bytes(&vec![1; 3 << 20])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let error = flat.put(b"small", &bytes(b"after")).and_then(|()| db.persist()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(flat.get(b"small").unwrap().is_some(), "reads go on");
}

/// Durable at once on persistent memory: what a reader sees of a batch no crash takes back.
#[test]
fn what_is_seen_of_a_batch_is_durable() {
    let sim = CrashSim::new(CrashModel::CacheLines, 32 << 20);
    let db = open_in(&sim, Durability::Immediate).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let keys: Vec<[u8; 4]> = (0..3_000).map(u32::to_be_bytes).collect();
    let first = |flat: &Table| flat.get_field(&keys[0], "value").unwrap();
    for round in 1..=8u8 {
        let wanted = Some(OwnedValue::Bytes(vec![round; 50].into()));
        let mut batch = Batch::new();
        keys.iter().for_each(|key| batch.put(&flat, key, &bytes(&[round; 50])).unwrap());
        let seen = std::thread::scope(|scope| {
            let writer = scope.spawn(|| db.write(batch).unwrap());
            while first(&flat) != wanted && !writer.is_finished() {}
            sim.ops()
        });
        let mut walk = sim.walk();
        walk.seek(seen);
        let crashed = CrashSim::from_image(&walk.image(Survivors::None, 1));
        let found = first(&open(&crashed).unwrap().table("flat").unwrap());
        assert!(found == wanted, "the batch of round {round} was seen and is gone");
        db.collect().unwrap();
    }
}

/// Those who wait for another's sync are told when it fails, and none is left waiting.
#[test]
fn all_writers_of_a_failed_group_commit_are_refused() {
    for round in 0..20 {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let db = open_in(&sim, Durability::Immediate).unwrap();
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        sim.fail_persist_after(round, true);
        let write_until_refused = |thread: u8| {
            (0..100_000u32).find_map(|i| flat.put(&[thread, i as u8], &bytes(&i.to_le_bytes())).err())
        };
        std::thread::scope(|scope| {
            let writers: Vec<_> =
                (0..4).map(|thread| scope.spawn(move || write_until_refused(thread))).collect();
            for writer in writers {
                let error = writer.join().unwrap().expect("no write is acknowledged without its sync");
                assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Closed), "{error}");
            }
        });
    }
}
