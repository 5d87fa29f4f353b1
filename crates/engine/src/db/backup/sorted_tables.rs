//! The sorted tables of a backup: the directory `capacity` in that of the backup.
//!
//! Owns how files get there: by one more name for the store's own, or by a copy where that cannot be. They are written once, and never changed, by the store as by its
//! copies ([0034](../../../../../docs/decisions/0034-copies-of-sorted-tables.md)), so that a file may have several names. Promises that a name there leads to a whole file; and that nothing there is touched but
//! sorted tables and manifests of a backup. Must not know which files are wanted, nor when a backup is one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hedgerow_device::{
    CAPACITY_PAGE_BYTES, CopyFile, DirectoryLock, link_file, make_directory, names_in, remove_file,
    rename_file, replace_small_file,
};

use crate::manifest::edits::{encode_copy, pair_in, pair_names};
use crate::manifest::version::SstVersion;
use crate::options::CAPACITY_DIRECTORY;
use crate::sst::{Sst, SstId};
use crate::{Error, ErrorKind, Result};

/// A file that is being copied. Nothing takes it for a sorted table.
const COPYING_FILE: &str = "copying.partial";
/// The pair of the manifest that a copy begins with.
const FIRST_PAIR: u64 = 1;
/// Bytes that are copied at a time.
const STEP_BYTES: u64 = 1 << 20;

/// How a sorted table got into the backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    /// So many bytes have one more name.
    Linked(u64),
    /// So many bytes were copied.
    Copied(u64),
    /// It was there.
    Kept,
}

/// The sorted tables of one backup.
#[derive(Debug)]
pub(super) struct SortedTables {
    directory: PathBuf,
    /// Files that were there and are to stay.
    kept: BTreeSet<u64>,
    /// As long as something is written; whoever reads the backup locks it, too.
    lock: Option<DirectoryLock>,
}

/// Whether there are sorted tables in the directory of a backup, or what is left of some.
pub(super) fn are_in(backup: &Path) -> Result<bool> {
    Ok(names_in(&backup.join(CAPACITY_DIRECTORY))?.iter().any(|name| is_ours(name)))
}

fn is_ours(name: &str) -> bool {
    SstId::number_in(name).is_some() || pair_in(name).is_some() || name == COPYING_FILE
}

impl SortedTables {
    /// Those in the directory of a backup which no name makes a store: what is not among `wanted`, or is not what it should be, goes. Nothing there is trusted unless `trusts`.
    pub(super) fn begin(backup: &Path, wanted: &[Sst], trusts: bool) -> Result<SortedTables> {
        let directory = backup.join(CAPACITY_DIRECTORY);
        let mut tables = SortedTables { directory, kept: BTreeSet::new(), lock: None };
        if wanted.is_empty() && !are_in(backup)? {
            return Ok(tables);
        }
        make_directory(&tables.directory)?;
        tables.lock = Some(DirectoryLock::take(&tables.directory)?);
        for name in names_in(&tables.directory)?.iter().filter(|name| is_ours(name)) {
            let number = SstId::number_in(name);
            let wanted = wanted.iter().find(|sst| Some(sst.id().number) == number);
            match wanted.filter(|_| trusts) {
                Some(sst) if is_same(sst, &tables.directory.join(name))? => {
                    tables.kept.insert(sst.id().number);
                }
                // PERSIST: no root names it, and before the next one does its name is gone or stands for another file.
                _ => remove_file(&tables.directory.join(name))?,
            }
        }
        Ok(tables)
    }

    /// Has the backup have this file, too. Its name is durable once [`SortedTables::name`] returned.
    pub(super) fn add(&self, sst: &Sst) -> Result<Placed> {
        if self.kept.contains(&sst.id().number) {
            return Ok(Placed::Kept);
        }
        let (to, bytes) = (self.directory.join(sst.id().file_name()), sst.file_bytes()?);
        if let Some(path) = sst.file().linkable_path()
            && link_file(&path, &to)?
        {
            return Ok(Placed::Linked(bytes));
        }
        let copying = self.directory.join(COPYING_FILE);
        let file = CopyFile::open(&copying)?;
        file.set_bytes(bytes)?;
        for offset in (0..bytes).step_by(STEP_BYTES as usize) {
            let step = sst.file().read(offset, STEP_BYTES.min(bytes - offset) as usize)?;
            file.write_at(offset, step.as_slice())?;
        }
        // PERSIST: whole before it has the name of a sorted table.
        file.sync()?;
        file.let_go();
        rename_file(&copying, &to)?;
        Ok(Placed::Copied(bytes))
    }

    /// Writes the manifest that says what counts of the files; nothing if none does. All is durable on return, names and all: the number for the root to name.
    pub(super) fn name(&mut self, store: u128, version: &SstVersion) -> Result<u64> {
        if version.is_empty() {
            return Ok(0);
        }
        let bytes = encode_copy((store, FIRST_PAIR), version);
        let copies = pair_names(FIRST_PAIR).map(|name| self.directory.join(name));
        for copy in &copies {
            // PERSIST: durable on return, before the root that leads to it; and so are the names that sorted tables got in the same directory.
            replace_small_file(copy, &bytes)?;
        }
        Ok(FIRST_PAIR)
    }

    /// Lets others read what is there.
    pub(super) fn unlock(&mut self) {
        self.lock = None;
    }
}

/// Whether the file at `path`, which was whole when it got its name, is this sorted table: as long, with the same first page, which says of which store it is, and the same last, which has
/// the checksums of what leads to all else.
fn is_same(sst: &Sst, path: &Path) -> Result<bool> {
    let (bytes, there) = (sst.file_bytes()?, CopyFile::open(path)?);
    if there.bytes()? != bytes {
        return Ok(false);
    }
    for offset in [0, bytes - CAPACITY_PAGE_BYTES as u64] {
        let (ours, mut theirs) = (sst.file().read(offset, CAPACITY_PAGE_BYTES)?, [0; CAPACITY_PAGE_BYTES]);
        there.read_at(offset, &mut theirs)?;
        if ours.as_slice() != theirs {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `Exists` of a directory with sorted tables that are of no backup.
pub(super) fn taken(backup: &Path) -> Error {
    let place = backup.join(CAPACITY_DIRECTORY);
    Error::new(
        ErrorKind::Exists,
        format!(
            "the directory {} holds sorted tables that are of no backup; choose another for the backup",
            place.display()
        ),
    )
}
