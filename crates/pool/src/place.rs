//! Which partitions get a proxy, and where: chosen by what is counted.
//!
//! Owns when something is measured, and what follows from it. Promises that of partitions and sessions that it knows nothing it remembers nothing, that it chooses nothing while the configuration changes, and that under a
//! load that stays as it is it changes nothing once it has found what is best. Must not know how counters travel, or how a partition gets a proxy.
//!
//! | file | owns |
//! |---|---|
//! | `hotness.rs` | which partitions are hot, and who gets which (Algorithm 1) |
//! | `knob.rs` | how many of them have a proxy (Algorithm 2) |
//!
//! Every period the sessions are asked for their counters, and what they answer within a while closes a window. What was counted since the last one says what the throughput is, and, once there were enough accesses,
//! which partitions are hot. After a change of the configuration a window opens later: calls that waited are done first.

mod hotness;
mod knob;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::accesses::AccessReport;
use crate::fabric::Nanos;
use crate::wire::OWNERS_MAX;
use hotness::Ranking;
use knob::Knob;

/// Thousandths by which a throughput must differ to count as another.
const MARGIN: u64 = 20;
/// Windows that may be joined since somebody did not answer, or too little was asked for.
const JOINED_MOST: u8 = 10;

/// What a pool's partitions have proxies by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlacementOptions {
    /// Hundredths of the partitions that have a proxy, at most 240 of them; none: as many as throughput says.
    pub share: Option<u8>,
    /// The share that is measured first, where throughput says. 0 by default, as in the paper.
    pub first_share: u8,
    /// Between two questions. A second by default.
    pub period_ns: Nanos,
    /// What comes so soon after a change is not measured. 200 ms by default.
    pub settle_ns: Nanos,
    /// Answers are waited for so long. 100 ms by default.
    pub gather_ns: Nanos,
    /// Accesses that a period must have to say which partitions are hot, for each rank: where there are fewer it is longer. 1,000 by default.
    pub rank_ops: u64,
    /// Accesses that a throughput must have been measured by. 10,000 by default.
    pub probe_ops: u64,
}

impl Default for PlacementOptions {
    fn default() -> PlacementOptions {
        PlacementOptions {
            share: None,
            first_share: 0,
            period_ns: 1_000_000_000,
            settle_ns: 200_000_000,
            gather_ns: 100_000_000,
            rank_ops: 1000,
            probe_ops: 10_000,
        }
    }
}

/// What is done so that noise is not taken for a change; all of it, but in tests that show what each is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NoiseRepairs {
    /// Heats that differ by chance alone do not differ.
    pub(crate) significance: bool,
    /// Half of a heat is what it was before.
    pub(crate) smoothing: bool,
    /// Where there are few accesses a period is longer.
    pub(crate) lengthening: bool,
    /// Nothing is dealt anew that promises to change little.
    pub(crate) gain: bool,
}

impl NoiseRepairs {
    pub(crate) const ALL: NoiseRepairs =
        NoiseRepairs { significance: true, smoothing: true, lengthening: true, gain: true };
}

/// Counts of what was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PlacementCounters {
    /// How often partitions were dealt out anew, after they first were by what was counted.
    pub reassignments: u64,
    /// Rounds of looking for the best share.
    pub rounds: u64,
    /// Changes of the configuration that were asked for.
    pub changes: u64,
    /// Partitions that got another proxy by them, or none.
    pub moves: u64,
}

/// What the manager is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlacementStep {
    Nothing,
    /// Ask all sessions for their counters.
    Ask(u32),
    /// Give these partitions these proxies, or none, in one change.
    Assign(BTreeMap<u16, Option<u16>>),
}

/// What was measured since a window opened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Measured {
    opened_at: Option<Nanos>,
    reads: u64,
    writes: u64,
    /// Windows that were joined.
    joined: u8,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Placement {
    options: PlacementOptions,
    repairs: NoiseRepairs,
    partitions: u16,
    ranking: Ranking,
    knob: Knob,
    /// Of each session, and each partition that it accessed, the counters that it told last: reads and writes.
    tallies: BTreeMap<u16, BTreeMap<u16, [u32; 2]>>,
    /// Accesses of each partition since heats were last looked at.
    window: Vec<u64>,
    measured: Measured,
    round: u32,
    asked_at: Nanos,
    ask_at: Nanos,
    /// Until when answers are waited for, and whose came.
    gathering: Option<Nanos>,
    answered: BTreeSet<u16>,
    is_disturbed: bool,
    counters: PlacementCounters,
}

