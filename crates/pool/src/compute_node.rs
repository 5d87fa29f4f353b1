//! A compute node: its client over TCP, on a thread of its own, for callers on any other.
//!
//! Owns the thread. Promises that every call is answered once: by the client, which answers in time; or, where the node ends first, by what is known of it then. A client whose session ended is followed by another
//! one, after a rest, on the same fabric, with a boot number of its own: connections that are open stay so, and what the one before had posted is told nobody. Must not know what calls are for, nor who says where other nodes are:
//! that is told by [`with_fabric`](ComputeNode::with_fabric).

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hedgerow_device::{Clock, spawn};

use crate::client::{CacheReader, Client, ClientCall, ClientCounters, ClientOptions, Outcome, Request};
use crate::fabric::tcp::{FabricWaker, TcpFabric};
use crate::fabric::{Nanos, NodeId};
use crate::node::NodeDriver;
use crate::object::Generation;
use crate::parts::ObjectSizes;
use crate::proxy::ProxyCounters;
use crate::region::PoolLayout;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, Ordering};

/// The thread looks for what its callers want after so long at the latest, if a waker should fail.
const STEP: Duration = Duration::from_millis(20);

/// Which node, and of which pool.
#[derive(Debug, Clone, Copy)]
pub struct ComputeNodeOptions {
    /// Its number.
    pub node: NodeId,
    /// The pool's memory.
    pub layout: PoolLayout,
    /// Its client. The defaults are for RDMA: over TCP the quarantine is to be longer than twice the slowest operation.
    pub client: ClientOptions,
}

/// What a fabric is told on its own thread.
pub type FabricChange = Box<dyn FnOnce(&mut TcpFabric) + Send>;

/// The node ended before the call began: nothing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeEnded;

impl fmt::Display for NodeEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the compute node ended")
    }
}

impl std::error::Error for NodeEnded {}

/// What became of a call.
pub type CallEnd = Result<Outcome, NodeEnded>;

/// Where answers come to. Whoever asks has one, and gives it with each call.
#[derive(Debug, Default)]
pub struct AnswerInbox {
    came: Mutex<Vec<(u64, CallEnd)>>,
    bell: Condvar,
}

impl AnswerInbox {
    /// Appends what came since this was last asked.
    pub fn take(&self, into: &mut Vec<(u64, CallEnd)>) {
        into.append(&mut self.came.lock());
    }

    /// Blocks until something is there to take, or this much time has passed.
    pub fn wait(&self, at_most: Duration) {
        let mut came = self.came.lock();
        if came.is_empty() {
            self.bell.wait_for(&mut came, at_most);
        }
    }

    fn put(&self, tag: u64, end: CallEnd) {
        self.came.lock().push((tag, end));
        self.bell.notify_all();
    }
}

/// A call that the thread has not seen yet.
struct QueuedCall {
    tag: u64,
    key: Vec<u8>,
    request: Request,
    to: Arc<AnswerInbox>,
}

/// A call that the client has.
struct PendingCall {
    tag: u64,
    changes: bool,
    to: Arc<AnswerInbox>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum NodeLife {
    #[default]
    Running,
    /// It takes no more calls, and ends once those that it has are answered.
    Finishing,
    Ended,
}

#[derive(Default)]
struct NodeQueue {
    calls: Vec<QueuedCall>,
    changes: Vec<FabricChange>,
    life: NodeLife,
}

/// What callers share with the thread.
#[derive(Default)]
struct NodeShared {
    queue: Mutex<NodeQueue>,
    is_ready: AtomicBool,
    sessions_ended: AtomicU64,
    /// Those of all sessions that have ended, and of the present one as of its last step.
    counters: Mutex<NodeCounters>,
}

/// Counts of what a node did, over all of its sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeCounters {
    /// What its clients did.
    pub client: ClientCounters,
    /// What it did for others, as a proxy.
    pub proxy: ProxyCounters,
    /// Pairs that its callers read from its cache, with nothing asked of its thread.
    pub read_from_cache: u64,
}

/// A running node. It ends when this is dropped: what may have happened of calls under way is `Indeterminate` then.
pub struct ComputeNode {
    shared: Arc<NodeShared>,
    cache: CacheReader,
    waker: FabricWaker,
    thread: Option<JoinHandle<()>>,
    layout: PoolLayout,
    sizes: ObjectSizes,
}

impl fmt::Debug for ComputeNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let life = self.shared.queue.lock().life;
        f.debug_struct("ComputeNode").field("layout", &self.layout).field("life", &life).finish()
    }
}

