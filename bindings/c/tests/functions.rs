//! The functions, called as C calls them.
#![allow(unsafe_code, clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "tests use the machine as it is")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::ptr::{null, null_mut, without_provenance};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use hedgerow_kvssd::ResultCode::{self, *};
use hedgerow_kvssd::{IteratorContent, batch_entries};
use hedgerow_kvssd_c::*;
use hedgerow_sim::Scratch;

#[track_caller]
fn expect(result: KvsResult, code: ResultCode) {
    assert_eq!(result, code as u32, "{code:?} was expected");
}

fn key(bytes: &[u8]) -> KvsKey {
    KvsKey { key: bytes.as_ptr().cast(), length: bytes.len() as u16 }
}

/// A name that is given: it is only read.
fn name(bytes: &[u8]) -> KvsKeySpaceName {
    KvsKeySpaceName { name_len: bytes.len() as u32, name: bytes.as_ptr().cast_mut().cast() }
}

fn value(bytes: &[u8]) -> KvsValue {
    room(bytes.as_ptr().cast_mut(), bytes.len())
}

fn room(bytes: *mut u8, length: usize) -> KvsValue {
    KvsValue { value: bytes.cast(), length: length as u32, actual_value_size: 0, offset: 0 }
}

/// A device and a key space of it.
#[derive(Clone, Copy)]
struct Opened {
    device: KvsHandle,
    space: KvsHandle,
}

// SAFETY: handles are numbers.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

fn open_device(uri: &str) -> Result<KvsHandle, u32> {
    let (uri, mut device) = (CString::new(uri).unwrap(), null());
    // SAFETY: both lead to what they should.
    match unsafe { kvs_open_device(uri.as_ptr(), &raw mut device) } {
        0 => Ok(device),
        code => {
            assert!(device.is_null());
            Err(code)
        }
    }
}

fn open_space(device: KvsHandle, of: &[u8]) -> Result<KvsHandle, u32> {
    let (of, mut space) = (name(of), null());
    // SAFETY: both lead to what they should.
    match unsafe { kvs_open_key_space(device, &raw const of, &raw mut space) } {
        0 => Ok(space),
        code => Err(code),
    }
}

fn create_space(device: KvsHandle, of: &[u8], bytes: u64) -> KvsResult {
    let of = name(of);
    // SAFETY: it leads to a name.
    unsafe { kvs_create_key_space(device, &raw const of, bytes, null()) }
}

impl Opened {
    fn memory() -> Opened {
        Opened::of(open_device("mem:8000000").unwrap())
    }

    fn of(device: KvsHandle) -> Opened {
        expect(create_space(device, b"space", 0), Success);
        Opened { device, space: open_space(device, b"space").unwrap() }
    }

    fn store_as(self, of: &[u8], bytes: &[u8], st_type: u32) -> KvsResult {
        let (of, value, option) = (key(of), value(bytes), KvsOptionStore { st_type });
        // SAFETY: all lead to what they should.
        unsafe { kvs_store_kvp(self.space, &raw const of, &raw const value, &raw const option) }
    }

    fn store(self, of: &[u8], bytes: &[u8]) {
        expect(self.store_as(of, bytes, 0), Success);
    }

    /// Code, what was read into a buffer of `length`, and bytes of the whole value.
    fn read(self, of: &[u8], length: usize, offset: u32, delete: u8) -> (u32, Vec<u8>, u32) {
        let mut bytes = vec![0xEE; length];
        let mut value = KvsValue { offset, ..room(bytes.as_mut_ptr(), length) };
        let (of, option) = (key(of), KvsOptionRetrieve { kvs_retrieve_delete: delete });
        // SAFETY: all lead to what they should.
        let code = unsafe { kvs_retrieve_kvp(self.space, &raw const of, &raw const option, &raw mut value) };
        bytes.truncate(value.length as usize);
        (code, bytes, value.actual_value_size)
    }

    fn delete(self, of: &[u8], kvs_delete_error: u8) -> KvsResult {
        let (of, option) = (key(of), KvsOptionDelete { kvs_delete_error });
        // SAFETY: all lead to what they should.
        unsafe { kvs_delete_kvp(self.space, &raw const of, &raw const option) }
    }

    fn iterator(self, iter_type: u32, prefix: u8) -> Result<u32, u32> {
        let option = KvsOptionIterator { iter_type };
        let mask = if prefix == 0 { 0 } else { 0xFF };
        let filter = KvsKeyGroupFilter { bitmask: [mask, 0, 0, 0], bit_pattern: [prefix, 0, 0, 0] };
        let mut iterator = 77;
        let code = {
            // SAFETY: all lead to what they should.
            unsafe {
                kvs_create_iterator(self.space, &raw const option, &raw const filter, &raw mut iterator)
            }
        };
        if code == 0 { Ok(iterator) } else { Err(code) }
    }

