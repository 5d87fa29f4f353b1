//! What came of one modelled run.
//!
//! Owns the names and units of what is reported: nanoseconds of virtual time for latencies, calls a second for rates, parts of 1 for shares. Must not know how it was run.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::setting::{PoolSetting, PoolStep, distribution_name, factor_name};

/// Of all calls: the parts that latencies are told at or below.
pub(super) const QUANTILES: [(&str, f64); 8] = [
    ("p1", 0.01),
    ("p25", 0.25),
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("max", 1.0),
];

/// What tables of runs begin with: the run, its rate, and latencies of reads and of writes.
pub(super) const RUN_COLUMNS: [&str; 8] =
    ["", "calls/s", "read p50", "p99", "p99.9", "write p50", "p99", "p99.9"];

/// What all nodes and the network did, and callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(super) struct PoolCounts {
    /// Calls that were answered.
    pub(super) calls: u64,
    /// Answered in a way that says nothing, or not done.
    pub(super) refused: u64,
    /// Calls whose partition had a proxy as they began.
    pub(super) proxied: u64,
    /// Reads that the reader's cache had the value of, and those that it had the address of, as its proxy granted.
    pub(super) value_hits: u64,
    pub(super) address_hits: u64,
    /// In direct mode: look-ups for which the slot was enough that was seen last.
    pub(super) slot_hits: u64,
    /// Look-ups that proxies answered, changes that they made, changes that were combined with those, and pairs that caches were told to drop.
    pub(super) asked: u64,
    pub(super) changes: u64,
    pub(super) combined: u64,
    pub(super) invalidated: u64,
    /// To memory nodes.
    pub(super) batches: u64,
    pub(super) operations: u64,
    pub(super) atomics: u64,
    pub(super) bytes: u64,
    pub(super) datagrams: u64,
    /// Of the datagrams: calls that went to their owners, and answers from there.
    pub(super) forwards: u64,
}

impl PoolCounts {
    /// Without what was counted before.
    pub(super) fn since(self, before: PoolCounts) -> PoolCounts {
        PoolCounts {
            calls: self.calls - before.calls,
            refused: self.refused - before.refused,
            proxied: self.proxied - before.proxied,
            value_hits: self.value_hits - before.value_hits,
            address_hits: self.address_hits - before.address_hits,
            slot_hits: self.slot_hits - before.slot_hits,
            asked: self.asked - before.asked,
            changes: self.changes - before.changes,
            combined: self.combined - before.combined,
            invalidated: self.invalidated - before.invalidated,
            batches: self.batches - before.batches,
            operations: self.operations - before.operations,
            atomics: self.atomics - before.atomics,
            bytes: self.bytes - before.bytes,
            datagrams: self.datagrams - before.datagrams,
            forwards: self.forwards - before.forwards,
        }
    }
}

/// The longest latency that is told from longer ones.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Latencies in nanoseconds.
pub(super) fn latency_histogram() -> Histogram<u64> {
    // The bounds are right: the least is 1, and there are three digits.
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).unwrap_or_else(|_| unreachable!("bounds of a histogram"))
}

/// Latencies of some calls, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PoolLatencies {
    /// Which: by kind, and how they began.
    pub(super) path: String,
    pub(super) calls: u64,
    /// At each of [`QUANTILES`].
    pub(super) at: Vec<u64>,
}

impl PoolLatencies {
    pub(super) fn new(path: &str, latencies: &Histogram<u64>) -> PoolLatencies {
        let at = QUANTILES.map(|(_, quantile)| latencies.value_at_quantile(quantile)).into();
        PoolLatencies { path: path.into(), calls: latencies.len(), at }
    }

    /// By the name of a quantile.
    pub(super) fn ns(&self, quantile: &str) -> u64 {
        let at = QUANTILES.iter().position(|(name, _)| *name == quantile);
        at.and_then(|at| self.at.get(at)).copied().unwrap_or_default()
    }
}

