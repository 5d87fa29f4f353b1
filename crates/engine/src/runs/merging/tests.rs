//! Merges beside what they merge: against a twin, a model, every cut, every fault, every lie.

use std::cell::Cell;
use std::ops::Range;

use hedgerow_device::{
    CapacityTier, Clock, CrashModel, CrashSim, FastTier, Fault, FileCall, Random, Refusal, Survivors, SyncOf,
};

use super::*;
use crate::db::engine::Engine;
use crate::db::fixture::options;
use crate::db::lower::tests::{Twins, alike};
use crate::gc::moving::tests::{
    Content, FAST_BYTES, Tight, content, open_swept, put_swept, set_swept, sweep,
};
use crate::sst::SstId;
use crate::sync::atomic;
use crate::{Db, Durability, ErrorKind, Expiry, Key, Options, Schema, Snapshot, Table, Type, row};

/// What is left to be done of these runs, counted from the newest.
fn job_of(engine: &Engine, runs: Range<usize>) -> MergeJob {
    let runs = engine.runs.current().runs()[runs].iter().map(|run| run.number).collect();
    MergeJob { runs, from: Vec::new(), upto: None }
}

fn merge_one(engine: &Engine, job: &mut MergeJob) -> Result<Merged> {
    engine.runs.merge_slice(&engine.log, job, &engine.tables_for_merge())
}

/// Merges all of these runs; how many slices that took.
fn merge(engine: &Engine, runs: Range<usize>) -> Result<u64> {
    let (mut job, mut slices) = (job_of(engine, runs), 0);
    while merge_one(engine, &mut job)? == Merged::Slice {
        slices += 1;
    }
    Ok(slices)
}

/// Bytes that are thought to be garbage.
fn garbage_in(db: &Db) -> u64 {
    let limits = MergeLimits { runs_max: 8, garbage_percent_max: 30, covered_percent: 100 };
    db.engine().runs.next_merge(&db.engine().tables_for_merge(), limits);
    db.engine().runs.merged().garbage
}

fn runs_of(engine: &Engine) -> usize {
    engine.runs.current().runs().len()
}

/// Some runs next to one another, two at least if there are.
fn random_runs(engine: &Engine, random: &mut Random) -> Range<usize> {
    let runs = runs_of(engine) as u64;
    let first = random.below(runs.saturating_sub(1).max(1));
    let count = (2 + random.below(runs)).min(runs - first);
    first as usize..(first + count) as usize
}

#[test]
fn a_store_whose_runs_are_merged_answers_as_one_without() {
    let merged = Cell::new(0);
    let now_and_then = |twins: &mut Twins, step| {
        let (engine, mut random) = (twins.tables[0].engine(), Random::from_seed(step));
        engine.move_now();
        if runs_of(engine) > 0 {
            merged.set(merged.get() + merge(engine, random_runs(engine, &mut random)).unwrap());
        }
        if random.below(4) == 0 {
            twins.reopen(random.below(2) == 0);
        }
    };
    alike(200..215, false, now_and_then);
    alike(215..230, true, now_and_then);
    assert!(merged.get() > 15, "{}", merged.get());
}

/// By table and key: a number, and what the text says, if there is one.
type Model = BTreeMap<(usize, u64), (i64, Option<String>)>;

const TABLES: usize = 3;
const KEYS: u64 = 80;

/// A store of some tables whose rows move, and what is to be in it.
struct Modelled {
    sim: CrashSim,
    db: Option<Db>,
    model: Model,
    snapshots: Vec<(Snapshot, Model)>,
    random: Random,
}

fn moving(durability: Durability) -> Options {
    Options {
        durability,
        delta_chain_max: 3,
        segment_bytes: 256 << 10,
        fast_tier_bytes_max: 32 << 20,
        compression: crate::sst::Compression::None,
        ..options()
    }
}

fn open(sim: &CrashSim, durability: Durability) -> Db {
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    Db::open_at(tiers, moving(durability), Clock::manual(1_000)).unwrap()
}

fn schema() -> Schema {
    Schema::new().field("n", Type::I64).nullable("text", Type::String)
}

