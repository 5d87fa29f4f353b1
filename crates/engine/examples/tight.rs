//! Updates in a store with little room beyond its rows, for as long as asked: throughput and tail, second by second.
//!
//! `cargo run --release -p hedgerow --example tight -- [name=value ...]`: `rows` (200000), `fields` (10), `bytes` of each
//! (100), `percent` of the bytes of the rows' records that the store may take (125), `seconds` (60), `threads` (1),
//! `changed` fields an update (1), `skew` (0 uniform, 1 zipfian 0.99), `dir` (memory if there is none), `mode` (interval,
//! process, immediate), `merge` (1), `segment` in KiB (as the store chooses), `turnover` (0; percent of the operations that
//! delete a row and insert another), `batch` updates in one (1), `window` of seconds that a line is printed for (a tenth of all).
#![allow(clippy::disallowed_methods, reason = "measures the machine as it is")]
#![allow(clippy::unwrap_used)]

#[path = "shared/arguments.rs"]
mod arguments;
#[path = "shared/zipf.rs"]
mod zipf;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arguments::Arguments;
use hedgerow::{Batch, Db, Durability, ErrorKind, Options, Schema, Table, Type, Value};
use hedgerow_device::Random;
use zipf::Zipf;

fn names(fields: u64) -> Vec<String> {
    (0..fields).map(|field| format!("f{field}")).collect()
}

fn key(row: u64) -> Vec<u8> {
    format!("row:{row:012}").into_bytes()
}

struct Load<'a> {
    db: &'a Db,
    table: &'a Table,
    names: &'a [String],
    bytes: usize,
}

impl Load<'_> {
    fn put(&self, row: u64) -> hedgerow::Result<()> {
        let value = vec![row as u8; self.bytes];
        let fields: Vec<_> = self.names.iter().map(|name| (name.as_str(), Value::Bytes(&value))).collect();
        self.table.put(&key(row), &fields)
    }

    fn update_all(&self, rows: &[u64], random: &mut Random) -> hedgerow::Result<()> {
        let value = vec![random.below(256) as u8; self.bytes];
        let mut batch = Batch::new();
        for &row in rows {
            let name = &self.names[random.below(self.names.len() as u64) as usize];
            batch.update(self.table, &key(row), &[(name.as_str(), Value::Bytes(&value))])?;
        }
        self.db.write(batch)
    }

    fn update(&self, row: u64, random: &mut Random, changed: u64) -> hedgerow::Result<()> {
        let value = vec![random.below(256) as u8; self.bytes];
        let first = random.below(self.names.len() as u64) as usize;
        let fields: Vec<_> = (first..first + changed as usize)
            .map(|field| (self.names[field % self.names.len()].as_str(), Value::Bytes(&value)))
            .collect();
        self.table.update(&key(row), &fields)
    }
}

fn options(args: &Arguments) -> Options {
    let durability = match args.text("mode").unwrap_or("interval") {
        "immediate" => Durability::Immediate,
        "process" => Durability::Process,
        _ => Durability::Interval(Duration::from_secs(1)),
    };
    let default = Options::default();
    let segment_bytes =
        args.text("segment").map_or(default.segment_bytes, |kib| kib.parse::<u64>().unwrap() << 10);
    Options { durability, segment_bytes, merge: args.number("merge", 1) == 1, ..default }
}

fn load(db: &Db, args: &Arguments, rows: u64) -> (Table, Vec<String>) {
    let names = names(args.number("fields", 10));
    let schema = names.iter().fold(Schema::new(), |schema, name| schema.field(name.as_str(), Type::Bytes));
    let table = db.create_table("t", schema).unwrap();
    let load = Load { db, table: &table, names: &names, bytes: args.number("bytes", 100) as usize };
    (0..rows).for_each(|row| load.put(row).unwrap());
    (table, names)
}

/// Bytes of the records of so many rows: of some of them, in a store where none is open any more.
fn record_bytes(args: &Arguments, rows: u64) -> u64 {
    let few = rows.min(20_000);
    let dir = std::env::temp_dir().join(format!("hedgerow-tight-{}", std::process::id()));
    let options = Options { segment_bytes: 1 << 20, ..Options::default() };
    let db = Db::open_with(&dir, options.clone()).unwrap();
    drop(load(&db, args, few));
    db.close().unwrap();
    let live = Db::open_with(&dir, options).unwrap().metrics().live_bytes;
    std::fs::remove_dir_all(&dir).unwrap();
    live * rows / few
}

