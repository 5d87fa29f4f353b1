//! Rows over pairs against the model of all stores: the same random operations as the tiered store is given, every answer compared, what such a store does not
//! do refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hedgerow::backend::memory::MemoryBackend;
use hedgerow::backend::{Answer, Backend, Command, Cursor, Session};
use hedgerow::pairs::{PairBatch, PairDb, PairTable, WalkCursor};
use hedgerow::{Change, ErrorKind, Expiry, Schema, Store, Type, TypedRow, Value, row};
use hedgerow_device::{Clock, Random};
use hedgerow_kvssd::{ArrayMedium, Geometry, KvssdBackend, KvssdOptions};
use hedgerow_sim::{
    BackendFault, Call, Effect, FailingBackend, History, Op, PairRunner, Source, Taste, generate, rounds,
};

/// What keeps pairs.
#[derive(Debug, Clone, Copy)]
enum Pairs {
    Memory,
    /// The same, where several pairs may change together.
    Batches,
    /// Three key-value devices in memory.
    Kvssd,
}

impl Pairs {
    const ALL: [Pairs; 3] = [Pairs::Memory, Pairs::Batches, Pairs::Kvssd];

    /// An empty one.
    fn open(self) -> Arc<dyn Backend> {
        match self {
            Pairs::Memory => Arc::new(MemoryBackend::default()),
            Pairs::Batches => Arc::new(MemoryBackend::with_batches()),
            Pairs::Kvssd => {
                let geometry = Geometry { page_bytes: 32 << 10, block_bytes: 8 << 20, blocks: 16 };
                let options = KvssdOptions { geometry: Some(geometry), ..KvssdOptions::default() };
                Arc::new(KvssdBackend::open(&[(); 3].map(|()| ArrayMedium::Memory), &options).unwrap())
            }
        }
    }
}

/// Runs `count` operations of a seed; on failure says how to repeat it.
fn run(pairs: Pairs, seed: u64, count: u32, taste: &Taste) -> PairRunner {
    let mut source = Source::from_seed(seed);
    let mut runner = PairRunner::new(pairs.open()).unwrap();
    let mut last: Vec<Op> = Vec::new();
    for stamp in 0..count {
        let op = generate(&mut source, taste, stamp);
        last.push(op.clone());
        if let Err(divergence) = runner.step(&op) {
            let last: Vec<String> = last.iter().rev().take(12).rev().map(|op| format!("{op:?}\n")).collect();
            let last = last.concat();
            panic!("{pairs:?}, seed {seed}, operation {stamp}: {divergence}\nthe last operations:\n{last}");
        }
    }
    runner.verify().unwrap_or_else(|divergence| panic!("{pairs:?}, seed {seed}, at the end: {divergence}"));
    runner
}

/// `HEDGEROW_SEED=n` repeats one seed.
#[test]
fn rows_over_pairs_answer_like_their_model() {
    let taste_of = |pairs: Pairs, seed: u64| Taste {
        keys: [24, 96, 400][(seed % 3) as usize],
        // A row on a device has a megabyte at most.
        value_bytes_max: match pairs {
            Pairs::Memory | Pairs::Batches => [60_000, 400, 20_000, 400_000][(seed % 4) as usize],
            Pairs::Kvssd => [20_000, 400, 9_000, 40_000][(seed % 4) as usize],
        },
        ..Taste::default()
    };
    if let Ok(seed) = std::env::var("HEDGEROW_SEED") {
        let seed = seed.parse().unwrap();
        for pairs in Pairs::ALL {
            run(pairs, seed, 3_000, &taste_of(pairs, seed));
        }
        return;
    }
    for pairs in Pairs::ALL {
        let refused = |seed| run(pairs, seed, 3_000, &taste_of(pairs, seed)).refused;
        let refused: u64 = (0..rounds(12, 240)).map(refused).sum();
        assert!(refused > 100, "scans and batches are among the operations");
    }
}

fn users() -> Schema {
    Schema::new().field("name", Type::String).field("age", Type::I64).nullable("mail", Type::String)
}

#[derive(hedgerow::Row, Debug, PartialEq)]
struct User {
    name: String,
    #[row(default = 18)]
    age: u32,
    mail: Option<String>,
}

