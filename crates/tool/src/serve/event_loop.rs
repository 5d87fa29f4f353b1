//! The one thread that serves all clients.
//!
//! Owns: sockets and the order of things in a turn: accept, read, do all whole commands of every ready client, ask for one
//! sync if one is needed, then write the replies. Promises: it never waits for a disk or for one client; each limit of
//! [`limits`] on clients is enforced here. Must not know what commands do.

mod steps;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hedgerow::Db;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::net::sockopt;
use slab::Slab;

use super::attempts::Attempts;
use super::connection::{Connection, Pool, Progress};
use super::dispatch;
use super::failure::Failure;
use super::keyspace::Keyspace;
use super::limits;
use super::persister::Persister;
use super::pipeline_peek::{PeekedRun, PipelinePeek};
use super::reader::Reader;
use super::reply::Reply;
use super::resp::{Parsed, ProtocolError, RequestLimits};
use super::server::{Server, Shutdown};
use super::session::{ReplyMode, Session, WaitsFor};
use super::waiter::Waiter;
use crate::printing::report;

/// Listeners have the tokens below this, connections those from here on.
const FIRST_CONNECTION: usize = 64;
/// The token of wake-ups by other threads.
const WAKE: Token = Token(FIRST_CONNECTION - 1);
/// How often limits of time are looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often is looked at what INFO shows and nobody tells.
const LOOK: Duration = Duration::from_secs(1);
/// How long the sweep of a store of pairs rests after each round.
const SWEEP_REST: Duration = Duration::from_secs(60);
/// How long stopping waits for clients to take their replies.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// What the signal handler and tests use to stop a running loop.
#[derive(Debug, Clone)]
pub struct Stopper {
    flag: Arc<std::sync::atomic::AtomicBool>,
    waker: Arc<Waker>,
}

impl Stopper {
    /// Asks for an orderly stop.
    pub fn stop(&self) {
        self.flag.store(true, std::sync::atomic::Ordering::Release);
        // A loop that can not be woken looks at the flag at its next tick.
        drop(self.waker.wake());
    }
}

/// What a tiered store needs beside the loop.
struct TieredWorkers {
    /// The store, apart from the state that commands change.
    db: Db,
    waiter: Waiter,
    reader: Reader,
}

impl TieredWorkers {
    fn start(db: &Db, waker: &Arc<Waker>) -> io::Result<TieredWorkers> {
        Ok(TieredWorkers {
            db: db.clone(),
            waiter: Waiter::start(db.clone(), waker.clone())?,
            reader: Reader::start(waker.clone())?,
        })
    }
}

/// The loop and everything it serves.
pub struct EventLoop {
    poll: Poll,
    listeners: Vec<TcpListener>,
    connections: Slab<Connection>,
    server: Server,
    /// What a tiered store needs beside the loop.
    tiered: Option<TieredWorkers>,
    /// And a store of pairs.
    attempts: Option<Attempts>,
    /// Of a store that can be made durable.
    persister: Option<Persister>,
    /// Rounds of its sweep, and when the last one ended.
    swept: (u64, Duration),
    pool: Pool,
    /// Connections with something to do in this turn.
    turn: Vec<usize>,
    /// Connections with something to do in the next turn.
    next: Vec<usize>,
    client_bytes: usize,
    next_id: u64,
    stopper: Stopper,
    last_tick: Instant,
    last_look: Instant,
    background_sync: Option<u64>,
    has_reported_write_failure: bool,
    /// Connections whose replies wait for a sync.
    held: Vec<usize>,
    /// Connections whose next command waits for space.
    waiting: Vec<usize>,
    /// Whether a connection could not be accepted.
    accept_again: bool,
}

