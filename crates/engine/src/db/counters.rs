//! Counting without meeting: each thread counts in its own stripe.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const STRIPES: usize = 64;

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
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
        let mine = MINE.with(|mine| {
            if mine.get() == usize::MAX {
                mine.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            mine.get()
        });
        let counter = &self.stripes[mine % STRIPES].0[what as usize];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self, what: Count) -> u64 {
        self.stripes.iter().map(|stripe| stripe.0[what as usize].load(Ordering::Relaxed)).sum()
    }
}
