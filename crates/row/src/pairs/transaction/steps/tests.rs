//! Many attempts in one exchange: what is asked, who wins, and whom an error befalls.

use std::sync::Arc;
use std::time::Duration;

use hedgerow_device::Clock;

use super::*;
use crate::backend::memory::MemoryBackend;
use crate::backend::{Backend, Ticket};
use crate::pairs::{Edit, PairDb, PairTable, ask_one};
use crate::schema::plan::FieldExpiries;
use crate::{Expiry, Schema, Type, Value, row};

type Decide = Box<dyn FnMut(&Command<'_>) -> Option<(ErrorKind, bool)> + Send>;

/// A session that counts commands and exchanges, and of which some commands go wrong: with this error, and whether they are done all the same.
struct Watched {
    behind: Box<dyn Session>,
    gets: usize,
    changes: usize,
    /// How often commands were started after answers had been waited for.
    batches: usize,
    is_starting: bool,
    decide: Decide,
    failed: Vec<(Ticket, Result<Answer>)>,
    lost: HashMap<Ticket, ErrorKind>,
    tickets: u64,
}

impl Watched {
    fn of(db: &PairDb) -> Watched {
        Watched::failing(db, |_| None)
    }

    fn failing(
        db: &PairDb,
        decide: impl FnMut(&Command<'_>) -> Option<(ErrorKind, bool)> + Send + 'static,
    ) -> Watched {
        let (behind, decide) = (db.session().unwrap(), Box::new(decide));
        let (failed, lost) = (Vec::new(), HashMap::new());
        let (gets, changes, batches, is_starting, tickets) = (0, 0, 0, false, u64::MAX);
        Watched { behind, gets, changes, batches, is_starting, decide, failed, lost, tickets }
    }
}

impl Session for Watched {
    fn start(&mut self, command: Command<'_>) -> Result<Ticket> {
        self.batches += usize::from(!self.is_starting);
        self.is_starting = true;
        match command {
            Command::Get { .. } => self.gets += 1,
            _ => self.changes += 1,
        }
        match (self.decide)(&command) {
            Some((kind, false)) => {
                self.tickets -= 1;
                self.failed.push((Ticket::new(self.tickets), Err(Error::new(kind, "as the test wants it"))));
                Ok(Ticket::new(self.tickets))
            }
            fault => {
                let ticket = self.behind.start(command)?;
                self.lost.extend(fault.map(|(kind, _)| (ticket, kind)));
                Ok(ticket)
            }
        }
    }

    fn poll(&mut self, answered: &mut Vec<(Ticket, Result<Answer>)>) {
        self.is_starting = false;
        let from = answered.len();
        self.behind.poll(answered);
        for (ticket, answer) in &mut answered[from..] {
            if let Some(kind) = self.lost.remove(ticket) {
                *answer = Err(Error::new(kind, "as the test wants it"));
            }
        }
        answered.append(&mut self.failed);
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        if self.failed.is_empty() { self.behind.wait(timeout) } else { Ok(()) }
    }
}

fn counters() -> (PairDb, PairTable) {
    let db = PairDb::open(Arc::new(MemoryBackend::default()) as Arc<dyn Backend>);
    let table = db.create_table("counters", Schema::new().field("n", Type::I64)).unwrap();
    (db, table)
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number}").into_bytes()
}

/// The row's number.
fn read(attempt: &Transaction, key: &[u8]) -> Result<i64> {
    attempt.read("counters", key, |row| match row {
        Some(row) => Ok(row.get("n")?.as_i64().unwrap()),
        None => Ok(0),
    })
}

fn add_one(attempt: &mut Transaction, key: &[u8]) {
    let fields = [("n", Value::Int(read(attempt, key).unwrap() + 1))];
    attempt.edit("counters", key, &Edit::Update(&fields, FieldExpiries::All(None))).unwrap();
}

/// Has steps that were begun end, together; of each how.
fn end(session: &mut Watched, attempts: &mut [Transaction], begun: Vec<Ended>) -> Vec<Result<()>> {
    let mut ended = begun;
    while ended.iter().any(Option::is_none) {
        let waiting: Vec<usize> = (0..ended.len()).filter(|&at| ended[at].is_none()).collect();
        let going = attempts.iter_mut().zip(&ended).filter(|(_, ended)| ended.is_none());
        let mut going: Vec<&mut Transaction> = going.map(|(attempt, _)| attempt).collect();
        let now = Transaction::advance(session, &mut going);
        waiting.into_iter().zip(now).for_each(|(at, now)| ended[at] = now);
    }
    ended.into_iter().flatten().collect()
}

/// Attempts that have read what `keys` says, together.
fn fetched(db: &PairDb, session: &mut Watched, keys: &[Vec<u8>]) -> (Vec<Transaction>, Vec<Result<()>>) {
    let mut attempts: Vec<Transaction> = keys.iter().map(|_| db.transaction()).collect();
    attempts.iter().zip(keys).for_each(|(attempt, key)| attempt.prefetch("counters", key));
    let begun = attempts.iter_mut().map(|attempt| attempt.begin_fetch(session)).collect();
    let ended = end(session, &mut attempts, begun);
    (attempts, ended)
}

fn committed(session: &mut Watched, attempts: &mut [Transaction]) -> Vec<Result<()>> {
    let begun = attempts.iter_mut().map(Transaction::begin_commit).collect();
    end(session, attempts, begun)
}

#[test]
fn what_many_attempts_get_is_got_once() {
    let (db, table) = counters();
    (0..50).for_each(|at| table.put(&key(at), &row! { n: at as i64 }).unwrap());
    let mut session = Watched::of(&db);
    let keys: Vec<Vec<u8>> = (0..100).map(|at| key(at % 50)).collect();
    let (attempts, ended) = fetched(&db, &mut session, &keys);
    assert!(ended.iter().all(Result::is_ok));
    assert_eq!((session.gets, session.changes), (51, 0), "the table once, and each of the rows");
    for (at, attempt) in attempts.iter().enumerate() {
        assert_eq!(read(attempt, &keys[at]).unwrap(), at as i64 % 50);
    }
}

#[test]
fn of_changes_of_one_row_the_first_is_made() {
    let (db, table) = counters();
    let mut session = Watched::of(&db);
    let mut waiting: Vec<usize> = (0..20).collect();
    for round in 0..20 {
        let (mut attempts, _) = fetched(&db, &mut session, &vec![key(0); waiting.len()]);
        attempts.iter_mut().for_each(|attempt| add_one(attempt, &key(0)));
        session.changes = 0;
        let ended = committed(&mut session, &mut attempts);
        assert_eq!(session.changes, 1, "the others could only fail");
        assert!(ended[0].is_ok());
        assert!(ended[1..].iter().all(|ended| ended.as_ref().unwrap_err().kind() == ErrorKind::Conflict));
        assert_eq!(waiting.remove(0), round, "in the order in which they came");
    }
    assert_eq!(table.get_field(&key(0), "n").unwrap().unwrap().borrow().as_i64(), Some(20));
    // Those that depend on nothing are all made.
    let mut attempts = [db.transaction(), db.transaction()];
    assert!(attempts.iter().all(|attempt| attempt.schema("counters").is_err()));
    let begun = attempts.iter_mut().map(|attempt| attempt.begin_fetch(&mut session)).collect();
    assert!(end(&mut session, &mut attempts, begun).iter().all(Result::is_ok));
    for attempt in &mut attempts {
        attempt.edit("counters", &key(0), &Edit::Put(&[("n", Value::Int(7))], None)).unwrap();
    }
    assert!(committed(&mut session, &mut attempts).iter().all(Result::is_ok));
}

#[test]
fn an_error_befalls_those_who_asked() {
    let (db, table) = counters();
    (0..9).for_each(|at| table.put(&key(at), &row! { n: 1 }).unwrap());
    let keys: Vec<Vec<u8>> = (0..9).map(key).collect();
    let is = |command: &Command<'_>, wanted: &[u8]| match command {
        Command::Get { key } | Command::Put { key, .. } => key.ends_with(wanted),
        _ => false,
    };
    let mut session = Watched::failing(&db, move |command| {
        let kinds = [(&b"key3"[..], ErrorKind::Corrupted), (&b"key6"[..], ErrorKind::Indeterminate)];
        kinds.into_iter().find(|(key, _)| is(command, key)).map(|(_, kind)| (kind, true))
    });
    let (_, ended) = fetched(&db, &mut session, &keys);
    let kinds = |ended: &[Result<()>]| -> Vec<Option<ErrorKind>> {
        ended.iter().map(|ended| ended.as_ref().err().map(Error::kind)).collect()
    };
    let mut expected = vec![None; 9];
    // To read is to change nothing, whatever becomes of the answer.
    (expected[3], expected[6]) = (Some(ErrorKind::Corrupted), Some(ErrorKind::Unavailable));
    assert_eq!(kinds(&ended), expected);
    // A change whose answer is lost, one that is not made, one that is not made and nobody knows.
    let mut session = Watched::failing(&db, move |command| match command {
        Command::Put { .. } if is(command, b"key2") => Some((ErrorKind::Indeterminate, true)),
        Command::Put { .. } if is(command, b"key4") => Some((ErrorKind::Unavailable, false)),
        Command::Put { .. } if is(command, b"key5") => Some((ErrorKind::Indeterminate, false)),
        _ => None,
    });
    let (mut attempts, _) = fetched(&db, &mut session, &keys);
    attempts.iter_mut().zip(&keys).for_each(|(attempt, key)| add_one(attempt, key));
    let ended = committed(&mut session, &mut attempts);
    let mut expected = vec![None; 9];
    (expected[2], expected[5]) = (Some(ErrorKind::Indeterminate), Some(ErrorKind::Indeterminate));
    expected[4] = Some(ErrorKind::Unavailable);
    assert_eq!(kinds(&ended), expected);
    for (at, key) in keys.iter().enumerate() {
        let n = table.get_field(key, "n").unwrap().unwrap().borrow().as_i64().unwrap();
        assert_eq!(n, if matches!(at, 4 | 5) { 1 } else { 2 }, "{at}");
    }
}

