//! Which records were freed since a checkpoint of the index, so that an opening by it counts them no more.
//!
//! Owns the journal of them: it is written before a segment is free on the medium, and read once, by an opening that goes by the checkpoint. Promises that what it says of a segment is all that the checkpoint had counted in it, or nothing. Must not know what a count is of.
//!
//! Of each segment that was there at the checkpoint, the hashes of the keys of its records, those left out that no key counted then; and of its deltas their places and those of what they were written over, which nobody else knows once they are gone. It lies in extents that are free on the medium, behind the page of their header, one leading to the next:
//!
//! ```text
//!  4096    4104          4108   4112
//!  +-------+-------------+------+------------------------
//!  | below | next extent | crc  | entries ...
//!  +-------+-------------+------+------------------------
//!
//!  0                8        12       16    20  24
//!  +----------------+--------+--------+-----+---+-----------------------------------
//!  | segment number | hashes | deltas | crc | 0 | hashes (u64 each), deltas (2 u64 each)
//!  +----------------+--------+--------+-----+---+-----------------------------------
//! ```
//!
//! `below` is the number of the first segment since the checkpoint, which no other has. It is the beginning of what the checksum of an entry is of, so that what lay there before is none. All numbers are little-endian. An entry that is not whole ends the journal: what is not in it counts still, which is on the safe side, and the opening knows of which segments nothing is said.
//! Nothing of it is made durable: it is for openings after a killed process.

use std::collections::{HashMap, HashSet};

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u32_at, u64_at};
use twox_hash::XxHash3_64;

use super::Log;
use super::format::RecordKind;
use crate::Result;
use crate::space::KEPT_BYTES;

const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 24;
const DELTA_BYTES: usize = 16;

/// Where a journal goes on.
#[derive(Debug)]
pub(super) struct FreedJournal {
    below: u64,
    /// The extent that it is in now.
    extent: u32,
    /// Where the next entry goes, from the beginning of that.
    at: u64,
}

/// What was to be written down has no room, or cannot be read.
#[derive(Debug)]
pub(super) struct JournalLacksRoom;

impl FreedJournal {
    /// The extent that it is in.
    pub(super) fn extent(&self) -> u32 {
        self.extent
    }
}

/// What a journal has.
#[derive(Debug, Default)]
pub(crate) struct FreedRecords {
    /// Numbers of segments that it has all of.
    segments: HashSet<u64>,
    /// In order.
    hashes: Vec<u64>,
    /// What deltas were written over.
    below: HashMap<u64, u64>,
}

impl FreedRecords {
    /// Whether it has all of a segment.
    pub(crate) fn has(&self, segment_number: u64) -> bool {
        self.segments.contains(&segment_number)
    }

    /// What the delta that was at this place was written over.
    pub(crate) fn below(&self, offset: u64) -> Option<u64> {
        self.below.get(&offset).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// How many records of a key with this hash were freed.
    pub(crate) fn of(&self, hash: u64) -> usize {
        let from = self.hashes.partition_point(|of| *of < hash);
        self.hashes[from..].iter().take_while(|of| **of == hash).count()
    }
}

fn header(below: u64, next: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&below.to_le_bytes());
    bytes[8..12].copy_from_slice(&next.to_le_bytes());
    let crc = crc32c(0, &bytes[..12]);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn entry_crc(below: u64, head: &[u8], lists: &[u8]) -> u32 {
    crc32c(crc32c(crc32c(0, &below.to_le_bytes()), &head[..16]), lists)
}

/// An entry of a journal.
struct FreedEntry<'j> {
    segment_number: u64,
    hashes: &'j [u8],
    deltas: &'j [u8],
}

impl<'j> FreedEntry<'j> {
    /// The one that `bytes` begin with, if it is whole, and what is behind it.
    fn decode(bytes: &'j [u8], below: u64) -> Option<(FreedEntry<'j>, &'j [u8])> {
        let (head, rest) = bytes.split_at_checked(ENTRY_BYTES)?;
        let hashes = (u32_at(head, 8) as usize).checked_mul(8)?;
        let deltas = (u32_at(head, 12) as usize).checked_mul(DELTA_BYTES)?;
        let (lists, behind) = rest.split_at_checked(hashes.checked_add(deltas)?)?;
        if entry_crc(below, head, lists) != u32_at(head, 16) {
            return None;
        }
        let (hashes, deltas) = lists.split_at(hashes);
        Some((FreedEntry { segment_number: u64_at(head, 0), hashes, deltas }, behind))
    }
}

