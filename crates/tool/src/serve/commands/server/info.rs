//! INFO: what the server tells about itself.

use std::fmt::Write;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use hedgerow::{Db, Metrics};

use super::REDIS_VERSION;
use crate::process::{Memory, machine_memory};
use crate::serve::commands::{all, is_word};
use crate::serve::failure::Outcome;
use crate::serve::keyspace::Keyspace;
use crate::serve::limits;
use crate::serve::resp::Args;
use crate::serve::server::{Context, Server};
use crate::serve::session::Session;
use crate::serve::stats::human;

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
    ("sortedtables", true, sortedtables),
];

/// INFO [section [section ...]]
pub fn info(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let wanted = args.from(1);
    let is_named = |name: &str| wanted.iter().any(|word| is_word(word, name));
    let all_of_them = is_named("all") || is_named("everything");
    let defaults = wanted.is_empty() || is_named("default");
    let is_shown = |name: &str, is_default: bool| all_of_them || is_named(name) || defaults && is_default;
    // A store that fails is looked into by INFO: all but the keys is told all the same.
    let mut has_keys = context.server.keyspace.take_failure().is_none();
    // What it counts may have to be got first.
    if has_keys
        && is_shown("keyspace", true)
        && let Err(failure) = context.server.keyspace.len(0)
    {
        if context.server.keyspace.wants_again() {
            return Err(failure);
        }
        has_keys = false;
    }
    let mut text = String::new();
    for (name, is_default, section) in SECTIONS {
        if is_shown(name, *is_default) && (has_keys || *name != "keyspace") {
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

/// What is the same for as long as the process runs: the kernel, the program's file, the machine's memory.
static MACHINE: LazyLock<(String, String, u64)> = LazyLock::new(|| {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let name = if cfg!(target_os = "linux") { "Linux" } else { std::env::consts::OS };
    let os = format!("{name} {} {}", release.trim(), std::env::consts::ARCH);
    let executable = std::env::current_exe().unwrap_or_default();
    (os, executable.display().to_string(), machine_memory().unwrap_or(0))
});

fn server(server: &Server, out: &mut String) -> std::fmt::Result {
    let uptime = server.started.elapsed().as_secs();
    let (os, executable, _) = &*MACHINE;
    writeln!(out, "redis_version:{REDIS_VERSION}")?;
    writeln!(out, "server_name:hedgerow")?;
    writeln!(out, "hedgerow_version:{}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "redis_mode:standalone")?;
    writeln!(out, "os:{os}")?;
    writeln!(out, "arch_bits:{}", usize::BITS)?;
    writeln!(out, "multiplexing_api:epoll")?;
    writeln!(out, "process_id:{}", std::process::id())?;
    writeln!(out, "process_supervised:no")?;
    writeln!(out, "run_id:{}", server.run_id)?;
    writeln!(out, "tcp_port:{}", server.settings.port)?;
    writeln!(out, "server_time_usec:{}", server.keyspace.now_ms() * 1000)?;
    writeln!(out, "uptime_in_seconds:{uptime}")?;
    writeln!(out, "uptime_in_days:{}", uptime / 86_400)?;
    writeln!(out, "executable:{executable}\nconfig_file:")?;
    let listen = server.settings.listen.iter().enumerate();
    listen.into_iter().try_for_each(|(i, bind)| {
        writeln!(out, "listener{i}:name=tcp,bind={bind},port={}", server.settings.port)
    })
}

fn clients(server: &Server, out: &mut String) -> std::fmt::Result {
    let sessions = || server.sessions.iter().map(|(_, session)| session);
    let largest = |part: fn(&Session) -> usize| sessions().map(part).max().unwrap_or(0);
    writeln!(out, "connected_clients:{}", server.sessions.len())?;
    writeln!(out, "cluster_connections:0")?;
    writeln!(out, "maxclients:{}", server.settings.clients_max)?;
    let input = largest(|session| session.buffers.input_bytes + session.buffers.input_free);
    writeln!(out, "client_recent_max_input_buffer:{input}")?;
    let output = largest(|session| session.buffers.output_memory);
    writeln!(out, "client_recent_max_output_buffer:{output}")?;
    writeln!(out, "blocked_clients:{}", sessions().filter(|session| session.is_blocked()).count())?;
    writeln!(out, "tracking_clients:0\npubsub_clients:0")?;
    let watching = sessions().filter(|session| !session.watched.is_empty());
    writeln!(out, "watching_clients:{}", watching.count())?;
    writeln!(out, "total_watched_keys:{}", server.keyspace.watched())
}

fn memory(server: &Server, out: &mut String) -> std::fmt::Result {
    let Memory { anonymous, rss } = Memory::now().unwrap_or_default();
    let peak = server.memory_peak.max(anonymous);
    let (_, _, system) = &*MACHINE;
    let clients: usize = server.sessions.iter().map(|(_, session)| session.total_bytes()).sum();
    for (name, bytes) in [
        ("used_memory", anonymous),
        ("used_memory_rss", rss),
        ("used_memory_peak", peak),
        ("total_system_memory", *system),
        ("maxmemory", server.settings.fast_bytes_max),
    ] {
        writeln!(out, "{name}:{bytes}\n{name}_human:{}", human(bytes))?;
    }
    let ratio = |of: u64, to: u64| of as f64 / to.max(1) as f64;
    writeln!(out, "used_memory_peak_perc:{:.2}%", ratio(anonymous, peak) * 100.0)?;
    writeln!(out, "maxmemory_policy:noeviction")?;
    writeln!(out, "mem_fragmentation_ratio:{:.2}", ratio(rss, anonymous))?;
    writeln!(out, "mem_fragmentation_bytes:{}", rss.saturating_sub(anonymous))?;
    writeln!(out, "mem_clients_normal:{clients}\nmem_clients_slaves:0")?;
    writeln!(out, "mem_allocator:system\nactive_defrag_running:0\nlazyfree_pending_objects:0")
}

fn persistence(server: &Server, out: &mut String) -> std::fmt::Result {
    let metrics = server.keyspace.db().map(Db::metrics).unwrap_or_default();
    let status = |has_failed| if has_failed { "err" } else { "ok" };
    let refuses = metrics.write_failure.is_some();
    let seconds = |time: Option<Duration>| time.map_or(-1, |time| time.as_secs() as i64);
    writeln!(out, "loading:0\nasync_loading:0")?;
    let changes = metrics.sequence.saturating_sub(metrics.durable_sequence);
    writeln!(out, "rdb_changes_since_last_save:{changes}")?;
    writeln!(out, "rdb_bgsave_in_progress:{}", u8::from(server.saving_since.is_some()))?;
    writeln!(out, "rdb_last_save_time:{}", server.last_save_s)?;
    writeln!(out, "rdb_last_bgsave_status:{}", status(refuses || server.has_save_failed))?;
    writeln!(out, "rdb_last_bgsave_time_sec:{}", seconds(server.saving_took))?;
    let now = server.saving_since.map(|since| since.elapsed());
    writeln!(out, "rdb_current_bgsave_time_sec:{}", seconds(now))?;
    writeln!(out, "aof_enabled:1\naof_rewrite_in_progress:0\naof_rewrite_scheduled:0")?;
    writeln!(out, "aof_last_write_status:{}", status(refuses))?;
    writeln!(out, "durability:{}", server.settings.durability)
}

fn stats(server: &Server, out: &mut String) -> std::fmt::Result {
    let counters = &server.counters;
    let (commands, input, output) = server.rates.per_second(Instant::now(), server.totals());
    writeln!(out, "total_connections_received:{}", counters.connections)?;
    writeln!(out, "total_commands_processed:{}", counters.commands)?;
    writeln!(out, "instantaneous_ops_per_sec:{commands:.0}")?;
    writeln!(out, "total_net_input_bytes:{}", counters.input_bytes)?;
    writeln!(out, "total_net_output_bytes:{}", counters.output_bytes)?;
    writeln!(out, "instantaneous_input_kbps:{input:.2}")?;
    writeln!(out, "instantaneous_output_kbps:{output:.2}")?;
    writeln!(out, "rejected_connections:{}", counters.rejected)?;
    writeln!(out, "sync_full:0\nsync_partial_ok:0\nsync_partial_err:0")?;
    writeln!(out, "expired_keys:{}", server.expired())?;
    writeln!(out, "evicted_keys:0\nevicted_clients:{}", counters.input_limit_disconnections)?;
    writeln!(out, "keyspace_hits:{}", counters.hits)?;
    writeln!(out, "keyspace_misses:{}", counters.misses)?;
    writeln!(out, "pubsub_channels:0\npubsub_patterns:0\npubsubshard_channels:0")?;
    writeln!(out, "latest_fork_usec:0\ntotal_forks:0\nmigrate_cached_sockets:0")?;
    writeln!(out, "client_output_buffer_limit_disconnections:{}", counters.output_limit_disconnections)?;
    writeln!(out, "total_error_replies:{}", counters.errors.total)
}

fn replication(server: &Server, out: &mut String) -> std::fmt::Result {
    writeln!(out, "role:master\nconnected_slaves:0\nmaster_failover_state:no-failover")?;
    writeln!(out, "master_replid:{}\nmaster_replid2:{:040}", server.run_id, 0)?;
    writeln!(out, "master_repl_offset:0\nsecond_repl_offset:-1\nrepl_backlog_active:0")
}

fn cpu(_server: &Server, out: &mut String) -> std::fmt::Result {
    // Fields 14 and 15 of the file, in ticks of 10 ms, counted after the name in parentheses: system and user.
    let seconds = |file: &str| {
        let stat = std::fs::read_to_string(file).unwrap_or_default();
        let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        [12, 11].map(|index| {
            let ticks = after.split(' ').nth(index).and_then(|text| text.parse::<f64>().ok());
            ticks.unwrap_or(0.0) / 100.0
        })
    };
    let [system, user] = seconds("/proc/self/stat");
    writeln!(out, "used_cpu_sys:{system:.6}\nused_cpu_user:{user:.6}")?;
    writeln!(out, "used_cpu_sys_children:0.000000\nused_cpu_user_children:0.000000")?;
    let [system, user] = seconds("/proc/thread-self/stat");
    writeln!(out, "used_cpu_sys_main_thread:{system:.6}\nused_cpu_user_main_thread:{user:.6}")
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
    let mut counts = server.counters.errors.counts();
    counts.try_for_each(|(code, count)| writeln!(out, "errorstat_{code}:count={count}"))
}

fn cluster(_server: &Server, out: &mut String) -> std::fmt::Result {
    writeln!(out, "cluster_enabled:0")
}

fn keyspace(server: &Server, out: &mut String) -> std::fmt::Result {
    for db in 0..limits::DATABASES {
        if let Ok(keys @ 1..) = server.keyspace.len(db) {
            let (expires, ttl_ms) = server.keyspace.expiring(db);
            writeln!(out, "db{db}:keys={keys},expires={expires},avg_ttl={ttl_ms}")?;
        }
    }
    Ok(())
}

/// The engine's metrics, by the names HR.METRICS and INFO show.
pub fn metrics(server: &Server) -> Vec<(&'static str, u64)> {
    let Some(db) = server.keyspace.db() else { return Vec::new() };
    let metrics = db.metrics();
    let mut all = of_fast_tier(&metrics);
    all.extend(of_sealed_keys(&metrics));
    all.extend(of_queues(&metrics));
    all.extend(of_sorted_tables(&metrics));
    all
}

/// Those of the fast tier, the index and the cache of rows.
fn of_fast_tier(metrics: &Metrics) -> Vec<(&'static str, u64)> {
    vec![
        ("rows", metrics.rows),
        ("rows_expiring", metrics.rows_expiring),
        ("tables", metrics.tables),
        ("index_bytes", metrics.index_bytes),
        ("index_bytes_max", metrics.index_bytes_max),
        ("fast_tier_bytes", metrics.fast_tier_bytes),
        ("fast_tier_allocated_bytes", metrics.fast_tier_allocated_bytes),
        ("fast_tier_bytes_max", metrics.fast_tier_bytes_max),
        ("live_bytes", metrics.live_bytes),
        ("obsolete_bytes", metrics.obsolete_bytes),
        ("unused_bytes", metrics.unused_bytes),
        ("index_was_saved", u64::from(metrics.index_was_saved)),
        ("index_was_checkpointed", u64::from(metrics.index_was_checkpointed)),
        ("index_checkpoints", metrics.index_checkpoints),
        ("puts", metrics.puts),
        ("updates", metrics.updates),
        ("gets", metrics.gets),
        ("deletes", metrics.deletes),
        ("scans", metrics.scans),
        ("syncs", metrics.syncs),
        ("bytes_written_back", metrics.bytes_written_back),
        ("segments_collected", metrics.segments_collected),
        ("segments_quarantined", metrics.segments_quarantined),
        ("bytes_collected", metrics.bytes_collected),
        ("expired", metrics.expired),
        ("chains_merged", metrics.chains_merged),
        ("chains_merged_in_place", metrics.chains_merged_in_place),
        ("rows_reordered", metrics.rows_reordered),
        ("cache_active", metrics.cache_active.into()),
        ("cache_benefit_percent", metrics.cache_benefit_percent),
        ("cache_rows", metrics.cache_rows),
        ("cache_bytes", metrics.cache_bytes),
        ("cache_bytes_max", metrics.cache_bytes_max),
        ("cache_hits", metrics.cache_hits),
        ("cache_misses", metrics.cache_misses),
        ("cache_admissions", metrics.cache_admissions),
        ("cache_evictions", metrics.cache_evictions),
        ("sequence", metrics.sequence),
        ("durable_sequence", metrics.durable_sequence),
        ("sync_failed_at_ms", metrics.sync_failure.as_ref().map_or(0, |failure| failure.at_ms)),
        ("write_failed_at_ms", metrics.write_failure.as_ref().map_or(0, |failure| failure.at_ms)),
        ("write_throttle_ns_per_kib", metrics.write_throttle_ns_per_kib),
        ("write_throttle_ns", metrics.write_throttle_ns),
        ("oldest_snapshot_age_ms", metrics.oldest_snapshot_age_ms.unwrap_or(0)),
    ]
}

/// Those of the keys that are on the fast tier.
fn of_sealed_keys(metrics: &Metrics) -> Vec<(&'static str, u64)> {
    let sealed = &metrics.sealed;
    vec![
        ("sealed_rows", sealed.rows),
        ("sealed_groups", sealed.groups),
        ("sealed_fast_tier_bytes", sealed.fast_tier_bytes),
        ("sealed_memory_bytes", sealed.memory_bytes),
        ("sealed_looks", sealed.looks),
        ("sealed_leaves_read", sealed.leaves_read),
        ("sealed_keys", sealed.keys_sealed),
        ("sealed_keys_merged", sealed.keys_merged),
    ]
}

/// Those of what waits behind writers.
fn of_queues(metrics: &Metrics) -> Vec<(&'static str, u64)> {
    let queues = &metrics.queues;
    vec![
        ("groups_max", queues.groups_max),
        ("groups_owed_percent", queues.groups_owed_percent),
        ("move_bytes", queues.move_bytes),
        ("runs_max", queues.runs_max),
        ("knob_turns", queues.knob_turns),
        ("background_io_bytes_per_s", queues.io_bytes_per_s),
        ("background_io_bytes", queues.io_bytes),
        ("background_io_bytes_beyond", queues.io_bytes_beyond),
        ("background_io_waited_ns", queues.io_waited_ns),
    ]
}

/// Those of what there is below the log, and of how rows come there.
fn of_sorted_tables(metrics: &Metrics) -> Vec<(&'static str, u64)> {
    let lower = &metrics.sorted_tables;
    vec![
        ("sorted_runs", lower.runs),
        ("sorted_files", lower.files),
        ("sorted_bytes", lower.bytes),
        ("sorted_bytes_max", lower.bytes_max),
        ("sorted_rows", lower.rows),
        ("sorted_deltas", lower.deltas),
        ("sorted_tombstones", lower.tombstones),
        ("sorted_record_bytes", lower.record_bytes),
        ("sorted_memory_bytes", lower.memory_bytes),
        ("sorted_looks", lower.looks),
        ("filter_false_positives", lower.filter_false_positives),
        ("block_cache_bytes", lower.block_cache_bytes),
        ("block_cache_bytes_max", lower.block_cache_bytes_max),
        ("block_cache_hits", lower.block_cache_hits),
        ("block_cache_misses", lower.block_cache_misses),
        ("record_cache_bytes", lower.record_cache_bytes),
        ("record_cache_bytes_max", lower.record_cache_bytes_max),
        ("record_cache_hits", lower.record_cache_hits),
        ("sorted_bytes_brought", lower.bytes_brought),
        ("moves", lower.moves),
        ("records_moved", metrics.records_moved),
        ("bytes_moved", metrics.bytes_moved),
        ("merges", lower.merges),
        ("bytes_merged", lower.bytes_merged),
        ("merges_failed", lower.merges_failed),
        ("sorted_garbage_bytes", lower.garbage_bytes),
        ("bytes_to_move", lower.bytes_to_move),
        ("move_failed_ago_ms", lower.move_failure.as_ref().map_or(0, |failure| failure.ago_ms)),
    ]
}

fn sortedtables(server: &Server, out: &mut String) -> std::fmt::Result {
    let Some(db) = server.keyspace.db() else { return Ok(()) };
    let metrics = db.metrics();
    let failure = metrics.sorted_tables.move_failure.as_ref();
    writeln!(out, "move_failure:{}", failure.map_or("", |failure| &failure.message))?;
    of_sorted_tables(&metrics).iter().try_for_each(|(name, value)| writeln!(out, "{name}:{value}"))
}

fn hedgerow(server: &Server, out: &mut String) -> std::fmt::Result {
    writeln!(out, "store:{}", server.settings.store)?;
    writeln!(out, "read_only:{}", u8::from(server.settings.read_only))?;
    writeln!(out, "waits_for_space:{}", server.counters.waits_for_space)?;
    writeln!(out, "waits_for_rows:{}", server.counters.waits_for_rows)?;
    if let Keyspace::Pairs(keys) = &server.keyspace {
        writeln!(out, "fetched_bytes:{}", keys.db().bytes_at_hand())?;
        writeln!(out, "fetched_bytes_max:{}", server.settings.client_bytes_max)?;
        let counters = keys.db().counters();
        counters.into_iter().try_for_each(|(name, count)| writeln!(out, "{name}:{count}"))?;
    }
    let backup = server.backups.status();
    writeln!(out, "backup_status:{}", backup.word())?;
    writeln!(out, "backup_bytes:{}\nbackup_bytes_copied:{}", backup.total, backup.copied)?;
    let failure = server.keyspace.sync_failure();
    writeln!(out, "sync_failure:{}", failure.map_or_else(String::new, |failure| failure.message))?;
    let failure = server.keyspace.write_failure();
    writeln!(out, "write_failure:{}", failure.map_or_else(String::new, |failure| failure.message))?;
    let Some(db) = server.keyspace.db() else { return Ok(()) };
    let metrics = db.metrics();
    let above = of_fast_tier(&metrics).into_iter();
    let mut all = above.chain(of_sealed_keys(&metrics)).chain(of_queues(&metrics));
    all.try_for_each(|(name, value)| writeln!(out, "{name}:{value}"))
}
