//! What commands answer.

use std::collections::BTreeSet;
use std::time::Duration;

use hedgerow_device::Random;
use hedgerow_sim::eventually;

use crate::client::{Client, Server, Store, TempDir, clock, encode, on_every_store};

const WRONG_TYPE: &str = "(WRONGTYPE Operation against a key holding the wrong kind of value)";

#[test]
fn strings() {
    let server = Server::start(&[]);
    server.client().script(&[
        ("GET a", "nil"),
        ("SET a 1", "OK"),
        ("GET a", "\"1\""),
        ("SET a 2 NX", "nil"),
        ("SET b 2 XX", "nil"),
        ("SET a 2 XX GET", "\"1\""),
        ("SET new 1 NX GET", "nil"),
        ("SET a 3 EX 0", "(ERR invalid expire time in 'set' command)"),
        ("SET a 3 EX", "(ERR syntax error)"),
        ("SET a 3 NX XX", "(ERR syntax error)"),
        ("SET a 3 EX 100 KEEPTTL", "(ERR syntax error)"),
        ("SET a 3 EX 100", "OK"),
        ("TTL a", "100"),
        ("SET a 4 KEEPTTL", "OK"),
        ("TTL a", "100"),
        ("INCR a", "5"),
        ("TTL a", "100"),
        ("SET a 4", "OK"),
        ("TTL a", "-1"),
        ("SET a 1 PXAT 1", "OK"),
        ("EXISTS a", "0"),
        ("SETNX a 4", "1"),
        ("SETNX a 5", "0"),
        ("GETSET a 10", "\"4\""),
        ("INCRBY a 5", "15"),
        ("DECRBY a 5", "10"),
        ("DECRBY a -9223372036854775808", "(ERR decrement would overflow)"),
        ("INCRBY a 9223372036854775807", "(ERR increment or decrement would overflow)"),
        ("INCRBYFLOAT a 0.1", "\"10.1\""),
        ("INCR a", "(ERR value is not an integer or out of range)"),
        ("APPEND a 23", "6"),
        ("STRLEN a", "6"),
        ("GETRANGE a 0 -1", "\"10.123\""),
        ("GETRANGE a -3 -1", "\"123\""),
        ("GETRANGE a 5 2", "\"\""),
        ("SUBSTR a 0 1", "\"10\""),
        ("SETRANGE pad 3 x", "4"),
        ("GET pad", "\"\\x00\\x00\\x00x\""),
        ("SETRANGE pad -1 x", "(ERR offset is out of range)"),
        ("MSET x 1 y 2 x 3", "OK"),
        ("MGET x nope y", "[\"3\", nil, \"2\"]"),
        ("MSETNX y 1 z 1", "0"),
        ("MSETNX z 1 w 1", "1"),
        ("MSET x", "(ERR wrong number of arguments for 'mset' command)"),
        ("GETDEL z", "\"1\""),
        ("EXISTS z", "0"),
        ("GETEX w EX 50", "\"1\""),
        ("TTL w", "50"),
        ("GETEX w PERSIST", "\"1\""),
        ("TTL w", "-1"),
        ("SETEX w 10 v", "OK"),
        ("PSETEX w 10000 v", "OK"),
        ("TTL w", "10"),
    ]);
}

#[test]
fn hashes() {
    on_every_store(hashes_on);
}

fn hashes_on(store: Store) {
    let server = store.start(&[]);
    server.client().script(&[
        ("HSET users:1 name Ada age 36 name Bob", "2"),
        ("HGET users:1 name", "\"Bob\""),
        ("HSET users:1 name Eve city Rome", "1"),
        ("HMGET users:1 city nope age", "[\"Rome\", nil, \"36\"]"),
        ("HLEN users:1", "3"),
        ("HSETNX users:1 name x", "0"),
        ("HSETNX users:1 zip 1", "1"),
        ("HSTRLEN users:1 name", "3"),
        ("HEXISTS users:1 name", "1"),
        ("HEXISTS users:1 nope", "0"),
        ("HINCRBY users:1 age 4", "40"),
        ("HINCRBY users:1 name 4", "(ERR hash value is not an integer)"),
        ("HINCRBYFLOAT users:1 age 0.5", "\"40.5\""),
        ("HDEL users:1 zip zip nope", "1"),
        ("HGETALL users:1", "[\"name\", \"Eve\", \"age\", \"40.5\", \"city\", \"Rome\"]"),
        ("HMSET users:1 a b", "OK"),
        ("HGETALL nope:1", "[]"),
        ("HGET nope:1 f", "nil"),
        ("HMGET nope:1 f g", "[nil, nil]"),
        ("HSET users:1 a", "(ERR wrong number of arguments for 'hset' command)"),
        ("HSET users:1 a b c", "(ERR wrong number of arguments for 'hset' command)"),
        ("HDEL users:1 a age name city", "4"),
        ("EXISTS users:1", "0"),
        ("TYPE users:1", "none"),
        ("HRANDFIELD users:1", "nil"),
        ("HSET h f v", "1"),
        ("HRANDFIELD h -3", "[\"f\", \"f\", \"f\"]"),
        ("HRANDFIELD h 3 WITHVALUES", "[\"f\", \"v\"]"),
        ("HSCAN h 0", "[\"0\", [\"f\", \"v\"]]"),
        ("HSCAN h 0 MATCH x*", "[\"0\", []]"),
        ("HSCAN h 0 NOVALUES", "[\"0\", [\"f\"]]"),
        ("HGETDEL h FIELDS 2 f g", "[\"v\", nil]"),
        ("EXISTS h", "0"),
    ]);
}

#[test]
fn a_key_has_one_type() {
    on_every_store(a_key_has_one_type_on);
}

