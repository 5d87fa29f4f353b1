//! When rows move, and how writers are held to what moves keep up with.
//!
//! Owns what counts as too little room, in the tier and in the index, and how much of it is missing. Promises that writers are held little at first and more the more is missing, and by
//! nothing that moves cannot mend. Must not know how rows move.

use crate::db::engine::Engine;
use crate::scheduler::controller::Look;

/// Rows move when the index takes this share of what it may.
const INDEX_MOVES_FROM: f64 = 0.75;
/// Before it was full, how many keys it takes is thought from this share of its memory on: as many for each byte as it has by then.
const INDEX_KEYS_GUESSED_FROM: f64 = 0.9375;
/// One move takes out no more bytes: it is done with gc's thread.
const MOVE_BYTES_MAX: u64 = 1 << 30;
/// One move takes no longer than about this, if that is an eighth of the tier or more: it gives nothing back before its end, and what writers need until then is to be free when it begins.
const MOVE_NS_MAX: u64 = 1_000_000_000;
/// A snapshot that is as old as this may be held for long.
pub(super) const LONG_SNAPSHOT_MS: u64 = 1_000;
/// Merges make way for moves while so much of the room for writers is missing, and use so much of their time even then.
const MERGES_MAKE_WAY_FROM: f64 = 0.25;
const MERGE_SHARE_MIN: f64 = 0.125;
/// Moves go on in spite of the budget of background I/O while so much of the room is missing that they are to find.
const URGENT_FROM: f64 = 0.25;
/// Writers are held for what is to be merged from this backlog on, and as if no room were left from that on.
const BACKLOG_HELD: [f64; 2] = [2.0, 4.0];

/// How much of its time merging may use while of the room for writers `missing` is missing, and what is to be merged is `backlog` times what may be there. Moves go first: they are what
/// writers wait for. But the more is owed the less merges make way.
fn merge_share(missing: f64, backlog: f64) -> f64 {
    if missing < MERGES_MAKE_WAY_FROM { 1.0 } else { (backlog - 1.0).clamp(MERGE_SHARE_MIN, 1.0) }
}

/// As much as this share of missing room are writers held for what is to be merged: not at all as long as merges still may make way, then more and more.
fn held_for_merges(backlog: f64) -> f64 {
    ((backlog - BACKLOG_HELD[0]) / (BACKLOG_HELD[1] - BACKLOG_HELD[0])).clamp(0.0, 1.0)
}

/// Asked by those who move rows, and by those who write.
impl Engine {
    /// Bytes of live records that one takes out: no more than sorted tables have `room` for, or than they had when they refused some; and no more than the least size, or than writers have room to wait for.
    pub(crate) fn bytes_to_move(&self, room: u64) -> u64 {
        let (all, extent_bytes) = (self.log.space().room().1, self.log.extent_bytes());
        let outlasted = outlasted_bytes(self.room().available, extent_bytes);
        let most = self.move_bytes_now().min(outlasted.max(move_bytes(all, 1, extent_bytes)));
        let most = most.min(self.bytes_in_budget());
        (most >> self.gc.move_halvings()).min(room).max(extent_bytes)
    }

    /// With fewer free extents than this rows move.
    pub(in crate::gc) fn landing_extents(&self) -> u32 {
        landing(self.log.space().room().1, self.move_bytes_now(), self.log.extent_bytes())
    }

    /// Bytes of live records that one move takes out now.
    fn move_bytes_now(&self) -> u64 {
        let (all, extent_bytes) = (self.log.space().room().1, self.log.extent_bytes());
        let least = move_bytes(all, 1, extent_bytes);
        let in_time = bytes_in_time(self.gc.move_costs_ns()[0]);
        move_bytes(all, self.gc.controller.eighths(), extent_bytes).min(in_time.max(least))
    }

    /// Whether rows could move if there were need to.
    pub(crate) fn can_move(&self) -> bool {
        self.may_move() && !self.gc.moving_failed_lately(self.clock.monotonic_ns())
    }

