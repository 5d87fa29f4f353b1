//! Loads: what the table has then, every cut, every fault, every lie.

use std::collections::BTreeMap;
use std::time::Duration;

use hedgerow_device::{
    CapacityTier, CrashModel, CrashSim, FastTier, Fault, FileCall, Image, Refusal, Survivors, SyncOf,
    WritePath,
};

use super::*;
use crate::db::fixture::{Scratch, options};
use crate::inspect::View;
use crate::sst::{Compression, SstId, SstKey};
use crate::{Db, Durability, Options, Schema, Type, row};

const MODELS: [CrashModel; 2] = [CrashModel::Pages, CrashModel::CacheLines];
/// Keys of the tests are below.
const KEYS: u64 = 40;
/// Rows are so long that a load takes several files.
const PAD_BYTES: usize = 12_000;

fn immediate() -> Options {
    Options { durability: Durability::Immediate, compression: Compression::None, ..options() }
}

fn sim(model: CrashModel) -> CrashSim {
    CrashSim::new(model, 24 << 20)
}

fn open_with(sim: &CrashSim, options: Options) -> Result<Db> {
    Db::open_on((FastTier::simulated(sim), CapacityTier::simulated(sim)), options)
}

fn open(sim: &CrashSim) -> Db {
    open_with(sim, immediate()).unwrap()
}

fn schema() -> Schema {
    Schema::new().field("n", Type::U64).field("pad", Type::Bytes)
}

/// Tables, and the number in each of their rows.
type Content = BTreeMap<&'static str, BTreeMap<u64, u64>>;

/// What a row says, whose number is its first field: wherever it is.
fn number_of(db: &Db, table: &Table, key: u64) -> Option<u64> {
    if let Some(row) = table.get(&key).unwrap() {
        return Some(row.get_as("n").unwrap());
    }
    let id = table.shared().id.load(Ordering::Relaxed);
    let found = db.engine.runs.current().find(&SstKey::new(id, key.key_bytes().as_ref()), u64::MAX).unwrap();
    let body = found.records().first()?.body().to_vec();
    let is_it = |n: &u64| body.windows(8).any(|bytes| bytes == n.to_le_bytes());
    Some((1_000..2_000).find(is_it).expect("a row of these tests"))
}

fn content(db: &Db) -> Content {
    let of_table = |name: &'static str| {
        let table = db.table(name).ok()?;
        let rows = (0..KEYS).filter_map(|key| Some((key, number_of(db, &table, key)?)));
        Some((name, rows.collect()))
    };
    ["t", "u"].into_iter().filter_map(of_table).collect()
}

fn load(table: &Table, keys: impl Iterator<Item = u64>, n: u64) -> Result<()> {
    table.load(|loader| {
        let pad = vec![7; PAD_BYTES];
        keys.into_iter().try_for_each(|key| loader.push(&key, &row! { n: n, pad: &pad }))
    })
}

/// The files that there are, but for the manifest.
fn file_numbers(sim: &CrashSim) -> Vec<u64> {
    sim.process_kill().file_names().iter().filter_map(|name| SstId::number_in(name)).collect()
}

/// The numbers of those that count.
fn counted(db: &Db) -> Vec<u64> {
    let runs = db.engine.runs.current();
    let mut numbers: Vec<u64> =
        runs.runs().iter().flat_map(|run| run.ranges.iter().map(|range| range.sst.id().number)).collect();
    numbers.sort_unstable();
    numbers
}

/// Steps, and what there is after each and after how many operations of the medium: as far as they succeed, into `states`.
fn script(sim: &CrashSim, db: &Db, states: &mut Vec<(u64, Content)>) -> Result<()> {
    states.push((sim.ops(), Content::new()));
    let mut done = |db: &Db, change: &dyn Fn(&mut Content)| {
        let mut next = states.last().map_or_else(Content::new, |(_, content)| content.clone());
        change(&mut next);
        assert_eq!(content(db), next);
        states.push((sim.ops(), next));
    };
    let rows = |keys: std::ops::Range<u64>, n: u64| keys.map(move |key| (key, n)).collect::<BTreeMap<_, _>>();
    let t = db.create_table("t", schema())?;
    done(db, &|now| drop(now.insert("t", BTreeMap::new())));
    let u = db.create_table("u", schema())?;
    done(db, &|now| drop(now.insert("u", BTreeMap::new())));
    for key in 3..6u64 {
        t.put(&key, &row! { n: 1_000u64 })?;
        done(db, &|now| now.get_mut("t").unwrap().extend([(key, 1_000)]));
    }
    load(&t, 0..KEYS, 1_001)?;
    done(db, &|now| drop(now.insert("t", rows(0..KEYS, 1_001))));
    t.put(&5u64, &row! { n: 1_002u64 })?;
    done(db, &|now| now.get_mut("t").unwrap().extend([(5, 1_002)]));
    load(&u, 10..30, 1_003)?;
    done(db, &|now| drop(now.insert("u", rows(10..30, 1_003))));
    load(&t, 20..25, 1_004)?;
    done(db, &|now| drop(now.insert("t", rows(20..25, 1_004))));
    u.clear()?;
    done(db, &|now| drop(now.insert("u", BTreeMap::new())));
    u.put(&7u64, &row! { n: 1_005u64 })?;
    done(db, &|now| drop(now.insert("u", rows(7..8, 1_005))));
    load(&t, 0..0, 0)?;
    done(db, &|now| drop(now.insert("t", BTreeMap::new())));
    load(&t, 0..2, 1_006)?;
    done(db, &|now| drop(now.insert("t", rows(0..2, 1_006))));
    db.drop_table("t")?;
    done(db, &|now| drop(now.remove("t")));
    Ok(())
}

