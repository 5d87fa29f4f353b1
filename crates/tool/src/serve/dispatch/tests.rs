//! Commands against a server without sockets, whose clock the test holds.

use hedgerow::{Db, Options};
use hedgerow_device::{Clock, FastTier, FastTierOptions};

use super::*;
use crate::serve::keyspace::Keyspace;
use crate::serve::resp::OwnedArgs;
use crate::serve::session::Session;
use crate::serve::settings::Settings;

const START_MS: u64 = 1_800_000_000_000;

/// A server with one client, on DRAM.
struct Bench {
    server: Server,
    client: usize,
}

impl Bench {
    /// `source` is looked at once a command.
    fn new(source: Clock, bytes_max: u64) -> Bench {
        let tier = FastTierOptions { bytes_max, ..FastTierOptions::default() };
        let tier = FastTier::dram(&tier).unwrap();
        let options = Options {
            wait_for_space: false,
            background: false,
            fast_tier_bytes_max: bytes_max,
            ..Options::new()
        };
        let clock = Clock::cached(source);
        let db = Db::open_at(tier, options, clock.clone()).unwrap();
        let mut server =
            Server::new(Keyspace::tiered(db, clock).unwrap(), Settings::default(), commands::count());
        let client = server.sessions.insert(Session::new(1, Default::default(), None, START_MS));
        Bench { server, client }
    }

    fn run_words(&mut self, words: &[&[u8]]) -> String {
        let args = OwnedArgs::from_words(words);
        let mut out = Vec::new();
        self.server.keyspace.refresh_time(Instant::now());
        execute(
            &mut self.server,
            self.client,
            args.borrow(),
            PeekedCommand::default(),
            &mut out,
            Instant::now(),
        );
        String::from_utf8_lossy(&out).replace("\r\n", " ").trim_end().to_owned()
    }

    fn run(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.run_words(&words)
    }
}

/// What is written over a key keeps the key's expiry, or the key had expired and is written anew: never the old value without
/// the expiry. The clock moves on with every look at it, and the key expires before any of them.
#[test]
fn a_command_sees_one_time() {
    // What is done to a key that is 7 or has a field of 7, and what then shows that it had not expired.
    let changes: [(&[&str], &str, &str); 19] = [
        (&["INCR k"], "SET k 7", "$1 8"),
        (&["INCRBY k 5"], "SET k 7", "$2 12"),
        (&["DECRBY k 5"], "SET k 7", "$1 2"),
        (&["INCRBYFLOAT k 0.5"], "SET k 7", "7.5"),
        (&["APPEND k x"], "SET k 7", "7x"),
        (&["SETRANGE k 3 x"], "SET k 7", "$4 7"),
        (&["SET k 8 KEEPTTL GET"], "SET k 7", "$1 7"),
        (&["SET k 8 XX KEEPTTL"], "SET k 7", "+OK"),
        (&["RENAME k to"], "SET k 7", "$1 7"),
        (&["COPY k to"], "SET k 7", "$1 7"),
        (&["HSET k g 1"], "HSET k f 7", "$1 7"),
        (&["HSETNX k g 1"], "HSET k f 7", "$1 7"),
        (&["HINCRBY k f 1"], "HSET k f 7", "$1 8"),
        (&["HINCRBYFLOAT k f 1"], "HSET k f 7", "$1 8"),
        (&["HSETEX k FXX KEEPTTL FIELDS 1 f 8"], "HSET k f 7", ":1"),
        (&["HDEL k g"], "HSET k f 7 g 8", "$1 7"),
        (&["RENAME k to"], "HSET k f 7", "$1 7"),
        (&["MULTI", "INCR k", "INCR k", "EXEC"], "SET k 7", ":8"),
        (&["MULTI", "APPEND k x", "APPEND other x", "STRLEN k", "EXEC"], "SET k 7", ":2"),
    ];
    for (commands, setup, was_there) in changes {
        for remaining in 0..24 {
            let clock = Clock::ticking(START_MS, 1);
            let mut bench = Bench::new(clock.clone(), 64 << 20);
            bench.run(setup);
            let at = START_MS + 10_000;
            assert_eq!(bench.run(&format!("PEXPIREAT k {at}")), ":1");
            clock.advance_ms(at - remaining - clock.now_ms());
            let mut seen: Vec<String> = commands.iter().map(|line| bench.run(line)).collect();
            for key in ["k", "to"] {
                let get =
                    if setup.starts_with("SET") { format!("GET {key}") } else { format!("HGET {key} f") };
                seen.push(bench.run(&get));
                let expires = bench.run(&format!("PEXPIRETIME {key}"));
                let is_old = seen.iter().any(|reply| reply.contains(was_there));
                assert!(
                    !is_old || expires != ":-1",
                    "{commands:?}, {remaining} ms before: {seen:?} for ever"
                );
            }
        }
    }
}

