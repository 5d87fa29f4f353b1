//! Epoch reclamation: memory that readers may still see is freed only after every one of them has let go.
//!
//! Owns: the global epoch, who is pinned at which epoch, and the garbage that waits. Promises: what is deferred after
//! it was unlinked runs or drops only when no guard that was alive at that moment is alive any more, and that nobody
//! who hands garbage over frees more than a little. Must not know: what the garbage is, beyond that it is freed, or a part of it.
//!
//! The scheme is that of Fraser, "Practical lock-freedom" (2004), section 5.2.3, as in `crossbeam-epoch`: a guard pins
//! its thread at the epoch E it read; the epoch moves from E to E + 1 only when nobody is pinned before E; garbage
//! tagged E is freed at E + 2. Why that is enough: the tag is read after the unlinking and a fence. A guard that can
//! still reach the garbage made its announcement and fence before that unlinking was visible, so it read an epoch at
//! or before the tag, and while it lives the epoch cannot pass tag + 1.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Arc, Mutex};

pub(crate) mod copies;

/// Threads that get a place of their own; more share counters, correct but slower.
const PLACES: usize = if cfg!(shuttle) {
    4
} else if cfg!(miri) {
    64
} else {
    256
};
/// The place of threads that got none.
const SHARED: usize = usize::MAX;
/// Deferred pieces of garbage between attempts to free some.
const COLLECT_EVERY: usize = if cfg!(shuttle) { 1 } else { 64 };
/// Pieces freed at one go, so that no caller pays for a long backlog alone.
const COLLECT_MOST: usize = 256;
/// Parts of large pieces freed at one go, in about as long a time: who defers may hold what others wait for.
const PARTS_OF_DEFER: usize = if cfg!(shuttle) { 2 } else { 256 };
/// And in about a millisecond, by who came to free.
const PARTS_OF_COLLECT: usize = if cfg!(shuttle) { 4 } else { 8192 };
/// A place holds `epoch << DEPTH_BITS | guards alive`, or 0 when its thread holds no guard.
const DEPTH_BITS: u32 = 16;
/// The most guards that a place counts.
const DEPTH_MAX: u64 = (1 << DEPTH_BITS) - 1;

/// What waits for its readers to leave.
pub(crate) trait Garbage: Send {
    /// Frees it. What is large is freed in parts, each about as much as a piece that is not: no more of them than `parts` (what cannot be told apart may come on
    /// top), which are taken off that. What is left is given back, to be freed by another call.
    fn free(self: Box<Self>, parts: &mut usize) -> Option<Box<dyn Garbage>>;
}

#[cfg(test)]
impl<F: FnOnce() + Send> Garbage for F {
    fn free(self: Box<Self>, _: &mut usize) -> Option<Box<dyn Garbage>> {
        self();
        None
    }
}

/// One thread's announcement, on cache lines of its own (two: neighbours are prefetched in pairs).
#[repr(align(128))]
struct Announcement(AtomicU64);

/// A reclamation domain. One serves a whole store.
pub(crate) struct Epoch {
    global: AtomicU64,
    /// Shared with the threads' claims, which look for guards that outlive their thread.
    announcements: Arc<[Announcement]>,
    /// Guards of threads without a place, by the low bits of the epoch they are pinned at.
    shared: [AtomicU64; 4],
    garbage: Mutex<VecDeque<(u64, Box<dyn Garbage>)>>,
    /// What is left of large pieces that nobody can see any more. Apart, so that what came after them does not wait for all of it.
    large: Mutex<VecDeque<Box<dyn Garbage>>>,
}

impl Epoch {
    /// A new domain with nothing pinned.
    pub(crate) fn new() -> Epoch {
        let announcements = (0..PLACES).map(|_| Announcement(AtomicU64::new(0))).collect();
        claim::add_domain(&announcements);
        Epoch {
            // Starts high enough that "the epoch before" exists.
            global: AtomicU64::new(4),
            announcements,
            shared: [const { AtomicU64::new(0) }; 4],
            garbage: Mutex::new(VecDeque::new()),
            large: Mutex::new(VecDeque::new()),
        }
    }

