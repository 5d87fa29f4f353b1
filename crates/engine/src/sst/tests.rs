//! Sorted tables against a model, under decay, cuts and refusals; and their bytes.

use std::collections::BTreeMap;

use hedgerow_device::{
    CapacityTier, CrashModel, CrashSim, Fault, FileCall, Image, Random, Refusal, Survivors,
};

use super::*;
use crate::ErrorKind;
use crate::log::format::RecordKind;

const STORE: u128 = 0x5_7012_3456_789a_bcde;

/// A record as the model has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Model {
    kind: SstRecordKind,
    sequence: u64,
    expires_at_ms: Option<u64>,
    body: Vec<u8>,
}

type Records = BTreeMap<(u32, Vec<u8>), Model>;

fn sim() -> CrashSim {
    CrashSim::new(CrashModel::Pages, 1 << 20)
}

fn write(tier: &CapacityTier, name: &str, records: &Records, options: SstOptions) -> crate::Result<Sst> {
    let mut writer = SstWriter::create(tier, name, (STORE, 7), options)?;
    for ((table, key), model) in records {
        let record = SstRecord {
            kind: model.kind,
            table: *table,
            key,
            schema_version: 3,
            sequence: model.sequence,
            expires_at_ms: model.expires_at_ms,
            has_field_expiries: false,
            body_bytes: model.body.len(),
        };
        writer.push(&record, |body| body.copy_from_slice(&model.body))?;
    }
    writer.finish(&BlockCache::new(1 << 20))
}

fn open(tier: &CapacityTier, name: &str) -> crate::Result<Sst> {
    Sst::open(tier, name, (STORE, 7), &BlockCache::new(1 << 20))
}

/// A body that compresses to about `left` of a hundred.
fn body(random: &mut Random, len: usize, left: u64) -> Vec<u8> {
    (0..len).map(|_| if random.below(100) < left { random.below(256) as u8 } else { b' ' }).collect()
}

fn records(seed: u64, count: u64, left: u64) -> Records {
    let mut random = Random::from_seed(seed);
    let record = |sequence| {
        let table = [1, 2, 0x0102, u32::MAX][random.below(4) as usize];
        let key_max = if random.below(50) == 0 { 2000 } else { 12 };
        let key_len = 1 + random.below(key_max) as usize;
        let key = (0..key_len).map(|_| b"abc\xff"[random.below(4) as usize]).collect();
        let (kind, len) = match random.below(10) {
            0 => (SstRecordKind::Tombstone, 0),
            1 | 2 => (SstRecordKind::Delta, 1 + random.below(60)),
            3 if random.below(10) == 0 => (SstRecordKind::Row, random.below(60_000)),
            _ => (SstRecordKind::Row, random.below(700)),
        };
        let expires_at_ms =
            (random.below(5) == 0 && kind != SstRecordKind::Tombstone).then(|| random.below(3));
        let body = body(&mut random, len as usize, left);
        ((table, key), Model { kind, sequence: 1000 + sequence, expires_at_ms, body })
    };
    (0..count).map(record).collect()
}

fn model_of(found: &FoundRecord) -> ((u32, Vec<u8>), Model) {
    let record = found.record();
    let kind = match record.kind() {
        RecordKind::Row => SstRecordKind::Row,
        RecordKind::Delta => SstRecordKind::Delta,
        RecordKind::Tombstone => SstRecordKind::Tombstone,
        RecordKind::Batch => panic!("a frame in a sorted table"),
    };
    assert_eq!((record.schema_version(), record.previous()), (3, None));
    let model = Model {
        kind,
        sequence: found.sequence(),
        expires_at_ms: record.expires_at_ms(),
        body: found.body().to_vec(),
    };
    ((found.table(), found.key().to_vec()), model)
}