#[test]
fn rows_that_are_new_look_again_together() {
    let (db, table) = counters();
    table.put(&key(0), &row! { n: 1 }).unwrap();
    let mut session = Watched::of(&db);
    let keys: Vec<Vec<u8>> = (0..10).map(key).collect();
    let (mut attempts, _) = fetched(&db, &mut session, &keys);
    attempts.iter_mut().zip(&keys).for_each(|(attempt, key)| add_one(attempt, key));
    (session.gets, session.changes) = (0, 0);
    assert!(committed(&mut session, &mut attempts).iter().all(Result::is_ok));
    assert_eq!((session.gets, session.changes), (1, 10), "one look for the nine that were new");
    // Where the table was cleared meanwhile it is only known of those that went over a row that they did not come too late.
    let keys: Vec<Vec<u8>> = (9..12).map(key).collect();
    let (mut attempts, _) = fetched(&db, &mut session, &keys);
    attempts.iter_mut().zip(&keys).for_each(|(attempt, key)| add_one(attempt, key));
    table.clear().unwrap();
    let ended = committed(&mut session, &mut attempts);
    let kinds: Vec<ErrorKind> = ended.iter().map(|ended| ended.as_ref().unwrap_err().kind()).collect();
    use ErrorKind::{Conflict, Indeterminate};
    assert_eq!(kinds, [Conflict, Indeterminate, Indeterminate]);
}

