//! The server over a store of pairs where a command, a key or a pair is not as usual: transactions that look at more than their key, damage, names, many of
//! something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hedgerow_row::backend::memory::MemoryBackend;
use hedgerow_row::backend::{Answer, Backend, Command, Expect, pair_key};
use hedgerow_sim::{BackendFault, FailingBackend, eventually};

use crate::client::{Client, Server, clock};
use crate::slow_pairs::{SlowBackend, Stuck, StuckBackend};

fn server() -> Server {
    Server::start_over_pairs(&MemoryBackend::default(), &clock(), &[])
}

const CROSSSLOT: &str = "(CROSSSLOT this store changes one key at a time: a command or transaction that changes a key can have no other keys)";

/// Starts a command at the backend and takes its answer.
fn answer(backend: &MemoryBackend, command: Command<'_>) -> Answer {
    let mut session = backend.session().unwrap();
    session.start(command).unwrap();
    session.wait(Duration::from_secs(60)).unwrap();
    let mut answered = Vec::new();
    session.poll(&mut answered);
    answered.pop().unwrap().1.unwrap()
}

/// What a transaction reads or changes without naming it is no part of the one row that it may change.
#[test]
fn a_transaction_that_writes_looks_at_one_key_only() {
    let server = server();
    let mut client = server.client();
    client.script(&[("SET a 1", "OK"), ("HR.CREATE typed n u8 NULLABLE", "OK")]);
    for queued in [
        &["GET a", "FLUSHALL", "GET a"][..],
        &["HSET typed:1 n 1", "FLUSHALL"],
        &["SET k 1", "KEYS *"],
        &["DBSIZE", "SET k 1"],
        &["SET k 1", "RANDOMKEY"],
        // Neither table is there.
        &["GET nosuch:1", "SET y:1 1"],
        &["GET nosuch:1", "SET k 1"],
        &["SET a 2", "GET b"],
    ] {
        assert_eq!(client.run("MULTI"), "OK");
        queued.iter().for_each(|line| assert_eq!(client.run(line), "QUEUED", "{line}"));
        assert_eq!(client.run("EXEC"), CROSSSLOT, "{queued:?}");
        client.script(&[("GET a", "\"1\""), ("DBSIZE", "1"), ("EXISTS k", "0"), ("EXISTS typed:1", "0")]);
    }
    client.script(&[
        ("MULTI", "OK"),
        ("DBSIZE", "QUEUED"),
        ("GET a", "QUEUED"),
        ("GET nosuch:1", "QUEUED"),
        ("EXEC", "[1, \"1\", nil]"),
        ("MULTI", "OK"),
        ("FLUSHALL", "QUEUED"),
        ("INCR k", "QUEUED"),
        ("EXEC", "[OK, 1]"),
        ("DBSIZE", "1"),
        ("GET k", "\"1\""),
    ]);
}

/// Nothing of a transaction that was refused has happened, the choice of its database included.
#[test]
fn a_refused_transaction_leaves_the_client_where_it_was() {
    let server = server();
    server.client().script(&[
        ("MULTI", "OK"),
        ("SELECT 3", "QUEUED"),
        ("SET a 1", "QUEUED"),
        ("SET b 1", "QUEUED"),
        ("EXEC", CROSSSLOT),
        ("EXEC", "(ERR EXEC without MULTI)"),
        ("SET c 1", "OK"),
        ("SELECT 3", "OK"),
        ("DBSIZE", "0"),
        ("SELECT 0", "OK"),
        ("GET c", "\"1\""),
    ]);
}

/// A key that no row can have is watched like one that is not there.
#[test]
fn keys_that_cannot_be_are_watched() {
    let server = server();
    let mut client = server.client();
    client.script(&[("SET a 1", "OK"), ("SET p:1 1", "OK")]);
    let long = vec![b'k'; 70_000];
    let prefixed = [b"p:", &long[..]].concat();
    for key in [b"".as_slice(), &long, &prefixed] {
        client.send(&[b"WATCH", key]);
        assert_eq!(client.reply(), "OK");
        client.script(&[("MULTI", "OK"), ("GET a", "QUEUED"), ("EXEC", "[\"1\"]")]);
    }
}