fn walked(sst: &Sst, keeps_blocks: bool) -> crate::Result<Records> {
    let mut cursor = SstCursor::new(sst, keeps_blocks);
    cursor.seek(&[])?;
    let mut found = Records::new();
    while let Some(record) = cursor.record() {
        let (key, model) = model_of(&record);
        assert!(found.last_key_value().is_none_or(|(last, _)| *last < key), "in order");
        found.insert(key, model);
        cursor.advance()?;
    }
    Ok(found)
}

const EACH: [SstOptions; 4] = [
    SstOptions { compression: Compression::None, block_pages: 1 },
    SstOptions { compression: Compression::None, block_pages: 2 },
    SstOptions { compression: Compression::Lz4, block_pages: 1 },
    SstOptions { compression: Compression::Lz4, block_pages: 2 },
];

#[test]
fn a_table_answers_as_the_model() {
    for (round, options) in (0..12).zip(EACH.into_iter().cycle()) {
        let tier = CapacityTier::simulated(&sim());
        let records = records(round, 1 + round * round * 30, [100, 30, 0][round as usize % 3]);
        write(&tier, "t", &records, options).unwrap();
        let sst = open(&tier, "t").unwrap();
        sst.verify().unwrap();
        for keeps_blocks in [true, false] {
            assert_eq!(walked(&sst, keeps_blocks).unwrap(), records, "round {round}");
        }
        for ((table, key), model) in &records {
            let found = sst.get(&SstKey::new(*table, key)).unwrap().expect("it was written");
            assert_eq!(model_of(&found), ((*table, key.clone()), model.clone()));
            let absent = [key.as_slice(), b"\0"].concat();
            assert!(sst.get(&SstKey::new(*table, &absent)).unwrap().is_none());
            assert!(sst.get(&SstKey::new(3, key)).unwrap().is_none());
        }
        let of_kind = |kind| records.values().filter(|model| model.kind == kind).count() as u64;
        let counts = sst.counts();
        assert_eq!(
            [counts.rows, counts.deltas, counts.tombstones],
            [SstRecordKind::Row, SstRecordKind::Delta, SstRecordKind::Tombstone].map(of_kind)
        );
        let tables: Vec<u32> = sst.tables().iter().map(|table| table.table).collect();
        let mut expected: Vec<u32> = records.keys().map(|(table, _)| *table).collect();
        expected.dedup();
        assert_eq!(tables, expected);
        for table in sst.tables() {
            let mut of_table = records.iter().filter(|((id, _), _)| *id == table.table);
            assert_eq!(
                table.expires,
                of_table.any(|(_, model)| model.expires_at_ms.is_some_and(|ms| ms != 0))
            );
        }
        let sequences = records.values().map(|model| model.sequence);
        assert_eq!(sst.sequences(), sequences.clone().min().unwrap()..=sequences.max().unwrap());
    }
}

#[test]
fn a_cursor_walks_both_ways_from_anywhere() {
    let tier = CapacityTier::simulated(&sim());
    let records = records(77, 2500, 50);
    write(&tier, "t", &records, SstOptions::default()).unwrap();
    let sst = open(&tier, "t").unwrap();
    let keys: Vec<Vec<u8>> = records.keys().map(|(table, key)| composite_key(*table, key)).collect();
    let at = |cursor: &SstCursor| cursor.record().map(|found| composite_key(found.table(), found.key()));
    let mut random = Random::from_seed(5);
    let mut cursor = SstCursor::new(&sst, true);
    for _ in 0..400 {
        let mut key = keys[random.below(keys.len() as u64) as usize].clone();
        match random.below(3) {
            0 => key.truncate(random.below(key.len() as u64 + 1) as usize),
            1 => key.push(random.below(256) as u8),
            _ => {}
        }
        let first = keys.partition_point(|there| *there < key);
        cursor.seek(&key).unwrap();
        assert_eq!(at(&cursor), keys.get(first).cloned());
        let mut n = first;
        for _ in 0..random.below(40) {
            cursor.advance().unwrap();
            n = (n + 1).min(keys.len());
            assert_eq!(at(&cursor), keys.get(n).cloned());
        }
        cursor.seek_below(&key).unwrap();
        assert_eq!(at(&cursor), first.checked_sub(1).map(|n| keys[n].clone()));
        for back in 2..random.below(40) as usize {
            cursor.step_back().unwrap();
            assert_eq!(at(&cursor), first.checked_sub(back).map(|n| keys[n].clone()));
        }
    }
    cursor.seek_last().unwrap();
    assert_eq!(at(&cursor).as_ref(), keys.last());
    cursor.advance().unwrap();
    assert_eq!(at(&cursor), None);
}

