//! What a pool is to be, as its manager is told when it starts.
//!
//! Owns the settings of a pool of processes over TCP, and how its memory is divided. Must not know where its nodes are.

use crate::bucket::groups_for;
use crate::client::{CACHED_BYTES, ClientOptions};
use crate::error::{PoolError, Result};
use crate::fabric::Nanos;
use crate::fabric::tcp::TcpOptions;
use crate::manager::ManagerOptions;
use crate::place::PlacementOptions;
use crate::region::PoolLayout;

/// Bytes of a pair, as it is assumed where the index is measured out: four units of 64 bytes.
const PAIR_BYTES: u64 = 256;
/// Blocks of a region that are aimed at: each session takes whole ones, of each region it writes to.
const BLOCKS_AIM: u64 = 128;
const BLOCK_BYTES_LEAST: u64 = 64 << 10;
const BLOCK_BYTES_MOST: u64 = 16 << 20;

/// Compute nodes at a time, at most: others have as many connections, and a book is within its limit.
pub const COMPUTE_NODES_MAX: usize = 1000;
/// Connections of the manager and of memory nodes, and some of who is gone and was not missed yet.
const OTHER_CONNECTIONS: usize = 64;

/// How a node's fabric is set up: all that a pool may have can dial it.
pub(super) fn fabric_options() -> TcpOptions {
    let options = TcpOptions::default();
    TcpOptions {
        connections_max: options.connections_max.max(COMPUTE_NODES_MAX + OTHER_CONNECTIONS),
        ..options
    }
}

/// How nodes are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchOptions {
    /// Between two heartbeats of a node. 250 ms by default.
    pub heartbeat_ns: Nanos,
    /// A memory node whose heartbeats are not answered for so long ends, and a compute node that is silent for so long, and an eighth, is suspected. 3 s by default.
    pub lease_ns: Nanos,
    /// How much longer than that, and an eighth for clocks, a node must have been silent to be lost. 250 ms by default.
    pub margin_ns: Nanos,
}

impl Default for WatchOptions {
    fn default() -> WatchOptions {
        WatchOptions { heartbeat_ns: 250_000_000, lease_ns: 3_000_000_000, margin_ns: 250_000_000 }
    }
}

/// A pool of processes over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolPlan {
    /// How its memory is laid out.
    pub layout: PoolLayout,
    /// What its compute nodes work by.
    pub client: ClientOptions,
    /// What its manager works by.
    pub manager: ManagerOptions,
    /// How its nodes are watched.
    pub watch: WatchOptions,
    /// Compute nodes at a time, 1 to 1,000. 256 by default.
    pub compute_nodes_max: usize,
}

impl PoolPlan {
    /// A pool of so many memory nodes with so many copies and bytes for each node, in two to the power of `partition_bits` partitions; times are those for TCP.
    ///
    /// # Errors
    /// [`PoolError::OutOfBounds`] names the first setting that cannot be, and within what it can.
    pub fn new(memory_nodes: u8, copies: u8, partition_bits: u32, node_bytes: u64) -> Result<PoolPlan> {
        let layout = layout_of(memory_nodes, copies, partition_bits, node_bytes)?;
        let client = ClientOptions {
            quarantine_ns: 500_000_000,
            timeout_ns: 2_000_000_000,
            poll_ns: 50_000,
            housekeeping_ns: 2_000_000,
            depth: 64,
            cached_keys: 65_536,
            cached_bytes: CACHED_BYTES,
            rpc_retry_ns: 5_000_000,
            part_units: u8::MAX,
            lease_ns: 200_000_000,
        };
        let manager = ManagerOptions {
            retry_ns: 3_000_000,
            prepare_ns: 1_000_000_000,
            lease_ns: client.lease_ns,
            placement: Some(PlacementOptions::default()),
        };
        Ok(PoolPlan { layout, client, manager, watch: WatchOptions::default(), compute_nodes_max: 256 })
    }
}

/// Divides the bytes of a node: it has a copy of as many regions as there are copies.
fn layout_of(memory_nodes: u8, copies: u8, partition_bits: u32, node_bytes: u64) -> Result<PoolLayout> {
    let mut layout =
        PoolLayout { memory_nodes, copies, partition_bits, groups: 1, block_bytes: 4096, blocks: 1 };
    // Numbers of nodes, copies and partitions come first: what follows divides by them.
    layout.check()?;
    let region = node_bytes / u64::from(copies);
    let pairs = region * u64::from(memory_nodes) / u64::from(copies).max(1) / PAIR_BYTES;
    layout.groups = groups_for(pairs, layout.partitions().into());
    let block = (region / BLOCKS_AIM).clamp(BLOCK_BYTES_LEAST, BLOCK_BYTES_MOST);
    layout.block_bytes = (block / 4096 * 4096) as u32;
    // With one block: all but the blocks, but for a table of them.
    let before = layout.region_bytes() as u64 - u64::from(layout.block_bytes);
    let room = region.saturating_sub(before + 4096);
    layout.blocks = (room / (u64::from(layout.block_bytes) + 8)).min(1 << 20) as u32;
    let least = u64::from(copies) * (before + 4096 + u64::from(layout.block_bytes) + 8);
    if layout.blocks == 0 {
        return Err(PoolError::OutOfBounds("bytes of a node", node_bytes, least, u64::from(copies) << 31));
    }
    layout.check()?;
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_get_the_bytes_that_they_are_given() {
        for (nodes, copies, bits, bytes) in [
            (3, 3, 6, 256u64 << 20),
            (3, 2, 6, 64 << 20),
            (1, 1, 0, 1 << 20),
            (5, 3, 8, 1 << 30),
            (32, 1, 10, 1 << 30),
        ] {
            let layout = PoolPlan::new(nodes, copies, bits, bytes).unwrap().layout;
            let taken = layout.region_bytes() as u64 * u64::from(copies);
            assert!(taken <= bytes && taken > bytes / 2, "{layout:?}: {taken} of {bytes}");
        }
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (nodes, copies, bits, bytes, what) in [
            (0, 1, 0, 1u64 << 20, "memory nodes"),
            (33, 1, 0, 1 << 20, "memory nodes"),
            (3, 4, 0, 1 << 20, "copies"),
            (3, 0, 0, 1 << 20, "copies"),
            (3, 3, 15, 1 << 20, "partition bits"),
            (3, 3, 6, 4096, "bytes of a node"),
            (1, 1, 6, 1 << 40, "region bytes"),
        ] {
            let error = PoolPlan::new(nodes, copies, bits, bytes).unwrap_err();
            assert!(matches!(error, PoolError::OutOfBounds(name, ..) if name == what), "{what}: {error}");
        }
    }
}
