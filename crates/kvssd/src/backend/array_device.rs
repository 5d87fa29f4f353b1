//! One device of an array, and commands on pairs with marks.
//!
//! Owns [`ArrayDevice`]: a device, its two key spaces, and what a condition on a pair comes to. A pair's value on the device is its mark, eight bytes, little-endian, and then the value as rows gave
//! it. Promises that between the look at a pair and the change that depends on it nothing else happens on the device: whoever has `&mut` has the lock. Must not know which keys are whose.

use std::collections::{BTreeMap, HashSet};

use hedgerow_row::backend::{Answer, Expect, Mark, Pair, Ticket};
use hedgerow_row::le_bytes::u64_at;
use hedgerow_row::{Error, ErrorKind, Result as RowResult};

use super::failure::{conflict, refused, refused_change};
use super::intent::{INTENT_GROUP, Intent, MarkedChange};
use crate::code::{KvError, Result};
use crate::command::{
    IteratorContent, KeyPattern, KeyPlace, KvAnswer, KvCommand, LIST_KEYS_MAX, PairKey, SpaceId, StoreMode,
    batch_entries,
};
use crate::device::{Device, Out};
use crate::flash::footer::ENTRY_BYTES;
use crate::flash::record::record_bytes;
use crate::sync::{AtomicU64, Ordering};

/// Bytes of a mark, in front of a value.
pub(super) const MARK_BYTES: usize = 8;
/// A pair that is got comes in one piece if it is no longer.
const FIRST_READ_BYTES: usize = 4096;

/// A command on one pair.
pub(super) struct KeyedCommand {
    pub(super) ticket: Ticket,
    pub(super) key: PairKey,
    pub(super) change: KeyedChange,
}

pub(super) enum KeyedChange {
    Get,
    /// The value, with room for its mark in front.
    Put(Vec<u8>, Expect),
    Delete(Expect),
}

impl KeyedCommand {
    /// Whether what is there has to be looked at first: the device has no such condition of its own.
    fn looks_first(&self) -> bool {
        match &self.change {
            KeyedChange::Get => false,
            KeyedChange::Put(_, expect) => matches!(expect, Expect::Same(_)),
            KeyedChange::Delete(expect) => matches!(expect, Expect::Same(_) | Expect::Absent),
        }
    }
}

/// Pairs of a walk, so many keys as were looked at for them, and where it goes on.
pub(super) struct WalkStep {
    pub(super) pairs: Vec<Pair>,
    pub(super) looked_at: usize,
    pub(super) next: Option<KeyPlace>,
}

/// Answers to commands, as they come.
pub(super) type PairAnswers = Vec<(Ticket, RowResult<Answer>)>;

/// A device that is open, with the key spaces of the array on it.
#[derive(Debug)]
pub(super) struct ArrayDevice {
    /// Among those of the array, from 0.
    place: usize,
    device: Device,
    /// Of the map that it has, durably.
    generation: u64,
    /// Where rows are.
    rows: SpaceId,
    /// Where the map is.
    own: SpaceId,
    out: Out,
}

/// The devices of an array, by their numbers.
pub(super) type MemberDevices = BTreeMap<usize, ArrayDevice>;

/// A command that is complete: its number among those that were given, what came, and its buffer.
type Done = (usize, Result<KvAnswer>, Vec<u8>);

impl ArrayDevice {
    pub(super) fn new(place: usize, device: Device, [rows, own]: [SpaceId; 2]) -> ArrayDevice {
        ArrayDevice { place, device, generation: 0, rows, own, out: Out::default() }
    }

    pub(super) fn place(&self) -> usize {
        self.place
    }

