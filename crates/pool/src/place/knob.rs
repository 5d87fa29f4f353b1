//! How many of the partitions have a proxy: the knob that is turned by measured throughput.
//!
//! Owns Algorithm 2 of FlexKV (arXiv 2512.16148): hill climbing in steps of a tenth. Promises that a difference within noise counts as none. Must not know what throughput is measured by, or which partitions
//! have the proxies.
//!
//! A round begins at the present share with its throughput, and steps in the direction that is left from the last one. A first step that is not better turns it around; after that two steps in a row that are not better than
//! the best end the round there, and the next one begins in the other direction, since this one came back.

/// One step, in hundredths.
const STEP: u8 = 10;
/// Steps that are not better, one after the other, before a round ends.
const MISSES: u8 = 2;
/// So many thousandths of reads more or fewer are another load.
const SHARE_MOVED: u64 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct KnobRound {
    base: u8,
    best: (u8, u64),
    misses: u8,
    is_first: bool,
    /// The share at which as many partitions as may have a proxy have one.
    most: u8,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Knob {
    /// Hundredths of the partitions that have a proxy.
    alpha: u8,
    goes_up: bool,
    round: Option<KnobRound>,
    /// Thousandths of the accesses that were reads when the last round began.
    reads: Option<u64>,
    is_due: bool,
    /// Thousandths by which a throughput must be higher to be better.
    margin: u64,
}

impl Knob {
    pub(crate) fn new(alpha: u8, margin: u64) -> Knob {
        Knob { alpha: alpha.min(100), goes_up: true, round: None, reads: None, is_due: true, margin }
    }

    pub(crate) fn alpha(&self) -> u8 {
        self.alpha
    }

    pub(crate) fn is_in_round(&self) -> bool {
        self.round.is_some()
    }

    /// Partitions were dealt out anew: what was best may not be any more.
    pub(crate) fn was_reassigned(&mut self) {
        self.is_due = true;
    }

    /// Ends a round, with the best that it found so far, since its throughputs cannot be compared any more.
    pub(crate) fn abandon(&mut self) {
        if let Some(round) = self.round.take() {
            self.alpha = round.best.0;
            self.is_due = true;
        }
    }

    /// Ends a round with the best that it found so far, as there is too little load to measure by. Another begins under another load, or after partitions were dealt anew: not with the next burst of this one.
    pub(crate) fn rest(&mut self) {
        self.alpha = self.round.take().map_or(self.alpha, |round| round.best.0);
    }

    /// Whether a round is to begin under a load with so many thousandths of reads.
    pub(crate) fn wants_round(&self, reads: u64) -> bool {
        self.round.is_none()
            && (self.is_due || self.reads.is_none_or(|before| before.abs_diff(reads) >= SHARE_MOVED))
    }

    /// Begins a round, from the throughput of the present share.
    pub(crate) fn begin(&mut self, throughput: u64, reads: u64, most: u8) {
        (self.reads, self.is_due) = (Some(reads), false);
        let (base, best) = (self.alpha, (self.alpha, throughput));
        self.round = Some(KnobRound { base, best, misses: 0, is_first: true, most });
        self.step();
    }

    /// Goes on by the throughput of the share that was tried.
    pub(crate) fn measured(&mut self, throughput: u64) {
        let Some(round) = &mut self.round else { return };
        let enough = u128::from(round.best.1) * u128::from(1000 + self.margin);
        if u128::from(throughput) * 1000 > enough {
            round.best = (self.alpha, throughput);
            round.misses = 0;
        } else if round.is_first {
            self.goes_up = !self.goes_up;
            self.alpha = round.base;
        } else {
            round.misses += 1;
        }
        round.is_first = false;
        match round.misses < MISSES {
            true => self.step(),
            false => self.end(),
        }
    }

    fn next(&self, most: u8) -> u8 {
        match self.goes_up {
            true => self.alpha.saturating_add(STEP).min(most.max(self.alpha)),
            false => self.alpha.saturating_sub(STEP),
        }
    }

    /// Tries the next share; where the scale ends at once, the one on the other side.
    fn step(&mut self) {
        let Some(round) = self.round else { return };
        let mut next = self.next(round.most);
        if next == self.alpha && round.is_first {
            self.goes_up = !self.goes_up;
            next = self.next(round.most);
            if let Some(round) = &mut self.round {
                round.is_first = false;
            }
        }
        match next == self.alpha {
            true => self.end(),
            false => self.alpha = next,
        }
    }

    fn end(&mut self) {
        if let Some(round) = self.round.take() {
            self.alpha = round.best.0;
            self.goes_up = !self.goes_up;
        }
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    /// Plays one round, a second for the throughput before and one for each share that is tried; how many there were.
    fn play(knob: &mut Knob, throughput: &mut impl FnMut(u8) -> u64) -> Vec<u8> {
        let mut tried = Vec::new();
        knob.begin(throughput(knob.alpha()), 500, 100);
        while knob.is_in_round() {
            tried.push(knob.alpha());
            knob.measured(throughput(knob.alpha()));
        }
        tried
    }

    /// Eight percent less for each step from the best.
    fn hill(best: u8) -> impl Fn(u8) -> u64 {
        move |alpha| 1_000_000 - 8_000 * u64::from(alpha.abs_diff(best))
    }

    #[test]
    fn it_tries_what_the_paper_shows() {
        let mut knob = Knob::new(0, 20);
        assert_eq!(play(&mut knob, &mut hill(30)), [10, 20, 30, 40, 50]);
        assert_eq!(knob.alpha(), 30);
        assert_eq!(play(&mut knob, &mut hill(60)), [20, 40, 50, 60, 70, 80]);
        assert_eq!(knob.alpha(), 60);
        // Where the scale ends.
        let mut knob = Knob::new(0, 20);
        knob.goes_up = false;
        assert_eq!(play(&mut knob, &mut hill(0)), [10, 20]);
        assert_eq!(knob.alpha(), 0);
        let mut knob = Knob::new(90, 20);
        assert_eq!(play(&mut knob, &mut hill(100)), [100]);
        assert_eq!(knob.alpha(), 100);
    }

    #[test]
    fn it_finds_the_best_within_a_step_and_seven_seconds_through_noise() {
        for seed in 0..500 {
            let mut random = Random::from_seed(seed);
            let (from, best) = (10 * random.below(11) as u8, 10 * random.below(11) as u8);
            if from.abs_diff(best) > 30 {
                continue;
            }
            let mut knob = Knob::new(from, 20);
            knob.goes_up = random.below(2) == 0;
            let curve = hill(best);
            // Within three percent of what is so.
            let mut noisy = |alpha| curve(alpha) * (970 + random.below(61)) / 1000;
            let tried = play(&mut knob, &mut noisy);
            // A second each, after the one for where it began.
            assert!(tried.len() < 7, "seed {seed}: from {from} to {best} by {tried:?}");
            assert!(knob.alpha().abs_diff(best) <= 10, "seed {seed}: {} for {best}", knob.alpha());
        }
    }

    /// How often the share ends where it began although it makes no difference, of a hundred rounds.
    fn rounds_that_stay(margin: u64) -> usize {
        let stays = |seed: u64| {
            let mut random = Random::from_seed(seed);
            let mut knob = Knob::new(50, margin);
            play(&mut knob, &mut |_| 990_000 + random.below(20_000));
            knob.alpha() == 50
        };
        (0..100).filter(|&seed| stays(seed)).count()
    }

    #[test]
    fn a_difference_within_noise_is_none() {
        assert_eq!(rounds_that_stay(20), 100);
        // What the margin is for.
        assert!(rounds_that_stay(0) < 50);
    }

    #[test]
    fn rounds_begin_when_the_load_is_another() {
        let mut knob = Knob::new(0, 20);
        assert!(knob.wants_round(900));
        knob.begin(1_000, 900, 100);
        assert!(!knob.wants_round(100));
        while knob.is_in_round() {
            knob.measured(900);
        }
        assert!(!knob.wants_round(801) && knob.wants_round(800) && knob.wants_round(1_000));
        knob.was_reassigned();
        assert!(knob.wants_round(900));
        knob.begin(1_000, 900, 100);
        knob.measured(2_000);
        knob.abandon();
        assert_eq!(knob.alpha(), 10);
        assert!(!knob.is_in_round() && knob.wants_round(900));
        knob.begin(1_000, 900, 100);
        knob.measured(2_000);
        knob.rest();
        assert_eq!(knob.alpha(), 20);
        assert!(!knob.is_in_round() && !knob.wants_round(900));
    }

    #[test]
    fn nothing_is_tried_beyond_what_may_have_a_proxy() {
        let mut knob = Knob::new(0, 20);
        knob.begin(1_000, 500, 25);
        let mut tried = Vec::new();
        while knob.is_in_round() {
            tried.push(knob.alpha());
            knob.measured(1_000 * u64::from(knob.alpha()));
        }
        assert_eq!((tried, knob.alpha()), (vec![10, 20, 25], 25));
    }
}
