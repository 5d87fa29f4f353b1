//! Opening after a crash, or after a clean close: the same path.
//!
//! 1. Walk all segments in parallel; verify every record to its last byte; note key head, sequence and place of each.
//! 2. After a power cut, find the first sequence that is missing above the watermark: the log is cut there, so that what
//!    is left is a prefix. (After a killed process every store survived, and nothing is cut.)
//! 3. Sort each table's notes by key and sequence, let the newest version of a key decide what its slot says, count the
//!    older ones as dead, and build the table's index bottom-up.
//! 4. Seal every segment where its records end, and take sequences above all that were ever seen.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::store::{Store, TableShared, index_full};
use crate::index::{IndexBuilder, Slot, Tag};
use crate::log::format::{FLAG_RELOCATED, Record, RecordKind};
use crate::log::{Found, Log, SegmentEnd};
use crate::{Error, Result};

/// How far ahead record heads are prefetched where they are read in key order.
const PREFETCH_AHEAD: usize = 24;

/// How full the leaves of a rebuilt index are.
const FILL_PERCENT: u32 = 90;

/// What a table's index is built from.
#[derive(Debug, Default)]
struct Live {
    /// In key order.
    slots: Vec<Slot>,
    tombstones: u64,
    expiring: bool,
}

/// One record, noted while walking: enough to sort without touching the log again.
#[derive(Debug, Clone, Copy)]
struct Note {
    /// The 8 key bytes after the table's common prefix; ties are settled by the keys themselves.
    head: u64,
    sequence: u64,
    /// A slot that points at the record, without a stale count.
    slot: Slot,
}

/// What walking one segment, or several, gave.
#[derive(Debug, Default)]
struct Walked {
    notes: HashMap<u32, Vec<Note>>,
    ends: Vec<SegmentEnd>,
    /// Records above the watermark: sequence, unit, where the record (or its batch) starts in the segment, relocated.
    above: Vec<Above>,
    last_sequence: u64,
}

#[derive(Debug, Clone, Copy)]
struct Above {
    sequence: u64,
    unit: u32,
    start: u64,
    offset: u64,
    relocated: bool,
}

/// The common prefix of a table's keys, as far as a sample shows.
type Prefixes = HashMap<u32, Vec<u8>>;

impl Store {
    /// Fills the indexes from the log. The catalog has been loaded.
    pub(super) fn recover(&self, found: &Found, threads: usize) -> Result<()> {
        let prefixes = sample_prefixes(&self.log, &found.segments)?;
        let mut walked = self.walk_all(found, &prefixes, threads)?;
        if found.power_cut {
            self.cut(&mut walked, found.watermark);
        }
        for (id, notes) in std::mem::take(&mut walked.notes) {
            let Some(table) = self.catalog.by_id(id) else {
                // A dropped table's rows: nothing refers to them any more.
                notes.iter().for_each(|n| self.log.died(n.slot.offset(), n.slot.bytes()));
                continue;
            };
            let sorted = sort_notes(notes, threads);
            self.build_index(&table, &sorted)?;
        }
        self.log.recovered(&walked.ends, walked.last_sequence)
    }

