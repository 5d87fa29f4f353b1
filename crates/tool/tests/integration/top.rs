//! `hedgerow top`: what it shows of a server, as text and in a terminal, and what it says where there is none.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hedgerow_sim::{eventually, skip};
use hedgerow_tool::top::client::{RespClient, ServerAddress};
use hedgerow_tool::top::rates::CounterRates;
use rustix::net::{AddressFamily, SocketType};

use crate::client::{Program, Server, Store, TempDir};

/// One picture as text.
fn once(port: u16, options: &[&str], password: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hedgerow"));
    command.args(["top", "--interval", "100ms", "--port", &port.to_string()]).args(options);
    command.env_remove("REDISCLI_AUTH").stdin(Stdio::null());
    if let Some(password) = password {
        command.env("REDISCLI_AUTH", password);
    }
    command.output().unwrap()
}

fn picture(output: &Output) -> String {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line of a failure.
fn failure(output: &Output) -> String {
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim_end().strip_prefix("hedgerow: ").unwrap().to_string()
}

fn row<'t>(picture: &'t str, name: &str) -> &'t str {
    let found = picture.lines().find(|line| line.starts_with(name));
    found.unwrap_or_else(|| panic!("no {name} in\n{picture}"))
}

#[test]
fn a_picture_shows_the_figures_of_the_server() {
    let server = Server::start(&["--fast-bytes-max", "64mb", "--index-bytes-max", "8mb"]);
    let mut client = server.client();
    (0..300).for_each(|i| drop(client.run(&format!("HSET users:{i} name n age 3"))));
    // Standard output is no terminal here, so one picture it is.
    let picture = picture(&once(server.address.port(), &[], None));
    let version = env!("CARGO_PKG_VERSION");
    assert!(picture.starts_with(&format!("hedgerow {version}  {}  up ", server.address)), "{picture}");
    assert!(row(&picture, "clients").starts_with("clients  2  memory "), "{picture}");
    assert!(row(&picture, "clients").ends_with("  rows 300  tables 1"), "{picture}");
    assert!(row(&picture, "index").contains(" of 8.00M"), "{picture}");
    assert!(row(&picture, "log").contains(" of 64.0M  live "), "{picture}");
    assert!(row(&picture, "sorted").contains(" 0B without limit  rows 0  runs 0"), "{picture}");
    // It asks itself, so something is done.
    assert!(
        row(&picture, "commands").ends_with("/s") && row(&picture, "busiest").contains("info "),
        "{picture}"
    );
    assert_eq!(row(&picture, "reads").split_whitespace().nth(1), Some("0/s"), "{picture}");
    assert!(row(&picture, "throttle").starts_with("throttle none  writers slept 0us/s"), "{picture}");
}

#[test]
fn what_a_store_of_pairs_does_not_count_is_not_shown_as_zero() {
    let server = Store::Pairs.start(&[]);
    server.client().run("SET key value");
    let picture = picture(&once(server.address.port(), &["--once"], None));
    assert!(row(&picture, "clients").ends_with("  rows -  tables -"), "{picture}");
    assert!(row(&picture, "index").ends_with("-  - of -  finds groups -"), "{picture}");
    assert!(row(&picture, "throttle").contains("-  writers slept -"), "{picture}");
    assert!(row(&picture, "commands").ends_with("/s"), "{picture}");
}

#[test]
fn passwords_are_asked_for_and_not_told() {
    let server = Server::start(&["--requirepass", "open sesame"]);
    let port = server.address.port();
    let wanted = failure(&once(port, &["--once"], None));
    assert_eq!(wanted, format!("{} wants a password: --password, or REDISCLI_AUTH", server.address));
    let refused = failure(&once(port, &["--once", "--password", "guess"], None));
    assert!(refused.starts_with(&format!("{} refuses the password: WRONGPASS", server.address)), "{refused}");
    assert!(!refused.contains("guess"), "{refused}");
    let mut client = server.client();
    assert_eq!(client.run_words(&[b"AUTH", b"open sesame"]), "OK");
    for (options, password) in [
        (&["--once", "--password", "open sesame"][..], None),
        (&["--once"], Some("open sesame")),
        (&["--once", "--password", "open sesame"], Some("guess")),
    ] {
        // Those before may be about to be closed.
        eventually("nobody else is there", || client.run("CLIENT LIST").matches(" addr=").count() == 1);
        let shown = picture(&once(port, options, password));
        assert!(row(&shown, "clients").starts_with("clients  2"), "{shown}");
    }
    // Who wants none is content with any.
    let open = Server::start(&[]);
    picture(&once(open.address.port(), &["--once", "--password", "guess"], None));
}