    /// Code, entries, whether it is the end, and bytes.
    fn next(self, iterator: u32, bytes: &mut [u8]) -> (u32, KvsIteratorList) {
        let size = bytes.len() as u32;
        let mut list = KvsIteratorList { num_entries: 9, end: 9, size, it_list: bytes.as_mut_ptr() };
        // SAFETY: it leads to what it should.
        (unsafe { kvs_iterate_next(self.space, iterator, &raw mut list) }, list)
    }
}

#[test]
fn stores_have_their_conditions_and_limits() {
    let opened = Opened::memory();
    opened.store(b"a", b"one");
    expect(opened.store_as(b"b", b"x", 1), KeyNotExist);
    expect(opened.store_as(b"a", b"two", 1), Success);
    expect(opened.store_as(b"a", b"x", 2), ValueUpdateNotAllowed);
    expect(opened.store_as(b"c", b"new", 2), Success);
    expect(opened.store_as(b"a", b"+more", 3), Success);
    expect(opened.store_as(b"a", b"x", 4), OptionInvalid);
    assert_eq!(opened.read(b"a", 100, 0, 0), (0, b"two+more".to_vec(), 8));
    assert_eq!(opened.read(b"c", 100, 0, 0), (0, b"new".to_vec(), 3));
    let mut max = 0;
    // SAFETY: it leads to a number.
    expect(unsafe { kvs_get_max_value_length(opened.device, &raw mut max) }, Success);
    let longest = vec![7; max as usize + 1];
    expect(opened.store_as(b"long", &longest, 0), ValueLengthInvalid);
    expect(opened.store_as(b"long", &longest[1..], 0), Success);
    assert_eq!(opened.read(b"long", longest.len() + 10, 0, 0), (0, longest[1..].to_vec(), max));
    expect(opened.store_as(b"long", b"x", 3), ValueLengthInvalid);
    expect(opened.store_as(b"", b"x", 0), KeyLengthInvalid);
    expect(opened.store_as(&[1; 256], b"x", 0), KeyLengthInvalid);
    opened.store(&[1; 255], b"");
    assert_eq!(opened.read(&[1; 255], 0, 0, 0), (0, vec![], 0));
    let (of, at) = (key(b"a"), KvsValue { offset: 1, ..value(b"x") });
    // SAFETY: all lead to what they should.
    expect(unsafe { kvs_store_kvp(opened.space, &of, &at, null()) }, ValueOffsetInvalid);
    expect(kvs_close_device(opened.device), Success);
}

#[test]
fn short_buffers_get_the_beginning_and_nothing_is_deleted() {
    let opened = Opened::memory();
    opened.store(b"key", b"0123456789");
    assert_eq!(opened.read(b"key", 4, 0, 0), (BufferSmall as u32, b"0123".to_vec(), 10));
    assert_eq!(opened.read(b"key", 4, 3, 1), (BufferSmall as u32, b"3456".to_vec(), 10));
    assert_eq!(opened.read(b"key", 0, 0, 0), (BufferSmall as u32, vec![], 10));
    assert_eq!(opened.read(b"key", 4, 6, 0), (0, b"6789".to_vec(), 10));
    let (code, untouched, _) = opened.read(b"key", 4, 10, 0);
    assert_eq!((code, untouched), (ValueOffsetInvalid as u32, vec![0xEE; 4]));
    // Any byte that is not zero is true.
    assert_eq!(opened.read(b"key", 10, 0, 0x80), (0, b"0123456789".to_vec(), 10));
    assert_eq!(opened.read(b"key", 10, 0, 0).0, KeyNotExist as u32);
    expect(opened.delete(b"key", 1), KeyNotExist);
    expect(opened.delete(b"key", 0), Success);
    opened.store(b"key", b"again");
    expect(opened.delete(b"key", 1), Success);
    assert_eq!(opened.read(b"key", 10, 0, 0).0, KeyNotExist as u32);
    expect(kvs_close_device(opened.device), Success);
}

