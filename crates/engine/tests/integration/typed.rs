//! Rows as Rust's types: what is read is what was written, or an error that says what is wrong.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hedgerow::{
    Batch, Change, Db, ErrorKind, Expiry, Options, OwnedValue, Scan, Schema, Table, Type, Value, row,
};
use hedgerow_device::{Clock, FastTier, FastTierOptions};

fn db() -> Db {
    let tier = FastTier::dram(&FastTierOptions { bytes_max: 64 << 20, ..FastTierOptions::default() });
    let options = Options { segment_bytes: 1 << 20, background: false, ..Options::default() };
    Db::open_on(tier.unwrap(), options).unwrap()
}

fn users(db: &Db) -> Table {
    let schema = Schema::new()
        .field("name", Type::String)
        .field("age", Type::U32)
        .field("joined", Type::Timestamp)
        .nullable("mail", Type::String);
    db.create_table("users", schema).unwrap()
}

#[test]
fn a_field_that_is_not_there_is_told_as_everywhere() {
    let db = db();
    let users = users(&db);
    users.put(b"1", &row! { name: "Ada", age: 36 }).unwrap();
    let whole = users.get(b"1").unwrap().unwrap();
    assert_eq!(whole.get("agee").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(whole.get("mail").unwrap(), Value::Null, "it may be absent");
    assert_eq!(whole.fields().map(|(name, _)| name).collect::<Vec<_>>(), ["name", "age", "joined"]);
    let part = users.get_fields(b"1", &["mail", "age"]).unwrap().unwrap();
    assert_eq!((part.get("age").unwrap(), part.get("mail").unwrap()), (Value::UInt(36), Value::Null));
    assert_eq!(part.fields().map(|(name, _)| name).collect::<Vec<_>>(), ["age"]);
    let error = part.get("name").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("\"name\" was not among those asked for"), "{error}");
    assert!(users.read(b"1", |row| row.get("agee").map(drop)).is_err());
    let age = users.field("age").unwrap();
    users.rename_field("age", "years").unwrap();
    let later = users.get(b"1").unwrap().unwrap();
    assert_eq!(later.get_as::<u32>(age).unwrap(), 36);
    assert_eq!(later.schema().field_by_name("years").unwrap().id(), age);
    assert_eq!(whole.get_as::<u32>("age").unwrap(), 36, "a row knows the schema it was read under");
}

#[test]
fn fields_are_read_as_types() {
    let db = db();
    let users = users(&db);
    let joined = UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
    users.put(b"1", &row! { name: "Ada", age: 300, joined: joined }).unwrap();
    let row = users.get(b"1").unwrap().unwrap();
    assert_eq!(row.get_as::<&str>("name").unwrap(), "Ada");
    assert_eq!(row.get_as::<String>("name").unwrap(), "Ada");
    assert_eq!(row.get_as::<u64>("age").unwrap(), 300);
    assert_eq!(row.get_as::<SystemTime>("joined").unwrap(), joined);
    assert_eq!(row.get_as::<Option<&str>>("mail").unwrap(), None);
    for (error, says) in [
        (row.get_as::<u8>("age").unwrap_err(), "field \"age\" holds the integer 300, which is no u8"),
        (row.get_as::<&str>("mail").unwrap_err(), "field \"mail\" is absent"),
        (row.get_as::<i64>("name").unwrap_err(), "field \"name\" holds a value of kind string"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().starts_with(says), "{error}");
    }
    let in_place = users.read(b"1", |row| Ok((row.get_as::<u32>("age")?, row.get_as::<u8>("age").is_err())));
    assert_eq!(in_place.unwrap(), Some((300, true)));
}

