//! Rows on key-value devices: one device, or an array of several that share the keys.
//!
//! Owns [`KvssdBackend`], a [`Backend`] of rows over pairs. A key is on one device, or on two where the array was made with two copies, by its hash over 1,024 shards; a map of them is on every device. Devices come and go while sessions work ([`Mover`]). Promises what each device promises ([`AckMode`]), a device
//! at a time: after a power cut each has a prefix of its commands, all that was acknowledged if the mode says so. A device that fails takes its share of the keys with it until the array is opened again, and no
//! other; where there are two copies none. One process has the array: its files are locked. Must not know what a value says.
//!
//! A session's poll carries out what was started, on the caller's thread: as long as the devices take, which in [`AckMode::Immediate`] is a sync. There is no thread.

mod array_device;
mod batch;
mod copies;
mod failure;
mod intent;
mod layout;
mod map;
mod mover;
mod opening;
mod outcome;
mod place;
mod redo;
mod resync;
mod session;
mod writes;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use hedgerow_device::CrashSim;
use hedgerow_row::backend::{Backend, Capabilities, Session};
use hedgerow_row::{Error, Result};

pub use failure::ArrayError;
pub use mover::{MoveProgress, Mover};
pub use place::{ArrayMember, ArrayPlace, ArrayWork, check_places, next_opening};

use crate::command::KEY_BYTES_MAX;
use crate::device::{AckMode, Device, DeviceOptions, OpenReport};
use crate::flash::geometry::Geometry;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, RwLock};
use array_device::MemberDevices;
use failure::{closed, refused};
use intent::{INTENT_BYTES, Intents};
use layout::Layout;
use map::{ArrayMap, DEVICES_MAX, MapWork};
use session::{DEPTH_MAX, KvssdSession};
use writes::ShardWrites;

/// Marks that are set aside at once, durably, and how many are left when the next are.
const MARKS_RESERVED: u64 = 1 << 32;
const MARKS_LOW: u64 = 1 << 31;

/// How an array is opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvssdOptions {
    /// Of each device.
    pub device: DeviceOptions,
    /// Of devices that are made. Default: 1 GiB each.
    pub geometry: Option<Geometry>,
    /// Copies of each key, on as many devices: 1 or 2, for an array that is made. One that is there must have been made so. Default: as it is, and 1 where it is made.
    pub copies: Option<usize>,
    /// Whether devices are opened without others that may have gone on without them ([`ArrayError::Undecided`]). Default: they are refused.
    pub alone: bool,
}

/// What there is of the copies of an array.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CopiesState {
    /// Copies of each key that the array was made with.
    pub copies: usize,
    /// Devices that are out, by their places from 1: they failed, or were missing as it was opened.
    pub out: Vec<usize>,
    /// Shards of 1,024 that have one copy where they are to have two.
    pub shards_alone: usize,
    /// How often a device went out since the array was opened.
    pub times_out: u64,
}

impl KvssdOptions {
    /// With this [`AckMode`].
    pub fn ack(ack: AckMode) -> KvssdOptions {
        KvssdOptions { device: DeviceOptions { ack, ..DeviceOptions::default() }, ..KvssdOptions::default() }
    }
}

/// What a device of an array is on.
#[derive(Debug, Clone)]
pub enum ArrayMedium {
    /// A file, which is made if there is none.
    File(PathBuf),
    /// The simulated medium.
    Simulated(CrashSim),
    /// Memory of this process, which ends with it.
    Memory,
}

/// Rows on one device or several. All clones have the same ones.
#[derive(Clone)]
pub struct KvssdBackend {
    array: Arc<Array>,
}

impl fmt::Debug for KvssdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.array.layout.read().map().members.len();
        f.debug_struct("KvssdBackend").field("devices", &devices).finish()
    }
}

