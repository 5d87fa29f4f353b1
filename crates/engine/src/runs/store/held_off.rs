//! Edits held off, and what a copy of the store is to have of its runs meanwhile.
//!
//! Owns [`EditsHeldOff`]. Promises that which sorted tables count stays as it is as long as one lives. Must not know how a copy is made.

use std::collections::BTreeSet;

use super::{Changing, Runs};
use crate::manifest::version::SstVersion;
use crate::sst::Sst;
use crate::sync::MutexGuard;

impl Runs {
    /// Holds off all edits as long as the guard lives: no row moves meanwhile.
    pub(crate) fn hold_off_edits(&self) -> EditsHeldOff<'_> {
        EditsHeldOff { runs: self, changing: self.changing.lock() }
    }
}

/// Which sorted tables count does not change as long as this lives.
pub(crate) struct EditsHeldOff<'r> {
    runs: &'r Runs,
    changing: MutexGuard<'r, Changing>,
}

impl EditsHeldOff<'_> {
    /// What counts now of tables that are there, for a copy of the store `source` in which all is durable up to `watermark`. No file goes as long as it is
    /// among those of the answer.
    pub(crate) fn to_copy(
        &self,
        (source, watermark): (u128, u64),
        lives: impl Fn(u32) -> bool,
    ) -> RunsToCopy {
        let current = self.runs.current();
        let is_kept = |sst: &&Sst| sst.tables().iter().any(|known| lives(known.table));
        let files: Vec<Sst> = current.files().iter().filter(is_kept).cloned().collect();
        let version = self.changing.version().cloned().unwrap_or_default();
        let kept: BTreeSet<u64> = files.iter().map(|sst| sst.id().number).collect();
        RunsToCopy { version: version.of_copy(source, watermark, |number| kept.contains(&number)), files }
    }
}

/// The sorted tables that a copy of the store is to have.
#[derive(Debug)]
pub(crate) struct RunsToCopy {
    /// What counts in the copy.
    pub(crate) version: SstVersion,
    /// Its files, by rising number, as far as they are still to be copied.
    pub(crate) files: Vec<Sst>,
}
