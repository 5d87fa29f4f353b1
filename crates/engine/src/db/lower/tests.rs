//! Rows that are partly or wholly in sorted tables: they answer as rows that are not.

use hedgerow_device::{
    CapacityTier, Clock, CrashModel, CrashSim, FastTier, Fault, FileCall, Random, Refusal,
};

use super::*;
use crate::Schema;
use crate::db::fixture::options;
use crate::index::Tag;
use crate::sst::Compression;
use crate::sync::atomic::Ordering;
use crate::{
    Batch, Capacity, Change, Db, Durability, Expiry, Key, Options, OwnedValue, Row, RowRef, Scan, Snapshot,
    Table, Type, Value, row,
};

#[test]
fn looks_stay_where_they_are() {
    let schema = Arc::new(TableSchema::create(&Schema::flat()).unwrap());
    let looks = LowerLooks::default();
    let held: Vec<&LowerRecords> = (0..100u64)
        .map(|n| {
            looks.hold(LowerRecords::new(Arc::default(), SstKey::new(1, b"k"), (n, 0), Arc::clone(&schema)))
        })
        .collect();
    let upto = |held: &&LowerRecords| match &held.look {
        LowerLook::InRuns(place) => place.upto,
        _ => panic!("another look"),
    };
    assert!(held.iter().map(upto).eq(0..100));
    assert!(held[7].found().unwrap().records().is_empty());
}

const KEYS: u64 = 60;

fn schema() -> Schema {
    Schema::new().field("n", Type::I64).nullable("text", Type::String).nullable("m", Type::I64)
}

/// Two stores that are to answer alike: one whose table was loaded, one that put the same rows.
pub(crate) struct Twins {
    sims: [CrashSim; 2],
    pub(crate) dbs: [Option<Db>; 2],
    pub(crate) tables: Vec<Table>,
    snapshots: Vec<[Snapshot; 2]>,
    clock: Clock,
    expires: bool,
}

fn store_options() -> Options {
    Options { durability: Durability::Process, delta_chain_max: 3, segment_bytes: 256 << 10, ..options() }
}

impl Twins {
    fn new(seed: u64, expires: bool) -> Twins {
        let sims = [(); 2].map(|()| CrashSim::new(CrashModel::Pages, 32 << 20));
        let clock = Clock::manual(1_000 + seed);
        let mut twins =
            Twins { sims, dbs: [None, None], tables: Vec::new(), snapshots: Vec::new(), clock, expires };
        twins.open();
        for db in twins.dbs.iter().flatten() {
            twins.tables.push(db.create_table("t", schema()).unwrap());
        }
        twins.load();
        twins
    }

    fn open(&mut self) {
        for ((db, sim), capacity) in
            self.dbs.iter_mut().zip(&self.sims).zip([Capacity::Beside, Capacity::None])
        {
            let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
            let options = Options { capacity, ..store_options() };
            *db = Some(Db::open_at(tiers, options, self.clock.clone()).unwrap());
        }
    }

    pub(crate) fn reopen(&mut self, kill: bool) {
        self.snapshots.clear();
        self.tables.clear();
        for (db, sim) in self.dbs.iter_mut().zip(&mut self.sims) {
            let db = db.take().unwrap();
            if kill {
                *sim = CrashSim::from_image(&sim.process_kill());
                drop(db);
            } else {
                db.close().unwrap();
            }
        }
        self.open();
        self.tables = self.dbs.iter().flatten().map(|db| db.table("t").unwrap()).collect();
    }

