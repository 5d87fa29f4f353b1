//! Changes of several pairs that happen together.
//!
//! Owns the order in which a batch gets to the devices. Promises that all of it happens or nothing, whatever fails and whenever the power does; that nobody sees some of it while the devices
//! work; and that what must be there for it to happen is there as it does. Must not know what rows are.
//!
//! 1. All devices of its pairs are locked, in the order of their numbers, until it is done.
//! 2. Each pair is looked at, so that a condition that does not hold, and a record that nobody can read or replace, refuses the batch; and each device makes the room that it takes.
//! 3. What the batch is about to do is kept as an [`Intent`], on the device of its first change. Where that is not the only device it is made durable, whatever the mode: of one device
//!    a power cut leaves a prefix of its commands, of several it leaves nothing that can be relied on. All devices of its pairs are flushed before: a batch may rest on what was there, and is not
//!    to be made again where that is lost.
//! 4. The changes, each with the mark that the intent says.
//! 5. The intent goes: at once where one device has all, or all is durable; else once all devices were flushed. Until then no pair of it is removed.
//!
//! Where an array has two copies each device that has one takes part, and both that have the first change keep the intent. A device that fails in the middle is put out before the batch is answered, if the other copies of what it has are made.
//!
//! A change alone, with conditions on other pairs, needs no intent. Batches of one poll that have no pair in common go through these steps together, so that they share what is waited for.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use hedgerow_row::backend::{Answer, Expect, Mark, Ticket};
use hedgerow_row::{Error, ErrorKind, Result};

use super::Array;
use super::array_device::{ArrayDevice, MARK_BYTES, PairAnswers, pair_refused};
use super::failure::{ArrayError, ArrayResult, closed, conflict, refused, refused_change};
use super::intent::{INTENT_BYTES, Intent, KeptIntent, MarkedChange};
use super::layout::{Layout, LockedDevices, device_failed};
use super::outcome::Outcome;
use crate::code::{KvError, Result as KvResult};
use crate::command::PairKey;
use crate::device::AckMode;
use crate::sync::Ordering;

/// Intents that are kept at most before all devices are flushed for them.
const INTENTS_MAX: usize = 256;

/// A batch that borrows nothing.
#[derive(Clone)]
pub(super) struct KeyedBatch {
    pub(super) ticket: Ticket,
    pub(super) changes: Vec<ExpectedChange>,
}

/// What is to become of one pair.
#[derive(Clone)]
pub(super) struct ExpectedChange {
    pub(super) key: PairKey,
    pub(super) expect: Expect,
    pub(super) becomes: KeyedBecomes,
}

#[derive(Clone)]
pub(super) enum KeyedBecomes {
    Unchanged,
    /// Without its mark.
    Value(Vec<u8>),
    Nothing,
}

impl KeyedBatch {
    /// The pairs that are to go.
    fn removed(&self) -> impl Iterator<Item = &PairKey> {
        let gone = self.changes.iter().filter(|change| matches!(change.becomes, KeyedBecomes::Nothing));
        gone.map(|change| &change.key)
    }

    fn keys(&self) -> impl Iterator<Item = &PairKey> {
        self.changes.iter().map(|change| &change.key)
    }
}

/// A batch whose conditions hold.
struct CheckedBatch {
    ticket: Ticket,
    /// Of each change as it was asked, which of the intent's it is.
    places: Vec<Option<usize>>,
    intent: Intent,
    /// The device of each change of the intent, and that of the second copy, if there are two.
    devices: Vec<(usize, Option<usize>)>,
    /// All devices of its pairs.
    looked_at: BTreeSet<usize>,
    /// What went wrong with it.
    failed: Option<Error>,
    /// Whether its intent is kept, or may be.
    is_kept: bool,
    /// Devices that failed, of which others have done their share: it holds once they are out.
    relies_on: BTreeSet<usize>,
}