fn states_of(sim: &CrashSim) -> Vec<(u64, Content)> {
    let mut states = Vec::new();
    script(sim, &open(sim), &mut states).unwrap();
    states
}

/// What is wrong with what a crash left, if anything is.
fn wrong_with(image: &Image, states: &[(u64, Content)], acknowledged: usize) -> Option<String> {
    wrong_with_any(image, &states[acknowledged..states.len().min(acknowledged + 2)])
}

/// The same where any of these states may be.
fn wrong_with_any(image: &Image, allowed: &[(u64, Content)]) -> Option<String> {
    let sim = CrashSim::from_image(image);
    let db = match open_with(&sim, immediate()) {
        Ok(db) => db,
        Err(error) => return Some(error.to_string()),
    };
    let found = content(&db);
    if allowed.iter().all(|(_, state)| *state != found) {
        return Some(format!("{found:?} instead of {allowed:?}"));
    }
    if file_numbers(&sim) != counted(&db) {
        return Some(format!("files {:?}, of which {:?} count", file_numbers(&sim), counted(&db)));
    }
    for run in db.engine.runs.current().runs() {
        for range in &run.ranges {
            let has_table = |id| db.engine.catalog.by_id(id).is_some();
            if !range.sst.tables().iter().any(|known| has_table(known.table)) {
                return Some("a file of a table that is gone counts".to_owned());
            }
            if let Err(error) = range.sst.verify() {
                return Some(error.to_string());
            }
        }
    }
    // It goes on from there, and a power cut right after takes nothing of that.
    let table = match db.create_table("t", schema()) {
        Ok(table) => table,
        Err(error) => return Some(error.to_string()),
    };
    if let Err(error) = load(&table, 1..3, 1_100) {
        return Some(error.to_string());
    }
    let expected = content(&db);
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let left = CrashSim::from_image(&walk.image(Survivors::None, 0));
    let again = content(&open(&left));
    (again != expected || again["t"].len() != 2).then(|| format!("{again:?} after {expected:?}"))
}

/// The images after each of every `step` operations, until one is wrong.
fn sweep(sim: &CrashSim, states: &[(u64, Content)], step: u64) -> Option<String> {
    let mut walk = sim.walk();
    walk.seek(states[0].0);
    loop {
        let done = states.iter().rposition(|(at, _)| *at <= walk.op_index())?;
        let is_edge = states.iter().any(|(at, _)| at.abs_diff(walk.op_index()) < 2);
        if is_edge || walk.op_index().is_multiple_of(step) {
            for image in walk.images(&Survivors::EACH, 5) {
                if let Some(wrong) = wrong_with(&image, states, done) {
                    return Some(format!(
                        "after {} operations, {:?}: {wrong}",
                        image.op_index, image.survivors
                    ));
                }
            }
        }
        if !walk.next_op() {
            return None;
        }
    }
}

#[test]
fn a_cut_at_any_place_leaves_the_old_rows_or_the_new() {
    for model in MODELS {
        let sim = sim(model);
        let states = states_of(&sim);
        assert_eq!(sweep(&sim, &states, 1), None, "{model:?}");
    }
}

/// Writes that are not synced: a power cut takes back a part of them, and never the rows of a table without the change that took them away.
#[test]
fn a_cut_takes_back_changes_with_their_rows() {
    let sim = sim(CrashModel::Pages);
    let db = open_with(&sim, Options { durability: Durability::Process, ..immediate() }).unwrap();
    let mut states = Vec::new();
    script(&sim, &db, &mut states).unwrap();
    let mut walk = sim.walk();
    walk.seek(states[0].0);
    while walk.next_op() {
        let done = states.iter().rposition(|(at, _)| *at <= walk.op_index()).unwrap();
        for image in walk.images(&Survivors::EACH, 7) {
            let from = if image.same_boot { done } else { 0 };
            let wrong = wrong_with_any(&image, &states[from..states.len().min(done + 2)]);
            assert_eq!(wrong, None, "after {} operations, {:?}", image.op_index, image.survivors);
        }
    }
}

