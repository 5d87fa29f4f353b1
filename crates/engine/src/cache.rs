//! SeaCache: whole rows in DRAM, found through the index's own slots (FOCUS section V-C).
//!
//! Owns the cache's memory, what is in it, who asks for what, and the rules by which rows come and go. Promises that its
//! memory stays within its budget, that what it holds of a row is a record in the log's own format, and that a row whose
//! place was freed is not overwritten while somebody may read it: freeing waits for the epoch, and the callers see to it
//! that nothing is retired before no slot leads to it. Must not know tables, trees, or where the log is; `db/cached.rs`
//! joins it with the index.
//!
//! **A cached row** is an entry in DRAM and a *cached* slot in the index (`index/slot.rs`) that says where it is. So a read
//! that misses has lost nothing: the slot it found is the way to the log. The entry keeps the *log slot*, the word that stood in
//! the index before; whoever takes a slot out of the index for anything but reading the row goes by that ([`Cache::log_slot`]).
//! No place in DRAM ever gets into the log.
//!
//! ```text
//!  0          8             16
//!  +----------+-------------+------------------------------------------------+
//!  | log      | last access | the merged row: a record (log/format.rs) under |
//!  | slot     | (tick)      | the newest version's sequence, previous 0      |
//!  +----------+-------------+------------------------------------------------+
//! ```
//!
//! The log slot never changes (its older-version count does not count; that in the cached slot does). A change of the row, or its
//! move, puts another slot in the place of the cached one and marks the entry ([`Cache::invalidate`]).
//!
//! | file | what |
//! |---|---|
//! | `cache/page.rs` | pages of equal slots, bitmaps, the pool; marks of replaced rows |
//! | `cache/ring.rs` | the lock-free queue from readers to the worker |
//! | `cache/policy.rs` | hit ratios, admission, lifetimes, RW |
//! | `cache/benefit.rs` | whether it is of benefit: the probe |
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod benefit;
mod page;
mod policy;
mod ring;

#[cfg(all(test, shuttle))]
mod shuttle;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use hedgerow_device::{FastTier, FastTierOptions, Random, TierBytes};
use hedgerow_row::le_bytes::u32_at;

use crate::epoch::Guard;
use crate::index::{LogSlot, Slot, SlotTarget};
use crate::log::format::{self, CACHED_OFFSET, RawRecord, Record, RecordSpec, Seed};
use crate::options::{CacheMode, Options};
use crate::sync::CachePadded;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::tier::bytes_of;
use crate::{Error, Result};

use page::{Marks, PAGE_BYTES};
use page::{Pages, SLOT_BYTES_MAX};
use policy::Policy;
pub(crate) use policy::{TICKS_PER_SECOND, Traffic};
pub(crate) use ring::Request;
use ring::Ring;

/// Bytes of an entry before its record.
const ENTRY_HEADER_BYTES: u64 = 16;
/// Seeds the checksums of cached records, in place of a segment's number. Not [`PLACED`](format::PLACED): they are moved
/// about as they are, and DRAM puts nothing in another place.
const SEGMENT_NUMBER: u64 = u64::MAX >> 1;
/// Requests that can wait.
const RING_CAPACITY: usize = 2048;
/// Of a cached row, so much is prefetched at once.
const PREFETCH_BYTES_MAX: u64 = 1280;
/// A cache of fewer bytes is none.
const CACHE_BYTES_MIN: u64 = 1 << 20;
/// One call in so many is counted for its table, and asks for its row.
const SAMPLED: u32 = 4;

/// The cache of one store; see the module.
pub(crate) struct Cache {
    /// The tick of the clock that rows' last accesses are told in; 0 while the cache is bypassed.
    tick: CachePadded<AtomicU32>,
    memory: Option<TierBytes>,
    ring: Ring,
    marks: Marks,
    /// Every call is sampled: a store without threads must do the same again.
    sample_all: bool,
    pub(crate) mode: CacheMode,
    pub(crate) numbers: Numbers,
    /// The worker's own.
    pub(crate) state: Mutex<CacheState>,
}

/// What the metrics show, kept by the worker.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) admissions: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Time on the fast tier over time in DRAM, in percent.
    pub(crate) benefit_percent: AtomicU64,
}

