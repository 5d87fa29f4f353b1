//! What is left when fields expire: hashes without fields, and overflow fields that no hash points to. (Rows that expire
//! as a whole are swept by the engine.)
//!
//! Owns: the times of the next expiries of fields, in bounded memory, and the sweep that finds those it does not remember
//! (after a restart, or when there were too many). Promises: a call of [`TieredKeyspace::sweep`] takes a short time, even where rows are on the disk alone, but for the one read that it is at; and rows that cannot be read keep it from none but those of their table that come after them.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use hedgerow::{FieldId, RowRef};

use super::hashes::LastExpiry;
use super::overflow_fields::OverflowFields;
use super::{TableIndex, TieredKeyspace, Tries, limits, naming};
use crate::serve::failure::Outcome;
use crate::serve::keyspace::cursor::Source;

/// How long one call takes, about: clients wait meanwhile.
const TIME_PER_CALL: Duration = Duration::from_millis(2);
/// Rows the sweep looks at in one call.
const ROWS_PER_CALL: usize = 512;
/// Fields of a hash that is gone that are removed between two looks at the clock.
const ORPHAN_ROWS_AT_ONCE: usize = 32;
/// Keys removed in one call.
const REMOVALS_PER_CALL: usize = 512;
/// Generations of overflow fields waiting to be removed.
const ORPHANS_MAX: usize = 100_000;
/// How long the sweep rests after a round that found something that will expire.
const REST_MS: u64 = 60_000;

/// When a field expires, in ms since 1970, and of which hash: its database and key.
type Due = (u64, u8, Box<[u8]>);

/// Which fields will expire, and where the sweep is.
#[derive(Debug, Default)]
pub struct Expiries {
    due: BTreeSet<Due>,
    /// Of the keys in `due`.
    due_bytes: usize,
    /// Whether something was dropped from `due`, so that only the sweep can find it.
    overflowed: bool,
    /// When the first hash expires that has overflow fields, which nobody removes with it, in ms since 1970: a round begins then, and finds the next.
    round_ms: Option<u64>,
    orphans: VecDeque<u64>,
    sweep: Option<Sweep>,
    rest_until_ms: u64,
    /// Hashes removed because their last field had expired.
    pub removed: u64,
}

/// A round of the sweep.
#[derive(Debug, Default)]
struct Sweep {
    space: usize,
    source: Option<Source>,
    after: Box<[u8]>,
    /// The last generation whose owner was checked; None before the tables are done.
    generation: Option<u64>,
}

/// When a call of the sweep began.
#[derive(Debug, Clone, Copy)]
struct CallTime(Instant);

impl CallTime {
    fn is_up(self) -> bool {
        self.0.elapsed() >= TIME_PER_CALL
    }
}

impl Expiries {
    /// Remembers that a field of a hash expires.
    pub fn enqueue(&mut self, at_ms: u64, space: usize, key: &[u8]) {
        if self.due.insert((at_ms, space as u8, key.into())) {
            self.due_bytes += key.len();
        }
        while self.due.len() > limits::EXPIRIES_MAX || self.due_bytes > limits::EXPIRIES_BYTES_MAX {
            self.overflowed = true;
            let latest = self.due.pop_last();
            self.due_bytes -= latest.map_or(self.due_bytes, |(_, _, key)| key.len());
        }
    }

    /// Takes the first that is due by then.
    fn take_due(&mut self, now_ms: u64) -> Option<Due> {
        self.due.first().filter(|(at_ms, _, _)| *at_ms <= now_ms)?;
        let due = self.due.pop_first()?;
        self.due_bytes -= due.2.len();
        Some(due)
    }

    /// Forgets the fields of databases that have no hashes any more.
    pub fn forget(&mut self, spaces: Range<usize>) {
        self.due.retain(|(_, space, _)| !spaces.contains(&usize::from(*space)));
        self.due_bytes = self.due.iter().map(|(_, _, key)| key.len()).sum();
    }

    /// Whether any field is remembered to expire.
    pub fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// How many.
    #[cfg(test)]
    pub(super) fn due_count(&self) -> usize {
        self.due.len()
    }

    /// Forgets fields of a hash that is gone, which were to expire at these times.
    pub fn forget_hash(&mut self, space: usize, key: &[u8], at_ms: &[u64]) {
        if at_ms.is_empty() {
            return;
        }
        let mut due = (0, space as u8, Box::from(key));
        for &at_ms in at_ms {
            due.0 = at_ms;
            if self.due.remove(&due) {
                self.due_bytes -= key.len();
            }
        }
    }

