//! Arrays with two copies of each key, from the command line: a device that is lost, replaced and rebuilt, with all rows there at each moment.

use std::process::Stdio;

use rustix::process::Signal;

use crate::client::Program;
use crate::kvssd_arrays::{Files, cut_off, done, refused, status, value};

const THREE: [&str; 3] = ["a", "b", "c"];

impl Files {
    /// With two copies of each key.
    fn serve_copied(&self, names: &[&str]) -> Program {
        Program::spawn_over(&format!("kvssd:{}?size=32mb&copies=2", self.array(names)), &[])
    }

    fn fill_copied(&self, names: &[&str], keys: usize) {
        let program = self.serve_copied(names);
        let mut client = program.client();
        for n in 0..keys {
            client.send(&[b"SET", format!("k{n}").as_bytes(), value(n).as_bytes()]);
        }
        (0..keys).for_each(|_| assert_eq!(client.reply(), "OK"));
        program.kill();
    }

    fn lose(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }

    /// `hedgerow check` of an array has no problem.
    fn check_clean(&self, names: &[&str]) {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hedgerow"));
        let output = command.arg("check").arg(format!("kvssd:{}", self.array(names))).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// One number of each device, by its place.
fn of_each(status: &serde_json::Value, what: &str) -> Vec<u64> {
    let devices = status["devices"].as_array().unwrap();
    devices.iter().map(|device| device[what].as_u64().unwrap()).collect()
}

/// What a server says as it starts.
fn said_on_start(files: &Files, names: &[&str]) -> String {
    let url = format!("kvssd:{}", files.array(names));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hedgerow"));
    let mut child = command
        .args(["serve", "--listen", "127.0.0.1:0", "--store", &url])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    while !said.contains("listening on ") {
        assert!(std::io::BufRead::read_line(&mut out, &mut said).unwrap() > 0, "{said}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    said
}

fn info(program: &Program) -> String {
    program.client().run("INFO hedgerow")
}

/// Looking at an array of which `b` is lost says what the next opening does, and changes nothing.
fn looking_changes_nothing(files: &Files, three: &str) {
    let table = done(&["status", three]);
    let b = files.path("b");
    assert!(
        table.contains(&format!("{b} cannot be used, and the next opening goes on without it")),
        "{table}"
    );
    assert!(
        table.contains("device 2 of the array is missing") && table.contains("which have one"),
        "{table}"
    );
    assert!(
        table.contains(&format!("hedgerow kvssd replace kvssd:{three} --device {b} --with FILE")),
        "{table}"
    );
    assert!(table.contains(&format!("hedgerow kvssd rebuild kvssd:{three}")), "{table}");
    // What is about other devices does not go on without it.
    for words in [
        &["rebalance", three][..],
        &["add", three, "--device", &files.path("d")],
        &["remove", three, "--device", &files.path("a")],
        &["replace", three, "--device", &files.path("a"), "--with", &files.path("d")],
    ] {
        let said = refused(words);
        assert!(said.contains("nothing was changed; hedgerow kvssd replace"), "{words:?}: {said}");
    }
    assert_eq!(status(three)["devices"][1]["lost"].as_str().map(|why| why.contains("missing")), Some(true));
    assert!(!files.dir.path().join("d").exists() && !files.dir.path().join("b").exists());
}

#[test]
fn a_device_that_is_lost_is_replaced_with_all_rows_there() {
    let files = Files::new();
    let keys = 3_000;
    files.fill_copied(&THREE, keys);
    let three = files.array(&THREE);
    let told = status(&three);
    assert_eq!((&told["copies"], &told["shards_alone"]), (&2.into(), &0.into()), "{told}");
    let copies = (0..3).map(|n| of_each(&told, "shards")[n] + of_each(&told, "second_copies")[n]);
    assert!(copies.clone().all(|copies| copies.abs_diff(683) < 3), "{told}");
    files.lose("b");

    looking_changes_nothing(&files, &three);

    let b = files.path("b");
    let said = said_on_start(&files, &THREE);
    assert!(said.contains(&format!("device 2 ({b}) is out")) && said.contains("have one copy"), "{said}");
    files.check(&THREE, keys);
    let told = status(&three);
    assert_eq!(
        (&told["devices"][1]["out"], &told["devices"][1]["lost"]),
        (&true.into(), &().into()),
        "{told}"
    );
    let alone = told["shards_alone"].as_u64().unwrap();
    assert!(alone.abs_diff(683) < 3 && of_each(&told, "shards_alone").iter().sum::<u64>() == alone, "{told}");
    let said = refused(&["replace", &three, "--device", &files.path("a"), "--with", &files.path("d")]);
    assert!(said.contains("has the one copy of") && said.contains("hedgerow kvssd rebuild"), "{said}");

    // Cut off by each signal once it has begun, each time given again as it was.
    let d = files.path("d");
    let replace = ["replace", &three, "--device", &b, "--with", &d];
    let with = files.array(&["a", "d", "c"]);
    for by in [Signal::KILL, Signal::INT] {
        while !cut_off(&replace, by) {
            // It was through before the signal came.
            files.lose("d");
        }
        let told = status(&with);
        assert_eq!(told["under_way"], "rebuild", "{told}");
        assert_eq!(told["devices"][1]["out"], false, "{told}");
        files.check(&["a", "d", "c"], keys);
    }
    assert!(
        done(&["status", &with]).contains(&format!("hedgerow kvssd rebuild kvssd:{with} goes on with it"))
    );
    let said = done(&replace);
    assert!(
        said.contains("every shard has two copies") && said.contains(&format!("it is kvssd:{with}")),
        "{said}"
    );
    assert!(done(&replace).contains("is device 2 of the array, and works"));
    assert!(done(&["rebuild", &with]).contains("every shard has two copies"));
    let told = status(&with);
    assert_eq!((&told["shards_alone"], &told["under_way"]), (&0.into(), &"nothing".into()), "{told}");
    assert!(of_each(&told, "pairs").iter().all(|pairs| pairs.abs_diff(2_000) < 300), "{told}");
    files.check_clean(&["a", "d", "c"]);
    // Another one may go now.
    files.lose("a");
    files.check(&["a", "d", "c"], keys);
}

#[test]
fn second_copies_are_made_on_the_devices_that_are_there() {
    let files = Files::new();
    let keys = 1_000;
    files.fill_copied(&THREE, keys);
    let three = files.array(&THREE);
    assert!(done(&["rebuild", &three]).contains("every shard has two copies"));
    files.lose("c");
    let said = done(&["rebuild", &three]);
    assert!(said.contains("goes on without it") && said.contains("every shard has two copies"), "{said}");
    assert!(said.contains("made second copies of 68"), "{said}");
    let told = status(&three);
    assert_eq!(
        (of_each(&told, "shards_alone"), &told["devices"][2]["out"]),
        (vec![0; 3], &true.into()),
        "{told}"
    );
    assert!(
        told["devices"][2]["pairs"].is_null() && told["devices"][1]["pairs"].as_u64() > Some(keys as u64 - 1)
    );
    files.check(&THREE, keys);
    // Beside it devices come and go.
    let four = files.array(&["a", "b", "c", "d"]);
    done(&["add", &three, "--device", &files.path("d")]);
    assert!(done(&["rebalance", &four]).contains("each device has its share"));
    assert!(done(&["status", &four]).contains("nothing is under way\n"));
    files.check(&["a", "b", "c", "d"], keys);
    done(&["remove", &four, "--device", &files.path("d")]);
    files.check(&THREE, keys);
    // It is of the array as long as nobody has it removed; then fewer files are given.
    let c = files.path("c");
    let said = done(&["remove", &three, "--device", &c]);
    assert!(said.contains("is of the array no more"), "{said}");
    assert!(done(&["remove", &three, "--device", &c]).contains("is not there, nor of the array"));
    let two = files.array(&["a", "b"]);
    files.check(&["a", "b"], keys);
    files.check_clean(&["a", "b"]);
    let said = refused(&["remove", &two, "--device", &files.path("b")]);
    assert!(said.contains("2 copies on 1 devices"), "{said}");

    // Devices come as to any array.
    done(&["add", &two, "--device", &c]);
    let said = done(&["rebalance", &three]);
    assert!(said.contains("each device has its share"), "{said}");
    let told = status(&three);
    let copies = (0..3).map(|n| of_each(&told, "shards")[n] + of_each(&told, "second_copies")[n]);
    assert!(copies.clone().all(|copies| copies.abs_diff(683) < 3), "{told}");
    assert!(done(&["status", &three]).contains("nothing is under way\n"));
    files.check(&THREE, keys);
    let said = done(&["remove", &three, "--device", &files.path("a")]);
    assert!(said.contains("is of the array no more"), "{said}");
    files.check(&["b", "c"], keys);
    files.check_clean(&["b", "c"]);

    // One that takes a place where all shards have two copies has nothing before a rebalance.
    let again = files.array(&["b", "c", "e"]);
    done(&["add", &files.array(&["b", "c"]), "--device", &files.path("e")]);
    done(&["rebalance", &again]);
    files.lose("e");
    done(&["rebuild", &again]);
    let said = done(&["replace", &again, "--device", &files.path("e")]);
    assert!(said.contains(&format!("hedgerow kvssd rebalance kvssd:{again} gives each device")), "{said}");
    done(&["rebalance", &again]);
    files.check(&["b", "c", "e"], keys);
}

#[test]
fn one_of_two_devices_goes_on_where_somebody_says_so() {
    let files = Files::new();
    let keys = 300;
    files.fill_copied(&["a", "b"], keys);
    let (two, b, c) = (files.array(&["a", "b"]), files.path("b"), files.path("c"));
    files.lose("b");
    let replace = ["replace", &two, "--device", &b, "--with", &c];
    let said = refused(&replace);
    assert!(said.contains("may have gone on without the others") && said.contains("--alone"), "{said}");
    let table = done(&["status", &two]);
    assert!(table.contains("--alone") && table.contains("which have one"), "{table}");
    assert!(refused(&["rebuild", &two, "--alone"]).contains("second copies need another"));
    // What is refused has not put it out.
    let said = refused(&["remove", &two, "--device", &b, "--alone"]);
    assert!(said.contains("2 copies on 1 devices"), "{said}");
    assert!(refused(&["rebuild", &two]).contains("--alone"));
    assert!(!files.dir.path().join("c").exists() && !files.dir.path().join("b").exists());
    let alone = [&replace[..], &["--alone", "--size", "40mb"]].concat();
    let said = done(&alone);
    assert!(said.contains("every shard has two copies"), "{said}");
    assert!(done(&alone).contains("is device 2 of the array, and works"));
    files.check(&["a", "c"], keys);
    // One that works is exchanged, too; and the same file serves where the device in it is lost.
    let said = done(&["replace", &files.array(&["a", "c"]), "--device", &files.path("a"), "--with", &b]);
    assert!(said.contains("works, and is put out") && said.contains("every shard has two copies"), "{said}");
    files.check(&["b", "c"], keys);
    files.lose("c");
    let again = files.array(&["b", "c"]);
    assert!(done(&["replace", &again, "--device", &c, "--alone"]).contains("every shard has two copies"));
    files.check(&["b", "c"], keys);
    files.check_clean(&["b", "c"]);
    // The one that was there before is old.
    let said = done(&["status", &files.array(&["a", "c"]), "--alone"]);
    assert!(said.contains("device 1 is older than the others") || said.contains("(out)"), "{said}");
}

#[test]
fn what_cannot_take_a_place_is_refused_before_a_device_goes() {
    let files = Files::new();
    files.fill_copied(&THREE, 50);
    files.fill(&["one"], 1);
    std::fs::write(files.path("text"), "a text that somebody wants to keep").unwrap();
    std::fs::copy(files.path("a"), files.path("copy")).unwrap();
    let (three, b) = (files.array(&THREE), files.path("b"));
    for (with, says) in [
        ("text", "text can not be opened"),
        ("one", "is of another array"),
        ("copy", "is a copy of another device of the array"),
        ("none/d", "its directory is not there"),
        ("a", "is named among the devices of the array already"),
    ] {
        let said = refused(&["replace", &three, "--device", &b, "--with", &files.path(with)]);
        assert!(said.contains(says), "{with}: {said}");
    }
    let said = refused(&["replace", &three, "--device", &b, "--with", &files.path("d"), "--size", "8mb"]);
    assert!(said.contains("values of 32768 bytes at most"), "{said}");
    let said = refused(&["replace", &three, "--device", &files.path("d"), "--with", &files.path("e")]);
    assert!(said.contains("is none of the devices"), "{said}");
    let said = refused(&["rebuild", &files.array(&["b", "a", "c"])]);
    assert!(said.contains("give them in their order"), "{said}");
    let said = refused(&["rebuild", &files.path("one")]);
    assert!(said.contains("one copy of each key"), "{said}");
    let said =
        refused(&["replace", &files.path("one"), "--device", &files.path("one"), "--with", &files.path("d")]);
    assert!(said.contains("no device of it can be replaced"), "{said}");
    let said = done(&["replace", &three, "--device", &b]);
    assert!(said.contains("is device 2 of the array, and works"), "{said}");
    let program = files.serve(&THREE);
    let said = refused(&["replace", &three, "--device", &b, "--with", &files.path("d")]);
    assert!(said.contains("in use by"), "{said}");
    program.kill();
    assert_eq!(status(&three)["shards_alone"], 0, "no device went");
    assert_eq!(std::fs::read_to_string(files.path("text")).unwrap(), "a text that somebody wants to keep");
    assert!(!files.dir.path().join("d").exists());
}

/// Commands of several keys are whole over two copies, and `INFO` says what there is of them.
#[test]
fn several_keys_change_together_over_two_copies() {
    let files = Files::new();
    let program = files.serve_copied(&THREE);
    let said = info(&program);
    for line in ["kvssd_devices:3", "kvssd_copies:2", "kvssd_devices_out:0", "kvssd_shards_alone:0"] {
        assert!(said.contains(&format!("{line}\\r\\n")), "{said}");
    }
    let mut client = program.client();
    client.script(&[
        ("MSET a 1 b 2 users:1 x", "OK"),
        ("MSETNX b 3 c 3", "0"),
        ("RENAME a d", "OK"),
        ("WATCH b", "OK"),
        ("MULTI", "OK"),
        ("INCR b", "QUEUED"),
        ("HSET users:2 n 1", "QUEUED"),
        ("DEL users:1", "QUEUED"),
        ("EXEC", "[3, 1, 1]"),
    ]);
    let batch = |n: usize| (0..20).map(|key| format!(" m{key} {n}")).collect::<String>();
    for n in 0..50 {
        assert_eq!(client.run(&format!("MSET{}", batch(n))), "OK");
    }
    drop(client);
    program.kill();
    files.lose("b");
    let program = Program::spawn_over(&format!("kvssd:{}", files.array(&THREE)), &[]);
    let said = info(&program);
    assert!(said.contains("kvssd_devices_out:1\\r\\n") && !said.contains("kvssd_shards_alone:0"), "{said}");
    let mut client = program.client();
    let keys: String = (0..20).map(|key| format!(" m{key}")).collect();
    let all = |n: usize| format!("[{}]", vec![format!("\"{n}\""); 20].join(", "));
    client.script(&[
        ("MGET a b d users:1", "[nil, \"3\", \"1\", nil]"),
        ("HGET users:2 n", "\"1\""),
        (&format!("MGET{keys}"), &all(49)),
        // Where one copy is left of some of them, too.
        (&format!("MSET{}", batch(50)), "OK"),
        ("MULTI", "OK"),
        ("INCR b", "QUEUED"),
        ("INCR d", "QUEUED"),
        ("EXEC", "[4, 2]"),
    ]);
    drop(client);
    program.kill();
    let three = files.array(&THREE);
    done(&["replace", &three, "--device", &files.path("b")]);
    files.lose("c");
    let program = Program::spawn_over(&format!("kvssd:{three}"), &[]);
    program.client().script(&[("MGET b d", "[\"4\", \"2\"]"), (&format!("MGET{keys}"), &all(50))]);
}
