//! Why a command could not be done, and how Redis would say so.
//!
//! Owns: the error texts shared by several commands and the translation of the engine's errors.

use std::borrow::Cow;

use hedgerow::{Error, ErrorKind};

/// The result of a command or of a step of one.
pub type Outcome<T = ()> = Result<T, Failure>;

/// An error reply: a code in capitals, then a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(Cow<'static, str>);

impl Failure {
    /// The key holds a value of another type.
    pub const WRONG_TYPE: Failure =
        Failure::text("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// The arguments do not fit the command's grammar.
    pub const SYNTAX: Failure = Failure::text("ERR syntax error");
    /// An argument or a stored string is not an integer.
    pub const NOT_AN_INTEGER: Failure = Failure::text("ERR value is not an integer or out of range");
    /// An argument or a stored string is not a floating-point number.
    pub const NOT_A_FLOAT: Failure = Failure::text("ERR value is not a valid float");
    /// A sum left the range of 64 bits.
    pub const OVERFLOW: Failure = Failure::text("ERR increment or decrement would overflow");
    /// RENAME, OBJECT and others need the key.
    pub const NO_SUCH_KEY: Failure = Failure::text("ERR no such key");
    /// `SELECT`, `COPY`: no such database.
    pub const DB_INDEX: Failure = Failure::text("ERR DB index is out of range");
    /// A string would grow over the limit.
    pub const TOO_LONG: Failure =
        Failure::text("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

    /// The store was opened for reading only. The text is what a replica of Redis says, so that clients know it.
    pub const READ_ONLY: Failure = Failure::text("READONLY You can't write against a read only replica.");

    /// What it needs only a tiered store has.
    pub const NO_ORDER: Failure = Failure::text(
        "ERR this store keeps rows as pairs: it has no order of rows, no snapshots and no log, which the command needs",
    );
    /// A command looks at more than may be in memory for it ([`limits::AT_HAND_BYTES_MAX`](super::limits::AT_HAND_BYTES_MAX)).
    pub const TOO_MUCH_AT_HAND: Failure =
        Failure::text("ERR the rows that the command looks at have more than 256 MiB together");
    /// What is asked for is that something is durable, and the store keeps nothing.
    pub const NOT_DURABLE: Failure = Failure::text(
        "ERR this store is not made durable by the server when a command asks for it: see INFO, durability",
    );
    /// A command, or a transaction, that depends on several keys, or changes them, where a store changes one row at a time.
    pub const CROSS_SLOT: Failure = Failure::text(
        "CROSSSLOT this store changes one key at a time: a command or transaction that changes a key can have no other keys",
    );

    /// A transaction, where a store of pairs changes several rows at a time.
    pub const MIXES_ROWS: Failure = Failure::text(
        "CROSSSLOT a transaction of this store that changes a key can have no command that looks at keys in general, and none that clears them behind one with a key",
    );

    /// Never seen by a client: the command is tried again.
    pub const NOT_YET: Failure = Failure::text("ERR what it needs is not there at this moment");

    /// Never seen by a client: its connection is closed.
    pub const CROSS_PROTOCOL: Failure = Failure::text("ERR this is no web server");

    /// A fixed text.
    pub const fn text(text: &'static str) -> Failure {
        Failure(Cow::Borrowed(text))
    }

    /// A text made for the occasion.
    pub fn new(text: String) -> Failure {
        Failure(Cow::Owned(text))
    }

    /// The store takes no more writes, and makes nothing durable any more.
    pub fn writes_refused(why: &str) -> Failure {
        Failure::new(format!("MISCONF writes are refused: {why}"))
    }

    /// The reply's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether there was no room for it, which there may be later.
    pub fn is_for_want_of_room(&self) -> bool {
        self.0.starts_with("OOM ")
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match error.kind() {
            ErrorKind::Full | ErrorKind::Busy => "OOM",
            ErrorKind::Io | ErrorKind::Closed => "MISCONF",
            // Of all others nothing was done.
            ErrorKind::Indeterminate => "ERR it may have been done, or not:",
            _ => "ERR",
        };
        Failure::new(format!("{code} {error}"))
    }
}

/// An argument for an error text: cut short, control bytes escaped.
pub fn quote(argument: &[u8]) -> String {
    let cut = argument.get(..128).unwrap_or(argument);
    match std::str::from_utf8(cut) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_string(),
        _ => cut.escape_ascii().to_string(),
    }
}
