//! What a batch leaves to others, and how it folds writes whose values are bytes.

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Survivors};

use super::*;
use crate::db::fixture::options;
use crate::{Db, Expiry, Schema, Type};

fn open(sim: &CrashSim) -> (Db, Table) {
    let db = Db::open_at(FastTier::simulated(sim), options(), Clock::manual(1_000)).unwrap();
    let schema = Schema::new().field("n", Type::I64).field("text", Type::String).field("bytes", Type::Bytes);
    let table = db.create_table("t", schema).unwrap();
    (db, table)
}

/// As one that single updates fill: else each further update of such a row in a batch writes the whole row.
#[test]
fn a_chain_that_a_batch_fills_is_left_for_consolidation() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = open(&sim);
    let chain_max = i64::from(options().delta_chain_max);
    for key in [b"alone", b"batch"] {
        table.put(key, &[("n", Value::Int(0)), ("text", Value::Str("row"))]).unwrap();
    }
    for n in 1..=chain_max {
        table.update(b"alone", &[("n", Value::Int(n))]).unwrap();
        let mut batch = Batch::new();
        batch.update(&table, b"batch", &[("n", Value::Int(n))]).unwrap();
        db.write(batch).unwrap();
    }
    db.collect().unwrap();
    assert_eq!(db.metrics().chains_merged, 2);
    for key in [b"alone", b"batch"] {
        let row = table.get(key).unwrap().unwrap();
        assert_eq!(row.get("n").unwrap(), Value::Int(chain_max));
    }
    db.check_counts().unwrap();
}

/// Its names are looked up before all writers are locked out. An open table learns them once more, as for a single write; of another table a field that
/// is gone is gone.
#[test]
fn a_field_that_is_dropped_after_its_name_was_looked_up_is_learned_again() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, fixed) = open(&sim);
    let open = db.create_table("open", Schema::open()).unwrap();
    let both = [("a", Value::Bytes(b"1")), ("b", Value::Bytes(b"2"))];
    open.put(b"first", &both).unwrap();
    let write = |batch: &Batch, meanwhile: &dyn Fn()| {
        let folded = (!batch.staged.depends()).then(|| batch.staged.folded(1_000));
        let prepared = db.engine.prepare(&batch.staged, folded.as_deref()).unwrap();
        meanwhile();
        db.engine.write_prepared(batch, folded.as_deref(), prepared)
    };
    for depends in [false, true] {
        let mut batch = Batch::new();
        batch.put(&open, b"key", &both).unwrap();
        if depends {
            batch.update_existing(&open, b"first", &both).unwrap();
        }
        write(&batch, &|| open.drop_field("b").unwrap()).unwrap();
        let row = open.get(b"key").unwrap().unwrap();
        assert_eq!(["a", "b"].map(|name| row.get(name).unwrap().to_owned()), both.map(|(_, v)| v.to_owned()));
        drop(row);
        assert!(open.delete(b"key").unwrap());
    }
    let mut batch = Batch::new();
    batch.put(&fixed, b"key", &[("n", Value::Int(1)), ("text", Value::Str("x"))]).unwrap();
    let error = write(&batch, &|| fixed.drop_field("text").unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn writes_that_are_folded_keep_their_bytes() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = open(&sim);
    let mut batch = Batch::new();
    batch.put(&table, b"key", &[("text", Value::Str("a string")), ("bytes", Value::Bytes(b"1"))]).unwrap();
    batch.update(&table, b"other", &[("bytes", Value::Bytes(b"22"))]).unwrap();
    batch.update(&table, b"key", &[("bytes", Value::Bytes(b"333")), ("n", Value::Int(4))]).unwrap();
    batch.delete(&table, b"other").unwrap();
    batch.update(&table, b"other", &[("text", Value::Str("after")), ("bytes", Value::Bytes(b""))]).unwrap();
    batch.update(&table, b"other", &[("text", Value::Str("last"))]).unwrap();
    db.write(batch).unwrap();
    let fields = |key: &[u8]| {
        let row = table.get(key).unwrap().unwrap();
        ["n", "text", "bytes"].map(|name| row.get(name).unwrap().to_owned())
    };
    let expected = |n, text, bytes| [n, Value::Str(text), Value::Bytes(bytes)].map(|value| value.to_owned());
    assert_eq!(fields(b"key"), expected(Value::Int(4), "a string", b"333"));
    assert_eq!(fields(b"other"), expected(Value::Int(0), "last", b""));
}

