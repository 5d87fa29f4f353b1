//! What of the runs is thought to be garbage, which costs no read to know.
//!
//! Owns the estimate. Promises that it forgets a file with the file, and that what a merge has taken off is not counted again. It is kept in memory alone: for a store that was opened
//! some records of each run are read to make it anew. Must not know what is done about garbage.
//!
//! Of a new run some keys, [`SAMPLED`] or more, are looked for in the filters of older ones. The first that says yes has a row that nobody needs any more; now and then it is mistaken, and so many
//! are taken off as it is expected to be. Of a row under a delta as many bytes are garbage as the delta has: the rest of it is *covered*. To merge such rows is to write all of them for a
//! field each, and not to merge them is a block more to be read for each delta, so what is covered counts by how much is read ([`CoveredShare`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hedgerow_device::Random;

use super::{OpenRange, OpenRun, OpenRuns};
use crate::log::format::RecordKind;
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

/// So much of what is covered counts as garbage, in percent: where nobody reads what is below, and where somebody does.
const COVERED_PERCENT: [u64; 2] = [10, 100];
/// It changes by so much, so often: whoever began to read, or to write, finds runs merged for what was there before, and is not to wait for all of the difference.
const COVERED_STEP: u64 = 5;
const COVERED_TICK_NS: u64 = 1_000_000_000;
/// Somebody reads if that is one look below for so many writes, or more.
const WRITES_A_LOOK_MAX: u64 = 8;

/// How much of what is covered by deltas counts as garbage.
#[derive(Debug)]
pub(super) struct CoveredShare {
    percent: u64,
    /// When that was last looked at, and the looks and the writes until then.
    seen: (u64, [u64; 2]),
}

impl Default for CoveredShare {
    fn default() -> CoveredShare {
        CoveredShare { percent: COVERED_PERCENT[1], seen: (0, [0; 2]) }
    }
}

impl CoveredShare {
    /// In percent, when so many looks below and writes were made since the store was opened.
    pub(super) fn percent(&mut self, now_ns: u64, [looks, writes]: [u64; 2]) -> u64 {
        let (at_ns, [looks_then, writes_then]) = self.seen;
        if now_ns.saturating_sub(at_ns) >= COVERED_TICK_NS {
            let (looks_since, writes_since) =
                (looks - looks_then.min(looks), writes - writes_then.min(writes));
            let is_read = looks_since.saturating_mul(WRITES_A_LOOK_MAX) >= writes_since;
            let [least, most] = COVERED_PERCENT;
            self.percent = match is_read {
                true => (self.percent + COVERED_STEP).min(most),
                false => self.percent.saturating_sub(COVERED_STEP).max(least),
            };
            self.seen = (now_ns, [looks, writes]);
        }
        self.percent
    }
}

/// What newer runs replace in a file, or in a part of one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReplacedBytes {
    /// Nobody needs them.
    obsolete: u64,
    /// Of rows under deltas: what these do not replace.
    covered: u64,
}

impl ReplacedBytes {
    fn is_none(self) -> bool {
        self == ReplacedBytes::default()
    }

    /// What counts as garbage if so much of what is covered does.
    pub(super) fn garbage(self, covered_percent: u64) -> u64 {
        self.obsolete + self.covered * covered_percent / 100
    }

    /// What falls to `part` of `all`.
    pub(super) fn share(self, part: u64, all: u64) -> ReplacedBytes {
        let ReplacedBytes { obsolete, covered } = self;
        ReplacedBytes { obsolete: share(obsolete, part, all), covered: share(covered, part, all) }
    }

    pub(super) fn plus(self, other: ReplacedBytes) -> ReplacedBytes {
        ReplacedBytes { obsolete: self.obsolete + other.obsolete, covered: self.covered + other.covered }
    }

    /// Without so many bytes, as far as there are so many.
    pub(super) fn less(self, bytes: u64) -> ReplacedBytes {
        let rest = bytes.saturating_sub(self.obsolete);
        let [obsolete, covered] =
            [(self.obsolete, bytes), (self.covered, rest)].map(|(of, less)| of.saturating_sub(less));
        ReplacedBytes { obsolete, covered }
    }

