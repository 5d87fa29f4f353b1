//! Garbage collection (gc): takes segments full of obsolete records apart, so that overwriting for ever fits in a bounded tier.
//!
//! One gc cycle:
//!
//! 1. Choose the sealed segments that give the most for what emptying them writes (not the oldest: cold data is left in
//!    peace).
//! 2. Copy what is still live out of them, through the same index publication as any write, into an appender of its own, so
//!    that cold rows come to lie together. A row with deltas is merged on the way. What changes meanwhile stays changed:
//!    the copy is published only over the slot it was made from.
//! 3. PERSIST: everything durable, and the root's watermark above it (a checkpoint), and the catalog in the root.
//! 4. When no snapshot can need a victim any more, and no reader holds a reference into it, mark it free, durably.
//! 5. Take its records off their keys' older-version counts. A tombstone whose count reaches zero hides nothing any
//!    more, it is *droppable*: from then on its record counts as obsolete. Its slot stays until 2 comes by that record, for while the record is
//!    in the log, it must be in the count of whatever is written over it.
//! 6. Give the extents back.
//!
//! What a snapshot can need, and how much is spent on victims that wait for one, is in `needed.rs`.
//!
//! A victim with corruption in it, or with a delta whose row is corrupted elsewhere, cannot be emptied: it keeps its space,
//! is quarantined, and holds up none of the others. So it is with any other error that one record has.
//!
//! A victim may be emptied in part: when the room for copies is used up, what was copied is obsolete in it, and the next
//! cycle goes on. Which segments are chosen is in `victims.rs`, and how writers are slowed down while space is low in
//! `scheduler/throttle.rs`.

mod many;
pub(crate) mod moving;
mod needed;
pub(crate) mod reorder;
pub(crate) mod resting;
pub(crate) mod sealing;
#[cfg(all(test, shuttle))]
mod shuttle;
pub(crate) mod victims;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use hedgerow_row::schema::body::BodyBytes;
use smallvec::SmallVec;
use victims::{Chosen, Need};

use crate::db::append::{Draft, IndexEntry, Published, Seal, blind_draft};
use crate::db::chain::{Chain, prefetch_chains};
use crate::db::counters::Count;
use crate::db::deleted::is_droppable_tombstone;
use crate::db::engine::{Engine, TableShared};
use crate::db::pins::HeldSnapshot;
use crate::db::read::{Bodies, GROUP, folded};
use crate::index::{LogSlot, Slot, Tag};
use crate::levels::index_full;
use crate::log::format::{
    FLAG_BATCHED, FLAG_EXPIRES, FLAG_MERGEABLE, FLAG_RELOCATED, Record, RecordKind, RecordRef,
};
use crate::log::segment::SegmentKind;
use crate::log::{LogGuard, LogView, SegmentWalk};
use crate::scheduler::IdleBackoff;
use crate::scheduler::gc_state::Pending;
use crate::scheduler::throttle::SpaceLeft;
use crate::space::Claim;
use crate::sst::SstKey;
use crate::sync::atomic::Ordering;
use crate::{Error, ErrorKind, Result};

/// Cycles of one call of [`Engine::run_gc_now`], at most.
const MANUAL_CYCLES_MAX: usize = 256;
/// A segment which could not be emptied is skipped for so many cycles.
const SKIP_CYCLES: u64 = 32;

/// What of a record's key is prefetched before the record is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PrefetchDepth {
    /// The index's lines.
    Slots,
    /// These, and the records that the slot leads to.
    Chains,
}

/// A victim with nothing live in it any more.
struct Emptied {
    extent: u32,
    /// Snapshots older than this need it; unknown if there was no snapshot.
    needed_before: Option<u64>,
    /// Bytes of the copies of what lived in it.
    copied: u64,
}

/// What takes a version's place without changing it.
struct Copy<'r, 'a> {
    /// The record whose key and sequence it has.
    of: &'r Record<'a>,
    draft: Draft,
    kind: SegmentKind,
    claim: Claim,
    /// The slot it is published over.
    slot: LogSlot,
    previous: Option<RecordRef>,
}

impl Engine {
    /// Asks for a gc cycle.
    pub(crate) fn request_gc_cycle(&self) {
        self.gc.requested.store(true, Ordering::SeqCst);
        self.scheduler.wake();
    }

    /// The gc thread.
    pub(crate) fn gc_loop(&self) {
        let (mut backoff, mut seen) = (IdleBackoff::new(Duration::from_millis(2)), (0, 0));
        // After a failed sync nothing can be freed any more, and whoever waits for space is told so when he tries again.
        while self.scheduler.back_off(&mut backoff, || self.is_anything_new(&mut seen))
            && self.log.check_writable().is_ok()
        {
            // While space is low and cycles get something done, one follows the other.
            while self.gc_cycle() && !self.scheduler.is_stopped() {
                // Nobody else gets between cycles that follow each other.
                drop(self.checkpoint_index_if_due());
            }
        }
    }