    /// Forgets the fields of hashes whose table is gone.
    pub fn forget_table(&mut self, space: usize, prefix: &[u8]) {
        let is_of_table = |key: &[u8]| naming::split(key).is_some_and(|(of, _)| of == prefix);
        self.due.retain(|(_, of, key)| usize::from(*of) != space || !is_of_table(key));
        self.due_bytes = self.due.iter().map(|(_, _, key)| key.len()).sum();
    }

    /// Remembers that a hash with overflow fields expires.
    pub fn enqueue_round(&mut self, at_ms: u64) {
        self.round_ms = Some(self.round_ms.map_or(at_ms, |before| before.min(at_ms)));
    }

    /// Remembers to remove the overflow fields of a hash that is gone.
    pub fn enqueue_orphan(&mut self, generation: u64) {
        if self.orphans.len() < ORPHANS_MAX {
            self.orphans.push_back(generation);
        } else {
            self.overflowed = true;
        }
    }

    /// Starts a round over everything.
    pub fn sweep_all(&mut self) {
        self.sweep = Some(Sweep::default());
        self.rest_until_ms = 0;
    }

    /// Whether there may be something to do soon.
    pub fn is_idle(&self) -> bool {
        let has_due = !self.due.is_empty() || self.round_ms.is_some();
        !has_due && self.orphans.is_empty() && self.sweep.is_none() && !self.overflowed
    }
}

impl TieredKeyspace {
    /// Removes some of what has expired and looks for more, a bounded amount. What the store has no room to remove stays hidden, and the next call tries again; what cannot be read
    /// is left to a later round.
    pub fn sweep(&mut self) {
        drop(self.writer.begin_command(Tries::UPKEEP, &mut None));
        let time = CallTime(Instant::now());
        // Each goes on where it was.
        let _ = self
            .sweep_due(time)
            .and_then(|()| self.sweep_orphans(time))
            .and_then(|()| if time.is_up() { Ok(()) } else { self.sweep_on(time) });
    }

    /// Keys that were removed because they, or the last of their fields, had expired.
    pub fn expired(&self) -> u64 {
        self.expiries.removed + self.db.metrics().expired
    }

    /// An error if there was no room for what failed; else that is passed over, and looked for again in a later round.
    fn passed_over<R>(&mut self, outcome: Outcome<R>) -> Outcome<Option<R>> {
        match outcome {
            Ok(result) => Ok(Some(result)),
            Err(failure) if failure.is_for_want_of_room() => Err(failure),
            Err(_) => {
                self.expiries.overflowed = true;
                Ok(None)
            }
        }
    }

