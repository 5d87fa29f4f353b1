//! The cache and the index together: log slots, and the worker that fills and empties the cache.
//!
//! Owns the rule by which the rest of `db` lives with cached slots: who reads a row takes the slot as it is
//! (`Engine::row_at`); who wants anything else of it takes its *log slot* ([`Cache::log_slot`]); who replaces it does so through
//! `Engine::publish`, which shows it the log slot and sees to the entry. So a place in DRAM is never mistaken for one in
//! the log. Promises that a cached slot stands for the very version its log slot leads to: it is published over that slot
//! alone, and gone with the first change. Must not know what a page is.
//!
//! The worker's round, every 4 ms while there is work:
//!
//! 1. Free what was retired long enough ago; retire what was replaced, and the pages of tables that are gone.
//! 2. Every few seconds, unless told always to cache: look whether it pays, by measuring the fast tier (`cache/benefit.rs`), or where the fast tier is in the
//!    page cache by how much memory there is. If not, let everything go.
//! 3. Where the cache is nearly full, evict by lifetime, the table with the lowest hit ratio first, until it is down to
//!    90 % (FOCUS section V-C3). A cached slot goes back to its log slot.
//! 4. Take requests out of the ring; copy the rows that the policy admits, each chain merged into one record; publish the
//!    cached slot over the log slot, if that is still there.
//! 5. Retire what steps 3 and 4 unlinked, under an epoch read after all of it.
//!
//! Reads of single rows fill the cache; scans use it but do not fill it: they prefetch their rows, so that it gains
//! them little, and one long scan would drive out what is read again and again.

use std::time::Duration;

use hedgerow_device::{Clock, Medium, crc32c};
use hedgerow_row::schema::body::BodyBytes;
use smallvec::SmallVec;

use super::catalog::Catalog;
use super::chain::{Chain, prefetch_chains};
use super::disk_waits::DiskWaits;
use super::engine::TableShared;
use super::read::{Bodies, GROUP};
use crate::cache::{
    BENEFIT_KEPT, BENEFIT_MIN, Cache, CacheState, EvictionStep, Request, SAMPLED_BYTES, TICKS_PER_SECOND,
    is_better_than_pages,
};
use crate::epoch::{Epoch, Guard};
use crate::index::{LogSlot, NodeArena, Slot, Tag};
use crate::log::format::{FLAG_FIELD_EXPIRY, RecordKind, RecordSpec};
use crate::log::segment::SEGMENT_HEADER_BYTES;
use crate::log::{Log, LogGuard};
use crate::options::CacheMode;
use crate::runs::Runs;
use crate::sync::atomic::Ordering;
use crate::{Options, Result};

/// Between two rounds of the worker while there is work.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(4);
/// Between two looks whether the cache pays.
const PROBE_INTERVAL: Duration = Duration::from_secs(3);
/// The same while the store is too small to tell.
const PROBE_SOON: Duration = Duration::from_millis(200);
/// Ticks between two looks at the tables' traffic.
const OBSERVE_EVERY: u32 = 10;
/// Rows copied in one round, at most.
const ADMIT_MAX: usize = 1024;
/// Rows evicted in one round, at most.
const EVICT_MAX: usize = 4096;
/// Pages visited in one round to evict from, at most.
const EVICTION_STEPS_MAX: usize = 512;
/// Rows whose ages an eviction goes by, about.
const AGES_SAMPLED: u64 = 4096;
/// Eviction begins where so much of the cache is taken,
const USAGE_HIGH: f64 = 0.95;
/// and ends here (the paper's `page_usage`; it has 0.8, which leaves an eighth of the cache empty on average).
const USAGE_TARGET: f64 = 0.9;
/// From here on there is no room to speak of; an eviction does not end below.
const USAGE_FULL: f64 = 0.85;
/// Nor is there for so many ticks after a row found no place: another table has the pages.
const STARVED_LATELY: u32 = 100;
/// What a round was like.
pub(crate) enum Round {
    /// There was work.
    Busy,
    /// There was none.
    Quiet,
    /// The cache is not in use; it is looked at again after this time.
    Bypassed(Duration),
}

