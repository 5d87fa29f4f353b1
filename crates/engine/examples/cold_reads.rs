//! What rows in sorted tables cost whose blocks no memory has: one at a time, by many threads, by `multi_get`, and in short scans; beside bare reads of the same files by `fio`, which
//! no engine can beat.
//!
//! `cold_reads dir=DIR rows=4000000 reads=60000 threads=32 rounds=3 cache-mib=64 disk=vda left=100 only=PARTS keep=0`. Rows are of 10 fields of 100 bytes, of which `left` of a hundred
//! are random. Each part reads rows whose blocks it has not read yet (no two of them lie within eight of each other), after the files were dropped from the page cache; blocks of
//! the index are read beforehand, and stay as far as the cache of blocks keeps them. Reads a row are those of the whole disk `disk`, so nobody else should use it.
//! `only`: the names of parts, divided by commas. `keep=1` leaves the store for the next run, which then does not load.
//! `fio` goes over the same files with requests of a block (8 KiB) and at the depth of the part; where it is not installed there is no such line.
#![allow(clippy::disallowed_methods, reason = "measures the machine as it is")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "shared/arguments.rs"]
#[allow(dead_code, reason = "its store has other options")]
mod arguments;
#[path = "shared/disk.rs"]
mod disk;
#[path = "shared/rows.rs"]
#[allow(dead_code, reason = "its keys do not rise")]
mod rows;

use std::path::{Path, PathBuf};
use std::time::Instant;

use arguments::Arguments;
use disk::{Fio, cpu_seconds, disk_reads};
use hedgerow::{Db, FieldId, Options, Table, Value};
use hedgerow_device::Random;
use rows::{FIELD_BYTES, FIELDS, make_table};

/// More rows than a block has.
const APART: u64 = 8;
/// Bytes of a block of a sorted table.
const BLOCK_BYTES: u32 = 8 << 10;
/// Rows of a scan.
const SCANNED: usize = 100;

