//! Runs: the sorted tables that count, opened.
//!
//! Owns [`OpenRuns`], what counts at one moment; [`Runs`] has the present one (`runs/store.rs`). Promises that whoever loaded one may look into it for as long as it is held,
//! and that what is found of a key is what counts of it: deltas, newest first, down to the row. Must not know slots, the log, or what a record's body says.
//!
//! A run is a list of ranges in the order of their keys, each a file and the least and the greatest key of it that count. Of two runs the newer counts: what
//! it says of a key hides what older ones say, but for a delta, which goes over it.

mod store;

use std::collections::BTreeSet;
use std::sync::Arc;

use smallvec::SmallVec;
pub(crate) use store::{CapacityPlace, LoadingTable, Runs, RunsSettings};

use crate::Result;
use crate::log::format::RecordKind;
use crate::manifest::version::{FileRange, SstVersion};
use crate::sst::{FoundRecord, Sst, SstKey, SstTable};
use crate::sync::atomic::{AtomicU64, Ordering};

pub(crate) mod cursor;

/// A file and the keys of it that count.
#[derive(Debug, Clone)]
pub(crate) struct OpenRange {
    /// The least and the greatest, composite.
    pub(crate) keys: [Box<[u8]>; 2],
    pub(crate) sst: Sst,
}

impl OpenRange {
    fn of(range: &FileRange, sst: Sst) -> OpenRange {
        OpenRange { keys: range.keys.clone(), sst }
    }
}

/// A run, opened.
#[derive(Debug, Clone)]
pub(crate) struct OpenRun {
    /// Of two runs the one with the higher number is newer.
    pub(crate) number: u64,
    pub(crate) ranges: Box<[OpenRange]>,
    /// Nothing of it was there yet for who reads as of a sequence below this: rows that were loaded have their sequence from before others could see them.
    visible_from: Arc<AtomicU64>,
    /// Tables whose rows must be looked at before a delta goes over one, in order.
    seen_first: Box<[u32]>,
}

impl OpenRun {
    fn new(number: u64, ranges: Box<[OpenRange]>) -> OpenRun {
        let tables = ranges.iter().flat_map(|range| range.sst.tables());
        let seen_first: BTreeSet<u32> =
            tables.filter(|table| table.expires).map(|table| table.table).collect();
        OpenRun { number, ranges, visible_from: Arc::default(), seen_first: seen_first.into_iter().collect() }
    }

    /// Whether it was there as of the sequence `upto`.
    pub(crate) fn is_visible(&self, upto: u64) -> bool {
        self.visible_from.load(Ordering::Acquire) <= upto
    }

    /// The range that has the key, if any has.
    fn range_of(&self, key: &[u8]) -> Option<&OpenRange> {
        let at = self.ranges.partition_point(|range| *range.keys[1] < *key);
        self.ranges.get(at).filter(|range| *range.keys[0] <= *key)
    }
}

/// What the runs have of a key.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundVersions {
    records: SmallVec<[FoundRecord; 2]>,
}

impl FoundVersions {
    /// Deltas, newest first, and the row that they go over, if there is one. Nothing where there is no row, and no delta that would make one.
    pub(crate) fn records(&self) -> &[FoundRecord] {
        &self.records
    }

    /// Whether the last of them is a row.
    pub(crate) fn has_row(&self) -> bool {
        self.records.last().is_some_and(|last| last.record().kind() == RecordKind::Row)
    }

    /// Whether there is no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Takes in what an older run has. Whether what is older still goes with it.
    pub(crate) fn push(&mut self, older: FoundRecord) -> bool {
        let kind = older.record().kind();
        if kind != RecordKind::Tombstone {
            self.records.push(older);
        }
        kind == RecordKind::Delta
    }
}

/// What counts at one moment.
#[derive(Debug, Default)]
pub(crate) struct OpenRuns {
    /// Higher after each change that may change an answer.
    generation: u64,
    /// Newest first.
    runs: Arc<[OpenRun]>,
}

