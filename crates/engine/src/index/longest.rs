//! How long the keys of a tree are, as far as what a new one takes depends on it.
//!
//! Owns: the lengths of the two longest keys. Promises: no key is longer than the first, and of any two keys the shorter is no
//! longer than the second: so a separator, which is at most a byte longer than the shorter of its neighbours, is bounded by
//! that, and one long key alone makes none long. Must not know: nodes, memory.

/// Bounds of the lengths of the two longest keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LongestKeys {
    longest: u32,
    second: u32,
}

impl LongestKeys {
    pub(super) fn longest(self) -> usize {
        self.longest as usize
    }

    /// Bytes of the longest separator that two of the keys can have between them.
    pub(super) fn separator_max(self) -> usize {
        self.second as usize + 1
    }

    /// With a key of `len` bytes more.
    #[inline]
    pub(super) fn with(self, len: usize) -> LongestKeys {
        let len = len as u32;
        match self {
            LongestKeys { second, .. } if len <= second => self,
            LongestKeys { longest, .. } if len <= longest => LongestKeys { longest, second: len },
            LongestKeys { longest, .. } => LongestKeys { longest: len, second: longest },
        }
    }

    /// With a key of `len` bytes less, of which there was one.
    #[inline]
    pub(super) fn without(self, len: usize) -> LongestKeys {
        // Of the others none is longer than the second.
        if len as u32 == self.longest { LongestKeys { longest: self.second, ..self } } else { self }
    }

    /// Of these keys and others.
    pub(super) fn joined(self, others: LongestKeys) -> LongestKeys {
        self.with(others.longest as usize).with(others.second as usize)
    }

    /// Both in one word, as [`LongestKeys::from_raw`] takes it.
    pub(super) fn raw(self) -> u64 {
        u64::from(self.longest) << 32 | u64::from(self.second)
    }

    pub(super) fn from_raw(raw: u64) -> LongestKeys {
        LongestKeys { longest: (raw >> 32) as u32, second: raw as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_longest_are_bounded_whatever_comes_and_goes() {
        let mut lens: Vec<usize> = Vec::new();
        let mut bounds = LongestKeys::default();
        let mut seed = 7u64;
        for _ in 0..if cfg!(miri) { 200 } else { 10_000 } {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = (seed >> 33) as usize;
            if random % 5 < 2 && !lens.is_empty() {
                let len = lens.swap_remove(random / 5 % lens.len());
                bounds = bounds.without(len);
            } else {
                lens.push(random / 5 % 100);
                bounds = bounds.with(random / 5 % 100);
            }
            let mut sorted = lens.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            assert!(bounds.longest() >= sorted.first().copied().unwrap_or(0));
            assert!(bounds.separator_max() > sorted.get(1).copied().unwrap_or(0));
            assert_eq!(LongestKeys::from_raw(bounds.raw()), bounds);
        }
        let long = LongestKeys::default().with(8).with(8).with(1000);
        assert_eq!((long.longest(), long.separator_max()), (1000, 9));
        assert_eq!(long.without(1000).with(1000), long);
        assert_eq!(long.joined(long).separator_max(), 1001);
    }
}