/// What only the worker touches.
pub(crate) struct CacheState {
    pub(crate) pages: Pages,
    pub(crate) policy: Policy,
    /// Places that no slot leads to any more, by the epoch they must wait for.
    retired: VecDeque<DeferredFrees>,
    pub(crate) tick: u32,
    /// The tick at which the tables' traffic was last looked at.
    pub(crate) observed: u32,
    /// When the tick was last moved on, on the monotonic clock.
    pub(crate) ticked_ns: u64,
    /// When the benefit is to be probed again.
    pub(crate) probe_at_ns: u64,
    /// How much memory there is for rows and pages; a test says so itself.
    pub(crate) memory_bytes: fn() -> Option<u64>,
    pub(crate) beneficial: bool,
    /// Of the eviction that is under way: what is still to be visited.
    pub(crate) eviction_cursor: Vec<EvictionStep>,
    /// A row found no place since the last round.
    pub(crate) starved: bool,
    /// The tick at which one last did.
    pub(crate) starved_at: u32,
    pub(crate) random: Random,
}

/// A page that an eviction is to visit, and which rows go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EvictionStep {
    pub(crate) table: u32,
    pub(crate) page: u32,
    /// Rows that were last read so many ticks ago go.
    pub(crate) age_max: f64,
}

/// What waits for one epoch.
struct DeferredFrees {
    epoch: u64,
    places: Vec<u64>,
    pages: Vec<u32>,
}

impl Cache {
    /// The cache that the options ask for. Nothing of its memory is touched yet. Where the address space cannot be had,
    /// there is no cache: it is a benefit, and not needed.
    pub(crate) fn new(options: &Options, wanted: bool) -> Cache {
        let wanted = wanted && options.cache_mode != CacheMode::Off && options.cache_bytes >= CACHE_BYTES_MIN;
        let pages = if wanted { (options.cache_bytes / PAGE_BYTES).min(u64::from(u32::MAX)) } else { 0 };
        let tier = FastTierOptions { bytes_max: pages * PAGE_BYTES, ..FastTierOptions::default() };
        let reserved = (pages > 0).then(|| FastTier::dram(&tier)).and_then(std::result::Result::ok);
        let memory = reserved.filter(|memory| memory.grow(pages * PAGE_BYTES).is_ok());
        let memory = memory.and_then(|memory| bytes_of(Arc::new(memory)).ok());
        // The last page is what the fast tier is measured against.
        let pages = if memory.is_some() { pages as u32 - 1 } else { 0 };
        let seed = if options.background { Random::from_entropy().next_u64() } else { 1 };
        let (threshold, rw) = (options.cache_hit_threshold, options.cache_rw);
        let state = CacheState {
            pages: Pages::new(pages),
            policy: Policy::new(options.cache_policy, threshold, rw, seed),
            retired: VecDeque::new(),
            tick: 1,
            observed: 0,
            ticked_ns: 0,
            probe_at_ns: 0,
            memory_bytes: hedgerow_device::memory_bytes,
            beneficial: false,
            eviction_cursor: Vec::new(),
            starved: false,
            starved_at: 0,
            random: Random::from_seed(seed),
        };
        Cache {
            tick: CachePadded(AtomicU32::new(u32::from(
                memory.is_some() && options.cache_mode == CacheMode::On,
            ))),
            ring: Ring::new(if memory.is_some() { RING_CAPACITY } else { 2 }),
            marks: Marks::new(pages),
            memory,
            sample_all: !options.background,
            mode: options.cache_mode,
            numbers: Numbers::default(),
            state: Mutex::new(state),
        }
    }

    /// Whether there is one at all.
    pub(crate) fn exists(&self) -> bool {
        self.memory.is_some()
    }

