//! Commands and transactions of several keys over stores of pairs that have batches: all of it happens or nothing, also beside other servers.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hedgerow_row::backend::memory::MemoryBackend;

use crate::client::{AnyBackend, Server, clock};

/// Runs a test over memory and over two key-value devices.
fn on_both(test: fn(AnyBackend)) {
    test(AnyBackend::of(Arc::new(MemoryBackend::with_batches())));
    test(AnyBackend::kvssd());
}

#[test]
fn commands_of_several_keys_change_them_together() {
    on_both(|backend| {
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut client = server.client();
        client.script(&[
            ("MSET a 1 b 2 users:1 x", "OK"),
            ("MGET a b users:1", "[\"1\", \"2\", \"x\"]"),
            ("MSETNX b 3 c 3", "0"),
            ("EXISTS c", "0"),
            ("MSETNX c 3 d 4", "1"),
            ("DEL a b none", "2"),
            ("MGET a b c d", "[nil, nil, \"3\", \"4\"]"),
            ("RENAME c e", "OK"),
            ("RENAME c e", "(ERR no such key)"),
            ("RENAMENX d e", "0"),
            ("RENAMENX d f", "1"),
            ("MGET c d e f", "[nil, nil, \"3\", \"4\"]"),
            ("COPY e f", "0"),
            ("COPY e f REPLACE", "1"),
            ("COPY e e DB 3", "1"),
            ("MGET e f", "[\"3\", \"3\"]"),
            ("SELECT 3", "OK"),
            ("GET e", "\"3\""),
            ("UNLINK e none", "1"),
            ("DBSIZE", "0"),
        ]);
    });
}

#[test]
fn what_is_renamed_keeps_its_type_its_fields_and_when_they_expire() {
    on_both(|backend| {
        let clock = clock();
        let server = Server::start_over_pairs(&backend, &clock, &[]);
        let mut client = server.client();
        client.script(&[
            ("HSET h f 1 g 2", "2"),
            ("HPEXPIRE h 5000 FIELDS 1 g", "[1]"),
            ("PEXPIRE h 9000", "1"),
            ("SET users:7 there", "OK"),
            ("RENAME h users:7", "OK"),
            ("EXISTS h", "0"),
            ("TYPE users:7", "hash"),
            ("HGETALL users:7", "[\"f\", \"1\", \"g\", \"2\"]"),
            ("HPTTL users:7 FIELDS 2 f g", "[-1, 5000]"),
            ("PTTL users:7", "9000"),
            ("SET s text PX 700", "OK"),
            ("COPY s users:7 REPLACE", "1"),
            ("PTTL users:7", "700"),
            ("GET users:7", "\"text\""),
            ("HR.CREATE typed n u8 NULLABLE", "OK"),
            ("HSET p n 300", "1"),
        ]);
        assert!(client.run("RENAME p typed:1").contains("does not fit"));
        client.script(&[("HGET p n", "\"300\""), ("EXISTS typed:1", "0"), ("HSET p n 30", "0")]);
        client.script(&[("RENAME p typed:1", "OK"), ("HGET typed:1 n", "\"30\""), ("EXISTS p", "0")]);
        clock.advance_ms(800);
        client.script(&[("EXISTS users:7", "0"), ("RENAME users:7 x", "(ERR no such key)")]);
    });
}

#[test]
fn transactions_of_several_keys_happen_whole() {
    on_both(|backend| {
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut client = server.client();
        client.script(&[
            ("SET a 1", "OK"),
            ("MULTI", "OK"),
            ("INCR a", "QUEUED"),
            ("HSET users:1 n 1", "QUEUED"),
            ("GET nosuch:1", "QUEUED"),
            ("SELECT 2", "QUEUED"),
            ("SET a 9", "QUEUED"),
            ("EXEC", "[2, 1, nil, OK, OK]"),
            ("GET a", "\"9\""),
            ("SELECT 0", "OK"),
            ("WATCH b", "OK"),
            ("MULTI", "OK"),
            ("SET a 5", "QUEUED"),
            ("SET c 5", "QUEUED"),
        ]);
        server.client().script(&[("SET b 1", "OK")]);
        client.script(&[("EXEC", "nil"), ("MGET a c", "[\"2\", nil]")]);
        // A command that fails leaves the others, as in Redis.
        client.script(&[
            ("MULTI", "OK"),
            ("SET a 5", "QUEUED"),
            ("HSET b f v", "QUEUED"),
            ("SET c 5", "QUEUED"),
            ("EXEC", "[OK, (WRONGTYPE Operation against a key holding the wrong kind of value), OK]"),
            ("MGET a b c", "[\"5\", \"1\", \"5\"]"),
        ]);
    });
}