impl Modelled {
    fn new(seed: u64) -> Modelled {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let db = Some(open(&sim, Durability::Process));
        let random = Random::from_seed(seed);
        let modelled = Modelled { sim, db, model: Model::new(), snapshots: Vec::new(), random };
        (0..TABLES).for_each(|table| drop(modelled.db().create_table(&name(table), schema()).unwrap()));
        modelled
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn table(&self, table: usize) -> Table {
        self.db().table(&name(table)).unwrap()
    }

    /// Changes at random, then all that may move moves.
    fn change(&mut self) {
        for _ in 0..60 {
            let at = (self.random.below(TABLES as u64) as usize, self.random.below(KEYS));
            let (table, key, n) = (self.table(at.0), at.1, self.random.below(1_000) as i64);
            match self.random.below(10) {
                0..=4 => {
                    let text = format!("{n:>0$}", 4_000);
                    table.put(&key, &row! { n: n, text: text.as_str() }).unwrap();
                    self.model.insert(at, (n, Some(text)));
                }
                5 | 6 => {
                    table.update(&key, &row! { n: n }).unwrap();
                    self.model.entry(at).or_insert((0, None)).0 = n;
                }
                7 => {
                    table.update(&key, &row! { text: "short" }).unwrap();
                    self.model.entry(at).or_insert((0, None)).1 = Some("short".to_owned());
                }
                _ => assert_eq!(table.delete(&key).unwrap(), self.model.remove(&at).is_some()),
            }
        }
        if self.random.below(6) == 0 {
            let gone = self.random.below(TABLES as u64) as usize;
            match self.random.below(2) {
                0 => self.table(gone).clear().unwrap(),
                _ => {
                    self.db().drop_table(&name(gone)).unwrap();
                    self.db().create_table(&name(gone), schema()).unwrap();
                }
            }
            // Snapshots see it empty.
            let models = self.snapshots.iter_mut().map(|(_, model)| model);
            models.chain([&mut self.model]).for_each(|model| model.retain(|(table, _), _| *table != gone));
        }
        self.db().engine().move_now();
    }

    fn check(&self) {
        for table in 0..TABLES {
            let of_table = self.table(table);
            let expected = |model: &Model| -> Vec<(u64, (i64, Option<String>))> {
                let of = model.range((table, 0)..(table + 1, 0));
                of.map(|((_, key), row)| (*key, row.clone())).collect()
            };
            let rows =
                |scan: crate::Scan| -> Vec<(u64, (i64, Option<String>))> { scan.map(of_row).collect() };
            assert_eq!(rows(of_table.scan()), expected(&self.model));
            let mut back = rows(of_table.scan().reverse());
            back.reverse();
            assert_eq!(back, expected(&self.model));
            for key in 0..KEYS {
                let found = of_table.get(&key).unwrap();
                let found = found.map(|row| row.get_as::<i64>("n").unwrap());
                assert_eq!(found, self.model.get(&(table, key)).map(|(n, _)| *n), "row {key}");
            }
            for (snapshot, model) in &self.snapshots {
                assert_eq!(rows(snapshot.scan(&of_table)), expected(model), "as of a snapshot");
            }
        }
    }

    /// The versions of all rows: no merge changes one.
    fn versions(&self) -> Vec<Option<u64>> {
        let of_table = |table| (0..KEYS).map(move |key| (table, key));
        let all = (0..TABLES).flat_map(of_table);
        all.map(|(table, key)| self.table(table).version(&key).unwrap()).collect()
    }

    /// A job at random: some runs, of which a part of the keys may be merged alone.
    fn random_job(&mut self) -> MergeJob {
        let engine = Arc::clone(self.db().engine());
        let mut job = job_of(&engine, random_runs(&engine, &mut self.random));
        if self.random.below(3) == 0 {
            let table = self.random.below(TABLES as u64) as usize;
            let id = self.table(table).shared().id.load(atomic::Ordering::Relaxed);
            let [least, greatest] =
                [0, 30].map(|more| composite_key(id, (10 + more as u64).key_bytes().as_ref()));
            (job.from, job.upto) = (least, Some(greatest));
        }
        job
    }
}

fn name(table: usize) -> String {
    format!("t{table}")
}

fn of_row(row: Result<crate::Row>) -> (u64, (i64, Option<String>)) {
    let row = row.unwrap();
    let text = row.get_as::<Option<&str>>("text").unwrap().map(str::to_owned);
    (row.key_as::<u64>().unwrap(), (row.get_as("n").unwrap(), text))
}

#[test]
fn random_runs_that_are_merged_are_as_the_model_says() {
    let (mut slices, mut walked_on) = (0, 0);
    for seed in 0..12 {
        let mut store = Modelled::new(seed);
        for round in 0..18 {
            store.change();
            if round % 5 == 3 {
                let snapshot = (store.db().snapshot(), store.model.clone());
                store.snapshots.push(snapshot);
            }
            if runs_of(store.db().engine()) < 2 {
                continue;
            }
            let before = store.versions();
            let mut job = store.random_job();
            // Somebody is on his way through all of it.
            let (table, mut halfway) = (store.table(0), Vec::new());
            let mut scan = table.scan();
            halfway.extend(scan.by_ref().take(7).map(of_row));
            let limit = 1 + store.random.below(4);
            for _ in 0..limit {
                if merge_one(store.db().engine(), &mut job).unwrap() != Merged::Slice {
                    break;
                }
                slices += 1;
                store.check();
            }
            halfway.extend(scan.map(of_row));
            let expected = store.model.range((0, 0)..(1, 0)).map(|((_, key), row)| (*key, row.clone()));
            assert!(expected.eq(halfway.iter().cloned()), "a scan that was under way");
            walked_on += halfway.len();
            assert_eq!(store.versions(), before);
            if round == 9 {
                store.snapshots.clear();
                let killed = CrashSim::from_image(&store.sim.process_kill());
                drop((table, store.db.take()));
                (store.db, store.sim) = (Some(open(&killed, Durability::Process)), killed);
            }
            store.check();
        }
        nothing_is_left_over(&mut store);
    }
    assert!(slices > 60 && walked_on > 1_000, "{slices} slices");
}

/// With all runs merged into one there are rows alone, each of them once, and of no table that is gone.
fn nothing_is_left_over(store: &mut Modelled) {
    store.snapshots.clear();
    let engine = &Arc::clone(store.db().engine());
    (0..3).for_each(|_| engine.move_now());
    merge(engine, 0..runs_of(engine)).unwrap();
    store.check();
    let runs = engine.runs.current();
    assert_eq!(runs.runs().len(), 1);
    let in_index: u64 = (0..TABLES).map(|table| store.table(table).shared().rows()).sum();
    // Files of which parts went into others are counted by what is left of them, and so they are when the store is opened again.
    let rows_in = |db: &Db| (0..TABLES).map(|table| db.table(&name(table)).unwrap().len()).sum::<u64>();
    assert_eq!(rows_in(store.db()), store.model.len() as u64);
    let killed = CrashSim::from_image(&store.sim.process_kill());
    assert_eq!(rows_in(&open(&killed, Durability::Process)), store.model.len() as u64);
    let counts = runs.files().iter().map(Sst::counts);
    let counts = counts.fold((0, 0, 0), |(rows, deltas, tombstones), counts| {
        (rows + counts.rows, deltas + counts.deltas, tombstones + counts.tombstones)
    });
    // Of runs of which one is left nothing older is anywhere; what was in it alone may be as it was.
    assert!(counts.0 + in_index >= store.model.len() as u64, "{counts:?}");
    let mut job = MergeJob { upto: Some(vec![0xFF; 16]), ..job_of(engine, 0..1) };
    while merge_one(engine, &mut job).unwrap() == Merged::Slice {}
    let runs = engine.runs.current();
    let total = |count: fn(&Sst) -> u64| runs.files().iter().map(count).sum::<u64>();
    assert_eq!((total(|sst| sst.counts().deltas), total(|sst| sst.counts().tombstones)), (0, 0));
    assert_eq!(total(|sst| sst.counts().rows) + in_index, store.model.len() as u64);
    runs.files().iter().for_each(|sst| sst.verify().unwrap());
    store.check();
}

#[test]
fn a_store_that_is_tight_is_merged_between_moves() {
    let (mut tight, mut random) = (Tight::new(), Random::from_seed(7));
    let mut slices = 0;
    for step in 1..=30_000 {
        tight.step(&mut random);
        if step % 1_500 == 0 {
            let engine = tight.table.as_ref().unwrap().engine();
            engine.move_now();
            slices += merge(engine, random_runs(engine, &mut random)).unwrap();
            tight.check();
        }
        if step % 9_000 == 0 {
            tight.kill();
            tight.check();
        }
    }
    assert!(slices > 20, "{slices}");
}

/// One change, a move, or a merge of these runs.
#[derive(Debug, Clone)]
enum Step {
    Put(u64, i64),
    Set(u64, i64),
    Delete(u64),
    Move,
    Merge(Range<usize>),
}

fn steps() -> Vec<Step> {
    use Step::{Delete, Merge, Move, Put, Set};
    vec![
        Put(0, 100),
        Put(1, 101),
        Put(2, 102),
        Put(3, 103),
        Move,
        Set(0, 200),
        Delete(1),
        Put(2, 202),
        Set(9, 209),
        Move,
        Merge(0..2),
        Set(0, 300),
        Put(1, 301),
        Delete(2),
        Delete(3),
        Move,
        Set(0, 400),
        Set(3, 403),
        Move,
        Delete(1),
        Move,
        // A tombstone over what is older than all of these, and deltas over it.
        Merge(0..3),
        Merge(0..2),
        Put(4, 504),
        Move,
        Set(4, 505),
        Move,
        Delete(4),
        Move,
        Merge(0..2),
        Delete(0),
        Delete(9),
        Move,
        // Of these nothing is left.
        Merge(1..3),
        Merge(0..2),
    ]
}

/// Changes with moves and merges in between; what there is after each, and after how many operations of the media. `before_merge` is called before each merge, `after_merge` after it.
fn script(
    sim: &CrashSim,
    db: &Db,
    (before_merge, after_merge): (&dyn Fn(), &dyn Fn()),
) -> Vec<(u64, Content)> {
    let table = db.create_table("t", schema()).unwrap();
    let (mut states, mut now) = (vec![(sim.ops(), Content::new())], Content::new());
    for step in steps() {
        match step.clone() {
            Step::Put(key, n) => put_swept(&table, &mut now, key, n),
            Step::Set(key, n) => set_swept(&table, &mut now, key, n),
            Step::Delete(key) => assert_eq!(table.delete(&key).unwrap(), now.remove(&key).is_some()),
            Step::Move => table.engine().move_now(),
            Step::Merge(runs) => {
                before_merge();
                assert!(merge(table.engine(), runs).unwrap() > 0);
                after_merge();
            }
        }
        assert_eq!(content(db), now, "{step:?}");
        db.check_counts().unwrap();
        states.push((sim.ops(), now.clone()));
    }
    assert_eq!(runs_of(table.engine()), 1);
    states
}

#[test]
fn a_cut_at_any_place_of_a_merge_takes_nothing() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, FAST_BYTES);
        let states = script(&sim, &open_swept(&sim).unwrap(), (&|| (), &|| ()));
        assert_eq!(sweep(&sim, &states, false), None, "{model:?}");
    }
}