/// What a store that is full refuses leaves the key as it was.
#[test]
fn a_write_over_another_type_is_one_write() {
    let value = vec![b'x'; 300 << 10];
    let changes: [&[&[u8]]; 8] = [
        &[b"SET", b"h:1", &value],
        &[b"SET", b"h:1", &value, b"EX", b"100"],
        &[b"SET", b"h:1", &value, b"KEEPTTL"],
        &[b"SETEX", b"h:1", b"100", &value],
        &[b"MSET", b"h:1", &value, b"other", b"1"],
        &[b"RENAME", b"large", b"h:1"],
        &[b"COPY", b"large", b"h:1", b"REPLACE"],
        &[b"COPY", b"g:1", b"s", b"REPLACE"],
    ];
    let mut bench = Bench::new(Clock::manual(START_MS), 12 << 20);
    assert_eq!(bench.run("HSET h:1 f 1 g 2"), ":2");
    assert_eq!(bench.run("SET s 7"), "+OK");
    assert_eq!(bench.run_words(&[b"HSET", b"g:1", b"f", &value]), ":1");
    assert_eq!(bench.run_words(&[b"SET", b"large", &value]), "+OK");
    for step in [300 << 10, 10 << 10] {
        for index in 0.. {
            let key = format!("filler-{step}-{index}");
            if bench.run_words(&[b"SET", key.as_bytes(), &value[..step]]).starts_with("-OOM") {
                break;
            }
        }
    }
    for change in changes {
        let answer = bench.run_words(change);
        let name = String::from_utf8_lossy(change[0]).into_owned();
        assert!(answer.starts_with("-OOM"), "{name}: {answer}");
        assert_eq!(bench.run("HGETALL h:1"), "*4 $1 f $1 1 $1 g $1 2", "{name}");
        assert_eq!(bench.run("GET s"), "$1 7", "{name}");
    }
}

/// A transaction has as many commands as a command has arguments, and bytes; of one that would have more nothing is kept.
#[test]
fn a_transaction_that_is_too_long_takes_no_memory() {
    let mut bench = Bench::new(Clock::manual(START_MS), 64 << 20);
    let ping =
        |_| Queued { command: commands::by_name(b"ping").unwrap(), args: OwnedArgs::from_words(&[b"PING"]) };
    let refused = "-ERR a transaction has at most 1048576 commands, of 268435456 bytes together";
    let queues: [(usize, usize); 2] =
        [(limits::QUEUED_COMMANDS_MAX - 1, 0), (0, limits::COMMAND_BYTES_MAX - ping(0).args.bytes())];
    for (commands, bytes) in queues {
        assert_eq!(bench.run("MULTI"), "+OK");
        let session = &mut bench.server.sessions[bench.client];
        session.multi = Some(Multi { queue: (0..commands).map(ping).collect(), bytes, is_broken: false });
        assert_eq!(bench.run("PING"), "+QUEUED");
        assert_eq!(bench.run("PING"), refused);
        // Who has the rest of its commands on the way already sends them.
        for _ in 0..3 {
            assert_eq!(bench.server.sessions[bench.client].memory_bytes(), 0);
            assert_eq!(bench.run("PING"), "+QUEUED");
        }
        assert_eq!(bench.run("EXEC"), "-EXECABORT Transaction discarded because of previous errors.");
    }
    assert_eq!(["MULTI", "PING", "EXEC"].map(|line| bench.run(line)), ["+OK", "+QUEUED", "*1 +PONG"]);
}
