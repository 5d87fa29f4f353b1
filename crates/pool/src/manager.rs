//! The manager of the configuration: which sessions there are, and which memory nodes are part of the pool.
//!
//! Owns the epochs. Promises that between two of them nothing is under way, that whoever was given up can do nothing more, and that all copies of each slot say the same when the next one begins. There is one, it
//! does not fail, and somebody else tells it who has failed. Must not know what objects say, but for whether they are whole.
//!
//! From one epoch to the next:
//! 1. *Prepare* goes to all sessions that stay: each begins nothing more, waits for its posts, and names the changes whose outcome it does not know.
//! 2. *Fence* goes to the agents of all memory nodes that stay, for every session that is given up; who does not prepare in time is given up, too. The agents hear of the
//!    new configuration.
//! 3. Slots whose copies differ are made one (`manager/repair.rs`).
//! 4. Blocks of sessions that are gone, into which no slot leads any more, are taken back (`manager/reclaim.rs`).
//! 5. *View* goes to all sessions: the new configuration, and what became of the changes that they named.
//!
//! Whoever fails in between begins this again, with the next number, and no repair begins before what the last one posted is done. Each message is repeated until it is answered.

mod reclaim;
mod repair;

use std::collections::{BTreeMap, BTreeSet};

use crate::accesses::AccessReport;
use crate::fabric::{Nanos, NodeId, PostResult, SessionId};
use crate::machine::{In, Machine, Out};
use crate::place::{Placement, PlacementCounters, PlacementOptions, PlacementStep};
use crate::region::{BlockId, MemoryNode, NodeSet, PoolLayout, SlotId};
use crate::repairs::Repairs;
use crate::wire::{Doubt, Message, OWNERS_MAX, Owner, Verdict};
use reclaim::{KnownLists, RECLAIM_POSTS, Reclaim};
use repair::Repair;

/// A change of proxies alone is waited for so many times as long as another one.
const CHOICE_PATIENCE: Nanos = 3;

/// What the manager is told by whoever watches the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManagerCall {
    /// A compute node does not answer. It may be alive: it is fenced.
    Suspect(NodeId),
    /// A memory node is gone for good. It must be: nobody can fence it.
    MemoryLost(MemoryNode),
    /// A partition is to have this compute node as its proxy, or none. Where proxies are chosen that holds until they next are.
    Assign(u16, Option<NodeId>),
}

/// Nothing is answered to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManagerAnswer {}

/// Settings of a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ManagerOptions {
    /// What is not answered is repeated after this time.
    pub retry_ns: Nanos,
    /// A session that has not prepared after this time is given up, after three times as long where the change is one of proxies alone.
    pub prepare_ns: Nanos,
    /// How long a proxy may answer after it asked: what [`ClientOptions`](crate::client::ClientOptions) has, too. The manager waits an eighth longer, since clocks drift.
    pub lease_ns: Nanos,
    /// What proxies are chosen by; none by default: nothing is asked for, and nothing chosen.
    pub placement: Option<PlacementOptions>,
}

