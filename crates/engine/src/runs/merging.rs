//! Merging runs: what several of them say of a key, one says from then on.
//!
//! Owns one step of a merge, a slice ([`Runs::merge_slice`]), and its output. Promises that a merge changes no answer: whoever looks, as of now or by a live snapshot, finds of each key what
//! he would have found before; that it counts whole or not at all; and that neither memory nor any lock depends on how much is merged. Must not know why runs are merged, nor what
//! is in the log.
//!
//! A slice is a range of keys of runs that are next to one another in age. What counts there is written to a file, then **one** edit puts that file into the oldest of
//! these runs, and takes the range from all of them; what is left of their files counts as it did. So each step is whole, and needs room for one file.
//!
//! * The newest record of a key wins. Deltas go over the row below them, under the sequence of the newest: to merge is not to change. Where there is no row among the runs,
//!   and an older run may have something of the key, they become one delta; else a row.
//! * A tombstone, or a row that has expired, goes where no older run may have anything of its key. Else it stays, as a tombstone: it hides something.
//! * Of tables that are gone nothing is kept.
//!
//! **What is not written.** A file that has keys which no other of these runs has changes its run by an edit alone, as it is: where rows come in the order of their keys, that is nearly all
//! (RocksDB's *trivial move*). It is written anew all the same if it is small, for else small files would never become fewer; if most of it was trimmed off, for it keeps its room until then; and if
//! a merge may take something off it: tombstones, rows that expire, or those of tables that are gone.
//!
//! **Snapshots** need no versions here: nothing is in runs that is younger than the oldest of them, but for rows that were loaded. A run which a live snapshot does not
//! see is merged with no other.
//!
//! **The generation** does not rise, for no answer changes; whoever walks runs looks whether they are the same.

mod estimates;
pub(crate) mod look;
mod merge_store;
mod policy;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, binary_heap::PeekMut};
use std::sync::Arc;

use hedgerow_row::schema::body::{DeltaBody, RowBody, is_past};
use hedgerow_row::schema::fold::DeltaFold;
use hedgerow_row::schema::merge::MergePlan;
use hedgerow_row::schema::table::TableSchema;
use smallvec::SmallVec;

use self::merge_store::Looks;
pub(crate) use self::merge_store::MergeStore;
pub(crate) use self::policy::MergeLimits;
use self::policy::{Choice, RangeWeight, RunWeight, WrittenAnew, backlog, choose, room_making};
use super::cursor::{KeySpan, RunWalk, successor};
use super::garbage::{ReplacedBytes, share};
use super::store::{TARGET_BYTES, Trimmed};
use super::{OpenRange, OpenRun, OpenRuns, RunWriter, Runs};
use crate::log::Log;
use crate::log::format::{FLAG_FIELD_EXPIRY, Record, RecordKind};
use crate::manifest::version::{FileRange, TakenRecords};
use crate::sst::{FoundRecord, Sst, SstCursor, SstKey, SstRecord, SstRecordKind, WalkBlocks, composite_key};
use crate::{Error, ErrorKind, Result};

/// A slice ends once so many bytes of records were read for it, however few were written.
const READ_BYTES_MAX: u64 = 8 * TARGET_BYTES;
/// A file of which fewer bytes count than one in so many of those that a file has is written anew, with what lies beside it.
const HANDED_DOWN_ONE_IN: u64 = 4;
/// No more change their run by one edit.
const HANDED_DOWN_MAX: usize = 64;
/// A tombstone takes so many bytes, about.
const TOMBSTONE_BYTES: u64 = 96;

/// What is read here is read once.
fn blocks() -> WalkBlocks<'static> {
    WalkBlocks::Disk { keeps: false }
}

/// What is to be merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MergeJob {
    /// Numbers of runs, newest first. No other run is between them.
    pub(crate) runs: Vec<u64>,
    /// What is left of it begins at this key (composite).
    pub(crate) from: Vec<u8>,
    /// And ends with this one, if not with the last that is not in the oldest of them alone.
    pub(crate) upto: Option<Vec<u8>>,
}

/// What became of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merged {
    /// It counts.
    Slice,
    /// There is nothing left to be merged.
    Nothing,
    /// Some of the runs cannot be merged now: a live snapshot does not see all of them, a table of theirs is being loaded, or one has a damaged file.
    NotNow,
    /// A file that was to be written anew alone did not fit. It is not tried again before there is more room, and another may fit.
    LacksRoom,
    /// The store is being closed.
    Stopped,
}

/// The runs of a slice, and its keys.
struct Slice<'r> {
    runs: &'r OpenRuns,
    /// Places of the runs, newest first.
    inputs: std::ops::Range<usize>,
    /// Composite, both included.
    keys: [Vec<u8>; 2],
    /// If there are any, nothing is written: these go to the oldest run as they are. Places of their runs, and they.
    handed_down: Vec<(usize, &'r OpenRange)>,
}

