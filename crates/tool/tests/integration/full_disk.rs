//! A server on a disk that is full, with no limit set.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use hedgerow_sim::{eventually, skip};

use crate::client::{Client, Program, TempDir};

const DISK: usize = 64 << 20;

/// A server with a file system of its own of `DISK` bytes, mounted where nobody else sees it; `None` where the machine does
/// not allow that.
fn server_on_a_small_disk(dir: &TempDir, options: &[&str]) -> Option<Program> {
    let script = format!("mount -t tmpfs -o size={DISK} none {} && exec \"$@\"", dir.path().display());
    let under = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh", program]);
        command
    };
    if !under("true").status().is_ok_and(|status| status.success()) {
        skip("this machine does not let a process mount a file system of its own");
        return None;
    }
    Some(Program::start(under(env!("CARGO_BIN_EXE_hedgerow")), &dir.path().join("store"), options))
}

fn key(i: usize) -> String {
    format!("row:{i}")
}

/// Sets values until one is refused; how many there are, and what the refusal said.
fn fill(client: &mut Client, value: &[u8]) -> (usize, String) {
    for i in 0.. {
        let reply = client.run_words(&[b"HSET", key(i).as_bytes(), b"a", value, b"b", b"0"]);
        if reply != "2" {
            return (i, reply);
        }
    }
    unreachable!("there is an end to every disk")
}

#[test]
fn deletes_and_overwrites_go_on_when_the_disk_is_full() {
    for options in [&[][..], &["--durability", "immediate"]] {
        let dir = TempDir::new();
        let Some(server) = server_on_a_small_disk(&dir, options) else { return };
        let mut client = server.client();
        let value = [b'x'; 4_000];
        let (rows, full) = fill(&mut client, &value);
        assert!(full.starts_with("(OOM") && full.contains("the disk is full"), "{full}");
        assert!(rows * value.len() > DISK / 2, "{rows} rows");
        for i in 0..10_000 {
            let name = key((i * 7919) % rows);
            let reply = match i % 4 {
                0 => client.run_words(&[b"DEL", name.as_bytes()]),
                // Of a row that is there: one that was deleted is no overwrite.
                _ if client.run_words(&[b"EXISTS", name.as_bytes()]) == "0" => continue,
                1 => client.run_words(&[b"HSET", name.as_bytes(), b"b", i.to_string().as_bytes()]),
                _ => client.run_words(&[b"HSET", name.as_bytes(), b"a", &value]),
            };
            assert!(["0", "1"].contains(&reply.as_str()), "step {i}: {reply}");
        }
        assert_eq!(client.run("FLUSHALL"), "OK");
        // The file system is seen from inside the server's process only.
        let file = format!("/proc/{}/root{}/store/fast", server.child.id(), dir.path().display());
        let taken = || std::fs::metadata(&file).unwrap().blocks() as usize * 512;
        eventually("what was deleted is taken of the disk no more", || taken() <= DISK / 4);
        let (again, _) = fill(&mut client, &value);
        assert!(again * 10 > rows * 9, "{rows} rows fitted, and now {again}");
    }
}
