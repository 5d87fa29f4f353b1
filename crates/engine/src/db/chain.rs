//! The records of one version of a row: a row, or deltas over one.
//!
//! Owns: the walk from the newest record down, and from a version to the one that it replaced; how a slot in memory becomes what a
//! record refers to, and back. Promises: what lies below the
//! newest record is only touched once it is asked for. Must not know: what the records' bodies say (`read.rs`).
//!
//! Where the records of the log end in a *blind* delta, one whose row nobody looked at, those that sorted tables have of the key are the lower part of the chain
//! (`runs.rs`). They are looked for once somebody asks for what is below the deltas in the log; whoever works on the log alone never does.
//!
//! Invariant: a row's `previous` may point into a segment that was freed since; only a snapshot follows it, and only to
//! records that gc keeps for it (`gc.rs`).

use std::cell::OnceCell;
use std::sync::Arc;

use hedgerow_device::CopiedBlocks;
use hedgerow_row::schema::table::TableSchema;
use smallvec::SmallVec;

use super::lower::LowerRecords;
use crate::index::{LogSlot, Slot};
use crate::log::LogView;
use crate::log::format::{Record, RecordKind, RecordRef};
use crate::runs::FoundVersions;
use crate::sst::FoundRecord;
use crate::{Error, Result};

const _: () = assert!(Slot::OFFSET_END == RecordRef::OFFSET_END, "the log ends where slots do");

impl From<LogSlot> for RecordRef {
    /// What a record says that it replaced, which `slot` led to. The words have one layout, so this costs nothing.
    #[inline(always)]
    fn from(slot: LogSlot) -> RecordRef {
        RecordRef::from_word(slot.raw()).expect("a slot is not zero")
    }
}

/// The log slot of the version that `record` replaced, if it refers to one. Its older-version count means nothing any more.
pub(crate) fn replaced_by(record: &Record<'_>) -> Result<Option<LogSlot>> {
    record
        .previous()
        .map(|reference| slot_of(reference).ok_or_else(|| broken_chain(record.offset(), record.key())))
        .transpose()
}

/// `None` for a word that no log slot has: of the cache.
fn slot_of(reference: RecordRef) -> Option<LogSlot> {
    Slot::from_raw(reference.word()).and_then(Slot::in_log)
}

/// What lies below the newest record, a delta.
#[derive(Debug, Default)]
struct Below<'a> {
    /// Newest first, the base row last, if it is there; there are [`Slot::DEPTH_MAX`] at most, which fit.
    records: SmallVec<[Record<'a>; 8]>,
    /// Those of sorted tables, likewise.
    lower: OnceCell<Box<[Record<'a>]>>,
    /// What was read of the base row while deltas may be being merged into it.
    base_copies: OnceCell<CopiedBlocks>,
}

/// The records of one version of a row. Those below the newest are touched when they are asked for, not before: each is a
/// miss, and a field that the newest delta names needs none of them.
#[derive(Debug)]
pub(crate) struct Chain<'a> {
    newest: Record<'a>,
    log: LogView<'a>,
    /// Not inline: a row without deltas should be cheap to move.
    below: OnceCell<Box<Below<'a>>>,
    depth: u8,
    /// Some record may have an expiry of the row.
    may_expire: bool,
    /// What the chain goes on with where it ends in a blind delta.
    lower: Option<&'a LowerRecords>,
}

impl<'a> Chain<'a> {
    /// The records that `slot`, no tombstone, leads to.
    #[inline(always)]
    pub(crate) fn of(log: LogView<'a>, slot: LogSlot) -> Result<Chain<'a>> {
        Chain::new(log, log.record(slot.offset())?, *slot)
    }

    /// What sorted tables have of a key of which the log has nothing: at least one record.
    pub(crate) fn of_lower(log: LogView<'a>, found: &'a FoundVersions) -> Option<Chain<'a>> {
        let mut records = found.records().iter().map(FoundRecord::record);
        let newest = records.next()?;
        // A row alone has nothing below it, as one of the log.
        let below = match newest.kind() {
            RecordKind::Row => OnceCell::new(),
            _ => OnceCell::from(Box::new(Below { records: records.collect(), ..Below::default() })),
        };
        let deltas = found.records().len() - usize::from(found.has_row());
        Some(Chain {
            may_expire: newest.expires_at_ms().is_some(),
            newest,
            log,
            below,
            depth: deltas.min(u8::MAX.into()) as u8,
            lower: None,
        })
    }

