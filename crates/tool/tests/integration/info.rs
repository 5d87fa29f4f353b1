//! What the server tells about itself, and whether it is true.

use std::collections::HashMap;
use std::time::Duration;

use hedgerow_sim::eventually;

use crate::client::{Client, Server, Store, TempDir, clock, on_every_store};

/// The fields of INFO, or of some of its sections.
pub(crate) fn info(client: &mut Client, sections: &str) -> HashMap<String, String> {
    let text = client.run(format!("INFO {sections}").trim());
    let lines = text.trim_matches('"').split("\\r\\n");
    lines.filter_map(|line| line.split_once(':')).map(|(name, value)| (name.into(), value.into())).collect()
}

/// A number among the `name=value` pairs of a field.
fn part(line: &str, name: &str) -> u64 {
    let value = line.split([',', ' ']).find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {line}")).parse().unwrap()
}

#[test]
fn keys_that_expire_are_counted() {
    let dir = TempDir::new();
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    for i in 0..10 {
        client.run(&format!("SET s{i} v PX 1000000"));
        client.run(&format!("HSET users:{i} name n"));
        client.run(&format!("HSET plain{i} name n"));
    }
    client.script(&[
        ("EXPIRE users:1 2000", "1"),
        ("EXPIRE users:2 2000", "1"),
        ("EXPIRE plain1 2000", "1"),
        ("PERSIST s1", "1"),
        ("SET s2 v", "OK"),
        ("SET s3 v KEEPTTL", "OK"),
        ("GETEX s4 PERSIST", "\"v\""),
        ("DEL s5", "1"),
        ("HSET users:1 age 3", "1"),
        ("RENAME plain1 plain2", "OK"),
        ("SELECT 3", "OK"),
        ("SET there v EX 100", "OK"),
    ]);
    let check = |client: &mut Client| {
        let found = info(client, "keyspace");
        let (here, there) = (&found["db0"], &found["db3"]);
        assert_eq!((part(here, "keys"), part(here, "expires")), (28, 9), "{here}");
        assert_eq!((part(there, "keys"), part(there, "expires")), (1, 1), "{there}");
        let ttl_ms = |line: &str| part(line, "avg_ttl");
        eventually("6 keys have 1,000 s and 3 have 2,000", || {
            (1_300_000..1_333_334).contains(&ttl_ms(&info(client, "keyspace")["db0"]))
        });
        eventually("one has 100 s", || {
            (50_000..=100_000).contains(&ttl_ms(&info(client, "keyspace")["db3"]))
        });
    };
    check(&mut client);
    server.stop();
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    check(&mut client);
    client.run("SET soon v PX 1");
    eventually("what has expired goes", || part(&info(&mut client, "keyspace")["db0"], "expires") == 9);
    client.run("FLUSHALL");
    assert_eq!(info(&mut client, "keyspace").len(), 0);
}

/// The line of CLIENT LIST about a client, by its name.
fn line_of(client: &mut Client, name: &str) -> String {
    let list = client.run("CLIENT LIST");
    let line = list.trim_matches('"').split("\\n").find(|line| line.contains(&format!(" name={name} ")));
    line.unwrap_or_else(|| panic!("no client {name}: {list}")).to_string()
}

/// A field of such a line.
fn field<'l>(line: &'l str, name: &str) -> &'l str {
    let value = line.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {line}"))
}

fn number(line: &str, name: &str) -> u64 {
    field(line, name).parse().unwrap()
}

