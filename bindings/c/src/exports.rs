//! The functions for devices and key spaces.
//!
//! Owns what `hedgerow_kvssd.h` declares of these. Promises the header's codes. Must not know how a device carries commands out.

use std::ffi::c_char;

use hedgerow_kvssd::{AckMode, HostRequest, KEY_BYTES_MAX, KvCommand, ResultCode};

use crate::boundary::{
    CodeResult, elements, guarded, optional, required, required_mut, set, text, write_bytes,
};
use crate::device::{format_file, space_name};
use crate::handles::HANDLES;
use crate::layout::{KvsDevice, KvsHandle, KvsKeySpace, KvsKeySpaceName, KvsOptionKeySpace, KvsResult};

/// Values take multiples of so many bytes.
const VALUE_GRANULARITY: u32 = 32;

/// Makes a device of at most `bytes` bytes in a file that is not there, or empty.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hr_format_device(path: *const c_char, bytes: u64) -> KvsResult {
    // SAFETY: the header says what must be there.
    guarded(|| format_file(unsafe { text(path) }?, bytes))
}

/// Opens a device whose stores are acknowledged when they are whole (0) or durable (1).
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hr_open_device(uri: *const c_char, ack: u32, dev_hd: *mut KvsHandle) -> KvsResult {
    guarded(|| {
        let ack = match ack {
            0 => AckMode::Buffered,
            1 => AckMode::Immediate,
            _ => return Err(ResultCode::OptionInvalid),
        };
        // SAFETY: the header says what must be there.
        unsafe {
            set(dev_hd, std::ptr::null())?;
            set(dev_hd, HANDLES.open_device(text(uri)?, ack)?)
        }
    })
}

/// Opens a device.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_open_device(uri: *const c_char, dev_hd: *mut KvsHandle) -> KvsResult {
    // SAFETY: the same is asked of the caller.
    unsafe { hr_open_device(uri, 0, dev_hd) }
}

/// Closes a device, after all that is under way.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_close_device(dev_hd: KvsHandle) -> KvsResult {
    guarded(|| HANDLES.close_device(dev_hd))
}

/// Makes durable what was completed before.
#[unsafe(no_mangle)]
pub extern "C" fn hr_flush_device(dev_hd: KvsHandle) -> KvsResult {
    guarded(|| HANDLES.device(dev_hd)?.call(HostRequest::Other(KvCommand::Flush)).map(drop))
}

/// What the device is.
fn device_info(dev_hd: KvsHandle) -> CodeResult<KvsDevice> {
    let device = HANDLES.device(dev_hd)?;
    let info = device.info()?;
    let max_value_len = info.value_bytes_max as u32;
    Ok(KvsDevice {
        capacity: info.capacity_bytes,
        unalloc_capacity: device_free(&info),
        max_value_len,
        max_key_len: KEY_BYTES_MAX as u32,
        optimal_value_len: device.geometry.page_bytes.min(max_value_len),
        optimal_value_granularity: VALUE_GRANULARITY,
    })
}

/// What the device is.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_device_info(dev_hd: KvsHandle, info: *mut KvsDevice) -> KvsResult {
    // SAFETY: the header says what must be there.
    guarded(|| unsafe { set(info, device_info(dev_hd)?) })
}

/// Bytes that pairs may take.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_device_capacity(dev_hd: KvsHandle, capacity: *mut u64) -> KvsResult {
    // SAFETY: the header says what must be there.
    guarded(|| unsafe { set(capacity, device_info(dev_hd)?.capacity) })
}

/// How full it is, in hundredths of a percent.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_device_utilization(dev_hd: KvsHandle, utilization: *mut u32) -> KvsResult {
    guarded(|| {
        let of_device = HANDLES.device(dev_hd)?.info()?.utilization();
        // SAFETY: the header says what must be there.
        unsafe { set(utilization, of_device.into()) }
    })
}

/// Bytes in a key, at least: 1.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_min_key_length(dev_hd: KvsHandle, bytes: *mut u32) -> KvsResult {
    // SAFETY: the header says what must be there.
    guarded(|| HANDLES.device(dev_hd).and_then(|_| unsafe { set(bytes, 1) }))
}

/// Bytes in a key, at most.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_max_key_length(dev_hd: KvsHandle, bytes: *mut u32) -> KvsResult {
    // SAFETY: the header says what must be there.
    guarded(|| HANDLES.device(dev_hd).and_then(|_| unsafe { set(bytes, KEY_BYTES_MAX as u32) }))
}

/// Bytes in a value, at least: 0.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_min_value_length(dev_hd: KvsHandle, bytes: *mut u32) -> KvsResult {
    // SAFETY: the header says what must be there.
    guarded(|| HANDLES.device(dev_hd).and_then(|_| unsafe { set(bytes, 0) }))
}

/// Bytes in a value, at most.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_max_value_length(dev_hd: KvsHandle, bytes: *mut u32) -> KvsResult {
    // SAFETY: the header says what must be there.
    guarded(|| unsafe { set(bytes, device_info(dev_hd)?.max_value_len) })
}

