//! Opening: everything in memory is made anew from the flash.
//!
//! Owns what of the flash counts after a crash. Promises that this is a prefix of what was written, with all that was durable; that after a killed process, or a close in order, it is all; that what is
//! missing beyond that is damage, of which the rest is kept and which is told ([`OpenReport`]); and that what a power cut left beyond the prefix is gone for good before the first command. Must not know commands.
//!
//! 1. **Blocks** in use have a footer, or are one of the two open ones that the superblock names. An open one is walked to the first record that does not verify, and of commands'
//!    records to the first gap in their sequences. Below what the superblock calls durable there is none, or the block is damaged: it is walked on behind the damage, and sealed. So is a block without a footer.
//!    Up to here nothing was written. If anything is damaged the superblock says next that a repair was begun: one that is cut short leaves the next opening all there is to tell.
//! 2. **Killed, or a power cut?** By the boot id (decision 0005). Killed: records are stored again and made durable. A power cut: what follows in the block is cleared.
//! 3. **Keys**: of each key's records the newest counts; the others are its older ones. Buckets and key spaces follow.
//! 4. **Words and superblock** are written, and commands may come.

use super::block::{Blocks, OpenBlock, WriteStream};
use super::bucket::{Buckets, Iterators};
use super::damage::{BlockWalk, LostRange, OpenReport, WalkRules};
use super::gc::Gc;
use super::manager::Index;
use super::page::{IndexEntry, OLDER_SATURATED};
use super::space::{self, Spaces};
use super::{Device, DeviceOptions};
use crate::code::{KvError, Result};
use crate::command::SpaceId;
use crate::flash::Flash;
use crate::flash::footer::{BlockFooter, FooterEntry, FooterRepair};
use crate::flash::record::{END_BYTES, RecordHeader, RecordKind, SEQUENCE_MAX, UNIT_BYTES};
use crate::flash::superblock::OpenMark;

/// A record that counts, and where it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownRecord {
    pub(super) entry: FooterEntry,
    pub(super) place: u64,
}

/// By hash, and of each key the newest last.
pub(super) fn sort(records: &mut [KnownRecord]) {
    // Of two copies of one record gc's is the one to stay: the other is in the block that it began to empty.
    records.sort_unstable_by_key(|known| {
        let header = &known.entry.header;
        (known.entry.hash, header.sequence, header.relocated, known.place)
    });
}

/// What is to be done with a block before commands come.
#[derive(Debug)]
enum BlockStep {
    /// It is stored again as it is.
    Restore,
    /// It is damaged: it gets a footer with what was found. Before that what a power cut left from `cut_at` on is cleared.
    Rebuild { walk: BlockWalk, cut_at: Option<u32> },
    /// It is open, and goes on behind its last record.
    GoOn { stream: WriteStream, walk: BlockWalk, cut_at: Option<u32> },
}

#[derive(Debug)]
struct FoundBlock {
    block: u32,
    next: BlockStep,
}

impl Device {
    pub(super) fn recover(flash: Flash, options: DeviceOptions) -> Result<Device> {
        let blocks = Blocks::new(flash.geometry());
        let sequence = flash.superblock().watermark;
        let mut device = Device {
            flash,
            options,
            index: Index::default(),
            blocks,
            buckets: Buckets::default(),
            iterators: Iterators::default(),
            spaces: Spaces::default(),
            gc: Gc::default(),
            sequence,
            durable_sequence: sequence,
            used_bytes: 0,
            tombstone_bytes: 0,
            queue: std::collections::VecDeque::new(),
            next_hashes: Vec::new(),
            group_delete: None,
            failed: None,
            events: Vec::new(),
            tag: 0,
            now_ns: 0,
            report: OpenReport::default(),
        };
        // A repair that was begun kept the boot id of before: whoever began it may have been killed in this boot.
        if device.flash.is_same_boot() || device.flash.superblock().repair != 0 {
            device.flash.restore_superblocks()?;
        }
        let (records, found) = device.find_records()?;
        device.sequence = records.iter().map(|known| known.entry.header.sequence).fold(sequence, u64::max);
        let goes_on =
            |found: &FoundBlock| matches!(found.next, BlockStep::GoOn { stream: WriteStream::Hot, .. });
        if device.report.may_undo_changes() && !found.iter().any(goes_on) {
            // The last numbers may have been those of lost records: they are not given again. In an open block that goes on there is no gap.
            let lost = device.flash.geometry().bytes() / UNIT_BYTES as u64;
            device.sequence = (device.sequence + lost).min(SEQUENCE_MAX - 1);
        }
        device.note_numbers(&records)?;
        device.repair_blocks(found)?;
        device.take_records(records)?;
        device.report.spaces_unnamed = device.spaces.add_unnamed();
        device.durable_sequence = device.sequence;
        device.flash.restore_words()?;
        // PERSIST: open blocks were made durable, or cleared, and footers made anew, by `repair_blocks`; the superblock, with this boot's id, comes last.
        device.write_superblock(false)?;
        Ok(device)
    }

