//! Entries of NVMe's key value command set, of arbitrary bytes: a command or a refusal, never a panic; what is encoded again reads the same; and what namespaces make of a row of them is what a map makes of it.
#![no_main]

use std::collections::BTreeMap;

use hedgerow_device::{FastTier, FastTierOptions};
use hedgerow_kvssd::{
    COMMAND_BYTES, COMPLETION_BYTES, Device, DeviceOptions, Geometry, Host, NVME_KEY_BYTES_MAX, NvmeAction,
    NvmeCommand, NvmeCompletion, NvmeKey, NvmeNamespaces, NvmeStatus, PairKey, StoreOptions, decode_key_list,
    encode_key_list,
};
use libfuzzer_sys::fuzz_target;

/// Bytes that a data pointer points to.
const DATA_BYTES: usize = 20 << 10;
const NAMESPACE: u32 = 1;
/// What is in the data that nobody wrote.
const UNTOUCHED: u8 = 0xEE;

fn key_of(action: NvmeAction) -> Option<NvmeKey> {
    match action {
        NvmeAction::Flush => None,
        NvmeAction::List { from, .. } => from,
        NvmeAction::Store { key, .. }
        | NvmeAction::Retrieve { key, .. }
        | NvmeAction::Delete { key }
        | NvmeAction::Exist { key } => Some(key),
    }
}

/// One entry, one completion, and a list of keys.
fn bytes_alone(bytes: &[u8]) {
    if let Some(entry) = bytes.first_chunk::<COMMAND_BYTES>()
        && let Ok(command) = NvmeCommand::decode(entry)
    {
        let again = command.encode();
        assert_eq!(NvmeCommand::decode(&again), Ok(command));
        assert_eq!((again[0], &again[2..8]), (entry[0], &entry[2..8]));
        if let Some(key) = key_of(command.action) {
            let field = [&entry[8..16], &entry[56..64]].concat();
            assert_eq!(key.bytes(), &field[..usize::from(entry[44])]);
        }
    }
    if let Some(entry) = bytes.first_chunk::<COMPLETION_BYTES>() {
        let completion = NvmeCompletion::decode(entry);
        let again = completion.encode();
        assert_eq!(NvmeCompletion::decode(&again), completion);
        // Only the reserved dword is lost.
        assert_eq!((&again[..4], &again[8..]), (&entry[..4], &entry[8..]));
        let _ = completion.status.code();
    }
    if let Ok(keys) = decode_key_list(bytes) {
        assert!(keys.len() <= bytes.len() / 3, "nothing is made of a count alone");
        let short: Result<Vec<NvmeKey>, _> = keys.iter().map(|key| NvmeKey::new(key.bytes())).collect();
        let most = bytes.len().next_multiple_of(4);
        if let Ok(short) = short {
            let (list, listed) = encode_key_list(&short, most).expect("it has room for a count");
            assert_eq!((listed, decode_key_list(&list).expect("as it was encoded")), (short.len(), keys));
        }
    }
}

/// Key spaces of a device, and what is to be in the one that entries name.
struct Model {
    host: Host,
    namespaces: NvmeNamespaces,
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
    is_missing_delete_refused: bool,
}

impl Model {
    fn new(choices: u8) -> Model {
        let tier = FastTier::dram(&FastTierOptions::default()).expect("memory");
        let geometry = Geometry { page_bytes: 4096, block_bytes: 64 << 10, blocks: 8 };
        // Keys of one hash, too.
        let hash_mask = if choices & 1 == 0 { u64::MAX } else { 1 };
        let options = DeviceOptions { hash_mask, ..DeviceOptions::default() };
        let mut host = Host::new(Device::format(tier, geometry, options).expect("a device"));
        let queue = host.open_queue(1, 0);
        let space = host.create_space(queue, b"one", 0).expect("a key space");
        let mut namespaces = NvmeNamespaces::new(&mut host);
        namespaces.attach(NAMESPACE, space).expect("a namespace");
        let is_missing_delete_refused = choices & 2 != 0;
        namespaces.set_missing_delete_refused(is_missing_delete_refused);
        Model { host, namespaces, pairs: BTreeMap::new(), is_missing_delete_refused }
    }

    fn run(&mut self, entry: &[u8; COMMAND_BYTES], number: u8) {
        let mut data = vec![UNTOUCHED; DATA_BYTES];
        let decoded = NvmeCommand::decode(entry);
        let value = match &decoded {
            Ok(NvmeCommand { action: NvmeAction::Store { value_bytes, .. }, .. }) => {
                vec![number; (*value_bytes as usize).min(DATA_BYTES)]
            }
            _ => Vec::new(),
        };
        data[..value.len()].copy_from_slice(&value);
        let before = data.clone();
        let completion = self.namespaces.execute(&mut self.host, entry, &mut data);
        assert_eq!(completion.command_id.to_le_bytes(), entry[2..4]);
        let Ok(NvmeCommand { namespace: NAMESPACE, action, .. }) = decoded else {
            assert_ne!(completion.status, NvmeStatus::SUCCESS);
            return assert!(data == before, "of what is refused nothing is written");
        };
        let written = self.expect(action, value, completion, &data);
        assert!(data[written..] == before[written..], "{action:?} wrote behind its {written} bytes");
    }

