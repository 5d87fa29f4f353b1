//! A whole pool over TCP on this machine, a thread a node, in real time: what callers saw is linearizable through cut connections, a lost memory node and a proxy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hedgerow_device::{Clock, Random, spawn};
use hedgerow_sim::{Call, Effect, History, Precondition};

use super::memory_check::check_memory;
use super::run::{key_bytes, value_bytes};
use crate::agent::Agent;
use crate::client::{Client, ClientAnswer, ClientCall, ClientOptions, Condition, Outcome, Request};
use crate::fabric::NodeId;
use crate::fabric::tcp::{FabricWaker, LOOPBACK, TcpFabric, TcpOptions};
use crate::machine::Machine;
use crate::manager::{Manager, ManagerCall, ManagerOptions};
use crate::node::NodeDriver;
use crate::object::Generation;
use crate::region::{MemoryNode, PoolLayout};

const LAYOUT: PoolLayout =
    PoolLayout { memory_nodes: 3, copies: 3, partition_bits: 1, groups: 1, block_bytes: 16384, blocks: 32 };
pub(crate) const CLIENT: ClientOptions = ClientOptions {
    quarantine_ns: 200_000_000,
    timeout_ns: 2_000_000_000,
    poll_ns: 50_000,
    housekeeping_ns: 2_000_000,
    depth: 16,
    cached_keys: 64,
    cached_bytes: 1 << 20,
    rpc_retry_ns: 5_000_000,
    part_units: u8::MAX,
    lease_ns: 100_000_000,
};
pub(crate) const MANAGER: ManagerOptions =
    ManagerOptions { retry_ns: 3_000_000, prepare_ns: 500_000_000, lease_ns: 100_000_000, placement: None };
const LIFE: u64 = 41;
const KEYS: u64 = 8;
const CALLERS: u64 = 6;
const CALLS: u64 = 250;
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(20);

/// Whether it is not long since then.
fn is_in_time(start_ns: u64) -> bool {
    Clock::system().monotonic_ns() - start_ns < PATIENCE.as_nanos() as u64
}

pub(crate) type AddressBook = Vec<(NodeId, SocketAddr, u64)>;

/// What a node's thread is told.
pub(crate) enum Told<C> {
    Call(C),
    Cut(NodeId),
}

/// That of the fabric which the node has now.
type SharedWaker = Arc<Mutex<FabricWaker>>;

/// A thread that has a node.
pub(crate) struct Host<M: Machine, C> {
    tell: Sender<Told<C>>,
    waker: SharedWaker,
    stop: Arc<AtomicBool>,
    left: Mutex<Receiver<NodeDriver<M>>>,
}

impl<M: Machine, C> Host<M, C> {
    pub(crate) fn tell(&self, told: Told<C>) {
        self.tell.send(told).unwrap();
        self.waker.lock().unwrap().wake();
    }

    /// Ends the thread, and takes the node as it was.
    pub(crate) fn stop(self) -> NodeDriver<M> {
        self.stop.store(true, Ordering::Release);
        self.waker.lock().unwrap().wake();
        self.left.into_inner().unwrap().recv_timeout(PATIENCE).unwrap()
    }
}

/// Starts a thread that has a node, and goes on with it by `turn`.
fn host<M: Machine + Send + 'static, C: Send + 'static>(
    mut driver: NodeDriver<M>,
    waker: SharedWaker,
    mut turn: impl FnMut(&mut NodeDriver<M>, &Receiver<Told<C>>) + Send + 'static,
) -> Host<M, C>
where
    M::Answer: Send,
{
    let (tell, told) = channel();
    let (leave, left) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&stop);
    spawn("pool-node", move || {
        while !is_over.load(Ordering::Acquire) {
            turn(&mut driver, &told);
        }
        let _ = leave.send(driver);
    })
    .unwrap();
    Host { tell, waker, stop, left: Mutex::new(left) }
}

