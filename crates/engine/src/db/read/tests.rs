//! What a read touches: bytes that it does not need may be bad, and it does not mind.

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier};

use crate::db::chain::Chain;
use crate::db::fixture;
use crate::index::Slot;
use crate::{Db, Error, ErrorKind, Options, Schema, Table, Type, Value};

const KEY: &[u8] = b"key";
const FIELDS: usize = 10;
const NAMES: [&str; FIELDS] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9"];

fn value(field: usize, round: u8) -> [u8; 100] {
    [field as u8 * 16 + round; 100]
}

/// A row of ten fields of 100 bytes, and over it deltas of the fields 3 and 7, in this order.
fn open(options: Options) -> (CrashSim, Db, Table) {
    let sim = CrashSim::new(CrashModel::CacheLines, 32 << 20);
    let db = Db::open_at(FastTier::simulated(&sim), options, Clock::manual(1_000)).unwrap();
    let schema = NAMES.iter().fold(Schema::new(), |schema, name| schema.field(*name, Type::FixedBytes(100)));
    let table = db.create_table("t", schema).unwrap();
    let values: Vec<[u8; 100]> = (0..FIELDS).map(|field| value(field, 0)).collect();
    let row: Vec<(&str, Value<'_>)> =
        NAMES.iter().zip(&values).map(|(name, value)| (*name, Value::Bytes(value))).collect();
    table.put(KEY, &row).unwrap();
    for field in [3, 7] {
        table.update(KEY, &[(NAMES[field], Value::Bytes(&value(field, 1)))]).unwrap();
    }
    (sim, db, table)
}

fn read(table: &Table, field: usize) -> Result<Vec<u8>, ErrorKind> {
    let read = table.read(KEY, |row| Ok(row.get(NAMES[field])?.as_bytes().unwrap().to_vec()));
    read.map(Option::unwrap).map_err(|error: Error| error.kind())
}

/// The place of the row under the deltas, and of its body.
fn places(table: &Table) -> (u64, u64) {
    let engine = table.engine();
    let guard = engine.log.pin();
    let slot = table.shared().levels.locate(KEY, &guard).and_then(Slot::in_log).unwrap();
    let chain = Chain::of(guard.view(), slot).unwrap();
    let row = chain.base_row().unwrap().unwrap();
    (row.offset(), row.offset() + (row.record_bytes() - row.body_len()) as u64)
}

fn without(switch: fn(&mut Options)) -> Options {
    let mut options = fixture::options();
    switch(&mut options);
    options
}

#[test]
fn whatever_is_switched_off_reads_answer_the_same() {
    let switches: [fn(&mut Options); 3] =
        [|_| {}, |options| options.early_stop = false, |options| options.schema_layout = false];
    for switch in switches {
        let (_sim, db, table) = open(without(switch));
        for field in 0..FIELDS {
            let round = u8::from([3, 7].contains(&field));
            assert_eq!(read(&table, field), Ok(value(field, round).to_vec()));
        }
        let row = table.get(KEY).unwrap().unwrap();
        let values: Vec<_> = row.fields().map(|(_, value)| value.as_bytes().unwrap()[0]).collect();
        assert_eq!(values, [0, 16, 32, 49, 64, 80, 96, 113, 128, 144]);
        db.check_counts().unwrap();
    }
}

/// The newest delta has the field: nothing below it is looked at.
#[test]
fn a_partial_read_stops_at_the_delta_that_names_its_field() {
    let off: fn(&mut Options) = |options| options.early_stop = false;
    let cases: [(fn(&mut Options), _); 2] =
        [(|_| {}, Ok(value(7, 1).to_vec())), (off, Err(ErrorKind::Corrupted))];
    for (switch, found) in cases {
        let (sim, _db, table) = open(without(switch));
        crate::tier::rot(&sim, places(&table).0 + 8, 0x10);
        assert_eq!(read(&table, 7), found);
        assert_eq!(read(&table, 0), Err(ErrorKind::Corrupted));
    }
}

/// The last field has a block of its own: what comes before it in the row is not looked at.
#[test]
fn a_field_at_a_constant_offset_needs_none_before_it() {
    let off: fn(&mut Options) = |options| options.schema_layout = false;
    let cases: [(fn(&mut Options), _); 2] =
        [(|_| {}, Ok(value(9, 0).to_vec())), (off, Err(ErrorKind::Corrupted))];
    for (switch, found) in cases {
        let (sim, _db, table) = open(without(switch));
        // In the second field.
        crate::tier::rot(&sim, places(&table).1 + 150, 0x10);
        assert_eq!(read(&table, 9), found);
        assert_eq!(read(&table, 1), Err(ErrorKind::Corrupted));
        assert_eq!(read(&table, 7), Ok(value(7, 1).to_vec()), "from its delta");
    }
}
