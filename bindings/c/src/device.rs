//! An open device, its queue pairs and its key spaces.
//!
//! Owns [`OpenDevice`] and [`OpenSpace`]. Promises that threads that call at the same time wait for the device alone, and not for each other: each call has a queue pair of its own while it lasts; and that after [`OpenDevice::close`] each call gets DEV_NOT_OPENED. Must not know of handles or of the caller's memory.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hedgerow_device::{DeviceError, FastTier, FastTierOptions};
use hedgerow_kvssd::{
    AckMode, Device, DeviceOptions, DeviceThread, Geometry, HostRequest, IteratorContent, KEY_BYTES_MAX,
    KeyPattern, KvAnswer, KvCommand, KvError, PairKey, QueueOpener, QueuePair, ResultCode, SpaceId,
    SpaceInfo,
};
use parking_lot::Mutex;

use crate::boundary::{CodeResult, code_of};
use crate::completions::Completions;
use crate::layout::ASYNC_DEPTH;

/// A URI of this begin is memory.
const MEMORY: &[u8] = b"mem:";
/// A device is not made smaller.
const DEVICE_BYTES_MIN: u64 = 1 << 20;
/// Lengths of key and value in an entry of a batch.
const ENTRY_LENGTHS_BYTES: usize = 8;
/// Queue pairs that are kept for the next calls.
const IDLE_QUEUES_MAX: usize = 64;
/// Before another look; a wait has no end.
const WAIT: Duration = Duration::from_secs(3600);

/// Pages and blocks of a device that takes at most so many bytes: blocks of 32 MiB, of a small one shorter ones down to 64 KiB, so that there are 32.
fn geometry_of(bytes: u64) -> CodeResult<Geometry> {
    if bytes < DEVICE_BYTES_MIN {
        return Err(ResultCode::ParamInvalid);
    }
    let mut block_bytes: u32 = 32 << 20;
    while block_bytes > 64 << 10 && bytes / u64::from(block_bytes) < 32 {
        block_bytes /= 2;
    }
    let page_bytes = (block_bytes / 16).min(32 << 10);
    let blocks = u32::try_from(bytes / u64::from(block_bytes)).map_err(|_| ResultCode::ParamInvalid)?;
    let mut geometry = Geometry { page_bytes, block_bytes, blocks };
    geometry.check().map_err(code_of)?;
    while geometry.bytes() > bytes {
        geometry.blocks -= 1;
    }
    geometry.check().map_err(code_of)?;
    Ok(geometry)
}

/// A device does not grow: no more addresses are set aside than it takes.
fn tier_options(reserve_bytes: u64) -> FastTierOptions {
    FastTierOptions { reserve_bytes, ..FastTierOptions::default() }
}

/// Makes a device in a file that is not there, or empty.
pub(crate) fn format_file(path: &[u8], bytes: u64) -> CodeResult<()> {
    let path = path_of(path)?;
    let geometry = geometry_of(bytes)?;
    let tier = FastTier::open_file(path, &tier_options(geometry.bytes()), true);
    let tier = tier.map_err(|error| code_of(error.into()))?;
    let device = Device::format(tier, geometry, DeviceOptions::default()).map_err(code_of)?;
    device.close().map_err(code_of)
}

fn path_of(path: &[u8]) -> CodeResult<&Path> {
    if path.is_empty() || path.starts_with(MEMORY) {
        return Err(ResultCode::ParamInvalid);
    }
    Ok(Path::new(OsStr::from_bytes(path)))
}