/// However often its fields are given, a row is written with one of each, the last.
#[test]
fn updates_of_one_row_without_end_cost_its_fields() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = open(&sim);
    let opened = db.create_table("opened", Schema::open()).unwrap();
    let n = table.field("n").unwrap();
    let (mut batch, rounds) = (Batch::new(), 100_000);
    for round in 0..rounds {
        match round % 2 {
            0 => batch
                .update(&table, b"row", &[("n", Value::Int(round)), ("text", Value::Str("even"))])
                .unwrap(),
            _ => batch.update(&table, b"row", &[(n, Value::Int(round))]).unwrap(),
        }
        batch.update(&opened, b"row", &[("learned", Value::Bytes(&round.to_le_bytes()))]).unwrap();
    }
    batch.put(&table, b"put", &[("n", Value::Int(-1)), ("bytes", Value::Bytes(b"put"))]).unwrap();
    (0..rounds).for_each(|n| batch.update(&table, b"put", &[("n", Value::Int(n))]).unwrap());
    for write in &*batch.staged.folded(0) {
        let (Op::Put(fields, _) | Op::Update(fields, _)) = &write.op else { panic!("no row") };
        let fields = batch.staged.fields(write, fields);
        assert!(fields.len() <= 2, "{} fields", fields.len());
    }
    db.write(&batch).unwrap();
    for (key, text, bytes) in [(b"row", "even", &b""[..]), (b"put", "", b"put")] {
        let row = table.get(key).unwrap().unwrap();
        assert_eq!(
            (row.get("n").unwrap(), row.get("text").unwrap()),
            (Value::Int(rounds - 1), Value::Str(text))
        );
        assert_eq!(row.get("bytes").unwrap(), Value::Bytes(bytes));
    }
    let learned = opened.get(b"row").unwrap().unwrap();
    assert_eq!(learned.get("learned").unwrap(), Value::Bytes(&(rounds - 1).to_le_bytes()));
}

#[test]
fn a_value_that_does_not_fit_is_refused_though_another_goes_over_it() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = open(&sim);
    let opened = db.create_table("opened", Schema::open()).unwrap();
    for (bad, table, good) in [
        (("n", Value::Str("no number")), &table, ("n", Value::Int(1))),
        (("text", Value::Null), &table, ("text", Value::Str("t"))),
        (("new", Value::Int(1)), &opened, ("new", Value::Bytes(b"1"))),
    ] {
        let mut batch = Batch::new();
        batch.update(table, b"row", &[bad]).unwrap();
        (0..100).for_each(|_| batch.update(table, b"row", &[good]).unwrap());
        assert_eq!(db.write(&batch).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        assert!(table.get(b"row").unwrap().is_none());
    }
    // Nor may a field expire that every row has.
    let mut batch = Batch::new();
    batch.update_expiring(&table, b"row", &[("n", Value::Int(1))], Expiry::at_unix_ms(u64::MAX)).unwrap();
    batch.update(&table, b"row", &[("n", Value::Int(2))]).unwrap();
    assert_eq!(db.write(&batch).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(table.get(b"row").unwrap().is_none());
}

#[test]
fn fields_that_are_given_again_keep_their_order() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, _) = open(&sim);
    let opened = db.create_table("opened", Schema::open()).unwrap();
    let mut batch = Batch::new();
    batch.update(&opened, b"row", &[("x", Value::Bytes(b"1")), ("y", Value::Bytes(b"2"))]).unwrap();
    batch.update(&opened, b"row", &[("x", Value::Bytes(b"3"))]).unwrap();
    db.write(&batch).unwrap();
    let row = opened.get(b"row").unwrap().unwrap();
    assert_eq!((row.get("x").unwrap(), row.get("y").unwrap()), (Value::Bytes(b"3"), Value::Bytes(b"2")));
    let fields = opened.schema();
    let names: Vec<&str> = fields.fields().iter().map(|field| field.name()).collect();
    assert_eq!(names, ["x", "y"]);
}

/// A table whose fields change between a write's addition to a batch and the batch.
fn evolving() -> Schema {
    Schema::new().nullable("kept", Type::String).field("default", Type::I64).nullable("other", Type::Bytes)
}

