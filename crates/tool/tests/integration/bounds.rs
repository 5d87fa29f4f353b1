//! Commands whose work or answer would grow with what a client thinks up.

use std::time::{Duration, Instant};

use crate::client::{Client, Server};

/// Replies of SCAN or HSCAN until the cursor is 0: how long they are.
fn pages(client: &mut Client, scan: impl Fn(&str) -> String) -> Vec<String> {
    let mut cursor = "0".to_string();
    let mut pages = Vec::new();
    loop {
        let reply = client.run(&scan(&cursor));
        cursor = reply[2..].split('"').next().unwrap().to_string();
        pages.push(reply);
        if cursor == "0" {
            return pages;
        }
    }
}

#[test]
fn scans_end_after_some_megabytes() {
    const FIELDS: usize = 40;
    let server = Server::start(&[]);
    let mut client = server.client();
    let value = vec![b'v'; 1 << 20];
    for n in 0..FIELDS {
        // A name that no table learns.
        assert_eq!(client.run_words(&[b"HSET", b"h:1", format!("@{n}").as_bytes(), &value]), "1");
    }
    let found = pages(&mut client, |cursor| format!("HSCAN h:1 {cursor} COUNT 1000"));
    assert_eq!(found.len(), 3, "40 MiB in pages of 16");
    assert!(found.iter().all(|page| page.len() < 18 << 20));
    let names: usize = found.iter().map(|page| page.matches("\"@").count()).sum();
    assert_eq!(names, FIELDS);
    assert_eq!(pages(&mut client, |cursor| format!("HSCAN h:1 {cursor} COUNT 1000 NOVALUES")).len(), 1);

    let key = |n: usize| [format!("{n:04}").into_bytes(), vec![b'k'; 65_000]].concat();
    for n in 0..600 {
        assert_eq!(client.run_words(&[b"SET", &key(n), b"v"]), "OK");
    }
    let found = pages(&mut client, |cursor| format!("SCAN {cursor} COUNT 10000 TYPE string"));
    assert_eq!(found.len(), 3, "39 MB in pages of 16 MiB");
    assert_eq!(found.iter().map(|page| page.matches('k').count()).sum::<usize>(), 600 * 65_000);
}

#[test]
fn what_is_copied_fits_into_memory() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let value = vec![b'v'; 50 << 20];
    for name in [&b"@1"[..], b"@2", b"@3", b"@4"] {
        assert_eq!(client.run_words(&[b"HSET", b"h:1", name, &value]), "1");
    }
    let refused = "(ERR a hash of more than 201326592 bytes can not be copied or renamed)";
    client.script(&[
        ("COPY h:1 h:2", refused),
        ("RENAME h:1 h:2", refused),
        ("HDEL h:1 @1", "1"),
        ("RENAME h:1 h:2", "OK"),
        ("HSTRLEN h:2 @4", &value.len().to_string()),
        ("EXISTS h:1", "0"),
    ]);
}

/// Whether a hash has a field is known at its first, and whether it has one left, too.
#[test]
fn hashes_are_not_counted_to_see_whether_they_are_there() {
    const FIELDS: usize = 20_000;
    const FEW: usize = 400;
    let server = Server::start(&[]);
    let mut client = server.client();
    let names: Vec<String> = (0..FIELDS).map(|n| format!("@{n}")).collect();
    for (key, fields) in [(&b"h:1"[..], FIELDS), (b"h:2", FEW)] {
        let count = fields.to_string();
        let mut words: Vec<&[u8]> = vec![b"HSETEX", key, b"EX", b"100000", b"FIELDS", count.as_bytes()];
        words.extend(names[..fields].iter().flat_map(|name| [name.as_bytes(), &b"v"[..]]));
        assert_eq!(client.run_words(&words), "1");
    }
    let take = |client: &mut Client, key: &[u8], deleted: usize| {
        let started = Instant::now();
        let exists = [vec![&b"EXISTS"[..]], vec![key; 300]].concat();
        assert_eq!(client.run_words(&exists), "300");
        for name in &names[deleted..deleted + 20] {
            assert_eq!(client.run_words(&[b"HDEL", key, name.as_bytes()]), "1");
        }
        started.elapsed()
    };
    // Fifty times the fields take fifty times as long to count, and not to look at the first. The quickest of a few, for
    // the machine may be busy with something else.
    let mut quickest = [Duration::MAX; 2];
    for deleted in (0..300).step_by(20) {
        for (quickest, key) in quickest.iter_mut().zip([&b"h:1"[..], b"h:2"]) {
            *quickest = take(&mut client, key, deleted).min(*quickest);
        }
    }
    assert!(quickest[0] < quickest[1] * 10, "{quickest:?} with {FIELDS} and {FEW} fields");
    assert_eq!(client.run("HLEN h:1"), (FIELDS - 300).to_string());
    let rest = [vec![&b"HDEL"[..], b"h:1"], names.iter().map(|name| name.as_bytes()).collect()].concat();
    assert_eq!(client.run_words(&rest), (FIELDS - 300).to_string());
    client.script(&[("EXISTS h:1", "0"), ("TYPE h:1", "none")]);
}

#[test]
fn patterns_of_every_command_are_bounded() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let long = [b'*'; 4097];
    let refused = "(ERR a pattern has at most 4096 bytes; this one has 4097)";
    for words in [
        &[&b"KEYS"[..], &long][..],
        &[b"SCAN", b"0", b"MATCH", &long],
        &[b"HSCAN", b"h", b"0", b"MATCH", &long],
        &[b"CONFIG", b"GET", &long],
        &[b"CONFIG", b"GET", &long[..4000], &long[..97]],
        &[b"COMMAND", b"LIST", b"FILTERBY", b"PATTERN", &long],
    ] {
        assert_eq!(client.run_words(words), refused, "{}", words[0].escape_ascii());
    }
    assert_eq!(client.run("CONFIG GET PORTX appendon*y"), "[\"appendonly\", \"yes\"]");
}

#[test]
fn clients_are_listed_by_any_number_of_ids() {
    let server = Server::start(&[]);
    let (mut one, mut two) = (server.client(), server.client());
    let (first, second) = (one.run("CLIENT ID"), two.run("CLIENT ID"));
    let others: Vec<String> = (1_000_000..1_300_000).map(|id: u64| id.to_string()).collect();
    let mut words: Vec<&[u8]> = vec![b"CLIENT", b"LIST", b"ID"];
    words.extend(others.iter().map(|id| id.as_bytes()));
    words.extend([second.as_bytes(), second.as_bytes()]);
    let listed = one.run_words(&words);
    assert!(
        listed.contains(&format!("id={second} ")) && !listed.contains(&format!("id={first} ")),
        "{listed}"
    );
    assert_eq!(listed.matches("id=").count(), 1);
}
