//! A small pool, one step at a time, for the exploration.
//!
//! Owns the state: the product's own machines, memory, and what is under way between them. Promises that a step is either a choice or commutes with everything that can happen before the next choice. What is a choice:
//! when a call begins; when an operation on the index, on memory that was used before, or on other than fresh memory is executed; when a completion is delivered, if something can fail; when a client hears of a
//! configuration, when a request to a proxy or its answer comes, when a fence holds, when somebody crashes, is suspected or lost. What is not: objects into memory in which nothing ever was, since no word leads there; completions that are not the last of their round, since
//! the machine only puts them by; messages of agents and to them. An answer is given as soon as it can be: that is the hardest to explain. Must not know how it is searched.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use super::asked::{Ask, Asked};
use super::memory_check::{check_memory, check_proxy};
use crate::agent::Agent;
use crate::client::{Client, ClientCall, ClientOptions};
use crate::fabric::memory::{NodeMemory, Piece, room_for};
use crate::fabric::{Batch, Nanos, NodeId, OpResult, PostError, PostResult, RemoteOp, SessionId};
use crate::machine::{In, Out};
use crate::manager::{Manager, ManagerCall, ManagerOptions};
use crate::proxy::PROXY_POST;
use crate::region::{MemoryNode, PoolLayout, RemoteAddress};
use crate::repairs::Repairs;
use crate::wire::Message;

/// Later than this no run goes on: nobody's deadline is before it but where a set-up says so.
const HORIZON: Nanos = 1 << 40;

/// What is explored.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) layout: PoolLayout,
    pub(super) repairs: Repairs,
    pub(super) quarantine_ns: Nanos,
    pub(super) timeout_ns: Nanos,
    pub(super) cached_keys: usize,
    pub(super) cached_bytes: usize,
    /// Partition 0 has this client as its proxy from the beginning.
    pub(super) proxy: Option<u16>,
    pub(super) rpc_retry_ns: Nanos,
    /// Longer values are in parts of so many units.
    pub(super) part_units: u8,
    /// The manager may be told these, each at any moment and once.
    pub(super) assigns: Vec<ManagerCall>,
    /// Asked before, one after the other, by the client of that number.
    pub(super) before: Vec<(u16, Ask)>,
    /// What each client asks, one after the other.
    pub(super) programs: Vec<Vec<Ask>>,
    /// Clients that may crash, and those that may be suspected, at any moment and once.
    pub(super) crashes: Vec<u16>,
    pub(super) suspects: Vec<u16>,
    /// Memory nodes that may be lost, each at any moment.
    pub(super) losses: Vec<u8>,
    /// So much time may pass at any moment, once for each.
    pub(super) jumps: Vec<Nanos>,
    /// Ticks that may come before everything else is done.
    pub(super) early_ticks: u8,
    /// Memory may be used again in it.
    pub(super) reuses: bool,
    /// Nothing but the history is looked at, to see what callers would.
    pub(super) is_history_all: bool,
}

pub(super) const SMALL: PoolLayout =
    PoolLayout { memory_nodes: 3, copies: 3, partition_bits: 0, groups: 1, block_bytes: 4096, blocks: 3 };

impl Setup {
    pub(super) fn new(before: Vec<(u16, Ask)>, programs: Vec<Vec<Ask>>) -> Setup {
        Setup {
            layout: SMALL,
            repairs: Repairs::ALL,
            quarantine_ns: 1_000_000_000,
            timeout_ns: 2 * HORIZON,
            cached_keys: 0,
            cached_bytes: 1024,
            proxy: None,
            rpc_retry_ns: 4 * HORIZON,
            part_units: u8::MAX,
            assigns: Vec::new(),
            before,
            programs,
            crashes: Vec::new(),
            suspects: Vec::new(),
            losses: Vec::new(),
            jumps: Vec::new(),
            early_ticks: 1,
            reuses: false,
            is_history_all: false,
        }
    }