/// One pair that is damaged can be removed or written over, and keeps nobody else from expiring.
#[test]
fn damage_is_of_one_key() {
    let (backend, clock) = (MemoryBackend::default(), clock());
    let server = Server::start_over_pairs(&backend, &clock, &[]);
    let mut client = server.client();
    let damage = |key: &[u8]| {
        let found = (1..20)
            .map(|group| pair_key(group, key))
            .find(|key| matches!(answer(&backend, Command::Get { key }), Answer::Got(Some(_))));
        let put = Command::Put { key: &found.unwrap(), value: b"nonsense", expect: Expect::Present };
        assert!(matches!(answer(&backend, put), Answer::Stored(_)));
    };
    for n in 0..300 {
        for table in ["a", "b", "c"] {
            assert_eq!(client.run(&format!("SET {table}:{table}{n} v PX 1000")), "OK");
        }
    }
    client.script(&[("SET b:damaged v", "OK"), ("HSET b:other f v", "1"), ("SET b:third v", "OK")]);
    damage(b"damaged");
    damage(b"other");
    assert!(client.run("GET b:damaged").contains("shorter than the head of a row"));
    clock.advance_ms(2_000);
    eventually("all others are swept", || {
        clock.advance_ms(61_000);
        client.run("DBSIZE") == "3"
    });
    client.script(&[
        ("DEL b:damaged", "1"),
        ("SET b:other v", "OK"),
        ("GET b:other", "\"v\""),
        ("EXISTS b:damaged", "0"),
        ("DBSIZE", "2"),
    ]);
}

/// The names of fields are the server's to spell, also where a schema is declared, and a row whose fields it does not know is not its to remove.
#[test]
fn declared_names_are_spelt_like_others() {
    let (backend, clock) = (MemoryBackend::default(), clock());
    let server = Server::start_over_pairs(&backend, &clock, &[]);
    let mut client = server.client();
    client.script(&[
        ("HR.CREATE t a string NULLABLE %x string NULLABLE", "OK"),
        ("HSET t:1 a v %x w", "2"),
        ("HR.RENAMEFIELD t a %a", "OK"),
        ("HGETALL t:1", "[\"%a\", \"v\", \"%x\", \"w\"]"),
        ("HR.ADDFIELD t %25 string", "OK"),
        ("HSET t:1 %25 u", "1"),
        ("HGET t:1 %25", "\"u\""),
        ("HR.DROPFIELD t %25", "OK"),
        ("HGET t:1 %a", "\"v\""),
    ]);
    assert!(client.run("HR.SCHEMA t").contains("\"name\", \"%a\""));
    let mine = hedgerow_row::pairs::PairDb::open_at(std::sync::Arc::new(backend.clone()), clock.clone());
    let table = mine.table("t").unwrap();
    table.put("library", &hedgerow::row! { a: 1 }).unwrap_err();
    table.put::<&str>("library", &[]).unwrap();
    client.script(&[("SET e:1 v PX 1000", "OK")]);
    clock.advance_ms(2_000);
    eventually("a round of the sweep is done", || {
        clock.advance_ms(61_000);
        mine.table("e").unwrap().is_empty().unwrap()
    });
    for _ in 0..20 {
        clock.advance_ms(61_000);
        client.run("PING");
        thread::sleep(Duration::from_millis(2));
    }
    assert!(table.exists("library").unwrap());
    assert_eq!(client.run("HGET t:1 %a"), "\"v\"");
}

