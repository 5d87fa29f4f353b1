//! Stores with little room beyond their rows: whatever is updated, and however often, nothing is refused.

use std::time::Instant;

use hedgerow::{Batch, Db, Durability, ErrorKind, Options, Schema, Table, Type, Value};
use hedgerow_device::{CrashModel, CrashSim, FastTier, FastTierOptions, Random};

/// What is loaded and then updated.
#[derive(Clone, Copy)]
struct Load {
    rows: u64,
    fields: usize,
    field_bytes: usize,
    segment_bytes: u64,
    /// The limit over the bytes of the rows' records, in percent.
    percent: u64,
}

const KILOBYTE_ROWS: Load =
    Load { rows: 30_000, fields: 10, field_bytes: 100, segment_bytes: 1 << 20, percent: 150 };

const NAMES: [&str; 10] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9"];

fn key(row: u64) -> [u8; 16] {
    let mut key = *b"row:000000000000";
    key[4..].copy_from_slice(format!("{row:012}").as_bytes());
    key
}

impl Load {
    fn options(self) -> Options {
        Options { segment_bytes: self.segment_bytes, index_bytes_max: 256 << 20, ..Options::default() }
    }

    fn fill(self, db: &Db) -> Table {
        let schema = (NAMES[..self.fields].iter()).fold(Schema::new(), |s, name| s.field(*name, Type::Bytes));
        let table = db.create_table("t", schema).unwrap();
        (0..self.rows).for_each(|row| self.put(&table, row));
        table
    }

    fn put(self, table: &Table, row: u64) {
        let value = vec![row as u8; self.field_bytes];
        let fields: Vec<_> = NAMES[..self.fields].iter().map(|name| (*name, Value::Bytes(&value))).collect();
        table.put(&key(row), &fields).unwrap();
    }

    /// The bytes of the rows' records, found in a store without a limit.
    fn record_bytes(self) -> u64 {
        let few = Load { rows: self.rows.min(10_000), segment_bytes: 1 << 20, ..self };
        let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
        let options = || Options { background: false, ..few.options() };
        let db = Db::open_on(FastTier::simulated(&sim), options()).unwrap();
        drop(few.fill(&db));
        db.close().unwrap();
        // A segment that is open counts as live up to its end; now none is.
        let db = Db::open_on(FastTier::simulated(&sim), options()).unwrap();
        db.metrics().live_bytes * self.rows / few.rows
    }

    fn limit(self) -> u64 {
        self.record_bytes() * self.percent / 100
    }

    fn open(self, options: Options) -> (Db, Table) {
        let bytes_max = self.limit();
        let tier = FastTier::dram(&FastTierOptions { bytes_max, reserve_bytes: bytes_max }).unwrap();
        let db = Db::open_on(tier, options).unwrap();
        let table = self.fill(&db);
        (db, table)
    }

    /// `count` updates of `fields` fields each; how many were refused.
    fn update(self, table: &Table, seed: u64, count: u64, fields: usize, pick: Pick) -> u64 {
        let mut random = Random::from_seed(seed);
        let mut refused = 0;
        for n in 0..count {
            let value = vec![n as u8; self.field_bytes];
            let first = random.below(self.fields as u64) as usize;
            let changed: Vec<_> = (first..first + fields)
                .map(|field| (NAMES[field % self.fields], Value::Bytes(&value)))
                .collect();
            match table.update(&key(pick.row(&mut random, self.rows)), &changed) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                    refused += 1;
                    assert!(refused < 20, "update {n}: {error}");
                }
            }
        }
        refused
    }
}

/// Which row is next.
#[derive(Clone, Copy)]
enum Pick {
    Uniform,
    Skewed,
}

