//! Memory for objects, inside of the blocks that a session has.
//!
//! Owns which of it is used, which may be used again, and when. Promises that no memory is given out while an object in it may be referred to: what is freed
//! waits in quarantine. Must not know who refers to it.
//!
//! Every size, in units of 64 bytes, has a list of its own; memory that was given out for one size stays with it.

use std::collections::{BTreeMap, VecDeque};

use crate::fabric::Nanos;
use crate::region::{BlockId, PoolLayout};
use crate::word::{LogicalAddress, UNIT_BYTES};

/// The memory of one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Slab {
    layout: PoolLayout,
    /// How long freed memory waits.
    quarantine_ns: Nanos,
    /// The blocks, and how many of their bytes were given out at least once.
    blocks: BTreeMap<BlockId, u32>,
    free: BTreeMap<u8, Vec<LogicalAddress>>,
    /// In the order of the times from which on it may be used again.
    quarantine: VecDeque<(Nanos, LogicalAddress, u8)>,
    /// What is given out, and how many units.
    used: BTreeMap<LogicalAddress, u8>,
}

impl Slab {
    pub(crate) fn new(layout: PoolLayout, quarantine_ns: Nanos) -> Slab {
        Slab {
            layout,
            quarantine_ns,
            blocks: BTreeMap::new(),
            free: BTreeMap::new(),
            quarantine: VecDeque::new(),
            used: BTreeMap::new(),
        }
    }

    /// Takes a block over. The same block again changes nothing.
    pub(crate) fn add_block(&mut self, block: BlockId) {
        self.blocks.entry(block).or_insert(self.layout.bitmap_bytes());
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.keys().copied()
    }

    /// Whether the address is in a block of this session, so that nobody else needs to be told that it is free.
    pub(crate) fn owns(&self, address: LogicalAddress) -> bool {
        self.layout.block_of(address).is_some_and(|block| self.blocks.contains_key(&block))
    }

    /// Memory for an object, if there is any.
    pub(crate) fn allocate(&mut self, units: u8, now: Nanos) -> Option<LogicalAddress> {
        while self.quarantine.front().is_some_and(|(ready_at, ..)| *ready_at <= now) {
            if let Some((_, address, units)) = self.quarantine.pop_front() {
                self.free.entry(units).or_default().push(address);
            }
        }
        let again = self.free.get_mut(&units).and_then(Vec::pop);
        let address = again.or_else(|| self.never_used(units))?;
        self.used.insert(address, units);
        Some(address)
    }

    fn never_used(&mut self, units: u8) -> Option<LogicalAddress> {
        let bytes = u32::from(units) * UNIT_BYTES as u32;
        let limit = self.layout.block_bytes;
        let (block, taken) = self.blocks.iter_mut().find(|(_, taken)| limit - **taken >= bytes)?;
        let start = self.layout.block_address(*block);
        let address = LogicalAddress { region: start.region, offset: start.offset + *taken };
        *taken += bytes;
        Some(address)
    }

    /// Units of what is given out at an address.
    pub(crate) fn units_at(&self, address: LogicalAddress) -> Option<u8> {
        self.used.get(&address).copied()
    }

    /// Takes memory back, which may be given out again once the quarantine is over. What is not given out is passed over.
    pub(crate) fn release(&mut self, address: LogicalAddress, now: Nanos) {
        if let Some(units) = self.used.remove(&address) {
            self.quarantine.push_back((now.saturating_add(self.quarantine_ns), address, units));
        }
    }

    /// Objects given out, and those in quarantine.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.used.len(), self.quarantine.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hedgerow_device::Random;

    use super::*;

    const LAYOUT: PoolLayout =
        PoolLayout { memory_nodes: 2, copies: 2, partition_bits: 1, groups: 1, block_bytes: 4096, blocks: 4 };

    #[test]
    fn nothing_is_given_twice_and_nothing_too_early() {
        let mut reused = 0;
        for seed in 0..200 {
            let mut random = Random::from_seed(seed);
            let mut slab = Slab::new(LAYOUT, 100);
            let (mut now, mut live) = (0, Vec::<(LogicalAddress, u8)>::new());
            // When each unit may be given out again.
            let mut not_before = BTreeMap::<(u16, u32), Nanos>::new();
            for step in 0..400 {
                now += random.below(20);
                match random.below(5) {
                    0 if step < 200 => slab.add_block(BlockId {
                        region: random.below(2) as u16,
                        number: random.below(4) as u32,
                    }),
                    1 | 2 if !live.is_empty() => {
                        let (address, units) = live.swap_remove(random.below(live.len() as u64) as usize);
                        slab.release(address, now);
                        slab.release(address, now);
                        for unit in 0..u32::from(units) {
                            not_before.insert((address.region, address.offset + 64 * unit), now + 100);
                        }
                    }
                    _ => {
                        let units = 1 + random.below(4) as u8;
                        let Some(address) = slab.allocate(units, now) else { continue };
                        let block = LAYOUT.block_of(address).unwrap();
                        let start = LAYOUT.block_address(block).offset;
                        let end = address.offset + 64 * u32::from(units);
                        assert!(slab.owns(address) && end <= start + LAYOUT.block_bytes);
                        assert!(address.offset >= start + LAYOUT.bitmap_bytes(), "the bitmap is nobody's");
                        for unit in 0..u32::from(units) {
                            let at = (address.region, address.offset + 64 * unit);
                            if let Some(since) = not_before.insert(at, Nanos::MAX) {
                                assert!(since <= now, "given out at {now}, not before {since}");
                                reused += 1;
                            }
                        }
                        live.push((address, units));
                    }
                }
                assert_eq!(slab.counts().0, live.len());
            }
        }
        assert!(reused > 1000, "{reused} units were used again");
    }
}
