//! Closing and opening again: what was there is there.

use std::collections::BTreeMap;

use hedgerow::{Db, ErrorKind, Expiry, Options, Schema, Type, Value, row};
use hedgerow_device::{CrashModel, CrashSim, FastTier, Random};
use hedgerow_sim::Scratch;

fn options() -> Options {
    Options { segment_bytes: 1 << 20, recovery_threads: 3, ..Options::default() }
}

/// Keys that make recovery's sorting hard: one the prefix of another, zeros, long ones, outsiders.
fn awkward_keys(random: &mut Random) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for i in 0..400u32 {
        let mut key = b"tenant:7:user:".to_vec();
        match i % 8 {
            0 => key.extend(format!("{i:05}").bytes()),
            1 => key.extend(std::iter::repeat_n(0, i as usize % 40)),
            2 => key.extend(std::iter::repeat_n(0xFF, i as usize % 40)),
            3 => key.extend(format!("a-rather-long-common-middle-part-{i}").bytes()),
            4 => key.truncate(1 + i as usize % 14),
            5 => key = vec![random.next_u64() as u8; 1 + i as usize % 30],
            6 => key.extend((0..24 + i as usize % 3).map(|n| if n < 23 { b'x' } else { i as u8 })),
            _ => key = [vec![0; i as usize % 5], b"tenant".to_vec()].concat(),
        }
        keys.push(key);
    }
    keys.sort();
    keys.dedup();
    keys
}

#[test]
fn awkward_keys_come_back_in_order() {
    let scratch = Scratch::new("awkward");
    let mut random = Random::from_seed(5);
    let keys = awkward_keys(&mut random);
    let mut model = BTreeMap::new();
    let db = Db::open_with(&scratch.0, options()).unwrap();
    let table =
        db.create_table("t", Schema::new().field("n", Type::U64).nullable("s", Type::String)).unwrap();
    for round in 0..20_000u64 {
        let key = &keys[random.below(keys.len() as u64) as usize];
        match random.below(10) {
            0 => {
                table.delete(key).unwrap();
                model.remove(key);
            }
            1..=4 => {
                table.update(key, &row! { n: round }).unwrap();
                model.insert(key.clone(), round);
            }
            _ => {
                table.put(key, &row! { n: round, s: "some text that is longer than eight" }).unwrap();
                model.insert(key.clone(), round);
            }
        }
    }
    let expected: Vec<(Vec<u8>, u64)> = model.into_iter().collect();
    // The file stays locked as long as there is a handle.
    drop(table);
    let mut db = db;
    for _ in 0..3 {
        db.close().unwrap();
        db = Db::open_with(&scratch.0, options()).unwrap();
        let table = db.table("t").unwrap();
        let rows: Vec<(Vec<u8>, u64)> = table
            .scan()
            .map(|row| row.unwrap())
            .map(|row| (row.key().to_vec(), row.get("n").unwrap().as_u64().unwrap()))
            .collect();
        assert!(rows == expected);
        assert_eq!(table.len(), expected.len() as u64);
        for (key, n) in &expected {
            assert_eq!(table.get(key).unwrap().unwrap().get("n").unwrap(), Value::UInt(*n));
        }
        table.put(b"again", &row! { n: 1 }).unwrap();
        table.delete(b"again").unwrap();
    }
}

