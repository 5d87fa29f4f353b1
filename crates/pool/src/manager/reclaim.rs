//! Taking back the blocks of sessions that are gone, while nobody works.
//!
//! Owns which blocks nobody needs any more. Promises that neither a slot leads into such a block nor the list of parts of an object that a slot leads to, that nobody who stays will still set a bit in it, and that no bit is set in it when it is given back. Must not know how agents are told.
//!
//! A block of a session that is gone gets no new objects, so that slots lead into it less and less. Where none does any more it is free: clients begin all their look-ups again in the next epoch, so nobody has an address
//! in it, and what they had freed in it is done, since they have waited for their posts. A change of which a client is in doubt may turn out to be done, and the client frees then what it replaced: blocks that doubts name stay.
//!
//! A slot's word does not say whether its object lists parts. An object and its parts are in blocks of one session, so that only where a session has a block into which no slot leads its objects are looked at: of all of them the first bytes, and
//! the whole of those that list parts. What they list is remembered for as long as the word is there, so that each is looked at once. It keeps its block. Objects that do not verify keep all blocks of their session: their parts are not known. Neither are those of what did not come, nor of a word or a list that leads to where no object can be.

use std::collections::{BTreeMap, BTreeSet};

use super::repair::RepairPost;
use crate::fabric::{OpResult, RemoteOp};
use crate::object::{OBJECT_HEADER_BYTES, Object, ObjectKind};
use crate::parts::{ListedPart, PartList};
use crate::region::{BlockEntry, BlockId, MemoryNode, NodeSet, PoolLayout};
use crate::word::{LiveWord, SlotWord};
use hedgerow_row::le_bytes::u64_at;

/// Blocks that the objects of words list, of words that lead into blocks of sessions that are gone: nobody writes an object there, so that what was read once holds as long as the word is there.
pub(super) type KnownLists = BTreeMap<SlotWord, Vec<BlockId>>;

/// Numbers of its posts begin here: those of repairs are below.
pub(super) const RECLAIM_POSTS: u32 = 1 << 31;

/// Objects whose first bytes are read at a time, and bytes of objects that list parts, at most, but one.
const HEADERS_MAX: usize = 32_768;
const LISTS_BYTES_MAX: usize = 1 << 20;

/// What a post is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ReclaimPost {
    /// The block table of a region.
    Table(u16),
    /// The first bytes of the objects of these words.
    Headers(Vec<SlotWord>),
    /// The objects of these words, which list parts.
    Lists(Vec<SlotWord>),
    /// Clears a bitmap.
    Bitmap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ReclaimPhase {
    Tables,
    Parts,
    Bitmaps,
}

/// One round through all block tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Reclaim {
    layout: PoolLayout,
    after: NodeSet,
    staying: BTreeSet<u16>,
    /// Words of slots, by the blocks that they lead into.
    leads: BTreeMap<BlockId, Vec<SlotWord>>,
    /// Other blocks that stay.
    kept: BTreeSet<BlockId>,
    sees_parts: bool,
    phase: ReclaimPhase,
    next: u32,
    /// Posts under way.
    awaited: BTreeMap<u32, ReclaimPost>,
    /// Blocks of sessions that are gone, those that stay among them, and whose they are.
    gone: BTreeMap<BlockId, u16>,
    /// Words whose objects are to be looked at, and those of them that list parts.
    headers: Vec<SlotWord>,
    lists: Vec<SlotWord>,
    /// What earlier rounds found out, and then this one has.
    known: KnownLists,
    /// The blocks that nobody needs, and their entries.
    freed: BTreeMap<BlockId, u64>,
}

