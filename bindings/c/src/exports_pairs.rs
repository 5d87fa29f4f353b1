//! The functions for pairs, groups of them, and iterators.
//!
//! Owns what `hedgerow_kvssd.h` declares of these. Promises the header's codes, and that a function looks at its handle first, at its other arguments next, and starts a command only if all of them will do. Must not know how a device carries commands out.

use std::ffi::c_void;
use std::sync::Arc;

use hedgerow_kvssd::{
    EXIST_KEYS_MAX, HostRequest, IteratorContent, KeyPattern, KvAnswer, KvCommand, KvError, PairKey,
    ResultCode, StoreMode,
};

use crate::boundary::{
    CodeResult, code_of, elements, guarded, key_bytes, optional, required, required_mut, set, write_bytes,
};
use crate::completions::{Callback, deliver};
use crate::device::OpenSpace;
use crate::handles::HANDLES;
use crate::layout::{
    KvsExistList, KvsHandle, KvsIteratorHandle, KvsIteratorList, KvsKey, KvsKeyGroupFilter, KvsKvpInfo,
    KvsOptionDelete, KvsOptionIterator, KvsOptionRetrieve, KvsOptionStore, KvsPostprocessContext,
    KvsPostprocessFunction, KvsResult, KvsValue, OPERATION_DELETE, OPERATION_RETRIEVE, OPERATION_STORE,
};

/// A store of what the pointers lead to, while they do.
///
/// # Safety
/// As the header says of each pointer.
unsafe fn store_request<'a>(
    space: &OpenSpace,
    key: *const KvsKey,
    value: *const KvsValue,
    option: *const KvsOptionStore,
) -> CodeResult<HostRequest<'a>> {
    // SAFETY: by this function's own condition.
    let (key, value, option) = unsafe { (key_bytes(key)?, required(value)?, optional(option)?) };
    let mode = match option.map_or(0, |option| option.st_type) {
        0 => StoreMode::Post,
        1 => StoreMode::UpdateOnly,
        2 => StoreMode::NoOverwrite,
        3 => StoreMode::Append,
        _ => return Err(ResultCode::OptionInvalid),
    };
    if u64::from(value.length) > space.device.geometry.value_bytes_max() {
        return Err(ResultCode::ValueLengthInvalid);
    }
    if value.offset != 0 {
        return Err(ResultCode::ValueOffsetInvalid);
    }
    // SAFETY: as above.
    let value = unsafe { elements(value.value.cast_const().cast::<u8>(), value.length as usize) }?;
    Ok(HostRequest::Store { space: space.id, key, value, mode })
}

/// A retrieve into the buffer of a value.
///
/// # Safety
/// As the header says of each pointer.
unsafe fn retrieve_request<'a>(
    space: &OpenSpace,
    key: *const KvsKey,
    option: *const KvsOptionRetrieve,
    value: *const KvsValue,
) -> CodeResult<HostRequest<'a>> {
    // SAFETY: by this function's own condition.
    let (key, value, option) = unsafe { (key_bytes(key)?, required(value)?, optional(option)?) };
    if value.length > 0 && value.value.is_null() {
        return Err(ResultCode::ParamInvalid);
    }
    let delete = option.is_some_and(|option| option.kvs_retrieve_delete != 0);
    let (offset, bytes) = (value.offset.into(), space.device.bounded(value.length));
    Ok(HostRequest::Retrieve { space: space.id, key, offset, bytes, delete })
}

/// A deletion.
///
/// # Safety
/// As the header says of each pointer.
unsafe fn delete_request(
    space: &OpenSpace,
    key: *const KvsKey,
    option: *const KvsOptionDelete,
) -> CodeResult<HostRequest<'static>> {
    // SAFETY: by this function's own condition.
    let (key, option) = unsafe { (key_bytes(key)?, optional(option)?) };
    let key = PairKey::new(key).map_err(code_of)?;
    let must_exist = option.is_some_and(|option| option.kvs_delete_error != 0);
    Ok(HostRequest::Other(KvCommand::Delete { space: space.id, key, must_exist }))
}

/// Stores a pair.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_store_kvp(
    ks_hd: KvsHandle,
    key: *const KvsKey,
    value: *const KvsValue,
    option: *const KvsOptionStore,
) -> KvsResult {
    guarded(|| {
        let space = HANDLES.space(ks_hd)?;
        // SAFETY: the header says what must be there.
        space.device.call(unsafe { store_request(&space, key, value, option) }?).map(drop)
    })
}

