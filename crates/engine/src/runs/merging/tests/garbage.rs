//! What is garbage, and that merging for it comes to an end, whatever cannot be merged.

use super::*;
use crate::runs::RoomFor;
use crate::runs::merges::SAMPLED_AT_ONCE;

/// Rows that were replaced are found by a sample of keys, with no read of the disk.
#[test]
fn garbage_of_rows_that_were_replaced_is_taken_off() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, [table, other]) = two_tables(&sim, false);
    put_all(&table, 0..3_000, 0);
    db.engine().move_now();
    put_all(&other, 0..3_000, 0);
    db.engine().move_now();
    assert_eq!(garbage_in(&db), 0);
    let once = bytes_in(&db.engine().runs.current());
    for n in 1..=3 {
        put_all(&table, 0..3_000, n);
        db.engine().move_now();
    }
    let waits = sim.file_waits();
    let garbage = garbage_in(&db);
    assert_eq!(sim.file_waits(), waits, "to know it costs no read");
    assert!((once..2 * once).contains(&garbage), "{garbage}, and {} are replaced", 3 * once / 2);
    db.collect().unwrap();
    let left = bytes_in(&db.engine().runs.current());
    assert!(left * 10 <= once * 15, "{left} left of what takes {once} once");
    assert_eq!(
        db.engine()
            .runs
            .current()
            .of_table(other.shared().id.load(atomic::Ordering::Relaxed))
            .unwrap()
            .counts
            .rows,
        3_000
    );
    let merged = db.engine().runs.merged();
    db.collect().unwrap();
    assert_eq!(db.engine().runs.merged(), merged, "it has come to rest");
    assert!(table.scan().all(|row| row.unwrap().get_as::<i64>("n").unwrap() == 3));
}

/// What was replaced before a store was opened is found again, by reading some of what is newer.
#[test]
fn garbage_of_before_a_store_was_opened_is_taken_off() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, [table, other]) = two_tables(&sim, false);
    for (of, n) in [(&table, 0), (&other, 0), (&table, 1), (&table, 2)] {
        put_all(of, 0..3_000, n);
        db.engine().move_now();
    }
    let (once, before) = (bytes_in(&db.engine().runs.current()) / 4, garbage_in(&db));
    drop((table, other));
    db.close().unwrap();
    let db = open(&sim, Durability::Process);
    let taken = db.engine().io_budget.taken().bytes;
    let garbage = garbage_in(&db);
    // A record in 64 of all but the oldest, each in a block that is read for it.
    let read = db.engine().io_budget.taken().bytes - taken;
    assert!(read >= 9_000 / 64 * 4096 / 2, "{read} bytes of the budget for what was read");
    assert!(garbage * 10 > before * 9 && garbage * 9 < before * 10, "{garbage}, and before {before}");
    assert_eq!(garbage_in(&db), garbage, "it is found once");
    assert!(db.engine().runs.current().files().iter().all(|sst| sst.blocks_read() == 0), "nobody asked");
    db.collect().unwrap();
    let left = bytes_in(&db.engine().runs.current());
    assert!(left * 10 <= once * 25, "{left} left of what takes {once} once for each table");
    let table = db.table("t").unwrap();
    assert!(table.scan().all(|row| row.unwrap().get_as::<i64>("n").unwrap() == 2));
}

#[test]
fn garbage_of_tables_that_are_gone_is_taken_off() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, [table, other]) = two_tables(&sim, false);
    put_all(&table, 0..500, 0);
    put_all(&other, 0..1_500, 1);
    db.engine().move_now();
    let before = bytes_in(&db.engine().runs.current());
    assert_eq!(db.engine().runs.current().files().len(), 1);
    drop(other);
    db.drop_table("u").unwrap();
    let garbage = garbage_in(&db);
    assert_eq!(garbage * 4, before * 3);
    db.collect().unwrap();
    assert_eq!(bytes_in(&db.engine().runs.current()), before - garbage);
    assert_eq!(garbage_in(&db), 0);
    assert_eq!(table.scan().count(), 500);
}

/// What a merge leaves of what newer runs replaced is still known of.
#[test]
fn garbage_that_a_merge_could_not_see_is_counted_on() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, [table, other]) = two_tables(&sim, false);
    for of in [&other, &table, &table] {
        put_all(of, 0..1_500, 1);
        db.engine().move_now();
    }
    let garbage = || garbage_in(&db);
    let before = garbage();
    let third = bytes_in(&db.engine().runs.current()) / 3;
    assert!((third * 8 / 10..=third).contains(&before), "{before} of {third}");
    merge(db.engine(), 1..3).unwrap();
    assert_eq!((runs_of(db.engine()), garbage()), (2, before));
    merge(db.engine(), 0..2).unwrap();
    assert_eq!((runs_of(db.engine()), garbage()), (1, 0));
}