/// What sessions share.
struct Array {
    layout: RwLock<Layout>,
    /// Whether somebody moves shards, or adds a device.
    is_moving: AtomicBool,
    /// For devices that are added.
    options: KvssdOptions,
    /// The next mark, and the first that no device has set aside.
    marks: AtomicU64,
    marks_end: AtomicU64,
    /// What batches are about to do. Nobody who has it asks for the lock of a device.
    intents: Mutex<Intents>,
    /// Held while more are set aside.
    reserving: Mutex<()>,
    /// Which shards are being written, where there are two copies of them. Nobody who has it asks for another lock.
    writes: Mutex<ShardWrites>,
    /// Held while everything is made durable there; taken with the layout's lock, and before those of devices.
    flushing: Mutex<()>,
    /// How often a device went out.
    times_out: AtomicU64,
    is_closed: AtomicBool,
    capabilities: Capabilities,
    reports: Vec<OpenReport>,
}

impl KvssdBackend {
    /// The array on these media, in the order that it was made with. Where there is nothing on any of them it is made.
    ///
    /// # Errors
    /// [`ArrayError`]: a device that is missing, of another array, older than the others, or in another's place; what a device refuses.
    pub fn open(
        media: &[ArrayMedium],
        options: &KvssdOptions,
    ) -> std::result::Result<KvssdBackend, ArrayError> {
        let (map, devices, intents) = opening::open(media, options)?;
        Ok(KvssdBackend { array: Arc::new(Array::new(map, devices, intents, options.clone())) })
    }

    /// What opening found damaged on each device; nothing of one that is out.
    pub fn open_reports(&self) -> &[OpenReport] {
        &self.array.reports
    }

    /// Adds a device, which is the last from then on: the array is opened with it. It has no keys until [`KvssdBackend::rebalance`] has given it its share. A file is made if there is none, of the geometry that the array was opened with.
    ///
    /// # Errors
    /// [`ArrayError`], by the place that the device would have: what it refuses, also where a process has it open; `Foreign` where it is of another array or has pairs; `ValueBytes` where it takes shorter values than the others; `Count`, `NumbersSpent`, `Moving`, `Closed`. It is not of the array then.
    pub fn add_device(&self, medium: &ArrayMedium) -> std::result::Result<(), ArrayError> {
        let _moving = self.array.begin_move()?;
        let map = self.array.layout.read().map().clone();
        let given = map.members.len() + 1;
        if given > DEVICES_MAX {
            return Err(ArrayError::Count { given, max: DEVICES_MAX });
        }
        let number = map.members.last().map_or(0, |last| usize::from(*last) + 1);
        if number >= DEVICES_MAX {
            return Err(ArrayError::NumbersSpent { max: DEVICES_MAX });
        }
        let mut device = opening::added(medium, &self.array.options, &map)?;
        let failed = |error| ArrayError::Device { device: given, error };
        if map.copies() > 1 {
            writes::clear_marks(&mut device).map_err(failed)?;
        }
        let (takes, needs) = (device.value_bytes_max(), self.array.capabilities.value_bytes_max);
        if takes < needs {
            return Err(ArrayError::ValueBytes { takes, needs });
        }
        let added = self.array.change_map(Some((number, device)), |map| {
            map.members.insert(number as u16);
        });
        if added.is_err() {
            // The next map of this generation counts, and not the one that the device may have.
            self.array.marks_end.fetch_add(1, Ordering::Relaxed);
        }
        added
    }