#[test]
fn fields_that_changed_since_a_write_was_added_are_those_of_the_time_it_is_written() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, _) = open(&sim);
    for (named, way) in
        [(true, 0), (false, 0), (true, 1), (false, 1), (true, 2), (false, 2), (true, 3), (false, 3)]
    {
        let table = db.create_table(&format!("{named}{way}"), evolving()).unwrap();
        let ids = ["kept", "default", "other"].map(|name| table.field(name).unwrap());
        table.put(b"updated", &[("kept", Value::Str("before")), ("default", Value::Int(7))]).unwrap();
        let mut batch = Batch::new();
        let kept = Value::Str("kept, and longer than eight");
        let (bytes, at_ms) = (Value::Bytes(b"0123456789"), 1_000_000);
        if named {
            batch
                .put(&table, b"whole", &[("kept", kept), ("default", Value::Int(1)), ("other", bytes)])
                .unwrap();
            batch.put(&table, b"part", &[("kept", kept)]).unwrap();
            batch.update(&table, b"updated", &[("kept", Value::Null), ("other", bytes)]).unwrap();
            batch.update_expiring(&table, b"new", &[("kept", kept)], Expiry::at_unix_ms(at_ms)).unwrap();
        } else {
            batch.put(&table, b"whole", &[(ids[0], kept), (ids[1], Value::Int(1)), (ids[2], bytes)]).unwrap();
            batch.put(&table, b"part", &[(ids[0], kept)]).unwrap();
            batch.update(&table, b"updated", &[(ids[0], Value::Null), (ids[2], bytes)]).unwrap();
            batch.update_expiring(&table, b"new", &[(ids[0], kept)], Expiry::at_unix_ms(at_ms)).unwrap();
        }
        match way {
            0 => table.add_field("more", Type::I64).unwrap(),
            1 => table.drop_field("other").unwrap(),
            2 => table.rename_field("kept", "renamed").unwrap(),
            _ => table.drop_field("default").unwrap(),
        }
        let written = db.write(&batch);
        // What names a field that is gone is refused, and all of the batch with it.
        if !matches!((named, way), (_, 0) | (false, 2)) {
            assert_eq!(written.unwrap_err().kind(), ErrorKind::NotFound, "{named} {way}");
            assert!(table.get(b"whole").unwrap().is_none() && table.get(b"new").unwrap().is_none());
            let updated = table.get(b"updated").unwrap().unwrap();
            assert!(updated.fields().all(|(name, _)| name != "other"));
            continue;
        }
        written.unwrap();
        let name = if way == 2 { "renamed" } else { "kept" };
        let fields = |key: &[u8]| {
            let row = table.get(key).unwrap().unwrap();
            [name, "default", "other"].map(|name| row.get(name).unwrap().to_owned())
        };
        let expected =
            |kept: Value<'_>, n, bytes: Value<'_>| [kept, Value::Int(n), bytes].map(|value| value.to_owned());
        assert_eq!(fields(b"whole"), expected(kept, 1, bytes));
        assert_eq!(fields(b"part"), expected(kept, 0, Value::Null));
        assert_eq!(fields(b"updated"), expected(Value::Null, 7, bytes));
        assert_eq!(fields(b"new"), expected(kept, 0, Value::Null));
        let expiry = table.read(b"new", |row| row.field_expires_at_ms(name)).unwrap();
        assert_eq!(expiry, Some(Some(at_ms)), "{named} {way}");
    }
    db.check_counts().unwrap();
}

/// A name that an open table had when a write was added, and has no more, is learned anew.
#[test]
fn a_batch_learns_names_that_were_there_when_it_was_made() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, _) = open(&sim);
    let table = db.create_table("open", Schema::open()).unwrap();
    table.put(b"first", &[("known", Value::Bytes(b"1"))]).unwrap();
    let mut batch = Batch::new();
    batch.put(&table, b"a", &[("known", Value::Bytes(b"2"))]).unwrap();
    // In this order, so that the name that is learned anew comes to lie elsewhere.
    batch.put(&table, b"b", &[("unknown", Value::Bytes(b"4")), ("known", Value::Bytes(b"3"))]).unwrap();
    batch.put(&table, b"c", &[("known", Value::Bytes(b"5"))]).unwrap();
    table.drop_field("known").unwrap();
    db.write(batch).unwrap();
    for (key, known) in [(b"a", b"2"), (b"b", b"3"), (b"c", b"5")] {
        assert_eq!(table.get(key).unwrap().unwrap().get("known").unwrap(), Value::Bytes(known));
    }
    assert_eq!(table.get(b"b").unwrap().unwrap().get("unknown").unwrap(), Value::Bytes(b"4"));
    assert_eq!(table.get(b"first").unwrap().unwrap().get("known").unwrap(), Value::Null);
}