    /// All records that count, of all blocks, and what is to be done with which of these. Writes nothing: what is found damaged is repaired when it is known how much that is.
    fn find_records(&mut self) -> Result<(Vec<KnownRecord>, Vec<FoundBlock>)> {
        let (mut records, mut found) = (Vec::new(), Vec::new());
        for block in 0..self.flash.geometry().blocks {
            if !self.flash.is_in_use(block) {
                self.blocks.set_free(block, self.flash.generation(block));
                continue;
            }
            let (entries, next) = match (self.flash.read_footer(block)?, self.open_stream(block)) {
                (Some(footer), open) => {
                    let is_retold = self.tell_again(block, &footer);
                    // The process was killed before its footer was synced, or the superblock that calls it sealed.
                    let is_pending = open.is_some() || is_retold;
                    self.set_sealed(block, &footer.entries);
                    (footer.entries, is_pending.then_some(BlockStep::Restore))
                }
                (None, Some((stream, mark))) => {
                    let (entries, next) = self.find_open_block(stream, mark)?;
                    (entries, Some(next))
                }
                (None, None) => {
                    let walk = self.walk_block(block, WalkRules::of_sealed())?;
                    let entries = walk.entries.clone();
                    self.tell(&walk);
                    (entries, Some(BlockStep::Rebuild { walk, cut_at: None }))
                }
            };
            found.extend(next.map(|next| FoundBlock { block, next }));
            let first = self.flash.geometry().block_offset(block) / UNIT_BYTES as u64;
            let known =
                entries.into_iter().map(|entry| KnownRecord { entry, place: first + u64::from(entry.unit) });
            records.extend(known);
        }
        Ok((records, found))
    }

    fn set_sealed(&mut self, block: u32, entries: &[FooterEntry]) {
        let newest = entries.iter().map(|entry| entry.header.sequence).max();
        self.blocks.set_sealed(block, newest.unwrap_or(0));
    }

    /// A block that gets a footer made anew.
    fn tell(&mut self, walk: &BlockWalk) {
        self.report.footers_rebuilt += 1;
        self.report.values_damaged += walk.values_damaged;
        self.report.lost.extend(walk.lost.iter().cloned());
    }

    /// Whether a footer was made anew by a repair that was cut short: nobody was told of it then.
    fn tell_again(&mut self, block: u32, footer: &BlockFooter) -> bool {
        let BlockFooter { entries, repair } = footer;
        let is_cut_short = repair.number != 0 && repair.number == self.flash.superblock().repair;
        if is_cut_short {
            self.report.footers_rebuilt += 1;
            self.report.values_damaged += self.damaged_values(block, entries);
            self.report.lost.extend(self.losses(block, entries, repair.lost_tail));
        }
        is_cut_short
    }

    /// What is there of a block up to `end` is durable then.
    fn restore_block(&mut self, block: u32, end: u32) -> Result<()> {
        self.flash.rewrite_block(block, end);
        self.flash.persist(self.flash.geometry().block_offset(block), u64::from(end) + END_BYTES as u64)
    }

