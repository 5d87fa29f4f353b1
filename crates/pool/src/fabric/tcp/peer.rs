//! A node that this one dials, and what is under way there.
//!
//! Owns what was posted and sent to one node. Promises that each batch is done once, and what its end says: results that came; `OutOfBounds`; `Lost` only where the node is gone, where it never
//! was reached, or of the pool's own session; `Fenced` wherever a batch may have been executed, or may still be, by a node that may be up. Must not know what others it dials, or of sockets but through `connection.rs`.
//!
//! A connection that ends, where the node does not, ends the session at that node: it fences the session when it sees the end, or the next connection of the same node, which is welcomed after that. So who is
//! welcomed again knows that nothing comes late of what was under way, and ends it as `Fenced`: the node begins a new session.
//! A connection that brings nothing for `unreachable_ns` while batches are under way is cut: a memory node answers within milliseconds, so it, or the way to it, stands still, and the kernel would take a quarter of an hour to say so.
//! The pool's own session cannot be fenced. What only reads and writes is posted again for it: it was executed or not, and cannot come late, so that the second time is as the first.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::TcpOptions;
use super::connection::TcpConnection;
use super::frame::{FabricRefusal, Frame, append_batch};
use super::inbox::Inbox;
use crate::fabric::{
    Batch, Nanos, NodeId, OPERATION_BYTES, OpResult, PostError, PostResult, RemoteOp, SessionId,
};

/// Bytes of batches that are posted and not done, at most: of what is beyond, the session must end.
const POSTED_BYTES_MAX: usize = 64 << 20;
/// Datagrams that wait for a connection at most, and bytes that wait before one.
const WAITING_DATAGRAMS_MAX: usize = 256;
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Frames that are taken in at once.
const FRAMES_A_TURN: usize = 64;

#[derive(Debug)]
struct PostedBatch {
    number: u32,
    tag: u64,
    session: SessionId,
    batch: Batch,
    is_sent: bool,
}

impl PostedBatch {
    fn bytes(&self) -> usize {
        let written = |op: &RemoteOp| if let RemoteOp::Write(_, bytes) = op { bytes.len() } else { 0 };
        self.batch.iter().map(|op| OPERATION_BYTES + written(op)).sum()
    }

    /// Whether it may be executed again.
    fn is_repeatable(&self) -> bool {
        self.session == SessionId::OF_THE_POOL && !self.batch.iter().any(RemoteOp::is_atomic)
    }

    /// Whether these can be its results.
    fn is_answered_by(&self, result: &PostResult) -> bool {
        let is_of = |(op, result): (&RemoteOp, &OpResult)| match (op, result) {
            (RemoteOp::Read(_, len), OpResult::Bytes(bytes)) => bytes.len() == *len as usize,
            (RemoteOp::Write(..), OpResult::Written) => true,
            (op, OpResult::Before(_)) => op.is_atomic(),
            _ => false,
        };
        result.as_ref().map_or(true, |results| {
            results.len() == self.batch.len() && self.batch.iter().zip(results).all(is_of)
        })
    }
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connecting,
    Greeting,
    Open,
}

/// Why a connection ended.
enum Ended {
    /// Nobody listens there.
    NobodyThere,
    Refused(FabricRefusal),
    Otherwise,
}

#[derive(Debug)]
pub(super) struct Peer {
    node: NodeId,
    address: SocketAddr,
    life: u64,
    connection: Option<TcpConnection>,
    stage: Stage,
    dial_at: Option<Nanos>,
    /// Since when there is no connection although one is wanted.
    unreachable_since: Option<Nanos>,
    /// Since when batches are under way and nothing came.
    silent_since: Option<Nanos>,
    was_open: bool,
    is_gone: bool,
    posted: VecDeque<PostedBatch>,
    posted_bytes: usize,
    datagrams: VecDeque<Vec<u8>>,
    next_number: u32,
    /// What the last refusal said.
    pub(super) refusal: Option<FabricRefusal>,
}

impl Peer {
    pub(super) fn new(node: NodeId, address: SocketAddr, life: u64) -> Peer {
        Peer {
            node,
            address,
            life,
            connection: None,
            stage: Stage::Connecting,
            dial_at: None,
            unreachable_since: None,
            silent_since: None,
            was_open: false,
            is_gone: false,
            posted: VecDeque::new(),
            posted_bytes: 0,
            datagrams: VecDeque::new(),
            next_number: 0,
            refusal: None,
        }
    }

    /// Posts a batch that is within the limits.
    pub(super) fn post(&mut self, session: SessionId, batch: Batch, tag: u64, inbox: &mut Inbox) {
        if self.is_gone {
            return inbox.done(tag, Err(PostError::Lost));
        }
        let posted = PostedBatch { number: 0, tag, session, batch, is_sent: false };
        if self.posted_bytes + posted.bytes() > POSTED_BYTES_MAX {
            return inbox.done(tag, Err(PostError::Fenced));
        }
        self.posted_bytes += posted.bytes();
        self.enqueue(posted);
    }