impl Default for ManagerOptions {
    fn default() -> ManagerOptions {
        ManagerOptions { retry_ns: 1_000_000, prepare_ns: 500_000_000, lease_ns: 50_000_000, placement: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Member {
    node: NodeId,
    boot: u64,
}

/// The way to the next epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Transition {
    epoch: u32,
    began_at: Nanos,
    /// Sessions that are given up, and memory nodes that are.
    removed: BTreeSet<u16>,
    lost: BTreeSet<MemoryNode>,
    prepared: BTreeMap<u16, Vec<Doubt>>,
    fenced: BTreeSet<(MemoryNode, u16)>,
    ready: BTreeSet<MemoryNode>,
    /// Partitions that get a proxy, the session on this node, or lose theirs.
    assigned: BTreeMap<u16, Option<u16>>,
    repair: Option<Repair>,
    reclaim: Option<Reclaim>,
    /// Entries of block tables that are to be taken away, and by whose agent.
    freeing: Option<BTreeSet<(MemoryNode, BlockId, u64)>>,
}

/// Counts of what the manager did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ManagerCounters {
    /// Epochs that began.
    pub epochs: u64,
    /// Slots whose copies differed, and were made one by a word that was new, or by the one that was there before.
    pub completed: u64,
    /// See `completed`.
    pub undone: u64,
    /// Slots of which no copy led to a whole object. Always 0, unless more nodes are lost than there are copies.
    pub anomalies: u64,
    /// Blocks taken back from sessions that are gone.
    pub reclaimed: u64,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Manager {
    layout: PoolLayout,
    options: ManagerOptions,
    repairs: Repairs,
    epoch: u32,
    living: NodeSet,
    members: BTreeMap<u16, Member>,
    next_session: u16,
    /// Partitions that have a proxy, and whose session it is.
    owners: BTreeMap<u16, u16>,
    /// Until when proxies may answer, at the latest.
    leases: BTreeMap<u16, Nanos>,
    /// The last boot of each node that was heard of.
    boots: BTreeMap<NodeId, u64>,
    /// Nodes that wait for a session.
    joining: BTreeMap<NodeId, u64>,
    /// What the last transition came to, for sessions that named doubts.
    verdicts: BTreeMap<u16, Vec<Verdict>>,
    /// Where objects of sessions that are gone have parts.
    known_lists: KnownLists,
    transition: Option<Transition>,
    /// Tags of posts that are not done, those for epochs that were begun again among them.
    posts: BTreeSet<u64>,
    /// The tick that was asked for and did not come yet.
    asked_for: Option<Nanos>,
    placement: Option<Placement>,
    /// The tick that was asked for to choose proxies.
    places_at: Option<Nanos>,
    counters: ManagerCounters,
}

/// Which proxies were chosen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ProxyStatus {
    /// Hundredths of the partitions that are to have one; none where nothing is chosen.
    pub share: Option<u8>,
    /// How many partitions each node has.
    pub nodes: BTreeMap<NodeId, u16>,
    /// How it came to that.
    pub counters: PlacementCounters,
}

type ManagerOuts = Vec<Out<ManagerAnswer>>;

impl Manager {
    /// The manager of a new pool.
    pub fn new(layout: PoolLayout, options: ManagerOptions) -> Manager {
        Manager::with_repairs(layout, options, Repairs::ALL)
    }

    pub(crate) fn with_repairs(layout: PoolLayout, options: ManagerOptions, repairs: Repairs) -> Manager {
        Manager {
            layout,
            options,
            repairs,
            epoch: 1,
            living: NodeSet::first(layout.memory_nodes),
            members: BTreeMap::new(),
            next_session: 1,
            owners: BTreeMap::new(),
            leases: BTreeMap::new(),
            boots: BTreeMap::new(),
            joining: BTreeMap::new(),
            verdicts: BTreeMap::new(),
            known_lists: KnownLists::new(),
            transition: None,
            posts: BTreeSet::new(),
            asked_for: None,
            placement: options.placement.map(|placement| Placement::new(placement, layout.partitions())),
            places_at: None,
            counters: ManagerCounters::default(),
        }
    }

    /// What it did.
    pub fn counters(&self) -> ManagerCounters {
        self.counters
    }

    /// The epoch that holds, and whether another one is on its way.
    pub fn epoch(&self) -> (u32, bool) {
        (self.epoch, self.transition.is_some())
    }

    /// Sessions that work on the pool, those that are being given up among them.
    pub fn sessions(&self) -> usize {
        self.members.len()
    }

    /// Which proxies there are.
    pub fn proxies(&self) -> ProxyStatus {
        let mut nodes = BTreeMap::new();
        for member in self.owners.values().filter_map(|session| self.members.get(session)) {
            *nodes.entry(member.node).or_default() += 1;
        }
        ProxyStatus {
            share: self.placement.as_ref().map(Placement::share),
            nodes,
            counters: self.placement.as_ref().map(Placement::counters).unwrap_or_default(),
        }
    }

    /// The node whose proxy a partition has, if it has one.
    pub fn proxy_of(&self, partition: u16) -> Option<NodeId> {
        self.members.get(self.owners.get(&partition)?).map(|member| member.node)
    }

    /// The memory nodes that are part of the pool.
    pub fn living(&self) -> NodeSet {
        self.living
    }