fn a_key_has_one_type_on(store: Store) {
    let server = store.start(&[]);
    server.client().script(&[
        ("SET s:1 x", "OK"),
        ("HSET h:1 f v", "1"),
        ("HSET s:1 f v", WRONG_TYPE),
        ("HGET s:1 f", WRONG_TYPE),
        ("HGETALL s:1", WRONG_TYPE),
        ("GET h:1", WRONG_TYPE),
        ("APPEND h:1 x", WRONG_TYPE),
        ("INCR h:1", WRONG_TYPE),
        ("MGET s:1 h:1", "[\"x\", nil]"),
        ("SET h:1 x", "OK"),
        ("TYPE h:1", "string"),
        ("HGET h:1 f", WRONG_TYPE),
        ("DEL h:1", "1"),
        ("HSET h:1 f w", "1"),
        ("HGETALL h:1", "[\"f\", \"w\"]"),
        ("DBSIZE", "2"),
    ]);
}

#[test]
fn field_names_and_values_are_binary() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let long = vec![b'n'; 5000];
    let names: [&[u8]; 7] = [b"", b"\xff\0", b"@more", b"@expiring", &long, b"\r\n", "\u{e9}".as_bytes()];
    for (index, name) in names.iter().enumerate() {
        let value = [b"\0\xfe", index.to_string().as_bytes()].concat();
        assert_eq!(client.run_words(&[b"HSET", b"odd:1", name, &value]), "1");
        assert_eq!(client.run_words(&[b"HSET", b"odd:1", name, &value]), "0");
        let shown = format!("\"{}\"", value.escape_ascii());
        assert_eq!(client.run_words(&[b"HGET", b"odd:1", name]), shown);
        assert_eq!(client.run_words(&[b"HEXISTS", b"odd:1", name]), "1");
    }
    assert_eq!(client.run("HLEN odd:1"), "7");
    assert_eq!(client.run("HGETALL odd:1").matches("\\x00\\xfe").count(), 7);
    assert_eq!(client.run("RENAME odd:1 other:1"), "OK");
    assert_eq!(client.run("HLEN other:1"), "7");
    assert_eq!(client.run_words(&[b"HDEL", b"other:1", b"", b"\xff\0", b"@more"]), "3");
    assert_eq!(client.run("HLEN other:1"), "4");
    // A hash made anew has none of the old one's overflow fields.
    assert_eq!(client.run("DEL other:1"), "1");
    assert_eq!(client.run("HSET other:1 f v"), "1");
    assert_eq!(client.run("HLEN other:1"), "1");
    assert_eq!(client.run_words(&[b"HGET", b"other:1", b"\xff\0"]), "nil");
    assert!(client.run_words(&[b"SET", b"", b"v"]).contains("a key has 1 to 65536 bytes"));
}

/// A field that some hash has beside those of its table is found whatever becomes of the table.
#[test]
fn no_name_of_a_table_hides_a_field_that_a_hash_had_before() {
    let server = Server::start(&[]);
    let mut client = server.client();
    for n in 0..256 {
        assert_eq!(client.run(&format!("HSET t:1 field{n} v")), "1");
    }
    assert_eq!(client.run("HSET t:1 late v"), "1");
    assert!(client.run("HR.ADDFIELD t late bytes").contains("fields beside those of the table"));
    assert!(client.run("HR.RENAMEFIELD t field1 late").contains("fields beside those of the table"));
    assert_eq!(client.run("HR.DROPFIELD t field0"), "OK");
    assert_eq!(client.run("HSET t:2 late w"), "1");
    client.script(&[
        ("HGET t:1 late", "\"v\""),
        ("HGET t:2 late", "\"w\""),
        ("HLEN t:1", "256"),
        ("HSET t:1 late x", "0"),
        ("HGET t:1 late", "\"x\""),
        ("HDEL t:1 late", "1"),
        ("HEXISTS t:1 late", "0"),
        ("HLEN t:1", "255"),
        ("HGETALL t:2", "[\"late\", \"w\"]"),
    ]);
}

/// Fields that are not of the table go with a hash that expires, whoever gave it its expiry, and after a restart.
#[test]
fn overflow_fields_of_hashes_that_expire_are_removed() {
    let clock = clock();
    let server = Server::start_by(&clock, &[]);
    let mut client = server.client();
    let rows = |client: &mut Client| -> u64 {
        let metrics = client.run("HR.METRICS");
        let at = metrics.find("\"rows\", ").unwrap_or_else(|| panic!("{metrics}")) + 8;
        metrics[at..].split([',', ']']).next().unwrap().trim().parse().unwrap()
    };
    assert_eq!(client.run_words(&[b"HSET", b"stays:1", b"\xff", b"v"]), "1");
    let before = rows(&mut client);
    // The round that begins with the server finds those of one, and is at its end then.
    assert_eq!(client.run_words(&[b"HSET", b"first:1", b"\xff", b"v"]), "1");
    assert_eq!(client.run("PEXPIRE first:1 1"), "1");
    eventually("they are removed with the first", || {
        clock.advance_ms(61_000);
        rows(&mut client) == before
    });
    for n in 0..10u32 {
        let key = format!("odd:{n}");
        assert_eq!(client.run_words(&[b"HSET", key.as_bytes(), b"\xff\0", b"v", b"f", b"w"]), "2");
        assert_eq!(client.run(&format!("PEXPIRE {key} {}", 1_000 * (1 + n % 3) * (1 + n / 7 * 100))), "1");
    }
    assert_eq!(client.run("COPY odd:1 odd:copy"), "1");
    // Others have their expiry first, in a table that has such fields and in one that has none yet.
    for key in ["odd:late", "none:1"] {
        client.script(&[(&format!("HSET {key} f w"), "1"), (&format!("EXPIRE {key} 500"), "1")]);
    }
    clock.advance_ms(61_000);
    for key in ["odd:late", "none:1"] {
        assert_eq!(client.run_words(&[b"HSET", key.as_bytes(), b"\xff", b"v"]), "1");
    }
    assert!(rows(&mut client) >= before + 8);
    eventually("they are removed with their hashes", || {
        clock.advance_ms(61_000);
        rows(&mut client) == before
    });
    assert_eq!(client.run("DBSIZE"), "1");
    assert_eq!(client.run_words(&[b"HGET", b"stays:1", b"\xff"]), "\"v\"");
}

