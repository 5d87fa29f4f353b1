//! Batches: all of it or nothing, whatever is there, fails or is cut off.

use std::collections::BTreeSet;

use hedgerow_row::backend::{Becomes, CHANGE_BYTES, PairChange};

use super::moments::Moments;
use super::*;
use crate::code::KvError;
use crate::command::{KvAnswer, KvCommand};
use crate::device::Out;

fn change<'a>(key: &'a [u8], expect: Expect, becomes: Becomes<'a>) -> PairChange<'a> {
    PairChange { key, expect, becomes }
}

fn batch(session: &mut dyn Session, changes: Vec<PairChange<'_>>) -> Result<Vec<Option<Mark>>> {
    match answer(session, Command::Batch { changes })? {
        Answer::Batched(marks) => Ok(marks),
        other => panic!("{other:?}"),
    }
}

/// The first keys of each device.
fn key_of_each(backend: &KvssdBackend, devices: usize) -> Vec<Vec<u8>> {
    let of = |device| (0..).map(key).find(|key| owner(backend, key) == device).unwrap();
    (0..devices).map(of).collect()
}

#[test]
fn conditions_hold_for_all_or_nothing_happens() {
    let backend = in_memory(3);
    let session = &mut *backend.session().unwrap();
    let keys = key_of_each(&backend, 3);
    let [a, b, c] = [&keys[0][..], &keys[1][..], &keys[2][..]];
    let marks = batch(
        session,
        vec![
            change(a, Expect::Absent, Becomes::Value(b"a1")),
            change(b, Expect::Any, Becomes::Value(b"b1")),
            change(c, Expect::Absent, Becomes::Unchanged),
        ],
    )
    .unwrap();
    assert!(marks[0].unwrap().number() < marks[1].unwrap().number() && marks[2].is_none());
    assert_eq!(get(session, a).unwrap().unwrap().mark, marks[0].unwrap());
    assert_eq!(get(session, b).unwrap().unwrap().mark, marks[1].unwrap());
    assert_eq!(get(session, c).unwrap(), None);
    let same = |n: usize| Expect::Same(marks[n].unwrap());
    for refused in [
        vec![change(a, same(0), Becomes::Value(b"a2")), change(b, same(0), Becomes::Value(b"b2"))],
        vec![change(a, Expect::Any, Becomes::Nothing), change(c, Expect::Present, Becomes::Unchanged)],
        vec![change(a, Expect::Absent, Becomes::Nothing), change(b, Expect::Any, Becomes::Nothing)],
    ] {
        assert_eq!(kind(batch(session, refused)), ErrorKind::Conflict);
        assert_eq!(get(session, a).unwrap().unwrap().value[..], *b"a1");
        assert_eq!(get(session, b).unwrap().unwrap().value[..], *b"b1");
    }
    let marks =
        batch(session, vec![change(a, same(0), Becomes::Nothing), change(b, same(1), Becomes::Value(b"b2"))]);
    assert_eq!(marks.unwrap()[0], None);
    assert_eq!(get(session, a).unwrap(), None);
    assert_eq!(get(session, b).unwrap().unwrap().value[..], *b"b2");
}

#[test]
fn a_batch_that_cannot_be_is_refused_by_itself() {
    let backend = in_memory(2);
    let session = &mut *backend.session().unwrap();
    let twice = vec![
        change(b"\0\0\0\x01k", Expect::Any, Becomes::Value(b"1")),
        change(b"\0\0\0\x01k", Expect::Any, Becomes::Nothing),
    ];
    let refused = session.start(Command::Batch { changes: twice });
    assert_eq!(kind(refused), ErrorKind::Invalid);
    let max = backend.capabilities().batch_bytes_max;
    let long = |bytes: usize| {
        let value = vec![7; (bytes - 2 * (CHANGE_BYTES + 12)) / 2];
        let (a, b) = (key(1), key(2));
        let changes = [&a, &b].map(|key| change(key, Expect::Any, Becomes::Value(&value))).to_vec();
        answer(&mut *backend.session().unwrap(), Command::Batch { changes })
    };
    assert!(long(max).is_ok(), "an intent of it fits one pair");
    let longer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| long(max + 4)));
    assert!(longer.is_err(), "it is refused as it is started");
}

