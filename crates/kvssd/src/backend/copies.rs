//! Commands on arrays that have two copies of each shard.
//!
//! Owns the order in which the two copies of a pair change, and what becomes of an array as one of its devices fails. Promises that a change is answered once both copies have it, or once the map says durably that the device of the other one is out; that
//! a command which is refused leaves both copies as they were; and that what a device that failed was to answer, the other copy does. Must not know how maps are compared as an array is opened.
//!
//! A change, under the locks of both devices: the conditions are compared with the first copy, which is the truth; a bit says that the shard is being written ([`ShardWrites`](super::writes::ShardWrites)); the second copy is changed, then the first. So
//! what nobody has answered is on the second one alone, and where a crash comes between the first one has the last word. A second device without room refuses before anything is changed; where the first one has none the second is put back.
//!
//! Nobody who holds a device can change the map. So what one of two devices refused is kept in an [`Outcome`], and answered when that device is out: the map without it is stored on all others, whichever of them fails then being out, too. Nothing is put out
//! of which there is no other copy.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use hedgerow_row::backend::{Answer, Expect, Mark, Ticket};
use hedgerow_row::{Error, ErrorKind, Result};

use super::Array;
use super::array_device::{ArrayDevice, KeyedChange, KeyedCommand, MARK_BYTES, PairAnswers, pair_refused};
use super::batch::KeyedBatch;
use super::failure::{ArrayError, ArrayResult, closed, conflict, refused, refused_change};
use super::layout::{Layout, LockedDevices};
use super::map::ArrayMap;
use super::outcome::Outcome;
use super::writes::ShardSet;
use crate::code::{KvError, Result as KvResult};
use crate::command::PairKey;
use crate::sync::Ordering;

/// A change whose condition holds.
struct PlannedChange {
    command: KeyedCommand,
    mark: u64,
    second: Option<usize>,
    /// Why its second copy was not made.
    second_refused: Option<KvError>,
}

impl PlannedChange {
    /// What is to be under its key, with the mark.
    fn pair(&self) -> (PairKey, Option<Vec<u8>>) {
        let value = match &self.command.change {
            KeyedChange::Put(value, _) => {
                let mut value = value.clone();
                value[..MARK_BYTES].copy_from_slice(&self.mark.to_le_bytes());
                Some(value)
            }
            KeyedChange::Get | KeyedChange::Delete(_) => None,
        };
        (self.command.key.clone(), value)
    }

    fn answer(&self) -> Answer {
        match self.command.change {
            KeyedChange::Put(..) => Answer::Stored(Mark::new(self.mark)),
            KeyedChange::Get | KeyedChange::Delete(_) => Answer::Deleted(true),
        }
    }
}

/// Whether a device will do nothing more until it is opened again.
fn has_failed(error: &KvError) -> bool {
    matches!(error, KvError::Closed { .. } | KvError::Medium(_))
}

/// Whether a refusal says nothing of the device.
fn is_full(error: &KvError) -> bool {
    matches!(error, KvError::DeviceFull { .. } | KvError::SpaceFull { .. })
}

fn not_open() -> KvError {
    KvError::Closed { why: "the array is closed".into() }
}

impl Array {
    /// Carries commands out, of which some may be answered only when devices that failed are out.
    pub(super) fn answer_copied(
        &self,
        mut pairs: Vec<KeyedCommand>,
        mut batches: Vec<KeyedBatch>,
        answered: &mut PairAnswers,
    ) {
        while !pairs.is_empty() || !batches.is_empty() {
            let (mut outcome, kept) = (Outcome::default(), batches.clone());
            let failing = {
                let layout = self.layout.read();
                self.answer_pairs(&layout, std::mem::take(&mut pairs), &mut outcome);
                self.answer_batches(&layout, std::mem::take(&mut batches), &mut outcome);
                // A batch that a device refused before it was begun.
                let is_refused = |(ticket, answer): &(Ticket, Result<Answer>)| {
                    is_of_device(answer) && kept.iter().any(|batch| batch.ticket == *ticket)
                };
                match outcome.answered.iter().any(is_refused) {
                    true => failing(&layout),
                    false => BTreeSet::new(),
                }
            };
            let of_commands = outcome.again.iter().map(|(device, _)| *device);
            let of_answers = outcome.relying.iter().flat_map(|(_, _, devices)| devices.iter().copied());
            let numbers: BTreeSet<usize> =
                of_commands.chain(of_answers).chain(failing.iter().copied()).collect();
            let out: BTreeMap<usize, ArrayResult<()>> =
                numbers.into_iter().map(|number| (number, self.put_out(number))).collect();
            let stays =
                |devices: &BTreeSet<usize>| devices.iter().find_map(|number| out[number].as_ref().err());
            for (ticket, answer) in outcome.answered {
                let batch = kept.iter().find(|batch| batch.ticket == ticket);
                match batch
                    .filter(|_| is_of_device(&answer) && failing.iter().any(|number| out[number].is_ok()))
                {
                    Some(batch) => batches.push(batch.clone()),
                    None => answered.push((ticket, answer)),
                }
            }
            for (ticket, answer, devices) in outcome.relying {
                let answer = match stays(&devices) {
                    Some(error) => Err(Error::new(
                        ErrorKind::Indeterminate,
                        format!(
                            "one copy was changed, and the other one's device cannot be put out: {error}"
                        ),
                    )),
                    None => answer,
                };
                answered.push((ticket, answer));
            }
            for (device, command) in outcome.again {
                match &out[&device] {
                    Ok(()) => pairs.push(command),
                    Err(error) => answered.push((command.ticket, Err(error.clone().into()))),
                }
            }
        }
    }

