//! The state all clients share, and the way a command goes: look up, check, queue or run, account.
//!
//! Owns: sessions, settings, counters, slow log. Promises: whatever a command does, exactly one reply (or none, where the client
//! asked for none) is appended for it, and a failed command leaves no half reply. Must not know sockets.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hedgerow::Missing;
use slab::Slab;

use super::backups::Backups;
use super::commands::{self, Command, Flag, Lookup};
use super::failure::{Failure, Outcome};
use super::keyspace::prefetch::PrefetchedKey;
use super::keyspace::{Keyspace, Tries, Wants};
use super::limits;
use super::pipeline_peek::PeekedCommand;
use super::reply::Reply;
use super::resp::Args;
use super::session::{Queued, ReplyMode, Session, WaitsFor};
use super::settings::Settings;
use super::slowlog::{Slow, SlowLog};
use super::stats::{Errors, Memory, Rates, Totals};

/// Counters of INFO.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Counters {
    pub connections: u64,
    pub rejected: u64,
    pub commands: u64,
    pub input_bytes: u64,
    pub output_bytes: u64,
    pub hits: u64,
    pub misses: u64,
    pub errors: Errors,
    pub output_limit_disconnections: u64,
    pub input_limit_disconnections: u64,
    pub waits_for_space: u64,
    /// Commands that waited for the disk, each time they were given.
    pub waits_for_rows: u64,
    /// Expired keys counted before the counters were reset.
    pub expired_before: u64,
}

/// Calls of one command.
#[derive(Debug, Default, Clone, Copy)]
#[allow(missing_docs)]
pub struct Calls {
    pub calls: u64,
    pub microseconds_x1000: u64,
    pub rejected: u64,
    pub failed: u64,
}

/// Samples of one latency event: second, ms.
#[derive(Debug, Default)]
pub struct Latency {
    /// The latest 160 samples.
    pub samples: VecDeque<(u64, u64)>,
    /// The worst ever, ms.
    pub max_ms: u64,
}

/// What SHUTDOWN and signals ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Finish replies, persist, close.
    Orderly,
}

/// A CLIENT PAUSE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// Its end, in ms since 1970.
    pub until_ms: u64,
    /// Whether only writes wait.
    pub writes_only: bool,
}

/// The state all clients share.
pub struct Server {
    /// The data.
    pub keyspace: Keyspace,
    /// How the server runs.
    pub settings: Settings,
    /// The clients, by the event loop's number for them.
    pub sessions: Slab<Session>,
    /// Counters of INFO.
    pub counters: Counters,
    /// From which the rates of INFO are taken.
    pub rates: Rates,
    /// The most memory that is no file's the process had, as far as was looked.
    pub memory_peak: u64,
    /// Calls by [`Command::index`].
    pub calls: Vec<Calls>,
    /// Commands that took long.
    pub slowlog: SlowLog,
    /// The latency event of commands.
    pub latency: Latency,
    /// Set when the server is to stop.
    pub shutdown: Option<Shutdown>,
    /// What the command just given lacks.
    pub missing: Option<Missing>,
    /// Clients to disconnect.
    pub kills: Vec<usize>,
    /// Commands of clients wait for its end.
    pub paused: Option<Pause>,
    /// Whether the clients that waited for the end of a pause can go on.
    pub resumes: bool,
    /// When a web page that speaks to the server was last logged.
    cross_protocol_logged: Option<Instant>,
    /// When the server started.
    pub started: Instant,
    /// When something became durable for the last time, s since 1970.
    pub last_save_s: u64,
    /// What was durable when that was last looked at.
    durable_sequence: u64,
    /// When the sync was asked for that nobody waits for, while it is under way.
    pub saving_since: Option<Instant>,
    /// How long the last one took.
    pub saving_took: Option<Duration>,
    /// The backups that clients asked for.
    pub backups: Backups,
    /// Whether the next sync is for a `SAVE`: a checkpoint says in the file what was saved.
    pub wants_save: bool,
    /// Whether to sync without anybody waiting for it.
    pub wants_background_sync: bool,
    /// Number of the run, 40 hex digits.
    pub run_id: String,
    random: u64,
}

/// What a command works with.
pub struct Context<'s> {
    /// The shared state.
    pub server: &'s mut Server,
    /// Whose command it is.
    pub client: usize,
    /// Where the answer goes.
    pub reply: Reply<'s>,
    /// Its key, if that was looked up already and is as it was then.
    pub prefetched: Option<PrefetchedKey<'s>>,
}