#[test]
fn a_span_is_a_span_and_a_date_a_date() {
    const NOW_MS: u64 = 1_700_000_000_000;
    let clock = Clock::manual(NOW_MS);
    let tier = FastTier::dram(&FastTierOptions { bytes_max: 64 << 20, ..FastTierOptions::default() });
    let options = Options { segment_bytes: 1 << 20, background: false, ..Options::default() };
    let db = Db::open_at(tier.unwrap(), options, clock.clone()).unwrap();
    let users = users(&db);
    let (minute, now) = (Duration::from_secs(60), UNIX_EPOCH + Duration::from_millis(NOW_MS));
    let expires_at = |key: &[u8]| users.get(key).unwrap().map(|row| row.expires_at());
    users.put_expiring(b"put", &row! { name: "x" }, minute).unwrap();
    users.put(b"set", &row! { name: "x" }).unwrap();
    users.expire(b"set", now + minute).unwrap();
    users.put_expiring(b"kept", &row! { name: "x" }, minute).unwrap();
    users.expire(b"kept", Expiry::Never).unwrap();
    users.put(b"field", &row! { name: "x", mail: "m" }).unwrap();
    users.expire_fields(b"field", &["mail"], minute).unwrap();
    let change = Change::Put { fields: vec![], expiry: minute.into() };
    users.modify(b"changed", |_| Ok((change.clone(), ()))).unwrap();
    let mut batch = Batch::new();
    batch.put_expiring(&users, b"batch", &row! { name: "x" }, minute).unwrap();
    batch.update_expiring(&users, b"batched field", &row! { mail: "m" }, minute).unwrap();
    clock.advance_ms(30_000);
    db.write(batch).unwrap();
    for key in [&b"put"[..], b"set", b"changed", b"batch"] {
        assert_eq!(expires_at(key), Some(Some(now + minute)), "{}", key.escape_ascii());
    }
    assert_eq!(expires_at(b"kept"), Some(None));
    for key in [&b"field"[..], b"batched field"] {
        let field = users.read(key, |row| Ok((row.expires_at(), row.field_expires_at("mail")?))).unwrap();
        assert_eq!(field, Some((None, Some(now + minute))), "{}", key.escape_ascii());
    }
    clock.advance_ms(30_000);
    assert!(expires_at(b"put").is_none() && expires_at(b"batch").is_none());
    assert_eq!(users.get_field(b"field", "mail").unwrap(), Some(OwnedValue::Null));
}

#[test]
fn rows_lie_in_the_order_of_their_keys_values() {
    let db = db();
    let table = db.create_table("t", Schema::new().field("n", Type::I64)).unwrap();
    let numbers = [i64::MIN, -70_000, -256, -255, -1, 0, 1, 255, 256, 70_000, i64::MAX];
    for n in numbers.iter().rev() {
        table.put(n, &row! { n: *n }).unwrap();
    }
    let keys = |scan: Scan| scan.map(|row| row.unwrap().key_as::<i64>().unwrap()).collect::<Vec<_>>();
    assert_eq!(keys(table.scan()), numbers);
    assert_eq!(table.get(&-1).unwrap().unwrap().get_as::<i64>("n").unwrap(), -1);
    assert_eq!(table.get(&255u8).unwrap().unwrap().get_as::<i64>("n").unwrap(), 255, "of any type");
    let many = table.multi_get(&[256u16, 257]).unwrap();
    assert!(many[0].is_some() && many[1].is_none());
    let events = db.create_table("events", Schema::new().field("n", Type::U32)).unwrap();
    let pairs = [(1, "a"), (1, "a\0"), (1, "b"), (2, ""), (300, "a")];
    let mut batch = Batch::new();
    for (i, pair) in pairs.iter().enumerate().rev() {
        batch.put(&events, pair, &row! { n: i }).unwrap();
    }
    db.write(batch).unwrap();
    let rows: Vec<_> = events.scan().map(|row| row.unwrap().key_as::<(u32, String)>().unwrap()).collect();
    assert_eq!(rows, pairs.map(|(n, text)| (n, text.to_owned())));
    assert_eq!(events.increment(&(2, ""), "n", 10).unwrap(), 13);
    assert_eq!(events.read(&(2, ""), |row| row.key_as::<(u8, String)>()).unwrap(), Some((2, String::new())));
    assert_eq!(
        events.get(&(1, "a")).unwrap().unwrap().key_as::<u64>().unwrap_err().kind(),
        ErrorKind::Invalid
    );
    assert_eq!(events.put("", &row! { n: 1 }).unwrap_err().kind(), ErrorKind::Invalid, "a key has a byte");
}

#[test]
fn strings_and_bytes_are_keys_as_they_are() {
    let db = db();
    let users = users(&db);
    users.put("ada", &row! { name: "Ada" }).unwrap();
    for found in [
        users.get(b"ada"),
        users.get(&b"ada"[..]),
        users.get(&"ada".to_owned()),
        users.get(&vec![b'a', b'd', b'a']),
    ] {
        assert_eq!(found.unwrap().unwrap().key(), b"ada");
    }
    assert_eq!(users.get("ada").unwrap().unwrap().key_as::<String>().unwrap(), "ada");
}
