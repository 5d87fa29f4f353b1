//! A backend that answers what it was not asked, twice, or never: calls end, with an error or with what is so, and nothing panics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::backend::{Mark, Ticket};

/// What becomes of the answer to one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// Another is given for it, the one with this number in `other_answer`.
    Other(u8),
    /// It fails, having done nothing.
    Gone,
    /// It is given after another for the same command.
    Twice,
    /// It is given for a command that nobody started.
    Stray,
    /// It never comes, and waiting for it fails.
    Never,
}

const OTHER_ANSWERS: u8 = 9;

fn other_answer(number: u8) -> Answer {
    let strange = |key: &[u8]| Pair { key: key.into(), value: b"strange"[..].into(), mark: Mark::new(1) };
    match number {
        0 => Answer::Got(None),
        1 => Answer::Got(Some(strange(b""))),
        2 => Answer::Got(Some(strange(&entry_key("users")))),
        3 => Answer::Stored(Mark::new(7)),
        4 => Answer::Deleted(true),
        5 => Answer::Walked(vec![strange(b"")], None),
        6 => Answer::Walked(vec![strange(b"\0\0\0\x63k")], Some(Cursor::START)),
        7 => Answer::Counted(u64::MAX),
        _ => Answer::Persisted,
    }
}

fn all_wrong() -> impl Iterator<Item = Wrong> {
    let others = (0..OTHER_ANSWERS).map(Wrong::Other);
    others.chain([Wrong::Gone, Wrong::Twice, Wrong::Stray, Wrong::Never])
}

/// A backend that goes wrong at the command of one number.
struct WrongAt {
    behind: MemoryBackend,
    commands: Arc<AtomicU64>,
    at: u64,
    wrong: Wrong,
}

impl Backend for WrongAt {
    fn capabilities(&self) -> &Capabilities {
        self.behind.capabilities()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let (behind, commands) = (self.behind.session()?, Arc::clone(&self.commands));
        let (at, wrong) = (self.at, self.wrong);
        Ok(Box::new(WrongSession { behind, commands, at, wrong, gone: None, spoiled: None, is_stuck: false }))
    }

    fn close(&self) -> Result<()> {
        self.behind.close()
    }
}

struct WrongSession {
    behind: Box<dyn Session>,
    commands: Arc<AtomicU64>,
    at: u64,
    wrong: Wrong,
    /// A command that was not done.
    gone: Option<Ticket>,
    /// A command whose answer goes wrong.
    spoiled: Option<Ticket>,
    /// Whether an answer was kept back.
    is_stuck: bool,
}

impl Session for WrongSession {
    fn start(&mut self, command: Command<'_>) -> Result<Ticket> {
        let number = self.commands.fetch_add(1, Ordering::SeqCst);
        if number == self.at && self.wrong == Wrong::Gone {
            let ticket = Ticket::new(u64::MAX);
            self.gone = Some(ticket);
            return Ok(ticket);
        }
        let ticket = self.behind.start(command)?;
        if number == self.at {
            self.spoiled = Some(ticket);
        }
        Ok(ticket)
    }

