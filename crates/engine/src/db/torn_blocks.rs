//! Blocks of a row that do not match their checksums because the row is, or was, being merged in place.
//!
//! Owns what a delta changes in the body of its row, and the rule which blocks its deltas explain. Promises that what is explained is
//! what the merge would have written, and that opening puts right what a crash left so. Must not know who merges (`consolidate/in_place.rs`).

use std::ops::Range;

use hedgerow_row::schema::body::DeltaBody;
use hedgerow_row::schema::layout::Layout;
use smallvec::SmallVec;

use super::catalog::Catalog;
use super::chain::{Chain, replaced_by};
use crate::Result;
use crate::index::{LogSlot, Slot};
use crate::log::format::{FLAG_EXPIRES, Record, RecordKind};
use crate::log::{LogGuard, LogView};
use crate::sync::atomic::{Ordering, fence};

/// Bytes of a row's body and what takes their place.
pub(crate) type FieldPatch<'d> = (Range<usize>, &'d [u8]);

/// What `delta` changes in a row body that begins with `bitmap`; `None` if it cannot be merged in place.
pub(crate) fn field_patches<'d>(
    layout: &Layout,
    bitmap: &[u8],
    delta: &'d Record<'_>,
) -> Result<Option<SmallVec<[FieldPatch<'d>; 4]>>> {
    if delta.flags() & FLAG_EXPIRES != 0 {
        return Ok(None);
    }
    let mut patches = SmallVec::new();
    for entry in DeltaBody::new(delta).entries()? {
        let entry = entry?;
        let (Some(raw), None) = (entry.raw, entry.expires_at_ms) else { return Ok(None) };
        match layout.fixed_place(entry.id) {
            Some((place, byte, bit))
                if place.len() == raw.len() && bitmap.get(byte).is_some_and(|b| b & bit != 0) =>
            {
                patches.push((place, raw));
            }
            _ => return Ok(None),
        }
    }
    Ok(Some(patches))
}

/// What the blocks of `row` hold whose checksums do not match because a merge is, or was, under way; `deltas` are those over the
/// row, newest first. `None` if no merge explains them.
pub(crate) fn mend<'d, 'a: 'd>(
    row: &Record<'_>,
    deltas: impl DoubleEndedIterator<Item = &'d Record<'a>>,
    layout: &Layout,
) -> Option<Vec<(Range<usize>, Vec<u8>)>> {
    if !row.is_mergeable() {
        return None;
    }
    let mut body = row.copy_body();
    // The checksums are read after the body: they were changed before it.
    fence(Ordering::Acquire);
    let blocks = row.blocks_of(&(0..body.len()));
    let mut torn: Vec<usize> = blocks.filter(|&b| !row.block_matches(b, &body[row.block_range(b)])).collect();
    let mut mended = Vec::new();
    for delta in deltas.rev() {
        let Ok(Some(patches)) = field_patches(layout, body.get(..layout.presence_bytes())?, delta) else {
            break;
        };
        for (place, raw) in patches {
            body.get_mut(place)?.copy_from_slice(raw);
        }
        torn.retain(|&block| {
            let range = row.block_range(block);
            let matches = row.block_matches(block, &body[range.clone()]);
            if matches {
                mended.push((range.clone(), body[range].to_vec()));
            }
            !matches
        });
    }
    torn.is_empty().then_some(mended)
}

/// Puts right, after a crash, a row that was being merged. `row` does not verify; its table's index has been built.
pub(crate) fn mend_torn(
    log: LogView<'_>,
    catalog: &Catalog,
    guard: &LogGuard<'_>,
    row: &Record<'_>,
) -> Result<()> {
    let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
    if let Some(table) = catalog.by_id(row.table()) {
        let schema = table.schema.load();
        let newest = table.levels.locate_version(row.key(), guard).and_then(Slot::in_log);
        let chain = chain_over(log, row, newest);
        let mended = match (&chain, schema.layout(row.schema_version())) {
            (Some(chain), Some(layout)) => mend(row, chain.deltas()?, layout),
            _ => None,
        };
        let Some(mended) = mended else { return row.verify_all() };
        writes.extend(mended.into_iter().map(|(at, bytes)| (row.body_offset() + at.start as u64, bytes)));
    } else {
        // The table is gone, and nobody will read it again. It must still be a whole record to whoever walks by.
        let body = row.raw_body();
        let checksum = |block| row.checksum_of(&body[row.block_range(block)]).to_le_bytes().to_vec();
        writes.extend(
            row.blocks_of(&(0..body.len())).map(|block| (row.checksum_offset(block), checksum(block))),
        );
    }
    let tier = log.tier();
    if !tier.is_read_only() {
        // PERSIST: a killed process may have left checksums in the caches; they are durable before a block that matches them is.
        tier.persist(row.offset(), row.record_bytes() as u64)?;
        for (offset, bytes) in writes {
            log.patch_row(offset, &bytes);
            // PERSIST: the block is whole before its deltas can be merged once more, or freed.
            tier.persist(offset, bytes.len() as u64)?;
        }
    }
    Ok(())
}

/// The version of a key that stands on `row`, from that under `slot` on down. It need not be the newest: while the row
/// was being merged somebody may have written. But as long as it lasted nothing was freed, so the way there is whole.
fn chain_over<'l>(log: LogView<'l>, row: &Record<'_>, mut slot: Option<LogSlot>) -> Option<Chain<'l>> {
    let mut last = u64::MAX;
    while let Some(version) = slot {
        let record = log.record(version.offset()).ok()?;
        if record.key() != row.key() || record.sequence() > last {
            return None;
        }
        last = record.sequence();
        if record.kind() != RecordKind::Tombstone {
            let chain = Chain::of(log, version).ok()?;
            if chain.row_in_log().ok()?.is_some_and(|base| base.offset() == row.offset()) {
                return Some(chain);
            }
        }
        slot = replaced_by(&record).ok()?;
    }
    None
}