#[test]
fn what_compresses_takes_fewer_pages_and_what_does_not_no_more() {
    let bytes = |left, compression| {
        let tier = CapacityTier::simulated(&sim());
        let mut random = Random::from_seed(1);
        let rows = (0..3000u32).map(|n| {
            let model = Model {
                kind: SstRecordKind::Row,
                sequence: 1,
                expires_at_ms: None,
                body: body(&mut random, 1000, left),
            };
            ((1, n.to_be_bytes().to_vec()), model)
        });
        let sst = write(&tier, "t", &rows.collect(), SstOptions { compression, block_pages: 2 }).unwrap();
        sst.verify().unwrap();
        tier.open_file("t").unwrap().bytes().unwrap() as f64
    };
    let raw = bytes(100, Compression::None);
    assert!(raw < 3000.0 * 1_072.0 * 1.16, "{raw} bytes are a good deal more than the rows");
    assert!(bytes(100, Compression::Lz4) <= raw);
    let half = bytes(30, Compression::Lz4);
    assert!(half < 0.75 * raw, "{half} of {raw}");
    let few = bytes(3, Compression::Lz4);
    assert!(few < 0.35 * raw, "{few} of {raw}");
}

#[test]
fn golden_bytes() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let row = |sequence, expires_at_ms, body: &[u8]| Model {
        kind: SstRecordKind::Row,
        sequence,
        expires_at_ms,
        body: body.to_vec(),
    };
    let records: Records = [
        ((7, b"ada".to_vec()), row(1000, Some(0x0102), b"hello")),
        ((7, b"bob".to_vec()), Model { kind: SstRecordKind::Tombstone, ..row(1001, None, b"") }),
        ((9, b"ada".to_vec()), Model { kind: SstRecordKind::Delta, ..row(1002, None, &[b'x'; 40]) }),
    ]
    .into();
    write(&tier, "t", &records, EACH[1]).unwrap();
    tier.sync_names().unwrap();
    let bytes = sim.process_kill().read_file("t").unwrap();
    assert_eq!(bytes.len(), 6 * 4096);
    let hex = |page: usize| {
        let page = &bytes[page * 4096..(page + 1) * 4096];
        let end = 4096 - page.iter().rev().take_while(|&&byte| byte == 0).count();
        page[..end].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let pages: Vec<String> = (0..6).map(hex).collect();
    // Trailing zeros are left out.
    assert_eq!(
        pages,
        [
            "4844475441424c31debc9a7856341270050000000000000007000000000000003ad67ffb",
            concat!(
                "d3236753d8000000d8000000000000000000000040000000e803000000000000000000000000000007000000",
                "0500000003000200010108000201000000000000616461000000000068656c6c6f0000000000000030000000",
                "e903000000000000000000000000000007000000000000000300020003000800626f62000000000000000000",
                "58000000ea030000000000000000000000000000090000002800000003000200020008006164610000000000",
                "7878787878787878787878787878787878787878787878787878787878787878787878787878787840000000",
                "70000000c800000003",
            ),
            "53d139261100000011000000000000000100000001000000000900000001",
            concat!(
                "e803000000000000ea03000000000000010000000000000001000000000000000100000000000000c8000000",
                "0000000007000000000000076164610700000000000009616461020000000700000001000000010000000000",
                "0000000000000000000001000000000000007000000000000000090000000000000000000000000000000100",
                "0000000000000000000000000000580000000000000001000000090000000200000001",
            ),
            "0300000100000828001800000002004400081010001001100004210014",
            "4844475441424c45070000000000000003000000ab00000020f6c9970400000020000000e39744dc06c38d69",
        ]
    );
}