    fn client_options(&self) -> ClientOptions {
        ClientOptions {
            quarantine_ns: self.quarantine_ns,
            timeout_ns: self.timeout_ns,
            poll_ns: 1_000,
            housekeeping_ns: 4 * HORIZON,
            depth: 4,
            cached_keys: self.cached_keys,
            cached_bytes: self.cached_bytes,
            rpc_retry_ns: self.rpc_retry_ns,
            part_units: self.part_units,
            lease_ns: HORIZON / 4,
        }
    }

    fn fails(&self) -> bool {
        let is_quiet = self.crashes.is_empty() && self.suspects.is_empty() && self.losses.is_empty();
        !(is_quiet && self.assigns.is_empty())
    }
}

/// One step of which the moment is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Begin(NodeId),
    /// Operation of a flight, by its poster, tag and number.
    Execute(NodeId, u64, usize),
    Complete(NodeId, u64),
    Deliver(usize),
    FenceHolds(MemoryNode, SessionId),
    Crash(NodeId),
    Suspect(NodeId),
    /// Whether what was executed and not told is told.
    Lose(MemoryNode, bool),
    Tell(ManagerCall),
    Tick(NodeId),
    Jump,
}

#[derive(Debug, Clone, Hash)]
struct Flight {
    from: NodeId,
    session: SessionId,
    to: MemoryNode,
    tag: u64,
    batch: Batch,
    results: Vec<OpResult>,
    executed: u64,
    error: Option<PostError>,
}

impl Flight {
    fn is_over(&self) -> bool {
        self.error.is_some() || self.executed == (1 << self.batch.len()) - 1
    }

    /// Reads in any order; writes and atomics each after those before it.
    fn can_execute(&self, op: usize) -> bool {
        let is_read = |op: &RemoteOp| matches!(op, RemoteOp::Read(..));
        let open = |at: usize| self.executed >> at & 1 == 0;
        self.error.is_none()
            && open(op)
            && (is_read(&self.batch[op]) || (0..op).all(|at| is_read(&self.batch[at]) || !open(at)))
    }
}

/// What any machine may be told.
enum News {
    Message(Vec<u8>),
    Done(u64, PostResult),
    Tick,
}

impl News {
    fn input<C>(self) -> In<C> {
        match self {
            News::Message(bytes) => In::Message(bytes),
            News::Done(tag, result) => In::Done(tag, result),
            News::Tick => In::Tick,
        }
    }
}

/// Something large that rarely changes, with its hash.
#[derive(Debug)]
struct Part<T> {
    what: Rc<T>,
    hash: u64,
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Part<T> {
        Part { what: Rc::clone(&self.what), hash: self.hash }
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<T: Clone + Hash> Part<T> {
    fn new(what: T) -> Part<T> {
        Part { hash: hash_of(&what), what: Rc::new(what) }
    }

    fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(Rc::make_mut(&mut self.what));
        self.hash = hash_of(&*self.what);
        result
    }
}

#[derive(Debug, Clone)]
pub(super) struct World {
    setup: Rc<Setup>,
    now: Nanos,
    clients: BTreeMap<NodeId, Part<Client>>,
    agents: BTreeMap<NodeId, Part<Agent>>,
    manager: Part<Manager>,
    memories: BTreeMap<MemoryNode, Part<NodeMemory>>,
    fenced: Vec<(MemoryNode, SessionId)>,
    flights: Vec<Rc<Flight>>,
    messages: Vec<(NodeId, Rc<Vec<u8>>)>,
    fences: Vec<(MemoryNode, SessionId, u64)>,
    wakes: Vec<(Nanos, NodeId)>,
    tells: Vec<ManagerCall>,
    asked: Asked,
    crashes: Vec<u16>,
    suspects: Vec<u16>,
    losses: Vec<u8>,
    assigns: Vec<ManagerCall>,
    jumps: Vec<Nanos>,
    early_ticks: u8,
    /// Nothing may fail and no program begins: what is asked before.
    is_before: bool,
    /// Nothing that this node posted is executed.
    held: Option<NodeId>,
}

impl World {
    pub(super) fn new(setup: Setup) -> Result<World, String> {
        let layout = setup.layout;
        let options = setup.client_options();
        let manager = ManagerOptions {
            retry_ns: 2 * HORIZON,
            prepare_ns: 2 * HORIZON,
            lease_ns: HORIZON / 4,
            placement: None,
        };
        let mut world = World {
            now: 1_000_000,
            clients: BTreeMap::new(),
            agents: BTreeMap::new(),
            manager: Part::new(Manager::with_repairs(layout, manager, setup.repairs)),
            memories: BTreeMap::new(),
            fenced: Vec::new(),
            flights: Vec::new(),
            messages: Vec::new(),
            fences: Vec::new(),
            wakes: Vec::new(),
            tells: Vec::new(),
            asked: Asked::new(setup.programs.clone()),
            crashes: setup.crashes.clone(),
            suspects: setup.suspects.clone(),
            losses: setup.losses.clone(),
            assigns: setup.assigns.clone(),
            jumps: setup.jumps.clone(),
            early_ticks: setup.early_ticks,
            is_before: true,
            held: None,
            setup: Rc::new(setup),
        };
        for node in (0..layout.memory_nodes).map(MemoryNode) {
            let mut memory = NodeMemory::default();
            for region in
                layout.regions().filter(|&region| layout.replicas(region).any(|other| other == node))
            {
                memory.export(region, layout.empty_region(region));
            }
            world.memories.insert(node, Part::new(memory));
            world.agents.insert(NodeId::agent(node), Part::new(Agent::new(node, layout, 2 * HORIZON)));
        }
        for number in 0..world.setup.programs.len() as u16 {
            let node = NodeId(number);
            let client =
                Client::with_repairs(node, u64::from(number) + 1, layout, options, world.setup.repairs);
            world.clients.insert(node, Part::new(client));
            world.tell(node, News::Tick);
            world.run_on()?;
        }
        for (number, ask) in world.setup.clone().before.clone() {
            world.ask(NodeId(number), &ask);
            world.run_on()?;
        }
        if let Some(proxy) = world.setup.proxy {
            world.call_manager(ManagerCall::Assign(0, Some(NodeId(proxy))));
            world.run_on()?;
        }
        world.is_before = false;
        Ok(world)
    }

