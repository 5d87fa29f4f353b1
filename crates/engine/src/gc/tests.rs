//! Gc met by others at awkward moments: what a test from outside cannot time.

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier};
use hedgerow_sim::eventually;

use super::*;
use crate::db::fixture::options;
use crate::db::write::WaitOutcome;
use crate::index::Slot;
use crate::log::segment::SEGMENT_HEADER_BYTES;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::{Batch, Db, Expiry, Options, Schema, Table, Type, Value};

fn open(sim: &CrashSim) -> Db {
    Db::open_at(FastTier::simulated(sim), options(), Clock::manual(1_000)).unwrap()
}

fn put(flat: &Table, key: &[u8], value: &[u8]) {
    flat.put(key, &[("value", Value::Bytes(value))]).unwrap();
}

/// Fills the open segment, all but 2 %, and begins another.
fn fill(flat: &Table, group: u8) {
    (0..66u8).for_each(|i| put(flat, &[b'f', group, i], &[i; 16_000]));
}

/// Makes most of what [`fill`] wrote obsolete.
fn empty(flat: &Table, group: u8) {
    (0..40u8).for_each(|i| put(flat, &[b'f', group, i], b"small"));
}

/// A copy that came too late must not be a whole record: nothing counts it, so it would outlive the tombstone over it.
#[test]
fn a_copy_that_came_too_late_is_not_there_after_a_kill() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let (engine, shared) = (flat.engine(), flat.shared());
    put(&flat, b"key", b"value");
    {
        let guard = engine.log.pin();
        let slot = shared.levels.locate(b"key", &guard).and_then(Slot::in_log).unwrap();
        let chain = Chain::of(guard.view(), slot).unwrap();
        fill(&flat, 1);
        assert!(flat.delete(b"key").unwrap());
        let published = engine.write_merged(shared, slot, &chain, SegmentKind::Row, Claim::Write).unwrap();
        assert!(published.is_none(), "the row was deleted meanwhile");
    }
    fill(&flat, 2);
    empty(&flat, 1);
    assert_eq!(db.collect().unwrap(), 1, "the row's segment");
    empty(&flat, 2);
    assert_eq!(db.collect().unwrap(), 1, "the tombstone's segment");
    db.check_counts().unwrap();
    let db = open(&CrashSim::from_image(&sim.process_kill()));
    assert!(db.table("flat").unwrap().get(b"key").unwrap().is_none(), "a deleted row is back");
    db.check_counts().unwrap();
}

/// Closing leaves the headers of segments alone that a collection has freed. What it was about to free is there still.
#[test]
fn a_close_does_not_bring_freed_segments_back() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    fill(&flat, 1);
    fill(&flat, 2);
    empty(&flat, 1);
    empty(&flat, 2);
    let engine = flat.engine();
    let victims = engine.choose(Need::Now).victims;
    assert_eq!(victims.len(), 2);
    for &extent in &victims {
        assert!(engine.log.begin_gc(extent));
        engine.empty_segment(extent, Claim::Gc, None).unwrap();
    }
    engine.log.checkpoint().unwrap();
    engine.log.record_emptied(victims.iter().copied());
    engine.log.free_segments(&[victims[0]]).unwrap();
    db.close().unwrap();
    let error = engine.log.free_segments(&[victims[1]]).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Closed);
    drop(flat);
    let db = open(&CrashSim::from_image(&sim.process_kill()));
    let flat = db.table("flat").unwrap();
    assert!(
        flat.engine().log.segments().iter().all(|(extent, ..)| *extent != victims[0]),
        "it is in use again"
    );
    assert!(flat.engine().log.segments().iter().any(|(extent, ..)| *extent == victims[1]));
    assert_eq!(flat.len(), 132);
    db.check_counts().unwrap();
}

/// The place of a row's record.
fn place(flat: &Table, key: &[u8]) -> u64 {
    let engine = flat.engine();
    let guard = engine.log.pin();
    flat.shared().levels.locate(key, &guard).unwrap().log_offset()
}

