//! Rows on key-value devices: one device, or an array of several that share the keys.
//!
//! Owns [`KvssdBackend`], a [`Backend`] of rows over pairs. A key is on one device, by its hash over 1,024 shards; a map of them is on every device. Promises what each device promises ([`AckMode`]), a device
//! at a time: after a power cut each has a prefix of its commands, all that was acknowledged if the mode says so. A device that fails takes its share of the keys with it until the array is opened again, and no
//! other. One process has the array: its files are locked. Must not know what a value says.
//!
//! A session's poll carries out what was started, on the caller's thread: as long as the devices take, which in [`AckMode::Immediate`] is a sync. There is no thread.

mod array_device;
mod failure;
mod map;
mod opening;
mod place;
mod session;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use hedgerow_device::CrashSim;
use hedgerow_row::backend::{Backend, Capabilities, Session};
use hedgerow_row::{Error, Result};

pub use failure::ArrayError;
pub use place::{ArrayPlace, check_places};

use crate::command::KEY_BYTES_MAX;
use crate::device::{AckMode, Device, DeviceOptions, OpenReport};
use crate::flash::geometry::Geometry;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use array_device::ArrayDevice;
use failure::{closed, refused};
use map::ArrayMap;
use session::{DEPTH_MAX, KvssdSession};

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
}

impl KvssdOptions {
    /// With this [`AckMode`].
    pub fn ack(ack: AckMode) -> KvssdOptions {
        KvssdOptions { device: DeviceOptions { ack, ..DeviceOptions::default() }, geometry: None }
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
        f.debug_struct("KvssdBackend").field("devices", &self.array.devices.len()).finish()
    }
}

/// What sessions share.
struct Array {
    map: ArrayMap,
    /// None once closed.
    devices: Vec<Mutex<Option<ArrayDevice>>>,
    /// The next mark, and the first that no device has set aside.
    marks: AtomicU64,
    marks_end: AtomicU64,
    /// Held while more are set aside.
    reserving: Mutex<()>,
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
        let (map, devices) = opening::open(media, options)?;
        Ok(KvssdBackend { array: Arc::new(Array::new(map, devices)) })
    }

    /// What opening found damaged on each device.
    pub fn open_reports(&self) -> &[OpenReport] {
        &self.array.reports
    }

    /// Runs `look` on a device, in its turn; none if there is no such device, or the array is closed. To look at it, and for tests: whoever changes pairs there has rows answer otherwise than they should.
    pub fn with_device<R>(&self, number: usize, look: impl FnOnce(&mut Device) -> R) -> Option<R> {
        let mut device = self.array.devices.get(number)?.lock();
        device.as_mut().map(|device| look(device.device()))
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

    fn close(&self) -> Result<()> {
        self.array.is_closed.store(true, Ordering::Release);
        let mut failed = Ok(());
        for (number, device) in self.array.devices.iter().enumerate() {
            let open = device.lock().take();
            let closed = open.map_or(Ok(()), ArrayDevice::close);
            failed = failed.and(closed.map_err(|error| refused(number, &error)));
        }
        failed
    }
}

impl Array {
    fn new(map: ArrayMap, mut devices: Vec<ArrayDevice>) -> Array {
        let value_bytes_max = devices.iter().map(ArrayDevice::value_bytes_max).min().unwrap_or(0);
        let reports = devices.iter_mut().map(|device| device.device().open_report().clone()).collect();
        let capabilities = Capabilities {
            name: "kvssd",
            key_bytes_max: KEY_BYTES_MAX,
            value_bytes_max,
            depth_max: DEPTH_MAX,
            persists: true,
        };
        Array {
            marks: AtomicU64::new(map.marks - MARKS_RESERVED),
            marks_end: AtomicU64::new(map.marks),
            map,
            devices: devices.into_iter().map(|device| Mutex::new(Some(device))).collect(),
            reserving: Mutex::new(()),
            is_closed: AtomicBool::new(false),
            capabilities,
            reports,
        }
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// The number of the device that has a key.
    fn device_of(&self, key: &[u8]) -> usize {
        self.map.device_of(key)
    }

    /// Runs `step` on each device, whatever the others say; the first error.
    fn on_each(&self, mut step: impl FnMut(&mut ArrayDevice) -> Result<()>) -> Result<()> {
        let mut failed = Ok(());
        for device in &self.devices {
            let done = device.lock().as_mut().ok_or_else(closed).and_then(&mut step);
            failed = failed.and(done);
        }
        failed
    }

    /// Sets more marks aside if few are left. One device that keeps it will do: the array is opened with all of them.
    fn reserve_marks(&self) -> Result<()> {
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
        for (number, device) in self.devices.iter().enumerate() {
            let map = ArrayMap { marks: end, device: number as u16, ..self.map.clone() };
            let stored = match &mut *device.lock() {
                Some(device) => device.store_map(&map).map_err(|error| refused(number, &error)),
                None => Err(closed()),
            };
            kept |= stored.is_ok();
            failed = failed.and(stored);
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
