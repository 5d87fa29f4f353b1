//! In-place merge (FOCUS section V-B, "swim"): deltas of fixed fields go into their base row, off the write path,
//! and the chain is gone without a row being copied. For media whose lines are cheap to flush: in the page cache a hundred
//! bytes would make four kilobytes dirty.
//!
//! A row is merged only when nobody can be harmed:
//! - every delta of its chain is durable, and the root's watermark says so;
//! - every reader that may have seen the row without all of them has let go (epochs), and no snapshot is older;
//! - they set fixed fields that the row has, so that no bit and no place but theirs changes;
//! - no gc cycle runs meanwhile.
//!
//! Then, for a group of rows at once, in the order of their addresses, each line flushed once (Algorithm 1):
//!
//! 1. The checksums of the blocks as they will be. PERSIST: durable before the first field is touched, so that a torn block shows.
//! 2. The fields, in whole words. PERSIST: durable before 3.
//! 3. The word that says how far the row is merged: from then on recovery ignores the deltas. PERSIST: durable before 4.
//! 4. The slot points at the row, and the deltas are obsolete; one that only a group had is in the young index then. If somebody has written meanwhile it stays as it is, for the
//!    deltas over a merged row change nothing.
//!
//! A reader that meets the row with deltas over it copies what it reads, and verifies the copy (`log/format/mergeable.rs`).
//! Between 1 and 2 a block and its checksum do not match. Whoever reads then has the deltas in hand: with them laid over a copy,
//! oldest first, there comes a point where the block does match (`db/torn_blocks.rs`). The values come from the deltas anyway. After a
//! crash recovery does the same and writes the block back.

use std::ops::Range;

use hedgerow_row::le_bytes::u32_at;
use smallvec::SmallVec;

use crate::Result;
use crate::db::chain::Chain;
use crate::db::shared_table::TableShared;
use crate::db::torn_blocks::field_patches;
use crate::index::{LogSlot, Tag};
use crate::log::Log;
use crate::log::format::{FLAG_FIELD_EXPIRY, Record};

/// Bytes of a line, the granule of flushing.
const LINE_BYTES: u64 = 64;

/// A row that is to be merged in place.
struct Merge<'c, 'r> {
    key: &'c [u8],
    slot: LogSlot,
    row: &'c Record<'r>,
    /// The sequence of the newest delta.
    through: u64,
    /// What is written where in the tier, in the order of the addresses.
    checksums: Vec<(u64, [u8; 4])>,
    fields: Vec<(u64, Vec<u8>)>,
}

/// What merging in place needs of the store.
pub(super) struct InPlaceMerge<'e> {
    pub(super) log: &'e Log,
    /// See [`Options::line_flush`](crate::Options::line_flush).
    pub(super) line_flush: bool,
}

