//! Whether everything on a device agrees: checksums, what footers say of records, and what the index says of both.
//!
//! Owns [`DeviceCheck`] and [`DeviceProblem`]. Promises that every byte of a record that a block lists was verified, that of each key the index leads to the newest record, to no other and to no more, and that what is
//! counted is what is there. Changes nothing. Must not know how a record is written.

use std::collections::BTreeMap;
use std::fmt;

use super::Device;
use super::block::{BlockState, WriteStream};
use super::damage::LostRange;
use super::page::OLDER_SATURATED;
use super::recover::{KnownRecord, sort};
use crate::code::Result;
use crate::command::{SpaceId, group_of};
use crate::flash::SpoiledCopies;
use crate::flash::footer::FooterEntry;
use crate::flash::record::{RecordKind, UNIT_BYTES};

/// What is wrong with a device. Places are in bytes from the start of the medium.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceProblem {
    /// One of the two superblocks; the other serves.
    Superblock {
        /// Where.
        offset: u64,
    },
    /// One of a block's two words; the other serves.
    BlockWord {
        /// Where.
        offset: u64,
        /// Whose.
        block: u32,
    },
    /// The list of a block's records. Opening makes it anew from them.
    Footer {
        /// Where the block begins.
        offset: u64,
        /// Which.
        block: u32,
    },
    /// Records are missing.
    Lost(LostRange),
    /// The header or the key of a record. Its pair cannot be read.
    Header {
        /// Where the record is.
        offset: u64,
    },
    /// The value of a record.
    Value {
        /// Where the record is.
        offset: u64,
        /// Of which key space.
        space: SpaceId,
        /// Of which key.
        key: Vec<u8>,
    },
    /// A footer says something else of a record than the record itself.
    Listed {
        /// Where the record is.
        offset: u64,
    },
    /// The index does not lead to the newest record of a key, or says something else of it.
    Index {
        /// Where that record is.
        offset: u64,
    },
    /// The index has more entries, or fewer, than there are keys.
    IndexEntries {
        /// So many.
        entries: u64,
        /// Keys that there are.
        keys: u64,
    },
    /// A key space's count of pairs or bytes is not what is there.
    Counts {
        /// Of which key space.
        space: SpaceId,
    },
    /// The name of a key space cannot be read. Its pairs are there under its number.
    Unnamed {
        /// Which.
        space: SpaceId,
    },
}

impl fmt::Display for DeviceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceProblem::Superblock { offset } => {
                write!(f, "byte {offset}: the superblock is damaged; the copy beside it is good")
            }
            DeviceProblem::BlockWord { offset, block } => {
                write!(f, "byte {offset}: the word of block {block} is damaged; its copy is good")
            }
            DeviceProblem::Footer { offset, block } => {
                write!(
                    f,
                    "byte {offset}: the footer of block {block}, which begins here, is damaged; the next opening makes it anew"
                )
            }
            DeviceProblem::Lost(LostRange { offset, bytes, sequences }) => {
                write!(f, "byte {offset}: records are lost, in {bytes} bytes at most")?;
                if let Some(sequences) = sequences {
                    write!(f, ", changes {} to {}", sequences.start, sequences.end.saturating_sub(1))?;
                }
                f.write_str("; their keys may show what they had before")
            }
            DeviceProblem::Header { offset } => {
                write!(f, "byte {offset}: the header or the key of a record is damaged")
            }
            DeviceProblem::Value { offset, space, key } => {
                let (number, key) = (space.number(), key.escape_ascii());
                write!(f, "byte {offset}: a value of key \"{key}\" of key space {number} is damaged")
            }
            DeviceProblem::Listed { offset } => {
                write!(
                    f,
                    "byte {offset}: the footer of the block says something else of this record than the record"
                )
            }
            DeviceProblem::Index { offset } => {
                write!(f, "byte {offset}: the index does not lead to this record, the newest of its key")
            }
            DeviceProblem::IndexEntries { entries, keys } => {
                write!(f, "the index has {entries} entries for {keys} keys")
            }
            DeviceProblem::Counts { space } => {
                write!(
                    f,
                    "the pairs of key space {} are not as many, or as long, as is counted",
                    space.number()
                )
            }
            DeviceProblem::Unnamed { space } => {
                write!(f, "the name of key space {} cannot be read; its pairs are there", space.number())
            }
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCheck {
    /// What is wrong. Empty: the device is sound.
    pub problems: Vec<DeviceProblem>,
    /// Where one of two words of a block is older than the other, as a crash may leave it.
    pub older_words: Vec<u64>,
    /// Blocks in use that were gone through.
    pub blocks: u64,
    /// Records that were verified to their last byte.
    pub records: u64,
    /// Bytes of them.
    pub record_bytes: u64,
    /// Pairs that the index leads to, the names of key spaces not among them.
    pub pairs: u64,
}