    /// Bytes of its budget.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.bytes())
    }

    /// The tick that it is; 0 while the cache is bypassed. One load of a line that all share.
    #[inline]
    pub(crate) fn tick(&self) -> u32 {
        self.tick.0.load(Ordering::Relaxed)
    }

    /// Tells everybody the tick, or with 0 that there is nothing to tell the cache.
    pub(crate) fn set_tick(&self, tick: u32) {
        self.tick.0.store(tick, Ordering::Relaxed);
    }

    fn memory(&self) -> &TierBytes {
        self.memory.as_ref().expect("a cached slot was made by a cache with memory")
    }

    /// The slot that leads to a key's records in the log: itself, unless its row is cached. The guard was pinned before `slot` was read: its
    /// entry is still that of the key.
    #[inline]
    pub(crate) fn log_slot(&self, slot: Slot, _guard: &Guard<'_>) -> LogSlot {
        match slot.leads_to() {
            SlotTarget::Log(slot) => slot,
            SlotTarget::Cache(place) => self.log_slot_at(place).with_older_versions(slot.older_versions()),
        }
    }

    /// The log slot in the entry at `place`.
    fn log_slot_at(&self, place: u64) -> LogSlot {
        let word = self.memory().load_u64(place);
        Slot::from_raw(word).and_then(Slot::in_log).expect("an entry holds a log slot")
    }

    /// The bytes of the row at `place`. The guard was pinned before the slot that says so was read.
    #[inline]
    pub(crate) fn raw_record<'p>(&'p self, place: u64, _guard: &'p Guard<'_>) -> Result<RawRecord<'p>> {
        self.entry(place)
    }

    #[inline(always)]
    fn entry(&self, place: u64) -> Result<RawRecord<'_>> {
        let (start, memory) = (place + ENTRY_HEADER_BYTES, self.memory());
        let header = memory.try_read(start, 8).ok_or_else(|| broken(place))?;
        let bytes = u32_at(header, 4) as usize;
        let bytes = memory.try_view(start, bytes).ok_or_else(|| broken(place))?;
        Ok(RawRecord { bytes, offset: CACHED_OFFSET | place, segment_number: SEGMENT_NUMBER })
    }

    fn unverified(&self, place: u64) -> Result<Record<'_>> {
        self.entry(place)?.record(false).map_err(|_| broken(place))
    }

    /// Prefetches the row at `place`, in a record of about so many bytes.
    #[inline]
    pub(crate) fn prefetch(&self, place: u64, record_bytes: u64) {
        let bytes = record_bytes.min(PREFETCH_BYTES_MAX) + ENTRY_HEADER_BYTES;
        if let Some(memory) = &self.memory {
            memory.prefetch(place, bytes);
        }
    }

    /// Records that the row at `place` was read in `tick`. Stores only if it was not before, so that readers of one row do
    /// not take its line from each other.
    #[inline]
    pub(crate) fn touch(&self, place: u64, tick: u32) {
        let at = place + 8;
        if self.memory().load_u64(at) != u64::from(tick) {
            self.memory().store_u64(at, u64::from(tick));
        }
    }

    /// The tick of the last read of the row at `place`.
    pub(crate) fn last_access(&self, place: u64) -> u32 {
        self.memory().load_u64(place + 8) as u32
    }

    /// Prefetches what [`Cache::last_access`] reads.
    pub(crate) fn prefetch_access(&self, place: u64) {
        self.memory().prefetch(place + 8, 8);
    }

    /// Tells the worker that no slot leads to `place` any more. Call it after another slot was published in its place, and
    /// under the guard that was pinned before: then whoever can still see the place holds a guard that is older than the
    /// mark.
    #[inline]
    pub(crate) fn invalidate(&self, place: u64) {
        self.marks.set(place);
    }

    /// Whether this call is in the sample.
    #[inline]
    pub(crate) fn is_sampled(&self) -> bool {
        thread_local!(static STATE: Cell<u32> = const { Cell::new(1) });
        self.sample_all
            || STATE.with(|state| {
                // Knuth's linear congruential generator; the upper bits are the random ones.
                state.set(state.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
                state.get() < u32::MAX / SAMPLED
            })
    }

    /// Records a write to a table, in its traffic.
    #[inline]
    pub(crate) fn record_write(&self, traffic: &Traffic) {
        if self.tick() != 0 && self.is_sampled() {
            traffic.writes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks for a row. Never waits; the request may be lost.
    #[inline]
    pub(crate) fn request(&self, table: u32, key: &[u8]) {
        self.ring.push(table, key);
    }

    /// The oldest request. For the worker.
    pub(crate) fn next_request(&self) -> Option<Request> {
        self.ring.pop()
    }

    /// Bytes of the entry for a record.
    pub(crate) fn entry_bytes(record_bytes: usize) -> u64 {
        record_bytes as u64 + ENTRY_HEADER_BYTES
    }

    /// Whether an entry of so many bytes is not too large for a slot.
    pub(crate) fn fits(bytes: u64) -> bool {
        bytes <= SLOT_BYTES_MAX
    }

    /// Writes an entry at a place that is the caller's and that no slot leads to.
    pub(crate) fn fill(
        &self,
        place: u64,
        tick: u32,
        log_slot: LogSlot,
        spec: &RecordSpec<'_>,
        sequence: u64,
        body: impl FnOnce(&mut [u8]),
    ) {
        let bytes = Cache::entry_bytes(spec.record_bytes()) as usize;
        self.memory().write(place, bytes, |entry| {
            let (header, record) = entry.split_at_mut(ENTRY_HEADER_BYTES as usize);
            header[..8].copy_from_slice(&log_slot.raw().to_le_bytes());
            header[8..].copy_from_slice(&u64::from(tick).to_le_bytes());
            let seed = Seed::new(SEGMENT_NUMBER, CACHED_OFFSET | place);
            spec.encode(record, seed, body);
            format::seal(&mut record[..spec.prefix_bytes()], seed, sequence, None);
        });
    }

    /// Copies the entry at `from` to `to`, a place that is the caller's and that no slot leads to.
    pub(crate) fn copy(&self, from: u64, to: u64) -> Result<()> {
        let record = self.unverified(from)?;
        let memory = self.memory();
        let bytes = memory.read(from + ENTRY_HEADER_BYTES, record.record_bytes());
        memory.write(to + ENTRY_HEADER_BYTES, bytes.len(), |out| out.copy_from_slice(bytes));
        // Words that others look at, so one by one.
        for at in [0, 8] {
            memory.store_u64(to + at, memory.load_u64(from + at));
        }
        Ok(())
    }

    /// The table and key of the row at `place`.
    pub(crate) fn owner(&self, place: u64) -> Result<Record<'_>> {
        self.unverified(place)
    }

    /// Adds the places that were marked since the last call to `out`.
    pub(crate) fn take_marked(&self, out: &mut Vec<u64>) {
        self.marks.take(out);
    }

    /// How many times longer reads of the `fast` tier, in the [`SAMPLED_BYTES`] from `from` on, take than reads of the cache's memory. Places
    /// on either side are as near to each other: memory answers sooner to who was close by just before.
    pub(crate) fn probe_benefit(&self, fast: &FastTier, from: u64) -> f64 {
        let memory = self.memory();
        let places = |from: u64| {
            let stride = SAMPLED_BYTES / benefit::SAMPLES as u64;
            std::array::from_fn(|i| from + i as u64 * stride)
        };
        let others = places(memory.bytes() - SAMPLED_BYTES);
        // Pages of zeros that were never written are all the same one.
        others.iter().for_each(|&place| memory.write(place, 1, |byte| byte[0] = 1));
        benefit::measure(fast, &places(from), memory, &others)
    }
}

pub(crate) use benefit::{BENEFIT_KEPT, BENEFIT_MIN, is_better_than_pages};

/// Of the fast tier, and of the cache's last page, when the one is measured against the other.
pub(crate) const SAMPLED_BYTES: u64 = PAGE_BYTES;

impl CacheState {
    /// Has what no slot leads to any more freed once nobody can see it: `epoch` is that of a moment after the last of it
    /// was unlinked.
    pub(crate) fn retire(&mut self, epoch: u64, places: Vec<u64>, pages: Vec<u32>) {
        if !places.is_empty() || !pages.is_empty() {
            self.retired.push_back(DeferredFrees { epoch, places, pages });
        }
    }

    /// Frees what has waited long enough, in the order it was retired.
    pub(crate) fn free_retired(&mut self, is_over: impl Fn(u64) -> bool) {
        while let Some(batch) = self.retired.pop_front_if(|batch| is_over(batch.epoch)) {
            batch.places.into_iter().for_each(|place| self.pages.free(place));
            batch.pages.into_iter().for_each(|page| self.pages.give_back(page));
        }
    }
}

#[cold]
pub(crate) fn broken(place: u64) -> Error {
    Error::corrupted(format!("the cached row at byte {place} of the cache does not match its checksum"))
}

/// Checks the cache's options.
pub(crate) fn check_options(options: &Options) -> Result<()> {
    let threshold = options.cache_hit_threshold;
    if !(0.0..=1.0).contains(&threshold) {
        return Err(Error::invalid(format!("cache_hit_threshold is {threshold}; it must be from 0 to 1")));
    }
    if let Some(rw) = options.cache_rw.filter(|rw| !(rw > &0.0 && rw <= &3600.0)) {
        return Err(Error::invalid(format!("cache_rw is {rw} s; it must be more than 0, up to 3600")));
    }
    Ok(())
}