impl InPlaceMerge<'_> {
    /// Merges in place what can be of these chains, found under a guard that is still held; says which were. All writes up to
    /// `through` are known durable, every guard of the time before they were visible has gone, and no snapshot is older.
    /// While no gc cycle runs.
    pub(super) fn merge(
        &self,
        table: &TableShared,
        chains: &[(LogSlot, Chain<'_>)],
        through: u64,
    ) -> SmallVec<[bool; 16]> {
        let mut done: SmallVec<[bool; 16]> = SmallVec::from_elem(false, chains.len());
        let mut merges: Vec<(usize, Merge<'_, '_>)> = Vec::with_capacity(chains.len());
        for (i, (slot, chain)) in chains.iter().enumerate() {
            // What cannot be read is told to the next who wants to.
            if let Ok(Some(merge)) = self.plan_merge(table, *slot, chain, through) {
                merges.push((i, merge));
            }
        }
        merges.sort_unstable_by_key(|(_, merge)| merge.row.offset());
        let step = |writes: &mut dyn Iterator<Item = (u64, &[u8])>, write: &dyn Fn(u64, &[u8])| {
            let mut lines = Lines { log: self.log, line_flush: self.line_flush, from: 0, to: 0 };
            for (offset, bytes) in writes {
                write(offset, bytes);
                lines.touched(offset, bytes.len() as u64);
            }
            lines.flush();
            self.log.check_writable()
        };
        let write_checksum = |offset, bytes: &[u8]| self.log.patch_checksum(offset, u32_at(bytes, 0));
        let patch = |offset, bytes: &[u8]| self.log.patch_row(offset, bytes);
        let word = |m: &Merge<'_, '_>| m.row.merged_word(m.through).to_le_bytes();
        let words: Vec<(u64, [u8; 8])> =
            merges.iter().map(|(_, m)| (m.row.merged_word_offset(), word(m))).collect();
        // PERSIST: see the module; each of the three is durable before the next begins. Once the medium refuses, none does.
        let write_all = || {
            let checksums = merges.iter().flat_map(|(_, m)| &m.checksums);
            step(&mut checksums.map(|(at, checksum)| (*at, &checksum[..])), &write_checksum)?;
            let fields = merges.iter().flat_map(|(_, m)| &m.fields);
            step(&mut fields.map(|(at, bytes)| (*at, &bytes[..])), &patch)?;
            step(&mut words.iter().map(|(at, word)| (*at, &word[..])), &patch)
        };
        if write_all().is_ok() {
            for (i, merge) in &merges {
                done[*i] = self.publish_merged(table, merge, &chains[*i].1).unwrap_or(false);
            }
        }
        done
    }

    /// What merging a chain in place writes; `None` if it cannot be, or not yet.
    fn plan_merge<'c, 'r>(
        &self,
        table: &TableShared,
        slot: LogSlot,
        chain: &'c Chain<'r>,
        through: u64,
    ) -> Result<Option<Merge<'c, 'r>>> {
        let (Some(row), deltas) = (chain.row_in_log()?, chain.deltas()?) else { return Ok(None) };
        let newest = chain.newest().sequence();
        let schema = table.schema.load();
        let layout = schema.layout(row.schema_version());
        let Some(layout) = layout.filter(|_| {
            row.is_mergeable()
                && row.flags() & FLAG_FIELD_EXPIRY == 0
                && chain.depth() > 0
                && newest <= through
        }) else {
            return Ok(None);
        };
        chain.verify()?;
        let mut body = row.raw_body().to_vec();
        let mut places: SmallVec<[Range<usize>; 8]> = SmallVec::new();
        for delta in deltas.rev() {
            let Some(patches) = field_patches(layout, &row.raw_body()[..layout.presence_bytes()], delta)?
            else {
                return Ok(None);
            };
            for (place, raw) in patches {
                body[place.clone()].copy_from_slice(raw);
                places.push(place);
            }
        }
        places.sort_unstable_by_key(|place| (place.start, place.end));
        places.dedup();
        let mut blocks: Vec<usize> = places.iter().flat_map(|place| row.blocks_of(place)).collect();
        blocks.dedup();
        let checksum = |block: usize| row.checksum_of(&body[row.block_range(block)]).to_le_bytes();
        Ok(Some(Merge {
            key: row.key(),
            slot,
            row,
            through: newest,
            checksums: blocks
                .into_iter()
                .map(|block| (row.checksum_offset(block), checksum(block)))
                .collect(),
            fields: places
                .into_iter()
                .map(|place| (row.body_offset() + place.start as u64, body[place].to_vec()))
                .collect(),
        }))
    }

    /// Step 4. False if the key was written meanwhile.
    fn publish_merged(&self, table: &TableShared, merge: &Merge<'_, '_>, chain: &Chain<'_>) -> Result<bool> {
        let Merge { key, slot, row, .. } = *merge;
        let merged = LogSlot::new(Tag::Row, row.offset(), row.record_bytes() as u64)
            .with_older_versions(slot.older_versions())
            .add_older_versions(slot.depth())
            .with_expires(slot.expires());
        let guard = self.log.pin();
        // Clearing the table locks all appenders before it drops the index.
        let appender = self.log.gc_appender();
        let of_same = |now| (now == *slot).then_some(*merged);
        let stands = table.levels.replace_or_unseal(key, &guard, of_same).is_some();
        drop(appender);
        if stands {
            chain.deltas()?.for_each(|r| self.log.add_obsolete(r.offset(), r.record_bytes() as u64));
            self.log.chain_ended(row.offset());
        }
        Ok(stands)
    }
}

/// Lines written and not yet flushed: neighbours are flushed together, none twice (FOCUS, Algorithm 1).
struct Lines<'l> {
    log: &'l Log,
    line_flush: bool,
    from: u64,
    to: u64,
}

impl Lines<'_> {
    /// Bytes were written; addresses ascend.
    fn touched(&mut self, offset: u64, bytes: u64) {
        let (from, to) = (offset / LINE_BYTES * LINE_BYTES, (offset + bytes).next_multiple_of(LINE_BYTES));
        if from > self.to || !self.line_flush {
            self.flush();
            self.from = from;
        }
        self.to = self.to.max(to);
    }

    fn flush(&mut self) {
        if self.to > self.from {
            self.log.persist_range(self.from, self.to - self.from);
        }
        (self.from, self.to) = (0, 0);
    }
}

#[cfg(test)]
mod tests;
