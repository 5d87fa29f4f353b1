//! All that one crash cuts: the fast tier's bytes and the files beside it.
//!
//! Owns [`LogEntry`] (what the medium's log is made of) and [`DiskReplay`] (the state at one place in it). Promises that both parts are cut at
//! the same place, and that kinds of crash which speak of the last store mean the last of all. Must not know handles.

use super::files::{FileOp, FilesImage, FilesReplay};
use super::replay::{Op, Pages, Replay};
use super::{CrashModel, Survivors};
use crate::random::Random;

/// One entry of the log.
#[derive(Debug, Clone)]
pub(super) enum LogEntry {
    Tier(Op),
    Files(FileOp),
}

impl From<Op> for LogEntry {
    fn from(op: Op) -> LogEntry {
        LogEntry::Tier(op)
    }
}

impl From<FileOp> for LogEntry {
    fn from(op: FileOp) -> LogEntry {
        LogEntry::Files(op)
    }
}

impl LogEntry {
    pub(super) fn stored_bytes(&self) -> usize {
        match self {
            LogEntry::Tier(op) => op.stored_bytes(),
            LogEntry::Files(op) => op.stored_bytes(),
        }
    }

    /// Whether it makes something durable: just before it the most is pending.
    pub(super) fn is_point(&self) -> bool {
        match self {
            LogEntry::Tier(op) => matches!(op, Op::Persist { .. }),
            LogEntry::Files(op) => op.is_point(),
        }
    }
}

/// Where something was stored last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastStore {
    Tier,
    File(u64),
}

/// What is durable and what is pending at one place in the log.
#[derive(Debug, Clone)]
pub(super) struct DiskReplay {
    pub(super) tier: Replay,
    files: FilesReplay,
    last: LastStore,
}

impl DiskReplay {
    pub(super) fn new(tier: Replay, files: FilesReplay) -> DiskReplay {
        DiskReplay { tier, files, last: LastStore::Tier }
    }

    pub(super) fn model(&self) -> CrashModel {
        self.tier.model()
    }

    pub(super) fn apply(&mut self, entry: &LogEntry) {
        match entry {
            LogEntry::Tier(op) => {
                if matches!(op, Op::Store { .. }) {
                    self.last = LastStore::Tier;
                }
                self.tier.apply(op);
            }
            LogEntry::Files(op) => {
                if let FileOp::Write { file, .. } = op {
                    self.last = LastStore::File(*file);
                }
                self.files.apply(op);
            }
        }
    }

    /// Whether every power cut would leave the same.
    pub(super) fn is_settled(&self) -> bool {
        self.tier.is_settled() && self.files.is_settled()
    }

    pub(super) fn pending_bytes(&self) -> u64 {
        self.tier.pending_bytes() + self.files.pending_bytes()
    }

    /// What a crash of this kind leaves: the tier's bytes and its length, and the files.
    pub(super) fn survive(&self, kind: Survivors, random: &mut Random) -> (Pages, u64, FilesImage) {
        let (pages, bytes) = self.tier.survive(kind.of_one(self.last == LastStore::Tier), random);
        let last_file = match self.last {
            LastStore::Tier => None,
            LastStore::File(file) => Some(file),
        };
        (pages, bytes, self.files.survive(kind, last_file, random))
    }

    /// The state that a process finds which was started after a crash that left this.
    pub(super) fn after(&self, kind: Survivors, left: (&Pages, u64, &FilesImage)) -> DiskReplay {
        let (pages, bytes, files) = left;
        let tier = match kind {
            Survivors::ProcessKill => self.tier.clone(),
            _ => Replay::settled(self.model(), pages.clone(), bytes),
        };
        DiskReplay { tier, files: files.state.clone(), last: self.last }
    }
}

impl Survivors {
    /// What this kind of crash means for one of the things that were stored to; `has_last`: the last store of all went there.
    pub(super) fn of_one(self, has_last: bool) -> Survivors {
        match self {
            Survivors::LastStore if !has_last => Survivors::None,
            Survivors::AllButLastStore if !has_last => Survivors::All,
            kind => kind,
        }
    }
}