#[test]
fn hashes_of_many_fields_survive_a_restart() {
    let dir = TempDir::new();
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    let count = 2000;
    for index in 0..count {
        client.send(&[b"HSET", b"big:1", format!("field{index}").as_bytes(), index.to_string().as_bytes()]);
    }
    (0..count).for_each(|_| assert_eq!(client.reply(), "1"));
    drop(client);
    server.stop();
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    assert_eq!(client.run("HLEN big:1"), count.to_string());
    for index in [0, 255, 256, 1999] {
        assert_eq!(client.run(&format!("HGET big:1 field{index}")), format!("\"{index}\""));
    }
    let (mut cursor, mut seen) = ("0".to_string(), BTreeSet::new());
    loop {
        let reply = client.run(&format!("HSCAN big:1 {cursor} COUNT 100 NOVALUES"));
        let words: Vec<&str> = reply.split('"').filter(|word| word.len() > 2 || *word == "0").collect();
        cursor = words[0].to_string();
        seen.extend(words[1..].iter().filter(|word| word.starts_with("field")).map(|word| word.to_string()));
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), count);
    assert_eq!(client.run("HSET big:1 field1999 x new y"), "1");
    assert_eq!(client.run("HGET big:1 field1999"), "\"x\"");
}

#[test]
fn keys() {
    let server = Server::start(&[]);
    let mut client = server.client();
    client.script(&[
        ("RANDOMKEY", "nil"),
        ("MSET a 1 b 2", "OK"),
        ("HSET users:1 f v", "1"),
        ("EXISTS a a users:1 nope", "3"),
        ("TOUCH a nope", "1"),
        ("KEYS *", "[\"users:1\", \"a\", \"b\"]"),
        ("KEYS user*", "[\"users:1\"]"),
        ("KEYS users:2*", "[]"),
        ("SCAN 0 COUNT 100 TYPE hash", "[\"0\", [\"users:1\"]]"),
        ("SCAN 0 COUNT 100 TYPE list", "[\"0\", []]"),
        ("SCAN x", "(ERR invalid cursor)"),
        ("RENAME a users:2", "OK"),
        ("TYPE users:2", "string"),
        ("RENAME nope x", "(ERR no such key)"),
        ("RENAMENX users:1 b", "0"),
        ("RENAMENX users:1 users:3", "1"),
        ("HGETALL users:3", "[\"f\", \"v\"]"),
        ("COPY users:3 people:3", "1"),
        ("COPY users:3 people:3", "0"),
        ("HSET users:3 f w", "0"),
        ("COPY users:3 people:3 REPLACE", "1"),
        ("HGETALL people:3", "[\"f\", \"w\"]"),
        ("COPY users:3 people:3 DB 16", "(ERR DB index is out of range)"),
        ("COPY users:3 users:3", "(ERR source and destination objects are the same)"),
        ("OBJECT ENCODING b", "\"int\""),
        ("OBJECT ENCODING users:3", "\"listpack\""),
        ("OBJECT REFCOUNT b", "1"),
        ("OBJECT ENCODING nope", "nil"),
        ("UNLINK b users:3 nope", "2"),
        ("DBSIZE", "2"),
        ("FLUSHDB", "OK"),
        ("DBSIZE", "0"),
    ]);
    assert!(client.run("MEMORY USAGE nope") == "nil");
    client.run("SET k v");
    assert!(client.run("MEMORY USAGE k").parse::<u64>().unwrap() > 0);
    assert_eq!(client.run("RANDOMKEY"), "\"k\"");
}

#[test]
fn databases_are_apart() {
    let dir = TempDir::new();
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    client.script(&[
        ("SET k zero", "OK"),
        ("HSET users:1 f zero", "1"),
        ("SELECT 3", "OK"),
        ("GET k", "nil"),
        ("SET k three", "OK"),
        ("HSET users:1 f three", "1"),
        ("SELECT 16", "(ERR DB index is out of range)"),
        ("SELECT x", "(ERR value is not an integer or out of range)"),
        ("COPY k k DB 4", "1"),
    ]);
    server.stop();
    let server = Server::start_on(dir.path(), &[]);
    server.client().script(&[
        ("GET k", "\"zero\""),
        ("HGET users:1 f", "\"zero\""),
        ("SELECT 3", "OK"),
        ("GET k", "\"three\""),
        ("HGET users:1 f", "\"three\""),
        ("FLUSHDB", "OK"),
        ("DBSIZE", "0"),
        ("SELECT 4", "OK"),
        ("GET k", "\"three\""),
        ("SELECT 0", "OK"),
        ("DBSIZE", "2"),
        ("FLUSHALL", "OK"),
        ("DBSIZE", "0"),
    ]);
}

#[test]
fn keys_expire() {
    on_every_store(keys_expire_on);
}

