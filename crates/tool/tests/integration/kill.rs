//! kill -9 under load, again and again: nothing acknowledged is lost.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hedgerow_sim::{eventually, rounds};

use crate::client::{Client, Program, TempDir, encode};

const WRITERS: u64 = 3;

/// What a writer knows of its keys: the last acknowledged value, and what was sent after it without an answer.
#[derive(Default, Clone)]
struct Written {
    acknowledged: u64,
    sent: u64,
}

type WrittenByName = Arc<Mutex<HashMap<String, Written>>>;

/// What is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Tiered,
    /// On two key-value devices: no transaction has two keys.
    Kvssd,
}

impl Kept {
    fn spawn(self, dir: &Path, options: &[&str]) -> Program {
        let dir = dir.to_str().unwrap();
        match self {
            Kept::Tiered => Program::spawn_over(&format!("tiered:{dir}"), options),
            Kept::Kvssd => Program::spawn_over(&format!("kvssd:{dir}/a,{dir}/b?size=16mb"), options),
        }
    }
}

/// The commands of step `n` on key number `key` of `writer`, and what they set.
fn commands(kept: Kept, writer: u64, key: u64, n: u64) -> Vec<Vec<u8>> {
    let value = n.to_string();
    let value = value.as_bytes();
    let (string, row) = (format!("s{writer}-{key}"), format!("w{writer}:{key}"));
    match n % 3 {
        0 if kept == Kept::Tiered => vec![
            encode(&[b"MULTI"]),
            encode(&[b"SET", string.as_bytes(), value]),
            encode(&[b"HSET", row.as_bytes(), b"a", value, b"b", value, b"\xff", value]),
            encode(&[b"EXEC"]),
        ],
        _ => vec![
            encode(&[b"SET", string.as_bytes(), value]),
            encode(&[b"HSET", row.as_bytes(), b"a", value, b"b", value, b"\xff", value]),
        ],
    }
}

fn write_until_killed(
    (kept, mut client): (Kept, Client),
    writer: u64,
    round: u64,
    written: WrittenByName,
    steps: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) {
    use std::io::Write;
    let mut n = round * 1_000_000;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let key = n % 40;
        let batch = commands(kept, writer, key, n);
        let name = format!("{writer}-{key}");
        written.lock().unwrap().entry(name.clone()).or_default().sent = n;
        if client.stream.write_all(&batch.concat()).is_err() {
            return;
        }
        for _ in 0..batch.len() {
            match client.try_reply() {
                Some(reply) => assert!(!reply.contains('('), "{reply}"),
                None => return,
            }
        }
        written.lock().unwrap().entry(name).or_default().acknowledged = n;
        steps.fetch_add(1, Ordering::Relaxed);
    }
}

fn check(kept: Kept, client: &mut Client, written: &WrittenByName) {
    for (name, known) in written.lock().unwrap().iter_mut() {
        let (writer, key) = name.split_once('-').unwrap();
        let string = client.run(&format!("GET s{writer}-{key}"));
        let fields =
            client.run_words(&[b"HMGET", format!("w{writer}:{key}").as_bytes(), b"a", b"b", b"\xff"]);
        let number = |text: &str| text.trim_matches('"').parse::<u64>().unwrap_or(0);
        let string = number(&string);
        let fields: Vec<u64> = fields.trim_matches(['[', ']']).split(", ").map(number).collect();
        for found in fields.iter().chain([&string]) {
            assert!(
                *found >= known.acknowledged && *found <= known.sent,
                "{name}: {found} is not between {} (acknowledged) and {} (sent)",
                known.acknowledged,
                known.sent
            );
        }
        assert!(fields.iter().all(|field| *field == fields[0]), "{name}: fields of two writes: {fields:?}");
        // A step that is a transaction sets both or none; a later step may have changed one of them since.
        let halved = string.is_multiple_of(3) && fields[0] < string
            || fields[0].is_multiple_of(3) && string < fields[0];
        assert!(kept != Kept::Tiered || !halved, "{name}: half a transaction: {string} and {}", fields[0]);
        // What was in flight is settled now.
        known.acknowledged = known.acknowledged.max(string.min(fields[0]));
    }
}

fn kill_in_a_loop(kept: Kept, durability: &str) {
    let dir = TempDir::new();
    let written: WrittenByName = Arc::default();
    for round in 0..rounds(24, 100) {
        let program = kept.spawn(dir.path(), &["--durability", durability]);
        check(kept, &mut program.client(), &written);
        let (stop, steps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (client, written) = (program.client(), written.clone());
                let (steps, stop) = (steps.clone(), stop.clone());
                std::thread::spawn(move || {
                    write_until_killed((kept, client), writer, round + 1, written, steps, stop)
                })
            })
            .collect();
        // In the midst of their writes, however fast they are; and where they wait for no sync, only after enough for
        // segments to be filled and collected.
        let wanted = if durability == "process" { 1_000 + round * 200 } else { 30 + round * 5 };
        eventually("they write", || steps.load(Ordering::Relaxed) >= wanted);
        program.kill();
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    }
    let program = kept.spawn(dir.path(), &["--durability", durability]);
    check(kept, &mut program.client(), &written);
    let acknowledged = written.lock().unwrap().values().filter(|known| known.acknowledged > 0).count();
    assert!(acknowledged as u64 >= WRITERS * 20, "only {acknowledged} keys were ever acknowledged");
    program.kill();
}

#[test]
fn nothing_acknowledged_is_lost() {
    kill_in_a_loop(Kept::Tiered, "process");
}

#[test]
fn nor_with_a_sync_before_each_answer() {
    kill_in_a_loop(Kept::Tiered, "immediate");
}

#[test]
fn nor_on_key_value_devices() {
    kill_in_a_loop(Kept::Kvssd, "process");
}

#[test]
fn nor_on_devices_with_a_sync_before_each_answer() {
    kill_in_a_loop(Kept::Kvssd, "immediate");
}
