//! One run of a pool in virtual time.
//!
//! Owns the callers: so many on each thread of each compute node, each of which asks again as soon as it is answered and its thread has time. Promises the same figures for the same setting and seed, and that no figure is of a
//! run with an answer that cannot be right. Must not know what runs are compared with which.
//!
//! Costs are those of `fabric/nic.rs` of the pool, and `call_ns` of a caller's thread for each call, which nobody measured: without it a pair that is in a cache would cost nothing.

use std::collections::{BTreeMap, BTreeSet};

use hdrhistogram::Histogram;
use hedgerow_pool::bucket::{KeyHash, groups_for};
use hedgerow_pool::client::{ClientAnswer, ClientCall, ClientOptions, Condition, Outcome, Request};
use hedgerow_pool::cluster::{Cluster, ClusterOptions};
use hedgerow_pool::fabric::NodeId;
use hedgerow_pool::fabric::nic::NicModel;
use hedgerow_pool::fabric::sim::SimOptions;
use hedgerow_pool::manager::{ManagerCall, ManagerOptions};
use hedgerow_pool::place::PlacementOptions;
use hedgerow_pool::region::PoolLayout;

use super::figures::{PoolCounts, PoolFigures, latency_histogram};
use super::load::{PoolAsk, PoolAudit, PoolCaller, pool_key};
use super::setting::{PoolScale, PoolSetting, PoolStep, STATIC_SHARE};

/// Nobody's node: it is woken when a caller begins.
const CLOCK: NodeId = NodeId(0x3FFF);
/// Virtual time in which something must have come of what is waited for.
const PATIENCE_NS: u64 = 100_000_000_000;
/// Of the choice of proxies: once nothing changed for so many periods it has found what it wants.
const RESTING_PERIODS: u64 = 3;
/// Nobody waits longer than this for that.
const PERIODS_MAX: u64 = 60;
const BLOCK_BYTES: u32 = 1 << 16;
/// Bytes of a datagram that forwards a call, beside its key and value.
const FORWARD_BYTES: usize = 32;

/// What happens to a call at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PoolMoment {
    /// Its caller's thread has begun it.
    Begin { caller: usize, at: u64 },
    /// It has come to the node that owns its partition.
    Arrive { id: u64 },
    /// Its answer is back.
    Back { id: u64 },
}

/// A call under way.
#[derive(Debug)]
struct Pending {
    caller: usize,
    /// Who does it.
    node: NodeId,
    key: u64,
    /// None: it is a read.
    version: Option<u64>,
    floor: Option<u64>,
    began: u64,
    path: &'static str,
    request: Option<Request>,
    answer: Option<Outcome>,
}

/// A pool with its callers.
pub(super) struct ModelledRun {
    setting: PoolSetting,
    scale: PoolScale,
    cluster: Cluster,
    calls: PoolCaller,
    pub(super) audit: PoolAudit,
    moments: BTreeSet<(u64, PoolMoment)>,
    pending: BTreeMap<u64, Pending>,
    next_call: u64,
    /// Of each thread of each node: when it has done what it has begun.
    threads_free_at: Vec<u64>,
    /// Keys that are to be put before anything else is asked for.
    to_load: u64,
    /// New keys whose puts were refused, or are in doubt: each is to be there, for keys are counted without a gap.
    to_put_again: Vec<u64>,
    latencies: BTreeMap<&'static str, Histogram<u64>>,
    counts: PoolCounts,
    /// Calls that each node did for others.
    owned: Vec<u64>,
}

/// Keys that the pool has room for, where new ones come.
fn keys_most(setting: &PoolSetting, scale: &PoolScale) -> u64 {
    scale.keys + if setting.load.inserts { scale.keys.max(scale.calls) } else { 0 }
}