fn keys_expire_on(store: Store) {
    let clock = clock();
    let server = store.start_by(&clock, &[]);
    let mut client = server.client();
    client.script(&[
        ("SET k v PX 1000", "OK"),
        ("HSET h:1 f v", "1"),
        ("PEXPIRE h:1 1000", "1"),
        ("SET keep v", "OK"),
        ("EXPIRE keep 100 XX", "0"),
        ("EXPIRE keep 100 NX", "1"),
        ("EXPIRE keep 50 GT", "0"),
        ("EXPIRE keep 50 LT", "1"),
        ("EXPIRE keep 50 NX XX", "(ERR NX and XX, GT or LT options at the same time are not compatible)"),
        ("EXPIRE keep 50 AB", "(ERR Unsupported option AB)"),
        ("PERSIST keep", "1"),
        ("PERSIST keep", "0"),
        ("EXPIREAT keep 33177117420", "1"),
        ("EXPIRETIME keep", "33177117420"),
        ("PEXPIRETIME keep", "33177117420000"),
        ("EXPIRE keep 9223372036854775807", "(ERR invalid expire time in 'expire' command)"),
        ("TTL nope", "-2"),
        ("DBSIZE", "3"),
    ]);
    clock.advance_ms(999);
    client.script(&[("GET k", "\"v\""), ("PTTL k", "1"), ("PTTL h:1", "1"), ("EXISTS k h:1", "2")]);
    clock.advance_ms(1);
    client.script(&[("GET k", "nil"), ("HGETALL h:1", "[]"), ("TTL h:1", "-2"), ("EXISTS k h:1", "0")]);
    // They also go when nobody asks for them.
    eventually("expired keys are counted no more", || client.run("DBSIZE") == "1");
}

#[test]
fn fields_expire() {
    on_every_store(fields_expire_on);
}

fn fields_expire_on(store: Store) {
    let clock = clock();
    let server = store.start_by(&clock, &[]);
    let mut client = server.client();
    assert_eq!(client.run_words(&[b"HSET", b"h:1", b"a", b"1", b"b", b"2", b"\xff", b"3"]), "3");
    client.script(&[
        ("HPEXPIRE h:1 1000 FIELDS 2 a nope", "[1, -2]"),
        ("HTTL h:1 FIELDS 2 b nope", "[-1, -2]"),
        ("HEXPIRE h:1 100 NX FIELDS 1 b", "[1]"),
        ("HEXPIRE h:1 100 NX FIELDS 1 b", "[0]"),
        ("HTTL h:1 FIELDS 1 b", "[100]"),
        ("HPERSIST h:1 FIELDS 2 b nope", "[1, -2]"),
        ("HPERSIST h:1 FIELDS 1 b", "[-1]"),
        ("HEXPIRE h:1 10 FIELDS 2 a", "(ERR The `numfields` parameter must match the number of arguments)"),
        ("HEXPIRE h:1 10 FIELDS 0 a", "(ERR Parameter `numFields` should be greater than 0)"),
        (
            "HEXPIRE h:1 10 FIELD 1 a",
            "(ERR Mandatory argument FIELDS is missing or not at the right position)",
        ),
        ("HEXPIRE nope:1 10 FIELDS 1 a", "[-2]"),
        ("HSETEX h:1 FNX EX 100 FIELDS 1 b x", "0"),
        ("HSETEX h:1 EX 100 FIELDS 1 c x", "1"),
        ("HTTL h:1 FIELDS 1 c", "[100]"),
        ("HINCRBY h:1 b 1", "3"),
        ("HGETEX h:1 PERSIST FIELDS 1 c", "[\"x\"]"),
        ("HTTL h:1 FIELDS 1 c", "[-1]"),
        ("HSETEX h:1 PX 1000 FIELDS 2 b 1 c 2", "1"),
    ]);
    // Times of fields are rounded up, may be now, and no later than Redis has bits for.
    client.script(&[
        ("HSET h:2 a 1 b 2 c 3", "3"),
        ("HPEXPIRE h:2 1400 FIELDS 1 a", "[1]"),
        ("HTTL h:2 FIELDS 1 a", "[2]"),
        ("HPEXPIREAT h:2 1900000000400 FIELDS 1 b", "[1]"),
        ("HEXPIRETIME h:2 FIELDS 1 b", "[1900000001]"),
        ("HGETEX h:2 EX 0 FIELDS 1 b", "[\"2\"]"),
        ("HSETEX h:2 EX 0 FIELDS 1 c 4", "1"),
        ("HGETALL h:2", "[\"a\", \"1\"]"),
        ("HSETEX h:2 EXAT 99999999999 FIELDS 1 a 5", "(ERR invalid expire time in 'hsetex' command)"),
        ("HGETEX h:2 PXAT 99999999999999 FIELDS 1 a", "(ERR invalid expire time in 'hgetex' command)"),
        ("HEXPIRE h:2 -1 FIELDS 1 a", "(ERR invalid expire time, must be >= 0)"),
        ("HEXPIRE h:2 -9223372036854775808 FIELDS 1 a", "(ERR invalid expire time, must be >= 0)"),
        ("HSETEX h:2 PX -1 FIELDS 1 a 5", "(ERR invalid expire time, must be >= 0)"),
        ("HEXPIRE h:2 0 FIELDS 1 a", "[2]"),
        ("EXISTS h:2", "0"),
    ]);
    assert_eq!(client.run_words(&[b"HPEXPIRE", b"h:1", b"1000", b"FIELDS", b"1", b"\xff"]), "[1]");
    assert_eq!(client.run("HLEN h:1"), "4");
    clock.advance_ms(999);
    client.script(&[("HLEN h:1", "4"), ("HPTTL h:1 FIELDS 1 b", "[1]"), ("EXISTS h:1", "1")]);
    clock.advance_ms(1);
    client.script(&[("HLEN h:1", "0"), ("HGETALL h:1", "[]"), ("EXISTS h:1", "0"), ("KEYS *", "[]")]);
    eventually("a hash without fields is counted no more", || client.run("DBSIZE") == "0");
}