/// Ranges whose keys meet, and those of no other do.
struct Cluster<'r> {
    /// Composite, both included.
    keys: [&'r [u8]; 2],
    /// If it is one range alone: the place of its run among the inputs, and it.
    alone: Option<(usize, &'r OpenRange)>,
}

/// What runs have from a key on, by clusters in the order of keys.
fn clusters<'r>(inputs: &'r [OpenRun], from: &[u8]) -> Vec<Cluster<'r>> {
    let of_run = |(at, run): (usize, &'r OpenRun)| run.ranges.iter().map(move |range| (at, range));
    let mut all: Vec<(usize, &OpenRange)> = inputs.iter().enumerate().flat_map(of_run).collect();
    all.retain(|(_, range)| *range.keys[1] >= *from);
    all.sort_unstable_by(|(_, one), (_, other)| one.keys[0].cmp(&other.keys[0]));
    let mut clusters: Vec<Cluster<'_>> = Vec::new();
    for (at, range) in all {
        let [least, greatest] = range.keys.each_ref().map(|key| &**key);
        match clusters.last_mut().filter(|last| least <= last.keys[1]) {
            Some(last) => (last.keys[1], last.alone) = (last.keys[1].max(greatest), None),
            None => clusters.push(Cluster { keys: [least, greatest], alone: Some((at, range)) }),
        }
    }
    clusters
}

/// Whether most of a file counts by this range: it is not written only to give back what was trimmed.
fn is_mostly_there(range: &OpenRange) -> bool {
    2 * range.bytes() >= range.sst.counts().bytes
}

impl<'r> Slice<'r> {
    /// What of the job is left to be done of these runs, `keeps` of which tells the ranges of which a merge takes nothing off; of those with `large` bytes no more are written anew than have to be.
    fn of(
        job: &MergeJob,
        runs: &'r OpenRuns,
        (large, keeps): (u64, impl Fn(&OpenRange) -> bool),
    ) -> Option<Slice<'r>> {
        let is_of_job = |run: &OpenRun| job.runs.contains(&run.number);
        let first = runs.runs.iter().position(is_of_job)?;
        let inputs = first..first + runs.runs[first..].iter().take_while(|run| is_of_job(run)).count();
        let clusters = clusters(&runs.runs[inputs.clone()], &job.from);
        let from = |cluster: &Cluster<'_>| job.from.as_slice().max(cluster.keys[0]).to_vec();
        if let Some(upto) = job.upto.as_deref() {
            let within: Vec<&Cluster<'_>> =
                clusters.iter().take_while(|cluster| *cluster.keys[0] <= *upto).collect();
            let keys = [from(within.first()?), upto.min(within.last()?.keys[1]).to_vec()];
            return (keys[0] <= keys[1]).then(|| Slice { runs, inputs, keys, handed_down: Vec::new() });
        }
        let oldest = inputs.len() - 1;
        // What the oldest has beside the keys of the others stays where it is.
        let stays = |cluster: &Cluster<'_>| {
            cluster.alone.is_some_and(|(run, range)| run == oldest && is_mostly_there(range))
        };
        let is_large = |range: &OpenRange| range.bytes() >= large;
        let goes_down = |cluster: &Cluster<'r>| {
            let is_whole = |range: &OpenRange| *range.keys[0] >= *job.from && is_mostly_there(range);
            let goes_down = |range: &OpenRange| is_large(range) && is_whole(range) && keeps(range);
            cluster.alone.filter(|&(run, range)| run != oldest && goes_down(range))
        };
        let at = clusters.iter().position(|cluster| !stays(cluster))?;
        let left = &clusters[at..];
        let handed: Vec<(&Cluster<'_>, Option<(usize, &'r OpenRange)>)> = left
            .iter()
            .map(|cluster| (cluster, goes_down(cluster)))
            .take_while(|(cluster, goes_down)| goes_down.is_some() || stays(cluster))
            .filter(|(_, goes_down)| goes_down.is_some())
            .take(HANDED_DOWN_MAX)
            .collect();
        if let (Some((first, _)), Some((last, _))) = (handed.first(), handed.last()) {
            let keys = [from(first), last.keys[1].to_vec()];
            let handed_down = handed.iter().filter_map(|(_, range)| *range).collect();
            return Some(Slice { runs, inputs, keys, handed_down });
        }
        // Up to what need not be written.
        let is_apart = |cluster: &Cluster<'r>| {
            goes_down(cluster).is_some()
                || stays(cluster) && cluster.alone.is_some_and(|(_, range)| is_large(range))
        };
        let written = left.iter().take_while(|cluster| !is_apart(cluster));
        let last = written.filter(|cluster| !stays(cluster)).last()?;
        let keys = [from(&left[0]), last.keys[1].to_vec()];
        Some(Slice { runs, inputs, keys, handed_down: Vec::new() })
    }

    fn inputs(&self) -> &'r [OpenRun] {
        &self.runs.runs[self.inputs.clone()]
    }

    /// The oldest run of these, which has the outcome, and from which sequence on that is visible.
    fn output_run(&self) -> Option<(u64, u64)> {
        let visible_from = self.inputs().iter().map(OpenRun::visible_from).max();
        Some((self.inputs().last()?.number, visible_from?))
    }

    /// Those that are older than all of these.
    fn older(&self) -> &'r [OpenRun] {
        &self.runs.runs[self.inputs.end..]
    }

    /// The ranges that have keys of it.
    fn ranges(&self) -> impl Iterator<Item = &'r OpenRange> {
        let meets = |range: &&OpenRange| *range.keys[0] <= *self.keys[1] && *self.keys[0] <= *range.keys[1];
        self.inputs().iter().flat_map(|run| &run.ranges).filter(meets)
    }

    /// The files that have, or may have, this key.
    fn files_with(&self, key: &[u8]) -> Vec<u64> {
        let ranges = self.inputs().iter().filter_map(|run| run.range_of(key));
        ranges.map(|range| range.sst.id().number).collect()
    }

    /// What is left of the files that have keys of it.
    fn trimmed(&self) -> Result<Vec<Trimmed>, SliceFailure> {
        let mut trimmed = Vec::new();
        for run in self.inputs() {
            let mut files: BTreeMap<u64, (bool, Vec<FileRange>)> = BTreeMap::new();
            for range in &run.ranges {
                let number = range.sst.id().number;
                let (is_cut, left) = files.entry(number).or_default();
                let is_apart = *range.keys[1] < *self.keys[0] || *range.keys[0] > *self.keys[1];
                *is_cut |= !is_apart;
                match is_apart {
                    true => left.push(FileRange { number, keys: range.keys.clone() }),
                    false => left.extend(
                        self.left_of(range).map_err(|error| SliceFailure { error, files: vec![number] })?,
                    ),
                }
            }
            let cut = files.into_iter().filter(|(_, (is_cut, _))| *is_cut);
            trimmed.extend(cut.map(|(number, (_, left))| Trimmed {
                run: run.number,
                number,
                left,
                handed_down: Vec::new(),
            }));
        }
        Ok(trimmed)
    }

    /// What is left of files of which ranges are handed down.
    fn without_handed_down(&self) -> Vec<Trimmed> {
        let mut trimmed: Vec<Trimmed> = Vec::new();
        for &(at, range) in &self.handed_down {
            let (run, number) = (&self.inputs()[at], range.sst.id().number);
            if trimmed.iter().any(|known| (known.run, known.number) == (run.number, number)) {
                continue;
            }
            let goes = |range: &OpenRange| {
                self.handed_down.iter().any(|(of, handed)| *of == at && handed.keys == range.keys)
            };
            let of_file = run.ranges.iter().filter(|range| range.sst.id().number == number);
            let (handed, left): (Vec<&OpenRange>, Vec<&OpenRange>) = of_file.partition(|range| goes(range));
            let range_of = |range: &OpenRange| FileRange { number, keys: range.keys.clone() };
            let [handed_down, left] = [handed, left].map(|ranges| ranges.into_iter().map(range_of).collect());
            trimmed.push(Trimmed { run: run.number, number, left, handed_down });
        }
        trimmed
    }

    /// What is left of a range beside the keys of this slice: its ends are keys that are there.
    fn left_of(&self, range: &OpenRange) -> Result<SmallVec<[FileRange; 2]>> {
        let ([least, greatest], [first, last]) = (&range.keys, &self.keys);
        let (mut left, mut cursor) = (SmallVec::new(), SstCursor::new(&range.sst));
        let mut add = |keys: [Box<[u8]>; 2]| {
            if keys[0] <= keys[1] {
                left.push(FileRange { number: range.sst.id().number, keys });
            }
        };
        if **least < **first {
            cursor.seek_below(first, &mut blocks())?;
            if let Some(record) = cursor.record() {
                add([least.clone(), key_of(&record).into()]);
            }
        }
        if **greatest > **last {
            cursor.seek(&successor(last.clone()), &mut blocks())?;
            if let Some(record) = cursor.record() {
                add([key_of(&record).into(), greatest.clone()]);
            }
        }
        Ok(left)
    }
}