/// A copy of a change that was not made: by which device, with its place, and why.
struct RefusedCopy {
    number: usize,
    device_place: usize,
    error: KvError,
}

impl CheckedBatch {
    /// The devices that keep the intent: as many as have its first change.
    fn homes(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = self.devices.first().copied().unwrap_or((0, None));
        [Some(first), second].into_iter().flatten()
    }

    /// The devices of its changes.
    fn changed(&self) -> impl Iterator<Item = usize> + '_ {
        self.devices.iter().flat_map(|&(first, second)| [Some(first), second]).flatten()
    }

    fn has_intent(&self) -> bool {
        self.devices.len() > 1
    }

    /// Whether an intent of it is to be kept now.
    fn begins(&self) -> bool {
        self.has_intent() && self.failed.is_none()
    }

    fn is_of_several_devices(&self) -> bool {
        let home = self.homes().next();
        self.changed().any(|device| Some(device) != home)
    }

    fn kept(&self) -> KeptIntent {
        let devices: BTreeSet<usize> = self.changed().collect();
        let homes = self.homes().collect();
        let keys = self.intent.changes.iter().map(|change| change.key.clone()).collect();
        let is_half_done = self.failed.is_some();
        KeptIntent { homes, devices: devices.into_iter().collect(), keys, is_half_done }
    }

    /// Its answer, and the devices that are to be out before it is told.
    fn answer(self) -> (Ticket, Result<Answer>, BTreeSet<usize>) {
        let mark = |&place: &Option<usize>| {
            let place = place.filter(|&place| self.intent.changes[place].value.is_some())?;
            Some(Mark::new(self.intent.first_mark + place as u64))
        };
        let answer = match self.failed {
            None => Ok(Answer::Batched(self.places.iter().map(mark).collect())),
            Some(error) => Err(error),
        };
        (self.ticket, answer, self.relies_on)
    }
}

impl Array {
    /// Carries batches out. Those that have a pair in common happen one after the other.
    pub(super) fn answer_batches(&self, layout: &Layout, batches: Vec<KeyedBatch>, outcome: &mut Outcome) {
        let mut left = batches;
        while !left.is_empty() {
            let mut keys: HashSet<Vec<u8>> = HashSet::new();
            let mut is_apart = |batch: &KeyedBatch| {
                let is_apart = batch.keys().all(|key| !keys.contains(key.bytes()));
                keys.extend(batch.keys().map(|key| key.bytes().to_vec()));
                is_apart
            };
            let (round, later) = left.into_iter().partition(|batch| is_apart(batch));
            left = later;
            self.answer_round(layout, round, outcome);
        }
        if self.intents.lock().len() >= INTENTS_MAX {
            // What fails is told to whoever it keeps from something.
            drop(self.settle_intents(layout));
        }
    }

    /// Carries out batches that have no pair in common.
    fn answer_round(&self, layout: &Layout, round: Vec<KeyedBatch>, outcome: &mut Outcome) {
        let answered = &mut outcome.answered;
        if let Err(error) = self.reserve_marks(layout) {
            answered.extend(round.iter().map(|batch| (batch.ticket, Err(error.clone()))));
            return;
        }
        let (round, mut locked) = self.lock_settled(layout, round, answered);
        let mut checked = self.check_batches(layout, &mut locked, round, answered);
        self.begin_writes(layout, &mut locked, &mut checked);
        self.flush_before(&mut locked, &mut checked);
        self.keep_intents(&mut locked, &mut checked);
        self.make_changes(layout, &mut locked, &mut checked);
        self.drop_intents(&mut locked, &checked);
        for (ticket, answer, relies_on) in checked.into_iter().map(CheckedBatch::answer) {
            outcome.tell(ticket, answer, relies_on);
        }
    }

