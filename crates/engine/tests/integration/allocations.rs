//! What each operation asks of the allocator, once the store is warm: the budget of `docs/benchmarks.md`.
//!
//! Counted by thread, so that housekeeping and other tests do not count. The index grows by chunks of its own arena, which is
//! mapped, not allocated.

use std::hint::black_box;

use hedgerow::{Db, FieldId, Options, Schema, Table, Type, Value};
use hedgerow_device::{CountingAllocator, FastTier, FastTierOptions, Random, allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ROWS: u64 = 4_000;
const FIELDS: usize = 10;

fn key(row: u64) -> [u8; 24] {
    let mut key = *b"user00000000000000000000";
    let mut number = row.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    key
}

fn profiles(reorder: bool) -> (Db, Table, Vec<FieldId>) {
    let tier = FastTier::dram(&FastTierOptions { bytes_max: 256 << 20, ..FastTierOptions::default() });
    let options = Options { segment_bytes: 1 << 20, background: false, reorder, ..Options::default() };
    let db = Db::open_on(tier.unwrap(), options).unwrap();
    let named = |schema: Schema, i| schema.field(format!("field{i}"), Type::FixedBytes(100));
    let table = db.create_table("profiles", (0..FIELDS).fold(Schema::new(), named)).unwrap();
    let ids: Vec<FieldId> = (0..FIELDS).map(|i| table.field(&format!("field{i}")).unwrap()).collect();
    let bytes = [7; 100];
    for row in 0..ROWS {
        table.put(&key(row), &ids.iter().map(|&id| (id, Value::Bytes(&bytes))).collect::<Vec<_>>()).unwrap();
    }
    (db, table, ids)
}

/// Allocations of one call, the mean of 2,000 after 200 that warm up.
fn each(mut operation: impl FnMut(u64)) -> f64 {
    const CALLS: u64 = 2_000;
    let mut random = Random::from_seed(1);
    (0..200).for_each(|_| operation(random.below(ROWS)));
    let before = allocations();
    (0..CALLS).for_each(|_| operation(random.below(ROWS)));
    (allocations() - before) as f64 / CALLS as f64
}

#[test]
fn reads_and_writes_of_fixed_fields_allocate_nothing() {
    let (_db, table, ids) = profiles(false);
    let bytes = [9; 100];
    let all: Vec<(FieldId, Value<'_>)> = ids.iter().map(|&id| (id, Value::Bytes(&bytes))).collect();
    assert!(each(|_| drop(black_box(vec![1u8]))) >= 1.0, "the allocator counts");

    let mut row = [0; 1_000];
    let whole = each(|at| {
        let copy = |value: &hedgerow::RowRef<'_>| {
            let mut places = row.chunks_exact_mut(100);
            value.for_each(|_, value| places.next().unwrap().copy_from_slice(value.as_bytes().unwrap()))
        };
        table.read(&key(at), copy).unwrap().unwrap();
    });
    let one = each(|at| {
        let first = |row: &hedgerow::RowRef<'_>| Ok(row.get(ids[3])?.as_bytes().unwrap()[0]);
        black_box(table.read(&key(at), first).unwrap().unwrap());
    });
    let put = each(|at| table.put(&key(at), &all).unwrap());
    assert_eq!((whole, one, put), (0.0, 0.0, 0.0), "a read of a row, of a field, a put over a row");
}

#[test]
fn updates_allocate_only_to_walk_a_full_chain() {
    let (_db, table, ids) = profiles(false);
    let bytes = [9; 100];
    // So few rows that they are rewritten several times.
    let update = each(|at| table.update(&key(at % 100), &[(ids[2], Value::Bytes(&bytes))]).unwrap());
    // One in six finds a full chain and walks it, for a whole row.
    assert!(update < 0.5, "an update: {update} allocations");
    let one = each(|at| {
        let last = |row: &hedgerow::RowRef<'_>| Ok(row.get(ids[9])?.as_bytes().unwrap()[0]);
        black_box(table.read(&key(at % 100), last).unwrap().unwrap());
    });
    assert!(one <= 1.0, "a read through deltas: {one} allocations");
}

#[test]
fn a_scan_allocates_for_itself_and_not_for_its_rows() {
    let (_db, table, ids) = profiles(false);
    let scan = |rows: usize| {
        each(|at| {
            let mut sum = 0u64;
            let of_rows = table.scan().from(&key(at)).limit(rows);
            of_rows
                .for_each(|_, row| {
                    sum += u64::from(row.get(ids[0])?.as_bytes().unwrap()[0]);
                    Ok(true)
                })
                .unwrap();
            black_box(sum);
        })
    };
    let (few, many) = (scan(10), scan(100));
    assert!(few <= 12.0, "a scan of 10 rows: {few} allocations");
    assert!(many <= few + 10.0, "a scan of 100 rows: {many} allocations, of 10: {few}");
}
