//! A bandwidth that all threads share.
//!
//! Owns when the media will be done with what they were asked for. Promises that over any time they do no more than the
//! bandwidth allows. Must not know whether they read or write.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes a second, handed out in the order in which they are asked for.
#[derive(Debug)]
pub(super) struct TokenBucket {
    picoseconds_per_kib: u64,
    /// When the media will be free again.
    free_ns: AtomicU64,
}

impl TokenBucket {
    pub(super) fn new(bytes_per_s: u64) -> TokenBucket {
        let per_kib = (1_u128 << 10) * 1_000_000_000_000 / u128::from(bytes_per_s.max(1));
        TokenBucket {
            picoseconds_per_kib: u64::try_from(per_kib).unwrap_or(u64::MAX),
            free_ns: AtomicU64::new(0),
        }
    }

    /// What so many bytes take the media.
    pub(super) fn cost_ns(&self, bytes: u64) -> u64 {
        let ps = u128::from(bytes) * u128::from(self.picoseconds_per_kib) / 1024;
        u64::try_from((ps + 500) / 1000).unwrap_or(u64::MAX)
    }

    /// Asks for so many bytes at `now`. Returns when the media begin with them.
    pub(super) fn take(&self, now: u64, bytes: u64) -> u64 {
        let cost = self.cost_ns(bytes);
        let queue = |free: u64| Some(free.max(now).saturating_add(cost));
        // The closure always answers a value.
        let (Ok(free) | Err(free)) = self.free_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, queue);
        free.max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_for_those_before_them() {
        let bucket = TokenBucket::new(1_000_000_000);
        assert_eq!((bucket.cost_ns(256), bucket.cost_ns(0)), (256, 0));
        assert_eq!(
            [bucket.take(1_000, 256), bucket.take(1_000, 256), bucket.take(1_100, 0)],
            [1_000, 1_256, 1_512]
        );
        assert_eq!(bucket.take(5_000, 256), 5_000, "what was not used is lost");
        assert_eq!(TokenBucket::new(6_600_000_000).cost_ns(256), 39);
    }

    #[test]
    fn no_bandwidth_at_all_does_not_overflow() {
        let bucket = TokenBucket::new(0);
        assert!(bucket.cost_ns(u64::MAX) > 1 << 60);
        bucket.take(u64::MAX, 1 << 40);
        assert_eq!(bucket.take(7, 1), u64::MAX);
    }
}