/// One corrupted record costs its segment, and not the space of all others.
#[test]
fn a_corrupted_segment_is_quarantined_and_the_others_are_freed() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    (1..=4).for_each(|group| fill(&flat, group));
    (1..=4).for_each(|group| empty(&flat, group));
    // The first victim of all: nothing but the spoiled record is live in it.
    (0..66u8).filter(|&i| i != 50).for_each(|i| put(&flat, &[b'f', 2, i], b"small"));
    let spoiled = [b'f', 2, 50];
    let offset = place(&flat, &spoiled);
    crate::tier::rot(&sim, offset + 8_000, 0x10);
    let engine = flat.engine();
    assert_eq!(engine.choose(Need::Now).victims[0], (offset >> 20) as u32, "the spoiled one ranks first");
    assert_eq!(db.collect().unwrap_err().kind(), ErrorKind::Corrupted);
    let metrics = db.metrics();
    assert_eq!((metrics.segments_quarantined, metrics.segments_collected), (1, 3));
    // From now on it is in nobody's way, whatever else dies in it.
    fill(&flat, 5);
    empty(&flat, 5);
    assert!(db.collect().unwrap() > 0);
    assert_eq!(flat.get(&spoiled).unwrap_err().kind(), ErrorKind::Corrupted);
    for key in (1..=5).flat_map(|group| (0..66).map(move |i| [b'f', group, i])).filter(|key| *key != spoiled)
    {
        assert!(flat.get(&key).unwrap().is_some(), "{key:?}");
    }
    put(&flat, &spoiled, b"anew");
    assert!(flat.get(&spoiled).unwrap().is_some());
    db.collect().unwrap();
    let metrics = db.metrics();
    assert_eq!(metrics.segments_quarantined, 1);
    assert!(flat.engine().log.segments().iter().any(|(extent, ..)| *extent == (offset >> 20) as u32));
}

/// What rots after a segment was emptied takes nothing with it: the space comes back.
#[test]
fn a_victim_corrupted_while_a_snapshot_holds_it_is_freed() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    fill(&flat, 1);
    let offset = place(&flat, &[b'f', 1, 50]);
    let snapshot = db.snapshot();
    empty(&flat, 1);
    put(&flat, b"later", b"x");
    assert_eq!(db.collect().unwrap(), 0, "the snapshot needs it");
    crate::tier::rot(&sim, offset + 8_000, 0x10);
    drop(snapshot);
    assert_eq!(db.collect().unwrap(), 1);
    assert_eq!(flat.scan().count(), 67);
    assert_eq!(db.metrics().segments_quarantined, 0);
}

/// Obsolete bytes in each sealed segment, as counted, and what tables that are gone left there.
fn obsolete_and_vanished(engine: &Engine) -> Vec<(u64, u64)> {
    let both = |(extent, _, obsolete)| (obsolete, engine.vanished_bytes(extent).unwrap());
    engine.log.candidates().into_iter().map(both).collect()
}

/// However often tables go, the rows of each are counted as obsolete once, those in segments that were still open too.
#[test]
fn rows_of_dropped_tables_are_counted_once() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let tables = ["a", "b", "c"].map(|name| db.create_table(name, Schema::flat()).unwrap());
    let write = |count: u8, table: &dyn Fn(u8) -> usize| {
        (0..count).for_each(|i| put(&tables[table(i)], &[b'k', i], &[i; 16_000]));
    };
    write(240, &|i| usize::from(i % 3));
    let engine = tables[0].engine();
    let sealed = obsolete_and_vanished(engine);
    let made = |obsolete: u64| (0..400).contains(&obsolete);
    assert!(sealed.len() > 2, "{sealed:?}");
    assert!(sealed.iter().all(|&(obsolete, vanished)| obsolete == vanished && made(obsolete)), "{sealed:?}");
    for dropped in ["b", "c"] {
        assert!(db.drop_table(dropped).unwrap());
        for _ in 0..2 {
            engine.recount();
            let counted = obsolete_and_vanished(engine);
            assert!(
                counted.iter().all(|(obsolete, vanished)| obsolete == vanished && *obsolete > 400),
                "{counted:?}"
            );
            assert!(engine.log.miscounted().is_empty());
        }
    }
    // The segment that was open when the tables went is sealed now.
    let before = engine.log.candidates().len();
    (100..=165).for_each(|i| put(&tables[0], &[b'n', i], &[i; 16_000]));
    assert_eq!(engine.log.miscounted().len(), 1);
    engine.recount();
    let counted = obsolete_and_vanished(engine);
    assert!(counted.len() > before && counted.iter().filter(|(obsolete, _)| *obsolete > 0).count() > before);
    assert!(counted.iter().all(|(obsolete, vanished)| obsolete == vanished), "{counted:?}");
    // Opening counts the same.
    let db = open(&CrashSim::from_image(&sim.process_kill()));
    let engine = db.table("a").unwrap().engine().clone();
    let opened = obsolete_and_vanished(&engine);
    db.create_table("d", Schema::flat()).unwrap();
    db.drop_table("d").unwrap();
    engine.recount();
    for (before, after) in opened.iter().zip(obsolete_and_vanished(&engine)) {
        assert!(after.0 - before.0 <= before.1 / 8, "counted again: {before:?}, {after:?}");
    }
}

