//! A fabric in virtual time: memory nodes, links and clocks, all from one seed.
//!
//! Owns the order of events. Promises the contract of [`Fabric`] and nothing beyond it: what the contract leaves open happens, by chance. The same seed with the
//! same calls gives the same events, to the byte. Must not know what is stored or said.
//!
//! Each batch that is posted becomes a *flight*. Its operations are executed at times of their own, long ones in pieces, and its completion comes later. A compute
//! node that crashes leaves its flights behind: some are cut short, some go on, some of those late. A memory node that crashes executes nothing more, and of what it executed it may
//! not have told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hedgerow_device::Random;

use super::memory::{self, NodeMemory, Piece};
use super::nic::NicModel;
use super::{
    Batch, Fabric, FabricEvent, Nanos, NodeId, OpResult, PostError, PostResult, RemoteOp, SessionId,
};
use crate::region::MemoryNode;

/// What happens by chance, and how often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimOptions {
    /// What operations cost, if that is modelled.
    pub nic: Option<NicModel>,
    /// Each way takes up to so long, by chance.
    pub delay_ns: Nanos,
    /// One way in so many takes up to `spike_ns` more; 0: none does.
    pub spike_one_in: u64,
    /// See `spike_one_in`.
    pub spike_ns: Nanos,
    /// One datagram in so many is lost; 0: none is.
    pub drop_one_in: u64,
    /// One datagram in so many comes twice; 0: none does.
    pub double_one_in: u64,
    /// Whether long accesses are executed in pieces.
    pub tears: bool,
    /// Clocks run up to so many parts in a million too quick or too slow.
    pub drift_ppm: u64,
    /// A post to a memory node that is gone fails after so long.
    pub lost_after_ns: Nanos,
}

impl SimOptions {
    /// Everything that may go wrong, often.
    pub const CHAOS: SimOptions = SimOptions {
        nic: None,
        delay_ns: 2_000,
        spike_one_in: 40,
        spike_ns: 60_000,
        drop_one_in: 15,
        double_one_in: 15,
        tears: true,
        drift_ppm: 20_000,
        lost_after_ns: 40_000,
    };

    /// Nothing goes wrong, and operations cost what the model says.
    pub fn modelled(nic: NicModel) -> SimOptions {
        SimOptions {
            nic: Some(nic),
            delay_ns: 0,
            spike_one_in: 0,
            spike_ns: 0,
            drop_one_in: 0,
            double_one_in: 0,
            tears: false,
            drift_ppm: 0,
            lost_after_ns: 1_000_000,
        }
    }
}

/// What the simulation tells a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SimEvent {
    /// As the fabric would.
    Fabric(FabricEvent),
    /// The time has come for which [`SimFabric::wake`] asked.
    Woken,
}

/// Counts of what went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimCounters {
    /// Batches posted.
    pub batches: u64,
    /// Operations posted, and those of them that are atomic.
    pub operations: u64,
    /// See `operations`.
    pub atomics: u64,
    /// Bytes that operations read, write or compare, without headers.
    pub bytes: u64,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Operations executed.
    pub executed: u64,
    /// Operations refused for a fence.
    pub refused: u64,
    /// Accesses executed in pieces.
    pub torn: u64,
    /// Operations executed after their poster crashed.
    pub posthumous: u64,
    /// Datagrams lost and doubled.
    pub dropped: u64,
    /// See `dropped`.
    pub doubled: u64,
}

#[derive(Debug, Clone)]
enum Event {
    Execute { flight: u64, op: usize, piece: Piece },
    Complete { flight: u64 },
    Arrive { to: NodeId, bytes: Vec<u8> },
    Fence { at: MemoryNode, session: SessionId, tag: u64 },
    Deliver { to: NodeId, life: u32, event: SimEvent },
}

#[derive(Debug, Clone)]
struct Flight {
    from: NodeId,
    life: u32,
    session: SessionId,
    to: MemoryNode,
    tag: u64,
    batch: Batch,
    results: Vec<OpResult>,
    error: Option<PostError>,
    /// Operations from this one on never left the node, which crashed.
    cut: usize,
}

#[derive(Debug, Clone, Default)]
struct NodeState {
    /// Grows with each crash: what was meant for an earlier life is not delivered.
    life: u32,
    is_up: bool,
    /// Parts in a million that the clock is too quick, plus a million.
    rate: u64,
    issue_free_at: Nanos,
    /// Of each thread that handles datagrams, as the cost model says.
    handlers_free_at: Vec<Nanos>,
    inbox: VecDeque<FabricEvent>,
}

