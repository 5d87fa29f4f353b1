//! Files that somebody made who knows the device's secret: checksums are right, and what is under them is not. Whatever it is, it is told with a typed error or in the report; nothing panics, and nothing else
//! is written over.

use hedgerow_device::{Image, Survivors};

use super::*;
use crate::flash::footer::{self, BlockFooter, FooterEntry, TRAILER_BYTES};
use crate::flash::record::{END_BYTES, RecordHeader, RecordKind, UNIT_BYTES};
use crate::flash::seed::BlockSeed;

fn patch(image: &mut Image, offset: u64, bytes: &[u8]) {
    let old = image.read(offset, bytes.len());
    (0..).zip(old.iter().zip(bytes)).for_each(|(n, (old, new))| image.corrupt(offset + n, old ^ new));
}

/// Puts another footer in the place of a block's, with a right checksum.
fn forge_footer(image: &mut Image, flash: &Flash, block: u32, entries: &[FooterEntry]) {
    let end = SMALL.block_offset(block + 1);
    let (secret, generation) = (flash.superblock().secret.seed_secret(), flash.generation(block));
    let seed = BlockSeed::new(secret, generation, end - TRAILER_BYTES as u64);
    let mut bytes = vec![0; footer::footer_bytes(entries.len())];
    footer::encode(&mut bytes, entries, Default::default(), generation, seed);
    patch(image, end - bytes.len() as u64, &bytes);
}

/// Puts another header over a record, with right checksums of whatever its key and value are then.
fn forge_header(image: &mut Image, flash: &Flash, block: u32, unit: u32, header: &RecordHeader) {
    let offset = SMALL.block_offset(block) + u64::from(unit) * UNIT_BYTES as u64;
    let seed = BlockSeed::new(flash.superblock().secret.seed_secret(), flash.generation(block), offset);
    let len = header.record_bytes();
    let old = image.read(offset, len.min((SMALL.bytes() - offset) as usize));
    let mut bytes = old.clone();
    bytes.resize(len + END_BYTES, 0);
    let key = bytes[24..24 + usize::from(header.key_bytes)].to_vec();
    let value = bytes[header.value_range()].to_vec();
    let word = header.encode(&mut bytes, seed, &key, &value);
    bytes[..8].copy_from_slice(&word.to_le_bytes());
    bytes.truncate(old.len());
    patch(image, offset, &bytes);
}

/// A device with full blocks that was closed.
fn closed(options: &DeviceOptions) -> CrashSim {
    let (sim, mut device) = simulated(SMALL, options);
    let space = create_space(&mut device, b"one", 0);
    let mut random = Random::from_seed(3);
    for _ in 0..1800 {
        let of = key_of(random.below(200));
        match random.below(4) {
            0 => drop(delete(&mut device, space, &of).unwrap()),
            _ => drop(store(&mut device, space, &of, &value_of(&mut random, 600)).unwrap()),
        }
    }
    device.close().unwrap();
    sim
}

fn forged_entry(random: &mut Random, entry: &mut FooterEntry) {
    let header = &mut entry.header;
    match random.below(8) {
        0 => entry.unit = random.below(1024) as u32,
        1 => header.value_bytes = random.below(1 << 21) as u32,
        2 => header.value_bytes = header.value_bytes.saturating_sub(random.below(200) as u32),
        3 => header.key_bytes = random.below(256) as u8,
        4 => header.kind = if random.below(2) == 0 { RecordKind::Pair } else { RecordKind::Tombstone },
        5 => header.sequence = [0, 1, (1 << 62) - 1, random.next_u64() >> 2][random.below(4) as usize],
        6 => header.space = SpaceId([0, 1, 2, u32::MAX][random.below(4) as usize]),
        _ => entry.hash = random.next_u64(),
    }
}

