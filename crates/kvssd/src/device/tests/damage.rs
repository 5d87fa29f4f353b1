//! What is not as it was written is an error that says where; never a panic, and never another value.

use hedgerow_device::Survivors;

use super::*;
use crate::flash::footer::TRAILER_BYTES;
use crate::flash::record::{RecordHeader, RecordKind};
use crate::flash::secret::HashSecret;
use crate::flash::seed::{BlockSeed, SeedSecret};

fn filled(sim: &CrashSim, device: &mut Device) -> Content {
    let space = create_space(device, b"one", 0);
    for n in 0..600u64 {
        store(device, space, &key_of(n), &n.to_le_bytes().repeat(20)).unwrap();
    }
    assert!(sim.ops() > 600);
    content_of(device)
}

/// The medium of such a device that was closed, and what is on it.
fn filled_and_closed(options: &DeviceOptions) -> (CrashSim, Content) {
    let (sim, mut device) = simulated(SMALL, options);
    let content = filled(&sim, &mut device);
    device.close().unwrap();
    (sim, content)
}

/// Flips of random bits all over the device after a close, killed before it was durable or not: it is opened, whatever bit it was. At most the one pair is not there whose record has the bit, which
/// is an error where its key is known, and a loss that is told where it is not; all others are what they were.
#[test]
fn a_flipped_bit_refuses_no_device_and_takes_one_pair_at_most() {
    let options = DeviceOptions::default();
    let (sim, content) = filled_and_closed(&options);
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let (mut lost, mut told, mut harmless, mut rebuilt) = (0, 0, 0, 0);
    let mut random = Random::from_seed(3);
    for n in 0..1500 {
        let mut image = walk.image(if n % 2 == 0 { Survivors::ProcessKill } else { Survivors::All }, 0);
        let part = if n % 3 == 0 { 20_000 } else { SMALL.bytes() };
        let offset = random.below(part);
        image.corrupt(offset, 1 << random.below(8));
        let mut device = Device::open(FastTier::from_image(&image), options.clone())
            .unwrap_or_else(|error| panic!("bit at {offset}: {error}"));
        let report = device.open_report().clone();
        let (mut errors, mut missing) = (0, 0);
        for ((number, key), value) in &content {
            match retrieve(&mut device, SpaceId(*number), key) {
                Ok(found) => assert_eq!(&found, value, "bit at {offset}"),
                Err(KvError::Damaged { .. }) => errors += 1,
                Err(KvError::KeyMissing) => missing += 1,
                Err(error) => panic!("bit at {offset}: {error}"),
            }
        }
        assert!(errors + missing <= 1, "bit at {offset}: {errors} errors, {missing} missing, {report:?}");
        assert!(missing == 0 || report.may_undo_changes(), "bit at {offset}: {report:?}");
        for range in &report.lost {
            assert!((range.offset..range.offset + range.bytes).contains(&offset), "{offset}: {report:?}");
        }
        lost += missing;
        told += errors;
        rebuilt += report.footers_rebuilt;
        harmless += u64::from(errors + missing == 0);
        // What was rebuilt is durable: nothing is left to be told but what cannot be read.
        drop(device);
    }
    assert!(
        lost > 3 && told > 100 && harmless > 100 && rebuilt > 20,
        "{lost} lost, {told} told, {harmless} harmless, {rebuilt} rebuilt"
    );
}