/// A device without room for its part refuses all of it.
#[test]
fn a_batch_that_finds_no_room_changes_nothing() {
    let backend = in_memory(2);
    let session = &mut *backend.session().unwrap();
    let array = &backend;
    let of = |device| (0..).map(key).filter(move |key| owner(array, key) == device);
    let filled = of(1).take_while(|key| put(session, key, &[1; 2_000], Expect::Any).is_ok()).count();
    assert!(filled > 100);
    let (a, b) = (of(0).next().unwrap(), of(1).nth(filled + 10).unwrap());
    let value = vec![2; 1_500];
    let changes = || {
        vec![change(&a, Expect::Any, Becomes::Value(&value)), change(&b, Expect::Any, Becomes::Value(&value))]
    };
    assert_eq!(kind(batch(session, changes())), ErrorKind::Full);
    assert_eq!((get(session, &a).unwrap(), get(session, &b).unwrap()), (None, None));
    for gone in of(1).take(10) {
        answer(session, Command::Delete { key: &gone, expect: Expect::Present }).unwrap();
    }
    batch(session, changes()).unwrap();
    assert_eq!(get(session, &b).unwrap().unwrap().value[..], value[..]);
}

/// What a command makes of a key: a value with the command's number, or nothing.
#[derive(Clone)]
struct Step {
    /// The moment when it was answered.
    end: usize,
    changes: Vec<(Vec<u8>, bool)>,
}

struct Script {
    sims: Vec<CrashSim>,
    options: KvssdOptions,
    steps: Vec<Step>,
    /// Moments, and how many commands were durable by then.
    persisted: Vec<(usize, usize)>,
    moments: Vec<(usize, Vec<u64>)>,
}

fn stamped(command: usize, random: &mut Random) -> Vec<u8> {
    let mut value = (command as u32).to_le_bytes().to_vec();
    value.resize(4 + random.below(900) as usize, command as u8);
    value
}

impl Script {
    fn run(ack: AckMode, seed: u64, commands: usize) -> Script {
        Script::of(options(ack), seed, commands)
    }

    fn of(options: KvssdOptions, seed: u64, commands: usize) -> Script {
        let sims = sims(3);
        let backend = KvssdBackend::open(&media(&sims), &options).unwrap();
        let session = &mut *backend.session().unwrap();
        let mut random = Random::from_seed(seed);
        let (mut steps, mut persisted) = (Vec::<Step>::new(), vec![(0, 0)]);
        let moments = Moments::watch(&sims);
        while steps.len() < commands {
            let number = steps.len();
            let several = 2 + random.below(4);
            let keys: BTreeSet<Vec<u8>> = (0..several).map(|_| key(random.below(24))).collect();
            let one = keys.first().unwrap().clone();
            let changes = match random.below(12) {
                0..=5 => {
                    let of =
                        |key: Vec<u8>| (key, (random.below(4) > 0).then(|| stamped(number, &mut random)));
                    let made: Vec<(Vec<u8>, Option<Vec<u8>>)> = keys.into_iter().map(of).collect();
                    let asked = made.iter().map(|(key, value)| {
                        let becomes = value.as_ref().map_or(Becomes::Nothing, |value| Becomes::Value(value));
                        change(key, Expect::Any, becomes)
                    });
                    batch(session, asked.collect()).unwrap();
                    made.iter().map(|(key, value)| (key.clone(), value.is_some())).collect()
                }
                6..=8 => {
                    put(session, &one, &stamped(number, &mut random), Expect::Any).unwrap();
                    vec![(one, true)]
                }
                9..=10 => {
                    answer(session, Command::Delete { key: &one, expect: Expect::Any }).unwrap();
                    vec![(one, false)]
                }
                _ => {
                    answer(session, Command::Persist).unwrap();
                    persisted.push((moments.count() - 1, number));
                    continue;
                }
            };
            steps.push(Step { end: moments.count() - 1, changes });
        }
        Script { moments: moments.take(), sims, options, steps, persisted }
    }

