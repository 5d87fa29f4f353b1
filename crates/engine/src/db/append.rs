//! How a record comes to count: the steps that a write, a batch, a copy and a change of the catalog share.
//!
//! 1. Space is **reserved** in an appender, which stays locked until 3 is done.
//! 2. The record is **encoded** there, at its place for good, and without its checksum: nobody can find it.
//! 3. It is **published**: under the lock of its key's leaf, if what the slot holds may be replaced, it is **sealed** with a sequence and
//!    its checksum, made durable where the medium does that by cache lines, and the slot is switched to it. What is sealed counts: the next
//!    record goes behind it. Left out, as by a write that was refused, the next goes over it.
//!
//! 4. With the appender let go, it is made **durable** as the durability mode asks.
//!
//! 1, 2 and the sealing are the log's (`log/appender.rs`), which knows nothing of slots; the rest is here.

use hedgerow_row::row_expiry::{OldRow, RowExpiry};
use hedgerow_row::schema::layout::Layout;
use hedgerow_row::schema::merge::MergePlan;
use hedgerow_row::schema::table::TableSchema;

use super::engine::{Engine, TableShared};
use crate::index::{Budget, Decision, IndexFull, IndexReservation, LeafPosition, LogSlot, NewKey, Slot, Tag};
use crate::log::format::{
    FLAG_BASE_BELOW, FLAG_FIELD_EXPIRY, FLAG_MERGEABLE, RecordKind, RecordRef, RecordSpec,
};
use crate::log::segment::SegmentKind;
use crate::log::{EncodedRecord, Log, LogGuard, SealedRecord};
use crate::space::Claim;
use crate::sync::atomic::Ordering;
use crate::{Durability, Result};

/// A record about to be written, but for its key and body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draft {
    pub(crate) kind: RecordKind,
    pub(crate) flags: u8,
    pub(crate) schema_version: u16,
    /// Goes into the record's header; see `log/format.rs`.
    pub(crate) expires_at_ms: Option<u64>,
    pub(crate) body_bytes: usize,
}

impl Draft {
    pub(crate) fn tombstone() -> Draft {
        Draft { kind: RecordKind::Tombstone, flags: 0, schema_version: 0, expires_at_ms: None, body_bytes: 0 }
    }

    /// Whether it goes over what the log has of the key, and does not take its place.
    #[inline]
    pub(crate) fn goes_over(&self) -> bool {
        self.kind == RecordKind::Delta && self.flags & FLAG_BASE_BELOW == 0
    }

    pub(crate) fn segment(&self) -> SegmentKind {
        if self.kind == RecordKind::Delta { SegmentKind::Delta } else { SegmentKind::Row }
    }

    pub(crate) fn claim(&self) -> Claim {
        if self.kind == RecordKind::Tombstone { Claim::Delete } else { Claim::Write }
    }

    pub(crate) fn spec<'k>(&self, table: u32, key: &'k [u8]) -> RecordSpec<'k> {
        RecordSpec {
            kind: self.kind,
            flags: self.flags,
            table,
            schema_version: self.schema_version,
            key,
            expires_at_ms: self.expires_at_ms,
            body_bytes: self.body_bytes,
        }
    }

    /// The slot of this record once it has replaced `old`.
    pub(crate) fn slot(&self, offset: u64, bytes: usize, old: Option<LogSlot>) -> LogSlot {
        let older = |slot: LogSlot| match old {
            Some(old) => slot.with_older_versions(old.older_versions()).add_older_versions(old.records()),
            None => slot,
        };
        match (self.kind, old) {
            (RecordKind::Delta, _) if !self.goes_over() => {
                older(LogSlot::new(Tag::Blind, offset, bytes as u64)).with_depth(1)
            }
            (RecordKind::Delta, Some(old)) => LogSlot::new(delta_tag(old), offset, bytes as u64)
                .with_depth(old.depth() + 1)
                .with_older_versions(old.older_versions())
                .with_expires(self.expires_over(Some(old))),
            (RecordKind::Tombstone, _) => older(LogSlot::new(Tag::Tombstone, offset, bytes as u64)),
            _ => older(LogSlot::new(Tag::Row, offset, bytes as u64)).with_expires(self.expires_over(old)),
        }
    }

    /// Records when the row of this record, published at `offset`, expires, for the sweeper. With the appender locked.
    #[inline]
    pub(crate) fn record_expiry(&self, log: &Log, offset: u64) {
        if let Some(at_ms) = self.expires_at_ms.filter(|&at_ms| at_ms != 0) {
            log.record_expiry(offset, at_ms);
        }
    }

    /// Whether the row has an expiry once this record has replaced `old`. In the header of a delta 0 takes one away.
    #[inline]
    pub(crate) fn expires_over(&self, old: Option<LogSlot>) -> bool {
        match self.expires_at_ms {
            Some(at_ms) => at_ms != 0,
            None => self.kind == RecordKind::Delta && old.is_some_and(|old| old.expires()),
        }
    }
}