fn open_or_make(uri: &[u8], ack: AckMode) -> CodeResult<Device> {
    let options = DeviceOptions { ack, ..DeviceOptions::default() };
    if let Some(bytes) = uri.strip_prefix(MEMORY) {
        let bytes = std::str::from_utf8(bytes).ok().and_then(|bytes| bytes.parse::<u64>().ok());
        let geometry = geometry_of(bytes.ok_or(ResultCode::ParamInvalid)?)?;
        let tier = FastTier::dram(&tier_options(geometry.bytes()));
        let tier = tier.map_err(|error| code_of(error.into()))?;
        return Device::format(tier, geometry, options).map_err(code_of);
    }
    let tier = FastTier::open_file(path_of(uri)?, &tier_options(0), false).map_err(|error| match error {
        DeviceError::Io { source, .. } if source.kind() == ErrorKind::NotFound => ResultCode::DeviceNotExist,
        error => code_of(error.into()),
    })?;
    Device::open(tier, options).map_err(code_of)
}

/// A device that takes commands.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    /// None: it is closed.
    thread: Mutex<Option<DeviceThread>>,
    opener: QueueOpener,
    /// Of calls that are over.
    idle: Mutex<Vec<QueuePair>>,
    pub(crate) completions: Completions,
    pub(crate) geometry: Geometry,
}

impl OpenDevice {
    /// Opens the device that a URI names; one in memory is made.
    pub(crate) fn open(uri: &[u8], ack: AckMode) -> CodeResult<OpenDevice> {
        let device = open_or_make(uri, ack)?;
        let geometry = device.geometry();
        let thread = DeviceThread::start(device).map_err(code_of)?;
        let opener = thread.opener().clone();
        let queue = opener.open(ASYNC_DEPTH, buffer_bytes(&geometry)).map_err(code_of)?;
        let completions = Completions::start(queue)?;
        let (thread, idle) = (Mutex::new(Some(thread)), Mutex::default());
        Ok(OpenDevice { thread, opener, idle, completions, geometry })
    }

    /// Carries out what was submitted, answers the rest, calls back for all of it, and makes it durable.
    pub(crate) fn close(&self) -> CodeResult<()> {
        let thread = self.thread.lock().take();
        let device = thread.ok_or(ResultCode::DeviceNotOpened)?.stop();
        // Its thread has ended, in whatever way: each command has its answer.
        self.completions.close();
        self.idle.lock().clear();
        device.and_then(Device::close).map_err(code_of)
    }

    /// A buffer of a command: no longer than what any answer may take.
    pub(crate) fn bounded(&self, bytes: u32) -> usize {
        buffer_bytes(&self.geometry).min(bytes as usize)
    }

    /// Starts a command and waits for it; `done` gets its result and what was read.
    pub(crate) fn call_with<R>(
        &self,
        request: HostRequest<'_>,
        mut done: impl FnMut(Result<KvAnswer, KvError>, &[u8]) -> R,
    ) -> CodeResult<R> {
        let kept = self.idle.lock().pop();
        let mut queue = match kept {
            Some(queue) => queue,
            None => self.opener.open(1, buffer_bytes(&self.geometry)).map_err(code_of)?,
        };
        let outcome = queue.submit(request).and_then(|ticket| {
            loop {
                if let Some(result) = queue.wait(ticket, WAIT, &mut done)? {
                    return Ok(result);
                }
            }
        });
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_QUEUES_MAX {
            idle.push(queue);
        }
        outcome.map_err(code_of)
    }

    /// The same for one that reads nothing.
    pub(crate) fn call(&self, request: HostRequest<'_>) -> CodeResult<KvAnswer> {
        self.call_with(request, |result, _| result)?.map_err(code_of)
    }

    /// The key space of a name.
    pub(crate) fn find_space(&self, name: &[u8]) -> CodeResult<SpaceInfo> {
        match self.call(HostRequest::Other(KvCommand::FindSpace { name: space_name(name)? }))? {
            KvAnswer::Space(info) => Ok(info),
            _ => Err(ResultCode::SystemIo),
        }
    }

    /// All key spaces, by their numbers.
    pub(crate) fn spaces(&self) -> CodeResult<Vec<SpaceInfo>> {
        match self.call(HostRequest::Other(KvCommand::ListSpaces))? {
            KvAnswer::Spaces(spaces) => Ok(spaces),
            _ => Err(ResultCode::SystemIo),
        }
    }