/// A run that a live snapshot does not see keeps what is newer from being merged with what it replaces: that is taken for gone then, also where another part of the run is a file that was cut.
#[test]
fn garbage_beneath_a_run_that_cannot_be_merged_is_merged_once() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let (db, [table, other]) = two_tables(&sim, false);
    let engine = db.engine();
    // So long, and alike for so few, that a file has many blocks of the index, by which it is known how much of it counts.
    let key = |n: u64| [&(n / 5).to_be_bytes()[..], &[b'k'; 900], &n.to_be_bytes()].concat();
    let put = |keys: Range<u64>, n: i64| {
        keys.for_each(|at| table.put(&key(at), &row! { n: n, text: "some" }).unwrap());
        engine.move_now();
    };
    put(0..800, 1);
    let id = table.shared().id.load(atomic::Ordering::Relaxed);
    let upto = Some(composite_key(id, &key(40)));
    assert_eq!(merge_one(engine, &mut MergeJob { upto, ..job_of(engine, 0..1) }).unwrap(), Merged::Slice);
    let cut = |runs: &OpenRuns| {
        let counting = runs.counting_bytes();
        runs.runs().iter().flat_map(|run| &run.ranges).any(|range| trimmed_bytes(range, &counting) > 0)
    };
    assert!(cut(&engine.runs.current()), "a file counts in part");
    (200..800).for_each(|at| table.put(&key(at), &row! { n: 2, text: "some" }).unwrap());
    let snapshot = db.snapshot();
    other.load(|loader| (0..9u64).try_for_each(|key| loader.push(&key, &row! { n: 1 }))).unwrap();
    engine.move_now();
    assert_eq!(runs_of(engine), 3);
    let limits = MergeLimits { runs_max: 8, garbage_percent_max: 30, covered_percent: 100 };
    let next = || engine.runs.next_merge(&engine.tables_for_merge(), limits);
    let mut merges = 0;
    while let Some(mut job) = next() {
        while merge_one(engine, &mut job).unwrap() == Merged::Slice {}
        merges += 1;
        assert!(merges < 50, "there is no end of it");
    }
    assert!(merges > 0);
    assert!((0..800).all(|at| {
        let n = table.get(&key(at)).unwrap().unwrap().get_as::<i64>("n").unwrap();
        n == if at < 200 { 1 } else { 2 }
    }));
    drop(snapshot);
}

/// A file that cannot be read costs its run being merged, as a damaged one does: those on either side are merged among themselves. It is tried again after a while.
#[test]
fn a_file_that_cannot_be_read_is_left_alone_for_a_while() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let (tiers, clock) = ((FastTier::simulated(&sim), CapacityTier::simulated(&sim)), Clock::manual(1_000));
    let db = Db::open_at(tiers, moving(Durability::Process), clock.clone()).unwrap();
    let (table, engine) = (db.create_table("t", schema()).unwrap(), db.engine());
    for n in 0..20 {
        put_all(&table, 0..100, n);
        engine.move_now();
    }
    let bad = engine.runs.current().runs()[8].ranges[0].sst.id().file_name();
    sim.refuse_reads_of(&bad);
    // Until nothing is left to be merged; how many merges failed.
    let merge_all = || {
        let limits = MergeLimits { runs_max: 8, garbage_percent_max: 30, covered_percent: 100 };
        let (mut failures, mut merges) = (0, 0);
        while let Some(mut job) = engine.runs.next_merge(&engine.tables_for_merge(), limits) {
            let merged = loop {
                match merge_one(engine, &mut job) {
                    Ok(Merged::Slice) => {}
                    merged => break merged,
                }
            };
            if let Err(error) = merged {
                assert_eq!(error.kind(), ErrorKind::Io);
                failures += 1;
            }
            merges += 1;
            assert!(merges < 50, "{failures} failures, and no end of it");
        }
        failures
    };
    assert_eq!(merge_all(), 3);
    let apart = runs_of(engine);
    assert!((3..=9).contains(&apart), "{apart} runs");
    // All of them are too many again, with the one that is left alone: tried once, and then no more for a while.
    for n in 20..40 {
        put_all(&table, 0..100, n);
        engine.move_now();
    }
    assert_eq!(merge_all(), 0);
    clock.advance_ms(10 * 60 * 1000);
    for n in 40..60 {
        put_all(&table, 0..100, n);
        engine.move_now();
    }
    assert_eq!(merge_all(), 1);
    sim.clear_faults();
    clock.advance_ms(24 * 60 * 60 * 1000);
    for n in 60..80 {
        put_all(&table, 0..100, n);
        engine.move_now();
    }
    assert_eq!(merge_all(), 0);
    assert!(!sim.process_kill().file_names().contains(&bad), "it is merged now");
    assert!((0..100u64).all(|key| table.get(&key).unwrap().unwrap().get_as::<i64>("n").unwrap() == 79));
}