#[test]
fn existence_and_lengths_are_told_without_values() {
    let opened = Opened::memory();
    let all: Vec<[u8; 1]> = (0..20).map(|n| [n]).collect();
    for of in all.iter().step_by(3) {
        opened.store(of, &vec![0; usize::from(of[0])]);
    }
    let keys: Vec<KvsKey> = all.iter().map(|of| key(of)).collect();
    let exist = |count: u32, length: u32| {
        let mut bits = [0xEE; 4];
        let mut list = KvsExistList { length, result_buffer: bits.as_mut_ptr() };
        // SAFETY: all lead to what they should.
        let code = unsafe { kvs_exist_kv_pairs(opened.space, count, keys.as_ptr(), &raw mut list) };
        (code, list.length, bits)
    };
    assert_eq!(exist(20, 2), (BufferSmall as u32, 3, [0xEE; 4]));
    assert_eq!(exist(20, 4), (0, 3, [0b0100_1001, 0b1001_0010, 0b0000_0100, 0xEE]));
    expect(exist(0, 4).0, ParamInvalid);
    expect(exist(4097, 4).0, ParamInvalid);
    let mut info = KvsKvpInfo { key_len: 0, value_len: 0 };
    // SAFETY: all lead to what they should, but the null.
    unsafe {
        expect(kvs_get_kvp_info(opened.space, &keys[18], &raw mut info), Success);
        assert_eq!((info.key_len, info.value_len), (1, 18));
        expect(kvs_get_kvp_info(opened.space, &keys[19], &raw mut info), KeyNotExist);
        expect(kvs_get_kvp_info(opened.space, &keys[18], null_mut()), ParamInvalid);
    }
    expect(kvs_close_device(opened.device), Success);
}

#[test]
fn iterators_give_each_pair_once_and_say_what_does_not_fit() {
    let opened = Opened::memory();
    for n in 0..50u8 {
        opened.store(&[b'a', n], &[n; 20]);
        opened.store(&[b'b', n], b"other");
    }
    let iterator = opened.iterator(1, b'a').unwrap();
    assert_eq!(opened.iterator(1, b'a'), Err(IteratorOpen as u32));
    assert_eq!(opened.iterator(2, b'a'), Err(OptionInvalid as u32));
    let keys = opened.iterator(0, 0).unwrap();
    let (code, list) = opened.next(iterator, &mut [0; 29]);
    assert_eq!((code, list.num_entries, list.end, list.size), (BufferSmall as u32, 0, 0, 30));
    let (mut found, mut room, mut is_over) = (BTreeMap::new(), [0; 100], false);
    while !is_over {
        let (code, list) = opened.next(iterator, &mut room);
        expect(code, Success);
        let entries = batch_entries(&room[..list.size as usize], IteratorContent::Pairs).unwrap();
        assert_eq!(entries.len(), list.num_entries as usize);
        for (of, read) in entries {
            assert!(found.insert(of.to_vec(), read.unwrap().to_vec()).is_none(), "{of:?} twice");
        }
        is_over = list.end == 1;
    }
    let expected: BTreeMap<_, _> = (0..50).map(|n| (vec![b'a', n], vec![n; 20])).collect();
    assert_eq!(found, expected);
    expect(kvs_delete_iterator(opened.space, iterator), Success);
    expect(kvs_delete_iterator(opened.space, iterator), IteratorNotExist);
    expect(opened.next(iterator, &mut room).0, IteratorNotExist);
    // One of another key space is none of this one.
    expect(create_space(opened.device, b"other", 0), Success);
    let other = Opened { space: open_space(opened.device, b"other").unwrap(), ..opened };
    expect(other.next(keys, &mut room).0, IteratorNotExist);
    expect(kvs_delete_iterator(other.space, keys), IteratorNotExist);
    expect(opened.next(keys, &mut room).0, Success);
    // A key space that is closed has none: sixteen fit again.
    expect(kvs_close_key_space(opened.space), Success);
    for prefix in 1..=16 {
        other.iterator(0, prefix).unwrap();
    }
    assert_eq!(other.iterator(0, 17), Err(IteratorMax as u32));
    expect(kvs_close_device(opened.device), Success);
}

#[test]
fn groups_are_deleted() {
    let opened = Opened::memory();
    for n in 0..100u8 {
        opened.store(&[n % 2, n], b"x");
    }
    let filter = KvsKeyGroupFilter { bitmask: [1, 0, 0, 0], bit_pattern: [1, 0, 0, 0] };
    // SAFETY: it leads to a filter; null is refused.
    unsafe {
        expect(kvs_delete_key_group(opened.space, null()), ParamInvalid);
        expect(kvs_delete_key_group(opened.space, &raw const filter), Success);
    }
    let mut info = KvsKeySpace { opened: 0, capacity: 1, free_size: 0, count: 0, name: null_mut() };
    // SAFETY: it leads to room for it.
    expect(unsafe { kvs_get_key_space_info(opened.space, &raw mut info) }, Success);
    assert_eq!((info.opened, info.capacity, info.count), (1, 0, 50));
    assert_eq!(opened.read(&[1, 1], 9, 0, 0).0, KeyNotExist as u32);
    expect(kvs_close_device(opened.device), Success);
}

