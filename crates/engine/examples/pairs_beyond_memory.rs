//! A hundred million small pairs in less memory than their keys would take: lookups alone, and then a lookup, an insert and a delete each, a batch of 256 at a time. It is the benchmark of
//! the final report of `lsm-tree` (IntersectMBO): 100 million keys of 34 and values of 60 bytes, a process of 865 MiB, beside what `fio` reads of the same disk at a depth of 32, in
//! the same run. There lookups were at 0.80 of `fio` on one core and the three together at 0.57 on two.
//!
//! `pairs_beyond_memory dir=DIR pairs=100000000 seconds=30 rounds=3 threads=1 fast-mib=256 index-mib=128 cache-mib=128 disk=vda only=PARTS keep=0 first=0`. Parts: `fio`, `lookups`, `triples`,
//! `triples-2` (two threads). `keep=1` leaves the store for the next run, which then does not load, and is told by `first` from which batch on nothing was replaced. Memory is bounded by whoever starts it:
//! `mkdir /sys/fs/cgroup/memory/pairs; echo 865M > /sys/fs/cgroup/memory/pairs/memory.limit_in_bytes; echo $$ > /sys/fs/cgroup/memory/pairs/cgroup.procs`.
//!
//! What is deleted is what was looked up, each pair once, in an order that has nothing to do with that of keys; what is inserted lies anywhere between the others. Each value that is read is checked against its key.
#![allow(clippy::disallowed_methods, reason = "measures the machine as it is")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "shared/arguments.rs"]
#[allow(dead_code, reason = "its store has other options")]
mod arguments;
#[path = "shared/disk.rs"]
mod disk;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arguments::Arguments;
use disk::{Fio, cpu_seconds, disk_reads};
use hedgerow::{Batch, Db, FieldId, Options, Schema, Table, Type, Value};

const KEY_BYTES: usize = 34;
const VALUE_BYTES: usize = 60;
/// Operations of a kind in a batch.
const TOGETHER: u64 = 256;

/// Bits as if at random.
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

/// Fills `bytes` from a seed.
fn fill(bytes: &mut [u8], seed: u64) {
    for (n, part) in bytes.chunks_mut(8).enumerate() {
        part.copy_from_slice(&mixed(seed.wrapping_add(n as u64 + 1)).to_be_bytes()[..part.len()]);
    }
}

/// A pair by its place among all: 64 bits, of which nothing else of it is.
fn key_at(place: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&place.to_be_bytes());
    fill(&mut key[8..], place);
    key
}

fn value_at(place: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    fill(&mut value, !place);
    value
}

/// Where the pair `n` of `pairs` that are loaded lies: evenly, and where no other that is inserted does, for those are odd.
fn loaded_place(n: u64, pairs: u64) -> u64 {
    (u64::MAX / pairs * n) & !1
}

/// All numbers below `of`, each once, as if at random: a Feistel network over the next power of four, walked until it is below.
struct Shuffled {
    of: u64,
    half_bits: u32,
}

impl Shuffled {
    fn new(of: u64) -> Shuffled {
        Shuffled { of, half_bits: (u64::BITS - of.leading_zeros()).div_ceil(2) }
    }

    fn at(&self, n: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let mut at = n % self.of;
        loop {
            let (mut left, mut right) = (at >> self.half_bits, at & mask);
            for round in 0..4 {
                (left, right) = (right, left ^ (mixed(right + (round << 40)) & mask));
            }
            at = left << self.half_bits | right;
            if at < self.of {
                return at;
            }
        }
    }
}

struct Run<'a> {
    db: &'a Db,
    table: &'a Table,
    value: FieldId,
    files: Vec<PathBuf>,
    pairs: u64,
    seconds: u64,
    disk: String,
    order: Shuffled,
}

/// What a part did.
struct Done {
    batches: u64,
    /// ns of each.
    taken: Vec<u32>,
}