/// What a version is with one more delta over `old`: blind if that is.
#[inline]
fn delta_tag(old: LogSlot) -> Tag {
    if old.tag() == Tag::Blind { Tag::Blind } else { Tag::Delta }
}

/// A delta body that names no field.
pub(crate) const EMPTY_DELTA: [u8; 4] = [0; 4];

/// A time of expiry as the log holds it, where 0 takes an expiry away: 0 ms, long past, is as past as 1 ms.
pub(super) fn past_zero(at_ms: u64) -> u64 {
    at_ms.max(1)
}

/// What a delta's header says of the expiry of the row that is there: 0 takes it away.
pub(crate) fn delta_expiry(expiry: RowExpiry) -> Option<u64> {
    match expiry {
        RowExpiry::Keep => None,
        RowExpiry::Set(at_ms) | RowExpiry::SetOfOld(at_ms) => Some(at_ms.map_or(0, past_zero)),
    }
}

pub(crate) fn delta_draft(schema: &TableSchema, expires_at_ms: Option<u64>, body_bytes: usize) -> Draft {
    let schema_version = schema.version();
    Draft { kind: RecordKind::Delta, flags: 0, schema_version, expires_at_ms, body_bytes }
}

/// A delta over what nobody looked at, if there is anything.
pub(crate) fn blind_draft(schema: &TableSchema, body_bytes: usize) -> Draft {
    Draft { flags: FLAG_BASE_BELOW, ..delta_draft(schema, None, body_bytes) }
}

/// What a record is published as.
pub(crate) struct Published {
    pub(crate) slot: LogSlot,
    pub(crate) seal: Seal,
}

/// What makes a record whole.
pub(crate) struct Seal {
    pub(crate) sequence: u64,
    /// What it replaces.
    pub(crate) previous: Option<RecordRef>,
}

/// The entry of the index that a record is published in.
#[derive(Clone, Copy)]
pub(crate) struct IndexEntry<'g> {
    pub(crate) table: &'g TableShared,
    pub(crate) key: &'g [u8],
    /// Where in the index the key was found, under the same guard.
    pub(crate) at: Option<LeafPosition<'g>>,
    /// What it takes if it is not there.
    pub(crate) new_key: NewKey<'g>,
    /// And what if only a group has it, though it is known: it is new to the tree.
    pub(crate) sealed: Budget<'g>,
}

impl<'g> IndexEntry<'g> {
    pub(crate) fn new(table: &'g TableShared, key: &'g [u8]) -> IndexEntry<'g> {
        IndexEntry { table, key, at: None, new_key: NewKey::Stored(Budget::Writes), sealed: Budget::Writes }
    }

    /// What a tombstone is published as that hides what is below: where the index is full, too.
    pub(crate) fn to_hide_below(self) -> IndexEntry<'g> {
        let sealed = Budget::Deletes;
        match self.new_key {
            NewKey::Stored(_) => IndexEntry { new_key: NewKey::Stored(Budget::Deletes), sealed, ..self },
            NewKey::NotStored => IndexEntry { sealed, ..self },
        }
    }

    /// Of a batch, which has reserved what a new key takes.
    pub(crate) fn reserved(
        (table, key): (&'g TableShared, &'g [u8]),
        at: Option<LeafPosition<'g>>,
        reserved: &'g IndexReservation<'g>,
    ) -> IndexEntry<'g> {
        let sealed = Budget::Reserved(reserved);
        IndexEntry { table, key, at, new_key: NewKey::Stored(sealed), sealed }
    }

    /// One that is there, or nothing is done: it takes no memory of the index.
    pub(crate) fn of_known(table: &'g TableShared, key: &'g [u8]) -> IndexEntry<'g> {
        IndexEntry { new_key: NewKey::NotStored, ..IndexEntry::new(table, key) }
    }

    /// The same of what takes the place of what is there, and changes nothing: it is kept, however full the index is.
    pub(crate) fn of_copy(table: &'g TableShared, key: &'g [u8]) -> IndexEntry<'g> {
        IndexEntry { sealed: Budget::Beyond, ..IndexEntry::of_known(table, key) }
    }
}

