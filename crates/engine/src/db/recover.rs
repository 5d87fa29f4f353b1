//! Opening after a crash, or after a clean close: the same path.
//!
//! 1. Walk all segments in parallel; verify every record to its last byte; keep key, sequence and place of each in a replay entry.
//! 2. After a power cut, find the first sequence that is missing above the watermark: the log is cut there, so that what
//!    is left is a prefix. A delta whose base is missing counts as missing. (After a killed process every store survived, and nothing is cut.)
//! 3. Replay the changes of the catalog that are left. A copy of a row that was written under a change which the cut took away is invalidated:
//!    the row is there still, as it was before.
//! 4. Each thread sorts its entries by key and sequence. Merging the sorted runs of a table, each thread a range of keys, let
//!    the newest version of a key decide what its slot says, count the older ones as obsolete, and build the table's index
//!    bottom-up.
//! 5. Finish rows that were being merged in place when the process ended, block by block, from their deltas.
//! 6. Seal every segment where its records end, and take sequences above all that were ever seen.

mod base;

use std::collections::{BTreeMap, HashMap, HashSet};

use hedgerow_device::{make_parts, share_work};
use smallvec::SmallVec;

pub(super) use base::{BasePlace, BaseVersion, BaseVersions};

use super::catalog::Catalog;
use super::catalog::replay::{LoggedChange, count_change};
use super::deleted::is_droppable_tombstone;
use super::shared_table::TableShared;
use super::torn_blocks::mend_torn;
use crate::index::{Budget, Decision, LogSlot, NewKey, Slot, Tag};
use crate::levels::{LevelsBuilder, SealAtOpening, index_full};
use crate::log::format::{FLAG_RELOCATED, Record, RecordKind, RecordRef};
use crate::log::segment::Deltas;
use crate::log::{Log, LogView, OpenState, SegmentEnd, SegmentWalk, WalkEnd};
use crate::runs::Runs;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::{Error, Result};

/// So many segments ahead of the one that is walked are read from the disk.
const SEGMENTS_AHEAD: usize = 4;

/// Where the slots of a table's keys go.
enum IndexTarget<'p> {
    /// A table of which all is walked.
    Built(Box<LevelsBuilder<'p>>),
    /// One whose levels are there, as they were before what is walked.
    Over(&'p dyn BaseVersions),
}

/// What a table's index is built from.
struct Building<'p> {
    target: IndexTarget<'p>,
    table: &'p TableShared,
    prefix: &'p [u8],
    key: Vec<u8>,
    /// Rows with an expiry.
    expiring: u64,
}

