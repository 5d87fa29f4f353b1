//! Starting and stopping the program.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hedgerow_tool::process;
use signal_hook::consts::SIGHUP;

use crate::client::{Program, TempDir, encode};

fn signal(program: &Program, name: &str) {
    let status = Command::new("kill").args([name, &program.child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn only_the_owner_may_read_what_is_made() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for mask in ["000", "022"] {
        let top = TempDir::new();
        let before = mode(top.path());
        let dir = top.path().join("a/b");
        Program::spawn_masked(&dir, mask).kill();
        for (path, expected) in [("a", 0o700), ("a/b", 0o700), ("a/b/fast", 0o600), ("a/b/fast.lock", 0o600)]
        {
            assert_eq!(mode(&top.path().join(path)), expected, "{path} under umask {mask}");
        }
        assert_eq!(mode(top.path()), before, "it was there before");
        // What somebody has opened up on purpose stays open.
        std::fs::set_permissions(dir.join("fast"), PermissionsExt::from_mode(0o640)).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
        Program::spawn_masked(&dir, mask).kill();
        assert_eq!((mode(&dir), mode(&dir.join("fast"))), (0o755, 0o640));
    }
}

/// The fastest of a few starts, for the machine may be busy with other tests.
#[test]
fn answers_within_a_second_on_an_empty_directory() {
    let first_reply = |_| {
        let dir = TempDir::new();
        let started = Instant::now();
        let program = Program::spawn(dir.path(), &[]);
        assert_eq!(program.client().run("PING"), "PONG");
        let taken = started.elapsed();
        program.kill();
        taken
    };
    let fastest = (0..5).map(first_reply).min().unwrap();
    assert!(fastest < Duration::from_secs(1), "{fastest:?} to the first reply");
}

#[test]
fn stops_cleanly_on_signals() {
    let dir = TempDir::new();
    // With the end of its terminal the server ends in order, too, unless whoever started the tests has that ignored.
    let hangup = (!process::ignores(SIGHUP)).then_some("-HUP");
    for (round, name) in ["-TERM", "-INT"].into_iter().chain(hangup).enumerate() {
        let mut program = Program::spawn(dir.path(), &[]);
        let mut client = program.client();
        assert_eq!(client.run("PING"), "PONG");
        assert_eq!(client.run("DBSIZE"), (round * 100).to_string());
        for index in 0..100 {
            client.send(&[b"SET", format!("{round}-{index}").as_bytes(), b"v"]);
        }
        (0..100).for_each(|_| assert_eq!(client.reply(), "OK"));
        signal(&program, name);
        assert_eq!(client.try_reply(), None);
        assert!(program.child.wait().unwrap().success());
        let mut rest = String::new();
        program.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert!(rest.contains("redis-cli -h 127.0.0.1 -p"), "{rest}");
        assert!(rest.contains("stopped, everything is persisted"), "{rest}");
    }
}

/// As under `nohup`.
#[test]
fn a_server_that_ignores_the_end_of_its_terminal_stays() {
    let dir = TempDir::new();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_hedgerow")]);
    let mut program = Program::start(shell, dir.path(), &[]);
    let mut client = program.client();
    signal(&program, "-HUP");
    // The loop looks ten times a second whether it is to stop.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(client.run("PING"), "PONG");
    signal(&program, "-TERM");
    assert!(program.child.wait().unwrap().success());
}

#[test]
fn shutdown_stops_it_too() {
    let dir = TempDir::new();
    let mut program = Program::spawn(dir.path(), &["--durability", "immediate"]);
    let mut client = program.client();
    // Replies that wait for a sync still come.
    client.send_raw(&[encode(&[b"SET", b"k", b"v"]), encode(&[b"SHUTDOWN"])].concat());
    assert_eq!(client.try_reply().as_deref(), Some("OK"));
    assert_eq!(client.try_reply(), None);
    assert!(program.child.wait().unwrap().success());
    let program = Program::spawn(dir.path(), &[]);
    assert_eq!(program.client().run("GET k"), "\"v\"");
    program.kill();
}

/// Whoever read what it prints may be gone: it goes on all the same, and stops in order.
#[test]
fn goes_on_though_nobody_reads_what_it_prints() {
    let dir = TempDir::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hedgerow"));
    command.stderr(Stdio::piped());
    let mut program = Program::start(command, dir.path(), &[]);
    drop((program.child.stderr.take(), program.stdout.take()));
    // It has something to say of this one.
    let mut stranger = program.client();
    stranger.send_raw(b"POST / HTTP/1.1\r\n");
    assert_eq!(stranger.try_reply(), None);
    assert_eq!(program.client().run("SET k v"), "OK");
    signal(&program, "-INT");
    let status = program.child.wait().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(Program::spawn(dir.path(), &[]).client().run("GET k"), "\"v\"");
}

fn fails_with(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hedgerow"))
        .arg("serve")
        .args(args)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{message}");
    assert!(message.starts_with("hedgerow: ") && message.lines().count() == 1, "{message}");
    message
}

#[test]
fn says_what_is_wrong() {
    let dir = TempDir::new();
    let program = Program::spawn(dir.path(), &[]);
    let path = dir.path().to_str().unwrap();
    let taken = program.address.to_string();
    let message = fails_with(&["--dir", path, "--listen", &taken]);
    assert!(message.contains("is in use by another program"), "{message}");
    let message = fails_with(&["--dir", path, "--listen", "127.0.0.1:0"]);
    assert!(message.contains("is in use by another process"), "{message}");
    let message = fails_with(&["--dir", path, "--listen", "0.0.0.0:0"]);
    assert!(message.contains("--requirepass") && message.contains("--no-protected-mode"), "{message}");
    let message = fails_with(&["--dir", path, "--listen", "nonsense"]);
    assert!(message.contains("is no address and port"), "{message}");
    let message = fails_with(&["--dir", path, "--durability", "always"]);
    assert!(message.contains("is no durability"), "{message}");
    let message = fails_with(&["--dir", path, "--listen", &taken, "--port", "1"]);
    assert!(message.contains("'--listen <ADDRESS:PORT>' cannot be used with '--port <PORT>'"), "{message}");
    let (address, port) = taken.rsplit_once(':').unwrap();
    let message = fails_with(&["--dir", path, "--bind", address, "--port", port]);
    assert!(message.contains(&format!("{taken} is in use by another program")), "{message}");
    let message = fails_with(&["--nonsense"]);
    assert!(message.contains("unexpected argument '--nonsense'"), "{message}");
    let message = fails_with(&["--fast-bytes-max", "much"]);
    assert!(message.contains("'much' is no number of bytes"), "{message}");
    // The address is in use, so none of them is served if it is taken.
    for (option, value, why) in [
        ("--output-hard-limit", "0", "'0' leaves replies no room"),
        ("--output-soft-limit", "0mb", "'0mb' leaves replies no room"),
        ("--client-bytes-max", "0", "'0' is too little"),
        ("--client-bytes-max", "1023kb", "the buffers of all clients take 1mb at the least"),
        ("--max-clients", "0", "'0' is no number of clients"),
        ("--idle-timeout", "5", "'5' is no duration"),
    ] {
        let message = fails_with(&["--dir", path, "--listen", &taken, option, value]);
        assert!(message.contains(why), "{option} {value}: {message}");
    }
    let message = fails_with(&["--dir", "/proc/nowhere", "--listen", "127.0.0.1:0"]);
    assert!(message.contains("cannot make the directory"), "{message}");
    program.kill();
}

#[test]
fn one_sync_serves_many_clients() {
    let dir = TempDir::new();
    let program = Program::spawn(dir.path(), &["--durability", "immediate"]);
    let clients = 16;
    let rounds = 20;
    let threads: Vec<_> = (0..clients)
        .map(|number| {
            let mut client = program.client();
            std::thread::spawn(move || {
                for round in 0..rounds {
                    assert_eq!(client.run(&format!("SET k{number}-{round} v")), "OK");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut client = program.client();
    assert_eq!(client.run("DBSIZE"), (clients * rounds).to_string());
    let metrics = client.run("HR.METRICS");
    let syncs = metrics.split("\"syncs\", ").nth(1).unwrap().split(',').next().unwrap();
    let syncs: u64 = syncs.parse().unwrap();
    assert!(syncs >= rounds && syncs < clients * rounds, "{syncs} syncs for {} writes", clients * rounds);
    program.kill();
}
