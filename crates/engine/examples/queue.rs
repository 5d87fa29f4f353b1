//! A queue: rows put at its tail, read and deleted at its head. What a look at the head costs.
//!
//! `cargo run --release -p hedgerow --example queue -- [name=value ...]`: `rows` in the queue (100000), `bytes` of each (100),
//! `seconds` (10), `limit` of the store as a percentage of what the rows take (400), `drain`: rows to put and then delete all
//! (2000000), `snapshot` (0; 1: one is held while they are deleted), `dir` (memory if there is none).
#![allow(clippy::disallowed_methods, reason = "measures the machine as it is")]
#![allow(clippy::unwrap_used)]

#[path = "shared/arguments.rs"]
mod arguments;

use std::time::{Duration, Instant};

use arguments::Arguments;
use hedgerow::{Options, Schema, Table, Value};

/// Rows that a look at the head reads.
const HEAD: usize = 10;
/// A record of the queue beside its value: header, key, checksum.
const AROUND: u64 = 80;

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

fn put(queue: &Table, n: u64, value: &[u8]) {
    queue.put(&key(n), &[("value", Value::Bytes(value))]).unwrap();
}

/// Reads the head; returns how long that took, and the first key.
fn look(queue: &Table) -> (Duration, Option<u64>) {
    let began = Instant::now();
    let (mut first, mut seen) = (None, 0);
    queue
        .scan()
        .limit(HEAD)
        .for_each(|key, _| {
            first = first.or(Some(u64::from_be_bytes(key.try_into().unwrap())));
            seen += 1;
            Ok(true)
        })
        .unwrap();
    (began.elapsed(), first)
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_nanos() as f64 / 1000.0;
    println!(
        "{what}: {} looks at the first {HEAD} rows, us: p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1}",
        times.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn main() {
    let args = Arguments::given();
    let (rows, bytes) = (args.number("rows", 100_000), args.number("bytes", 100));
    let value = vec![b'q'; bytes as usize];
    let limit = (rows * (bytes + AROUND) * args.number("limit", 400) / 100).max(64 << 20);
    let db = args.make_store("moving", Options::default(), limit);
    let queue = db.create_table("queue", Schema::flat()).unwrap();
    (0..rows).for_each(|n| put(&queue, n, &value));
    let (mut head, mut tail, mut times) = (0, rows, Vec::new());
    let (began, length) = (Instant::now(), Duration::from_secs(args.number("seconds", 10)));
    while began.elapsed() < length {
        for _ in 0..100 {
            put(&queue, tail, &value);
            assert!(queue.delete(&key(head)).unwrap());
            (head, tail) = (head + 1, tail + 1);
        }
        let (time, first) = look(&queue);
        assert_eq!(first, Some(head));
        times.push(time);
    }
    println!(
        "{rows} rows of {bytes} bytes, limit {} MiB: {:.0} rows a second through the queue; {} bytes of index",
        limit >> 20,
        (head as f64) / began.elapsed().as_secs_f64(),
        db.metrics().index_bytes
    );
    report("while it moves", times);
    drop((queue, db));

    let drain = args.number("drain", 2_000_000);
    let limit = (drain * (bytes + AROUND) * 2).max(64 << 20);
    let db = args.make_store("drained", Options::default(), limit);
    let queue = db.create_table("queue", Schema::flat()).unwrap();
    (0..drain).for_each(|n| put(&queue, n, &value));
    let snapshot = (args.number("snapshot", 0) == 1).then(|| db.snapshot());
    (0..drain).for_each(|n| assert!(queue.delete(&key(n)).unwrap()));
    drop(snapshot);
    println!("{drain} rows put and deleted: {} bytes of index", db.metrics().index_bytes);
    report("at once", vec![look(&queue).0]);
    std::thread::sleep(Duration::from_secs(5));
    println!("five seconds later: {} bytes of index", db.metrics().index_bytes);
    report("then", (0..100).map(|_| look(&queue).0).collect());
}
