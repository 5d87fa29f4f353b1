//! Which sorted tables count, and for which keys.
//!
//! Owns [`SstVersion`]: runs, newest first, each of ranges in the order of their keys, and [`SstChange`], how one version becomes the next. Promises that the ranges of a run do
//! not overlap, and that an operation which does not fit is refused. Must not know files, nor how a version is kept.
//!
//! A run is named by a number that rises: of two runs the one with the higher number is newer, and what it says of a key counts. Merging runs puts
//! ranges into the oldest of them and takes from all of them what was merged, in one edit.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::{Error, Result};

/// A part of a sorted table that counts: a file, and the least and the greatest key of it (composite, both included).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileRange {
    pub(crate) number: u64,
    pub(crate) keys: [Box<[u8]>; 2],
}

/// One step from a version to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SstChange {
    /// The range counts, in the run of this number. The file may have ranges elsewhere.
    Add { run: u64, range: FileRange },
    /// No range of this run which is of this file counts any more.
    Remove { run: u64, number: u64 },
    /// Files and runs get these numbers next.
    Next { number: u64, run: u64 },
    /// Every record with a sequence up to this one was durable in the log: an older log is not the log of these files.
    Watermark { sequence: u64 },
    /// The store is a copy: these files are as another wrote them.
    Origin(FileOrigin),
    /// Of a file that counts in part, so many records of a table more are in none of its ranges.
    Taken(TakenRecords),
}

/// Records of a table that a file has, and that none of its ranges has any more: what counts of them is in another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TakenRecords {
    pub(crate) number: u64,
    pub(crate) table: u32,
    pub(crate) rows: u64,
    pub(crate) deltas: u64,
}

/// Files with numbers below `before`, and not below that of the origin before, were written by the store of this id, and carry it. A copy of a store has them byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileOrigin {
    pub(crate) before: u64,
    pub(crate) store: u128,
}

/// The store that wrote the file of this number, if not `own`.
pub(crate) fn store_of_file(origins: &[FileOrigin], number: u64, own: u128) -> u128 {
    origins.iter().find(|origin| number < origin.before).map_or(own, |origin| origin.store)
}

/// The ranges of a run, by their least keys.
type Run = BTreeMap<Box<[u8]>, FileRange>;

/// What counts at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SstVersion {
    runs: BTreeMap<u64, Run>,
    pub(crate) next_number: u64,
    pub(crate) next_run: u64,
    pub(crate) watermark: u64,
    /// In rising order. Of a copy of a copy there may be several.
    origins: Vec<FileOrigin>,
    /// Rows and deltas that were taken off files which still count, by the file's number and the table's.
    taken: BTreeMap<(u64, u32), [u64; 2]>,
}

