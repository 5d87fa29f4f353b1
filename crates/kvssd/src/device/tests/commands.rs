//! Each command and each of its refusals.

use super::*;
use crate::code::ResultCode;

fn device() -> (Device, SpaceId) {
    let mut device = in_memory(SMALL, DeviceOptions::default());
    let space = create_space(&mut device, b"one", 0);
    (device, space)
}

fn code(result: &Result<KvAnswer>) -> ResultCode {
    result.as_ref().err().map_or(ResultCode::Success, KvError::code)
}

#[test]
fn stores_have_four_modes() {
    let (mut device, space) = device();
    let mut store = |mode, value: &[u8]| {
        answer(&mut device, KvCommand::Store { space, key: key(b"k"), value: value.to_vec(), mode })
    };
    assert_eq!(code(&store(StoreMode::UpdateOnly, b"1")), ResultCode::KeyNotExist);
    store(StoreMode::Append, b"a").unwrap();
    store(StoreMode::Append, b"bc").unwrap();
    assert_eq!(code(&store(StoreMode::NoOverwrite, b"2")), ResultCode::ValueUpdateNotAllowed);
    assert!(matches!(
        store(StoreMode::Append, &[0; 4094]),
        Err(KvError::ValueLength { bytes: 4097, max: 4096 })
    ));
    assert_eq!(retrieve(&mut device, space, b"k").unwrap(), b"abc");
    let mode = StoreMode::UpdateOnly;
    answer(&mut device, KvCommand::Store { space, key: key(b"k"), value: vec![], mode }).unwrap();
    assert_eq!(retrieve(&mut device, space, b"k").unwrap(), b"");
}

#[test]
fn a_short_buffer_gets_the_beginning_and_the_full_size_and_deletes_nothing() {
    let (mut device, space) = device();
    super::store(&mut device, space, b"key", b"0123456789").unwrap();
    let mut read = |offset, len: usize, delete| {
        let buffer = vec![0xEE; len];
        let done = run(&mut device, KvCommand::Retrieve { space, key: key(b"key"), offset, buffer, delete });
        (done.result, done.buffer)
    };
    let (result, buffer) = read(2, 4, true);
    assert!(matches!(result, Err(KvError::BufferSmall { needed: 10, given: 4 })), "{result:?}");
    assert_eq!(buffer, b"2345");
    let (result, buffer) = read(3, 100, false);
    assert_eq!((result.unwrap(), &buffer[..]), (KvAnswer::Retrieved { value_bytes: 10 }, &b"3456789"[..]));
    for offset in [10, 11, u64::MAX] {
        let (result, buffer) = read(offset, 4, false);
        assert_eq!((code(&result), buffer.len()), (ResultCode::ValueOffsetInvalid, 0));
    }
    assert_eq!(read(0, 10, true).1, b"0123456789");
    assert_eq!(code(&read(0, 10, true).0), ResultCode::KeyNotExist);
}

#[test]
fn an_empty_value_is_a_value() {
    let (mut device, space) = device();
    super::store(&mut device, space, b"e", b"").unwrap();
    assert_eq!(retrieve(&mut device, space, b"e").unwrap(), b"");
    let info = answer(&mut device, KvCommand::PairInfo { space, key: key(b"e") });
    assert_eq!(info.unwrap(), KvAnswer::PairInfo { value_bytes: 0 });
    let missing = answer(&mut device, KvCommand::PairInfo { space, key: key(b"f") });
    assert_eq!(code(&missing), ResultCode::KeyNotExist);
}

#[test]
fn deleting_nothing_is_an_error_only_if_asked_for() {
    let (mut device, space) = device();
    assert_eq!(delete(&mut device, space, b"k").unwrap(), KvAnswer::Deleted(false));
    let asked = answer(&mut device, KvCommand::Delete { space, key: key(b"k"), must_exist: true });
    assert_eq!(code(&asked), ResultCode::KeyNotExist);
    super::store(&mut device, space, b"k", b"v").unwrap();
    assert_eq!(delete(&mut device, space, b"k").unwrap(), KvAnswer::Deleted(true));
    assert_eq!(delete(&mut device, space, b"k").unwrap(), KvAnswer::Deleted(false));
}