    /// Whether the session is one of those that work on the pool.
    #[cfg(test)]
    pub(crate) fn has_session(&self, session: SessionId) -> bool {
        self.members.contains_key(&session.0)
    }

    /// Takes in what happened, and says what is to be done.
    pub fn on(&mut self, now: Nanos, input: In<ManagerCall>, out: &mut ManagerOuts) {
        match input {
            In::Message(bytes) => {
                if let Ok((from, message)) = Message::decode(&bytes) {
                    self.message(now, NodeId(from), message, out);
                }
            }
            In::Done(tag, result) => self.done(tag, result, out),
            In::Tick => {
                self.asked_for = self.asked_for.filter(|&at| at > now);
                if self.asked_for.is_none() {
                    self.give_up_the_slow(now);
                    self.ask_all(out);
                }
            }
            In::Call(ManagerCall::Suspect(node)) => {
                // Nor does it get a session that nobody would watch. If it lives it asks again.
                if let Some(boot) = self.joining.remove(&node) {
                    self.boots.insert(node, boot.saturating_sub(1));
                }
                let sessions: Vec<u16> = self.sessions_of(node);
                if !sessions.is_empty() {
                    self.change(now, &sessions, None, out);
                }
            }
            In::Call(ManagerCall::MemoryLost(node)) => {
                if self.living.has(node) {
                    self.change(now, &[], Some(node), out);
                }
            }
            In::Call(ManagerCall::Assign(partition, node)) => self.assign(now, partition, node, out),
        }
        self.repair_if_quiet(now, out);
        self.reclaim_if_repaired(out);
        self.commit_if_reclaimed(out);
        self.choose_proxies(now, out);
        if self.transition.is_some() && self.asked_for.is_none() {
            self.asked_for = Some(now + self.options.retry_ns);
            out.push(Out::At(now + self.options.retry_ns));
        }
    }

    fn sessions_of(&self, node: NodeId) -> Vec<u16> {
        self.members.iter().filter(|(_, member)| member.node == node).map(|(&session, _)| session).collect()
    }

    fn send(to: NodeId, message: &Message, out: &mut ManagerOuts) {
        out.push(Out::Send { to, bytes: message.encode(NodeId::MANAGER.0) });
    }

    /// Begins the way to the next epoch, or begins it again with more to give up.
    fn change(&mut self, now: Nanos, removed: &[u16], lost: Option<MemoryNode>, out: &mut ManagerOuts) {
        let before = self.transition.take();
        let mut next = before.unwrap_or_else(|| Transition {
            epoch: self.epoch,
            began_at: now,
            removed: BTreeSet::new(),
            lost: BTreeSet::new(),
            prepared: BTreeMap::new(),
            fenced: BTreeSet::new(),
            ready: BTreeSet::new(),
            assigned: BTreeMap::new(),
            repair: None,
            reclaim: None,
            freeing: None,
        });
        next.epoch += 1;
        next.began_at = now;
        next.removed.extend(removed);
        next.lost.extend(lost);
        next.prepared.clear();
        next.ready.clear();
        if let Some(mut reclaim) = next.reclaim.take() {
            self.known_lists = reclaim.take_known();
        }
        (next.repair, next.freeing) = (None, None);
        // The last lease of those who are given up ends at a time at which nothing else may happen.
        let lease = next.removed.iter().filter_map(|session| self.leases.get(session)).max();
        if let Some(&until) = lease.filter(|until| **until > now) {
            out.push(Out::At(until));
        }
        self.transition = Some(next);
        self.ask_all(out);
    }

    /// A partition gets another proxy, or none. Where the node has no session nothing happens.
    fn assign(&mut self, now: Nanos, partition: u16, node: Option<NodeId>, out: &mut ManagerOuts) {
        let session = node.and_then(|node| self.sessions_of(node).last().copied());
        let coming = self.transition.as_ref().map_or(0, |transition| transition.assigned.len());
        let is_so = coming == 0 && self.owners.get(&partition).copied() == session;
        if !is_so && node.is_some() == session.is_some() {
            self.assign_all(now, &BTreeMap::from([(partition, session)]), out);
        }
    }

