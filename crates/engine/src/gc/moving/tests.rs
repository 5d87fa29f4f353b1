//! Rows that move to sorted tables while others read and write them.

use std::cell::Cell;
use std::collections::BTreeMap;

use hedgerow_device::{
    CapacityTier, Clock, CrashModel, CrashSim, FastTier, Fault, Random, Refusal, Survivors,
};
use hedgerow_sim::eventually;

use super::pressure::{LONG_SNAPSHOT_MS, landing, move_bytes};
use super::{MoveKind, MovedFrom, MovingTables, Pending};
use crate::db::engine::Engine;
use crate::db::fixture::options;
use crate::db::lower::tests::{Twins, alike};
use crate::db::shared_table::expiring::Pass;
use crate::gc::victims::{Chosen, Need};
use crate::scheduler::controller::Look;
use crate::space::Claim;
use crate::{
    Db, Durability, ErrorKind, Expiry, Key, Options, Result, Schema, Snapshot, Table, Type, Value, row,
};

#[test]
fn a_store_whose_rows_move_answers_as_one_whose_do_not() {
    let now_and_then = |twins: &mut Twins, _| twins.tables[0].engine().move_now();
    alike(100..112, false, now_and_then);
    alike(112..124, true, now_and_then);
}

#[test]
fn so_it_does_when_it_is_opened_again_after_a_move() {
    for expires in [false, true] {
        let seeds = if expires { 130..140 } else { 140..150 };
        alike(seeds, expires, |twins, step| {
            twins.tables[0].engine().move_now();
            if step.is_multiple_of(3) {
                twins.reopen(step.is_multiple_of(2));
            }
        });
    }
}

/// Rows that were found below stay in memory, and are not taken for what came of them since.
#[test]
fn so_it_does_with_rows_in_memory_that_were_below() {
    let hits = Cell::new(0);
    let take_in_and_move = |twins: &mut Twins, step: u64| {
        let engine = twins.tables[0].engine();
        engine.tend_cache();
        if step.is_multiple_of(4) {
            engine.move_now();
        }
        hits.set(hits.get() + engine.runs.record_cache().map_or(0, |records| records.hits()));
    };
    alike(150..162, false, take_in_and_move);
    alike(162..174, true, take_in_and_move);
    assert!(hits.get() > 1_000, "{} looks were answered by them", hits.get());
}

/// Who asks for a row again and again is answered without a look into files, whatever becomes of it.
#[test]
fn a_row_that_is_asked_for_again_is_in_memory_until_it_changes_and_moves() {
    let mut tight = Tight::new();
    let table = tight.table.take().unwrap();
    let engine = table.engine();
    let lower = || engine.metrics().sorted_tables;
    let get = |n: u64| table.get_field(&n, "n").unwrap().map(|n| n.borrow().as_i64().unwrap());
    (0..100u64).for_each(|n| table.put(&n, &row! { n: n as i64, text: "abc" }).unwrap());
    engine.move_now();
    for _ in 0..2 {
        assert!((0..100).all(|n| get(n) == Some(n as i64)));
        engine.tend_cache();
    }
    let before = lower();
    assert_eq!((before.record_cache_hits, before.looks), (0, 200));
    assert!(
        before.record_cache_bytes > 100 * 64 && before.record_cache_bytes <= before.record_cache_bytes_max
    );
    assert!((0..100).all(|n| get(n) == Some(n as i64)));
    let keys: Vec<u64> = (0..100).collect();
    let rows = table.multi_get(&keys).unwrap();
    assert!(rows.iter().zip(0..).all(|(row, n)| row.as_ref().unwrap().get_as::<i64>("n").unwrap() == n));
    assert_eq!((lower().record_cache_hits, lower().looks), (200, 200), "no file was looked into");
    // What is over it in the log counts, and then what came of both.
    table.update(&1, &row! { n: 11 }).unwrap();
    table.put(&2, &row! { n: 22 }).unwrap();
    table.delete(&3).unwrap();
    let changed = || [1, 2, 3, 4].map(get) == [Some(11), Some(22), None, Some(4)];
    assert!(changed());
    engine.move_now();
    assert!(changed() && changed());
    engine.tend_cache();
    assert!(changed());
    let snapshot = engine.snapshots.hold_oldest();
    table.put(&1, &row! { n: 12 }).unwrap();
    engine.move_now();
    assert_eq!(get(1), Some(12));
    drop(snapshot);
    table.clear().unwrap();
    assert!((0..100).all(|n| get(n).is_none()));
}

