//! The pool: which extents of the fast tier are used and which are free.
//!
//! Owns the state of the fast tier's extents and the rule how many are kept back from whom. Promises that what a claim may
//! not use is there for those that may. Must not know the medium: `space.rs` makes it grow, and gives back to it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::Claim;

/// Which extents are used and which are free.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Allocated: they may be stored to.
    free: BTreeSet<u32>,
    /// Free, but all of them except the page of the header was given back to the disk: to be allocated before they are used.
    bare: BTreeSet<u32>,
    /// Those of `bare` that were found free when the store was opened, and that the disk has not refused since: they may have their blocks still.
    found: BTreeSet<u32>,
    /// Extents that are being given back.
    releasing: u32,
    /// The fewest extents that were free since `watched_since`.
    fewest_free: u32,
    /// By the log's clock, as all moments here.
    watched_since: Duration,
    /// Free, and touched already, so that writing them faults no page.
    ready: VecDeque<u32>,
    /// Extents that are being touched: neither free nor ready, but soon to be had.
    prefaulting: u32,
    /// The first of them are the root's.
    root_extents: u32,
    /// How many extents are as long as a large one: what is to be ready, kept or left over comes to as many bytes in small ones.
    per_large: u32,
    /// Extents the tier has been grown to, those of the root included.
    pub(crate) grown: u32,
    /// How many may be in use. A tier that had a larger limit once is longer.
    pub(crate) extents_max: u32,
    /// Set while the medium does not grow, though it might.
    refusal: Option<Refusal>,
    /// Extents that the disk has room for, as it said last, or blocks that belong to none that is known to have them.
    disk_extents: u32,
    /// How many extents to keep ready; rises when an appender finds none.
    ready_target: usize,
    /// How often an extent came to be there for whoever takes it.
    returns: u64,
}

/// A growth that the medium refused.
#[derive(Debug)]
struct Refusal {
    why: String,
    at: Duration,
}

/// How long a medium that refused to grow is left in peace: others may have freed some of the disk by then.
const REFUSAL_COOLDOWN: Duration = Duration::from_secs(1);

/// Extents that new rows leave to others on a disk that fills, at most. This, and the others here, for large extents.
const SLACK_MAX: u32 = 64;

/// How long extents are free before they are given back.
const FREE_BEFORE_RELEASE: Duration = Duration::from_secs(1);
/// Free extents that are kept beside those held back, at most, and a quarter of those used.
const KEPT_MAX: u32 = 16;

/// Extents made ready ahead, at most; fewer where less is in use: a sync that comes before they are used writes them for nothing.
const READY_MAX: usize = 2;

impl Pool {
    pub(crate) fn new(
        root_extents: u32,
        grown: u32,
        extents_max: u32,
        per_large: u32,
        now: Duration,
    ) -> Pool {
        Pool {
            free: BTreeSet::new(),
            bare: BTreeSet::new(),
            found: BTreeSet::new(),
            releasing: 0,
            fewest_free: 0,
            watched_since: now,
            ready: VecDeque::new(),
            prefaulting: 0,
            root_extents,
            per_large,
            grown,
            extents_max,
            refusal: None,
            disk_extents: u32::MAX,
            ready_target: 1,
            returns: 0,
        }
    }

    /// Extents that are there and free.
    fn free_extents(&self) -> u32 {
        (self.free.len() + self.ready.len()) as u32
    }

    /// Extents that are known to have blocks, and those that are not.
    pub(crate) fn blocks_known(&self) -> (u32, u32) {
        let bare = self.bare.len() as u32;
        (self.grown - bare, bare)
    }

    /// Extents that would be had if the disk gave its blocks.
    fn without_blocks(&self) -> u32 {
        self.extents_max.saturating_sub(self.blocks_known().0)
    }

    /// Extents that may still be allocated, as far as is known.
    fn growable(&self) -> u32 {
        if self.refusal.is_some() { 0 } else { self.without_blocks() }
    }

    /// Extents in use.
    pub(super) fn extents_used(&self) -> u32 {
        self.grown - self.free_extents() - self.prefaulting - self.releasing - self.bare.len() as u32
    }

    /// Extents in use, those of the root left out.
    pub(super) fn segment_extents(&self) -> u32 {
        self.extents_used().saturating_sub(self.root_extents)
    }

    /// The most extents to make ready ahead.
    fn ready_max(&self) -> u32 {
        (self.segment_extents() / 8).clamp(READY_MAX as u32, READY_MAX as u32 * self.per_large)
    }

