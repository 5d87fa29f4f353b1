//! Which rows come into the cache, and how long they stay (FOCUS section V-C2).
//!
//! Owns each table's *hit ratio*, a moving average over sampled reads; the rule of admission; the lifetime of rows; and
//! the table of RW, the paper's priority parameter. Promises nothing about memory. Must not know rows or pages.
//!
//! **Admission.** Before a table has a hit ratio, or while there is room (the cache fills, or writes end the life of rows as fast as
//! they come in), every row that was read comes in. Else: at or above the threshold every one, below it with probability `H / threshold`. As printed, a table whose ratio
//! is 0 would never come in again; so the probability does not fall below [`ADMISSION_MIN`].
//!
//! Rows that were cached when they were written come back without being read again, where at least three of four calls
//! on their table are reads; elsewhere the copy would be in vain too often.
//!
//! **Asking.** Readers ask for every row that they missed while there is room and while the hit ratio moves, up or down: rows
//! that are wanted again are then found at once. Else one in four asks, which keeps rows out that are read once in a while.
//!
//! **Lifetime.** `2^-N * H * (1 - RO) * RW` since the last read, RO being the share of occupied slots in the row's page list
//! when the eviction begins. In the paper N counts the attempts in a row that did not free enough. Here it is solved for: the
//! ages of a sample of rows say which N, any real number, lets just the surplus go ([`Policy::scale`]). So what has been waiting
//! longest goes, each table by its own measure, and one attempt is enough. Of a lifetime that is too short to begin with (a page list
//! is full when an eviction begins) the first pages visited would lose nearly all their rows.
//!
//! **RW** is a time for each tenth of the hit ratio, long in the middle and short at both ends (the paper's figure 16b); since N is
//! solved for, only the ratio of one to another counts. It is kept up to date: rows that come back soon after they were evicted
//! make it longer, fewer that do make it shorter. Of a table that is written to, the share of reads counts: a write ends a cached
//! row's life anyway. Where RW is given N is a whole number from 0 on, as in the paper.

use std::collections::HashMap;

use hedgerow_device::Random;

use crate::options::CachePolicy;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The least probability of admission.
const ADMISSION_MIN: f64 = 1.0 / 16.0;
/// Weight of the newest window in a moving average.
const WEIGHT: f64 = 0.25;
/// A window with fewer sampled calls says nothing yet and goes on.
const WINDOW_MIN: u64 = 32;
/// From this share of reads on, rows that were cached when they were written come back at once.
const MOSTLY_READ: f64 = 0.75;
/// Ticks of the cache's clock in a second.
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;

/// RW in seconds for each tenth of the hit ratio, to begin with.
const RW_SECONDS: [f64; 10] = [2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 24.0, 16.0, 8.0, 4.0];
/// A larger N shortens no lifetime: it is below a tick by then.
const FAILED_MAX: f64 = 16.0;
const RW_SECONDS_MIN: f64 = 0.25;
const RW_SECONDS_MAX: f64 = 256.0;
/// A page list counts as no fuller than this much below full: else that table's rows alone would have to go.
const ROOM_MIN: f64 = 0.05;
/// No lifetime is shorter, in ticks: an age is divided by it, and the result scales those of all tables, so it must not be infinite.
const LIFETIME_MIN: f64 = 1e-9;
/// A hit ratio that is farther from its average than this, and than chance explains, is moving.
const MOVING: f64 = 0.02;
/// Evicted rows that are remembered; 2^n.
const GHOSTS: usize = 1 << 13;

/// What callers did to one table, a sample of it. Shared; on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Traffic {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) writes: AtomicU64,
    /// Most calls are reads: a cached row that was written is to come back at once. Set by the worker.
    pub(crate) mostly_read: AtomicBool,
    /// The cache is full and the hit ratio stands still: a sample of the misses is enough to ask for. Set by the worker.
    pub(crate) steady: AtomicBool,
}

/// One table, as the policy knows it.
#[derive(Debug, Default)]
struct Profile {
    ratio: Option<f64>,
    /// Reads as a share of all calls.
    reads: Option<f64>,
    seen: [u64; 3],
}

