//! Looking at what lies below the index in memory: groups, the saved index, sorted tables.
//!
//! Owns what is told of it. Promises that what cannot be read is told beside what can, and that nothing is changed. Must not know how it is shown.

use std::collections::BTreeSet;

use super::{RunsInfo, SortedTableInfo, SortedTablePart, View};
use crate::Result;
use crate::db::saved_index::look::{SavedIndexInfo, look};
use crate::runs::merging::look::{RangeGarbage, WeighedJob};
use crate::sst::Sst;

/// What merges of sorted tables would find and do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergesInfo {
    /// What of each entry of [`RunsInfo::ranges`] is garbage, in the same order. It is an estimate, for which some records of each run are read.
    pub garbage: Vec<GarbageInfo>,
    /// So many runs there may be before some are merged.
    pub runs_max: usize,
    /// So much of all may be garbage, in percent: while somebody writes, and while nobody does.
    pub garbage_percent_max: [u64; 2],
    /// What is merged next, while somebody writes and while nobody does, by a store that has room for it.
    pub next: [Option<MergeInfo>; 2],
}

/// Bytes of records, before they were compressed, that are thought to be needed by nobody.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GarbageInfo {
    /// Of rows that newer runs replace.
    pub replaced: u64,
    /// Of tables that are gone.
    pub gone: u64,
    /// Of rows that have expired.
    pub expired: u64,
    /// Of what does not count any more of a file that does.
    pub trimmed: u64,
}

/// A merge of sorted tables.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeInfo {
    /// The runs, newest first.
    pub runs: Vec<u64>,
    /// Which keys of them, each behind its table's id (big-endian), if not all: then it is for their garbage, and else because there are too many runs.
    pub keys: Option<[Vec<u8>; 2]>,
    /// Bytes of records that are read for it, about.
    pub bytes: u64,
}

impl GarbageInfo {
    fn of(range: RangeGarbage) -> GarbageInfo {
        let RangeGarbage { replaced, gone, expired, trimmed } = range;
        GarbageInfo { replaced, gone, expired, trimmed }
    }

    /// All of it.
    pub fn bytes(&self) -> u64 {
        self.replaced + self.gone + self.expired + self.trimmed
    }
}

impl MergeInfo {
    fn of(WeighedJob { job, bytes }: WeighedJob) -> MergeInfo {
        MergeInfo { keys: job.upto.map(|upto| [job.from, upto]), runs: job.runs, bytes }
    }
}

impl SortedTableInfo {
    fn of(run: u64, sst: &Sst, keys: [&[u8]; 2]) -> Result<SortedTableInfo> {
        let counts = sst.counts();
        Ok(SortedTableInfo {
            run,
            file: sst.id().file_name(),
            bytes: sst.file_bytes()?,
            blocks: sst.data_blocks().ok(),
            filter_bytes: sst.filter_bytes(),
            rows: counts.rows,
            deltas: counts.deltas,
            tombstones: counts.tombstones,
            tables: sst.tables().iter().map(SortedTablePart::of).collect(),
            keys: keys.map(<[u8]>::to_vec),
        })
    }
}

impl View {
    /// The index that was saved when the store was closed, and the groups of keys that it leads to. Their bytes are all read, and verified.
    pub fn saved_index(&self) -> SavedIndexInfo {
        look(&self.engine.log, &self.engine.catalog, self.found.clean)
    }

    /// The sorted tables; of a damaged store those that can be opened.
    ///
    /// # Errors
    /// `Io`.
    pub fn runs(&self) -> Result<RunsInfo> {
        let runs = &self.engine.runs;
        let (mut ranges, mut unreadable) = (Vec::new(), Vec::new());
        for run in runs.current().runs() {
            for range in &run.ranges {
                let keys = range.keys.each_ref().map(|key| &**key);
                ranges.push(SortedTableInfo::of(run.number, &range.sst, keys)?);
            }
        }
        // The engine has none where one is damaged.
        let (mut seen, is_damaged) = (BTreeSet::new(), ranges.is_empty());
        for (run, file) in self.left.files().filter(|_| is_damaged) {
            match file {
                Ok(sst) if seen.insert((run, sst.id().number)) => {
                    let keys = sst.keys().each_ref().map(|key| &**key);
                    ranges.push(SortedTableInfo::of(run, sst, keys)?);
                }
                Ok(_) => {}
                Err(error) => unreadable.push(error.to_string()),
            }
        }
        unreadable.dedup();
        Ok(RunsInfo {
            manifest: self.engine.log.root().manifest,
            watermark: runs.watermark().unwrap_or(0),
            ranges,
            left_over: runs.left_over(&self.engine.log)?,
            unreadable,
        })
    }

    /// What merges of the sorted tables would find and do next. Nothing of a damaged store: none are merged there.
    pub fn merges(&self) -> MergesInfo {
        let limits = self.engine.merge_limits_at_first();
        let (garbage, next) = self.engine.runs.look_at_merges(&self.engine.tables_for_merge(), limits);
        MergesInfo {
            garbage: garbage.into_iter().flatten().map(GarbageInfo::of).collect(),
            runs_max: limits[0].runs_max,
            garbage_percent_max: limits.map(|limits| limits.garbage_percent_max),
            next: next.map(|job| job.map(MergeInfo::of)),
        }
    }
}
