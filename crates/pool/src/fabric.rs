//! What carries operations to memory nodes, and messages between nodes.
//!
//! Owns the contract of [`Fabric`], which every transport keeps alike and `fabric/conformance.rs` tests. Must not know what is stored or said.
//!
//! # The contract
//!
//! * Reads, writes, compare-and-swaps and fetch-and-adds of 8 aligned bytes are atomic among operations of their own kind. Writes and atomics must not meet on
//!   one word: InfiniBand promises nothing of that.
//! * Reads and writes of more than 8 bytes may be torn, between words of 8 aligned bytes.
//! * The writes and atomics of one batch are executed in order. There is no order between batches, and none of reads.
//! * What is completed was executed, and every later read sees it.
//! * What is not completed may be executed at any later time, even after its poster crashed, until a fence of its session is acknowledged.
//! * Datagrams may be lost, doubled and overtaken, never changed.
//! * A session can be fenced without anybody having asked: where the way to a memory node is lost, and not the node, it ends the session there.
//! * Batches have limits, [`BATCH_BYTES_MAX`] and [`RESULT_BYTES_MAX`]; what is beyond them is out of bounds.
//! * Nothing blocks. Buffers belong to the fabric while they are posted: they are moved in, and moved out with the completion.

#[cfg(test)]
mod conformance;
pub(crate) mod memory;
pub mod nic;
pub mod sim;
pub mod tcp;

use crate::region::{MemoryNode, RemoteAddress};

/// Nanoseconds of a node's own clock.
pub type Nanos = u64;

/// Whoever sends and receives messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u16);

impl NodeId {
    /// The node that manages the configuration.
    pub const MANAGER: NodeId = NodeId(0x8000);
    const MEMORY: u16 = 0x4000;

    /// The agent of a memory node.
    pub fn agent(node: MemoryNode) -> NodeId {
        NodeId(NodeId::MEMORY + u16::from(node.0))
    }

    /// The memory node whose agent this is.
    pub fn as_memory_node(self) -> Option<MemoryNode> {
        let number = self.0.checked_sub(NodeId::MEMORY)?;
        u8::try_from(number).ok().map(MemoryNode)
    }
}

/// One life of a compute node, as memory nodes know it: what they fence. Given by the manager and never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u16);

impl SessionId {
    /// That of agents and the manager, which nobody fences.
    pub const OF_THE_POOL: SessionId = SessionId(0);
}

/// One operation on a memory node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RemoteOp {
    /// Reads so many bytes.
    Read(RemoteAddress, u32),
    /// Writes the bytes.
    Write(RemoteAddress, Vec<u8>),
    /// Stores the third if the second is there; answers what was.
    CompareAndSwap(RemoteAddress, u64, u64),
    /// Adds, wrapping around; answers what was there.
    FetchAndAdd(RemoteAddress, u64),
}

impl RemoteOp {
    /// Where, and how many bytes.
    pub fn extent(&self) -> (RemoteAddress, usize) {
        match self {
            RemoteOp::Read(at, len) => (*at, *len as usize),
            RemoteOp::Write(at, bytes) => (*at, bytes.len()),
            RemoteOp::CompareAndSwap(at, ..) | RemoteOp::FetchAndAdd(at, _) => (*at, 8),
        }
    }

    /// Whether it is a compare-and-swap or a fetch-and-add.
    pub fn is_atomic(&self) -> bool {
        matches!(self, RemoteOp::CompareAndSwap(..) | RemoteOp::FetchAndAdd(..))
    }
}

/// Operations that are posted together, to one memory node.
pub type Batch = Vec<RemoteOp>;

/// Bytes of a datagram at most.
pub const DATAGRAM_BYTES_MAX: usize = 4096;
/// Bytes of a batch at most: what it writes, and [`OPERATION_BYTES`] for each operation.
pub const BATCH_BYTES_MAX: usize = 8 << 20;
/// Bytes of a batch's results at most: what it reads, 8 for each atomic, and [`RESULT_HEAD_BYTES`] for each operation. The largest sub-table of an index is within it.
pub const RESULT_BYTES_MAX: usize = 16 << 20;
/// What an operation counts beside its bytes.
pub const OPERATION_BYTES: usize = 24;
/// What a result counts beside its bytes.
pub const RESULT_HEAD_BYTES: usize = 8;

/// Whether a batch is short enough to be posted.
pub fn is_within_limits(batch: &Batch) -> bool {
    let (mut posted, mut answered) = (0u64, 0u64);
    for op in batch {
        let bytes = op.extent().1 as u64;
        let is_write = matches!(op, RemoteOp::Write(..));
        posted += OPERATION_BYTES as u64 + if is_write { bytes } else { 0 };
        answered += RESULT_HEAD_BYTES as u64 + if is_write { 0 } else { bytes };
    }
    posted <= BATCH_BYTES_MAX as u64 && answered <= RESULT_BYTES_MAX as u64
}

/// What one operation answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OpResult {
    /// What was read.
    Bytes(Vec<u8>),
    /// It was written.
    Written,
    /// What was there before.
    Before(u64),
}

/// Why a batch did not complete. Any part of it may have been executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PostError {
    /// The memory node does not answer.
    Lost,
    /// The session is fenced there, or this node cannot reach the memory node any more, which may be up: the session must end.
    Fenced,
    /// An operation is outside of the node's memory, or an atomic one is not aligned, or the batch is too long: nothing was executed.
    OutOfBounds,
}

/// The results of a batch, in its order.
pub type PostResult = Result<Vec<OpResult>, PostError>;

/// What a fabric tells a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FabricEvent {
    /// What was posted, or the fence that was asked for, with this tag is done.
    Done(u64, PostResult),
    /// A datagram.
    Received(Vec<u8>),
}

/// A node's way to the others.
pub trait Fabric {
    /// Posts a batch. Its completion has the tag.
    fn post(&mut self, session: SessionId, to: MemoryNode, batch: Batch, tag: u64);
    /// Sends a datagram of at most 4,096 bytes.
    fn send(&mut self, to: NodeId, bytes: Vec<u8>);
    /// At a memory node, for its agent: nothing of the session is executed here after the completion, which has the tag.
    fn fence(&mut self, session: SessionId, tag: u64);
    /// What happened next, if anything did.
    fn poll(&mut self) -> Option<FabricEvent>;
}
