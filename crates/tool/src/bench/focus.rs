//! `hedgerow bench focus`: the experiments of the FOCUS paper, re-run on what the engine has today.
//!
//! Owns the list of experiments: another one is a module with one entry there. How they are run and told is [`super::paper`]'s.

mod ablation;
mod access;
mod cache;
mod hotspot;
mod overwrite;
mod parts;
mod ratio;
mod scaling;
mod sizes;
mod wide;
mod ycsb;

use crate::bench::paper::experiment::PaperSuite;
use crate::bench::paper::{self, PaperArgs};

const SUITE: PaperSuite = PaperSuite {
    name: "focus",
    title: "The experiments of FOCUS on Hedgerow",
    caution: "The paper's baselines are other engines on real persistent memory; here they are mappings over, or \
              settings of, this one. A factor above 1 means that what is named first is faster.",
    threads: &[1, 2],
    experiments: &[
        ycsb::EXPERIMENT,
        access::EXPERIMENT,
        wide::EXPERIMENT,
        ablation::EXPERIMENT,
        ratio::EXPERIMENT,
        sizes::EXPERIMENT,
        scaling::EXPERIMENT,
        parts::EXPERIMENT,
        cache::EXPERIMENT,
        hotspot::EXPERIMENT,
        overwrite::EXPERIMENT,
    ],
};

/// Runs the experiments and writes the report.
///
/// # Errors
/// Wrong arguments; a report that cannot be written; and experiments that failed, which the report tells too.
pub fn run(args: PaperArgs) -> Result<(), String> {
    paper::run(&SUITE, args)
}

#[cfg(test)]
mod tests;