    /// Sends it, if there is somebody to send it to.
    fn enqueue(&mut self, mut posted: PostedBatch) {
        if let Some(connection) = self.connection.as_mut().filter(|_| self.stage == Stage::Open) {
            self.next_number = self.next_number.wrapping_add(1);
            (posted.number, posted.is_sent) = (self.next_number, true);
            append_batch(posted.number, posted.session, &posted.batch, connection.output());
        }
        self.posted.push_back(posted);
    }

    pub(super) fn send(&mut self, bytes: Vec<u8>, inbox: &mut Inbox) {
        match self.connection.as_mut().filter(|_| self.stage == Stage::Open) {
            Some(connection) if connection.unsent() <= WAITING_BYTES_MAX => {
                Frame::Datagram(bytes).append_to(connection.output());
            }
            None if !self.is_gone && self.datagrams.len() < WAITING_DATAGRAMS_MAX => {
                self.datagrams.push_back(bytes);
            }
            _ => inbox.dropped += 1,
        }
    }

    fn is_wanted(&self) -> bool {
        !self.is_gone && (!self.posted.is_empty() || !self.datagrams.is_empty())
    }

    /// When there is something to do here although nothing happens.
    pub(super) fn due(&self, options: &TcpOptions) -> Option<Nanos> {
        let until = |since: Nanos| since.saturating_add(options.unreachable_ns);
        if !self.is_wanted() {
            return None;
        }
        match (&self.connection, self.stage) {
            (Some(_), Stage::Open) => self.silent_since.map(until),
            (Some(_), _) => self.unreachable_since.map(until),
            (None, _) => Some(self.dial_at.unwrap_or(0)),
        }
    }

    pub(super) fn connection_mut(&mut self) -> Option<&mut TcpConnection> {
        self.connection.as_mut()
    }

