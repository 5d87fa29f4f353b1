//! A client that shows replies as text, and servers for it to talk to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Parser;
use hedgerow::{Db, Options};
use hedgerow_device::{CapacityTier, Clock, CrashSim, FastTier};
use hedgerow_kvssd::{ArrayMedium, Geometry, KvssdBackend, KvssdOptions};
use hedgerow_row::backend::memory::MemoryBackend;
use hedgerow_row::backend::{Backend, Capabilities, Session};
use hedgerow_tool::serve::{self, event_loop::Stopper};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: serve::Args,
}

/// A directory that goes with the test.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hedgerow-serve-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A server in this process.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), String>>>,
    _dir: Option<TempDir>,
}

impl Server {
    /// On a fresh directory.
    pub(crate) fn start(options: &[&str]) -> Server {
        let dir = TempDir::new();
        let mut server = Server::start_on(dir.path(), options);
        server._dir = Some(dir);
        server
    }

    pub(crate) fn start_on(dir: &Path, options: &[&str]) -> Server {
        Server::start_on_by(&Clock::system(), dir, options)
    }

    /// On a fresh directory, by a clock that the test moves.
    pub(crate) fn start_by(clock: &Clock, options: &[&str]) -> Server {
        let dir = TempDir::new();
        let mut server = Server::start_on_by(clock, dir.path(), options);
        server._dir = Some(dir);
        server
    }

    pub(crate) fn start_on_by(clock: &Clock, dir: &Path, options: &[&str]) -> Server {
        let dir = dir.to_str().unwrap();
        let line = [&["serve", "--dir", dir, "--listen", "127.0.0.1:0"], options].concat();
        Server::run(serve::prepare_by(&Cli::parse_from(line).args, clock.clone()).unwrap())
    }

    fn run(ready: serve::Ready) -> Server {
        let (address, stopper) = (ready.addresses[0], ready.stopper());
        let thread = Some(std::thread::spawn(move || ready.run()));
        Server { address, stopper, thread, _dir: None }
    }

    /// Over a store of pairs.
    pub(crate) fn start_over_pairs(
        backend: &(impl Backend + Clone + 'static),
        clock: &Clock,
        options: &[&str],
    ) -> Server {
        let line = [&["serve", "--store", "memory:", "--listen", "127.0.0.1:0"], options].concat();
        let backend = Arc::new(backend.clone());
        Server::run(serve::prepare_over(&Cli::parse_from(line).args, clock.clone(), backend).unwrap())
    }

    /// Over a simulated medium.
    pub(crate) fn start_over(sim: &CrashSim, options: &[&str]) -> Server {
        Server::start_at(FastTier::simulated(sim).into(), options)
    }

    /// Over any medium.
    pub(crate) fn start_at(tier: Arc<FastTier>, options: &[&str]) -> Server {
        Server::start_with(options, |options, clock| Db::open_at(tier, options, clock))
    }

    /// Over a simulated medium with a capacity tier.
    pub(crate) fn start_over_tiers(sim: &CrashSim, options: &[&str]) -> Server {
        let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
        Server::start_with(options, |options, clock| Db::open_at(tiers, options, clock))
    }

    /// Over what `open` opens.
    pub(crate) fn start_with(
        options: &[&str],
        open: impl FnOnce(Options, Clock) -> hedgerow::Result<Db>,
    ) -> Server {
        let line = [&["serve", "--listen", "127.0.0.1:0"], options].concat();
        Server::run(serve::prepare_with(&Cli::parse_from(line).args, Clock::system(), open).unwrap())
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Stops it, and says why it could not persist everything.
    pub(crate) fn stop_failed(mut self) -> String {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap().unwrap_err()
    }

    pub(crate) fn stop(mut self) {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            if !std::thread::panicking() {
                outcome.unwrap().unwrap();
            }
        }
    }
}

/// A backend of pairs, whichever. Clones have the same pairs.
#[derive(Clone)]
pub(crate) struct AnyBackend(Arc<dyn Backend>);

impl AnyBackend {
    pub(crate) fn of(backend: Arc<dyn Backend>) -> AnyBackend {
        AnyBackend(backend)
    }

    /// Pairs of which one changes at a time.
    pub(crate) fn memory() -> AnyBackend {
        AnyBackend(Arc::new(MemoryBackend::default()))
    }

    /// Two key-value devices in memory.
    pub(crate) fn kvssd() -> AnyBackend {
        let geometry = Geometry { page_bytes: 32 << 10, block_bytes: 16 << 20, blocks: 16 };
        let options = KvssdOptions { geometry: Some(geometry), ..KvssdOptions::default() };
        let media = [ArrayMedium::Memory, ArrayMedium::Memory];
        AnyBackend(Arc::new(KvssdBackend::open(&media, &options).unwrap()))
    }
}

impl Backend for AnyBackend {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn session(&self) -> hedgerow::Result<Box<dyn Session>> {
        self.0.session()
    }

    fn close(&self) -> hedgerow::Result<()> {
        self.0.close()
    }
}

/// Runs a test of what holds whatever keeps the pairs, each time over an empty backend.
pub(crate) fn on_every_backend(test: fn(AnyBackend)) {
    for backend in [AnyBackend::memory, AnyBackend::kvssd] {
        let backend = backend();
        println!("over {}", backend.capabilities().name);
        test(backend);
    }
}

/// A kind of store to serve.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Store {
    Tiered,
    Pairs,
    Kvssd,
}