/// From when the last field of a hash has expired there is no key, whether somebody has removed what is left or not: what is written then is a new key, of any type, without an expiry.
#[test]
fn a_hash_whose_fields_have_expired_is_no_key() {
    on_every_store(a_hash_whose_fields_have_expired_is_no_key_on);
}

fn a_hash_whose_fields_have_expired_is_no_key_on(store: Store) {
    let clock = clock();
    let server = store.start_by(&clock, &[]);
    let mut client = server.client();
    // So many that most are not removed yet when they are written again.
    let keys = || 0..1500;
    let run_all = |client: &mut Client, commands: &dyn Fn(usize) -> Vec<(String, &'static str)>| {
        let all: Vec<(String, &str)> = keys().flat_map(commands).collect();
        let lines: String = all.iter().map(|(command, _)| format!("{command}\r\n")).collect();
        client.send_raw(lines.as_bytes());
        for (command, expected) in all {
            assert_eq!(client.reply(), expected, "{command}");
        }
    };
    run_all(&mut client, &|n| {
        vec![
            (format!("HSET k{n} f v"), "1"),
            (format!("EXPIRE k{n} 100"), "1"),
            (format!("HPEXPIRE k{n} 1000 FIELDS 1 f"), "[1]"),
        ]
    });
    clock.advance_ms(1000);
    run_all(&mut client, &|n| match n % 3 {
        0 => vec![
            (format!("HSET k{n} g 1"), "1"),
            (format!("TTL k{n}"), "-1"),
            (format!("HGETALL k{n}"), "[\"g\", \"1\"]"),
        ],
        1 => vec![
            (format!("INCR k{n}"), "1"),
            (format!("HSET k{n} g 1"), WRONG_TYPE),
            (format!("TTL k{n}"), "-1"),
            (format!("DEL k{n}"), "1"),
            (format!("EXISTS k{n}"), "0"),
        ],
        _ => vec![
            (format!("APPEND k{n} abc"), "3"),
            (format!("TYPE k{n}"), "string"),
            (format!("HINCRBY k{n} g 1"), WRONG_TYPE),
            (format!("DEL k{n}"), "1"),
            (format!("HINCRBY k{n} g 1"), "1"),
            (format!("TTL k{n}"), "-1"),
        ],
    });
}

/// The same in a transaction, whose writes are made together.
#[test]
fn a_transaction_writes_no_field_onto_what_has_expired() {
    let clock = clock();
    let server = Server::start_by(&clock, &[]);
    let mut client = server.client();
    for n in 0..1500 {
        client.send_raw(
            format!("HSET k{n} f v\r\nEXPIRE k{n} 100\r\nHPEXPIRE k{n} 1000 FIELDS 1 f\r\n").as_bytes(),
        );
    }
    (0..4500).for_each(|_| drop(client.reply()));
    clock.advance_ms(1000);
    let writes: String = (0..1500).map(|n| format!("HSET k{n} g {n}\r\n")).collect();
    client.send_raw(format!("MULTI\r\n{writes}EXEC\r\n").as_bytes());
    (0..1502).for_each(|_| drop(client.reply()));
    for n in [0, 700, 1499] {
        assert_eq!(client.run(&format!("TTL k{n}")), "-1");
        assert_eq!(client.run(&format!("HGETALL k{n}")), format!("[\"g\", \"{n}\"]"));
    }
}

#[test]
fn declared_tables_are_typed() {
    let dir = TempDir::new();
    let server = Server::start_on(dir.path(), &[]);
    server.client().script(&[
        ("HR.CREATE items name string price f64 stock u32 NULLABLE code bytes(4) NULLABLE", "OK"),
        ("HR.CREATE items name string", "(ERR table 'items' exists already)"),
        ("HR.CREATE bad name text", "(ERR unknown type 'text': types are bool, i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, timestamp, bytes, bytes(N), string)"),
        ("HSET items:1 name chair price 10.50", "2"),
        ("HSET items:1 stock -1", "(ERR field 'stock' of table 'items' is u32: '-1' does not fit)"),
        ("HSET items:1 code abc", "(ERR field 'code' of table 'items' is bytes(4): 'abc' does not fit)"),
        ("HSET items:1 colour red", "(ERR table 'items' has no field 'colour': its schema is declared, HR.SCHEMA shows it and HR.ADDFIELD extends it)"),
        ("HSET items:1 stock 7", "1"),
        ("HINCRBY items:1 stock 5", "12"),
        ("HINCRBYFLOAT items:1 price 0.25", "\"10.75\""),
        ("HGETALL items:1", "[\"name\", \"chair\", \"price\", \"10.75\", \"stock\", \"12\"]"),
        ("HDEL items:1 name", "(ERR a field of that table's schema is not NULLABLE: it can not be removed, see HR.SCHEMA)"),
        ("HDEL items:1 stock", "1"),
        ("HSET items:2 name table price 3", "2"),
        ("HSET items:3 name lamp price 5", "2"),
        ("HR.ADDFIELD items colour string", "OK"),
        ("HSET items:2 colour red", "1"),
        ("HR.RENAMEFIELD items colour tint", "OK"),
        ("HGET items:2 tint", "\"red\""),
        ("HR.SCAN items FROM 2 FIELDS 2 name tint", "[[\"2\", [\"name\", \"table\", \"tint\", \"red\"]], [\"3\", [\"name\", \"lamp\", \"tint\", nil]]]"),
        ("HR.SCAN items REVERSE LIMIT 1 FIELDS 1 price", "[[\"3\", [\"price\", \"5\"]]]"),
        ("HR.SCAN items TO 2 FIELDS 1 price", "[[\"1\", [\"price\", \"10.75\"]]]"),
        ("HR.SCAN items PREFIX 2 FROM 1 TO 9 FIELDS 1 price", "[[\"2\", [\"price\", \"3\"]]]"),
        ("HR.SCAN nope", "(ERR no such table 'nope')"),
        ("HR.DROPFIELD items tint", "OK"),
        ("FLUSHALL", "OK"),
    ]);
    server.stop();
    let server = Server::start_on(dir.path(), &[]);
    server.client().script(&[
        ("HR.TABLES", "[\"items\", [\"rows\", 0, \"fields\", 4, \"open\", 0]]"),
        ("HELLO 2", "[\"server\", \"redis\", \"version\", \"8.0.0\", \"proto\", 2, \"id\", 1, \"mode\", \"standalone\", \"role\", \"master\", \"modules\", []]"),
        ("HR.DROP items", "1"),
        ("HR.DROP items", "0"),
        ("HSET items:1 anything goes", "1"),
    ]);
}