#[derive(Debug, Clone, Default)]
struct MemoryState {
    is_up: bool,
    memory: NodeMemory,
    fenced: BTreeSet<SessionId>,
    access_free_at: Nanos,
    atomic_free_at: Nanos,
}

/// All nodes and what is between them.
#[derive(Debug, Clone)]
pub struct SimFabric {
    options: SimOptions,
    random: Random,
    now: Nanos,
    events: BTreeMap<(Nanos, u64), Event>,
    next_event: u64,
    flights: BTreeMap<u64, Flight>,
    next_flight: u64,
    nodes: BTreeMap<NodeId, NodeState>,
    memories: BTreeMap<MemoryNode, MemoryState>,
    counters: SimCounters,
    trace: u64,
    recorded: Option<Vec<u8>>,
}

impl SimFabric {
    /// A fabric without nodes.
    pub fn new(options: SimOptions, seed: u64) -> SimFabric {
        SimFabric {
            options,
            random: Random::from_seed(seed),
            now: 0,
            events: BTreeMap::new(),
            next_event: 0,
            flights: BTreeMap::new(),
            next_flight: 0,
            nodes: BTreeMap::new(),
            memories: BTreeMap::new(),
            counters: SimCounters::default(),
            trace: 0xCBF2_9CE4_8422_2325,
            recorded: None,
        }
    }