impl<'p> Building<'p> {
    /// With what was built of the keys that follow.
    fn join(self, right: Building<'p>) -> Result<Building<'p>> {
        let target = match (self.target, right.target) {
            (IndexTarget::Built(left), IndexTarget::Built(right)) => {
                IndexTarget::Built(Box::new(left.join(*right)?))
            }
            (over, _) => over,
        };
        Ok(Building { target, expiring: self.expiring + right.expiring, ..self })
    }

    /// What is known of the key besides what was walked.
    fn base(&self) -> Result<Option<BaseVersion>> {
        match &self.target {
            IndexTarget::Built(_) => Ok(None),
            IndexTarget::Over(base) => base.of_key(self.table, &self.key),
        }
    }

    /// Gives the key its slot.
    fn push(&mut self, slot: LogSlot, base: Option<BaseVersion>, log: &Log) -> Result<()> {
        match &mut self.target {
            IndexTarget::Built(levels) => {
                self.expiring += u64::from(slot.expires());
                levels.push(&self.key, slot)
            }
            IndexTarget::Over(over) => {
                let is_there = |base: &BaseVersion| over.of_place(base.slot.offset()) == BasePlace::There;
                let old = base.filter(is_there).map(|base| base.slot);
                self.table.expiry.replaced(old, slot.expires());
                let guard = log.pin();
                let new_key = (NewKey::Stored(Budget::Beyond), Budget::Beyond);
                let store = |_| (Decision::Store(slot.into()), ());
                self.table
                    .levels
                    .publish((&self.key, None), new_key, &guard, || true, store)
                    .map_err(index_full)
            }
        }
    }
}

/// One record, as the walk found it: enough to sort and to build the index without touching the log again, unless the
/// key is long.
#[derive(Debug, Clone, Copy)]
struct ReplayEntry {
    /// The key after the table's common prefix, zero-padded, as big-endian words; only the beginning of a longer one.
    key: KeyWords,
    sequence: u64,
    /// A slot that points at the record. In place of the older-version count: the bytes in `key`, or `LONG`, or `LOW`; in place of the depth: 1 if it is a copy.
    slot: LogSlot,
}

/// What a key of no more bytes than an entry holds takes in the index, about.
const KEY_BYTES_IN_INDEX: u64 = 40;

type KeyWords = [u64; ENTRY_KEY_WORDS];
const ENTRY_KEY_WORDS: usize = 3;
const ENTRY_KEY_BYTES: usize = 8 * ENTRY_KEY_WORDS;
/// The key is longer than an entry holds, or beyond all that have the prefix: it must be read from the record.
const LONG: u8 = 255;
/// The key is below all that have the prefix: it must be read from the record.
const LOW: u8 = 254;

impl ReplayEntry {
    fn new(record: &Record<'_>, prefix: &[u8]) -> ReplayEntry {
        let mut bytes = [0; ENTRY_KEY_BYTES];
        let (mut kept, key) = (LONG, record.key());
        match key.strip_prefix(prefix) {
            Some(rest) => {
                let count = rest.len().min(ENTRY_KEY_BYTES);
                bytes[..count].copy_from_slice(&rest[..count]);
                if rest.len() <= ENTRY_KEY_BYTES {
                    kept = rest.len() as u8;
                }
            }
            None if key < prefix => kept = LOW,
            None => bytes.fill(0xFF),
        }
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * i..8 * i + 8]);
            u64::from_be_bytes(word)
        };
        let is_copy = record.flags() & FLAG_RELOCATED != 0;
        let slot = slot_of(record).with_older_versions(kept).with_depth(u8::from(is_copy));
        ReplayEntry { key: std::array::from_fn(word), sequence: record.version(), slot }
    }

    fn is_long(&self) -> bool {
        self.slot.older_versions() >= LOW
    }

    /// Orders entries with equal words: of two such keys one is the other with zeros added, unless one is long.
    fn rank(&self) -> i16 {
        if self.slot.older_versions() == LOW { -1 } else { i16::from(self.slot.older_versions()) }
    }

    /// Appends the bytes kept of a key that is not long.
    fn extend(&self, key: &mut Vec<u8>) {
        let bytes = self.key.map(u64::to_be_bytes);
        key.extend_from_slice(&bytes.as_flattened()[..usize::from(self.slot.older_versions())]);
    }

    /// Whether the two may have one key, as far as the entries tell: surely, if neither is long.
    fn looks_like(&self, other: &ReplayEntry) -> bool {
        let same_class = (self.rank() < 0) == (other.rank() < 0);
        self.key == other.key
            && same_class
            && (self.rank() == other.rank() || self.is_long() || other.is_long())
    }
}

/// What walking one segment, or several, gave.
#[derive(Debug, Default)]
struct Walked {
    /// By table; one run from each thread, sorted.
    runs: HashMap<u32, Vec<Vec<ReplayEntry>>>,
    ends: Vec<SegmentEnd>,
    /// Of the keys of all entries, without the first so many of each as an entry holds.
    long_key_bytes: u64,
    /// After a power cut, records above the watermark: sequence, extent, where the record (or its batch) starts in the segment, relocated.
    above: Vec<Above>,
    /// Changes of the catalog.
    changes: Vec<LoggedChange>,
    /// Copies under schemas that the root's catalog does not know.
    ahead: Vec<SchemaAhead>,
    /// Where rows lie that do not verify, most likely because they were being merged in place.
    torn: Vec<u64>,
    last_sequence: u64,
}

#[derive(Debug, Clone, Copy)]
struct Above {
    sequence: u64,
    extent: u32,
    start: u64,
    offset: u64,
    relocated: bool,
    /// Of a delta: where what it was written over lies.
    below: Option<u64>,
}

/// A copy of a row under a schema that only a change in the log may explain.
#[derive(Debug, Clone, Copy)]
struct SchemaAhead {
    table: u32,
    version: u16,
    offset: u64,
    sequence: u64,
}

/// By table, in the order they were met.
type ReplayEntries = HashMap<u32, Vec<ReplayEntry>>;

/// The table whose records are being walked.
struct TableEntries<'p> {
    id: u32,
    entries: Vec<ReplayEntry>,
    prefix: &'p [u8],
    /// Of its schema in the root's catalog.
    version: u16,
}

/// The common prefix of a table's keys, as far as a sample shows.
type Prefixes = HashMap<u32, Vec<u8>>;

/// What a walk over segments gave, with the catalog as it is after it.
pub(super) struct WalkedLog {
    prefixes: Prefixes,
    walked: Walked,
}

impl WalkedLog {
    /// About as much as its keys take in the index at most: of all rows and deltas, for no more keys than these are brought back.
    pub(super) fn index_bytes(&self) -> u64 {
        let records = self.walked.runs.values().flatten().map(Vec::len).sum::<usize>();
        // Leaves are not full, and all of a long key is in one.
        records as u64 * KEY_BYTES_IN_INDEX + self.walked.long_key_bytes * 5 / 4
    }
}

