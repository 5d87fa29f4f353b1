//! What reads cost on a medium that is slower than DRAM.

use std::time::{Duration, Instant};

use hedgerow::{CacheMode, Db, Durability, Options, Schema, Table, Type, Value};
use hedgerow_device::{EmulatedBase, FastTier, FastTierOptions, PersistentMemoryModel};

const ROWS: u64 = 64;
const FIELDS: usize = 32;
const FIELD_BYTES: usize = 256;

/// Rows of 8 KiB on a medium whose lines take ten microseconds and more, two at a time.
fn store(verify_reads: bool) -> (Db, Table) {
    let model = PersistentMemoryModel {
        read_latency_ns: 8_100,
        sequential_read_latency_ns: 8_100,
        lines_in_flight: 2,
        cache_bytes: 4096,
        ..PersistentMemoryModel::optane()
    };
    let tier = FastTierOptions { bytes_max: 64 << 20, ..FastTierOptions::default() };
    let tier = FastTier::emulated(EmulatedBase::Dram, model, &tier).unwrap();
    let options = Options {
        durability: Durability::Process,
        cache_mode: CacheMode::Off,
        background: false,
        verify_reads,
        ..Options::default()
    };
    let db = Db::open_on(tier, options).unwrap();
    let schema = (0..FIELDS).fold(Schema::new(), |schema, field| {
        schema.field(format!("field{field}"), Type::FixedBytes(FIELD_BYTES as u16))
    });
    let table = db.create_table("rows", schema).unwrap();
    let names: Vec<String> = (0..FIELDS).map(|field| format!("field{field}")).collect();
    for n in 0..ROWS {
        let value = [n as u8; FIELD_BYTES];
        let fields: Vec<_> = names.iter().map(|name| (&**name, Value::Bytes(&value))).collect();
        table.put(&n.to_be_bytes(), &fields).unwrap();
    }
    (db, table)
}

/// The least time of a few reads of different rows.
fn least(rows: std::ops::Range<u64>, read: impl Fn(&[u8])) -> Duration {
    let timed = |n: u64| {
        let begun = Instant::now();
        read(&n.to_be_bytes());
        begun.elapsed()
    };
    rows.map(timed).min().unwrap()
}

#[test]
fn one_field_is_not_charged_for_its_row() {
    for verify_reads in [true, false] {
        let (_db, table) = store(verify_reads);
        let row = least(0..20, |key| {
            let row = table.get(key).unwrap().unwrap();
            assert_eq!(row.get("field31").unwrap(), Value::Bytes(&[key[7]; FIELD_BYTES]));
        });
        let field = least(20..40, |key| {
            let row = table.get_fields(key, &["field31"]).unwrap().unwrap();
            assert_eq!(row.get("field31").unwrap(), Value::Bytes(&[key[7]; FIELD_BYTES]));
        });
        assert!(row > Duration::from_micros(500), "{row:?} for 128 lines, two at a time");
        assert!(field * 5 < row, "one field {field:?}, the row {row:?}, verified: {verify_reads}");
    }
}
