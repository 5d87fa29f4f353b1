//! Interleavings of gc, explored by `shuttle`: a writer, a reader, a snapshot and gc cycles over one store.
//!
//! Run as `index/shuttle.rs` says. Extents have 64 KiB and take three rows, so that a few writes fill and empty segments, and
//! what gc frees is soon written over. Every byte of a row's value is its version: who sees two in one was shown bytes that were freed.

use ::shuttle::rand::{Rng, thread_rng};
use ::shuttle::thread;
use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Survivors};

use crate::index::Slot;
use crate::log::PlaceState;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{Arc, explore_store};
use crate::{CacheMode, Db, Durability, Options, Result, RowRef, Schema, Snapshot, Table, Type, Value};

const ROUNDS: usize = 300;

const VALUE_BYTES: usize = 20_000;

/// So often somebody looks who holds what must not change.
const LOOKS: usize = 6;

fn explore(test: impl Fn() + Copy + Send + Sync + 'static) {
    explore_store(ROUNDS, test);
}

fn options(durability: Durability) -> Options {
    Options {
        durability,
        segment_bytes: 64 << 10,
        fast_tier_bytes_max: 2 << 20,
        index_bytes_max: 1 << 20,
        cache_mode: CacheMode::Off,
        background: false,
        recovery_threads: 1,
        ..Options::default()
    }
}

fn open(sim: &CrashSim, durability: Durability) -> Db {
    Db::open_at(FastTier::simulated(sim), options(durability), Clock::manual(1_000)).expect("a store")
}

fn put(table: &Table, key: &[u8], version: u8) -> Result<()> {
    table.put(
        key,
        &[("value", Value::Bytes(&[version; VALUE_BYTES])), ("version", Value::UInt(version.into()))],
    )
}

/// The version of a row, looked at for a while: as long as it is held nothing of it changes, though it be merged or freed meanwhile.
fn version_of(row: &RowRef<'_>) -> Result<u8> {
    let mut seen = None;
    for _ in 0..LOOKS {
        let Value::UInt(version) = row.get("version")? else { panic!("a row without its version") };
        let Value::Bytes(value) = row.get("value")? else { panic!("a row without its value") };
        assert!(value.iter().all(|&byte| byte == value[0]), "bytes that were freed");
        assert_eq!(*seen.get_or_insert((version, value[0])), (version, value[0]), "a row that changed");
        thread::yield_now();
    }
    let (version, value) = seen.expect("it was looked at");
    assert!(u64::from(value) <= version, "a row, and a delta of before it");
    Ok(version as u8)
}

fn seen(snapshot: &Snapshot, table: &Table, key: &[u8]) -> Option<u8> {
    let row = snapshot.get(table, key).expect("what a snapshot sees can be read")?;
    let Ok(Value::Bytes(value)) = row.get("value") else { panic!("a row without its value") };
    assert!(value.iter().all(|&byte| byte == value[0]), "bytes that were freed");
    let Ok(Value::UInt(version)) = row.get("version") else { panic!("a row without its version") };
    Some(version as u8)
}

/// A store in which two segments are worth emptying: of three rows in each two have been replaced.
struct Store {
    sim: CrashSim,
    /// What was written before the tasks began was durable by this operation of the medium.
    persisted: u64,
    db: Db,
    table: Table,
    /// Versions that the writer has begun to write, and has written, to `a` and then to `b`.
    begun: AtomicU8,
    written: AtomicU8,
}

/// Written before the tasks begin, and never again.
const STAYS: [&[u8]; 2] = [b"stays", b"stays too"];

impl Store {
    fn new(model: CrashModel, durability: Durability) -> Arc<Store> {
        let sim = CrashSim::new(model, 2 << 20);
        let db = open(&sim, durability);
        let schema = Schema::new().field("version", Type::U64).field("value", Type::Bytes);
        let table = db.create_table("rows", schema).expect("a table");
        for stays in STAYS {
            [stays, b"a", b"b"].iter().for_each(|key| put(&table, key, 1).expect("room"));
        }
        db.persist().expect("no sync fails");
        let persisted = sim.ops();
        Arc::new(Store { sim, persisted, db, table, begun: AtomicU8::new(1), written: AtomicU8::new(1) })
    }

    /// Writes version after version to `a` and to `b`, by `write`.
    fn write(&self, last: u8, write: impl Fn(&Table, &[u8], u8) -> Result<()>) {
        for version in 2..=last {
            self.begun.store(version, Ordering::SeqCst);
            for key in [b"a", b"b"] {
                write(&self.table, key, version).expect("room");
            }
            self.written.store(version, Ordering::SeqCst);
        }
    }