fn key_of(record: &FoundRecord) -> Vec<u8> {
    composite_key(record.table(), record.key())
}

/// The record that a run has next, and the walk that goes on behind it.
struct MergeHead {
    record: FoundRecord,
    /// Not inline: the heap moves its heads about.
    walk: Box<RunWalk>,
}

/// The greatest is the one whose record comes next: by table and key, and of one key the newest.
impl Ord for MergeHead {
    fn cmp(&self, other: &MergeHead) -> Ordering {
        let (one, two) = (self.record.head(), other.record.head());
        let by_key = (two.table(), two.key()).cmp(&(one.table(), one.key()));
        by_key.then_with(|| other.walk.run().cmp(&self.walk.run()))
    }
}

impl PartialOrd for MergeHead {
    fn partial_cmp(&self, other: &MergeHead) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MergeHead {
    fn eq(&self, other: &MergeHead) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for MergeHead {}

/// Why a slice came to nothing, and because of which files.
struct SliceFailure {
    error: Error,
    files: Vec<u64>,
}

impl From<Error> for SliceFailure {
    fn from(error: Error) -> SliceFailure {
        SliceFailure { error, files: Vec::new() }
    }
}

/// What some runs have of one key, newest first: all deltas, and what is under them.
type KeyVersions = SmallVec<[FoundRecord; 4]>;

/// A walk over the keys of a slice.
struct MergeWalk<'r> {
    runs: &'r OpenRuns,
    span: KeySpan,
    heads: BinaryHeap<MergeHead>,
    /// Bytes of the records that were met.
    read_bytes: u64,
    /// How many rows and deltas that was, by the number of the file and that of the table.
    read: BTreeMap<(u64, u32), [u64; 2]>,
}

impl<'r> MergeWalk<'r> {
    fn begin(slice: &Slice<'r>) -> Result<MergeWalk<'r>, SliceFailure> {
        let [least, greatest] = slice.keys.clone();
        let span = KeySpan::forward(least, successor(greatest));
        let mut walk = MergeWalk {
            runs: slice.runs,
            span,
            heads: BinaryHeap::new(),
            read_bytes: 0,
            read: BTreeMap::new(),
        };
        for run in slice.inputs.clone() {
            let mut of_run = RunWalk::new(run, &walk.runs.runs[run], &walk.span);
            if let Some(record) = MergeWalk::next_of(slice.runs, &walk.span, &mut of_run)? {
                walk.heads.push(MergeHead { record, walk: Box::new(of_run) });
            }
        }
        Ok(walk)
    }

    /// The next record of one of the runs.
    fn next_of(
        runs: &OpenRuns,
        span: &KeySpan,
        walk: &mut RunWalk,
    ) -> Result<Option<FoundRecord>, SliceFailure> {
        let run = &runs.runs[walk.run()];
        let next = walk.next(run, span, &mut blocks());
        next.map_err(|error| SliceFailure { error, files: walk.file(run).into_iter().collect() })
    }

    /// What there is of the next key; nothing behind the last.
    fn next_key(&mut self) -> Result<KeyVersions, SliceFailure> {
        let mut versions = KeyVersions::new();
        let Some(first) = self.heads.peek().map(|head| head.record.clone()) else { return Ok(versions) };
        let (runs, span) = (self.runs, &self.span);
        let mut is_whole = false;
        while let Some(mut head) = self.heads.peek_mut()
            && (head.record.table(), head.record.key()) == (first.table(), first.key())
        {
            let MergeHead { record, walk } = &mut *head;
            let file = walk.file(&runs.runs[walk.run()]);
            let record = match MergeWalk::next_of(runs, span, walk)? {
                Some(next) => std::mem::replace(record, next),
                None => PeekMut::pop(head).record,
            };
            self.read_bytes += record.head().record_bytes() as u64;
            let read = file.map(|number| self.read.entry((number, record.table())).or_default());
            match (read, record.head().kind()) {
                (Some([rows, _]), RecordKind::Row) => *rows += 1,
                (Some([_, deltas]), RecordKind::Delta) => *deltas += 1,
                _ => {}
            }
            if !is_whole {
                is_whole = record.head().kind() != RecordKind::Delta;
                versions.push(record);
            }
        }
        Ok(versions)
    }
}

/// What the keys of a slice come to, as it is written.
struct MergeOutput<'r, S> {
    run: RunWriter<'r>,
    older: &'r [OpenRun],
    store: &'r S,
    now_ms: u64,
    /// The table of the last key, and its schema; none if it is gone.
    table: Option<(u32, Option<Arc<TableSchema>>)>,
    /// Whether a row was left out because it has expired.
    has_dropped_expired: bool,
}

impl<S: MergeStore> MergeOutput<'_, S> {
    /// Writes what counts of a key, if anything does.
    fn push(&mut self, versions: &[FoundRecord]) -> Result<()> {
        let Some(newest) = versions.first().map(FoundRecord::record) else { return Ok(()) };
        if self.table.as_ref().is_none_or(|(table, _)| *table != newest.table()) {
            self.table = Some((newest.table(), self.store.schema(newest.table())));
        }
        let Some(schema) = self.table.as_ref().and_then(|(_, schema)| schema.clone()) else { return Ok(()) };
        match newest.kind() {
            RecordKind::Delta => self.push_deltas(&schema, versions),
            RecordKind::Row if !is_past(newest.expires_at_ms(), self.now_ms) => self.copy(&newest),
            RecordKind::Tombstone if self.may_hide(&newest) => self.copy(&newest),
            RecordKind::Tombstone => Ok(()),
            RecordKind::Row | RecordKind::Batch => {
                self.has_dropped_expired = true;
                self.push_tombstone_of(&newest)
            }
        }
    }