impl EventLoop {
    /// A loop over bound sockets.
    pub fn new(server: Server, sockets: Vec<std::net::TcpListener>) -> io::Result<EventLoop> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let mut listeners = Vec::new();
        for (index, socket) in sockets.into_iter().enumerate().take(WAKE.0) {
            socket.set_nonblocking(true)?;
            let mut listener = TcpListener::from_std(socket);
            poll.registry().register(&mut listener, Token(index), Interest::READABLE)?;
            listeners.push(listener);
        }
        let tiered = match server.keyspace.db() {
            Some(db) => Some(TieredWorkers::start(db, &waker)?),
            None => None,
        };
        let (attempts, persister) = match &server.keyspace {
            Keyspace::Pairs(keys) => {
                let (db, bytes_max) = (keys.db(), server.settings.client_bytes_max);
                let persister = || Persister::start_over_pairs(db.clone(), waker.clone());
                let persister = server.keyspace.persists().then(persister).transpose()?;
                (Some(Attempts::start(db.clone(), waker.clone(), bytes_max)?), persister)
            }
            Keyspace::Tiered(keys) => (None, Some(Persister::start(keys.db().clone(), waker.clone())?)),
        };
        Ok(EventLoop {
            poll,
            listeners,
            connections: Slab::new(),
            server,
            tiered,
            attempts,
            persister,
            swept: (0, Duration::ZERO),
            pool: Pool::default(),
            turn: Vec::new(),
            next: Vec::new(),
            client_bytes: 0,
            next_id: 1,
            stopper: Stopper { flag: Arc::default(), waker },
            last_tick: Instant::now(),
            last_look: Instant::now(),
            background_sync: None,
            has_reported_write_failure: false,
            held: Vec::new(),
            waiting: Vec::new(),
            accept_again: false,
        })
    }

    /// How to stop the loop from another thread.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until asked to stop; gives the shared state back.
    pub fn run(mut self) -> io::Result<Server> {
        let mut events = Events::with_capacity(1024);
        loop {
            match self.poll.poll(&mut events, Some(self.timeout())) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            self.server.keyspace.refresh_time(Instant::now());
            for event in &events {
                match event.token() {
                    WAKE => {
                        self.finish_syncs();
                        self.finish_waits();
                        self.finish_reads();
                        self.finish_steps();
                    }
                    Token(index) if index < FIRST_CONNECTION => self.accept(index),
                    Token(token) => self.record_ready(token - FIRST_CONNECTION, event),
                }
            }
            self.serve_turn();
            self.resume();
            if self.last_tick.elapsed() >= TICK {
                self.tick();
            }
            if self.stopper.flag.load(std::sync::atomic::Ordering::Acquire) {
                self.server.shutdown = Some(Shutdown::Orderly);
            }
            if self.server.shutdown.is_some() {
                return self.stop(events);
            }
        }
    }

    /// How long the next turn may wait for events.
    fn timeout(&self) -> Duration {
        if !self.next.is_empty() {
            return Duration::ZERO;
        }
        let keyspace = &self.server.keyspace;
        let rest = if keyspace.is_swept() { TICK * 5 } else { TICK };
        match self.server.paused {
            Some(pause) => rest.min(Duration::from_millis(pause.until_ms.saturating_sub(keyspace.now_ms()))),
            None => rest,
        }
    }

    fn accept(&mut self, index: usize) {
        loop {
            let Some(listener) = self.listeners.get(index) else { return };
            match listener.accept() {
                Ok((stream, address)) => self.admit(stream, address),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Out of descriptors, most likely: no event will tell when that is over.
                    self.accept_again = true;
                    return;
                }
            }
        }
    }

    fn admit(&mut self, mut stream: TcpStream, address: SocketAddr) {
        self.server.counters.connections += 1;
        if self.connections.len() >= self.server.settings.clients_max {
            self.server.counters.rejected += 1;
            // The client may be gone already; either way it is not served.
            drop(io::Write::write(&mut stream, b"-ERR max number of clients reached\r\n"));
            return;
        }
        let local = stream.local_addr().map_or_else(|_| String::new(), |address| address.to_string());
        if stream.set_nodelay(true).is_err() || keep_alive(&stream).is_err() {
            return;
        }
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut stream, Token(FIRST_CONNECTION + key), interest).is_err() {
            return;
        }
        let now = self.server.keyspace.now_ms();
        let stranger_since = self.server.strangers_since();
        let session = Session {
            fd: stream.as_raw_fd(),
            ..Session::new(self.next_id, (address.to_string(), local), stranger_since, now)
        };
        self.next_id += 1;
        entry.insert(Connection::new(stream));
        let session_key = self.server.sessions.insert(session);
        debug_assert_eq!(session_key, key, "sessions and connections are inserted and removed together");
    }

    fn record_ready(&mut self, key: usize, event: &Event) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.is_readable |= event.is_readable();
        connection.is_read_closed |= event.is_read_closed();
        connection.is_gone |= event.is_write_closed() || event.is_error();
        if event.is_writable() {
            connection.is_write_blocked = false;
        }
        list(&mut self.next, connection, key);
    }

    /// Lets the clients go on that waited for the end of a pause, if it has ended.
    fn resume(&mut self) {
        if self.server.paused.is_some() && !self.server.is_paused() {
            self.server.paused = None;
            self.server.resumes = true;
        }
        if std::mem::take(&mut self.server.resumes) {
            let (now_ms, now) = (self.server.keyspace.now_ms(), self.server.keyspace.uptime());
            for (key, connection) in &mut self.connections {
                let session = &mut self.server.sessions[key];
                if std::mem::take(&mut session.is_paused) {
                    // It was waiting all the while, not idle; and what it has said may be its password.
                    session.active_ms = now_ms;
                    session.stranger_since = session.stranger_since.map(|_| now);
                }
                list(&mut self.next, connection, key);
            }
        }
    }

    /// Does the commands of all ready connections, then sends the replies of all of them.
    fn serve_turn(&mut self) {
        self.begin_waiting();
        std::mem::swap(&mut self.turn, &mut self.next);
        let turn = std::mem::take(&mut self.turn);
        for &key in &turn {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.is_listed = false;
                self.serve(key);
            }
        }
        self.request_steps();
        self.begin_waiting();
        self.request_sync(&turn);
        for &key in &turn {
            self.answer(key);
        }
        for key in std::mem::take(&mut self.server.kills) {
            // What was done before is told, as far as it can be at once.
            self.answer(key);
            self.drop_connection(key);
        }
        self.turn = turn;
        self.turn.clear();
    }

    /// Reads from a connection and does its whole commands.
    fn serve(&mut self, key: usize) {
        let mut read_bytes = 0;
        let began = Instant::now();
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return };
            if connection.held_until.is_some() || self.server.sessions[key].waits_for.is_some() {
                // Both waits are short, and what it has sent is done even if it sends no more.
                return if connection.is_gone {
                    self.drop_connection(key)
                };
            }
            let db = self.tiered.as_ref().map(|workers| &workers.db);
            match execute_all(connection, &mut self.server, db, key, &mut self.pool, began) {
                Executed::All => {}
                // A pause is long: commands of a client that may have left meanwhile are not done.
                Executed::Waits if self.server.sessions[key].is_paused && connection.is_read_closed => {
                    return self.drop_connection(key);
                }
                Executed::Waits => return,
                Executed::Yields => return list(&mut self.next, connection, key),
                Executed::HeldBack => return connection.is_held_back = true,
                Executed::WaitsFor(WaitsFor::Space) => {
                    self.waiting.push(key);
                    return self.tiered.iter().for_each(|workers| workers.waiter.request());
                }
                Executed::WaitsFor(WaitsFor::Rows) => {
                    let client = (key, self.server.sessions[key].id);
                    if let (Some(missing), Some(workers)) = (self.server.missing.take(), &self.tiered) {
                        workers.reader.request(client, missing);
                    }
                    return;
                }
                // They are asked for together, at the end of the turn.
                Executed::WaitsFor(WaitsFor::Step | WaitsFor::Change) => return,
                Executed::OverLimit => {
                    self.server.counters.output_limit_disconnections += 1;
                    return self.drop_connection(key);
                }
            }
            let is_slow = connection.unsent() > self.server.settings.output.soft;
            connection.is_held_back = is_slow && connection.is_readable;
            if !connection.is_readable || is_slow || self.server.shutdown.is_some() {
                connection.release_input(&mut self.pool);
                return;
            }
            if read_bytes >= limits::READ_BYTES_PER_TURN {
                return list(&mut self.next, connection, key);
            }
            match connection.read(&mut self.pool) {
                Err(_) => return self.drop_connection(key),
                Ok((Progress::Closed, _)) => {
                    // All that it sent is done; it may still read the replies.
                    connection.is_readable = false;
                    self.server.sessions[key].is_closing = true;
                    return;
                }
                Ok((progress, count)) => {
                    read_bytes += count;
                    self.server.counters.input_bytes += count as u64;
                    // The one event that told of bytes and of their end is not repeated.
                    connection.is_readable = progress == Progress::More || connection.is_read_closed;
                }
            }
        }
    }

    /// Asks for one sync if a client of this turn needs one, and holds the replies of those that do.
    fn request_sync(&mut self, turn: &[usize]) {
        let mut ticket = None;
        let background = std::mem::take(&mut self.server.wants_background_sync);
        let checkpoint = self.server.wants_save | background;
        for &key in turn {
            let needs_sync = |session: &&mut Session| !session.unsynced.is_empty() && !session.waits_for_sync;
            let Some(session) = self.server.sessions.get_mut(key).filter(needs_sync) else { continue };
            let Some(persister) = &self.persister else { return };
            let ticket = *ticket.get_or_insert_with(|| persister.request(checkpoint));
            if let Some(connection) = self.connections.get_mut(key) {
                connection.held_until = Some(ticket);
                session.waits_for_sync = true;
                self.held.push(key);
            }
        }
        // Whoever waits for a sync that is under way asks again after it, and so does the `SAVE` of a held client.
        self.server.wants_save &= ticket.is_none();
        if background && let Some(persister) = &self.persister {
            self.background_sync = Some(ticket.unwrap_or_else(|| persister.request(checkpoint)));
            self.server.saving_since.get_or_insert_with(Instant::now);
        }
    }

    /// Lets go of the clients whose writes are durable now.
    fn finish_syncs(&mut self) {
        let Some(persister) = &self.persister else { return };
        let ended = persister.ended();
        if self.background_sync.is_some_and(|ticket| ended.refused(ticket).is_some()) {
            self.background_sync = None;
            (self.server.saving_since, self.server.has_save_failed) = (None, true);
        }
        if self.background_sync.is_some_and(|ticket| ticket <= ended.done) {
            (self.background_sync, self.server.has_save_failed) = (None, false);
            self.server.saving_took = self.server.saving_since.take().map(|since| since.elapsed());
            self.server.last_save_s = self.server.keyspace.now_ms() / 1000;
        }
        let now_ms = self.server.keyspace.now_ms();
        for key in std::mem::take(&mut self.held) {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            match connection.held_until {
                Some(ticket) if ticket <= ended.done => {
                    connection.held_until = None;
                    let session = &mut self.server.sessions[key];
                    session.waits_for_sync = false;
                    session.unsynced.clear();
                    // It was waiting all the while, not idle.
                    session.active_ms = now_ms;
                    self.server.last_save_s = now_ms / 1000;
                    list(&mut self.next, connection, key);
                }
                Some(ticket) => match ended.refused(ticket) {
                    None => self.held.push(key),
                    Some(why) => {
                        connection.held_until = None;
                        let session = &mut self.server.sessions[key];
                        session.waits_for_sync = false;
                        session.active_ms = now_ms;
                        // They say that a write is safe, which it is not.
                        let refused = std::mem::take(&mut session.unsynced);
                        refused.iter().for_each(|_| self.server.counters.errors.count(why.as_str()));
                        connection.refuse_replies(&refused, why.as_str());
                        list(&mut self.next, connection, key);
                    }
                },
                None => {}
            }
        }
    }

    /// Says once, to who runs the server, that the store takes no more writes.
    fn report_write_failure(&mut self) {
        if !self.has_reported_write_failure
            && let Some(failure) = self.server.keyspace.write_failure()
        {
            self.has_reported_write_failure = true;
            report(format_args!(
                "writes are refused from now on, and reads go on: {} (at {} ms since 1970)",
                failure.message, failure.at_ms
            ));
        }
    }

    /// Has the commands that found no room tried again, once there may be some.
    fn finish_waits(&mut self) {
        let ended = self.tiered.as_ref().and_then(|workers| workers.waiter.ended());
        let Some(progress) = ended else { return };
        for key in std::mem::take(&mut self.waiting) {
            let waits = |session: &&mut Session| session.waits_for == Some(WaitsFor::Space);
            let Some(session) = self.server.sessions.get_mut(key).filter(waits) else { continue };
            session.waits_for = None;
            session.tries.idle_waits += u32::from(!progress);
            if let Some(connection) = self.connections.get_mut(key) {
                list(&mut self.next, connection, key);
            }
        }
    }

    /// Has the commands tried again whose rows were brought.
    fn finish_reads(&mut self) {
        let Some(workers) = &self.tiered else { return };
        for ((key, id), missing) in workers.reader.brought() {
            let waits = |s: &&mut Session| s.id == id && s.waits_for == Some(WaitsFor::Rows);
            let Some(session) = self.server.sessions.get_mut(key).filter(waits) else { continue };
            (session.waits_for, session.brought) = (None, Some(missing));
            if let Some(connection) = self.connections.get_mut(key) {
                list(&mut self.next, connection, key);
            }
        }
    }

    /// Sends what a connection has to say, unless it waits for a sync; enforces the limits of output and memory.
    fn answer(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let before = connection.unsent();
        if connection.held_until.is_none() && !connection.is_write_blocked {
            match connection.flush(&mut self.pool) {
                Ok(count) => {
                    self.server.counters.output_bytes += count as u64;
                    // Who reads a long reply is not idle.
                    if count > 0 && self.server.settings.idle_timeout.is_some() {
                        self.server.sessions[key].active_ms = self.server.keyspace.now_ms();
                    }
                }
                Err(_) => return self.drop_connection(key),
            }
        }
        let unsent = connection.unsent();
        let session = &mut self.server.sessions[key];
        if session.is_closing && unsent == 0 && connection.held_until.is_none() {
            connection.finish();
            return self.drop_connection(key);
        }
        let soft = self.server.settings.output.soft;
        if unsent <= soft && std::mem::take(&mut connection.is_held_back) {
            // What it has sent is there already, and no event tells of that again.
            list(&mut self.next, connection, key);
        }
        connection.over_soft_since = match unsent > soft {
            true => connection.over_soft_since.or_else(|| Some(self.server.keyspace.uptime())),
            false => None,
        };
        // What is never dropped to make room is not to have others dropped either.
        let bytes = if session.no_evict { 0 } else { connection.memory_bytes() + session.memory_bytes() };
        session.buffers = connection.buffers(session.buffers.output_peak.max(before));
        self.client_bytes = self.client_bytes + bytes - connection.counted_bytes;
        connection.counted_bytes = bytes;
        if self.client_bytes > self.server.settings.client_bytes_max {
            self.drop_largest();
        }
    }

    /// Disconnects the client whose buffers take most, so that the others can go on; none that has said `CLIENT NO-EVICT ON`, of which
    /// no bytes are counted.
    fn drop_largest(&mut self) {
        let sessions = &self.server.sessions;
        // One that said so in this very turn has bytes counted still.
        let may_go = |key: usize| !sessions.get(key).is_some_and(|session| session.no_evict);
        let others = self.connections.iter().filter(|(key, _)| may_go(*key));
        if let Some((key, _)) = others.max_by_key(|(_, connection)| connection.counted_bytes) {
            self.server.counters.input_limit_disconnections += 1;
            self.drop_connection(key);
        }
    }

    fn drop_connection(&mut self, key: usize) {
        let Some(mut connection) = self.connections.try_remove(key) else { return };
        self.server.unwatch(key);
        self.server.sessions.remove(key);
        self.client_bytes -= connection.counted_bytes;
        // Closing the descriptor removes it from the poll in any case.
        drop(self.poll.registry().deregister(&mut connection.stream));
    }

    /// Looks at the limits of time, and removes some of what has expired.
    fn tick(&mut self) {
        self.last_tick = Instant::now();
        self.report_write_failure();
        self.server.rates.sample(self.last_tick, self.server.totals());
        if self.last_tick.duration_since(self.last_look) >= LOOK {
            self.last_look = self.last_tick;
            self.server.look_around();
        }
        let (now_ms, now) = (self.server.keyspace.now_ms(), self.server.keyspace.uptime());
        // In a store that is only read they stay, and hidden.
        if !self.server.settings.read_only {
            self.server.keyspace.sweep();
            self.sweep_pairs();
        }
        if std::mem::take(&mut self.accept_again) {
            (0..self.listeners.len()).for_each(|index| self.accept(index));
        }
        let settings = &self.server.settings;
        let mut late = Vec::new();
        for (key, connection) in &mut self.connections {
            let session = &self.server.sessions[key];
            let idle = Duration::from_millis(now_ms.saturating_sub(session.active_ms));
            let is_over_limit = connection
                .over_soft_since
                .is_some_and(|since| now.saturating_sub(since) > settings.output.soft_time);
            let is_late = is_over_limit
                || settings.idle_timeout.is_some_and(|limit| idle > limit)
                || (session.is_closing && made_no_progress(connection, now, settings.output.soft_time))
                || session
                    .stranger_since
                    .is_some_and(|since| now.saturating_sub(since) > limits::UNAUTHENTICATED_TIME_MAX);
            let waits = connection.held_until.is_some() || session.waits_for.is_some() || session.is_paused;
            if is_late && !waits {
                late.push((key, is_over_limit));
            }
        }
        for (key, is_over_limit) in late {
            self.server.counters.output_limit_disconnections += u64::from(is_over_limit);
            self.drop_connection(key);
        }
    }

    /// Answers, at the end, the commands whose changes were just made.
    fn tell_held(&mut self) {
        for (key, session) in &mut self.server.sessions {
            let held = session.held.take().filter(|_| session.waits_for.is_none());
            if let (Some(held), Some(connection)) = (held, self.connections.get_mut(key))
                && session.reply_mode == ReplyMode::On
            {
                connection.output.extend_from_slice(&held.reply);
            }
        }
    }

    /// Tells those whose changes the store has not answered, at the end, that nobody knows what became of them. What was only to be read is not
    /// answered, like all that was not begun.
    fn give_up_steps(&mut self) {
        let patience = limits::STORE_PATIENCE.as_secs();
        let why = format!("the server stops, and the store has not answered for {patience} seconds");
        let failure = Failure::from(hedgerow::Error::new(hedgerow::ErrorKind::Indeterminate, why));
        let (mut changes, mut waiting) = (0, 0);
        for (key, session) in &mut self.server.sessions {
            waiting += usize::from(session.waits_for_store());
            if session.waits_for != Some(WaitsFor::Change) {
                continue;
            }
            changes += 1;
            self.server.counters.errors.count(failure.as_str());
            if let Some(connection) = self.connections.get_mut(key)
                && session.reply_mode == ReplyMode::On
            {
                Reply::new(&mut connection.output, session.resp3).error(failure.as_str());
            }
        }
        report(format_args!(
            "stopping, though the store has not answered for {patience} seconds: {waiting} commands were under way; {changes} of them may \
             have been done, or not, and their clients are told so"
        ));
    }

    /// Stops accepting, lets clients have the replies to what was done, persists.
    fn stop(mut self, mut events: Events) -> io::Result<Server> {
        self.listeners.clear();
        match &mut self.persister {
            Some(persister) if self.tiered.is_some() => persister.stop(),
            Some(persister) => persister.stop_in_time(),
            None => {}
        }
        self.finish_syncs();
        self.report_write_failure();
        let store_has_answered = self.attempts.as_mut().is_none_or(Attempts::stop);
        self.finish_steps();
        if !store_has_answered {
            self.give_up_steps();
        }
        self.tell_held();
        let deadline = Instant::now() + STOP_PATIENCE;
        loop {
            let open: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
            for key in open {
                if let Some(connection) = self.connections.get_mut(key) {
                    connection.is_write_blocked = false;
                }
                self.answer(key);
            }
            let left = self.connections.iter().filter(|(_, connection)| connection.unsent() > 0).count();
            if left == 0 || Instant::now() > deadline {
                self.connections.iter_mut().for_each(|(_, connection)| connection.finish());
                return Ok(self.server);
            }
            match self.poll.poll(&mut events, Some(TICK)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }
}

/// What became of the commands of a connection's input.
enum Executed {
    /// Nothing whole is left.
    All,
    /// The rest has to wait, or will never be done.
    Waits,
    /// The next one was given, and lacked something.
    WaitsFor(WaitsFor),
    /// It is the turn of others.
    Yields,
    /// The rest is done once the client has taken some of its replies.
    HeldBack,
    /// The replies take more than they may, whoever takes them.
    OverLimit,
}

/// Does the whole commands of the input.
fn execute_all(
    connection: &mut Connection,
    server: &mut Server,
    db: Option<&Db>,
    key: usize,
    pool: &mut Pool,
    began: Instant,
) -> Executed {
    if connection.input.bytes().is_empty() {
        return Executed::All;
    }
    // A command that was begun is ended: what was brought for it waits for no client.
    let session = &server.sessions[key];
    let has_begun = session.held.is_some() || session.brought.is_some() || session.attempt.is_some();
    if connection.unsent() > server.settings.output.soft && !has_begun {
        return Executed::HeldBack;
    }
    connection.prepare_output(pool);
    let mut started = Instant::now();
    // After the bytes were read: what clients know of the time is not ahead of the server.
    server.keyspace.refresh_time(started);
    let session = &mut server.sessions[key];
    session.active_ms = server.keyspace.now_ms();
    session.buffers = connection.buffers(session.buffers.output_peak);
    loop {
        let session = &server.sessions[key];
        let (guard, run);
        if session.is_authenticated()
            && connection.parser.is_between_commands()
            && let (Some(db), Keyspace::Tiered(keyspace)) = (db, &server.keyspace)
        {
            let peek = PipelinePeek::at(connection.input.bytes());
            run = match peek.is_pinned() {
                true => {
                    guard = db.pin();
                    peek.look_up(keyspace, session.db, &guard)
                }
                false => peek.prefetch(keyspace, session.db),
            };
        } else {
            run = PeekedRun::blind(1);
        }
        match execute(connection, server, key, &run, started, pool) {
            ControlFlow::Continue(ended) => started = ended,
            ControlFlow::Break(executed) => return executed,
        }
        if started.saturating_duration_since(began) >= limits::TURN_TIME {
            return Executed::Yields;
        }
    }
}

/// Does the commands of a run, and says when the last one ended.
fn execute(
    connection: &mut Connection,
    server: &mut Server,
    key: usize,
    run: &PeekedRun<'_>,
    mut started: Instant,
    pool: &mut Pool,
) -> ControlFlow<Executed, Instant> {
    let began = started;
    for position in 0..run.commands {
        let session = &server.sessions[key];
        if session.is_closing || server.shutdown.is_some() {
            return ControlFlow::Break(Executed::Waits);
        }
        let (limits, output_max) = match session.is_authenticated() {
            true => (RequestLimits::AUTHENTICATED, server.settings.output.hard),
            false => (RequestLimits::UNAUTHENTICATED, limits::UNAUTHENTICATED_OUTPUT_BYTES_MAX),
        };
        match connection.parser.parse(connection.input.bytes(), &limits) {
            Ok(Parsed::Incomplete) => return ControlFlow::Break(Executed::All),
            Ok(Parsed::Command) => {}
            Err(ProtocolError(text)) => {
                server.counters.errors.count(&text);
                Reply::new(&mut connection.output, false).error(&text);
                server.sessions[key].is_closing = true;
                return ControlFlow::Break(Executed::Waits);
            }
        }
        let args = connection.parser.args(connection.input.bytes());
        // One that is done is answered, whoever pauses, and one that was begun is ended.
        if server.paused.is_some() && server.sessions[key].may_begin_anew() {
            let waits = server.is_paused() && dispatch::pauses(server, key, args);
            server.sessions[key].is_paused = waits;
            if waits {
                // A pause is long: what was fetched for it is not to keep others waiting for room.
                (server.sessions[key].attempt, server.sessions[key].brought) = (None, None);
                dispatch::record_waiting(server, key, args);
                return ControlFlow::Break(Executed::Waits);
            }
        }
        if !args.is_empty() {
            server.keyspace.refresh_old_time(started);
            started =
                dispatch::execute(server, key, args, run.peeked(position), &mut connection.output, started);
            if let Some(what) = server.sessions[key].waits_for {
                return ControlFlow::Break(Executed::WaitsFor(what));
            }
        }
        let consumed = connection.parser.consumed();
        connection.parser.next();
        connection.input.consume(consumed);
        if connection.unsent() > limits::FLUSH_BYTES && server.sessions[key].unsynced.is_empty() {
            server.counters.output_bytes += connection.flush_early(pool);
        }
        let unsent = connection.unsent();
        if unsent > output_max {
            return ControlFlow::Break(Executed::OverLimit);
        }
        if unsent > server.settings.output.soft {
            return ControlFlow::Break(Executed::HeldBack);
        }
        if started.saturating_duration_since(began) >= limits::TURN_TIME {
            break;
        }
    }
    ControlFlow::Continue(started)
}

/// Whether a connection that is closing has taken none of its replies for so long.
fn made_no_progress(connection: &mut Connection, now: Duration, patience: Duration) -> bool {
    let unsent = connection.unsent();
    match connection.closing {
        Some((since, left)) if unsent == left => now.saturating_sub(since) > patience,
        _ => {
            connection.closing = Some((now, unsent));
            false
        }
    }
}

/// Has the kernel find out about peers that vanished without a word.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, limits::KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, limits::KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, limits::KEEPALIVE_PROBES)?)
}

/// Puts a connection into a list, once.
fn list(into: &mut Vec<usize>, connection: &mut Connection, key: usize) {
    if !connection.is_listed {
        connection.is_listed = true;
        into.push(key);
    }
}
