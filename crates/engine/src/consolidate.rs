//! Delta consolidation: merges chains of deltas into whole rows, off every caller's path.
//!
//! A read of a row with deltas costs a miss more for each of them, and the update that finds the chain full must read it
//! all. Both leave the row's key in a queue: a reader when it meets deltas, a writer when it has filled a chain. A thread
//! of its own takes the keys out, merges each chain and publishes the whole row over it, as gc does. It looks
//! at many rows at a time, so that their misses overlap: to a caller they would come one after the other. So rows that
//! are read become cheap to read, rows that are only written keep their cheap deltas, and a scan leaves its rows behind
//! next to one another.
//!
//! While a good part of the calls are updates, what readers find is left alone: a row that is changed as often as it is
//! read would be copied again and again. Consolidation never takes space that writers may be short of.
//!
//! Where the medium allows it, fixed fields are merged in place instead (`in_place.rs`). That can only be done some time after
//! the keys were queued, so they age for a round; what cannot be merged so is copied.
//!
//! Nobody waits for it: if the queue is full or somebody else is at it, the key is not queued, and the next caller will queue it.

pub(crate) mod in_place;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::Result;
use crate::db::chain::{Chain, prefetch_chains};
use crate::db::engine::{Engine, TableShared};
use crate::db::metrics::Count;
use crate::db::read::GROUP;
use crate::index::{Slot, Tag};
use crate::log::segment::{Claim, SegmentKind};
use crate::scheduler::IdleBackoff;

/// Keys that can wait.
const WAITING_MAX: usize = 4096;
/// Rows with longer keys are left to the writers and gc.
const KEY_BYTES_MAX: usize = 58;
const POLL_INTERVAL: Duration = Duration::from_millis(4);
/// What readers find is merged while there are at least this many reads for an update.
const READS_PER_UPDATE: u64 = 8;
/// A scan counts as this many reads.
const READS_PER_SCAN: u64 = 16;

/// A key whose row has at least `depth` deltas.
#[derive(Clone, Copy)]
struct QueuedKey {
    table: u32,
    depth: u8,
    key_bytes: u8,
    key: [u8; KEY_BYTES_MAX],
}

impl QueuedKey {
    fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.key_bytes)]
    }
}

/// Keys queued a while ago.
struct Aged {
    queued: Vec<QueuedKey>,
    /// Every write up to this sequence is durable, and was visible to all in the epoch.
    through: u64,
    epoch: u64,
}

/// What callers and the consolidation thread share.
pub(crate) struct Consolidation {
    /// Whether there is room in the queue; looked at before the queue is.
    room: AtomicBool,
    /// Whether readers are to queue what they find.
    reads_count: AtomicBool,
    waiting: Mutex<Vec<QueuedKey>>,
    /// Keys that will be merged in place when nobody can see their rows without their deltas any more.
    aging: Mutex<Option<Aged>>,
    merged: AtomicU64,
    in_place: AtomicU64,
}