    /// Keeps the bytes of all that is delivered from now on, for [`recorded`](SimFabric::recorded).
    pub fn record(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// All that was delivered, as bytes.
    pub fn recorded(&self) -> &[u8] {
        self.recorded.as_deref().unwrap_or_default()
    }

    /// A hash of all that was delivered.
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// What went on.
    pub fn counters(&self) -> SimCounters {
        self.counters
    }

    /// The time that no node knows.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The time by a node's own clock.
    pub fn local_now(&self, node: NodeId) -> Nanos {
        let rate = self.nodes.get(&node).map_or(1_000_000, |node| node.rate);
        (u128::from(self.now) * u128::from(rate) / 1_000_000) as Nanos
    }

    /// Adds a node, or starts one again that crashed.
    pub fn start(&mut self, node: NodeId) {
        let drift = self.options.drift_ppm;
        let rate = 1_000_000 - drift + self.random.below(2 * drift + 1);
        let state = self.nodes.entry(node).or_default();
        state.is_up = true;
        if state.rate == 0 {
            state.rate = rate;
        }
    }

    /// Adds a region to a memory node, and the node if it is new.
    pub fn export(&mut self, node: MemoryNode, region: u16, bytes: Vec<u8>) {
        let state = self.memories.entry(node).or_default();
        state.is_up = true;
        state.memory.export(region, bytes);
    }

    /// The memory of a region, to look at in tests.
    pub fn memory(&self, node: MemoryNode, region: u16) -> Option<&[u8]> {
        self.memories.get(&node)?.memory.region(region)
    }

    /// A compute node stops. What it posted may still be executed, in part, and late.
    pub fn crash_compute(&mut self, node: NodeId) {
        let state = self.nodes.entry(node).or_default();
        state.is_up = false;
        state.life += 1;
        state.inbox.clear();
        let flights: Vec<u64> =
            self.flights.iter().filter(|(_, flight)| flight.from == node).map(|(&id, _)| id).collect();
        for id in flights {
            let (choice, late) = (self.random.below(4), self.random.below(self.options.spike_ns * 4 + 1));
            let Some(flight) = self.flights.get_mut(&id) else { continue };
            match choice {
                0 => flight.cut = self.random.below(flight.batch.len() as u64 + 1) as usize,
                1 => self.delay_flight(id, late),
                _ => {}
            }
        }
    }

    /// A memory node stops, and what it holds is gone.
    pub fn crash_memory(&mut self, node: MemoryNode) {
        let agent = self.nodes.entry(NodeId::agent(node)).or_default();
        agent.is_up = false;
        agent.life += 1;
        if let Some(memory) = self.memories.get_mut(&node) {
            memory.is_up = false;
        }
        for flight in self.flights.values_mut().filter(|flight| flight.to == node) {
            // It may have executed everything and told nobody.
            if self.random.below(2) == 0 {
                flight.error = Some(PostError::Lost);
            }
        }
    }

    /// Wakes a node at a time of its own clock.
    pub fn wake(&mut self, node: NodeId, at: Nanos) {
        let state = self.nodes.entry(node).or_default();
        let (life, rate) = (state.life, state.rate.max(1));
        let at = (u128::from(at) * 1_000_000).div_ceil(u128::from(rate)) as Nanos;
        self.schedule(at, Event::Deliver { to: node, life, event: SimEvent::Woken });
    }

    fn schedule(&mut self, at: Nanos, event: Event) {
        self.events.insert((at.max(self.now), self.next_event), event);
        self.next_event += 1;
    }

    /// Puts off all that is still to come of a flight.
    fn delay_flight(&mut self, id: u64, by: Nanos) {
        let is_of = |event: &Event| match event {
            Event::Execute { flight, .. } | Event::Complete { flight } => *flight == id,
            _ => false,
        };
        let keys: Vec<_> =
            self.events.iter().filter(|(_, event)| is_of(event)).map(|(&key, _)| key).collect();
        for (at, number) in keys {
            if let Some(event) = self.events.remove(&(at, number)) {
                self.events.insert((at + by, number), event);
            }
        }
    }

    fn delay(&mut self) -> Nanos {
        let options = self.options;
        let mut delay = self.random.below(options.delay_ns + 1);
        if options.spike_one_in > 0 && self.random.below(options.spike_one_in) == 0 {
            delay += self.random.below(options.spike_ns + 1);
        }
        delay
    }

    /// Posts a batch for a node. See [`Fabric::post`].
    pub fn post(&mut self, from: NodeId, session: SessionId, to: MemoryNode, batch: Batch, tag: u64) {
        let id = self.next_flight;
        self.next_flight += 1;
        self.counters.batches += 1;
        self.counters.operations += batch.len() as u64;
        self.counters.atomics += batch.iter().filter(|op| op.is_atomic()).count() as u64;
        self.counters.bytes += batch.iter().map(|op| op.extent().1 as u64).sum::<u64>();
        let life = self.nodes.entry(from).or_default().life;
        let memory = self.memories.get(&to);
        let fits = memory.is_none_or(|memory| memory.memory.has_all(&batch));
        let error = if memory.is_none() {
            Some(PostError::Lost)
        } else if fits {
            None
        } else {
            Some(PostError::OutOfBounds)
        };
        let done_at = match (error, self.options.nic) {
            (Some(_), _) => self.now + self.options.lost_after_ns,
            (None, Some(nic)) => self.plan_modelled(id, from, to, &batch, nic),
            (None, None) => self.plan_chaos(id, &batch),
        };
        let results = batch.iter().map(memory::room_for).collect();
        let cut = batch.len();
        self.flights.insert(id, Flight { from, life, session, to, tag, batch, results, error, cut });
        self.schedule(done_at, Event::Complete { flight: id });
    }

    /// Times by chance; writes and atomics in order.
    fn plan_chaos(&mut self, flight: u64, batch: &Batch) -> Nanos {
        let (mut in_order, mut last) = (self.now + self.delay(), self.now);
        for (op, operation) in batch.iter().enumerate() {
            let pieces = match self.options.tears {
                true => Piece::by_chance(operation, &mut self.random),
                false => vec![Piece::whole(operation)],
            };
            self.counters.torn += u64::from(pieces.len() > 1);
            let is_read = matches!(operation, RemoteOp::Read(..));
            let from = if is_read { self.now + self.delay() } else { in_order };
            let mut until = from;
            for piece in pieces {
                let at = from + self.delay();
                until = until.max(at);
                self.schedule(at, Event::Execute { flight, op, piece });
            }
            if !is_read {
                in_order = until;
            }
            last = last.max(until);
        }
        last + self.delay()
    }

    /// Times by the cost model.
    fn plan_modelled(
        &mut self,
        flight: u64,
        from: NodeId,
        to: MemoryNode,
        batch: &Batch,
        nic: NicModel,
    ) -> Nanos {
        let node = self.nodes.entry(from).or_default();
        node.issue_free_at = node.issue_free_at.max(self.now) + nic.issue_ns * batch.len() as u64;
        let arrives = node.issue_free_at + nic.one_way_ns;
        let mut times = Vec::with_capacity(batch.len());
        let memory = self.memories.entry(to).or_default();
        let mut last = arrives;
        for operation in batch {
            let is_atomic = operation.is_atomic();
            let free_at = if is_atomic { &mut memory.atomic_free_at } else { &mut memory.access_free_at };
            *free_at = (*free_at).max(last) + nic.service_ns(operation.extent().1, is_atomic);
            last = *free_at;
            times.push(last);
        }
        for (op, (at, operation)) in times.into_iter().zip(batch).enumerate() {
            self.schedule(at, Event::Execute { flight, op, piece: Piece::whole(operation) });
        }
        last + nic.one_way_ns
    }

    /// When a datagram of so many bytes that is sent now is handled by the cost model, which takes the time of the node that handles it: now, without a model. What a node sends to itself has no way.
    pub fn handled_at(&mut self, from: NodeId, to: NodeId, bytes: usize) -> Nanos {
        let Some(nic) = self.options.nic else { return self.now };
        let handling = nic.datagram_ns / 2;
        let way = nic.datagram_ns - handling + nic.one_way_ns + nic.bytes_ns(bytes);
        let arrives = self.now + if from == to { 0 } else { way };
        let handlers = &mut self.nodes.entry(to).or_default().handlers_free_at;
        if handlers.len() < nic.handler_threads {
            handlers.push(arrives + handling);
            return arrives + handling;
        }
        match handlers.iter_mut().min() {
            Some(free_at) => {
                *free_at = arrives.max(*free_at) + handling;
                *free_at
            }
            None => arrives + handling,
        }
    }

    /// Sends a datagram. See [`Fabric::send`].
    pub fn send(&mut self, from: NodeId, to: NodeId, bytes: Vec<u8>) {
        let options = self.options;
        self.counters.datagrams += 1;
        if options.drop_one_in > 0 && self.random.below(options.drop_one_in) == 0 {
            self.counters.dropped += 1;
            return;
        }
        let handled_at = self.handled_at(from, to, bytes.len());
        if options.double_one_in > 0 && self.random.below(options.double_one_in) == 0 {
            self.counters.doubled += 1;
            let at = handled_at + self.delay() + self.random.below(options.spike_ns + 1);
            self.schedule(at, Event::Arrive { to, bytes: bytes.clone() });
        }
        let at = handled_at + self.delay();
        self.schedule(at, Event::Arrive { to, bytes });
    }

    /// Fences a session at a memory node. See [`Fabric::fence`].
    pub fn fence(&mut self, at: MemoryNode, session: SessionId, tag: u64) {
        let when = self.now + self.delay();
        self.schedule(when, Event::Fence { at, session, tag });
    }

    /// Goes on until a node is to be told something; none once nothing is left to happen.
    pub fn step(&mut self) -> Option<(NodeId, SimEvent)> {
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = self.now.max(at);
            match event {
                Event::Execute { flight, op, piece } => self.execute(flight, op, piece),
                Event::Complete { flight } => self.complete(flight),
                Event::Arrive { to, bytes } => {
                    let life = self.nodes.get(&to).map_or(0, |node| node.life);
                    let event = SimEvent::Fabric(FabricEvent::Received(bytes));
                    self.schedule(self.now, Event::Deliver { to, life, event });
                }
                Event::Fence { at, session, tag } => self.fence_now(at, session, tag),
                Event::Deliver { to, life, event } => {
                    let is_there = self.nodes.get(&to).is_some_and(|node| node.is_up && node.life == life);
                    if is_there {
                        self.trace_event(to, &event);
                        return Some((to, event));
                    }
                }
            }
        }
        None
    }

