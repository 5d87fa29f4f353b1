//! What each call promises, on DRAM.

use hedgerow::{
    Batch, CacheMode, Change, Db, ErrorKind, Expiry, Options, OwnedValue, Schema, Table, Type, Value, row,
};
use hedgerow_device::{Clock, FastTier, FastTierOptions};

fn options() -> Options {
    Options { segment_bytes: 1 << 20, background: false, ..Options::default() }
}

fn tier(bytes_max: u64) -> FastTier {
    FastTier::dram(&FastTierOptions { bytes_max, ..FastTierOptions::default() }).unwrap()
}

fn db() -> Db {
    Db::open_on(tier(256 << 20), options()).unwrap()
}

fn users(db: &Db) -> Table {
    let schema =
        Schema::new().field("name", Type::String).field("age", Type::U32).nullable("mail", Type::String);
    db.create_table("users", schema).unwrap()
}

#[test]
fn named_fields_are_fetched_and_others_are_read_all_the_same() {
    let db = db();
    let schema = (0..6).fold(Schema::new(), |schema, i| schema.field(format!("f{i}"), Type::FixedBytes(200)));
    let table = db.create_table("wide", schema).unwrap();
    let read = |key: &[u8], names: &[&str], wanted: &str| {
        table.read_fields(key, names, |row| Ok(row.get(wanted)?.as_bytes().unwrap()[0]))
    };
    let bytes: Vec<[u8; 200]> = (0..6).map(|i| [i; 200]).collect();
    let row: Vec<_> = bytes.iter().enumerate().map(|(i, b)| (format!("f{i}"), Value::Bytes(b))).collect();
    let row: Vec<_> = row.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    table.put(b"1", &row).unwrap();
    assert_eq!(read(b"1", &["f5"], "f5").unwrap(), Some(5));
    assert_eq!(
        read(b"1", &["f0", "f1", "f2", "f3", "f4"], "f5").unwrap(),
        Some(5),
        "not prefetched, and read"
    );
    table.update(b"1", &[("f5", Value::Bytes(&[9; 200]))]).unwrap();
    assert_eq!(read(b"1", &["f5"], "f5").unwrap(), Some(9), "from a delta");
    assert_eq!(read(b"1", &["f4"], "f4").unwrap(), Some(4), "below a delta");
    table.add_field_with_default("late", Type::FixedBytes(200), Value::Bytes(&[7; 200])).unwrap();
    assert_eq!(read(b"1", &["late"], "late").unwrap(), Some(7), "younger than the row");
    assert_eq!(read(b"2", &["f5"], "f5").unwrap(), None);
    assert_eq!(read(b"1", &["none"], "f5").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(table.get_field(b"2", "none").unwrap_err().kind(), ErrorKind::NotFound, "no row either");
}

#[test]
fn rows_are_read_as_written() {
    let db = db();
    let users = users(&db);
    assert!(users.get(b"42").unwrap().is_none());
    users.put(b"42", &row! { name: "Ada", age: 36 }).unwrap();
    let row = users.get(b"42").unwrap().unwrap();
    assert_eq!(row.key(), b"42");
    assert_eq!(row.get("name").unwrap(), Value::Str("Ada"));
    assert_eq!(row.get("age").unwrap(), Value::UInt(36));
    assert!(row.get("mail").unwrap().is_null());
    assert_eq!(row.fields().count(), 2);
    assert_eq!(users.len(), 1);
}

#[test]
fn updates_change_the_named_fields_only() {
    let db = db();
    let users = users(&db);
    users.put(b"42", &row! { name: "Ada", age: 36 }).unwrap();
    for age in 37..60 {
        users.update(b"42", &row! { age: age }).unwrap();
        let row = users.get(b"42").unwrap().unwrap();
        assert_eq!(row.get("age").unwrap(), Value::UInt(age));
        assert_eq!(row.get("name").unwrap(), Value::Str("Ada"));
    }
    users.update(b"42", &row! { mail: "ada@example.org" }).unwrap();
    assert_eq!(users.get_field(b"42", "mail").unwrap(), Some(OwnedValue::Str("ada@example.org".into())));
    users.update(b"42", &[("mail", Value::Null)]).unwrap();
    assert_eq!(users.get_field(b"42", "mail").unwrap(), Some(OwnedValue::Null));
    assert!(!users.update_existing(b"43", &row! { age: 1 }).unwrap());
    users.update(b"43", &row! { age: 1 }).unwrap();
    assert_eq!(users.get(b"43").unwrap().unwrap().get("name").unwrap(), Value::Str(""));
}

#[test]
fn deletes_and_existence() {
    let db = db();
    let users = users(&db);
    assert!(!users.delete(b"1").unwrap());
    users.put(b"1", &row! { name: "x" }).unwrap();
    assert!(users.exists(b"1").unwrap());
    assert!(users.delete(b"1").unwrap());
    assert!(!users.delete(b"1").unwrap());
    assert!(!users.exists(b"1").unwrap());
    assert!(users.get(b"1").unwrap().is_none());
    assert_eq!(users.len(), 0);
    users.put(b"1", &row! { name: "y" }).unwrap();
    assert_eq!(users.len(), 1);
}

#[test]
fn scans_keep_to_their_bounds() {
    let db = db();
    let users = users(&db);
    for i in 0..1000u32 {
        users.put(format!("{i:04}").as_bytes(), &row! { name: "n", age: i }).unwrap();
    }
    users.delete(b"0500").unwrap();
    let ages = |scan: hedgerow::Scan| -> Vec<u64> {
        scan.map(|row| row.unwrap().get("age").unwrap().as_u64().unwrap()).collect()
    };
    assert_eq!(ages(users.scan()).len(), 999);
    assert_eq!(ages(users.scan().prefix(b"05")), (501..600).collect::<Vec<_>>());
    assert_eq!(ages(users.scan().from(b"0998")), [998, 999]);
    assert_eq!(ages(users.scan().after(b"0998")), [999]);
    assert_eq!(ages(users.scan().range(..b"0002")), [0, 1]);
    assert_eq!(ages(users.scan().reverse().limit(3)), [999, 998, 997]);
    assert_eq!(ages(users.scan().reverse().prefix(b"000").limit(2)), [9, 8]);
    let narrow = users.scan().limit(1).fields(&["name"]).unwrap().next().unwrap().unwrap();
    assert_eq!(narrow.fields().count(), 1);
    assert_eq!(users.scan().fields(&["nothing"]).err().unwrap().kind(), ErrorKind::NotFound);
    let mut seen = 0;
    users
        .scan()
        .for_each(|key, row| {
            assert_eq!(key, row.key());
            seen += 1;
            Ok(seen < 10)
        })
        .unwrap();
    assert_eq!(seen, 10);
}

#[test]
fn many_at_once() {
    let db = db();
    let users = users(&db);
    for i in 0..100u32 {
        users.put(&i.to_be_bytes(), &row! { age: i }).unwrap();
    }
    let keys: Vec<[u8; 4]> = (90..110u32).map(u32::to_be_bytes).collect();
    let rows = users.multi_get(&keys).unwrap();
    assert_eq!(rows.iter().filter(|r| r.is_some()).count(), 10);
    assert_eq!(rows[3].as_ref().unwrap().get("age").unwrap(), Value::UInt(93));
}

#[test]
fn what_was_found_stays_while_it_is_pinned() {
    let (db, other) = (db(), db());
    let users = self::users(&db);
    for i in 0..100u32 {
        users.put(&i.to_be_bytes(), &row! { age: i }).unwrap();
    }
    let keys: Vec<[u8; 4]> = (80..120u32).map(u32::to_be_bytes).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let age = |key: &[u8], found| {
        let read = |row: &hedgerow::RowRef<'_>| Ok(row.get("age")?.as_u64());
        users.read_handle(key, found, read).unwrap().flatten()
    };
    let (pin, foreign) = (db.pin(), other.pin());
    let (mut found, mut unheld) = (Vec::new(), Vec::new());
    users.look_up(&pin, &keys, |position, row| {
        assert_eq!(position, found.len());
        found.push(row);
    });
    users.look_up(&foreign, &keys, |_, row| unheld.push(row));
    assert_eq!((found.len(), unheld.len()), (40, 40));
    assert_eq!((age(keys[3], found[3]), age(keys[20], found[20])), (Some(83), None));
    // Later writes are not seen through it, nor is anything reused that it leads to.
    users.update(keys[3], &row! { age: 7 }).unwrap();
    users.delete(keys[4]).unwrap();
    users.put(keys[20], &row! { age: 8 }).unwrap();
    db.collect().unwrap();
    assert_eq!([3, 4, 20].map(|at| age(keys[at], found[at])), [Some(83), Some(84), None]);
    // A pin of another store holds nothing: looked up anew.
    assert_eq!([3, 4, 20].map(|at| age(keys[at], unheld[at])), [Some(7), None, Some(8)]);
    // What was found in another store is no row of this one, though the tables have the same number.
    let others = self::users(&other);
    others.put(keys[3], &row! { age: 3 }).unwrap();
    let mut elsewhere = None;
    others.look_up(&foreign, &keys[3..4], |_, row| elsewhere = Some(row));
    assert_eq!(age(keys[3], elsewhere.unwrap()), Some(7));
    // And so after the table was cleared.
    users.clear().unwrap();
    assert_eq!(age(keys[3], found[3]), None);
}

#[test]
fn counters_and_comparisons() {
    let db = db();
    let users = users(&db);
    assert_eq!(users.increment(b"1", "age", 5).unwrap(), 5);
    assert_eq!(users.increment(b"1", "age", -2).unwrap(), 3);
    assert_eq!(users.increment(b"1", "age", -4).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(users.increment(b"1", "name", 1).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(users.compare_and_set(b"1", "age", Value::UInt(3), Value::UInt(9)).unwrap());
    assert!(!users.compare_and_set(b"1", "age", Value::UInt(3), Value::UInt(10)).unwrap());
    assert!(users.compare_and_set(b"1", "mail", Value::Null, Value::Str("m")).unwrap());
    assert!(users.compare_and_set(b"2", "mail", Value::Null, Value::Str("m")).unwrap());
    let doubled = users
        .modify(b"1", |row| {
            let age = row.unwrap().get("age")?.as_u64().unwrap() * 2;
            let fields = vec![("age".to_owned(), OwnedValue::UInt(age))];
            Ok((Change::Update { fields, expiry: Expiry::Never }, age))
        })
        .unwrap();
    assert_eq!(doubled, 18);
    assert_eq!(users.get_field(b"1", "age").unwrap(), Some(OwnedValue::UInt(18)));
    users.modify(b"1", |_| Ok((Change::Delete, ()))).unwrap();
    assert!(!users.exists(b"1").unwrap());
}

#[test]
fn bad_input_is_refused_by_kind() {
    let db = db();
    let users = users(&db);
    let kind = |result: hedgerow::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(users.put(b"", &row! { age: 1 })), ErrorKind::Invalid);
    assert_eq!(kind(users.put(&vec![0; (64 << 10) + 1], &row! { age: 1 })), ErrorKind::Invalid);
    assert_eq!(kind(users.put(b"1", &row! { age: -1 })), ErrorKind::Invalid);
    assert_eq!(kind(users.put(b"1", &row! { age: "old" })), ErrorKind::Invalid);
    assert_eq!(kind(users.put(b"1", &[("age", Value::Null)])), ErrorKind::Invalid);
    assert_eq!(kind(users.put(b"1", &row! { shoe: 1 })), ErrorKind::NotFound);
    assert_eq!(db.table("none").err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(db.create_table("users", Schema::new()).err().unwrap().kind(), ErrorKind::Exists);
    assert!(users.is_empty());
}

/// What can be no key is the key of no row.
#[test]
fn reads_take_any_bytes_for_a_key() {
    let db = db();
    let users = users(&db);
    for n in 0..2_000u32 {
        users.put(format!("key {n:06}").as_bytes(), &row! { age: n }).unwrap();
    }
    let snapshot = db.snapshot();
    let long = vec![b'k'; 70_000];
    for key in [&b""[..], b"k", b"key ", b"zzz", &long, &[0; 70_000], &[255; 70_000]] {
        assert!(users.get(key).unwrap().is_none() && !users.exists(key).unwrap());
        assert!(snapshot.get(&users, key).unwrap().is_none());
        assert!(users.multi_get(&[key, b"key 000007"]).unwrap()[0].is_none());
        assert_eq!(users.version(key).unwrap(), None);
        let rows = users.scan().from(key).count();
        assert_eq!(rows, if key < &b"key 1"[..] { 2_000 } else { 0 }, "{} bytes", key.len());
    }
    for key in [&b""[..], &long] {
        assert_eq!(users.delete(key).map_err(|error| error.kind()), Ok(false));
        assert_eq!(users.expire(key, Expiry::Never).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn big_and_small_values() {
    let db = Db::open_on(tier(512 << 20), options()).unwrap();
    let blobs = db.create_table("blobs", Schema::flat()).unwrap();
    for bytes in [0, 1, 8, 9, 255, 256, 257, 4096, 1 << 20, (1 << 20) + 1, 16 << 20] {
        let value: Vec<u8> = (0..bytes).map(|i: usize| (i * 31 % 251) as u8).collect();
        let key = [b'k'; 65536];
        blobs.put(&key[..bytes.clamp(1, 65536)], &[("value", Value::Bytes(&value))]).unwrap();
        let read = blobs.get_field(&key[..bytes.clamp(1, 65536)], "value").unwrap().unwrap();
        assert!(read.borrow() == Value::Bytes(&value), "{bytes}");
    }
}

#[test]
fn open_tables_learn() {
    let db = db();
    let open = db.create_table("open", Schema::open()).unwrap();
    open.put(b"1", &row! { color: b"red" }).unwrap();
    open.update(b"1", &row! { size: b"9", shape: b"round" }).unwrap();
    let row = open.get(b"1").unwrap().unwrap();
    assert_eq!(row.get("color").unwrap(), Value::Bytes(b"red"));
    assert_eq!(row.get("shape").unwrap(), Value::Bytes(b"round"));
    assert_eq!(open.schema().fields().len(), 3);
}

#[test]
fn schemas_evolve_without_rewriting() {
    let db = db();
    let users = users(&db);
    users.put(b"1", &row! { name: "Ada", age: 36 }).unwrap();
    users.add_field("city", Type::String).unwrap();
    users.add_field_with_default("level", Type::I32, 7).unwrap();
    users.rename_field("name", "full").unwrap();
    users.drop_field("age").unwrap();
    let row = users.get(b"1").unwrap().unwrap();
    assert_eq!(row.get("full").unwrap(), Value::Str("Ada"));
    assert_eq!(row.get("level").unwrap(), Value::Int(7));
    assert!(row.get("city").unwrap().is_null());
    assert_eq!(row.get("age").unwrap_err().kind(), ErrorKind::NotFound);
    users.update(b"1", &row! { city: "London" }).unwrap();
    assert_eq!(users.get(b"1").unwrap().unwrap().get("city").unwrap(), Value::Str("London"));
    assert_eq!(users.update(b"1", &row! { age: 1 }).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn rows_and_fields_expire() {
    let clock = Clock::manual(1_000);
    let db = Db::open_at(tier(64 << 20), options(), clock.clone()).unwrap();
    let users = users(&db);
    users.put_expiring(b"1", &row! { name: "Ada" }, Expiry::at_unix_ms(2_000)).unwrap();
    users.put(b"2", &row! { name: "Eve", mail: "e" }).unwrap();
    assert!(users.expire(b"2", Expiry::at_unix_ms(3_000)).unwrap());
    assert!(users.expire_fields(b"2", &["mail"], Expiry::at_unix_ms(1_500)).unwrap());
    assert!(!users.expire(b"3", Expiry::at_unix_ms(1)).unwrap());
    assert_eq!(users.get(b"1").unwrap().unwrap().expires_at_ms(), Some(2_000));
    users.update(b"1", &row! { age: 3 }).unwrap();
    assert_eq!(users.get(b"1").unwrap().unwrap().expires_at_ms(), Some(2_000));
    clock.advance_ms(500);
    assert!(users.get(b"2").unwrap().unwrap().get("mail").unwrap().is_null());
    clock.advance_ms(500);
    assert!(users.get(b"1").unwrap().is_none());
    assert!(!users.exists(b"1").unwrap());
    assert!(!users.delete(b"1").unwrap());
    users.update(b"1", &row! { age: 4 }).unwrap();
    let again = users.get(b"1").unwrap().unwrap();
    assert_eq!((again.get("name").unwrap(), again.get("age").unwrap()), (Value::Str(""), Value::UInt(4)));
    assert_eq!(again.expires_at_ms(), None);
    users.expire(b"2", Expiry::Never).unwrap();
    clock.advance_ms(10_000);
    assert!(users.exists(b"2").unwrap());
}

#[test]
fn batches_are_whole_and_snapshots_stay() {
    let db = db();
    let (users, open) = (users(&db), db.create_table("open", Schema::open()).unwrap());
    users.put(b"1", &row! { name: "Ada", age: 1 }).unwrap();
    users.put(b"2", &row! { name: "Bob", age: 2 }).unwrap();
    let before = db.snapshot();
    let mut batch = Batch::new();
    batch.update(&users, b"1", &row! { age: 10 }).unwrap();
    batch.delete(&users, b"2").unwrap();
    batch.put(&users, b"3", &row! { name: "Cid" }).unwrap();
    batch.update(&users, b"3", &row! { age: 30 }).unwrap();
    batch.put(&open, b"x", &row! { note: b"n" }).unwrap();
    batch.require_version(&users, b"1", users.version(b"1").unwrap()).unwrap();
    db.write(batch).unwrap();
    let mut stale = Batch::new();
    stale.put(&users, b"9", &row! { name: "no" }).unwrap();
    stale.require_version(&users, b"1", Some(1)).unwrap();
    assert_eq!(db.write(stale).unwrap_err().kind(), ErrorKind::Conflict);
    assert!(!users.exists(b"9").unwrap());
    assert_eq!(users.get_field(b"1", "age").unwrap(), Some(OwnedValue::UInt(10)));
    assert_eq!(users.get_field(b"3", "age").unwrap(), Some(OwnedValue::UInt(30)));
    assert!(!users.exists(b"2").unwrap());
    assert_eq!(before.get(&users, b"1").unwrap().unwrap().get("age").unwrap(), Value::UInt(1));
    assert_eq!(before.get(&users, b"2").unwrap().unwrap().get("age").unwrap(), Value::UInt(2));
    assert!(before.get(&users, b"3").unwrap().is_none());
    assert_eq!(before.scan(&users).count(), 2);
    assert_eq!(users.scan().count(), 2);
}

#[test]
fn a_batch_sets_expiries() {
    // Times far ahead, in ms: no clock of a machine is there yet.
    const LATER: u64 = 1 << 45;
    let dir = std::env::temp_dir().join(format!("hedgerow-expiries-{}", std::process::id()));
    std::fs::remove_dir_all(&dir).ok();
    let db = Db::open_with(&dir, options()).unwrap();
    let users = users(&db);
    users.put(b"1", &row! { name: "Ada", age: 1 }).unwrap();
    users.put_expiring(b"2", &row! { name: "Bob" }, Expiry::at_unix_ms(LATER + 2)).unwrap();
    users.put(b"gone", &row! { name: "Cid" }).unwrap();
    users.put(b"full chain", &row! { name: "Dan" }).unwrap();
    for age in 0..5u32 {
        users.update(b"full chain", &row! { age: age }).unwrap();
    }
    let mut batch = Batch::new();
    batch.expire(&users, b"1", Expiry::at_unix_ms(LATER + 3)).unwrap();
    batch.update(&users, b"1", &row! { age: 2 }).unwrap();
    batch.expire(&users, b"2", Expiry::Never).unwrap();
    batch.expire(&users, b"gone", Expiry::at_unix_ms(1)).unwrap();
    batch.expire(&users, b"full chain", Expiry::at_unix_ms(LATER + 4)).unwrap();
    batch.expire(&users, b"absent", Expiry::at_unix_ms(LATER + 5)).unwrap();
    batch.expire(&users, b"new", Expiry::at_unix_ms(LATER + 5)).unwrap();
    batch.update(&users, b"new", &row! { name: "Eve" }).unwrap();
    batch.update(&users, b"newer", &row! { name: "Flo" }).unwrap();
    batch.expire(&users, b"newer", Expiry::at_unix_ms(LATER + 6)).unwrap();
    assert_eq!(batch.expire(&users, b"", Expiry::Never).unwrap_err().kind(), ErrorKind::Invalid);
    db.write(batch).unwrap();
    let check = |users: &Table| {
        let expiry = |key: &[u8]| users.get(key).unwrap().map(|row| row.expires_at_ms());
        assert_eq!(expiry(b"1"), Some(Some(LATER + 3)));
        assert_eq!(users.get_field(b"1", "age").unwrap(), Some(OwnedValue::UInt(2)));
        assert_eq!(expiry(b"2"), Some(None));
        assert_eq!(expiry(b"full chain"), Some(Some(LATER + 4)));
        assert_eq!(users.get_field(b"full chain", "age").unwrap(), Some(OwnedValue::UInt(4)));
        assert_eq!(expiry(b"gone"), None);
        assert_eq!(expiry(b"absent"), None);
        assert_eq!(expiry(b"new"), Some(None), "there was no row to expire when it was asked for");
        assert_eq!(expiry(b"newer"), Some(Some(LATER + 6)));
    };
    check(&users);
    let mut refused = Batch::new();
    refused.expire(&users, b"1", Expiry::Never).unwrap();
    refused.require_version(&users, b"2", Some(1)).unwrap();
    assert_eq!(db.write(refused).unwrap_err().kind(), ErrorKind::Conflict);
    check(&users);
    drop(users);
    db.close().unwrap();
    let db = Db::open_with(&dir, options()).unwrap();
    check(&db.table("users").unwrap());
    db.close().unwrap();
    std::fs::remove_dir_all(&dir).ok();
}

/// 0 ms is a time like any other, and long past. In the log 0 says that an expiry is taken away.
#[test]
fn an_expiry_of_zero_is_in_the_past() {
    let db = Db::open_at(tier(64 << 20), options(), Clock::manual(1_000)).unwrap();
    let users = users(&db);
    let absent = |key: &[u8]| users.get(key).unwrap().is_none() && !users.exists(key).unwrap();
    users.put_expiring(b"put", &row! { name: "Ada" }, Expiry::at_unix_ms(0)).unwrap();
    assert!(absent(b"put"));
    let put = |key: &[u8]| users.put(key, &row! { name: "Bob", mail: "b" }).unwrap();
    put(b"expired");
    assert!(users.expire(b"expired", Expiry::at_unix_ms(0)).unwrap());
    assert!(absent(b"expired"));
    put(b"modified");
    users.modify(b"modified", |_| Ok((Change::Expire(Expiry::at_unix_ms(0)), ()))).unwrap();
    assert!(absent(b"modified"));
    put(b"replaced");
    let fields = vec![("name".to_owned(), OwnedValue::Str("Cid".into()))];
    let change = Change::Put { fields, expiry: Expiry::at_unix_ms(0) };
    users.modify(b"replaced", |_| Ok((change.clone(), ()))).unwrap();
    assert!(absent(b"replaced"));
    put(b"full chain");
    (0..5u32).for_each(|age| users.update(b"full chain", &row! { age: age }).unwrap());
    assert!(users.expire(b"full chain", Expiry::at_unix_ms(0)).unwrap());
    assert!(absent(b"full chain"));
    put(b"field");
    assert!(users.expire_fields(b"field", &["mail"], Expiry::at_unix_ms(0)).unwrap());
    assert!(users.get_field(b"field", "mail").unwrap().unwrap().borrow().is_null());
    put(b"in a batch");
    put(b"updated in a batch");
    let mut batch = Batch::new();
    batch.put_expiring(&users, b"put in a batch", &row! { name: "Dan" }, Expiry::at_unix_ms(0)).unwrap();
    batch.expire(&users, b"in a batch", Expiry::at_unix_ms(0)).unwrap();
    batch.update(&users, b"updated in a batch", &row! { age: 1u32 }).unwrap();
    batch.expire(&users, b"updated in a batch", Expiry::at_unix_ms(0)).unwrap();
    db.write(batch).unwrap();
    assert!(absent(b"put in a batch") && absent(b"in a batch") && absent(b"updated in a batch"));
}

/// A batch is what its writes are one after the other: a row that one of them lets expire is not there for the next.
#[test]
fn a_batch_writes_anew_what_it_let_expire() {
    let one_by_one = |with: &dyn Fn(&Db, &Table)| {
        let db = Db::open_at(tier(64 << 20), options(), Clock::manual(1_000)).unwrap();
        let users = users(&db);
        for key in [b"1", b"2", b"3", b"4"] {
            users.put(key, &row! { name: "Ada", age: 1u32 }).unwrap();
        }
        with(&db, &users);
        let rows: Vec<_> = users.scan().map(|row| row.unwrap()).collect();
        rows.iter()
            .map(|row| {
                let name = row.get("name").unwrap().as_str().unwrap_or("").to_owned();
                (row.key().to_vec(), name, row.get("age").unwrap().as_u64(), row.expires_at_ms())
            })
            .collect::<Vec<_>>()
    };
    let single = one_by_one(&|_, users| {
        users.expire(b"1", Expiry::at_unix_ms(1_000)).unwrap();
        users.update(b"1", &row! { age: 2u32 }).unwrap();
        users.put_expiring(b"2", &row! { name: "Bob" }, Expiry::at_unix_ms(500)).unwrap();
        users.update(b"2", &row! { age: 3u32 }).unwrap();
        users.put_expiring(b"3", &row! { name: "Cid" }, Expiry::at_unix_ms(500)).unwrap();
        users.expire(b"3", Expiry::at_unix_ms(9_000)).unwrap();
        users.update(b"4", &row! { age: 4u32 }).unwrap();
        users.expire(b"4", Expiry::at_unix_ms(500)).unwrap();
        users.update(b"4", &row! { age: 5u32 }).unwrap();
        users.put_expiring(b"5", &row! { name: "Dan" }, Expiry::at_unix_ms(500)).unwrap();
    });
    let batched = one_by_one(&|db, users| {
        let mut batch = Batch::new();
        batch.expire(users, b"1", Expiry::at_unix_ms(1_000)).unwrap();
        batch.update(users, b"1", &row! { age: 2u32 }).unwrap();
        batch.put_expiring(users, b"2", &row! { name: "Bob" }, Expiry::at_unix_ms(500)).unwrap();
        batch.update(users, b"2", &row! { age: 3u32 }).unwrap();
        batch.put_expiring(users, b"3", &row! { name: "Cid" }, Expiry::at_unix_ms(500)).unwrap();
        batch.expire(users, b"3", Expiry::at_unix_ms(9_000)).unwrap();
        batch.update(users, b"4", &row! { age: 4u32 }).unwrap();
        batch.expire(users, b"4", Expiry::at_unix_ms(500)).unwrap();
        batch.update(users, b"4", &row! { age: 5u32 }).unwrap();
        batch.put_expiring(users, b"5", &row! { name: "Dan" }, Expiry::at_unix_ms(500)).unwrap();
        db.write(batch).unwrap();
    });
    assert_eq!(single.len(), 3);
    assert_eq!(batched, single);
}

/// A store with a small index, its table and the number of keys that fit.
fn with_full_index() -> (Db, Table, u32) {
    let db = Db::open_on(tier(64 << 20), Options { index_bytes_max: 256 << 10, ..options() }).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let put = |n: u32| flat.put(&n.to_be_bytes(), &[("value", Value::Bytes(b"v"))]);
    let count = (0..).find(|&n| put(n).is_err()).unwrap();
    assert!(count > 1_000);
    assert_eq!(put(count).unwrap_err().kind(), ErrorKind::Full);
    (db, flat, count)
}

/// What the message of a full index promises holds for batches, too.
#[test]
fn a_full_index_takes_batches_of_overwrites_and_deletes() {
    let (db, flat, count) = with_full_index();
    let mut batch = Batch::new();
    for n in 0..100u32 {
        batch.put(&flat, &n.to_be_bytes(), &[("value", Value::Bytes(b"w"))]).unwrap();
        batch.delete(&flat, &(100 + n).to_be_bytes()).unwrap();
    }
    db.write(batch).unwrap();
    assert_eq!(flat.len(), u64::from(count) - 100);
    assert_eq!(
        flat.get_field(&7u32.to_be_bytes(), "value").unwrap(),
        Some(OwnedValue::Bytes(b"w"[..].into()))
    );
    let mut batch = Batch::new();
    (0..100u32).for_each(|n| {
        batch.put(&flat, &(count + n).to_be_bytes(), &[("value", Value::Bytes(b"v"))]).unwrap()
    });
    assert_eq!(db.write(batch).unwrap_err().kind(), ErrorKind::Full);
}

/// The memory of an index that was cleared or dropped is there for the next rows, written singly or in a batch.
#[test]
fn a_cleared_table_gives_its_index_back() {
    let (db, flat, count) = with_full_index();
    let value = [("value", Value::Bytes(b"v"))];
    for round in 0..5 {
        flat.clear().unwrap();
        let in_a_batch = if round % 2 == 0 { 0 } else { 50 };
        let mut batch = Batch::new();
        (0..in_a_batch).for_each(|n: u32| batch.put(&flat, &n.to_be_bytes(), &value).unwrap());
        db.write(batch).unwrap();
        for n in in_a_batch..count {
            flat.put(&n.to_be_bytes(), &value).unwrap_or_else(|error| panic!("{n} of {count}: {error}"));
        }
    }
    db.drop_table("flat").unwrap();
    let flat = db.create_table("again", Schema::flat()).unwrap();
    (0..count).for_each(|n| flat.put(&n.to_be_bytes(), &value).unwrap());
}

#[test]
fn overwriting_for_ever_fits_a_bounded_tier() {
    let db = Db::open_on(tier(16 << 20), options()).unwrap();
    let blobs = db.create_table("blobs", Schema::flat()).unwrap();
    let value = vec![7u8; 1000];
    for i in 0..100_000u32 {
        let key = (i % 1000).to_be_bytes();
        let stamped = [&i.to_be_bytes()[..], &value].concat();
        let mut put = blobs.put(&key, &[("value", Value::Bytes(&stamped))]);
        while put.as_ref().is_err_and(|e| e.kind() == ErrorKind::Full) {
            assert!(db.collect().unwrap() > 0, "at {i}");
            put = blobs.put(&key, &[("value", Value::Bytes(&stamped))]);
        }
        put.unwrap();
    }
    for i in 99_000..100_000u32 {
        let read = blobs.get_field(&(i % 1000).to_be_bytes(), "value").unwrap().unwrap();
        assert_eq!(read.borrow().as_bytes().unwrap()[..4], i.to_be_bytes());
    }
}

#[test]
fn a_store_that_must_not_wait_says_busy() {
    let options = Options { background: true, wait_for_space: false, ..options() };
    let db = Db::open_on(tier(16 << 20), options).unwrap();
    let blobs = db.create_table("blobs", Schema::flat()).unwrap();
    let value = vec![7u8; 10_000];
    let (mut busy, mut idle) = (0, 0);
    for i in 0..20_000u32 {
        let key = (i % 100).to_be_bytes();
        while let Err(error) = blobs.put(&key, &[("value", Value::Bytes(&value))]) {
            assert_eq!(error.kind(), ErrorKind::Busy, "at {i}: {error}");
            busy += 1;
            idle += u32::from(!db.wait_for_space(std::time::Duration::from_millis(10)));
            assert!(idle < 100, "at {i}: nothing is freed");
        }
    }
    assert!(busy > 0);
}

#[test]
fn a_full_store_reads_and_deletes() {
    let options = Options { background: true, ..options() };
    let db = Db::open_on(tier(16 << 20), options).unwrap();
    let blobs = db.create_table("blobs", Schema::flat()).unwrap();
    let value = vec![7u8; 10_000];
    let mut written = 0u32;
    let error = loop {
        match blobs.put(&written.to_be_bytes(), &[("value", Value::Bytes(&value))]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(written > 800, "{written}");
    for i in 0..written {
        assert!(blobs.exists(&i.to_be_bytes()).unwrap());
    }
    for i in 0..written {
        assert!(blobs.delete(&i.to_be_bytes()).unwrap());
    }
    for i in 0..written / 2 {
        blobs.put(&i.to_be_bytes(), &[("value", Value::Bytes(&value))]).unwrap();
    }
    assert_eq!(blobs.len(), u64::from(written / 2));
}

#[test]
fn tables_are_cleared_and_dropped() {
    let db = db();
    let users = users(&db);
    users.put(b"1", &row! { name: "x" }).unwrap();
    users.clear().unwrap();
    assert!(users.is_empty() && !users.exists(b"1").unwrap());
    users.put(b"2", &row! { name: "y" }).unwrap();
    assert_eq!(users.len(), 1);
    assert!(db.drop_table("users").unwrap());
    assert!(!db.drop_table("users").unwrap());
    assert_eq!(users.put(b"2", &row! { name: "y" }).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(db.table_names().is_empty());
}

#[test]
fn rows_found_with_deltas_are_consolidated() {
    // A row in the cache is whole there, and its records in the log are left as they are.
    let options = Options { cache_mode: CacheMode::Off, ..Options::default() };
    let db = Db::open_on(tier(256 << 20), options).unwrap();
    let schema =
        Schema::new().field("a", Type::U32).field("b", Type::FixedBytes(50)).nullable("c", Type::String);
    let table = db.create_table("t", schema).unwrap();
    let key = |i: u32| format!("row {i:05}").into_bytes();
    for i in 0..1000 {
        table.put(&key(i), &row! { a: i, b: [7u8; 50].as_slice(), c: "before" }).unwrap();
        table.update(&key(i), &row! { a: i + 1 }).unwrap();
        table.update(&key(i), &row! { c: "after" }).unwrap();
    }
    let before = db.snapshot();
    let check = |found: Option<hedgerow::Row>, i: u32| {
        let found = found.unwrap();
        assert_eq!(
            (found.get("a").unwrap(), found.get("c").unwrap()),
            (Value::UInt(u64::from(i) + 1), Value::Str("after"))
        );
        assert_eq!(found.get("b").unwrap().as_bytes().unwrap(), [7; 50]);
    };
    let mut rounds = 0;
    while db.metrics().chains_merged < 1000 {
        (0..1000).for_each(|i| check(table.get(&key(i)).unwrap(), i));
        rounds += 1;
        assert!(rounds < 10_000, "consolidation never came: {:?}", db.metrics());
    }
    (0..1000).for_each(|i| check(table.get(&key(i)).unwrap(), i));
    (0..1000).for_each(|i| check(before.get(&table, &key(i)).unwrap(), i));
    assert_eq!(table.scan().count(), 1000);
}

#[test]
fn the_presence_of_a_field_is_told_without_its_value() {
    let db = db();
    let schema = Schema::new().field("a", Type::U32).nullable("b", Type::Bytes).nullable("c", Type::I64);
    let table = db.create_table("t", schema).unwrap();
    table.put(b"k", &row! { a: 1, b: "x" }).unwrap();
    let has = |field: &str| table.read(b"k", |row| row.has(field)).unwrap().unwrap();
    assert_eq!([has("a"), has("b"), has("c")], [true, true, false]);
    table.update(b"k", &[("b", Value::Null), ("c", Value::Int(-1))]).unwrap();
    assert_eq!([has("a"), has("b"), has("c")], [true, false, true]);
    assert!(table.read(b"k", |row| row.has("d")).is_err());
}

/// Who writes to a store that was closed is told that, and not of a failed sync.
#[test]
fn a_closed_store_says_so() {
    let db = db();
    let users = users(&db);
    users.put(b"1", &row! { name: "Ada" }).unwrap();
    let other = db.clone();
    db.close().unwrap();
    let errors = [
        users.put(b"2", &row! { name: "Bob" }).unwrap_err(),
        users.delete(b"1").unwrap_err(),
        users.clear().unwrap_err(),
        other.create_table("late", Schema::flat()).err().unwrap(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert_eq!(error.message(), "the store has been closed");
    }
    assert!(users.get(b"1").unwrap().is_some(), "reads go on");
}
