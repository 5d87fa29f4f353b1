//! A whole pool over the simulated fabric: machines, nodes and the events between them.
//!
//! Owns which machine runs on which node. Promises that the same seed with the same calls gives the same run. Must not know what the calls are for. This is what tests and the benchmark
//! drive; a process that runs one node over a real fabric does the same for one machine.

use std::collections::BTreeMap;

use crate::agent::{Agent, AgentCall};
use crate::client::{Client, ClientAnswer, ClientCall, ClientCounters, ClientOptions};
use crate::error::Result;
use crate::fabric::sim::{SimEvent, SimFabric, SimOptions};
use crate::fabric::{FabricEvent, Nanos, NodeId};
use crate::machine::{In, Out};
use crate::manager::{Manager, ManagerAnswer, ManagerCall, ManagerOptions};
use crate::proxy::ProxyCounters;
use crate::region::{MemoryNode, PoolLayout};
use crate::repairs::Repairs;

/// What a pool is made of.
#[derive(Debug, Clone, Copy)]
pub struct ClusterOptions {
    /// The memory.
    pub layout: PoolLayout,
    /// Compute nodes, at most 1,024.
    pub compute_nodes: u16,
    /// Their clients.
    pub client: ClientOptions,
    /// The manager.
    pub manager: ManagerOptions,
    /// The network.
    pub fabric: SimOptions,
}

/// A pool.
#[derive(Debug)]
pub struct Cluster {
    options: ClusterOptions,
    repairs: Repairs,
    fabric: SimFabric,
    clients: BTreeMap<NodeId, Client>,
    agents: BTreeMap<NodeId, Agent>,
    manager: Manager,
    boots: u64,
    /// Answers that were not taken yet.
    answers: Vec<(NodeId, ClientAnswer)>,
    /// Of clients whose nodes crashed or were fenced.
    past: Vec<(ClientCounters, ProxyCounters)>,
}

impl Cluster {
    /// A new pool, all nodes up. Clients have no session yet: [`step`](Cluster::step) until they have.
    ///
    /// # Errors
    /// If the layout cannot be.
    pub fn new(options: ClusterOptions, seed: u64) -> Result<Cluster> {
        Cluster::with_repairs(options, seed, Repairs::ALL)
    }

    pub(crate) fn with_repairs(options: ClusterOptions, seed: u64, repairs: Repairs) -> Result<Cluster> {
        let layout = options.layout;
        layout.check()?;
        let mut cluster = Cluster {
            options,
            repairs,
            fabric: SimFabric::new(options.fabric, seed),
            clients: BTreeMap::new(),
            agents: BTreeMap::new(),
            manager: Manager::with_repairs(layout, options.manager, repairs),
            boots: 0,
            answers: Vec::new(),
            past: Vec::new(),
        };
        cluster.fabric.start(NodeId::MANAGER);
        for region in layout.regions() {
            let bytes = layout.empty_region(region);
            layout.replicas(region).for_each(|node| cluster.fabric.export(node, region, bytes.clone()));
        }
        for node in (0..layout.memory_nodes).map(MemoryNode) {
            let id = NodeId::agent(node);
            cluster.fabric.start(id);
            cluster.agents.insert(id, Agent::new(node, layout, options.manager.retry_ns));
        }
        (0..options.compute_nodes).for_each(|node| cluster.start_compute(NodeId(node)));
        Ok(cluster)
    }

    /// Starts a compute node, or starts it again; one that is up crashes first.
    pub fn start_compute(&mut self, node: NodeId) {
        if self.clients.contains_key(&node) {
            self.crash_compute(node);
        }
        self.boots += 1;
        let options = self.options.client;
        let client = Client::with_repairs(node, self.boots, self.options.layout, options, self.repairs);
        self.fabric.start(node);
        self.clients.insert(node, client);
        self.feed_client(node, In::Tick);
    }

    /// A compute node stops. Its answers never come.
    pub fn crash_compute(&mut self, node: NodeId) {
        self.fabric.crash_compute(node);
        if let Some(client) = self.clients.remove(&node) {
            self.past.push((client.counters(), client.proxy_counters()));
        }
        self.answers.retain(|(of, _)| *of != node);
    }

    /// A memory node stops for good.
    pub fn crash_memory(&mut self, node: MemoryNode) {
        self.fabric.crash_memory(node);
        self.agents.remove(&NodeId::agent(node));
    }