/// What opening brings back, and what it needs of the store for that.
pub(super) struct Recovery<'e> {
    pub(super) log: &'e Log,
    pub(super) catalog: &'e Catalog,
    pub(super) runs: &'e Runs,
    /// Records of this opening are durable before they are published.
    pub(super) persists_in_place: bool,
    /// What memory has no room for.
    pub(super) seal: SealAtOpening<'e>,
}

impl Recovery<'_> {
    /// Brings the catalog of a store that is looked at up to date with the log, as far as that can be read. What is wrong with it is
    /// told by whoever reads all of it.
    pub(super) fn catalog_only(&self, found: &OpenState, threads: usize) {
        let walked = if self.catalog.replays() { self.walk_all(found, None, threads).ok() } else { None };
        if let Some(mut walked) = walked {
            drop(self.catch_up(&mut walked, found));
        }
    }

    /// What the crash took away, and what it left of the catalog's changes.
    fn catch_up(&self, walked: &mut Walked, found: &OpenState) -> Result<()> {
        if found.power_cut {
            self.cut(walked, found.watermark);
        }
        let replayed = self.catalog.replay_changes(self.log, &walked.changes, walked.last_sequence);
        replayed.map_err(|mut wrong| wrong.swap_remove(0))?;
        if found.power_cut {
            self.cut_ahead(walked);
        }
        Ok(())
    }

    /// Fills the indexes from the log. The root's catalog has been loaded.
    pub(super) fn run(&self, found: &OpenState, threads: usize) -> Result<()> {
        let (ends, last_sequence) = self.fill(self.walk(found, threads)?, None, threads)?;
        self.end(ends, last_sequence, found)
    }

    /// What was replayed is the whole past.
    pub(super) fn end(&self, ends: Vec<SegmentEnd>, last_sequence: u64, found: &OpenState) -> Result<()> {
        let upgraded = self.catalog.upgraded_catalog(last_sequence);
        self.log.recovered(ends, last_sequence, found, self.persists_in_place, upgraded)
    }

    /// Walks the segments that were found, and brings the catalog up to date with them: what is done to tables is done to these from now on.
    pub(super) fn walk(&self, found: &OpenState, threads: usize) -> Result<WalkedLog> {
        let prefixes = sample_prefixes(self.log, &found.segments)?;
        let mut walked = self.walk_all(found, Some(&prefixes), threads)?;
        self.catch_up(&mut walked, found)?;
        Ok(WalkedLog { prefixes, walked })
    }

    /// Fills the indexes from what was walked, over what is there already if there is a `base`. Returns where the segments end, and the last sequence.
    pub(super) fn fill(
        &self,
        WalkedLog { prefixes, mut walked }: WalkedLog,
        base: Option<&dyn BaseVersions>,
        threads: usize,
    ) -> Result<(Vec<SegmentEnd>, u64)> {
        walked.changes.iter().for_each(|change| count_change(self.log, change.offset, change.bytes));
        let mut of_tables: Vec<_> = std::mem::take(&mut walked.runs).into_iter().collect();
        // The largest last: its keys are what memory has no room for.
        of_tables.sort_by_cached_key(|(_, runs)| runs.iter().map(Vec::len).sum::<usize>());
        for (id, runs) in of_tables {
            let Some(table) = self.catalog.by_id(id) else {
                // A dropped table's rows: nothing refers to them any more.
                let mut by_extent: HashMap<u32, u64> = HashMap::new();
                for slot in runs.iter().flatten().map(|entry| entry.slot) {
                    let bytes = self.record_bytes(slot)?;
                    self.log.add_obsolete(slot.offset(), bytes);
                    *by_extent.entry((slot.offset() / self.log.extent_bytes()) as u32).or_default() += bytes;
                }
                by_extent.into_iter().for_each(|(extent, bytes)| self.log.record_vanished(extent, bytes));
                continue;
            };
            let prefix = prefixes.get(&id).map_or(&[][..], Vec::as_slice);
            self.build_index(&table, (&runs, prefix), base, threads)?;
        }
        for &offset in &walked.torn {
            let guard = self.log.pin();
            let torn = guard.view().verified_record(offset)?;
            mend_torn(guard.view(), self.catalog, &guard, &torn)?;
        }
        Ok((walked.ends, walked.last_sequence))
    }

    /// Walks all segments; without `prefixes` no entries are made of rows.
    fn walk_all(&self, found: &OpenState, prefixes: Option<&Prefixes>, threads: usize) -> Result<Walked> {
        let next = AtomicUsize::new(0);
        let total = Mutex::new(Ok(Walked { last_sequence: found.watermark, ..Walked::default() }));
        let work = || {
            let (mut mine, mut entries) = (Walked::default(), ReplayEntries::new());
            let outcome = loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(&extent) = found.segments.get(i) else { break Ok(()) };
                if let Some(&later) = found.segments.get(i + SEGMENTS_AHEAD) {
                    self.log.will_walk(later);
                }
                if let Err(error) = self.walk_segment(extent, found, prefixes, &mut mine, &mut entries) {
                    break Err(error);
                }
                // By the thread that has just read them: they are in memory still, and no slice of them is held.
                mine.ends.last().into_iter().for_each(|end| self.log.rewrite_walked(found, end));
            };
            for (table, mut entries) in entries {
                entries.sort_unstable_by(by_key);
                mine.runs.insert(table, vec![entries]);
            }
            let mut total = total.lock();
            match (&mut *total, outcome) {
                (Ok(total), Ok(())) => total.absorb(mine),
                (Ok(_), Err(error)) => *total = Err(error),
                (Err(_), _) => {}
            }
        };
        share_work("open", threads.min(found.segments.len()), work);
        total.into_inner()
    }

    fn walk_segment(
        &self,
        extent: u32,
        found: &OpenState,
        prefixes: Option<&Prefixes>,
        walked: &mut Walked,
        entries: &mut ReplayEntries,
    ) -> Result<()> {
        let Some(mut walk) = self.log.walk(extent) else { return Ok(()) };
        let (mut max_sequence, mut deltas) = (0, Deltas::default());
        let mut current: Option<TableEntries<'_>> = None;
        while let Some(record) = walk.next_record()? {
            max_sequence = max_sequence.max(record.sequence());
            if record.kind() == RecordKind::Delta {
                deltas = deltas.with(record.record_bytes());
            }
            if found.power_cut && record.sequence() > found.watermark {
                walked.above.push(Above {
                    sequence: record.sequence(),
                    extent,
                    start: walk.write_start(),
                    offset: record.offset(),
                    relocated: record.flags() & FLAG_RELOCATED != 0,
                    below: record.previous().filter(|_| !record.ends_version()).map(RecordRef::offset),
                });
            }
            if record.changes_catalog() {
                walked.changes.push(LoggedChange::of(&record));
                continue;
            }
            if !record.is_verified() {
                walked.torn.push(record.offset());
            }
            let Some(prefixes) = prefixes else { continue };
            if let Some(at_ms) = record.expires_at_ms().filter(|&at_ms| at_ms != 0) {
                self.log.record_expiry(record.offset(), at_ms);
            }
            if current.as_ref().is_none_or(|of_table| of_table.id != record.table()) {
                entries.extend(current.take().map(|of_table| (of_table.id, of_table.entries)));
                current = Some(self.entries_of(record.table(), prefixes, entries));
            }
            if let Some(of_table) = &mut current {
                of_table.entries.push(ReplayEntry::new(&record, of_table.prefix));
                walked.long_key_bytes += record.key().len().saturating_sub(ENTRY_KEY_BYTES) as u64;
                let (table, version) = (record.table(), record.schema_version());
                if record.flags() & FLAG_RELOCATED != 0 && version > of_table.version {
                    let (offset, sequence) = (record.offset(), record.sequence());
                    walked.ahead.push(SchemaAhead { table, version, offset, sequence });
                }
            }
        }
        entries.extend(current.map(|of_table| (of_table.id, of_table.entries)));
        let end = checked_end(&walk, found)?;
        walked.last_sequence = walked.last_sequence.max(max_sequence);
        walked.ends.push(SegmentEnd { extent, end: end.end, max_sequence, deltas });
        Ok(())
    }

    fn entries_of<'p>(
        &self,
        id: u32,
        prefixes: &'p Prefixes,
        entries: &mut ReplayEntries,
    ) -> TableEntries<'p> {
        TableEntries {
            id,
            entries: entries.remove(&id).unwrap_or_default(),
            prefix: prefixes.get(&id).map_or(&[][..], Vec::as_slice),
            version: self.catalog.by_id(id).map_or(0, |table| table.schema.load().version()),
        }
    }

    /// Drops the copies that were written under a change of the catalog which the cut took away. What was copied is older than the
    /// change, and there still: nothing is freed before all is durable.
    fn cut_ahead(&self, walked: &mut Walked) {
        let known = |table| self.catalog.by_id(table).map(|table| table.schema.load().version());
        let is_cut = |ahead: &&SchemaAhead| known(ahead.table).is_some_and(|version| ahead.version > version);
        let mut cut: HashMap<u32, HashSet<u64>> = HashMap::new();
        for ahead in walked.ahead.iter().filter(is_cut) {
            self.log.invalidate(ahead.offset);
            cut.entry(ahead.table).or_default().insert(ahead.offset);
        }
        for (table, offsets) in cut {
            let runs = walked.runs.get_mut(&table).into_iter().flatten();
            runs.for_each(|entries| entries.retain(|entry| !offsets.contains(&entry.slot.offset())));
        }
    }

    /// Drops everything from the first missing sequence on.
    fn cut(&self, walked: &mut Walked, watermark: u64) {
        let mut sequences: Vec<u64> =
            walked.above.iter().filter(|a| !a.relocated).map(|a| a.sequence).collect();
        sequences.sort_unstable();
        sequences.dedup();
        let gap = sequences.iter().zip(watermark + 1..).find(|&(&s, expected)| s != expected);
        let first_missing = gap.map_or(watermark + sequences.len() as u64 + 1, |(_, expected)| expected);
        let first_missing = self.first_baseless(walked).unwrap_or(u64::MAX).min(first_missing);
        let mut ends: HashMap<u32, &mut SegmentEnd> =
            walked.ends.iter_mut().map(|end| (end.extent, end)).collect();
        for above in walked.above.iter().filter(|a| a.sequence >= first_missing) {
            if above.relocated {
                self.log.invalidate(above.offset);
            } else if let Some(end) = ends.get_mut(&above.extent) {
                end.end = end.end.min(above.start);
                end.max_sequence = end.max_sequence.min(first_missing - 1);
            }
        }
        let runs = walked.runs.values_mut().flatten();
        runs.for_each(|entries| entries.retain(|n| n.sequence < first_missing));
        walked.changes.retain(|change| change.sequence < first_missing);
        // Those are invalidated now, and to invalidate them once more would make them valid.
        walked.ahead.retain(|ahead| ahead.sequence < first_missing);
    }

    /// The sequence of the first delta above the watermark that was written over a copy (relocated, or merged) which is
    /// lost. What was copied is all there under its own sequences, but the delta does not say so. It was never
    /// acknowledged as durable: the sync that would have made it so would have made the copy durable, too.
    fn first_baseless(&self, walked: &Walked) -> Option<u64> {
        let start = |end: &SegmentEnd| u64::from(end.extent) * self.log.extent_bytes();
        let walked_to: BTreeMap<u64, u64> =
            walked.ends.iter().map(|e| (start(e), start(e) + e.end)).collect();
        let is_lost = |place: u64| walked_to.range(..=place).next_back().is_none_or(|(_, &end)| place >= end);
        walked.above.iter().filter(|a| a.below.is_some_and(is_lost)).map(|a| a.sequence).min()
    }

    /// Builds a table's index from its entries.
    fn build_index(
        &self,
        table: &TableShared,
        (runs, prefix): (&[Vec<ReplayEntry>], &[u8]),
        base: Option<&dyn BaseVersions>,
        threads: usize,
    ) -> Result<()> {
        let ranges = key_ranges(runs, threads);
        let records = runs.iter().map(|run| run.len() as u64).sum::<u64>();
        let separator_at =
            |i: usize| ranges.get(i).filter(|_| i > 0).map(|range| separator(prefix, &range.from));
        let build = |i: usize| {
            let keys = (separator_at(i), separator_at(i + 1));
            let target = match base {
                Some(base) => IndexTarget::Over(base),
                None => {
                    let levels = self.catalog.levels_builder(keys);
                    let seal = self.seal.of_records(records, ranges.len() as u64);
                    IndexTarget::Built(Box::new(levels.sealing(seal)))
                }
            };
            let building = Building { target, table, prefix, key: Vec::new(), expiring: 0 };
            self.gather(&ranges[i].runs, building)
        };
        let mut parts = make_parts("open", ranges.len(), build).into_iter().rev();
        let Some(last) = parts.next() else { return Ok(()) };
        let whole = parts.fold(last, |right, left| left?.join(right?))?;
        if let IndexTarget::Built(levels) = whole.target {
            table.levels.build(*levels)?;
            table.expiry.reset(whole.expiring);
        }
        Ok(())
    }

    /// Resolves the versions of all keys of sorted runs.
    fn gather<'p>(&self, runs: &[&[ReplayEntry]], mut building: Building<'p>) -> Result<Building<'p>> {
        let mut alike: Vec<ReplayEntry> = Vec::new();
        for entry in MergedRuns::new(runs) {
            if alike.first().is_some_and(|first| !first.looks_like(&entry)) {
                self.resolve_versions(&alike, &mut building)?;
                alike.clear();
            }
            alike.push(entry);
        }
        self.resolve_versions(&alike, &mut building)?;
        Ok(building)
    }

    /// Resolves records that look as if they had one key, newest first if they surely do.
    fn resolve_versions(&self, alike: &[ReplayEntry], building: &mut Building<'_>) -> Result<()> {
        match alike {
            [] => Ok(()),
            [_, _, ..] if alike.iter().any(ReplayEntry::is_long) => self.resolve_long_keys(alike, building),
            _ => self.resolve_key(alike, building),
        }
    }

    /// Resolves several records that cannot be told apart without their keys.
    fn resolve_long_keys(&self, run: &[ReplayEntry], building: &mut Building<'_>) -> Result<()> {
        let guard = self.log.pin();
        let mut keyed = Vec::with_capacity(run.len());
        for entry in run {
            keyed.push((guard.view().record(entry.slot.offset())?.key(), *entry));
        }
        keyed.sort_by(|(a, x), (b, y)| a.cmp(b).then(newest_first(x, y)));
        for versions in keyed.chunk_by(|(a, _), (b, _)| a == b) {
            let entries: Vec<ReplayEntry> = versions.iter().map(|(_, entry)| *entry).collect();
            self.resolve_key(&entries, building)?;
        }
        Ok(())
    }

    /// Bytes of a record as they are counted: by its class, but for one that may be longer than the largest.
    fn record_bytes(&self, slot: LogSlot) -> Result<u64> {
        if !slot.bytes_unknown() {
            return Ok(slot.bytes());
        }
        let guard = self.log.pin();
        Ok(guard.view().record(slot.offset())?.record_bytes() as u64)
    }

    /// Makes the slot of a key from all its versions, newest first.
    fn resolve_key(&self, versions: &[ReplayEntry], building: &mut Building<'_>) -> Result<()> {
        self.take_key(&versions[0], building)?;
        let base = building.base()?;
        let newest = versions[0].slot;
        let mut chain = SmallVec::<[u64; 8]>::from_slice(&[newest.offset()]);
        let (mut expires, mut is_blind) = (newest.expires(), newest.tag() == Tag::Blind);
        match newest.tag() {
            Tag::Delta => {
                let found = chain_below(self.log.pin().view(), &mut chain)?;
                (expires, is_blind) = (found.expires_at_ms.is_some(), found.is_blind);
                if let [.., row] = chain[..]
                    && !is_blind
                {
                    self.log.chain_begun(row);
                }
            }
            Tag::Row | Tag::Tombstone | Tag::Cached | Tag::Blind | Tag::Reserved => {}
        }
        for older in &versions[1..] {
            if !chain.contains(&older.slot.offset()) {
                self.log.add_obsolete(older.slot.offset(), self.record_bytes(older.slot)?);
            }
        }
        let of_base = match (base, &building.target) {
            (Some(base), IndexTarget::Over(over)) => self.count_base(base, *over, &chain),
            _ => 0,
        };
        let older = (versions.len() + of_base).saturating_sub(chain.len());
        let older = older.min(usize::from(Slot::OLDER_VERSIONS_SATURATED)) as u8;
        let slot = match is_blind {
            true => newest.blind().with_depth(chain.len() as u8),
            false => newest.with_depth((chain.len() - 1) as u8),
        };
        let slot = slot.with_expires(expires).with_older_versions(older);
        let slot = self.tombstone_counted(building.table, &building.key, slot);
        building.push(slot, base, self.log)
    }

    /// The key of an entry, whole.
    fn take_key(&self, entry: &ReplayEntry, building: &mut Building<'_>) -> Result<()> {
        let Building { prefix, key, .. } = building;
        key.clear();
        if entry.is_long() {
            let guard = self.log.pin();
            key.extend_from_slice(guard.view().record(entry.slot.offset())?.key());
        } else {
            key.extend_from_slice(prefix);
            entry.extend(key);
        }
        Ok(())
    }

    /// The slot of a key, marked if it is a tombstone that hides what is below. One that has nothing to hide counts as obsolete: gc drops it with its record.
    fn tombstone_counted(&self, table: &TableShared, key: &[u8], slot: LogSlot) -> LogSlot {
        if slot.tag() != Tag::Tombstone {
            return slot;
        }
        // What a group has of the key is of a record that is in the log.
        let may_be_sealed = || table.levels.has_groups() && table.levels.may_be_sealed(key, &self.log.pin());
        let hides = self.runs.may_hold(table.id.load(Ordering::Relaxed), key) || may_be_sealed();
        let slot = slot.with_hides_below(hides);
        if is_droppable_tombstone(*slot) {
            self.log.add_obsolete(slot.offset(), slot.bytes());
        }
        slot
    }
}

