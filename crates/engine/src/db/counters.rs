//! What a store counts, per operation.

use crate::stripes::Stripes;

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

/// The counters of a store.
#[derive(Debug, Default)]
pub(crate) struct Counters(Stripes<COUNTS>);

impl Counters {
    #[inline]
    pub(crate) fn add(&self, what: Count) {
        self.0.add(what as usize);
    }

    pub(crate) fn sum(&self, what: Count) -> u64 {
        self.0.sum(what as usize)
    }
}