    /// Tells the manager something.
    pub fn tell_manager(&mut self, call: ManagerCall) {
        self.feed_manager(In::Call(call));
    }

    /// Asks a client; if its node is down nothing happens.
    pub fn call(&mut self, node: NodeId, call: ClientCall) {
        self.feed_client(node, In::Call(call));
    }

    /// Goes on by one event. False once nothing is left to happen.
    pub fn step(&mut self) -> bool {
        let Some((node, event)) = self.fabric.step() else { return false };
        if node == NodeId::MANAGER {
            self.feed_manager(input(event));
        } else if self.agents.contains_key(&node) {
            self.feed_agent(node, input(event));
        } else {
            self.feed_client(node, input(event));
        }
        true
    }

    /// Answers that have come since this was last asked.
    pub fn take_answers(&mut self) -> Vec<(NodeId, ClientAnswer)> {
        std::mem::take(&mut self.answers)
    }

    /// The time, in nanoseconds.
    pub fn now(&self) -> Nanos {
        self.fabric.now()
    }

    /// The fabric.
    pub fn fabric(&self) -> &SimFabric {
        &self.fabric
    }

    /// The fabric, to record what it does.
    pub fn fabric_mut(&mut self) -> &mut SimFabric {
        &mut self.fabric
    }

    /// The manager.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// The client of a node that is up.
    pub fn client(&self, node: NodeId) -> Option<&Client> {
        self.clients.get(&node)
    }

    /// How the memory is laid out.
    pub fn layout(&self) -> &PoolLayout {
        &self.options.layout
    }

    /// What all clients did, those of earlier lives too.
    pub fn client_counters(&self) -> ClientCounters {
        let own = self.clients.values().map(Client::counters);
        let past = self.past.iter().map(|(client, _)| *client);
        own.chain(past).fold(ClientCounters::default(), |sum, one| sum.plus(one))
    }

    /// What all proxies did, those of earlier lives too.
    pub fn proxy_counters(&self) -> ProxyCounters {
        let own = self.clients.values().map(Client::proxy_counters);
        let past = self.past.iter().map(|(_, proxy)| *proxy);
        own.chain(past).fold(ProxyCounters::default(), |sum, one| sum.plus(one))
    }

    fn feed_client(&mut self, node: NodeId, input: In<ClientCall>) {
        let now = self.fabric.local_now(node);
        let Some(client) = self.clients.get_mut(&node) else { return };
        let mut out = Vec::new();
        client.on(now, input, &mut out);
        for one in out {
            match one {
                Out::Answer(answer) => self.answers.push((node, answer)),
                other => self.carry_out(node, other),
            }
        }
    }

    fn feed_agent(&mut self, node: NodeId, input: In<AgentCall>) {
        let now = self.fabric.local_now(node);
        let Some(agent) = self.agents.get_mut(&node) else { return };
        let mut out = Vec::new();
        agent.on(now, input, &mut out);
        out.into_iter().for_each(|one| self.carry_out(node, one));
    }

    fn feed_manager(&mut self, input: In<ManagerCall>) {
        let now = self.fabric.local_now(NodeId::MANAGER);
        let mut out: Vec<Out<ManagerAnswer>> = Vec::new();
        self.manager.on(now, input, &mut out);
        out.into_iter().for_each(|one| self.carry_out(NodeId::MANAGER, one));
    }

    fn carry_out<A>(&mut self, node: NodeId, one: Out<A>) {
        match one {
            Out::Post { session, to, batch, tag } => self.fabric.post(node, session, to, batch, tag),
            Out::Send { to, bytes } => self.fabric.send(node, to, bytes),
            Out::At(at) => self.fabric.wake(node, at),
            Out::Fence { session, tag } => {
                if let Some(memory) = node.as_memory_node() {
                    self.fabric.fence(memory, session, tag);
                }
            }
            // Clients alone answer, and theirs were taken.
            Out::Answer(_) => {}
        }
    }
}

fn input<C>(event: SimEvent) -> In<C> {
    match event {
        SimEvent::Woken => In::Tick,
        SimEvent::Fabric(FabricEvent::Received(bytes)) => In::Message(bytes),
        SimEvent::Fabric(FabricEvent::Done(tag, result)) => In::Done(tag, result),
    }
}
