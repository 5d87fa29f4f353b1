//! The server over a store of pairs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use hedgerow_row::backend::Backend;
use hedgerow_row::backend::memory::MemoryBackend;
use hedgerow_sim::{BackendFault, FailingBackend, eventually};

use crate::client::{Server, clock, encode, on_every_backend};
use crate::slow_pairs::SlowBackend;

fn server() -> Server {
    Server::start_over_pairs(&MemoryBackend::default(), &clock(), &[])
}

#[test]
fn strings_and_hashes_are_kept() {
    on_every_backend(|backend| {
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        server.client().script(&[
            ("GET a", "nil"),
            ("SET a 1", "OK"),
            ("GET a", "\"1\""),
            ("INCR a", "2"),
            ("APPEND a x", "2"),
            ("GET a", "\"2x\""),
            ("INCR a", "(ERR value is not an integer or out of range)"),
            ("TYPE a", "string"),
            ("HSET a f v", "(WRONGTYPE Operation against a key holding the wrong kind of value)"),
            ("HSET users:1 name Ada age 36", "2"),
            ("HSET users:1 name Ada city Paris", "1"),
            ("HINCRBY users:1 age 1", "37"),
            ("HGET users:1 age", "\"37\""),
            ("HLEN users:1", "3"),
            ("TYPE users:1", "hash"),
            ("GET users:1", "(WRONGTYPE Operation against a key holding the wrong kind of value)"),
            ("HMGET users:1 name none age", "[\"Ada\", nil, \"37\"]"),
            ("HDEL users:1 name none", "1"),
            ("HDEL users:1 age city", "2"),
            ("EXISTS users:1", "0"),
            ("SET users:1 now-a-string", "OK"),
            ("GET users:1", "\"now-a-string\""),
            ("DBSIZE", "2"),
            ("HSET h @string x % y", "2"),
            ("TYPE h", "hash"),
            ("HGET h @string", "\"x\""),
            ("HGETALL h", "[\"@string\", \"x\", \"%\", \"y\"]"),
            ("FLUSHALL", "OK"),
            ("DBSIZE", "0"),
            ("GET a", "nil"),
            ("KEYS *", "[]"),
        ]);
    });
}

/// What servers over one backend count, all of them have counted.
#[test]
fn three_servers_count_one_key_exactly() {
    on_every_backend(|backend| {
        const EACH: u64 = 10_000;
        let servers: Vec<Server> =
            (0..3).map(|_| Server::start_over_pairs(&backend, &clock(), &[])).collect();
        let counted: Vec<Vec<u64>> = thread::scope(|scope| {
            let clients = servers.iter().map(|server| {
                scope.spawn(|| {
                    let mut client = server.client();
                    (0..EACH).map(|_| client.run("INCR counter").parse().unwrap()).collect()
                })
            });
            let clients: Vec<_> = clients.collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        let mut all: Vec<u64> = counted.concat();
        assert!(counted.iter().all(|one| one.is_sorted()));
        all.sort_unstable();
        assert!(all.iter().copied().eq(1..=3 * EACH), "each number is told once");
        for server in &servers {
            assert_eq!(server.client().run("GET counter"), format!("\"{}\"", 3 * EACH));
        }
    });
}

/// One server makes the key a string, another a hash, at once and over and over: whoever looks, at any of them, sees one or the other.
#[test]
fn no_key_shows_two_types() {
    on_every_backend(|backend| {
        const ROUNDS: usize = 2_000;
        const WRONG: &str = "(WRONGTYPE Operation against a key holding the wrong kind of value)";
        let servers: Vec<Server> =
            (0..3).map(|_| Server::start_over_pairs(&backend, &clock(), &[])).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = servers[0].client();
                for _ in 0..ROUNDS {
                    assert_eq!(client.run("SET k string"), "OK");
                    let appended = client.run("APPEND k +");
                    assert!([WRONG, "7", "1"].contains(&appended.as_str()), "{appended}");
                }
            });
            scope.spawn(|| {
                let mut client = servers[1].client();
                for _ in 0..ROUNDS {
                    let set = client.run("HSET k field value");
                    assert!([WRONG, "0", "1"].contains(&set.as_str()), "{set}");
                    client.run("DEL k");
                }
            });
            scope.spawn(|| {
                let mut client = servers[2].client();
                for _ in 0..ROUNDS {
                    let seen = ["MULTI", "TYPE k", "EXISTS k", "GET k", "HGETALL k", "EXEC"]
                        .map(|line| client.run(line));
                    let whole = [
                        format!("[string, 1, \"string\", {WRONG}]"),
                        format!("[string, 1, \"string+\", {WRONG}]"),
                        format!("[string, 1, \"+\", {WRONG}]"),
                        format!("[hash, 1, {WRONG}, [\"field\", \"value\"]]"),
                        "[none, 0, nil, []]".to_string(),
                    ];
                    assert!(whole.contains(&seen[5]), "{}", seen[5]);
                }
            });
        });
    });
}

