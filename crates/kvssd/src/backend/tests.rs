//! An array against a map: answers, conditions, walks, marks; how it is opened; what a crash leaves; devices that fail.

mod batches;
mod copies;
mod copies_cut;
mod copies_doubles;
mod copies_left;
mod crashes;
mod failures;
mod moments;
mod moves;
mod moves_cut;
mod moves_under_load;
mod opening;
mod places;

use std::collections::BTreeMap;
use std::time::Duration;

use hedgerow_device::{CrashModel, Random, Survivors};
use hedgerow_row::ErrorKind;
use hedgerow_row::backend::{Answer, Command, Cursor, Expect, Mark, Pair, pair_key};

use super::*;

/// Values of up to 4 KiB, less a mark.
const SMALL: Geometry = Geometry { page_bytes: 4096, block_bytes: 32 << 10, blocks: 24 };
const GROUP: u32 = 0x6162_6364;

fn options(ack: AckMode) -> KvssdOptions {
    KvssdOptions { geometry: Some(SMALL), ..KvssdOptions::ack(ack) }
}

fn in_memory(devices: usize) -> KvssdBackend {
    KvssdBackend::open(&vec![ArrayMedium::Memory; devices], &options(AckMode::Buffered)).unwrap()
}

fn sims(devices: usize) -> Vec<CrashSim> {
    (0..devices).map(|_| CrashSim::new(CrashModel::Pages, SMALL.bytes() + (1 << 20))).collect()
}

fn media(sims: &[CrashSim]) -> Vec<ArrayMedium> {
    sims.iter().map(|sim| ArrayMedium::Simulated(sim.clone())).collect()
}

/// What a crash leaves of a medium at a place in its log.
fn crashed(sim: &CrashSim, op: u64, kind: Survivors, seed: u64) -> CrashSim {
    let mut walk = sim.walk();
    walk.seek(op);
    CrashSim::from_image(&walk.image(kind, seed))
}

/// A medium as it is now.
fn copied(sim: &CrashSim) -> CrashSim {
    crashed(sim, sim.ops(), Survivors::All, 0)
}

fn key(n: u64) -> Vec<u8> {
    pair_key(GROUP, &n.to_be_bytes())
}

/// Starts commands together and takes their answers, in the order of the commands.
fn ask(session: &mut dyn Session, commands: &[Command<'_>]) -> Vec<Result<Answer>> {
    let tickets: Vec<_> = commands.iter().map(|command| session.start(command.clone()).unwrap()).collect();
    let mut answered = Vec::new();
    while answered.len() < tickets.len() {
        session.wait(Duration::MAX).unwrap();
        session.poll(&mut answered);
    }
    assert_eq!(answered.len(), tickets.len(), "each is answered once");
    let of = |ticket| answered.iter().find(|(of, _)| of == ticket).unwrap().1.clone();
    tickets.iter().map(of).collect()
}

fn answer(session: &mut dyn Session, command: Command<'_>) -> Result<Answer> {
    ask(session, &[command]).remove(0)
}

fn put(session: &mut dyn Session, key: &[u8], value: &[u8], expect: Expect) -> Result<Mark> {
    match answer(session, Command::Put { key, value, expect })? {
        Answer::Stored(mark) => Ok(mark),
        other => panic!("{other:?}"),
    }
}

fn get(session: &mut dyn Session, key: &[u8]) -> Result<Option<Pair>> {
    match answer(session, Command::Get { key })? {
        Answer::Got(pair) => Ok(pair),
        other => panic!("{other:?}"),
    }
}

fn map_of(backend: &KvssdBackend) -> ArrayMap {
    backend.array.layout.read().map().clone()
}

/// The number of the device that has a key.
fn owner(backend: &KvssdBackend, key: &[u8]) -> usize {
    map_of(backend).device_of(key)
}

fn kind<T: fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("a refusal").kind()
}