/// Hashes with as many fields as a table can have leave strings their place.
#[test]
fn many_fields_leave_strings_their_place() {
    let server = server();
    let mut client = server.client();
    let names: Vec<String> = (0..1_023).map(|n| format!("f{n}")).collect();
    let mut words = vec![&b"HSET"[..], b"h"];
    names.iter().for_each(|name| words.extend([name.as_bytes(), b"v"]));
    client.send(&words);
    assert_eq!(client.reply(), "1023");
    assert!(client.run("HSET h more v").contains("at most 1024"));
    client.script(&[("SET a 1", "OK"), ("GET a", "\"1\""), ("HLEN h", "1023")]);
    // So many names are compared with each other, if at all, for minutes.
    let names: Vec<String> = (0..200_000).map(|n| format!("f{n}")).collect();
    let mut words = vec![&b"HSET"[..], b"h"];
    names.iter().for_each(|name| words.extend([name.as_bytes(), b"v"]));
    client.send(&words);
    let reply = client.reply();
    assert!(reply.contains("at most"), "{reply}");
    assert_eq!(client.run("HLEN h"), "1023");
}

/// A field that is named again is not compared with all that were named before: it costs as much behind a thousand of them as behind one.
#[test]
fn names_of_fields_are_not_compared_with_each_other() {
    const FIELDS: usize = 1_000;
    const NAMES: usize = 30_000;
    let server = server();
    let mut client = server.client();
    let names: Vec<String> = (0..FIELDS).map(|n| format!("{n:0>200}")).collect();
    let mut words = vec![&b"HSET"[..], b"h"];
    names.iter().for_each(|name| words.extend([name.as_bytes(), b"v"]));
    assert_eq!(client.run_words(&words), FIELDS.to_string());
    let expired = format!("[{}]", ["1"; NAMES].join(", "));
    // The last field, behind these.
    let mut take = |before: &[String]| {
        let count = NAMES.to_string();
        let mut words = vec![&b"HEXPIRE"[..], b"h", b"100", b"FIELDS", count.as_bytes()];
        words.extend(before.iter().map(|name| name.as_bytes()));
        words.resize(5 + NAMES, names[FIELDS - 1].as_bytes());
        let started = Instant::now();
        assert_eq!(client.run_words(&words), expired);
        started.elapsed()
    };
    // The quickest of a few, for the machine may be busy with something else.
    let mut quickest = [Duration::MAX; 2];
    for _ in 0..10 {
        quickest[0] = quickest[0].min(take(&names));
        quickest[1] = quickest[1].min(take(&names[..1]));
    }
    println!("{quickest:?}");
    assert!(quickest[0] < quickest[1] * 3, "{quickest:?} behind {FIELDS} names and behind one");
}

/// What is asked of many keys takes few exchanges, and what EXEC asks together, too.
#[test]
fn many_keys_are_got_together() {
    let backend = SlowBackend::default();
    let server = Server::start_over_pairs(&backend, &clock(), &[]);
    let mut client = server.client();
    assert_eq!(client.run("SET k7 v"), "OK");
    let keys: Vec<String> = (0..5_000).map(|n| format!("k{n}")).collect();
    let mut words = vec![&b"EXISTS"[..]];
    words.extend(keys.iter().map(String::as_bytes));
    let before = backend.exchanges();
    client.send(&words);
    assert_eq!(client.reply(), "1");
    let asked = backend.exchanges() - before;
    // Of 64 keys each, as many as may be under way; a poll brings some of the answers, so what is started then makes more of it.
    assert!((5_000 / 64..3 * 5_000 / 64).contains(&asked), "{asked} exchanges");
    client.script(&[("MULTI", "OK")]);
    (0..1_000).for_each(|n| assert_eq!(client.run(&format!("GET k{n}")), "QUEUED"));
    let before = backend.exchanges();
    let replies = client.run("EXEC");
    assert_eq!((replies.matches("nil").count(), replies.matches("\"v\"").count()), (999, 1));
    let asked = backend.exchanges() - before;
    // They are looked at again before it is answered.
    assert!(asked < 4 * 1_000 / 64 + 8, "{asked} exchanges for a thousand GETs of one EXEC");
}