/// Rising with `n`.
fn key_of(n: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

fn load(table: &Table, ids: &[FieldId], rows: u64, left: u64) {
    let (mut random, start) = (Random::from_seed(1), Instant::now());
    let noise: Vec<u8> =
        (0..1 << 20).map(|_| if random.below(100) < left { random.next_u64() as u8 } else { b' ' }).collect();
    let loaded = table.load(|loader| {
        for n in 0..rows {
            let fields: Vec<(FieldId, Value<'_>)> = ids
                .iter()
                .map(|&id| {
                    let at = random.below((noise.len() - FIELD_BYTES) as u64) as usize;
                    (id, Value::Bytes(&noise[at..at + FIELD_BYTES]))
                })
                .collect();
            loader.push(&key_of(n), &fields)?;
        }
        Ok(())
    });
    loaded.unwrap();
    println!("loaded {rows} rows in {:.1} s", start.elapsed().as_secs_f64());
}

struct Run<'a> {
    arguments: &'a Arguments,
    table: &'a Table,
    db: &'a Db,
    files: Vec<PathBuf>,
    rows: u64,
    reads: u64,
    disk: String,
}

impl Run<'_> {
    fn is_wanted(&self, part: &str) -> bool {
        self.arguments.text("only").is_none_or(|only| only.split(',').any(|name| name == part))
    }

    /// Rows to read: in random order, no two within [`APART`].
    fn places(&self, seed: u64) -> Vec<u64> {
        let mut random = Random::from_seed(seed);
        let mut groups: Vec<u64> = (0..self.rows / APART).collect();
        let reads = groups.len().min(self.reads as usize);
        for at in 0..reads {
            let other = at + random.below((groups.len() - at) as u64) as usize;
            groups.swap(at, other);
        }
        groups[..reads].iter().map(|group| group * APART).collect()
    }

    /// Does `each` of the places, `together` in a call and in so many threads, and says how that went. `rows`: of a call, for each place.
    fn part(
        &self,
        (name, round): (&str, u64),
        (threads, together, rows): (usize, usize, usize),
        each: impl Fn(&[u64]) + Sync,
    ) {
        if !self.is_wanted(name) {
            return;
        }
        // Others for each part: what is read a second time goes through the page cache.
        let of_part =
            name.bytes().fold(round, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut places = self.places(of_part);
        if rows > 1 {
            places.truncate(places.len() / 10);
        }
        disk::forget(&self.files);
        let metrics = || self.db.metrics().sorted_tables;
        let before = (metrics(), disk_reads(&self.disk), cpu_seconds(), Instant::now());
        let mut taken: Vec<u32> = std::thread::scope(|scope| {
            let parts: Vec<_> = places
                .chunks(places.len().div_ceil(threads))
                .map(|part| {
                    scope.spawn(|| {
                        let timed = part.chunks(together).map(|calls| {
                            let start = Instant::now();
                            each(calls);
                            start.elapsed().as_nanos() as u32
                        });
                        timed.collect::<Vec<u32>>()
                    })
                })
                .collect();
            parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
        });
        let (seconds, cpu) = (before.3.elapsed().as_secs_f64(), cpu_seconds() - before.2);
        let (reads, count) = ((disk_reads(&self.disk) - before.1) as f64, places.len() as f64);
        let missed = (metrics().block_cache_misses - before.0.block_cache_misses) as f64;
        taken.sort_unstable();
        let of = |part: f64| f64::from(taken[((taken.len() - 1) as f64 * part) as usize]) / 1e3;
        println!(
            "{name:<16} {:>8.0}/s {:>6.2} us of CPU {:>6.3} reads {:>6.3} misses; a call p50 {:>7.1} p99 {:>7.1} p99.9 {:>7.1} us",
            count / seconds,
            cpu * 1e6 / count,
            reads / count,
            missed / count,
            of(0.5),
            of(0.99),
            of(0.999)
        );
    }

    /// What `fio` does with requests of a block at this depth.
    fn fio(&self, (depth, jobs): (usize, usize), engine: &'static str, is_direct: bool) {
        if !self.is_wanted("fio") {
            return;
        }
        let fio = Fio { request_bytes: BLOCK_BYTES, depth, jobs, engine, is_direct, seconds: 2 };
        match fio.read(&self.files) {
            Some((told, _)) => println!("{told}"),
            None => println!("{:<16} is not installed", fio.name()),
        }
    }

    fn round(&self, round: u64) {
        let (table, threads) = (self.table, self.arguments.number("threads", 32) as usize);
        let get = |calls: &[u64]| {
            for &n in calls {
                assert!(table.get(&key_of(n)).unwrap().is_some());
            }
        };
        let many = |calls: &[u64]| {
            let keys: Vec<[u8; 16]> = calls.iter().map(|&n| key_of(n)).collect();
            assert!(table.multi_get(&keys).unwrap().iter().all(Option::is_some));
        };
        let scan = |calls: &[u64]| {
            let (from, mut rows) = (key_of(calls[0].min(self.rows - SCANNED as u64)), 0);
            let counted = |_: &[u8], _: &hedgerow::RowRef<'_>| {
                rows += 1;
                Ok(true)
            };
            table.scan().from(&from).limit(SCANNED).for_each(counted).unwrap();
            assert_eq!(rows, SCANNED);
        };
        self.fio((1, 1), "psync", false);
        self.part(("get", round), (1, 1, 1), get);
        self.fio((32, 1), "io_uring", false);
        self.fio((32, 1), "io_uring", true);
        self.part(("multi-get-32", round), (1, 32, 1), many);
        self.part(("multi-get-256", round), (1, 256, 1), many);
        self.part(("2-multi-get-32", round), (2, 32, 1), many);
        self.fio((1, threads), "psync", false);
        self.part(("threads", round), (threads, 1, 1), get);
        self.part(("scan", round), (1, 1, SCANNED), scan);
    }
}

fn main() {
    let arguments = Arguments::given();
    let directory = Path::new(arguments.text("dir").expect("dir=DIR is given")).join("cold-reads");
    let (rows, is_there) = (arguments.number("rows", 4_000_000), directory.exists());
    let keeps = arguments.number("keep", 0) == 1;
    assert!(keeps || !is_there, "{} is there already", directory.display());
    let options =
        Options::new().cache_bytes(arguments.number("cache-mib", 64) << 20).fast_tier_bytes_max(256 << 20);
    let db = Db::open_with(&directory, options).unwrap();
    let table = if is_there {
        db.table("usertable").unwrap()
    } else {
        let (table, ids) = make_table(&db);
        assert_eq!(ids.len(), FIELDS);
        load(&table, &ids, rows, arguments.number("left", 100));
        table
    };
    let files = disk::sorted_table_files(&directory);
    let disk = arguments.text("disk").unwrap_or("vda").to_owned();
    let reads = arguments.number("reads", 60_000);
    let run = Run { arguments: &arguments, table: &table, db: &db, files, rows, reads, disk };
    // The blocks of the index.
    (0..rows).step_by(512).for_each(|n| drop(table.get(&key_of(n)).unwrap()));
    (0..arguments.number("rounds", 3)).for_each(|round| run.round(round));
    drop((table, db));
    if !keeps {
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
