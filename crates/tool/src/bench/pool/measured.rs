//! A pool over TCP on this machine: `hedgerow bench pool measured`.
//!
//! Owns the pool's nodes, a thread each of this process, and one caller's thread for each compute node. Promises that every answer is compared with what was written, and that whoever used the machine meanwhile is told of.
//! Must not know how it is told.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use hedgerow_pool::client::{Condition, Outcome, Request};
use hedgerow_pool::compute_node::{AnswerInbox, ComputeNode};
use hedgerow_pool::fabric::NodeId;
use hedgerow_pool::fabric::tcp::LOOPBACK;
use hedgerow_pool::manager::ManagerOptions;
use hedgerow_pool::membership::{MemoryNodeHost, PoolManager, PoolPlan, ask_status};
use serde::Serialize;

use super::figures::{PoolLatencies, all_latencies, latency_histogram};
use super::load::{PoolAsk, PoolAudit, PoolCaller, PoolLoad, pool_key};
use crate::bench::process::{Neighbours, Usage};
use crate::pool_store::PoolStore;
use crate::store_url::PoolUrl;

/// For a pool to begin, and for proxies to be there.
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(20);
/// From here on others' use of the machine is worth a warning.
const NEIGHBOURS_NOTABLE: f64 = 0.2;
/// Of a quarantine over TCP, half a second, so many updates at most are waiting.
const WAITING_UPDATES: u64 = 20_000;
const NODE_BYTES_MIN: u64 = 64 << 20;

/// How a pool works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MeasuredMode {
    /// No partition has a proxy.
    Direct,
    /// All have one; nothing is cached.
    Proxies,
    /// All have one, and pairs are cached where they are read.
    Pairs,
}

impl MeasuredMode {
    pub(super) const ALL: [MeasuredMode; 3] =
        [MeasuredMode::Direct, MeasuredMode::Proxies, MeasuredMode::Pairs];

    pub(super) fn name(self) -> &'static str {
        match self {
            MeasuredMode::Direct => "direct",
            MeasuredMode::Proxies => "proxies",
            MeasuredMode::Pairs => "proxies, pairs cached",
        }
    }
}

/// One phase on one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MeasuredSetting {
    pub(super) mode: MeasuredMode,
    pub(super) load: PoolLoad,
    pub(super) value_bytes: usize,
}

/// What all phases have alike.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct MeasuredScale {
    pub(super) compute_nodes: u16,
    pub(super) memory_nodes: u8,
    pub(super) copies: u8,
    pub(super) partition_bits: u32,
    pub(super) keys: u64,
    pub(super) seconds: f64,
    /// Calls under way on each compute node.
    pub(super) depth: usize,
}

/// What came of a phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct MeasuredFigures {
    /// Always `measured`.
    pub(super) kind: &'static str,
    pub(super) mode: MeasuredMode,
    pub(super) reads: u64,
    pub(super) inserts: bool,
    pub(super) value_bytes: usize,
    pub(super) seed: u64,
    pub(super) seconds: f64,
    pub(super) calls: u64,
    pub(super) calls_per_s: f64,
    /// In nanoseconds.
    pub(super) latencies: Vec<PoolLatencies>,
    /// Of the whole process: callers, compute nodes, memory nodes and the manager.
    pub(super) cpu_us_per_call: f64,
    /// Reads that were answered from the reader's cache.
    pub(super) value_hits: u64,
    /// Calls of which nobody knows what became of them, or that were not done.
    pub(super) refused: u64,
    /// Processors that others kept busy.
    pub(super) neighbours_cpus: f64,
}

impl MeasuredFigures {
    pub(super) fn latency(&self, path: &str) -> Option<&PoolLatencies> {
        self.latencies.iter().find(|one| one.path == path)
    }

    /// Whether others used the machine so much meanwhile that the figures are theirs too.
    pub(super) fn is_disturbed(&self) -> bool {
        self.neighbours_cpus >= NEIGHBOURS_NOTABLE
    }
}

