//! The benefit probe: whether the cache is worth having. How long a row takes to arrive from the fast tier, against DRAM; on the page cache, how much memory there is.
//!
//! Owns that rule, and one measurement: a few rows' worth of bytes, dropped from the processor's caches, then prefetched and read as the read
//! path does it, through the tiers, so that what a slow or emulated medium takes is in it. Promises to take
//! well under a millisecond on memory. Must not know rows.

use std::hint::black_box;

use hedgerow_device::{Clock, FastTier};

/// Places read in one go, one after the other.
pub(crate) const SAMPLES: usize = 16;
/// Bytes read at each.
pub(crate) const SAMPLE_BYTES: u64 = 1024;
/// Goes at either side; the quickest counts, since others on the machine can only make it longer.
const GOES: usize = 4;

/// Where the cache begins to pay, as time on the fast tier over time in DRAM.
pub(crate) const BENEFIT_MIN: f64 = 1.3;
/// Where a cache that is in use no longer does.
pub(crate) const BENEFIT_KEPT: f64 = 1.15;

/// Whether a cache of rows serves better than the page cache that it takes its memory from, where readers wait for the disk. A page holds
/// three rows that nobody asked for beside a hot one; but what is in the cache of rows is in the page cache as well until that
/// forgets it, and what only that holds costs no disk access either. So a small cache of rows costs more hits than it brings: with
/// memory for 0.4 of the rows it pays from about half of the memory on.
///
/// Not with so much that, with the index, hardly any is left for pages and the rest of the process.
pub(crate) fn is_better_than_pages(cache_bytes: u64, used_bytes: u64, index_bytes: u64, memory: u64) -> bool {
    used_bytes > memory
        && cache_bytes >= memory / 2
        && cache_bytes.saturating_add(index_bytes) <= memory / 8 * 7
}

/// How many times longer reads at `places` of `fast` take than reads at `others` of `memory`.
pub(crate) fn measure(
    fast: &FastTier,
    places: &[u64; SAMPLES],
    memory: &FastTier,
    others: &[u64; SAMPLES],
) -> f64 {
    let clock = Clock::system();
    let (mut on_fast, mut in_memory) = (u64::MAX, u64::MAX);
    for _ in 0..GOES {
        on_fast = on_fast.min(time(&clock, fast, places));
        in_memory = in_memory.min(time(&clock, memory, others));
    }
    on_fast as f64 / in_memory.max(1) as f64
}

fn time(clock: &Clock, tier: &FastTier, places: &[u64; SAMPLES]) -> u64 {
    places.iter().for_each(|&place| tier.cool(place, SAMPLE_BYTES));
    let zero = black_box(0u64);
    let began = clock.monotonic_ns();
    let mut sum = 0u64;
    for &place in places {
        // The next place depends on what was read, so that no two reads overlap.
        let place = place + sum * zero;
        tier.prefetch(place, SAMPLE_BYTES);
        sum = sum.wrapping_add(tier.await_lines(place, SAMPLE_BYTES));
    }
    black_box(sum);
    clock.monotonic_ns() - began
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Arc;

    use hedgerow_device::{EmulatedBase, FastTierOptions, PersistentMemoryModel, TierBytes};

    use super::*;
    use crate::tier::bytes_of;

    fn filled(tier: FastTier) -> TierBytes {
        let tier = bytes_of(Arc::new(tier)).unwrap();
        tier.grow(1 << 20).unwrap();
        tier.write(0, 1 << 20, |bytes| bytes.fill(1));
        tier
    }

    #[test]
    fn slow_memory_is_told_from_fast() {
        let options = FastTierOptions { bytes_max: 1 << 20, ..FastTierOptions::default() };
        let dram = || filled(FastTier::dram(&options).unwrap());
        let model = PersistentMemoryModel { read_latency_ns: 2_000, ..PersistentMemoryModel::optane() };
        let slow = filled(FastTier::emulated(EmulatedBase::Dram, model, &options).unwrap());
        let places = std::array::from_fn(|i| i as u64 * 40_000 / 8 * 8);
        let others = std::array::from_fn(|i| i as u64 * 8_192);
        let (memory, fast) = (dram(), dram());
        let benefit = |fast: &TierBytes| measure(fast, &places, &memory, &others);
        assert!(benefit(&slow) > BENEFIT_MIN);
        // One of a few: a busy machine may spoil one.
        let alike = |_| benefit(&fast) < BENEFIT_MIN;
        assert!((0..20).any(alike), "DRAM against DRAM");
    }

    #[test]
    fn a_cache_of_rows_needs_most_of_the_memory_to_beat_pages() {
        let (half, all, rows, index) = (250 << 20, 500 << 20, 1100 << 20, 40 << 20);
        assert!(is_better_than_pages(half, rows, index, all));
        assert!(!is_better_than_pages(half - 1, rows, index, all), "too small");
        assert!(!is_better_than_pages(half, all, index, all), "all pages fit");
        assert!(!is_better_than_pages(400 << 20, rows, index, all), "too little is left beside the index");
        assert!(!is_better_than_pages(u64::MAX, rows, index, all), "more than there is");
    }
}
