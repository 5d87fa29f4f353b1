//! Pools of this process' threads, joined over 127.0.0.1 as processes would.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use hedgerow_device::{Clock, Random, spawn};

use super::control::{ControlFrame, take_frame};
use super::*;
use crate::client::{Client, ClientCall, Condition, Outcome, Request};
use crate::fabric::NodeId;
use crate::fabric::tcp::LOOPBACK;
use crate::node::NodeDriver;

const PATIENCE: Duration = Duration::from_secs(120);
const NOW: Duration = Duration::ZERO;
const STEP: Duration = Duration::from_millis(5);
/// Long enough that a machine with much else to do still answers heartbeats.
const WATCH: WatchOptions =
    WatchOptions { heartbeat_ns: 100_000_000, lease_ns: 3_000_000_000, margin_ns: 100_000_000 };

fn plan() -> PoolPlan {
    let plan = PoolPlan::new(3, 3, 2, 6 << 20).unwrap();
    PoolPlan { watch: WATCH, compute_nodes_max: 3, ..plan }
}

/// Asks again and again until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let (clock, start) = (Clock::system(), Clock::system().monotonic_ns());
    while !is_so() {
        assert!(clock.monotonic_ns() - start < PATIENCE.as_nanos() as u64, "{what}: never");
        std::thread::sleep(STEP);
    }
}

/// A thread that has something, until it is stopped or says that it is over.
struct Host {
    stop: Arc<AtomicBool>,
    is_still: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    fn new(mut turn: impl FnMut() -> bool + Send + 'static) -> Host {
        let (stop, is_still) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (is_over, pauses) = (Arc::clone(&stop), Arc::clone(&is_still));
        let thread = spawn("pool-host", move || {
            while !is_over.load(Ordering::Acquire) {
                if pauses.load(Ordering::Acquire) {
                    std::thread::sleep(STEP);
                } else if !turn() {
                    break;
                }
            }
        });
        Host { stop, is_still, thread: Some(thread.unwrap()) }
    }

    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let result = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(result, Some(Ok(()))), "the host panicked");
    }
}

fn host_manager(plan: PoolPlan) -> (Host, SocketAddr) {
    let mut manager = PoolManager::listen(LOOPBACK, LOOPBACK, plan).unwrap();
    let address = manager.address().unwrap();
    let host = Host::new(move || {
        manager.step(STEP);
        true
    });
    (host, address)
}

fn host_memory(manager: SocketAddr) -> (Host, NodeId) {
    let mut memory = MemoryNodeHost::join(manager, LOOPBACK, PATIENCE).unwrap();
    let node = memory.node();
    assert!(memory.address().ip().is_loopback());
    (Host::new(move || memory.step(STEP)), node)
}

/// A compute node: a client, and who carries the book to its fabric.
struct Compute {
    driver: NodeDriver<Client>,
    membership: Membership,
    news: mpsc::Receiver<(NodeId, SocketAddr, u64)>,
    node: NodeId,
    next: u64,
}

impl Compute {
    fn join(manager: SocketAddr) -> Compute {
        let (tell, news) = mpsc::channel();
        let changed = move |node, address, life| {
            let _ = tell.send((node, address, life));
        };
        let mut joined = join_compute(manager, LOOPBACK, PATIENCE, changed).unwrap();
        let boot = joined.boots.next().unwrap();
        let client = Client::new(joined.node, boot, joined.layout, joined.client);
        let driver = NodeDriver::new(client, joined.fabric);
        Compute { driver, membership: joined.membership, news, node: joined.node, next: 0 }
    }

    fn turn(&mut self) {
        for (node, address, life) in self.news.try_iter() {
            self.driver.fabric_mut().meet(node, address, life);
        }
        self.driver.step(STEP);
    }

    /// What one call answers.
    fn ask(&mut self, key: &[u8], request: Request) -> Outcome {
        self.next += 1;
        self.driver.call(ClientCall { id: self.next, key: key.into(), request });
        let mut outcome = None;
        until("an answer", || {
            self.turn();
            outcome = self.driver.take_answers().into_iter().next().map(|answer| answer.outcome);
            outcome.is_some()
        });
        outcome.unwrap()
    }

