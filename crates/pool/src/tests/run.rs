//! One simulated run of a whole pool, and what must hold of it.

use std::collections::{BTreeMap, BTreeSet};

use hedgerow_device::Random;
use hedgerow_sim::{Call, Effect, History, Precondition};

use super::memory_check::{check_memory, check_proxy};
use crate::client::{
    ClientAnswer, ClientCall, ClientCounters, ClientOptions, Condition, Outcome, Request, WalkedPair,
};
use crate::cluster::{Cluster, ClusterOptions};
use crate::fabric::sim::{SimCounters, SimOptions};
use crate::fabric::{Nanos, NodeId};
use crate::manager::{ManagerCall, ManagerCounters, ManagerOptions};
use crate::object::Generation;
use crate::place::{PlacementCounters, PlacementOptions};
use crate::region::{MemoryNode, PoolLayout, SlotId};
use crate::repairs::Repairs;

/// What a run is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) calls: u64,
    pub(super) keys: u64,
    pub(super) layout: PoolLayout,
    pub(super) client: ClientOptions,
    pub(super) fabric: SimOptions,
    pub(super) repairs: Repairs,
    /// One call in so many comes with a failure of each kind; 0: none.
    pub(super) compute_crash_one_in: u64,
    pub(super) suspicion_one_in: u64,
    /// One call in so many comes with a partition that gets a proxy, or loses it; 0: none.
    pub(super) assign_one_in: u64,
    pub(super) memory_losses: u64,
    /// A second memory node is lost before the configuration without the first one begins.
    pub(super) loses_two_at_once: bool,
    /// Of ten calls: so many are reads, so many of the writes have conditions.
    pub(super) reads: u64,
    pub(super) conditional: u64,
    /// Of ten writes: deletes.
    pub(super) deletes: u64,
    /// One call in so many comes with a walk, and keys of even numbers are not deleted; 0: none.
    pub(super) walk_one_in: u64,
    /// What proxies are chosen by.
    pub(super) placement: Option<PlacementOptions>,
}

pub(super) const LAYOUT: PoolLayout =
    PoolLayout { memory_nodes: 4, copies: 3, partition_bits: 1, groups: 1, block_bytes: 4096, blocks: 10 };

impl Plan {
    pub(super) fn new(seed: u64) -> Plan {
        let client = ClientOptions {
            quarantine_ns: 600_000,
            timeout_ns: 4_000_000,
            poll_ns: 1_000,
            housekeeping_ns: 100_000,
            depth: 4,
            cached_keys: 8,
            cached_bytes: 1024,
            rpc_retry_ns: 60_000,
            part_units: u8::MAX,
            lease_ns: 400_000,
        };
        Plan {
            seed,
            calls: 160,
            keys: 5,
            layout: LAYOUT,
            client,
            fabric: SimOptions::CHAOS,
            repairs: Repairs::ALL,
            compute_crash_one_in: 60,
            suspicion_one_in: 120,
            assign_one_in: if seed.is_multiple_of(3) { 0 } else { 25 },
            memory_losses: seed % 3,
            loses_two_at_once: seed.is_multiple_of(2),
            reads: 4,
            conditional: 3,
            deletes: 3,
            walk_one_in: 0,
            placement: None,
        }
    }
}

/// What a run came to.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) calls: usize,
    pub(super) open: usize,
    pub(super) trace: u64,
    pub(super) recorded: Vec<u8>,
    pub(super) client: ClientCounters,
    pub(super) fabric: SimCounters,
    pub(super) manager: ManagerCounters,
    pub(super) proxy: crate::ProxyCounters,
    pub(super) placement: PlacementCounters,
    pub(super) crashes: u64,
    pub(super) losses: u64,
    /// Walks that came to their end.
    pub(super) walked: u64,
}

/// A walk under way.
#[derive(Debug, Clone, Default)]
struct Walk {
    /// What it must come by.
    there: BTreeSet<u64>,
    came_by: BTreeSet<u64>,
}

struct Pending {
    node: NodeId,
    key: u64,
    request: Request,
    value: u64,
    expected: Precondition,
    began: Nanos,
}

pub(super) struct Run {
    plan: Plan,
    random: Random,
    pub(super) cluster: Cluster,
    history: History,
    pending: BTreeMap<u64, Pending>,
    /// Which value a generation has.
    values: BTreeMap<Generation, u64>,
    /// The last generation that was seen of a key.
    seen: BTreeMap<u64, Generation>,
    /// Keys of even numbers that were put, and the walks by their calls.
    stay: BTreeSet<u64>,
    walks: BTreeMap<u64, Walk>,
    walked: u64,
    next_call: u64,
    down: BTreeSet<NodeId>,
    /// What the manager is told, or done to a node, at which time.
    later: Vec<(Nanos, Later)>,
    losses: u64,
    crashes: u64,
    open: usize,
}

