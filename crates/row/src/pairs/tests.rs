//! Rows over pairs in memory: what tables promise, attempts that fail and are made again, and many who write.

mod answers;
mod cleared;

use std::collections::HashSet;

use super::*;
use crate::backend::memory::MemoryBackend;
use crate::backend::pair_key;
use crate::schema::plan::FieldExpiries;
use crate::{Change, Expiry, Type, Value, row};

fn users() -> Schema {
    Schema::new().field("name", Type::String).field("age", Type::I64).nullable("mail", Type::String)
}

struct Fixture {
    backend: MemoryBackend,
    clock: Clock,
    db: PairDb,
}

fn fixture() -> Fixture {
    let (backend, clock) = (MemoryBackend::default(), Clock::manual(1_000));
    let db = PairDb::open_at(Arc::new(backend.clone()), clock.clone());
    Fixture { backend, clock, db }
}

impl Fixture {
    /// Another process with the same backend.
    fn other(&self) -> PairDb {
        PairDb::open_at(Arc::new(self.backend.clone()), self.clock.clone())
    }
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().expect("it is to fail").kind()
}

fn age(table: &PairTable, key: &[u8]) -> Option<i64> {
    table.get_field(key, "age").unwrap().map(|age| age.borrow().as_i64().unwrap())
}