    pub(super) fn set_place(&mut self, place: usize) {
        self.place = place;
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Carries commands out, in their order, and hands each on as it is complete.
    fn run(&mut self, commands: impl IntoIterator<Item = KvCommand>) -> Vec<Done> {
        #[cfg(test)]
        tell_watcher();
        let mut done = Vec::new();
        for (number, command) in commands.into_iter().enumerate() {
            let mut command = Some(command);
            while let Some(next) = command.take() {
                match self.device.submit(number as u64, next) {
                    Ok(()) => {}
                    Err(again) if matches!(again.error, KvError::QueueFull { .. }) => {
                        self.step(&mut done);
                        command = Some(again.command);
                    }
                    Err(no) => done.push((number, Err(no.error), no.command.into_buffer())),
                }
            }
        }
        while self.step(&mut done) {}
        #[cfg(test)]
        tell_watcher();
        done
    }

    /// Whether there is more to do.
    fn step(&mut self, done: &mut Vec<Done>) -> bool {
        let more = self.device.step(0, &mut self.out);
        self.out.events.clear();
        let complete = self.out.completions.drain(..);
        done.extend(
            complete.map(|completion| (completion.tag as usize, completion.result, completion.buffer)),
        );
        more
    }

    pub(super) fn call(&mut self, command: KvCommand) -> Result<KvAnswer> {
        let closed = || KvError::Closed { why: "it did not answer".into() };
        self.run([command]).pop().map_or_else(|| Err(closed()), |(_, result, _)| result)
    }

    /// Keeps what batches are about to do, by the marks of their first changes.
    pub(super) fn store_intents(&mut self, intents: Vec<(u64, Vec<u8>)>) -> Vec<Result<()>> {
        let space = self.own;
        let stores = intents.into_iter().map(|(mark, value)| {
            let key = PairKey::new(&Intent::key_of(mark))?;
            Ok(KvCommand::Store { space, key, value, mode: StoreMode::Post })
        });
        self.run_all(stores.collect())
    }

    /// Removes them.
    pub(super) fn drop_intents(&mut self, marks: &[u64]) -> Vec<Result<()>> {
        let space = self.own;
        let deletes = marks.iter().map(|&mark| {
            let key = PairKey::new(&Intent::key_of(mark))?;
            Ok(KvCommand::Delete { space, key, must_exist: false })
        });
        self.run_all(deletes.collect())
    }

    /// What was kept and not removed.
    pub(super) fn intents(&mut self) -> Result<Vec<Intent>> {
        let (mut intents, mut from) = (Vec::new(), Some(KeyPlace::default()));
        while let Some(place) = from {
            let list = KvCommand::ListKeys { space: self.own, group: INTENT_GROUP, from: place, keys: 256 };
            let (keys, unreadable, next) = match self.call(list)? {
                KvAnswer::Keys { keys, unreadable, next } => (keys, unreadable, next),
                _ => (Vec::new(), 0, None),
            };
            if unreadable > 0 {
                return Err(KvError::Damaged {
                    offset: 0,
                    what: "what a change of several pairs was about to do",
                });
            }
            for key in keys {
                intents.push(self.intent(key)?);
            }
            from = next;
        }
        Ok(intents)
    }

    fn intent(&mut self, key: PairKey) -> Result<Intent> {
        let buffer = vec![0; self.device.geometry().value_bytes_max() as usize];
        let read = KvCommand::Retrieve { space: self.own, key, offset: 0, buffer, delete: false };
        let damaged = KvError::Damaged { offset: 0, what: "what a change of several pairs was about to do" };
        match self.run([read]).pop() {
            Some((_, Ok(_), bytes)) => Intent::decode(&bytes).ok_or(damaged),
            Some((_, Err(error), _)) => Err(error),
            None => Err(damaged),
        }
    }

    /// Makes changes, each with its mark.
    pub(super) fn make_changes(&mut self, changes: Vec<(&MarkedChange, u64)>) -> Vec<Result<()>> {
        let space = self.rows;
        let commands = changes.into_iter().map(|(MarkedChange { key, value }, mark)| {
            let key = key.clone();
            Ok(match value {
                Some(value) => {
                    let value = [&mark.to_le_bytes(), &value[..]].concat();
                    KvCommand::Store { space, key, value, mode: StoreMode::Post }
                }
                None => KvCommand::Delete { space, key, must_exist: false },
            })
        });
        self.run_all(commands.collect())
    }

    /// How each of these ends. What is wrong by itself is not begun.
    fn run_all(&mut self, commands: Vec<Result<KvCommand>>) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = Vec::with_capacity(commands.len());
        let (mut begun, mut right) = (Vec::new(), Vec::new());
        for (place, command) in commands.into_iter().enumerate() {
            results.push(match command {
                Ok(command) => {
                    begun.push(place);
                    right.push(command);
                    Err(KvError::Closed { why: "it did not answer".into() })
                }
                Err(error) => Err(error),
            });
        }
        for (number, result, _) in self.run(right) {
            results[begun[number]] = result.map(drop);
        }
        results
    }

