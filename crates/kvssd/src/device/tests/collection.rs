//! What gc costs, and a device that is full.

use super::*;

fn fill(device: &mut Device, space: SpaceId, share: u64, value: &[u8]) -> u64 {
    let mut n = 0;
    while device.info().used_bytes * 100 < device.info().capacity_bytes * share {
        store(device, space, format!("key{n:06}").as_bytes(), value).unwrap();
        n += 1;
    }
    n
}

/// Five times the device's bytes are written over a device that is 90 % full: all fits, no store waits for a whole block, none copies more than its part, and the amplification is that of a device
/// with so much room.
#[test]
fn overwriting_a_device_that_is_90_percent_full_stays_within_bounds() {
    for gc_policy in [GcPolicy::Greedy, GcPolicy::CostBenefit] {
        let geometry = Geometry { page_bytes: 4096, block_bytes: 128 << 10, blocks: 48 };
        let mut device = in_memory(geometry, DeviceOptions { gc_policy, ..DeviceOptions::default() });
        let space = create_space(&mut device, b"one", 0);
        let keys = fill(&mut device, space, 90, &[7; 200]);
        let mut random = Random::from_seed(5);
        let (before, mut written, mut most) = (device.gc_counters(), 0, 0);
        while written < 5 * geometry.bytes() {
            let of = format!("key{:06}", random.below(keys));
            let copied = device.gc_counters().copied_bytes;
            store(&mut device, space, of.as_bytes(), &[random.below(256) as u8; 200]).unwrap();
            most = most.max(device.gc_counters().copied_bytes - copied);
            written += 256;
        }
        let after = device.gc_counters();
        let amplification = 1.0 + (after.copied_bytes - before.copied_bytes) as f64 / written as f64;
        assert_eq!(after.stalls, before.stalls, "no store waits for a block: {after:?}");
        assert!(most <= 16 * 256, "{most} bytes copied for a store of 256");
        assert!((1.5..3.0).contains(&amplification), "{gc_policy:?}: amplification {amplification:.2}");
        assert_eq!(device.info().pairs, keys);
        let (least, greatest) = wear(&device);
        assert!(greatest <= 4 * least.max(1) + 20, "blocks were erased {least} to {greatest} times");
    }
}

fn wear(device: &Device) -> (u64, u64) {
    let blocks = device.geometry().blocks;
    let erases = (0..blocks).map(|block| device.flash.generation(block) / 2);
    (erases.clone().min().unwrap(), erases.max().unwrap())
}

/// Values of the largest size leave the most unused at the ends of blocks; pairs of one byte have the most entries.
#[test]
fn a_full_device_refuses_says_why_and_takes_deletes_and_overwrites() {
    for value_bytes in [0, 1, 700, 4096, 2040] {
        let mut device = in_memory(SMALL, DeviceOptions::default());
        let space = create_space(&mut device, b"one", 0);
        let value = vec![7; value_bytes];
        let mut n = 0u64;
        let refused = loop {
            match store(&mut device, space, &n.to_le_bytes(), &value) {
                Ok(_) => n += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, KvError::DeviceFull { needed, free } if needed > free), "{refused:?}");
        let info = device.info();
        assert!(info.used_bytes <= info.capacity_bytes && info.utilization() >= 9_000, "{info:?}");
        assert_eq!(content_of(&mut device).len() as u64, n);
        let mut random = Random::from_seed(value_bytes as u64);
        for _ in 0..3 * n.min(2000) {
            store(&mut device, space, &random.below(n).to_le_bytes(), &value).unwrap();
        }
        for at in 0..n {
            assert_eq!(delete(&mut device, space, &at.to_le_bytes()).unwrap(), KvAnswer::Deleted(true));
        }
        assert_eq!((device.info().pairs, device.info().logical_bytes), (0, 0));
        // What was freed can be written again, all of it: a store that is refused, because gc has not come by what was deleted, has had it work on a block.
        let mut refused = 0;
        for at in 0..n {
            while let Err(error) = store(&mut device, space, &(at + n).to_le_bytes(), &value) {
                assert!(matches!(error, KvError::DeviceFull { .. }), "{error}");
                refused += 1;
                assert!(refused < 100, "{value_bytes}: {at} of {n}");
            }
        }
        assert_eq!(content_of(&mut device).len() as u64, n);
    }
}

