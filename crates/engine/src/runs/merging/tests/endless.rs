//! Merging for garbage comes to an end, whatever cannot be merged.

use super::*;

/// A run that a live snapshot does not see keeps what is newer from being merged with what it replaces: that is taken for gone then, also where another part of the run is a file that was cut.
#[test]
fn garbage_beneath_a_run_that_cannot_be_merged_is_merged_once() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let (db, [table, other]) = two_tables(&sim, false);
    let engine = db.engine();
    // So long that a file has many blocks of the index, by which it is known how much of it counts.
    let key = |n: u64| [&[b'k'; 900][..], &n.to_be_bytes()].concat();
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
    let limits = MergeLimits { runs_max: 8, garbage_percent_max: 30 };
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
        let limits = MergeLimits { runs_max: 8, garbage_percent_max: 30 };
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
