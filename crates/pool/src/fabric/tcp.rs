//! A fabric over TCP: one thread a node, and a connection from each node to every one that it posts or sends to.
//!
//! Owns the sockets of one node. Promises the contract of [`Fabric`]; that nothing waits but [`TcpFabric::wait`]; and that what others send never makes it panic or grow without bound. Must not know what is
//! stored or said. There is neither encryption nor proof of who somebody is: it is for networks of which all nodes are trusted, and listens on this machine alone where nothing else is said.
//!
//! | file | what |
//! |---|---|
//! | `frame.rs` | the bytes |
//! | `connection.rs` | frames out of a stream and into it |
//! | `peer.rs` | whom this node dials: what it posted, and how that ends |
//! | `accepted.rs` | who dialed this node: his batches, one after the other |
//! | `exports.rs` | memory and fences |
//! | `inbox.rs` | what this node is told next |
//!
//! One thread has all of a node: it executes a batch between two others, so words are atomic, a batch is in order, and a fence holds as soon as it is set. A batch goes straight from
//! who posts it into the socket, and its results straight from the socket to who polls: two threads wake for a round trip, one on each side. [Decision 47](https://github.com/hedgerow/hedgerow/blob/main/docs/decisions/0047-tcp-fabric.md) says what else was considered.

mod accepted;
mod connection;
mod exports;
mod frame;
mod inbox;
mod peer;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hedgerow_device::Clock;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::{
    Batch, DATAGRAM_BYTES_MAX, Fabric, FabricEvent, Nanos, NodeId, PostError, SessionId, is_within_limits,
};
use crate::region::MemoryNode;
use accepted::{Accepted, Identity};
use connection::TcpConnection;
use exports::Exports;
pub use frame::FabricRefusal;
use inbox::Inbox;
use peer::Peer;

/// Where a node listens if nothing else is said: on this machine alone, at a port that the system chooses.
pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST_CONNECTION: usize = 2;

/// Settings of a node's fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpOptions {
    /// Connections that others may have to this node. 1,024 by default; each takes some 50 MiB at most, and some KiB as a rule.
    pub connections_max: usize,
    /// Between two attempts to reach somebody. 5 ms by default.
    pub redial_ns: Nanos,
    /// After so long without a connection what is under way ends; a connection that brings nothing for so long while batches are under way is cut; and who dialed has so long to say who he is. 2 s by default.
    pub unreachable_ns: Nanos,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions { connections_max: 1024, redial_ns: 5_000_000, unreachable_ns: 2_000_000_000 }
    }
}

/// Counts of what others did to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpCounters {
    /// Connections that came.
    pub accepted: u64,
    /// Those of them that were refused because there were too many.
    pub busy: u64,
    /// Sessions that ended here with their connection.
    pub sessions_ended: u64,
    /// Datagrams that were lost here: for want of room, or of a connection.
    pub datagrams_dropped: u64,
}

/// Ends a [`TcpFabric::wait`] from any thread.
#[derive(Debug, Clone)]
pub struct FabricWaker(Arc<Waker>);

impl FabricWaker {
    /// Ends the wait that is under way, or else the next one.
    pub fn wake(&self) {
        // It fails where the process has no memory for it left. Waits end by themselves, too.
        let _ = self.0.wake();
    }
}

/// One node's sockets.
#[derive(Debug)]
pub struct TcpFabric {
    own: Identity,
    options: TcpOptions,
    clock: Clock,
    poll: Poll,
    events: Events,
    waker: FabricWaker,
    /// Somebody woke it since it last waited, and a poll has seen that.
    is_woken: bool,
    listener: TcpListener,
    next_token: usize,
    accepted: BTreeMap<Token, Accepted>,
    peers: BTreeMap<NodeId, Peer>,
    dialed: BTreeMap<Token, NodeId>,
    exports: Exports,
    inbox: Inbox,
    counters: TcpCounters,
}

