//! Rows as Rust's types: what is read is what was written, or an error that says what is wrong.

use std::ops::Bound;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hedgerow::{
    Batch, Change, Db, ErrorKind, Expiry, Options, OwnedValue, Scan, Schema, Table, TableChanges, Type,
    TypedRow, Value, row,
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

#[test]
fn a_table_is_brought_up_to_what_a_program_knows() {
    let db = db();
    let first = Schema::new().field("name", Type::String).field("age", Type::U32);
    let users = db.ensure_table("users", first.clone()).unwrap();
    users.put("ada", &row! { name: "Ada", age: 36 }).unwrap();
    let second = Schema::new().field("age", Type::U32).nullable("mail", Type::String).field_with_default(
        "level",
        Type::U8,
        3,
    );
    let users = db.ensure_table("users", second.clone()).unwrap();
    let names =
        |table: &Table| table.schema().fields().iter().map(|f| f.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&users), ["name", "age", "mail", "level"]);
    let ada = users.get("ada").unwrap().unwrap();
    assert_eq!((ada.get_as::<u8>("level").unwrap(), ada.get_as::<u32>("age").unwrap()), (3, 36));
    let before = db.metrics();
    for schema in [first, second] {
        db.ensure_table("users", schema).unwrap();
    }
    assert_eq!(db.metrics().fast_tier_bytes, before.fast_tier_bytes, "nothing is written again");
    let other = Schema::new()
        .field("name", Type::Bytes)
        .nullable("age", Type::U32)
        .field_with_default("level", Type::U8, 4)
        .field("new", Type::Bool);
    let error = db.ensure_table("users", other).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Exists);
    assert_eq!(
        error.message(),
        "the table \"users\" differs: field \"name\" is string there and bytes here; field \"age\" is u32 there and u32 \
         and nullable here; field \"level\" is u8 with default 3 there and u8 with default 4 here"
    );
    assert_eq!(names(&users).len(), 4, "nothing was added");
    let error = db.ensure_table("users", Schema::open()).err().unwrap();
    assert!(error.message().contains("it is not open there and open here"), "{error}");
    let mut changes = TableChanges::new();
    changes.ensure("users", Schema::new().field("more", Type::Bool)).ensure("others", Schema::flat());
    db.change_tables(&changes).unwrap();
    assert_eq!((names(&users).len(), db.table_names()), (5, vec!["others".to_owned(), "users".to_owned()]));
}

#[test]
fn the_bounds_of_a_scan_all_hold() {
    let db = db();
    let table = db.create_table("t", Schema::flat()).unwrap();
    for key in ["a", "ab", "abc", "abd", "ac", "b", "ba"] {
        table.put(key, &row! { value: key }).unwrap();
    }
    let keys =
        |scan: Scan| scan.map(|row| row.unwrap().key_as::<String>().unwrap()).collect::<Vec<_>>().join(" ");
    let all = || table.scan();
    assert_eq!(keys(all().range("ab".."b")), "ab abc abd ac");
    assert_eq!(keys(all().range("ab"..="b")), "ab abc abd ac b");
    assert_eq!((keys(all().range("b"..)), keys(all().range(..="ab"))), ("b ba".into(), "a ab".into()));
    assert_eq!(keys(all().range((Bound::Excluded("ab"), Bound::Excluded("ac")))), "abc abd");
    assert_eq!(keys(all().from("abd").prefix("ab")), "abd");
    assert_eq!(keys(all().prefix("ab").from("a").after("ab")), "abc abd", "the narrower bound holds");
    assert_eq!(keys(all().prefix("ab").range(.."abd").reverse()), "abc ab");
    assert_eq!(keys(all().prefix("a").prefix("ab").range(..)), "ab abc abd");
    for nothing in [
        all().prefix("a").prefix("b"),
        all().range("b".."a"),
        all().range("a".."a"),
        all().after("a").range(..="a"),
    ] {
        assert_eq!(keys(nothing), "");
    }
    assert_eq!(keys(all().range("b".."a").limit(5)), "", "a limit brings nothing back");
    assert_eq!(keys(all().range("a"..="a").reverse()), "a");
    assert_eq!(keys(all().prefix(&[0xFFu8][..])), "");
    let tuples = db.create_table("tuples", Schema::flat()).unwrap();
    for key in [("a", 1), ("a", 300), ("a\0", 1), ("b", 0)] {
        tuples.put(&key, &row! { value: "" }).unwrap();
    }
    assert_eq!(tuples.scan().prefix(&("a",)).count(), 2, "not those of a longer string");
    assert_eq!(tuples.scan().prefix(&("a",)).from(&("a", 2)).count(), 1);
    assert_eq!(tuples.scan().range(("a", 1)..("a", 300)).count(), 1);
}

