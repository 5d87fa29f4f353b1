//! What the model says of a pool under loads like those of YCSB (Cooper and others, SoCC 2010): `cargo run --release -p hedgerow-pool --example pool_model [seed]`.
//!
//! Owns the loads and the table. Promises the same output, to the byte, for the same seed. Nothing in it is a measurement: the network is simulated in virtual time by the costs of
//! `fabric/nic.rs`, processors cost nothing, and nothing fails.

use std::collections::BTreeMap;
use std::fmt::Write;

use hedgerow_device::Random;
use hedgerow_pool::bucket::groups_for;
use hedgerow_pool::client::{ClientCall, ClientOptions, Condition, Outcome, Request};
use hedgerow_pool::cluster::{Cluster, ClusterOptions};
use hedgerow_pool::fabric::nic::{AssumedCost, CostFactor, NicModel};
use hedgerow_pool::fabric::sim::{SimCounters, SimOptions};
use hedgerow_pool::fabric::{Nanos, NodeId};
use hedgerow_pool::manager::ManagerOptions;
use hedgerow_pool::region::PoolLayout;

const NODES: u16 = 4;
/// Calls under way on each node.
const DEPTH: usize = 8;
const KEYS: u64 = 2_000;
const VALUE_BYTES: usize = 100;
const CALLS: u64 = 20_000;
const PARTITION_BITS: u32 = 4;

/// A mix of calls.
#[derive(Debug, Clone, Copy)]
struct Load {
    name: &'static str,
    /// Of a hundred calls: reads. The others are updates, or inserts.
    reads: u64,
    inserts: bool,
}

const LOADS: [Load; 4] = [
    Load { name: "A", reads: 50, inserts: false },
    Load { name: "B", reads: 95, inserts: false },
    Load { name: "C", reads: 100, inserts: false },
    Load { name: "D", reads: 95, inserts: true },
];

/// Latencies and counts of one run.
#[derive(Debug, Default)]
struct Figures {
    took: Nanos,
    latencies: BTreeMap<&'static str, Vec<Nanos>>,
    fabric: SimCounters,
    refused: u64,
}

