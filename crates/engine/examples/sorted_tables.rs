//! What sorted tables cost on the machine as it is: writing them, and looking rows up that the page cache does not have, that it has, and that
//! the block cache has; beside bare reads of as many bytes at as many places, which no engine can beat.
//!
//! `sorted_tables dir=DIR files=8 file-mib=64 row-bytes=1000 left=100 lookups=20000 threads=1 together=32 cache-mib=1024`. `left`: how many of a hundred bytes
//! of a row are random; `pages`: of a block, as the engine chooses if it is not given. Files are written past the page cache, so the first look at a block is a read of the disk.
#![allow(clippy::disallowed_methods, reason = "measures the machine as it is")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "shared/arguments.rs"]
#[allow(dead_code, reason = "it makes no store")]
mod arguments;

use std::path::Path;
use std::time::Instant;

use arguments::Arguments;
use hedgerow::parts::sst::{
    BlockCache, BlockReads, Compression, Sst, SstId, SstKey, SstLook, SstOptions, SstRecord, SstRecordKind,
    SstWriter,
};
use hedgerow_device::{CapacityFile, CapacityTier, FileRead, Random};

const STORE: u128 = 1;
const TABLE: u32 = 1;

/// User and system time of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum();
    ticks as f64 / 100.0
}

struct Measured {
    seconds: f64,
    cpu: f64,
}

fn measure(work: impl FnOnce()) -> Measured {
    let (cpu, start) = (cpu_seconds(), Instant::now());
    work();
    Measured { seconds: start.elapsed().as_secs_f64(), cpu: cpu_seconds() - cpu }
}

struct Files {
    tables: Vec<Sst>,
    rows_a_file: u64,
}

fn key_of(n: u64) -> [u8; 24] {
    let mut key = *b"user0000000000000000    ";
    // Between each two rows there is a key that no row has.
    key[16..].copy_from_slice(&(2 * n).to_be_bytes());
    key
}

fn write(tier: &CapacityTier, arguments: &Arguments, cache: &BlockCache) -> Files {
    let (files, file_bytes) = (arguments.number("files", 8), arguments.number("file-mib", 64) << 20);
    let (row_bytes, left) = (arguments.number("row-bytes", 1000) as usize, arguments.number("left", 100));
    let block_pages = arguments.text("pages").map(|pages| pages.parse().unwrap());
    let options = SstOptions { compression: Compression::Lz4, block_pages, ..SstOptions::default() };
    let mut random = Random::from_seed(1);
    let bodies: Vec<Vec<u8>> = (0..256)
        .map(|_| {
            let mut byte = || if random.below(100) < left { random.below(256) as u8 } else { b' ' };
            (0..row_bytes).map(|_| byte()).collect()
        })
        .collect();
    let rows_a_file = file_bytes / (row_bytes as u64 + 100);
    let mut tables = Vec::new();
    let measured = measure(|| {
        for number in 0..files {
            let mut writer = SstWriter::create(tier, SstId { store: STORE, number }, options).unwrap();
            for n in number * rows_a_file..(number + 1) * rows_a_file {
                let key = key_of(n);
                let record = SstRecord {
                    kind: SstRecordKind::Row,
                    table: TABLE,
                    key: &key,
                    schema_version: 0,
                    sequence: n,
                    expires_at_ms: None,
                    has_field_expiries: false,
                    body_bytes: row_bytes,
                };
                writer.push(&record, |body| body.copy_from_slice(&bodies[n as usize % 256])).unwrap();
            }
            tables.push(writer.finish(cache).unwrap());
        }
        tier.sync_names().unwrap();
    });
    let rows = (files * rows_a_file) as f64;
    let written: u64 =
        (0..files).map(|n| tier.open_file(&format!("{n:08}.sst")).unwrap().bytes().unwrap()).sum();
    let user = rows * (row_bytes + 24) as f64;
    let memory: usize = tables.iter().map(Sst::memory_bytes).sum();
    println!(
        "written: {:.0} MB/s of rows, {:.2} us of CPU a row, {:.3} bytes a byte, {:.2} bytes of memory a row",
        user / 1e6 / measured.seconds,
        measured.cpu * 1e6 / rows,
        written as f64 / user,
        memory as f64 / rows
    );
    Files { tables, rows_a_file }
}

/// Does `each` of `lookups` in so many threads, and says how that went.
fn look(name: &str, lookups: &[u64], threads: usize, each: impl Fn(u64) + Sync) {
    let measured = measure(|| {
        std::thread::scope(|scope| {
            for part in lookups.chunks(lookups.len().div_ceil(threads)) {
                scope.spawn(|| part.iter().for_each(|&n| each(n)));
            }
        });
    });
    let count = lookups.len() as f64;
    println!(
        "{name:<28} {:>9.0}/s, {:>7.2} us each in {threads} threads, {:.2} us of CPU",
        count / measured.seconds,
        measured.seconds * 1e6 * threads as f64 / count,
        measured.cpu * 1e6 / count
    );
}