    /// Every second key, some of which expire.
    fn load(&self) {
        let expiry = |n: u64| match self.expires && n.is_multiple_of(6) {
            true => Expiry::at_unix_ms(self.clock.now_ms() + 50 + n),
            false => Expiry::Never,
        };
        let fields = |n: u64| row! { n: n as i64, text: "from below" };
        let rows = (0..KEYS).filter(|n| n.is_multiple_of(2));
        let load = |loader: &mut crate::Loader<'_>| {
            rows.clone().try_for_each(|n| loader.push_expiring(&n, &fields(n), expiry(n)))
        };
        self.tables[0].load(load).unwrap();
        self.tables[1].clear().unwrap();
        rows.for_each(|n| self.tables[1].put_expiring(&n, &fields(n), expiry(n)).unwrap());
    }

    /// Does the same to both.
    fn both<R: PartialEq + std::fmt::Debug>(&self, what: &str, call: impl Fn(&Table) -> R) {
        let [lower, put] = [&self.tables[0], &self.tables[1]].map(call);
        assert_eq!(lower, put, "{what}");
    }

    fn check(&self, seed: u64) {
        let of = |row: Option<Row>| row.map(|row| fields_of(&row));
        for n in 0..KEYS {
            self.both(&format!("seed {seed}: row {n}"), |table| of(table.get(&n).unwrap()));
            self.both(&format!("seed {seed}: exists {n}"), |table| table.exists(&n).unwrap());
        }
        let keys: Vec<u64> = (0..KEYS).collect();
        self.both("many", |table| table.multi_get(&keys).unwrap().into_iter().map(of).collect::<Vec<_>>());
        let scanned = |scan: Scan| -> Vec<_> {
            scan.map(|row| row.unwrap()).map(|row| (row.key().to_vec(), fields_of(&row))).collect()
        };
        for reverse in [false, true] {
            let way = |scan: Scan| if reverse { scan.reverse() } else { scan };
            self.both(&format!("seed {seed}: rows"), |table| scanned(way(table.scan())));
            for snapshots in &self.snapshots {
                let [lower, put] = [0, 1].map(|i| scanned(way(snapshots[i].scan(&self.tables[i]))));
                assert_eq!(lower, put, "seed {seed}: rows of a snapshot");
            }
        }
        self.both(&format!("seed {seed}: is empty"), Table::is_empty);
        for snapshots in &self.snapshots {
            for n in 0..KEYS {
                let [lower, put] = [0, 1].map(|i| of(snapshots[i].get(&self.tables[i], &n).unwrap()));
                assert_eq!(lower, put, "seed {seed}: row {n} in a snapshot");
            }
        }
        for db in self.dbs.iter().flatten() {
            db.check_counts().unwrap();
        }
    }
}

fn fields_of(row: &Row) -> (Vec<(String, OwnedValue)>, Option<std::time::SystemTime>) {
    (row.fields().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(), row.expires_at())
}

/// A batch of parts of all kinds: what, which row, which number.
fn batch_of(table: &Table, parts: &[[u64; 3]], expires_at: Option<Expiry>) -> Batch {
    let mut batch = Batch::new();
    for &[what, n, v] in parts {
        let (v, expiry) = (v as i64, expires_at.unwrap_or(Expiry::Never));
        let added = match what {
            0 => batch.put(table, &n, &row! { n: v, text: "by a batch" }),
            1 => batch.put_expiring(table, &n, &row! { n: v }, expiry),
            2 | 3 => batch.update(table, &n, &row! { m: v }),
            4 => batch.update_expiring(table, &n, &row! { m: v }, expiry),
            5 => batch.expire(table, &n, expiry),
            6 => batch.delete(table, &n),
            7 => batch.update_existing(table, &n, &row! { m: v }),
            8 => batch.increment(table, &n, "n", v),
            9 => batch.compare_and_set(table, &n, "m", Value::Null, Value::Int(v)),
            _ => {
                let version = if v < 900 { table.version(&n).unwrap() } else { None };
                batch.require_version(table, &n, version)
            }
        };
        added.unwrap();
    }
    batch
}