#[derive(Default)]
struct Shared {
    done: AtomicU64,
    refused: AtomicU64,
    over: AtomicBool,
    turnover: AtomicU64,
}

fn writer(load: &Load<'_>, args: &Arguments, rows: u64, seed: u64, shared: &Shared) -> Vec<(u64, u32)> {
    let mut random = Random::from_seed(seed);
    let zipf = (args.number("skew", 0) == 1).then(|| Zipf::new(rows));
    let (changed, turnover) = (args.number("changed", 1), args.number("turnover", 0));
    let (begin, mut latencies) = (Instant::now(), Vec::new());
    let (batch, mut rows_of_batch) = (args.number("batch", 1), Vec::new());
    while !shared.over.load(Ordering::Relaxed) {
        let at = Instant::now();
        let outcome = if random.below(100) < turnover {
            // The oldest row goes, a new one comes.
            let n = shared.turnover.fetch_add(1, Ordering::Relaxed);
            load.table.delete(&key(n)).and_then(|_| load.put(rows + n))
        } else {
            let row = match &zipf {
                Some(zipf) => zipf.next(&mut random),
                None => random.below(rows),
            };
            rows_of_batch.push(row + shared.turnover.load(Ordering::Relaxed));
            match rows_of_batch.len() as u64 {
                1 if batch == 1 => load.update(rows_of_batch[0], &mut random, changed),
                gathered if gathered < batch => continue,
                _ => load.update_all(&rows_of_batch, &mut random),
            }
        };
        let written = rows_of_batch.len().max(1) as u64;
        rows_of_batch.clear();
        match outcome {
            Ok(()) => shared.done.fetch_add(written, Ordering::Relaxed),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                shared.refused.fetch_add(1, Ordering::Relaxed)
            }
        };
        latencies
            .push((at.duration_since(begin).as_secs(), at.elapsed().as_nanos().min(u32::MAX.into()) as u32));
    }
    latencies
}

fn main() {
    let args = Arguments::given();
    let rows = args.number("rows", 200_000);
    let records = record_bytes(&args, rows);
    let bytes_max = records * args.number("percent", 125) / 100;
    let db = args.make_store("tight", options(&args), bytes_max);
    let (table, names) = load(&db, &args, rows);
    println!("{rows} rows, {records} bytes of records, at most {bytes_max}; {:?}", db.medium());
    let load = Load { db: &db, table: &table, names: &names, bytes: args.number("bytes", 100) as usize };
    let (shared, seconds) = (Shared::default(), args.number("seconds", 60));
    let mut last = db.metrics();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.number("threads", 1))
            .map(|seed| {
                let (load, args, shared) = (&load, &args, &shared);
                scope.spawn(move || writer(load, args, rows, seed, shared))
            })
            .collect();
        let window = args.number("window", (seconds / 10).max(1));
        let mut done = 0;
        for second in 1..=seconds {
            std::thread::sleep(Duration::from_secs(1));
            if second % window == 0 {
                let (now, metrics) = (shared.done.load(Ordering::Relaxed), db.metrics());
                println!(
                    "{second:4} s: {:9.0} a second, {} refused, {:6.0} B copied each, {} segments, {} syncs, obsolete {} MiB",
                    (now - done) as f64 / window as f64,
                    shared.refused.load(Ordering::Relaxed),
                    (metrics.bytes_collected - last.bytes_collected) as f64 / (now - done).max(1) as f64,
                    metrics.segments_collected - last.segments_collected,
                    metrics.syncs - last.syncs,
                    metrics.obsolete_bytes >> 20,
                );
                (done, last) = (now, metrics);
            }
        }
        shared.over.store(true, Ordering::Relaxed);
        let mut all: Vec<u32> =
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).map(|(_, ns)| ns).collect();
        all.sort_unstable();
        let at = |share: f64| f64::from(all[(all.len() as f64 * share) as usize]) / 1e3;
        println!(
            "us: p50 {:.1}, p99 {:.1}, p99.9 {:.1}, p99.99 {:.1}, max {:.1}",
            at(0.5),
            at(0.99),
            at(0.999),
            at(0.9999),
            at(0.999_999_9)
        );
    });
}
