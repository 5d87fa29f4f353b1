//! The write path, top to bottom.
//!
//! A write costs one pass over its bytes: they are encoded straight into the log, which is the store. Then the index slot
//! of the key is switched to the new record.
//!
//! 1. **Plan** the body: resolve names, check types, know the length (`schema/plan.rs`).
//! 2. **Lock** the thread's appender, **reserve** the record's bytes at the end of its open segment. No space: let go of the
//!    appender, wait for gc, try again; `Full` if it can free nothing.
//! 3. **Encode** header, key, body and block checksums in place; **publish** it under the key's leaf lock, if what the slot holds
//!    may be replaced; **commit** it (`append.rs`).
//! 4. Let go of the appender, **count** the bytes that became obsolete, make **durable** as the mode asks, **throttle**
//!    the writer if space is low (`scheduler/throttle.rs`).
//!
//! Invariants: sequences of one key's versions rise along its chain, because they are taken under the leaf lock. An appender's
//! records lie in the order of their sequences. A delta's `previous` refers to what was current when it was sealed.
//!
//! A row changed by `update` grows a chain of deltas (FOCUS section V-B). At `delta_chain_max` it is written whole again.
//! Tried and dropped: reading the replaced record to learn its length. It costs a miss (300 ns) on every overwrite; the
//! slot carries a size class instead.

use std::sync::Arc;
use std::time::Duration;

use hedgerow_row::row_expiry::{OldRow, RowExpiry};
use hedgerow_row::schema::plan::{DeltaPlan, FieldExpiries, PlanError, RowPlan};
use hedgerow_row::schema::table::TableSchema;
use smallvec::SmallVec;

use super::append::{
    Draft, EMPTY_DELTA, IndexEntry, Published, Seal, blind_draft, delta_draft, delta_expiry,
};
use super::at_hand::{check_at_hand, may_lack};
use super::chain::Chain;
use super::counters::Count;
use super::deleted::{is_droppable_tombstone, is_row};
use super::engine::{Engine, TableShared};
use super::read::{Bodies, RowRef, folded};
use crate::index::{LogSlot, Slot, Tag};
use crate::levels::index_full;
use crate::log::format::{FLAG_MERGEABLE, Record, RecordKind, RecordRef};
use crate::log::segment::SEGMENT_HEADER_BYTES;
use crate::log::{LogGuard, LogView, NoSpace, check_fits};
use crate::space::{Claim, NoRoom};
use crate::sst::SstKey;
use crate::sync::atomic::Ordering;
use crate::{Error, ErrorKind, FieldName, Result, Value, limits};

/// How long one wait for space takes at most.
const WAIT: Duration = Duration::from_millis(10);
/// After so many in which gc came by and freed nothing, the store counts as full.
const IDLE_WAITS_MAX: u32 = 100;
/// So it does after so many in which gc did not come by at all, its thread has not run for a minute; or in which a backup had not copied yet what gc emptied.
const UNANSWERED_WAITS_MAX: u32 = 6_000;

/// How one wait for space ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// An extent came back, or a cycle was under way that may yet free one.
    Progress,
    /// Gc looked, and freed nothing.
    Idle,
    /// Nobody has looked yet, the processors are busy with others; or a backup comes first that takes its time.
    Unanswered,
}

/// The waits of one call that were for nothing.
#[derive(Debug, Default)]
pub(super) struct SpaceWaits {
    idle: u32,
    unanswered: u32,
    /// So often it was tried again at once, since there was room by then.
    tried_again: u32,
}

/// It is tried again at once so often at most.
const TRIED_AGAIN_MAX: u32 = 8;

impl SpaceWaits {
    fn record(&mut self, outcome: WaitOutcome) {
        match outcome {
            WaitOutcome::Progress => {}
            WaitOutcome::Idle => self.idle += 1,
            WaitOutcome::Unanswered => self.unanswered += 1,
        }
    }

    /// Whether it is worth another try at once.
    fn may_try_again(&mut self) -> bool {
        self.tried_again += 1;
        self.tried_again <= TRIED_AGAIN_MAX
    }

    fn are_enough(&self) -> bool {
        self.idle >= IDLE_WAITS_MAX || self.unanswered >= UNANSWERED_WAITS_MAX
    }
}

/// A delta with a body no longer than this goes over other deltas without a look at what they lie over.
pub(super) const UNSEEN_BYTES: usize = 64 << 10;
/// What all deltas of a chain come to that were written so.
const UNSEEN_BYTES_MAX: usize = Slot::DEPTH_MAX as usize * UNSEEN_BYTES;
/// Rows in sorted tables with no more bytes stay within [`limits::ROW_BYTES_MAX`] under any blind deltas.
pub(super) const UNSEEN_ROW_BYTES_MAX: usize = limits::ROW_BYTES_MAX - UNSEEN_BYTES - UNSEEN_BYTES_MAX;

