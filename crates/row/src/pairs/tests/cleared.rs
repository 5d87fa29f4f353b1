//! Tables that are cleared, dropped and made anew while an attempt is under way, or by others than who knew them.

use super::*;

/// What is known of a table from before says where its rows probably are. They are not there any more.
#[test]
fn walks_and_counts_are_of_the_table_as_it_is_now() {
    let fixture = fixture();
    let mine = fixture.db.create_table("users", users()).unwrap();
    mine.put(b"old", &row! { age: 1 }).unwrap();
    let theirs = fixture.other().table("users").unwrap();
    assert_eq!(mine.len().unwrap(), 1);
    for round in 0..3 {
        theirs.clear().unwrap();
        for key in [&b"a"[..], b"b", b"c"] {
            theirs.put(key, &row! { age: round }).unwrap();
        }
        if round == 1 {
            theirs.add_field("score", Type::I32).unwrap();
            theirs.update(b"a", &row! { score: 7 }).unwrap();
        }
        // Each of these finds the table changed for the first time.
        match round {
            0 => assert_eq!(mine.len().unwrap(), 3),
            1 => assert_eq!(walked(&mine), ["a", "b", "c"]),
            _ => assert_eq!(mine.multi_get(&["a", "old", "c"]).unwrap().iter().flatten().count(), 2),
        }
        assert_eq!((mine.len().unwrap(), walked(&mine).len()), (3, 3));
    }
}

fn walked(table: &PairTable) -> Vec<String> {
    let (mut keys, mut from) = (Vec::new(), Some(WalkCursor::START));
    while let Some(at) = from {
        let look = |row: &HeldRow<'_>| {
            row.get("age")?;
            keys.push(String::from_utf8_lossy(row.key()).into_owned());
            Ok(())
        };
        from = table.walk(&at, 2, look).unwrap();
    }
    keys
}

#[test]
fn an_attempt_that_clears_sees_nothing_afterwards() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    for key in [b"a", b"b"] {
        users.put(key, &row! { age: 1 }).unwrap();
    }
    let mut before = 0;
    let seen = fixture.db.transact(|transaction| {
        if let Ok(count) = transaction.count("users") {
            before = before.max(count);
        }
        transaction.walk("users", &WalkCursor::START, 9, |_| Ok(()))?;
        transaction.read("users", b"a", |_| Ok(()))?;
        transaction.clear("users")?;
        let mut walked = 0;
        let next = transaction.walk("users", &WalkCursor::START, 9, |_| {
            walked += 1;
            Ok(())
        })?;
        let row = transaction.read("users", b"a", |row| Ok(row.is_some()))?;
        Ok((walked, next, row, transaction.count("users")?))
    });
    assert_eq!((seen.unwrap(), before), ((0, None, false, 0), 2));
    assert!(users.is_empty().unwrap());
    // It may write what it cleared.
    users.put(b"a", &row! { age: 1 }).unwrap();
    let fields = row! { age: 2 };
    let existed = fixture.db.transact(|transaction| {
        transaction.read("users", b"a", |_| Ok(()))?;
        transaction.clear("users")?;
        transaction.edit("users", b"a", &Edit::Update(&fields, FieldExpiries::All(None)))
    });
    assert!(!existed.unwrap(), "there was no row any more");
    assert_eq!((age(&users, b"a"), users.len().unwrap()), (Some(2), 1));
}

/// A row that is stored where others do not look any more is not said to be stored.
#[test]
fn a_row_made_while_its_table_was_cleared_may_be_gone() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    let mut session = fixture.db.session().unwrap();
    for drops in [false, true] {
        let fields = row! { age: 1 };
        let update = Edit::Update(&fields, FieldExpiries::All(None));
        let mut transaction = fixture.db.transaction();
        transaction.prefetch("users", b"new");
        transaction.fetch(&mut *session).unwrap();
        assert!(!transaction.edit("users", b"new", &update).unwrap());
        match drops {
            true => assert!(fixture.other().drop_table("users").unwrap()),
            false => fixture.other().table("users").unwrap().clear().unwrap(),
        }
        assert_eq!(kind(transaction.commit(&mut *session)), ErrorKind::Indeterminate);
        match drops {
            true => assert_eq!(kind(users.exists(b"new")), ErrorKind::NotFound),
            false => assert!(!users.exists(b"new").unwrap()),
        }
    }
}

/// Over a row that was there a change finds it gone, and is made again where the rows are now.
#[test]
fn a_change_of_a_row_that_was_cleared_is_made_again() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    users.put(b"k", &row! { age: 5 }).unwrap();
    let (mut runs, other) = (0, fixture.other().table("users").unwrap());
    let sum = users.modify(b"k", |row| {
        runs += 1;
        if runs == 1 {
            other.clear().unwrap();
        }
        let age = row.map_or(Ok(Some(0)), |row| row.get("age").map(|age| age.as_i64()))?.unwrap() + 1;
        let fields = vec![("age".to_owned(), Value::Int(age).to_owned())];
        Ok((Change::Put { fields, expiry: Expiry::Never }, age))
    });
    assert_eq!((sum.unwrap(), runs, age(&other, b"k")), (1, 2, Some(1)));
}

/// Names that an attempt wants learned are for the table that it saw, not for one that has its name later.
#[test]
fn a_table_made_anew_is_not_taught_the_names_of_the_one_before() {
    let fixture = fixture();
    fixture.db.create_table("bag", Schema::open()).unwrap();
    let mut session = fixture.db.session().unwrap();
    let mut transaction = fixture.db.transaction();
    let fields = [("colour", Value::Bytes(b"red"))];
    let put = |transaction: &mut Transaction| transaction.edit("bag", b"k", &Edit::Put(&fields, None));
    assert_eq!(kind(put(&mut transaction)), ErrorKind::NotInMemory);
    transaction.fetch(&mut *session).unwrap();
    assert_eq!(kind(put(&mut transaction)), ErrorKind::NotInMemory, "the name is to be learned");
    fixture.other().drop_table("bag").unwrap();
    let anew = fixture.other().create_table("bag", Schema::open()).unwrap();
    assert_eq!(kind(transaction.fetch(&mut *session)), ErrorKind::NotFound);
    assert_eq!(anew.schema().unwrap().fields().len(), 0);
    fixture.db.transact(put).unwrap();
    assert!(anew.get(b"k").unwrap().unwrap().get("colour").is_ok());
}

/// Two find a row expired at once: who comes second sees what is there by then.
#[test]
fn a_row_that_had_expired_and_was_written_is_seen() {
    let fixture = fixture();
    let users = fixture.db.create_table("users", users()).unwrap();
    let memory = fixture.backend.clone();
    for round in 0..200_i64 {
        users.put_expiring(b"k", &row! { age: 1 }, Expiry::at_unix_ms(fixture.clock.now_ms() + 1)).unwrap();
        fixture.clock.advance_ms(1);
        std::thread::scope(|scope| {
            let table = |_| {
                let db = PairDb::open_at(Arc::new(memory.clone()), fixture.clock.clone());
                db.table("users").unwrap()
            };
            let [one, two] = [1, 2].map(table);
            scope.spawn(move || assert_eq!(one.increment(b"k", "age", 100).unwrap() % 100, 0, "{round}"));
            scope.spawn(move || assert_eq!(two.increment(b"k", "age", 100).unwrap() % 100, 0, "{round}"));
        });
        assert_eq!(age(&users, b"k"), Some(200));
    }
}
