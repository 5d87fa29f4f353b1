//! Rows put with a lifetime, at a rate: how far the sweep is behind, and what space and index come to beside what lives.
//!
//! `cargo run --release -p hedgerow --example expiry -- [name=value ...]`: `rate` of puts a second (150000), `lifetime` of a
//! row in ms (2000), `spread`: lifetimes are up to so many ms longer, at random (0), `bytes` of each row (100), `seconds` (20),
//! `limit` of the store in MiB (4096), `far`: rows put ahead that expire in a week (0), `dir` (memory if there is none). A second thread reads all the while.
#![allow(clippy::disallowed_methods, reason = "measures the machine as it is")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "shared/arguments.rs"]
mod arguments;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arguments::Arguments;
use hedgerow::{Db, Expiry, Options, Schema, Table, Value};
use hedgerow_device::Random;

const WEEK_MS: u64 = 7 * 24 * 3600 * 1000;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Scattered, as keys are.
fn key(n: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[..8].copy_from_slice(&n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

/// ns, the sampled ones of a second.
fn percentiles(mut times: Vec<u32>) -> [f64; 3] {
    times.sort_unstable();
    [0.5, 0.99, 0.999].map(|share| match times.len() {
        0 => 0.0,
        len => f64::from(times[((len - 1) as f64 * share) as usize]) / 1000.0,
    })
}

/// When rows expire, by the 10 ms: so many.
#[derive(Default)]
struct Due(BTreeMap<u64, u64>);

impl Due {
    fn put(&mut self, at_ms: u64) {
        *self.0.entry(at_ms / 10).or_default() += 1;
    }

    /// Rows that expire after `now_ms`.
    fn live(&self, now_ms: u64) -> u64 {
        self.0.range(now_ms / 10..).map(|(_, rows)| rows).sum()
    }

    /// How long ago the oldest of the last `behind` expired ones did.
    fn age_ms(&self, now_ms: u64, mut behind: u64) -> u64 {
        for (&at, &rows) in self.0.range(..now_ms / 10).rev() {
            if behind <= rows {
                return if behind == 0 { 0 } else { now_ms - at * 10 };
            }
            behind -= rows;
        }
        0
    }
}

struct Second {
    puts: u64,
    times: Vec<u32>,
}

fn report(db: &Db, table: &Table, second: u64, due: &Due, puts: Second, reads: Vec<u32>) {
    let (metrics, now) = (db.metrics(), now_ms());
    let (there, live) = (table.expiring().rows, due.live(now));
    let behind = there.saturating_sub(live);
    let [put50, put99, put999] = percentiles(puts.times);
    let [get50, get99, get999] = percentiles(reads);
    let log = metrics.live_bytes + metrics.obsolete_bytes + metrics.unused_bytes;
    println!(
        "{second:>3} s: {:>7} puts; live {live:>8}, expired {behind:>8}, oldest {:>6} ms; index {:>6.1} MiB, {:>5.1} B a live row; \
         log {:>7.1} MiB, {:>5.1} B a live row; put us p50 {put50:.1} p99 {put99:.1} p99.9 {put999:.1}; get {get50:.1} {get99:.1} {get999:.1}",
        puts.puts,
        due.age_ms(now, behind),
        metrics.index_bytes as f64 / f64::from(1 << 20),
        metrics.index_bytes as f64 / live.max(1) as f64,
        log as f64 / f64::from(1 << 20),
        log as f64 / live.max(1) as f64,
    );
}

fn main() {
    let args = Arguments::given();
    let (rate, lifetime, spread) =
        (args.number("rate", 150_000), args.number("lifetime", 2000), args.number("spread", 0));
    let far = args.number("far", 0);
    let value = vec![b'e'; args.number("bytes", 100) as usize];
    let db = args.make_store("sessions", Options::default(), args.number("limit", 4096) << 20);
    let table = db.create_table("sessions", Schema::flat()).unwrap();
    let mut due = Due::default();
    for n in 0..far {
        let at_ms = now_ms() + WEEK_MS;
        due.put(at_ms);
        table
            .put_expiring(&key(u64::MAX - n), &[("value", Value::Bytes(&value))], Expiry::at_unix_ms(at_ms))
            .unwrap();
    }
    let (stop, newest) = (AtomicBool::new(false), AtomicU64::new(0));
    let read = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| read_on(&table, &stop, &newest, &read));
        let mut random = Random::from_seed(1);
        let (mut n, began) = (0, Instant::now());
        for second in 1..=args.number("seconds", 20) {
            let mut done = Second { puts: 0, times: Vec::new() };
            while began.elapsed() < Duration::from_secs(second) {
                let wanted = (began.elapsed().as_secs_f64() * rate as f64) as u64;
                if n >= wanted {
                    std::thread::sleep(Duration::from_micros(200));
                    continue;
                }
                let at_ms = now_ms() + lifetime + if spread > 0 { random.below(spread) } else { 0 };
                let key = key(n);
                let start = Instant::now();
                table
                    .put_expiring(&key, &[("value", Value::Bytes(&value))], Expiry::at_unix_ms(at_ms))
                    .unwrap();
                done.times.push(start.elapsed().as_nanos() as u32);
                due.put(at_ms);
                n += 1;
                done.puts += 1;
                newest.store(n, Ordering::Relaxed);
            }
            report(&db, &table, second, &due, done, std::mem::take(&mut *read.lock().unwrap()));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Reads rows that were put not long ago, a thousand a second.
fn read_on(table: &Table, stop: &AtomicBool, newest: &AtomicU64, times: &std::sync::Mutex<Vec<u32>>) {
    let mut random = Random::from_seed(2);
    while !stop.load(Ordering::Relaxed) {
        let mut batch = Vec::new();
        for _ in 0..10 {
            let n = newest.load(Ordering::Relaxed);
            let start = Instant::now();
            table.get(&key(n.saturating_sub(1 + random.below(100_000)))).unwrap();
            batch.push(start.elapsed().as_nanos() as u32);
        }
        times.lock().unwrap().extend(batch);
        std::thread::sleep(Duration::from_millis(10));
    }
}