    fn walk_all(&self, found: &Found, prefixes: &Prefixes, threads: usize) -> Result<Walked> {
        let next = AtomicUsize::new(0);
        let total = Mutex::new(Ok(Walked { last_sequence: found.watermark, ..Walked::default() }));
        let work = || {
            let mut mine = Walked::default();
            let outcome = loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(&unit) = found.segments.get(i) else { break Ok(()) };
                if let Err(error) = self.walk_segment(unit, found, prefixes, &mut mine) {
                    break Err(error);
                }
            };
            let mut total = total.lock();
            match (&mut *total, outcome) {
                (Ok(total), Ok(())) => total.absorb(mine),
                (Ok(_), Err(error)) => *total = Err(error),
                (Err(_), _) => {}
            }
        };
        std::thread::scope(|scope| {
            (1..threads.clamp(1, found.segments.len().max(1))).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        total.into_inner()
    }

    fn walk_segment(
        &self,
        unit: u32,
        found: &Found,
        prefixes: &Prefixes,
        walked: &mut Walked,
    ) -> Result<()> {
        let Some(mut walk) = self.log.walk(unit) else { return Ok(()) };
        let mut max_sequence = 0;
        let mut current: Option<(u32, Vec<Note>, &[u8])> = None;
        while let Some(record) = walk.next_record()? {
            max_sequence = max_sequence.max(record.sequence());
            if record.sequence() > found.watermark {
                walked.above.push(Above {
                    sequence: record.sequence(),
                    unit,
                    start: walk.unit_start(),
                    offset: record.offset(),
                    relocated: record.flags() & FLAG_RELOCATED != 0,
                });
            }
            let table = record.table();
            if current.as_ref().is_none_or(|(id, ..)| *id != table) {
                if let Some((id, notes, _)) = current.take() {
                    walked.notes.insert(id, notes);
                }
                let prefix = prefixes.get(&table).map_or(&[][..], Vec::as_slice);
                current = Some((table, walked.notes.remove(&table).unwrap_or_default(), prefix));
            }
            if let Some((_, notes, prefix)) = &mut current {
                notes.push(Note {
                    head: key_head(record.key(), prefix),
                    sequence: record.sequence(),
                    slot: slot_of(&record),
                });
            }
        }
        if let Some((id, notes, _)) = current {
            walked.notes.insert(id, notes);
        }
        let end = walk.end();
        if let Some(sequence) = end.beyond
            && (!found.power_cut || sequence <= found.watermark)
        {
            return Err(walk.corrupted(end.end as usize));
        }
        walked.last_sequence = walked.last_sequence.max(max_sequence);
        walked.ends.push(SegmentEnd { unit, end: end.end, max_sequence });
        Ok(())
    }

    /// Drops everything from the first missing sequence on.
    fn cut(&self, walked: &mut Walked, watermark: u64) {
        let mut sequences: Vec<u64> =
            walked.above.iter().filter(|a| !a.relocated).map(|a| a.sequence).collect();
        sequences.sort_unstable();
        sequences.dedup();
        let gap = sequences.iter().zip(watermark + 1..).find(|&(&s, expected)| s != expected);
        let first_missing = gap.map_or(watermark + sequences.len() as u64 + 1, |(_, expected)| expected);
        let mut ends: HashMap<u32, &mut SegmentEnd> =
            walked.ends.iter_mut().map(|end| (end.unit, end)).collect();
        for above in walked.above.iter().filter(|a| a.sequence >= first_missing) {
            if above.relocated {
                self.log.make_void(above.offset);
            } else if let Some(end) = ends.get_mut(&above.unit) {
                end.end = end.end.min(above.start);
                end.max_sequence = end.max_sequence.min(first_missing - 1);
            }
        }
        walked.notes.values_mut().for_each(|notes| notes.retain(|n| n.sequence < first_missing));
    }

    /// Builds a table's index from its notes, sorted by key and then from the newest sequence to the oldest.
    fn build_index(&self, table: &TableShared, sorted: &[Note]) -> Result<()> {
        let mut live = Live { slots: Vec::with_capacity(sorted.len()), ..Live::default() };
        let mut at = 0;
        while at < sorted.len() {
            if let Some(ahead) = sorted.get(at + PREFETCH_AHEAD) {
                self.log.prefetch(ahead.slot.offset());
            }
            let same_head = sorted[at..].iter().take_while(|n| n.head == sorted[at].head).count();
            let run = &sorted[at..at + same_head];
            if same_head == 1 {
                self.decide(run, &mut live)?;
            } else {
                self.decide_run(run, &mut live)?;
            }
            at += same_head;
        }
        let mut builder = IndexBuilder::new(Arc::clone(&self.arena), Arc::clone(&self.epoch), FILL_PERCENT);
        for (i, &slot) in live.slots.iter().enumerate() {
            if let Some(ahead) = live.slots.get(i + PREFETCH_AHEAD) {
                self.log.prefetch(ahead.offset());
            }
            builder.push(self.log.record(slot.offset())?.key(), slot).map_err(index_full)?;
        }
        table.index.replace_with(builder.finish().map_err(index_full)?);
        table.tombstones.store(live.tombstones, Ordering::Relaxed);
        table.expiring.store(live.expiring, Ordering::Relaxed);
        Ok(())
    }

    /// Several records with one head: usually versions of one key, sometimes different keys.
    fn decide_run(&self, run: &[Note], live: &mut Live) -> Result<()> {
        let mut keyed = Vec::with_capacity(run.len());
        for note in run {
            keyed.push((self.log.record(note.slot.offset())?.key(), *note));
        }
        if keyed.iter().any(|(key, _)| *key != keyed[0].0) {
            keyed.sort_by(|(a, x), (b, y)| a.cmp(b).then(newest_first(x, y)));
        }
        for versions in keyed.chunk_by(|(a, _), (b, _)| a == b) {
            let notes: Vec<Note> = versions.iter().map(|(_, note)| *note).collect();
            self.decide(&notes, live)?;
        }
        Ok(())
    }

    /// All versions of one key, newest first: what the slot says.
    fn decide(&self, versions: &[Note], live: &mut Live) -> Result<()> {
        let newest = versions[0].slot;
        let in_chain = match newest.tag() {
            Tag::Row => vec![newest.offset()],
            Tag::Delta => self.chain_of(newest)?,
            Tag::Tombstone if versions.len() == 1 => {
                // Nothing older is left for it to hide.
                self.log.died(newest.offset(), newest.bytes());
                return Ok(());
            }
            Tag::Tombstone | Tag::Reserved => vec![newest.offset()],
        };
        let mut expires = newest.expires();
        for older in &versions[1..] {
            if in_chain.contains(&older.slot.offset()) {
                expires |= older.slot.expires();
            } else {
                self.log.died(older.slot.offset(), older.slot.bytes());
            }
        }
        let stale = versions.len() - in_chain.len().min(versions.len());
        let depth = in_chain.len() - 1;
        let slot = newest.with_depth(depth as u8).with_expires(expires);
        live.slots.push(slot.with_stale(stale.min(usize::from(Slot::STALE_MANY)) as u8));
        live.tombstones += u64::from(newest.tag() == Tag::Tombstone);
        live.expiring |= expires;
        Ok(())
    }

    /// The places of a delta chain's records, from the newest down to the row.
    fn chain_of(&self, newest: Slot) -> Result<Vec<u64>> {
        let mut chain = vec![newest.offset()];
        let mut record = self.log.record(newest.offset())?;
        while record.kind() == RecordKind::Delta {
            let previous = Slot::from_raw(record.previous());
            let Some(previous) = previous.filter(|_| chain.len() <= Slot::DEPTH_MAX as usize) else {
                return Err(broken_chain(&record));
            };
            let below = self.log.record(previous.offset()).map_err(|_| broken_chain(&record))?;
            if below.key() != record.key() || below.sequence() >= record.sequence() {
                return Err(broken_chain(&record));
            }
            chain.push(previous.offset());
            record = below;
        }
        if record.kind() == RecordKind::Row { Ok(chain) } else { Err(broken_chain(&record)) }
    }
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
        for (table, notes) in other.notes {
            match self.notes.entry(table) {
                std::collections::hash_map::Entry::Vacant(entry) => drop(entry.insert(notes)),
                std::collections::hash_map::Entry::Occupied(mut entry) => entry.get_mut().extend(notes),
            }
        }
        self.ends.extend(other.ends);
        self.above.extend(other.above);
        self.last_sequence = self.last_sequence.max(other.last_sequence);
    }
}

