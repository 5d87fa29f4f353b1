//! The collector met by others at awkward moments: what a test from outside cannot time.

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier};

use super::*;
use crate::{Db, Options, Schema, Table, Value};

fn open(sim: &CrashSim) -> Db {
    let options = Options {
        segment_bytes: 1 << 20,
        background: false,
        recovery_threads: 1,
        index_bytes_max: 16 << 20,
        ..Options::default()
    };
    Db::open_at(FastTier::simulated(sim), options, Clock::manual(1_000)).unwrap()
}

fn put(flat: &Table, key: &[u8], value: &[u8]) {
    flat.put(key, &[("value", Value::Bytes(value))]).unwrap();
}

/// Fills the open segment, all but 2 %, and begins another.
fn fill(flat: &Table, group: u8) {
    (0..66u8).for_each(|i| put(flat, &[b'f', group, i], &[i; 16_000]));
}

/// Makes most of what [`fill`] wrote dead.
fn empty(flat: &Table, group: u8) {
    (0..40u8).for_each(|i| put(flat, &[b'f', group, i], b"small"));
}

/// A copy that came too late must not be a whole record: nothing counts it, so it would outlive the tombstone over it.
#[test]
fn a_copy_that_came_too_late_is_not_there_after_a_kill() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let (store, shared) = (flat.store(), flat.shared());
    put(&flat, b"key", b"value");
    {
        let guard = store.pin();
        let slot = shared.index.get(b"key", &guard).unwrap();
        let chain = store.chain(slot).unwrap();
        fill(&flat, 1);
        assert!(flat.delete(b"key").unwrap());
        let published = store.write_merged(shared, slot, &chain, SegmentKind::Row, Claim::Write).unwrap();
        assert!(!published, "the row was deleted meanwhile");
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

/// Closing leaves the headers of segments alone that a collection is about to free, or has freed.
#[test]
fn a_close_does_not_bring_freed_segments_back() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    fill(&flat, 1);
    fill(&flat, 2);
    empty(&flat, 1);
    empty(&flat, 2);
    let store = flat.store();
    let victims = store.choose(true);
    assert_eq!(victims.len(), 2);
    for &unit in &victims {
        assert!(store.log.begin_collection(unit));
        store.empty_segment(unit).unwrap();
    }
    store.log.checkpoint().unwrap();
    store.log.free_segment(victims[0]).unwrap();
    db.close().unwrap();
    let error = store.log.free_segment(victims[1]).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Closed);
    drop(flat);
    let db = open(&CrashSim::from_image(&sim.process_kill()));
    let flat = db.table("flat").unwrap();
    assert!(flat.store().log.segments().iter().all(|(unit, ..)| *unit != victims[0]), "it is in use again");
    assert!(flat.store().log.segments().iter().any(|(unit, ..)| *unit == victims[1]));
    assert_eq!(flat.len(), 132);
    db.check_counts().unwrap();
}

/// The place of a row's record.
fn place(flat: &Table, key: &[u8]) -> u64 {
    let store = flat.store();
    let guard = store.pin();
    flat.shared().index.get(key, &guard).unwrap().offset()
}

/// One corrupted record costs its segment, and not the space of all others.
#[test]
fn a_corrupted_segment_is_left_out_and_the_others_are_freed() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    (1..=4).for_each(|group| fill(&flat, group));
    (1..=4).for_each(|group| empty(&flat, group));
    // The first victim of all: nothing but the spoiled record is live in it.
    (0..66u8).filter(|&i| i != 50).for_each(|i| put(&flat, &[b'f', 2, i], b"small"));
    let spoiled = [b'f', 2, 50];
    let offset = place(&flat, &spoiled);
    sim.corrupt(offset + 8_000, 0x10);
    let store = flat.store();
    assert_eq!(store.choose(true)[0], (offset >> 20) as u32, "the spoiled one ranks first");
    assert_eq!(db.collect().unwrap_err().kind(), ErrorKind::Corrupted);
    let metrics = db.metrics();
    assert_eq!((metrics.segments_unreadable, metrics.segments_collected), (1, 3));
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
    assert_eq!(metrics.segments_unreadable, 1);
    assert!(flat.store().log.segments().iter().any(|(unit, ..)| *unit == (offset >> 20) as u32));
}

/// What rots after a segment was emptied takes nothing with it: the space comes back.
#[test]
fn a_victim_corrupted_while_a_snapshot_holds_it_is_freed() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = open(&sim);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    fill(&flat, 1);
    let offset = place(&flat, &[b'f', 1, 50]);
    empty(&flat, 1);
    let snapshot = db.snapshot();
    put(&flat, b"later", b"x");
    assert_eq!(db.collect().unwrap(), 0, "the snapshot may need it");
    sim.corrupt(offset + 8_000, 0x10);
    drop(snapshot);
    assert_eq!(db.collect().unwrap(), 1);
    assert_eq!(flat.scan().count(), 67);
    assert_eq!(db.metrics().segments_unreadable, 0);
}