    /// Whether rows are to leave the log: there is little room in it, or in the index.
    pub(crate) fn wants_move(&self) -> bool {
        self.is_short_of_room() && !self.puts_off_moves()
    }

    /// Whether they were if there were no budget of background I/O.
    pub(in crate::gc) fn is_short_of_room(&self) -> bool {
        self.can_move() && (self.missing_landing() > 0 || self.index_pressure() > 0.0)
    }

    /// Whether moves wait until what was taken of the budget is paid. Not where writers would be held for it.
    pub(in crate::gc) fn puts_off_moves(&self) -> bool {
        self.io_budget.owed_ns(self.clock.monotonic_ns()) > 0 && !self.is_move_urgent()
    }

    /// Whether so much room is missing that writers are held to what moves make of it.
    pub(super) fn is_move_urgent(&self) -> bool {
        let landing = u64::from(self.landing_extents()) * self.log.extent_bytes();
        let of_tier = self.missing_landing() as f64 / landing as f64;
        of_tier >= URGENT_FROM
            || self.index_pressure() >= URGENT_FROM
            || self.gc.is_index_refused() && !self.seals_make_room()
    }

    /// Bytes of live records that the budget has room for in a second, if a move has to keep to it: the next one waits until they are paid.
    fn bytes_in_budget(&self) -> u64 {
        match self.io_budget.bytes_per_s() {
            Some(bytes) if !self.is_move_urgent() => bytes,
            _ => u64::MAX,
        }
    }

    /// Whether moves make room: the last one did, or there was none yet, and nothing holds up for long what they emptied.
    pub(crate) fn moves_help(&self) -> bool {
        self.can_move() && !self.gc.moves_in_vain() && !self.is_held_up()
    }

    /// Whether moves wait for a snapshot that may go in a moment: nothing that was written since it was taken moves.
    pub(in crate::gc) fn waits_for_snapshot(&self) -> bool {
        let age_ms = || self.snapshots.oldest_age_ms(self.clock.monotonic_ns());
        self.can_move() && age_ms().is_some_and(|age_ms| age_ms < LONG_SNAPSHOT_MS)
    }

    /// Whether a snapshot that is not about to go keeps what moves emptied first: nothing is freed until then, however slowly is written. Not for who has an appender locked: the
    /// list of snapshots may be held by one who waits for all appenders to be passed.
    fn is_held_up(&self) -> bool {
        let age_ms = || self.snapshots.oldest_age_ms(self.clock.monotonic_ns());
        let queue = self.gc.moved_from.lock();
        let Some(front) = queue.front() else { return false };
        self.snapshots.oldest().is_some_and(|oldest| oldest < front.pending.sequence)
            && age_ms().is_some_and(|age_ms| age_ms >= LONG_SNAPSHOT_MS)
    }

    /// Whether what is written now is likely to be waited for by a move soon.
    pub(crate) fn is_short_of_landing(&self) -> bool {
        self.moves_help() && self.left_by_leaves() < self.landing_extents()
    }

    /// Whether what is sealed now is likely to be waited for by a move, if not soon: the first one would wait for all that was never written to the disk.
    pub(crate) fn is_near_landing(&self) -> bool {
        self.moves_help() && self.left_by_leaves() / 2 < self.landing_extents()
    }

    /// How much of the index's last quarter is taken, from 0 to 1; nothing where seals make room in it. A move takes the oldest rows out, whose keys were sealed long ago:
    /// writers would stand still for a move that makes no room for them.
    fn index_pressure(&self) -> f64 {
        let pressure = self.pressure_in_index();
        if pressure > 0.0 && self.seals_make_room() { 0.0 } else { pressure }
    }

