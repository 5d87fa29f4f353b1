//! Rows in a pool over TCP on this machine: answers like a map's and like the model's, two nodes beside one another, connections that are cut, nodes that end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hedgerow_device::Random;
use hedgerow_row::backend::{Answer, Command, Cursor, Expect, GROUP_BYTES, Mark, Pair, Ticket, pair_key};
use hedgerow_row::pairs::PairDb;
use hedgerow_row::{Schema, Type, Value, row};
use hedgerow_sim::{Call, Effect, History, PairRunner, Precondition, Source, Taste, generate};

use super::*;
use crate::client::ClientOptions;
use crate::compute_node::ComputeNodeOptions;
use crate::fabric::NodeId;
use crate::manager::ManagerCall;
use crate::region::{MemoryNode, PoolLayout};
use crate::sync::{AtomicU64, Mutex};
use crate::tests::tcp_pool::{CLIENT, PATIENCE, TcpPool, Told, start_pool};
use hedgerow_device::Clock;

const LAYOUT: PoolLayout = PoolLayout {
    memory_nodes: 3,
    copies: 3,
    partition_bits: 1,
    groups: 40,
    block_bytes: 256 << 10,
    blocks: 64,
};
// On a machine that stands still for seconds no call is given up.
const OPTIONS: ClientOptions = ClientOptions {
    depth: 64,
    cached_keys: 8192,
    cached_bytes: 16 << 20,
    timeout_ns: 30_000_000_000,
    ..CLIENT
};
const GROUP: u32 = 0x6162_6364;

/// A pool, and its compute nodes.
fn start(layout: PoolLayout, nodes: u16) -> (TcpPool, Vec<PoolBackend>) {
    let mut pool = start_pool(layout);
    let boots = Arc::new(AtomicU64::new(1));
    let start = |node| {
        let fabric = pool.fabrics.remove(&node).unwrap();
        let boots = Arc::clone(&boots);
        let options = ComputeNodeOptions { node, layout, client: OPTIONS };
        let boots = move || boots.fetch_add(1, Ordering::Relaxed);
        PoolBackend::new(ComputeNode::start(options, fabric, boots).unwrap())
    };
    let backends = (0..nodes).map(NodeId).map(start).collect();
    (pool, backends)
}

fn start_one() -> (TcpPool, PoolBackend) {
    let (pool, mut backends) = start(LAYOUT, 1);
    (pool, backends.remove(0))
}

fn cut(backend: &PoolBackend, node: NodeId) {
    backend.node().with_fabric(Box::new(move |fabric| fabric.cut(node)));
}

fn key(n: u64) -> Vec<u8> {
    pair_key(GROUP, &n.to_be_bytes())
}

fn value(n: u64) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().to_vec();
    // Some are in two or three parts.
    let long = if n % 7 == 3 { 30_000 } else { 0 };
    bytes.resize(8 + (n % 1500) as usize + long, n as u8);
    bytes
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

