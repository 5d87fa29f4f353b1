//! What clients can not do to the server.

use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hedgerow_sim::eventually;

use crate::client::{Client, Program, Server, Store, TempDir, clock, encode, on_every_store};

#[test]
fn strangers_can_do_nothing_but_authenticate() {
    let server = Server::start(&["--requirepass", "secret"]);
    let mut client = server.client();
    client.script(&[
        ("GET a", "(NOAUTH Authentication required.)"),
        ("INFO", "(NOAUTH Authentication required.)"),
        ("PING", "(NOAUTH Authentication required.)"),
        ("AUTH wrong", "(WRONGPASS invalid username-password pair or user is disabled.)"),
        ("AUTH nobody secret", "(WRONGPASS invalid username-password pair or user is disabled.)"),
        ("AUTH secret", "OK"),
        ("PING", "PONG"),
        ("RESET", "RESET"),
        ("PING", "(NOAUTH Authentication required.)"),
        ("AUTH default secret", "OK"),
        ("PING", "PONG"),
    ]);
    let mut client = server.client();
    assert!(client.run("HELLO 3").starts_with("(NOAUTH HELLO must be called"));
    assert!(client.run("HELLO 3 AUTH default secret SETNAME me").starts_with("{\"server\""));
    assert_eq!(client.run("CLIENT GETNAME"), "\"me\"");
}

#[test]
fn strangers_have_small_limits() {
    let server = Server::start(&["--requirepass", "secret"]);
    let mut client = server.client();
    client.send_raw(b"*11\r\n");
    assert_eq!(client.reply(), "(ERR Protocol error: unauthenticated multibulk length)");
    assert_eq!(client.try_reply(), None);
    let mut client = server.client();
    client.send_raw(b"*2\r\n$4\r\nAUTH\r\n$16385\r\n");
    assert_eq!(client.reply(), "(ERR Protocol error: unauthenticated bulk length)");
    assert_eq!(client.try_reply(), None);
    // One that never reads its errors is dropped once they are 64 KiB beyond what the kernel holds.
    let mut client = server.client();
    client.stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let chunk = encode(&[b"GET", b"a"]).repeat(1000);
    eventually("it is disconnected", || client.stream.write_all(&chunk).is_err());
    assert_eq!(server.client().run("AUTH secret"), "OK");
}

/// Who connects and says nothing holds a place that others could have.
#[test]
fn strangers_have_ten_seconds() {
    let clock = clock();
    let server = Server::start_by(&clock, &["--requirepass", "secret"]);
    let (mut stranger, mut known) = (server.client(), server.client());
    assert_eq!(known.run("AUTH secret"), "OK");
    clock.advance_ms(5_000);
    let mut later = server.client();
    assert_eq!(later.run("PING"), "(NOAUTH Authentication required.)");
    clock.advance_ms(4_000);
    assert_eq!(stranger.run("PING"), "(NOAUTH Authentication required.)");
    clock.advance_ms(2_000);
    eventually("it is disconnected", || stranger.try_reply().is_none());
    assert_eq!(known.run("PING"), "PONG");
    // Who is a stranger again has as long from then on.
    assert_eq!(known.run("RESET"), "RESET");
    clock.advance_ms(6_000);
    eventually("it was looked at since", || later.try_reply().is_none());
    assert_eq!(known.run("AUTH secret"), "OK");
    assert_eq!(known.run("RESET"), "RESET");
    clock.advance_ms(9_000);
    // To be one once more gives no more time.
    assert_eq!(known.run("RESET"), "RESET");
    clock.advance_ms(2_000);
    eventually("it is disconnected, too", || known.try_reply().is_none());
}

/// Nobody has to authenticate any more, and who came before only has to say that he begins anew.
#[test]
fn where_there_is_no_password_any_more_nobody_is_a_stranger() {
    let server = Server::start(&["--requirepass", "secret"]);
    let (mut stranger, mut known) = (server.client(), server.client());
    assert_eq!(known.run("AUTH secret"), "OK");
    assert_eq!(known.run_words(&[b"CONFIG", b"SET", b"requirepass", b""]), "OK");
    assert_eq!(stranger.run("RESET"), "RESET");
    assert_eq!(stranger.run("PING"), "PONG");
}