fn layout(setting: &PoolSetting, scale: &PoolScale) -> PoolLayout {
    let keys = keys_most(setting, scale);
    let object = (setting.value_bytes as u64 + 48).div_ceil(64) * 64 + 64;
    let per_region = keys * object / u64::from(setting.memory_nodes) / u64::from(BLOCK_BYTES);
    let sessions = u64::from(setting.compute_nodes);
    PoolLayout {
        memory_nodes: setting.memory_nodes,
        copies: setting.memory_nodes.min(3),
        partition_bits: scale.partition_bits,
        groups: groups_for(2 * keys, 1 << scale.partition_bits),
        block_bytes: BLOCK_BYTES,
        // What waits for its quarantine, and blocks that sessions have begun.
        blocks: (per_region * 4 + 8 * sessions + 64) as u32,
    }
}

fn placement(step: PoolStep, scale: &PoolScale) -> Option<PlacementOptions> {
    let share = match step {
        PoolStep::Direct | PoolStep::Proxies | PoolStep::Owners => return None,
        PoolStep::Ranks | PoolStep::Pairs => Some(STATIC_SHARE),
        PoolStep::Split => None,
        PoolStep::All => Some(100),
    };
    Some(PlacementOptions {
        share,
        first_share: 0,
        period_ns: scale.period_ns,
        settle_ns: scale.period_ns / 5,
        gather_ns: scale.period_ns / 10,
        rank_ops: 100,
        probe_ops: 1_000,
    })
}

fn cluster(setting: &PoolSetting, scale: &PoolScale, seed: u64) -> Result<Cluster, String> {
    let mut nic = NicModel::CONNECTX3;
    if let Some((cost, factor)) = setting.cost.and_then(|(cost, factor)| Some((cost.assumed()?, factor))) {
        nic = nic.with(cost, factor);
    }
    let defaults = ClientOptions::default();
    let client = ClientOptions {
        // Longer than twice the slowest operation of the model, and so short that memory comes round within a run.
        quarantine_ns: 2_000_000,
        housekeeping_ns: 100_000,
        depth: 128,
        cached_bytes: if setting.step.caches_values() { scale.cached_bytes } else { 0 },
        ..defaults
    };
    let manager = ManagerOptions {
        retry_ns: 100_000,
        placement: placement(setting.step, scale),
        ..ManagerOptions::default()
    };
    let options = ClusterOptions {
        layout: layout(setting, scale),
        compute_nodes: setting.compute_nodes,
        client,
        manager,
        fabric: SimOptions::modelled(nic),
    };
    Cluster::new(options, seed).map_err(|error| format!("{setting}: {error}"))
}

impl ModelledRun {
    /// A pool without keys.
    ///
    /// # Errors
    /// A sentence for a person: what cannot be.
    pub(super) fn new(
        setting: PoolSetting,
        scale: PoolScale,
        seed: u64,
        keeps: bool,
    ) -> Result<ModelledRun, String> {
        let mut cluster = cluster(&setting, &scale, seed)?;
        cluster.fabric_mut().start(CLOCK);
        let nodes = usize::from(setting.compute_nodes);
        Ok(ModelledRun {
            setting,
            scale,
            cluster,
            calls: PoolCaller::new(setting.load, scale.keys, seed ^ 0x10AD),
            audit: PoolAudit::new(setting.value_bytes, keeps),
            moments: BTreeSet::new(),
            pending: BTreeMap::new(),
            next_call: 0,
            threads_free_at: vec![0; nodes * scale.threads],
            to_load: scale.keys,
            to_put_again: Vec::new(),
            latencies: BTreeMap::new(),
            counts: PoolCounts::default(),
            owned: vec![0; nodes],
        })
    }

    /// Loads, warms up, measures.
    ///
    /// # Errors
    /// An answer that cannot be right, or a pool that is full or stands still.
    pub(super) fn run(mut self, seed: u64) -> Result<(PoolFigures, PoolAudit), String> {
        let setting = self.setting;
        let in_it = |error: String| format!("{setting}, seed {seed}: {error}");
        let figures = self.phases(seed).map_err(in_it)?;
        Ok((figures, self.audit))
    }