#[test]
fn rows_are_written_and_read() {
    let users = fixture().db.create_table("users", users()).unwrap();
    users.put(b"42", &row! { name: "Ada", age: 36 }).unwrap();
    users.update(b"42", &row! { age: 37, mail: "a@b" }).unwrap();
    let row = users.get(b"42").unwrap().unwrap();
    let shown: Vec<_> = row.fields().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert_eq!((row.key(), age(&users, b"42")), (&b"42"[..], Some(37)));
    users.update(b"42", &row! { mail: None::<&str> }).unwrap();
    assert_eq!(users.get_field(b"42", "mail").unwrap().unwrap(), crate::OwnedValue::Null);
    assert_eq!(kind(users.get_field(b"42", "colour")), ErrorKind::NotFound);
    assert_eq!(kind(users.update(b"42", &row! { colour: 1 })), ErrorKind::NotFound);
    assert_eq!(kind(users.put(b"", &row! { age: 1 })), ErrorKind::Invalid);
    assert_eq!(kind(users.put(&[0; KEY_BYTES_MAX + 1], &row! { age: 1 })), ErrorKind::Invalid);
    assert!(users.update_existing(b"42", &row! { age: 38 }).unwrap());
    assert!(!users.update_existing(b"43", &row! { age: 38 }).unwrap());
    assert_eq!(users.increment(b"43", "age", 5).unwrap(), 5);
    assert_eq!(kind(users.increment(b"43", "age", i64::MAX)), ErrorKind::Invalid);
    assert!(users.compare_and_set(b"43", "age", Value::Int(5), Value::Int(6)).unwrap());
    assert!(!users.compare_and_set(b"43", "age", Value::Int(5), Value::Int(7)).unwrap());
    let rows = users.multi_get(&[&b"43"[..], b"44", b"42"]).unwrap();
    assert_eq!(rows.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(users.len().unwrap(), 2);
    assert!(users.delete(b"42").unwrap() && !users.delete(b"42").unwrap());
    assert!(!users.exists(b"42").unwrap() && users.exists(b"43").unwrap());
}

#[test]
fn keys_are_bytes_strings_and_values_in_order() {
    let users = fixture().db.create_table("users", users()).unwrap();
    users.put("ada", &row! { age: 1 }).unwrap();
    users.put(&42, &row! { age: 2 }).unwrap();
    users.put(&(7, "x"), &row! { age: 3 }).unwrap();
    assert_eq!(age(&users, b"ada"), Some(1));
    assert_eq!(users.get(&42u64).unwrap().unwrap().key_as::<u8>().unwrap(), 42);
    assert!(users.exists(&(7u8, "x")).unwrap() && users.delete(&(7, "x")).unwrap());
    assert_eq!(users.multi_get(&["ada", "bob"]).unwrap().iter().flatten().count(), 1);
}

#[test]
fn versions_change_with_each_write_and_come_back_never() {
    let users = fixture().db.create_table("users", users()).unwrap();
    let mut seen = HashSet::new();
    for round in 0..3 {
        users.put(b"k", &row! { age: round }).unwrap();
        assert!(seen.insert(users.version(b"k").unwrap()));
        users.update(b"k", &row! { age: round }).unwrap();
        assert!(seen.insert(users.version(b"k").unwrap()));
        users.delete(b"k").unwrap();
        assert_eq!(users.version(b"k").unwrap(), None);
    }
}

#[test]
fn everybody_has_the_same_tables() {
    let fixture = fixture();
    let (here, there) = (fixture.db.clone(), fixture.other());
    let mine = here.create_table("users", users()).unwrap();
    let theirs = there.create_table("users", users()).unwrap();
    assert_eq!(kind(there.create_table("users", Schema::flat())), ErrorKind::Exists);
    assert_eq!(kind(there.table("items")), ErrorKind::NotFound);
    assert_eq!(kind(there.create_table("", Schema::flat())), ErrorKind::Invalid);
    mine.put(b"k", &row! { name: "Ada", age: 1 }).unwrap();
    theirs.add_field_with_default("score", Type::I32, 7).unwrap();
    assert_eq!(mine.get_field(b"k", "score").unwrap().unwrap().borrow(), Value::Int(7));
    theirs.update(b"k", &row! { score: 9 }).unwrap();
    assert_eq!(mine.get_field(b"k", "score").unwrap().unwrap().borrow(), Value::Int(9));
    theirs.rename_field("score", "points").unwrap();
    assert_eq!(kind(mine.get_field(b"k", "score")), ErrorKind::NotFound);
    theirs.drop_field("points").unwrap();
    assert_eq!(kind(mine.add_field("name", Type::U8)), ErrorKind::Exists);
    there.create_table("items", Schema::open()).unwrap();
    assert_eq!(here.table_names().unwrap(), ["items", "users"]);
    theirs.clear().unwrap();
    assert_eq!((mine.len().unwrap(), mine.exists(b"k").unwrap()), (0, false));
    mine.put(b"k", &row! { age: 2 }).unwrap();
    assert_eq!(age(&theirs, b"k"), Some(2));
    assert!(there.drop_table("users").unwrap() && !there.drop_table("users").unwrap());
    assert_eq!(kind(mine.get(b"k")), ErrorKind::NotFound);
    let again = there.create_table("users", users()).unwrap();
    again.put(b"k", &row! { age: 3 }).unwrap();
    assert_eq!(kind(mine.get(b"k")), ErrorKind::NotFound, "it is another table");
    assert_eq!(kind(mine.clear()), ErrorKind::NotFound);
    assert_eq!(kind(mine.drop_field("age")), ErrorKind::NotFound);
    assert_eq!(age(&here.table("users").unwrap(), b"k"), Some(3));
}

#[test]
fn open_tables_learn_names_whoever_teaches_them() {
    let fixture = fixture();
    let mine = fixture.db.create_table("bag", Schema::open()).unwrap();
    let theirs = fixture.other().table("bag").unwrap();
    let tables = [mine, theirs];
    std::thread::scope(|scope| {
        for (at, table) in tables.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..40 {
                    let (own, same) = (format!("own{at}-{round}"), format!("same{round}"));
                    let fields = [(own.as_str(), Value::Bytes(b"v")), (same.as_str(), Value::Bytes(b"w"))];
                    table.update(format!("k{at}").as_bytes(), &fields).unwrap();
                }
            });
        }
    });
    for (at, table) in tables.iter().enumerate() {
        let row = table.get(format!("k{at}").as_bytes()).unwrap().unwrap();
        assert_eq!(row.fields().count(), 80);
        assert_eq!(table.schema().unwrap().fields().len(), 120);
    }
}