/// A row of which a newer run has a delta is two reads of the disk: both stay in memory together, until they change.
#[test]
fn a_row_with_deltas_over_it_stays_in_memory_with_them() {
    let mut tight = Tight::new();
    let table = tight.table.take().unwrap();
    let engine = table.engine();
    let lower = || engine.metrics().sorted_tables;
    let row = |n: u64| {
        let row = table.get(&n).unwrap().unwrap();
        (row.get_as::<i64>("n").unwrap(), row.get_as::<String>("text").unwrap())
    };
    let keys = || 0..50u64;
    keys().for_each(|n| table.put(&n, &row! { n: n as i64, text: "abc" }).unwrap());
    engine.move_now();
    for deltas in [1, 2] {
        keys().for_each(|n| table.update(&n, &row! { n: (n + 100 * deltas) as i64 }).unwrap());
        engine.move_now();
        let is_as_written = || keys().all(|n| row(n) == ((n + 100 * deltas) as i64, "abc".to_owned()));
        for _ in 0..3 {
            assert!(is_as_written());
            engine.tend_cache();
        }
        let before = lower();
        assert!(is_as_written());
        let after = lower();
        assert_eq!(
            (after.record_cache_hits - before.record_cache_hits, after.looks - before.looks),
            (50, 0),
            "{deltas} deltas"
        );
    }
    table.update(&7, &row! { text: "new" }).unwrap();
    assert_eq!((row(7), row(8)), ((207, "new".to_owned()), (208, "abc".to_owned())));
    // A field that expires is no more than a delta says: its delta does not stay.
    table.update_expiring(&9, &row! { text: "soon" }, Expiry::at_unix_ms(5_000)).unwrap();
    engine.move_now();
    assert_eq!((row(7), row(9)), ((207, "new".to_owned()), (209, "soon".to_owned())));
    let hits = lower().record_cache_hits;
    for _ in 0..4 {
        assert_eq!(row(9).1, "soon");
        engine.tend_cache();
    }
    assert_eq!(lower().record_cache_hits, hits);
}

/// What the rows of a store should be.
type Model = BTreeMap<u64, (i64, String)>;

/// A store with far more rows than its fast tier holds, and what it should have.
pub(crate) struct Tight {
    sim: CrashSim,
    db: Option<Db>,
    pub(crate) table: Option<Table>,
    model: Model,
    snapshot: Option<(Snapshot, Model)>,
    /// Records, by what was opened before.
    moved: u64,
}

pub(crate) const FAST_BYTES: u64 = 8 << 20;
const KEYS: u64 = 30_000;

fn tight_options(background: bool) -> Options {
    Options {
        durability: Durability::Process,
        segment_bytes: 256 << 10,
        fast_tier_bytes_max: FAST_BYTES,
        background,
        ..options()
    }
}

impl Tight {
    pub(crate) fn new() -> Tight {
        let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
        let mut tight =
            Tight { sim, db: None, table: None, model: BTreeMap::new(), snapshot: None, moved: 0 };
        tight.open();
        let schema = Schema::new().field("n", Type::I64).nullable("text", Type::String);
        tight.table = Some(tight.db.as_ref().unwrap().create_table("t", schema).unwrap());
        tight
    }

    fn open(&mut self) {
        let tiers = (FastTier::simulated(&self.sim), CapacityTier::simulated(&self.sim));
        let db = Db::open_at(tiers, tight_options(false), Clock::manual(1_000)).unwrap();
        self.table = db.table("t").ok();
        self.db = Some(db);
    }

    pub(crate) fn kill(&mut self) {
        self.snapshot = None;
        self.moved += self.table.as_ref().unwrap().engine().gc.moved().0;
        self.sim = CrashSim::from_image(&self.sim.process_kill());
        self.table = None;
        drop(self.db.take());
        self.open();
    }

    /// Does it; when the store is full, after rows have moved.
    fn write<R>(&mut self, write: impl Fn(&Table) -> Result<R>) -> R {
        for _ in 0..20 {
            match write(self.table.as_ref().unwrap()) {
                Ok(done) => return done,
                Err(error) if error.kind() == ErrorKind::Full => {
                    self.db.as_ref().unwrap().collect().unwrap();
                    // What it pins may be all that there is.
                    self.snapshot = self.snapshot.take().filter(|_| false);
                }
                Err(error) => panic!("{error}"),
            }
        }
        let table = self.table.as_ref().unwrap();
        panic!("still full: {:?}", write(table).err());
    }

