//! Stores of every format version: each stays what it was made as, whoever opens it.

use std::path::Path;

use hedgerow::backup::restore;
use hedgerow::inspect::View;
use hedgerow::{Db, Durability, ErrorKind, FAST_TIER_FILE, Options, Schema, Type, repair, row};
use hedgerow_device::{Random, crc32c};
use hedgerow_sim::{FORMATS, Scratch};

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
        assert_eq!(row.unwrap().get("round").unwrap().as_u64(), Some(round + 1));
    }
}

#[test]
fn a_store_keeps_its_format() {
    for (format, version) in FORMATS.into_iter().zip([3, 2, 1]) {
        let scratch = Scratch::made("formats");
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
        let scratch = Scratch::made("formats-rootless");
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

/// Where segments in use begin, the one begun last at the end, by their headers.
fn segments_in(bytes: &[u8]) -> Vec<usize> {
    let begins = |at: &usize| bytes[*at..*at + 8] == *b"HDGSEG01" && bytes[*at + 36] != 0;
    let mut starts: Vec<usize> = (UNIT..bytes.len()).step_by(UNIT).filter(begins).collect();
    starts.sort_by_key(|at| u64::from_le_bytes(bytes[*at + 8..*at + 16].try_into().unwrap()));
    starts
}

const UNIT: usize = 1 << 20;

/// Each opening numbers its segments anew. Without the root their headers say how often the store was opened, and so under which
/// numbers the records of one without a header are looked for.
#[test]
fn a_store_opened_often_without_its_root_gives_a_segment_without_its_header() {
    const OPENINGS: u64 = 6;
    for format_version in [3, 2] {
        let scratch = Scratch::made("formats-opened-often");
        let [store, repaired] = ["store", "repaired"].map(|name| scratch.0.join(name));
        for opening in 0..OPENINGS {
            let options = Options { segment_bytes: UNIT as u64, format_version, ..options() };
            let db = Db::open_with(&store, options).unwrap();
            if opening == 0 {
                db.create_table("rows", schema()).unwrap();
            }
            let table = db.table("rows").unwrap();
            for n in opening * 100..opening * 100 + 100 {
                table.put(&n.to_be_bytes(), &row! { round: 11u64, body: &vec![n as u8; 2_000] }).unwrap();
            }
            db.close().unwrap();
        }
        let mut whole = std::fs::read(store.join(FAST_TIER_FILE)).unwrap();
        [0, 4096].into_iter().for_each(|root| whole[root..root + 128].fill(0));
        let segments = segments_in(&whole);
        assert_eq!(segments.len() as u64, OPENINGS, "version {format_version}");
        for lost in &segments[1..] {
            let mut bytes = whole.clone();
            bytes[*lost..*lost + 128].fill(0xEE);
            std::fs::write(store.join(FAST_TIER_FILE), &bytes).unwrap();
            let report = repair(&store, &repaired, |_| {}).unwrap();
            assert_eq!(
                (report.rows, report.lost),
                (OPENINGS * 100, 0),
                "version {format_version}: segment at {lost}"
            );
            let db = Db::open_with(&repaired, options()).unwrap();
            let table = db.table("rows").unwrap();
            assert!((0..OPENINGS * 100).all(|n| table.get(&n.to_be_bytes()).unwrap().is_some()));
            drop((table, db));
            std::fs::remove_dir_all(&repaired).unwrap();
        }
    }
}

/// A store of another version lay on the same blocks of the disk before, and a page of it is there again: its headers verify, for
/// those of version 2 do so anywhere, and those of version 3 in their own places. Its rows are not this store's.
#[test]
fn a_segment_left_by_a_store_of_another_version_is_not_taken_for_one_of_this() {
    for (format_version, other_version) in [(3, 2), (2, 3)] {
        let scratch = Scratch::made("formats-stale");
        let [store, other, repaired] = ["store", "other", "repaired"].map(|name| scratch.0.join(name));
        let of_version = |format_version| Options { segment_bytes: UNIT as u64, format_version, ..options() };
        let db = Db::open_with(&store, of_version(format_version)).unwrap();
        db.create_table("rows", schema()).unwrap();
        write(&db, 10);
        db.close().unwrap();
        let mut bytes = std::fs::read(store.join(FAST_TIER_FILE)).unwrap();
        let db = Db::open_with(&other, of_version(other_version)).unwrap();
        let table = db.create_table("rows", schema()).unwrap();
        for n in 1_000..1_000 + bytes.len() as u64 / 2_000 {
            table.put(&n.to_be_bytes(), &row! { round: 99u64, body: &vec![n as u8; 2_000] }).unwrap();
        }
        drop(table);
        db.close().unwrap();
        let stale = std::fs::read(other.join(FAST_TIER_FILE)).unwrap();
        let at = segments_in(&stale).into_iter().max().unwrap();
        assert!(at >= bytes.len(), "the store is as long as the other");
        bytes.resize(at, 0);
        bytes.extend(&stale[at..at + UNIT]);
        for is_root_lost in [false, true] {
            if is_root_lost {
                [0, 4096].into_iter().for_each(|root| bytes[root..root + 128].fill(0));
            }
            std::fs::write(store.join(FAST_TIER_FILE), &bytes).unwrap();
            let error = Db::open_with(&store, options()).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
            let place = format!("header at byte {at} of");
            let view = View::open_damaged(&store).unwrap();
            assert!(view.damage().iter().any(|error| error.message().contains(&place)));
            drop(view);
            let report = repair(&store, &repaired, |_| {}).unwrap();
            assert_eq!((report.rows, report.lost), (600, 0), "version {format_version}");
            verify(&Db::open_with(&repaired, options()).unwrap(), 10);
            std::fs::remove_dir_all(&repaired).unwrap();
        }
    }
}

#[test]
fn versions_that_are_not_known_are_refused_by_name() {
    let scratch = Scratch::made("formats-unknown");
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