#[test]
fn who_comes_later_joins_what_is_under_way() {
    let (db, table) = counters();
    table.put(&key(0), &row! { n: 1 }).unwrap();
    // One that does not know where the table is takes two exchanges.
    let other = PairDb::open(db.store.backend.clone());
    let mut session = Watched::of(&other);
    let mut early = other.transaction();
    early.prefetch("counters", &key(0));
    assert!(early.begin_fetch(&mut session).is_none());
    assert!(Transaction::advance(&mut session, &mut [&mut early])[0].is_none());
    let mut late = other.transaction();
    late.prefetch("counters", &key(0));
    assert!(late.begin_fetch(&mut session).is_none());
    let ended = Transaction::advance(&mut session, &mut [&mut early, &mut late]);
    assert!(ended.iter().all(|ended| ended.as_ref().is_some_and(Result::is_ok)));
    assert_eq!((session.gets, read(&early, &key(0)).unwrap(), read(&late, &key(0)).unwrap()), (3, 1, 1));
    let nothing = Transaction::advance(&mut session, &mut [&mut early]);
    assert!(nothing[0].as_ref().is_some_and(Result::is_ok), "nothing was begun");
}

#[test]
fn what_was_read_together_is_checked() {
    let (db, table) = counters();
    (0..2).for_each(|at| table.put(&key(at), &row! { n: 1 }).unwrap());
    let changes: [(&dyn Fn(), bool); 5] = [
        (&|| {}, true),
        (&|| table.put(&key(9), &row! { n: 1 }).unwrap(), true),
        (&|| table.put(&key(1), &row! { n: 1 }).unwrap(), false),
        (&|| table.put(&key(2), &row! { n: 1 }).unwrap(), false),
        (&|| table.clear().unwrap(), false),
    ];
    for (at, (change, is_same)) in changes.into_iter().enumerate() {
        let mut session = Watched::of(&db);
        let mut attempts = [db.transaction()];
        (0..3).for_each(|at| attempts[0].prefetch("counters", &key(at)));
        let begun = vec![attempts[0].begin_fetch(&mut session)];
        assert!(end(&mut session, &mut attempts, begun)[0].is_ok());
        change();
        let begun = vec![attempts[0].begin_check()];
        let checked = end(&mut session, &mut attempts, begun).remove(0);
        assert_eq!(
            checked.err().map(|error| error.kind()),
            (!is_same).then_some(ErrorKind::Conflict),
            "{at}"
        );
    }
    let mut one = fetched(&db, &mut Watched::of(&db), &[key(0)]).0.remove(0);
    assert!(one.begin_check().is_some_and(|checked| checked.is_ok()), "one row is as it was at one time");
}

