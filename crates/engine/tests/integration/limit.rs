//! A store opened with a smaller limit than it takes: it is worked towards, and counts at once for new rows. And what limits there are.

use hedgerow::{Db, ErrorKind, Options, Schema, Table, Value};
use hedgerow_device::{CrashModel, CrashSim, FastTier, FastTierOptions};
use hedgerow_sim::{eventually, skip};

use crate::full_disk::{DIRECTORY, again};

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

/// What a store says that it may take.
fn limit_told(db: Db) -> u64 {
    let limit = db.metrics().fast_tier_bytes_max;
    db.close().unwrap();
    limit
}

#[test]
fn a_store_on_a_large_disk_may_take_what_it_is_allowed() {
    const TIB: u64 = 1 << 40;
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        let open = |name: &str, segment_bytes, fast_tier_bytes_max| {
            let options = Options { segment_bytes, fast_tier_bytes_max, background: false, ..options() };
            limit_told(Db::open_with(std::path::Path::new(&directory).join(name), options).unwrap())
        };
        assert_eq!(open("limited", 2 << 20, 3 * TIB), 3 * TIB);
        // Without a limit there are 1,048,576 segments at most.
        assert_eq!(open("unlimited", 2 << 20, u64::MAX), 2 * TIB);
        assert_eq!(open("longer-segments", 4 << 20, u64::MAX), 4 * TIB);
        return;
    }
    let directory = std::env::temp_dir().join(format!("hedgerow-large-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let script = format!("mount -t tmpfs -o size={} none {} && exec \"$@\"", 4 * TIB, directory.display());
    let wrapper = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh"];
    if !again("limit::a_store_on_a_large_disk_may_take_what_it_is_allowed", &wrapper, &directory) {
        skip("this machine does not let a process mount a file system of its own");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// An offset in the index has 45 bits.
#[test]
fn no_store_takes_more_than_its_index_can_say() {
    let end = 32 << 40;
    let reserve = FastTierOptions { reserve_bytes: 2 * end, ..FastTierOptions::default() };
    let tier = FastTier::dram(&reserve).unwrap();
    if tier.bytes_max() <= end {
        return skip("this process may not have so much address space");
    }
    let options = Options { segment_bytes: 64 << 20, background: false, ..options() };
    assert_eq!(limit_told(Db::open_on(tier, options).unwrap()), end);
}
