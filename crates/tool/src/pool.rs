//! `hedgerow pool`: the processes of a pool of memory that many nodes share.
//!
//! Owns the settings of those processes, where they may listen, and what ends them. Promises that nothing listens beyond this machine unless that was asked for by name, and that a process that was started by
//! `up` ends with it. Must not know how a pool works: that is `hedgerow-pool`.

mod status;
mod teller;
mod up;

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Subcommand;
use hedgerow_device::Clock;
use hedgerow_pool::fabric::NodeId;
use hedgerow_pool::manager::ManagerOptions;
use hedgerow_pool::membership::{
    COMPUTE_NODES_MAX, JoinError, MemoryNodeHost, PoolManager, PoolNodeState, PoolPlan, PoolState, PoolStatus,
};
use hedgerow_pool::place::PlacementOptions;

use crate::open_files::make_room_for_nodes;
use crate::units::parse_bytes;
use teller::say;

/// How long a memory node waits for its manager.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it asks to be let in before it looks whether it is to end.
const JOIN_SLICE: Duration = Duration::from_millis(250);
/// How long a process may take to see that it is to end.
const STEP: Duration = Duration::from_millis(20);

/// Settings of `hedgerow pool`.
#[derive(Debug, clap::Args)]
pub struct PoolArgs {
    #[command(subcommand)]
    command: PoolCommand,
}

#[derive(Debug, Subcommand)]
enum PoolCommand {
    /// Runs a whole pool on this machine until it is ended: its manager, and each memory node, as a process.
    Up(up::UpArgs),
    /// Runs the manager of a pool: its address is that of the pool.
    Manager(ManagerArgs),
    /// Gives memory of this machine to a pool.
    MemoryNode(MemoryNodeArgs),
    /// Shows the nodes of a pool.
    Status(status::StatusArgs),
}

/// What a pool is to be.
#[derive(Debug, clap::Args)]
struct PlanArgs {
    /// Memory nodes, 1 to 32. The pool begins when so many have joined.
    #[arg(long, default_value_t = 3)]
    memory_nodes: u8,
    /// Copies of everything: all but one of them may be lost. 3 if nothing else is said, or as many as there are memory nodes.
    #[arg(long)]
    copies: Option<u8>,
    /// Memory of each memory node, copies included.
    #[arg(long, default_value = "256mb")]
    node_bytes: String,
    /// The index is in two to the power of this many partitions, 0 to 14.
    #[arg(long, default_value_t = 6)]
    partition_bits: u32,
    /// Compute nodes at a time, 1 to 1000.
    #[arg(long, default_value_t = 256)]
    compute_nodes: usize,
    /// Which partitions of the index compute nodes have for themselves: as many as throughput says, none, or as many as may be.
    #[arg(long, value_enum, default_value_t)]
    proxies: ProxyChoice,
    /// Listen at an address that other machines reach, too: all that can reach it can read and change everything.
    #[arg(long)]
    trust_network: bool,
}

/// Which partitions are to have a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum ProxyChoice {
    #[default]
    Auto,
    None,
    All,
}

impl ProxyChoice {
    fn name(self) -> &'static str {
        match self {
            ProxyChoice::Auto => "auto",
            ProxyChoice::None => "none",
            ProxyChoice::All => "all",
        }
    }

    fn placement(self) -> Option<PlacementOptions> {
        let share = if self == ProxyChoice::All { Some(100) } else { None };
        (self != ProxyChoice::None).then(|| PlacementOptions {
            share,
            // Over TCP an atomic costs what any message costs, and what proxies are good for are caches.
            first_share: 100,
            ..PlacementOptions::default()
        })
    }
}

impl PlanArgs {
    fn copies(&self) -> u8 {
        self.copies.unwrap_or(self.memory_nodes.min(3))
    }