/// Rows that were obsolete already when their table went are not counted in full a second time.
#[test]
fn overwritten_rows_of_a_dropped_table_are_not_counted_twice() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let [kept, gone] = ["kept", "gone"].map(|name| db.create_table(name, Schema::flat()).unwrap());
    for i in 0..66u8 {
        put(if i % 2 == 0 { &kept } else { &gone }, &[i], &[i; 16_000]);
    }
    (0..66u8).filter(|i| i % 4 == 1).for_each(|i| put(&gone, &[i], b"small"));
    let engine = kept.engine();
    let (_, segment, overwritten) = engine.log.candidates().remove(0);
    let filled = segment.end - SEGMENT_HEADER_BYTES;
    assert!(overwritten > filled / 5 && overwritten < filled / 3);
    db.drop_table("gone").unwrap();
    engine.recount();
    let (obsolete, vanished) = obsolete_and_vanished(engine)[0];
    assert!(
        obsolete >= vanished && obsolete - vanished < overwritten / 2 + filled / 50,
        "{obsolete}, {vanished}"
    );
}

/// A corrupted row does not keep the ones behind it from expiring.
#[test]
fn the_sweeper_passes_over_a_corrupted_row() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    for i in 0..3u8 {
        flat.put_expiring(&[i], &[("value", Value::Bytes(&[i; 300]))], Expiry::at_unix_ms(500)).unwrap();
    }
    crate::tier::rot(&sim, place(&flat, &[1]) + 20, 0x10);
    let mut pass = crate::db::shared_table::expiring::Pass::default();
    flat.engine().sweep(flat.shared(), &mut pass).unwrap();
    assert_eq!(db.metrics().expired, 2);
    assert_eq!(flat.get(&[1]).unwrap_err().kind(), ErrorKind::Corrupted);
}

/// Under a snapshot gc empties segments that it cannot free. It may not use up all space for that: what is open
/// when the process ends is closed for good, and then nothing could be deleted any more.
#[test]
fn a_store_that_is_killed_while_full_takes_deletes() {
    let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
    let db = open(&sim);
    let table = db.create_table("t", Schema::new().field("bytes", Type::Bytes)).unwrap();
    // Two to a segment, the first of which goes: what is left does not fit beside another.
    let put =
        |key: &str, bytes: usize| table.put(key.as_bytes(), &[("bytes", Value::Bytes(&vec![1; bytes]))]);
    let mut rows = 0;
    while put(&format!("small {rows}"), 300_000).is_ok() && put(&format!("large {rows}"), 600_000).is_ok() {
        rows += 1;
    }
    let keys = |kind: &str| (0..rows).map(move |i| format!("{kind} {i}")).collect::<Vec<_>>();
    keys("small").iter().for_each(|key| assert!(table.delete(key.as_bytes()).unwrap()));
    let snapshot = db.snapshot();
    // Something newer, so that the snapshot needs what is emptied from now on.
    assert!(table.delete(b"large 0").unwrap());
    (0..20).for_each(|_| drop(db.collect()));
    assert!(table.engine().log.space().room().0 >= 1, "the last extent is gone");
    drop(snapshot);
    let killed = CrashSim::from_image(&sim.process_kill());
    let db = open(&killed);
    let table = db.table("t").unwrap();
    for key in &keys("large")[1..] {
        while let Err(error) = table.delete(key.as_bytes()) {
            assert_eq!(error.kind(), ErrorKind::Full);
            assert!(db.collect().unwrap() > 0, "{key} cannot be deleted, and there is nothing to collect");
        }
    }
    assert_eq!(table.len(), 0);
}

/// A row is a row's bytes: what its open segment has room for is told apart.
#[test]
fn live_bytes_are_those_of_rows() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    (0..10u8).for_each(|i| put(&flat, &[i], &[i; 1_000]));
    let metrics = db.metrics();
    assert!((10_000..13_000).contains(&metrics.live_bytes), "{metrics:?}");
    assert!(metrics.obsolete_bytes < 200, "the record that made the table: {metrics:?}");
    assert!(metrics.unused_bytes > 1_000_000 && metrics.unused_bytes < 1 << 20, "{metrics:?}");
    (0..5u8).for_each(|i| put(&flat, &[i], &[i; 1_000]));
    let metrics = db.metrics();
    assert!((10_000..13_000).contains(&metrics.live_bytes), "{metrics:?}");
    assert!((5_000..6_500).contains(&metrics.obsolete_bytes), "{metrics:?}");
}