/// The places of a delta chain's records, from the newest, which `chain` holds, down to the row, or to the delta under which the log has nothing.
pub(super) fn chain_below(log: LogView<'_>, chain: &mut SmallVec<[u64; 8]>) -> Result<ChainFound> {
    let mut record = log.record(chain[0])?;
    let mut word = record.expires_at_ms();
    while !record.ends_version() {
        let Some(previous) = record.previous().filter(|_| chain.len() <= Slot::DEPTH_MAX as usize) else {
            return Err(broken_chain(&record));
        };
        let below = log.record(previous.offset()).map_err(|_| broken_chain(&record))?;
        if below.key() != record.key() || below.sequence() >= record.sequence() {
            return Err(broken_chain(&record));
        }
        chain.push(previous.offset());
        word = word.or(below.expires_at_ms());
        record = below;
    }
    match record.kind() {
        RecordKind::Row => {
            Ok(ChainFound { expires_at_ms: word.filter(|&at_ms| at_ms != 0), is_blind: false })
        }
        RecordKind::Delta => Ok(ChainFound { expires_at_ms: None, is_blind: true }),
        RecordKind::Tombstone | RecordKind::Batch => Err(broken_chain(&record)),
    }
}

/// What the records of a chain come to.
pub(super) struct ChainFound {
    /// When the row expires, by the newest record that says so.
    pub(super) expires_at_ms: Option<u64>,
    /// It ends in a delta whose row is not in the log.
    pub(super) is_blind: bool,
}

