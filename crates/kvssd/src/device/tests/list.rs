//! Keys that are listed and counted from a place on.

use super::*;
use crate::command::KeyPlace;

/// Keys of a group from the start on, `most` at a time; between two steps `meanwhile` runs.
fn list(
    device: &mut Device,
    space: SpaceId,
    group: u32,
    most: usize,
    mut meanwhile: impl FnMut(&mut Device),
) -> Vec<Vec<u8>> {
    let (mut listed, mut from) = (Vec::new(), Some(KeyPlace::default()));
    while let Some(place) = from {
        let command = KvCommand::ListKeys { space, group, from: place, keys: most };
        let Ok(KvAnswer::Keys { keys, unreadable: 0, next }) = answer(device, command) else {
            panic!("a list")
        };
        assert!(keys.len() <= most);
        listed.extend(keys.iter().map(|key| key.bytes().to_vec()));
        from = next;
        meanwhile(device);
    }
    listed
}

fn count(device: &mut Device, space: SpaceId, group: u32) -> u64 {
    let (mut counted, mut from) = (0, Some(KeyPlace::default()));
    while let Some(place) = from {
        let command = KvCommand::CountKeys { space, group, from: place };
        let Ok(KvAnswer::Counted { keys, next }) = answer(device, command) else { panic!("a count") };
        (counted, from) = (counted + keys, next);
    }
    counted
}

/// Whatever hashes keys share, and however few come at a time: all keys of the group come once, and no others.
#[test]
fn a_group_is_listed_and_counted_whole() {
    for hash_mask in [u64::MAX, 0xF, 0] {
        let mut device = in_memory(SMALL, DeviceOptions { hash_mask, ..DeviceOptions::default() });
        let space = create_space(&mut device, b"one", 0);
        let other = create_space(&mut device, b"two", 0);
        let mut expected = Vec::new();
        for n in 0..90u8 {
            let key = [&7u32.to_be_bytes()[..], &[n]].concat();
            store(&mut device, space, &key, &[n]).unwrap();
            for (space, group) in [(other, 7u32), (space, 6), (space, 8)] {
                store(&mut device, space, &[&group.to_be_bytes()[..], &[n]].concat(), b"other").unwrap();
            }
            expected.push(key);
        }
        for n in (0..90).step_by(3).rev() {
            delete(&mut device, space, &expected.remove(n)).unwrap();
        }
        for most in [1, 2, 7, 4096] {
            let mut listed = list(&mut device, space, 7, most, |_| ());
            listed.sort();
            assert_eq!(listed, expected, "{hash_mask:x}, {most} at a time");
        }
        assert_eq!(count(&mut device, space, 7), expected.len() as u64);
        assert_eq!((count(&mut device, space, 8), count(&mut device, other, 7)), (90, 90));
        assert_eq!(count(&mut device, space, 9), 0);
        assert!(list(&mut device, space, 9, 5, |_| ()).is_empty());
    }
}

/// What stays comes, whatever comes and goes meanwhile, also what had its own place.
#[test]
fn what_stays_is_listed_whatever_others_do() {
    for hash_mask in [u64::MAX, 1] {
        let mut device = in_memory(SMALL, DeviceOptions { hash_mask, ..DeviceOptions::default() });
        let space = create_space(&mut device, b"one", 0);
        let key = |n: u32| [&7u32.to_be_bytes()[..], &n.to_be_bytes()].concat();
        (0..100).for_each(|n| drop(store(&mut device, space, &key(n), b"v").unwrap()));
        let mut round = 0;
        let listed = list(&mut device, space, 7, 3, |device| {
            delete(device, space, &key(2 * round + 1)).unwrap();
            store(device, space, &key(1_000 + round), b"new").unwrap();
            store(device, space, &key(2 * round % 100), b"again").unwrap();
            round += 1;
        });
        assert!((0..100).step_by(2).all(|n| listed.contains(&key(n))));
        let mut once = listed.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), listed.len());
    }
}

#[test]
fn a_list_takes_some_keys() {
    let mut device = in_memory(SMALL, DeviceOptions::default());
    let space = create_space(&mut device, b"one", 0);
    for keys in [0, 4097] {
        let command = KvCommand::ListKeys { space, group: 1, from: KeyPlace::default(), keys };
        assert!(matches!(device.submit(1, command).unwrap_err().error, KvError::Param { .. }));
    }
    let gone = SpaceId(9);
    let command = KvCommand::CountKeys { space: gone, group: 1, from: KeyPlace::default() };
    assert!(matches!(answer(&mut device, command), Err(KvError::SpaceMissing)));
}
