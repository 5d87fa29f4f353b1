//! The manager's process: whom it lets in, whom it watches, and what it tells the pool's manager.
//!
//! Owns the control address of a pool, the numbers of its nodes, and their leases. Promises that a memory node is called lost only once its lease is over, that a number of a compute node is given once, that the book of
//! nodes is told to all whenever it changes, and that what anybody sends neither makes it panic nor grow without bound. Must not know how an epoch follows another.
//!
//! One thread has all of it, together with the machine of the manager: it looks at its callers every [`LOOK_NS`], or when it has nothing else to do. Who is not answered has no lease, so that a manager that stands still ends
//! the pool's memory: nobody else knows what its configuration is.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use hedgerow_device::Clock;

use super::control::{
    BookEntry, COMPUTE_NODES_EVER, CONTROL_VERSION, ControlFrame, JoinRefusal, NodeStatus, PoolNodeState,
    PoolRole, PoolState, PoolStatus, Welcome,
};
use super::lease::GrantedLease;
use super::plan::{COMPUTE_NODES_MAX, PoolPlan, fabric_options};
use super::stream::ControlStream;
use crate::fabric::tcp::TcpFabric;
use crate::fabric::{Nanos, NodeId};
use crate::manager::{Manager, ManagerCall};
use crate::node::NodeDriver;
use crate::region::{MemoryNode, NodeSet};

/// Between two looks at the callers.
const LOOK_NS: Nanos = 10_000_000;
/// Callers who have not joined, at most, and for how long they may stay without saying anything that counts.
const STRANGERS_MAX: usize = 64;
const STRANGER_NS: Nanos = 2_000_000_000;
/// Who is refused may read why for so long.
const LINGER_NS: Nanos = 200_000_000;
/// Frames of one caller at once.
const FRAMES_A_LOOK: usize = 16;
/// Compute nodes that are gone and still told of by status.
const GONE_KEPT: usize = 32;

/// Who dialed the control address.
#[derive(Debug)]
struct Caller {
    stream: ControlStream,
    node: Option<NodeId>,
    /// When it must be gone, if it has not joined.
    ends_at: Nanos,
    is_refused: bool,
}

/// A node's place.
#[derive(Debug)]
struct Seat {
    state: PoolNodeState,
    address: Option<SocketAddr>,
    life: u64,
    lease: GrantedLease,
}

/// The manager of a pool of processes. Whoever has it calls [`step`](PoolManager::step) again and again.
#[derive(Debug)]
pub struct PoolManager {
    driver: NodeDriver<Manager>,
    own: BookEntry,
    plan: PoolPlan,
    clock: Clock,
    listener: TcpListener,
    callers: Vec<Caller>,
    seats: BTreeMap<NodeId, Seat>,
    next_compute: u16,
    state: PoolState,
    living: NodeSet,
    looks_at: Nanos,
    is_book_new: bool,
}