fn bind(node: NodeId, life: u64, address: SocketAddr, book: &AddressBook) -> TcpFabric {
    let start = Clock::system().monotonic_ns();
    let mut fabric = loop {
        match TcpFabric::bind(node, life, address, TcpOptions::default()) {
            Ok(fabric) => break fabric,
            // Anybody's connection may have its own end there meanwhile.
            Err(error) => assert!(is_in_time(start), "{address}: {error}"),
        }
        std::thread::sleep(STEP);
    };
    for &(other, address, life) in book.iter().filter(|(other, ..)| *other != node) {
        fabric.meet(other, address, life);
    }
    fabric
}

type ClientHost = Host<Client, (ClientCall, Sender<ClientAnswer>)>;

/// A client that begins again whenever it was fenced, as a node of its own would.
fn host_client(node: NodeId, fabric: TcpFabric, book: AddressBook, boots: Arc<AtomicU64>) -> ClientHost {
    let address = fabric.address().unwrap();
    let boot = move || boots.fetch_add(1, Ordering::Relaxed);
    let client = NodeDriver::new(Client::new(node, boot(), LAYOUT, CLIENT), fabric);
    let mut pending: BTreeMap<u64, Sender<ClientAnswer>> = BTreeMap::new();
    let waker = Arc::new(Mutex::new(client.fabric().waker()));
    let shared = Arc::clone(&waker);
    host(client, waker, move |driver, told: &Receiver<Told<(ClientCall, Sender<ClientAnswer>)>>| {
        for one in told.try_iter() {
            match one {
                Told::Call((call, reply)) => {
                    pending.insert(call.id, reply);
                    driver.call(call);
                }
                Told::Cut(other) => driver.fabric_mut().cut(other),
            }
        }
        driver.step(STEP);
        for answer in driver.take_answers() {
            if let Some(reply) = pending.remove(&answer.id) {
                let _ = reply.send(answer);
            }
        }
        if driver.machine().is_fenced() {
            // The address is free again only once the old node has left it.
            let vacant = bind(node, 0, LOOPBACK, &Vec::new());
            *driver = NodeDriver::new(Client::new(node, 0, LAYOUT, CLIENT), vacant);
            let fabric = bind(node, 0, address, &book);
            *shared.lock().unwrap() = fabric.waker();
            *driver = NodeDriver::new(Client::new(node, boot(), LAYOUT, CLIENT), fabric);
        }
    })
}

fn host_other<M: Machine + Send + 'static>(driver: NodeDriver<M>) -> Host<M, M::Call>
where
    M::Answer: Send,
    M::Call: Send + 'static,
{
    let waker = Arc::new(Mutex::new(driver.fabric().waker()));
    host(driver, waker, |driver, told: &Receiver<Told<M::Call>>| {
        for one in told.try_iter() {
            match one {
                Told::Call(call) => driver.call(call),
                Told::Cut(other) => driver.fabric_mut().cut(other),
            }
        }
        driver.step(STEP);
    })
}

/// What all callers saw.
#[derive(Default)]
struct Seen {
    history: History,
    values: BTreeMap<Generation, u64>,
    newest: BTreeMap<u64, Generation>,
    /// Calls that were answered, those that did nothing for a failure, and those in doubt.
    answered: u64,
    refused: u64,
    open: u64,
}

struct Callers {
    clients: Vec<ClientHost>,
    seen: Mutex<Seen>,
    clock: Clock,
    next_call: AtomicU64,
}

impl Callers {
    fn ask(&self, client: usize, id: u64, key: u64, request: Request) -> Outcome {
        let (reply, answer) = channel();
        self.clients[client].tell(Told::Call((ClientCall { id, key: key_bytes(key), request }, reply)));
        answer.recv_timeout(PATIENCE).unwrap().outcome
    }

