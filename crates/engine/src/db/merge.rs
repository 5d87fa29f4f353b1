//! The merger: writes whole again, off every caller's path, the rows that reads keep finding in pieces.
//!
//! A read of a row with deltas costs a miss more for each of them. A reader that meets one leaves the row's key in a
//! queue; a thread of its own takes the keys out, merges each chain and publishes the whole row over it, as the collector
//! does. So rows that are read become cheap to read, rows that are only written keep their cheap deltas, and a scan
//! leaves its rows behind next to one another.
//!
//! While a good part of the calls are updates it stays out of the way: a row that is changed as often as it is read would
//! be copied again and again. It never takes space that writers may be short of.
//!
//! Readers never wait: if the queue is full or somebody else is at it, the key is not noted, and the next reader will.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::metrics::Count;
use super::store::{Store, TableShared};
use crate::Result;
use crate::index::Tag;
use crate::log::segment::{Claim, SegmentKind};

/// Keys that can wait.
const WAITING_MAX: usize = 1024;
/// Rows with longer keys are left to the writers and the collector.
const KEY_BYTES_MAX: usize = 59;
const PACE: Duration = Duration::from_millis(4);
/// Merging goes on while there are at least this many reads for an update.
const READS_PER_UPDATE: u64 = 8;
/// A scan counts as this many reads.
const READS_PER_SCAN: u64 = 16;

/// A key that was found with deltas.
#[derive(Clone, Copy)]
struct Noted {
    table: u32,
    key_bytes: u8,
    key: [u8; KEY_BYTES_MAX],
}

/// What readers and the merger share.
pub(crate) struct Merging {
    wanted: AtomicBool,
    waiting: Mutex<Vec<Noted>>,
    merged: AtomicU64,
}

impl Merging {
    /// `wanted`: whether keys are noted from the start.
    pub(super) fn new(wanted: bool) -> Merging {
        Merging {
            wanted: AtomicBool::new(wanted),
            waiting: Mutex::new(Vec::with_capacity(WAITING_MAX)),
            merged: AtomicU64::new(0),
        }
    }

    /// Notes a key, if that can be done at once.
    #[inline]
    pub(super) fn note(&self, table: &TableShared, key: &[u8]) {
        if self.wanted.load(Ordering::Relaxed) {
            self.note_wanted(table, key);
        }
    }

    fn note_wanted(&self, table: &TableShared, key: &[u8]) {
        let Some(mut waiting) = self.waiting.try_lock() else { return };
        if key.len() > KEY_BYTES_MAX || waiting.len() == WAITING_MAX {
            return;
        }
        let table = table.id.load(Ordering::Relaxed);
        let mut noted = Noted { table, key_bytes: key.len() as u8, key: [0; KEY_BYTES_MAX] };
        noted.key[..key.len()].copy_from_slice(key);
        waiting.push(noted);
        if waiting.len() == WAITING_MAX {
            self.wanted.store(false, Ordering::Relaxed);
        }
    }

    /// Chains merged so far.
    pub(super) fn merged(&self) -> u64 {
        self.merged.load(Ordering::Relaxed)
    }
}

/// Recent calls, older ones counting for less.
#[derive(Default)]
struct Recent {
    last: u64,
    weight: u64,
}

impl Recent {
    fn advance(&mut self, total: u64) -> u64 {
        self.weight = self.weight * 15 / 16 + (total - self.last);
        self.last = total;
        self.weight
    }
}

impl Store {
    /// The merger's thread.
    pub(super) fn keep_merged(&self) {
        let (mut reads, mut updates) = (Recent::default(), Recent::default());
        let mut noted = Vec::with_capacity(WAITING_MAX);
        while self.housekeeping.sleep(PACE) {
            let scans = self.counters.sum(Count::Scan) * READS_PER_SCAN;
            let reads = reads.advance(self.counters.sum(Count::Get) + scans);
            let updates = updates.advance(self.counters.sum(Count::Update));
            let worth_it = reads >= updates * READS_PER_UPDATE && self.collector.pressure() == 0;
            while self.merge_noted(&mut noted, worth_it) == WAITING_MAX {}
        }
    }

    /// Merges what was noted, if it is `worth_it`; returns how many keys were. What fails is left to the next reader, or
    /// to the writer or collector who will be told.
    fn merge_noted(&self, noted: &mut Vec<Noted>, worth_it: bool) -> usize {
        std::mem::swap(noted, &mut *self.merging.waiting.lock());
        self.merging.wanted.store(worth_it, Ordering::Relaxed);
        if worth_it {
            noted.iter().for_each(|noted| drop(self.merge_row(noted)));
        }
        let count = noted.len();
        noted.clear();
        count
    }

    /// [`Store::merge_noted`] for a store without threads.
    pub(super) fn merge_now(&self) {
        self.merge_noted(&mut Vec::with_capacity(WAITING_MAX), true);
    }

    fn merge_row(&self, noted: &Noted) -> Result<()> {
        let Some(table) = self.catalog.by_id(noted.table) else { return Ok(()) };
        let guard = self.pin();
        let slot = table.index.get(&noted.key[..usize::from(noted.key_bytes)], &guard);
        let Some(slot) = slot.filter(|slot| slot.tag() == Tag::Delta) else { return Ok(()) };
        let chain = self.chain(slot)?;
        if self.write_merged(&table, slot, &chain, SegmentKind::Row, Claim::Write)? {
            self.merging.merged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