impl SstVersion {
    /// The runs, newest first, and their ranges in the order of keys.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, impl Iterator<Item = &FileRange>)> {
        self.runs.iter().rev().map(|(&run, ranges)| (run, ranges.values()))
    }

    /// Who wrote which files, but for those that the store wrote itself.
    pub(crate) fn origins(&self) -> &[FileOrigin] {
        &self.origins
    }

    /// How many rows and how many deltas of a table the file of this number has that are in none of its ranges.
    pub(crate) fn taken_off(&self, number: u64, table: u32) -> [u64; 2] {
        self.taken.get(&(number, table)).copied().unwrap_or_default()
    }

    /// Whether nothing counts.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// What a copy of the store `source` begins with: of these files those that it keeps, beside a log in which all is durable up to `watermark`.
    pub(crate) fn of_copy(&self, source: u128, watermark: u64, keeps: impl Fn(u64) -> bool) -> SstVersion {
        let mut copy = SstVersion { watermark, ..self.clone() };
        copy.runs.values_mut().for_each(|ranges| ranges.retain(|_, range| keeps(range.number)));
        copy.runs.retain(|_, ranges| !ranges.is_empty());
        let numbers = copy.numbers();
        copy.taken.retain(|(number, _), _| numbers.contains(number));
        copy.origins.push(FileOrigin { before: self.next_number, store: source });
        // A store that is copied time and again keeps those alone that something is of.
        let mut from = 0;
        copy.origins.retain(|origin| {
            let is_used = numbers.range(from..origin.before).next().is_some();
            from = origin.before;
            is_used
        });
        copy
    }

    /// The version after these operations, all of them or none.
    pub(crate) fn after(&self, ops: &[SstChange]) -> Result<SstVersion> {
        let mut next = self.clone();
        ops.iter().try_for_each(|op| next.apply(op))?;
        // Not before the end: an edit takes a file off whole, and then adds what is left of it.
        if !next.taken.is_empty() {
            let numbers = next.numbers();
            next.taken.retain(|(number, _), _| numbers.contains(number));
        }
        Ok(next)
    }

    /// The files of which anything counts.
    fn numbers(&self) -> BTreeSet<u64> {
        self.runs.values().flat_map(BTreeMap::values).map(|range| range.number).collect()
    }

    fn apply(&mut self, op: &SstChange) -> Result<()> {
        match op {
            SstChange::Add { run, range } => self.add(*run, range),
            SstChange::Remove { run, number } => self.remove(*run, *number),
            SstChange::Next { number, run } if *number >= self.next_number && *run >= self.next_run => {
                (self.next_number, self.next_run) = (*number, *run);
                Ok(())
            }
            SstChange::Watermark { sequence } if *sequence >= self.watermark => {
                self.watermark = *sequence;
                Ok(())
            }
            SstChange::Origin(origin)
                if origin.before <= self.next_number
                    && self.origins.last().is_none_or(|last| last.before < origin.before) =>
            {
                self.origins.push(*origin);
                Ok(())
            }
            SstChange::Taken(TakenRecords { number, table, rows, deltas }) => {
                let taken = self.taken.entry((*number, *table)).or_default();
                *taken = [taken[0].saturating_add(*rows), taken[1].saturating_add(*deltas)];
                Ok(())
            }
            SstChange::Next { .. } | SstChange::Watermark { .. } | SstChange::Origin(_) => {
                Err(Error::corrupted(format!(
                    "an edit of the manifest goes back, to {op:?} from file {}, run {}, sequence {}",
                    self.next_number, self.next_run, self.watermark
                )))
            }
        }
    }

    fn add(&mut self, run: u64, range: &FileRange) -> Result<()> {
        let [least, greatest] = &range.keys;
        let ranges = self.runs.entry(run).or_default();
        let upto = (Bound::Unbounded, Bound::Included(&**greatest));
        let before = ranges.range::<[u8], _>(upto).next_back();
        let overlaps = before.is_some_and(|(_, before)| before.keys[1] >= *least);
        if overlaps || least > greatest || range.number >= self.next_number || run >= self.next_run {
            return Err(Error::corrupted(format!(
                "an edit of the manifest adds a range of file {} to run {run} that does not fit there",
                range.number
            )));
        }
        ranges.insert(least.clone(), range.clone());
        Ok(())
    }

    fn remove(&mut self, run: u64, number: u64) -> Result<()> {
        let ranges = self.runs.get_mut(&run);
        let before = ranges.as_ref().map_or(0, |ranges| ranges.len());
        let left = ranges.map_or(0, |ranges| {
            ranges.retain(|_, range| range.number != number);
            ranges.len()
        });
        if left == before {
            return Err(Error::corrupted(format!(
                "an edit of the manifest removes file {number} from run {run}, which does not have it"
            )));
        }
        if left == 0 {
            self.runs.remove(&run);
        }
        Ok(())
    }

    /// The operations that make this version of none.
    pub(crate) fn ops(&self) -> Vec<SstChange> {
        let next = SstChange::Next { number: self.next_number, run: self.next_run };
        let mut ops = vec![next, SstChange::Watermark { sequence: self.watermark }];
        ops.extend(self.origins.iter().copied().map(SstChange::Origin));
        for (&run, ranges) in &self.runs {
            ops.extend(ranges.values().map(|range| SstChange::Add { run, range: range.clone() }));
        }
        let taken = |(&(number, table), &[rows, deltas]): (&(u64, u32), &[u64; 2])| {
            SstChange::Taken(TakenRecords { number, table, rows, deltas })
        };
        ops.extend(self.taken.iter().map(taken));
        ops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn range(number: u64, least: &[u8], greatest: &[u8]) -> FileRange {
        FileRange { number, keys: [least.into(), greatest.into()] }
    }

    fn add(run: u64, range: FileRange) -> SstChange {
        SstChange::Add { run, range }
    }

    #[test]
    fn runs_are_newest_first_and_pieces_in_order() {
        let first = SstVersion::default()
            .after(&[
                SstChange::Next { number: 10, run: 3 },
                SstChange::Watermark { sequence: 77 },
                add(1, range(4, b"m", b"z")),
                add(1, range(3, b"a", b"f")),
                add(2, range(5, b"c", b"c")),
            ])
            .unwrap();
        let numbers = |version: &SstVersion| -> Vec<(u64, Vec<u64>)> {
            version.runs().map(|(run, ranges)| (run, ranges.map(|range| range.number).collect())).collect()
        };
        assert_eq!(numbers(&first), [(2, vec![5]), (1, vec![3, 4])]);
        assert_eq!(SstVersion::default().after(&first.ops()).unwrap(), first);
        // A merge of c to p: into the oldest run; what is left of its files stays.
        let merged = first
            .after(&[
                SstChange::Remove { run: 2, number: 5 },
                SstChange::Remove { run: 1, number: 3 },
                SstChange::Remove { run: 1, number: 4 },
                add(1, range(3, b"a", b"b")),
                add(1, range(6, b"c", b"p")),
                add(1, range(4, b"q", b"z")),
            ])
            .unwrap();
        assert_eq!(numbers(&merged), [(1, vec![3, 6, 4])]);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let there = [
            SstChange::Next { number: 10, run: 3 },
            SstChange::Watermark { sequence: 7 },
            add(1, range(3, b"f", b"m")),
        ];
        let version = SstVersion::default().after(&there).unwrap();
        for wrong in [
            add(1, range(4, b"m", b"n")),
            add(1, range(4, b"a", b"f")),
            add(1, range(4, b"a", b"z")),
            add(1, range(4, b"g", b"h")),
            add(1, range(4, b"z", b"y")),
            add(1, range(10, b"z", b"z")),
            add(3, range(4, b"z", b"z")),
            SstChange::Remove { run: 1, number: 4 },
            SstChange::Remove { run: 2, number: 3 },
            SstChange::Next { number: 9, run: 3 },
            SstChange::Next { number: 10, run: 2 },
            SstChange::Watermark { sequence: 6 },
            SstChange::Origin(FileOrigin { before: 11, store: 1 }),
        ] {
            let ops = [add(2, range(5, b"a", b"z")), wrong];
            assert_eq!(version.after(&ops).unwrap_err().kind(), ErrorKind::Corrupted, "{ops:?}");
        }
        version.after(&[add(1, range(4, b"mm", b"n")), add(1, range(4, b"a", b"ez"))]).unwrap();
    }

    #[test]
    fn a_copy_knows_who_wrote_what_it_has() {
        let origin = |before, store| FileOrigin { before, store };
        let source = SstVersion::default()
            .after(&[
                SstChange::Next { number: 10, run: 3 },
                SstChange::Watermark { sequence: 7 },
                add(1, range(3, b"f", b"m")),
                add(2, range(4, b"a", b"b")),
                add(2, range(5, b"c", b"d")),
            ])
            .unwrap();
        let copy = source.of_copy(100, 50, |number| number != 4);
        assert_eq!(copy.origins(), [origin(10, 100)]);
        assert_eq!((copy.watermark, copy.next_number, copy.next_run), (50, 10, 3));
        assert_eq!(copy.ops().len(), source.ops().len(), "a file less, and an origin");
        assert_eq!(SstVersion::default().after(&copy.ops()).unwrap(), copy);
        // The copy writes files of its own; a copy of it has some of both.
        let later = [SstChange::Next { number: 20, run: 5 }, add(4, range(12, b"a", b"z"))];
        let again = copy.after(&later).unwrap().of_copy(200, 60, |_| true);
        assert_eq!(again.origins(), [origin(10, 100), origin(20, 200)]);
        assert_eq!(SstVersion::default().after(&again.ops()).unwrap(), again);
        // Whose files are all gone is forgotten.
        assert_eq!(again.of_copy(300, 70, |number| number == 12).origins(), [origin(20, 200)]);
        let none = again.of_copy(300, 70, |_| false);
        assert!(none.is_empty() && none.origins().is_empty());
        let back = again.after(&[SstChange::Origin(origin(20, 300))]).unwrap_err();
        assert_eq!(back.kind(), ErrorKind::Corrupted);
    }
}