    /// One call of any kind.
    fn call_one(&self, random: &mut Random) {
        let id = self.next_call.fetch_add(1, Ordering::Relaxed);
        let (client, key) = (random.below(2) as usize, random.below(KEYS));
        let (condition, expected) = match random.below(6) {
            0 => (Condition::Absent, Precondition::Absent),
            1 => {
                let seen = self.seen.lock().unwrap();
                match seen.newest.get(&key) {
                    Some(&generation) => {
                        (Condition::Same(generation), Precondition::Value(seen.values[&generation]))
                    }
                    None => (Condition::Any, Precondition::Any),
                }
            }
            _ => (Condition::Any, Precondition::Any),
        };
        let request = match random.below(10) {
            0..4 => Request::Get,
            4..6 => Request::Delete(condition),
            _ => Request::Put(value_bytes(id), condition),
        };
        let began = self.clock.monotonic_ns();
        let outcome = self.ask(client, id, key, request.clone());
        let returned = self.clock.monotonic_ns();
        self.seen.lock().unwrap().note((key, id), &request, expected, outcome, (began, returned));
    }
}

impl Seen {
    fn note(
        &mut self,
        (key, id): (u64, u64),
        request: &Request,
        expected: Precondition,
        outcome: Outcome,
        (began, returned): (u64, u64),
    ) {
        self.answered += 1;
        let effect = match outcome {
            Outcome::Value(bytes, generation) => {
                let value = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
                assert_eq!(bytes, value_bytes(value), "a value that nobody wrote");
                assert_eq!(*self.values.entry(generation).or_insert(value), value, "{generation:?}");
                self.newest.insert(key, generation);
                Effect::Read(Some(value))
            }
            Outcome::Absent => Effect::Read(None),
            Outcome::Stored(generation) => {
                self.values.insert(generation, id);
                self.newest.insert(key, generation);
                Effect::WriteIf(expected, id)
            }
            Outcome::Deleted(was) => Effect::RemoveIf(expected, was),
            Outcome::Conflict => Effect::Refused(expected),
            Outcome::Indeterminate => {
                self.open += 1;
                match request {
                    Request::Get | Request::Walk(..) => return,
                    Request::Put(..) => Effect::MayWriteIf(expected, id),
                    Request::Delete(_) => Effect::MayRemoveIf(expected),
                }
            }
            Outcome::Full | Outcome::TooLong | Outcome::Unavailable | Outcome::Walked(..) => {
                self.refused += 1;
                return;
            }
        };
        self.history.push(Call { key, effect, began, returned });
    }
}

/// Memory nodes and a manager, each with its thread, and the fabrics of two compute nodes.
pub(crate) struct TcpPool {
    pub(crate) agents: BTreeMap<MemoryNode, Host<Agent, crate::agent::AgentCall>>,
    pub(crate) manager: Host<Manager, ManagerCall>,
    pub(crate) fabrics: BTreeMap<NodeId, TcpFabric>,
    book: AddressBook,
}

pub(crate) fn start_pool(layout: PoolLayout) -> TcpPool {
    let memory_nodes = || (0..layout.memory_nodes).map(MemoryNode);
    let others = [NodeId(0), NodeId(1), NodeId::MANAGER].map(|node| (node, 0));
    let nodes = memory_nodes().map(|node| (NodeId::agent(node), LIFE)).chain(others);
    let mut fabrics: BTreeMap<NodeId, TcpFabric> =
        nodes.map(|(node, life)| (node, bind(node, life, LOOPBACK, &Vec::new()))).collect();
    let life_of = |node: NodeId| node.as_memory_node().map_or(0, |_| LIFE);
    let book: AddressBook =
        fabrics.iter().map(|(&node, fabric)| (node, fabric.address().unwrap(), life_of(node))).collect();
    for (own, fabric) in &mut fabrics {
        for &(node, address, life) in book.iter().filter(|(node, ..)| node != own) {
            fabric.meet(node, address, life);
        }
    }
    let mut take = |node: NodeId| fabrics.remove(&node).unwrap();
    let agents = memory_nodes().map(|node| {
        let mut fabric = take(NodeId::agent(node));
        for region in layout.regions().filter(|&region| layout.replicas(region).any(|other| other == node)) {
            fabric.export(region, layout.empty_region(region));
        }
        (node, host_other(NodeDriver::new(Agent::new(node, layout, MANAGER.retry_ns), fabric)))
    });
    let agents = agents.collect();
    let manager = NodeDriver::new(Manager::new(layout, MANAGER), take(NodeId::MANAGER));
    TcpPool { agents, manager: host_other(manager), fabrics, book }
}

