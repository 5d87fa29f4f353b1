use hedgerow_device::{FastTier, FastTierOptions};

use super::*;
use crate::{
    Device, DeviceOptions, Geometry, Host, HostRequest, KvCommand, KvError, ResultCode, SpaceId, StoreMode,
};

fn key(bytes: &[u8]) -> NvmeKey {
    NvmeKey::new(bytes).unwrap()
}

fn command(action: NvmeAction) -> NvmeCommand {
    NvmeCommand { command_id: 0x0201, namespace: 0x0605_0403, data: DataPointer::Prp(0, 0), action }
}

/// The layout of the standard, byte for byte.
#[test]
fn commands_have_the_bytes_of_the_standard() {
    let options = StoreOptions { only_if_present: true, only_if_absent: false, no_compression: true };
    let action = NvmeAction::Store { key: key(b"abcdefghijk"), value_bytes: 0x0D0C_0B0A, options };
    let data = DataPointer::Prp(0x1716_1514_1312_1110, 0x1F1E_1D1C_1B1A_1918);
    let stored = NvmeCommand { data, ..command(action) };
    let mut golden = [0; 64];
    golden[..16].copy_from_slice(b"\x01\x00\x01\x02\x03\x04\x05\x06abcdefgh");
    golden[24..40].copy_from_slice(&std::array::from_fn::<u8, 16, _>(|at| 0x10 + at as u8));
    golden[40..48].copy_from_slice(b"\x0A\x0B\x0C\x0D\x0B\x05\0\0");
    golden[56..59].copy_from_slice(b"ijk");
    assert_eq!(stored.encode(), golden);

    let action = NvmeAction::Retrieve { key: key(&[0xFF]), buffer_bytes: 4096, raw: true };
    let retrieved = NvmeCommand { data: DataPointer::Sgl([7; 16]), ..command(action) };
    let mut golden = [0; 64];
    golden[..9].copy_from_slice(b"\x02\x40\x01\x02\x03\x04\x05\x06\xFF");
    golden[24..40].fill(7);
    golden[40..46].copy_from_slice(b"\x00\x10\0\0\x01\x01");
    assert_eq!(retrieved.encode(), golden);

    let whole = b"0123456789abcdef";
    let others = [
        (0x00, NvmeAction::Flush, &b""[..], 0u32),
        (0x06, NvmeAction::List { from: None, buffer_bytes: 9 }, b"", 9),
        (0x06, NvmeAction::List { from: Some(key(whole)), buffer_bytes: 9 }, whole, 9),
        (0x10, NvmeAction::Delete { key: key(whole) }, whole, 0),
        (0x14, NvmeAction::Exist { key: key(b"k") }, b"k", 0),
    ];
    for (opcode, action, of_key, dword_10) in others {
        let mut golden = [0; 64];
        golden[..8].copy_from_slice(&[opcode, 0, 1, 2, 3, 4, 5, 6]);
        let first = of_key.len().min(8);
        golden[8..8 + first].copy_from_slice(&of_key[..first]);
        golden[56..56 + of_key.len() - first].copy_from_slice(&of_key[first..]);
        golden[40..44].copy_from_slice(&dword_10.to_le_bytes());
        golden[44] = of_key.len() as u8;
        assert_eq!(command(action).encode(), golden, "{action:?}");
        assert_eq!(NvmeCommand::decode(&golden), Ok(command(action)));
    }
    for sent in [stored, retrieved] {
        assert_eq!(NvmeCommand::decode(&sent.encode()), Ok(sent));
    }
}

