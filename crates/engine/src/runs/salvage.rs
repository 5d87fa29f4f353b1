//! What is left of the runs of a damaged store.
//!
//! Owns [`RunsLeft`], which of the sorted tables can be opened, and [`LeftWalk`], the keys of a table that they have still. Promises for each key what counts of it as far as that can be told: nothing that a newer run
//! hides, and where a newer run has lost what it had, that this is said ([`LeftRow`]). Must not know slots, nor what becomes of the rows.
//!
//! The manifest says which files count, and which are newer. Without it every file in the directory is looked at, some of which a crash may have left there, and of a key the record with the
//! highest sequence is taken: then of no row it is sure that it was the newest.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::path::PathBuf;

use hedgerow_device::CapacityTier;

use super::FoundVersions;
use crate::log::Log;
use crate::log::format::RecordKind;
use crate::manifest::edits::{SstManifest, pair_in, store_of_copy};
use crate::manifest::version::{SstVersion, store_of_file};
use crate::sst::{
    BlockCache, FoundRecord, KeyGap, Sst, SstId, SstLeft, SstSalvage, after, composite_key, store_in_header,
};
use crate::{Error, ErrorKind, Result};

/// Blocks are read once, and not kept.
const CACHE_BYTES: u64 = 1 << 20;

/// A part of a file that counted.
#[derive(Debug)]
struct RangeLeft {
    /// Newer ones have higher numbers; 0 of all where that is not known.
    run: u64,
    /// Composite: from the first on, below the second.
    span: [Vec<u8>; 2],
    /// Or why it cannot be read.
    file: Result<Sst>,
}

/// What is left of the runs.
#[derive(Debug, Default)]
pub(crate) struct RunsLeft {
    ranges: Vec<RangeLeft>,
    /// Which files counted is not known.
    is_unsure: bool,
    /// What is wrong, each file once.
    pub(crate) damage: Vec<Error>,
}

impl RunsLeft {
    /// Opens what can be opened of the runs of the store that `log` is left of.
    ///
    /// # Errors
    /// `Invalid` if the store has sorted tables and their directory is not there; `Corrupted` if they are of another time than the log; `Version`; `Io`.
    pub(crate) fn open(log: &Log, directory: Option<&PathBuf>) -> Result<RunsLeft> {
        let root = log.root();
        let is_made_up = root.generation == 0;
        let tier = match directory.filter(|path| CapacityTier::is_there(path)) {
            Some(path) => CapacityTier::open_read_only(path)?,
            None if root.manifest == 0 => return Ok(RunsLeft::default()),
            None => return Err(no_directory(directory)),
        };
        let mut left = RunsLeft::default();
        let pair = match is_made_up {
            true => newest_pair(&tier)?,
            false => (root.manifest != 0).then_some((root.store_id, root.manifest)),
        };
        let files = tier.names()?.iter().filter_map(|name| SstId::number_in(name)).collect();
        match pair.map(|pair| (pair.0, SstManifest::read(&tier, pair))) {
            None if is_made_up => left.open_all(&tier, &files),
            None => {}
            Some((store, Ok(version))) => {
                if !is_made_up && version.watermark > root.watermark {
                    return Err(older_log(version.watermark, root.watermark));
                }
                left.open_named(&tier, store, &version, &files);
            }
            Some((_, Err(error))) if error.kind() == ErrorKind::Corrupted => {
                left.open_all(&tier, &files);
                // Nor is it known which files are missing.
                let span = [Vec::new(), vec![u8::MAX; 5]];
                left.ranges.push(RangeLeft { run: 0, span, file: Err(error.clone()) });
                left.damage.push(error);
                left.is_unsure = true;
            }
            Some((_, Err(error))) => return Err(error),
        }
        Ok(left)
    }

    fn open_named(&mut self, tier: &CapacityTier, store: u128, version: &SstVersion, files: &BTreeSet<u64>) {
        let (cache, mut opened) = (BlockCache::new(CACHE_BYTES), BTreeMap::new());
        for (run, ranges) in version.runs() {
            for range in ranges {
                let number = range.number;
                let file: &mut Result<Sst> = opened.entry(number).or_insert_with(|| {
                    let id = SstId { store: store_of_file(version.origins(), number, store), number };
                    match files.contains(&number) {
                        true => Sst::open(tier, id, &cache),
                        false => Err(missing(id)),
                    }
                });
                let span = [range.keys[0].to_vec(), after(&range.keys[1])];
                self.ranges.push(RangeLeft { run, span, file: file.clone() });
            }
        }
        self.damage.extend(opened.into_values().filter_map(Result::err));
    }