    /// Begins one change in which all of these partitions get another proxy, or none. Where too many would have one nothing happens.
    fn assign_all(&mut self, now: Nanos, moves: &BTreeMap<u16, Option<u16>>, out: &mut ManagerOuts) {
        let coming = self.transition.iter().flat_map(|transition| &transition.assigned);
        let mut owners: BTreeMap<u16, Option<u16>> =
            self.owners.iter().map(|(&partition, &session)| (partition, Some(session))).collect();
        owners.extend(coming.chain(moves).map(|(&partition, &session)| (partition, session)));
        let count = owners.values().flatten().count();
        let cannot_be = moves.keys().any(|&partition| partition >= self.layout.partitions());
        if cannot_be || count > OWNERS_MAX {
            return;
        }
        self.change(now, &[], None, out);
        if let Some(transition) = &mut self.transition {
            transition.assigned.extend(moves);
        }
    }

    /// Does what follows from what is counted, if it is time.
    fn choose_proxies(&mut self, now: Nanos, out: &mut ManagerOuts) {
        let is_changing = self.transition.is_some();
        let Some(placement) = &mut self.placement else { return };
        if placement.is_due(now, is_changing) {
            let sessions: Vec<u16> = self.members.keys().copied().collect();
            match placement.go_on(now, &sessions, is_changing, &self.owners) {
                PlacementStep::Nothing => {}
                PlacementStep::Ask(round) => {
                    for (&session, member) in &self.members {
                        let question = AccessReport::question(session, round);
                        Manager::send(member.node, &Message::Accesses(question), out);
                    }
                }
                PlacementStep::Assign(moves) => {
                    self.assign_all(now, &moves, out);
                    // So that nothing is measured until it holds.
                    return self.choose_proxies(now, out);
                }
            }
        }
        let at = self.placement.as_ref().and_then(Placement::due_at);
        if let Some(at) = at.filter(|_| at != self.places_at) {
            self.places_at = Some(at);
            out.push(Out::At(at));
        }
    }

    fn is_removing(&self, session: u16) -> bool {
        self.transition.as_ref().is_some_and(|transition| transition.removed.contains(&session))
    }

    /// A proxy may answer for a while longer, unless it is being given up.
    fn renew(&mut self, now: Nanos, from: NodeId, (session, sequence): (u16, u32), out: &mut ManagerOuts) {
        if !self.members.contains_key(&session) {
            Manager::send(from, &Message::GivenUp { session }, out);
            return;
        }
        if !self.is_removing(session) {
            let margin_ns = self.options.lease_ns / 8;
            self.leases.insert(session, now.saturating_add(self.options.lease_ns + margin_ns));
            Manager::send(from, &Message::Renewed { session, sequence }, out);
        }
    }

    /// Whether no session that is given up may answer as a proxy any more.
    fn has_no_lease(&self, transition: &Transition, now: Nanos) -> bool {
        let is_over = |session: &u16| self.leases.get(session).is_none_or(|until| *until <= now);
        transition.removed.iter().all(is_over) || !self.repairs.lease
    }

    /// A change that is for nothing but who is whose proxy has time: a memory node that stands still for a moment would have all sessions given up that wait for it.
    fn give_up_the_slow(&mut self, now: Nanos) {
        let Some(transition) = &mut self.transition else { return };
        let is_for_failures = !transition.removed.is_empty() || !transition.lost.is_empty();
        let patience = if is_for_failures || transition.assigned.is_empty() { 1 } else { CHOICE_PATIENCE };
        let waited = now.saturating_sub(transition.began_at);
        if waited > patience * self.options.prepare_ns && transition.repair.is_none() {
            let slow = self.members.keys().filter(|session| !transition.prepared.contains_key(session));
            transition.removed.extend(slow);
        }
    }

