//! Blocks: which are free, open, full, and how much of each is live; and the two that are written to.
//!
//! Owns [`Blocks`] and [`OpenBlock`]. Promises that a block is in one state, and that the least worn free one is taken. Must not know what is in records.

use std::collections::BTreeSet;

use crate::flash::footer::{ENTRY_BYTES, FooterEntry, TRAILER_BYTES};
use crate::flash::geometry::Geometry;
use crate::flash::record::{END_BYTES, UNIT_BYTES};
use crate::flash::superblock::OpenMark;

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
    /// Counts what may make a block worth emptying: less of one is live, or one is sealed.
    gains: u64,
}

impl Blocks {
    /// So many, none of them free yet.
    pub(super) fn new(count: u32) -> Blocks {
        let info = BlockInfo { state: BlockState::Sealed, live: 0, longest: 0, sealed_at: 0 };
        Blocks { blocks: vec![info; count as usize], free: BTreeSet::new(), open: [None, None], gains: 0 }
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
        self.blocks[block as usize] =
            BlockInfo { state: BlockState::Free, live: 0, longest: 0, sealed_at: 0 };
        self.free.insert((generation, block));
    }

    /// The free block that was erased least often, no longer free.
    pub(super) fn take_free(&mut self) -> Option<u32> {
        let (_, block) = self.free.pop_first()?;
        self.blocks[block as usize].state = BlockState::Open;
        Some(block)
    }

    pub(super) fn set_sealed(&mut self, block: u32, sequence: u64) {
        let info = &mut self.blocks[block as usize];
        (info.state, info.sealed_at) = (BlockState::Sealed, sequence);
        self.gains += 1;
    }

    pub(super) fn set_damaged(&mut self, block: u32) {
        self.blocks[block as usize].state = BlockState::Damaged;
    }

    /// See the field.
    pub(super) fn gains(&self) -> u64 {
        self.gains
    }

    /// Blocks that are kept as they are, and what of them counts.
    pub(super) fn damaged(&self) -> (u32, u64) {
        let damaged = self.blocks.iter().filter(|info| info.state == BlockState::Damaged);
        damaged.fold((0, 0), |(count, live), info| (count + 1, live + info.live))
    }

    pub(super) fn add_live(&mut self, block: u32, bytes: u64) {
        let info = &mut self.blocks[block as usize];
        info.live += bytes;
        info.longest = info.longest.max(bytes);
    }

    pub(super) fn remove_live(&mut self, block: u32, bytes: u64) {
        let info = &mut self.blocks[block as usize];
        debug_assert!(info.live >= bytes, "{bytes} bytes taken off {} of block {block}", info.live);
        info.live = info.live.saturating_sub(bytes);
        if info.state == BlockState::Damaged && info.live == 0 {
            // Whatever could not be read counts no more.
            info.state = BlockState::Sealed;
        }
        self.gains += 1;
    }

    pub(super) fn open(&self, stream: WriteStream) -> Option<&OpenBlock> {
        self.open[stream as usize].as_ref()
    }

    pub(super) fn open_mut(&mut self, stream: WriteStream) -> Option<&mut OpenBlock> {
        self.open[stream as usize].as_mut()
    }

    pub(super) fn set_open(&mut self, stream: WriteStream, open: OpenBlock) {
        self.blocks[open.block as usize].state = BlockState::Open;
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
