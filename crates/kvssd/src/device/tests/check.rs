//! What a check finds: nothing on a device that is sound, whatever ended it, and every bit that was flipped; and it changes nothing.

use hedgerow_device::{Image, Survivors};

use super::*;
use crate::flash::footer::TRAILER_BYTES;

fn checked(image: &Image) -> DeviceCheck {
    DeviceView::open(FastTier::from_image(image)).unwrap().check(|_, _| ()).unwrap()
}

/// What a device that has its index for long says of itself.
fn checked_live(device: &Device) -> DeviceCheck {
    let mut check = DeviceCheck::default();
    device.check(&mut check, |_, _| ()).unwrap();
    check
}

/// Stores and deletions of few keys, so that gc is at work.
fn churned(device: &mut Device, space: SpaceId, random: &mut Random, commands: usize) {
    for _ in 0..commands {
        let key = key_of(random.below(120));
        match random.below(4) {
            0 => drop(delete(device, space, &key).unwrap()),
            _ => drop(store(device, space, &key, &value_of(random, 300)).unwrap()),
        }
    }
}

/// Also of a device in the midst of its work: the index that commands and gc keep is what the flash says.
#[test]
fn nothing_is_found_on_a_sound_device() {
    let (sim, mut device) = simulated(SMALL, &DeviceOptions::default());
    let (space, mut random) = (create_space(&mut device, b"one", 0), Random::from_seed(1));
    let mut looks = 0;
    while device.gc_counters().cycles < 20 || looks < 20 {
        churned(&mut device, space, &mut random, 10);
        // Between an erase and the end of the counting off the index says more than is there.
        if device.gc.cycle.is_none() {
            assert_eq!(checked_live(&device).problems, []);
            looks += 1;
        }
    }
    let pairs = device.info().pairs;
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let killed = walk.image(Survivors::ProcessKill, 0);
    let check = checked(&killed);
    assert_eq!((check.problems.as_slice(), check.pairs), (&[][..], pairs));
    assert!(check.records > pairs && check.blocks >= 3 && check.record_bytes >= 32 * check.records);
    device.close().unwrap();
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let closed = walk.image(Survivors::All, 0);
    assert_eq!(checked(&closed).problems, []);
    // And wherever the power goes.
    for seed in 0..60 {
        walk.seek(random.below(sim.ops()));
        let cut = walk.image(Survivors::Random, seed);
        match DeviceView::open(FastTier::from_image(&cut)) {
            Ok(view) => assert_eq!(view.check(|_, _| ()).unwrap().problems, [], "seed {seed}"),
            Err(error) => assert!(matches!(error, KvError::NoDevice), "seed {seed}: {error}"),
        }
    }
}

/// Of headers, keys and values in full and open blocks, and of footers.
#[test]
fn every_flipped_bit_of_a_record_or_a_footer_is_found() {
    let (sim, mut device) = simulated(SMALL, &DeviceOptions::default());
    let (space, mut random) = (create_space(&mut device, b"one", 0), Random::from_seed(2));
    churned(&mut device, space, &mut random, 800);
    let mut places = Vec::new();
    for block in (0..SMALL.blocks).filter(|&block| device.flash.is_in_use(block)) {
        let footer = device.flash.read_footer(block).unwrap().map(|footer| footer.entries);
        let open = WriteStream::BOTH.into_iter().find_map(|stream| {
            device.blocks.open(stream).filter(|open| open.block == block).map(|open| open.entries.clone())
        });
        let start = SMALL.block_offset(block);
        if footer.is_some() {
            places.push(start + u64::from(SMALL.block_bytes) - random.below(TRAILER_BYTES as u64 - 4) - 5);
        }
        for entry in footer.or(open).unwrap() {
            let within = random.below(entry.header.value_range().end as u64);
            places.push(start + u64::from(entry.unit) * 32 + within);
        }
    }
    assert!(places.len() > 300, "{}", places.len());
    device.close().unwrap();
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    for offset in places.into_iter().step_by(3) {
        let mut image = walk.image(Survivors::All, 0);
        image.corrupt(offset, 1 << random.below(8));
        let check = checked(&image);
        assert!(!check.problems.is_empty(), "byte {offset}");
        let told: Vec<String> = check.problems.iter().map(ToString::to_string).collect();
        assert!(told.iter().all(|line| line.len() > 20), "{told:?}");
    }
}