/// A table with rows of which the first so many expire at the time that is now in `clock`.
fn expiring(expired: usize, rows: usize) -> (PairDb, PairTable, Clock) {
    let clock = Clock::manual(1_000);
    let db = PairDb::open_at(Arc::new(MemoryBackend::default()) as Arc<dyn Backend>, clock.clone());
    let table = db.create_table("counters", Schema::new().field("n", Type::I64)).unwrap();
    for at in 0..rows {
        let expiry = if at < expired { Expiry::at_unix_ms(2_000) } else { Expiry::Never };
        table.put_expiring(&key(at), &row! { n: 1 }, expiry).unwrap();
    }
    clock.advance_ms(1_000);
    (db, table, clock)
}

#[test]
fn rows_that_have_expired_are_removed_together_while_others_go_on() {
    let (db, table, _) = expiring(10, 11);
    let mut session = Watched::of(&db);
    let mut attempts: Vec<Transaction> = (0..3).map(|_| db.transaction()).collect();
    (0..10).for_each(|at| attempts[0].prefetch("counters", &key(at)));
    attempts[1].prefetch("counters", &key(10));
    attempts[2].prefetch("counters", &key(7));
    let begun = attempts.iter_mut().map(|attempt| attempt.begin_fetch(&mut session)).collect::<Vec<_>>();
    assert!(begun.iter().all(Option::is_none));
    let mut all: Vec<&mut Transaction> = attempts.iter_mut().collect();
    let first = Transaction::advance(&mut session, &mut all);
    assert_eq!(first.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(session.changes, 0, "who wants no row that has expired waits for no removal");
    let mut rest: Vec<&mut Transaction> = attempts.iter_mut().step_by(2).collect();
    let second = Transaction::advance(&mut session, &mut rest);
    assert!(second.iter().all(|ended| ended.as_ref().is_some_and(Result::is_ok)));
    assert_eq!((session.batches, session.changes), (2, 10), "each once, however many found it");
    assert_eq!(table.len().unwrap(), 1);
    (0..10).for_each(|at| assert_eq!(read(&attempts[0], &key(at)).unwrap(), 0));
    assert_eq!((read(&attempts[1], &key(10)).unwrap(), read(&attempts[2], &key(7)).unwrap()), (1, 0));
}

#[test]
fn a_walk_removes_what_has_expired_together() {
    let (db, table, _) = expiring(9, 12);
    let mut session = Watched::of(&db);
    let attempt = &mut [db.transaction()];
    attempt[0].schema("counters").unwrap_err();
    attempt[0].fetch(&mut session).unwrap();
    attempt[0].walk("counters", &WalkCursor::START, 64, |_| Ok(())).unwrap_err();
    session.batches = 0;
    attempt[0].fetch(&mut session).unwrap();
    assert_eq!(session.batches, 2, "the walk, and all removals");
    let mut walked = 0;
    let look = |row: Result<crate::pairs::HeldRow<'_>>| {
        walked += row?.get("n")?.as_i64().unwrap();
        Ok(())
    };
    assert_eq!(attempt[0].walk("counters", &WalkCursor::START, 64, look).unwrap(), None);
    assert_eq!((walked, table.len().unwrap()), (3, 3));
}