    fn phases(&mut self, seed: u64) -> Result<PoolFigures, String> {
        self.go_on("joining", ModelledRun::has_joined)?;
        let assigned = self.assign();
        self.go_on("assigning", |run| run.proxied() >= assigned && !run.cluster.manager().epoch().1)?;
        (0..self.callers()).for_each(|caller| self.begin_soon(caller));
        self.go_on("loading", |run| run.to_load == 0 && run.audit.keys_there() >= run.scale.keys)?;
        let enough = self.answered() + self.scale.calls / 2;
        self.go_on("warming up", |run| run.answered() >= enough)?;
        let is_settled = self.settle()?;
        // From here on it counts.
        self.latencies.clear();
        self.owned.fill(0);
        let (began, before) = (self.cluster.now(), self.snapshot());
        let share_proxied = self.counts.proxied;
        let (first, calls) = (self.answered(), self.scale.calls);
        self.go_on("measuring", |run| run.answered() >= first + calls)?;
        let after = self.snapshot();
        let took_ns = self.cluster.now() - began;
        let counts = PoolCounts { proxied: self.counts.proxied - share_proxied, ..after.0.since(before.0) };
        let served: Vec<u64> = match self.setting.step {
            PoolStep::Owners => self.owned.clone(),
            _ => after.1.iter().zip(&before.1).map(|(after, before)| after - before).collect(),
        };
        Ok(PoolFigures::new((self.setting, seed), (calls, took_ns), &self.latencies, counts, &served)
            .settled(is_settled, self.cluster.manager().proxies().share, self.proxied_partitions()))
    }

    fn callers(&self) -> usize {
        usize::from(self.setting.compute_nodes) * self.scale.threads * self.scale.depth
    }

    /// Whether all compute nodes have a session.
    fn has_joined(&self) -> bool {
        let mut nodes = (0..self.setting.compute_nodes).map(|node| self.cluster.client(NodeId(node)));
        nodes.all(|client| client.is_some_and(|client| client.is_ready()))
    }

    /// Partitions that have a proxy.
    fn proxied(&self) -> u64 {
        self.cluster.manager().proxies().nodes.values().copied().map(u64::from).sum()
    }

    /// As a part of all of them.
    fn proxied_partitions(&self) -> f64 {
        self.proxied() as f64 / f64::from(self.cluster.layout().partitions())
    }

    fn answered(&self) -> u64 {
        self.counts.calls
    }

    /// Proxies that nobody chooses: some by number, or all. How many there are to be.
    fn assign(&mut self) -> u64 {
        let partitions = self.cluster.layout().partitions();
        let count = match self.setting.step {
            PoolStep::Proxies => (usize::from(partitions) * usize::from(STATIC_SHARE)).div_ceil(100) as u16,
            PoolStep::Owners => partitions,
            _ => 0,
        };
        for partition in 0..count {
            let owner = self.owner(partition);
            self.cluster.tell_manager(ManagerCall::Assign(partition, Some(owner)));
        }
        u64::from(count)
    }

    fn owner(&self, partition: u16) -> NodeId {
        NodeId(partition % self.setting.compute_nodes)
    }

    /// Goes on until the choice of proxies has come to rest, if there is one. Whether it has.
    fn settle(&mut self) -> Result<bool, String> {
        let Some(mut seen) = self.choices() else { return Ok(true) };
        let (began, mut since) = (self.cluster.now(), self.cluster.now());
        let period = self.scale.period_ns;
        // With room left for what is measured: one call in twenty is an insert.
        let keys_most = keys_most(&self.setting, &self.scale);
        let is_full = |run: &ModelledRun| {
            run.setting.load.inserts && run.audit.keys() + run.scale.calls / 10 > keys_most
        };
        while self.cluster.now() < began + PERIODS_MAX * period {
            if is_full(self) {
                return Ok(false);
            }
            let until = self.cluster.now() + period / 4;
            self.go_on("settling", |run| run.cluster.now() >= until || is_full(run))?;
            let now = self.choices();
            if now != Some(seen) || self.cluster.manager().epoch().1 {
                since = self.cluster.now();
            }
            if self.cluster.now() >= since + RESTING_PERIODS * period {
                return Ok(true);
            }
            seen = now.unwrap_or(seen);
        }
        Ok(false)
    }

