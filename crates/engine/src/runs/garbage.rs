//! What of the runs is thought to be garbage, which costs no read to know.
//!
//! Owns the estimate. Promises that it forgets a file with the file, and that what a merge has taken off is not counted again. It is kept in memory alone: a store that is opened
//! knows of tables that are gone, and of no row that was replaced. Must not know what is done about garbage.
//!
//! Of a new run one key in [`SAMPLED_ONE_IN`] is looked for in the filters of older ones. The first that says yes has a row that nobody needs any more; now and then it is mistaken, and so many
//! are taken off as it is expected to be.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{OpenRange, OpenRuns};
use crate::sst::SstKey;

const SAMPLED_ONE_IN: u64 = 64;
/// A filter says yes of so many keys that it does not hold to one.
const MISTAKEN_ONE_IN: u64 = 190;

/// What the filter of a file said of sampled keys.
#[derive(Debug, Default, Clone, Copy)]
struct Answers {
    asked: u64,
    held: u64,
}

/// What a new run replaces in older ones, as far as its records have come.
#[derive(Debug)]
pub(super) struct ReplacedSample {
    older: Arc<OpenRuns>,
    records: u64,
    files: BTreeMap<u64, Answers>,
}

impl ReplacedSample {
    pub(super) fn new(older: &Arc<OpenRuns>) -> ReplacedSample {
        ReplacedSample { older: Arc::clone(older), records: 0, files: BTreeMap::new() }
    }

    /// A record was written.
    pub(super) fn count(&mut self, table: u32, key: &[u8]) {
        self.records += 1;
        if self.records.is_multiple_of(SAMPLED_ONE_IN) && !self.older.is_empty() {
            self.ask(&SstKey::new(table, key));
        }
    }

    fn ask(&mut self, key: &SstKey) {
        for range in self.older.runs.iter().filter_map(|run| run.range_of(key.bytes())) {
            let answers = self.files.entry(range.sst.id().number).or_default();
            answers.asked += 1;
            if range.sst.may_hold(key) {
                answers.held += 1;
                return;
            }
        }
    }

    /// Files, and how many bytes of each were replaced.
    fn replaced(&self) -> impl Iterator<Item = (u64, u64)> {
        self.files.iter().filter_map(|(&number, answers)| {
            let counts = self.older.file(number)?.counts();
            let records = counts.rows + counts.deltas + counts.tombstones;
            let held = answers.held.saturating_sub(answers.asked / MISTAKEN_ONE_IN);
            Some((number, held * SAMPLED_ONE_IN * counts.bytes / records.max(1)))
        })
    }
}

/// Bytes of rows in each file that newer runs replace.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    files: BTreeMap<u64, u64>,
}

impl Replaced {
    /// A new run is there.
    pub(super) fn add(&mut self, sample: &ReplacedSample) {
        for (number, bytes) in sample.replaced().filter(|(_, bytes)| *bytes > 0) {
            *self.files.entry(number).or_default() += bytes;
        }
    }

    /// Of a range of a file.
    pub(super) fn of(&self, range: &OpenRange) -> u64 {
        let replaced = self.files.get(&range.sst.id().number).copied().unwrap_or(0);
        share(replaced, range.bytes(), range.sst.counts().bytes)
    }

    /// Of `before`, a file's bytes that counted, `left` are left; what was replaced in the others.
    pub(super) fn take(&mut self, number: u64, left: u64, before: u64) -> u64 {
        let Some(replaced) = self.files.get_mut(&number) else { return 0 };
        let taken = *replaced - share(*replaced, left, before);
        *replaced -= taken;
        taken
    }

    /// A merge that did not see all newer runs could not take so much off.
    pub(super) fn give(&mut self, number: u64, bytes: u64) {
        if bytes > 0 {
            *self.files.entry(number).or_default() += bytes;
        }
    }

    /// Forgets the files that do not count.
    pub(super) fn retain(&mut self, runs: &OpenRuns) {
        self.files.retain(|&number, _| runs.file(number).is_some());
    }
}

/// What of `bytes` falls to `part` of `all`.
pub(super) fn share(bytes: u64, part: u64, all: u64) -> u64 {
    (u128::from(bytes) * u128::from(part.min(all)) / u128::from(all.max(1))) as u64
}
