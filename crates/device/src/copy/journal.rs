//! What a copy does to its directory, step by step, and what a power cut after any of the steps leaves of it.
//!
//! Owns [`record_copy`], the journal of the calling thread, and [`CrashDirectory`], a directory in memory that the steps are done
//! in again. Promises that what it leaves is something the fault model below allows, and the same for the same seed. Must not know
//! what the files mean.
//!
//! # The fault model
//!
//! * Bytes: of each page of a file, apart from every other, there is what was synced last and a prefix of what was done to it since.
//!   Its length is any that it has had since.
//! * Names: of each directory, apart from every other, there is what was synced last of it, and a prefix of the changes since. A rename is atomic. What is in a directory
//!   that is not there is not there.
//! * Syncing a file does not make its name durable, nor does syncing a directory the bytes of its files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fault::Survivors;
use crate::random::Random;

/// One thing that was done to the files of a copy.
#[derive(Debug, Clone)]
pub enum CopyStep {
    /// Opened, and made if there was no such file.
    Open(PathBuf),
    /// Cut short, or made longer by zeros.
    SetBytes(PathBuf, u64),
    /// Written at an offset.
    Write(PathBuf, u64, Arc<[u8]>),
    /// Written at the end.
    Append(PathBuf, Arc<[u8]>),
    /// The bytes and the length made durable.
    Sync(PathBuf),
    /// A name given to a durable file of these bytes that lies elsewhere, too.
    Link(PathBuf, Arc<[u8]>),
    /// Made, unless it was there.
    MakeDirectory(PathBuf),
    /// Given another name in its directory.
    Rename(PathBuf, PathBuf),
    /// Removed.
    Remove(PathBuf),
    /// The names of the directory that the file is in made durable.
    SyncNames(PathBuf),
}

thread_local!(static JOURNAL: RefCell<Option<Vec<CopyStep>>> = const { RefCell::new(None) });

/// Runs `copy`, and says which steps the calling thread has done meanwhile. For tests: it holds all that is written in memory.
pub fn record_copy<R>(copy: impl FnOnce() -> R) -> (R, Vec<CopyStep>) {
    JOURNAL.set(Some(Vec::new()));
    let result = copy();
    (result, JOURNAL.take().unwrap_or_default())
}

/// A step was done. Where nobody records, it is not even put together.
pub(super) fn done(step: impl FnOnce() -> CopyStep) {
    JOURNAL.with_borrow_mut(|journal| {
        if let Some(steps) = journal {
            steps.push(step());
        }
    });
}

/// Something done to a file that is not durable yet.
#[derive(Debug, Clone)]
enum Change {
    SetBytes(usize),
    Write(usize, Arc<[u8]>),
}

impl Change {
    /// Does it to `bytes`, which is what the file holds.
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::SetBytes(len) => bytes.resize(*len, 0),
            Change::Write(offset, written) => {
                bytes.resize(bytes.len().max(offset + written.len()), 0);
                bytes[*offset..offset + written.len()].copy_from_slice(written);
            }
        }
    }
}

#[derive(Debug, Clone, Default)]
struct FileState {
    durable: Vec<u8>,
    changes: Vec<Change>,
}

impl FileState {
    fn after(&self, changes: usize) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        self.changes[..changes].iter().for_each(|change| change.apply(&mut bytes));
        bytes
    }

    /// What is left of the file.
    fn survive(&self, survivors: Survivors, random: &mut Random) -> Vec<u8> {
        match survivors {
            Survivors::None => self.after(0),
            Survivors::All => self.after(self.changes.len()),
            _ => {
                let states: Vec<Vec<u8>> = (0..=self.changes.len()).map(|n| self.after(n)).collect();
                let pick = |random: &mut Random| &states[random.below(states.len() as u64) as usize];
                let mut bytes = vec![0; pick(random).len()];
                for (page, out) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
                    let from = pick(random).get(page * PAGE_BYTES..).unwrap_or_default();
                    let len = from.len().min(out.len());
                    out[..len].copy_from_slice(&from[..len]);
                }
                bytes
            }
        }
    }
}

/// A change of names that is not durable yet.
#[derive(Debug, Clone)]
enum NameChange {
    Make(PathBuf, Entry),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

/// What a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    File(usize),
    Directory,
}

type Names = BTreeMap<PathBuf, Entry>;

impl NameChange {
    fn apply(&self, names: &mut Names) {
        match self {
            NameChange::Make(name, entry) => drop(names.insert(name.clone(), *entry)),
            NameChange::Rename(from, to) => {
                if let Some(entry) = names.remove(from) {
                    names.insert(to.clone(), entry);
                }
            }
            NameChange::Remove(name) => drop(names.remove(name)),
        }
    }

    /// The directory whose names it changes.
    fn directory(&self) -> Option<&Path> {
        match self {
            NameChange::Make(name, _) | NameChange::Rename(name, _) | NameChange::Remove(name) => {
                name.parent()
            }
        }
    }
}

const PAGE_BYTES: usize = 4096;