    fn plan(&self) -> Result<PoolPlan, String> {
        let bytes = parse_bytes(&self.node_bytes)
            .ok_or_else(|| format!("--node-bytes {}: not a number of bytes, as 256mb is", self.node_bytes))?;
        let plan = PoolPlan::new(self.memory_nodes, self.copies(), self.partition_bits, bytes);
        let plan = plan.map_err(|error| format!("there is no such pool: {error}"))?;
        let manager = ManagerOptions { placement: self.proxies.placement(), ..plan.manager };
        Ok(PoolPlan { compute_nodes_max: self.compute_nodes, manager, ..plan })
    }
}

/// Settings of `hedgerow pool manager`.
#[derive(Debug, clap::Args)]
struct ManagerArgs {
    /// Where nodes join.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7400")]
    listen: String,
    #[command(flatten)]
    plan: PlanArgs,
    /// End when standard input does.
    #[arg(long, hide = true)]
    end_with_stdin: bool,
}

/// Settings of `hedgerow pool memory-node`.
#[derive(Debug, clap::Args)]
struct MemoryNodeArgs {
    /// The pool's address.
    #[arg(long, value_name = "HOST:PORT")]
    join: String,
    /// Where others reach this node; port 0 is one that the system chooses.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Listen at an address that other machines reach, too: all that can reach it can read and change everything.
    #[arg(long)]
    trust_network: bool,
    /// End when standard input does.
    #[arg(long, hide = true)]
    end_with_stdin: bool,
}

/// Does what is asked.
pub fn run(args: PoolArgs) -> Result<(), String> {
    let outcome = match args.command {
        PoolCommand::Up(args) => up::run(&args),
        PoolCommand::Manager(args) => run_manager(&args),
        PoolCommand::MemoryNode(args) => run_memory_node(&args),
        PoolCommand::Status(args) => status::run(&args),
    };
    teller::finish();
    outcome
}

/// The address that is meant, with `pool:` before it or without.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let place = text.strip_prefix("pool:").unwrap_or(text);
    let found = place.to_socket_addrs().map_err(|error| format!("{text}: {error}"))?.next();
    found.ok_or_else(|| format!("{text}: no such address"))
}

/// An address to listen at: one of this machine alone, unless the network is trusted.
fn parse_listen(text: &str, trusts_network: bool) -> Result<SocketAddr, String> {
    let address = parse_address(text)?;
    if !address.ip().is_loopback() && !trusts_network {
        return Err(format!(
            "{text} can be reached from other machines, and a pool has neither encryption nor passwords: whoever reaches it can read and change everything; --trust-network says that this is wanted"
        ));
    }
    Ok(address)
}

/// Set when this process is to end: by a signal, or with standard input.
fn stopper(end_with_stdin: bool) -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| format!("signals can not be handled: {error}"))?;
    }
    if end_with_stdin {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            // Nobody writes there: it ends when whoever started this process does, however that happens.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            stop.store(true, Ordering::Release);
        });
    }
    Ok(stop)
}

/// Raises the limit of open files for so many compute nodes, or says that it cannot.
fn make_room(nodes: usize) {
    let room = make_room_for_nodes(nodes);
    if room < nodes {
        // Whether or not anybody reads it.
        let _ = writeln!(
            std::io::stderr(),
            "hedgerow: the limit of open files leaves room for {room} compute nodes here, not for {nodes}"
        );
    }
}

/// A node's name, for people.
fn node_name(node: NodeId) -> String {
    match node.as_memory_node() {
        _ if node == NodeId::MANAGER => "manager".into(),
        Some(memory) => format!("memory-{}", memory.0),
        None => format!("compute-{}", node.0),
    }
}

fn run_manager(args: &ManagerArgs) -> Result<(), String> {
    let plan = args.plan.plan()?;
    let control = parse_listen(&args.listen, args.plan.trust_network)?;
    let stop = stopper(args.end_with_stdin)?;
    let cannot = |error| format!("cannot listen at {}: {error}", args.listen);
    let fabric = SocketAddr::new(control.ip(), 0);
    make_room(plan.compute_nodes_max);
    let mut manager = PoolManager::listen(control, fabric, plan).map_err(cannot)?;
    say(&format!("pool:{}", manager.address().map_err(cannot)?));
    let mut before = manager.status();
    while !stop.load(Ordering::Acquire) {
        manager.step(STEP);
        let now = manager.status();
        tell_news(&before, &now);
        if now.state == PoolState::Lost {
            return Err(
                "all memory nodes that had copies of something are gone: what was in the pool is lost".into(),
            );
        }
        before = now;
    }
    Ok(())
}

