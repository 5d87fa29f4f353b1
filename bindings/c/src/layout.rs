//! Types and constants as C has them.
//!
//! Owns the layout of what `hedgerow_kvssd.h` declares. Promises that every bit pattern of these types is valid: flags are bytes and choices are numbers, since C may leave anything there. Must not know what is done with them.

use std::ffi::{c_char, c_void};

/// What a handle points to: nothing. Its address is a number that is never given twice.
#[derive(Debug)]
#[repr(C)]
pub struct HandleTarget {
    _opaque: [u8; 0],
}

/// `kvs_device_handle`, and `kvs_key_space_handle`. Null is none.
pub type KvsHandle = *const HandleTarget;
/// `kvs_result`: a number of [`hedgerow_kvssd::ResultCode`].
pub type KvsResult = u32;
/// `kvs_iterator_handle`. 0 is none.
pub type KvsIteratorHandle = u32;

/// `kvs_key`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsKey {
    /// Its bytes.
    pub key: *const c_void,
    /// How many: 1 to 255.
    pub length: u16,
}

/// `kvs_value`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsValue {
    /// Its bytes, or room for them.
    pub value: *mut c_void,
    /// Bytes of that; after a retrieve those that were read.
    pub length: u32,
    /// After a retrieve: bytes of the whole value.
    pub actual_value_size: u32,
    /// From which byte on.
    pub offset: u32,
}

/// `kvs_device`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct KvsDevice {
    /// Bytes that pairs may take, with what the device adds.
    pub capacity: u64,
    /// Of them those that are free.
    pub unalloc_capacity: u64,
    /// Bytes in a value, at most.
    pub max_value_len: u32,
    /// Bytes in a key, at most.
    pub max_key_len: u32,
    /// A value of so many bytes fills a page.
    pub optimal_value_len: u32,
    /// Values take multiples of so many bytes.
    pub optimal_value_granularity: u32,
}

/// `kvs_key_space_name`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsKeySpaceName {
    /// Bytes of the name, or of the room for one.
    pub name_len: u32,
    /// Its bytes, or the room.
    pub name: *mut c_char,
}

/// `kvs_key_space`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsKeySpace {
    /// 1.
    pub opened: u8,
    /// Most bytes of keys and values; 0 is no limit.
    pub capacity: u64,
    /// Of them those that are left; without a limit those of the device.
    pub free_size: u64,
    /// Pairs.
    pub count: u64,
    /// Room for the name; null, and it is not given.
    pub name: *mut KvsKeySpaceName,
}

/// `kvs_option_key_space`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsOptionKeySpace {
    /// 0 is none, the only one.
    pub ordering: u32,
}

/// `kvs_option_store`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsOptionStore {
    /// 0 post, 1 update only, 2 no overwrite, 3 append.
    pub st_type: u32,
}

/// `kvs_option_retrieve`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsOptionRetrieve {
    /// Not 0: the pair is deleted in the same step.
    pub kvs_retrieve_delete: u8,
}

/// `kvs_option_delete`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsOptionDelete {
    /// Not 0: there must be a pair.
    pub kvs_delete_error: u8,
}

/// `kvs_option_iterator`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsOptionIterator {
    /// 0 keys, 1 keys and values.
    pub iter_type: u32,
}

/// `kvs_key_group_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct KvsKeyGroupFilter {
    /// Which bits of a key's first four bytes count.
    pub bitmask: [u8; 4],
    /// What they must be.
    pub bit_pattern: [u8; 4],
}

/// `kvs_iterator_list`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsIteratorList {
    /// Entries that were read.
    pub num_entries: u32,
    /// 1: these were the last.
    pub end: u8,
    /// Bytes of the room; then of the entries.
    pub size: u32,
    /// The room.
    pub it_list: *mut u8,
}

/// `kvs_exist_list`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsExistList {
    /// Bytes of the room; then of the result.
    pub length: u32,
    /// The room.
    pub result_buffer: *mut u8,
}

/// `kvs_kvp_info`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvsKvpInfo {
    /// Bytes of the key.
    pub key_len: u16,
    /// Bytes of its value.
    pub value_len: u32,
}

/// `kvs_postprocess_context`.
#[derive(Debug)]
#[repr(C)]
pub struct KvsPostprocessContext {
    /// Which operation: [`OPERATION_DELETE`], [`OPERATION_RETRIEVE`], [`OPERATION_STORE`].
    pub context: u32,
    /// What it came to.
    pub result: KvsResult,
    /// The key space's handle, as it was given.
    pub ks_hd: KvsHandle,
    /// The key, as it was given.
    pub key: *const KvsKey,
    /// The value, as it was given; null for a delete.
    pub value: *mut KvsValue,
    /// As it was given.
    pub private1: *mut c_void,
    /// As it was given.
    pub private2: *mut c_void,
}

/// `kvs_postprocess_function`. Null is refused.
pub type KvsPostprocessFunction = Option<unsafe extern "C" fn(*mut KvsPostprocessContext)>;

/// `KVS_CMD_DELETE`.
pub const OPERATION_DELETE: u32 = 1;
/// `KVS_CMD_RETRIEVE`.
pub const OPERATION_RETRIEVE: u32 = 7;
/// `KVS_CMD_STORE`.
pub const OPERATION_STORE: u32 = 8;
/// `HR_ASYNC_DEPTH`: commands of a device that may be under way without anybody who waits.
pub const ASYNC_DEPTH: usize = 64;