/// A client whose replies were over the soft limit for a moment is served on though it sends no more.
#[test]
fn a_client_over_the_soft_limit_is_served_on_when_its_replies_are_sent() {
    for durability in ["process", "immediate"] {
        let server = Server::start(&["--output-soft-limit", "1kb", "--durability", durability]);
        let mut client = server.client();
        // With `immediate` the replies of writes are held until they are durable.
        let (command, reply) =
            if durability == "immediate" { ("SET k v", "OK") } else { ("GET nope", "nil") };
        client.send_raw(format!("{command}\r\n").repeat(50_000).as_bytes());
        (0..50_000).for_each(|n| assert_eq!(client.reply(), reply, "{n}"));
        assert_eq!(client.run("PING"), "PONG");
    }
}

/// Between the two limits a client has a while to read what waits for it.
#[test]
fn over_the_soft_limit_a_client_has_a_while_to_read() {
    let clock = clock();
    let limits = ["--output-hard-limit", "400mb", "--output-soft-limit", "4mb"];
    let server = Server::start_by(&clock, &limits);
    let mut other = server.client();
    let value = vec![b'x'; 1 << 20];
    assert_eq!(other.run_words(&[b"SET", b"big", &value]), "OK");
    let mut slow = server.client();
    slow.send_raw(&encode(&[b"GET", b"big"]).repeat(100));
    eventually("its replies wait", || {
        !other.run("CLIENT LIST").lines().all(|client| client.contains("omem=0 "))
    });
    clock.advance_ms(59_000);
    assert!(other.run("INFO stats").contains("client_output_buffer_limit_disconnections:0"));
    assert_eq!(other.run("CLIENT LIST").matches("id=").count(), 2);
    clock.advance_ms(2_000);
    eventually("it is disconnected", || other.run("CLIENT LIST").matches("id=").count() == 1);
    assert!(other.run("INFO stats").contains("client_output_buffer_limit_disconnections:1"));
}

#[test]
fn garbage_is_answered_once_and_for_all() {
    let server = Server::start(&[]);
    for (bytes, text) in [
        (&b"*2147483647\r\n"[..], "invalid multibulk length"),
        (b"*1\r\n$2147483647\r\n", "invalid bulk length"),
        (b"*1\r\nGET\r\n", "expected '$', got 'G'"),
        (b"\"unbalanced\r\n", "unbalanced quotes in request"),
    ] {
        let mut client = server.client();
        client.send_raw(&[b"PING\r\n", bytes, b"PING\r\n"].concat());
        assert_eq!(client.reply(), "PONG");
        assert_eq!(client.reply(), format!("(ERR Protocol error: {text})"));
        assert_eq!(client.try_reply(), None);
    }
}

#[test]
fn declared_lengths_and_idle_clients_cost_nothing() {
    let dir = TempDir::new();
    let server = Program::spawn(dir.path(), &[]);
    server.client().run("PING");
    let before = server.status_bytes("RssAnon");
    let clients: Vec<_> = (0..200)
        .map(|_| {
            let mut client = server.client();
            client.send_raw(b"*1048576\r\n$67108864\r\nabc");
            client
        })
        .collect();
    assert_eq!(server.client().run("PING"), "PONG");
    let grown = server.status_bytes("RssAnon").saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes for 200 clients that sent 30 bytes each");
    drop(clients);
    server.kill();
}