#[test]
fn a_snapshot_reads_all_that_a_table_reads() {
    let db = db();
    let users = users(&db);
    users.put("ada", &row! { name: "Ada", age: 36 }).unwrap();
    users.put("bob", &row! { name: "Bob" }).unwrap();
    let version = users.version("ada").unwrap();
    let then = db.snapshot();
    users.update("ada", &row! { age: 37, mail: "a@b" }).unwrap();
    users.delete("bob").unwrap();
    users.put("cyd", &row! { name: "Cyd" }).unwrap();
    let age = |row: &hedgerow::RowRef<'_>| row.get_as::<u32>("age");
    assert_eq!(then.get(&users, "ada").unwrap().unwrap().get_as::<u32>("age").unwrap(), 36);
    assert_eq!(then.get_field(&users, "ada", "mail").unwrap(), Some(OwnedValue::Null));
    assert_eq!(then.get_fields(&users, "ada", &["age"]).unwrap().unwrap().fields().count(), 1);
    assert_eq!(
        (then.read(&users, "ada", age).unwrap(), users.read("ada", age).unwrap()),
        (Some(36), Some(37))
    );
    assert_eq!(then.read_fields(&users, "ada", &["age"], age).unwrap(), Some(36));
    assert_eq!(then.version(&users, "ada").unwrap(), version);
    assert_ne!(users.version("ada").unwrap(), version);
    let exists = ["ada", "bob", "cyd"].map(|key| then.exists(&users, key).unwrap());
    assert_eq!(exists, [true, true, false]);
    let names: Vec<Option<String>> = then
        .multi_get(&users, &["cyd", "bob", "ada"])
        .unwrap()
        .into_iter()
        .map(|row| row.map(|row| row.get_as("name").unwrap()))
        .collect();
    assert_eq!(names, [None, Some("Bob".into()), Some("Ada".into())]);
    let mut ages = Vec::new();
    then.read_many(&users, &["ada", "bob"], |row| {
        ages.push(row.map(age).transpose()?);
        Ok(())
    })
    .unwrap();
    assert_eq!(ages, [Some(36), Some(0)]);
    assert_eq!(then.scan(&users).count(), 2);
    let elsewhere = self::db();
    let other = self::users(&elsewhere);
    other.put("ada", &row! { name: "another" }).unwrap();
    let refused = [
        then.get(&other, "ada").err(),
        then.scan(&other).next().unwrap().err(),
        then.exists(&other, "x").err(),
    ];
    assert!(refused.into_iter().all(|error| error.unwrap().kind() == ErrorKind::Invalid));
    assert_eq!(then.scan(&other).for_each(|_, _| Ok(true)).unwrap_err().kind(), ErrorKind::Invalid);
}

#[derive(hedgerow::Row, Debug, Clone, PartialEq)]
struct User {
    name: String,
    #[row(rename = "years", default = 18)]
    age: u32,
    joined: SystemTime,
    mail: Option<String>,
    tag: [u8; 4],
    score: f64,
}

#[test]
fn a_struct_is_a_row() {
    let db = db();
    let users = db.ensure_table("users", User::schema()).unwrap();
    let fields: Vec<_> = users.schema().fields().iter().map(|f| (f.name().to_owned(), f.kind())).collect();
    let kinds = [Type::String, Type::U32, Type::Timestamp, Type::String, Type::FixedBytes(4), Type::F64];
    let names = ["name", "years", "joined", "mail", "tag", "score"];
    assert_eq!(fields, names.map(str::to_owned).into_iter().zip(kinds).collect::<Vec<_>>());
    let joined = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let ada = User { name: "Ada".into(), age: 36, joined, mail: None, tag: *b"abcd", score: 0.5 };
    users.put_row("ada", &ada).unwrap();
    assert_eq!(users.get_row("ada").unwrap(), Some(ada.clone()));
    assert_eq!(User::from_row(&users.get("ada").unwrap().unwrap()).unwrap(), ada);
    let mut batch = Batch::new();
    let grace = User { mail: Some("grace@navy.mil".into()), ..ada.clone() };
    batch.put_row(&users, "grace", &grace).unwrap();
    db.write(batch).unwrap();
    let then = db.snapshot();
    users.update("grace", &row! { years: 46 }).unwrap();
    assert_eq!(users.get_row::<User>("grace").unwrap().unwrap().age, 46);
    assert_eq!(then.get_row(&users, "grace").unwrap(), Some(grace));
    users.put("new", &row! { name: "New" }).unwrap();
    assert_eq!(users.get_row::<User>("new").unwrap().unwrap().age, 18, "the default of the schema");
    assert_eq!(users.get_row::<User>("nobody").unwrap(), None);
    let part = users.get_fields("ada", &["name"]).unwrap().unwrap();
    assert_eq!(User::from_row(&part).unwrap_err().kind(), ErrorKind::NotFound, "not asked for");
    users.drop_field("score").unwrap();
    assert_eq!(users.get_row::<User>("ada").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(users.put_row("ada", &ada).unwrap_err().kind(), ErrorKind::NotFound);
}