/// Where a walk ended, if the records after it may be missing.
pub(super) fn checked_end(walk: &SegmentWalk<'_>, found: &OpenState) -> Result<WalkEnd> {
    let end = walk.end()?;
    // A killed process leaves no holes; a power cut leaves none where all was durable.
    let hole = match found.power_cut {
        false => end.beyond || end.dirty,
        true => end.beyond_sequence.is_some_and(|sequence| sequence <= found.watermark),
    };
    if hole { Err(walk.corrupted(end.end as usize)) } else { Ok(end) }
}

fn broken_chain(record: &Record<'_>) -> Error {
    Error::corrupted(format!(
        "the delta at byte {} of the fast tier (key {}) refers to a version that is not there",
        record.offset(),
        record.key().escape_ascii()
    ))
}

impl Walked {
    fn absorb(&mut self, other: Walked) {
        for (table, runs) in other.runs {
            self.runs.entry(table).or_default().extend(runs);
        }
        self.ends.extend(other.ends);
        self.long_key_bytes += other.long_key_bytes;
        self.torn.extend(other.torn);
        self.above.extend(other.above);
        self.changes.extend(other.changes);
        self.ahead.extend(other.ahead);
        self.last_sequence = self.last_sequence.max(other.last_sequence);
    }
}

pub(super) fn slot_of(record: &Record<'_>) -> LogSlot {
    let tag = match record.kind() {
        RecordKind::Row | RecordKind::Batch => Tag::Row,
        RecordKind::Delta if record.ends_version() => Tag::Blind,
        RecordKind::Delta => Tag::Delta,
        RecordKind::Tombstone => Tag::Tombstone,
    };
    let expires = record.expires_at_ms().is_some_and(|at_ms| at_ms != 0);
    LogSlot::new(tag, record.offset(), record.record_bytes() as u64).with_expires(expires)
}