/// However much it has sent: no more of its commands are done than it takes replies of.
#[test]
fn a_client_that_does_not_read_makes_no_more_replies() {
    let server = Server::start(&["--output-hard-limit", "8mb", "--output-soft-limit", "4mb"]);
    let mut other = server.client();
    let value = vec![b'x'; 1 << 20];
    assert_eq!(other.run_words(&[b"SET", b"big", &value]), "OK");
    let mut slow = server.client();
    slow.send_raw(&encode(&[b"GET", b"big"]).repeat(100));
    eventually("more of its replies wait than the soft limit", || {
        let waiting = |client: &str| client.split(' ').next().unwrap().parse::<u64>().unwrap();
        other.run("CLIENT LIST").split("obl=").skip(1).any(|client| waiting(client) > 4 << 20)
    });
    for _ in 0..20 {
        assert_eq!(other.run("PING"), "PONG");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(other.run("INFO stats").contains("client_output_buffer_limit_disconnections:0"));
    for n in 0..100 {
        assert_eq!(slow.reply().len(), value.len() + 2, "{n}");
    }
    assert_eq!(slow.run("PING"), "PONG");
}

/// One reply comes on top of what waits already.
#[test]
fn a_client_whose_replies_take_too_much_is_dropped() {
    let server = Server::start(&["--output-hard-limit", "64mb", "--output-soft-limit", "60mb"]);
    let mut other = server.client();
    let value = vec![b'x'; 1 << 20];
    assert_eq!(other.run_words(&[b"SET", b"big", &value]), "OK");
    let mut slow = server.client();
    let mut many = vec![&b"MGET"[..]];
    many.resize(61, b"big");
    slow.send_raw(&[encode(&[b"GET", b"big"]).repeat(50), encode(&many)].concat());
    eventually("it is disconnected", || {
        other.run("INFO stats").contains("client_output_buffer_limit_disconnections:1")
    });
    let mut rest = Vec::new();
    let read = slow.stream.read_to_end(&mut rest);
    assert!(read.is_err() || rest.len() < 100 << 20, "every reply came");
}

/// The largest client goes, but for those that are not to, whose bytes do not count.
#[test]
fn clients_that_are_not_to_be_dropped_are_not() {
    let server = Server::start(&["--client-bytes-max", "8mb"]);
    let (mut kept, mut dropped, mut other) = (server.client(), server.client(), server.client());
    let value = vec![b'x'; 1 << 20];
    let queue = |client: &mut Client, commands: usize| {
        assert_eq!(client.run("MULTI"), "OK");
        // One that is dropped meanwhile takes no more.
        let sent = client.stream.write_all(&encode(&[&b"SET"[..], b"k", &value]).repeat(commands));
        sent.is_ok() && (0..commands).all(|_| client.try_reply().as_deref() == Some("QUEUED"))
    };
    assert_eq!(kept.run("CLIENT NO-EVICT ON"), "OK");
    assert!(queue(&mut kept, 12));
    // It leaves the others all of the room.
    assert!(queue(&mut dropped, 3));
    assert!(other.run("INFO stats").contains("evicted_clients:0"));
    assert_eq!(dropped.run("DISCARD"), "OK");
    assert!(!queue(&mut dropped, 12));
    assert!(other.run("INFO stats").contains("evicted_clients:1"));
    // It is like others again after this.
    kept.script(&[("DISCARD", "OK"), ("CLIENT NO-EVICT OFF", "OK")]);
    assert!(!queue(&mut kept, 12));
    assert!(other.run("INFO stats").contains("evicted_clients:2"));
}

#[test]
fn a_slow_reader_gets_everything() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let value = vec![b'v'; 100_000];
    assert_eq!(client.run_words(&[b"SET", b"k", &value]), "OK");
    let rounds = 200;
    let mut writer = client.stream.try_clone().unwrap();
    let thread = std::thread::spawn(move || {
        for _ in 0..rounds {
            writer.write_all(&encode(&[b"GET", b"k"])).unwrap();
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    for _ in 0..rounds {
        assert_eq!(client.reply().len(), value.len() + 2);
    }
    thread.join().unwrap();
}

#[test]
fn too_many_clients_are_told() {
    let server = Server::start(&["--max-clients", "3"]);
    let mut clients: Vec<_> = (0..3).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.run("PING"), "PONG"));
    let mut extra = server.client();
    assert_eq!(extra.try_reply().as_deref(), Some("(ERR max number of clients reached)"));
    drop(clients.pop());
    eventually("a place that was left is given again", || {
        let mut client = server.client();
        client.send(&[b"PING"]);
        client.try_reply().as_deref() == Some("PONG")
    });
}

/// Where files run out before `--max-clients` is reached.
#[test]
fn clients_without_a_descriptor_are_told_too() {
    let dir = TempDir::new();
    let mut shell = Command::new("sh");
    let line = "ulimit -n 100; exec \"$0\" \"$@\"";
    shell.args(["-c", line, env!("CARGO_BIN_EXE_hedgerow")]);
    let server = Program::start(shell, dir.path(), &[]);
    let mut first = server.client();
    assert_eq!(first.run("CONFIG GET maxclients"), "[\"maxclients\", \"36\"]");
    let refused = first.run("CONFIG SET maxclients 5000");
    assert!(
        refused.contains("is not able to handle the specified number of clients, try with 36"),
        "{refused}"
    );
    let mut others: Vec<_> = (0..150).map(|_| server.client()).collect();
    others.iter_mut().for_each(|client| client.send(&[b"PING"]));
    let answers: Vec<Option<String>> = others.iter_mut().map(|client| client.try_reply()).collect();
    assert_eq!(answers.iter().flatten().filter(|answer| *answer == "PONG").count(), 35);
    // One that is told so and closed may find its connection reset, for it had sent something.
    let served = |answer: &&Option<String>| answer.as_deref() == Some("PONG");
    let told = |answer: &Option<String>| {
        answer.as_deref().is_none_or(|text| text == "(ERR max number of clients reached)")
    };
    assert!(answers.iter().filter(|answer| !served(answer)).all(told), "{answers:?}");
    drop(others);
    assert_eq!(first.run("PING"), "PONG");
    server.kill();
}

#[test]
fn idle_clients_are_dropped_if_asked() {
    let clock = clock();
    let server = Server::start_by(&clock, &["--idle-timeout", "5m"]);
    let [mut first, mut second, mut other] = [(); 3].map(|()| server.client());
    assert_eq!(first.run("PING"), "PONG");
    clock.advance_ms(1);
    assert_eq!(second.run("PING"), "PONG");
    clock.advance_ms(299_000);
    assert_eq!(other.run("CLIENT LIST").matches("id=").count(), 3);
    clock.advance_ms(1_000);
    // The same look that finds the first one late finds the second one in time.
    assert_eq!(first.try_reply(), None);
    assert_eq!(other.run("CLIENT LIST").matches("id=").count(), 2);
    clock.advance_ms(1);
    assert_eq!(second.try_reply(), None);
    assert_eq!(other.run("PING"), "PONG");
}

/// As `timeout 0` has it, and in Redis.
#[test]
fn an_idle_timeout_of_0_is_never() {
    for never in ["0", "0s", "0ms"] {
        let clock = clock();
        let server = Server::start_by(&clock, &["--idle-timeout", never]);
        let mut client = server.client();
        client.script(&[("PING", "PONG"), ("CONFIG GET timeout", "[\"timeout\", \"0\"]")]);
        clock.advance_ms(3_600_000);
        // The limits of time are looked at meanwhile.
        std::thread::sleep(Duration::from_millis(300));
        client.script(&[("PING", "PONG")]);
    }
}

#[test]
fn paused_commands_wait() {
    let clock = clock();
    let server = Server::start_by(&clock, &[]);
    let (mut one, mut two) = (server.client(), server.client());
    assert_eq!(one.run("CLIENT PAUSE 100000 WRITE"), "OK");
    assert_eq!(two.run("GET k"), "nil");
    assert_eq!(one.run("CLIENT UNPAUSE"), "OK");
    assert_eq!(one.run("CLIENT PAUSE 400 WRITE"), "OK");
    two.send(&[b"SET", b"k", b"v"]);
    eventually("it waits", || one.run("CLIENT LIST").contains("flags=b"));
    clock.advance_ms(399);
    // Whether it has ended is asked after each turn of the loop.
    (0..3).for_each(|_| assert_eq!(one.run("GET k"), "nil"));
    assert!(one.run("CLIENT LIST").contains("flags=b"), "the pause has not ended");
    clock.advance_ms(1);
    assert_eq!(two.reply(), "OK");
    assert_eq!(one.run("CLIENT PAUSE 100000"), "OK");
    two.send(&[b"PING"]);
    assert_eq!(one.run("CLIENT UNPAUSE"), "OK");
    assert_eq!(two.reply(), "PONG");
}

#[test]
fn large_values_pass_and_larger_ones_are_refused() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let value = vec![b'x'; 16 << 20];
    assert_eq!(client.run_words(&[b"HSET", b"h:1", b"f", &value]), "1");
    assert_eq!(client.run("HSTRLEN h:1 f"), value.len().to_string());
    let key = vec![b'k'; 70_000];
    assert!(
        client.run_words(&[b"SET", &key, b"v"]).contains("a key has 1 to 65536 bytes; this one has 70000")
    );
    assert_eq!(client.run("PING"), "PONG");
}

