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

use super::garbage::{SamplePace, records_of, share};
use super::{OpenRange, OpenRun, OpenRuns};
use crate::log::format::RecordKind;
use crate::sst::Sst;

/// So many records of a file are read: a twentieth more or less of them may have expired than is thought.
const SAMPLED: u64 = 96;
/// What of a range has expired counts once it is one in so many of its bytes; where there is little room, in so many. Rows expire all the time, and for each of them nothing is written anew.
const COUNTS_FROM: [u64; 2] = [4, 16];
/// A file of which nothing could be read is looked at again after so long.
const UNREAD_PAUSE_MS: u64 = 10 * 60 * 1000;

/// Of one file, when how many of its bytes expire.
#[derive(Debug, Default)]
pub(super) struct Sample {
    expiries: Vec<(u64, u64)>,
    /// When nothing of it could be read.
    unread_at_ms: Option<u64>,
}

impl Sample {
    /// What cannot be read is passed over: a merge will say so.
    pub(super) fn of((run, sst): (&OpenRun, &Sst), now_ms: u64, pace: &SamplePace<'_>) -> Sample {
        let mut sample = Sample { unread_at_ms: Some(now_ms), ..Sample::default() };
        let (mut random, all) = (Random::from_seed(sst.id().number), sst.counts().records().max(1));
        for of_table in sst.tables().iter().filter(|of_table| of_table.expires) {
            let count = (SAMPLED * of_table.counts.records()).div_ceil(all);
            let records = records_of(run, (sst, of_table.table), count, (&mut random, pace));
            let read: u64 = records.iter().map(|found| found.record().record_bytes() as u64).sum();
            for found in records {
                let record = found.record();
                sample.unread_at_ms = None;
                if let (RecordKind::Row, Some(at_ms)) = (record.kind(), record.expires_at_ms()) {
                    let bytes = share(of_table.counts.bytes, record.record_bytes() as u64, read);
                    sample.expiries.push((at_ms, bytes));
                }
            }
        }
        sample
    }

    fn expired(&self, now_ms: u64) -> u64 {
        let past = self.expiries.iter().filter(|(at_ms, _)| is_past(Some(*at_ms), now_ms));
        past.map(|(_, bytes)| bytes).sum()
    }

    fn is_to_be_read(&self, now_ms: u64) -> bool {
        self.unread_at_ms.is_some_and(|at_ms| now_ms.abs_diff(at_ms) >= UNREAD_PAUSE_MS)
    }
}

/// Bytes of rows in each file that have expired.
#[derive(Debug, Default)]
pub(super) struct Expired {
    files: BTreeMap<u64, Sample>,
}

impl Expired {
    /// Files of which nothing is known, with a run that each is in.
    pub(super) fn unknown<'r>(&self, runs: &'r OpenRuns, now_ms: u64) -> Vec<(&'r OpenRun, &'r Sst)> {
        let expires = |sst: &Sst| sst.tables().iter().any(|of_table| of_table.expires);
        let is_known = |number| self.files.get(&number).is_some_and(|sample| !sample.is_to_be_read(now_ms));
        let ranges = runs.runs.iter().flat_map(|run| run.ranges.iter().map(move |range| (run, &range.sst)));
        let mut seen = BTreeSet::new();
        let unknown = ranges.filter(|(_, sst)| {
            let number = sst.id().number;
            expires(sst) && !is_known(number) && seen.insert(number)
        });
        unknown.collect()
    }

    /// Keeps what was read of a file, and forgets those that do not count.
    pub(super) fn take_in(&mut self, number: u64, sample: Sample, runs: &OpenRuns) {
        self.files.retain(|&number, _| runs.file(number).is_some());
        self.files.insert(number, sample);
    }

    /// What counts as garbage of a range of a file. What is written anew with less in it was not for that: each time some would have expired since.
    pub(super) fn counting(&self, range: &OpenRange, now_ms: u64, is_tight: bool) -> u64 {
        let expired = self.files.get(&range.sst.id().number).map_or(0, |sample| sample.expired(now_ms));
        let bytes = share(expired, range.bytes(), range.sst.counts().bytes);
        if bytes * COUNTS_FROM[usize::from(is_tight)] >= range.bytes() { bytes } else { 0 }
    }
}