/// A thread that goes on with something until this is dropped.
struct HostedNode {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HostedNode {
    fn start(mut turn: impl FnMut() -> bool + Send + 'static) -> Result<HostedNode, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread =
            hedgerow_device::spawn("pool-node", move || while !is_over.load(Ordering::Acquire) && turn() {});
        let thread = thread.map_err(|error| format!("a thread can not start: {error}"))?;
        Ok(HostedNode { stop, thread: Some(thread) })
    }
}

impl Drop for HostedNode {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // It fails where the node's thread panicked: its callers were not answered, and said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A pool whose nodes are threads of this process.
pub(super) struct MeasuredPool {
    // In the order in which they end: each before what it needs.
    compute: Vec<PoolStore>,
    _memory: Vec<HostedNode>,
    _manager: HostedNode,
    address: SocketAddr,
    assign: Sender<(u16, NodeId)>,
    scale: MeasuredScale,
}

fn node_bytes(scale: &MeasuredScale, value_bytes: usize) -> u64 {
    let object = value_bytes as u64 + 256;
    NODE_BYTES_MIN + u64::from(scale.copies) * object * (2 * scale.keys + WAITING_UPDATES)
}

impl MeasuredPool {
    /// Starts a pool that has begun, with its proxies.
    ///
    /// # Errors
    /// A sentence for a person.
    pub(super) fn start(
        mode: MeasuredMode,
        scale: MeasuredScale,
        value_bytes: usize,
    ) -> Result<MeasuredPool, String> {
        let bytes = node_bytes(&scale, value_bytes);
        let plan = PoolPlan::new(scale.memory_nodes, scale.copies, scale.partition_bits, bytes)
            .map_err(|error| error.to_string())?;
        let plan = PoolPlan { manager: ManagerOptions { placement: None, ..plan.manager }, ..plan };
        let cannot = |error: std::io::Error| format!("the manager can not start: {error}");
        let mut manager = PoolManager::listen(LOOPBACK, LOOPBACK, plan).map_err(cannot)?;
        let address = manager.address().map_err(cannot)?;
        let (assign, assigned) = channel();
        let manager = HostedNode::start(move || {
            for (partition, node) in assigned.try_iter() {
                manager.assign(partition, Some(node));
            }
            manager.step(STEP);
            true
        })?;
        let memory = |_| {
            let node = MemoryNodeHost::join(address, LOOPBACK, PATIENCE);
            let mut node = node.map_err(|error| format!("a memory node can not join: {error}"))?;
            HostedNode::start(move || node.step(STEP))
        };
        let memory = (0..scale.memory_nodes).map(memory).collect::<Result<Vec<_>, _>>()?;
        let cache = (mode == MeasuredMode::Proxies).then_some(0);
        let url = PoolUrl { manager: address.to_string(), listen: None, cache };
        let compute =
            (0..scale.compute_nodes).map(|_| PoolStore::open(&url)).collect::<Result<Vec<_>, _>>()?;
        let pool = MeasuredPool { compute, _memory: memory, _manager: manager, address, assign, scale };
        pool.await_sessions()?;
        if mode != MeasuredMode::Direct {
            pool.assign_all()?;
        }
        Ok(pool)
    }