#[test]
fn counts_of_many_writers_are_exact() {
    const THREADS: i64 = 3;
    const EACH: i64 = 500;
    let fixture = fixture();
    fixture.db.create_table("users", users()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let users = fixture.other().table("users").unwrap();
            scope.spawn(move || {
                for round in 0..EACH {
                    match (thread + round) % 3 {
                        0 => drop(users.increment(b"k", "age", 1).unwrap()),
                        1 => users
                            .modify(b"k", |row| {
                                let age =
                                    row.map_or(Ok(Some(0)), |row| row.get("age").map(|age| age.as_i64()))?;
                                let fields =
                                    vec![("age".to_owned(), Value::Int(age.unwrap() + 1).to_owned())];
                                Ok((Change::Put { fields, expiry: Expiry::Never }, ()))
                            })
                            .unwrap(),
                        _ => loop {
                            let age = age(&users, b"k");
                            let (old, new) = (Value::Int(age.unwrap_or(0)), Value::Int(age.unwrap_or(0) + 1));
                            let old = if age.is_none() { Value::Null } else { old };
                            if users.compare_and_set(b"k", "age", old, new).unwrap() {
                                break;
                            }
                        },
                    }
                }
            });
        }
    });
    assert_eq!(age(&fixture.db.table("users").unwrap(), b"k"), Some(THREADS * EACH));
}

#[test]
fn rows_and_fields_expire() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    users.put_expiring(b"k", &row! { age: 1 }, Expiry::at_unix_ms(2_000)).unwrap();
    users.update(b"k", &row! { age: 2 }).unwrap();
    users.update_expiring(b"k", &row! { mail: "m" }, Expiry::at_unix_ms(1_500)).unwrap();
    assert_eq!(
        kind(users.update_expiring(b"k", &row! { age: 2 }, Expiry::at_unix_ms(1_500))),
        ErrorKind::Invalid
    );
    let expiries = || {
        users.read(b"k", |row| Ok((row.expires_at_ms(), row.field_expires_at_ms("mail")?, row.has("mail")?)))
    };
    assert_eq!(expiries().unwrap(), Some((Some(2_000), Some(1_500), true)));
    fixture.clock.advance_ms(500);
    assert_eq!(expiries().unwrap(), Some((Some(2_000), None, false)));
    assert!(users.expire(b"k", Expiry::at_unix_ms(3_000)).unwrap());
    fixture.clock.advance_ms(1_499);
    assert_eq!(age(&users, b"k"), Some(2));
    assert_eq!(users.len().unwrap(), 1);
    fixture.clock.advance_ms(1);
    assert!(!users.exists(b"k").unwrap());
    assert_eq!(users.len().unwrap(), 0, "who found it expired has removed it");
    assert!(!users.expire(b"k", Expiry::Never).unwrap());
    // A write over an expired row finds none.
    users.put_expiring(b"k", &row! { age: 1 }, Expiry::at_unix_ms(4_000)).unwrap();
    fixture.clock.advance_ms(2_000);
    assert_eq!(users.increment(b"k", "age", 1).unwrap(), 1);
    users.expire(b"k", Expiry::at_unix_ms(1)).unwrap();
    assert!(!users.exists(b"k").unwrap());
    users.put_expiring(b"k", &row! { age: 1 }, Expiry::at_unix_ms(1)).unwrap();
    assert!(!users.exists(b"k").unwrap());
    assert!(users.update_existing(b"k", &row! { age: 1 }).is_ok_and(|exists| !exists));
}

#[test]
fn a_walk_comes_by_all_that_stays() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    for n in 0..100_i64 {
        users.put(&n.to_be_bytes(), &row! { age: n }).unwrap();
        users.put_expiring(&(n + 1_000).to_be_bytes(), &row! { age: n }, Expiry::at_unix_ms(1_500)).unwrap();
    }
    fixture.clock.advance_ms(1_000);
    let (mut seen, mut from) = (HashSet::new(), Some(WalkCursor::START));
    while let Some(at) = from {
        from = users
            .walk(&at, 7, |row| {
                seen.insert(row.get("age")?.as_i64());
                assert_eq!(row.key()[..7], [0; 7]);
                Ok(())
            })
            .unwrap();
        users.put(&5_000_i64.to_be_bytes(), &row! { age: 0 }).unwrap();
        users.delete(&5_000_i64.to_be_bytes()).unwrap();
    }
    assert_eq!(seen.len(), 100);
    let half = users.walk(&WalkCursor::START, 50, |_| Ok(())).unwrap().unwrap();
    users.clear().unwrap();
    users.put(b"k", &row! { age: 0 }).unwrap();
    let after = users.walk(&half, 50, |_| panic!("nothing of it was there throughout")).unwrap();
    assert_eq!(after, None);
}