/// A store whose sorted tables may have so many bytes, and its table.
fn bounded(sim: &CrashSim, capacity_bytes_max: u64) -> (Db, Table) {
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    let options = Options { capacity_bytes_max, ..moving(Durability::Process) };
    let db = Db::open_at(tiers, options, Clock::manual(1_000)).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    (db, table)
}

/// Rows of a kilobyte, which move.
fn put_and_move(table: &Table, keys: impl Iterator<Item = i64>) {
    let text = "x".repeat(1_000);
    keys.for_each(|n| table.put(&n, &row! { n: n, text: text.as_str() }).unwrap());
    table.engine().move_now();
}

/// What is to be merged where so many percent may be garbage.
fn next(engine: &Engine, garbage_percent_max: u64) -> Option<MergeJob> {
    let limits = MergeLimits { runs_max: 8, garbage_percent_max, covered_percent: 100 };
    engine.runs.next_merge(&engine.tables_for_merge(), limits)
}

/// A delta takes the place of its bytes, and not of the row that it lies over: how much of the rest counts is for whoever asks to say.
#[test]
fn rows_under_deltas_are_garbage_as_far_as_it_is_said() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = bounded(&sim, 64 << 20);
    put_and_move(&table, 0..460);
    (0..460i64).for_each(|n| table.update(&n, &row! { n: n + 1 }).unwrap());
    table.engine().move_now();
    assert_eq!(db.engine().runs.current().runs().len(), 2);
    let garbage = |covered_percent| {
        let limits = MergeLimits { runs_max: 8, garbage_percent_max: 30, covered_percent };
        let job = db.engine().runs.next_merge(&db.engine().tables_for_merge(), limits);
        (db.engine().runs.merged().garbage, job.is_some())
    };
    let [(few, is_few), (tenth, is_tenth), (all, is_all)] = [0, 10, 100].map(garbage);
    assert!((1_000..40_000).contains(&few), "{few}: the bytes of 460 deltas");
    let of_rest = (tenth - few) as f64 / (all - few) as f64;
    assert!(all > 400_000 && (0.09..0.12).contains(&of_rest), "{few}, {tenth}, {all}");
    assert_eq!((is_few, is_tenth, is_all), (false, false, true));
}

/// A row that a delta covered is garbage as a whole once its key is deleted or written anew, though the delta is what a look finds first.
#[test]
fn a_row_under_a_delta_that_is_replaced_is_garbage() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = bounded(&sim, 64 << 20);
    put_and_move(&table, 0..460);
    (0..460i64).for_each(|n| table.update(&n, &row! { n: n + 1 }).unwrap());
    table.engine().move_now();
    (0..460i64).for_each(|n| table.remove(&n).unwrap());
    table.engine().move_now();
    assert_eq!(db.engine().runs.current().runs().len(), 3);
    let limits = MergeLimits { runs_max: 8, garbage_percent_max: 30, covered_percent: 0 };
    assert!(db.engine().runs.next_merge(&db.engine().tables_for_merge(), limits).is_some());
    let garbage = db.engine().runs.merged().garbage;
    assert!(garbage > 400_000, "{garbage}");
}

/// Leaves room for so many bytes of files.
fn leave_room(engine: &Engine, bytes: u64) {
    engine.runs.reserve(engine.runs.room() - bytes, RoomFor::Merges).unwrap();
}

/// Merges what the two newest runs have up to the last key of the newest `of` these.
fn merge_upto(engine: &Engine, greatest: Vec<u8>) {
    let mut job = MergeJob { upto: Some(greatest), ..job_of(engine, 0..2) };
    assert_eq!(merge_one(engine, &mut job).unwrap(), Merged::Slice);
}

