//! `hedgerow bench tiers`: the experiments of two papers on data larger than the fast tier, re-run on what the engine has today.
//!
//! Owns the command's options and the list of experiments: another one is a module with one entry there. The papers are BushStore
//! (Efficient B+Tree Group Indexing for LSM-Tree in Non-Volatile Memory, ICDE 2024) and DecouKV (Mitigating Resource Usage Dependency in Sorting-based KV
//! Stores on Hybrid Storage Devices, USENIX ATC 2025). How experiments are run and told is [`super::paper`]'s.

mod ablation;
mod bound;
mod course;
mod drawing;
mod fill;
mod granule;
mod growth;
mod key_scans;
mod mixture;
mod passes;
mod tail;
mod threads;
mod ycsb;

use crate::bench::paper::experiment::PaperSuite;
use crate::bench::paper::{self, PaperArgs};

/// Rows, and seconds a phase, at most, with `--quick`.
const QUICK_RECORDS: u64 = 10_000;
const QUICK_SECONDS: f64 = 0.05;

const SUITE: PaperSuite = PaperSuite {
    name: "tiers",
    title: "The experiments of BushStore and DecouKV on Hedgerow",
    caution: "The papers compare engines with other engines, on real persistent memory over a SATA or NVMe disk, with 80 to 500 GB of \
              data and direct I/O. Here one engine is compared with itself: a bounded fast tier with one that holds all rows, a technique \
              on with the same off. Factors of the two kinds stand beside each other to see which way and how far, not to be divided. \
              Reads of sorted tables may come from the page cache, which is at its quickest where memory has room for them all.",
    threads: &[1, 2, 4],
    experiments: &[
        fill::EXPERIMENT,
        tail::EXPERIMENT,
        granule::EXPERIMENT,
        course::EXPERIMENT,
        ycsb::EXPERIMENT,
        threads::EXPERIMENT,
        growth::EXPERIMENT,
        passes::EXPERIMENT,
        key_scans::EXPERIMENT,
        mixture::EXPERIMENT,
        ablation::EXPERIMENT,
    ],
};

/// Arguments of `hedgerow bench tiers`.
#[derive(Debug, Clone, clap::Args)]
pub struct TiersArgs {
    #[command(flatten)]
    paper: PaperArgs,
    /// At most 10,000 rows and 0.05 seconds a phase, without rests between them: to see whether all of it runs, not how fast.
    #[arg(long)]
    quick: bool,
}

/// Runs the experiments and writes the report.
///
/// # Errors
/// Wrong arguments; a report that cannot be written; and experiments that failed, which the report tells too.
pub fn run(args: TiersArgs) -> Result<(), String> {
    let TiersArgs { mut paper, quick } = args;
    if quick {
        paper.records = paper.records.min(QUICK_RECORDS);
        paper.seconds = paper.seconds.min(QUICK_SECONDS);
    }
    paper::run(&SUITE, paper)
}

#[cfg(test)]
mod tests;
