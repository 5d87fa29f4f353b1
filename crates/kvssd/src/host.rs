//! The host's side: queue pairs over a device, driven by their callers, by a thread, or in virtual time.
//!
//! Owns [`Host`], its queues and their buffers. Promises that memory is set aside when a queue is opened, `depth` times a key and a value buffer, and does not grow with pairs or
//! commands; that each completion goes to the queue that started the command, once; and that whoever waits or polls drives the device: there is no thread. `driver` has queue pairs that others drive, `sim` a host in virtual time. Must not know
//! what the device does with a command.
//!
//! A buffer stands for the memory that a drive's controller would fetch a pair from: a store copies the value there, and the device writes it to its place from
//! there.
//!
//! ```
//! use hedgerow_device::{FastTier, FastTierOptions};
//! use hedgerow_kvssd::{Device, DeviceOptions, Geometry, Host, HostRequest, KvAnswer, StoreMode};
//!
//! let tier = FastTier::dram(&FastTierOptions::default())?;
//! let geometry = Geometry { page_bytes: 4096, block_bytes: 64 << 10, blocks: 16 };
//! let mut host = Host::new(Device::format(tier, geometry, DeviceOptions::default())?);
//! let queue = host.open_queue(8, 4096);
//! let space = host.create_space(queue, b"example", 0)?;
//! let (key, value, mode) = (&b"key"[..], &b"value"[..], StoreMode::Post);
//! let first = host.start(queue, HostRequest::Store { space, key, value, mode })?;
//! let request = HostRequest::Retrieve { space, key, offset: 0, bytes: 4096, delete: false };
//! let second = host.start(queue, request)?;
//! host.wait(queue, second, |result, read| {
//!     assert_eq!((result.unwrap(), read), (KvAnswer::Retrieved { value_bytes: 5 }, &b"value"[..]));
//! })?;
//! host.poll(queue, |ticket, result, _| assert_eq!((ticket, result.unwrap()), (first, KvAnswer::Stored)));
//! host.into_device().close()?;
//! # Ok::<(), hedgerow_kvssd::KvError>(())
//! ```

mod cache;
mod driver;
mod locks;
mod node;
mod queue;
mod rings;
mod sim;

use std::collections::VecDeque;

use crate::code::{KvError, Result};
use crate::command::{KEY_BYTES_MAX, KvAnswer, KvCommand, PairKey, SpaceId, SpaceInfo, StoreMode};
use crate::device::{Completion, Device, Out};
pub use cache::CachedQueue;
pub use driver::{DeviceThread, QUEUE_DEPTH_MAX, QueueDriver, QueueOpener};
pub use node::{NodeFigures, NodeLoad, NodeModel};
pub use queue::{QueuePair, QueueReady};
pub use sim::{SimCompletion, SimHost};

/// A queue pair of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueId(u32);

/// Which of a queue's commands a completion is for. Never given twice by one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostTicket(u64);

/// What is started. What it borrows is free again when [`Host::start`] returns.
#[derive(Debug)]
pub enum HostRequest<'a> {
    /// [`KvCommand::Store`].
    Store {
        /// Where.
        space: SpaceId,
        /// Under which key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// What must be there.
        mode: StoreMode,
    },
    /// [`KvCommand::Retrieve`].
    Retrieve {
        /// Where.
        space: SpaceId,
        /// Under which key.
        key: &'a [u8],
        /// From which byte on.
        offset: u64,
        /// So many bytes at most.
        bytes: usize,
        /// Deletes the pair in the same step.
        delete: bool,
    },
    /// [`KvCommand::IterateNext`].
    IterateNext {
        /// The handle.
        iterator: u32,
        /// So many bytes at most.
        bytes: usize,
    },
    /// A command without a buffer of its own; others are refused with [`KvError::Param`].
    Other(KvCommand),
}

/// Room for one command.
#[derive(Debug)]
struct QueueSlot {
    buffer: Vec<u8>,
    /// What is under way in it.
    ticket: Option<HostTicket>,
    result: Option<Result<KvAnswer>>,
}

#[derive(Debug)]
struct HostQueue {
    slots: Vec<QueueSlot>,
    free: Vec<u32>,
    /// Slots whose commands are complete, in that order.
    complete: VecDeque<u32>,
    buffer_bytes: usize,
}

/// Queue pairs over one device, driven by their callers.
#[derive(Debug)]
pub struct Host {
    device: Device,
    queues: Vec<HostQueue>,
    last_ticket: u64,
    now_ns: u64,
    out: Out,
}

