//! What gc shares with those who wait for it, and with those whose work it must not meet.
//!
//! Owns the request for a cycle, the victims that wait to be freed, and the count of what was done. Promises to tell
//! whether a cycle is under way, or was since somebody looked. Must not know how a segment is emptied.

use std::collections::{HashMap, VecDeque};

use super::throttle::{Throttle, Work};

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock};

/// What gc shares with those who wait for it.
#[derive(Default)]
pub(crate) struct GcState {
    pub(crate) requested: AtomicBool,
    /// How often extents had come back when a writer was last told `Busy`, until somebody waits after that.
    pub(crate) returns_at_busy: Mutex<Option<u64>>,
    /// Cycles that ended, of the gc thread and by hand.
    cycles: AtomicU64,
    /// Cycles under way.
    running: AtomicU64,
    /// The last cycle emptied no victim: there was less room than it seemed.
    pub(crate) no_progress: AtomicBool,
    /// When a cycle without need last gave something back, by the store's clock.
    pub(crate) gave_back_ns: AtomicU64,
    pub(crate) segments: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Bytes of records that merging made obsolete, less those of the rows it wrote.
    pub(crate) gained: AtomicU64,
    /// What writers are delayed while space is low.
    pub(crate) throttle: Throttle,
    /// Victims that wait for readers or snapshots.
    pub(crate) pending: Mutex<VecDeque<Pending>>,
    /// Cycles share it; whoever changes records in place has it alone.
    pub(crate) lock: RwLock<()>,
    /// What the oldest snapshot sees of rows with many versions above it.
    pub(crate) rows_seen: Mutex<RowsSeen>,
    /// By segment that is not freed yet: the tombstones and expired rows in it that left the index. No key counts them.
    pub(crate) dropped: Mutex<HashMap<u32, Vec<u64>>>,
    /// A segment was freed with a record in it that could not be read: keys count what lay behind that for ever.
    pub(crate) counts_lost: AtomicBool,
}

/// A cycle that is under way.
pub(crate) struct Cycle<'g>(&'g GcState);

impl Drop for Cycle<'_> {
    fn drop(&mut self) {
        self.0.cycles.fetch_add(1, Ordering::SeqCst);
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Rows remembered of the oldest snapshot, at most; then they are forgotten.
const ROWS_SEEN_MAX: usize = 1024;

/// By table and key, the sequence of the row that the oldest snapshot sees, for rows where that takes a long walk.
#[derive(Default)]
pub(crate) struct RowsSeen {
    oldest: u64,
    rows: HashMap<(u32, Box<[u8]>), u64>,
}

impl RowsSeen {
    pub(crate) fn get(&self, oldest: u64, table: u32, key: &[u8]) -> Option<u64> {
        if self.oldest != oldest || self.rows.is_empty() {
            return None;
        }
        self.rows.get(&(table, key.into())).copied()
    }

    pub(crate) fn insert(&mut self, oldest: u64, table: u32, key: &[u8], sequence: u64) {
        if self.oldest != oldest || self.rows.len() == ROWS_SEEN_MAX {
            (self.oldest, self.rows) = (oldest, HashMap::new());
        }
        self.rows.insert((table, key.into()), sequence);
    }
}

/// A victim with nothing live in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) extent: u32,
    /// Snapshots older than this may need it.
    pub(crate) sequence: u64,
    pub(crate) epoch: u64,
    /// Bytes of the copies of what lived in it.
    pub(crate) copied: u64,
}

impl GcState {
    /// A cycle is under way until what is returned is dropped. Others may be at the same time.
    pub(crate) fn begin_cycle(&self) -> Cycle<'_> {
        self.running.fetch_add(1, Ordering::SeqCst);
        Cycle(self)
    }

    /// How many cycles have ended.
    pub(crate) fn cycles(&self) -> u64 {
        self.cycles.load(Ordering::SeqCst)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.running.load(Ordering::SeqCst) > 0
    }

    /// Whether no cycle has been under way since so many had ended. What is looked at in between was not looked at in the middle of one.
    pub(crate) fn was_idle_since(&self, cycles: u64) -> bool {
        // In this order: one that ends counts as ended before it counts as gone.
        !self.is_busy() && self.cycles() == cycles
    }

    /// First extents of victims that are not freed yet.
    pub(crate) fn waiting_to_free(&self) -> Vec<u32> {
        self.pending.lock().iter().map(|victim| victim.extent).collect()
    }

    /// Bytes copied out of victims that wait for the snapshot of `sequence`.
    pub(crate) fn spent_for_snapshots(&self, sequence: u64) -> u64 {
        let pending = self.pending.lock();
        pending.iter().filter(|victim| sequence < victim.sequence).map(|victim| victim.copied).sum()
    }

    /// Records that the record at `offset`, in the segment `extent`, has left the index and no other took its place.
    pub(crate) fn record_dropped(&self, extent: u32, offset: u64) {
        self.dropped.lock().entry(extent).or_default().push(offset);
    }

    /// The records in a segment that left the index, by offset.
    pub(crate) fn dropped_in(&self, extent: u32) -> Vec<u64> {
        self.dropped.lock().get(&extent).cloned().unwrap_or_default()
    }

    /// Whether the last cycle emptied no victim.
    pub(crate) fn made_no_progress(&self) -> bool {
        self.no_progress.load(Ordering::Relaxed)
    }

    pub(crate) fn done(&self) -> Work {
        let (segments, copied) = self.totals();
        Work { segments, copied, gained: self.gained.load(Ordering::Relaxed) }
    }

    /// Segments collected and bytes copied so far.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.segments.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}
