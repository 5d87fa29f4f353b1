//! How quickly a store comes back, after a killed process and after it was closed in order.
//!
//! `cargo run --release -p hedgerow --example reopen -- dir=DIR rows=10000000 bytes=100 index-mib=0 checkpoint-mib=0 fast-mib=0` loads so many rows of so many bytes and exits without closing;
//! `do=open` instead opens the store, makes what it found durable, scans everything in order, closes the store and says how long each took. The next `do=open` goes by the index that was saved then. `scan=0` leaves the scan
//! out, and `kill=3` ends without closing after so many seconds. Of what is 0 there is no bound: with a bound on the index keys are sealed, and with checkpoints a killed store of sealed keys is opened by the last. `durability=interval` has a thread sync all that was written
//! each second; by default the system writes it back when it likes.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods)]

#[path = "shared/arguments.rs"]
#[allow(dead_code, reason = "its stores are opened more than once")]
mod arguments;

use std::time::{Duration, Instant};

use arguments::Arguments;
use hedgerow::{Db, Durability, Options, Schema, Type, Value};

/// A bound in MiB, of which 0 is none.
fn bound(arguments: &Arguments, name: &str) -> u64 {
    match arguments.number(name, 0) {
        0 => u64::MAX,
        mib => mib << 20,
    }
}

fn options(arguments: &Arguments) -> Options {
    let durability = match arguments.text("durability") {
        Some("interval") => Durability::Interval(Duration::from_secs(1)),
        _ => Durability::Process,
    };
    let mut options = Options {
        durability,
        index_checkpoint_bytes: bound(arguments, "checkpoint-mib"),
        ..Options::default()
    };
    options.index_bytes_max = options.index_bytes_max.min(bound(arguments, "index-mib"));
    options.fast_tier_bytes_max = options.fast_tier_bytes_max.min(bound(arguments, "fast-mib"));
    options
}

fn main() {
    let arguments = Arguments::given();
    let start = Instant::now();
    let db = Db::open_with(arguments.text("dir").expect("dir=DIR"), options(&arguments)).unwrap();
    match arguments.text("do") {
        Some("open") => open(&arguments, db, start),
        _ => load(&arguments, &db, start),
    }
}

fn open(arguments: &Arguments, db: Db, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    let metrics = db.metrics();
    let log = metrics.live_bytes + metrics.obsolete_bytes;
    println!(
        "opened {} rows, {} MB of log by its {} in {seconds:.2} s: {:.2} GB/s; index {:.1} bytes a key",
        metrics.rows,
        log >> 20,
        match (metrics.index_was_saved, metrics.index_was_checkpointed) {
            (true, _) => "saved index",
            (_, true) => "checkpoint",
            _ => "records",
        },
        log as f64 / seconds / 1e9,
        metrics.index_bytes as f64 / metrics.rows as f64,
    );
    let start = Instant::now();
    let key = key(arguments.number("rows", 10_000_000) / 2);
    assert!(db.table("rows").unwrap().get(key.as_bytes()).unwrap().is_some());
    println!("read a row in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let start = Instant::now();
    db.persist().unwrap();
    println!("made what the killed process left durable in {:.2} s", start.elapsed().as_secs_f64());
    if arguments.number("scan", 1) == 1 {
        scan(&db);
    }
    if let Some(seconds) = arguments.text("kill") {
        std::thread::sleep(Duration::from_secs(seconds.parse().unwrap()));
        println!("took {} checkpoints", db.metrics().index_checkpoints);
        std::process::exit(0);
    }
    let start = Instant::now();
    db.close().unwrap();
    println!("closed, and its index saved, in {:.2} s", start.elapsed().as_secs_f64());
}

fn scan(db: &Db) {
    let start = Instant::now();
    let (mut rows, mut last) = (0u64, Vec::new());
    db.table("rows")
        .unwrap()
        .scan()
        .for_each(|key, row| {
            assert!(last.as_slice() < key);
            last.clear();
            last.extend_from_slice(key);
            assert!(!row.get("value")?.as_bytes().unwrap().is_empty());
            rows += 1;
            Ok(true)
        })
        .unwrap();
    println!("scanned {rows} rows in order in {:.2} s", start.elapsed().as_secs_f64());
}

fn key(row: u64) -> String {
    format!("user{:020}", row.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn load(arguments: &Arguments, db: &Db, start: Instant) {
    let rows = arguments.number("rows", 10_000_000);
    let bytes = arguments.number("bytes", 100);
    let table =
        db.create_table("rows", Schema::new().field("value", Type::FixedBytes(bytes as u16))).unwrap();
    let value = vec![42u8; bytes as usize];
    for row in 0..rows {
        table.put(key(row).as_bytes(), &[("value", Value::Bytes(&value))]).unwrap();
    }
    let metrics = db.metrics();
    println!(
        "loaded {rows} rows in {:.2} s; index {:.1} bytes a key, {} checkpoints",
        start.elapsed().as_secs_f64(),
        metrics.index_bytes as f64 / rows as f64,
        metrics.index_checkpoints,
    );
    std::process::exit(0);
}