/// Somebody whose clock is behind writes a row just as it is removed: it is there, and a walk comes by it.
#[test]
fn a_row_written_as_it_was_to_be_removed_is_there() {
    let (db, table, clock) = expiring(3, 5);
    for walks in [false, true] {
        // Its clock is behind.
        let other = PairDb::open_at(db.store.backend.clone(), Clock::manual(1_000));
        let (writer, mut written) = (other.table("counters").unwrap(), 0);
        let expiry = Expiry::at_unix_ms(2_001);
        (0..3).for_each(|at| writer.put_expiring(&key(at), &row! { n: 1 }, expiry).unwrap());
        // The row of one key is written before it is removed, and has expired by then the first time.
        let mut session = Watched::failing(&db, move |command| {
            if let Command::Delete { key: pair, .. } = command
                && pair.ends_with(&key(1))
            {
                written += 1;
                let expiry = if written == 1 { Expiry::at_unix_ms(2_002) } else { Expiry::Never };
                writer.put_expiring(&key(1), &row! { n: 7 }, expiry).unwrap();
            }
            None
        });
        clock.advance_ms(10);
        let mut attempt = db.transaction();
        let mut found = Vec::new();
        if walks {
            attempt.schema("counters").unwrap_err();
            attempt.fetch(&mut session).unwrap();
            attempt.walk("counters", &WalkCursor::START, 64, |_| Ok(())).unwrap_err();
            attempt.fetch(&mut session).unwrap();
            let look = |row: Result<crate::pairs::HeldRow<'_>>| {
                found.push(row?.get("n")?.as_i64().unwrap());
                Ok(())
            };
            attempt.walk("counters", &WalkCursor::START, 64, look).unwrap();
        } else {
            (0..5).for_each(|at| attempt.prefetch("counters", &key(at)));
            attempt.fetch(&mut session).unwrap();
            found = (0..5).map(|at| read(&attempt, &key(at)).unwrap()).filter(|n| *n > 0).collect();
        }
        found.sort_unstable();
        assert_eq!(found, [1, 1, 7], "walks: {walks}");
        assert_eq!(table.len().unwrap(), 3);
    }
}

/// What could not be freed is tried again a little at a time.
#[test]
fn groups_that_are_not_freed_are_tried_again_few_at_a_time() {
    let (db, _) = counters();
    let mut session = Watched::failing(&db, |command| {
        matches!(command, Command::Clear { .. }).then_some((ErrorKind::Unavailable, false))
    });
    (0..1_000).for_each(|group| db.store.free(&mut session, Some(group)));
    assert!((1_000..20_000).contains(&session.changes), "{}", session.changes);
    assert_eq!(db.store.unfreed.lock().len(), 1_000);
    let mut session = Watched::of(&db);
    (0..100).for_each(|group| db.store.free(&mut session, Some(group)));
    assert!(db.store.unfreed.lock().is_empty());
}

/// A clear or a drop of which nobody knows whether it happened: the rows go once that is known, and stay as long as a table has them.
#[test]
fn what_may_have_been_cleared_is_freed_once_that_is_known() {
    for (drops, happens) in [(false, true), (false, false), (true, true), (true, false)] {
        let (db, table) = counters();
        table.put(b"a", &[("n", Value::Int(1))]).unwrap();
        let mut session = Watched::of(&db);
        let mut group = || db.store.look(&mut session, "counters").unwrap().map(|seen| seen.entry.group);
        let old = group().unwrap();
        let is_entry = |command: &Command<'_>| match command {
            Command::Put { key, .. } | Command::Delete { key, .. } => **key == *entry_key("counters"),
            _ => false,
        };
        let mut failing = Watched::failing(&db, move |command| {
            is_entry(command).then_some((ErrorKind::Indeterminate, happens))
        });
        let kind = match drops {
            true => db.store.drop_table(&mut failing, "counters").unwrap_err().kind(),
            false => db.store.clear(&mut failing, "counters", None).unwrap_err().kind(),
        };
        assert_eq!(kind, ErrorKind::Indeterminate);
        assert_eq!(group() != Some(old), happens);
        let mut session = Watched::of(&db);
        let mut rows = || match ask_one(&mut session, Command::Count { group: old }).unwrap() {
            Answer::Counted(rows) => rows,
            other => panic!("{other:?}"),
        };
        assert_eq!(rows(), 1);
        // Another table goes.
        db.create_table("other", Schema::new()).unwrap();
        assert!(db.drop_table("other").unwrap());
        assert_eq!(rows(), u64::from(!happens), "drops: {drops}, happens: {happens}");
        assert_eq!(db.store.doubtful.lock().len(), usize::from(!happens));
        // And then it happens.
        assert_eq!(db.drop_table("counters").unwrap(), !drops || !happens);
        assert_eq!(rows(), 0);
    }
}

/// Of commands that are done together one that fails leaves nothing; what those before it did stays.
#[test]
fn a_part_that_is_undone_leaves_what_was_before_it() {
    let (db, table) = counters();
    table.put(b"a", &[("n", Value::Int(1))]).unwrap();
    let mut session = Watched::of(&db);
    let mut attempt = db.transaction();
    read(&attempt, b"a").unwrap_err();
    attempt.fetch(&mut session).unwrap();
    let at_hand = attempt.bytes_at_hand();
    attempt.begin_part();
    add_one(&mut attempt, b"a");
    assert!(attempt.bytes_at_hand() > at_hand && db.bytes_at_hand() == attempt.bytes_at_hand());
    let before = attempt.bytes_at_hand();
    attempt.begin_part();
    add_one(&mut attempt, b"a");
    attempt.edit("counters", b"a", &Edit::<&str>::Delete).unwrap();
    attempt.edit("counters", b"b", &Edit::Put(&[("n", Value::Int(5))], None)).unwrap();
    attempt.edit("counters", b"b", &Edit::Put(&[("n", Value::Int(6))], None)).unwrap();
    attempt.undo_part();
    assert_eq!((read(&attempt, b"a").unwrap(), attempt.bytes_at_hand()), (2, before));
    attempt.commit(&mut session).unwrap();
    assert_eq!(table.len().unwrap(), 1);
    // Nothing was changed before.
    attempt.restart();
    read(&attempt, b"a").unwrap_err();
    attempt.fetch(&mut session).unwrap();
    attempt.begin_part();
    attempt.edit("counters", b"a", &Edit::<&str>::Delete).unwrap();
    attempt.undo_part();
    assert!(!attempt.has_changes() && read(&attempt, b"a").unwrap() == 2);
}