impl Placement {
    pub(crate) fn new(options: PlacementOptions, partitions: u16) -> Placement {
        Placement::with_repairs(options, partitions, NoiseRepairs::ALL)
    }

    pub(crate) fn with_repairs(
        options: PlacementOptions,
        partitions: u16,
        repairs: NoiseRepairs,
    ) -> Placement {
        Placement {
            options: PlacementOptions { period_ns: options.period_ns.max(1), ..options },
            repairs,
            partitions,
            ranking: Ranking::new(partitions, repairs),
            knob: Knob::new(options.share.unwrap_or(options.first_share), MARGIN),
            tallies: BTreeMap::new(),
            window: vec![0; usize::from(partitions)],
            measured: Measured::default(),
            round: 0,
            asked_at: 0,
            ask_at: 0,
            gathering: None,
            answered: BTreeSet::new(),
            is_disturbed: false,
            counters: PlacementCounters::default(),
        }
    }

    /// Hundredths of the partitions that are to have a proxy.
    pub(crate) fn share(&self) -> u8 {
        self.knob.alpha()
    }

    pub(crate) fn counters(&self) -> PlacementCounters {
        self.counters
    }

    /// Whether [`go_on`](Placement::go_on) has anything to do.
    pub(crate) fn is_due(&self, now: Nanos, is_changing: bool) -> bool {
        self.is_disturbed != is_changing || self.gathering.is_some() || now >= self.ask_at
    }

    /// When it is due, whatever comes; none while the configuration changes.
    pub(crate) fn due_at(&self) -> Option<Nanos> {
        let at = self.gathering.unwrap_or(self.ask_at);
        (!self.is_disturbed).then_some(at)
    }

    /// A session that works on the pool told its counters.
    pub(crate) fn told(&mut self, report: &AccessReport) {
        let tally = self.tallies.entry(report.session).or_default();
        for count in report.counts.iter().filter(|count| count.partition < self.partitions) {
            let last = tally.entry(count.partition).or_default();
            let more = |now: u32, last: &mut u32| {
                let more = now.wrapping_sub(*last);
                // What is behind came late, or again.
                let is_later = more <= u32::MAX / 2;
                *last = if is_later { now } else { *last };
                u64::from(if is_later { more } else { 0 })
            };
            let reads = more(count.reads, &mut last[0]);
            let writes = more(count.writes, &mut last[1]);
            self.measured.reads += reads;
            self.measured.writes += writes;
            self.window[usize::from(count.partition)] += reads + writes;
        }
        if report.left == 0 && report.round == self.round && self.gathering.is_some() {
            self.answered.insert(report.session);
        }
    }

    /// What is to be done now, with these sessions, which are in order, and these proxies.
    pub(crate) fn go_on(
        &mut self,
        now: Nanos,
        sessions: &[u16],
        is_changing: bool,
        owners: &BTreeMap<u16, u16>,
    ) -> PlacementStep {
        if is_changing {
            (self.is_disturbed, self.gathering, self.measured) = (true, None, Measured::default());
            return PlacementStep::Nothing;
        }
        if std::mem::take(&mut self.is_disturbed) {
            self.ask_at = now.saturating_add(self.options.settle_ns);
            self.tallies.retain(|session, _| sessions.binary_search(session).is_ok());
        }
        if let Some(until) = self.gathering {
            let have_all = sessions.iter().all(|session| self.answered.contains(session));
            if !have_all && now < until {
                return PlacementStep::Nothing;
            }
            self.gathering = None;
            return self.came(sessions, have_all, owners);
        }
        if now < self.ask_at {
            return PlacementStep::Nothing;
        }
        if sessions.is_empty() {
            self.ask_at = now.saturating_add(self.options.period_ns);
            return PlacementStep::Nothing;
        }
        self.round = self.round.wrapping_add(1);
        self.answered.clear();
        self.asked_at = now;
        self.gathering = Some(now.saturating_add(self.options.gather_ns));
        PlacementStep::Ask(self.round)
    }

    fn open(&mut self) {
        self.measured = Measured { opened_at: Some(self.asked_at), ..Measured::default() };
    }