    /// Asks all those again who have not answered.
    fn ask_all(&self, out: &mut ManagerOuts) {
        let Some(transition) = &self.transition else { return };
        let epoch = transition.epoch;
        for (session, member) in &self.members {
            if !transition.removed.contains(session) && !transition.prepared.contains_key(session) {
                Manager::send(member.node, &Message::Prepare { epoch }, out);
            }
        }
        let living = self.next_living(transition);
        for node in (0..self.layout.memory_nodes).map(MemoryNode).filter(|&node| living.has(node)) {
            let agent = NodeId::agent(node);
            for &session in
                transition.removed.iter().filter(|&&session| !transition.fenced.contains(&(node, session)))
            {
                Manager::send(agent, &Message::Fence { epoch, session }, out);
            }
            for &(at, block, entry) in transition.freeing.iter().flatten().filter(|(at, ..)| *at == node) {
                Manager::send(NodeId::agent(at), &Message::FreeBlock { epoch, block, entry }, out);
            }
            if !transition.ready.contains(&node) {
                Manager::send(agent, &Message::AgentView { epoch, living }, out);
            }
        }
    }

    fn next_living(&self, transition: &Transition) -> NodeSet {
        transition.lost.iter().fold(self.living, |living, &node| living.without(node))
    }

    fn message(&mut self, now: Nanos, from: NodeId, message: Message, out: &mut ManagerOuts) {
        match message {
            Message::Join { boot } => self.join(now, from, boot, out),
            Message::Silent { epoch, by, session }
                if epoch == self.epoch
                    && self.transition.is_none()
                    && [by, session].iter().all(|one| self.members.contains_key(one)) =>
            {
                // Nobody is given up on a proxy's word, which may be the one that nobody hears: whoever lives prepares, and has nothing in its cache then; who does not is given up for that.
                self.change(now, &[], None, out);
            }
            Message::Prepared { epoch, installed, session, doubts } => {
                // Who has not heard of the last epoch hears of it first: its doubts were resolved there.
                if !self.members.contains_key(&session) {
                    // It is paused, so that no fence of a memory node tells it.
                    if self.repairs.tells_given_up {
                        Manager::send(from, &Message::GivenUp { session }, out);
                    }
                } else if installed < self.epoch {
                    self.send_view(session, out);
                } else if let Some(transition) = self.transition.as_mut().filter(|t| t.epoch == epoch)
                    && !transition.removed.contains(&session)
                {
                    transition.prepared.entry(session).or_insert(doubts);
                }
            }
            Message::Accesses(report)
                if self.members.get(&report.session).is_some_and(|member| member.node == from) =>
            {
                if let Some(placement) = &mut self.placement {
                    placement.told(&report);
                }
            }
            Message::Renew { session, sequence } => self.renew(now, from, (session, sequence), out),
            Message::Fenced { session, .. } => {
                if let (Some(transition), Some(node)) = (&mut self.transition, from.as_memory_node()) {
                    transition.fenced.insert((node, session));
                }
            }
            Message::BlockFreed { epoch, block, entry } => {
                let transition = self.transition.as_mut().filter(|transition| transition.epoch == epoch);
                let freeing = transition.and_then(|transition| transition.freeing.as_mut());
                if let (Some(freeing), Some(node)) = (freeing, from.as_memory_node()) {
                    freeing.remove(&(node, block, entry));
                }
            }
            Message::AgentReady { epoch } => {
                let transition = self.transition.as_mut().filter(|transition| transition.epoch == epoch);
                if let (Some(transition), Some(node)) = (transition, from.as_memory_node()) {
                    transition.ready.insert(node);
                }
            }
            _ => {}
        }
    }

    fn join(&mut self, now: Nanos, node: NodeId, boot: u64, out: &mut ManagerOuts) {
        let last = self.boots.get(&node).copied().unwrap_or(0);
        if boot < last {
            return;
        }
        let sessions = self.sessions_of(node);
        if boot == last && !self.joining.contains_key(&node) {
            sessions.into_iter().for_each(|session| self.send_view(session, out));
            return;
        }
        self.boots.insert(node, boot);
        if self.transition.is_none() && sessions.is_empty() {
            self.joining.remove(&node);
            if let Some(session) = self.admit(node, boot) {
                self.send_view(session, out);
            }
            return;
        }
        self.joining.insert(node, boot);
        // The node has begun again: what its last life left behind ends first.
        let is_known = |session: &u16| {
            self.transition.as_ref().is_some_and(|transition| transition.removed.contains(session))
        };
        if sessions.iter().any(|session| !is_known(session)) {
            self.change(now, &sessions, None, out);
        }
    }