    /// Carries out commands on keys whose first copy is on one device, but those that are held by then, which are given back.
    pub(super) fn answer_share(
        &self,
        layout: &Layout,
        first: usize,
        commands: Vec<KeyedCommand>,
        is_held: impl FnMut(&KeyedCommand) -> bool,
        outcome: &mut Outcome,
    ) -> Vec<KeyedCommand> {
        let map = layout.map();
        let numbers = commands.iter().flat_map(|command| {
            let key = command.key.bytes();
            map.second_of(key).into_iter().chain(map.target_of(key))
        });
        let mut locked = layout.lock(numbers.chain([first]));
        let (held, mut left): (Vec<_>, Vec<_>) = commands.into_iter().partition(is_held);
        while !left.is_empty() {
            // Of each key the first: what comes behind it may depend on it.
            let mut keys = HashSet::with_capacity(left.len());
            let (round, later): (Vec<KeyedCommand>, _) =
                left.into_iter().partition(|command| keys.insert(command.key.bytes().to_vec()));
            left = later;
            let (gets, changes) =
                round.into_iter().partition(|command| matches!(command.change, KeyedChange::Get));
            self.read_round(map, &mut locked, first, gets, outcome);
            self.change_round(layout, &mut locked, first, changes, outcome);
        }
        held
    }

    /// Reads first copies, and second ones of what nobody can read there.
    fn read_round(
        &self,
        map: &ArrayMap,
        locked: &mut LockedDevices<'_>,
        first: usize,
        gets: Vec<KeyedCommand>,
        outcome: &mut Outcome,
    ) {
        let Some(device) = locked.device(first).filter(|_| !gets.is_empty()) else {
            outcome.answered.extend(gets.into_iter().map(|get| (get.ticket, Err(closed()))));
            return;
        };
        let keys: HashMap<Ticket, PairKey> = gets.iter().map(|get| (get.ticket, get.key.clone())).collect();
        let get = |ticket, key| KeyedCommand { ticket, key, change: KeyedChange::Get };
        let mut answers = PairAnswers::new();
        device.answer(&self.marks, gets, &mut answers);
        for (ticket, answer) in answers {
            let kind = answer.as_ref().err().map(Error::kind);
            let second = kind.and_then(|_| map.second_of(keys[&ticket].bytes()));
            let key = keys[&ticket].clone();
            match (kind, second) {
                (Some(ErrorKind::Corrupted), Some(second)) => {
                    let mut other = PairAnswers::new();
                    if let Some(device) = locked.device(second) {
                        device.answer(&self.marks, vec![get(ticket, key)], &mut other);
                    }
                    let other = other.pop().map(|(_, answer)| answer).filter(Result::is_ok);
                    outcome.answered.push((ticket, other.unwrap_or(answer)));
                }
                (Some(_), Some(_)) if is_of_device(&answer) => outcome.begin_again(first, get(ticket, key)),
                _ => outcome.answered.push((ticket, answer)),
            }
        }
    }