    /// Goes on in one order until nothing is left but what programs and failures bring.
    pub(super) fn run_on(&mut self) -> Result<(), String> {
        let was = std::mem::replace(&mut self.is_before, true);
        self.settle_what_commutes()?;
        while let Some(&choice) = self.choices().first() {
            self.take(choice)?;
            self.settle_what_commutes()?;
        }
        self.is_before = was;
        Ok(())
    }

    /// Begins a node's program, and goes on until its first swap is posted. From then on nothing of it is executed.
    pub(super) fn hold_first_swap(&mut self, node: NodeId) -> Result<(), String> {
        self.take(Choice::Begin(node))?;
        let is_swap = |flight: &Rc<Flight>| matches!(flight.batch[0], RemoteOp::CompareAndSwap(..));
        while !self.flights.iter().any(is_swap) {
            self.settle_what_commutes()?;
            let choice = self.choices().into_iter().find(|choice| matches!(choice, Choice::Execute(..)));
            choice.map_or(Ok(()), |choice| self.take(choice))?;
        }
        self.held = Some(node);
        Ok(())
    }

    pub(super) fn let_go(&mut self) {
        self.held = None;
    }

    /// Asks, whatever the programs say.
    pub(super) fn ask(&mut self, node: NodeId, ask: &Ask) {
        let (id, key, request) = self.asked.begin(node, ask);
        self.call(node, ClientCall { id, key, request });
    }

    pub(super) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.now.hash(&mut hasher);
        self.manager.hash.hash(&mut hasher);
        self.clients.iter().for_each(|(node, client)| (node, client.hash).hash(&mut hasher));
        self.agents.iter().for_each(|(node, agent)| (node, agent.hash).hash(&mut hasher));
        self.memories.iter().for_each(|(node, memory)| (node, memory.hash).hash(&mut hasher));
        // In whatever order they were posted and sent.
        let sum = |hashes: &mut dyn Iterator<Item = u64>| hashes.fold(0u64, u64::wrapping_add);
        sum(&mut self.flights.iter().map(hash_of)).hash(&mut hasher);
        sum(&mut self.messages.iter().map(hash_of)).hash(&mut hasher);
        sum(&mut self.fenced.iter().map(hash_of)).hash(&mut hasher);
        sum(&mut self.fences.iter().map(hash_of)).hash(&mut hasher);
        sum(&mut self.wakes.iter().map(hash_of)).hash(&mut hasher);
        (&self.tells, &self.crashes, &self.suspects, &self.losses, &self.assigns).hash(&mut hasher);
        (&self.jumps, self.early_ticks, &self.asked).hash(&mut hasher);
        hasher.finish()
    }