    /// Puts until it is put: while the configuration changes it is not.
    fn put(&mut self, key: &[u8], value: &[u8]) {
        until("a put", || {
            let outcome = self.ask(key, Request::Put(value.into(), Condition::Any));
            assert!(!self.driver.machine().is_fenced(), "{outcome:?}");
            matches!(outcome, Outcome::Stored(_))
        });
    }

    fn get(&mut self, key: &[u8]) -> Vec<u8> {
        let mut value = None;
        until("a get", || {
            value = match self.ask(key, Request::Get) {
                Outcome::Value(bytes, _) => Some(bytes),
                Outcome::Unavailable => None,
                other => panic!("{other:?}"),
            };
            value.is_some()
        });
        value.unwrap().to_vec()
    }
}

/// How the pool is, once somebody says so: a machine may be slow.
fn status_of(manager: SocketAddr) -> PoolStatus {
    let mut status = None;
    until("a status", || {
        status = ask_status(manager).ok();
        status.is_some()
    });
    status.unwrap()
}

fn state_of(manager: SocketAddr, node: NodeId) -> Option<PoolNodeState> {
    let status = status_of(manager);
    status.nodes.iter().find(|other| other.node == node).map(|other| other.state)
}

#[test]
fn processes_become_a_pool_and_outlive_a_memory_node() {
    let (_manager, address) = host_manager(plan());
    let never = |_, _, _| {};
    let early = join_compute(address, LOOPBACK, NOW, never).unwrap_err();
    assert!(matches!(early, JoinError::Refused(JoinRefusal::NotYet(3))), "{early}");
    let mut memory: Vec<_> = (0..3).map(|_| host_memory(address)).collect();
    let nodes: Vec<u16> = memory.iter().map(|(_, node)| node.0).collect();
    assert_eq!(nodes, [0x4000, 0x4001, 0x4002]);
    let more = MemoryNodeHost::join(address, LOOPBACK, NOW).unwrap_err();
    assert!(matches!(more, JoinError::Refused(JoinRefusal::HasAllMemory(3))), "{more}");
    let mut compute: Vec<Compute> = (0..3).map(|_| Compute::join(address)).collect();
    let many = join_compute(address, LOOPBACK, NOW, never).unwrap_err();
    assert!(matches!(many, JoinError::Refused(JoinRefusal::TooManyNodes(3))), "{many}");
    compute[0].put(b"key", b"first");
    assert_eq!(compute[1].get(b"key"), b"first");
    compute[1].put(b"key", b"second");
    assert_eq!(compute[0].get(b"key"), b"second");
    let status = status_of(address);
    assert_eq!((status.state, status.sessions >= 2), (PoolState::Working, true), "{status:?}");
    assert_eq!(status.nodes.len(), 1 + 3 + 3);
    // The others heard of who came after them.
    until("the book", || compute[0].membership.book().iter().any(|entry| entry.node == compute[2].node));
    // A memory node is gone, and is lost once it cannot serve any more.
    let lost = memory.remove(1).1;
    assert_ne!(state_of(address, lost), Some(PoolNodeState::Lost), "too early");
    until("the loss", || {
        compute.iter_mut().for_each(Compute::turn);
        state_of(address, lost) == Some(PoolNodeState::Lost)
    });
    compute[0].put(b"key", b"third");
    compute[0].put(b"other", b"new");
    assert_eq!(compute[1].get(b"key"), b"third");
    assert_eq!(compute[1].get(b"other"), b"new");
    assert!(compute.iter().all(|compute| !compute.membership.is_over()));
    assert!(status_of(address).epoch > status.epoch);
    assert!(memory.iter().all(|(host, _)| !host.is_over()));
}