/// Tombstones leave when what they hide is gone: a device that was emptied has hardly anything in use.
#[test]
fn deletions_leave_nothing_behind() {
    let mut device = in_memory(SMALL, DeviceOptions::default());
    let space = create_space(&mut device, b"one", 0);
    for round in 0..20u64 {
        for n in 0..400u64 {
            store(&mut device, space, &(round * 1000 + n).to_le_bytes(), &[7; 300]).unwrap();
        }
        for n in 0..400u64 {
            delete(&mut device, space, &(round * 1000 + n).to_le_bytes()).unwrap();
        }
    }
    let counters = device.gc_counters();
    assert!(counters.tombstones_dropped > 5_000, "{counters:?}");
    let info = device.info();
    assert!(info.used_bytes * 3 < info.capacity_bytes, "{info:?}");
    let left = device.buckets.hashes(space, &KeyPattern::ALL, &Default::default(), 1, 1);
    assert!(left.hashes.is_empty(), "keys that are gone are in no bucket: {left:?}");
}

/// The longest values, in the smallest blocks that take them: written over and over in a device that is as full as it may be.
#[test]
fn values_of_2_mib_are_kept() {
    let geometry = Geometry { page_bytes: 32 << 10, block_bytes: 16 << 20, blocks: 8 };
    let mut device = in_memory(geometry, DeviceOptions::default());
    assert_eq!(device.info().value_bytes_max, 2 << 20);
    let space = create_space(&mut device, b"one", 0);
    let of = |n: u64| vec![7; n as usize + 1];
    let value = |n: u64, round: u64| vec![(n * 31 + round) as u8; (2 << 20) - round as usize];
    let mut keys = 0;
    while store(&mut device, space, &of(keys), &value(keys, 0)).is_ok() {
        keys += 1;
    }
    assert!(keys >= 20, "{keys} values of 2 MiB in 128 MiB");
    for round in 1..6 {
        for n in 0..keys {
            store(&mut device, space, &of(n), &value(n, round)).unwrap();
        }
    }
    assert!(device.gc_counters().cycles > 3, "{:?}", device.gc_counters());
    for n in 0..keys {
        assert!(retrieve(&mut device, space, &of(n)).unwrap() == value(n, 5));
    }
}

/// What a store that is refused costs is found out once, and not with every store after it.
#[test]
fn refusals_of_a_full_device_copy_nothing() {
    let mut device = in_memory(SMALL, DeviceOptions::default());
    let space = create_space(&mut device, b"one", 0);
    let keys = fill(&mut device, space, 99, &[7; 100]);
    for n in 0..10 {
        delete(&mut device, space, format!("key{:06}", keys - 1 - n).as_bytes()).unwrap();
    }
    let mut n = 0;
    while store(&mut device, space, format!("new{n:06}").as_bytes(), &[7; 100]).is_ok() {
        n += 1;
    }
    let copied = device.gc_counters().copied_bytes;
    for n in 0..100u64 {
        let refused = store(&mut device, space, &n.to_le_bytes(), &[7; 400]);
        assert!(matches!(refused, Err(KvError::DeviceFull { .. })), "{refused:?}");
    }
    assert_eq!(device.gc_counters().copied_bytes, copied);
}