#[test]
fn a_forged_file_is_told_and_panics_nothing() {
    let options = DeviceOptions::default();
    let sim = closed(&options);
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let (mut refused, mut errors) = (0, 0);
    for seed in 0..100 {
        let mut random = Random::from_seed(seed);
        let mut image = walk.image(Survivors::ProcessKill, 0);
        let flash = Flash::open(FastTier::from_image(&image)).unwrap();
        for block in (0..SMALL.blocks).filter(|&block| flash.is_in_use(block)) {
            let Some(BlockFooter { mut entries, .. }) = flash.read_footer(block).unwrap() else { continue };
            for _ in 0..random.below(4) {
                let n = random.below(entries.len() as u64) as usize;
                let before = entries[n];
                match random.below(3) {
                    0 => forged_entry(&mut random, &mut entries[n]),
                    1 => {
                        forged_entry(&mut random, &mut entries[n]);
                        let FooterEntry { unit, header, .. } = entries[n];
                        forge_header(&mut image, &flash, block, unit.min(900), &header);
                    }
                    _ => {
                        let mut forged = before;
                        forged_entry(&mut random, &mut forged);
                        forge_header(&mut image, &flash, block, before.unit, &forged.header);
                    }
                }
            }
            forge_footer(&mut image, &flash, block, &entries);
        }
        let mut device = match Device::open(FastTier::from_image(&image), options.clone()) {
            Ok(device) => device,
            Err(_) => {
                refused += 1;
                continue;
            }
        };
        for _ in 0..600 {
            let of = key_of(random.below(220));
            let space = SpaceId(1 + random.below(2) as u32);
            let done = match random.below(8) {
                0 => retrieve(&mut device, space, &of).map(|_| KvAnswer::Stored),
                1 => delete(&mut device, space, &of),
                2 if random.below(40) == 0 => {
                    answer(&mut device, KvCommand::DeleteGroup { space, selected: KeyPattern::ALL })
                }
                3 if random.below(40) == 0 => {
                    answer(&mut device, KvCommand::CreateSpace { name: key(b"two"), bytes_max: 0 })
                }
                _ => store(&mut device, space, &of, &value_of(&mut random, 600)),
            };
            errors += u64::from(matches!(done, Err(KvError::Damaged { .. } | KvError::Truncated { .. })));
        }
        let _ = device.close();
    }
    assert!(errors > 30 && refused < 100, "{errors} errors, {refused} refused");
}

/// A footer that lists records that overlap is taken for none, and made anew of the records.
#[test]
fn a_footer_of_overlapping_records_is_made_anew() {
    let options = DeviceOptions::default();
    let sim = closed(&options);
    let mut image = sim.process_kill();
    let content = content_of(&mut Device::open(FastTier::from_image(&image), options.clone()).unwrap());
    let flash = Flash::open(FastTier::from_image(&image)).unwrap();
    let sealed = (0..SMALL.blocks).find_map(|block| {
        let footer = flash.is_in_use(block).then(|| flash.read_footer(block).unwrap())??;
        Some((block, footer.entries))
    });
    let (block, mut entries) = sealed.unwrap();
    entries.insert(1, entries[0]);
    forge_footer(&mut image, &flash, block, &entries);
    let mut device = Device::open(FastTier::from_image(&image), options).unwrap();
    assert_eq!(device.open_report().footers_rebuilt, 1);
    assert_eq!(content_of(&mut device), content);
}

/// A footer that calls a pair a deletion, or says another length or hash of it, with a right checksum: reading the pair is an error and not that it is missing, gc leaves the block as it is, and nothing else is hurt.
#[test]
fn a_footer_that_disagrees_with_its_records_is_told() {
    let options = DeviceOptions::default();
    let sim = closed(&options);
    let forgeries: [fn(&mut FooterEntry); 2] =
        [|entry| entry.header.kind = RecordKind::Tombstone, |entry| entry.header.sequence -= 1];
    for (n, forge) in forgeries.into_iter().enumerate() {
        let mut image = sim.process_kill();
        let mut device = Device::open(FastTier::from_image(&image), options.clone()).unwrap();
        let content = content_of(&mut device);
        let victim = content.iter().find(|((_, of), value)| {
            let place = device.index.find_all(device.hash(SpaceId(1), of))[0].place;
            let open = device.blocks.open(WriteStream::Hot).map(|open| open.block);
            value.is_empty() && Some(device.block_of(place)) != open
        });
        let of = victim.unwrap().0.1.clone();
        let place = device.index.find_all(device.hash(SpaceId(1), &of))[0].place;
        let block = device.block_of(place);
        let mut entries = device.flash.read_footer(block).unwrap().unwrap().entries;
        let first = SMALL.block_offset(block) / UNIT_BYTES as u64;
        forge(entries.iter_mut().find(|entry| first + u64::from(entry.unit) == place).unwrap());
        forge_footer(&mut image, &device.flash, block, &entries);
        let mut device = Device::open(FastTier::from_image(&image), options.clone()).unwrap();
        if n == 0 {
            let read = retrieve(&mut device, SpaceId(1), &of);
            assert!(matches!(read, Err(KvError::Damaged { .. })), "{read:?}");
        }
        let mut random = Random::from_seed(1);
        for _ in 0..6000 {
            let other = key_of(random.below(200));
            if other != of {
                store(&mut device, SpaceId(1), &other, &value_of(&mut random, 600)).unwrap();
            }
        }
        assert!(n == 0 || device.gc_counters().damaged_blocks == 1, "{:?}", device.gc_counters());
    }
}
