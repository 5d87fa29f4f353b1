//! Pairs in memory: answers against a map, conditions, walks while others write, many sessions.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::backend::pair_key;
use crate::schema::body::{BodyBytes, RowBody};
use crate::schema::plan::RowPlan;
use crate::schema::table::TableSchema;
use crate::stored_row::{StoredRow, StoredRowSpec};
use crate::{Schema, Type, Value, row};

const GROUP: u32 = 0x6162_6364;

fn key(n: usize) -> Vec<u8> {
    pair_key(GROUP, &n.to_be_bytes())
}

/// Starts a command and takes its answer.
fn answer(session: &mut dyn Session, command: Command<'_>) -> Result<Answer> {
    let ticket = session.start(command)?;
    session.wait(Duration::MAX)?;
    let mut answered = Vec::new();
    session.poll(&mut answered);
    assert_eq!(answered.len(), 1);
    let (of, answer) = answered.remove(0);
    assert_eq!(of, ticket);
    answer
}

fn put(session: &mut dyn Session, key: &[u8], value: &[u8], expect: Expect) -> Result<Mark> {
    match answer(session, Command::Put { key, value, expect })? {
        Answer::Stored(mark) => Ok(mark),
        other => panic!("{other:?}"),
    }
}

fn get(session: &mut dyn Session, key: &[u8]) -> Option<Pair> {
    match answer(session, Command::Get { key }) {
        Ok(Answer::Got(pair)) => pair,
        other => panic!("{other:?}"),
    }
}

fn delete(session: &mut dyn Session, key: &[u8], expect: Expect) -> Result<Answer> {
    answer(session, Command::Delete { key, expect })
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("a refusal").kind()
}

#[test]
fn conditions_hold_or_nothing_happens() {
    let mut session = MemoryBackend::default().session().unwrap();
    let (session, key) = (&mut *session, &key(1)[..]);
    let strange = Mark(u64::MAX);
    for expect in [Expect::Present, Expect::Same(strange)] {
        assert_eq!(kind(put(session, key, b"new", expect)), ErrorKind::Conflict);
        assert_eq!(kind(delete(session, key, expect)), ErrorKind::Conflict);
        assert_eq!(get(session, key), None);
    }
    assert_eq!(delete(session, key, Expect::Any).unwrap(), Answer::Deleted(false));
    let first = put(session, key, b"first", Expect::Absent).unwrap();
    for expect in [Expect::Absent, Expect::Same(strange)] {
        assert_eq!(kind(put(session, key, b"new", expect)), ErrorKind::Conflict);
        assert_eq!(kind(delete(session, key, expect)), ErrorKind::Conflict);
        assert_eq!(get(session, key).unwrap().value[..], *b"first");
    }
    let second = put(session, key, b"first", Expect::Same(first)).unwrap();
    assert_eq!(kind(put(session, key, b"third", Expect::Same(first))), ErrorKind::Conflict);
    assert_eq!(get(session, key).unwrap().mark, second, "an equal value is another pair");
    assert_eq!(delete(session, key, Expect::Same(second)).unwrap(), Answer::Deleted(true));
    // What comes again under the key is not what was there.
    put(session, key, b"first", Expect::Absent).unwrap();
    assert_eq!(kind(delete(session, key, Expect::Same(second))), ErrorKind::Conflict);
    assert_eq!(delete(session, key, Expect::Present).unwrap(), Answer::Deleted(true));
}

