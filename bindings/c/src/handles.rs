//! Which handles are open.
//!
//! Owns [`HANDLES`]. Promises that a handle is a number that is given once in the life of a process, so that one that was closed, or never given, leads nowhere: to a code, and not to memory. Must not know what commands do.

use std::collections::BTreeMap;
use std::ptr::without_provenance;
use std::sync::Arc;

use hedgerow_kvssd::{AckMode, HostRequest, KvCommand, ResultCode};
use parking_lot::Mutex;

use crate::boundary::CodeResult;
use crate::completions::is_callback;
use crate::device::{OpenDevice, OpenSpace, space_name};
use crate::layout::KvsHandle;

#[derive(Debug)]
struct OpenHandles {
    devices: BTreeMap<u64, Arc<OpenDevice>>,
    spaces: BTreeMap<u64, Arc<OpenSpace>>,
    last: u64,
}

/// All that is open in this process.
#[derive(Debug)]
pub(crate) struct Handles {
    open: Mutex<OpenHandles>,
}

/// All that is open in this process.
pub(crate) static HANDLES: Handles =
    Handles { open: Mutex::new(OpenHandles { devices: BTreeMap::new(), spaces: BTreeMap::new(), last: 0 }) };

fn number_of(handle: KvsHandle) -> CodeResult<u64> {
    match handle.addr() as u64 {
        0 => Err(ResultCode::ParamInvalid),
        number => Ok(number),
    }
}

impl Handles {
    pub(crate) fn open_device(&self, uri: &[u8], ack: AckMode) -> CodeResult<KvsHandle> {
        let device = OpenDevice::open(uri, ack)?;
        let mut open = self.open.lock();
        open.last += 1;
        let number = open.last;
        open.devices.insert(number, Arc::new(device));
        Ok(without_provenance(number as usize))
    }

    pub(crate) fn device(&self, handle: KvsHandle) -> CodeResult<Arc<OpenDevice>> {
        let number = number_of(handle)?;
        self.open.lock().devices.get(&number).cloned().ok_or(ResultCode::DeviceNotOpened)
    }

    /// Its handle, and those of its key spaces, lead nowhere from here on; then it is closed.
    pub(crate) fn close_device(&self, handle: KvsHandle) -> CodeResult<()> {
        let number = number_of(handle)?;
        if is_callback() {
            // It would wait for itself, or for one that waits for it.
            return Err(ResultCode::ParamInvalid);
        }
        let mut open = self.open.lock();
        let device = open.devices.remove(&number).ok_or(ResultCode::DeviceNotOpened)?;
        open.spaces.retain(|_, space| !Arc::ptr_eq(&space.device, &device));
        drop(open);
        device.close()
    }

    pub(crate) fn open_space(&self, device_handle: KvsHandle, name: &[u8]) -> CodeResult<KvsHandle> {
        let device = self.device(device_handle)?;
        let id = device.find_space(name)?.id;
        let mut open = self.open.lock();
        if !open.devices.contains_key(&number_of(device_handle)?) {
            return Err(ResultCode::DeviceNotOpened);
        }
        if open.spaces.values().any(|space| Arc::ptr_eq(&space.device, &device) && space.id == id) {
            return Err(ResultCode::KeySpaceOpen);
        }
        open.last += 1;
        let number = open.last;
        open.spaces.insert(number, Arc::new(OpenSpace::new(device, id, number)));
        Ok(without_provenance(number as usize))
    }

    pub(crate) fn space(&self, handle: KvsHandle) -> CodeResult<Arc<OpenSpace>> {
        let number = number_of(handle)?;
        self.open.lock().spaces.get(&number).cloned().ok_or(ResultCode::KeySpaceNotOpen)
    }

    pub(crate) fn close_space(&self, handle: KvsHandle) -> CodeResult<()> {
        let number = number_of(handle)?;
        let space = self.open.lock().spaces.remove(&number).ok_or(ResultCode::KeySpaceNotOpen)?;
        space.close()
    }

    /// Deletes a key space; if it was open it is closed then.
    pub(crate) fn delete_space(&self, device_handle: KvsHandle, name: &[u8]) -> CodeResult<()> {
        let device = self.device(device_handle)?;
        let id = device.find_space(name)?.id;
        device.call(HostRequest::Other(KvCommand::DeleteSpace { name: space_name(name)? }))?;
        let mut open = self.open.lock();
        // The device closed its iterators.
        open.spaces.retain(|_, space| !(Arc::ptr_eq(&space.device, &device) && space.id == id));
        Ok(())
    }
}
