//! Commands of several clients that change one key at a store of pairs: they are stored together, each on what the one before it leaves, and are told what
//! became of that.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use hedgerow_device::Random;
use hedgerow_row::backend::memory::MemoryBackend;
use hedgerow_sim::{BackendFault, FailingBackend, eventually};

use crate::client::{Client, Server, clock, on_every_backend};
use crate::slow_pairs::SlowBackend;

/// A server and clients whose commands can be held until all of them are there.
struct Crowd {
    starter: Client,
    clients: Vec<Client>,
}

impl Crowd {
    fn of(server: &Server, clients: usize) -> Crowd {
        let starter = server.client();
        // One after the other: this is the order in which they go on.
        let connect = |_| {
            let mut client = server.client();
            assert_eq!(client.run("PING"), "PONG");
            client
        };
        Crowd { starter, clients: (0..clients).map(connect).collect() }
    }

    /// Has each give its command, all of which the server begins in this order and in one turn; their replies.
    fn run(&mut self, lines: &[&str]) -> Vec<String> {
        self.begin(lines);
        self.clients.iter_mut().zip(lines).map(|(client, _)| client.reply()).collect()
    }

    fn begin(&mut self, lines: &[&str]) {
        assert_eq!(self.starter.run("CLIENT PAUSE 1000000"), "OK");
        for (client, line) in self.clients.iter_mut().zip(lines) {
            client.send(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        }
        let starter = &mut self.starter;
        eventually("the server has all commands", || {
            let list = starter.run("CLIENT LIST");
            list.split(" flags=")
                .skip(1)
                .filter(|after| after.starts_with('b') || after.starts_with("xb"))
                .count()
                == lines.len()
        });
        assert_eq!(self.starter.run("CLIENT UNPAUSE"), "OK");
    }
}

fn number(reply: &str) -> Option<u64> {
    reply.parse().ok()
}

/// However many change one key, they take few writes: not one each.
#[test]
fn clients_that_change_one_key_share_its_writes() {
    const CLIENTS: usize = 50;
    const EACH: usize = 40;
    let all = (CLIENTS * EACH) as u64;
    for line in ["INCR k", "SET k v", "HSET h f v", "APPEND k x"] {
        let backend = SlowBackend::default();
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
        clients[0].script(&[("SET k 0", "OK"), ("HSET h f 0", "1")]);
        let before = (backend.changes(), backend.exchanges());
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        for client in &mut clients {
            (0..EACH).for_each(|_| client.send(&words));
        }
        let mut told = HashSet::new();
        for client in &mut clients {
            let mut least = 0;
            for _ in 0..EACH {
                let reply = client.reply();
                match line {
                    "INCR k" | "APPEND k x" => {
                        let counted = number(&reply).unwrap();
                        assert!(counted > least && told.insert(counted), "{counted} after {least}");
                        least = counted;
                    }
                    "SET k v" => assert_eq!(reply, "OK"),
                    _ => assert_eq!(reply, "0"),
                }
            }
        }
        assert!(told.is_empty() || told.len() as u64 == all);
        let (changes, exchanges) = (backend.changes() - before.0, backend.exchanges() - before.1);
        println!("{all} times {line}: {changes} writes, {exchanges} exchanges");
        // Those who are answered together and those who come meanwhile take turns: two groups at most, each with a write for each command of a client.
        assert!(changes < all / 20, "{changes} writes for {all} times {line}");
        assert!(exchanges < all / 10, "{exchanges} exchanges for {all} times {line}");
    }
}

/// As if one client had given all commands, one after the other, and with one write.
#[test]
fn each_runs_on_what_the_one_before_it_leaves() {
    const KINDS: [&str; 28] = [
        "SET k 1",
        "SET k word",
        "SET k 5 EX 1000",
        "SET k 7 KEEPTTL",
        "SETNX k 2",
        "SET k 3 NX",
        "SET k 4 XX",
        "SET k 6 GET",
        "GETSET k 8",
        "GETDEL k",
        "INCR k",
        "INCRBY k 5",
        "DECR k",
        "APPEND k 9",
        "SETRANGE k 1 0",
        "DEL k",
        "DEL k k",
        "UNLINK k",
        "EXPIRE k 500",
        "PERSIST k",
        "PEXPIREAT k 1",
        "GETEX k PERSIST",
        "HSET k f 1",
        "HSETNX k g 2",
        "HINCRBY k f 3",
        "HDEL k f",
        "HDEL k f g",
        "HSET k f word",
    ];
    const CLIENTS: usize = 12;
    let backend = SlowBackend::default();
    let clock = clock();
    let server = Server::start_over_pairs(&backend, &clock, &[]);
    let alone = Server::start_over_pairs(&MemoryBackend::default(), &clock, &[]);
    let mut crowd = Crowd::of(&server, CLIENTS);
    let mut one = alone.client();
    for client in [&mut crowd.starter, &mut one] {
        // The names of the fields are known from then on.
        client.script(&[("HSET k f 1 g 1", "2"), ("DEL k", "1")]);
    }
    let mut random = Random::from_seed(28);
    for round in 0..300 {
        let lines: Vec<&str> =
            (0..CLIENTS).map(|_| KINDS[random.below(KINDS.len() as u64) as usize]).collect();
        let before = backend.changes();
        let replies = crowd.run(&lines);
        let expected: Vec<String> = lines.iter().map(|line| one.run(line)).collect();
        assert_eq!(replies, expected, "round {round}: {lines:?}");
        assert!(backend.changes() - before <= 1, "round {round}: {lines:?}");
        for look in ["TYPE k", "GET k", "HGETALL k", "PTTL k"] {
            assert_eq!(crowd.starter.run(look), one.run(look), "round {round}: {look} after {lines:?}");
        }
    }
}

/// Servers over one backend, each with clients that go together, count one key exactly.
#[test]
fn groups_of_several_servers_count_one_key_exactly() {
    on_every_backend(|backend| {
        const CLIENTS: usize = 8;
        const EACH: usize = 150;
        let servers: Vec<Server> =
            (0..3).map(|_| Server::start_over_pairs(&backend, &clock(), &[])).collect();
        let counted: Vec<Vec<u64>> = thread::scope(|scope| {
            let clients = servers.iter().flat_map(|server| (0..CLIENTS).map(move |_| server)).map(|server| {
                scope.spawn(|| {
                    let mut client = server.client();
                    (0..EACH).map(|_| client.run("HINCRBY h n 1").parse().unwrap()).collect()
                })
            });
            let clients: Vec<_> = clients.collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert!(counted.iter().all(|one: &Vec<u64>| one.is_sorted()));
        let mut all = counted.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(1..=(3 * CLIENTS * EACH) as u64), "each number is told once");
    });
}

/// A backend in memory that has a key, and fails the next write as it is told.
fn failing() -> (MemoryBackend, FailingBackend, Arc<AtomicU64>, Arc<AtomicU64>) {
    let memory = MemoryBackend::default();
    let (at, kind) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU64::new(0)));
    let (when, what) = (Arc::clone(&at), Arc::clone(&kind));
    let decide = move |command| {
        let fault = BackendFault::ALL[what.load(Ordering::SeqCst) as usize];
        (command == when.load(Ordering::SeqCst)).then_some(fault)
    };
    (memory.clone(), FailingBackend::new(Arc::new(memory), decide), at, kind)
}

