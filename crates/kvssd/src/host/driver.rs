//! Who drives a device for queue pairs: the caller, or a thread of the device's own.
//!
//! Owns [`QueueDriver`], [`DeviceThread`] and [`QueueOpener`]. Promises that queues have their turns, each up to eight commands of them; that a queue's commands are carried out in its order; and that whatever
//! ends a driver, a panic too, its queues are told. Must not know how a device carries commands out.
//!
//! ```
//! use std::time::Duration;
//!
//! use hedgerow_device::{FastTier, FastTierOptions};
//! use hedgerow_kvssd::{Device, DeviceOptions, DeviceThread, Geometry, HostRequest, KvAnswer, KvCommand, PairKey, StoreMode};
//!
//! let tier = FastTier::dram(&FastTierOptions::default())?;
//! let geometry = Geometry { page_bytes: 4096, block_bytes: 64 << 10, blocks: 16 };
//! let thread = DeviceThread::start(Device::format(tier, geometry, DeviceOptions::default())?)?;
//! let mut queue = thread.opener().open(8, 4096)?;
//! let name = PairKey::new(b"example")?;
//! let made = queue.call(HostRequest::Other(KvCommand::CreateSpace { name, bytes_max: 0 }))?;
//! let KvAnswer::Space(info) = made else { panic!("a key space") };
//! let (space, mode) = (info.id, StoreMode::Post);
//! let stored = queue.submit(HostRequest::Store { space, key: b"key", value: b"value", mode })?;
//! let is_stored = queue.wait(stored, Duration::from_secs(10), |result, _| result.is_ok())?;
//! assert_eq!(is_stored, Some(true));
//! drop(queue);
//! thread.stop()?.close()?;
//! # Ok::<(), hedgerow_kvssd::KvError>(())
//! ```

use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use hedgerow_device::{DeviceError, spawn};

use super::locks::Arc;
use super::queue::QueuePair;
use super::rings::{Doorbell, QueueRings};
use crate::code::{KvError, Result};
use crate::device::{Completion, Device, Out};

/// Commands of a queue before the next has its turn.
const COMMANDS_A_TURN: usize = 8;
/// A queue is no deeper.
pub const QUEUE_DEPTH_MAX: usize = 65_535;

/// Opens queue pairs over a device that is driven elsewhere. Cheap to clone.
#[derive(Debug, Clone)]
pub struct QueueOpener {
    doorbell: Arc<Doorbell>,
    value_bytes_max: u64,
}

impl QueueOpener {
    /// A queue pair for `depth` commands under way, 1 to 65,535, and the memory for these: for each a key and a value buffer of `buffer_bytes`.
    ///
    /// # Errors
    /// [`KvError::Param`]: a depth out of bounds. [`KvError::Closed`]: the device is not driven any more.
    pub fn open(&self, depth: usize, buffer_bytes: usize) -> Result<QueuePair> {
        if !(1..=QUEUE_DEPTH_MAX).contains(&depth) {
            return Err(KvError::Param { what: "a queue is 1 to 65535 commands deep" });
        }
        let rings = Arc::new(QueueRings::new(depth));
        self.doorbell.open(rings.clone())?;
        Ok(QueuePair::new(rings, self.doorbell.clone(), depth, buffer_bytes, self.value_bytes_max))
    }
}

#[derive(Debug)]
struct DrivenQueue {
    rings: Arc<QueueRings>,
    /// Its commands that the device has.
    in_device: usize,
}

/// The queues of a driver. However it ends, they are told.
#[derive(Debug)]
struct QueueSet {
    /// By the number that is in the upper half of a command's tag.
    queues: Vec<Option<DrivenQueue>>,
    doorbell: Arc<Doorbell>,
}

impl Drop for QueueSet {
    fn drop(&mut self) {
        let error = KvError::Closed { why: "nobody drives it any more".into() };
        let unseen = self.doorbell.close(&error);
        let known = self.queues.drain(..).flatten().map(|queue| queue.rings);
        known.chain(unseen).for_each(|rings| rings.close(&error));
    }
}

/// Drives a device for its queues, a step at a time, in the caller's thread.
#[derive(Debug)]
pub struct QueueDriver {
    device: Device,
    set: QueueSet,
    /// The queue that has the first turn.
    first: usize,
    out: Out,
    /// Queues that have completions of this step.
    told: Vec<usize>,
}

impl QueueDriver {
    /// A driver of this device, without queues.
    pub fn new(device: Device) -> QueueDriver {
        let set = QueueSet { queues: Vec::new(), doorbell: Arc::new(Doorbell::new()) };
        QueueDriver { device, set, first: 0, out: Out::default(), told: Vec::new() }
    }

    /// Opens queues; may be given to other threads.
    pub fn opener(&self) -> QueueOpener {
        let value_bytes_max = self.device.geometry().value_bytes_max();
        QueueOpener { doorbell: self.set.doorbell.clone(), value_bytes_max }
    }

    /// The device, to be looked at.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The device, without what is under way: what no step has carried out is dropped, and queues are told so.
    pub fn into_device(mut self) -> Device {
        self.device.drop_queued();
        self.device
    }