    /// Extents that can be had now, or will be in a moment, and all that there may ever be: not counting growth that the disk
    /// has no room for.
    pub(crate) fn space(&self) -> (u32, u32) {
        let growable = self.growable().min(self.disk_extents);
        let there = self.free_extents() + self.prefaulting;
        let used = self.extents_used();
        // Above the limit what is kept back is there all the same, or nobody could work towards it.
        let allowed = self.extents_max.saturating_sub(used).max(there.min(Claim::Write.reserve()));
        let available = (there + growable).min(allowed);
        (available, used + available)
    }

    pub(crate) fn add_free(&mut self, extent: u32) {
        self.free.insert(extent);
        self.returns += 1;
    }

    /// Whoever was refused something is to try again, though no extent came back.
    pub(crate) fn count_return(&mut self) {
        self.returns += 1;
    }

    /// How often an extent came to be there for whoever takes it: if that has risen since a claim was refused, it may be served.
    pub(super) fn returns(&self) -> u64 {
        self.returns
    }

    /// A free extent whose blocks may have been given back, or not.
    pub(crate) fn add_bare(&mut self, extent: u32) {
        self.bare.insert(extent);
        self.found.insert(extent);
    }

    /// Takes this extent, if it is free; whether it is known to have blocks.
    pub(crate) fn hold(&mut self, extent: u32) -> Option<bool> {
        self.found.remove(&extent);
        self.bare.remove(&extent).then_some(false).or_else(|| self.free.remove(&extent).then_some(true))
    }

    /// The disk has blocks again: who is asked next need not take an earlier answer.
    pub(crate) fn gave_back(&mut self) {
        self.refusal = None;
    }

    /// The next free extent to allocate that was given back, or may have been: first one that may have its blocks.
    pub(crate) fn first_bare(&self) -> Option<u32> {
        self.found.first().or_else(|| self.bare.first()).copied()
    }

    /// The disk has no blocks for this one; whether it might have had them all.
    pub(crate) fn lacks_blocks(&mut self, extent: u32) -> bool {
        self.found.remove(&extent)
    }

    /// Those that are to be allocated, the lowest first.
    pub(crate) fn all_bare(&self) -> Vec<u32> {
        self.bare.iter().copied().collect()
    }

    /// An extent that was given back is allocated again.
    pub(crate) fn has_allocated(&mut self, extent: u32) {
        self.bare.remove(&extent);
        self.found.remove(&extent);
        self.free.insert(extent);
        self.disk_extents = self.disk_extents.saturating_sub(1);
        self.refusal = None;
    }

    /// Whether what is to be held back is there, and one to write to.
    pub(crate) fn is_held_back(&self) -> bool {
        self.free_extents() > Claim::Write.reserve()
    }

    /// Extents with blocks beyond the limit.
    fn excess(&self) -> u32 {
        self.blocks_known().0.saturating_sub(self.extents_max)
    }

    /// How many extents to give back: those that were free for all of the time that is watched, but for some that are kept,
    /// so that what comes and goes is not allocated anew each time. Above the limit all but what is kept back, at once.
    pub(crate) fn surplus(&mut self, now: Duration) -> u32 {
        if self.excess() > 0 {
            self.free.extend(self.ready.drain(..));
        }
        let excess = self.excess().min((self.free.len() as u32).saturating_sub(Claim::Write.reserve()));
        if now.abs_diff(self.watched_since) < FREE_BEFORE_RELEASE || excess > 0 {
            return excess;
        }
        let kept = Claim::Write.reserve()
            + self.ready_max()
            + (self.segment_extents() / 4).min(KEPT_MAX * self.per_large);
        let surplus = self.fewest_free.saturating_sub(kept);
        (self.watched_since, self.fewest_free) = (now, self.free_extents());
        surplus
    }

    /// A free extent to be given back, taken out of the pool until [`Pool::has_released`]; the low ones stay. None beyond what is held back, though more were
    /// free when they were counted.
    pub(crate) fn next_to_release(&mut self) -> Option<u32> {
        if self.free_extents() <= Claim::Write.reserve() {
            return None;
        }
        let extent = self.free.pop_last()?;
        self.releasing += 1;
        Some(extent)
    }

    /// The extent was given back, or stays allocated.
    pub(crate) fn has_released(&mut self, extent: u32, released: bool) {
        self.releasing -= 1;
        self.returns += 1;
        let into = if released { &mut self.bare } else { &mut self.free };
        into.insert(extent);
    }

    /// The disk has room for `extents` more, as it says, with what blocks bare ones have; `None`: nobody knows.
    pub(crate) fn set_disk_extents(&mut self, extents: Option<u32>) {
        self.disk_extents = extents.unwrap_or(u32::MAX);
    }