/// What a merge rests on: with one left out some cut shows it.
#[test]
fn the_sweep_notices_each_sync_that_a_merge_leaves_out() {
    let lies: [fn(SyncOf<'_>) -> bool; 3] = [
        |of| matches!(of, SyncOf::File(name) if name.ends_with(".sst")),
        |of| matches!(of, SyncOf::File(name) if name.starts_with("manifest")),
        |of| of == SyncOf::Names,
    ];
    for (n, lie) in lies.into_iter().enumerate() {
        let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
        let db = open_swept(&sim).unwrap();
        let lied = (&|| sim.lie_about_file_syncs(Some(lie)) as (), &|| sim.lie_about_file_syncs(None) as ());
        let states = script(&sim, &db, (lied.0, lied.1));
        assert!(sweep(&sim, &states, false).is_some(), "lie {n}");
    }
}

/// A row that a merge writes anew has its table's schema, which a power cut must not take back.
#[test]
fn a_schema_is_durable_before_rows_that_were_merged_under_it() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim, Durability::Process);
    let table = db.create_table("t", schema()).unwrap();
    table.put(&1u64, &row! { n: 1, text: "put" }).unwrap();
    table.engine().move_now();
    table.update(&1u64, &row! { n: 2 }).unwrap();
    table.engine().move_now();
    table.add_field("m", Type::I64).unwrap();
    merge(table.engine(), 0..2).unwrap();
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let left = CrashSim::from_image(&walk.image(Survivors::None, 0));
    let row = open(&left, Durability::Process).table("t").unwrap().get(&1u64).unwrap().unwrap();
    assert_eq!((row.get_as::<i64>("n").unwrap(), row.get_as::<&str>("text").unwrap()), (2, "put"));
}