/// One change of both stores, chosen at random.
fn change(twins: &mut Twins, random: &mut Random, seed: u64) {
    let n = random.below(KEYS);
    let (v, text) = (random.below(1_000) as i64, format!("text {}", random.below(50)));
    let at = Expiry::at_unix_ms(twins.clock.now_ms() + random.below(100));
    let what = random.below(24);
    let named = format!("seed {seed}: change {what} of {n}");
    let set = |table: &Table| table.update(&n, &row! { n: v }).unwrap();
    match what {
        0..=3 => twins.both(&named, set),
        4 => twins.both(&named, |table| table.update(&n, &row! { text: text.as_str() }).unwrap()),
        5 => twins.both(&named, |table| table.update(&n, &[("m", Value::Null)]).unwrap()),
        6 => twins.both(&named, |table| table.put(&n, &row! { n: v, text: text.as_str() }).unwrap()),
        7 => twins.both(&named, |table| table.delete(&n).unwrap()),
        8 => twins.both(&named, |table| table.remove(&n).unwrap()),
        9 => twins.both(&named, |table| table.update_existing(&n, &row! { m: v }).unwrap()),
        10 => twins.both(&named, |table| table.increment(&n, "m", 3).unwrap()),
        11 => twins.both(&named, |table| {
            table.compare_and_set(&n, "n", Value::Int(n as i64), Value::Int(v)).unwrap()
        }),
        12 => twins.both(&named, |table| {
            let change = |row: Option<&crate::RowRef<'_>>| {
                Ok(match row {
                    Some(row) if row.get_as::<i64>("n")? % 2 == 0 => (Change::Delete, true),
                    _ => (Change::update(&row! { m: v }), false),
                })
            };
            table.modify(&n, change).unwrap()
        }),
        13 if twins.expires => twins.both(&named, |table| table.expire(&n, at).unwrap()),
        14 if twins.expires => {
            twins.both(&named, |table| table.update_expiring(&n, &[("m", Value::Int(v))], at).unwrap());
        }
        15 if twins.expires => {
            twins.clock.advance_ms(random.below(40));
        }
        16..=18 => {
            let parts: Vec<[u64; 3]> = (0..1 + random.below(5))
                .map(|_| [11, KEYS, 1_000].map(|below| random.below(below)))
                .collect();
            let [lower, put] = [0, 1].map(|i| {
                let batch = batch_of(&twins.tables[i], &parts, twins.expires.then_some(at));
                let written = twins.dbs[i].as_ref().unwrap().write(batch);
                written.map_err(|error| (error.kind(), error.failed_write().map(|part| part.position)))
            });
            assert_eq!(lower, put, "{named}: {parts:?}");
        }
        19 => {
            let [lower, put] = [0, 1].map(|i| twins.dbs[i].as_ref().unwrap().snapshot());
            twins.snapshots.push([lower, put]);
        }
        20 => drop(twins.snapshots.pop()),
        21 => {
            for db in twins.dbs.iter().flatten() {
                db.collect().unwrap();
            }
        }
        22 => twins
            .both(&named, |table| table.get_fields(&n, &["m", "n"]).unwrap().map(|row| fields_of(&row).0)),
        _ => {}
    }
}

/// Runs lists of changes, with what `now_and_then` does besides.
pub(crate) fn alike(seeds: std::ops::Range<u64>, expires: bool, now_and_then: impl Fn(&mut Twins, u64)) {
    for seed in seeds {
        let (mut twins, mut random) = (Twins::new(seed, expires), Random::from_seed(seed));
        for step in 0..250 {
            change(&mut twins, &mut random, seed);
            if random.below(60) == 0 {
                now_and_then(&mut twins, step);
            }
            if step % 25 == 0 {
                twins.check(seed);
            }
        }
        twins.check(seed);
    }
}

#[test]
fn a_loaded_table_answers_as_one_that_was_filled() {
    alike(0..12, false, |_, _| ());
    alike(12..24, true, |_, _| ());
}

#[test]
fn so_it_does_when_it_is_opened_again() {
    alike(30..40, false, |twins, step| twins.reopen(step.is_multiple_of(2)));
    alike(40..50, true, |twins, step| twins.reopen(step.is_multiple_of(2)));
}

#[test]
fn so_it_does_when_it_is_loaded_again_or_gets_fields() {
    alike(60..70, true, |twins, step| match step.is_multiple_of(2) {
        true => twins.load(),
        false => {
            let name = format!("new{step}");
            twins.both("a field", |table| table.add_field(&name, Type::I64).unwrap());
        }
    });
}

fn loaded() -> (CrashSim, Db, Table) {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let db = Db::open_at(tiers, store_options(), Clock::manual(1_000)).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    table.load(|loader| (0..KEYS).try_for_each(|n| loader.push(&n, &row! { n: n as i64 }))).unwrap();
    (sim, db, table)
}

/// A table's number changes before its index is empty: what is found in the index until then does not go over what the new number has.
#[test]
fn blind_deltas_go_over_nothing_but_what_their_table_had() {
    let (_sim, db, table) = loaded();
    let other = db.create_table("other", schema()).unwrap();
    other.load(|loader| loader.push(&7u64, &row! { n: 70 })).unwrap();
    table.update(&7u64, &row! { text: "of the old" }).unwrap();
    let snapshot = db.snapshot();
    let id = other.shared().id.load(Ordering::Relaxed);
    table.shared().begin_replacing();
    table.shared().id.store(id, Ordering::Release);
    let read = |row: Option<Row>| {
        row.map(|row| (row.get("n").unwrap().to_owned(), row.get("text").unwrap().to_owned()))
    };
    std::thread::scope(|scope| {
        let now = scope.spawn(|| read(table.get(&7u64).unwrap()));
        let before = scope.spawn(|| read(snapshot.get(&table, &7u64).unwrap()));
        std::thread::sleep(std::time::Duration::from_millis(50));
        table.shared().levels.clear(&table.engine().log);
        table.shared().end_replacing();
        let new = Some((OwnedValue::Int(70), OwnedValue::Null));
        assert_eq!((now.join().unwrap(), before.join().unwrap()), (new.clone(), new));
    });
    table.shared().id.store(1, Ordering::Release);
}

