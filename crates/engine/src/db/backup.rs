//! Backups: a copy of an open store as it is at one moment, while it is read and written.
//!
//! Owns [`Db::backup`], [`restore`], and what keeps the segments that are still to be copied where they are. The copy is a
//! physical one ([0016](../../../../docs/decisions/0016-backup.md)): every segment to the place that it has, every record
//! verified on the way, all of it read again at the end. Promises a prefix of the writes, with batches whole; that writers
//! wait for one sync at its beginning like any other, and then for no copy but, where there is no room left, that of a segment
//! which gc has emptied; and that memory does not grow with the store.
//! Must not know the bytes of records (`log/copy.rs`) nor the order of the steps in the directory (`target.rs`).
//!
//! A backup:
//!
//! 1. From now on nothing is freed, and no row is merged in place. Who was at it has ended.
//! 2. With the runs and then the catalog held still: the sequence, when all up to it is published, the catalog, and the sorted tables that count; and the
//!    segments in use and how far they are written. That is what a kill would leave at this moment: a row that moves before it is in the sorted tables, one that moves
//!    after it in a segment which stays.
//! 3. From now on only these segments stay, each until it has been copied.
//! 4. PERSIST: everything durable. What the backup holds the store does not lose, so a segment of the same number and
//!    length is the same the next time.
//! 5. One segment after the other is verified and copied; first those that gc waits for, so that a store with
//!    little room goes on. What is younger than the sequence is left out.
//! 6. Sorted tables, which nobody changes, get one more name, or are copied; each stays until then.
//! 7. The root, all of it verified once more, and the name that makes it a store.
//!
//! ```
//! # fn main() -> hedgerow::Result<()> {
//! # let dir = std::env::temp_dir().join(format!("hedgerow-doc-backup-{}", std::process::id()));
//! # let (data, saved, anew) = (dir.join("data"), dir.join("saved"), dir.join("anew"));
//! use hedgerow::{Db, Schema, Type, backup, row};
//! let db = Db::open(&data)?;
//! let users = db.create_table("users", Schema::new().field("name", Type::String))?;
//! users.put(b"42", &row! { name: "Ada" })?;
//! let report = db.backup(&saved)?;
//! assert_eq!(report.records, 2); // the table, and the row
//! users.delete(b"42")?;
//!
//! backup::restore(&saved, &anew, |_| Ok(()))?;
//! assert!(Db::open(&anew)?.table("users")?.exists(b"42")?);
//! # std::fs::remove_dir_all(dir).ok();
//! # Ok(())
//! # }
//! ```

mod manifest;
mod sorted_tables;
mod target;

use std::path::Path;

use hedgerow_device::names_in;

use super::Db;
use super::catalog::Catalog;
use super::engine::Engine;
use super::identity::PARTIAL_FILE;
use super::inspect::View;
use super::pins::{BackupPins, Pinning};
use crate::log::{Log, SegmentToCopy};
use crate::runs::{Runs, RunsToCopy};
use crate::scheduler::gc_state::GcState;
use crate::sst::Sst;
use crate::{Capacity, Error, ErrorKind, Result};
use sorted_tables::Placed;
use target::{Added, Purpose, Target, Whole};

/// The manifest of a backup.
const MANIFEST_FILE: &str = "backup";

/// How far a backup, or a restore, has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// So many bytes of so many have been copied, or were there already.
    Copying(u64, u64),
    /// So many bytes of so many of the copy have been read again.
    Verifying(u64, u64),
}

/// What a backup, or a restore, did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The last write in it: all up to this sequence are, and none after.
    pub sequence: u64,
    /// Segments in it.
    pub segments: u64,
    /// Those of them that an earlier backup into the directory had left there.
    pub segments_kept: u64,
    /// Bytes that were copied, of segments and of sorted tables.
    pub bytes_copied: u64,
    /// Records verified in its segments, overwritten ones included.
    pub records: u64,
    /// Sorted tables in it, each verified to its last byte.
    pub sorted_tables: u64,
    /// Those of them that were there already.
    pub sorted_tables_kept: u64,
    /// Those of them that are the store's own files under one more name, and take no room as long as the store has them.
    pub sorted_tables_linked: u64,
    /// Bytes of those.
    pub bytes_linked: u64,
}