    /// Writes a tombstone in the place of a row that has expired, if it hides something.
    fn push_tombstone_of(&mut self, expired: &Record<'_>) -> Result<()> {
        if !self.may_hide(expired) {
            return Ok(());
        }
        let tombstone = SstRecord {
            kind: SstRecordKind::Tombstone,
            expires_at_ms: None,
            has_field_expiries: false,
            body_bytes: 0,
            ..SstRecord::of(expired)
        };
        self.run.push(&tombstone, |_| ())
    }

    fn copy(&mut self, record: &Record<'_>) -> Result<()> {
        let body = record.raw_body();
        self.run.push(&SstRecord::of(record), |out| out.copy_from_slice(body))
    }

    /// Whether an older run may have something of the record's key.
    fn may_hide(&self, record: &Record<'_>) -> bool {
        let key = SstKey::new(record.table(), record.key());
        self.older.iter().any(|run| run.may_hold(&key))
    }

    /// Deltas, and the row or the tombstone that they are over, if there is one here.
    fn push_deltas(&mut self, schema: &TableSchema, versions: &[FoundRecord]) -> Result<()> {
        let records: SmallVec<[Record<'_>; 4]> = versions.iter().map(FoundRecord::record).collect();
        let is_delta = |record: &&Record<'_>| record.kind() == RecordKind::Delta;
        let deltas = &records[..records.iter().take_while(is_delta).count()];
        let base = records.get(deltas.len());
        if base.is_none() && self.may_hide(&deltas[0]) {
            return match deltas {
                [only] => self.copy(only),
                _ => self.push_folded(schema, deltas),
            };
        }
        let bodies = bodies_of(deltas);
        let row = base.filter(|base| base.kind() == RecordKind::Row);
        let row = row.map(|row| row_body(schema, row)).transpose()?;
        let plan = MergePlan::new(schema, row.as_ref(), &bodies, self.now_ms)?;
        let expires_at_ms = records.iter().find_map(Record::expires_at_ms).filter(|&ms| ms != 0);
        let merged = SstRecord {
            kind: SstRecordKind::Row,
            schema_version: schema.version(),
            expires_at_ms,
            has_field_expiries: plan.has_field_expiry(),
            body_bytes: plan.body_bytes(),
            ..SstRecord::of(&records[0])
        };
        self.run.push(&merged, |body| plan.encode(body))
    }

    /// Several deltas whose row is not among the runs that are merged.
    fn push_folded(&mut self, schema: &TableSchema, deltas: &[Record<'_>]) -> Result<()> {
        let fold = DeltaFold::new(schema, &bodies_of(deltas), self.now_ms)?;
        let folded = SstRecord {
            schema_version: schema.version(),
            expires_at_ms: deltas.iter().find_map(Record::expires_at_ms),
            has_field_expiries: deltas.iter().any(|delta| delta.flags() & FLAG_FIELD_EXPIRY != 0),
            body_bytes: fold.body_bytes(),
            ..SstRecord::of(&deltas[0])
        };
        self.run.push(&folded, |body| fold.encode(body))
    }
}

fn bodies_of<'a>(deltas: &[Record<'a>]) -> SmallVec<[DeltaBody<&'a [u8]>; 4]> {
    deltas.iter().map(|delta| DeltaBody::new(delta.raw_body())).collect()
}

