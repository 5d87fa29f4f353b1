//! Which keys a workload asks for.
//!
//! Owns the key distributions of YCSB core 0.17 (Cooper et al., SoCC 2010): uniform, scrambled zipfian, latest; and
//! zipfian over the records there are, which other benchmarks draw from. Promises the same arithmetic as YCSB's
//! generators, and the same sequence for the same seed. Knows record numbers only: not keys, not stores.

use hedgerow_device::Random;

/// YCSB's zipfian constant.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;
/// YCSB's scrambled zipfian always draws from this many items and folds them onto the real ones ...
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// ... so that it can carry their zeta as a constant.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;
/// A prime near 2^64 over the golden ratio: ranks times this, modulo the items, are all items in another order.
const SPREADING_PRIME: u64 = 0x9E37_79B9_7F4A_7C55;

/// YCSB's `Utils.fnvhash64`: FNV over the eight octets, then the absolute value.
#[inline]
pub fn fnv64(number: u64) -> u64 {
    let mut hash: u64 = 0xCBF2_9CE4_8422_2325;
    for shift in 0..8 {
        hash ^= number >> (8 * shift) & 0xFF;
        hash = hash.wrapping_mul(0x0000_0100_0000_01B3);
    }
    (hash as i64).unsigned_abs()
}

/// Zipf's law over `0..items`, 0 the most popular (Gray et al., SIGMOD 1994, as in YCSB's `ZipfianGenerator`).
#[derive(Debug, Clone)]
pub struct Zipfian {
    items: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    /// Draws below this are item 1.
    second: f64,
}

impl Zipfian {
    /// Sums zeta over the items: about 20 ns each.
    pub fn new(items: u64) -> Zipfian {
        Zipfian::with_zeta(items, zeta_sum(0, items))
    }

    fn with_zeta(items: u64, zeta: f64) -> Zipfian {
        let theta = ZIPFIAN_CONSTANT;
        let zeta_two = zeta_sum(0, 2);
        Zipfian {
            items,
            zeta,
            alpha: 1.0 / (1.0 - theta),
            eta: (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta_two / zeta),
            second: 1.0 + 0.5f64.powf(theta),
        }
    }

    /// Adds items, at the cost of the new ones only.
    fn grow(&mut self, items: u64) {
        if items > self.items {
            *self = Zipfian::with_zeta(items, self.zeta + zeta_sum(self.items, items));
        }
    }

    /// Draws an item.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.second {
            return 1.min(self.items - 1);
        }
        let item = (self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64;
        item.min(self.items - 1)
    }
}

/// Zeta's terms from `from` to `to`, smallest last as YCSB adds them.
fn zeta_sum(from: u64, to: u64) -> f64 {
    (from..to).map(|i| ((i + 1) as f64).powf(-ZIPFIAN_CONSTANT)).sum()
}

/// The shape of a workload's key choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Distribution {
    /// A few records get most of the requests; which ones is scattered over the key space. YCSB's: drawn from ten thousand
    /// million items and folded onto the records, so that the cold ones are asked for alike and fairly often.
    Zipfian,
    /// A few records get most of the requests, and more of them than with YCSB's: zipfian over the number of the records
    /// itself. Scattered as well, each rank to a record of its own.
    ZipfianRecords,
    /// As zipfian, but it is other records that get most of the requests: the hot spot has moved.
    Moved,
    /// All records alike.
    Uniform,
    /// The newest records get most of the requests.
    Latest,
}

/// Chooses among the records that exist. One per thread.
#[derive(Debug, Clone)]
pub struct KeyChooser {
    law: Law,
}

#[derive(Debug, Clone)]
enum Law {
    Uniform,
    Scrambled { zipfian: Zipfian, items: u64, moved_by: u64 },
    Records { zipfian: Zipfian },
    Latest { zipfian: Zipfian },
}

