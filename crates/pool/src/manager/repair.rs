//! Making all copies of each slot say the same, while nobody else works on the index.
//!
//! Owns which word of several a slot keeps. Promises that a change of which a reader, or a caller, may know is kept, and that every other change is kept on all copies or on none. Must not know why copies differ.
//!
//! Backups are never older than the primary, and a change is on all backups before it is on the primary. So where the primary is there, a backup that differs has a change that is not done: it is completed, if its object
//! is whole. Where the primary is lost and the backups agree, that is what the primary had, or was about to have. Where they do not, no change was done: any will do.

use std::collections::{BTreeMap, BTreeSet};

use crate::bucket::{slot_offset, table_bytes, table_slots};
use crate::fabric::{Batch, OpResult, RESULT_BYTES_MAX, RESULT_HEAD_BYTES, RemoteOp};
use crate::object::Object;
use crate::region::{BlockId, MemoryNode, NodeSet, PoolLayout, SlotId};
use crate::wire::{Doubt, Verdict};
use crate::word::{LogicalAddress, SlotWord};
use hedgerow_row::le_bytes::u64_at;

/// A batch for a memory node, and the number that comes back with its results.
pub(super) type RepairPost = (u32, MemoryNode, Batch);

/// The copies of a slot that differ: those of the replicas, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Differing {
    id: SlotId,
    copies: Vec<(MemoryNode, SlotWord)>,
    /// Words that it may keep, the best first.
    candidates: Vec<SlotWord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RepairPhase {
    Tables,
    Objects,
    Writes,
    Done,
}

/// One repair.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Repair {
    layout: PoolLayout,
    before: NodeSet,
    after: NodeSet,
    doubtful: BTreeSet<SlotId>,
    /// Objects of doubtful changes.
    objects: BTreeSet<LogicalAddress>,
    aligns: bool,
    phase: RepairPhase,
    /// Numbers of posts; those of earlier phases are below.
    next: u32,
    awaited: BTreeMap<u32, (MemoryNode, Vec<u16>)>,
    tables: BTreeMap<(u16, MemoryNode), Vec<u8>>,
    differing: Vec<Differing>,
    /// Which candidate of which slot a post reads the object of, and which of them are whole.
    reading: BTreeMap<u32, SlotWord>,
    whole: BTreeSet<SlotWord>,
    words: BTreeMap<SlotId, SlotWord>,
    /// Words of any copies of slots, by the blocks that they lead into.
    leads: BTreeMap<BlockId, Vec<SlotWord>>,
    pub(super) completed: u64,
    pub(super) undone: u64,
    pub(super) anomalies: u64,
}