impl Consolidation {
    /// `wanted`: whether keys are queued at all; `reads_count`: whether readers queue them from the start.
    pub(crate) fn new(wanted: bool, reads_count: bool) -> Consolidation {
        Consolidation {
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
    pub(crate) fn found(&self, table: &TableShared, key: &[u8]) {
        if self.reads_count.load(Ordering::Relaxed) && self.room.load(Ordering::Relaxed) {
            self.enqueue(table, key, 1);
        }
    }

    /// For a writer that made a chain as long as it may be.
    #[inline]
    pub(crate) fn filled(&self, table: &TableShared, key: &[u8], depth: u8) {
        if self.room.load(Ordering::Relaxed) {
            self.enqueue(table, key, depth);
        }
    }

    /// Whether rows are read far more often than updated.
    pub(crate) fn reads_prevail(&self) -> bool {
        self.reads_count.load(Ordering::Relaxed)
    }

    fn enqueue(&self, table: &TableShared, key: &[u8], depth: u8) {
        let Some(mut waiting) = self.waiting.try_lock() else { return };
        if key.len() > KEY_BYTES_MAX || waiting.len() == WAITING_MAX {
            return;
        }
        let table = table.id.load(Ordering::Relaxed);
        let mut queued = QueuedKey { table, depth, key_bytes: key.len() as u8, key: [0; KEY_BYTES_MAX] };
        queued.key[..key.len()].copy_from_slice(key);
        waiting.push(queued);
        if waiting.len() == WAITING_MAX {
            self.room.store(false, Ordering::Relaxed);
        }
    }

    /// Puts keys that were taken out back, as far as there is room.
    fn requeue(&self, queued: &mut Vec<QueuedKey>) {
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

/// Recent calls, older ones counting for less.
#[derive(Default)]
struct Recent {
    last: u64,
    weight: u64,
}

impl Recent {
    fn advance(&mut self, total: u64) -> u64 {
        // Threads that share a stripe of the counters may take counts back.
        self.weight = self.weight * 15 / 16 + total.saturating_sub(self.last);
        self.last = total;
        self.weight
    }
}

impl Engine {
    /// The consolidation thread.
    pub(crate) fn consolidation_loop(&self) {
        let (mut reads, mut updates) = (Recent::default(), Recent::default());
        let mut queued = Vec::with_capacity(WAITING_MAX);
        let (mut backoff, mut worked) = (IdleBackoff::new(POLL_INTERVAL), true);
        // After a failed sync nothing can be written any more.
        while self.scheduler.back_off(&mut backoff, || worked) && self.log.check_writable().is_ok() {
            let scans = self.counters.sum(Count::Scan) * READS_PER_SCAN;
            let reads = reads.advance(self.counters.sum(Count::Get) + scans);
            let updates = updates.advance(self.counters.sum(Count::Update));
            self.consolidation.reads_count.store(reads >= updates * READS_PER_UPDATE, Ordering::Relaxed);
            let mut count = self.consolidate_queued(&mut queued);
            worked = self.reorder_queued() | (count > 0);
            // Keys merged in place have to age first: another round finds nothing to do.
            while count == WAITING_MAX && !self.merges_in_place() && !self.scheduler.is_stopped() {
                count = self.consolidate_queued(&mut queued);
            }
        }
    }

    /// Merges what was queued, unless space is low; returns how many keys were. What fails is left to the next caller who
    /// meets it, and who is told.
    fn consolidate_queued(&self, queued: &mut Vec<QueuedKey>) -> usize {
        std::mem::swap(queued, &mut *self.consolidation.waiting.lock());
        self.consolidation.room.store(self.options.merge, Ordering::Relaxed);
        let count = queued.len();
        if self.merges_in_place() {
            self.age(queued);
            return count;
        }
        if !self.gc.throttle.is_on() {
            queued.chunks(GROUP).for_each(|group| self.consolidate_group(group, None));
        }
        queued.clear();
        count
    }

    /// Merges the keys that have aged and lets those in `queued` do so; while some still do, they wait.
    fn age(&self, queued: &mut Vec<QueuedKey>) {
        let mut aging = self.consolidation.aging.lock();
        if let Some(aged) = &*aging {
            if !self.epoch.is_quiescent_since(aged.epoch) {
                return self.consolidation.requeue(queued);
            }
            aged.queued.chunks(GROUP).for_each(|group| self.consolidate_group(group, Some(aged.through)));
            *aging = None;
        }
        // PERSIST: the deltas are durable, and the root says so, before they are merged: a torn row under the watermark
        // is one that was being merged, not the end of the log.
        if !queued.is_empty()
            && let Ok(through) = self.log.checkpoint()
        {
            *aging = Some(Aged { queued: std::mem::take(queued), through, epoch: self.epoch.current() });
        }
    }

    /// A round for a store without threads.
    pub(crate) fn consolidate_now(&self) {
        // The second time what the first has let age.
        let mut queued = Vec::with_capacity(WAITING_MAX);
        self.consolidate_queued(&mut queued);
        self.consolidate_queued(&mut queued);
        self.reorder_queued();
    }

    /// Merges the rows of neighbours in the queue, if they are of one table; else one by one. In place what can be, if all
    /// writes up to `through` have aged; the others by copy, unless space is low.
    fn consolidate_group(&self, group: &[QueuedKey], through: Option<u64>) {
        let [first, ..] = group else { return };
        if group.iter().any(|queued| queued.table != first.table) {
            return group
                .iter()
                .for_each(|queued| self.consolidate_group(std::slice::from_ref(queued), through));
        }
        let Some(table) = self.catalog.by_id(first.table) else { return };
        let keys: SmallVec<[&[u8]; GROUP]> = group.iter().map(QueuedKey::key).collect();
        let mut found = [None; GROUP];
        let guard = self.pin();
        table.index.rows().multi_get(&keys, &guard, &mut found);
        let still = |slot: Slot, queued: &QueuedKey| slot.tag() == Tag::Delta && slot.depth() >= queued.depth;
        for (slot, queued) in found.iter_mut().zip(group) {
            *slot = slot.filter(|slot| still(*slot, queued));
        }
        prefetch_chains(&self.log, found);
        let mut chains: SmallVec<[(Slot, Chain<'_>); GROUP]> = SmallVec::new();
        chains.extend(
            found.into_iter().flatten().filter_map(|slot| Some((slot, Chain::walked(&self.log, slot).ok()?))),
        );
        let mut done: SmallVec<[bool; GROUP]> = SmallVec::from_elem(false, chains.len());
        // While a gc cycle runs, the row is copied instead.
        if let Some(through) = through
            && let Some(_alone) = self.gc.lock.try_write()
            // What is being copied must stand still.
            && !self.backups.is_active()
        {
            // What is newer than a snapshot cannot be merged in place under it. Snapshots taken later are newer.
            let through = self.snapshots.oldest().unwrap_or(u64::MAX).min(through);
            done = self.merge_in_place(&table, &chains, through);
            let count = done.iter().filter(|done| **done).count() as u64;
            self.consolidation.in_place.fetch_add(count, Ordering::Relaxed);
            self.consolidation.merged.fetch_add(count, Ordering::Relaxed);
        }
        if self.gc.throttle.is_on() {
            return;
        }
        // A chain that grew while it aged will be queued again, unless it can grow no more.
        let comes_again = |slot: &Slot, chain: &Chain<'_>| {
            through.is_some_and(|through| chain.newest().sequence() > through)
                && slot.depth() < self.options.delta_chain_max
        };
        for ((slot, chain), done) in chains.iter().zip(done) {
            if done || comes_again(slot, chain) {
                continue;
            }
            if self.merge_row(&table, *slot, chain).unwrap_or(false) {
                self.consolidation.merged.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn merge_row(&self, table: &TableShared, slot: Slot, chain: &Chain<'_>) -> Result<bool> {
        self.write_merged(table, slot, chain, SegmentKind::Row, Claim::Write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_go_back_weigh_nothing() {
        let mut recent = Recent::default();
        assert_eq!(recent.advance(160), 160);
        assert_eq!(recent.advance(40), 150);
        assert_eq!(recent.advance(56), 156);
    }
}