#[test]
fn keys_rise_and_there_are_some() {
    let tier = CapacityTier::simulated(&sim());
    let record = |table, key| SstRecord {
        kind: SstRecordKind::Tombstone,
        table,
        key,
        schema_version: 0,
        sequence: 1,
        expires_at_ms: None,
        has_field_expiries: false,
        body_bytes: 0,
    };
    let mut writer = SstWriter::create(&tier, "t", (STORE, 7), SstOptions::default()).unwrap();
    writer.push(&record(2, b"b"), |_| ()).unwrap();
    for (table, key) in [(2, &b"b"[..]), (2, b"a"), (1, b"z")] {
        assert_eq!(writer.push(&record(table, key), |_| ()).unwrap_err().kind(), ErrorKind::Invalid);
    }
    writer.push(&record(2, b"ba"), |_| ()).unwrap();
    assert_eq!((writer.len(), writer.is_empty()), (2, false));
    assert!(writer.bytes() > 4096);
    writer.finish(&BlockCache::new(1 << 20)).unwrap().verify().unwrap();
    let empty = SstWriter::create(&tier, "u", (STORE, 8), SstOptions::default()).unwrap();
    assert!(empty.is_empty());
    assert_eq!(empty.finish(&BlockCache::new(1 << 20)).unwrap_err().kind(), ErrorKind::Invalid);
}

/// All of a file: what it says of itself, its records one after the other, each looked up.
fn all_of(tier: &CapacityTier, name: &str, expected: &Records) -> crate::Result<Records> {
    let sst = open(tier, name)?;
    sst.verify()?;
    for (table, key) in expected.keys() {
        let found =
            sst.get(&SstKey::new(*table, key))?.expect("neither filter nor index deny a key that is there");
        assert_eq!(model_of(&found).1, expected[&(*table, key.clone())]);
    }
    walked(&sst, false)
}

#[test]
fn every_byte_that_decays_is_noticed_or_means_nothing() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let records = records(9, 25, 40);
    write(&tier, "t", &records, SstOptions::default()).unwrap();
    let bytes = sim.process_kill().read_file("t").unwrap();
    let (mut noticed, mut random) = (0, Random::from_seed(3));
    for at in 0..bytes.len() as u64 {
        let xor = 1 << random.below(8);
        sim.corrupt_file("t", at, xor);
        match all_of(&tier, "t", &records) {
            Ok(found) => assert_eq!(found, records, "byte {at}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                assert!(error.to_string().contains("sorted table 7"), "{error}");
                noticed += 1;
            }
        }
        sim.corrupt_file("t", at, xor);
    }
    let padding = bytes.iter().filter(|&&byte| byte == 0).count();
    assert!(noticed as usize >= bytes.len() - padding, "{noticed} of {}, {padding} zeros", bytes.len());
}

#[test]
fn a_file_of_another_place_is_refused_by_name() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let records = records(9, 400, 100);
    write(&tier, "t", &records, SstOptions::default()).unwrap();
    let cache = BlockCache::new(1 << 20);
    for (of, said) in [((STORE + 1, 7), "another store"), ((STORE, 8), "that of file 7")] {
        let error = Sst::open(&tier, "t", of, &cache).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupted && error.to_string().contains(said), "{error}");
    }
    // The disk put one block where another should be.
    let bytes = sim.process_kill().read_file("t").unwrap();
    let mut file = tier.create("misplaced").unwrap();
    file.append(&[&bytes[..4096], &bytes[3 * 4096..5 * 4096], &bytes[3 * 4096..]].concat()).unwrap();
    file.finish().unwrap();
    let error = all_of(&tier, "misplaced", &records).unwrap_err();
    assert!(error.to_string().contains("page 1 does not match"), "{error}");
    for pages in [0, 1, 5, bytes.len() / 4096 - 1] {
        let name = format!("cut{pages}");
        let mut file = tier.create(&name).unwrap();
        file.append(&bytes[..pages * 4096]).unwrap();
        file.finish().unwrap();
        assert_eq!(open(&tier, &name).unwrap_err().kind(), ErrorKind::Corrupted);
    }
}