    /// Whether there may be work for gc that was not there when this was asked before.
    pub(crate) fn is_anything_new(&self, seen: &mut (u64, u64)) -> bool {
        // What expires may go without a sequence.
        let now = (self.log.last_sequence(), self.counters.sum(Count::Expired));
        std::mem::replace(seen, now) != now || self.gc.requested.load(Ordering::SeqCst)
    }

    /// One cycle of the gc thread; whether another should follow at once.
    pub(crate) fn gc_cycle(&self) -> bool {
        let _cycle = self.gc.begin_cycle();
        let requested = self.gc.requested.swap(false, Ordering::SeqCst);
        let need = if requested { Need::Now } else { self.need() };
        let before = self.gc.done();
        // What it failed at is told by others: corruption by the metrics and by whoever reads it, a failed sync by the
        // next write. Neither keeps the next cycle from going on.
        drop(self.run_gc(need));
        let done = self.gc.done() - before;
        let room = self.room_for_gc();
        // Where rows move it is that which makes room in extents, and paces writers.
        let of_gc = if self.moves_help() {
            SpaceLeft { available: room.low.max(room.available), ..room }
        } else {
            room
        };
        self.gc.throttle.adjust(of_gc, done, self.log.extent_bytes(), self.clock.monotonic_ns());
        self.pace_writers();
        done.is_anything() && (room.is_low() || self.wants_move())
    }

    /// Cycles by hand, until writers have room again or there is none to be made; returns how many segments were given back.
    pub(crate) fn run_gc_now(&self) -> Result<usize> {
        let sweeps = !self.options.background;
        if sweeps {
            self.sweep_due_now();
        }
        match self.run_gc_for_now() {
            // Perhaps nothing is obsolete but what expired where nobody has come by.
            Ok(0) if sweeps => {}
            Err(full) if sweeps && full.kind() == ErrorKind::Full => {}
            done => return done,
        }
        self.sweep_now();
        self.run_gc_for_now()
    }

    fn run_gc_for_now(&self) -> Result<usize> {
        let mut freed = 0;
        for _ in 0..MANUAL_CYCLES_MAX {
            let _cycle = self.gc.begin_cycle();
            let now = self.run_gc(Need::Now)?;
            freed += now;
            if now == 0 || self.room().available > 0 {
                break;
            }
        }
        Ok(freed)
    }

    /// One cycle; returns how many segments were given back. Corruption is reported when all else is done, once: the
    /// segment is quarantined.
    pub(crate) fn run_gc(&self, need: Need) -> Result<usize> {
        self.log.check_writable()?;
        if !self.options.background {
            self.consolidate_now();
            self.tend_cache();
        }
        // A merge whose sync was refused stopped half-way: its caller is told, and not that all went well.
        self.log.check_writable()?;
        self.count_many();
        // What cannot be sealed for a damaged leaf is no reason to free nothing.
        let sealed = if self.options.background {
            Ok(())
        } else {
            self.seal_if_wanted()
                .and(self.merge_groups_where_wanted())
                .and(self.checkpoint_index_if_due().map(drop))
        };
        let freed = self.collect_once(need)?;
        sealed.map(|()| freed)
    }

    /// What a cycle moves, empties and frees; returns how many segments were given back.
    fn collect_once(&self, need: Need) -> Result<usize> {
        let _cycle = self.gc.lock.read();
        self.forget_checkpoint_for_room();
        if need == Need::Idle {
            self.renew_checkpoint_that_holds_much();
        }
        self.recount();
        let mut moved = self.finish_moves();
        let freed = self.free_moved()? + self.free_pending()?;
        let began_ns = self.clock.monotonic_ns();
        let (moved_bytes, not_moved) = match self.move_if_wanted() {
            Ok(0) => (0, None),
            Ok(_) => {
                moved = true;
                (self.gc.moving_bytes(), None)
            }
            Err(error) => (0, Some(error)),
        };
        let need = self.need_after(need, !moved);
        let chosen = self.choose(need);
        if chosen.victims.is_empty() && !moved {
            // What nothing came of is no reason to choose otherwise for good.
            self.gc.no_progress.store(false, Ordering::Relaxed);
            return not_moved.map_or(Ok(freed), Err);
        }
        if need == Need::Idle {
            self.gc.gave_back_ns.store(self.clock.monotonic_ns(), Ordering::Relaxed);
        }
        // Held, so that no other cycle frees what the look at its way would come by.
        let oldest = self.snapshots.hold_oldest();
        let (emptied, failure) = self.empty_all(&chosen, oldest.as_ref().map(HeldSnapshot::sequence));
        drop(oldest);
        self.gc.no_progress.store(emptied.is_empty() && !moved, Ordering::Relaxed);
        let settled = self.settle(emptied);
        if moved_bytes > 0 {
            self.gc.set_moving_bytes(0);
            self.gc.record_move(self.clock.monotonic_ns().saturating_sub(began_ns), moved_bytes);
        }
        let freed = freed + settled?;
        failure.or(not_moved).map_or(Ok(freed), Err)
    }

