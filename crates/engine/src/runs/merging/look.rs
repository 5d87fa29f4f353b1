//! What merges would find and do next, for who only looks.
//!
//! Owns what is told of it. Promises that it is what merges go by, and that nothing is merged. Must not know how it is shown.

use super::policy::RangeWeight;
use super::{MergeJob, MergeLimits, MergeStore};
use crate::runs::{OpenRuns, Runs};

/// Bytes of a range that are thought to be garbage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RangeGarbage {
    /// Of rows that newer runs replace.
    pub(crate) replaced: u64,
    /// Of tables that are gone.
    pub(crate) gone: u64,
    /// Of rows whose time has come.
    pub(crate) expired: u64,
    /// Of the file, as many of those that count in no range as fall to this one.
    pub(crate) trimmed: u64,
}

impl RangeGarbage {
    fn of(weight: &RangeWeight) -> RangeGarbage {
        let RangeWeight { bytes, obsolete, gone, expired, trimmed, .. } = weight;
        let bounded = |part: &u64| *part.min(bytes);
        let [replaced, gone, expired] = [obsolete, gone, expired].map(bounded);
        RangeGarbage { replaced, gone, expired, trimmed: *trimmed }
    }
}

/// What is to be merged, and about how many bytes of records are read for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WeighedJob {
    pub(crate) job: MergeJob,
    pub(crate) bytes: u64,
}

impl WeighedJob {
    fn of(job: MergeJob, runs: &OpenRuns) -> WeighedJob {
        let is_above = |key: &[u8]| job.upto.as_deref().is_some_and(|upto| key > upto);
        let of_job = runs.runs.iter().filter(|run| job.runs.contains(&run.number));
        let ranges = of_job.flat_map(|run| &run.ranges);
        let meets = ranges.filter(|range| *range.keys[1] >= *job.from && !is_above(&range.keys[0]));
        let bytes = meets
            .map(|range| {
                let from = job.from.as_slice().max(&range.keys[0]);
                let upto = job.upto.as_deref().unwrap_or(&range.keys[1]).min(&range.keys[1]);
                range.sst.bytes_between(&[from.into(), upto.into()])
            })
            .sum();
        WeighedJob { job, bytes }
    }
}

impl Runs {
    /// Of each run, newest first, what of its ranges is garbage by the first of these limits; and what would be merged next by each of them. Some records of each run are read for it.
    pub(crate) fn look_at_merges<S: MergeStore, const N: usize>(
        &self,
        store: &S,
        limits: [MergeLimits; N],
    ) -> (Vec<Vec<RangeGarbage>>, [Option<WeighedJob>; N]) {
        // Whoever looks waits for what a merge does not wait for.
        while self.look_for_garbage(store) {}
        let runs = self.current();
        let jobs = limits.map(|limits| self.next_merge(store, limits));
        let jobs = jobs.map(|job| job.map(|job| WeighedJob::of(job, &runs)));
        let weights = limits.first().map_or(Vec::new(), |limits| self.weights(&runs, store, *limits));
        let of_run = |weight: super::RunWeight| weight.ranges.iter().map(RangeGarbage::of).collect();
        (weights.into_iter().map(of_run).collect(), jobs)
    }
}
