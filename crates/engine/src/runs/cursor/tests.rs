//! Walks over random runs against a model and against look-ups; and over damaged ones.

use std::collections::BTreeMap;

use hedgerow_device::{CapacityTier, CrashModel, CrashSim, Random};

use super::*;
use crate::ErrorKind;
use crate::manifest::version::{FileRange, SstChange, SstVersion};
use crate::sst::{
    BlockCache, Compression, Sst, SstId, SstKey, SstOptions, SstRecord, SstRecordKind, SstWriter,
};

const STORE: u128 = 7;
const TABLES: [u32; 3] = [1, 2, u32::MAX];

/// A record of the model: the sequence is in no other.
#[derive(Debug, Clone, Copy)]
struct Model {
    kind: SstRecordKind,
    sequence: u64,
    body_bytes: usize,
}

type Records = BTreeMap<(u32, Vec<u8>), Model>;
/// A key, and the sequences of what counts of it.
type Met = (Vec<u8>, Vec<u64>);
type Bounds<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// Runs, and of each, newest first, the records that count.
struct Fixture {
    sim: CrashSim,
    tier: CapacityTier,
    version: SstVersion,
    counting: Vec<Records>,
}

impl Fixture {
    fn new() -> Fixture {
        let sim = CrashSim::new(CrashModel::Pages, 1 << 20);
        let tier = CapacityTier::simulated(&sim);
        let first = SstChange::Next { number: 1, run: 1 };
        let version = SstVersion::default().after(&[first]).unwrap();
        Fixture { sim, tier, version, counting: Vec::new() }
    }

    /// Writes a file; its number.
    fn write(&mut self, records: &Records) -> u64 {
        let number = self.version.next_number;
        let next = SstChange::Next { number: number + 1, run: self.version.next_run };
        self.version = self.version.after(&[next]).unwrap();
        let options =
            SstOptions { compression: Compression::None, block_pages: Some(1), ..SstOptions::default() };
        let mut writer = SstWriter::create(&self.tier, SstId { store: STORE, number }, options).unwrap();
        for ((table, key), model) in records {
            let record = SstRecord {
                kind: model.kind,
                table: *table,
                key,
                schema_version: 1,
                sequence: model.sequence,
                expires_at_ms: None,
                has_field_expiries: false,
                body_bytes: model.body_bytes,
            };
            writer.push(&record, |body| body.fill(1)).unwrap();
        }
        drop(writer.finish(&BlockCache::new(1 << 20)).unwrap());
        number
    }

    /// A run, newer than all before, of files and the ranges of them that count.
    fn add_run(&mut self, files: &[(Records, Vec<[Vec<u8>; 2]>)]) {
        let (run, mut counting) = (self.version.next_run, Records::new());
        let next = SstChange::Next { number: self.version.next_number, run: run + 1 };
        self.version = self.version.after(&[next]).unwrap();
        for (records, ranges) in files {
            let number = self.write(records);
            for keys in ranges {
                let range = FileRange { number, keys: keys.clone().map(Vec::into_boxed_slice) };
                self.version = self.version.after(&[SstChange::Add { run, range }]).unwrap();
                let counts = |(table, key): &(u32, Vec<u8>)| {
                    (&keys[0]..=&keys[1]).contains(&&composite_key(*table, key))
                };
                counting.extend(
                    records.iter().filter(|(key, _)| counts(key)).map(|(key, model)| (key.clone(), *model)),
                );
            }
        }
        self.counting.insert(0, counting);
    }

    fn open(&self) -> Arc<OpenRuns> {
        let cache = BlockCache::new(1 << 20);
        let open = |number| Sst::open(&self.tier, SstId { store: STORE, number }, &cache);
        Arc::new(OpenRuns::of(&self.version, 1, open).unwrap())
    }

    /// The sequences of what counts of a key.
    fn versions(&self, key: &(u32, Vec<u8>), upto: u64) -> Vec<u64> {
        let mut found = Vec::new();
        for model in self.counting.iter().filter_map(|run| run.get(key)) {
            if model.sequence > upto {
                continue;
            }
            if model.kind != SstRecordKind::Tombstone {
                found.push(model.sequence);
            }
            if model.kind != SstRecordKind::Delta {
                break;
            }
        }
        found
    }