/// Runs what an attempt wants once, as who must not wait does.
fn fetch(db: &PairDb, transaction: &mut Transaction) {
    transaction.fetch(&mut *db.session().unwrap()).unwrap();
}

#[test]
fn an_attempt_that_is_made_again_changes_once() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    users.put(b"a", &row! { age: 1 }).unwrap();
    let mut transaction = fixture.db.transaction();
    let add = |transaction: &mut Transaction| {
        let age = transaction.read("users", b"a", |row| Ok(row.unwrap().get("age")?.as_i64().unwrap()))?;
        let fields = row! { age: age + 1 };
        transaction.edit("users", b"a", &Edit::Update(&fields, FieldExpiries::All(None)))?;
        // Wanted only now, and so the run begins again.
        transaction.count("users")
    };
    assert_eq!(kind(add(&mut transaction)), ErrorKind::NotInMemory);
    fetch(&fixture.db, &mut transaction);
    assert_eq!(kind(add(&mut transaction)), ErrorKind::NotInMemory);
    assert!(transaction.has_changes());
    fetch(&fixture.db, &mut transaction);
    assert!(!transaction.has_changes());
    assert_eq!(add(&mut transaction).unwrap(), 1);
    let own = transaction.read("users", b"a", |row| Ok(row.unwrap().get("age")?.as_i64())).unwrap();
    assert_eq!((own, age(&users, b"a")), (Some(2), Some(1)), "an attempt sees its change, nobody else does");
    transaction.commit(&mut *fixture.db.session().unwrap()).unwrap();
    assert_eq!(age(&users, b"a"), Some(2));
}

#[test]
fn a_commit_goes_over_what_was_read_only() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    let mut session = fixture.db.session().unwrap();
    let edit = |age: i64| [("age", Value::Int(age))];
    // (what is there, what becomes of it meanwhile)
    for (before, meanwhile) in [(None, Some(5)), (Some(1), Some(5)), (Some(1), Some(1)), (Some(1), None)] {
        users.delete(b"a").unwrap();
        before.into_iter().for_each(|age| users.put(b"a", &edit(age)).unwrap());
        let mut transaction = fixture.db.transaction();
        transaction.prefetch("users", b"a");
        transaction.fetch(&mut *session).unwrap();
        let was = transaction.seen("users", b"a").unwrap();
        assert_eq!(was.is_some(), before.is_some());
        let update = Edit::Update(&edit(9), FieldExpiries::All(None));
        assert_eq!(transaction.edit("users", b"a", &update).unwrap(), before.is_some());
        users.delete(b"a").unwrap();
        meanwhile.into_iter().for_each(|age| users.put(b"a", &edit(age)).unwrap());
        assert_eq!(kind(transaction.commit(&mut *session)), ErrorKind::Conflict, "{before:?} {meanwhile:?}");
        assert_eq!(age(&users, b"a"), meanwhile);
        transaction.restart();
        transaction.prefetch("users", b"a");
        transaction.fetch(&mut *session).unwrap();
        transaction.edit("users", b"a", &update).unwrap();
        transaction.commit(&mut *session).unwrap();
        assert_eq!(age(&users, b"a"), Some(9));
        let mut other = fixture.db.transaction();
        other.prefetch("users", b"a");
        other.fetch(&mut *session).unwrap();
        assert_ne!(other.seen("users", b"a").unwrap(), was);
    }
}