    /// What there was to come has come.
    fn came(&mut self, sessions: &[u16], have_all: bool, owners: &BTreeMap<u16, u16>) -> PlacementStep {
        self.ask_at = self.asked_at.saturating_add(self.options.period_ns);
        let Some(opened_at) = self.measured.opened_at else {
            self.open();
            let settled = self.options.settle_ns.min(self.options.period_ns / 2);
            self.ask_at -= settled;
            return PlacementStep::Nothing;
        };
        // Who did not answer now has done as much as it tells later.
        if !have_all && self.measured.joined < JOINED_MOST {
            self.measured.joined += 1;
            return PlacementStep::Nothing;
        }
        let ranks = u64::from(self.partitions).div_ceil(sessions.len().max(1) as u64);
        let ops: u64 = self.window.iter().sum();
        let is_enough =
            ops >= self.options.rank_ops.saturating_mul(ranks) || ops > 0 && !self.repairs.lengthening;
        if is_enough {
            self.ranking.observe(&self.window);
            self.window.fill(0);
        }
        if self.deal(sessions, is_enough) {
            self.open();
            return self.assign(owners);
        }
        self.turn(opened_at, owners)
    }

    /// Deals partitions out, if that is to be done. True where it was.
    fn deal(&mut self, sessions: &[u16], is_enough: bool) -> bool {
        let (is_dealt, was_known) = (self.ranking.is_dealt(), self.ranking.is_dealt_by_counts());
        if is_dealt && !self.ranking.is_dealt_to(sessions) {
            self.knob.abandon();
            self.ranking.deal(sessions);
        } else if !is_dealt {
            // By chance, until more is known, where all are to have one at once.
            if !is_enough && self.options.share.is_none() {
                return false;
            }
            self.ranking.deal(sessions);
        } else {
            // While the share changes nothing else does, or its throughputs could not be compared.
            let may = is_enough && !self.knob.is_in_round();
            let Some(deal) = may.then(|| self.ranking.judge(self.knob.alpha())).flatten() else {
                return false;
            };
            self.ranking.take(deal);
        }
        self.counters.reassignments += u64::from(was_known);
        self.knob.was_reassigned();
        true
    }

    /// Turns the knob, if there is anything to turn it by.
    fn turn(&mut self, opened_at: Nanos, owners: &BTreeMap<u16, u16>) -> PlacementStep {
        let (reads, writes) = (self.measured.reads, self.measured.writes);
        let ops = reads + writes;
        if self.options.share.is_some() || !self.ranking.is_dealt() {
            self.open();
            return PlacementStep::Nothing;
        }
        if ops < self.options.probe_ops.max(1) {
            self.measured.joined += 1;
            if self.measured.joined < JOINED_MOST {
                return PlacementStep::Nothing;
            }
            self.open();
            if !self.knob.is_in_round() {
                return PlacementStep::Nothing;
            }
            self.knob.rest();
            return self.assign(owners);
        }
        let span = u128::from(self.asked_at.saturating_sub(opened_at).max(1));
        let throughput = (u128::from(ops) * 1_000_000_000_000 / span) as u64;
        let thousandths = reads * 1000 / ops;
        self.open();
        if self.knob.is_in_round() {
            self.knob.measured(throughput);
        } else if self.knob.wants_round(thousandths) {
            self.counters.rounds += 1;
            let all = usize::from(self.partitions).max(1);
            let most = (OWNERS_MAX * 100).div_ceil(all).min(100) as u8;
            self.knob.begin(throughput, thousandths, most);
        } else {
            return PlacementStep::Nothing;
        }
        self.assign(owners)
    }

    /// What must change for that to hold which was chosen.
    fn assign(&mut self, owners: &BTreeMap<u16, u16>) -> PlacementStep {
        let chosen = self.ranking.proxied(self.knob.alpha());
        let gone = owners.keys().filter(|partition| !chosen.contains_key(partition));
        let mut moves: BTreeMap<u16, Option<u16>> = gone.map(|&partition| (partition, None)).collect();
        let other = chosen.iter().filter(|(partition, session)| owners.get(partition) != Some(session));
        moves.extend(other.map(|(&partition, &session)| (partition, Some(session))));
        if moves.is_empty() {
            return PlacementStep::Nothing;
        }
        self.counters.changes += 1;
        self.counters.moves += moves.len() as u64;
        PlacementStep::Assign(moves)
    }
}