impl TcpFabric {
    /// A node that listens at `address`, and knows nobody yet. A memory node has a `life` that is not 0 and that no other process of it ever had; others may have 0.
    ///
    /// # Errors
    /// What the system says of the address, or where it has no more sockets.
    pub fn bind(node: NodeId, life: u64, address: SocketAddr, options: TcpOptions) -> io::Result<TcpFabric> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(address)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = FabricWaker(Arc::new(Waker::new(poll.registry(), WAKER)?));
        Ok(TcpFabric {
            own: Identity { node, life },
            options,
            clock: Clock::system(),
            poll,
            events: Events::with_capacity(256),
            waker,
            is_woken: false,
            listener,
            next_token: FIRST_CONNECTION,
            accepted: BTreeMap::new(),
            peers: BTreeMap::new(),
            dialed: BTreeMap::new(),
            exports: Exports::default(),
            inbox: Inbox::default(),
            counters: TcpCounters::default(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Has others work on a region of memory here.
    pub fn export(&mut self, region: u16, bytes: Vec<u8>) {
        self.exports.add(region, bytes);
    }

    /// Has a memory node serve only until a time of [`Clock::system`] in nanoseconds, which somebody else moves on. Once it has come nothing more is answered, ever: whoever asks is told that this life is over,
    /// so that the node is lost to him.
    pub fn serve_until(&mut self, until: Arc<AtomicU64>) {
        self.exports.serve_until(self.clock.clone(), until);
    }

    /// Whether that time has come.
    pub fn is_out_of_lease(&mut self) -> bool {
        self.exports.is_out_of_lease()
    }

    /// The memory of a region, as it is now.
    pub fn memory(&self, region: u16) -> Option<&[u8]> {
        self.exports.region(region)
    }

    /// Says where a node is. A memory node is dialed in the life that is told, and never in another: its memory was lost with that. 0: in any.
    /// Of a node that is known already: where it is the same place and life, nothing changes. Else what is under way there ends, as of a node that cannot be reached.
    pub fn meet(&mut self, node: NodeId, address: SocketAddr, life: u64) {
        match self.peers.entry(node) {
            Entry::Vacant(vacant) => {
                vacant.insert(Peer::new(node, address, life));
            }
            Entry::Occupied(mut known) => known.get_mut().move_to(address, life, &mut self.inbox),
        }
    }

    /// What ends its waits.
    pub fn waker(&self) -> FabricWaker {
        self.waker.clone()
    }

    /// What others did to it.
    pub fn counters(&self) -> TcpCounters {
        TcpCounters { datagrams_dropped: self.inbox.dropped, ..self.counters }
    }

    /// Why a node that was dialed refused, the last time that it did.
    pub fn refusal(&self, node: NodeId) -> Option<FabricRefusal> {
        self.peers.get(&node)?.refusal
    }

    /// Waits until there is something to [`poll`](Fabric::poll), somebody wakes it, a network event was dealt with, or the time is over. Less than a millisecond counts as one.
    pub fn wait(&mut self, at_most: Duration) {
        if self.inbox.is_empty() && !std::mem::take(&mut self.is_woken) {
            self.go_on(at_most);
            self.is_woken = false;
        }
    }

    /// Sends what was posted, as far as that goes without waiting; polling does, too.
    pub fn flush(&mut self) {
        for peer in self.peers.values_mut() {
            if let Some(connection) = peer.connection_mut() {
                connection.flush();
            }
        }
    }

    /// Cuts the connection to a node, as if the network had.
    #[cfg(test)]
    pub(crate) fn cut(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.cut();
        }
    }

    /// Bytes of answers and datagrams that wait to be read by others, most of them for one.
    #[cfg(test)]
    fn most_unsent(&self) -> usize {
        self.accepted.values().map(Accepted::unsent).max().unwrap_or(0)
    }

    /// Deals with what is to be done, waits for what comes, and deals with that.
    fn go_on(&mut self, at_most: Duration) {
        let now = self.clock.monotonic_ns();
        self.dial(now);
        self.flush();
        let has_work = !self.inbox.is_empty()
            || self.accepted.values().any(Accepted::has_work)
            || self.peers.values().any(Peer::has_work);
        let due = self.peers.values().filter_map(|peer| peer.due(&self.options)).min();
        let mut timeout = if has_work { Duration::ZERO } else { at_most };
        if let Some(due) = due {
            timeout = timeout.min(Duration::from_nanos(due.saturating_sub(now)));
        }
        // It fails where a signal comes: nothing happened then.
        let is_polled = self.poll.poll(&mut self.events, Some(timeout)).is_ok();
        let now = self.clock.monotonic_ns();
        if is_polled {
            self.take_events(now);
        }
        self.serve(now);
        let options = self.options;
        for peer in self.peers.values_mut() {
            peer.go_on(now, self.own.node, &options, &mut self.inbox);
        }
    }

    fn take_events(&mut self, now: Nanos) {
        let mut has_callers = false;
        for event in &self.events {
            let token = event.token();
            let readable = event.is_readable() || event.is_read_closed() || event.is_error();
            let writable = event.is_writable() || event.is_write_closed() || event.is_error();
            let peer = self.dialed.get(&token).and_then(|node| self.peers.get_mut(node));
            if token == LISTENER {
                has_callers = true;
            } else if token == WAKER {
                self.is_woken = true;
            } else if let Some(accepted) = self.accepted.get_mut(&token) {
                accepted.connection_mut().is_ready(readable, writable);
            } else if let Some(connection) = peer.and_then(Peer::connection_mut) {
                connection.is_ready(readable, writable);
            }
        }
        if has_callers {
            self.accept(now);
        }
    }

    fn token(&mut self) -> Token {
        let token = Token(self.next_token);
        self.next_token = self.next_token.wrapping_add(1).max(FIRST_CONNECTION);
        token
    }

    fn dial(&mut self, now: Nanos) {
        let mut token = self.token();
        let options = self.options;
        let mut dialed = Vec::new();
        for (&node, peer) in &mut self.peers {
            if peer.dial_if_due(now, &options, (self.poll.registry(), token), &mut self.inbox) {
                dialed.push((token, node));
                token = Token(token.0.wrapping_add(1).max(FIRST_CONNECTION));
            }
        }
        self.next_token = token.0;
        for (token, node) in dialed {
            self.dialed.retain(|_, other| *other != node);
            self.dialed.insert(token, node);
        }
    }

    fn accept(&mut self, now: Nanos) {
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                // That of one caller, who has gone again: there may be others behind him.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                    ) =>
                {
                    continue;
                }
                // Nobody is left, or no sockets are: the next caller is another attempt.
                Err(_) => return,
            };
            self.counters.accepted += 1;
            let token = self.token();
            let interest = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(&mut stream, token, interest).is_ok() {
                self.take_in(now, token, stream);
            }
        }
    }

