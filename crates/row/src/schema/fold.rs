//! Deltas as one: for chains whose row is not at hand.
//!
//! Owns the rule of folding: of each field the newest entry counts, and it hides what any row below has of the field, also once
//! it has expired. It promises that over any row, or over none, the fold does what the deltas do. It must not know how deltas are
//! found, nor the row below them.

use smallvec::SmallVec;

use super::body::{BodyBytes, DeltaBody, DeltaEntry, is_past};
use super::format::{DELTA_ENTRY_BYTES, DELTA_EXPIRY_BYTES, DELTA_HEADER_BYTES, DeltaWriter};
use super::merge::Decided;
use super::plan::{INLINE_FIELDS, row_too_long};
use super::table::TableSchema;
use crate::limits::ROW_BYTES_MAX;
use crate::{Error, Result};

/// One delta that does what several do.
#[derive(Debug)]
pub struct DeltaFold<'a> {
    /// Ascending by id.
    entries: SmallVec<[DeltaEntry<'a>; INLINE_FIELDS]>,
    expiring: usize,
    value_bytes: usize,
}

impl<'a> DeltaFold<'a> {
    /// Folds `deltas`, newest first, of any versions up to that of `schema`. A field that has expired by `now_ms` is removed: its
    /// value goes, but not its entry, which hides what the row below has. Entries of fields that were dropped go; a delta is
    /// left even if all do, for a delta over no row makes one. The fold is a delta of the version of `schema`.
    ///
    /// # Errors
    /// `Corrupted`, also if there is no entry at all: no delta is written without one.
    pub fn new<B: BodyBytes<'a>>(
        schema: &TableSchema,
        deltas: &[DeltaBody<B>],
        now_ms: u64,
    ) -> Result<DeltaFold<'a>> {
        let layout = schema.current_layout();
        let mut fold = DeltaFold { entries: SmallVec::new(), expiring: 0, value_bytes: 0 };
        let mut decided = Decided::none();
        let mut dropped = None;
        for delta in deltas {
            for entry in delta.entries()? {
                let entry = entry?;
                let Some(slot) = layout.slot_of_id(entry.id) else {
                    dropped.get_or_insert(entry.id);
                    continue;
                };
                if decided.test_and_set(slot) {
                    continue;
                }
                let raw = if is_past(entry.expires_at_ms, now_ms) { None } else { entry.raw };
                raw.map_or(Ok(()), |raw| layout.slot(slot).kind.check_raw(raw))?;
                // What is removed does not expire.
                let expires_at_ms = raw.and(entry.expires_at_ms);
                fold.entries.push(DeltaEntry { id: entry.id, raw, expires_at_ms });
            }
        }
        if fold.entries.is_empty() {
            // Ids are not given again, so that this one says nothing to anybody.
            let id = dropped.ok_or_else(|| Error::corrupted("deltas without an entry"))?;
            fold.entries.push(DeltaEntry { id, raw: None, expires_at_ms: None });
        }
        fold.entries.sort_unstable_by_key(|entry| entry.id);
        fold.expiring = fold.entries.iter().filter(|entry| entry.expires_at_ms.is_some()).count();
        fold.value_bytes = fold.entries.iter().filter_map(|entry| entry.raw).map(<[u8]>::len).sum();
        Ok(fold)
    }

    /// `Invalid` if the values are longer than those of a row may be: each delta kept to that limit, but all together may not.
    pub fn check_length(&self) -> Result<()> {
        if self.value_bytes > ROW_BYTES_MAX { Err(row_too_long(self.value_bytes)) } else { Ok(()) }
    }

    /// The length of the body.
    #[inline]
    pub fn body_bytes(&self) -> usize {
        DELTA_HEADER_BYTES
            + self.entries.len() * DELTA_ENTRY_BYTES
            + self.expiring * DELTA_EXPIRY_BYTES
            + self.value_bytes
    }

    /// Writes the body over `body`, which is `body_bytes` long and may hold anything.
    pub fn encode(&self, body: &mut [u8]) {
        let mut writer = DeltaWriter::new(body, self.entries.len(), self.expiring);
        for entry in &self.entries {
            writer.entry(entry.id.0, entry.raw, entry.expires_at_ms);
        }
        writer.finish();
    }
}
