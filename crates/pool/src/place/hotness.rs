//! Which partitions are hot, and who gets which of them.
//!
//! Owns Algorithm 1 of FlexKV (arXiv 2512.16148): partitions in the order of their accesses are cut into ranks of as many as there are nodes, and each node gets one of each rank. Promises that what chance alone
//! moves is dealt out to nobody anew. Must not know how accesses are counted, or how a partition changes hands.
//!
//! As printed it would reshuffle for ever: of two seconds of the same load with 100,000 accesses each to 1,024 partitions the ranks differ by 0.8 of what a shuffle makes of them, by chance alone, and a quarter is
//! taken for a change. So a partition has another heat only if that differs by more than three standard deviations of what it is counted by, heats are smoothed, and nothing is dealt anew that promises to change little.

use std::collections::{BTreeMap, BTreeSet};

use super::NoiseRepairs;
use crate::wire::OWNERS_MAX;

/// Heats are in so many parts of an access a window.
const PARTS: u64 = 256;
/// The busiest node must have so many hundredths less of the accesses, or proxies so many hundredths of all of them more.
const LOAD_GAIN: f64 = 0.05;
const SHARE_GAIN: f64 = 0.03;
/// A gain that is so many times larger needs no other ranks: a few partitions can be most of the load.
const STRONG: f64 = 4.0;

/// What each session has, from hot to cold.
pub(super) type Lists = BTreeMap<u16, Vec<u16>>;

/// Partitions dealt out, and by what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Deal {
    heat: Vec<u64>,
    order: Vec<u16>,
    lists: Lists,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ranking {
    repairs: NoiseRepairs,
    partitions: u16,
    /// Of each partition; empty until a window was observed.
    heat: Vec<u64>,
    /// What holds; without an order it was dealt before anything was known.
    dealt: Option<Deal>,
}

impl Ranking {
    pub(super) fn new(partitions: u16, repairs: NoiseRepairs) -> Ranking {
        Ranking { repairs, partitions, heat: Vec::new(), dealt: None }
    }

    /// A window is over in which there were so many accesses of each partition.
    pub(super) fn observe(&mut self, window: &[u64]) {
        if self.heat.is_empty() || !self.repairs.smoothing {
            self.heat = window.iter().map(|count| count * PARTS).collect();
            return;
        }
        for (heat, count) in self.heat.iter_mut().zip(window) {
            *heat = (*heat + count * PARTS) / 2;
        }
    }

    /// Whether partitions were dealt out to exactly these sessions, which are in order.
    pub(super) fn is_dealt_to(&self, sessions: &[u16]) -> bool {
        let dealt = self.dealt.as_ref();
        dealt.is_some_and(|deal| deal.lists.keys().eq(sessions))
    }

    pub(super) fn is_dealt(&self) -> bool {
        self.dealt.is_some()
    }

    /// Whether they were by what was counted.
    pub(super) fn is_dealt_by_counts(&self) -> bool {
        self.dealt.as_ref().is_some_and(|deal| !deal.order.is_empty())
    }

    /// Which sessions are to be the proxies of which partitions, with so many hundredths of each list.
    pub(super) fn proxied(&self, alpha: u8) -> BTreeMap<u16, u16> {
        let Some(deal) = &self.dealt else { return BTreeMap::new() };
        proxied_of(&deal.lists, alpha)
    }

    /// Deals partitions out, by what is known.
    pub(super) fn deal(&mut self, sessions: &[u16]) {
        let heat = self.believed();
        let order = match heat.is_empty() {
            true => Vec::new(),
            false => self.ordered(&heat),
        };
        let all: Vec<u16> = (0..self.partitions).collect();
        let cards = if order.is_empty() { &all } else { &order };
        let lists = self.lists(cards, &heat, sessions);
        self.dealt = Some(Deal { heat, order, lists });
    }