#[test]
fn a_compute_node_that_vanishes_is_suspected() {
    let (_manager, address) = host_manager(plan());
    let _memory: Vec<_> = (0..3).map(|_| host_memory(address)).collect();
    let mut stays = Compute::join(address);
    let mut goes = Compute::join(address);
    let gone = goes.node;
    goes.put(b"key", b"its own");
    stays.put(b"key2", b"value");
    until("two sessions", || status_of(address).sessions == 2);
    drop(goes);
    until("one session", || {
        stays.turn();
        let status = status_of(address);
        status.sessions == 1 && !status.is_changing && status.epoch > 1
    });
    assert_eq!(state_of(address, gone), Some(PoolNodeState::Lost));
    assert_eq!(stays.get(b"key"), b"its own");
    // Numbers are not given again.
    for _ in 0..4 {
        let another = Compute::join(address);
        assert!(another.node > gone, "{:?}", another.node);
    }
}

#[test]
fn memory_nodes_end_with_their_manager() {
    // It ends.
    let (manager, address) = host_manager(plan());
    let memory: Vec<_> = (0..3).map(|_| host_memory(address)).collect();
    let compute = Compute::join(address);
    drop(manager);
    until("the end", || memory.iter().all(|(host, _)| host.is_over()));
    until("the end of the other", || compute.membership.is_over());
    // It stands still, and says nothing.
    let (manager, address) = host_manager(plan());
    let memory: Vec<_> = (0..3).map(|_| host_memory(address)).collect();
    manager.is_still.store(true, Ordering::Release);
    std::thread::sleep(Duration::from_millis(200));
    assert!(memory.iter().all(|(host, _)| !host.is_over()), "at once");
    until("the end of leases", || memory.iter().all(|(host, _)| host.is_over()));
}

#[test]
fn a_pool_without_copies_is_lost_with_a_memory_node() {
    let plan = PoolPlan { watch: WATCH, ..PoolPlan::new(2, 1, 0, 1 << 20).unwrap() };
    let (_manager, address) = host_manager(plan);
    let mut memory: Vec<_> = (0..2).map(|_| host_memory(address)).collect();
    // Who goes before the pool begins leaves a place, and is no loss.
    until("the beginning", || status_of(address).state == PoolState::Working);
    memory.remove(0);
    until("the loss", || status_of(address).state == PoolState::Lost);
    let late = join_compute(address, LOOPBACK, NOW, |_, _, _| {}).unwrap_err();
    assert!(matches!(late, JoinError::Refused(JoinRefusal::IsLost)), "{late}");
}

#[test]
fn who_cannot_listen_takes_no_number() {
    let (_manager, address) = host_manager(plan());
    let _memory: Vec<_> = (0..3).map(|_| host_memory(address)).collect();
    let before = Compute::join(address).node;
    let other = std::net::TcpListener::bind(LOOPBACK).unwrap();
    let taken = other.local_addr().unwrap();
    for _ in 0..5 {
        let error = join_compute(address, taken, PATIENCE, |_, _, _| {}).unwrap_err();
        assert!(matches!(error, JoinError::Listen(at, _) if at == taken), "{error}");
    }
    assert_eq!(Compute::join(address).node.0, before.0 + 1);
}

#[test]
fn a_memory_node_that_was_silent_before_the_pool_began_does_not_take_its_heir_along() {
    let watch = WatchOptions { heartbeat_ns: 100_000_000, lease_ns: 1_500_000_000, margin_ns: 50_000_000 };
    let (_manager, address) = host_manager(PoolPlan { watch, ..plan() });
    let mut silent = TcpStream::connect(address).unwrap();
    let mut bytes = Vec::new();
    ControlFrame::Join(PoolRole::Memory, 5).append_to(&mut bytes);
    silent.write_all(&bytes).unwrap();
    until("its place", || state_of(address, NodeId(0x4000)).is_some());
    // It says nothing until its lease is over; the place is another's then, and stays so.
    until("the end of it", || state_of(address, NodeId(0x4000)).is_none());
    let (_heir, node) = host_memory(address);
    assert_eq!(node, NodeId(0x4000));
    until("the heir", || state_of(address, node) == Some(PoolNodeState::Living));
    drop(silent);
    for _ in 0..20 {
        assert_eq!(state_of(address, node), Some(PoolNodeState::Living));
        std::thread::sleep(STEP);
    }
}