    fn without(self, part: ReplacedBytes) -> ReplacedBytes {
        let ReplacedBytes { obsolete, covered } = part;
        ReplacedBytes { obsolete: self.obsolete - obsolete, covered: self.covered - covered }
    }
}

/// What the filter of a file said of sampled keys.
#[derive(Debug, Default, Clone, Copy)]
struct Answers {
    asked: u64,
    held: u64,
    /// Of those that are held, how many have a delta, and the bytes of all of these.
    covered: u64,
    delta_bytes: u64,
}

impl Answers {
    /// What is replaced in a file of so many records and bytes, of which each key that was asked about stands for `one_in`.
    fn replaced(&self, one_in: u64, records: u64, bytes: u64) -> ReplacedBytes {
        let sure = self.held.saturating_sub(self.asked / MISTAKEN_ONE_IN);
        let all = sure * one_in * bytes / records.max(1);
        let under_deltas = share(all, self.covered, self.held);
        let of_deltas = share(self.delta_bytes * one_in, sure, self.held).min(under_deltas);
        ReplacedBytes { obsolete: all - under_deltas + of_deltas, covered: under_deltas - of_deltas }
    }
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

    /// A record was written: of a delta with so many bytes, or of what replaces all that there is.
    pub(super) fn count(&mut self, table: u32, key: &[u8], delta_bytes: Option<u64>) {
        self.records += 1;
        if self.records.is_multiple_of(self.one_in) && !self.runs.is_empty() {
            self.ask(&SstKey::new(table, key), delta_bytes);
        }
    }

    fn ask(&mut self, key: &SstKey, delta_bytes: Option<u64>) {
        for range in self.runs.runs[self.from..].iter().filter_map(|run| run.range_of(key.bytes())) {
            let answers = self.files.entry(range.sst.id().number).or_default();
            answers.asked += 1;
            if range.sst.may_hold(key) {
                answers.held += 1;
                answers.covered += u64::from(delta_bytes.is_some());
                answers.delta_bytes += delta_bytes.unwrap_or(0);
                // What replaces all that there is replaces what a delta only covered, too.
                if delta_bytes.is_some() || range.sst.counts().deltas == 0 {
                    return;
                }
            }
        }
    }

    /// Files, and what was replaced in each.
    fn replaced(&self) -> impl Iterator<Item = (u64, ReplacedBytes)> {
        self.files.iter().filter_map(|(&number, answers)| {
            let counts = self.runs.file(number)?.counts();
            Some((number, answers.replaced(self.one_in, counts.records(), counts.bytes)))
        })
    }
}

/// What newer runs replace in each file.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    files: BTreeMap<u64, ReplacedBytes>,
}

impl Replaced {
    /// A new run is there.
    pub(super) fn add(&mut self, sample: &ReplacedSample) {
        sample.replaced().for_each(|(number, replaced)| self.give(number, replaced));
    }

    /// What was estimated of others.
    pub(super) fn take_in(&mut self, other: Replaced) {
        other.files.into_iter().for_each(|(number, replaced)| self.give(number, replaced));
    }

    /// Of a range of a file.
    pub(super) fn of(&self, range: &OpenRange) -> ReplacedBytes {
        let replaced = self.files.get(&range.sst.id().number).copied().unwrap_or_default();
        replaced.share(range.bytes(), range.sst.counts().bytes)
    }

    /// Of `before`, a file's bytes that counted, `left` are left; what was replaced in the others.
    pub(super) fn take(&mut self, number: u64, left: u64, before: u64) -> ReplacedBytes {
        let Some(replaced) = self.files.get_mut(&number) else { return ReplacedBytes::default() };
        let kept = replaced.share(left, before);
        let taken = replaced.without(kept);
        *replaced = kept;
        taken
    }

    /// A merge that did not see all newer runs could not take so much off.
    pub(super) fn give(&mut self, number: u64, replaced: ReplacedBytes) {
        if !replaced.is_none() {
            let of_file = self.files.entry(number).or_default();
            *of_file = of_file.plus(replaced);
        }
    }

