//! What of the runs has expired, by some records of each file that are read.
//!
//! Owns the estimate. Promises that a file is read for it once, and only one in which something expires: what its records say of the time holds until it goes. It is kept in memory alone.
//! Must not know what is done about it.
//!
//! Nobody tells of a row below that its time has come: the sweep of expired rows knows the log. Unless it is garbage like any other, a table of rows that expire, each key written once, fills what
//! sorted tables may take with rows that nobody can read.

use std::collections::{BTreeMap, BTreeSet};

use hedgerow_device::Random;
use hedgerow_row::schema::body::is_past;

use super::garbage::{records_of, share};
use super::{OpenRange, OpenRun, OpenRuns};
use crate::log::format::RecordKind;
use crate::sst::Sst;

/// So many records of a file are read: a twentieth more or less of them may have expired than is thought.
const SAMPLED: u64 = 96;
/// Files that are read at one look: tens of ms of a slow disk.
const FILES_AT_ONCE: usize = 4;

/// Of one file, when how many of its bytes expire.
#[derive(Debug, Default)]
struct Sample(Vec<(u64, u64)>);

impl Sample {
    fn of(run: &OpenRun, sst: &Sst) -> Sample {
        let mut sample = Sample::default();
        let (mut random, all) = (Random::from_seed(sst.id().number), sst.counts().records().max(1));
        for of_table in sst.tables().iter().filter(|of_table| of_table.expires) {
            let count = (SAMPLED * of_table.counts.records()).div_ceil(all);
            let records = records_of(run, (sst, of_table.table), count, &mut random);
            let read: u64 = records.iter().map(|found| found.record().record_bytes() as u64).sum();
            for found in records {
                let record = found.record();
                if let (RecordKind::Row, Some(at_ms)) = (record.kind(), record.expires_at_ms()) {
                    let bytes = share(of_table.counts.bytes, record.record_bytes() as u64, read);
                    sample.0.push((at_ms, bytes));
                }
            }
        }
        sample
    }

    fn expired(&self, now_ms: u64) -> u64 {
        let past = self.0.iter().filter(|(at_ms, _)| is_past(Some(*at_ms), now_ms));
        past.map(|(_, bytes)| bytes).sum()
    }
}

/// Bytes of rows in each file that have expired.
#[derive(Debug, Default)]
pub(super) struct Expired {
    files: BTreeMap<u64, Sample>,
}

impl Expired {
    /// Files of which nothing is known, with a run that each is in; not more than are read at one look.
    pub(super) fn unknown<'r>(&self, runs: &'r OpenRuns) -> Vec<(&'r OpenRun, &'r Sst)> {
        let expires = |sst: &Sst| sst.tables().iter().any(|of_table| of_table.expires);
        let ranges = runs.runs.iter().flat_map(|run| run.ranges.iter().map(move |range| (run, &range.sst)));
        let mut seen = BTreeSet::new();
        let unknown = ranges.filter(|(_, sst)| {
            let number = sst.id().number;
            expires(sst) && !self.files.contains_key(&number) && seen.insert(number)
        });
        unknown.take(FILES_AT_ONCE).collect()
    }

    /// Keeps what was read of files, and forgets those that do not count.
    pub(super) fn take_in(&mut self, read: ReadExpiries, runs: &OpenRuns) {
        self.files.retain(|&number, _| runs.file(number).is_some());
        self.files.extend(read.0);
    }

    /// Of a range of a file.
    pub(super) fn of(&self, range: &OpenRange, now_ms: u64) -> u64 {
        let expired = self.files.get(&range.sst.id().number).map_or(0, |sample| sample.expired(now_ms));
        share(expired, range.bytes(), range.sst.counts().bytes)
    }
}

/// What was read of files.
pub(super) struct ReadExpiries(Vec<(u64, Sample)>);

impl ReadExpiries {
    /// Reads some records of each. What cannot be read is passed over: a merge will say so.
    pub(super) fn of(files: &[(&OpenRun, &Sst)]) -> ReadExpiries {
        ReadExpiries(files.iter().map(|(run, sst)| (sst.id().number, Sample::of(run, sst))).collect())
    }
}