#[test]
fn many_tables_are_wanted_each_once() {
    let (db, _) = counters();
    let attempt = db.transaction();
    for _ in 0..3 {
        for table in 0..20_000 {
            let name = format!("t{table}");
            assert!(attempt.schema(&name).is_err());
            attempt.prefetch(&name, b"k");
        }
        assert!(attempt.table_names().is_err());
    }
    let wanted = attempt.wanted.borrow();
    assert_eq!(wanted.all.iter().filter(|want| !matches!(want, Want::Row(..))).count(), 20_001);
}

const MIB: usize = 1 << 20;

/// A table with rows of a megabyte each.
fn big(rows: usize) -> (PairDb, PairTable) {
    let db = PairDb::open(Arc::new(MemoryBackend::default()) as Arc<dyn Backend>);
    let table = db.create_table("big", Schema::new().field("v", Type::Bytes)).unwrap();
    let value = vec![7; MIB];
    (0..rows).for_each(|at| table.put(&key(at), &row! { v: &value[..] }).unwrap());
    (db, table)
}

#[test]
fn no_more_is_got_than_there_is_room_for() {
    let (db, _table) = big(120);
    let mut session = Watched::of(&db);
    let mut attempts: Vec<Transaction> = (0..4).map(|_| db.transaction()).collect();
    for (at, attempt) in attempts.iter_mut().enumerate() {
        (30 * at..30 * at + 30).for_each(|row| attempt.prefetch("big", &key(row)));
        assert!(attempt.begin_fetch(&mut session).is_none());
    }
    let room = FetchRoom { bytes: 10 * MIB, first_goes: true };
    let mut ended = 0;
    while !attempts.is_empty() {
        let before = db.bytes_at_hand();
        let mut all: Vec<&mut Transaction> = attempts.iter_mut().collect();
        let now = Transaction::advance_within(&mut session, &mut all, room);
        let came = db.bytes_at_hand() - before;
        assert!(came < 42 * MIB, "{came} bytes came: those of the first, ten megabytes, and one row");
        assert!(now[0].as_ref().is_some_and(Result::is_ok), "the first has what it wants, whatever the room");
        assert!(attempts[0].bytes_at_hand() > 30 * MIB);
        assert_eq!(attempts.iter().map(Transaction::bytes_at_hand).sum::<usize>(), db.bytes_at_hand());
        let done = now.iter().filter(|ended| ended.is_some()).count();
        attempts.drain(..done);
        ended += done;
    }
    assert_eq!((ended, db.bytes_at_hand()), (4, 0), "what an attempt had is counted no more");
    // Nothing goes where there is no room, and nothing is lost by it.
    let mut attempt = db.transaction();
    attempt.prefetch("big", &key(3));
    assert!(attempt.begin_fetch(&mut session).is_none());
    let none = FetchRoom { bytes: 0, first_goes: false };
    session.gets = 0;
    for _ in 0..100 {
        assert!(Transaction::advance_within(&mut session, &mut [&mut attempt], none)[0].is_none());
    }
    assert_eq!(session.gets, 0);
    assert!(Transaction::advance(&mut session, &mut [&mut attempt])[0].is_some());
    assert!(attempt.read("big", &key(3), |row| Ok(row.is_some())).unwrap());
}