    /// Keeps everything that can be reached now from being freed until the guard is dropped. Guards nest, as
    /// deep as anybody likes: those that the place cannot count, forgotten ones included, count as those of threads without a place.
    pub(crate) fn pin(&self) -> Guard<'_> {
        let place = claim::place();
        let Some(Announcement(word)) = self.announcements.get(place) else { return self.pin_shared() };
        let held = word.load(Ordering::Relaxed);
        if held != 0 {
            if held & DEPTH_MAX == DEPTH_MAX {
                return self.pin_shared();
            }
            word.store(held + 1, Ordering::Relaxed);
        } else {
            announce(word, self.global.load(Ordering::Relaxed) << DEPTH_BITS | 1);
        }
        Guard { epoch: self, place, _on_this_thread: PhantomData }
    }

    #[cold]
    fn pin_shared(&self) -> Guard<'_> {
        loop {
            let epoch = self.global.load(Ordering::SeqCst);
            let bucket = (epoch & 3) as usize;
            self.shared[bucket].fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            // Counted in the bucket of the epoch that still is: later guards count elsewhere, so it drains; and the
            // bucket is not one that came round again.
            if self.global.load(Ordering::SeqCst) == epoch {
                return Guard { epoch: self, place: PLACES + bucket, _on_this_thread: PhantomData };
            }
            self.shared[bucket].fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Frees `garbage`, already unreachable for new guards, when every guard alive now is gone. Now and then it frees a little of what others handed
    /// over: how much is bounded, whatever that is.
    pub(crate) fn defer(&self, garbage: Box<dyn Garbage>) {
        let tag = self.current();
        let waiting = {
            let mut queue = self.garbage.lock();
            queue.push_back((tag, garbage));
            queue.len()
        };
        if waiting.is_multiple_of(COLLECT_EVERY) {
            self.collect_some(PARTS_OF_DEFER);
        }
    }

    /// The epoch now; with [`Epoch::is_quiescent_since`], a way to wait for guards without handing garbage over. Call
    /// it after the unlinking.
    pub(crate) fn current(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.global.load(Ordering::SeqCst)
    }

    /// Whether every guard that was alive when [`Epoch::current`] gave `epoch` is gone. Never true while the asking
    /// thread itself holds such a guard.
    pub(crate) fn is_quiescent_since(&self, epoch: u64) -> bool {
        for _ in 0..2 {
            if self.global.load(Ordering::SeqCst) >= epoch + 2 {
                return true;
            }
            if !self.advance() {
                return false;
            }
        }
        self.global.load(Ordering::SeqCst) >= epoch + 2
    }

    /// Moves the epoch on if it can be and frees some of what has waited long enough; returns how many pieces still
    /// wait, or are freed in part. For background threads, and who wants the memory; [`Epoch::defer`] frees less by itself.
    pub(crate) fn collect(&self) -> usize {
        self.collect_some(PARTS_OF_COLLECT)
    }

    /// [`Epoch::collect`], with so many parts of large pieces.
    fn collect_some(&self, mut parts: usize) -> usize {
        self.advance();
        let ripe = {
            let mut queue = self.garbage.lock();
            let epoch = self.global.load(Ordering::SeqCst);
            // Tags are pushed nearly in order; a late one only makes those behind it wait.
            let count = queue.iter().take(COLLECT_MOST).take_while(|(tag, _)| tag + 2 <= epoch).count();
            queue.drain(..count).collect::<Vec<_>>()
        };
        for (_, garbage) in ripe {
            // Behind those that came before, of which nothing is freed here.
            if let Some(large) = garbage.free(&mut 0) {
                self.large.lock().push_back(large);
            }
        }
        while parts > 0
            && let Some(large) = self.take_large()
        {
            if let Some(rest) = large.free(&mut parts) {
                self.large.lock().push_front(rest);
            }
        }
        let waiting = self.garbage.lock().len();
        waiting + self.large.lock().len()
    }

    /// Nobody else frees it meanwhile.
    fn take_large(&self) -> Option<Box<dyn Garbage>> {
        self.large.lock().pop_front()
    }

    /// Moves the epoch on by one if nobody is pinned before it.
    fn advance(&self) -> bool {
        let epoch = self.global.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let behind = |place: &Announcement| {
            let word = place.0.load(Ordering::SeqCst);
            word != 0 && word >> DEPTH_BITS != epoch
        };
        if self.announcements[..claim::places_used()].iter().any(behind) {
            return false;
        }
        if (1..4).any(|back| self.shared[(epoch.wrapping_sub(back) & 3) as usize].load(Ordering::SeqCst) != 0)
        {
            return false;
        }
        // Losing to another thread that moved it is as good.
        let _ = self.global.compare_exchange(epoch, epoch + 1, Ordering::SeqCst, Ordering::SeqCst);
        true
    }
}