/// Whether the row under `old`, a log slot, stays within [`limits::ROW_BYTES_MAX`] with a delta of `bytes` over it, as far
/// as the slot tells. If not, the row must be looked at ([`Engine::takes_delta`]).
///
/// Both ways keep to one rule: under a delta there is room for [`UNSEEN_BYTES_MAX`] more. So a small delta over a delta
/// needs no look, whatever lies below; but for one that many were folded into, and that is not small any more: nobody has added up what it lies over.
#[inline]
fn surely_fits(old: Slot, bytes: usize) -> bool {
    match old.depth() {
        0 if old.bytes_unknown() => false,
        1 if old.tag() == Tag::Blind && (old.bytes_unknown() || old.bytes() > UNSEEN_BYTES as u64) => false,
        0 => old.bytes() as usize + bytes + UNSEEN_BYTES_MAX <= limits::ROW_BYTES_MAX,
        _ => bytes <= UNSEEN_BYTES,
    }
}

/// A write that everybody can see, and that is to be [finished](Engine::finish).
#[derive(Debug, Clone, Copy)]
pub(super) struct VisibleWrite {
    replaced: Option<LogSlot>,
    sequence: u64,
    bytes: usize,
}

/// What became of a write.
#[derive(Debug)]
pub(super) enum WriteOutcome<P = VisibleWrite> {
    /// It is visible. Of one that is finished, this is what it replaced.
    Published(P),
    /// It was not wanted any more, given what the slot holds.
    Refused,
    /// There is no free segment for so many bytes, or no room in the index. Let go of all guards, wait, try again.
    NoSpace(usize, NoSpace),
}

pub(super) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() || key.len() > limits::KEY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a key has 1 to {} bytes; this one has {}",
            limits::KEY_BYTES_MAX,
            key.len()
        )));
    }
    Ok(())
}

/// Steps 2 to 4.
impl Engine {
    /// Writes one record and publishes it if `accept` says so of the slot it would replace; then finishes the write.
    #[inline]
    fn try_write(
        &self,
        entry: IndexEntry<'_>,
        draft: &Draft,
        fill: impl Fn(&mut [u8]),
        accept: impl Fn(Option<LogSlot>) -> bool,
    ) -> Result<WriteOutcome<Option<LogSlot>>> {
        Ok(match self.try_publish(entry, draft, fill, accept)? {
            WriteOutcome::Published(write) => {
                self.finish(write)?;
                WriteOutcome::Published(write.replaced)
            }
            WriteOutcome::Refused => WriteOutcome::Refused,
            WriteOutcome::NoSpace(bytes, no_space) => WriteOutcome::NoSpace(bytes, no_space),
        })
    }

    /// Makes a write durable as the mode asks, and delays the writer. Both may take long: its caller holds no guard, or nothing could
    /// be freed meanwhile.
    #[inline]
    fn finish(&self, write: VisibleWrite) -> Result<()> {
        self.make_durable(write.sequence)?;
        self.throttle((1, write.bytes));
        Ok(())
    }

    /// Writes one record and publishes it if `accept` says so of the slot it would replace. What is published is to be
    /// [finished](Engine::finish).
    #[inline(always)]
    fn try_publish(
        &self,
        entry: IndexEntry<'_>,
        draft: &Draft,
        fill: impl Fn(&mut [u8]),
        accept: impl Fn(Option<LogSlot>) -> bool,
    ) -> Result<WriteOutcome> {
        let IndexEntry { table, key, .. } = entry;
        let mut appender = self.log.appender();
        let spec = draft.spec(table.id_for_write()?, key);
        // While the appender is locked the table is neither cleared nor loaded.
        let hides_below =
            draft.kind == RecordKind::Tombstone && self.must_hide((table, key), &self.log.pin());
        let bytes = spec.record_bytes();
        let over = |no_space| self.claim_over(table, key, no_space);
        let reservation = match appender.reserve_or(&self.log, draft.segment(), bytes, draft.claim(), over) {
            Ok(reservation) => reservation,
            Err(no_space) => return Ok(WriteOutcome::NoSpace(bytes, no_space)),
        };
        let record = reservation.encode(&spec, fill);
        let offset = record.offset();
        let guard = self.log.pin();
        let entry = if hides_below { entry.to_hide_below() } else { entry };
        let published = self.publish_record(entry, record, &guard, |old| {
            accept(old).then(|| {
                let sequence = self.log.take_sequence();
                let slot = draft.slot(offset, bytes, old);
                let slot = if hides_below { slot.with_hides_below(true) } else { slot };
                let seal = Seal { sequence, previous: old.map(RecordRef::from) };
                (Published { slot, seal }, (old, sequence))
            })
        });
        let Ok(Some((old, sequence))) = published else {
            if draft.flags & FLAG_MERGEABLE != 0 {
                // The next record is written over it, and a mergeable one's checksums are not under the checksum of its prefix: over the
                // checksums and body of the refused one that prefix, should a power cut leave nothing else of its record, would make a
                // row that nobody wrote.
                reservation.clear(&spec)?;
            }
            let full = |full| WriteOutcome::NoSpace(bytes, NoSpace::Failed(index_full(full)));
            return Ok(published.err().map_or(WriteOutcome::Refused, full));
        };
        draft.record_expiry(&self.log, offset);
        table.expiry.replaced(old, draft.expires_over(old));
        drop(appender);
        self.count_replaced(draft, old, guard.view());
        drop(guard);
        self.cache.record_write(&table.traffic);
        Ok(WriteOutcome::Published(VisibleWrite { replaced: old, sequence, bytes }))
    }