/// All pairs of a group, some at a time.
fn walk(session: &mut dyn Session, group: u32, pairs: usize) -> Vec<Pair> {
    let (mut from, mut walked) = (Some(Cursor::START), Vec::new());
    while let Some(place) = from {
        match answer(session, Command::Walk { group, from: place, pairs }).unwrap() {
            Answer::Walked(some, next) => {
                assert!(some.len() <= pairs.max(1), "{} of {pairs}", some.len());
                walked.extend(some);
                from = next;
            }
            other => panic!("{other:?}"),
        }
    }
    walked
}

/// What a map says is there.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, Mark)>;

fn expect_of(model: &Model, key: &[u8], random: &mut Random) -> (Expect, bool) {
    match (random.below(4), model.get(key)) {
        (0, _) => (Expect::Any, true),
        (1, there) => (Expect::Absent, there.is_none()),
        (2, there) => (Expect::Present, there.is_some()),
        (_, Some((_, mark))) if random.below(4) > 0 => (Expect::Same(*mark), true),
        _ => (Expect::Same(Mark::new(random.below(3))), false),
    }
}

/// Commands on several keys at once, each with a condition, against a map.
#[test]
fn answers_are_as_a_map_says() {
    for devices in [1, 2, 5] {
        let backend = in_memory(devices);
        let mut session = backend.session().unwrap();
        let session = &mut *session;
        let (mut model, mut random) = (Model::new(), Random::from_seed(devices as u64));
        let mut last_mark = 0;
        for _ in 0..3_000 {
            // Of keys that differ: commands that are under way together are in no order.
            let first = random.below(40);
            let keys: Vec<Vec<u8>> = (0..random.below(8) + 1).map(|n| key((first + n * 3) % 40)).collect();
            let values: Vec<Vec<u8>> = keys
                .iter()
                .map(|_| {
                    let bytes = random.below(16) * random.below(250);
                    vec![random.below(256) as u8; bytes as usize]
                })
                .collect();
            let mut wanted = Vec::new();
            let commands: Vec<Command<'_>> = keys
                .iter()
                .zip(&values)
                .map(|(key, value)| {
                    let (expect, holds) = expect_of(&model, key, &mut random);
                    wanted.push(holds);
                    match random.below(5) {
                        0 | 1 => Command::Get { key },
                        2 | 3 => Command::Put { key, value, expect },
                        _ => Command::Delete { key, expect },
                    }
                })
                .collect();
            let answers = ask(session, &commands);
            for ((command, answer), holds) in commands.iter().zip(answers).zip(wanted) {
                match (command, answer) {
                    (Command::Get { key }, Ok(Answer::Got(pair))) => {
                        let got = pair.map(|pair| (pair.value.to_vec(), pair.mark));
                        assert_eq!(got.as_ref(), model.get(*key));
                    }
                    (Command::Put { key, value, .. }, Ok(Answer::Stored(mark))) => {
                        assert!(holds && model.values().all(|(_, other)| *other != mark));
                        last_mark = last_mark.max(mark.number());
                        model.insert(key.to_vec(), (value.to_vec(), mark));
                    }
                    (Command::Delete { key, .. }, Ok(Answer::Deleted(existed))) => {
                        assert!(holds);
                        assert_eq!(existed, model.remove(*key).is_some());
                    }
                    (command, Err(error)) => {
                        assert!(!holds && error.kind() == ErrorKind::Conflict, "{command:?}: {error}")
                    }
                    (command, answer) => panic!("{command:?}: {answer:?}"),
                }
            }
        }
        assert!(last_mark > 1_000);
        same(session, &model);
        assert_eq!(answer(session, Command::Clear { group: GROUP }).unwrap(), Answer::Cleared);
        same(session, &Model::new());
    }
}

fn same(session: &mut dyn Session, model: &Model) {
    for pairs in [0, 1, 7, 5_000] {
        let mut walked: Vec<_> = walk(session, GROUP, pairs)
            .into_iter()
            .map(|pair| (pair.key.to_vec(), (pair.value.to_vec(), pair.mark)))
            .collect();
        walked.sort_by(|a, b| a.0.cmp(&b.0));
        let expected: Vec<_> = model.iter().map(|(key, there)| (key.clone(), there.clone())).collect();
        assert_eq!(walked, expected, "{pairs} at a time");
    }
    let counted = answer(session, Command::Count { group: GROUP }).unwrap();
    assert_eq!(counted, Answer::Counted(model.len() as u64));
}