/// A value of so many bytes fills a page.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_optimal_value_length(dev_hd: KvsHandle, bytes: *mut u32) -> KvsResult {
    // SAFETY: the header says what must be there.
    guarded(|| unsafe { set(bytes, device_info(dev_hd)?.optimal_value_len) })
}

/// The bytes of a name.
///
/// # Safety
/// As the header says of names that are given.
unsafe fn name_bytes<'a>(name: *const KvsKeySpaceName) -> CodeResult<&'a [u8]> {
    // SAFETY: by this function's own condition.
    let name = unsafe { required(name) }?;
    if name.name_len == 0 || name.name_len as usize > KEY_BYTES_MAX {
        return Err(ResultCode::KeySpaceName);
    }
    // SAFETY: as above.
    unsafe { elements(name.name.cast_const().cast::<u8>(), name.name_len as usize) }
}

/// Copies a name to the caller's room. Where that is too short, nothing but the length is given.
///
/// # Safety
/// As the header says of room for names.
unsafe fn give_name(room: &mut KvsKeySpaceName, name: &[u8]) -> CodeResult<()> {
    let given = room.name_len as usize;
    room.name_len = name.len() as u32;
    if given < name.len() {
        return Err(ResultCode::BufferSmall);
    }
    // SAFETY: by this function's own condition.
    unsafe { write_bytes(room.name.cast(), name) }
}

/// Makes a key space of at most `size` bytes of keys and values; 0 is no limit.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_create_key_space(
    dev_hd: KvsHandle,
    name: *const KvsKeySpaceName,
    size: u64,
    option: *const KvsOptionKeySpace,
) -> KvsResult {
    guarded(|| {
        let device = HANDLES.device(dev_hd)?;
        // SAFETY: the header says what must be there.
        let (name, option) = unsafe { (space_name(name_bytes(name)?)?, optional(option)?) };
        if option.is_some_and(|option| option.ordering != 0) {
            return Err(ResultCode::OptionInvalid);
        }
        device.call(HostRequest::Other(KvCommand::CreateSpace { name, bytes_max: size })).map(drop)
    })
}

/// Deletes a key space with its pairs, and closes it.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_delete_key_space(dev_hd: KvsHandle, name: *const KvsKeySpaceName) -> KvsResult {
    guarded(|| {
        HANDLES.device(dev_hd)?;
        // SAFETY: the header says what must be there.
        HANDLES.delete_space(dev_hd, unsafe { name_bytes(name) }?)
    })
}

/// Names of key spaces, from the `index`th on, 1 the first.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_list_key_spaces(
    dev_hd: KvsHandle,
    index: u32,
    buffer_size: u32,
    names: *mut KvsKeySpaceName,
    ks_cnt: *mut u32,
) -> KvsResult {
    guarded(|| {
        let spaces = HANDLES.device(dev_hd)?.spaces()?;
        // SAFETY: the header says what must be there.
        unsafe { set(ks_cnt, 0) }?;
        let skipped = (index as usize).checked_sub(1).ok_or(ResultCode::KeySpaceIndex)?;
        if skipped > 0 && skipped >= spaces.len() {
            return Err(ResultCode::KeySpaceIndex);
        }
        let room = buffer_size as usize / size_of::<KvsKeySpaceName>();
        for (at, space) in spaces.iter().skip(skipped).take(room).enumerate() {
            // SAFETY: as above, of as many names as there is room for.
            unsafe {
                required(names)?;
                give_name(required_mut(names.add(at))?, &space.name)?;
                set(ks_cnt, at as u32 + 1)?;
            }
        }
        Ok(())
    })
}

/// Opens a key space.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_open_key_space(
    dev_hd: KvsHandle,
    name: *const KvsKeySpaceName,
    ks_hd: *mut KvsHandle,
) -> KvsResult {
    guarded(|| {
        HANDLES.device(dev_hd)?;
        // SAFETY: the header says what must be there.
        unsafe {
            set(ks_hd, std::ptr::null())?;
            set(ks_hd, HANDLES.open_space(dev_hd, name_bytes(name)?)?)
        }
    })
}

/// Closes a key space and its iterators.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_close_key_space(ks_hd: KvsHandle) -> KvsResult {
    guarded(|| HANDLES.close_space(ks_hd))
}

/// What a key space is.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_key_space_info(ks_hd: KvsHandle, info: *mut KvsKeySpace) -> KvsResult {
    guarded(|| {
        let space = HANDLES.space(ks_hd)?;
        // SAFETY: the header says what must be there.
        let info = unsafe { required_mut(info) }?;
        let spaces = space.device.spaces()?;
        let found = spaces.iter().find(|other| other.id == space.id).ok_or(ResultCode::KeySpaceNotExist)?;
        (info.opened, info.capacity, info.count) = (1, found.bytes_max, found.pairs);
        info.free_size = match found.bytes_max {
            0 => device_free(&space.device.info()?),
            max => max.saturating_sub(found.bytes),
        };
        if info.name.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { give_name(required_mut(info.name)?, &found.name) }
    })
}

fn device_free(info: &hedgerow_kvssd::DeviceInfo) -> u64 {
    info.capacity_bytes.saturating_sub(info.used_bytes)
}
