//! INFO: what the server tells about itself.

use std::fmt::Write;

use super::REDIS_VERSION;
use crate::serve::commands::{all, is_word};
use crate::serve::failure::Outcome;
use crate::serve::limits;
use crate::serve::resp::Args;
use crate::serve::server::{Context, Server};

type Section = (&'static str, bool, fn(&Server, &mut String) -> std::fmt::Result);

/// Name, whether it is shown unless asked otherwise, and how it is made.
const SECTIONS: &[Section] = &[
    ("server", true, server),
    ("clients", true, clients),
    ("memory", true, memory),
    ("persistence", true, persistence),
    ("stats", true, stats),
    ("replication", true, replication),
    ("cpu", true, cpu),
    ("modules", true, modules),
    ("commandstats", false, commandstats),
    ("errorstats", true, errorstats),
    ("cluster", true, cluster),
    ("keyspace", true, keyspace),
    ("hedgerow", true, hedgerow),
];

/// INFO [section [section ...]]
pub fn info(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let wanted = args.from(1);
    let is_named = |name: &str| wanted.iter().any(|word| is_word(word, name));
    let all_of_them = is_named("all") || is_named("everything");
    let defaults = wanted.is_empty() || is_named("default");
    let mut text = String::new();
    for (name, is_default, section) in SECTIONS {
        if all_of_them || is_named(name) || defaults && *is_default {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let mut title = name.to_string();
            title[..1].make_ascii_uppercase();
            let mut lines = format!("# {title}\n");
            let written = section(context.server, &mut lines);
            debug_assert!(written.is_ok(), "a String takes every write");
            text.push_str(&lines.replace('\n', "\r\n"));
        }
    }
    context.reply.verbatim(text.as_bytes());
    Ok(())
}

fn server(server: &Server, out: &mut String) -> std::fmt::Result {
    let uptime = server.started.elapsed().as_secs();
    writeln!(out, "redis_version:{REDIS_VERSION}")?;
    writeln!(out, "server_name:hedgerow")?;
    writeln!(out, "hedgerow_version:{}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "redis_mode:standalone")?;
    writeln!(out, "os:{}", std::env::consts::OS)?;
    writeln!(out, "arch_bits:{}", usize::BITS)?;
    writeln!(out, "multiplexing_api:epoll")?;
    writeln!(out, "process_id:{}", std::process::id())?;
    writeln!(out, "run_id:{}", server.run_id)?;
    writeln!(out, "tcp_port:{}", server.settings.port)?;
    writeln!(out, "server_time_usec:{}", server.keyspace.now_ms() * 1000)?;
    writeln!(out, "uptime_in_seconds:{uptime}")?;
    writeln!(out, "uptime_in_days:{}", uptime / 86_400)?;
    writeln!(out, "executable:hedgerow\nconfig_file:")
}

fn clients(server: &Server, out: &mut String) -> std::fmt::Result {
    let buffers = |part: fn(&crate::serve::session::Session) -> usize| {
        server.sessions.iter().map(|(_, session)| part(session)).max().unwrap_or(0)
    };
    writeln!(out, "connected_clients:{}", server.sessions.len())?;
    writeln!(out, "maxclients:{}", server.settings.clients_max)?;
    writeln!(out, "client_recent_max_input_buffer:{}", buffers(|session| session.input_bytes))?;
    writeln!(out, "client_recent_max_output_buffer:{}", buffers(|session| session.output_bytes))?;
    writeln!(out, "blocked_clients:0\ntracking_clients:0")
}

/// A number of KiB from /proc/self/status; 0 where there is none.
fn status_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn memory(server: &Server, out: &mut String) -> std::fmt::Result {
    let metrics = server.keyspace.db().metrics();
    let resident = status_kib("VmRSS") * 1024;
    writeln!(out, "used_memory:{}", metrics.index_bytes)?;
    writeln!(out, "used_memory_human:{:.2}M", metrics.index_bytes as f64 / f64::from(1 << 20))?;
    writeln!(out, "used_memory_rss:{resident}")?;
    writeln!(out, "used_memory_peak:{}", status_kib("VmHWM") * 1024)?;
    writeln!(out, "maxmemory:{}", server.settings.fast_bytes_max)?;
    writeln!(out, "maxmemory_policy:noeviction")?;
    writeln!(out, "mem_allocator:system")
}

fn persistence(server: &Server, out: &mut String) -> std::fmt::Result {
    writeln!(out, "loading:0\nrdb_bgsave_in_progress:0\naof_enabled:1")?;
    writeln!(out, "rdb_last_save_time:{}", server.last_save_s)?;
    let status = if server.sync_failure.is_some() { "err" } else { "ok" };
    writeln!(out, "rdb_last_bgsave_status:{status}\naof_last_write_status:{status}")?;
    writeln!(out, "durability:{}", server.settings.durability)
}

fn stats(server: &Server, out: &mut String) -> std::fmt::Result {
    let counters = &server.counters;
    let expired = server.keyspace.db().metrics().expired;
    writeln!(out, "total_connections_received:{}", counters.connections)?;
    writeln!(out, "total_commands_processed:{}", counters.commands)?;
    writeln!(out, "total_net_input_bytes:{}", counters.input_bytes)?;
    writeln!(out, "total_net_output_bytes:{}", counters.output_bytes)?;
    writeln!(out, "rejected_connections:{}", counters.rejected)?;
    writeln!(out, "expired_keys:{}", server.keyspace.expiries.removed + expired)?;
    writeln!(out, "evicted_keys:0\nevicted_clients:{}", counters.input_limit_disconnections)?;
    writeln!(out, "keyspace_hits:{}", counters.hits)?;
    writeln!(out, "keyspace_misses:{}", counters.misses)?;
    writeln!(out, "client_output_buffer_limit_disconnections:{}", counters.output_limit_disconnections)?;
    writeln!(out, "total_error_replies:{}", counters.errors)
}

fn replication(server: &Server, out: &mut String) -> std::fmt::Result {
    writeln!(out, "role:master\nconnected_slaves:0\nmaster_failover_state:no-failover")?;
    writeln!(out, "master_replid:{}\nmaster_repl_offset:0", server.run_id)
}

fn cpu(_server: &Server, out: &mut String) -> std::fmt::Result {
    // Fields 14 and 15 of /proc/self/stat, in ticks of 10 ms, counted after the name in parentheses.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
    let ticks = |index: usize| {
        after.split(' ').nth(index).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0) / 100.0
    };
    writeln!(out, "used_cpu_sys:{:.6}\nused_cpu_user:{:.6}", ticks(12), ticks(11))
}

fn modules(_server: &Server, _out: &mut String) -> std::fmt::Result {
    Ok(())
}

fn commandstats(server: &Server, out: &mut String) -> std::fmt::Result {
    for (command, calls) in all().iter().zip(&server.calls) {
        if calls.calls + calls.rejected > 0 {
            let microseconds = calls.microseconds_x1000 as f64 / 1000.0;
            writeln!(
                out,
                "cmdstat_{}:calls={},usec={:.0},usec_per_call={:.2},rejected_calls={},failed_calls={}",
                command.full_name(),
                calls.calls,
                microseconds,
                microseconds / calls.calls.max(1) as f64,
                calls.rejected,
                calls.failed
            )?;
        }
    }
    Ok(())
}

fn errorstats(server: &Server, out: &mut String) -> std::fmt::Result {
    match server.counters.errors {
        0 => Ok(()),
        errors => writeln!(out, "errorstat_ALL:count={errors}"),
    }
}

fn cluster(_server: &Server, out: &mut String) -> std::fmt::Result {
    writeln!(out, "cluster_enabled:0")
}

fn keyspace(server: &Server, out: &mut String) -> std::fmt::Result {
    for db in 0..limits::DATABASES {
        let keys = server.keyspace.len(db);
        if keys > 0 {
            let (expires, ttl_ms) = server.keyspace.expiring(db);
            writeln!(out, "db{db}:keys={keys},expires={expires},avg_ttl={ttl_ms}")?;
        }
    }
    Ok(())
}

/// The engine's metrics, by the names HR.METRICS and INFO show.
pub fn metrics(server: &Server) -> [(&'static str, u64); 32] {
    let metrics = server.keyspace.db().metrics();
    [
        ("rows", metrics.rows),
        ("rows_expiring", metrics.rows_expiring),
        ("tables", metrics.tables),
        ("index_bytes", metrics.index_bytes),
        ("fast_tier_bytes", metrics.fast_tier_bytes),
        ("fast_tier_bytes_max", metrics.fast_tier_bytes_max),
        ("live_bytes", metrics.live_bytes),
        ("dead_bytes", metrics.dead_bytes),
        ("puts", metrics.puts),
        ("updates", metrics.updates),
        ("gets", metrics.gets),
        ("deletes", metrics.deletes),
        ("scans", metrics.scans),
        ("syncs", metrics.syncs),
        ("segments_collected", metrics.segments_collected),
        ("segments_unreadable", metrics.segments_unreadable),
        ("bytes_collected", metrics.bytes_collected),
        ("expired", metrics.expired),
        ("chains_merged", metrics.chains_merged),
        ("chains_merged_in_place", metrics.chains_merged_in_place),
        ("rows_clustered", metrics.rows_clustered),
        ("cache_active", metrics.cache_active.into()),
        ("cache_gain_percent", metrics.cache_gain_percent),
        ("cache_rows", metrics.cache_rows),
        ("cache_bytes", metrics.cache_bytes),
        ("cache_bytes_max", metrics.cache_bytes_max),
        ("cache_hits", metrics.cache_hits),
        ("cache_misses", metrics.cache_misses),
        ("cache_admissions", metrics.cache_admissions),
        ("cache_evictions", metrics.cache_evictions),
        ("sequence", metrics.sequence),
        ("durable_sequence", metrics.durable_sequence),
    ]
}

fn hedgerow(server: &Server, out: &mut String) -> std::fmt::Result {
    writeln!(out, "waits_for_space:{}", server.counters.waits_for_space)?;
    metrics(server).iter().try_for_each(|(name, value)| writeln!(out, "{name}:{value}"))
}