/// A load is durable when it returns, in every mode: of a table that had sorted tables before, and of one that had none.
#[test]
fn no_cut_takes_back_a_load_that_has_returned() {
    for durability in
        [Durability::Process, Durability::Interval(Duration::from_secs(3600)), Durability::Immediate]
    {
        for loads in 1..4 {
            let sim = sim(CrashModel::Pages);
            let db = open_with(&sim, Options { durability, ..immediate() }).unwrap();
            let table = db.create_table("t", schema()).unwrap();
            (1..=loads).for_each(|n| load(&table, 0..30, n).unwrap());
            for image in sim.images_at(u64::MAX, 7, Survivors::EACH.len()) {
                let db = open(&CrashSim::from_image(&image));
                let found = db.table("t").unwrap();
                assert_eq!(found.len(), 30, "{durability:?}, {loads} loads, {:?}", image.survivors);
                assert_eq!(number_of(&db, &found, 7), Some(loads));
            }
        }
    }
}

/// The power goes while a killed process is followed by another: what opening removes, no root names that the disk has.
#[test]
fn a_cut_while_it_is_opened_leaves_what_was_there() {
    let sim = sim(CrashModel::Pages);
    let states = states_of(&sim);
    let mut walk = sim.walk();
    walk.seek(states[0].0);
    while walk.next_op() {
        let done = states.iter().rposition(|(at, _)| *at <= walk.op_index()).unwrap();
        let killed = CrashSim::from_image(&walk.image(Survivors::ProcessKill, 0));
        drop(open(&killed));
        let mut opening = killed.walk();
        while opening.next_point() {
            for kind in [Survivors::None, Survivors::Random] {
                let wrong = wrong_with(&opening.image(kind, 1), &states, done);
                let at = (walk.op_index(), opening.op_index());
                assert_eq!(wrong, None, "after {at:?} operations, {kind:?}");
            }
        }
    }
}

/// Keys so long that a pair of the manifest takes few edits: the next takes its place.
#[test]
fn a_cut_while_the_manifest_begins_anew_leaves_either() {
    let sim = sim(CrashModel::Pages);
    let keys = [vec![b'a'; 60_000], vec![b'b'; 60_000]];
    let number = |db: &Db| -> Option<u64> {
        let table = db.table("t").unwrap();
        let id = table.shared().id.load(Ordering::Relaxed);
        let found = db.engine.runs.current().find(&SstKey::new(id, &keys[1]), u64::MAX).unwrap();
        let body = found.records().first()?.body().to_vec();
        (1_000..1_020).find(|n: &u64| body.windows(8).any(|bytes| bytes == n.to_le_bytes()))
    };
    let copies =
        |image: &Image| image.file_names().iter().filter(|name| name.starts_with("manifest")).count();
    let db = open(&sim);
    let table = db.create_table("t", schema()).unwrap();
    let mut states = vec![(sim.ops(), None)];
    for n in 1_000..1_014u64 {
        table.load(|loader| keys.iter().try_for_each(|key| loader.push(key, &row! { n: n }))).unwrap();
        states.push((sim.ops(), Some(n)));
        assert_eq!(number(&db), Some(n));
    }
    assert!(db.engine.log.root().manifest > 2, "{} is the pair", db.engine.log.root().manifest);
    let mut walk = sim.walk();
    walk.seek(states[0].0);
    while walk.next_op() {
        let done = states.iter().rposition(|(at, _)| *at <= walk.op_index()).unwrap();
        let allowed = &states[done..states.len().min(done + 2)];
        let check = |image: &Image| {
            let left = CrashSim::from_image(image);
            let db = open(&left);
            let found = number(&db);
            let is_allowed = allowed.iter().any(|(_, state)| *state == found);
            assert!(is_allowed, "{found:?} instead of {allowed:?} after {}", walk.op_index());
            let expected = if db.engine.log.root().manifest == 0 { 0 } else { 2 };
            assert_eq!(copies(&left.process_kill()), expected);
            assert_eq!(file_numbers(&left), counted(&db));
            left
        };
        for image in walk.images(&Survivors::EACH, 3) {
            let left = check(&image);
            // Both pairs are there: the power goes while opening removes the one that the root does not name.
            let mut opening = left.walk();
            while image.same_boot && copies(&image) == 4 && opening.next_point() {
                check(&opening.image(Survivors::None, 1));
            }
        }
    }
}