    /// What the device is.
    pub(crate) fn info(&self) -> CodeResult<hedgerow_kvssd::DeviceInfo> {
        match self.call(HostRequest::Other(KvCommand::DeviceInfo))? {
            KvAnswer::Info(info) => Ok(info),
            _ => Err(ResultCode::SystemIo),
        }
    }
}

/// Room for a value, or for the longest entry of a batch.
fn buffer_bytes(geometry: &Geometry) -> usize {
    geometry.value_bytes_max() as usize + KEY_BYTES_MAX + ENTRY_LENGTHS_BYTES
}

/// The name of a key space as the device takes it.
pub(crate) fn space_name(name: &[u8]) -> CodeResult<PairKey> {
    PairKey::new(name).map_err(|_| ResultCode::KeySpaceName)
}

/// A key space that was opened.
#[derive(Debug)]
pub(crate) struct OpenSpace {
    pub(crate) device: Arc<OpenDevice>,
    pub(crate) id: SpaceId,
    /// The number of its handle: whose its iterators are.
    owner: u64,
    /// Its iterators that are open; none once it was closed.
    iterators: Mutex<Option<BTreeSet<u32>>>,
}

impl OpenSpace {
    pub(crate) fn new(device: Arc<OpenDevice>, id: SpaceId, owner: u64) -> OpenSpace {
        OpenSpace { device, id, owner, iterators: Mutex::new(Some(BTreeSet::new())) }
    }

    /// Closes its iterators, and opens no more.
    pub(crate) fn close(&self) -> CodeResult<()> {
        let open = self.iterators.lock().take();
        if open.is_some_and(|open| !open.is_empty()) {
            self.device.call(HostRequest::Other(KvCommand::CloseIterators { owner: self.owner }))?;
        }
        Ok(())
    }

    /// Opens an iterator. The lock is held meanwhile, so that none is opened behind a closing.
    pub(crate) fn open_iterator(&self, selected: KeyPattern, content: IteratorContent) -> CodeResult<u32> {
        let mut iterators = self.iterators.lock();
        let open = iterators.as_mut().ok_or(ResultCode::KeySpaceNotOpen)?;
        let command = KvCommand::OpenIterator { space: self.id, selected, content, owner: self.owner };
        match self.device.call(HostRequest::Other(command))? {
            KvAnswer::Iterator(iterator) => {
                open.insert(iterator);
                Ok(iterator)
            }
            _ => Err(ResultCode::SystemIo),
        }
    }

    /// An iterator of this key space, or none.
    pub(crate) fn check_iterator(&self, iterator: u32) -> CodeResult<()> {
        let iterators = self.iterators.lock();
        let open = iterators.as_ref().ok_or(ResultCode::KeySpaceNotOpen)?;
        if open.contains(&iterator) { Ok(()) } else { Err(ResultCode::IteratorNotExist) }
    }

    /// Closes an iterator.
    pub(crate) fn close_iterator(&self, iterator: u32) -> CodeResult<()> {
        let mut iterators = self.iterators.lock();
        let open = iterators.as_mut().ok_or(ResultCode::KeySpaceNotOpen)?;
        if !open.remove(&iterator) {
            return Err(ResultCode::IteratorNotExist);
        }
        self.device.call(HostRequest::Other(KvCommand::CloseIterator { iterator })).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked for is what is taken at most, down to a limit and up to one.
    #[test]
    fn geometries_fit_what_is_asked_for() {
        for bytes in [1 << 20, (1 << 20) + 4097, 8_000_000, 64 << 20, 1 << 30, 5 << 30] {
            let geometry = geometry_of(bytes).unwrap();
            assert!(geometry.bytes() <= bytes && geometry.bytes() > bytes / 10 * 8, "{bytes}: {geometry:?}");
        }
        for bytes in [0, (1 << 20) - 1, 1 << 46, u64::MAX] {
            assert_eq!(geometry_of(bytes).unwrap_err(), ResultCode::ParamInvalid, "{bytes}");
        }
    }
}