/// A row has at most 64 MiB, whether it comes at once or by parts.
#[test]
fn rows_that_would_be_too_long_are_refused_and_stay_as_they_are() {
    let dir = TempDir::new();
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    let value = vec![b'x'; 40 << 20];
    let length = value.len().to_string();
    assert_eq!(client.run_words(&[b"HSET", b"h:1", b"a", &value]), "1");
    for words in [
        &[&b"HSET"[..], b"h:1", b"b", &value][..],
        &[b"HSETNX", b"h:1", b"b", &value],
        &[b"HSETEX", b"h:1", b"EX", b"100", b"FIELDS", b"1", b"b", &value],
        &[b"HSET", b"h:2", b"a", &value, b"b", &value],
    ] {
        let reply = client.run_words(words);
        assert!(
            reply.starts_with("(ERR ") && reply.contains("67108864"),
            "{} {reply}",
            words[0].escape_ascii()
        );
    }
    client.script(&[("MULTI", "OK"), ("SET s 1", "QUEUED")]);
    assert_eq!(client.run_words(&[b"HSET", b"h:1", b"b", &value]), "QUEUED");
    let reply = client.run("EXEC");
    assert!(reply.starts_with("(EXECABORT ") && reply.contains("67108864"), "{reply}");
    let is_as_before: &[(&str, &str)] =
        &[("HSTRLEN h:1 a", &length), ("HKEYS h:1", "[\"a\"]"), ("EXISTS s h:2", "0")];
    client.script(is_as_before);
    // A string, too.
    let too_long = "(ERR string exceeds maximum allowed size (proto-max-bulk-len))";
    assert_eq!(client.run_words(&[b"SET", b"t", &value]), "OK");
    assert_eq!(client.run_words(&[b"APPEND", b"t", &value]), too_long);
    client.script(&[
        ("SETRANGE t 67108864 x", too_long),
        ("SETRANGE t 9223372036854775807 x", too_long),
        ("STRLEN t", &length),
        ("CONFIG GET proto-max-bulk-len", "[\"proto-max-bulk-len\", \"67108864\"]"),
    ]);
    // A small field of the long row can be changed, and the row is read whole after a restart.
    client.script(&[("HSET h:1 c 1", "1"), ("HINCRBY h:1 c 1", "2")]);
    server.stop();
    let server = Server::start_on(dir.path(), &[]);
    let mut client = server.client();
    client.script(&[("HSTRLEN h:1 a", &length), ("HGET h:1 c", "\"2\""), ("STRLEN t", &length)]);
    assert_eq!(client.run("HGETALL h:1").len(), value.len() + "[\"a\", \"\", \"c\", \"2\"]".len());
    client.script(&[("DEL h:1 t", "2"), ("DBSIZE", "0")]);
    assert_eq!(client.run_words(&[b"HSET", b"h:1", b"b", &value]), "1");
}

