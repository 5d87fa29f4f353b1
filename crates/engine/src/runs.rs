//! Runs: the sorted tables that count, opened.
//!
//! Owns [`OpenRuns`], what counts at one moment; [`Runs`] has the present one (`runs/store.rs`). Promises that whoever loaded one may look into it for as long as it is held,
//! and that what is found of a key is what counts of it: deltas, newest first, down to the row. Must not know slots, the log, or what a record's body says.
//!
//! A run is a list of ranges in the order of their keys, each a file and the least and the greatest key of it that count. Of two runs the newer counts: what
//! it says of a key hides what older ones say, but for a delta, which goes over it.

mod expired;
mod garbage;
mod merges;
pub(crate) mod merging;
mod parked;
mod store;
mod writer;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::slice;
use std::sync::Arc;

use hedgerow_device::Random;
use hedgerow_row::schema::body::{DeltaBody, DeltaEntry};
pub(crate) use parked::ParkedWalk;
use smallvec::SmallVec;
pub(crate) use store::{CapacityPlace, LoadingTable, RoomFor, Runs, RunsSettings, RunsToCopy};
pub(crate) use writer::RunWriter;

use crate::Result;
use crate::log::check_waits_alone;
use crate::log::format::{FLAG_FIELD_EXPIRY, Record, RecordKind};
use crate::manifest::version::{FileRange, SstVersion};
use crate::sst::{
    BlockReads, CachedLook, DataPages, FoundRecord, FoundRecords, KeyPrefixes, RecordCache, Sst, SstCounts,
    SstKey, SstLook, SstTable,
};
use crate::sync::atomic::{AtomicU64, Ordering};

pub(crate) mod cursor;
pub(crate) mod salvage;

/// Of so many keys the blocks are read together, and held.
const FOUND_TOGETHER: usize = 256;

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

    /// Bytes of its records, about.
    fn bytes(&self) -> u64 {
        self.sst.bytes_between(&self.keys)
    }
}

/// Whether nothing of a record expires.
fn stays_as_it_is(record: &Record<'_>) -> bool {
    let stays = record.expires_at_ms().is_none_or(|ms| ms == 0) && record.flags() & FLAG_FIELD_EXPIRY == 0;
    // Of the fields of a delta no flag tells.
    let no_field_expires = || {
        let delta = DeltaBody::new(record.raw_body());
        let stays = |entry: Result<DeltaEntry<'_>>| entry.is_ok_and(|entry| entry.expires_at_ms.is_none());
        delta.entries().is_ok_and(|mut entries| entries.all(stays))
    };
    stays && (record.kind() != RecordKind::Delta || no_field_expires())
}

/// A run, opened.
#[derive(Debug, Clone)]
pub(crate) struct OpenRun {
    /// Of two runs the one with the higher number is newer.
    pub(crate) number: u64,
    pub(crate) ranges: Box<[OpenRange]>,
    /// Of their greatest keys.
    prefixes: KeyPrefixes,
    /// Nothing of it was there yet for who reads as of a sequence below this: rows that were loaded have their sequence from before others could see them.
    visible_from: Arc<AtomicU64>,
}

impl OpenRun {
    /// Whether it was there as of the sequence `upto`.
    pub(crate) fn is_visible(&self, upto: u64) -> bool {
        self.visible_from() <= upto
    }

    /// From which sequence on it is there.
    fn visible_from(&self) -> u64 {
        self.visible_from.load(Ordering::Acquire)
    }

    /// Whether a file of it may hold the key.
    fn may_hold(&self, key: &SstKey) -> bool {
        self.range_of(key.bytes()).is_some_and(|range| range.sst.may_hold(key))
    }

    /// The range that has the key, if any has.
    fn range_of(&self, key: &[u8]) -> Option<&OpenRange> {
        let at = self.prefixes.partition(key, |n| *self.ranges[n].keys[1] < *key);
        self.ranges.get(at).filter(|range| *range.keys[0] <= *key)
    }
}

/// So many filters are on their way together.
const FILTERS_AHEAD: usize = 8;