    /// Locks the devices of batches, once no pair that they remove is of an intent. Those of which that cannot be are answered.
    fn lock_settled<'l>(
        &self,
        layout: &'l Layout,
        mut round: Vec<KeyedBatch>,
        answered: &mut PairAnswers,
    ) -> (Vec<KeyedBatch>, LockedDevices<'l>) {
        loop {
            let map = layout.map();
            // Where a shard is on the move to is locked, too: what changes of it changes on both.
            let numbers = round
                .iter()
                .flat_map(KeyedBatch::keys)
                .flat_map(|key| map.copies_of(key.bytes()).chain(map.target_of(key.bytes())));
            let locked = layout.lock(numbers);
            let is_free = |batch: &KeyedBatch| {
                let intents = self.intents.lock();
                batch.removed().all(|key| !intents.has_key(key.bytes()))
            };
            if round.iter().all(is_free) {
                return (round, locked);
            }
            drop(locked);
            let settled = self.settle_intents(layout);
            round.retain(|batch| {
                if is_free(batch) {
                    return true;
                }
                let may = self.may_be_removed(&settled, |key| batch.removed().any(|of| of.bytes() == key));
                let is_refused = may.is_err();
                answered.extend(may.err().map(|error| (batch.ticket, Err(error))));
                !is_refused
            });
        }
    }

    /// Answers batches that can not be; gives back the others, with their marks, each with its room made.
    fn check_batches(
        &self,
        layout: &Layout,
        locked: &mut LockedDevices<'_>,
        round: Vec<KeyedBatch>,
        answered: &mut PairAnswers,
    ) -> Vec<CheckedBatch> {
        let seen = see(layout, locked, &round);
        let mut taken: HashMap<usize, u64> = HashMap::new();
        let mut checked = Vec::with_capacity(round.len());
        for batch in round {
            let ticket = batch.ticket;
            let may =
                check_expected(&batch, &seen).and_then(|()| make_room(layout, locked, &batch, &mut taken));
            match may {
                Ok(()) => checked.push(self.marked(layout, batch)),
                Err(error) => answered.push((ticket, Err(error))),
            }
        }
        checked
    }

    /// Draws marks, under the locks: those of a key rise.
    fn marked(&self, layout: &Layout, batch: KeyedBatch) -> CheckedBatch {
        let looked_at = batch.keys().flat_map(|key| layout.map().copies_of(key.bytes())).collect();
        let (mut places, mut changes, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        for ExpectedChange { key, becomes, .. } in batch.changes {
            let value = match becomes {
                KeyedBecomes::Unchanged => {
                    places.push(None);
                    continue;
                }
                KeyedBecomes::Value(value) => Some(value),
                KeyedBecomes::Nothing => None,
            };
            places.push(Some(changes.len()));
            devices.push((layout.map().device_of(key.bytes()), layout.map().second_of(key.bytes())));
            changes.push(MarkedChange { key, value });
        }
        let first_mark = self.marks.fetch_add(changes.len() as u64, Ordering::Relaxed);
        let intent = Intent { first_mark, changes };
        CheckedBatch {
            ticket: batch.ticket,
            places,
            intent,
            devices,
            looked_at,
            failed: None,
            is_kept: false,
            relies_on: BTreeSet::new(),
        }
    }

    /// Makes durable what batches of several devices rest on.
    fn flush_before(&self, locked: &mut LockedDevices<'_>, batches: &mut [CheckedBatch]) {
        if matches!(self.options.device.ack, AckMode::Immediate) {
            // It is.
            return;
        }
        let spans = |batch: &&mut CheckedBatch| batch.is_of_several_devices();
        let numbers: BTreeSet<usize> =
            batches.iter_mut().filter(spans).flat_map(|batch| batch.looked_at.iter().copied()).collect();
        for number in numbers {
            // PERSIST: what a batch of several devices rests on is durable before its intent is.
            let flushed = open_device(locked, number)
                .and_then(|device| device.flush().map_err(|error| refused(device.place(), &error)));
            let Err(error) = flushed else { continue };
            for batch in batches.iter_mut().filter(spans).filter(|batch| batch.looked_at.contains(&number)) {
                batch.failed.get_or_insert(error.clone());
            }
        }
    }

    /// Keeps what the batches are about to do.
    fn keep_intents(&self, locked: &mut LockedDevices<'_>, batches: &mut [CheckedBatch]) {
        let homes: BTreeSet<usize> =
            batches.iter().filter(|batch| batch.begins()).flat_map(CheckedBatch::homes).collect();
        // How it went on each device that is to keep one.
        let mut refused: HashMap<Ticket, Vec<(usize, Error)>> = HashMap::new();
        for home in homes {
            let mut of_home: Vec<&mut CheckedBatch> = batches
                .iter_mut()
                .filter(|batch| batch.begins() && batch.homes().any(|of| of == home))
                .collect();
            let kept = of_home.iter().map(|batch| (batch.intent.first_mark, batch.intent.encode()));
            let kept: Vec<(u64, Vec<u8>)> = kept.collect();
            let spans = of_home.iter().any(|batch| batch.is_of_several_devices());
            let mut place = home;
            let (stored, flushed) = match open_device(locked, home) {
                Ok(device) => {
                    place = device.place();
                    let stored = device.store_intents(kept);
                    // PERSIST: an intent is durable before the first change on another device than its own.
                    (stored, if spans { device.flush() } else { Ok(()) })
                }
                Err(_) => (kept.iter().map(|_| Err(gone())).collect(), Ok(())),
            };
            for (batch, stored) in of_home.iter_mut().zip(stored) {
                // Where the medium refused it may be there, and what it says is done by the next opening.
                batch.is_kept |= matches!(stored, Ok(()) | Err(KvError::Medium(_)));
                let failed = stored.map_err(|error| refused_change(place, &error));
                let flushed = flushed.as_ref().map_err(|error| half_done(place, error));
                if let Err(error) = failed.and(flushed.map(drop)) {
                    refused.entry(batch.ticket).or_default().push((home, error));
                }
            }
        }
        for batch in batches.iter_mut() {
            // One device that keeps it will do, once the other one is out.
            let Some(refused) = refused.remove(&batch.ticket) else { continue };
            match refused.len() < batch.homes().count() {
                true => batch.relies_on.extend(refused.into_iter().map(|(home, _)| home)),
                false => batch.failed = least_sure(refused),
            }
        }
        // From here on an opening may do what is left of them, also of those that failed just now.
        let mut intents = self.intents.lock();
        for batch in batches.iter().filter(|batch| batch.is_kept) {
            intents.add(batch.intent.first_mark, batch.kept());
        }
    }

    /// Makes the changes of batches whose intents are kept.
    fn make_changes(&self, layout: &Layout, locked: &mut LockedDevices<'_>, batches: &mut [CheckedBatch]) {
        // Second copies before first ones, which are the truth.
        let mut of_device: BTreeMap<(bool, usize), Vec<(usize, usize)>> = BTreeMap::new();
        for (at, batch) in batches.iter().enumerate().filter(|(_, batch)| batch.failed.is_none()) {
            for (place, &(first, second)) in batch.devices.iter().enumerate() {
                of_device.entry((true, first)).or_default().push((at, place));
                if let Some(second) = second {
                    of_device.entry((false, second)).or_default().push((at, place));
                }
            }
        }
        // By the batch and the change in it.
        let mut refused: BTreeMap<(usize, usize), Vec<RefusedCopy>> = BTreeMap::new();
        for (&(is_first, number), places) in &of_device {
            let changes = places.iter().map(|&(at, place)| batches[at].intent.change(place)).collect();
            let (device_place, results) = match open_device(locked, number) {
                Ok(device) => (device.place(), device.make_changes(changes)),
                Err(_) => (number, places.iter().map(|_| Err(gone())).collect()),
            };
            for &(at, place) in places.iter().filter(|_| is_first) {
                let key = &batches[at].intent.changes[place].key;
                if let Some(to) = layout.map().target_of(key.bytes()) {
                    layout.copy_changed(locked, key, (number, to));
                }
            }
            for (&of, result) in places.iter().zip(results) {
                let Err(error) = result else { continue };
                refused.entry(of).or_default().push(RefusedCopy { number, device_place, error });
            }
        }
        for ((at, place), refused) in refused {
            let batch = &mut batches[at];
            if refused.len() == 1 && batch.devices[place].1.is_some() {
                // The other copy is made.
                batch.relies_on.extend(refused.into_iter().map(|copy| copy.number));
                continue;
            }
            let Some(RefusedCopy { device_place, error, .. }) = most_made(refused) else { continue };
            // Others of its changes are made, and this one is when the array is opened again.
            let failed = if batch.is_kept {
                half_done(device_place, &error)
            } else {
                refused_change(device_place, &error)
            };
            batch.failed.get_or_insert(failed);
            self.intents.lock().set_half_done(batch.intent.first_mark);
        }
    }

    /// Says that the shards of batches are being written, where there are two copies of them.
    fn begin_writes(&self, layout: &Layout, locked: &mut LockedDevices<'_>, batches: &mut [CheckedBatch]) {
        if layout.map().copies() == 1 {
            return;
        }
        for batch in batches.iter_mut().filter(|batch| batch.failed.is_none()) {
            let keys = batch.intent.changes.iter().map(|change| &change.key);
            for (number, error) in self.begin_shards(layout, locked, keys) {
                // Nothing is changed yet: it is begun again once the device is out.
                let place = layout.map().place_of(number as u16).unwrap_or(number);
                batch.failed.get_or_insert(refused(place, &error));
            }
        }
    }

    /// Removes intents of which nothing is left to be done, as far as that is so now.
    fn drop_intents(&self, locked: &mut LockedDevices<'_>, batches: &[CheckedBatch]) {
        let mut of_home: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        let (mut gone, mut stays): (BTreeSet<u64>, BTreeSet<u64>) = Default::default();
        // PERSIST: one that relies on a device that failed stays until the map without that is durable (`settle_intents`, after it). Should the device come back before, as it was, the first copies on it take back what is on the others: the intent alone makes the batch whole.
        let is_made = |batch: &&CheckedBatch| batch.failed.is_none() && batch.relies_on.is_empty();
        for batch in batches.iter().filter(|batch| batch.has_intent()).filter(is_made) {
            let is_durable = matches!(self.options.device.ack, AckMode::Immediate);
            // PERSIST: of one device the changes are durable before what follows them. Of several only a flush of all tells (`settle_intents`).
            if is_durable || !batch.is_of_several_devices() {
                for home in batch.homes() {
                    of_home.entry(home).or_default().push(batch.intent.first_mark);
                }
            }
        }
        for (home, marks) in of_home {
            let Ok(device) = open_device(locked, home) else { continue };
            let dropped = device.drop_intents(&marks);
            let stay = marks.iter().zip(dropped).filter(|(_, dropped)| dropped.is_err());
            stays.extend(stay.map(|(&mark, _)| mark));
            gone.extend(marks);
        }
        let mut intents = self.intents.lock();
        gone.difference(&stays).for_each(|&mark| intents.remove(mark));
    }

    /// After intents were settled, with this result: whether pairs that are of intents all the same may come to be free. Others may have been added since.
    ///
    /// # Errors
    /// That of the device that failed; `Unavailable` if they are of one that was cut short.
    pub(super) fn may_be_removed(
        &self,
        settled: &ArrayResult<()>,
        mut is_of: impl FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        let intents = self.intents.lock();
        if !intents.keys().any(&mut is_of) {
            // Whatever kept others.
            return Ok(());
        }
        settled.clone().map_err(Error::from)?;
        match intents.is_half_done(is_of) {
            true => {
                let message = "a change of several keys with this one was cut short by a device: it is finished when the array is opened anew, and nothing of it is removed before";
                Err(Error::new(ErrorKind::Unavailable, message))
            }
            false => Ok(()),
        }
    }

    /// Flushes the devices of all intents that are kept, and removes these. Holds no lock of a device as it is called.
    ///
    /// # Errors
    /// That of the first device that fails: its intents stay.
    pub(super) fn settle_intents(&self, layout: &Layout) -> ArrayResult<()> {
        let made = self.intents.lock().made();
        let devices_of = |(_, homes, devices): &(u64, Vec<usize>, Vec<usize>)| [&devices[..], homes].concat();
        let numbers: BTreeSet<usize> = made.iter().flat_map(devices_of).collect();
        let mut locked = layout.lock(numbers.iter().copied());
        // One that was being made as it was looked at may have been cut short by now.
        let still: BTreeSet<u64> = self.intents.lock().made().into_iter().map(|(mark, ..)| mark).collect();
        let made: Vec<_> = made.into_iter().filter(|(mark, ..)| still.contains(mark)).collect();
        let mut failed: BTreeMap<usize, ArrayError> = BTreeMap::new();
        for &number in &numbers {
            // PERSIST: all changes of an intent before it goes.
            if let Err(error) = flush(&mut locked, number) {
                failed.insert(number, error);
            }
        }
        let mut of_home: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        let is_whole = |of: &&(u64, Vec<usize>, Vec<usize>)| {
            devices_of(of).iter().all(|number| !failed.contains_key(number))
        };
        let mut gone: BTreeSet<u64> = BTreeSet::new();
        for (mark, homes, _) in made.iter().filter(is_whole) {
            gone.insert(*mark);
            homes.iter().for_each(|home| of_home.entry(*home).or_default().push(*mark));
        }
        for (home, marks) in of_home {
            let Some(device) = locked.device(home) else { continue };
            let dropped: KvResult<()> = device.drop_intents(&marks).into_iter().collect();
            // PERSIST: an intent is gone durably, from each device that has it, before a pair of it may be removed.
            if let Err(error) = dropped.and_then(|()| device.flush()) {
                failed.insert(home, device_failed(device, error));
                gone.retain(|mark| !marks.contains(mark));
            }
        }
        gone.iter().for_each(|&mark| self.intents.lock().remove(mark));
        failed.into_values().next().map_or(Ok(()), Err)
    }
}

