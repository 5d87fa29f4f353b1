//! Room for sorted tables: how much of the limit and of the disk is left, and what of it is kept for merges.
//!
//! Owns what is reserved by those who write files. Promises that they keep to the limit together, and that moves and loads leave merges the room they need. Must not know what is written.
//!
//! **A limit below what is there**, as a store may be opened with: nothing would ever become less, for what makes room takes some before it gives any back. So merges, and tombstones that move, may go beyond what
//! is there by as much as is kept for them elsewhere, four slices; and what is there is the least that was there since, so that what they gave back is not taken again. All else is refused until so much has gone that the limit
//! is kept to, and has the room for merges again.

use super::{Runs, TARGET_BYTES, TARGET_BYTES_MIN};
use crate::sync::atomic::Ordering;
use crate::{Error, ErrorKind, Result};

/// For what room is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoomFor {
    /// Rows that move or are loaded.
    Rows,
    /// Tombstones that move: what makes room, once they are merged.
    Tombstones,
    /// What takes the place of as much or more.
    Merges,
}

/// What is kept for merges where sorted tables may take so many bytes.
fn kept_of(bytes_max: u64) -> u64 {
    (bytes_max / 8).min(4 * TARGET_BYTES)
}

/// The same where there is an excess, if that is more than 0.
fn kept_with(excess: u64, bytes_max: u64) -> u64 {
    match excess {
        0 => kept_of(bytes_max),
        // Files are as large as they were made where there was more room, and each goes as a whole.
        excess => excess.min(4 * TARGET_BYTES),
    }
}