    /// Asks again and again.
    fn until(&self, what: &str, mut is_so: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
        let start = Instant::now();
        while !is_so()? {
            if start.elapsed() > PATIENCE {
                return Err(format!("{what}: not within {} seconds", PATIENCE.as_secs()));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    fn await_sessions(&self) -> Result<(), String> {
        let nodes = self.scale.compute_nodes;
        self.until("sessions of all compute nodes", || {
            let status = ask_status(self.address).map_err(|error| error.to_string())?;
            Ok(status.sessions >= nodes.into() && self.compute.iter().all(|store| store.node().is_ready()))
        })
    }

    /// Each partition gets a proxy, each node as many as any other.
    fn assign_all(&self) -> Result<(), String> {
        let status = ask_status(self.address).map_err(|error| error.to_string())?;
        let nodes: Vec<NodeId> = status.nodes.iter().map(|node| node.node).collect();
        let nodes: Vec<NodeId> = nodes
            .into_iter()
            .filter(|node| *node != NodeId::MANAGER && node.as_memory_node().is_none())
            .collect();
        let partitions = status.layout.partitions();
        for (partition, node) in (0..partitions).zip(nodes.iter().cycle()) {
            self.assign.send((partition, *node)).map_err(|_| "the manager ended")?;
        }
        self.until("a proxy for each partition", || {
            let status = ask_status(self.address).map_err(|error| error.to_string())?;
            let proxied: u64 = status.nodes.iter().map(|node| u64::from(node.proxied)).sum();
            Ok(proxied == u64::from(partitions) && !status.is_changing)
        })
    }
}

/// What callers share.
struct SharedPhase<'a> {
    setting: MeasuredSetting,
    scale: MeasuredScale,
    audit: &'a Mutex<PoolAudit>,
    start: Instant,
    /// When no more calls begin.
    until: Option<Instant>,
    /// Keys that are to be put, instead of the load.
    to_load: u64,
}

impl SharedPhase<'_> {
    fn audit(&self) -> MutexGuard<'_, PoolAudit> {
        self.audit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// A call under way: its key, when it began, and the write or what a read may not be older than.
type CallUnderWay = (u64, u64, Result<u64, Option<u64>>);

/// One caller of one compute node.
struct MeasuredCaller<'a> {
    phase: &'a SharedPhase<'a>,
    node: &'a ComputeNode,
    inbox: Arc<AnswerInbox>,
    caller: PoolCaller,
    under_way: BTreeMap<u64, CallUnderWay>,
    next_tag: u64,
    by_path: BTreeMap<&'static str, Histogram<u64>>,
    value_hits: u64,
    refused: u64,
}

impl MeasuredCaller<'_> {
    fn run(&mut self) -> Result<(), String> {
        let mut came = Vec::new();
        loop {
            while self.under_way.len() < self.phase.scale.depth {
                if !self.begin()? {
                    break;
                }
            }
            if self.under_way.is_empty() {
                return Ok(());
            }
            self.inbox.wait(STEP);
            self.inbox.take(&mut came);
            for (tag, end) in came.drain(..) {
                let outcome = end.map_err(|error| error.to_string())?;
                self.finish(tag, outcome)?;
            }
        }
    }

    /// The next call; false if there is none.
    fn begin(&mut self) -> Result<bool, String> {
        let phase = self.phase;
        let is_loading = phase.until.is_none();
        if phase.until.is_some_and(|until| Instant::now() >= until) {
            return Ok(false);
        }
        let mut audit = phase.audit();
        if is_loading && audit.keys() >= phase.to_load {
            return Ok(false);
        }
        let ask = if is_loading { PoolAsk::Write(audit.keys()) } else { self.caller.next(&audit) };
        let now = phase.now_ns();
        let (key, request, what) = match ask {
            PoolAsk::Read(key) => (key, Request::Get, Err(audit.begin_read(key))),
            PoolAsk::Write(key) => {
                let (version, value) = audit.begin_write(key, now);
                (key, Request::Put(value, Condition::Any), Ok(version))
            }
        };
        drop(audit);
        if let Err(floor) = what
            && let Some((value, _)) = self.node.cached(&pool_key(key))
        {
            let returned = phase.now_ns();
            phase.audit().end_read(key, (now, floor), returned, Some(&value))?;
            self.value_hits += 1;
            self.record("read, value in the cache", returned - now);
            return Ok(true);
        }
        self.next_tag += 1;
        self.under_way.insert(self.next_tag, (key, now, what));
        self.node.ask(self.next_tag, pool_key(key), request, &self.inbox);
        Ok(true)
    }

    fn record(&mut self, path: &'static str, ns: u64) {
        self.by_path.entry(path).or_insert_with(latency_histogram).saturating_record(ns);
    }