#[test]
fn what_does_not_fit_is_refused_when_the_batch_is_written_with_all_of_it() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = open(&sim);
    let misfits = [
        (("n", Value::Str("no number")), ErrorKind::Invalid),
        (("nobody", Value::Int(1)), ErrorKind::NotFound),
        (("n", Value::Null), ErrorKind::Invalid),
    ];
    for (misfit, kind) in misfits {
        for is_put in [false, true] {
            let mut batch = Batch::new();
            batch.put(&table, b"good", &[("n", Value::Int(1))]).unwrap();
            match is_put {
                true => batch.put(&table, b"bad", &[misfit]).unwrap(),
                false => batch.update(&table, b"bad", &[misfit]).unwrap(),
            }
            assert_eq!(batch.len(), 2);
            assert_eq!(db.write(batch).unwrap_err().kind(), kind, "{misfit:?}");
            assert!(table.get(b"good").unwrap().is_none());
        }
    }
}

#[test]
fn a_batch_is_written_again_and_cleared_for_another() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = open(&sim);
    let mut batch = Batch::new();
    db.write(&batch).unwrap();
    for n in 0..300_u16 {
        batch.put(&table, &n.to_be_bytes(), &[("n", Value::Int(i64::from(n)))]).unwrap();
    }
    db.write(&batch).unwrap();
    table.delete(&7_u16.to_be_bytes()).unwrap();
    db.write(&batch).unwrap();
    assert_eq!(table.len(), 300);
    batch.require_version(&table, b"none", Some(1)).unwrap();
    assert_eq!(db.write(&batch).unwrap_err().kind(), ErrorKind::Conflict);
    batch.clear();
    assert!(batch.is_empty());
    db.write(&batch).unwrap();
    batch.update(&table, &7_u16.to_be_bytes(), &[("text", Value::Str("after"))]).unwrap();
    db.write(&batch).unwrap();
    assert_eq!(table.len(), 300);
    let row = table.get(&7_u16.to_be_bytes()).unwrap().unwrap();
    assert_eq!((row.get("n").unwrap(), row.get("text").unwrap()), (Value::Int(7), Value::Str("after")));
    // Of another store, once it is cleared.
    let other = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (other, table) = open(&other);
    batch.clear();
    batch.put(&table, b"key", &[("n", Value::Int(1))]).unwrap();
    assert_eq!(db.write(&batch).unwrap_err().kind(), ErrorKind::Invalid);
    other.write(&batch).unwrap();
    assert_eq!(table.len(), 1);
}

/// Its frame and records take a segment of several extents.
#[test]
fn a_batch_larger_than_a_segment_is_there_again_after_a_kill() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = open(&sim);
    let value = vec![b'v'; 3000];
    let mut batch = Batch::new();
    for n in 0..1500_u32 {
        batch
            .put(&table, &n.to_be_bytes(), &[("n", Value::Int(1)), ("bytes", Value::Bytes(&value))])
            .unwrap();
    }
    for n in 0..1500_u32 {
        batch.update(&table, &n.to_be_bytes(), &[("n", Value::Int(i64::from(n)))]).unwrap();
    }
    db.write(&batch).unwrap();
    let killed = CrashSim::from_image(&sim.process_kill());
    let db = Db::open_at(FastTier::simulated(&killed), options(), Clock::manual(1_000)).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!(table.len(), 1500);
    for n in 0..1500_u32 {
        let row = table.get(&n.to_be_bytes()).unwrap().unwrap();
        assert_eq!(
            (row.get("n").unwrap(), row.get("bytes").unwrap()),
            (Value::Int(i64::from(n)), Value::Bytes(&value))
        );
    }
}

