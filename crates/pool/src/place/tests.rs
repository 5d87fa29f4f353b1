//! What is chosen under loads that are drawn at random, in virtual time.

use hedgerow_device::Random;

use super::hotness::loads;
use super::*;
use crate::accesses::AccessCount;

const SECOND: Nanos = 1_000_000_000;

/// A uniform number in 0 to 1, without both.
fn unit(random: &mut Random) -> f64 {
    ((random.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// How many events there are where so many are expected.
fn poisson(random: &mut Random, mean: f64) -> u64 {
    if mean > 50.0 {
        let normal = (-2.0 * unit(random).ln()).sqrt() * (std::f64::consts::TAU * unit(random)).cos();
        return (mean + mean.sqrt() * normal + 0.5).max(0.0) as u64;
    }
    let (mut product, mut events, least) = (unit(random), 0, (-mean).exp());
    while product > least {
        product *= unit(random);
        events += 1;
    }
    events
}

/// Accesses of each partition a second where `keys` keys are accessed as Zipf says, and hashed into partitions.
fn zipf(random: &mut Random, partitions: usize, keys: u64, theta: f64, rate: f64) -> Vec<f64> {
    let mut heat = vec![0.0; partitions];
    for key in 1..=keys {
        heat[random.below(partitions as u64) as usize] += (key as f64).powf(-theta);
    }
    let all: f64 = heat.iter().sum();
    heat.iter().map(|one| one / all * rate).collect()
}

fn uniform(partitions: usize, rate: f64) -> Vec<f64> {
    vec![rate / partitions as f64; partitions]
}

/// A machine, sessions that count what is drawn, and changes of the configuration that take a while.
struct Load {
    placement: Placement,
    random: Random,
    now: Nanos,
    drawn_at: Nanos,
    sessions: Vec<u16>,
    rates: Vec<f64>,
    reads: f64,
    /// What the rates are multiplied by, at a share, so long after the last change.
    speed: fn(u8, Nanos) -> f64,
    counters: BTreeMap<u16, BTreeMap<u16, [u32; 2]>>,
    owners: BTreeMap<u16, u16>,
    changed_at: Nanos,
    changes: Vec<(Nanos, usize)>,
}

impl Load {
    fn new(
        seed: u64,
        options: PlacementOptions,
        sessions: u16,
        rates: Vec<f64>,
        repairs: NoiseRepairs,
    ) -> Load {
        Load {
            placement: Placement::with_repairs(options, rates.len() as u16, repairs),
            random: Random::from_seed(seed),
            now: 0,
            drawn_at: 0,
            sessions: (1..=sessions).collect(),
            rates,
            reads: 0.5,
            speed: |_, _| 1.0,
            counters: BTreeMap::new(),
            owners: BTreeMap::new(),
            changed_at: 0,
            changes: Vec::new(),
        }
    }

    /// Accesses since they were last drawn, spread over the sessions.
    fn draw(&mut self) {
        while self.drawn_at < self.now {
            let calm = self.changed_at + SECOND / 5;
            let next = if self.drawn_at < calm { self.now.min(calm) } else { self.now };
            let speed = (self.speed)(self.placement.share(), self.drawn_at.saturating_sub(self.changed_at));
            let span = (next - self.drawn_at) as f64 / SECOND as f64;
            self.drawn_at = next;
            for (partition, rate) in self.rates.iter().enumerate() {
                let count = poisson(&mut self.random, rate * speed * span);
                let session = self.sessions[self.random.below(self.sessions.len() as u64) as usize];
                let counter = self.counters.entry(session).or_default().entry(partition as u16).or_default();
                let reads = (count as f64 * self.reads) as u32;
                counter[0] = counter[0].wrapping_add(reads);
                counter[1] = counter[1].wrapping_add(count as u32 - reads);
            }
        }
    }

    fn answer(&mut self, round: u32) {
        for &session in &self.sessions {
            let counters = self.counters.entry(session).or_default();
            let count =
                |(&partition, &[reads, writes]): (&u16, &[u32; 2])| AccessCount { partition, reads, writes };
            let counts: Vec<AccessCount> = counters.iter().map(count).collect();
            let report = AccessReport { session, left: 0, round, counts };
            self.placement.told(&report);
        }
    }

    fn go_on(&mut self, is_changing: bool) -> PlacementStep {
        self.placement.go_on(self.now, &self.sessions, is_changing, &self.owners)
    }

    fn run_until(&mut self, end: Nanos) {
        while self.now < end {
            self.now = self.now.max(self.placement.due_at().unwrap());
            self.draw();
            let PlacementStep::Ask(round) = self.go_on(false) else { continue };
            self.answer(round);
            // All answers are there.
            if let PlacementStep::Assign(moves) = self.go_on(false) {
                self.change(moves);
            }
        }
    }

    /// A millisecond in which nothing is chosen.
    fn change(&mut self, moves: BTreeMap<u16, Option<u16>>) {
        self.changes.push((self.now, moves.len()));
        for (partition, session) in moves {
            match session {
                Some(session) => self.owners.insert(partition, session),
                None => self.owners.remove(&partition),
            };
        }
        assert_eq!(self.go_on(true), PlacementStep::Nothing);
        assert_eq!(self.placement.due_at(), None);
        self.now += SECOND / 1000;
        self.draw();
        self.changed_at = self.now;
        // Where nothing is waited for the next window opens at once.
        if let PlacementStep::Ask(round) = self.go_on(false) {
            self.answer(round);
            assert_eq!(self.go_on(false), PlacementStep::Nothing);
        }
    }

    /// How many parts of all accesses go to proxies, by what is so and not by what was counted.
    fn share(&self) -> f64 {
        let proxied: f64 = self.owners.keys().map(|&partition| self.rates[usize::from(partition)]).sum();
        proxied / self.rates.iter().sum::<f64>()
    }
}

/// Proxies at this share of the partitions.
fn fixed(share: u8) -> PlacementOptions {
    PlacementOptions { share: Some(share), ..PlacementOptions::default() }
}

/// Reassignments in ten minutes.
fn reassignments(
    seed: u64,
    options: PlacementOptions,
    sessions: u16,
    rates: Vec<f64>,
    repairs: NoiseRepairs,
) -> u64 {
    let mut load = Load::new(seed, options, sessions, rates, repairs);
    load.run_until(600 * SECOND);
    load.placement.counters().reassignments
}

#[test]
fn a_load_that_stays_moves_nothing() {
    for (at, rate) in [1e4, 1e5, 1e6].into_iter().enumerate() {
        let mut random = Random::from_seed(at as u64);
        let loads = [
            uniform(1024, rate),
            zipf(&mut random, 1024, 200_000, 0.99, rate),
            zipf(&mut random, 64, 200_000, 0.99, rate),
        ];
        for (which, rates) in loads.into_iter().enumerate() {
            for sessions in [4, 20] {
                let moved = reassignments(7, fixed(20), sessions, rates.clone(), NoiseRepairs::ALL);
                assert_eq!(moved, 0, "{rate} a second, load {which}, {sessions} nodes");
            }
        }
    }
}

#[test]
fn a_share_that_was_found_moves_nothing_either() {
    for rate in [1e4, 1e5, 1e6] {
        let rates = zipf(&mut Random::from_seed(3), 64, 200_000, 0.99, rate);
        let mut load = Load::new(8, PlacementOptions::default(), 4, rates, NoiseRepairs::ALL);
        load.speed = hill_with_a_pause;
        load.run_until(60 * SECOND);
        let (changes, share) = (load.changes.len(), load.placement.share());
        assert!(changes > 3 && share > 0);
        load.run_until(660 * SECOND);
        assert_eq!((load.changes.len(), load.placement.share()), (changes, share), "{rate} a second");
        assert_eq!(load.placement.counters().reassignments, 0, "{rate} a second");
    }
}

#[test]
fn without_the_filter_chance_moves_partitions() {
    let few = || uniform(64, 2500.0);
    assert_eq!(reassignments(1, fixed(100), 32, few(), NoiseRepairs::ALL), 0);
    let without = NoiseRepairs { significance: false, ..NoiseRepairs::ALL };
    assert!(reassignments(1, fixed(100), 32, few(), without) > 50);
}

/// Heats that differ a little, and in each few seconds others do.
fn reshuffled(repairs: NoiseRepairs) -> u64 {
    let rates =
        |turn: usize| (0..256).map(|at| 4000.0 + 4.0 * ((at * 97 + turn * 89) % 256) as f64).collect();
    let mut load = Load::new(3, fixed(90), 4, rates(0), repairs);
    for turn in 0..20 {
        load.rates = rates(turn);
        load.run_until(load.now + 5 * SECOND);
    }
    load.placement.counters().reassignments
}

#[test]
fn without_the_prediction_partitions_move_for_nothing() {
    assert_eq!(reshuffled(NoiseRepairs::ALL), 0);
    assert!(reshuffled(NoiseRepairs { gain: false, ..NoiseRepairs::ALL }) > 5);
}

/// One second in which other partitions are hot, again and again.
fn bursts(repairs: NoiseRepairs) -> u64 {
    let rates = |burst: f64| {
        let heat = |at: usize| {
            if at < 32 {
                40_000.0
            } else if at % 2 == 1 {
                20_000.0 + burst
            } else {
                20_000.0 - burst
            }
        };
        (0..256).map(heat).collect::<Vec<f64>>()
    };
    let mut load = Load::new(5, fixed(50), 4, rates(0.0), repairs);
    load.run_until(20 * SECOND);
    for _ in 0..20 {
        load.rates = rates(2000.0);
        load.run_until(load.now + SECOND);
        load.rates = rates(0.0);
        load.run_until(load.now + 6 * SECOND);
    }
    load.placement.counters().reassignments
}

#[test]
fn without_smoothing_each_burst_moves_partitions() {
    assert_eq!(bursts(NoiseRepairs::ALL), 0);
    assert!(bursts(NoiseRepairs { smoothing: false, ..NoiseRepairs::ALL }) > 0);
}

/// The part of a small load that the first tenth of all partitions has, of what it could have.
fn first_choice(repairs: NoiseRepairs) -> f64 {
    let rates = zipf(&mut Random::from_seed(9), 1024, 20_000, 0.5, 4000.0);
    // Until the first deal by what was counted.
    let options = PlacementOptions { probe_ops: u64::MAX, ..PlacementOptions::default() };
    let mut load = Load::new(9, options, 8, rates.clone(), repairs);
    while !load.placement.ranking.is_dealt() {
        load.run_until(load.now + SECOND / 2);
    }
    let chosen = load.placement.ranking.proxied(10);
    let mut best = rates;
    let share: f64 = chosen.keys().map(|&partition| best[usize::from(partition)]).sum();
    best.sort_by(|a, b| b.total_cmp(a));
    share / best[..chosen.len()].iter().sum::<f64>()
}

#[test]
fn without_longer_periods_little_is_known_of_a_small_load() {
    let (with, without) = (
        first_choice(NoiseRepairs::ALL),
        first_choice(NoiseRepairs { lengthening: false, ..NoiseRepairs::ALL }),
    );
    assert!(with > 0.95 && without < 0.9, "{with} {without}");
}

#[test]
fn a_hot_set_that_is_another_is_found_within_three_periods() {
    for (rate, sessions) in [(1e4, 4), (1e5, 4), (1e5, 20), (1e6, 20)] {
        for few in [false, true] {
            let mut rates = zipf(&mut Random::from_seed(4), 1024, 200_000, 0.99, rate);
            rates.sort_by(|a, b| b.total_cmp(a));
            let options = fixed(20);
            let mut load = Load::new(6, options, sessions, rates, NoiseRepairs::ALL);
            // As long as it takes to see what makes up a period.
            let ranks = 1024u64.div_ceil(sessions.into());
            let period = SECOND * (1000.0 * ranks as f64 / rate).ceil().max(1.0) as u64;
            load.run_until(6 * period);
            let (before, most) = (load.placement.counters().reassignments, load.share());
            match few {
                // A few partitions are most of the load, and have few ranks.
                true => (0..32).for_each(|at| load.rates.swap(at, 1023 - at)),
                false => load.rates.reverse(),
            }
            let swapped_at = load.now;
            assert!(load.share() < most - 0.1);
            load.run_until(swapped_at + 3 * period + SECOND / 10);
            assert!(load.placement.counters().reassignments > before, "{rate} {sessions} {few}");
            // It takes what it has learnt a few periods to fade.
            load.run_until(swapped_at + 12 * period);
            assert!(load.share() > most - 0.03, "{rate} {sessions} {few}: {} of {most}", load.share());
            assert!(load.placement.counters().reassignments <= before + 3);
        }
    }
}

/// As many accesses for a share as eight percent less for each step from 40, and a pause after a change.
fn hill_with_a_pause(share: u8, since: Nanos) -> f64 {
    let speed = 1.0 - 0.008 * f64::from(share.abs_diff(40));
    if since < SECOND / 5 { speed / 3.0 } else { speed }
}

#[test]
fn the_share_is_found_by_throughput_and_pauses_are_not_measured() {
    let mut load = Load::new(2, PlacementOptions::default(), 4, uniform(64, 1e6), NoiseRepairs::ALL);
    load.speed = hill_with_a_pause;
    load.run_until(12 * SECOND);
    assert_eq!((load.placement.share(), load.placement.counters().rounds), (40, 1));
    assert_eq!(load.owners.len(), 28);
    // Once found it stays, until the load is another.
    let changes = load.changes.len();
    load.run_until(60 * SECOND);
    assert_eq!(load.changes.len(), changes);
    load.reads = 0.9;
    load.run_until(75 * SECOND);
    assert_eq!((load.placement.share(), load.placement.counters().rounds), (40, 2));
    let options = PlacementOptions { settle_ns: 0, ..PlacementOptions::default() };
    let mut without = Load::new(2, options, 4, uniform(64, 1e6), NoiseRepairs::ALL);
    without.speed = hill_with_a_pause;
    without.run_until(12 * SECOND);
    assert!(without.placement.share() < 30, "{}", without.placement.share());
}

#[test]
fn a_load_that_ends_leaves_the_best_so_far() {
    let mut load = Load::new(2, PlacementOptions::default(), 4, uniform(64, 1e6), NoiseRepairs::ALL);
    load.speed = hill_with_a_pause;
    load.run_until(5 * SECOND);
    assert!(load.placement.knob.is_in_round());
    load.rates.fill(0.0);
    load.run_until(40 * SECOND);
    assert!(!load.placement.knob.is_in_round() && load.placement.share() > 0);
    let changes = load.changes.len();
    load.run_until(400 * SECOND);
    assert_eq!(load.changes.len(), changes);
}

#[test]
fn who_leaves_and_who_comes_are_dealt_in_and_out() {
    let mut load = Load::new(1, fixed(100), 4, uniform(64, 1e5), NoiseRepairs::ALL);
    load.run_until(5 * SECOND);
    assert_eq!(load.owners.len(), 64);
    let changes = load.changes.len();
    load.sessions = vec![1, 3, 4, 9, 12];
    load.owners.retain(|_, session| *session != 2);
    assert_eq!(load.owners.len(), 48);
    load.run_until(8 * SECOND);
    let of = |session: u16| load.owners.values().filter(|owner| **owner == session).count();
    let counts: Vec<usize> = [1, 3, 4, 9, 12].map(of).to_vec();
    assert!(counts.iter().all(|count| (12..=13).contains(count)), "{counts:?}");
    // In one change, and counters of who is gone are gone.
    assert_eq!(load.changes.len(), changes + 1);
    assert_eq!(load.placement.tallies.keys().copied().collect::<Vec<_>>(), load.sessions);
}

#[test]
fn what_comes_twice_late_or_from_the_other_side_of_the_limit_counts_once() {
    let mut placement = Placement::new(fixed(100), 4);
    let tell = |placement: &mut Placement, partition, reads, writes| {
        let counts = vec![AccessCount { partition, reads, writes }];
        placement.told(&AccessReport { session: 1, left: 0, round: 0, counts });
    };
    let near = u32::MAX / 2;
    for (reads, writes) in
        [(5, 1), (5, 1), (near, 1), (u32::MAX - 1, 1), (near, 1), (u32::MAX - 1, 1), (3, 2)]
    {
        tell(&mut placement, 2, reads, writes);
    }
    tell(&mut placement, 4, 9, 9);
    assert_eq!(placement.window, [0, 0, (1 << 32) + 3 + 2, 0]);
    assert_eq!((placement.measured.reads, placement.measured.writes), ((1 << 32) + 3, 2));
    assert_eq!(placement.tallies[&1].len(), 1);
}

#[test]
fn a_session_that_does_not_answer_is_not_taken_for_idle() {
    let mut load = Load::new(2, PlacementOptions::default(), 2, uniform(64, 1e6), NoiseRepairs::ALL);
    load.speed = hill_with_a_pause;
    load.run_until(3 * SECOND);
    assert!(load.placement.knob.is_in_round());
    let share = load.placement.share();
    // One of two answers, so that throughput would be half.
    for _ in 0..2 {
        while !matches!(load.go_on(false), PlacementStep::Ask(_)) {
            load.now = load.now.max(load.placement.due_at().unwrap());
        }
        load.placement.answered.insert(1);
        load.now += SECOND;
        assert_eq!(load.go_on(false), PlacementStep::Nothing);
    }
    assert_eq!(load.placement.share(), share);
}

#[test]
fn no_more_partitions_have_a_proxy_than_may() {
    let mut load = Load::new(1, fixed(100), 7, uniform(1024, 1e6), NoiseRepairs::ALL);
    load.run_until(4 * SECOND);
    assert_eq!(load.owners.len(), OWNERS_MAX);
}

/// Accesses of each node over their mean: the coefficient of variation.
fn variation(loads: &[f64]) -> f64 {
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    let variance = loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / loads.len() as f64;
    variance.sqrt() / mean
}

#[test]
fn the_load_is_even() {
    for (theta, most) in [(0.9, 0.25), (0.99, 0.40)] {
        let rates = zipf(&mut Random::from_seed(12), 1024, 200_000, theta, 1e6);
        let mut load = Load::new(12, fixed(100), 20, rates.clone(), NoiseRepairs::ALL);
        load.run_until(5 * SECOND);
        let lists = load.placement.ranking.lists_dealt();
        let of = |partitions: &[u16]| partitions.iter().map(|&one| rates[usize::from(one)]).sum::<f64>();
        let ranked: Vec<f64> = lists.values().map(|list| of(list)).collect();
        let by_number: Vec<f64> = (0..20u16)
            .map(|node| of(&(0..1024).filter(|one| one % 20 == node).collect::<Vec<u16>>()))
            .collect();
        // What may have a proxy, the hottest 240, by rank and by number.
        let heat: Vec<u64> = rates.iter().map(|rate| *rate as u64).collect();
        let proxied: Vec<f64> = loads(lists, 100, &heat).0.values().map(|&load| load as f64).collect();
        let (with, without) = (variation(&ranked), variation(&by_number));
        assert!(with < without * 0.8 && with < most, "theta {theta}: {with} with, {without} without");
        assert!(variation(&proxied) < 2.0 * most, "theta {theta}: {}", variation(&proxied));
    }
}