impl Context<'_> {
    /// The client.
    #[inline]
    pub fn session(&mut self) -> &mut Session {
        &mut self.server.sessions[self.client]
    }

    /// Counts a read of a key that was there, or was not.
    #[inline]
    pub fn count_look_up(&mut self, found: bool) {
        match found {
            true => self.server.counters.hits += 1,
            false => self.server.counters.misses += 1,
        }
    }

    /// The database of its keys.
    #[inline]
    pub fn db(&self) -> usize {
        self.server.sessions[self.client].db
    }
}

impl Server {
    /// A server without clients.
    pub fn new(keyspace: Keyspace, settings: Settings) -> Server {
        let now_ms = keyspace.now_ms();
        let durable_sequence = keyspace.db().metrics().durable_sequence;
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), now_ms);
        Server {
            keyspace,
            backups: Backups::new(settings.backup_dir.clone()),
            settings,
            sessions: Slab::new(),
            counters: Counters::default(),
            rates: Rates::default(),
            memory_peak: 0,
            calls: vec![Calls::default(); commands::count()],
            slowlog: SlowLog::default(),
            latency: Latency::default(),
            shutdown: None,
            missing: None,
            kills: Vec::new(),
            paused: None,
            resumes: false,
            cross_protocol_logged: None,
            started: Instant::now(),
            last_save_s: now_ms / 1000,
            durable_sequence,
            saving_since: None,
            saving_took: None,
            wants_save: false,
            wants_background_sync: false,
            run_id: format!("{seed:016x}{:016x}{:08x}", seed.rotate_left(31) ^ now_ms, std::process::id()),
            random: seed | 1,
        }
    }

    /// Whether commands of some kind wait.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some_and(|pause| self.keyspace.now_ms() < pause.until_ms)
    }

    /// Whether this command of a client waits while the server is paused.
    pub fn pauses(&self, client: usize, args: Args<'_>) -> bool {
        let Some(pause) = self.paused else { return false };
        match commands::look_up(args) {
            Lookup::Found(command) if command.full_name().starts_with("client") => false,
            Lookup::Found(command) if pause.writes_only && command.full_name() == "exec" => {
                let multi = self.sessions[client].multi.as_ref();
                multi.is_some_and(|multi| multi.queue.iter().any(|queued| queued.command.is(Flag::Write)))
            }
            Lookup::Found(command) => !pause.writes_only || command.is(Flag::Write),
            _ => false,
        }
    }

    /// Pauses commands. A pause under way is never made shorter or narrower: CLIENT UNPAUSE ends it.
    pub fn pause(&mut self, new: Pause) {
        let old = self.paused.filter(|_| self.is_paused()).unwrap_or(new);
        self.paused = Some(Pause {
            until_ms: old.until_ms.max(new.until_ms),
            writes_only: old.writes_only && new.writes_only,
        });
    }

    /// Closes the connection of what is no client, but a web page that had a browser send a request here: the body of the
    /// request could be any commands.
    fn refuse_cross_protocol(&mut self, client: usize) {
        let session = &mut self.sessions[client];
        session.is_closing = true;
        let is_quiet = |logged: Instant| logged.elapsed() >= limits::CROSS_PROTOCOL_LOG_INTERVAL;
        if self.cross_protocol_logged.is_none_or(is_quiet) {
            self.cross_protocol_logged = Some(Instant::now());
            eprintln!(
                "hedgerow: possible attack: {} sent POST or Host:, as a browser does on behalf of a web page. Its \
                 connection was closed.",
                session.address
            );
        }
    }

    /// What rates are taken from.
    pub fn totals(&self) -> Totals {
        let Counters { commands, input_bytes, output_bytes, .. } = self.counters;
        Totals { commands, input_bytes, output_bytes }
    }

    /// Keys that expired since the counters were reset.
    pub fn expired(&self) -> u64 {
        let all = self.keyspace.expiries.removed + self.keyspace.db().metrics().expired;
        all.saturating_sub(self.counters.expired_before)
    }

    /// Sets the counters of INFO to zero.
    pub fn reset_counters(&mut self) {
        let expired_before = self.expired() + self.counters.expired_before;
        self.counters = Counters { expired_before, ..Counters::default() };
        self.rates.clear();
        self.calls.fill(Calls::default());
    }

    /// Looks at what only changes with time: about once a second.
    pub fn look_around(&mut self) {
        self.memory_peak = self.memory_peak.max(Memory::now().own);
        let durable = self.keyspace.db().metrics().durable_sequence;
        if durable != self.durable_sequence {
            self.durable_sequence = durable;
            self.last_save_s = self.keyspace.now_ms() / 1000;
        }
    }

    /// Records which command a client waits with.
    pub fn record_waiting(&mut self, client: usize, args: Args<'_>) {
        if let Lookup::Found(command) = commands::look_up(args) {
            self.sessions[client].last_command = command.full_name();
        }
    }

    /// Has a client watch no key any more.
    pub fn unwatch(&mut self, client: usize) {
        for (space, key, _) in std::mem::take(&mut self.sessions[client].watched).iter() {
            self.keyspace.watches.remove(space, key);
        }
    }

    /// Refuses what changes the store or is to become durable: where the store was opened for reading only, and once a sync has
    /// failed, for nothing becomes durable any more.
    #[inline]
    pub fn check_writable(&self) -> Outcome<()> {
        if self.settings.read_only {
            return Err(Failure::READ_ONLY);
        }
        match self.keyspace.db().sync_failure() {
            None => Ok(()),
            Some(failure) => Err(Failure::failed_sync(&failure.message)),
        }
    }

    /// A number nobody should rely on being hard to guess.
    pub fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Does one command of `client`, of which something may be known already, and appends its reply to `out`; says when it
    /// ended, given when it started. With `waits_for` set by it, nothing was done, and the command is to be given again.
    pub fn execute(
        &mut self,
        client: usize,
        args: Args<'_>,
        peeked: PeekedCommand<'_>,
        out: &mut Vec<u8>,
        started: Instant,
    ) -> Instant {
        let start = out.len();
        let writes = self.keyspace.writes();
        let session = &mut self.sessions[client];
        session.reply_needs_sync = false;
        let resp3 = session.resp3;
        let at_hand_only = self.keyspace.begin_command(session.tries);
        let reply = Reply::bounded(out, resp3, self.settings.output.hard);
        let mut context = Context { server: self, client, reply, prefetched: peeked.prefetched };
        let ran = context.run(peeked.command, args);
        drop(at_hand_only);
        if let Some(wants) = context.server.keyspace.end_command() {
            context.reply.truncate(start);
            self.put_off(client, wants);
            return Instant::now();
        }
        let done = match ran {
            Ok(done) => done,
            Err(Failed { command, ran, failure }) => {
                context.reply.truncate(start);
                if failure == Failure::CROSS_PROTOCOL {
                    self.refuse_cross_protocol(client);
                    return Instant::now();
                }
                context.reply.error(failure.as_str());
                self.counters.errors.count(failure.as_str());
                if let Some(command) = command {
                    let calls = &mut self.calls[command.index()];
                    *(if ran { &mut calls.failed } else { &mut calls.rejected }) += 1;
                }
                command.filter(|_| ran)
            }
        };
        let ended = Instant::now();
        self.keyspace.watches.commit();
        self.counters.commands += 1;
        if let Some(command) = done {
            self.account(client, command, args, ended - started);
        }
        let wrote = self.keyspace.writes() != writes;
        let session = &mut self.sessions[client];
        session.tries = Tries::default();
        let needs_sync = session.reply_needs_sync || wrote && self.settings.sync_writes;
        match session.reply_mode {
            ReplyMode::On => {}
            ReplyMode::Off => out.truncate(start),
            ReplyMode::SkipNext => {
                session.reply_mode = ReplyMode::Skip;
                out.truncate(start);
            }
            ReplyMode::Skip => {
                session.reply_mode = ReplyMode::On;
                out.truncate(start);
            }
        }
        if needs_sync {
            session.unsynced.push(start..out.len());
        }
        ended
    }

    /// Records what a command waits for that has changed nothing.
    #[cold]
    fn put_off(&mut self, client: usize, wants: Wants) {
        self.keyspace.watches.forget();
        let session = &mut self.sessions[client];
        match wants {
            Wants::Space => {
                session.waits_for = Some(WaitsFor::Space);
                self.counters.waits_for_space += 1;
            }
            Wants::Rows(missing) => {
                session.waits_for = Some(WaitsFor::Rows);
                session.tries.fetches += 1;
                self.counters.waits_for_rows += 1;
                self.missing = Some(missing);
            }
        }
    }

    fn account(&mut self, client: usize, command: &'static Command, args: Args<'_>, took: Duration) {
        let calls = &mut self.calls[command.index()];
        calls.calls += 1;
        calls.microseconds_x1000 += took.as_nanos() as u64;
        let microseconds = took.as_micros() as i64;
        if self.settings.slowlog_us >= 0
            && microseconds >= self.settings.slowlog_us
            && !command.is(Flag::SkipSlowlog)
        {
            self.log_slow(client, args, microseconds as u64);
        }
        if self.settings.latency_ms > 0 && microseconds >= self.settings.latency_ms * 1000 {
            let sample = (self.keyspace.now_ms() / 1000, microseconds as u64 / 1000);
            self.latency.max_ms = self.latency.max_ms.max(sample.1);
            if self.latency.samples.len() == 160 {
                self.latency.samples.pop_front();
            }
            self.latency.samples.push_back(sample);
        }
    }

    fn log_slow(&mut self, client: usize, args: Args<'_>, microseconds: u64) {
        let session = &self.sessions[client];
        let slow = Slow {
            id: 0,
            at_s: self.keyspace.now_ms() / 1000,
            microseconds,
            args: Vec::new(),
            address: session.address.clone(),
            name: session.name.clone(),
        };
        self.slowlog.add(slow, args, self.settings.slowlog_len);
    }
}

