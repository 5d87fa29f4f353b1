//! Random numbers that a seed repeats.
//!
//! Owns [`Random`], the one generator of all crates: xoshiro256++ (Blackman and Vigna 2019), seeded by splitmix64, as the
//! crate `rand_xoshiro` has it. Promises the same sequence for the same seed, on every machine and in every version. Not for
//! secrets.

use std::hash::{BuildHasher, Hasher, RandomState};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A small, fast generator.
#[derive(Debug, Clone)]
pub struct Random {
    state: Xoshiro256PlusPlus,
}

impl Random {
    /// The sequence that belongs to `seed`.
    pub fn from_seed(seed: u64) -> Random {
        Random { state: Xoshiro256PlusPlus::seed_from_u64(seed) }
    }

    /// A sequence nobody can repeat.
    pub fn from_entropy() -> Random {
        // The standard library draws the keys of a RandomState from the operating system.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(crate::clock::monotonic_ns());
        Random::from_seed(hasher.finish())
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state.next_u64()
    }

    /// A number from 0 to below 1, every multiple of 2^-53 equally likely.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A number in `0..n`, every one equally likely; 0 where `n` is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        // Lemire 2019: the high half of a product; the low half says when to draw again.
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            let low = product as u64;
            if low >= n || low >= n.wrapping_neg().checked_rem(n).unwrap_or(0) {
                return (product >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_stay_what_they_were() {
        // As written by the first version of this module, by hand after the references of both algorithms.
        let draw = |seed| {
            let mut random = Random::from_seed(seed);
            [random.next_u64(), random.next_u64(), random.next_u64()]
        };
        assert_eq!(
            draw(0),
            [5_987_356_902_031_041_503, 7_051_070_477_665_621_255, 6_633_766_593_972_829_180]
        );
        assert_eq!(
            draw(1_234_567),
            [437_095_814_655_224_680, 8_127_161_015_984_454_572, 18_128_670_339_019_551_454]
        );
        let mut random = Random::from_seed(7);
        let units: Vec<f64> = (0..10_000).map(|_| random.unit()).collect();
        assert!(units.iter().all(|unit| (0.0..1.0).contains(unit)));
        assert!((units.iter().sum::<f64>() / 10_000.0 - 0.5).abs() < 0.01);
    }

    #[test]
    fn below_is_in_range_and_even() {
        let mut random = Random::from_seed(7);
        assert_eq!((random.below(0), random.below(1)), (0, 0));
        let mut seen = [0u32; 6];
        for _ in 0..60_000 {
            seen[random.below(6) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (9_500..10_500).contains(&n)), "{seen:?}");
        let far = u64::MAX / 2 + 2;
        assert!((0..1_000).all(|_| random.below(far) < far));
    }

    #[test]
    fn seeds_repeat_and_entropy_does_not() {
        let draw = |mut random: Random| [random.next_u64(), random.next_u64()];
        assert_eq!(draw(Random::from_seed(3)), draw(Random::from_seed(3)));
        assert_ne!(draw(Random::from_seed(3)), draw(Random::from_seed(4)));
        assert_ne!(draw(Random::from_entropy()), draw(Random::from_entropy()));
    }
}
