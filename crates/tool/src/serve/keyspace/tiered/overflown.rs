//! Prefixes whose keys stay in the shared table although there is room for more tables of their own.
//!
//! Owns which of them were met lately, in bounded memory, so that not every write looks for keys of its prefix there. What it says may be outdated for a moment: then a key of the prefix goes to the shared
//! table once more, and stays there, where it is found as before. Must not know tables.

use std::collections::HashMap;

use super::table::Seeded;

/// No more prefixes are remembered of one database.
const PREFIXES_MAX: usize = 1024;
/// A prefix is looked for again after this time: its keys may have expired.
const LOOKED_AGAIN_MS: u64 = 1_000;

/// The prefixes of one database that have keys in its shared table, as far as they are remembered.
#[derive(Debug, Default)]
pub struct Overflown {
    /// And when they were found to have, in ms since 1970.
    found_ms: HashMap<Box<[u8]>, u64, Seeded>,
}

impl Overflown {
    /// Whether keys of the prefix were found there lately.
    pub fn is_known(&self, prefix: &[u8], now_ms: u64) -> bool {
        let found_ms = self.found_ms.get(prefix);
        // A clock that was set back says nothing.
        let ago_ms = found_ms.and_then(|found_ms| now_ms.checked_sub(*found_ms));
        ago_ms.is_some_and(|ago_ms| ago_ms < LOOKED_AGAIN_MS)
    }

    /// Keys of the prefix were found there.
    pub fn record(&mut self, prefix: &[u8], now_ms: u64) {
        if self.found_ms.len() >= PREFIXES_MAX && !self.found_ms.contains_key(prefix) {
            // Those that are still written to come back.
            self.found_ms.clear();
        }
        self.found_ms.insert(prefix.into(), now_ms);
    }

    /// A key of the prefix has gone, which may have been the last.
    pub fn forget(&mut self, prefix: &[u8]) {
        self.found_ms.remove(prefix);
    }

    /// All keys have gone.
    pub fn clear(&mut self) {
        self.found_ms.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_remembered_for_so_long() {
        let mut overflown = Overflown::default();
        overflown.record(b"p", 1_000);
        assert!(overflown.is_known(b"p", 1_000 + LOOKED_AGAIN_MS - 1) && !overflown.is_known(b"q", 1_000));
        assert!(!overflown.is_known(b"p", 1_000 + LOOKED_AGAIN_MS), "its keys may have expired");
        assert!(!overflown.is_known(b"p", 999), "the clock was set back");
        overflown.forget(b"p");
        assert!(!overflown.is_known(b"p", 1_000));
        for n in 0..10 * PREFIXES_MAX {
            overflown.record(n.to_string().as_bytes(), 1_000);
            assert!(overflown.is_known(n.to_string().as_bytes(), 1_000));
        }
        assert!(overflown.found_ms.len() <= PREFIXES_MAX);
    }
}
