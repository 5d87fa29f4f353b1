//! A memory node's agent: it gives blocks to sessions, and fences sessions. It never touches a pair.
//!
//! Owns the block tables of the node's regions. Promises that a block is given to one session, whichever replicas survive: an entry is on all living replicas before
//! the session hears of it; and that after `Fenced` nothing more of the session is executed here. Must not know what is in blocks.
//!
//! The first living replica of a region gives its blocks. Requests are numbered, and an entry has the number: a request that is repeated, of another replica even, gets the same block.

use std::collections::{BTreeMap, BTreeSet};

use crate::fabric::{Nanos, NodeId, RemoteOp, SessionId};
use crate::machine::{In, Machine, Out};
use crate::region::{BlockEntry, BlockId, MemoryNode, NodeSet, PoolLayout};
use crate::wire::Message;

/// Nobody calls an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AgentCall {}

/// An entry on its way to all replicas.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Allotment {
    entry: u64,
    session: u16,
    sequence: u32,
    asked_by: NodeId,
    /// Replicas that have not recorded it yet.
    missing: BTreeSet<MemoryNode>,
    /// It is in this node's own memory.
    is_written: bool,
}

/// What a completion is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Awaited {
    /// A fence, asked for in this epoch.
    Fence(u32, u16),
    /// An entry of ours.
    Own(BlockId),
    /// An entry that another replica told us.
    Told(BlockId, u64, NodeId),
    /// An entry that the manager took away, in this epoch.
    Freed(BlockId, u64, u32),
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Agent {
    node: MemoryNode,
    layout: PoolLayout,
    retry_ns: Nanos,
    epoch: u32,
    living: NodeSet,
    /// Of each region that this node has.
    tables: BTreeMap<u16, Vec<u64>>,
    fenced: BTreeSet<u16>,
    allotments: BTreeMap<BlockId, Allotment>,
    awaited: BTreeMap<u64, Awaited>,
    next_tag: u64,
    /// The tick that was asked for and did not come yet.
    asked_for: Option<Nanos>,
}

type AgentOuts = Vec<Out<AgentCall>>;

impl Agent {
    /// The agent of a memory node of a new pool. It repeats what is not answered after `retry_ns`.
    pub fn new(node: MemoryNode, layout: PoolLayout, retry_ns: Nanos) -> Agent {
        let own = layout.regions().filter(|&region| layout.replicas(region).any(|replica| replica == node));
        let free = BlockEntry::Free.encode();
        Agent {
            node,
            layout,
            retry_ns,
            epoch: 0,
            living: NodeSet::first(layout.memory_nodes),
            tables: own.map(|region| (region, vec![free; layout.blocks as usize])).collect(),
            fenced: BTreeSet::new(),
            allotments: BTreeMap::new(),
            awaited: BTreeMap::new(),
            next_tag: 0,
            asked_for: None,
        }
    }

    /// Takes in what happened, and says what is to be done.
    pub fn on(&mut self, now: Nanos, input: In<AgentCall>, out: &mut AgentOuts) {
        match input {
            In::Message(bytes) => {
                if let Ok((from, message)) = Message::decode(&bytes) {
                    self.message(NodeId(from), message, out);
                }
            }
            In::Done(tag, result) => {
                let awaited = self.awaited.remove(&tag);
                match awaited.filter(|_| result.is_ok()) {
                    Some(Awaited::Fence(epoch, session)) => {
                        self.send(NodeId::MANAGER, &Message::Fenced { epoch, session }, out);
                    }
                    Some(Awaited::Own(block)) => {
                        if let Some(allotment) = self.allotments.get_mut(&block) {
                            allotment.is_written = true;
                        }
                        self.answer_if_recorded(block, out);
                    }
                    Some(Awaited::Told(block, entry, from)) => {
                        let epoch = self.epoch;
                        self.send(from, &Message::BlockRecorded { epoch, block, entry }, out);
                    }
                    Some(Awaited::Freed(block, entry, epoch)) => {
                        self.set_entry(block, BlockEntry::Free.encode());
                        self.send(NodeId::MANAGER, &Message::BlockFreed { epoch, block, entry }, out);
                    }
                    None => {}
                }
            }
            In::Tick => {
                self.asked_for = self.asked_for.filter(|&at| at > now);
                if self.asked_for.is_none() {
                    self.allotments.keys().for_each(|&block| self.tell_missing(block, out));
                }
            }
            In::Call(never) => match never {},
        }
        if !self.allotments.is_empty() && self.asked_for.is_none() {
            self.asked_for = Some(now + self.retry_ns);
            out.push(Out::At(now + self.retry_ns));
        }
    }

    fn send(&self, to: NodeId, message: &Message, out: &mut AgentOuts) {
        out.push(Out::Send { to, bytes: message.encode(NodeId::agent(self.node).0) });
    }