/// Files of a store, less its manifest.
fn file_numbers(sim: &CrashSim) -> Vec<u64> {
    sim.process_kill().file_names().iter().filter_map(|name| SstId::number_in(name)).collect()
}

fn counted(db: &Db) -> Vec<u64> {
    db.engine().runs.current().files().iter().map(|sst| sst.id().number).collect()
}

/// Three runs of several files each, and what is in them.
fn three_runs(sim: &CrashSim) -> (Db, Content) {
    let (db, mut now) = (open(sim, Durability::Process), Content::new());
    let table = db.create_table("t", schema()).unwrap();
    let text = "x".repeat(60_000);
    for round in 0..3 {
        for key in (0..12u64).filter(|key| key % 3 != round) {
            let n = (100 * round + key) as i64;
            table.put(&key, &row! { n: n, text: text.as_str() }).unwrap();
            now.insert(key, (n, Some(text.clone())));
        }
        let gone = 3 * round;
        assert_eq!(table.delete(&gone).unwrap(), now.remove(&gone).is_some());
        table.update(&11u64, &row! { n: 5 }).unwrap();
        now.entry(11).or_insert((0, None)).0 = 5;
        table.engine().move_now();
    }
    assert_eq!(runs_of(table.engine()), 3);
    assert_eq!(content(&db), now);
    (db, now)
}