    /// Removes hashes of which the last field is known to have expired.
    fn sweep_due(&mut self, time: CallTime) -> Outcome<()> {
        for _ in 0..REMOVALS_PER_CALL {
            if time.is_up() {
                break;
            }
            let Some((at, space, key)) = self.expiries.take_due(self.now_ms) else { break };
            let removed = self.remove_if_empty(usize::from(space), &key);
            if let Err(failure) = self.passed_over(removed) {
                self.expiries.enqueue(at, usize::from(space), &key);
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Removes overflow fields of a hash that is gone.
    fn sweep_orphans(&mut self, time: CallTime) -> Outcome<()> {
        let Some(&generation) = self.expiries.orphans.front().filter(|_| !time.is_up()) else {
            return Ok(());
        };
        loop {
            let removed = self.remove_orphan(generation);
            if self.passed_over(removed)? != Some(false) {
                self.expiries.orphans.pop_front();
                return Ok(());
            }
            if time.is_up() {
                return Ok(());
            }
        }
    }

    /// Removes some fields of a generation, unless a hash has them; whether that is done.
    fn remove_orphan(&self, generation: u64) -> Outcome<bool> {
        match &self.overflow_fields {
            Some(overflow_fields) if !self.is_owned(generation)? => {
                Ok(overflow_fields.remove_generation(generation, ORPHAN_ROWS_AT_ONCE)?)
            }
            _ => Ok(true),
        }
    }

    /// Goes on with a round over everything, or begins one.
    fn sweep_on(&mut self, time: CallTime) -> Outcome<()> {
        if self.expiries.sweep.is_none() && self.expiries.round_ms.is_some_and(|at_ms| at_ms <= self.now_ms) {
            (self.expiries.round_ms, self.expiries.overflowed) = (None, true);
        }
        if self.expiries.sweep.is_none()
            && self.expiries.overflowed
            && self.now_ms >= self.expiries.rest_until_ms
        {
            self.expiries.overflowed = false;
            self.expiries.sweep_all();
        }
        if let Some(mut sweep) = self.expiries.sweep.take() {
            let swept = match sweep.generation {
                None => self.sweep_rows(&mut sweep, time),
                Some(generation) => self.sweep_owners(&mut sweep, generation, time),
            };
            let goes_on = match self.passed_over(swept) {
                Ok(Some(goes_on)) => goes_on,
                // Behind what cannot be read nothing of its table is seen.
                Ok(None) => sweep.generation.is_none() && self.next_source(&mut sweep),
                Err(failure) => {
                    self.expiries.sweep = Some(sweep);
                    return Err(failure);
                }
            };
            match goes_on {
                true => self.expiries.sweep = Some(sweep),
                false => self.expiries.rest_until_ms = self.now_ms + REST_MS,
            }
        }
        Ok(())
    }

    /// A hash of this table is about to be given an expiry.
    pub(super) fn will_expire(&mut self, index: TableIndex, at_ms: u64) {
        if self.tables[index].overflow_fields().is_some() {
            self.expiries.enqueue_round(at_ms);
        }
    }

    /// Removes a hash if its last field has expired.
    fn remove_if_empty(&mut self, space: usize, key: &[u8]) -> Outcome<()> {
        if self.hash_row_is(space, key)? == Some(false)
            && let Some((index, row)) = self.locate(space, key)
        {
            self.enqueue_orphans(index, row)?;
            self.writer.delete(self.tables[index].table(), row)?;
            self.expiries.removed += 1;
        }
        Ok(())
    }

    /// Whether a hash's row is there, and then whether it has fields.
    fn hash_row_is(&self, space: usize, key: &[u8]) -> Outcome<Option<bool>> {
        let Some((index, row)) = self.locate(space, key) else { return Ok(None) };
        self.hash_at(index, row, |view| view.has_fields())
    }

    /// Looks at some rows; false at the end of the round.
    fn sweep_rows(&mut self, sweep: &mut Sweep, time: CallTime) -> Outcome<bool> {
        let sources = self.sources(sweep.space);
        let Some(source) =
            sources.into_iter().find(|source| sweep.source.as_ref().is_none_or(|s| s <= source))
        else {
            return Ok(self.next_space(sweep));
        };
        let is_same = sweep.source.as_ref() == Some(&source);
        let after = is_same.then(|| std::mem::take(&mut sweep.after)).filter(|after| !after.is_empty());
        sweep.source = Some(source.clone());
        let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
        let (mut seen, mut is_any_unread) = (0, false);
        let mut visited = Ok(());
        let mut last: Option<Box<[u8]>> = None;
        if self.has_expiring_fields(sweep.space, &source) {
            visited = self.visit_rows(
                sweep.space,
                &source,
                after.as_deref(),
                &[],
                ROWS_PER_CALL,
                |index, row_key, row| {
                    seen += 1;
                    match self.last_expiry(index, row, time) {
                        Ok(LastExpiry::At(at)) => {
                            let mut key = Vec::new();
                            self.key_of(index, row_key, &mut key);
                            found.push((at, key));
                        }
                        Ok(LastExpiry::Never) => {}
                        // Of its overflow fields some may be gone by the next round; the rows after it may be read all the same.
                        Ok(LastExpiry::Unknown) | Err(_) => is_any_unread = true,
                    }
                    let goes_on = seen < ROWS_PER_CALL && !time.is_up();
                    last = (!goes_on).then(|| row_key.into());
                    Ok(goes_on)
                },
            );
        }
        for (at, key) in found {
            self.expiries.enqueue(at, sweep.space, &key);
        }
        self.expiries.overflowed |= is_any_unread;
        visited?;
        match last {
            Some(last) => {
                sweep.after = last;
                Ok(true)
            }
            None => Ok(self.next_source(sweep)),
        }
    }

    /// Goes on behind the table that the sweep is in; false at the end of the round.
    fn next_source(&self, sweep: &mut Sweep) -> bool {
        let sources = self.sources(sweep.space).into_iter();
        sweep.after = Box::default();
        match sources.into_iter().find(|next| sweep.source.as_ref().is_none_or(|source| next > source)) {
            Some(next) => {
                sweep.source = Some(next);
                true
            }
            None => self.next_space(sweep),
        }
    }

    fn last_expiry(
        &self,
        index: Option<TableIndex>,
        row: &RowRef<'_>,
        time: CallTime,
    ) -> hedgerow::Result<LastExpiry> {
        let Some(index) = index else { return Ok(LastExpiry::Never) };
        self.view(&self.tables[index], row)?.last_expiry(|| time.is_up())
    }

    fn next_space(&self, sweep: &mut Sweep) -> bool {
        sweep.source = None;
        sweep.space += 1;
        if sweep.space == limits::DATABASES {
            sweep.generation = Some(0);
            return self.overflow_fields.is_some();
        }
        true
    }

    /// Looks at the owners of some generations of overflow fields; false at the end of the round.
    fn sweep_owners(&mut self, sweep: &mut Sweep, mut generation: u64, time: CallTime) -> Outcome<bool> {
        for looks in 0..ROWS_PER_CALL {
            if looks > 0 && time.is_up() {
                break;
            }
            let owner = match &self.overflow_fields {
                Some(overflow_fields) => overflow_fields.next_owner(generation)?,
                None => None,
            };
            let Some((found, space, key)) = owner else { return Ok(false) };
            generation = found;
            let owner = self.owner_expiry(space, &key, found);
            match self.passed_over(owner)? {
                Some(None) => self.expiries.enqueue_orphan(found),
                Some(Some(Some(at_ms))) => self.expiries.enqueue_round(at_ms),
                Some(Some(None)) | None => {}
            }
        }
        sweep.generation = Some(generation);
        Ok(true)
    }

    /// Whether a row points to this generation after all: the write that was to remove it may not have happened.
    fn is_owned(&self, generation: u64) -> Outcome<bool> {
        let Some(overflow_fields) = &self.overflow_fields else { return Ok(false) };
        match overflow_fields.next_owner(generation.saturating_sub(1))? {
            Some((found, space, key)) if found == generation => {
                Ok(self.owner_expiry(space, &key, generation)?.is_some())
            }
            _ => Ok(false),
        }
    }

    /// When the hash of this key expires, if it has the overflow fields of this generation; `None` if it has not.
    fn owner_expiry(&self, space: usize, key: &[u8], generation: u64) -> Outcome<Option<Option<u64>>> {
        if space >= limits::DATABASES {
            return Ok(None);
        }
        let Some((index, row)) = self.locate(space, key) else { return Ok(None) };
        let table = &self.tables[index];
        let Some(field): Option<FieldId> = table.overflow_fields() else { return Ok(None) };
        let owner = table.table().read(row, |row| {
            let overflow_fields = OverflowFields::decode(row.get(field)?);
            let owns = overflow_fields.is_some_and(|of_row| of_row.generation == generation);
            Ok(owns.then(|| row.expires_at_ms()))
        })?;
        Ok(owner.flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(expiries: &Expiries) -> usize {
        expiries.due.iter().map(|(_, _, key)| key.len()).sum()
    }

    #[test]
    fn times_of_long_keys_are_bounded_by_their_bytes() {
        let mut expiries = Expiries::default();
        let key = vec![b'k'; 1 << 16];
        let fit = limits::EXPIRIES_BYTES_MAX / key.len();
        (0..fit as u64).for_each(|n| expiries.enqueue(1_000 + n, 0, &key));
        expiries.enqueue(1_000, 0, &key);
        assert_eq!((expiries.due.len(), expiries.overflowed), (fit, false));
        // The latest ones go, for which there is most time to be found otherwise.
        (0..10).for_each(|n| expiries.enqueue(n, 1, &key));
        expiries.enqueue(5_000, 1, b"short");
        assert_eq!((expiries.due.len(), expiries.overflowed), (fit, true));
        assert_eq!(expiries.due.last().map(|due| due.0), Some(1_000 + fit as u64 - 11));
        assert_eq!(expiries.due_bytes, bytes_of(&expiries));
        assert_eq!(expiries.take_due(5).map(|due| due.0), Some(0));
        assert_eq!((expiries.due.len(), expiries.due_bytes), (fit - 1, bytes_of(&expiries)));
        expiries.forget(0..1);
        assert_eq!((expiries.due.len(), expiries.due_bytes), (9, 9 * key.len()));
        expiries.enqueue(3, 1, b"short");
        expiries.forget_hash(1, b"short", &[2, 3, 4]);
        assert_eq!((expiries.due.len(), expiries.due_bytes), (9, 9 * key.len()));
        [&b"t:1"[..], b"t:2", b"tt:1", b"t"].into_iter().for_each(|key| expiries.enqueue(3, 1, key));
        expiries.forget_table(1, b"t");
        assert_eq!((expiries.due.len(), expiries.due_bytes), (11, 9 * key.len() + 5));
        expiries.forget_table(1, b"tt");
        expiries.forget_hash(1, b"t", &[3]);
        assert_eq!(std::iter::from_fn(|| expiries.take_due(9)).count(), 9);
        assert_eq!((expiries.due_bytes, expiries.take_due(9)), (0, None));
    }
}
