//! Memory for objects, inside of the blocks that a session has.
//!
//! Owns which of it is used, which may be used again, and when. Promises that no memory is given out while an object in it may be referred to: what is freed
//! waits in quarantine, and with an object the parts of its value do (`parts.rs`): whoever frees it need not know of them. Must not know who refers to it.
//!
//! Every size, in units of 64 bytes, has a list of its own; memory that was given out for one size stays with it. Of long values each has a list of parts and a last one of any size: what they take is one of a few sizes ([`ROOM_UNITS`]), or a
//! session would come to have memory for each of 255, and none for the next.

use std::collections::{BTreeMap, VecDeque};

use crate::fabric::Nanos;
use crate::region::{BlockId, PoolLayout};
use crate::word::{LogicalAddress, UNIT_BYTES};

/// Units that lists and last parts take: the next of these, so that a third of it is left over at most, or what a block has.
const ROOM_UNITS: [u8; 16] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 255];

/// Units of memory that is given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Room {
    /// Those of the object in it.
    units: u8,
    /// Those that it takes.
    taken: u8,
}

impl Room {
    /// As many as the object has.
    fn exact(units: u8) -> Room {
        Room { units, taken: units }
    }
}

/// The memory of one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Slab {
    layout: PoolLayout,
    /// How long freed memory waits.
    quarantine_ns: Nanos,
    /// The blocks, and how many of their bytes were given out at least once.
    blocks: BTreeMap<BlockId, u32>,
    /// By the units that it takes; so it is in quarantine, too.
    free: BTreeMap<u8, Vec<LogicalAddress>>,
    /// In the order of the times from which on it may be used again.
    quarantine: VecDeque<(Nanos, LogicalAddress, u8)>,
    /// What is given out.
    used: BTreeMap<LogicalAddress, Room>,
    /// Of objects that list parts, those.
    parts: BTreeMap<LogicalAddress, Vec<LogicalAddress>>,
    /// Parts wait like objects.
    holds_parts: bool,
}

