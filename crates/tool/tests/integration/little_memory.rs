//! Rows that are not in memory: the loop waits for none of them.

use std::sync::Arc;

use hedgerow_device::{FastTier, FastTierOptions};
use hedgerow_sim::skip;

use crate::client::{Client, Server, TempDir};

const ROWS: u64 = 1_000;

struct Cold {
    tier: Arc<FastTier>,
    server: Option<Server>,
    _dir: TempDir,
}

impl Cold {
    /// Hashes and strings of a page each, a third of the hashes under a delta, none in memory. `None` where the file system keeps everything in
    /// memory.
    fn new() -> Option<Cold> {
        let dir = TempDir::new();
        let tier = FastTier::open_file(&dir.path().join("fast"), &FastTierOptions::default(), true).unwrap();
        let tier = Arc::new(tier);
        let server = Some(Server::start_at(Arc::clone(&tier), &["--durability", "process"]));
        let cold = Cold { tier, server, _dir: dir };
        let mut client = cold.client();
        let text = "x".repeat(4000);
        for n in 0..ROWS {
            assert_eq!(client.run(&format!("HSET h{n} n {n} text {text}")), "2");
            assert_eq!(client.run(&format!("SET s{n} {n}:{text}")), "OK");
            if n % 3 == 0 {
                assert_eq!(client.run(&format!("HSET h{n} more {n}")), "1");
            }
        }
        let is_cold = cold.cool(&mut client);
        if !is_cold {
            skip("the file system keeps everything in memory");
        }
        is_cold.then_some(cold)
    }

    fn client(&self) -> Client {
        self.server.as_ref().unwrap().client()
    }

    /// Has all rows leave memory, and the loop know that it has to look. False where the file system keeps everything in memory.
    fn cool(&self, client: &mut Client) -> bool {
        assert_eq!(client.run("SAVE"), "OK");
        let before = waits(client);
        // It finds out by waiting, and one wait brings much of what lies beside.
        for round in 0..100 {
            self.tier.evict(0, self.tier.bytes());
            if self.tier.is_in_memory(0, self.tier.bytes()) {
                return false;
            }
            let n = round * 37 % ROWS;
            (n..n + 70).for_each(|n| assert!(client.run(&format!("STRLEN s{}", n % ROWS)).len() == 4));
            if waits(client) > before {
                self.tier.evict(0, self.tier.bytes());
                return true;
            }
        }
        panic!("the loop never finds a row missing");
    }
}

fn waits(client: &mut Client) -> u64 {
    let info = client.run("INFO hedgerow");
    let (_, rest) = info.split_once("waits_for_rows:").unwrap();
    rest[..rest.find("\\r\\n").unwrap()].parse().unwrap()
}

#[test]
fn commands_are_given_again_when_their_rows_are_there() {
    let Some(cold) = Cold::new() else { return };
    let mut client = cold.client();
    let before = waits(&mut client);
    // One at a time, and many at once.
    for n in (0..ROWS).rev() {
        assert_eq!(client.run(&format!("HGET h{n} n")), format!("\"{n}\""));
    }
    assert!(waits(&mut client) > before, "everything was in memory");
    assert!(cold.cool(&mut client));
    let before = waits(&mut client);
    let pipeline: String = (0..ROWS).map(|n| format!("HINCRBY h{n} n 1\r\nHGET h{n} n\r\n")).collect();
    client.send_raw(pipeline.as_bytes());
    for n in 0..ROWS {
        let replies = [client.reply(), client.reply()];
        assert_eq!(replies, [format!("{}", n + 1), format!("\"{}\"", n + 1)], "once, not twice");
    }
    assert!(waits(&mut client) > before);
    // Nothing of a transaction is done before all of it can be.
    assert!(cold.cool(&mut client));
    for n in (0..ROWS).step_by(7) {
        let other = (n + 500) % ROWS;
        let script =
            format!("MULTI\r\nINCR c\r\nHGET h{n} n\r\nSTRLEN s{other}\r\nHINCRBY h{other} n 0\r\nEXEC\r\n");
        client.send_raw(script.as_bytes());
        (0..5).for_each(|_| drop(client.reply()));
        let strlen = 4001 + other.to_string().len();
        assert_eq!(client.reply(), format!("[{}, \"{}\", {strlen}, {}]", n / 7 + 1, n + 1, other + 1));
    }
    assert!(cold.cool(&mut client));
    for n in (0..ROWS).step_by(10) {
        let keys: String = (n..n + 10).map(|n| format!(" s{n}")).collect();
        let reply = client.run(&format!("MGET{keys}"));
        assert!((n..n + 10).all(|n| reply.contains(&format!("\"{n}:x"))), "{}", &reply[..80]);
        assert_eq!(client.run(&format!("DEL h{n}")), "1");
        assert_eq!(client.run(&format!("EXISTS h{n}")), "0");
    }
}