impl PoolManager {
    /// The manager of a new pool, at its control address and at one for the fabric; port 0 is one that the system chooses.
    ///
    /// # Errors
    /// What the system says of an address, or that the fabric's is none that others can be told.
    pub fn listen(control: SocketAddr, fabric: SocketAddr, plan: PoolPlan) -> io::Result<PoolManager> {
        if fabric.ip().is_unspecified() {
            let why = "others must be told one address at which the manager can be reached";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let listener = TcpListener::bind(control)?;
        listener.set_nonblocking(true)?;
        let fabric = TcpFabric::bind(NodeId::MANAGER, 0, fabric, fabric_options())?;
        let own = BookEntry { node: NodeId::MANAGER, address: fabric.address()?, life: 0 };
        let plan = PoolPlan { compute_nodes_max: plan.compute_nodes_max.clamp(1, COMPUTE_NODES_MAX), ..plan };
        Ok(PoolManager {
            driver: NodeDriver::new(Manager::new(plan.layout, plan.manager), fabric),
            own,
            plan,
            clock: Clock::system(),
            listener,
            callers: Vec::new(),
            seats: BTreeMap::new(),
            next_compute: 0,
            state: PoolState::Waiting,
            living: NodeSet::first(plan.layout.memory_nodes),
            looks_at: 0,
            is_book_new: false,
        })
    }

    /// Where nodes join: the pool's address.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Goes on, or waits for `at_most`, but no longer than until callers are to be looked at.
    pub fn step(&mut self, at_most: Duration) {
        self.driver.step(at_most.min(Duration::from_nanos(LOOK_NS)));
        let now = self.clock.monotonic_ns();
        if now >= self.looks_at {
            self.looks_at = now.saturating_add(LOOK_NS);
            self.look(now);
        }
    }

    /// Has a partition get a proxy, or lose it.
    pub fn assign(&mut self, partition: u16, node: Option<NodeId>) {
        self.driver.call(ManagerCall::Assign(partition, node));
    }

    /// How the pool is.
    pub fn status(&self) -> PoolStatus {
        let manager = self.driver.machine();
        let (epoch, is_changing) = manager.epoch();
        let proxies = manager.proxies();
        let own = NodeStatus {
            node: self.own.node,
            state: PoolNodeState::Living,
            address: Some(self.own.address),
            life: 0,
            proxied: 0,
        };
        let seat = |(&node, seat): (&NodeId, &Seat)| NodeStatus {
            node,
            state: seat.state,
            address: seat.address,
            life: seat.life,
            proxied: proxies.nodes.get(&node).map_or(0, |&partitions| partitions.min(255) as u8),
        };
        let is_memory = |node: &NodeStatus| node.node.as_memory_node().is_some();
        let (memory, compute): (Vec<_>, Vec<_>) = self.seats.iter().map(seat).partition(is_memory);
        PoolStatus {
            state: self.state,
            epoch,
            is_changing,
            sessions: manager.sessions() as u32,
            layout: self.plan.layout,
            share: proxies.share,
            reassignments: proxies.counters.reassignments as u32,
            nodes: std::iter::once(own).chain(memory).chain(compute).collect(),
        }
    }

    /// `now` is when it began, which may be long ago where this process stood still meanwhile. Whoever is called late or lost by that time is so by any later one; leases are granted by the time of
    /// [`answer`](PoolManager::answer) alone.
    fn look(&mut self, now: Nanos) {
        self.accept(now);
        for at in 0..self.callers.len() {
            self.hear(now, at);
        }
        for caller in self.callers.extract_if(.., |caller| caller.is_gone(now)) {
            let Some(node) = caller.node else { continue };
            // Nothing is said of a memory node whose connection ended: it may serve until its lease is over. Before the pool begins nobody was told of it, and another one can have its place.
            if node.as_memory_node().is_none() {
                leave(&mut self.seats, node, &mut self.driver);
            } else if self.state == PoolState::Waiting {
                self.seats.remove(&node);
            }
        }
        self.end_leases(now);
        self.begin_if_all_are_there();
        self.forget_the_long_gone();
        if std::mem::take(&mut self.is_book_new) {
            self.tell_all();
        }
    }

    fn accept(&mut self, now: Nanos) {
        for _ in 0..STRANGERS_MAX {
            // Where it fails nobody is left, or no sockets are: the next look is another attempt.
            let Ok((stream, _)) = self.listener.accept() else { return };
            let strangers = self.callers.iter().filter(|caller| caller.node.is_none()).count();
            if strangers < STRANGERS_MAX && stream.set_nonblocking(true).is_ok() {
                let (stream, ends_at) = (ControlStream::new(stream), now.saturating_add(STRANGER_NS));
                self.callers.push(Caller { stream, node: None, ends_at, is_refused: false });
            }
        }
    }

    /// Takes in what a caller says.
    fn hear(&mut self, now: Nanos, at: usize) {
        let caller = &mut self.callers[at];
        caller.stream.flush();
        caller.stream.fill();
        for _ in 0..FRAMES_A_LOOK {
            let caller = &mut self.callers[at];
            if caller.is_refused {
                return;
            }
            let answer = match caller.stream.next() {
                Ok(None) => return,
                // It is no frame, so whoever said it may not understand why.
                Err(_) => return caller.stream.end(),
                Ok(Some(frame)) => self.answer(at, frame),
            };
            let caller = &mut self.callers[at];
            match answer {
                Ok(Some(frame)) => caller.stream.say(&frame),
                Ok(None) => {}
                Err(refusal) => caller.refuse(now, refusal),
            }
        }
    }

    fn answer(&mut self, at: usize, frame: ControlFrame) -> Result<Option<ControlFrame>, JoinRefusal> {
        // After the frame was taken, and so after it was sent: a lease that was granted by an earlier time could end here before it ends for its holder.
        let now = self.clock.monotonic_ns();
        let node = self.callers[at].node;
        let seat = node.and_then(|node| self.seats.get_mut(&node));
        match (node, seat, frame) {
            (None, _, ControlFrame::Foreign(_)) => Err(JoinRefusal::Version(CONTROL_VERSION)),
            (None, _, ControlFrame::Ask) => Ok(Some(ControlFrame::Status(Box::new(self.status())))),
            (None, _, ControlFrame::Join(role, life)) => {
                let node = self.free_seat(role)?;
                let watch = self.plan.watch;
                let lease = GrantedLease::new(watch.lease_ns, watch.margin_ns, now);
                self.seats.insert(node, Seat { state: PoolNodeState::Joining, address: None, life, lease });
                self.callers[at].node = Some(node);
                let welcome = Welcome {
                    node,
                    first_boot: 1,
                    layout: self.plan.layout,
                    client: self.plan.client,
                    heartbeat_ns: watch.heartbeat_ns,
                    lease_ns: watch.lease_ns,
                    retry_ns: self.plan.manager.retry_ns,
                };
                Ok(Some(ControlFrame::Joined(Box::new(welcome))))
            }
            (Some(_), Some(seat), ControlFrame::Heartbeat(number)) => {
                let is_granted = seat.state != PoolNodeState::Lost && seat.lease.on_heartbeat(now);
                is_granted.then_some(Some(ControlFrame::Answered(number))).ok_or(JoinRefusal::IsLost)
            }
            (Some(node), Some(seat), ControlFrame::Ready(address))
                if seat.state == PoolNodeState::Joining =>
            {
                seat.state = PoolNodeState::Living;
                seat.address = Some(address);
                self.driver.fabric_mut().meet(node, address, seat.life);
                self.is_book_new = self.state == PoolState::Working;
                Ok(None)
            }
            _ => Err(JoinRefusal::Malformed),
        }
    }

    /// A number for a node that joins.
    fn free_seat(&mut self, role: PoolRole) -> Result<NodeId, JoinRefusal> {
        let memory_nodes = self.plan.layout.memory_nodes;
        match (self.state, role) {
            (PoolState::Lost, _) => Err(JoinRefusal::IsLost),
            (_, PoolRole::Memory) => {
                let mut nodes = (0..memory_nodes).map(|node| NodeId::agent(MemoryNode(node)));
                let free = nodes.find(|node| !self.seats.contains_key(node));
                free.ok_or(JoinRefusal::HasAllMemory(memory_nodes.into()))
            }
            (PoolState::Waiting, PoolRole::Compute) => {
                let is_ready = |seat: &&Seat| seat.state == PoolNodeState::Living;
                let missing = usize::from(memory_nodes) - self.seats.values().filter(is_ready).count();
                Err(JoinRefusal::NotYet(missing.max(1) as u64))
            }
            (PoolState::Working, PoolRole::Compute) => {
                let is_there = |(node, seat): &(&NodeId, &Seat)| {
                    node.as_memory_node().is_none() && seat.state != PoolNodeState::Lost
                };
                if self.seats.iter().filter(is_there).count() >= self.plan.compute_nodes_max {
                    return Err(JoinRefusal::TooManyNodes(self.plan.compute_nodes_max as u64));
                }
                if self.next_compute >= COMPUTE_NODES_EVER {
                    return Err(JoinRefusal::NoNumberLeft(COMPUTE_NODES_EVER.into()));
                }
                // A number is given once: who had it before may still be there, and would end the sessions of who has it now.
                self.next_compute += 1;
                Ok(NodeId(self.next_compute - 1))
            }
        }
    }

    /// Takes out whoever was silent for too long. A `now` of long ago calls nobody lost too early.
    fn end_leases(&mut self, now: Nanos) {
        let mut over = Vec::new();
        for (&node, seat) in self.seats.iter_mut().filter(|(_, seat)| seat.state != PoolNodeState::Lost) {
            if seat.lease.is_over(now) {
                over.push(node);
            }
        }
        for node in over {
            match node.as_memory_node() {
                None => leave(&mut self.seats, node, &mut self.driver),
                // Nothing is in it yet, and nobody was told of it: another one can have its place.
                Some(_) if self.state == PoolState::Waiting => {
                    self.seats.remove(&node);
                }
                Some(memory) => self.lose(node, memory),
            }
            // Its connection is of no use any more, and its number may be a newcomer's from here on.
            let is_its = |caller: &&mut Caller| caller.node == Some(node);
            self.callers.iter_mut().filter(is_its).for_each(|caller| caller.put_out(now));
        }
    }

    fn lose(&mut self, node: NodeId, memory: MemoryNode) {
        if let Some(seat) = self.seats.get_mut(&node) {
            seat.state = PoolNodeState::Lost;
        }
        self.living = self.living.without(memory);
        let layout = self.plan.layout;
        if layout.regions().any(|region| layout.living_replicas(region, self.living).is_empty()) {
            // There is no configuration that could follow.
            self.state = PoolState::Lost;
        } else {
            self.driver.call(ManagerCall::MemoryLost(memory));
        }
    }

    fn begin_if_all_are_there(&mut self) {
        let is_ready = |seat: &&Seat| seat.state == PoolNodeState::Living;
        let ready = self.seats.values().filter(is_ready).count();
        if self.state == PoolState::Waiting && ready == usize::from(self.plan.layout.memory_nodes) {
            (self.state, self.is_book_new) = (PoolState::Working, true);
        }
    }

    fn forget_the_long_gone(&mut self) {
        let is_gone = |(node, seat): &(&NodeId, &Seat)| {
            node.as_memory_node().is_none() && seat.state == PoolNodeState::Lost
        };
        let gone: Vec<NodeId> = self.seats.iter().filter(is_gone).map(|(&node, _)| node).collect();
        for node in &gone[..gone.len().saturating_sub(GONE_KEPT)] {
            self.seats.remove(node);
        }
    }

    /// Tells all who are ready where everybody is.
    fn tell_all(&mut self) {
        let living = self.seats.iter().filter(|(_, seat)| seat.state == PoolNodeState::Living);
        let entry = |(&node, seat): (&NodeId, &Seat)| {
            Some(BookEntry { node, address: seat.address?, life: seat.life })
        };
        let book = ControlFrame::Book(std::iter::once(self.own).chain(living.filter_map(entry)).collect());
        let seats = &self.seats;
        let is_ready = |caller: &&mut Caller| {
            let seat = caller.node.and_then(|node| seats.get(&node));
            seat.is_some_and(|seat| seat.state == PoolNodeState::Living)
        };
        self.callers.iter_mut().filter(is_ready).for_each(|caller| caller.stream.say(&book));
    }
}

/// A compute node is not there any more, or may be: it is fenced.
fn leave(seats: &mut BTreeMap<NodeId, Seat>, node: NodeId, driver: &mut NodeDriver<Manager>) {
    if let Some(seat) = seats.get_mut(&node).filter(|seat| seat.state != PoolNodeState::Lost) {
        seat.state = PoolNodeState::Lost;
        driver.call(ManagerCall::Suspect(node));
    }
}

impl Caller {
    fn refuse(&mut self, now: Nanos, refusal: JoinRefusal) {
        self.stream.say(&ControlFrame::Refused(refusal));
        self.is_refused = true;
        self.ends_at = now.saturating_add(LINGER_NS);
    }

    /// Ends its connection, unheard, and takes its number away: nothing that becomes of it concerns a node.
    fn put_out(&mut self, now: Nanos) {
        self.stream.end();
        (self.node, self.is_refused, self.ends_at) = (None, true, now);
    }

    fn is_gone(&self, now: Nanos) -> bool {
        let is_late = (self.node.is_none() || self.is_refused) && now >= self.ends_at;
        self.stream.is_over() || is_late
    }
}