    pub(crate) fn step(&mut self, random: &mut Random) {
        let (n, v) = (random.below(KEYS), random.below(1_000) as i64);
        let text = format!("{v:>0$}", 100 + random.below(900) as usize);
        match random.below(20) {
            0..=9 => {
                self.write(|table| table.put(&n.to_be_bytes(), &row! { n: v, text: text.as_str() }));
                self.model.insert(n, (v, text));
            }
            10..=13 => {
                self.write(|table| table.update(&n.to_be_bytes(), &row! { n: v, text: "short" }));
                self.model.insert(n, (v, "short".to_owned()));
            }
            14 | 15 => {
                let deleted = self.write(|table| table.delete(&n.to_be_bytes()));
                assert_eq!(deleted, self.model.remove(&n).is_some(), "row {n}");
            }
            16 => {
                let sum =
                    self.write(|table| table.increment(&n.to_be_bytes(), "n", 5).map(Some).or_else(absent));
                let known = self.model.get_mut(&n).map(|(n, _)| {
                    *n += 5;
                    *n
                });
                if let (Some(_), Some(known)) = (sum, known) {
                    assert_eq!(sum, Some(known), "row {n}");
                } else if known.is_none() {
                    // It made a row of nothing.
                    self.write(|table| table.delete(&n.to_be_bytes()));
                }
            }
            _ => {
                let found = self.table.as_ref().unwrap().get(&n.to_be_bytes()).unwrap();
                let found = found.map(|row| {
                    (row.get_as::<i64>("n").unwrap(), row.get_as::<&str>("text").unwrap().to_owned())
                });
                assert_eq!(found.as_ref(), self.model.get(&n), "row {n}");
            }
        }
    }

    pub(crate) fn check(&self) {
        let rows = |scan: crate::Scan| -> Model {
            scan.map(|row| row.unwrap())
                .map(|row| {
                    let n = u64::from_be_bytes(row.key().try_into().unwrap());
                    (n, (row.get_as("n").unwrap(), row.get_as::<&str>("text").unwrap().to_owned()))
                })
                .collect()
        };
        let table = self.table.as_ref().unwrap();
        assert!(rows(table.scan()) == self.model);
        assert!(rows(table.scan().reverse()) == self.model);
        if let Some((snapshot, model)) = &self.snapshot {
            assert!(rows(snapshot.scan(table)) == *model);
        }
        self.db.as_ref().unwrap().check_counts().unwrap();
    }
}

fn absent<T>(error: crate::Error) -> Result<Option<T>> {
    if error.kind() == ErrorKind::NotFound { Ok(None) } else { Err(error) }
}

#[test]
fn a_store_holds_more_than_its_fast_tier() {
    for seed in 0..3 {
        let (mut tight, mut random) = (Tight::new(), Random::from_seed(seed));
        for step in 1..=60_000 {
            tight.step(&mut random);
            if step % 10_000 == 0 {
                tight.check();
                tight.snapshot = None;
                if step % 20_000 == 0 {
                    tight.kill();
                    tight.check();
                } else {
                    let snapshot = tight.db.as_ref().unwrap().snapshot();
                    tight.snapshot = Some((snapshot, tight.model.clone()));
                }
            }
        }
        tight.check();
        let (moved, bytes) = tight.table.as_ref().unwrap().engine().gc.moved();
        assert!(tight.moved + moved > 10_000, "{} and {moved}, of {bytes} bytes", tight.moved);
    }
}

/// What the table has, by key.
pub(crate) type Content = BTreeMap<u64, (i64, Option<String>)>;

pub(crate) fn content(db: &Db) -> Content {
    let Ok(table) = db.table("t") else { return Content::new() };
    let scanned: Content = table
        .scan()
        .map(|row| row.unwrap())
        .map(|row| {
            let text = row.get_as::<Option<&str>>("text").unwrap().map(str::to_owned);
            (row.key_as::<u64>().unwrap(), (row.get_as("n").unwrap(), text))
        })
        .collect();
    for key in 0..SWEPT_KEYS {
        let row = table.get(&key).unwrap();
        let found = row.map(|row| row.get_as::<i64>("n").unwrap());
        assert_eq!(found, scanned.get(&key).map(|(n, _)| *n), "row {key} alone and in a scan");
    }
    scanned
}

const SWEPT_KEYS: u64 = 12;

fn immediate() -> Options {
    Options { durability: Durability::Immediate, ..tight_options(false) }
}

fn open_as(sim: &CrashSim, options: Options) -> Result<Db> {
    Db::open_at((FastTier::simulated(sim), CapacityTier::simulated(sim)), options, Clock::manual(1_000))
}

pub(crate) fn open_swept(sim: &CrashSim) -> Result<Db> {
    open_as(sim, immediate())
}

/// One change, or a move, or what holds victims up.
#[derive(Debug, Clone, Copy)]
enum Step {
    Put(u64, i64),
    Set(u64, i64),
    Delete(u64),
    Move,
    /// From here on somebody reads, or from here on nobody does.
    Pin,
    Unpin,
}

