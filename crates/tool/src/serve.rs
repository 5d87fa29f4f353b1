//! The Redis-protocol server: `hedgerow serve`.
//!
//! Owns: its command line, opening the store, binding, the banner, signals. One event loop serves all clients
//! ([`event_loop`]); beside it one thread syncs ([`persister`]), one waits for space ([`waiter`]), and one makes a backup when that is asked for
//! ([`backups`]). Promises: a wrong
//! setting, a busy port or a locked directory is one clear sentence; SIGTERM and SIGINT stop it with everything persisted; it goes on whether or not
//! anybody reads what it prints ([`printing`](crate::printing)).

#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic where nobody reads that, and would end the server for its clients"
)]

use std::net::{Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hedgerow::{Compression, Db, Durability, Options};
use hedgerow_device::{Clock, spawn};
use hedgerow_kvssd::AckMode;
use hedgerow_row::backend::Backend;
use hedgerow_row::backend::memory::MemoryBackend;
use hedgerow_row::pairs::PairDb;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub mod attempts;
pub mod backups;
pub mod command;
pub mod commands;
pub mod connection;
pub mod dispatch;
pub mod event_loop;
pub mod failure;
pub mod glob;
pub mod group_commit;
pub mod io_args;
pub mod keyspace;
pub mod limits;
pub mod number;
pub mod persister;
pub mod pipeline_peek;
pub mod reader;
pub mod reply;
pub mod resp;
pub mod server;
pub mod session;
pub mod settings;
pub mod slowlog;
pub mod stats;
pub mod waiter;
pub mod worker;

use event_loop::{EventLoop, Stopper};
use io_args::IoArgs;
use keyspace::Keyspace;
use server::Server;
use settings::Settings;

use crate::capacity::{CapacityArgs, place_text};
use crate::kvssd_store::{self, IntervalPersister};
use crate::pool_store::PoolStore;
use crate::printing::print;
use crate::store_url::{KvssdUrl, Medium, PoolUrl, StoreUrl};
use crate::units::{parse_bytes, parse_duration};

/// Where Redis clients look for a server.
const PORT: u16 = 6379;
const LOOPBACK: &str = "127.0.0.1";

/// Arguments of `hedgerow serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store: tiered:DIRECTORY for rows in a directory, created if there is none; kvssd:FILE,FILE... for rows on key-value devices in software,
    /// each made in its file if there is none, of 1gb or as in ?size=4gb behind them, each key on two of them with ?copies=2; pool:HOST:PORT for rows in memory that several machines share (hedgerow pool), beside other servers;
    /// or memory: for rows in memory, which end with the server.
    #[arg(long, value_parser = StoreUrl::served, default_value = "tiered:./hedgerow-data")]
    pub store: StoreUrl,
    /// Short for --store tiered:DIR.
    #[arg(long, conflicts_with = "store")]
    pub dir: Option<PathBuf>,
    /// Address and port to listen on; may be repeated. 127.0.0.1:6379 unless given.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["port", "bind"])]
    pub listen: Vec<String>,
    /// Port to listen on, where --bind says, in the place of --listen.
    #[arg(long, default_value_t = PORT)]
    pub port: u16,
    /// Addresses to listen on, at --port, in the place of --listen; may be repeated.
    #[arg(long, visible_alias = "host", value_name = "ADDRESS", num_args = 1.., default_value = LOOPBACK)]
    pub bind: Vec<String>,
    /// Password clients must give with AUTH or HELLO.
    #[arg(long, env = "HEDGEROW_REQUIREPASS", hide_env_values = true)]
    pub requirepass: Option<String>,
    /// Listen on other than loopback addresses without a password.
    #[arg(long)]
    pub no_protected_mode: bool,
    /// When writes are safe: `immediate` (synced before they are answered, one sync for all clients that wait), `interval:1s`,
    /// or `process` (safe from a killed process, not from a power cut).
    #[arg(long, default_value = "interval:1s")]
    pub durability: String,
    /// The most bytes of data on the fast tier, as in 8gb; no limit unless given. What does not fit goes on into sorted tables, as far as --capacity-bytes-max
    /// and their disk allow; with --capacity none writes are refused.
    #[arg(long, value_parser = bytes)]
    pub fast_bytes_max: Option<u64>,
    /// The most bytes of memory that the index may take, as in 256mb; no limit unless given. Keys that it has no room for go to the fast tier, where a read of them takes about
    /// twice as long; where that has no room either, rows move to sorted tables.
    #[arg(long, value_parser = index_bytes)]
    pub index_bytes_max: Option<u64>,
    #[command(flatten)]
    capacity: CapacityArgs,
    /// The most bytes that sorted tables may take, as in 1tb; no limit but the disk's unless given.
    #[arg(long, value_parser = bytes)]
    pub capacity_bytes_max: Option<u64>,
    /// How sorted tables that are written are compressed: `lz4`, where that saves space, or `none`.
    #[arg(long, value_parser = compression, default_value = "lz4")]
    pub compression: Compression,
    #[command(flatten)]
    io: IoArgs,
    /// Serve reads only: the store is opened beside others who only read it, nothing of it changes, and writes are refused.
    #[arg(long, conflicts_with_all = ["durability", "fast_bytes_max", "index_bytes_max", "capacity_bytes_max", "backup_dir"])]
    pub read_only: bool,
    /// Where HR.BACKUP puts backups: each in a directory there that the client names. Without it HR.BACKUP is refused.
    #[arg(long)]
    pub backup_dir: Option<PathBuf>,
    /// Connections at a time.
    #[arg(long, default_value_t = 10_000, value_parser = clients)]
    pub max_clients: usize,
    /// Disconnect clients that do nothing for so long, as in 5m; never unless given, and never with 0.
    #[arg(long, value_parser = idle_timeout)]
    pub idle_timeout: Option<Duration>,
    /// Disconnect a client whose unread replies take more.
    #[arg(long, default_value = "256mb", value_parser = output_bytes)]
    pub output_hard_limit: u64,
    /// Do no more of a client's commands while its unread replies take more; disconnect it after 60 seconds of that.
    #[arg(long, default_value = "64mb", value_parser = output_bytes)]
    pub output_soft_limit: u64,
    /// The most bytes all clients' buffers may take together; and, where the store keeps pairs, the rows that were fetched for their commands: others
    /// wait until there is room.
    #[arg(long, default_value = "1gb", value_parser = client_bytes)]
    pub client_bytes_max: u64,
}