/// A store that is full says what pins its space: a snapshot, with its age, a reader, a segment that cannot be read.
#[test]
fn what_pins_space_is_named_when_the_store_is_full() {
    let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
    let clock = Clock::manual(1_000);
    let db = Db::open_at(FastTier::simulated(&sim), options(), clock.clone()).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let value = vec![7; 100_000];
    let full = |db: &Db| loop {
        for i in 0..40u8 {
            let put = || flat.put(&[i], &[("value", Value::Bytes(&value))]);
            // A round that empties segments and frees none leaves them to whoever pins them.
            if put().is_err()
                && db.collect().unwrap() == 0
                && let Err(error) = put()
            {
                return error;
            }
        }
    };
    let snapshot = db.snapshot();
    clock.advance_ms(7_000);
    let error = full(&db);
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.message().contains("a snapshot taken 7000 ms ago"), "{error}");
    drop(snapshot);
    (0..4).for_each(|_| drop(db.collect()));
    let guard = db.pin();
    let error = full(&db);
    assert!(!error.message().contains("snapshot"), "{error}");
    assert!(error.message().contains("wait for a reader"), "{error}");
    drop(guard);
    (0..4).for_each(|_| drop(db.collect()));
    put(&flat, b"room", b"again");
}

/// A victim that was given up half-way is chosen again by what is still live in it: what was copied is obsolete there.
#[test]
fn rows_copied_out_of_a_victim_are_obsolete_in_it() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    fill(&flat, 1);
    fill(&flat, 2);
    let engine = flat.engine();
    let (extent, segment, obsolete) = engine.log.candidates().remove(0);
    assert!(obsolete < 200, "the record that made the table: {obsolete}");
    assert!(engine.log.begin_gc(extent));
    engine.empty_segment(extent, Claim::Gc, None).unwrap();
    engine.log.abandon_gc(extent);
    let now = engine.log.candidates().into_iter().find(|(other, ..)| *other == extent).unwrap();
    assert_eq!(now.2, segment.end - SEGMENT_HEADER_BYTES, "nothing is live in it");
    assert_eq!(db.collect().unwrap(), 1);
    db.check_counts().unwrap();
}

/// Segments of batches hold rows and deltas. Once the last chain had been merged, what was live in them was still taken for deltas in
/// part, and their bytes for those of one chain: too long for gc to merge, so that a store with little live in it was full.
#[test]
fn segments_of_batches_are_worth_emptying_when_no_chain_is_left() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let schema = Schema::new().field("n", Type::U64).nullable("value", Type::Bytes);
    let table = db.create_table("rows", schema).unwrap();
    let hot = |n: u8| [b'h', n];
    let whole = || (0..20).try_for_each(|n| table.put(&hot(n), &[("n", Value::UInt(1))]));
    whole().unwrap();
    let value = [7; 1000];
    let batch_of = |number: u64| {
        let mut batch = Batch::new();
        let row = [("n", Value::UInt(number)), ("value", Value::Bytes(&[7; 1500]))];
        batch.put(&table, &number.to_be_bytes(), &row).unwrap();
        for n in 0..20 {
            batch.update(&table, &hot(n), &[("value", Value::Bytes(&value))]).unwrap();
        }
        db.write(&batch)
    };
    let full = (0..).map(batch_of).find_map(Result::err).unwrap();
    assert_eq!(full.kind(), ErrorKind::Full);
    whole().unwrap();
    let segments = table.engine().log.candidates();
    let chains: u64 = segments.iter().map(|(extent, s, _)| table.engine().log.chains(*extent, s)).sum();
    assert_eq!(chains, 0, "all were replaced");
    assert!(db.collect().unwrap() > 0, "most of it is obsolete");
    batch_of(0).unwrap();
}

