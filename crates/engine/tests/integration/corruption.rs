//! One flipped byte, anywhere: opening or reading says where, or everything reads exactly as written.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hedgerow::{Batch, Db, ErrorKind, Expiry, Options, Row, Schema, Type, Value, row};
use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Image};

use crate::rot::rot;

const SEGMENT_BYTES: u64 = 1 << 20;
const TABLES: [&str; 3] = ["users", "open", "flat"];

fn options() -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES,
        background: false,
        recovery_threads: 1,
        index_bytes_max: 16 << 20,
        ..Options::default()
    }
}

fn open(sim: &CrashSim) -> hedgerow::Result<Db> {
    Db::open_at(FastTier::simulated(sim), options(), Clock::manual(1_000))
}

/// A small store with every kind of record in it: rows, deltas, tombstones, batches, expiries, several schema versions,
/// relocated rows and a freed segment.
fn fill(open: impl Fn() -> hedgerow::Result<Db>) -> Db {
    let db = open().unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    for i in 0..20u32 {
        flat.put(&i.to_be_bytes(), &[("value", Value::Bytes(b"soon written over"))]).unwrap();
    }
    flat.put(b"kept", &[("value", Value::Bytes(&[5; 500]))]).unwrap();
    drop(flat);
    db.close().unwrap();
    let db = open().unwrap();
    write(&db);
    db
}

fn write(db: &Db) {
    let schema =
        Schema::new().field("name", Type::String).field("age", Type::U32).nullable("mail", Type::String);
    let users = db.create_table("users", schema).unwrap();
    let open = db.create_table("open", Schema::open()).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    for i in 0..30u32 {
        users.put(format!("user:{i}").as_bytes(), &row! { name: "Ada Lovelace", age: i }).unwrap();
        open.put(&i.to_be_bytes(), &row! { color: b"a colour of some length", size: &i.to_be_bytes() })
            .unwrap();
        flat.put(&i.to_be_bytes(), &[("value", Value::Bytes(&vec![i as u8; i as usize * 20]))]).unwrap();
    }
    assert!(db.collect().unwrap() > 0, "the segment that the first opening left was worth collecting");
    users.add_field("city", Type::String).unwrap();
    for i in 0..30u32 {
        let key = format!("user:{i}");
        match i % 5 {
            0 => users.update(key.as_bytes(), &row! { city: "London", age: 1000 + i }).unwrap(),
            1 => drop(users.delete(key.as_bytes()).unwrap()),
            2 => drop(users.expire(key.as_bytes(), Expiry::at_unix_ms(1 << 40)).unwrap()),
            3 => drop(users.expire_fields(key.as_bytes(), &["mail"], Expiry::at_unix_ms(1 << 40)).unwrap()),
            _ => {}
        }
    }
    let mut batch = Batch::new();
    batch.put(&users, b"batched", &row! { name: "Bo", age: 1 }).unwrap();
    batch.update(&open, b"batched", &row! { color: b"none" }).unwrap();
    batch.delete(&flat, &3u32.to_be_bytes()).unwrap();
    db.write(batch).unwrap();
    users.put(b"last", &row! { name: "the last row", age: 99 }).unwrap();
    open.update(b"batched", &row! { color: b"the last delta" }).unwrap();
}

fn dump(db: &Db) -> hedgerow::Result<Vec<Vec<Row>>> {
    let table = |name: &&str| {
        let table = db.table(name)?;
        let rows: Vec<Row> = table.scan().collect::<hedgerow::Result<_>>()?;
        for row in &rows {
            let got = table.get(row.key())?;
            assert!(got.is_some_and(|got| got.fields().eq(row.fields())), "a scan and a read differ");
        }
        Ok(rows)
    };
    TABLES.iter().map(table).collect()
}

fn same(a: &[Vec<Row>], b: &[Vec<Row>]) -> bool {
    let same_row = |a: &Row, b: &Row| {
        a.key() == b.key() && a.fields().eq(b.fields()) && a.expires_at_ms() == b.expires_at_ms()
    };
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_row(a, b)))
}