fn row_body<'a>(schema: &'a TableSchema, row: &Record<'a>) -> Result<RowBody<'a, &'a [u8]>> {
    let Some(layout) = schema.layout(row.schema_version()) else {
        return Err(Error::corrupted(format!(
            "the row {} of table {} in a sorted table has schema version {}, which its table never had",
            row.key().escape_ascii(),
            row.table(),
            row.schema_version()
        )));
    };
    Ok(RowBody::new(layout, row.raw_body(), row.flags() & FLAG_FIELD_EXPIRY != 0))
}

/// Bytes of a range that are of tables which are gone.
fn gone_bytes<S: MergeStore>(range: &OpenRange, store: &S) -> u64 {
    let [least, greatest] = range.keys.each_ref().map(|key| key.first_chunk::<4>());
    let lies_in = |table: u32| {
        let table = &table.to_be_bytes();
        least.is_none_or(|least| least <= table) && greatest.is_none_or(|greatest| table <= greatest)
    };
    let tables = range.sst.tables().iter().filter(|known| lies_in(known.table));
    let gone = tables.filter(|known| store.schema(known.table).is_none());
    let bytes = gone.map(|known| known.counts.bytes).sum();
    share(bytes, range.bytes(), range.sst.counts().bytes)
}

/// What tombstones in the place of rows that take so many bytes of a range would take, at most.
fn tombstone_bytes(range: &OpenRange, bytes: u64) -> u64 {
    let counts = range.sst.counts();
    share(bytes, (TOMBSTONE_BYTES * counts.records()).min(counts.bytes), counts.bytes)
}

/// Whether a merge takes nothing off a range.
fn is_kept_as_it_is<S: MergeStore>(range: &OpenRange, store: &S) -> bool {
    let mut tables = range.sst.tables().iter();
    tables.all(|known| known.counts.tombstones == 0 && !known.expires) && gone_bytes(range, store) == 0
}

/// What falls to a range of the bytes of its file that do not count.
fn trimmed_bytes(range: &OpenRange, counting: &BTreeMap<u64, u64>) -> u64 {
    let counts = counting.get(&range.sst.id().number).copied().unwrap_or(0);
    share(range.sst.counts().bytes.saturating_sub(counts), range.bytes(), counts)
}

/// What a slice came to.
struct WrittenSlice {
    files: Vec<Sst>,
    /// What is left of the files it was read of.
    trimmed: Vec<Trimmed>,
    /// What was read of those of which something is left.
    taken: Vec<TakenRecords>,
    /// Bytes of the records that were read.
    read_bytes: u64,
    /// Whether a row was left out because it has expired.
    has_dropped_expired: bool,
}