    /// Forgets the files that do not count.
    pub(super) fn retain(&mut self, runs: &OpenRuns) {
        self.files.retain(|&number, _| runs.file(number).is_some());
    }
}

/// What is said to, and asked of, whoever holds merges to what they may take, where records are read for an estimate.
pub(super) struct SamplePace<'p> {
    /// So many bytes were read.
    pub(super) took: &'p dyn Fn(u64),
    /// Whether to go on, which may take until what was read is paid.
    pub(super) goes_on: &'p dyn Fn() -> bool,
}

/// What newer runs replace in older ones, by records that are read: for a store that was opened. What cannot be read is passed over, and so is the rest once it is not to go on.
pub(super) fn estimate(runs: &Arc<OpenRuns>, pace: &SamplePace<'_>) -> Replaced {
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
                while left > 0 && (pace.goes_on)() {
                    let count = left.min(READ_TOGETHER);
                    let of = (&range.sst, of_table.table);
                    for found in records_of(run, of, count, (&mut random, pace)) {
                        let record = found.record();
                        let is_delta = record.kind() == RecordKind::Delta;
                        let delta_bytes = is_delta.then(|| record.body_len() as u64);
                        sample.ask(&SstKey::new(of_table.table, record.key()), delta_bytes);
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
    (random, pace): (&mut Random, &SamplePace<'_>),
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
    (pace.took)(reads.bytes_read());
    records
}

/// What of `bytes` falls to `part` of `all`.
pub(super) fn share(bytes: u64, part: u64, all: u64) -> u64 {
    (u128::from(bytes) * u128::from(part.min(all)) / u128::from(all.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_replaces_as_much_as_it_has_and_covers_the_rest_of_its_row() {
        // Of a thousand answers five are mistaken: a hundred rows of a thousand bytes, each for ten.
        let replaced = |covered, delta_bytes| {
            let answers = Answers { asked: 1_000, held: 105, covered, delta_bytes };
            let ReplacedBytes { obsolete, covered } = answers.replaced(10, 1_000, 1_000_000);
            (obsolete, covered)
        };
        assert_eq!(replaced(0, 0), (1_000_000, 0), "by rows");
        assert_eq!(replaced(105, 105 * 100), (100_000, 900_000), "by deltas of a hundred bytes");
        assert_eq!(replaced(21, 21 * 100), (820_000, 180_000), "one in five by a delta");
        assert_eq!(replaced(105, 105 * 5_000), (1_000_000, 0), "no more than there is");
        let all = ReplacedBytes { obsolete: 100, covered: 900 };
        assert_eq!([0, 10, 100].map(|percent| all.garbage(percent)), [100, 190, 1_000]);
        assert_eq!(
            (all.less(40).garbage(100), all.less(300).garbage(0), all.less(2_000)),
            (960, 0, ReplacedBytes::default())
        );
    }

    #[test]
    fn what_deltas_cover_counts_more_and_more_while_somebody_reads_and_less_while_nobody_does() {
        let (mut share, mut now_ns, mut made) = (CoveredShare::default(), 0, [0, 0]);
        let mut second = |looks, writes| {
            now_ns += COVERED_TICK_NS;
            made = [made[0] + looks, made[1] + writes];
            let percent = share.percent(now_ns, made);
            assert_eq!(
                share.percent(now_ns + COVERED_TICK_NS - 1, [0, u64::MAX]),
                percent,
                "a second has not gone by"
            );
            percent
        };
        assert_eq!(second(0, 1_000), 95);
        assert!((0..20).map(|_| second(124, 1_000)).is_sorted_by(|one, next| one >= next));
        assert_eq!(second(0, 1_000), 10, "it counts for something even so");
        assert_eq!(second(125, 1_000), 15);
        assert_eq!((0..20).map(|_| second(0, 0)).last(), Some(100), "nobody writes, and somebody may read");
        assert_eq!(second(5_000, 1), 100);
    }
}
