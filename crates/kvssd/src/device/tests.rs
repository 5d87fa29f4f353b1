//! A device against models: what it answers, what a crash leaves, what damage does, and what gc costs.

mod check;
mod collection;
mod commands;
mod crashes;
mod damage;
mod early;
mod hostile;
mod list;
mod model;
mod repairs;

use std::collections::BTreeMap;

use hedgerow_device::{CrashModel, CrashSim, FastTier, FastTierOptions, Random};

use super::*;
use crate::command::{
    IteratorContent, KeyPattern, KvAnswer, KvCommand, PairKey, SpaceId, StoreMode, batch_entries,
};

/// Small blocks: values of up to 4 KiB.
const SMALL: Geometry = Geometry { page_bytes: 4096, block_bytes: 32 << 10, blocks: 16 };

/// What a device has: by key space and key.
type Content = BTreeMap<(u32, Vec<u8>), Vec<u8>>;

fn key(bytes: &[u8]) -> PairKey {
    PairKey::new(bytes).unwrap()
}

fn in_memory(geometry: Geometry, options: DeviceOptions) -> Device {
    Device::format(FastTier::dram(&FastTierOptions::default()).unwrap(), geometry, options).unwrap()
}

fn simulated(geometry: Geometry, options: &DeviceOptions) -> (CrashSim, Device) {
    let sim = CrashSim::new(CrashModel::Pages, geometry.bytes() + (1 << 20));
    let device = Device::format(FastTier::simulated(&sim), geometry, options.clone()).unwrap();
    (sim, device)
}

/// Gives one command and steps until it is complete.
fn run(device: &mut Device, command: KvCommand) -> Completion {
    device.submit(7, command).unwrap();
    let mut out = Out::default();
    while device.step(0, &mut out) {}
    assert_eq!(out.completions.len(), 1, "one command, one completion");
    let completion = out.completions.remove(0);
    assert_eq!(completion.tag, 7);
    completion
}

fn answer(device: &mut Device, command: KvCommand) -> Result<KvAnswer> {
    run(device, command).result
}

fn create_space(device: &mut Device, name: &[u8], bytes_max: u64) -> SpaceId {
    match answer(device, KvCommand::CreateSpace { name: key(name), bytes_max }) {
        Ok(KvAnswer::Space(info)) => info.id,
        other => panic!("{other:?}"),
    }
}

fn store(device: &mut Device, space: SpaceId, of: &[u8], value: &[u8]) -> Result<KvAnswer> {
    let mode = StoreMode::Post;
    answer(device, KvCommand::Store { space, key: key(of), value: value.to_vec(), mode })
}

fn retrieve(device: &mut Device, space: SpaceId, of: &[u8]) -> Result<Vec<u8>> {
    let buffer = vec![0xEE; device.geometry().value_bytes_max() as usize];
    let command = KvCommand::Retrieve { space, key: key(of), offset: 0, buffer, delete: false };
    let completion = run(device, command);
    completion.result.map(|_| completion.buffer)
}

fn delete(device: &mut Device, space: SpaceId, of: &[u8]) -> Result<KvAnswer> {
    answer(device, KvCommand::Delete { space, key: key(of), must_exist: false })
}

/// All pairs that an iterator gives out, each once.
fn walk(
    device: &mut Device,
    space: SpaceId,
    selected: KeyPattern,
    buffer_bytes: usize,
) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let content = IteratorContent::Pairs;
    let opened = answer(device, KvCommand::OpenIterator { space, selected, content, owner: 1 });
    let Ok(KvAnswer::Iterator(iterator)) = opened else { panic!("{opened:?}") };
    let mut pairs = BTreeMap::new();
    loop {
        let completion = run(device, KvCommand::IterateNext { iterator, buffer: vec![0; buffer_bytes] });
        let Ok(KvAnswer::Batch { entries, end }) = completion.result else { panic!("{completion:?}") };
        let batch = batch_entries(&completion.buffer, content).unwrap();
        assert_eq!(batch.len(), entries as usize);
        for (key, value) in batch {
            assert!(pairs.insert(key.to_vec(), value.unwrap().to_vec()).is_none(), "{key:?} came twice");
        }
        if end {
            break;
        }
    }
    assert_eq!(answer(device, KvCommand::CloseIterator { iterator }).unwrap(), KvAnswer::Closed(1));
    pairs
}

/// All that a device has, as its iterators say.
fn content_of(device: &mut Device) -> Content {
    let Ok(KvAnswer::Spaces(spaces)) = answer(device, KvCommand::ListSpaces) else { panic!("no list") };
    let mut content = Content::new();
    for info in spaces {
        let pairs = walk(device, info.id, KeyPattern::ALL, 64 << 10);
        assert_eq!(info.pairs as usize, pairs.len(), "pairs are counted exactly");
        let bytes: usize = pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert_eq!(info.bytes as usize, bytes, "bytes are counted exactly");
        content.extend(pairs.into_iter().map(|(key, value)| ((info.id.number(), key), value)));
    }
    content
}

/// All pairs of a device, and its key spaces by their names.
fn all_of(device: &mut Device) -> Content {
    let mut content = content_of(device);
    let Ok(KvAnswer::Spaces(spaces)) = answer(device, KvCommand::ListSpaces) else { panic!("no list") };
    content.extend(spaces.into_iter().map(|info| ((0, info.name), info.id.number().to_le_bytes().to_vec())));
    content
}

/// What a random value is made of: whoever reads it sees whose it is.
fn value_of(random: &mut Random, bytes_max: u64) -> Vec<u8> {
    let len = match random.below(8) {
        0 => 0,
        1..=5 => random.below(200),
        _ => random.below(bytes_max + 1),
    };
    let stamp = random.next_u64().to_le_bytes();
    (0..len as usize).map(|n| stamp[n % 8] ^ (n / 8) as u8).collect()
}

/// One of `count` keys, of all lengths and in few groups.
fn key_of(n: u64) -> Vec<u8> {
    let mut key = vec![b"abc"[(n % 3) as usize]];
    key.extend_from_slice(n.to_string().as_bytes());
    match n % 7 {
        0 => key.truncate(2),
        1 => key.resize(255, b'.'),
        2 => key.resize(40, b'-'),
        _ => {}
    }
    key
}