/// Transactions of one key are whole, also against other servers.
#[test]
fn transactions_of_one_key_are_whole() {
    on_every_backend(|backend| {
        const EACH: usize = 1_000;
        let servers: Vec<Server> =
            (0..2).map(|_| Server::start_over_pairs(&backend, &clock(), &[])).collect();
        thread::scope(|scope| {
            for server in &servers {
                scope.spawn(|| {
                    let mut client = server.client();
                    for _ in 0..EACH {
                        let replies = ["MULTI", "HINCRBY h a 1", "HINCRBY h b -1", "HMGET h a b", "EXEC"]
                            .map(|line| client.run(line));
                        let a: i64 = replies[4][1..].split(',').next().unwrap().parse().unwrap();
                        assert_eq!(replies[4], format!("[{a}, {}, [\"{a}\", \"{}\"]]", -a, -a));
                    }
                });
            }
        });
        assert_eq!(servers[0].client().run("HGET h a"), format!("\"{}\"", 2 * EACH));
        servers[0].client().script(&[
            ("MULTI", "OK"),
            ("SELECT 3", "QUEUED"),
            ("SET k 1", "QUEUED"),
            ("INCR none-such x", "(ERR wrong number of arguments for 'incr' command)"),
            ("EXEC", "(EXECABORT Transaction discarded because of previous errors.)"),
            ("MULTI", "OK"),
            ("SELECT 3", "QUEUED"),
            ("HSET k f 1", "QUEUED"),
            ("GET k", "QUEUED"),
            ("EXEC", "[OK, 1, (WRONGTYPE Operation against a key holding the wrong kind of value)]"),
            ("HGET k f", "\"1\""),
            ("SELECT 0", "OK"),
            ("EXISTS k", "0"),
            ("EXEC", "(ERR EXEC without MULTI)"),
        ]);
    });
}

/// WATCH, GET, MULTI, SET, EXEC at three servers lose nothing of what they count.
#[test]
fn watched_keys_are_compared_across_servers() {
    on_every_backend(|backend| {
        const EACH: usize = 300;
        let servers: Vec<Server> =
            (0..3).map(|_| Server::start_over_pairs(&backend, &clock(), &[])).collect();
        thread::scope(|scope| {
            for server in &servers {
                scope.spawn(|| {
                    let mut client = server.client();
                    let mut done = 0;
                    while done < EACH {
                        assert_eq!(client.run("WATCH k"), "OK");
                        let seen: u64 = client.run("GET k").trim_matches('"').parse().unwrap_or(0);
                        assert_eq!(client.run("MULTI"), "OK");
                        assert_eq!(client.run(&format!("SET k {}", seen + 1)), "QUEUED");
                        match client.run("EXEC").as_str() {
                            "[OK]" => done += 1,
                            refused => assert_eq!(refused, "nil"),
                        }
                    }
                });
            }
        });
        let mut client = servers[0].client();
        assert_eq!(client.run("GET k"), format!("\"{}\"", 3 * EACH));
        // What was watched and did not change, but is another key's, is a condition only where several keys may change together.
        client.script(&[("WATCH other", "OK"), ("MULTI", "OK"), ("SET k 1", "QUEUED")]);
        match backend.capabilities().batch_bytes_max {
            0 => assert!(client.run("EXEC").starts_with("(CROSSSLOT ")),
            _ => assert_eq!(client.run("EXEC"), "[OK]"),
        }
        client.script(&[("MULTI", "OK"), ("SET k 1", "QUEUED"), ("EXEC", "[OK]")]);
    });
}