/// Does `each` with a part of `lookups` at a time, in one thread, and says how that went.
fn look_together(name: &str, lookups: &[u64], together: usize, mut each: impl FnMut(&[u64])) {
    let measured = measure(|| lookups.chunks(together).for_each(&mut each));
    let count = lookups.len() as f64;
    println!(
        "{name:<28} {:>9.0}/s, {together} together in one thread, {:.2} us of CPU",
        count / measured.seconds,
        measured.cpu * 1e6 / count
    );
}

/// Where a block lies that is about as far into its file as the `n`-th row.
fn block_of(opened: &[CapacityFile], n: u64, rows_a_file: u64, block_bytes: u64) -> FileRead<'_> {
    let file = &opened[(n / rows_a_file) as usize];
    let blocks = file.bytes().unwrap() / block_bytes - 1;
    let offset = (n % rows_a_file) * blocks / rows_a_file * block_bytes;
    FileRead { file, offset, bytes: block_bytes as usize, past_cache: true }
}

fn main() {
    let arguments = Arguments::given();
    let directory = Path::new(arguments.text("dir").expect("dir=DIR is given")).join("sorted-tables");
    assert!(!directory.exists(), "{} is there already", directory.display());
    let tier = CapacityTier::open(&directory).unwrap();
    let cache = BlockCache::new(arguments.number("cache-mib", 1024) << 20);
    let files = write(&tier, &arguments, &cache);
    let threads = arguments.number("threads", 1) as usize;
    let by_rows = if arguments.number("row-bytes", 1000) < 200 { 1 } else { 2 };
    let block_bytes = arguments.number("pages", by_rows) * 4096;
    let rows = files.rows_a_file * files.tables.len() as u64;
    let mut random = Random::from_seed(7);
    let lookups: Vec<u64> = (0..arguments.number("lookups", 20_000)).map(|_| random.below(rows)).collect();
    let table = |n: u64| &files.tables[(n / files.rows_a_file) as usize];
    let get = |n: u64| {
        let found = table(n).get(&SstKey::new(TABLE, &key_of(n))).unwrap().expect("it was written");
        assert_eq!(found.sequence(), n);
    };
    // Elsewhere in the files than the lookups, mostly: places that nobody has read yet.
    let opened: Vec<_> =
        (0..files.tables.len()).map(|n| tier.open_file(&format!("{n:08}.sst")).unwrap()).collect();
    let places = |seed: u64| -> Vec<u64> {
        let mut random = Random::from_seed(seed);
        (0..lookups.len()).map(|_| random.below(rows)).collect()
    };
    let together = arguments.number("together", 32) as usize;
    let place_of = |n: u64| block_of(&opened, n, files.rows_a_file, block_bytes);
    let bare = |n: u64| {
        let FileRead { file, offset, bytes, .. } = place_of(n);
        file.read_at(offset, &mut vec![0; bytes]).unwrap();
    };
    look_together("bare reads of the disk", &places(13), together, |part| {
        let reads: Vec<FileRead<'_>> = part.iter().map(|&n| place_of(n)).collect();
        CapacityFile::read_many(&reads, |_, read| drop(read.unwrap()));
    });
    look_together("rows of the disk", &places(17), together, |part| {
        let mut reads = BlockReads::new();
        let keys: Vec<(u64, SstKey)> = part.iter().map(|&n| (n, SstKey::new(TABLE, &key_of(n)))).collect();
        keys.iter().for_each(|(n, key)| drop(table(*n).look(key, &mut reads).unwrap()));
        reads.run();
        for (n, key) in &keys {
            let SstLook::Found(found) = table(*n).look(key, &mut reads).unwrap() else {
                panic!("it was written")
            };
            assert_eq!(found.sequence(), *n);
        }
    });
    look("bare reads of the disk", &places(11), threads, bare);
    look("rows of the disk", &lookups, threads, get);
    look("bare reads, page cache", &places(11), threads, bare);
    look("rows, block cache", &lookups, threads, get);
    let small = BlockCache::new(8 << 20);
    let again: Vec<Sst> = (0..files.tables.len() as u64)
        .map(|number| Sst::open(&tier, SstId { store: STORE, number }, &small).unwrap())
        .collect();
    look("rows, page cache", &lookups, threads, |n| {
        let table = &again[(n / files.rows_a_file) as usize];
        assert!(table.get(&SstKey::new(TABLE, &key_of(n))).unwrap().is_some());
    });
    look("absent keys", &lookups, threads, |n| {
        let mut absent = key_of(n);
        absent[23] |= 1;
        assert!(table(n).get(&SstKey::new(TABLE, &absent)).unwrap().is_none());
    });
    drop((files, again, opened));
    std::fs::remove_dir_all(&directory).unwrap();
}
