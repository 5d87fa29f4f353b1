//! Sorted tables against a model, under decay, cuts and refusals; and their bytes.

use std::collections::BTreeMap;

use hedgerow_device::{
    CapacityTier, CrashModel, CrashSim, Fault, FileCall, Image, Random, Refusal, Survivors, WritePath, crc32c,
};

use super::format::{HEAD_BYTES, IndexBound, PageRange, SstSummary};
use super::*;
use crate::log::format::RecordKind;
use crate::{ErrorKind, limits};

mod block_reads;

const ID: SstId = SstId { store: 0x5_7012_3456_789a_bcde, number: 7 };

/// A record as the model has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Model {
    kind: SstRecordKind,
    sequence: u64,
    expires_at_ms: Option<u64>,
    body: Vec<u8>,
}

const NAME: &str = "00000007.sst";

type Records = BTreeMap<(u32, Vec<u8>), Model>;

fn sim() -> CrashSim {
    CrashSim::new(CrashModel::Pages, 1 << 20)
}

fn write(tier: &CapacityTier, records: &Records, options: SstOptions) -> crate::Result<Sst> {
    let mut writer = SstWriter::create(tier, ID, options)?;
    push_all(&mut writer, records)?;
    writer.finish(&BlockCache::new(1 << 20))
}

fn push_all(writer: &mut SstWriter, records: &Records) -> crate::Result<()> {
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
    Ok(())
}

fn open(tier: &CapacityTier) -> crate::Result<Sst> {
    Sst::open(tier, ID, &BlockCache::new(1 << 20))
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
    let (mut cursor, blocks) = (SstCursor::new(sst), &mut WalkBlocks::Disk { keeps: keeps_blocks });
    cursor.seek(&[], blocks)?;
    let mut found = Records::new();
    while let Some(record) = cursor.record() {
        let (key, model) = model_of(&record);
        assert!(found.last_key_value().is_none_or(|(last, _)| *last < key), "in order");
        found.insert(key, model);
        cursor.advance(blocks)?;
    }
    Ok(found)
}

const EACH: [SstOptions; 4] = [
    SstOptions { compression: Compression::None, block_pages: Some(1), path: WritePath::PastPageCache },
    SstOptions { compression: Compression::None, block_pages: Some(2), path: WritePath::PastPageCache },
    SstOptions { compression: Compression::Lz4, block_pages: Some(1), path: WritePath::PastPageCache },
    SstOptions { compression: Compression::Lz4, block_pages: Some(2), path: WritePath::PastPageCache },
];

#[test]
fn a_table_answers_as_the_model() {
    for (round, options) in (0..12).zip(EACH.into_iter().cycle()) {
        let tier = CapacityTier::simulated(&sim());
        let records = records(round, 1 + round * round * 30, [100, 30, 0][round as usize % 3]);
        write(&tier, &records, options).unwrap();
        let sst = open(&tier).unwrap();
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
            let longest = of_table.clone().map(|(_, model)| model.body.len() as u64).max();
            assert_eq!(Some(table.longest_body), longest);
            assert_eq!(
                table.expires,
                of_table.any(|(_, model)| model.expires_at_ms.is_some_and(|ms| ms != 0))
            );
        }
        let sequences = records.values().map(|model| model.sequence);
        assert_eq!(sst.sequences(), sequences.clone().min().unwrap()..=sequences.max().unwrap());
    }
}