/// Looks at a few records of every segment.
fn sample_prefixes(log: &Log, segments: &[u32]) -> Result<Prefixes> {
    let mut prefixes = Prefixes::new();
    for &extent in segments {
        let Some(mut walk) = log.walk(extent) else { continue };
        for _ in 0..8 {
            let Some(record) = walk.next_record()? else { break };
            let key = record.key();
            prefixes
                .entry(record.table())
                .and_modify(|prefix| {
                    let common = prefix.iter().zip(key).take_while(|(a, b)| a == b).count();
                    prefix.truncate(common);
                })
                .or_insert_with(|| key[..key.len() - 1].to_vec());
        }
    }
    Ok(prefixes)
}

/// Newest sequence first; of a relocated row and what it was merged from, the row; and of a relocated delta and those that it was folded from, it: what
/// is below them may be freed by now.
fn newest_first(a: &ReplayEntry, b: &ReplayEntry) -> std::cmp::Ordering {
    let rank = |n: &ReplayEntry| (n.slot.tag() == Tag::Row, n.slot.depth());
    b.sequence.cmp(&a.sequence).then_with(|| rank(b).cmp(&rank(a)))
}

/// Orders by key as far as the entry has it, then newest first. Long keys that look alike are put in order by
/// [`Recovery::resolve_long_keys`].
fn by_key(a: &ReplayEntry, b: &ReplayEntry) -> std::cmp::Ordering {
    a.key.cmp(&b.key).then_with(|| a.rank().cmp(&b.rank())).then_with(|| newest_first(a, b))
}

