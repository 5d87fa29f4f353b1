//! The store against its model: random operations, every answer compared, with small segments and a small tier, so that
//! collection, rewriting of chains and a full store all happen.

use hedgerow::{Durability, PersistGranule};
use hedgerow_device::CrashModel;
use hedgerow_sim::{Merged, Op, Runner, Setup, Source, Taste, generate, rounds};

/// Runs `count` operations of a seed; on failure says how to repeat it.
fn run(seed: u64, count: u32, setup: Setup, taste: &Taste) -> Runner {
    let mut source = Source::from_seed(seed);
    let mut runner = Runner::new(setup).unwrap();
    let mut trace: Vec<Op> = Vec::new();
    for stamp in 0..count {
        let op = generate(&mut source, taste, stamp);
        trace.push(op.clone());
        if let Err(divergence) = runner.step(&op) {
            let last: Vec<String> = trace.iter().rev().take(12).rev().map(|op| format!("{op:?}\n")).collect();
            let last = last.concat();
            panic!("seed {seed}, {setup:?}, operation {stamp}: {divergence}\nthe last operations:\n{last}");
        }
    }
    runner.reopen_and_verify().unwrap_or_else(|divergence| panic!("seed {seed}, at the end: {divergence}"));
    runner
}

fn setup_of(seed: u64) -> Setup {
    Setup {
        model: if seed.is_multiple_of(2) { CrashModel::Pages } else { CrashModel::CacheLines },
        tier_bytes: [12, 16, 24, 64][(seed / 2 % 4) as usize] << 20,
        durability: if seed.is_multiple_of(5) { Durability::Immediate } else { Durability::Process },
        persist_granule: [PersistGranule::Sync, PersistGranule::Segment, PersistGranule::Block(16 << 10)]
            [(seed / 4 % 3) as usize],
        delta_chain_max: [5, 1, 7, 2][(seed / 8 % 4) as usize],
        // None, one that always overflows, one that does not.
        cache_bytes: [0, 1, 1, 16][(seed % 4) as usize] << 20,
        ..Setup::default()
    }
}

/// `HEDGEROW_SEED=n` repeats one seed.
#[test]
fn the_store_answers_like_its_model() {
    let taste_of = |seed: u64| Taste {
        keys: [24, 96, 400][(seed % 3) as usize],
        value_bytes_max: [60_000, 400, 20_000, 400_000][(seed % 4) as usize],
        fixed_updates: seed % 4 == 1,
        ..Taste::default()
    };
    if let Ok(seed) = std::env::var("HEDGEROW_SEED") {
        let seed = seed.parse().unwrap();
        run(seed, 3_000, setup_of(seed), &taste_of(seed));
        return;
    }
    let seeds = rounds(24, 480);
    let (mut freed, mut refused, mut hits, mut merged) = (0, 0, 0, Merged::default());
    for seed in 0..seeds {
        let runner = run(seed, 3_000, setup_of(seed), &taste_of(seed));
        (freed, refused) = (freed + runner.segments_freed, refused + runner.refused_full);
        merged += runner.merged();
        hits += runner.cache_hits();
    }
    println!(
        "{seeds} seeds: {freed} segments freed, {merged:?}, {refused} times full, \
         {hits} cache hits"
    );
    assert!(freed > 0, "the seeds never collected a segment");
    assert!(merged.chains > 0, "the seeds never merged a chain");
    assert!(merged.in_place > 0, "the seeds never merged a chain in place");
    assert!(merged.reordered > 0, "the seeds never reordered a row");
    assert!(hits > 0, "the seeds never read a cached row");
}

/// Tables are loaded now and then: their rows are in sorted tables until they are written.
#[test]
fn a_store_with_loaded_tables_answers_like_its_model() {
    let mut loads = 0;
    for seed in 0..rounds(16, 320) {
        let taste = Taste {
            keys: [24, 96, 400][(seed % 3) as usize],
            value_bytes_max: [4_000, 400, 60_000][(seed % 3) as usize],
            loads: true,
            ..Taste::default()
        };
        loads += run(2_000_000 + seed, 2_000, setup_of(seed), &taste).loads;
    }
    assert!(loads > 16, "only {loads} loads");
}

/// Rows move to sorted tables with every collection, and what is written meets what is there.
#[test]
fn a_store_whose_rows_move_answers_like_its_model() {
    let mut moved = 0;
    for seed in 0..rounds(48, 1_000) {
        let taste = Taste {
            keys: [24, 96, 400][(seed % 3) as usize],
            value_bytes_max: [4_000, 400, 60_000][(seed / 3 % 3) as usize],
            loads: seed.is_multiple_of(2),
            fixed_updates: seed % 5 == 1,
            ..Taste::default()
        };
        let setup = Setup { moving: true, ..setup_of(seed) };
        moved += run(3_000_000 + seed, 3_000, setup, &taste).moved();
    }
    assert!(moved > 15_000, "only {moved} records moved");
}

/// An index of a few nodes: keys leave memory with collections and whenever the store is opened, are written over there, deleted, moved and collected.
#[test]
fn a_store_of_sealed_keys_answers_like_its_model() {
    let (mut sealed, mut refused) = (0, 0);
    for seed in 0..rounds(32, 640) {
        let taste = Taste {
            keys: [400, 96][(seed % 2) as usize],
            value_bytes_max: [400, 4_000, 20_000][(seed / 2 % 3) as usize],
            loads: seed % 3 == 1,
            fixed_updates: seed % 5 == 1,
            ..Taste::default()
        };
        let index_bytes_max = [24, 12, 40][(seed % 3) as usize] << 10;
        let setup = Setup { moving: seed % 4 == 3, index_bytes_max, ..setup_of(seed) };
        let runner = run(4_000_000 + seed, 3_000, setup, &taste);
        (sealed, refused) = (sealed + runner.sealed(), refused + runner.refused_full);
    }
    println!("{sealed} keys sealed, {refused} times full");
    assert!(sealed > 3_000, "only {sealed} keys were sealed");
}

/// Few keys and short runs: batches write one row several times over, expire it and make it anew, and the rows counted
/// at the end of each run show what was left of it.
#[test]
fn batches_fold_like_their_model() {
    let taste = Taste { keys: 2, value_bytes_max: 400, ..Taste::default() };
    for seed in 0..1_000 {
        run(1_000_000 + seed, 40, Setup::default(), &taste);
    }
}