/// A file of which hardly anything was cut off does not fit into the room there is: it is not tried again before there is more. Nor are writers held for merges that there is no room for.
#[test]
fn what_does_not_fit_is_not_tried_again_and_again() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = bounded(&sim, 64 << 20);
    let (engine, runs) = (db.engine(), &db.engine().runs);
    put_and_move(&table, 0..460);
    put_and_move(&table, 0..5);
    let backlog = || {
        let limits = MergeLimits { runs_max: 1, garbage_percent_max: 30, covered_percent: 100 };
        runs.look_for_backlog(&engine.tables_for_merge(), limits);
        runs.merge_backlog()
    };
    assert_eq!(backlog(), 2.0);
    let all = runs.room();
    runs.reserve(all, RoomFor::Merges).unwrap();
    assert_eq!(backlog(), 0.0, "there is room for none");
    runs.release(all);

    merge_upto(engine, runs.current().runs()[0].ranges[0].keys[1].to_vec());
    runs.remove_dropped();
    let file_bytes = runs.current().files().iter().map(|sst| sst.file_bytes().unwrap()).max().unwrap();
    leave_room(engine, file_bytes / 32 * 29);
    let failures = runs.merged().failures;
    let mut job = next(engine, 1).unwrap();
    assert_eq!(merge_one(engine, &mut job).unwrap(), Merged::LacksRoom);
    assert_eq!((next(engine, 1), runs.merged().failures), (None, failures + 1));
    runs.release(file_bytes / 2);
    assert_eq!(merge_one(engine, &mut next(engine, 1).unwrap()).unwrap(), Merged::Slice);
    assert_eq!(next(engine, 1), None, "nothing is cut off any file");
    assert_eq!(table.scan().count(), 460);
}

/// What newer runs replace of a file is known still when it was written anew alone, for what was cut off it.
#[test]
fn what_is_replaced_is_known_after_a_file_was_written_anew_for_room() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = bounded(&sim, 64 << 20);
    let engine = db.engine();
    put_and_move(&table, 0..1_500);
    put_and_move(&table, (0..1_500).step_by(2));
    let id = table.shared().id.load(atomic::Ordering::Relaxed);
    merge_upto(engine, SstKey::new(id, 150i64.key_bytes().as_ref()).bytes().to_vec());
    let before = garbage_in(&db);
    leave_room(engine, 500 << 10);
    let mut anew = 0;
    while let Some(mut job) = next(engine, 99) {
        assert_eq!((job.runs.len(), merge_one(engine, &mut job).unwrap()), (1, Merged::Slice));
        anew += 1;
    }
    let after = garbage_in(&db);
    assert!(anew > 0 && after * 20 >= before * 19, "{after} of {before} after {anew} files");
}

/// A slice of several runs is begun only where there is room for more than one: it gives nothing back before files have gone whole.
#[test]
fn several_runs_are_not_begun_with_little_room() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = bounded(&sim, 64 << 20);
    let engine = db.engine();
    for run in 0..9 {
        put_and_move(&table, (run..900).step_by(9));
    }
    assert_eq!(next(engine, 30).unwrap().runs.len(), 9);
    leave_room(engine, engine.runs.target_bytes() / 5 * 7);
    assert_eq!(next(engine, 30), None);
}

/// Rows that come in the order of their keys are not written again, however short the files of a small tier are.
#[test]
fn short_files_change_their_run_as_they_are() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, table) = bounded(&sim, 2 << 20);
    let engine = db.engine();
    for run in 0..10 {
        put_and_move(&table, run * 80..(run + 1) * 80);
    }
    assert_eq!(runs_of(engine), 10);
    let before = engine.runs.merged().bytes;
    merge(engine, 0..10).unwrap();
    let written = engine.runs.merged().bytes - before;
    assert!(runs_of(engine) == 1 && written < 256 << 10, "{written} bytes written, {} runs", runs_of(engine));
    assert_eq!(table.scan().count(), 800);
}