    fn change_round(
        &self,
        layout: &Layout,
        locked: &mut LockedDevices<'_>,
        first: usize,
        commands: Vec<KeyedCommand>,
        outcome: &mut Outcome,
    ) {
        let planned = self.plan(layout.map(), locked, first, commands, outcome);
        if planned.is_empty() {
            return;
        }
        let begun = self.begin_shards(layout, locked, planned.iter().map(|change| &change.command.key));
        if let Some((_, error)) = begun.first() {
            let place = locked.device(first).map_or(first, |device| device.place());
            for PlannedChange { command, .. } in planned {
                match is_full(error) {
                    true => outcome.answered.push((command.ticket, Err(refused(place, error)))),
                    // Those of one copy wait with the others: they are as likely to fail.
                    false => outcome.begin_again(first, command),
                }
            }
            return;
        }
        let planned = change_seconds(locked, planned, outcome);
        let results = match locked.device(first) {
            Some(device) => device.set_all_marked(planned.iter().map(PlannedChange::pair).collect()),
            None => planned.iter().map(|_| Err(not_open())).collect(),
        };
        for (change, result) in planned.into_iter().zip(results) {
            let key = change.command.key.clone();
            let is_changed = result.is_ok() || result.as_ref().is_err_and(has_failed);
            if let Some(to) = layout.map().target_of(key.bytes()).filter(|_| is_changed) {
                layout.copy_changed(locked, &key, (first, to));
            }
            let place = locked.device(first).map_or(first, |device| device.place());
            tell_change(locked, first, place, change, result, outcome);
        }
    }

    /// Answers changes whose condition does not hold; the others, with their marks.
    fn plan(
        &self,
        map: &ArrayMap,
        locked: &mut LockedDevices<'_>,
        first: usize,
        commands: Vec<KeyedCommand>,
        outcome: &mut Outcome,
    ) -> Vec<PlannedChange> {
        let Some(device) = locked.device(first).filter(|_| !commands.is_empty()) else {
            outcome.answered.extend(commands.into_iter().map(|command| (command.ticket, Err(closed()))));
            return Vec::new();
        };
        let place = device.place();
        let seen = device.marks_of(commands.iter().map(|command| command.key.clone()).collect());
        let mut planned = Vec::with_capacity(commands.len());
        for (command, seen) in commands.into_iter().zip(seen) {
            let second = map.second_of(command.key.bytes());
            let seen = match (seen, second) {
                (Err(error), Some(_)) if has_failed(&error) => {
                    outcome.begin_again(first, command);
                    continue;
                }
                // A pair that nobody can read: the other copy says what it is.
                (Err(_), Some(second)) => mark_on(locked, second, &command.key),
                (seen, _) => seen,
            };
            let answer = match seen {
                Err(error) => Err(pair_refused(place, &error)),
                Ok(seen) => match holds(&command.change, seen) {
                    Ok(true) => {
                        // A mark is drawn under the locks: those of a key rise.
                        let mark = self.marks.fetch_add(1, Ordering::Relaxed);
                        planned.push(PlannedChange { command, mark, second, second_refused: None });
                        continue;
                    }
                    Ok(false) => Ok(Answer::Deleted(false)),
                    Err(error) => Err(error),
                },
            };
            outcome.answered.push((command.ticket, answer));
        }
        planned
    }