/// What is checked is got again, as far as there is room, and none of it is left out in the end.
#[test]
fn a_check_goes_on_while_there_is_room() {
    let (db, table) = big(60);
    for changes in [false, true] {
        let mut session = Watched::of(&db);
        let mut attempt = db.transaction();
        (0..60).for_each(|row| attempt.prefetch("big", &key(row)));
        attempt.fetch(&mut session).unwrap();
        if changes {
            let last = attempt.rows.keys().last().unwrap()[GROUP_BYTES..].to_vec();
            table.put(&last, &row! { v: &b"new"[..] }).unwrap();
        }
        assert!(attempt.begin_check().is_none());
        let (mut exchanges, room) = (0, FetchRoom { bytes: MIB, first_goes: false });
        let checked = loop {
            exchanges += 1;
            if let Some(checked) =
                Transaction::advance_within(&mut session, &mut [&mut attempt], room)[0].clone()
            {
                break checked;
            }
        };
        assert_eq!(checked.is_err(), changes);
        assert!(exchanges > 1 && session.gets >= 61, "{exchanges} exchanges");
    }
}

/// What many get together is in memory once.
#[test]
fn a_row_that_many_get_is_in_memory_once() {
    let (db, _table) = big(1);
    let mut session = Watched::of(&db);
    let mut attempts: Vec<Transaction> = (0..3).map(|_| db.transaction()).collect();
    attempts.iter().for_each(|attempt| attempt.prefetch("big", &key(0)));
    assert!(
        Transaction::finish_all(&mut session, &mut attempts, |one, session| one.begin_fetch(session))
            .iter()
            .all(Result::is_ok)
    );
    let of = |attempt: &Transaction| Arc::clone(attempt.rows.values().next().unwrap().got.as_ref().unwrap());
    assert!(attempts.iter().all(|attempt| Arc::ptr_eq(&of(attempt), &of(&attempts[0]))));
}

/// What is to be written is in memory until it is: no more of it than the limit, however many rows there are, and nothing of it once it was refused.
#[test]
fn changes_are_refused_once_they_take_too_much_memory() {
    let (db, table) = big(1);
    let mut session = Watched::of(&db);
    let mut attempt = db.transaction();
    attempt.prefetch("big", &key(0));
    attempt.fetch(&mut session).unwrap();
    let (got, value) = (attempt.bytes_at_hand(), vec![8; 40 * MIB]);
    let put = |attempt: &mut Transaction, row| {
        attempt.edit("big", &key(row), &Edit::Put(&[("v", Value::Bytes(&value))], None))
    };
    // One row that is written again and again takes what it takes once, and twice while it may be undone.
    for _ in 0..10 {
        put(&mut attempt, 0).unwrap();
    }
    for _ in 0..3 {
        attempt.begin_part();
        (0..4).for_each(|_| assert!(put(&mut attempt, 0).unwrap()));
    }
    attempt.undo_part();
    attempt.begin_part();
    (1..5).for_each(|row| assert!(!put(&mut attempt, row).unwrap()));
    attempt.undo_part();
    assert!(attempt.bytes_at_hand() < got + 41 * MIB);
    let written = (1..10).find_map(|row| put(&mut attempt, row).err().map(|error| (row, error)));
    let (row, refused) = written.unwrap();
    assert_eq!((row, refused.kind()), (6, ErrorKind::Invalid));
    assert!(refused.message().contains("268435456 bytes"), "{refused}");
    // Nothing of it is held, nothing more is taken, and nothing is written, whatever becomes of the error.
    assert_eq!((attempt.bytes_at_hand(), db.bytes_at_hand()), (got, got));
    let again = attempt.edit("big", &key(1), &Edit::Put(&[("v", Value::Bytes(b"short"))], None));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(attempt.has_changes());
    assert_eq!(attempt.commit(&mut session).unwrap_err().kind(), ErrorKind::Invalid);
    let is_as_before = || table.read(&key(0), |row| Ok(row.get("v")?.as_bytes().map(<[u8]>::len)));
    assert_eq!((table.len().unwrap(), is_as_before().unwrap().flatten()), (1, Some(MIB)));
    // The next run begins with all the room there is: after a fetch, and after a restart.
    attempt.prefetch("big", &key(7));
    attempt.fetch(&mut session).unwrap();
    assert!(!attempt.has_changes());
    (0..6).for_each(|row| assert_eq!(put(&mut attempt, row).unwrap(), row == 0));
    put(&mut attempt, 6).unwrap_err();
    attempt.restart();
    attempt.prefetch("big", &key(0));
    attempt.fetch(&mut session).unwrap();
    put(&mut attempt, 0).unwrap();
    attempt.commit(&mut session).unwrap();
    assert_eq!(is_as_before().unwrap().flatten(), Some(40 * MIB));
    // And who keeps the error to himself is told all the same.
    let held = db.bytes_at_hand();
    let kept_quiet = db.transact(|transaction| {
        transaction.schema("big")?;
        (0..7).for_each(|row| drop(put(transaction, row)));
        Ok(())
    });
    assert_eq!((kept_quiet.unwrap_err().kind(), db.bytes_at_hand()), (ErrorKind::Invalid, held));
}

