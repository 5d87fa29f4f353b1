//! Clients at the edge of the protocol: browsers, half-closed and vanished connections, clients that are paused.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use hedgerow_sim::eventually;

use crate::client::{Client, Server, Store, clock, encode, on_every_store};

/// Sends bytes on a connection of its own and reads until the server closes it.
fn exchange(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the server closes the connection");
    answer
}

fn connected_clients(text: &str) -> usize {
    let (_, rest) = text.split_once("connected_clients:").unwrap();
    rest.split("\\r").next().unwrap().parse().unwrap()
}

#[test]
fn a_request_of_a_browser_runs_nothing() {
    let server = Server::start(&[]);
    let mut client = server.client();
    assert_eq!(client.run("SET kept 1"), "OK");
    let body = "FLUSHALL\r\nSET evil 1\r\n";
    let rest = format!("Host: 127.0.0.1:6379\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for method in ["POST", "post", "PUT", "OPTIONS", "GET"] {
        let answer = exchange(&server, format!("{method} / HTTP/1.1\r\n{rest}").as_bytes());
        let errors = String::from_utf8(answer).unwrap();
        assert!(errors.lines().count() <= 1 && !errors.contains("OK"), "{method}: {errors}");
    }
    // As arrays, too, and behind other commands, whose replies still come.
    for name in ["POST", "Host:", "hOsT:"] {
        let bytes = [encode(&[b"PING"]), encode(&[name.as_bytes(), b"x"]), encode(&[b"FLUSHALL"])].concat();
        assert_eq!(exchange(&server, &bytes), b"+PONG\r\n", "{name}");
    }
    assert_eq!(client.run("GET kept"), "\"1\"");
    assert_eq!(client.run("DBSIZE"), "1");
}

#[test]
fn a_request_of_a_browser_closes_before_authentication() {
    let server = Server::start(&["--requirepass", "secret"]);
    assert_eq!(exchange(&server, b"POST / HTTP/1.1\r\nAUTH secret\r\nFLUSHALL\r\n"), b"");
}

#[test]
fn a_half_closed_connection_gets_its_replies_and_ends() {
    let server = Server::start(&["--durability", "immediate"]);
    for (bytes, expected) in [
        (&b"PING\r\n"[..], &b"+PONG\r\n"[..]),
        (b"SET a 1\r\nINCR a\r\n", b"+OK\r\n:2\r\n"),
        (b"SET a 1\r\nWAITAOF 1 0 0\r\n", b"+OK\r\n*2\r\n:1\r\n:0\r\n"),
        (b"PING\r\nPIN", b"+PONG\r\n"),
    ] {
        for _ in 0..20 {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            stream.write_all(bytes).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("the server ends the connection");
            assert_eq!(answer, expected);
        }
    }
    assert_eq!(connected_clients(&server.client().run("INFO clients")), 1);
}

#[test]
fn a_half_closed_connection_that_reads_slowly_gets_everything() {
    on_every_store(a_half_closed_connection_that_reads_slowly_gets_everything_on);
}