impl ComputeNode {
    /// Starts a node over a fabric that was bound for it. `boots` gives numbers of lives of this node: none twice, whatever process it is in.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn start(
        options: ComputeNodeOptions,
        fabric: TcpFabric,
        mut boots: impl FnMut() -> u64 + Send + 'static,
    ) -> io::Result<ComputeNode> {
        let (shared, waker) = (Arc::new(NodeShared::default()), fabric.waker());
        // Before there is a thread: if it fails nobody waits.
        let cache = {
            let ClientOptions { cached_keys, cached_bytes, .. } = options.client;
            CacheReader::new(cached_keys, cached_bytes, options.layout.partition_bits)
        };
        let of_node = cache.clone();
        let client = Client::with_cache(options.node, boots(), options.layout, options.client, &cache);
        let of_thread = Arc::clone(&shared);
        let thread = spawn("pool-compute", move || {
            let driver = NodeDriver::new(client, fabric);
            let (pending, next_call) = (BTreeMap::new(), 0);
            let rest = RestBetweenSessions::new(Clock::system());
            let (held, before) = (Vec::new(), NodeCounters::default());
            let mut node = NodeThread {
                driver,
                options,
                boots,
                shared: of_thread,
                cache,
                before,
                held,
                pending,
                next_call,
                rest,
            };
            while node.turn() {}
        })?;
        let (layout, thread) = (options.layout, Some(thread));
        let sizes = ObjectSizes::new(&layout, options.client.part_units);
        Ok(ComputeNode { shared, cache: of_node, waker, thread, layout, sizes })
    }

    /// Asks the client. What became of it comes to the inbox, with the tag: exactly once.
    pub fn ask(&self, tag: u64, key: Vec<u8>, request: Request, to: &Arc<AnswerInbox>) {
        {
            let mut queue = self.shared.queue.lock();
            if queue.life != NodeLife::Running {
                drop(queue);
                return to.put(tag, Err(NodeEnded));
            }
            queue.calls.push(QueuedCall { tag, key, request, to: Arc::clone(to) });
        }
        self.waker.wake();
    }

    /// The key's value and version, if the node's cache has them: nothing is asked of its thread, nor of the pool, and it is as linearizable as what that would answer. None says nothing.
    pub fn cached(&self, key: &[u8]) -> Option<(Arc<[u8]>, Generation)> {
        self.cache.get(key)
    }

    /// What it did so far, as of a moment ago.
    pub fn counters(&self) -> NodeCounters {
        NodeCounters { read_from_cache: self.cache.read(), ..*self.shared.counters.lock() }
    }

    /// Tells the fabric something, soon, on the node's thread: where a node is, for one. Nothing is told once the node has ended.
    pub fn with_fabric(&self, change: FabricChange) {
        let is_running = {
            let mut queue = self.shared.queue.lock();
            let is_running = queue.life != NodeLife::Ended;
            if is_running {
                queue.changes.push(change);
            }
            is_running
        };
        if is_running {
            self.waker.wake();
        }
    }

    /// Takes no more calls, and ends once those under way are answered. Does not wait for that.
    pub fn finish(&self) {
        {
            let mut queue = self.shared.queue.lock();
            if queue.life == NodeLife::Running {
                queue.life = NodeLife::Finishing;
            }
        }
        self.waker.wake();
    }

    /// Ends soon, as if this was dropped: calls under way are answered at once.
    pub fn end(&self) {
        self.shared.queue.lock().life = NodeLife::Ended;
        self.waker.wake();
    }

    /// Whether its client has a session, as of a moment ago.
    pub fn is_ready(&self) -> bool {
        self.shared.is_ready.load(Ordering::Acquire)
    }

    /// How many sessions ended so far, each of which was followed by another.
    pub fn sessions_ended(&self) -> u64 {
        self.shared.sessions_ended.load(Ordering::Acquire)
    }

    /// The pool's memory.
    pub fn layout(&self) -> &PoolLayout {
        &self.layout
    }

    /// Bytes of a value at most, whatever its key.
    pub fn value_bytes_max(&self) -> usize {
        self.sizes.value_bytes_max()
    }
}

impl Drop for ComputeNode {
    fn drop(&mut self) {
        self.end();
        let Some(thread) = self.thread.take() else { return };
        // What the fabric was told may have had the last handle.
        if thread.thread().id() != std::thread::current().id() {
            // It fails where the thread panicked: its calls were answered all the same.
            let _ = thread.join();
        }
    }
}

struct NodeThread<B> {
    driver: NodeDriver<Client>,
    options: ComputeNodeOptions,
    boots: B,
    shared: Arc<NodeShared>,
    cache: CacheReader,
    /// What the clients before the present one did.
    before: NodeCounters,
    /// Calls that wait for the next session.
    held: Vec<QueuedCall>,
    pending: BTreeMap<u64, PendingCall>,
    next_call: u64,
    rest: RestBetweenSessions,
}

/// How long a node rests between two sessions: 50 ms at first, and twice as long each time that a session did not outlast the longest rest, 10 s. Each new session has all others wait for a change of the
/// configuration, and takes one of 65,535 numbers; without rest a node that cannot reach one memory node would have them stand still all the time.
struct RestBetweenSessions {
    clock: Clock,
    rest_ns: Nanos,
    session_began: Nanos,
    ends_at: Option<Nanos>,
}

const REST_MIN_NS: Nanos = 50_000_000;
const REST_MAX_NS: Nanos = 10_000_000_000;

