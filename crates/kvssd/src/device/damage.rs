//! What opening found damaged.
//!
//! Owns [`OpenReport`], and the walk over the records of a block that has no footer. Promises that every record that verifies is found, whatever lies between: records carry their own checksums, which
//! know the place, so a walk that lost its way takes it up at the next one; and that all that may be missing is told, with its place. Must not know what is done about it.

use std::ops::Range;

use super::Device;
use super::block::{OpenBlock, WriteStream};
use crate::code::{KvError, Result};
use crate::command::{SpaceId, group_of};
use crate::flash::Walked;
use crate::flash::footer::{ENTRY_BYTES, FooterEntry, TRAILER_BYTES};
use crate::flash::record::{HEADER_BYTES, RecordHeader, UNIT_BYTES};
use crate::flash::superblock::OpenMark;

/// What opening a device found damaged, beyond what a crash explains: [`Device::open_report`]. Nothing that verifies was left out.
///
/// A record that is lost is of a key that nobody can tell any more. If it was the newest of its key, the device shows what that key had before: an older value, or, where it was a
/// deletion, a value that had been deleted. So while [`OpenReport::lost`] is not empty any pair whose last change is as old as the lost records may be an older one. Where the footer of the block is whole, or a
/// record's header is, none of this happens: the key is known then, and reading it is an error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Blocks whose list of records did not verify, or was not there: it was made anew from their records.
    pub footers_rebuilt: u32,
    /// Parts of blocks where records are missing.
    pub lost: Vec<LostRange>,
    /// Records found without a list whose header verifies and whose value does not: reading them is an error.
    pub values_damaged: u64,
    /// Key spaces whose name or limit cannot be read. Their pairs are there under their numbers; they are listed with an empty name and no limit.
    pub spaces_unnamed: Vec<SpaceId>,
}

impl OpenReport {
    /// Whether nothing was damaged.
    pub fn is_whole(&self) -> bool {
        *self == OpenReport::default()
    }

    /// Whether pairs may be there that were deleted, or may have a value that was replaced: a record was lost, and nobody knows of which key.
    pub fn may_undo_changes(&self) -> bool {
        !self.lost.is_empty()
    }
}

/// A part of a block where records are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRange {
    /// Where, in bytes from the start of the medium.
    pub offset: u64,
    /// So many bytes at most; 0 where a record is missing between two that follow each other.
    pub bytes: u64,
    /// The numbers of the changes that were there, if both sides are known: changes are counted from 1 on, in their order. None: not known.
    pub sequences: Option<Range<u64>>,
}

/// What a walk over a block's records found.
#[derive(Debug, Default)]
pub(super) struct BlockWalk {
    pub(super) entries: Vec<FooterEntry>,
    /// Where the last record ends.
    pub(super) end: u32,
    /// Bytes behind that in which others may have been.
    pub(super) lost_tail: u32,
    pub(super) lost: Vec<LostRange>,
    pub(super) values_damaged: u64,
    /// Where what does not verify began, while the walk is in it.
    lost_from: Option<u32>,
}

/// How a block is walked.
#[derive(Debug, Clone, Copy)]
pub(super) struct WalkRules {
    /// Whose block it is, if that is known.
    pub(super) stream: Option<WriteStream>,
    /// Up to here all records are whole, or damaged; behind it the first that does not verify is where a power cut fell.
    pub(super) whole_to: u32,
    /// At least so far there are records.
    pub(super) records_to: u32,
}

impl WalkRules {
    /// Of an open block. `is_exact`: no power cut took anything.
    pub(super) fn of_open(stream: WriteStream, mark: OpenMark, is_exact: bool) -> WalkRules {
        let whole_to = if is_exact { u32::MAX } else { mark.end };
        WalkRules { stream: Some(stream), whole_to, records_to: mark.end }
    }

    /// Of a block that should have a footer.
    pub(super) fn of_sealed() -> WalkRules {
        WalkRules { stream: None, whole_to: u32::MAX, records_to: 0 }
    }
}

