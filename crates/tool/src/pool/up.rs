//! `hedgerow pool up`: a whole pool on this machine, servers for Redis clients included, as processes of this program.
//!
//! Owns those processes. Promises that all of them end when this one does, whatever ends it: each node has a pipe of it as standard input, and ends with that; a server ends with the pool. Must not know what they do.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use hedgerow_device::Clock;
use hedgerow_pool::membership::{PoolState, ask_status};
use rustix::process::{Pid, Signal, kill_process};

use super::PlanArgs;
use super::teller::say;

/// How long a process has to end by itself.
const END_NS: u64 = 1_000_000_000;
const LOOK: Duration = Duration::from_millis(20);

/// Settings of `hedgerow pool up`.
#[derive(Debug, clap::Args)]
pub(super) struct UpArgs {
    /// Where compute nodes join.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7400")]
    listen: String,
    /// Where a server for Redis clients listens; may be repeated for several over the same rows.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    serve: Vec<String>,
    /// No server: nodes alone.
    #[arg(long, conflicts_with = "serve")]
    no_serve: bool,
    #[command(flatten)]
    plan: PlanArgs,
}

/// A process of the pool.
struct PoolProcess {
    name: String,
    child: Child,
}

/// All of them.
struct UpProcesses {
    manager: PoolProcess,
    nodes: Vec<PoolProcess>,
    servers: Vec<PoolProcess>,
}

pub(super) fn run(args: &UpArgs) -> Result<(), String> {
    // Before anything is started.
    args.plan.plan()?;
    let listen = super::parse_listen(&args.listen, args.plan.trust_network)?;
    let stop = super::stopper(false)?;
    say("what is in this pool is in memory alone: it is gone with this machine, and with this command");
    let (manager, nodes, servers) = (start_manager(args)?, Vec::new(), Vec::new());
    let mut all = UpProcesses { manager, nodes, servers };
    let outcome = start_rest(args, &mut all, listen.ip());
    let outcome = outcome.and_then(|pool| watch(&mut all, pool, || stop.load(Ordering::Acquire)));
    // Each before what it needs, the end of which it would take for a failure.
    end_all(all.servers);
    end_all(all.nodes);
    end_all(vec![all.manager]);
    say("the pool has ended");
    outcome
}

/// Starts this program with a pipe as its standard input, in a process group of its own: a terminal's Ctrl-C is for this process, which ends the others.
fn start(name: &str, arguments: &[&str]) -> Result<PoolProcess, String> {
    let cannot = |error| format!("{name} can not start: {error}");
    let program = std::env::current_exe().map_err(cannot)?;
    let mut command = Command::new(program);
    command.args(arguments).process_group(0);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    Ok(PoolProcess { name: name.to_owned(), child })
}

fn start_manager(args: &UpArgs) -> Result<PoolProcess, String> {
    let plan = &args.plan;
    let (nodes, copies) = (plan.memory_nodes.to_string(), plan.copies().to_string());
    let (bits, compute) = (plan.partition_bits.to_string(), plan.compute_nodes.to_string());
    let mut arguments = vec!["pool", "manager", "--end-with-stdin", "--listen", &args.listen];
    arguments.extend(["--memory-nodes", &nodes]);
    arguments.extend(["--copies", &copies, "--node-bytes", &plan.node_bytes]);
    arguments.extend(["--partition-bits", &bits, "--compute-nodes", &compute]);
    arguments.extend(["--proxies", plan.proxies.name()]);
    if plan.trust_network {
        arguments.push("--trust-network");
    }
    start("the manager", &arguments)
}