impl Args {
    /// Where the store is.
    fn url(&self) -> StoreUrl {
        let dir = self.dir.clone().map(|dir| StoreUrl::Tiered(Medium::File, dir));
        dir.unwrap_or_else(|| self.store.clone())
    }

    /// All addresses with their ports.
    fn listen(&self) -> Vec<String> {
        let at_port = |address: &String| match address.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]:{}", self.port),
            Err(_) => format!("{address}:{}", self.port),
        };
        if self.listen.is_empty() { self.bind.iter().map(at_port).collect() } else { self.listen.clone() }
    }

    fn password(&self) -> Option<Vec<u8>> {
        self.requirepass.clone().filter(|password| !password.is_empty()).map(String::into_bytes)
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| format!("'{text}' is no number of bytes, such as 512mb"))
}

/// With less hardly a batch of new keys has room.
const INDEX_BYTES_MIN: u64 = 1 << 20;

fn index_bytes(text: &str) -> Result<u64, String> {
    let is_enough = |bytes: &u64| *bytes >= INDEX_BYTES_MIN;
    Some(bytes(text)?)
        .filter(is_enough)
        .ok_or_else(|| format!("'{text}' is too little: an index takes 1mb at the least"))
}

/// What [`compression`] reads.
fn compression_text(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "none",
        Compression::Lz4 => "lz4",
    }
}

fn compression(text: &str) -> Result<Compression, String> {
    match text {
        "lz4" => Ok(Compression::Lz4),
        "none" => Ok(Compression::None),
        _ => Err(format!("'{text}' is no compression: lz4 or none")),
    }
}

fn clients(text: &str) -> Result<usize, String> {
    let clients = text.parse::<usize>().ok().filter(|clients| *clients > 0);
    clients.ok_or_else(|| format!("'{text}' is no number of clients: one at the least"))
}