/// What a command lacks of all of its keys is brought together: else it would be put off for one after the other, and after sixteen the loop would wait for the rest.
#[test]
fn what_many_keys_lack_is_brought_together() {
    // Once for the first, once for all others, and once more for those under deltas.
    const FEW: u64 = 4;
    let Some(cold) = Cold::new() else { return };
    let (mut client, mut watcher) = (cold.client(), cold.client());
    let text = "x".repeat(4000);
    for n in 0..100 {
        assert_eq!(client.run(&format!("SET e{n} {text} EX 100000")), "OK");
    }
    let mut cool = || {
        // As where there is less memory than data: else one that waits has those beside it brought, too.
        cold.tier.read_nothing_ahead();
        assert!(cold.cool(&mut watcher));
        waits(&mut watcher)
    };
    let names = |prefix: &str, to: u64| (0..to).map(|n| format!(" {prefix}{n}")).collect::<String>();
    let before = cool();
    let reply = client.run(&format!("MGET{}", names("s", 500)));
    assert_eq!(reply.matches(":xxx").count(), 500);
    let waited = waits(&mut client) - before;
    assert!((1..=FEW).contains(&waited), "MGET waited {waited} times");

    let before = cool();
    assert_eq!(client.run(&format!("WATCH{}", names("e", 100))), "OK");
    let waited = waits(&mut client) - before;
    assert!((1..=FEW).contains(&waited), "WATCH waited {waited} times");

    let before = cool();
    client.script(&[("MULTI", "OK"), ("PING", "QUEUED"), ("EXEC", "[PONG]")]);
    let waited = waits(&mut client) - before;
    assert!((1..=FEW).contains(&waited), "EXEC waited {waited} times for what was watched");

    let before = cool();
    assert_eq!(client.run("MULTI"), "OK");
    // One by one: those that come together have their rows asked for together.
    for n in 0..100 {
        assert_eq!(client.run(&format!("STRLEN s{n}")), "QUEUED");
        assert_eq!(client.run(&format!("HGET h{n} n")), "QUEUED");
        assert_eq!(client.run(&format!("TTL s{}", 500 + n)), "QUEUED");
    }
    let reply = client.run("EXEC");
    let expected: Vec<String> =
        (0..100).map(|n| format!("{}, \"{n}\", -1", 4001 + n.to_string().len())).collect();
    assert_eq!(reply, format!("[{}]", expected.join(", ")));
    let waited = waits(&mut client) - before;
    assert!((1..=FEW).contains(&waited), "EXEC waited {waited} times");
}

/// Whoever has left while its row was brought is forgotten, and another in its place is not taken for it.
#[test]
fn a_client_may_leave_meanwhile() {
    let Some(cold) = Cold::new() else { return };
    let mut client = cold.client();
    for n in 0..ROWS {
        let mut other = cold.client();
        other.send_raw(format!("HGETALL h{n}\r\n").as_bytes());
        drop(other);
        let mut next = cold.client();
        assert_eq!(next.run(&format!("HGET h{} n", ROWS - 1 - n)), format!("\"{}\"", ROWS - 1 - n));
    }
    assert!(waits(&mut client) > 0);
}