/// As in the tiered store (`typed.rs`), and for all processes.
#[test]
fn a_table_is_brought_up_to_what_a_program_knows() {
    let backend = Arc::new(MemoryBackend::default());
    let stores = [0, 1].map(|_| Store::Pairs(PairDb::open(backend.clone())));
    let older = Schema::new().field("name", Type::String);
    let users = stores[0].ensure_table("users", older.clone()).unwrap();
    users.put("ada", &row! { name: "Ada" }).unwrap();
    let version = users.version("ada").unwrap();
    let newer = stores[1].ensure_table("users", User::schema()).unwrap();
    let ada = User { name: "Ada".into(), age: 18, mail: None };
    assert_eq!(newer.get_row::<User>("ada").unwrap(), Some(ada));
    assert_eq!(users.version("ada").unwrap(), version, "no row is rewritten");
    let grace = User { name: "Grace".into(), age: 45, mail: Some("g".into()) };
    users.put_row("grace", &grace).unwrap();
    assert_eq!(newer.get_row::<User>("grace").unwrap(), Some(grace));
    for schema in [older, User::schema()] {
        stores[0].ensure_table("users", schema).unwrap();
    }
    assert_eq!(users.schema().unwrap().fields().len(), 3);
    let other = Schema::new().nullable("name", Type::String).field("new", Type::Bool);
    let error = stores[0].ensure_table("users", other).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Exists);
    assert_eq!(
        error.message(),
        "the table \"users\" differs: field \"name\" is string there and string and nullable here"
    );
    assert_eq!(users.schema().unwrap().fields().len(), 3, "nothing was added");
    assert_eq!(stores[0].ensure_table("", Schema::new()).err().unwrap().kind(), ErrorKind::Invalid);
}

#[test]
fn a_refused_batch_names_its_part() {
    let db = PairDb::open(Arc::new(MemoryBackend::default()));
    let table = db.create_table("users", users()).unwrap();
    let part = |batch: &PairBatch, kind: ErrorKind| {
        let error = db.write(batch).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let failed = error.failed_write().unwrap();
        assert_eq!(failed.table, "users");
        (failed.key.clone(), failed.position)
    };
    let mut batch = PairBatch::new();
    batch.put(&table, "ada", &row! { name: "Ada", age: 36 }, Expiry::Never).unwrap();
    batch.update(&table, "ada", &row! { age: "old" }, Expiry::Never).unwrap();
    assert_eq!(part(&batch, ErrorKind::Invalid), (b"ada".to_vec(), 1));
    let mut batch = PairBatch::new();
    batch.update(&table, "ada", &row! { age: 37 }, Expiry::Never).unwrap();
    batch.update(&table, "ada", &row! { age: 38 }, Expiry::Never).unwrap();
    let mut required = batch.clone();
    let _ = required.require_version(&table, "ada", Some(7));
    assert_eq!(part(&required, ErrorKind::Conflict), (b"ada".to_vec(), 2));
    batch.put(&table, "grace", &row! { name: "Grace" }, Expiry::Never).unwrap();
    assert_eq!(part(&batch, ErrorKind::Unsupported), (b"grace".to_vec(), 2));
    assert!(table.is_empty().unwrap());
}

/// Rows over pairs in memory of which the command with this number, counted from a moment that the test sets, goes wrong.
struct OneFails {
    db: PairDb,
    /// By other ways than through what fails.
    seen_by_others: PairDb,
    failing: FailingBackend,
    /// The number of the command.
    at: Arc<AtomicU64>,
    clock: Clock,
}

impl OneFails {
    fn new(fault: BackendFault) -> OneFails {
        let (memory, clock) = (Arc::new(MemoryBackend::default()), Clock::manual(1_000));
        let at = Arc::new(AtomicU64::new(u64::MAX));
        let number = Arc::clone(&at);
        let decide = move |command| (command == number.load(Ordering::SeqCst)).then_some(fault);
        let failing = FailingBackend::new(Arc::clone(&memory) as _, decide);
        let db = PairDb::open_at(Arc::new(failing.clone()), clock.clone());
        let seen_by_others = PairDb::open_at(memory, clock.clone());
        OneFails { db, seen_by_others, failing, at, clock }
    }