fn a_half_closed_connection_that_reads_slowly_gets_everything_on(store: Store) {
    let server = store.start(&[]);
    // As much as a row may have anywhere, four times.
    let value = vec![b'v'; 2_000_000];
    assert_eq!(server.client().run_words(&[b"SET", b"big", &value]), "OK");
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(b"GET big\r\nGET big\r\nGET big\r\nGET big\r\nPING\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), 4 * (value.len() + "$2000000\r\n\r\n".len()) + "+PONG\r\n".len());
}

#[test]
fn a_client_that_leaves_while_it_is_paused_is_noticed() {
    on_every_store(a_client_that_leaves_while_it_is_paused_is_noticed_on);
}

fn a_client_that_leaves_while_it_is_paused_is_noticed_on(store: Store) {
    let server = store.start(&[]);
    let mut client = server.client();
    assert_eq!(client.run("CLIENT PAUSE 100000 WRITE"), "OK");
    let mut gone: Vec<_> = (0..5).map(|_| server.client()).collect();
    gone.iter_mut().for_each(|client| client.send(&[b"SET", b"a", b"1"]));
    assert_eq!(connected_clients(&client.run("INFO clients")), 6);
    drop(gone);
    eventually("they are gone", || connected_clients(&client.run("INFO clients")) == 1);
    assert_eq!(client.run("CLIENT UNPAUSE"), "OK");
    assert_eq!(client.run("EXISTS a"), "0");
}

#[test]
fn a_closing_connection_that_is_not_read_ends() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let limits: [&[u8]; 4] = [b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 256mb 64mb 1"];
    assert_eq!(client.run_words(&limits), "OK");
    let value = vec![b'v'; 16 << 20];
    assert_eq!(client.run_words(&[b"SET", b"big", &value]), "OK");
    let mut silent = server.client();
    silent.send_raw(b"GET big\r\nQUIT\r\n");
    eventually("it is there", || connected_clients(&client.run("INFO clients")) == 2);
    eventually("it is gone", || connected_clients(&client.run("INFO clients")) == 1);
    drop(silent);
}

#[test]
fn unpausing_twice_lets_go_of_all_who_waited() {
    let server = Server::start(&[]);
    let (mut one, mut two) = (server.client(), server.client());
    assert_eq!(one.run("CLIENT PAUSE 100000 WRITE"), "OK");
    two.send(&[b"SET", b"a", b"1"]);
    eventually("it waits", || one.run("CLIENT LIST").contains("flags=b"));
    one.send_raw(b"CLIENT UNPAUSE\r\nCLIENT UNPAUSE\r\n");
    assert_eq!([one.reply(), one.reply()], ["OK", "OK"]);
    assert_eq!(two.reply(), "OK");
}

/// Nothing is done, or said to be, that a client has sent before it was killed and that comes after it.
#[test]
fn commands_of_a_killed_client_are_not_done() {
    let server = Server::start(&[]);
    // In a turn they are served in the order in which they came.
    let (mut killer, mut killed, mut other) = (server.client(), server.client(), server.client());
    assert_eq!(killer.run("SET k before"), "OK");
    let id = killed.run("CLIENT ID");
    assert_eq!(other.run("CLIENT PAUSE 100000"), "OK");
    killer.send_raw(format!("PING\r\nCLIENT KILL ID {id}\r\n").as_bytes());
    killed.send(&[b"SET", b"k", b"after"]);
    eventually("both wait", || other.run("CLIENT LIST").matches("flags=b").count() == 2);
    assert_eq!(other.run("CLIENT UNPAUSE"), "OK");
    assert_eq!([killer.reply(), killer.reply()], ["PONG", "1"]);
    assert_eq!(killed.try_reply(), None);
    assert_eq!(other.run("GET k"), "\"before\"");
}

#[test]
fn unpausing_takes_effect_at_once() {
    let server = Server::start(&[]);
    let (mut one, mut two) = (server.client(), server.client());
    let mut take = || {
        assert_eq!(one.run("CLIENT PAUSE 100000"), "OK");
        two.send(&[b"PING"]);
        std::thread::sleep(Duration::from_millis(7));
        let started = Instant::now();
        assert_eq!(one.run("CLIENT UNPAUSE"), "OK");
        assert_eq!(two.reply(), "PONG");
        started.elapsed()
    };
    // Sooner than the loop looks at the clock, unless the machine is busy with something else: then again.
    eventually("half of 21 are quick", || {
        let mut times: Vec<Duration> = (0..21).map(|_| take()).collect();
        times.sort();
        times[10] < Duration::from_millis(25)
    });
}

#[test]
fn a_pause_ends_at_its_time_and_later_ones_only_lengthen_it() {
    on_every_store(a_pause_ends_at_its_time_and_later_ones_only_lengthen_it_on);
}

fn a_pause_ends_at_its_time_and_later_ones_only_lengthen_it_on(store: Store) {
    let clock = clock();
    let server = store.start_by(&clock, &["--idle-timeout", "300ms"]);
    let (mut one, mut two) = (server.client(), server.client());
    // Each command is a turn of the loop, after which it is asked whether the pause has ended.
    let waits = |one: &mut Client| (0..3).all(|_| one.run("CLIENT LIST").contains("flags=b"));
    assert_eq!(one.run("CLIENT PAUSE 700"), "OK");
    assert_eq!(one.run("CLIENT PAUSE 10 WRITE"), "OK");
    two.send(&[b"PING"]);
    eventually("it waits", || waits(&mut one));
    for _ in 0..3 {
        clock.advance_ms(233);
        assert!(waits(&mut one), "the shorter pause has not ended the longer one");
    }
    clock.advance_ms(1);
    // A client that waits is not idle.
    assert_eq!(two.reply(), "PONG");
    assert_eq!(two.run("CLIENT PAUSE 200 WRITE"), "OK");
    let lines = ["MULTI", "GET a", "EXEC", "GET a"];
    assert_eq!(
        lines.map(|line| two.run(line)),
        ["OK", "QUEUED", "[nil]", "nil"],
        "what only reads does not wait"
    );
    two.send(&[b"SET", b"a", b"1"]);
    eventually("it waits", || waits(&mut one));
    clock.advance_ms(199);
    assert!(waits(&mut one));
    clock.advance_ms(1);
    assert_eq!(two.reply(), "OK");
}

#[test]
fn who_has_waited_for_the_end_of_a_pause_was_not_idle() {
    let clock = clock();
    let server = Server::start_by(&clock, &["--idle-timeout", "300ms"]);
    let (mut one, mut two) = (server.client(), server.client());
    assert_eq!(one.run("CLIENT PAUSE 700"), "OK");
    two.send(&[b"PING"]);
    eventually("it waits", || one.run("CLIENT LIST").contains("flags=b"));
    // The loop sees the end of the pause when it looks at the limits of time, too.
    clock.advance_ms(700);
    assert_eq!(two.try_reply().as_deref(), Some("PONG"));
}

/// Who gives the password while all are paused has not been silent for too long when the pause ends.
#[test]
fn who_has_waited_for_the_end_of_a_pause_may_authenticate() {
    let clock = clock();
    let server = Server::start_by(&clock, &["--requirepass", "secret"]);
    let (mut one, mut two) = (server.client(), server.client());
    assert_eq!(one.run("AUTH secret"), "OK");
    assert_eq!(one.run("CLIENT PAUSE 11000"), "OK");
    two.send(&[b"AUTH", b"secret"]);
    eventually("it waits", || one.run("CLIENT LIST").contains("flags=b"));
    // Longer than a stranger may stay. The loop sees the end of the pause when it looks at the limits of time, too.
    clock.advance_ms(11_000);
    assert_eq!(two.try_reply().as_deref(), Some("OK"));
    assert_eq!(two.run("PING"), "PONG");
}