fn flush(locked: &mut LockedDevices<'_>, number: usize) -> ArrayResult<()> {
    let device = locked.device(number).ok_or(ArrayError::Closed)?;
    device.flush().map_err(|error| device_failed(device, error))
}

fn open_device<'l>(locked: &'l mut LockedDevices<'_>, number: usize) -> Result<&'l mut ArrayDevice> {
    locked.device(number).ok_or_else(closed)
}

/// What is under each key.
fn see(
    layout: &Layout,
    locked: &mut LockedDevices<'_>,
    round: &[KeyedBatch],
) -> HashMap<Vec<u8>, Result<Option<Mark>>> {
    let mut of_device: BTreeMap<usize, Vec<PairKey>> = BTreeMap::new();
    for key in round.iter().flat_map(KeyedBatch::keys) {
        of_device.entry(layout.map().device_of(key.bytes())).or_default().push(key.clone());
    }
    let mut seen = HashMap::new();
    for (number, keys) in of_device {
        let names: Vec<Vec<u8>> = keys.iter().map(|key| key.bytes().to_vec()).collect();
        match open_device(locked, number) {
            Ok(device) => {
                let marks = device.marks_of(keys).into_iter();
                let place = device.place();
                let marks = marks.map(|mark| mark.map_err(|error| pair_refused(place, &error)));
                seen.extend(names.into_iter().zip(marks));
            }
            Err(error) => seen.extend(names.into_iter().map(|name| (name, Err(error.clone())))),
        }
    }
    seen
}