#[test]
fn clients_are_listed_with_what_they_do_and_hold() {
    let server = Server::start(&[]);
    let (mut watcher, mut other) = (server.client(), server.client());
    watcher.run("CLIENT SETNAME watcher");
    other.script(&[
        ("CLIENT SETNAME other", "OK"),
        ("CLIENT SETINFO LIB-NAME lib", "OK"),
        ("SELECT 2", "OK"),
        ("WATCH a b", "OK"),
    ]);
    let mine = line_of(&mut watcher, "watcher");
    assert_eq!(field(&mine, "cmd"), "client|list");
    // `*2 $6 CLIENT $4 LIST`, each followed by a line end.
    assert_eq!((number(&mine, "qbuf"), number(&mine, "argv-mem")), (26, 10), "{mine}");
    assert!(number(&mine, "qbuf-free") > 1_000, "{mine}");
    assert!(watcher.run("CLIENT INFO").contains(" cmd=client|info "));
    let line = line_of(&mut watcher, "other");
    let fields =
        ["cmd", "flags", "db", "multi", "watch", "lib-name", "resp", "qbuf", "obl", "events", "argv-mem"];
    let found = fields.map(|name| field(&line, name));
    assert_eq!(found, ["watch", "N", "2", "-1", "2", "lib", "2", "0", "0", "r", "0"], "{line}");
    assert_ne!(field(&line, "fd"), field(&mine, "fd"));
    assert!(number(&line, "tot-mem") > 200 && number(&line, "rbp") > 0, "{line}");
    other.script(&[("MULTI", "OK"), ("SET c d", "QUEUED"), ("CLIENT NO-EVICT ON", "QUEUED")]);
    other.send_raw(b"*2\r\n$3\r\nGET\r\n$4\r\nhal");
    eventually("half a command is in the buffer", || number(&line_of(&mut watcher, "other"), "qbuf") == 20);
    let line = line_of(&mut watcher, "other");
    assert_eq!((field(&line, "flags"), field(&line, "multi")), ("x", "2"), "{line}");
    assert!(number(&line, "multi-mem") > 0 && number(&line, "tot-mem") > 32 << 10, "{line}");
    let found = info(&mut watcher, "clients");
    assert_eq!((&*found["watching_clients"], &*found["total_watched_keys"]), ("1", "2"));
    assert_eq!(&*found["connected_clients"], "2");
    let largest: u64 = found["client_recent_max_input_buffer"].parse().unwrap();
    assert!(largest >= 20, "{largest}");
    other.send_raw(b"f\r\n");
    other.reply();
    assert_eq!(other.run("EXEC"), "[OK, OK, nil]");
    assert_eq!(field(&line_of(&mut watcher, "other"), "flags"), "e");
}

#[test]
fn a_slow_reader_is_seen() {
    let server = Server::start(&[]);
    let (mut watcher, mut slow) = (server.client(), server.client());
    slow.run("CLIENT SETNAME slow");
    slow.run_words(&[b"SET", b"large", &vec![b'v'; 4 << 20]]);
    (0..8).for_each(|_| slow.send(&[b"GET", b"large"]));
    eventually("replies pile up", || number(&line_of(&mut watcher, "slow"), "obl") > 16 << 20);
    let line = line_of(&mut watcher, "slow");
    assert_eq!((field(&line, "cmd"), field(&line, "events")), ("get", "rw"), "{line}");
    assert!(number(&line, "omem") >= number(&line, "obl"), "{line}");
    assert!(number(&line, "tot-mem") > number(&line, "omem"), "{line}");
    assert!(number(&line, "rbp") >= number(&line, "obl"), "{line}");
    let found = info(&mut watcher, "clients memory");
    let at_least = |name: &str| found[name].parse::<u64>().unwrap() > 16 << 20;
    assert!(at_least("client_recent_max_output_buffer") && at_least("mem_clients_normal"), "{found:?}");
}

