//! Rows in a pool, as a URL names it.
//!
//! Owns this process's place in the pool: one compute node. Promises that what cannot be joined is told in one sentence, and that the node hears of all others for as long as it is kept. Must not know who uses the
//! rows.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hedgerow_pool::backend::PoolBackend;
use hedgerow_pool::client::ClientOptions;
use hedgerow_pool::compute_node::{ComputeNode, ComputeNodeOptions};
use hedgerow_pool::fabric::NodeId;
use hedgerow_pool::membership::{Membership, join_compute};
use hedgerow_row::backend::Backend;

use crate::store_url::PoolUrl;

/// How long a node waits for its pool to begin.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take to see that a node is out of its pool.
const LOOK: Duration = Duration::from_millis(100);

/// This process as a compute node.
#[derive(Debug)]
pub struct PoolStore {
    backend: PoolBackend,
    membership: Arc<Membership>,
}

/// Where a node is that came later.
type Came = (NodeId, SocketAddr, u64);

/// Tells the fabric of a node that others came; what comes before there is a node waits for it.
#[derive(Default)]
struct Newcomers(Mutex<(Option<PoolBackend>, Vec<Came>)>);

impl Newcomers {
    fn came(&self, newcomer: Came) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &told.0 {
            Some(backend) => meet(backend, newcomer),
            None => told.1.push(newcomer),
        }
    }

    fn begin(&self, backend: &PoolBackend) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.1.drain(..).for_each(|newcomer| meet(backend, newcomer));
        told.0 = Some(backend.clone());
    }
}

/// The pool's settings, with a cache of so many bytes.
fn with_cache(client: ClientOptions, bytes: Option<u64>) -> ClientOptions {
    match bytes {
        None => client,
        Some(0) => ClientOptions { cached_keys: 0, cached_bytes: 0, ..client },
        Some(bytes) => ClientOptions { cached_bytes: usize::try_from(bytes).unwrap_or(usize::MAX), ..client },
    }
}

fn meet(backend: &PoolBackend, (node, address, life): Came) {
    backend.node().with_fabric(Box::new(move |fabric| fabric.meet(node, address, life)));
}

impl PoolStore {
    /// Joins the pool, and waits up to 30 seconds for it to begin.
    ///
    /// # Errors
    /// A sentence for a person.
    pub fn open(url: &PoolUrl) -> Result<PoolStore, String> {
        let manager = resolved(&url.manager)?;
        let listen = match &url.listen {
            Some(listen) => resolved(listen)?,
            None if manager.ip().is_loopback() => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            None => {
                return Err(format!(
                    "{} is another machine's: say with {url}?listen=HOST:PORT where the pool reaches this one; all that can reach it can read and change everything",
                    url.manager
                ));
            }
        };
        if !manager.ip().is_loopback() && listen.ip().is_loopback() {
            return Err(format!(
                "{} is another machine's, which cannot reach this one at {listen}: say with listen=HOST:PORT where it can",
                url.manager
            ));
        }
        let newcomers = Arc::new(Newcomers::default());
        let tell = Arc::clone(&newcomers);
        let joined = join_compute(manager, listen, PATIENCE, move |node, address, life| {
            tell.came((node, address, life));
        });
        let joined = joined.map_err(|error| format!("{url} can not be joined: {error}"))?;
        let client = with_cache(joined.client, url.cache);
        let options = ComputeNodeOptions { node: joined.node, layout: joined.layout, client };
        let mut boots = joined.boots;
        // There are more of them than a life has seconds.
        let boots = move || boots.next().unwrap_or(u64::MAX);
        let node = ComputeNode::start(options, joined.fabric, boots)
            .map_err(|error| format!("a thread can not start: {error}"))?;
        let backend = PoolBackend::new(node);
        newcomers.begin(&backend);
        Ok(PoolStore { backend, membership: Arc::new(joined.membership) })
    }

    /// The rows.
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.backend.clone())
    }

    /// The compute node.
    pub fn node(&self) -> &ComputeNode {
        self.backend.node()
    }

    /// Whether this process is a node of the pool no more: it was given up, or the pool's manager is gone. It stays so.
    pub fn is_over(&self) -> bool {
        self.membership.is_over()
    }

    /// A thread that calls `then` once it [is over](PoolStore::is_over), unless it is dropped before.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn watch(&self, then: impl FnOnce() + Send + 'static) -> io::Result<PoolWatch> {
        let (stop, stopped) = channel::<()>();
        let membership = Arc::clone(&self.membership);
        let thread = hedgerow_device::spawn("pool-watch", move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
                if membership.is_over() {
                    return then();
                }
            }
        })?;
        Ok(PoolWatch { stop: Some(stop), thread: Some(thread) })
    }
}

/// The thread that looks whether a node is out of its pool.
pub struct PoolWatch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for PoolWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It did nothing that this could want to know.
            let _ = thread.join();
        }
    }
}

fn resolved(place: &str) -> Result<SocketAddr, String> {
    let found = place.to_socket_addrs().map_err(|error| format!("{place}: {error}"))?.next();
    found.ok_or_else(|| format!("{place}: no such address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_elsewhere_is_not_joined_from_where_it_cannot_reach() {
        let url =
            PoolUrl { manager: "192.0.2.1:7400".into(), listen: Some("127.0.0.1:0".into()), cache: None };
        let error = PoolStore::open(&url).unwrap_err();
        assert!(error.starts_with("192.0.2.1:7400 is another machine's, which cannot reach"), "{error}");
    }
}