/// Not 0, which is no limit in Redis: replies without one could take all memory.
fn output_bytes(text: &str) -> Result<u64, String> {
    let is_some = |bytes: &u64| *bytes > 0;
    Some(bytes(text)?)
        .filter(is_some)
        .ok_or_else(|| format!("'{text}' leaves replies no room: name a number of bytes, such as 256mb"))
}

fn client_bytes(text: &str) -> Result<u64, String> {
    let is_enough = |bytes: &u64| *bytes >= limits::CLIENT_BYTES_MIN as u64;
    Some(bytes(text)?)
        .filter(is_enough)
        .ok_or_else(|| format!("'{text}' is too little: the buffers of all clients take 1mb at the least"))
}

/// 0, in any unit or none, is never.
fn idle_timeout(text: &str) -> Result<Duration, String> {
    let duration = if text == "0" { Some(Duration::ZERO) } else { parse_duration(text) };
    duration.ok_or_else(|| format!("'{text}' is no duration, such as 250ms or 5m"))
}

/// A server that is ready to run.
pub struct Ready {
    event_loop: EventLoop,
    /// The addresses it listens on.
    pub addresses: Vec<SocketAddr>,
    /// What it opened, in lines for a person.
    pub banner: String,
    /// A store of pairs that ends with the server.
    own: Option<OwnBackend>,
    /// This server's place in a pool. It is given up last: what is under way needs it.
    pool: Option<PoolStore>,
}

/// A backend that this server alone has: it is closed as the server stops.
struct OwnBackend {
    backend: Arc<dyn Backend>,
    /// Stopped before that.
    persister: Option<IntervalPersister>,
}

impl Ready {
    /// How to stop it.
    pub fn stopper(&self) -> Stopper {
        self.event_loop.stopper()
    }

    /// Serves until stopped, then persists and closes the store.
    pub fn run(self) -> Result<(), String> {
        // It would refuse everything from then on.
        let stopper = self.event_loop.stopper();
        let watch = self.pool.as_ref().map(|pool| pool.watch(move || stopper.stop()));
        let watch = watch.transpose().map_err(|error| format!("a thread can not start: {error}"))?;
        let server = self.event_loop.run().map_err(|error| format!("the event loop failed: {error}"))?;
        let db = server.keyspace.db().cloned();
        drop(server);
        let closed = match self.own {
            Some(OwnBackend { backend, persister }) => {
                drop(persister);
                backend.close()
            }
            None => db.map_or(Ok(()), |db| db.close()),
        };
        drop(watch);
        if self.pool.is_some_and(|pool| pool.is_over()) {
            return Err("this server is out of its pool: the pool's manager is gone, and with it what the pool had, or it gave this server up, which was silent for too long".into());
        }
        closed.map_err(|error| format!("closing the store failed: {error}"))
    }
}

/// Serves until asked to stop.
pub fn run(args: Args) -> Result<(), String> {
    let ready = prepare(&args)?;
    print(&ready.banner);
    let stopper = ready.stopper();
    stop_on_signals(stopper)?;
    let persists = !args.read_only && !matches!(args.url(), StoreUrl::Memory | StoreUrl::Pool(_));
    ready.run()?;
    print(&format!("hedgerow: stopped{}\n", if persists { ", everything is persisted" } else { "" }));
    Ok(())
}

/// Has the signals stop the server that end processes; the end of its terminal only where that is not ignored, as under `nohup`.
fn stop_on_signals(stopper: Stopper) -> Result<(), String> {
    let hangup = Some(SIGHUP).filter(|signal| !crate::process::ignores(*signal));
    let mut signals = Signals::new([SIGTERM, SIGINT].into_iter().chain(hangup))
        .map_err(|error| format!("signals can not be handled: {error}"))?;
    let stop = move || signals.forever().for_each(|_| stopper.stop());
    spawn("signals", stop).map_err(|error| format!("a thread can not start: {error}"))?;
    Ok(())
}

/// Checks the settings, binds, opens the store in its directory.
pub fn prepare(args: &Args) -> Result<Ready, String> {
    prepare_by(args, Clock::system())
}

