//! Which files are read so much that memory is to have all of them.
//!
//! Owns [`FileReads`]. Promises that it costs a load of a number once that is known. Must not know how much memory there is.

use crate::sync::atomic::{AtomicU32, Ordering};

/// With so many blocks read of a file the rest is worth reading: of one of 64 MiB they took about a twentieth of the time that all of it does.
const MANY: u32 = 32;
/// Memory had all of the file once, or that was tried.
const HAD_ALL: u32 = 1 << 31;

/// How many blocks of a file were read because the cache of blocks had them not.
#[derive(Debug, Default)]
pub(super) struct FileReads(AtomicU32);

impl FileReads {
    #[inline]
    pub(super) fn add(&self) {
        if !self.are_many() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether they are many.
    #[inline]
    pub(super) fn are_many(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !HAD_ALL >= MANY
    }

    /// How many they are, up to many.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & !HAD_ALL
    }

    /// Whether memory had all of the file, or that was tried. If it has gone from memory since, that is too small for it: it is not brought again.
    pub(super) fn all_was_in_memory(&self) -> bool {
        self.0.load(Ordering::Relaxed) & HAD_ALL != 0
    }

    pub(super) fn have_all_in_memory(&self) {
        self.0.fetch_or(HAD_ALL, Ordering::Relaxed);
    }
}
