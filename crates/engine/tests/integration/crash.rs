//! Crash sweeps on the simulated medium: every persist point of a long script, several survivor images each.

use hedgerow::Durability;
use hedgerow_device::CrashModel;
use hedgerow_sim::{Setup, Sweep, SweepCounts, Taste};

fn taste() -> Taste {
    Taste {
        keys: 90,
        value_bytes_max: 80_000,
        reads: false,
        reopens: false,
        persist_one_in: 25,
        ..Taste::default()
    }
}

/// Sweeps scripts of some seeds. `HEDGEROW_SEED=n` sweeps that one only.
fn sweep(
    model: CrashModel,
    durability: Durability,
    count: usize,
    images: usize,
    between: u64,
) -> SweepCounts {
    let seed = std::env::var("HEDGEROW_SEED").map_or(1, |seed| seed.parse().unwrap());
    let setup = Setup { model, durability, tier_bytes: 16 << 20, ..Setup::default() };
    let mut sweep = Sweep::run(seed, count, setup, &taste()).unwrap_or_else(|d| panic!("seed {seed}: {d}"));
    let start = std::time::Instant::now();
    sweep.crash_everywhere(images, between).unwrap_or_else(|d| panic!("{d}"));
    println!("{model:?}, {durability:?}: {:?} in {:.1?}", sweep.counts, start.elapsed());
    assert!(sweep.counts.segments_freed > 0, "the script collected nothing");
    sweep.counts
}

#[test]
fn page_cache_with_persists_now_and_then() {
    let counts = sweep(CrashModel::Pages, Durability::Process, 2_000, 5, 50);
    assert!(counts.lost > 0, "no crash lost anything that was not durable: the medium loses nothing");
}

#[test]
fn persistent_memory_with_persists_now_and_then() {
    let counts = sweep(CrashModel::CacheLines, Durability::Process, 2_000, 5, 50);
    assert!(counts.lost > 0, "no crash lost anything that was not durable: the medium loses nothing");
}

#[test]
fn page_cache_durable_at_once() {
    let counts = sweep(CrashModel::Pages, Durability::Immediate, 2_000, 2, 0);
    assert!(counts.places > 1_000);
}

#[test]
fn persistent_memory_durable_at_once() {
    let counts = sweep(CrashModel::CacheLines, Durability::Immediate, 2_000, 2, 0);
    assert!(counts.places > 1_000);
}