struct Driver {
    cluster: Cluster,
    random: Random,
    /// Sums of the weights of keys by rank: one by rank, in units of 2^-32 (Zipf with exponent 1).
    sums: Vec<u64>,
    keys: u64,
    next_call: u64,
    under_way: BTreeMap<u64, (&'static str, Nanos)>,
    figures: Figures,
}

fn key_bytes(key: u64) -> Vec<u8> {
    // So that keys of near ranks are nowhere near one another.
    format!("user{:016x}", key.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes()
}

impl Driver {
    fn new(nic: NicModel, seed: u64) -> hedgerow_pool::Result<Driver> {
        let layout = PoolLayout {
            memory_nodes: 3,
            copies: 3,
            partition_bits: PARTITION_BITS,
            groups: groups_for(2 * KEYS, 1 << PARTITION_BITS),
            block_bytes: 1 << 16,
            blocks: 128,
        };
        // Longer than twice the slowest operation of this model, and so short that memory comes round within a run.
        let client =
            ClientOptions { quarantine_ns: 2_000_000, housekeeping_ns: 100_000, ..ClientOptions::default() };
        let fabric = SimOptions::modelled(nic);
        let manager = ManagerOptions::default();
        let options = ClusterOptions { layout, compute_nodes: NODES, client, manager, fabric };
        let mut sum = 0;
        let sums = (1..=KEYS).map(|rank| {
            sum += (1 << 32) / rank;
            sum
        });
        Ok(Driver {
            sums: sums.collect(),
            cluster: Cluster::new(options, seed)?,
            random: Random::from_seed(seed ^ 0x10AD),
            keys: 0,
            next_call: 0,
            under_way: BTreeMap::new(),
            figures: Figures::default(),
        })
    }

    fn call(&mut self, node: NodeId, kind: &'static str, key: u64) {
        let id = self.next_call;
        self.next_call += 1;
        let request = match kind {
            "read" => Request::Get,
            _ => Request::Put(vec![id as u8; VALUE_BYTES], Condition::Any),
        };
        self.under_way.insert(id, (kind, self.cluster.now()));
        self.cluster.call(node, ClientCall { id, key: key_bytes(key), request });
    }

    /// Rank 0 is the most popular one.
    fn rank(&mut self) -> u64 {
        let at = self.random.below(self.sums.last().copied().unwrap_or(1));
        self.sums.partition_point(|&sum| sum <= at) as u64
    }

    fn call_of(&mut self, load: Load, node: NodeId) {
        let rank = self.rank();
        let is_read = self.random.below(100) < load.reads;
        match (is_read, load.inserts) {
            // Of load D the newest are the most popular.
            (true, true) => self.call(node, "read", self.keys.saturating_sub(1 + rank)),
            (true, false) => self.call(node, "read", rank),
            (false, false) => self.call(node, "update", rank),
            (false, true) => {
                self.call(node, "insert", self.keys);
                self.keys += 1;
            }
        }
    }

    /// Goes on until so many have been answered, with `next` called for each node that has room.
    fn drive(&mut self, calls: u64, mut next: impl FnMut(&mut Driver, NodeId)) {
        let mut begun = 0;
        for node in (0..NODES).flat_map(|node| [NodeId(node); DEPTH]) {
            if begun < calls {
                next(self, node);
                begun += 1;
            }
        }
        while !self.under_way.is_empty() && self.cluster.step() {
            for (node, answer) in self.cluster.take_answers() {
                let Some((kind, began)) = self.under_way.remove(&answer.id) else { continue };
                let took = self.cluster.now() - began;
                self.figures.latencies.entry(kind).or_default().push(took);
                let is_done =
                    matches!(answer.outcome, Outcome::Value(..) | Outcome::Stored(_) | Outcome::Absent);
                self.figures.refused += u64::from(!is_done);
                if begun < calls {
                    next(self, node);
                    begun += 1;
                }
            }
        }
    }
}

/// Loads the keys, and then runs a load.
fn run(load: Load, nic: NicModel, seed: u64) -> hedgerow_pool::Result<Figures> {
    let mut driver = Driver::new(nic, seed)?;
    driver.drive(KEYS, |driver, node| {
        driver.call(node, "insert", driver.keys);
        driver.keys += 1;
    });
    driver.figures = Figures::default();
    let (before, began) = (driver.cluster.fabric().counters(), driver.cluster.now());
    driver.drive(CALLS, |driver, node| driver.call_of(load, node));
    let after = driver.cluster.fabric().counters();
    let mut figures = driver.figures;
    figures.took = driver.cluster.now() - began;
    figures.fabric = SimCounters {
        batches: after.batches - before.batches,
        operations: after.operations - before.operations,
        atomics: after.atomics - before.atomics,
        bytes: after.bytes - before.bytes,
        datagrams: after.datagrams - before.datagrams,
        ..SimCounters::default()
    };
    Ok(figures)
}

/// A quotient with two places.
fn hundredths(part: u64, whole: u64) -> String {
    let value = part.saturating_mul(100) / whole.max(1);
    format!("{}.{:02}", value / 100, value % 100)
}

fn thousands_a_second(figures: &Figures) -> u64 {
    CALLS * 1_000_000 / figures.took.max(1)
}

impl Figures {
    fn describe(&mut self, load: Load, text: &mut String) -> std::fmt::Result {
        let fabric = self.fabric;
        writeln!(
            text,
            "load {}: {} thousand calls a second [modelled]; a call: {} batches, {} operations, {} of them atomic, {} bytes, {} datagrams [modelled]; refused: {}",
            load.name,
            thousands_a_second(self),
            hundredths(fabric.batches, CALLS),
            hundredths(fabric.operations, CALLS),
            hundredths(fabric.atomics, CALLS),
            hundredths(fabric.bytes, CALLS),
            hundredths(fabric.datagrams, CALLS),
            self.refused,
        )?;
        for (kind, latencies) in &mut self.latencies {
            latencies.sort_unstable();
            let at = |hundredth: usize| {
                latencies.get((latencies.len() - 1) * hundredth / 100).copied().unwrap_or(0)
            };
            let (p50, p99) = (hundredths(at(50), 1_000), hundredths(at(99), 1_000));
            writeln!(text, "  {kind}: {} calls, p50 {p50} us, p99 {p99} us [modelled]", latencies.len())?;
        }
        Ok(())
    }
}

/// All loads, and load A with each assumption at both of its bounds.
fn describe(seed: u64) -> Result<String, Box<dyn std::error::Error>> {
    let (nic, mut text) = (NicModel::CONNECTX3, String::new());
    writeln!(
        text,
        "modelled, not measured: {nic:?}; seed {seed}; {NODES} compute nodes with {DEPTH} calls each, 3 memory nodes, 3 copies; \
         {KEYS} keys, values of {VALUE_BYTES} bytes, {CALLS} calls, Zipf with exponent 1; no processor time but that of datagrams"
    )?;
    for load in LOADS {
        run(load, nic, seed)?.describe(load, &mut text)?;
    }
    writeln!(text, "load A by the costs that are assumed [modelled], in thousand calls a second:")?;
    for cost in AssumedCost::ALL {
        let [half, double] = [CostFactor::Half, CostFactor::Double].map(|factor| nic.with(cost, factor));
        let (half, double) = (run(LOADS[0], half, seed)?, run(LOADS[0], double, seed)?);
        let (half, double) = (thousands_a_second(&half), thousands_a_second(&double));
        writeln!(text, "  {cost:?}: halved {half}, doubled {double}")?;
    }
    Ok(text)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seed = std::env::args().nth(1).map_or(Ok(1), |seed| seed.parse())?;
    print!("{}", describe(seed)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_text() {
        let text = |seed| {
            let mut text = String::new();
            for load in [LOADS[0], LOADS[3]] {
                run(load, NicModel::CONNECTX3, seed).unwrap().describe(load, &mut text).unwrap();
            }
            text
        };
        let once = text(1);
        assert_eq!(once, text(1));
        assert_ne!(once, text(2));
        assert_eq!(once.matches("refused: 0\n").count(), 2, "{once}");
    }
}
