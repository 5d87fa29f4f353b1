//! Pages that fill up are handed to the medium early, and nobody waits for them: until their sync they may be there after a power cut, in part, or not.

use hedgerow_device::Survivors;

use super::*;

/// Blocks that hold more than is handed over at once.
const WIDE: Geometry = Geometry { page_bytes: 4096, block_bytes: 512 << 10, blocks: 9 };
const KEYS: u64 = 1700;

/// What keys have after so many stores; the number of a store is its value.
fn after(stores: &[u64], count: usize) -> BTreeMap<u64, u64> {
    (0..).zip(&stores[..count]).map(|(n, &of)| (of, n)).collect()
}

#[test]
fn what_was_handed_over_early_counts_with_its_sync_and_not_before() {
    let options = DeviceOptions::default();
    let (sim, mut device) = simulated(WIDE, &options);
    sim.limit_log(1 << 30);
    let space = create_space(&mut device, b"one", 0);
    let mut random = Random::from_seed(1);
    let (mut stores, mut steps, mut durable, mut early) = (Vec::new(), Vec::new(), 0, 0);
    for n in 0..14_000u64 {
        let of = if n < KEYS { n } else { random.below(KEYS) };
        store(&mut device, space, &of.to_le_bytes(), &n.to_le_bytes().repeat(40)).unwrap();
        stores.push(of);
        if n % 1500 == 700 {
            answer(&mut device, KvCommand::Flush).unwrap();
            durable = stores.len();
        }
        let open = device.blocks.open(WriteStream::Hot).unwrap();
        early += u64::from(open.started > open.durable);
        steps.push((sim.ops(), durable));
    }
    assert!(early > 2000, "{early} stores with pages under way");
    assert!(device.gc_counters().cycles > 5, "{:?}", device.gc_counters());
    drop(device);
    let (mut walk, mut images, mut cut) = (sim.walk(), 0, 0);
    walk.seek(steps[KEYS as usize].0);
    while walk.next_op() {
        if random.below(120) != 0 {
            continue;
        }
        let kind = [Survivors::None, Survivors::Random, Survivors::HeadersOnly][images % 3];
        let told = format!("{kind:?} at {}", walk.op_index());
        let image = walk.image(kind, walk.op_index());
        let mut device = Device::open(FastTier::from_image(&image), options.clone()).unwrap();
        assert!(device.open_report().is_whole(), "{told}: {:?}", device.open_report());
        let done = steps.partition_point(|step| step.0 <= walk.op_index());
        let found: BTreeMap<u64, u64> = content_of(&mut device)
            .into_iter()
            .map(|((_, of), value)| {
                assert_eq!(value, value[..8].repeat(40), "{told}");
                let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
                (number(&of), number(&value))
            })
            .collect();
        let count = found.values().max().map_or(0, |&last| last as usize + 1);
        assert!((steps[done - 1].1..=done + 1).contains(&count), "{told}: {count} of {done}");
        assert!(found == after(&stores, count), "{told}: no prefix of {count}");
        cut += done.saturating_sub(count);
        images += 1;
    }
    assert!(images > 60 && cut > 5_000, "{images} images, {cut} stores cut off");
}

/// A superblock that is written meanwhile, as for a block of gc's, says how far the open block is durable, and not how far it was handed over: what the power takes of it is no damage.
#[test]
fn a_superblock_does_not_count_on_what_was_handed_over() {
    let options = DeviceOptions::default();
    let (sim, mut device) = simulated(WIDE, &options);
    let space = create_space(&mut device, b"one", 0);
    let (mut n, mut flushed) = (0u64, 0);
    while device.blocks.open(WriteStream::Hot).is_some_and(|open| open.started <= open.durable) {
        store(&mut device, space, &n.to_le_bytes(), &[7; 300]).unwrap();
        n += 1;
        if n == 100 {
            answer(&mut device, KvCommand::Flush).unwrap();
            flushed = n;
        }
    }
    device.write_superblock(false).unwrap();
    drop(device);
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    for kind in [Survivors::None, Survivors::Random, Survivors::HeadersOnly] {
        let mut device = Device::open(FastTier::from_image(&walk.image(kind, 1)), options.clone()).unwrap();
        assert!(device.open_report().is_whole(), "{kind:?}: {:?}", device.open_report());
        let left = content_of(&mut device).len() as u64;
        assert!((flushed..=n).contains(&left), "{kind:?}: {left} of {n}");
        assert!(left == flushed || kind != Survivors::None, "{kind:?}: {left} of {n}");
    }
}