/// Commands of a few bytes that write as much as a row can have: a transaction takes no more memory for them than a batch may have.
#[test]
fn a_transaction_of_long_values_is_refused_before_it_takes_their_memory() {
    let dir = TempDir::new();
    let server = Program::spawn(dir.path(), &[]);
    let mut client = server.client();
    let peak = || server.status_bytes("VmHWM") >> 20;
    let before = peak();
    assert_eq!(client.run("MULTI"), "OK");
    for n in 0..24 {
        assert_eq!(client.run(&format!("SETRANGE k:{n} 67108863 x")), "QUEUED");
    }
    let reply = client.run("EXEC");
    assert!(reply.starts_with("(EXECABORT ") && reply.contains("268435456"), "{reply}");
    client.script(&[("DBSIZE", "0"), ("SET a 1", "OK"), ("PING", "PONG")]);
    // 1,536 MiB if all were staged; a vector that grows has twice what is in it.
    let taken = peak() - before;
    assert!(taken < 1_000, "{taken} MiB for the values of a transaction");
}

/// A client's pipeline may be one transaction, however many commands it has.
#[test]
fn a_transaction_of_many_commands_is_run() {
    const COMMANDS: usize = 70_000;
    let server = Server::start(&[]);
    let mut client = server.client();
    let sets: String = (0..COMMANDS).map(|n| format!("SET k{n} v\r\n")).collect();
    client.send_raw(format!("MULTI\r\n{sets}EXEC\r\n").as_bytes());
    assert_eq!(client.reply(), "OK");
    (0..COMMANDS).for_each(|n| assert_eq!(client.reply(), "QUEUED", "{n}"));
    assert_eq!(client.reply(), format!("[{}]", ["OK"; COMMANDS].join(", ")));
    client.script(&[("DBSIZE", &COMMANDS.to_string()), ("GET k69999", "\"v\"")]);
}