/// What a writer's wait came to. Had nobody looked meanwhile, it was taken for one in which there was nothing to free: on processors that
/// others kept busy, a hundred of them made a store full that was not.
#[test]
fn a_wait_is_idle_only_if_gc_came_by_and_freed_nothing() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let (engine, brief, long) = (flat.engine(), Duration::from_millis(1), Duration::from_secs(3600));
    let gc = &engine.gc;
    assert_eq!(engine.await_gc_cycle(engine.log.space().returns(), brief), WaitOutcome::Unanswered);
    assert!(gc.requested.swap(false, Ordering::SeqCst));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                if gc.requested.swap(false, Ordering::SeqCst) {
                    drop(gc.begin_cycle());
                }
            }
        });
        let mut outcome = WaitOutcome::Unanswered;
        while outcome == WaitOutcome::Unanswered {
            let cycles = gc.cycles();
            outcome = engine.await_gc_cycle(engine.log.space().returns(), brief);
            eventually("it was answered", || gc.cycles() > cycles && !gc.is_busy());
        }
        stop.store(true, Ordering::SeqCst);
        assert_eq!(outcome, WaitOutcome::Idle);
    });
    let cycle = gc.begin_cycle();
    assert_eq!(engine.await_gc_cycle(engine.log.space().returns(), brief), WaitOutcome::Progress);
    drop(cycle);
    fill(&flat, 1);
    fill(&flat, 2);
    empty(&flat, 1);
    let refused = engine.log.space().returns();
    assert_eq!(db.collect().unwrap(), 1);
    assert_eq!(engine.await_gc_cycle(refused, long), WaitOutcome::Progress, "freed before the wait");
    *gc.returns_at_busy.lock() = Some(refused);
    assert!(db.wait_for_space(long), "freed since somebody was told `Busy`");
    assert!(!db.wait_for_space(brief), "and waited for already");
}

/// What a backup has still to copy comes back once it has, however slow it is: writers wait for it longer than for a second of looks that free nothing.
#[test]
fn writers_wait_for_a_backup_that_stands_still() {
    const ROWS: u64 = 2_500;
    const WAITS: u64 = 200;
    let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
    let db = Db::open_on(FastTier::simulated(&sim), Options { background: true, ..options() }).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let (engine, written) = (flat.engine(), AtomicU64::new(0));
    let put_all = |round: u64| {
        (0..ROWS).try_for_each(|n| {
            let value = [round as u8; 4096];
            flat.put(&n.to_be_bytes(), &[("value", Value::Bytes(&value))])?;
            written.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Error>(())
        })
    };
    put_all(0).unwrap();
    // There is not room for what the backup is to copy and as much again.
    let pinning = engine.backups.take().unwrap();
    drop(engine.gc.lock.write());
    pinning.narrow(&engine.log.segments_to_copy());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (1..4).try_for_each(put_all));
        let (mut seen, gc) = ((0, 0), &engine.gc);
        eventually("a writer waits for more than a second of looks", || {
            let now = (written.load(Ordering::SeqCst), gc.cycles());
            if now.0 != seen.0 {
                seen = now;
            }
            writer.is_finished() || now.1 - seen.1 >= WAITS
        });
        let why = engine.pins().join("; ");
        drop(pinning);
        writer.join().unwrap().unwrap();
        assert!(why.contains("wait until the backup that is under way has copied them"), "{why}");
    });
    assert_eq!(written.load(Ordering::SeqCst), 4 * ROWS);
}

/// A cycle by hand was counted as two steps of the thread's, so that what it was just emptying was taken for live: a writer that came then was
/// told `Full`.
#[test]
fn nobody_is_told_full_in_the_middle_of_a_cycle() {
    let sim = CrashSim::new(CrashModel::Pages, 8 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let full =
        (0..u64::MAX).find_map(|n| flat.put(&n.to_be_bytes(), &[("value", Value::Bytes(&[7; 4096]))]).err());
    assert_eq!(full.map(|error| error.kind()), Some(ErrorKind::Full));
    let (engine, extents) = (flat.engine(), 1 + flat.engine().log.space().room().1);
    assert!(engine.is_hopeless(extents, Claim::Write));
    let (of_thread, by_hand) = (engine.gc.begin_cycle(), engine.gc.begin_cycle());
    assert!(!engine.is_hopeless(extents, Claim::Write), "two are under way");
    drop(of_thread);
    assert!(!engine.is_hopeless(extents, Claim::Write), "one is under way");
    drop(by_hand);
    assert!(engine.is_hopeless(extents, Claim::Write));
}

/// Gc leaves segments alone that it finds no room for, and what came back since was room for them: a writer that came then was told `Full`.
#[test]
fn what_gc_found_no_room_for_is_tried_again_before_a_store_is_full() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    (1..=2).for_each(|n| fill(&flat, n));
    empty(&flat, 1);
    let (engine, extents) = (flat.engine(), 1 + flat.engine().log.space().room().1);
    let is_hopeless = || engine.is_hopeless(extents, Claim::Write);
    let skip_all = || engine.log.candidates().iter().for_each(|(extent, ..)| engine.skip(*extent));
    assert!(!is_hopeless(), "much is obsolete");
    skip_all();
    assert!(engine.choose(Need::Now).victims.is_empty() && is_hopeless(), "nothing has come back since");
    engine.log.space().has_changed();
    assert!(!is_hopeless() && !engine.choose(Need::Now).victims.is_empty(), "it is tried again");
    // What comes back is now what gc itself had copied in vain.
    skip_all();
    engine.log.space().has_changed();
    assert!(is_hopeless(), "it was tried");
    (0..SKIP_CYCLES).for_each(|_| drop(engine.gc.begin_cycle()));
    skip_all();
    engine.log.space().has_changed();
    assert!(!is_hopeless(), "that was long ago");
    assert_eq!(db.collect().unwrap(), 1);
}