impl RestBetweenSessions {
    fn new(clock: Clock) -> RestBetweenSessions {
        let session_began = clock.monotonic_ns();
        RestBetweenSessions { clock, rest_ns: REST_MIN_NS, session_began, ends_at: None }
    }

    /// Whether the next session may begin; asked again and again from the end of one on.
    fn is_over(&mut self) -> bool {
        let now = self.clock.monotonic_ns();
        let Some(ends_at) = self.ends_at else {
            let was_long = now - self.session_began > REST_MAX_NS;
            self.rest_ns = if was_long { REST_MIN_NS } else { self.rest_ns };
            self.ends_at = Some(now + self.rest_ns);
            return false;
        };
        if now < ends_at {
            return false;
        }
        (self.ends_at, self.session_began) = (None, now);
        self.rest_ns = (self.rest_ns * 2).min(REST_MAX_NS);
        true
    }
}

impl<B: FnMut() -> u64> NodeThread<B> {
    /// Goes on; false if the node is to end.
    fn turn(&mut self) -> bool {
        let (calls, changes, life) = {
            let mut queue = self.shared.queue.lock();
            (std::mem::take(&mut queue.calls), std::mem::take(&mut queue.changes), queue.life)
        };
        for change in changes {
            change(self.driver.fabric_mut());
        }
        self.held.extend(calls);
        if !self.holds_calls(life) {
            let held = std::mem::take(&mut self.held);
            held.into_iter().for_each(|call| self.begin(call));
        }
        let is_over = life == NodeLife::Finishing && self.pending.is_empty();
        if is_over || life == NodeLife::Ended {
            return false;
        }
        self.driver.step(STEP);
        self.hand_out();
        *self.shared.counters.lock() = self.counters();
        if life == NodeLife::Running && self.driver.machine().is_fenced() && self.rest.is_over() {
            let ComputeNodeOptions { node, layout, client } = self.options;
            self.before = self.counters();
            self.driver.restart(Client::with_cache(node, (self.boots)(), layout, client, &self.cache));
            self.shared.sessions_ended.fetch_add(1, Ordering::AcqRel);
        }
        self.shared.is_ready.store(self.driver.machine().is_ready(), Ordering::Release);
        true
    }

    fn counters(&self) -> NodeCounters {
        let (client, proxy) = (self.driver.machine().counters(), self.driver.machine().proxy_counters());
        let NodeCounters { client: clients, proxy: proxies, .. } = self.before;
        NodeCounters { client: clients.plus(client), proxy: proxies.plus(proxy), ..self.before }
    }

    /// Whether calls wait for the next session: where it comes so soon that they are in time. A client whose session ended would refuse them.
    fn holds_calls(&self, life: NodeLife) -> bool {
        let is_soon = self.rest.rest_ns <= self.options.client.timeout_ns / 2;
        life == NodeLife::Running && is_soon && self.driver.machine().is_fenced()
    }

    fn begin(&mut self, call: QueuedCall) {
        let QueuedCall { tag, key, request, to } = call;
        let changes = matches!(request, Request::Put(..) | Request::Delete(_));
        self.next_call += 1;
        self.pending.insert(self.next_call, PendingCall { tag, changes, to });
        self.driver.call(ClientCall { id: self.next_call, key, request });
    }

    fn hand_out(&mut self) {
        for answer in self.driver.take_answers() {
            if let Some(call) = self.pending.remove(&answer.id) {
                call.to.put(call.tag, Ok(answer.outcome));
            }
        }
    }
}

/// However the thread ends: what nobody else will answer is answered.
impl<B> Drop for NodeThread<B> {
    fn drop(&mut self) {
        let (calls, changes) = {
            let mut queue = self.shared.queue.lock();
            queue.life = NodeLife::Ended;
            (std::mem::take(&mut queue.calls), std::mem::take(&mut queue.changes))
        };
        // With the queue let go: one of them may have the last handle of the node.
        drop(changes);
        self.shared.is_ready.store(false, Ordering::Release);
        for call in calls.into_iter().chain(std::mem::take(&mut self.held)) {
            call.to.put(call.tag, Err(NodeEnded));
        }
        for call in std::mem::take(&mut self.pending).into_values() {
            // What was posted may still be executed.
            let end = if call.changes { Ok(Outcome::Indeterminate) } else { Err(NodeEnded) };
            call.to.put(call.tag, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_sessions_are_short_rests_longer_and_longer() {
        let clock = Clock::manual(1_000);
        let mut rest = RestBetweenSessions::new(clock.clone());
        let mut rests_ms = |session_ms: u64| {
            clock.advance_ms(session_ms);
            (0..)
                .find(|_| {
                    rest.is_over() || {
                        clock.advance_ms(1);
                        false
                    }
                })
                .unwrap()
        };
        assert_eq!([0; 9].map(&mut rests_ms), [50, 100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        assert_eq!(rests_ms(9_000), 10_000);
        assert_eq!(rests_ms(10_001), 50);
    }
}