/// Commands on one key that are under way together are each atomic: of those that expect what was there one is done.
#[test]
fn of_several_that_expect_the_same_one_is_done() {
    let backend = in_memory(2);
    let mut session = backend.session().unwrap();
    let session = &mut *session;
    let key = &key(1)[..];
    let mut mark = put(session, key, b"0", Expect::Absent).unwrap();
    for round in 0..50u8 {
        let value = [round];
        let expect = Expect::Same(mark);
        let mut commands = vec![Command::Put { key, value: &value, expect }; 5];
        commands.push(Command::Delete { key, expect });
        let answers = ask(session, &commands);
        let stored: Vec<Mark> = answers
            .iter()
            .filter_map(|answer| match answer {
                Ok(Answer::Stored(mark)) => Some(*mark),
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Conflict);
                    None
                }
            })
            .collect();
        assert_eq!(stored.len(), 1);
        mark = stored[0];
        assert_eq!(get(session, key).unwrap().unwrap().mark, mark);
    }
    let stored = answer(session, Command::Put { key, value: b"x", expect: Expect::Absent });
    assert_eq!(kind(stored), ErrorKind::Conflict);
    // What comes again under the key is not what was there.
    answer(session, Command::Delete { key, expect: Expect::Same(mark) }).unwrap();
    put(session, key, b"0", Expect::Absent).unwrap();
    assert_eq!(kind(put(session, key, b"1", Expect::Same(mark))), ErrorKind::Conflict);
}

/// Several threads add to one number, each by what it saw.
#[test]
fn no_addition_is_lost() {
    const ADDITIONS: u64 = 1_000;
    let backend = in_memory(3);
    let add = |session: &mut dyn Session, n: u64| loop {
        let seen = get(session, &key(n)).unwrap();
        let number = seen.as_ref().map_or(0, |pair| u64::from_le_bytes(pair.value[..].try_into().unwrap()));
        let expect = seen.map_or(Expect::Absent, |pair| Expect::Same(pair.mark));
        match put(session, &key(n), &(number + 1).to_le_bytes(), expect) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let mut session = backend.session().unwrap();
            scope.spawn(move || (0..ADDITIONS).for_each(|n| add(&mut *session, n % 2)));
        }
    });
    let session = &mut *backend.session().unwrap();
    let sum = |session: &mut dyn Session, n| get(session, &key(n)).unwrap().unwrap().value;
    assert_eq!(sum(session, 0)[..], (3 * ADDITIONS / 2).to_le_bytes());
    assert_eq!(sum(session, 1)[..], (3 * ADDITIONS / 2).to_le_bytes());
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    let backend = in_memory(2);
    let capabilities = *backend.capabilities();
    assert_eq!((capabilities.key_bytes_max, capabilities.value_bytes_max), (255, 4096 - 8));
    assert!(capabilities.persists);
    let mut session = backend.session().unwrap();
    for (bytes, is_taken) in [(0, false), (3, false), (4, true), (255, true), (256, false)] {
        let taken = session.start(Command::Get { key: &vec![7; bytes] });
        assert_eq!(taken.is_ok(), is_taken, "a key of {bytes} bytes");
        assert!(taken.err().is_none_or(|error| error.kind() == ErrorKind::Invalid));
    }
    let value = vec![1; capabilities.value_bytes_max + 1];
    let too_long = Command::Put { key: &key(1), value: &value, expect: Expect::Any };
    assert_eq!(kind(session.start(too_long)), ErrorKind::Invalid);
    put(&mut *backend.session().unwrap(), &key(1), &value[1..], Expect::Any).unwrap();
    for strange in [&b""[..], b"ab", &[0; 30]] {
        let from = Cursor::at(strange.into());
        let walk = Command::Walk { group: GROUP, from, pairs: 1 };
        assert_eq!(kind(session.start(walk)), ErrorKind::Invalid);
    }
    let get = |session: &mut dyn Session| session.start(Command::Get { key: &key(1) });
    for _ in 2..capabilities.depth_max {
        get(&mut *session).unwrap();
    }
    assert_eq!(kind(get(&mut *session)), ErrorKind::Busy);
    backend.close().unwrap();
    assert_eq!(kind(get(&mut *session)), ErrorKind::Closed);
    assert_eq!(kind(backend.session().map(drop)), ErrorKind::Closed);
    let mut answered = Vec::new();
    session.wait(Duration::ZERO).unwrap();
    session.poll(&mut answered);
    assert_eq!(answered.len(), capabilities.depth_max);
    assert!(answered.into_iter().all(|(_, answer)| kind(answer) == ErrorKind::Closed));
    assert_eq!(kind(session.wait(Duration::ZERO)), ErrorKind::Closed);
    backend.close().unwrap();
}