#[test]
fn exist_answers_a_bit_a_key_from_the_least_on() {
    let (mut device, space) = device();
    for n in [0u8, 3, 8] {
        super::store(&mut device, space, &[n + 1], b"v").unwrap();
    }
    let keys = (0..10u8).map(|n| key(&[n + 1])).collect();
    let exist = answer(&mut device, KvCommand::Exist { space, keys });
    assert_eq!(exist.unwrap(), KvAnswer::Exist(vec![0b0000_1001, 0b01]));
    let refused = device.submit(1, KvCommand::Exist { space, keys: vec![] }).unwrap_err();
    assert_eq!(refused.error.code(), ResultCode::ParamInvalid);
}

#[test]
fn what_is_wrong_with_a_command_is_said_at_once_and_its_buffer_comes_back() {
    let (mut device, space) = device();
    let command = KvCommand::Store { space, key: key(b"k"), value: vec![1; 4097], mode: StoreMode::Post };
    let refused = device.submit(1, command).unwrap_err();
    assert!(matches!(refused.error, KvError::ValueLength { bytes: 4097, max: 4096 }));
    assert_eq!(refused.command.into_buffer().len(), 4097);
    for _ in 0..64 {
        device.submit(1, KvCommand::ListSpaces).unwrap();
    }
    let refused = device.submit(1, KvCommand::ListSpaces).unwrap_err();
    assert!(matches!(refused.error, KvError::QueueFull { depth: 64 }));
}

#[test]
fn a_key_space_is_found_by_its_whole_name_and_is_gone_with_its_pairs() {
    let (mut device, one) = device();
    let two = create_space(&mut device, b"one2", 0);
    assert_ne!(one, two);
    let again = answer(&mut device, KvCommand::CreateSpace { name: key(b"one"), bytes_max: 0 });
    assert_eq!(code(&again), ResultCode::KeySpaceExist);
    for n in 0..200u64 {
        super::store(&mut device, one, &key_of(n), &n.to_le_bytes()).unwrap();
        super::store(&mut device, two, &key_of(n), b"two").unwrap();
    }
    let before = content_of(&mut device).len();
    let deleted = answer(&mut device, KvCommand::DeleteSpace { name: key(b"one") });
    assert_eq!(deleted.unwrap(), KvAnswer::GroupDeleted(before as u64 / 2));
    assert_eq!(content_of(&mut device).len(), before / 2);
    assert_eq!(code(&super::store(&mut device, one, b"k", b"v")), ResultCode::KeySpaceNotExist);
    let found = answer(&mut device, KvCommand::FindSpace { name: key(b"one") });
    assert_eq!(code(&found), ResultCode::KeySpaceNotExist);
    // The number is not given again.
    assert_eq!(create_space(&mut device, b"three", 0).number(), two.number() + 1);
    let name = |n: u8| key(&[b's', n]);
    for n in 0..13 {
        create_space(&mut device, name(n).bytes(), 0);
    }
    let over = answer(&mut device, KvCommand::CreateSpace { name: name(13), bytes_max: 0 });
    assert!(matches!(over, Err(KvError::SpacesMax { max: 15 })), "{over:?}");
}

#[test]
fn the_limit_of_a_key_space_counts_keys_and_values() {
    let mut device = in_memory(SMALL, DeviceOptions::default());
    let space = create_space(&mut device, b"limited", 100);
    super::store(&mut device, space, b"k1", &[1; 60]).unwrap();
    let over = super::store(&mut device, space, b"k2", &[1; 37]);
    assert!(matches!(over, Err(KvError::SpaceFull { needed: 39, free: 38 })), "{over:?}");
    super::store(&mut device, space, b"k2", &[1; 36]).unwrap();
    assert_eq!(code(&super::store(&mut device, space, b"k1", &[1; 61])), ResultCode::KeySpaceCapacity);
    super::store(&mut device, space, b"k1", &[1; 10]).unwrap();
    super::store(&mut device, space, b"k3", &[1; 40]).unwrap();
}

