//! What looks into sorted tables cost.
//!
//! Owns [`LookCounts`]. Promises that a look which a filter denies counts nothing, and costs nothing for it. Must not know files.

use crate::stripes::Stripes;

/// What is counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum LookCount {
    /// A look for a key into a file whose filter did not deny it.
    Look,
    /// One of those that found nothing.
    FalsePositive,
    /// A key that a reader's walk came by.
    Walked,
    /// A block that the cache had.
    CacheHit,
    /// A block that it had not, and has now.
    CacheMiss,
}

const COUNTS: usize = 5;

/// The counts of all files of a store.
#[derive(Debug, Default)]
pub(crate) struct LookCounts(Stripes<COUNTS>);

impl LookCounts {
    #[inline]
    pub(super) fn add(&self, what: LookCount) {
        self.0.add(what as usize);
    }

    fn sum(&self, what: LookCount) -> u64 {
        self.0.sum(what as usize)
    }

    /// Looks for a key into a file whose filter did not deny it.
    pub(crate) fn looks(&self) -> u64 {
        self.sum(LookCount::Look)
    }

    /// Keys that walks came by.
    pub(crate) fn walked(&self) -> u64 {
        self.sum(LookCount::Walked)
    }

    /// Those of them that found nothing.
    pub(crate) fn false_positives(&self) -> u64 {
        self.sum(LookCount::FalsePositive)
    }

    /// Blocks that the cache had.
    pub(crate) fn cache_hits(&self) -> u64 {
        self.sum(LookCount::CacheHit)
    }

    /// Blocks that were read because it had them not.
    pub(crate) fn cache_misses(&self) -> u64 {
        self.sum(LookCount::CacheMiss)
    }
}