    /// Whether sorted tables may have the key, or will when a move ends that is under way. With an appender locked.
    #[inline]
    pub(super) fn may_be_below(&self, table: &TableShared, key: &[u8]) -> bool {
        table.below() && (table.is_moving() || self.runs.may_hold(table.id.load(Ordering::Acquire), key))
    }

    /// Whether a tombstone must hide something: that, or what groups have of the key. With an appender locked, which is held until the tombstone is published.
    #[inline]
    pub(super) fn must_hide(&self, (table, key): (&TableShared, &[u8]), guard: &LogGuard<'_>) -> bool {
        self.may_be_below(table, key) || table.levels.may_be_sealed(key, guard)
    }

    /// What a write that was refused may claim, if it goes over a row: then it takes what it replaces with it, and may have of what is
    /// held back from new rows.
    #[cold]
    fn claim_over(
        &self,
        table: &TableShared,
        key: &[u8],
        no_space: NoSpace,
    ) -> std::result::Result<Claim, NoSpace> {
        match no_space {
            NoSpace::Full(NoRoom { claim: Claim::Write, .. })
                if is_row(table.levels.locate(key, &self.log.pin())) =>
            {
                Ok(Claim::Overwrite)
            }
            other => Err(other),
        }
    }

    /// Delays the writer in proportion to what it wrote, so many bytes in so many writes, while space is low.
    #[inline]
    pub(super) fn throttle(&self, (writes, bytes): (usize, usize)) {
        if self.gc.throttle.is_on() && self.options.wait_for_space {
            self.gc.throttle.delay((writes as u64, bytes as u64), &self.clock);
        }
    }

    /// Counts what a published record took the place of as obsolete; under a delta, a row that has deltas from now on.
    #[inline]
    pub(super) fn count_replaced(&self, draft: &Draft, old: Option<LogSlot>, log: LogView<'_>) {
        let (Some(old), goes_over) = (old, draft.goes_over()) else { return };
        if goes_over {
            if old.tag() != Tag::Blind && old.depth() == 0 {
                self.log.chain_begun(old.offset());
            }
        } else if !is_droppable_tombstone(*old) {
            self.count_obsolete(old, log);
        }
    }

    /// Counts the records of a version as obsolete. The guard that lends the log was pinned while the version was current.
    pub(super) fn count_obsolete(&self, old: LogSlot, log: LogView<'_>) {
        if !matches!(old.tag(), Tag::Delta | Tag::Blind) && !old.bytes_unknown() {
            return self.log.add_obsolete(old.offset(), old.bytes());
        }
        // A chain: the lengths are in its records. One that does not parse is reported by whoever reads it.
        let Ok(chain) = Chain::of(log, old) else { return };
        let Ok(records) = chain.in_log() else { return };
        for record in records {
            self.log.add_obsolete(record.offset(), record.record_bytes() as u64);
        }
        self.chain_ended(&chain);
    }

    /// Records that a chain was replaced as a whole.
    pub(crate) fn chain_ended(&self, chain: &Chain<'_>) {
        if chain.depth() > 0
            && let Ok(Some(row)) = chain.row_in_log()
        {
            self.log.chain_ended(row.offset());
        }
    }

    /// Waits for gc to free a segment: then try again. `Full` if it has nothing to free; `Busy` instead of
    /// waiting if the store is not to wait.
    #[cold]
    pub(super) fn wait_for_space(
        &self,
        bytes: usize,
        no_space: NoSpace,
        waits: &mut SpaceWaits,
    ) -> Result<()> {
        match &no_space {
            // A log that takes no writes says why, whatever it has room for.
            NoSpace::Failed(error) if error.kind() != ErrorKind::Full => {}
            _ => check_fits(&self.log, bytes)?,
        }
        let refused = match no_space {
            // The index is full, not the log; but perhaps of what was cleared.
            NoSpace::Failed(error) if error.kind() == ErrorKind::Full && self.free_garbage() => return Ok(()),
            NoSpace::Failed(error) if error.kind() == ErrorKind::Full => {
                return self.wait_for_index(error, waits);
            }
            NoSpace::Failed(error) => return Err(error),
            NoSpace::Full(refused) => refused,
        };
        let extents = (bytes as u64 + SEGMENT_HEADER_BYTES).div_ceil(self.log.extent_bytes()) as u32;
        if self.is_hopeless(extents, refused.claim) || waits.are_enough() || !self.has_gc_thread() {
            return Err(self.full(no_space));
        }
        if !self.options.wait_for_space {
            self.request_gc_cycle();
            *self.gc.returns_at_busy.lock() = Some(refused.returns);
            let full = self.full(no_space);
            return Err(Error::new(ErrorKind::Busy, full.message()));
        }
        waits.record(match self.await_gc_cycle(refused.returns, WAIT) {
            // A slow disk takes seconds for a sync of what was copied before.
            WaitOutcome::Idle if self.waits_for_backup() => WaitOutcome::Unanswered,
            waited => waited,
        });
        Ok(())
    }