#[test]
fn where_no_server_answers_one_line_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").unwrap();
        // Until the other side has gone.
        std::io::copy(&mut stream, &mut std::io::sink()).ok();
    });
    let strange = failure(&once(port, &[], None));
    assert!(strange.contains("this is not the Redis protocol: \"SSH-2.0-OpenSSH_9.9\""), "{strange}");
    other.join().unwrap();
    // Bound, so that nobody else takes the port, and not listening.
    let bound = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let bound = TcpListener::from(bound);
    let port = bound.local_addr().unwrap().port();
    let refused = failure(&once(port, &[], None));
    assert!(refused.starts_with(&format!("no connection to 127.0.0.1:{port}: ")), "{refused}");
    for wrong in [["--interval", "1"], ["--interval", "1ms"], ["--port", "66000"]] {
        let output = once(port, &wrong, None);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
    }
}

#[test]
fn a_terminal_is_told_nothing_by_what_a_server_says() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"+OK\r\n-ERR \x1b[2Jgo \x07away\r\n").unwrap();
        std::io::copy(&mut stream, &mut std::io::sink()).ok();
    });
    let refused = failure(&once(port, &[], None));
    assert!(refused.ends_with("refuses PING: ERR ?[2Jgo ?away"), "{refused:?}");
    other.join().unwrap();
}

#[test]
fn rates_survive_a_reset_of_the_counters() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let address = ServerAddress::new("127.0.0.1".into(), server.address.port(), None);
    let mut asking = RespClient::connect(&address).unwrap();
    let mut look = || {
        // What is closer together is not compared.
        std::thread::sleep(Duration::from_millis(20));
        asking.sample().unwrap()
    };
    let (first, second) = (look(), look());
    (0..50).for_each(|i| drop(client.run(&format!("SET key{i} v"))));
    let third = look();
    assert_eq!(client.run("CONFIG RESETSTAT"), "OK");
    // More than there were before, so that the total alone would not show it.
    (0..200).for_each(|i| drop(client.run(&format!("SET key{i} v"))));
    let fourth = look();
    let puts = |rates: &CounterRates| rates.sum(&["puts", "updates"]).unwrap();
    let counted = CounterRates::between(second.clone(), third.clone()).unwrap();
    let commands = counted.of("total_commands_processed").unwrap();
    assert!(commands > puts(&counted) && puts(&counted) > 0.0, "{commands}");
    assert!(third.number("total_commands_processed") < fourth.number("total_commands_processed"));
    let reset = CounterRates::between(third, fourth).unwrap();
    assert_eq!((reset.of("total_commands_processed"), reset.commands().len()), (None, 0));
    assert!(puts(&reset) > 0.0);
    drop(server);
    let other = Server::start(&[]);
    let address = ServerAddress::new("127.0.0.1".into(), other.address.port(), None);
    let elsewhere = RespClient::connect(&address).unwrap().sample().unwrap();
    assert!(CounterRates::between(first, elsewhere).is_none());
}

/// The program in a terminal of its own, by `script` of util-linux.
struct InTerminal {
    script: Child,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl InTerminal {
    fn start(line: &str) -> InTerminal {
        let mut script = Command::new("script")
            .args(["-qec", line, "/dev/null"])
            // By which `script` starts it.
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut stdout, seen) = (script.stdout.take().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let seeing = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut bytes) {
                seeing.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        InTerminal { script, seen }
    }

    fn press(&mut self, keys: &str) {
        self.script.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// What was painted from there on.
    fn text_from(&self, from: usize) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()[from..]).into_owned()
    }

    /// Where a text ends that was painted from there on.
    fn end_of(&self, from: usize, text: &str) -> Option<usize> {
        let seen = self.seen.lock().unwrap();
        let at = seen[from..].windows(text.len()).position(|bytes| bytes == text.as_bytes())?;
        Some(from + at + text.len())
    }

    /// Waits until a text is painted, and says where it ends: what comes right behind it may be there already.
    fn wait_for(&self, from: usize, text: &str) -> usize {
        let begun = Instant::now();
        while self.end_of(from, text).is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "no {text:?} in {:?}", self.text_from(from));
            std::thread::sleep(Duration::from_millis(5));
        }
        self.end_of(from, text).unwrap()
    }
}

impl Drop for InTerminal {
    fn drop(&mut self) {
        drop(self.script.kill());
        drop(self.script.wait());
    }
}