#[test]
fn a_group_is_selected_by_any_mask() {
    let (mut device, space) = device();
    for n in 0..300u64 {
        super::store(&mut device, space, &key_of(n), &n.to_le_bytes()).unwrap();
    }
    let all = content_of(&mut device);
    let masks =
        [[0, 0, 0, 0], [0xFF, 0, 0, 0], [0, 0xFF, 0, 0], [0xFF, 0xFF, 0xFF, 0xFF], [0x01, 0, 0, 0x0F]];
    for mask in masks {
        let selected = KeyPattern { mask, pattern: *b"b17\0" };
        let expected: BTreeMap<_, _> = all
            .iter()
            .filter(|((_, key), _)| selected.selects(crate::command::group_of(key)))
            .map(|((_, key), value)| (key.clone(), value.clone()))
            .collect();
        assert!(mask == [0xFF; 4] || !expected.is_empty(), "{mask:?}");
        for buffer in [300, 4096] {
            assert_eq!(walk(&mut device, space, selected, buffer), expected, "{mask:?}");
        }
        let deleted = answer(&mut device, KvCommand::DeleteGroup { space, selected });
        assert_eq!(deleted.unwrap(), KvAnswer::GroupDeleted(expected.len() as u64));
        assert!(walk(&mut device, space, selected, 4096).is_empty());
        for (key, value) in &expected {
            super::store(&mut device, space, key, value).unwrap();
        }
        assert_eq!(content_of(&mut device), all);
    }
}

#[test]
fn iterators_have_owners_handles_and_limits() {
    let (mut device, space) = device();
    let mut open = |pattern: u8, owner| {
        let selected = KeyPattern::prefix(&[pattern]);
        let content = IteratorContent::Keys;
        answer(&mut device, KvCommand::OpenIterator { space, selected, content, owner })
    };
    let first = open(0, 1).unwrap();
    assert!(
        matches!((open(0, 2), first), (Err(KvError::IteratorOpen { iterator }), KvAnswer::Iterator(of)) if iterator == of)
    );
    for n in 1..16 {
        open(n, 2).unwrap();
    }
    assert_eq!(code(&open(16, 2)), ResultCode::IteratorMax);
    assert_eq!(answer(&mut device, KvCommand::CloseIterators { owner: 2 }).unwrap(), KvAnswer::Closed(15));
    let next = answer(&mut device, KvCommand::IterateNext { iterator: 99, buffer: vec![] });
    assert_eq!(code(&next), ResultCode::IteratorNotExist);
    let closed = answer(&mut device, KvCommand::CloseIterator { iterator: 99 });
    assert_eq!(code(&closed), ResultCode::IteratorNotExist);
}

#[test]
fn an_entry_that_fits_no_buffer_says_what_it_needs() {
    let (mut device, space) = device();
    super::store(&mut device, space, b"key", &[7; 500]).unwrap();
    let (selected, content) = (KeyPattern::ALL, IteratorContent::Pairs);
    let opened = answer(&mut device, KvCommand::OpenIterator { space, selected, content, owner: 1 });
    let Ok(KvAnswer::Iterator(iterator)) = opened else { panic!("{opened:?}") };
    for _ in 0..2 {
        let small = answer(&mut device, KvCommand::IterateNext { iterator, buffer: vec![0; 510] });
        assert!(matches!(small, Err(KvError::BufferSmall { needed: 511, given: 510 })), "{small:?}");
    }
    let done = answer(&mut device, KvCommand::IterateNext { iterator, buffer: vec![0; 511] });
    assert_eq!(done.unwrap(), KvAnswer::Batch { entries: 1, end: true });
    let after = answer(&mut device, KvCommand::IterateNext { iterator, buffer: vec![0; 511] });
    assert_eq!(after.unwrap(), KvAnswer::Batch { entries: 0, end: true });
}