#[test]
fn a_commit_of_more_than_one_row_is_refused() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    let fields = row! { age: 1 };
    let put = Edit::Put(&fields, None);
    let two = fixture.db.transact(|transaction| {
        transaction.edit("users", b"a", &put)?;
        transaction.edit("users", b"b", &put)
    });
    assert_eq!(kind(two), ErrorKind::Unsupported);
    let depends = fixture.db.transact(|transaction| {
        transaction.read("users", b"b", |_| Ok(()))?;
        transaction.edit("users", b"a", &put)
    });
    assert_eq!(kind(depends), ErrorKind::Unsupported);
    assert!(users.is_empty().unwrap());
}

/// Where several pairs may change together, what depends on several rows is stored if all of them, and their tables, are what was read.
#[test]
fn a_commit_of_several_rows_is_one_step() {
    let backend = MemoryBackend::with_batches();
    let db = PairDb::open(Arc::new(backend));
    let table = db.create_table("users", users()).unwrap();
    let put = |key: &'static [u8], age: i64| (key, age);
    let all = [put(b"a", 1), put(b"b", 2), put(b"c", 3)];
    db.transact(|transaction| {
        transaction.read("users", b"d", |row| {
            assert!(row.is_none());
            Ok(())
        })?;
        all.iter().try_for_each(|(key, age)| {
            transaction.edit("users", key, &Edit::Put(&row! { age: *age }, None)).map(drop)
        })
    })
    .unwrap();
    let age = |key: &[u8]| table.get(key).unwrap().map(|row| row.get("age").unwrap().as_i64().unwrap());
    assert_eq!((age(b"a"), age(b"b"), age(b"c")), (Some(1), Some(2), Some(3)));

    // Each thing that it depends on has it made again once it is another.
    let interferences: [&dyn Fn(); 4] = [
        &|| table.put("b", &row! { age: 20 }).unwrap(),
        &|| table.put("d", &row! { age: 4 }).unwrap(),
        &|| drop(db.create_table("new", users()).unwrap()),
        &|| table.clear().unwrap(),
    ];
    for interfere in interferences {
        let (mut runs, mut session) = (0, db.session().unwrap());
        let mut transaction = db.transaction();
        let run = |transaction: &mut Transaction| -> Result<()> {
            transaction.read("users", b"b", |_| Ok(()))?;
            transaction.read("users", b"d", |_| Ok(()))?;
            transaction.schema("new")?;
            transaction.edit("users", b"a", &Edit::Put(&row! { age: 7 }, None))?;
            transaction.edit("users", b"e", &Edit::Put(&row! { age: 7 }, None)).map(drop)
        };
        loop {
            match run(&mut transaction) {
                Ok(()) if runs == 0 => {
                    runs += 1;
                    interfere();
                    let refused = transaction.commit(&mut *session);
                    assert_eq!(kind(refused), ErrorKind::Conflict);
                    assert_eq!(age(b"e"), None, "nothing of it happened");
                    transaction.restart();
                }
                Ok(()) => break transaction.commit(&mut *session).unwrap(),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotInMemory);
                    transaction.fetch(&mut *session).unwrap();
                }
            }
        }
        assert_eq!((age(b"a"), age(b"e")), (Some(7), Some(7)));
        table.delete("e").unwrap();
    }
}

/// A batch of the library over several rows: whole or not at all, each row's changes in their order.
#[test]
fn a_batch_changes_several_rows() {
    let db = PairDb::open(Arc::new(MemoryBackend::with_batches()));
    let table = db.create_table("users", users()).unwrap();
    table.put("a", &row! { age: 1 }).unwrap();
    let mut batch = PairBatch::new();
    batch.increment(&table, "a", "age", 5).unwrap();
    batch.put(&table, "b", &row! { age: 1 }, Expiry::Never).unwrap();
    batch.delete(&table, "b").unwrap();
    batch.put(&table, "b", &row! { age: 9 }, Expiry::Never).unwrap();
    batch.require_version(&table, "c", None).unwrap();
    db.write(&batch).unwrap();
    let age = |key: &str| table.get(key).unwrap().map(|row| row.get("age").unwrap().as_i64().unwrap());
    assert_eq!((age("a"), age("b")), (Some(6), Some(9)));
    table.put("c", &row! { age: 0 }).unwrap();
    assert_eq!(kind(db.write(&batch)), ErrorKind::Conflict);
    assert_eq!((age("a"), age("b"), age("c")), (Some(6), Some(9), Some(0)));
}