const STEPS: [Step; 49] = {
    use Step::{Delete, Move, Pin, Put, Set, Unpin};
    [
        Put(0, 100),
        Put(1, 101),
        Put(2, 102),
        Put(3, 103),
        Put(4, 104),
        Put(5, 105),
        Put(6, 106),
        Put(7, 107),
        Move,
        Set(0, 200),
        Delete(1),
        Put(2, 202),
        Set(9, 209),
        Move,
        Set(0, 300),
        Set(0, 301),
        Put(1, 301),
        Delete(2),
        Delete(3),
        Move,
        Delete(1),
        Put(3, 403),
        Set(4, 404),
        Move,
        Move,
        Set(4, 504),
        Delete(0),
        Move,
        // No victim is freed meanwhile: what moves has older records in the log that no key counts.
        Pin,
        Put(10, 700),
        Put(11, 701),
        Put(5, 705),
        Move,
        Put(10, 710),
        Put(10, 711),
        Delete(11),
        Delete(5),
        Move,
        Put(5, 720),
        Delete(5),
        Move,
        Unpin,
        Move,
        Put(10, 712),
        Move,
        Set(10, 800),
        Move,
        Delete(10),
        Move,
    ]
};

/// Puts a row with this number, and into what there should be.
pub(crate) fn put_swept(table: &Table, now: &mut Content, key: u64, n: i64) {
    table.put(&key, &row! { n: n, text: "put" }).unwrap();
    now.insert(key, (n, Some("put".to_owned())));
}

/// Sets the number of a row, which may not be there, as there should be.
pub(crate) fn set_swept(table: &Table, now: &mut Content, key: u64, n: i64) {
    table.update(&key, &row! { n: n }).unwrap();
    now.entry(key).or_insert((0, None)).0 = n;
}

/// Changes with moves in between; what there is after each, and after how many operations of the media.
fn script(sim: &CrashSim, db: &Db) -> Vec<(u64, Content)> {
    let schema = Schema::new().field("n", Type::I64).nullable("text", Type::String);
    let table = db.create_table("t", schema).unwrap();
    let (mut states, mut now, mut reader) = (vec![(sim.ops(), Content::new())], Content::new(), None);
    let gc = &table.engine().gc;
    let mut most_waiting = 0;
    for step in STEPS {
        match step {
            Step::Put(key, n) => put_swept(&table, &mut now, key, n),
            Step::Set(key, n) => set_swept(&table, &mut now, key, n),
            Step::Delete(key) => assert_eq!(table.delete(&key).unwrap(), now.remove(&key).is_some()),
            Step::Move => table.engine().move_now(),
            Step::Pin => reader = Some(table.engine().epoch.pin()),
            Step::Unpin => drop(reader.take()),
        }
        assert_eq!(content(db), now, "{step:?}");
        db.check_counts().unwrap();
        most_waiting = most_waiting.max(gc.moved_from.lock().len());
        states.push((sim.ops(), now.clone()));
    }
    assert!(most_waiting > 2 && gc.moved_from.lock().is_empty());
    states
}

/// What is wrong with what a crash left, if anything is.
pub(crate) fn wrong_with(image: &hedgerow_device::Image, allowed: &[(u64, Content)]) -> Option<String> {
    let sim = CrashSim::from_image(image);
    let db = match open_swept(&sim) {
        Ok(db) => db,
        Err(error) => return Some(error.to_string()),
    };
    let found = content(&db);
    if allowed.iter().all(|(_, state)| *state != found) {
        return Some(format!("{found:?} instead of {allowed:?}"));
    }
    if let Err(error) = db.check_counts() {
        return Some(error.to_string());
    }
    // It goes on from there, whatever was left half done.
    let Ok(table) = db.table("t") else { return None };
    let mut expected = found;
    for key in expected.keys().copied().collect::<Vec<_>>() {
        match key % 3 {
            0 => drop(expected.remove(&key).map(|_| table.delete(&key).unwrap())),
            1 => {
                table.update(&key, &row! { n: 900 }).unwrap();
                expected.get_mut(&key).unwrap().0 = 900;
            }
            _ => {}
        }
    }
    (0..2).for_each(|_| table.engine().move_now());
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let left = CrashSim::from_image(&walk.image(Survivors::None, 0));
    let again = content(&open_swept(&left).unwrap());
    (again != expected).then(|| format!("{again:?} instead of {expected:?} after it went on"))
}

/// The images after each operation, until one is wrong. What was not synced a power cut may take back, if `loses`.
pub(crate) fn sweep(sim: &CrashSim, states: &[(u64, Content)], loses: bool) -> Option<String> {
    let mut walk = sim.walk();
    walk.seek(states[0].0);
    loop {
        let done = states.iter().rposition(|(at, _)| *at <= walk.op_index())?;
        for image in walk.images(&Survivors::EACH, 5) {
            let from = if loses && !image.same_boot { 0 } else { done };
            let allowed = &states[from..states.len().min(done + 2)];
            if let Some(wrong) = wrong_with(&image, allowed) {
                return Some(format!("after {} operations, {:?}: {wrong}", image.op_index, image.survivors));
            }
        }
        if !walk.next_op() {
            return None;
        }
    }
}

#[test]
fn a_cut_at_any_place_of_a_move_takes_nothing() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, FAST_BYTES);
        let states = script(&sim, &open_swept(&sim).unwrap());
        assert_eq!(sweep(&sim, &states, false), None, "{model:?}");
    }
}