/// Has each device make room for what is stored there, beside what others of the round take.
fn make_room(
    layout: &Layout,
    locked: &mut LockedDevices<'_>,
    batch: &KeyedBatch,
    taken: &mut HashMap<usize, u64>,
) -> Result<()> {
    let changes = batch.changes.iter().filter(|change| !matches!(change.becomes, KeyedBecomes::Unchanged));
    let mut wanted: BTreeMap<usize, u64> = BTreeMap::new();
    let (mut homes, mut changed, mut intent_bytes) = (None, 0, 0);
    for change in changes {
        let (key_bytes, value_bytes) = (
            change.key.bytes().len(),
            match &change.becomes {
                KeyedBecomes::Value(value) => value.len() + MARK_BYTES,
                _ => 0,
            },
        );
        // A removal needs none that is not kept for it, as one by itself.
        let copies: Vec<usize> = layout.map().copies_of(change.key.bytes()).collect();
        if matches!(change.becomes, KeyedBecomes::Value(_)) {
            for &number in &copies {
                *wanted.entry(number).or_default() += ArrayDevice::charge(key_bytes, value_bytes);
            }
        }
        homes.get_or_insert(copies);
        changed += 1;
        intent_bytes += key_bytes + value_bytes;
    }
    // A change alone keeps no intent.
    for home in homes.filter(|_| changed > 1).into_iter().flatten() {
        // The intent, and the deletion of it.
        let key_bytes = Intent::key_of(0).len();
        let bytes = ArrayDevice::charge(key_bytes, intent_bytes + batch.changes.len() * 8 + INTENT_BYTES);
        *wanted.entry(home).or_default() += bytes + ArrayDevice::charge(key_bytes, 0);
    }
    for (&number, &bytes) in &wanted {
        let before = taken.get(&number).copied().unwrap_or(0);
        let device = open_device(locked, number)?;
        device.make_room(before + bytes).map_err(|error| refused(device.place(), &error))?;
    }
    wanted.into_iter().for_each(|(number, bytes)| *taken.entry(number).or_default() += bytes);
    Ok(())
}