/// [`prepare`], by another clock: tests have one that they move.
pub fn prepare_by(args: &Args, clock: Clock) -> Result<Ready, String> {
    match args.url() {
        StoreUrl::Tiered(_, dir) => {
            prepare_with(args, clock, |options, clock| Db::open_with_clock(&dir, options, clock))
        }
        StoreUrl::Memory => prepare_over(args, clock, Arc::new(MemoryBackend::with_batches())),
        StoreUrl::Kvssd(url) => prepare_devices(args, clock, &url),
        StoreUrl::Pool(url) => prepare_pool(args, clock, &url),
        StoreUrl::Null => Err("null is no store".into()),
    }
}

/// [`prepare_by`], over key-value devices.
fn prepare_devices(args: &Args, clock: Clock, url: &KvssdUrl) -> Result<Ready, String> {
    let (durability, sync_writes) = parse_durability(&args.durability)?;
    check_pairs(args)?;
    // Before anything is made.
    let sockets = bind(args)?;
    // Each device makes durable what it answers, for all commands of a step at once.
    let ack = if sync_writes { AckMode::Immediate } else { AckMode::Buffered };
    let backend = kvssd_store::open(url, ack)?;
    let damage = kvssd_store::damage_text(&url.files, &backend);
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let mut ready = ready_over(args, sockets, clock, Arc::clone(&backend))?;
    ready.banner.insert_str(0, &damage);
    let persister = match durability {
        Durability::Interval(interval) => Some(IntervalPersister::start(Arc::clone(&backend), interval)),
        _ => None,
    };
    let persister = persister.transpose().map_err(|error| format!("a thread can not start: {error}"))?;
    ready.own = Some(OwnBackend { backend, persister });
    Ok(ready)
}

/// [`prepare_by`], as a node of a pool.
fn prepare_pool(args: &Args, clock: Clock, url: &PoolUrl) -> Result<Ready, String> {
    check_pairs(args)?;
    let sockets = bind(args)?;
    let pool = PoolStore::open(url)?;
    let mut ready = ready_over(args, sockets, clock, pool.backend())?;
    ready.own = Some(OwnBackend { backend: pool.backend(), persister: None });
    ready.pool = Some(pool);
    Ok(ready)
}

/// [`prepare_by`], over a backend that keeps pairs, which others may serve, too: it stays open when the server stops.
pub fn prepare_over(args: &Args, clock: Clock, backend: Arc<dyn Backend>) -> Result<Ready, String> {
    check_pairs(args)?;
    ready_over(args, bind(args)?, clock, backend)
}

/// A server over a backend that keeps pairs.
fn ready_over(
    args: &Args,
    sockets: Vec<TcpListener>,
    clock: Clock,
    backend: Arc<dyn Backend>,
) -> Result<Ready, String> {
    let clock = Clock::cached(clock);
    let (name, persists) = (backend.capabilities().name, backend.capabilities().persists);
    let keyspace = Keyspace::of_pairs(PairDb::open_at(backend, clock.clone()), clock);
    let durability = if persists { args.durability.clone() } else { "none".into() };
    let settings = Settings { durability, ..settings(args, &sockets) };
    let opened = format!("hedgerow {}: opened a store of pairs, {name}\n", env!("CARGO_PKG_VERSION"));
    ready(args, sockets, keyspace, settings, opened)
}

/// Refuses what only a tiered store has.
fn check_pairs(args: &Args) -> Result<(), String> {
    if args.read_only || args.backup_dir.is_some() {
        return Err("--read-only and --backup-dir are for a tiered store".into());
    }
    if args.fast_bytes_max.is_some() || args.index_bytes_max.is_some() {
        return Err("--fast-bytes-max and --index-bytes-max are for a tiered store".into());
    }
    if args.capacity.is_given() || args.capacity_bytes_max.is_some() {
        return Err("--capacity and --capacity-bytes-max are for a tiered store".into());
    }
    if args.io.is_given() {
        return Err("--persist-granule and --io-bytes-per-s are for a tiered store".into());
    }
    Ok(())
}