/// A command that ended in an error.
struct Failed {
    /// If there is such a command.
    command: Option<&'static Command>,
    /// Whether it was tried, and not refused before.
    ran: bool,
    failure: Failure,
}

impl Context<'_> {
    /// Does or queues a command; which one it was, if it was done.
    fn run(
        &mut self,
        peeked: Option<&'static Command>,
        args: Args<'_>,
    ) -> Result<Option<&'static Command>, Failed> {
        let unknown = |failure| Failed { command: None, ran: false, failure };
        let command = match commands::look_up_peeked(peeked, args) {
            Lookup::Found(command) => command,
            Lookup::Unknown if commands::is_http(args) => return Err(unknown(Failure::CROSS_PROTOCOL)),
            Lookup::Unknown => return Err(unknown(self.refuse(commands::unknown_command(args)))),
            Lookup::UnknownSub(parent) => {
                return Err(unknown(self.refuse(commands::unknown_subcommand(parent, args))));
            }
        };
        self.session().last_command = command.full_name();
        let failed = |ran| move |failure| Failed { command: Some(command), ran, failure };
        self.check(command, args).map_err(failed(false))?;
        if self.server.sessions[self.client].multi.is_some() && !command.is(Flag::NoQueue) {
            self.queue(command, args).map_err(failed(false))?;
            return Ok(None);
        }
        self.call(command, args).map_err(failed(true))?;
        Ok(Some(command))
    }

    /// Does a command. A reply that is too large is an error.
    #[inline]
    pub fn call(&mut self, command: &'static Command, args: Args<'_>) -> Outcome<()> {
        (command.handler)(self, args)?;
        match self.reply.is_over() {
            true => self.reply.check(0),
            false => Ok(()),
        }
    }

    /// Marks an open transaction as broken by a command that could not be queued.
    fn refuse(&mut self, failure: Failure) -> Failure {
        if let Some(multi) = &mut self.session().multi {
            multi.is_broken = true;
        }
        failure
    }

    /// Whether a command may be done.
    #[inline]
    fn check(&mut self, command: &'static Command, args: Args<'_>) -> Outcome<()> {
        if !command.accepts(args.len()) {
            let name = command.full_name();
            return Err(
                self.refuse(Failure::new(format!("ERR wrong number of arguments for '{name}' command")))
            );
        }
        if !self.server.sessions[self.client].authenticated && !command.is(Flag::NoAuth) {
            return Err(self.refuse(Failure::text("NOAUTH Authentication required.")));
        }
        if command.is(Flag::Write)
            && let Err(failure) = self.server.check_writable()
        {
            return Err(self.refuse(failure));
        }
        Ok(())
    }

    fn queue(&mut self, command: &'static Command, args: Args<'_>) -> Outcome<()> {
        if command.is(Flag::NoMulti) {
            return Err(self.refuse(Failure::text("ERR Command not allowed inside a transaction")));
        }
        let args = args.to_owned();
        let Some(multi) = &mut self.session().multi else { return Ok(()) };
        multi.bytes += args.bytes();
        if multi.queue.len() >= limits::QUEUED_COMMANDS_MAX || multi.bytes > limits::COMMAND_BYTES_MAX {
            multi.is_broken = true;
            return Err(Failure::text("ERR too many or too large commands in one transaction"));
        }
        multi.queue.push(Queued { command, args });
        self.reply.status("QUEUED");
        Ok(())
    }
}

#[cfg(test)]
mod tests;
