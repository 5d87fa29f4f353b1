//! Processes: how they become nodes of one pool, and who watches them.
//!
//! Owns what is said over the control connections of a pool. Promises that whoever knows the pool's address can join it, that everybody is told where all others are, that a compute node that is silent is
//! fenced, and that a memory node is called lost only when it serves no more. Must not know what the pool keeps. There is neither encryption nor proof of who somebody is, as in `fabric/tcp.rs`.
//!
//! | file | what |
//! |---|---|
//! | `control.rs` | the bytes |
//! | `stream.rs` | frames out of a stream and into it |
//! | `lease.rs` | until when a node serves, and from when it may be called lost: two machines without I/O |
//! | `plan.rs` | what a pool is to be |
//! | `server.rs` | the manager's process |
//! | `join.rs` | joining, and a node's side of its control connection |
//! | `nodes.rs` | memory nodes and compute nodes |
//!
//! [Decision 49](https://github.com/hedgerow/hedgerow/blob/main/docs/decisions/0049-pool-processes.md) says what else was considered.

mod control;
mod join;
mod lease;
mod nodes;
mod plan;
mod server;
mod stream;
#[cfg(test)]
mod tests;

pub use control::{
    BookEntry, COMPUTE_NODES_EVER, JoinRefusal, NodeStatus, PoolNodeState, PoolRole, PoolState, PoolStatus,
};
pub use join::{JoinError, Membership, ask_status};
pub use nodes::{JoinedCompute, MemoryNodeHost, join_compute};
pub use plan::{COMPUTE_NODES_MAX, PoolPlan, WatchOptions};
pub use server::PoolManager;
