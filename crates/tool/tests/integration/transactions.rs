//! MULTI, EXEC, WATCH.

use crate::client::{Client, Server};

#[test]
fn transactions_run_whole() {
    let server = Server::start(&[]);
    server.client().script(&[
        ("EXEC", "(ERR EXEC without MULTI)"),
        ("DISCARD", "(ERR DISCARD without MULTI)"),
        ("MULTI", "OK"),
        ("MULTI", "(ERR MULTI calls can not be nested)"),
        ("SET a 1", "QUEUED"),
        ("HSET users:1 f v g w", "QUEUED"),
        ("INCR a:b", "QUEUED"),
        ("EXEC", "[OK, 2, 1]"),
        ("GET a", "\"1\""),
        ("HLEN users:1", "2"),
        ("MULTI", "OK"),
        ("SET a 2", "QUEUED"),
        ("DISCARD", "OK"),
        ("GET a", "\"1\""),
        ("MULTI", "OK"),
        ("INCR a", "QUEUED"),
        ("INCR a", "QUEUED"),
        ("EXPIRE a 100", "QUEUED"),
        ("GET a", "QUEUED"),
        ("HGET a f", "QUEUED"),
        ("EXEC", "[2, 3, 1, \"3\", (WRONGTYPE Operation against a key holding the wrong kind of value)]"),
        ("MULTI", "OK"),
        ("NOPE", "(ERR unknown command 'NOPE', with args beginning with: )"),
        ("SET a 9", "QUEUED"),
        ("EXEC", "(EXECABORT Transaction discarded because of previous errors.)"),
        ("MULTI", "OK"),
        ("GET", "(ERR wrong number of arguments for 'get' command)"),
        ("EXEC", "(EXECABORT Transaction discarded because of previous errors.)"),
        ("MULTI", "OK"),
        ("SAVE", "(ERR Command not allowed inside a transaction)"),
        ("EXEC", "(EXECABORT Transaction discarded because of previous errors.)"),
        ("GET a", "\"3\""),
        ("MULTI", "OK"),
        ("EXEC", "[]"),
        ("MULTI", "OK"),
        ("SET before 1", "QUEUED"),
        ("FLUSHDB", "QUEUED"),
        ("SET after 1", "QUEUED"),
        ("EXEC", "[OK, OK, OK]"),
        ("KEYS *", "[\"after\"]"),
    ]);
}

#[test]
fn batches_see_what_was_there_before() {
    let server = Server::start(&[]);
    server.client().script(&[
        ("SET s 5", "OK"),
        ("HSET users:1 n 1 old x", "2"),
        ("MULTI", "OK"),
        ("INCRBY s 2", "QUEUED"),
        ("HINCRBY users:1 n 2", "QUEUED"),
        ("HDEL users:2 f", "QUEUED"),
        ("DEL gone users:3", "QUEUED"),
        ("SET users:4 string", "QUEUED"),
        ("MSET x 1 y 2", "QUEUED"),
        ("EXEC", "[7, 3, 0, 0, OK, OK]"),
        ("GET s", "\"7\""),
        ("HGETALL users:1", "[\"n\", \"3\", \"old\", \"x\"]"),
        ("MULTI", "OK"),
        ("SET users:1 now-a-string", "QUEUED"),
        ("DEL s x", "QUEUED"),
        ("EXEC", "[OK, 2]"),
        ("TYPE users:1", "string"),
        ("EXISTS s x y", "1"),
    ]);
}

#[test]
fn expiries_are_part_of_the_batch() {
    let server = Server::start(&[]);
    let mut client = server.client();
    client.script(&[("SET old 1 EX 50", "OK"), ("HSET users:2 f v", "1"), ("SET temporary 1", "OK")]);
    // The store counts one write for a whole batch.
    let sequence = |client: &mut Client| -> u64 {
        let metrics = client.run("HR.METRICS");
        let (_, rest) = metrics.split_once("\"sequence\", ").unwrap();
        rest.split([',', ']']).next().unwrap().parse().unwrap()
    };
    let before = sequence(&mut client);
    client.script(&[
        ("MULTI", "OK"),
        ("HSET users:1 f v", "QUEUED"),
        ("EXPIRE users:1 100", "QUEUED"),
        ("EXPIRE users:1 200 NX", "QUEUED"),
        ("SET new 1 EX 50", "QUEUED"),
        ("PERSIST new", "QUEUED"),
        ("PERSIST new", "QUEUED"),
        ("SET past 1", "QUEUED"),
        ("PEXPIREAT past 1", "QUEUED"),
        ("PERSIST past", "QUEUED"),
        ("EXPIRE past 10", "QUEUED"),
        ("HSET users:3 f v", "QUEUED"),
        ("EXPIRE users:3 0", "QUEUED"),
        ("EXPIRE users:3 60", "QUEUED"),
        ("DEL temporary", "QUEUED"),
        ("EXPIRE temporary 10", "QUEUED"),
        ("EXPIRE absent 10", "QUEUED"),
        ("INCR old", "QUEUED"),
        ("EXPIRE old 100 LT", "QUEUED"),
        ("PEXPIREAT users:2 99999999999999", "QUEUED"),
        ("EXEC", "[1, 1, 0, OK, 1, 0, OK, 1, 0, 0, 1, 1, 0, 1, 0, 0, 2, 0, 1]"),
        ("EXISTS past users:3", "0"),
    ]);
    assert_eq!(sequence(&mut client), before + 1);
    // Fields beyond those of the table, and a hash that loses its last field.
    let mut words = vec![b"HSET".to_vec(), b"wide:1".to_vec()];
    words.extend((0..600).map(|word| format!("f{}", word / 2).into_bytes()));
    client.script(&[("HSET narrow:1 f v", "1"), ("MULTI", "OK")]);
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    assert_eq!(client.run_words(&words), "QUEUED");
    client.script(&[
        ("EXPIRE wide:1 100", "QUEUED"),
        ("HDEL narrow:1 f", "QUEUED"),
        ("EXPIRE narrow:1 100", "QUEUED"),
        ("EXEC", "[300, 1, 1, 0]"),
        ("HLEN wide:1", "300"),
        ("TTL wide:1", "100"),
        ("EXISTS narrow:1", "0"),
    ]);
    client.script(&[
        ("TTL users:1", "100"),
        ("TTL new", "-1"),
        ("EXISTS past", "0"),
        ("EXISTS temporary", "0"),
        ("TTL old", "50"),
        ("PEXPIRETIME users:2", "99999999999999"),
    ]);
}

