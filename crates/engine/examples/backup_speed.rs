//! How fast a backup is against a plain copy, and what writers feel of it.
//!
//! `cargo run --release --example backup_speed -- DIR [ROWS]`: fills a store under DIR with rows of 1 KB, copies its file as
//! `cp` does, backs it up at rest, then lets two threads update random fields, for as long without a backup as with one.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a measurement")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hedgerow::{Db, Options, Schema, Table, Type, Value, row};
use hedgerow_device::Random;

/// Writes until told to stop; the time each write took, in ns.
fn write(table: &Table, rows: u64, seed: u64, stop: &AtomicBool) -> Vec<u64> {
    let (mut random, mut times) = (Random::from_seed(seed), Vec::with_capacity(1 << 20));
    while !stop.load(Ordering::Relaxed) {
        let n = random.below(rows);
        let start = Instant::now();
        table.update(&n.to_be_bytes(), &row! { n: n }).unwrap();
        times.push(start.elapsed().as_nanos() as u64);
        // About 40,000 writes a second for each thread: a busy store, not a race for the processor.
        std::thread::sleep(Duration::from_micros(if times.len().is_multiple_of(4) { 100 } else { 0 }));
    }
    times
}

fn under_writers(table: &Table, rows: u64, what: &str, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let mut times: Vec<u64> = std::thread::scope(|scope| {
        let stop = &stop;
        let writers: Vec<_> =
            (0..2).map(|seed| scope.spawn(move || write(table, rows, seed, stop))).collect();
        work();
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    println!(
        "{what:<28} {:.1} s, {:.0} writes/s, p50 {:.2} us, p99 {:.2}, p99.9 {:.1}, worst {:.0}",
        start.elapsed().as_secs_f64(),
        times.len() as f64 / start.elapsed().as_secs_f64(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("a directory"));
    let rows: u64 = args.next().map_or(1_000_000, |rows| rows.parse().unwrap());
    let db = Db::open_with(dir.join("store"), Options::default()).unwrap();
    let schema = Schema::new().field("n", Type::U64).field("body", Type::Bytes);
    let table = db.create_table("t", schema).unwrap();
    for n in 0..rows {
        table.put(&n.to_be_bytes(), &row! { n: n, body: Value::Bytes(&[n as u8; 1000]) }).unwrap();
    }
    db.persist().unwrap();
    let speed = |what: &str, bytes: u64, start: Instant| {
        let s = start.elapsed().as_secs_f64();
        println!("{what:<28} {:.0} MB in {s:.2} s: {:.0} MB/s", bytes as f64 / 1e6, bytes as f64 / 1e6 / s);
    };
    let start = Instant::now();
    let bytes = std::fs::copy(dir.join("store/fast"), dir.join("copied")).unwrap();
    std::fs::File::open(dir.join("copied")).unwrap().sync_all().unwrap();
    speed("plain copy and sync", bytes, start);
    std::fs::remove_file(dir.join("copied")).unwrap();
    let start = Instant::now();
    let summary = db.backup(dir.join("saved")).unwrap();
    speed("backup, verified", summary.bytes_copied, start);
    let start = Instant::now();
    let again = db.backup(dir.join("saved")).unwrap();
    speed("again, nothing changed", summary.bytes_copied, start);
    assert_eq!(again.bytes_copied, 0, "{again:?}");
    std::fs::remove_dir_all(dir.join("saved")).unwrap();
    let start = Instant::now();
    under_writers(&table, rows, "writers, backup under way", || {
        db.backup(dir.join("saved")).unwrap();
    });
    let took = start.elapsed();
    under_writers(&table, rows, "writers alone", || std::thread::sleep(took));
    under_writers(&table, rows, "writers, another backup", || {
        println!("{:?}", db.backup(dir.join("saved")).unwrap());
    });
}