/// Says what has changed.
fn tell_news(before: &PoolStatus, now: &PoolStatus) {
    for node in &now.nodes {
        let known = before.nodes.iter().find(|other| other.node == node.node && other.life == node.life);
        if known.map(|known| known.state) == Some(node.state) {
            continue;
        }
        let (name, place) = (node_name(node.node), status::place_of(node));
        match node.state {
            PoolNodeState::Joining => {}
            PoolNodeState::Living => say(&format!("{name} at {place} has joined")),
            PoolNodeState::Lost if node.node.as_memory_node().is_some() => {
                say(&format!("{name} at {place} is lost"))
            }
            PoolNodeState::Lost => say(&format!("{name} at {place} has left")),
        }
    }
    if (before.state, now.state) == (PoolState::Waiting, PoolState::Working) {
        say("the pool works");
    }
}

fn run_memory_node(args: &MemoryNodeArgs) -> Result<(), String> {
    let manager = parse_address(&args.join)?;
    let listen = parse_listen(&args.listen, args.trust_network)?;
    if !manager.ip().is_loopback() && listen.ip().is_loopback() {
        return Err(format!(
            "{} is another machine's, which cannot reach this node at {}; --listen says where it can",
            args.join, args.listen
        ));
    }
    let stop = stopper(args.end_with_stdin)?;
    let joined = join_memory(manager, listen, &stop).map_err(|error| error.to_string())?;
    let Some(mut node) = joined else { return Ok(()) };
    // The pool has not said how many there may be.
    make_room(COMPUTE_NODES_MAX);
    say(&format!("{} listens at {}", node_name(node.node()), node.address()));
    while !stop.load(Ordering::Acquire) {
        if !node.step(STEP) {
            return Err(format!(
                "{}: the pool's manager at {manager} is gone, or did not answer in time: this node's memory is given up",
                node_name(node.node())
            ));
        }
    }
    Ok(())
}

/// Joins as a memory node, waiting for what waiting can mend: none where this process was told to end meanwhile.
fn join_memory(
    manager: SocketAddr,
    listen: SocketAddr,
    stop: &AtomicBool,
) -> Result<Option<MemoryNodeHost>, JoinError> {
    let clock = Clock::system();
    let until = clock.monotonic_ns() + PATIENCE.as_nanos() as u64;
    while !stop.load(Ordering::Acquire) {
        match MemoryNodeHost::join(manager, listen, JOIN_SLICE) {
            Ok(node) => return Ok(Some(node)),
            Err(error) if !error.is_passing() || clock.monotonic_ns() >= until => return Err(error),
            Err(_) => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_this_machine_unless_the_network_is_trusted() {
        assert_eq!(parse_listen("127.0.0.1:7400", false), Ok("127.0.0.1:7400".parse().unwrap()));
        assert_eq!(parse_address("pool:127.0.0.1:7400"), Ok("127.0.0.1:7400".parse().unwrap()));
        let refused = parse_listen("192.0.2.1:7400", false).unwrap_err();
        assert!(refused.contains("--trust-network"), "{refused}");
        assert!(parse_listen("192.0.2.1:7400", true).is_ok());
        assert!(parse_address("7400").unwrap_err().starts_with("7400: "));
    }

    #[test]
    fn nodes_have_names() {
        assert_eq!(node_name(NodeId::MANAGER), "manager");
        assert_eq!(node_name(NodeId(0x4002)), "memory-2");
        assert_eq!(node_name(NodeId(7)), "compute-7");
    }
}