    /// Which commands may have left a key as it was found: -1 stands for none.
    fn left_by(&self, key: &[u8], found: Option<&Vec<u8>>, begun: usize) -> BTreeSet<i64> {
        if let Some(value) = found {
            let number = u32::from_le_bytes(value[..4].try_into().unwrap());
            return [i64::from(number)].into();
        }
        let removes = |step: &Step| step.changes.iter().any(|(of, is_put)| of == key && !is_put);
        let removals = self.steps[..begun].iter().enumerate().filter(|(_, step)| removes(step));
        removals.map(|(number, _)| number as i64).chain([-1]).collect()
    }

    /// With a device that is lost, perhaps.
    fn check(&self, (step, lengths): &(usize, Vec<u64>), kind: Survivors, seed: u64, lost: Option<usize>) {
        let what = format!("at step {step}, {lengths:?}, {kind:?}, seed {seed}, without {lost:?}");
        let mut crashed: Vec<CrashSim> =
            self.sims.iter().zip(lengths).map(|(sim, &op)| crashed(sim, op, kind, seed)).collect();
        if let Some(lost) = lost {
            crashed[lost] = sims(1).remove(0);
        }
        let backend = KvssdBackend::open(&media(&crashed), &self.options)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let session = &mut *backend.session().unwrap();
        let found: BTreeMap<Vec<u8>, Vec<u8>> = walk(session, GROUP, 50)
            .into_iter()
            .map(|pair| (pair.key.to_vec(), pair.value.to_vec()))
            .collect();
        // The command that was under way may be whole.
        let answered = self.steps.iter().filter(|of| of.end < *step).count();
        let begun = (answered + 1).min(self.steps.len());
        let is_kept = self.options.device.ack == AckMode::Immediate
            || matches!(kind, Survivors::All | Survivors::ProcessKill);
        let persisted = self.persisted.iter().filter(|(at, _)| at < step).map(|(_, n)| *n).max();
        let least = if is_kept { answered } else { persisted.unwrap_or(0) };
        for (number, of) in self.steps[..begun].iter().enumerate() {
            let (mut before, mut after) = (true, true);
            for (key, _) in &of.changes {
                let left_by = self.left_by(key, found.get(key), begun);
                before &= left_by.iter().any(|&by| by < number as i64);
                after &= left_by.iter().any(|&by| by >= number as i64);
            }
            let left = |key: &Vec<u8>| (owner(&backend, key), self.left_by(key, found.get(key), begun));
            let left: Vec<_> = of.changes.iter().map(|(key, is_put)| (left(key), is_put)).collect();
            assert!(before || after, "{what}: some of command {number} is there, of {answered}: {left:?}");
            assert!(number >= least || after, "{what}: command {number} is lost, of {answered} and {least}");
        }
        let is_begun = |value: &Vec<u8>| u32::from_le_bytes(value[..4].try_into().unwrap()) < begun as u32;
        assert!(found.values().all(is_begun), "{what}: something is there that nobody stored");
        let left: usize = (0..3).filter_map(|n| backend.with_device(n, own_pairs)).sum();
        if self.options.copies.is_none() {
            assert_eq!(left, 3, "{what}: a map a device, and no intent");
            return;
        }
        let devices = 3 - usize::from(lost.is_some());
        assert_eq!(left, 2 * devices, "{what}: a map and a map of writes a device, and no intent");
        super::copies::same_copies(&backend, &what);
    }

    fn sweep(&self, kinds: &[Survivors], most: usize) {
        let every = (self.moments.len() / most).max(1);
        assert!(self.moments.len() > 500, "{}", self.moments.len());
        for (n, moment) in self.moments.iter().enumerate().step_by(every) {
            for (at, &kind) in kinds.iter().enumerate() {
                self.check(moment, kind, n as u64 * 31 + at as u64, None);
                if self.options.copies.is_some() {
                    self.check(moment, kind, n as u64 * 31 + at as u64, Some(n / every % 3));
                }
            }
        }
    }
}

/// Pairs in the array's own key space of a device.
fn own_pairs(device: &mut Device) -> usize {
    let mut out = Out::default();
    assert!(device.submit(0, KvCommand::ListSpaces).is_ok());
    while device.step(0, &mut out) {}
    match out.completions.pop().unwrap().result {
        Ok(KvAnswer::Spaces(spaces)) => spaces
            .iter()
            .filter(|space| space.name == b"hedgerow.array")
            .map(|space| space.pairs as usize)
            .sum(),
        other => panic!("{other:?}"),
    }
}

