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
