//! Joining a pool, and staying in it.
//!
//! Owns a node's side of its control connection. Promises that who is told to be in the pool is, until [`Membership::is_over`] says otherwise, and that a memory node's lease is published before anything is
//! done by it. Must not know what a node does in the pool.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hedgerow_device::{Clock, spawn};

use super::control::{BookEntry, ControlFrame, JoinRefusal, PoolRole, PoolStatus, Welcome};
use super::lease::{HeldLease, LeaseEvent};
use super::stream::ControlStream;
use crate::error::PoolError;
use crate::fabric::{Nanos, NodeId};

/// How long a connection may take to come about, and an answer to come.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Between two attempts to join.
const RETRY_TIME: Duration = Duration::from_millis(50);
/// How long a read waits: a heartbeat is at most so late.
const READ_TIME: Duration = Duration::from_millis(20);
const WRITE_TIME: Duration = Duration::from_secs(1);

/// Why a process is not in a pool.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// Nobody can be reached at the pool's address.
    Unreachable(SocketAddr, io::Error),
    /// Whoever is there says nothing, or ended the connection.
    Silent(SocketAddr),
    /// Whoever is there is not the manager of a pool.
    NotAPool(SocketAddr, PoolError),
    /// The manager does not let it in.
    Refused(JoinRefusal),
    /// It cannot listen at its own address.
    Listen(SocketAddr, io::Error),
    /// The system has no more threads.
    Thread(io::Error),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Unreachable(address, error) => {
                write!(f, "no pool can be reached at {address}: {error}")
            }
            JoinError::Silent(address) => write!(f, "whoever listens at {address} does not answer"),
            JoinError::NotAPool(address, error) => {
                write!(f, "whoever listens at {address} is not the manager of a pool: {error}")
            }
            JoinError::Refused(refusal) => write!(f, "{refusal}"),
            JoinError::Listen(address, error) => write!(f, "cannot listen at {address}: {error}"),
            JoinError::Thread(error) => write!(f, "the system has no more threads: {error}"),
        }
    }
}

impl std::error::Error for JoinError {}

impl JoinError {
    /// Whether it may go better a little later: nobody is there yet, or the pool has not begun.
    pub fn is_passing(&self) -> bool {
        match self {
            JoinError::Unreachable(..) | JoinError::Silent(_) => true,
            JoinError::Refused(refusal) => matches!(refusal, JoinRefusal::NotYet(_)),
            _ => false,
        }
    }
}

/// A connection to a manager that was said one thing, and what was answered.
fn ask(address: SocketAddr, frame: &ControlFrame) -> Result<(ControlStream, ControlFrame), JoinError> {
    let unreachable = |error| JoinError::Unreachable(address, error);
    let stream = TcpStream::connect_timeout(&address, ANSWER_TIME).map_err(unreachable)?;
    stream.set_read_timeout(Some(READ_TIME)).map_err(unreachable)?;
    stream.set_write_timeout(Some(WRITE_TIME)).map_err(unreachable)?;
    let mut stream = ControlStream::new(stream);
    stream.say(frame);
    let answer = next_frame(address, &mut stream)?;
    Ok((stream, answer))
}

/// What is said next, within the time for an answer.
fn next_frame(address: SocketAddr, stream: &mut ControlStream) -> Result<ControlFrame, JoinError> {
    let clock = Clock::system();
    let until = clock.monotonic_ns().saturating_add(ANSWER_TIME.as_nanos() as u64);
    loop {
        // Before it is read: a process that stood still finds what came meanwhile.
        let is_late = clock.monotonic_ns() >= until;
        stream.fill();
        match stream.next() {
            Ok(Some(frame)) => return Ok(frame),
            Err(error) => return Err(JoinError::NotAPool(address, error)),
            Ok(None) if stream.is_over() || is_late => return Err(JoinError::Silent(address)),
            Ok(None) => {}
        }
    }
}

/// How a pool is, by who manages it at this address.
///
/// # Errors
/// Who cannot be reached, or is no manager.
pub fn ask_status(manager: SocketAddr) -> Result<PoolStatus, JoinError> {
    match ask(manager, &ControlFrame::Ask)?.1 {
        ControlFrame::Status(status) => Ok(*status),
        ControlFrame::Refused(refusal) => Err(JoinError::Refused(refusal)),
        _ => Err(JoinError::NotAPool(manager, PoolError::Unknown("answer", 0))),
    }
}

/// A process that has a number in the pool and is not ready yet.
#[derive(Debug)]
pub(super) struct Joined {
    manager: SocketAddr,
    stream: ControlStream,
    pub(super) welcome: Welcome,
    /// When it asked: what its lease counts from.
    asked_at: Nanos,
}

/// Joins, as soon as there is a manager that lets it in, for `patience` at most.
pub(super) fn join(
    manager: SocketAddr,
    (role, life): (PoolRole, u64),
    patience: Duration,
) -> Result<Joined, JoinError> {
    let clock = Clock::system();
    let until = clock.monotonic_ns().saturating_add(patience.as_nanos() as u64);
    loop {
        let asked_at = clock.monotonic_ns();
        let answer = ask(manager, &ControlFrame::Join(role, life));
        let error = match answer {
            Ok((stream, ControlFrame::Joined(welcome))) => {
                let is_memory = welcome.node.as_memory_node().is_some();
                if is_memory == (role == PoolRole::Memory) {
                    return Ok(Joined { manager, stream, welcome: *welcome, asked_at });
                }
                JoinError::NotAPool(manager, PoolError::Unknown("node", welcome.node.0.into()))
            }
            Ok((_, ControlFrame::Refused(refusal))) => JoinError::Refused(refusal),
            Ok(_) => JoinError::NotAPool(manager, PoolError::Unknown("answer", 0)),
            Err(error) => error,
        };
        if !error.is_passing() || clock.monotonic_ns() >= until {
            return Err(error);
        }
        std::thread::sleep(RETRY_TIME);
    }
}