impl Reclaim {
    /// `leads`: words that slots have, by the blocks that they lead into; `kept`: blocks that doubts name. `known`: what the round before this one found out; none: parts keep no blocks.
    pub(super) fn new(
        layout: PoolLayout,
        after: NodeSet,
        staying: BTreeSet<u16>,
        (leads, kept): (BTreeMap<BlockId, Vec<SlotWord>>, BTreeSet<BlockId>),
        known: Option<KnownLists>,
    ) -> Reclaim {
        Reclaim {
            layout,
            after,
            staying,
            leads,
            kept,
            sees_parts: known.is_some(),
            phase: ReclaimPhase::Tables,
            next: RECLAIM_POSTS,
            awaited: BTreeMap::new(),
            gone: BTreeMap::new(),
            headers: Vec::new(),
            lists: Vec::new(),
            known: known.unwrap_or_default(),
            freed: BTreeMap::new(),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.phase == ReclaimPhase::Bitmaps && self.awaited.is_empty()
    }

    /// The blocks that nobody needs, and their entries; once it is done.
    pub(super) fn freed(&self) -> impl Iterator<Item = (BlockId, u64)> + '_ {
        self.freed.iter().map(|(&block, &entry)| (block, entry))
    }

    /// What it found out, for the next round.
    pub(super) fn take_known(&mut self) -> KnownLists {
        std::mem::take(&mut self.known)
    }

    fn number(&mut self, what: ReclaimPost) -> u32 {
        self.next += 1;
        self.awaited.insert(self.next, what);
        self.next
    }

    /// Reads the block tables of all regions.
    pub(super) fn begin(&mut self) -> Vec<RepairPost> {
        let mut posts = Vec::new();
        for region in self.layout.regions() {
            let Some(&node) = self.layout.living_replicas(region, self.after).first() else { continue };
            let from = self.layout.entry_address(BlockId { region, number: 0 });
            let read = RemoteOp::Read(from, 8 * self.layout.blocks);
            posts.push((self.number(ReclaimPost::Table(region)), node, vec![read]));
        }
        if posts.is_empty() { self.pass() } else { posts }
    }

    /// Takes nothing back.
    pub(super) fn pass(&mut self) -> Vec<RepairPost> {
        self.phase = ReclaimPhase::Bitmaps;
        Vec::new()
    }

    /// A post is done. Once it is known what is free, its bitmaps are cleared on all copies.
    pub(super) fn done(&mut self, number: u32, results: &[OpResult]) -> Vec<RepairPost> {
        match self.awaited.remove(&number) {
            Some(ReclaimPost::Table(region)) => {
                if let Some(OpResult::Bytes(table)) = results.first() {
                    self.look_at_table(region, table);
                }
            }
            Some(ReclaimPost::Headers(words)) => self.look_at_headers(&words, results),
            Some(ReclaimPost::Lists(words)) => self.look_at_lists(&words, results),
            Some(ReclaimPost::Bitmap) | None => return Vec::new(),
        }
        if !self.awaited.is_empty() {
            return Vec::new();
        }
        if self.phase == ReclaimPhase::Tables {
            self.phase = ReclaimPhase::Parts;
            self.find_objects();
        }
        let reads = self.read_objects();
        if !reads.is_empty() {
            return reads;
        }
        self.phase = ReclaimPhase::Bitmaps;
        self.clear_bitmaps()
    }

    fn clear_bitmaps(&mut self) -> Vec<RepairPost> {
        let mut posts = Vec::new();
        for block in self.freed.keys().copied().collect::<Vec<_>>() {
            let zeros = vec![0; self.layout.bitmap_bytes() as usize];
            let clear = RemoteOp::Write(self.layout.block_address(block), zeros);
            for node in self.layout.living_replicas(block.region, self.after) {
                posts.push((self.number(ReclaimPost::Bitmap), node, vec![clear.clone()]));
            }
        }
        posts
    }

    fn look_at_table(&mut self, region: u16, table: &[u8]) {
        for (number, entry) in (0u32..).zip(table.chunks_exact(8)) {
            let (block, entry) = (BlockId { region, number }, u64_at(entry, 0));
            if let Ok(BlockEntry::Allotted { session, .. }) = BlockEntry::decode(entry)
                && !self.staying.contains(&session)
            {
                self.gone.insert(block, session);
                if !self.leads.contains_key(&block) && !self.kept.contains(&block) {
                    self.freed.insert(block, entry);
                }
            }
        }
    }