    /// Puts a device in the place of one, from 0, whose keys have a second copy each; one that still works goes out first. It is a new one, whose file is made if there is none, or one that was of this array: what is on it
    /// is deleted. Nothing is copied but by the steps of what is returned, which has it have second copies until every shard has two again.
    ///
    /// # Errors
    /// [`ArrayError`]: `OneCopy`; `NoCopy` where the one in its place has something alone; `NoDevice`, `Foreign`, `ValueBytes`, `Moving`, `Closed`, and what the devices refuse. One that went out stays out.
    pub fn replace_device(
        &self,
        place: usize,
        medium: &ArrayMedium,
    ) -> std::result::Result<Mover, ArrayError> {
        let turn = self.array.begin_move()?;
        let map = self.array.layout.read().map().clone();
        let has = map.members.len();
        if map.copies() == 1 {
            return Err(ArrayError::OneCopy);
        }
        let number = map.members.iter().nth(place).copied();
        let number = number.ok_or(ArrayError::NoDevice { device: place + 1, has })?;
        if !map.out.contains(&number) {
            self.array.put_out(usize::from(number))?;
        }
        let map = self.array.layout.read().map().clone();
        let (device, has_strays) = opening::replacement(medium, &self.array.options, &map, place)?;
        let (takes, needs) = (device.value_bytes_max(), self.array.capabilities.value_bytes_max);
        if takes < needs {
            return Err(ArrayError::ValueBytes { takes, needs });
        }
        let added = self.array.change_map(Some((usize::from(number), device)), |map| {
            map.out.remove(&number);
            map.strays.extend(has_strays.then_some(number));
            // From here on it is unfinished.
            map.cancel_moves();
            map.work = MapWork::Rebuild;
        });
        if let Err(error) = added {
            self.array.marks_end.fetch_add(1, Ordering::Relaxed);
            return Err(error);
        }
        Ok(Mover::new(turn, MapWork::Rebuild))
    }

    /// Makes second copies of the shards that have one, on the devices that are there. Nothing happens but by the steps of what is returned.
    ///
    /// # Errors
    /// [`ArrayError::OneCopy`], [`ArrayError::Moving`], [`ArrayError::Closed`].
    pub fn rebuild(&self) -> std::result::Result<Mover, ArrayError> {
        let turn = self.array.begin_move()?;
        match self.array.layout.read().map().copies() {
            1 => Err(ArrayError::OneCopy),
            _ => Ok(Mover::new(turn, MapWork::Rebuild)),
        }
    }

    /// What there is of its copies.
    pub fn copies_state(&self) -> CopiesState {
        let layout = self.array.layout.read();
        let map = layout.map();
        CopiesState {
            copies: map.copies(),
            out: map.out.iter().filter_map(|number| Some(map.place_of(*number)? + 1)).collect(),
            shards_alone: map.shards_alone(),
            times_out: self.array.times_out.load(Ordering::Relaxed),
        }
    }

    /// Moves as few shards as needed for each device to have its share of them, which are as many for each. Nothing happens but by the steps of what is returned ([`Mover::run`] takes all of them).
    ///
    /// # Errors
    /// [`ArrayError::Moving`], [`ArrayError::Closed`].
    pub fn rebalance(&self) -> std::result::Result<Mover, ArrayError> {
        Ok(Mover::new(self.array.begin_move()?, MapWork::Spread))
    }

    /// Moves what is on a device, by its place from 0, to the others, after which it is no more of the array. Nothing happens but by the steps of what is returned.
    ///
    /// # Errors
    /// [`ArrayError::NoDevice`], [`ArrayError::LastDevice`], [`ArrayError::Moving`], [`ArrayError::Closed`].
    pub fn remove_device(&self, place: usize) -> std::result::Result<Mover, ArrayError> {
        let turn = self.array.begin_move()?;
        let map = self.array.layout.read().map().clone();
        let members = &map.members;
        let Some(number) = members.iter().nth(place) else {
            return Err(ArrayError::NoDevice { device: place + 1, has: members.len() });
        };
        if members.len() == 1 {
            return Err(ArrayError::LastDevice);
        }
        let left = map.in_members().filter(|member| member != number).count();
        if left < map.copies() {
            return Err(ArrayError::Copies { copies: map.copies(), devices: left });
        }
        Ok(Mover::new(turn, MapWork::Remove(*number)))
    }

    /// What goes on with a move that did not come to its end: its steps were not taken, or the process ended. Until then every key is where it was, or where it went. None if there is nothing to do.
    ///
    /// # Errors
    /// [`ArrayError::Moving`], [`ArrayError::Closed`].
    pub fn unfinished_move(&self) -> std::result::Result<Option<Mover>, ArrayError> {
        // What there is to do is looked at in the turn to do it: another may just be ending it.
        let turn = self.array.begin_move()?;
        let (work, is_clean) = {
            let layout = self.array.layout.read();
            (layout.map().work, layout.map().strays.is_empty())
        };
        match work == MapWork::Nothing && is_clean {
            true => Ok(None),
            false => Ok(Some(Mover::new(turn, work))),
        }
    }

