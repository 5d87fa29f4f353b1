//! What machines are given, and what they give.
//!
//! Owns [`In`] and [`Out`]. A machine is a node's protocol without I/O: it is told the time and what happened, and says what is to be done. So the simulation, an exhaustive
//! exploration and a real transport drive the same code. Must not know any machine.

use crate::fabric::{Batch, Nanos, NodeId, PostResult, SessionId};
use crate::region::MemoryNode;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum In<C> {
    /// A datagram came.
    Message(Vec<u8>),
    /// A batch, or a fence, with this tag is done.
    Done(u64, PostResult),
    /// A time came that was asked for, or any other.
    Tick,
    /// Somebody on this node wants something.
    Call(C),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Out<A> {
    /// Post a batch.
    Post {
        /// For whom.
        session: SessionId,
        /// To which memory node.
        to: MemoryNode,
        /// What.
        batch: Batch,
        /// Comes back with the completion.
        tag: u64,
    },
    /// Fence a session at this memory node.
    Fence {
        /// Whose operations are not to be executed any more.
        session: SessionId,
        /// Comes back with the completion.
        tag: u64,
    },
    /// Send a datagram.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        bytes: Vec<u8>,
    },
    /// What a call answers.
    Answer(A),
    /// Tick at this time, or soon after.
    At(Nanos),
}

/// A node's protocol: a client, an agent or the manager.
pub trait Machine {
    /// What it can be asked.
    type Call;
    /// What it answers.
    type Answer;

    /// Takes in what happened at a time of the node's own clock, and adds what is to be done.
    fn on(&mut self, now: Nanos, input: In<Self::Call>, out: &mut Vec<Out<Self::Answer>>);
}