    /// How much of the index's last quarter is taken, from 0 to 1. What a move left counts as room: new keys go into leaves that became sparse. How many of them is guessed
    /// once it is nearly full, and known once it was: where none of its memory is left free, what it takes says nothing of how soon it will be again. Who asks while a quarter of it
    /// is free has that number forgotten.
    fn pressure_in_index(&self) -> f64 {
        let (most, taken) = (self.options.index_bytes_max as f64, self.arena.bytes() as f64);
        let of_last_quarter =
            |taken: f64, from: f64, most: f64| ((taken - from) / (most - from).max(1.0)).clamp(0.0, 1.0);
        let from = (most * INDEX_MOVES_FROM).max(self.gc.index_floor() as f64 + most / 32.0);
        let of_bytes = of_last_quarter(taken, from, most);
        if taken < most * INDEX_MOVES_FROM {
            self.gc.forget_index_keys();
        } else if taken >= most * INDEX_KEYS_GUESSED_FROM && self.gc.index_keys_full().is_none() {
            self.gc.guess_index_keys((self.index_keys() as f64 * most / taken) as u64);
        }
        match self.gc.index_keys_full() {
            Some(full) => {
                let full = full as f64;
                of_bytes.max(of_last_quarter(self.index_keys() as f64, full * INDEX_MOVES_FROM, full))
            }
            None => of_bytes,
        }
    }

    /// Keys in the index.
    fn index_keys(&self) -> u64 {
        self.catalog.all().iter().map(|table| table.levels.young_keys()).sum()
    }

    /// Whether a new key was refused since the last move, and a move may make room for it.
    pub(in crate::gc) fn awaits_index(&self) -> bool {
        let may_move = self.moves_help() && self.gc.unfinished_moves() == 0;
        self.gc.is_index_refused() && self.is_index_short() && may_move
    }

    /// Whether there is little room in the index: collecting makes none there, as moves do.
    pub(in crate::gc) fn is_index_short(&self) -> bool {
        self.can_move() && self.index_pressure() > 0.0
    }

    /// Whether a new key was refused, or half of the last quarter of the index is gone.
    pub(super) fn is_index_nearly_full(&self) -> bool {
        let is_refused = || self.gc.is_index_refused() && !self.seals_make_room();
        self.can_move() && (self.index_pressure() >= 0.5 || is_refused())
    }

    /// Whether all that may leave the log is in segments that are written to, if anything: they are sealed when the index is nearly full. `oldest` is the oldest snapshot, which keeps what
    /// is written last.
    pub(super) fn may_leave_when_sealed(&self, oldest: Option<u64>) -> bool {
        oldest.is_none() && self.log.candidates().is_empty() && self.log.has_open_segments()
    }

    /// A new key was refused for want of room in the index: whether moves may take others out of it, if only once a short snapshot has gone.
    pub(crate) fn may_gain_index(&self) -> bool {
        // What is asked for may be more than one key, and not all of it is for new keys.
        let most = self.options.index_bytes_max;
        let is_full = self.arena.bytes().saturating_add(most / 32) >= most;
        self.gc.refuse_index(is_full.then(|| self.index_keys()));
        let cycles = self.gc.cycles();
        let is_any_left =
            |oldest| self.may_leave_when_sealed(oldest) || !self.choose_to_move(oldest).is_empty();
        let can_go_on = || self.index_pressure() > 0.0 && is_any_left(self.snapshots.oldest());
        // What a cycle has taken for its victims is nowhere to be seen, nor is there any pressure once one has ended.
        self.moves_help() && (can_go_on() || !self.gc.was_idle_since(cycles)) || self.waits_for_snapshot()
    }

    /// Holds writers to what moves can keep up with. Where they make no room, or nobody moves rows but by hand, nobody is held.
    pub(crate) fn pace_writers(&self) {
        if self.options.background {
            self.look_at_queues();
        }
    }

    /// Whether writers are held for what is to be merged.
    pub(crate) fn merges_hold_writers(&self) -> bool {
        held_for_merges(self.runs.merge_backlog()) > 0.0
    }

    fn look_at_queues(&self) {
        if self.may_move() {
            return self.pace_by_moves();
        }
        self.gc.controller.record(Look::default(), || self.groups_owed(), self.clock.monotonic_ns());
    }