#[test]
fn key_spaces_are_made_listed_opened_and_deleted() {
    let device = open_device("mem:8000000").unwrap();
    let list = |index: u32, rooms: &mut [Vec<u8>]| {
        let mut names: Vec<_> = rooms
            .iter_mut()
            .map(|room| KvsKeySpaceName { name_len: room.len() as u32, name: room.as_mut_ptr().cast() })
            .collect();
        let (bytes, mut count) = (size_of_val(&names[..]) as u32, 99);
        // SAFETY: all lead to what they should.
        let code = unsafe { kvs_list_key_spaces(device, index, bytes, names.as_mut_ptr(), &raw mut count) };
        (code, count, names.iter().map(|name| name.name_len).collect::<Vec<_>>())
    };
    assert_eq!(list(1, &mut [vec![0; 9]]), (0, 0, vec![9]));
    for (bytes, code) in
        [(&b"one"[..], Success), (b"three", Success), (b"one", KeySpaceExist), (b"", KeySpaceName)]
    {
        expect(create_space(device, bytes, 100), code);
    }
    expect(create_space(device, &[b'n'; 256], 0), KeySpaceName);
    let mut rooms = [vec![0; 9], vec![0; 4], vec![0; 9]];
    assert_eq!(list(1, &mut rooms), (BufferSmall as u32, 1, vec![3, 5, 9]));
    rooms[1].resize(5, 0);
    assert_eq!(list(1, &mut rooms), (0, 2, vec![3, 5, 9]));
    assert_eq!((&rooms[0][..3], &rooms[1][..]), (&b"one"[..], &b"three"[..]));
    assert_eq!(list(2, &mut rooms[..1]), (0, 1, vec![5]));
    assert_eq!(list(3, &mut rooms).0, KeySpaceIndex as u32);
    assert_eq!(list(0, &mut rooms).0, KeySpaceIndex as u32);
    assert_eq!(open_space(device, b"two"), Err(KeySpaceNotExist as u32));
    let opened = Opened { device, space: open_space(device, b"one").unwrap() };
    assert_eq!(open_space(device, b"one"), Err(KeySpaceOpen as u32));
    opened.store(b"12345", &[0; 80]);
    expect(opened.store_as(b"x", &[0; 20], 0), KeySpaceCapacity);
    let (mut bytes, short) = ([0u8; 3], 2);
    let mut of = KvsKeySpaceName { name_len: short, name: bytes.as_mut_ptr().cast::<c_char>() };
    let mut info = KvsKeySpace { opened: 0, capacity: 0, free_size: 0, count: 0, name: &raw mut of };
    // SAFETY: all lead to what they should.
    unsafe {
        expect(kvs_get_key_space_info(opened.space, &raw mut info), BufferSmall);
        assert_eq!(of.name_len, 3);
        expect(kvs_get_key_space_info(opened.space, &raw mut info), Success);
        assert_eq!((info.capacity, info.free_size, info.count), (100, 15, 1));
        assert_eq!(&bytes, b"one");
        let option = KvsOptionKeySpace { ordering: 1 };
        let wanted = name(b"ordered");
        expect(kvs_create_key_space(device, &wanted, 0, &raw const option), OptionInvalid);
        expect(kvs_delete_key_space(device, &name(b"one")), Success);
        expect(kvs_delete_key_space(device, &name(b"one")), KeySpaceNotExist);
    }
    expect(opened.delete(b"12345", 0), KeySpaceNotOpen);
    expect(kvs_close_device(device), Success);
}

/// Each function of a device gives this code.
#[track_caller]
fn call_device(device: KvsHandle, code: ResultCode) {
    let (mut number, mut bytes, mut info) = (0, 0, KvsDevice::default());
    expect(hr_flush_device(device), code);
    expect(create_space(device, b"n", 0), code);
    assert_eq!(open_space(device, b"space"), Err(code as u32));
    // SAFETY: the handle is looked at first, and all others lead to what they should.
    unsafe {
        expect(kvs_get_device_capacity(device, &raw mut bytes), code);
        expect(kvs_get_device_info(device, &raw mut info), code);
        for function in [
            kvs_get_device_utilization as unsafe extern "C" fn(KvsHandle, *mut u32) -> u32,
            kvs_get_min_key_length,
            kvs_get_max_key_length,
            kvs_get_min_value_length,
            kvs_get_max_value_length,
            kvs_get_optimal_value_length,
        ] {
            expect(function(device, &raw mut number), code);
        }
        expect(kvs_delete_key_space(device, null()), code);
        expect(kvs_list_key_spaces(device, 1, 0, null_mut(), &raw mut number), code);
    }
    expect(kvs_close_device(device), code);
}