    fn message(&mut self, from: NodeId, message: Message, out: &mut AgentOuts) {
        match message {
            Message::Fence { epoch, session } => {
                self.fenced.insert(session);
                let tag = self.tag(Awaited::Fence(epoch, session));
                out.push(Out::Fence { session: SessionId(session), tag });
            }
            Message::AgentView { epoch, living } => self.view(epoch, living, out),
            Message::Allocate { session, region, sequence } if !self.fenced.contains(&session) => {
                self.allocate(from, session, region, sequence, out);
            }
            // A replica of another epoch may tell of what does not count any more.
            Message::RecordBlock { epoch, block, entry }
                if epoch == self.epoch && self.may_record(block, entry) && self.set_entry(block, entry) =>
            {
                self.write_entry(block, entry, Awaited::Told(block, entry, from), out);
            }
            Message::FreeBlock { epoch, block, entry } if epoch == self.epoch => {
                self.free(epoch, block, entry, out);
            }
            Message::BlockRecorded { epoch, block, entry } if epoch == self.epoch => {
                let allotment = self.allotments.get_mut(&block).filter(|allotment| allotment.entry == entry);
                if let (Some(allotment), Some(node)) = (allotment, from.as_memory_node()) {
                    allotment.missing.remove(&node);
                    self.answer_if_recorded(block, out);
                }
            }
            _ => {}
        }
    }

    /// Nothing is recorded for who is gone, and nothing while an entry is taken away: the two writes would have no order.
    fn may_record(&self, block: BlockId, entry: u64) -> bool {
        let is_gone = matches!(BlockEntry::decode(entry), Ok(BlockEntry::Allotted { session, .. }) if self.fenced.contains(&session));
        !is_gone
            && !self.awaited.values().any(|one| matches!(one, Awaited::Freed(other, ..) if *other == block))
    }

    /// Takes an entry away, once nothing about the block is under way. An entry is never the same again: where there is another one it was taken away before.
    fn free(&mut self, epoch: u32, block: BlockId, entry: u64, out: &mut AgentOuts) {
        let is_about = |awaited: &Awaited| match awaited {
            Awaited::Own(other) | Awaited::Told(other, ..) | Awaited::Freed(other, ..) => *other == block,
            Awaited::Fence(..) => false,
        };
        if self.awaited.values().any(is_about) {
            return;
        }
        let there = self.tables.get(&block.region).and_then(|table| table.get(block.number as usize));
        if there != Some(&entry) {
            return self.send(NodeId::MANAGER, &Message::BlockFreed { epoch, block, entry }, out);
        }
        self.allotments.remove(&block);
        self.write_entry(block, BlockEntry::Free.encode(), Awaited::Freed(block, entry, epoch), out);
    }

    fn view(&mut self, epoch: u32, living: NodeSet, out: &mut AgentOuts) {
        if epoch >= self.epoch {
            self.epoch = epoch;
            self.living = living;
            for block in self.allotments.keys().copied().collect::<Vec<_>>() {
                if let Some(allotment) = self.allotments.get_mut(&block) {
                    allotment.missing.retain(|&node| living.has(node));
                }
                self.answer_if_recorded(block, out);
            }
        }
        self.send(NodeId::MANAGER, &Message::AgentReady { epoch }, out);
    }

    fn tag(&mut self, awaited: Awaited) -> u64 {
        self.next_tag += 1;
        self.awaited.insert(self.next_tag, awaited);
        self.next_tag
    }

    /// Whether there is such an entry.
    fn set_entry(&mut self, block: BlockId, entry: u64) -> bool {
        let table = self.tables.get_mut(&block.region);
        let place = table.and_then(|table| table.get_mut(block.number as usize));
        place.map(|place| *place = entry).is_some()
    }

    fn write_entry(&mut self, block: BlockId, entry: u64, awaited: Awaited, out: &mut AgentOuts) {
        let tag = self.tag(awaited);
        let write = RemoteOp::Write(self.layout.entry_address(block), entry.to_le_bytes().to_vec());
        out.push(Out::Post { session: SessionId::OF_THE_POOL, to: self.node, batch: vec![write], tag });
    }

    fn allocate(&mut self, asked_by: NodeId, session: u16, region: u16, sequence: u32, out: &mut AgentOuts) {
        let replicas = self.layout.living_replicas(region, self.living);
        let table = self.tables.get(&region).filter(|_| replicas.first() == Some(&self.node));
        let Some(table) = table else { return };
        let entry = BlockEntry::Allotted { session, sequence }.encode();
        let free = BlockEntry::Free.encode();
        let at =
            table.iter().position(|&other| other == entry).or_else(|| table.iter().position(|&e| e == free));
        let Some(at) = at else {
            let none = Message::Allocated { session, region, sequence, block: None };
            self.send(asked_by, &none, out);
            return;
        };
        let block = BlockId { region, number: at as u32 };
        if self.allotments.contains_key(&block) {
            return self.tell_missing(block, out);
        }
        let missing = replicas.into_iter().filter(|&node| node != self.node).collect();
        self.set_entry(block, entry);
        let allotment = Allotment { entry, session, sequence, asked_by, missing, is_written: false };
        self.allotments.insert(block, allotment);
        self.write_entry(block, entry, Awaited::Own(block), out);
        self.tell_missing(block, out);
    }