impl Device {
    /// Finds the records of a block by walking from one to the next.
    pub(super) fn walk_block(&self, block: u32, rules: WalkRules) -> Result<BlockWalk> {
        let mut walk = BlockWalk::default();
        let last_start = self.flash.geometry().block_bytes as usize - HEADER_BYTES - TRAILER_BYTES;
        let mut at = 0u32;
        while at as usize <= last_start {
            if at == rules.whole_to && walk.lost_from.take().is_some() {
                walk.lost_tail = at - walk.end;
            }
            let is_whole = at < rules.whole_to;
            let found = match self.flash.walk(block, at)? {
                Walked::Record(header, key) => Some((header, key, true)),
                // A value alone tells nothing of where the next record is: only behind one that is known.
                Walked::ValueDamaged(header, key) if is_whole && walk.lost_from.is_none() => {
                    Some((header, key, false))
                }
                Walked::End if walk.lost_from.is_none() && at >= rules.records_to => break,
                _ => None,
            };
            let found = found.filter(|(header, ..)| self.follows(&walk, at, header, rules));
            let Some((header, key, value_verifies)) = found else {
                if !is_whole {
                    break;
                }
                walk.lost_from.get_or_insert(at);
                at += UNIT_BYTES as u32;
                continue;
            };
            (walk.lost_from, walk.lost_tail) = (None, 0);
            let (hash, unit) = (self.hash(header.space, key), at / UNIT_BYTES as u32);
            walk.entries.push(FooterEntry { hash, group: group_of(key), unit, header });
            walk.values_damaged += u64::from(!value_verifies);
            at += header.record_bytes() as u32;
            walk.end = at;
        }
        if walk.lost_from.is_some() {
            walk.lost_tail = self.flash.geometry().block_bytes.min(rules.whole_to) - walk.end;
        }
        walk.lost = self.losses(block, &walk.entries, walk.lost_tail);
        Ok(walk)
    }

    /// Whether a record can be the next one of its block.
    fn follows(&self, walk: &BlockWalk, at: u32, header: &RecordHeader, rules: WalkRules) -> bool {
        // A record that left no room for the footer was not written here.
        let open =
            OpenBlock { block: 0, generation: 0, end: at, started: at, durable: at, entries: Vec::new() };
        let len = header.record_bytes() + walk.entries.len() * ENTRY_BYTES;
        let in_order = match (rules.stream, walk.entries.last()) {
            (None, _) => true,
            (Some(WriteStream::Cold), _) => header.relocated,
            (Some(WriteStream::Hot), _) if header.relocated => false,
            (Some(WriteStream::Hot), None) => {
                walk.lost_from.is_some() || at > 0 || header.sequence <= self.flash.superblock().watermark + 1
            }
            // Behind what is lost, or where nothing can have been cut off, a number that was left out is told.
            (Some(WriteStream::Hot), Some(last)) if walk.lost_from.is_some() || at < rules.whole_to => {
                header.sequence > last.header.sequence
            }
            (Some(WriteStream::Hot), Some(last)) => {
                let is_behind_loss = at == rules.whole_to && walk.end < at;
                header.sequence == last.header.sequence + 1
                    || is_behind_loss && header.sequence > last.header.sequence
            }
        };
        in_order && open.has_room(&self.flash.geometry(), len)
    }

    /// What is missing of a block's records, which lie without gaps: what lies between two of them, and so many bytes behind the last; and numbers between two that follow each other.
    pub(super) fn losses(&self, block: u32, entries: &[FooterEntry], lost_tail: u32) -> Vec<LostRange> {
        let first = self.flash.geometry().block_offset(block);
        let mut lost = Vec::new();
        let (mut end, mut last): (u64, Option<&RecordHeader>) = (0, None);
        for entry in entries {
            let (start, header) = (u64::from(entry.unit) * UNIT_BYTES as u64, &entry.header);
            let both = last.filter(|last| !last.relocated && !header.relocated);
            let sequences = both.map(|last| last.sequence + 1..header.sequence);
            let has_gap = sequences.as_ref().is_some_and(|sequences| !sequences.is_empty());
            if start > end || has_gap {
                lost.push(LostRange { offset: first + end, bytes: start.saturating_sub(end), sequences });
            }
            (end, last) = (start + header.record_bytes() as u64, Some(header));
        }
        if lost_tail > 0 {
            lost.push(LostRange { offset: first + end, bytes: u64::from(lost_tail), sequences: None });
        }
        lost
    }

    /// Values of listed records that do not verify.
    pub(super) fn damaged_values(&self, block: u32, entries: &[FooterEntry]) -> u64 {
        let first = self.flash.geometry().block_offset(block) / UNIT_BYTES as u64;
        let value = |entry: &FooterEntry| self.flash.value(first + u64::from(entry.unit), &entry.header);
        entries.iter().filter(|entry| matches!(value(entry), Err(KvError::Damaged { .. }))).count() as u64
    }
}
