//! What commands mean where it is easily got wrong: time, watched keys, order, odds, size.

use std::time::Duration;

use crate::client::{Client, Server, TempDir};

fn unix_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

#[test]
fn no_time_to_live_is_longer_than_was_asked_for() {
    let server = Server::start(&[]);
    let mut client = server.client();
    for _ in 0..300 {
        let before = unix_ms();
        assert_eq!(client.run(&format!("SET k v PXAT {}", before + 10_000)), "OK");
        let left: u64 = client.run("PTTL k").parse().unwrap();
        let passed = unix_ms() - before;
        assert!((10_000 - passed..=10_000).contains(&left), "{left} ms of 10,000 after {passed}");
        client.run("HSET h f v");
        assert_eq!(client.run(&format!("HPEXPIREAT h {} FIELDS 1 f", unix_ms() + 10_000)), "[1]");
        let left: u64 = client.run("HPTTL h FIELDS 1 f").trim_matches(&['[', ']']).parse().unwrap();
        assert!(left <= 10_000, "{left}");
    }
}
