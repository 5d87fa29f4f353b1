//! Rows in the pool.
//!
//! Owns [`PoolBackend`], a [`Backend`] of rows over pairs: a key of the backend is one of the pool, a mark the generation of the pair's object. Promises what the pool promises of pairs: commands that name a key are linearizable, whoever
//! else works on the pool, through other backends of this process or others. `Unavailable` and `Full`: nothing happened; `Indeterminate`: it may have, or may still. Must not know what a value says.
//!
//! | file | what |
//! |---|---|
//! | `session.rs` | what a caller has under way |
//! | `progress.rs` | commands that take several calls: walks, counts, clears |
//! | `outcome.rs` | what the pool's outcomes are to rows |
//!
//! Nothing is durable: the pairs are in memory. A walk, a count or a clear comes by all pairs of the pool, those of other groups too: the pool's table knows hashes and no groups.

mod outcome;
mod progress;
mod session;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use hedgerow_row::backend::{Backend, Capabilities, Mark, Pair, PairCache, Session};
use hedgerow_row::{Error, ErrorKind, Result};

use crate::compute_node::{ComputeNode, NodeCounters};
use crate::object::KEY_BYTES_MAX;
use crate::parts::VALUE_BYTES_MAX;
use crate::sync::{AtomicBool, Ordering};
use session::PoolSession;

/// What rows can have in a pool: any key with any value. Where blocks are small values are shorter.
const CAPABILITIES: Capabilities = Capabilities {
    name: "pool",
    key_bytes_max: KEY_BYTES_MAX,
    value_bytes_max: VALUE_BYTES_MAX,
    depth_max: 64,
    persists: false,
    batch_bytes_max: 0,
};

/// Rows in the pool that a compute node works on. All clones have the same node; it ends with the last of them and of their sessions.
#[derive(Debug, Clone)]
pub struct PoolBackend {
    shared: Arc<PoolShared>,
}

/// What sessions share.
#[derive(Debug)]
struct PoolShared {
    node: ComputeNode,
    capabilities: Capabilities,
    is_closed: AtomicBool,
}

impl PoolBackend {
    /// Rows by way of this node.
    pub fn new(node: ComputeNode) -> PoolBackend {
        let capabilities = Capabilities { value_bytes_max: node.value_bytes_max(), ..CAPABILITIES };
        PoolBackend { shared: Arc::new(PoolShared { node, capabilities, is_closed: AtomicBool::new(false) }) }
    }

    /// The node, to tell its fabric where others are.
    pub fn node(&self) -> &ComputeNode {
        &self.shared.node
    }
}

impl Backend for PoolBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        self.shared.check_open()?;
        Ok(Box::new(PoolSession::new(Arc::clone(&self.shared))))
    }

    fn cache(&self) -> Option<&dyn PairCache> {
        Some(&*self.shared)
    }

    /// Those of the node, in all of its sessions.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let NodeCounters { client, proxy, read_from_cache } = self.shared.node.counters();
        vec![
            ("pool_batches", client.posts),
            ("pool_reads_of_cached_values", client.value_hits + read_from_cache),
            ("pool_reads_of_cached_addresses", client.address_hits),
            ("pool_lookups_by_cached_slots", client.cache_hits),
            ("pool_cached_pairs_dropped", client.invalidated),
            ("pool_long_values_read", client.long_reads),
            ("pool_long_values_written", client.long_writes),
            ("pool_changes_won", client.won),
            ("pool_changes_lost", client.lost),
            ("pool_sessions_ended", self.shared.node.sessions_ended()),
            ("pool_proxy_reads", proxy.reads),
            ("pool_proxy_changes", proxy.changes),
            ("pool_proxy_combined", proxy.combined),
            ("pool_proxy_granted", proxy.granted),
            ("pool_proxy_invalidated", proxy.invalidated),
        ]
    }

    /// What is under way goes on, and the node ends once it is answered, which is in time.
    fn close(&self) -> Result<()> {
        self.shared.is_closed.store(true, Ordering::Release);
        self.shared.node.finish();
        Ok(())
    }
}

impl PoolShared {
    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }
}

impl PairCache for PoolShared {
    fn get(&self, key: &[u8]) -> Option<Pair> {
        self.check_open().ok()?;
        let (value, generation) = self.node.cached(key)?;
        Some(Pair { key: Box::from(key), value: Box::from(&*value), mark: Mark::new(generation.0) })
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the backend was closed")
}