#[test]
fn what_looks_at_keys_in_general_is_refused_beside_a_change() {
    on_both(|backend| {
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut client = server.client();
        client.script(&[("SET a 1", "OK"), ("SET b 1", "OK")]);
        for queued in [&["SET a 2", "KEYS *"][..], &["DBSIZE", "SET b 2"], &["SET a 2", "FLUSHALL"]] {
            assert_eq!(client.run("MULTI"), "OK");
            queued.iter().for_each(|line| assert_eq!(client.run(line), "QUEUED"));
            assert!(client.run("EXEC").starts_with("(CROSSSLOT a transaction of this store"), "{queued:?}");
        }
        client.script(&[
            ("MGET a b", "[\"1\", \"1\"]"),
            ("MULTI", "OK"),
            ("FLUSHALL", "QUEUED"),
            ("MSET a 3 c 3", "QUEUED"),
            ("EXEC", "[OK, OK]"),
            ("MGET a b c", "[\"3\", nil, \"3\"]"),
        ]);
    });
}

#[test]
fn a_batch_that_is_too_much_is_refused_with_the_limit() {
    let backend = AnyBackend::kvssd();
    let server = Server::start_over_pairs(&backend, &clock(), &[]);
    let mut client = server.client();
    let long = vec![b'v'; 1_500_000];
    client.send(&[b"MSET", b"a", &long, b"b", &long]);
    let reply = client.reply();
    assert!(reply.starts_with("(ERR a batch of 3000") && reply.contains("at most 2097"), "{reply}");
    client.script(&[("MGET a b", "[nil, nil]")]);
    client.send(&[b"MSET", b"a", &long, b"b", b"short"]);
    assert_eq!(client.reply(), "OK");
}

/// Servers move amounts between keys with `WATCH` and `EXEC`; every `EXEC` that reads all of them sees the same sum.
#[test]
fn amounts_that_move_between_keys_are_never_seen_half_moved() {
    on_both(|backend| {
        const KEYS: u64 = 6;
        let servers: Vec<Server> =
            (0..2).map(|_| Server::start_over_pairs(&backend, &clock(), &[])).collect();
        let mut client = servers[0].client();
        (0..KEYS).for_each(|n| assert_eq!(client.run(&format!("SET k{n} 100")), "OK"));
        let number = |text: &str| text.trim_matches('"').parse::<i64>().unwrap();
        thread::scope(|scope| {
            for (seed, server) in servers.iter().enumerate() {
                scope.spawn(move || {
                    let mut client = server.client();
                    let mut done = 0;
                    while done < 100 {
                        let (from, to) = ((done + seed as u64) % KEYS, (done * 5 + 3) % KEYS);
                        if from == to {
                            done += 1;
                            continue;
                        }
                        assert_eq!(client.run(&format!("WATCH k{from} k{to}")), "OK");
                        let left = number(&client.run(&format!("GET k{from}"))) - 7;
                        let more = number(&client.run(&format!("GET k{to}"))) + 7;
                        assert_eq!(client.run("MULTI"), "OK");
                        assert_eq!(client.run(&format!("SET k{from} {left}")), "QUEUED");
                        assert_eq!(client.run(&format!("SET k{to} {more}")), "QUEUED");
                        done += u64::from(client.run("EXEC") == "[OK, OK]");
                    }
                });
            }
            scope.spawn(|| {
                let mut client = servers[0].client();
                for _ in 0..60 {
                    assert_eq!(client.run("MULTI"), "OK");
                    (0..KEYS).for_each(|n| assert_eq!(client.run(&format!("GET k{n}")), "QUEUED"));
                    let read = client.run("EXEC");
                    let sum: i64 = read.trim_matches(['[', ']']).split(", ").map(number).sum();
                    assert_eq!(sum, 100 * KEYS as i64, "{read}");
                    thread::sleep(Duration::from_millis(1));
                }
            });
        });
    });
}