    /// Compares, and says how many bytes of the data may have been written.
    fn expect(
        &mut self,
        action: NvmeAction,
        value: Vec<u8>,
        completion: NvmeCompletion,
        data: &[u8],
    ) -> usize {
        let NvmeCompletion { status, result, .. } = completion;
        let is = |wanted: NvmeStatus| assert_eq!(status, wanted, "{action:?}");
        let found = |key: &NvmeKey| self.pairs.get(key.bytes());
        match action {
            NvmeAction::Flush => is(NvmeStatus::SUCCESS),
            NvmeAction::Store { key, value_bytes, options } => {
                let StoreOptions { only_if_present, only_if_absent, .. } = options;
                let is_there = found(&key).is_some();
                match status {
                    // The geometry says how long values are.
                    NvmeStatus::INVALID_VALUE_SIZE => assert!(value_bytes > 4 << 10),
                    NvmeStatus::DATA_LENGTH_INVALID => assert!(value_bytes as usize > DATA_BYTES),
                    NvmeStatus::CAPACITY_EXCEEDED => {}
                    _ if only_if_absent && is_there => is(NvmeStatus::KEY_EXISTS),
                    _ if only_if_present && !is_there => is(NvmeStatus::KEY_NOT_EXIST),
                    _ => {
                        is(NvmeStatus::SUCCESS);
                        assert!(!(only_if_present && only_if_absent));
                        self.pairs.insert(key.bytes().to_vec(), value);
                    }
                }
            }
            NvmeAction::Retrieve { buffer_bytes, .. } if buffer_bytes as usize > DATA_BYTES => {
                is(NvmeStatus::DATA_LENGTH_INVALID);
            }
            NvmeAction::Retrieve { key, buffer_bytes, .. } => match found(&key) {
                None => is(NvmeStatus::KEY_NOT_EXIST),
                Some(value) => {
                    is(NvmeStatus::SUCCESS);
                    let read = value.len().min(buffer_bytes as usize);
                    assert_eq!((result as usize, &data[..read]), (value.len(), &value[..read]));
                    return read;
                }
            },
            NvmeAction::List { from, buffer_bytes } => match buffer_bytes as usize {
                0..4 => is(NvmeStatus::INVALID_FIELD),
                bytes if bytes > DATA_BYTES => is(NvmeStatus::DATA_LENGTH_INVALID),
                bytes => {
                    is(NvmeStatus::SUCCESS);
                    let listed = decode_key_list(&data[..bytes]).expect("a list");
                    self.expect_list(&listed, from.as_ref(), bytes);
                    return bytes;
                }
            },
            NvmeAction::Delete { key } => {
                // Which a full device may refuse: the pair stays then.
                if status != NvmeStatus::CAPACITY_EXCEEDED {
                    let was_there = self.pairs.remove(key.bytes()).is_some();
                    let missing = if self.is_missing_delete_refused {
                        NvmeStatus::KEY_NOT_EXIST
                    } else {
                        NvmeStatus::SUCCESS
                    };
                    is(if was_there { NvmeStatus::SUCCESS } else { missing });
                }
            }
            NvmeAction::Exist { key } => match found(&key) {
                Some(_) => is(NvmeStatus::SUCCESS),
                None => is(NvmeStatus::KEY_NOT_EXIST),
            },
        }
        0
    }

    fn expect_list(&self, listed: &[PairKey], from: Option<&NvmeKey>, bytes: usize) {
        let mut sorted: Vec<&[u8]> = listed.iter().map(PairKey::bytes).collect();
        if let Some(from) = from.filter(|from| self.pairs.contains_key(from.bytes()) && bytes >= 24) {
            assert_eq!(
                sorted.first(),
                Some(&from.bytes()),
                "a list begins with the key that it goes on from"
            );
        }
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), listed.len(), "no key comes twice");
        assert!(sorted.iter().all(|&key| self.pairs.contains_key(key)));
        let has_room_for_all = 4 + self.pairs.len() * (2 + NVME_KEY_BYTES_MAX).next_multiple_of(4) <= bytes;
        if from.is_none() && has_room_for_all {
            assert_eq!(sorted.len(), self.pairs.len(), "all of them come");
        }
    }
}

/// An entry that more often than not is a command of the namespace that is there, under one of a few keys.
fn likely(mut entry: [u8; COMMAND_BYTES], shapes: u8) -> [u8; COMMAND_BYTES] {
    if shapes & 1 != 0 {
        entry[0] = [0x01, 0x02, 0x06, 0x10, 0x14, 0x01, 0x02, 0x00][usize::from(entry[0] & 7)];
        entry[1] &= !3;
    }
    if shapes & 2 != 0 {
        entry[4..8].copy_from_slice(&NAMESPACE.to_le_bytes());
    }
    if shapes & 4 != 0 {
        entry[44] = 1 + entry[44] % 16;
        entry[45] &= if entry[0] == 0x02 { 1 } else { 7 };
        entry[42..44].fill(0);
    }
    if shapes & 8 != 0 {
        let (first, last) = (entry[8] & 15, entry[56] & 1);
        entry[8..16].fill(first);
        entry[56..64].fill(last);
    }
    entry
}

fuzz_target!(|bytes: &[u8]| {
    let [choices, shapes, rest @ ..] = bytes else { return };
    bytes_alone(rest);
    let mut model = Model::new(*choices);
    for (number, entry) in (1..=u8::MAX).zip(rest.chunks(COMMAND_BYTES)) {
        let mut whole = [0; COMMAND_BYTES];
        whole[..entry.len()].copy_from_slice(entry);
        model.run(&likely(whole, *shapes), number);
    }
});
