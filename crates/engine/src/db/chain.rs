//! The records of one version of a row: a row, or deltas over one.
//!
//! Owns: the walk from the newest record down, and from a version to the one that it replaced. Promises: what lies below the
//! newest record is only touched once it is asked for. Must not know: what the records' bodies say (`read.rs`).
//!
//! Invariant: a row's `previous` may point into a segment that was freed since; only a snapshot follows it, and only to
//! records that gc keeps for it (`gc.rs`).

use std::cell::OnceCell;

use super::engine::Engine;
use super::read::GROUP;
use crate::index::{Slot, Tag};
use crate::log::Log;
use crate::log::format::{Record, RecordKind};
use crate::{Error, Result};

/// The records of one version of a row. Those below the newest are touched when they are asked for, not before: each is a
/// miss, and a field that the newest delta names needs none of them.
#[derive(Debug, Clone)]
pub(crate) struct Chain<'a> {
    newest: Record<'a>,
    log: &'a Log,
    /// Newest first, the base row last. Not inline: a row without deltas should be cheap to move.
    below: OnceCell<Vec<Record<'a>>>,
    depth: u8,
    /// Some record may have an expiry of the row.
    may_expire: bool,
}

impl<'a> Chain<'a> {
    #[inline(always)]
    pub(crate) fn new(log: &'a Log, newest: Record<'a>, slot: Slot) -> Result<Chain<'a>> {
        let (depth, is_row) = match newest.kind() {
            RecordKind::Row => (0, true),
            RecordKind::Delta => (slot.depth(), false),
            RecordKind::Tombstone | RecordKind::Batch => {
                return Err(broken_chain(newest.offset(), newest.key()));
            }
        };
        let may_expire = slot.expires() || is_row && newest.expires_at_ms().is_some();
        Ok(Chain { newest, log, below: OnceCell::new(), depth, may_expire })
    }

    /// Deltas in the chain.
    pub(crate) fn depth(&self) -> usize {
        self.depth.into()
    }

    pub(crate) fn newest(&self) -> &Record<'a> {
        &self.newest
    }

    /// The records below the newest.
    #[inline(always)]
    pub(crate) fn below(&self) -> Result<&[Record<'a>]> {
        match self.below.get() {
            Some(below) => Ok(below),
            None if self.newest.kind() == RecordKind::Row => Ok(&[]),
            None => {
                let below = self.walk()?;
                Ok(self.below.get_or_init(|| below))
            }
        }
    }

    fn walk(&self) -> Result<Vec<Record<'a>>> {
        let mut below = Vec::with_capacity(self.depth());
        let mut previous = self.newest.previous();
        loop {
            let slot = Slot::from_raw(previous).filter(|_| below.len() < Slot::DEPTH_MAX.into());
            let Some(slot) = slot else { return Err(self.broken()) };
            // Whoever walks wants what is below: all of its lines at once.
            self.log.prefetch_record(slot.offset(), slot.bytes());
            let record = self.log.record(slot.offset())?;
            previous = record.previous();
            let kind = record.kind();
            below.push(record);
            match kind {
                RecordKind::Delta => {}
                RecordKind::Row => return Ok(below),
                RecordKind::Tombstone | RecordKind::Batch => return Err(self.broken()),
            }
        }
    }

    #[cold]
    fn broken(&self) -> Error {
        broken_chain(self.newest.offset(), self.newest.key())
    }

    /// Newest first, the base row last.
    pub(crate) fn records(&self) -> Result<impl Iterator<Item = &Record<'a>>> {
        Ok([&self.newest].into_iter().chain(self.below()?))
    }

    /// Whether `record` is one of them. Sequences fall on the way down: what is younger than the newest is none, without a walk.
    pub(crate) fn has(&self, record: &Record<'_>) -> Result<bool> {
        if record.sequence() >= self.newest.sequence() {
            return Ok(record.offset() == self.newest.offset());
        }
        Ok(self.below()?.iter().any(|part| part.offset() == record.offset()))
    }

    #[inline(always)]
    pub(crate) fn base_row(&self) -> Result<&Record<'a>> {
        Ok(self.below()?.last().unwrap_or(&self.newest))
    }

    /// Newest first.
    pub(crate) fn deltas(&self) -> Result<impl DoubleEndedIterator<Item = &Record<'a>>> {
        let below = self.below()?;
        let newest = Some(&self.newest).filter(|_| !below.is_empty());
        Ok(newest.into_iter().chain(&below[..below.len().saturating_sub(1)]))
    }

    /// What `look` finds in the deltas, the newest first; those after it are not touched.
    #[inline]
    pub(crate) fn find_in_deltas<T>(
        &self,
        mut look: impl FnMut(&Record<'a>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if self.newest.kind() == RecordKind::Row {
            return Ok(None);
        }
        if let Some(found) = look(&self.newest)? {
            return Ok(Some(found));
        }
        let below = self.below()?;
        for delta in &below[..below.len().saturating_sub(1)] {
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

impl Engine {
    /// The records that `slot`, a log slot and no tombstone, leads to. Under a guard pinned before the slot was read.
    #[inline(always)]
    pub(crate) fn chain(&self, slot: Slot) -> Result<Chain<'_>> {
        debug_assert!(!slot.is_cached(), "{slot:?} leads to no record in the log");
        Chain::new(&self.log, self.log.record(slot.offset())?, slot)
    }

    /// [`Engine::chain`] with all its records walked: what follows does not fail for want of one.
    pub(crate) fn walked_chain(&self, slot: Slot) -> Result<Chain<'_>> {
        let chain = self.chain(slot)?;
        chain.below()?;
        Ok(chain)
    }

    /// Verifies all of a chain even if reads do not: new checksums for bytes that nobody looked at would hide what is wrong with
    /// them.
    pub(crate) fn verify_chain(&self, chain: &Chain<'_>) -> Result<()> {
        chain.records()?.try_for_each(|part| self.log.verified_record(part.offset())?.verify_all())
    }

    /// The slot of the version that `slot` stood for when `sequence` was the last: the first down the chain that is not
    /// younger. `None` if there was no row.
    pub(crate) fn version_before(&self, slot: Slot, sequence: u64) -> Result<Option<Slot>> {
        let mut slot = Some(self.log_slot(slot));
        while let Some(version) = slot {
            let record = self.log.record(version.offset())?;
            if record.sequence() <= sequence {
                return Ok(slot.filter(|_| record.kind() != RecordKind::Tombstone));
            }
            slot = Slot::from_raw(record.previous());
        }
        Ok(None)
    }

    /// Prefetches the records of all chains, one level of all at a time: their misses overlap.
    pub(crate) fn prefetch_chains(&self, mut level: [Option<Slot>; GROUP]) {
        for _ in 0..=Slot::DEPTH_MAX {
            let slots = level.iter().flatten();
            slots.for_each(|slot| self.log.prefetch_record(slot.offset(), slot.bytes()));
            for below in &mut level {
                *below = below
                    .filter(|slot| slot.tag() == Tag::Delta)
                    .and_then(|slot| self.log.peek_previous(slot.offset()))
                    .and_then(Slot::from_raw);
            }
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