    /// Steps 3 to 6: what was copied is made durable, and what was emptied is freed once nobody needs it. Returns how many were freed now.
    fn settle(&self, emptied: Vec<Emptied>) -> Result<usize> {
        // Nothing is copied out of those that are queued meanwhile.
        let _settling = self.gc.settling.lock();
        let queued: Vec<u32> = self.gc.moved_from.lock().iter().map(|victim| victim.pending.extent).collect();
        // PERSIST: what was copied is durable, and the watermark above every sequence in the victims, before they go.
        self.log.checkpoint()?;
        // PERSIST: changes of the catalog that lie in them, too, are in the root by then.
        self.catalog.checkpoint(&self.log)?;
        self.log.record_emptied(emptied.iter().map(|victim| victim.extent));
        let (last_sequence, epoch) = (self.log.last_sequence(), self.epoch.current());
        let pending = emptied.into_iter().map(|Emptied { extent, needed_before, copied }| Pending {
            extent,
            sequence: needed_before.unwrap_or(last_sequence),
            epoch,
            copied,
        });
        self.gc.pending.lock().extend(pending);
        for victim in self.gc.moved_from.lock().iter_mut() {
            victim.is_durable |= queued.contains(&victim.pending.extent);
        }
        Ok(self.free_settled()? + self.free_pending()?)
    }

    /// Frees victims that wait for nothing but this, of a store that is about to be closed.
    pub(crate) fn free_what_was_emptied(&self) -> Result<usize> {
        let _cycle = self.gc.lock.read();
        if self.gc.knows_all() { Ok(0) } else { self.settle(Vec::new()) }
    }

    /// Frees victims that wait for readers alone, who let go soon. The caller keeps out cycles.
    pub(crate) fn free_what_waits_for_readers(&self) -> Result<()> {
        self.free_moved()?;
        self.free_pending().map(drop)
    }

    /// A move, if there is little room and collecting alone does not make it, or the store is at rest; returns how many victims it queued.
    fn move_if_wanted(&self) -> Result<usize> {
        let now_ns = self.clock.monotonic_ns();
        if self.puts_off_moves() {
            if self.is_short_of_room() {
                self.io_budget.put_off(now_ns);
            }
            return Ok(0);
        }
        self.io_budget.go_on(now_ns);
        let lacks_room = self.missing_landing() > 0;
        // However much is obsolete in the log: its segments are collected after the move.
        if self.is_index_short() || self.wants_move() && !(lacks_room && self.is_better_collected()) {
            match self.move_rows() {
                Err(error) if error.kind() == ErrorKind::Full => self.move_tombstones(error),
                moved => moved,
            }
        } else {
            self.move_at_rest()
        }
    }

    /// What a cycle is for in which nothing moved, though there is little room: to collect before there is none.
    fn need_after(&self, need: Need, nothing_moved: bool) -> Need {
        match need {
            Need::Idle | Need::Reordering
                if nothing_moved && (self.wants_move() || self.tombstones_wait_for_gc()) =>
            {
                Need::Low(self.room_for_gc())
            }
            _ => need,
        }
    }

