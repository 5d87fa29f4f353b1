//! Pairs in memory that many nodes share.
//!
//! The memory is gone with the machines: what is kept is kept in copies on several memory nodes, which compute nodes read and change by one-sided operations. It
//! works over a simulated network and over TCP. `docs/pool.md` says what it promises and what not.
//!
//! # The parts
//!
//! | module | owns |
//! |---|---|
//! | `word`, `object`, `parts`, `bucket`, `region`, `wire`, `rpc`, `accesses` | bytes in the memory of others, and of messages |
//! | `fabric` | what carries operations and messages: a simulation in virtual time, and TCP |
//! | `machine` | what machines are given and give |
//! | `client`, `agent`, `manager` | the protocol, without I/O: direct mode, with SNAPSHOT over the copies of the index (FUSEE, FAST 2023) |
//! | `place` | which partitions get a proxy, and where |
//! | `proxy` | the other mode: a client's node changes the index of a partition for all (FlexKV, arXiv 2512.16148) |
//! | `cluster` | a whole pool over the simulation |
//! | `node` | one node of a pool over TCP |
//! | `compute_node` | a client over TCP on a thread of its own, for callers on any other |
//! | `backend` | rows in the pool |
//! | `membership` | processes that join a pool, and are watched |
//!
//! There is no `unsafe` in here; outside of `fabric/tcp.rs`, `node.rs`, `compute_node.rs` and `membership.rs` neither clock nor I/O, and outside of the last two no thread. Arrows run one way: formats `<- fabric <- machine <- proxy <- client, agent, manager <- cluster`, `fabric <- place <- manager`, `fabric, machine <- node`, `client, node <- compute_node <- backend`, and `node, client, agent, manager <- membership`.
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests use the machine as it is"))]

pub mod accesses;
pub mod agent;
pub mod backend;
pub mod bucket;
pub mod client;
pub mod cluster;
pub mod compute_node;
mod error;
pub mod fabric;
pub mod machine;
pub mod manager;
pub mod membership;
pub mod node;
pub mod object;
pub mod parts;
pub mod place;
mod proxy;
pub mod region;
mod repairs;
pub mod rpc;
mod sync;
#[cfg(test)]
mod tests;
pub mod wire;
pub mod word;

pub use backend::PoolBackend;
pub use error::{PoolError, Result};
pub use proxy::ProxyCounters;