/// Null, closed, of the other kind, never given: each a code, in each function.
#[test]
fn wrong_handles_are_codes() {
    let opened = Opened::memory();
    let iterator = opened.iterator(0, 0).unwrap();
    let call_space = |space: KvsHandle, code: ResultCode| {
        let wrong = Opened { space, ..opened };
        expect(wrong.store_as(b"a", b"x", 0), code);
        expect(wrong.read(b"a", 4, 0, 0).0, code);
        expect(wrong.delete(b"a", 0), code);
        assert_eq!(wrong.iterator(0, 1), Err(code as u32));
        expect(wrong.next(iterator, &mut [0; 9]).0, code);
        expect(kvs_delete_iterator(space, iterator), code);
        expect(kvs_close_key_space(space), code);
        let (of, mut value, filter) =
            (key(b"a"), value(b"x"), KvsKeyGroupFilter { bitmask: [0; 4], bit_pattern: [0; 4] });
        // SAFETY: the handle is looked at first.
        unsafe {
            expect(kvs_delete_key_group(space, &raw const filter), code);
            expect(kvs_exist_kv_pairs(space, 1, &raw const of, null_mut()), code);
            expect(kvs_get_kvp_info(space, &raw const of, null_mut()), code);
            expect(kvs_get_key_space_info(space, null_mut()), code);
            let call = Some(count as unsafe extern "C" fn(*mut KvsPostprocessContext));
            expect(
                kvs_store_kvp_async(space, &of, &raw mut value, null(), null_mut(), null_mut(), call),
                code,
            );
            expect(
                kvs_retrieve_kvp_async(space, &of, null(), &raw mut value, null_mut(), null_mut(), call),
                code,
            );
            expect(kvs_delete_kvp_async(space, &of, null(), null_mut(), null_mut(), call), code);
        }
    };
    call_space(null(), ParamInvalid);
    call_space(opened.device, KeySpaceNotOpen);
    call_space(without_provenance(usize::MAX), KeySpaceNotOpen);
    call_device(null(), ParamInvalid);
    call_device(opened.space, DeviceNotOpened);
    call_device(without_provenance(usize::MAX), DeviceNotOpened);
    expect(kvs_close_device(opened.device), Success);
    call_space(opened.space, KeySpaceNotOpen);
    call_device(opened.device, DeviceNotOpened);
    // A later device does not get the numbers of an earlier one.
    let later = Opened::memory();
    call_device(opened.device, DeviceNotOpened);
    call_space(opened.space, KeySpaceNotOpen);
    expect(kvs_close_device(later.device), Success);
}

#[test]
fn null_pointers_are_codes() {
    let opened = Opened::memory();
    let (of, fine, mut handle) = (key(b"a"), value(b"x"), null());
    let no_bytes = KvsKey { key: null(), length: 1 };
    let mut no_room = room(null_mut(), 1);
    let mut list = KvsIteratorList { num_entries: 0, end: 0, size: 9, it_list: null_mut() };
    let mut exist = KvsExistList { length: 9, result_buffer: null_mut() };
    let no_name = KvsKeySpaceName { name_len: 3, name: null_mut() };
    let iterator = opened.iterator(0, 0).unwrap();
    let (space, device) = (opened.space, opened.device);
    // SAFETY: what is not null leads to what it should.
    let codes = unsafe {
        [
            kvs_open_device(null(), &raw mut handle),
            kvs_open_device(c"mem:8000000".as_ptr(), null_mut()),
            hr_format_device(null(), 1 << 20),
            kvs_get_device_info(device, null_mut()),
            kvs_get_device_capacity(device, null_mut()),
            kvs_get_device_utilization(device, null_mut()),
            kvs_get_min_key_length(device, null_mut()),
            kvs_create_key_space(device, null(), 0, null()),
            kvs_create_key_space(device, &raw const no_name, 0, null()),
            kvs_delete_key_space(device, null()),
            kvs_list_key_spaces(device, 1, 16, null_mut(), null_mut()),
            kvs_list_key_spaces(device, 1, 16, null_mut(), &raw mut list.size),
            kvs_open_key_space(device, null(), &raw mut handle),
            kvs_open_key_space(device, &name(b"space"), null_mut()),
            kvs_get_key_space_info(space, null_mut()),
            kvs_store_kvp(space, null(), &raw const fine, null()),
            kvs_store_kvp(space, &raw const no_bytes, &raw const fine, null()),
            kvs_store_kvp(space, &raw const of, null(), null()),
            kvs_store_kvp(space, &raw const of, &raw const no_room, null()),
            kvs_store_kvp(space, (&raw const of).wrapping_byte_add(1), &raw const fine, null()),
            kvs_retrieve_kvp(space, &raw const of, null(), null_mut()),
            kvs_retrieve_kvp(space, &raw const of, null(), &raw mut no_room),
            kvs_delete_kvp(space, null(), null()),
            kvs_exist_kv_pairs(space, 1, null(), &raw mut exist),
            kvs_exist_kv_pairs(space, 1, &raw const of, null_mut()),
            kvs_exist_kv_pairs(space, 1, &raw const of, &raw mut exist),
            kvs_exist_kv_pairs(space, 1, &raw const no_bytes, &raw mut exist),
            kvs_create_iterator(space, null(), null(), null_mut()),
            kvs_iterate_next(space, iterator, null_mut()),
            kvs_iterate_next(space, iterator, &raw mut list),
            kvs_delete_kvp_async(space, &raw const of, null(), null_mut(), null_mut(), None),
        ]
    };
    for (at, code) in codes.into_iter().enumerate() {
        assert_eq!(code, ParamInvalid as u32, "the call of number {at}");
    }
    // None of them left anything open: the key space is deleted and the device closed at once.
    let mut info = KvsKeySpace { opened: 0, capacity: 0, free_size: 0, count: 9, name: null_mut() };
    // SAFETY: it leads to room for it.
    expect(unsafe { kvs_get_key_space_info(space, &raw mut info) }, Success);
    assert_eq!(info.count, 0);
    expect(kvs_close_device(device), Success);
}

