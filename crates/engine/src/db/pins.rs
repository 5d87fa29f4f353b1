//! What must stay in the log although the store has gone on: for snapshots, and for a backup.
//!
//! Owns which snapshots are held and which segments a backup still needs. Promises that gc, which asks before it frees a
//! segment, misses none of them, not even in the making. Must not know what is read through them.

use std::collections::BTreeMap;

use crate::log::{Log, SegmentToCopy};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::{Error, ErrorKind, Result};

/// The live snapshots, by sequence.
#[derive(Default)]
pub(crate) struct Snapshots {
    live: Mutex<BTreeMap<u64, Holders>>,
    /// How many are held, and being taken.
    held: AtomicU64,
}

/// How many hold a snapshot, and when it was taken, by the clock that never goes back.
#[derive(Clone, Copy)]
struct Holders {
    count: usize,
    since_ns: u64,
}

impl Snapshots {
    /// Takes a snapshot. The registry is locked meanwhile, so that [`Snapshots::oldest`] never misses one in the making.
    pub(crate) fn take(&self, log: &Log, now_ns: u64) -> u64 {
        let mut live = self.live.lock();
        // For `are_none`, before the sequence is read.
        self.held.fetch_add(1, Ordering::SeqCst);
        let sequence = log.barrier();
        live.entry(sequence).or_insert(Holders { count: 0, since_ns: now_ns }).count += 1;
        sequence
    }

    /// Holds one that is live once more.
    pub(crate) fn retain(&self, sequence: u64) {
        if let Some(held) = self.live.lock().get_mut(&sequence) {
            held.count += 1;
            self.held.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn release(&self, sequence: u64) {
        let mut live = self.live.lock();
        if let Some(held) = live.get_mut(&sequence) {
            held.count -= 1;
            self.held.fetch_sub(1, Ordering::SeqCst);
            if held.count == 0 {
                live.remove(&sequence);
            }
        }
    }

    /// Holds the oldest once more, until what is returned is dropped.
    pub(crate) fn hold_oldest(&self) -> Option<HeldSnapshot<'_>> {
        let mut live = self.live.lock();
        let mut oldest = live.first_entry()?;
        oldest.get_mut().count += 1;
        self.held.fetch_add(1, Ordering::SeqCst);
        Some(HeldSnapshot { of: self, sequence: *oldest.key() })
    }

    /// Whether there is none, and none in the making that would not see every sequence given out so far. For who holds a
    /// appender, of its own writes: a snapshot that is not counted yet reads its sequence later, and waits for that appender.
    pub(crate) fn are_none(&self) -> bool {
        self.held.load(Ordering::SeqCst) == 0
    }

    /// How long ago the oldest was taken, in ms; `now_ns` is of the clock that [`Snapshots::take`] was told.
    pub(crate) fn oldest_age_ms(&self, now_ns: u64) -> Option<u64> {
        let live = self.live.lock();
        live.first_key_value().map(|(_, held)| now_ns.saturating_sub(held.since_ns) / 1_000_000)
    }

    pub(crate) fn oldest(&self) -> Option<u64> {
        self.live.lock().first_key_value().map(|(&sequence, _)| sequence)
    }
}

/// A snapshot that is held.
pub(crate) struct HeldSnapshot<'s> {
    of: &'s Snapshots,
    sequence: u64,
}

impl HeldSnapshot<'_> {
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl Drop for HeldSnapshot<'_> {
    fn drop(&mut self) {
        self.of.release(self.sequence);
    }
}

/// What of the log must stay where it is.
#[derive(Debug, Default)]
pub(crate) enum Pinned {
    /// There is no backup.
    #[default]
    Nothing,
    /// All: a backup is about to begin.
    Everything,
    /// By first extent, the segments that are still to be copied.
    Segments(BTreeMap<u32, SegmentToCopy>),
}

/// The backup of a store that is under way, if there is one.
#[derive(Debug, Default)]
pub(crate) struct BackupPins {
    active: AtomicBool,
    pinned: Mutex<Pinned>,
}

impl BackupPins {
    /// Whether a backup is under way: then no row is merged in place.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    /// Whether the segment at `extent` must not be freed yet.
    pub(crate) fn holds(&self, extent: u32) -> bool {
        match &*self.pinned.lock() {
            Pinned::Nothing => false,
            Pinned::Everything => true,
            Pinned::Segments(segments) => segments.contains_key(&extent),
        }
    }

    pub(crate) fn take(&self) -> Result<Pinning<'_>> {
        if self.active.swap(true, Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Locked, "a backup of this store is under way; one at a time"));
        }
        *self.pinned.lock() = Pinned::Everything;
        Ok(Pinning(self))
    }
}

/// Holds what a backup still needs; lets go of it however the backup ends.
pub(crate) struct Pinning<'p>(&'p BackupPins);

impl Pinning<'_> {
    pub(crate) fn narrow(&self, segments: &[SegmentToCopy]) {
        *self.0.pinned.lock() = Pinned::Segments(segments.iter().map(|s| (s.extent, *s)).collect());
    }

    /// The segment to be copied next: one of those that are waited for, or the first.
    pub(crate) fn next(&self, waited_for: &[u32]) -> Option<SegmentToCopy> {
        let pinned = self.0.pinned.lock();
        let Pinned::Segments(segments) = &*pinned else { return None };
        let urgent = waited_for.iter().find_map(|extent| segments.get(extent));
        urgent.or_else(|| segments.values().next()).copied()
    }

    pub(crate) fn copied(&self, extent: u32) {
        if let Pinned::Segments(segments) = &mut *self.0.pinned.lock() {
            segments.remove(&extent);
        }
    }
}

impl Drop for Pinning<'_> {
    fn drop(&mut self) {
        *self.0.pinned.lock() = Pinned::Nothing;
        self.0.active.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier};

    use crate::Db;
    use crate::db::fixture::options;

    /// Who waits for a snapshot does so as long as it is young: it grows old whatever becomes of the wall clock.
    #[test]
    fn a_snapshot_grows_old_though_the_clock_is_set() {
        let (sim, clock) = (CrashSim::new(CrashModel::Pages, 8 << 20), Clock::manual(1_000_000));
        let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
        let db = Db::open_at(tiers, options(), clock.clone()).unwrap();
        let age_ms = || db.metrics().oldest_snapshot_age_ms;
        let snapshot = db.snapshot();
        clock.advance_ms(20);
        assert_eq!(age_ms(), Some(20));
        clock.step_to_ms(5);
        assert_eq!(age_ms(), Some(20), "an hour back, and no younger");
        clock.advance_ms(1_500);
        assert_eq!(age_ms(), Some(1_520));
        clock.step_to_ms(1 << 40);
        assert_eq!(age_ms(), Some(1_520), "years ahead, and no older");
        let said = db.engine().pins().join("; ");
        assert!(said.contains("a snapshot taken 1520 ms ago"), "{said}");
        drop(snapshot);
        assert_eq!(age_ms(), None);
    }
}