/// A cursor of a table that is gone begins the one that has its name now.
#[test]
fn a_scan_goes_on_in_a_table_made_anew() {
    let server = server();
    let mut client = server.client();
    (0..100).for_each(|n| assert_eq!(client.run(&format!("SET t:{n} v")), "OK"));
    let reply = client.run("SCAN 0 COUNT 10");
    let cursor = reply.split('"').nth(1).unwrap().to_owned();
    assert_ne!(cursor, "0");
    client.script(&[("FLUSHALL", "OK"), ("SET t:new v", "OK")]);
    assert_eq!(client.run(&format!("SCAN {cursor}")), "[\"0\", [\"t:new\"]]");
}

/// However many wait, what has expired goes.
#[test]
fn the_sweep_has_its_turn() {
    let (backend, clock) = (MemoryBackend::default(), clock());
    let server = Server::start_over_pairs(&backend, &clock, &[]);
    let mut client = server.client();
    (0..2_000).for_each(|n| assert_eq!(client.run(&format!("SET s{n} v PX 1000")), "OK"));
    clock.advance_ms(2_000);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for at in 0..3 {
            let (server, is_done) = (&server, &is_done);
            scope.spawn(move || {
                let mut client = server.client();
                let key = format!("busy{at}");
                while !is_done.load(Ordering::Relaxed) {
                    (0..50).for_each(|_| client.send(&[b"INCR", key.as_bytes()]));
                    (0..50).for_each(|_| drop(client.reply()));
                }
            });
        }
        eventually("all is swept", || {
            clock.advance_ms(61_000);
            number(&client.run("DBSIZE")) <= 3
        });
        is_done.store(true, Ordering::Relaxed);
    });
}

fn number(reply: &str) -> u64 {
    reply.parse().unwrap()
}

