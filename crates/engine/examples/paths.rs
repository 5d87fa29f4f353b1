//! What each path of the engine costs, without any harness around it: ns per operation on rows of 10 x 100 bytes.
//!
//! `cargo run --release -p hedgerow --example paths -- [ROWS] [DIR]`; without DIR the rows are in DRAM.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods)]

use std::hint::black_box;
use std::time::Instant;

use hedgerow::{Db, Durability, FieldId, Options, Schema, Table, Type, Value};
use hedgerow_device::{FastTier, FastTierOptions, Random};

const FIELDS: usize = 10;
const FIELD_BYTES: usize = 100;

fn key(i: u64) -> [u8; 24] {
    let mut key = *b"user00000000000000000000";
    let mut hash = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (i >> 7);
    hash = (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (hash % 10) as u8;
        hash /= 10;
    }
    key
}

fn time(what: &str, operations: u64, mut run: impl FnMut(u64)) {
    let start = Instant::now();
    (0..operations).for_each(&mut run);
    let ns = start.elapsed().as_nanos() as f64 / operations as f64;
    println!("{what:<32} {ns:>10.0} ns");
}

fn main() {
    let mut args = std::env::args().skip(1);
    let rows: u64 = args.next().map_or(1_000_000, |n| n.parse().unwrap());
    let options = Options { durability: Durability::Process, ..Options::default() };
    let db = match args.next() {
        Some(dir) => Db::open_with(dir, options).unwrap(),
        None => Db::open_on(FastTier::dram(&FastTierOptions::default()).unwrap(), options).unwrap(),
    };
    let schema = (0..FIELDS).fold(Schema::new(), |schema, i| {
        schema.field(format!("field{i}"), Type::FixedBytes(FIELD_BYTES as u16))
    });
    let table = db.create_table("usertable", schema).unwrap();
    let ids: Vec<FieldId> = (0..FIELDS).map(|i| table.field(&format!("field{i}")).unwrap()).collect();
    let payload: Vec<u8> = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let values = |i: u64| -> [(FieldId, Value<'_>); FIELDS] {
        std::array::from_fn(|f| {
            let at = (i as usize * 131 + f * FIELD_BYTES) % (payload.len() - FIELD_BYTES);
            (ids[f], Value::Bytes(&payload[at..at + FIELD_BYTES]))
        })
    };
    run(&table, rows, &ids, &values);
    let metrics = db.metrics();
    println!("index bytes per key: {:.1}", metrics.index_bytes as f64 / metrics.rows as f64);
    println!("{metrics:?}");
}

fn run<'v>(
    table: &Table,
    rows: u64,
    ids: &[FieldId],
    values: &dyn Fn(u64) -> [(FieldId, Value<'v>); FIELDS],
) {
    let mut random = Random::from_seed(7);
    time("harness: key and values", rows, |i| {
        black_box((key(i), values(i)));
    });
    time("put, new", rows, |i| table.put(&key(i), &values(i)).unwrap());
    let mut pick = || key(random.next_u64() % rows);
    let copy = |table: &Table, key: &[u8]| {
        let mut out = [0u8; FIELDS * FIELD_BYTES];
        let found = table.read(key, |row| {
            let mut slots = out.chunks_exact_mut(FIELD_BYTES);
            row.for_each(|_, value| slots.next().unwrap().copy_from_slice(value.as_bytes().unwrap()))
        });
        assert!(found.unwrap().is_some());
        black_box(out);
    };
    time("get, whole row, uniform", rows, |_| copy(table, &pick()));
    time("get, one field, uniform", rows, |i| {
        let id = ids[i as usize % FIELDS];
        let first = table.read(&pick(), |row| Ok(row.get(id)?.as_bytes().unwrap()[0])).unwrap();
        black_box(first.unwrap());
    });
    time("scan of 100 rows, whole", rows / 100, |_| scan(table, &pick()));
    time("put, over an old row", rows, |i| table.put(&pick(), &values(i)).unwrap());
    time("update one field, uniform", rows, |i| {
        table.update(&pick(), &values(i)[i as usize % FIELDS..][..1]).unwrap();
    });
    time("get, whole row, through deltas", rows, |_| copy(table, &pick()));
    time("scan of 100 rows, through deltas", rows / 100, |_| scan(table, &pick()));
}

fn scan(table: &Table, from: &[u8]) {
    let mut sum = 0u64;
    let scan = table.scan().from(from).limit(100);
    scan.for_each(|_, row| {
        row.for_each(|_, value| sum += u64::from(value.as_bytes().unwrap()[0]))?;
        Ok(true)
    })
    .unwrap();
    black_box(sum);
}
