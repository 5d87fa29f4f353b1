//! The server over key-value devices in files: what it opens and refuses, what stays, and what it says.

use std::process::Command;

use crate::client::{Program, TempDir};

/// A URL of devices in a directory.
fn url(dir: &TempDir, files: &[&str], size: &str) -> String {
    let dir = dir.path().to_str().unwrap();
    let files: Vec<String> = files.iter().map(|file| format!("{dir}/{file}")).collect();
    format!("kvssd:{}{size}", files.join(","))
}

/// What the program says that does not start.
fn refused(url: &str, options: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hedgerow"))
        .args(["serve", "--listen", "127.0.0.1:0", "--store", url])
        .args(options)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn what_was_stored_is_there_after_a_restart_with_all_devices_in_their_order() {
    let dir = TempDir::new();
    let three = url(&dir, &["a", "b", "c"], "?size=16mb");
    let program = Program::spawn_over(&three, &["--durability", "interval:50ms"]);
    let mut client = program.client();
    for n in 0..200 {
        assert_eq!(client.run(&format!("SET k{n} {n}")), "OK");
        assert_eq!(client.run(&format!("HSET users:{n} name u{n} age {n}")), "2");
    }
    let info = client.run("INFO");
    assert!(info.contains("durability:interval:50ms\\r\\n") && info.contains("store:kvssd:"), "{info}");
    // Whoever has them keeps others off.
    assert!(refused(&three, &[]).contains("in use by"), "{}", refused(&three, &[]));
    program.kill();
    for (files, says) in [
        (&["a", "b"][..], "the array has 3 devices, and 2 were given"),
        (&["b", "a", "c"], "give them in their order"),
        (&["a", "b", "none"], "none can not be opened: device 3 of the array is missing"),
        (&["a", "b", "c", "d"], "the array has 3 devices, and 4 were given"),
    ] {
        let said = refused(&url(&dir, files, ""), &[]);
        assert!(said.contains(says), "{said}");
    }
    assert!(!dir.path().join("none").exists() && !dir.path().join("d").exists(), "nothing is made for them");
    let program = Program::spawn_over(&url(&dir, &["a", "b", "c"], ""), &["--durability", "immediate"]);
    let mut client = program.client();
    for n in 0..200 {
        assert_eq!(client.run(&format!("GET k{n}")), format!("\"{n}\""));
        assert_eq!(client.run(&format!("HGET users:{n} age")), format!("\"{n}\""));
    }
    assert_eq!(client.run("DBSIZE"), "400");
}

#[test]
fn what_cannot_be_is_said_in_a_sentence() {
    let dir = TempDir::new();
    for (size, says) in [("?size=1mb", "8388608 bytes at least"), ("?size=x", "names no store")] {
        let said = refused(&url(&dir, &["a"], size), &[]);
        assert!(said.contains(says), "{said}");
    }
    let one = url(&dir, &["a"], "?size=16mb");
    assert!(refused(&one, &["--fast-bytes-max", "1gb"]).contains("are for a tiered store"));
    assert!(refused(&one, &["--durability", "often"]).contains("is no durability"));
    assert!(!dir.path().join("a").exists(), "nothing was made");
    std::fs::write(dir.path().join("text"), "this is no device, but a text that somebody wants to keep")
        .unwrap();
    let said = refused(&url(&dir, &["text"], ""), &[]);
    assert!(said.contains("text can not be opened: device 1:"), "{said}");
    assert!(std::fs::read_to_string(dir.path().join("text")).unwrap().starts_with("this is no device"));
}

/// A value that no device takes is refused, and so is one for which there is no room; the rest goes on, and deletions make room.
#[test]
fn what_has_no_room_is_refused_and_nothing_is_lost() {
    let dir = TempDir::new();
    let program = Program::spawn_over(&url(&dir, &["a", "b"], "?size=8mb"), &[]);
    let mut client = program.client();
    let long = vec![b'v'; 40_000];
    let reply = client.run_words(&[b"SET", b"long", &long]);
    assert!(reply.starts_with("(ERR ") && reply.contains("bytes"), "{reply}");
    let value = vec![b'v'; 20_000];
    let mut stored = Vec::new();
    let full = loop {
        let key = format!("k{}", stored.len());
        match client.run_words(&[b"SET", key.as_bytes(), &value]).as_str() {
            "OK" => stored.push(key),
            refused => break refused.to_owned(),
        }
    };
    assert!(full.starts_with("(OOM ") || full.contains("full"), "{full}");
    assert!(stored.len() > 200, "{}", stored.len());
    for key in &stored {
        assert_eq!(client.run(&format!("STRLEN {key}")), "20000");
    }
    for key in &stored[..100] {
        assert_eq!(client.run(&format!("DEL {key}")), "1");
    }
    for key in &stored[..50] {
        assert_eq!(client.run_words(&[b"SET", key.as_bytes(), &value]), "OK");
    }
}