    /// Reads what the writer writes.
    fn read(&self) {
        for key in [b"a", b"b"] {
            let written = self.written.load(Ordering::SeqCst);
            let version = self.table.read(key, version_of).expect("a row can be read").expect("a row");
            let begun = self.begun.load(Ordering::SeqCst);
            assert!((written..=begun).contains(&version), "{version} was not current in {written}..={begun}");
        }
        for key in STAYS {
            let version = self.table.read(key, version_of).expect("a row can be read");
            assert_eq!(version, Some(1));
        }
    }

    /// Takes a snapshot and looks at it again and again.
    fn look_back(&self) {
        let written = self.written.load(Ordering::SeqCst);
        let snapshot = self.db.snapshot();
        let begun = self.begun.load(Ordering::SeqCst);
        let first = [b"a", b"b"].map(|key| seen(&snapshot, &self.table, key).expect("a row"));
        assert!(first[0] == first[1] || first[0] == first[1] + 1, "of two moments: {first:?}");
        assert!(first[1] >= written && first[0] <= begun, "{first:?}, {written}..={begun}");
        for _ in 0..LOOKS {
            thread::yield_now();
            let again = [b"a", b"b"].map(|key| seen(&snapshot, &self.table, key).expect("a row"));
            assert_eq!(again, first, "the same snapshot");
        }
        assert!(STAYS.iter().all(|key| seen(&snapshot, &self.table, key) == Some(1)));
    }

    /// What is left is what was written, in the open store and in one that is opened after its process was killed.
    fn check(&self, durability: Durability, expected: &[(&[u8], Option<u8>)]) {
        self.db.collect().expect("a cycle");
        self.db.check_counts().expect("what is counted is there");
        assert!(self.db.metrics().segments_collected > 0, "nothing was freed");
        self.check_power_cut(durability);
        let after = open(&CrashSim::from_image(&self.sim.process_kill()), durability);
        after.check_counts().expect("what is counted is there after a kill");
        let table = after.table("rows").expect("the table");
        for (key, version) in expected.iter().copied().chain(STAYS.map(|key| (key, Some(1)))) {
            for table in [&self.table, &table] {
                let found = table.read(key, version_of).expect("a row can be read");
                assert_eq!(found, version, "{}", key.escape_ascii());
            }
        }
    }
}

impl Store {
    /// A power cut at any moment takes nothing away that was durable when the tasks began.
    fn check_power_cut(&self, durability: Durability) {
        let ops = thread_rng().gen_range(self.persisted..=self.sim.ops());
        let kind = [Survivors::None, Survivors::Random, Survivors::All][thread_rng().gen_range(0..3)];
        let mut walk = self.sim.walk();
        walk.seek(ops);
        let after = open(&CrashSim::from_image(&walk.image(kind, ops)), durability);
        after.check_counts().expect("what is counted is there after a power cut");
        let table = after.table("rows").expect("the table");
        for key in STAYS {
            let found = table.read(key, version_of).expect("a row can be read");
            assert_eq!(found, Some(1), "{} after a power cut, {kind:?} at {ops}", key.escape_ascii());
        }
    }
}

/// Runs each of `tasks` on a thread, all at once.
fn together(store: &Arc<Store>, tasks: &[fn(&Store)]) {
    let run = |task: &fn(&Store)| {
        let (store, task) = (store.clone(), *task);
        thread::spawn(move || task(&store))
    };
    let running: Vec<_> = tasks.iter().map(run).collect();
    running.into_iter().for_each(|task| task.join().expect("a task"));
}

fn collect(store: &Store) {
    for _ in 0..3 {
        store.db.collect().expect("a cycle");
    }
}

/// As the prefault thread does: the epoch goes on while others are at work.
fn advance(store: &Store) {
    for _ in 0..8 {
        store.table.engine().epoch.collect();
        thread::yield_now();
    }
}

#[test]
fn who_reads_sees_what_was_current_and_nothing_freed() {
    explore(|| {
        let store = Store::new(CrashModel::Pages, Durability::Process);
        together(&store, &[|store| store.write(8, put), Store::read, Store::read, collect, advance]);
        store.check(Durability::Process, &[(b"a", Some(8)), (b"b", Some(8))]);
    });
}