/// What became of the one write is told to all whose changes it had, those included who only saw what others were about to store.
#[test]
fn all_are_told_how_their_write_ended() {
    const LINES: [&str; 6] = ["SET k word", "INCR k", "SETNX k 2", "HSET k f v", "GETSET k 5", "INCR k"];
    const NOT_A_NUMBER: &str = "(ERR value is not an integer or out of range)";
    const WRONG: &str = "(WRONGTYPE Operation against a key holding the wrong kind of value)";
    let done = ["OK", NOT_A_NUMBER, "0", WRONG, "\"word\"", "6"];
    for (number, fault) in BackendFault::ALL.into_iter().enumerate() {
        let (memory, backend, at, kind) = failing();
        let server = Server::start_over_pairs(&backend, &clock(), &[]);
        let mut crowd = Crowd::of(&server, LINES.len());
        crowd.starter.script(&[("HSET none f v", "1"), ("SET k first", "OK"), ("CONFIG RESETSTAT", "OK")]);
        kind.store(number as u64, Ordering::SeqCst);
        // The table and the row are got, once for all; then comes the write.
        at.store(backend.commands() + 2, Ordering::SeqCst);
        let replies = crowd.run(&LINES);
        at.store(u64::MAX, Ordering::SeqCst);
        let other = Server::start_over_pairs(&memory, &clock(), &[]);
        let kept = other.client().run("GET k");
        let is_told = |start: &str| replies.iter().all(|reply| reply.starts_with(start));
        match fault {
            BackendFault::Conflict => assert!(replies == done && kept == "\"6\"", "{replies:?}, {kept}"),
            BackendFault::Gone => {
                assert!(is_told("(ERR it went wrong") && kept == "\"first\"", "{replies:?}, {kept}");
            }
            BackendFault::Lost | BackendFault::AnswerLost => {
                let expected = if fault == BackendFault::Lost { "\"first\"" } else { "\"6\"" };
                assert!(
                    is_told("(ERR it may have been done, or not") && kept == expected,
                    "{replies:?}, {kept}"
                );
            }
        }
        // Each is counted once, and as what it was told.
        let info = crowd.starter.run("INFO all");
        let incr = info.split("\\r\\n").find(|line| line.starts_with("cmdstat_incr:")).unwrap();
        let failed = if fault == BackendFault::Conflict { 1 } else { 2 };
        assert!(
            incr.starts_with("cmdstat_incr:calls=2,") && incr.ends_with(&format!("failed_calls={failed}")),
            "{incr}"
        );
        let errors = info.split("\\r\\n").find_map(|line| line.strip_prefix("total_error_replies:")).unwrap();
        let expected = if fault == BackendFault::Conflict { 2 } else { LINES.len() };
        assert_eq!(errors, expected.to_string(), "{fault:?}");
    }
}

