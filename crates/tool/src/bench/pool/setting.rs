//! What one modelled run is made of.
//!
//! Owns the steps from a pool without proxies to all that there is, what each adds to the one before, and what a run is called. Must not know how it is run.

use std::fmt;

use hedgerow_pool::fabric::nic::{AssumedCost, CostFactor};
use serde::Serialize;

use super::load::PoolLoad;
use crate::bench::distribution::Distribution;

/// Hundredths of the partitions that have a proxy where nothing is measured: FlexKV's, of its ablation.
pub(super) const STATIC_SHARE: u8 = 20;

/// A pool with so much of what there is. From `Direct` to `Split` each has what the one before has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PoolStep {
    /// All work on the index themselves, by SNAPSHOT over its copies.
    Direct,
    /// A fifth of the partitions, whichever, have a proxy.
    Proxies,
    /// It is the hottest fifth, dealt out by rank.
    Ranks,
    /// Values are cached where they are read.
    Pairs,
    /// As many partitions have a proxy as throughput says.
    Split,
    /// All partitions have one, whatever throughput says: what the one before may miss.
    All,
    /// The other way: each partition is one node's, and whoever wants something of it sends that node the call.
    Owners,
}

impl PoolStep {
    /// Each adds something to the one before.
    pub(super) const ABLATION: [PoolStep; 5] =
        [PoolStep::Direct, PoolStep::Proxies, PoolStep::Ranks, PoolStep::Pairs, PoolStep::Split];

    pub(super) fn name(self) -> &'static str {
        match self {
            PoolStep::Direct => "direct",
            PoolStep::Proxies => "+ proxies",
            PoolStep::Ranks => "+ ranks",
            PoolStep::Pairs => "+ values cached",
            PoolStep::Split => "+ adaptive split",
            PoolStep::All => "all proxied",
            PoolStep::Owners => "owners",
        }
    }

    /// What FlexKV's paper says that the step is worth, and by how much that is times the one before.
    pub(super) fn paper(self) -> Option<&'static str> {
        match self {
            PoolStep::Direct | PoolStep::All | PoolStep::Owners => None,
            PoolStep::Proxies => Some("+14.5 %"),
            PoolStep::Ranks => Some("+11.9 %"),
            PoolStep::Pairs => Some("+6.1 %"),
            PoolStep::Split => Some("+15.2 %"),
        }
    }

    pub(super) fn caches_values(self) -> bool {
        matches!(self, PoolStep::Pairs | PoolStep::Split | PoolStep::All | PoolStep::Owners)
    }
}

/// A cost that is assumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolCost {
    /// One of the card's and the network's.
    Fabric(AssumedCost),
    /// Time of a caller's thread for a call.
    Call,
}

impl PoolCost {
    pub(super) const ALL: [PoolCost; 5] = [
        PoolCost::Fabric(AssumedCost::OneWay),
        PoolCost::Fabric(AssumedCost::Atomic),
        PoolCost::Fabric(AssumedCost::Issue),
        PoolCost::Fabric(AssumedCost::Datagram),
        PoolCost::Call,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            PoolCost::Fabric(AssumedCost::OneWay) => "one way",
            PoolCost::Fabric(AssumedCost::Atomic) => "atomic",
            PoolCost::Fabric(AssumedCost::Issue) => "issue",
            PoolCost::Fabric(AssumedCost::Datagram) => "datagram",
            PoolCost::Call => "call",
        }
    }

    pub(super) fn assumed(self) -> Option<AssumedCost> {
        match self {
            PoolCost::Fabric(cost) => Some(cost),
            PoolCost::Call => None,
        }
    }
}

pub(super) fn factor_name(factor: CostFactor) -> &'static str {
    match factor {
        CostFactor::Half => "halved",
        CostFactor::Double => "doubled",
    }
}

/// What all runs of a report have alike.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct PoolScale {
    pub(super) keys: u64,
    /// Calls that are measured.
    pub(super) calls: u64,
    /// Threads of callers on each compute node, and calls under way on each of them.
    pub(super) threads: usize,
    pub(super) depth: usize,
    pub(super) partition_bits: u32,
    /// Of values, on each compute node.
    pub(super) cached_bytes: usize,
    /// Time of a caller's thread for each call.
    pub(super) call_ns: u64,
    /// Between two looks of whoever chooses proxies.
    pub(super) period_ns: u64,
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolSetting {
    pub(super) step: PoolStep,
    pub(super) load: PoolLoad,
    pub(super) value_bytes: usize,
    pub(super) compute_nodes: u16,
    pub(super) memory_nodes: u8,
    /// An assumed cost at one of its bounds.
    pub(super) cost: Option<(PoolCost, CostFactor)>,
}

impl PoolSetting {
    /// Time of a caller's thread for a call.
    pub(super) fn call_ns(&self, scale: &PoolScale) -> u64 {
        match self.cost {
            Some((PoolCost::Call, CostFactor::Half)) => scale.call_ns / 2,
            Some((PoolCost::Call, CostFactor::Double)) => scale.call_ns * 2,
            _ => scale.call_ns,
        }
    }

    /// What it asks for: `50 % reads, zipfian`.
    pub(super) fn asked(&self) -> String {
        let PoolLoad { reads, inserts, distribution } = self.load;
        let others = if inserts { ", the rest inserts" } else { "" };
        format!("{reads} % reads{others}, {}", distribution_name(distribution))
    }
}

pub(super) fn distribution_name(distribution: Distribution) -> &'static str {
    match distribution {
        Distribution::Zipfian => "zipfian",
        Distribution::ZipfianRecords => "zipfian over the records",
        Distribution::Moved => "zipfian, moved",
        Distribution::Uniform => "uniform",
        Distribution::Latest => "latest",
    }
}

impl fmt::Display for PoolSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolSetting { step, value_bytes, compute_nodes, memory_nodes, cost, .. } = self;
        let asked = self.asked();
        let step = step.name();
        write!(f, "{step}: {asked}, values of {value_bytes} bytes, {compute_nodes}:{memory_nodes} nodes")?;
        cost.map_or(Ok(()), |(cost, factor)| write!(f, ", {} {}", cost.name(), factor_name(factor)))
    }
}