/// A number of INFO.
fn info(client: &mut Client, name: &str) -> u64 {
    field(&client.run("INFO all"), name)
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.split("\\r\\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    let value = line.split(',').next().unwrap();
    value.rsplit('=').next().unwrap().parse().unwrap()
}

/// Commands count once, however often they had to be given again: for want of rows, or since somebody came first.
#[test]
fn what_is_given_again_counts_once() {
    let (memory, fails_at) = (MemoryBackend::default(), Arc::new(AtomicU64::new(u64::MAX)));
    let at = Arc::clone(&fails_at);
    let decide = move |command| (command == at.load(Ordering::SeqCst)).then_some(BackendFault::Conflict);
    let failing = FailingBackend::new(Arc::new(memory), decide);
    let server = Server::start_over_pairs(&failing, &clock(), &[]);
    let mut client = server.client();
    client.script(&[("SET k0 1", "OK"), ("SET x 1", "OK"), ("CONFIG RESETSTAT", "OK"), ("MULTI", "OK")]);
    // More than are fetched at once: those before the first that is not there run again.
    (0..300).for_each(|n| assert_eq!(client.run(&format!("GET k{n}")), "QUEUED"));
    client.script(&[("HGET k0 f", "QUEUED"), ("HGET k0 g", "QUEUED")]);
    assert!(client.run("EXEC").contains("WRONGTYPE"));
    let counted = |client: &mut Client, names: [&str; 3]| names.map(|name| info(client, name));
    assert_eq!(counted(&mut client, ["cmdstat_get", "cmdstat_hget", "cmdstat_exec"]), [300, 2, 1]);
    assert_eq!(
        counted(&mut client, ["keyspace_hits", "keyspace_misses", "errorstat_WRONGTYPE"]),
        [1, 299, 2]
    );
    client.script(&[("MULTI", "OK"), ("GET x", "QUEUED"), ("INCR x", "QUEUED"), ("HGET x f", "QUEUED")]);
    // The table and the row are got; then comes the change.
    fails_at.store(failing.commands() + 2, Ordering::SeqCst);
    assert!(client.run("EXEC").starts_with("[\"1\", 2, (WRONGTYPE"));
    assert!(failing.commands() > fails_at.load(Ordering::SeqCst) + 2, "it was done again");
    assert_eq!(counted(&mut client, ["cmdstat_get", "cmdstat_incr", "cmdstat_exec"]), [301, 1, 2]);
    assert_eq!(
        counted(&mut client, ["keyspace_hits", "keyspace_misses", "errorstat_WRONGTYPE"]),
        [2, 299, 3]
    );
    fails_at.store(failing.commands() + 2, Ordering::SeqCst);
    client.script(&[("GETSET x 7", "\"2\""), ("GET x", "\"7\"")]);
    assert_eq!(counted(&mut client, ["cmdstat_getset", "keyspace_hits", "keyspace_misses"]), [1, 4, 299]);
}

/// Waits until the sweep has done its round, and so rests: by a clock that stands still for good.
fn let_the_sweep_rest(failing: &FailingBackend, client: &mut Client) {
    let (mut commands, mut looks) = (failing.commands(), 0);
    eventually("the sweep rests", || {
        assert_eq!(client.run("PING"), "PONG");
        let now = failing.commands();
        looks = if now == commands { looks + 1 } else { 0 };
        commands = now;
        // Half a second: it would have gone on in between.
        looks > 100
    });
}

/// A pause that begins while a command is under way loses nothing of it: neither that nobody knows whether its change was made, nor what it has done to tables. It
/// is not done again when the pause ends.
#[test]
fn a_pause_has_no_command_done_twice() {
    for (line, before_the_step, fault, expected) in [
        // The table and the row are got; then comes the change.
        ("INCR k", 2, Some(BackendFault::AnswerLost), "(ERR it may have been done, or not"),
        // It is looked whether there is such a table; then it is made.
        ("HR.CREATE t n i64", 1, None, "OK"),
    ] {
        let (memory, clock) = (MemoryBackend::default(), clock());
        let held_at = Arc::new(AtomicU64::new(u64::MAX));
        let (is_held, at) = (Arc::new(AtomicBool::new(false)), Arc::clone(&held_at));
        let holds = Arc::clone(&is_held);
        let decide = move |command| {
            if command != at.load(Ordering::SeqCst) {
                return None;
            }
            holds.store(true, Ordering::SeqCst);
            while holds.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            fault
        };
        let failing = FailingBackend::new(Arc::new(memory), decide);
        let server = Server::start_over_pairs(&failing, &clock, &[]);
        let (mut client, mut other) = (server.client(), server.client());
        assert_eq!(client.run("SET k 1"), "OK");
        let_the_sweep_rest(&failing, &mut other);
        held_at.store(failing.commands() + before_the_step, Ordering::SeqCst);
        client.send(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        eventually("its step is under way", || is_held.load(Ordering::SeqCst));
        assert_eq!(other.run("CLIENT PAUSE 100000 WRITE"), "OK");
        is_held.store(false, Ordering::SeqCst);
        // While the others are paused: it is ended, for it was begun.
        let reply = client.reply();
        assert!(reply.starts_with(expected), "{line}: {reply}");
        // What is given in the pause waits for its end.
        client.send(&[b"INCR", b"k"]);
        eventually("it waits", || other.run("CLIENT LIST").contains(" flags=b "));
        assert_eq!(other.run("CLIENT UNPAUSE"), "OK");
        let increments = if line == "INCR k" { 2 } else { 1 };
        assert_eq!(client.reply(), (1 + increments).to_string(), "after {line}");
    }
}

/// A store that does not answer any more holds up who asks it, and not the end of the server: whose change was under way is told that nobody knows, who only
/// read is told nothing.
#[test]
fn a_store_that_never_answers_does_not_keep_the_server_from_stopping() {
    for stuck in [Stuck::Reads, Stuck::Changes] {
        let backend = StuckBackend::new();
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let (mut first, mut second) = (server.client(), server.client());
        first.script(&[("SET k 1", "OK"), ("GET k", "\"1\"")]);
        backend.set(stuck);
        first.send(&[b"INCR", b"k"]);
        eventually("it is asked", || backend.unanswered() > 0);
        second.send(&[b"GET", b"k"]);
        let stopping = thread::spawn(move || server.stop());
        eventually("the server has stopped", || stopping.is_finished());
        stopping.join().unwrap();
        let told = "(ERR it may have been done, or not: the server stops, and the store has not answered for 5 seconds)";
        let expected = (stuck == Stuck::Changes).then(|| told.to_owned());
        assert_eq!((first.try_reply(), second.try_reply()), (expected, None));
    }
}

/// A table whose pair in the catalog is damaged is an error to who wants its keys, and it can be removed: alone, or with all others.
#[test]
fn a_table_that_is_damaged_can_be_removed() {
    for removal in ["HR.DROP a", "FLUSHDB", "FLUSHALL"] {
        let backend = MemoryBackend::default();
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut client = server.client();
        client.script(&[("SET a:1 v", "OK"), ("SET b:1 v", "OK"), ("HR.CREATE c n u8", "OK")]);
        let damage = |name: &[u8]| {
            let put = Command::Put { key: &pair_key(0, name), value: b"nonsense", expect: Expect::Any };
            assert!(matches!(answer(&backend, put), Answer::Stored(_)));
        };
        damage(b"a");
        // No name at all: nobody's table.
        damage(b"\xff\xfe");
        for line in ["GET a:1", "SET a:1 w", "DBSIZE"] {
            assert!(client.run(line).contains("does not match its checksum"), "{line}");
        }
        client.script(&[("GET b:1", "\"v\""), ("SET b:2 v", "OK")]);
        let (told, left) = if removal == "HR.DROP a" { ("1", "2") } else { ("OK", "0") };
        client.script(&[(removal, told), ("DBSIZE", left), ("GET a:1", "nil"), ("SET a:1 w", "OK")]);
        client.script(&[
            ("GET a:1", "\"w\""),
            ("HSET c:1 n 7", "1"),
            ("HSET c:1 n 777", "(ERR field 'n' of table 'c' is u8: '777' does not fit)"),
        ]);
    }
}

/// What a transaction looked at before it cleared everything is not told as what is there afterwards.
#[test]
fn a_transaction_that_clears_looks_again() {
    let server = server();
    server.client().script(&[
        ("SET a:1 v", "OK"),
        ("MULTI", "OK"),
        ("KEYS *", "QUEUED"),
        ("DBSIZE", "QUEUED"),
        ("FLUSHALL", "QUEUED"),
        ("KEYS *", "QUEUED"),
        ("DBSIZE", "QUEUED"),
        ("EXEC", "[[\"a:1\"], 1, OK, [], 0]"),
    ]);
}

/// As many prefixes as there are keys: all are scanned, counted and told.
#[test]
fn many_prefixes_are_scanned() {
    let server = server();
    let mut client = server.client();
    (0..500).for_each(|n| assert_eq!(client.run(&format!("SET p{n}:k v")), "OK"));
    let (mut cursor, mut found) = ("0".to_owned(), std::collections::HashSet::new());
    loop {
        let reply = client.run(&format!("SCAN {cursor} COUNT 7"));
        let words: Vec<&str> = reply.split('"').skip(1).step_by(2).collect();
        found.extend(words[1..].iter().map(|word| (*word).to_owned()));
        cursor = words[0].to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found.len(), 500);
    assert_eq!(client.run("KEYS *").matches(":k").count(), 500);
    assert_eq!(client.run("HR.TABLES").matches("rows").count(), 500);
    assert_eq!(info(&mut client, "db0"), 500);
    client.script(&[("DBSIZE", "500"), ("FLUSHALL", "OK"), ("DBSIZE", "0"), ("SCAN 0", "[\"0\", []]")]);
}

/// Rows are fetched for as many commands as there is memory for; the others wait, and all are done.
#[test]
fn what_is_fetched_for_all_commands_is_bounded() {
    fetches_are_bounded("8mb");
}

#[test]
fn the_bound_of_what_is_fetched_can_be_set() {
    fetches_are_bounded("1gb");
}

/// By 8 MiB, which are set if the server was started with something else.
fn fetches_are_bounded(started_with: &str) {
    const MIB: u64 = 1 << 20;
    let backend = SlowBackend::default();
    let server = Server::start_over_pairs(&backend, &clock(), &["--client-bytes-max", started_with]);
    let mut client = server.client();
    if started_with != "8mb" {
        assert_eq!(client.run("CONFIG SET maxmemory-clients 8388608"), "OK");
    }
    let value = vec![b'v'; MIB as usize - 1_000];
    let name = |n: usize| format!("k{n}");
    // Each client has a table of its own, for the sweep has the rows of one at hand at a time.
    let own = |at: usize| (0..3).map(move |n| format!("t{at}:{n}"));
    for key in (0..20).flat_map(own) {
        assert_eq!(client.run_words(&[b"SET", key.as_bytes(), &value]), "OK");
    }
    let is_done = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        let clients = (0..20).map(|at| {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                let names = own(at).collect::<Vec<String>>().join(" ");
                (0..20).for_each(|_| assert_eq!(client.run(&format!("EXISTS {names}")), "3"));
            })
        });
        let clients: Vec<_> = clients.collect();
        let watching = scope.spawn(|| {
            let mut most = 0;
            while !is_done.load(Ordering::SeqCst) {
                let text = client.run("INFO hedgerow");
                most = most.max(field(&text, "fetched_bytes"));
                assert_eq!(field(&text, "fetched_bytes_max"), 8 * MIB);
            }
            most
        });
        clients.into_iter().for_each(|client| client.join().unwrap());
        is_done.store(true, Ordering::SeqCst);
        watching.join().unwrap()
    });
    // The last row may be over it, and so may those of one command, if all others wait; and those of the sweep.
    assert!(most > 0 && most < 16 * MIB, "{most}");
    eventually("all of it is let go of", || info(&mut server.client(), "fetched_bytes") == 0);
    // One that has more than a command may is told so, whatever there is room for.
    let long = vec![b'v'; 900_000];
    (0..400).for_each(|n| assert_eq!(server.client().run_words(&[b"SET", name(n).as_bytes(), &long]), "OK"));
    let many: Vec<String> = (0..400).map(name).collect();
    let mut client = server.client();
    assert!(client.run(&format!("EXISTS {}", many.join(" "))).contains("more than 256 MiB"));
    assert_eq!(client.run(&format!("EXISTS {}", many[..100].join(" "))), "100");
}