/// Whoever drops the last field of hashes has removed them, before a restart and after.
#[test]
fn a_hash_whose_last_field_was_dropped_is_no_key() {
    let dir = TempDir::new();
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    client.script(&[
        ("HSET users:1 age 5", "1"),
        ("HSET users:2 age 6 name Ada", "2"),
        ("HR.CREATE typed n i64 gone i64 NULLABLE", "OK"),
        ("HSET typed:1 n 1", "1"),
        ("HR.DROPFIELD users none", "(ERR there is no field \"none\")"),
        ("HR.DROPFIELD typed gone", "OK"),
        ("EXPIRE users:1 1000", "1"),
        ("HR.DROPFIELD users age", "OK"),
        ("EXISTS users:1 users:2 typed:1", "2"),
        ("TYPE users:1", "none"),
        ("KEYS users:*", "[\"users:2\"]"),
        ("HR.SCAN users", "[[\"2\", [\"name\", \"Ada\"]]]"),
        ("INCR users:1", "1"),
        ("DEL users:1", "1"),
        ("HSET users:3 name Eve", "1"),
    ]);
    drop(client);
    server.stop();
    let server = Server::start_on(dir.path(), &["--read-only"]);
    server.client().script(&[("EXISTS users:1 users:2 users:3", "2"), ("TTL users:1", "-2")]);
    drop(server);
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    client.script(&[("HR.DROPFIELD users name", "OK"), ("EXISTS users:2", "0"), ("HSET users:2 age 1", "1")]);
    eventually("what is left of the others is removed", || client.run("DBSIZE") == "2");
    client.script(&[("HGETALL users:2", "[\"age\", \"1\"]"), ("HGETALL typed:1", "[\"n\", \"1\"]")]);
}

/// A table that has as many fields as there may be has no room for what tells of hashes without any, until the field is gone.
#[test]
fn a_field_of_a_table_with_all_it_may_have_is_dropped() {
    let dir = TempDir::new();
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    let fields: Vec<String> = (0..1_024).map(|n| format!("f{n} i64 NULLABLE")).collect();
    assert_eq!(client.run(&format!("HR.CREATE wide {}", fields.join(" "))), "OK");
    client.script(&[
        ("HSET wide:1 f0 5", "1"),
        ("HSET wide:2 f0 6 f1023 7", "2"),
        ("HR.DROPFIELD wide f0", "OK"),
        ("EXISTS wide:1", "0"),
        ("HGETALL wide:2", "[\"f1023\", \"7\"]"),
        ("HR.DROPFIELD wide f0", "(ERR there is no field \"f0\")"),
        ("HR.DROPFIELD wide f1", "OK"),
        ("HR.ADDFIELD wide f0 i64", "OK"),
        ("HGETALL wide:2", "[\"f1023\", \"7\"]"),
    ]);
    drop(client);
    server.stop();
    let server = Server::start_on(dir.path(), &[]);
    server.client().script(&[("EXISTS wide:1", "0"), ("HGETALL wide:2", "[\"f1023\", \"7\"]")]);
}

#[test]
fn resp3_has_types_of_its_own() {
    on_every_store(resp3_has_types_of_its_own_on);
}

fn resp3_has_types_of_its_own_on(store: Store) {
    let server = store.start(&[]);
    let mut client = server.client();
    client.run("HSET h f v");
    assert!(client.run("HELLO 3").starts_with("{\"server\": \"redis\""));
    client.script(&[
        ("HGETALL h", "{\"f\": \"v\"}"),
        ("GET nope", "nil"),
        ("HRANDFIELD h 1 WITHVALUES", "[[\"f\", \"v\"]]"),
        ("CONFIG GET maxclients", "{\"maxclients\": \"10000\"}"),
        ("HELLO 4", "(NOPROTO unsupported protocol version)"),
        ("RESET", "RESET"),
        ("HGETALL h", "[\"f\", \"v\"]"),
    ]);
}

#[test]
fn scans_see_every_key_that_stays() {
    on_every_store(scans_see_every_key_that_stays_on);
}

fn scans_see_every_key_that_stays_on(store: Store) {
    let server = store.start(&[]);
    let mut client = server.client();
    let mut expected = BTreeSet::new();
    for index in 0..300 {
        let (string, hash) = (format!("s{index}"), format!("t{}:{index}", index % 7));
        client.run(&format!("SET {string} v"));
        client.run(&format!("HSET {hash} f v"));
        expected.extend([string, hash]);
    }
    let (mut cursor, mut seen, mut turn) = ("0".to_string(), BTreeSet::new(), 0);
    loop {
        let reply = client.run(&format!("SCAN {cursor} COUNT 7"));
        let words: Vec<&str> = reply.split('"').skip(1).step_by(2).collect();
        cursor = words[0].to_string();
        seen.extend(words[1..].iter().map(|word| word.to_string()));
        if cursor == "0" {
            break;
        }
        // Others come and go meanwhile.
        client.run(&format!("SET extra{turn} v"));
        client.run(&format!("HSET extra{}:{turn} f v", turn % 9));
        client.run(&format!("DEL extra{}", turn - turn % 3));
        // And a hash becomes a string, which is no reason to miss its key.
        let index = turn * 13 % 300;
        client.run(&format!("SET t{}:{index} v", index % 7));
        turn += 1;
    }
    assert!(expected.is_subset(&seen), "missed {:?}", expected.difference(&seen).collect::<Vec<_>>());
    // A cursor nobody gave out means the beginning.
    assert!(client.run("SCAN 12345 COUNT 2000 MATCH s1").ends_with("[\"s1\"]]"));
}