#[test]
fn what_is_no_command_says_why_and_has_a_status() {
    let store = NvmeAction::Store { key: key(b"k"), value_bytes: 1, options: StoreOptions::default() };
    let store = command(store).encode();
    let retrieve = command(NvmeAction::Retrieve { key: key(b"k"), buffer_bytes: 1, raw: false }).encode();
    let delete = command(NvmeAction::Delete { key: key(b"k") }).encode();
    let list = command(NvmeAction::List { from: None, buffer_bytes: 4 }).encode();
    let length = |bytes, opcode| WireError::KeyLength { bytes, max: 16, opcode };
    let (field, size) = (NvmeStatus::INVALID_FIELD, NvmeStatus::INVALID_KEY_SIZE);
    let cases = [
        (store, 0, 0x81, WireError::Opcode { opcode: 0x81 }, NvmeStatus::INVALID_OPCODE),
        (store, 1, 0x01, WireError::Fused { how: 1 }, field),
        (store, 1, 0xC0, WireError::DataPointer { kind: 3 }, field),
        (store, 45, 0x08, WireError::Options { options: 8, known: 7 }, field),
        (retrieve, 45, 0x02, WireError::Options { options: 2, known: 1 }, field),
        (store, 44, 0, length(0, 0x01), size),
        (store, 44, 17, length(17, 0x01), size),
        (retrieve, 44, 0, length(0, 0x02), size),
        (retrieve, 44, 17, length(17, 0x02), field),
        (delete, 44, 0, length(0, 0x10), field),
        (delete, 44, 255, length(255, 0x10), field),
        (list, 44, 17, length(17, 0x06), field),
    ];
    for (mut bytes, at, byte, error, status) in cases {
        bytes[at] = byte;
        assert_eq!(NvmeCommand::decode(&bytes), Err(error));
        assert_eq!(NvmeStatus::from(error), status, "{error}");
    }
    assert_eq!(NvmeKey::new(b""), Err(length(0, 0x01)));
    assert_eq!(NvmeKey::new(&[1; 17]), Err(length(17, 0x01)));
}

/// Any bytes are a command or an error; and what is a command stays that command when it is encoded again.
#[test]
fn any_bytes_are_a_command_or_an_error() {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut commands, mut errors) = (0, 0);
    for round in 0..200_000u32 {
        let mut bytes: [u8; 64] = std::array::from_fn(|_| random() as u8);
        if round % 2 == 0 {
            bytes[0] = [FLUSH, STORE, RETRIEVE, LIST, DELETE, EXIST][random() as usize % 6];
            bytes[1] &= 0x40;
            bytes[44] %= 20;
            bytes[45] %= 9;
        }
        match NvmeCommand::decode(&bytes) {
            Ok(command) => {
                assert_eq!(NvmeCommand::decode(&command.encode()), Ok(command));
                commands += 1;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                errors += 1;
            }
        }
        let at = random() as usize % 64;
        let _ = decode_key_list(&bytes[at..]);
        bytes[..4].copy_from_slice(&(random() as u32 % 20).to_le_bytes());
        bytes[5] = 0;
        let _ = decode_key_list(&bytes);
        let entry = *bytes.first_chunk::<16>().unwrap();
        let completion = NvmeCompletion::decode(&entry);
        assert_eq!(NvmeCompletion::decode(&completion.encode()), completion);
        let _ = completion.status.code();
    }
    assert!(commands > 10_000 && errors > 10_000, "{commands} {errors}");
}

#[test]
fn completions_have_the_bytes_of_the_standard() {
    let completion = NvmeCompletion {
        result: 0x0403_0201,
        queue_head: 0x0605,
        queue: 0x0807,
        command_id: 0x0A09,
        phase: true,
        status: NvmeStatus::KEY_NOT_EXIST,
        retry_delay: 2,
        more: false,
        do_not_retry: true,
    };
    // 1 | 87h << 1 | 2 << 12 | 1 << 15.
    let golden = [1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 7, 8, 9, 10, 0x0F, 0xA1];
    assert_eq!(completion.encode(), golden);
    assert_eq!(NvmeCompletion::decode(&golden), completion);
}

#[test]
fn statuses_have_their_numbers_and_result_codes() {
    let cases = [
        (ResultCode::Success, 0x00),
        (ResultCode::DeviceCapacity, 0x81),
        (ResultCode::DeviceNotOpened, 0x82),
        (ResultCode::ValueLengthInvalid, 0x85),
        (ResultCode::KeyLengthInvalid, 0x86),
        (ResultCode::KeyNotExist, 0x87),
        (ResultCode::ValueUpdateNotAllowed, 0x89),
        (ResultCode::KeySpaceNotExist, 0x0B),
        (ResultCode::ParamInvalid, 0x02),
        (ResultCode::SystemIo, 0x06),
    ];
    for (code, number) in cases {
        let status = NvmeStatus::of_code(code);
        assert_eq!(status, NvmeStatus { kind: 0, code: number });
        assert_eq!(status.code(), code);
        let as_specific = NvmeStatus { kind: 1, code: number };
        let is_shared = (0x85..=0x89).contains(&number) || matches!(number, 0x81 | 0x82);
        assert_eq!(as_specific.code(), if is_shared { code } else { ResultCode::SystemIo });
    }
    let damaged = KvError::Damaged { offset: 0, what: "a value" };
    assert_eq!(NvmeStatus::of_error(&damaged, RETRIEVE).code, 0x88);
    assert_eq!(NvmeStatus::of_error(&damaged, STORE).code, 0x06);
    assert_eq!(NvmeStatus::of_error(&KvError::QueueFull { depth: 1 }, STORE).code, 0x21);
    assert_eq!(NvmeStatus::UNRECOVERED_ERROR.code(), ResultCode::SystemIo);
}