    /// With what sorted tables have of the key under it, if it ends in a blind delta.
    #[inline(always)]
    pub(crate) fn over(self, lower: Option<&'a LowerRecords>) -> Chain<'a> {
        Chain { lower, ..self }
    }

    /// [`Chain::of`] with all its records walked: what follows does not fail for want of one.
    pub(crate) fn walked(log: LogView<'a>, slot: LogSlot) -> Result<Chain<'a>> {
        let chain = Chain::of(log, slot)?;
        chain.below()?;
        Ok(chain)
    }

    /// The same, of which the newest record is at hand. A cached row is a chain of its own.
    #[inline(always)]
    pub(crate) fn new(log: LogView<'a>, newest: Record<'a>, slot: Slot) -> Result<Chain<'a>> {
        let (depth, is_row) = match newest.kind() {
            RecordKind::Row => (0, true),
            RecordKind::Delta => (slot.depth(), false),
            RecordKind::Tombstone | RecordKind::Batch => {
                return Err(broken_chain(newest.offset(), newest.key()));
            }
        };
        let may_expire = slot.expires() || is_row && newest.expires_at_ms().is_some();
        Ok(Chain { newest, log, below: OnceCell::new(), depth, may_expire, lower: None })
    }

    /// Deltas in the chain.
    #[inline]
    pub(crate) fn depth(&self) -> usize {
        self.depth.into()
    }

    #[inline]
    pub(crate) fn newest(&self) -> &Record<'a> {
        &self.newest
    }

    /// The records of the log below the newest.
    #[inline(always)]
    pub(crate) fn below(&self) -> Result<&[Record<'a>]> {
        match self.below.get() {
            Some(below) => Ok(&below.records),
            None if self.newest.kind() == RecordKind::Row => Ok(&[]),
            None => {
                let below = self.walk()?;
                Ok(&self.below.get_or_init(|| below).records)
            }
        }
    }