impl Slab {
    /// `holds_parts`: freed parts wait, too.
    pub(crate) fn new(layout: PoolLayout, quarantine_ns: Nanos, holds_parts: bool) -> Slab {
        Slab {
            layout,
            quarantine_ns,
            blocks: BTreeMap::new(),
            free: BTreeMap::new(),
            quarantine: VecDeque::new(),
            used: BTreeMap::new(),
            parts: BTreeMap::new(),
            holds_parts,
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
        self.end_quarantine(now);
        Some(self.take(Room::exact(units))?.0)
    }

    /// Memory for an object and for parts of so many units each, all of it or nothing: what there is stays as it was if it is not enough.
    pub(crate) fn allocate_with_parts(
        &mut self,
        units: u8,
        parts: impl Iterator<Item = u8>,
        now: Nanos,
    ) -> Option<(LogicalAddress, Vec<LogicalAddress>)> {
        self.end_quarantine(now);
        let mut rooms: Vec<Room> = parts.map(Room::exact).collect();
        if let Some(last) = rooms.last_mut() {
            *last = self.rounded(last.units);
        }
        rooms.push(self.rounded(units));
        let mut taken: Vec<(LogicalAddress, bool)> = Vec::new();
        for room in rooms {
            match self.take(room) {
                Some(one) => taken.push(one),
                None => {
                    // The last first: a block has as much again as before.
                    taken.into_iter().rev().for_each(|one| self.give_back(one));
                    return None;
                }
            }
        }
        let (address, _) = taken.pop()?;
        let parts: Vec<LogicalAddress> = taken.into_iter().map(|(part, _)| part).collect();
        self.parts.insert(address, parts.clone());
        Some((address, parts))
    }

    /// Room of one of a few sizes.
    fn rounded(&self, units: u8) -> Room {
        let next = ROOM_UNITS.into_iter().find(|&room| room >= units).unwrap_or(u8::MAX);
        let in_block = (self.layout.block_bytes - self.layout.bitmap_bytes()) / UNIT_BYTES as u32;
        let most = u8::try_from(in_block).unwrap_or(u8::MAX);
        Room { units, taken: next.min(most).max(units) }
    }

    fn end_quarantine(&mut self, now: Nanos) {
        while self.quarantine.front().is_some_and(|(ready_at, ..)| *ready_at <= now) {
            if let Some((_, address, units)) = self.quarantine.pop_front() {
                self.free.entry(units).or_default().push(address);
            }
        }
    }

    /// Memory, and whether it was never used.
    fn take(&mut self, room: Room) -> Option<(LogicalAddress, bool)> {
        let again = self.free.get_mut(&room.taken).and_then(Vec::pop).map(|address| (address, false));
        let (address, is_new) =
            again.or_else(|| self.never_used(room.taken).map(|address| (address, true)))?;
        self.used.insert(address, room);
        Some((address, is_new))
    }

    /// Takes back what nobody was told of.
    fn give_back(&mut self, (address, is_new): (LogicalAddress, bool)) {
        let (Some(room), Some(block)) = (self.used.remove(&address), self.layout.block_of(address)) else {
            return;
        };
        match self.blocks.get_mut(&block).filter(|_| is_new) {
            Some(taken) => *taken -= u32::from(room.taken) * UNIT_BYTES as u32,
            None => self.free.entry(room.taken).or_default().push(address),
        }
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

    /// Units of the object that has the memory at an address.
    pub(crate) fn units_at(&self, address: LogicalAddress) -> Option<u8> {
        self.used.get(&address).map(|room| room.units)
    }

    /// Takes memory back, with that of its parts, which may be given out again once the quarantine is over. What is not given out is passed over.
    pub(crate) fn release(&mut self, address: LogicalAddress, now: Nanos) {
        let ready_at = now.saturating_add(self.quarantine_ns);
        let Some(room) = self.used.remove(&address) else { return };
        self.quarantine.push_back((ready_at, address, room.taken));
        for part in self.parts.remove(&address).unwrap_or_default() {
            match self.used.remove(&part) {
                Some(room) if self.holds_parts => self.quarantine.push_back((ready_at, part, room.taken)),
                Some(room) => self.free.entry(room.taken).or_default().push(part),
                None => {}
            }
        }
    }

    /// What is wrong with the parts that are given out, if something is: each is that of one object which is given out, too.
    #[cfg(test)]
    pub(crate) fn check_parts(&self) -> Result<(), String> {
        let mut seen = std::collections::BTreeSet::new();
        for (object, parts) in &self.parts {
            let is_used = |address: &LogicalAddress| self.used.contains_key(address);
            if !is_used(object) {
                return Err(format!("{object:?} is free, and its parts are not"));
            }
            if let Some(part) = parts.iter().find(|part| !is_used(part) || !seen.insert(**part)) {
                return Err(format!("{part:?} is a part, and free or that of two objects"));
            }
        }
        Ok(())
    }

    /// Objects given out, parts among them, and those in quarantine.
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

    /// What an object and its parts take.
    type Taken = Vec<(LogicalAddress, u8)>;

    /// Takes memory for an object and none to three parts.
    fn take_some(slab: &mut Slab, random: &mut Random, now: Nanos) -> Option<Taken> {
        let units = 1 + random.below(4) as u8;
        let parts: Vec<u8> = (0..random.below(4)).map(|_| 1 + random.below(9) as u8).collect();
        if parts.is_empty() {
            return Some(vec![(slab.allocate(units, now)?, units)]);
        }
        let before = slab.clone();
        match slab.allocate_with_parts(units, parts.iter().copied(), now) {
            Some((address, places)) => {
                assert_eq!(places.len(), parts.len());
                Some([(address, units)].into_iter().chain(places.into_iter().zip(parts)).collect())
            }
            None => {
                let there = |slab: &Slab| (slab.blocks.clone(), slab.used.clone(), slab.parts.clone());
                assert_eq!(there(slab), there(&before), "nothing of it is taken");
                None
            }
        }
    }

    #[test]
    fn nothing_is_given_twice_and_nothing_too_early() {
        let (mut reused, mut refused) = (0, 0);
        for seed in 0..200 {
            let mut random = Random::from_seed(seed);
            let mut slab = Slab::new(LAYOUT, 100, true);
            let (mut now, mut live) = (0, Vec::<Taken>::new());
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
                        let taken = live.swap_remove(random.below(live.len() as u64) as usize);
                        slab.release(taken[0].0, now);
                        slab.release(taken[0].0, now);
                        for (address, units) in taken {
                            assert_eq!(slab.units_at(address), None);
                            for unit in 0..u32::from(units) {
                                not_before.insert((address.region, address.offset + 64 * unit), now + 100);
                            }
                        }
                    }
                    _ => {
                        let Some(taken) = take_some(&mut slab, &mut random, now) else {
                            refused += 1;
                            continue;
                        };
                        for &(address, units) in &taken {
                            reused += check_place(&slab, (address, units), &mut not_before, now);
                        }
                        live.push(taken);
                    }
                }
                assert_eq!(slab.counts().0, live.iter().map(Vec::len).sum::<usize>());
                slab.check_parts().unwrap();
            }
        }
        assert!(reused > 1000 && refused > 100, "{reused} units were used again, {refused} refused");
    }

    /// It is inside of a block of the slab, and nobody's since long enough; how many of its units were used before.
    fn check_place(
        slab: &Slab,
        (address, units): (LogicalAddress, u8),
        not_before: &mut BTreeMap<(u16, u32), Nanos>,
        now: Nanos,
    ) -> u32 {
        let start = LAYOUT.block_address(LAYOUT.block_of(address).unwrap()).offset;
        let end = address.offset + 64 * u32::from(units);
        assert!(slab.owns(address) && end <= start + LAYOUT.block_bytes);
        assert!(address.offset >= start + LAYOUT.bitmap_bytes(), "the bitmap is nobody's");
        let mut reused = 0;
        for unit in 0..u32::from(units) {
            let at = (address.region, address.offset + 64 * unit);
            if let Some(since) = not_before.insert(at, Nanos::MAX) {
                assert!(since <= now, "given out at {now}, not before {since}");
                reused += 1;
            }
        }
        reused
    }
}
