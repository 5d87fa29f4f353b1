//! `kill -9` of a process that embeds the store, again and again on one store: nothing acknowledged is lost, and writes go
//! on each time.
//!
//! The test runs itself again as the writer, told so by an environment variable. Threads of the writer own keys of their
//! own; each write raises the key's round, and is acknowledged through a pipe only when the store has returned. Every
//! field of a row shows the round, so a row of two versions would show.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hedgerow::{Batch, Capacity, Db, Durability, Options, Schema, Table, Type, row};
use hedgerow_device::Random;
use hedgerow_sim::{FORMATS, Format, rounds};

const DIRECTORY: &str = "HEDGEROW_KILL_DIRECTORY";
/// Which of [`FORMATS`].
const FORMAT: &str = "HEDGEROW_KILL_FORMAT";
/// The keys of each thread; with more than [`KEYS`] rows move.
const KEYS_OF_EACH: &str = "HEDGEROW_KILL_KEYS";
const THREADS: u64 = 4;
const KEYS: u64 = 50;
/// Their rows come to more than the fast tier.
const MANY_KEYS: u64 = 6_000;

/// What a writer works on.
#[derive(Clone, Copy)]
struct Work {
    format: Format,
    keys: u64,
}

impl Work {
    fn options(self) -> Options {
        self.format.with(Options {
            fast_tier_bytes_max: 24 << 20,
            durability: Durability::Process,
            index_bytes_max: 64 << 20,
            capacity: if self.keys > KEYS { Capacity::Beside } else { Capacity::None },
            ..Options::default()
        })
    }
}

fn open(directory: &Path, work: Work) -> (Db, Table, Table) {
    let db = Db::open_with(directory, work.options()).unwrap();
    let schema = Schema::new().field("round", Type::U64).field("half", Type::U64).field("text", Type::Bytes);
    let rows = db.create_table("rows", schema).unwrap();
    let twins = db.create_table("twins", Schema::new().field("round", Type::U64)).unwrap();
    (db, rows, twins)
}

fn key(thread: u64, key: u64) -> Vec<u8> {
    format!("thread{thread}/key{key}").into_bytes()
}

/// Not a test by itself: the writer, when run by the test below.
#[test]
fn writer() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let format: usize = std::env::var(FORMAT).unwrap().parse().unwrap();
    let work = Work { format: FORMATS[format], keys: std::env::var(KEYS_OF_EACH).unwrap().parse().unwrap() };
    let (db, rows, twins) = open(Path::new(&directory), work);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, rows, twins) = (&db, &rows, &twins);
            scope.spawn(move || write_for_ever(db, rows, twins, (thread, work.keys)));
        }
    });
}

fn round_of(rows: &Table, key: &[u8]) -> u64 {
    rows.get(key).unwrap().map_or(0, |row| row.get("round").unwrap().as_u64().unwrap())
}

fn write_for_ever(db: &Db, rows: &Table, twins: &Table, (thread, keys): (u64, u64)) {
    let mut random = Random::from_entropy();
    loop {
        let n = random.below(keys);
        let key = key(thread, n);
        let round = round_of(rows, &key).max(round_of(twins, &key)) + 1;
        let text = vec![round as u8; random.below(3_000) as usize];
        let what = match random.below(8) {
            0 => {
                let mut batch = Batch::new();
                batch.put(rows, &key, &row! { round: round, half: round / 2, text: &text }).unwrap();
                batch.put(twins, &key, &row! { round: round }).unwrap();
                db.write(batch).unwrap();
                'b'
            }
            1..4 => {
                rows.update(&key, &row! { round: round, half: round / 2 }).unwrap();
                'u'
            }
            4 if round > 1 => {
                // The row's twin keeps the round while the row is gone.
                let mut batch = Batch::new();
                batch.put(twins, &key, &row! { round: round }).unwrap();
                batch.delete(rows, &key).unwrap();
                db.write(batch).unwrap();
                'd'
            }
            _ => {
                rows.put(&key, &row! { round: round, half: round / 2, text: &text }).unwrap();
                'p'
            }
        };
        // One write of less than a page: whole in the pipe or not there.
        let line = format!("ack {what} {thread} {n} {round}\n");
        std::io::stderr().lock().write_all(line.as_bytes()).unwrap();
    }
}

/// Last acknowledged: what was written and the round.
type Acknowledged = BTreeMap<(u64, u64), (char, u64)>;