/// A cache that evicts: on a device that is full, one pair is deleted and one of the same size is stored, again and again. All of them fit, and no command waits for a block or copies more than in
/// proportion to what it writes: the oldest pair goes, or any, and pairs are as small as their tombstones, or longer.
#[test]
fn a_full_device_that_evicts_does_bounded_work_in_each_command() {
    let geometry = Geometry { page_bytes: 4096, block_bytes: 128 << 10, blocks: 64 };
    for (seed, gc_policy, value_bytes, oldest_first) in [
        (1, GcPolicy::Greedy, 100, true),
        (2, GcPolicy::CostBenefit, 100, false),
        (3, GcPolicy::Greedy, 0, false),
        (4, GcPolicy::CostBenefit, 2000, true),
        (5, GcPolicy::CostBenefit, 0, true),
    ] {
        let mut device = in_memory(geometry, DeviceOptions { gc_policy, ..DeviceOptions::default() });
        let space = create_space(&mut device, b"one", 0);
        let (mut keys, mut next) = (std::collections::VecDeque::new(), 0u64);
        let value = vec![7; value_bytes];
        while store(&mut device, space, &next.to_le_bytes(), &value).is_ok() {
            keys.push_back(next);
            next += 1;
        }
        let charge = ((24 + 8 + value_bytes).next_multiple_of(32) + 28) as u64;
        let (mut random, mut refused, mut most) = (Random::from_seed(seed), 0, (0, 0));
        let before = device.gc_counters();
        let mut measure = |device: &Device, before: GcCounters| {
            let now = device.gc_counters();
            most =
                (most.0.max(now.copied_bytes - before.copied_bytes), most.1.max(now.cycles - before.cycles));
        };
        for _ in 0..20_000 {
            let n = if oldest_first { 0 } else { random.below(keys.len() as u64) as usize };
            let old = keys.swap_remove_front(n).unwrap();
            let counters = device.gc_counters();
            assert_eq!(delete(&mut device, space, &old.to_le_bytes()).unwrap(), KvAnswer::Deleted(true));
            measure(&device, counters);
            let counters = device.gc_counters();
            match store(&mut device, space, &next.to_le_bytes(), &value) {
                Ok(_) => keys.push_back(next),
                Err(KvError::DeviceFull { needed, free }) if needed > free => refused += 1,
                Err(error) => panic!("{error}"),
            }
            measure(&device, counters);
            next += 1;
        }
        let (info, after) = (device.info(), device.gc_counters());
        let told = format!("{seed}: {refused} refused, at most {most:?} of {charge}, {info:?}, {after:?}");
        // Where pairs are as small as their tombstones, and any of them goes, a few wait for one block.
        assert!(refused == 0 && after.stalls - before.stalls <= if seed == 3 { 20 } else { 0 }, "{told}");
        // Gc works up to five times as much as it must to gain what a command writes, from blocks that gain one part in 32 at least.
        let most_copied = if seed == 3 { 128 << 10 } else { 161 * charge };
        assert!(most.0 <= most_copied && most.1 <= 1, "{told}");
        assert!(info.used_bytes <= info.capacity_bytes && info.utilization() > 9_900, "{told}");
        assert_eq!(info.pairs as usize, keys.len());
    }
}