    fn is_index(&self, at: RemoteAddress) -> bool {
        at.offset < self.blocks_at()
    }

    fn blocks_at(&self) -> u32 {
        self.setup.layout.block_address(crate::region::BlockId { region: 0, number: 0 }).offset
    }

    fn index_at(&self) -> u32 {
        self.setup.layout.table_address(0).offset
    }

    fn may_fail(&self) -> bool {
        !self.is_before && self.setup.fails()
    }

    /// Whether anything may still fail, or has and the manager does not know.
    fn failures_are_left(&self) -> bool {
        let is_up = |number: &u16| self.is_up(NodeId(*number));
        let compute = self.crashes.iter().chain(&self.suspects).any(is_up);
        let told = !self.losses.is_empty() || !self.tells.is_empty() || !self.assigns.is_empty();
        !self.is_before && (compute || told)
    }

    /// Whether somebody's operation on the index is under way, other than the manager's.
    fn index_is_in_use(&self) -> bool {
        let is_ours = |flight: &Flight| !flight.is_over() && self.is_index(flight.batch[0].extent().0);
        self.flights.iter().any(|flight| flight.session != SessionId::OF_THE_POOL && is_ours(flight))
    }

    /// Whether it does not matter when an operation is executed.
    fn commutes(&self, flight: &Flight, op: usize) -> bool {
        let (at, len) = flight.batch[op].extent();
        if flight.from == NodeId::MANAGER {
            // Block tables and bitmaps of who is gone: nobody who works looks at them, and agents' entries are never taken back by them.
            let is_write = matches!(flight.batch[op], RemoteOp::Write(..));
            if at.offset < self.index_at() || is_write && !self.is_index(at) {
                return true;
            }
            // Its own writes for an epoch that it began again are among those that may come late.
            let begins_again = self.setup.losses.len() > 1 && matches!(flight.batch[op], RemoteOp::Write(..));
            return !self.index_is_in_use() && !self.failures_are_left() && !begins_again;
        }
        if flight.session == SessionId::OF_THE_POOL {
            return true;
        }
        match flight.batch[op] {
            // A proxy's: nobody but the manager reads them.
            RemoteOp::Write(..) if self.is_index(at) => !self.may_fail(),
            _ if self.is_index(at) => false,
            // A word may lead there before it is written.
            RemoteOp::Write(..) if !self.setup.repairs.parts_first => false,
            RemoteOp::Write(..) => {
                let memory = self.memories.get(&flight.to).and_then(|memory| memory.what.region(at.region));
                let range = at.offset as usize..at.offset as usize + len;
                memory.and_then(|bytes| bytes.get(range)).is_none_or(|bytes| bytes.iter().all(|&b| b == 0))
            }
            RemoteOp::Read(..) => !self.setup.reuses,
            RemoteOp::CompareAndSwap(..) | RemoteOp::FetchAndAdd(..) => true,
        }
    }

    /// Takes all steps of which the moment does not matter.
    pub(super) fn settle_what_commutes(&mut self) -> Result<(), String> {
        loop {
            let step = self.step_that_commutes();
            match step {
                Some(choice) => self.take(choice)?,
                None => return Ok(()),
            }
        }
    }