#[test]
fn lists_of_keys_have_the_bytes_of_the_standard() {
    let keys = [key(b"a"), key(b"bc"), key(b"def")];
    let golden = b"\x03\0\0\0\x01\0a\0\x02\0bc\x03\0def\0\0\0";
    assert_eq!(encode_key_list(&keys, 100), Ok((golden.to_vec(), 3)));
    assert_eq!(encode_key_list(&keys, 20), Ok((golden.to_vec(), 3)));
    // One byte less: the last key is not in it.
    assert_eq!(encode_key_list(&keys, 19), Ok((b"\x02\0\0\0\x01\0a\0\x02\0bc".to_vec(), 2)));
    assert_eq!(encode_key_list(&keys, 3), Err(WireError::ListShort { bytes: 3, needed: 4 }));
    let decoded = decode_key_list(golden).unwrap();
    assert_eq!(decoded.iter().map(PairKey::bytes).collect::<Vec<_>>(), [&b"a"[..], b"bc", b"def"]);
    for cut in 0..17 {
        assert!(matches!(decode_key_list(&golden[..cut]), Err(WireError::ListShort { .. })), "{cut}");
    }
    assert!(matches!(decode_key_list(b"\x01\0\0\0\0\0\0\0"), Err(WireError::KeyLength { bytes: 0, .. })));
    assert!(matches!(decode_key_list(&[0xFF; 8]), Err(WireError::ListShort { .. })));
}

struct Rig {
    host: Host,
    namespaces: NvmeNamespaces,
    space: SpaceId,
}

impl Rig {
    fn new(hash_mask: u64) -> Rig {
        let tier = FastTier::dram(&FastTierOptions::default()).unwrap();
        let geometry = Geometry { page_bytes: 4096, block_bytes: 64 << 10, blocks: 16 };
        let options = DeviceOptions { hash_mask, ..DeviceOptions::default() };
        let mut host = Host::new(Device::format(tier, geometry, options).unwrap());
        let queue = host.open_queue(1, 1024);
        let space = host.create_space(queue, b"one", 0).unwrap();
        let limited = host.create_space(queue, b"two", 100).unwrap();
        let mut namespaces = NvmeNamespaces::new(&mut host);
        namespaces.attach(1, space).unwrap();
        namespaces.attach(2, limited).unwrap();
        assert!(matches!(namespaces.attach(2, space), Err(KvError::Param { .. })));
        assert!(matches!(namespaces.attach(0, space), Err(KvError::Param { .. })));
        assert!(matches!(namespaces.attach(u32::MAX, space), Err(KvError::Param { .. })));
        Rig { host, namespaces, space }
    }

    fn run(&mut self, namespace: u32, action: NvmeAction, data: &mut [u8]) -> NvmeCompletion {
        let command = NvmeCommand { namespace, ..command(action) };
        let completion = self.namespaces.execute(&mut self.host, &command.encode(), data);
        assert_eq!(completion.command_id, 0x0201);
        completion
    }

    fn status(&mut self, action: NvmeAction, data: &mut [u8]) -> NvmeStatus {
        self.run(1, action, data).status
    }

    fn store(&mut self, of: &[u8], value: &[u8], present: bool, absent: bool) -> NvmeStatus {
        let options =
            StoreOptions { only_if_present: present, only_if_absent: absent, no_compression: false };
        let action = NvmeAction::Store { key: key(of), value_bytes: value.len() as u32, options };
        self.status(action, &mut value.to_vec())
    }

    /// All keys, by lists of a buffer each, each from the last key of the one before it on.
    fn list(&mut self, bytes: usize) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = Vec::new();
        loop {
            let from = all.last().map(|last| key(last));
            let mut data = vec![0xEE; bytes + 4];
            let action = NvmeAction::List { from, buffer_bytes: bytes as u32 };
            assert_eq!(self.status(action, &mut data), NvmeStatus::SUCCESS);
            assert_eq!(data[bytes..], [0xEE; 4], "behind the buffer");
            let mut keys = decode_key_list(&data[..bytes]).unwrap();
            if let Some(last) = all.last() {
                assert_eq!(keys.remove(0).bytes(), last);
            }
            if keys.is_empty() {
                return all;
            }
            all.extend(keys.iter().map(|key| key.bytes().to_vec()));
        }
    }
}