/// What one of two copies lacks is told, though the other serves.
#[test]
fn one_spoiled_copy_of_two_is_found() {
    let (sim, mut device) = simulated(SMALL, &DeviceOptions::default());
    let (space, mut random) = (create_space(&mut device, b"one", 0), Random::from_seed(3));
    churned(&mut device, space, &mut random, 300);
    device.close().unwrap();
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let [a, b] = SMALL.word_offsets(3);
    for offset in [0, 4096] {
        let mut image = walk.image(Survivors::All, 0);
        image.corrupt(offset + 20, 1);
        assert_eq!(checked(&image).problems, [DeviceProblem::Superblock { offset }]);
    }
    for offset in [a, b] {
        let mut image = walk.image(Survivors::All, 0);
        image.corrupt(offset + 7, 1);
        assert_eq!(checked(&image).problems, [DeviceProblem::BlockWord { offset, block: 3 }]);
    }
}

/// An index that leads elsewhere, to nothing or to too much is found, and so are counts that are wrong.
#[test]
fn an_index_that_disagrees_with_the_flash_is_found() {
    let build = || {
        let mut device = in_memory(SMALL, DeviceOptions::default());
        let space = create_space(&mut device, b"one", 0);
        for n in 0..40u64 {
            store(&mut device, space, &n.to_le_bytes(), &[1; 50]).unwrap();
            store(&mut device, space, &n.to_le_bytes(), &[2; 50]).unwrap();
        }
        assert_eq!(checked_live(&device).problems, []);
        (device, space)
    };
    let (mut device, space) = build();
    let hash = device.hash(space, &7u64.to_le_bytes());
    let found = device.index.find(hash).next().unwrap();
    let offset = found.entry.place * 32;
    device.index.remove(&found);
    assert_eq!(checked_live(&device).problems, [DeviceProblem::Index { offset }], "no entry");
    device.index.insert(&found.entry);
    device.index.insert(&found.entry);
    let twice = checked_live(&device).problems;
    assert!(
        matches!(twice[..], [DeviceProblem::IndexEntries { entries, keys }] if entries == keys + 1),
        "{twice:?}"
    );
    let (mut device, space) = build();
    let found = device.index.find(device.hash(space, &7u64.to_le_bytes())).next().unwrap();
    let mut entry = found.entry;
    entry.older += 1;
    device.index.set(&found, &entry);
    assert!(
        matches!(checked_live(&device).problems[..], [DeviceProblem::Index { .. }]),
        "too many older ones"
    );
    let (mut device, space) = build();
    device.spaces.count(space, 5);
    assert_eq!(checked_live(&device).problems, [DeviceProblem::Counts { space }]);
    let (mut device, space) = build();
    let key = 7u64.to_le_bytes();
    device.buckets.remove(space, crate::command::group_of(&key), device.hash(space, &key));
    assert!(
        matches!(checked_live(&device).problems[..], [DeviceProblem::Index { .. }]),
        "no iterator comes by"
    );
}

/// A look says what there is: states of blocks, key spaces, how it was left.
#[test]
fn a_view_says_what_there_is() {
    let (sim, mut device) = simulated(SMALL, &DeviceOptions::default());
    let (space, mut random) = (create_space(&mut device, b"one", 1 << 20), Random::from_seed(4));
    churned(&mut device, space, &mut random, 400);
    let info = device.info();
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let view = |image: &Image| DeviceView::open(FastTier::from_image(image)).unwrap().overview();
    let killed = view(&walk.image(Survivors::ProcessKill, 0));
    assert_eq!((killed.shutdown, killed.info, killed.geometry), (DeviceShutdown::Killed, info, SMALL));
    assert_eq!((killed.spaces.len(), killed.spaces[0].name.as_slice()), (1, &b"one"[..]));
    let BlockCounts { free, open, full, damaged } = killed.blocks;
    assert_eq!((free + open + full, damaged), (SMALL.blocks, 0));
    assert!((1..=2).contains(&open) && full > 0, "{:?}", killed.blocks);
    assert_eq!(killed.live_quarters.iter().sum::<u32>(), open + full);
    device.close().unwrap();
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let closed = view(&walk.image(Survivors::All, 0));
    assert!(closed.shutdown == DeviceShutdown::Closed && closed.report.is_whole());
    assert!(closed.generation > killed.generation && closed.durable_sequence >= killed.durable_sequence);
    // A footer that is gone is one damaged block.
    let (range, _) = DeviceView::open(FastTier::from_image(&walk.image(Survivors::All, 0)))
        .unwrap()
        .device()
        .blocks_in_use()[0]
        .clone();
    let mut image = walk.image(Survivors::All, 0);
    image.corrupt(range.end - 20, 1);
    assert_eq!(view(&image).blocks.damaged, 1);
}