impl Repair {
    pub(super) fn new(
        layout: PoolLayout,
        (before, after): (NodeSet, NodeSet),
        (doubtful, objects): (BTreeSet<SlotId>, BTreeSet<LogicalAddress>),
        aligns: bool,
    ) -> Repair {
        Repair {
            layout,
            before,
            after,
            doubtful,
            objects,
            aligns,
            phase: RepairPhase::Tables,
            next: 0,
            awaited: BTreeMap::new(),
            tables: BTreeMap::new(),
            differing: Vec::new(),
            reading: BTreeMap::new(),
            whole: BTreeSet::new(),
            words: BTreeMap::new(),
            leads: BTreeMap::new(),
            completed: 0,
            undone: 0,
            anomalies: 0,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.phase == RepairPhase::Done
    }

    /// What the slot came to say that leads to a doubt's object, or else the slot that it names.
    pub(super) fn verdict(&self, doubt: &Doubt) -> Option<Verdict> {
        let address = |word: SlotWord| word.as_live().map(|live| live.address);
        let leads_there = |(id, word): &(&SlotId, &SlotWord)| {
            id.partition == doubt.slot.partition
                && address(doubt.new).is_some()
                && address(**word) == address(doubt.new)
        };
        let there = self.words.iter().find(leads_there).or_else(|| self.words.get_key_value(&doubt.slot));
        there.map(|(&slot, &word)| Verdict { slot, word })
    }

    /// Words of any copies of slots, by the blocks that they lead into. They are given away.
    pub(super) fn take_leads(&mut self) -> BTreeMap<BlockId, Vec<SlotWord>> {
        std::mem::take(&mut self.leads)
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Reads all living copies of all sub-tables.
    pub(super) fn begin(&mut self) -> Vec<RepairPost> {
        let mut parts: BTreeMap<MemoryNode, Vec<u16>> = BTreeMap::new();
        for partition in 0..self.layout.partitions() {
            let region = self.layout.table_address(partition).region;
            for node in self.layout.living_replicas(region, self.after) {
                parts.entry(node).or_default().push(partition);
            }
        }
        let bytes = table_bytes(self.layout.groups) as u32;
        let mut posts = Vec::new();
        // As many in one batch as its results may have.
        let most = (RESULT_BYTES_MAX / (bytes as usize + RESULT_HEAD_BYTES)).max(1);
        for (node, partitions) in parts {
            for partitions in partitions.chunks(most) {
                let read = |&partition: &u16| RemoteOp::Read(self.layout.table_address(partition), bytes);
                let batch = partitions.iter().map(read).collect();
                let number = self.number();
                self.awaited.insert(number, (node, partitions.to_vec()));
                posts.push((number, node, batch));
            }
        }
        self.go_on(posts)
    }

    /// A post of the present phase is done.
    pub(super) fn done(&mut self, number: u32, results: Vec<OpResult>) -> Vec<RepairPost> {
        let Some((node, partitions)) = self.awaited.remove(&number) else { return Vec::new() };
        match self.phase {
            RepairPhase::Tables => {
                for (partition, result) in partitions.into_iter().zip(results) {
                    if let OpResult::Bytes(bytes) = result {
                        self.tables.insert((partition, node), bytes);
                    }
                }
            }
            RepairPhase::Objects => {
                let word = self.reading.remove(&number);
                if let (Some(word), Some(OpResult::Bytes(bytes))) = (word, results.first())
                    && Object::decode(bytes).is_ok()
                {
                    self.whole.insert(word);
                }
            }
            RepairPhase::Writes | RepairPhase::Done => {}
        }
        self.go_on(Vec::new())
    }

    /// Goes on to the next phase once nothing of this one is awaited.
    fn go_on(&mut self, mut posts: Vec<RepairPost>) -> Vec<RepairPost> {
        while self.awaited.is_empty() && !self.is_done() {
            (self.phase, posts) = match self.phase {
                RepairPhase::Tables => {
                    self.compare();
                    (RepairPhase::Objects, self.read_objects())
                }
                RepairPhase::Objects => (RepairPhase::Writes, self.write_words()),
                RepairPhase::Writes | RepairPhase::Done => (RepairPhase::Done, Vec::new()),
            };
        }
        posts
    }

    /// Finds the slots whose copies differ, and what each may keep.
    fn compare(&mut self) {
        for partition in 0..self.layout.partitions() {
            let region = self.layout.table_address(partition).region;
            let nodes = self.layout.living_replicas(region, self.after);
            let primary = self.layout.living_replicas(region, self.before).first().copied();
            let has_primary = nodes.first().copied() == primary;
            for slot in 0..table_slots(self.layout.groups) {
                let id = SlotId { partition, slot };
                let at = slot_offset(slot) as usize;
                let copies: Vec<(MemoryNode, SlotWord)> = nodes
                    .iter()
                    .filter_map(|&node| {
                        Some((node, SlotWord(u64_at(self.tables.get(&(partition, node))?, at))))
                    })
                    .collect();
                let Some(&(_, first)) = copies.first() else { continue };
                // Each word once: copies are few, and mostly the same.
                let is_new = |at: usize| copies[..at].iter().all(|(_, other)| *other != copies[at].1);
                let words = (0..copies.len()).filter(|&at| is_new(at)).map(|at| copies[at].1);
                let lead = |word: SlotWord| Some((self.layout.block_of(word.as_live()?.address)?, word));
                for (block, word) in words.filter_map(lead) {
                    self.leads.entry(block).or_default().push(word);
                }
                let is_objects = first.as_live().is_some_and(|live| self.objects.contains(&live.address));
                if self.doubtful.contains(&id) || is_objects {
                    self.words.insert(id, first);
                }
                if copies.iter().any(|(_, word)| *word != first) {
                    let candidates = candidates(&copies, has_primary);
                    self.differing.push(Differing { id, copies, candidates });
                }
            }
        }
        self.tables.clear();
    }

    /// Reads the objects of all candidates from all replicas.
    fn read_objects(&mut self) -> Vec<RepairPost> {
        let candidates: BTreeSet<SlotWord> =
            self.differing.iter().flat_map(|slot| slot.candidates.iter().copied()).collect();
        let mut posts = Vec::new();
        for word in candidates {
            let Some(live) = word.as_live() else {
                self.whole.insert(word);
                continue;
            };
            // No object is there, and a memory node would refuse to read it.
            if self.layout.block_of_object(live.address, live.object_bytes()).is_none() {
                continue;
            }
            for node in self.layout.living_replicas(live.address.region, self.after) {
                let number = self.number();
                let read = RemoteOp::Read(live.address.into(), live.object_bytes() as u32);
                self.reading.insert(number, word);
                self.awaited.insert(number, (node, Vec::new()));
                posts.push((number, node, vec![read]));
            }
        }
        posts
    }

    /// Decides, and writes what was decided to all copies that say something else.
    fn write_words(&mut self) -> Vec<RepairPost> {
        let (mut posts, aligns) = (Vec::new(), self.aligns);
        for Differing { id, copies, candidates } in std::mem::take(&mut self.differing) {
            let old = copies[0].1;
            let word = candidates.iter().copied().find(|word| self.whole.contains(word));
            self.anomalies += u64::from(word.is_none());
            let word = word.filter(|_| aligns).unwrap_or(old);
            self.completed += u64::from(word != old);
            self.undone += u64::from(word == old);
            self.words.insert(id, word);
            let at = self.layout.slot_address(id);
            for (node, _) in copies.into_iter().filter(|(_, copy)| *copy != word && aligns) {
                let number = self.number();
                self.awaited.insert(number, (node, Vec::new()));
                posts.push((number, node, vec![RemoteOp::Write(at, word.0.to_le_bytes().to_vec())]));
            }
        }
        posts
    }
}

/// The words that a slot may keep, the best first.
fn candidates(copies: &[(MemoryNode, SlotWord)], has_primary: bool) -> Vec<SlotWord> {
    let words: BTreeSet<SlotWord> = copies.iter().map(|(_, word)| *word).collect();
    let count = |word: SlotWord| copies.iter().filter(|(_, copy)| *copy == word).count();
    let primary = copies.first().map(|(_, word)| *word).filter(|_| has_primary);
    let mut words: Vec<SlotWord> = words.into_iter().collect();
    words.sort_by_key(|&word| (Some(word) == primary, std::cmp::Reverse(count(word)), word));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::GROUPS_MAX;
    use crate::fabric::is_within_limits;
    use crate::word::LiveWord;

    #[test]
    fn what_a_slot_may_keep() {
        let copies = |words: &[u64]| -> Vec<(MemoryNode, SlotWord)> {
            words.iter().enumerate().map(|(at, &word)| (MemoryNode(at as u8), SlotWord(word))).collect()
        };
        let best = |words: &[u64], has_primary| candidates(&copies(words), has_primary)[0].0;
        // A change that is on backups is completed, the one that most have.
        assert_eq!(best(&[1, 5, 1], true), 5);
        assert_eq!(best(&[1, 6, 5], true), 5);
        assert_eq!(best(&[1, 5, 6, 6], true), 6);
        // Without the primary no change was done: any will do, and the choice is always the same.
        assert_eq!(best(&[6, 5], false), 5);
        assert_eq!(best(&[5, 6, 6], false), 6);
    }

    const LAYOUT: PoolLayout =
        PoolLayout { memory_nodes: 2, copies: 2, partition_bits: 0, groups: 1, block_bytes: 4096, blocks: 2 };

    /// A slot whose copies differ, one of them by a word that leads beyond the memory: the other is kept, and nothing is read that a memory node would refuse.
    #[test]
    fn a_word_that_leads_nowhere_is_not_whole() {
        let all = NodeSet::first(2);
        let id = SlotId { partition: 0, slot: 3 };
        let end = LAYOUT.region_bytes() as u32;
        let address = LogicalAddress { region: 0, offset: end - 64 };
        let word = SlotWord::live(LiveWord { fingerprint: 1, units: 2, address, version: 1 });
        let mut repair = Repair::new(LAYOUT, (all, all), (BTreeSet::new(), BTreeSet::new()), true);
        let mut posts = repair.begin();
        while let Some((number, node, batch)) = posts.pop() {
            let answer = |op: &RemoteOp| match op {
                RemoteOp::Read(at, len) => {
                    assert!(at.offset + len <= end, "it would never be answered");
                    let mut bytes = LAYOUT.empty_region(0)[at.offset as usize..][..*len as usize].to_vec();
                    if node == MemoryNode(1) {
                        bytes[slot_offset(id.slot) as usize..][..8].copy_from_slice(&word.0.to_le_bytes());
                    }
                    OpResult::Bytes(bytes)
                }
                RemoteOp::Write(at, bytes) => {
                    assert_eq!((node, *at), (MemoryNode(1), LAYOUT.slot_address(id)));
                    assert_ne!(bytes[..], word.0.to_le_bytes());
                    OpResult::Written
                }
                _ => panic!("{op:?}"),
            };
            let results = batch.iter().map(answer).collect();
            posts.extend(repair.done(number, results));
        }
        assert!(repair.is_done());
        assert_eq!((repair.completed, repair.undone), (0, 1));
    }

    /// The tables of one node together are more than the results of a batch may have.
    #[test]
    fn large_tables_are_read_in_several_batches() {
        let layout = PoolLayout {
            memory_nodes: 3,
            copies: 2,
            partition_bits: 4,
            groups: GROUPS_MAX / 3,
            block_bytes: 4096,
            blocks: 1,
        };
        layout.check().unwrap();
        let all = NodeSet::first(3);
        let posts = Repair::new(layout, (all, all), (BTreeSet::new(), BTreeSet::new()), true).begin();
        assert!(posts.iter().all(|(_, _, batch)| is_within_limits(batch)));
        assert_eq!(posts.iter().map(|(_, _, batch)| batch.len()).sum::<usize>(), 2 * 16);
        assert_eq!(posts.iter().map(|(_, _, batch)| batch.len()).max(), Some(4));
    }
}
