//! Counting without meeting: each thread counts in its own stripe.
//!
//! Owns [`Stripes`]. Promises that counting is a load and a store of a cache line that no other thread writes. Must not know what is counted.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread_number;

const STRIPES: usize = if cfg!(shuttle) { 4 } else { 64 };

/// `N` counters. A stripe belongs to one thread, unless there are more than 64: then a few counts are lost.
#[derive(Debug)]
pub(crate) struct Stripes<const N: usize> {
    stripes: Box<[CounterStripe<N>]>,
}

#[derive(Debug)]
#[repr(align(128))]
struct CounterStripe<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Stripes<N> {
    fn default() -> Stripes<N> {
        let stripe = |_| CounterStripe(std::array::from_fn(|_| AtomicU64::new(0)));
        Stripes { stripes: (0..STRIPES).map(stripe).collect() }
    }
}

impl<const N: usize> Stripes<N> {
    /// Adds one to the counter `what`.
    #[inline]
    pub(crate) fn add(&self, what: usize) {
        let mine = thread_number!();
        let counter = &self.stripes[mine % STRIPES].0[what];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// What all threads have counted.
    pub(crate) fn sum(&self, what: usize) -> u64 {
        self.stripes.iter().map(|stripe| stripe.0[what].load(Ordering::Relaxed)).sum()
    }
}