/// Every call on files, and every persist of the log, refused once or from then on: the table has its old rows or the new at once, and whatever becomes of the
/// process afterwards.
#[test]
fn a_fault_at_any_place_leaves_the_old_rows_or_the_new() {
    let whole = states_of(&sim(CrashModel::Pages));
    let calls = [FileCall::Create, FileCall::Write, FileCall::Sync, FileCall::SyncNames, FileCall::Remove];
    let (mut failed, mut closed) = (0, 0);
    for call in calls.map(Some).into_iter().chain([None]) {
        for (after, sticky) in (0..60).flat_map(|after| [(after, false), (after, true)]) {
            let refusal = if after % 2 == 0 { Refusal::Io } else { Refusal::NoSpace };
            let sim = sim(CrashModel::Pages);
            let (db, mut states) = (open(&sim), Vec::new());
            let fault = Fault { after, sticky, refusal };
            match call {
                Some(call) => sim.fail_file_calls(call, fault),
                None => sim.fail_persists(fault),
            }
            let outcome = script(&sim, &db, &mut states);
            sim.clear_faults();
            let (done, context) = (states.len() - 1, format!("{call:?} {fault:?}: {outcome:?}"));
            failed += u64::from(outcome.is_err());
            closed += u64::from(db.engine.log.check_writable().is_err());
            let now = content(&db);
            let allowed = &whole[done..whole.len().min(done + 2)];
            assert!(allowed.iter().any(|(_, state)| *state == now), "{context}: {now:?}");
            let mut walk = sim.walk();
            walk.seek(u64::MAX);
            for kind in [Survivors::ProcessKill, Survivors::None, Survivors::All, Survivors::Random] {
                let wrong = wrong_with(&walk.image(kind, 3), &whole, done);
                assert_eq!(wrong, None, "{context}, {kind:?}");
            }
        }
    }
    assert!(failed > 150 && closed > 100, "{failed} of the scripts failed, {closed} closed their store");
}

/// What each promise rests on: with one left out some cut shows it.
#[test]
fn the_sweep_notices_each_sync_that_is_left_out() {
    let lies: [fn(SyncOf<'_>) -> bool; 3] = [
        |of| matches!(of, SyncOf::File(name) if name.ends_with(".sst")),
        // Of either one alone: `manifest/edits/tests.rs`, where the other rots.
        |of| matches!(of, SyncOf::File(name) if name.starts_with("manifest")),
        |of| of == SyncOf::Names,
    ];
    for (n, lie) in lies.into_iter().enumerate() {
        let sim = sim(CrashModel::Pages);
        let db = open(&sim);
        sim.lie_about_file_syncs(Some(lie));
        let mut states = Vec::new();
        script(&sim, &db, &mut states).unwrap();
        let wrong = sweep(&sim, &states, 1);
        assert!(wrong.is_some(), "lie {n}");
    }
}

/// The log's syncs, that of the checkpoint before the edit among them.
#[test]
fn the_sweep_notices_a_log_that_is_not_synced() {
    let sim = sim(CrashModel::Pages);
    let db = open(&sim);
    let table = db.create_table("t", schema()).unwrap();
    db.persist().unwrap();
    let before = (sim.ops(), content(&db));
    sim.lie_about_persists(Some(|offset, len| (offset, len) == (0, u64::MAX)));
    load(&table, 0..9, 1_001).unwrap();
    let states = [before, (sim.ops(), content(&db))];
    assert!(sweep(&sim, &states, 1).is_some());
}

#[test]
fn a_load_takes_several_files_and_numbers_are_given_once() {
    let sim = sim(CrashModel::Pages);
    let mut given = Vec::new();
    for round in 0..4 {
        let db = open(&sim);
        let table = db.create_table("t", schema()).unwrap();
        let generation = db.engine.runs.current().generation();
        load(&table, 0..KEYS, 1_000 + round).unwrap();
        assert!(db.engine.runs.current().generation() > generation);
        let counts = counted(&db);
        assert!(counts.len() > 1, "{counts:?}");
        given.extend(counts);
        // One that is begun and comes to nothing.
        let wrong = |loader: &mut Loader<'_>| {
            loader.push(&1u64, &row! { n: 1u64 })?;
            Err::<(), _>(Error::invalid("never mind"))
        };
        assert_eq!(table.load(wrong).unwrap_err().message(), "never mind");
        assert_eq!(file_numbers(&sim), counted(&db));
        assert_eq!(table.len(), KEYS);
        drop(table);
        db.close().unwrap();
        let db = open(&sim);
        let table = db.table("t").unwrap();
        assert!(table.shared().below() && table.len() == KEYS, "opened again");
        if round == 3 {
            table.clear().unwrap();
            assert!(!table.shared().below() && table.is_empty());
            load(&table, 0..1, 1_000).unwrap();
            assert!(table.shared().below());
        }
    }
    let once = given.len();
    given.dedup();
    given.sort_unstable();
    assert_eq!(given.len(), once, "a number was given twice: {given:?}");
}

#[test]
fn rows_that_cannot_be_loaded_are_refused_and_others_follow() {
    let sim = sim(CrashModel::Pages);
    let table = open(&sim).create_table("t", schema()).unwrap();
    table
        .load(|loader| {
            assert!(loader.is_empty());
            loader.push("b", &row! { n: 1_001u64 })?;
            for key in ["b", "a", ""] {
                let error = loader.push(key, &row! { n: 1_002u64 }).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            }
            let said = loader.push("a", &row! { n: 1_002u64 }).unwrap_err();
            assert!(said.message().contains("a does not come after b"), "{said}");
            let long = vec![0; crate::limits::ROW_BYTES_MAX + 1];
            assert_eq!(loader.push("c", &row! { pad: &long }).unwrap_err().kind(), ErrorKind::Invalid);
            assert_eq!(loader.push("c", &row! { nobody: 1 }).unwrap_err().kind(), ErrorKind::NotFound);
            loader.push_expiring("d", &row! { n: 1_003u64 }, std::time::Duration::from_secs(60))?;
            assert_eq!(loader.len(), 2);
            Ok(())
        })
        .unwrap();
    assert_eq!(table.len(), 2);
}

