//! Openings that repair damage and are cut short, at each of their writes: the next one tells all of it, has the same pairs, and gives no number again that may have been lost.

use hedgerow_device::Survivors;

use super::*;
use crate::flash::footer::TRAILER_BYTES;
use crate::flash::record::SEQUENCE_MAX;

/// Flips a bit of each of these bytes.
type Spoiled = Vec<u64>;

/// A device with full blocks, an open one of commands and one of gc, all of it durable; and damage of each kind.
fn damaged(options: &DeviceOptions, is_closed: bool) -> (CrashSim, Vec<Spoiled>) {
    let (sim, mut device) = simulated(SMALL, options);
    let space = create_space(&mut device, b"one", 0);
    let mut random = Random::from_seed(3);
    while device.gc_counters().cycles < 2 {
        store(&mut device, space, &key_of(random.below(200)), &value_of(&mut random, 900)).unwrap();
    }
    answer(&mut device, KvCommand::Flush).unwrap();
    let end = |block: u32| SMALL.block_offset(block + 1);
    let open: Vec<u32> =
        WriteStream::BOTH.iter().filter_map(|&stream| Some(device.blocks.open(stream)?.block)).collect();
    assert_eq!(open.len(), 2);
    let is_full = |block: &u32| device.flash.is_in_use(*block) && !open.contains(block);
    let full: Vec<u32> = (0..SMALL.blocks).filter(is_full).collect();
    let header = |block: u32| SMALL.block_offset(block) + 9;
    let footer = |block: u32| end(block) - TRAILER_BYTES as u64;
    let spoiled = vec![
        vec![footer(full[0])],
        vec![footer(full[0]), header(full[0]), footer(full[1]), footer(full[2]), header(full[2])],
        vec![header(open[0])],
        vec![header(open[1])],
        vec![header(open[0]), header(open[1]), footer(full[3]), header(full[3])],
        vec![footer(full[4]), SMALL.block_offset(full[4]) + 4, header(open[0])],
    ];
    if is_closed {
        device.close().unwrap();
    }
    (sim, spoiled)
}

#[test]
fn a_repair_that_is_cut_short_is_told_by_the_next_opening() {
    let options = DeviceOptions::default();
    let (mut images, mut retold) = (0, 0);
    for is_closed in [true, false] {
        let (sim, damages) = damaged(&options, is_closed);
        let mut base = sim.walk();
        base.seek(u64::MAX);
        for spoiled in damages {
            // After a power cut that took nothing, or a close: what is there is durable.
            let mut image = base.image(if is_closed { Survivors::ProcessKill } else { Survivors::All }, 0);
            spoiled.iter().for_each(|&offset| image.corrupt(offset, 0x10));
            let sim = CrashSim::from_image(&image);
            let before = Flash::open(FastTier::simulated(&sim)).unwrap().superblock().generation;
            let start = sim.ops();
            let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
            let (report, sequence) = (device.open_report().clone(), device.sequence);
            let (ends, content) = (sim.ops(), all_of(&mut device));
            assert!(report.footers_rebuilt > 0, "{spoiled:?}: {report:?}");
            let mut walk = sim.walk();
            walk.seek(start);
            while walk.next_op() && walk.op_index() <= ends {
                for kind in Survivors::EACH {
                    let told = format!("{is_closed} {spoiled:?}: {kind:?} at {} of opening", walk.op_index());
                    let cut = CrashSim::from_image(&walk.image(kind, images));
                    let superblock = *Flash::open(FastTier::simulated(&cut)).unwrap().superblock();
                    let mut device = Device::open(FastTier::simulated(&cut), options.clone())
                        .unwrap_or_else(|error| panic!("{told}: {error}"));
                    let is_through = superblock.generation > before && superblock.repair == 0;
                    if !is_through {
                        assert_eq!(device.open_report(), &report, "{told}");
                    }
                    assert_eq!(all_of(&mut device), content, "{told}");
                    assert!(device.sequence >= sequence, "{told}: {} of {sequence}", device.sequence);
                    images += 1;
                    retold += u64::from(superblock.repair != 0);
                    // Whoever was told once is not told again, and may go on.
                    if images % 8 == 0 {
                        store(&mut device, SpaceId(1), b"new", b"v").unwrap();
                        drop(device);
                        let mut device = Device::open(FastTier::simulated(&cut), options.clone()).unwrap();
                        assert!(!device.open_report().may_undo_changes(), "{told}");
                        assert_eq!(retrieve(&mut device, SpaceId(1), b"new").unwrap(), b"v", "{told}");
                    }
                }
            }
        }
    }
    assert!(images > 500 && retold > 200, "{images} images, {retold} retold");
}