    /// The medium refused to grow, for the reason `why`. For a while it is not asked again.
    pub(crate) fn refused(&mut self, why: String, now: Duration) {
        self.refusal = Some(Refusal { why, at: now });
    }

    /// Why the medium last refused to grow, unless it has grown since.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_ref().map(|refusal| &*refusal.why)
    }

    /// It is the disk that ends growth, and not the limit.
    pub(crate) fn is_limited_by_disk(&self) -> bool {
        self.refusal.is_some() || self.disk_extents < self.without_blocks()
    }

    /// Extents that must be left, there or to be had, after `claim` is served. On a disk that fills, new rows leave some more
    /// to those that go over others: with a sixteenth of what is used, gc keeps up with them.
    fn held_back(&self, claim: Claim) -> u32 {
        let slack = if self.is_limited_by_disk() {
            (self.extents_used() / 16 + 1).min(SLACK_MAX * self.per_large)
        } else {
            0
        };
        claim.reserve() + if claim == Claim::Write { slack } else { 0 }
    }

    /// Whether there is no room for `extents` now, growth included.
    pub(crate) fn lacks(&self, extents: u32, claim: Claim) -> bool {
        self.space().0 < extents + self.held_back(claim)
    }

    /// By how many extents the tier must grow, if it can, so that `extents` can be taken and what is held back is left.
    fn extents_short(&self, extents: u32) -> Option<u32> {
        let growable = self.growable();
        let short = (extents + Claim::Write.reserve()).saturating_sub(self.free_extents()).min(growable);
        (short > 0).then_some(short)
    }

    /// Forgets a refusal that is old enough to ask again.
    fn forget_refusal(&mut self, now: Duration) {
        if self.refusal.as_ref().is_some_and(|refusal| now.abs_diff(refusal.at) >= REFUSAL_COOLDOWN) {
            self.refusal = None;
        }
    }

    /// Takes `extents` adjoining free extents, or says by how many extents the tier must grow first.
    ///
    /// What is held back is there before anyone needs it: growth that is still to come is nothing to rely on, for the disk
    /// may be full by then.
    pub(crate) fn take(&mut self, extents: u32, claim: Claim, now: Duration) -> Result<u32, NoExtent> {
        self.forget_refusal(now);
        if claim == Claim::Write && self.lacks(extents, claim) {
            return Err(NoExtent::Full);
        }
        if let Some(short) = self.extents_short(extents) {
            return Err(NoExtent::Grow(short));
        }
        self.take_free(extents, claim)
    }

    /// The same of what is there: never [`NoExtent::Grow`] for want of what is held back.
    pub(crate) fn take_free(&mut self, extents: u32, claim: Claim) -> Result<u32, NoExtent> {
        if self.free_extents() < extents + claim.reserve() {
            return Err(NoExtent::Full);
        }
        let taken = if extents == 1 { self.take_one() } else { self.take_run(extents) };
        self.fewest_free = self.fewest_free.min(self.free_extents());
        taken
    }

    fn take_one(&mut self) -> Result<u32, NoExtent> {
        if let Some(extent) = self.ready.pop_front() {
            return Ok(extent);
        }
        self.ready_target = (self.ready_target * 2).min(self.ready_max() as usize);
        self.free.pop_first().ok_or(NoExtent::Full)
    }

    /// A refusal leaves all as it was: were what is ready not so any more, it would be made ready again, and whoever waits would be told that an
    /// extent came back.
    fn take_run(&mut self, extents: u32) -> Result<u32, NoExtent> {
        let ready = std::mem::take(&mut self.ready);
        self.free.extend(&ready);
        let taken = self.take_run_of_free(extents);
        if taken.is_err() {
            ready.iter().for_each(|extent| {
                self.free.remove(extent);
            });
            self.ready = ready;
        }
        taken
    }

    fn take_run_of_free(&mut self, extents: u32) -> Result<u32, NoExtent> {
        let mut run: Option<(u32, u32)> = None;
        for &extent in &self.free {
            run = match run {
                Some((first, count)) if first + count == extent => Some((first, count + 1)),
                _ => Some((extent, 1)),
            };
            if let Some((first, count)) = run
                && count == extents
            {
                (first..first + extents).for_each(|u| {
                    self.free.remove(&u);
                });
                return Ok(first);
            }
        }
        // The run at the end of the tier, if it is free, is a start for the new one.
        let tail = run.filter(|&(first, count)| first + count == self.grown).map_or(0, |(_, count)| count);
        let missing = extents - tail;
        if missing > self.growable() { Err(NoExtent::Full) } else { Err(NoExtent::Grow(missing)) }
    }

    /// The tier has been grown by `extents`.
    pub(crate) fn has_grown(&mut self, extents: u32) {
        self.free.extend(self.grown..self.grown + extents);
        self.grown += extents;
        self.disk_extents = self.disk_extents.saturating_sub(extents);
        self.refusal = None;
    }

    /// An extent to make ready, if more are wanted: a free one, or `Grow`.
    pub(crate) fn next_to_prefault(&mut self, now: Duration) -> Option<Result<u32, NoExtent>> {
        self.forget_refusal(now);
        if self.excess() > 0 {
            return None;
        }
        // Ahead of the appenders, which would have to wait for it.
        let ahead = (self.segment_extents() / 8).min(self.ready_max());
        if let Some(short) = self.extents_short(1 + ahead) {
            return Some(Err(NoExtent::Grow(short)));
        }
        if self.ready.len() >= self.ready_target {
            return None;
        }
        let extent = self.free.pop_first()?;
        self.prefaulting += 1;
        Some(Ok(extent))
    }

    pub(crate) fn add_ready(&mut self, extent: u32) {
        self.prefaulting -= 1;
        self.returns += 1;
        self.ready.push_back(extent);
    }
}