/// A field that is named again is answered as it is by then, in every store.
#[test]
fn fields_that_are_named_again_are_as_the_command_left_them() {
    on_every_store(|store| {
        let server = store.start(&[]);
        server.client().script(&[
            ("HSET h f v g w", "2"),
            ("HGETDEL h FIELDS 2 f f", "[\"v\", nil]"),
            ("HEXPIRE h 100 NX FIELDS 3 g g f", "[1, 0, -2]"),
            ("HEXPIRE h 200 FIELDS 2 g g", "[1, 1]"),
            ("HPERSIST h FIELDS 2 g g", "[1, -1]"),
            ("HEXPIRE h 0 FIELDS 2 g g", "[2, -2]"),
            ("EXISTS h", "0"),
            ("CLIENT KILL MAXAGE 0", "(ERR maxage should be greater than 0)"),
            ("CLIENT KILL MAXAGE -1", "(ERR maxage should be greater than 0)"),
            ("CLIENT KILL MAXAGE x", "(ERR maxage is not an integer or out of range)"),
        ]);
    });
}

/// A value is not copied for each time that its field is named.
#[test]
fn fields_that_are_named_again_and_again_take_no_memory() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let value = vec![b'v'; 1 << 20];
    assert_eq!(client.run_words(&[b"HSET", b"h:1", b"f", &value]), "1");
    let mut words = vec![&b"HEXPIRE"[..], b"h:1", b"100", b"FIELDS", b"30000"];
    words.extend([&b"f"[..]; 30_000]);
    assert_eq!(client.run_words(&words), format!("[{}]", ["1"; 30_000].join(", ")));
    client.script(&[("HSTRLEN h:1 f", "1048576"), ("HTTL h:1 FIELDS 1 f", "[100]")]);
}

#[test]
fn a_full_store_refuses_writes_and_takes_deletes() {
    let server =
        Server::start(&["--fast-bytes-max", "96mb", "--capacity", "none", "--durability", "process"]);
    let mut client = server.client();
    let value = vec![b'x'; 1 << 20];
    let mut written = 0;
    let refusal = loop {
        let reply = client.run_words(&[b"SET", format!("k{written}").as_bytes(), &value]);
        if reply != "OK" {
            break reply;
        }
        written += 1;
        assert!(written < 1000, "the limit is not kept");
    };
    assert!(refusal.starts_with("(OOM "), "{refusal}");
    client.script(&[("CONFIG GET capacity", "[\"capacity\", \"none\"]")]);
    assert_eq!(crate::info::info(&mut client, "sortedtables")["sorted_runs"], "0");
    assert_eq!(client.run("STRLEN k0"), value.len().to_string());
    client.run("MULTI");
    client.run_words(&[b"SET", b"a", &value]);
    client.run_words(&[b"SET", b"b", &value]);
    let reply = client.run("EXEC");
    assert!(reply.starts_with("(EXECABORT Transaction discarded, nothing was written: OOM"), "{reply}");
    assert_eq!(client.run("EXISTS a b"), "0");
    for index in 0..written / 2 {
        assert_eq!(client.run(&format!("DEL k{index}")), "1");
    }
    eventually("space that was freed is used", || client.run_words(&[b"SET", b"again", &value]) == "OK");
}