#[test]
fn a_memory_node_that_goes_before_the_pool_begins_has_its_place_taken() {
    let (_manager, address) = host_manager(plan());
    let first = host_memory(address);
    let second = host_memory(address);
    drop(first);
    until("the place", || status_of(address).nodes.len() == 2);
    let third = host_memory(address);
    assert_eq!((second.1.0, third.1.0), (0x4001, 0x4000));
    let _fourth = host_memory(address);
    let mut compute = Compute::join(address);
    compute.put(b"key", b"value");
    assert_eq!(compute.get(b"key"), b"value");
}

/// Says bytes, and hears what is answered until that is the end, or a first frame.
fn say(address: SocketAddr, bytes: &[u8]) -> Option<ControlFrame> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // It may have ended the connection already.
    let _ = stream.write_all(bytes);
    let (mut came, mut some) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(frame) = take_frame(&mut came).unwrap() {
            return Some(frame);
        }
        match stream.read(&mut some) {
            Ok(count) if count > 0 => came.extend_from_slice(&some[..count]),
            _ => return None,
        }
    }
}

#[test]
fn whatever_is_said_to_the_manager_it_goes_on() {
    let (manager, address) = host_manager(plan());
    let bytes_of = |frame: ControlFrame| {
        let mut bytes = Vec::new();
        frame.append_to(&mut bytes);
        bytes
    };
    for (said, answer) in [
        (ControlFrame::Foreign(9), JoinRefusal::Version(2)),
        (ControlFrame::Heartbeat(1), JoinRefusal::Malformed),
        (ControlFrame::Ready(address), JoinRefusal::Malformed),
        (ControlFrame::Book(Vec::new()), JoinRefusal::Malformed),
        (ControlFrame::Join(PoolRole::Compute, 0), JoinRefusal::NotYet(3)),
    ] {
        assert_eq!(say(address, &bytes_of(said.clone())), Some(ControlFrame::Refused(answer)), "{said:?}");
    }
    assert_eq!(say(address, b"GET / HTTP/1.1\r\n\r\n"), None);
    let mut random = Random::from_seed(8);
    for _ in 0..100 {
        let frame = match random.below(4) {
            0 => ControlFrame::Join(PoolRole::Memory, random.next_u64() | 1),
            1 => ControlFrame::Ask,
            2 => ControlFrame::Join(PoolRole::Compute, 1),
            _ => ControlFrame::Heartbeat(random.next_u64()),
        };
        let mut bytes = bytes_of(frame.clone());
        bytes.extend(bytes_of(frame));
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        bytes.truncate(1 + random.below(bytes.len() as u64) as usize);
        let _ = TcpStream::connect(address).unwrap().write_all(&bytes);
    }
    // More who say nothing than there may be: they are ended, and others get in again.
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    until("an answer again", || ask_status(address).is_ok());
    drop(silent);
    until("their places", || status_of(address).nodes.len() == 1);
    let _memory: Vec<_> = (0..3).map(|_| host_memory(address)).collect();
    Compute::join(address).put(b"key", b"value");
    assert!(!manager.is_over());
}

#[test]
fn who_cannot_join_is_told_why() {
    // Nobody is there.
    let vacant = std::net::TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let error = ask_status(vacant).unwrap_err();
    assert!(error.to_string().starts_with(&format!("no pool can be reached at {vacant}: ")), "{error}");
    // Somebody else is.
    let other = std::net::TcpListener::bind(LOOPBACK).unwrap();
    let at = other.local_addr().unwrap();
    let host = Host::new(move || {
        let (mut stream, _) = other.accept().unwrap();
        let _ = stream.write_all(b"-ERR unknown command\r\n");
        let _ = stream.read(&mut [0; 64]);
        false
    });
    let error = ask_status(at).unwrap_err();
    assert!(matches!(error, JoinError::NotAPool(..)), "{error}");
    drop(host);
    // Its own address is none.
    let (_manager, address) = host_manager(PoolPlan::new(1, 1, 0, 1 << 20).unwrap());
    let nowhere = "0.0.0.0:0".parse().unwrap();
    let error = MemoryNodeHost::join(address, nowhere, NOW).unwrap_err();
    assert!(matches!(error, JoinError::Listen(..)), "{error}");
}