/// The bytes worth flipping one by one: all but long stretches that repeat or are zero, of which a sample is taken.
fn places(image: &Image) -> Vec<u64> {
    let mut places = Vec::new();
    for start in (0..image.bytes()).step_by(4096) {
        let page = image.read(start, 4096);
        for (i, window) in page.chunks(16).enumerate() {
            let dull = window.iter().all(|b| *b == window[0]);
            let wanted = if dull { i % 128 == 0 } else { true };
            let offset = start + 16 * i as u64;
            if wanted {
                places.extend(offset..offset + if dull { 1 } else { 16 });
            }
        }
    }
    places
}

/// What became of the flips.
#[derive(Debug, Default)]
struct Outcomes {
    intact: u32,
    refused: u32,
    wrong: Vec<u64>,
}

fn flip_each(image: &Image, wanted: &[Vec<Row>], places: &[u64], xors: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for (n, &offset) in places.iter().enumerate() {
        let mut image = image.clone();
        let xor = xors[n % xors.len()];
        image.corrupt(offset, xor);
        let sim = CrashSim::from_image(&image);
        let read = catch_unwind(AssertUnwindSafe(|| open(&sim).and_then(|db| dump(&db))));
        match read {
            Err(_) => panic!("a panic: byte {offset} ^ {xor:#x}"),
            Ok(Ok(found)) if same(&found, wanted) => outcomes.intact += 1,
            Ok(Ok(_)) => outcomes.wrong.push(offset),
            Ok(Err(error)) => {
                let kind = error.kind();
                assert!(
                    matches!(kind, ErrorKind::Corrupted | ErrorKind::Version),
                    "byte {offset}: {kind:?}: {error}"
                );
                if kind == ErrorKind::Corrupted {
                    assert!(error.message().contains("byte"), "byte {offset}: names no place: {error}");
                }
                outcomes.refused += 1;
            }
        }
    }
    outcomes
}

/// Flips each byte of an image that may matter; none may lead to wrong data.
fn flip_all(image: &Image, wanted: &[Vec<Row>]) -> Outcomes {
    let places = places(image);
    let outcomes = flip_each(image, wanted, &places, &[1, 0x80, 0xFF, 0x10]);
    println!("{} bytes flipped, {} refused, {} intact", places.len(), outcomes.refused, outcomes.intact);
    assert!(outcomes.wrong.is_empty(), "wrong data after flipping a byte at {:?}", outcomes.wrong);
    outcomes
}

#[test]
fn any_byte_of_a_closed_store() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = fill(|| open(&sim));
    let wanted = dump(&db).unwrap();
    db.close().unwrap();
    let image = sim.process_kill();
    let outcomes = flip_all(&image, &wanted);
    assert!(outcomes.refused > 5_000 && outcomes.intact > 500, "{outcomes:?}");
}

#[test]
fn any_byte_of_a_store_left_by_a_killed_process() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = fill(|| open(&sim));
    let wanted = dump(&db).unwrap();
    let image = sim.process_kill();
    flip_all(&image, &wanted);
}

/// Rows that fields were merged into, rows that wait for it, and rows that were written over.
#[test]
fn any_byte_where_rows_are_merged_in_place() {
    let sim = CrashSim::new(CrashModel::CacheLines, 32 << 20);
    let db = fill(|| open(&sim));
    let users = db.table("users").unwrap();
    let update = |i: u32, age: u32| {
        let key = format!("user:{i}");
        users.update(key.as_bytes(), &row! { age: age }).unwrap();
        users.get(key.as_bytes()).unwrap();
    };
    [4, 9, 14, 19].into_iter().for_each(|i| update(i, 2_000));
    db.collect().unwrap();
    assert_eq!(db.metrics().chains_merged_in_place, 4);
    [9, 14, 24].into_iter().for_each(|i| update(i, 3_000));
    users.put(b"user:19", &row! { name: "Bo", age: 4 }).unwrap();
    db.persist().unwrap();
    let wanted = dump(&db).unwrap();
    let image = sim.process_kill();
    flip_all(&image, &wanted);
}