#[test]
fn connections_and_introspection() {
    let server = Server::start(&[]);
    let mut client = server.client();
    client.script(&[
        ("PING", "PONG"),
        ("PING hi", "\"hi\""),
        ("ECHO x", "\"x\""),
        ("CLIENT GETNAME", "nil"),
        ("CLIENT SETNAME worker", "OK"),
        ("CLIENT GETNAME", "\"worker\""),
        ("CLIENT SETINFO LIB-NAME test", "OK"),
        ("CLIENT ID", "1"),
        ("CLIENT NO-EVICT ON", "OK"),
        ("CLIENT NOPE", "(ERR unknown subcommand 'NOPE'. Try CLIENT HELP.)"),
        ("CLIENT", "(ERR wrong number of arguments for 'client' command)"),
        ("GET", "(ERR wrong number of arguments for 'get' command)"),
        ("LPUSH a b", "(ERR unknown command 'LPUSH', with args beginning with: 'a' 'b' )"),
        ("COMMAND GETKEYS MSET a 1 b 2", "[\"a\", \"b\"]"),
        ("COMMAND INFO nope", "[nil]"),
        ("CONFIG SET slowlog-log-slower-than 0", "OK"),
        ("CONFIG SET port 1", "(ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config)"),
        ("CONFIG SET timeout 1 TIMEOUT 2", "(ERR CONFIG SET failed (possibly related to argument 'TIMEOUT') - duplicate parameter)"),
        ("CONFIG SET nope 1", "(ERR Unknown option or number of arguments for CONFIG SET - 'nope')"),
        ("CONFIG GET slowlog-log*", "[\"slowlog-log-slower-than\", \"0\"]"),
        ("CONFIG RESETSTAT", "OK"),
        ("FUNCTION FLUSH", "OK"),
        ("WAIT 0 0", "0"),
        ("SAVE", "OK"),
        ("BGSAVE", "Background saving started"),
        ("AUTH x", "(ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?)"),
        ("DEBUG SLEEP 1", "(ERR unknown command 'DEBUG', with args beginning with: 'SLEEP' '1' )"),
    ]);
    assert!(client.run("CLIENT LIST").contains("name=worker"));
    assert!(client.run("CLIENT INFO").contains("lib-name=test"));
    assert!(client.run("INFO").contains("redis_version:8.0.0"));
    assert!(client.run("INFO commandstats").contains("cmdstat_wait:calls=1,"));
    assert!(client.run("SLOWLOG GET 2").contains("INFO"));
    assert!(client.run("COMMAND DOCS hr.scan").contains("in order"));
    assert!(client.run("COMMAND COUNT").parse::<u32>().unwrap() > 100);
    assert!(client.run("TIME").starts_with("[\"1"));
    assert!(client.run("LASTSAVE").parse::<u64>().unwrap() > 1_700_000_000);
    let mut other = server.client();
    assert_eq!(other.run("CLIENT ID"), "2");
    assert_eq!(client.run("CLIENT KILL ID 2"), "1");
    assert_eq!(other.try_reply(), None);
    client.send(&[b"CLIENT", b"REPLY", b"OFF"]);
    client.send(&[b"PING"]);
    client.send(&[b"CLIENT", b"REPLY", b"SKIP"]);
    (0..3).for_each(|_| client.send(&[b"PING"]));
    assert_eq!(client.run("CLIENT REPLY ON"), "OK");
    assert_eq!(client.run("QUIT"), "OK");
    assert_eq!(client.try_reply(), None);
}

#[test]
fn inline_commands_and_split_bytes() {
    on_every_store(inline_commands_and_split_bytes_on);
}

fn inline_commands_and_split_bytes_on(store: Store) {
    let server = store.start(&[]);
    let mut client = server.client();
    client.send_raw(b"SET key \"two words\"\r\nGET key\nPI");
    assert_eq!(client.reply(), "OK");
    assert_eq!(client.reply(), "\"two words\"");
    std::thread::sleep(Duration::from_millis(30));
    client.send_raw(b"NG\r\n");
    assert_eq!(client.reply(), "PONG");
    for byte in b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n" {
        client.send_raw(&[*byte]);
    }
    assert_eq!(client.reply(), "\"two words\"");
}

/// Commands on so few keys that most of those looked up ahead are changed by others of the same pipeline.
fn tangled_commands(count: usize) -> Vec<Vec<u8>> {
    let mut random = Random::from_seed(1);
    let mut below = |end: usize| random.below(end as u64) as usize;
    let keys = ["a:1", "a:2", "b:1", "plain", "other:key:000001", "other:key:000002"];
    let mut commands = Vec::new();
    for number in 0..count {
        let (key, field, value) = (keys[below(keys.len())], format!("f{}", below(4)), number.to_string());
        let line = match below(16) {
            0 => format!("SET {key} {value}"),
            1 | 2 => format!("GET {key}"),
            3 => format!("DEL {key}"),
            4 => format!("HDEL {key} {field}"),
            5..=8 => format!("HSET {key} {field} {value}"),
            9 => format!("HMSET {key} {field} {value} f1 x"),
            10..=12 => format!("HGET {key} {field}"),
            13 => format!("HMGET {key} f0 {field} none"),
            14 => format!("HVALS {key}"),
            _ => ["MULTI", "EXEC", "HR.DROP other", "PING"][below(4)].to_owned(),
        };
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        commands.push(encode(&words));
    }
    commands
}