/// What else a program can get wrong: each is refused by what it is, and costs neither what was there nor the rows beside it.
#[test]
fn misuse_is_refused_and_leaves_what_was_there() {
    let sim = sim(CrashModel::Pages);
    let db = open(&sim);
    let table = db.create_table("t", schema()).unwrap();
    load(&table, 0..3, 1_000).unwrap();
    table.put(&3u64, &row! { n: 1_000u64 }).unwrap();
    let old = content(&db);
    let ended = table.load(|loader| {
        loader.push(&1u64, &row! { n: 1_001u64 })?;
        // A text for a number.
        let refused = loader.push(&2u64, &row! { n: "1001" }).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        assert_eq!(loader.len(), 1);
        loader.push(&1u64, &row! { n: 1_001u64 })
    });
    assert!(ended.unwrap_err().message().contains("rising order"), "given back by `fill`, it ends the load");
    assert_eq!((content(&db), file_numbers(&sim)), (old.clone(), counted(&db)));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        table.load(|loader| -> Result<()> {
            loader.push(&1u64, &row! { n: 1_001u64 })?;
            panic!("of the program");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!((content(&db), file_numbers(&sim)), (old.clone(), counted(&db)));
    // A load of the table in a load of it: each replaces all, the one that ends last counts.
    let loads = table.load(|loader| {
        load(&table, 5..8, 1_002)?;
        loader.push(&1u64, &row! { n: 1_001u64 })
    });
    loads.unwrap();
    assert_eq!(content(&db)["t"], BTreeMap::from([(1, 1_001)]));
    assert_eq!(file_numbers(&sim), counted(&db));
}

/// A store that is opened for reading, and one that is to have no sorted tables.
#[test]
fn a_store_that_is_not_to_have_any_takes_no_load_and_makes_no_directory() {
    let scratch = Scratch::new("load-refused");
    let store = scratch.at("store");
    let db = Db::open_with(&store, Options { capacity_bytes_max: 0, ..immediate() }).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    let refused = table.load(|_| -> Result<()> { panic!("nobody is asked for rows that have no room") });
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    assert!(refused.message().contains("capacity_bytes_max is 0"), "{refused}");
    assert!(!store.join("capacity").exists());
    drop(table);
    db.close().unwrap();
    let db = Db::open_with(&store, Options { read_only: true, ..immediate() }).unwrap();
    let refused = load(&db.table("t").unwrap(), 0..3, 1_000).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
}

/// Readers of rows and by scans while the table is loaded anew: nobody sees it without rows, and after a row of one load none of an earlier.
#[test]
fn readers_beside_loads_see_no_row_of_an_earlier_one_after_a_later() {
    let sim = sim(CrashModel::Pages);
    let db = open(&sim);
    let table = db.create_table("t", schema()).unwrap();
    load(&table, 0..KEYS, 1_000).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let scans = scope.spawn(|| {
            let mut seen = std::collections::BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                let rows: Vec<u64> =
                    table.scan().map(|row| row.unwrap().get_as::<u64>("n").unwrap()).collect();
                assert_eq!(rows.len() as u64, KEYS, "{rows:?}");
                assert!(rows.is_sorted(), "of an earlier load behind those of a later: {rows:?}");
                seen.extend(rows);
            }
            seen.len()
        });
        let gets = scope.spawn(|| {
            let mut newest = 0;
            while !stop.load(Ordering::Relaxed) {
                let n = table.get(&7u64).unwrap().expect("it is in all loads").get_as::<u64>("n").unwrap();
                assert!(n >= newest, "{n} after {newest}");
                newest = n;
            }
        });
        let loaded: Result<()> = (1_001..1_020).try_for_each(|n| load(&table, 0..KEYS, n));
        stop.store(true, Ordering::Relaxed);
        loaded.unwrap();
        gets.join().unwrap();
        assert!(scans.join().unwrap() > 0);
    });
    assert_eq!(content(&db)["t"][&7], 1_019);
}

