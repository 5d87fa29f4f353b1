//! Files on the simulated disk, in the same log as the simulated fast tier: one crash cuts both at one moment.
//!
//! Owns [`SimulatedFiles`] (what is there now), [`FileOp`] (the log's entries) and [`FilesReplay`] (what of it is durable). Promises what the
//! parent module's fault model says of files. Must not know what the bytes mean.
//!
//! # The fault model
//!
//! * Of each page of a file, apart from every other, there is what was synced last and a prefix of what was written to it since. Its length is
//!   any that it has had since the last sync.
//! * Of each name, apart from every other, there is what was synced last of the directory, or what it was at any time since.
//! * Syncing a file does not make its name durable, nor does syncing the names the bytes of the files.
//! * A failed sync of a file leaves its pages clean: a later one does not write them. A failed sync of names has no effect.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::replay::{Op, Pages, Replay};
use super::{CrashModel, Fault, NAME, Refusal, Survivors, next_refusal};
use crate::checksum::crc32c;
use crate::random::Random;

/// In place of a file's path.
pub(super) fn path_of(name: &str) -> PathBuf {
    Path::new(NAME).join(name)
}

/// A file's name in the directory.
pub(super) type Name = Arc<str>;

/// One thing that was done to the files.
#[derive(Debug, Clone)]
pub(super) enum FileOp {
    /// A new file, with a number that no other ever had.
    Create { file: u64, name: Name },
    /// The file has this length, at least; what is new of it is zeros.
    Lengthen { file: u64, bytes: u64 },
    /// These bytes were written; they are never empty.
    Write { file: u64, offset: u64, bytes: Arc<[u8]> },
    /// The bytes and the length of a file were made durable, or the attempt failed.
    Sync { file: u64, failed: bool },
    /// A name is gone.
    Remove { name: Name },
    /// All names were made durable.
    SyncNames,
    /// The byte at `offset` turned into this, at rest and in view.
    Corrupt { file: u64, offset: u64, byte: u8 },
}