    /// What a walk forward meets.
    fn expected(&self, table: u32, bounds: Bounds<'_>, upto: u64) -> Vec<Met> {
        let mut keys: Vec<&(u32, Vec<u8>)> = self.counting.iter().flat_map(Records::keys).collect();
        keys.sort();
        keys.dedup();
        let of_table = keys.into_iter().filter(|(of, key)| {
            use std::ops::RangeBounds;
            *of == table && bounds.contains(key.as_slice())
        });
        let found = of_table.map(|key| (key.1.clone(), self.versions(key, upto)));
        found.filter(|(_, versions)| !versions.is_empty()).collect()
    }
}

fn found(versions: &FoundVersions) -> Met {
    let records = versions.records();
    assert!(records.iter().all(|record| record.key() == records[0].key()));
    (records[0].key().to_vec(), records.iter().map(FoundRecord::sequence).collect())
}

/// What a walk meets up to an error or its end, behind which is nothing more.
fn walk(cursor: &mut RunsCursor) -> (Vec<Met>, Option<Error>) {
    let mut met = Vec::new();
    let failed = loop {
        match cursor.next(&mut WalkBlocks::Disk { keeps: true }) {
            Ok(Some(versions)) => met.push(found(&versions)),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    for _ in 0..2 {
        assert!(cursor.next(&mut WalkBlocks::Disk { keeps: true }).unwrap().is_none());
    }
    (met, failed)
}

fn random_key(random: &mut Random) -> Vec<u8> {
    (0..1 + random.below(3)).map(|_| [0, b'a', b'b', b'c', 0xFF][random.below(5) as usize]).collect()
}

/// A part of `keys`, which are composite: the ends of one or two ranges, at keys or beside them.
fn random_ranges(keys: &[Vec<u8>], random: &mut Random) -> Vec<[Vec<u8>; 2]> {
    let mut cuts: Vec<Vec<u8>> = (0..4)
        .map(|_| {
            let mut key = keys[random.below(keys.len() as u64) as usize].clone();
            if random.below(3) == 0 {
                key.push(b'b');
            }
            key
        })
        .collect();
    cuts.sort();
    match random.below(3) {
        0 => vec![[keys[0].clone(), keys[keys.len() - 1].clone()]],
        1 => vec![[cuts[0].clone(), cuts[3].clone()]],
        _ if cuts[1] < cuts[2] => {
            vec![[cuts[0].clone(), cuts[1].clone()], [cuts[2].clone(), cuts[3].clone()]]
        }
        _ => vec![[cuts[1].clone(), cuts[2].clone()]],
    }
}

fn random_runs(random: &mut Random) -> Fixture {
    let mut fixture = Fixture::new();
    let mut sequence = 0;
    for _ in 0..1 + random.below(5) {
        let mut records = Records::new();
        for _ in 0..1 + random.below(120) {
            sequence += 1;
            let kind = match random.below(6) {
                0 | 1 => SstRecordKind::Delta,
                2 => SstRecordKind::Tombstone,
                _ => SstRecordKind::Row,
            };
            let body_bytes = if kind == SstRecordKind::Tombstone { 0 } else { random.below(600) as usize };
            let table = TABLES[random.below(3) as usize];
            records.insert((table, random_key(random)), Model { kind, sequence, body_bytes });
        }
        let mut files = Vec::new();
        let all: Vec<_> = records.into_iter().collect();
        for chunk in all.chunks(1 + random.below(60) as usize) {
            let keys: Vec<Vec<u8>> =
                chunk.iter().map(|((table, key), _)| composite_key(*table, key)).collect();
            // Ends beside the last key could overlap the file that follows.
            let (last, ranges) = (keys[keys.len() - 1].clone(), random_ranges(&keys, random));
            let trimmed = |[least, greatest]: [Vec<u8>; 2]| [least, greatest.min(last.clone())];
            let ranges = ranges.into_iter().map(trimmed).filter(|[least, greatest]| least <= greatest);
            files.push((chunk.iter().cloned().collect(), ranges.collect()));
        }
        fixture.add_run(&files);
    }
    fixture
}

fn random_bound<'k>(key: &'k [u8], random: &mut Random) -> Bound<&'k [u8]> {
    match random.below(3) {
        0 => Bound::Included(key),
        1 => Bound::Excluded(key),
        _ => Bound::Unbounded,
    }
}