/// A table that was dropped while rows were pushed, a store that has no room for them, one that has no place.
#[test]
fn a_load_that_cannot_be_done_leaves_no_file() {
    let sim = sim(CrashModel::Pages);
    let db = open_with(&sim, Options { capacity_bytes_max: 300 << 10, ..immediate() }).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    table.put(&1u64, &row! { n: 1_000u64 }).unwrap();
    let error = load(&table, 0..KEYS, 1_001).unwrap_err();
    assert!(error.kind() == ErrorKind::Full && error.message().contains("the limit is 307200"), "{error}");
    assert_eq!(file_numbers(&sim), [0; 0]);
    load(&table, 0..5, 1_002).unwrap();
    load(&table, 0..5, 1_003).unwrap();
    assert_eq!(content(&db)["t"].len(), 5);
    let dropped = table.load(|loader| {
        loader.push(&1u64, &row! { n: 1_004u64 })?;
        db.drop_table("t").map(drop)
    });
    assert_eq!(dropped.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(file_numbers(&sim), [0; 0]);

    let alone = Db::open_on(FastTier::simulated(&CrashSim::new(CrashModel::Pages, 24 << 20)), immediate());
    let table = alone.unwrap().create_table("t", schema()).unwrap();
    let error = load(&table, 0..5, 1_001).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("Options::capacity"), "{error}");
}

/// What was written while rows were pushed goes with the old rows; a snapshot from then sees none of the new.
#[test]
fn what_was_there_meanwhile_is_replaced() {
    let sim = sim(CrashModel::Pages);
    let db = open(&sim);
    let table = db.create_table("t", schema()).unwrap();
    let taken = table
        .load(|loader| {
            table.put(&1u64, &row! { n: 1_001u64 })?;
            loader.push(&2u64, &row! { n: 1_002u64 })?;
            table.add_field("more", Type::U64)?;
            loader.push(&3u64, &row! { n: 1_003u64, more: 4u64 })?;
            Ok(db.engine.log.last_sequence())
        })
        .unwrap();
    assert_eq!(content(&db)["t"], BTreeMap::from([(2, 1_002), (3, 1_003)]));
    let id = table.shared().id.load(Ordering::Relaxed);
    let key = SstKey::new(id, 2u64.key_bytes().as_ref());
    let seen = |upto| !db.engine.runs.current().find(&key, upto).unwrap().is_empty();
    assert!(!seen(taken) && seen(db.engine.log.last_sequence()));
}

fn names_in(path: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A directory of sorted tables is made when it is needed, and asked for when it is not there.
#[test]
fn a_store_is_not_opened_without_its_directory() {
    let scratch = Scratch::new("load-directory");
    let (store, moved) = (scratch.at("store"), scratch.at("elsewhere"));
    let db = Db::open_with(&store, immediate()).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    table.put(&1u64, &row! { n: 1_000u64 }).unwrap();
    assert_eq!(names_in(&store), ["fast", "fast.id", "fast.lock"]);
    load(&table, 0..5, 1_001).unwrap();
    drop(table);
    db.close().unwrap();
    assert!(names_in(&store.join("capacity")).iter().any(|name| name.ends_with(".sst")));
    std::fs::write(store.join("capacity/README.sst"), "of somebody else").unwrap();
    std::fs::write(store.join("capacity/00000099.sst"), [0; 10]).unwrap();
    std::fs::rename(store.join("capacity"), &moved).unwrap();
    for read_only in [false, true] {
        let options = Options { read_only, ..immediate() };
        let error = Db::open_with(&store, options.clone()).map(drop).unwrap_err();
        let said = error.message();
        assert!(error.kind() == ErrorKind::Invalid && said.contains("Options::capacity"), "{error}");
        assert_eq!(names_in(&store), ["fast", "fast.id", "fast.lock"]);
        assert!(
            names_in(&moved).contains(&"00000099.sst".to_owned()),
            "nothing is removed by who only reads"
        );
    }
    let db = Db::open_with(&store, Options { read_only: true, ..immediate() }.capacity(&moved)).unwrap();
    assert_eq!(content(&db)["t"].len(), 5);
    drop(db);
    let db = Db::open_with(&store, immediate().capacity(&moved)).unwrap();
    assert_eq!(content(&db)["t"].len(), 5);
    let names = names_in(&moved);
    assert!(
        !names.contains(&"00000099.sst".to_owned()) && names.contains(&"README.sst".to_owned()),
        "{names:?}"
    );
}

#[test]
fn the_directory_of_another_store_stays_as_it_is() {
    let scratch = Scratch::new("load-another");
    let shared = scratch.at("shared");
    let options = immediate().capacity(&shared);
    // One that was opened before there was anything to look at.
    let early = Db::open_with(scratch.at("early"), options.clone()).unwrap();
    let db = Db::open_with(scratch.at("one"), options.clone()).unwrap();
    load(&db.create_table("t", schema()).unwrap(), 0..5, 1_001).unwrap();
    db.close().unwrap();
    let there = names_in(&shared);
    let table = early.create_table("t", schema()).unwrap();
    for _ in 0..2 {
        let error = load(&table, 0..5, 1_001).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.message().contains("another store"), "{error}");
        assert_eq!(names_in(&shared), there);
    }
    early.close().unwrap();
    let error = Db::open_with(scratch.at("other"), options.clone()).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("another store"), "{error}");
    assert_eq!(names_in(&shared), there);
    let db = Db::open_with(scratch.at("one"), options).unwrap();
    assert_eq!(content(&db)["t"].len(), 5);
}