/// More clients than one exchange has room for, whose rows take all the room there is: who has a row goes on before those who wait for one.
#[test]
fn more_clients_than_an_exchange_takes_go_on_with_little_room() {
    const CLIENTS: usize = 500;
    let backend = SlowBackend::default();
    let server = Server::start_over_pairs(&backend, &clock(), &["--client-bytes-max", "32mb"]);
    let mut client = server.client();
    let value = vec![b'v'; 320_000];
    for n in 0..CLIENTS {
        assert_eq!(client.run_words(&[b"SET", format!("k{n}").as_bytes(), &value]), "OK");
    }
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
    for round in 1..=3 {
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(&[b"APPEND", format!("k{n}").as_bytes(), b"x"]);
        }
        for client in &mut clients {
            assert_eq!(client.reply(), (320_000 + round).to_string());
        }
    }
    assert_eq!(info(&mut client, "evicted_clients"), 0);
    eventually("all of it is let go of", || info(&mut client, "fetched_bytes") == 0);
}

/// A command of a transaction that fails has changed nothing, however much of it was done by then.
#[test]
fn a_command_that_fails_in_a_transaction_leaves_nothing() {
    let backend = SlowBackend::default();
    let server = Server::start_over_pairs(&backend, &clock(), &[]);
    let mut client = server.client();
    let value = vec![b'v'; 1_200_000];
    for key in ["set before", "not there"] {
        let key = key.as_bytes();
        assert_eq!(client.run("MULTI"), "OK");
        if key == b"set before" {
            assert_eq!(client.run_words(&[b"SET", key, b"first"]), "QUEUED");
        }
        assert_eq!(client.run_words(&[b"MSET", key, b"second", key, &value]), "QUEUED");
        assert!(client.run("EXEC").contains("ERR"), "the value is too long");
    }
    assert_eq!(client.run_words(&[b"GET", b"set before"]), "\"first\"");
    assert_eq!(client.run_words(&[b"GET", b"not there"]), "nil");
    assert_eq!(client.run("MULTI"), "OK");
    let half = &value[..600_000];
    assert_eq!(
        client.run_words(&[b"HSETEX", b"h", b"EX", b"100", b"FIELDS", b"2", b"a", half, b"b", half]),
        "QUEUED"
    );
    assert!(client.run("EXEC").contains("ERR"));
    assert_eq!(client.run("DBSIZE"), "1");
}

