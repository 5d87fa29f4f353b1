//! Filling a store with more rows than its fast tier holds: rows a second, second by second, how long single puts take, and what it costs in bytes and processor time.
//!
//! `larger_than_fast dir=DIR rows=4000000 row-bytes=1000 fast-mib=512 threads=1 reads=100000`. Rows come in random order; `row-bytes` are random, so that nothing is gained by
//! compressing them.
#![allow(clippy::disallowed_methods, reason = "measures the machine as it is")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "shared/arguments.rs"]
#[allow(dead_code, reason = "its store has other options")]
mod arguments;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arguments::Arguments;
use hedgerow::{Db, Options, Schema, Table, Type, Value};
use hedgerow_device::Random;

/// No put should take so long.
const LONG: Duration = Duration::from_millis(20);

/// User and system time of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum();
    ticks as f64 / 100.0
}

/// Bytes written to the disk `disk=vda`, by whomever. (What `/proc/self/io` counts are pages that became dirty, some of them several times before they were written.)
fn bytes_written(disk: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/sys/block/{disk}/stat")).unwrap_or_default();
    stat.split_whitespace().nth(6).map_or(0, |sectors| 512 * sectors.parse::<u64>().unwrap())
}

/// Each number below `rows` once, in no order to speak of.
fn scattered(n: u64, rows: u64) -> u64 {
    let bits = 64 - (rows - 1).leading_zeros();
    let (mask, mut n) = ((1u64 << bits) - 1, n);
    loop {
        n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
        n ^= n >> (bits / 2 + 1);
        n = n.wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
        if n < rows {
            return n;
        }
    }
}

fn key_of(n: u64) -> [u8; 24] {
    let mut key = *b"user0000000000000000    ";
    key[16..].copy_from_slice(&n.to_be_bytes());
    key
}

struct Fill {
    rows: u64,
    row_bytes: usize,
    threads: u64,
    /// Rows so far.
    done: AtomicU64,
}

impl Fill {
    /// One thread's share; returns how long each put took, in ns, and tells those that took very long and when.
    fn run(&self, table: &Table, mine: u64) -> Vec<u32> {
        let began = Instant::now();
        let mut random = Random::from_seed(mine);
        let mut noise = vec![0u8; self.row_bytes * 64];
        noise
            .chunks_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]));
        let mut taken = Vec::with_capacity((self.rows / self.threads) as usize + 1);
        for n in (mine..self.rows).step_by(self.threads as usize) {
            let at = (random.next_u64() as usize) % (noise.len() - self.row_bytes);
            let start = Instant::now();
            table
                .put(
                    &key_of(scattered(n, self.rows)),
                    &[("value", Value::Bytes(&noise[at..at + self.row_bytes]))],
                )
                .unwrap();
            let took = start.elapsed();
            if took > LONG {
                println!(
                    "       a put of {:.0} ms ends at {:.3} s",
                    took.as_secs_f64() * 1e3,
                    began.elapsed().as_secs_f64()
                );
            }
            taken.push(took.as_nanos() as u32);
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }
}

fn percentile(sorted: &[u32], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize] as f64 / 1e3
}

fn main() {
    let arguments = Arguments::given();
    let dir = arguments.text("dir").expect("dir=DIR");
    let disk = arguments.text("disk").unwrap_or("vda");
    let fill = Fill {
        rows: arguments.number("rows", 4_000_000),
        row_bytes: arguments.number("row-bytes", 1000) as usize,
        threads: arguments.number("threads", 1),
        done: AtomicU64::new(0),
    };
    std::fs::remove_dir_all(dir).ok();
    let options =
        Options { fast_tier_bytes_max: arguments.number("fast-mib", 512) << 20, ..Options::default() };
    let db = Db::open_with(Path::new(dir), options).unwrap();
    let table = db.create_table("t", Schema::new().field("value", Type::Bytes)).unwrap();
    let (cpu, written, start) = (cpu_seconds(), bytes_written(disk), Instant::now());
    let mut taken = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..fill.threads)
            .map(|mine| {
                let (fill, table) = (&fill, table.clone());
                scope.spawn(move || fill.run(&table, mine))
            })
            .collect();
        let mut before = 0;
        while writers.iter().any(|writer| !writer.is_finished()) {
            std::thread::sleep(Duration::from_secs(1));
            let done = fill.done.load(Ordering::Relaxed);
            let metrics = db.metrics();
            println!(
                "{:>4} s {:>9} rows/s  live {:>5} MiB obsolete {:>5} MiB",
                start.elapsed().as_secs(),
                done - before,
                metrics.live_bytes >> 20,
                metrics.obsolete_bytes >> 20
            );
            before = done;
        }
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Vec<u32>>()
    });
    let seconds = start.elapsed().as_secs_f64();
    taken.sort_unstable();
    let of_user = fill.rows * (fill.row_bytes as u64 + 24);
    println!(
        "{:.0} rows/s, {:.2} us of CPU a row; put p50 {:.1} us, p99 {:.1}, p99.9 {:.1}, p99.99 {:.1}, longest {:.1}",
        fill.rows as f64 / seconds,
        (cpu_seconds() - cpu) / fill.rows as f64 * 1e6,
        percentile(&taken, 0.5),
        percentile(&taken, 0.99),
        percentile(&taken, 0.999),
        percentile(&taken, 0.9999),
        percentile(&taken, 1.0),
    );
    println!("{:.2} bytes written a byte of rows", (bytes_written(disk) - written) as f64 / of_user as f64);
    let reads = arguments.number("reads", 100_000);
    let (mut random, start) = (Random::from_seed(7), Instant::now());
    for _ in 0..reads {
        assert!(table.get(&key_of(random.below(fill.rows))).unwrap().is_some());
    }
    println!("{:.0} gets/s", reads as f64 / start.elapsed().as_secs_f64());
    db.close().unwrap();
}