/// Seeks keys at random and walks from them, both ways.
fn walk_at_random(sst: &Sst, records: &Records, seed: u64) {
    let keys: Vec<Vec<u8>> = records.keys().map(|(table, key)| composite_key(*table, key)).collect();
    let at = |cursor: &SstCursor| cursor.record().map(|found| composite_key(found.table(), found.key()));
    let mut random = Random::from_seed(seed);
    for keeps_blocks in [true, false] {
        let (mut cursor, blocks) = (SstCursor::new(sst), &mut WalkBlocks::Disk { keeps: keeps_blocks });
        for _ in 0..200 {
            let mut key = keys[random.below(keys.len() as u64) as usize].clone();
            match random.below(3) {
                0 => key.truncate(random.below(key.len() as u64 + 1) as usize),
                1 => key.push(random.below(256) as u8),
                _ => {}
            }
            let first = keys.partition_point(|there| *there < key);
            cursor.seek(&key, blocks).unwrap();
            assert_eq!(at(&cursor), keys.get(first).cloned());
            let mut n = first;
            for _ in 0..random.below(40) {
                cursor.advance(blocks).unwrap();
                n = (n + 1).min(keys.len());
                assert_eq!(at(&cursor), keys.get(n).cloned());
            }
            cursor.seek_below(&key, blocks).unwrap();
            assert_eq!(at(&cursor), first.checked_sub(1).map(|n| keys[n].clone()));
            for back in 2..random.below(40) as usize {
                cursor.step_back(blocks).unwrap();
                assert_eq!(at(&cursor), first.checked_sub(back).map(|n| keys[n].clone()));
            }
        }
        cursor.seek_last(blocks).unwrap();
        assert_eq!(at(&cursor).as_ref(), keys.last());
        cursor.advance(blocks).unwrap();
        cursor.advance(blocks).unwrap();
        assert_eq!(at(&cursor), None);
        cursor.step_back(blocks).unwrap();
        assert_eq!(at(&cursor), None, "from none to none");
        cursor.seek_below(&[0xff; 4], blocks).unwrap();
        let mut back: Vec<Vec<u8>> = Vec::new();
        while let Some(key) = at(&cursor) {
            back.push(key);
            cursor.step_back(blocks).unwrap();
        }
        back.reverse();
        let below = keys.partition_point(|key| **key < [0xff; 4][..]);
        assert!(back == keys[..below], "all of them backwards");
    }
}