/// What `script` is there, if it is that of util-linux.
fn has_script() -> bool {
    let version = Command::new("script").arg("--version").output();
    let found = version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("util-linux"));
    if !found {
        skip("there is no `script` of util-linux to have a terminal by");
    }
    found
}

/// The process whose number is in a file.
fn process_of(file: &Path) -> u32 {
    std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

/// Whether it is there and does something still.
fn is_running(process: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{process}/stat"));
    state.is_ok_and(|state| !state.contains(") Z "))
}

fn wait_for_end(process: u32, why: &str) {
    let begun = Instant::now();
    while is_running(process) {
        assert!(begun.elapsed() < Duration::from_secs(5), "it does not end by {why}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

#[test]
fn a_terminal_that_hangs_up_ends_it() {
    if !has_script() {
        return;
    }
    let files = TempDir::new();
    let server = Server::start(&[]);
    // In a session of its own there is no signal to end it, but only the end of what it reads.
    for session in ["setsid -w", ""] {
        let file = files.path().join("process");
        let top = format!("{} top --port {}", env!("CARGO_BIN_EXE_hedgerow"), server.address.port());
        let line = format!("{session} sh -c 'echo $$ > {}; exec {top}'", file.display());
        let mut terminal = InTerminal::start(&line);
        terminal.wait_for(0, "q quit");
        assert!(is_running(process_of(&file)));
        // With it the other end of the terminal is closed.
        terminal.script.kill().unwrap();
        terminal.script.wait().unwrap();
        wait_for_end(process_of(&file), "a hang-up");
    }
}

#[test]
fn signals_end_it_whatever_the_terminal_does() {
    if !has_script() {
        return;
    }
    let files = TempDir::new();
    let server = Server::start(&[]);
    let port = server.address.port();
    for (name, code) in [("-TERM", 143), ("-INT", 130), ("-HUP", 129), ("-QUIT", 131)] {
        if is_ignored(code - 128) {
            skip("whoever runs the tests ignores a signal, and so does what they start");
            continue;
        }
        let (file, after) = (files.path().join("process"), files.path().join("after"));
        let top = format!("{} top --port {port}", env!("CARGO_BIN_EXE_hedgerow"));
        let (p, a) = (file.display(), after.display());
        let line = format!("sh -c 'echo $$ > {p}; exec {top}'; status=$?; stty -a > {a}; exit $status");
        let mut terminal = InTerminal::start(&line);
        let shown = terminal.wait_for(0, "q quit");
        // Half a key.
        terminal.press("\x1b[");
        std::thread::sleep(Duration::from_millis(100));
        signal(name, process_of(&file));
        wait_for_end(process_of(&file), name);
        assert_eq!(terminal.script.wait().unwrap().code(), Some(code as i32));
        terminal.wait_for(shown, "\x1b[?1049l\x1b[?25h");
        assert!(std::fs::read_to_string(&after).unwrap().contains(" icanon"));
    }
    // A terminal whose other end takes nothing more.
    let file = files.path().join("process");
    let top = format!("{} top --interval 100ms --port {port}", env!("CARGO_BIN_EXE_hedgerow"));
    let terminal = InTerminal::start(&format!("sh -c 'echo $$ > {}; exec {top}'", file.display()));
    terminal.wait_for(0, "q quit");
    signal("-STOP", terminal.script.id());
    let process = process_of(&file);
    let waits = || {
        std::fs::read_to_string(format!("/proc/{process}/syscall"))
            .is_ok_and(|call| call.starts_with("1 0x1 "))
    };
    let begun = Instant::now();
    while !waits() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(50));
    }
    signal("-TERM", process);
    wait_for_end(process, "a signal while it paints");
}

/// Whether a signal is ignored by this process, and so by those it starts.
fn is_ignored(signal: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
}

/// By a key or a signal: whoever has the terminal meanwhile has it as it was, and then it is taken again.
#[test]
fn a_program_that_is_stopped_gives_the_terminal_back_and_takes_it_again() {
    if !has_script() {
        return;
    }
    let files = TempDir::new();
    let server = Server::start(&[]);
    let top = format!("{} top --port {}", env!("CARGO_BIN_EXE_hedgerow"), server.address.port());
    let [before, during, after, process] =
        ["before", "during", "after", "process"].map(|name| files.path().join(name));
    let [b, d, a, p] = [&before, &during, &after, &process].map(|file| file.display());
    // A shell with job control goes on when its job is stopped.
    let job = format!("sh -c \"echo \\$\\$ > {p}; exec {top}\"");
    let line = format!("sh -c 'set -m; stty -a > {b}; {job}; stty -a > {d}; fg; stty -a > {a}'");
    for by_key in [true, false] {
        let mut terminal = InTerminal::start(&line);
        let shown = terminal.wait_for(0, "q quit");
        match by_key {
            true => terminal.press("\x1a"),
            false => signal("-TSTP", process_of(&process)),
        }
        let given_back = terminal.wait_for(shown, "\x1b[?1049l\x1b[?25h");
        terminal.wait_for(given_back, "\x1b[?1049h");
        let painted = terminal.wait_for(given_back, "q quit");
        match by_key {
            true => terminal.press("q"),
            false => signal("-TERM", process_of(&process)),
        }
        terminal.wait_for(painted, "\x1b[?1049l\x1b[?25h");
        wait_for_end(process_of(&process), "a key or a signal");
        eventually("the shell ends", || terminal.script.try_wait().unwrap().is_some());
        let [before, during, after] =
            [&before, &during, &after].map(|file| std::fs::read_to_string(file).unwrap());
        assert!(before.contains(" icanon"), "{before}");
        assert_eq!((&during, &after), (&before, &before));
    }
}

#[test]
fn who_is_to_survive_a_hang_up_does() {
    let server = Server::start(&[]);
    let port = server.address.port().to_string();
    let mut nohup = Command::new("nohup");
    nohup.args([env!("CARGO_BIN_EXE_hedgerow"), "top", "--once", "--interval", "1s", "--port", &port]);
    let child = nohup.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It waits for one interval, and the signal comes meanwhile.
    let mut client = server.client();
    eventually("it is there", || client.run("CLIENT LIST").matches(" addr=").count() == 2);
    signal("-HUP", child.id());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(row(&String::from_utf8(output.stdout).unwrap(), "clients").starts_with("clients  "));
    if !has_script() {
        return;
    }
    // In a terminal, too, until that is gone.
    let files = TempDir::new();
    let file = files.path().join("process");
    let top = format!("{} top --port {port}", env!("CARGO_BIN_EXE_hedgerow"));
    // Nor is it stopped where no shell could have it go on: its parent is none, or one without job control, which would stop, too.
    for (exec, then) in [("exec", ""), ("", "; exit $?")] {
        let line = format!("{exec} sh -c 'trap \"\" HUP; echo $$ > {}; exec {top}'{then}", file.display());
        let mut terminal = InTerminal::start(&line);
        let shown = terminal.wait_for(0, "q quit");
        signal("-HUP", process_of(&file));
        terminal.press("\x1ah");
        terminal.wait_for(shown, "quits; so do Esc");
        assert!(is_running(process_of(&file)));
        terminal.script.kill().unwrap();
        terminal.script.wait().unwrap();
        wait_for_end(process_of(&file), "the end of its terminal");
    }
}

#[test]
fn a_terminal_shows_the_server_going_away_and_coming_back_and_is_given_back() {
    if !has_script() {
        return;
    }
    let (dir, files) = (TempDir::new(), TempDir::new());
    let server = Program::spawn(dir.path(), &[]);
    let (address, port) = (server.address.to_string(), server.address.port());
    let (before, after) = (files.path().join("before"), files.path().join("after"));
    let top = format!("{} top --interval 100ms --port {port}", env!("CARGO_BIN_EXE_hedgerow"));
    let (b, a) = (before.display(), after.display());
    let line = format!("stty rows 24 cols 80; stty -a > {b}; {top}; status=$?; stty -a > {a}; exit $status");
    let mut terminal = InTerminal::start(&line);
    terminal.wait_for(0, "\x1b[?1049h");
    terminal.wait_for(0, "q quit");
    assert!(std::fs::read_to_string(&before).unwrap().contains(" icanon"));
    server.kill();
    let gone = terminal.wait_for(0, "trying again: no connection to ");
    let server = Program::spawn(dir.path(), &["--listen", &address]);
    // The row that said so has its clients again.
    let back = terminal.wait_for(gone, "clients");
    terminal.press("h");
    let helped = terminal.wait_for(back, "quits; so do Esc");
    terminal.press("q");
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = terminal.script.try_wait().unwrap() {
            break status;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it does not quit: {}",
            terminal.text_from(helped)
        );
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
    terminal.wait_for(helped, "\x1b[?1049l\x1b[?25h");
    let [before, after] = [before, after].map(|file| std::fs::read_to_string(file).unwrap());
    assert_eq!(before, after);
    server.kill();
}