#[test]
fn a_flip_under_an_open_store_is_told_by_the_read() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let db = fill(|| open(&sim));
    let wanted = dump(&db).unwrap();
    let image = sim.process_kill();
    let (mut refused, mut intact) = (0, 0);
    for offset in places(&image).into_iter().filter(|offset| *offset >= SEGMENT_BYTES).step_by(7) {
        rot(&sim, offset, 0x40);
        match dump(&db) {
            Ok(found) => {
                assert!(same(&found, &wanted), "wrong data after flipping byte {offset}");
                intact += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "byte {offset}: {error}");
                refused += 1;
            }
        }
        rot(&sim, offset, 0x40);
    }
    println!("{refused} refused, {intact} intact");
    assert!(refused > 100);
}

/// Where reads do not verify they may answer wrongly, but they answer.
#[test]
fn a_flip_where_reads_do_not_verify_is_no_panic() {
    let sim = CrashSim::new(CrashModel::CacheLines, 32 << 20);
    let unverified = Options { verify_reads: false, ..options() };
    let db = fill(|| Db::open_at(FastTier::simulated(&sim), unverified.clone(), Clock::manual(1_000)));
    let wanted = dump(&db).unwrap();
    let read = || {
        for (name, rows) in TABLES.iter().zip(&wanted) {
            let table = db.table(name)?;
            let scanned: hedgerow::Result<Vec<Row>> = table.scan().collect();
            for row in rows {
                table.get(row.key())?.iter().for_each(|row| assert!(row.fields().count() <= 20));
            }
            scanned?;
        }
        Ok(())
    };
    let mut refused = 0;
    for offset in places(&sim.process_kill()).into_iter().filter(|offset| *offset >= SEGMENT_BYTES).step_by(3)
    {
        for xor in [1, 0x80] {
            rot(&sim, offset, xor);
            match catch_unwind(AssertUnwindSafe(read)) {
                Err(_) => panic!("a panic: byte {offset} ^ {xor:#x}"),
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let error: hedgerow::Error = error;
                    assert_eq!(error.kind(), ErrorKind::Corrupted, "byte {offset}: {error}");
                    refused += 1;
                }
            }
            rot(&sim, offset, xor);
        }
    }
    println!("{refused} refused");
    assert!(refused > 0);
}

/// A file cut short: opening says so, or finds all that was there.
#[test]
fn a_truncated_file() {
    let directory = std::env::temp_dir().join(format!("hedgerow-truncated-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let open = || Db::open_with(&directory, options());
    let db = fill(open);
    let wanted = dump(&db).unwrap();
    db.close().unwrap();
    let file = directory.join(hedgerow::FAST_TIER_FILE);
    let whole = std::fs::read(&file).unwrap();
    let mut lengths: Vec<usize> = (0..whole.len()).step_by(SEGMENT_BYTES as usize / 4).collect();
    lengths.extend([1, 127, 128, 4095, 4096, 4224, 65_535, 65_536, whole.len() - 1]);
    let mut refused = 0;
    for length in lengths {
        std::fs::write(&file, &whole[..length]).unwrap();
        match open().and_then(|db| dump(&db)) {
            Ok(found) => assert!(same(&found, &wanted), "cut to {length} bytes: wrong data"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "cut to {length} bytes: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 5);
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Zeros where the root was, as a file system may leave them, are no new store: what else is in the file is not given up.
#[test]
fn a_root_of_zeros_over_a_store_is_corruption() {
    let directory = std::env::temp_dir().join(format!("hedgerow-zeroed-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let open = || Db::open_with(&directory, options());
    fill(open).close().unwrap();
    let file = directory.join(hedgerow::FAST_TIER_FILE);
    let whole = std::fs::read(&file).unwrap();
    for zeros in [0..8192, 4096..8192, 0..SEGMENT_BYTES as usize] {
        let mut bytes = whole.clone();
        bytes[zeros.clone()].fill(0);
        if zeros.start > 0 {
            bytes[0] ^= 1;
        }
        std::fs::write(&file, &bytes).unwrap();
        let error = open().err().unwrap_or_else(|| panic!("zeros at {zeros:?}: a new store over the old"));
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), bytes, "it was written to");
    }
    // Only zeros, however many, are a store that is yet to be made, if there is no witness of another.
    std::fs::write(&file, vec![0; whole.len()]).unwrap();
    assert_eq!(open().err().map(|error| error.kind()), Some(ErrorKind::Corrupted));
    std::fs::remove_file(directory.join("fast.id")).unwrap();
    open().unwrap().create_table("new", hedgerow::Schema::flat()).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}
