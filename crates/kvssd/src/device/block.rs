//! Blocks: which are free, open, full, and how much of each is live; and the two that are written to.
//!
//! Owns [`Blocks`] and [`OpenBlock`]. Promises that a block is in one state, and that the least worn free one is taken. Must not know what is in records.

use std::collections::BTreeSet;

use crate::flash::footer::{ENTRY_BYTES, FooterEntry, TRAILER_BYTES};
use crate::flash::geometry::Geometry;
use crate::flash::record::{END_BYTES, UNIT_BYTES};
use crate::flash::superblock::OpenMark;

/// A block that is emptied has at least one part in so many to gain: gc of a whole one costs that many times as much as it gains.
pub(super) const GAIN_SHARE_MIN: u64 = 32;

/// Who writes to an open block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteStream {
    /// Commands: what is new is likely to be replaced soon.
    Hot = 0,
    /// Gc: what it copies has lasted.
    Cold = 1,
}

impl WriteStream {
    pub(super) const BOTH: [WriteStream; 2] = [WriteStream::Hot, WriteStream::Cold];
}

/// What a block is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockState {
    Free,
    Open,
    /// It has a footer.
    Sealed,
    /// A record in it that counts could not be read: it is never erased.
    Damaged,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct BlockInfo {
    pub(super) state: BlockState,
    /// Bytes of records that count, with their entries.
    pub(super) live: u64,
    /// The longest of them, with its entry, since the block was begun.
    pub(super) longest: u64,
    /// The sequence when it was sealed: its age, to gc.
    pub(super) sealed_at: u64,
}

/// A block that is written to.
#[derive(Debug)]
pub(super) struct OpenBlock {
    pub(super) block: u32,
    pub(super) generation: u64,
    /// Bytes of records in it.
    pub(super) end: u32,
    /// Bytes of them that the medium was asked to write, without waiting for it.
    pub(super) started: u32,
    /// Bytes of them that are durable.
    pub(super) durable: u32,
    pub(super) entries: Vec<FooterEntry>,
}

impl OpenBlock {
    /// Whether a record of so many bytes fits in, with its entry.
    pub(super) fn has_room(&self, geometry: &Geometry, record_bytes: usize) -> bool {
        let footer = (self.entries.len() + 1) * ENTRY_BYTES + TRAILER_BYTES;
        self.end as usize + record_bytes + END_BYTES + footer <= geometry.block_bytes as usize
    }

    /// For a superblock: the end of the last record that is durable to its end. A page may end within one.
    pub(super) fn mark(&self) -> OpenMark {
        let start = |entry: &FooterEntry| entry.unit * UNIT_BYTES as u32;
        let whole = self
            .entries
            .partition_point(|entry| start(entry) + entry.header.record_bytes() as u32 <= self.durable);
        let end = self.entries.get(whole).map_or(self.end, start);
        OpenMark { generation: self.generation, block: self.block, end }
    }
}

#[derive(Debug)]
pub(super) struct Blocks {
    blocks: Vec<BlockInfo>,
    /// By generation: wear.
    free: BTreeSet<(u64, u32)>,
    open: [Option<OpenBlock>; 2],
    /// Bytes of a block that records and their entries share.
    usable: u64,
    /// Blocks that are worth emptying.
    victims: u32,
    /// Blocks that are damaged, and what of them counts.
    damaged: (u32, u64),
}

impl Blocks {
    /// So many, none of them free yet.
    pub(super) fn new(geometry: Geometry) -> Blocks {
        let info = BlockInfo { state: BlockState::Open, live: 0, longest: 0, sealed_at: 0 };
        Blocks {
            blocks: vec![info; geometry.blocks as usize],
            free: BTreeSet::new(),
            open: [None, None],
            usable: geometry.usable_bytes(),
            victims: 0,
            damaged: (0, 0),
        }
    }

    /// Whether gc may gain by emptying a block. A copy may leave as much unused at the end of an open block as the longest record. Less than a share is not worth a block's work.
    pub(super) fn is_victim(&self, info: &BlockInfo) -> bool {
        info.state == BlockState::Sealed
            && info.live + info.longest.max(self.usable / GAIN_SHARE_MIN) <= self.usable
    }

    /// How many there are of which [`Blocks::is_victim`] holds.
    pub(super) fn victims(&self) -> u32 {
        self.victims
    }

