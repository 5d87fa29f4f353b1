//! Moving: rows leave the log for sorted tables, so that data may be larger than the fast tier.
//!
//! Owns the steps of a move; [`pressure`] says when there is one. Promises that a row is below before it leaves the index, durably and for whoever looks; that nothing leaves the log
//! that a live snapshot would not see below; and that a move which fails before its run counts changes nothing. Must not know what is done with runs later.
//!
//! 1. Sealed segments are chosen, the oldest first, and their records walked. What is the only record of its key there, and was there before the oldest snapshot, may
//!    **move**; all else that is live is **relocated** in the log, as by any gc cycle. Walking verifies: of a segment that is not whole nothing moves.
//! 2. What moves is written to a run, in the order of its keys.
//! 3. PERSIST: the log is made durable and the root's watermark raised above all of it, or a power cut would cut the log below what sorted tables have. Then the edit of
//!    the manifest makes the run count, and readers see it.
//! 4. The index forgets what moved, if it is as it was. What was changed meanwhile is relocated: its base is still in a victim. Keys may be [sealed](super::sealing) until this begins, and those of the victims not any more.
//! 5. The victims are freed, in the order in which they were emptied (see [`MovedFrom`](crate::scheduler::gc_state::MovedFrom)). One that cannot be emptied, because of what is wrong
//!    with a record, is given up, and holds up none of the others.
//!
//! **Only records.** A row that has an older record in the log stays: were its slot gone, and its segment freed first, a crash would bring the older one back. So what the log has
//! of a key is never older than what is below.
//!
//! **Walking, not scanning.** The records of the victims are looked up, and what moves is sorted; the index could be scanned in the order of keys instead. But segments must be
//! walked anyway, to be verified and to find what stays, and a scan passes every key of the store for those few.

mod movable;
mod pressure;

use std::ops::ControlFlow;
use std::sync::Arc;

use smallvec::SmallVec;

use self::movable::{Movable, MovableRecords};
use super::Emptied;
use crate::db::append::IndexEntry;
use crate::db::engine::{Engine, TableShared};
use crate::db::read::GROUP;
use crate::index::{Decision, LogSlot, Slot, Tag};
use crate::log::format::{FLAG_RELOCATED, Record};
use crate::log::segment::{SEGMENT_HEADER_BYTES, Segment};
use crate::log::{LogGuard, SegmentWalk};
use crate::runs::{RoomFor, RunWriter};
use crate::scheduler::gc_state::{MovedFrom, Pending};
use crate::space::Claim;
use crate::sst::{SstKey, SstRecord};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::{Error, ErrorKind, Result};

/// One move takes out no more records: it is done with memory for each.
const MOVE_RECORDS_MAX: usize = 4 << 20;
/// Records that the index forgets together: meanwhile an appender is held.
const FORGOTTEN_TOGETHER: usize = 128;
/// Most keys end within so many bytes of a record.
const KEY_IS_WITHIN: u64 = 80;
/// Writers are told anew how much room there will be after so many bytes of a move.
const PACED_BYTES: u64 = 256 << 10;

/// A segment to be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChosenToMove {
    pub(crate) extent: u32,
    /// Its extent may have been freed by another cycle since, and hold what no snapshot was asked about.
    pub(super) segment_number: u64,
}

/// What a move takes out of its victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MoveKind {
    /// All that may leave the log.
    All,
    /// Tombstones. All else stays in the log.
    Tombstones,
}

/// What becomes of a record of a victim.
enum WayOut {
    /// To a run.
    Moves,
    /// It is live, and stays in the log.
    Stays,
    /// Nobody needs it there.
    Gone,
}

/// What the index says of a record's key.
#[derive(Debug, Clone, Copy)]
struct FoundSlot {
    slot: LogSlot,
    is_cached: bool,
    /// Only a group has the key.
    is_sealed: bool,
}

/// A segment on its way out.
struct Victim<'l> {
    walk: SegmentWalk<'l>,
    emptied: Emptied,
    /// Records of tables that there are, less those that the index has forgotten.
    counted: usize,
    /// What moved and was changed before the index could forget it, by offset.
    left: Vec<u64>,
    /// What left the index, by offset.
    forgotten: Vec<u64>,
    /// Bytes of that.
    forgotten_bytes: u64,
}

/// The tables that a move takes rows of, told so.
#[derive(Default)]
struct MovingTables(Vec<Arc<TableShared>>);