/// The ranges that a look for a key comes by. A filter's line is in no cache, for there are many of them, and a look asks one after the other:
/// those of some runs are fetched before the first of these is asked.
struct RangesWith<'r> {
    runs: slice::Iter<'r, OpenRun>,
    key: &'r SstKey,
    upto: u64,
    ahead: SmallVec<[&'r OpenRange; FILTERS_AHEAD]>,
    at: usize,
}

impl<'r> Iterator for RangesWith<'r> {
    type Item = &'r OpenRange;

    #[inline]
    fn next(&mut self) -> Option<&'r OpenRange> {
        if self.at == self.ahead.len() {
            self.ahead.clear();
            self.at = 0;
            let visible = self.runs.by_ref().filter(|run| run.is_visible(self.upto));
            let ranges = visible.filter_map(|run| run.range_of(self.key.bytes()));
            for range in ranges.take(FILTERS_AHEAD) {
                range.sst.prefetch_filter(self.key);
                self.ahead.push(range);
            }
        }
        let next = self.ahead.get(self.at).copied();
        self.at += 1;
        next
    }
}

/// What the runs have of a key.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundVersions {
    records: FoundRecords,
}

impl FoundVersions {
    /// All that there is, newest first.
    fn of(records: FoundRecords) -> FoundVersions {
        FoundVersions { records }
    }

    /// Deltas, newest first, and the row that they go over, if there is one. Nothing where there is no row, and no delta that would make one.
    pub(crate) fn records(&self) -> &[FoundRecord] {
        &self.records
    }

    /// Whether the last of them is a row.
    pub(crate) fn has_row(&self) -> bool {
        self.records.last().is_some_and(|last| last.head().kind() == RecordKind::Row)
    }

    /// Whether there is no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Takes in what an older run has. Whether what is older still goes with it.
    pub(crate) fn push(&mut self, older: FoundRecord) -> bool {
        let kind = older.head().kind();
        if kind != RecordKind::Tombstone {
            self.records.push(older);
        }
        kind == RecordKind::Delta
    }
}

/// The files of all runs.
#[derive(Debug, Default)]
struct OpenFiles {
    /// Each once, by rising number.
    files: Box<[Sst]>,
    /// What all of them have of each table, by rising number of the table.
    tables: Box<[OpenTable]>,
    /// What all of them have together.
    counts: SstCounts,
    /// What they take as long as they are open: filters, bounds.
    memory_bytes: u64,
}

/// What all files have of a table.
#[derive(Debug)]
struct OpenTable {
    all: SstTable,
    /// No key has more bytes in bodies, of all runs together.
    key_bytes_max: u64,
    /// Rows that count, of keys that are in several runs each; see [`OpenRuns::rows_of`].
    rows: u64,
}

impl OpenFiles {
    fn new(files: impl Iterator<Item = Sst>, runs: &[OpenRun], version: &SstVersion) -> OpenFiles {
        let (files, mut tables) = (files.collect::<Box<[Sst]>>(), BTreeMap::new());
        for sst in &files {
            let number = sst.id().number;
            for known in sst.tables() {
                let [rows_taken, deltas_taken] = version.taken_off(number, known.table);
                let rows = known.counts.rows.saturating_sub(rows_taken)
                    + known.counts.deltas.saturating_sub(deltas_taken);
                match tables.entry(known.table) {
                    Entry::Vacant(place) => {
                        place.insert(OpenTable { all: *known, key_bytes_max: 0, rows });
                    }
                    Entry::Occupied(mut table) => {
                        let table: &mut OpenTable = table.get_mut();
                        table.all.add(known);
                        table.rows += rows;
                    }
                }
            }
        }
        for run in runs {
            let mut longest = BTreeMap::new();
            for known in run.ranges.iter().flat_map(|range| range.sst.tables()) {
                let longest = longest.entry(known.table).or_insert(0);
                *longest = known.longest_body.max(*longest);
            }
            for (table, longest) in longest {
                tables.entry(table).and_modify(|table| table.key_bytes_max += longest);
            }
        }
        let (mut counts, mut memory_bytes) = (SstCounts::default(), 0);
        for sst in &files {
            counts.add(sst.counts());
            memory_bytes += sst.memory_bytes() as u64;
        }
        OpenFiles { files, tables: tables.into_values().collect(), counts, memory_bytes }
    }