impl Host {
    /// A host of this device, without queues.
    pub fn new(device: Device) -> Host {
        Host { device, queues: Vec::new(), last_ticket: 0, now_ns: 0, out: Out::default() }
    }

    /// The device, without what is under way: commands that no step has carried out are dropped, and a deletion of a group ends where it is.
    pub fn into_device(mut self) -> Device {
        self.device.drop_queued();
        self.device
    }

    /// The device, to be looked at.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The time that the device is told from now on, in ns.
    pub fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Opens a queue pair for `depth` commands under way, and sets their memory aside: for each a key and a value buffer of `buffer_bytes`.
    pub fn open_queue(&mut self, depth: usize, buffer_bytes: usize) -> QueueId {
        let slot = || QueueSlot { buffer: Vec::with_capacity(buffer_bytes), ticket: None, result: None };
        let slots: Vec<QueueSlot> = (0..depth).map(|_| slot()).collect();
        let free = (0..slots.len() as u32).rev().collect();
        self.queues.push(HostQueue { slots, free, complete: VecDeque::with_capacity(depth), buffer_bytes });
        QueueId((self.queues.len() - 1) as u32)
    }

    /// Bytes that the queues have set aside for keys and values.
    pub fn buffer_bytes(&self) -> usize {
        let of_slots = |queue: &HostQueue| {
            queue.slots.iter().map(|slot| KEY_BYTES_MAX + slot.buffer.capacity()).sum::<usize>()
        };
        self.queues.iter().map(of_slots).sum()
    }

    fn queue(&mut self, queue: QueueId) -> Result<&mut HostQueue> {
        self.queues.get_mut(queue.0 as usize).ok_or(KvError::Param { what: "no such queue of this host" })
    }

    /// Starts a command.
    ///
    /// # Errors
    /// Only what is known at once, and nothing was started then: [`KvError::QueueFull`]; a key or a value that is too long for the device or for the
    /// queue's buffers; [`KvError::Closed`].
    pub fn start(&mut self, queue: QueueId, request: HostRequest<'_>) -> Result<HostTicket> {
        let ticket = HostTicket(self.last_ticket + 1);
        let of_queue = self.queue(queue)?;
        let depth = of_queue.slots.len();
        let Some(&slot) = of_queue.free.last() else { return Err(KvError::QueueFull { depth }) };
        let buffer = std::mem::take(&mut of_queue.slots[slot as usize].buffer);
        let max = of_queue.buffer_bytes;
        let (started, kept) = match command_of(request, buffer, max) {
            Ok((command, kept)) => {
                let tag = u64::from(queue.0) << 32 | u64::from(slot);
                match self.device.submit(tag, command) {
                    Ok(()) => (Ok(()), kept),
                    Err(refused) => {
                        let of_command = refused.command.into_buffer();
                        (Err(refused.error), if of_command.capacity() > 0 { of_command } else { kept })
                    }
                }
            }
            Err((error, buffer)) => (Err(error), buffer),
        };
        let of_queue = self.queue(queue)?;
        of_queue.slots[slot as usize].buffer = kept;
        started?;
        of_queue.free.pop();
        of_queue.slots[slot as usize].ticket = Some(ticket);
        self.last_ticket += 1;
        Ok(ticket)
    }

    /// Lets the device take a step, and hands all completions of the queue to `done`, with what was read. Never blocks. Whether anything of the queue is still under
    /// way.
    pub fn poll(
        &mut self,
        queue: QueueId,
        mut done: impl FnMut(HostTicket, Result<KvAnswer>, &[u8]),
    ) -> bool {
        self.step();
        let Ok(of_queue) = self.queue(queue) else { return false };
        while let Some(slot) = of_queue.complete.pop_front() {
            let at = &mut of_queue.slots[slot as usize];
            if let (Some(ticket), Some(result)) = (at.ticket.take(), at.result.take()) {
                of_queue.free.push(slot);
                done(ticket, result, &at.buffer);
            }
        }
        of_queue.free.len() < of_queue.slots.len()
    }

    /// Waits for one command, and hands its result and what was read to `done`. Completions of others stay for [`Host::poll`].
    ///
    /// # Errors
    /// [`KvError::Param`]: nothing under this ticket is under way on this queue.
    pub fn wait<R>(
        &mut self,
        queue: QueueId,
        ticket: HostTicket,
        done: impl FnOnce(Result<KvAnswer>, &[u8]) -> R,
    ) -> Result<R> {
        loop {
            let of_queue = self.queue(queue)?;
            let slot = of_queue.slots.iter().position(|slot| slot.ticket == Some(ticket));
            let slot = slot.ok_or(KvError::Param { what: "nothing is under way under this ticket" })?;
            let at = &mut of_queue.slots[slot];
            if let Some(result) = at.result.take() {
                at.ticket = None;
                of_queue.complete.retain(|&complete| complete as usize != slot);
                of_queue.free.push(slot as u32);
                return Ok(done(result, &of_queue.slots[slot].buffer));
            }
            self.step();
        }
    }