    /// The command fails that comes after so many from now on; gives its number.
    fn fail_after(&self, commands: u64) -> u64 {
        let number = self.failing.commands() + commands;
        self.at.store(number, Ordering::SeqCst);
        number
    }

    /// All that others see.
    fn shown(&self) -> String {
        let mut shown = String::new();
        for name in self.seen_by_others.table_names().unwrap() {
            let table = self.seen_by_others.table(&name).unwrap();
            let rows = table.multi_get(&[b"k"]).unwrap();
            let fields = rows[0].as_ref().map(|row| format!("{:?}", row.fields().collect::<Vec<_>>()));
            shown += &format!("{name} {:?} {fields:?};", table.schema().unwrap().fields());
        }
        shown
    }
}

type Operation = fn(&PairDb) -> hedgerow::Result<()>;

const OPERATIONS: [(&str, Operation); 15] = [
    ("create", |db| db.create_table("new", users()).map(drop)),
    ("increment", |db| db.table("users")?.increment(b"k", "age", 1).map(drop)),
    ("put", |db| db.table("users")?.put(b"k", &row! { age: 7 })),
    ("insert", |db| db.table("users")?.update(b"new", &row! { age: 7 })),
    ("delete", |db| db.table("users")?.delete(b"k").map(drop)),
    ("modify", |db| {
        let fields = vec![("age".to_owned(), Value::Int(7).to_owned())];
        let put = Change::Put { fields, expiry: Expiry::Never };
        db.table("users")?.modify(b"k", |_| Ok((put.clone(), ())))
    }),
    ("compare", |db| db.table("users")?.compare_and_set(b"k", "age", Value::Int(1), Value::Int(7)).map(drop)),
    ("expire", |db| db.table("users")?.expire(b"k", Expiry::at_unix_ms(9_000)).map(drop)),
    ("evolve", |db| match db.table("users")?.add_field("score", Type::I32) {
        Err(error) if error.kind() == ErrorKind::Exists => Ok(()),
        other => other,
    }),
    ("batch", |db| {
        let users = db.table("users")?;
        let mut batch = PairBatch::new();
        batch.update(&users, b"k", &row! { age: 7 }, Expiry::Never)?;
        batch.expire(&users, b"k", Expiry::at_unix_ms(9_000))?;
        db.write(&batch)
    }),
    ("learn", |db| db.table("bag")?.update(b"k", &[("new", Value::Bytes(b"v"))])),
    ("expired", |db| db.table("users")?.get(b"old").map(drop)),
    ("clear", |db| db.table("users")?.clear()),
    ("drop", |db| db.drop_table("users").map(drop)),
    ("walk", |db| db.table("users")?.walk(&WalkCursor::START, 9, |_| Ok(())).map(drop)),
];

/// Each command of each operation fails once, in each way. The operation is done, or fails as its command did; then all is as before it or, where nobody can
/// know, as after it; and the same operation comes through later.
#[test]
fn a_backend_that_fails_leaves_all_or_nothing() {
    for fault in BackendFault::ALL {
        for (name, operation) in OPERATIONS {
            let mut at = 0;
            while fails_at(at, fault, name, operation) {
                at += 1;
            }
            assert!(at >= 2, "{name}: of {at} commands");
        }
    }
}