    fn tell_missing(&self, block: BlockId, out: &mut AgentOuts) {
        let Some(allotment) = self.allotments.get(&block) else { return };
        for &node in &allotment.missing {
            let message = Message::RecordBlock { epoch: self.epoch, block, entry: allotment.entry };
            self.send(NodeId::agent(node), &message, out);
        }
    }

    fn answer_if_recorded(&mut self, block: BlockId, out: &mut AgentOuts) {
        let is_recorded = |allotment: &Allotment| allotment.is_written && allotment.missing.is_empty();
        if !self.allotments.get(&block).is_some_and(is_recorded) {
            return;
        }
        if let Some(Allotment { session, sequence, asked_by, .. }) = self.allotments.remove(&block) {
            let (region, block) = (block.region, Some(block.number));
            self.send(asked_by, &Message::Allocated { session, region, sequence, block }, out);
        }
    }
}

impl Machine for Agent {
    type Call = AgentCall;
    type Answer = AgentCall;

    fn on(&mut self, now: Nanos, input: In<AgentCall>, out: &mut Vec<Out<AgentCall>>) {
        Agent::on(self, now, input, out);
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    const LAYOUT: PoolLayout =
        PoolLayout { memory_nodes: 3, copies: 3, partition_bits: 0, groups: 1, block_bytes: 4096, blocks: 6 };

    /// Three agents whose messages come late, twice or never, and of which one may die.
    struct Agents {
        agents: Vec<Option<Agent>>,
        random: Random,
        messages: Vec<(NodeId, Vec<u8>)>,
        answers: Vec<Message>,
        now: Nanos,
    }

    impl Agents {
        fn feed(&mut self, node: u8, input: In<AgentCall>) {
            let Some(agent) = &mut self.agents[usize::from(node)] else { return };
            let mut out = Vec::new();
            self.now += 3;
            agent.on(self.now, input, &mut out);
            for one in out {
                match one {
                    Out::Send { to, bytes } => {
                        for _ in 0..self.random.below(3) {
                            self.messages.push((to, bytes.clone()));
                        }
                    }
                    Out::Post { tag, .. } => self.feed(node, In::Done(tag, Ok(Vec::new()))),
                    _ => {}
                }
            }
        }

        fn deliver_one(&mut self) {
            if self.messages.is_empty() {
                return;
            }
            let (to, bytes) =
                self.messages.swap_remove(self.random.below(self.messages.len() as u64) as usize);
            match to.as_memory_node().filter(|node| node.0 < 3) {
                Some(node) => self.feed(node.0, In::Message(bytes)),
                None => self.answers.push(Message::decode(&bytes).unwrap().1),
            }
        }
    }

    #[test]
    fn a_block_has_one_owner_whoever_survives() {
        let mut answered = 0;
        for seed in 0..300 {
            let agents = (0..3).map(|node| Some(Agent::new(MemoryNode(node), LAYOUT, 10))).collect();
            let (messages, answers) = (Vec::new(), Vec::new());
            let mut all = Agents { agents, random: Random::from_seed(seed), messages, answers, now: 0 };
            let dies_at = all.random.below(150);
            for step in 0..400 {
                if step == dies_at {
                    all.agents[0] = None;
                }
                if step > dies_at + 20 {
                    let living = NodeSet::first(3).without(MemoryNode(0));
                    for node in [1, 2] {
                        let view = Message::AgentView { epoch: 1, living }.encode(NodeId::MANAGER.0);
                        all.feed(node, In::Message(view));
                    }
                }
                let (session, sequence) = (1 + all.random.below(2) as u16, 1 + all.random.below(2) as u32);
                let ask = Message::Allocate { session, region: 0, sequence }.encode(session);
                let node = all.random.below(3) as u8;
                all.feed(node, In::Message(ask));
                all.deliver_one();
                all.feed(node, In::Tick);
                all.deliver_one();
            }
            let mut owners = BTreeMap::new();
            let mut blocks = BTreeMap::new();
            for answer in &all.answers {
                if let Message::Allocated { session, sequence, block: Some(block), .. } = *answer {
                    answered += 1;
                    assert_eq!(*owners.entry(block).or_insert((session, sequence)), (session, sequence));
                    assert_eq!(*blocks.entry((session, sequence)).or_insert(block), block);
                }
            }
        }
        assert!(answered > 1000, "{answered}");
    }

    #[test]
    fn a_fenced_session_gets_nothing() {
        let mut agent = Agent::new(MemoryNode(0), LAYOUT, 10);
        let mut out = Vec::new();
        agent.on(0, In::Message(Message::Fence { epoch: 1, session: 2 }.encode(1)), &mut out);
        let [Out::Fence { session: SessionId(2), tag }] = out[..] else { panic!("{out:?}") };
        out.clear();
        agent.on(
            0,
            In::Message(Message::Allocate { session: 2, region: 0, sequence: 1 }.encode(1)),
            &mut out,
        );
        assert_eq!(out, []);
        agent.on(0, In::Done(tag, Ok(Vec::new())), &mut out);
        let fenced = Message::Fenced { epoch: 1, session: 2 }.encode(NodeId::agent(MemoryNode(0)).0);
        assert_eq!(out, [Out::Send { to: NodeId::MANAGER, bytes: fenced }]);
    }
}