    /// Has the device make room for so many bytes, as [`ArrayDevice::charge`] counts.
    pub(super) fn make_room(&mut self, bytes: u64) -> Result<()> {
        self.device.make_room(bytes)
    }

    /// What a pair takes of the device's capacity.
    pub(super) fn charge(key_bytes: usize, value_bytes: usize) -> u64 {
        (record_bytes(key_bytes, value_bytes) + ENTRY_BYTES) as u64
    }

    /// Stores a pair of the array's own.
    pub(super) fn put_own(&mut self, key: &[u8], value: Vec<u8>) -> Result<()> {
        let (space, key) = (self.own, PairKey::new(key)?);
        self.call(KvCommand::Store { space, key, value, mode: StoreMode::Post }).map(drop)
    }

    /// A pair of the array's own, of so many bytes at most.
    pub(super) fn own_value(&mut self, key: &[u8], bytes_max: usize) -> Result<Option<Vec<u8>>> {
        let (space, key, buffer) = (self.own, PairKey::new(key)?, vec![0; bytes_max]);
        let read = KvCommand::Retrieve { space, key, offset: 0, buffer, delete: false };
        match self.run([read]).pop() {
            Some((_, Ok(_), value)) => Ok(Some(value)),
            Some((_, Err(KvError::KeyMissing), _)) => Ok(None),
            Some((_, Err(error), _)) => Err(error),
            None => Err(KvError::Closed { why: "it did not answer".into() }),
        }
    }

    /// Stores a pair of the array's own, durably.
    pub(super) fn store_own(&mut self, key: &[u8], value: Vec<u8>) -> Result<()> {
        self.put_own(key, value)?;
        // PERSIST: what the array says of itself is durable before anything rests on it.
        self.flush()
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.call(KvCommand::Flush).map(drop)
    }

    pub(super) fn value_bytes_max(&self) -> usize {
        self.device.geometry().value_bytes_max() as usize - MARK_BYTES
    }

    pub(super) fn device(&mut self) -> &mut Device {
        &mut self.device
    }

    pub(super) fn close(self) -> Result<()> {
        self.device.close()
    }

    /// Carries commands on pairs out. Those of one key happen one after the other, in their order.
    pub(super) fn answer(
        &mut self,
        marks: &AtomicU64,
        commands: Vec<KeyedCommand>,
        answered: &mut PairAnswers,
    ) {
        let mut left = commands;
        while !left.is_empty() {
            // Of each key the first: what comes behind it may depend on it.
            let mut keys = HashSet::with_capacity(left.len());
            let is_first: Vec<bool> =
                left.iter().map(|command| keys.insert(command.key.bytes().to_vec())).collect();
            let mut is_first = is_first.into_iter();
            let (round, later) = left.into_iter().partition(|_| is_first.next().unwrap_or(true));
            left = later;
            let round = self.check(round, answered);
            self.carry_out(marks, round, answered);
        }
    }