/// Who only reads sees what is stored, whatever others are about to store.
#[test]
fn readers_see_nothing_that_is_not_stored() {
    let (_, backend, at, kind) = failing();
    let server = Server::start_over_pairs(&backend, &clock(), &[]);
    let mut crowd = Crowd::of(&server, 3);
    crowd.starter.script(&[("SET k first", "OK")]);
    kind.store(1, Ordering::SeqCst);
    at.store(backend.commands() + 2, Ordering::SeqCst);
    let replies = crowd.run(&["SET k second", "GET k", "APPEND k third"]);
    assert!(replies[0].starts_with("(ERR it may have been done") && replies[0] == replies[2], "{replies:?}");
    assert_eq!((replies[1].as_str(), crowd.starter.run("GET k").as_str()), ("\"first\"", "\"first\""));
}

/// A transaction whose key is watched sees the changes of those who go before it, and is not taken for one of them.
#[test]
fn watched_keys_are_not_changed_unseen() {
    for at in 0..5 {
        let server = Server::start_over_pairs(&SlowBackend::default(), &clock(), &[]);
        let mut crowd = Crowd::of(&server, 5);
        crowd.starter.script(&[("SET k 0", "OK")]);
        crowd.clients[at].script(&[
            ("WATCH k", "OK"),
            ("MULTI", "OK"),
            ("INCR k", "QUEUED"),
            ("GET k", "QUEUED"),
        ]);
        let mut lines = ["INCR k"; 5];
        lines[at] = "EXEC";
        let replies = crowd.run(&lines);
        let counted: Vec<u64> = replies.iter().filter_map(|reply| number(reply)).collect();
        match replies[at].as_str() {
            "nil" => assert_eq!((counted, crowd.starter.run("GET k").as_str()), (vec![1, 2, 3, 4], "\"4\"")),
            done => {
                assert_eq!((done, counted), ("[1, \"1\"]", vec![2, 3, 4, 5]));
                assert_eq!(crowd.starter.run("GET k"), "\"5\"");
            }
        }
    }
}