    /// Waits for rows to leave a full index. The extents that they leave come back after their keys are gone.
    fn wait_for_index(&self, full: Error, waits: &mut SpaceWaits) -> Result<()> {
        let returns = self.log.space().returns();
        let most = self.options.index_bytes_max;
        // A seal or a move that has just ended.
        let has_room = || self.arena.bytes().saturating_add(most / 32) < most;
        if has_room() && waits.may_try_again() {
            return Ok(());
        }
        let is_sealed = self.may_gain_index_by_seal();
        if is_sealed {
            // Whoever moves rows is told all the same. How many keys it has when it is full says nothing while a seal is about to make room.
            self.gc.refuse_index(None);
        }
        let may_gain = is_sealed || self.may_gain_index();
        if !may_gain && has_room() && waits.may_try_again() {
            // It ended between the looks.
            return Ok(());
        }
        if !may_gain || waits.are_enough() || !self.has_gc_thread() {
            return Err(self.explain_full_index(full));
        }
        if !self.options.wait_for_space {
            self.request_gc_cycle();
            *self.gc.returns_at_busy.lock() = Some(returns);
            return Err(Error::new(ErrorKind::Busy, full.message()));
        }
        let waited = self.await_gc_cycle(returns, WAIT);
        // Cycles of gc say nothing of a seal that is under way.
        waits.record(if self.is_making_room_in_index() { WaitOutcome::Unanswered } else { waited });
        Ok(())
    }

    /// Whether somebody frees what can be freed. Once the store is being closed nobody does, and whoever waits is what closing waits for.
    pub(crate) fn has_gc_thread(&self) -> bool {
        self.options.background && !self.scheduler.is_stopped()
    }

    /// Whether gc can free nothing. Victims that a cycle has begun to empty are nowhere to be seen: the look counts only between cycles. Before it is said a checkpoint of the index gives up what it alone has, and
    /// what gc found no room for is tried again if some has come back since.
    pub(crate) fn is_hopeless(&self, extents: u32, claim: Claim) -> bool {
        let cycles = self.gc.cycles();
        !self.may_gain_space()
            && self.log.space().lacks(extents, claim)
            && self.gc.was_idle_since(cycles)
            && !self.forget_checkpoint_that_holds(extents)
            && !self.log.try_skipped_early(cycles)
    }

    /// The error for a store that is full, with what pins its space.
    fn full(&self, no_space: NoSpace) -> Error {
        let error = no_space.into_error(&self.log);
        let pins = self.pins();
        if error.kind() != ErrorKind::Full || pins.is_empty() {
            return error;
        }
        Error::new(ErrorKind::Full, format!("{}; besides, {}", error.message(), pins.join("; ")))
    }

    /// Waits as [`Engine::await_gc_cycle`] does for whoever was told `Busy`; false if that was for nothing.
    pub(super) fn await_gc_cycle_since_busy(&self, timeout: Duration) -> bool {
        let returns = self.gc.returns_at_busy.lock().take();
        let returns = returns.unwrap_or_else(|| self.log.space().returns());
        match self.await_gc_cycle(returns, timeout) {
            WaitOutcome::Progress => true,
            WaitOutcome::Idle => false,
            // A store without threads has nobody who would answer.
            WaitOutcome::Unanswered => self.has_gc_thread(),
        }
    }

    /// Asks for a gc cycle and waits, at most `timeout`, until an extent has come back since `returns` was the count of those.
    pub(crate) fn await_gc_cycle(&self, returns: u64, timeout: Duration) -> WaitOutcome {
        let cycles = self.gc.cycles();
        let busy = self.gc.is_busy();
        self.request_gc_cycle();
        if self.log.space().wait(returns, timeout) || busy {
            WaitOutcome::Progress
        } else if self.gc.cycles() == cycles {
            WaitOutcome::Unanswered
        } else {
            WaitOutcome::Idle
        }
    }
}

