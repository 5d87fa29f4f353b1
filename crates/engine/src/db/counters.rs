//! Counting without meeting: each thread counts in its own stripe.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread_number;

const STRIPES: usize = if cfg!(shuttle) { 4 } else { 64 };

/// What is counted per operation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Count {
    Put,
    Update,
    Get,
    Delete,
    Scan,
    Expired,
    CacheHit,
    CacheMiss,
}

const COUNTS: usize = 8;

/// The counters of a store. A stripe belongs to one thread, unless there are more than 64: then a few counts are lost.
#[derive(Debug)]
pub(crate) struct Counters {
    stripes: Box<[CounterStripe]>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct CounterStripe([AtomicU64; COUNTS]);

impl Default for Counters {
    fn default() -> Counters {
        Counters { stripes: (0..STRIPES).map(|_| CounterStripe::default()).collect() }
    }
}

impl Counters {
    #[inline]
    pub(crate) fn add(&self, what: Count) {
        let mine = thread_number!();
        let counter = &self.stripes[mine % STRIPES].0[what as usize];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self, what: Count) -> u64 {
        self.stripes.iter().map(|stripe| stripe.0[what as usize].load(Ordering::Relaxed)).sum()
    }
}