    /// What is to be dealt anew to the same sessions, if it is worth that.
    pub(super) fn judge(&self, alpha: u8) -> Option<Deal> {
        let deal = self.dealt.as_ref()?;
        if self.heat.is_empty() {
            return None;
        }
        let sessions: Vec<u16> = deal.lists.keys().copied().collect();
        let heat = self.believed();
        let order = self.ordered(&heat);
        let lists = self.lists(&order, &heat, &sessions);
        let next = Deal { heat, order, lists };
        if deal.order.is_empty() {
            return Some(next);
        }
        let (load, share) = gains(&deal.lists, &next.lists, alpha, &next.heat);
        let is_worth = |times: f64| load > LOAD_GAIN * times || share > SHARE_GAIN * times;
        let is_other = self.displacement(&next, sessions.len()) >= 0.25;
        let is_chosen = is_other && (is_worth(1.0) || !self.repairs.gain) || is_worth(STRONG);
        is_chosen.then_some(next)
    }

    /// What holds.
    #[cfg(test)]
    pub(super) fn lists_dealt(&self) -> &Lists {
        self.dealt.as_ref().map(|deal| &deal.lists).unwrap()
    }

    pub(super) fn take(&mut self, deal: Deal) {
        self.dealt = Some(deal);
    }

    /// By how much ranks differ from those that were dealt by, of what they would after a shuffle.
    fn displacement(&self, next: &Deal, nodes: usize) -> f64 {
        let Some(deal) = &self.dealt else { return 0.0 };
        let significant = self.significant();
        let ranks_of = |order: &[u16]| {
            let mut ranks = vec![0usize; order.len()];
            order.iter().enumerate().for_each(|(at, &partition)| ranks[usize::from(partition)] = at / nodes);
            ranks
        };
        let (before, after) = (ranks_of(&deal.order), ranks_of(&next.order));
        let moved: usize = (0..before.len())
            .filter(|&partition| significant[partition])
            .map(|partition| before[partition].abs_diff(after[partition]))
            .sum();
        // The mean of |X - Y| for X and Y of 1 to R alike is (R^2 - 1) / 3R.
        let ranks = before.len().div_ceil(nodes) as f64;
        let shuffled = before.len() as f64 * (ranks * ranks - 1.0) / (3.0 * ranks);
        if shuffled > 0.0 { moved as f64 / shuffled } else { 0.0 }
    }

    fn total(heat: &[u64]) -> f64 {
        heat.iter().sum::<u64>() as f64 / PARTS as f64
    }

    /// Of each partition, whether its part of all accesses is another one than when it was dealt, and not by chance: counts vary by their square roots.
    fn significant(&self) -> Vec<bool> {
        let before = self.dealt.as_ref().map(|deal| &deal.heat[..]).unwrap_or_default();
        let totals = (Ranking::total(before), Ranking::total(&self.heat));
        if !self.repairs.significance || totals.0 <= 0.0 || totals.1 <= 0.0 {
            return vec![true; self.heat.len()];
        }
        let is_other = |(&before, &after): (&u64, &u64)| {
            let (before, after) = (before as f64 / PARTS as f64, after as f64 / PARTS as f64);
            let difference = (before / totals.0 - after / totals.1).abs();
            let variance = before / (totals.0 * totals.0) + after / (totals.1 * totals.1);
            difference > 3.0 * variance.sqrt()
        };
        before.iter().zip(&self.heat).map(is_other).collect()
    }

    /// Heats, of which those that changed by chance alone are as they were, for as many accesses as there are now.
    fn believed(&self) -> Vec<u64> {
        let Some(deal) = self.dealt.as_ref().filter(|deal| !deal.order.is_empty()) else {
            return self.heat.clone();
        };
        let (before, after) = (Ranking::total(&deal.heat), Ranking::total(&self.heat));
        let scale = if before > 0.0 { after / before } else { 1.0 };
        let both = self.heat.iter().zip(&deal.heat).zip(self.significant());
        let believed = |((&after, &before), is_other): ((&u64, &u64), bool)| match is_other {
            true => after,
            false => (before as f64 * scale) as u64,
        };
        both.map(believed).collect()
    }

