//! A server that only reads: what is there is answered, nothing changes.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Parser;
use hedgerow_device::Clock;
use hedgerow_tool::serve::command::Flag;
use hedgerow_tool::serve::commands::all;
use hedgerow_tool::serve::{self};

use crate::client::{Server, TempDir, clock};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: serve::Args,
}

const REFUSED: &str = "(READONLY You can't write against a read only replica.)";

/// A store with a key that expires and a hash whose only field does, as files.
fn store(clock: &Clock) -> TempDir {
    let dir = TempDir::new();
    let server = Server::start_on_by(clock, dir.path(), &[]);
    server.client().script(&[
        ("SET s text", "OK"),
        ("HSET h:1 a 1 b 2", "2"),
        ("SET brief text PX 300", "OK"),
        ("HSETEX h:2 PX 300 FIELDS 1 a 1", "1"),
    ]);
    server.stop();
    dir
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap())
    };
    std::fs::read_dir(dir).unwrap().map(read).collect()
}

fn refusal(dir: &Path, options: &[&str]) -> String {
    let line = [&["serve", "--dir", dir.to_str().unwrap(), "--listen", "127.0.0.1:0"], options].concat();
    match Cli::try_parse_from(line) {
        Ok(cli) => serve::prepare(&cli.args).err().expect("it opens"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn reads_are_answered_and_nothing_changes() {
    let clock = clock();
    let dir = store(&clock);
    let before = files(dir.path());
    // As many as like may read at the same time.
    let servers = [(); 2].map(|()| Server::start_on_by(&clock, dir.path(), &["--read-only"]));
    servers.iter().for_each(|server| assert_eq!(server.client().run("GET brief"), "\"text\""));
    clock.advance_ms(300);
    for server in &servers {
        let mut client = server.client();
        client.script(&[
            ("GET s", "\"text\""),
            ("HGETALL h:1", "[\"a\", \"1\", \"b\", \"2\"]"),
            ("GET brief", "nil"),
            ("EXISTS h:2", "0"),
            ("SCAN 0 COUNT 100", "[\"0\", [\"h:1\", \"s\"]]"),
            ("HR.SCAN h", "[[\"1\", [\"a\", \"1\", \"b\", \"2\"]]]"),
            ("HR.SCAN h REVERSE LIMIT 1", "[[\"1\", [\"a\", \"1\", \"b\", \"2\"]]]"),
            ("WATCH s", "OK"),
            ("MULTI", "OK"),
            ("GET s", "QUEUED"),
            ("EXEC", "[\"text\"]"),
        ]);
        let info = client.run("INFO");
        assert!(info.contains("read_only:1\\r\\n") && info.contains("durability:read-only\\r\\n"), "{info}");
        // Several looks of those who remove what has expired.
        std::thread::sleep(std::time::Duration::from_millis(400));
    }
    assert!(refusal(dir.path(), &[]).contains("is in use by another process"));
    servers.into_iter().for_each(Server::stop);
    assert_eq!(files(dir.path()), before);
    let server = Server::start_on(dir.path(), &[]);
    server.client().script(&[("GET s", "\"text\""), ("SET s other", "OK")]);
    assert!(server.client().run("INFO hedgerow").contains("read_only:0\\r\\n"));
    assert!(refusal(dir.path(), &["--read-only"]).contains("is in use by another process"));
}

#[test]
fn every_command_that_writes_is_refused() {
    let dir = store(&clock());
    let server = Server::start_on(dir.path(), &["--read-only"]);
    let mut client = server.client();
    let writing: Vec<_> = all().iter().filter(|command| command.is(Flag::Write)).collect();
    assert!(writing.len() > 40, "{}", writing.len());
    for command in writing {
        let name: Vec<&str> = command.full_name().split('|').collect();
        let rest = command.arity.unsigned_abs() as usize - name.len();
        let line = [name, vec!["1"; rest]].concat().join(" ");
        assert_eq!(client.run(&line), REFUSED, "{line}");
    }
    // They promise that something becomes durable, which nobody who only reads can do.
    for line in ["SAVE", "BGSAVE", "WAIT 0 0", "WAITAOF 0 0 0"] {
        assert_eq!(client.run(line), REFUSED, "{line}");
    }
    client.script(&[
        ("MULTI", "OK"),
        ("SET s 1", REFUSED),
        ("GET s", "QUEUED"),
        ("EXEC", "(EXECABORT Transaction discarded because of previous errors.)"),
        (
            "HR.BACKUP START b",
            "(ERR backups need a directory of the operator's choice: start the server with --backup-dir)",
        ),
        ("GET s", "\"text\""),
    ]);
}

#[test]
fn nothing_is_made_where_there_is_no_store() {
    let dir = TempDir::new();
    let error = refusal(&dir.path().join("none"), &["--read-only"]);
    assert!(error.contains("there is no store in"), "{error}");
    assert!(files(dir.path()).is_empty());
    for option in [
        ["--fast-bytes-max", "1gb"],
        ["--index-bytes-max", "1gb"],
        ["--durability", "immediate"],
        ["--backup-dir", "/tmp"],
    ] {
        let error = refusal(dir.path(), &["--read-only", option[0], option[1]]);
        assert!(error.contains("cannot be used with"), "{error}");
    }
}