/// A write that finds no room waits for gc; it is not refused, done twice, or in the way of other clients.
#[test]
fn writes_wait_for_space_and_readers_do_not() {
    const KEYS: usize = 40;
    let server =
        Server::start(&["--fast-bytes-max", "96mb", "--capacity", "none", "--durability", "process"]);
    let (mut writer, mut reader) = (server.client(), server.client());
    let value = vec![b'x'; 300 << 10];
    let done = AtomicBool::new(false);
    let begun = Instant::now();
    let slowest = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !done.load(Ordering::Relaxed) {
                let started = Instant::now();
                reader.run("GET counter");
                slowest = slowest.max(started.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            slowest
        });
        for round in 0..60 {
            // Of the last two kinds one is a batch and one is not.
            writer.send(&[b"MULTI"]);
            writer.send(&[b"INCR", b"counter"]);
            writer.send(&[b"SET", format!("k{}", round % KEYS).as_bytes(), &value]);
            writer.send(&[b"EXEC"]);
            writer.send(&[b"MULTI"]);
            writer.send(&[b"INCR", b"other"]);
            writer.send(&[b"SET", format!("k{}", round % KEYS).as_bytes(), &value]);
            writer.send(&[b"STRLEN", b"other"]);
            writer.send(&[b"EXEC"]);
            for key in 0..KEYS {
                writer.send(&[b"SET", format!("k{key}").as_bytes(), &value]);
            }
            for reply in 0..KEYS + 9 {
                let reply = (reply, writer.reply());
                assert!(!reply.1.contains("OOM"), "{reply:?}");
            }
        }
        done.store(true, Ordering::Relaxed);
        reading.join().unwrap()
    });
    writer.script(&[("GET counter", "\"60\""), ("GET other", "\"60\"")]);
    let total = begun.elapsed();
    assert!(slowest * 4 < total, "a read took {slowest:?} of the {total:?} that the writes took");
    let info = writer.run("INFO hedgerow");
    let (_, waits) = info.split_once("waits_for_space:").unwrap();
    let waits: u64 = waits.split("\\r").next().unwrap().parse().unwrap();
    println!("{waits} waits, slowest read {slowest:?}");
    assert!(waits > 0);
}

/// A short command may write much. What a transaction writes is in memory until all of it is written: so there is a limit, the same at every store, and beyond it
/// nothing is written.
#[test]
fn a_transaction_that_writes_too_much_is_refused_whole() {
    // Pairs of devices are too short for it to be tried there.
    for store in [Store::Tiered, Store::Pairs] {
        let server = store.start(&[]);
        let mut client = server.client();
        assert_eq!(client.run("MULTI"), "OK");
        for n in 0..8 {
            assert_eq!(client.run(&format!("SETRANGE k{n} 50000000 x")), "QUEUED");
        }
        let refused = client.run("EXEC");
        assert!(
            refused.contains("EXECABORT") && refused.contains("takes more than 268435456 bytes"),
            "{refused}"
        );
        client.script(&[
            ("EXISTS k0 k1 k2 k3 k4 k5 k6 k7", "0"),
            // What was refused is not held against what comes next.
            ("MULTI", "OK"),
            ("SETRANGE k0 50000000 x", "QUEUED"),
            ("EXEC", "[50000001]"),
            ("STRLEN k0", "50000001"),
        ]);
    }
}