const POWER_CUTS: [Survivors; 4] =
    [Survivors::None, Survivors::Random, Survivors::AllButLastStore, Survivors::HeadersOnly];

#[test]
fn no_crash_leaves_some_of_a_batch_where_a_capacitor_keeps_what_was_acknowledged() {
    Script::run(AckMode::Buffered, 11, 220).sweep(&[Survivors::All, Survivors::ProcessKill], 400);
}

#[test]
fn no_power_cut_leaves_some_of_a_batch() {
    Script::run(AckMode::Buffered, 12, 220).sweep(&POWER_CUTS, 400);
    Script::run(AckMode::Immediate, 13, 120).sweep(&POWER_CUTS, 300);
}

/// On two copies, one of which may be lost with the crash.
#[test]
fn no_crash_leaves_some_of_a_batch_on_two_copies() {
    let two_copies = super::copies::two_copies;
    let capacitor = [Survivors::All, Survivors::ProcessKill];
    Script::of(two_copies(AckMode::Buffered), 14, 120).sweep(&capacitor[..1], 200);
    Script::of(two_copies(AckMode::Buffered), 15, 120).sweep(&POWER_CUTS, 120);
    Script::of(two_copies(AckMode::Immediate), 16, 80).sweep(&POWER_CUTS, 100);
}

/// Every medium fails in turn, at every sync: what is told as done is there after an opening, what is not known is there whole or not at all, and nothing else goes wrong.
#[test]
fn a_device_that_fails_leaves_a_batch_to_the_next_opening() {
    let (mut in_doubt, mut refused) = (0, 0);
    for ack in [AckMode::Buffered, AckMode::Immediate] {
        for (device, sync) in (0..3).flat_map(|device| (0..4).map(move |sync| (device, sync))) {
            let (sims, options) = (sims(3), options(ack));
            let backend = KvssdBackend::open(&media(&sims), &options).unwrap();
            let mut own_session = backend.session().unwrap();
            let session = &mut *own_session;
            let keys = key_of_each(&backend, 3);
            let all = |value: &'static [u8]| -> Vec<PairChange<'_>> {
                keys.iter().map(|key| change(key, Expect::Any, Becomes::Value(value))).collect()
            };
            batch(session, all(b"first")).unwrap();
            answer(session, Command::Persist).unwrap();
            // What the batch rests on is durable before it.
            for n in 0..30 {
                put(session, &key(1_000 + n), b"beside", Expect::Any).unwrap();
            }
            sims[device].fail_persist_after(sync, true);
            let second = batch(session, all(b"second"));
            let settled = answer(session, Command::Persist).is_ok();
            let is_in_doubt = second.as_ref().is_err_and(|error| error.kind() == ErrorKind::Indeterminate);
            let (other, removed) =
                (&keys[(device + 1) % 3], |key| Command::Delete { key, expect: Expect::Any });
            if is_in_doubt {
                in_doubt += 1;
                // A pair of it is not removed while an opening may make it again.
                assert_eq!(kind(answer(session, removed(other))), ErrorKind::Unavailable);
                assert_eq!(kind(answer(session, Command::Clear { group: GROUP })), ErrorKind::Unavailable);
                put(session, other, b"third", Expect::Any).unwrap();
            } else if second.is_err() {
                refused += 1;
                answer(session, removed(other)).unwrap();
                put(session, other, b"first", Expect::Absent).unwrap();
            }
            sims[device].clear_faults();
            drop((own_session, backend));
            let backend = KvssdBackend::open(&media(&sims), &options).unwrap();
            let session = &mut *backend.session().unwrap();
            let found: Vec<Vec<u8>> =
                keys.iter().map(|key| get(session, key).unwrap().unwrap().value.to_vec()).collect();
            match (second, is_in_doubt) {
                (Ok(_), _) => assert!(found.iter().all(|value| value == b"second"), "{settled} {found:?}"),
                (Err(_), false) => assert!(found.iter().all(|value| value == b"first"), "{found:?}"),
                (Err(_), true) => {
                    let other = (device + 1) % 3;
                    assert_eq!(found[other], b"third", "what came after it is not undone");
                    let rest: Vec<&Vec<u8>> = (0..3).filter(|&n| n != other).map(|n| &found[n]).collect();
                    assert!(rest[0] == rest[1], "{ack:?} {device} {sync}: {found:?}");
                }
            }
            answer(session, Command::Delete { key: &keys[0], expect: Expect::Present }).unwrap();
        }
    }
    assert!(in_doubt >= 4 && refused >= 2, "{in_doubt}, {refused}");
}