impl Profile {
    fn observe(&mut self, traffic: &Traffic, full: bool) {
        let now =
            [&traffic.hits, &traffic.misses, &traffic.writes].map(|count| count.load(Ordering::Relaxed));
        let [hits, misses, writes] = std::array::from_fn(|i| now[i] - self.seen[i]);
        let reads = hits + misses;
        if reads + writes < WINDOW_MIN {
            return;
        }
        self.seen = now;
        average(&mut self.reads, reads as f64 / (reads + writes) as f64);
        let mostly_read = self.reads.is_some_and(|share| share >= MOSTLY_READ);
        if traffic.mostly_read.load(Ordering::Relaxed) != mostly_read {
            traffic.mostly_read.store(mostly_read, Ordering::Relaxed);
        }
        if reads == 0 {
            return;
        }
        let ratio = hits as f64 / reads as f64;
        // Three standard deviations of a share of so many.
        let chance = 1.5 / (reads as f64).sqrt();
        let still = self.ratio.is_some_and(|average| (ratio - average).abs() <= MOVING + chance);
        if traffic.steady.load(Ordering::Relaxed) != (full && still) {
            traffic.steady.store(full && still, Ordering::Relaxed);
        }
        average(&mut self.ratio, ratio);
    }
}

fn average(average: &mut Option<f64>, newest: f64) {
    *average = Some(average.map_or(newest, |old| old + WEIGHT * (newest - old)));
}

/// The rules, and what they go by.
#[derive(Debug)]
pub(crate) struct Policy {
    kind: CachePolicy,
    threshold: f64,
    /// RW in seconds, if it was given.
    fixed_rw: Option<f64>,
    rw: [f64; 10],
    /// Evicted and come back, by tenth of the hit ratio, since RW was last adjusted.
    evicted: [u32; 10],
    came_back: [u32; 10],
    ghosts: Box<[u64]>,
    /// There is no room to speak of.
    full: bool,
    profiles: HashMap<u32, Profile>,
    random: Random,
}

impl Policy {
    /// The rules as the options say; `seed` is for chance.
    pub(crate) fn new(kind: CachePolicy, threshold: f64, fixed_rw: Option<f64>, seed: u64) -> Policy {
        Policy {
            kind,
            threshold,
            fixed_rw,
            rw: RW_SECONDS,
            evicted: [0; 10],
            came_back: [0; 10],
            ghosts: vec![0; GHOSTS].into_boxed_slice(),
            full: false,
            profiles: HashMap::new(),
            random: Random::from_seed(seed),
        }
    }

    /// Takes in what happened to a table since the last call.
    pub(crate) fn observe(&mut self, table: u32, traffic: &Traffic) {
        self.profiles.entry(table).or_default().observe(traffic, self.full);
    }

    /// Forgets all tables but these.
    pub(crate) fn keep_tables(&mut self, exists: impl Fn(u32) -> bool) {
        self.profiles.retain(|&table, _| exists(table));
    }

    /// A table's hit ratio, if there is one yet.
    pub(crate) fn ratio(&self, table: u32) -> Option<f64> {
        self.profiles.get(&table)?.ratio
    }