/// Writes that need not look at the row.
impl Engine {
    /// Writes one record, waiting for space.
    fn write(
        &self,
        entry: IndexEntry<'_>,
        draft: &Draft,
        fill: impl Fn(&mut [u8]),
        accept: impl Fn(Option<LogSlot>) -> bool,
    ) -> Result<Option<Option<LogSlot>>> {
        let mut waits = SpaceWaits::default();
        if draft.kind != RecordKind::Delta && may_lack() {
            self.check_replaced_at_hand(entry.table, entry.key)?;
        }
        loop {
            match self.try_write(entry, draft, &fill, &accept)? {
                WriteOutcome::Published(old) => return Ok(Some(old)),
                WriteOutcome::Refused => return Ok(None),
                WriteOutcome::NoSpace(bytes, no_space) => self.wait_for_space(bytes, no_space, &mut waits)?,
            }
        }
    }

    /// Fails if the thread reads only what is at hand and what the row of `key` is under is not: records under deltas are looked at, to be
    /// counted as obsolete.
    #[cold]
    fn check_replaced_at_hand(&self, table: &TableShared, key: &[u8]) -> Result<()> {
        let guard = self.log.pin();
        let found = table.levels.locate_version(key, &guard).map(|slot| self.cache.log_slot(slot, &guard));
        match found.filter(|slot| matches!(slot.tag(), Tag::Delta | Tag::Blind)) {
            Some(slot) => check_at_hand(guard.view(), &self.disk_waits, *slot),
            None => Ok(()),
        }
    }

    /// Writes a whole row over whatever is there.
    pub(super) fn put<F: FieldName>(
        &self,
        table: &TableShared,
        key: &[u8],
        fields: &[(F, Value<'_>)],
        expires_at_ms: Option<u64>,
    ) -> Result<()> {
        check_key(key)?;
        self.counters.add(Count::Put);
        self.planned(table, |schema| {
            let plan = RowPlan::new(schema, fields)?;
            let draft = self.row_draft(schema, expires_at_ms, plan.body_bytes(), false);
            self.write(IndexEntry::new(table, key), &draft, |body| plan.encode(body), |_| true)?;
            Ok(())
        })
    }

    /// Writes some fields, and makes the row if there is none and `only_existing` is false. Returns whether there was one.
    pub(super) fn update<F: FieldName>(
        &self,
        table: &TableShared,
        key: &[u8],
        fields: &[(F, Value<'_>)],
        only_existing: bool,
    ) -> Result<bool> {
        check_key(key)?;
        self.counters.add(Count::Update);
        let chain_max = self.options.delta_chain_max;
        let short = self.planned(table, |schema| {
            let plan = DeltaPlan::new(schema, fields, FieldExpiries::All(None))?;
            let plain = |old: LogSlot| self.takes_delta_unseen(*old, plan.body_bytes());
            let draft = delta_draft(schema, None, plan.body_bytes());
            let entry = IndexEntry::of_known(table, key);
            Ok(self.write(entry, &draft, |body| plan.encode(body), |old| old.is_some_and(plain))?)
        })?;
        if let Some(replaced) = short {
            if replaced.is_some_and(|old| old.depth() + 1 == chain_max) {
                self.merge_queue.filled(&table.id, key, chain_max);
            }
            return Ok(true);
        }
        if table.below()
            && !only_existing
            && self.has_no_slot(table, key)
            && self.update_blind(table, key, fields)?
        {
            return Ok(true);
        }
        self.with_row(table, key, |at| match at.row {
            None if only_existing => Ok(Step::Done(false)),
            row => Ok(self.apply(at, Edit::Update(fields, None))?.then(row.is_some())),
        })
    }

    /// Removes a row; false if there was none.
    pub(super) fn delete(&self, table: &TableShared, key: &[u8]) -> Result<bool> {
        self.counters.add(Count::Delete);
        // The guard goes at once: a write that waits for space must hold none.
        let slot = table.levels.locate(key, &self.log.pin());
        match slot {
            Some(slot) if slot.expires() => self.delete_seen(table, key),
            slot if is_row(slot) => {
                let entry = IndexEntry::of_known(table, key);
                let deleted = self.write(entry, &Draft::tombstone(), |_| (), is_row)?.is_some();
                // What took its place may be below.
                if deleted || !table.below() { Ok(deleted) } else { self.delete_seen(table, key) }
            }
            // No row has a key that none may have.
            None if table.below() && check_key(key).is_ok() => self.delete_seen(table, key),
            _ => Ok(false),
        }
    }
}

impl Engine {
    /// Removes a row if there is one. Nobody looks at it: of one that may only be in sorted tables a tombstone says that it is gone.
    pub(super) fn remove(&self, table: &TableShared, key: &[u8]) -> Result<()> {
        check_key(key)?;
        self.counters.add(Count::Delete);
        // Also under the lock of the key's leaf: what took its place meanwhile may be below.
        let is_there = |slot: Option<Slot>| is_row(slot) || slot.is_none() && self.may_be_below(table, key);
        // The guard goes at once: a write that waits for space must hold none.
        let slot = table.levels.locate(key, &self.log.pin());
        if is_there(slot) {
            let entry = IndexEntry::new(table, key);
            self.write(entry, &Draft::tombstone(), |_| (), |old| is_there(old.map(Slot::from)))?;
        }
        Ok(())
    }

    /// Removes a row that has to be looked at: it may have expired, or only be there in sorted tables.
    fn delete_seen(&self, table: &TableShared, key: &[u8]) -> Result<bool> {
        self.with_row(table, key, |at| {
            if !is_row(at.slot) && at.row.is_none() {
                return Ok(Step::Done(false));
            }
            Ok(self.apply(at, Edit::<&str>::Delete)?.then(at.row.is_some()))
        })
    }

    fn has_no_slot(&self, table: &TableShared, key: &[u8]) -> bool {
        table.levels.locate_version(key, &self.log.pin()).is_none()
    }

    /// Whether a delta with a body of `bytes` may go over whatever sorted tables have of a key of which the index has nothing. They may have something: else it
    /// is no delta, but a row.
    pub(super) fn takes_blind_delta(&self, (table, key): (&TableShared, &[u8]), bytes: usize) -> bool {
        if !table.below() || bytes > UNSEEN_BYTES {
            return false;
        }
        let (id, runs) = (table.id.load(Ordering::Acquire), self.runs.current());
        !runs.must_see_rows_of(id, UNSEEN_ROW_BYTES_MAX) && runs.may_hold(&SstKey::new(id, key))
    }

    /// Writes some fields over whatever sorted tables have of a key of which the index has nothing, without a look at that; false if it must be looked at.
    /// A row that expires is no base of a delta: its expiry would take away what was written after it.
    #[cold]
    fn update_blind<F: FieldName>(
        &self,
        table: &TableShared,
        key: &[u8],
        fields: &[(F, Value<'_>)],
    ) -> Result<bool> {
        self.planned(table, |schema| {
            let plan = DeltaPlan::new(schema, fields, FieldExpiries::All(None))?;
            let (id, generation) = (table.id.load(Ordering::Acquire), self.runs.generation());
            if !self.takes_blind_delta((table, key), plan.body_bytes()) {
                return Ok(false);
            }
            let draft = blind_draft(schema, plan.body_bytes());
            // What was asked of the runs holds as long as they answer the same.
            let holds = |old: Option<LogSlot>| {
                old.is_none()
                    && table.id.load(Ordering::Acquire) == id
                    && self.runs.generation() == generation
            };
            Ok(self.write(IndexEntry::new(table, key), &draft, |body| plan.encode(body), holds)?.is_some())
        })
    }
}

/// A row as `with_row` found it.
#[derive(Clone, Copy)]
pub(super) struct At<'r, 's> {
    pub(super) table: &'r TableShared,
    pub(super) key: &'r [u8],
    pub(super) schema: &'s Arc<TableSchema>,
    /// What the index says.
    pub(super) slot: Option<LogSlot>,
    /// The row, unless it is absent or has expired.
    pub(super) row: Option<&'r RowRef<'s>>,
    /// Of the runs that were looked into, if some may have the row.
    generation: Option<u64>,
}

impl<'r> At<'r, '_> {
    /// What a write of the row is published as, if that is still as it was found.
    fn entry(&self) -> IndexEntry<'r> {
        if is_row(self.slot) {
            IndexEntry::of_known(self.table, self.key)
        } else {
            IndexEntry::new(self.table, self.key)
        }
    }
}

/// A change to a row that was looked at.
pub(super) enum Edit<'e, F> {
    /// The whole row, with its expiry.
    Put(&'e [(F, Value<'e>)], Option<u64>),
    /// Some fields, with the expiry of those fields.
    Update(&'e [(F, Value<'e>)], Option<u64>),
    /// The row's expiry only; `None` takes it away.
    Expire(Option<u64>),
    Delete,
}