/// Writes that are not synced: a power cut takes the last of them back, and sorted tables have none of those.
#[test]
fn a_cut_takes_back_what_moved_with_what_did_not() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let options = Options { durability: Durability::Process, ..immediate() };
    let states = script(&sim, &open_as(&sim, options).unwrap());
    assert_eq!(sweep(&sim, &states, true), None);
}

/// An expired row that left the index is counted nowhere, and its record is in the log for as long as its segment is: a younger record of its key stays, too.
#[test]
fn a_row_that_comes_after_one_that_expired_is_there_when_the_store_is_opened_again() {
    // Large enough for writers to have appenders of their own.
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let options = Options { fast_tier_bytes_max: 64 << 20, ..tight_options(false) };
    let clock = Clock::manual(1_000);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let db = Db::open_at(tiers, options.clone(), clock.clone()).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    let engine = table.engine();
    engine.log.use_all_appenders();
    table.put_expiring(&1u64, &row! { n: 1 }, Expiry::at_unix_ms(1_050)).unwrap();
    clock.advance_ms(100);
    engine.sweep(table.shared(), &mut Pass::default()).unwrap();
    assert!(table.shared().levels.locate(1u64.key_bytes().as_ref(), &engine.log.pin()).is_none(), "swept");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            table.put(&1u64, &row! { n: 2 }).unwrap();
            table.put(&2u64, &row! { n: 3 }).unwrap();
            engine.log.appender().seal_all(&engine.log);
        });
    });
    engine.move_sealed();
    assert!(engine.gc.moved().0 > 0, "the other row moved");
    let n = |table: &Table, key: u64| table.get(&key).unwrap().map(|row| row.get_as::<i64>("n").unwrap());
    assert_eq!((n(&table, 1), n(&table, 2)), (Some(2), Some(3)));
    let killed = CrashSim::from_image(&sim.process_kill());
    let tiers = (FastTier::simulated(&killed), CapacityTier::simulated(&killed));
    let table = Db::open_at(tiers, options, clock).unwrap().table("t").unwrap();
    assert_eq!((n(&table, 1), n(&table, 2)), (Some(2), Some(3)), "opened again");
}

/// A snapshot keeps what was emptied: writers are not held for room that nobody can make, until it goes.
#[test]
fn writers_are_not_paced_while_a_snapshot_holds_moves_up() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let clock = Clock::manual(1_000);
    let db = Db::open_at(tiers, tight_options(false), clock.clone()).unwrap();
    let schema = Schema::new().field("n", Type::I64).nullable("text", Type::String);
    let table = db.create_table("t", schema).unwrap();
    let (engine, text) = (table.engine(), "x".repeat(1_000));
    for n in 0..5_600u64 {
        table.put(&n, &row! { n: n as i64, text: text.as_str() }).unwrap();
    }
    let helps = || engine.can_move() && engine.moves_help();
    assert!(helps() && engine.is_short_of_landing());
    let snapshot = db.snapshot();
    assert!(helps(), "nothing waits for it");
    // As it is when the snapshot was taken while something moved.
    let pending = Pending { extent: 1, sequence: engine.log.last_sequence() + 1, epoch: 0, copied: 0 };
    let victim = MovedFrom { pending, number: 0, is_uncounted: false, is_durable: true, left: Vec::new() };
    engine.gc.moved_from.lock().push_back(victim);
    assert!(helps(), "it may go in a moment");
    clock.advance_ms(LONG_SNAPSHOT_MS);
    assert!(!helps());
    engine.gc.set_merge_share(0.125);
    assert!(engine.gc.merge_pause_ns(1_000) > 0);
    engine.pace_by_moves();
    assert_eq!(engine.gc.merge_pause_ns(1_000), 0, "merges make way for no moves");
    drop(snapshot);
    assert!(helps());
    engine.gc.moved_from.lock().clear();
}

/// What is to be free is what a move makes, and half as much; however large the tier is, and where nobody knows that.
#[test]
fn no_more_room_is_waited_for_than_a_move_makes() {
    let (small, large) = (256 << 10, 2 << 20);
    let of_extents = |extents: u32, eighths: u32, extent_bytes: u64| {
        let moved = move_bytes(extents, eighths, extent_bytes);
        (moved, u64::from(landing(extents, moved, extent_bytes)) * extent_bytes)
    };
    let of =
        |all: u64, extent_bytes: u64| of_extents(u32::try_from(all / extent_bytes).unwrap(), 1, extent_bytes);
    assert_eq!(of(8 << 20, small), (1 << 20, 1_536 << 10));
    assert_eq!(of(8 << 30, large), (1 << 30, 1_536 << 20));
    assert_eq!(of(4 << 40, large), (1 << 30, 1_536 << 20), "a disk of 4 TB");
    // The smallest that there may be.
    assert_eq!(of_extents(1, 1, large), (large, 2 * large));
    for extent_bytes in [small, large, 1 << 30] {
        assert_eq!(of_extents(u32::MAX, 1, extent_bytes).0, 1 << 30);
        assert!(of_extents(u32::MAX, 4, extent_bytes).1 <= 2 << 30);
    }
}