    /// Answers those whose condition does not hold; gives back the others.
    fn check(&mut self, commands: Vec<KeyedCommand>, answered: &mut PairAnswers) -> Vec<KeyedCommand> {
        let looks: Vec<PairKey> = commands
            .iter()
            .filter(|command| command.looks_first())
            .map(|command| command.key.clone())
            .collect();
        if looks.is_empty() {
            return commands;
        }
        let mut seen = self.marks_of(looks).into_iter();
        let place = self.place;
        let holds = |command: KeyedCommand| -> Option<KeyedCommand> {
            if !command.looks_first() {
                return Some(command);
            }
            let seen = seen.next().unwrap_or(Ok(None));
            let answer = match (&command.change, seen) {
                (_, Err(error)) => Err(pair_refused(place, &error)),
                (
                    KeyedChange::Put(_, Expect::Same(mark)) | KeyedChange::Delete(Expect::Same(mark)),
                    Ok(seen),
                ) => {
                    if seen == Some(*mark) {
                        return Some(command);
                    }
                    Err(conflict())
                }
                (KeyedChange::Delete(_), Ok(None)) => Ok(Answer::Deleted(false)),
                _ => Err(conflict()),
            };
            answered.push((command.ticket, answer));
            None
        };
        commands.into_iter().filter_map(holds).collect()
    }

    /// The marks of the pairs under these keys.
    pub(super) fn marks_of(&mut self, keys: Vec<PairKey>) -> Vec<Result<Option<Mark>>> {
        let (space, count) = (self.rows, keys.len());
        let head = |key| {
            let buffer = vec![0; MARK_BYTES];
            KvCommand::Retrieve { space, key, offset: 0, buffer, delete: false }
        };
        let mut marks: Vec<Result<Option<Mark>>> = (0..count).map(|_| Ok(None)).collect();
        for (number, result, buffer) in self.run(keys.into_iter().map(head)) {
            marks[number] = match result {
                Ok(_) | Err(KvError::BufferSmall { .. }) => mark_of(&buffer).map(Some),
                Err(KvError::KeyMissing) => Ok(None),
                Err(error) => Err(error),
            };
        }
        marks
    }

    /// Carries commands out whose conditions hold, or are the device's own.
    fn carry_out(&mut self, marks: &AtomicU64, round: Vec<KeyedCommand>, answered: &mut PairAnswers) {
        let rows = self.rows;
        let mut asked = Vec::with_capacity(round.len());
        let commands: Vec<KvCommand> = round
            .into_iter()
            .map(|command| {
                // A mark is drawn under the lock: those of a key rise.
                let (asks, command) = command.on_device(rows, || marks.fetch_add(1, Ordering::Relaxed));
                asked.push(asks);
                command
            })
            .collect();
        let mut longer = Vec::new();
        for (number, mut result, buffer) in self.run(commands) {
            let asks = &asked[number];
            if let (Err(KvError::DeviceFull { .. }), AskKind::Stored(_, mode)) = (&result, &asks.what) {
                result = self.store_until_full(result, &asks.key, &buffer, *mode);
            }
            match (result, &asks.what) {
                (Err(KvError::BufferSmall { needed, .. }), AskKind::Pair) => {
                    longer.push((number, needed as usize))
                }
                (result, _) => answered.push((asks.ticket, asks.answer(self.place, result, buffer))),
            }
        }
        let whole = longer.iter().map(|&(number, bytes)| {
            let (key, buffer) = (asked[number].key.clone(), vec![0; bytes]);
            KvCommand::Retrieve { space: rows, key, offset: 0, buffer, delete: false }
        });
        for (number, result, buffer) in self.run(whole.collect::<Vec<_>>()) {
            let asks = &asked[longer[number].0];
            answered.push((asks.ticket, asks.answer(self.place, result, buffer)));
        }
    }

    /// Where deletions wait for gc each refusal has it work on one block: the store is given again as long as it does.
    fn store_until_full(
        &mut self,
        mut result: Result<KvAnswer>,
        key: &PairKey,
        value: &[u8],
        mode: StoreMode,
    ) -> Result<KvAnswer> {
        for _ in 0..self.device.geometry().blocks {
            let stalls = self.device.gc_counters().stalls;
            let (space, key, value) = (self.rows, key.clone(), value.to_vec());
            result = self.call(KvCommand::Store { space, key, value, mode });
            let is_full = matches!(result, Err(KvError::DeviceFull { .. }));
            if !is_full || self.device.gc_counters().stalls == stalls {
                break;
            }
        }
        result
    }

