//! Stores of more rows than their fast tier holds, with the threads that a store has: nobody is refused anything, nothing is lost, in each durability mode and on each medium.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hedgerow::{Compression, Db, Durability, Options, Schema, Table, Type, row};
use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier, Random};
use hedgerow_sim::{Scratch, eventually};

use crate::concurrency::StopAtEnd;

const FAST_BYTES: u64 = 16 << 20;
const WRITERS: u64 = 2;
/// Rows of each writer: all together come to three times the fast tier.
const ROWS: u64 = 24_000;
const MODES: [Durability; 3] =
    [Durability::Immediate, Durability::Interval(Duration::from_millis(20)), Durability::Process];

fn options(durability: Durability) -> Options {
    Options {
        durability,
        fast_tier_bytes_max: FAST_BYTES,
        segment_bytes: 256 << 10,
        index_bytes_max: 64 << 20,
        cache_bytes: 1 << 20,
        ..Options::default()
    }
}

/// What a store of this test is on.
enum Medium {
    Files(Scratch),
    Simulated(CrashSim),
}

impl Medium {
    fn open(&self, durability: Durability) -> Db {
        match self {
            Medium::Files(scratch) => Db::open_with(scratch.path(), options(durability)).unwrap(),
            Medium::Simulated(sim) => {
                let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
                Db::open_at(tiers, options(durability), Clock::system()).unwrap()
            }
        }
    }

    fn simulated(model: CrashModel) -> Medium {
        let sim = CrashSim::new(model, FAST_BYTES);
        sim.limit_log(1 << 20);
        Medium::Simulated(sim)
    }

    /// As it is when the process is killed.
    fn killed(self) -> Medium {
        match self {
            Medium::Files(scratch) => Medium::Files(scratch),
            Medium::Simulated(sim) => {
                let left = CrashSim::from_image(&sim.process_kill());
                left.limit_log(1 << 20);
                Medium::Simulated(left)
            }
        }
    }
}

fn key_of(writer: u64, row: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&row.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&(row * WRITERS + writer).to_be_bytes());
    key
}

/// One writer's rows: what each has, if it is there.
struct Writer {
    number: u64,
    random: Random,
    rows: Vec<Option<(i64, usize)>>,
    longest: Duration,
}

impl Writer {
    fn text(n: i64, bytes: usize) -> Vec<u8> {
        vec![n as u8; bytes]
    }

    fn write(&mut self, table: &Table, row: u64) {
        let (key, n) = (key_of(self.number, row), self.random.below(1 << 40) as i64);
        let known = &mut self.rows[row as usize];
        let began = Instant::now();
        match (self.random.below(16), *known) {
            (0, _) => {
                assert_eq!(table.delete(&key).unwrap(), known.is_some(), "row {row}");
                *known = None;
            }
            (1 | 2, Some((_, bytes))) => {
                // The text shows the number of the write that made the row.
                table.update(&key, &row! { n: n }).unwrap();
                *known = Some((n, bytes));
            }
            (3, Some((before, bytes))) => {
                assert_eq!(table.increment(&key, "n", 3).unwrap(), before + 3, "row {row}");
                *known = Some((before + 3, bytes));
            }
            (4..7, _) => self.look(table, row),
            _ => {
                let bytes = 600 + self.random.below(800) as usize;
                table.put(&key, &row! { n: n, text: &Writer::text(row as i64, bytes)[..] }).unwrap();
                self.rows[row as usize] = Some((n, bytes));
            }
        }
        self.longest = self.longest.max(began.elapsed());
    }

    fn look(&self, table: &Table, row: u64) {
        let found = table.get(&key_of(self.number, row)).unwrap();
        let found = found.map(|found| {
            let text = found.get_as::<&[u8]>("text").unwrap();
            assert!(text.iter().all(|byte| *byte == row as u8), "row {row} has the text of another");
            (found.get_as::<i64>("n").unwrap(), text.len())
        });
        assert_eq!(found, self.rows[row as usize], "row {row} of writer {}", self.number);
    }

    fn run(&mut self, table: &Table) {
        for row in 0..ROWS {
            self.write(table, row);
            let again = self.random.below(row + 1);
            self.write(table, again);
        }
    }
}

/// Nothing takes more than it may.
fn check_budgets(db: &Db) {
    let metrics = db.metrics();
    let lower = &metrics.sorted_tables;
    assert!(metrics.fast_tier_bytes <= FAST_BYTES, "{metrics:?}");
    assert!(metrics.index_bytes <= options(MODES[0]).index_bytes_max, "{metrics:?}");
    assert!(lower.block_cache_bytes <= lower.block_cache_bytes_max, "{lower:?}");
}