impl MovingTables {
    /// Before a slot of the table is looked at: whatever is deleted from now on hides what is below.
    fn begin(&mut self, engine: &Engine, table: &Arc<TableShared>) {
        if self.0.last().is_some_and(|last| Arc::ptr_eq(last, table)) || table.is_moving() {
            return;
        }
        {
            // Who drops it holds all appenders: of a table that is gone it is not said that rows are below.
            let _appender = engine.log.gc_appender();
            if table.check_there().is_err() {
                return;
            }
            table.begin_move();
        }
        self.0.push(Arc::clone(table));
        // Who looked before and saw nothing of it has published what he wrote.
        engine.log.barrier();
    }
}

impl Drop for MovingTables {
    fn drop(&mut self) {
        self.0.iter().for_each(|table| table.end_move());
    }
}

/// Segments that are taken for a move, let go of when it ends without having begun to take anything out.
struct Taken<'e> {
    engine: &'e Engine,
    extents: Vec<u32>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.extents.iter().for_each(|&extent| self.engine.log.abandon_gc(extent));
    }
}

/// A move of which it is known what moves. It has taken nothing out of the log yet.
struct MoveUnderWay<'e> {
    kind: MoveKind,
    found: MovableRecords<'e>,
    victims: Vec<Victim<'e>>,
    moving: MovingTables,
    taken: Taken<'e>,
}

/// The steps of a move.
impl Engine {
    /// The segments that a move would empty, those that were begun first; `oldest` is the oldest snapshot. What stayed in the log once is in a younger segment, and comes by last.
    pub(crate) fn choose_to_move(&self, oldest: Option<u64>) -> Vec<ChosenToMove> {
        self.choose_among(oldest, self.runs.room_to_move(), |_, _| true)
    }

    /// The same, of those segments alone of which `is_wanted` is true, and whose live records take no more than `room` bytes; one of which they take more if there is no other: whoever has it move is told how much they are.
    pub(super) fn choose_among(
        &self,
        oldest: Option<u64>,
        room: u64,
        is_wanted: impl Fn(u32, &Segment) -> bool,
    ) -> Vec<ChosenToMove> {
        let cycle = self.gc.cycles();
        // A younger record would be seen by no snapshot from before it once it is below, and by what it replaced neither.
        let may_leave = |segment: &Segment| {
            !segment.skip.is_skipped(cycle)
                && oldest.is_none_or(|oldest| segment.max_sequence <= oldest && segment.kept_before <= oldest)
        };
        let mut sealed = self.log.candidates();
        sealed.retain(|(_, segment, _)| may_leave(segment));
        sealed.sort_unstable_by_key(|(_, segment, _)| segment.segment_number);
        let live = |segment: &Segment, obsolete: u64| segment.end - SEGMENT_HEADER_BYTES - obsolete;
        // A long row that does not fit stands in the way of none behind it. What is obsolete altogether is for collecting.
        if sealed.iter().any(|(_, segment, obsolete)| (1..=room).contains(&live(segment, *obsolete))) {
            sealed.retain(|(_, segment, obsolete)| live(segment, *obsolete) <= room);
        }
        let (mut bytes, most) = (0, self.bytes_to_move(room));
        let enough = |(_, segment, obsolete): &&(u32, Segment, u64)| {
            let before = bytes;
            bytes += live(segment, *obsolete);
            before == 0 || before < most && bytes <= room
        };
        let chosen = |&(extent, ref segment, _): &(u32, Segment, u64)| ChosenToMove {
            extent,
            segment_number: segment.segment_number,
        };
        let wanted = sealed.iter().filter(|(extent, segment, _)| is_wanted(*extent, segment));
        wanted.take_while(enough).map(chosen).collect()
    }

    /// Seals what is written to: it may be a victim from now on.
    pub(super) fn seal_all(&self) {
        let (mut appenders, mut gc) = self.log.every_appender();
        appenders.iter_mut().for_each(|appender| appender.seal_all(&self.log));
        gc.seal_all(&self.log);
    }

    /// A move of all that may leave the oldest segments, up to where its victims are queued, in the order in which they are to be freed, once all is durable; returns how many they are.
    pub(super) fn move_rows(&self) -> Result<usize> {
        self.move_out_of_chosen(MoveKind::All, |oldest| {
            let chosen = self.choose_to_move(oldest);
            if !chosen.is_empty() || !self.is_index_nearly_full() || !self.may_leave_when_sealed(oldest) {
                return chosen;
            }
            // If no new key has room what is open may never fill.
            self.seal_all();
            self.choose_to_move(oldest)
        })
    }