/// An opening that repairs is killed between its stores and their syncs, and the one after it by a power cut: one of the superblocks is durable all the time.
#[test]
fn a_repair_that_was_killed_leaves_a_durable_superblock_to_the_next() {
    let options = DeviceOptions::default();
    let (sim, damages) = damaged(&options, false);
    let mut base = sim.walk();
    base.seek(u64::MAX);
    let mut image = base.image(Survivors::All, 0);
    damages[1].iter().for_each(|&offset| image.corrupt(offset, 0x10));
    let (mut images, mut kills) = (0, 0);
    for n in 0.. {
        let sim = CrashSim::from_image(&image);
        sim.fail_persist_after(n, true);
        if Device::open(FastTier::simulated(&sim), options.clone()).is_ok() {
            break;
        }
        kills += 1;
        sim.clear_faults();
        let start = sim.ops();
        let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
        let (report, content, ends) = (device.open_report().clone(), all_of(&mut device), sim.ops());
        let mut walk = sim.walk();
        walk.seek(start);
        while walk.next_op() && walk.op_index() <= ends {
            for kind in Survivors::EACH {
                let told = format!("sync {n}, then {kind:?} at {} of the next opening", walk.op_index());
                let cut = CrashSim::from_image(&walk.image(kind, images));
                let mut device = Device::open(FastTier::simulated(&cut), options.clone())
                    .unwrap_or_else(|error| panic!("{told}: {error}"));
                // Of a repair that was killed at its very end the next opening tells nothing, and one that finds the end lost all of it.
                if device.open_report().footers_rebuilt > 0 && report.footers_rebuilt > 0 {
                    assert_eq!(device.open_report(), &report, "{told}");
                }
                assert_eq!(all_of(&mut device), content, "{told}");
                images += 1;
            }
        }
    }
    assert!(kills >= 3 && images > 100, "{kills} kills, {images} images");
}

/// A device whose changes have used up their numbers refuses changes with what is at its end, and is read, closed and opened as ever: no number is written that would not be read again.
#[test]
fn the_last_change_is_read_again_and_the_next_is_refused() {
    let options = DeviceOptions::default();
    let (sim, mut device) = simulated(SMALL, &options);
    let space = create_space(&mut device, b"one", 0);
    device.seal(WriteStream::Hot).unwrap();
    device.sequence = SEQUENCE_MAX - 3;
    device.durable_sequence = device.sequence;
    store(&mut device, space, b"a", b"1").unwrap();
    store(&mut device, space, b"b", b"2").unwrap();
    let refused_all = |device: &mut Device| {
        let spent = |refused: Result<KvAnswer>| {
            let is_spent =
                matches!(refused, Err(KvError::NumbersSpent { max, .. }) if max == SEQUENCE_MAX - 1);
            assert!(is_spent, "{refused:?}");
        };
        spent(store(device, space, b"a", b"3"));
        spent(store(device, space, b"c", b"3"));
        spent(delete(device, space, b"a"));
        spent(answer(device, KvCommand::CreateSpace { name: key(b"two"), bytes_max: 0 }));
        assert_eq!(retrieve(device, space, b"a").unwrap(), b"1");
        assert_eq!(retrieve(device, space, b"b").unwrap(), b"2");
    };
    refused_all(&mut device);
    device.close().unwrap();
    let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
    assert!(device.open_report().is_whole(), "{:?}", device.open_report());
    refused_all(&mut device);
    let sealed = device.blocks.open(WriteStream::Hot).unwrap().block;
    device.seal(WriteStream::Hot).unwrap();
    drop(device);
    // Damage leaves numbers out: not beyond the end.
    let mut image = sim.process_kill();
    image.corrupt(SMALL.block_offset(sealed) + 9, 1);
    image.corrupt(SMALL.block_offset(sealed + 1) - 3 - 8, 1);
    let mut device = Device::open(FastTier::from_image(&image), options).unwrap();
    assert_eq!(device.sequence, SEQUENCE_MAX - 1, "{:?}", device.open_report());
    assert!(matches!(store(&mut device, space, b"c", b"3"), Err(KvError::NumbersSpent { .. })));
    device.close().unwrap();
}

/// A block whose generation has no next one that would be read again is not erased, and nothing else is refused for it.
#[test]
fn a_block_at_the_end_of_its_numbers_is_left() {
    use crate::flash::seed::{GENERATION_MAX, block_word};
    let options = DeviceOptions::default();
    let (sim, device) = simulated(SMALL, &options);
    drop(device);
    let mut image = sim.process_kill();
    for (block, generation) in [(2, GENERATION_MAX - 2), (3, GENERATION_MAX - 1), (4, GENERATION_MAX - 4)] {
        for at in SMALL.word_offsets(block) {
            let (old, new) = (image.read(at, 8), block_word(block, generation).to_le_bytes());
            (0..8).for_each(|n| image.corrupt(at + n, old[n as usize] ^ new[n as usize]));
        }
    }
    let sim = CrashSim::from_image(&image);
    sim.limit_log(1 << 20);
    let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
    let space = create_space(&mut device, b"one", 0);
    let mut random = Random::from_seed(1);
    for _ in 0..6000 {
        let _ = store(&mut device, space, &key_of(random.below(150)), &value_of(&mut random, 900));
    }
    assert!(device.gc_counters().cycles > 40, "{:?}", device.gc_counters());
    let content = content_of(&mut device);
    device.close().unwrap();
    let mut device = Device::open(FastTier::simulated(&sim), options).unwrap();
    assert_eq!(content_of(&mut device), content);
}
