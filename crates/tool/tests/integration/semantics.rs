//! What commands mean where it is easily got wrong: time, watched keys, order, odds, size.

use std::io::Read;

use hedgerow_device::Clock;

use crate::client::{Client, Program, Server, Store, TempDir, clock, encode, on_every_store};

fn unix_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

#[test]
fn no_time_to_live_is_longer_than_was_asked_for() {
    on_every_store(no_time_to_live_is_longer_than_was_asked_for_on);
}

fn no_time_to_live_is_longer_than_was_asked_for_on(store: Store) {
    let server = store.start(&[]);
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
fn is_refused(clock: &Clock, one: &mut Client, two: &mut Client, setup: &[&str], between: &[&str]) -> bool {
    assert_eq!(two.run("FLUSHALL"), "OK");
    let mut run = |line: &str| match line {
        "LATER" => clock.advance_ms(30),
        line => drop(two.run(line)),
    };
    setup.iter().for_each(|line| run(line));
    assert_eq!(one.run("WATCH k"), "OK");
    between.iter().for_each(|line| run(line));
    assert_eq!(one.run("MULTI"), "OK");
    assert_eq!(one.run("PING"), "QUEUED");
    one.run("EXEC") == "nil"
}

#[test]
fn watching_sees_every_change_and_nothing_else() {
    let clock = clock();
    let server = Server::start_by(&clock, &[]);
    let (mut one, mut two) = (server.client(), server.client());
    let changes: [(&[&str], &[&str]); 21] = [
        (&[], &["SET k 1", "DEL k"]),
        (&[], &["HSET k f 1", "DEL k"]),
        (&[], &["HSET k f 1", "HDEL k f"]),
        (&[], &["SET k 1", "RENAME k other"]),
        (&[], &["SET other 1", "RENAME other k", "DEL k"]),
        (&[], &["SET k 1", "FLUSHALL"]),
        (&[], &["SET k 1 PX 5", "LATER"]),
        (&[], &["MULTI", "SET k 1", "SET other 1", "DEL k", "EXEC"]),
        (&[], &["SET k 1"]),
        (&["SET k 1"], &["SET k 1"]),
        (&["SET k 1"], &["DEL k", "SET k 1"]),
        (&["SET k 1"], &["PEXPIRE k 100000"]),
        (&["SET k 1 EX 100"], &["PERSIST k"]),
        (&["SET k 1 PX 10"], &["LATER"]),
        (&["SET k 1"], &["FLUSHDB"]),
        (&["HSET k f 1"], &["HSET k f 1"]),
        (&["HSET k f 1"], &["HINCRBY k f 1"]),
        (&["HSET k f 1"], &["HEXPIRE k 100 FIELDS 1 f"]),
        (&["HSET k f 1"], &["SET k 1"]),
        (&["SET k 1"], &["COPY k other", "COPY other k REPLACE"]),
        (&["SET k 1"], &["APPEND k x"]),
    ];
    for (setup, between) in changes {
        assert!(is_refused(&clock, &mut one, &mut two, setup, between), "{setup:?} {between:?}");
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
        (&["SET k 1 PX 1", "LATER"], &["GET k"]),
        (&["SET k 1"], &["MULTI", "SET k 2", "DISCARD"]),
    ];
    for (setup, between) in others {
        assert!(!is_refused(&clock, &mut one, &mut two, setup, between), "{setup:?} {between:?}");
    }
    // Watching ends with EXEC, DISCARD, UNWATCH and RESET.
    for ends in [&["MULTI", "EXEC"][..], &["MULTI", "DISCARD"], &["UNWATCH"], &["RESET"]] {
        assert_eq!(one.run("WATCH k"), "OK");
        ends.iter().for_each(|line| drop(one.run(line)));
        assert_eq!(two.run("SET k 3"), "OK");
        assert_eq!(["MULTI", "PING", "EXEC"].map(|line| one.run(line))[2], "[PONG]", "{ends:?}");
    }
}

/// A field that expires is a change of its hash, which no write tells of.
#[test]
fn watching_sees_fields_expire() {
    on_every_store(watching_sees_fields_expire_on);
}

fn watching_sees_fields_expire_on(store: Store) {
    let clock = clock();
    let server = store.start_by(&clock, &[]);
    let (mut one, mut two) = (server.client(), server.client());
    let expires = ["HSET k f 1 g 2", "HPEXPIRE k 10 FIELDS 1 g"];
    // Of a name that is no table's field.
    let long = "g".repeat(200);
    let [long_set, long_expires] = [format!("HSET k f 1 {long} 2"), format!("HPEXPIRE k 10 FIELDS 1 {long}")];
    let later = ["HPEXPIRE k 500 FIELDS 1 f"];
    for (setup, between) in [
        (&expires[..], &["LATER"][..]),
        (&[&long_set, &long_expires], &["LATER"]),
        (&[expires[0], expires[1], later[0]], &["LATER"]),
        // It lasts again, but that is a change, too.
        (&expires, &["HPERSIST k FIELDS 1 g", "LATER"]),
    ] {
        assert!(is_refused(&clock, &mut one, &mut two, setup, between), "{setup:?} {between:?}");
    }
    for (setup, between) in [
        (&expires[..], &["HGET k g"][..]),
        // It had expired before it was watched.
        (&[expires[0], expires[1], "LATER"], &["LATER"]),
        (&[expires[0], expires[1], "HPERSIST k FIELDS 1 g"], &["LATER"]),
        (&[expires[0], later[0]], &["LATER"]),
    ] {
        assert!(!is_refused(&clock, &mut one, &mut two, setup, between), "{setup:?} {between:?}");
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

/// How often each of `names` is among the replies, by Pearson's test: the sum is near the number of names less one.
fn check_even(names: &[String], replies: &[String]) {
    let expected = replies.len() as f64 / names.len() as f64;
    let count = |name: &String| replies.iter().filter(|reply| reply.trim_matches('"') == name).count() as f64;
    let sum: f64 = names.iter().map(|name| (count(name) - expected).powi(2) / expected).sum();
    let free = (names.len() - 1) as f64;
    assert!(sum < free + 6.0 * (2.0 * free).sqrt() + 1.0, "{sum} for {free}: {names:?}");
    assert!(replies.iter().all(|reply| names.iter().any(|name| name == reply.trim_matches('"'))));
}

fn repeated(client: &mut Client, words: &[&[u8]], times: usize) -> Vec<String> {
    client.send_raw(&encode(words).repeat(times));
    (0..times).map(|_| client.reply()).collect()
}

#[test]
fn every_key_is_as_likely_as_any_other() {
    let clock = clock();
    let server = Server::start_by(&clock, &[]);
    let mut client = server.client();
    assert_eq!(client.run("RANDOMKEY"), "nil");
    let mut names: Vec<String> = ["a", "zzzzzzzzzz"].map(String::from).to_vec();
    names.iter().for_each(|name| assert_eq!(client.run(&format!("SET {name} 1")), "OK"));
    check_even(&names, &repeated(&mut client, &[b"RANDOMKEY"], 2_000));
    for index in 0..20 {
        names.push(format!("user:{index:08}"));
        assert_eq!(client.run(&format!("HSET user:{index:08} f 1")), "1");
        names.push(format!("key{index}"));
        assert_eq!(client.run(&format!("SET key{index} 1")), "OK");
    }
    // Some that are gone, and more that have expired, which are none.
    for index in 0..50 {
        client.run(&format!("SET gone{index} 1"));
        client.run(&format!("DEL gone{index}"));
        client.run(&format!("SET late{index} 1 PX 1"));
        client.run(&format!("HSET user:late{index} f 1"));
        client.run(&format!("HPEXPIRE user:late{index} 1 FIELDS 1 f"));
    }
    clock.advance_ms(5);
    check_even(&names, &repeated(&mut client, &[b"RANDOMKEY"], 8_000));
}

#[test]
fn every_field_is_as_likely_as_any_other() {
    on_every_store(every_field_is_as_likely_as_any_other_on);
}

fn every_field_is_as_likely_as_any_other_on(store: Store) {
    let server = store.start(&[]);
    let mut client = server.client();
    let names: Vec<String> = (0..12).map(|index| format!("f{index}")).collect();
    names.iter().for_each(|name| assert_eq!(client.run(&format!("HSET h {name} v{name}")), "1"));
    let split = |reply: &str| -> Vec<String> {
        reply.trim_matches(['[', ']']).split(", ").map(|field| field.trim_matches('"').to_owned()).collect()
    };
    check_even(&names, &repeated(&mut client, &[b"HRANDFIELD", b"h"], 3_000));
    check_even(&names, &split(&client.run("HRANDFIELD h -6000")));
    let mut drawn = Vec::new();
    for reply in repeated(&mut client, &[b"HRANDFIELD", b"h", b"5"], 1_000) {
        let mut fields = split(&reply);
        fields.sort();
        fields.dedup();
        assert_eq!(fields.len(), 5, "{reply}");
        drawn.append(&mut fields);
    }
    check_even(&names, &drawn);
    let mut all = split(&client.run("HRANDFIELD h 100"));
    all.sort();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(all, sorted);
    let pairs = split(&client.run("HRANDFIELD h -3 WITHVALUES"));
    assert!(pairs.len() == 6 && pairs.chunks(2).all(|pair| pair[1] == format!("v{}", pair[0])), "{pairs:?}");
    client.script(&[("HRANDFIELD none", "nil"), ("HRANDFIELD none -5", "[]"), ("HRANDFIELD h 0", "[]")]);
}

#[test]
fn replies_that_are_too_large_take_no_memory() {
    let dir = TempDir::new();
    let server = Program::spawn(dir.path(), &[]);
    let mut client = server.client();
    assert_eq!(client.run("HSET h a 1"), "1");
    let before = server.status_bytes("VmHWM");
    for line in ["HRANDFIELD h -1000000000", "HRANDFIELD h -1000000000 WITHVALUES"] {
        assert!(
            client.run(line).starts_with("(ERR the reply would take more than 268435456 bytes"),
            "{line}"
        );
    }
    let grown = server.status_bytes("VmHWM") - before;
    assert!(grown < 32 << 20, "{grown} bytes for replies that are refused");
}

/// A reply that is not refused takes its own bytes and little more, however few fields it is drawn from.
#[test]
fn many_draws_from_few_fields_take_no_more_than_their_reply() {
    const DRAWS: usize = 4_000_000;
    let dir = TempDir::new();
    let server = Program::spawn(dir.path(), &[]);
    let mut client = server.client();
    assert_eq!(client.run("HSET h a 1"), "1");
    let before = server.status_bytes("VmHWM");
    client.send_raw(format!("HRANDFIELD h -{DRAWS}\r\n").as_bytes());
    let head = format!("*{DRAWS}\r\n");
    let mut reply = vec![0; head.len() + DRAWS * b"$1\r\na\r\n".len()];
    client.stream.read_exact(&mut reply).unwrap();
    let grown = server.status_bytes("VmHWM") - before;
    assert!(grown < 2 * reply.len() as u64, "{grown} bytes for a reply of {}", reply.len());
    let fields = reply.strip_prefix(head.as_bytes()).unwrap();
    assert!(fields.chunks(7).all(|field| field == b"$1\r\na\r\n"));
    assert_eq!(client.run("PING"), "PONG");
}

#[test]
fn replies_that_are_too_large_are_refused() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let limits: [&[u8]; 4] = [b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 4mb 2mb 60"];
    assert_eq!(client.run_words(&limits), "OK");
    let value = vec![b'v'; 1 << 20];
    for field in [&b"a"[..], b"b", b"c", b"d", b"e"] {
        assert_eq!(client.run_words(&[b"SET", field, &value]), "OK");
        client.run_words(&[b"HSET", b"t:1", field, &value]);
    }
    let large = vec![b'v'; 5 << 20];
    assert_eq!(client.run_words(&[b"SET", b"large", &large]), "OK");
    client.run_words(&[b"HSET", b"t:2", b"large", &large]);
    let refused =
        "(ERR the reply would take more than 4194304 bytes, the hard limit of client-output-buffer-limit)";
    let many = [&[&b"MGET"[..]][..], &[&b"a"[..]; 100_000]].concat();
    let fields = [&[&b"HMGET"[..], b"t:1"][..], &[&b"a"[..]; 100_000]].concat();
    assert_eq!(client.run_words(&many), refused);
    assert_eq!(client.run_words(&fields), refused);
    assert_eq!(client.run_words(&[b"ECHO", &large]), refused);
    for line in [
        "HGETALL t:1",
        "HVALS t:1",
        "HRANDFIELD t:1 5 WITHVALUES",
        "HRANDFIELD t:1 -5 WITHVALUES",
        "HSCAN t:1 0",
        "HR.SCAN t",
        "GET large",
        "GETRANGE large 0 -1",
        "GETDEL large",
        "GETSET large 1",
        "GETEX large PX 1",
        "SET large 1 GET",
        "HGETDEL t:2 FIELDS 1 large",
        "HGETEX t:2 PX 1 FIELDS 1 large",
    ] {
        assert_eq!(client.run(line), refused, "{line}");
    }
    // What could not be told has not been done.
    client.script(&[("STRLEN large", "5242880"), ("TTL large", "-1"), ("HSTRLEN t:2 large", "5242880")]);
    assert_eq!(
        ["MULTI", "GET large", "SET other 1", "EXEC"].map(|line| client.run(line))[3],
        format!("[{refused}, OK]")
    );
}

#[test]
fn scans_and_patterns_are_bounded() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let count = 20_000;
    let commands: Vec<u8> =
        (0..count).flat_map(|index| encode(&[b"SET", format!("k{index}").as_bytes(), b""])).collect();
    client.send_raw(&commands);
    (0..count).for_each(|_| assert_eq!(client.reply(), "OK"));
    let first = client.run("SCAN 0 COUNT 1000000000000");
    assert_eq!(first.matches("\"k").count(), 16 << 10);
    let cursor = first.split('"').nth(1).unwrap();
    let rest = client.run(&format!("SCAN {cursor} COUNT 1000000000000"));
    assert!(rest.starts_with("[\"0\", ") && rest.matches("\"k").count() == count - (16 << 10));
    let pattern = "*".repeat(5_000);
    for line in
        [format!("KEYS {pattern}"), format!("SCAN 0 MATCH {pattern}"), format!("HSCAN h 0 MATCH {pattern}")]
    {
        assert_eq!(client.run(&line), "(ERR a pattern has at most 4096 bytes; this one has 5000)");
    }
    assert_eq!(client.run(&format!("KEYS {}", "k19999")), r#"["k19999"]"#);
}

#[test]
fn a_long_pipeline_lets_others_have_their_turn() {
    on_every_store(a_long_pipeline_lets_others_have_their_turn_on);
}

fn a_long_pipeline_lets_others_have_their_turn_on(store: Store) {
    let server = store.start(&[]);
    let (mut one, mut two) = (server.client(), server.client());
    // All of them in one read.
    let rounds = 1_000;
    // How many commands were done, those that ask for it left out.
    let mut asked = 0;
    let mut done = || {
        let info = two.run("INFO stats");
        let (_, rest) = info.split_once("total_commands_processed:").unwrap();
        asked += 1;
        rest.split("\\r").next().unwrap().parse::<usize>().unwrap() - (asked - 1)
    };
    assert_eq!(done(), 0);
    one.send_raw(&b"COMMAND DOCS\r\n".repeat(rounds));
    let reader = std::thread::spawn(move || (0..rounds).for_each(|_| assert!(one.reply().len() > 1_000)));
    let mut midway = 0;
    while !reader.is_finished() {
        midway += usize::from((1..rounds).contains(&done()));
    }
    reader.join().unwrap();
    assert!(midway > 0, "nobody had a turn before the pipeline was done");
    assert_eq!(done(), rounds);
}

#[test]
fn an_increment_keeps_the_expiry_of_its_field() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let odd = vec![0xff; 3];
    for field in [&b"f"[..], &odd] {
        assert_eq!(client.run_words(&[b"HSET", b"h:1", field, b"5"]), "1");
        assert_eq!(client.run_words(&[b"HEXPIRE", b"h:1", b"100", b"FIELDS", b"1", field]), "[1]");
        assert_eq!(client.run_words(&[b"HINCRBY", b"h:1", field, b"2"]), "7");
        assert_eq!(client.run_words(&[b"HINCRBYFLOAT", b"h:1", field, b"0.5"]), "\"7.5\"");
        assert_eq!(client.run("MULTI"), "OK");
        assert_eq!(client.run_words(&[b"HINCRBYFLOAT", b"h:1", field, b"0.5"]), "QUEUED");
        assert_eq!(client.run("SET x 1"), "QUEUED");
        assert_eq!(client.run("EXEC"), "[\"8\", OK]");
        assert_eq!(client.run_words(&[b"HGET", b"h:1", field]), "\"8\"");
        assert_eq!(client.run_words(&[b"HTTL", b"h:1", b"FIELDS", b"1", field]), "[100]");
    }
}

/// Commands on fields say what is wrong with their arguments as Redis does, each in its words, and look at the key before the arguments, but for HSETEX.
#[test]
fn what_is_wrong_with_fields_is_said_as_in_redis() {
    on_every_store(what_is_wrong_with_fields_is_said_as_in_redis_on);
}

fn what_is_wrong_with_fields_is_said_as_in_redis_on(store: Store) {
    const WRONG_TYPE: &str = "(WRONGTYPE Operation against a key holding the wrong kind of value)";
    const NO_FIELDS: &str = "(ERR Mandatory argument FIELDS is missing or not at the right position)";
    const MISMATCH: &str = "(ERR The `numfields` parameter must match the number of arguments)";
    let server = store.start(&[]);
    let mut client = server.client();
    client.script(&[("SET s v", "OK"), ("HSET h f v", "1")]);
    let sets_time = "(ERR Parameter `numFields` should be greater than 0)";
    let others = "(ERR Number of fields must be a positive integer)";
    for (name, options, not_a_count) in [
        ("HEXPIRE", "10 ", sets_time),
        ("HPEXPIRE", "10 NX ", sets_time),
        ("HEXPIREAT", "1900000000 ", sets_time),
        ("HPEXPIREAT", "1900000000000 GT ", sets_time),
        ("HTTL", "", others),
        ("HPTTL", "", others),
        ("HEXPIRETIME", "", others),
        ("HPEXPIRETIME", "", others),
        ("HPERSIST", "", others),
        ("HGETDEL", "", others),
        ("HGETEX", "", others),
        ("HGETEX", "EX 10 ", others),
        ("HGETEX", "PERSIST ", others),
    ] {
        for (rest, answer) in [
            ("FIELDS 0 f", not_a_count),
            ("FIELDS -1 f", not_a_count),
            ("FIELDS x f", not_a_count),
            ("FIELDS 2 f", MISMATCH),
            ("FIELDS 1 f g", MISMATCH),
            ("FIELDS 9223372036854775807 f", MISMATCH),
            ("FIELD 1 f", NO_FIELDS),
        ] {
            let line = |key: &str| format!("{name} {key} {options}{rest}");
            client.script(&[(&line("h"), answer), (&line("none"), answer), (&line("s"), WRONG_TYPE)]);
        }
    }
    let times = [
        ("x", "(ERR value is not an integer or out of range)"),
        ("-1", "(ERR invalid expire time, must be >= 0)"),
    ];
    for (time, answer) in times {
        for (start, rest) in
            [("HEXPIRE", format!("{time} FIELDS 1 f")), ("HGETEX", format!("EX {time} FIELDS 1 f"))]
        {
            client.script(&[
                (&format!("{start} h {rest}"), answer),
                (&format!("{start} s {rest}"), WRONG_TYPE),
            ]);
        }
    }
    client.script(&[("HGETALL h", "[\"f\", \"v\"]"), ("HTTL h FIELDS 1 f", "[-1]")]);
}

#[test]
fn what_is_wrong_with_hsetex_is_said_as_in_redis() {
    on_every_store(what_is_wrong_with_hsetex_is_said_as_in_redis_on);
}

fn what_is_wrong_with_hsetex_is_said_as_in_redis_on(store: Store) {
    const ARITY: &str = "(ERR wrong number of arguments for 'hsetex' command)";
    const COUNT: &str = "(ERR invalid number of fields)";
    const CONDITION: &str = "(ERR Only one of FXX or FNX arguments can be specified)";
    const TIME: &str = "(ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified)";
    let server = store.start(&[]);
    let mut client = server.client();
    client.script(&[("SET s v", "OK"), ("HSET h f v", "1")]);
    for (rest, answer) in [
        ("FIELDS 0 f x", COUNT),
        ("FIELDS x f x", COUNT),
        ("FIELDS 2147483648 f x", COUNT),
        ("FIELDS 2 f x", ARITY),
        ("FIELDS 2147483647 f x", ARITY),
        ("FIELDS 1 f x g", ARITY),
        ("FIELDS 1 f x g y", ARITY),
        ("KEEPTTL FIELDS 1 f", ARITY),
        ("FNX FIELDS x f", ARITY),
        ("FXX FNX FIELDS 1 f x", CONDITION),
        ("FNX FXX FIELDS 1 f x", CONDITION),
        ("FNX EX 10 FNX FIELDS 1 f x", CONDITION),
        ("EX 1 PX 1 FIELDS 1 f x", TIME),
        ("EX 1 KEEPTTL FIELDS 1 f x", TIME),
        ("KEEPTTL EXAT 1900000000 FIELDS 1 f x", TIME),
        ("KEEPTTL KEEPTTL FIELDS 1 f x", TIME),
        ("PXAT 1900000000000 FXX PXAT x FIELDS 1 f x", TIME),
        ("EX x PX 1 FIELDS 1 f x", "(ERR value is not an integer or out of range)"),
        ("PERSIST FIELDS 1 f x", "(ERR unknown argument: PERSIST)"),
    ] {
        // What is wrong with the arguments comes first here, whatever the key is.
        for key in ["h", "none", "s"] {
            assert_eq!(client.run(&format!("HSETEX {key} {rest}")), answer, "{key} {rest}");
        }
    }
    client.script(&[
        ("HSETEX s FIELDS 1 f x", "(WRONGTYPE Operation against a key holding the wrong kind of value)"),
        ("HGETALL h", "[\"f\", \"v\"]"),
        ("EXISTS none", "0"),
        ("HSETEX h KEEPTTL FXX FIELDS 1 f x", "1"),
        ("HSETEX h FNX EX 10 FIELDS 1 f y", "0"),
        ("HGET h f", "\"x\""),
    ]);
}