impl Engine {
    /// A whole row.
    pub(crate) fn row_draft(
        &self,
        schema: &TableSchema,
        expires_at_ms: Option<u64>,
        body_bytes: usize,
        has_field_expiry: bool,
    ) -> Draft {
        let flags = if has_field_expiry { FLAG_FIELD_EXPIRY } else { 0 };
        let flags = flags | self.mergeable_flag(schema.current_layout());
        let expires_at_ms = expires_at_ms.map(past_zero);
        Draft { kind: RecordKind::Row, flags, schema_version: schema.version(), expires_at_ms, body_bytes }
    }

    /// A whole row that a change has made of `old`, or of none; refused if it is longer than a row may be.
    pub(crate) fn changed_row_draft(
        &self,
        schema: &TableSchema,
        changed: &MergePlan<'_>,
        old: Option<OldRow>,
        expiry: RowExpiry,
    ) -> Result<Draft> {
        changed.check_length()?;
        Ok(self.row_draft(schema, expiry.after(old), changed.body_bytes(), changed.has_field_expiry()))
    }

    /// The flag for rows under `layout` that are written from now on.
    pub(crate) fn mergeable_flag(&self, layout: &Layout) -> u8 {
        if layout.has_fixed() && self.merges_in_place { FLAG_MERGEABLE } else { 0 }
    }

    /// [`Levels::publish`](crate::levels::Levels::publish) in terms of log slots: `decide` sees the key's log slot, and what
    /// it stores is one. If that replaces a cached slot, its entry is marked.
    #[inline]
    pub(crate) fn publish<'g, R>(
        &self,
        entry: IndexEntry<'g>,
        guard: &'g LogGuard<'_>,
        decide: impl FnOnce(Option<LogSlot>) -> (Decision, R),
    ) -> Result<R, IndexFull> {
        let IndexEntry { table, key, at, new_key, sealed } = entry;
        let mut replaced = None;
        let apart = || self.snapshots.are_none();
        let result = table.levels.publish((key, at), (new_key, sealed), guard, apart, |now| {
            let (decision, result) = decide(now.map(|slot| self.cache.log_slot(slot, guard)));
            if let Some(place) = now.and_then(Slot::in_cache)
                && decision != Decision::Keep
            {
                replaced = Some(place);
            }
            (decision, result)
        })?;
        // Not before another slot stands in its place, and under the guard from before.
        if let Some(place) = replaced {
            self.cache.invalidate(place);
            if table.traffic.mostly_read.load(Ordering::Relaxed) {
                self.cache.request(table.id.load(Ordering::Relaxed), key);
            }
        }
        Ok(result)
    }

    /// Step 3. `decide` sees the log slot that the key has and says as what the record is published; `None`: it is not.
    #[inline]
    pub(crate) fn publish_record<'g, R>(
        &self,
        entry: IndexEntry<'g>,
        record: EncodedRecord<'_>,
        guard: &'g LogGuard<'_>,
        decide: impl FnOnce(Option<LogSlot>) -> Option<(Published, R)>,
    ) -> Result<Option<R>, IndexFull> {
        self.publish(entry, guard, move |old| {
            let Some((Published { slot, seal }, result)) = decide(old) else { return (Decision::Keep, None) };
            // Not before it stands: a whole record that no slot counts would bring a deleted row back after a crash.
            self.seal(record, &seal);
            (Decision::Store(slot.into()), Some(result))
        })
    }

    /// Seals a record that stands now.
    #[inline(always)]
    pub(crate) fn seal<'r>(&self, record: EncodedRecord<'r>, seal: &Seal) -> SealedRecord<'r> {
        let record = record.seal(seal.sequence, seal.previous);
        if self.persists_in_place {
            // PERSIST: the record is durable before anyone can see it, and before a durable delta can refer to it. One with a lower
            // sequence may be missing still, and with it this one after a power cut: its writer waits (`make_durable`). A failure
            // closes the log for writing.
            record.persist();
        }
        record
    }

    /// Does what the durability mode asks for, after a write of `sequence` was published and its appender let go.
    #[inline]
    pub(crate) fn make_durable(&self, sequence: u64) -> Result<()> {
        match self.options.durability {
            Durability::Immediate if self.persists_in_place => {
                // The record itself was made durable before it was published. Everything before it must be, too, or
                // recovery would cut the log in front of it.
                self.log.barrier();
                // Closed, or a medium that refused: then only a sync that came after all can say that it is durable.
                if self.log.check_writable().is_err() { self.log.persist_to(sequence) } else { Ok(()) }
            }
            Durability::Immediate => self.log.persist_to(sequence),
            Durability::Interval(_) | Durability::Process => Ok(()),
        }
    }
}