    /// Says durably that the shards of these keys are being written, where there are two copies of them; the devices that did not take it. For who has locked those of the first copies.
    pub(super) fn begin_shards<'k>(
        &self,
        layout: &Layout,
        locked: &mut LockedDevices<'_>,
        keys: impl Iterator<Item = &'k PairKey>,
    ) -> Vec<(usize, KvError)> {
        let map = layout.map();
        let mut of_device: BTreeMap<usize, ShardSet> = BTreeMap::new();
        for key in keys.filter(|key| map.second_of(key.bytes()).is_some()) {
            let shards = of_device.entry(map.device_of(key.bytes())).or_insert(ShardSet::NONE);
            shards.insert(map.shard(key.bytes()));
        }
        let mut refused = Vec::new();
        for (number, shards) in of_device {
            let begun = self.begin_on(map, locked, number, &shards);
            refused.extend(begun.err().map(|error| (number, error)));
        }
        refused
    }

    /// The same of all shards.
    pub(super) fn begin_all(&self, layout: &Layout, locked: &mut LockedDevices<'_>) -> Result<()> {
        for number in layout.numbers() {
            let begun =
                self.begin_on(layout.map(), locked, number, &ShardSet::ALL.of_device(layout.map(), number));
            let place = locked.device(number).map_or(number, |device| device.place());
            begun.map_err(|error| refused(place, &error))?;
        }
        Ok(())
    }

    fn begin_on(
        &self,
        map: &ArrayMap,
        locked: &mut LockedDevices<'_>,
        number: usize,
        shards: &ShardSet,
    ) -> KvResult<()> {
        let lacking = self.writes.lock().begin(map, number, shards);
        let Some(said) = lacking else { return Ok(()) };
        let device = locked.device(number).ok_or_else(not_open)?;
        // PERSIST: a bit is durable before either copy changes.
        said.store(device)?;
        self.writes.lock().mark(shards);
        Ok(())
    }

    /// Makes everything durable, and says of shards that nobody writes any more that their copies are the same.
    pub(super) fn persist_copied(&self, layout: &Layout) -> Result<()> {
        let _flushing = self.flushing.lock();
        let written = self.writes.lock().begin_flush();
        layout.on_each(ArrayDevice::persist)?;
        self.settle_intents(layout).map_err(Error::from)?;
        for number in layout.numbers() {
            // What fails is told to whoever needs the device: too many bits do no harm.
            drop(
                layout.with(number, |device| {
                    self.writes.lock().end_flush(device, number, layout.map(), &written)
                }),
            );
        }
        Ok(())
    }

    /// Puts a device out that failed. Whichever of the others does not take the map without it is out, too.
    ///
    /// # Errors
    /// [`ArrayError::NoCopy`]: what it has no other device has, or those that have it failed. It stays then.
    pub(super) fn put_out(&self, number: usize) -> ArrayResult<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(ArrayError::Closed);
        }
        self.put_out_of(&mut self.layout.write(), number)
    }

    /// The same for who has the layout to himself.
    pub(super) fn put_out_of(&self, layout: &mut Layout, number: usize) -> ArrayResult<()> {
        let map = layout.map().clone();
        let mut out = BTreeSet::from([number as u16]);
        if !map.in_members().any(|member| usize::from(member) == number) {
            // Somebody else did, or it never came to be in.
            layout.forget_out();
            return Ok(());
        }
        let (mut next, mut is_stored) = (map.clone(), false);
        loop {
            let shards = map.shards_only_on(&out);
            if shards > 0 {
                if is_stored {
                    self.keep_in(layout, next.generation);
                }
                let places = out.iter().filter_map(|number| map.place_of(*number));
                let devices: Vec<usize> = places.map(|place| place + 1).collect();
                let why = Box::new(ArrayError::Out { device: devices.first().copied().unwrap_or(0) });
                return Err(ArrayError::NoCopy { shards, devices, why });
            }
            out.iter().for_each(|number| next.put_out(*number));
            let lags = |number: usize| {
                map.in_members().any(|member| usize::from(member) == number)
                    && !out.contains(&(number as u16))
            };
            // Not by more than one above what a device has that stays: it would be too old as it comes back.
            let is_level = !layout.behind().into_iter().any(lags);
            next.generation = map.generation + u64::from(is_level);
            next.marks = self.next_marks();
            is_stored = true;
            // PERSIST: all others know, with everything that they have, before what one copy alone has is answered: so whoever of them is there when the array is opened again says that this one is old.
            let failed = layout.store_on_all(&next);
            if failed.is_empty() {
                break;
            }
            out.extend(failed);
        }
        layout.adopt_without(next);
        let mut intents = self.intents.lock();
        out.iter().for_each(|number| intents.forget_device(usize::from(*number)));
        self.writes.lock().forget();
        self.times_out.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// After a map without a device could not be put in force, which some may have by now: all are given the one in force again, as a newer one than that. Who does not take it does not work.
    fn keep_in(&self, layout: &mut Layout, generation: u64) {
        let kept = ArrayMap { generation, marks: self.next_marks(), ..layout.map().clone() };
        // PERSIST: the map that was not put in force does not count beside what is answered from here on.
        layout.store_on_all(&kept);
        layout.adopt_same(kept);
    }

    /// Marks for a map that is to count beside others of its generation: more than any had before.
    fn next_marks(&self) -> u64 {
        self.marks_end.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Puts the device out that a move failed of, if it did and there is another copy of everything on it.
    pub(super) fn put_out_failed(&self, why: &ArrayError) {
        let ArrayError::Device { device, error } = why else { return };
        if self.layout.read().map().copies() > 1 {
            self.put_out_at(&mut self.layout.write(), device - 1, error);
        }
    }

    /// The same of the device at a place.
    pub(super) fn put_out_at(&self, layout: &mut Layout, place: usize, error: &KvError) {
        let number = layout.map().members.iter().nth(place).map(|number| usize::from(*number));
        if let Some(number) = number.filter(|&number| has_failed(error) && layout.is_there(number)) {
            // What failed because of it is told.
            drop(self.put_out_of(layout, number));
        }
    }

    /// After a command of all devices was refused: whether devices that failed are out now, so that it can be given again.
    pub(super) fn put_out_failing(&self, refused: &Error) -> bool {
        let failing = {
            let layout = self.layout.read();
            match layout.map().copies() > 1 && is_of_device_kind(refused.kind()) {
                true => failing(&layout),
                false => return false,
            }
        };
        !failing.is_empty() && failing.into_iter().all(|number| self.put_out(number).is_ok())
    }
}

fn is_of_device(answer: &Result<Answer>) -> bool {
    answer.as_ref().err().is_some_and(|error| matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Io))
}