impl DeviceCheck {
    /// What was seen before the device was opened, `without_footer` the blocks whose footer does not verify, and what opening said.
    pub(super) fn of_found(copies: &SpoiledCopies, without_footer: &[u32], device: &Device) -> DeviceCheck {
        let report = device.open_report();
        let mut check = DeviceCheck { older_words: copies.older_words.clone(), ..DeviceCheck::default() };
        let problems = &mut check.problems;
        problems.extend(copies.superblocks.iter().map(|&offset| DeviceProblem::Superblock { offset }));
        problems
            .extend(copies.words.iter().map(|&(offset, block)| DeviceProblem::BlockWord { offset, block }));
        let begins = |block| device.geometry().block_offset(block);
        let footer = |&block: &u32| DeviceProblem::Footer { offset: begins(block), block };
        problems.extend(without_footer.iter().map(footer));
        problems.extend(report.lost.iter().cloned().map(DeviceProblem::Lost));
        problems.extend(report.spaces_unnamed.iter().map(|&space| DeviceProblem::Unnamed { space }));
        check
    }
}

impl Device {
    /// Goes through all blocks in use, and then all keys.
    pub(super) fn check(&self, check: &mut DeviceCheck, mut progress: impl FnMut(u64, u64)) -> Result<()> {
        let (mut records, blocks) = (Vec::new(), self.flash.geometry().blocks);
        for block in 0..blocks {
            progress(u64::from(block), u64::from(blocks));
            if self.flash.is_in_use(block) {
                self.check_block(block, check, &mut records);
            }
        }
        progress(u64::from(blocks), u64::from(blocks));
        self.check_index(records, check)
    }

    fn check_block(&self, block: u32, check: &mut DeviceCheck, records: &mut Vec<KnownRecord>) {
        check.blocks += 1;
        let offset = self.flash.geometry().block_offset(block);
        let open = WriteStream::BOTH.into_iter().filter_map(|stream| self.blocks.open(stream));
        let open = open.into_iter().find(|open| open.block == block);
        let entries = match (open, self.blocks.info(block).state) {
            (Some(open), BlockState::Open) => Some(open.entries.clone()),
            _ => self.flash.read_footer(block).ok().flatten().map(|footer| footer.entries),
        };
        let Some(entries) = entries else {
            let footer = DeviceProblem::Footer { offset, block };
            if !check.problems.contains(&footer) {
                check.problems.push(footer);
            }
            return;
        };
        for entry in entries {
            let place = offset / UNIT_BYTES as u64 + u64::from(entry.unit);
            match self.check_record(place, &entry) {
                Ok(()) => {
                    check.records += 1;
                    check.record_bytes += entry.header.record_bytes() as u64;
                }
                Err(problem) => check.problems.push(problem),
            }
            records.push(KnownRecord { entry, place });
        }
    }

    /// The record that a footer lists, to its last byte, and what the footer says of it.
    fn check_record(&self, place: u64, entry: &FooterEntry) -> std::result::Result<(), DeviceProblem> {
        let offset = place * UNIT_BYTES as u64;
        let (header, key) = self.flash.prefix(place).map_err(|_| DeviceProblem::Header { offset })?;
        let is_as_listed = header == entry.header
            && self.hash(header.space, key) == entry.hash
            && group_of(key) == entry.group;
        if !is_as_listed {
            return Err(DeviceProblem::Listed { offset });
        }
        let damaged = |_| DeviceProblem::Value { offset, space: header.space, key: key.to_vec() };
        self.flash.value(place, &header).map(drop).map_err(damaged)
    }

    /// Whether the index has the newest record of each key, and nothing else.
    fn check_index(&self, mut records: Vec<KnownRecord>, check: &mut DeviceCheck) -> Result<()> {
        sort(&mut records);
        let (mut keys, mut counts) = (0u64, BTreeMap::<SpaceId, (u64, u64)>::new());
        for of_hash in records.chunk_by(|a, b| a.entry.hash == b.entry.hash) {
            for of_key in self.by_key(of_hash)? {
                let Some((newest, older)) = of_key.split_last() else { continue };
                let (header, place) = (&newest.entry.header, newest.place);
                let found = self.index.entry_at(newest.entry.hash, place);
                let is_tombstone = header.kind == RecordKind::Tombstone;
                keys += u64::from(found.is_some());
                let is_right = match found {
                    // What hides nothing any more has no entry once its block was begun to be emptied.
                    None => is_tombstone && older.is_empty(),
                    Some(found) => {
                        let counted = u64::from(found.entry.older);
                        found.entry.is_tombstone == is_tombstone
                            && (counted == older.len() as u64 || counted == u64::from(OLDER_SATURATED))
                    }
                };
                let is_walked =
                    is_tombstone || self.buckets.has(header.space, newest.entry.group, newest.entry.hash);
                if !is_right || !is_walked {
                    check.problems.push(DeviceProblem::Index { offset: place * UNIT_BYTES as u64 });
                }
                if !is_tombstone {
                    let (pairs, bytes) = counts.entry(header.space).or_default();
                    *pairs += 1;
                    *bytes += u64::from(header.key_bytes) + u64::from(header.value_bytes);
                }
            }
        }
        let entries = self.index.entries();
        if entries != keys {
            check.problems.push(DeviceProblem::IndexEntries { entries, keys });
        }
        for (space, pairs, bytes) in self.spaces.counts() {
            if counts.remove(&space).unwrap_or_default() != (pairs, bytes) {
                check.problems.push(DeviceProblem::Counts { space });
            }
            check.pairs += if space == SpaceId::DIRECTORY { 0 } else { pairs };
        }
        check.problems.extend(counts.into_keys().map(|space| DeviceProblem::Counts { space }));
        Ok(())
    }
}
