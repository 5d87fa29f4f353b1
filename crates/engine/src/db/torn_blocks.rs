//! Blocks of a row that do not match their checksums because the row is, or was, being merged in place.
//!
//! Owns what a delta changes in the body of its row, and the rule which blocks its deltas explain. Promises that what is explained is
//! what the merge would have written. Must not know who merges (`consolidate/in_place.rs`), nor where the row is.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use smallvec::SmallVec;

use crate::Result;
use crate::log::format::{FLAG_EXPIRES, Record};
use crate::schema::body::DeltaBody;
use crate::schema::layout::Layout;

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
    let mut body = row.raw_body().to_vec();
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