/// Where others are, as far as it was told.
type Book = BTreeMap<NodeId, BookEntry>;

impl Joined {
    /// Says where this node can be reached: others hear of it now.
    pub(super) fn say_ready(&mut self, address: SocketAddr) {
        self.stream.say(&ControlFrame::Ready(address));
    }

    /// Where others are, from who is told that as soon as he is ready.
    pub(super) fn first_book(&mut self) -> Result<Book, JoinError> {
        match next_frame(self.manager, &mut self.stream)? {
            ControlFrame::Book(entries) => Ok(entries.into_iter().map(|entry| (entry.node, entry)).collect()),
            ControlFrame::Refused(refusal) => Err(JoinError::Refused(refusal)),
            _ => Err(JoinError::NotAPool(self.manager, PoolError::Unknown("answer", 0))),
        }
    }

    /// Stays in the pool, from a thread of its own. `changed` is told where somebody is whenever that changes, from that thread.
    pub(super) fn stay(
        self,
        book: Book,
        changed: impl FnMut(BookEntry) + Send + 'static,
    ) -> Result<Membership, JoinError> {
        let shared = Arc::new(SharedMembership {
            is_leaving: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            serves_until: Arc::new(AtomicU64::new(0)),
            book: Mutex::new(book),
        });
        let lease = HeldLease::new(self.welcome.lease_ns, self.asked_at);
        shared.serves_until.store(lease.until(), Ordering::Release);
        let member = MemberThread {
            node: self.welcome.node,
            stream: self.stream,
            heartbeat_ns: self.welcome.heartbeat_ns,
            lease,
            shared: Arc::clone(&shared),
            changed,
        };
        let thread = spawn("pool-member", move || member.run());
        Ok(Membership { shared, thread: Some(thread.map_err(JoinError::Thread)?) })
    }
}

#[derive(Debug)]
struct SharedMembership {
    is_leaving: AtomicBool,
    is_over: AtomicBool,
    /// Until when a memory node may serve, by this process' clock.
    serves_until: Arc<AtomicU64>,
    book: Mutex<Book>,
}

/// A node's place in the pool. It leaves when this is dropped.
#[derive(Debug)]
pub struct Membership {
    shared: Arc<SharedMembership>,
    thread: Option<JoinHandle<()>>,
}

impl Membership {
    /// Whether the node is out of the pool, or does not know that it is in it: its manager does not answer, or ended the connection. It stays so: who wants to go on joins again, as another node.
    pub fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire)
    }

    /// Where all others are, as far as it was told.
    pub fn book(&self) -> Vec<BookEntry> {
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect()
    }

    pub(super) fn serves_until(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.serves_until)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.is_leaving.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It did nothing that this could want to know.
            let _ = thread.join();
        }
    }
}

/// What the thread of a membership has.
struct MemberThread<F> {
    node: NodeId,
    stream: ControlStream,
    heartbeat_ns: Nanos,
    lease: HeldLease,
    shared: Arc<SharedMembership>,
    changed: F,
}

impl<F: FnMut(BookEntry)> MemberThread<F> {
    fn run(mut self) {
        let clock = Clock::system();
        let (mut number, mut beat_at) = (0, 0);
        while !self.shared.is_leaving.load(Ordering::Acquire) {
            let now = clock.monotonic_ns();
            if now >= beat_at {
                number += 1;
                beat_at = now.saturating_add(self.heartbeat_ns);
                // Before it is sent: the lease counts from no later time than that.
                self.lease.on(now, LeaseEvent::Sent(number));
                self.stream.say(&ControlFrame::Heartbeat(number));
            }
            self.stream.flush();
            self.stream.fill();
            let is_fine = self.take_frames(&clock);
            let goes_on = self.lease.on(clock.monotonic_ns(), LeaseEvent::Tick);
            self.shared.serves_until.store(self.lease.until(), Ordering::Release);
            if !is_fine || !goes_on || self.stream.is_over() {
                break;
            }
        }
        self.shared.serves_until.store(0, Ordering::Release);
        self.shared.is_over.store(true, Ordering::Release);
    }

    /// Deals with what came. Whether it may go on.
    fn take_frames(&mut self, clock: &Clock) -> bool {
        loop {
            match self.stream.next() {
                Ok(None) => return true,
                Ok(Some(ControlFrame::Answered(number))) => {
                    self.lease.on(clock.monotonic_ns(), LeaseEvent::Answered(number));
                }
                Ok(Some(ControlFrame::Book(entries))) => self.take_book(entries),
                Ok(Some(_)) | Err(_) => return false,
            }
        }
    }

    fn take_book(&mut self, entries: Vec<BookEntry>) {
        let mut news = Vec::new();
        {
            let mut book = self.shared.book.lock().unwrap_or_else(PoisonError::into_inner);
            for entry in entries.into_iter().filter(|entry| entry.node != self.node) {
                if book.insert(entry.node, entry) != Some(entry) {
                    news.push(entry);
                }
            }
        }
        news.into_iter().for_each(&mut self.changed);
    }
}