/// Part of each sorted run: all entries of a range of keys.
struct KeyRange<'r> {
    /// Where the range begins.
    from: KeyWords,
    runs: Vec<&'r [ReplayEntry]>,
}

/// Cuts sorted runs into at most `count` ranges of about equally many entries, each with at least one. Entries that look alike
/// have the same words and stay together.
fn key_ranges(runs: &[Vec<ReplayEntry>], count: usize) -> Vec<KeyRange<'_>> {
    /// Below this a thread of its own costs more than it gains.
    const ENTRIES_MIN: usize = 4096;
    let count = count.min(runs.iter().map(Vec::len).sum::<usize>() / ENTRIES_MIN + 1);
    let mut rest: Vec<&[ReplayEntry]> = runs.iter().map(Vec::as_slice).collect();
    let mut ranges = Vec::new();
    let mut from = KeyWords::default();
    for left in (1..=count).rev() {
        let longest = rest.iter().max_by_key(|run| run.len()).copied().unwrap_or_default();
        let (mut range, mut after) = (rest.clone(), Vec::new());
        let mut next = from;
        if left > 1 && longest.len() >= ENTRIES_MIN {
            next = longest[longest.len() / left].key;
            (range, after) =
                rest.iter().map(|run| run.split_at(run.partition_point(|n| n.key < next))).unzip();
        }
        if range.iter().all(|run| run.is_empty()) {
            // All keys so far look alike up to here: the next range takes them.
            continue;
        }
        ranges.push(KeyRange { from, runs: range });
        (rest, from) = (after, next);
        if rest.is_empty() {
            break;
        }
    }
    ranges
}