    fn step_that_commutes(&self) -> Option<Choice> {
        for flight in self.flights.iter().filter(|flight| self.held != Some(flight.from)) {
            let is_dead = !self.is_up(flight.from);
            if flight.is_over() {
                let is_last = |other: &Rc<Flight>| {
                    other.from == flight.from
                        && other.tag != flight.tag
                        && other.tag >> 16 == flight.tag >> 16
                };
                let is_put_by = self.flights.iter().any(is_last) || flight.tag >> 32 == u64::from(u32::MAX);
                let is_pools = !self.clients.contains_key(&flight.from);
                // A slot is locked until the last of them.
                let is_proxys = flight.tag >> 32 == u64::from(PROXY_POST) && !self.is_before;
                if is_dead || is_put_by || !self.may_fail() && !is_proxys || is_pools {
                    return Some(Choice::Complete(flight.from, flight.tag));
                }
                continue;
            }
            let can = |&op: &usize| flight.can_execute(op) && self.commutes(flight, op);
            // What the dead posted may also never be executed: of no use to anybody, where it commutes.
            if let Some(op) = (0..flight.batch.len()).find(can) {
                return Some(Choice::Execute(flight.from, flight.tag, op));
            }
        }
        for &(at, session, _) in &self.fences {
            let pending = self.flights.iter().any(|flight| (flight.to, flight.session) == (at, session));
            // Who is suspected may post more.
            if !pending && self.setup.suspects.is_empty() {
                return Some(Choice::FenceHolds(at, session));
            }
        }
        let is_choice = |(to, bytes): &&(NodeId, Rc<Vec<u8>>)| {
            let message = Message::decode(bytes).map(|(_, message)| message);
            let is_told = matches!(message, Ok(Message::Prepare { .. } | Message::View { .. }));
            let is_rpc = matches!(message, Ok(Message::Index(_))) && !self.is_before;
            (self.may_fail() && is_told || is_rpc) && self.is_up(*to)
        };
        self.messages.iter().position(|message| !is_choice(&message)).map(Choice::Deliver)
    }

    fn is_up(&self, node: NodeId) -> bool {
        node == NodeId::MANAGER || self.clients.contains_key(&node) || self.agents.contains_key(&node)
    }

