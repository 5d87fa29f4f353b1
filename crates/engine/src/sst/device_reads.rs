//! Which files are read so much that memory is to have all of them.
//!
//! Owns [`DeviceReads`]. Promises that it costs a load of a number once that is known. Must not know how much memory there is.

use crate::sync::atomic::{AtomicU32, Ordering};

/// With so many blocks read of a file the rest is worth reading: of one of 64 MiB they took about a twentieth of the time that all of it does.
const READS_OF_MANY: u32 = 32;
/// The file was brought into memory, or that was tried.
const BROUGHT: u32 = u32::MAX;

/// How many blocks of a file were read because the cache of blocks had them not.
#[derive(Debug, Default)]
pub(super) struct DeviceReads(AtomicU32);

impl DeviceReads {
    #[inline]
    pub(super) fn add(&self) {
        if self.0.load(Ordering::Relaxed) < READS_OF_MANY {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether they are many, and nobody brought the whole file into memory for them.
    pub(super) fn are_many(&self) -> bool {
        (READS_OF_MANY..BROUGHT).contains(&self.0.load(Ordering::Relaxed))
    }

    /// What was brought once is not brought again: if it is gone from memory, that is too small for it.
    pub(super) fn have_brought_all(&self) {
        self.0.store(BROUGHT, Ordering::Relaxed);
    }
}
