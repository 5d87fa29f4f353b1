//! Room for sorted tables: how much of the limit and of the disk is left, and what of it is kept for merges.
//!
//! Owns what is reserved by those who write files. Promises that they keep to the limit together, and that moves and loads leave merges the room they need. Must not know what is written.

use super::{Runs, TARGET_BYTES, TARGET_BYTES_MIN};
use crate::sync::atomic::Ordering;
use crate::{Error, ErrorKind, Result};

impl Runs {
    /// Reserves so many bytes for a file that is written, so that all who write at the same time keep to the limit together, and leave `kept` bytes of it; to be
    /// [released](Runs::release), or taken by the file.
    ///
    /// # Errors
    /// `Full` if they would be too many.
    pub(in crate::runs) fn reserve(&self, bytes: u64, kept: u64) -> Result<()> {
        let most = self.settings.bytes_max;
        let with = |there: u64| there.checked_add(bytes).filter(|&bytes| bytes <= most - kept);
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with) {
            Ok(_) => Ok(()),
            Err(there) => Err(no_room(there, bytes, most, kept)),
        }
    }

    /// Bytes of the limit that moves and loads leave to merges: a merge writes before anything goes, and were there no room for it, what is garbage would stay for good.
    pub(crate) fn kept_for_merges(&self) -> u64 {
        (self.settings.bytes_max / 8).min(4 * TARGET_BYTES)
    }

    /// A file takes no more records once it has so many bytes, and a slice of a merge writes one: where little is kept for merges, less.
    pub(in crate::runs) fn target_bytes(&self) -> u64 {
        (self.kept_for_merges() / 4).clamp(TARGET_BYTES_MIN, TARGET_BYTES)
    }

    /// Whether files have room for less than a slice and what makes room after it.
    pub(crate) fn is_tight(&self) -> bool {
        self.room() < (2 * self.target_bytes()).min(self.kept_for_merges() / 2)
    }

    /// Whether there is hardly room for a slice.
    pub(in crate::runs) fn lacks_room_for_slice(&self) -> bool {
        self.room() < (self.target_bytes() / 4 * 5).min(self.kept_for_merges() / 16 * 5)
    }

    /// Bytes that files may still take, of the limit and of the disk.
    pub(in crate::runs) fn room(&self) -> u64 {
        let (there, most) = self.bytes();
        let of_disk =
            self.opened.load().as_ref().and_then(|files| files.tier.free_bytes()).unwrap_or(u64::MAX);
        most.saturating_sub(there).min(of_disk)
    }

    /// So many bytes of rows may move now, as it looks.
    pub(crate) fn room_to_move(&self) -> u64 {
        self.room().saturating_sub(self.kept_for_merges())
    }

    /// `Full` if so many bytes of moved rows more would leave less than `kept`, as it looks now.
    pub(crate) fn check_room_to_move(&self, bytes: u64, kept: u64) -> Result<()> {
        if bytes <= self.room().saturating_sub(kept) {
            return Ok(());
        }
        let (there, most) = self.bytes();
        if there.saturating_add(bytes) > most - kept {
            return Err(no_room(there, bytes, most, kept));
        }
        Err(Error::new(
            ErrorKind::Full,
            format!(
                "sorted tables would take {bytes} bytes more; their disk has {} free, and {kept} of them are kept for merges",
                self.room()
            ),
        ))
    }

    /// Gives back what was reserved and not taken.
    pub(crate) fn release(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cold]
fn no_room(there: u64, bytes: u64, most: u64, kept: u64) -> Error {
    let limit = format!(
        "sorted tables take {there} bytes and would take {bytes} more; the limit is {most} (capacity_bytes_max)"
    );
    let of_it = if kept > 0 { format!("; {kept} of it are kept for merges") } else { String::new() };
    Error::new(ErrorKind::Full, limit + &of_it)
}