#[test]
fn a_second_opening_is_refused() {
    let scratch = Scratch::new("locked");
    let db = Db::open_with(&scratch.0, options()).unwrap();
    let error = Db::open_with(&scratch.0, options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    db.close().unwrap();
    Db::open_with(&scratch.0, options()).unwrap();
}

#[test]
fn no_store_is_made_where_none_is_wanted() {
    let scratch = Scratch::new("absent");
    let options = Options { create: false, ..options() };
    assert_eq!(Db::open_with(&scratch.0, options).err().unwrap().kind(), ErrorKind::NotFound);
    assert!(!scratch.0.exists());
}

#[test]
fn a_closed_store_takes_no_writes() {
    let scratch = Scratch::new("closed");
    let db = Db::open_with(&scratch.0, options()).unwrap();
    let table = db.create_table("t", Schema::flat()).unwrap();
    table.put(b"1", &row! { value: b"x" }).unwrap();
    db.close().unwrap();
    assert!(table.exists(b"1").unwrap());
    assert_eq!(table.put(b"2", &row! { value: b"y" }).unwrap_err().kind(), ErrorKind::Closed);
}

/// What is asked for is had, or refused: on a tier that can be written to nothing is made, and nothing of a store that is there changes.
#[test]
fn a_given_tier_is_only_read_if_it_says_so() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let open = |options: Options| Db::open_on(FastTier::simulated(&sim), options);
    let refused = |sim: &CrashSim| {
        let before = sim.ops();
        for background in [false, true] {
            let error = open(Options { background, ..options() }.read_only(true)).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        assert_eq!(sim.ops(), before, "something was written");
    };
    refused(&sim);
    let db = open(options()).unwrap();
    db.create_table("t", Schema::flat()).unwrap().put(b"1", &row! { value: b"x" }).unwrap();
    db.close().unwrap();
    refused(&sim);
    // One that is only read needs no option that says so.
    let scratch = Scratch::new("read-only-tier");
    let db = Db::open_with(&scratch.0, options()).unwrap();
    db.create_table("t", Schema::flat()).unwrap().put(b"1", &row! { value: b"x" }).unwrap();
    db.close().unwrap();
    for read_only in [false, true] {
        let tier = FastTier::open_file_read_only(&scratch.0.join(hedgerow::FAST_TIER_FILE)).unwrap();
        let db = Db::open_on(tier, options().read_only(read_only)).unwrap();
        let table = db.table("t").unwrap();
        assert!(table.exists(b"1").unwrap());
        assert_eq!(table.put(b"2", &row! { value: b"y" }).unwrap_err().kind(), ErrorKind::ReadOnly);
    }
}

/// Opened for reading only: all is read, nothing is written, and every write says why not.
#[test]
fn a_store_that_is_only_read() {
    let scratch = Scratch::new("read-only");
    let read_only = || Db::open_with(&scratch.0, options().read_only(true));
    assert_eq!(read_only().map(drop).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!scratch.0.exists(), "a directory was made");
    let db = Db::open_with(&scratch.0, options()).unwrap();
    let users = db.create_table("users", Schema::open()).unwrap();
    users.put(b"ada", &row! { name: b"Ada" }).unwrap();
    users.update(b"ada", &row! { age: b"36" }).unwrap();
    assert_eq!(read_only().map(drop).unwrap_err().kind(), ErrorKind::Locked, "beside a writer");
    let file = scratch.0.join(hedgerow::FAST_TIER_FILE);
    let killed = std::fs::read(&file).unwrap();
    drop(users);
    db.close().unwrap();
    let closed = std::fs::read(&file).unwrap();
    for image in [killed, closed] {
        std::fs::write(&file, &image).unwrap();
        let (db, other) = (read_only().unwrap(), read_only().unwrap());
        let users = db.table("users").unwrap();
        for users in [&users, &other.table("users").unwrap()] {
            assert_eq!(users.get(b"ada").unwrap().unwrap().get("age").unwrap(), Value::Bytes(b"36"));
        }
        let mut batch = hedgerow::Batch::new();
        batch.put(&users, b"bo", &row! { name: b"Bo" }).unwrap();
        let refused = [
            users.put(b"bo", &row! { name: b"Bo" }).err(),
            users.put(b"bo", &row! { unheard_of: b"Bo" }).err(),
            users.update(b"ada", &row! { name: b"Bo" }).err(),
            users.delete(b"ada").err(),
            users.expire(b"ada", Expiry::at_unix_ms(1)).err(),
            users.clear().err(),
            users.add_field("more", Type::U32).err(),
            db.write(batch).err(),
            db.create_table("more", Schema::flat()).err(),
            db.drop_table("users").err(),
            db.collect().err(),
        ];
        for (n, error) in refused.into_iter().enumerate() {
            let error = error.unwrap_or_else(|| panic!("write {n} was not refused"));
            assert_eq!(error.kind(), ErrorKind::ReadOnly, "write {n}: {error}");
        }
        assert_eq!(users.len(), 1);
        drop(users);
        db.close().unwrap();
        other.close().unwrap();
        assert!(std::fs::read(&file).unwrap() == image, "it was written to");
    }
}

/// However many threads are asked for: as many keys as make parts for some.
#[test]
fn any_number_of_threads_opens_a_store() {
    let sim = CrashSim::new(CrashModel::Pages, 32 << 20);
    let options = |recovery_threads| Options { recovery_threads, background: false, ..options() };
    let db = Db::open_on(FastTier::simulated(&sim), options(1)).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::U64)).unwrap();
    (0..20_000u64).for_each(|n| table.put(&n, &row! { n: n }).unwrap());
    let killed = sim.process_kill();
    for threads in [usize::MAX, 1_000_000, 0] {
        let db = Db::open_on(FastTier::from_image(&killed), options(threads)).unwrap();
        assert_eq!(db.table("t").unwrap().scan().count(), 20_000, "{threads} threads");
    }
}
