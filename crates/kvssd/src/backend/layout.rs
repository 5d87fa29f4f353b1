//! The devices of an open array, and the map that says which has what.
//!
//! Owns [`Layout`], the order in which devices are locked, and how a map is put in force. Promises that the map stays as it is while anybody holds a device; that a change of a pair on the move is made on both of its
//! devices under both locks, or ends the move; and that no device is behind the map in force by more than one generation. Must not know what sessions or movers are about.
//!
//! **Order of locks**: the layout's first, to read (a session, a step of a mover) or to write (a change of the map), then those of devices by rising number, all that are needed at once ([`Layout::lock`]).
//! Nobody who holds one waits for one before it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hedgerow_row::backend::{Answer, Ticket};
use hedgerow_row::{ErrorKind, Result as RowResult};

use super::array_device::{ArrayDevice, KeyedChange, KeyedCommand, PairAnswers};
use super::failure::{ArrayError, ArrayResult, closed};
use super::map::ArrayMap;
use crate::code::KvError;
use crate::command::PairKey;
use crate::sync::{AtomicU64, Mutex, MutexGuard};

pub(super) struct Layout {
    map: ArrayMap,
    /// By number; none once closed.
    devices: BTreeMap<usize, Mutex<Option<ArrayDevice>>>,
    /// Why what was copied of the shards on the move is not as what it was copied of.
    spoiled: Mutex<Option<ArrayError>>,
}

/// Devices that are locked, by their numbers.
pub(super) struct LockedDevices<'l> {
    guards: BTreeMap<usize, MutexGuard<'l, Option<ArrayDevice>>>,
}

impl LockedDevices<'_> {
    /// None if it was closed.
    pub(super) fn device(&mut self, number: usize) -> Option<&mut ArrayDevice> {
        self.guards.get_mut(&number).and_then(|guard| guard.as_mut())
    }

    /// Has a pair on one device be as it is on another: the same value under the same mark, or none.
    pub(super) fn copy(&mut self, key: &PairKey, from: usize, to: usize) -> ArrayResult<u64> {
        let source = self.device(from).ok_or(ArrayError::Closed)?;
        let value = source.marked_value(key).map_err(|error| device_failed(source, error))?;
        let bytes = value.as_ref().map_or(0, |value| value.len() as u64);
        let target = self.device(to).ok_or(ArrayError::Closed)?;
        target.set_marked(key, value).map_err(|error| device_failed(target, error))?;
        Ok(bytes)
    }
}

/// What a device said, with its place.
pub(super) fn device_failed(device: &ArrayDevice, error: KvError) -> ArrayError {
    ArrayError::Device { device: device.place() + 1, error }
}

impl Layout {
    pub(super) fn new(map: ArrayMap, devices: BTreeMap<usize, ArrayDevice>) -> Layout {
        let devices = devices.into_iter().map(|(number, device)| (number, Mutex::new(Some(device))));
        Layout { map, devices: devices.collect(), spoiled: Mutex::new(None) }
    }

    pub(super) fn map(&self) -> &ArrayMap {
        &self.map
    }

