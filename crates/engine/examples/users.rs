//! A program of a new user: structs as rows, one field changed, a batch, a snapshot, rows that expire, a schema that grows, threads.
//!
//! `cargo run -p hedgerow --example users` keeps a store in the system's folder for temporary files, and removes it. What it prints at the end is checked:
//! it fails if a line is not what it should be. The tests run it as well.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example is a program")]

use std::time::{Duration, SystemTime};

use hedgerow::{Batch, Db, Durability, ErrorKind, Options, Result, Row, Snapshot, Table, TypedRow, row};

/// A row of the table. Its key is the user's name.
#[derive(Row, Debug, Clone, PartialEq)]
struct User {
    mail: String,
    age: u32,
    #[row(default = 100)]
    points: u64,
    city: Option<String>,
}

/// The same, as a later version of the program knows it.
#[derive(Row, Debug, PartialEq)]
struct NewerUser {
    mail: String,
    #[row(default = 100)]
    points: u64,
    #[row(default = "en".to_owned())]
    language: String,
}

#[derive(Row)]
struct Session {
    user: String,
}

fn user(mail: &str, age: u32, points: u64) -> User {
    User { mail: mail.into(), age, points, city: None }
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("hedgerow-users-{}", std::process::id()));
    let result = run(&dir);
    std::fs::remove_dir_all(&dir).ok();
    let printed = result?;
    println!("{}", printed.join("\n"));
    let expected = [
        "ada is 37, of no city",
        "bob could not pay: part 0 of the batch, row \"bob\" of table \"users\"",
        "ada has 130 points, bob 70; before it was 100 and 100",
        "a session is there: true; after its time: false",
        "users from b to c: bob",
        "the new ada speaks en",
        "4 threads counted to 4000",
    ];
    assert_eq!(printed, expected);
    Ok(())
}

fn run(dir: &std::path::Path) -> Result<Vec<String>> {
    let options = Options::new().durability(Durability::Process).cache_bytes(16 << 20);
    let db = Db::open_with(dir, options.clone())?;
    let users = db.ensure_table("users", User::schema())?;
    let mut printed = Vec::new();

    users.put_row("ada", &user("ada@example.org", 36, 100))?;
    users.put_row("bob", &user("bob@example.org", 41, 100))?;
    users.put_row("cleo", &user("cleo@example.org", 29, 100))?;
    users.update("ada", &row! { age: 37 })?; // one field: the row is neither read nor written again
    let ada: User = users.get_row("ada")?.expect("it was just written");
    printed.push(format!("ada is {}, of {}", ada.age, ada.city.as_deref().unwrap_or("no city")));

    let before = db.snapshot();
    let refused = pay(&db, &users, "bob", "ada", 1_000).expect_err("he has not that much");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let what = refused.message().split(": ").next().unwrap_or_default();
    printed.push(format!("bob could not pay: {what}"));
    pay(&db, &users, "bob", "ada", 30)?;
    printed.push(points_now_and(&before, &users)?);
    drop(before); // what it held can be freed

    let sessions = db.ensure_table("sessions", Session::schema())?;
    let session = Session { user: "ada".into() };
    let key = (1, "token"); // integers and tuples are rows in their order
    sessions.put_expiring(&key, session.to_fields().as_ref(), Duration::from_secs(3600))?;
    let there = sessions.exists(&key)?;
    sessions.expire(&key, SystemTime::now() - Duration::from_secs(1))?; // a date; a `Duration` counts from now
    printed.push(format!("a session is there: {there}; after its time: {}", sessions.exists(&key)?));

    let from_b_to_c = users.scan().range("b".."c").map(|row| row?.key_as::<String>());
    printed.push(format!("users from b to c: {}", from_b_to_c.collect::<Result<Vec<_>>>()?.join(", ")));

    drop((users, sessions));
    db.close()?;
    let db = Db::open_with(dir, options)?;
    let users = db.ensure_table("users", NewerUser::schema())?; // adds `language`; no row is rewritten
    let ada: NewerUser = users.get_row("ada")?.expect("she stayed");
    printed.push(format!("the new ada speaks {}", ada.language));

    let counted = count_by_threads(&users)?;
    printed.push(format!("4 threads counted to {counted}"));
    db.close()?;
    Ok(printed)
}

/// Both rows change, or none.
fn pay(db: &Db, users: &Table, from: &str, to: &str, points: i64) -> Result<()> {
    let mut batch = Batch::new();
    batch.increment(users, from, "points", -points)?;
    batch.increment(users, to, "points", points)?;
    db.write(batch)
}

fn points_now_and(before: &Snapshot, users: &Table) -> Result<String> {
    let points = |row: Option<User>| row.map_or(0, |user| user.points);
    let [ada, bob] = [points(users.get_row("ada")?), points(users.get_row("bob")?)];
    let [then_ada, then_bob] = [points(before.get_row(users, "ada")?), points(before.get_row(users, "bob")?)];
    Ok(format!("ada has {ada} points, bob {bob}; before it was {then_ada} and {then_bob}"))
}

/// A table is shared as it is: threads need no lock of their own.
fn count_by_threads(users: &Table) -> Result<u64> {
    users.put("counter", &row! { mail: "", age: 0, points: 0 })?;
    std::thread::scope(|scope| {
        let count = || (0..1_000).try_for_each(|_| users.increment("counter", "points", 1).map(drop));
        let threads = [0; 4].map(|_| scope.spawn(count));
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    users.get_fields("counter", &["points"])?.expect("it was put").get_as("points")
}