/// A directory, and those in it, of which it is known what is durable.
#[derive(Debug, Clone, Default)]
pub struct CrashDirectory {
    top: PathBuf,
    files: Vec<FileState>,
    durable_names: Names,
    name_changes: Vec<NameChange>,
}

impl CrashDirectory {
    /// The directory at `path` as it is, all of it durable; an empty one if there is none.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn of(path: &Path) -> io::Result<CrashDirectory> {
        let mut directory = CrashDirectory { top: path.to_path_buf(), ..CrashDirectory::default() };
        let mut left = vec![path.to_path_buf()];
        while let Some(path) = left.pop().filter(|path| path.is_dir()) {
            for entry in fs::read_dir(path)? {
                let name = entry?.path();
                if name.is_dir() {
                    directory.durable_names.insert(name.clone(), Entry::Directory);
                    left.push(name);
                    continue;
                }
                directory.durable_names.insert(name.clone(), Entry::File(directory.files.len()));
                directory.files.push(FileState { durable: fs::read(&name)?, changes: Vec::new() });
            }
        }
        Ok(directory)
    }

    /// The names after what `survives` of the changes.
    fn names_after(&self, mut survives: impl FnMut(&NameChange) -> bool) -> Names {
        let mut names = self.durable_names.clone();
        self.name_changes
            .iter()
            .filter(|change| survives(change))
            .for_each(|change| change.apply(&mut names));
        names
    }

    fn file(&mut self, path: &Path) -> Option<&mut FileState> {
        match self.names_after(|_| true).get(path).copied()? {
            Entry::File(file) => self.files.get_mut(file),
            Entry::Directory => None,
        }
    }

    fn change(&mut self, path: &Path, change: Change) {
        if let Some(file) = self.file(path) {
            file.changes.push(change);
        }
    }

    fn make(&mut self, path: &Path, durable: Vec<u8>) {
        self.files.push(FileState { durable, changes: Vec::new() });
        let entry = Entry::File(self.files.len() - 1);
        self.name_changes.push(NameChange::Make(path.to_path_buf(), entry));
    }

    /// Does a step.
    pub fn apply(&mut self, step: &CopyStep) {
        match step {
            CopyStep::Open(path) => {
                if self.file(path).is_none() {
                    self.make(path, Vec::new());
                }
            }
            CopyStep::Link(path, bytes) => self.make(path, bytes.to_vec()),
            CopyStep::MakeDirectory(path) => {
                if self.names_after(|_| true).get(path) != Some(&Entry::Directory) {
                    self.name_changes.push(NameChange::Make(path.clone(), Entry::Directory));
                }
            }
            CopyStep::SetBytes(path, bytes) => self.change(path, Change::SetBytes(*bytes as usize)),
            CopyStep::Write(path, offset, bytes) => {
                self.change(path, Change::Write(*offset as usize, Arc::clone(bytes)));
            }
            CopyStep::Append(path, bytes) => {
                let end = self.file(path).map_or(0, |file| file.after(file.changes.len()).len());
                self.change(path, Change::Write(end, Arc::clone(bytes)));
            }
            CopyStep::Sync(path) => {
                if let Some(file) = self.file(path) {
                    file.durable = file.after(file.changes.len());
                    file.changes.clear();
                }
            }
            CopyStep::Rename(from, to) => {
                self.name_changes.push(NameChange::Rename(from.clone(), to.clone()))
            }
            CopyStep::Remove(path) => self.name_changes.push(NameChange::Remove(path.clone())),
            CopyStep::SyncNames(path) => {
                let of_it = |change: &NameChange| change.directory() == path.parent();
                self.durable_names = self.names_after(of_it);
                self.name_changes.retain(|change| !of_it(change));
            }
        }
    }

    /// Makes the directory `to` what a power cut now leaves: nothing that is not durable, all, or some of it.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn leave(&self, survivors: Survivors, seed: u64, to: &Path) -> io::Result<()> {
        let mut random = Random::from_seed(seed);
        // How many changes of each directory are left.
        let directory_of = |change: &NameChange| change.directory().map(Path::to_path_buf);
        let mut left: BTreeMap<Option<PathBuf>, u64> = BTreeMap::new();
        for change in &self.name_changes {
            *left.entry(directory_of(change)).or_default() += 1;
        }
        for count in left.values_mut() {
            *count = match survivors {
                Survivors::None => 0,
                Survivors::All => *count,
                _ => random.below(*count + 1),
            };
        }
        let names = self.names_after(|change| {
            let left = left.entry(directory_of(change)).or_default();
            let survives = *left > 0;
            *left = left.saturating_sub(1);
            survives
        });
        fs::create_dir_all(to)?;
        for (path, entry) in &names {
            let Ok(name) = path.strip_prefix(&self.top) else { continue };
            // A name sorts behind that of the directory it is in.
            if !to.join(name).parent().is_some_and(Path::is_dir) {
                continue;
            }
            match entry {
                Entry::Directory => fs::create_dir_all(to.join(name))?,
                Entry::File(file) => {
                    fs::write(to.join(name), self.files[*file].survive(survivors, &mut random))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        CopyFile, append_to_file, link_file, make_directory, remove_file, rename_file, replace_small_file,
        sync_names_beside,
    };
    use super::*;
    use crate::capacity::{CapacityTier, WritePath};

    /// What is in a directory, by name.
    fn contents(path: &Path) -> BTreeMap<String, Vec<u8>> {
        let entry = |entry: io::Result<fs::DirEntry>| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(path).unwrap())
        };
        fs::read_dir(path).unwrap().map(entry).collect()
    }

    #[test]
    fn all_steps_again_leave_what_is_there_and_none_what_was_synced() {
        let top = std::env::temp_dir().join(format!("hedgerow-journal-{}", std::process::id()));
        fs::remove_dir_all(&top).ok();
        let [real, again] = ["real", "again"].map(|name| top.join(name));
        fs::create_dir_all(&real).unwrap();
        fs::write(real.join("before"), b"before").unwrap();
        let mut directory = CrashDirectory::of(&real).unwrap();
        let ((), steps) = record_copy(|| {
            let file = CopyFile::open(&real.join("part")).unwrap();
            file.set_bytes(10_000).unwrap();
            file.write_at(9_000, b"durable").unwrap();
            file.sync().unwrap();
            file.write_at(0, b"lost").unwrap();
            replace_small_file(&real.join("small"), b"one").unwrap();
            append_to_file(&real.join("small"), b", two").unwrap();
            rename_file(&real.join("part"), &real.join("whole")).unwrap();
            remove_file(&real.join("before")).unwrap();
            file.sync().unwrap();
        });
        assert!(record_copy(|| ()).1.is_empty(), "nobody records any more");
        let (synced, last) = steps.split_at(steps.len() - 1);
        assert!(matches!(last, [CopyStep::Sync(_)]));
        synced.iter().for_each(|step| directory.apply(step));
        directory.leave(Survivors::All, 1, &again).unwrap();
        assert_eq!(contents(&again), contents(&real));
        fs::remove_dir_all(&again).unwrap();
        directory.leave(Survivors::None, 1, &again).unwrap();
        let left = contents(&again);
        assert_eq!(left.keys().collect::<Vec<_>>(), ["small", "whole"]);
        assert_eq!(left["small"], b"one", "what was appended was not synced");
        assert_eq!((&left["whole"][9_000..9_007], &left["whole"][..4]), (&b"durable"[..], &[0; 4][..]));
        fs::remove_dir_all(&top).unwrap();
    }

    /// A directory in it, and a link there: each is gone as long as its own names are not synced.
    #[test]
    fn names_of_directories_are_durable_apart() {
        let top = std::env::temp_dir().join(format!("hedgerow-journal-dirs-{}", std::process::id()));
        fs::remove_dir_all(&top).ok();
        let [from, real, again] = ["from", "real", "again"].map(|name| top.join(name));
        let tier = CapacityTier::open(&from).unwrap();
        let mut file = tier.create("rows", WritePath::PastPageCache).unwrap();
        file.append(b"of the tier").unwrap();
        let file = file.finish().unwrap();
        fs::create_dir_all(&real).unwrap();
        let (linked, beside) = (real.join("in").join("rows"), real.join("beside"));
        let mut directory = CrashDirectory::of(&real).unwrap();
        let ((), steps) = record_copy(|| {
            make_directory(&real.join("in")).unwrap();
            assert!(link_file(&file.linkable_path().unwrap(), &linked).unwrap());
            drop(CopyFile::open(&beside).unwrap());
            sync_names_beside(&beside).unwrap();
            sync_names_beside(&linked).unwrap();
        });
        let left = |directory: &CrashDirectory, survivors| {
            fs::remove_dir_all(&again).ok();
            directory.leave(survivors, 1, &again).unwrap();
            [Path::new("in"), Path::new("in/rows"), Path::new("beside")].map(|name| again.join(name).exists())
        };
        let [mut none, mut all] = [Vec::new(), Vec::new()];
        for step in &steps {
            directory.apply(step);
            none.push(left(&directory, Survivors::None));
            all.push(left(&directory, Survivors::All));
        }
        let (t, f) = (true, false);
        assert_eq!(none, [[f, f, f], [t, f, f], [t, f, f], [t, f, f], [t, f, t], [t, t, t]], "{steps:?}");
        assert_eq!(all[2..], [[t, t, f], [t, t, t], [t, t, t], [t, t, t]]);
        assert_eq!(fs::read(again.join("in/rows")).unwrap(), fs::read(&linked).unwrap());
        assert!(link_file(&file.linkable_path().unwrap(), &linked).is_err(), "there is one");
        // A directory whose own name is not durable takes what is in it along.
        let mut unsynced = CrashDirectory::of(&top.join("none")).unwrap();
        for step in [steps[0].clone(), steps[2].clone(), steps[5].clone()] {
            unsynced.apply(&step);
        }
        unsynced.top.clone_from(&real);
        assert_eq!(left(&unsynced, Survivors::None), [f; 3]);
        fs::remove_dir_all(&top).unwrap();
    }
}
