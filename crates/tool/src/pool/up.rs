//! `hedgerow pool up`: a whole pool on this machine, as processes of this program.
//!
//! Owns those processes. Promises that all of them end when this one does, whatever ends it: each has a pipe of it as standard input, and ends with that. Must not know what they do.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use hedgerow_device::Clock;

use super::{PlanArgs, say};

/// How long a process has to end by itself.
const END_NS: u64 = 1_000_000_000;
const LOOK: Duration = Duration::from_millis(20);

/// Settings of `hedgerow pool up`.
#[derive(Debug, clap::Args)]
pub(super) struct UpArgs {
    /// Where compute nodes join.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7400")]
    listen: String,
    #[command(flatten)]
    plan: PlanArgs,
}

/// A process of the pool.
struct PoolProcess {
    name: String,
    child: Child,
}

pub(super) fn run(args: &UpArgs) -> Result<(), String> {
    // Before anything is started.
    args.plan.plan()?;
    let listen = super::parse_listen(&args.listen, args.plan.trust_network)?;
    let stop = super::stopper(false)?;
    say("what is in this pool is in memory alone: it is gone with this machine, and with this command");
    let mut manager = start_manager(args)?;
    let mut nodes = Vec::new();
    let outcome = start_nodes(args, &mut manager, listen.ip().to_string(), &mut nodes);
    let outcome = outcome.and_then(|()| watch(&mut manager, &mut nodes, || stop.load(Ordering::Acquire)));
    // Memory nodes first: they would take the end of the manager for a failure.
    end_all(nodes);
    end_all(vec![manager]);
    say("the pool has ended");
    outcome
}

/// Starts this program with a pipe as its standard input, in a process group of its own: a terminal's Ctrl-C is for this process, which ends the others.
fn start(name: &str, arguments: &[&str]) -> Result<PoolProcess, String> {
    let cannot = |error| format!("{name} can not start: {error}");
    let program = std::env::current_exe().map_err(cannot)?;
    let mut command = Command::new(program);
    command.arg("pool").args(arguments).arg("--end-with-stdin").process_group(0);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    Ok(PoolProcess { name: name.to_owned(), child })
}

fn start_manager(args: &UpArgs) -> Result<PoolProcess, String> {
    let plan = &args.plan;
    let (nodes, copies) = (plan.memory_nodes.to_string(), plan.copies().to_string());
    let (bits, compute) = (plan.partition_bits.to_string(), plan.compute_nodes.to_string());
    let mut arguments = vec!["manager", "--listen", &args.listen, "--memory-nodes", &nodes];
    arguments.extend(["--copies", &copies, "--node-bytes", &plan.node_bytes]);
    arguments.extend(["--partition-bits", &bits, "--compute-nodes", &compute]);
    if plan.trust_network {
        arguments.push("--trust-network");
    }
    start("the manager", &arguments)
}

/// Starts the memory nodes once the manager says where it is.
fn start_nodes(
    args: &UpArgs,
    manager: &mut PoolProcess,
    host: String,
    nodes: &mut Vec<PoolProcess>,
) -> Result<(), String> {
    let no_manager = || "the manager did not start".to_owned();
    let mut output = BufReader::new(manager.child.stdout.take().ok_or_else(no_manager)?);
    let mut line = String::new();
    // It ends without a line where the manager did: that said why.
    let is_read = output.read_line(&mut line).is_ok_and(|bytes| bytes > 0);
    let address = line.trim().strip_prefix("pool:").filter(|_| is_read).ok_or_else(no_manager)?;
    say(&format!("pool:{address} (process {})", manager.child.id()));
    forward(output);
    let listen = if host.contains(':') { format!("[{host}]:0") } else { format!("{host}:0") };
    for number in 0..args.plan.memory_nodes {
        let mut arguments = vec!["memory-node", "--join", address, "--listen", &listen];
        if args.plan.trust_network {
            arguments.push("--trust-network");
        }
        let mut node =
            start(&format!("memory node {} of {}", number + 1, args.plan.memory_nodes), &arguments)?;
        say(&format!("{} is process {}", node.name, node.child.id()));
        if let Some(output) = node.child.stdout.take() {
            forward(BufReader::new(output));
        }
        nodes.push(node);
    }
    Ok(())
}

/// Prints what a process prints, until it ends.
fn forward(output: BufReader<ChildStdout>) {
    std::thread::spawn(move || {
        output.lines().map_while(Result::ok).for_each(|line| say(&line));
    });
}

/// Waits until the pool is to end, or its manager has, or all of its memory nodes; says which memory nodes do.
fn watch(
    manager: &mut PoolProcess,
    nodes: &mut Vec<PoolProcess>,
    is_over: impl Fn() -> bool,
) -> Result<(), String> {
    while !is_over() {
        if let Some(status) = ended(manager) {
            return Err(format!("the manager ended ({status}), and with it the pool"));
        }
        for gone in nodes.extract_if(.., |node| ended(node).is_some()) {
            let PoolProcess { name, mut child } = gone;
            let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            say(&format!("{name}, process {}, ended ({how}); status says when it is lost", child.id()));
        }
        if nodes.is_empty() {
            return Err("all memory nodes ended: what was in the pool is lost".into());
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn ended(part: &mut PoolProcess) -> Option<ExitStatus> {
    part.child.try_wait().ok().flatten()
}

/// Ends processes: by the end of their standard input, and by force where that is not enough.
fn end_all(mut parts: Vec<PoolProcess>) {
    parts.iter_mut().for_each(|part| drop(part.child.stdin.take()));
    let clock = Clock::system();
    let until = clock.monotonic_ns() + END_NS;
    while parts.iter_mut().any(|part| ended(part).is_none()) && clock.monotonic_ns() < until {
        std::thread::sleep(LOOK);
    }
    for part in &mut parts {
        // It fails where the process has ended.
        let _ = part.child.kill();
        let _ = part.child.wait();
    }
}
