//! Merges caught half-way: what a test from outside cannot time.

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Survivors};

use super::*;
use crate::db::fixture::options;
use crate::index::Slot;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{Db, ErrorKind, Options, Schema, Table, Type, Value};

const KEY: &[u8] = b"key";

fn open(sim: &CrashSim) -> Db {
    open_with(sim, options()).unwrap()
}

fn open_with(sim: &CrashSim, options: Options) -> Result<Db> {
    Db::open_at(FastTier::simulated(sim), options, Clock::manual(1_000))
}

/// What a power cut now leaves.
fn cut(sim: &CrashSim, kind: Survivors) -> CrashSim {
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    CrashSim::from_image(&walk.image(kind, 1))
}

fn sim() -> CrashSim {
    CrashSim::new(CrashModel::CacheLines, 32 << 20)
}

/// A table with a row of three blocks, under two deltas that change two of them.
fn table_of(db: &Db) -> Table {
    let schema = Schema::new()
        .field("n", Type::U64)
        .field("m", Type::U64)
        .field("wide", Type::FixedBytes(300))
        .field("other", Type::FixedBytes(300))
        .nullable("note", Type::String);
    let table = db.create_table("t", schema).unwrap();
    let fields = [
        ("n", Value::UInt(1)),
        ("m", Value::UInt(1)),
        ("wide", Value::Bytes(&[1; 300])),
        ("other", Value::Bytes(&[7; 300])),
    ];
    table.put(KEY, &fields).unwrap();
    table.update(KEY, &[("n", Value::UInt(2)), ("wide", Value::Bytes(&[2; 300]))]).unwrap();
    table.update(KEY, &[("n", Value::UInt(3))]).unwrap();
    table
}

fn check(table: &Table) {
    for field in ["n", "m", "wide", "other"] {
        let row = table.get_fields(KEY, &[field]).unwrap().unwrap();
        match field {
            "n" => assert_eq!(row.get(field).unwrap(), Value::UInt(3)),
            "m" => assert_eq!(row.get(field).unwrap(), Value::UInt(1)),
            "wide" => assert_eq!(row.get(field).unwrap(), Value::Bytes(&[2; 300])),
            _ => assert_eq!(row.get(field).unwrap(), Value::Bytes(&[7; 300])),
        }
    }
    let row = table.get(KEY).unwrap().unwrap();
    assert_eq!((row.get("n").unwrap(), row.get("other").unwrap()), (Value::UInt(3), Value::Bytes(&[7; 300])));
    assert_eq!(row.get("note").unwrap(), Value::Null);
}

/// What merging the row would write: checksums, fields.
type Writes = (Vec<(u64, [u8; 4])>, Vec<(u64, Vec<u8>)>);

fn writes_of(table: &Table) -> Writes {
    let (engine, shared) = (table.engine(), table.shared());
    let through = engine.log.checkpoint().unwrap();
    let guard = engine.log.pin();
    let slot = shared.levels.locate_version(KEY, &guard).and_then(Slot::in_log).unwrap();
    let chain = Chain::of(guard.view(), slot).unwrap();
    let merge = engine.in_place_merge().plan_merge(shared, slot, &chain, through).unwrap().unwrap();
    (merge.checksums, merge.fields)
}

#[test]
fn a_merged_row_is_one_record() {
    let sim = sim();
    let db = open(&sim);
    let table = table_of(&db);
    let version = table.get(KEY).unwrap().unwrap().version();
    db.collect().unwrap();
    assert_eq!(db.metrics().chains_merged_in_place, 1);
    let slot = table.shared().levels.locate(KEY, &table.engine().log.pin()).unwrap();
    assert_eq!((slot.tag(), slot.older_versions(), slot.depth()), (Tag::Row, 2, 0));
    assert_eq!(table.get(KEY).unwrap().unwrap().version(), version, "no write, no new version");
    check(&table);
    db.check_counts().unwrap();
    // Deltas that are in the row already must not come back over it.
    let db = open(&CrashSim::from_image(&sim.process_kill()));
    let table = db.table("t").unwrap();
    assert_eq!(table.shared().levels.locate(KEY, &table.engine().log.pin()).unwrap().tag(), Tag::Row);
    assert_eq!(table.get(KEY).unwrap().unwrap().version(), version);
    check(&table);
    db.check_counts().unwrap();
}

#[test]
fn a_row_is_read_at_every_step_of_a_merge() {
    let sim = sim();
    let db = open(&sim);
    let table = table_of(&db);
    let (checksums, fields) = writes_of(&table);
    assert_eq!((checksums.len(), fields.len()), (2, 2), "two blocks, two fields");
    let log = &table.engine().log;
    let mut steps: Vec<(u64, Vec<u8>)> =
        checksums.into_iter().map(|(at, checksum)| (at, checksum.to_vec())).collect();
    // Fields torn between words.
    for (at, bytes) in fields {
        let middle = (bytes.len() / 2) & !7;
        steps.push((at, bytes[..middle].to_vec()));
        steps.push((at + middle as u64, bytes[middle..].to_vec()));
    }
    for (at, bytes) in steps {
        log.patch_row(at, &bytes);
        check(&table);
        // And so after a kill at this moment.
        let db = open(&CrashSim::from_image(&sim.process_kill()));
        let table = db.table("t").unwrap();
        check(&table);
        db.collect().unwrap();
        check(&table);
        db.check_counts().unwrap();
    }
}