/// Scans, and looks through snapshots, while others write: in order, and the same twice.
fn keep_looking(db: &Db, table: &Table, stop: &AtomicBool) -> u64 {
    let mut looks = 0;
    while !stop.load(Ordering::Relaxed) {
        check_budgets(db);
        let keys = |scan: hedgerow::Scan| -> Vec<Vec<u8>> {
            scan.limit(2_000).map(|row| row.unwrap().key().to_vec()).collect()
        };
        assert!(keys(table.scan()).is_sorted_by(|one, next| one < next));
        let snapshot = db.snapshot();
        let once = keys(snapshot.scan(table));
        assert_eq!(once, keys(snapshot.scan(table)));
        assert!(keys(snapshot.scan(table).reverse()).is_sorted_by(|one, next| one > next));
        drop(snapshot);
        looks += 1;
        // What is written while there is a snapshot does not move.
        std::thread::sleep(Duration::from_millis(20));
    }
    looks
}

fn count(scan: hedgerow::Scan) -> usize {
    scan.collect::<hedgerow::Result<Vec<_>>>().unwrap().len()
}

fn check(db: &Db, writers: &[Writer]) {
    let table = db.table("t").unwrap();
    for writer in writers {
        (0..ROWS).for_each(|row| writer.look(&table, row));
    }
    let there = writers.iter().flat_map(|writer| &writer.rows).flatten().count();
    assert_eq!([count(table.scan()), count(table.scan().reverse())], [there; 2]);
}

fn more_than_the_fast_tier_holds(medium: Medium, durability: Durability) {
    let db = medium.open(durability);
    let schema = Schema::new().field("n", Type::I64).nullable("text", Type::Bytes);
    let table = db.create_table("t", schema).unwrap();
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|number| Writer {
            number,
            random: Random::from_seed(number),
            rows: vec![None; ROWS as usize],
            longest: Duration::ZERO,
        })
        .collect();
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let (db, table, stop) = (&db, &table, &stop);
        scope.spawn(move || keep_looking(db, table, stop));
        let _stop = StopAtEnd(stop);
        let running: Vec<_> =
            writers.iter_mut().map(|writer| scope.spawn(move || writer.run(table))).collect();
        running.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let longest = writers.iter().map(|writer| writer.longest).max();
    println!("{durability:?}: {:.1?}, longest call {longest:.1?}, {:?}", began.elapsed(), db.metrics());
    assert!(db.metrics().records_moved > ROWS, "rows move");
    check_budgets(&db);
    check(&db, &writers);
    drop(table);
    db.close().unwrap();
    let db = medium.open(durability);
    check(&db, &writers);
    // Written again, with most of it below, and then killed.
    let table = db.table("t").unwrap();
    for writer in &mut writers {
        (0..2_000).for_each(|_| {
            let row = writer.random.below(ROWS);
            writer.write(&table, row);
        });
    }
    drop(table);
    match &medium {
        Medium::Simulated(_) => {
            let killed = medium.killed();
            drop(db);
            check(&killed.open(durability), &writers);
        }
        Medium::Files(_) => drop(db),
    }
}

#[test]
fn more_rows_than_the_fast_tier_holds_on_files() {
    for durability in [MODES[1], MODES[2]] {
        more_than_the_fast_tier_holds(Medium::Files(Scratch::made("moving")), durability);
    }
}

#[test]
fn more_rows_than_the_fast_tier_holds_in_a_page_cache() {
    for durability in MODES {
        more_than_the_fast_tier_holds(Medium::simulated(CrashModel::Pages), durability);
    }
}

#[test]
fn more_rows_than_the_fast_tier_holds_on_persistent_memory() {
    for durability in MODES {
        more_than_the_fast_tier_holds(Medium::simulated(CrashModel::CacheLines), durability);
    }
}

/// One field of rows that lie anywhere is written, as fast as it goes: what of a move's victims was changed while it moved finds its place in a tier that writers keep full, or no
/// victim could be freed ever after.
#[test]
fn fields_of_more_rows_than_the_fast_tier_holds_are_updated_without_a_pause() {
    const ROWS: u64 = 50_000;
    let scratch = Scratch::new("updated-without-a-pause");
    let db = Db::open_with(scratch.path(), options(Durability::Process)).unwrap();
    let schema = Schema::new().field("often", Type::Bytes).field("rest", Type::Bytes);
    let table = db.create_table("t", schema).unwrap();
    for row in 0..ROWS {
        table.put(&key_of(0, row), &row! { often: &[0u8; 100][..], rest: &[1u8; 900][..] }).unwrap();
    }
    let (mut random, mut written) = (Random::from_seed(5), vec![0u8; ROWS as usize]);
    for n in 0..500_000u32 {
        let row = random.below(ROWS);
        written[row as usize] = n as u8;
        table.update(&key_of(0, row), &row! { often: &[n as u8; 100][..] }).unwrap();
    }
    for (row, last) in written.into_iter().enumerate() {
        let found = table.get(&key_of(0, row as u64)).unwrap().unwrap();
        assert_eq!(found.get_as::<&[u8]>("often").unwrap(), [last; 100], "row {row}");
        assert_eq!(found.get_as::<&[u8]>("rest").unwrap(), [1; 900], "row {row}");
    }
}

