//! Batches with parts that depend on rows: what they see of each other, that they are whole, and many who write.

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier};

use crate::db::fixture::options;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{Batch, Db, Error, ErrorKind, Expiry, OwnedValue, Result, Schema, Table, Type, Value, row};

fn schema() -> Schema {
    let schema = Schema::new().field_with_default("points", Type::U32, 10_u32).field("text", Type::String);
    schema.nullable("note", Type::Bytes).nullable("score", Type::I8)
}

fn open(clock: &Clock) -> (CrashSim, Db, Table) {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = Db::open_at(FastTier::simulated(&sim), options(), clock.clone()).unwrap();
    let table = db.create_table("players", schema()).unwrap();
    (sim, db, table)
}

fn field(table: &Table, key: &str, name: &str) -> Option<OwnedValue> {
    table.get_field(key, name).unwrap()
}

fn points(table: &Table, key: &str) -> Option<u64> {
    field(table, key, "points").map(|points| points.borrow().as_i64().unwrap().try_into().unwrap())
}

/// Position, key and kind of what a batch was refused for.
fn refusal(error: &Error) -> (usize, &[u8], ErrorKind) {
    let failed = error.failed_write().unwrap();
    (failed.position, &failed.key, error.kind())
}

#[test]
fn a_part_sees_what_the_parts_before_it_wrote() {
    let (_sim, db, table) = open(&Clock::manual(1_000));
    table.put("there", &row! { points: 5, text: "old", note: "n" }).unwrap();
    let mut batch = Batch::new();
    // What is stored, what was put, a default, no row, a row that was removed.
    batch.increment(&table, "there", "points", 2).unwrap();
    batch.increment(&table, "there", "points", 3).unwrap();
    batch.put(&table, "put", &row! { points: 7 }).unwrap();
    batch.increment(&table, "put", "points", 1).unwrap();
    batch.put(&table, "default", &row! { text: "x" }).unwrap();
    batch.increment(&table, "default", "points", 1).unwrap();
    batch.update(&table, "made", &row! { text: "x" }).unwrap();
    batch.increment(&table, "made", "points", 1).unwrap();
    batch.increment(&table, "none", "points", 1).unwrap();
    batch.delete(&table, "removed").unwrap();
    batch.increment(&table, "removed", "points", 1).unwrap();
    // A value is compared as reading would show it: bytes that were given as text, what was just written, what expired at once.
    batch.compare_and_set(&table, "there", "note", Value::Bytes(b"n"), Value::Str("m")).unwrap();
    batch.compare_and_set(&table, "there", "note", Value::Bytes(b"m"), Value::Null).unwrap();
    batch.compare_and_set(&table, "there", "note", Value::Null, Value::Bytes(b"last")).unwrap();
    batch.compare_and_set(&table, "there", "points", Value::Int(10), Value::Int(20)).unwrap();
    batch.update_expiring(&table, "put", &row! { score: 5 }, Expiry::at_unix_ms(1_000)).unwrap();
    batch.increment(&table, "put", "score", 1).unwrap();
    batch.update_existing(&table, "made", &row! { text: "y" }).unwrap();
    assert_eq!(batch.len(), 18);
    table.put("removed", &row! { points: 99 }).unwrap();
    db.write(&batch).unwrap();
    let all = ["there", "put", "default", "made", "none", "removed"].map(|key| points(&table, key).unwrap());
    assert_eq!(all, [20, 8, 11, 11, 1, 1]);
    assert_eq!(field(&table, "there", "note"), Some(OwnedValue::Bytes(b"last".to_vec().into())));
    assert_eq!(field(&table, "there", "text"), Some(OwnedValue::Str("old".into())));
    assert_eq!(field(&table, "put", "score"), Some(OwnedValue::Int(1)));
    assert_eq!(field(&table, "made", "text"), Some(OwnedValue::Str("y".into())));
    db.check_counts().unwrap();
}

