//! The state all clients share, and what of it a command works with.
//!
//! Owns: sessions, settings, counters, slow log. Must not know sockets, nor what commands there are.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hedgerow::Missing;
use hedgerow_device::Random;
use slab::Slab;

use super::attempts::Job;
use super::backups::Backups;
use super::command::{Command, Flag};
use super::failure::{Failure, Outcome};
use super::group_commit::GroupCommit;
use super::keyspace::Keyspace;
use super::keyspace::cursor::Cursors;
use super::keyspace::pairs::attempt::{Attempt, Ended, Step};
use super::keyspace::tiered::prefetch::PrefetchedKey;
use super::keyspace::wants::Wants;
use super::limits;
use super::reply::Reply;
use super::resp::Args;
use super::session::{Ran, Session, WaitsFor};
use super::settings::Settings;
use super::slowlog::{Slow, SlowLog};
use super::stats::{Calls, Errors, LookUps, Rates, Tally, Totals};
use crate::printing::report;
use crate::process::Memory;

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
    /// Positions of unfinished scans.
    pub cursors: Cursors,
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
    /// The steps of attempts that commands of this turn wait for.
    pub group_commit: GroupCommit,
    /// The look-ups before it, if it may be given again after it has counted some.
    pub look_ups_before: Option<LookUps>,
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
    /// Whether the last one failed.
    pub has_save_failed: bool,
    /// The backups that clients asked for.
    pub backups: Backups,
    /// Whether the next sync is for a `SAVE`: a checkpoint says in the file what was saved.
    pub wants_save: bool,
    /// Whether to sync without anybody waiting for it.
    pub wants_background_sync: bool,
    /// Number of the run, 40 hex digits.
    pub run_id: String,
    /// For choices that nobody should rely on being hard to guess.
    pub random: Random,
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
    /// Since when who comes now is a stranger; nobody is where there is no password.
    pub fn strangers_since(&self) -> Option<Duration> {
        self.settings.password.as_ref().map(|_| self.keyspace.uptime())
    }

    /// A server without clients, which has so many commands.
    pub fn new(keyspace: Keyspace, settings: Settings, commands: usize) -> Server {
        let now_ms = keyspace.now_ms();
        let durable_sequence = keyspace.durable_sequence();
        let mut random = Random::from_entropy();
        Server {
            keyspace,
            cursors: Cursors::new(now_ms),
            backups: Backups::new(settings.backup_dir.clone()),
            settings,
            sessions: Slab::new(),
            counters: Counters::default(),
            rates: Rates::default(),
            memory_peak: 0,
            calls: vec![Calls::default(); commands],
            slowlog: SlowLog::default(),
            latency: Latency::default(),
            shutdown: None,
            missing: None,
            group_commit: GroupCommit::default(),
            look_ups_before: None,
            kills: Vec::new(),
            paused: None,
            resumes: false,
            cross_protocol_logged: None,
            started: Instant::now(),
            last_save_s: now_ms / 1000,
            durable_sequence,
            saving_since: None,
            saving_took: None,
            has_save_failed: false,
            wants_save: false,
            wants_background_sync: false,
            run_id: format!("{:016x}{:016x}{:08x}", random.next_u64(), random.next_u64(), std::process::id()),
            random,
        }
    }

    /// Whether commands of some kind wait.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some_and(|pause| self.keyspace.now_ms() < pause.until_ms)
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
    pub fn refuse_cross_protocol(&mut self, client: usize) {
        let session = &mut self.sessions[client];
        session.is_closing = true;
        let is_quiet = |logged: Instant| logged.elapsed() >= limits::CROSS_PROTOCOL_LOG_INTERVAL;
        if self.cross_protocol_logged.is_none_or(is_quiet) {
            self.cross_protocol_logged = Some(Instant::now());
            report(format_args!(
                "possible attack: {} sent POST or Host:, as a browser does on behalf of a web page. Its connection was \
                 closed.",
                session.address
            ));
        }
    }

    /// What rates are taken from.
    pub fn totals(&self) -> Totals {
        let Counters { commands, input_bytes, output_bytes, .. } = self.counters;
        Totals { commands, input_bytes, output_bytes }
    }

    /// Keys that expired since the counters were reset.
    pub fn expired(&self) -> u64 {
        let all = self.keyspace.expired();
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
        // Where the kernel does not tell, INFO says 0.
        self.memory_peak = self.memory_peak.max(Memory::now().unwrap_or_default().anonymous);
        let durable = self.keyspace.durable_sequence();
        if durable != self.durable_sequence {
            self.durable_sequence = durable;
            self.last_save_s = self.keyspace.now_ms() / 1000;
        }
    }

    /// Has a client watch no key any more.
    pub fn unwatch(&mut self, client: usize) {
        for (space, key, _) in std::mem::take(&mut self.sessions[client].watched).iter() {
            self.keyspace.unwatch(space, key);
        }
    }

    /// Refuses what changes the store or is to become durable: where the store was opened for reading only, and once a sync, or whatever else
    /// closes it for writing, has failed: nothing becomes durable any more.
    #[inline]
    pub fn check_writable(&self) -> Outcome<()> {
        if self.settings.read_only {
            return Err(Failure::READ_ONLY);
        }
        match self.keyspace.write_failure() {
            None => Ok(()),
            Some(failure) => Err(Failure::writes_refused(&failure.message)),
        }
    }

    /// The look-ups so far.
    pub fn look_ups(&self) -> LookUps {
        LookUps { hits: self.counters.hits, misses: self.counters.misses }
    }

    /// Takes back the look-ups since then, and gives them.
    pub fn take_back_look_ups(&mut self, before: LookUps) -> LookUps {
        let now = self.look_ups();
        // The command may have set them to zero.
        self.counters.hits = now.hits.min(before.hits);
        self.counters.misses = now.misses.min(before.misses);
        LookUps {
            hits: now.hits.saturating_sub(before.hits),
            misses: now.misses.saturating_sub(before.misses),
        }
    }

    /// Counts look-ups that were taken back.
    pub fn count_look_ups(&mut self, look_ups: LookUps) {
        self.counters.hits += look_ups.hits;
        self.counters.misses += look_ups.misses;
    }

    /// Counts the commands of a transaction that will not run again.
    pub fn count_tally(&mut self, tally: &Tally) {
        for (command, counted) in &tally.calls {
            self.calls[*command].add(counted);
        }
        self.counters.errors.add(&tally.errors);
    }

    /// Records what a command waits for that has changed nothing.
    #[cold]
    pub fn put_off(&mut self, client: usize, wants: Wants) {
        self.keyspace.forget_watched();
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
            Wants::Step(attempt, step) => {
                session.waits_for =
                    Some(if attempt.may_change(step) { WaitsFor::Change } else { WaitsFor::Step });
                let client = (client, session.id);
                self.group_commit.push(Job { client, attempt, step, before: Vec::new() });
            }
        }
    }

    /// Has a client's command given again after a step of its attempt, or answered if that made its changes.
    pub fn take_up(&mut self, client: usize, mut attempt: Box<Attempt>, step: Step, ended: Ended) {
        let session = &mut self.sessions[client];
        session.waits_for = None;
        if matches!(step, Step::Commit | Step::Check) && matches!(ended, Ended::Well) {
            return;
        }
        let held = session.held.take();
        if let Some(Ran { multi, db, .. }) = held.and_then(|held| held.exec) {
            // What its commands chose is as undone as what they changed, and what they counted for is not counted. Of one that failed the queue
            // goes when that is told.
            (session.multi, session.db) = (Some(multi), db);
        }
        match ended {
            // It has nothing at hand yet, and goes by the clock of now.
            Ended::Well if step == Step::Turn => attempt.restart(),
            Ended::Well => {}
            Ended::Conflict => attempt.restart(),
            Ended::Failed(failure) => attempt.fail(failure),
        }
        // A client that is closing gives no more commands, and may take its time over the replies: it keeps nobody waiting for room.
        session.attempt = Some(attempt).filter(|_| !session.is_closing);
    }

    /// Why the command that is given again can not be done, if that was found out meanwhile: a transaction is over with it. INFO looks for
    /// itself.
    #[cold]
    pub fn take_failure(&mut self, client: usize, command: &Command) -> Option<Failure> {
        if command.full_name() == "info" {
            return None;
        }
        let failure = self.keyspace.take_failure()?;
        if command.full_name() == "exec" {
            self.sessions[client].multi = None;
            self.unwatch(client);
        }
        Some(failure)
    }

    /// Refuses what is to become durable where nothing does.
    pub fn check_durable(&self) -> Outcome<()> {
        if self.keyspace.persists() { Ok(()) } else { Err(Failure::NOT_DURABLE) }
    }

    /// Counts a command that was done, and logs it if it took long. Part of the way of every command, which is not to pay for a call.
    #[inline(always)]
    pub fn account(&mut self, client: usize, command: &'static Command, args: Args<'_>, took: Duration) {
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
            self.sample_latency(took);
        }
    }

    #[cold]
    fn sample_latency(&mut self, took: Duration) {
        let took_ms = took.as_millis() as u64;
        self.latency.max_ms = self.latency.max_ms.max(took_ms);
        if self.latency.samples.len() == 160 {
            self.latency.samples.pop_front();
        }
        self.latency.samples.push_back((self.keyspace.now_ms() / 1000, took_ms));
    }

    #[cold]
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