#[test]
fn what_is_not_what_was_stored_is_corrupted() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    users.put(b"a", &row! { name: "Ada", age: 1 }).unwrap();
    let mut session = fixture.db.session().unwrap();
    let group = fixture.db.store.look(&mut *session, "users").unwrap().unwrap().entry.group;
    let pair = get(&mut *session, &pair_key(group, b"a")).unwrap().unwrap();
    put(&mut *session, &pair_key(group, b"b"), &pair.value, Expect::Any).unwrap();
    assert_eq!(kind(users.get(b"b")), ErrorKind::Corrupted, "under another key");
    let mut spoiled = pair.value.to_vec();
    *spoiled.last_mut().unwrap() ^= 1;
    put(&mut *session, &pair_key(group, b"a"), &spoiled, Expect::Any).unwrap();
    assert_eq!(kind(users.get(b"a")), ErrorKind::Corrupted);
    put(&mut *session, &entry_key("users"), b"nonsense", Expect::Any).unwrap();
    assert_eq!(kind(users.get(b"a")), ErrorKind::Corrupted);
    assert_eq!(fixture.db.table_names().unwrap(), ["users"]);
    put(&mut *session, &counter_key(), b"nonsense", Expect::Any).unwrap();
    assert_eq!(kind(fixture.db.create_table("items", Schema::flat())), ErrorKind::Corrupted);
}

#[test]
fn a_batch_is_of_one_store_and_its_keys_can_be() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    let mut batch = PairBatch::new();
    batch.put(&users, b"k", &row! { age: 1 }, Expiry::Never).unwrap();
    batch.expire(&users, b"k", Expiry::at_unix_ms(9_000)).unwrap();
    batch.require_version(&users, b"k", None).unwrap();
    // The tables of another store have the same names and numbers, and are others.
    let other = PairDb::open_at(Arc::new(MemoryBackend::default()), fixture.clock.clone());
    let others = other.create_table("users", self::users()).unwrap();
    assert_eq!(kind(other.write(&batch)), ErrorKind::Invalid);
    // So they are of another handle on the same backend, which has its own clock.
    assert_eq!(kind(fixture.other().write(&batch)), ErrorKind::Invalid);
    assert!(others.is_empty().unwrap() && users.is_empty().unwrap());
    fixture.db.write(&batch).unwrap();
    assert_eq!(age(&users, b"k"), Some(1));
    assert_eq!(kind(fixture.db.write(&batch)), ErrorKind::Conflict, "there is a row now");

    let (empty, long) = (b"".as_slice(), [0; KEY_BYTES_MAX + 1]);
    for key in [empty, &long] {
        let mut batch = PairBatch::new();
        assert_eq!(kind(batch.put(&users, key, &row! { age: 1 }, Expiry::Never)), ErrorKind::Invalid);
        assert_eq!(kind(batch.update(&users, key, &row! { age: 1 }, Expiry::Never)), ErrorKind::Invalid);
        assert_eq!(kind(batch.expire(&users, key, Expiry::Never)), ErrorKind::Invalid);
        assert_eq!(kind(batch.delete(&users, key)), ErrorKind::Invalid);
        assert_eq!(kind(batch.require_version(&users, key, None)), ErrorKind::Invalid);
        fixture.db.write(&batch).unwrap();
    }
    assert_eq!(age(&users, b"k"), Some(1));
}

