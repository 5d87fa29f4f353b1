//! Reading many rows in one call.
//!
//! Owns how far what sorted tables have of its keys is looked up ahead of the rows that are read: [`RowsInTurn`]. Promises that rows are read in the order of their keys; that no thread waits for the disk while something is
//! pinned; and that blocks of so many keys are held and no more. Must not know how a row is read.
//!
//! Where rows lie below, three things go on beside one another: keys are looked up, in the index and in sorted tables; blocks that these lack are read, many at a time; and rows of which all is there are
//! read. Done one after the other for all keys of a call, the disk had nothing to do for a quarter of the time.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{GROUP, RowRef};
use crate::db::engine::{Engine, TableShared};
use crate::db::lacked::look_below;
use crate::db::lower::{LowerAhead, LowerLooks};
use crate::index::{Slot, Tag};
use crate::log::check_waits_alone;
use crate::runs::{LookUnderWay, OpenRuns};
use crate::sst::{BlockReads, LooksBeside, SstKey};
use crate::sync::atomic::Ordering;
use crate::{Error, Key, Result};

/// Of so many keys the blocks are held until all of them are read.
const HELD_TOGETHER: usize = 64 * GROUP;
/// And of fewer where they would have more bytes together.
const HELD_BYTES_MAX: u64 = 256 << 20;
/// So many keys are looked up ahead of the row that is read: more blocks than are read at a time.
const AHEAD: usize = 16 * GROUP;

/// Keys that are looked up together, and read together once all is there.
struct KeysUnderWay {
    /// How many of the call's keys they are.
    keys: usize,
    /// Of those that the index does not have, or deltas of them alone.
    looks: Vec<(SstKey, LookUnderWay)>,
    /// So many of these are answered.
    answered: usize,
}

/// The rows of one call.
struct RowsInTurn<'r, K, R> {
    engine: &'r Engine,
    table: &'r TableShared,
    /// What counted below when the first of `keys` were looked up.
    runs: Arc<OpenRuns>,
    /// Those that are not looked up yet.
    keys: &'r [K],
    /// Those that are not read yet.
    unread: &'r [K],
    before: Option<u64>,
    under_way: VecDeque<KeysUnderWay>,
    read: R,
    result: Result<()>,
}