#[test]
fn a_cursor_walks_both_ways_from_anywhere() {
    let tier = CapacityTier::simulated(&sim());
    let records = records(77, 2500, 50);
    write(&tier, &records, SstOptions::default()).unwrap();
    walk_at_random(&open(&tier).unwrap(), &records, 5);
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
        let sst = write(
            &tier,
            &rows.collect(),
            SstOptions { compression, block_pages: Some(2), ..SstOptions::default() },
        )
        .unwrap();
        sst.verify().unwrap();
        tier.open_file(NAME).unwrap().bytes().unwrap() as f64
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
    write(&tier, &records, EACH[1]).unwrap();
    tier.sync_names().unwrap();
    let bytes = sim.process_kill().read_file(NAME).unwrap();
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
            "4844475441424c32debc9a78563412700500000000000000070000000000000000000000bbe313fd",
            concat!(
                "2f027ac5d8000000d8000000000100000000000040000000e803000000000000000000000000000007000000",
                "0500000003000200010108000201000000000000616461000000000068656c6c6f0000000000000030000000",
                "e903000000000000000000000000000007000000000000000300020003000800626f62000000000000000000",
                "58000000ea030000000000000000000000000000090000002800000003000200020008006164610000000000",
                "7878787878787878787878787878787878787878787878787878787878787878787878787878787840000000",
                "70000000c800000003",
            ),
            "b43cead01700000017000000000300000100000007000000000000076164610000010001",
            concat!(
                "e803000000000000ea03000000000000010000000000000001000000000000000100000000000000c8000000",
                "0000000007000000000000076164610700000000000009616461020000000700000001000000050000000000",
                "0000010000000000000000000000000000000100000000000000700000000000000009000000000000002800",
                "0000000000000000000000000000010000000000000000000000000000005800000000000000010000000f00",
                "0000020000000100000000000007616461",
            ),
            "0300000100000828001800000002004400081010001001100004210014",
            "4844475441424c45070000000000000003000000c10000006e09856e0400000020000000aa895f1c685aa81b",
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
    let mut writer = SstWriter::create(&tier, ID, SstOptions::default()).unwrap();
    writer.push(&record(2, b"b"), |_| ()).unwrap();
    for (table, key) in [(2, &b"b"[..]), (2, b"a"), (1, b"z")] {
        assert_eq!(writer.push(&record(table, key), |_| ()).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let long = [0; limits::KEY_BYTES_MAX + 1];
    for key in [&b""[..], &long] {
        assert_eq!(writer.push(&record(3, key), |_| ()).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let huge = SstRecord { body_bytes: limits::BODY_BYTES_MAX + 1, ..record(3, b"huge") };
    assert_eq!(writer.push(&huge, |_| ()).unwrap_err().kind(), ErrorKind::Invalid);
    writer.push(&record(2, b"ba"), |_| ()).unwrap();
    assert_eq!((writer.len(), writer.is_empty()), (2, false));
    assert!(writer.bytes() > 4096);
    writer.finish(&BlockCache::new(1 << 20)).unwrap().verify().unwrap();
    let empty = SstWriter::create(&tier, SstId { number: 8, ..ID }, SstOptions::default()).unwrap();
    assert!(empty.is_empty());
    assert_eq!(empty.finish(&BlockCache::new(1 << 20)).unwrap_err().kind(), ErrorKind::Invalid);
}

/// All of a file: what it says of itself, its records one after the other, each looked up.
fn all_of(tier: &CapacityTier, expected: &Records) -> crate::Result<Records> {
    let sst = open(tier)?;
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
    write(&tier, &records, SstOptions::default()).unwrap();
    let bytes = sim.process_kill().read_file(NAME).unwrap();
    let (mut noticed, mut random) = (0, Random::from_seed(3));
    for at in 0..bytes.len() as u64 {
        let xor = 1 << random.below(8);
        sim.corrupt_file(NAME, at, xor);
        match all_of(&tier, &records) {
            Ok(found) => assert_eq!(found, records, "byte {at}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                assert!(error.to_string().contains("sorted table 00000007.sst"), "{error}");
                noticed += 1;
            }
        }
        sim.corrupt_file(NAME, at, xor);
    }
    let padding = bytes.iter().filter(|&&byte| byte == 0).count();
    assert!(noticed as usize >= bytes.len() - padding, "{noticed} of {}, {padding} zeros", bytes.len());
}

/// Makes the file `id` of these bytes.
fn put_file(tier: &CapacityTier, id: SstId, bytes: &[u8]) {
    let mut file = tier.create(&id.file_name(), WritePath::PastPageCache).unwrap();
    file.append(bytes).unwrap();
    file.finish().unwrap();
}

#[test]
fn a_file_of_another_place_is_refused_by_name() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let records = records(9, 400, 100);
    write(&tier, &records, SstOptions::default()).unwrap();
    let bytes = sim.process_kill().read_file(NAME).unwrap();
    put_file(&tier, SstId { number: 8, ..ID }, &bytes);
    for (id, said) in [
        (SstId { store: ID.store + 1, ..ID }, "another store"),
        (SstId { number: 8, ..ID }, "that of file 7"),
    ] {
        let error = Sst::open(&tier, id, &BlockCache::new(1 << 20)).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupted && error.to_string().contains(said), "{error}");
    }
    // The disk put one block where another should be.
    tier.remove(NAME).unwrap();
    put_file(&tier, ID, &[&bytes[..4096], &bytes[3 * 4096..5 * 4096], &bytes[3 * 4096..]].concat());
    let error = all_of(&tier, &records).unwrap_err();
    assert!(error.to_string().contains("page 1 does not match"), "{error}");
    for pages in [0, 1, 5, bytes.len() / 4096 - 1] {
        tier.remove(NAME).unwrap();
        put_file(&tier, ID, &bytes[..pages * 4096]);
        assert_eq!(open(&tier).unwrap_err().kind(), ErrorKind::Corrupted);
    }
}

/// A file of an older store, at the same number and place: as after a directory was made anew and a write got lost.
#[test]
fn a_block_of_another_store_does_not_verify() {
    let records = records(9, 400, 100);
    let bytes_of = |store| {
        let sim = sim();
        let tier = CapacityTier::simulated(&sim);
        let mut writer = SstWriter::create(&tier, SstId { store, ..ID }, EACH[1]).unwrap();
        push_all(&mut writer, &records).unwrap();
        writer.finish(&BlockCache::new(1 << 20)).unwrap();
        sim.process_kill().read_file(NAME).unwrap()
    };
    let (mut bytes, other) = (bytes_of(ID.store), bytes_of(ID.store + 1));
    assert_eq!(bytes.len(), other.len());
    bytes[4096..3 * 4096].copy_from_slice(&other[4096..3 * 4096]);
    let tier = CapacityTier::simulated(&sim());
    put_file(&tier, ID, &bytes);
    let error = open(&tier).unwrap().verify().unwrap_err();
    assert!(error.to_string().contains("page 1 does not match"), "{error}");
}

/// What a later build wrote is told by name, and is no damage.
#[test]
fn what_this_build_does_not_know_is_told_apart_from_damage() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let records = records(9, 20, 100);
    write(&tier, &records, EACH[1]).unwrap();
    let bytes = sim.process_kill().read_file(NAME).unwrap();
    type Change = fn(&mut [u8]);
    let header: [(Change, &str); 2] =
        [(|page| page[7] = b'3', "format 3"), (|page| page[32] = 4, "needs 0x4")];
    for (change, said) in header {
        let mut changed = bytes.clone();
        change(&mut changed);
        let checksum = crc32c(0, &changed[..36]);
        changed[36..40].copy_from_slice(&checksum.to_le_bytes());
        tier.remove(NAME).unwrap();
        put_file(&tier, ID, &changed);
        let error = open(&tier).unwrap_err();
        assert!(error.kind() == ErrorKind::Version && error.to_string().contains(said), "{error}");
    }
    let stored = HEAD_BYTES + u32::from_le_bytes(bytes[4100..4104].try_into().unwrap()) as usize;
    let block: [(Change, &str, ErrorKind); 4] = [
        (|block| block[12] = 9, "codec 9", ErrorKind::Version),
        (|block| block[HEAD_BYTES + 37] |= 32, "flags 32", ErrorKind::Version),
        (|block| block[HEAD_BYTES + 36] = 4, "no record of a row", ErrorKind::Corrupted),
        (|block| block[13] = 2, "another kind", ErrorKind::Corrupted),
    ];
    for (change, said, kind) in block {
        let mut changed = bytes.clone();
        let block = &mut changed[4096..4096 + stored];
        change(block);
        let checksum = ID.sum(1, &block[4..]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        tier.remove(NAME).unwrap();
        put_file(&tier, ID, &changed);
        let error = open(&tier).unwrap().verify().unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(said), "{error}");
    }
}

/// An index that verifies and leads nowhere: an error, whatever it says.
#[test]
fn an_index_that_leads_nowhere_is_damage() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let records = records(9, 20, 100);
    write(&tier, &records, EACH[1]).unwrap();
    let bytes = sim.process_kill().read_file(NAME).unwrap();
    let index_page = (1..).find(|page| bytes[page * 4096 + 13] == 3 && bytes[page * 4096 + 12] == 0).unwrap();
    let stored =
        HEAD_BYTES + u32::from_le_bytes(bytes[index_page * 4096 + 4..][..4].try_into().unwrap()) as usize;
    let index_block = &bytes[index_page * 4096..][..stored];
    let bounds = u32::from_le_bytes(index_block[stored - 4..].try_into().unwrap()) as usize;
    let places: [(u32, u16); 6] =
        [(0, 1), (1, 0), (1, u16::MAX), (u32::MAX, 1), (index_page as u32, 1), (1 << 20, 2)];
    for place in places {
        let mut changed = bytes.clone();
        let block = &mut changed[index_page * 4096..][..stored];
        block[HEAD_BYTES..HEAD_BYTES + 4].copy_from_slice(&place.0.to_le_bytes());
        let of_first = stored - 4 - 4 * bounds;
        block[of_first + 2..of_first + 4].copy_from_slice(&place.1.to_le_bytes());
        let checksum = ID.sum(index_page as u32, &block[4..]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        tier.remove(NAME).unwrap();
        put_file(&tier, ID, &changed);
        let sst = open(&tier).unwrap();
        let (table, key) = records.keys().next().unwrap();
        for _ in 0..2 {
            let error = sst.get(&SstKey::new(*table, key)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{place:?}: {error}");
            assert_eq!(walked(&sst, true).unwrap_err().kind(), ErrorKind::Corrupted);
        }
    }
}

/// A block of records that verifies and has an entry end where none can: an error, whatever it says.
#[test]
fn entries_that_end_anywhere_are_damage() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let records = records(9, 20, 100);
    write(&tier, &records, EACH[1]).unwrap();
    let bytes = sim.process_kill().read_file(NAME).unwrap();
    let page = (1..).find(|page| bytes[page * 4096 + 13] == 1 && bytes[page * 4096 + 12] == 0).unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[page * 4096 + at..][..4].try_into().unwrap());
    let stored = HEAD_BYTES + number(4) as usize;
    let ends = stored - 4 - 4 * number(stored - 4) as usize;
    for (nth, by) in [(0, 1), (0, 4), (0, u32::MAX), (1, 2), (0, 8)] {
        let mut changed = bytes.clone();
        let block = &mut changed[page * 4096..][..stored];
        let at = ends + 4 * nth;
        block[at..at + 4].copy_from_slice(&number(at).wrapping_add(by).to_le_bytes());
        let checksum = ID.sum(page as u32, &block[4..]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        tier.remove(NAME).unwrap();
        put_file(&tier, ID, &changed);
        let sst = open(&tier).unwrap();
        let told = format!("end {nth} by {by}");
        assert_eq!(walked(&sst, true).unwrap_err().kind(), ErrorKind::Corrupted, "{told}");
        assert_eq!(sst.verify().unwrap_err().kind(), ErrorKind::Corrupted, "{told}");
    }
}

/// A summary whose bounds do not rise, whatever they are: it is not searched.
#[test]
fn bounds_out_of_order_are_damage() {
    let bound = |bound: &[u8]| IndexBound { pages: PageRange { first: 1, count: 1 }, bound: bound.into() };
    let summary = |bounds: &[&[u8]]| SstSummary {
        keys: [b"\0\0\0\x01a".to_vec().into(), b"\0\0\0\x01b".to_vec().into()],
        index: bounds.iter().map(|bytes| bound(bytes)).collect(),
        ..SstSummary::default()
    };
    assert!(SstSummary::decode(&summary(&[b"", b"b1", b"b2"]).encode(), ID).is_ok());
    let wrong: [&[&[u8]]; 3] = [&[b"b1", b"", b"b2"], &[b"b1", b"b1"], &[b"b2", b"b1"]];
    for bounds in wrong {
        let error = SstSummary::decode(&summary(bounds).encode(), ID).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{bounds:?}: {error}");
    }
}

/// Long keys that begin alike, but not all of them, make long bounds, and so many index blocks.
fn far_apart(count: u64) -> Records {
    let record = |n: u64| {
        let key =
            [&(n / 5).to_be_bytes()[..], &[b'p'; 300], &(n * 0x0101).to_be_bytes(), &[b's'; 20]].concat();
        let kind = if n.is_multiple_of(5) { SstRecordKind::Tombstone } else { SstRecordKind::Row };
        let body = if n.is_multiple_of(5) { Vec::new() } else { n.to_le_bytes().repeat(n as usize % 40) };
        ((1 + (n / 400) as u32, key), Model { kind, sequence: n, expires_at_ms: None, body })
    };
    (0..count).map(record).collect()
}

#[test]
fn many_index_blocks_answer_as_one() {
    let tier = CapacityTier::simulated(&sim());
    let records = far_apart(1200);
    write(&tier, &records, EACH[0]).unwrap();
    let sst = open(&tier).unwrap();
    assert!(sst.index_blocks() >= 8, "{} index blocks", sst.index_blocks());
    assert_eq!(all_of(&tier, &records).unwrap(), records);
    for (table, key) in records.keys() {
        let absent = [key.as_slice(), b"\0"].concat();
        assert!(sst.get(&SstKey::new(*table, &absent)).unwrap().is_none());
    }
    walk_at_random(&sst, &records, 11);
}

#[test]
fn the_longest_keys_and_large_rows_are_there() {
    let tier = CapacityTier::simulated(&CrashSim::new(CrashModel::Pages, 1 << 20));
    let mut random = Random::from_seed(8);
    let key = |last| [vec![b'k'; limits::KEY_BYTES_MAX - 1], vec![last]].concat();
    let large = |body: Vec<u8>| Model { kind: SstRecordKind::Row, sequence: 1, expires_at_ms: None, body };
    let records: Records = [
        ((1, vec![0]), large(body(&mut random, 3 << 20, 100))),
        ((1, key(b'a')), large(vec![])),
        ((1, key(b'b')), large(vec![7; 2 << 20])),
        ((1, key(b'c')), large(vec![1])),
        ((2, key(b'a')), large(body(&mut random, 100_000, 30))),
    ]
    .into();
    for options in EACH {
        write(&tier, &records, options).unwrap();
        assert_eq!(all_of(&tier, &records).unwrap(), records);
        walk_at_random(&open(&tier).unwrap(), &records, 3);
        tier.remove(NAME).unwrap();
    }
    let alone: Records = [((9, b"only".to_vec()), large(vec![]))].into();
    write(&tier, &alone, EACH[0]).unwrap();
    walk_at_random(&open(&tier).unwrap(), &alone, 4);
}

/// A power cut while a file is written, at each place: it is whole, or refused, or not there.
#[test]
fn a_cut_file_is_never_taken_for_whole() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let records = records(4, 4000, 100);
    write(&tier, &records, SstOptions::default()).unwrap();
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
                false => match all_of(&left, &records) {
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
                match write(&tier, &records, SstOptions::default()) {
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
                            assert_eq!(open(&tier).is_ok(), call == FileCall::Sync);
                        }
                    }
                }
            }
        }
    }
    // A read that failed is tried again by the next look.
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    write(&tier, &records, SstOptions::default()).unwrap();
    let (table, key) = records.keys().next().unwrap();
    let (sst, key) = (open(&tier).unwrap(), SstKey::new(*table, key));
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
    write(&tier, &records, SstOptions::default()).unwrap();
    let cache = BlockCache::with_index(250_000, 50_000);
    let sst = Sst::open(&tier, ID, &cache).unwrap();
    walked(&sst, true).unwrap();
    assert!((100_000..=300_000).contains(&cache.bytes()), "{} bytes", cache.bytes());
    // What the index does not take is not given to records, nor the other way about.
    for (bytes, index_bytes) in [(250_000, 1), (1, 50_000)] {
        let cache = BlockCache::with_index(bytes, index_bytes);
        walked(&Sst::open(&tier, ID, &cache).unwrap(), true).unwrap();
        assert!((1..=bytes + index_bytes).contains(&cache.bytes()), "{} bytes", cache.bytes());
    }
    let memory = sst.memory_bytes() as f64 / records.len() as f64;
    assert!(memory < 2.0, "{memory} bytes of memory a key");
}

/// Parts of a cache are as large as the largest blocks of several records, however many cores would like more of them.
#[test]
fn the_cache_keeps_the_largest_blocks() {
    let tier = CapacityTier::simulated(&sim());
    let row = |n: u32| {
        let model =
            Model { kind: SstRecordKind::Row, sequence: 1, expires_at_ms: None, body: vec![b' '; 1000] };
        ((1, n.to_be_bytes().to_vec()), model)
    };
    let records: Records = (0..2000).map(row).collect();
    write(
        &tier,
        &records,
        SstOptions { compression: Compression::Lz4, block_pages: Some(64), ..SstOptions::default() },
    )
    .unwrap();
    let cache = BlockCache::new(4 << 20);
    let sst = Sst::open(&tier, ID, &cache).unwrap();
    let (table, key) = records.last_key_value().unwrap().0;
    let found = sst.get(&SstKey::new(*table, key)).unwrap().expect("it was written");
    assert!(found.block_bytes() > 800_000, "{} bytes are no large block", found.block_bytes());
    assert!(cache.bytes() > 800_000, "{} bytes are kept", cache.bytes());
}