#[test]
fn a_walk_meets_what_look_ups_find() {
    let (mut met_any, mut met_none) = (0, 0);
    for seed in 0..60 {
        let mut random = Random::from_seed(seed);
        let fixture = random_runs(&mut random);
        let runs = fixture.open();
        for _ in 0..30 {
            let table = [1, 2, 3, u32::MAX][random.below(4) as usize];
            let (from, to) = (random_key(&mut random), random_key(&mut random));
            let bounds = (random_bound(&from, &mut random), random_bound(&to, &mut random));
            let upto = [u64::MAX, random.below(300)][random.below(2) as usize];
            let expected = fixture.expected(table, bounds, upto);
            met_any += expected.len();
            met_none += usize::from(expected.is_empty());
            let (met, failed) = walk(&mut RunsCursor::new(&runs, table, bounds, false, upto));
            assert_eq!((&met, failed.is_none()), (&expected, true), "{seed}: {table} {bounds:?} {upto}");
            let (mut back, failed) = walk(&mut RunsCursor::new(&runs, table, bounds, true, upto));
            back.reverse();
            assert_eq!((&back, failed.is_none()), (&expected, true), "{seed}: {table} {bounds:?} {upto}");
            for key_and_versions in &met {
                let looked_up = runs.find(&SstKey::new(table, &key_and_versions.0), upto).unwrap();
                assert_eq!(found(&looked_up), *key_and_versions);
            }
        }
    }
    assert!(met_any > 10_000 && met_none > 50, "{met_any} keys, {met_none} times none");
}

/// Long rows of table 1, four in a block.
fn rows(keys: impl Iterator<Item = u8>, from: u64) -> Records {
    let row = |n: u8| Model { kind: SstRecordKind::Row, sequence: from + u64::from(n), body_bytes: 900 };
    keys.map(|n| ((1, vec![n]), row(n))).collect()
}

/// A file of which all counts.
fn whole(records: Records) -> (Records, Vec<[Vec<u8>; 2]>) {
    let ends = [records.first_key_value(), records.last_key_value()];
    let ends = ends.map(|end| composite_key(1, &end.unwrap().0.1));
    (records, vec![ends])
}

/// One round of reading for the index of all runs, and one for their first records; none of them waits for another.
#[test]
fn a_walk_waits_for_the_first_blocks_of_all_runs_together() {
    let mut fixture = Fixture::new();
    (0..20u8).for_each(|of| fixture.add_run(&[whole(rows((of..200).step_by(20), 1000 * u64::from(of)))]));
    fixture.sim.files_at_hand(false);
    for (reverse, first) in [(false, 0), (true, 199)] {
        let (runs, bounds) = (fixture.open(), (Bound::Unbounded, Bound::Unbounded));
        let mut cursor = RunsCursor::new(&runs, 1, bounds, reverse, u64::MAX);
        let before = fixture.sim.file_waits();
        let met = cursor.next(&mut WalkBlocks::Disk { keeps: true }).unwrap().unwrap();
        let waits = fixture.sim.file_waits() - before;
        assert_eq!(found(&met).0, [first]);
        assert!((1..=4).contains(&waits), "{waits} waits");
    }
}

/// Of a file with a damaged block, the keys before it are met, whichever way the walk goes; then the error, once.
#[test]
fn the_keys_before_a_damaged_block_come_before_its_error() {
    let mut fixture = Fixture::new();
    fixture.add_run(&[whole(rows(0..60, 1000))]);
    fixture.add_run(&[whole(rows((0..60).step_by(2), 2000))]);
    let all = fixture.expected(1, (Bound::Unbounded, Bound::Unbounded), u64::MAX);
    assert_eq!(all.len(), 60);
    // Of the newer run, the third block of four rows each: those of 16, 18, 20 and 22.
    fixture.sim.corrupt_file("00000002.sst", 3 * 4096 + 100, 1);
    let (forward, back) = (0..15, 23..60);
    for (reverse, mut expected) in [(false, all[forward].to_vec()), (true, all[back].to_vec())] {
        if reverse {
            expected.reverse();
            // After 24 of the newer run nobody knows whether its next key comes before 23.
            expected.pop();
        }
        let (runs, bounds) = (fixture.open(), (Bound::Unbounded, Bound::Unbounded));
        let (met, failed) = walk(&mut RunsCursor::new(&runs, 1, bounds, reverse, u64::MAX));
        assert_eq!(met, expected);
        let error = failed.unwrap();
        assert!(error.kind() == ErrorKind::Corrupted && error.message().contains("00000002.sst"), "{error}");
    }
}