fn put(db: &Db, table: &Table, row: u64) -> hedgerow::Result<()> {
    let text = [row as u8; 1_000];
    let put = || table.put(&key_of(0, row), &row! { n: row as i64, text: &text });
    // A store without threads of its own makes room when it is told to.
    put().or_else(|_| {
        db.collect()?;
        put()
    })
}

/// Fills a table until it is refused a row; how many it took, and why it took no more.
fn fill(db: &Db, table: &Table) -> (u64, hedgerow::Error) {
    let refused = (0..1 << 20).find_map(|row| Some((row, put(db, table, row).err()?)));
    refused.expect("it takes any number of rows")
}

fn has_all(table: &Table, rows: u64) {
    for row in 0..rows {
        let found = table.get(&key_of(0, row)).unwrap().map(|found| found.get_as::<i64>("n").unwrap());
        assert_eq!(found, Some(row as i64), "row {row}");
    }
    assert_eq!(count(table.scan()) as u64, rows);
}

#[test]
fn both_tiers_full_is_said_and_what_becomes_room_is_used() {
    for background in [true, false] {
        let scratch = Scratch::made("both-full");
        let open = |capacity_bytes_max| {
            let compression = Compression::None;
            let options =
                Options { capacity_bytes_max, background, compression, ..options(Durability::Process) };
            Db::open_with(scratch.path(), options).unwrap()
        };
        let db = open(12 << 20);
        let schema = Schema::new().field("n", Type::I64).nullable("text", Type::Bytes);
        let table = db.create_table("t", schema).unwrap();
        let filler = db.create_table("filler", Schema::flat()).unwrap();
        for n in 0..6_000u64 {
            let text = [n as u8; 1_000];
            let put = || filler.put(&n.to_be_bytes(), &row! { value: &text });
            put().or_else(|_| db.collect().and_then(|_| put())).unwrap();
        }
        let (rows, full) = fill(&db, &table);
        assert_eq!(full.kind(), hedgerow::ErrorKind::Full, "{full}");
        assert!(rows > 10_000, "background: {background}: only {rows} rows: {full}");
        has_all(&table, rows);
        // Deletes find room, always.
        let rows = rows - 1;
        assert!(table.delete(&key_of(0, rows)).unwrap());
        // What is of a table that is gone is merged away, though there is no room beside it but what is kept for merges.
        db.drop_table("filler").unwrap();
        let mut row = rows;
        eventually("there is room again", || {
            while row < rows + 3_000 && put(&db, &table, row).is_ok() {
                row += 1;
            }
            row == rows + 3_000
        });
        has_all(&table, row);
        drop((table, filler));
        db.close().unwrap();
        let db = open(u64::MAX);
        let table = db.table("t").unwrap();
        for row in row..row + 20_000 {
            put(&db, &table, row).unwrap();
        }
        has_all(&table, row + 20_000);
    }
}

/// A budget at which a file takes seconds: nobody is refused or waits for it for ever, and a store is closed while merges wait.
#[test]
fn a_tiny_budget_of_background_io_holds_up_nobody() {
    let medium = Medium::simulated(CrashModel::Pages);
    let Medium::Simulated(sim) = &medium else { unreachable!("it is simulated") };
    let options = Options {
        io_bytes_per_s: Some(64 << 10),
        compression: Compression::None,
        ..options(Durability::Process)
    };
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    let db = Db::open_at(tiers, options, Clock::system()).unwrap();
    let table = db.create_table("t", Schema::new().field("text", Type::Bytes)).unwrap();
    let rows = 4 * FAST_BYTES / 1_000;
    let put = |n: u64| table.put(&(n % (rows / 2)), &row! { text: [n as u8; 1_000].as_slice() });
    (0..rows).for_each(|n| put(n).unwrap_or_else(|error| panic!("row {n}: {error}")));
    let queues = db.metrics().queues;
    assert!(queues.io_bytes_beyond > FAST_BYTES, "{queues:?}");
    // Who writes at leisure is not held, and has files wait. (All that was written may have been in haste, on a slow machine.)
    let mut leisurely = (rows / 2..rows).cycle();
    eventually("a move or a merge waits for the budget", || {
        leisurely.next().is_some_and(|n| put(n).is_ok()) && db.metrics().queues.io_waited_ns > 0
    });
    drop(table);
    db.close().unwrap();
    let db = medium.open(Durability::Process);
    let table = db.table("t").unwrap();
    assert_eq!(count(table.scan()) as u64, rows / 2);
    for n in (0..rows / 2).step_by(97) {
        let row = table.get(&n).unwrap().unwrap();
        assert_eq!(row.get_as::<&[u8]>("text").unwrap(), [(n + rows / 2) as u8; 1_000]);
    }
}