impl KeyChooser {
    /// A chooser over `records` that exist and `expected` more that the phase is likely to insert.
    pub fn new(distribution: Distribution, records: u64, expected: u64) -> KeyChooser {
        let law = match distribution {
            Distribution::Uniform => Law::Uniform,
            Distribution::Zipfian | Distribution::Moved => {
                let items = (records + expected).max(1);
                Law::Scrambled {
                    zipfian: Zipfian::with_zeta(SCRAMBLED_ITEMS, SCRAMBLED_ZETA),
                    items,
                    moved_by: if distribution == Distribution::Moved { items / 2 } else { 0 },
                }
            }
            Distribution::ZipfianRecords => {
                Law::Records { zipfian: Zipfian::new((records + expected).max(1)) }
            }
            Distribution::Latest => Law::Latest { zipfian: Zipfian::new(records.max(1)) },
        };
        KeyChooser { law }
    }

    /// A record below `records`, which must not be 0.
    #[inline]
    pub fn next(&mut self, random: &mut Random, records: u64) -> u64 {
        debug_assert!(records > 0);
        match &mut self.law {
            Law::Uniform => random.below(records),
            // Items not inserted yet are drawn again, as YCSB does.
            Law::Scrambled { zipfian, items, moved_by } => loop {
                let record = fnv64(zipfian.next(random)).wrapping_add(*moved_by) % *items;
                if record < records {
                    return record;
                }
            },
            Law::Records { zipfian } => loop {
                let product = u128::from(zipfian.next(random)) * u128::from(SPREADING_PRIME);
                let record = (product % u128::from(zipfian.items)) as u64;
                if record < records {
                    return record;
                }
            },
            Law::Latest { zipfian } => {
                zipfian.grow(records);
                records - 1 - zipfian.next(random).min(records - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv64_is_ycsbs() {
        // From site.ycsb.Utils.fnvhash64 by hand: FNV-1a of eight zero octets, then abs.
        let mut hash = 0xCBF2_9CE4_8422_2325u64;
        for _ in 0..8 {
            hash = hash.wrapping_mul(1_099_511_628_211);
        }
        assert_eq!(fnv64(0), (hash as i64).unsigned_abs());
        assert_eq!(fnv64(0), 6_284_781_860_667_377_211, "user6284781860667377211 is YCSB's first key");
    }

    #[test]
    fn uniform_is_flat() {
        let (mut random, mut chooser) =
            (Random::from_seed(1), KeyChooser::new(Distribution::Uniform, 100, 0));
        let mut counts = [0f64; 100];
        for _ in 0..1_000_000 {
            counts[chooser.next(&mut random, 100) as usize] += 1.0;
        }
        let chi2: f64 = counts.iter().map(|c| (c - 10_000.0).powi(2) / 10_000.0).sum();
        // 99 degrees of freedom: 0.001 of the mass lies above 148.
        assert!(chi2 < 148.0, "chi squared {chi2}");
    }

    #[test]
    fn zipfian_follows_its_law() {
        let (items, draws) = (1000, 2_000_000);
        let zipfian = Zipfian::new(items);
        let zeta = zeta_sum(0, items);
        let mut random = Random::from_seed(2);
        let mut counts = vec![0u64; items as usize];
        for _ in 0..draws {
            counts[zipfian.next(&mut random) as usize] += 1;
        }
        // Items 0 and 1 are drawn exactly; Gray's method approximates the rest, so those are checked in
        // ranges (it gives the ranks just below the top some 8 % too much).
        for (item, &count) in counts.iter().enumerate().take(2) {
            let share = count as f64 / draws as f64;
            let expected = ((item + 1) as f64).powf(-ZIPFIAN_CONSTANT) / zeta;
            assert!((share / expected - 1.0).abs() < 0.01, "item {item}: {share} for {expected}");
        }
        for (from, to) in [(2, 10), (10, 100), (100, 1000)] {
            let share = counts[from..to].iter().sum::<u64>() as f64 / draws as f64;
            let expected = zeta_sum(from as u64, to as u64) / zeta;
            assert!((share / expected - 1.0).abs() < 0.1, "items {from}..{to}: {share} for {expected}");
        }
    }

    #[test]
    fn growing_equals_summing_anew() {
        let mut grown = Zipfian::new(1000);
        grown.grow(1500);
        let fresh = Zipfian::new(1500);
        assert!((grown.zeta - fresh.zeta).abs() < 1e-9 && (grown.eta - fresh.eta).abs() < 1e-9);
        assert_eq!(grown.items, 1500);
    }

    #[test]
    fn scrambled_zipfian_is_skewed_scattered_and_existing() {
        let records = 100_000u64;
        let mut chooser = KeyChooser::new(Distribution::Zipfian, records, 10_000);
        let mut random = Random::from_seed(3);
        let mut counts = vec![0u64; records as usize];
        let draws = 1_000_000;
        for _ in 0..draws {
            counts[chooser.next(&mut random, records) as usize] += 1;
        }
        let mut order: Vec<usize> = (0..counts.len()).collect();
        order.sort_by_key(|&record| std::cmp::Reverse(counts[record]));
        // 10 of 110 items do not exist and are drawn again, so that a share is 1.1 / zeta.
        let top = counts[order[0]] as f64 / f64::from(draws);
        assert!((0.03..0.06).contains(&top), "top share {top}, YCSB's is 1 / 26.47 = 0.038 before redraws");
        assert_eq!(order[0] as u64, fnv64(0) % 110_000, "the hottest record is where YCSB puts it");
        assert!(order[..10].iter().any(|&r| r > 50_000) && order[..10].iter().any(|&r| r < 50_000));
    }

    #[test]
    fn zipfian_over_the_records_gives_each_rank_a_record() {
        let records = 10_000u64;
        let mut chooser = KeyChooser::new(Distribution::ZipfianRecords, records, 0);
        let mut random = Random::from_seed(6);
        let (mut counts, draws) = (vec![0u64; records as usize], 2_000_000);
        (0..draws).for_each(|_| counts[chooser.next(&mut random, records) as usize] += 1);
        let mut order: Vec<usize> = (0..counts.len()).collect();
        order.sort_by_key(|&record| std::cmp::Reverse(counts[record]));
        // Folding would give the top more than its share and leave a third of the records out.
        let share = |ranks: std::ops::Range<usize>| {
            order[ranks].iter().map(|&record| counts[record]).sum::<u64>() as f64 / f64::from(draws)
        };
        let zeta = zeta_sum(0, records);
        assert!((share(0..1) * zeta - 1.0).abs() < 0.02, "{}", share(0..1));
        let expected = zeta_sum(0, 1000) / zeta;
        assert!((share(0..1000) / expected - 1.0).abs() < 0.05, "{} for {expected}", share(0..1000));
        assert!(counts.iter().filter(|&&count| count == 0).count() < 10, "every record is asked for");
        assert!(order[..10].iter().any(|&r| r > 5_000) && order[..10].iter().any(|&r| r < 5_000));
    }

    #[test]
    fn a_moved_hot_spot_is_as_hot_elsewhere() {
        let records = 10_000u64;
        let mut hottest = [Distribution::Zipfian, Distribution::Moved].map(|distribution| {
            let mut chooser = KeyChooser::new(distribution, records, 0);
            let mut random = Random::from_seed(5);
            let mut counts = vec![0u64; records as usize];
            (0..200_000).for_each(|_| counts[chooser.next(&mut random, records) as usize] += 1);
            let mut order: Vec<usize> = (0..counts.len()).collect();
            order.sort_by_key(|&record| std::cmp::Reverse(counts[record]));
            let share = order[..100].iter().map(|&record| counts[record]).sum::<u64>();
            (order[..20].to_vec(), share as f64 / 200_000.0)
        });
        let [(before, share), (after, moved_share)] = &mut hottest;
        assert!(before.iter().all(|record| !after.contains(record)), "{before:?} {after:?}");
        assert!((*share / *moved_share - 1.0).abs() < 0.05, "{share} {moved_share}");
    }

    #[test]
    fn latest_prefers_the_newest_and_follows_inserts() {
        let mut chooser = KeyChooser::new(Distribution::Latest, 1000, 0);
        let mut random = Random::from_seed(4);
        for records in [1000u64, 2000, 2001] {
            let mut newest = 0;
            for _ in 0..100_000 {
                let record = chooser.next(&mut random, records);
                assert!(record < records);
                newest += u64::from(record == records - 1);
            }
            let (share, expected) = (newest as f64 / 100_000.0, 1.0 / zeta_sum(0, records));
            assert!((share / expected - 1.0).abs() < 0.05, "{share} for {expected} at {records}");
        }
    }
}