/// Rows that expired below go, though nothing replaced them; what is read to know of them is read once, and of files in which something expires.
#[test]
fn rows_that_expired_are_garbage() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let clock = Clock::manual(1_000);
    let db = Db::open_at(tiers, moving(Durability::Process), clock.clone()).unwrap();
    let [table, other] = ["t", "u"].map(|name| db.create_table(name, schema()).unwrap());
    put_all(&other, 0..600, 0);
    db.engine().move_now();
    for n in 0..3_000u64 {
        let at_ms = if n % 3 == 0 { 20_000 } else { 5_000 };
        let row = row! { n: n as i64, text: "something of some length" };
        table.put_expiring(&n, &row, Expiry::at_unix_ms(at_ms)).unwrap();
    }
    db.engine().move_now();
    let all = bytes_in(&db.engine().runs.current());
    assert_eq!(garbage_in(&db), 0);
    clock.advance_ms(10_000);
    let waits = sim.file_waits();
    let garbage = garbage_in(&db);
    assert!((all * 50..all * 61).contains(&(garbage * 100)), "{garbage} of {all}, and 20 of 36 are");
    assert_eq!(sim.file_waits(), waits, "what was read was kept");
    db.collect().unwrap();
    let left = bytes_in(&db.engine().runs.current());
    assert!(left * 100 < all * 70, "{left} of {all}");
    assert!(table.len() < 2_000 && other.len() == 600, "{} rows", table.len());
    let merged = db.engine().runs.merged();
    db.collect().unwrap();
    assert_eq!(db.engine().runs.merged(), merged, "it has come to rest");
    // The same of a store that was opened since.
    drop((table, other, db));
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let db = Db::open_at(tiers, moving(Durability::Process), clock.clone()).unwrap();
    clock.advance_ms(20_000);
    db.collect().unwrap();
    assert_eq!(db.table("t").unwrap().len(), 0);
    assert_eq!(db.table("u").unwrap().scan().count(), 600);
}

/// Files of which it is not known when their rows expire.
fn unsampled(db: &Db) -> usize {
    let engine = db.engine();
    engine.runs.merges.expired.lock().unknown(&engine.runs.current(), engine.clock.now_ms()).len()
}

/// A store that was opened merges what is to be merged though it does not know of every file when its rows expire: it reads of a few each time, within the budget, and by and by of all.
#[test]
fn merges_do_not_wait_until_all_files_were_sampled() {
    const FILES: usize = 6 * SAMPLED_AT_ONCE;
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, Durability::Process);
    let table = db.create_table("t", schema()).unwrap();
    for n in 0..FILES as u64 {
        table.put_expiring(&n, &row! { n: n as i64 }, Expiry::at_unix_ms(1 << 40)).unwrap();
        db.engine().move_now();
    }
    drop(table);
    db.close().unwrap();
    let db = open(&sim, Durability::Process);
    let engine = db.engine();
    assert_eq!((runs_of(engine), unsampled(&db)), (FILES, FILES));
    let (waits, taken) = (sim.file_waits(), engine.io_budget.taken().bytes);
    let job = next(engine, 30).unwrap();
    assert!(job.runs.len() > 8, "{job:?}");
    let waits = sim.file_waits() - waits;
    assert!((1..=2 * SAMPLED_AT_ONCE as u64).contains(&waits), "{waits} reads before the first merge");
    assert!(engine.io_budget.taken().bytes >= taken + 4096 * SAMPLED_AT_ONCE as u64);
    for known in (SAMPLED_AT_ONCE..FILES).step_by(SAMPLED_AT_ONCE) {
        assert_eq!(unsampled(&db), FILES - known);
        assert_eq!(next(engine, 30), Some(job.clone()));
    }
    let waits = sim.file_waits();
    assert_eq!((unsampled(&db), next(engine, 30), sim.file_waits()), (0, Some(job), waits));
}

/// Who merges by hand has all merged that has expired, in the last of many files as well; and files that a long merge made are known when it ends.
#[test]
fn all_files_are_sampled_for_who_merges_by_hand() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let clock = Clock::manual(1_000);
    let open = || {
        let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
        Db::open_at(tiers, moving(Durability::Process), clock.clone()).unwrap()
    };
    let db = open();
    let table = db.create_table("t", schema()).unwrap();
    let put = |table: &Table, keys: Range<u64>, at_ms: u64| {
        let row = row! { n: 1, text: "something of some length" };
        keys.for_each(|n| table.put_expiring(&n, &row, Expiry::at_unix_ms(at_ms)).unwrap());
        table.engine().move_now();
    };
    put(&table, 0..1_000, 5_000);
    (0..6).for_each(|run| put(&table, 10_000 + run * 20..10_020 + run * 20, 1 << 40));
    assert_eq!(runs_of(db.engine()), 7);
    drop((table, db));
    let db = open();
    clock.advance_ms(10_000);
    db.collect().unwrap();
    let table = db.table("t").unwrap();
    assert_eq!((table.len(), unsampled(&db)), (120, 0));
    // Keys in all of them, so that all are written anew.
    for run in 0..9 {
        let text = "x".repeat(1_000);
        let row = row! { n: 1, text: text.as_str() };
        let at = Expiry::at_unix_ms(1 << 40);
        (0..300u64).for_each(|n| table.put_expiring(&(n * 9 + run), &row, at).unwrap());
        table.engine().move_now();
    }
    db.collect().unwrap();
    assert!(runs_of(db.engine()) <= 8 && db.engine().runs.merged().slices as usize > 2 * SAMPLED_AT_ONCE);
    assert_eq!(unsampled(&db), 0);
}