/// Every call on files, and every persist of the log, refused once or from then on: all is as it was, nothing is left, and once nothing is refused any more the merge is made, unless it is not
/// known whether it counts.
#[test]
fn a_merge_that_is_refused_changes_nothing() {
    let (mut failed, mut closed) = (0, 0);
    use FileCall::{Create, Read, Remove, Sync, SyncNames, Write};
    for call in [Create, Write, Sync, SyncNames, Remove, Read].map(Some).into_iter().chain([None]) {
        for (after, sticky) in (0..12).flat_map(|after| [(after, false), (after, true)]) {
            let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
            let (db, now) = three_runs(&sim);
            let refusal = if after % 2 == 0 { Refusal::Io } else { Refusal::NoSpace };
            let fault = Fault { after, sticky, refusal };
            match call {
                Some(call) => sim.fail_file_calls(call, fault),
                None => sim.fail_persists(fault),
            }
            let outcome = merge(db.engine(), 0..3);
            sim.clear_faults();
            let context = format!("{call:?} {fault:?}: {outcome:?}");
            assert_eq!(content(&db), now, "{context}");
            let is_closed = db.engine().log.check_writable().is_err();
            (failed, closed) = (failed + u64::from(outcome.is_err()), closed + u64::from(is_closed));
            assert!(is_closed || outcome.is_ok() || db.engine().runs.merged().failures > 0, "{context}");
            if !is_closed {
                merge(db.engine(), 0..runs_of(db.engine())).unwrap();
                db.engine().runs.remove_dropped();
                assert_eq!((runs_of(db.engine()), content(&db)), (1, now.clone()), "{context}");
                assert_eq!(file_numbers(&sim), counted(&db), "{context}");
            }
            let mut walk = sim.walk();
            walk.seek(u64::MAX);
            for kind in [Survivors::ProcessKill, Survivors::None, Survivors::All, Survivors::Random] {
                let left = CrashSim::from_image(&walk.image(kind, 3));
                let again = open(&left, Durability::Process);
                assert_eq!(content(&again), now, "{context}, {kind:?}");
                assert_eq!(file_numbers(&left), counted(&again), "{context}, {kind:?}");
            }
        }
    }
    assert!(failed > 30 && closed > 5, "{failed} failed, {closed} closed their store");
}

/// What is damaged stays where it is, and is asked for by whoever needs it; other runs are merged.
#[test]
fn a_damaged_file_is_left_alone() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, now) = three_runs(&sim);
    // What was read of it is in no cache any more.
    let sim = CrashSim::from_image(&sim.process_kill());
    drop(db);
    let db = open(&sim, Durability::Process);
    let oldest = db.engine().runs.current().runs()[2].ranges[0].sst.id();
    sim.corrupt_file(&oldest.file_name(), 4096 + 200, 1);
    assert_eq!(merge(db.engine(), 0..3).unwrap_err().kind(), ErrorKind::Corrupted);
    assert_eq!(db.engine().runs.merged().failures, 1);
    let mut job = job_of(db.engine(), 0..3);
    assert_eq!(merge_one(db.engine(), &mut job).unwrap(), Merged::NotNow, "it is known");
    assert_eq!(runs_of(db.engine()), 3);
    assert!(merge(db.engine(), 0..2).unwrap() > 0, "the others");
    assert_eq!(runs_of(db.engine()), 2);
    let table = db.table("t").unwrap();
    let found =
        (0..12u64).filter(|key| table.get(key).is_ok_and(|row| row.is_some() == now.contains_key(key)));
    assert!(found.count() >= 8, "what lies in other blocks is read");
}

#[test]
fn a_store_that_is_closed_ends_a_merge() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim, Durability::Process);
    let table = db.create_table("t", schema()).unwrap();
    for n in 0..2 {
        (0..400u64).for_each(|key| table.put(&key, &row! { n: n }).unwrap());
        table.engine().move_now();
    }
    let before = counted(&db);
    db.engine().scheduler.stop();
    assert_eq!(merge_one(db.engine(), &mut job_of(db.engine(), 0..2)).unwrap(), Merged::Stopped);
    assert_eq!((counted(&db), file_numbers(&sim)), (before.clone(), before));
}

/// Rows that were loaded are there for nobody who reads as of before: no run with others is to be hidden from him with them, nor shown.
#[test]
fn what_a_snapshot_does_not_see_is_merged_with_nothing() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, now) = three_runs(&sim);
    let snapshot = db.snapshot();
    let other = db.create_table("u", schema()).unwrap();
    other.load(|loader| (0..9u64).try_for_each(|key| loader.push(&key, &row! { n: 1 }))).unwrap();
    let merge_first = || merge_one(db.engine(), &mut job_of(db.engine(), 0..2)).unwrap();
    assert_eq!(merge_first(), Merged::NotNow);
    assert_eq!(snapshot.scan(&other).count(), 0);
    assert!(merge(db.engine(), 1..4).unwrap() > 0, "those that it sees");
    assert_eq!(snapshot.scan(&db.table("t").unwrap()).count(), now.len());
    drop(snapshot);
    let later = db.snapshot();
    assert_eq!(merge_first(), Merged::Slice);
    assert_eq!((later.scan(&other).count(), content(&db)), (9, now));
    let table = db.table("t").unwrap();
    table.put(&1u64, &row! { n: 7 }).unwrap();
    drop(later);
    table.engine().move_now();
    // A table to be has its rows below before anybody knows of it.
    let id = other.shared().id.load(atomic::Ordering::Relaxed);
    let loading = db.engine().runs.loading(id);
    assert_eq!(merge_first(), Merged::NotNow);
    drop(loading);
    assert_eq!(merge_first(), Merged::Slice);
}