    fn execute(&mut self, id: u64, op: usize, piece: Piece) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let Some(memory) = self.memories.get_mut(&flight.to) else { return };
        if op >= flight.cut {
            return;
        }
        if !memory.is_up {
            flight.error = Some(PostError::Lost);
        } else if memory.fenced.contains(&flight.session) {
            flight.error = Some(PostError::Fenced);
            self.counters.refused += 1;
        } else {
            let poster = self.nodes.get(&flight.from).map_or(0, |node| node.life);
            self.counters.posthumous += u64::from(poster != flight.life);
            self.counters.executed += 1;
            memory.memory.execute(&flight.batch[op], piece, &mut flight.results[op]);
        }
    }

    fn complete(&mut self, id: u64) {
        let Some(flight) = self.flights.remove(&id) else { return };
        let result: PostResult = match flight.error {
            Some(error) => Err(error),
            None => Ok(flight.results),
        };
        let is_lost = result == Err(PostError::Lost) && self.memories.contains_key(&flight.to);
        let at = if is_lost { self.now + self.options.lost_after_ns } else { self.now };
        let event = SimEvent::Fabric(FabricEvent::Done(flight.tag, result));
        self.schedule(at, Event::Deliver { to: flight.from, life: flight.life, event });
    }

    fn fence_now(&mut self, at: MemoryNode, session: SessionId, tag: u64) {
        let Some(memory) = self.memories.get_mut(&at) else { return };
        memory.fenced.insert(session);
        let to = NodeId::agent(at);
        let life = self.nodes.get(&to).map_or(0, |node| node.life);
        let when = self.now + self.delay();
        let event = SimEvent::Fabric(FabricEvent::Done(tag, Ok(Vec::new())));
        self.schedule(when, Event::Deliver { to, life, event });
    }

    fn trace_event(&mut self, to: NodeId, event: &SimEvent) {
        let mut bytes = self.now.to_le_bytes().to_vec();
        bytes.extend_from_slice(&to.0.to_le_bytes());
        match event {
            SimEvent::Woken => bytes.push(0),
            SimEvent::Fabric(FabricEvent::Received(datagram)) => {
                bytes.push(1);
                bytes.extend_from_slice(datagram);
            }
            SimEvent::Fabric(FabricEvent::Done(tag, result)) => {
                bytes.push(2);
                bytes.extend_from_slice(&tag.to_le_bytes());
                memory::result_bytes(result, &mut bytes);
            }
        }
        // FNV-1a.
        for &byte in &bytes {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.extend_from_slice(&bytes);
        }
    }

    /// A node's own end of the fabric.
    pub fn port(&mut self, node: NodeId) -> SimPort<'_> {
        SimPort { fabric: self, node }
    }
}

