//! A fixed script of one operation, for counting what it costs in instructions: the same work in every run and build.
//!
//! `valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/instructions op=OP count=20000`, less the
//! same with `count=0`, is what 20,000 cost. `op`: `put`, `get`, `update` (one field), `field` (read one), `modify` (read a
//! row, update a field of it), `scan` (100 rows each). `rows` (20000) of 10 x 100 bytes are loaded first, in DRAM, and nothing
//! runs in the background.
#![allow(clippy::disallowed_methods, reason = "measures the machine as it is")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "shared/arguments.rs"]
mod arguments;
#[path = "shared/rows.rs"]
mod rows;

use arguments::Arguments;
use hedgerow::{Durability, FieldId, Options, Result, RowRef, Table, Value};
use hedgerow_device::Random;
use rows::{FIELD_BYTES, FIELDS, key, make_table};

const SCANNED: usize = 100;

fn length(row: &RowRef<'_>, field: FieldId) -> Result<usize> {
    Ok(row.get(field)?.as_bytes().map_or(0, <[u8]>::len))
}

/// Bytes of values that were read: what is not used may not be read either.
fn operate(op: &str, table: &Table, ids: &[FieldId], key: &[u8], i: usize) -> usize {
    let value = Value::Bytes(&[b'w'; FIELD_BYTES]);
    let field = ids[i % FIELDS];
    let whole = || {
        let bytes = |row: &RowRef<'_>| ids.iter().map(|&id| length(row, id)).sum::<Result<usize>>();
        table.read(key, bytes).unwrap().unwrap()
    };
    match op {
        "put" => {
            let row: [_; FIELDS] = std::array::from_fn(|field| (ids[field], value));
            table.put(key, &row).unwrap();
            0
        }
        "get" => whole(),
        "update" => {
            table.update(key, &[(field, value)]).unwrap();
            0
        }
        "field" => {
            let length = |row: &RowRef<'_>| length(row, field);
            table.read_fields(key, &[field], length).unwrap().unwrap()
        }
        "modify" => {
            let bytes = whole();
            table.update(key, &[(field, value)]).unwrap();
            bytes
        }
        "scan" => {
            let rows = table.scan().from(key).take(SCANNED);
            rows.map(|row| row.unwrap().key().len()).sum()
        }
        other => panic!("there is no operation {other:?}"),
    }
}

fn main() {
    let args = Arguments::given();
    let options = Options { durability: Durability::Process, background: false, ..Options::default() };
    let db = args.make_store("instructions", options, 1 << 30);
    let (table, ids) = make_table(&db);
    let (rows, count) = (args.number("rows", 20_000), args.number("count", 20_000));
    for i in 0..rows {
        operate("put", &table, &ids, &key(i), 0);
    }
    let mut random = Random::from_seed(7);
    let op = args.text("op").unwrap_or("get");
    let read: usize =
        (0..count).map(|i| operate(op, &table, &ids, &key(random.below(rows)), i as usize)).sum();
    println!("{count} of {op}, {read} bytes read");
}
