//! Keys of rows with deltas, from those who meet them to the thread that merges them.
//!
//! Owns the queue and what was merged. Promises that callers never wait for it, and that it takes a bounded number of keys. Must
//! not know how a row is merged.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Keys that can wait.
pub(crate) const WAITING_MAX: usize = 4096;
/// Rows with longer keys are left to the writers and gc.
pub(crate) const KEY_BYTES_MAX: usize = 58;
/// A key whose row has at least `depth` deltas.
#[derive(Clone, Copy)]
pub(crate) struct QueuedKey {
    pub(crate) table: u32,
    pub(crate) depth: u8,
    pub(crate) key_bytes: u8,
    pub(crate) key: [u8; KEY_BYTES_MAX],
}

impl QueuedKey {
    pub(crate) fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.key_bytes)]
    }
}

/// Keys queued a while ago.
pub(crate) struct Aged {
    pub(crate) queued: Vec<QueuedKey>,
    /// Every write up to this sequence is durable, and was visible to all in the epoch.
    pub(crate) through: u64,
    pub(crate) epoch: u64,
}

/// What callers and the consolidation thread share.
pub(crate) struct MergeQueue {
    /// Whether there is room in the queue; looked at before the queue is.
    pub(crate) room: AtomicBool,
    /// Whether readers are to queue what they find.
    pub(crate) reads_count: AtomicBool,
    pub(crate) waiting: Mutex<Vec<QueuedKey>>,
    /// Keys that will be merged in place when nobody can see their rows without their deltas any more.
    pub(crate) aging: Mutex<Option<Aged>>,
    pub(crate) merged: AtomicU64,
    pub(crate) in_place: AtomicU64,
}

impl MergeQueue {
    /// `wanted`: whether keys are queued at all; `reads_count`: whether readers queue them from the start.
    pub(crate) fn new(wanted: bool, reads_count: bool) -> MergeQueue {
        MergeQueue {
            room: AtomicBool::new(wanted),
            reads_count: AtomicBool::new(reads_count),
            waiting: Mutex::new(Vec::with_capacity(if wanted { WAITING_MAX } else { 0 })),
            aging: Mutex::new(None),
            merged: AtomicU64::new(0),
            in_place: AtomicU64::new(0),
        }
    }

    /// For a reader that met a chain.
    #[inline]
    pub(crate) fn found(&self, table: &AtomicU32, key: &[u8]) {
        if self.reads_count.load(Ordering::Relaxed) && self.room.load(Ordering::Relaxed) {
            self.enqueue(table, key, 1);
        }
    }

    /// For a writer that made a chain as long as it may be.
    #[inline]
    pub(crate) fn filled(&self, table: &AtomicU32, key: &[u8], depth: u8) {
        if self.room.load(Ordering::Relaxed) {
            self.enqueue(table, key, depth);
        }
    }

    /// Whether rows are read far more often than updated.
    pub(crate) fn reads_prevail(&self) -> bool {
        self.reads_count.load(Ordering::Relaxed)
    }

    pub(crate) fn enqueue(&self, table: &AtomicU32, key: &[u8], depth: u8) {
        let Some(mut waiting) = self.waiting.try_lock() else { return };
        if key.len() > KEY_BYTES_MAX || waiting.len() == WAITING_MAX {
            return;
        }
        let table = table.load(Ordering::Relaxed);
        let mut queued = QueuedKey { table, depth, key_bytes: key.len() as u8, key: [0; KEY_BYTES_MAX] };
        queued.key[..key.len()].copy_from_slice(key);
        waiting.push(queued);
        if waiting.len() == WAITING_MAX {
            self.room.store(false, Ordering::Relaxed);
        }
    }

    /// Puts keys that were taken out back, as far as there is room.
    pub(crate) fn requeue(&self, queued: &mut Vec<QueuedKey>) {
        let mut waiting = self.waiting.lock();
        let room = WAITING_MAX - waiting.len();
        queued.truncate(room);
        waiting.append(queued);
        self.room.store(waiting.len() < WAITING_MAX, Ordering::Relaxed);
    }

    /// Chains merged so far, and those of them that were merged in place.
    pub(crate) fn merged(&self) -> (u64, u64) {
        (self.merged.load(Ordering::Relaxed), self.in_place.load(Ordering::Relaxed))
    }
}