impl Runs {
    /// Merges the next slice of `job`, which begins behind it then.
    ///
    /// # Errors
    /// `Corrupted` if there is damage in a file: its run is merged no more as long as the store is open. `Full`; what the capacity tier or the log refuses. Nothing has changed then, unless the log
    /// takes no more writes.
    pub(crate) fn merge_slice<S: MergeStore>(
        &self,
        log: &Log,
        job: &mut MergeJob,
        store: &S,
    ) -> Result<Merged> {
        let Some(_alone) = self.merges.alone.try_lock() else { return Ok(Merged::NotNow) };
        let merged = self.merge_alone(log, job, store);
        // Nobody looks into what was merged any more, if readers do not.
        self.remove_dropped();
        merged
    }

    fn merge_alone<S: MergeStore>(&self, log: &Log, job: &mut MergeJob, store: &S) -> Result<Merged> {
        let runs = Arc::clone(&self.current());
        let keeps = |range: &OpenRange| is_kept_as_it_is(range, store);
        let large = self.target_bytes() / HANDED_DOWN_ONE_IN;
        let Some(mut slice) = Slice::of(job, &runs, (large, keeps)) else { return Ok(Merged::Nothing) };
        // What several runs give goes file by file only once all of a file was merged: until then there must be room for both.
        if job.runs.len() > 1 && slice.handed_down.is_empty() && self.lacks_room_for_slice() {
            return Ok(Merged::Nothing);
        }
        if !slice.inputs().iter().all(|run| self.may_merge(run, store)) {
            return Ok(Merged::NotNow);
        }
        let failed = |error: Error, files: Vec<u64>| self.merges.failed(error, files, store.now_ms());
        if !slice.handed_down.is_empty() {
            self.hand_down(log, &slice).map_err(|error| failed(error, Vec::new()))?;
            job.from = successor(std::mem::take(&mut slice.keys[1]));
            return Ok(Merged::Slice);
        }
        let room = self.room();
        let written = self.write_slice(log, &mut slice, store);
        let written = match written {
            Ok(Some(written)) => written,
            Ok(None) => return Ok(Merged::Stopped),
            Err(failure) if failure.error.kind() == ErrorKind::Full && slice.inputs().len() == 1 => {
                // Others may have taken some meanwhile, and given it back.
                let (room, bytes) = (room.min(self.room()), slice.ranges().map(OpenRange::bytes).sum());
                let files = slice.ranges().map(|range| range.sst.id().number);
                let is_for_room = self.lacked_room(files, room, bytes);
                let error = failed(failure.error, failure.files);
                return if is_for_room { Ok(Merged::LacksRoom) } else { Err(error) };
            }
            Err(failure) => return Err(failed(failure.error, failure.files)),
        };
        if let Err(error) = self.put_in_place(log, &slice, &written, store) {
            // It may count, where the log takes no more writes.
            if log.check_writable().is_ok() {
                self.discard(written.files);
            }
            return Err(failed(error, Vec::new()));
        }
        // What was written anew alone, for what of its files did not count, was of no table or had expired, is that no more: there is an end of it.
        let (counting, now_ms) = (runs.counting_bytes(), store.now_ms());
        let goes_alone = |range: &OpenRange| {
            trimmed_bytes(range, &counting) > 0
                || range.keys != *range.sst.keys()
                || gone_bytes(range, store) > 0
                || self.merges.expired.lock().counting(range, now_ms, self.wants_room()) > 0
        };
        let was_alone = slice.inputs().len() == 1 && slice.inputs.start > 0 && slice.ranges().any(goes_alone);
        let sees_all_newer = slice.inputs.start == 0 || job.upto.is_some() && !was_alone;
        self.count_taken_off(&slice, &written, (sees_all_newer, was_alone));
        job.from = successor(std::mem::take(&mut slice.keys[1]));
        Ok(Merged::Slice)
    }

    /// A slice counts. What newer runs than its own replaced of it is garbage still, unless it has to be taken for gone: with what is written anew for that alone, there would be no end of it.
    fn count_taken_off(
        &self,
        slice: &Slice<'_>,
        written: &WrittenSlice,
        (sees_all_newer, was_alone): (bool, bool),
    ) {
        let mut replaced = self.merges.replaced.lock();
        let mut taken = ReplacedBytes::default();
        for Trimmed { number, left, .. } in &written.trimmed {
            let Some(sst) = slice.runs.file(*number) else { continue };
            let ranges = slice.inputs().iter().flat_map(|run| &run.ranges);
            let of_file = ranges.filter(|range| range.sst.id().number == *number);
            let left = left.iter().map(|range| sst.bytes_between(&range.keys)).sum();
            taken = taken.plus(replaced.take(*number, left, of_file.map(OpenRange::bytes).sum()));
        }
        let kept: u64 = written.files.iter().map(|sst| sst.counts().bytes).sum();
        let taken_off = written.read_bytes.saturating_sub(kept);
        let still = match (sees_all_newer, was_alone) {
            (true, _) => ReplacedBytes::default(),
            // As much of what is left as of all: what was taken off is not what newer runs replaced.
            (false, true) => taken.share(kept, written.read_bytes),
            (false, false) => taken.less(taken_off),
        };
        for sst in &written.files {
            replaced.give(sst.id().number, still.share(sst.counts().bytes, kept));
        }
        let current = self.current();
        replaced.retain(&current);
        self.merges.retain_too_large(|number| current.file(number).is_some());
    }