/// [`prepare_by`], with another way to open the store: tests have media of their own.
pub fn prepare_with(
    args: &Args,
    clock: Clock,
    open: impl FnOnce(Options, Clock) -> hedgerow::Result<Db>,
) -> Result<Ready, String> {
    let (durability, sync_writes) = parse_durability(&args.durability)?;
    let sockets = bind(args)?;
    let started = Instant::now();
    let mut options = Options { wait_for_space: false, read_only: args.read_only, ..Options::new() };
    options = options.durability(durability).compression(args.compression);
    options = args.io.apply(options.capacity(args.capacity.place()));
    if let Some(bytes) = args.capacity_bytes_max {
        options = options.capacity_bytes_max(bytes);
    }
    if let Some(bytes) = args.fast_bytes_max {
        options = options.fast_tier_bytes_max(bytes);
    }
    if let Some(bytes) = args.index_bytes_max {
        options = options.index_bytes_max(bytes);
    }
    let dir = match args.url() {
        StoreUrl::Tiered(_, dir) => dir.display().to_string(),
        other => other.to_string(),
    };
    let capacity = place_text(&args.capacity.place(), Path::new(&dir));
    let clock = Clock::cached(clock);
    let db = open(options, clock.clone()).map_err(|error| match error.kind() {
        hedgerow::ErrorKind::Locked => format!("{dir} is in use by another process: {error}"),
        _ => format!("{dir} can not be opened: {error}"),
    })?;
    let opened = opened_text(&db, &dir, started.elapsed());
    let keyspace = Keyspace::tiered(db, clock).map_err(|failure| format!("{dir}: {}", failure.as_str()))?;
    let settings = Settings {
        sync_writes,
        durability: durability_text(args).to_string(),
        read_only: args.read_only,
        dir,
        fast_bytes_max: args.fast_bytes_max.unwrap_or(0),
        index_bytes_max: args.index_bytes_max.unwrap_or(0),
        capacity,
        capacity_bytes_max: args.capacity_bytes_max.unwrap_or(0),
        compression: compression_text(args.compression),
        persist_granule: args.io.granule_text(),
        io_bytes_per_s: args.io.io_bytes_per_s.unwrap_or(0),
        backup_dir: args.backup_dir.clone(),
        ..settings(args, &sockets)
    };
    ready(args, sockets, keyspace, settings, opened)
}

/// The settings that do not depend on the kind of store.
fn settings(args: &Args, sockets: &[TcpListener]) -> Settings {
    let addresses: Vec<SocketAddr> = addresses(sockets);
    Settings {
        password: args.password(),
        clients_max: crate::open_files::make_room_for(args.max_clients),
        idle_timeout: args.idle_timeout.filter(|time| !time.is_zero()),
        output: limits::OutputLimits {
            hard: args.output_hard_limit as usize,
            soft: args.output_soft_limit as usize,
            ..limits::OutputLimits::default()
        },
        client_bytes_max: args.client_bytes_max as usize,
        port: addresses.first().map_or(0, SocketAddr::port),
        listen: addresses.iter().map(|address| address.ip().to_string()).collect(),
        store: args.url().to_string(),
        protected: !args.no_protected_mode,
        ..Settings::default()
    }
}

fn addresses(sockets: &[TcpListener]) -> Vec<SocketAddr> {
    sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect()
}

/// A server over these keys; `opened` tells people what they are.
fn ready(
    args: &Args,
    sockets: Vec<TcpListener>,
    keyspace: Keyspace,
    settings: Settings,
    opened: String,
) -> Result<Ready, String> {
    let addresses = addresses(&sockets);
    let banner = opened + &banner(args, &addresses, &settings);
    let event_loop = EventLoop::new(Server::new(keyspace, settings, commands::count()), sockets)
        .map_err(|error| format!("the event loop can not start: {error}"))?;
    Ok(Ready { event_loop, addresses, banner, own: None, pool: None })
}

/// How the engine is to sync, and whether the server itself syncs before it answers writes: then the engine is not to.
fn parse_durability(text: &str) -> Result<(Durability, bool), String> {
    match text {
        "immediate" => Ok((Durability::Process, true)),
        "process" => Ok((Durability::Process, false)),
        _ => match text.strip_prefix("interval:").and_then(parse_duration).filter(|time| !time.is_zero()) {
            Some(interval) => Ok((Durability::Interval(interval), false)),
            None => Err(format!(
                "'{text}' is no durability: immediate, process, or interval:TIME such as interval:1s"
            )),
        },
    }
}

