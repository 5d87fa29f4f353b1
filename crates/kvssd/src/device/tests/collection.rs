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
        // What was freed can be written again, all of it.
        for at in 0..n {
            store(&mut device, space, &(at + n).to_le_bytes(), &value).unwrap();
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
    let left = device.buckets.hashes(space, &KeyPattern::ALL, &Default::default(), 1);
    assert!(left.is_empty(), "keys that are gone are in no bucket: {left:?}");
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