/// The least key whose words, after `prefix`, are `from` or more. `from` is not zero.
fn separator(prefix: &[u8], from: &KeyWords) -> Vec<u8> {
    let words = from.map(u64::to_be_bytes);
    let bytes = words.as_flattened();
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    [prefix, &bytes[..end]].concat()
}

/// Sorted runs as one. There are as many as there were threads: few enough to look at each.
struct MergedRuns<'r> {
    runs: Vec<&'r [ReplayEntry]>,
}

impl<'r> MergedRuns<'r> {
    fn new(runs: &[&'r [ReplayEntry]]) -> MergedRuns<'r> {
        MergedRuns { runs: runs.iter().copied().filter(|run| !run.is_empty()).collect() }
    }
}

impl Iterator for MergedRuns<'_> {
    type Item = ReplayEntry;

    #[inline]
    fn next(&mut self) -> Option<ReplayEntry> {
        let mut least = 0;
        for i in 1..self.runs.len() {
            if by_key(&self.runs[i][0], &self.runs[least][0]).is_lt() {
                least = i;
            }
        }
        let (entry, rest) = self.runs.get(least)?.split_first()?;
        if rest.is_empty() {
            self.runs.swap_remove(least);
        } else {
            self.runs[least] = rest;
        }
        Some(*entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(words: KeyWords) -> ReplayEntry {
        ReplayEntry { key: words, sequence: 1, slot: LogSlot::new(Tag::Row, 0, 32) }
    }

    #[test]
    fn ranges_cover_all_entries_and_keep_like_together() {
        let few = |n: u64| vec![entry([n, 0, 0]); 3];
        let spread = |seed: u64| {
            let mut run: Vec<ReplayEntry> = (0..9000).map(|n| entry([n * seed % 5000, n % 3, 0])).collect();
            run.sort_by_key(|n| n.key);
            run
        };
        assert_eq!(key_ranges(&[spread(3)], usize::MAX).len(), 3, "each worth a thread");
        let same = vec![entry([7, 7, 7]); 20_000];
        for (runs, at_least) in [
            (vec![], 0),
            (vec![few(1), few(2)], 1),
            (vec![same.clone(), same.clone()], 1),
            (vec![same.clone(), spread(3)], 2),
            (vec![spread(3), spread(7), few(9)], 4),
        ] {
            let ranges = key_ranges(&runs, 4);
            assert!(ranges.len() >= at_least && ranges.len() <= 4);
            for (at, run) in runs.iter().enumerate() {
                let joined: Vec<KeyWords> =
                    ranges.iter().flat_map(|range| range.runs[at].iter().map(|n| n.key)).collect();
                assert!(joined.iter().eq(run.iter().map(|n| &n.key)));
            }
            for (left, right) in ranges.iter().zip(ranges.iter().skip(1)) {
                assert!(left.runs.iter().any(|run| !run.is_empty()));
                assert!(left.runs.iter().flat_map(|run| run.iter()).all(|n| n.key < right.from));
                assert!(right.runs.iter().flat_map(|run| run.iter()).all(|n| n.key >= right.from));
            }
        }
    }

    #[test]
    fn a_separator_divides_keys_as_their_words_do() {
        let words = |bytes: &[u8]| {
            let mut padded = [0; ENTRY_KEY_BYTES];
            padded[..bytes.len()].copy_from_slice(bytes);
            std::array::from_fn(|i| u64::from_be_bytes(padded[8 * i..8 * i + 8].try_into().unwrap()))
        };
        let tails: Vec<Vec<u8>> = [&b""[..], b"\0", b"a", b"a\0", b"a\0\0b", b"ab", b"b", b"\xff\xff"]
            .iter()
            .map(|tail| tail.to_vec())
            .collect();
        for from in &tails {
            let from: KeyWords = words(from);
            if from == KeyWords::default() {
                continue;
            }
            let separator = separator(b"pre", &from);
            for tail in &tails {
                let key = [&b"pre"[..], tail].concat();
                assert_eq!(words(tail) >= from, key >= separator, "{tail:?} and {separator:?}");
            }
        }
    }
}