#[test]
fn what_takes_several_keys_is_refused_and_changes_nothing() {
    on_every_backend(|backend| {
        if backend.capabilities().batch_bytes_max > 0 {
            // It is not refused there (`pair_batches.rs`).
            return;
        }
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut client = server.client();
        client.script(&[("SET a 1", "OK"), ("HSET h f v", "1")]);
        for line in [
            "MSET a 2 b 2",
            "DEL a h",
            "RENAME a b",
            "COPY a b",
            "MSETNX c 1 d 1",
            "RENAMENX a b",
            "COPY a a DB 1",
        ] {
            let reply = client.run(line);
            assert!(reply.starts_with("(CROSSSLOT "), "{line}: {reply}");
        }
        client.script(&[("MULTI", "OK"), ("SET a 2", "QUEUED"), ("SET b 2", "QUEUED")]);
        assert!(client.run("EXEC").starts_with("(CROSSSLOT "));
        client.script(&[
            ("MULTI", "OK"),
            ("GET a", "QUEUED"),
            ("EXEC", "[\"1\"]"),
            ("MGET a b h", "[\"1\", nil, nil]"),
            ("EXISTS a b h", "2"),
            ("RENAME a a", "OK"),
            ("RENAME none b", "(ERR no such key)"),
            ("MSET a 3", "OK"),
            ("DEL a", "1"),
            ("DBSIZE", "1"),
        ]);
    });
}

#[test]
fn what_needs_an_order_or_the_log_is_refused() {
    let server = server();
    let mut client = server.client();
    client.script(&[("HR.CREATE typed name string n u8 NULLABLE", "OK"), ("HSET typed:1 name x n 7", "2")]);
    for line in ["HR.SCAN typed", "HR.BACKUP START x"] {
        assert!(client.run(line).contains("no order of rows, no snapshots and no log"), "{line}");
    }
    for line in ["SAVE", "BGSAVE", "WAIT 0 0", "WAITAOF 1 0 0"] {
        assert!(client.run(line).contains("not made durable"), "{line}");
    }
    client.script(&[
        ("HSET typed:1 n 256", "(ERR field 'n' of table 'typed' is u8: '256' does not fit)"),
        ("HSET typed:2 n 1", "1"),
        ("HGETALL typed:2", "[\"name\", \"\", \"n\", \"1\"]"),
        ("DEL typed:2", "1"),
        ("HDEL typed:1 name", "(ERR a field of that table's schema is not NULLABLE: it can not be removed, see HR.SCHEMA)"),
        ("HDEL typed:1 n", "1"),
        ("HR.CREATE typed name string", "(ERR table 'typed' exists already)"),
        ("HR.ADDFIELD typed colour string", "OK"),
        ("HSET typed:1 colour red", "1"),
        ("HR.RENAMEFIELD typed colour tint", "OK"),
        ("HGET typed:1 tint", "\"red\""),
        ("HR.DROPFIELD typed tint", "OK"),
        ("HGETALL typed:1", "[\"name\", \"x\"]"),
        ("HR.TABLES", "[\"typed\", [\"rows\", 1, \"fields\", 2, \"open\", 0]]"),
        ("FLUSHALL", "OK"),
        ("HR.SCHEMA typed", "[[\"name\", \"name\", \"type\", \"string\", \"nullable\", 0], [\"name\", \"n\", \"type\", \"u8\", \"nullable\", 1]]"),
        ("HR.DROP typed", "1"),
        ("HR.DROP typed", "0"),
        ("HR.SCHEMA typed", "(ERR no such table 'typed')"),
    ]);
    assert!(client.run("HR.CREATE typed n u8").starts_with("OK"));
    assert!(client.run("SET typed:1 x").contains("has no field for strings"));
    let info = client.run("INFO");
    assert!(info.contains("store:memory:\\r\\n") && info.contains("durability:none\\r\\n"), "{info}");
}

/// Nobody reads them any more, and yet they go: by the clock that the test moves.
#[test]
fn what_has_expired_is_swept() {
    on_every_backend(|backend| {
        let clock = clock();
        let server = Server::start_over_pairs(&backend, &clock, &[]);
        let mut client = server.client();
        for n in 0..200 {
            client.run(&format!("SET s{n} v PX 1000"));
            client.run(&format!("HSET h:{n} f v"));
            assert_eq!(client.run(&format!("HPEXPIRE h:{n} 1000 FIELDS 1 f")), "[1]");
        }
        client.script(&[("SET stays v", "OK"), ("HSET h:stays f v", "1"), ("DBSIZE", "402")]);
        clock.advance_ms(2_000);
        client.script(&[("EXISTS h:1", "0"), ("GET s1", "nil"), ("TTL h:1", "-2")]);
        eventually("all but two are swept", || {
            // The sweep rests by this clock.
            clock.advance_ms(61_000);
            client.run("DBSIZE") == "2"
        });
        client.script(&[("GET stays", "\"v\""), ("HGET h:stays f", "\"v\"")]);
    });
}