/// Reads a value.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_retrieve_kvp(
    ks_hd: KvsHandle,
    key: *const KvsKey,
    option: *const KvsOptionRetrieve,
    value: *mut KvsValue,
) -> KvsResult {
    guarded(|| {
        let space = HANDLES.space(ks_hd)?;
        // SAFETY: the header says what must be there.
        let request = unsafe { retrieve_request(&space, key, option, value) }?;
        // SAFETY: as above, and no more was asked for than there is room for.
        space.device.call_with(request, |result, read| unsafe { deliver(value, result, read) })?
    })
}

/// Deletes a pair.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_delete_kvp(
    ks_hd: KvsHandle,
    key: *const KvsKey,
    option: *const KvsOptionDelete,
) -> KvsResult {
    guarded(|| {
        let space = HANDLES.space(ks_hd)?;
        // SAFETY: the header says what must be there.
        space.device.call(unsafe { delete_request(&space, key, option) }?).map(drop)
    })
}

/// What comes back with a completion, and to whom.
struct AsyncTail {
    ks_hd: KvsHandle,
    private1: *mut c_void,
    private2: *mut c_void,
    post_fn: KvsPostprocessFunction,
}

impl AsyncTail {
    /// The key space; who calls back must be there.
    fn space(&self) -> CodeResult<Arc<OpenSpace>> {
        let space = HANDLES.space(self.ks_hd)?;
        if self.post_fn.is_none() {
            return Err(ResultCode::ParamInvalid);
        }
        Ok(space)
    }

    fn callback(self, context: u32, key: *const KvsKey, value: *mut KvsValue) -> Callback {
        let AsyncTail { ks_hd, private1, private2, post_fn: function } = self;
        let result = ResultCode::Success as u32;
        let reads = context == OPERATION_RETRIEVE;
        let context = KvsPostprocessContext { context, result, ks_hd, key, value, private1, private2 };
        Callback { context, function, reads }
    }
}

/// Starts a store.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_store_kvp_async(
    ks_hd: KvsHandle,
    key: *const KvsKey,
    value: *mut KvsValue,
    option: *const KvsOptionStore,
    private1: *mut c_void,
    private2: *mut c_void,
    post_fn: KvsPostprocessFunction,
) -> KvsResult {
    let tail = AsyncTail { ks_hd, private1, private2, post_fn };
    guarded(|| {
        let space = tail.space()?;
        // SAFETY: the header says what must be there.
        let request = unsafe { store_request(&space, key, value, option) }?;
        space.device.completions.submit(request, tail.callback(OPERATION_STORE, key, value))
    })
}

/// Starts a retrieve.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_retrieve_kvp_async(
    ks_hd: KvsHandle,
    key: *const KvsKey,
    option: *const KvsOptionRetrieve,
    value: *mut KvsValue,
    private1: *mut c_void,
    private2: *mut c_void,
    post_fn: KvsPostprocessFunction,
) -> KvsResult {
    let tail = AsyncTail { ks_hd, private1, private2, post_fn };
    guarded(|| {
        let space = tail.space()?;
        // SAFETY: the header says what must be there.
        let request = unsafe { retrieve_request(&space, key, option, value) }?;
        space.device.completions.submit(request, tail.callback(OPERATION_RETRIEVE, key, value))
    })
}

/// Starts a deletion.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_delete_kvp_async(
    ks_hd: KvsHandle,
    key: *const KvsKey,
    option: *const KvsOptionDelete,
    private1: *mut c_void,
    private2: *mut c_void,
    post_fn: KvsPostprocessFunction,
) -> KvsResult {
    let tail = AsyncTail { ks_hd, private1, private2, post_fn };
    guarded(|| {
        let space = tail.space()?;
        // SAFETY: the header says what must be there.
        let request = unsafe { delete_request(&space, key, option) }?;
        let callback = tail.callback(OPERATION_DELETE, key, std::ptr::null_mut());
        space.device.completions.submit(request, callback)
    })
}

/// Which of some keys there are.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_exist_kv_pairs(
    ks_hd: KvsHandle,
    key_cnt: u32,
    keys: *const KvsKey,
    list: *mut KvsExistList,
) -> KvsResult {
    guarded(|| {
        let space = HANDLES.space(ks_hd)?;
        let count = key_cnt as usize;
        if count == 0 || count > EXIST_KEYS_MAX {
            return Err(ResultCode::ParamInvalid);
        }
        // SAFETY: the header says what must be there.
        let (keys, list) = unsafe { (elements(keys, count)?, required_mut(list)?) };
        // SAFETY: as above, of each key.
        let copy = |key: &KvsKey| PairKey::new(unsafe { key_bytes(key) }?).map_err(code_of);
        let keys = keys.iter().map(copy).collect::<CodeResult<Vec<_>>>()?;
        let (given, needed) = (list.length, key_cnt.div_ceil(8));
        if list.result_buffer.is_null() {
            return Err(ResultCode::ParamInvalid);
        }
        if given < needed {
            list.length = needed;
            return Err(ResultCode::BufferSmall);
        }
        match space.device.call(HostRequest::Other(KvCommand::Exist { space: space.id, keys }))? {
            KvAnswer::Exist(bits) => {
                list.length = bits.len() as u32;
                // SAFETY: as above; there are as many bytes as were asked for.
                unsafe { write_bytes(list.result_buffer, &bits) }
            }
            _ => Err(ResultCode::SystemIo),
        }
    })
}

