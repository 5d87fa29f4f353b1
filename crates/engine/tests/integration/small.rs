//! Stores with little in them, or little room: small segments behind a root of several.

use std::path::Path;

use hedgerow::inspect::View;
use hedgerow::{Db, ErrorKind, FAST_TIER_FILE, Options, Schema, Table, Value, repair};
use hedgerow_sim::{Scratch, eventually};

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

fn put(flat: &Table, i: u64, bytes: usize) {
    flat.put(&key(i), &[("value", Value::Bytes(&vec![i as u8; bytes]))]).unwrap();
}

fn is_whole(directory: &Path, rows: u64, bytes: usize) -> bool {
    let db = Db::open_with(directory, Options::default()).unwrap();
    let flat = db.table("flat").unwrap();
    let has = |i| {
        flat.get(&key(i)).unwrap().unwrap().get("value").unwrap().as_bytes().unwrap() == vec![i as u8; bytes]
    };
    flat.len() == rows && (0..rows).all(has)
}

/// Waits until the store takes a few megabytes of the disk, what was free for a while having been given back.
fn until_it_takes_a_few_megabytes(db: &Db) {
    // Whoever touches space ahead of use has had time to.
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    eventually("it takes 16 MiB", || db.metrics().fast_tier_allocated_bytes <= 16 << 20);
}

#[test]
fn two_rows_take_a_few_megabytes() {
    let scratch = Scratch::new("two");
    let db = Db::open_with(&scratch.0, Options::default()).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    (0..2).for_each(|i| put(&flat, i, 100));
    until_it_takes_a_few_megabytes(&db);
    drop(flat);
    db.close().unwrap();
    assert!(is_whole(&scratch.0, 2, 100));
    let db = Db::open_with(&scratch.0, Options::default()).unwrap();
    until_it_takes_a_few_megabytes(&db);
}

#[test]
fn a_few_rows_of_many_threads_take_no_segment_for_each_thread() {
    let scratch = Scratch::new("threads");
    let db = Db::open_with(&scratch.0, Options::default()).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let flat = &flat;
            scope.spawn(move || (0..100).for_each(|i| put(flat, thread * 100 + i, 1_000)));
        }
    });
    until_it_takes_a_few_megabytes(&db);
    assert_eq!(flat.len(), 1_600);
}

/// The root is longer than a segment here: whoever looks for the first one finds it.
#[test]
fn whoever_reads_a_store_of_small_segments_knows_where_its_root_ends() {
    const ROWS: u64 = 4_000;
    const BYTES: usize = 1_000;
    let scratch = Scratch::new("root");
    let [store, copy, mended] = ["store", "copy", "mended"].map(|name| scratch.join(name));
    let options = Options { fast_tier_bytes_max: 24 << 20, ..Options::default() };
    let db = Db::open_with(&store, options).unwrap();
    assert_eq!(db.metrics().segment_bytes, 256 << 10);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    (0..ROWS).for_each(|i| put(&flat, i, BYTES));
    // Longer than a segment.
    put(&flat, ROWS, 700_000);
    assert!(flat.delete(&key(ROWS)).unwrap());
    db.persist().unwrap();
    db.backup(&copy).unwrap();
    drop(flat);
    db.close().unwrap();
    for directory in [&store, &copy] {
        let view = View::open(directory).unwrap();
        let report = view.check(|_| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(view.root().segment_bytes, 256 << 10);
        assert!(view.segments().iter().all(|segment| segment.number >= 4));
        drop(view);
        assert!(is_whole(directory, ROWS, BYTES));
    }
    // Both copies of the root are lost; the segments' headers tell.
    let file = std::fs::OpenOptions::new().write(true).open(store.join(FAST_TIER_FILE)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 8192], 0).unwrap();
    let refused = Db::open_with(&store, Options::default()).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Corrupted);
    let report = repair(&store, &mended, |_| ()).unwrap();
    assert_eq!(report.lost, 0);
    assert!(is_whole(&mended, ROWS, BYTES));
}
