//! `hedgerow kvssd`: devices of an array that nobody has open come and go, with all rows there at each moment, also where the command is killed or stopped.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::client::{Program, TempDir};
use crate::pool::signal;

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hedgerow"));
    command.arg("kvssd").args(words);
    command
}

/// What the command says, and whether it did what was asked.
fn run(words: &[&str]) -> (bool, String) {
    let output = command(words).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!said.contains("panicked"), "{said}");
    (output.status.success(), said)
}

pub(crate) fn done(words: &[&str]) -> String {
    let (is_done, said) = run(words);
    assert!(is_done, "{words:?}: {said}");
    said
}

pub(crate) fn refused(words: &[&str]) -> String {
    let (is_done, said) = run(words);
    assert!(!is_done, "{words:?}: {said}");
    said
}

pub(crate) fn status(array: &str) -> serde_json::Value {
    serde_json::from_str(&done(&["status", array, "--json"])).unwrap()
}

fn shards(array: &str) -> Vec<u64> {
    let status = status(array);
    let devices = status["devices"].as_array().unwrap();
    devices.iter().map(|device| device["shards"].as_u64().unwrap()).collect()
}

/// Files of a directory, each with its path.
pub(crate) struct Files {
    pub(crate) dir: TempDir,
}

impl Files {
    pub(crate) fn new() -> Files {
        Files { dir: TempDir::new() }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// With commas between them.
    pub(crate) fn array(&self, names: &[&str]) -> String {
        names.iter().map(|name| self.path(name)).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn serve(&self, names: &[&str]) -> Program {
        self.serve_sized(names, "32mb")
    }

    fn serve_sized(&self, names: &[&str], size: &str) -> Program {
        Program::spawn_over(&format!("kvssd:{}?size={size}", self.array(names)), &[])
    }

    pub(crate) fn fill(&self, names: &[&str], keys: usize) {
        self.fill_sized(names, keys, "32mb");
    }

    /// So many keys of 500 bytes.
    fn fill_sized(&self, names: &[&str], keys: usize, size: &str) {
        let program = self.serve_sized(names, size);
        let mut client = program.client();
        for n in 0..keys {
            client.send(&[b"SET", format!("k{n}").as_bytes(), value(n).as_bytes()]);
        }
        (0..keys).for_each(|_| assert_eq!(client.reply(), "OK"));
        program.kill();
    }

    /// All of the keys, and no other, each once.
    pub(crate) fn check(&self, names: &[&str], keys: usize) {
        let program = self.serve(names);
        let mut client = program.client();
        for n in 0..keys {
            client.send(&[b"GET", format!("k{n}").as_bytes()]);
        }
        (0..keys).for_each(|n| assert_eq!(client.reply(), format!("\"{}\"", value(n))));
        assert_eq!(client.run("DBSIZE"), keys.to_string());
        program.kill();
    }
}

pub(crate) fn value(n: usize) -> String {
    format!("{n:0500}")
}

#[test]
fn a_device_is_added_has_its_share_and_goes() {
    let files = Files::new();
    files.fill(&["a", "b"], 500);
    let (two, three) = (files.array(&["a", "b"]), files.array(&["a", "b", "c"]));
    assert_eq!(shards(&two), [512, 512]);
    let said = done(&["add", &two, "--device", &files.path("c"), "--size", "32mb"]);
    assert!(said.contains("is device 3 of the array") && said.contains(&format!("kvssd:{three}")), "{said}");
    assert_eq!(shards(&three), [512, 512, 0]);
    // Given again, as after a command that was cut off.
    let said = done(&["add", &format!("kvssd:{two}"), "--device", &files.path("c")]);
    assert!(said.contains("was added before"), "{said}");
    files.check(&["a", "b", "c"], 500);
    let table = done(&["status", &three]);
    assert!(table.contains("rebalance") && table.contains("gives each device its share"), "{table}");

    let said = done(&["rebalance", &three]);
    assert!(said.contains("moving 341 shards") && said.contains("moved 341 shards"), "{said}");
    let spread = shards(&three);
    assert!(spread.iter().all(|&shards| shards == 341 || shards == 342), "{spread:?}");
    assert!(done(&["rebalance", &three]).contains("moved 0 shards"));
    files.check(&["a", "b", "c"], 500);
    let told = status(&three);
    let pairs: Vec<u64> =
        told["devices"].as_array().unwrap().iter().map(|device| device["pairs"].as_u64().unwrap()).collect();
    assert!(pairs.iter().all(|&pairs| pairs > 100) && told["under_way"] == "nothing", "{told}");

    // The first goes: the others keep their numbers.
    let said = done(&["remove", &three, "--device", &files.path("a"), "--quiet"]);
    let left = files.array(&["b", "c"]);
    assert!(said.contains("is of the array no more") && said.contains(&format!("kvssd:{left}")), "{said}");
    let said = done(&["remove", &three, "--device", &files.path("a")]);
    assert!(said.contains("was removed before"), "{said}");
    let told = status(&left);
    assert_eq!((&told["devices"][0]["number"], &told["devices"][1]["number"]), (&1.into(), &2.into()));
    files.check(&["b", "c"], 500);
    // And comes again, as the last.
    done(&["add", &left, "--device", &files.path("a")]);
    // One that is made is as long as the others.
    let four = files.array(&["b", "c", "a", "d"]);
    done(&["add", &files.array(&["b", "c", "a"]), "--device", &files.path("d")]);
    let told = status(&four);
    assert_eq!(told["devices"][3]["capacity_bytes"], told["devices"][0]["capacity_bytes"]);
    done(&["remove", &four, "--device", &files.path("d")]);
    done(&["rebalance", &files.array(&["b", "c", "a"])]);
    files.check(&["b", "c", "a"], 500);
}

#[test]
fn what_is_no_array_or_in_use_is_refused_and_nothing_is_made() {
    let files = Files::new();
    let (two, c) = (files.array(&["a", "b"]), files.path("c"));
    for words in [
        &["status", &two][..],
        &["rebalance", &two],
        &["remove", &two, "--device", &files.path("a")],
        &["add", &two, "--device", &c],
    ] {
        assert!(refused(words).contains("can not be opened"), "{words:?}");
    }
    for name in ["a", "b", "c"] {
        assert!(!files.dir.path().join(name).exists(), "{name} was made");
    }
    let program = files.serve(&["a", "b"]);
    assert!(refused(&["rebalance", &two]).contains("in use by"));
    assert!(refused(&["status", &two]).contains("in use by"));
    program.kill();
    let said = refused(&["remove", &two, "--device", &c]);
    assert!(said.contains("is none of the devices"), "{said}");
    let said = refused(&["add", &two, "--device", &files.path("b")]);
    assert!(said.contains("among the devices of the array already"), "{said}");
    let said = refused(&["add", &two, "--device", &c, "--size", "1mb"]);
    assert!(said.contains("8388608 bytes at least"), "{said}");
    let said = refused(&["add", &two, "--device", &c, "--size", "much"]);
    assert!(said.contains("no number of bytes"), "{said}");
    let said = refused(&["add", &two, "--device", &c, "--size", "8mb"]);
    assert!(
        said.contains("takes values of 32768 bytes at most") && said.contains("greater --size"),
        "{said}"
    );
    let said = refused(&["rebalance", &files.array(&["b", "a"])]);
    assert!(said.contains("give them in their order"), "{said}");
    let said = refused(&["rebalance", &files.path("a")]);
    assert!(said.contains("the array has 2 devices, and 1 were given"), "{said}");
    assert!(refused(&["status", "a,,b"]).contains("names no devices"));
    // What another program, or another array, has.
    std::fs::write(files.dir.path().join("text"), "no device").unwrap();
    let said = refused(&["add", &two, "--device", &files.path("text")]);
    assert!(said.contains("text: not added: device 3"), "{said}");
    assert_eq!(std::fs::read_to_string(files.dir.path().join("text")).unwrap(), "no device");
    files.fill(&["other"], 1);
    let said = refused(&["add", &two, "--device", &files.path("other")]);
    assert!(said.contains("is of another array"), "{said}");
    let said = refused(&["remove", &files.path("other"), "--device", &files.path("other")]);
    assert!(said.contains("the one device of an array cannot be removed"), "{said}");
    assert!(!files.dir.path().join("c").exists(), "nothing was made");
}

/// Where the others have no room nothing is lost, and the reason and the device are told.
#[test]
fn a_removal_that_finds_no_room_leaves_all_where_it_was() {
    let files = Files::new();
    files.fill_sized(&["big"], 14_000, "15mb");
    let (one, two) = (files.path("big"), files.array(&["big", "small"]));
    done(&["add", &one, "--device", &files.path("small"), "--size", "8mb"]);
    let said = refused(&["remove", &two, "--device", &one]);
    assert!(
        said.contains("small: the move failed: device 2: ") && said.contains("0 of 1024 shards"),
        "{said}"
    );
    files.check(&["big", "small"], 14_000);
}

/// Begins a move, and ends it by a signal once it has begun. Whether it was still under way.
pub(crate) fn cut_off(words: &[&str], by: Signal) -> bool {
    let mut child = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let is_begun = |line: &String| line.starts_with("moving ") || line.starts_with("making second copies ");
    assert!(lines.any(|line| is_begun(&line.unwrap())), "it never began");
    drop(lines);
    signal(child.id() as i32, by);
    let ended = child.wait().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    if by == Signal::INT && !ended.success() {
        assert_eq!(ended.code(), Some(1), "{said}");
        assert!(said.contains("stopped; ") && said.contains("the same command goes on with it"), "{said}");
    }
    !ended.success()
}

/// Cut off again and again, each time it is given again, until that has come in the middle by each signal.
#[test]
fn a_move_that_is_cut_off_goes_on_when_it_is_given_again() {
    let files = Files::new();
    let keys = 4_000;
    files.fill(&["a", "b", "c"], keys);
    let three = files.array(&["a", "b", "c"]);
    let two = files.array(&["a", "b"]);
    let c = files.path("c");
    let remove = ["remove", three.as_str(), "--device", c.as_str()];
    for by in [Signal::KILL, Signal::INT] {
        while !cut_off(&remove, by) {
            // It was through before the signal came.
            done(&["add", &two, "--device", &c]);
            done(&["rebalance", &three]);
        }
        let told = status(&three);
        assert_eq!((&told["under_way"], &told["removed_device"]), (&"remove".into(), &3.into()), "{told}");
        let table = done(&["status", &three]);
        assert!(
            table.contains("under way: the removal of device 3") && table.contains("goes on with it"),
            "{table}"
        );
        files.check(&["a", "b", "c"], keys);
    }
    done(&remove);
    files.check(&["a", "b"], keys);
    let told = status(&two);
    assert!(told["devices"].as_array().unwrap().iter().all(|device| device["strays"] == false), "{told}");

    // Another move than the one that was begun.
    done(&["add", &two, "--device", &c]);
    while !cut_off(&["rebalance", &three], Signal::KILL) {
        done(&remove);
        done(&["add", &two, "--device", &c]);
    }
    assert_eq!(status(&three)["under_way"], "rebalance");
    let said = done(&remove);
    assert!(said.contains("a rebalance, which was under way, is given up"), "{said}");
    files.check(&["a", "b"], keys);
}