/// How long a pair's value is.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_kvp_info(
    ks_hd: KvsHandle,
    key: *const KvsKey,
    info: *mut KvsKvpInfo,
) -> KvsResult {
    guarded(|| {
        let space = HANDLES.space(ks_hd)?;
        // SAFETY: the header says what must be there.
        let bytes = unsafe { key_bytes(key) }?;
        let key = PairKey::new(bytes).map_err(code_of)?;
        match space.device.call(HostRequest::Other(KvCommand::PairInfo { space: space.id, key }))? {
            KvAnswer::PairInfo { value_bytes } => {
                let found = KvsKvpInfo { key_len: bytes.len() as u16, value_len: value_bytes as u32 };
                // SAFETY: as above.
                unsafe { set(info, found) }
            }
            _ => Err(ResultCode::SystemIo),
        }
    })
}

fn pattern_of(filter: KvsKeyGroupFilter) -> KeyPattern {
    KeyPattern { mask: filter.bitmask, pattern: filter.bit_pattern }
}

/// Deletes the pairs that a filter selects.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_delete_key_group(
    ks_hd: KvsHandle,
    filter: *const KvsKeyGroupFilter,
) -> KvsResult {
    guarded(|| {
        let space = HANDLES.space(ks_hd)?;
        // SAFETY: the header says what must be there.
        let selected = pattern_of(*unsafe { required(filter) }?);
        let command = KvCommand::DeleteGroup { space: space.id, selected };
        space.device.call(HostRequest::Other(command)).map(drop)
    })
}

/// Opens an iterator.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_create_iterator(
    ks_hd: KvsHandle,
    option: *const KvsOptionIterator,
    filter: *const KvsKeyGroupFilter,
    iter_hd: *mut KvsIteratorHandle,
) -> KvsResult {
    guarded(|| {
        let space = HANDLES.space(ks_hd)?;
        // SAFETY: the header says what must be there.
        let (option, filter) = unsafe {
            set(iter_hd, 0)?;
            (optional(option)?, optional(filter)?)
        };
        let content = match option.map_or(0, |option| option.iter_type) {
            0 => IteratorContent::Keys,
            1 => IteratorContent::Pairs,
            _ => return Err(ResultCode::OptionInvalid),
        };
        let iterator = space.open_iterator(filter.map_or(KeyPattern::ALL, pattern_of), content)?;
        // SAFETY: as above.
        unsafe { set(iter_hd, iterator) }
    })
}

/// The next entries.
///
/// # Safety
/// As the header says of each pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_iterate_next(
    ks_hd: KvsHandle,
    iter_hd: KvsIteratorHandle,
    list: *mut KvsIteratorList,
) -> KvsResult {
    guarded(|| {
        let space = HANDLES.space(ks_hd)?;
        // SAFETY: the header says what must be there.
        let list = unsafe { required_mut(list) }?;
        if list.it_list.is_null() {
            return Err(ResultCode::ParamInvalid);
        }
        space.check_iterator(iter_hd)?;
        let bytes = space.device.bounded(list.size);
        // So it stays where the device answers nothing: it is closed, or failed.
        (list.num_entries, list.end, list.size) = (0, 0, 0);
        let request = HostRequest::IterateNext { iterator: iter_hd, bytes };
        space.device.call_with(request, |result, read| match result {
            Ok(KvAnswer::Batch { entries, end }) => {
                (list.num_entries, list.end, list.size) = (entries, end.into(), read.len() as u32);
                // SAFETY: as above; no more was read than was asked for.
                unsafe { write_bytes(list.it_list, read) }
            }
            Ok(_) => Err(ResultCode::SystemIo),
            Err(error) => {
                list.size = match &error {
                    KvError::BufferSmall { needed, .. } => *needed as u32,
                    _ => 0,
                };
                Err(code_of(error))
            }
        })?
    })
}

/// Closes an iterator.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_delete_iterator(ks_hd: KvsHandle, iter_hd: KvsIteratorHandle) -> KvsResult {
    guarded(|| HANDLES.space(ks_hd)?.close_iterator(iter_hd))
}