/// Moves that lag become larger, but only as far as there is room for writers until they end.
#[test]
fn a_larger_move_waits_until_writers_outlast_it() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let db = Db::open_at(tiers, tight_options(false), Clock::manual(1_000)).unwrap();
    let table = db.create_table("t", Schema::new().field("f", Type::Bytes)).unwrap();
    let engine = table.engine();
    let least = engine.bytes_to_move(u64::MAX);
    let lags = Look { missing: 1.0, is_moving: true, is_short: true };
    (1..=10).for_each(|tick| engine.gc.controller.record(lags, || 0.0, tick * 100_000_000));
    assert_eq!(engine.bytes_to_move(u64::MAX), 4 * least, "there is room");
    let (row, mut sizes) = ([7; 4_000], Vec::new());
    for n in 0u64.. {
        let available = engine.room().available;
        let outlasted = u64::from(available) * engine.log.extent_bytes() * 3 / 2;
        assert_eq!(engine.bytes_to_move(u64::MAX), outlasted.clamp(least, 4 * least), "{available} are free");
        sizes.push(engine.bytes_to_move(u64::MAX));
        if table.put(&n, &row! { f: &row[..] }).is_err() {
            break;
        }
    }
    sizes.dedup();
    assert!(sizes.len() > 2 && sizes.is_sorted_by(|one, next| one > next), "{sizes:?}");
}

/// Nor so large that it would take seconds, however much room there is; an eighth of the tier it may be.
#[test]
fn a_larger_move_takes_no_more_than_its_time() {
    let sim = CrashSim::new(CrashModel::Pages, 256 << 20);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let options = Options { fast_tier_bytes_max: 256 << 20, segment_bytes: 2 << 20, ..tight_options(false) };
    let db = Db::open_at(tiers, options, Clock::manual(1_000)).unwrap();
    let table = db.create_table("t", Schema::new().field("f", Type::Bytes)).unwrap();
    let engine = table.engine();
    let least = engine.bytes_to_move(u64::MAX);
    let landing = engine.landing_extents();
    let lags = Look { missing: 1.0, is_moving: true, is_short: true };
    (1..=10).for_each(|tick| engine.gc.controller.record(lags, || 0.0, tick * 100_000_000));
    let is_at = |moves: [u64; 2], least_times: u64| {
        // The first time costs are not known; then they are the mean of what was and what is.
        (0..40).for_each(|_| engine.gc.record_move(moves[0], moves[1]));
        let moved = engine.bytes_to_move(u64::MAX);
        let expected = least_times * least;
        assert!(moved.abs_diff(expected) * 50 < expected, "{moved} bytes at {moves:?}, expected {expected}");
        let more = (moved - least) / engine.log.extent_bytes();
        assert!(engine.landing_extents().abs_diff(landing + more as u32) <= 1);
    };
    is_at([1_000_000_000, 4 * least], 4);
    is_at([1_000_000_000, 2 * least], 2);
    is_at([1_000_000_000, least / 2], 1);
    is_at([1_000_000_000, 3 * least], 3);
}

/// Files of a bounded size, however much moves: a merge takes one by one.
#[test]
fn what_moves_at_once_is_in_several_files() {
    let mut tight = Tight::new();
    let table = tight.table.take().unwrap();
    let (runs, mut random) = (&table.engine().runs, Random::from_seed(1));
    for n in 0..2_000u64 {
        let text: String = (0..1_000).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
        table.put(&n, &row! { n: n as i64, text: text.as_str() }).unwrap();
    }
    table.engine().move_now();
    let bytes: Vec<u64> = runs.current().files().iter().map(|sst| sst.file_bytes().unwrap()).collect();
    assert_eq!(runs.current().runs().len(), 1);
    assert!(bytes.len() > 4 && bytes.iter().all(|bytes| *bytes < 512 << 10), "{bytes:?}");
}

/// A collection that somebody asks for goes by what is, and leaves how much moves as it was.
#[test]
fn what_is_done_by_hand_leaves_the_size_of_moves() {
    let (clock, sim) = (Clock::manual(1_000), CrashSim::new(CrashModel::Pages, FAST_BYTES));
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let db = Db::open_at(tiers, tight_options(false), clock.clone()).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::U64)).unwrap();
    let size = &table.engine().gc.controller;
    let lags = Look { missing: 1.0, is_moving: true, is_short: true };
    (1..=10).for_each(|tick| size.record(lags, || 0.0, tick * 100_000_000));
    assert_eq!(size.eighths(), 4);
    for n in 0..20u64 {
        table.put(&n, &row! { n: n }).unwrap();
        clock.advance_ms(200);
        db.collect().unwrap();
        db.move_rows(n % 2 == 0).unwrap();
    }
    assert_eq!(size.eighths(), 4);
}

