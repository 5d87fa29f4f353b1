//! What writers write back, and what a power cut leaves for it.

use std::sync::Arc;

use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Survivors};

use super::*;
use crate::db::fixture::options;
use crate::{Db, ErrorKind, Schema, Table};

const SEGMENT_BYTES: u64 = 1 << 20;
const BODY_BYTES: usize = 5_000;

fn open(sim: &CrashSim, durability: Durability, granule: PersistGranule) -> Db {
    let options = Options { durability, persist_granule: granule, ..options() };
    Db::open_at(FastTier::simulated(sim), options, Clock::manual(1_000)).unwrap()
}

fn put(table: &Table, rows: std::ops::Range<u64>) {
    for n in rows {
        table.put(&n, &[("f", [7; BODY_BYTES].as_slice().into())]).unwrap();
    }
}

fn written_back(table: &Table) -> u64 {
    table.engine().log.bytes_written_back()
}

/// Rows of a store that wrote `rows` of them after its last sync, once all is gone that was not made durable.
fn left_by_power_cut(model: CrashModel, granule: PersistGranule, rows: u64) -> u64 {
    let sim = CrashSim::new(model, 32 << 20);
    let db = open(&sim, Durability::Process, granule);
    let table = db.create_table("t", Schema::open()).unwrap();
    put(&table, 0..1);
    db.persist().unwrap();
    put(&table, 1..rows);
    let images = sim.images_at(sim.ops(), 3, 9);
    let image = images.into_iter().find(|image| image.survivors == Survivors::None);
    drop((table, db));
    let left = open(&CrashSim::from_image(&image.unwrap()), Durability::Process, granule);
    left.table("t").unwrap().len()
}

#[test]
fn blocks_are_written_back_by_who_appends_behind_them() {
    let sim = CrashSim::new(CrashModel::CacheLines, 32 << 20);
    let db = open(&sim, Durability::Process, PersistGranule::Block(16 << 10));
    let table = db.create_table("t", Schema::open()).unwrap();
    let mut seen = Vec::new();
    for n in 0..100 {
        put(&table, n..n + 1);
        seen.push(written_back(&table));
    }
    // All but the block that is being filled, and the row that filled one.
    let (written, ..) = table.engine().log.record_bytes();
    assert!((written - (16 << 10) - 6_000..=written).contains(&seen[99]), "{} of {written}", seen[99]);
    assert!(seen.iter().filter(|&&bytes| bytes == seen[50]).count() <= 4, "each block is for itself");
    assert!(seen.is_sorted(), "{seen:?}");
}

#[test]
fn a_segment_is_written_back_when_the_next_begins() {
    let sim = CrashSim::new(CrashModel::CacheLines, 32 << 20);
    let db = open(&sim, Durability::Process, PersistGranule::Segment);
    let table = db.create_table("t", Schema::open()).unwrap();
    put(&table, 0..200);
    assert_eq!(written_back(&table), 0, "one segment holds them");
    put(&table, 200..220);
    let bytes = written_back(&table);
    assert!((SEGMENT_BYTES - 6_000..SEGMENT_BYTES).contains(&bytes), "{bytes}");
}

/// What is left of a segment goes with it, in whatever blocks.
#[test]
fn nothing_of_a_full_segment_is_left_out() {
    let of = |granule| {
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let db = open(&sim, Durability::Process, granule);
        let table = db.create_table("t", Schema::open()).unwrap();
        put(&table, 0..210);
        written_back(&table)
    };
    let segment = of(PersistGranule::Segment);
    assert_eq!([4 << 10, 1 << 20, 1 << 30].map(|bytes| of(PersistGranule::Block(bytes)) / segment), [1; 3]);
    assert_eq!(of(PersistGranule::Block(1 << 30)), segment, "no block is longer than its segment");
}

#[test]
fn where_each_write_is_durable_nothing_is_left_to_be_written_back() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        for granule in [PersistGranule::Segment, PersistGranule::Block(4 << 10)] {
            let sim = CrashSim::new(model, 32 << 20);
            let db = open(&sim, Durability::Immediate, granule);
            let table = db.create_table("t", Schema::open()).unwrap();
            put(&table, 0..300);
            assert_eq!(written_back(&table), 0, "{model:?}, {granule:?}");
        }
    }
}

/// On persistent memory what was flushed is there; of a file the kernel was only told to begin.
#[test]
fn a_power_cut_leaves_what_was_flushed() {
    let left = |granule| left_by_power_cut(CrashModel::CacheLines, granule, 330);
    assert_eq!(left(PersistGranule::Sync), 1);
    let segment = left(PersistGranule::Segment);
    assert!((195..=210).contains(&segment), "{segment}");
    let blocks = left(PersistGranule::Block(16 << 10));
    assert!((325..=329).contains(&blocks), "{blocks}");
    assert_eq!(left_by_power_cut(CrashModel::Pages, PersistGranule::Block(4 << 10), 330), 1);
}

#[test]
fn a_granule_that_is_none_is_refused() {
    for bytes in [0, 1, 2 << 10, 12 << 10, 2 << 30, u64::MAX] {
        let options = Options { persist_granule: PersistGranule::Block(bytes), ..options() };
        let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
        let tier = Arc::new(FastTier::simulated(&sim));
        let error = Log::open(tier, &options, Clock::manual(1_000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("persist_granule") && error.message().contains("4 KiB to 1 GiB"));
    }
}
