//! What commands mean where it is easily got wrong: time, watched keys, order, odds, size.

use std::time::Duration;

use crate::client::{Client, Server, TempDir};

fn unix_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

#[test]
fn no_time_to_live_is_longer_than_was_asked_for() {
    let server = Server::start(&[]);
    let mut client = server.client();
    for _ in 0..300 {
        let before = unix_ms();
        assert_eq!(client.run(&format!("SET k v PXAT {}", before + 10_000)), "OK");
        let left: u64 = client.run("PTTL k").parse().unwrap();
        let passed = unix_ms() - before;
        assert!((10_000 - passed..=10_000).contains(&left), "{left} ms of 10,000 after {passed}");
        client.run("HSET h f v");
        assert_eq!(client.run(&format!("HPEXPIREAT h {} FIELDS 1 f", unix_ms() + 10_000)), "[1]");
        let left: u64 = client.run("HPTTL h FIELDS 1 f").trim_matches(['[', ']']).parse().unwrap();
        assert!(left <= 10_000, "{left}");
    }
}

/// Whether EXEC of a client that watches `k` is refused after what the other one did.
fn is_refused(one: &mut Client, two: &mut Client, setup: &[&str], between: &[&str]) -> bool {
    assert_eq!(two.run("FLUSHALL"), "OK");
    setup.iter().for_each(|line| drop(two.run(line)));
    assert_eq!(one.run("WATCH k"), "OK");
    for line in between {
        match *line {
            "SLEEP" => std::thread::sleep(Duration::from_millis(30)),
            line => drop(two.run(line)),
        }
    }
    assert_eq!(one.run("MULTI"), "OK");
    assert_eq!(one.run("PING"), "QUEUED");
    one.run("EXEC") == "nil"
}

#[test]
fn watching_sees_every_change_and_nothing_else() {
    let server = Server::start(&[]);
    let (mut one, mut two) = (server.client(), server.client());
    let changes: [(&[&str], &[&str]); 21] = [
        (&[], &["SET k 1", "DEL k"]),
        (&[], &["HSET k f 1", "DEL k"]),
        (&[], &["HSET k f 1", "HDEL k f"]),
        (&[], &["SET k 1", "RENAME k other"]),
        (&[], &["SET other 1", "RENAME other k", "DEL k"]),
        (&[], &["SET k 1", "FLUSHALL"]),
        (&[], &["SET k 1 PX 5", "SLEEP"]),
        (&[], &["MULTI", "SET k 1", "SET other 1", "DEL k", "EXEC"]),
        (&[], &["SET k 1"]),
        (&["SET k 1"], &["SET k 1"]),
        (&["SET k 1"], &["DEL k", "SET k 1"]),
        (&["SET k 1"], &["PEXPIRE k 100000"]),
        (&["SET k 1 EX 100"], &["PERSIST k"]),
        (&["SET k 1 PX 10"], &["SLEEP"]),
        (&["SET k 1"], &["FLUSHDB"]),
        (&["HSET k f 1"], &["HSET k f 1"]),
        (&["HSET k f 1"], &["HINCRBY k f 1"]),
        (&["HSET k f 1"], &["HEXPIRE k 100 FIELDS 1 f"]),
        (&["HSET k f 1"], &["SET k 1"]),
        (&["SET k 1"], &["COPY k other", "COPY other k REPLACE"]),
        (&["SET k 1"], &["APPEND k x"]),
    ];
    for (setup, between) in changes {
        assert!(is_refused(&mut one, &mut two, setup, between), "{setup:?} {between:?}");
    }
    let others: [(&[&str], &[&str]); 10] = [
        (&[], &["GET k", "DEL k", "HDEL k f", "EXPIRE k 100", "PERSIST k"]),
        (&[], &["FLUSHALL"]),
        (&[], &["SELECT 1", "SET k 1", "DEL k", "SELECT 0"]),
        (&[], &["SET kk 1", "HSET k:1 f 1", "HSET :k f 1"]),
        (&["SET k 1"], &["GET k", "SET k 2 NX", "SETNX k 2", "EXPIRE k 100 XX", "HSET k f 1"]),
        (&["SET k 1"], &["MSETNX other 1 k 1", "RENAMENX kk k", "COPY kk k REPLACE", "HDEL k f"]),
        (&["HSET k f 1"], &["HSETNX k f 2", "HDEL k g", "HPERSIST k FIELDS 1 f", "INCR k"]),
        (&["SET k 1"], &["SAVE", "TOUCH k", "GETEX k", "TTL k"]),
        // It had expired before it was watched.
        (&["SET k 1 PX 1"], &["GET k"]),
        (&["SET k 1"], &["MULTI", "SET k 2", "DISCARD"]),
    ];
    for (setup, between) in others {
        std::thread::sleep(Duration::from_millis(3));
        assert!(!is_refused(&mut one, &mut two, setup, between), "{setup:?} {between:?}");
    }
    // Watching ends with EXEC, DISCARD, UNWATCH and RESET.
    for ends in [&["MULTI", "EXEC"][..], &["MULTI", "DISCARD"], &["UNWATCH"], &["RESET"]] {
        assert_eq!(one.run("WATCH k"), "OK");
        ends.iter().for_each(|line| drop(one.run(line)));
        assert_eq!(two.run("SET k 3"), "OK");
        assert_eq!(["MULTI", "PING", "EXEC"].map(|line| one.run(line))[2], "[PONG]", "{ends:?}");
    }
}

#[test]
fn fields_come_in_the_order_in_which_the_table_learned_them() {
    let dir = TempDir::new();
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    let whole = r#"["zeta", "1", "mu", "2", "alpha", "3"]"#;
    let other = r#"["zeta", "7", "alpha", "8", "beta", "9"]"#;
    assert_eq!(client.run("HSET t:1 zeta 1 mu 2 alpha 3 zeta 1"), "3");
    assert_eq!(client.run("HSET t:2 beta 9 alpha 8 zeta 7"), "3");
    assert_eq!(client.run("HSET plain z 1 y 2 x 3"), "3");
    let check = |client: &mut Client| {
        client.script(&[
            ("HGETALL t:1", whole),
            ("HGETALL t:2", other),
            ("HKEYS plain", r#"["z", "y", "x"]"#),
            ("HVALS plain", r#"["1", "2", "3"]"#),
            ("HSCAN t:2 0", &format!("[\"0\", {other}]")),
        ]);
    };
    check(&mut client);
    // As deltas, and after them.
    assert_eq!(client.run("HSET t:1 alpha 4"), "0");
    assert_eq!(client.run("HSET t:1 alpha 3"), "0");
    check(&mut client);
    server.stop();
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    check(&mut client);
    assert_eq!(client.run("HR.RENAMEFIELD t mu nu"), "OK");
    assert_eq!(client.run("HR.DROPFIELD t zeta"), "OK");
    assert_eq!(client.run("HSET t:1 zeta 5"), "1");
    assert_eq!(client.run("HGETALL t:1"), r#"["nu", "2", "alpha", "3", "zeta", "5"]"#);
    server.stop();
    let server = Server::start_on(dir.path(), &[]);
    assert_eq!(server.client().run("HKEYS t:1"), r#"["nu", "alpha", "zeta"]"#);
}