/// Threads move amounts between accounts on several devices; nobody sees a sum that is another.
#[test]
fn what_moves_between_devices_is_never_seen_half_moved() {
    const ACCOUNTS: u64 = 9;
    let backend = in_memory(3);
    let amount = |pair: &Pair| u64::from_le_bytes(pair.value[..].try_into().unwrap());
    let session = &mut *backend.session().unwrap();
    for n in 0..ACCOUNTS {
        put(session, &key(n), &100u64.to_le_bytes(), Expect::Any).unwrap();
    }
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let backend = &backend;
            scope.spawn(move || {
                let (session, mut random) = (&mut *backend.session().unwrap(), Random::from_seed(seed));
                let mut moved = 0;
                while moved < 300 {
                    let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
                    if from == to {
                        continue;
                    }
                    let seen = [from, to].map(|n| get(session, &key(n)).unwrap().unwrap());
                    let by = random.below(amount(&seen[0]) + 1);
                    let left = (amount(&seen[0]) - by).to_le_bytes();
                    let more = (amount(&seen[1]) + by).to_le_bytes();
                    let made = batch(
                        session,
                        vec![
                            change(&seen[0].key, Expect::Same(seen[0].mark), Becomes::Value(&left)),
                            change(&seen[1].key, Expect::Same(seen[1].mark), Becomes::Value(&more)),
                        ],
                    );
                    match made {
                        Ok(_) => moved += 1,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
                    }
                }
            });
        }
        scope.spawn(|| {
            let session = &mut *backend.session().unwrap();
            let mut seen = 0;
            while seen < 100 {
                let pairs: Vec<Pair> =
                    (0..ACCOUNTS).map(|n| get(session, &key(n)).unwrap().unwrap()).collect();
                // That they were there together is a condition like any other.
                let same =
                    pairs.iter().map(|pair| change(&pair.key, Expect::Same(pair.mark), Becomes::Unchanged));
                if batch(session, same.collect()).is_ok() {
                    assert_eq!(pairs.iter().map(amount).sum::<u64>(), 100 * ACCOUNTS);
                    seen += 1;
                }
                std::thread::yield_now();
            }
        });
    });
}

/// A flush of all devices, or so many batches, ends what is kept of batches; each device's own are ended at once.
#[test]
fn intents_do_not_pile_up() {
    let backend = in_memory(3);
    let session = &mut *backend.session().unwrap();
    let keys = key_of_each(&backend, 3);
    let kept = |backend: &KvssdBackend| backend.array.intents.lock().len();
    fn both<'k>(keys: [&'k [u8]; 2]) -> Vec<PairChange<'k>> {
        keys.map(|key| change(key, Expect::Any, Becomes::Value(b"x"))).to_vec()
    }
    let same_device = (0..).map(key).find(|key| *key != keys[0] && owner(&backend, key) == 0).unwrap();
    batch(session, both([&keys[0], &same_device])).unwrap();
    assert_eq!(kept(&backend), 0);
    batch(session, both([&keys[0], &keys[1]])).unwrap();
    assert_eq!(kept(&backend), 1);
    answer(session, Command::Persist).unwrap();
    assert_eq!(kept(&backend), 0);
    for _ in 0..1_000 {
        batch(session, both([&keys[0], &keys[1]])).unwrap();
        assert!(kept(&backend) <= 256);
    }
    // One that is removed ends them, too.
    batch(session, both([&keys[0], &keys[1]])).unwrap();
    answer(session, Command::Delete { key: &keys[1], expect: Expect::Present }).unwrap();
    assert_eq!(kept(&backend), 0);
    batch(session, vec![change(&keys[0], Expect::Any, Becomes::Value(b"x"))]).unwrap();
    assert_eq!(kept(&backend), 0, "a change alone has none");
}