    /// Every file that there is, whoever's.
    fn open_all(&mut self, tier: &CapacityTier, files: &BTreeSet<u64>) {
        self.is_unsure |= !files.is_empty();
        let cache = BlockCache::new(CACHE_BYTES);
        for &number in files {
            let mut page = [0; 4096];
            let name = SstId { store: 0, number }.file_name();
            let read = tier.open_file(&name).and_then(|file| file.read_at(0, &mut page));
            let store = read.ok().and_then(|()| store_in_header(&page)).unwrap_or_default();
            let file = Sst::open(tier, SstId { store, number }, &cache);
            let span = match &file {
                Ok(sst) => [sst.keys()[0].to_vec(), after(&sst.keys()[1])],
                Err(error) => {
                    self.damage.push(error.clone());
                    [Vec::new(), vec![u8::MAX; 5]]
                }
            };
            self.ranges.push(RangeLeft { run: 0, span, file });
        }
    }

    /// The runs' numbers and files, those that cannot be read with why; each as often as it had parts that counted.
    pub(crate) fn files(&self) -> impl Iterator<Item = (u64, &Result<Sst>)> {
        self.ranges.iter().map(|range| (range.run, &range.file))
    }

    /// The tables that have something here, and how many rows and deltas.
    pub(crate) fn tables(&self) -> BTreeMap<u32, u64> {
        let (mut tables, mut seen) = (BTreeMap::new(), BTreeSet::new());
        for sst in self.ranges.iter().filter_map(|range| range.file.as_ref().ok()) {
            if seen.insert(sst.id().number) {
                for known in sst.tables() {
                    *tables.entry(known.table).or_default() += known.counts.rows + known.counts.deltas;
                }
            }
        }
        tables
    }

    /// Whether a table may have or have had something here.
    pub(crate) fn may_have(&self, table: u32) -> bool {
        self.is_unsure || self.ranges.iter().any(|range| range.of_table(table).is_some())
    }

    /// A walk over the keys of a table.
    pub(crate) fn walk(&self, table: u32) -> LeftWalk<'_> {
        let mut heads = BinaryHeap::new();
        for (source, range) in self.ranges.iter().enumerate() {
            heads.extend(range.of_table(table).map(|span| Head {
                at: span[0].clone(),
                source,
                next: HeadAt::Begin(span),
            }));
        }
        LeftWalk { left: self, table, heads, sources: BTreeMap::new(), gaps: Vec::new(), told: Vec::new() }
    }
}

impl RangeLeft {
    /// The part that a table's keys have of it.
    fn of_table(&self, table: u32) -> Option<[Vec<u8>; 2]> {
        let has = |sst: &Sst| sst.tables().iter().any(|known| known.table == table);
        if self.file.as_ref().is_ok_and(|sst| !has(sst)) {
            return None;
        }
        let end = table.checked_add(1).map_or_else(|| vec![u8::MAX; 5], |next| composite_key(next, &[]));
        let span = [composite_key(table, &[]).max(self.span[0].clone()), end.min(self.span[1].clone())];
        (span[0] < span[1]).then_some(span)
    }
}

/// What a source of a walk comes to next.
#[derive(Debug)]
enum HeadAt {
    /// It has not begun.
    Begin([Vec<u8>; 2]),
    Gap(KeyGap),
    Record(FoundRecord),
}

#[derive(Debug)]
struct Head {
    /// The key, composite.
    at: Vec<u8>,
    /// Among the ranges.
    source: usize,
    next: HeadAt,
}

impl Head {
    fn is_record(&self) -> bool {
        matches!(self.next, HeadAt::Record(_))
    }
}