#[test]
fn a_random_key_is_found_behind_tables_that_have_none() {
    let server = Server::start_over_pairs(&SlowBackend::default(), &clock(), &[]);
    let mut client = server.client();
    for n in 0..1_100 {
        assert_eq!(client.run(&format!("SET p{n:04}:x 1")), "OK");
        assert_eq!(client.run(&format!("DEL p{n:04}:x")), "1");
    }
    assert_eq!(client.run("RANDOMKEY"), "nil");
    assert_eq!(client.run("SET zzz:1 v"), "OK");
    assert_eq!(client.run("RANDOMKEY"), "\"zzz:1\"");
}

/// What was fetched for commands that are not done any more, as the server stops, is not waited for: else it would take the five seconds after which a
/// store is given up, each time.
#[test]
fn a_server_that_stops_waits_for_no_room() {
    let is_quick = (0..4).any(|_| time_to_stop_over_full_room() < Duration::from_secs(5));
    assert!(is_quick, "each stop took as long as a store has that does not answer");
}

/// How long a server takes to stop whose rows at hand leave no room for others. What it answered it has done, and nothing else.
fn time_to_stop_over_full_room() -> Duration {
    let backend = SlowBackend::default();
    let server = Server::start_over_pairs(&backend, &clock(), &["--client-bytes-max", "8mb"]);
    let value = vec![b'v'; 900_000];
    let mut setter = server.client();
    for at in 0..20 {
        assert_eq!(setter.run_words(&[b"SET", format!("k{at}").as_bytes(), &value]), "OK");
    }
    let mut clients: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        (0..20).for_each(|_| client.send(&[b"APPEND", format!("k{at}").as_bytes(), b"+"]));
    }
    assert_eq!(clients[0].reply(), "900001");
    let stopping = Instant::now();
    server.stop();
    let took = stopping.elapsed();
    let mut answered = vec![1; 20];
    for (client, answered) in clients.iter_mut().zip(&mut answered) {
        while let Some(reply) = client.try_reply() {
            *answered += reply.parse::<usize>().map(|_| 1).unwrap();
        }
    }
    answered[1..].iter_mut().for_each(|answered| *answered -= 1);
    let other = Server::start_over_pairs(&backend, &clock(), &[]);
    for (at, answered) in answered.into_iter().enumerate() {
        assert_eq!(other.client().run(&format!("STRLEN k{at}")), (900_000 + answered).to_string(), "k{at}");
    }
    took
}