/// A block that cannot be read is taken off the capacity, so that what the device accepts can be deleted and overwritten all the same; and counts again once nothing in it does.
#[test]
fn a_damaged_block_is_taken_off_the_capacity() {
    let mut device = in_memory(SMALL, DeviceOptions::default());
    let space = create_space(&mut device, b"one", 0);
    let keys = fill(&mut device, space, 90, &[7; 200]);
    let capacity = device.info().capacity_bytes;
    let blocks = device.blocks_in_use();
    let spoiled: Vec<u64> = (1..4).map(|n| blocks[n].0.start + 10 * 256).collect();
    for &at in &spoiled {
        device.fail_reads(at..at + 1);
    }
    let mut random = Random::from_seed(1);
    for _ in 0..20_000 {
        let of = format!("key{:06}", random.below(keys));
        match store(&mut device, space, of.as_bytes(), &[8; 200]) {
            Ok(_) | Err(KvError::ReadFault { .. }) => {}
            Err(KvError::DeviceFull { .. }) => {
                // The blocks that are gone held more than was kept free.
                let of = format!("key{:06}", random.below(keys));
                let deleted = delete(&mut device, space, of.as_bytes());
                assert!(matches!(deleted, Ok(_) | Err(KvError::ReadFault { .. })), "{deleted:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(device.gc_counters().damaged_blocks, 3);
    let fallen = capacity - device.info().capacity_bytes;
    assert!(fallen > 2 * u64::from(SMALL.block_bytes), "{fallen} bytes");
    device.clear_read_faults();
    for n in 0..keys {
        delete(&mut device, space, format!("key{n:06}").as_bytes()).unwrap();
    }
    assert_eq!(device.info().capacity_bytes, capacity);
}

/// On a full device keys are stored again whose tombstones gc frees while it makes room for that: each is freed once, and no more is in use than there is room for.
#[test]
fn a_tombstone_that_gc_frees_makes_room_once() {
    let mut waited = 0;
    for seed in 0..4 {
        let mut device = in_memory(SMALL, DeviceOptions::default());
        let space = create_space(&mut device, b"one", 0);
        let mut random = Random::from_seed(seed);
        let (mut keys, mut next) = (Vec::new(), 0u64);
        for round in 0..60 {
            while store(&mut device, space, &next.to_le_bytes(), &[]).is_ok() {
                keys.push(next);
                next += 1;
            }
            let gone: Vec<u64> =
                (0..400).map(|_| keys.swap_remove(random.below(keys.len() as u64) as usize)).collect();
            for n in &gone {
                delete(&mut device, space, &n.to_le_bytes()).unwrap();
            }
            for n in gone {
                let stalls = device.gc_counters().stalls;
                let value = vec![8; random.below(60) as usize];
                if store(&mut device, space, &n.to_le_bytes(), &value).is_ok() {
                    keys.push(n);
                }
                waited += device.gc_counters().stalls - stalls;
                let info = device.info();
                assert!(info.used_bytes <= info.capacity_bytes, "{seed}, {round}: {info:?}");
            }
            let live: u64 = device.blocks_in_use().iter().map(|(_, live)| live).sum();
            assert_eq!(device.used_bytes, live, "{seed}, {round}");
        }
    }
    assert!(waited > 100, "{waited} commands waited for a block");
}

/// Tombstones are waited with as long as there is room: a device that is half full copies nothing as pairs are deleted. What is left to do by then holds up nobody who fills it to its end: it has as many pairs as one that was filled at once.
#[test]
fn deletions_on_a_device_with_room_copy_nothing() {
    for (value_bytes, gc_policy) in [
        (0, GcPolicy::Greedy),
        (0, GcPolicy::CostBenefit),
        (100, GcPolicy::CostBenefit),
        (700, GcPolicy::Greedy),
    ] {
        let geometry = Geometry { page_bytes: 4096, block_bytes: 128 << 10, blocks: 64 };
        let mut device = in_memory(geometry, DeviceOptions { gc_policy, ..DeviceOptions::default() });
        let space = create_space(&mut device, b"one", 0);
        let value = vec![7; value_bytes];
        let keys = fill(&mut device, space, 50, &value);
        let mut random = Random::from_seed(1);
        let mut order: Vec<u64> = (0..keys).collect();
        (1..order.len()).for_each(|n| order.swap(n, random.below(n as u64 + 1) as usize));
        for n in &order[..order.len() / 3] {
            delete(&mut device, space, format!("key{n:06}").as_bytes()).unwrap();
        }
        let (info, counters) = (device.info(), device.gc_counters());
        assert!(info.tombstone_bytes > 0 && info.utilization() < 5_100, "{info:?}");
        assert_eq!(counters.copied_bytes, 0, "{value_bytes}, {gc_policy:?}: {info:?}, {counters:?}");

        let (mut pairs, mut next) = (info.pairs, keys);
        while store(&mut device, space, format!("key{next:06}").as_bytes(), &value).is_ok() {
            (pairs, next) = (pairs + 1, next + 1);
        }
        let mut fresh = in_memory(geometry, DeviceOptions { gc_policy, ..DeviceOptions::default() });
        let space = create_space(&mut fresh, b"one", 0);
        let mut at_once = 0;
        while store(&mut fresh, space, format!("key{at_once:06}").as_bytes(), &value).is_ok() {
            at_once += 1;
        }
        let after = device.gc_counters();
        let told =
            format!("{value_bytes}, {gc_policy:?}: {pairs} of {at_once}, {:?}, {after:?}", device.info());
        assert_eq!(after.stalls, 0, "{told}");
        assert!(pairs * 1000 >= at_once * 998, "{told}");
    }
}

/// All blocks are gone through once for each that is emptied, and not with each command while tombstones ask for gc and no block is worth it yet.
#[test]
fn no_command_goes_through_all_blocks_for_nothing() {
    let geometry = Geometry { page_bytes: 4096, block_bytes: 1 << 20, blocks: 24 };
    let mut device = in_memory(geometry, DeviceOptions::default());
    let space = create_space(&mut device, b"one", 0);
    let mut keys = Vec::new();
    while store(&mut device, space, &keys.len().to_le_bytes(), &[]).is_ok() {
        keys.push(keys.len());
    }
    let (mut random, mut most, before) = (Random::from_seed(1), 0, device.gc_counters());
    for _ in 0..keys.len() / 20 {
        let n = keys.swap_remove(random.below(keys.len() as u64) as usize);
        delete(&mut device, space, &n.to_le_bytes()).unwrap();
        most = most.max(device.tombstone_bytes);
    }
    let after = device.gc_counters();
    let (choices, cycles) = (after.choices - before.choices, after.cycles - before.cycles);
    assert!(most * 2 > device.tombstones_beside(), "{most} bytes of tombstones");
    assert!(choices <= 2 * cycles + 4, "{choices} choices for {cycles} cycles");
}

/// At each size of blocks a device that is full of pairs as small as their tombstones has room for what is deleted and replaced, at random.
#[test]
fn a_full_device_of_small_pairs_evicts_whatever_its_blocks() {
    for (block_bytes, blocks, key_bytes) in
        [(32 << 10, 8, 8), (32 << 10, 64, 8), (1 << 20, 16, 8), (16 << 20, 8, 250), (64 << 20, 8, 250)]
    {
        let geometry = Geometry { page_bytes: 4096, block_bytes, blocks };
        let mut device = in_memory(geometry, DeviceOptions::default());
        let space = create_space(&mut device, b"one", 0);
        let of = |n: u64| {
            let mut of = n.to_be_bytes().to_vec();
            of.resize(key_bytes, b'.');
            of
        };
        let (mut keys, mut next) = (Vec::new(), 0);
        while store(&mut device, space, &of(next), &[]).is_ok() {
            keys.push(next);
            next += 1;
        }
        let (mut random, mut refused) = (Random::from_seed(1), 0);
        let before = device.gc_counters();
        let turns = keys.len().min(100_000);
        for _ in 0..turns {
            let n = random.below(keys.len() as u64) as usize;
            delete(&mut device, space, &of(keys.swap_remove(n))).unwrap();
            match store(&mut device, space, &of(next), &[]) {
                Ok(_) => keys.push(next),
                Err(KvError::DeviceFull { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            next += 1;
        }
        let (after, info) = (device.gc_counters(), device.info());
        let stalls = after.stalls - before.stalls;
        let told =
            format!("{geometry:?}: {refused} refused, {stalls} stalls of {turns}, {info:?}, {after:?}");
        assert!(refused == 0 && stalls * 100 <= turns as u64, "{told}");
    }
}