/// Of what each device that was to keep an intent said the error to tell: one may have it where nobody knows.
fn least_sure(refused: Vec<(usize, Error)>) -> Option<Error> {
    let mut errors = refused.into_iter().map(|(_, error)| error);
    let first = errors.next();
    let is_unsure = |error: &Error| error.kind() == ErrorKind::Indeterminate;
    match first.as_ref().is_some_and(is_unsure) {
        true => first,
        false => errors.find(is_unsure).or(first),
    }
}

/// Of copies that were not made the one to tell of: what a medium refused may be there.
fn most_made(mut refused: Vec<RefusedCopy>) -> Option<RefusedCopy> {
    let unsure = refused.iter().position(|copy| matches!(copy.error, KvError::Medium(_))).unwrap_or(0);
    (!refused.is_empty()).then(|| refused.swap_remove(unsure))
}

/// What a device that is closed says.
fn gone() -> KvError {
    KvError::Closed { why: "the array is closed".into() }
}

fn half_done(device: usize, error: &KvError) -> Error {
    let message = format!(
        "device {}: {error}: some of what changes together may be stored, and the rest is when the array is opened anew",
        device + 1
    );
    Error::new(ErrorKind::Indeterminate, message)
}

/// Whether what was seen is what is expected.
fn check_expected(batch: &KeyedBatch, seen: &HashMap<Vec<u8>, Result<Option<Mark>>>) -> Result<()> {
    for ExpectedChange { key, expect, .. } in &batch.changes {
        let seen = seen.get(key.bytes()).cloned().unwrap_or(Ok(None))?;
        let holds = match expect {
            Expect::Any => true,
            Expect::Absent => seen.is_none(),
            Expect::Present => seen.is_some(),
            Expect::Same(mark) => seen == Some(*mark),
        };
        if !holds {
            return Err(conflict());
        }
    }
    Ok(())
}
