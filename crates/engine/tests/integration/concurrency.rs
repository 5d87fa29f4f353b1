//! Threads at work together, with gc on and little space: histories that must be linearizable, snapshots that
//! must be consistent, rows that must be of one version.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hedgerow::{
    Batch, CacheMode, Change, Db, Durability, ErrorKind, Expiry, Options, OwnedValue, Schema, Table, Type,
    Value, row,
};
use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier, FastTierOptions, Random};
use hedgerow_sim::{Call, Effect, History, eventually, rounds};

fn db(durability: Durability, megabytes: u64) -> Db {
    db_with(Options { durability, ..Options::default() }, megabytes)
}

/// With rows of most sizes that the cache takes, and little room for them.
fn cached_db(megabytes: u64) -> Db {
    let durability = Durability::Process;
    let options =
        Options { durability, cache_mode: CacheMode::On, cache_bytes: 1 << 20, ..Options::default() };
    db_with(options, megabytes)
}

/// One whose rows move to sorted tables.
fn moving_db(durability: Durability, megabytes: u64) -> Db {
    let sim = CrashSim::new(CrashModel::Pages, 1 << 20);
    sim.limit_log(0);
    let tiers = (dram(megabytes), CapacityTier::simulated(&sim));
    let options = small(Options { durability, fast_tier_bytes_max: megabytes << 20, ..Options::default() });
    Db::open_at(tiers, options, Clock::system()).unwrap()
}