    pub(super) fn pace_by_moves(&self) {
        if !self.moves_help() {
            // Merges may be what makes room for moves again.
            self.gc.set_merge_share(1.0);
            self.gc.throttle.pace_keys(0.0, 0);
            return self.gc.throttle.pace(0.0, 0);
        }
        let (available, extent_bytes) = (self.left_by_leaves(), self.log.extent_bytes());
        let all = self.log.space().room().1;
        let least = landing(all, move_bytes(all, 1, extent_bytes), extent_bytes);
        let expected = self.gc.controller.expected(available, least, self.landing_extents());
        let extents = |extents: u32| (u64::from(extents) * extent_bytes) as f64;
        let (now, soon) = (extents(available), self.gc.moving_bytes() as f64);
        let missing = |there: f64| 1.0 - there / extents(expected);
        // What a move will have freed is not free yet: what is must last until then, through the syncs at its end.
        let of_tier = missing(now + soon).max(2.0 * missing(now) - 1.0).clamp(0.0, 1.0);
        let look = Look { missing: of_tier, is_moving: self.gc.is_moving(), is_short: available < least };
        self.gc.controller.record(look, || self.groups_owed(), self.clock.monotonic_ns());
        let backlog = self.runs.merge_backlog();
        // One thread for all makes way for nobody.
        let share = if self.options.coupled { 1.0 } else { merge_share(of_tier, backlog) };
        self.gc.set_merge_share(share);
        let of_index = self.index_pressure();
        let of_all = of_tier.max(of_index).max(held_for_merges(backlog));
        let [of_kib, of_record] = self.gc.move_costs_ns();
        self.gc.throttle.pace(of_all, of_kib);
        self.gc.throttle.pace_keys(of_index, of_record);
    }

    /// Extents that writers may have once the next seal has taken its own. It takes them at once, and writers that were not held before would stand still until a move has ended.
    fn left_by_leaves(&self) -> u32 {
        self.room().available.saturating_sub(self.leaf_extents_owed())
    }

    /// Bytes that are missing for there to be enough. Victims that are queued will be free, whoever holds them up.
    pub(crate) fn missing_landing(&self) -> u64 {
        let queued = self.gc.moved_from.lock().len() as u32;
        let there = self.left_by_leaves().saturating_add(queued);
        u64::from(self.landing_extents().saturating_sub(there)) * self.log.extent_bytes()
    }
}

/// Bytes of live records that one move takes out of a tier of `all` extents: so many eighths of it, and no more than one move may.
pub(super) fn move_bytes(all: u32, eighths: u32, extent_bytes: u64) -> u64 {
    ((u64::from(all) * u64::from(eighths) / 8).max(1) * extent_bytes).min(MOVE_BYTES_MAX)
}

/// Bytes of a move that writers outlast to whom `available` extents are free when it begins. It gives nothing back before its end, and writers take as much meanwhile as they are let: were it
/// larger because moves lag, and the room that is to be there for it not there yet, they would stand still for the rest of it.
fn outlasted_bytes(available: u32, extent_bytes: u64) -> u64 {
    u64::from(available) * extent_bytes / 2 * 3
}

/// Bytes that a move takes out in the most time that one may have, at `ns_per_kib` ns for each KiB. Short records cost more: of deltas an eighth of 1 GiB takes as long as half of it of rows.
fn bytes_in_time(ns_per_kib: u64) -> u64 {
    (MOVE_NS_MAX / ns_per_kib.max(1)) << 10
}

/// With fewer free extents than this of `all` rows move: the `moved` bytes that one move takes, and a sixteenth of all for writers meanwhile. Of a tier that only its disk limits `all` is what that
/// has, or as many as can be counted until it was asked: more than a move makes room for is not waited for, and for writers half of that is enough.
pub(super) fn landing(all: u32, moved: u64, extent_bytes: u64) -> u32 {
    let moved = moved / extent_bytes;
    let for_writers = u64::from(all / 16).min(MOVE_BYTES_MAX / 2 / extent_bytes);
    (moved + for_writers).max(2) as u32
}
