//! Backups by the command line and by a server under load, and stores made of them.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hedgerow_sim::eventually;

use crate::client::{Client, Program, Server, TempDir};

/// Runs the program to its end.
fn hedgerow(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hedgerow")).args(args).output().unwrap()
}

/// Its standard output; it must succeed.
fn succeeds(args: &[&str]) -> String {
    let output = hedgerow(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Its standard error; it must fail with exit code 1.
fn fails(args: &[&str]) -> String {
    let output = hedgerow(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn fill(client: &mut Client, keys: std::ops::Range<u64>) {
    for n in keys {
        assert!(!client.run(&format!("HSET users:{n} name {} age {n}", "x".repeat(300))).starts_with('('));
    }
}

/// Waits for the backup that was started, and returns how it ended.
fn wait_for_backup(client: &mut Client) -> String {
    let mut status = String::new();
    eventually("the backup ends", || {
        status = client.run("HR.BACKUP STATUS");
        !status.contains("\"running\"")
    });
    status
}

#[test]
fn a_server_backs_up_what_it_serves_while_clients_write() {
    let (store, target) = (TempDir::new(), TempDir::new());
    let server = Server::start_on(store.path(), &["--backup-dir", text(target.path())]);
    let mut client = server.client();
    fill(&mut client, 0..2_000);
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let mut writer = server.client();
        let (stop, written) = (&stop, &written);
        scope.spawn(move || {
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                // One command, and so whole in every backup.
                let set = writer.run(&format!("HSET pairs:{} left {n} right {n}", n % 50));
                assert!(!set.starts_with('('), "{set}");
                writer.run(&format!("SET last {n}"));
                written.store(n, Ordering::SeqCst);
            }
        });
        for name in ["one", "two", "one"] {
            let before = written.load(Ordering::SeqCst);
            assert_eq!(client.run(&format!("HR.BACKUP START {name}")), "Backup started");
            let status = wait_for_backup(&mut client);
            assert!(status.contains("\"ok\""), "{status}");
            let after = written.load(Ordering::SeqCst) + 1;
            check_backup(&target.path().join(name), before, after);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(client.run("INFO hedgerow").contains("backup_status:ok"));
}

/// Restores it, serves it, and looks at what the writer of the test wrote.
fn check_backup(backup: &Path, before: u64, after: u64) {
    let scratch = TempDir::new();
    let anew = scratch.path().join("anew");
    succeeds(&["check", text(backup), "--quiet"]);
    succeeds(&["restore", text(backup), "--to", text(&anew), "--quiet"]);
    let server = Server::start_on(&anew, &[]);
    let mut client = server.client();
    let last: u64 = client.run("GET last").trim_matches('"').parse().unwrap_or(0);
    assert!((before..=after).contains(&last), "{last} is not between {before} and {after}");
    for pair in 0..50 {
        let both = client.run(&format!("HMGET pairs:{pair} left right"));
        let (left, right) = both.trim_matches(['[', ']']).split_once(", ").unwrap();
        assert_eq!(left, right);
        let newest = left.trim_matches('"').parse::<u64>().unwrap_or(0);
        assert!(newest <= last + 1, "a write later than the last");
        assert!(last < 51 || newest + 50 >= last, "pair {pair} is {newest}, though {last} was written");
    }
    assert_eq!(client.run("HGET users:1999 age"), "\"1999\"");
}

#[test]
fn clients_write_backups_only_where_the_operator_said() {
    let server = Server::start(&[]);
    let refused = server.client().run("HR.BACKUP START monday");
    assert!(refused.starts_with("(ERR") && refused.contains("--backup-dir"), "{refused}");
    drop(server);
    let target = TempDir::new();
    let server = Server::start(&["--backup-dir", text(&target.path().join("inside"))]);
    let mut client = server.client();
    for name in ["../outside", "/tmp/outside", ".", "..", "a/b", ".hidden"] {
        let refused = client.run(&format!("HR.BACKUP START {name}"));
        assert!(refused.starts_with("(ERR invalid backup name"), "{refused}");
    }
    client.script(&[
        ("HR.BACKUP CANCEL", "0"),
        ("HR.BACKUP START", "(ERR syntax error)"),
        ("HR.BACKUP nonsense", "(ERR syntax error)"),
    ]);
    assert!(client.run("HR.BACKUP STATUS").contains("\"none\""));
    client.run("SET key value");
    client.run("HR.BACKUP START monday");
    assert!(wait_for_backup(&mut client).contains("\"ok\""));
    let names: Vec<_> = std::fs::read_dir(target.path().join("inside")).unwrap().collect();
    assert_eq!(names.len(), 1);
    // A directory with something else in it.
    std::fs::create_dir(target.path().join("inside/store")).unwrap();
    std::fs::copy(target.path().join("inside/monday/fast"), target.path().join("inside/store/fast")).unwrap();
    client.run("HR.BACKUP START store");
    let status = wait_for_backup(&mut client);
    assert!(status.contains("\"err\"") && status.contains("choose another"), "{status}");
}

/// A backup that fails is told as one that failed, also where nobody reads what the server says of it.
#[test]
fn a_backup_that_failed_is_told_though_nobody_reads_the_log() {
    let (store, target) = (TempDir::new(), TempDir::new());
    std::fs::write(target.path().join("taken"), "no directory").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hedgerow"));
    command.stderr(Stdio::piped());
    let mut program = Program::start(command, store.path(), &["--backup-dir", text(target.path())]);
    drop(program.child.stderr.take());
    let mut client = program.client();
    assert_eq!(client.run("HR.BACKUP START taken"), "Backup started");
    let status = wait_for_backup(&mut client);
    assert!(status.contains("\"err\""), "{status}");
    assert!(client.run("INFO hedgerow").contains("backup_status:err"));
}

/// A server that is killed in the middle of a backup leaves one that nothing takes for whole, and that is gone on with.
#[test]
fn a_backup_whose_server_is_killed_is_gone_on_with() {
    let (store, target) = (TempDir::new(), TempDir::new());
    let backup = target.path().join("nightly");
    for round in 0..4 {
        let program = Program::spawn(store.path(), &["--backup-dir", text(target.path())]);
        let mut client = program.client();
        fill(&mut client, round * 3_000..(round + 1) * 3_000);
        assert_eq!(client.run("HR.BACKUP START nightly"), "Backup started");
        std::thread::sleep(Duration::from_millis(3 * round));
        program.kill();
        if !backup.join("fast").exists() {
            let refused = fails(&["restore", text(&backup), "--to", text(&target.path().join("anew"))]);
            assert!(refused.contains("not finished") || refused.contains("no store"), "{refused}");
        }
    }
    let program = Program::spawn(store.path(), &["--backup-dir", text(target.path())]);
    let mut client = program.client();
    client.run("HR.BACKUP START nightly");
    let status = wait_for_backup(&mut client);
    assert!(status.contains("\"ok\""), "{status}");
    succeeds(&["check", text(&backup), "--quiet"]);
    let anew = target.path().join("anew");
    succeeds(&["restore", text(&backup), "--to", text(&anew), "--quiet"]);
    let server = Server::start_on(&anew, &[]);
    assert_eq!(server.client().run("DBSIZE"), "12000");
    program.kill();
}

#[test]
fn the_command_line_copies_a_closed_store_and_back() {
    let scratch = TempDir::new();
    let [store, backup, anew] = ["store", "backup", "anew"].map(|name| scratch.path().join(name));
    let server = Server::start_on(&store, &[]);
    fill(&mut server.client(), 0..500);
    let locked = fails(&["backup", text(&store), "--to", text(&backup)]);
    assert!(locked.contains("in use") && locked.contains("HR.BACKUP"), "{locked}");
    server.stop();
    let missing = fails(&["backup", text(&scratch.path().join("nothing")), "--to", text(&backup)]);
    assert!(missing.contains("no store"), "{missing}");
    let said = succeeds(&["backup", text(&store), "--to", text(&backup), "--quiet"]);
    // The rows, the table's making, and the fields it learned.
    assert!(said.starts_with("backed up 502 records"), "{said}");
    let again = succeeds(&["backup", text(&store), "--to", text(&backup), "--quiet"]);
    assert!(again.contains("0 B copied"), "nothing had changed: {again}");
    // To read a backup is not to make a store of it.
    let lines = succeeds(&["export", text(&backup), "--table", "users"]);
    assert_eq!(
        lines.lines().filter(|line| line.contains("\"age\"")).count(),
        501,
        "a line says what the fields are"
    );
    let again = succeeds(&["backup", text(&store), "--to", text(&backup), "--quiet"]);
    assert!(again.contains("0 B copied"), "nothing had changed: {again}");
    assert!(!anew.exists());
    let said = succeeds(&["restore", text(&backup), "--to", text(&anew), "--quiet"]);
    assert!(said.starts_with("restored 502 records"), "{said}");
    let refused = fails(&["restore", text(&backup), "--to", text(&anew)]);
    assert!(refused.contains("not empty"), "{refused}");
    let server = Server::start_on(&anew, &[]);
    server.client().script(&[("HGET users:42 age", "\"42\""), ("DBSIZE", "500")]);
}