/// What happens to the pool while callers work, each after so many calls.
fn fail(pool: &mut TcpPool, callers: &Callers) {
    let start = Clock::system().monotonic_ns();
    let after = |calls: u64| loop {
        let answered = callers.seen.lock().unwrap().answered;
        if answered >= calls {
            break;
        }
        assert!(is_in_time(start), "{answered} of {calls} calls were answered");
        std::thread::sleep(Duration::from_millis(1));
    };
    after(200);
    callers.clients[0].tell(Told::Cut(NodeId::agent(MemoryNode(0))));
    after(450);
    callers.clients[1].tell(Told::Cut(NodeId::agent(MemoryNode(1))));
    callers.clients[0].tell(Told::Cut(NodeId::MANAGER));
    after(700);
    // Its process ends: connections, memory and all.
    drop(pool.agents.remove(&MemoryNode(2)).unwrap().stop());
    pool.manager.tell(Told::Call(ManagerCall::MemoryLost(MemoryNode(2))));
    after(1000);
    pool.manager.tell(Told::Call(ManagerCall::Assign(0, Some(NodeId(1)))));
    pool.manager.tell(Told::Cut(NodeId::agent(MemoryNode(0))));
    after(1250);
    callers.clients[1].tell(Told::Cut(NodeId::agent(MemoryNode(0))));
}

#[test]
fn a_pool_over_tcp_is_linearizable_through_failures() {
    let mut pool = start_pool(LAYOUT);
    let (boots, book) = (Arc::new(AtomicU64::new(1)), pool.book.clone());
    let fabrics = std::mem::take(&mut pool.fabrics).into_iter();
    let client = |(node, fabric)| host_client(node, fabric, book.clone(), Arc::clone(&boots));
    let clients = fabrics.map(client).collect();
    let (seen, next_call) = (Mutex::new(Seen::default()), AtomicU64::new(1));
    let callers = Callers { clients, seen, clock: Clock::system(), next_call };
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let callers = &callers;
            scope.spawn(move || {
                let mut random = Random::from_seed(caller);
                (0..CALLS).for_each(|_| callers.call_one(&mut random));
            });
        }
        fail(&mut pool, &callers);
    });
    let all = CALLERS * CALLS;
    // Both see the same in the end.
    for key in 0..KEYS {
        let mut values = Vec::new();
        for client in 0..2 {
            for attempt in 1.. {
                match callers.ask(client, all + 1000 * attempt + key, key, Request::Get) {
                    Outcome::Unavailable if attempt < 50 => {}
                    outcome => {
                        values.push(outcome);
                        break;
                    }
                }
            }
        }
        assert_eq!(values[0], values[1], "key {key}");
        assert!(matches!(values[0], Outcome::Value(..) | Outcome::Absent), "key {key}: {values:?}");
    }
    let seen = callers.seen.into_inner().unwrap();
    seen.history.check().unwrap_or_else(|error| panic!("{error}"));
    let (answered, refused, open) = (seen.answered, seen.refused, seen.open);
    assert_eq!(answered, all);
    assert!(seen.history.len() as u64 > all * 3 / 4, "{refused} of {all} refused, {open} open");
    // Each cut ended a session, and each was followed by another one.
    let boots = boots.load(Ordering::Relaxed) - 1;
    assert!(boots >= 2 + 3, "{boots} lives of clients");
    let clients: Vec<_> = callers.clients.into_iter().map(Host::stop).collect();
    let manager = pool.manager.stop();
    let agents: BTreeMap<_, _> = pool.agents.into_iter().map(|(node, host)| (node, host.stop())).collect();
    let living = manager.machine().living();
    assert!(!living.has(MemoryNode(2)) && manager.machine().epoch().0 >= 5, "{:?}", manager.machine());
    assert_eq!(manager.machine().counters().anomalies, 0);
    let slabs: Vec<_> = clients.iter().map(|client| client.machine().slab()).collect();
    let memory = |node: MemoryNode, region| agents.get(&node)?.fabric().memory(region);
    check_memory(&LAYOUT, living, memory, &slabs).unwrap();
}