    /// Whether a row that was read, and whose key hashes to `hash`, comes in.
    pub(crate) fn admits(&mut self, table: u32, hash: u64) -> bool {
        let ratio = self.ratio(table).filter(|_| self.full);
        let tenth = tenth(self.ratio(table).unwrap_or(0.0));
        let ghost = &mut self.ghosts[hash as usize % GHOSTS];
        if *ghost == hash {
            *ghost = 0;
            self.came_back[tenth] += 1;
        }
        match (self.kind, ratio) {
            (CachePolicy::Lru, _) | (_, None) => true,
            (CachePolicy::Focus, Some(ratio)) if ratio >= self.threshold => true,
            (CachePolicy::Focus, Some(ratio)) => {
                let probability = (ratio / self.threshold).max(ADMISSION_MIN);
                (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 <= probability
            }
        }
    }

    /// How many ticks a row of `table` outlives its last read, for N = 0; by LRU the same for all. More than 0.
    pub(crate) fn lifetime(&self, table: u32, occupancy: f64) -> f64 {
        if self.kind == CachePolicy::Lru {
            return 1.0;
        }
        let profile = self.profiles.get(&table);
        let ratio = profile.and_then(|profile| profile.ratio).unwrap_or(0.5);
        let reads = profile.and_then(|profile| profile.reads).unwrap_or(1.0);
        let rw = self.fixed_rw.unwrap_or(self.rw[tenth(ratio)] * reads);
        (ratio * (1.0 - occupancy).max(ROOM_MIN) * rw * TICKS_PER_SECOND).max(LIFETIME_MIN)
    }

    /// `2^-N` that lets a share of `surplus` of the rows go. `sample` has for some rows the time since their last read as a
    /// multiple of their lifetime for N = 0, and what they take up.
    pub(crate) fn scale(&self, mut sample: Vec<(f64, f64)>, surplus: f64) -> f64 {
        sample.sort_unstable_by(|one, other| other.0.total_cmp(&one.0));
        let wanted = surplus * sample.iter().map(|row| row.1).sum::<f64>();
        let mut freed = 0.0;
        let last = sample.iter().find(|row| {
            freed += row.1;
            freed >= wanted
        });
        let scale = last.or(sample.last()).map_or(1.0, |row| row.0);
        match self.fixed_rw.filter(|_| self.kind == CachePolicy::Focus) {
            Some(_) => (-(-scale.log2()).ceil().clamp(0.0, FAILED_MAX)).exp2(),
            None => scale,
        }
    }

    /// A row of `table` was evicted.
    pub(crate) fn evicted(&mut self, table: u32, hash: u64) {
        self.evicted[tenth(self.ratio(table).unwrap_or(0.0))] += 1;
        self.ghosts[hash as usize % GHOSTS] = hash;
    }

    /// Whether there is no room to speak of: then the hit ratios count.
    pub(crate) fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// Brings RW up to date after an eviction.
    pub(crate) fn adjust(&mut self) {
        for tenth in 0..self.rw.len() {
            let (evicted, came_back) = (self.evicted[tenth], self.came_back[tenth]);
            if evicted < WINDOW_MIN as u32 {
                continue;
            }
            let factor = match u64::from(came_back) * 100 / u64::from(evicted) {
                20.. => 1.25,
                0..5 => 0.9,
                5..20 => 1.0,
            };
            self.rw[tenth] = (self.rw[tenth] * factor).clamp(RW_SECONDS_MIN, RW_SECONDS_MAX);
            (self.evicted[tenth], self.came_back[tenth]) = (0, 0);
        }
    }
}

fn tenth(ratio: f64) -> usize {
    ((ratio * 10.0) as usize).min(9)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn policy(kind: CachePolicy) -> Policy {
        Policy::new(kind, 0.5, None, 1)
    }

    fn see(policy: &mut Policy, table: u32, traffic: &Traffic, hits: u64, misses: u64, writes: u64) {
        traffic.hits.fetch_add(hits, Ordering::Relaxed);
        traffic.misses.fetch_add(misses, Ordering::Relaxed);
        traffic.writes.fetch_add(writes, Ordering::Relaxed);
        policy.observe(table, traffic);
    }

    fn admitted(policy: &mut Policy, table: u32) -> f64 {
        (1..=10_000).filter(|&hash| policy.admits(table, hash)).count() as f64 / 10_000.0
    }

    #[test]
    fn hit_ratios_are_moving_averages() {
        let (mut policy, traffic) = (policy(CachePolicy::Focus), Traffic::default());
        see(&mut policy, 1, &traffic, 10, 10, 0);
        assert_eq!(policy.ratio(1), None, "too few to tell");
        see(&mut policy, 1, &traffic, 20, 0, 0);
        assert_eq!(policy.ratio(1), Some(0.75));
        see(&mut policy, 1, &traffic, 0, 100, 0);
        assert_eq!(policy.ratio(1), Some(0.75 * 0.75));
        policy.keep_tables(|table| table != 1);
        assert_eq!(policy.ratio(1), None);
    }

    #[test]
    fn admission_follows_the_ratio_where_the_cache_is_full() {
        let (mut policy, traffic) = (policy(CachePolicy::Focus), Traffic::default());
        see(&mut policy, 1, &traffic, 25, 75, 0);
        assert_eq!(admitted(&mut policy, 1), 1.0, "there is room");
        policy.set_full(true);
        assert!(
            (0.47..0.53).contains(&admitted(&mut policy, 1)),
            "a ratio of a quarter, a threshold of a half"
        );
        assert_eq!(admitted(&mut policy, 2), 1.0, "a table without a ratio");
        policy.set_full(false);
        assert_eq!(admitted(&mut policy, 1), 1.0, "there is room again");
        policy.set_full(true);
        (0..40).for_each(|_| see(&mut policy, 1, &traffic, 0, 100, 0));
        assert!((0.05..0.08).contains(&admitted(&mut policy, 1)), "never nothing");
        (0..40).for_each(|_| see(&mut policy, 1, &traffic, 60, 40, 0));
        assert_eq!(admitted(&mut policy, 1), 1.0);
        let mut lru = self::policy(CachePolicy::Lru);
        lru.set_full(true);
        see(&mut lru, 1, &traffic, 0, 1_000, 0);
        assert_eq!(admitted(&mut lru, 1), 1.0);
    }

    #[test]
    fn lifetime_is_the_papers_product() {
        let mut policy = Policy::new(CachePolicy::Focus, 0.5, Some(10.0), 1);
        let traffic = Traffic::default();
        see(&mut policy, 1, &traffic, 80, 20, 300);
        assert_eq!(policy.lifetime(1, 0.5), 0.8 * 0.5 * 10.0 * TICKS_PER_SECOND);
        assert_eq!(policy.lifetime(1, 1.0), 0.8 * ROOM_MIN * 10.0 * TICKS_PER_SECOND, "full, but not dead");
        let lru = self::policy(CachePolicy::Lru);
        assert_eq!(lru.lifetime(1, 0.5), lru.lifetime(2, 1.0));
    }

    #[test]
    fn the_scale_lets_just_the_surplus_go() {
        // Ages of 1/16 to 10 lifetimes; the longer ones take up three times as much.
        let sample: Vec<(f64, f64)> =
            (1..=160).map(|n| (f64::from(n) / 16.0, if n > 80 { 3.0 } else { 1.0 })).collect();
        let gone = |policy: &Policy, surplus: f64| {
            let scale = policy.scale(sample.clone(), surplus);
            sample.iter().filter(|row| row.0 >= scale).map(|row| row.1).sum::<f64>() / 320.0
        };
        let policy = policy(CachePolicy::Focus);
        for surplus in [0.05, 0.25, 0.75, 0.9, 1.0] {
            assert!((surplus..surplus + 0.01).contains(&gone(&policy, surplus)), "{surplus}");
        }
        // With RW given lifetimes are halved until it is enough, and not one is longer than it says.
        let given = Policy::new(CachePolicy::Focus, 0.5, Some(10.0), 1);
        assert_eq!(given.scale(sample.clone(), 0.05), 1.0);
        assert_eq!(given.scale(sample.clone(), 0.99), 0.25);
        assert_eq!(policy.scale(Vec::new(), 0.1), 1.0);
    }

    #[test]
    fn all_misses_ask_while_the_ratio_moves() {
        let (mut policy, traffic) = (policy(CachePolicy::Focus), Traffic::default());
        let steady = |traffic: &Traffic| traffic.steady.load(Ordering::Relaxed);
        (0..20).for_each(|_| see(&mut policy, 1, &traffic, 7_000, 3_000, 0));
        assert!(!steady(&traffic), "there is room");
        policy.set_full(true);
        see(&mut policy, 1, &traffic, 7_000, 3_000, 0);
        assert!(steady(&traffic));
        see(&mut policy, 1, &traffic, 3_000, 7_000, 0);
        assert!(!steady(&traffic), "the hot spot moved");
        (0..20).for_each(|_| see(&mut policy, 1, &traffic, 6_900, 3_100, 0));
        assert!(steady(&traffic));
        see(&mut policy, 1, &traffic, 22, 18, 0);
        assert!(steady(&traffic), "chance");
    }

    #[test]
    fn writes_shorten_the_lifetime_unless_rw_is_given() {
        let (mut policy, traffic) = (policy(CachePolicy::Focus), Traffic::default());
        see(&mut policy, 1, &traffic, 50, 50, 0);
        let before = policy.lifetime(1, 0.5);
        (0..30).for_each(|_| see(&mut policy, 1, &traffic, 50, 50, 300));
        let after = policy.lifetime(1, 0.5);
        assert!((0.2..0.35).contains(&(after / before)), "{before} {after}");
    }

    #[test]
    fn rw_is_learned_from_what_comes_back() {
        let (mut policy, traffic) = (policy(CachePolicy::Focus), Traffic::default());
        see(&mut policy, 1, &traffic, 50, 50, 0);
        let before = policy.lifetime(1, 0.5);
        (1..=100).for_each(|hash| policy.evicted(1, hash));
        assert!((1..=50).all(|hash| policy.admits(1, hash)));
        policy.adjust();
        assert_eq!(policy.lifetime(1, 0.5), before * 1.25, "half came back");
        (1..=100).for_each(|hash| policy.evicted(1, hash));
        policy.adjust();
        assert_eq!(policy.lifetime(1, 0.5), before * 1.25 * 0.9, "none came back");
    }
}
