//! What the server knows about a client, apart from its socket.
//!
//! Owns: a client's database, protocol version, name, transaction and watched keys. Must not know bytes or sockets.

use super::commands::Command;
use super::keyspace::keys::Version;
use super::resp::OwnedArgs;

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
    /// The commands so far.
    pub queue: Vec<Queued>,
    /// Bytes the queue takes.
    pub bytes: usize,
    /// Whether a command could not be queued, so that EXEC must refuse.
    pub is_broken: bool,
}

/// A watched key: database, key, what it looked like.
#[derive(Debug)]
pub struct Watched {
    /// The database.
    pub space: usize,
    /// The key.
    pub key: Box<[u8]>,
    /// What it looked like when it was watched.
    pub version: Version,
}

/// A client.
#[derive(Debug)]
pub struct Session {
    /// Never given twice.
    pub id: u64,
    /// Its address and ours.
    pub address: String,
    /// Ours.
    pub local_address: String,
    /// The database of its keys.
    pub db: usize,
    /// Whether it speaks RESP3.
    pub resp3: bool,
    /// Whether it may do more than authenticate.
    pub authenticated: bool,
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
    /// Keys whose change makes EXEC refuse.
    pub watched: Vec<Watched>,
    /// Whether to disconnect it once its replies are sent.
    pub is_closing: bool,
    /// Whether its replies wait until everything written so far is durable.
    pub must_sync: bool,
    /// Whether its next command waits for the end of a CLIENT PAUSE.
    pub is_paused: bool,
    /// Whether its next command found no room, and waits until there may be some.
    pub waits_for_space: bool,
    /// How often it waited without anything happening meanwhile.
    pub idle_waits: u32,
    /// When it came and last did something, in ms since 1970.
    pub connected_ms: u64,
    /// See above.
    pub active_ms: u64,
    /// The last command.
    pub last_command: &'static str,
    /// Bytes of its input and output buffers, as of the last turn.
    pub input_bytes: usize,
    /// See above.
    pub output_bytes: usize,
}

impl Session {
    /// A client that has said nothing yet.
    pub fn new(id: u64, address: String, local_address: String, authenticated: bool, now_ms: u64) -> Session {
        Session {
            id,
            address,
            local_address,
            db: 0,
            resp3: false,
            authenticated,
            name: Vec::new(),
            library: Vec::new(),
            library_version: Vec::new(),
            no_evict: false,
            no_touch: false,
            reply_mode: ReplyMode::On,
            multi: None,
            watched: Vec::new(),
            is_closing: false,
            must_sync: false,
            is_paused: false,
            waits_for_space: false,
            idle_waits: 0,
            connected_ms: now_ms,
            active_ms: now_ms,
            last_command: "NULL",
            input_bytes: 0,
            output_bytes: 0,
        }
    }

    /// Back to what a new connection is, as RESET does; authentication is lost unless none is needed.
    pub fn reset(&mut self, authenticated: bool) {
        self.db = 0;
        self.resp3 = false;
        self.authenticated = authenticated;
        self.name.clear();
        self.no_evict = false;
        self.no_touch = false;
        self.reply_mode = ReplyMode::On;
        self.multi = None;
        self.watched.clear();
    }

    /// Bytes of memory the transaction and watches take.
    pub fn memory_bytes(&self) -> usize {
        self.multi.as_ref().map_or(0, |multi| multi.bytes)
            + self.watched.iter().map(|watched| watched.key.len() + 48).sum::<usize>()
    }

    /// The line of CLIENT LIST.
    pub fn describe(&self, now_ms: u64) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!(
            "id={} addr={} laddr={} fd=0 name={} age={} idle={} flags={} db={} sub=0 psub=0 ssub=0 multi={} \
             watch={} qbuf={} qbuf-free=0 argv-mem=0 multi-mem={} rbs=0 rbp=0 obl={} oll=0 omem={} tot-mem={} \
             events=r cmd={} user=default redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local_address,
            text(&self.name),
            now_ms.saturating_sub(self.connected_ms) / 1000,
            now_ms.saturating_sub(self.active_ms) / 1000,
            if self.multi.is_some() { "x" } else { "N" },
            self.db,
            self.multi.as_ref().map_or(-1, |multi| multi.queue.len() as i64),
            self.watched.len(),
            self.input_bytes,
            self.multi.as_ref().map_or(0, |multi| multi.bytes),
            self.output_bytes,
            self.output_bytes,
            self.input_bytes + self.output_bytes + self.memory_bytes(),
            self.last_command,
            if self.resp3 { 3 } else { 2 },
            text(&self.library),
            text(&self.library_version),
        )
    }
}
