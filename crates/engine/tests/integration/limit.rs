//! A store opened with a smaller limit than it takes: it is worked towards, and counts at once for new rows.

use hedgerow::{Db, ErrorKind, Options, Schema, Table, Value};
use hedgerow_device::{CrashModel, CrashSim, FastTier};
use hedgerow_sim::eventually;

const LIMIT: u64 = 24 << 20;
const ROW_BYTES: usize = 4_000;

fn options() -> Options {
    Options { segment_bytes: 1 << 20, recovery_threads: 1, ..Options::default() }
}

fn limited(bytes: u64) -> Options {
    Options { fast_tier_bytes_max: bytes, ..options() }
}

fn put(flat: &Table, i: u64) -> hedgerow::Result<()> {
    flat.put(&i.to_be_bytes(), &[("value", Value::Bytes(&vec![i as u8; ROW_BYTES]))])
}

fn has(flat: &Table, i: u64) -> bool {
    let row = flat.get(&i.to_be_bytes()).unwrap();
    row.is_some_and(|row| row.get("value").unwrap().as_bytes().unwrap() == vec![i as u8; ROW_BYTES])
}

/// Waits until the store takes no more of the disk than it may, and a page for each segment that is given back.
fn until_below(db: &Db, limit: u64) {
    let bytes = limit + db.metrics().fast_tier_bytes / (1 << 20) * 4096;
    eventually("it takes no more than it may", || db.metrics().fast_tier_allocated_bytes <= bytes);
}

#[test]
fn a_smaller_limit_is_worked_towards() {
    let rows = 15_000;
    let sim = CrashSim::new(CrashModel::Pages, 1 << 40);
    sim.limit_disk(1 << 30);
    let open = |options| Db::open_on(FastTier::simulated(&sim), options).unwrap();
    let db = open(options());
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    (0..rows).for_each(|i| put(&flat, i).unwrap());
    // Less than idle gc minds: one in four, in every segment.
    (0..rows).filter(|i| i % 4 == 0).for_each(|i| assert!(flat.delete(&i.to_be_bytes()).unwrap()));
    let before = db.metrics().fast_tier_allocated_bytes;
    drop(flat);
    db.close().unwrap();

    let limit = 52 << 20;
    assert!(before > limit + (4 << 20), "{before} bytes are not above the limit");
    let db = open(limited(limit));
    assert_eq!(db.metrics().fast_tier_bytes_max, limit);
    until_below(&db, limit);
    let flat = db.table("flat").unwrap();
    assert!((0..rows).all(|i| has(&flat, i) == (i % 4 != 0)));
    // It stays there.
    let refused = (rows..2 * rows).find_map(|i| put(&flat, i).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::Full);
    until_below(&db, limit);
}

#[test]
fn rows_that_do_not_fit_a_smaller_limit_can_be_overwritten_and_deleted() {
    let rows = 10_000;
    let sim = CrashSim::new(CrashModel::Pages, 1 << 40);
    let open = |options| Db::open_on(FastTier::simulated(&sim), options).unwrap();
    let db = open(options());
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    (0..rows).for_each(|i| put(&flat, i).unwrap());
    drop(flat);
    db.close().unwrap();

    let db = open(limited(LIMIT));
    let flat = db.table("flat").unwrap();
    let refused = put(&flat, rows).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full);
    assert!(refused.message().contains(&format!("of at most {LIMIT}")), "{refused}");
    (0..rows).for_each(|i| put(&flat, i).unwrap());
    (1_000..rows).for_each(|i| assert!(flat.delete(&i.to_be_bytes()).unwrap()));
    until_below(&db, LIMIT);
    (rows..rows + 1_000).for_each(|i| put(&flat, i).unwrap());
    assert!((0..1_000).chain(rows..rows + 1_000).all(|i| has(&flat, i)));
}

/// Nothing is given back to the medium then; what may be used of it is the limit's.
#[test]
fn a_smaller_limit_holds_without_threads() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let background = |options| Options { background: false, ..options };
    let open = |options| Db::open_on(FastTier::simulated(&sim), background(options)).unwrap();
    let db = open(options());
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    (0..10_000).for_each(|i| put(&flat, i).unwrap());
    (100..10_000u64).for_each(|i| assert!(flat.delete(&i.to_be_bytes()).unwrap()));
    drop(flat);
    db.close().unwrap();

    let db = open(limited(LIMIT));
    let flat = db.table("flat").unwrap();
    let is_refused = |i: &u64| loop {
        match put(&flat, *i) {
            Ok(()) => break false,
            Err(_) if db.collect().unwrap() > 0 => {}
            Err(_) => break true,
        }
    };
    let fitted = (10_000..20_000).find(is_refused).unwrap() - 10_000;
    assert!((2_000..LIMIT / ROW_BYTES as u64).contains(&fitted), "{fitted} rows");
}

#[test]
fn a_limit_that_no_store_could_live_with_is_refused() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let open = |options| Db::open_on(FastTier::simulated(&sim), options);
    drop(open(options()).unwrap().create_table("flat", Schema::flat()).unwrap());
    let error = open(limited((8 << 20) - 1)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains(&(8 << 20).to_string()), "{error}");
    open(limited(8 << 20)).unwrap();
}