/// A drop keeps the table's number, and what took its rows off may fail: who still has the table finds none of them, not even those that were deleted.
#[test]
fn a_table_that_was_dropped_has_nothing_below() {
    let (sim, db, table) = loaded();
    assert!(table.delete(&7u64).unwrap());
    sim.fail_file_calls(FileCall::Write, Fault { after: 0, sticky: true, refusal: Refusal::NoSpace });
    assert!(db.drop_table("t").unwrap());
    assert!(table.get(&7u64).unwrap().is_none() && table.get(&8u64).unwrap().is_none());
    assert_eq!((table.scan().count(), table.len()), (0, 0));
}

/// However often a row that is below is updated, and if it is removed, nobody reads it for that.
#[test]
fn updates_of_rows_below_read_nothing() {
    let (sim, db, table) = loaded();
    let slot = |n: u64| {
        let guard = db.engine.log.pin();
        table.shared().levels.locate(n.key_bytes().as_ref(), &guard).and_then(crate::index::Slot::in_log)
    };
    sim.fail_file_calls(FileCall::Read, Fault { after: 0, sticky: true, refusal: Refusal::Io });
    for n in 0..20i64 {
        table.update(&7u64, &row! { n: n, text: "x" }).unwrap();
        let slot = slot(7).unwrap();
        assert_eq!((slot.tag(), slot.depth() <= 3), (Tag::Blind, true));
        let mut batch = Batch::new();
        batch.update(&table, &8u64, &row! { n: n }).unwrap();
        db.write(batch).unwrap();
    }
    // There, with a blind delta over it, and nowhere.
    let tombstones = [6u64, 8, 1_000_000].map(|n| {
        table.remove(&n).unwrap();
        table.remove(&n).unwrap();
        slot(n).is_some_and(|slot| slot.tag() == Tag::Tombstone && slot.hides_below())
    });
    assert_eq!(tombstones, [true, true, false]);
    assert!(!table.exists(&6u64).unwrap() && table.get(&8u64).unwrap().is_none());
    db.collect().unwrap();
    assert_eq!(table.get_fields(&7u64, &["text"]).unwrap().unwrap().get_as::<&str>("text").unwrap(), "x");
    assert_eq!(table.get(&9u64).unwrap_err().kind(), crate::ErrorKind::Io);
}

const COLD_ROWS: u64 = 2_000;

/// A store of which two of three rows are below, with a delta over some, and nothing of those in memory.
fn cold() -> (CrashSim, Db, Table) {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let open = |sim: &CrashSim| {
        let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
        let options = Options { compression: Compression::None, ..store_options() };
        Db::open_at(tiers, options, Clock::manual(1_000)).unwrap()
    };
    let db = open(&sim);
    let table = db.create_table("t", schema()).unwrap();
    let text = "x".repeat(500);
    let cold_row = |n: u64| row! { n: n as i64, text: &text[..400 + n as usize % 100] };
    let below = (0..COLD_ROWS).filter(|n| !n.is_multiple_of(3));
    table.load(|loader| below.clone().try_for_each(|n| loader.push(&n, &cold_row(n)))).unwrap();
    (0..COLD_ROWS).step_by(3).for_each(|n| table.put(&n, &cold_row(n)).unwrap());
    below.filter(|n| n.is_multiple_of(5)).for_each(|n| {
        table.update(&n, &row! { m: 7 }).unwrap();
    });
    drop(table);
    db.close().unwrap();
    let sim = CrashSim::from_image(&sim.process_kill());
    let db = open(&sim);
    sim.files_at_hand(false);
    let table = db.table("t").unwrap();
    (sim, db, table)
}

fn number_of(row: Option<&RowRef<'_>>) -> crate::Result<Option<i64>> {
    row.map(|row| row.get_as::<i64>("n")).transpose()
}