/// Moves rows again and again, out of open segments with every other, and counts how often.
fn keep_moving(db: &Db, moves: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let before = moves.fetch_add(1, Ordering::Relaxed);
        db.move_rows(before.is_multiple_of(2)).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Lets some moves go by: a row that is written all the time has older records in the log, and stays there.
fn pause(moves: &AtomicU64) {
    let (from, until) = (moves.load(Ordering::Relaxed), Instant::now() + Duration::from_millis(30));
    while moves.load(Ordering::Relaxed) < from + 5 && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub(crate) fn db_with(options: Options, megabytes: u64) -> Db {
    Db::open_on(dram(megabytes), small(options)).unwrap()
}

fn small(options: Options) -> Options {
    Options { segment_bytes: 1 << 20, index_bytes_max: 64 << 20, delta_chain_max: 3, ..options }
}

fn dram(megabytes: u64) -> FastTier {
    let tier = FastTierOptions { bytes_max: megabytes << 20, ..FastTierOptions::default() };
    FastTier::dram(&tier).unwrap()
}

/// Has the threads of a test stop when it is over, however that came.
pub(crate) struct StopAtEnd<'s>(pub(crate) &'s AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Rows of this test: every write gives `value` and, in the filler, many bytes of it.
pub(crate) fn registers(db: &Db) -> Table {
    let schema = Schema::new()
        .nullable("value", Type::U64)
        .nullable("echo", Type::U64)
        .nullable("filler", Type::Bytes);
    db.create_table("registers", schema).unwrap()
}

pub(crate) const KEYS: u64 = 24;

pub(crate) struct Recorder<'r> {
    pub(crate) table: &'r Table,
    pub(crate) db: &'r Db,
    pub(crate) clock: &'r AtomicU64,
    pub(crate) random: Random,
    pub(crate) history: Vec<Call>,
    pub(crate) stamp: u64,
}

impl Recorder<'_> {
    fn call(&mut self, key: u64, act: impl FnOnce(&mut Self, &[u8]) -> hedgerow::Result<Effect>) {
        let began = self.clock.fetch_add(1, Ordering::SeqCst);
        let effect = act(self, &key_of(key)).unwrap();
        let returned = self.clock.fetch_add(1, Ordering::SeqCst);
        self.history.push(Call { key, effect, began, returned });
    }

    fn filler(&mut self, stamp: u64) -> Vec<u8> {
        vec![stamp as u8; self.random.below(6_000) as usize]
    }

    pub(crate) fn one(&mut self) {
        let key = self.random.below(KEYS);
        self.stamp += 1;
        let stamp = self.stamp;
        match self.random.below(14) {
            0..4 => self.call(key, |this, key| this.read(key)),
            4 | 5 => self.call(key, |this, key| {
                let filler = this.filler(stamp);
                this.table.put(key, &row! { value: stamp, echo: stamp, filler: &filler })?;
                Ok(Effect::Write(stamp))
            }),
            6 | 7 => self.call(key, |this, key| {
                this.table.update(key, &row! { value: stamp, echo: stamp })?;
                Ok(Effect::Write(stamp))
            }),
            8 => self.call(key, |this, key| {
                let was = this.table.update_existing(key, &row! { value: stamp, echo: stamp })?;
                Ok(Effect::WriteIfThere(stamp, was))
            }),
            9 => self.call(key, |this, key| Ok(Effect::Remove(this.table.delete(key)?))),
            10 => self.call(key, |this, key| this.add(key)),
            11 => self.call(key, |this, key| {
                let expected = this.table.get_field(key, "value")?.and_then(|v| v.borrow().as_u64());
                let wanted = expected.map_or(Value::Null, Value::UInt);
                let swapped = this.table.modify(key, |row| {
                    let now = match row {
                        Some(row) => row.get("value")?.to_owned(),
                        None => OwnedValue::Null,
                    };
                    if now.borrow() != wanted {
                        return Ok((Change::Keep, false));
                    }
                    Ok((change(stamp), true))
                })?;
                Ok(Effect::Swap(expected, stamp, swapped))
            }),
            12 => self.call(key, |this, key| {
                let mut batch = Batch::new();
                batch.update(this.table, key, &row! { value: stamp, echo: stamp })?;
                let other = key_of(KEYS + stamp % 7);
                batch.put(this.table, &other, &row! { value: stamp, echo: stamp })?;
                this.db.write(batch)?;
                Ok(Effect::Write(stamp))
            }),
            _ => self.call(key, |this, key| {
                let found = this.table.multi_get(&[key])?.remove(0);
                Ok(Effect::Read(found.map(|row| {
                    checked(row.get("value").unwrap(), row.get("echo").unwrap(), row.get("filler").unwrap())
                })))
            }),
        }
    }

    fn read(&mut self, key: &[u8]) -> hedgerow::Result<Effect> {
        let read = self
            .table
            .read(key, |row| Ok(checked(row.get("value")?, row.get("echo")?, row.get("filler")?)))?;
        Ok(Effect::Read(read))
    }

    fn add(&mut self, key: &[u8]) -> hedgerow::Result<Effect> {
        let sum = self.table.modify(key, |row| {
            let now = match row {
                Some(row) => row.get("value")?.as_u64().unwrap(),
                None => 0,
            };
            let sum = now.wrapping_add(1 << 40);
            Ok((change(sum), sum))
        })?;
        Ok(Effect::Add(1 << 40, sum))
    }
}

fn change(value: u64) -> Change {
    let fields =
        vec![("value".to_owned(), OwnedValue::UInt(value)), ("echo".to_owned(), OwnedValue::UInt(value))];
    Change::Update { fields, expiry: Expiry::Never }
}

/// The row's value, if its fields are of one version.
fn checked(value: Value<'_>, echo: Value<'_>, filler: Value<'_>) -> u64 {
    assert!(value == echo, "a row of two versions: {value} and {echo}");
    let filler = filler.as_bytes().unwrap_or_default();
    assert!(filler.windows(2).all(|pair| pair[0] == pair[1]), "a value of two versions");
    value.as_u64().unwrap()
}

pub(crate) fn key_of(key: u64) -> Vec<u8> {
    format!("register/{key:04}").into_bytes()
}