#[derive(Debug, Clone, Copy)]
enum Later {
    Suspect(NodeId),
    Restart(NodeId),
    Lose(MemoryNode),
    Lost(MemoryNode),
}

const NODES: u16 = 3;

pub(super) fn key_bytes(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// Values of this number and more have 4,000 bytes.
pub(super) const LONG: u64 = 1 << 32;

/// The bytes of a value: its number, and as many more as that says.
pub(super) fn value_bytes(value: u64) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    let more = if value < LONG { (value.wrapping_mul(0x9E37) % 200) as usize } else { 3_992 };
    bytes.resize(8 + more, value as u8);
    bytes
}

impl Run {
    pub(super) fn new(plan: Plan) -> Run {
        let options = ClusterOptions {
            layout: plan.layout,
            compute_nodes: NODES,
            client: plan.client,
            manager: ManagerOptions {
                retry_ns: 60_000,
                prepare_ns: 2_000_000,
                lease_ns: 400_000,
                placement: plan.placement,
            },
            fabric: plan.fabric,
        };
        Run {
            plan,
            random: Random::from_seed(plan.seed ^ 0x5EED),
            cluster: Cluster::with_repairs(options, plan.seed, plan.repairs).unwrap(),
            history: History::default(),
            pending: BTreeMap::new(),
            values: BTreeMap::new(),
            seen: BTreeMap::new(),
            stay: BTreeSet::new(),
            walks: BTreeMap::new(),
            walked: 0,
            next_call: 0,
            down: BTreeSet::new(),
            later: Vec::new(),
            losses: 0,
            crashes: 0,
            open: 0,
        }
    }

    /// Runs it all; what is wrong, if something is.
    pub(super) fn run(mut self, records: bool) -> Result<Report, String> {
        if records {
            self.cluster.fabric_mut().record();
        }
        let mut idle_until = 0;
        while self.next_call < self.plan.calls {
            if self.cluster.now() >= idle_until {
                self.begin_call();
                if self.one_in(self.plan.walk_one_in) {
                    let walk = Walk { there: self.stay.clone(), ..Walk::default() };
                    let node = NodeId(self.random.below(NODES.into()) as u16);
                    self.walk_on(node, walk, SlotId { partition: 0, slot: 0 });
                }
                self.fail_something();
                idle_until = self.cluster.now() + self.random.below(12_000);
            }
            self.go_on()?;
        }
        // Everybody comes to an end: each call has a deadline.
        let end = self.cluster.now() + 30_000_000;
        while self.cluster.now() < end {
            self.go_on()?;
        }
        if !self.pending.is_empty() {
            return Err(format!("{} calls were never answered", self.pending.len()));
        }
        self.history.check().map_err(|error| error.to_string())?;
        self.check_memory()?;
        let report = Report {
            calls: self.history.len(),
            open: self.open,
            trace: self.cluster.fabric().trace(),
            recorded: self.cluster.fabric().recorded().to_vec(),
            client: self.cluster.client_counters(),
            fabric: self.cluster.fabric().counters(),
            manager: self.cluster.manager().counters(),
            proxy: self.cluster.proxy_counters(),
            placement: self.cluster.manager().proxies().counters,
            crashes: self.crashes,
            losses: self.losses,
            walked: self.walked,
        };
        match report.client.anomalies + report.manager.anomalies {
            0 => Ok(report),
            count => Err(format!("{count} anomalies: {report:?}")),
        }
    }

    fn go_on(&mut self) -> Result<(), String> {
        let now = self.cluster.now();
        let (due, later) = std::mem::take(&mut self.later).into_iter().partition(|(at, _)| *at <= now);
        self.later = later;
        let due: Vec<(Nanos, Later)> = due;
        for (_, what) in due {
            match what {
                Later::Suspect(node) => self.cluster.tell_manager(ManagerCall::Suspect(node)),
                Later::Lose(node) => {
                    let told_at = now + self.random.below(60_000);
                    self.lose(node, told_at);
                }
                Later::Lost(node) => self.cluster.tell_manager(ManagerCall::MemoryLost(node)),
                Later::Restart(node) => {
                    self.down.remove(&node);
                    self.cluster.start_compute(node);
                }
            }
        }
        if !self.cluster.step() {
            // All nodes are down: time goes on all the same.
            let at = self.cluster.fabric().local_now(NodeId::MANAGER) + 10_000;
            self.cluster.fabric_mut().wake(NodeId::MANAGER, at);
        }
        for (_, answer) in self.cluster.take_answers() {
            self.answered(answer)?;
        }
        // Who finds itself fenced begins again.
        for node in (0..NODES).map(NodeId) {
            if self.cluster.client(node).is_some_and(crate::client::Client::is_fenced) {
                self.cluster.start_compute(node);
            }
        }
        Ok(())
    }

