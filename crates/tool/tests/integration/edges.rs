//! Clients at the edge of the protocol: browsers, half-closed and vanished connections, clients that are paused.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::client::{Server, encode};

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
    let server = Server::start(&[]);
    let value = vec![b'v'; 8 << 20];
    assert_eq!(server.client().run_words(&[b"SET", b"big", &value]), "OK");
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(b"GET big\r\nPING\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), value.len() + "$8388608\r\n\r\n+PONG\r\n".len());
}

#[test]
fn a_client_that_leaves_while_it_is_paused_is_noticed() {
    let server = Server::start(&[]);
    let mut client = server.client();
    assert_eq!(client.run("CLIENT PAUSE 100000 WRITE"), "OK");
    let mut gone: Vec<_> = (0..5).map(|_| server.client()).collect();
    gone.iter_mut().for_each(|client| client.send(&[b"SET", b"a", b"1"]));
    assert_eq!(connected_clients(&client.run("INFO clients")), 6);
    drop(gone);
    let started = Instant::now();
    while connected_clients(&client.run("INFO clients")) > 1 {
        assert!(started.elapsed() < Duration::from_secs(5), "they are still there");
        std::thread::sleep(Duration::from_millis(5));
    }
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
    let started = Instant::now();
    std::thread::sleep(Duration::from_millis(50));
    while connected_clients(&client.run("INFO clients")) > 1 {
        assert!(started.elapsed() < Duration::from_secs(10), "it is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(silent);
}

#[test]
fn unpausing_takes_effect_at_once() {
    let server = Server::start(&[]);
    let (mut one, mut two) = (server.client(), server.client());
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..21 {
        assert_eq!(one.run("CLIENT PAUSE 100000"), "OK");
        two.send(&[b"PING"]);
        std::thread::sleep(Duration::from_millis(7));
        let started = Instant::now();
        assert_eq!(one.run("CLIENT UNPAUSE"), "OK");
        assert_eq!(two.reply(), "PONG");
        times.push(started.elapsed());
    }
    times.sort();
    assert!(times[10] < Duration::from_millis(25), "{times:?}");
}

#[test]
fn a_pause_ends_at_its_time_and_later_ones_only_lengthen_it() {
    let server = Server::start(&["--idle-timeout", "300ms"]);
    let (mut one, mut two) = (server.client(), server.client());
    let started = Instant::now();
    assert_eq!(one.run("CLIENT PAUSE 700"), "OK");
    assert_eq!(one.run("CLIENT PAUSE 10 WRITE"), "OK");
    // A client that waits is not idle.
    assert_eq!(two.run("PING"), "PONG");
    assert!(started.elapsed() >= Duration::from_millis(690));
    let started = Instant::now();
    assert_eq!(two.run("CLIENT PAUSE 200 WRITE"), "OK");
    let lines = ["MULTI", "GET a", "EXEC", "GET a"];
    assert_eq!(lines.map(|line| two.run(line)), ["OK", "QUEUED", "[nil]", "nil"]);
    assert!(started.elapsed() < Duration::from_millis(190), "what only reads does not wait");
    assert_eq!(two.run("SET a 1"), "OK");
    assert!(started.elapsed() >= Duration::from_millis(190));
}