/// What is there throughout comes once, what was deleted before it came does not, whatever else happens meanwhile.
#[test]
fn iterators_go_on_under_change() {
    for hash_mask in [u64::MAX, 0x3F] {
        let mut device = in_memory(SMALL, DeviceOptions { hash_mask, ..DeviceOptions::default() });
        let space = create_space(&mut device, b"one", 0);
        let mut random = Random::from_seed(hash_mask);
        for n in 0..400u64 {
            super::store(&mut device, space, &key_of(n), b"old").unwrap();
        }
        let (selected, content) = (KeyPattern::ALL, IteratorContent::Keys);
        let before: Vec<Vec<u8>> = walk(&mut device, space, selected, 8192).into_keys().collect();
        let opened = answer(&mut device, KvCommand::OpenIterator { space, selected, content, owner: 1 });
        let Ok(KvAnswer::Iterator(iterator)) = opened else { panic!("{opened:?}") };
        let (mut seen, mut deleted) = (BTreeMap::new(), BTreeMap::new());
        let mut is_end = false;
        while !is_end {
            let done = run(&mut device, KvCommand::IterateNext { iterator, buffer: vec![0; 600] });
            let Ok(KvAnswer::Batch { end, .. }) = done.result else { panic!("{done:?}") };
            for (key, _) in batch_entries(&done.buffer, content).unwrap() {
                assert!(!deleted.contains_key(key), "{key:?} was deleted, and came back");
                assert!(seen.insert(key.to_vec(), ()).is_none(), "{key:?} came twice");
            }
            is_end = end;
            for _ in 0..5 {
                let key = &before[random.below(before.len() as u64) as usize];
                match random.below(3) {
                    0 => {
                        delete(&mut device, space, key).unwrap();
                        deleted.insert(key.clone(), ());
                    }
                    1 if !deleted.contains_key(key) => {
                        super::store(&mut device, space, key, b"new").unwrap();
                    }
                    _ => {
                        let new = format!("new{}", random.below(1000));
                        super::store(&mut device, space, new.as_bytes(), b"v").unwrap();
                    }
                }
            }
        }
        for key in before.iter().filter(|key| !deleted.contains_key(*key)) {
            assert!(seen.contains_key(key), "{key:?} was there throughout, and did not come");
        }
        assert!(deleted.len() > 20);
    }
}

#[test]
fn steps_say_what_they_did_in_its_order() {
    let options = DeviceOptions { ack: AckMode::Immediate, events: true, ..DeviceOptions::default() };
    let mut device = in_memory(SMALL, options);
    let space = create_space(&mut device, b"one", 0);
    let command = KvCommand::Store { space, key: key(b"key"), value: vec![7; 100], mode: StoreMode::Post };
    device.submit(42, command).unwrap();
    let mut out = Out::default();
    assert!(!device.step(1234, &mut out));
    let stages: Vec<Stage> = out.events.iter().map(|event| event.stage).collect();
    let expected = [Stage::Fetched, Stage::LookedUp, Stage::Buffered, Stage::Programmed, Stage::Answered];
    assert_eq!(stages, expected);
    assert!(out.events.iter().all(|event| (event.tag, event.at_ns) == (42, 1234)));
    assert_eq!(out.events[0].bytes, 103);
}