impl Log {
    /// The hash of a key in the journal of this store: of others it is another, so that nobody can look for two that are the same.
    pub(crate) fn freed_hash(&self, table: u32, key: &[u8]) -> u64 {
        let seed = self.store_seed.wrapping_add(u64::from(table).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        XxHash3_64::oneshot_with_seed(seed, key)
    }

    /// Begins the journal of a checkpoint; `None` where there is no room for it.
    pub(super) fn begin_journal(&self, below: u64, left: u32) -> Result<Option<FreedJournal>> {
        let Some(extent) = self.take_for_checkpoint(left)? else { return Ok(None) };
        self.write_journal(extent, 0, &header(below, 0));
        Ok(Some(FreedJournal { below, extent, at: HEADER_BYTES as u64 }))
    }

    fn write_journal(&self, extent: u32, at: u64, bytes: &[u8]) {
        let offset = self.extent_offset(extent) + KEPT_BYTES + at;
        self.tier.write(offset, bytes.len(), |out| out.copy_from_slice(bytes));
    }

    /// Writes down what is about to be freed of a segment; returns an extent that was taken for that.
    pub(super) fn write_freed(
        &self,
        journal: &mut FreedJournal,
        extent: u32,
        uncounted: &[u64],
    ) -> std::result::Result<Option<u32>, JournalLacksRoom> {
        let segment_number = self.segment_number(extent);
        if segment_number >= journal.below {
            return Ok(None);
        }
        let entry = self.freed_entry((extent, segment_number), uncounted, journal.below);
        entry.and_then(|entry| self.append_to_journal(&entry, journal)).ok_or(JournalLacksRoom)
    }

    /// The entry of a segment; `None` if it cannot be read to its end.
    fn freed_entry(
        &self,
        (extent, segment_number): (u32, u64),
        uncounted: &[u64],
        below: u64,
    ) -> Option<Vec<u8>> {
        let (mut entry, mut deltas) = (vec![0; ENTRY_BYTES], Vec::<u8>::new());
        let mut walk = self.walk(extent)?;
        while let Some(record) = walk.next_record().ok()? {
            if uncounted.binary_search(&record.offset()).is_err() {
                entry.extend(self.freed_hash(record.table(), record.key()).to_le_bytes());
            }
            if record.kind() == RecordKind::Delta
                && !record.ends_version()
                && let Some(over) = record.previous()
            {
                deltas.extend([record.offset(), over.offset()].map(u64::to_le_bytes).as_flattened());
            }
        }
        let hashes = ((entry.len() - ENTRY_BYTES) / 8) as u32;
        entry[..8].copy_from_slice(&segment_number.to_le_bytes());
        entry[8..12].copy_from_slice(&hashes.to_le_bytes());
        entry[12..16].copy_from_slice(&((deltas.len() / DELTA_BYTES) as u32).to_le_bytes());
        entry.extend(deltas);
        let crc = entry_crc(below, &entry, &entry[ENTRY_BYTES..]);
        entry[16..20].copy_from_slice(&crc.to_le_bytes());
        Some(entry)
    }

    /// Adds an entry; with an extent that was taken for it. `None` if there was no room.
    fn append_to_journal(&self, entry: &[u8], journal: &mut FreedJournal) -> Option<Option<u32>> {
        let (room, mut taken) = (self.extent_bytes() - KEPT_BYTES, None);
        if journal.at + entry.len() as u64 > room {
            if HEADER_BYTES as u64 + entry.len() as u64 > room {
                return None;
            }
            let next = self.take_for_checkpoint(0).ok()??;
            self.write_journal(next, 0, &header(journal.below, 0));
            self.write_journal(journal.extent, 0, &header(journal.below, next));
            (journal.extent, journal.at) = (next, HEADER_BYTES as u64);
            taken = Some(next);
        }
        self.write_journal(journal.extent, journal.at, entry);
        journal.at += entry.len() as u64;
        Some(taken)
    }

    /// What the journal that begins in an extent has of segments that were freed. Before any extent that is free is taken.
    pub(crate) fn read_freed(
        &self,
        mut extent: u32,
        below: u64,
        was_freed: impl Fn(u64) -> bool,
    ) -> FreedRecords {
        let (mut freed, room) = (FreedRecords::default(), self.extent_bytes() - KEPT_BYTES);
        let mut seen = HashSet::new();
        while extent != 0 && seen.insert(extent) {
            let offset = self.extent_offset(extent);
            // Where there are no blocks, and none to be had, who looks would be ended.
            if !self.tier.is_read_only() && self.tier.allocate(offset, self.extent_bytes()).is_err() {
                break;
            }
            let Some(bytes) = self.tier.try_read(offset + KEPT_BYTES, room as usize) else { break };
            let next = u32_at(bytes, 8);
            if bytes[..HEADER_BYTES] != header(below, next) {
                break;
            }
            let mut rest = &bytes[HEADER_BYTES..];
            while let Some((entry, behind)) = FreedEntry::decode(rest, below) {
                if was_freed(entry.segment_number) && freed.segments.insert(entry.segment_number) {
                    freed.hashes.extend(entry.hashes.chunks_exact(8).map(|hash| u64_at(hash, 0)));
                    let deltas = entry.deltas.chunks_exact(DELTA_BYTES);
                    freed.below.extend(deltas.map(|delta| (u64_at(delta, 0), u64_at(delta, 8))));
                }
                rest = behind;
            }
            extent = next;
        }
        freed.hashes.sort_unstable();
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The bytes of a journal never change, and none of another journal is taken for one of its own.
    #[test]
    fn golden_journal() {
        assert_eq!(hex(&header(0x0102, 7)[..12]), "020100000000000007000000");
        let lists: Vec<u8> = [11u64, 12, 100, 90].iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut entry = vec![0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&5u64.to_le_bytes());
        entry[8..12].copy_from_slice(&2u32.to_le_bytes());
        entry[12..16].copy_from_slice(&1u32.to_le_bytes());
        entry.extend(&lists);
        let crc = crc32c(crc32c(crc32c(0, &9u64.to_le_bytes()), &entry[..16]), &lists);
        entry[16..20].copy_from_slice(&crc.to_le_bytes());
        entry.extend(b"behind");
        let (decoded, behind) = FreedEntry::decode(&entry, 9).unwrap();
        assert_eq!((decoded.segment_number, decoded.hashes, decoded.deltas), (5, &lists[..16], &lists[16..]));
        assert_eq!(behind, b"behind");
        assert!(FreedEntry::decode(&entry, 8).is_none(), "of another checkpoint");
        for at in (0..20).chain(24..56) {
            let mut flipped = entry.clone();
            flipped[at] ^= 1;
            assert!(FreedEntry::decode(&flipped, 9).is_none(), "byte {at}");
        }
        assert!(FreedEntry::decode(&[0; 64], 9).is_none(), "of nothing");
    }
}