    /// The number of a new session; none once all are used up, and the node waits in vain. None is given twice: two sessions would have the same blocks and generations.
    fn admit(&mut self, node: NodeId, boot: u64) -> Option<u16> {
        let session = self.next_session;
        self.next_session = session.checked_add(1)?;
        self.members.insert(session, Member { node, boot });
        Some(session)
    }

    fn send_view(&self, session: u16, out: &mut ManagerOuts) {
        let Some(&Member { node, boot }) = self.members.get(&session) else { return };
        let verdicts = self.verdicts.get(&session).cloned().unwrap_or_default();
        let owner = |(&partition, &session): (&u16, &u16)| {
            let node = self.members.get(&session)?.node;
            Some(Owner { partition, session, node })
        };
        let owners = self.owners.iter().filter_map(owner).collect();
        let (epoch, living) = (self.epoch, self.living);
        let message = Message::View { epoch, living, session, boot, verdicts, owners };
        Manager::send(node, &message, out);
    }

    /// Whether everybody who stays is quiet, and everybody else is fenced.
    fn is_quiet(&self, transition: &Transition) -> bool {
        let living = self.next_living(transition);
        let nodes = || (0..self.layout.memory_nodes).map(MemoryNode).filter(|&node| living.has(node));
        let prepared = self
            .members
            .keys()
            .all(|session| transition.removed.contains(session) || transition.prepared.contains_key(session));
        let fenced = transition
            .removed
            .iter()
            .all(|&session| nodes().all(|node| transition.fenced.contains(&(node, session))));
        // What a repair that is begun again had posted would overwrite, late, what others have written since.
        let settled = self.posts.is_empty() || !self.repairs.settle;
        prepared
            && settled
            && (fenced || !self.repairs.fence)
            && nodes().all(|node| transition.ready.contains(&node))
    }

    fn repair_if_quiet(&mut self, now: Nanos, out: &mut ManagerOuts) {
        let Some(transition) = &self.transition else { return };
        if transition.repair.is_some() || !self.is_quiet(transition) || !self.has_no_lease(transition, now) {
            return;
        }
        let doubtful: BTreeSet<SlotId> =
            transition.prepared.values().flatten().map(|doubt| doubt.slot).collect();
        let (before, after) = (self.living, self.next_living(transition));
        // Of a change by a proxy its writer does not know the version, and maybe not the slot: what leads to its object is looked for.
        let words = transition.prepared.values().flatten().map(|doubt| doubt.new);
        let objects = words.filter_map(|word| word.as_live()).map(|live| live.address).collect();
        let mut repair =
            Repair::new(self.layout, (before, after), (doubtful, objects), self.repairs.align_copies);
        let epoch = transition.epoch;
        let posts = repair.begin();
        self.post(epoch, posts, out);
        if let Some(transition) = &mut self.transition {
            transition.repair = Some(repair);
        }
    }

    fn post(&mut self, epoch: u32, posts: Vec<repair::RepairPost>, out: &mut ManagerOuts) {
        for (number, to, batch) in posts {
            let tag = u64::from(epoch) << 32 | u64::from(number);
            self.posts.insert(tag);
            out.push(Out::Post { session: SessionId::OF_THE_POOL, to, batch, tag });
        }
    }

    fn done(&mut self, tag: u64, result: PostResult, out: &mut ManagerOuts) {
        self.posts.remove(&tag);
        let Some(transition) = self.transition.as_mut().filter(|t| u64::from(t.epoch) == tag >> 32) else {
            return;
        };
        // Where a memory node does not answer, somebody will say that it is lost, and all begins again.
        let (epoch, number, Ok(results)) = (transition.epoch, tag as u32, result) else { return };
        let posts = match (&mut transition.repair, &mut transition.reclaim) {
            (_, Some(reclaim)) if number > RECLAIM_POSTS => reclaim.done(number, &results),
            (Some(repair), _) => repair.done(number, results),
            _ => Vec::new(),
        };
        self.post(epoch, posts, out);
    }