    fn choices(&self) -> Option<(u64, u64)> {
        let proxies = self.cluster.manager().proxies();
        proxies.share.map(|_| (proxies.counters.rounds, proxies.counters.changes))
    }

    /// What was counted by now: of all, and of the work of each node's proxy.
    fn snapshot(&self) -> (PoolCounts, Vec<u64>) {
        let (client, proxy) = (self.cluster.client_counters(), self.cluster.proxy_counters());
        let fabric = self.cluster.fabric().counters();
        let counts = PoolCounts {
            value_hits: client.value_hits,
            address_hits: client.address_hits,
            slot_hits: client.cache_hits,
            asked: proxy.reads,
            changes: proxy.changes,
            combined: proxy.combined,
            invalidated: proxy.invalidated,
            batches: fabric.batches,
            operations: fabric.operations,
            atomics: fabric.atomics,
            bytes: fabric.bytes,
            datagrams: fabric.datagrams + self.counts.forwards,
            ..self.counts
        };
        let of_node = |node: u16| {
            let proxy = self.cluster.client(NodeId(node)).map(|client| client.proxy_counters());
            proxy.map_or(0, |proxy| proxy.reads + proxy.changes + proxy.combined)
        };
        (counts, (0..self.setting.compute_nodes).map(of_node).collect())
    }

    fn at(&mut self, at: u64, moment: PoolMoment) {
        self.moments.insert((at, moment));
        self.cluster.fabric_mut().wake(CLOCK, at);
    }

    /// A caller's next call begins once its thread has taken its time for it.
    fn begin_soon(&mut self, caller: usize) {
        let now = self.cluster.now();
        let free_at = &mut self.threads_free_at[caller / self.scale.depth];
        let from = now.max(*free_at);
        let begun = from + self.setting.call_ns(&self.scale);
        *free_at = begun;
        self.at(begun, PoolMoment::Begin { caller, at: from });
    }

    fn go_on(&mut self, what: &str, is_done: impl Fn(&ModelledRun) -> bool) -> Result<(), String> {
        let until = self.cluster.now() + PATIENCE_NS;
        while !is_done(self) {
            if !self.cluster.step() || self.cluster.now() > until {
                return Err(format!("the pool stands still while {what}"));
            }
            let now = self.cluster.now();
            while self.moments.first().is_some_and(|(at, _)| *at <= now) {
                if let Some((_, moment)) = self.moments.pop_first() {
                    self.moment(moment)?;
                }
            }
            self.take_answers()?;
        }
        Ok(())
    }

    fn moment(&mut self, moment: PoolMoment) -> Result<(), String> {
        match moment {
            PoolMoment::Begin { caller, at } => self.begin(caller, at),
            PoolMoment::Arrive { id } => self.ask(id),
            PoolMoment::Back { id } => return self.finish(id),
        }
        Ok(())
    }

