//! `hedgerow pool`: real processes on this machine, killed and ended.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hedgerow_sim::eventually;
use rustix::process::{Pid, Signal, kill_process};

fn pool(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hedgerow"));
    command.arg("pool").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn failure(output: &Output) -> String {
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim_end().strip_prefix("hedgerow: ").unwrap().to_string()
}

/// `hedgerow pool up`, and what it has printed.
pub(crate) struct Up {
    pub(crate) child: Child,
    printed: Arc<Mutex<Vec<String>>>,
}

impl Up {
    pub(crate) fn start() -> Up {
        Up::start_with(&["--no-serve"])
    }

    pub(crate) fn start_with(options: &[&str]) -> Up {
        let up = Up::begin(options);
        eventually("the pool works", || up.has_printed("the pool works"));
        up
    }

    /// Does not wait for the pool to begin.
    fn begin(options: &[&str]) -> Up {
        let sizes = ["--node-bytes", "8mb"];
        let mut command = pool(&["up", "--listen", "127.0.0.1:0"]);
        let mut child = command.args(sizes).args(options).spawn().unwrap();
        let printed = Arc::new(Mutex::new(Vec::new()));
        let (out, lines) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(&printed));
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).for_each(|line| lines.lock().unwrap().push(line));
        });
        Up { child, printed }
    }

    fn has_printed(&self, text: &str) -> bool {
        self.printed.lock().unwrap().iter().any(|line| line.contains(text))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.printed.lock().unwrap().clone()
    }

    pub(crate) fn address(&self) -> String {
        let lines = self.lines();
        let line = lines.iter().find(|line| line.starts_with("pool:")).unwrap();
        line.split_whitespace().next().unwrap().to_string()
    }

    /// The manager's process, and then those of the memory nodes and of the servers.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let of_manager = |line: &String| line.split_once("(process ")?.1.strip_suffix(')')?.parse().ok();
        let of_node = |line: &String| line.split_once(" is process ")?.1.parse().ok();
        let lines = self.lines();
        lines.iter().filter_map(of_manager).chain(lines.iter().filter_map(of_node)).collect()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn status(address: &str) -> String {
    let output = pool(&["status", address]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn signal(process: i32, signal: Signal) {
    kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
}

/// Whether the process is there, and no zombie.
pub(crate) fn is_there(process: i32) -> bool {
    let stat = std::fs::read_to_string(Path::new(&format!("/proc/{process}/stat"))).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

#[test]
fn a_pool_outlives_a_memory_node_and_ends_whole() {
    let mut up = Up::start();
    assert!(up.lines()[0].contains("gone with this machine"), "{:?}", up.lines());
    // The manager may have said that the pool works before the last of them is named.
    eventually("all are named", || up.processes().len() == 4);
    let (address, processes) = (up.address(), up.processes());
    let table = status(&address);
    assert!(table.starts_with("working, epoch 1, 0 sessions, 3 memory nodes, 3 copies\n"), "{table}");
    assert_eq!(table.matches("living").count(), 4, "{table}");
    let json = pool(&["status", &address, "--json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["state"], json["nodes"].as_array().unwrap().len()), (&"working".into(), 4));
    // Without a word.
    signal(processes[2], Signal::KILL);
    eventually("who ended is named", || {
        up.has_printed(&format!("memory node 2 of 3, process {}, ended (signal: 9", processes[2]))
    });
    eventually("the memory node is lost", || status(&address).matches("lost").count() == 1);
    eventually("the next epoch", || status(&address).starts_with("working, epoch 2, 0 sessions"));
    // As Ctrl-C does.
    let start = Instant::now();
    signal(up.child.id() as i32, Signal::INT);
    let outcome = up.child.wait().unwrap();
    assert!(outcome.success(), "{outcome}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(processes.iter().all(|&process| !is_there(process)), "{processes:?}");
    assert!(
        failure(&pool(&["status", &address]).output().unwrap()).starts_with("no pool can be reached at ")
    );
}

#[test]
fn nothing_is_left_of_a_pool_that_is_killed() {
    let mut up = Up::start();
    eventually("all are named", || up.processes().len() == 4);
    let processes = up.processes();
    up.child.kill().unwrap();
    up.child.wait().unwrap();
    eventually("all have ended", || processes.iter().all(|&process| !is_there(process)));
    // Nor of one whose manager is.
    let mut up = Up::start();
    eventually("all are named", || up.processes().len() == 4);
    let processes = up.processes();
    signal(processes[0], Signal::KILL);
    eventually("all have ended", || processes.iter().all(|&process| !is_there(process)));
    assert_eq!(up.child.wait().unwrap().code(), Some(1));
}

#[test]
fn a_pool_goes_on_where_nobody_reads_what_it_prints() {
    let mut child = pool(&["up", "--listen", "127.0.0.1:0", "--node-bytes", "8mb"]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("pool:") {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0);
    }
    drop(out);
    let address = line.split_whitespace().next().unwrap();
    eventually("the pool works", || status(address).starts_with("working"));
    let mut up = Up { child, printed: Arc::default() };
    signal(up.child.id() as i32, Signal::TERM);
    assert!(up.child.wait().unwrap().success());
}

#[test]
fn a_memory_node_that_ends_before_the_pool_begins_ends_it() {
    // So many that the first can be killed before the last has joined.
    let mut up = Up::begin(&["--no-serve", "--memory-nodes", "32", "--copies", "2"]);
    eventually("the first is named", || up.processes().len() > 1);
    signal(up.processes()[1], Signal::KILL);
    let outcome = up.child.wait().unwrap();
    let mut said = String::new();
    up.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(outcome.code(), Some(1), "{said}");
    assert!(said.contains("memory node 1 of 32 ended before the pool began (signal: 9"), "{said}");
}

#[test]
fn a_memory_node_that_waits_for_its_manager_can_be_ended() {
    let mut child = pool(&["memory-node", "--join", "127.0.0.1:1"]).spawn().unwrap();
    // It handles signals a moment after it begins; before that this ends it, too, but not well.
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    signal(child.id() as i32, Signal::TERM);
    let outcome = child.wait().unwrap();
    assert!(outcome.success(), "{outcome}");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[test]
fn what_cannot_be_is_said_in_a_sentence() {
    let output = |arguments: &[&str]| failure(&pool(arguments).output().unwrap());
    let wide = output(&["manager", "--listen", "192.0.2.1:0"]);
    assert!(
        wide.contains("can be reached from other machines") && wide.contains("--trust-network"),
        "{wide}"
    );
    let copies = output(&["up", "--listen", "127.0.0.1:0", "--copies", "4"]);
    assert_eq!(copies, "there is no such pool: copies: 4; it may be 1 to 3");
    let bytes = output(&["up", "--listen", "127.0.0.1:0", "--node-bytes", "much"]);
    assert_eq!(bytes, "--node-bytes much: not a number of bytes, as 256mb is");
    let nobody = output(&["status", "127.0.0.1:1"]);
    assert!(nobody.starts_with("no pool can be reached at 127.0.0.1:1: "), "{nobody}");
    let other = output(&["memory-node", "--join", "192.0.2.1:7400"]);
    assert!(other.contains("cannot reach this node"), "{other}");
}
