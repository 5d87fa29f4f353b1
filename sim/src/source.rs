//! Where choices come from.

use hedgerow_device::Random;

/// A stream of choices: endless from a seed, or as long as a fuzzer's input.
#[derive(Debug, Clone)]
pub struct Source<'b>(Kind<'b>);

#[derive(Debug, Clone)]
enum Kind<'b> {
    Seed(Random),
    Bytes(&'b [u8]),
}

impl<'b> Source<'b> {
    /// The choices that belong to `seed`.
    pub fn from_seed(seed: u64) -> Source<'static> {
        Source(Kind::Seed(Random::from_seed(seed)))
    }

    /// Choices made by `bytes`: one for a small range, two or four for a larger one, so that a mutation stays local.
    pub fn from_bytes(bytes: &'b [u8]) -> Source<'b> {
        Source(Kind::Bytes(bytes))
    }

    /// Whether the bytes are used up. From then on every choice is 0.
    pub fn is_exhausted(&self) -> bool {
        matches!(self.0, Kind::Bytes([]))
    }

    /// A number in `0..n`; 0 where `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        match &mut self.0 {
            Kind::Seed(random) => random.below(n),
            Kind::Bytes(bytes) => {
                let wanted = match n {
                    0..=1 => 0,
                    2..=0x100 => 1,
                    0x101..=0x1_0000 => 2,
                    _ => 4,
                };
                let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
                *bytes = rest;
                let number = taken.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
                number.checked_rem(n).unwrap_or(0)
            }
        }
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }
}