#[test]
fn a_pipeline_answers_as_its_commands_one_by_one() {
    on_every_store(a_pipeline_answers_as_its_commands_one_by_one_on);
}

fn a_pipeline_answers_as_its_commands_one_by_one_on(store: Store) {
    let server = store.start(&["--durability", "process"]);
    let (mut alone, mut together) = (server.client(), server.client());
    assert_eq!(together.run("SELECT 1"), "OK");
    let commands = tangled_commands(6_000);
    for chunk in commands.chunks(100) {
        together.send_raw(&chunk.concat());
        for command in chunk {
            alone.send_raw(command);
            assert_eq!(together.reply(), alone.reply(), "{}", command.escape_ascii());
        }
    }
}

#[test]
fn many_prefixes_share_a_table_in_the_end() {
    let dir = TempDir::new();
    let server = Server::start_on(dir.path(), &["--durability", "process"]);
    let mut client = server.client();
    let count = 1100;
    for index in 0..count {
        client.send(&[b"HSET", format!("p{index}:1").as_bytes(), b"f", index.to_string().as_bytes()]);
    }
    (0..count).for_each(|_| assert_eq!(client.reply(), "1"));
    assert_eq!(client.run("DBSIZE"), count.to_string());
    assert_eq!(client.run("HGET p1099:1 f"), "\"1099\"");
    // A prefix with rows in the shared table can have no table of its own while they are there.
    assert!(client.run("HR.CREATE p1099 f string").contains("are in the shared table"));
    assert_eq!(client.run("HR.DROP p0"), "1");
    assert_eq!(client.run("HSET p1099:2 f v"), "1");
    assert_eq!(client.run("DEL p1099:1 p1099:2"), "2");
    assert_eq!(client.run("HR.CREATE p1099 f string"), "OK");
    drop(client);
    server.stop();
    let server = Server::start_on(dir.path(), &[]);
    assert_eq!(server.client().run("HGET p1098:1 f"), "\"1098\"");
    assert_eq!(server.client().run("DBSIZE"), (count - 2).to_string());
}

/// That some prefix has to share a table keeps no other from having its own, also when several of its keys were looked up together
/// before there was one.
#[test]
fn a_prefix_has_a_table_though_others_share_one() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let shared = format!("{}:1", "a".repeat(129));
    client.script(&[
        (&format!("HSET {shared} f v"), "1"),
        ("HSET users:1 name Ada", "1"),
        ("HR.TABLES", "[\"users\", [\"rows\", 1, \"fields\", 1, \"open\", 1]]"),
        ("SET items:0 string", "OK"),
        ("HSET items:0 n 0", "(WRONGTYPE Operation against a key holding the wrong kind of value)"),
        ("WATCH items:9", "OK"),
    ]);
    let lines =
        ["HGET items:3 n", "HSET items:1 n 1", "HSET items:2 n 2", "HGET items:2 n", "HSET items:3 n 3"];
    let words = |line: &'static str| line.split(' ').map(str::as_bytes).collect::<Vec<_>>();
    client.send_raw(&lines.map(|line| encode(&words(line))).concat());
    assert_eq!([(); 5].map(|()| client.reply()), ["nil", "1", "1", "\"2\"", "1"]);
    client.script(&[
        ("MULTI", "OK"),
        ("HSET items:9 n 9", "QUEUED"),
        ("HSET others:1 n 1", "QUEUED"),
        ("EXEC", "[1, 1]"),
        ("HGET items:1 n", "\"1\""),
        ("HGET items:3 n", "\"3\""),
        ("HGET items:9 n", "\"9\""),
        ("HGET others:1 n", "\"1\""),
        ("HSCAN items:2 0", "[\"0\", [\"n\", \"2\"]]"),
        (&format!("HSET {shared} g w"), "1"),
        ("DBSIZE", "8"),
    ]);
    let tables = client.run("HR.TABLES");
    assert!(
        tables.contains("\"items\", [\"rows\", 4,") && tables.contains("\"others\", [\"rows\", 1,"),
        "{tables}"
    );
}

/// Which of two errors is told, and what is looked at first, is as in Redis.
#[test]
fn times_are_looked_at_last() {
    on_every_store(times_are_looked_at_last_on);
}

fn times_are_looked_at_last_on(store: Store) {
    let server = store.start(&[]);
    server.client().script(&[
        ("SET s v EX 0 PX 5", "(ERR syntax error)"),
        ("SET s v EX -1 EXAT abc", "(ERR syntax error)"),
        ("SET s v EX x KEEPTTL", "(ERR syntax error)"),
        ("SET s v EX 0 NX", "(ERR invalid expire time in 'set' command)"),
        ("SET s v", "OK"),
        ("HSET h f v", "1"),
        ("GETEX none PX 0", "nil"),
        ("GETEX none PX abc", "nil"),
        ("GETEX h EX -1", "(WRONGTYPE Operation against a key holding the wrong kind of value)"),
        ("GETEX s EX 0", "(ERR invalid expire time in 'getex' command)"),
        ("GETEX s EX 10 PERSIST", "(ERR syntax error)"),
        ("GETEX s EX 100", "\"v\""),
        ("TTL s", "100"),
        (
            "HRANDFIELD h -9223372036854775808",
            "(ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807)",
        ),
        ("SET n -9223372036854775808", "OK"),
        ("INCRBYFLOAT n 1.0e-5", "\"-9223372036854775807.99999\""),
    ]);
}