/// Starts memory nodes and servers once the manager says where it is, which is the pool's address.
fn start_rest(args: &UpArgs, all: &mut UpProcesses, host: IpAddr) -> Result<SocketAddr, String> {
    let no_manager = || "the manager did not start".to_owned();
    let mut output = BufReader::new(all.manager.child.stdout.take().ok_or_else(no_manager)?);
    let mut line = String::new();
    // It ends without a line where the manager did: that said why.
    let is_read = output.read_line(&mut line).is_ok_and(|bytes| bytes > 0);
    let address = line.trim().strip_prefix("pool:").filter(|_| is_read).ok_or_else(no_manager)?;
    say(&format!("pool:{address} (process {})", all.manager.child.id()));
    forward(output);
    let pool = super::parse_address(address)?;
    let listen = SocketAddr::new(host, 0).to_string();
    for number in 1..=args.plan.memory_nodes {
        let name = format!("memory node {number} of {}", args.plan.memory_nodes);
        let mut arguments = vec!["pool", "memory-node", "--end-with-stdin", "--join", address];
        arguments.extend(["--listen", &listen]);
        if args.plan.trust_network {
            arguments.push("--trust-network");
        }
        all.nodes.push(start_named(&name, &arguments)?);
    }
    let store = format!("pool:{address}?listen={listen}");
    for clients in args.serve.iter().filter(|_| !args.no_serve) {
        let name = format!("the server at {clients}");
        all.servers.push(start_named(&name, &["serve", "--store", &store, "--listen", clients])?);
    }
    Ok(pool)
}

/// Starts a process, says which it is, and prints what it prints.
fn start_named(name: &str, arguments: &[&str]) -> Result<PoolProcess, String> {
    let mut process = start(name, arguments)?;
    say(&format!("{name} is process {}", process.child.id()));
    if let Some(output) = process.child.stdout.take() {
        forward(BufReader::new(output));
    }
    Ok(process)
}

/// Prints what a process prints, until it ends.
fn forward(output: BufReader<ChildStdout>) {
    std::thread::spawn(move || {
        output.lines().map_while(Result::ok).for_each(|line| say(&line));
    });
}

/// Waits until the pool is to end, or its manager has, or all of its memory nodes, or one of them before it began; says which of the others do.
fn watch(all: &mut UpProcesses, pool: SocketAddr, is_over: impl Fn() -> bool) -> Result<(), String> {
    let mut has_begun = false;
    while !is_over() {
        if let Some(status) = ended(&mut all.manager.child) {
            return Err(format!("the manager ended ({status}), and with it the pool"));
        }
        if let Some((node, how)) =
            all.nodes.iter_mut().find_map(|node| Some((&node.name, ended(&mut node.child)?)))
            && !has_begun
        {
            // Asked once one ended, and not told by what the manager prints: that may come later than the end.
            has_begun = !is_waiting(pool);
            if !has_begun {
                return Err(format!("{node} ended before the pool began ({how})"));
            }
        }
        tell_ended(&mut all.nodes, "; status says when it is lost");
        tell_ended(&mut all.servers, "; the others go on");
        if all.nodes.is_empty() {
            return Err("all memory nodes ended: what was in the pool is lost".into());
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Takes those out that have ended, and says so.
fn tell_ended(parts: &mut Vec<PoolProcess>, and: &str) {
    for PoolProcess { name, mut child } in parts.extract_if(.., |part| ended(&mut part.child).is_some()) {
        let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        say(&format!("{name}, process {}, ended ({how}){and}", child.id()));
    }
}

/// Whether the pool still waits for memory nodes. A manager that is gone does not, and one that is slow is not taken for one that waits.
fn is_waiting(pool: SocketAddr) -> bool {
    ask_status(pool).is_ok_and(|status| status.state == PoolState::Waiting)
}

fn ended(child: &mut Child) -> Option<ExitStatus> {
    child.try_wait().ok().flatten()
}

/// Ends processes: by a signal, and by force where that is not enough.
fn end_all(mut parts: Vec<PoolProcess>) {
    for part in &mut parts {
        // It fails where the process has ended.
        let _ = kill_process(Pid::from_child(&part.child), Signal::TERM);
    }
    let clock = Clock::system();
    let until = clock.monotonic_ns() + END_NS;
    while parts.iter_mut().any(|part| ended(&mut part.child).is_none()) && clock.monotonic_ns() < until {
        std::thread::sleep(LOOK);
    }
    for part in &mut parts {
        // It fails where the process has ended.
        let _ = part.child.kill();
        let _ = part.child.wait();
    }
}