    /// Starts a command and waits for it.
    ///
    /// # Errors
    /// Those of [`Host::start`], and the command's own.
    pub fn call(&mut self, queue: QueueId, request: HostRequest<'_>) -> Result<KvAnswer> {
        let ticket = self.start(queue, request)?;
        self.wait(queue, ticket, |result, _| result)?
    }

    /// Makes a key space.
    ///
    /// # Errors
    /// [`KvError::SpaceName`], and those of [`KvCommand::CreateSpace`].
    pub fn create_space(&mut self, queue: QueueId, name: &[u8], bytes_max: u64) -> Result<SpaceId> {
        self.space(queue, name, |name| KvCommand::CreateSpace { name, bytes_max }).map(|info| info.id)
    }

    /// The key space of this name.
    ///
    /// # Errors
    /// [`KvError::SpaceName`], [`KvError::SpaceMissing`].
    pub fn find_space(&mut self, queue: QueueId, name: &[u8]) -> Result<SpaceInfo> {
        self.space(queue, name, |name| KvCommand::FindSpace { name })
    }

    fn space(
        &mut self,
        queue: QueueId,
        name: &[u8],
        command: impl FnOnce(PairKey) -> KvCommand,
    ) -> Result<SpaceInfo> {
        let is_wrong = |_| KvError::SpaceName { bytes: name.len(), max: KEY_BYTES_MAX };
        let name = PairKey::new(name).map_err(is_wrong)?;
        match self.call(queue, HostRequest::Other(command(name)))? {
            KvAnswer::Space(info) => Ok(info),
            _ => Err(KvError::SpaceMissing),
        }
    }

    fn step(&mut self) {
        self.device.step(self.now_ns, &mut self.out);
        self.out.events.clear();
        for Completion { tag, result, buffer } in self.out.completions.drain(..) {
            let (queue, slot) = ((tag >> 32) as usize, tag as u32);
            if let Some(of_queue) = self.queues.get_mut(queue)
                && let Some(at) = of_queue.slots.get_mut(slot as usize)
            {
                match buffer.capacity() {
                    0 => at.buffer.clear(),
                    _ => at.buffer = buffer,
                }
                at.result = Some(result);
                of_queue.complete.push_back(slot);
            }
        }
    }
}

/// The command of a request, in this buffer, and the buffer if it takes none; else why not, and the buffer.
fn command_of(
    request: HostRequest<'_>,
    mut buffer: Vec<u8>,
    max: usize,
) -> std::result::Result<(KvCommand, Vec<u8>), (KvError, Vec<u8>)> {
    buffer.clear();
    let too_long = |bytes: usize| KvError::ValueLength { bytes: bytes as u64, max: max as u64 };
    match request {
        HostRequest::Store { space, key, value, mode } => match PairKey::new(key) {
            Err(error) => Err((error, buffer)),
            Ok(_) if value.len() > max => Err((too_long(value.len()), buffer)),
            Ok(key) => {
                buffer.extend_from_slice(value);
                Ok((KvCommand::Store { space, key, value: buffer, mode }, Vec::new()))
            }
        },
        HostRequest::Retrieve { space, key, offset, bytes, delete } => match PairKey::new(key) {
            Err(error) => Err((error, buffer)),
            Ok(_) if bytes > max => Err((too_long(bytes), buffer)),
            Ok(key) => {
                buffer.resize(bytes, 0);
                Ok((KvCommand::Retrieve { space, key, offset, buffer, delete }, Vec::new()))
            }
        },
        HostRequest::IterateNext { bytes, .. } if bytes > max => Err((too_long(bytes), buffer)),
        HostRequest::IterateNext { iterator, bytes } => {
            buffer.resize(bytes, 0);
            Ok((KvCommand::IterateNext { iterator, buffer }, Vec::new()))
        }
        HostRequest::Other(
            KvCommand::Store { .. } | KvCommand::Retrieve { .. } | KvCommand::IterateNext { .. },
        ) => {
            let what = "a command with a buffer of its own is started as what it is";
            Err((KvError::Param { what }, buffer))
        }
        HostRequest::Other(command) => Ok((command, buffer)),
    }
}

#[cfg(test)]
mod tests;