/// The greatest comes first: the least key, and there what is no record.
impl Ord for Head {
    fn cmp(&self, other: &Head) -> Ordering {
        (&other.at, other.is_record(), other.source).cmp(&(&self.at, self.is_record(), self.source))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Head) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

/// What is left of a key.
#[derive(Debug, Default)]
pub(crate) struct LeftRow {
    pub(crate) found: FoundVersions,
    /// Something newer may be lost.
    pub(crate) is_doubtful: bool,
    /// What deltas here, or above, go over may be lost: something older is. (What of a newer run is lost makes them doubtful.)
    pub(crate) lacks_base: bool,
}

/// A walk over what is left of a table.
#[derive(Debug)]
pub(crate) struct LeftWalk<'l> {
    left: &'l RunsLeft,
    table: u32,
    heads: BinaryHeap<Head>,
    sources: BTreeMap<usize, SstSalvage>,
    /// Those that have begun, and their runs.
    gaps: Vec<(u64, KeyGap)>,
    /// Gaps that nobody was told of.
    told: Vec<KeyGap>,
}

impl LeftWalk<'_> {
    /// The next key below `end` that there is something of, or in all.
    pub(crate) fn next_below(&mut self, end: Option<&[u8]>) -> Option<(Vec<u8>, LeftRow)> {
        let end = end.map(|key| composite_key(self.table, key));
        loop {
            let head = self.heads.peek()?;
            if end.as_ref().is_some_and(|end| head.at >= *end) {
                return None;
            }
            if head.is_record() {
                let at = head.at.clone();
                return Some((at[4..].to_vec(), self.take(&at)));
            }
            self.step();
        }
    }

    /// What is left of this key, which is above all before.
    pub(crate) fn at(&mut self, key: &[u8]) -> LeftRow {
        let at = composite_key(self.table, key);
        while self.heads.peek().is_some_and(|head| head.at <= at && !head.is_record()) {
            self.step();
        }
        self.take(&at)
    }

    /// The gaps that the walk came to since it was asked last.
    pub(crate) fn take_gaps(&mut self) -> Vec<KeyGap> {
        std::mem::take(&mut self.told)
    }

    /// Has what comes first, which is no record or was taken, go on.
    fn step(&mut self) -> Option<FoundRecord> {
        let head = self.heads.pop()?;
        let range = &self.left.ranges[head.source];
        let mut record = None;
        match head.next {
            HeadAt::Begin(span) => match &range.file {
                Ok(sst) => drop(self.sources.insert(head.source, SstSalvage::new(sst, span))),
                Err(why) => {
                    let gap = KeyGap { keys: span, why: why.clone() };
                    let at = head.at;
                    self.heads.push(Head { at, source: head.source, next: HeadAt::Gap(gap) });
                    return None;
                }
            },
            HeadAt::Gap(gap) => {
                self.told.push(gap.clone());
                self.gaps.push((range.run, gap));
            }
            HeadAt::Record(found) => record = Some(found),
        }
        match self.sources.get_mut(&head.source).and_then(SstSalvage::next) {
            None => drop(self.sources.remove(&head.source)),
            Some(SstLeft::Gap(gap)) => {
                let at = gap.keys[0].clone();
                self.heads.push(Head { at, source: head.source, next: HeadAt::Gap(gap) });
            }
            Some(SstLeft::Record(next)) => {
                let (at, next) = (next.composite(), HeadAt::Record(next));
                self.heads.push(Head { at, source: head.source, next });
            }
        }
        record
    }

    /// What counts of a key, before which nothing but records of it is left.
    fn take(&mut self, at: &[u8]) -> LeftRow {
        let mut records: Vec<(u64, FoundRecord)> = Vec::new();
        while let Some(head) = self.heads.peek().filter(|head| *head.at == *at) {
            let run = self.left.ranges[head.source].run;
            records.extend(self.step().map(|record| (run, record)));
        }
        self.gaps.retain(|(_, gap)| *gap.keys[1] > *at);
        let is_row = |record: &FoundRecord| record.head().kind() != RecordKind::Delta;
        records.sort_by(|(a_run, a), (b_run, b)| {
            (b_run, b.sequence(), is_row(b)).cmp(&(a_run, a.sequence(), is_row(a)))
        });
        let mut row = LeftRow { is_doubtful: self.left.is_unsure, ..LeftRow::default() };
        let (mut goes_on, mut oldest) = (true, None);
        for (run, record) in records {
            if !goes_on {
                break;
            }
            row.is_doubtful |= self.gaps.iter().any(|(of, _)| *of > run);
            goes_on = row.found.push(record);
            oldest = Some(run);
        }
        let is_older = |(of, _): &(u64, KeyGap)| oldest.is_none_or(|oldest| *of < oldest);
        row.lacks_base = goes_on && (self.left.is_unsure || self.gaps.iter().any(is_older));
        row
    }
}