/// Sorted tables that take more than they may since the store was opened with less: what is garbage in them goes, by no more room at any time than four slices take, and nothing else is written there meanwhile.
#[test]
fn a_limit_below_what_there_is_is_worked_off() {
    let open = |sim: &CrashSim, capacity_bytes_max| {
        let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
        let compression = crate::Compression::None;
        let options = Options { capacity_bytes_max, compression, ..moving(Durability::Process) };
        let db = Db::open_at(tiers, options, Clock::manual(1_000)).unwrap();
        let table = db.ensure_table("t", schema()).unwrap();
        (db, table)
    };
    for quarters in [1, 5] {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let (db, table) = open(&sim, u64::MAX);
        put_and_move(&table, 0..3_000);
        let once = db.engine().runs.bytes().0;
        put_and_move(&table, 0..1_500);
        put_and_move(&table, 500..2_500);
        drop((table, db));
        let most = once / 4 * quarters;
        let (db, table) = open(&sim, most);
        let (engine, runs) = (db.engine(), &db.engine().runs);
        let (before, mut least) = (runs.bytes().0, runs.bytes().0);
        assert_eq!(runs.check_room_to_move(1, RoomFor::Rows).unwrap_err().kind(), ErrorKind::Full);
        let load = table.load(|loader| loader.push(&1i64, &row! { n: 1, text: "x" }));
        assert_eq!(load.unwrap_err().kind(), ErrorKind::Full);
        for _ in 0..1_000 {
            let Some(mut job) = next(engine, 1) else { break };
            while merge_one(engine, &mut job).unwrap() == Merged::Slice {
                let there = runs.bytes().0;
                assert!(there <= least + 4 * TARGET_BYTES, "{there} of {least}");
                least = least.min(there);
            }
        }
        // Small files take more, those of the least size a quarter: each has pages of its own besides its blocks.
        let percent = if most < once { 130 } else { 110 };
        assert!(least * 100 <= once * percent, "{least} left of {before}, {once} are there");
        assert_eq!(runs.is_exceeded(), most < once);
        assert_eq!(table.scan().count(), 3_000);
    }
}

/// Who looks finds the garbage that a merge would find, and the merge that comes next; and merges nothing.
#[test]
fn a_look_tells_what_is_merged_next() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let (db, [table, _other]) = two_tables(&sim, false);
    let look = || {
        let limits = db.engine().merge_limits_at_first();
        db.engine().runs.look_at_merges(&db.engine().tables_for_merge(), limits)
    };
    assert_eq!(look(), (Vec::new(), [None, None]));
    for n in 0..3 {
        put_all(&table, 0..3_000, n);
        db.engine().move_now();
    }
    let (garbage, [busy, quiet]) = look();
    let sum: u64 = garbage.iter().flatten().map(|of| of.replaced).sum();
    assert_eq!((garbage.len(), sum), (3, garbage_in(&db)));
    assert!(garbage[0].iter().all(|of| of.replaced == 0), "nothing is newer than the newest");
    let numbers: Vec<u64> = db.engine().runs.current().runs().iter().map(|run| run.number).collect();
    let busy = busy.unwrap();
    assert_eq!(quiet, Some(busy.clone()));
    assert!(numbers.starts_with(&busy.job.runs) && busy.job.runs.len() > 1 && busy.job.upto.is_some());
    let all = bytes_in(&db.engine().runs.current());
    // One range of keys at a time.
    assert!(busy.bytes > all / 10 && busy.bytes <= all, "{} of {all}", busy.bytes);
    let after: Vec<u64> = db.engine().runs.current().runs().iter().map(|run| run.number).collect();
    assert_eq!(after, numbers);
}