#[test]
fn one_part_that_is_refused_refuses_all() {
    let (_sim, db, table) = open(&Clock::manual(1_000));
    table.put("ada", &row! { points: 5 }).unwrap();
    let refused = |add: &dyn Fn(&mut Batch) -> Result<()>| {
        let mut batch = Batch::new();
        batch.put(&table, "first", &row! { points: 1 }).unwrap();
        batch.increment(&table, "ada", "points", 100).unwrap();
        add(&mut batch).unwrap();
        batch.delete(&table, "ada").unwrap();
        let error = db.write(&batch).unwrap_err();
        assert_eq!((points(&table, "ada"), points(&table, "first")), (Some(5), None), "{error}");
        error
    };
    let five = [Value::Int(5), Value::Int(6)];
    let error = refused(&|batch| batch.compare_and_set(&table, "ada", "points", five[0], five[1]));
    assert_eq!(refusal(&error), (2, &b"ada"[..], ErrorKind::Conflict), "it has 105 by then");
    let error = refused(&|batch| batch.update_existing(&table, "bob", &row! { points: 1 }));
    assert_eq!(refusal(&error), (2, &b"bob"[..], ErrorKind::Conflict));
    for by in [-106, i64::MAX, i64::from(u32::MAX)] {
        let error = refused(&|batch| batch.increment(&table, "ada", "points", by));
        assert_eq!(refusal(&error), (2, &b"ada"[..], ErrorKind::Invalid), "{by}");
    }
    let error = refused(&|batch| batch.increment(&table, "ada", "text", 1));
    assert_eq!(refusal(&error), (2, &b"ada"[..], ErrorKind::Invalid));
    let error = refused(&|batch| batch.increment(&table, "ada", "nobody", 1));
    assert_eq!(refusal(&error), (2, &b"ada"[..], ErrorKind::NotFound));
    let error = refused(&|batch| batch.compare_and_set(&table, "ada", "nobody", Value::Null, Value::Null));
    assert_eq!(refusal(&error), (2, &b"ada"[..], ErrorKind::NotFound));
    let error = refused(&|batch| batch.update_existing(&table, "ada", &row! { points: "many" }));
    assert_eq!(refusal(&error), (2, &b"ada"[..], ErrorKind::Invalid));
    let error = refused(&|batch| {
        batch.update(&table, "new", &row! { points: "many" })?;
        batch.increment(&table, "new", "points", 1)
    });
    assert_eq!(refusal(&error), (2, &b"new"[..], ErrorKind::Invalid), "what cannot be, not who looked at it");
    let error = refused(&|batch| batch.require_version(&table, "ada", Some(0)));
    assert_eq!(refusal(&error), (2, &b"ada"[..], ErrorKind::Conflict));
    assert_eq!(Batch::new().increment(&table, "", "points", 1).unwrap_err().kind(), ErrorKind::Invalid);
}

/// Enough for threads to meet.
const ROUNDS: usize = 15_000;

/// Points go from row to row by many threads: none is lost or made, and no snapshot sees one on its way.
#[test]
fn sums_of_many_who_write_are_exact() {
    let (sim, db, table) = open(&Clock::manual(1_000));
    let names = ["a", "b", "c", "d"];
    names.iter().for_each(|name| table.put(name, &row! { points: 1_000 }).unwrap());
    let done = AtomicBool::new(false);
    let total = |table: &Table| names.iter().map(|name| points(table, name).unwrap()).sum::<u64>();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_usize)
            .map(|thread| {
                let (db, table) = (&db, &table);
                scope.spawn(move || {
                    for n in 0..ROUNDS {
                        let mut batch = Batch::new();
                        let (from, to) = (names[(n + thread) % 4], names[(n * 7 + thread + 1) % 4]);
                        batch.increment(table, from, "points", -3).unwrap();
                        batch.increment(table, to, "points", 3).unwrap();
                        batch.increment(table, "count", "points", 1).unwrap();
                        match db.write(&batch) {
                            Ok(()) => {}
                            // Nobody goes below none.
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
                        }
                        table.increment("alone", "points", 1).unwrap();
                    }
                })
            })
            .collect();
        let looker = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let then = db.snapshot();
                let held = names.map(|name| then.get_field(&table, name, "points").unwrap().unwrap());
                let held = held.iter().map(|points| points.borrow().as_i64().unwrap());
                assert_eq!(held.sum::<i64>(), 4_000);
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Release);
        looker.join().unwrap();
    });
    assert_eq!((total(&table), points(&table, "alone")), (4_000, Some(3 * ROUNDS as u64)));
    let count = points(&table, "count");
    db.check_counts().unwrap();
    let killed = CrashSim::from_image(&sim.process_kill());
    let db = Db::open_at(FastTier::simulated(&killed), options(), Clock::manual(1_000)).unwrap();
    let table = db.table("players").unwrap();
    assert_eq!((total(&table), points(&table, "count")), (4_000, count));
}

/// A row expires at some moment while a batch adds to it: either the sum is of the old row, and expires with it, or of none.
#[test]
fn a_row_that_expires_meanwhile_is_there_or_not() {
    let clock = Clock::manual(1_000);
    let (_sim, db, table) = open(&clock);
    let done = AtomicBool::new(false);
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                clock.advance_ms(1);
            }
        });
        for _ in 0..3_000 {
            let found = old_or_new(&db, &table);
            seen.push(found.unwrap_or(Some((0, true))));
        }
        done.store(true, Ordering::Release);
    });
    let may_be = |found: &Option<(u32, bool)>| matches!(found, Some((101, true) | (1, false)) | None);
    assert_eq!(seen.iter().find(|found| !may_be(found)), None);
}

/// The points of a row, and whether it expires, after a batch added one to 100 that expire in between, or just before, or after.
fn old_or_new(db: &Db, table: &Table) -> Result<Option<(u32, bool)>> {
    table.put_expiring("row", &row! { points: 100 }, std::time::Duration::from_millis(40))?;
    let mut batch = Batch::new();
    batch.increment(table, "row", "points", 1)?;
    // Other rows between the look and the write.
    for n in 0..20_u32 {
        batch.increment(table, &n, "points", 1)?;
    }
    db.write(&batch)?;
    table.read("row", |row| Ok((row.get_as::<u32>("points")?, row.expires_at_ms().is_some())))
}