fn path_text(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

#[test]
fn files_keep_pairs_and_are_opened_once() {
    let scratch = Scratch::made("kvssd-c-files");
    let path = scratch.join("device");
    let (text, uri) = (path_text(&path), path.to_str().unwrap());
    assert_eq!(open_device(uri), Err(DeviceNotExist as u32));
    // SAFETY: the path ends with a zero.
    let format = |bytes| unsafe { hr_format_device(text.as_ptr(), bytes) };
    expect(format(1 << 16), ParamInvalid);
    assert_eq!(open_device(uri), Err(DeviceNotExist as u32));
    expect(format(8 << 20), Success);
    assert!(std::fs::metadata(&path).unwrap().len() <= 8 << 20);
    let opened = Opened::of(open_device(uri).unwrap());
    assert_eq!(open_device(uri), Err(SystemIo as u32));
    for n in 0..200u8 {
        opened.store(&[n], &[n; 100]);
    }
    expect(hr_flush_device(opened.device), Success);
    expect(kvs_close_device(opened.device), Success);
    expect(format(8 << 20), ParamInvalid);
    let mut device = null();
    // SAFETY: both lead to what they should.
    unsafe {
        expect(hr_open_device(text.as_ptr(), 2, &raw mut device), OptionInvalid);
        expect(hr_open_device(text.as_ptr(), 1, &raw mut device), Success);
    }
    let opened = Opened { device, space: open_space(device, b"space").unwrap() };
    for n in 0..200u8 {
        assert_eq!(opened.read(&[n], 100, 0, 0), (0, vec![n; 100], 100));
    }
    let (mut info, mut used, mut capacity) = (KvsDevice::default(), 0, 0);
    // SAFETY: all lead to what they should.
    unsafe {
        expect(kvs_get_device_info(device, &raw mut info), Success);
        expect(kvs_get_device_utilization(device, &raw mut used), Success);
        expect(kvs_get_device_capacity(device, &raw mut capacity), Success);
    }
    assert_eq!((info.capacity, info.max_key_len), (capacity, 255));
    let taken = (info.capacity - info.unalloc_capacity) * 10_000 / info.capacity;
    assert!(used > 0 && u64::from(used) == taken, "{used} of {taken}");
    expect(kvs_close_device(device), Success);
    for wrong in ["", "mem:", "mem:x", "mem:1000", "mem:-1", "mem:18446744073709551615"] {
        assert_eq!(open_device(wrong), Err(ParamInvalid as u32), "{wrong}");
    }
}

#[test]
fn threads_share_a_device() {
    let opened = Opened::memory();
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            scope.spawn(move || {
                let opened = opened;
                for n in 0..200u8 {
                    opened.store(&[thread, n], &[thread; 30]);
                    assert_eq!(opened.read(&[thread, n], 30, 0, 0), (0, vec![thread; 30], 30));
                    expect(opened.store_as(b"shared", &[thread], 3), Success);
                }
            });
        }
    });
    let (code, shared, bytes) = opened.read(b"shared", 2000, 0, 0);
    assert_eq!((code, bytes), (0, 1600));
    for thread in 0..8 {
        assert_eq!(shared.iter().filter(|&&byte| byte == thread).count(), 200, "no append was lost");
    }
    expect(kvs_close_device(opened.device), Success);
}