/// What no slot leads to any more since this round.
#[derive(Default)]
struct Unlinked {
    places: Vec<u64>,
    pages: Vec<u32>,
}

/// Who fills the cache and empties it, and what it needs of the store.
pub(crate) struct CacheWorker<'e> {
    pub(super) cache: &'e Cache,
    pub(super) log: &'e Log,
    pub(super) catalog: &'e Catalog,
    pub(super) epoch: &'e Epoch,
    pub(super) arena: &'e NodeArena,
    pub(super) clock: &'e Clock,
    pub(super) options: &'e Options,
    pub(super) disk_waits: &'e DiskWaits,
    pub(super) runs: &'e Runs,
}

impl CacheWorker<'_> {
    /// One round.
    pub(super) fn tend(&self) -> Round {
        if !self.options.background {
            self.runs.take_in_rows();
        }
        if !self.cache.exists() {
            return Round::Bypassed(PROBE_INTERVAL);
        }
        let mut state = self.cache.state.lock();
        let state = &mut *state;
        let now_ns = self.advance_tick(state);
        self.free_retired(state);
        let mut unlinked = Unlinked::default();
        let mut taken = 0;
        self.forget_tables(state, &mut unlinked);
        self.take_replaced(state, &mut unlinked);
        let wanted = match self.cache.mode {
            CacheMode::On => true,
            // Without threads there is nobody to measure: the same calls must do the same again.
            CacheMode::Auto => self.options.background && self.is_beneficial(state, now_ns),
            CacheMode::Off => false,
        };
        // What rows of the log do not take, those of sorted tables may.
        self.runs.lend_memory(if wanted { 0 } else { self.options.cache_bytes });
        if wanted {
            self.cache.set_tick(state.tick);
            if state.starved {
                state.starved_at = state.tick;
            }
            let starved_lately =
                state.starved_at > 0 && state.tick.wrapping_sub(state.starved_at) < STARVED_LATELY;
            state.policy.set_full(starved_lately || state.pages.usage() >= USAGE_FULL);
            if state.tick.wrapping_sub(state.observed) >= OBSERVE_EVERY {
                state.observed = state.tick;
                self.observe_tables(state);
            }
            self.make_room(state, &mut unlinked);
            taken = self.admit_requested(state);
        } else {
            self.cache.set_tick(0);
            std::iter::from_fn(|| self.cache.next_request()).for_each(drop);
            state.eviction_cursor.clear();
            self.let_all_go(state, &mut unlinked);
        }
        let busy = taken > 0 || !unlinked.places.is_empty() || !unlinked.pages.is_empty();
        state.retire(self.epoch.current(), unlinked.places, unlinked.pages);
        self.free_retired(state);
        self.cache.numbers.rows.store(state.pages.rows(), Ordering::Relaxed);
        self.cache.numbers.bytes.store(state.pages.used_bytes(), Ordering::Relaxed);
        match (busy, wanted) {
            (true, _) => Round::Busy,
            (false, true) => Round::Quiet,
            (false, false) => Round::Bypassed(Duration::from_nanos(state.probe_at_ns.saturating_sub(now_ns))),
        }
    }

    /// Moves the tick on with time, or in a store without threads by one.
    fn advance_tick(&self, state: &mut CacheState) -> u64 {
        let now_ns = self.clock.monotonic_ns();
        let tick_ns = (1e9 / TICKS_PER_SECOND) as u64;
        let passed = now_ns.saturating_sub(state.ticked_ns) / tick_ns;
        let passed = if state.ticked_ns == 0 || !self.options.background { 1 } else { passed };
        if passed > 0 {
            state.ticked_ns = now_ns;
            // It wraps after more than a year; then some rows leave early or late.
            state.tick = state.tick.wrapping_add(passed as u32).max(1);
        }
        now_ns
    }

    fn free_retired(&self, state: &mut CacheState) {
        state.free_retired(|epoch| self.epoch.is_quiescent_since(epoch));
    }

    /// Rows whose slots were replaced by writers.
    fn take_replaced(&self, state: &mut CacheState, unlinked: &mut Unlinked) {
        let before = unlinked.places.len();
        self.cache.take_marked(&mut unlinked.places);
        unlinked.places[before..].iter().for_each(|&place| state.pages.leave(place));
    }

    /// The pages of tables that were dropped or cleared: their trees went with all slots in them.
    fn forget_tables(&self, state: &mut CacheState, unlinked: &mut Unlinked) {
        for table in state.pages.tables() {
            if self.catalog.by_id(table).is_none() {
                // The table goes out of the catalog before its tree is exchanged. Only after that nobody new can find an
                // entry.
                self.catalog.wait_for_change();
                unlinked.pages.extend(state.pages.detach(table));
            }
        }
    }

    fn observe_tables(&self, state: &mut CacheState) {
        for table in self.catalog.all() {
            let id = table.id.load(crate::sync::atomic::Ordering::Relaxed);
            state.policy.observe(id, &table.traffic);
        }
        state.policy.keep_tables(|table| self.catalog.by_id(table).is_some());
    }

    /// Whether rows are better off in DRAM, by a look that is at most a few seconds old.
    fn is_beneficial(&self, state: &mut CacheState, now_ns: u64) -> bool {
        if now_ns < state.probe_at_ns {
            return state.beneficial;
        }
        let tier = self.log.tier();
        let probed = match tier.medium() {
            // The fast tier is DRAM.
            Medium::Dram => Some(false),
            Medium::PageCache => Some(
                self.disk_waits.are_any()
                    && (state.memory_bytes)().is_some_and(|memory| {
                        let used_bytes = self.log.space().bytes_used().0;
                        is_better_than_pages(self.options.cache_bytes, used_bytes, self.arena.bytes(), memory)
                    }),
            ),
            _ => self.is_fast_tier_slow(state),
        };
        // Where nothing can be looked at, nothing is known that was not known before.
        state.beneficial = probed.unwrap_or(state.beneficial);
        state.probe_at_ns =
            now_ns + if probed.is_some() { PROBE_INTERVAL } else { PROBE_SOON }.as_nanos() as u64;
        state.beneficial
    }

    /// Whether reads of the fast tier take so much longer than reads of DRAM; `None` while there is no segment to tell it by.
    fn is_fast_tier_slow(&self, state: &mut CacheState) -> Option<bool> {
        // What is committed is written again only after its segment was freed. That waits for this guard, unless gc was at it before.
        let _guard = self.epoch.pin();
        let from = self.sampled_place(state)?;
        let benefit = self.cache.probe_benefit(self.log.tier(), from);
        self.cache.numbers.benefit_percent.store((benefit * 100.0) as u64, Ordering::Relaxed);
        Some(benefit >= if state.beneficial { BENEFIT_KEPT } else { BENEFIT_MIN })
    }

    /// Where in a random segment to look how slow the fast tier is: in its committed records, which nobody stores to but who merges in
    /// place. Under a guard; `None` if the store is too small, or gc empties all of it.
    fn sampled_place(&self, state: &mut CacheState) -> Option<u64> {
        let mut segments = self.log.segments_to_copy();
        segments.retain(|segment| segment.end > SEGMENT_HEADER_BYTES + SAMPLED_BYTES);
        self.log.retain_outside_gc(&mut segments);
        let segment = segments.get(state.random.below(segments.len().max(1) as u64) as usize)?;
        let room = segment.end - SEGMENT_HEADER_BYTES - SAMPLED_BYTES;
        let within = state.random.below(room) / 64 * 64;
        Some(u64::from(segment.extent) * self.log.extent_bytes() + SEGMENT_HEADER_BYTES + within)
    }
}