#[test]
fn pairs_are_stored_read_and_deleted_by_entries_alone() {
    let mut rig = Rig::new(u64::MAX);
    let k = key(b"key");
    let retrieve = |bytes| NvmeAction::Retrieve { key: k, buffer_bytes: bytes, raw: false };
    assert_eq!(rig.status(retrieve(8), &mut [0; 8]), NvmeStatus::KEY_NOT_EXIST);
    assert_eq!(rig.status(NvmeAction::Exist { key: k }, &mut []), NvmeStatus::KEY_NOT_EXIST);
    assert_eq!(rig.store(b"key", b"v", true, false), NvmeStatus::KEY_NOT_EXIST);
    assert_eq!(rig.store(b"key", b"v", true, true), NvmeStatus::KEY_NOT_EXIST);
    assert_eq!(rig.store(b"key", b"value", false, true), NvmeStatus::SUCCESS);
    assert_eq!(rig.store(b"key", b"other", false, true), NvmeStatus::KEY_EXISTS);
    assert_eq!(rig.store(b"key", b"other", true, true), NvmeStatus::KEY_EXISTS);
    assert_eq!(rig.status(NvmeAction::Exist { key: k }, &mut []), NvmeStatus::SUCCESS);
    // Long, short and no buffers: the size is that of the value, and nothing behind the value or the buffer is touched.
    for (buffer_bytes, read) in
        [(8, &b"value\xEE\xEE\xEE"[..]), (2, b"va\xEE\xEE\xEE\xEE\xEE\xEE"), (0, &[0xEE; 8])]
    {
        let mut data = [0xEE; 8];
        let completion = rig.run(1, retrieve(buffer_bytes), &mut data);
        assert_eq!((completion.status, completion.result), (NvmeStatus::SUCCESS, 5));
        assert_eq!(data, read);
    }
    assert_eq!(rig.store(b"key", b"", true, false), NvmeStatus::SUCCESS);
    assert_eq!(rig.run(1, retrieve(8), &mut [0; 8]).result, 0);
    assert_eq!(rig.status(NvmeAction::Flush, &mut []), NvmeStatus::SUCCESS);
    // Another namespace has pairs of its own.
    assert_eq!(rig.run(2, NvmeAction::Exist { key: k }, &mut []).status, NvmeStatus::KEY_NOT_EXIST);
    for _ in 0..2 {
        assert_eq!(rig.status(NvmeAction::Delete { key: k }, &mut []), NvmeStatus::SUCCESS);
    }
    rig.namespaces.set_missing_delete_refused(true);
    assert_eq!(rig.status(NvmeAction::Delete { key: k }, &mut []), NvmeStatus::KEY_NOT_EXIST);
}

#[test]
fn every_refusal_has_its_status() {
    let mut rig = Rig::new(u64::MAX);
    let store = |bytes| {
        let options = StoreOptions::default();
        NvmeAction::Store { key: key(b"k"), value_bytes: bytes, options }
    };
    let max = rig.host.device().geometry().value_bytes_max() as usize;
    let mut data = vec![0; max + 1];
    assert_eq!(rig.status(store(max as u32), &mut data), NvmeStatus::SUCCESS);
    assert_eq!(rig.status(store(max as u32 + 1), &mut data), NvmeStatus::INVALID_VALUE_SIZE);
    assert_eq!(rig.status(store(u32::MAX), &mut data), NvmeStatus::INVALID_VALUE_SIZE);
    assert_eq!(rig.status(store(9), &mut data[..8]), NvmeStatus::DATA_LENGTH_INVALID);
    let retrieve = NvmeAction::Retrieve { key: key(b"k"), buffer_bytes: 9, raw: false };
    assert_eq!(rig.status(retrieve, &mut data[..8]), NvmeStatus::DATA_LENGTH_INVALID);
    let list = |bytes| NvmeAction::List { from: None, buffer_bytes: bytes };
    assert_eq!(rig.status(list(9), &mut data[..8]), NvmeStatus::DATA_LENGTH_INVALID);
    assert_eq!(rig.status(list(3), &mut data), NvmeStatus::INVALID_FIELD);
    let refused = rig.run(3, NvmeAction::Flush, &mut []);
    assert_eq!((refused.status, refused.do_not_retry), (NvmeStatus::INVALID_NAMESPACE, true));
    // The limit of the key space; then no room at all.
    let full = rig.run(2, store(100), &mut data);
    assert_eq!((full.status, full.do_not_retry), (NvmeStatus::CAPACITY_EXCEEDED, false));
    let mut stored = 0u32;
    while rig.store(&stored.to_be_bytes(), &data[..max], false, false) == NvmeStatus::SUCCESS {
        stored += 1;
    }
    assert_eq!(rig.store(b"none", &data[..max], false, false), NvmeStatus::CAPACITY_EXCEEDED);
    // No command, and a key space that is gone.
    let mut entry = command(NvmeAction::Flush).encode();
    entry[0] = 0x7F;
    let refused = rig.namespaces.execute(&mut rig.host, &entry, &mut []);
    assert_eq!((refused.status, refused.command_id), (NvmeStatus::INVALID_OPCODE, 0x0201));
    let queue = rig.host.open_queue(1, 0);
    rig.host.call(queue, HostRequest::Other(KvCommand::DeleteSpaceNumber { space: rig.space })).unwrap();
    for action in [
        store(1),
        retrieve,
        list(8),
        NvmeAction::Delete { key: key(b"k") },
        NvmeAction::Exist { key: key(b"k") },
    ] {
        assert_eq!(rig.status(action, &mut [0; 9]), NvmeStatus::INVALID_NAMESPACE, "{action:?}");
    }
}