impl<K: Key, R: FnMut(Option<&RowRef<'_>>) -> Result<()>> RowsInTurn<'_, K, R> {
    fn upto(&self) -> u64 {
        self.before.unwrap_or(u64::MAX)
    }

    /// Looks the next few keys up. `None` if what counts below is something else by now: the index is asked first, and a row that has left it since is in that.
    fn look_up(&self, keys: &[K], reads: &mut BlockReads) -> Option<KeysUnderWay> {
        let wanted = self.engine.wanted_below(self.table, keys, self.before);
        Arc::ptr_eq(&self.runs, &self.engine.runs.current()).then(|| {
            let begin = |key: SstKey| {
                let look = self.runs.begin_look(&key, self.upto(), reads);
                (key, look)
            };
            KeysUnderWay { keys: keys.len(), looks: wanted.into_iter().map(begin).collect(), answered: 0 }
        })
    }

    /// Whether all is there that the next rows need.
    fn is_next_there(&mut self, reads: &mut BlockReads) -> bool {
        let upto = self.upto();
        let Some(next) = self.under_way.front_mut() else { return false };
        while let Some((key, look)) = next.looks.get_mut(next.answered) {
            if !self.runs.go_on(key, upto, (look, reads)) {
                return false;
            }
            next.answered += 1;
        }
        true
    }

    /// Reads the next rows. What could not be read of their lower parts they look for themselves, and have the error.
    fn read_next(&mut self) {
        let Some(next) = self.under_way.pop_front() else { return };
        let (keys, rest) = self.unread.split_at(next.keys);
        self.unread = rest;
        let found = next.looks.into_iter().filter_map(|(key, look)| Some((key, look.into_answer()?.ok()?)));
        let ahead = LowerAhead::of(&self.runs, found.collect(), self.upto());
        let view = self.engine.read_view();
        let _ = view.lower.set(Box::new(LowerLooks::with_ahead(ahead)));
        self.result = self.engine.read_group(self.table, keys, (&view, self.before), &mut self.read);
    }

    /// Reads rows for as long as all is as it was when it began; what is left is [`RowsInTurn::unread`].
    fn run(&mut self) {
        check_waits_alone();
        let mut reads = BlockReads::new();
        reads.run_beside(&mut *self);
        // What a look lacks that was told of no block is not known to happen: such rows look for themselves.
        while self.result.is_ok() && !self.under_way.is_empty() {
            reads.run();
            self.is_next_there(&mut reads);
            self.read_next();
        }
    }
}

impl<K: Key, R: FnMut(Option<&RowRef<'_>>) -> Result<()>> LooksBeside for &mut RowsInTurn<'_, K, R> {
    fn next(&mut self, reads: &mut BlockReads) -> bool {
        let are_ahead = self.unread.len() - self.keys.len();
        if self.keys.is_empty() || are_ahead >= AHEAD || self.result.is_err() {
            return false;
        }
        let (keys, rest) = self.keys.split_at(self.keys.len().min(GROUP));
        match self.look_up(keys, reads) {
            Some(looked_up) => {
                self.under_way.push_back(looked_up);
                self.keys = rest;
                true
            }
            // Those that are under way are the last.
            None => {
                self.keys = &[];
                false
            }
        }
    }

    fn meanwhile(&mut self, reads: &mut BlockReads) -> bool {
        let is_there = self.result.is_ok() && self.is_next_there(reads);
        if is_there {
            self.read_next();
        }
        is_there
    }
}

impl Engine {
    /// Runs `read` on the row of each key, in place and in order, as it is or was when the sequence `before` was the last; the
    /// look-ups overlap.
    pub(in crate::db) fn read_many<K: Key>(
        &self,
        table: &TableShared,
        keys: &[K],
        before: Option<u64>,
        mut read: impl FnMut(Option<&RowRef<'_>>) -> Result<()>,
    ) -> Result<()> {
        let mut unread = keys;
        while table.below() && !unread.is_empty() {
            let keys = &unread[..self.held_together(table).min(unread.len())];
            let done = match self.waits_for_files() {
                true => self.read_in_turn(table, keys, before, &mut read)?,
                false => self.read_together(table, keys, before, &mut read).map(|()| keys.len())?,
            };
            unread = &unread[done..];
        }
        for group in unread.chunks(GROUP) {
            self.read_group(table, group, (&self.read_view(), before), &mut read)?;
        }
        Ok(())
    }

    /// Reads rows while blocks of others are read; returns how many. The others are left once what counts below is something else.
    fn read_in_turn<K: Key>(
        &self,
        table: &TableShared,
        keys: &[K],
        before: Option<u64>,
        read: &mut impl FnMut(Option<&RowRef<'_>>) -> Result<()>,
    ) -> Result<usize> {
        let mut rows = RowsInTurn {
            engine: self,
            table,
            runs: Arc::clone(&self.runs.current()),
            keys,
            unread: keys,
            before,
            under_way: VecDeque::new(),
            read,
            result: Ok(()),
        };
        rows.run();
        let done = keys.len() - rows.unread.len();
        rows.result.map(|()| done)
    }

    /// Reads rows once all was found below that they need, for who does not wait for it, or has had it brought.
    fn read_together<K: Key>(
        &self,
        table: &TableShared,
        keys: &[K],
        before: Option<u64>,
        read: &mut impl FnMut(Option<&RowRef<'_>>) -> Result<()>,
    ) -> Result<()> {
        let mut wanted = Vec::new();
        keys.chunks(GROUP).for_each(|group| wanted.extend(self.wanted_below(table, group, before)));
        // After the index was asked: a row that has left it since is in them.
        let runs = Arc::clone(&self.runs.current());
        let upto = before.unwrap_or(u64::MAX);
        let mut ahead = Some(LowerAhead::find(self.disk_waits.store_id(), &runs, wanted, upto)?);
        for group in keys.chunks(GROUP) {
            let view = self.read_view();
            if let Some(ahead) = ahead.take() {
                let _ = view.lower.set(Box::new(LowerLooks::with_ahead(ahead)));
            }
            self.read_group(table, group, (&view, before), read)?;
            ahead = view.lower.into_inner().and_then(|looks| looks.into_ahead());
        }
        Ok(())
    }

    /// Whether the calling thread waits for files, and nothing was brought for it.
    fn waits_for_files(&self) -> bool {
        look_below(self.disk_waits.store_id(), |_| Ok::<_, Error>(())).is_none()
    }

    /// Of how many keys of a table blocks are held together.
    fn held_together(&self, table: &TableShared) -> usize {
        let of_one = self.runs.current().bytes_of_look(table.id.load(Ordering::Acquire));
        (HELD_BYTES_MAX / of_one.max(1)).clamp(1, HELD_TOGETHER as u64) as usize
    }

    /// Those of up to [`GROUP`] keys of which the index has nothing, or deltas alone, and memory no row.
    fn wanted_below<K: Key>(
        &self,
        table: &TableShared,
        keys: &[K],
        before: Option<u64>,
    ) -> SmallVec<[SstKey; GROUP]> {
        let encoded: SmallVec<[K::Bytes<'_>; GROUP]> = keys.iter().map(Key::key_bytes).collect();
        let (mut found, guard) = ([None; GROUP], self.log.pin());
        let keys: SmallVec<[&[u8]; GROUP]> = encoded.iter().map(AsRef::as_ref).collect();
        table.levels.locate_many(&keys, &guard, &mut found);
        let id = table.id.load(Ordering::Acquire);
        let is_below = |slot: &Option<Slot>| slot.is_none_or(|slot| slot.tag() == Tag::Blind);
        let below = keys.iter().zip(&found).filter(|(_, slot)| is_below(slot));
        let below = below.map(|(key, _)| SstKey::new(id, key));
        let records = self.runs.record_cache().filter(|_| before.is_none());
        below.filter(|key| !records.is_some_and(|records| records.has(key, &guard))).collect()
    }
}