    /// Whether a run is seen by every snapshot, has no rows of a table to be, and is not known to be damaged.
    fn may_merge<S: MergeStore>(&self, run: &OpenRun, store: &S) -> bool {
        // Asked before anybody asks whether a table is there: it is loaded, or it has been.
        !self.is_loading(run.ranges.iter().map(|range| &range.sst))
            && run.is_visible(store.oldest_snapshot().unwrap_or(u64::MAX))
            && !self.merges.has_damaged(run, store.now_ms())
    }

    /// Notes how far what is to be merged is beyond the limits, for [`Runs::merge_backlog`]: nothing, where several runs cannot be merged for want of room.
    pub(crate) fn look_for_backlog<S: MergeStore>(&self, store: &S, limits: MergeLimits) {
        if self.lacks_room_for_slice() {
            return self.forget_backlog();
        }
        let runs = Arc::clone(&self.current());
        self.merges.set_backlog(backlog(&self.weights(&runs, store, limits), limits));
    }

    /// There is nothing that could be merged now: nobody is to wait for it.
    pub(crate) fn forget_backlog(&self) {
        self.merges.set_backlog(0.0);
    }

    /// How many times as many runs there are as there may be, or as much garbage, whichever is more; 1 or less: nothing has to be merged.
    pub(crate) fn merge_backlog(&self) -> f64 {
        self.merges.backlog()
    }

    fn weights<S: MergeStore>(&self, runs: &OpenRuns, store: &S, limits: MergeLimits) -> Vec<RunWeight> {
        let counting = runs.counting_bytes();
        runs.runs.iter().map(|run| self.weight(run, &counting, (store, limits))).collect()
    }

    /// What is to be merged next, if anything is, by what is known of garbage after one more [look](Runs::look_for_garbage).
    pub(crate) fn next_merge<S: MergeStore>(&self, store: &S, limits: MergeLimits) -> Option<MergeJob> {
        self.look_for_garbage(store);
        let runs = Arc::clone(&self.current());
        let weights = self.weights(&runs, store, limits);
        self.merges.set_garbage(weights.iter().map(RunWeight::garbage).sum());
        let choice = match self.wants_room() {
            true => self.choose_for_room(&runs, &weights).or_else(|| {
                // A slice of several runs gives back what it took only when files have gone whole: it is begun where there is room for more than one.
                let runs_max = if self.is_tight() { usize::MAX } else { limits.runs_max };
                choose(&self.without_too_large(&runs, weights), MergeLimits { runs_max, ..limits })
            }),
            false => choose(&weights, limits),
        }?;
        let numbers = runs.runs[choice.runs].iter().map(|run| run.number).collect();
        let (from, upto) = match choice.keys {
            Some([least, greatest]) => (least.into_vec(), Some(greatest.into_vec())),
            None => (Vec::new(), None),
        };
        Some(MergeJob { runs: numbers, from, upto })
    }

    /// What gives back more than it takes, where there is little room.
    fn choose_for_room(&self, runs: &OpenRuns, weights: &[RunWeight]) -> Option<Choice> {
        let counting = runs.counting_bytes();
        let of_run = |(at, (run, weight)): (usize, (&OpenRun, &RunWeight))| {
            let ranges = run.ranges.iter().zip(&weight.ranges).filter(|_| weight.is_free);
            let anew = ranges.filter_map(|(range, weight)| {
                let (file_bytes, number) = (range.sst.file_bytes().ok()?, range.sst.id().number);
                // Of a file of several ranges all must be written anew before it goes.
                let counting = counting.get(&number).copied().unwrap_or(0);
                let is_oldest = at + 1 == runs.runs.len();
                let tombstones = if is_oldest { 0 } else { tombstone_bytes(range, weight.expired) };
                let counts = counting.saturating_sub(weight.gone + weight.expired) + tombstones;
                let needed = share(file_bytes, counts, range.sst.counts().bytes);
                // How much was cut off is known by whole blocks of the index, and a short file has one or two.
                let is_cut = range.keys != *range.sst.keys();
                let needed = if is_cut { needed.min(file_bytes - file_bytes / 8) } else { needed };
                let needed = needed.max(self.merges.needed_at_least(number));
                Some(WrittenAnew { run: at, keys: range.keys.clone(), file_bytes, needed })
            });
            anew.collect::<Vec<_>>()
        };
        let all: Vec<_> = runs.runs.iter().zip(weights).enumerate().flat_map(of_run).collect();
        room_making(&all, self.room())
    }

    /// The same without the garbage of files that were found not to fit into the room there is when they were written anew: nobody can take it off them now.
    fn without_too_large(&self, runs: &OpenRuns, mut weights: Vec<RunWeight>) -> Vec<RunWeight> {
        let room = self.room();
        for (run, weight) in runs.runs.iter().zip(&mut weights) {
            for (range, weight) in run.ranges.iter().zip(&mut weight.ranges) {
                if self.merges.needed_at_least(range.sst.id().number) > room {
                    (weight.obsolete, weight.gone, weight.expired, weight.trimmed) = (0, 0, 0, 0);
                }
            }
        }
        weights
    }