#[test]
fn blocked_clients_are_counted() {
    let server = Server::start(&[]);
    let (mut watcher, mut waiting) = (server.client(), server.client());
    waiting.run("CLIENT SETNAME waiting");
    assert_eq!(info(&mut watcher, "clients")["blocked_clients"], "0");
    watcher.run("CLIENT PAUSE 20000 WRITE");
    waiting.send(&[b"SET", b"a", b"b"]);
    eventually("it waits", || info(&mut watcher, "clients")["blocked_clients"] == "1");
    let line = line_of(&mut watcher, "waiting");
    assert_eq!((field(&line, "flags"), field(&line, "cmd")), ("b", "set"), "{line}");
    assert!(number(&line, "qbuf") > 20, "{line}");
    watcher.run("CLIENT UNPAUSE");
    assert_eq!(waiting.reply(), "OK");
    assert_eq!(info(&mut watcher, "clients")["blocked_clients"], "0");
    assert_eq!(field(&line_of(&mut watcher, "waiting"), "flags"), "N");
}

#[test]
fn errors_and_calls_are_counted_once_by_kind() {
    on_every_store(errors_and_calls_are_counted_once_by_kind_on);
}

fn errors_and_calls_are_counted_once_by_kind_on(store: Store) {
    let server = store.start(&[]);
    let mut client = server.client();
    client.script(&[("SET s v", "OK"), ("HSET h f v", "1")]);
    for line in ["NOSUCH", "GET", "HGET s f", "GET h", "CONFIG NOSUCH x", "MULTI x"] {
        assert!(client.run(line).starts_with('('), "{line}");
    }
    client.script(&[("MULTI", "OK"), ("INCR s", "QUEUED"), ("GET s", "QUEUED"), ("HGET s f", "QUEUED")]);
    assert!(client.run("EXEC").starts_with("[(ERR value"));
    client.script(&[("MULTI", "OK")]);
    assert!(client.run("SET s").starts_with("(ERR"));
    assert!(client.run("EXEC").starts_with("(EXECABORT"));
    let found = info(&mut client, "errorstats commandstats stats");
    let count = |code: &str| part(&found[&format!("errorstat_{code}")], "count");
    // NOSUCH, GET, CONFIG NOSUCH, MULTI x, INCR, SET s.
    assert_eq!((count("ERR"), count("WRONGTYPE"), count("EXECABORT")), (6, 3, 1), "{found:?}");
    assert_eq!(found["total_error_replies"], "10");
    let calls = |name: &str| {
        let line = &found[&format!("cmdstat_{name}")];
        ["calls", "rejected_calls", "failed_calls"].map(|name| part(line, name))
    };
    assert_eq!(calls("get"), [2, 1, 1]);
    assert_eq!(calls("hget"), [2, 0, 2]);
    assert_eq!(calls("incr"), [1, 0, 1]);
    assert_eq!(calls("set"), [1, 1, 0]);
    assert_eq!(calls("multi"), [2, 1, 0]);
    assert_eq!(calls("exec"), [2, 0, 1]);
    client.run("CONFIG RESETSTAT");
    let found = info(&mut client, "errorstats commandstats stats");
    assert_eq!(found["total_error_replies"], "0");
    assert!(!found.keys().any(|name| name.starts_with("errorstat_") || name == "cmdstat_get"), "{found:?}");
}

#[test]
fn rates_and_totals_follow_what_clients_do() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let before = info(&mut client, "stats");
    let total = |found: &HashMap<String, String>, name: &str| found[name].parse::<u64>().unwrap();
    let mut sent = 0;
    let value = [b'v'; 1024];
    let mut after = HashMap::new();
    // However busy the machine is, the three rates are of the same seconds: a kibibyte in and one out for three commands.
    eventually("the rates are those of what is sent", || {
        for _ in 0..30 {
            client.run_words(&[b"SET", b"key", &value]);
            client.run("GET key");
            client.run("GET nothing");
            sent += 3;
        }
        after = info(&mut client, "stats");
        sent += 1;
        let shown = |name: &str| after[name].parse::<f64>().unwrap();
        let thirds = shown("instantaneous_ops_per_sec") / 3.0;
        let near = |shown: f64, truth: f64| (truth * 0.8..truth * 1.6).contains(&shown);
        thirds > 10.0
            && near(shown("instantaneous_input_kbps"), thirds)
            && near(shown("instantaneous_output_kbps"), thirds)
    });
    let grew = |name: &str| total(&after, name) - total(&before, name);
    assert_eq!(grew("total_commands_processed"), sent);
    let rounds = grew("keyspace_hits");
    assert_eq!((rounds, grew("keyspace_misses")), (sent / 91 * 30, rounds));
    assert!((rounds * 1024..rounds * 3 * 1024).contains(&grew("total_net_input_bytes")));
    assert!((rounds * 1024..rounds * 3 * 1024).contains(&grew("total_net_output_bytes")));
    eventually("an idle server shows no rate", || {
        std::thread::sleep(Duration::from_millis(500));
        total(&info(&mut client, "stats"), "instantaneous_ops_per_sec") < 10
    });
}