/// The type of a new hash whose row was left by fields that have expired: it has nothing of the old one.
#[test]
fn a_hash_of_expired_fields_is_no_key() {
    on_every_backend(|backend| {
        let clock = clock();
        let server = Server::start_over_pairs(&backend, &clock, &[]);
        let mut client = server.client();
        client.script(&[
            ("HSET h f v", "1"),
            ("HPEXPIRE h 1000 FIELDS 1 f", "[1]"),
            ("PEXPIRE h 100000", "1"),
        ]);
        clock.advance_ms(2_000);
        client.script(&[
            ("TYPE h", "none"),
            ("PTTL h", "-2"),
            ("DEL h", "0"),
            ("PERSIST h", "0"),
            ("HSET h g w", "1"),
            ("PTTL h", "-1"),
            ("HGETALL h", "[\"g\", \"w\"]"),
            ("HPEXPIRE h 1000 FIELDS 1 g", "[1]"),
            ("PEXPIRE h 100000", "1"),
        ]);
        clock.advance_ms(2_000);
        client.script(&[("INCR h", "1"), ("PTTL h", "-1"), ("TYPE h", "string")]);
    });
}

/// A store that fails is told, command by command, and the connection and its transactions go on.
#[test]
fn a_store_that_is_closed_is_told() {
    on_every_backend(|backend| {
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut client = server.client();
        client.script(&[("SET k 1", "OK"), ("WATCH k", "OK"), ("MULTI", "OK"), ("INCR k", "QUEUED")]);
        backend.close().unwrap();
        assert!(client.run("EXEC").starts_with("(MISCONF "));
        client.script(&[("EXEC", "(ERR EXEC without MULTI)"), ("PING", "PONG")]);
        for line in ["GET k", "SET k 2", "KEYS *", "DBSIZE", "FLUSHALL", "SCAN 0"] {
            let reply = client.run(line);
            assert!(reply.starts_with("(MISCONF "), "{line}: {reply}");
        }
        assert!(client.run("INFO server").contains("hedgerow_version"));
        let info = client.run("INFO");
        assert!(info.contains("total_commands_processed") && !info.contains("# Keyspace"), "{info}");
    });
}

/// Commands that wait for the store when the server stops are done and answered, or not done.
#[test]
fn who_stops_the_server_loses_no_answers() {
    on_every_backend(|backend| {
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut clients: Vec<_> = (0..8).map(|_| server.client()).collect();
        for client in &mut clients {
            (0..200).for_each(|_| client.send(&[b"INCR", b"counter"]));
        }
        let mut answered = 1;
        assert!(clients[0].reply().parse::<u64>().is_ok());
        server.stop();
        for client in &mut clients {
            while client.try_reply().is_some() {
                answered += 1;
            }
        }
        let other = Server::start_over_pairs(&backend, &clock(), &[]);
        let counted: u64 = other.client().run("GET counter").trim_matches('"').parse().unwrap();
        assert_eq!(counted, answered);
    });
}

/// A command looks at a bounded number of bytes, whatever its keys.
#[test]
fn rows_at_hand_are_bounded() {
    let server = server();
    let mut client = server.client();
    let value = vec![b'v'; 30 << 20];
    for n in 0..10 {
        assert_eq!(client.run_words(&[b"SET", format!("k{n}").as_bytes(), &value]), "OK");
    }
    let many: Vec<String> = (0..10).map(|n| format!("k{n}")).collect();
    assert!(client.run(&format!("EXISTS {}", many.join(" "))).contains("more than 256 MiB"));
    assert_eq!(client.run(&format!("EXISTS {}", many[..8].join(" "))), "8");
    // More keys than are fetched at once.
    let absent: Vec<String> = (0..300).map(|n| format!("none{n}")).collect();
    assert_eq!(client.run(&format!("EXISTS {} k1", absent.join(" "))), "1");
}

