//! Crash sweeps on the simulated medium: every persist point of a long script, several survivor images each.

use hedgerow::Durability;
use hedgerow_device::CrashModel;
use hedgerow_sim::{Lie, Op, Setup, Sweep, SweepCounts, Taste};

fn taste() -> Taste {
    Taste {
        keys: 90,
        value_bytes_max: 80_000,
        // What reads find in pieces, collections merge: rows that are not durable, under deltas that may be.
        reads: true,
        reopens: false,
        persist_one_in: 25,
        ..Taste::default()
    }
}

/// Many chains that can be merged in place.
fn in_place() -> Taste {
    Taste { fixed_updates: true, keys: 60, value_bytes_max: 3_000, ..taste() }
}

/// Sweeps scripts of some seeds. `HEDGEROW_SEED=n` sweeps that one only.
fn sweep(
    model: CrashModel,
    durability: Durability,
    count: usize,
    images: usize,
    between: u64,
) -> SweepCounts {
    let counts = sweep_of(&taste(), model, durability, count, images, between);
    assert!(counts.segments_freed > 0, "the script collected nothing");
    counts
}

fn sweep_of(
    taste: &Taste,
    model: CrashModel,
    durability: Durability,
    count: usize,
    images: usize,
    between: u64,
) -> SweepCounts {
    let seed = std::env::var("HEDGEROW_SEED").map_or(1, |seed| seed.parse().unwrap());
    let setup = Setup { model, durability, tier_bytes: 16 << 20, ..Setup::default() };
    let mut sweep = Sweep::run(seed, count, setup, taste).unwrap_or_else(|d| panic!("seed {seed}: {d}"));
    let start = std::time::Instant::now();
    sweep.crash_everywhere(images, between).unwrap_or_else(|d| panic!("{d}"));
    println!("{model:?}, {durability:?}: {:?} in {:.1?}", sweep.counts, start.elapsed());
    assert!(sweep.counts.merged.chains > 0, "the script merged nothing");
    sweep.counts
}

#[test]
fn page_cache_with_persists_now_and_then() {
    let counts = sweep(CrashModel::Pages, Durability::Process, 2_000, 4, 50);
    assert!(counts.lost > 0, "no crash lost anything that was not durable: the medium loses nothing");
}

#[test]
fn persistent_memory_with_persists_now_and_then() {
    let counts = sweep(CrashModel::CacheLines, Durability::Process, 2_000, 4, 50);
    assert!(counts.lost > 0, "no crash lost anything that was not durable: the medium loses nothing");
}

#[test]
fn page_cache_durable_at_once() {
    let counts = sweep(CrashModel::Pages, Durability::Immediate, 2_000, 2, 0);
    assert!(counts.places > 700);
}

#[test]
fn persistent_memory_durable_at_once() {
    let counts = sweep(CrashModel::CacheLines, Durability::Immediate, 2_000, 2, 0);
    assert!(counts.places > 700);
}

/// Rows merged in place, torn at every step of it.
#[test]
fn merging_in_place_survives() {
    for durability in [Durability::Process, Durability::Immediate] {
        let counts = sweep_of(&in_place(), CrashModel::CacheLines, durability, 1_500, 3, 15);
        assert!(counts.merged.in_place > 20, "only {} chains were merged in place", counts.merged.in_place);
    }
}

/// With one protection switched off, some crash must show it: else the sweep would prove nothing.
fn must_be_noticed(model: CrashModel, durability: Durability, lie: Lie) {
    // Large writes, so that what was freed is soon written over.
    let taste = Taste { persist_one_in: 40, reads: false, keys: 40, value_bytes_max: 300_000, ..taste() };
    must_be_noticed_by(&taste, model, durability, lie);
}

fn must_be_noticed_by(taste: &Taste, model: CrashModel, durability: Durability, lie: Lie) {
    let setup = Setup { model, durability, tier_bytes: 16 << 20, ..Setup::default() };
    for seed in 1..12 {
        let Ok(mut sweep) = Sweep::run_lying(seed, 1_200, setup, taste, Some(lie)) else { continue };
        if let Err(violation) = sweep.crash_everywhere(3, 40) {
            let text = violation.to_string();
            println!("seed {seed}: {}", text.split(": ").skip(2).collect::<Vec<_>>().join(": "));
            return;
        }
    }
    panic!("no sweep noticed {lie:?}");
}

const SEGMENT: u64 = 1 << 20;

fn is_everything(offset: u64, len: u64) -> bool {
    (offset, len) == (0, u64::MAX)
}

fn changes_catalog(op: &Op) -> bool {
    matches!(op, Op::AddField { .. } | Op::RenameField { .. } | Op::DropField { .. } | Op::Clear { .. })
}

#[test]
fn without_the_sync_of_persist_the_sweep_fails() {
    let lie = Lie { during: |op| *op == Op::Persist, ranges: |_, _| true };
    must_be_noticed(CrashModel::Pages, Durability::Process, lie);
    must_be_noticed(CrashModel::CacheLines, Durability::Process, lie);
}

#[test]
fn without_the_persist_of_each_record_the_sweep_fails() {
    let lie =
        Lie { during: |_| true, ranges: |offset, len| offset >= SEGMENT && !is_everything(offset, len) };
    must_be_noticed(CrashModel::CacheLines, Durability::Immediate, lie);
}

/// Merging in place: the sums before the fields, the fields before the word that says so, the word before the deltas go.
#[test]
fn without_the_persists_of_merging_in_place_the_sweep_fails() {
    // Everything smaller than a header, in the segments, during collections: the lines of merges.
    let merge = |offset: u64, len: u64| {
        offset >= SEGMENT && len.is_multiple_of(64) && !offset.is_multiple_of(SEGMENT)
    };
    let lie = Lie { during: |op| *op == Op::Collect, ranges: merge };
    must_be_noticed_by(&in_place(), CrashModel::CacheLines, Durability::Process, lie);
}

#[test]
fn without_the_checkpoint_before_freeing_the_sweep_fails() {
    let lie = Lie { during: |op| *op == Op::Collect, ranges: is_everything };
    must_be_noticed(CrashModel::Pages, Durability::Process, lie);
}

#[test]
fn without_freeing_durably_before_reuse_the_sweep_fails() {
    let header = |offset: u64, len: u64| offset >= SEGMENT && offset.is_multiple_of(SEGMENT) && len == 128;
    must_be_noticed(
        CrashModel::Pages,
        Durability::Process,
        Lie { during: |op| *op == Op::Collect, ranges: header },
    );
}

#[test]
fn without_the_order_of_catalog_and_root_the_sweep_fails() {
    let catalog = |offset: u64, _| (65_536..SEGMENT).contains(&offset);
    must_be_noticed(CrashModel::Pages, Durability::Process, Lie { during: changes_catalog, ranges: catalog });
    let root = |offset: u64, len: u64| offset < 65_536 && len == 128;
    must_be_noticed(
        CrashModel::CacheLines,
        Durability::Process,
        Lie { during: changes_catalog, ranges: root },
    );
}
