//! Ranges whose rows lie apart, from the scans that meet them to the thread that brings the rows together.
//!
//! Owns the queue, and what scans remember of the rows that they have met. Promises that scans never wait for it, and that both
//! are bounded. Must not know how rows are brought together.

use smallvec::SmallVec;

use crate::index::Slot;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Ranges that can wait. With the rows copied for each it bounds what a round of consolidation copies.
pub(crate) const WAITING_MAX: usize = 16;
/// One row in so many is remembered.
pub(crate) const SAMPLE: u64 = 16;
/// Rows that can be remembered, a power of two.
pub(crate) const MARKS: usize = 1 << 20;
/// All are forgotten when so many are: of the others one in four would be taken for one of them.
pub(crate) const MARKS_MAX: usize = MARKS / 4;

/// The start of a range whose rows lie apart.
pub(crate) struct OutOfOrder {
    pub(crate) table: u32,
    pub(crate) key: SmallVec<[u8; 32]>,
}

/// What scans and the consolidation thread share.
pub(crate) struct ReorderQueue {
    /// A bit for each row that a scan remembered, by a hash of its place; empty where nothing is reordered.
    pub(crate) seen: Box<[AtomicU64]>,
    pub(crate) marks: AtomicUsize,
    pub(crate) waiting: Mutex<Vec<OutOfOrder>>,
    pub(crate) rows: AtomicU64,
    /// A range waited for room that gc could make.
    pub(crate) lacks_room: AtomicBool,
}

impl ReorderQueue {
    pub(crate) fn new(wanted: bool) -> ReorderQueue {
        let words = if wanted { MARKS / 64 } else { 0 };
        ReorderQueue {
            seen: (0..words).map(|_| AtomicU64::new(0)).collect(),
            marks: AtomicUsize::new(0),
            waiting: Mutex::new(Vec::with_capacity(WAITING_MAX)),
            rows: AtomicU64::new(0),
            lacks_room: AtomicBool::new(false),
        }
    }

    /// Whether a range waited for room since this was asked last.
    pub(crate) fn take_lack_of_room(&self) -> bool {
        self.lacks_room.swap(false, Ordering::Relaxed)
    }

    /// Rows copied so far.
    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    pub(crate) fn is_wanted(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Remembers the rows that are to be; whether some were already.
    pub(crate) fn remember(&self, slots: &[Slot]) -> bool {
        let mut met = false;
        for slot in slots.iter().filter_map(|slot| slot.in_log()) {
            let hash = (slot.offset() >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            if !(hash >> 58).is_multiple_of(SAMPLE) {
                continue;
            }
            let (word, bit) = (&self.seen[(hash >> 32) as usize % self.seen.len()], 1 << (hash >> 26 & 63));
            if word.load(Ordering::Relaxed) & bit != 0 {
                met = true;
            } else {
                word.fetch_or(bit, Ordering::Relaxed);
                self.marks.fetch_add(1, Ordering::Relaxed);
            }
        }
        met
    }

    pub(crate) fn forget_if_full(&self) {
        if self.marks.load(Ordering::Relaxed) >= MARKS_MAX {
            self.seen.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.marks.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn enqueue(&self, table: u32, key: &[u8]) {
        let Some(mut waiting) = self.waiting.try_lock() else { return };
        if waiting.len() < WAITING_MAX {
            waiting.push(OutOfOrder { table, key: SmallVec::from_slice(key) });
        }
    }
}