impl Runs {
    /// Reserves so many bytes for a file that is written, so that all who write at the same time keep to the limit together; to be [released](Runs::release), or taken by the file.
    ///
    /// # Errors
    /// `Full` if they would be too many.
    pub(in crate::runs) fn reserve(&self, bytes: u64, purpose: RoomFor) -> Result<()> {
        let (most, kept) = self.limit(purpose);
        let with = |there: u64| there.checked_add(bytes).filter(|&bytes| bytes <= most - kept);
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with) {
            Ok(_) => Ok(()),
            Err(there) => Err(self.no_room(there, bytes, (most, kept))),
        }
    }

    /// How many bytes files may take, and how many of these are to be left.
    fn limit(&self, purpose: RoomFor) -> (u64, u64) {
        let (most, excess) = (self.settings.bytes_max, self.excess());
        let kept = kept_with(excess, most);
        let with_excess = if excess > 0 { most.max(excess.saturating_add(kept)) } else { most };
        match purpose {
            RoomFor::Rows => (most, kept.min(most)),
            RoomFor::Tombstones => (with_excess, kept / 2),
            RoomFor::Merges => (with_excess, 0),
        }
    }

    /// The least that was there since the store was opened with more than the limit, as long as that is not worked off; else 0.
    fn excess(&self) -> u64 {
        self.excess.load(Ordering::Relaxed)
    }

    /// Whether the store was opened with more than the limit, and that is not worked off.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.excess() > 0
    }

    /// What was there when the store was opened, as [`Runs::excess`] has it.
    pub(super) fn excess_of(bytes: u64, bytes_max: u64) -> u64 {
        if bytes > bytes_max { bytes } else { 0 }
    }

    /// Files have gone. For who holds the lock of edits.
    pub(super) fn lower_excess(&self) {
        let excess = self.excess();
        if excess > 0 {
            let (there, most) = self.bytes();
            // Files from before are as long as they were made, and a merge of one writes before it goes.
            let longest = self.current().files().iter().filter_map(|sst| sst.file_bytes().ok()).max();
            let kept = kept_of(most).max(2 * longest.unwrap_or(0));
            let is_worked_off = there <= most.saturating_sub(kept);
            self.excess.store(if is_worked_off { 0 } else { excess.min(there) }, Ordering::Relaxed);
        }
    }

    /// Bytes of the limit that moves and loads leave to merges: a merge writes before anything goes, and were there no room for it, what is garbage would stay for good.
    pub(crate) fn kept_for_merges(&self) -> u64 {
        kept_with(self.excess(), self.settings.bytes_max)
    }

    /// A file takes no more records once it has so many bytes, and a slice of a merge writes one: where little is kept for merges, less. By the limit, whatever is there: what is written
    /// while that is worked off is there afterwards.
    pub(in crate::runs) fn target_bytes(&self) -> u64 {
        (kept_of(self.settings.bytes_max) / 4).clamp(TARGET_BYTES_MIN, TARGET_BYTES)
    }

    /// Files were written anew alone, and there was no room for it: whether because of the limit, of which so much was left for their so many bytes. Only where that is scarce are they left alone: a disk
    /// that refuses what it seemed to have room for would be asked without end.
    pub(in crate::runs) fn lacked_room(
        &self,
        files: impl Iterator<Item = u64>,
        room: u64,
        bytes: u64,
    ) -> bool {
        let is_scarce = self.is_tight() || self.is_exceeded() && room < bytes;
        if is_scarce || !self.is_exceeded() {
            self.merges.lacked_room(files, room);
        }
        is_scarce
    }

    /// Whether files have room for less than a slice and what makes room after it.
    pub(crate) fn is_tight(&self) -> bool {
        self.room() < (2 * self.target_bytes()).min(self.kept_for_merges() / 2)
    }

    /// Whether what makes room is to be done before all else.
    pub(in crate::runs) fn wants_room(&self) -> bool {
        self.is_exceeded() || self.is_tight()
    }

    /// Whether there is hardly room for a slice.
    pub(in crate::runs) fn lacks_room_for_slice(&self) -> bool {
        self.room() < (self.target_bytes() / 4 * 5).min(self.kept_for_merges() / 16 * 5)
    }

    /// Bytes that merges may still take, of the limit and of the disk.
    pub(in crate::runs) fn room(&self) -> u64 {
        self.room_for(RoomFor::Merges)
    }

    /// Bytes that files may still take, of the limit and of the disk.
    fn room_for(&self, purpose: RoomFor) -> u64 {
        let (most, kept) = self.limit(purpose);
        most.saturating_sub(self.bytes().0).min(self.disk_room()).saturating_sub(kept)
    }

    fn disk_room(&self) -> u64 {
        self.opened.load().as_ref().and_then(|files| files.tier.free_bytes()).unwrap_or(u64::MAX)
    }

    /// So many bytes of rows may move now, as it looks.
    pub(crate) fn room_to_move(&self) -> u64 {
        self.room_for(RoomFor::Rows)
    }

    /// `Full` if so many bytes more that move would leave too little, as it looks now.
    pub(crate) fn check_room_to_move(&self, bytes: u64, purpose: RoomFor) -> Result<()> {
        if bytes <= self.room_for(purpose) {
            return Ok(());
        }
        let (there, (most, kept)) = (self.bytes().0, self.limit(purpose));
        if there.saturating_add(bytes) > most - kept {
            return Err(self.no_room(there, bytes, (most, kept)));
        }
        let free = self.disk_room();
        Err(Error::new(
            ErrorKind::Full,
            format!(
                "sorted tables would take {bytes} bytes more; their disk has {free} free, and {kept} of them are kept for merges"
            ),
        ))
    }

    /// Gives back what was reserved and not taken.
    pub(crate) fn release(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[cold]
    fn no_room(&self, there: u64, bytes: u64, (most, kept): (u64, u64)) -> Error {
        let limit = self.settings.bytes_max;
        let mut message = format!(
            "sorted tables take {there} bytes and would take {bytes} more; the limit is {limit} (capacity_bytes_max)"
        );
        if most > limit {
            message.push_str(&format!("; what makes room may take {most} until there is no more than that"));
        }
        if kept > 0 {
            message.push_str(&format!("; {kept} of it are kept for merges"));
        }
        Error::new(ErrorKind::Full, message)
    }
}