/// What a look at a row led to.
pub(super) enum Step<R> {
    /// There is nothing to write.
    Done(R),
    /// It is written, and visible.
    Written(R, VisibleWrite),
    /// The row changed meanwhile: look again.
    Again,
    /// See [`WriteOutcome::NoSpace`].
    Wait(usize, NoSpace),
}

impl WriteOutcome {
    /// Written if it was published.
    pub(super) fn then<R>(self, result: R) -> Step<R> {
        match self {
            WriteOutcome::Published(write) => Step::Written(result, write),
            WriteOutcome::Refused => Step::Again,
            WriteOutcome::NoSpace(bytes, no_space) => Step::Wait(bytes, no_space),
        }
    }
}

/// Writes that depend on the row: look, decide, write if it is still the same, else again.
impl Engine {
    pub(super) fn with_row<R>(
        &self,
        table: &TableShared,
        key: &[u8],
        mut decide: impl for<'r, 's> FnMut(At<'r, 's>) -> Result<Step<R>, PlanError>,
    ) -> Result<R> {
        check_key(key)?;
        let mut waits = SpaceWaits::default();
        loop {
            let step = self.planned(table, |_| {
                let generation = self.generation_below(table);
                let view = self.read_view();
                let found = table.levels.locate_version(key, view.guard());
                // Loaded after the slot: the schema of every record it leads to is known by then.
                let schema = table.schema.load();
                let row = view.row_at((table, key), &schema, found)?;
                let slot = found.map(|slot| self.cache.log_slot(slot, view.guard()));
                // What is below may know a younger one.
                let schema = row.as_ref().map_or(&*schema, RowRef::table_schema);
                decide(At { table, key, schema, slot, row: row.as_ref(), generation })
            })?;
            match step {
                Step::Done(result) => return Ok(result),
                // The view is gone by now.
                Step::Written(result, write) => return self.finish(write).map(|()| result),
                Step::Again => {}
                Step::Wait(bytes, no_space) => self.wait_for_space(bytes, no_space, &mut waits)?,
            }
        }
    }