/// Moves all that is there, and has `meanwhile` done between the look at what moves and the writing of it.
fn move_and_meanwhile(engine: &Engine, meanwhile: impl FnOnce()) {
    move_begun_within(engine, |begin| {
        begin();
        meanwhile();
    });
}

/// Moves all that is there when `around` calls what it is given, which looks at what moves; it is written afterwards.
pub(in crate::gc) fn move_begun_within(engine: &Engine, around: impl FnOnce(&mut dyn FnMut())) {
    let mut under_way = None;
    around(&mut || {
        let (mut appenders, gc) = engine.log.every_appender();
        appenders.iter_mut().for_each(|appender| appender.seal_all(&engine.log));
        drop((appenders, gc));
        let chosen = engine.choose_to_move(None);
        under_way = Some(engine.begin_move(&chosen, MoveKind::All, None).unwrap());
    });
    engine.end_move(under_way.expect("a move was begun")).unwrap();
    engine.settle(Vec::new()).unwrap();
}

/// A key that only a group has is counted as one, and no other.
pub(in crate::gc) fn check_sealed_rows(table: &Table, keys: std::ops::Range<u64>) {
    let (levels, guard) = (&table.shared().levels, table.engine().log.pin());
    let only_in_groups = |key: &u64| {
        let (mut slot, mut is_sealed) = ([None], [false]);
        levels.locate_versions(&[key.key_bytes().as_ref()], &guard, (&mut slot, &mut is_sealed));
        is_sealed[0]
    };
    assert_eq!(keys.filter(only_in_groups).count() as u64, levels.sealed_rows());
}

/// A medium that refuses more room, and is not full, has damaged nothing: what is held back is there for gc all the same, and what has no room even there leaves its segment later.
#[test]
fn a_refused_growth_gives_up_no_segment() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let options = Options { fast_tier_bytes_max: 64 << 20, ..tight_options(false) };
    let (db, now) = (Db::open_at(tiers, options, Clock::manual(1_000)).unwrap(), 40u64);
    let schema = Schema::new().field("n", Type::I64).nullable("text", Type::String);
    let table = db.create_table("t", schema).unwrap();
    (0..now).for_each(|n| table.put(&n, &row! { n: 1 }).unwrap());
    let engine = table.engine();
    move_and_meanwhile(engine, || {
        (0..now).step_by(8).for_each(|n| table.update(&n, &row! { n: 2 }).map(drop).unwrap());
        sim.fail_grows(Fault { after: 0, sticky: true, refusal: Refusal::Io });
    });
    assert_eq!((engine.gc.unfinished_moves(), engine.gc.moved_from.lock().len()), (0, 0));
    let mut free = Vec::new();
    while let Ok(Ok(extent)) = engine.log.space().take(1, Claim::LastExtent) {
        free.push(extent);
    }
    let refused = engine.log.space().take(1, Claim::Gc).expect_err("nothing is left");
    assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
    engine.seal_all();
    let victims: Vec<u32> = engine.log.candidates().iter().map(|(extent, ..)| *extent).collect();
    assert!(!victims.is_empty());
    let chosen = Chosen { victims, ..engine.choose(Need::Idle) };
    let (_, failure) = engine.empty_all(&chosen, None);
    assert_eq!(failure.map(|error| error.kind()), Some(ErrorKind::Io));
    assert_eq!(engine.log.segments_quarantined(), 0);
    free.into_iter().for_each(|extent| engine.log.space().free(extent..extent + 1));
    let value = |n: u64| Value::Int(if n.is_multiple_of(8) { 2 } else { 1 });
    (0..now).for_each(|n| assert_eq!(table.get(&n).unwrap().unwrap().get("n").unwrap(), value(n)));
}