/// Starts commands together and takes their answers, in the order of the commands.
fn ask(session: &mut dyn Session, commands: &[Command<'_>]) -> Vec<Result<Answer>> {
    let tickets: Vec<_> = commands.iter().map(|command| session.start(command.clone()).unwrap()).collect();
    let (mut answered, clock) = (Vec::new(), Clock::system());
    let began = clock.monotonic_ns();
    while answered.len() < tickets.len() {
        session.wait(Duration::MAX).unwrap();
        session.poll(&mut answered);
        assert!(clock.monotonic_ns() - began < PATIENCE.as_nanos() as u64, "{answered:?} of {tickets:?}");
    }
    assert_eq!(answered.len(), tickets.len(), "each is answered once");
    let mut answers: BTreeMap<Ticket, Result<Answer>> = answered.into_iter().collect();
    tickets.iter().map(|ticket| answers.remove(ticket).unwrap()).collect()
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

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("a refusal").kind()
}

fn walk(session: &mut dyn Session, group: u32, pairs: usize) -> Vec<Pair> {
    let (mut cursor, mut walked) = (Some(Cursor::START), Vec::new());
    while let Some(from) = cursor {
        match answer(session, Command::Walk { group, from, pairs }).unwrap() {
            Answer::Walked(more, next) => {
                assert!(more.len() <= pairs.max(1));
                walked.extend(more);
                cursor = next;
            }
            other => panic!("{other:?}"),
        }
    }
    walked
}

/// `HEDGEROW_SEED=n` repeats one seed.
#[test]
fn rows_over_a_pool_answer_like_their_model() {
    let seeds = match std::env::var("HEDGEROW_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => vec![0, 1, 2],
    };
    for seed in seeds {
        let (_pool, backend) = start_one();
        // Of the last seed many rows are longer than an object.
        let (keys, value_bytes_max) = if seed == 2 { (24, 8_000) } else { (96, 500) };
        let taste = Taste { keys, value_bytes_max, ..Taste::default() };
        let mut source = Source::from_seed(seed);
        let mut runner = PairRunner::new(Arc::new(backend)).unwrap();
        for stamp in 0..700 {
            let op = generate(&mut source, &taste, stamp);
            let step = runner.step(&op);
            step.unwrap_or_else(|divergence| panic!("seed {seed}, operation {stamp}: {divergence}"));
        }
        runner.verify().unwrap_or_else(|divergence| panic!("seed {seed}, at the end: {divergence}"));
    }
}

type Model = BTreeMap<Vec<u8>, (Vec<u8>, Mark)>;

/// An expectation of a key, and whether the model says that it holds.
fn expect_of(model: &Model, key: &[u8], random: &mut Random) -> (Expect, bool) {
    let there = model.get(key);
    match random.below(4) {
        0 => (Expect::Absent, there.is_none()),
        1 => (Expect::Present, there.is_some()),
        2 => (Expect::Any, true),
        _ => (Expect::Same(there.map_or(Mark::new(77), |(_, mark)| *mark)), there.is_some()),
    }
}

#[test]
fn answers_are_as_a_map_says() {
    let (_pool, backend) = start_one();
    let session = &mut *backend.session().unwrap();
    let (mut random, mut model, mut marks) = (Random::from_seed(7), Model::new(), BTreeSet::new());
    for step in 0..1_500 {
        let key = pair_key(GROUP + random.below(2) as u32, &[random.below(12) as u8]);
        let (expect, holds) = expect_of(&model, &key, &mut random);
        match random.below(12) {
            0..5 => match put(session, &key, &value(step), expect) {
                Ok(mark) => {
                    assert!(holds && marks.insert(mark.number()), "a mark is given once");
                    model.insert(key, (value(step), mark));
                }
                other => assert!(!holds && kind(other) == ErrorKind::Conflict),
            },
            5..8 => match answer(session, Command::Delete { key: &key, expect }) {
                Ok(deleted) => {
                    assert!(holds);
                    assert_eq!(deleted, Answer::Deleted(model.remove(&key).is_some()));
                }
                other => assert!(!holds && kind(other) == ErrorKind::Conflict),
            },
            8 => same(session, &model),
            9 if step % 5 == 0 => {
                assert_eq!(answer(session, Command::Clear { group: GROUP }).unwrap(), Answer::Cleared);
                model.retain(|key, _| !key.starts_with(&GROUP.to_be_bytes()));
                same(session, &model);
            }
            _ => {
                let found = get(session, &key).unwrap().map(|pair| (pair.value.to_vec(), pair.mark));
                assert_eq!(found.as_ref(), model.get(&key));
            }
        }
    }
    assert_eq!(backend.node().sessions_ended(), 0);
}

/// Walks and counts give what the model has.
fn same(session: &mut dyn Session, model: &Model) {
    for group in [GROUP, GROUP + 1] {
        let of_group = || model.iter().filter(|(key, _)| key.starts_with(&group.to_be_bytes()));
        let walked = walk(session, group, 1 + model.len() % 5);
        let walked: Model =
            walked.into_iter().map(|pair| (pair.key.to_vec(), (pair.value.to_vec(), pair.mark))).collect();
        assert!(walked.iter().eq(of_group()), "{group:x}");
        let counted = answer(session, Command::Count { group }).unwrap();
        assert_eq!(counted, Answer::Counted(of_group().count() as u64));
    }
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    let (_pool, backend) = start_one();
    let mut session = backend.session().unwrap();
    let limits = *backend.capabilities();
    let (longest, largest) = (vec![7; limits.key_bytes_max], vec![8; limits.value_bytes_max]);
    put(&mut *session, &longest, &largest, Expect::Absent).unwrap();
    assert_eq!(*get(&mut *session, &longest).unwrap().unwrap().value, *largest);
    for (bytes, is_taken) in [(0, false), (GROUP_BYTES - 1, false), (GROUP_BYTES, true), (1025, false)] {
        let started = session.start(Command::Get { key: &vec![7; bytes] });
        assert_eq!(started.is_ok(), is_taken, "a key of {bytes} bytes");
        assert!(started.err().is_none_or(|error| error.kind() == ErrorKind::Invalid));
    }
    let over = vec![8; limits.value_bytes_max + 1];
    let refused = session.start(Command::Put { key: &key(1), value: &over, expect: Expect::Any });
    assert_eq!(kind(refused), ErrorKind::Invalid);
    assert!(!limits.persists);
    assert_eq!(kind(session.start(Command::Persist)), ErrorKind::Unsupported);
    let from = Cursor::at(Box::from(&b"no cursor"[..]));
    assert_eq!(kind(session.start(Command::Walk { group: GROUP, from, pairs: 1 })), ErrorKind::Invalid);
    // One is under way.
    for _ in 1..limits.depth_max {
        session.start(Command::Count { group: GROUP }).unwrap();
    }
    assert_eq!(kind(session.start(Command::Count { group: GROUP })), ErrorKind::Busy);
    let (mut answered, mut tickets) = (Vec::new(), BTreeSet::new());
    backend.close().unwrap();
    assert_eq!(kind(backend.session().map(drop)), ErrorKind::Closed);
    while session.wait(PATIENCE).is_ok() {
        session.poll(&mut answered);
    }
    for (ticket, answer) in answered {
        assert!(tickets.insert(ticket), "each is answered once");
        assert!(answer.is_ok() || kind(answer) == ErrorKind::Closed);
    }
    assert_eq!(tickets.len(), limits.depth_max);
    assert_eq!(kind(session.start(Command::Count { group: GROUP })), ErrorKind::Closed);
}

/// Values of a mebibyte, at two nodes, with proxies and without: read and written whole, by condition, in walks, and again and again, more than there is memory.
#[test]
fn rows_of_a_mebibyte() {
    const MIB: usize = 1 << 20;
    let (pool, backends) = start(LAYOUT, 2);
    let stores: Vec<PairDb> =
        backends.iter().map(|backend| PairDb::open(Arc::new(backend.clone()))).collect();
    let schema = Schema::new().field("bytes", Type::Bytes).field("count", Type::I64);
    let tables = [stores[0].create_table("rows", schema).unwrap(), stores[1].table("rows").unwrap()];
    let bytes = |n: u8, len: usize| vec![n; len];
    let is_there = |node: usize, key: &str, n: u8, len: usize| {
        let there = tables[node].get_field(key, "bytes").unwrap().unwrap();
        matches!(there.borrow(), Value::Bytes(there) if there == bytes(n, len))
    };
    for proxy in [None, Some(NodeId(0))] {
        for partition in [0, 1] {
            pool.manager.tell(Told::Call(ManagerCall::Assign(partition, proxy)));
        }
        for (key, n, len) in [("a", 1, MIB), ("b", 2, 100 << 10), ("c", 3, 16 << 10)] {
            tables[0].put(key, &row! { bytes: &bytes(n, len), count: 0 }).unwrap();
            assert!(is_there(1, key, n, len) && is_there(0, key, n, len));
        }
        // Of a long row one field changes, at two nodes beside one another.
        std::thread::scope(|scope| {
            for table in &tables {
                scope.spawn(|| {
                    for _ in 0..25 {
                        table.increment("b", "count", 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(tables[1].get_field("b", "count").unwrap().unwrap().borrow(), Value::Int(50));
        assert_eq!(tables[0].len().unwrap(), 3);
        for n in 0..60 {
            tables[usize::from(n % 2)].put("a", &row! { bytes: &bytes(n, MIB) }).unwrap();
        }
        assert!(is_there(0, "a", 59, MIB) && is_there(1, "b", 2, 100 << 10));
        let error = tables[0].put("a", &row! { bytes: &bytes(1, 2 * MIB) }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        tables[1].delete("a").unwrap();
        assert_eq!(tables[0].len().unwrap(), 2);
    }
    let long = |backend: &PoolBackend| backend.node().counters().client.long_writes;
    assert!(backends.iter().map(long).sum::<u64>() > 200);
    assert!(backends.iter().all(|backend| backend.node().sessions_ended() == 0));
}

/// Two nodes, as two processes would have: rows and tables of either are the other's, and of three writers none loses an addition.
#[test]
fn two_nodes_have_the_same_rows() {
    const ADDITIONS: i64 = 2_000;
    let (_pool, backends) = start(LAYOUT, 2);
    let stores: Vec<PairDb> =
        backends.iter().map(|backend| PairDb::open(Arc::new(backend.clone()))).collect();
    let schema = Schema::new().field("name", Type::String).field("count", Type::I64);
    let table = stores[0].create_table("rows", schema).unwrap();
    table.put("k", &row! { name: "one", count: 0 }).unwrap();
    let other = stores[1].table("rows").unwrap();
    assert_eq!(other.get_field("k", "name").unwrap().unwrap().borrow(), Value::Str("one"));
    other.add_field("more", Type::U32).unwrap();
    table.update("k", &row! { more: 3 }).unwrap();
    assert_eq!(other.get_field("k", "more").unwrap().unwrap().borrow(), Value::UInt(3));
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let table = stores[writer % 2].table("rows").unwrap();
            scope.spawn(move || {
                for _ in 0..ADDITIONS {
                    table.increment("k", "count", 1).unwrap();
                }
            });
        }
    });
    for table in [table, other] {
        assert_eq!(table.get_field("k", "count").unwrap().unwrap().borrow(), Value::Int(3 * ADDITIONS));
        assert_eq!(table.len().unwrap(), 1);
    }
    stores[1].drop_table("rows").unwrap();
    assert!(stores[0].table_names().unwrap().is_empty());
    assert!(backends.iter().all(|backend| backend.node().sessions_ended() == 0));
}

#[test]
fn a_walk_comes_by_what_stays() {
    let (pool, backends) = start(LAYOUT, 2);
    let mut session = backends[0].session().unwrap();
    for n in 0..300 {
        put(&mut *session, &key(n), &value(n), Expect::Any).unwrap();
        put(&mut *session, &pair_key(GROUP + 1, &n.to_be_bytes()), b"other", Expect::Any).unwrap();
    }
    // Of one partition the table is read, of the other one a proxy is asked.
    pool.manager.tell(Told::Call(ManagerCall::Assign(0, Some(NodeId(1)))));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut session, mut random) = (backends[1].session().unwrap(), Random::from_seed(3));
            while !is_over.load(Ordering::Acquire) {
                // Even ones stay, with other values; odd ones come and go.
                let n = random.below(300);
                if n % 2 == 0 || random.below(2) == 0 {
                    put(&mut *session, &key(n), &value(n), Expect::Any).unwrap();
                } else {
                    answer(&mut *session, Command::Delete { key: &key(n), expect: Expect::Any }).unwrap();
                }
            }
        });
        for pairs in [1, 7, 64, 1000] {
            let seen: BTreeSet<u64> = walk(&mut *session, GROUP, pairs)
                .into_iter()
                .map(|pair| {
                    let n = number(&pair.value);
                    assert!(*pair.key == *key(n) && *pair.value == *value(n), "{pair:?}");
                    n
                })
                .collect();
            assert!((0..300).step_by(2).all(|n| seen.contains(&n)), "{pairs}: {seen:?}");
        }
        is_over.store(true, Ordering::Release);
    });
    assert_eq!(answer(&mut *session, Command::Clear { group: GROUP }).unwrap(), Answer::Cleared);
    for (group, count) in [(GROUP, 0), (GROUP + 1, 300)] {
        assert_eq!(answer(&mut *session, Command::Count { group }).unwrap(), Answer::Counted(count));
    }
}

/// What was seen of puts and gets through both nodes.
#[derive(Default)]
struct Seen {
    history: History,
    refused: u64,
    open: u64,
}

/// Calls of one caller, of ten so many reads; each command that names a key is in the history.
fn call_some(backend: &PoolBackend, caller: u64, (calls, reads): (u64, u64), seen: &Mutex<Seen>) {
    let (mut session, mut random, clock) =
        (backend.session().unwrap(), Random::from_seed(caller), Clock::system());
    let mut marks: BTreeMap<u64, (Mark, u64)> = BTreeMap::new();
    for call in 0..calls {
        let (n, id) = (random.below(6), caller << 32 | call);
        let (key, new) = (key(n), value(id));
        let (expect, expected) = match (random.below(4), marks.get(&n)) {
            (0, _) => (Expect::Absent, Precondition::Absent),
            (1, _) => (Expect::Present, Precondition::Present),
            (2, Some(&(mark, value))) => (Expect::Same(mark), Precondition::Value(value)),
            _ => (Expect::Any, Precondition::Any),
        };
        let is_read = random.below(10) < reads;
        let (command, may_have) = match random.below(3) {
            _ if is_read => (Command::Get { key: &key }, None),
            0 => (Command::Delete { key: &key, expect }, Some(Effect::MayRemoveIf(expected))),
            _ => {
                let put = Command::Put { key: &key, value: &new, expect };
                (put, Some(Effect::MayWriteIf(expected, id)))
            }
        };
        let began = clock.monotonic_ns();
        let answer = answer(&mut *session, command);
        let returned = clock.monotonic_ns();
        let mut seen = seen.lock();
        let effect = match answer {
            Ok(Answer::Got(pair)) => {
                let got = pair.as_ref().map(|pair| number(&pair.value));
                marks.extend(pair.map(|pair| (n, (pair.mark, number(&pair.value)))));
                Effect::Read(got)
            }
            Ok(Answer::Stored(mark)) => {
                marks.insert(n, (mark, id));
                Effect::WriteIf(expected, id)
            }
            Ok(Answer::Deleted(was)) => Effect::RemoveIf(expected, was),
            Ok(other) => panic!("{other:?}"),
            Err(error) => match (error.kind(), may_have) {
                (ErrorKind::Conflict, _) => Effect::Refused(expected),
                (ErrorKind::Indeterminate, Some(effect)) => {
                    seen.open += 1;
                    effect
                }
                (ErrorKind::Unavailable, _) => {
                    seen.refused += 1;
                    continue;
                }
                _ => panic!("{error}"),
            },
        };
        seen.history.push(Call { key: n, effect, began, returned });
    }
}

/// Connections are cut and a partition gets a proxy while commands are under way: what was answered has an order, and later commands work.
#[test]
fn commands_are_linearizable_through_cut_connections() {
    let (pool, backends) = start(LAYOUT, 2);
    let seen = Mutex::new(Seen::default());
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let (backend, seen) = (&backends[caller % 2], &seen);
            scope.spawn(move || call_some(backend, caller as u64, (300, 4), seen));
        }
        let after = |calls: u64| {
            while (seen.lock().history.len() as u64) < calls {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        after(150);
        cut(&backends[0], NodeId::agent(MemoryNode(0)));
        after(350);
        cut(&backends[1], NodeId::agent(MemoryNode(1)));
        cut(&backends[0], NodeId::MANAGER);
        after(500);
        pool.manager.tell(Told::Call(ManagerCall::Assign(0, Some(NodeId(1)))));
        after(650);
        cut(&backends[1], NodeId::agent(MemoryNode(2)));
    });
    for backend in &backends {
        assert!(backend.node().sessions_ended() > 0, "a cut ends a session");
        let mut session = backend.session().unwrap();
        // The last cut may be felt only now, and once.
        let mark = (0..9).find_map(|_| put(&mut *session, &key(99), b"last", Expect::Any).ok()).unwrap();
        assert_eq!(get(&mut *session, &key(99)).unwrap().unwrap().mark, mark);
        let walked = walk(&mut *session, GROUP, 100);
        assert!(walked.iter().any(|pair| pair.mark == mark));
    }
    let seen = seen.into_inner();
    seen.history.check().unwrap_or_else(|error| panic!("{error}"));
    let counts = format!("{} refused, {} open", seen.refused, seen.open);
    assert!(seen.history.len() > 900, "{counts}");
}

