//! What the server knows about a client, apart from its socket.
//!
//! Owns: a client's database, protocol version, name, transaction and watched keys. Must not know bytes or sockets.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use hedgerow::Missing;

use super::command::Command;
use super::failure::Failure;
use super::keyspace::Watched;
use super::keyspace::pairs::attempt::Attempt;
use super::keyspace::wants::Tries;
use super::resp::OwnedArgs;
use super::stats::{LookUps, Tally};

/// What CLIENT REPLY asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplyMode {
    /// Every command is answered.
    #[default]
    On,
    /// None is, until `On`.
    Off,
    /// The one that comes now is not.
    SkipNext,
    /// This one is not.
    Skip,
}

/// A command waiting for EXEC.
#[derive(Debug)]
pub struct Queued {
    /// The command.
    pub command: &'static Command,
    /// Its arguments.
    pub args: OwnedArgs,
}

/// A transaction being queued.
#[derive(Debug, Default)]
pub struct Multi {
    /// The commands so far, up to the first that could not be queued.
    pub queue: Vec<Queued>,
    /// Bytes the queue takes.
    pub bytes: usize,
    /// Whether a command could not be queued, so that EXEC must refuse.
    pub is_broken: bool,
}

impl Multi {
    /// The keys of all its commands.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.queue.iter().flat_map(|queued| queued.command.keys_of(queued.args.borrow()))
    }

    /// Whether its keys are of several databases, perhaps.
    pub fn selects(&self) -> bool {
        self.queue.iter().any(|queued| queued.command.full_name() == "select")
    }
}

/// A transaction that was run, and may be run again: what it read may have changed.
#[derive(Debug)]
pub struct Ran {
    /// Its commands.
    pub multi: Multi,
    /// The database it began in.
    pub db: usize,
    /// What its commands count for once it is answered.
    pub tally: Tally,
}

/// The keys that a client watches.
#[derive(Debug, Default)]
pub struct WatchedKeys {
    keys: HashMap<(usize, Box<[u8]>), Watched>,
    bytes: usize,
}

impl WatchedKeys {
    /// Bytes that a key takes besides its own.
    const KEY_BYTES: usize = 96;

    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes of memory they take, known without a look at each.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a key is one of them.
    pub fn contains(&self, space: usize, key: &[u8]) -> bool {
        self.keys.contains_key(&(space, Box::from(key)))
    }

    /// Adds a key that is not one of them.
    pub fn insert(&mut self, space: usize, key: &[u8], watched: Watched) {
        self.bytes += key.len() + WatchedKeys::KEY_BYTES;
        self.keys.insert((space, key.into()), watched);
    }

    /// Database, key, and what it was like.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[u8], Watched)> {
        self.keys.iter().map(|((space, key), watched)| (*space, &**key, *watched))
    }
}

/// A client.
pub struct Session {
    /// Never given twice.
    pub id: u64,
    /// The number of its socket.
    pub fd: i32,
    /// Its address and ours.
    pub address: String,
    /// Ours.
    pub local_address: String,
    /// The database of its keys.
    pub db: usize,
    /// Whether it speaks RESP3.
    pub resp3: bool,
    /// Since when it may do no more than authenticate, by [`Keyspace::uptime`](super::keyspace::Keyspace::uptime), if so.
    pub stranger_since: Option<Duration>,
    /// What it calls itself.
    pub name: Vec<u8>,
    /// The library it says it uses.
    pub library: Vec<u8>,
    /// And that one's version.
    pub library_version: Vec<u8>,
    /// CLIENT NO-EVICT.
    pub no_evict: bool,
    /// CLIENT NO-TOUCH.
    pub no_touch: bool,
    /// CLIENT REPLY.
    pub reply_mode: ReplyMode,
    /// A transaction being queued.
    pub multi: Option<Multi>,
    /// One that EXEC has just run, if its changes are not there yet.
    pub ran: Option<Ran>,
    /// Keys whose change makes EXEC refuse.
    pub watched: WatchedKeys,
    /// Whether to disconnect it once its replies are sent.
    pub is_closing: bool,
    /// Whether the reply to the command under way holds only once everything written so far is durable.
    pub reply_needs_sync: bool,
    /// Where in the output the replies lie that hold only once everything written so far is durable.
    pub unsynced: Vec<Range<usize>>,
    /// Whether its next command waits for the end of a CLIENT PAUSE.
    pub is_paused: bool,
    /// Whether its replies wait for a sync that is under way.
    pub waits_for_sync: bool,
    /// What its next command, which was given already, waits for.
    pub waits_for: Option<WaitsFor>,
    /// How often that was given already.
    pub tries: Tries,
    /// What was brought for it that was not in memory.
    pub brought: Option<Missing>,
    /// What was fetched for it at a store of pairs.
    pub attempt: Option<Box<Attempt>>,
    /// What it will be answered once its changes are there.
    pub held: Option<HeldReply>,
    /// When it came and last did something, in ms since 1970.
    pub connected_ms: u64,
    /// See above.
    pub active_ms: u64,
    /// The command that it waits with or gave last.
    pub last_command: &'static str,
    /// Its buffers, as of when its last commands began or its last replies were sent.
    pub buffers: Buffers,
}

/// What a command waits for before it is given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// There may be room.
    Space,
    /// Its rows are in memory.
    Rows,
    /// Its attempt at a store of pairs has gone a step on, which changes nothing.
    Step,
    /// And one that may change something: what becomes of it is not known before.
    Change,
}

