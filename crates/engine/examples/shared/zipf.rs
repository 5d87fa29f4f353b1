//! Keys of which some are asked for far more often than others.

use hedgerow_device::Random;

/// Zipfian numbers below `count`, the popular ones spread (Gray et al., as in YCSB).
pub(super) struct Zipf {
    count: u64,
    zeta: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    pub(super) fn new(count: u64) -> Zipf {
        let sum = |n: u64| (1..=n).map(|i| 1.0 / (i as f64).powf(THETA)).sum::<f64>();
        let zeta = sum(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - sum(2) / zeta);
        Zipf { count, zeta, eta }
    }

    pub(super) fn next(&self, random: &mut Random) -> u64 {
        let u = random.below(1 << 40) as f64 / (1u64 << 40) as f64;
        let rank = match u * self.zeta {
            z if z < 1.0 => 0,
            z if z < 1.0 + 0.5f64.powf(THETA) => 1,
            _ => (self.count as f64 * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - THETA))) as u64,
        };
        rank.min(self.count - 1) * 2_654_435_761 % self.count
    }
}