/// Both nodes answer most reads from their caches, on their callers' threads, while the rows change, a connection is cut and partitions change their proxy.
#[test]
fn reads_from_caches_are_linearizable() {
    let (pool, backends) = start(LAYOUT, 2);
    let assign = |node: u16| {
        for partition in [0, 1] {
            pool.manager.tell(Told::Call(ManagerCall::Assign(partition, Some(NodeId(node)))));
        }
    };
    let (clock, mut session) = (Clock::system(), backends[0].session().unwrap());
    let began = clock.monotonic_ns();
    // Who has no session yet is given no partition.
    while backends[1].node().counters().proxy.reads == 0 {
        assert!(clock.monotonic_ns() - began < PATIENCE.as_nanos() as u64, "there is no proxy");
        if backends[1].node().is_ready() {
            assign(1);
        }
        get(&mut *session, &key(0)).unwrap();
    }
    let seen = Mutex::new(Seen::default());
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let (backend, seen) = (&backends[caller % 2], &seen);
            scope.spawn(move || call_some(backend, caller as u64, (700, 9), seen));
        }
        let after = |calls: u64| {
            while (seen.lock().history.len() as u64) < calls {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        after(900);
        cut(&backends[0], NodeId::agent(MemoryNode(0)));
        after(1300);
        assign(0);
        after(1800);
        assign(1);
    });
    let seen = seen.into_inner();
    seen.history.check().unwrap_or_else(|error| panic!("{error}"));
    for backend in &backends {
        let counters = backend.node().counters();
        assert!(counters.read_from_cache > 50 && counters.client.invalidated > 5, "{counters:?}");
    }
}