/// What stays comes, whatever others do meanwhile; a cursor is as good for another session, and after the array was opened anew.
#[test]
fn a_walk_comes_by_what_stays() {
    let sims = sims(3);
    let mut backend = KvssdBackend::open(&media(&sims), &options(AckMode::Buffered)).unwrap();
    let mut session = backend.session().unwrap();
    for n in 0..100 {
        put(&mut *session, &key(n), &[n as u8], Expect::Any).unwrap();
        put(&mut *session, &pair_key(GROUP + 1, &[n as u8]), b"other", Expect::Any).unwrap();
    }
    let (mut cursor, mut seen, mut round) = (Some(Cursor::START), Vec::new(), 0);
    while let Some(from) = cursor {
        let step = answer(&mut *session, Command::Walk { group: GROUP, from, pairs: 7 });
        let Ok(Answer::Walked(pairs, next)) = step else { panic!("a walk") };
        seen.extend(pairs.iter().map(|pair| pair.value[0]));
        // Even ones stay, and are changed; odd ones go, and others come.
        for n in [2 * round + 1, 99 - 2 * round] {
            answer(&mut *session, Command::Delete { key: &key(n), expect: Expect::Any }).unwrap();
        }
        put(&mut *session, &key(2 * round), &[2 * round as u8], Expect::Any).unwrap();
        put(&mut *session, &key(1_000 + round), &[201], Expect::Any).unwrap();
        (cursor, round) = (next, round + 1);
        if round % 4 == 0 {
            backend.close().unwrap();
            drop(session);
            backend = KvssdBackend::open(&media(&sims), &options(AckMode::Buffered)).unwrap();
            session = backend.session().unwrap();
        }
    }
    assert!((0..100).step_by(2).all(|n| seen.contains(&n)), "{seen:?}");
    assert_eq!(walk(&mut *session, GROUP + 1, 9).len(), 100);
}

/// More are set aside long before they are used up, on every device that works, and no opening gives one again.
#[test]
fn marks_are_set_aside_ahead() {
    let sims = sims(2);
    let open = || KvssdBackend::open(&media(&sims), &options(AckMode::Buffered)).unwrap();
    let backend = open();
    let mark = |backend: &KvssdBackend| {
        put(&mut *backend.session().unwrap(), &key(1), b"v", Expect::Any).unwrap().number()
    };
    let first = mark(&backend);
    // As if so many had been stored.
    backend.array.marks.fetch_add(MARKS_RESERVED - MARKS_LOW, Ordering::Relaxed);
    let end = backend.array.marks_end.load(Ordering::Relaxed);
    let later = mark(&backend);
    assert!(later > first + MARKS_LOW);
    assert_eq!(backend.array.marks_end.load(Ordering::Relaxed), end + MARKS_RESERVED);
    backend.array.marks.fetch_add(MARKS_LOW, Ordering::Relaxed);
    let last = mark(&backend);
    drop(backend);
    assert!(mark(&open()) > last);
}
