//! Bringing rows into the processor's caches before they are read.
//!
//! All of a row, or of a fixed layout only the lines in which the wanted fields lie, with those that verify them. A row of
//! 1,104 bytes has 18 lines, one field of it four to six. Only hints: a row of an older schema version lies elsewhere, and is read all the same.

use std::ops::Range;

use hedgerow_row::schema::table::TableSchema;
use smallvec::SmallVec;

use crate::FieldId;
use crate::cache::Cache;
use crate::index::{Slot, SlotTarget, Tag};
use crate::log::Log;
use crate::log::format::FLAG_EXPIRES;

/// Prefetches the newest record of a row, or its cached copy.
#[inline]
pub(super) fn prefetch_row(log: &Log, cache: &Cache, slot: Slot) {
    match slot.leads_to() {
        SlotTarget::Log(slot) => log.prefetch_record(slot.offset(), slot.bytes()),
        SlotTarget::Cache(place) => cache.prefetch(place, slot.bytes()),
    }
}

/// What is prefetched of each row before it is visited.
pub(super) struct RowPrefetch {
    /// Of a row's body; nothing: all of it.
    parts: SmallVec<[Range<usize>; 4]>,
    body_bytes: usize,
    /// Of rows written now.
    flags: u8,
}

impl RowPrefetch {
    /// For whoever will ask for the fields `ids`, if it said so. Rows written now have these `flags`.
    #[inline]
    pub(super) fn new(flags: u8, schema: &TableSchema, ids: Option<&[FieldId]>) -> RowPrefetch {
        let layout = schema.current_layout();
        let place = |&id| layout.fixed_reach(id);
        let parts = ids.and_then(|ids| ids.iter().map(place).collect::<Option<SmallVec<_>>>());
        match (layout.body_bytes(), parts) {
            (Some(body_bytes), Some(parts)) if parts.len() <= 4 => RowPrefetch { parts, body_bytes, flags },
            _ => RowPrefetch { parts: SmallVec::new(), body_bytes: 0, flags },
        }
    }

    /// The newest record of a row.
    #[inline]
    pub(super) fn newest(&self, log: &Log, cache: &Cache, slot: Slot, key: &[u8]) {
        let flags = self.flags | if slot.expires() { FLAG_EXPIRES } else { 0 };
        if self.parts.is_empty() || slot.tag() != Tag::Row {
            prefetch_row(log, cache, slot);
        } else if let Some(row) = slot.in_log() {
            log.prefetch_parts(row.offset(), (flags, key.len()), self.body_bytes, &self.parts);
        }
    }
}