/// One spoiled copy of what there are two of is survived.
#[test]
fn one_of_two_copies_is_enough() {
    let options = DeviceOptions::default();
    let (sim, content) = filled_and_closed(&options);
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let [a, b] = SMALL.word_offsets(3);
    for spoiled in [vec![a], vec![b], vec![a, b], vec![0], vec![4096], vec![0, 4096]] {
        let mut image = walk.image(Survivors::ProcessKill, 0);
        for &offset in &spoiled {
            image.corrupt(offset, 0x10);
        }
        match (Device::open(FastTier::from_image(&image), options.clone()), spoiled.len()) {
            (Ok(mut device), 1) => {
                // A superblock that is older by one says less of how far it was, but nothing is lost.
                assert_eq!(content_of(&mut device), content, "{spoiled:?}");
            }
            (Err(KvError::Damaged { .. }), 2) => {}
            (other, _) => panic!("{spoiled:?}: {:?}", other.map(|_| "opened")),
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a file cut short by others, and a folder of its own")]
fn a_medium_that_was_cut_short_is_refused_with_both_lengths() {
    let tier = |bytes: u64| {
        let tier = FastTier::dram(&FastTierOptions::default()).unwrap();
        tier.grow(bytes).unwrap();
        tier
    };
    assert!(matches!(Device::open(tier(0), DeviceOptions::default()), Err(KvError::NoDevice)));
    assert!(matches!(
        Device::open(tier(4096), DeviceOptions::default()),
        Err(KvError::Truncated { bytes: 4096, .. })
    ));
    assert!(matches!(Device::open(tier(1 << 20), DeviceOptions::default()), Err(KvError::NoDevice)));
    let directory = std::env::temp_dir().join(format!("hedgerow-kvssd-{}", std::process::id()));
    hedgerow_device::create_directories(&directory).unwrap();
    let path = directory.join("device");
    let open = |create| FastTier::open_file(&path, &FastTierOptions::default(), create).unwrap();
    let mut device = Device::format(open(true), SMALL, DeviceOptions::default()).unwrap();
    let space = create_space(&mut device, b"one", 0);
    store(&mut device, space, b"k", b"v").unwrap();
    device.close().unwrap();
    let mut device = Device::open(open(false), DeviceOptions::default()).unwrap();
    assert_eq!(retrieve(&mut device, space, b"k").unwrap(), b"v");
    drop(device);
    let read_only = Device::open(FastTier::open_file_read_only(&path).unwrap(), DeviceOptions::default());
    assert!(matches!(read_only, Err(KvError::Param { .. })), "{read_only:?}");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(SMALL.bytes() - 5000).unwrap();
    let refused = Device::open(open(false), DeviceOptions::default());
    let needed = SMALL.bytes();
    assert!(
        matches!(refused, Err(KvError::Truncated { bytes, needed: of }) if of == needed && bytes < needed),
        "{refused:?}"
    );
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_medium_that_is_not_empty_is_not_made_a_device() {
    let (sim, device) = simulated(SMALL, &DeviceOptions::default());
    drop(device);
    let again = Device::format(FastTier::simulated(&sim), SMALL, DeviceOptions::default());
    assert!(matches!(again, Err(KvError::Param { .. })), "{again:?}");
    // Nor is a file that is something else, however short.
    for bytes in [4096, 1 << 20] {
        let sim = CrashSim::new(CrashModel::Pages, 1 << 21);
        let mut tier = hedgerow_device::ExclusiveTier::new(FastTier::simulated(&sim)).unwrap();
        tier.grow(bytes).unwrap();
        tier.write(bytes.min(8192) - 9, 1, |byte| byte[0] = 7);
        drop(tier);
        let again = Device::format(FastTier::simulated(&sim), SMALL, DeviceOptions::default());
        assert!(matches!(again, Err(KvError::Param { .. })), "{bytes}: {again:?}");
    }
}

/// A place that cannot be read is an error of the command that reads it, of no other; gc keeps the block, and the device goes on.
#[test]
fn read_faults_are_told_and_gc_keeps_what_it_cannot_read() {
    let mut device = in_memory(SMALL, DeviceOptions::default());
    let space = create_space(&mut device, b"one", 0);
    for n in 0..100u64 {
        store(&mut device, space, &n.to_le_bytes(), &[n as u8; 300]).unwrap();
    }
    let before = content_of(&mut device);
    // Its header: not even the key can be told.
    let place = device.index.find_all(device.hash(space, &40u64.to_le_bytes()))[0].place;
    device.fail_reads(place * 32..place * 32 + 32);
    let mut faults = Vec::new();
    for ((_, key), value) in &before {
        match retrieve(&mut device, space, key) {
            Ok(found) => assert_eq!(&found, value),
            Err(KvError::ReadFault { offset, .. }) => faults.push((offset, key.clone())),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(faults.len(), 1, "{faults:?}");
    let mut random = Random::from_seed(2);
    for _ in 0..4000 {
        let n = random.below(100).to_le_bytes();
        match store(&mut device, space, &n, &[9; 300]) {
            Ok(_) => {}
            Err(KvError::ReadFault { .. }) => assert!(faults.iter().any(|(_, key)| key[..] == n)),
            Err(error) => panic!("{error}"),
        }
    }
    let counters = device.gc_counters();
    assert_eq!(counters.damaged_blocks, 1, "{counters:?}");
    assert!(counters.cycles > 20, "{counters:?}");
    device.clear_read_faults();
    for (_, key) in &faults {
        assert_eq!(&retrieve(&mut device, space, key).unwrap(), &before[&(space.number(), key.clone())]);
    }
}

/// An iterator tells of a pair that it cannot read once, and goes on behind it.
#[test]
fn an_iterator_goes_on_behind_damage() {
    let mut device = in_memory(SMALL, DeviceOptions::default());
    let space = create_space(&mut device, b"one", 0);
    for n in 0..50u64 {
        store(&mut device, space, &n.to_le_bytes(), &[n as u8; 300]).unwrap();
    }
    let (range, _) = device.blocks_in_use()[0].clone();
    device.fail_reads(range.start + 20 * 384..range.start + 20 * 384 + 1);
    let (selected, content) = (KeyPattern::ALL, IteratorContent::Pairs);
    let opened = answer(&mut device, KvCommand::OpenIterator { space, selected, content, owner: 1 });
    let Ok(KvAnswer::Iterator(iterator)) = opened else { panic!("{opened:?}") };
    let (mut seen, mut faults) = (0, 0);
    loop {
        let done = run(&mut device, KvCommand::IterateNext { iterator, buffer: vec![0; 2000] });
        match done.result {
            Ok(KvAnswer::Batch { entries, end }) => {
                seen += entries;
                if end {
                    break;
                }
            }
            Err(KvError::ReadFault { .. }) => faults += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..=2).contains(&faults) && seen + faults == 50, "{seen} seen, {faults} faults");
}

/// A footer says what records say themselves: it is made anew from them, once.
#[test]
fn a_footer_is_made_anew_from_its_records() {
    let options = DeviceOptions::default();
    let (sim, mut device) = simulated(SMALL, &options);
    let content = filled(&sim, &mut device);
    device.close().unwrap();
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    for at in [0, 9, TRAILER_BYTES as u64 + 5] {
        let mut image = walk.image(Survivors::All, 0);
        image.corrupt(SMALL.block_offset(1) - TRAILER_BYTES as u64 + 9 - at, 1);
        let sim = CrashSim::from_image(&image);
        for footers_rebuilt in [1, 0] {
            let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
            assert_eq!(device.open_report(), &OpenReport { footers_rebuilt, ..OpenReport::default() });
            assert_eq!(content_of(&mut device), content);
        }
    }
}

/// Of a footer and a record of its block that are damaged at once, all other records are there, and what is missing has a place and a number.
#[test]
fn damage_of_a_record_without_a_footer_is_told_with_its_place() {
    let options = DeviceOptions::default();
    let (sim, mut device) = simulated(SMALL, &options);
    let content = filled(&sim, &mut device);
    let unit = device.index.find_all(device.hash(SpaceId(1), &key_of(20)))[0].place;
    device.close().unwrap();
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let mut image = walk.image(Survivors::All, 0);
    image.corrupt(SMALL.block_offset(1) - TRAILER_BYTES as u64 + 9, 1);
    image.corrupt(unit * 32 + 9, 1);
    let sim = CrashSim::from_image(&image);
    let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
    let report = device.open_report();
    let [range] = &report.lost[..] else { panic!("{report:?}") };
    // The first record is that of the key space.
    assert_eq!((range.offset, range.sequences.clone()), (unit * 32, Some(22..23)));
    let mut left = content.clone();
    left.remove(&(1, key_of(20)));
    assert_eq!(content_of(&mut device), left);
    store(&mut device, SpaceId(1), b"new", b"v").unwrap();
    left.insert((1, b"new".to_vec()), b"v".to_vec());
    drop(device);
    let mut device = Device::open(FastTier::simulated(&sim), options).unwrap();
    assert!(device.open_report().is_whole(), "{:?}", device.open_report());
    assert_eq!(content_of(&mut device), left);
}

/// A deletion whose record is lost cannot be told from one that never was: the pair is back, and the report says that such a thing may be, where and in which change.
#[test]
fn a_deletion_that_is_lost_is_told() {
    for (at, followed) in [(9, true), (9, false), (26, true), (26, false)] {
        let options = DeviceOptions::default();
        let (sim, mut device) = simulated(SMALL, &options);
        let space = create_space(&mut device, b"one", 0);
        store(&mut device, space, b"key", b"value").unwrap();
        let offset =
            device.geometry().block_offset(0) + u64::from(device.blocks.open(WriteStream::Hot).unwrap().end);
        delete(&mut device, space, b"key").unwrap();
        if followed {
            store(&mut device, space, b"next", b"value").unwrap();
        }
        drop(device);
        let mut image = sim.process_kill();
        image.corrupt(offset + at, 1);
        let mut device = Device::open(FastTier::from_image(&image), options).unwrap();
        let report = device.open_report().clone();
        let [range] = &report.lost[..] else { panic!("{report:?}") };
        assert!(report.may_undo_changes() && range.offset == offset, "{report:?}");
        assert_eq!(range.sequences, followed.then_some(3..4));
        assert_eq!(retrieve(&mut device, space, b"key").unwrap(), b"value");
        assert_eq!(retrieve(&mut device, space, b"next").is_ok(), followed);
        let sequence = device.sequence;
        assert!(sequence > 100, "numbers of what may be lost are not given again: {sequence}");
        store(&mut device, space, b"key", b"goes on").unwrap();
        assert_eq!(retrieve(&mut device, space, b"key").unwrap(), b"goes on");
    }
}

/// The pairs of a key space whose own record is damaged are there under its number, which is not given again.
#[test]
fn a_key_space_without_a_name_keeps_its_pairs() {
    let options = DeviceOptions::default();
    let (sim, mut device) = simulated(SMALL, &options);
    let space = create_space(&mut device, b"one", 0);
    store(&mut device, space, b"key", b"value").unwrap();
    drop(device);
    for at in [9, 24, 30] {
        let mut image = sim.process_kill();
        image.corrupt(SMALL.block_offset(0) + at, 1);
        let mut device = Device::open(FastTier::from_image(&image), options.clone()).unwrap();
        assert_eq!(device.open_report().spaces_unnamed, [space], "{:?}", device.open_report());
        assert_eq!(retrieve(&mut device, space, b"key").unwrap(), b"value");
        let content = content_of(&mut device);
        assert_eq!(content, Content::from([((1, b"key".to_vec()), b"value".to_vec())]));
        assert_ne!(create_space(&mut device, b"other", 0), space);
    }
}

/// Nothing but zeros where the superblocks were is no empty medium, as long as blocks are in use: `format` would take all pairs away.
#[test]
fn a_device_without_superblocks_is_not_made_anew() {
    let (sim, _) = filled_and_closed(&DeviceOptions::default());
    let mut image = sim.process_kill();
    for offset in 0..8192 {
        image.corrupt(offset, image.read(offset, 1)[0]);
    }
    let opened = Device::open(FastTier::from_image(&image), DeviceOptions::default());
    assert!(matches!(opened, Err(KvError::Damaged { what: "both superblocks", .. })), "{:?}", opened.err());
    let again = Device::format(FastTier::from_image(&image), SMALL, DeviceOptions::default());
    assert!(matches!(again, Err(KvError::Param { .. })), "{:?}", again.err());
}

/// A record that cannot be read keeps no other pair from being deleted, and a key space that has one keeps its name.
#[test]
fn a_group_is_deleted_around_what_cannot_be_read() {
    let mut device = in_memory(SMALL, DeviceOptions::default());
    let space = create_space(&mut device, b"one", 0);
    for n in 0..300u64 {
        store(&mut device, space, &n.to_le_bytes(), &[n as u8; 30]).unwrap();
    }
    let place = device.index.find_all(device.hash(space, &20u64.to_le_bytes()))[0].place;
    device.fail_reads(place * 32..place * 32 + 1);
    for command in [
        KvCommand::DeleteGroup { space, selected: KeyPattern::ALL },
        KvCommand::DeleteSpace { name: key(b"one") },
    ] {
        let deleted = answer(&mut device, command);
        assert!(matches!(deleted, Err(KvError::ReadFault { .. })), "{deleted:?}");
        assert_eq!(device.info().pairs, 1);
    }
    device.clear_read_faults();
    let deleted = answer(&mut device, KvCommand::DeleteSpace { name: key(b"one") });
    assert_eq!(deleted.unwrap(), KvAnswer::GroupDeleted(1));
}

/// A value is chosen by a client, who may have a device of the same kind, and may know where and in which life of a block its record lies: it holds records, one at each unit, as that other device would write them
/// there. The header of the record that holds them is damaged in a block without a footer, so the walk comes to each; none is taken for one.
#[test]
fn a_value_is_not_taken_for_records() {
    let options = DeviceOptions::default();
    for foreign in [SeedSecret([0; 2]), HashSecret(7).seed_secret()] {
        let (sim, mut device) = simulated(SMALL, &options);
        let space = create_space(&mut device, b"one", 0);
        store(&mut device, space, b"victim", b"value").unwrap();
        let open = device.blocks.open(WriteStream::Hot).unwrap();
        let offset = device.geometry().block_offset(open.block) + u64::from(open.end);
        let header = RecordHeader {
            sequence: device.sequence + 2,
            value_bytes: 2,
            key_bytes: 6,
            kind: RecordKind::Pair,
            space,
            relocated: false,
        };
        // With a key of 8 bytes a value begins at a unit.
        let mut value = vec![0; 20 * 32];
        for (n, unit) in value.chunks_exact_mut(32).enumerate() {
            let seed = BlockSeed::new(foreign, open.generation, offset + 32 + n as u64 * 32);
            let mut bytes = [0; 40];
            let word = header.encode(&mut bytes, seed, b"victim", b"!!");
            bytes[..8].copy_from_slice(&word.to_le_bytes());
            unit.copy_from_slice(&bytes[..32]);
        }
        store(&mut device, space, b"carriers", &value).unwrap();
        drop(device);
        let mut image = sim.process_kill();
        image.corrupt(offset + 9, 1);
        let mut device = Device::open(FastTier::from_image(&image), options.clone()).unwrap();
        assert_eq!(device.open_report().lost.len(), 1, "{:?}", device.open_report());
        assert_eq!(retrieve(&mut device, space, b"victim").unwrap(), b"value");
    }
}

/// The medium of a device whose second key space was made after the first had been deleted, with a pair in each under one key, all in its open block; and where the records are that the directory has of this: both names, and that the first
/// is gone.
fn renamed(options: &DeviceOptions) -> (CrashSim, [SpaceId; 2], [u64; 3]) {
    let (sim, mut device) = simulated(SMALL, options);
    let end = |device: &Device| {
        SMALL.block_offset(0) + u64::from(device.blocks.open(WriteStream::Hot).map_or(0, |open| open.end))
    };
    let first_at = end(&device);
    let first = create_space(&mut device, b"first", 0);
    store(&mut device, first, b"key", b"1").unwrap();
    answer(&mut device, KvCommand::DeleteSpace { name: key(b"first") }).unwrap();
    let gone_at = end(&device) - 32;
    let second_at = end(&device);
    let second = create_space(&mut device, b"second", 0);
    store(&mut device, second, b"key", b"2").unwrap();
    store(&mut device, second, b"more", b"3").unwrap();
    (sim, [first, second], [first_at, gone_at, second_at])
}

/// The record that says that a key space is gone is lost: its name is back, and has nothing to do with the key space that was made after it.
#[test]
fn a_name_that_comes_back_shares_nothing_with_a_newer_key_space() {
    let options = DeviceOptions::default();
    let (sim, [first, second], [_, gone_at, _]) = renamed(&options);
    let mut image = sim.process_kill();
    image.corrupt(gone_at + 9, 1);
    let mut device = Device::open(FastTier::from_image(&image), options).unwrap();
    assert!(device.open_report().may_undo_changes());
    let Ok(KvAnswer::Spaces(spaces)) = answer(&mut device, KvCommand::ListSpaces) else { panic!("no list") };
    let listed: Vec<_> = spaces.iter().map(|info| (info.id, &info.name[..], info.pairs)).collect();
    assert_eq!(listed, [(first, &b"first"[..], 0), (second, b"second", 2)]);
    assert_eq!(
        answer(&mut device, KvCommand::DeleteSpace { name: key(b"first") }).unwrap(),
        KvAnswer::GroupDeleted(0)
    );
    assert_eq!(retrieve(&mut device, second, b"key").unwrap(), b"2");
    assert_eq!(retrieve(&mut device, second, b"more").unwrap(), b"3");
}

/// Whatever of the record of a key space is damaged, and whether its block has a footer or not: its pairs are there under its number, its name is given again, to another one, and it goes by its number.
#[test]
fn a_key_space_whose_record_is_damaged_can_be_removed_and_its_name_given_again() {
    let options = DeviceOptions::default();
    for (at, is_sealed) in [(9, false), (30, false), (32, false), (9, true), (26, true), (40, true)] {
        let (sim, [_, second], [_, _, second_at]) = renamed(&options);
        if is_sealed {
            let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
            device.seal(WriteStream::Hot).unwrap();
        }
        let mut image = sim.process_kill();
        image.corrupt(second_at + at, 1);
        let sim = CrashSim::from_image(&image);
        let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
        assert_eq!(device.open_report().spaces_unnamed, [second], "{at}: {:?}", device.open_report());
        assert_eq!(retrieve(&mut device, second, b"key").unwrap(), b"2");
        let third = create_space(&mut device, b"second", 0);
        assert!(third > second, "{at}");
        assert!(matches!(retrieve(&mut device, third, b"key"), Err(KvError::KeyMissing)));
        store(&mut device, third, b"key", b"4").unwrap();
        for is_again in [false, true] {
            let gone = answer(&mut device, KvCommand::DeleteSpaceNumber { space: second });
            match is_again {
                false => assert_eq!(gone.unwrap(), KvAnswer::GroupDeleted(2)),
                true => assert!(matches!(gone, Err(KvError::SpaceMissing)), "{gone:?}"),
            }
        }
        drop(device);
        let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
        assert_eq!(device.open_report().spaces_unnamed, [], "{at}");
        let left = Content::from([((third.number(), b"key".to_vec()), b"4".to_vec())]);
        assert_eq!(content_of(&mut device), left, "{at}");
        assert_eq!(
            answer(&mut device, KvCommand::DeleteSpace { name: key(b"second") }).unwrap(),
            KvAnswer::GroupDeleted(1)
        );
        drop(device);
        let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
        assert!(all_of(&mut device).is_empty(), "{at}");
        assert!(create_space(&mut device, b"second", 0) > third, "{at}");
    }
}