/// Keys that share a hash on one device, as somebody may have found out, have hashes of their own on another; and an opening keeps the secret.
#[test]
fn hashes_are_a_secret_of_the_device() {
    let made = |hash_secret, hash_mask| {
        let options = DeviceOptions { hash_secret, hash_mask, ..DeviceOptions::default() };
        (simulated(SMALL, &options), options)
    };
    let ((_, known), _) = made(Some(5), 0xFF);
    let space = SpaceId(1);
    let hash_of = |device: &Device, n: u64| device.hash(space, &n.to_le_bytes());
    let shared: Vec<u64> = (0..20_000).filter(|&n| hash_of(&known, n) == 7).take(50).collect();
    assert_eq!(shared.len(), 50);
    for secret in [Some(6), None] {
        let ((sim, other), options) = made(secret, 0xFF);
        let hashes: std::collections::BTreeSet<u64> = shared.iter().map(|&n| hash_of(&other, n)).collect();
        assert!(hashes.len() > 30, "{} hashes of 50 keys", hashes.len());
        let all: Vec<u64> = shared.iter().map(|&n| hash_of(&other, n)).collect();
        other.close().unwrap();
        let opened = Device::open(FastTier::simulated(&sim), options).unwrap();
        assert!(shared.iter().map(|&n| hash_of(&opened, n)).eq(all));
    }
    // In production no two devices have the same.
    let (a, b) = (in_memory(SMALL, DeviceOptions::default()), in_memory(SMALL, DeviceOptions::default()));
    assert_ne!(hash_of(&a, 1), hash_of(&b, 1));
}

/// A mask that no key matches, over many groups: each batch, and each step of a deletion, looks at so many and no more.
#[test]
fn masks_that_few_keys_match_take_bounded_steps() {
    let geometry = Geometry { page_bytes: 4096, block_bytes: 1 << 20, blocks: 16 };
    let mut device = in_memory(geometry, DeviceOptions::default());
    let space = create_space(&mut device, b"one", 0);
    // Last bytes of groups are even.
    let of = |n: u32| (n * 2).to_be_bytes();
    for n in 0..40_000 {
        super::store(&mut device, space, &of(n), b"v").unwrap();
    }
    let (selected, content) =
        (KeyPattern { mask: [0, 0, 0, 1], pattern: [0, 0, 0, 1] }, IteratorContent::Keys);
    let opened = answer(&mut device, KvCommand::OpenIterator { space, selected, content, owner: 1 });
    let Ok(KvAnswer::Iterator(iterator)) = opened else { panic!("{opened:?}") };
    let (mut batches, mut is_end) = (0, false);
    while !is_end {
        let done = run(&mut device, KvCommand::IterateNext { iterator, buffer: vec![0; 64] });
        let Ok(KvAnswer::Batch { entries: 0, end }) = done.result else { panic!("{done:?}") };
        (batches, is_end) = (batches + 1, end);
    }
    assert!((40_000 / 4096..=40_000 / 4096 + 1).contains(&batches), "{batches} batches");
    device.submit(1, KvCommand::DeleteGroup { space, selected }).unwrap();
    let (mut out, mut steps) = (Out::default(), 1);
    while device.step(0, &mut out) {
        steps += 1;
    }
    assert!(steps >= 600, "{steps} steps");
    assert_eq!(out.completions.remove(0).result.unwrap(), KvAnswer::GroupDeleted(0));
}

/// Commands that wait while their key space goes and another one is made find nothing, and change nothing.
#[test]
fn commands_for_a_key_space_that_is_gone_meet_no_newer_one() {
    let (mut device, one) = device();
    super::store(&mut device, one, b"key", b"1").unwrap();
    let store = |value: &[u8]| KvCommand::Store {
        space: one,
        key: key(b"key"),
        value: value.to_vec(),
        mode: StoreMode::Post,
    };
    let commands = [
        KvCommand::DeleteSpace { name: key(b"one") },
        KvCommand::CreateSpace { name: key(b"other"), bytes_max: 0 },
        store(b"2"),
        KvCommand::Delete { space: one, key: key(b"key"), must_exist: false },
        KvCommand::DeleteGroup { space: one, selected: KeyPattern::ALL },
    ];
    for (tag, command) in (0..).zip(commands) {
        device.submit(tag, command).unwrap();
    }
    let mut out = Out::default();
    while device.step(0, &mut out) {}
    let codes: Vec<_> = out.completions.iter().map(|done| code(&done.result)).collect();
    let gone = ResultCode::KeySpaceNotExist;
    assert_eq!(codes, [ResultCode::Success, ResultCode::Success, gone, gone, gone]);
    assert!(content_of(&mut device).is_empty());
}