    /// Objects of sessions that have a block which no slot leads into, and of which it is not known what they list.
    fn find_objects(&mut self) {
        let (leads, known) = (std::mem::take(&mut self.leads), std::mem::take(&mut self.known));
        if !self.sees_parts {
            return;
        }
        let mut unknown = Vec::new();
        for (block, words) in leads {
            let Some(&session) = self.gone.get(&block) else { continue };
            for word in words {
                match known.get(&word) {
                    Some(blocks) => self.learn(word, blocks.clone()),
                    None => unknown.push((session, word)),
                }
            }
        }
        let freed = self.freed.keys().filter_map(|block| self.gone.get(block));
        let sessions: BTreeSet<u16> = freed.copied().collect();
        for (_, word) in unknown.into_iter().filter(|(session, _)| sessions.contains(session)) {
            let object = |live: LiveWord| self.layout.block_of_object(live.address, live.object_bytes());
            match word.as_live().and_then(object) {
                Some(_) => self.headers.push(word),
                // No object is there: nothing that a memory node would refuse is asked of it.
                None => self.keep_all_of(word),
            }
        }
    }

    /// The object of a word has parts in these blocks, which stay.
    fn learn(&mut self, word: SlotWord, blocks: Vec<BlockId>) {
        for block in &blocks {
            self.freed.remove(block);
        }
        self.known.insert(word, blocks);
    }

    /// Reads some of the objects that are to be looked at; none once there is nothing left to find out.
    fn read_objects(&mut self) -> Vec<RepairPost> {
        let mut posts = Vec::new();
        while posts.is_empty() && !self.freed.is_empty() {
            posts = match (self.lists.is_empty(), self.headers.is_empty()) {
                (false, _) => self.read_some(true),
                (true, false) => self.read_some(false),
                (true, true) => break,
            };
        }
        posts
    }

    /// Reads some objects that list parts, or first bytes of some objects; none where no copy of them is left.
    fn read_some(&mut self, is_lists: bool) -> Vec<RepairPost> {
        let mut parts: BTreeMap<MemoryNode, Vec<SlotWord>> = BTreeMap::new();
        let (mut left, queue) = match is_lists {
            true => (LISTS_BYTES_MAX, &mut self.lists),
            false => (HEADERS_MAX, &mut self.headers),
        };
        while left > 0
            && let Some(word) = queue.pop()
        {
            let Some(live) = word.as_live() else { continue };
            // Where no copy is left nobody can read it, nor its parts by it.
            let replicas = self.layout.living_replicas(live.address.region, self.after);
            let Some(&node) = replicas.first() else { continue };
            left = left.saturating_sub(if is_lists { live.object_bytes() } else { 1 });
            parts.entry(node).or_default().push(word);
        }
        let mut posts = Vec::new();
        for (node, words) in parts {
            let live = words.iter().filter_map(|word| word.as_live());
            let bytes = |live: LiveWord| if is_lists { live.object_bytes() } else { OBJECT_HEADER_BYTES };
            let batch = live.map(|live| RemoteOp::Read(live.address.into(), bytes(live) as u32)).collect();
            let what = if is_lists { ReclaimPost::Lists(words) } else { ReclaimPost::Headers(words) };
            posts.push((self.number(what), node, batch));
        }
        posts
    }

    fn look_at_headers(&mut self, words: &[SlotWord], results: &[OpResult]) {
        for (at, &word) in words.iter().enumerate() {
            match bytes_at(results, at).and_then(ObjectKind::of_header) {
                Some(kind) if kind.is_indirect() => self.lists.push(word),
                Some(_) => self.learn(word, Vec::new()),
                None => self.keep_all_of(word),
            }
        }
    }