    /// Changes what is known of a block, and with it the counts of blocks: no command goes through all of them for these.
    fn change(&mut self, block: u32, change: impl FnOnce(&mut BlockInfo)) {
        let before = self.blocks[block as usize];
        let mut after = before;
        change(&mut after);
        self.blocks[block as usize] = after;
        let is_damaged = |info: &BlockInfo| info.state == BlockState::Damaged;
        for (info, sign) in [(before, false), (after, true)] {
            let (victim, damaged) = (u32::from(self.is_victim(&info)), u32::from(is_damaged(&info)));
            let live = if is_damaged(&info) { info.live } else { 0 };
            if sign {
                self.victims += victim;
                self.damaged = (self.damaged.0 + damaged, self.damaged.1 + live);
            } else {
                self.victims -= victim;
                self.damaged = (self.damaged.0 - damaged, self.damaged.1 - live);
            }
        }
    }

    pub(super) fn info(&self, block: u32) -> BlockInfo {
        self.blocks[block as usize]
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &BlockInfo)> {
        (0..).zip(&self.blocks)
    }

    pub(super) fn free_count(&self) -> usize {
        self.free.len()
    }

    pub(super) fn set_free(&mut self, block: u32, generation: u64) {
        let free = BlockInfo { state: BlockState::Free, live: 0, longest: 0, sealed_at: 0 };
        self.change(block, |info| *info = free);
        self.free.insert((generation, block));
    }

    /// The free block that was erased least often, no longer free.
    pub(super) fn take_free(&mut self) -> Option<u32> {
        let (_, block) = self.free.pop_first()?;
        self.change(block, |info| info.state = BlockState::Open);
        Some(block)
    }

    pub(super) fn set_sealed(&mut self, block: u32, sequence: u64) {
        self.change(block, |info| (info.state, info.sealed_at) = (BlockState::Sealed, sequence));
    }

    pub(super) fn set_damaged(&mut self, block: u32) {
        self.change(block, |info| info.state = BlockState::Damaged);
    }

    /// Blocks that are kept as they are, and what of them counts.
    pub(super) fn damaged(&self) -> (u32, u64) {
        self.damaged
    }

    pub(super) fn add_live(&mut self, block: u32, bytes: u64) {
        self.change(block, |info| (info.live, info.longest) = (info.live + bytes, info.longest.max(bytes)));
    }

    pub(super) fn remove_live(&mut self, block: u32, bytes: u64) {
        self.change(block, |info| {
            // Only a forged footer says less of a record than the record itself.
            info.live = info.live.saturating_sub(bytes);
            if info.state == BlockState::Damaged && info.live == 0 {
                // Whatever could not be read counts no more.
                info.state = BlockState::Sealed;
            }
        });
    }

    pub(super) fn open(&self, stream: WriteStream) -> Option<&OpenBlock> {
        self.open[stream as usize].as_ref()
    }

    pub(super) fn open_mut(&mut self, stream: WriteStream) -> Option<&mut OpenBlock> {
        self.open[stream as usize].as_mut()
    }

    pub(super) fn set_open(&mut self, stream: WriteStream, open: OpenBlock) {
        self.change(open.block, |info| info.state = BlockState::Open);
        self.open[stream as usize] = Some(open);
    }

    pub(super) fn take_open(&mut self, stream: WriteStream) -> Option<OpenBlock> {
        self.open[stream as usize].take()
    }

    /// For a superblock.
    pub(super) fn marks(&self) -> [Option<OpenMark>; 2] {
        WriteStream::BOTH.map(|stream| self.open(stream).map(OpenBlock::mark))
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    /// What is counted with each change is what going through all blocks counts.
    #[test]
    fn counts_of_blocks_are_kept() {
        let geometry = Geometry { page_bytes: 4096, block_bytes: 32 << 10, blocks: 8 };
        let (mut blocks, mut random) = (Blocks::new(geometry), Random::from_seed(1));
        let mut seen = (0, 0);
        for n in 0..20_000 {
            let block = random.below(8) as u32;
            let live = blocks.info(block).live;
            match random.below(40) {
                0 => blocks.set_free(block, n),
                1 | 2 => blocks.set_sealed(block, n),
                3 => blocks.set_damaged(block),
                4..=18 => blocks.remove_live(block, random.below(1000).min(live)),
                19 => blocks.remove_live(block, live),
                20 => drop(blocks.take_free()),
                _ if live < 30_000 => blocks.add_live(block, random.below(1000)),
                _ => {}
            }
            let count = |is: &dyn Fn(&BlockInfo) -> bool| blocks.all().filter(|(_, info)| is(info)).count();
            let is_damaged = |info: &BlockInfo| info.state == BlockState::Damaged;
            let damaged = blocks.all().filter(|(_, info)| is_damaged(info)).map(|(_, info)| info.live).sum();
            assert_eq!(blocks.victims() as usize, count(&|info| blocks.is_victim(info)));
            assert_eq!(blocks.damaged(), (count(&is_damaged) as u32, damaged));
            seen = (seen.0 + blocks.victims(), seen.1 + blocks.damaged().0);
        }
        assert!(seen.0 > 1000 && seen.1 > 1000, "{seen:?}");
    }
}