    /// The numbers of the devices, from one on.
    pub(super) fn numbers_from(&self, number: usize) -> impl Iterator<Item = usize> + '_ {
        self.devices.range(number..).map(|(number, _)| *number)
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.numbers_from(0)
    }

    /// Locks these devices, in the one order that there is. A caller that holds some must give them back first.
    pub(super) fn lock(&self, numbers: impl IntoIterator<Item = usize>) -> LockedDevices<'_> {
        let ordered: BTreeSet<usize> = numbers.into_iter().collect();
        let devices = ordered.into_iter().filter_map(|number| Some((number, self.devices.get(&number)?)));
        LockedDevices { guards: devices.map(|(number, device)| (number, device.lock())).collect() }
    }

    /// Runs `step` on a device, under its lock.
    pub(super) fn with<R>(&self, number: usize, step: impl FnOnce(&mut ArrayDevice) -> R) -> Option<R> {
        self.lock([number]).device(number).map(step)
    }

    /// Runs `step` on each device, whatever the others say; the first error.
    pub(super) fn on_each(&self, mut step: impl FnMut(&mut ArrayDevice) -> RowResult<()>) -> RowResult<()> {
        let mut failed = Ok(());
        for number in self.numbers() {
            let done = self.with(number, &mut step).unwrap_or_else(|| Err(closed()));
            failed = failed.and(done);
        }
        failed
    }

    /// Removes all pairs of a group, with all devices locked: where shards are on the move nothing is copied meanwhile, which would come back. False, and nothing was done, if they are held by then.
    /// `begin` is run before anything is removed.
    pub(super) fn clear(
        &self,
        group: u32,
        is_held: impl FnOnce() -> bool,
        begin: impl FnOnce(&mut LockedDevices<'_>) -> RowResult<()>,
    ) -> RowResult<bool> {
        let mut locked = self.lock(self.numbers());
        if is_held() {
            return Ok(false);
        }
        begin(&mut locked)?;
        let mut failed = Ok(());
        for number in self.numbers() {
            let Some(device) = locked.device(number) else {
                failed = failed.and(Err(closed()));
                continue;
            };
            let cleared = device.clear(group);
            if cleared.is_err() && !self.map.moves.is_empty() {
                // What is left, and where, nobody knows.
                let why = "a table could not be cleared".into();
                self.spoil(device_failed(device, KvError::Closed { why }));
            }
            failed = failed.and(cleared);
        }
        failed.map(|()| true)
    }

    /// Carries out commands on keys of one device, but those that are held by then, which are given back. What changes of a shard on the move changes on both of its devices before anybody sees either.
    pub(super) fn answer(
        &self,
        marks: &AtomicU64,
        owner: usize,
        commands: Vec<KeyedCommand>,
        is_held: impl FnMut(&KeyedCommand) -> bool,
        answered: &mut PairAnswers,
    ) -> Vec<KeyedCommand> {
        let moving: HashMap<Ticket, (PairKey, usize)> = commands
            .iter()
            .filter(|command| !matches!(command.change, KeyedChange::Get))
            .filter_map(|command| {
                let to = self.map.target_of(command.key.bytes())?;
                Some((command.ticket, (command.key.clone(), to)))
            })
            .collect();
        let targets = moving.values().map(|(_, to)| *to);
        let mut locked = self.lock(targets.chain([owner]));
        let (held, commands): (Vec<_>, Vec<_>) = commands.into_iter().partition(is_held);
        let Some(device) = locked.device(owner) else {
            answered.extend(commands.iter().map(|command| (command.ticket, Err(closed()))));
            return held;
        };
        let begin = answered.len();
        device.answer(marks, commands, answered);
        let mut copied = BTreeSet::new();
        for (ticket, answer) in &answered[begin..] {
            let Some((key, to)) = moving.get(ticket) else { continue };
            let has_changed = match answer {
                Ok(Answer::Stored(_) | Answer::Deleted(true)) => true,
                Err(error) => error.kind() == ErrorKind::Indeterminate,
                Ok(_) => false,
            };
            // The owner has the last state of a key whatever came of several commands on it.
            if !has_changed || !copied.insert(key.bytes()) || self.is_spoiled() {
                continue;
            }
            self.copy_changed(&mut locked, key, (owner, *to));
        }
        held
    }

    /// After a pair of a shard on the move has changed, or may have: it changes where the shard goes, too, or the move does not end well.
    pub(super) fn copy_changed(
        &self,
        locked: &mut LockedDevices<'_>,
        key: &PairKey,
        (from, to): (usize, usize),
    ) {
        if let Err(error) = locked.copy(key, from, to) {
            self.spoil(error);
        }
    }

    fn is_spoiled(&self) -> bool {
        self.spoiled.lock().is_some()
    }

    /// Says that the move under way cannot end well. What was answered stands: the device that shards go from has it.
    fn spoil(&self, why: ArrayError) {
        self.spoiled.lock().get_or_insert(why);
    }

    /// Why the move under way cannot end well, if it cannot.
    pub(super) fn spoiled(&self) -> Option<ArrayError> {
        self.spoiled.lock().clone()
    }

    /// Makes durable what a device has.
    pub(super) fn flush(&self, number: usize) -> ArrayResult<()> {
        let flushed =
            self.with(number, |device| device.flush().map_err(|error| device_failed(device, error)));
        flushed.unwrap_or(Err(ArrayError::Closed))
    }

    /// Puts a map in force that differs from the one that is, with the next generation; `added` is a device that is new in it.
    ///
    /// Before it every device is asked whether it works, and has the map that was in force. Then all of them are given the new one, whatever the others say: it is in force once one has it, since an array is opened with all of its devices. So what
    /// is refused has changed nothing on any device that works.
    pub(super) fn put_in_force(
        &mut self,
        mut map: ArrayMap,
        added: Option<(usize, ArrayDevice)>,
    ) -> ArrayResult<()> {
        let current = ArrayMap { marks: map.marks, ..self.map.clone() };
        // PERSIST: what the devices have, copies of shards that are on the move among it, is durable before any map says that it counts.
        for (&number, device) in &mut self.devices {
            let device = device.get_mut().as_mut().ok_or(ArrayError::Closed)?;
            let even = match device.generation() == current.generation {
                true => device.flush(),
                false => device.store_map(&ArrayMap { device: number as u16, ..current.clone() }),
            };
            even.map_err(|error| device_failed(device, error))?;
        }
        map.generation = current.generation + 1;
        let new = added.as_ref().map(|(number, _)| *number);
        if let Some((number, mut device)) = added {
            // PERSIST: the new one has it first. One without a map, beside others that know it, would be taken for another one than was there.
            let copy = ArrayMap { device: number as u16, ..map.clone() };
            device.store_map(&copy).map_err(|error| device_failed(&device, error))?;
            self.devices.insert(number, Mutex::new(Some(device)));
        }
        let (mut in_force, mut failed) = (new.is_some(), Ok(()));
        // Those that stay before one that goes: as long as none of them has it, that one is of the array.
        let (stay, go): (Vec<usize>, Vec<usize>) =
            self.devices.keys().partition(|&&number| map.members.contains(&(number as u16)));
        for number in stay.into_iter().filter(|number| Some(*number) != new) {
            let stored = self.store_copy(number, &map);
            in_force |= stored.is_ok();
            failed = failed.and(stored);
        }
        if !in_force {
            return failed;
        }
        // It need not learn of it: the others know.
        go.into_iter().for_each(|number| drop(self.store_copy(number, &map)));
        self.map = map;
        *self.spoiled.get_mut() = None;
        self.forget_removed();
        Ok(())
    }

    pub(super) fn is_there(&self, number: usize) -> bool {
        self.devices.contains_key(&number)
    }

    /// Devices that have not taken the map in force.
    pub(super) fn behind(&mut self) -> Vec<usize> {
        let generation = self.map.generation;
        let is_behind = |device: &mut Mutex<Option<ArrayDevice>>| {
            device.get_mut().as_ref().is_some_and(|device| device.generation() < generation)
        };
        let devices = self.devices.iter_mut();
        devices.filter_map(|(&number, device)| is_behind(device).then_some(number)).collect()
    }

    /// Stores a map on all devices that are in by it; those that did not take it.
    pub(super) fn store_on_all(&mut self, map: &ArrayMap) -> Vec<u16> {
        let refuses = |number: &u16| self.store_copy(usize::from(*number), map).is_err();
        map.in_members().filter(refuses).collect()
    }

    /// After all devices that are in by a map were given it: it is in force, and the others are closed.
    pub(super) fn adopt_without(&mut self, map: ArrayMap) {
        self.map = map;
        *self.spoiled.get_mut() = None;
        self.forget_out();
    }

    /// A map that says the same as the one in force, under another generation, or with other marks, is it from now on.
    pub(super) fn adopt_same(&mut self, map: ArrayMap) {
        self.map = map;
    }

    /// Closes devices that are not in by the map in force: also one whose coming was refused.
    pub(super) fn forget_out(&mut self) {
        let (map, devices) = (&self.map, &mut self.devices);
        devices.retain(|&number, _| map.in_members().any(|member| usize::from(member) == number));
    }

    fn store_copy(&mut self, number: usize, map: &ArrayMap) -> ArrayResult<()> {
        let device = self.devices.get_mut(&number).and_then(|device| device.get_mut().as_mut());
        let device = device.ok_or(ArrayError::Closed)?;
        // Also where it has one of this generation: that may be another one, of which nothing came.
        let copy = ArrayMap { device: number as u16, ..map.clone() };
        device.store_map(&copy).map_err(|error| device_failed(device, error))
    }

    /// Closes devices that are no more of the array, and gives the others their places.
    fn forget_removed(&mut self) {
        let (map, devices) = (&self.map, &mut self.devices);
        devices.retain(|&number, device| {
            let place = map.place_of(number as u16);
            match (place, device.get_mut()) {
                (Some(place), Some(device)) => device.set_place(place),
                // What it says as it is closed is of no more use: nothing is on it.
                (None, device) => drop(device.take().map(ArrayDevice::close)),
                (Some(_), None) => {}
            }
            place.is_some()
        });
    }

    /// Takes all devices away, one after the other; the first that cannot be closed.
    pub(super) fn close(&self) -> RowResult<()> {
        let mut failed = Ok(());
        for device in self.devices.values() {
            let open = device.lock().take();
            let closed = open.map_or(Ok(()), |device| {
                let place = device.place();
                device.close().map_err(|error| super::failure::refused(place, &error))
            });
            failed = failed.and(closed);
        }
        failed
    }
}