impl Run<'_> {
    fn load(&self) {
        let start = Instant::now();
        let loaded = self.table.load(|loader| {
            (0..self.pairs).try_for_each(|n| {
                let place = loaded_place(n, self.pairs);
                loader.push(&key_at(place), &[(self.value, Value::Bytes(&value_at(place)))])
            })
        });
        loaded.unwrap();
        println!("loaded {} pairs in {:.1} s", self.pairs, start.elapsed().as_secs_f64());
    }

    /// The places of a batch of pairs that were loaded; those of another number have others.
    fn places(&self, batch: u64) -> Vec<u64> {
        let of_batch = batch * TOGETHER..(batch + 1) * TOGETHER;
        of_batch.map(|n| loaded_place(self.order.at(n), self.pairs)).collect()
    }

    fn look_up(&self, places: &[u64]) {
        let keys: Vec<_> = places.iter().map(|&place| key_at(place)).collect();
        let rows = self.table.multi_get(&keys).unwrap();
        for (&place, row) in places.iter().zip(&rows) {
            let row = row.as_ref().expect("what was loaded and not deleted is there");
            assert_eq!(row.get(self.value).unwrap(), Value::Bytes(&value_at(place)), "of another pair");
        }
    }

    fn replace(&self, places: &[u64]) {
        let mut batch = Batch::new();
        for &place in places {
            let inserted = mixed(place) | 1;
            batch
                .put(self.table, &key_at(inserted), &[(self.value, Value::Bytes(&value_at(inserted)))])
                .unwrap();
            batch.delete(self.table, &key_at(place)).unwrap();
        }
        self.db.write(&batch).unwrap();
    }

    /// Batches from `first` on, every `threads`-th, until the time is over.
    fn work(&self, first: u64, threads: u64, replaces: bool) -> Done {
        let (start, mut done) = (Instant::now(), Done { batches: 0, taken: Vec::new() });
        while start.elapsed() < Duration::from_secs(self.seconds) {
            let places = self.places(first + done.batches * threads);
            let began = Instant::now();
            self.look_up(&places);
            if replaces {
                self.replace(&places);
            }
            done.taken.push(began.elapsed().as_nanos() as u32);
            done.batches += 1;
        }
        done
    }

    /// How many a second, and from which batch on nothing was touched.
    fn part(&self, name: &str, first: u64, threads: u64, replaces: bool) -> (f64, u64) {
        disk::forget(&self.files);
        let misses = || self.db.metrics().sorted_tables.block_cache_misses;
        let before = (disk_reads(&self.disk), cpu_seconds(), Instant::now(), misses());
        let done: Vec<Done> = std::thread::scope(|scope| {
            let parts: Vec<_> = (0..threads)
                .map(|at| scope.spawn(move || self.work(first + at, threads, replaces)))
                .collect();
            parts.into_iter().map(|part| part.join().unwrap()).collect()
        });
        let (seconds, cpu) = (before.2.elapsed().as_secs_f64(), cpu_seconds() - before.1);
        let reads = (disk_reads(&self.disk) - before.0) as f64;
        let most = done.iter().map(|part| part.batches).max().unwrap();
        let count = (done.iter().map(|part| part.batches).sum::<u64>() * TOGETHER) as f64;
        let mut taken: Vec<u32> = done.into_iter().flat_map(|part| part.taken).collect();
        taken.sort_unstable();
        let of = |part: f64| f64::from(taken[((taken.len() - 1) as f64 * part) as usize]) / 1e6;
        println!(
            "{name:<16} {:>8.0}/s {:>6.2} us of CPU {:>6.3} reads {:>6.3} misses; a batch p50 {:>6.1} p99 {:>6.1} p99.9 {:>6.1} most {:>6.1} ms; memory {} MiB",
            count / seconds,
            cpu * 1e6 / count,
            reads / count,
            (misses() - before.3) as f64 / count,
            of(0.5),
            of(0.99),
            of(0.999),
            of(1.0),
            resident_mib()
        );
        (count / seconds, first + most * threads)
    }

    fn fio(&self, request_bytes: u32, is_direct: bool) -> Option<f64> {
        let fio = Fio { request_bytes, depth: 32, jobs: 1, engine: "io_uring", is_direct, seconds: 5 };
        let read = fio.read(&self.files);
        match &read {
            Some((told, _)) => println!("{told}, {request_bytes} bytes each"),
            None => println!("{:<16} is not installed", fio.name()),
        }
        read.map(|(_, rate)| rate)
    }
}

/// Anonymous memory of this process: what the page cache could not give back.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

fn main() {
    let arguments = Arguments::given();
    let directory = Path::new(arguments.text("dir").expect("dir=DIR is given")).join("pairs");
    let (pairs, keeps) = (arguments.number("pairs", 100_000_000), arguments.number("keep", 0) == 1);
    let is_there = directory.exists();
    assert!(keeps || !is_there, "{} is there already", directory.display());
    let options = Options::new()
        .cache_bytes(arguments.number("cache-mib", 128) << 20)
        .index_bytes_max(arguments.number("index-mib", 128) << 20)
        .fast_tier_bytes_max(arguments.number("fast-mib", 256) << 20);
    let db = Db::open_with(&directory, options).unwrap();
    let table = match is_there {
        true => db.table("pairs").unwrap(),
        false => db
            .create_table("pairs", Schema::new().field("value", Type::FixedBytes(VALUE_BYTES as u16)))
            .unwrap(),
    };
    let mut run = Run {
        db: &db,
        table: &table,
        value: table.field("value").unwrap(),
        files: Vec::new(),
        pairs,
        seconds: arguments.number("seconds", 30),
        disk: arguments.text("disk").unwrap_or("vda").to_owned(),
        order: Shuffled::new(pairs),
    };
    if !is_there {
        run.load();
    }
    run.files = disk::sorted_table_files(&directory);
    let is_wanted =
        |part: &str| arguments.text("only").is_none_or(|only| only.split(',').any(|name| name == part));
    // What was replaced is not looked up again; a store that was kept goes on behind it.
    let mut next = arguments.number("first", 0);
    for _ in 0..arguments.number("rounds", 3) {
        let of_fio = is_wanted("fio").then(|| {
            let buffered = [4 << 10, 8 << 10].map(|bytes| run.fio(bytes, false));
            [buffered, [4 << 10, 8 << 10].map(|bytes| run.fio(bytes, true))]
        });
        for (name, threads, replaces) in [("lookups", 1, false), ("triples", 1, true), ("triples-2", 2, true)]
        {
            if !is_wanted(name) {
                continue;
            }
            let (rate, after) = run.part(name, next, threads, replaces);
            next = after;
            if let Some([_, direct]) = of_fio {
                let shares = direct.map(|of| of.map_or("-".into(), |of| format!("{:.2}", rate / of)));
                println!("{:<16} {} and {} of fio's direct reads of 4 and 8 KiB", "", shares[0], shares[1]);
            }
        }
        println!("the next batch is {next}");
    }
    drop((table, db));
    if !keeps {
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