    /// Runs `look` on a device, by its place from 0, in its turn; none if there is no such device, it is out, or the array is closed. To look at it, and for tests: whoever changes pairs there has rows answer otherwise than they should.
    pub fn with_device<R>(&self, number: usize, look: impl FnOnce(&mut Device) -> R) -> Option<R> {
        let layout = self.array.layout.read();
        let number = layout.map().members.iter().nth(number).map(|number| usize::from(*number))?;
        layout.with(number, |device| look(device.device()))
    }
}

impl Backend for KvssdBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.array.capabilities
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        self.array.check_open()?;
        Ok(Box::new(KvssdSession::new(Arc::clone(&self.array))))
    }

    /// What there is of devices and copies.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let devices = self.array.layout.read().map().members.len();
        let CopiesState { copies, out, shards_alone, times_out } = self.copies_state();
        vec![
            ("kvssd_devices", devices as u64),
            ("kvssd_copies", copies as u64),
            ("kvssd_devices_out", out.len() as u64),
            ("kvssd_times_out", times_out),
            ("kvssd_shards_alone", shards_alone as u64),
        ]
    }

    fn close(&self) -> Result<()> {
        self.array.is_closed.store(true, Ordering::Release);
        if self.array.layout.read().map().copies() > 1 {
            return self.array.close_copied();
        }
        let layout = self.array.layout.read();
        // What is left of intents the next opening does.
        let settled = self.array.settle_intents(&layout).map_err(Error::from);
        let is_closed = layout.close();
        settled.and(is_closed)
    }
}

/// Given back as it goes: another may move shards then.
struct MoveTurn {
    array: Arc<Array>,
}

impl Drop for MoveTurn {
    fn drop(&mut self) {
        self.array.is_moving.store(false, Ordering::Release);
    }
}

