//! `hedgerow pool status`: the nodes of a pool, as a table or as JSON.
//!
//! Owns how they are shown. Must not know how they are found out: the manager says.

use std::fmt::Write as _;
use std::io::Write as _;

use hedgerow_pool::fabric::NodeId;
use hedgerow_pool::membership::{NodeStatus, PoolNodeState, PoolState, PoolStatus, ask_status};

/// Settings of `hedgerow pool status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// The pool's address.
    #[arg(value_name = "HOST:PORT")]
    pool: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &StatusArgs) -> Result<(), String> {
    let address = super::parse_address(&args.pool)?;
    let status = ask_status(address).map_err(|error| error.to_string())?;
    let text = if args.json { format!("{:#}\n", as_json(&status)) } else { as_table(&status) };
    // It may take its time, as nothing else has to go on here, and may be read by nobody.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn state_of_pool(state: PoolState) -> &'static str {
    match state {
        PoolState::Waiting => "waiting for memory nodes",
        PoolState::Working => "working",
        PoolState::Lost => "lost",
    }
}

fn state_of_node(node: &NodeStatus) -> &'static str {
    match node.state {
        PoolNodeState::Joining => "joining",
        PoolNodeState::Living => "living",
        PoolNodeState::Lost if node.node.as_memory_node().is_some() => "lost",
        PoolNodeState::Lost => "left",
    }
}

fn role_of(node: NodeId) -> &'static str {
    match node.as_memory_node() {
        _ if node == NodeId::MANAGER => "manager",
        Some(_) => "memory",
        None => "compute",
    }
}

/// Where a node is, or a dash.
pub(super) fn place_of(node: &NodeStatus) -> String {
    node.address.map_or_else(|| "-".into(), |address| address.to_string())
}

fn as_table(status: &PoolStatus) -> String {
    let mut text = String::new();
    let change = if status.is_changing { ", changing" } else { "" };
    let (layout, sessions) = (&status.layout, status.sessions);
    // Writing to a text cannot fail.
    let _ = writeln!(
        text,
        "{}, epoch {}{change}, {sessions} sessions, {} memory nodes, {} copies",
        state_of_pool(status.state),
        status.epoch,
        layout.memory_nodes,
        layout.copies
    );
    let proxied: u32 = status.nodes.iter().map(|node| u32::from(node.proxied)).sum();
    let chosen = status.share.map_or_else(
        || "not chosen".into(),
        |share| format!("{share} % to have one, {} reassignments", status.reassignments),
    );
    let _ = writeln!(text, "proxies of {proxied} partitions of {}: {chosen}", layout.partitions());
    let _ = writeln!(text, "{:<14} {:<8} {:<8} {:<7} address", "node", "role", "state", "proxies");
    for node in &status.nodes {
        let (name, role) = (super::node_name(node.node), role_of(node.node));
        let (state, place) = (state_of_node(node), place_of(node));
        let _ = writeln!(text, "{name:<14} {role:<8} {state:<8} {:<7} {place}", node.proxied);
    }
    text
}

fn as_json(status: &PoolStatus) -> serde_json::Value {
    let nodes: Vec<_> = status
        .nodes
        .iter()
        .map(|node| {
            serde_json::json!({
                "node": super::node_name(node.node),
                "role": role_of(node.node),
                "state": state_of_node(node),
                "proxies": node.proxied,
                "address": node.address.map(|address| address.to_string()),
            })
        })
        .collect();
    serde_json::json!({
        "state": state_of_pool(status.state),
        "epoch": status.epoch,
        "changing": status.is_changing,
        "sessions": status.sessions,
        "memory_nodes": status.layout.memory_nodes,
        "copies": status.layout.copies,
        "partitions": status.layout.partitions(),
        "proxy_share_percent": status.share,
        "reassignments": status.reassignments,
        "region_bytes": status.layout.region_bytes(),
        "nodes": nodes,
    })
}