/// A row that has expired is absent, and what it replaced does not come back: it hides that until both are merged.
#[test]
fn a_row_that_has_expired_hides_older_ones() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (tiers, clock) = ((FastTier::simulated(&sim), CapacityTier::simulated(&sim)), Clock::manual(1_000));
    let db = Db::open_at(tiers, moving(Durability::Process), clock.clone()).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    let move_rows = || db.engine().move_now();
    table.put(&1u64, &row! { n: 1 }).unwrap();
    move_rows();
    table.put_expiring(&1u64, &row! { n: 2 }, Expiry::at_unix_ms(1_500)).unwrap();
    move_rows();
    // As often as it takes for a row to stay in memory by itself.
    for _ in 0..3 {
        assert!(table.get(&1u64).unwrap().is_some());
        db.tend_cache();
    }
    table.put(&2u64, &row! { n: 3 }).unwrap();
    move_rows();
    table.put(&1_000u64, &row! { n: 4 }).unwrap();
    table.put(&0u64, &row! { n: 4 }).unwrap();
    move_rows();
    clock.advance_ms(1_000);
    let found = || [1u64, 2].map(|key| table.get(&key).unwrap().map(|row| row.get_as::<i64>("n").unwrap()));
    assert_eq!((runs_of(db.engine()), found()), (4, [None, Some(3)]));
    assert!(merge(db.engine(), 0..3).unwrap() > 0);
    assert_eq!((runs_of(db.engine()), found()), (2, [None, Some(3)]));
    assert_eq!(db.engine().runs.current().files().iter().map(|sst| sst.counts().tombstones).sum::<u64>(), 1);
    // Nor does it come back under a delta that is written without a look, now that nothing below expires.
    table.update(&1u64, &row! { text: "new" }).unwrap();
    let under = table.get(&1u64).unwrap().unwrap().get_as::<i64>("n").ok();
    assert!(!matches!(under, Some(1 | 2)), "{under:?}");
    table.delete(&1u64).unwrap();
    merge(db.engine(), 0..2).unwrap();
    assert_eq!((runs_of(db.engine()), found(), table.len()), (1, [None, Some(3)], 3));
}

/// An answer that was had before a merge holds after it, if no row expired; whoever walks begins anew.
#[test]
fn a_merge_raises_no_generation() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, _) = three_runs(&sim);
    let before = Arc::clone(&db.engine().runs.current());
    assert!(merge(db.engine(), 0..3).unwrap() > 0);
    let after = Arc::clone(&db.engine().runs.current());
    assert!(after.generation() == before.generation() && !Arc::ptr_eq(&before, &after));
    let there = |number: &u64| file_numbers(&sim).contains(number);
    assert!(before.files().iter().all(|sst| there(&sst.id().number)), "somebody looks into them");
    let merged_away: Vec<u64> = before
        .files()
        .iter()
        .map(|sst| sst.id().number)
        .filter(|&number| after.file(number).is_none())
        .collect();
    drop(before);
    db.engine().runs.remove_dropped();
    assert!(!merged_away.is_empty() && !merged_away.iter().any(there));
}

/// A store with tables `t` and `u`, whose rows lie in the same files.
fn two_tables(sim: &CrashSim, background: bool) -> (Db, [Table; 2]) {
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    let options = Options { background, ..moving(Durability::Process) };
    let db = Db::open_at(tiers, options, Clock::manual(1_000)).unwrap();
    let tables = ["t", "u"].map(|name| db.create_table(name, schema()).unwrap());
    (db, tables)
}

fn put_all(table: &Table, keys: Range<u64>, n: i64) {
    keys.into_iter()
        .for_each(|key| table.put(&key, &row! { n: n, text: "something of some length" }).unwrap());
}

/// All records of all runs.
fn bytes_in(runs: &OpenRuns) -> u64 {
    runs.files().iter().map(|sst| sst.counts().bytes).sum()
}

#[test]
fn collecting_merges_runs_until_there_are_few() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, [table, _]) = two_tables(&sim, false);
    for n in 0..30 {
        put_all(&table, 100 * n..100 * n + 100, n as i64);
        db.engine().move_now();
    }
    assert_eq!(runs_of(db.engine()), 30);
    db.collect().unwrap();
    assert!((1..=8).contains(&runs_of(db.engine())), "{}", runs_of(db.engine()));
    let merged = db.engine().runs.merged();
    assert!(merged.slices > 0 && merged.bytes > 0 && merged.failures == 0);
    assert!(table.scan().map(|row| row.unwrap().get_as::<i64>("n").unwrap()).eq((0..3_000).map(|n| n / 100)));
    db.collect().unwrap();
    assert_eq!(db.engine().runs.merged(), merged, "it has come to rest");
}

/// Puts rows that are long enough for a few of them to make a file that changes its run as it is.
fn put_long(table: &Table, now: &mut Content, keys: Range<u64>, n: i64) {
    let text = "x".repeat(40_000);
    for key in keys {
        table.put(&key, &row! { n: n, text: text.as_str() }).unwrap();
        now.insert(key, (n, Some(text.clone())));
    }
}

