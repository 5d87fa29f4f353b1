//! What a batch leaves to others, and how it folds writes whose values are bytes.

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier};

use super::*;
use crate::db::fixture::options;
use crate::{Db, Schema, Type};

fn open(sim: &CrashSim) -> (Db, Table) {
    let db = Db::open_at(FastTier::simulated(sim), options(), Clock::manual(1_000)).unwrap();
    let schema = Schema::new().field("n", Type::I64).field("text", Type::String).field("bytes", Type::Bytes);
    let table = db.create_table("t", schema).unwrap();
    (db, table)
}

/// As one that single updates fill: else each further update of such a row in a batch writes the whole row.
#[test]
fn a_chain_that_a_batch_fills_is_left_for_the_merger() {
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
        assert_eq!(row.get("n"), Value::Int(chain_max));
    }
    db.check_counts().unwrap();
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
        ["n", "text", "bytes"].map(|name| row.get(name).to_owned())
    };
    let expected = |n, text, bytes| [n, Value::Str(text), Value::Bytes(bytes)].map(|value| value.to_owned());
    assert_eq!(fields(b"key"), expected(Value::Int(4), "a string", b"333"));
    assert_eq!(fields(b"other"), expected(Value::Int(0), "last", b""));
}