#[test]
fn what_is_durable_and_what_expired_is_told() {
    let clock = clock();
    let server = Server::start_by(&clock, &["--durability", "process"]);
    let mut client = server.client();
    let value = |client: &mut Client, section: &str, name: &str| -> u64 {
        info(client, section)[name].parse().unwrap()
    };
    let changes = |client: &mut Client| value(client, "persistence", "rdb_changes_since_last_save");
    // The first string makes the table of strings, which is a change, too.
    client.run("SET first v");
    client.run("SAVE");
    let saved = changes(&mut client);
    (0..50).for_each(|i| drop(client.run(&format!("SET key{i} v"))));
    assert_eq!(changes(&mut client) - saved, 50);
    let before = value(&mut client, "persistence", "rdb_last_save_time");
    clock.advance_ms(1_100);
    client.run("BGSAVE");
    eventually("a BGSAVE ends", || value(&mut client, "persistence", "rdb_bgsave_in_progress") == 0);
    eventually("nothing is left to save", || changes(&mut client) == 0);
    assert!(value(&mut client, "persistence", "rdb_last_save_time") > before);
    assert_ne!(info(&mut client, "persistence")["rdb_last_bgsave_time_sec"], "-1");
    assert_eq!(info(&mut client, "persistence")["rdb_last_bgsave_status"], "ok");
    (0..5).for_each(|i| drop(client.run(&format!("PEXPIRE key{i} 1"))));
    clock.advance_ms(1);
    eventually("five keys expire", || value(&mut client, "stats", "expired_keys") == 5);
    client.run("CONFIG RESETSTAT");
    assert_eq!(value(&mut client, "stats", "expired_keys"), 0);
}

#[test]
fn memory_and_machine_are_those_of_the_process() {
    let dir = TempDir::new();
    let program = crate::client::Program::spawn(dir.path(), &["--fast-bytes-max", "1gb"]);
    let mut client = program.client();
    let value = |client: &mut Client, name: &str| info(client, "everything")[name].parse::<u64>().unwrap();
    let start = value(&mut client, "used_memory");
    for i in 0..40 {
        (0..500).for_each(|j| client.send(&[b"SET", format!("key {i} {j}").as_bytes(), &[b'v'; 1000]]));
        (0..500).for_each(|_| drop(client.reply()));
    }
    let near = |shown: u64, truth: u64| shown.abs_diff(truth) < 8 << 20;
    assert!(near(value(&mut client, "used_memory"), program.status_bytes("RssAnon")), "{start}");
    assert!(near(value(&mut client, "used_memory_rss"), program.status_bytes("VmRSS")));
    let found = info(&mut client, "everything");
    let is = |name: &str, expected: &str| assert_eq!(found[name], expected, "{name}");
    assert!(
        found["used_memory_peak"].parse::<u64>().unwrap() >= found["used_memory"].parse::<u64>().unwrap()
    );
    let ratio: f64 = found["mem_fragmentation_ratio"].parse().unwrap();
    let bytes = |name: &str| found[name].parse::<f64>().unwrap();
    assert!((ratio - bytes("used_memory_rss") / bytes("used_memory")).abs() < 0.01, "{ratio}");
    is("maxmemory", "1073741824");
    is("maxmemory_human", "1.00G");
    is("process_id", &program.child.id().to_string());
    is("tcp_port", &program.address.port().to_string());
    is("executable", env!("CARGO_BIN_EXE_hedgerow"));
    assert!(found["os"].starts_with("Linux ") && bytes("total_system_memory") > bytes("used_memory_rss"));
    // All that monitors (redis_exporter, RedisInsight, the dashboards of Grafana, redis-py) read without asking if it is there.
    for name in MONITORED {
        assert!(found.contains_key(*name), "{name}");
    }
    program.kill();
}