impl OpenRuns {
    /// What `version` says, of files that `open` opens.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn of(
        version: &SstVersion,
        generation: u64,
        mut open: impl FnMut(u64) -> Result<Sst>,
    ) -> Result<OpenRuns> {
        let mut runs = Vec::new();
        for (number, ranges) in version.runs() {
            let ranges: Result<Box<[OpenRange]>> =
                ranges.map(|range| Ok(OpenRange::of(range, open(range.number)?))).collect();
            runs.push(OpenRun::new(number, ranges?));
        }
        Ok(OpenRuns { generation, runs: runs.into() })
    }

    /// The files, each once for each run that has something of it.
    fn files(&self) -> impl Iterator<Item = &Sst> {
        self.runs.iter().flat_map(|run| {
            let of_new_file = |(n, range): &(usize, &OpenRange)| {
                run.ranges[..*n].iter().all(|before| before.sst.id() != range.sst.id())
            };
            run.ranges.iter().enumerate().filter(of_new_file).map(|(_, range)| &range.sst)
        })
    }

    /// The file of this number, if it counts.
    pub(crate) fn file(&self, number: u64) -> Option<&Sst> {
        self.files().find(|sst| sst.id().number == number)
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// What each file has of the table of this number.
    pub(crate) fn of_table(&self, table: u32) -> impl Iterator<Item = SstTable> {
        self.files().filter_map(move |sst| {
            let at = sst.tables().binary_search_by_key(&table, |known| known.table).ok()?;
            Some(sst.tables()[at])
        })
    }

    /// A number that rises with each change that may change an answer.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the rows of this table must be looked at before a delta goes over one: some expire.
    pub(crate) fn must_see_rows_of(&self, table: u32) -> bool {
        self.runs.iter().any(|run| run.seen_first.binary_search(&table).is_ok())
    }

    /// The runs, newest first.
    pub(crate) fn runs(&self) -> &[OpenRun] {
        &self.runs
    }

    /// Whether any file may hold the key: if not, surely none does. Costs no I/O.
    pub(crate) fn may_hold(&self, key: &SstKey) -> bool {
        self.runs.iter().any(|run| run.range_of(key.bytes()).is_some_and(|range| range.sst.may_hold(key)))
    }

    /// What counts of a key, as it was when the sequence `upto` was the last.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub(crate) fn find(&self, key: &SstKey, upto: u64) -> Result<FoundVersions> {
        let mut found = FoundVersions::default();
        let visible = self.runs.iter().filter(|run| run.is_visible(upto));
        for range in visible.filter_map(|run| run.range_of(key.bytes())) {
            let Some(record) = range.sst.get(key)? else { continue };
            if record.sequence() <= upto && !found.push(record) {
                break;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::{CapacityTier, CrashModel, CrashSim};

    use super::*;
    use crate::manifest::version::SstChange;
    use crate::sst::{BlockCache, SstId, SstOptions, SstRecord, SstRecordKind, SstWriter, composite_key};

    const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

    /// One file a run; of each key what `kind_of` says, with the run's number and the key's place as its sequence.
    fn file(tier: &CapacityTier, number: u64, kind_of: impl Fn(usize) -> Option<SstRecordKind>) -> FileRange {
        let id = SstId { store: 7, number };
        let mut writer = SstWriter::create(tier, id, SstOptions::default()).unwrap();
        for (place, key) in KEYS.iter().enumerate() {
            let Some(kind) = kind_of(place) else { continue };
            let record = SstRecord {
                kind,
                table: 1,
                key: key.as_bytes(),
                schema_version: 1,
                sequence: 100 * number + place as u64,
                expires_at_ms: None,
                has_field_expiries: false,
                body_bytes: 0,
            };
            writer.push(&record, |_| ()).unwrap();
        }
        drop(writer.finish(&BlockCache::new(1 << 20)).unwrap());
        let keys = ["a", "f"].map(|key| composite_key(1, key.as_bytes()).into());
        FileRange { number, keys }
    }

    #[test]
    fn newer_runs_hide_older_ones_and_deltas_go_over_them() {
        use SstRecordKind::{Delta, Row, Tombstone};
        let tier = CapacityTier::simulated(&CrashSim::new(CrashModel::Pages, 1 << 20));
        // Of a to f, oldest run first.
        let kinds = [
            [Some(Row), Some(Row), Some(Row), Some(Row), None, None],
            [None, Some(Delta), Some(Tombstone), Some(Row), Some(Delta), None],
            [None, Some(Delta), Some(Delta), Some(Delta), Some(Delta), Some(Tombstone)],
        ];
        let mut changes = vec![SstChange::Next { number: 10, run: 10 }];
        for (run, kinds) in (1..).zip(kinds) {
            changes.push(SstChange::Add { run, range: file(&tier, run, |place| kinds[place]) });
        }
        let version = SstVersion::default().after(&changes).unwrap();
        let cache = BlockCache::new(1 << 20);
        let open = |number| Sst::open(&tier, SstId { store: 7, number }, &cache);
        let runs = OpenRuns::of(&version, 1, open).unwrap();
        let found = |key: &str, upto| -> Vec<u64> {
            let found = runs.find(&SstKey::new(1, key.as_bytes()), upto).unwrap();
            found.records().iter().map(FoundRecord::sequence).collect()
        };
        let now = KEYS.map(|key| found(key, u64::MAX));
        let expected: [&[u64]; 6] = [&[100], &[301, 201, 101], &[302], &[303, 203], &[304, 204], &[]];
        assert_eq!(now, expected);
        assert_eq!(found("b", 299), [201, 101], "as it was");
        assert_eq!(found("b", 199), [101]);
        assert_eq!(found("c", 299), [0; 0], "deleted");
        assert_eq!(found("e", 203), [0; 0]);
        assert!(runs.may_hold(&SstKey::new(1, b"f")) && !runs.may_hold(&SstKey::new(2, b"a")));
        assert!(!runs.may_hold(&SstKey::new(1, b"g")) && found("g", u64::MAX).is_empty());
    }

    /// Of a file that has more, the keys of its range alone count.
    #[test]
    fn a_range_counts_for_its_keys_alone() {
        let tier = CapacityTier::simulated(&CrashSim::new(CrashModel::Pages, 1 << 20));
        let whole = file(&tier, 1, |_| Some(SstRecordKind::Row));
        let part = |least: &str, greatest: &str| FileRange {
            keys: [least, greatest].map(|key| composite_key(1, key.as_bytes()).into()),
            ..whole.clone()
        };
        let changes = [
            SstChange::Next { number: 10, run: 10 },
            SstChange::Add { run: 1, range: part("b", "c") },
            SstChange::Add { run: 1, range: part("e", "e") },
        ];
        let version = SstVersion::default().after(&changes).unwrap();
        let cache = BlockCache::new(1 << 20);
        let runs =
            OpenRuns::of(&version, 1, |number| Sst::open(&tier, SstId { store: 7, number }, &cache)).unwrap();
        let there = KEYS.map(|key| !runs.find(&SstKey::new(1, key.as_bytes()), 999).unwrap().is_empty());
        assert_eq!(there, [false, true, true, false, true, false]);
        assert!(!runs.may_hold(&SstKey::new(1, b"d")));
    }
}