    /// The same of the segments that are chosen once no other move is under way.
    pub(super) fn move_out_of_chosen(
        &self,
        kind: MoveKind,
        choose: impl FnOnce(Option<u64>) -> Vec<ChosenToMove>,
    ) -> Result<usize> {
        // Only one at a time: what one has found to be only records, another must not take, and its victims come first.
        let Some(_alone) = self.gc.moving.try_lock() else { return Ok(0) };
        let _moving = self.gc.begin_move();
        // Nothing behind one of those is freed before it.
        if self.gc.unfinished_moves() > 0 {
            return Ok(0);
        }
        let chosen = choose(self.snapshots.oldest());
        if chosen.is_empty() && kind != MoveKind::All {
            return Ok(0);
        }
        // After they are chosen: no snapshot taken later is older than what they hold.
        let oldest = self.snapshots.hold_oldest();
        let oldest = oldest.as_ref().map(|held| held.sequence());
        let moved = self.move_out_of(&chosen, kind, oldest);
        if !matches!(moved, Ok(1..)) {
            self.gc.set_moving_bytes(0);
        }
        match &moved {
            // Nothing was tried: what is there may leave once it is sealed, or once a snapshot has gone that may do so in a moment.
            Ok(0)
                if chosen.is_empty() && (self.may_leave_when_sealed(oldest) || self.waits_for_snapshot()) => {
            }
            Ok(victims) => self.gc.moved_out_of(*victims, self.arena.bytes()),
            Err(error) if self.log.check_writable().is_ok() => {
                self.gc.moving_failed(error, self.clock.monotonic_ns());
            }
            // It takes no more writes, and says why.
            Err(_) => {}
        }
        moved
    }

    fn move_out_of(&self, chosen: &[ChosenToMove], kind: MoveKind, oldest: Option<u64>) -> Result<usize> {
        let under_way = self.begin_move(chosen, kind, oldest)?;
        self.end_move(under_way)
    }

