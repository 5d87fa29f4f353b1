//! What can go wrong, and what the caller should do about it.
//!
//! [`Error`] carries an [`ErrorKind`] that says what to do, and a message that says what was wrong and, for a limit,
//! what the limit is. Kinds are stable; messages are for people.

use std::fmt;

/// The result of every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller should do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call itself is wrong: a bad name, a type that does not fit, a value over a limit. Do not repeat it.
    Invalid,
    /// A table or field of that name does not exist.
    NotFound,
    /// A table or field of that name exists already, with another definition.
    Exists,
    /// What the write depended on has changed: look again and repeat.
    Conflict,
    /// The fast tier holds as much live data as it may. Reads and deletes go on; writes fail until space is freed.
    Full,
    /// There is no room at this moment, but gc may make some. Only with `Options::wait_for_space` off: wait
    /// with `Db::wait_for_space`, then repeat the call.
    Busy,
    /// What is asked for would have to be read from the disk, and the thread does not wait for that (`Db::at_hand_only`). Nothing was
    /// changed. Have `Db::take_missing` brought, then repeat the call.
    NotInMemory,
    /// Another process has the store open, or a backup of it is under way already.
    Locked,
    /// Bytes at rest are not what was written. The message says in which file, where, and what.
    Corrupted,
    /// The store was written by a version this build does not know.
    Version,
    /// The operating system refused a read, write or sync. After a failed sync the store takes no more writes.
    Io,
    /// The caller ended what it had asked for.
    Cancelled,
    /// The store was opened for reading only (`Options::read_only`).
    ReadOnly,
    /// The store was closed, or an earlier failed sync, or a batch that stopped half-way, closed it for writing.
    Closed,
}

/// An error: its kind, and a sentence for a person.
// One word, so that results of a word or two are returned in registers: reads return several for each field.
#[derive(Clone)]
pub struct Error(Box<Told>);

#[derive(Clone)]
struct Told {
    kind: ErrorKind,
    message: String,
}

impl Error {
    #[doc(hidden)]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Told { kind, message: message.into() }))
    }

    #[doc(hidden)]
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    #[doc(hidden)]
    pub fn corrupted(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Corrupted, message)
    }

    /// For a progress function that ends what it is told about: a backup (`Db::backup_with`).
    pub fn cancelled() -> Error {
        Error::new(ErrorKind::Cancelled, "it was cancelled")
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The sentence, without the kind.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("kind", &self.0.kind).field("message", &self.0.message).finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}

impl From<hedgerow_device::DeviceError> for Error {
    fn from(error: hedgerow_device::DeviceError) -> Error {
        use hedgerow_device::DeviceError as E;
        let kind = match &error {
            E::Full { .. } | E::TargetFull { .. } => ErrorKind::Full,
            E::Locked { .. } => ErrorKind::Locked,
            E::Closed { .. } => ErrorKind::Closed,
            _ => ErrorKind::Io,
        };
        Error::new(kind, error.to_string())
    }
}