    fn finish(&mut self, tag: u64, outcome: Outcome) -> Result<(), String> {
        let Some((key, began, what)) = self.under_way.remove(&tag) else {
            return Err("an answer that nobody asked for".into());
        };
        let now = self.phase.now_ns();
        let mut audit = self.phase.audit();
        match (what, outcome) {
            (Err(floor), Outcome::Value(value, _)) => {
                audit.end_read(key, (began, floor), now, Some(&value))?
            }
            (Err(floor), Outcome::Absent) => audit.end_read(key, (began, floor), now, None)?,
            (Ok(version), Outcome::Stored(_)) => audit.end_write(version, now, true),
            (Ok(version), Outcome::Indeterminate) => {
                audit.end_write(version, now, false);
                self.refused += 1;
            }
            (_, Outcome::Unavailable) => self.refused += 1,
            (_, other) => return Err(format!("key {key}: {other:?}")),
        }
        drop(audit);
        self.record(if what.is_ok() { "write, asked" } else { "read, asked" }, now - began);
        Ok(())
    }
}

/// What the callers of a phase did together.
struct PhaseSum {
    by_path: BTreeMap<&'static str, Histogram<u64>>,
    value_hits: u64,
    refused: u64,
}

/// All callers at once.
fn run_callers(pool: &MeasuredPool, phase: &SharedPhase, seed: u64) -> Result<PhaseSum, String> {
    let caller = |(number, store): (u64, &PoolStore)| {
        let mut caller = MeasuredCaller {
            phase,
            node: store.node(),
            inbox: Arc::default(),
            caller: PoolCaller::new(phase.setting.load, phase.scale.keys, seed ^ number << 32),
            under_way: BTreeMap::new(),
            next_tag: 0,
            by_path: BTreeMap::new(),
            value_hits: 0,
            refused: 0,
        };
        caller.run().map(|()| (caller.by_path, caller.value_hits, caller.refused))
    };
    let mut sum = PhaseSum { by_path: BTreeMap::new(), value_hits: 0, refused: 0 };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..).zip(&pool.compute).map(|one| scope.spawn(move || caller(one))).collect();
        for thread in threads {
            let (by_path, value_hits, refused) = thread.join().map_err(|_| "a caller's thread ended")??;
            sum.value_hits += value_hits;
            sum.refused += refused;
            for (path, latencies) in by_path {
                // All have the same bounds.
                *sum.by_path.entry(path).or_insert_with(latency_histogram) += latencies;
            }
        }
        Ok::<(), String>(())
    })?;
    Ok(sum)
}

/// Starts a pool, loads it, and measures one load, of which a quarter more comes first and does not count. What was written and seen comes with it.
///
/// # Errors
/// An answer that cannot be right, or a pool that does not work.
pub(super) fn measure(
    setting: MeasuredSetting,
    scale: MeasuredScale,
    seed: u64,
    keeps: bool,
) -> Result<(MeasuredFigures, PoolAudit), String> {
    let pool = MeasuredPool::start(setting.mode, scale, setting.value_bytes)?;
    let audit = Mutex::new(PoolAudit::new(setting.value_bytes, keeps));
    let start = Instant::now();
    let phase = |until, to_load| SharedPhase { setting, scale, audit: &audit, start, until, to_load };
    run_callers(&pool, &phase(None, scale.keys), seed)?;
    let warm = Instant::now() + Duration::from_secs_f64(scale.seconds / 4.0);
    run_callers(&pool, &phase(Some(warm), 0), seed ^ 0x3A27)?;
    let (neighbours, cpu, began) = (Neighbours::watch()?, Usage::now()?.cpu, Instant::now());
    let until = began + Duration::from_secs_f64(scale.seconds);
    let sum = run_callers(&pool, &phase(Some(until), 0), seed)?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu = (Usage::now()?.cpu - cpu).as_secs_f64();
    let neighbours_cpus = neighbours.processors()?;
    drop(pool);
    let latencies = all_latencies(&sum.by_path);
    let calls = latencies.iter().find(|one| one.path == "all").map_or(0, |one| one.calls);
    let figures = MeasuredFigures {
        kind: "measured",
        mode: setting.mode,
        reads: setting.load.reads,
        inserts: setting.load.inserts,
        value_bytes: setting.value_bytes,
        seed,
        seconds,
        calls,
        calls_per_s: calls as f64 / seconds.max(1e-9),
        latencies,
        cpu_us_per_call: cpu * 1e6 / calls.max(1) as f64,
        value_hits: sum.value_hits,
        refused: sum.refused,
        neighbours_cpus,
    };
    Ok((figures, audit.into_inner().unwrap_or_else(PoisonError::into_inner)))
}
