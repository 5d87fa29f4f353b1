//! Space: the extents of the fast tier, free, in use, and those it may grow by.
//!
//! Owns the way of an extent from the medium to whoever takes it, and back: the tier's growth, what is held back from whom, what is
//! touched ahead of its use, and what is given back to the disk. How much room is left ([`Space::room`]) is what the throttle goes by. Promises that an extent is nobody's
//! or one's: taken once, until it is freed. Must not know what an extent is taken for: segments are the log's.

mod pool;
#[cfg(all(test, shuttle))]
mod shuttle;

use std::ops::Range;
use std::time::Duration;

use hedgerow_device::{Clock, DeviceError, TierBytes};
use pool::{NoExtent, Pool};

use crate::Result;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, zeroed_words};

/// What is kept of an extent that is given back: the page of its header.
pub(crate) const KEPT_BYTES: u64 = 4096;
/// So many free extents at a time are tried on a full disk, whether one has its blocks.
const TRIES_MAX: usize = 64;

/// Who asks for space. Each may use what the ones before may not, so that a full store can always be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    Write,
    /// A row in the place of another, or a change to one: what it replaces can be collected, so that it goes on when the
    /// store is full.
    Overwrite,
    /// What stays in the log while others of its segment move: what those leave behind that are changed meanwhile must find room after it, or no victim of the move could be freed.
    Stay,
    /// A row in the place of a delta in a victim: gc may write more than it frees.
    Merge,
    Delete,
    Gc,
    /// Gc's, for what surely fits one extent and frees one at least: it must not be without any when the process
    /// ends, for what is open then is closed for good.
    LastExtent,
}

impl Claim {
    /// Extents that must be left after the claim is served.
    pub(crate) fn reserve(self) -> u32 {
        match self {
            Claim::Write => 4,
            Claim::Overwrite | Claim::Stay => 3,
            Claim::Merge => 2,
            Claim::Delete => 2,
            Claim::Gc => 1,
            Claim::LastExtent => 0,
        }
    }
}

/// A claim that was refused: there was no extent for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) claim: Claim,
    /// How often extents had come back by then. A wait that knows of it does not sleep over one that came back since.
    pub(crate) returns: u64,
}

/// How a tier is parted into extents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpaceLayout {
    /// An extent has two to the power of this many bytes.
    pub(crate) extent_shift: u32,
    /// The first extents are the root's.
    pub(crate) root_extents: u32,
    /// Extents that the tier has now.
    pub(crate) grown: u32,
    /// Extents that may be in use.
    pub(crate) extents_max: u32,
    /// How many extents are as long as a large one.
    pub(crate) per_large: u32,
}

/// The extents of one open store's fast tier.
#[derive(Debug)]
pub(crate) struct Space {
    tier: TierBytes,
    /// The store's: paces growth and giving back.
    clock: Clock,
    extent_shift: u32,
    pool: Mutex<Pool>,
    /// An extent came back to the pool: it was freed, touched ahead of its use, or was not given to the disk after all.
    returned: Condvar,
    /// Writers wait for syncs: pages are made ready for small ones.
    syncs_each_write: bool,
    /// By extent, 1: its pages are in memory one by one (see [`TierBytes::populate_for_small_syncs`]).
    has_small_pages: Box<[AtomicU64]>,
}

impl Space {
    /// Of a tier of which no extent beyond the root's is known to be free.
    pub(crate) fn new(tier: TierBytes, clock: Clock, layout: SpaceLayout, syncs_each_write: bool) -> Space {
        let SpaceLayout { extent_shift, root_extents, grown, extents_max, per_large } = layout;
        let now = Duration::from_nanos(clock.monotonic_ns());
        let count = if syncs_each_write { extents_max.max(grown) } else { 0 };
        Space {
            tier,
            clock,
            extent_shift,
            pool: Mutex::new(Pool::new(root_extents, grown, extents_max, per_large, now)),
            returned: Condvar::new(),
            syncs_each_write,
            has_small_pages: zeroed_words(count as usize),
        }
    }