/// The newest pair of a manifest that can be read, for a store that lost its root, and the store that it is of.
fn newest_pair(tier: &CapacityTier) -> Result<Option<(u128, u64)>> {
    let mut pairs: Vec<(u64, String)> =
        tier.names()?.into_iter().filter_map(|name| Some((pair_in(&name)?, name))).collect();
    pairs.sort_unstable();
    for (pair, name) in pairs.into_iter().rev() {
        if let Some(store) = store_of_copy(tier, &name)? {
            return Ok(Some((store, pair)));
        }
    }
    Ok(None)
}

#[cold]
fn missing(id: SstId) -> Error {
    Error::corrupted(format!("the sorted table {}, which the manifest names, is missing", id.file_name()))
}

#[cold]
fn no_directory(directory: Option<&PathBuf>) -> Error {
    let place = directory.map_or_else(|| "their directory".to_owned(), |path| format!("{}", path.display()));
    Error::invalid(format!(
        "the store has rows in sorted tables, and {place} is not there: say where they are (--capacity); if they are lost, name an empty directory, and the rows of the log alone are repaired"
    ))
}

#[cold]
fn older_log(edit: u64, root: u64) -> Error {
    Error::corrupted(format!(
        "the sorted tables are of a later time (sequence {edit}) than the fast tier (sequence {root}), of which this is an older copy: put the right one back, or name an empty directory (--capacity), and the rows of the fast tier alone are repaired"
    ))
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use hedgerow_device::{CrashModel, CrashSim};

    use super::*;
    use crate::sst::{SstOptions, SstRecord, SstRecordKind, SstWriter};

    const TABLE: u32 = 7;

    /// A part of a run with a delta of `key`, if there is one, or one that cannot be read.
    fn range(tier: &CapacityTier, run: u64, key: Option<&[u8]>) -> RangeLeft {
        let file = key.ok_or_else(|| Error::corrupted("it is gone")).and_then(|key| {
            let mut writer = SstWriter::create(tier, SstId { store: 1, number: run }, SstOptions::default())?;
            let delta = SstRecord {
                kind: SstRecordKind::Delta,
                table: TABLE,
                key,
                schema_version: 1,
                sequence: run,
                expires_at_ms: None,
                has_field_expiries: false,
                body_bytes: 0,
            };
            writer.push(&delta, |_| ())?;
            writer.finish(&BlockCache::new(CACHE_BYTES))
        });
        RangeLeft { run, span: [composite_key(TABLE, b"a"), composite_key(TABLE, b"z")], file }
    }

    /// Of deltas with no row under them it is the older runs that may have lost one; of a newer run something newer may be lost.
    #[test]
    fn a_delta_lacks_what_older_runs_have_lost() {
        for (lost, is_doubtful, lacks_base) in [
            (&[3][..], false, true),
            (&[7], true, false),
            (&[5], true, false),
            (&[3, 7], true, true),
            (&[], false, false),
        ] {
            let sim = CrashSim::new(CrashModel::Pages, 1 << 20);
            let tier = CapacityTier::simulated(&sim);
            let deltas = [6, 4].map(|run| range(&tier, run, Some(b"key")));
            let ranges = lost.iter().map(|&run| range(&tier, run, None)).chain(deltas).collect();
            let left = RunsLeft { ranges, ..RunsLeft::default() };
            let (key, row) = left.walk(TABLE).next_below(None).unwrap();
            assert_eq!((&*key, row.found.records().len()), (&b"key"[..], 2));
            assert_eq!((row.is_doubtful, row.lacks_base), (is_doubtful, lacks_base), "{lost:?}");
            // Of what is in the log alone any run may have lost the row.
            let row = left.walk(TABLE).at(b"log");
            assert_eq!((row.is_doubtful, row.lacks_base), (false, !lost.is_empty()), "{lost:?}");
        }
    }
}