impl Pick {
    fn row(self, random: &mut Random, rows: u64) -> u64 {
        match self {
            Pick::Uniform => random.below(rows),
            Pick::Skewed => {
                // Half of all go to a hundredth of the rows, spread over the key space.
                let part = (random.below(1 << 20) as f64 / (1u64 << 20) as f64).powf(6.64);
                (part * rows as f64) as u64 * 7919 % rows
            }
        }
    }
}

fn report(name: &str, db: &Db, begin: Instant, updates: u64) {
    let m = db.metrics();
    println!(
        "{name}: {updates} updates in {:.2?}, {} B copied for each, {} segments, {} of {} MiB, merged {}",
        begin.elapsed(),
        m.bytes_collected / updates.max(1),
        m.segments_collected,
        m.fast_tier_bytes >> 20,
        m.fast_tier_bytes_max >> 20,
        m.chains_merged
    );
}

fn forever(name: &str, load: Load, options: Options, fields: usize, pick: Pick) {
    let (db, table) = load.open(options);
    let begin = Instant::now();
    let count = 150_000;
    assert_eq!(load.update(&table, 1, count, fields, pick), 0, "{name}");
    report(name, &db, begin, count);
    assert_eq!(table.len(), load.rows);
}

#[test]
fn one_field_of_any_row_is_updated_for_ever() {
    let load = KILOBYTE_ROWS;
    forever("uniform", load, load.options(), 1, Pick::Uniform);
    forever("skewed", load, load.options(), 1, Pick::Skewed);
    forever("without merging", load, Options { merge: false, ..load.options() }, 1, Pick::Uniform);
}

/// Deltas of a batch lie among rows, in segments of rows.
#[test]
fn one_field_each_of_many_rows_at_a_time_is_updated_for_ever() {
    let load = KILOBYTE_ROWS;
    let (db, table) = load.open(load.options());
    let mut random = Random::from_seed(1);
    let begin = Instant::now();
    let (batches, of_each) = (1_500, 100);
    for n in 0..batches {
        let value = vec![n as u8; load.field_bytes];
        let mut batch = Batch::new();
        for _ in 0..of_each {
            let field = NAMES[random.below(load.fields as u64) as usize];
            let row = Pick::Uniform.row(&mut random, load.rows);
            batch.update(&table, &key(row), &[(field, Value::Bytes(&value))]).unwrap();
        }
        db.write(batch).unwrap_or_else(|error| panic!("batch {n}: {error}"));
    }
    report("batches", &db, begin, batches * of_each);
    assert_eq!(table.len(), load.rows);
}

/// Of a store this small a fifth is little in large segments: what is fixed counts in them.
#[test]
fn a_quarter_more_than_the_rows_is_enough_in_a_small_store() {
    let load = Load { rows: 20_000, segment_bytes: 0, percent: 125, ..KILOBYTE_ROWS };
    forever("uniform", load, load.options(), 1, Pick::Uniform);
    forever("skewed", load, load.options(), 1, Pick::Skewed);
}

#[test]
fn several_fields_and_small_rows_are_updated_for_ever() {
    let load = KILOBYTE_ROWS;
    forever("three fields", load, load.options(), 3, Pick::Uniform);
    let small = Load { rows: 100_000, field_bytes: 10, ..load };
    forever("small rows", small, small.options(), 1, Pick::Uniform);
}

/// Nobody collects but the caller, who does when there is no room.
#[test]
fn a_store_without_threads_is_updated_for_ever() {
    let load = KILOBYTE_ROWS;
    let (db, table) = load.open(Options { background: false, ..load.options() });
    let mut random = Random::from_seed(3);
    for n in 0..60_000 {
        let row = key(random.below(load.rows));
        let value = [n as u8; 100];
        while let Err(error) = table.update(&row, &[("f3", Value::Bytes(&value))]) {
            assert_eq!(error.kind(), ErrorKind::Full);
            assert!(db.collect().unwrap() > 0, "update {n}: {error}, and there is nothing to collect");
        }
    }
    db.check_counts().unwrap();
}