    fn begin(&mut self, caller: usize, began: u64) {
        let ask = match (self.to_put_again.pop(), self.to_load) {
            (Some(key), _) => PoolAsk::Write(key),
            (None, 0) => self.calls.next(&self.audit),
            (None, _) => {
                self.to_load -= 1;
                PoolAsk::Write(self.audit.keys())
            }
        };
        let (key, version, floor, request) = match ask {
            PoolAsk::Read(key) => (key, None, self.audit.begin_read(key), Request::Get),
            PoolAsk::Write(key) => {
                let (version, value) = self.audit.begin_write(key, began);
                (key, Some(version), None, Request::Put(value, Condition::Any))
            }
        };
        let (id, node) = (self.next_call, NodeId((caller / self.scale.depth / self.scale.threads) as u16));
        self.next_call += 1;
        let partition = KeyHash::of(&pool_key(key)).partition(self.scale.partition_bits);
        let is_proxied = self.cluster.manager().proxy_of(partition).is_some();
        self.counts.proxied += u64::from(is_proxied);
        let path = match (version.is_some(), is_proxied) {
            (false, false) => "read, direct",
            (false, true) => "read, by the proxy",
            (true, false) => "write, direct",
            (true, true) => "write, by the proxy",
        };
        let mut pending =
            Pending { caller, node, key, version, floor, began, path, request: Some(request), answer: None };
        if self.setting.step != PoolStep::Owners {
            self.pending.insert(id, pending);
            return self.ask(id);
        }
        pending.node = self.owner(partition);
        self.owned[usize::from(pending.node.0)] += 1;
        let arrives = match pending.node == node {
            true => self.cluster.now(),
            false => {
                self.counts.forwards += 2;
                let value = if version.is_some() { self.setting.value_bytes } else { 0 };
                let bytes = FORWARD_BYTES + pool_key(key).len() + value;
                pending.path = if version.is_some() { "write, forwarded" } else { "read, forwarded" };
                self.cluster.fabric_mut().handled_at(node, pending.node, bytes)
            }
        };
        self.pending.insert(id, pending);
        self.at(arrives, PoolMoment::Arrive { id });
    }

    /// Has the client do it, and says by which way it begins.
    fn ask(&mut self, id: u64) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let (node, Some(request)) = (pending.node, pending.request.take()) else { return };
        let hits = |cluster: &Cluster| {
            let counters = cluster.client(node).map(|client| client.counters()).unwrap_or_default();
            (counters.value_hits, counters.address_hits)
        };
        let before = hits(&self.cluster);
        self.cluster.call(node, ClientCall { id, key: pool_key(pending.key), request });
        let after = hits(&self.cluster);
        if pending.path == "read, by the proxy" {
            pending.path = match (after.0 > before.0, after.1 > before.1) {
                (true, _) => "read, value in the cache",
                (_, true) => "read, address in the cache",
                _ => pending.path,
            };
        }
    }

    fn take_answers(&mut self) -> Result<(), String> {
        for (node, ClientAnswer { id, outcome }) in self.cluster.take_answers() {
            let Some(pending) = self.pending.get_mut(&id) else { continue };
            let caller = NodeId((pending.caller / self.scale.depth / self.scale.threads) as u16);
            let value = if let Outcome::Value(value, _) = &outcome { value.len() } else { 0 };
            pending.answer = Some(outcome);
            if node == caller {
                self.finish(id)?;
                continue;
            }
            let at = self.cluster.fabric_mut().handled_at(node, caller, FORWARD_BYTES + value);
            self.at(at, PoolMoment::Back { id });
        }
        Ok(())
    }

    /// A put of this key was refused, or nobody knows.
    fn refuse(&mut self, key: u64) {
        self.counts.refused += 1;
        if key >= self.audit.keys_there() {
            self.to_put_again.push(key);
        }
    }

    fn finish(&mut self, id: u64) -> Result<(), String> {
        let Some(Pending { caller, key, version, floor, began, path, answer, .. }) = self.pending.remove(&id)
        else {
            return Ok(());
        };
        let now = self.cluster.now();
        let Some(outcome) = answer else { return Ok(()) };
        match (version, outcome) {
            (None, Outcome::Value(value, _)) => {
                self.audit.end_read(key, (began, floor), now, Some(&value))?
            }
            (None, Outcome::Absent) => self.audit.end_read(key, (began, floor), now, None)?,
            (Some(version), Outcome::Stored(_)) => self.audit.end_write(version, now, true),
            (Some(version), Outcome::Indeterminate) => {
                self.audit.end_write(version, now, false);
                self.refuse(key);
            }
            (Some(_), Outcome::Unavailable) => self.refuse(key),
            (None, Outcome::Unavailable) => self.counts.refused += 1,
            (_, other) => return Err(format!("key {key}: {other:?}")),
        }
        self.counts.calls += 1;
        self.latencies.entry(path).or_insert_with(latency_histogram).saturating_record(now - began);
        self.begin_soon(caller);
        Ok(())
    }
}
