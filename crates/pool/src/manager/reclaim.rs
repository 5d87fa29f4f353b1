//! Taking back the blocks of sessions that are gone, while nobody works.
//!
//! Owns which blocks nobody needs any more. Promises that no slot leads into such a block, that nobody who stays will still set a bit in it, and that no bit is set in it when it is given back. Must not know how agents are told.
//!
//! A block of a session that is gone gets no new objects, so that slots lead into it less and less. Where none does any more it is free: clients begin all their look-ups again in the next epoch, so nobody has an address
//! in it, and what they had freed in it is done, since they have waited for their posts. A change of which a client is in doubt may turn out to be done, and the client frees then what it replaced: blocks that doubts name stay.

use std::collections::{BTreeMap, BTreeSet};

use super::repair::RepairPost;
use crate::fabric::{OpResult, RemoteOp};
use crate::region::{BlockEntry, BlockId, NodeSet, PoolLayout};
use hedgerow_row::le_bytes::u64_at;

/// Numbers of its posts begin here: those of repairs are below.
pub(super) const RECLAIM_POSTS: u32 = 1 << 31;

/// One round through all block tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Reclaim {
    layout: PoolLayout,
    after: NodeSet,
    staying: BTreeSet<u16>,
    kept: BTreeSet<BlockId>,
    next: u32,
    /// Posts under way; of those that read a block table, its region.
    awaited: BTreeMap<u32, Option<u16>>,
    has_read: bool,
    /// The blocks that nobody needs, and their entries.
    freed: BTreeMap<BlockId, u64>,
}

impl Reclaim {
    /// `kept`: blocks that slots lead into, or doubts name.
    pub(super) fn new(
        layout: PoolLayout,
        after: NodeSet,
        staying: BTreeSet<u16>,
        kept: BTreeSet<BlockId>,
    ) -> Reclaim {
        let (awaited, freed) = (BTreeMap::new(), BTreeMap::new());
        Reclaim { layout, after, staying, kept, next: RECLAIM_POSTS, awaited, has_read: false, freed }
    }

    pub(super) fn is_done(&self) -> bool {
        self.has_read && self.awaited.is_empty()
    }

    /// The blocks that nobody needs, and their entries; once it is done.
    pub(super) fn freed(&self) -> impl Iterator<Item = (BlockId, u64)> + '_ {
        self.freed.iter().map(|(&block, &entry)| (block, entry))
    }

    fn number(&mut self, region: Option<u16>) -> u32 {
        self.next += 1;
        self.awaited.insert(self.next, region);
        self.next
    }

    /// Reads the block tables of all regions.
    pub(super) fn begin(&mut self) -> Vec<RepairPost> {
        let mut posts = Vec::new();
        for region in self.layout.regions() {
            let Some(&node) = self.layout.living_replicas(region, self.after).first() else { continue };
            let from = self.layout.entry_address(BlockId { region, number: 0 });
            posts.push((self.number(Some(region)), node, vec![RemoteOp::Read(from, 8 * self.layout.blocks)]));
        }
        self.has_read = posts.is_empty();
        posts
    }

    /// Takes nothing back.
    pub(super) fn pass(&mut self) -> Vec<RepairPost> {
        self.has_read = true;
        Vec::new()
    }

    /// A post is done. Once all tables are read, the bitmaps of what is free are cleared on all copies.
    pub(super) fn done(&mut self, number: u32, results: &[OpResult]) -> Vec<RepairPost> {
        let Some(region) = self.awaited.remove(&number) else { return Vec::new() };
        if let (Some(region), Some(OpResult::Bytes(table))) = (region, results.first()) {
            self.look_at(region, table);
        }
        if self.has_read || !self.awaited.is_empty() {
            return Vec::new();
        }
        self.has_read = true;
        let mut posts = Vec::new();
        for block in self.freed.keys().copied().collect::<Vec<_>>() {
            let zeros = vec![0; self.layout.bitmap_bytes() as usize];
            let clear = RemoteOp::Write(self.layout.block_address(block), zeros);
            for node in self.layout.living_replicas(block.region, self.after) {
                posts.push((self.number(None), node, vec![clear.clone()]));
            }
        }
        posts
    }

    fn look_at(&mut self, region: u16, table: &[u8]) {
        for (number, entry) in (0u32..).zip(table.chunks_exact(8)) {
            let (block, entry) = (BlockId { region, number }, u64_at(entry, 0));
            if let Ok(BlockEntry::Allotted { session, .. }) = BlockEntry::decode(entry)
                && !self.staying.contains(&session)
                && !self.kept.contains(&block)
            {
                self.freed.insert(block, entry);
            }
        }
    }
}