#[test]
fn each_command_is_answered_once_and_so_many_are_taken() {
    let backend = MemoryBackend::default();
    let mut session = backend.session().unwrap();
    let depth = backend.capabilities().depth_max;
    let keys: Vec<Vec<u8>> = (0..depth).map(key).collect();
    let put = |n: usize| Command::Put { key: &keys[n], value: b"v", expect: Expect::Absent };
    let mut tickets: Vec<Ticket> = (0..depth).map(|n| session.start(put(n)).unwrap()).collect();
    assert_eq!(kind(session.start(Command::Count { group: GROUP })), ErrorKind::Busy);
    let (mut answered, mut polls) = (Vec::new(), 0);
    while answered.len() < depth {
        let before = answered.len();
        session.poll(&mut answered);
        assert!(answered.len() > before, "a poll brings one at least");
        polls += 1;
    }
    session.poll(&mut answered);
    assert!(polls > 1, "and not all");
    assert!(answered.iter().all(|(_, answer)| matches!(answer, Ok(Answer::Stored(_)))));
    let mut of: Vec<Ticket> = answered.iter().map(|(ticket, _)| *ticket).collect();
    assert_ne!(of, tickets, "answers come in no order");
    of.sort_unstable();
    tickets.sort_unstable();
    assert_eq!(of, tickets);
    assert_eq!(
        answer(&mut *session, Command::Count { group: GROUP }).unwrap(),
        Answer::Counted(depth as u64)
    );
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    let backend = MemoryBackend::default();
    let mut session = backend.session().unwrap();
    let max = backend.capabilities().key_bytes_max;
    for (bytes, is_taken) in [(0, false), (3, false), (4, true), (max, true), (max + 1, false)] {
        let key = vec![7; bytes];
        let taken = session.start(Command::Get { key: &key });
        assert_eq!(taken.is_ok(), is_taken, "a key of {bytes} bytes");
        assert!(taken.err().is_none_or(|error| error.kind() == ErrorKind::Invalid));
    }
    let value = vec![0; backend.capabilities().value_bytes_max + 1];
    let put = Command::Put { key: &key(1), value: &value, expect: Expect::Any };
    assert_eq!(kind(session.start(put)), ErrorKind::Invalid);
    assert!(!backend.capabilities().persists);
    assert_eq!(kind(session.start(Command::Persist)), ErrorKind::Unsupported);
    backend.close().unwrap();
    assert_eq!(kind(session.start(Command::Count { group: GROUP })), ErrorKind::Closed);
    assert!(session.wait(Duration::ZERO).is_ok(), "two are under way");
    assert_eq!(kind(backend.session().map(drop)), ErrorKind::Closed);
    let mut answered = Vec::new();
    session.poll(&mut answered);
    session.poll(&mut answered);
    let closed = |(_, answer): &(Ticket, Result<Answer>)| {
        answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed)
    };
    assert!(
        answered.len() == 2 && answered.iter().all(closed),
        "those under way are answered, too: {answered:?}"
    );
    assert_eq!(kind(session.wait(Duration::ZERO)), ErrorKind::Closed);
}

/// Pairs that are there throughout come, whatever others do meanwhile, and none of another group.
#[test]
fn a_walk_comes_by_what_stays() {
    let mut session = MemoryBackend::default().session().unwrap();
    let session = &mut *session;
    for n in 0..100 {
        put(session, &key(n), &[n as u8], Expect::Any).unwrap();
        put(session, &pair_key(GROUP + 1, &[n as u8]), b"other", Expect::Any).unwrap();
        put(session, &pair_key(GROUP - 1, &[n as u8]), b"other", Expect::Any).unwrap();
    }
    let (mut cursor, mut seen, mut round) = (Some(Cursor::START), Vec::new(), 0);
    while let Some(from) = cursor {
        let walk = Command::Walk { group: GROUP, from, pairs: 7 };
        let Ok(Answer::Walked(pairs, next)) = answer(session, walk) else { panic!("a walk") };
        assert!(!pairs.is_empty() && pairs.len() <= 7 && pairs.iter().all(|pair| pair.key[..4] == *b"abcd"));
        seen.extend(pairs.iter().map(|pair| pair.value[0]));
        // Even ones stay; odd ones go, and others come.
        delete(session, &key(2 * round + 1), Expect::Any).unwrap();
        delete(session, &key(99 - 2 * round), Expect::Any).unwrap();
        put(session, &key(1_000 + round), &[200], Expect::Any).unwrap();
        (cursor, round) = (next, round + 1);
    }
    assert!((0..100).step_by(2).all(|n| seen.contains(&n)), "{seen:?}");
    assert_eq!(answer(session, Command::Clear { group: GROUP }).unwrap(), Answer::Cleared);
    for (group, count) in [(GROUP, 0), (GROUP + 1, 100), (GROUP - 1, 100)] {
        assert_eq!(answer(session, Command::Count { group }).unwrap(), Answer::Counted(count));
    }
}