    /// Which stream the superblock calls this block open for.
    fn open_stream(&self, block: u32) -> Option<(WriteStream, OpenMark)> {
        let generation = self.flash.generation(block);
        WriteStream::BOTH.into_iter().find_map(|stream| {
            let mark = self.flash.superblock().open[stream as usize]?;
            (mark.block == block && mark.generation == generation).then_some((stream, mark))
        })
    }

    /// Walks an open block. One that is damaged will be sealed, with what was found.
    fn find_open_block(
        &mut self,
        stream: WriteStream,
        mark: OpenMark,
    ) -> Result<(Vec<FooterEntry>, BlockStep)> {
        let is_exact = self.flash.superblock().clean || self.flash.is_same_boot();
        let walk = self.walk_block(mark.block, WalkRules::of_open(stream, mark, is_exact))?;
        let entries = walk.entries.clone();
        let cut_at = if is_exact { None } else { Some(walk.end.max(mark.end)) };
        if !walk.lost.is_empty() {
            self.tell(&walk);
            return Ok((entries, BlockStep::Rebuild { walk, cut_at }));
        }
        self.report.values_damaged += walk.values_damaged;
        Ok((entries, BlockStep::GoOn { stream, walk, cut_at }))
    }

    /// Does what is to be done with blocks. Before the first that is damaged is written to, the superblock says so: whenever this is cut short, the next opening finds all of it, or footers with
    /// the number of this repair.
    fn repair_blocks(&mut self, found: Vec<FoundBlock>) -> Result<()> {
        let is_repair = found.iter().any(|found| matches!(found.next, BlockStep::Rebuild { .. }));
        let mut number = self.flash.superblock().repair;
        if is_repair || number > 0 {
            // PERSIST: the number of the repair before any footer that hides what was lost.
            number = self.flash.begin_repair()?;
        }
        for FoundBlock { block, next } in found {
            match next {
                // PERSIST: what a killed process left is durable only when it was stored again.
                BlockStep::Restore => {
                    self.restore_block(block, self.flash.geometry().block_bytes - END_BYTES as u32)?;
                }
                BlockStep::Rebuild { walk, cut_at } => self.rebuild_footer(block, &walk, cut_at, number)?,
                BlockStep::GoOn { stream, walk, cut_at } => self.go_on_with(block, stream, walk, cut_at)?,
            }
        }
        Ok(())
    }

    /// Opens a block again that was open.
    fn go_on_with(
        &mut self,
        block: u32,
        stream: WriteStream,
        walk: BlockWalk,
        cut_at: Option<u32>,
    ) -> Result<()> {
        let BlockWalk { entries, end, .. } = walk;
        match cut_at {
            // PERSIST: what is cut off is gone before anything is written behind what is left: a later walk must not come to it.
            Some(cut_at) => self.flash.clear_rest(block, cut_at)?,
            // PERSIST: what a killed process left is durable only when it was stored again.
            None => self.restore_block(block, end)?,
        }
        let generation = self.flash.generation(block);
        let open = OpenBlock { block, generation, end, started: end, durable: end, entries };
        self.blocks.set_open(stream, open);
        Ok(())
    }

    /// Gives a block a footer that lists what was found of its records.
    fn rebuild_footer(
        &mut self,
        block: u32,
        walk: &BlockWalk,
        cut_at: Option<u32>,
        number: u32,
    ) -> Result<()> {
        if let Some(cut_at) = cut_at {
            self.flash.clear_rest(block, cut_at)?;
        }
        // PERSIST: the records before the footer that lists them.
        self.restore_block(block, self.flash.geometry().block_bytes - END_BYTES as u32)?;
        let repair = FooterRepair { number, lost_tail: walk.lost_tail };
        self.flash.write_footer(block, &walk.entries, repair)?;
        self.set_sealed(block, &walk.entries);
        Ok(())
    }