/// Runs the writer for `life` and kills it. Returns how many writes it acknowledged.
fn run_and_kill(directory: &Path, work: Work, life: Duration, acknowledged: &mut Acknowledged) -> u64 {
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["kill::writer", "--exact", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(FORMAT, FORMATS.iter().position(|other| *other == work.format).unwrap().to_string())
        .env(KEYS_OF_EACH, work.keys.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(writer.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut found: Vec<(u64, u64, char, u64)> = Vec::new();
        for line in lines.lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            let ["ack", what, thread, n, round] = words[..] else {
                assert!(!line.contains("panicked"), "the writer: {line}");
                continue;
            };
            let what = what.chars().next().unwrap();
            found.push((thread.parse().unwrap(), n.parse().unwrap(), what, round.parse().unwrap()));
        }
        found
    });
    std::thread::sleep(life);
    writer.kill().unwrap();
    writer.wait().unwrap();
    let found = reader.join().unwrap();
    let count = found.len() as u64;
    for (thread, n, what, round) in found {
        acknowledged.insert((thread, n), (what, round));
    }
    count
}

/// Everything acknowledged is there, or something the same thread wrote after it and was killed before it could say so: one write for
/// each of the `lives` of the writer since the last look. What is found counts as acknowledged from then on.
fn verify(directory: &Path, work: Work, acknowledged: &mut Acknowledged, lives: u64) {
    let (db, rows, twins) = open(directory, work);
    for (&(thread, n), (what, round)) in acknowledged.iter_mut() {
        let (written, seen) = (*what, *round);
        let key = key(thread, n);
        let (row, twin) = (rows.get(&key).unwrap(), twins.get(&key).unwrap());
        let row_round = row.as_ref().map_or(0, |row| row.get("round").unwrap().as_u64().unwrap());
        let twin_round = twin.as_ref().map_or(0, |row| row.get("round").unwrap().as_u64().unwrap());
        let found = row_round.max(twin_round);
        assert!(
            (seen..=seen + lives).contains(&found),
            "thread {thread}, key {n}: round {seen} ({written}) was acknowledged, {found} is there, {lives} kills later"
        );
        if let Some(row) = row {
            assert_eq!(row.get("half").unwrap().as_u64().unwrap(), row_round / 2, "a row of two versions");
            let text = row.get("text").unwrap().as_bytes().unwrap().to_vec();
            assert!(text.windows(2).all(|pair| pair[0] == pair[1]), "a value of two versions");
        }
        if found == seen {
            match written {
                'd' => assert!(
                    row_round == 0 && twin_round == found,
                    "a delete came undone, or its batch was torn"
                ),
                'b' => assert!(row_round == found && twin_round == found, "a batch was torn"),
                // Nobody said what it was.
                '?' => {}
                _ => assert_eq!(row_round, found),
            }
        } else {
            (*what, *round) = ('?', found);
        }
    }
    // Writes go on.
    let before = round_of(&twins, b"verified");
    twins.put(b"verified", &row! { round: before + 1 }).unwrap();
    assert_eq!(round_of(&twins, b"verified"), before + 1);
    drop((rows, twins));
    // Closed in order now and then, and left to the next writer as it is otherwise.
    db.close().unwrap();
}

/// A third of the kills with each version of the root.
#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    for format in FORMATS {
        kill_again_and_again(Work { format, keys: KEYS }, rounds(8, 50));
    }
}

/// Killed while rows move, and with most of them in sorted tables.
#[test]
fn nothing_that_moved_is_lost_by_kill_9() {
    for format in [FORMATS[0], FORMATS[2]] {
        kill_again_and_again(Work { format, keys: MANY_KEYS }, rounds(10, 80));
    }
}

fn kill_again_and_again(work: Work, kills: u64) {
    let directory = temporary(&format!("kill-{}", work.keys));
    let mut acknowledged = Acknowledged::new();
    let (mut random, mut total, mut killed_in_a_row, mut lives) = (Random::from_seed(9), 0, 0, 0);
    for kill in 0..kills {
        let life = Duration::from_millis(40 + random.below(300) * work.keys.min(4 * KEYS) / KEYS);
        total += run_and_kill(&directory, work, life, &mut acknowledged);
        lives += 1;
        // Every third kill is followed by another without an opening in order between them.
        if kill % 3 == 2 {
            killed_in_a_row += 1;
            continue;
        }
        verify(&directory, work, &mut acknowledged, std::mem::take(&mut lives));
    }
    verify(&directory, work, &mut acknowledged, lives);
    println!(
        "{}, {} keys: {kills} kills ({killed_in_a_row} of them twice in a row), {total} writes acknowledged, none lost",
        work.format, work.keys
    );
    assert!(total > kills * 20, "the writers hardly wrote: {total}");
    let tables = sorted_tables(&directory.join("capacity"));
    assert_eq!(tables > 0, work.keys > KEYS, "{tables} sorted tables");
    std::fs::remove_dir_all(&directory).unwrap();
}

/// How many files of rows are there, however far they have been merged: one is enough for all.
fn sorted_tables(capacity: &Path) -> usize {
    let is_table = |entry: std::io::Result<DirEntry>| {
        entry.unwrap().path().extension().is_some_and(|kind| kind == "sst")
    };
    std::fs::read_dir(capacity).map_or(0, |entries| entries.map(is_table).filter(|table| *table).count())
}

fn temporary(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("hedgerow-{name}-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&directory));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}