/// Threads that are under way as the device is closed get their answer, or a code that says that it is closed.
#[test]
fn closing_under_threads_is_a_code() {
    for _ in 0..20 {
        let (opened, begun) = (Opened::memory(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let begun = &begun;
                scope.spawn(move || {
                    let opened = opened;
                    loop {
                        let code = opened.store_as(&[thread], b"x", 0);
                        begun.fetch_add(1, Ordering::Relaxed);
                        if code != Success as u32 {
                            assert!(
                                [DeviceNotOpened as u32, KeySpaceNotOpen as u32].contains(&code),
                                "{code}"
                            );
                            return;
                        }
                    }
                });
            }
            while begun.load(Ordering::Relaxed) < 20 {
                std::thread::yield_now();
            }
            expect(kvs_close_device(opened.device), Success);
        });
    }
}

/// Adds one to the number at `private1`.
unsafe extern "C" fn count(context: *mut KvsPostprocessContext) {
    // SAFETY: each test gives such a number.
    unsafe { (*(*context).private1.cast::<AtomicU32>()).fetch_add(1, Ordering::SeqCst) };
}

/// A command of a test, with what it needs until its callback.
struct Started {
    of: [u8; 4],
    key: KvsKey,
    bytes: [u8; 32],
    value: KvsValue,
    calls: AtomicU32,
    result: AtomicU32,
}

#[expect(clippy::vec_box, reason = "each has pointers into itself, and must stay where it is")]
fn started(count: u32) -> Vec<Box<Started>> {
    let one = |n: u32| {
        let (of, bytes) = (n.to_be_bytes(), [n as u8; 32]);
        let (calls, result) = (AtomicU32::new(0), AtomicU32::new(u32::MAX));
        let mut made = Box::new(Started { of, key: key(&[]), bytes, value: value(&[]), calls, result });
        made.key = key(&made.of);
        made.value = room(made.bytes.as_mut_ptr(), 32);
        made
    };
    (0..count).map(one).collect()
}

unsafe extern "C" fn note(context: *mut KvsPostprocessContext) {
    // SAFETY: each test gives a `Started` as `private1`, whose other fields nobody else looks at until then.
    unsafe {
        let started = (*context).private1.cast::<Started>();
        (*started).calls.fetch_add(1, Ordering::SeqCst);
        (*started).result.store((*context).result, Ordering::SeqCst);
        assert_eq!((*context).key, &raw const (*started).key);
        assert!((*context).private2.is_null());
    }
}

impl Opened {
    fn start(self, at: &mut Started, operation: u32) -> KvsResult {
        let at = &raw mut *at;
        let (private1, private2) = (at.cast::<c_void>(), null_mut());
        // SAFETY: what is started lives until its device is closed.
        unsafe {
            let (key, value) = (&raw const (*at).key, &raw mut (*at).value);
            match operation {
                OPERATION_STORE => {
                    kvs_store_kvp_async(self.space, key, value, null(), private1, private2, Some(note))
                }
                OPERATION_RETRIEVE => {
                    kvs_retrieve_kvp_async(self.space, key, null(), value, private1, private2, Some(note))
                }
                _ => kvs_delete_kvp_async(self.space, key, null(), private1, private2, Some(note)),
            }
        }
    }
}