impl Db {
    /// Makes a backup of the store, which may be in use, in the directory `to`: the store as it is at one moment, all writes
    /// up to it and none after, batches whole. Writers go on. A finished backup is a store: [`Db::open`] opens it (then it is
    /// no longer one to go on with), [`View`](crate::inspect::View) looks at it, [`restore`] copies it. Its sorted tables are in the directory `capacity` in `to`: the store's own
    /// files under one more name if they are on the same file system, else copies. Neither is ever written to, and what one store removes the other keeps.
    ///
    /// With an earlier backup of this store in the directory, finished or not, only what has changed is copied. While that
    /// goes on the earlier one is gone: keep two directories in turn.
    ///
    /// # Errors
    /// `Exists` if the directory holds anything else's data; `Locked` if a backup of this store, or into this directory, is
    /// under way; `Corrupted` if a record of the store, or the finished copy, does not verify; `Full` if the disk of the
    /// directory is; `Io`; `Closed` after a failed sync. The store itself is untouched, and the next call goes on.
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<Summary> {
        self.backup_with(to, |_| Ok(()))
    }

    /// [`Db::backup`], telling how far it is. An error that `progress` returns ends the backup, with that error:
    /// [`Error::cancelled`] is meant for that.
    ///
    /// # Errors
    /// As [`Db::backup`], and those of `progress`.
    pub fn backup_with(
        &self,
        to: impl AsRef<Path>,
        mut progress: impl FnMut(Progress) -> Result<()>,
    ) -> Result<Summary> {
        let Engine { log, catalog, runs, backups, gc, .. } = &*self.engine;
        Source { log, catalog, runs, backups, gc }.copy_to(to.as_ref(), &mut progress)
    }
}

/// What a backup needs of the store.
struct Source<'e> {
    log: &'e Log,
    catalog: &'e Catalog,
    runs: &'e Runs,
    backups: &'e BackupPins,
    gc: &'e GcState,
}

impl<'e> Source<'e> {
    /// Steps 1 to 4 of the module.
    fn begin(&self) -> Result<(Pinning<'e>, Moment)> {
        let pinning = self.backups.take()?;
        // Gc cycles share it, and who merges in place has it alone: those that had not seen the pins have ended.
        drop(self.gc.lock.write());
        // A delta that was written over a row which has just moved must not be there without it; nor a row that was written after the sequence, and has moved since.
        let edits = self.runs.hold_off_edits();
        // No schema changes before the segments are listed: a copy of an old row under a newer one would be in them.
        let moment = self.catalog.at_barrier(self.log, |sequence, catalog| {
            let segments = self.log.segments_to_copy();
            let source = (self.log.root().store_id, sequence);
            let runs = edits.to_copy(source, |table| self.catalog.by_id(table).is_some());
            Moment { sequence, catalog, segments, runs }
        });
        drop(edits);
        pinning.narrow(&moment.segments);
        self.log.checkpoint()?;
        Ok((pinning, moment))
    }

    fn copy_to(&self, to: &Path, progress: &mut dyn FnMut(Progress) -> Result<()>) -> Result<Summary> {
        // What is refused leaves the backup that is there as it is: from here on it is none until it is whole again.
        let (pinning, mut moment) = self.begin()?;
        let mut target = Target::open(to, &self.log.root(), Purpose::Backup)?;
        target.begin(self.log, &moment.segments, &moment.runs.files)?;
        let mut copying = Copying::new(&moment)?;
        while let Some(segment) = pinning.next(&self.gc.waiting_to_free()) {
            progress(copying.progress())?;
            copying.count(&segment, target.add(self.log, &segment, moment.sequence)?);
            pinning.copied(segment.extent);
        }
        copying.add_sorted_tables(&target, &mut moment.runs, progress)?;
        drop(pinning);
        copying.finish(self.log, target, &moment, progress)
    }
}

/// What a backup is of.
struct Moment {
    sequence: u64,
    catalog: Vec<u8>,
    segments: Vec<SegmentToCopy>,
    /// Their files stay as long as they are among these: until they are in the copy.
    runs: RunsToCopy,
}

/// Copies a backup, or any store that was closed in order, to the directory `to`, which must be empty or missing: a store with an
/// id of its own, verified while it is read and again when it is written. `progress` is told how far it is; an error that it
/// returns ends the work with that error, and what was copied is gone on with by the next call. Sorted tables get one more name, or are copied, as in a backup.
///
/// # Errors
/// As [`restore_with`].
pub fn restore(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    progress: impl FnMut(Progress) -> Result<()>,
) -> Result<Summary> {
    restore_with(from, Capacity::Beside, to, progress)
}

