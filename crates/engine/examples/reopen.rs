//! How quickly a store comes back, after a killed process and after it was closed in order.
//!
//! `cargo run --release -p hedgerow --example reopen -- DIR [ROWS] [BYTES]` loads rows of 100 bytes, or so many, and exits without closing;
//! the same with `open` instead of a number replays the log, makes it durable, scans everything in order, closes the store and says how long each
//! took. The next `open` goes by the index that was saved then.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods)]

use std::time::Instant;

use hedgerow::{Db, Durability, Options, Schema, Type, Value};

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap();
    let what = args.next().unwrap_or_else(|| "10000000".into());
    let options = Options { durability: Durability::Process, ..Options::default() };
    let start = Instant::now();
    let db = Db::open_with(dir, options).unwrap();
    if what == "open" {
        let seconds = start.elapsed().as_secs_f64();
        let metrics = db.metrics();
        let log = metrics.live_bytes + metrics.obsolete_bytes;
        println!(
            "opened {} rows, {} MB of log by its {} in {seconds:.2} s: {:.2} GB/s; index {:.1} bytes a key",
            metrics.rows,
            log >> 20,
            if metrics.index_was_saved { "saved index" } else { "records" },
            log as f64 / seconds / 1e9,
            metrics.index_bytes as f64 / metrics.rows as f64,
        );
        let start = Instant::now();
        db.persist().unwrap();
        println!("made what the killed process left durable in {:.2} s", start.elapsed().as_secs_f64());
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
        let start = Instant::now();
        db.close().unwrap();
        println!("closed, and its index saved, in {:.2} s", start.elapsed().as_secs_f64());
        return;
    }
    let rows: u64 = what.parse().unwrap();
    let bytes: usize = args.next().map_or(100, |bytes| bytes.parse().unwrap());
    let table =
        db.create_table("rows", Schema::new().field("value", Type::FixedBytes(bytes as u16))).unwrap();
    let value = vec![42u8; bytes];
    for i in 0..rows {
        let key = format!("user{:020}", i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        table.put(key.as_bytes(), &[("value", Value::Bytes(&value))]).unwrap();
    }
    let metrics = db.metrics();
    println!(
        "loaded {rows} rows in {:.2} s; index {:.1} bytes a key",
        start.elapsed().as_secs_f64(),
        metrics.index_bytes as f64 / rows as f64
    );
    std::process::exit(0);
}