    /// The hottest first; equals stay in the order that they have.
    fn ordered(&self, heat: &[u64]) -> Vec<u16> {
        let before = self.dealt.as_ref().map(|deal| &deal.order).filter(|order| !order.is_empty());
        let mut order = before.cloned().unwrap_or_else(|| (0..self.partitions).collect());
        order.sort_by_key(|&partition| std::cmp::Reverse(heat[usize::from(partition)]));
        order
    }

    /// One partition of each rank for each session: it keeps what it has, and of what is left the least loaded gets the hottest.
    fn lists(&self, order: &[u16], heat: &[u64], sessions: &[u16]) -> Lists {
        let had = self.dealt.iter().flat_map(|deal| &deal.lists);
        let had: BTreeMap<u16, u16> = had
            .flat_map(|(&session, list)| list.iter().map(move |&partition| (partition, session)))
            .collect();
        let mut lists: Lists = sessions.iter().map(|&session| (session, Vec::new())).collect();
        let mut loads: BTreeMap<u16, u64> = sessions.iter().map(|&session| (session, 0)).collect();
        for rank in order.chunks(sessions.len().max(1)) {
            let mut without: BTreeSet<u16> = sessions.iter().copied().collect();
            let mut given = Vec::with_capacity(rank.len());
            let mut left = Vec::new();
            for &partition in rank {
                match had.get(&partition).filter(|session| without.remove(session)) {
                    Some(&session) => given.push((partition, session)),
                    None => left.push(partition),
                }
            }
            for partition in left {
                let least = without.iter().copied().min_by_key(|session| loads[session]);
                if let Some(session) = least {
                    without.remove(&session);
                    given.push((partition, session));
                }
            }
            for (partition, session) in given {
                let heat = heat.get(usize::from(partition)).copied().unwrap_or(0);
                *loads.entry(session).or_default() += heat;
                lists.entry(session).or_default().push(partition);
            }
        }
        lists
    }
}

/// The first of each list, rank by rank, for as many as may have a proxy.
fn proxied_of(lists: &Lists, alpha: u8) -> BTreeMap<u16, u16> {
    let mut proxied = BTreeMap::new();
    let longest = lists.values().map(Vec::len).max().unwrap_or(0);
    for rank in 0..longest {
        for (&session, list) in lists {
            let most = (list.len() * usize::from(alpha)).div_ceil(100);
            if let Some(&partition) = list[..most].get(rank)
                && proxied.len() < OWNERS_MAX
            {
                proxied.insert(partition, session);
            }
        }
    }
    proxied
}

/// The accesses of the busiest session, and the mean, and how many parts of all accesses proxies have. Where there are none, as if there were.
pub(super) fn loads(lists: &Lists, alpha: u8, heat: &[u64]) -> (BTreeMap<u16, u64>, f64) {
    let mut loads: BTreeMap<u16, u64> = lists.keys().map(|&session| (session, 0)).collect();
    for (partition, session) in proxied_of(lists, if alpha == 0 { 100 } else { alpha }) {
        *loads.entry(session).or_default() += heat[usize::from(partition)];
    }
    let all = heat.iter().sum::<u64>().max(1) as f64;
    let share = if alpha == 0 { 0.0 } else { loads.values().sum::<u64>() as f64 / all };
    (loads, share)
}

/// How much less uneven the load is, and how many parts of all accesses more proxies have.
fn gains(before: &Lists, after: &Lists, alpha: u8, heat: &[u64]) -> (f64, f64) {
    let uneven = |loads: &BTreeMap<u16, u64>| {
        let most = loads.values().max().copied().unwrap_or(0) as f64;
        let mean = loads.values().sum::<u64>() as f64 / loads.len().max(1) as f64;
        if mean > 0.0 { most / mean } else { 1.0 }
    };
    let ((before, share_before), (after, share_after)) =
        (loads(before, alpha, heat), loads(after, alpha, heat));
    (uneven(&before) / uneven(&after) - 1.0, share_after - share_before)
}