    /// Step 1.
    fn begin_move(
        &self,
        chosen: &[ChosenToMove],
        kind: MoveKind,
        oldest: Option<u64>,
    ) -> Result<MoveUnderWay<'_>> {
        let (mut found, mut moving) = (MovableRecords::default(), MovingTables::default());
        let mut taken = Taken { engine: self, extents: Vec::new() };
        let mut victims: Vec<Victim<'_>> = Vec::new();
        for &ChosenToMove { extent, segment_number } in chosen {
            if !self.log.begin_gc(extent) {
                continue;
            }
            taken.extents.push(extent);
            if self.log.segment_number(extent) != segment_number {
                continue;
            }
            if found.len() > MOVE_RECORDS_MAX || self.scheduler.is_stopped() {
                break;
            }
            if oldest.is_some_and(|oldest| self.would_wait_for(oldest, extent)) {
                continue;
            }
            let Some(walk) = self.log.walk(extent) else { continue };
            let before = found.len();
            let victim = (extent, victims.len() as u32, self.claim_to_stay(extent, victims.is_empty()));
            match self.take_apart(victim, kind, oldest, (&mut moving, &mut found)) {
                Ok((emptied, counted)) => victims.push(Victim {
                    walk,
                    emptied,
                    counted,
                    left: Vec::new(),
                    forgotten: Vec::new(),
                    forgotten_bytes: 0,
                }),
                Err(error) => {
                    // Nothing of it has left the index.
                    found.truncate(before);
                    self.log.check_writable()?;
                    match error.kind() {
                        // What others free is room for what stays of this one. But were it the first, none would ever move.
                        ErrorKind::Full | ErrorKind::Io if !victims.is_empty() => break,
                        // Records lie in memory: what the system refuses is more room.
                        ErrorKind::Full | ErrorKind::Io => self.skip(extent),
                        _ => self.log.quarantine(extent),
                    }
                }
            }
        }
        Ok(MoveUnderWay { kind, found, victims, moving, taken })
    }

    /// Steps 2 to 4; returns how many victims it queued.
    fn end_move(&self, under_way: MoveUnderWay<'_>) -> Result<usize> {
        let MoveUnderWay { kind, found, mut victims, moving, mut taken } = under_way;
        let mut found = found.sorted();
        self.write_run(kind, &found, &victims)?;
        let no_seal = self.forget_sealed(&mut found, &victims);
        // From here on nothing of a victim is let go of before it is free.
        let is_victim = |extent: &u32| victims.iter().any(|victim| victim.emptied.extent == *extent);
        taken.extents.retain(|extent| !is_victim(extent));
        let is_any_table_gone = self.forget_moved(&found, &mut victims);
        drop((no_seal, moving));
        // The first that is empty is the first that is freed, and makes room for the others.
        victims.retain_mut(|victim| {
            if !victim.left.is_empty() {
                // What replaced these leads snapshots on to them.
                victim.emptied.needed_before = None;
            }
            let (extent, walk) = (victim.emptied.extent, &victim.walk);
            let is_wrong = self.relocate_left((extent, walk), &mut victim.left, Claim::Gc);
            !(is_wrong && self.give_up(extent, walk))
        });
        let emptied = victims.iter().filter(|victim| victim.left.is_empty());
        self.log.record_emptied(emptied.map(|victim| victim.emptied.extent));
        let (sequence, epoch) = (self.log.last_sequence(), self.epoch.current());
        let number = self.gc.next_move.fetch_add(1, Ordering::Relaxed);
        let moved_from =
            |Victim { emptied: Emptied { extent, needed_before, copied }, left, counted, .. }| MovedFrom {
                pending: Pending { extent, sequence: needed_before.unwrap_or(sequence), epoch, copied },
                number,
                is_uncounted: counted == 0,
                is_durable: false,
                left,
            };
        let queued = victims.len();
        self.gc.moved_from.lock().extend(victims.into_iter().map(moved_from));
        if is_any_table_gone {
            // Whoever dropped it looked for its files before these counted. What is refused here goes when the store is next opened.
            let _ = self.remove_garbage_runs();
        }
        Ok(queued)
    }

    /// For what stays of a victim. The first, if it is one extent, may use what is kept for others: it gives back more than it took, and what is changed of it meanwhile fits it.
    fn claim_to_stay(&self, extent: u32, is_first: bool) -> Claim {
        if is_first && self.log.extents_of(extent) == 1 { Claim::Gc } else { Claim::Stay }
    }

    /// Step 1, for one segment, the `number`-th of the victims.
    fn take_apart<'l>(
        &'l self,
        (extent, number, claim): (u32, u32, Claim),
        kind: MoveKind,
        oldest: Option<u64>,
        (moving, found): (&mut MovingTables, &mut MovableRecords<'l>),
    ) -> Result<(Emptied, usize)> {
        let mut victim = Emptied { extent, needed_before: oldest.map(|_| 0), copied: 0 };
        let mut counted = 0;
        let upto = oldest.unwrap_or(u64::MAX);
        self.log.will_walk(extent);
        self.each_group(extent, |table, group| {
            moving.begin(self, table);
            counted += group.len();
            for (record, slot) in group.iter().zip(self.found_slots(table, group)) {
                let way = match slot {
                    Some(slot) => self.way_out(table, extent, (record, slot), upto)?,
                    None => WayOut::Gone,
                };
                match (way, slot) {
                    (WayOut::Moves, Some(FoundSlot { slot, is_sealed, .. }))
                        if kind == MoveKind::All || slot.tag() == Tag::Tombstone =>
                    {
                        let bytes = record.record_bytes() as u32;
                        found.push((record.table(), record.key()), number, (slot, bytes, is_sealed));
                    }
                    (WayOut::Moves | WayOut::Stays, _) => {
                        victim.copied += loop {
                            if let Some(copied) = self.relocate(table, extent, record, claim)? {
                                break copied;
                            }
                        };
                    }
                    (WayOut::Gone, _) => {}
                }
                if let (Some(oldest), Some(before)) = (oldest, &mut victim.needed_before) {
                    *before = self.needed_before(table, record, oldest).unwrap_or(0).max(*before);
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok((victim, counted))
    }

    /// The slots of the records' keys, as they are now. They may change before they are gone by: what left the log stays gone, and what moves is compared once more when the
    /// index forgets it.
    fn found_slots(&self, table: &TableShared, records: &[Record<'_>]) -> [Option<FoundSlot>; GROUP] {
        let guard = self.log.pin();
        let (found, sealed) = self.slots_of(table, records, &guard);
        std::array::from_fn(|i| {
            let slot = found[i]?;
            Some(FoundSlot {
                slot: self.cache.log_slot(slot, &guard),
                is_cached: slot.is_cached(),
                is_sealed: sealed[i],
            })
        })
    }

    fn way_out(
        &self,
        table: &TableShared,
        extent: u32,
        (record, FoundSlot { slot, is_cached, .. }): (&Record<'_>, FoundSlot),
        upto: u64,
    ) -> Result<WayOut> {
        // What is cached is read often. It has one more round in the log, and not for ever: all rows may be.
        if is_cached && record.flags() & FLAG_RELOCATED == 0 {
            return Ok(WayOut::Stays);
        }
        if slot.offset() != record.offset() {
            self.check_known(slot)?;
            let may_be_under = slot.depth() > 0 && slot.tag() != Tag::Tombstone;
            return Ok(if may_be_under { WayOut::Stays } else { WayOut::Gone });
        }
        if slot.older_versions() == Slot::OLDER_VERSIONS_SATURATED {
            self.note_many(record.table(), record.key(), record.record_bytes() as u64);
        }
        let is_only = slot.older_versions() == 0 && slot.records() == 1;
        // What left the index uncounted is in no count.
        let is_only =
            is_only && !self.gc.may_have_dropped(|| SstKey::new(record.table(), record.key()).hash());
        if !is_only || record.version() > upto {
            return Ok(WayOut::Stays);
        }
        match slot.tag() {
            Tag::Row | Tag::Blind => {
                record.verify_all()?;
                Ok(WayOut::Moves)
            }
            Tag::Tombstone if slot.hides_below() => match self.runs.may_hold(record.table(), record.key()) {
                true => Ok(WayOut::Moves),
                false if self.drop_tombstone(table, extent, record, slot)? => Ok(WayOut::Gone),
                false => Ok(WayOut::Stays),
            },
            _ => Ok(WayOut::Stays),
        }
    }

    /// Steps 2 and 3.
    fn write_run(&self, kind: MoveKind, found: &[Movable<'_>], victims: &[Victim<'_>]) -> Result<()> {
        /// Records ahead of the one that is copied: their lines are on their way.
        const AHEAD: usize = 8;
        /// And where those further ahead lie in memory is looked up: each is on another page, and while that is not known prefetches of its lines hold up all others.
        const PAGES_AHEAD: usize = 32;
        if found.is_empty() {
            return Ok(());
        }
        let purpose = if kind == MoveKind::All { RoomFor::Rows } else { RoomFor::Tombstones };
        self.runs.check_room_to_move(found.iter().map(|movable| u64::from(movable.bytes)).sum(), purpose)?;
        let mut run = RunWriter::of_move(&self.runs, &self.log, found.len(), purpose);
        let (mut bytes, mut paced) = (0, 0);
        for (i, movable) in found.iter().enumerate() {
            if let Some(next) = found.get(i + PAGES_AHEAD) {
                self.log.prefetch_record(next.slot.offset(), 1);
            }
            if let Some(next) = found.get(i + AHEAD) {
                self.log.prefetch_record(next.slot.offset(), next.slot.bytes());
            }
            let victim = &victims[movable.victim as usize];
            let record = victim.walk.record_again(movable.slot.offset())?;
            let body = record.raw_body();
            let pushed = run.push(&SstRecord::of(&record), |out| out.copy_from_slice(body));
            if pushed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid) {
                // What sorted tables do not take stands in the way of no other victim.
                self.skip(victim.emptied.extent);
            }
            pushed?;
            bytes += record.record_bytes() as u64;
            if bytes - paced >= PACED_BYTES {
                paced = bytes;
                self.gc.set_moving_bytes(bytes);
                self.pace_writers();
            }
        }
        let files = run.finish()?;
        let written = files.iter().map(|sst| sst.file_bytes().unwrap_or(0)).sum();
        let now_ns = self.clock.monotonic_ns();
        match self.is_move_urgent() {
            true => self.io_budget.take_in_spite(written, now_ns),
            false => self.io_budget.take(written, now_ns),
        }
        // PERSIST: the root says of all of it that it was durable before sorted tables have it.
        let durable = self.log.persist_checkpointed(self.log.last_sequence());
        let added = durable.and_then(|()| self.runs.add_moved(&self.log, &files));
        if added.is_err() && self.log.check_writable().is_ok() {
            self.runs.discard(files);
        }
        added
    }

    /// Step 4: the index forgets what is as it was found. Whether anything is of a table that is gone: dropped or cleared before the index was asked, and perhaps before the run counted.
    fn forget_moved(&self, found: &[Movable<'_>], victims: &mut [Victim<'_>]) -> bool {
        let mut is_any_table_gone = false;
        for (number, group) in found.chunks(FORGOTTEN_TOGETHER).enumerate() {
            // Keys lie in the log, each on a cache line of its own.
            for next in found.iter().skip((number + 1) * FORGOTTEN_TOGETHER).take(FORGOTTEN_TOGETHER) {
                self.log.prefetch_record(next.slot.offset(), KEY_IS_WITHIN);
            }
            for of_one in group.chunk_by(|one, next| one.table == next.table) {
                self.runs.forget_rows_in_memory(of_one[0].table, of_one.iter().map(|movable| movable.key));
                let table = self.catalog.by_id(of_one[0].table);
                is_any_table_gone |= table.is_none();
                let guard = self.log.pin();
                // A batch holds all appenders from its look at a row to its publication, and who clears a table holds them, too.
                let _appender = self.log.appender();
                let mut gone = [false; FORGOTTEN_TOGETHER];
                if let Some(table) = &table {
                    self.forget_of(table, of_one, &guard, &mut gone);
                }
                for (movable, is_gone) in of_one.iter().zip(gone) {
                    let victim = &mut victims[movable.victim as usize];
                    let offset = movable.slot.offset();
                    let (Some(table), true) = (&table, is_gone) else {
                        victim.left.push(offset);
                        continue;
                    };
                    victim.forgotten.push(offset);
                    victim.forgotten_bytes += u64::from(movable.bytes);
                    table.expiry.replaced(Some(movable.slot), false);
                }
            }
        }
        for victim in victims {
            let extent = victim.emptied.extent;
            self.log.add_obsolete(u64::from(extent) * self.log.extent_bytes(), victim.forgotten_bytes);
            victim.counted -= victim.forgotten.len();
            self.gc.count_moved(victim.forgotten.len() as u64, victim.forgotten_bytes);
            self.gc.record_all_dropped(extent, std::mem::take(&mut victim.forgotten));
        }
        is_any_table_gone
    }

    /// Step 4 for what only groups have: their entries, which nobody can take back, do not count from now on. All that lives in the victims is below, or was copied; what is stored over
    /// such an entry by one who found it before this says so ([`Levels::was_stored_over`](crate::levels::Levels::was_stored_over)).
    ///
    /// Where a table has groups this comes before the young index forgets anything, whether or not something was found in a group alone: of a key that is in both, as one is that was written over and merged in place since, the
    /// entry would count again; and no seal takes a key of the victims any more, which the young index may have forgotten when others see the group. Where no table has any none is to get one before the young index has forgotten
    /// all: nothing is sealed until what is returned is dropped.
    fn forget_sealed(&self, found: &mut [Movable<'_>], victims: &[Victim<'_>]) -> Option<MutexGuard<'_, ()>> {
        let has_groups =
            |table: u32| self.catalog.by_id(table).is_some_and(|table| table.levels.has_groups());
        let (no_seal, mut is_any) = (self.gc.seal_slice.lock(), false);
        for of_one in found.chunk_by_mut(|one, next| one.table == next.table) {
            if !has_groups(of_one[0].table) {
                continue;
            }
            is_any = true;
            self.find_sealed_meanwhile(of_one);
            // Who does not find them there any more looks below, and not at what counted there before.
            let keys = of_one.iter().filter(|movable| movable.is_sealed).map(|movable| movable.key);
            self.runs.forget_rows_in_memory(of_one[0].table, keys);
        }
        if !is_any {
            return Some(no_seal);
        }
        // With all appenders locked, so that whoever has one finds an entry again that he found: a batch looks at its rows, and again when it publishes.
        let _every_appender = self.log.every_appender();
        self.log.record_emptied(victims.iter().map(|victim| victim.emptied.extent));
        None
    }

    /// Finds out which of these records of a table, of keys that the young index had, only a group has by now.
    fn find_sealed_meanwhile(&self, found: &mut [Movable<'_>]) {
        let table = self.catalog.by_id(found[0].table);
        let Some(table) = table.filter(|table| table.levels.was_sealed_meanwhile()) else { return };
        for group in found.chunks_mut(GROUP) {
            let guard = self.log.pin();
            let keys: SmallVec<[&[u8]; GROUP]> = group.iter().map(|movable| movable.key).collect();
            let (mut slots, mut sealed) = ([None; GROUP], [false; GROUP]);
            table.levels.locate_versions(&keys, &guard, (&mut slots, &mut sealed));
            for ((movable, slot), is_sealed) in group.iter_mut().zip(slots).zip(sealed) {
                // One that was written over since is as it is when the index forgets it.
                movable.is_sealed |= is_sealed && slot == Some(movable.slot.into());
            }
        }
    }

    /// Takes these records of a table out of its index; `gone` says which were as they were found.
    fn forget_of(
        &self,
        table: &Arc<TableShared>,
        found: &[Movable<'_>],
        guard: &LogGuard<'_>,
        gone: &mut [bool],
    ) {
        let entries = found.iter().map(|movable| (movable.key, Slot::from(movable.slot)));
        let entries: SmallVec<[_; FORGOTTEN_TOGETHER]> = entries.collect();
        table.levels.forget_in_order(&entries, guard, gone);
        // An appender is held: it is not cleared meanwhile.
        let (is_there, mut sealed) = (table.id.load(Ordering::Acquire) == found[0].table, 0);
        for (movable, is_gone) in found.iter().zip(gone).filter(|(_, is_gone)| !**is_gone) {
            if movable.is_sealed {
                *is_gone = is_there && !table.levels.was_stored_over(movable.slot);
                sealed += u64::from(*is_gone);
                continue;
            }
            // What is cached stands there with another slot.
            let forgotten = self.publish(IndexEntry::of_known(table, movable.key), guard, |now| {
                match now == Some(movable.slot) {
                    true => (Decision::Remove, true),
                    false => (Decision::Keep, false),
                }
            });
            *is_gone = forgotten.unwrap_or(false);
        }
        table.levels.count_moved(sealed);
    }

    /// Relocates what is live of these records of a victim; those that cannot be, for want of room or because of what is wrong, are left. Whether anything is wrong: then some will
    /// be for good.
    fn relocate_left(
        &self,
        (extent, walk): (u32, &SegmentWalk<'_>),
        left: &mut Vec<u64>,
        claim: Claim,
    ) -> bool {
        let (mut is_wrong, mut is_full) = (false, false);
        left.retain(|&offset| {
            // Whatever found no room, those behind it need some as well.
            if is_full {
                return true;
            }
            let error = self.relocate_one((extent, walk), offset, claim).err();
            // Records lie in memory: what the system refuses is more room.
            let is_room = |error: &Error| matches!(error.kind(), ErrorKind::Full | ErrorKind::Io);
            is_full = error.as_ref().is_some_and(is_room);
            is_wrong |= error.is_some() && !is_full;
            error.is_some()
        });
        if is_wrong {
            self.log.quarantine(extent);
        }
        is_wrong
    }

    /// Gives up a victim that cannot be emptied: it is no victim any more, keeps its space and what is live in it, and holds up none of the others. Either it is quarantined, or no earlier move
    /// has victims that are not freed. False if the keys of what moved out of it cannot be read again: then it must stay one.
    ///
    /// **Why the others may be freed.** Victims are freed in their order so that no replay finds a record that moved, and not the newer one of its key that moved after it. Of this victim's
    /// keys none will: from here on they count among those of which the log has a record that no key counts ([`will_drop_key`](crate::scheduler::gc_state::GcState::will_drop_key)), and of such a key nothing moves. Nothing of them
    /// has moved since this victim's did, for no other move begins before the one that left something in it is done with, and of one move each key has one
    /// record. So whatever is newer than its record here is in the log, where a replay finds it; and if nothing is, that record is what sorted tables have. What is older of these keys is in victims
    /// before this one, or in none, and may go at any time. The victim itself is not freed before what is older either: if it is quarantined, not as long as the store is open; if not, all that is
    /// older has gone.
    fn give_up(&self, extent: u32, walk: &SegmentWalk<'_>) -> bool {
        let key_at = |offset: u64| {
            let record = walk.record_again(offset).ok()?;
            Some(SstKey::new(record.table(), record.key()).hash())
        };
        let hashes: Option<Vec<u64>> = self.gc.dropped_in(extent).into_iter().map(key_at).collect();
        let Some(hashes) = hashes else { return false };
        hashes.into_iter().for_each(|hash| self.gc.will_drop_key(extent, hash));
        // What is live in it is copied by backups.
        self.log.abandon_gc(extent);
        true
    }

    fn relocate_one(&self, (extent, walk): (u32, &SegmentWalk<'_>), offset: u64, claim: Claim) -> Result<()> {
        let record = walk.record_again(offset)?;
        let Some(table) = self.catalog.by_id(record.table()) else { return Ok(()) };
        while self.relocate(&table, extent, &record, claim)?.is_none() {}
        Ok(())
    }

    /// Tries again what earlier moves had no room for; whether a victim has nothing left now, and waits until all is durable.
    pub(super) fn finish_moves(&self) -> bool {
        let Some(_settling) = self.gc.settling.try_lock() else { return false };
        let (unfinished, number, others): (Vec<(u32, u64, Vec<u64>)>, _, _) = {
            let queue = self.gc.moved_from.lock();
            let number = queue.front().map(|first| first.number);
            let unfinished = queue.iter().filter(|victim| !victim.left.is_empty());
            let of = |victim: &MovedFrom| (victim.pending.extent, victim.number, victim.left.clone());
            let others =
                queue.iter().filter(|victim| Some(victim.number) == number && victim.left.is_empty());
            (unfinished.map(of).collect(), number, others.count())
        };
        let mut any = false;
        for (n, (extent, of_move, mut left)) in unfinished.into_iter().enumerate() {
            let Some(walk) = self.log.walk(extent) else { continue };
            let is_next = Some(of_move) == number;
            // What is left in one of those that are freed next fits an extent, which comes back with it.
            let claim = if n == 0 && is_next { Claim::LastExtent } else { Claim::Gc };
            let is_wrong = self.relocate_left((extent, &walk), &mut left, claim);
            // A row of many extents finds as many adjoining ones perhaps never, and not before others move.
            let is_in_vain = claim == Claim::LastExtent && others == 0 && !left.is_empty();
            if (is_wrong || is_in_vain) && self.give_up(extent, &walk) {
                self.skip(extent);
                self.gc.moved_from.lock().retain(|victim| victim.pending.extent != extent);
                any = true;
                continue;
            }
            if left.is_empty() {
                self.log.record_emptied([extent]);
                any = true;
            }
            let (epoch, sequence) = (self.epoch.current(), self.log.last_sequence());
            let mut queue = self.gc.moved_from.lock();
            if let Some(victim) = queue.iter_mut().find(|victim| victim.pending.extent == extent) {
                (victim.pending.epoch, victim.pending.sequence) = (epoch, sequence);
                (victim.left, victim.is_durable) = (left, false);
            }
        }
        any
    }

    /// Frees the victims of moves that nobody needs, in their order; returns how many.
    pub(super) fn free_moved(&self) -> Result<usize> {
        match self.gc.settling.try_lock() {
            Some(_settling) => self.free_settled(),
            None => Ok(0),
        }
    }

    /// The same for who settles.
    pub(super) fn free_settled(&self) -> Result<usize> {
        let mut freed = 0;
        loop {
            let ready = self.next_to_free();
            if ready.is_empty() {
                return Ok(freed);
            }
            let extents: Vec<u32> = ready.iter().map(|(extent, _)| *extent).collect();
            // PERSIST: free on the medium before anything is written over them, and before those of the next move are.
            self.log.free_segments(&extents)?;
            for (extent, is_uncounted) in ready {
                self.reuse_victim(extent, !is_uncounted)?;
                self.gc.moved_from.lock().retain(|victim| victim.pending.extent != extent);
                freed += 1;
            }
        }
    }

    /// The victims of the oldest move that is not done with, as far as they can be freed now: one that cannot holds up none of its own move. And whether no key counts anything of them.
    fn next_to_free(&self) -> Vec<(u32, bool)> {
        let queue = self.gc.moved_from.lock();
        let number = queue.front().map(|victim| victim.number);
        let of_one = queue.iter().take_while(|victim| Some(victim.number) == number);
        let ready = of_one
            .filter(|victim| victim.is_durable && victim.left.is_empty() && !self.is_needed(&victim.pending));
        ready.map(|victim| (victim.pending.extent, victim.is_uncounted)).collect()
    }
}

/// Moves by hand.
impl Engine {
    /// A move out of the oldest segments, whether there is need or not; what nobody needs is freed. Not out of what is open, unless that is sealed before.
    pub(crate) fn move_by_hand(&self, sealing: bool) -> Result<()> {
        self.log.check_writable()?;
        if !self.may_move() {
            return Err(Error::invalid("nothing bounds the store, or it has no place for sorted tables"));
        }
        if sealing {
            self.seal_all();
        }
        self.count_many();
        let _cycle = self.gc.lock.read();
        self.finish_moves();
        let moved = self.move_rows();
        self.gc.set_moving_bytes(0);
        self.settle(Vec::new())?;
        moved.map(drop)
    }

    #[cfg(test)]
    pub(crate) fn move_now(&self) {
        self.move_by_hand(true).expect("a run can be written");
    }

    #[cfg(test)]
    #[cfg(not(shuttle))]
    pub(crate) fn move_sealed(&self) {
        self.move_by_hand(false).expect("a run can be written");
    }
}

#[cfg(all(test, shuttle))]
pub(super) mod shuttle;
#[cfg(test)]
#[cfg(not(shuttle))]
pub(crate) mod tests;