impl FileOp {
    pub(super) fn stored_bytes(&self) -> usize {
        match self {
            FileOp::Write { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    /// Whether it makes something durable.
    pub(super) fn is_point(&self) -> bool {
        matches!(self, FileOp::Sync { .. } | FileOp::SyncNames)
    }
}

/// What a call on files does: faults are told apart by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileCall {
    /// Making a file.
    Create,
    /// Writing to one, or lengthening it.
    Write,
    /// Making its bytes durable.
    Sync,
    /// Making names durable.
    SyncNames,
    /// Removing a name.
    Remove,
    /// Opening or reading a file, or listing the names.
    Read,
}

/// What a sync was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncOf<'a> {
    /// The bytes of the file of this name, as it was created.
    File(&'a str),
    /// The names.
    Names,
}

/// Faults to come.
#[derive(Debug, Default)]
pub(super) struct FileFaults {
    calls: [Option<Fault>; 6],
    /// Such syncs succeed without effect.
    pub(super) lies: Option<fn(SyncOf<'_>) -> bool>,
    /// Files of these names cannot be read.
    pub(super) unreadable: BTreeSet<String>,
}

impl FileFaults {
    pub(super) fn set(&mut self, call: FileCall, fault: Fault) {
        self.calls[call as usize] = Some(fault);
    }

    pub(super) fn next(&mut self, call: FileCall) -> Option<Refusal> {
        next_refusal(&mut self.calls[call as usize])
    }
}

/// A file as it is now. Whoever has opened it keeps it, though its name is gone.
#[derive(Debug)]
pub(crate) struct SimulatedFile {
    pub(super) number: u64,
    pub(super) name: Name,
    content: Mutex<Content>,
}

#[derive(Debug, Clone, Default)]
struct Content {
    pages: Pages,
    bytes: u64,
}

impl SimulatedFile {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In place of a path.
    pub(crate) fn path(&self) -> PathBuf {
        path_of(&self.name)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.content().bytes
    }

    /// As many of the bytes at `offset` as there are.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> usize {
        let content = self.content();
        let there = content.bytes.saturating_sub(offset).min(bytes.len() as u64) as usize;
        content.pages.read(offset, &mut bytes[..there]);
        there
    }

    pub(super) fn lengthen(&self, bytes: u64) {
        let mut content = self.content();
        content.bytes = content.bytes.max(bytes);
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        let mut content = self.content();
        content.bytes = content.bytes.max(offset + bytes.len() as u64);
        content.pages.write(offset, bytes);
    }
}

/// What is there now.
#[derive(Debug, Default)]
pub(super) struct SimulatedFiles {
    names: BTreeMap<Name, Arc<SimulatedFile>>,
    next_number: u64,
    /// Nothing of them is in memory: every read would wait for the disk.
    pub(super) are_cold: bool,
    /// How often somebody waited for reads of them.
    pub(super) waits: u64,
    /// Threads that did, by their names.
    pub(super) waiters: BTreeSet<String>,
}

impl SimulatedFiles {
    pub(super) fn of(left: &FilesImage) -> SimulatedFiles {
        let file = |(name, file): (&Name, &FileImage)| {
            let content = Mutex::new(file.content.clone());
            (
                Arc::clone(name),
                Arc::new(SimulatedFile { number: file.number, name: Arc::clone(name), content }),
            )
        };
        let names = left.files.iter().map(file).collect();
        SimulatedFiles { names, next_number: left.next_number, ..SimulatedFiles::default() }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.names.keys().map(|name| name.to_string()).collect()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<SimulatedFile>> {
        self.names.get(name).map(Arc::clone)
    }

    /// Makes a file; `None` if there is one of that name.
    pub(super) fn create(&mut self, name: &str) -> Option<Arc<SimulatedFile>> {
        if self.names.contains_key(name) {
            return None;
        }
        let (name, number) = (Name::from(name), self.next_number);
        self.next_number += 1;
        let file = Arc::new(SimulatedFile { number, name: Arc::clone(&name), content: Mutex::default() });
        self.names.insert(name, Arc::clone(&file));
        Some(file)
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Name> {
        self.names.remove_entry(name).map(|(name, _)| name)
    }

    /// Of the disk that files with names take.
    pub(super) fn bytes(&self) -> u64 {
        self.names.values().map(|file| file.bytes()).sum()
    }
}

/// A step of a name: it leads to this file, or to none.
#[derive(Debug, Clone)]
struct NameStep {
    name: Name,
    file: Option<u64>,
}

/// What is durable of the files, and what is pending, at one place in the log.
#[derive(Debug, Clone, Default)]
pub(super) struct FilesReplay {
    files: BTreeMap<u64, Replay>,
    names: BTreeMap<Name, u64>,
    changes: Vec<NameStep>,
    next_number: u64,
}

impl FilesReplay {
    pub(super) fn apply(&mut self, op: &FileOp) {
        match op {
            FileOp::Create { file, name } => {
                self.files.insert(*file, Replay::new(CrashModel::Pages));
                self.next_number = file + 1;
                self.changes.push(NameStep { name: Arc::clone(name), file: Some(*file) });
            }
            FileOp::Lengthen { file, bytes } => self.change(*file, &Op::Grow { bytes: *bytes }),
            FileOp::Write { file, offset, bytes } => {
                self.change(*file, &Op::Store { offset: *offset, bytes: Arc::clone(bytes) });
            }
            FileOp::Sync { file, failed } => {
                self.change(*file, &Op::Persist { offset: 0, len: u64::MAX, failed: *failed });
            }
            FileOp::Corrupt { file, offset, byte } => {
                self.change(*file, &Op::Corrupt { offset: *offset, byte: *byte });
            }
            FileOp::Remove { name } => self.changes.push(NameStep { name: Arc::clone(name), file: None }),
            FileOp::SyncNames => {
                for change in std::mem::take(&mut self.changes) {
                    match change.file {
                        Some(file) => drop(self.names.insert(change.name, file)),
                        None => drop(self.names.remove(&change.name)),
                    }
                }
                let named: BTreeSet<u64> = self.names.values().copied().collect();
                self.files.retain(|file, _| named.contains(file));
            }
        }
    }

    fn change(&mut self, file: u64, op: &Op) {
        // A file without a name matters no more.
        if let Some(state) = self.files.get_mut(&file) {
            state.apply(op);
        }
    }

    /// Whether every power cut would leave the same.
    pub(super) fn is_settled(&self) -> bool {
        self.changes.is_empty() && self.files.values().all(Replay::is_settled)
    }

    pub(super) fn pending_bytes(&self) -> u64 {
        self.files.values().map(Replay::pending_bytes).sum()
    }

    /// What a crash of this kind leaves. `last`: the file that the last store of all went to, if it went to one.
    pub(super) fn survive(&self, kind: Survivors, last: Option<u64>, random: &mut Random) -> FilesImage {
        let files: BTreeMap<Name, FileImage> = self
            .names_left(kind, random)
            .into_iter()
            .map(|(name, number)| {
                let (pages, bytes) = self.files[&number].survive(kind.of_one(last == Some(number)), random);
                (name, FileImage { number, content: Content { pages, bytes } })
            })
            .collect();
        let settled = |file: &FileImage| {
            let Content { pages, bytes } = file.content.clone();
            (file.number, Replay::settled(CrashModel::Pages, pages, bytes))
        };
        let state = match kind {
            Survivors::ProcessKill => self.clone(),
            _ => FilesReplay {
                files: files.values().map(settled).collect(),
                names: files.iter().map(|(name, file)| (Arc::clone(name), file.number)).collect(),
                changes: Vec::new(),
                next_number: self.next_number,
            },
        };
        FilesImage { files, next_number: self.next_number, state }
    }

    /// The names that are left, and what they lead to.
    fn names_left(&self, kind: Survivors, random: &mut Random) -> BTreeMap<Name, u64> {
        let mut left = self.names.clone();
        let mut by_name: BTreeMap<&Name, Vec<Option<u64>>> = BTreeMap::new();
        for change in &self.changes {
            by_name.entry(&change.name).or_default().push(change.file);
        }
        for (name, changes) in by_name {
            let done = match kind {
                Survivors::None => 0,
                Survivors::Random => random.below(changes.len() as u64 + 1) as usize,
                _ => changes.len(),
            };
            match changes[..done].last() {
                Some(Some(file)) => drop(left.insert(Arc::clone(name), *file)),
                Some(None) => drop(left.remove(name)),
                None => {}
            }
        }
        left
    }
}

#[derive(Debug, Clone)]
struct FileImage {
    number: u64,
    content: Content,
}

/// The files that a crash left, and which of that is still pending.
#[derive(Debug, Clone, Default)]
pub(super) struct FilesImage {
    files: BTreeMap<Name, FileImage>,
    next_number: u64,
    pub(super) state: FilesReplay,
}

impl FilesImage {
    pub(super) fn names(&self) -> Vec<String> {
        self.files.keys().map(|name| name.to_string()).collect()
    }

    /// All bytes of a file.
    pub(super) fn read(&self, name: &str) -> Option<Vec<u8>> {
        let content = &self.files.get(name)?.content;
        let mut bytes = vec![0; content.bytes as usize];
        content.pages.read(0, &mut bytes);
        Some(bytes)
    }

    /// Flips bits of a byte, if the file has it.
    pub(super) fn corrupt(&mut self, name: &str, offset: u64, xor: u8) {
        let Some(file) = self.files.get_mut(name).filter(|file| offset < file.content.bytes) else { return };
        let mut byte = [0];
        file.content.pages.read(offset, &mut byte);
        byte[0] ^= xor;
        file.content.pages.write(offset, &byte);
        self.state.apply(&FileOp::Corrupt { file: file.number, offset, byte: byte[0] });
    }
}

impl Hash for FilesImage {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for (name, file) in &self.files {
            (name, file.content.bytes).hash(hasher);
            for (offset, page) in file.content.pages.filled() {
                if page.iter().any(|&byte| byte != 0) {
                    (offset, crc32c(0, page)).hash(hasher);
                }
            }
        }
    }
}