    /// Takes some of what was submitted, has the device take a step, and hands out what is complete. Never waits. Whether there is more to do.
    pub fn drive(&mut self) -> bool {
        self.take_opened();
        let is_left = self.take_submitted();
        let has_more = self.device.step(0, &mut self.out);
        self.out.events.clear();
        self.hand_out();
        is_left || has_more
    }

    fn take_opened(&mut self) {
        for rings in self.set.doorbell.take_opened() {
            let queue = Some(DrivenQueue { rings, in_device: 0 });
            match self.set.queues.iter().position(Option::is_none) {
                Some(at) => self.set.queues[at] = queue,
                None => self.set.queues.push(queue),
            }
        }
    }

    /// Gives submitted commands to the device, while it takes any. Whether some are left.
    fn take_submitted(&mut self) -> bool {
        let (count, mut is_left) = (self.set.queues.len(), false);
        for n in 0..count {
            let at = (self.first + n) % count;
            let Some(queue) = &mut self.set.queues[at] else { continue };
            let mut state = queue.rings.lock();
            if state.is_abandoned && queue.in_device == 0 {
                drop(state);
                self.set.queues[at] = None;
                continue;
            }
            for _ in 0..COMMANDS_A_TURN {
                let Some((slot, command)) = state.submitted.pop_front() else { break };
                let tag = (at as u64) << 32 | u64::from(slot);
                match self.device.submit(tag, command) {
                    Ok(()) => queue.in_device += 1,
                    Err(refused) if matches!(refused.error, KvError::QueueFull { .. }) => {
                        state.submitted.push_front((slot, refused.command));
                        break;
                    }
                    Err(refused) => {
                        queue.in_device += 1;
                        let buffer = refused.command.into_buffer();
                        self.out.completions.push(Completion { tag, result: Err(refused.error), buffer });
                    }
                }
            }
            is_left |= !state.submitted.is_empty();
        }
        self.first = (self.first + 1) % count.max(1);
        is_left
    }

    fn hand_out(&mut self) {
        for Completion { tag, result, buffer } in self.out.completions.drain(..) {
            let (at, slot) = ((tag >> 32) as usize, tag as u32);
            let Some(Some(queue)) = self.set.queues.get_mut(at) else { continue };
            queue.in_device -= 1;
            let mut state = queue.rings.lock();
            if !state.is_abandoned {
                state.complete.push_back((slot, result, buffer));
                self.told.push(at);
            }
        }
        self.told.sort_unstable();
        self.told.dedup();
        for at in self.told.drain(..) {
            if let Some(queue) = &self.set.queues[at] {
                queue.rings.tell(queue.rings.lock());
            }
        }
    }

    /// Queues take no more commands.
    fn refuse_more(&self) {
        for queue in self.set.queues.iter().flatten() {
            queue.rings.lock().is_refusing = true;
        }
    }

    /// Drives until it has to stop and nothing is left to do.
    pub(super) fn run(mut self) -> Device {
        let doorbell = self.set.doorbell.clone();
        loop {
            // Before the look: what is rung for from here on keeps the thread from sleep.
            doorbell.hush();
            // Whoever submits without end keeps it from no stop.
            while self.drive() && !doorbell.is_stopping() {}
            if doorbell.is_stopping() {
                self.take_opened();
                self.refuse_more();
                while self.drive() {}
                return self.into_device();
            }
            doorbell.sleep();
        }
    }
}

/// A device in a thread of its own, which sleeps while there is nothing to do.
#[derive(Debug)]
pub struct DeviceThread {
    opener: QueueOpener,
    thread: Option<JoinHandle<()>>,
    device: Receiver<Device>,
}

impl DeviceThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`KvError::Medium`]: the operating system has no more threads for this process.
    pub fn start(device: Device) -> Result<DeviceThread> {
        let driver = QueueDriver::new(device);
        let (opener, (send, receive)) = (driver.opener(), channel());
        let run = move || {
            // Nobody takes it back where the owner is gone.
            send.send(driver.run()).ok();
        };
        let thread = spawn("hedgerow-kvssd", run).map_err(|source| {
            KvError::from(DeviceError::Io { what: "start a thread for", path: "a device".into(), source })
        })?;
        Ok(DeviceThread { opener, thread: Some(thread), device: receive })
    }

    /// Opens queues; may be given to other threads.
    pub fn opener(&self) -> &QueueOpener {
        &self.opener
    }

    /// Has the thread carry out what was submitted, take no more, and end; the device. Queues are told.
    ///
    /// # Errors
    /// [`KvError::Closed`]: the thread had panicked.
    pub fn stop(mut self) -> Result<Device> {
        self.end();
        self.device.recv().map_err(|_| KvError::Closed { why: "its thread panicked".into() })
    }

    fn end(&mut self) {
        self.opener.doorbell.stop();
        if let Some(thread) = self.thread.take() {
            // A panic is told by the device that does not come.
            thread.join().ok();
        }
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(all(test, shuttle))]
mod shuttle;
#[cfg(all(test, not(shuttle)))]
mod tests;