    fn poll(&mut self, answered: &mut Vec<(Ticket, Result<Answer>)>) {
        let mut polled = Vec::new();
        self.behind.poll(&mut polled);
        for (ticket, answer) in polled {
            if self.spoiled != Some(ticket) {
                answered.push((ticket, answer));
                continue;
            }
            match self.wrong {
                Wrong::Other(number) => answered.push((ticket, Ok(other_answer(number)))),
                Wrong::Twice => answered.extend([(ticket, Ok(Answer::Persisted)), (ticket, answer)]),
                Wrong::Stray => {
                    answered.push((Ticket::new(u64::MAX - 1), answer));
                    self.is_stuck = true;
                }
                Wrong::Never | Wrong::Gone => self.is_stuck = true,
            }
        }
        if let Some(ticket) = self.gone.take() {
            answered.push((ticket, Err(Error::new(ErrorKind::Unavailable, "it went away"))));
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        match self.is_stuck {
            true => Err(Error::new(ErrorKind::Closed, "nothing is under way")),
            false if self.gone.is_some() => Ok(()),
            false => self.behind.wait(timeout),
        }
    }
}

type Operation = fn(&PairDb) -> Result<()>;

const OPERATIONS: [(&str, Operation); 12] = [
    ("create", |db| db.create_table("new", users()).map(drop)),
    ("names", |db| db.table_names().map(drop)),
    ("put", |db| db.table("users")?.put(b"k", &row! { age: 7 })),
    ("update", |db| db.table("users")?.update(b"k", &row! { age: 7 })),
    ("insert", |db| db.table("users")?.update(b"new", &row! { age: 7 })),
    ("delete", |db| db.table("users")?.delete(b"k").map(drop)),
    ("learn", |db| db.table("bag")?.update(b"k", &[("new", Value::Bytes(b"v"))])),
    ("expired", |db| db.table("users")?.get(b"old").map(drop)),
    ("multi_get", |db| db.table("users")?.multi_get(&["k", "old", "none"]).map(drop)),
    ("clear", |db| db.table("users")?.clear()),
    ("walk and count", |db| {
        let users = db.table("users")?;
        users.walk(&WalkCursor::START, 9, |row| row.get("age").map(drop))?;
        users.len().map(drop)
    }),
    ("drop", |db| db.drop_table("users").map(drop)),
];

/// The answer to each command of each kind of call goes wrong once, in each way.
#[test]
fn calls_end_whatever_is_answered() {
    for wrong in all_wrong() {
        for (name, operation) in OPERATIONS {
            let mut at = 0;
            while goes_wrong_at(at, wrong, name, operation) {
                at += 1;
            }
            assert!(at > 0, "{name}");
        }
    }
}

/// False once the operation has fewer commands than that.
fn goes_wrong_at(at: u64, wrong: Wrong, name: &str, operation: Operation) -> bool {
    let fixture = fixture();
    let table = fixture.db.create_table("users", users()).unwrap();
    table.put(b"k", &row! { age: 1 }).unwrap();
    table.put_expiring(b"old", &row! { age: 1 }, Expiry::at_unix_ms(1_001)).unwrap();
    fixture.db.create_table("bag", Schema::open()).unwrap();
    fixture.clock.advance_ms(1);
    let commands = Arc::new(AtomicU64::new(0));
    let backend = WrongAt { behind: fixture.backend.clone(), commands: Arc::clone(&commands), at, wrong };
    let db = PairDb::open_at(Arc::new(backend), fixture.clock.clone());
    let outcome = operation(&db);
    let done = commands.load(Ordering::SeqCst);
    let case = format!("{name}: command {at} of {done}: {wrong:?}: {outcome:?}");
    assert!(done < 100, "{case}");
    if let Err(error) = &outcome {
        use ErrorKind::{Conflict, Corrupted, Indeterminate, Io, NotFound, Unavailable};
        let kinds = [Conflict, Corrupted, Indeterminate, Io, NotFound, Unavailable];
        assert!(kinds.contains(&error.kind()), "{case}");
    }
    if done <= at {
        outcome.unwrap();
        return false;
    }
    // The next call is a call like any other.
    if let Err(error) = operation(&db) {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{case}: then {error:?}");
    }
    true
}

/// A commit that failed is not taken for done when it is asked for again.
#[test]
fn a_commit_that_failed_is_made_when_it_is_asked_for_again() {
    let fixture = fixture();
    let table = fixture.db.create_table("users", users()).unwrap();
    let fields = row! { age: 2 };
    let edits = [
        Edit::Update(&fields, FieldExpiries::All(None)),
        Edit::Put(&fields, None),
        Edit::Expire(Some(9_000)),
        Edit::Delete,
    ];
    for edit in edits {
        table.put(b"k", &row! { age: 1 }).unwrap();
        // The table is got, then the row; then comes the commit.
        let (behind, wrong) = (fixture.backend.clone(), Wrong::Gone);
        let backend = WrongAt { behind, commands: Arc::default(), at: 2, wrong };
        let db = PairDb::open_at(Arc::new(backend), fixture.clock.clone());
        let mut session = db.session().unwrap();
        let mut transaction = db.transaction();
        transaction.prefetch("users", b"k");
        transaction.fetch(&mut *session).unwrap();
        transaction.edit("users", b"k", &edit).unwrap();
        let before = table.version(b"k").unwrap();
        assert_eq!(kind(transaction.commit(&mut *session)), ErrorKind::Unavailable);
        assert_eq!(table.version(b"k").unwrap(), before);
        assert!(transaction.has_changes());
        transaction.commit(&mut *session).unwrap();
        assert_ne!(table.version(b"k").unwrap(), before, "{edit:?}");
        assert!(!transaction.has_changes());
    }
}