/// No reader has a slice of what a merge stores to: miri tells where one has, even if nothing but the same values is stored.
#[test]
fn a_row_is_read_while_it_is_merged() {
    const ROUNDS: usize = if cfg!(miri) { 2 } else { 2_000 };
    let sim = sim();
    let db = open(&sim);
    let table = table_of(&db);
    let (checksums, fields) = writes_of(&table);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let log = &table.engine().log;
            for _ in 0..ROUNDS {
                checksums.iter().for_each(|(at, checksum)| log.patch_checksum(*at, u32_at(checksum, 0)));
                fields.iter().for_each(|(at, bytes)| log.patch_row(*at, bytes));
            }
            is_over.store(true, Ordering::Release);
        });
        while !is_over.load(Ordering::Acquire) {
            check(&table);
        }
    });
    check(&table);
}

#[test]
fn no_merge_explains_a_byte_that_changed() {
    let sim = sim();
    let db = open(&sim);
    let table = table_of(&db);
    let (checksums, _) = writes_of(&table);
    let log = &table.engine().log;
    let (slot, body) = {
        let guard = table.engine().log.pin();
        let slot = table.shared().levels.locate_version(KEY, &guard).and_then(Slot::in_log).unwrap();
        (slot, Chain::of(guard.view(), slot).unwrap().base_row().unwrap().unwrap().body_offset())
    };
    assert_eq!(slot.depth(), 2);
    checksums.iter().for_each(|(at, checksum)| log.patch_row(*at, checksum));
    // A byte of `m`, which no delta names.
    log.patch_row(body + 8 + 8, &[9]);
    assert_eq!(table.get_fields(KEY, &["m"]).unwrap_err().kind(), ErrorKind::Corrupted);
    assert_eq!(table.get(KEY).unwrap_err().kind(), ErrorKind::Corrupted);
    assert_eq!(
        table.get_fields(KEY, &["n"]).unwrap().unwrap().get("n").unwrap(),
        Value::UInt(3),
        "from the delta"
    );
}

#[test]
fn what_cannot_be_merged_in_place_is_not() {
    let sim = sim();
    let db = open(&sim);
    let table = table_of(&db);
    let plan = |what: &str, through: u64| {
        let (engine, shared) = (table.engine(), table.shared());
        let guard = engine.log.pin();
        let slot = shared.levels.locate_version(KEY, &guard).and_then(Slot::in_log).unwrap();
        let chain = Chain::of(guard.view(), slot).unwrap();
        assert!(
            engine.in_place_merge().plan_merge(shared, slot, &chain, through).unwrap().is_none(),
            "{what}"
        );
    };
    let last = table.engine().log.last_sequence();
    plan("a delta that is not known durable", last - 1);
    table.update(KEY, &[("note", Value::Str("a text"))]).unwrap();
    plan("a variable field", u64::MAX);
    db.create_table("nullable", Schema::new().nullable("x", Type::U64).nullable("y", Type::U64)).unwrap();
    let table = db.table("nullable").unwrap();
    table.put(KEY, &[("x", Value::UInt(1))]).unwrap();
    table.update(KEY, &[("y", Value::UInt(1))]).unwrap();
    let (engine, shared) = (table.engine(), table.shared());
    let guard = engine.log.pin();
    let slot = shared.levels.locate_version(KEY, &guard).and_then(Slot::in_log).unwrap();
    let chain = Chain::of(guard.view(), slot).unwrap();
    assert!(
        engine.in_place_merge().plan_merge(shared, slot, &chain, u64::MAX).unwrap().is_none(),
        "a field the row lacks"
    );
}

/// Under an older snapshot the row stays as it was, and is copied.
#[test]
fn a_snapshot_sees_what_it_saw() {
    let sim = sim();
    let db = open(&sim);
    let table = table_of(&db);
    let snapshot = db.snapshot();
    table.update(KEY, &[("n", Value::UInt(4))]).unwrap();
    let seen = || snapshot.get(&table, KEY).unwrap().unwrap().get("n").unwrap().as_u64();
    assert_eq!(seen(), Some(3));
    drop(table.get(KEY).unwrap());
    db.collect().unwrap();
    assert_eq!((db.metrics().chains_merged, db.metrics().chains_merged_in_place), (1, 0));
    assert_eq!(seen(), Some(3));
    let row = table.get(KEY).unwrap().unwrap();
    assert_eq!(row.get("n").unwrap(), Value::UInt(4));
}

