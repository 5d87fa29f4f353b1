//! Rows as long as a row may be, made so by parts: what would be longer is refused when it is written, and never found
//! too long by whoever reads it.

use hedgerow::{
    Batch, Change, Db, ErrorKind, Expiry, Options, OwnedValue, Schema, Table, Type, Value, limits,
};
use hedgerow_device::{FastTier, FastTierOptions};

const MIB: usize = 1 << 20;

fn open() -> (Db, Table) {
    let bytes_max = 2 << 30;
    let tier = FastTier::dram(&FastTierOptions { bytes_max, reserve_bytes: bytes_max }).unwrap();
    let db = Db::open_on(tier, Options { background: false, ..Options::default() }).unwrap();
    let schema =
        ["a", "b", "c"].into_iter().fold(Schema::new(), |schema, name| schema.field(name, Type::Bytes));
    let table = db.create_table("t", schema).unwrap();
    (db, table)
}

fn refused(outcome: hedgerow::Result<()>) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains(&limits::ROW_BYTES_MAX.to_string()), "{error}");
}

fn value_bytes(table: &Table, key: &[u8]) -> usize {
    let row = table.get(key).unwrap().unwrap();
    ["a", "b", "c"].map(|name| row.get(name).unwrap().as_bytes().map_or(0, <[u8]>::len)).iter().sum()
}

#[test]
fn a_row_cannot_outgrow_its_limit_by_parts() {
    let (db, table) = open();
    let part = vec![7u8; 40 * MIB];
    table.put(b"long", &[("a", Value::Bytes(&part))]).unwrap();
    refused(table.update(b"long", &[("b", Value::Bytes(&part))]));
    // With a small delta in between, which says nothing of what is below.
    table.update(b"long", &[("c", Value::Bytes(b"c"))]).unwrap();
    refused(table.update(b"long", &[("b", Value::Bytes(&part))]));
    let mut batch = Batch::new();
    batch.update(&table, b"long", &[("b", Value::Bytes(&part))]).unwrap();
    refused(db.write(batch));
    refused(table.modify(b"long", |_| {
        let fields = vec![("b".to_owned(), OwnedValue::Bytes(part.clone().into()))];
        Ok((Change::Update { fields, expiry: Expiry::Never }, ()))
    }));
    assert_eq!(value_bytes(&table, b"long"), 40 * MIB + 1);
    // In the place of what is there it fits.
    table.update(b"long", &[("a", Value::Bytes(&part))]).unwrap();
    table.update(b"long", &[("b", Value::Bytes(&part[..20 * MIB]))]).unwrap();
    refused(table.update(b"long", &[("c", Value::Bytes(&part[..5 * MIB]))]));
    assert_eq!(value_bytes(&table, b"long"), 60 * MIB + 1);
    assert_eq!(table.scan().count(), 1);
    db.collect().unwrap();
    assert_eq!(db.metrics().segments_quarantined, 0);
}

/// Small parts are written over one another without a look at the row. They must not add up.
#[test]
fn small_parts_do_not_add_up_past_the_limit() {
    let (db, table) = open();
    let part = vec![7u8; 63 * MIB];
    table.put(b"long", &[("a", Value::Bytes(&part))]).unwrap();
    let mut longest = 0;
    for n in 1..=40 {
        let more = vec![n as u8; n * 30_000];
        let outcome = table.update(b"long", &[(["b", "c"][n % 2], Value::Bytes(&more))]);
        let now = value_bytes(&table, b"long");
        assert!(now <= limits::ROW_BYTES_MAX, "{now} bytes after {n} parts");
        match outcome {
            Ok(()) => longest = longest.max(now),
            refusal => refused(refusal),
        }
    }
    assert!(longest > limits::ROW_BYTES_MAX - 60_000, "refused too early: {longest}");
    db.collect().unwrap();
}