    /// Ends the connection: the next look finds it so.
    #[cfg(test)]
    pub(super) fn cut(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.cut();
        }
    }

    pub(super) fn has_work(&self) -> bool {
        self.connection.as_ref().is_some_and(TcpConnection::has_work)
    }

    /// Dials if that is due, or gives up. Whether it did dial.
    pub(super) fn dial_if_due(
        &mut self,
        now: Nanos,
        options: &TcpOptions,
        (registry, token): (&Registry, Token),
        inbox: &mut Inbox,
    ) -> bool {
        if !self.is_wanted() || self.connection.is_some() && self.stage == Stage::Open {
            if !self.posted.is_empty() {
                self.silent_since.get_or_insert(now);
            }
            return false;
        }
        let since = *self.unreachable_since.get_or_insert(now);
        if now >= since.saturating_add(options.unreachable_ns) {
            self.give_up(inbox);
            return false;
        }
        if self.connection.is_some() || self.dial_at.is_some_and(|at| now < at) {
            return false;
        }
        let register = |mut stream: TcpStream| {
            registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
            Ok(TcpConnection::new(stream))
        };
        match TcpStream::connect(self.address).and_then(register) {
            Ok(connection) => {
                (self.connection, self.stage) = (Some(connection), Stage::Connecting);
                true
            }
            Err(error) => {
                let ended = ended_by(&error);
                self.lost(now, ended, options, inbox);
                false
            }
        }
    }

    /// Takes in what came, and sends what is to go out. `from` is who dials.
    pub(super) fn go_on(&mut self, now: Nanos, from: NodeId, options: &TcpOptions, inbox: &mut Inbox) {
        let Some(connection) = &mut self.connection else { return };
        if self.stage == Stage::Connecting {
            match connection.is_connected() {
                None => return,
                Some(Err(error)) => return self.lost(now, ended_by(&error), options, inbox),
                Some(Ok(())) => {
                    Frame::Hello { from, to: self.node, life: self.life }.append_to(connection.output());
                    self.stage = Stage::Greeting;
                }
            }
        }
        connection.fill();
        for _ in 0..FRAMES_A_TURN {
            let Some(connection) = &mut self.connection else { return };
            let ended = match connection.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => self.frame(frame, inbox),
                Err(_) => Err(Ended::Otherwise),
            };
            if let Err(ended) = ended {
                return self.lost(now, ended, options, inbox);
            }
        }
        let Some(connection) = &mut self.connection else { return };
        connection.flush();
        if connection.is_over() || self.is_silent(now, options) {
            self.lost(now, Ended::Otherwise, options, inbox);
        }
    }

    /// Whether nothing came for too long although batches are under way. It is asked after what came was read, so that a node that stood still itself does not take that for the other's silence.
    fn is_silent(&mut self, now: Nanos, options: &TcpOptions) -> bool {
        let has_heard = self.connection.as_mut().is_some_and(TcpConnection::take_heard);
        if self.stage != Stage::Open || self.posted.is_empty() {
            self.silent_since = None;
            return false;
        }
        if has_heard {
            self.silent_since = Some(now);
        }
        let since = *self.silent_since.get_or_insert(now);
        now >= since.saturating_add(options.unreachable_ns)
    }

    /// Says where the node is now. Where that is no news, nothing changes; else what is under way ends as if it were given up, and the next connection goes to the new place.
    pub(super) fn move_to(&mut self, address: SocketAddr, life: u64, inbox: &mut Inbox) {
        if (address, life) != (self.address, self.life) {
            self.give_up(inbox);
            *self = Peer { next_number: self.next_number, ..Peer::new(self.node, address, life) };
        }
    }

    fn frame(&mut self, frame: Frame, inbox: &mut Inbox) -> Result<(), Ended> {
        match (self.stage, frame) {
            (Stage::Greeting, Frame::Welcome(life)) if self.life == 0 || life == self.life => {
                self.welcomed(inbox);
                Ok(())
            }
            (_, Frame::Refused(refusal)) => Err(Ended::Refused(refusal)),
            (Stage::Open, Frame::Answer(number, result)) => {
                let is_its = |posted: &mut PostedBatch| {
                    posted.is_sent && posted.number == number && posted.is_answered_by(&result)
                };
                let posted = self.posted.pop_front_if(is_its).ok_or(Ended::Otherwise)?;
                self.posted_bytes -= posted.bytes();
                inbox.done(posted.tag, result);
                Ok(())
            }
            _ => Err(Ended::Otherwise),
        }
    }

    /// Whatever went over an earlier connection is executed by now, or never.
    fn welcomed(&mut self, inbox: &mut Inbox) {
        self.stage = Stage::Open;
        self.was_open = true;
        (self.unreachable_since, self.dial_at) = (None, None);
        for posted in std::mem::take(&mut self.posted) {
            if !posted.is_sent || posted.is_repeatable() {
                self.enqueue(posted);
            } else {
                self.posted_bytes -= posted.bytes();
                inbox.done(posted.tag, Err(end_of_uncertain(posted.session)));
            }
        }
        for bytes in std::mem::take(&mut self.datagrams) {
            self.send(bytes, inbox);
        }
    }

    fn lost(&mut self, now: Nanos, ended: Ended, options: &TcpOptions, inbox: &mut Inbox) {
        self.connection = None;
        self.silent_since = None;
        self.stage = Stage::Connecting;
        self.dial_at = Some(now.saturating_add(options.redial_ns));
        self.unreachable_since.get_or_insert(now);
        let is_gone = match ended {
            // Who has a life loses it with its process, and with that its memory.
            Ended::NobodyThere => self.life != 0 && self.was_open,
            Ended::Refused(refusal) => {
                self.refusal = Some(refusal);
                matches!(refusal, FabricRefusal::OtherLife(_))
                    || matches!(refusal, FabricRefusal::OtherNode(_)) && self.life != 0 && self.was_open
            }
            Ended::Otherwise => false,
        };
        if is_gone {
            self.is_gone = true;
            self.end_all(inbox, |_| PostError::Lost);
        }
        if !self.is_wanted() {
            self.unreachable_since = None;
        }
    }

    /// It was not reached for too long. It may be up, and what it was sent may still be executed.
    fn give_up(&mut self, inbox: &mut Inbox) {
        let was_open = self.was_open;
        self.connection = None;
        self.silent_since = None;
        self.stage = Stage::Connecting;
        (self.unreachable_since, self.dial_at) = (None, None);
        self.end_all(inbox, |session| if was_open { end_of_uncertain(session) } else { PostError::Lost });
    }

    fn end_all(&mut self, inbox: &mut Inbox, error: impl Fn(SessionId) -> PostError) {
        for posted in std::mem::take(&mut self.posted) {
            inbox.done(posted.tag, Err(error(posted.session)));
        }
        self.posted_bytes = 0;
        inbox.dropped += self.datagrams.len() as u64;
        self.datagrams.clear();
    }
}

/// What is said of a batch that may have been executed. Nobody fences the pool's own session; whatever it posts next goes over a connection that is welcomed once nothing can come late.
fn end_of_uncertain(session: SessionId) -> PostError {
    match session {
        SessionId::OF_THE_POOL => PostError::Lost,
        _ => PostError::Fenced,
    }
}

fn ended_by(error: &std::io::Error) -> Ended {
    match error.kind() {
        ErrorKind::ConnectionRefused => Ended::NobodyThere,
        _ => Ended::Otherwise,
    }
}
