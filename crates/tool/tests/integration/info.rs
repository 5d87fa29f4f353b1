//! What the server tells about itself, and whether it is true.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::client::{Client, Server, TempDir};

/// The fields of INFO, or of some of its sections.
fn info(client: &mut Client, sections: &str) -> HashMap<String, String> {
    let text = client.run(format!("INFO {sections}").trim());
    let lines = text.trim_matches('"').split("\\r\\n");
    lines.filter_map(|line| line.split_once(':')).map(|(name, value)| (name.into(), value.into())).collect()
}

/// A number among the `name=value` pairs of a field.
fn part(line: &str, name: &str) -> u64 {
    let value = line.split([',', ' ']).find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {line}")).parse().unwrap()
}

/// Looks until `holds` does, for ten seconds.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
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
        assert!((50_000..=100_000).contains(&ttl_ms(&info(client, "keyspace")["db3"])));
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
