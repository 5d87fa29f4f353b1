//! A node that dialed this one.
//!
//! Owns one connection that was accepted, from greeting to end. Promises that its batches are executed in the order in which they came, that nobody is served before he has said who he is and whom he wants,
//! that whatever is no frame is answered by a refusal and ends the connection, and that answers that nobody reads stop the reading of batches. Must not know of other connections.

use std::collections::BTreeSet;

use super::connection::TcpConnection;
use super::exports::Exports;
use super::frame::{FabricRefusal, Frame, VERSION};
use super::inbox::Inbox;
use crate::fabric::{Nanos, NodeId, SessionId};

/// Bytes of answers that wait before more batches are executed: one more answer is on top of that.
pub(super) const UNSENT_MAX: usize = 1 << 20;
/// Frames that are taken in at once, so that all connections get their turn.
const FRAMES_A_TURN: usize = 64;
/// Who was refused has so long to read why.
const LINGER_NS: Nanos = 1_000_000_000;

/// Who this node is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    pub(super) node: NodeId,
    pub(super) life: u64,
}

#[derive(Debug)]
pub(super) struct Accepted {
    connection: TcpConnection,
    since: Nanos,
    from: Option<NodeId>,
    /// Whose batches came.
    sessions: BTreeSet<SessionId>,
    /// When it was refused.
    refused_at: Option<Nanos>,
}

impl Accepted {
    pub(super) fn new(connection: TcpConnection, now: Nanos) -> Accepted {
        Accepted { connection, since: now, from: None, sessions: BTreeSet::new(), refused_at: None }
    }

    pub(super) fn connection_mut(&mut self) -> &mut TcpConnection {
        &mut self.connection
    }

    /// Who it is, once he said so.
    pub(super) fn from(&self) -> Option<NodeId> {
        self.from
    }

    /// Whether there is something to do here without anything new having happened.
    pub(super) fn has_work(&self) -> bool {
        self.connection.has_work() && self.connection.unsent() <= UNSENT_MAX
    }

    /// Bytes that wait to be read by it.
    #[cfg(test)]
    pub(super) fn unsent(&self) -> usize {
        self.connection.unsent()
    }

    /// Whether it is at its end: nothing is left to do, or the time for it is over.
    pub(super) fn is_over(&self, now: Nanos, greeting_ns: Nanos) -> bool {
        let is_late = |since: Nanos, most: Nanos| now.saturating_sub(since) > most;
        self.connection.is_over()
            || self.refused_at.is_some_and(|at| is_late(at, LINGER_NS))
            || self.from.is_none() && is_late(self.since, greeting_ns)
    }

    /// The sessions that end with it.
    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.sessions.iter().copied()
    }

    /// Says why nothing goes on here.
    pub(super) fn refuse(&mut self, now: Nanos, refusal: FabricRefusal) {
        Frame::Refused(refusal).append_to(self.connection.output());
        self.refused_at = Some(now);
        self.connection.end();
    }

    /// Takes in what came, and sends what is to go out. Returns who it is, if he said so just now: he is not welcomed before this is called again, once earlier connections of his have ended.
    pub(super) fn go_on(
        &mut self,
        now: Nanos,
        own: Identity,
        exports: &mut Exports,
        inbox: &mut Inbox,
    ) -> Option<NodeId> {
        if self.refused_at.is_some() {
            self.connection.end();
            return None;
        }
        self.connection.flush();
        if self.connection.unsent() <= UNSENT_MAX {
            self.connection.fill();
        }
        let mut greeted = None;
        for _ in 0..FRAMES_A_TURN {
            if self.connection.unsent() > UNSENT_MAX || greeted.is_some() {
                break;
            }
            let refusal = match self.connection.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => self.frame(frame, own, exports, inbox, &mut greeted),
                Err(_) => Some(FabricRefusal::Malformed),
            };
            if let Some(refusal) = refusal {
                self.refuse(now, refusal);
                return None;
            }
        }
        if greeted.is_none() {
            self.connection.flush();
        }
        greeted
    }

    fn frame(
        &mut self,
        frame: Frame,
        own: Identity,
        exports: &mut Exports,
        inbox: &mut Inbox,
        greeted: &mut Option<NodeId>,
    ) -> Option<FabricRefusal> {
        match (self.from, frame) {
            (None, Frame::ForeignHello(_)) => Some(FabricRefusal::Version(VERSION)),
            (None, Frame::Hello { to, .. }) if to != own.node => Some(FabricRefusal::OtherNode(own.node)),
            (None, Frame::Hello { .. }) if exports.is_out_of_lease() => Some(FabricRefusal::OtherLife(0)),
            (None, Frame::Hello { life, .. }) if life != 0 && life != own.life => {
                Some(FabricRefusal::OtherLife(own.life))
            }
            (None, Frame::Hello { from, .. }) => {
                (self.from, *greeted) = (Some(from), Some(from));
                Frame::Welcome(own.life).append_to(self.connection.output());
                None
            }
            (Some(_), Frame::Datagram(bytes)) => {
                inbox.received(bytes);
                None
            }
            (Some(_), Frame::Batch(number, session, batch)) => {
                self.sessions.insert(session);
                let result = exports.execute(session, &batch);
                // Its life is over: nobody hears of what may have been done since.
                if exports.is_out_of_lease() {
                    return Some(FabricRefusal::OtherLife(0));
                }
                Frame::Answer(number, result).append_to(self.connection.output());
                None
            }
            _ => Some(FabricRefusal::Malformed),
        }
    }
}
