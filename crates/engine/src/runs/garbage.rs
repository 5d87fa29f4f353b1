//! What of the runs is thought to be garbage, which costs no read to know.
//!
//! Owns the estimate. Promises that it forgets a file with the file, and that what a merge has taken off is not counted again. It is kept in memory alone: for a store that was opened
//! some records of each run are read to make it anew. Must not know what is done about garbage.
//!
//! Of a new run some keys, [`SAMPLED`] or more, are looked for in the filters of older ones. The first that says yes has a row that nobody needs any more; now and then it is mistaken, and so many
//! are taken off as it is expected to be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hedgerow_device::Random;

use super::{OpenRange, OpenRun, OpenRuns};
use crate::sst::{BlockReads, FoundRecord, Sst, SstKey, SstLook};

/// So many keys of a new run are asked about, as far as [`ONE_IN`] allows: each is a cache miss or two in every older run.
const SAMPLED: u64 = 2048;
const ONE_IN: [u64; 2] = [16, 512];
/// The same for the runs of a store that was opened.
const OPENED_ONE_IN: u64 = 64;
/// A filter says yes of so many keys that it does not hold to one.
const MISTAKEN_ONE_IN: u64 = 190;
/// So many records are read to make the estimate of a store that was opened, at most: seconds of a slow disk.
const READ_MAX: u64 = 1 << 15;
/// The blocks of so many are read together.
const READ_TOGETHER: u64 = 32;

/// What the filter of a file said of sampled keys.
#[derive(Debug, Default, Clone, Copy)]
struct Answers {
    asked: u64,
    held: u64,
}

/// What a new run replaces in older ones, as far as its records have come.
#[derive(Debug)]
pub(super) struct ReplacedSample {
    runs: Arc<OpenRuns>,
    /// The older ones begin at this place.
    from: usize,
    /// Each key that is asked about stands for so many.
    one_in: u64,
    records: u64,
    files: BTreeMap<u64, Answers>,
}

impl ReplacedSample {
    /// Of a run of so many `records`.
    pub(super) fn new(older: &Arc<OpenRuns>, records: usize) -> ReplacedSample {
        ReplacedSample::behind(older, 0, (records as u64 / SAMPLED).clamp(ONE_IN[0], ONE_IN[1]))
    }

    fn behind(runs: &Arc<OpenRuns>, from: usize, one_in: u64) -> ReplacedSample {
        ReplacedSample { runs: Arc::clone(runs), from, one_in, records: 0, files: BTreeMap::new() }
    }

    /// A record was written.
    pub(super) fn count(&mut self, table: u32, key: &[u8]) {
        self.records += 1;
        if self.records.is_multiple_of(self.one_in) && !self.runs.is_empty() {
            self.ask(&SstKey::new(table, key));
        }
    }

    fn ask(&mut self, key: &SstKey) {
        for range in self.runs.runs[self.from..].iter().filter_map(|run| run.range_of(key.bytes())) {
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
            let counts = self.runs.file(number)?.counts();
            let records = counts.rows + counts.deltas + counts.tombstones;
            let held = answers.held.saturating_sub(answers.asked / MISTAKEN_ONE_IN);
            Some((number, held * self.one_in * counts.bytes / records.max(1)))
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

    /// What was estimated of others.
    pub(super) fn take_in(&mut self, other: Replaced) {
        other.files.into_iter().for_each(|(number, bytes)| self.give(number, bytes));
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

/// What newer runs replace in older ones, by records that are read: for a store that was opened. What cannot be read is passed over, and so is the rest once `is_stopped`.
pub(super) fn estimate(runs: &Arc<OpenRuns>, is_stopped: &dyn Fn() -> bool) -> Replaced {
    let newer = runs.runs.split_last().map_or(&[][..], |(_, newer)| newer);
    let in_all: u64 =
        newer.iter().flat_map(|run| &run.ranges).map(|range| range.sst.counts().records()).sum();
    let one_in = OPENED_ONE_IN.max(in_all.div_ceil(READ_MAX));
    let (mut replaced, mut random) = (Replaced::default(), Random::from_seed(in_all));
    for (place, run) in newer.iter().enumerate() {
        let mut sample = ReplacedSample::behind(runs, place + 1, one_in);
        let mut files = BTreeSet::new();
        for range in run.ranges.iter().filter(|range| files.insert(range.sst.id().number)) {
            for of_table in range.sst.tables() {
                let mut left = of_table.counts.records() / one_in;
                while left > 0 && !is_stopped() {
                    let count = left.min(READ_TOGETHER);
                    for found in records_of(run, (&range.sst, of_table.table), count, &mut random) {
                        sample.ask(&SstKey::new(of_table.table, found.record().key()));
                    }
                    left -= count;
                }
            }
        }
        replaced.add(&sample);
    }
    replaced
}

/// Records of a table that a file has in a run, chosen at random; fewer than `count` where others of the file do not count, or cannot be read.
pub(super) fn records_of(
    run: &OpenRun,
    (sst, table): (&Sst, u32),
    count: u64,
    random: &mut Random,
) -> Vec<FoundRecord> {
    let (mut records, mut reads) = (Vec::new(), BlockReads::for_nobody());
    let mut chosen: Vec<Random> = (0..count).map(|_| Random::from_seed(random.next_u64())).collect();
    let counts = |found: &FoundRecord| {
        let key = SstKey::new(table, found.record().key());
        run.range_of(key.bytes()).is_some_and(|of| of.sst.id() == sst.id())
    };
    while !chosen.is_empty() {
        chosen.retain(|random| match sst.sample(table, &mut random.clone(), &mut reads) {
            Ok(SstLook::Found(found)) => {
                records.extend(Some(found).filter(counts));
                false
            }
            Ok(SstLook::Lacking) => true,
            Ok(SstLook::Absent) | Err(_) => false,
        });
        if !chosen.is_empty() {
            reads.run();
        }
    }
    records
}

/// What of `bytes` falls to `part` of `all`.
pub(super) fn share(bytes: u64, part: u64, all: u64) -> u64 {
    (u128::from(bytes) * u128::from(part.min(all)) / u128::from(all.max(1))) as u64
}
