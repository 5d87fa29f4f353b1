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
//! read would be copied again and again. Consolidation never takes space that writers may be short of, nor,
//! for rows whose keys are sealed, memory that the index is short of.
//!
//! Where the medium allows it, fixed fields are merged in place instead (`in_place.rs`). That can only be done some time after
//! the keys were queued, so they age for a round; what cannot be merged so is copied.
//!
//! Nobody waits for it: if the queue is full or somebody else is at it, the key is not queued, and the next caller will queue it.

mod in_place;

use std::time::Duration;

use smallvec::SmallVec;

use in_place::InPlaceMerge;

use crate::Result;
use crate::db::chain::{Chain, prefetch_chains};
use crate::db::counters::Count;
use crate::db::engine::{Engine, TableShared};
use crate::db::read::GROUP;
use crate::index::{LogSlot, Slot, Tag};
use crate::log::segment::SegmentKind;
use crate::scheduler::IdleBackoff;
use crate::scheduler::merge_queue::{Aged, QueuedKey, WAITING_MAX};
use crate::space::Claim;
use crate::sync::atomic::Ordering;

const POLL_INTERVAL: Duration = Duration::from_millis(4);
/// What readers find is merged while there are at least this many reads for an update.
const READS_PER_UPDATE: u64 = 8;
/// A scan counts as this many reads.
const READS_PER_SCAN: u64 = 16;

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
            self.merge_queue.reads_count.store(reads >= updates * READS_PER_UPDATE, Ordering::Relaxed);
            let mut count = self.consolidate_queued(&mut queued);
            worked = self.reorder_queued() | (count > 0);
            // Keys merged in place have to age first: another round finds nothing to do.
            while count == WAITING_MAX && !self.merges_in_place && !self.scheduler.is_stopped() {
                count = self.consolidate_queued(&mut queued);
            }
        }
    }

    /// Merges what was queued, unless space is low; returns how many keys were. What fails is left to the next caller who
    /// meets it, and who is told.
    fn consolidate_queued(&self, queued: &mut Vec<QueuedKey>) -> usize {
        std::mem::swap(queued, &mut *self.merge_queue.waiting.lock());
        self.merge_queue.room.store(self.options.merge, Ordering::Relaxed);
        let count = queued.len();
        if self.merges_in_place {
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
        let mut aging = self.merge_queue.aging.lock();
        if let Some(aged) = &*aging {
            if !self.epoch.is_quiescent_since(aged.epoch) {
                return self.merge_queue.requeue(queued);
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
    /// writes up to `through` have aged; the others by copy, unless space is low. Those whose rows are not in the log come last: a look for them may take
    /// long, and pins nothing but its own.
    fn consolidate_group(&self, group: &[QueuedKey], through: Option<u64>) {
        let [first, ..] = group else { return };
        if group.iter().any(|queued| queued.table != first.table) {
            return group
                .iter()
                .for_each(|queued| self.consolidate_group(std::slice::from_ref(queued), through));
        }
        let Some(table) = self.catalog.by_id(first.table) else { return };
        let keys: SmallVec<[&[u8]; GROUP]> = group.iter().map(QueuedKey::key).collect();
        let (mut found, mut wanted) = ([None; GROUP], [None; GROUP]);
        let guard = self.log.pin();
        match self.is_index_tight() {
            // What is merged is young afterwards: of sealed rows nobody bounds that while no seal can follow.
            true => table.levels.locate_young(&keys, &guard, &mut found),
            false => table.levels.locate_many(&keys, &guard, &mut found),
        }
        let still =
            |slot: &LogSlot, queued: &QueuedKey| slot.tag() == Tag::Delta && slot.depth() >= queued.depth;
        for ((wanted, slot), queued) in wanted.iter_mut().zip(found).zip(group) {
            *wanted = slot.and_then(Slot::in_log).filter(|slot| still(slot, queued));
        }
        prefetch_chains(guard.view(), wanted);
        let mut chains: SmallVec<[(LogSlot, Chain<'_>); GROUP]> = SmallVec::new();
        chains.extend(
            wanted
                .into_iter()
                .flatten()
                .filter_map(|slot| Some((slot, Chain::walked(guard.view(), slot).ok()?))),
        );
        let mut done: SmallVec<[bool; GROUP]> = SmallVec::from_elem(false, chains.len());
        // While a gc cycle runs, the row is copied instead.
        if let Some(through) = through
            && let Some(_alone) = self.gc.lock.try_write()
            && self.log.check_writable().is_ok()
            // What is being copied must stand still.
            && !self.backups.is_active()
        {
            // What is newer than a snapshot cannot be merged in place under it. Snapshots taken later are newer.
            let through = self.snapshots.oldest().unwrap_or(u64::MAX).min(through);
            let merge = self.in_place_merge();
            done = merge.merge(&table, &chains, through);
            if self.log.check_writable().is_err() {
                // It was cut off perhaps, by whoever closed the store: only a walk mends that.
                self.gc.needs_walk.store(true, Ordering::Relaxed);
            }
            let count = done.iter().filter(|done| **done).count() as u64;
            self.merge_queue.in_place.fetch_add(count, Ordering::Relaxed);
            self.merge_queue.merged.fetch_add(count, Ordering::Relaxed);
        }
        if self.gc.throttle.is_on() {
            return;
        }
        // A chain that grew while it aged will be queued again, unless it can grow no more.
        let comes_again = |slot: &LogSlot, chain: &Chain<'_>| {
            through.is_some_and(|through| chain.newest().sequence() > through)
                && slot.depth() < self.options.delta_chain_max
        };
        for ((slot, chain), done) in chains.iter().zip(done) {
            if done || comes_again(slot, chain) {
                continue;
            }
            if self.merge_row(&table, *slot, chain).unwrap_or(false) {
                self.merge_queue.merged.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(chains);
        drop(guard);
        self.consolidate_blind(&table, group, &found);
    }

    /// Merges chains whose rows are not in the log. One that a reader met becomes a row, which the reader has just had brought; one that is full becomes one
    /// delta, without a look at what is below.
    fn consolidate_blind(&self, table: &TableShared, group: &[QueuedKey], found: &[Option<Slot>; GROUP]) {
        for (queued, _) in group.iter().zip(found).filter(|(_, slot)| slot.is_some_and(is_blind)) {
            let view = self.read_view();
            let slot = table.levels.locate(queued.key(), view.guard()).filter(|slot| is_blind(*slot));
            let Some(slot) = slot.and_then(Slot::in_log).filter(|slot| slot.depth() >= queued.depth) else {
                continue;
            };
            let merged = match queued.depth {
                1 => view.with_lower((table, queued.key()), slot, |chain| self.merge_row(table, slot, chain)),
                _ => Chain::walked(view.log(), slot).and_then(|chain| self.merge_row(table, slot, &chain)),
            };
            if merged.unwrap_or(false) {
                self.merge_queue.merged.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn in_place_merge(&self) -> InPlaceMerge<'_> {
        InPlaceMerge { log: &self.log, line_flush: self.options.line_flush }
    }

    pub(crate) fn merge_row(&self, table: &TableShared, slot: LogSlot, chain: &Chain<'_>) -> Result<bool> {
        Ok(self.write_merged(table, slot, chain, SegmentKind::Row, Claim::Write)?.is_some())
    }
}

fn is_blind(slot: Slot) -> bool {
    slot.tag() == Tag::Blind
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