#[test]
fn what_is_damaged_can_be_removed() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    users.put(b"a", &row! { age: 1 }).unwrap();
    let mut session = fixture.db.session().unwrap();
    let group = fixture.db.store.look(&mut *session, "users").unwrap().unwrap().entry.group;
    put(&mut *session, &pair_key(group, b"a"), b"nonsense", Expect::Any).unwrap();
    assert_eq!(kind(users.exists(b"a")), ErrorKind::Corrupted);
    assert_eq!(kind(users.update(b"a", &row! { age: 1 })), ErrorKind::Corrupted);
    assert!(users.delete(b"a").unwrap());
    assert!(!users.exists(b"a").unwrap());
    put(&mut *session, &entry_key("users"), b"nonsense", Expect::Any).unwrap();
    assert_eq!(kind(fixture.db.table("users")), ErrorKind::Corrupted);
    assert!(fixture.db.drop_table("users").unwrap());
    assert_eq!(kind(fixture.db.table("users")), ErrorKind::NotFound);
    fixture.db.create_table("users", self::users()).unwrap();
}

#[test]
fn a_schema_is_decoded_once() {
    let fixture = fixture();
    fixture.db.create_table("users", users()).unwrap();
    let other = fixture.other();
    let schema = || {
        let schema =
            |transaction: &mut Transaction| transaction.schema("users").map(|schema| schema.cloned());
        other.transact(schema).unwrap().unwrap()
    };
    let first = schema();
    assert!(Arc::ptr_eq(&first, &schema()));
    fixture.db.table("users").unwrap().add_field("score", Type::I32).unwrap();
    assert!(!Arc::ptr_eq(&first, &schema()));
    assert_eq!(schema().fields().fields().len(), 4);
}

/// The entry of a table went back in time, as no backend does that keeps its promises, and its rows did not.
#[test]
fn a_row_newer_than_its_table_is_told_and_not_waited_for() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    let mut session = fixture.db.session().unwrap();
    let old = get(&mut *session, &entry_key("users")).unwrap().unwrap();
    users.add_field("score", Type::I32).unwrap();
    users.put(b"a", &row! { age: 1, score: 2 }).unwrap();
    put(&mut *session, &entry_key("users"), &old.value, Expect::Any).unwrap();
    assert_eq!(kind(users.get(b"a")), ErrorKind::Corrupted);
    assert_eq!(kind(users.increment(b"a", "age", 1)), ErrorKind::Corrupted);
    assert_eq!(kind(users.walk(&WalkCursor::START, 9, |row| row.get("age").map(drop))), ErrorKind::Corrupted);
    assert_eq!(users.len().unwrap(), 1);
    users.add_field("score", Type::I32).unwrap();
    assert_eq!(age(&users, b"a"), Some(1), "it was only early");
}

#[test]
fn rows_are_removed_together_if_they_are_over() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    let keys: Vec<Vec<u8>> = (0..100_i64).map(|n| n.to_be_bytes().to_vec()).collect();
    keys.iter().zip(0..90_i64).for_each(|(key, n)| users.put(key, &row! { age: n }).unwrap());
    users.remove_if(&keys, |row| Ok(row.get("age")?.as_i64() < Some(80))).unwrap();
    assert_eq!(users.len().unwrap(), 10);
    users.remove_if(&[Vec::new()], |_| Ok(true)).unwrap();
    fixture.db.drop_table("users").unwrap();
    users.remove_if(&keys, |_| Ok(true)).unwrap();
}

/// A pair of the catalog whose key is no text is in nobody's way, and names are told by and by.
#[test]
fn names_are_walked_in_steps() {
    let fixture = fixture();
    for n in 0..100 {
        fixture.db.create_table(&format!("t{n:03}"), Schema::flat()).unwrap();
    }
    let mut session = fixture.db.session().unwrap();
    put(&mut *session, &pair_key(CATALOG_GROUP, b"\xff\xfe"), b"nonsense", Expect::Any).unwrap();
    let (mut names, mut from, mut steps) = (Vec::new(), Some(Cursor::START), 0);
    while let Some(at) = from {
        let (some, next) = fixture.db.some_table_names(&at, 7).unwrap();
        assert!(some.len() <= 7);
        names.extend(some);
        (from, steps) = (next, steps + 1);
    }
    assert_eq!((names.len(), steps >= 100 / 7), (100, true));
    names.sort_unstable();
    assert_eq!(fixture.db.table_names().unwrap(), names);
}