    fn walk(&self) -> Result<Box<Below<'a>>> {
        let mut found = Box::<Below<'a>>::default();
        let below = &mut found.records;
        if self.newest.ends_version() {
            return Ok(found);
        }
        let mut previous = self.newest.previous();
        loop {
            let reference = previous.filter(|_| below.len() < Slot::DEPTH_MAX.into());
            let Some(reference) = reference else { return Err(self.broken()) };
            // Whoever walks wants what is below: all of its lines at once.
            self.log.prefetch_record(reference.offset(), reference.bytes());
            let record = self.log.record(reference.offset())?;
            previous = record.previous();
            let (kind, is_last) = (record.kind(), record.ends_version());
            below.push(record);
            match kind {
                RecordKind::Delta if !is_last => {}
                RecordKind::Delta | RecordKind::Row => return Ok(found),
                RecordKind::Tombstone | RecordKind::Batch => return Err(self.broken()),
            }
        }
    }

    #[cold]
    fn broken(&self) -> Error {
        broken_chain(self.newest.offset(), self.newest.key())
    }

    /// Verifies all of it even if reads do not: new checksums for bytes that nobody looked at would hide what is wrong with them. What is in sorted tables was
    /// verified when it was read.
    pub(crate) fn verify(&self) -> Result<()> {
        self.in_log()?.try_for_each(|part| self.log.verified_record(part.offset())?.verify_all())
    }

    /// The records of the log, newest first, the base row last, if it is there.
    #[inline]
    pub(crate) fn in_log(&self) -> Result<impl Iterator<Item = &Record<'a>>> {
        Ok([&self.newest].into_iter().chain(self.below()?))
    }

    /// All records, newest first, the base row last, if there is one.
    #[inline]
    pub(crate) fn records(&self) -> Result<impl Iterator<Item = &Record<'a>>> {
        Ok(self.in_log()?.chain(self.lower()?))
    }

    /// Whether what sorted tables have belongs to it.
    pub(crate) fn is_over_lower(&self) -> bool {
        self.lower.is_some()
    }

    /// The schema that knows all of what sorted tables have, if that belongs to it.
    pub(crate) fn lower_schema(&self) -> Option<&'a Arc<TableSchema>> {
        self.lower.map(LowerRecords::schema)
    }

    /// The records of sorted tables.
    #[inline]
    fn lower(&self) -> Result<&[Record<'a>]> {
        match self.lower {
            None => Ok(&[]),
            Some(lower) => self.look_up_lower(lower),
        }
    }

    #[inline(never)]
    fn look_up_lower(&self, lower: &'a LowerRecords) -> Result<&[Record<'a>]> {
        self.below()?;
        let Some(below) = self.below.get() else { return Ok(&[]) };
        if below.lower.get().is_none() {
            let found = lower.found()?.records().iter().map(FoundRecord::record).collect();
            let _ = below.lower.set(found);
        }
        Ok(below.lower.get().map_or(&[], |records| records))
    }

    /// Whether `record` is one of them. Sequences fall on the way down: what is younger than the newest is none, without a walk.
    pub(crate) fn has(&self, record: &Record<'_>) -> Result<bool> {
        if record.sequence() >= self.newest.sequence() {
            return Ok(record.offset() == self.newest.offset());
        }
        Ok(self.below()?.iter().any(|part| part.offset() == record.offset()))
    }

    /// The row under the deltas. `None` where they are over nothing.
    #[inline(always)]
    pub(crate) fn base_row(&self) -> Result<Option<&Record<'a>>> {
        if self.newest.kind() == RecordKind::Row {
            return Ok(Some(&self.newest));
        }
        let last = match self.lower {
            None => self.below()?.last(),
            Some(lower) => self.look_up_lower(lower)?.last(),
        };
        Ok(last.filter(|record| record.kind() == RecordKind::Row))
    }

    /// The row under the deltas, if that is in the log.
    pub(crate) fn row_in_log(&self) -> Result<Option<&Record<'a>>> {
        let last = self.below()?.last().unwrap_or(&self.newest);
        Ok(Some(last).filter(|record| record.kind() == RecordKind::Row))
    }

    /// Whether deltas may be being merged into `base`, the base row, as it is read. A row without deltas is left alone as long as
    /// somebody may read it who saw it so.
    #[inline(always)]
    pub(crate) fn base_may_change(&self, base: &Record<'_>) -> bool {
        self.depth > 0 && base.is_mergeable()
    }

    /// Where copies of such a row are kept.
    #[inline(never)]
    pub(crate) fn base_copies(&self, base: &Record<'_>) -> Result<&CopiedBlocks> {
        let Some(below) = self.below.get() else { return Err(self.broken()) };
        Ok(below.base_copies.get_or_init(|| base.no_copies()))
    }

    /// Newest first.
    #[inline]
    pub(crate) fn deltas(&self) -> Result<impl DoubleEndedIterator<Item = &Record<'a>>> {
        let newest = Some(&self.newest).filter(|newest| newest.kind() == RecordKind::Delta);
        Ok(newest.into_iter().chain(deltas_of(self.below()?)).chain(deltas_of(self.lower()?)))
    }

    /// Those of the log, newest first: whoever wants them looks for nothing elsewhere.
    pub(crate) fn deltas_in_log(&self) -> Result<impl DoubleEndedIterator<Item = &Record<'a>>> {
        let newest = Some(&self.newest).filter(|newest| newest.kind() == RecordKind::Delta);
        Ok(newest.into_iter().chain(deltas_of(self.below()?)))
    }

    /// What `look` finds in the deltas, the newest first; those after it are not touched.
    #[inline]
    pub(crate) fn find_in_deltas<'s, T>(
        &'s self,
        mut look: impl FnMut(&'s Record<'a>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if self.newest.kind() == RecordKind::Row {
            return Ok(None);
        }
        if let Some(found) = look(&self.newest)? {
            return Ok(Some(found));
        }
        for delta in deltas_of(self.below()?) {
            if let Some(found) = look(delta)? {
                return Ok(Some(found));
            }
        }
        for delta in deltas_of(self.lower()?) {
            if let Some(found) = look(delta)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The newest expiry of the row, if it was not taken away.
    #[inline]
    pub(crate) fn expires_at_ms(&self) -> Result<Option<u64>> {
        if !self.may_expire {
            return Ok(None);
        }
        Ok(self.records()?.find_map(Record::expires_at_ms).filter(|&ms| ms != 0))
    }
}

/// The slot of the version that `slot` stood for when `sequence` was the last: the first down the chain that is not
/// younger, which may be a tombstone's. `None` if the log has none.
#[inline(never)]
pub(crate) fn version_before(log: LogView<'_>, slot: LogSlot, sequence: u64) -> Result<Option<LogSlot>> {
    let mut slot = Some(slot);
    while let Some(version) = slot {
        let record = log.record(version.offset())?;
        if record.sequence() <= sequence {
            return Ok(slot);
        }
        slot = replaced_by(&record)?;
    }
    Ok(None)
}

/// The deltas of records that go on down from a delta: all but the row at their end, if there is one.
fn deltas_of<'r, 'a>(below: &'r [Record<'a>]) -> &'r [Record<'a>] {
    match below.split_last() {
        Some((last, deltas)) if last.kind() == RecordKind::Row => deltas,
        _ => below,
    }
}

