//! Who asks the medium to sync, and what becomes of a refusal.
//!
//! Owns [`SyncGate`], through which every sync of a tier goes. Promises that once a sync has failed no
//! later one succeeds, and none that was under way: after a failure the kernel may have dropped what it could not write, so
//! that trying again proves nothing. Must not know what is synced, or how.
//!
//! The kernel tells a failed write-back once to each opened file. Were two askers to share one, the first to ask would
//! take from the second the error of the second's own pages. So each [`Asker`] has an opened file of its own, calls of one
//! asker follow one another, and a failure is noted before the next call begins.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::clock::Clock;
use crate::error::{DeviceError, Result, SyncFailure};

/// Who asks for a sync. Each has an opened file of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// For a range: the opened file that is mapped, by `msync`.
    Range = 0,
    /// For everything: the opened file that holds the lock, by `fdatasync`.
    Whole = 1,
}

/// The one way to a sync.
#[derive(Debug, Default)]
pub(crate) struct SyncGate {
    has_failed: AtomicBool,
    failure: OnceLock<SyncFailure>,
    turns: [Mutex<()>; 2],
}

impl SyncGate {
    /// Whether a sync has failed.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// The first sync that failed.
    pub(crate) fn failure(&self) -> Option<&SyncFailure> {
        self.failure.get()
    }

    /// `Err` once a sync has failed.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failure() {
            None => Ok(()),
            Some(failure) => Err(DeviceError::Closed { failure: failure.clone() }),
        }
    }

    /// Does `sync`, alone among those of `asker`.
    pub(crate) fn pass(&self, asker: Asker, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let _turn = self.turns[asker as usize].lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        if let Err(error) = sync() {
            // PERSIST: before this asker's next call, which the kernel would tell nothing of it.
            self.failure
                .get_or_init(|| SyncFailure { message: error.to_string(), at_ms: Clock::system().now_ms() });
            self.has_failed.store(true, Ordering::Release);
            return Err(error);
        }
        // PERSIST: another asker's failure while this one was under way counts for both.
        self.check()
    }
}