/// What many keys need of the disk is read together, and once: one wait for blocks of the index, and one for those of the data.
#[test]
fn many_rows_below_are_waited_for_together() {
    let keys: Vec<u64> = (0..240).map(|n| COLD_ROWS + 200 - 9 * n).collect();
    for of_snapshot in [false, true] {
        let (sim, db, table) = cold();
        let snapshot = db.snapshot();
        let (before, mut numbers) = (sim.file_waits(), Vec::new());
        let read = |row: Option<&RowRef<'_>>| {
            numbers.push(number_of(row)?);
            Ok(())
        };
        match of_snapshot {
            false => table.read_many(&keys, read).unwrap(),
            true => snapshot.read_many(&table, &keys, read).unwrap(),
        }
        let there = |n: &u64| (*n < COLD_ROWS).then_some(*n as i64);
        assert_eq!(numbers, keys.iter().map(there).collect::<Vec<_>>());
        let waits = sim.file_waits() - before;
        assert!(keys.len() < LOOKED_FOR_TOGETHER && waits == 1, "{waits} waits for {} keys", keys.len());
    }
}

/// [`crate::db::read`] looks for so many at a time.
const LOOKED_FOR_TOGETHER: usize = 256;

/// What cannot be read is an error of the key that needs it, after those before it, and of those alone.
#[test]
fn of_many_rows_those_before_a_damaged_one_are_read() {
    let (sim, _db, table) = cold();
    let name = sim.process_kill().file_names().into_iter().find(|name| name.ends_with(".sst")).unwrap();
    sim.corrupt_file(&name, 20 * 4096 + 100, 1);
    let damaged: Vec<u64> = (0..COLD_ROWS).filter(|n| table.get(n).is_err()).collect();
    assert!((5..40).contains(&damaged.len()), "{damaged:?}");
    let keys: Vec<u64> = (0..COLD_ROWS).collect();
    let mut visited = 0;
    let read = table.read_many(&keys, |row| {
        assert_eq!(number_of(row)?, Some(visited as i64));
        visited += 1;
        Ok(())
    });
    assert_eq!(read.unwrap_err().kind(), crate::ErrorKind::Corrupted);
    assert_eq!(visited, damaged[0]);
    let sound: Vec<u64> = keys.into_iter().filter(|n| !damaged.contains(n)).collect();
    assert!(table.multi_get(&sound).unwrap().iter().all(Option::is_some));
}