/// Files that are not ours under such names as ours have: what is in them may be all that there is of it.
#[test]
fn files_of_others_are_refused_by_name_and_stay() {
    let scratch = Scratch::new("load-foreign");
    let store = scratch.at("store");
    let db = Db::open_with(&store, immediate()).unwrap();
    load(&db.create_table("t", schema()).unwrap(), 0..5, 1_001).unwrap();
    db.close().unwrap();
    let files = store.join("capacity");
    let there = names_in(&files);
    for name in ["00000099.sst", "manifest-00000009.a"] {
        for text in ["notes".to_owned(), "notes".repeat(2_000)] {
            std::fs::write(files.join(name), &text).unwrap();
            let error = Db::open_with(&store, immediate()).map(drop).unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.message().contains(name), "{error}");
            assert_eq!(std::fs::read_to_string(files.join(name)).unwrap(), text);
        }
        // What a crash leaves of ours goes: a name alone, pages that nothing was written to.
        for left in [0, 100, 8_192] {
            std::fs::write(files.join(name), vec![0; left]).unwrap();
            let db = Db::open_with(&store, immediate()).unwrap();
            assert_eq!(content(&db)["t"].len(), 5);
            db.close().unwrap();
            assert_eq!(names_in(&files), there);
        }
    }
}

/// Each of them alone would have room.
#[test]
fn loads_at_the_same_time_keep_to_the_limit_together() {
    let sim = sim(CrashModel::Pages);
    let most = 380 << 10;
    let options = Options { capacity_bytes_max: most, compression: crate::Compression::None, ..immediate() };
    let db = open_with(&sim, options).unwrap();
    let schema = Schema::new().field("text", Type::String);
    let [one, other] = ["one", "other"].map(|name| db.create_table(name, schema.clone()).unwrap());
    let text = "x".repeat(1_000);
    let below = || db.metrics().sorted_tables.bytes;
    let refused = one.load(|loader| {
        (0..180u64).try_for_each(|n| loader.push(&n.to_be_bytes(), &[("text", text.as_str().into())]))?;
        let beside = other.load(|loader| {
            (0..180u64).try_for_each(|n| loader.push(&n.to_be_bytes(), &[("text", text.as_str().into())]))
        });
        assert_eq!(beside.unwrap_err().kind(), ErrorKind::Full);
        assert!(below() >= 180_000, "{}", below());
        Ok(())
    });
    refused.unwrap();
    assert!(below() <= most && below() >= 180_000, "{}", below());
    assert_eq!((one.len(), other.len()), (180, 0));
    one.clear().unwrap();
    assert_eq!(below(), 0, "all that was reserved is given back");
}

/// A copy of the fast tier from before an edit, put back: its root names the same manifest, or none.
#[test]
fn an_older_fast_tier_is_refused_and_removes_nothing() {
    let scratch = Scratch::new("load-older");
    let store = scratch.at("store");
    let fast = store.join("fast");
    let db = Db::open_with(&store, immediate()).unwrap();
    drop(db.create_table("t", schema()).unwrap());
    db.close().unwrap();
    std::fs::copy(&fast, scratch.at("copy-0")).unwrap();
    for n in 1..3u64 {
        let db = Db::open_with(&store, immediate()).unwrap();
        load(&db.table("t").unwrap(), 0..5, 1_000 + n).unwrap();
        db.close().unwrap();
        std::fs::copy(&fast, scratch.at(&format!("copy-{n}"))).unwrap();
    }
    let there = names_in(&store.join("capacity"));
    for n in 0..2 {
        std::fs::copy(scratch.at(&format!("copy-{n}")), &fast).unwrap();
        let error = Db::open_with(&store, immediate()).map(drop).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Corrupted && error.message().contains("newer than the fast"),
            "{error}"
        );
        assert_eq!(names_in(&store.join("capacity")), there);
    }
    std::fs::copy(scratch.at("copy-2"), &fast).unwrap();
    let db = Db::open_with(&store, immediate()).unwrap();
    assert_eq!(content(&db)["t"], (0..5).map(|key| (key, 1_002)).collect());
}

#[test]
fn a_file_that_is_missing_or_damaged_is_named() {
    let sim = sim(CrashModel::Pages);
    let db = open(&sim);
    load(&db.create_table("t", schema()).unwrap(), 0..5, 1_001).unwrap();
    let name = SstId { store: 0, number: counted(&db)[0] }.file_name();
    db.close().unwrap();
    let opened = |image: &Image| open_with(&CrashSim::from_image(image), immediate()).map(drop);
    let mut image = sim.process_kill();
    opened(&image).unwrap();
    image.corrupt_file(&name, 20, 1);
    let error = opened(&image).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupted && error.message().contains(&name), "{error}");
    CapacityTier::simulated(&sim).remove(&name).unwrap();
    let error = opened(&sim.process_kill()).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupted && error.message().contains("is missing"), "{error}");
}

