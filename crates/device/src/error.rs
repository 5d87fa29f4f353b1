//! What the media can refuse, and with which numbers.
//!
//! Owns [`DeviceError`] and [`SyncFailure`]. Promises that every refusal names the limit or the path it ran into. Knows nothing of rows.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A sync that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncFailure {
    /// Which call on what, and what the operating system said.
    pub message: String,
    /// When, in ms since 1970.
    pub at_ms: u64,
}

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// A refusal of a medium.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no room: the configured limit, the disk, a quota or the process's file-size limit is reached.
    /// Nothing was changed; what is stored stays readable and writable.
    Full {
        /// Total length asked for, in bytes.
        wanted: u64,
        /// Length that can be had, in bytes: the limit itself, or the present length where the disk refused.
        limit: u64,
        /// What the operating system said; `None` where the configured limit refused.
        source: Option<io::Error>,
    },
    /// There is no room on the disk that a copy, or a file of the capacity tier, is written to. What is there already is untouched.
    TargetFull {
        /// The file.
        path: PathBuf,
        /// Length it would have had, in bytes; 0 where that is not known.
        wanted: u64,
        /// What the operating system said.
        source: io::Error,
    },
    /// Another handle, of this process or another, has the file open.
    Locked {
        /// The tier's file.
        path: PathBuf,
        /// Who holds it, for a person: `process 4711 (hedgerow)`, or that it is unknown.
        holder: String,
    },
    /// The operating system refused. After a failed `persist` the bytes of the range may never reach the medium,
    /// even where a later `persist` succeeds: stop writing, and recover by opening anew.
    Io {
        /// What was being done, as in "could not {what}".
        what: &'static str,
        /// The tier's file, or the name of a medium without one.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// An earlier sync failed. What is on the medium is not known; nothing more is made durable until it is opened anew.
    Closed {
        /// The sync that failed.
        failure: SyncFailure,
    },
    /// The tier was opened for reading only.
    ReadOnly {
        /// The tier's file.
        path: PathBuf,
    },
}

impl DeviceError {
    pub(crate) fn io(what: &'static str, path: &Path, source: io::Error) -> DeviceError {
        DeviceError::Io { what, path: path.to_path_buf(), source }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Full { wanted, limit, source: None } => {
                write!(f, "the fast tier is full: {wanted} bytes wanted, the limit is {limit} bytes")
            }
            DeviceError::Full { wanted, limit, source: Some(source) } => {
                write!(
                    f,
                    "no room for the fast tier: {wanted} bytes wanted, {limit} bytes are to be had: {source}"
                )
            }
            DeviceError::TargetFull { path, source, .. } => {
                write!(f, "no room on the disk for {}: {source}", path.display())
            }
            DeviceError::Locked { path, holder } => {
                write!(f, "{} is in use by {holder}", path.display())
            }
            DeviceError::Io { what, path, source } => {
                write!(f, "could not {what} {}: {source}", path.display())
            }
            DeviceError::Closed { failure } => {
                write!(
                    f,
                    "an earlier sync failed ({}), so what is on the medium is not known; the store takes no more writes until it is opened again",
                    failure.message
                )
            }
            DeviceError::ReadOnly { path } => write!(f, "{} was opened for reading only", path.display()),
        }
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DeviceError::Io { source, .. }
            | DeviceError::TargetFull { source, .. }
            | DeviceError::Full { source: Some(source), .. } => Some(source),
            _ => None,
        }
    }
}