/// Random writes, many to the same keys, in batches and one by one: the same rows.
#[test]
fn a_batch_leaves_what_its_writes_one_by_one_would() {
    let sims = [(); 2].map(|()| CrashSim::new(CrashModel::Pages, 32 << 20));
    let [(db, table), (_singles_db, singles)] = [open(&sims[0]), open(&sims[1])];
    let mut random = hedgerow_device::Random::from_seed(7);
    for round in 0..400 {
        let mut batch = Batch::new();
        for step in 0..random.below(40) {
            let key = (random.below(60) as u16).to_be_bytes();
            let text = "t".repeat(random.below(30) as usize);
            let fields = [("text", Value::Str(&text)), ("n", Value::Int((round * 100 + step) as i64))];
            let fields = &fields[..1 + random.below(2) as usize];
            match random.below(10) {
                0..=2 => {
                    batch.put(&table, &key, fields).unwrap();
                    singles.put(&key, fields).unwrap();
                }
                3..=6 => {
                    batch.update(&table, &key, fields).unwrap();
                    singles.update(&key, fields).unwrap();
                }
                7 => {
                    let at_ms = Some(1_000_000 + random.below(1000));
                    batch.expire(&table, &key, Expiry::at_unix_ms(at_ms)).unwrap();
                    singles.expire(&key, Expiry::at_unix_ms(at_ms)).unwrap();
                }
                8 => {
                    batch.put_expiring(&table, &key, fields, Expiry::at_unix_ms(5_000_000)).unwrap();
                    singles.put_expiring(&key, fields, Expiry::at_unix_ms(5_000_000)).unwrap();
                }
                _ => {
                    batch.delete(&table, &key).unwrap();
                    singles.delete(&key).unwrap();
                }
            }
        }
        db.write(&batch).unwrap();
        for n in 0..60_u16 {
            let row = |table: &Table| {
                let fields =
                    |row: crate::Row| ["n", "text", "bytes"].map(|name| row.get(name).unwrap().to_owned());
                let expiry = table.read(&n.to_be_bytes(), |row| Ok(row.expires_at_ms())).unwrap();
                (table.get(&n.to_be_bytes()).unwrap().map(fields), expiry)
            };
            assert_eq!(row(&table), row(&singles), "round {round}, key {n}");
        }
    }
    db.check_counts().unwrap();
}

/// Tombstones are entries of a tree of their own, and were not reckoned with: the batch stopped half-way, its deletes done.
#[test]
fn a_batch_that_deletes_in_a_full_index_is_all_or_nothing() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let (db, table) = open(&sim);
    let engine = std::sync::Arc::clone(table.engine());
    // A sixty-fourth is kept for what only deletes.
    let left = || options().index_bytes_max / 64 * 63 - engine.arena.bytes();
    let key = |name: &str, bytes| format!("{name:x<bytes$}").into_bytes();
    let row = [("n", Value::Int(1))];
    let (a, b, new) = (key("a", 60_000), key("b", 60_000), key("new", 60_000));
    table.put(&a, &row).unwrap();
    table.put(&b, &row).unwrap();
    for (step, until) in [(60_000, 520_000), (5_000, 260_000)] {
        (0..)
            .take_while(|_| left() > until)
            .for_each(|n| table.put(&key(&format!("{step}-{n}-"), step), &row).unwrap());
    }
    let mut batch = Batch::new();
    batch.delete(&table, &a).unwrap();
    batch.delete(&table, &b).unwrap();
    batch.put(&table, &new, &row).unwrap();
    db.write(&batch).unwrap();
    let there = |table: &Table| [&a, &b, &new].map(|key| table.get(key).unwrap().is_some());
    assert_eq!(there(&table), [false, false, true]);
    table.put(b"next", &row).unwrap();
    db.check_counts().unwrap();
    db.persist().unwrap();
    drop((table, engine));
    drop(db);
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let cut = CrashSim::from_image(&walk.image(Survivors::None, 1));
    let db = Db::open_at(FastTier::simulated(&cut), options(), Clock::manual(1_000)).unwrap();
    assert_eq!(there(&db.table("t").unwrap()), [false, false, true]);
}