    /// No number of a key space that any record has, or may have had, is given again.
    fn note_numbers(&mut self, records: &[KnownRecord]) -> Result<()> {
        self.spaces.note_number(self.flash.superblock().last_space);
        for KnownRecord { entry, place } in records {
            self.spaces.note_number(entry.header.space);
            if entry.header.space == SpaceId::DIRECTORY && entry.header.kind == RecordKind::Pair {
                match self.directory_pair(*place, &entry.header) {
                    Ok((id, ..)) => self.spaces.note_number(id),
                    Err(KvError::Damaged { .. } | KvError::ReadFault { .. }) => self.spaces.skip_numbers(1),
                    Err(error) => return Err(error),
                }
            }
        }
        let lost = |range: &LostRange| range.bytes / UNIT_BYTES as u64 + 1;
        self.spaces.skip_numbers(self.report.lost.iter().map(lost).sum());
        Ok(())
    }

    /// Builds index, buckets and counts.
    fn take_records(&mut self, mut records: Vec<KnownRecord>) -> Result<()> {
        sort(&mut records);
        for of_hash in records.chunk_by(|a, b| a.entry.hash == b.entry.hash) {
            if let [only] = of_hash {
                self.take_key(only, 0)?;
                continue;
            }
            for of_key in self.by_key(of_hash)? {
                if let Some((newest, older)) = of_key.split_last() {
                    self.take_key(newest, older.len())?;
                }
            }
        }
        Ok(())
    }

    /// Parts records that share a hash by their keys. One that cannot be read goes with those that it may belong to.
    pub(super) fn by_key(&self, of_hash: &[KnownRecord]) -> Result<Vec<Vec<KnownRecord>>> {
        let mut keys: Vec<(Option<&[u8]>, Vec<KnownRecord>)> = Vec::new();
        for known in of_hash {
            let key = match self.flash.prefix(known.place) {
                Ok((_, key)) => Some(key),
                Err(KvError::Damaged { .. } | KvError::ReadFault { .. }) => None,
                Err(error) => return Err(error),
            };
            let fits = |of: &KnownRecord| {
                let (a, b) = (&of.entry, &known.entry);
                (a.group, a.header.space, a.header.key_bytes) == (b.group, b.header.space, b.header.key_bytes)
            };
            let same = keys.iter_mut().find(|(of, records)| {
                records.first().is_some_and(fits) && (of.is_none() || key.is_none() || *of == key)
            });
            match same {
                Some((of, records)) => {
                    *of = of.or(key);
                    records.push(*known);
                }
                None => keys.push((key, vec![*known])),
            }
        }
        Ok(keys.into_iter().map(|(_, records)| records).collect())
    }

    /// The newest record of a key, and how many older ones there are.
    fn take_key(&mut self, newest: &KnownRecord, older: usize) -> Result<()> {
        let KnownRecord { entry, place } = newest;
        let header = &entry.header;
        let is_tombstone = header.kind == RecordKind::Tombstone;
        self.index.build(&IndexEntry {
            hash: entry.hash,
            place: *place,
            older: u16::try_from(older).unwrap_or(OLDER_SATURATED).min(OLDER_SATURATED),
            is_tombstone,
        });
        if is_tombstone && older == 0 {
            return Ok(());
        }
        self.used_bytes += entry.charge();
        self.blocks.add_live(self.block_of(*place), entry.charge());
        if is_tombstone {
            self.tombstone_bytes += entry.charge();
            return Ok(());
        }
        self.spaces.count(header.space, u64::from(header.key_bytes) + u64::from(header.value_bytes));
        self.buckets.insert(header.space, entry.group, entry.hash);
        if header.space == SpaceId::DIRECTORY {
            match self.directory_pair(*place, header) {
                Ok((id, name, bytes_max)) => self.spaces.add(id, name, bytes_max, header.sequence),
                // Its pairs tell that there is one.
                Err(KvError::Damaged { .. } | KvError::ReadFault { .. }) => {
                    self.spaces.add_unreadable(*place, entry);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What a pair of the directory says of a key space: number, name and limit.
    fn directory_pair(&self, place: u64, header: &RecordHeader) -> Result<(SpaceId, Vec<u8>, u64)> {
        let name = self.flash.prefix(place)?.1.to_vec();
        let offset = place * UNIT_BYTES as u64;
        let damaged = KvError::Damaged { offset, what: "the directory of key spaces" };
        let (id, bytes_max) = space::decode(self.flash.value(place, header)?).ok_or(damaged)?;
        Ok((id, name, bytes_max))
    }
}