/// Admission.
impl CacheWorker<'_> {
    /// Returns how many requests there were.
    fn admit_requested(&self, state: &mut CacheState) -> usize {
        let mut taken = 0;
        let mut group: SmallVec<[Request; GROUP]> = SmallVec::new();
        while taken < ADMIT_MAX {
            let next = self.cache.next_request();
            let is_end = next.is_none();
            if is_end
                || group.len() == GROUP
                || next.is_some_and(|r| group.iter().any(|o| o.table != r.table))
            {
                self.admit_group(state, &group);
                group.clear();
            }
            let Some(request) = next else { break };
            taken += 1;
            group.push(request);
        }
        self.admit_group(state, &group);
        taken
    }

    /// Admits rows of one table; their misses overlap.
    fn admit_group(&self, state: &mut CacheState, group: &[Request]) {
        let Some(first) = group.first() else { return };
        let Some(table) = self.catalog.by_id(first.table) else { return };
        let keys: SmallVec<[&[u8]; GROUP]> = group.iter().map(Request::key).collect();
        let (mut found, mut admitted) = ([None; GROUP], [None; GROUP]);
        let guard = self.log.pin();
        // What is sealed has no slot that could lead to the cache.
        table.levels.locate_young(&keys, &guard, &mut found);
        for ((admitted, slot), key) in admitted.iter_mut().zip(found).zip(&keys) {
            let admits = |slot: &LogSlot| {
                matches!(slot.tag(), Tag::Row | Tag::Delta)
                    && state.policy.admits(first.table, hash(first.table, key))
            };
            *admitted = slot.and_then(Slot::in_log).filter(admits);
        }
        prefetch_chains(guard.view(), admitted);
        for slot in admitted.into_iter().flatten() {
            // What cannot be read is for the reader who meets it.
            if self.admit(state, &table, first.table, slot, &guard).unwrap_or(false) {
                self.cache.numbers.admissions.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Copies the row under a log slot into the cache, and publishes it.
    fn admit(
        &self,
        state: &mut CacheState,
        table: &TableShared,
        id: u32,
        log_slot: LogSlot,
        guard: &LogGuard<'_>,
    ) -> Result<bool> {
        let chain = Chain::of(guard.view(), log_slot)?;
        let newest = chain.newest();
        if newest.table() != id || chain.expires_at_ms()?.is_some_and(|ms| ms <= self.clock.now_ms()) {
            return Ok(false);
        }
        let schema = table.schema.load();
        if chain.depth() > 0 {
            let bodies = Bodies::new(&schema, Some(&chain), None)?;
            let plan = bodies.merge(&schema, self.clock.now_ms())?;
            let spec = RecordSpec {
                kind: RecordKind::Row,
                // Nobody merges in the cache: no flag says that it may be.
                flags: if plan.has_field_expiry() { FLAG_FIELD_EXPIRY } else { 0 },
                table: id,
                schema_version: schema.version(),
                key: newest.key(),
                expires_at_ms: chain.expires_at_ms()?,
                body_bytes: plan.body_bytes(),
            };
            return Ok(self.admit_as(state, table, log_slot, &chain, &spec, guard, |body| plan.encode(body)));
        }
        let body = BodyBytes::slice(&newest, 0..newest.body_len())?;
        let spec = RecordSpec {
            kind: RecordKind::Row,
            flags: newest.flags() & FLAG_FIELD_EXPIRY,
            table: id,
            schema_version: newest.schema_version(),
            key: newest.key(),
            expires_at_ms: newest.expires_at_ms(),
            body_bytes: body.len(),
        };
        Ok(self.admit_as(state, table, log_slot, &chain, &spec, guard, |out| out.copy_from_slice(body)))
    }

    #[expect(clippy::too_many_arguments, reason = "the two ends of one step")]
    fn admit_as(
        &self,
        state: &mut CacheState,
        table: &TableShared,
        log_slot: LogSlot,
        chain: &Chain<'_>,
        spec: &RecordSpec<'_>,
        guard: &Guard<'_>,
        body: impl FnOnce(&mut [u8]),
    ) -> bool {
        let bytes = Cache::entry_bytes(spec.record_bytes());
        let Some(place) = state.pages.allocate(spec.table, bytes) else {
            state.starved |= Cache::fits(bytes) && !state.pages.is_emptying(spec.table, bytes);
            return false;
        };
        let cached = Slot::cached(log_slot, place, spec.record_bytes() as u64);
        self.cache.fill(place, state.tick, log_slot, spec, chain.newest().version(), body);
        // The entry was written before the slot that leads to it is stored, with release.
        let replaced = table.levels.replace(spec.key, guard, |now| (now == *log_slot).then_some(cached));
        let stands = replaced.is_some();
        if !stands {
            state.pages.leave(place);
            state.pages.free(place);
        }
        stands
    }
}

/// Eviction.
impl CacheWorker<'_> {
    fn make_room(&self, state: &mut CacheState, unlinked: &mut Unlinked) {
        if state.eviction_cursor.is_empty() && state.pages.usage() > USAGE_HIGH {
            state.eviction_cursor = self.plan_eviction(state);
        }
        if !state.eviction_cursor.is_empty() {
            self.evict_outlived(state, unlinked);
        } else if state.starved && state.pages.free_pages() == 0 {
            self.make_page(state, unlinked);
        }
        state.starved = false;
    }

    /// The cursor of an eviction: which pages to visit, the last first, and which rows to let go there, so that enough is free in the end.
    fn plan_eviction(&self, state: &mut CacheState) -> Vec<EvictionStep> {
        let mut tables = state.pages.tables();
        let ratio = |&table: &u32| state.policy.ratio(table).unwrap_or(0.5);
        // The one with the lowest hit ratio is to be visited first.
        tables.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
        let mut visits = Vec::new();
        for table in tables {
            let mut pages = state.pages.of_table(table);
            // Not always the same ones first: the eviction ends when enough is free.
            let first = state.random.below(pages.len() as u64) as usize;
            pages.rotate_left(first);
            visits.extend(pages.into_iter().map(|page| {
                let age_max = state.policy.lifetime(table, state.pages.occupancy(page));
                EvictionStep { table, page, age_max }
            }));
        }
        let step = (state.pages.rows() / AGES_SAMPLED).max(1);
        let mut sample = Vec::with_capacity(2 * AGES_SAMPLED as usize);
        for visit in visits.iter().skip(state.random.below(step) as usize).step_by(step as usize) {
            let rows = state.pages.rows_in(visit.page);
            rows.iter().for_each(|&place| self.cache.prefetch_access(place));
            let share = state.pages.share_of_row(visit.page);
            let lives = |&place: &u64| (f64::from(self.age_of(state, place)) / visit.age_max, share);
            sample.extend(rows.iter().map(lives));
        }
        let scale = state.policy.scale(sample, 1.0 - USAGE_TARGET / state.pages.usage());
        visits.iter_mut().for_each(|visit| visit.age_max *= scale);
        visits
    }

    /// Goes on with an eviction: rows that were not read for longer than their lifetime leave, until enough is free.
    fn evict_outlived(&self, state: &mut CacheState, unlinked: &mut Unlinked) {
        let mut left = EVICT_MAX;
        for _ in 0..EVICTION_STEPS_MAX {
            if left == 0 {
                return;
            }
            let Some(EvictionStep { table: id, page, age_max }) = state.eviction_cursor.pop() else { break };
            // Between two rounds pages change hands.
            let Some(table) = self.catalog.by_id(id).filter(|_| state.pages.table_of(page) == Some(id))
            else {
                continue;
            };
            self.evict_from(state, unlinked, (&table, page), |age| f64::from(age) >= age_max, &mut left);
            if state.pages.usage() <= USAGE_TARGET {
                state.eviction_cursor.clear();
            }
        }
        if state.eviction_cursor.is_empty() {
            state.policy.adjust();
        }
    }

    fn age_of(&self, state: &CacheState, place: u64) -> u32 {
        state.tick.wrapping_sub(self.cache.last_access(place))
    }

    /// Evicts the rows of a page that are old enough, `left` at most.
    fn evict_from(
        &self,
        state: &mut CacheState,
        unlinked: &mut Unlinked,
        (table, page): (&TableShared, u32),
        is_due: impl Fn(u32) -> bool,
        left: &mut usize,
    ) {
        const AHEAD: usize = 8;
        let rows = state.pages.rows_in(page);
        for (i, &place) in rows.iter().enumerate() {
            if let Some(&ahead) = rows.get(i + AHEAD) {
                self.cache.prefetch_access(ahead);
            }
            if *left > 0 && is_due(self.age_of(state, place)) && self.evict(state, table, place) {
                unlinked.places.push(place);
                *left -= 1;
            }
        }
    }

    /// Puts the log slot back in the place of a cached one. False if that was replaced already: then its entry is or will
    /// be marked.
    fn evict(&self, state: &mut CacheState, table: &TableShared, place: u64) -> bool {
        let Ok(record) = self.cache.owner(place) else { return false };
        let guard = self.epoch.pin();
        let replaced = table.levels.replace(record.key(), &guard, |now| {
            (now.in_cache() == Some(place)).then(|| self.cache.log_slot(now, &guard).into())
        });
        let evicted = replaced.is_some();
        if evicted {
            state.policy.evicted(record.table(), hash(record.table(), record.key()));
            state.pages.leave(place);
            self.cache.numbers.evictions.fetch_add(1, Ordering::Relaxed);
        }
        evicted
    }

    /// Lets rows go until none is left, a bounded number at a time.
    fn let_all_go(&self, state: &mut CacheState, unlinked: &mut Unlinked) {
        let mut left = EVICT_MAX;
        for id in state.pages.tables() {
            let Some(table) = self.catalog.by_id(id) else { continue };
            for page in state.pages.of_table(id) {
                self.evict_from(state, unlinked, (&table, page), |_| true, &mut left);
                if left == 0 {
                    return;
                }
            }
        }
    }

    /// There is room, but none for rows of some table and size: empties a page. Its rows move into other pages of their
    /// list if they can.
    fn make_page(&self, state: &mut CacheState, unlinked: &mut Unlinked) {
        let (page, moves) = match state.pages.spare() {
            Some(page) => (page, true),
            None => match state.pages.least() {
                Some(page) => (page, false),
                None => return,
            },
        };
        let Some(id) = state.pages.table_of(page) else { return };
        let Some(table) = self.catalog.by_id(id) else { return };
        state.pages.close(page);
        for place in state.pages.rows_in(page) {
            if moves && self.move_row(state, &table, place) || self.evict(state, &table, place) {
                unlinked.places.push(place);
            }
        }
    }

    /// Moves a row to another page of its list; false if there is none, or the row was replaced.
    fn move_row(&self, state: &mut CacheState, table: &TableShared, from: u64) -> bool {
        let Ok(record) = self.cache.owner(from) else { return false };
        let bytes = Cache::entry_bytes(record.record_bytes());
        let Some(to) = state.pages.allocate(record.table(), bytes) else { return false };
        let elsewhere = !state.pages.share_page(from, to) && self.cache.copy(from, to).is_ok();
        let guard = self.epoch.pin();
        let is_it = |now: &Slot| now.in_cache() == Some(from);
        let replace = |now: Slot| Some(now).filter(is_it).and_then(|now| now.moved_in_cache(to));
        let moved = elsewhere && table.levels.replace(record.key(), &guard, replace).is_some();
        if moved {
            state.pages.leave(from);
        } else {
            state.pages.leave(to);
            state.pages.free(to);
        }
        moved
    }
}

/// Of a table's key; never 0.
fn hash(table: u32, key: &[u8]) -> u64 {
    1 << 32 | u64::from(crc32c(table, key))
}

#[cfg(test)]
mod tests;