fn linearizable(db: &Db, moves: bool) {
    let table = registers(db);
    let (clock, mut calls) = (AtomicU64::new(0), 0);
    // In rounds on keys of their own, so that no search gets long.
    for round in 0..rounds(120, 2_400) {
        table.clear().unwrap();
        let mut history = History::default();
        let (moved, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let moved = &moved;
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            if moves {
                scope.spawn(|| keep_moving(db, moved, &stop));
            }
            let work = |thread: u64| {
                let random = Random::from_seed(round * 100 + thread);
                let stamp = thread << 32;
                let mut recorder =
                    Recorder { table: &table, db, clock: &clock, random, history: Vec::new(), stamp };
                for call in 0..1_500 {
                    recorder.one();
                    if moves && call % 150 == 0 {
                        pause(moved);
                    }
                }
                recorder.history
            };
            let threads: Vec<_> = (1..5).map(|thread| scope.spawn(move || work(thread))).collect();
            for thread in threads {
                thread.join().unwrap().into_iter().for_each(|call| history.push(call));
            }
        });
        history.check().unwrap_or_else(|error| panic!("round {round}: {error}"));
        calls += history.len();
    }
    let metrics = db.metrics();
    println!("{calls} calls linearizable; {metrics:?}");
}

#[test]
fn calls_on_a_key_are_linearizable() {
    linearizable(&db(Durability::Process, 24), false);
}

#[test]
fn calls_on_a_key_are_linearizable_when_durable_at_once() {
    linearizable(&db(Durability::Immediate, 24), false);
}

#[test]
fn calls_on_a_key_are_linearizable_through_the_cache() {
    let db = cached_db(24);
    linearizable(&db, false);
    let metrics = db.metrics();
    assert!(metrics.cache_hits > 0 && metrics.cache_admissions > 0, "{metrics:?}");
}

/// Each key is in the log and in sorted tables by turns.
#[test]
fn calls_on_a_key_are_linearizable_while_rows_move() {
    for durability in [Durability::Process, Durability::Immediate] {
        let db = moving_db(durability, 24);
        linearizable(&db, true);
        let moved = db.metrics().records_moved;
        assert!(moved > 100, "only {moved} records moved");
    }
}

pub(crate) const ACCOUNTS: u64 = 200;
pub(crate) const EACH: u64 = 1_000;