/// Also where most keys share a hash, and where a list goes on at a key that is gone.
#[test]
fn lists_go_on_from_a_key_and_miss_nothing() {
    for hash_mask in [u64::MAX, 3, 0] {
        let mut rig = Rig::new(hash_mask);
        let mut keys: Vec<Vec<u8>> = (0..200u32).map(|n| format!("key-{n}").into_bytes()).collect();
        keys.extend((1..=16).map(|len| vec![len as u8; len]));
        keys.push(b"ab\0".to_vec());
        keys.push(b"ab".to_vec());
        for of in &keys {
            assert_eq!(rig.store(of, b"v", false, false), NvmeStatus::SUCCESS);
        }
        // Of 17 bytes: no command of the standard can name it.
        let (space, queue) = (rig.space, rig.host.open_queue(1, 64));
        let request = HostRequest::Store { space, key: &[9; 17], value: b"v", mode: StoreMode::Post };
        rig.host.call(queue, request).unwrap();
        keys.sort();
        let whole = rig.list(1 << 16);
        for bytes in [48, 100, 1000] {
            assert_eq!(rig.list(bytes), whole, "the order stays");
        }
        let mut sorted = whole.clone();
        sorted.sort();
        assert_eq!(sorted, keys);
        // From each key, then from the same one when it is gone.
        for (at, from) in whole.iter().enumerate().step_by(7) {
            for (is_gone, rest) in [(false, &whole[at..]), (true, &whole[at + 1..])] {
                let mut data = vec![0; 1 << 16];
                let action = NvmeAction::List { from: Some(key(from)), buffer_bytes: 1 << 16 };
                if is_gone {
                    rig.status(NvmeAction::Delete { key: key(from) }, &mut []);
                }
                assert_eq!(rig.status(action, &mut data), NvmeStatus::SUCCESS);
                let listed = decode_key_list(&data).unwrap();
                assert_eq!(listed.iter().map(|key| key.bytes().to_vec()).collect::<Vec<_>>(), rest);
            }
            rig.store(from, b"v", false, false);
        }
        assert_eq!(rig.namespaces.unreadable(), 0);
    }
}

/// The device's own list, a few keys at a time, which may end among keys of one hash.
#[test]
fn a_list_goes_on_among_keys_of_one_hash() {
    for hash_mask in [u64::MAX, 3, 0] {
        let mut rig = Rig::new(hash_mask);
        let mut stored: Vec<Vec<u8>> = (0..40u32).map(|n| format!("key-{n}").into_bytes()).collect();
        stored.iter().for_each(|of| assert_eq!(rig.store(of, b"v", false, false), NvmeStatus::SUCCESS));
        stored.sort();
        let queue = rig.host.open_queue(1, 0);
        for most in [1, 3, 40, 41] {
            let (mut listed, mut next) = (Vec::new(), Some(crate::SpacePlace::START));
            while let Some(from) = next {
                let list = KvCommand::ListFrom { space: rig.space, from, keys: most };
                let answer = rig.host.call(queue, HostRequest::Other(list)).unwrap();
                let crate::KvAnswer::KeysFrom { keys, next: behind, .. } = answer else {
                    panic!("{answer:?}")
                };
                assert!(keys.len() <= most);
                listed.extend(keys.iter().map(|key| key.bytes().to_vec()));
                assert!(listed.len() <= stored.len(), "keys come again");
                next = behind;
            }
            listed.sort();
            assert_eq!(listed, stored);
        }
    }
}