/// Rows that come in the order of their keys are merged by edits: next to nothing is written.
#[test]
fn runs_that_follow_one_another_are_not_written_anew() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, [table, _]) = two_tables(&sim, false);
    let mut now = Content::new();
    for n in 0..24 {
        put_long(&table, &mut now, 14 * n..14 * n + 14, n as i64);
        db.engine().move_now();
    }
    let (runs, bytes) = (runs_of(db.engine()), bytes_in(&db.engine().runs.current()));
    assert!(runs == 24 && bytes > 12 << 20, "{runs} runs of {bytes} bytes");
    db.collect().unwrap();
    let merged = db.engine().runs.merged();
    assert!((1..=8).contains(&runs_of(db.engine())) && merged.slices > 0, "{merged:?}");
    assert!(merged.bytes * 20 < bytes, "{merged:?}, of {bytes} bytes");
    assert!(table.scan().map(|row| row.unwrap().get_as::<i64>("n").unwrap()).eq((0..336).map(|n| n / 14)));
    db.collect().unwrap();
    assert_eq!(db.engine().runs.merged(), merged, "it has come to rest");
}

/// What a merge would take something off is written anew, if others have nothing of its keys or do.
#[test]
fn what_is_of_no_use_is_not_handed_down() {
    for reason in ["tombstones", "expiry", "a table that is gone", "it is small"] {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let (tiers, clock) =
            ((FastTier::simulated(&sim), CapacityTier::simulated(&sim)), Clock::manual(1_000));
        let db = Db::open_at(tiers, moving(Durability::Process), clock.clone()).unwrap();
        let [table, gone] = ["t", "gone"].map(|name| db.create_table(name, schema()).unwrap());
        let (engine, mut now) = (db.engine(), Content::new());
        put_long(&table, &mut now, 0..4, 1);
        engine.move_now();
        let long = "x".repeat(40_000);
        match reason {
            "tombstones" => {
                put_long(&table, &mut now, 5..6, 0);
                engine.move_now();
                put_long(&table, &mut now, 6..10, 2);
                assert!(table.delete(&5u64).unwrap() && now.remove(&5).is_some());
            }
            "expiry" => {
                put_long(&table, &mut now, 6..10, 2);
                let expiry = Expiry::at_unix_ms(1_500);
                table.put_expiring(&5u64, &row! { n: 2, text: long.as_str() }, expiry).unwrap();
            }
            "a table that is gone" => {
                put_long(&table, &mut now, 6..10, 2);
                gone.put(&5u64, &row! { n: 2, text: long.as_str() }).unwrap();
            }
            _ => put_long(&table, &mut now, 6..7, 2),
        }
        engine.move_now();
        clock.advance_ms(1_000);
        drop(gone);
        assert!(db.drop_table("gone").unwrap());
        let (before, runs) = (engine.runs.merged().bytes, runs_of(engine));
        merge(engine, 0..runs).unwrap();
        assert!(engine.runs.merged().bytes > before, "{reason}");
        assert_eq!((content(&db), runs_of(engine)), (now, 1), "{reason}");
        let runs = engine.runs.current();
        let counts = runs.counts();
        assert_eq!(
            (counts.tombstones, counts.rows),
            (0, runs.files().iter().map(|sst| sst.counts().rows).sum())
        );
        let gone =
            |known: &crate::sst::SstTable| known.table != table.shared().id.load(atomic::Ordering::Relaxed);
        assert!(!runs.files().iter().any(|sst| sst.tables().iter().any(gone)), "{reason}");
    }
}

/// A cut while files change their run, and while what lies between them is written.
#[test]
fn a_cut_at_any_place_of_an_edit_that_hands_down_takes_nothing() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let db = open_swept(&sim).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    let (engine, mut now) = (table.engine(), Content::new());
    let mut states = vec![(sim.ops(), now.clone())];
    let mut handed_down = 0;
    for (keys, merges) in [(0..2, None), (2..4, None), (6..8, Some(0..3)), (3..5, None), (8..11, Some(0..3))]
    {
        for key in keys {
            put_long(&table, &mut now, key..key + 1, key as i64);
            states.push((sim.ops(), now.clone()));
        }
        engine.move_now();
        if let Some(runs) = merges {
            let before = engine.runs.merged();
            let slices = merge(engine, runs).unwrap();
            handed_down += u64::from(engine.runs.merged().bytes == before.bytes && slices > 0);
        }
        assert_eq!(content(&db), now);
        states.push((sim.ops(), now.clone()));
    }
    assert!(handed_down == 1 && runs_of(engine) == 1, "{handed_down} merges wrote nothing");
    assert_eq!(sweep(&sim, &states, false), None);
}