/// A command that is done as soon as its changes are there, and the reply to it.
#[derive(Debug)]
pub struct HeldReply {
    /// The reply.
    pub reply: Vec<u8>,
    /// Which command it was.
    pub command: Option<&'static Command>,
    /// How long it took.
    pub took: Duration,
    /// Why it is an error, if it is one.
    pub failure: Option<Failure>,
    /// The transaction that it is the end of.
    pub exec: Option<Ran>,
    /// What it looked up.
    pub look_ups: LookUps,
}

/// The buffers of a client's connection, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Buffers {
    /// Read and not yet done.
    pub input_bytes: usize,
    /// Room for more in the input buffer.
    pub input_free: usize,
    /// Waiting to be sent.
    pub output_bytes: usize,
    /// Memory of the output buffer.
    pub output_memory: usize,
    /// The most that was ever waiting to be sent.
    pub output_peak: usize,
    /// Whether the client does not take what is to be sent.
    pub is_write_blocked: bool,
    /// Memory of all its buffers.
    pub memory: usize,
}

impl Session {
    /// A client that has said nothing yet.
    pub fn new(
        id: u64,
        (address, local_address): (String, String),
        stranger_since: Option<Duration>,
        now_ms: u64,
    ) -> Session {
        Session {
            id,
            fd: -1,
            address,
            local_address,
            db: 0,
            resp3: false,
            stranger_since,
            name: Vec::new(),
            library: Vec::new(),
            library_version: Vec::new(),
            no_evict: false,
            no_touch: false,
            reply_mode: ReplyMode::On,
            multi: None,
            ran: None,
            watched: WatchedKeys::default(),
            is_closing: false,
            reply_needs_sync: false,
            unsynced: Vec::new(),
            is_paused: false,
            waits_for_sync: false,
            waits_for: None,
            tries: Tries::default(),
            brought: None,
            attempt: None,
            held: None,
            connected_ms: now_ms,
            active_ms: now_ms,
            last_command: "NULL",
            buffers: Buffers::default(),
        }
    }

    /// Back to what a new connection is, as RESET does, but for watched keys; with a time for `stranger_since` if it has to authenticate again.
    pub fn reset(&mut self, stranger_since: Option<Duration>) {
        self.db = 0;
        self.resp3 = false;
        // Who is one already has no more time for it.
        self.stranger_since = stranger_since.map(|now| self.stranger_since.unwrap_or(now));
        self.name.clear();
        self.no_evict = false;
        self.no_touch = false;
        self.reply_mode = ReplyMode::On;
        self.multi = None;
    }

    /// Whether it may do more than authenticate.
    pub fn is_authenticated(&self) -> bool {
        self.stranger_since.is_none()
    }

    /// Whether the command that it gave last may be given again as if it never had been.
    pub fn may_begin_anew(&self) -> bool {
        self.held.is_none() && self.attempt.as_ref().is_none_or(|attempt| attempt.may_be_forgotten())
    }

    /// Whether its next command waits for a step of its attempt at a store of pairs.
    pub fn waits_for_store(&self) -> bool {
        matches!(self.waits_for, Some(WaitsFor::Step | WaitsFor::Change))
    }

    /// Bytes of memory the transaction, watches and a reply that waits take.
    pub fn memory_bytes(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |held| held.reply.capacity());
        self.multi.as_ref().map_or(0, |multi| multi.bytes) + self.watched.bytes() + held
    }

    /// Whether it waits for something other than its own next command: a sync, space, the end of a pause.
    pub fn is_blocked(&self) -> bool {
        self.waits_for_sync || self.waits_for.is_some() || self.is_paused
    }

    /// Bytes of memory it takes, buffers and all.
    pub fn total_bytes(&self) -> usize {
        let texts = [&self.address, &self.local_address].map(String::capacity).iter().sum::<usize>();
        let words =
            [&self.name, &self.library, &self.library_version].map(Vec::capacity).iter().sum::<usize>();
        size_of::<Session>() + texts + words + self.memory_bytes() + self.buffers.memory
    }

    /// The flags of CLIENT LIST.
    fn flags(&self) -> String {
        let all = [
            (self.multi.is_some(), 'x'),
            (self.is_blocked(), 'b'),
            (self.is_closing, 'c'),
            (self.no_evict, 'e'),
            (self.no_touch, 'T'),
        ];
        let set: String = all.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect();
        if set.is_empty() { "N".into() } else { set }
    }

    /// The line of CLIENT LIST, with the bytes of the arguments of the command that is being done for this client.
    pub fn describe(&self, now_ms: u64, argument_bytes: usize) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let Buffers { input_bytes, input_free, output_bytes, output_memory, output_peak, .. } = self.buffers;
        let start = format!(
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db={} sub=0 psub=0 ssub=0 multi={} \
             watch={}",
            self.id,
            self.address,
            self.local_address,
            self.fd,
            text(&self.name),
            now_ms.saturating_sub(self.connected_ms) / 1000,
            now_ms.saturating_sub(self.active_ms) / 1000,
            self.flags(),
            self.db,
            self.multi.as_ref().map_or(-1, |multi| multi.queue.len() as i64),
            self.watched.len(),
        );
        // There is one output buffer, and no list of further ones behind it.
        format!(
            "{start} qbuf={input_bytes} qbuf-free={input_free} argv-mem={argument_bytes} multi-mem={} \
             rbs={output_memory} rbp={output_peak} obl={output_bytes} oll=0 omem={output_memory} tot-mem={} \
             events={} cmd={} user=default redir=-1 resp={} lib-name={} lib-ver={}",
            self.multi.as_ref().map_or(0, |multi| multi.bytes),
            self.total_bytes(),
            if self.buffers.is_write_blocked { "rw" } else { "r" },
            self.last_command,
            if self.resp3 { 3 } else { 2 },
            text(&self.library),
            text(&self.library_version),
        )
    }
}