    fn take_in(&mut self, now: Nanos, token: Token, stream: TcpStream) {
        let mut accepted = Accepted::new(TcpConnection::new(stream), now);
        if self.accepted.len() >= self.options.connections_max {
            // He may not get to read it: nothing is kept of who is one too many.
            self.counters.busy += 1;
            accepted.connection_mut().is_ready(false, true);
            accepted.refuse(now, FabricRefusal::Busy(self.options.connections_max as u64));
            return;
        }
        self.accepted.insert(token, accepted);
    }

    /// Serves all who dialed, each for a turn.
    fn serve(&mut self, now: Nanos) {
        let tokens: Vec<Token> = self.accepted.keys().copied().collect();
        for token in tokens {
            let Some(accepted) = self.accepted.get_mut(&token) else { continue };
            if let Some(from) = accepted.go_on(now, self.own, &mut self.exports, &mut self.inbox) {
                // What is left of earlier connections of this node is not executed any more: only now it is welcomed.
                self.end(|other, of| *other != token && of.from() == Some(from));
                if let Some(accepted) = self.accepted.get_mut(&token) {
                    accepted.go_on(now, self.own, &mut self.exports, &mut self.inbox);
                }
            }
        }
        let greeting_ns = self.options.unreachable_ns;
        self.end(|_, accepted| accepted.is_over(now, greeting_ns));
    }

    /// Ends connections, and with them the sessions that came by them.
    fn end(&mut self, is_ended: impl Fn(&Token, &Accepted) -> bool) {
        for (_, ended) in self.accepted.extract_if(.., |token, accepted| is_ended(token, accepted)) {
            for session in ended.sessions().filter(|session| *session != SessionId::OF_THE_POOL) {
                self.exports.fence(session);
                self.counters.sessions_ended += 1;
            }
        }
    }
}

impl Fabric for TcpFabric {
    fn post(&mut self, session: SessionId, to: MemoryNode, batch: Batch, tag: u64) {
        let node = NodeId::agent(to);
        if node == self.own.node {
            let result = self.exports.execute(session, &batch);
            return self.inbox.done(tag, result);
        }
        if !is_within_limits(&batch) {
            return self.inbox.done(tag, Err(PostError::OutOfBounds));
        }
        match self.peers.get_mut(&node) {
            Some(peer) => peer.post(session, batch, tag, &mut self.inbox),
            None => self.inbox.done(tag, Err(PostError::Lost)),
        }
    }

    fn send(&mut self, to: NodeId, bytes: Vec<u8>) {
        if to == self.own.node {
            return self.inbox.received(bytes);
        }
        match self.peers.get_mut(&to).filter(|_| bytes.len() <= DATAGRAM_BYTES_MAX) {
            Some(peer) => peer.send(bytes, &mut self.inbox),
            None => self.inbox.dropped += 1,
        }
    }

    fn fence(&mut self, session: SessionId, tag: u64) {
        self.exports.fence(session);
        self.inbox.done(tag, Ok(Vec::new()));
    }

    fn poll(&mut self) -> Option<FabricEvent> {
        if self.inbox.is_empty() {
            self.go_on(Duration::ZERO);
        }
        self.inbox.take()
    }
}