/// One node's [`Fabric`]. Polling makes time go on.
#[derive(Debug)]
pub struct SimPort<'f> {
    fabric: &'f mut SimFabric,
    node: NodeId,
}

impl Fabric for SimPort<'_> {
    fn post(&mut self, session: SessionId, to: MemoryNode, batch: Batch, tag: u64) {
        self.fabric.post(self.node, session, to, batch, tag);
    }

    fn send(&mut self, to: NodeId, bytes: Vec<u8>) {
        self.fabric.send(self.node, to, bytes);
    }

    fn fence(&mut self, session: SessionId, tag: u64) {
        if let Some(node) = self.node.as_memory_node() {
            self.fabric.fence(node, session, tag);
        }
    }

    fn poll(&mut self) -> Option<FabricEvent> {
        loop {
            if let Some(event) = self.fabric.nodes.get_mut(&self.node).and_then(|node| node.inbox.pop_front())
            {
                return Some(event);
            }
            let (to, event) = self.fabric.step()?;
            if let SimEvent::Fabric(event) = event {
                self.fabric.nodes.entry(to).or_default().inbox.push_back(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_handles_as_many_datagrams_at_once_as_it_has_threads() {
        let (one, other) = (NodeId(1), NodeId(2));
        let nic =
            NicModel { one_way_ns: 10, datagram_ns: 8, link_bytes_per_us: 1_000, ..NicModel::CONNECTX3 };
        let handled = |nic: NicModel, from| {
            let mut fabric = SimFabric::new(SimOptions::modelled(nic), 1);
            [(); 5].map(|()| fabric.handled_at(from, other, 6))
        };
        // Half at the sender, the way, 6 bytes, and half at one of two threads.
        assert_eq!(handled(nic, one), [24, 24, 28, 28, 32]);
        assert_eq!(handled(nic, other), [4, 4, 8, 8, 12], "no way to itself");
        assert_eq!(handled(NicModel { handler_threads: 0, ..nic }, one), [24; 5]);
        let mut fabric = SimFabric::new(SimOptions::modelled(nic), 1);
        fabric.start(other);
        (0..3).for_each(|_| fabric.send(one, other, vec![0; 6]));
        let mut arrived = Vec::new();
        while fabric.step().is_some() {
            arrived.push(fabric.now());
        }
        assert_eq!(arrived, [24, 24, 28]);
    }
}