    fn table(&self, table: u32) -> Option<&OpenTable> {
        let at = self.tables.binary_search_by_key(&table, |known| known.all.table).ok()?;
        Some(&self.tables[at])
    }
}

/// What was found of a key by who does not wait.
#[derive(Debug)]
pub(crate) enum RunsLook {
    /// What counts of it.
    Found(FoundVersions),
    /// Blocks would have to be read: by [`BlockReads::run`], then the look is made again.
    Lacking,
}

/// A look for a key that is answered once the blocks are there that it lacked.
#[derive(Debug)]
pub(crate) struct LookUnderWay {
    way: Option<OneBlock>,
    answer: Option<Result<FoundVersions>>,
}

impl LookUnderWay {
    fn is_answered(&self) -> bool {
        self.answer.is_some()
    }

    fn take_in(&mut self, looked: Result<RunsLook>) {
        self.answer = match looked {
            Ok(RunsLook::Found(versions)) => Some(Ok(versions)),
            Ok(RunsLook::Lacking) => None,
            Err(error) => Some(Err(error)),
        };
    }

    /// What was found, if it is answered.
    pub(crate) fn into_answer(self) -> Option<Result<FoundVersions>> {
        self.answer
    }
}

/// The only block that can have anything of a key.
#[derive(Debug)]
struct OneBlock {
    sst: Sst,
    pages: DataPages,
}

/// What counts at one moment.
#[derive(Debug, Default)]
pub(crate) struct OpenRuns {
    /// Higher after each change that may change an answer.
    generation: u64,
    /// Newest first.
    runs: Arc<[OpenRun]>,
    files: Arc<OpenFiles>,
    /// What of them is in memory by itself; none where nobody keeps any.
    records: Option<Arc<RecordCache>>,
}