/// Batches go on while devices come and go: sums stay, each pair has its place, and a device takes no intent with it as it goes.
#[test]
fn batches_are_whole_while_shards_move() {
    const ACCOUNTS: u64 = 40;
    let sims = sims(4);
    let options = options(AckMode::Buffered);
    let backend = KvssdBackend::open(&media(&sims[..3]), &options).unwrap();
    let mut own_session = backend.session().unwrap();
    let session = &mut *own_session;
    let mut random = Random::from_seed(5);
    let mut amounts: Vec<u64> = vec![100; ACCOUNTS as usize];
    for n in 0..ACCOUNTS {
        put(session, &key(n), &100u64.to_le_bytes(), Expect::Any).unwrap();
    }
    let mut transfer = |session: &mut dyn Session| {
        let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
        if from == to {
            return;
        }
        let by = random.below(amounts[from as usize] + 1);
        amounts[from as usize] -= by;
        amounts[to as usize] += by;
        let (from_key, to_key) = (key(from), key(to));
        let (left, more) = (amounts[from as usize].to_le_bytes(), amounts[to as usize].to_le_bytes());
        let changes = vec![
            change(&from_key, Expect::Present, Becomes::Value(&left)),
            change(&to_key, Expect::Present, Becomes::Value(&more)),
        ];
        batch(session, changes).unwrap();
    };
    backend.add_device(&media(&sims[3..])[0]).unwrap();
    let mut mover = backend.rebalance().unwrap().with_step_pairs(2);
    while mover.step().unwrap() {
        transfer(session);
    }
    drop(mover);
    // Some are kept on the device that goes.
    let mut mover = backend.remove_device(0).unwrap().with_step_pairs(2);
    while mover.step().unwrap() {
        (0..3).for_each(|_| transfer(session));
    }
    drop(mover);
    let gone: Vec<Vec<u8>> = (0..ACCOUNTS).map(key).collect();
    answer(session, Command::Delete { key: &gone[0], expect: Expect::Present }).unwrap();
    drop((own_session, backend));
    let backend = KvssdBackend::open(&media(&sims[1..]), &options).unwrap();
    let session = &mut *backend.session().unwrap();
    let found = walk(session, GROUP, 7);
    assert_eq!(found.len(), ACCOUNTS as usize - 1);
    for pair in found {
        let n = (0..ACCOUNTS).find(|&n| key(n) == *pair.key).unwrap();
        assert_eq!(pair.value[..], amounts[n as usize].to_le_bytes(), "{n}");
    }
}

/// A device whose medium refused makes no room: nobody knows what it holds.
#[test]
fn a_device_that_failed_makes_no_room() {
    let (sims, options) = (sims(1), options(AckMode::Buffered));
    let backend = KvssdBackend::open(&media(&sims), &options).unwrap();
    let session = &mut *backend.session().unwrap();
    put(session, &key(1), b"not durable", Expect::Any).unwrap();
    let room = || backend.with_device(0, |device| device.make_room(1)).unwrap();
    assert!(room().is_ok());
    sims[0].fail_persist_after(0, false);
    assert!(answer(session, Command::Persist).is_err());
    assert!(matches!(room(), Err(KvError::Closed { .. })), "{:?}", room());
}

/// Two who remove devices at the same time: what each is to do is looked at in its turn.
#[test]
fn what_a_move_is_about_is_looked_at_in_its_turn() {
    let backend = in_memory(2);
    let mover = backend.remove_device(0).unwrap();
    assert!(matches!(backend.remove_device(0), Err(ArrayError::Moving)));
    assert!(matches!(backend.unfinished_move(), Err(ArrayError::Moving)));
    drop(mover);
    backend.remove_device(0).unwrap().run().unwrap();
    assert!(matches!(backend.remove_device(0), Err(ArrayError::LastDevice)));
    assert!(backend.unfinished_move().unwrap().is_none());
    let session = &mut *backend.session().unwrap();
    put(session, &key(1), b"there", Expect::Any).unwrap();
}