/// The error says which of its parts a batch was refused for, whatever it was folded into.
#[test]
fn a_refused_batch_names_its_part() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = open(&sim);
    let gone = db.create_table("gone", Schema::flat()).unwrap();
    let dynamic = db.create_table("open", Schema::open()).unwrap();
    let good = [("n", Value::Int(1))];
    let bad = [("n", Value::Str("no number"))];
    let part = |add: &dyn Fn(&mut Batch), kind: ErrorKind, key: &[u8], position: usize| {
        let mut batch = Batch::new();
        batch.put(&table, b"first", &good).unwrap();
        add(&mut batch);
        batch.put(&table, b"last", &good).unwrap();
        let error = db.write(&batch).unwrap_err();
        let failed = error.failed_write().unwrap();
        assert_eq!((error.kind(), failed.key.as_slice(), failed.position), (kind, key, position), "{error}");
        assert!(table.get(b"first").unwrap().is_none() && table.get(b"last").unwrap().is_none());
        failed.table.clone()
    };
    let invalid = ErrorKind::Invalid;
    let add = |batch: &mut Batch| batch.put(&table, b"a", &bad).unwrap();
    assert_eq!(part(&add, invalid, b"a", 1), "t");
    // Folded with others, before it and after it; a requirement counts as a part.
    let add = |batch: &mut Batch| {
        batch.update(&table, b"a", &good).unwrap();
        batch.require_version(&table, b"b", None).unwrap();
        batch.put(&table, b"b", &good).unwrap();
        batch.update(&table, b"a", &bad).unwrap();
        batch.update(&table, b"a", &[("text", Value::Str("x"))]).unwrap();
    };
    part(&add, invalid, b"a", 4);
    let add = |batch: &mut Batch| {
        batch.put(&table, b"b", &good).unwrap();
        batch.require_version(&table, b"b", None).unwrap();
        batch.require_version(&table, b"a\n", Some(7)).unwrap();
    };
    part(&add, ErrorKind::Conflict, b"a\n", 3);
    let long = "x".repeat(300);
    let add = |batch: &mut Batch| {
        batch.update(&dynamic, b"a", &[("fine", Value::Bytes(b"1"))]).unwrap();
        batch.update(&dynamic, b"a", &[(&*long, Value::Bytes(b"1"))]).unwrap();
    };
    assert_eq!(part(&add, invalid, b"a", 2), "open");
    // Each of them fits, and both together do not.
    let half = vec![b'x'; crate::limits::ROW_BYTES_MAX / 2 + 1];
    let add = |batch: &mut Batch| {
        batch.put(&table, b"a", &[("bytes", Value::Bytes(&half))]).unwrap();
        batch.update(&table, b"a", &[("text", Value::Str(std::str::from_utf8(&half).unwrap()))]).unwrap();
    };
    part(&add, invalid, b"a", 2);
    db.drop_table("gone").unwrap();
    let add = |batch: &mut Batch| batch.put(&gone, b"a", &[("value", Value::Bytes(b"1"))]).unwrap();
    assert_eq!(part(&add, ErrorKind::NotFound, b"a", 1), "gone");
    let mut batch = Batch::new();
    batch.put(&table, b"a", &good).unwrap();
    db.close().unwrap();
    let error = table.engine().write_batch(&batch).unwrap_err();
    assert_eq!((error.kind(), error.failed_write()), (ErrorKind::Closed, None), "it is about the store");
}

/// Whatever expires while a batch is worked out, it was there for all of the batch or for none.
#[test]
fn a_batch_sees_one_moment() {
    for expires_at_ms in 1_000..1_080 {
        for (key, field) in [(&b"row"[..], "n"), (b"field", "m")] {
            let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
            let clock = Clock::ticking(0, 1);
            let db = Db::open_at(FastTier::simulated(&sim), options(), clock.clone()).unwrap();
            let schema = Schema::new().field("n", Type::I64).nullable("m", Type::I64);
            let table = db.create_table("t", schema).unwrap();
            let expiry = Expiry::at_unix_ms(expires_at_ms);
            table.put_expiring(b"row", &[("n", Value::Int(10))], expiry).unwrap();
            table.put(b"field", &[("n", Value::Int(0))]).unwrap();
            table.update_expiring(b"field", &[("m", Value::Int(10))], expiry).unwrap();
            let version = table.version(key).unwrap();
            let mut batch = Batch::new();
            batch.require_version(&table, key, version).unwrap();
            for _ in 0..20 {
                batch.increment(&table, key, field, 1).unwrap();
            }
            clock.step_to_ms(1_000);
            let written = db.write(&batch);
            let looks = clock.now_ms() - 1_000;
            assert!(looks < 10, "the batch looked at the clock {looks} times");
            clock.step_to_ms(500);
            let row = table.get(key).unwrap().unwrap();
            let sum = row.get(field).unwrap();
            match (field, expires_at_ms) {
                ("n", 1_000) => assert_eq!(written.unwrap_err().kind(), ErrorKind::Conflict),
                ("n", _) => {
                    written.unwrap();
                    assert_eq!((sum, row.expires_at_ms()), (Value::Int(30), Some(expires_at_ms)));
                }
                (_, 1_000) => assert_eq!((written.is_ok(), sum), (true, Value::Int(20))),
                _ => assert_eq!((written.is_ok(), sum), (true, Value::Int(30)), "{expires_at_ms}"),
            }
        }
    }
}