fn slot_of(record: &Record<'_>) -> Slot {
    let tag = match record.kind() {
        RecordKind::Row | RecordKind::Batch => Tag::Row,
        RecordKind::Delta => Tag::Delta,
        RecordKind::Tombstone => Tag::Tombstone,
    };
    let expires = record.expires_at_ms().is_some();
    Slot::new(tag, record.offset(), record.record_bytes() as u64).with_expires(expires)
}

/// Looks at a few records of every segment.
fn sample_prefixes(log: &Log, segments: &[u32]) -> Result<Prefixes> {
    let mut prefixes = Prefixes::new();
    for &unit in segments {
        let Some(mut walk) = log.walk(unit) else { continue };
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

/// Orders like the key: keys outside the prefix go to the ends, where ties are settled by the whole key.
fn key_head(key: &[u8], prefix: &[u8]) -> u64 {
    let Some(rest) = key.strip_prefix(prefix) else {
        return if key < prefix { 0 } else { u64::MAX };
    };
    let mut head = [0; 8];
    let bytes = rest.len().min(8);
    head[..bytes].copy_from_slice(&rest[..bytes]);
    u64::from_be_bytes(head)
}

/// Newest sequence first; of a relocated row and what it was merged from, the row.
fn newest_first(a: &Note, b: &Note) -> std::cmp::Ordering {
    let is_row = |n: &Note| n.slot.tag() == Tag::Row;
    b.sequence.cmp(&a.sequence).then(is_row(b).cmp(&is_row(a)))
}

/// Sorts by head, then newest first, in parallel.
fn sort_notes(mut notes: Vec<Note>, threads: usize) -> Vec<Note> {
    let by = |a: &Note, b: &Note| a.head.cmp(&b.head).then_with(|| newest_first(a, b));
    if threads < 2 || notes.len() < 1 << 16 {
        notes.sort_unstable_by(by);
        return notes;
    }
    let parts = threads.next_power_of_two();
    sort_parts(&mut notes, parts, by);
    notes
}

/// Quick-sorts with a thread for each half, down to `parts` pieces.
fn sort_parts(
    notes: &mut [Note],
    parts: usize,
    by: impl Fn(&Note, &Note) -> std::cmp::Ordering + Copy + Send + Sync,
) {
    if parts < 2 || notes.len() < 2 {
        notes.sort_unstable_by(by);
        return;
    }
    let middle = notes.len() / 2;
    let (low, _, high) = notes.select_nth_unstable_by(middle, by);
    std::thread::scope(|scope| {
        scope.spawn(|| sort_parts(low, parts / 2, by));
        sort_parts(high, parts / 2, by);
    });
}
