//! Openings that repair damage and are cut short, at each of their writes: the next one tells all of it, has the same pairs, and gives no number again that may have been lost.

use hedgerow_device::Survivors;

use super::*;
use crate::flash::footer::TRAILER_BYTES;

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