/// What people are told of durability.
fn durability_text(args: &Args) -> &str {
    if args.read_only { "read-only" } else { &args.durability }
}

fn bind(args: &Args) -> Result<Vec<TcpListener>, String> {
    let has_password = args.password().is_some();
    let mut sockets = Vec::new();
    for listen in args.listen() {
        let addresses = listen
            .to_socket_addrs()
            .map_err(|error| format!("'{listen}' is no address and port: {error}"))?;
        let address = addresses.into_iter().next().ok_or_else(|| format!("'{listen}' has no address"))?;
        if !address.ip().is_loopback() && !has_password && !args.no_protected_mode {
            return Err(format!(
                "{address} can be reached from other machines and there is no password: give --requirepass, or \
                 --no-protected-mode if that is meant"
            ));
        }
        sockets.push(TcpListener::bind(address).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!(
                    "{address} is in use by another program: choose another port with --port, or --listen {}:PORT",
                    address.ip()
                )
            }
            _ => format!("{address} can not be listened on: {error}"),
        })?);
    }
    Ok(sockets)
}

/// What people are told of the store that was opened.
fn opened_text(db: &Db, dir: &str, took: Duration) -> String {
    let metrics = db.metrics();
    format!(
        "hedgerow {}: opened {dir} in {} ms: {} rows in {} tables, {} bytes live of {} on the fast tier\n",
        env!("CARGO_PKG_VERSION"),
        took.as_millis(),
        metrics.rows,
        metrics.tables,
        metrics.live_bytes,
        metrics.fast_tier_bytes,
    )
}

fn banner(args: &Args, addresses: &[SocketAddr], settings: &Settings) -> String {
    let mut text = format!("hedgerow: durability {}\n", settings.durability);
    if settings.clients_max < args.max_clients {
        text.push_str(&format!(
            "hedgerow: at most {} clients, not {}: the limit of open files leaves room for no more (ulimit -n)\n",
            settings.clients_max, args.max_clients
        ));
    }
    for address in addresses {
        text.push_str(&format!("hedgerow: listening on {address}\n"));
    }
    if let Some(address) = addresses.first() {
        let auth = if settings.password.is_some() { " --askpass" } else { "" };
        text.push_str(&format!(
            "hedgerow: connect with: redis-cli -h {} -p {}{auth}\n",
            address.ip(),
            address.port()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct ServeLine {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn where_to_listen_is_said_in_one_way_or_the_other() {
        let parsed = |options: &[&str]| {
            let line = [&["serve"], options].concat();
            <ServeLine as clap::Parser>::try_parse_from(line).map(|line| line.args.listen())
        };
        let listens = |options: &[&str]| parsed(options).unwrap();
        assert_eq!(listens(&[]), ["127.0.0.1:6379"]);
        assert_eq!(listens(&["--port", "7"]), ["127.0.0.1:7"]);
        assert_eq!(listens(&["--bind", "127.0.0.1", "::1", "--port", "7"]), ["127.0.0.1:7", "[::1]:7"]);
        assert_eq!(
            listens(&["--host", "localhost", "--bind", "10.0.0.1"]),
            ["localhost:6379", "10.0.0.1:6379"]
        );
        assert_eq!(listens(&["--listen", "[::1]:9", "--listen", "127.0.0.1:8"]), ["[::1]:9", "127.0.0.1:8"]);
        for both in [["--port", "6379"], ["--bind", "127.0.0.1"]] {
            let error = parsed(&[&["--listen", "127.0.0.1:8"], &both[..]].concat()).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict, "{both:?}");
        }
        assert!(parsed(&["--port", "70000"]).is_err() && parsed(&["--bind"]).is_err());
    }

    #[test]
    fn durability_has_three_spellings() {
        assert_eq!(parse_durability("immediate"), Ok((Durability::Process, true)));
        assert_eq!(parse_durability("process"), Ok((Durability::Process, false)));
        let interval = Durability::Interval(Duration::from_millis(250));
        assert_eq!(parse_durability("interval:250ms"), Ok((interval, false)));
        for bad in ["", "interval", "interval:0s", "interval:1", "always"] {
            assert!(parse_durability(bad).is_err(), "{bad}");
        }
    }
}