impl Default for Epoch {
    fn default() -> Epoch {
        Epoch::new()
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch").field("global", &self.global).finish_non_exhaustive()
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        // Guards borrow the domain, so none is left. Freeing may not defer anew: nobody else holds the domain either.
        let large = std::mem::take(&mut *self.large.lock());
        let waiting = std::mem::take(&mut *self.garbage.lock());
        for garbage in large.into_iter().chain(waiting.into_iter().map(|(_, garbage)| garbage)) {
            let mut left = Some(garbage);
            while let Some(garbage) = left {
                let mut all = usize::MAX;
                left = garbage.free(&mut all);
            }
        }
    }
}

/// Publishes `pinned` such that no later load of this thread runs before the announcement can be seen.
#[inline]
fn announce(word: &AtomicU64, pinned: u64) {
    if cfg!(all(target_arch = "x86_64", not(any(shuttle, miri)))) {
        // A locked exchange is a full barrier on x86 and half the price of `mfence`; compilers keep it one. The memory model of the
        // language, which `miri` holds to, promises less of it.
        word.swap(pinned, Ordering::SeqCst);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        // Release, for it may hide from `advance` that an earlier guard of this thread was dropped: what was read under that comes before.
        word.store(pinned, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// While it lives, nothing that could be reached when it was made is freed.
#[derive(Debug)]
pub(crate) struct Guard<'e> {
    epoch: &'e Epoch,
    place: usize,
    _on_this_thread: PhantomData<*const ()>,
}

impl<'e> Guard<'e> {
    /// The domain it pins.
    pub(crate) fn epoch(&self) -> &'e Epoch {
        self.epoch
    }

    /// A small number that concurrent threads seldom share, to spread counters by.
    pub(super) fn stripe(&self) -> usize {
        self.place
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.epoch.announcements.get(self.place) {
            // Release: all this guard's reads come before a freer sees it gone.
            Some(Announcement(word)) => {
                let held = word.load(Ordering::Relaxed);
                let left = if held & DEPTH_MAX == 1 { 0 } else { held - 1 };
                word.store(left, Ordering::Release);
            }
            None => {
                self.epoch.shared[self.place - PLACES].fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

/// Which place a thread has: one number for all domains, claimed at its first pin, given back when it ends. A thread that
/// leaves a guard, forgotten or in a thread-local that is dropped later, leaves its place with it: two threads would count in one word.
#[cfg(not(shuttle))]
mod claim {
    use std::sync::Weak;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::{Announcement, Arc, Mutex, PLACES, SHARED};

    static TAKEN: [AtomicU64; PLACES / 64] = [const { AtomicU64::new(0) }; PLACES / 64];
    static USED: AtomicUsize = AtomicUsize::new(0);
    /// The announcements of each domain that is alive.
    static DOMAINS: Mutex<Vec<Weak<[Announcement]>>> = Mutex::new(Vec::new());

    pub(super) fn add_domain(announcements: &Arc<[Announcement]>) {
        let mut domains = DOMAINS.lock();
        // Those of domains that are gone leave here, so that no more are kept than there ever were at one time.
        domains.retain(|domain| domain.strong_count() > 0);
        domains.push(Arc::downgrade(announcements));
    }

    /// Whether the place of the calling thread counts a guard in any domain.
    fn holds_guard(place: usize) -> bool {
        let is_held = |domain: Arc<[Announcement]>| domain[place].0.load(Ordering::Relaxed) != 0;
        DOMAINS.lock().iter().filter_map(Weak::upgrade).any(is_held)
    }

    struct PlaceClaim(usize);

    thread_local!(static CLAIM: PlaceClaim = PlaceClaim::take());

    impl PlaceClaim {
        fn take() -> PlaceClaim {
            for (i, word) in TAKEN.iter().enumerate() {
                let mut taken = word.load(Ordering::Relaxed);
                while taken != u64::MAX {
                    let bit = taken.trailing_ones();
                    match word.compare_exchange_weak(
                        taken,
                        taken | 1 << bit,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => {
                            let place = i * 64 + bit as usize;
                            USED.fetch_max(place + 1, Ordering::SeqCst);
                            return PlaceClaim(place);
                        }
                        Err(now) => taken = now,
                    }
                }
            }
            PlaceClaim(SHARED)
        }
    }

    impl Drop for PlaceClaim {
        fn drop(&mut self) {
            if self.0 != SHARED && !holds_guard(self.0) {
                TAKEN[self.0 / 64].fetch_and(!(1 << (self.0 % 64)), Ordering::Release);
            }
        }
    }

    pub(super) fn place() -> usize {
        CLAIM.try_with(|claim| claim.0).unwrap_or(SHARED)
    }

    pub(super) fn places_used() -> usize {
        USED.load(Ordering::SeqCst)
    }
}

#[cfg(shuttle)]
mod claim {
    use super::{Announcement, Arc, PLACES, SHARED};

    /// Places are those of tasks here, and never given back.
    pub(super) fn add_domain(_: &Arc<[Announcement]>) {}

    pub(super) fn place() -> usize {
        let task = usize::from(shuttle::current::me());
        // The last ones go without a place, so that both ways are explored.
        if task < PLACES { task } else { SHARED }
    }

    pub(super) fn places_used() -> usize {
        PLACES
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn counting(count: &Arc<AtomicUsize>) -> Box<dyn FnOnce() + Send> {
        let count = count.clone();
        Box::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        })
    }

    #[test]
    fn garbage_waits_for_the_guards_of_its_time() {
        let (epoch, freed) = (Epoch::new(), Arc::new(AtomicUsize::new(0)));
        let guard = epoch.pin();
        let nested = epoch.pin();
        let then = epoch.current();
        epoch.defer(Box::new(counting(&freed)));
        for _ in 0..10 {
            epoch.collect();
        }
        drop(guard);
        assert!(!epoch.is_quiescent_since(then));
        assert_eq!(freed.load(Ordering::SeqCst), 0, "the nested guard still pins");
        drop(nested);
        assert!(epoch.is_quiescent_since(then));
        epoch.collect();
        assert_eq!(freed.load(Ordering::SeqCst), 1);
    }

    /// A place counts so many guards and no more: what comes on top must neither be lost nor let go of the others.
    #[test]
    #[cfg_attr(miri, ignore = "so many guards take minutes, and do what one does")]
    fn guards_beyond_what_a_place_counts_pin_all_the_same() {
        let (epoch, freed) = (Epoch::new(), Arc::new(AtomicUsize::new(0)));
        let counted: Vec<_> = (0..DEPTH_MAX).map(|_| epoch.pin()).collect();
        let beyond = epoch.pin();
        drop(epoch.pin());
        epoch.defer(Box::new(counting(&freed)));
        let collect = || (0..4).for_each(|_| _ = epoch.collect());
        collect();
        assert_eq!(freed.load(Ordering::SeqCst), 0, "all but one are alive");
        drop(counted);
        collect();
        assert_eq!(freed.load(Ordering::SeqCst), 0, "the last one is alive");
        drop(beyond);
        collect();
        assert_eq!(freed.load(Ordering::SeqCst), 1);
    }

    /// A guard that outlives its thread keeps the place: another thread there would count in the same word.
    #[test]
    fn a_place_with_a_guard_goes_to_nobody_else() {
        let epoch = Arc::new(Epoch::new());
        let place_of = |forget: bool| {
            let epoch = epoch.clone();
            let thread = std::thread::spawn(move || {
                let guard = epoch.pin();
                let place = guard.place;
                if forget {
                    std::mem::forget(guard);
                }
                place
            });
            thread.join().unwrap()
        };
        let kept = place_of(true);
        assert!(kept < PLACES, "all places are taken");
        assert!((0..20).all(|_| place_of(false) != kept));
        assert!(!epoch.is_quiescent_since(epoch.current()), "what was forgotten pins for ever");
    }

    #[test]
    fn more_threads_than_places_work() {
        let (epoch, freed) = (Arc::new(Epoch::new()), Arc::new(AtomicUsize::new(0)));
        let all_pinned = Arc::new(std::sync::Barrier::new(PLACES + 21));
        let threads: Vec<_> = (0..PLACES + 20)
            .map(|_| {
                let (epoch, freed, all_pinned) = (epoch.clone(), freed.clone(), all_pinned.clone());
                std::thread::spawn(move || {
                    let guard = epoch.pin();
                    all_pinned.wait();
                    let seen = freed.load(Ordering::SeqCst);
                    all_pinned.wait();
                    drop(guard);
                    for _ in 0..if cfg!(miri) { 2 } else { 100 } {
                        drop(epoch.pin());
                    }
                    seen
                })
            })
            .collect();
        all_pinned.wait();
        epoch.defer(Box::new(counting(&freed)));
        for _ in 0..8 {
            epoch.collect();
        }
        assert_eq!(freed.load(Ordering::SeqCst), 0);
        all_pinned.wait();
        assert!(threads.into_iter().all(|t| t.join().unwrap() == 0));
        for _ in 0..3 {
            epoch.collect();
        }
        assert_eq!(freed.load(Ordering::SeqCst), 1);
    }

    /// What has so many parts.
    struct Large(usize, Arc<AtomicUsize>);

    impl Garbage for Large {
        fn free(self: Box<Self>, parts: &mut usize) -> Option<Box<dyn Garbage>> {
            let Large(left, freed) = *self;
            let now = left.min(*parts);
            *parts -= now;
            freed.fetch_add(now, Ordering::SeqCst);
            if now == left { None } else { Some(Box::new(Large(left - now, freed))) }
        }
    }

    /// Who hands garbage over frees a little of what is large, whatever there is of that; and what came behind it does not wait for it.
    #[test]
    fn what_is_large_is_freed_in_parts() {
        let (epoch, large, small) = (Epoch::new(), Arc::default(), Arc::default());
        let freed = |of: &Arc<AtomicUsize>| of.load(Ordering::SeqCst);
        for _ in 0..3 {
            epoch.defer(Box::new(Large(100_000, Arc::clone(&large))));
        }
        for n in 0..1_000 {
            let before = freed(&large);
            epoch.defer(Box::new(counting(&small)));
            assert!(freed(&large) - before <= PARTS_OF_DEFER, "{} parts at once", freed(&large) - before);
            assert!(n - freed(&small) <= 3 * COLLECT_EVERY, "{n}, and {} were freed", freed(&small));
        }
        assert!(freed(&large) >= 10 * PARTS_OF_DEFER, "who defers frees some: {}", freed(&large));
        let before = freed(&large);
        assert!(epoch.collect() >= 3);
        assert_eq!(freed(&large) - before, PARTS_OF_COLLECT);
        while epoch.collect() > 0 {}
        assert_eq!((freed(&large), freed(&small)), (300_000, 1_000));
    }

    #[test]
    fn dropping_the_domain_frees_what_waits() {
        let (epoch, freed) = (Epoch::new(), Arc::new(AtomicUsize::new(0)));
        for _ in 0..10 {
            epoch.defer(Box::new(counting(&freed)));
        }
        epoch.defer(Box::new(Large(20_000, Arc::clone(&freed))));
        (0..2).for_each(|_| _ = epoch.collect());
        assert_eq!(freed.load(Ordering::SeqCst), 10 + PARTS_OF_COLLECT, "a part of what is large");
        epoch.defer(Box::new(Large(1_000, Arc::clone(&freed))));
        drop(epoch);
        assert_eq!(freed.load(Ordering::SeqCst), 21_010);
    }
}