/// Several sessions add to one number, each by what it saw.
#[test]
fn no_addition_is_lost() {
    const ADDITIONS: usize = if cfg!(miri) { 20 } else { 2_000 };
    let backend = MemoryBackend::default();
    let add = |session: &mut dyn Session| loop {
        let seen = get(session, &key(1));
        let number = seen.as_ref().map_or(0, |pair| u64::from_le_bytes(pair.value[..].try_into().unwrap()));
        let expect = seen.map_or(Expect::Absent, |pair| Expect::Same(pair.mark));
        match put(session, &key(1), &(number + 1).to_le_bytes(), expect) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let mut session = backend.session().unwrap();
            scope.spawn(move || (0..ADDITIONS).for_each(|_| add(&mut *session)));
        }
    });
    let sum = get(&mut *backend.session().unwrap(), &key(1)).unwrap().value;
    assert_eq!(sum[..], (3 * ADDITIONS as u64).to_le_bytes());
}

#[test]
fn a_row_is_a_pair() {
    let mut session = MemoryBackend::default().session().unwrap();
    let schema =
        TableSchema::create(&Schema::new().field("n", Type::U32).field("name", Type::String)).unwrap();
    let fields = row! { n: 36, name: "Ada" };
    let plan = RowPlan::new(&schema, &fields).unwrap();
    let spec = StoredRowSpec {
        table: GROUP,
        key: b"42",
        version: 1,
        schema_version: schema.version(),
        has_field_expiry: false,
        expires_at_ms: None,
        body_bytes: plan.body_bytes(),
    };
    let mut value = vec![0; spec.stored_bytes()];
    spec.encode(&mut value, |body| plan.encode(body));
    let pair_key = pair_key(GROUP, b"42");
    put(&mut *session, &pair_key, &value, Expect::Absent).unwrap();
    let pair = get(&mut *session, &pair_key).unwrap();
    let stored = StoredRow::parse(GROUP, &pair.key[4..], &pair.value).unwrap();
    let row = RowBody::new(schema.current_layout(), &stored, stored.has_field_expiry());
    assert_eq!(row.read(&schema, 1).unwrap().value, Value::Str("Ada"));
    assert_eq!((&stored).len(), plan.body_bytes());
}