/// A power cut while a file is written, at each place: it is whole, or refused, or not there.
#[test]
fn a_cut_file_is_never_taken_for_whole() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let records = records(4, 4000, 100);
    write(&tier, "t", &records, SstOptions::default()).unwrap();
    tier.sync_names().unwrap();
    let (mut walk, mut whole, mut refused) = (sim.walk(), 0, 0);
    loop {
        let kinds = Survivors::EACH.into_iter().chain([Survivors::Random; 12]);
        let images: Vec<Image> =
            kinds.enumerate().map(|(seed, kind)| walk.image(kind, seed as u64)).collect();
        for image in images {
            let left = CapacityTier::simulated(&CrashSim::from_image(&image));
            match left.names().unwrap().is_empty() {
                true => assert!(image.op_index < sim.ops(), "the name was synced"),
                false => match all_of(&left, "t", &records) {
                    Ok(found) => {
                        assert_eq!(found, records);
                        whole += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                        assert!(image.op_index < sim.ops(), "the file was synced: {error}");
                        refused += 1;
                    }
                },
            }
        }
        if !walk.next_op() {
            break;
        }
    }
    assert!(whole > 0 && refused > 0, "{whole}, {refused}");
}

#[test]
fn what_the_disk_refuses_is_said_and_leaves_nothing_half_done() {
    let records = records(6, 3000, 100);
    for refusal in [Refusal::Io, Refusal::NoSpace] {
        for call in [FileCall::Create, FileCall::Write, FileCall::Sync] {
            for after in 0.. {
                let sim = sim();
                let tier = CapacityTier::simulated(&sim);
                sim.fail_file_calls(call, Fault { after, sticky: false, refusal });
                match write(&tier, "t", &records, SstOptions::default()) {
                    Ok(sst) => {
                        assert!(after > 0);
                        assert_eq!(walked(&sst, true).unwrap(), records);
                        break;
                    }
                    Err(error) => {
                        let expected =
                            [ErrorKind::Io, ErrorKind::Full][usize::from(refusal == Refusal::NoSpace)];
                        assert_eq!(error.kind(), expected, "{error}");
                        if call != FileCall::Create {
                            assert_eq!(open(&tier, "t").is_ok(), call == FileCall::Sync);
                        }
                    }
                }
            }
        }
    }
    // A read that failed is tried again by the next look.
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    write(&tier, "t", &records, SstOptions::default()).unwrap();
    let (table, key) = records.keys().next().unwrap();
    let (sst, key) = (open(&tier, "t").unwrap(), SstKey::new(*table, key));
    for after in 0..2 {
        sim.fail_file_calls(FileCall::Read, Fault { after, sticky: false, refusal: Refusal::Io });
        assert_eq!(sst.get(&key).unwrap_err().kind(), ErrorKind::Io);
        sim.clear_faults();
    }
    assert!(sst.get(&key).unwrap().is_some());
    sim.fail_file_calls(FileCall::Read, Fault { after: 0, sticky: true, refusal: Refusal::Io });
    assert!(sst.get(&key).unwrap().is_some(), "the blocks are in the cache");
}

#[test]
fn the_cache_keeps_to_its_bytes() {
    let tier = CapacityTier::simulated(&sim());
    let records = records(8, 20_000, 100);
    write(&tier, "t", &records, SstOptions::default()).unwrap();
    let cache = BlockCache::new(300_000);
    let sst = Sst::open(&tier, "t", (STORE, 7), &cache).unwrap();
    walked(&sst, true).unwrap();
    assert!((100_000..=300_000).contains(&cache.bytes()), "{} bytes", cache.bytes());
    let memory = sst.memory_bytes() as f64 / records.len() as f64;
    assert!(memory < 2.0, "{memory} bytes of memory a key");
}