/// Fields of INFO that monitors plot.
const MONITORED: &[&str] = &[
    "aof_enabled",
    "aof_last_write_status",
    "arch_bits",
    "blocked_clients",
    "cluster_enabled",
    "config_file",
    "connected_clients",
    "connected_slaves",
    "evicted_keys",
    "expired_keys",
    "instantaneous_input_kbps",
    "instantaneous_ops_per_sec",
    "instantaneous_output_kbps",
    "keyspace_hits",
    "keyspace_misses",
    "latest_fork_usec",
    "loading",
    "master_repl_offset",
    "maxclients",
    "maxmemory_policy",
    "mem_allocator",
    "pubsub_channels",
    "pubsub_patterns",
    "rdb_bgsave_in_progress",
    "rdb_changes_since_last_save",
    "rdb_last_bgsave_status",
    "rdb_last_save_time",
    "redis_mode",
    "redis_version",
    "rejected_connections",
    "role",
    "run_id",
    "total_commands_processed",
    "total_connections_received",
    "total_net_input_bytes",
    "total_net_output_bytes",
    "total_system_memory_human",
    "uptime_in_days",
    "uptime_in_seconds",
    "used_cpu_sys",
    "used_cpu_user",
    "used_memory_human",
    "used_memory_peak_human",
    "used_memory_rss_human",
];

#[test]
fn commands_are_listed_with_their_subcommands() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let list = |client: &mut Client, filter: &str| -> Vec<String> {
        let text = client.run(format!("COMMAND LIST {filter}").trim());
        let words = text.trim_matches(['[', ']']).split(", ").filter(|word| !word.is_empty());
        words.map(|word| word.trim_matches('"').to_string()).collect()
    };
    let all = list(&mut client, "");
    assert!(
        all.contains(&"client|list".into()) && all.contains(&"client".into()) && all.contains(&"get".into())
    );
    let top: Vec<&String> = all.iter().filter(|name| !name.contains('|')).collect();
    assert_eq!(client.run("COMMAND COUNT"), top.len().to_string());
    let patterned = list(&mut client, "FILTERBY PATTERN CLIENT|l*");
    assert_eq!(patterned, ["client|list"]);
    let in_category = list(&mut client, "FILTERBY ACLCAT hash");
    assert!(in_category.contains(&"hset".into()) && !in_category.contains(&"get".into()));
    assert_eq!(list(&mut client, "FILTERBY ACLCAT nosuch").len(), 0);
    assert_eq!(list(&mut client, "FILTERBY MODULE any").len(), 0);
    assert_eq!(client.run("COMMAND LIST FILTERBY PATTERN"), "(ERR syntax error)");
    for name in &all {
        let known = client.run(&format!("COMMAND INFO {name}"));
        assert!(known.starts_with(&format!("[[\"{name}\", ")), "{name}: {known}");
        assert!(client.run(&format!("COMMAND DOCS {name}")).starts_with(&format!("[\"{name}\", ")), "{name}");
    }
}

#[test]
fn the_store_is_told_as_the_command_line_would_say_it() {
    let dir = TempDir::new();
    let server = Server::start_on(dir.path(), &[]);
    let info = server.client().run("INFO hedgerow");
    assert!(info.contains(&format!("store:tiered:{}\\r\\n", dir.path().display())), "{info}");
}