    fn weight<S: MergeStore>(
        &self,
        run: &OpenRun,
        counting: &BTreeMap<u64, u64>,
        (store, limits): (&S, MergeLimits),
    ) -> RunWeight {
        let (is_free, now_ms, wants_room) = (self.may_merge(run, store), store.now_ms(), self.wants_room());
        let (replaced, expired) = (self.merges.replaced.lock(), self.merges.expired.lock());
        let of_range = |range: &OpenRange| RangeWeight {
            keys: range.keys.clone(),
            bytes: range.bytes(),
            obsolete: replaced.of(range).garbage(limits.covered_percent),
            // What of one that is not free belongs to nobody may be of a table to be.
            gone: if is_free { gone_bytes(range, store) } else { 0 },
            expired: expired.counting(range, now_ms, wants_room),
            trimmed: trimmed_bytes(range, counting),
        };
        RunWeight { ranges: run.ranges.iter().map(of_range).collect(), is_free }
    }

    /// Writes what counts of a slice, whose keys end where it ends; and what is left of its files. `None` if the store is being closed.
    fn write_slice<S: MergeStore>(
        &self,
        log: &Log,
        slice: &mut Slice<'_>,
        store: &S,
    ) -> Result<Option<WrittenSlice>, SliceFailure> {
        // What the slice before took last is paid before this one takes anything.
        if !store.goes_on() {
            return Ok(None);
        }
        let mut walk = MergeWalk::begin(slice)?;
        let (run, older) =
            (RunWriter::of_merge(self, log, slice.ranges().map(|range| &range.sst)), slice.older());
        let mut out = MergeOutput {
            run,
            older,
            store,
            now_ms: store.now_ms(),
            table: None,
            has_dropped_expired: false,
        };
        let mut looks = Looks::default();
        for n in 1u32.. {
            let versions = walk.next_key()?;
            let Some(newest) = versions.first() else { break };
            let pushed = out.push(&versions);
            pushed.map_err(|error| match error.kind() {
                ErrorKind::Corrupted | ErrorKind::Invalid => {
                    SliceFailure { error, files: slice.files_with(&key_of(newest)) }
                }
                // Of what is written.
                _ => SliceFailure::from(error),
            })?;
            if out.run.bytes() >= self.target_bytes() || walk.read_bytes >= READ_BYTES_MAX {
                slice.keys[1] = key_of(newest);
                break;
            }
            if !looks.go_on(store, (n, walk.read_bytes + out.run.bytes())) {
                return Ok(None);
            }
        }
        looks.end(store, walk.read_bytes + out.run.bytes());
        let trimmed = slice.trimmed()?;
        let MergeWalk { read, read_bytes, .. } = walk;
        let taken = |((number, table), [rows, deltas]): ((u64, u32), [u64; 2])| TakenRecords {
            number,
            table,
            rows,
            deltas,
        };
        // A file that is in older or newer runs too counts on there. Of the others nobody needs to know.
        let is_left = |taken: &TakenRecords| {
            let is_whole = |of: &Trimmed| of.number == taken.number && of.left.is_empty();
            let counts_in =
                |run: &OpenRun| run.ranges.iter().any(|range| range.sst.id().number == taken.number);
            !trimmed.iter().any(is_whole) || slice.runs.runs.iter().filter(|run| counts_in(run)).count() > 1
        };
        let taken = read.into_iter().map(taken).filter(is_left).collect();
        let has_dropped_expired = out.has_dropped_expired;
        Ok(Some(WrittenSlice { files: out.run.finish()?, trimmed, taken, read_bytes, has_dropped_expired }))
    }

    fn put_in_place<S: MergeStore>(
        &self,
        log: &Log,
        slice: &Slice<'_>,
        written: &WrittenSlice,
        store: &S,
    ) -> Result<()> {
        // PERSIST: no row's schema is younger than the log, and a table that a power cut brings back has all its rows still.
        store.persist_tables()?;
        let Some(into) = slice.output_run() else { return Ok(()) };
        let rises = written.has_dropped_expired;
        self.replace_merged(log, into, (&written.files, rises), (&written.trimmed, &written.taken))?;
        // Files of a table that is gone by now may have been looked for before these counted.
        if written.files.iter().flat_map(Sst::tables).any(|known| store.schema(known.table).is_none()) {
            self.record_tables_gone();
        }
        self.merges.were_read(written.trimmed.iter().map(|of| of.number));
        let bytes: u64 = written.files.iter().map(|sst| sst.file_bytes().unwrap_or(0)).sum();
        self.merges.count(bytes);
        Ok(())
    }

    /// Has files change their run as they are. No record is written or left out, so this rests on nothing that must be durable before.
    fn hand_down(&self, log: &Log, slice: &Slice<'_>) -> Result<()> {
        let Some(into) = slice.output_run() else { return Ok(()) };
        self.replace_merged(log, into, (&[], false), (&slice.without_handed_down(), &[]))?;
        self.merges.count(0);
        Ok(())
    }
}

#[cfg(all(test, shuttle))]
mod shuttle;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