/// What is open when a store is closed, or killed, is closed for good: there is room to begin anew all the same.
#[test]
fn a_tight_store_goes_on_after_closing_and_after_a_kill() {
    let load = KILOBYTE_ROWS;
    let options = || Options { recovery_threads: 1, ..load.options() };
    let mut sim = CrashSim::new(CrashModel::Pages, load.limit() >> 20 << 20);
    let db = Db::open_on(FastTier::simulated(&sim), options()).unwrap();
    load.fill(&db);
    db.close().unwrap();
    for cycle in 0..8 {
        sim = CrashSim::from_image(&sim.process_kill());
        let db = Db::open_on(FastTier::simulated(&sim), options()).unwrap();
        let table = db.table("t").unwrap();
        assert_eq!(load.update(&table, cycle, 12_000, 1, Pick::Uniform), 0, "cycle {cycle}");
        assert_eq!(table.len(), load.rows);
        if cycle % 2 == 0 {
            db.close().unwrap();
        } else {
            // Killed with gc at work: what is stored from here on is not there.
            sim = CrashSim::from_image(&sim.process_kill());
        }
    }
}

#[test]
fn threads_update_a_tight_store_in_every_mode() {
    let load = KILOBYTE_ROWS;
    let second = std::time::Duration::from_secs(1);
    for durability in [Durability::Immediate, Durability::Interval(second), Durability::Process] {
        let (db, table) = load.open(Options { durability, ..load.options() });
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let table = &table;
                scope.spawn(move || assert_eq!(load.update(table, thread, 8_000, 1, Pick::Skewed), 0));
            }
        });
        report(&format!("{durability:?}"), &db, begin, 64_000);
    }
}

#[test]
fn rows_come_and_go_in_a_tight_store() {
    let load = KILOBYTE_ROWS;
    let (db, table) = load.open(load.options());
    let (begin, mut random) = (Instant::now(), Random::from_seed(4));
    for n in 0..60_000 {
        if n % 4 == 0 {
            assert!(table.delete(&key(n / 4)).unwrap());
            load.put(&table, load.rows + n / 4);
        }
        let row = key(n / 4 + 1 + random.below(load.rows - 1));
        table.update(&row, &[("f7", Value::Bytes(&[n as u8; 100]))]).unwrap();
    }
    report("turnover", &db, begin, 60_000);
    assert_eq!(table.len(), load.rows);
}

/// Writers that together fill a store many times over, half of it live at most: gc has something to free at every moment, and
/// whoever finds no extent, though others took what was freed for it, waits for more and is not told `Full`.
#[test]
fn nobody_is_told_full_while_there_is_something_to_free() {
    const KEYS: u64 = 110;
    let interval = Durability::Interval(std::time::Duration::from_millis(20));
    for durability in [Durability::Process, interval, Durability::Immediate] {
        let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
        sim.limit_log(1 << 20);
        let options = Options {
            durability,
            segment_bytes: 256 << 10,
            fast_tier_bytes_max: 8 << 20,
            recovery_threads: 1,
            ..Options::default()
        };
        let db = Db::open_on(FastTier::simulated(&sim), options).unwrap();
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4u64 {
                let flat = &flat;
                scope.spawn(move || {
                    let mut random = Random::from_seed(writer);
                    for step in 0..1_500 {
                        let row = random.below(KEYS);
                        let value = vec![writer as u8; 20_000 + random.below(30_000) as usize];
                        let done = match random.below(8) {
                            0 => flat.delete(&key(row)).map(drop),
                            _ => flat.put(&key(row), &[("value", Value::Bytes(&value))]),
                        };
                        done.unwrap_or_else(|e| panic!("{durability:?}, {writer}, step {step}: {e}"));
                    }
                });
            }
        });
        let metrics = db.metrics();
        assert!(metrics.segments_collected > 50, "{durability:?}: {metrics:?}");
        drop(flat);
        db.close().unwrap();
    }
}