/// Prefetches the records of all chains, one level of all at a time: their misses overlap.
pub(crate) fn prefetch_chains<const N: usize>(log: LogView<'_>, slots: [Option<LogSlot>; N]) {
    let mut level = slots.map(|slot| slot.map(RecordRef::from));
    for _ in 0..=Slot::DEPTH_MAX {
        level.iter().flatten().for_each(|record| log.prefetch_record(record.offset(), record.bytes()));
        for below in &mut level {
            *below =
                below.filter(|record| record.is_delta()).and_then(|delta| log.peek_previous(delta.offset()));
        }
    }
}

/// Of the parts of a record: a record whose address is taken cannot be made where it is used.
#[cold]
fn broken_chain(offset: u64, key: &[u8]) -> Error {
    let key = key.escape_ascii();
    Error::corrupted(format!(
        "the record at byte {offset} of the fast tier (key {key}) refers to a version that is not there"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Tag;

    /// The two words are of one layout, which that in the log may not leave.
    #[test]
    fn a_reference_says_what_the_log_slot_said() {
        for (tag, bytes, offset) in
            [(Tag::Row, 1_000, 0), (Tag::Delta, 32, 8), (Tag::Tombstone, u64::MAX, Slot::OFFSET_END - 8)]
        {
            let slot =
                LogSlot::new(tag, offset, bytes).with_depth(7).with_older_versions(200).with_expires(true);
            let reference = RecordRef::from(slot);
            assert_eq!((reference.offset(), reference.bytes()), (slot.offset(), slot.bytes()));
            assert_eq!(reference.bytes_unknown(), slot.bytes_unknown());
            assert_eq!(reference.is_delta(), tag == Tag::Delta);
            assert_eq!(slot_of(reference), Some(slot));
        }
    }

    /// Whatever a damaged log says: no such word comes from a log slot.
    #[test]
    fn no_reference_leads_into_the_cache() {
        let cached = Slot::cached(LogSlot::new(Tag::Row, 8, 100), 64, 100);
        let reference = RecordRef::from_word(cached.raw()).unwrap();
        assert_eq!(slot_of(reference), None);
    }
}
