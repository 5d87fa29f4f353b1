//! The two kinds of nodes that join a pool.
//!
//! Owns what a process does from having an address of the pool to being a node of it. Promises that a memory node serves within its lease only, and that a compute node's fabric knows where all others are. Must
//! not know what a compute node works at.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hedgerow_device::Random;

use super::control::{BookEntry, PoolRole};
use super::join::{JoinError, Joined, Membership, join};
use super::plan::fabric_options;
use crate::agent::Agent;
use crate::client::ClientOptions;
use crate::fabric::NodeId;
use crate::fabric::tcp::TcpFabric;
use crate::node::NodeDriver;
use crate::region::PoolLayout;

/// Whether a node could listen there, before it asks for a number: one that is started again and again where it cannot would use up all that a pool has.
fn check_listen(listen: SocketAddr) -> Result<(), JoinError> {
    let cannot = |error: io::Error| JoinError::Listen(listen, error);
    if listen.ip().is_unspecified() {
        let why = "others must be told one address at which it can be reached";
        return Err(cannot(io::Error::new(io::ErrorKind::InvalidInput, why)));
    }
    TcpListener::bind(listen).map(drop).map_err(cannot)
}

/// Has a node that has joined listen, and says where it does: at a port that the system chooses, where `listen` has port 0.
fn bind(joined: &Joined, life: u64, listen: SocketAddr) -> Result<(TcpFabric, SocketAddr), JoinError> {
    let cannot = |error: io::Error| JoinError::Listen(listen, error);
    let fabric = TcpFabric::bind(joined.welcome.node, life, listen, fabric_options()).map_err(cannot)?;
    let address = fabric.address().map_err(cannot)?;
    Ok((fabric, address))
}

/// A compute node that is part of a pool.
#[derive(Debug)]
pub struct JoinedCompute {
    /// Its number, which no other process of this pool ever had or will have.
    pub node: NodeId,
    /// Boots for its clients, one each: no two lives of the node have the same.
    pub boots: std::ops::RangeFrom<u64>,
    /// How the pool's memory is laid out.
    pub layout: PoolLayout,
    /// What its clients are to work by.
    pub client: ClientOptions,
    /// Listens, and knows where all others are.
    pub fabric: TcpFabric,
    /// Its place in the pool, for as long as this is kept.
    pub membership: Membership,
}

/// Joins a pool as a compute node. It waits up to `patience` for the manager to be there and the pool to have begun.
///
/// `listen` is where others reach this node: an address of this machine, with port 0 for one that the system chooses. `changed` is told of every node that comes later, or is somewhere else, with its address and
/// life, from the membership's own thread: it is to have the fabric [`meet`](TcpFabric::meet) the node, and must not wait for long.
///
/// # Errors
/// Who cannot be reached, why the manager refuses, or what the system says of `listen`.
pub fn join_compute(
    manager: SocketAddr,
    listen: SocketAddr,
    patience: Duration,
    mut changed: impl FnMut(NodeId, SocketAddr, u64) + Send + 'static,
) -> Result<JoinedCompute, JoinError> {
    check_listen(listen)?;
    let mut joined = join(manager, (PoolRole::Compute, 0), patience)?;
    let welcome = joined.welcome;
    let (mut fabric, address) = bind(&joined, 0, listen)?;
    joined.say_ready(address);
    let mut book = joined.first_book()?;
    book.remove(&welcome.node);
    book.values().for_each(|entry| fabric.meet(entry.node, entry.address, entry.life));
    let membership = joined.stay(book, move |entry| changed(entry.node, entry.address, entry.life))?;
    let (node, layout, client) = (welcome.node, welcome.layout, welcome.client);
    Ok(JoinedCompute { node, boots: welcome.first_boot.., layout, client, fabric, membership })
}

/// A memory node that is part of a pool. Whoever has it calls [`step`](MemoryNodeHost::step) again and again, and drops it once that says that it serves no more.
#[derive(Debug)]
pub struct MemoryNodeHost {
    // Its fabric goes before the membership does: it serves no longer than that.
    driver: NodeDriver<Agent>,
    membership: Membership,
    news: Receiver<BookEntry>,
    node: NodeId,
    address: SocketAddr,
}

impl MemoryNodeHost {
    /// Joins a pool as one of its memory nodes, and takes the memory for that. `listen` and `patience` are as for [`join_compute`].
    ///
    /// # Errors
    /// As for [`join_compute`].
    pub fn join(
        manager: SocketAddr,
        listen: SocketAddr,
        patience: Duration,
    ) -> Result<MemoryNodeHost, JoinError> {
        check_listen(listen)?;
        // No other process ever has the same, but for a chance of one in two to the power of 63.
        let life = Random::from_entropy().next_u64() | 1;
        let mut joined = join(manager, (PoolRole::Memory, life), patience)?;
        let welcome = joined.welcome;
        let (mut fabric, address) = bind(&joined, life, listen)?;
        let layout = welcome.layout;
        let Some(memory) = welcome.node.as_memory_node() else {
            return Err(JoinError::Silent(manager));
        };
        for region in layout.regions().filter(|&region| layout.replicas(region).any(|node| node == memory)) {
            fabric.export(region, layout.empty_region(region));
        }
        joined.say_ready(address);
        let (tell, news) = channel();
        let waker = fabric.waker();
        let membership = joined.stay(Default::default(), move |entry| {
            // It fails where the node is on its way out.
            let _ = tell.send(entry);
            waker.wake();
        })?;
        fabric.serve_until(membership.serves_until());
        let driver = NodeDriver::new(Agent::new(memory, layout, welcome.retry_ns), fabric);
        Ok(MemoryNodeHost { driver, membership, news, node: welcome.node, address })
    }

    /// Its number.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Where its fabric listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Goes on, or waits for `at_most`. Whether it is to be called again: if not, the node's lease is over, and its memory of no use to anybody any more.
    pub fn step(&mut self, at_most: Duration) -> bool {
        for entry in self.news.try_iter() {
            self.driver.fabric_mut().meet(entry.node, entry.address, entry.life);
        }
        self.driver.step(at_most);
        !self.membership.is_over() && !self.driver.fabric_mut().is_out_of_lease()
    }
}