/// Why there is no extent to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoExtent {
    /// The tier must grow by so many extents.
    Grow(u32),
    /// There is no room, and growing is not allowed.
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit was lowered; between two extents that are given back others are taken.
    #[test]
    fn what_is_held_back_is_never_given_back() {
        let (now, held_back) = (Duration::ZERO, Claim::Write.reserve());
        let mut pool = Pool::new(1, 1, 100, 1, now);
        pool.has_grown(20);
        (0..8).for_each(|_| assert!(pool.take(1, Claim::Write, now).is_ok()));
        pool.extents_max = 6;
        let surplus = pool.surplus(now);
        assert_eq!(surplus, 12 - held_back);
        let mut given_back = 0;
        for _ in 0..surplus {
            if let Some(extent) = pool.next_to_release() {
                pool.has_released(extent, true);
                given_back += 1;
            }
            pool.take(1, Claim::Overwrite, now).ok();
        }
        assert!(given_back > 0 && pool.free_extents() >= Claim::Overwrite.reserve(), "{pool:?}");
        assert_eq!(pool.next_to_release(), None);
    }

    #[test]
    fn runs_are_found_and_the_reserve_is_kept() {
        let mut pool = Pool::new(1, 1, 12, 1, Duration::ZERO);
        let now = Duration::ZERO;
        let take = |pool: &mut Pool, extents, claim| pool.take(extents, claim, now);
        pool.has_grown(11);
        assert_eq!(take(&mut pool, 1, Claim::Write), Ok(1));
        assert_eq!(take(&mut pool, 3, Claim::Write), Ok(2));
        pool.add_free(3);
        assert_eq!(take(&mut pool, 2, Claim::Write), Ok(5));
        assert_eq!(take(&mut pool, 3, Claim::Write), Err(NoExtent::Full));
        assert_eq!(take(&mut pool, 2, Claim::Write), Ok(7));
        assert_eq!(take(&mut pool, 1, Claim::Write), Err(NoExtent::Full));
        assert_eq!(take(&mut pool, 1, Claim::Overwrite), Ok(3));
        assert_eq!(take(&mut pool, 1, Claim::Overwrite), Err(NoExtent::Full));
        assert_eq!(take(&mut pool, 3, Claim::Gc), Err(NoExtent::Full));
        assert_eq!(take(&mut pool, 2, Claim::Gc), Ok(9));
        assert_eq!(take(&mut pool, 1, Claim::Gc), Err(NoExtent::Full));
        assert_eq!(take(&mut pool, 1, Claim::LastExtent), Ok(11));
    }

    /// Free extents enough, but none of them adjoining: whoever waits for them is not woken by what his own refusal did.
    #[test]
    fn a_refused_run_leaves_nothing_to_be_made_ready() {
        let (now, extents) = (Duration::ZERO, 16);
        let mut pool = Pool::new(1, 1, extents, 1, now);
        pool.has_grown(extents - 1);
        while pool.take(1, Claim::LastExtent, now).is_ok() {}
        (3..extents).step_by(2).for_each(|extent| pool.add_free(extent));
        while let Some(Ok(extent)) = pool.next_to_prefault(now) {
            pool.add_ready(extent);
        }
        let (returns, free) = (pool.returns(), pool.free_extents());
        for _ in 0..3 {
            assert_eq!(pool.take(2, Claim::Write, now), Err(NoExtent::Full));
            assert_eq!(pool.next_to_prefault(now), None);
        }
        assert_eq!((pool.returns(), pool.free_extents()), (returns, free));
        assert!(!pool.lacks(2, Claim::Write), "there are enough, by number");
        // The next to it makes it a run, whether that was ready or not.
        pool.add_free(4);
        assert_eq!(pool.take(2, Claim::Write, now), Ok(3));
    }

    #[test]
    fn a_free_tail_shortens_the_growth() {
        let mut pool = Pool::new(1, 1, 20, 1, Duration::ZERO);
        let now = Duration::ZERO;
        pool.has_grown(2);
        assert_eq!(pool.take(5, Claim::Write, now), Err(NoExtent::Grow(7)), "and four to hold back");
        pool.has_grown(7);
        assert_eq!(pool.take(5, Claim::Write, now), Ok(1));
        assert_eq!(pool.take(8, Claim::Write, now), Err(NoExtent::Grow(8)));
        pool.has_grown(8);
        pool.take(1, Claim::Write, now).unwrap();
    }

    /// What a full disk leaves is what is there: the address space beyond is no room.
    #[test]
    fn a_medium_that_refuses_to_grow_leaves_what_was_held_back() {
        let mut pool = Pool::new(1, 1, 1 << 17, 1, Duration::ZERO);
        let now = Duration::ZERO;
        assert_eq!(pool.take(1, Claim::Write, now), Err(NoExtent::Grow(5)));
        pool.has_grown(4);
        assert_eq!(pool.space(), ((1 << 17) - 1, 1 << 17));
        pool.set_disk_extents(Some(3));
        assert_eq!(pool.space(), (7, 8), "as much as the disk says");
        pool.refused("full".into(), now);
        assert_eq!(pool.refusal(), Some("full"));
        assert_eq!(pool.space(), (4, 5), "and no more than it gives");
        assert_eq!(pool.take(1, Claim::Write, now), Err(NoExtent::Full));
        assert!(pool.lacks(1, Claim::Write) && !pool.lacks(1, Claim::Overwrite));
        assert!(pool.next_to_prefault(now).is_some(), "what is there is made ready");
        pool.add_ready(1);
        assert_eq!(pool.take(1, Claim::Delete, now), Ok(1));
        assert_eq!(pool.take(2, Claim::Write, now), Err(NoExtent::Full));
        let later = now + REFUSAL_COOLDOWN;
        assert_eq!(pool.take(1, Claim::Write, later), Err(NoExtent::Grow(2)), "it is asked again");
        pool.has_grown(2);
        assert_eq!(pool.refusal(), None);
        assert_eq!(pool.take(1, Claim::Write, later), Ok(2));
        assert_eq!(pool.take(1, Claim::Write, later), Err(NoExtent::Full));
        assert_eq!(
            pool.take(1, Claim::Overwrite, later),
            Err(NoExtent::Grow(1)),
            "the disk has one more, for it"
        );
    }

    /// Extents come and go; only what nobody wanted for a while is given back.
    #[test]
    fn what_is_free_for_long_is_given_back() {
        let start = Duration::ZERO;
        let mut pool = Pool::new(1, 1, 100, 1, start);
        pool.has_grown(40);
        let at = |n: u32| start + FREE_BEFORE_RELEASE * n;
        assert_eq!(pool.surplus(start), 0);
        assert_eq!(pool.surplus(at(1)), 0, "it was not there all the time");
        (0..8).for_each(|_| assert!(pool.take(1, Claim::Write, at(1)).is_ok()));
        (1..5).for_each(|extent| pool.add_free(extent));
        assert_eq!(pool.surplus(at(2)), 32 - 4 - 2 - 1);
        let (space, extent) = (pool.space(), pool.next_to_release().unwrap());
        assert_eq!(extent, 40);
        pool.has_released(extent, true);
        assert_eq!(pool.space(), space, "it may be allocated again");
        pool.refused("full".into(), at(2));
        assert_eq!(pool.space(), (35, 40), "unless the disk refuses");
        assert_eq!(pool.first_bare(), Some(40));
        pool.has_allocated(40);
        assert_eq!((pool.space(), pool.first_bare()), (space, None));
        let extent = pool.next_to_release().unwrap();
        pool.has_released(extent, false);
        assert_eq!((pool.space(), pool.first_bare()), (space, None), "where a medium takes nothing back");
    }
}