    fn look_at_lists(&mut self, words: &[SlotWord], results: &[OpResult]) {
        for (at, &word) in words.iter().enumerate() {
            let object = bytes_at(results, at).and_then(|bytes| Object::decode(bytes).ok());
            let list = object.and_then(|object| PartList::decode(object.value).ok());
            let place = |part: &ListedPart| self.layout.block_of_object(part.address, part.object_bytes());
            match list.and_then(|list| list.parts.iter().map(place).collect::<Option<BTreeSet<BlockId>>>()) {
                Some(blocks) => self.learn(word, blocks.into_iter().collect()),
                None => self.keep_all_of(word),
            }
        }
    }

    /// Keeps all blocks of the session whose object a word leads to.
    fn keep_all_of(&mut self, word: SlotWord) {
        let block = word.as_live().and_then(|live| self.layout.block_of(live.address));
        let session = block.and_then(|block| self.gone.get(&block).copied());
        let gone = &self.gone;
        self.freed.retain(|block, _| gone.get(block).copied() != session);
    }
}

/// What the read of that number brought, if anything came.
fn bytes_at(results: &[OpResult], at: usize) -> Option<&[u8]> {
    match results.get(at)? {
        OpResult::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Generation;
    use crate::word::LogicalAddress;

    const LAYOUT: PoolLayout =
        PoolLayout { memory_nodes: 2, copies: 1, partition_bits: 0, groups: 1, block_bytes: 4096, blocks: 4 };

    fn place(number: u32) -> LogicalAddress {
        let start = LAYOUT.block_address(BlockId { region: 0, number });
        LogicalAddress { region: 0, offset: start.offset + LAYOUT.bitmap_bytes() }
    }

    /// An object in block 0 of region 0, whose only part is in block 1.
    fn object() -> Vec<u8> {
        object_with_part_at(place(1))
    }

    fn object_with_part_at(address: LogicalAddress) -> Vec<u8> {
        let parts = vec![ListedPart { address, units: 1 }];
        let list = PartList { value_bytes: 9, parts }.encode();
        let (kind, generation) = (ObjectKind::Indirect, Generation::new(1, 1));
        Object { kind, generation, slot: 0, key: b"key", value: &list }.encode().unwrap()
    }

    fn word_at(address: LogicalAddress, units: u8) -> SlotWord {
        SlotWord::live(LiveWord { fingerprint: 1, units, address, version: 0 })
    }

    /// Goes through it: the blocks of region 0 are those of `owners`, all of region 1 session 2's, which stays. A slot has the word; of objects that are read `answers` results come. What is taken back, and how many reads of objects that took.
    fn freed_by(
        owners: [u16; 4],
        word: SlotWord,
        object: &[u8],
        answers: usize,
        known: &mut Option<KnownLists>,
    ) -> (Vec<u32>, usize) {
        let entry = |session| BlockEntry::Allotted { session, sequence: 1 }.encode();
        let tables = [owners.map(entry), [2; 4].map(entry)];
        let address = word.as_live().unwrap().address;
        let leads = BTreeMap::from([(LAYOUT.block_of(address).unwrap(), vec![word])]);
        let staying = BTreeSet::from([2]);
        let mut reclaim =
            Reclaim::new(LAYOUT, NodeSet::first(2), staying, (leads, BTreeSet::new()), known.take());
        let mut read = 0;
        let mut posts = reclaim.begin();
        while let Some((number, node, batch)) = posts.pop() {
            let table_at = LAYOUT.entry_address(BlockId { region: u16::from(node.0), number: 0 });
            let mut left = answers;
            let answer = |op: &RemoteOp| match op {
                RemoteOp::Read(at, 32) if *at == table_at => {
                    let table = tables[usize::from(node.0)].iter().flat_map(|entry| entry.to_le_bytes());
                    Some(OpResult::Bytes(table.collect()))
                }
                RemoteOp::Read(at, len) => {
                    assert_eq!(*at, address.into(), "nothing else is looked at");
                    assert!(
                        (at.offset + len) as usize <= LAYOUT.region_bytes(),
                        "it would never be answered"
                    );
                    left = left.checked_sub(1)?;
                    read += 1;
                    Some(OpResult::Bytes(object[..*len as usize].to_vec()))
                }
                _ => Some(OpResult::Written),
            };
            let results: Vec<OpResult> = batch.iter().map_while(answer).collect();
            posts.extend(reclaim.done(number, &results));
        }
        assert!(reclaim.is_done());
        *known = Some(reclaim.take_known());
        (reclaim.freed().map(|(block, _)| block.number).collect(), read)
    }

    /// Block 0's object is this one.
    fn freed(object: &[u8], sees_parts: bool) -> Vec<u32> {
        let mut known = sees_parts.then(KnownLists::new);
        freed_by([1, 1, 1, 3], word_at(place(0), 1), object, usize::MAX, &mut known).0
    }

    #[test]
    fn a_word_that_leads_out_of_its_block_keeps_its_session() {
        let mut long = object();
        long.resize(4096, 0);
        // Up to the end of its block, into the next one, and beyond the region.
        for (number, units, freed) in [(2, 1, vec![0, 3]), (2, 2, vec![]), (3, 1, vec![0, 2]), (3, 2, vec![])]
        {
            let last = LogicalAddress { region: 0, offset: place(number).offset + 4096 - 128 };
            assert_eq!(
                freed_by([1; 4], word_at(last, units), &long, usize::MAX, &mut Some(KnownLists::new())).0,
                freed,
                "{number}"
            );
        }
    }

    #[test]
    fn a_list_that_leads_to_no_object_keeps_its_session() {
        let before = LogicalAddress { region: 0, offset: place(1).offset - 64 };
        for address in [before, LogicalAddress { region: u16::MAX, ..before }] {
            assert_eq!(freed(&object_with_part_at(address), true), [3]);
        }
    }

    #[test]
    fn an_object_is_looked_at_once_while_its_word_is_there() {
        let (owners, object) = ([1, 1, 1, 3], object());
        let mut known = Some(KnownLists::new());
        let (word, later) = (word_at(place(0), 1), word_at(place(2), 1));
        let freed = |word, known: &mut _| freed_by(owners, word, &object, usize::MAX, known);
        assert_eq!(freed(word, &mut known), (vec![2, 3], 2));
        assert_eq!(freed(word, &mut known), (vec![2, 3], 0));
        // Another word, and the first one again: by then another object may be there.
        assert_eq!(freed(later, &mut known), (vec![0, 3], 2));
        assert_eq!(freed(word, &mut known), (vec![2, 3], 2));
        // What did not come is not known.
        let mut known = Some(KnownLists::new());
        assert_eq!(freed_by(owners, word, &object, 0, &mut known), (vec![3], 0));
        assert_eq!(freed(word, &mut known), (vec![2, 3], 2));
    }

    #[test]
    fn what_did_not_come_keeps_its_session() {
        assert_eq!(
            freed_by([1, 1, 1, 3], word_at(place(0), 1), &object(), 1, &mut Some(KnownLists::new())).0,
            [2, 3]
        );
        assert_eq!(
            freed_by([1, 1, 1, 3], word_at(place(0), 1), &object(), 0, &mut Some(KnownLists::new())).0,
            [3]
        );
    }

    #[test]
    fn a_block_stays_while_something_in_it_is_listed() {
        assert_eq!(freed(&object(), true), [2, 3]);
        assert_eq!(freed(&object(), false), [1, 2, 3]);
        // It lists nothing.
        let (kind, generation) = (ObjectKind::Put, Generation::new(1, 1));
        let short = Object { kind, generation, slot: 0, key: b"key", value: b"" }.encode().unwrap();
        assert_eq!(freed(&short, true), [1, 2, 3]);
        // What it lists is not known, or not even whether it lists anything: its session's blocks stay.
        let mut damaged = object();
        damaged[40] ^= 1;
        assert_eq!(freed(&damaged, true), [3]);
        damaged[22] = 77;
        assert_eq!(freed(&damaged, true), [3]);
    }
}