    /// Those of some pairs of a group, from a place on, that are this device's to tell of.
    pub(super) fn walk(
        &mut self,
        group: u32,
        from: KeyPlace,
        pairs: usize,
        is_told: impl Fn(&[u8]) -> bool,
    ) -> RowResult<WalkStep> {
        let place = self.place;
        let list = KvCommand::ListKeys { space: self.rows, group, from, keys: pairs };
        let (keys, unreadable, next) = match self.call(list) {
            Ok(KvAnswer::Keys { keys, unreadable, next }) => (keys, unreadable, next),
            Ok(_) => return Err(Error::new(ErrorKind::Io, "the device answered something else than keys")),
            Err(error) => return Err(refused(place, &error)),
        };
        let looked_at = keys.len();
        let keys: Vec<PairKey> = keys.into_iter().filter(|key| is_told(key.bytes())).collect();
        let mut answered = Vec::with_capacity(keys.len());
        let gets = keys.iter().enumerate().map(|(n, key)| KeyedCommand {
            ticket: Ticket::new(n as u64),
            key: key.clone(),
            change: KeyedChange::Get,
        });
        self.carry_out(&AtomicU64::new(0), gets.collect(), &mut answered);
        // What nobody can read is told as a pair that is no row, so that a walk goes on behind it.
        let unread = |key: &[u8]| Pair { key: key.into(), value: [].into(), mark: Mark::new(0) };
        let mut walked: Vec<Pair> = (0..unreadable).map(|_| unread(&group.to_be_bytes())).collect();
        for (ticket, answer) in answered {
            match answer {
                Ok(Answer::Got(pair)) => walked.extend(pair),
                Err(error) if matches!(error.kind(), ErrorKind::Corrupted) => {
                    walked.push(unread(keys[ticket.number() as usize].bytes()));
                }
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(WalkStep { pairs: walked, looked_at, next })
    }

    /// Counts the pairs of a group that are this device's to tell of, where others may be on it.
    pub(super) fn count_own(&mut self, group: u32, is_told: impl Fn(&[u8]) -> bool) -> RowResult<u64> {
        let (mut counted, mut from) = (0, Some(KeyPlace::default()));
        while let Some(place) = from {
            let list = KvCommand::ListKeys { space: self.rows, group, from: place, keys: LIST_KEYS_MAX };
            match self.call(list).map_err(|error| refused(self.place, &error))? {
                KvAnswer::Keys { keys, unreadable, next } => {
                    counted += keys.iter().filter(|key| is_told(key.bytes())).count() as u64;
                    (counted, from) = (counted + u64::from(unreadable), next);
                }
                _ => from = None,
            }
        }
        Ok(counted)
    }

    pub(super) fn count(&mut self, group: u32) -> RowResult<u64> {
        let (mut counted, mut from) = (0, Some(KeyPlace::default()));
        while let Some(place) = from {
            let count = KvCommand::CountKeys { space: self.rows, group, from: place };
            match self.call(count).map_err(|error| refused(self.place, &error))? {
                KvAnswer::Counted { keys, next } => (counted, from) = (counted + keys, next),
                _ => from = None,
            }
        }
        Ok(counted)
    }

    pub(super) fn clear(&mut self, group: u32) -> RowResult<()> {
        let selected = KeyPattern::prefix(&group.to_be_bytes());
        let delete = KvCommand::DeleteGroup { space: self.rows, selected };
        self.call(delete).map(drop).map_err(|error| refused_change(self.place, &error))
    }

    pub(super) fn persist(&mut self) -> RowResult<()> {
        self.flush().map_err(|error| refused(self.place, &error))
    }
}

/// Whose iterators those are that go over all keys of a device. Nobody else opens one.
const WALKER: u64 = u64::MAX;
/// Bytes of keys that are listed at once: 15 keys at least.
const KEYS_BYTES: usize = 4096;

/// All pairs as they are on the device, for who moves them.
impl ArrayDevice {
    /// Begins to go over all keys. One that was begun before ends.
    pub(super) fn begin_keys(&mut self) -> Result<u32> {
        self.call(KvCommand::CloseIterators { owner: WALKER })?;
        let (space, selected) = (self.rows, KeyPattern::ALL);
        let open = KvCommand::OpenIterator { space, selected, content: IteratorContent::Keys, owner: WALKER };
        match self.call(open)? {
            KvAnswer::Iterator(iterator) => Ok(iterator),
            _ => Err(KvError::SpaceMissing),
        }
    }

    pub(super) fn end_keys(&mut self) -> Result<()> {
        self.call(KvCommand::CloseIterators { owner: WALKER }).map(drop)
    }

    /// Some keys more, and whether they are the last. A key that is there from the beginning to the end comes.
    pub(super) fn next_keys(&mut self, iterator: u32) -> Result<(Vec<PairKey>, bool)> {
        let next = KvCommand::IterateNext { iterator, buffer: vec![0; KEYS_BYTES] };
        let Some((_, result, buffer)) = self.run([next]).pop() else { return Err(KvError::SpaceMissing) };
        let KvAnswer::Batch { end, .. } = result? else { return Err(KvError::SpaceMissing) };
        let entries = batch_entries(&buffer, IteratorContent::Keys)?;
        let keys = entries.into_iter().map(|(key, _)| PairKey::new(key)).collect::<Result<_>>()?;
        Ok((keys, end))
    }

    /// A pair's value with its mark.
    pub(super) fn marked_value(&mut self, key: &PairKey) -> Result<Option<Vec<u8>>> {
        let mut bytes = FIRST_READ_BYTES;
        loop {
            let (space, key, buffer) = (self.rows, key.clone(), vec![0; bytes]);
            let read = KvCommand::Retrieve { space, key, offset: 0, buffer, delete: false };
            let Some((_, result, buffer)) = self.run([read]).pop() else {
                return Err(KvError::SpaceMissing);
            };
            match result {
                Ok(_) => return Ok(Some(buffer)),
                Err(KvError::KeyMissing) => return Ok(None),
                Err(KvError::BufferSmall { needed, .. }) if needed as usize > bytes => {
                    bytes = needed as usize
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Has a pair be as it is elsewhere: with this value and the mark in front of it, or not there.
    pub(super) fn set_marked(&mut self, key: &PairKey, value: Option<Vec<u8>>) -> Result<()> {
        let Some(value) = value else { return self.delete_pairs([key.clone()]) };
        let (space, of, kept) = (self.rows, key.clone(), value.clone());
        let result = self.call(KvCommand::Store { space, key: of, value, mode: StoreMode::Post });
        match result {
            Err(KvError::DeviceFull { .. }) => {
                self.store_until_full(result, key, &kept, StoreMode::Post).map(drop)
            }
            result => result.map(drop),
        }
    }

    /// The same of several, together. How each of them ends.
    pub(super) fn set_all_marked(&mut self, pairs: Vec<(PairKey, Option<Vec<u8>>)>) -> Vec<Result<()>> {
        let space = self.rows;
        let command = |(key, value): (PairKey, Option<Vec<u8>>)| match value {
            Some(value) => KvCommand::Store { space, key, value, mode: StoreMode::Post },
            None => KvCommand::Delete { space, key, must_exist: false },
        };
        let keys: Vec<PairKey> = pairs.iter().map(|(key, _)| key.clone()).collect();
        let is_store: Vec<bool> = pairs.iter().map(|(_, value)| value.is_some()).collect();
        let closed = || Err(KvError::Closed { why: "it did not answer".into() });
        let mut results: Vec<Result<()>> = keys.iter().map(|_| closed()).collect();
        for (number, result, value) in self.run(pairs.into_iter().map(command).collect::<Vec<_>>()) {
            let result = match result {
                Err(KvError::DeviceFull { .. }) if is_store[number] => {
                    self.store_until_full(result, &keys[number], &value, StoreMode::Post)
                }
                result => result,
            };
            results[number] = result.map(drop);
        }
        results
    }

    pub(super) fn delete_pairs(&mut self, keys: impl IntoIterator<Item = PairKey>) -> Result<()> {
        let space = self.rows;
        let deletes = keys.into_iter().map(|key| KvCommand::Delete { space, key, must_exist: false });
        self.run(deletes.collect::<Vec<_>>()).into_iter().try_for_each(|(_, result, _)| result.map(drop))
    }
}

#[cfg(test)]
thread_local! {
    /// Told before and after each time that a device of an array does anything: in between no other one does.
    pub(super) static WATCHER: std::cell::RefCell<Option<Box<dyn FnMut()>>> =
        const { std::cell::RefCell::new(None) };
}

#[cfg(test)]
fn tell_watcher() {
    WATCHER.with_borrow_mut(|watcher| watcher.as_mut().map_or((), |tell| tell()));
}

/// What is asked of the device, for the answer.
struct Asks {
    ticket: Ticket,
    key: PairKey,
    what: AskKind,
}

enum AskKind {
    Pair,
    /// What is to be stored has this mark.
    Stored(Mark, StoreMode),
    Deleted,
}

impl KeyedCommand {
    fn on_device(self, space: SpaceId, mark: impl FnOnce() -> u64) -> (Asks, KvCommand) {
        let KeyedCommand { ticket, key, change } = self;
        let of = key.clone();
        let (what, command) = match change {
            KeyedChange::Get => {
                let buffer = vec![0; FIRST_READ_BYTES];
                (AskKind::Pair, KvCommand::Retrieve { space, key, offset: 0, buffer, delete: false })
            }
            KeyedChange::Put(mut value, expect) => {
                let mark = mark();
                value[..MARK_BYTES].copy_from_slice(&mark.to_le_bytes());
                let mode = match expect {
                    Expect::Absent => StoreMode::NoOverwrite,
                    Expect::Present => StoreMode::UpdateOnly,
                    Expect::Any | Expect::Same(_) => StoreMode::Post,
                };
                (AskKind::Stored(Mark::new(mark), mode), KvCommand::Store { space, key, value, mode })
            }
            KeyedChange::Delete(expect) => {
                let must_exist = expect == Expect::Present;
                (AskKind::Deleted, KvCommand::Delete { space, key, must_exist })
            }
        };
        (Asks { ticket, key: of, what }, command)
    }
}

impl Asks {
    fn answer(&self, device: usize, result: Result<KvAnswer>, buffer: Vec<u8>) -> RowResult<Answer> {
        match (&self.what, result) {
            (AskKind::Pair, Ok(_)) => {
                let mark = mark_of(&buffer).map_err(|error| refused(device, &error))?;
                let (key, value) = (self.key.bytes().into(), buffer[MARK_BYTES..].into());
                Ok(Answer::Got(Some(Pair { key, value, mark })))
            }
            (AskKind::Pair, Err(KvError::KeyMissing)) => Ok(Answer::Got(None)),
            (AskKind::Pair, Err(error)) => Err(pair_refused(device, &error)),
            (AskKind::Stored(mark, _), Ok(_)) => Ok(Answer::Stored(*mark)),
            (AskKind::Deleted, Ok(KvAnswer::Deleted(existed))) => Ok(Answer::Deleted(existed)),
            (AskKind::Deleted, Ok(_)) => Ok(Answer::Deleted(true)),
            (_, Err(KvError::KeyMissing | KvError::KeyExists)) => Err(conflict()),
            (_, Err(error)) => Err(refused_change(device, &error)),
        }
    }
}

/// Of a read: what cannot be read is damage to a row, whoever says so.
pub(super) fn pair_refused(device: usize, error: &KvError) -> Error {
    match error {
        KvError::ReadFault { .. } => Error::corrupted(format!("device {}: {error}", device + 1)),
        error => refused(device, error),
    }
}

fn mark_of(value: &[u8]) -> Result<Mark> {
    match value.len() {
        MARK_BYTES.. => Ok(Mark::new(u64_at(value, 0))),
        _ => Err(KvError::Damaged { offset: 0, what: "a pair with a mark" }),
    }
}