    /// What a look at a row of the table rests on besides its slot.
    #[inline]
    fn generation_below(&self, table: &TableShared) -> Option<u64> {
        table.below().then(|| self.runs.generation())
    }

    /// Whether the row is still as it was found, if its slot is `now`. Of one that is below the slot does not tell: it may have been written, and moved there.
    #[inline]
    fn is_same(&self, at: At<'_, '_>, now: Option<LogSlot>) -> bool {
        now == at.slot && self.generation_below(at.table) == at.generation
    }

    /// Writes `edit` if the row is still as it was found. What is published is to be finished without the view.
    pub(super) fn apply<F: FieldName>(
        &self,
        at: At<'_, '_>,
        edit: Edit<'_, F>,
    ) -> Result<WriteOutcome, PlanError> {
        let same = |now: Option<LogSlot>| self.is_same(at, now);
        let (entry, schema) = (at.entry(), at.schema);
        match (edit, at.row) {
            (Edit::Delete, _) => Ok(self.try_publish(entry, &Draft::tombstone(), |_| (), same)?),
            (Edit::Put(fields, expires_at_ms), _) => {
                let plan = RowPlan::new(schema, fields)?;
                let draft = self.row_draft(schema, expires_at_ms, plan.body_bytes(), false);
                Ok(self.try_publish(entry, &draft, |body| plan.encode(body), same)?)
            }
            (Edit::Update(fields, expires_at_ms), row) => {
                let plan = DeltaPlan::new(schema, fields, FieldExpiries::All(expires_at_ms))?;
                self.apply_delta(at, row, RowExpiry::Keep, plan.body_bytes(), &|body| plan.encode(body))
            }
            (Edit::Expire(expires_at_ms), row) => {
                let fill = |body: &mut [u8]| body.copy_from_slice(&EMPTY_DELTA);
                self.apply_delta(at, row, RowExpiry::Set(expires_at_ms), EMPTY_DELTA.len(), &fill)
            }
        }
    }

    /// Whether a delta with a body of `bytes` may go over `old` without a look at the row. A chain that is full, a
    /// row that may have expired, or may become too long, takes the long way: [`Engine::with_row`].
    #[inline]
    pub(super) fn takes_delta_unseen(&self, old: Slot, bytes: usize) -> bool {
        let chain_max = self.options.delta_chain_max;
        let plain = old.tag() != Tag::Tombstone && old.depth() < chain_max && !old.expires();
        plain && surely_fits(old, bytes)
    }

    /// Whether a delta with a body of `bytes` may go over what `slot` stands for, in which `row` was found: there is a row,
    /// its chain is not full, and it does not become too long.
    pub(super) fn takes_delta(
        &self,
        slot: Option<LogSlot>,
        row: Option<&RowRef<'_>>,
        expiry: RowExpiry,
        bytes: usize,
    ) -> Result<bool> {
        let (Some(slot), Some(row)) = (slot, row) else { return Ok(false) };
        if slot.tag() == Tag::Blind && expiry != RowExpiry::Keep {
            // Only a whole row says for whoever merges what is below whether that has expired.
            return Ok(false);
        }
        // The slot's depth, not the row's: a cached row is whole, but the delta goes over what is in the log.
        if slot.depth() >= self.options.delta_chain_max {
            return Ok(false);
        }
        if surely_fits(*slot, bytes) {
            return Ok(true);
        }
        let there: usize = row.chain().records()?.map(Record::body_len).sum();
        Ok(there + bytes + UNSEEN_BYTES_MAX <= limits::ROW_BYTES_MAX)
    }

    /// Whether one more delta over `slot` is folded with those that are there: the chain is full, and its row is not in the log.
    #[inline]
    pub(super) fn folds(&self, slot: LogSlot, expiry: RowExpiry) -> bool {
        slot.tag() == Tag::Blind && expiry == RowExpiry::Keep && slot.depth() >= self.options.delta_chain_max
    }