    /// Step 2; returns the victims with nothing live in them, and the first thing that was wrong with another. What is wrong
    /// with one record is no reason to leave the others' segments full, whatever it is.
    fn empty_all(&self, chosen: &Chosen, oldest: Option<u64>) -> (Vec<Emptied>, Option<Error>) {
        let (mut emptied, mut failure) = (Vec::new(), None);
        let copied = self.gc.totals().1;
        for &extent in &chosen.victims {
            if !emptied.is_empty() && self.awaits_index() {
                // Writers wait for a move, which comes first in the next cycle.
                break;
            }
            let is_beyond = self.arena.bytes() > self.options.index_bytes_max;
            if self.gc.totals().1 > copied && is_beyond && self.has_groups() {
                // What is copied of sealed rows is in the young index again: it is sealed before there is more.
                break;
            }
            if !self.log.begin_gc(extent) {
                continue;
            }
            if let Some(oldest) = oldest
                && self.log.live_bytes(extent) > 0
                && self.has_spent_enough_for(oldest, &emptied)
                && self.would_wait_for(oldest, extent)
            {
                self.log.abandon_gc(extent);
                continue;
            }
            let error = match self.empty_segment(extent, chosen.claim, oldest) {
                Ok(victim) => {
                    emptied.push(victim);
                    continue;
                }
                Err(error) => error,
            };
            if let Err(closed) = self.log.check_writable() {
                self.log.abandon_gc(extent);
                return (emptied, Some(closed));
            }
            match error.kind() {
                // Out of room half-way: what was copied is obsolete here now, and the next cycle goes on from there. But a
                // record that did not fit though nothing was written yet will not fit the next time either.
                ErrorKind::Full if self.gc.totals().1 > copied => {}
                ErrorKind::Full => self.skip(extent),
                kind => {
                    // Records lie in memory: what the system refuses is more room, and nothing is wrong with them.
                    match kind {
                        ErrorKind::Io => self.skip(extent),
                        _ => self.log.quarantine(extent),
                    }
                    failure = failure.or(Some(error));
                }
            }
            self.log.abandon_gc(extent);
        }
        (emptied, failure)
    }

    /// Leaves a segment alone for a while that had no room to be emptied into.
    fn skip(&self, extent: u32) {
        self.log.skip(extent, self.gc.cycles(), SKIP_CYCLES);
    }

    /// Whether waiting may bring space: a cycle is under way or would find something, or readers will let go of something.
    pub(crate) fn may_gain_space(&self) -> bool {
        !self.log.miscounted().is_empty()
            || self.waits_for_readers()
            || self.waits_for_snapshot()
            || self.may_gain_leaves()
            || self.can_move() && !self.choose_to_move(self.snapshots.oldest()).is_empty()
            || !self.choose(Need::Now).victims.is_empty()
    }

    /// Whether a victim waits for readers alone, who let go soon, and not for a snapshot.
    fn waits_for_readers(&self) -> bool {
        let oldest = self.snapshots.oldest();
        let waiting = self.gc.waiting();
        waiting.iter().any(|victim| oldest.is_none_or(|oldest| oldest >= victim.sequence))
    }

    /// Whether a victim waits for a backup, which has still to copy it.
    pub(crate) fn waits_for_backup(&self) -> bool {
        self.backups.is_active() && self.gc.waiting().iter().any(|victim| self.backups.holds(victim.extent))
    }

    /// What keeps segments that are empty, or could be, from being freed: for the error of a store that is full.
    pub(crate) fn pins(&self) -> Vec<String> {
        let oldest = self.snapshots.oldest();
        let waiting = self.gc.waiting();
        let (of_snapshots, others): (Vec<Pending>, Vec<Pending>) =
            waiting.into_iter().partition(|victim| oldest.is_some_and(|o| o < victim.sequence));
        let of_snapshots = of_snapshots.len();
        let of_backup = others.iter().filter(|victim| self.backups.holds(victim.extent)).count();
        let of_readers = others.len() - of_backup;
        let bytes = |segments: u64| segments * self.log.extent_bytes();
        let mut pins = Vec::new();
        if let Some(age_ms) = self.snapshots.oldest_age_ms(self.clock.monotonic_ns()) {
            let kept = oldest.map_or(0, |oldest| self.log.segments_kept_for(oldest));
            pins.push(format!(
                "a snapshot taken {age_ms} ms ago keeps what was replaced since ({of_snapshots} empty segments and {kept} that are not, \
                 {} bytes, wait for it)",
                bytes(of_snapshots as u64 + kept)
            ));
        }
        if of_backup > 0 {
            pins.push(format!(
                "{of_backup} empty segments, {} bytes, wait until the backup that is under way has copied them",
                bytes(of_backup as u64)
            ));
        }
        if of_readers > 0 {
            pins.push(format!(
                "{of_readers} empty segments, {} bytes, wait for a reader to leave `Table::read` or a scan, or to drop a `ReadGuard`",
                bytes(of_readers as u64)
            ));
        }
        if self.log.has_retired_leaves() {
            pins.push("leaves of the index that were merged wait for a reader, too".into());
        }
        let quarantined = self.log.segments_quarantined();
        if quarantined > 0 {
            pins.push(format!(
                "{quarantined} segments, {} bytes, are quarantined because of corruption",
                bytes(quarantined)
            ));
        }
        let unfinished = self.gc.unfinished_moves();
        if unfinished > 0 {
            pins.push(format!(
                "{unfinished} segments hold rows that were changed while they moved, and found no room"
            ));
        }
        if let Some(failure) = self.gc.move_failure() {
            pins.push(format!("rows could not be moved to sorted tables: {failure}"));
        }
        pins
    }