    /// All steps of which the moment matters. None: this is the end.
    pub(super) fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for flight in self.flights.iter().filter(|flight| self.held != Some(flight.from)) {
            if flight.is_over() {
                choices.push(Choice::Complete(flight.from, flight.tag));
            }
            let ops = (0..flight.batch.len()).filter(|&op| flight.can_execute(op));
            choices.extend(ops.map(|op| Choice::Execute(flight.from, flight.tag, op)));
        }
        choices.extend((0..self.messages.len()).map(Choice::Deliver));
        choices.extend(self.fences.iter().map(|&(at, session, _)| Choice::FenceHolds(at, session)));
        if !self.is_before {
            self.choices_of_programs(&mut choices);
        }
        let earliest = self.wakes.iter().filter(|(at, _)| *at < HORIZON).min();
        let is_due = earliest.is_some_and(|(at, _)| *at <= self.now);
        if let Some(&(_, node)) = earliest
            && (choices.is_empty() || !self.is_before && (is_due || self.early_ticks > 0))
        {
            choices.push(Choice::Tick(node));
        }
        choices
    }

    fn choices_of_programs(&self, choices: &mut Vec<Choice>) {
        for (&node, client) in &self.clients {
            if self.asked.has_next(node) && !client.what.is_fenced() {
                choices.push(Choice::Begin(node));
            }
        }
        let up = |list: &[u16]| -> Vec<NodeId> {
            list.iter().map(|&number| NodeId(number)).filter(|&node| self.is_up(node)).collect()
        };
        choices.extend(up(&self.crashes).into_iter().map(Choice::Crash));
        choices.extend(up(&self.suspects).into_iter().map(Choice::Suspect));
        for &node in &self.losses {
            let has_untold = self.flights.iter().any(|f| f.to == MemoryNode(node) && f.is_over());
            choices.push(Choice::Lose(MemoryNode(node), true));
            if has_untold {
                choices.push(Choice::Lose(MemoryNode(node), false));
            }
        }
        choices.extend(self.tells.iter().chain(&self.assigns).copied().map(Choice::Tell));
        if !self.jumps.is_empty() && (self.asked.is_waiting() || !self.flights.is_empty()) {
            choices.push(Choice::Jump);
        }
    }

    /// Takes a step.
    pub(super) fn take(&mut self, choice: Choice) -> Result<(), String> {
        match choice {
            Choice::Begin(node) => {
                if let Some((id, key, request)) = self.asked.begin_next(node) {
                    self.call(node, ClientCall { id, key, request });
                }
            }
            Choice::Execute(from, tag, op) => self.execute(from, tag, op),
            Choice::Complete(from, tag) => self.complete(from, tag),
            Choice::Deliver(at) => {
                let (to, bytes) = self.messages.remove(at);
                self.tell(to, News::Message(bytes.to_vec()));
            }
            Choice::FenceHolds(at, session) => self.fence_holds(at, session),
            Choice::Crash(node) => {
                self.crashes.retain(|&other| NodeId(other) != node);
                self.clients.remove(&node);
                self.wakes.retain(|(_, other)| *other != node);
                self.messages.retain(|(to, _)| *to != node);
                self.asked.crashed(node);
                self.tells.push(ManagerCall::Suspect(node));
            }
            Choice::Suspect(node) => {
                self.suspects.retain(|&other| NodeId(other) != node);
                self.call_manager(ManagerCall::Suspect(node));
            }
            Choice::Lose(node, tells) => self.lose(node, tells),
            Choice::Tell(call) => {
                self.tells.retain(|other| *other != call);
                self.assigns.retain(|other| *other != call);
                self.call_manager(call);
            }
            Choice::Tick(node) => {
                let Some(place) = self.wakes.iter().position(|wake| Some(wake) == self.wakes.iter().min())
                else {
                    return Ok(());
                };
                let (at, _) = self.wakes.remove(place);
                let is_only = self.choices().is_empty();
                if at > self.now && !is_only {
                    self.early_ticks = self.early_ticks.saturating_sub(1);
                }
                self.now = self.now.max(at);
                self.tell(node, News::Tick);
            }
            Choice::Jump => self.now += self.jumps.pop().unwrap_or(0),
        }
        self.asked.wrong()
    }

    fn flight(&mut self, from: NodeId, tag: u64) -> Option<usize> {
        self.flights.iter().position(|flight| (flight.from, flight.tag) == (from, tag))
    }

    fn execute(&mut self, from: NodeId, tag: u64, op: usize) {
        let Some(at) = self.flight(from, tag) else { return };
        let flight = Rc::make_mut(&mut self.flights[at]);
        if self.fenced.contains(&(flight.to, flight.session)) {
            flight.error = Some(PostError::Fenced);
        } else if let Some(memory) = self.memories.get_mut(&flight.to) {
            flight.executed |= 1 << op;
            let (operation, result) = (&flight.batch[op], &mut flight.results[op]);
            match operation {
                RemoteOp::Read(from, len) => {
                    let start = from.offset as usize;
                    let bytes =
                        memory.what.region(from.region).and_then(|b| b.get(start..start + *len as usize));
                    *result = OpResult::Bytes(bytes.unwrap_or_default().to_vec());
                }
                _ => memory.change(|memory| memory.execute(operation, Piece::whole(operation), result)),
            }
        } else {
            flight.error = Some(PostError::Lost);
        }
    }

    fn complete(&mut self, from: NodeId, tag: u64) {
        let Some(at) = self.flight(from, tag) else { return };
        let flight = self.flights.remove(at);
        let result = flight.error.map_or_else(|| Ok(flight.results.clone()), Err);
        self.tell(from, News::Done(tag, result));
    }

    fn fence_holds(&mut self, at: MemoryNode, session: SessionId) {
        let Some(place) = self.fences.iter().position(|fence| (fence.0, fence.1) == (at, session)) else {
            return;
        };
        let (.., tag) = self.fences.remove(place);
        if !self.fenced.contains(&(at, session)) {
            self.fenced.push((at, session));
        }
        for flight in self.flights.iter_mut().filter(|f| (f.to, f.session) == (at, session) && !f.is_over()) {
            Rc::make_mut(flight).error = Some(PostError::Fenced);
        }
        self.tell(NodeId::agent(at), News::Done(tag, Ok(Vec::new())));
    }

    fn lose(&mut self, node: MemoryNode, tells: bool) {
        self.losses.retain(|&other| MemoryNode(other) != node);
        self.memories.remove(&node);
        self.agents.remove(&NodeId::agent(node));
        self.messages.retain(|(to, _)| *to != NodeId::agent(node));
        self.fences.retain(|(at, ..)| *at != node);
        for flight in self.flights.iter_mut().filter(|flight| flight.to == node) {
            if !(flight.is_over() && tells) {
                Rc::make_mut(flight).error = Some(PostError::Lost);
            }
        }
        self.tells.push(ManagerCall::MemoryLost(node));
    }

    fn call(&mut self, node: NodeId, call: ClientCall) {
        self.feed_client(node, In::Call(call));
    }

    fn call_manager(&mut self, call: ManagerCall) {
        self.feed_manager(In::Call(call));
    }

    fn tell(&mut self, node: NodeId, news: News) {
        if node == NodeId::MANAGER {
            self.feed_manager(news.input());
        } else if let (Some(agent), now) = (self.agents.get_mut(&node), self.now) {
            let mut out = Vec::new();
            agent.change(|agent| agent.on(now, news.input(), &mut out));
            out.into_iter().for_each(|one| self.carry_out(node, one));
        } else {
            self.feed_client(node, news.input());
        }
    }

    fn feed_manager(&mut self, input: In<ManagerCall>) {
        let (mut out, now) = (Vec::new(), self.now);
        self.manager.change(|manager| manager.on(now, input, &mut out));
        out.into_iter().for_each(|one| self.carry_out(NodeId::MANAGER, one));
    }

    fn feed_client(&mut self, node: NodeId, input: In<ClientCall>) {
        let (mut out, now) = (Vec::new(), self.now);
        let Some(client) = self.clients.get_mut(&node) else { return };
        client.change(|client| client.on(now, input, &mut out));
        for one in out {
            match one {
                Out::Answer(answer) => self.asked.answered(node, answer),
                other => self.carry_out(node, other),
            }
        }
    }

    fn carry_out<A>(&mut self, node: NodeId, one: Out<A>) {
        match one {
            Out::Post { session, to, batch, tag } => {
                let results = batch.iter().map(room_for).collect();
                let error = (!self.memories.contains_key(&to)).then_some(PostError::Lost);
                let flight = Flight { from: node, session, to, tag, batch, results, executed: 0, error };
                self.flights.push(Rc::new(flight));
            }
            Out::Send { to, bytes } => self.messages.push((to, Rc::new(bytes))),
            Out::At(at) => self.wakes.push((at, node)),
            Out::Fence { session, tag } => {
                if let Some(at) = node.as_memory_node() {
                    self.fences.push((at, session, tag));
                }
            }
            Out::Answer(_) => {}
        }
    }

    /// What must hold once nothing is left to happen, after everybody has read everything once more.
    pub(super) fn check_end(&mut self) -> Result<(), String> {
        if self.setup.part_units < u8::MAX && !self.setup.is_history_all {
            // For parts that are not whole somebody would wait.
            self.check_memory()?;
        }
        let readers: Vec<NodeId> = self
            .clients
            .iter()
            .filter(|(_, client)| !client.what.is_fenced())
            .map(|(&node, _)| node)
            .collect();
        for node in readers {
            for key in self.asked.keys() {
                self.ask(node, &Ask::Get(key));
                self.run_on()?;
            }
        }
        self.asked.check()?;
        if self.setup.is_history_all { Ok(()) } else { self.check_memory() }
    }

    fn check_memory(&self) -> Result<(), String> {
        let counts = self.clients.values().map(|client| client.what.counters().anomalies);
        match counts.sum::<u64>() + self.manager.what.counters().anomalies {
            0 => {}
            count => return Err(format!("{count} anomalies")),
        }
        let is_member = |client: &&Part<Client>| {
            client.what.session().is_some_and(|session| self.manager.what.has_session(session))
        };
        let members: Vec<_> = self.clients.values().filter(is_member).collect();
        let slabs: Vec<_> = members.iter().map(|client| client.what.slab()).collect();
        let memory = |node: MemoryNode, region: u16| self.memories.get(&node)?.what.region(region);
        for client in &members {
            check_proxy(&self.setup.layout, self.manager.what.living(), memory, &client.what)?;
        }
        check_memory(&self.setup.layout, self.manager.what.living(), memory, &slabs)
    }
}