#[test]
fn a_snapshot_sees_its_moment_while_gc_goes_on() {
    explore(|| {
        let store = Store::new(CrashModel::Pages, Durability::Process);
        together(&store, &[|store| store.write(8, put), Store::look_back, collect, advance]);
        store.check(Durability::Process, &[(b"a", Some(8)), (b"b", Some(8))]);
    });
}

fn update(table: &Table, key: &[u8], version: u8) -> Result<()> {
    table.update(key, &[("version", Value::UInt(version.into()))])
}

#[test]
fn what_is_merged_by_copy_loses_no_change() {
    static MERGED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    explore(|| {
        let store = Store::new(CrashModel::Pages, Durability::Process);
        together(&store, &[|store| store.write(6, update), Store::read, Store::look_back, collect]);
        store.check(Durability::Process, &[(b"a", Some(6)), (b"b", Some(6))]);
        MERGED.fetch_add(store.db.metrics().chains_merged, Ordering::SeqCst);
    });
    assert!(MERGED.load(Ordering::SeqCst) > 0, "nothing was merged in any order");
}

/// Where a line is cheap to flush.
#[test]
fn what_is_merged_in_place_changes_under_nobody() {
    static MERGED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    explore(|| {
        let store = Store::new(CrashModel::CacheLines, Durability::Immediate);
        let other: fn(&Store) = if thread_rng().gen_bool(0.5) { Store::read } else { Store::look_back };
        together(&store, &[|store| store.write(6, update), other, collect, advance]);
        store.check(Durability::Immediate, &[(b"a", Some(6)), (b"b", Some(6))]);
        MERGED.fetch_add(store.db.metrics().chains_merged_in_place, Ordering::SeqCst);
    });
    assert!(MERGED.load(Ordering::SeqCst) > 0, "nothing was merged in place in any order");
}

/// A tombstone goes when nothing is below it any more, and not before.
#[test]
fn a_deleted_row_stays_deleted_and_one_that_came_back_stays() {
    explore(|| {
        let store = Store::new(CrashModel::Pages, Durability::Process);
        let delete = |store: &Store| {
            assert!(store.table.delete(b"a").expect("no room needed"));
            assert!(store.table.delete(b"b").expect("no room needed"));
            put(&store.table, b"b", 9).expect("room");
            put(&store.table, b"c", 9).expect("room");
            assert!(store.table.delete(b"c").expect("no room needed"));
        };
        let look = |store: &Store| {
            let snapshot = store.db.snapshot();
            let first = [b"a", b"b", b"c"].map(|key| seen(&snapshot, &store.table, key));
            for _ in 0..LOOKS {
                thread::yield_now();
                let again = [b"a", b"b", b"c"].map(|key| seen(&snapshot, &store.table, key));
                assert_eq!(first, again, "the same snapshot");
            }
            assert!(first[1].is_some() || first[0].is_none(), "of two moments: {first:?}");
        };
        together(&store, &[delete, look, collect]);
        store.check(Durability::Process, &[(b"a", None), (b"b", Some(9)), (b"c", None)]);
    });
}

/// Who was led to a record before, and asks again once it has pinned, is told whether it is there, for as long as it is pinned.
#[test]
fn a_place_from_before_is_kept_or_known_to_be_emptied() {
    static KEPT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    static EMPTIED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    explore(|| {
        let store = Store::new(CrashModel::Pages, Durability::Process);
        let look = {
            let store = store.clone();
            let log = &store.table.engine().log;
            let slot = store.table.shared().levels.locate(STAYS[0], &log.pin());
            let place = slot.and_then(Slot::in_log).expect("a row").offset();
            let below = log.next_segment_number();
            thread::spawn(move || {
                let log = &store.table.engine().log;
                for _ in 0..2 * LOOKS {
                    let guard = log.pin();
                    let is_kept = guard.view().kept(place, below) == PlaceState::There;
                    for _ in 0..if is_kept { LOOKS } else { 0 } {
                        let record = guard.view().record(place).expect("nothing was written over it");
                        assert_eq!(record.key(), STAYS[0]);
                        record.verify_all().expect("nothing was written over it");
                        thread::yield_now();
                    }
                    (if is_kept { &KEPT } else { &EMPTIED }).fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                }
            })
        };
        together(&store, &[|store| store.write(12, put), collect, advance]);
        look.join().expect("who looks");
    });
    let [kept, emptied] = [&KEPT, &EMPTIED].map(|count| count.load(Ordering::SeqCst));
    assert!(kept > 0 && emptied > 0, "kept {kept} times, emptied {emptied} times");
}