/// [`restore`] of a store whose sorted tables are at `capacity`: a path, or as [`Options::capacity`](crate::Options::capacity) says. Those of the new store are in its own directory.
///
/// # Errors
/// `NotFound` if there is no store in `from`, or only an unfinished backup; `Locked` while it is open; `Exists` if `to` is not empty; `Corrupted` if
/// anything in `from` does not verify; `Invalid` if it was not closed in order; `Full`, `Io`.
pub fn restore_with(
    from: impl AsRef<Path>,
    capacity: impl Into<Capacity>,
    to: impl AsRef<Path>,
    mut progress: impl FnMut(Progress) -> Result<()>,
) -> Result<Summary> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let view = View::open_with(from, capacity)?;
    let engine = view.engine();
    if !view.is_closed_in_order() || !engine.log.is_all_sealed() {
        return Err(Error::invalid(format!(
            "the store in {} is no finished backup and was not closed in order: open and close it first",
            from.display()
        )));
    }
    let names = names_in(to)?;
    // An interrupted restore is gone on with; `Target` looks whether it was of the same store.
    if !names.is_empty() && !names.iter().any(|name| name == PARTIAL_FILE) {
        return Err(Error::new(ErrorKind::Exists, format!("the directory {} is not empty", to.display())));
    }
    let root = engine.log.root();
    let mut target = Target::open(to, &root, Purpose::Store)?;
    let catalog = engine.catalog.at_barrier(&engine.log, |_, catalog| catalog);
    let source = (root.store_id, root.watermark);
    let runs = engine.runs.hold_off_edits().to_copy(source, |table| engine.catalog.by_id(table).is_some());
    let segments = engine.log.segments_to_copy();
    let mut moment = Moment { sequence: root.watermark, catalog, segments, runs };
    target.begin(&engine.log, &moment.segments, &moment.runs.files)?;
    let mut copying = Copying::new(&moment)?;
    for segment in &moment.segments {
        progress(copying.progress())?;
        // All of it is verified, what an interrupted restore left included: nobody else did.
        copying.count(segment, target.add(&engine.log, segment, u64::MAX)?);
    }
    copying.add_sorted_tables(&target, &mut moment.runs, &mut progress)?;
    copying.finish(&engine.log, target, &moment, &mut progress)
}

/// Counts what is copied.
struct Copying {
    summary: Summary,
    done: u64,
    total: u64,
}

impl Copying {
    fn new(moment: &Moment) -> Result<Copying> {
        let below: u64 = moment.runs.files.iter().map(Sst::file_bytes).sum::<Result<u64>>()?;
        let summary = Summary { sequence: moment.sequence, ..Summary::default() };
        let total = below + moment.segments.iter().map(|segment| segment.end).sum::<u64>();
        Ok(Copying { summary, done: 0, total })
    }

    /// Adds the sorted tables, and lets go of each that is in the copy: what takes it off gives its room back then, though reading all of it again takes long.
    fn add_sorted_tables(
        &mut self,
        target: &Target,
        runs: &mut RunsToCopy,
        progress: &mut dyn FnMut(Progress) -> Result<()>,
    ) -> Result<()> {
        for sst in runs.files.drain(..) {
            progress(self.progress())?;
            match target.add_sorted_table(&sst)? {
                Placed::Linked(bytes) => {
                    self.summary.sorted_tables_linked += 1;
                    self.summary.bytes_linked += bytes;
                }
                Placed::Copied(bytes) => self.summary.bytes_copied += bytes,
                Placed::Kept => self.summary.sorted_tables_kept += 1,
            }
            self.summary.sorted_tables += 1;
            self.done += sst.file_bytes()?;
        }
        progress(self.progress())
    }

    fn progress(&self) -> Progress {
        Progress::Copying(self.done, self.total)
    }

    fn count(&mut self, segment: &SegmentToCopy, added: Added) {
        self.done += segment.end;
        match added {
            Added::Copied(bytes) => self.summary.bytes_copied += bytes,
            Added::Kept => self.summary.segments_kept += 1,
            Added::Nothing => return,
        }
        self.summary.segments += 1;
    }

    fn finish(
        self,
        log: &Log,
        target: Target,
        moment: &Moment,
        progress: &mut dyn FnMut(Progress) -> Result<()>,
    ) -> Result<Summary> {
        let whole = Whole { catalog: &moment.catalog, sequence: moment.sequence, runs: &moment.runs };
        let mut verifying = |done, total| progress(Progress::Verifying(done, total));
        let records = target.finish(&log.root(), whole, &mut verifying)?;
        Ok(Summary { records, ..self.summary })
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
pub(in crate::db) mod tests;