impl Array {
    fn new(map: ArrayMap, mut devices: MemberDevices, intents: Intents, options: KvssdOptions) -> Array {
        let value_bytes_max = devices.values().map(|device| device.value_bytes_max()).min().unwrap_or(0);
        // Of one that is out there is none.
        let reports = map.members.iter().map(|number| {
            let device = devices.get_mut(&usize::from(*number));
            device.map_or_else(OpenReport::default, |device| device.device().open_report().clone())
        });
        let reports = reports.collect();
        let capabilities = Capabilities {
            name: "kvssd",
            key_bytes_max: KEY_BYTES_MAX,
            value_bytes_max,
            depth_max: DEPTH_MAX,
            persists: true,
            // Its intent is one pair.
            batch_bytes_max: value_bytes_max.saturating_sub(INTENT_BYTES),
        };
        Array {
            marks: AtomicU64::new(map.marks - MARKS_RESERVED),
            marks_end: AtomicU64::new(map.marks),
            layout: RwLock::new(Layout::new(map, devices)),
            is_moving: AtomicBool::new(false),
            options,
            intents: Mutex::new(intents),
            reserving: Mutex::new(()),
            writes: Mutex::new(ShardWrites::NONE),
            flushing: Mutex::new(()),
            times_out: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            capabilities,
            reports,
        }
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// Takes the turn to move shards.
    fn begin_move(self: &Arc<Self>) -> std::result::Result<MoveTurn, ArrayError> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(ArrayError::Closed);
        }
        match self.is_moving.swap(true, Ordering::AcqRel) {
            true => Err(ArrayError::Moving),
            false => Ok(MoveTurn { array: Arc::clone(self) }),
        }
    }

    /// Puts a changed map in force; nobody holds a device meanwhile. For who has the turn to move shards.
    fn change_map(
        &self,
        added: Option<(usize, array_device::ArrayDevice)>,
        change: impl FnOnce(&mut ArrayMap),
    ) -> std::result::Result<(), ArrayError> {
        self.change_layout(&mut self.layout.write(), added, change)
    }

    fn change_layout(
        &self,
        layout: &mut Layout,
        added: Option<(usize, array_device::ArrayDevice)>,
        change: impl FnOnce(&mut ArrayMap),
    ) -> std::result::Result<(), ArrayError> {
        // Those that are on a device which goes would be lost, with what they say is left to be done.
        let mut settled = self.settle_intents(layout);
        if let (Err(ArrayError::Device { device, error }), true) = (&settled, layout.map().copies() > 1) {
            self.put_out_at(layout, device - 1, error);
            settled = self.settle_intents(layout);
        }
        settled?;
        if self.intents.lock().len() > 0 {
            return Err(ArrayError::HalfDone);
        }
        let mut map = ArrayMap { marks: self.marks_end.load(Ordering::Acquire), ..layout.map().clone() };
        change(&mut map);
        let in_force = layout.put_in_force(map, added);
        if let (Err(ArrayError::Device { device, error }), true) = (&in_force, layout.map().copies() > 1) {
            self.put_out_at(layout, device - 1, error);
        }
        in_force?;
        if layout.map().copies() > 1 {
            // All of them were flushed, and nobody wrote meanwhile.
            self.writes.lock().forget();
            for number in layout.behind() {
                // One that does not know the map is not to be asked when the array is opened again.
                self.put_out_of(layout, number)?;
            }
        }
        Ok(())
    }

    /// Closes all devices, after which no opening has to compare copies.
    fn close_copied(&self) -> Result<()> {
        // Nobody writes from here on.
        let layout = self.layout.write();
        let settled = self.settle_intents(&layout).map_err(Error::from);
        let flushed = layout.on_each(array_device::ArrayDevice::persist);
        let clear = |device: &mut array_device::ArrayDevice| {
            let place = device.place();
            writes::clear_marks(device).map_err(|error| refused(place, &error))
        };
        let cleared = flushed.and_then(|()| layout.on_each(clear));
        // Whatever was refused: else their files stay in use.
        let is_closed = layout.close();
        settled.and(cleared).and(is_closed)
    }

    /// Sets more marks aside if few are left. One device that keeps it will do: the array is opened with all of them.
    fn reserve_marks(&self, layout: &Layout) -> Result<()> {
        let is_low = || {
            let end = self.marks_end.load(Ordering::Acquire);
            end - self.marks.load(Ordering::Relaxed).min(end) < MARKS_LOW
        };
        if !is_low() {
            return Ok(());
        }
        let _reserving = self.reserving.lock();
        if !is_low() {
            return Ok(());
        }
        let Some(end) = self.marks_end.load(Ordering::Acquire).checked_add(MARKS_RESERVED) else {
            return Err(Error::new(hedgerow_row::ErrorKind::Full, "all marks of this array are given"));
        };
        let (mut kept, mut failed) = (false, Ok(()));
        for number in layout.numbers() {
            let map = ArrayMap { marks: end, device: number as u16, ..layout.map().clone() };
            let stored = layout.with(number, |device| {
                device.store_map(&map).map_err(|error| refused(device.place(), &error))
            });
            let stored = stored.unwrap_or_else(|| Err(closed()));
            kept |= stored.is_ok();
            failed = failed.and(stored);
        }
        if layout.map().copies() > 1 && failed.is_err() {
            // It may be opened without the one that keeps it. The one that does not is put out when it is written to; until then there are enough.
            let left =
                self.marks_end.load(Ordering::Acquire).saturating_sub(self.marks.load(Ordering::Relaxed));
            return if left > MARKS_LOW / 2 { Ok(()) } else { failed };
        }
        match kept {
            true => {
                self.marks_end.store(end, Ordering::Release);
                Ok(())
            }
            false => failed,
        }
    }
}

#[cfg(test)]
mod tests;
