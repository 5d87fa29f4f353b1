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