    #[inline]
    pub(crate) fn extent_shift(&self) -> u32 {
        self.extent_shift
    }

    #[inline]
    pub(crate) fn extent_bytes(&self) -> u64 {
        1 << self.extent_shift
    }

    /// Where an extent begins in the tier.
    #[inline]
    pub(crate) fn extent_offset(&self, extent: u32) -> u64 {
        u64::from(extent) << self.extent_shift
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_ns())
    }

    /// Extents that were found free when the store was opened. Their blocks may have been given back.
    pub(crate) fn add_found(&self, extents: Range<u32>) {
        let mut pool = self.pool.lock();
        extents.for_each(|extent| pool.add_bare(extent));
    }

    /// Makes what was found ready to be taken: what is to be held back has blocks. Above the limit what is free is not kept for later.
    pub(crate) fn open(&self) -> Result<()> {
        let mut pool = self.pool.lock();
        self.hold_back(&mut pool)?;
        if pool.grown > pool.extents_max {
            pool.all_bare().into_iter().for_each(|extent| {
                self.release(extent);
            });
        }
        Ok(())
    }

    /// Finds, of the free extents, enough that have blocks or are given some: what was held back when the store was closed, or
    /// its process killed, is held back again.
    fn hold_back(&self, pool: &mut Pool) -> Result<()> {
        // The low ones stayed when extents were given back.
        for extent in pool.all_bare().into_iter().take(TRIES_MAX) {
            if pool.is_held_back() {
                return Ok(());
            }
            match self.tier.allocate(self.extent_offset(extent), self.extent_bytes()) {
                Ok(()) => pool.has_allocated(extent),
                // The disk is full: but the next one may have its blocks still.
                Err(DeviceError::Full { .. }) => drop(pool.lacks_blocks(extent)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes `extents` adjoining extents, the first of which it returns, if there is room for them.
    pub(crate) fn take(&self, extents: u32, claim: Claim) -> Result<std::result::Result<u32, NoRoom>> {
        let mut pool = self.pool.lock();
        self.look_at_disk(&mut pool);
        loop {
            match pool.take(extents, claim, self.now()) {
                Ok(extent) => return Ok(Ok(extent)),
                Err(NoExtent::Grow(more)) => {
                    if let Err(refused) = self.grow(&mut pool, more) {
                        // What is held back is for such claims, and may do.
                        return pool.take_free(extents, claim).map(Ok).map_err(|_| refused);
                    }
                }
                Err(NoExtent::Full) => return Ok(Err(NoRoom { claim, returns: pool.returns() })),
            }
        }
    }

    /// Frees extents that were taken.
    ///
    /// PERSIST: what is to be found there after a crash says durably that they are free; the rest may be lost from now on.
    pub(crate) fn free(&self, extents: Range<u32>) {
        let mut pool = self.pool.lock();
        extents.for_each(|extent| pool.add_free(extent));
        self.returned.notify_all();
    }

    /// Grows the tier by `extents`, by more while it is large, or by fewer where there is no room for so many. A disk that is
    /// full is recorded in the pool, and no error.
    fn grow(&self, pool: &mut Pool, extents: u32) -> Result<()> {
        if let Some(allocated) = self.allocate_bare(pool) {
            return allocated;
        }
        // A little at a time while the store is small, 64 MiB at a time later.
        let step = extents.max((pool.segment_extents() / 2).min((64 << 20 >> self.extent_shift) as u32));
        let room = pool.extents_max.saturating_sub(pool.grown);
        let (mut outcome, mut wanted) = (Ok(()), 0);
        for extents in [step, extents, 1].map(|extents| extents.min(room)) {
            wanted = extents;
            outcome = self.tier.grow(u64::from(pool.grown + wanted) << self.extent_shift);
            if !matches!(outcome, Err(DeviceError::Full { .. })) {
                break;
            }
        }
        self.record_growth(pool, outcome, |pool| pool.has_grown(wanted))
    }

    /// Allocates a free extent again, in the place of growth; `None` if there is none to allocate. Whatever the disk has, those that were found
    /// when the store was opened may have their blocks still: where one is refused the next is tried.
    fn allocate_bare(&self, pool: &mut Pool) -> Option<Result<()>> {
        let mut tries = 0;
        loop {
            let extent = pool.first_bare()?;
            let outcome = self.tier.allocate(self.extent_offset(extent), self.extent_bytes());
            tries += 1;
            let is_full = matches!(outcome, Err(DeviceError::Full { .. }));
            if !is_full || !pool.lacks_blocks(extent) || tries == TRIES_MAX {
                return Some(self.record_growth(pool, outcome, |pool| pool.has_allocated(extent)));
            }
        }
    }

    /// What the medium answered to a growth goes into the pool, and is an error unless the disk is full.
    fn record_growth(
        &self,
        pool: &mut Pool,
        outcome: std::result::Result<(), DeviceError>,
        done: impl FnOnce(&mut Pool),
    ) -> Result<()> {
        self.look_at_disk(pool);
        match outcome {
            Ok(()) => done(pool),
            Err(full @ DeviceError::Full { .. }) => pool.refused(full.to_string(), self.now()),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Asks the disk how much room it has. What blocks the file has in extents of which that is not known is room as well: they are had again
    /// however full the disk is.
    fn look_at_disk(&self, pool: &mut Pool) {
        let extents = |bytes: u64| u32::try_from(bytes >> self.extent_shift).unwrap_or(u32::MAX);
        let (allocated, bare) = pool.blocks_known();
        let known = (u64::from(allocated) << self.extent_shift) + u64::from(bare) * KEPT_BYTES;
        let in_file = if bare > 0 { self.tier.allocated_bytes() } else { None };
        let unknown = in_file.map_or(0, |bytes| bytes.saturating_sub(known));
        pool.set_disk_extents(self.tier.free_bytes().map(|free| extents(free.saturating_add(unknown))));
    }

    /// Gives free extents that nobody wants back to the disk, all but the page of their header, as long as `is_wanted` says so. Called by the
    /// prefault thread; its calls must not meet. Returns how many.
    pub(crate) fn give_back(&self, is_wanted: impl Fn() -> bool) -> u32 {
        let surplus = self.pool.lock().surplus(self.now());
        (0..surplus).map_while(|_| (is_wanted() && self.give_back_one()).then_some(())).count() as u32
    }

    fn give_back_one(&self) -> bool {
        let Some(extent) = self.pool.lock().next_to_release() else { return false };
        let released = self.release(extent);
        let mut pool = self.pool.lock();
        pool.has_released(extent, released);
        self.returned.notify_all();
        released
    }

    /// Gives back a free extent that nobody can take meanwhile.
    fn release(&self, extent: u32) -> bool {
        // PERSIST: the header says durably that the extent is free, or there never was one, and it stays: whatever a crash
        // leaves of the rest, old bytes or zeros, nobody looks at it.
        let (offset, bytes) = (self.extent_offset(extent) + KEPT_BYTES, self.extent_bytes() - KEPT_BYTES);
        if let Some(small) = self.has_small_pages.get(extent as usize) {
            small.store(0, Ordering::Relaxed);
        }
        self.tier.release(offset, bytes)
    }

    /// Takes extents that were found free when the store was opened, as they are: those that something lies in which was left there. Of each that was free it returns whether it is known to have blocks.
    pub(crate) fn hold_found(&self, extents: impl Iterator<Item = u32>) -> Vec<(u32, bool)> {
        let mut pool = self.pool.lock();
        extents.filter_map(|extent| Some((extent, pool.hold(extent)?))).collect()
    }

    /// Gives extents that were [held](Space::hold_found) back; if so `released`, blocks that were not held back for others go to the disk.
    pub(crate) fn give_back_found(&self, extents: &[(u32, bool)], released: bool) {
        let mut pool = self.pool.lock();
        for &(extent, has_blocks) in extents {
            if has_blocks {
                pool.add_free(extent);
            } else {
                pool.add_bare(extent);
            }
            if released && !has_blocks && self.release(extent) {
                pool.gave_back();
            }
        }
    }

    /// Holds back what is to be, once some of it was taken for what lay there.
    pub(crate) fn hold_back_again(&self) -> Result<()> {
        self.hold_back(&mut self.pool.lock())
    }

    /// Touches free extents ahead of whoever writes to them, so that writing them faults no page. Called by the prefault thread. False if there
    /// was none to touch, or `is_wanted` said before one that it is no longer.
    ///
    /// If everything is `synced_soon`, they are only mapped: a sync would write what was touched before it is used, and what is used once more.
    pub(crate) fn prefault(&self, synced_soon: bool, is_wanted: impl Fn() -> bool) -> bool {
        let mut prefaulted = false;
        self.look_at_disk(&mut self.pool.lock());
        while is_wanted() {
            let mut pool = self.pool.lock();
            let extent = match pool.next_to_prefault(self.now()) {
                None | Some(Err(NoExtent::Full)) => return prefaulted,
                Some(Ok(extent)) => extent,
                Some(Err(NoExtent::Grow(extents))) => {
                    if self.grow(&mut pool, extents).is_err() {
                        return prefaulted;
                    }
                    continue;
                }
            };
            drop(pool);
            prefaulted = true;
            let anew = self.syncs_each_write
                && self.has_small_pages[extent as usize].swap(1, Ordering::Relaxed) == 0;
            // In steps, so that a writer's own pages are not kept waiting for the mapping's lock.
            const STEP: u64 = 512 << 10;
            for step in 0..self.extent_bytes().div_ceil(STEP) {
                let offset = self.extent_offset(extent) + step * STEP;
                let bytes = STEP.min(self.extent_bytes() - step * STEP);
                match self.syncs_each_write {
                    true => self.tier.populate_for_small_syncs(offset, bytes, anew),
                    false if synced_soon && !self.tier.flush_is_cheap() => self.tier.bring(offset, bytes),
                    false => self.tier.populate(offset, bytes),
                }
            }
            let mut pool = self.pool.lock();
            pool.add_ready(extent);
            self.returned.notify_all();
        }
        prefaulted
    }

    /// Why the tier does not grow, though it has not reached its limit: the disk is full.
    pub(crate) fn disk_is_full(&self) -> Option<String> {
        let pool = self.pool.lock();
        let kept = || {
            let free = self.tier.free_bytes().unwrap_or_default();
            format!("{free} bytes of the disk are free, and kept for overwrites and deletes")
        };
        pool.is_limited_by_disk().then(|| pool.refusal().map_or_else(kept, str::to_owned))
    }

    /// Whether there is no room for a segment of `extents` now, growth included.
    pub(crate) fn lacks(&self, extents: u32, claim: Claim) -> bool {
        self.pool.lock().lacks(extents, claim)
    }

    /// Extents that can still be taken, now or in a moment, growth that the disk has room for included, and all there may be.
    pub(crate) fn room(&self) -> (u32, u32) {
        self.pool.lock().space()
    }

    /// How often extents have come back, for who waits without having been refused himself.
    pub(crate) fn returns(&self) -> u64 {
        self.pool.lock().returns()
    }

    /// Something else that writers wait for has come: who waits for an extent is to try again.
    pub(crate) fn has_changed(&self) {
        self.pool.lock().count_return();
        self.returned.notify_all();
    }

    /// Waits until an extent comes back, at most `timeout`; false if none has since `returns` was the count of them.
    pub(crate) fn wait(&self, returns: u64, timeout: Duration) -> bool {
        let mut pool = self.pool.lock();
        if pool.returns() == returns {
            self.returned.wait_for(&mut pool, timeout);
        }
        pool.returns() != returns
    }

    /// Extents in use, those of the root left out.
    pub(crate) fn segment_extents(&self) -> u32 {
        self.pool.lock().segment_extents()
    }

    /// Extents the tier has been grown to.
    pub(crate) fn grown(&self) -> u32 {
        self.pool.lock().grown
    }

    /// Bytes of the fast tier the store takes now, and may take.
    pub(crate) fn tier_bytes(&self) -> (u64, u64) {
        let pool = self.pool.lock();
        (u64::from(pool.grown) << self.extent_shift, u64::from(pool.extents_max) << self.extent_shift)
    }

    /// Bytes of the extents in use, the root's included, and how many there may be.
    pub(crate) fn bytes_used(&self) -> (u64, u64) {
        self.bytes_used_of(&self.pool.lock())
    }

    /// [`Space::bytes_used`] for who must not wait; `None` while others have hold of the extents.
    pub(crate) fn try_bytes_used(&self) -> Option<(u64, u64)> {
        self.pool.try_lock().map(|pool| self.bytes_used_of(&pool))
    }

    fn bytes_used_of(&self, pool: &Pool) -> (u64, u64) {
        (
            u64::from(pool.extents_used()) << self.extent_shift,
            u64::from(pool.extents_max) << self.extent_shift,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hedgerow_device::{CrashModel, CrashSim, FastTier, FastTierOptions};

    use super::*;
    use crate::tier::bytes_of;

    #[test]
    fn who_must_not_wait_is_told_nothing_while_others_hold_the_extents() {
        let tier = FastTier::dram(&FastTierOptions { bytes_max: 16 << 20, ..FastTierOptions::default() });
        let layout =
            SpaceLayout { extent_shift: 20, root_extents: 1, grown: 1, extents_max: 16, per_large: 1 };
        let space =
            Space::new(bytes_of(Arc::new(tier.unwrap())).unwrap(), Clock::manual(1_000), layout, false);
        let pool = space.pool.lock();
        assert_eq!(space.try_bytes_used(), None);
        drop(pool);
        assert_eq!(space.try_bytes_used(), Some((1 << 20, 16 << 20)));
    }
    /// Of what is found free the first half was given back to the disk, which others have filled since; the second half has its blocks.
    #[test]
    fn blocks_that_the_file_has_are_room_on_a_full_disk() {
        const EXTENTS: u32 = 200;
        let sim = CrashSim::new(CrashModel::Pages, u64::from(2 * EXTENTS) << 16);
        let tier = bytes_of(Arc::new(FastTier::simulated(&sim))).unwrap();
        tier.grow(u64::from(EXTENTS) << 16).unwrap();
        let (grown, extents_max) = (EXTENTS, 2 * EXTENTS);
        let layout = SpaceLayout { extent_shift: 16, root_extents: 1, grown, extents_max, per_large: 1 };
        let clock = Clock::manual(1_000);
        let space = Space::new(tier.clone(), clock.clone(), layout, false);
        (1..EXTENTS / 2).for_each(|extent| assert!(space.release(extent)));
        sim.limit_disk(tier.allocated_bytes().unwrap());
        space.add_found(1..EXTENTS);
        space.open().unwrap();
        let mut taken = 0;
        // Some extents are tried in vain at a time, and after that there is a pause.
        for _ in 0..4 {
            while let Ok(Ok(extent)) = space.take(1, Claim::Write) {
                assert!(extent >= EXTENTS / 2);
                taken += 1;
            }
            clock.advance_ms(1_000);
        }
        // Four are held back, and a sixteenth is left to those that go over others.
        assert!((EXTENTS / 2 - 12..EXTENTS / 2).contains(&taken), "{taken} of {}", EXTENTS / 2);
        assert!(matches!(space.take(1, Claim::Overwrite), Ok(Ok(_))));
    }
}
