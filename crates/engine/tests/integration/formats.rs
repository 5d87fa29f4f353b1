//! Stores of every format version: each stays what it was made as, whoever opens it.

use std::path::Path;

use hedgerow::backup::restore;
use hedgerow::inspect::View;
use hedgerow::{Db, Durability, ErrorKind, FAST_TIER_FILE, Options, Schema, Type, repair, row};
use hedgerow_device::{Random, crc32c};
use hedgerow_sim::FORMATS;

use crate::backup::Scratch;

fn options() -> Options {
    Options {
        background: false,
        recovery_threads: 1,
        index_bytes_max: 64 << 20,
        durability: Durability::Process,
        ..Options::default()
    }
}

fn schema() -> Schema {
    Schema::new().field("round", Type::U64).field("body", Type::Bytes)
}

/// The version in the root, and whether the lowest segment in use has the bit of checksums that know their place.
fn version_of(directory: &Path) -> (u32, bool) {
    let view = View::open(directory).unwrap();
    let report = view.check(|_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let bits: Vec<bool> = view.segments().iter().map(|segment| segment.number >> 63 == 1).collect();
    assert!(!bits.is_empty() && bits.iter().all(|bit| *bit == bits[0]), "segments of two kinds: {bits:?}");
    (view.root().format_version, bits[0])
}

/// Writes over the rows of the round before, so that segments are freed and taken into use again.
fn write(db: &Db, round: u64) {
    let table = db.table("rows").unwrap();
    for n in 0..600u64 {
        table.put(&n.to_be_bytes(), &row! { round: round, body: &vec![n as u8; 2_000] }).unwrap();
        table.update(&n.to_be_bytes(), &row! { round: round + 1 }).unwrap();
    }
    db.collect().unwrap();
}

fn verify(db: &Db, round: u64) {
    let table = db.table("rows").unwrap();
    assert_eq!(table.len(), 600);
    for row in table.scan() {
        assert_eq!(row.unwrap().get("round").as_u64(), Some(round + 1));
    }
}

#[test]
fn a_store_keeps_its_format() {
    for (format, version) in FORMATS.into_iter().zip([3, 2, 1]) {
        let scratch = Scratch::new("formats");
        let [store, killed, backup, restored, repaired] =
            ["store", "killed", "backup", "restored", "repaired"].map(|name| scratch.0.join(name));
        let db = Db::open_with(&store, format.with(options())).unwrap();
        db.create_table("rows", schema()).unwrap();
        write(&db, 10);
        db.close().unwrap();
        let expected = (version, version == 3);
        assert_eq!(version_of(&store), expected, "{format}");
        // Opened with the options of a newer store; later copied as a killed process leaves it.
        let db = Db::open_with(&store, options()).unwrap();
        verify(&db, 10);
        write(&db, 20);
        write(&db, 30);
        db.backup(&backup).unwrap();
        std::fs::create_dir_all(&killed).unwrap();
        for file in [FAST_TIER_FILE, "fast.id"] {
            std::fs::copy(store.join(file), killed.join(file)).unwrap();
        }
        drop(db);
        restore(&backup, &restored, |_| Ok(())).unwrap();
        for copy in [&store, &killed, &restored] {
            assert_eq!(version_of(copy), expected, "{format}: {}", copy.display());
            let db = Db::open_with(copy, options()).unwrap();
            verify(&db, 30);
            write(&db, 40);
            db.close().unwrap();
            assert_eq!(version_of(copy), expected, "{format}: {}", copy.display());
        }
        // A store made of what is left of another is a new one.
        repair(&store, &repaired, |_| {}).unwrap();
        assert_eq!(version_of(&repaired), (3, true), "{format}");
        verify(&Db::open_with(&repaired, options()).unwrap(), 40);
    }
}

/// Both copies of the root are lost: whether checksums know their place the headers say.
#[test]
fn a_store_without_its_root_is_repaired_in_each_format() {
    for format in FORMATS {
        let scratch = Scratch::new("formats-rootless");
        let [store, repaired] = ["store", "repaired"].map(|name| scratch.0.join(name));
        let db = Db::open_with(&store, format.with(options())).unwrap();
        db.create_table("rows", schema()).unwrap();
        write(&db, 10);
        db.close().unwrap();
        let mut bytes = std::fs::read(store.join(FAST_TIER_FILE)).unwrap();
        let mut random = Random::from_seed(1);
        [0, 4096].into_iter().for_each(|root| bytes[root + 20] ^= random.next_u64() as u8 | 1);
        std::fs::write(store.join(FAST_TIER_FILE), &bytes).unwrap();
        let report = repair(&store, &repaired, |_| {}).unwrap();
        assert_eq!(report.rows, 600, "{format}");
        verify(&Db::open_with(&repaired, options()).unwrap(), 10);
    }
}

#[test]
fn versions_that_are_not_known_are_refused_by_name() {
    let scratch = Scratch::new("formats-unknown");
    for version in [0, 1, 4] {
        let error = Db::open_with(&scratch.0, Options { format_version: version, ..options() })
            .map(drop)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let made = std::fs::metadata(scratch.0.join(FAST_TIER_FILE)).map_or(0, |file| file.len());
        assert_eq!(made, 0, "refused, it left a file");
    }
    Db::open_with(&scratch.0, options()).unwrap().close().unwrap();
    let mut bytes = std::fs::read(scratch.0.join(FAST_TIER_FILE)).unwrap();
    for root in [0, 4096] {
        bytes[root + 8] = 4;
        let crc = crc32c(0, &bytes[root..root + 124]);
        bytes[root + 124..root + 128].copy_from_slice(&crc.to_le_bytes());
    }
    std::fs::write(scratch.0.join(FAST_TIER_FILE), &bytes).unwrap();
    let error = Db::open_with(&scratch.0, options()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Version, "{error}");
    assert!(error.message().contains("version 4"), "{error}");
}