/// An index in which no key more has room: tombstones that are kept apart lose count of what was freed all the same, and go.
#[test]
fn tombstones_go_where_the_index_has_no_room() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let options = Options { index_bytes_max: 256 << 10, segment_bytes: 256 << 10, ..options() };
    let db = Db::open_at(FastTier::simulated(&sim), options, Clock::manual(1_000)).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let value = [("value", Value::Bytes(&[7; 1_000]))];
    let rows = 2_000;
    (0..rows).for_each(|n| flat.put(&key(n), &value).unwrap());
    (0..rows).step_by(2).for_each(|n| assert!(flat.delete(&key(n)).unwrap()));
    let apart = flat.shared().levels.tombstones_apart();
    assert!(apart > 900, "{apart}");
    // Until hardly a leaf has room.
    let mut refused = 0;
    for n in rows.. {
        refused = if flat.put(&key(n), &value).is_ok() { 0 } else { refused + 1 };
        if refused == 2_000 {
            break;
        }
    }
    while db.collect().unwrap() > 0 {}
    db.check_counts().unwrap();
    // Others lie in segments that are full of rows.
    let left = flat.shared().levels.tombstones_apart();
    assert!(left * 8 < apart, "{left} of {apart}");
}

/// The same of a table of which nothing is left but tombstones, whose rows have no leaf: before it is opened anew and after.
#[test]
fn tombstones_of_an_emptied_table_go_where_the_index_has_no_room() {
    for opened_again in [false, true] {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let options = || Options { index_bytes_max: 256 << 10, segment_bytes: 256 << 10, ..options() };
        let mut db = Db::open_at(FastTier::simulated(&sim), options(), Clock::manual(1_000)).unwrap();
        let value = [("value", Value::Bytes(&[7; 1_000]))];
        let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let tables = |db: &Db| ["queue", "flat"].map(|name| db.table(name).unwrap());
        for name in ["queue", "flat"] {
            db.create_table(name, Schema::flat()).unwrap();
        }
        let [queue, flat] = tables(&db);
        // Records of both lie in the same segments.
        for n in 0..500 {
            queue.put(&key(n), &value).unwrap();
            flat.put(&key(n), &value).unwrap();
        }
        (0..500).for_each(|n| assert!(queue.delete(&key(n)).unwrap()));
        (0..400).for_each(|n| assert!(flat.delete(&key(n)).unwrap()));
        if opened_again {
            drop((queue, flat, db));
            db = Db::open_at(FastTier::simulated(&sim), options(), Clock::manual(1_000)).unwrap();
        }
        let [queue, flat] = tables(&db);
        assert_eq!(queue.shared().levels.tombstones_apart(), 500);
        let mut refused = 0;
        for n in 500.. {
            refused = if flat.put(&key(n), &value).is_ok() { 0 } else { refused + 1 };
            if refused == 2_000 {
                break;
            }
        }
        while db.collect().unwrap() > 0 {}
        db.check_counts().unwrap();
        assert!(!queue.engine().gc.counts_lost.load(Ordering::Relaxed));
        let guard = queue.engine().log.pin();
        let older = |n| Some(queue.shared().levels.locate_version(&key(n), &guard)?.older_versions());
        let counted = (0..500).filter(|n| older(*n).is_some_and(|older| older > 0)).count();
        assert!(counted < 100, "{counted} of 500 have a row in the log, opened again: {opened_again}");
    }
}