/// Tables go as a transaction runs: one that is refused is refused before.
#[test]
fn a_transaction_that_is_refused_has_cleared_nothing() {
    on_every_backend(|backend| {
        const REFUSED: &str = "(CROSSSLOT this store changes one key at a time: a command or transaction that changes a key can \
        have no other keys)";
        if backend.capabilities().batch_bytes_max > 0 {
            return;
        }
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut client = server.client();
        client.script(&[("SET a 1", "OK"), ("HSET users:1 name Ada", "1")]);
        for queued in [
            &["FLUSHALL", "SET a 2", "SET b 2"][..],
            &["SET a 2", "GET b", "FLUSHDB"],
            &["FLUSHALL", "SET a 2", "SELECT 1", "GET a"],
        ] {
            assert_eq!(client.run("MULTI"), "OK");
            queued.iter().for_each(|line| assert_eq!(client.run(line), "QUEUED"));
            client.script(&[
                ("EXEC", REFUSED),
                ("GET a", "\"1\""),
                ("HGET users:1 name", "\"Ada\""),
                ("GET b", "nil"),
            ]);
        }
        client.script(&[("WATCH b", "OK"), ("MULTI", "OK"), ("FLUSHALL", "QUEUED"), ("SET a 2", "QUEUED")]);
        client.script(&[("EXEC", REFUSED), ("GET a", "\"1\""), ("DBSIZE", "2")]);
    });
}

/// What changes one key, or none, is done; what it writes after tables went is there.
#[test]
fn a_transaction_that_clears_keeps_what_it_writes_then() {
    on_every_backend(|backend| {
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut client = server.client();
        client.script(&[("SET a 1", "OK"), ("HSET users:1 name Ada", "1")]);
        client.script(&[("MULTI", "OK"), ("FLUSHALL", "QUEUED"), ("SET a 3", "QUEUED"), ("GET a", "QUEUED")]);
        client.script(&[("EXEC", "[OK, OK, \"3\"]"), ("HGET users:1 name", "nil"), ("DBSIZE", "1")]);
        client.script(&[("MULTI", "OK"), ("FLUSHALL", "QUEUED"), ("GET a", "QUEUED"), ("GET b", "QUEUED")]);
        client.script(&[("EXEC", "[OK, nil, nil]"), ("DBSIZE", "0")]);
    });
}

/// Somebody writes two keys between the look of an `EXEC` at one and at the other, or after both: it tells what was there at one time. That
/// the table of a key is not there is a look at the key.
#[test]
fn a_transaction_reads_its_keys_at_one_time() {
    for second in ["b", "t:b"] {
        let (memory, between) = (MemoryBackend::default(), Arc::new(AtomicU64::new(u64::MAX)));
        let other = Server::start_over_pairs(&memory, &clock(), &[]);
        other.client().script(&[("SET a 0", "OK"), ("SET c 0", "OK")]);
        let (writer, at) = (Mutex::new(other.client()), Arc::clone(&between));
        let meddling = FailingBackend::new(Arc::new(memory), move |command| {
            if command == at.load(Ordering::SeqCst) {
                writer.lock().unwrap().script(&[(&format!("SET {second} 1"), "OK"), ("SET a 1", "OK")]);
            }
            None
        });
        let server = Server::start_over_pairs(&meddling, &clock(), &[]);
        let mut client = server.client();
        client.script(&[("GET a", "\"0\""), ("MULTI", "OK"), ("GET a", "QUEUED")]);
        assert_eq!(client.run(&format!("GET {second}")), "QUEUED");
        // A table, a key of it, and another key or table are got together; then all of it is looked at again.
        between.store(meddling.commands() + 3, Ordering::SeqCst);
        client.script(&[("EXEC", "[\"1\", \"1\"]"), ("GET a", "\"1\"")]);
        assert!(meddling.commands() > between.load(Ordering::SeqCst), "it was between");
    }
}

/// What came of an `INCR`.
fn number(reply: &str) -> Option<u64> {
    reply.parse().ok()
}