impl Store {
    /// A server over an empty one.
    pub(crate) fn start(self, options: &[&str]) -> Server {
        self.start_by(&Clock::system(), options)
    }

    /// By a clock that the test moves.
    pub(crate) fn start_by(self, clock: &Clock, options: &[&str]) -> Server {
        match self {
            Store::Tiered => Server::start_by(clock, options),
            Store::Pairs => Server::start_over_pairs(&AnyBackend::memory(), clock, options),
            Store::Kvssd => Server::start_over_pairs(&AnyBackend::kvssd(), clock, options),
        }
    }
}

/// Runs a test of what holds whatever the store.
pub(crate) fn on_every_store(test: fn(Store)) {
    for store in [Store::Tiered, Store::Pairs, Store::Kvssd] {
        println!("over {store:?}");
        test(store);
    }
}

/// The program itself.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    /// Until nobody is to read it any more.
    pub(crate) stdout: Option<BufReader<ChildStdout>>,
}

impl Program {
    pub(crate) fn spawn(dir: &Path, options: &[&str]) -> Program {
        Program::start(Command::new(env!("CARGO_BIN_EXE_hedgerow")), dir, options)
    }

    /// With a file mode creation mask of its own.
    pub(crate) fn spawn_masked(dir: &Path, mask: &str) -> Program {
        let mut shell = Command::new("sh");
        let line = format!("umask {mask}; exec \"$0\" \"$@\"");
        shell.args(["-c", &line, env!("CARGO_BIN_EXE_hedgerow")]);
        Program::start(shell, dir, &[])
    }

    /// Over a store of any kind.
    pub(crate) fn spawn_over(url: &str, options: &[&str]) -> Program {
        Program::run(Command::new(env!("CARGO_BIN_EXE_hedgerow")), ["--store", url], options)
    }

    pub(crate) fn start(command: Command, dir: &Path, options: &[&str]) -> Program {
        Program::run(command, ["--dir", dir.to_str().unwrap()], options)
    }

    fn run(mut command: Command, store: [&str; 2], options: &[&str]) -> Program {
        let mut child = command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(store)
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "the server ended before it listened");
            if let Some(address) = line.trim().strip_prefix("hedgerow: listening on ") {
                break address.parse().unwrap();
            }
        };
        Program { child, address, stdout: Some(stdout) }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// A number of bytes that the kernel says of this process, which no other test shares.
    pub(crate) fn status_bytes(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// `kill -9`.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

/// However a test ends, its server ends with it.
impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A blocking client.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Client { stream, reader }
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn send(&mut self, words: &[&[u8]]) {
        self.send_raw(&encode(words));
    }

    /// Sends a command given as a line and shows its reply.
    pub(crate) fn run(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.send(&words);
        self.reply()
    }

    pub(crate) fn run_words(&mut self, words: &[&[u8]]) -> String {
        self.send(words);
        self.reply()
    }

    /// One reply as text: `OK`, `(error)`, `12`, `"bulk"`, `nil`, `[a, b]`, `{k: v}`.
    pub(crate) fn reply(&mut self) -> String {
        self.try_reply().expect("a reply")
    }

    /// None if the server closed the connection.
    pub(crate) fn try_reply(&mut self) -> Option<String> {
        let mut line = Vec::new();
        if self.reader.read_until(b'\n', &mut line).ok()? == 0 {
            return None;
        }
        let text = String::from_utf8(line).unwrap();
        let text = text.strip_suffix("\r\n").expect("a whole line");
        let (marker, rest) = text.split_at(1);
        let number = || rest.parse::<i64>().unwrap();
        Some(match marker {
            "+" => rest.to_string(),
            "-" => format!("({rest})"),
            ":" | "," | "#" => rest.to_string(),
            "_" => "nil".to_string(),
            "$" | "=" if number() < 0 => "nil".to_string(),
            "$" | "=" => {
                let mut bytes = vec![0; number() as usize + 2];
                self.reader.read_exact(&mut bytes).ok()?;
                assert!(bytes.ends_with(b"\r\n"));
                format!("\"{}\"", bytes[..bytes.len() - 2].escape_ascii())
            }
            "*" if number() < 0 => "nil".to_string(),
            "*" | "~" => {
                let items: Option<Vec<String>> = (0..number()).map(|_| self.try_reply()).collect();
                format!("[{}]", items?.join(", "))
            }
            "%" => {
                let pairs: Option<Vec<String>> = (0..number())
                    .map(|_| Some(format!("{}: {}", self.try_reply()?, self.try_reply()?)))
                    .collect();
                format!("{{{}}}", pairs?.join(", "))
            }
            other => panic!("unknown marker {other:?}"),
        })
    }

    /// Runs each line and compares its reply.
    pub(crate) fn script(&mut self, lines: &[(&str, &str)]) {
        for (line, expected) in lines {
            assert_eq!(self.run(line), *expected, "{line}");
        }
    }
}

/// A clock that a test moves, somewhere in this century.
pub(crate) fn clock() -> Clock {
    Clock::manual(1_800_000_000_000)
}

/// A command as an array of bulk strings.
pub(crate) fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