    fn begin_call(&mut self) {
        let node = NodeId(self.random.below(NODES.into()) as u16);
        if self.down.contains(&node)
            || self.pending.values().filter(|pending| pending.node == node).count() > 3
        {
            return;
        }
        let id = self.next_call;
        self.next_call += 1;
        let key = self.random.below(self.plan.keys);
        let (condition, expected) =
            match (self.random.below(10) < self.plan.conditional, self.random.below(4)) {
                (false, _) => (Condition::Any, Precondition::Any),
                (true, 0) => (Condition::Absent, Precondition::Absent),
                (true, 1) => (Condition::Present, Precondition::Present),
                (true, _) => match self.seen.get(&key) {
                    Some(&generation) => {
                        (Condition::Same(generation), Precondition::Value(self.values[&generation]))
                    }
                    None => (Condition::Any, Precondition::Any),
                },
            };
        let request = match self.random.below(10) {
            0.. if self.random.below(10) < self.plan.reads => Request::Get,
            kind if kind < self.plan.deletes && !self.stays(key) => Request::Delete(condition),
            _ => Request::Put(value_bytes(id), condition),
        };
        let began = self.cluster.now();
        let pending = Pending { node, key, request: request.clone(), value: id, expected, began };
        self.pending.insert(id, pending);
        self.cluster.call(node, ClientCall { id, key: key_bytes(key), request });
    }

    fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.random.below(n) == 0
    }

    fn fail_something(&mut self) {
        let now = self.cluster.now();
        let node = NodeId(self.random.below(NODES.into()) as u16);
        let soon = now + self.random.below(400_000);
        if self.one_in(self.plan.compute_crash_one_in) && !self.down.contains(&node) {
            self.crashes += 1;
            self.cluster.crash_compute(node);
            self.down.insert(node);
            // Either somebody sees it, or the node is back before anybody does.
            if self.random.below(3) > 0 {
                self.later.push((soon, Later::Suspect(node)));
            }
            self.later.push((soon + self.random.below(800_000), Later::Restart(node)));
            for id in
                self.pending.iter().filter(|(_, p)| p.node == node).map(|(&id, _)| id).collect::<Vec<_>>()
            {
                if let Some(pending) = self.pending.remove(&id) {
                    self.record_open(&pending);
                }
            }
        }
        if self.one_in(self.plan.assign_one_in) {
            let partition = self.random.below(self.plan.layout.partitions().into()) as u16;
            let proxy = (self.random.below(4) > 0).then_some(node);
            self.cluster.tell_manager(ManagerCall::Assign(partition, proxy));
        }
        if self.one_in(self.plan.suspicion_one_in) {
            self.later.push((soon, Later::Suspect(node)));
        }
        let is_time = self.next_call > 20 && self.one_in(40);
        if self.losses < self.plan.memory_losses && is_time {
            let node = MemoryNode(self.random.below(self.plan.layout.memory_nodes.into()) as u8);
            if self.cluster.manager().living().has(node)
                && !self.later.iter().any(|(_, l)| matches!(l, Later::Lost(_)))
            {
                self.losses += 1;
                self.lose(node, soon);
                let next = MemoryNode((node.0 + 1) % self.plan.layout.memory_nodes);
                if self.plan.loses_two_at_once && self.losses < self.plan.memory_losses {
                    // About when the manager hears of the first one, or repairs what it left behind.
                    self.losses += 1;
                    self.later.push((soon + self.random.below(60_000), Later::Lose(next)));
                }
            }
        }
    }

    /// A memory node crashes, and the manager hears of it at some time.
    fn lose(&mut self, node: MemoryNode, told_at: Nanos) {
        self.cluster.crash_memory(node);
        self.later.push((told_at, Later::Lost(node)));
    }

    fn record_open(&mut self, pending: &Pending) {
        let effect = match pending.request {
            Request::Get | Request::Walk(..) => return,
            Request::Put(..) => Effect::MayWriteIf(pending.expected, pending.value),
            Request::Delete(_) => Effect::MayRemoveIf(pending.expected),
        };
        self.open += 1;
        self.push(pending, effect);
    }

    fn push(&mut self, pending: &Pending, effect: Effect) {
        let returned = self.cluster.now();
        self.history.push(Call { key: pending.key, effect, began: pending.began, returned });
    }

    fn answered(&mut self, answer: ClientAnswer) -> Result<(), String> {
        let Some(pending) = self.pending.remove(&answer.id) else {
            return Err(format!("{answer:?} was not asked for"));
        };
        let effect = match answer.outcome {
            Outcome::Value(bytes, generation) => {
                let value = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
                if bytes != value_bytes(value) {
                    return Err(format!("a value that nobody wrote: {bytes:?}"));
                }
                if *self.values.entry(generation).or_insert(value) != value {
                    return Err(format!("{generation:?} is that of two values"));
                }
                self.seen.insert(pending.key, generation);
                Effect::Read(Some(value))
            }
            Outcome::Absent => Effect::Read(None),
            Outcome::Stored(generation) => {
                self.values.insert(generation, pending.value);
                if self.stays(pending.key) {
                    self.stay.insert(pending.key);
                }
                self.seen.insert(pending.key, generation);
                Effect::WriteIf(pending.expected, pending.value)
            }
            Outcome::Deleted(was) => Effect::RemoveIf(pending.expected, was),
            Outcome::Conflict => Effect::Refused(pending.expected),
            Outcome::Indeterminate => {
                self.record_open(&pending);
                return Ok(());
            }
            Outcome::Walked(pairs, next) => return self.walked(answer.id, &pending, pairs, next),
            Outcome::Full | Outcome::TooLong | Outcome::Unavailable => return Ok(()),
        };
        self.push(&pending, effect);
        Ok(())
    }

    /// Whether nobody deletes a key.
    fn stays(&self, key: u64) -> bool {
        self.plan.walk_one_in > 0 && key.is_multiple_of(2)
    }

    fn walk_on(&mut self, node: NodeId, walk: Walk, from: SlotId) {
        if self.down.contains(&node) {
            return;
        }
        let id = self.next_call;
        self.next_call += 1;
        let request = Request::Walk(from, self.random.below(4) as usize);
        let (began, expected) = (self.cluster.now(), Precondition::Any);
        let pending = Pending { node, key: 0, request: request.clone(), value: 0, expected, began };
        self.pending.insert(id, pending);
        self.walks.insert(id, walk);
        self.cluster.call(node, ClientCall { id, key: b"key-".to_vec(), request });
    }

    /// Each pair is as good as a read.
    fn walked(
        &mut self,
        id: u64,
        pending: &Pending,
        pairs: Vec<WalkedPair>,
        next: Option<SlotId>,
    ) -> Result<(), String> {
        let mut walk = self.walks.remove(&id).ok_or("a walk that nobody began")?;
        let most = if let Request::Walk(_, most) = pending.request { most.max(1) } else { 0 };
        if pairs.len() > most {
            return Err(format!("{} pairs, and {most} were asked for", pairs.len()));
        }
        for pair in pairs {
            let number = pair.key.strip_prefix(b"key-").and_then(|rest| str::from_utf8(rest).ok());
            let key: u64 = number.and_then(|number| number.parse().ok()).ok_or("a key that nobody put")?;
            let value = pair.value.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
            if pair.value != value_bytes(value)
                || *self.values.entry(pair.generation).or_insert(value) != value
            {
                return Err(format!("a walk came by {pair:?}"));
            }
            let (began, returned) = (pending.began, self.cluster.now());
            self.history.push(Call { key, effect: Effect::Read(Some(value)), began, returned });
            walk.came_by.insert(key);
        }
        if let Some(next) = next {
            self.walk_on(pending.node, walk, next);
            return Ok(());
        }
        self.walked += 1;
        match walk.there.is_subset(&walk.came_by) {
            true => Ok(()),
            false => Err(format!("keys were there throughout, and the walk missed some: {walk:?}")),
        }
    }

    fn check_memory(&self) -> Result<(), String> {
        // Who was given up, and does not know, has no memory any more: somebody else may have it.
        let is_member = |client: &&crate::client::Client| {
            client.session().is_some_and(|session| self.cluster.manager().has_session(session))
        };
        let clients = (0..NODES).filter_map(|node| self.cluster.client(NodeId(node)));
        if clients.clone().any(|client| client.is_preparing() && !is_member(&client)) {
            return Err("a client that was given up was never told".into());
        }
        let members: Vec<_> = clients.filter(is_member).collect();
        let slabs: Vec<_> = members.iter().map(|client| client.slab()).collect();
        let memory = |node, region| self.cluster.fabric().memory(node, region);
        for client in &members {
            check_proxy(&self.plan.layout, self.cluster.manager().living(), memory, client)?;
        }
        check_memory(&self.plan.layout, self.cluster.manager().living(), memory, &slabs)
    }
}