/// What was written over a row on its way cannot be read: the segment that has the row stays, and what moves later is freed all the same. The rows that moved out of that segment do not come back
/// in place of newer ones, wherever a cut comes.
#[test]
fn a_victim_that_cannot_be_emptied_holds_up_no_other() {
    const ROT: u8 = 0x10;
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let db = open_swept(&sim).unwrap();
    let schema = Schema::new().field("n", Type::I64).nullable("text", Type::String);
    let (table, mut now) = (db.create_table("t", schema).unwrap(), Content::new());
    let engine = table.engine();
    (0..8).for_each(|key| put_swept(&table, &mut now, key, 100 + key as i64));
    let mut rotten = 0;
    move_and_meanwhile(engine, || {
        set_swept(&table, &mut now, 3, 203);
        let guard = engine.log.pin();
        rotten = table.shared().levels.locate(3u64.key_bytes().as_ref(), &guard).unwrap().log_offset() + 8;
        crate::tier::rot(&sim, rotten, ROT);
    });
    assert_eq!(table.get(&3u64).unwrap_err().kind(), ErrorKind::Corrupted);
    assert_eq!((engine.gc.moved().0, db.metrics().segments_quarantined), (7, 1));
    assert!(engine.gc.moved_from.lock().is_empty());
    // Rows of keys that moved out of it, and of others, some of them deleted.
    let mut states = vec![(sim.ops(), now.clone())];
    let changes: [&[(u64, Option<i64>)]; 4] = [
        &[(0, Some(300)), (1, None), (8, Some(308)), (9, Some(309))],
        &[(0, Some(400)), (2, Some(402)), (8, None), (10, Some(410))],
        &[(0, None), (2, Some(502)), (9, Some(509))],
        &[(2, None), (5, Some(605))],
    ];
    for group in changes {
        for &(key, n) in group {
            match n {
                Some(n) => put_swept(&table, &mut now, key, n),
                None => assert_eq!(table.delete(&key).unwrap(), now.remove(&key).is_some()),
            }
            states.push((sim.ops(), now.clone()));
        }
        engine.move_now();
        assert!(engine.gc.moved_from.lock().is_empty(), "what moved is freed");
        states.push((sim.ops(), now.clone()));
        for key in (0..SWEPT_KEYS).filter(|key| *key != 3) {
            let row = table.get(&key).unwrap();
            let n = row.map(|row| row.get_as::<i64>("n").unwrap());
            assert_eq!(n, now.get(&key).map(|(n, _)| *n), "row {key}");
        }
    }
    assert!(engine.gc.moved().0 >= 11, "other keys moved: {:?}", engine.gc.moved());
    let mut walk = sim.walk();
    walk.seek(states[0].0);
    loop {
        let done = states.iter().rposition(|(at, _)| *at <= walk.op_index()).unwrap();
        for mut image in walk.images(&Survivors::EACH, 5) {
            // It was the memory that had rotted: what is on the medium can be read, and is asked for all that it has.
            image.corrupt(rotten, ROT);
            let allowed = &states[done..states.len().min(done + 2)];
            let wrong = wrong_with(&image, allowed);
            assert_eq!(wrong, None, "after {} operations, {:?}", image.op_index, image.survivors);
        }
        if !walk.next_op() {
            return;
        }
    }
}

/// Names of the sorted tables on the medium.
fn sst_names(sim: &CrashSim) -> Vec<String> {
    sim.process_kill().file_names().into_iter().filter(|name| name.ends_with(".sst")).collect()
}

/// A table that is dropped or cleared while its rows move leaves no file behind.
#[test]
fn files_of_a_table_that_goes_while_its_rows_move_go_with_it() {
    for drops in [true, false] {
        let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
        let db = open_swept(&sim).unwrap();
        let schema = Schema::new().field("n", Type::I64).nullable("text", Type::String);
        let [table, kept] = ["t", "kept"].map(|name| db.create_table(name, schema.clone()).unwrap());
        let (engine, mut now) = (kept.engine(), Content::new());
        (0..8).for_each(|key| put_swept(&table, &mut now, key, 100));
        // The names are made with the first file; nothing has gone yet when the table goes.
        move_and_meanwhile(engine, || match drops {
            true => assert!(db.drop_table("t").unwrap()),
            false => table.clear().unwrap(),
        });
        engine.runs.remove_dropped();
        assert_eq!((sst_names(&sim), engine.runs.bytes().0), (Vec::new(), 0), "dropped: {drops}");
        assert!(engine.gc.moved_from.lock().is_empty());
        // What was there with others stays: they are there still.
        put_swept(&kept, &mut now, 1, 101);
        engine.move_now();
        assert_eq!(sst_names(&sim).len(), 1);
        assert_eq!(kept.get(&1u64).unwrap().unwrap().get_as::<i64>("n").unwrap(), 101);
    }
}

mod budget;
mod full_index;
mod full_tiers;
mod sealed_meanwhile;

/// Of a table that was dropped nothing is to be found, though gc, which had it, is about to look at its records.
#[test]
fn nothing_is_said_to_be_below_of_a_table_that_is_gone() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let db = Db::open_at(tiers, tight_options(false), Clock::manual(1_000)).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    table.load(|loader| (0..100u64).try_for_each(|n| loader.push(&n, &row! { n: n as i64 }))).unwrap();
    let (engine, shared) = (table.engine(), table.shared());
    assert!(shared.below() && table.get(&7u64).unwrap().is_some());
    db.drop_table("t").unwrap();
    // Nobody waits for a writer here, and so nobody is seen half-way.
    let appender = engine.log.appender();
    std::thread::scope(|scope| {
        let begun = scope.spawn(|| MovingTables::default().begin(engine, shared));
        eventually("it is left alone", || begun.is_finished() || shared.below());
        let is_below = shared.below();
        drop(appender);
        assert!(!is_below, "rows of it are said to be below");
    });
}