    /// Writes a delta over a row; or, where no delta can be, the whole row that results. `fill` writes the delta's body, of so many
    /// bytes.
    fn apply_delta(
        &self,
        at: At<'_, '_>,
        row: Option<&RowRef<'_>>,
        expiry: RowExpiry,
        bytes: usize,
        fill: &dyn Fn(&mut [u8]),
    ) -> Result<WriteOutcome, PlanError> {
        let (schema, same) = (at.schema, |now: Option<LogSlot>| self.is_same(at, now));
        if self.takes_delta(at.slot, row, expiry, bytes)? {
            let draft = delta_draft(schema, delta_expiry(expiry), bytes);
            return Ok(self.try_publish(at.entry(), &draft, fill, same)?);
        }
        let mut newest = SmallVec::<[u8; 512]>::from_elem(0, bytes);
        fill(&mut newest);
        if let (Some(slot), Some(row)) = (at.slot, row)
            && self.folds(slot, expiry)
        {
            let fold = folded(schema, row.chain(), Some(&newest), self.clock.now_ms())?;
            if fold.body_bytes() <= UNSEEN_BYTES {
                let draft = blind_draft(schema, fold.body_bytes());
                return Ok(self.try_publish(at.entry(), &draft, |body| fold.encode(body), same)?);
            }
        }
        let bodies = Bodies::new(schema, row.map(RowRef::chain), Some(&newest))?;
        let changed = bodies.merge(schema, self.clock.now_ms())?;
        let old = row.map(|row| OldRow { expires_at_ms: row.expires_at_ms() });
        let draft = self.changed_row_draft(schema, &changed, old, expiry)?;
        Ok(self.try_publish(at.entry(), &draft, |body| changed.encode(body), same)?)
    }

    /// Runs `plan` under the table's schema, learning names that an open table does not know yet.
    #[inline]
    pub(super) fn planned<R>(
        &self,
        table: &TableShared,
        mut plan: impl FnMut(&TableSchema) -> Result<R, PlanError>,
    ) -> Result<R> {
        loop {
            match plan(&table.schema.load()) {
                Ok(done) => return Ok(done),
                Err(PlanError::Invalid(error)) => return Err(error),
                Err(PlanError::Unknown(names)) => self.evolve(table, |s| s.with_learned(&names))?,
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier};

    use super::*;
    use crate::db::Db;
    use crate::db::fixture::options;
    use crate::sync::atomic::AtomicBool;
    use crate::{Change, Durability, Expiry, Options, Schema, Table, Type, row};

    /// Deltas are folded into one time and again: once that is long, the row below is looked at.
    #[test]
    fn a_small_delta_over_a_long_one_takes_a_look_at_the_row() {
        let blind = |bytes, depth| *LogSlot::new(Tag::Blind, 64, bytes).with_depth(depth);
        for (bytes, depth, fits) in [
            (1_000, 1, true),
            (60 << 10, 1, true),
            (70 << 10, 1, false),
            (1 << 30, 1, false),
            (70 << 10, 2, true),
        ] {
            assert_eq!(surely_fits(blind(bytes, depth), 100), fits, "{bytes} bytes of {depth}");
        }
        assert!(
            surely_fits(*LogSlot::new(Tag::Delta, 64, 70 << 10).with_depth(1), 100),
            "its row is in the log"
        );
    }

    type Write = fn(&Table) -> Result<()>;

    const WRITES: [(&str, Write); 6] = [
        ("put", |table| table.put(b"key", &row! { n: 2 })),
        ("increment", |table| table.increment(b"key", "n", 1).map(drop)),
        ("compare_and_set", |table| {
            table.compare_and_set(b"key", "n", Value::Int(1), Value::Int(2)).map(drop)
        }),
        ("modify", |table| table.modify(b"key", |_| Ok((Change::Delete, ())))),
        ("expire", |table| table.expire(b"key", Expiry::at_unix_ms(5_000)).map(drop)),
        ("update of no row", |table| table.update(b"other", &row! { n: 2 }).map(drop)),
    ];

    /// However long a sync takes, what others unlink meanwhile can be freed: a write that looked at its row holds nothing by then.
    #[test]
    fn a_write_pins_nothing_while_it_is_made_durable() {
        for (name, write) in WRITES {
            let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
            let options = Options { durability: Durability::Immediate, ..options() };
            let db = Db::open_at(FastTier::simulated(&sim), options, Clock::manual(1_000)).unwrap();
            let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
            table.put(b"key", &row! { n: 1 }).unwrap();
            let (engine, is_free) = (Arc::clone(&db.engine), Arc::new(AtomicBool::new(false)));
            let told = Arc::clone(&is_free);
            // Called by the thread that syncs, which is this one: it would see its own guard.
            let meanwhile = move || {
                told.store(engine.epoch.is_quiescent_since(engine.epoch.current()), Ordering::SeqCst);
            };
            sim.fail_write_back_at(|_, _| true, meanwhile);
            assert_eq!(write(&table).unwrap_err().kind(), ErrorKind::Io, "{name}");
            assert!(is_free.load(Ordering::SeqCst), "{name} is pinned while it syncs");
        }
    }
}