/// Latencies of all calls, of reads and writes, and by path.
pub(super) fn all_latencies(by_path: &BTreeMap<&'static str, Histogram<u64>>) -> Vec<PoolLatencies> {
    let all = |name: &str, of: &str| {
        let mut latencies = by_path.iter().filter(|(path, _)| path.starts_with(of)).map(|(_, one)| one);
        let mut sum = latencies.next()?.clone();
        // All have the same bounds.
        latencies.for_each(|one| sum += one);
        Some(PoolLatencies::new(name, &sum))
    };
    let kinds = [all("all", ""), all("read", "read"), all("write", "write")];
    let paths = by_path.iter().map(|(path, latencies)| PoolLatencies::new(path, latencies));
    kinds.into_iter().flatten().chain(paths).collect()
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PoolFigures {
    /// Always `modelled`.
    pub(super) kind: &'static str,
    pub(super) step: PoolStep,
    pub(super) reads: u64,
    pub(super) inserts: bool,
    pub(super) distribution: &'static str,
    pub(super) value_bytes: usize,
    pub(super) compute_nodes: u16,
    pub(super) memory_nodes: u8,
    /// An assumed cost that is another one, and how.
    pub(super) cost: Option<[&'static str; 2]>,
    pub(super) seed: u64,
    /// Virtual time.
    pub(super) took_ns: u64,
    pub(super) calls_per_s: f64,
    /// Of all, of reads and writes, and by path.
    pub(super) latencies: Vec<PoolLatencies>,
    pub(super) counts: PoolCounts,
    /// Standard deviation over mean of what compute nodes did for others and themselves: as proxies, or as owners. None where there are neither.
    pub(super) load_variation: Option<f64>,
    /// Whether the choice of proxies had come to rest before it was measured; the share that it wants, in hundredths of partitions; and what had a proxy in the end.
    pub(super) is_settled: bool,
    pub(super) share: Option<u8>,
    pub(super) proxied_partitions: f64,
}

impl PoolFigures {
    pub(super) fn new(
        (setting, seed): (PoolSetting, u64),
        (calls, took_ns): (u64, u64),
        by_path: &BTreeMap<&'static str, Histogram<u64>>,
        counts: PoolCounts,
        served: &[u64],
    ) -> PoolFigures {
        PoolFigures {
            kind: "modelled",
            step: setting.step,
            reads: setting.load.reads,
            inserts: setting.load.inserts,
            distribution: distribution_name(setting.load.distribution),
            value_bytes: setting.value_bytes,
            compute_nodes: setting.compute_nodes,
            memory_nodes: setting.memory_nodes,
            cost: setting.cost.map(|(cost, factor)| [cost.name(), factor_name(factor)]),
            seed,
            took_ns,
            calls_per_s: calls as f64 * 1e9 / took_ns.max(1) as f64,
            latencies: all_latencies(by_path),
            counts,
            load_variation: variation(served),
            is_settled: true,
            share: None,
            proxied_partitions: 0.0,
        }
    }

    /// The same, with what the choice of proxies came to.
    pub(super) fn settled(self, is_settled: bool, share: Option<u8>, proxied_partitions: f64) -> PoolFigures {
        PoolFigures { is_settled, share, proxied_partitions, ..self }
    }

    /// Of a path, or of all, read or write; none where there was none.
    pub(super) fn latency(&self, path: &str) -> Option<&PoolLatencies> {
        self.latencies.iter().find(|one| one.path == path)
    }

    /// So many for each call.
    pub(super) fn a_call(&self, count: u64) -> f64 {
        count as f64 / self.counts.calls.max(1) as f64
    }
}

/// Standard deviation over mean.
fn variation(numbers: &[u64]) -> Option<f64> {
    let count = numbers.len().max(1) as f64;
    let mean = numbers.iter().sum::<u64>() as f64 / count;
    let variance = numbers.iter().map(|&number| (number as f64 - mean).powi(2)).sum::<f64>() / count;
    (mean > 0.0).then(|| variance.sqrt() / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_is_even_does_not_vary() {
        assert_eq!(variation(&[5, 5, 5]), Some(0.0));
        assert_eq!(variation(&[0, 10]), Some(1.0));
        assert_eq!(variation(&[0, 0]), None, "nobody did anything");
    }
}