/// False once the operation has fewer commands than that.
fn fails_at(after: u64, fault: BackendFault, name: &str, operation: Operation) -> bool {
    let store = OneFails::new(fault);
    let table = store.db.create_table("users", users()).unwrap();
    table.put(b"k", &row! { age: 1 }).unwrap();
    table.put_expiring(b"old", &row! { age: 1 }, Expiry::at_unix_ms(1_001)).unwrap();
    store.db.create_table("bag", Schema::open()).unwrap();
    store.clock.advance_ms(1);
    let before = store.shown();
    let number = store.fail_after(after);
    let outcome = operation(&store.db);
    if store.failing.commands() <= number {
        outcome.unwrap();
        return false;
    }
    let after = store.shown();
    let case = format!("{name}: command {number}: {fault:?}: {outcome:?}");
    if let Err(error) = &outcome {
        let is_open = error.kind() == ErrorKind::Indeterminate;
        assert!(is_open || error.kind() == ErrorKind::Unavailable, "{case}");
        // Names that were learned stay learned.
        assert!(before == after || is_open || name == "learn", "{case}\n{before}\n{after}");
    }
    operation(&store.db).unwrap_or_else(|error| {
        // What nobody knew of was done.
        assert!(error.kind() == ErrorKind::NotFound && outcome.is_err(), "{case}: then {error:?}");
    });
    if name == "increment" {
        let unknown = i64::from(outcome.is_err() && before != after);
        let done = 1 + i64::from(outcome.is_ok()) + 1 + unknown;
        let age = table.get_field(b"k", "age").unwrap().unwrap();
        assert_eq!(age.borrow(), Value::Int(done), "{case}");
    }
    true
}

/// What failed to be freed is freed with the next.
#[test]
fn what_was_cleared_is_freed_in_the_end() {
    let store = OneFails::new(BackendFault::Gone);
    let table = store.db.create_table("users", users()).unwrap();
    table.put(b"k", &row! { age: 1 }).unwrap();
    let pairs = || {
        let mut session = store.db.session().unwrap();
        (1..4).map(|group| count(&mut *session, group)).sum::<u64>()
    };
    // The entry looked at, the counter got and stored, the entry got and stored, the group cleared.
    store.fail_after(5);
    table.clear().unwrap();
    assert!(!table.exists(b"k").unwrap());
    assert_eq!(pairs(), 1);
    store.db.drop_table("users").unwrap();
    assert_eq!(pairs(), 0);
}

fn count(session: &mut dyn Session, group: u32) -> u64 {
    session.start(Command::Count { group }).unwrap();
    let mut answered = Vec::new();
    session.wait(Duration::from_secs(60)).unwrap();
    session.poll(&mut answered);
    match answered.pop() {
        Some((_, Ok(Answer::Counted(count)))) => count,
        other => panic!("{other:?}"),
    }
}

/// What a call did, if it came through or may have.
fn effect(
    outcome: hedgerow::Result<Effect>,
    may_have: Option<Effect>,
    (key, began, returned): (u64, u64, u64),
) -> Option<Call> {
    let effect = match outcome {
        Ok(effect) => effect,
        Err(error) if error.kind() == ErrorKind::Unavailable => return None,
        Err(error) if error.kind() == ErrorKind::Indeterminate => may_have?,
        Err(error) => panic!("{error:?}"),
    };
    Some(Call { key, effect, began, returned })
}

/// Makes a call of a register; says what it did, and what it may have done if that is not known.
fn one_call(
    table: &PairTable,
    key: u64,
    drawn: u64,
    stamp: u64,
) -> (hedgerow::Result<Effect>, Option<Effect>) {
    let key = key.to_be_bytes();
    let write = row! { value: stamp };
    match drawn {
        0 | 1 => (table.put(&key, &write).map(|()| Effect::Write(stamp)), Some(Effect::MayWrite(stamp))),
        2 => (table.delete(&key).map(Effect::Remove), Some(Effect::MayRemove)),
        3 | 4 => {
            let by = 1 << 48;
            let added = table.modify(&key, |row| {
                let now = row.map_or(Ok(0), |row| row.get("value").map(|value| value.as_u64().unwrap()))?;
                let fields = vec![("value".to_owned(), Value::UInt(now + by).to_owned())];
                Ok((Change::Update { fields, expiry: Expiry::Never }, now + by))
            });
            (added.map(|sum| Effect::Add(by, sum)), Some(Effect::MayAdd(by)))
        }
        5 => {
            let written = table.update_existing(&key, &write);
            (written.map(|was| Effect::WriteIfThere(stamp, was)), Some(Effect::MayWriteIfThere(stamp)))
        }
        _ => {
            let read = table.get_field(&key, "value");
            (read.map(|value| Effect::Read(value.and_then(|value| value.borrow().as_u64()))), None)
        }
    }
}