/// Runs of stretches of keys, some of which meet, merged at random: after each slice, each opening and under a scan all is as it should be.
#[test]
fn runs_of_stretches_of_keys_are_merged_as_the_model_says() {
    let (mut slices, mut written, mut all) = (0, 0, 0);
    for seed in 0..6 {
        let (mut sim, mut random) = (CrashSim::new(CrashModel::Pages, 32 << 20), Random::from_seed(seed));
        let (mut db, mut now) = (open(&sim, Durability::Process), Content::new());
        db.create_table("t", schema()).unwrap();
        for round in 0..24 {
            let (table, start) = (db.table("t").unwrap(), random.below(60));
            put_long(&table, &mut now, start..start + 2 + random.below(7), round);
            if random.below(3) == 0 {
                let gone = start + random.below(9);
                assert_eq!(table.delete(&gone).unwrap(), now.remove(&gone).is_some());
            }
            db.engine().move_now();
            let engine = db.engine();
            if round % 4 == 3 {
                let mut job = job_of(engine, random_runs(engine, &mut random));
                let mut scan = table.scan();
                let halfway: Vec<_> = scan.by_ref().take(5).map(of_row).collect();
                while merge_one(engine, &mut job).unwrap() == Merged::Slice {
                    slices += 1;
                    let found: Content = table.scan().map(of_row).collect();
                    assert!(found == now, "seed {seed}, round {round}");
                }
                assert!(halfway.into_iter().chain(scan.map(of_row)).eq(now.clone()), "a scan under way");
                engine.runs.remove_dropped();
                db.check_counts().unwrap();
            }
            if round == 13 {
                (written, all) =
                    (written + engine.runs.merged().bytes, all + bytes_in(&engine.runs.current()));
                drop(table);
                let killed = CrashSim::from_image(&sim.process_kill());
                (db, sim) = (open(&killed, Durability::Process), killed);
                assert!(db.table("t").unwrap().scan().map(of_row).eq(now.clone()));
            }
        }
        merge(db.engine(), 0..runs_of(db.engine())).unwrap();
        db.engine().runs.remove_dropped();
        assert_eq!((runs_of(db.engine()), file_numbers(&sim)), (1, counted(&db)));
        assert!(db.table("t").unwrap().scan().map(of_row).eq(now));
        db.engine().runs.files_once().iter().for_each(|sst| sst.verify().unwrap());
    }
    assert!(slices > 40 && written > 0 && all > 0, "{slices} slices, {written} written, {all} there");
}

#[test]
fn a_thread_merges_runs() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, [table, _]) = two_tables(&sim, true);
    for n in 0..20 {
        put_all(&table, 100 * n..100 * n + 100, n as i64);
        db.engine().move_now();
    }
    let since = std::time::Instant::now();
    while runs_of(db.engine()) > 8 {
        assert!(since.elapsed().as_secs() < 300, "nobody merges");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(table.scan().count(), 2_000);
}

/// Rows that are put again when they have left the log count once more until they are merged with what they were put with; and no longer, though a part of the file that has them
/// counts on.
#[test]
fn rows_that_are_put_again_count_once_when_they_are_merged() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, Durability::Process);
    let table = db.create_table("t", schema()).unwrap();
    let opened_again = || {
        let killed = CrashSim::from_image(&sim.process_kill());
        open(&killed, Durability::Process).table("t").unwrap().len()
    };
    put_all(&table, 0..3_000, 1);
    db.engine().move_now();
    assert_eq!(table.len(), 3_000, "none was put again");
    (0..500u64).for_each(|key| table.update(&key, &row! { n: 2i64 }).unwrap());
    assert_eq!(table.len(), 3_500, "nobody looked whether there is a row under a delta");
    db.engine().move_now();
    assert_eq!(table.len(), 3_500, "nor when they moved");
    put_all(&table, 1_000..1_400, 3);
    (1_400..1_500u64).for_each(|key| assert!(table.delete(&key).unwrap()));
    db.check_counts().unwrap();
    let too_high = 3_900;
    assert_eq!((table.len(), opened_again()), (too_high, too_high), "put again, and deleted");
    db.engine().move_now();
    assert_eq!((table.len(), runs_of(db.engine())), (too_high, 3));
    // All that newer runs have is merged, and of the oldest run's file no more.
    let id = table.shared().id.load(atomic::Ordering::Relaxed);
    let upto = Some(composite_key(id, 1_499u64.key_bytes().as_ref()));
    let mut job = MergeJob { upto, ..job_of(db.engine(), 0..3) };
    while merge_one(db.engine(), &mut job).unwrap() == Merged::Slice {}
    let runs = Arc::clone(&db.engine().runs.current());
    let is_cut = |range: &OpenRange| range.keys != *range.sst.keys();
    assert!(runs.runs().len() == 1 && runs.runs()[0].ranges.iter().any(is_cut), "a part of a file counts");
    assert_eq!((table.len(), opened_again()), (2_900, 2_900));
    assert_eq!(table.scan().count(), 2_900);
    // What is left of it goes, and what was said of it with it.
    merge(db.engine(), 0..1).unwrap();
    let mut job = MergeJob { upto: Some(vec![0xFF; 16]), ..job_of(db.engine(), 0..1) };
    while merge_one(db.engine(), &mut job).unwrap() == Merged::Slice {}
    assert_eq!((table.len(), opened_again()), (2_900, 2_900));
}

mod garbage;