/// Fifty clients, each with a pipeline: each has its replies in order, and all count together.
#[test]
fn pipelines_of_many_clients_are_answered_in_order() {
    const CLIENTS: usize = 50;
    const EACH: u64 = 40;
    let server = server();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
    // They begin together.
    let mut starter = server.client();
    assert_eq!(starter.run("CLIENT PAUSE 1000000"), "OK");
    for (at, client) in clients.iter_mut().enumerate() {
        // At once, so that the server has all of it when it has some.
        let own = format!("own{at}");
        let pair = [encode(&[b"INCR", own.as_bytes()]), encode(&[b"INCR", b"shared"])].concat();
        client.send_raw(&pair.repeat(EACH as usize));
    }
    eventually("the server has that of each", || {
        starter.run("CLIENT LIST").split(" qbuf=").filter(|after| !after.starts_with("0 ")).count() > CLIENTS
    });
    assert_eq!(starter.run("CLIENT UNPAUSE"), "OK");
    let mut shared: Vec<Vec<u64>> = Vec::new();
    for client in &mut clients {
        let (mut own, mut seen) = (Vec::new(), Vec::new());
        for _ in 0..EACH {
            own.push(number(&client.reply()).unwrap());
            seen.push(number(&client.reply()).unwrap());
        }
        assert!(own.iter().copied().eq(1..=EACH), "{own:?}");
        assert!(seen.is_sorted(), "{seen:?}");
        shared.push(seen);
    }
    // Of those who change one key all get on. One whose changes fall between those of the others, which are tried together, meets nobody, and is done long before them (one in 30 on a
    // busy machine).
    let total = CLIENTS as u64 * EACH;
    let first_done = shared.iter().filter_map(|seen| seen.last()).min().unwrap();
    let last_begun = shared.iter().filter_map(|seen| seen.first()).max().unwrap();
    assert!(last_begun < first_done, "one had counted to its end at {first_done}, one began at {last_begun}");
    let mut all = shared.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(1..=total));
}

/// Where an exchange takes its time, many clients take as many exchanges as one, about, and not as many times more.
#[test]
fn many_clients_share_exchanges() {
    const EACH: usize = 50;
    let exchanges_of = |clients: usize| {
        let backend = SlowBackend::default();
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut clients: Vec<_> = (0..clients).map(|_| server.client()).collect();
        assert_eq!(clients[0].run("SET k 0"), "OK");
        let before = backend.exchanges();
        for (at, client) in clients.iter_mut().enumerate() {
            let key = format!("k{at}");
            (0..EACH).for_each(|_| client.send(&[b"SET", key.as_bytes(), b"v"]));
            (0..EACH).for_each(|_| client.send(&[b"GET", key.as_bytes()]));
        }
        for client in &mut clients {
            (0..EACH).for_each(|_| assert_eq!(client.reply(), "OK"));
            (0..EACH).for_each(|_| assert_eq!(client.reply(), "\"v\""));
        }
        backend.exchanges() - before
    };
    let (one, fifty) = (exchanges_of(1), exchanges_of(50));
    assert!(one >= 3 * EACH as u64, "a SET is two exchanges, a GET one: {one}");
    assert!(fifty < 6 * one, "{fifty} exchanges for fifty clients, {one} for one");
}

/// Commands go wrong one by one: each client is told what became of its own, and what it is told is so.
#[test]
fn who_is_told_of_a_failure_is_told_the_truth() {
    const CLIENTS: usize = 20;
    const EACH: usize = 100;
    const MAY_HAVE: &str = "(ERR it may have been done, or not: ";
    let memory = MemoryBackend::default();
    let clean = Server::start_over_pairs(&memory, &clock(), &[]);
    assert_eq!(clean.client().run("SET k 0"), "OK");
    for at in 0..CLIENTS {
        assert_eq!(clean.client().run(&format!("SET k{at} 0")), "OK");
    }
    let decide = |command: u64| {
        // One in sixteen, without a rhythm that commands of an exchange could have, too.
        let mixed = (command + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        mixed.is_multiple_of(16).then(|| BackendFault::ALL[mixed as usize / 16 % BackendFault::ALL.len()])
    };
    let failing = FailingBackend::new(Arc::new(memory), decide);
    let server = Server::start_over_pairs(&failing, &clock(), &[]);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        (0..EACH).for_each(|_| client.send(&[b"INCR", format!("k{at}").as_bytes()]));
    }
    let (mut done, mut open, mut refused) = (0, 0, 0);
    for (at, client) in clients.iter_mut().enumerate() {
        let (mut least, mut most) = (0, 0);
        for _ in 0..EACH {
            let reply = client.reply();
            match number(&reply) {
                Some(counted) => {
                    assert!((least + 1..=most + 1).contains(&counted), "{counted}, and {least} to {most}");
                    (least, most) = (counted, counted);
                    done += 1;
                }
                None if reply.starts_with(MAY_HAVE) => (most, open) = (most + 1, open + 1),
                None => {
                    assert!(reply.starts_with("(ERR it went wrong"), "{reply}");
                    refused += 1;
                }
            }
        }
        let kept: u64 = clean.client().run(&format!("GET k{at}")).trim_matches('"').parse().unwrap();
        assert!((least..=most).contains(&kept), "{kept} of {least} to {most}");
    }
    assert!(done > 1_000 && open > 20 && refused > 20, "{done} done, {open} perhaps, {refused} not");
}
