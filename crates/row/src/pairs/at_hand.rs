//! How many bytes of rows are at hand for the attempts at a store, all of them together.
//!
//! Owns the count. Promises that what an attempt has counted is taken back when it forgets it, however it ends. Must not know what attempts do.

use std::sync::Arc;

use crate::sync::{AtomicUsize, Ordering};

/// Of all attempts at one store.
#[derive(Clone, Default)]
pub(super) struct AtHand(Arc<AtomicUsize>);

impl AtHand {
    /// The bytes now, about.
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Of an attempt that has none yet.
    pub(super) fn attempt(&self) -> AtHandOfOne {
        AtHandOfOne { all: self.clone(), bytes: 0 }
    }
}

/// Of one attempt.
pub(super) struct AtHandOfOne {
    all: AtHand,
    bytes: usize,
}

impl AtHandOfOne {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn set(&mut self, bytes: usize) {
        // Nothing is ordered by it: it is a count.
        self.all.0.fetch_add(bytes, Ordering::Relaxed);
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for AtHandOfOne {
    fn drop(&mut self) {
        self.set(0);
    }
}