fn flip(path: &std::path::Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// What looks at a store knows its sorted tables, says what nothing names, and notices what is damaged.
#[test]
fn a_view_knows_the_sorted_tables() {
    let scratch = Scratch::new("load-view");
    let store = scratch.at("store");
    let files = store.join("capacity");
    let db = Db::open_with(&store, immediate()).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    load(&table, 0..KEYS, 1_001).unwrap();
    load(&db.create_table("u", schema()).unwrap(), 3..5, 1_002).unwrap();
    let id = table.shared().id.load(Ordering::Relaxed);
    drop(table);
    db.close().unwrap();
    std::fs::write(files.join("00000999.sst"), "").unwrap();
    let there = names_in(&files);
    let seen = View::open(&store).unwrap();
    let runs = seen.runs().unwrap();
    assert_eq!((runs.manifest, &runs.left_over[..]), (1, &["00000999.sst".to_owned()][..]));
    assert!(runs.watermark > 0 && runs.watermark <= seen.root().watermark);
    assert_eq!(runs.ranges.iter().map(|range| range.rows).sum::<u64>(), KEYS + 2);
    let first = runs.ranges.iter().find(|range| range.tables.iter().map(|part| part.table).eq([id])).unwrap();
    assert_eq!(first.keys[0], crate::sst::composite_key(id, 0u64.key_bytes().as_ref()));
    let report = seen.check(|_| ()).unwrap();
    assert_eq!((report.problems.len(), report.sorted_tables), (0, runs.ranges.len() as u64), "{report:?}");
    assert_eq!(report.left_over, runs.left_over);
    drop(seen);
    flip(&files.join(&first.file), 4096 + 100);
    flip(&files.join("manifest-00000001.b"), 4096 + 20);
    let report = View::open(&store).unwrap().check(|_| ()).unwrap();
    let problems: Vec<&str> = report.problems.iter().map(|problem| problem.message()).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains(&first.file) && problems[1].contains("manifest-00000001.b"), "{problems:?}");
    assert_eq!(names_in(&files), there, "who looks removes nothing");
}

/// Between the edit and the catalog no table has what counts: what removes garbage leaves it alone, until it is known that none will.
#[test]
fn what_is_being_loaded_is_no_garbage() {
    let sim = sim(CrashModel::Pages);
    let db = open(&sim);
    load(&db.create_table("t", schema()).unwrap(), 0..2, 1_001).unwrap();
    let engine = &db.engine;
    let (id, sequence) = engine.take_table_id().unwrap();
    let loading = engine.runs.loading(id);
    let mut writer = engine.runs.create_file(&engine.log, WritePath::PastPageCache).unwrap();
    let record = SstRecord {
        kind: SstRecordKind::Row,
        table: id,
        key: b"k",
        schema_version: 1,
        sequence,
        expires_at_ms: None,
        has_field_expiries: false,
        body_bytes: 0,
    };
    writer.push(&record, |_| ()).unwrap();
    let file = engine.runs.finish_file(&engine.log, writer, 0).unwrap();
    let number = file.id().number;
    engine.runs.add_run(&engine.log, &[file]).unwrap();
    db.create_table("u", schema()).unwrap();
    db.drop_table("u").unwrap();
    engine.remove_garbage_runs().unwrap();
    assert!(counted(&db).contains(&number));
    drop(loading);
    // Somebody looks into it: the file stays until that is over.
    let held = engine.runs.current().file(number).unwrap().clone();
    engine.remove_garbage_runs().unwrap();
    assert!(!counted(&db).contains(&number) && file_numbers(&sim).contains(&number));
    held.verify().unwrap();
    drop(held);
    db.collect().unwrap();
    assert_eq!(file_numbers(&sim), counted(&db));
    assert_eq!(content(&db)["t"].len(), 2);
}

/// Whoever drops a table waits for no edit of the files, nor for any of them to be removed: a thread does that.
#[test]
fn dropping_a_table_waits_for_no_file() {
    [false, true].into_iter().for_each(drop_while_files_are_held);
}

fn drop_while_files_are_held(closes: bool) {
    let sim = sim(CrashModel::Pages);
    let db = open_with(&sim, Options { background: true, ..immediate() }).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    load(&table, 0..KEYS, 1_000).unwrap();
    assert!(!counted(&db).is_empty());
    let held = table.engine().runs.hold_edits();
    db.create_table("u", schema()).unwrap();
    db.drop_table("t").unwrap();
    drop(held);
    if closes {
        // At once: what a thread was to do is done then.
        drop(table);
        db.close().unwrap();
        assert!(file_numbers(&sim).is_empty(), "{:?}", file_numbers(&sim));
        return;
    }
    for _ in 0..1_000 {
        if file_numbers(&sim).is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("its files stay: {:?}", file_numbers(&sim));
}