/// More than fit at once, and the device is closed while they are under way: each is called back for once.
#[test]
fn each_command_is_called_back_for_once_also_when_the_device_closes() {
    let scratch = Scratch::made("kvssd-c-async");
    let path = scratch.join("device");
    // SAFETY: the path ends with a zero.
    expect(unsafe { hr_format_device(path_text(&path).as_ptr(), 8 << 20) }, Success);
    let uri = path.to_str().unwrap();
    let opened = Opened::of(open_device(uri).unwrap());
    let mut all = started(1000);
    for at in &mut all {
        expect(opened.start(at, OPERATION_STORE), Success);
    }
    expect(kvs_close_device(opened.device), Success);
    for at in &all {
        assert_eq!((at.calls.load(Ordering::SeqCst), at.result.load(Ordering::SeqCst)), (1, 0));
    }
    let device = open_device(uri).unwrap();
    let opened = Opened { device, space: open_space(device, b"space").unwrap() };
    let mut read = started(1001);
    for at in &mut read {
        at.bytes = [0xEE; 32];
        at.value.length = if at.of[3] == 7 { 5 } else { 32 };
        expect(opened.start(at, OPERATION_RETRIEVE), Success);
    }
    expect(kvs_close_device(device), Success);
    for (n, at) in read.iter().enumerate() {
        let code = match (n, at.of[3]) {
            (1000, _) => KeyNotExist,
            (_, 7) => BufferSmall,
            _ => Success,
        };
        assert_eq!((at.calls.load(Ordering::SeqCst), at.result.load(Ordering::SeqCst)), (1, code as u32));
        if code == Success {
            assert_eq!((at.bytes, at.value.length, at.value.actual_value_size), ([n as u8; 32], 32, 32));
        } else if code == BufferSmall {
            assert_eq!((at.value.length, at.value.actual_value_size), (5, 32));
            assert_eq!((&at.bytes[..5], at.bytes[5]), (&[7; 5][..], 0xEE));
        }
    }
}

#[test]
fn deletions_are_called_back_for_and_what_is_refused_is_not() {
    let opened = Opened::memory();
    let mut all = started(10);
    for at in &mut all {
        opened.store(&at.of, b"x");
        expect(opened.start(at, OPERATION_DELETE), Success);
    }
    let mut refused = started(1);
    refused[0].key.length = 0;
    expect(opened.start(&mut refused[0], OPERATION_STORE), KeyLengthInvalid);
    expect(kvs_close_device(opened.device), Success);
    expect(opened.start(&mut refused[0], OPERATION_STORE), KeySpaceNotOpen);
    assert_eq!(refused[0].calls.load(Ordering::SeqCst), 0);
    assert!(all.iter().all(|at| at.calls.load(Ordering::SeqCst) == 1));
}

/// What a callback does in `callbacks_may_call`, and what it met.
struct Chain {
    opened: Opened,
    left: AtomicU32,
    close: AtomicU32,
    read: AtomicU32,
    key: KvsKey,
}

unsafe extern "C" fn chain(context: *mut KvsPostprocessContext) {
    // SAFETY: the test gives a `Chain`, which lives until its device is closed.
    let chain = unsafe { &*(*context).private1.cast::<Chain>() };
    chain.close.store(kvs_close_device(chain.opened.device), Ordering::SeqCst);
    chain.read.store(chain.opened.read(b"k", 9, 0, 0).0, Ordering::SeqCst);
    if chain.left.fetch_sub(1, Ordering::SeqCst) > 1 {
        // SAFETY: as above.
        unsafe { chain.start() };
    }
}

impl Chain {
    /// # Safety
    /// It lives until its device is closed, or until the last callback.
    unsafe fn start(&self) {
        let private1 = (&raw const *self).cast_mut().cast();
        // SAFETY: by this function's own condition.
        let code = unsafe {
            kvs_delete_kvp_async(
                self.opened.space,
                &raw const self.key,
                null(),
                private1,
                null_mut(),
                Some(self::chain),
            )
        };
        expect(code, Success);
    }
}

#[test]
fn callbacks_may_call_all_but_closing() {
    let opened = Opened::memory();
    opened.store(b"k", b"value");
    let number = |n| AtomicU32::new(n);
    let chain = Chain { opened, left: number(100), close: number(99), read: number(99), key: key(b"other") };
    // SAFETY: it lives until the device is closed.
    unsafe { chain.start() };
    hedgerow_sim::eventually("a hundred callbacks", || chain.left.load(Ordering::SeqCst) == 0);
    assert_eq!(chain.close.load(Ordering::SeqCst), ParamInvalid as u32);
    assert_eq!(chain.read.load(Ordering::SeqCst), Success as u32);
    expect(kvs_close_device(opened.device), Success);
}

unsafe extern "C" fn linger(context: *mut KvsPostprocessContext) {
    std::thread::sleep(std::time::Duration::from_millis(100));
    // SAFETY: the test gives a number.
    unsafe { count(context) };
}

/// A device is closed when the last callback has returned, and not when it has begun.
#[test]
fn closing_waits_for_callbacks() {
    let opened = Opened::memory();
    let (calls, of) = (AtomicU32::new(0), key(b"k"));
    let private1 = (&raw const calls).cast_mut().cast();
    for _ in 0..3 {
        // SAFETY: what is given lives until the device is closed.
        let code = unsafe {
            kvs_delete_kvp_async(opened.space, &raw const of, null(), private1, null_mut(), Some(linger))
        };
        expect(code, Success);
    }
    expect(kvs_close_device(opened.device), Success);
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}