#[test]
fn watched_keys_stop_a_transaction() {
    let server = Server::start(&[]);
    let (mut one, mut two) = (server.client(), server.client());
    for (key, change) in [
        ("s", "SET s 2"),
        ("s", "APPEND s x"),
        ("s", "DEL s"),
        ("s", "EXPIRE s 100"),
        ("users:1", "HSET users:1 f w"),
        ("users:1", "HDEL users:1 f"),
        ("users:1", "SET users:1 x"),
        ("absent", "SET absent 1"),
        ("absent:1", "HSET absent:1 f v"),
        ("s", "FLUSHALL"),
    ] {
        two.run("FLUSHALL");
        two.run("SET s 1");
        two.run("HSET users:1 f v g w");
        assert_eq!(one.run(&format!("WATCH {key}")), "OK");
        two.run(change);
        one.script(&[("MULTI", "OK"), ("SET done 1", "QUEUED"), ("EXEC", "nil"), ("EXISTS done", "0")]);
    }
    one.run("SET s 1");
    one.run("WATCH s other");
    two.run("SET unrelated 1");
    two.run("GET s");
    one.script(&[("MULTI", "OK"), ("SET done 1", "QUEUED"), ("EXEC", "[OK]")]);
    one.run("WATCH s");
    two.run("SET s 2");
    one.script(&[
        ("UNWATCH", "OK"),
        ("MULTI", "OK"),
        ("WATCH s", "(ERR WATCH inside MULTI is not allowed)"),
        ("PING", "QUEUED"),
        ("EXEC", "[PONG]"),
    ]);
}

/// A command of a transaction that is refused has done nothing, though the others are done together.
#[test]
fn a_refused_command_does_nothing_by_half() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let long = [b'k'; 70_000];
    let refused = "(ERR a key has 1 to 65536 bytes; this one has 70000)";
    let no_name = "(ERR the name of a field has at most 65527 bytes; this one has 70000)";
    let misfit = "(ERR field 'n' of table 'typed' is i64: 'text' does not fit)";
    client.script(&[
        ("HR.CREATE typed n i64", "OK"),
        ("SET typed:1 before", "OK"),
        ("HSET source:1 n text", "1"),
    ]);
    for (words, expected) in [
        (&[&b"MSET"[..], b"a", b"1", &long, b"2"][..], refused),
        (&[b"MSETNX", b"a", b"1", &long, b"2"], refused),
        (&[b"HSET", &long, b"@f", b"v"], refused),
        (&[b"HSET", b"h:1", b"@f", b"v", &long, b"v"], no_name),
        (&[b"HSETEX", b"h:1", b"EX", b"100", b"FIELDS", b"2", b"f", b"v", &long, b"v"], no_name),
        (&[b"COPY", b"source:1", b"typed:1", b"REPLACE"], misfit),
        (&[b"RENAME", b"source:1", b"typed:1"], misfit),
    ] {
        client.script(&[("MULTI", "OK"), ("SET done 1", "QUEUED")]);
        assert_eq!(client.run_words(words), "QUEUED");
        client.script(&[("SET done:too 1", "QUEUED")]);
        assert_eq!(client.run("EXEC"), format!("[OK, {expected}, OK]"), "{}", words[0].escape_ascii());
        client.script(&[
            ("EXISTS a h:1", "0"),
            ("GET typed:1", "\"before\""),
            ("HGETALL source:1", "[\"n\", \"text\"]"),
            ("DEL done done:too", "2"),
        ]);
        // Alone it is refused, too.
        assert_eq!(client.run_words(words), expected);
        client.script(&[("DBSIZE", "2"), ("GET typed:1", "\"before\"")]);
    }
}

/// Of a prefix that has a table already, too, whose rows' keys are shorter than the keys.
#[test]
fn no_hash_has_a_key_that_is_too_long() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let long = [&b"typed:"[..], &[b'k'; 65_536]].concat();
    let refused = "(ERR a key has 1 to 65536 bytes; this one has 65542)";
    client.script(&[("HSET typed:1 a b", "1"), ("SET s 1", "OK")]);
    assert_eq!(client.run_words(&[b"HSET", &long, b"f", b"v"]), refused);
    client.script(&[("MULTI", "OK")]);
    assert_eq!(client.run_words(&[b"HSET", &long, b"f", b"v"]), "QUEUED");
    assert_eq!(client.run_words(&[b"SET", &long, b"x"]), "QUEUED");
    client.script(&[("SET done 1", "QUEUED")]);
    assert_eq!(client.run("EXEC"), format!("[{refused}, {refused}, OK]"));
    client.script(&[("DBSIZE", "3"), ("HLEN typed:1", "1")]);
}