    /// Looks for blocks of sessions that are gone, and then has their entries taken away.
    fn reclaim_if_repaired(&mut self, out: &mut ManagerOuts) {
        let Some(transition) = &mut self.transition else { return };
        let Some(repair) = transition.repair.as_mut().filter(|repair| repair.is_done()) else { return };
        let living = transition.lost.iter().fold(self.living, |living, &node| living.without(node));
        let mut posts = Vec::new();
        if transition.reclaim.is_none() {
            let staying: BTreeSet<u16> = self
                .members
                .keys()
                .copied()
                .filter(|session| !transition.removed.contains(session))
                .collect();
            let doubts = transition.prepared.values().flatten();
            let words = doubts.flat_map(|doubt| [doubt.old, doubt.new]);
            let mut leads = repair.take_leads();
            if !self.repairs.reclaim_unreferenced {
                leads.clear();
            }
            let kept = words.filter_map(|word| self.layout.block_of(word.as_live()?.address)).collect();
            let is_somebody_gone = staying.len() + 1 < usize::from(self.next_session);
            let known =
                Some(std::mem::take(&mut self.known_lists)).filter(|_| self.repairs.reclaim_sees_parts);
            let mut reclaim = Reclaim::new(self.layout, living, staying, (leads, kept), known);
            posts = if is_somebody_gone { reclaim.begin() } else { reclaim.pass() };
            transition.reclaim = Some(reclaim);
        }
        let reclaim = transition.reclaim.as_ref().filter(|reclaim| reclaim.is_done());
        if let (Some(reclaim), None) = (reclaim, &transition.freeing) {
            let replicas = |(block, entry): (BlockId, u64)| {
                let nodes = self.layout.living_replicas(block.region, living);
                nodes.into_iter().map(move |node| (node, block, entry))
            };
            self.counters.reclaimed += reclaim.freed().count() as u64;
            transition.freeing = Some(reclaim.freed().flat_map(replicas).collect());
            self.ask_all(out);
        }
        if let Some(epoch) = self.transition.as_ref().map(|transition| transition.epoch) {
            self.post(epoch, posts, out);
        }
    }

    fn commit_if_reclaimed(&mut self, out: &mut ManagerOuts) {
        let is_done = |transition: &Transition| transition.freeing.as_ref().is_some_and(BTreeSet::is_empty);
        if !self.transition.as_ref().is_some_and(is_done) {
            return;
        }
        let Some(mut transition) = self.transition.take() else { return };
        self.known_lists = transition.reclaim.as_mut().map(Reclaim::take_known).unwrap_or_default();
        self.living = self.next_living(&transition);
        self.epoch = transition.epoch;
        self.counters.epochs += 1;
        if let Some(repair) = &transition.repair {
            self.counters.completed += repair.completed;
            self.counters.undone += repair.undone;
            self.counters.anomalies += repair.anomalies;
        }
        self.members.retain(|session, _| !transition.removed.contains(session));
        self.install_owners(&transition);
        let verdict = |doubt: &Doubt| transition.repair.as_ref().and_then(|repair| repair.verdict(doubt));
        self.verdicts = transition
            .prepared
            .iter()
            .map(|(&session, doubts)| (session, doubts.iter().filter_map(verdict).collect()))
            .collect();
        for (node, boot) in std::mem::take(&mut self.joining) {
            self.admit(node, boot);
        }
        let sessions: Vec<u16> = self.members.keys().copied().collect();
        sessions.into_iter().for_each(|session| self.send_view(session, out));
    }

    /// Partitions of proxies that are gone are in direct mode again.
    fn install_owners(&mut self, transition: &Transition) {
        for (&partition, session) in &transition.assigned {
            match session {
                Some(session) => self.owners.insert(partition, *session),
                None => self.owners.remove(&partition),
            };
        }
        let members = &self.members;
        self.owners.retain(|_, session| members.contains_key(session));
        self.leases.retain(|session, _| members.contains_key(session));
    }
}

impl Machine for Manager {
    type Call = ManagerCall;
    type Answer = ManagerAnswer;

    fn on(&mut self, now: Nanos, input: In<ManagerCall>, out: &mut Vec<Out<ManagerAnswer>>) {
        Manager::on(self, now, input, out);
    }
}