/// Transactions of a key that many change have their turn.
#[test]
fn transactions_come_between_commands_of_one_key() {
    const EACH: usize = 60;
    let server = Server::start_over_pairs(&SlowBackend::default(), &clock(), &[]);
    let is_over = AtomicBool::new(false);
    let counted: u64 = thread::scope(|scope| {
        let counting = |_| {
            scope.spawn(|| {
                let mut client = server.client();
                let mut counted = 0;
                while !is_over.load(Ordering::SeqCst) {
                    (0..20).for_each(|_| client.send(&[b"HINCRBY", b"h", b"n", b"1"]));
                    counted += (0..20).filter_map(|_| number(&client.reply())).count() as u64;
                }
                counted
            })
        };
        let clients: Vec<_> = (0..10).map(counting).collect();
        let mut client = server.client();
        for done in 1..=EACH {
            let replies = ["MULTI", "HINCRBY h n 1", "HINCRBY h m 1", "EXEC"].map(|line| client.run(line));
            assert!(replies[3].ends_with(&format!(", {done}]")), "{}", replies[3]);
        }
        is_over.store(true, Ordering::SeqCst);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(server.client().run("HGET h n"), format!("\"{}\"", counted + EACH as u64));
}

/// Commands go wrong one by one, and with each all that went together: what is told is so.
#[test]
fn what_is_told_of_one_key_is_so_while_writes_fail() {
    const CLIENTS: usize = 20;
    const EACH: usize = 100;
    let memory = MemoryBackend::default();
    let clean = Server::start_over_pairs(&memory, &clock(), &[]);
    assert_eq!(clean.client().run("SET k 0"), "OK");
    let decide = |command: u64| {
        // One in eight, without a rhythm that commands of an exchange could have, too.
        let mixed = (command + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        mixed.is_multiple_of(8).then(|| BackendFault::ALL[mixed as usize / 8 % BackendFault::ALL.len()])
    };
    let failing = FailingBackend::new(Arc::new(memory), decide);
    let server = Server::start_over_pairs(&failing, &clock(), &[]);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
    for client in &mut clients {
        (0..EACH).for_each(|_| client.send(&[b"INCR", b"k"]));
    }
    let (mut told, mut open, mut refused) = (HashSet::new(), 0, 0);
    for client in &mut clients {
        let mut least = 0;
        for _ in 0..EACH {
            let reply = client.reply();
            match number(&reply) {
                Some(counted) => {
                    assert!(counted > least && told.insert(counted), "{counted} after {least}");
                    least = counted;
                }
                None if reply.starts_with("(ERR it may have been done, or not: ") => open += 1,
                None => {
                    assert!(reply.starts_with("(ERR it went wrong"), "{reply}");
                    refused += 1;
                }
            }
        }
    }
    let kept: u64 = clean.client().run("GET k").trim_matches('"').parse().unwrap();
    let done = told.len() as u64;
    assert!((done..=done + open).contains(&kept), "{kept} are kept of {done} and {open} perhaps");
    assert!(told.iter().all(|&counted| counted <= kept), "one was told more than was ever there");
    assert!(done > 500 && open > 20 && refused > 20, "{done} done, {open} perhaps, {refused} not");
}

/// Who waits for others and goes away keeps nobody waiting.
#[test]
fn who_leaves_the_queue_keeps_nobody_waiting() {
    let server = Server::start_over_pairs(&SlowBackend::default(), &clock(), &[]);
    let mut stays = server.client();
    for round in 0..50 {
        let mut leaving: Vec<Client> = (0..10).map(|_| server.client()).collect();
        for client in &mut leaving {
            (0..5).for_each(|_| client.send(&[b"APPEND", b"k", b"x"]));
        }
        drop(leaving);
        assert!(number(&stays.run("APPEND k y")).is_some_and(|length| length > round));
    }
    eventually("nothing is at hand", || stays.run("INFO hedgerow").contains("fetched_bytes:0\\r\\n"));
    stays.script(&[("DEL k", "1"), ("INCR k", "1")]);
}