/// Three processes, as it were, with one backend that fails now and then in every way: each key has one order of all calls.
#[test]
fn calls_of_many_processes_are_linearizable_while_the_backend_fails() {
    Pairs::ALL.into_iter().for_each(calls_are_linearizable);
}

fn calls_are_linearizable(pairs: Pairs) {
    const KEYS: u64 = 4;
    let (mut calls, mut open) = (0, 0);
    for round in 0..rounds(60, 1_200) {
        let clears = round % 2 == 1;
        let behind = pairs.open();
        let schema = Schema::new().field("value", Type::U64);
        PairDb::open(Arc::clone(&behind)).create_table("registers", schema).unwrap();
        let clock = AtomicU64::new(0);
        let work = |thread: u64| {
            let faults = Random::from_seed(round * 100 + thread).next_u64();
            let decide = move |number: u64| {
                let drawn = Random::from_seed(faults ^ number).next_u64();
                drawn.is_multiple_of(40).then_some(BackendFault::ALL[(drawn >> 32) as usize % 4])
            };
            let db = PairDb::open(Arc::new(FailingBackend::new(Arc::clone(&behind), decide)));
            let table = (0..).find_map(|_| db.table("registers").ok()).unwrap();
            let mut random = Random::from_seed(round * 100 + thread + 50);
            let now = || clock.fetch_add(1, Ordering::SeqCst);
            let mut history = Vec::new();
            for stamp in 1..120 {
                let number = random.below(KEYS);
                let began = now();
                if clears && random.below(12) == 0 {
                    let cleared = table.clear().map(|()| Effect::Clear);
                    let all = (0..KEYS).map(|key| (key, began));
                    let returned = now();
                    let effect = |(key, began)| {
                        effect(cleared.clone(), Some(Effect::MayRemove), (key, began, returned))
                    };
                    history.extend(all.filter_map(effect));
                    continue;
                }
                let (outcome, may_have) = one_call(&table, number, random.below(8), thread << 32 | stamp);
                history.extend(effect(outcome, may_have, (number, began, now())));
            }
            history
        };
        let mut history = History::default();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (1..4).map(|thread| scope.spawn(move || work(thread))).collect();
            for thread in threads {
                for call in thread.join().unwrap() {
                    open += usize::from(call.effect.is_open());
                    history.push(call);
                }
            }
        });
        history.check().unwrap_or_else(|error| panic!("{pairs:?}, round {round}: {error}"));
        calls += history.len();
    }
    assert!(open > 0, "{calls} calls");
    println!("{pairs:?}: {calls} calls linearizable, {open} of them of unknown outcome");
}

/// The bytes of a row are the same in every store of pairs, and never change.
#[test]
fn a_row_has_these_bytes() {
    for pairs in Pairs::ALL {
        let backend = pairs.open();
        let db = PairDb::open_at(Arc::clone(&backend), Clock::manual(1_000));
        let table =
            db.create_table("t", Schema::new().field("n", Type::U16).nullable("s", Type::String)).unwrap();
        table.put_expiring(b"key", &row! { n: 0x0102, s: "Ada" }, Expiry::at_unix_ms(0x0A0B)).unwrap();
        let mut session = backend.session().unwrap();
        session.start(Command::Walk { group: 1, from: Cursor::START, pairs: 9 }).unwrap();
        let mut answered = Vec::new();
        session.poll(&mut answered);
        let Some((_, Ok(Answer::Walked(walked, None)))) = answered.pop() else { panic!("one pair") };
        assert_eq!(*walked[0].key, [0, 0, 0, 1, b'k', b'e', b'y']);
        assert_eq!(walked[0].value[4..32], GOLDEN_HEAD);
        assert_eq!(walked[0].value[40..], GOLDEN_BODY);
    }
}

/// A body of 22 bytes, version 0, schema version 1, flag "expires", blocks of 256 bytes; the expiry.
const GOLDEN_HEAD: [u8; 28] =
    [22, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 8, 0, 0, 0, 0, 0x0B, 0x0A, 0, 0, 0, 0, 0, 0];
/// Presence, `n`, the length of `s` and its text.
const GOLDEN_BODY: [u8; 22] = [3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 3, 0, 0, 0, b'A', b'd', b'a', 0, 0, 0, 0, 0];