impl OpenRuns {
    /// What `version` says, of files that `open` opens, each once.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn of(
        version: &SstVersion,
        generation: u64,
        mut open: impl FnMut(u64) -> Result<Sst>,
    ) -> Result<OpenRuns> {
        let (mut runs, mut files) = (Vec::new(), BTreeMap::new());
        for (number, ranges) in version.runs() {
            let ranges: Result<Box<[OpenRange]>> = ranges
                .map(|range| {
                    let sst = match files.entry(range.number) {
                        Entry::Occupied(opened) => Sst::clone(opened.get()),
                        Entry::Vacant(place) => place.insert(open(range.number)?).clone(),
                    };
                    Ok(OpenRange::of(range, sst))
                })
                .collect();
            let ranges = ranges?;
            let prefixes = KeyPrefixes::of(ranges.iter().map(|range| &*range.keys[1]));
            runs.push(OpenRun { number, ranges, prefixes, visible_from: Arc::default() });
        }
        let files = Arc::new(OpenFiles::new(files.into_values(), &runs, version));
        Ok(OpenRuns { generation, runs: runs.into(), files, records: None })
    }

    /// The files, each once, by rising number.
    pub(crate) fn files(&self) -> &[Sst] {
        &self.files.files
    }

    /// What the files have together.
    pub(crate) fn counts(&self) -> SstCounts {
        self.files.counts
    }

    /// What they take in memory as long as they are open, besides blocks in the cache.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.files.memory_bytes
    }

    /// Of each file, how many bytes of its records count, in whatever runs.
    fn counting_bytes(&self) -> BTreeMap<u64, u64> {
        let mut bytes = BTreeMap::new();
        for range in self.runs.iter().flat_map(|run| &run.ranges) {
            *bytes.entry(range.sst.id().number).or_default() += range.bytes();
        }
        bytes
    }

    /// The file of this number, if it counts.
    pub(crate) fn file(&self, number: u64) -> Option<&Sst> {
        let at = self.files().binary_search_by_key(&number, |sst| sst.id().number).ok()?;
        Some(&self.files()[at])
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// What the files have of the table of this number, if there is anything.
    pub(crate) fn of_table(&self, table: u32) -> Option<&SstTable> {
        self.files.table(table).map(|known| &known.all)
    }

    /// Rows of the table of this number that count in a run, of whose keys newer runs may have something as well: a row that they replace, change or hide is among them until it is merged with
    /// that. A delta counts as a row: it may be one, for nobody looked whether there is one below it.
    pub(crate) fn rows_of(&self, table: u32) -> u64 {
        self.files.table(table).map_or(0, |known| known.rows)
    }

    /// A number that rises with each change that may change an answer.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the rows of this table must be looked at before a delta goes over one: some expire, or some may have more than so many bytes.
    pub(crate) fn must_see_rows_of(&self, table: u32, bytes_max: usize) -> bool {
        let must = |known: &OpenTable| known.all.expires || known.key_bytes_max > bytes_max as u64;
        self.files.table(table).is_some_and(must)
    }

    /// Bytes of blocks that a look for a key of a table holds at most, about: of each run one that has the longest record there is, or several short ones.
    pub(crate) fn bytes_of_look(&self, table: u32) -> u64 {
        const BLOCK_BYTES: u64 = 32 << 10;
        let longest = self.files.table(table).map_or(0, |known| known.key_bytes_max);
        longest + self.runs.len() as u64 * BLOCK_BYTES
    }

    /// The runs, newest first.
    pub(crate) fn runs(&self) -> &[OpenRun] {
        &self.runs
    }

    /// Whether any file may hold the key: if not, surely none does. Costs no I/O.
    pub(crate) fn may_hold(&self, key: &SstKey) -> bool {
        self.ranges_with(key, u64::MAX).any(|range| range.sst.may_hold(key))
    }

    /// The ranges that have this key between their bounds, newest first, of runs that were there as of the sequence `upto`.
    fn ranges_with<'r>(&'r self, key: &'r SstKey, upto: u64) -> RangesWith<'r> {
        RangesWith { runs: self.runs.iter(), key, upto, ahead: SmallVec::new(), at: 0 }
    }

    /// A look that found this of a key, at all that counts: a row, with the deltas over it, may stay in memory by itself, for whoever asks for it next. Not one that expires, or has a field that does: a merge
    /// leaves nothing of it once that has happened, and what is written then goes by that.
    pub(crate) fn was_found(&self, key: &SstKey, upto: u64, found: &FoundVersions) {
        if let Some(records) = &self.records
            && upto == u64::MAX
            && found.has_row()
            && found.records().iter().all(|record| stays_as_it_is(&record.record()))
        {
            records.offer(key, found.records(), self.generation);
        }
    }

    /// What counts of a key, as it was when the sequence `upto` was the last, of what was read for `reads`, and of what is in memory. What lacks is wanted of it
    /// from now on, of all runs at once: a look costs one round of reading, however many there are.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub(crate) fn look(&self, key: &SstKey, upto: u64, reads: &mut BlockReads) -> Result<RunsLook> {
        self.look_for_way(key, upto, reads, &mut None)
    }

    /// [`OpenRuns::look`], and of one that lacks a single block, with which it ends, which that is.
    fn look_for_way(
        &self,
        key: &SstKey,
        upto: u64,
        reads: &mut BlockReads,
        way: &mut Option<OneBlock>,
    ) -> Result<RunsLook> {
        let (mut found, mut lacking, mut others) = (FoundVersions::default(), 0, 0);
        *way = None;
        for range in self.ranges_with(key, upto) {
            match range.sst.look_for_way(key, reads) {
                Ok((SstLook::Absent, _)) => {}
                Ok((SstLook::Lacking, pages)) => {
                    lacking += 1;
                    *way = pages.map(|pages| OneBlock { sst: range.sst.clone(), pages });
                }
                Ok((SstLook::Found(record), _)) => {
                    others += 1;
                    if record.sequence() <= upto && !found.push(record) {
                        break;
                    }
                }
                Err(error) if lacking == 0 => return Err(error),
                // What lacks is newer, and may hide it: the look that is made again will tell.
                Err(_) => {
                    others += 1;
                    break;
                }
            }
        }
        if lacking + others > 1 {
            *way = None;
        }
        Ok(if lacking > 0 { RunsLook::Lacking } else { RunsLook::Found(found) })
    }

    /// [`OpenRuns::look_for_way`] again, after what it lacked was read.
    fn look_again(
        &self,
        key: &SstKey,
        upto: u64,
        reads: &mut BlockReads,
        way: &mut Option<OneBlock>,
    ) -> Result<RunsLook> {
        let Some(OneBlock { sst, pages }) = way else { return self.look_for_way(key, upto, reads, way) };
        let mut found = FoundVersions::default();
        match sst.look_at(key, *pages, reads)? {
            SstLook::Lacking => return Ok(RunsLook::Lacking),
            SstLook::Found(record) if record.sequence() <= upto => drop(found.push(record)),
            SstLook::Found(_) | SstLook::Absent => {}
        }
        Ok(RunsLook::Found(found))
    }

    /// How many records the files have of the table of this number, whether they count or not.
    pub(crate) fn records_of(&self, table: u32) -> u64 {
        self.of_table(table).map_or(0, |known| known.counts.records())
    }

    /// One of those that a file has of the table, chosen at random: of the file that has the `nth` of all [`OpenRuns::records_of`], file by file. See [`Sst::sample`].
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub(crate) fn sample(
        &self,
        (table, mut nth): (u32, u64),
        random: &mut Random,
        reads: &mut BlockReads,
    ) -> Result<SstLook> {
        for sst in self.files() {
            let Some(known) = sst.tables().iter().find(|known| known.table == table) else { continue };
            match nth.checked_sub(known.counts.records()) {
                None => return sst.sample(table, random, reads),
                Some(rest) => nth = rest,
            }
        }
        Ok(SstLook::Absent)
    }

    /// What counts of a key, as it was when the sequence `upto` was the last, read from the disk if need be.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub(crate) fn find(&self, key: &SstKey, upto: u64) -> Result<FoundVersions> {
        check_waits_alone();
        if let Some(found) = self.find_by_one_read(key, upto)? {
            return Ok(found);
        }
        let (mut reads, mut way) = (BlockReads::new(), None);
        loop {
            match self.look_again(key, upto, &mut reads, &mut way)? {
                RunsLook::Found(found) => return Ok(found),
                RunsLook::Lacking => reads.run(),
            }
        }
    }

    /// [`OpenRuns::find`] of a key of which the caches know all but for one block, as of nearly all: that is read, and nothing is held meanwhile.
    fn find_by_one_read(&self, key: &SstKey, upto: u64) -> Result<Option<FoundVersions>> {
        let (mut found, mut lacking) = (FoundVersions::default(), None);
        for range in self.ranges_with(key, upto) {
            match range.sst.look_in_caches(key) {
                Ok(CachedLook::Absent) => {}
                // What lacks is newer, and may hide it, whatever it is.
                _ if lacking.is_some() => return Ok(None),
                Ok(CachedLook::Found(record)) => {
                    if record.sequence() <= upto && !found.push(record) {
                        return Ok(Some(found));
                    }
                }
                Ok(CachedLook::At(pages)) => lacking = Some((&range.sst, pages)),
                Ok(CachedLook::Unknown) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        if let Some((sst, pages)) = lacking
            && let Some(record) = sst.find_at(key, pages)?
            && record.sequence() <= upto
        {
            found.push(record);
        }
        Ok(Some(found))
    }

    /// A look that will be gone on with, for who waits meanwhile: what it lacks is wanted of `reads`.
    pub(crate) fn begin_look(&self, key: &SstKey, upto: u64, reads: &mut BlockReads) -> LookUnderWay {
        let mut look = LookUnderWay { way: None, answer: None };
        let looked = self.look_for_way(key, upto, reads, &mut look.way);
        look.take_in(looked);
        look
    }

    /// Whether a look is answered by now; what it lacks still is wanted of `reads`.
    pub(crate) fn go_on(
        &self,
        key: &SstKey,
        upto: u64,
        (look, reads): (&mut LookUnderWay, &mut BlockReads),
    ) -> bool {
        if !look.is_answered() {
            let looked = self.look_again(key, upto, reads, &mut look.way);
            look.take_in(looked);
        }
        look.is_answered()
    }

    /// [`OpenRuns::find`] of each of these keys, in their order: their blocks are read together. The answers hold the blocks.
    pub(crate) fn find_many(&self, keys: &[SstKey], upto: u64) -> Vec<Result<FoundVersions>> {
        check_waits_alone();
        let mut answers = Vec::with_capacity(keys.len());
        for group in keys.chunks(FOUND_TOGETHER) {
            let (mut reads, mut looks) = (BlockReads::new(), Vec::with_capacity(group.len()));
            let mut first = group.iter();
            reads.run_beside(|reads: &mut BlockReads| {
                let Some(key) = first.next() else { return false };
                looks.push(self.begin_look(key, upto, reads));
                true
            });
            while !looks.iter().all(LookUnderWay::is_answered) {
                reads.run();
                for (key, look) in group.iter().zip(&mut looks) {
                    self.go_on(key, upto, (look, &mut reads));
                }
            }
            answers.extend(looks.into_iter().filter_map(LookUnderWay::into_answer));
        }
        answers
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

    /// Three runs of a file each.
    struct ThreeRuns {
        sim: CrashSim,
        tier: CapacityTier,
        version: SstVersion,
    }

    impl ThreeRuns {
        fn new() -> ThreeRuns {
            use SstRecordKind::{Delta, Row, Tombstone};
            let sim = CrashSim::new(CrashModel::Pages, 1 << 20);
            let tier = CapacityTier::simulated(&sim);
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
            ThreeRuns { sim, tier, version: SstVersion::default().after(&changes).unwrap() }
        }

        /// With a cache of so many bytes, and nothing else in memory.
        fn open(&self, cache_bytes: u64) -> OpenRuns {
            self.sim.files_at_hand(false);
            let cache = BlockCache::new(cache_bytes);
            let open = |number| Sst::open(&self.tier, SstId { store: 7, number }, &cache);
            OpenRuns::of(&self.version, 1, open).unwrap()
        }
    }

    fn sequences(found: &FoundVersions) -> Vec<u64> {
        found.records().iter().map(FoundRecord::sequence).collect()
    }

    /// What counts of a to f.
    const COUNTING: [&[u64]; 6] = [&[100], &[301, 201, 101], &[302], &[303, 203], &[304, 204], &[]];

    #[test]
    fn newer_runs_hide_older_ones_and_deltas_go_over_them() {
        let runs = ThreeRuns::new().open(1 << 20);
        let found = |key: &str, upto| -> Vec<u64> {
            sequences(&runs.find(&SstKey::new(1, key.as_bytes()), upto).unwrap())
        };
        assert_eq!(KEYS.map(|key| found(key, u64::MAX)), COUNTING);
        assert_eq!(found("b", 299), [201, 101], "as it was");
        assert_eq!(found("b", 199), [101]);
        assert_eq!(found("c", 299), [0; 0], "deleted");
        assert_eq!(found("e", 203), [0; 0]);
        assert!(runs.may_hold(&SstKey::new(1, b"f")) && !runs.may_hold(&SstKey::new(2, b"a")));
        assert!(!runs.may_hold(&SstKey::new(1, b"g")) && found("g", u64::MAX).is_empty());
    }

    /// More runs than have their filters fetched at a time: a look comes by all of them, in their order.
    #[test]
    fn a_look_passes_over_none_of_many_runs() {
        const RUNS: u64 = 3 * FILTERS_AHEAD as u64 + 1;
        let tier = CapacityTier::simulated(&CrashSim::new(CrashModel::Pages, 4 << 20));
        let mut changes = vec![SstChange::Next { number: RUNS + 1, run: RUNS + 1 }];
        for run in 1..=RUNS {
            // Deltas of a in every other run, a row of b in one, rows of f in all.
            let kind = |place| match place {
                0 if run % 2 == 1 => Some(SstRecordKind::Delta),
                1 if run == 5 => Some(SstRecordKind::Row),
                5 => Some(SstRecordKind::Row),
                _ => None,
            };
            changes.push(SstChange::Add { run, range: file(&tier, run, kind) });
        }
        let version = SstVersion::default().after(&changes).unwrap();
        let cache = BlockCache::new(1 << 20);
        let open = |number| Sst::open(&tier, SstId { store: 7, number }, &cache);
        let runs = OpenRuns::of(&version, 1, open).unwrap();
        let found = |key: &str, upto| sequences(&runs.find(&SstKey::new(1, key.as_bytes()), upto).unwrap());
        let of_a: Vec<u64> = (1..=RUNS).rev().filter(|run| run % 2 == 1).map(|run| 100 * run).collect();
        assert_eq!(found("a", u64::MAX), of_a);
        assert_eq!(found("a", 1200), of_a[of_a.len() - 6..]);
        assert_eq!(found("b", u64::MAX), [501]);
        assert_eq!(found("f", u64::MAX), [100 * RUNS + 5]);
        assert!(["a", "b", "f"].iter().all(|key| runs.may_hold(&SstKey::new(1, key.as_bytes()))));
        assert!(!runs.may_hold(&SstKey::new(1, b"ab")));
    }

    /// However many runs have something of a key, it is there after one round of reading, whatever the cache keeps.
    #[test]
    fn a_look_wants_the_blocks_of_all_runs_at_once() {
        let three = ThreeRuns::new();
        for cache_bytes in [1, 1 << 20] {
            let runs = three.open(cache_bytes);
            for (key, counting) in KEYS.iter().zip(COUNTING) {
                let (key, mut reads) = (SstKey::new(1, key.as_bytes()), BlockReads::at_hand());
                let mut look = runs.look(&key, u64::MAX, &mut reads).unwrap();
                if matches!(look, RunsLook::Lacking) {
                    assert!(reads.is_wanting());
                    reads.run();
                    look = runs.look(&key, u64::MAX, &mut reads).unwrap();
                }
                let RunsLook::Found(found) = look else { panic!("what was read is held") };
                assert_eq!(sequences(&found), counting);
                assert!(!reads.is_wanting());
            }
        }
    }

    /// The answers are those of one key after the other, and what fails is the key whose block it is, unless something newer hides that.
    #[test]
    fn many_keys_are_found_together() {
        let three = ThreeRuns::new();
        let keys: Vec<SstKey> = (0..300).map(|n| SstKey::new(1, KEYS[n % KEYS.len()].as_bytes())).collect();
        for cache_bytes in [1, 1 << 20] {
            let found = three.open(cache_bytes).find_many(&keys, u64::MAX);
            assert_eq!(found.len(), keys.len());
            for (n, found) in found.iter().enumerate() {
                assert_eq!(sequences(found.as_ref().unwrap()), COUNTING[n % KEYS.len()]);
            }
        }
        three.sim.corrupt_file(&SstId { store: 7, number: 1 }.file_name(), 4096 + 100, 1);
        let runs = three.open(1);
        for (n, found) in runs.find_many(&keys, u64::MAX).into_iter().enumerate() {
            let alone = runs.find(&keys[n], u64::MAX);
            assert_eq!(found.is_err(), n % KEYS.len() < 2, "only a and b have anything there");
            assert_eq!(found.map(|found| sequences(&found)).ok(), alone.map(|found| sequences(&found)).ok());
        }
    }

    /// Files are opened once, whatever number of ranges they have, and what they have of a table is known together.
    #[test]
    fn files_and_tables_are_known_once() {
        let three = ThreeRuns::new();
        let part = |number| {
            let key = |key: &str| composite_key(1, key.as_bytes()).into();
            SstChange::Add { run: 4, range: FileRange { number, keys: [key("a"), key("b")] } }
        };
        let version = three.version.after(&[part(2)]).unwrap();
        let (cache, mut opened) = (BlockCache::new(1 << 20), Vec::new());
        let runs = OpenRuns::of(&version, 1, |number| {
            opened.push(number);
            Sst::open(&three.tier, SstId { store: 7, number }, &cache)
        });
        let runs = runs.unwrap();
        opened.sort_unstable();
        assert_eq!((opened, runs.runs().len()), (vec![1, 2, 3], 4));
        assert!(runs.files().iter().map(|sst| sst.id().number).eq(1..=3));
        assert!((1..=3).all(|number| runs.file(number).unwrap().id().number == number));
        assert!(runs.file(0).is_none() && runs.file(4).is_none() && runs.of_table(2).is_none());
        let counts = runs.of_table(1).unwrap().counts;
        assert_eq!((counts.rows, counts.deltas, counts.tombstones), (5, 6, 2));
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