#[derive(Debug, Clone)]
enum Op {
    Get(usize),
    Put(usize, Vec<u8>, u8),
    Delete(usize, u8),
    Count,
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..6usize).prop_map(Op::Get),
        6 => (0..6usize, prop::collection::vec(any::<u8>(), 0..9), 0..4u8).prop_map(|(k, v, e)| Op::Put(k, v, e)),
        3 => (0..6usize, 0..4u8).prop_map(|(k, e)| Op::Delete(k, e)),
        1 => Just(Op::Count),
        1 => Just(Op::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 500 }, ..ProptestConfig::default() })]

    /// One command after the other, against a map. An expectation is met or not by what the map says.
    #[test]
    fn answers_are_as_the_model_says(ops in prop::collection::vec(op(), 1..60)) {
        let mut session = MemoryBackend::default().session().unwrap();
        let session = &mut *session;
        let mut model: HashMap<usize, (Vec<u8>, Mark)> = HashMap::new();
        for op in ops {
            let expected = |model: &HashMap<usize, (Vec<u8>, Mark)>, k: &usize, e: u8| match (e, model.get(k)) {
                (0, _) => (Expect::Any, true),
                (1, there) => (Expect::Absent, there.is_none()),
                (2, there) => (Expect::Present, there.is_some()),
                (_, Some((_, mark))) => (Expect::Same(*mark), true),
                (_, None) => (Expect::Same(Mark(u64::MAX)), false),
            };
            match op {
                Op::Get(k) => {
                    let found = get(session, &key(k)).map(|pair| (pair.value.to_vec(), pair.mark));
                    prop_assert_eq!(found.as_ref(), model.get(&k));
                }
                Op::Put(k, value, e) => {
                    let (expect, holds) = expected(&model, &k, e);
                    let stored = put(session, &key(k), &value, expect);
                    prop_assert_eq!(stored.is_ok(), holds);
                    if let Ok(mark) = stored {
                        prop_assert!(model.values().all(|(_, other)| *other != mark), "a mark given twice");
                        model.insert(k, (value, mark));
                    }
                }
                Op::Delete(k, e) => {
                    let (expect, holds) = expected(&model, &k, e);
                    let deleted = delete(session, &key(k), expect);
                    prop_assert_eq!(deleted.is_ok(), holds);
                    if let Ok(deleted) = deleted {
                        prop_assert_eq!(deleted, Answer::Deleted(model.remove(&k).is_some()));
                    }
                }
                Op::Count => {
                    let count = answer(session, Command::Count { group: GROUP }).unwrap();
                    prop_assert_eq!(count, Answer::Counted(model.len() as u64));
                }
                Op::Clear => {
                    prop_assert_eq!(answer(session, Command::Clear { group: GROUP }).unwrap(), Answer::Cleared);
                    model.clear();
                }
            }
        }
    }
}

#[test]
fn a_batch_happens_whole_or_not_at_all() {
    let mut session = MemoryBackend::with_batches().session().unwrap();
    let session = &mut *session;
    let (a, b) = (key(1), key(2));
    let change = |key, expect, becomes| PairChange { key, expect, becomes };
    let first = vec![
        change(&a[..], Expect::Absent, Becomes::Value(b"a")),
        change(&b[..], Expect::Absent, Becomes::Value(b"b")),
    ];
    let Ok(Answer::Batched(marks)) = answer(session, Command::Batch { changes: first.clone() }) else {
        panic!("it happens");
    };
    assert_eq!(get(session, &a).unwrap().mark, marks[0].unwrap());
    assert_eq!(kind(answer(session, Command::Batch { changes: first })), ErrorKind::Conflict);
    let half = vec![
        change(&a[..], Expect::Any, Becomes::Nothing),
        change(&b[..], Expect::Same(marks[0].unwrap()), Becomes::Unchanged),
    ];
    assert_eq!(kind(answer(session, Command::Batch { changes: half })), ErrorKind::Conflict);
    assert_eq!(get(session, &a).unwrap().value[..], *b"a");
    let whole = vec![
        change(&a[..], Expect::Present, Becomes::Nothing),
        change(&b[..], Expect::Same(marks[1].unwrap()), Becomes::Unchanged),
    ];
    assert_eq!(
        answer(session, Command::Batch { changes: whole }).unwrap(),
        Answer::Batched(vec![None, None])
    );
    assert_eq!((get(session, &a), get(session, &b).is_some()), (None, true));
    let twice = vec![change(&a[..], Expect::Any, Becomes::Nothing); 2];
    assert_eq!(kind(session.start(Command::Batch { changes: twice })), ErrorKind::Invalid);
    let long = vec![0; 100 << 20];
    let keys: Vec<Vec<u8>> = (0..3).map(key).collect();
    let many = keys.iter().map(|key| change(&key[..], Expect::Any, Becomes::Value(&long)));
    assert_eq!(kind(session.start(Command::Batch { changes: many.collect() })), ErrorKind::Invalid);
    let mut other = MemoryBackend::default().session().unwrap();
    let one = vec![change(&a[..], Expect::Any, Becomes::Nothing)];
    assert_eq!(kind(other.start(Command::Batch { changes: one })), ErrorKind::Unsupported);
}