pub(crate) fn account(n: u64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

/// Moves money between accounts by batches that require both versions, or by `modify` on one account and its shadow.
pub(crate) fn transfer(db: &Db, accounts: &Table, random: &mut Random) -> bool {
    let (a, b) = (account(random.below(ACCOUNTS)), account(random.below(ACCOUNTS)));
    if a == b {
        return false;
    }
    let (Some(from), Some(to)) = (accounts.get(&a).unwrap(), accounts.get(&b).unwrap()) else { return false };
    let held = from.get("money").unwrap().as_u64().unwrap();
    let moved = random.below(held.min(50) + 1);
    let filler = vec![moved as u8; random.below(2_000) as usize];
    let mut batch = Batch::new();
    batch.require_version(accounts, &a, Some(from.version())).unwrap();
    batch.require_version(accounts, &b, Some(to.version())).unwrap();
    if random.below(4) == 0 {
        batch.put(accounts, &a, &row! { money: held - moved, filler: &filler }).unwrap();
    } else {
        batch.update(accounts, &a, &row! { money: held - moved }).unwrap();
    }
    batch
        .update(
            accounts,
            &b,
            &row! { money: to.get("money").unwrap().as_u64().unwrap() + moved, filler: &filler },
        )
        .unwrap();
    match db.write(batch) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::Conflict => false,
        // The snapshots at work may hold what gc would free.
        Err(error) if error.kind() == ErrorKind::Full => {
            std::thread::sleep(Duration::from_millis(1));
            false
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn snapshots_are_consistent_while_money_moves() {
    snapshots_are_consistent(&db(Durability::Process, 24), false);
}

#[test]
fn so_they_are_while_rows_move() {
    let db = moving_db(Durability::Process, 24);
    snapshots_are_consistent(&db, true);
    let moved = db.metrics().records_moved;
    assert!(moved > 100, "only {moved} records moved");
}

fn snapshots_are_consistent(db: &Db, moves: bool) {
    let schema = Schema::new().field("money", Type::U64).nullable("filler", Type::Bytes);
    let accounts = db.create_table("accounts", schema).unwrap();
    for n in 0..ACCOUNTS {
        accounts.put(&account(n), &row! { money: EACH }).unwrap();
    }
    let (stop, transfers, scans) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let moved = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        if moves {
            scope.spawn(|| keep_moving(db, moved, &stop));
        }
        for thread in 0..3 {
            let (accounts, stop, transfers) = (&accounts, &stop, &transfers);
            scope.spawn(move || {
                let mut random = Random::from_seed(thread);
                while !stop.load(Ordering::Relaxed) {
                    let before = transfers
                        .fetch_add(u64::from(transfer(db, accounts, &mut random)), Ordering::Relaxed);
                    if moves && before.is_multiple_of(64) {
                        pause(moved);
                    }
                }
            });
        }
        for thread in 0..2u64 {
            let (accounts, stop, scans) = (&accounts, &stop, &scans);
            scope.spawn(move || {
                let mut reverse = thread == 0;
                while !stop.load(Ordering::Relaxed) {
                    if moves {
                        pause(moved);
                    }
                    reverse = !reverse;
                    let snapshot = db.snapshot();
                    let scan = snapshot.scan(accounts);
                    let scan = if reverse { scan.reverse() } else { scan };
                    let money = |row: hedgerow::Result<hedgerow::Row>| {
                        row.unwrap().get("money").unwrap().as_u64().unwrap()
                    };
                    let held: Vec<u64> = scan.map(money).collect();
                    assert_eq!(held.len() as u64, ACCOUNTS);
                    assert_eq!(held.iter().sum::<u64>(), ACCOUNTS * EACH, "a snapshot shows half a transfer");
                    // A second look through the same snapshot shows the same.
                    let again: u64 = (0..ACCOUNTS)
                        .map(|n| {
                            snapshot
                                .get(accounts, &account(n))
                                .unwrap()
                                .unwrap()
                                .get("money")
                                .unwrap()
                                .as_u64()
                                .unwrap()
                        })
                        .sum();
                    assert_eq!(again, ACCOUNTS * EACH, "a snapshot has changed");
                    scans.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _stop = StopAtEnd(&stop);
        eventually("money moves, and snapshots are looked at", || {
            transfers.load(Ordering::Relaxed) >= rounds(60_000, 600_000)
                && scans.load(Ordering::Relaxed) >= rounds(600, 6_000)
        });
    });
    let (transfers, scans) = (transfers.into_inner(), scans.into_inner());
    println!("{transfers} transfers, {scans} snapshots; {:?}", db.metrics());
}

/// Long scans without a snapshot, while keys come and go: what was there all along is seen once, in order.
#[test]
fn scans_see_what_stays_while_neighbours_come_and_go() {
    let db = db(Durability::Process, 24);
    let table = registers(&db);
    for n in 0..4_000u64 {
        table.put(&key_of(n), &row! { value: n, echo: n }).unwrap();
    }
    let stop = AtomicBool::new(false);
    let mut scans = 0;
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (table, stop) = (&table, &stop);
            scope.spawn(move || {
                let mut random = Random::from_seed(thread);
                while !stop.load(Ordering::Relaxed) {
                    // Odd keys come and go; even ones stay, but change.
                    let n = random.below(4_000);
                    match (n % 2, random.below(3)) {
                        (1, 0) => drop(table.delete(&key_of(n)).unwrap()),
                        (1, _) => table.put(&key_of(n), &row! { value: n, echo: n }).unwrap(),
                        _ => table.update(&key_of(n), &row! { value: n, echo: n }).unwrap(),
                    }
                }
            });
        }
        let _stop = StopAtEnd(&stop);
        while scans < rounds(400, 8_000) {
            let reverse = scans % 2 == 1;
            let scan = if reverse { table.scan().reverse() } else { table.scan() };
            let mut seen: Vec<u64> = scan
                .map(|row| {
                    let row = row.unwrap();
                    checked(row.get("value").unwrap(), row.get("echo").unwrap(), row.get("filler").unwrap())
                })
                .collect();
            if reverse {
                seen.reverse();
            }
            assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "out of order or twice");
            let even = seen.iter().filter(|n| **n % 2 == 0).count();
            assert_eq!(even, 2_000, "a row that was there all along was missed");
            scans += 1;
        }
    });
}

const WRITERS: u64 = 2;
const ROWS: u64 = 600;

/// Writes rising values to the rows of one writer.
fn keep_writing(table: &Table, writer: u64, stop: &AtomicBool) {
    let mut random = Random::from_seed(writer);
    let mut stamp = 0;
    while !stop.load(Ordering::Relaxed) {
        stamp += 1;
        let key = key_of(random.below(ROWS) / WRITERS * WRITERS + writer);
        let filler = vec![stamp as u8; random.below(3_000) as usize];
        let done = match random.below(3) {
            0 => table.put(&key, &row! { value: stamp, echo: stamp, filler: &filler }),
            1 => table.update(&key, &row! { value: stamp, echo: stamp }),
            _ => table.modify(&key, |_| Ok((change(stamp), ()))),
        };
        match done {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Full => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads rows, a few of them most of the time; none may be older than it was. Returns how many.
fn keep_reading(table: &Table, seed: u64, stop: &AtomicBool) -> u64 {
    let mut random = Random::from_seed(seed);
    let mut seen = vec![0; ROWS as usize];
    let mut reads = 0;
    while !stop.load(Ordering::Relaxed) {
        let n = if random.below(4) > 0 { random.below(ROWS / 10) } else { random.below(ROWS) };
        let key = key_of(n);
        let now = table.read(&key, |row| {
            assert_eq!(row.key(), key, "the row of another key");
            Ok(checked(row.get("value")?, row.get("echo")?, row.get("filler")?))
        });
        let now = now.unwrap().unwrap_or(0);
        assert!(now >= seen[n as usize], "row {n}: {now} after {}", seen[n as usize]);
        seen[n as usize] = now;
        reads += 1;
    }
    reads
}

/// Writers, readers, gc and the cache's worker at once, all of them as fast as they can. Each key has one writer
/// and its values rise, so a reader may see the same or more, never less; and every row must be whole.
#[test]
fn readers_never_see_an_older_row_through_the_cache() {
    let options = Options {
        durability: Durability::Process,
        cache_mode: CacheMode::On,
        cache_bytes: 1 << 20,
        background: false,
        ..Options::default()
    };
    let db = db_with(options, 48);
    let table = registers(&db);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (db, table, stop) = (&db, &table, &stop);
        (0..WRITERS).for_each(|writer| drop(scope.spawn(move || keep_writing(table, writer, stop))));
        let readers: Vec<_> =
            (0..2).map(|reader| scope.spawn(move || keep_reading(table, 100 + reader, stop))).collect();
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                db.collect().unwrap();
            }
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                db.tend_cache();
            }
        });
        {
            let _stop = StopAtEnd(stop);
            let done = || {
                let metrics = db.metrics();
                metrics.cache_hits > rounds(100_000, 1_000_000)
                    && metrics.cache_evictions > 0
                    && metrics.segments_collected > 0
            };
            eventually("rows are read from the cache, evicted and collected", done);
        }
        let reads: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        println!("{reads} reads; {:?}", db.metrics());
    });
    db.check_counts().unwrap();
}