fn is_of_device_kind(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Io | ErrorKind::Indeterminate)
}

/// The devices that do nothing any more.
pub(super) fn failing(layout: &Layout) -> BTreeSet<usize> {
    let fails = |number: &usize| {
        layout.with(*number, |device| device.flush().is_err_and(|error| has_failed(&error))).unwrap_or(false)
    };
    layout.numbers().filter(fails).collect()
}

fn mark_on(locked: &mut LockedDevices<'_>, number: usize, key: &PairKey) -> KvResult<Option<Mark>> {
    let device = locked.device(number).ok_or_else(not_open)?;
    device.marks_of(vec![key.clone()]).pop().unwrap_or(Ok(None))
}

/// Whether a change is to be made, where this is there; false if there is nothing to delete.
fn holds(change: &KeyedChange, seen: Option<Mark>) -> Result<bool> {
    let (expect, is_deletion) = match change {
        KeyedChange::Get => return Ok(false),
        KeyedChange::Put(_, expect) => (expect, false),
        KeyedChange::Delete(expect) => (expect, true),
    };
    let holds = match expect {
        Expect::Any => true,
        Expect::Absent => seen.is_none(),
        Expect::Present => seen.is_some(),
        Expect::Same(mark) => seen == Some(*mark),
    };
    match holds {
        true => Ok(!is_deletion || seen.is_some()),
        false => Err(conflict()),
    }
}

/// Changes second copies. Those that have no room there are answered.
fn change_seconds(
    locked: &mut LockedDevices<'_>,
    planned: Vec<PlannedChange>,
    outcome: &mut Outcome,
) -> Vec<PlannedChange> {
    let mut of_device: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, change) in planned.iter().enumerate() {
        if let Some(second) = change.second {
            of_device.entry(second).or_default().push(at);
        }
    }
    let mut planned: Vec<Option<PlannedChange>> = planned.into_iter().map(Some).collect();
    for (number, changes) in of_device {
        let pairs = changes.iter().filter_map(|&at| planned[at].as_ref().map(PlannedChange::pair)).collect();
        let (place, results) = match locked.device(number) {
            Some(device) => (device.place(), device.set_all_marked(pairs)),
            None => (number, changes.iter().map(|_| Err(not_open())).collect()),
        };
        for (at, result) in changes.into_iter().zip(results) {
            match result {
                Ok(()) => {}
                Err(error) if is_full(&error) => {
                    let refused = refused_change(place, &error);
                    outcome
                        .answered
                        .extend(planned[at].take().map(|change| (change.command.ticket, Err(refused))));
                }
                Err(error) => {
                    if let Some(change) = &mut planned[at] {
                        change.second_refused = Some(error);
                    }
                }
            }
        }
    }
    planned.into_iter().flatten().collect()
}

/// Answers a change by what became of both of its copies.
fn tell_change(
    locked: &mut LockedDevices<'_>,
    first: usize,
    place: usize,
    change: PlannedChange,
    result: KvResult<()>,
    outcome: &mut Outcome,
) {
    let (ticket, key) = (change.command.ticket, change.command.key.clone());
    let has_second = change.second.filter(|_| change.second_refused.is_none());
    let only = |number: Option<usize>| number.into_iter().collect::<BTreeSet<usize>>();
    match (result, has_second) {
        (Ok(()), Some(_)) => outcome.answered.push((ticket, Ok(change.answer()))),
        // It was to have a second one, or has one copy.
        (Ok(()), None) => outcome.tell(ticket, Ok(change.answer()), only(change.second)),
        (Err(error), Some(second)) if is_full(&error) => {
            // Nothing is to be changed: the second copy is put back, or is none.
            let is_back = locked.copy(&key, first, second).is_ok();
            let relies_on = if is_back { BTreeSet::new() } else { only(Some(second)) };
            outcome.tell(ticket, Err(refused(place, &error)), relies_on);
        }
        (Err(_), Some(_)) => outcome.tell(ticket, Ok(change.answer()), only(Some(first))),
        (Err(error), None) => {
            // What a medium refused may be there, though the other one is sure.
            let second = change.second_refused.as_ref().zip(change.second);
            let refused = match second.filter(|(error, _)| matches!(error, KvError::Medium(_))) {
                Some((error, second)) => {
                    let place = locked.device(second).map_or(second, |device| device.place());
                    refused_change(place, error)
                }
                None => refused_change(place, &error),
            };
            outcome.answered.push((ticket, Err(refused)));
        }
    }
}