/// Rows that change between the reading ahead and the look are found as they are.
#[test]
fn what_was_read_ahead_is_not_taken_for_what_changed_since() {
    let (_sim, _db, table) = cold();
    let keys: Vec<u64> = (0..100).collect();
    let mut visited = 0;
    table
        .read_many(&keys, |row| {
            let expected = if visited > 50 && visited % 2 == 0 { None } else { Some(visited as i64) };
            assert_eq!(number_of(row)?, if visited > 50 && visited % 7 == 0 { Some(-1) } else { expected });
            if visited == 20 {
                (51..100u64).filter(|n| n.is_multiple_of(2)).try_for_each(|n| table.delete(&n).map(drop))?;
                (51..100u64)
                    .filter(|n| n.is_multiple_of(7))
                    .try_for_each(|n| table.update(&n, &row! { n: -1 }).map(drop))?;
            }
            visited += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(visited, 100);
}

/// Blocks of later keys are read while rows are, not of all keys before the first row; and where rows move meanwhile, what is left is looked up in what counts then.
#[test]
fn rows_of_a_call_are_read_while_later_ones_are_looked_up() {
    for moves in [false, true] {
        let (_sim, db, table) = cold();
        let misses = || db.metrics().sorted_tables.block_cache_misses;
        let keys: Vec<u64> = (0..COLD_ROWS).filter(|n| moves || !n.is_multiple_of(3)).collect();
        let (before, mut asked) = (misses(), Vec::new());
        table
            .read_many(&keys, |row| {
                assert_eq!(number_of(row)?, Some(keys[asked.len()] as i64));
                asked.push(misses() - before);
                if moves && asked.len() % 500 == 100 {
                    table.put(&0u64, &row! { n: 0, text: "x" })?;
                    db.engine.move_now();
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(asked.len(), keys.len());
        if !moves {
            assert!(asked[0] * 2 < asked[1_200], "{} and {} blocks", asked[0], asked[1_200]);
            let rises = asked[..700].windows(101).filter(|some| some[0] < some[100]).count();
            assert_eq!(rises, 600, "with each hundred rows more blocks");
        }
    }
}

/// Makes a call until it lacks nothing, as who must not wait does; how often it was put off. What is refused changed nothing, and waited for nothing.
fn at_hand<R>(sim: &CrashSim, db: &Db, call: impl Fn() -> crate::Result<R>) -> (R, usize) {
    for put_off in 0..100 {
        let (waits, sequence) = (sim.file_waits(), db.engine.log.last_sequence());
        let only = db.at_hand_only();
        let answer = call();
        drop(only);
        assert_eq!(sim.file_waits(), waits, "it waited");
        let missing = db.take_missing();
        let error = match answer {
            Ok(answer) => return (answer, put_off),
            Err(error) => error,
        };
        assert_eq!((error.kind(), db.engine.log.last_sequence()), (crate::ErrorKind::NotInMemory, sequence));
        let mut missing = missing.expect("an error without a list");
        std::thread::scope(|scope| scope.spawn(|| (missing.ask(), missing.bring())).join().unwrap());
        missing.hold();
    }
    panic!("what is brought is not there")
}

type Call = (&'static str, fn(&Db, &Table, u64) -> crate::Result<String>);

/// Calls that look at rows below. Each is made with a key of its own, which is below.
const CALLS: &[Call] = &[
    ("get", |_, table, n| Ok(format!("{:?}", table.get(&n)?.map(|row| fields_of(&row))))),
    ("fields", |_, table, n| Ok(format!("{:?}", table.get_fields(&n, &["n"])?.map(|row| fields_of(&row))))),
    ("exists", |_, table, n| Ok(table.exists(&n)?.to_string())),
    ("version", |_, table, n| Ok(table.version(&n)?.is_some().to_string())),
    ("delete", |_, table, n| Ok(table.delete(&n)?.to_string())),
    ("update_existing", |_, table, n| Ok(format!("{:?}", table.update_existing(&n, &row! { m: 3 })?))),
    ("increment", |_, table, n| Ok(table.increment(&n, "n", 5)?.to_string())),
    ("compare_and_set", |_, table, n| {
        let set = table.compare_and_set(&n, "n", Value::Int(n as i64), Value::Int(-1))?;
        Ok(format!("{set:?}"))
    }),
    ("modify", |_, table, n| {
        table.modify(&n, |row| {
            let number = row.map(|row| row.get_as::<i64>("n")).transpose()?;
            Ok((Change::update(&row! { m: 9 }), format!("{number:?}")))
        })
    }),
    ("expire", |_, table, n| Ok(table.expire(&n, Expiry::at_unix_ms(1 << 50))?.to_string())),
    ("update_expiring", |_, table, n| {
        table.update_expiring(&n, &row! { m: 1 }, Expiry::at_unix_ms(1 << 50)).map(|()| String::new())
    }),
    ("batch", |db, table, n| {
        let mut batch = Batch::new();
        batch.increment(table, &n, "n", 1)?;
        batch.update(table, &(n + 300), &row! { m: 4 })?;
        batch.expire(table, &(n + 600), Expiry::at_unix_ms(1 << 50))?;
        db.write(batch).map(|_| String::new())
    }),
    ("many", |_, table, n| {
        let keys: Vec<u64> = (0..150).map(|i| n + 7 * i).collect();
        Ok(format!(
            "{:?}",
            table.multi_get(&keys)?.into_iter().map(|row| row.map(|row| fields_of(&row))).collect::<Vec<_>>()
        ))
    }),
    ("snapshot", |db, table, n| {
        Ok(format!("{:?}", db.snapshot().get(table, &n)?.map(|row| fields_of(&row))))
    }),
    ("scan", |_, table, n| {
        let rows: crate::Result<Vec<Row>> = table.scan().from(&n).limit(90).collect();
        Ok(format!("{:?}", rows?.iter().map(fields_of).collect::<Vec<_>>()))
    }),
    ("scan back", |_, table, n| {
        let rows: crate::Result<Vec<Row>> = table.scan().range(..n).reverse().limit(90).collect();
        Ok(format!("{:?}", rows?.iter().map(fields_of).collect::<Vec<_>>()))
    }),
    ("scan of fields", |_, table, n| {
        let mut sum = 0;
        let visit = |_: &[u8], row: &RowRef<'_>| {
            sum += row.get_as::<i64>("n")?;
            Ok(true)
        };
        table.scan().from(&n).limit(20).for_each(visit)?;
        Ok(sum.to_string())
    }),
];

/// Who must not wait is refused, whatever the call, until what it lacks was brought; then it has the answer of who waits.
#[test]
fn who_must_not_wait_is_refused_until_rows_below_are_brought() {
    for (i, (name, call)) in CALLS.iter().enumerate() {
        // Of the rows with a delta in the log, and of those without.
        for n in [700 + 15 * i as u64 + 1, 700 + 15 * i as u64] {
            let [(sim, db, table), (_other_sim, other_db, other)] = [cold(), cold()];
            let (answer, put_off) = at_hand(&sim, &db, || call(&db, &table, n));
            assert_eq!(answer, call(&other_db, &other, n).unwrap(), "{name} of {n}");
            // A delta in the log may be all that the call has to know of.
            assert!(
                (usize::from(n % 5 != 0)..=6).contains(&put_off),
                "{name} of {n}: put off {put_off} times"
            );
            sim.files_at_hand(true);
            for n in 0..COLD_ROWS {
                let [row, expected] = [&table, &other].map(|table| table.get(&n).unwrap());
                assert_eq!(row.as_ref().map(fields_of), expected.as_ref().map(fields_of), "{name}: row {n}");
            }
        }
    }
}

/// A scan of more than the cache of blocks keeps ends: what was brought for it is held until it was made again.
#[test]
fn what_was_brought_is_there_however_little_the_cache_keeps() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let options = Options { compression: Compression::None, cache_bytes: 0, ..store_options() };
    let db = Db::open_at(tiers, options, Clock::manual(1_000)).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    let text = "x".repeat(60_000);
    let rows = 0..160u64;
    table
        .load(|loader| rows.clone().try_for_each(|n| loader.push(&n, &row! { n: 1, text: &text[..] })))
        .unwrap();
    sim.files_at_hand(false);
    let (sum, put_off) = at_hand(&sim, &db, || {
        let mut sum = 0;
        table.scan().for_each(|_, row| {
            sum += row.get_as::<i64>("n")?;
            Ok(true)
        })?;
        Ok(sum)
    });
    assert_eq!(sum, 160);
    assert!(put_off > 30, "9.6 MB in files of 256 KiB, beside a cache of 8 MiB: put off {put_off} times");
    assert!(db.take_missing().is_none(), "what was held went with the call");
}

/// A thread that waits, and for which something was brought before: a scan sees all that there is, whether that has it or not.
#[test]
fn a_scan_sees_all_whatever_was_brought_before_it() {
    let (_sim, db, table) = cold();
    let bring = |db: &Db, table: &Table| {
        let only = db.at_hand_only();
        assert!((0..COLD_ROWS).rev().any(|n| table.get(&n).is_err()));
        drop(only);
        let mut missing = db.take_missing().unwrap();
        std::thread::scope(|threads| threads.spawn(|| missing.bring()).join().unwrap());
        missing.hold();
    };
    bring(&db, &table);
    assert_eq!(table.scan().map(Result::unwrap).count() as u64, COLD_ROWS);
    let (_sim, db, table) = cold();
    bring(&db, &table);
    assert_eq!(db.snapshot().scan(&table).reverse().map(Result::unwrap).count() as u64, COLD_ROWS);
}

/// A scan that read what was at hand goes on once it may wait, or once what it lacked was brought.
#[test]
fn a_scan_that_began_at_hand_goes_on_by_waiting() {
    let mut went_on = 0;
    for first in [1, 3, 6, 12, 24] {
        let (_sim, db, table) = cold();
        // The first blocks are known.
        (0..20u64).for_each(|n| drop(table.get(&n).unwrap()));
        let key_of = |row: crate::Result<crate::Row>| row.map(|row| row.key().to_vec());
        let mut scan = table.scan();
        let only = db.at_hand_only();
        let begun: crate::Result<Vec<_>> = scan.by_ref().take(first).map(key_of).collect();
        drop(only);
        drop(db.take_missing());
        let Ok(mut seen) = begun else { continue };
        seen.extend(scan.map(|row| key_of(row).unwrap()));
        let expected: Vec<_> = table.scan().map(|row| key_of(row).unwrap()).collect();
        assert_eq!(expected.len() as u64, COLD_ROWS);
        assert!(seen == expected, "{} of {} rows", seen.len(), expected.len());
        went_on += 1;
    }
    assert!(went_on > 1, "{went_on}");
}