#[test]
fn attempts_at_one_row_are_stored_together() {
    let (db, table) = counters();
    let mut session = Watched::of(&db);
    // Where there is no row, and where there is one.
    for round in 0..2 {
        let (mut attempts, _) = fetched(&db, &mut session, &vec![key(0); 20]);
        add_one(&mut attempts[0], &key(0));
        for at in 1..20 {
            let (before, rest) = attempts.split_at_mut(at);
            assert!(rest[0].follow(&before[at - 1]));
            assert_eq!(read(&rest[0], &key(0)).unwrap(), round * 20 + at as i64);
            add_one(&mut rest[0], &key(0));
        }
        // One that makes nothing of it stores it, too.
        let (before, last) = attempts.split_at_mut(19);
        let mut looks = fetched(&db, &mut session, &[key(0)]).0;
        assert!(looks[0].follow(&last[0]) && looks[0].changes_only_row());
        session.changes = 0;
        assert!(committed(&mut session, &mut looks)[0].is_ok());
        assert_eq!(session.changes, 1);
        // And none of the others can be stored beside it.
        let ended = committed(&mut session, before);
        assert!(ended.iter().all(|ended| ended.as_ref().unwrap_err().kind() == ErrorKind::Conflict));
    }
    assert_eq!(table.get_field(&key(0), "n").unwrap().unwrap().borrow().as_i64(), Some(40));
}

#[test]
fn one_that_fails_leaves_what_it_followed() {
    let (db, table) = counters();
    let mut session = Watched::of(&db);
    let (mut attempts, _) = fetched(&db, &mut session, &[key(0), key(0)]);
    let (first, second) = attempts.split_at_mut(1);
    assert!(!second[0].keep_followed(), "it followed none");
    add_one(&mut first[0], &key(0));
    assert!(second[0].follow(&first[0]));
    add_one(&mut second[0], &key(0));
    second[0].edit("counters", &key(0), &Edit::<&str>::Delete).unwrap();
    assert!(second[0].keep_followed());
    assert_eq!(read(&second[0], &key(0)).unwrap(), 1);
    assert!(committed(&mut session, second)[0].is_ok());
    assert_eq!(table.get_field(&key(0), "n").unwrap().unwrap().borrow().as_i64(), Some(1));
    // What is fetched, or begun anew, is followed no longer.
    let (mut attempts, _) = fetched(&db, &mut session, &[key(0), key(0)]);
    let (first, second) = attempts.split_at_mut(1);
    add_one(&mut first[0], &key(0));
    assert!(second[0].follow(&first[0]));
    second[0].prefetch("counters", &key(1));
    let begun = vec![second[0].begin_fetch(&mut session)];
    assert!(end(&mut session, second, begun)[0].is_ok());
    assert_eq!(read(&second[0], &key(0)).unwrap(), 1);
    assert!(!second[0].keep_followed() && !second[0].follow(&first[0]), "it has two rows");
}

#[test]
fn only_who_has_read_the_same_is_followed() {
    let (db, table, clock) = expiring(0, 2);
    let mut session = Watched::of(&db);
    let mut one = |key: Vec<u8>| fetched(&db, &mut session, &[key]).0.remove(0);
    let mut first = one(key(0));
    assert!(!one(key(0)).follow(&first), "it changes nothing");
    add_one(&mut first, &key(0));
    assert!(one(key(0)).follow(&first));
    assert!(!one(key(1)).follow(&first), "it is of another row");
    let mut changed = one(key(0));
    add_one(&mut changed, &key(0));
    assert!(!changed.follow(&first), "it has changed the row by itself");
    let mut blind = db.transaction();
    assert!(blind.schema("counters").is_err());
    blind.fetch(&mut *db.session().unwrap()).unwrap();
    blind.edit("counters", &key(0), &Edit::Put(&[("n", Value::Int(7))], None)).unwrap();
    assert!(!one(key(0)).follow(&blind), "it has not read the row");
    // What is to expire is there for whoever goes by an earlier time.
    let mut expires = one(key(0));
    let at = expires.now_ms() + 10;
    expires.edit("counters", &key(0), &Edit::<&str>::Expire(Some(at))).unwrap();
    assert!(one(key(0)).follow(&expires));
    clock.advance_ms(20);
    assert!(!one(key(0)).follow(&expires), "it has expired");
    table.add_field("more", Type::I64).unwrap();
    assert!(!one(key(0)).follow(&first), "the table is another");
    let mut first = one(key(0));
    add_one(&mut first, &key(0));
    table.put(&key(0), &row! { n: 5 }).unwrap();
    assert!(!one(key(0)).follow(&first), "the row is another");
}