/// The node ends with commands under way, its sessions before or after it: everything is answered, and nobody waits for ever.
#[test]
fn a_node_that_ends_answers_everything() {
    for drops_sessions_first in [false, true] {
        let (_pool, backend) = start_one();
        let node = Arc::clone(&backend.shared);
        let mut sessions: Vec<_> = (0..4).map(|_| backend.session().unwrap()).collect();
        for (at, session) in sessions.iter_mut().enumerate() {
            for n in 0..10 {
                let (key, value) = (key(n), value(at as u64));
                session.start(Command::Put { key: &key, value: &value, expect: Expect::Any }).unwrap();
                session.start(Command::Count { group: GROUP }).unwrap();
                session.start(Command::Clear { group: GROUP }).unwrap();
            }
        }
        if drops_sessions_first {
            drop(sessions.split_off(2));
        }
        // As if the last handle had gone; sessions have one, too.
        node.node.end();
        for session in &mut sessions {
            let mut answered = Vec::new();
            while session.wait(PATIENCE).is_ok() && answered.len() < 30 {
                session.poll(&mut answered);
            }
            assert_eq!(answered.len(), 30);
            for (_, answer) in answered {
                let is_known =
                    |error: &Error| matches!(error.kind(), ErrorKind::Closed | ErrorKind::Indeterminate);
                assert!(answer.as_ref().err().is_none_or(is_known), "{answer:?}");
            }
            let ticket = session.start(Command::Get { key: &key(1) }).unwrap();
            let mut answered = Vec::new();
            session.wait(PATIENCE).unwrap();
            session.poll(&mut answered);
            assert_eq!((answered.len(), answered[0].0), (1, ticket));
            assert_eq!(kind(answered.remove(0).1), ErrorKind::Closed);
        }
        drop(sessions);
        drop((backend, node));
    }
}
