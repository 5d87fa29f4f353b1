//! What can go wrong, and what the caller should do about it.
//!
//! [`Error`] carries an [`ErrorKind`] that says what to do, and a message that says what was wrong and, for a limit,
//! what the limit is. Kinds are stable; messages are for people. What the operating system said is in the message, and for programs
//! the [source](std::error::Error::source); which part of a batch was refused is [`FailedWrite`].

use std::fmt;
use std::io;
use std::sync::Arc;

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
    /// with `Db::wait_for_space`, then repeat the call. Of a session of a [backend](crate::backend): as many commands are under way as may be.
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
    /// This kind of store does not do that. Nothing was changed.
    Unsupported,
    /// The device or machine that has it is gone, or does not answer. Nothing was changed. It may come back.
    Unavailable,
    /// The device or machine went away before it answered: the change may have happened, or may still. Look before repeating it.
    Indeterminate,
    /// The store was closed, or an earlier failed sync, or a batch that stopped half-way, closed it for writing.
    Closed,
}

/// An error: its kind, and a sentence for a person.
// One word, so that results of a word or two are returned in registers: reads return several for each field.
#[derive(Clone)]
pub struct Error(Box<Detail>);

#[derive(Clone)]
struct Detail {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<io::Error>>,
    failed_write: Option<FailedWrite>,
}

/// Which part of a batch was refused, and with it all of the batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedWrite {
    /// The table's name.
    pub table: String,
    /// The row's key, in bytes.
    pub key: Vec<u8>,
    /// How many parts were added to the batch before it, requirements included.
    pub position: usize,
}

/// Bytes of a key that are shown in the message.
const KEY_BYTES_SHOWN: usize = 64;

impl Error {
    #[doc(hidden)]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Detail { kind, message: message.into(), source: None, failed_write: None }))
    }

    #[doc(hidden)]
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    #[doc(hidden)]
    pub fn corrupted(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Corrupted, message)
    }

    /// The operating system refused what `message` says; what it said is added to it.
    #[doc(hidden)]
    pub fn io(message: impl fmt::Display, source: io::Error) -> Error {
        let message = format!("{message}: {source}");
        Error(Box::new(Detail {
            kind: ErrorKind::Io,
            message,
            source: Some(Arc::new(source)),
            failed_write: None,
        }))
    }

    /// For a progress function that ends what it is told about: a backup (`Db::backup_with`).
    pub fn cancelled() -> Error {
        Error::new(ErrorKind::Cancelled, "it was cancelled")
    }

    /// The error of a part of a batch: it says which. What is not about that part, as that the store is closed, stays as it is.
    #[doc(hidden)]
    #[cold]
    pub fn in_batch(mut self, table: &str, key: &[u8], position: usize) -> Error {
        use ErrorKind::{Conflict, Corrupted, Exists, Invalid, NotFound, Unsupported, Version};
        let is_about_it =
            matches!(self.kind(), Conflict | Corrupted | Exists | Invalid | NotFound | Unsupported | Version);
        if !is_about_it || self.0.failed_write.is_some() {
            return self;
        }
        let shown = key[..key.len().min(KEY_BYTES_SHOWN)].escape_ascii();
        let cut = if key.len() > KEY_BYTES_SHOWN { "..." } else { "" };
        let message = self.message();
        self.0.message =
            format!("part {position} of the batch, row \"{shown}\"{cut} of table {table:?}: {message}");
        let (table, key) = (table.to_owned(), key.to_owned());
        self.0.failed_write = Some(FailedWrite { table, key, position });
        self
    }

    /// Which part of a batch was refused, if the error is about one.
    pub fn failed_write(&self) -> Option<&FailedWrite> {
        self.0.failed_write.as_ref()
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

/// The source is the [`io::Error`] of the operating system, where it refused something.
impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<hedgerow_device::DeviceError> for Error {
    fn from(error: hedgerow_device::DeviceError) -> Error {
        use hedgerow_device::DeviceError as E;
        let kind = match &error {
            E::Full { .. } | E::TargetFull { .. } => ErrorKind::Full,
            E::Locked { .. } => ErrorKind::Locked,
            E::Closed { .. } => ErrorKind::Closed,
            E::ReadOnly { .. } => ErrorKind::ReadOnly,
            _ => ErrorKind::Io,
        };
        let message = error.to_string();
        let source = match error {
            E::Full { source, .. } => source,
            E::TargetFull { source, .. } | E::Io { source, .. } => Some(source),
            _ => None,
        };
        Error(Box::new(Detail { kind, message, source: source.map(Arc::new), failed_write: None }))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::path::PathBuf;

    use hedgerow_device::DeviceError;

    use super::*;

    fn system_error(error: &Error) -> Option<i32> {
        error.source().and_then(|source| source.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error)
    }

    /// `ENOSPC` and `EIO` of Linux.
    const NO_SPACE: i32 = 28;
    const IO: i32 = 5;

    #[test]
    fn what_the_system_said_is_the_source() {
        let path = PathBuf::from("fast");
        let said = || io::Error::from_raw_os_error(IO);
        let refused: Error = DeviceError::Io { what: "sync", path: path.clone(), source: said() }.into();
        assert_eq!((refused.kind(), system_error(&refused)), (ErrorKind::Io, Some(IO)));
        assert!(refused.message().contains(&said().to_string()), "{refused}");
        let source = Some(io::Error::from_raw_os_error(NO_SPACE));
        let full: Error = DeviceError::Full { wanted: 2, limit: 1, source }.into();
        assert_eq!((full.kind(), system_error(&full.clone())), (ErrorKind::Full, Some(NO_SPACE)));
        let own = Error::io("cannot make it", said());
        assert_eq!((own.kind(), system_error(&own)), (ErrorKind::Io, Some(IO)));
        assert_eq!(own.message(), format!("cannot make it: {}", said()));
        let limit: Error = DeviceError::Full { wanted: 2, limit: 1, source: None }.into();
        assert!(limit.source().is_none() && Error::invalid("a bad call").source().is_none());
    }

    #[test]
    fn a_tier_that_is_only_read_refuses_as_such() {
        let error: Error = DeviceError::ReadOnly { path: PathBuf::from("fast") }.into();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
    }

    #[test]
    fn a_part_of_a_batch_is_named_and_its_key_cut() {
        let error = Error::invalid("it is wrong").in_batch("users", b"a\n\"", 3);
        assert_eq!(error.message(), r#"part 3 of the batch, row "a\n\"" of table "users": it is wrong"#);
        let long = [b'k'; 65_536];
        let error = Error::new(ErrorKind::Conflict, "x").in_batch("t", &long, 0);
        assert!(error.message().len() < 200, "{error}");
        let failed = error.failed_write().expect("it is about a part");
        assert_eq!((failed.table.as_str(), failed.key.as_slice(), failed.position), ("t", &long[..], 0));
        // Who wraps it again knows less.
        assert_eq!(error.clone().in_batch("u", b"other", 9).failed_write(), Some(failed));
        for kind in [ErrorKind::Closed, ErrorKind::NotInMemory, ErrorKind::Full] {
            let error = Error::new(kind, "not about it").in_batch("t", b"k", 0);
            assert_eq!((error.message(), error.failed_write()), ("not about it", None));
        }
    }

    /// Results of a word or two are returned in registers.
    #[test]
    fn an_error_is_one_word() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