    /// Step 2, for one segment. `oldest` is the oldest snapshot, if there is one.
    fn empty_segment(&self, extent: u32, claim: Claim, oldest: Option<u64>) -> Result<Emptied> {
        let mut victim = Emptied { extent, needed_before: oldest.map(|_| 0), copied: 0 };
        self.each_record(extent, PrefetchDepth::Chains, |table, record| {
            victim.copied += loop {
                if let Some(copied) = self.relocate(table, extent, record, claim)? {
                    break copied;
                }
            };
            if let (Some(oldest), Some(before)) = (oldest, &mut victim.needed_before) {
                *before = self.needed_before(table, record, oldest).unwrap_or(0).max(*before);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(victim)
    }

    /// Calls `visit` with the records of a segment, those of tables that are gone left out, and before the first that does
    /// not parse ends it. What a group of them needs is prefetched.
    fn each_record<'l>(
        &'l self,
        extent: u32,
        depth: PrefetchDepth,
        mut visit: impl FnMut(&Arc<TableShared>, &Record<'l>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.each_group(extent, |table, group| {
            self.prefetch_group(table, group, depth);
            for record in group {
                if visit(table, record)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// The same by groups of records of one table, [`GROUP`] at most: each looked up alone would be a row of misses, one after the other.
    fn each_group<'l>(
        &'l self,
        extent: u32,
        mut visit: impl FnMut(&Arc<TableShared>, &[Record<'l>]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let Some(mut walk) = self.log.walk(extent) else { return Ok(()) };
        let mut group: SmallVec<[Record<'l>; GROUP]> = SmallVec::new();
        loop {
            let end = loop {
                if group.len() == GROUP {
                    break None;
                }
                match walk.next_record() {
                    Ok(Some(record)) => group.push(record),
                    Ok(None) => break Some(Ok(())),
                    Err(error) => break Some(Err(error)),
                }
            };
            for of_one in group.chunk_by(|one, next| one.table() == next.table()) {
                let Some(table) = self.catalog.by_id(of_one[0].table()) else { continue };
                if visit(&table, of_one)?.is_break() {
                    return Ok(());
                }
            }
            group.clear();
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// The slots of the records' keys, and which of these only a group has.
    fn slots_of(
        &self,
        table: &TableShared,
        records: &[Record<'_>],
        guard: &LogGuard<'_>,
    ) -> ([Option<Slot>; GROUP], [bool; GROUP]) {
        let keys: SmallVec<[&[u8]; GROUP]> = records.iter().map(Record::key).collect();
        let (mut found, mut sealed) = ([None; GROUP], [false; GROUP]);
        table.levels.locate_versions(&keys, guard, (&mut found, &mut sealed));
        (found, sealed)
    }

    /// The error where a slot that groups gave stands for what nobody can say: its leaf is damaged. Such a record is not taken for one that nobody needs.
    fn check_known(&self, slot: LogSlot) -> Result<()> {
        if slot.bytes_unknown() && self.log.is_leaf(slot.offset()) {
            return Err(Error::corrupted(
                "a leaf of the index is damaged, which may have the key of a record",
            ));
        }
        Ok(())
    }

    fn prefetch_group(&self, table: &TableShared, records: &[Record<'_>], depth: PrefetchDepth) {
        let guard = self.log.pin();
        let (found, _) = self.slots_of(table, records, &guard);
        if depth == PrefetchDepth::Chains {
            // What is not in the version that the slot leads to is obsolete, and that version is not looked at.
            let leads_to = |slot: &LogSlot, record: &Record<'_>| {
                slot.depth() > 0 && slot.tag() != Tag::Tombstone || slot.offset() == record.offset()
            };
            let mut wanted = [None; GROUP];
            for ((wanted, slot), record) in wanted.iter_mut().zip(found).zip(records) {
                *wanted =
                    slot.map(|slot| self.cache.log_slot(slot, &guard)).filter(|slot| leads_to(slot, record));
            }
            prefetch_chains(guard.view(), wanted);
        }
    }

    /// Copies a record if it is live; returns the bytes of the copy. `None` if the key changed meanwhile and it must be looked at again.
    fn relocate(
        &self,
        table: &TableShared,
        extent: u32,
        record: &Record<'_>,
        claim: Claim,
    ) -> Result<Option<u64>> {
        let guard = self.log.pin();
        let Some(slot) = table.levels.locate_version(record.key(), &guard) else { return Ok(Some(0)) };
        let slot = self.cache.log_slot(slot, &guard);
        if slot.tag() == Tag::Delta || slot.tag() == Tag::Blind && slot.depth() > 1 {
            return self.merge_chain(table, record, (slot, guard.view()), claim);
        }
        if slot.offset() != record.offset() {
            return self.check_known(slot).map(|()| Some(0));
        }
        if is_droppable_tombstone(*slot) || self.has_nothing_to_hide(table, record, slot) {
            return Ok(self.drop_tombstone(table, extent, record, slot)?.then_some(0));
        }
        let body = BodyBytes::slice(&record, 0..record.body_len())?;
        let not_wanted = if self.merges_in_place { 0 } else { FLAG_MERGEABLE };
        let draft = Draft {
            kind: record.kind(),
            flags: (record.flags() | FLAG_RELOCATED) & !(FLAG_BATCHED | FLAG_EXPIRES | not_wanted),
            schema_version: record.schema_version(),
            expires_at_ms: record.expires_at_ms(),
            body_bytes: body.len(),
        };
        // Snapshots go on down from here to what its original replaced.
        let previous = record.previous();
        let copy = Copy { of: record, draft, kind: SegmentKind::Relocated, claim, slot, previous };
        // The original is one older record more until its segment is freed.
        let moved = |offset, _| slot.with_offset(offset).add_older_versions(1);
        let done = self.republish(table, &copy, |out| out.copy_from_slice(body), moved)?;
        if done {
            // The victim may be given up, and is chosen again by what is live in it.
            self.log.add_obsolete(record.offset(), record.record_bytes() as u64);
        }
        Ok(done.then_some(record.record_bytes() as u64))
    }

    /// Whether a tombstone that was to hide what is below hides nothing, and no older record.
    fn has_nothing_to_hide(&self, table: &TableShared, record: &Record<'_>, slot: LogSlot) -> bool {
        // While rows move, one of its key may be on its way.
        slot.hides_below()
            && slot.older_versions() == 0
            && !table.is_moving()
            && !self.runs.may_hold(record.table(), record.key())
    }

    /// A record leaves the index that nobody will count: where rows move it is remembered while it is in the log.
    pub(crate) fn will_drop(&self, extent: u32, table: u32, key: &[u8]) {
        if self.may_move() {
            self.gc.will_drop_key(extent, SstKey::new(table, key).hash());
        }
    }

    /// Takes a droppable tombstone out of the index. Its record goes with its segment, and is counted nowhere
    /// until then. False if the key changed meanwhile.
    fn drop_tombstone(
        &self,
        table: &TableShared,
        extent: u32,
        record: &Record<'_>,
        slot: LogSlot,
    ) -> Result<bool> {
        let guard = self.epoch.pin();
        // Clearing the table locks all appenders before it counts the tombstones as gone.
        let _appender = self.log.gc_appender();
        self.will_drop(extent, record.table(), record.key());
        let dropped = table.levels.remove(record.key(), *slot, &guard);
        if dropped {
            self.gc.record_dropped(extent, record.offset());
            if slot.hides_below() {
                self.log.add_obsolete(record.offset(), record.record_bytes() as u64);
            }
        }
        Ok(dropped)
    }

    /// If `record` is part of the chain under `slot`, writes the whole row in its place, or where that is not in the log one delta; returns its bytes, as
    /// `relocate` does.
    fn merge_chain(
        &self,
        table: &TableShared,
        record: &Record<'_>,
        (slot, log): (LogSlot, LogView<'_>),
        claim: Claim,
    ) -> Result<Option<u64>> {
        let chain = Chain::of(log, slot)?;
        if !chain.has(record)? {
            return Ok(Some(0));
        }
        // A whole row for a delta: that may take more room than the segment gives. (What ends a move may have all there is, and what is done before leaves it more.)
        let may_grow = record.kind() == RecordKind::Delta && claim == Claim::Gc;
        let claim = if may_grow { Claim::Merge } else { claim };
        self.write_merged(table, slot, &chain, SegmentKind::Relocated, claim)
    }

    /// Writes the row that `chain`, under `slot`, amounts to, in its place, or one delta if the row is not in the log and nobody gave it; returns the bytes
    /// of its record. `None` if the key changed meanwhile.
    pub(crate) fn write_merged(
        &self,
        table: &TableShared,
        slot: LogSlot,
        chain: &Chain<'_>,
        kind: SegmentKind,
        claim: Claim,
    ) -> Result<Option<u64>> {
        if !self.options.verify_reads {
            chain.verify()?;
        }
        let schema = table.schema.load();
        if slot.tag() == Tag::Blind && !chain.is_over_lower() {
            let fold = folded(&schema, chain, None, self.clock.now_ms())?;
            let mut draft = blind_draft(&schema, fold.body_bytes());
            draft.flags |= FLAG_RELOCATED;
            return self.write_in_place_of(
                table,
                (slot, chain),
                draft,
                |body| fold.encode(body),
                (kind, claim),
            );
        }
        let schema = chain.lower_schema().unwrap_or(&schema);
        let bodies = Bodies::new(schema, Some(chain), None)?;
        let plan = bodies.merge(schema, self.clock.now_ms())?;
        let mut draft =
            self.row_draft(schema, chain.expires_at_ms()?, plan.body_bytes(), plan.has_field_expiry());
        draft.flags |= FLAG_RELOCATED;
        self.write_in_place_of(table, (slot, chain), draft, |body| plan.encode(body), (kind, claim))
    }

    /// Writes a copy of what `chain` comes to in its place.
    fn write_in_place_of(
        &self,
        table: &TableShared,
        (slot, chain): (LogSlot, &Chain<'_>),
        draft: Draft,
        fill: impl Fn(&mut [u8]),
        (kind, claim): (SegmentKind, Claim),
    ) -> Result<Option<u64>> {
        let newest = chain.newest();
        // Snapshots older than the newest delta go on into the chain.
        let copy = Copy { of: newest, draft, kind, claim, slot, previous: Some(slot.into()) };
        let merged = |offset, bytes| draft.slot(offset, bytes, Some(slot));
        let written = draft.spec(newest.table(), newest.key()).record_bytes() as u64;
        let done = self.republish(table, &copy, fill, merged)?;
        if done {
            let obsolete: u64 = chain.in_log()?.map(|record| record.record_bytes() as u64).sum();
            chain.in_log()?.for_each(|r| self.log.add_obsolete(r.offset(), r.record_bytes() as u64));
            self.chain_ended(chain);
            self.gc.gained.fetch_add(obsolete.saturating_sub(written), Ordering::Relaxed);
        }
        Ok(done.then_some(written))
    }

    /// Writes a copy in gc's appender and publishes it over the slot it was made from, under a sequence that was
    /// given out long ago.
    fn republish(
        &self,
        table: &TableShared,
        copy: &Copy<'_, '_>,
        fill: impl Fn(&mut [u8]),
        new_slot: impl Fn(u64, usize) -> LogSlot,
    ) -> Result<bool> {
        if copy.of.flags() & FLAG_BATCHED != 0 {
            // The copy is part of no batch. Were the process killed while the rest of it is being published, recovery would
            // drop the batch and keep the copy.
            self.log.wait_until_published(copy.of.version())?;
        }
        let key = copy.of.key();
        let spec = copy.draft.spec(copy.of.table(), key);
        let bytes = spec.record_bytes();
        let mut appender = self.log.gc_appender();
        let reservation = appender
            .reserve(&self.log, copy.kind, bytes, copy.claim)
            .map_err(|no_space| no_space.into_error(&self.log))?;
        let record = reservation.encode(&spec, fill);
        let offset = record.offset();
        if copy.draft.flags & FLAG_MERGEABLE != 0 {
            // PERSIST: the body is durable before its prefix can be found whole. The copy's sequence is an old one: were the
            // body torn, recovery would take it for a durable row that was being merged in place.
            record.persist();
            self.log.check_writable()?;
        }
        let sequence = copy.of.version();
        let guard = self.log.pin();
        let published = self.publish_record(IndexEntry::of_copy(table, key), record, &guard, |now| {
            let seal = Seal { sequence, previous: copy.previous };
            (now == Some(copy.slot)).then(|| (Published { slot: new_slot(offset, bytes), seal }, ()))
        });
        // Nothing was committed if it does not stand: the next record is written over it.
        let stands = published.map_err(index_full)?.is_some();
        if stands {
            copy.draft.record_expiry(&self.log, offset);
            self.record_copy_of_many(copy.of.table(), key, (copy.slot, new_slot(offset, bytes)), sequence);
            self.gc.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Ok(stands)
    }

    /// Steps 4 to 6 for every victim that nobody needs; returns how many.
    fn free_pending(&self) -> Result<usize> {
        let mut freed = 0;
        let waiting = self.gc.pending.lock().len();
        for _ in 0..waiting {
            let Some(victim) = self.gc.pending.lock().pop_front() else { break };
            if self.is_needed(&victim) {
                self.gc.pending.lock().push_back(victim);
                continue;
            }
            self.free_victim(victim.extent)?;
            freed += 1;
        }
        Ok(freed)
    }

    /// Whether a snapshot, a backup or a reader may come by a record of a victim still.
    fn is_needed(&self, victim: &Pending) -> bool {
        self.snapshots.oldest().is_some_and(|oldest| oldest < victim.sequence)
            || self.backups.holds(victim.extent)
            || !self.epoch.is_quiescent_since(victim.epoch)
    }

    fn free_victim(&self, extent: u32) -> Result<()> {
        // PERSIST: free on the medium before anything is written over it, and before step 5 forgets a tombstone.
        self.log.free_segments(&[extent])?;
        self.reuse_victim(extent, true)
    }

    /// Steps 5 and 6 for a victim that is free on the medium; 5 if keys count some of its records.
    fn reuse_victim(&self, extent: u32, is_counted: bool) -> Result<()> {
        // What lies behind a record that cannot be read is counted for ever: its keys keep their tombstones. Nothing in
        // the segment is live.
        if !is_counted {
            self.gc.forget_dropped(extent);
        } else if self.uncount(extent).is_err() {
            self.gc.counts_lost.store(true, Ordering::Relaxed);
        }
        self.log.reuse(extent)?;
        self.gc.segments.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Step 5.
    fn uncount(&self, extent: u32) -> Result<()> {
        let mut dropped = self.gc.forget_dropped(extent);
        dropped.sort_unstable();
        self.each_record(extent, PrefetchDepth::Slots, |table, record| {
            if dropped.binary_search(&record.offset()).is_ok() {
                return Ok(ControlFlow::Continue(()));
            }
            let guard = self.log.pin();
            let _appender = self.log.gc_appender();
            let fewer = self.subtract_freed((table, record.table()), record.key(), 1, &guard);
            self.record_freed_of_many(record, fewer, extent);
            Ok(ControlFlow::Continue(()))
        })
    }

    /// So many older records of a key were freed, which were of the table of this number. Returns its slot if that says so from now on. With gc's appender locked, or alone.
    pub(crate) fn subtract_freed(
        &self,
        (table, id): (&TableShared, u32),
        key: &[u8],
        freed: u8,
        guard: &LogGuard<'_>,
    ) -> Option<Slot> {
        let fewer = table.levels.subtract_older_version(key, guard, |slot| {
            // A table that was cleared since has the key of another record.
            let same_table = table.id.load(Ordering::Acquire) == id;
            // Of a cached slot, too: its own count is the one that counts.
            let counted = freed.min(slot.older_versions());
            let fewer = (same_table && counted > 0).then(|| slot.subtract_older_versions(counted))?;
            // If it was to hide what a group has of the key, that is gone with its record.
            let is_over_nothing = fewer.hides_below()
                && fewer.older_versions() == 0
                && !(table.is_moving() || self.runs.may_hold(id, key));
            Some(
                fewer
                    .in_log()
                    .filter(|_| is_over_nothing)
                    .map_or(fewer, |slot| *slot.with_hides_below(false)),
            )
        });
        if let Some(slot) = fewer
            && is_droppable_tombstone(slot)
            && let Some(slot) = slot.in_log()
        {
            self.log.add_obsolete(slot.offset(), slot.bytes());
        }
        fewer
    }

    /// Counts the rows of tables that are gone as obsolete, each once: in the segments that were sealed when the table went,
    /// and in the others when they have been.
    fn recount(&self) {
        for extent in self.log.miscounted() {
            let Some((filled, obsolete, counted)) = self.log.begin_recount(extent) else { continue };
            match self.vanished_bytes(extent) {
                Ok(vanished) => {
                    let new = vanished.saturating_sub(counted);
                    // Some of them were written over before the table went, and counted then. How many is not known: as
                    // many, it is taken, as of all that is not counted yet.
                    let (others, obsolete) =
                        (filled.saturating_sub(counted), obsolete.saturating_sub(counted));
                    let newly_obsolete = new - (new * obsolete).checked_div(others).unwrap_or(0).min(new);
                    self.log.add_obsolete(u64::from(extent) * self.log.extent_bytes(), newly_obsolete);
                    self.log.record_vanished(extent, new);
                }
                Err(_) => self.log.quarantine(extent),
            }
            self.log.abandon_gc(extent);
        }
    }

    /// Bytes in a segment of tables that are gone, and of what changed the catalog.
    fn vanished_bytes(&self, extent: u32) -> Result<u64> {
        let (mut walk, mut bytes) = (self.log.walk(extent), 0);
        while let Some(record) = walk.as_mut().map_or(Ok(None), SegmentWalk::next_record)? {
            if self.catalog.by_id(record.table()).is_none() {
                bytes += record.record_bytes() as u64;
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