/// Where the body of the row under all versions lies.
fn body_of(table: &Table) -> u64 {
    let guard = table.engine().log.pin();
    let slot = table.shared().levels.locate_version(KEY, &guard).and_then(Slot::in_log).unwrap();
    Chain::of(guard.view(), slot).unwrap().base_row().unwrap().unwrap().body_offset()
}

/// A byte of `other`, which no delta names.
const OTHER: u64 = 8 + 16 + 300 + 10;

/// A row written over while it was being merged is mended like any other: what was written over it may be lost yet.
#[test]
fn a_torn_row_under_a_newer_version_is_mended() {
    for newer in ["delta", "row", "tombstone"] {
        let sim = sim();
        let db = open(&sim);
        let table = table_of(&db);
        let (checksums, fields) = writes_of(&table);
        let log = &table.engine().log;
        checksums.iter().for_each(|(at, checksum)| log.patch_row(*at, checksum));
        log.tier().persist_all().unwrap();
        let (at, bytes) = &fields[1];
        log.patch_row(*at, &bytes[..200]);
        match newer {
            "delta" => table.update(KEY, &[("m", Value::UInt(9))]).unwrap(),
            "row" => table.put(KEY, &[("n", Value::UInt(9))]).unwrap(),
            _ => assert!(table.delete(KEY).unwrap()),
        }
        let second = CrashSim::from_image(&sim.process_kill());
        let db = open(&second);
        let row = db.table("t").unwrap().get(KEY).unwrap();
        assert_eq!(row.is_none(), newer == "tombstone");
        db.check_counts().unwrap();
        // The power goes, and with it the newer version.
        let db = open(&cut(&second, Survivors::None));
        check(&db.table("t").unwrap());
        db.check_counts().unwrap();
    }
}

/// Bytes that changed in a row that was written over are not given new checksums: what was written over it may be lost yet.
#[test]
fn a_corrupted_row_under_a_newer_one_is_told() {
    let sim = sim();
    let db = open(&sim);
    let table = table_of(&db);
    table.engine().log.checkpoint().unwrap();
    let body = body_of(&table);
    table.delete(KEY).unwrap();
    let mut image = sim.process_kill();
    image.corrupt(body + OTHER, 0x20);
    let second = CrashSim::from_image(&image);
    let error = match open_with(&second, options()) {
        Err(error) => error,
        Ok(_) => {
            // Opened all the same; then the power goes, and with it the tombstone.
            let db = open(&cut(&second, Survivors::None));
            let row = db.table("t").unwrap().get(KEY).map(Option::unwrap);
            panic!("read as {:?}", row.map(|row| row.get("other").unwrap().to_owned()));
        }
    };
    assert_eq!(error.kind(), ErrorKind::Corrupted);
}

/// Whether or not reads verify, what is wrong with a row is told, and not given new checksums.
#[test]
fn corruption_is_not_hidden_where_reads_do_not_verify() {
    let unverified = || Options { verify_reads: false, ..options() };
    let sim = sim();
    let db = open_with(&sim, unverified()).unwrap();
    let table = table_of(&db);
    table.engine().log.checkpoint().unwrap();
    crate::tier::rot(&sim, body_of(&table) + OTHER, 0x20);
    let error = open_with(&CrashSim::from_image(&sim.process_kill()), unverified()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "opening");
    table.get(KEY).unwrap();
    db.collect().unwrap();
    assert_eq!(db.metrics().chains_merged, 0);
}

/// Once a persist is refused nothing follows that relies on it, whatever a later persist does.
#[test]
fn a_refused_persist_ends_a_merge() {
    for by_copy in [false, true] {
        for persists in 0.. {
            let sim = sim();
            let db = open(&sim);
            let table = table_of(&db);
            if by_copy {
                table.update(KEY, &[("note", Value::Str("a text"))]).unwrap();
            }
            table.get(KEY).unwrap();
            db.persist().unwrap();
            let before = (sim.ops(), sim.persist_points());
            sim.fail_persist_after(persists, false);
            drop(db.collect());
            if sim.persist_points() - before.1 <= persists {
                assert!(persists > 4, "{persists} persists");
                break;
            }
            let mut walk = sim.walk();
            walk.seek(before.0);
            while walk.next_point() {
                for kind in [Survivors::None, Survivors::HeadersOnly, Survivors::All] {
                    let place =
                        format!("by copy: {by_copy}, persist {persists}, at {}, {kind:?}", walk.op_index());
                    let db = open_with(&CrashSim::from_image(&walk.image(kind, 1)), options());
                    let db = db.unwrap_or_else(|error| panic!("{place}: {error}"));
                    let row = db.table("t").unwrap().get(KEY).unwrap().unwrap();
                    assert_eq!(row.get("n").unwrap(), Value::UInt(3), "{place}");
                    assert_eq!(row.get("wide").unwrap(), Value::Bytes(&[2; 300]), "{place}");
                    assert_eq!(row.get("other").unwrap(), Value::Bytes(&[7; 300]), "{place}");
                }
            }
        }
    }
}
