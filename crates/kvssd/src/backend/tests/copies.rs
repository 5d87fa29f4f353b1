//! Two copies: devices that fail, are missing, come back or are replaced, and what is answered meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use hedgerow_row::backend::{Becomes, PairChange};

use super::super::writes::marked_on;
use super::*;
use crate::command::PairKey;

pub(super) fn two_copies(ack: AckMode) -> KvssdOptions {
    KvssdOptions { copies: Some(2), ..options(ack) }
}

fn new_sim() -> CrashSim {
    sims(1).remove(0)
}

fn of_another_array(options: &KvssdOptions) -> CrashSim {
    let sim = new_sim();
    let media = [ArrayMedium::Memory, ArrayMedium::Simulated(sim.clone())];
    drop(KvssdBackend::open(&media, options).unwrap());
    sim
}

fn open(sims: &[CrashSim], options: &KvssdOptions) -> std::result::Result<KvssdBackend, ArrayError> {
    KvssdBackend::open(&media(sims), options)
}

/// Every pair on each device, by its number.
fn pairs_of_each(backend: &KvssdBackend) -> BTreeMap<usize, BTreeMap<Vec<u8>, Vec<u8>>> {
    let layout = backend.array.layout.read();
    let pairs = |number: usize| {
        layout.with(number, |device| {
            let iterator = device.begin_keys().unwrap();
            let (mut pairs, mut is_last) = (BTreeMap::new(), false);
            while !is_last {
                let (keys, last) = device.next_keys(iterator).unwrap();
                for key in keys {
                    let value = device.marked_value(&key).unwrap().unwrap();
                    pairs.insert(key.bytes().to_vec(), value);
                }
                is_last = last;
            }
            device.end_keys().unwrap();
            pairs
        })
    };
    layout.numbers().map(|number| (number, pairs(number).unwrap())).collect()
}

/// Both copies of each pair are the same, and nobody else has one but as a stray, or where it goes.
pub(super) fn same_copies(backend: &KvssdBackend, at: &str) {
    let (map, pairs) = (map_of(backend), pairs_of_each(backend));
    for (number, of) in &pairs {
        for (key, value) in of {
            if !map.has_copy(*number, key) {
                assert!(
                    map.strays.contains(&(*number as u16)) || map.target_of(key) == Some(*number),
                    "{at}: {key:?} on {number}"
                );
                continue;
            }
            for copy in map.copies_of(key) {
                assert_eq!(pairs[&copy].get(key), Some(value), "{at}: {key:?} on {copy} and {number}");
            }
        }
    }
}

fn fill(session: &mut dyn Session, keys: u64, with: u8) {
    for n in 0..keys {
        put(session, &key(n), &[with; 100], Expect::Any).unwrap();
    }
}

fn fill_from(session: &mut dyn Session, keys: std::ops::Range<u64>) {
    for n in keys {
        put(session, &key(n), b"", Expect::Any).unwrap();
    }
}

fn all_are(session: &mut dyn Session, keys: u64, with: u8) {
    for n in 0..keys {
        assert_eq!(get(session, &key(n)).unwrap().unwrap().value[..], [with; 100], "{n}");
    }
    assert_eq!(walk(session, GROUP, 40).len() as u64, keys);
    assert_eq!(answer(session, Command::Count { group: GROUP }).unwrap(), Answer::Counted(keys));
}

#[test]
fn copies_need_devices_and_are_said_once() {
    let refused = |sims: &[CrashSim], copies| {
        open(sims, &KvssdOptions { copies: Some(copies), ..options(AckMode::Buffered) }).unwrap_err()
    };
    assert!(matches!(refused(&sims(1), 2), ArrayError::Copies { copies: 2, devices: 1 }));
    assert!(matches!(refused(&sims(4), 3), ArrayError::Copies { copies: 3, .. }));
    assert!(matches!(refused(&sims(4), 0), ArrayError::Copies { copies: 0, .. }));
    let sims = sims(3);
    drop(open(&sims, &two_copies(AckMode::Buffered)).unwrap());
    assert!(matches!(refused(&sims, 1), ArrayError::CopiesDiffer { asked: 1, has: 2 }));
    let backend = open(&sims, &options(AckMode::Buffered)).unwrap();
    let state = CopiesState { copies: 2, out: vec![], shards_alone: 0, times_out: 0 };
    assert_eq!(backend.copies_state(), state);
    let one = super::sims(2);
    let backend = open(&one, &options(AckMode::Buffered)).unwrap();
    assert!(matches!(backend.rebuild(), Err(ArrayError::OneCopy)));
    assert!(matches!(backend.replace_device(0, &ArrayMedium::Memory), Err(ArrayError::OneCopy)));
    drop(backend);
    assert!(matches!(refused(&one, 2), ArrayError::CopiesDiffer { asked: 2, has: 1 }));
}

/// The device that fails at one of its syncs is out; nobody notices but by the state. As it comes back it is not believed.
#[test]
fn a_device_that_fails_takes_nothing_with_it() {
    for (ack, first) in [(AckMode::Immediate, 0), (AckMode::Immediate, 7), (AckMode::Buffered, 0)] {
        let (sims, options) = (sims(3), two_copies(ack));
        let backend = open(&sims, &options).unwrap();
        let session = &mut *backend.session().unwrap();
        fill(session, 90, 1);
        answer(session, Command::Persist).unwrap();
        sims[1].fail_persist_after(first, true);
        fill(session, 90, 2);
        answer(session, Command::Persist).unwrap();
        all_are(session, 90, 2);
        for n in 60..90 {
            answer(session, Command::Delete { key: &key(n), expect: Expect::Present }).unwrap();
        }
        let state = backend.copies_state();
        assert_eq!((state.out, state.times_out), (vec![2], 1));
        assert!(state.shards_alone.abs_diff(2 * 1_024 / 3) < 3);
        let mut sims: Vec<CrashSim> = sims.iter().map(copied).collect();
        for _ in 0..2 {
            // It is there, and old.
            let backend = open(&sims, &options).unwrap();
            sims = sims.iter().map(copied).collect();
            let session = &mut *backend.session().unwrap();
            all_are(session, 60, 2);
            assert_eq!(backend.copies_state().out, [2]);
            assert!(backend.with_device(1, |_| ()).is_none());
        }
        // Beside one that knows it is old, too; and not without any that does.
        let without = |n: usize| {
            let mut some = sims.clone();
            some[n] = new_sim();
            open(&some, &options)
        };
        assert!(matches!(without(0), Err(ArrayError::NoCopy { .. })));
        assert!(matches!(without(2), Err(ArrayError::NoCopy { .. })));
        assert_eq!(without(1).unwrap().copies_state().out, [2]);
    }
}

/// An array that was closed whole is opened without any one of its devices, whatever is in the place, and has everything.
#[test]
fn an_array_is_opened_without_one_of_its_devices() {
    let (sims, options) = (sims(3), two_copies(AckMode::Buffered));
    let backend = open(&sims, &options).unwrap();
    fill(&mut *backend.session().unwrap(), 60, 1);
    backend.close().unwrap();
    let older: Vec<CrashSim> = sims.iter().map(copied).collect();
    // Two openings more: those are old.
    for with in [2, 3] {
        let backend = open(&sims, &options).unwrap();
        fill(&mut *backend.session().unwrap(), 60, with);
        backend.close().unwrap();
    }
    for lost in 0..3 {
        let damaged = {
            let mut image = sims[lost].walk();
            image.seek(sims[lost].ops());
            let mut image = image.image(Survivors::All, 0);
            (0..8_192).for_each(|at| image.corrupt(at, 0x55));
            CrashSim::from_image(&image)
        };
        for instead in [new_sim(), copied(&older[lost]), damaged] {
            let mut some: Vec<CrashSim> = sims.iter().map(copied).collect();
            some[lost] = instead;
            let backend = open(&some, &options).unwrap();
            assert_eq!(backend.copies_state().out, [lost + 1]);
            let session = &mut *backend.session().unwrap();
            all_are(session, 60, 3);
            fill(session, 60, 4);
            // As it comes back it is not believed.
            some = some.iter().map(copied).collect();
            some[lost] = copied(&sims[lost]);
            let backend = open(&some, &options).unwrap();
            all_are(&mut *backend.session().unwrap(), 60, 4);
            assert_eq!(backend.copies_state().out, [lost + 1]);
        }
    }
    let mut foreign = sims.clone();
    foreign[2] = of_another_array(&options);
    let refused = open(&foreign, &options).unwrap_err();
    assert!(matches!(refused, ArrayError::Foreign { device: 3, what: "another array" }), "{refused}");
    let order = [sims[1].clone(), sims[0].clone(), sims[2].clone()];
    assert!(matches!(open(&order, &options), Err(ArrayError::Order { .. })));
    assert!(matches!(open(&sims[..2], &options), Err(ArrayError::Devices { given: 2, has: 3 })));
}

/// Of two devices one alone does not know whether it is the one that was put out: somebody has to say so. Where both went on alone neither is believed.
#[test]
fn one_of_two_is_opened_only_where_somebody_says_so() {
    let (sims, options) = (sims(2), two_copies(AckMode::Buffered));
    let backend = open(&sims, &options).unwrap();
    fill(&mut *backend.session().unwrap(), 20, 1);
    backend.close().unwrap();
    let alone = KvssdOptions { alone: true, ..options.clone() };
    let without = |sims: &[CrashSim], n: usize, options: &KvssdOptions| {
        let mut some = sims.to_vec();
        some[n] = new_sim();
        open(&some, options)
    };
    for n in 0..2 {
        let refused = without(&sims, n, &options).unwrap_err();
        assert!(
            matches!(&refused, ArrayError::Undecided { devices, .. } if *devices == [n + 1]),
            "{refused}"
        );
    }
    let backend = without(&sims, 1, &alone).unwrap();
    fill(&mut *backend.session().unwrap(), 20, 2);
    backend.close().unwrap();
    // It knows now that the other one is out.
    all_are(&mut *without(&sims, 1, &options).unwrap().session().unwrap(), 20, 2);
    all_are(&mut *open(&sims, &options).unwrap().session().unwrap(), 20, 2);
    drop(without(&sims, 0, &alone).unwrap());
    assert!(matches!(open(&sims, &options), Err(ArrayError::Diverged { .. })));
}

/// A device that went out is replaced while threads write, by a new one or by itself, and has everything; another one may fail then.
#[test]
fn a_device_is_replaced_under_load() {
    for is_itself in [false, true] {
        let (mut sims, options) = (sims(3), two_copies(AckMode::Buffered));
        let backend = open(&sims, &options).unwrap();
        fill(&mut *backend.session().unwrap(), 100, 1);
        answer(&mut *backend.session().unwrap(), Command::Persist).unwrap();
        sims[0].fail_persist_after(0, true);
        fill(&mut *backend.session().unwrap(), 100, 1);
        answer(&mut *backend.session().unwrap(), Command::Persist).unwrap();
        assert_eq!(backend.copies_state().out, [1]);
        for n in 0..50 {
            let delete = Command::Delete { key: &key(n), expect: Expect::Present };
            answer(&mut *backend.session().unwrap(), delete).unwrap();
        }
        sims[0].clear_faults();
        sims[0] = if is_itself { copied(&sims[0]) } else { new_sim() };
        let mut mover = backend.replace_device(0, &ArrayMedium::Simulated(sims[0].clone())).unwrap();
        assert!(matches!(backend.rebuild(), Err(ArrayError::Moving)));
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let mut session = backend.session().unwrap();
                scope.spawn(move || {
                    for n in 0..400u64 {
                        let key = key(200 + thread * 50 + n % 40);
                        match n % 5 {
                            4 => drop(
                                answer(&mut *session, Command::Delete { key: &key, expect: Expect::Any })
                                    .unwrap(),
                            ),
                            _ => drop(put(&mut *session, &key, &[n as u8; 100], Expect::Any).unwrap()),
                        }
                    }
                });
            }
            mover.run().unwrap();
        });
        assert!(mover.progress().shards_done > 600);
        drop(mover);
        let state = backend.copies_state();
        assert_eq!((state.out, state.shards_alone), (vec![], 0));
        same_copies(&backend, "replaced");
        assert!(map_of(&backend).strays.is_empty());
        let firsts = map_of(&backend).shards.iter().filter(|first| **first == 0).count();
        assert!(firsts.abs_diff(1_024 / 3) < 4, "it is asked as often as others");
        // What it has counts: another one fails.
        sims[2].fail_persist_after(0, true);
        let session = &mut *backend.session().unwrap();
        fill_from(session, 1_000..1_010);
        answer(session, Command::Persist).unwrap();
        assert_eq!(backend.copies_state().out, [3]);
        assert!((0..50).all(|n| get(session, &key(n)).unwrap().is_none()));
        assert!((50..100).all(|n| get(session, &key(n)).unwrap().unwrap().value[..] == [1; 100]));
        // Without another device, too, there are two copies again.
        backend.rebuild().unwrap().run().unwrap();
        assert_eq!(backend.copies_state().shards_alone, 0);
        same_copies(&backend, "rebuilt");
        backend.remove_device(2).unwrap().run().unwrap();
        assert!(matches!(backend.remove_device(0), Err(ArrayError::Copies { devices: 1, .. })));
        backend.close().unwrap();
        let backend = open(&sims[..2], &options).unwrap_or_else(|error| panic!("{error}"));
        let session = &mut *backend.session().unwrap();
        assert!((50..100).all(|n| get(session, &key(n)).unwrap().is_some()));
        same_copies(&backend, "opened");
    }
}

/// What is in use, has something alone, or is of another array, is no replacement.
#[test]
fn what_cannot_be_replaced_is_refused() {
    let (sims, options) = (sims(3), two_copies(AckMode::Buffered));
    let backend = open(&sims, &options).unwrap();
    fill(&mut *backend.session().unwrap(), 50, 1);
    let replace = |place, sim: &CrashSim| backend.replace_device(place, &ArrayMedium::Simulated(sim.clone()));
    assert!(matches!(replace(3, &new_sim()), Err(ArrayError::NoDevice { device: 4, has: 3 })));
    let another = replace(1, &of_another_array(&options));
    assert!(matches!(another, Err(ArrayError::Foreign { device: 2, what: "another array" })));
    assert_eq!(backend.copies_state().out, [2], "it went out before that was known");
    assert!(matches!(replace(1, &copied(&sims[0])), Err(ArrayError::Foreign { .. })), "it is in use");
    assert!(matches!(replace(0, &new_sim()), Err(ArrayError::NoCopy { .. })), "it has something alone");
    all_are(&mut *backend.session().unwrap(), 50, 1);
    replace(1, &new_sim()).unwrap().run().unwrap();
    same_copies(&backend, "replaced");
}

/// Reads go to the second copy where nobody can read the first, and nothing is put out for it.
#[test]
fn what_cannot_be_read_on_one_device_is_read_on_the_other() {
    let backend = open(&sims(2), &two_copies(AckMode::Buffered)).unwrap();
    let session = &mut *backend.session().unwrap();
    fill(session, 40, 1);
    let blocks = backend.with_device(0, |device| device.blocks_in_use()).unwrap();
    let bytes = blocks[0].0.clone();
    backend.with_device(0, |device| device.fail_reads(bytes));
    let broken = (0..40).filter(|&n| {
        let key = PairKey::new(&key(n)).unwrap();
        backend.array.layout.read().with(0, |device| device.marked_value(&key).is_err()).unwrap()
    });
    assert!(broken.count() > 10);
    assert!((0..40).all(|n| get(session, &key(n)).unwrap().unwrap().value[..] == [1; 100]));
    assert_eq!(backend.copies_state().times_out, 0);
}

/// A device that is full refuses what the other one has room for, and neither has it then; deletions and overwrites go on.
#[test]
fn a_full_device_refuses_for_both() {
    let mut random = Random::from_seed(3);
    let backend = open(&sims(3), &two_copies(AckMode::Buffered)).unwrap();
    let session = &mut *backend.session().unwrap();
    let (mut model, mut refused) = (BTreeMap::new(), 0);
    for n in 0..4_000u64 {
        let (key, value) = (key(n % 1_500), vec![n as u8; random.below(900) as usize]);
        match put(session, &key, &value, Expect::Any) {
            Ok(_) => drop(model.insert(key, value)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 20, "{refused}");
    assert_eq!(backend.copies_state().times_out, 0);
    same_copies(&backend, "full");
    for (key, value) in &model {
        assert_eq!(get(session, key).unwrap().unwrap().value[..], value[..]);
    }
    for key in model.keys() {
        put(session, key, b"", Expect::Present).unwrap();
    }
    for key in model.keys() {
        answer(session, Command::Delete { key, expect: Expect::Present }).unwrap();
    }
    same_copies(&backend, "emptied");
}

/// Shards of which a device says that they are being written.
fn written(backend: &KvssdBackend, number: usize) -> usize {
    let marked = backend.array.layout.read().with(number, |device| marked_on(device).unwrap()).unwrap();
    (0..1_024).filter(|&shard| marked.contains(shard)).count()
}

/// Bits say which shards are written, no longer than that; an opening makes the copies of those the same, and looks at no others.
#[test]
fn an_opening_compares_what_was_being_written() {
    let (sims, options) = (sims(2), two_copies(AckMode::Buffered));
    let backend = open(&sims, &options).unwrap();
    let session = &mut *backend.session().unwrap();
    let all = |backend: &KvssdBackend| written(backend, 0) + written(backend, 1);
    let persist = |session: &mut dyn Session| drop(answer(session, Command::Persist).unwrap());
    fill(session, 80, 1);
    let map = map_of(&backend);
    let shards = |map: &ArrayMap| (0..80).map(|n| map.shard(&key(n))).collect::<BTreeSet<_>>().len();
    assert_eq!(all(&backend), shards(&map));
    persist(session);
    assert_eq!(all(&backend), shards(&map), "they were written since the time before");
    fill(session, 10, 2);
    let busy: BTreeSet<u16> = (0..10).map(|n| map.shard(&key(n))).collect();
    persist(session);
    assert_eq!(all(&backend), busy.len());
    persist(session);
    assert_eq!(all(&backend), 0);
    fill(session, 1, 3);
    assert_eq!((all(&backend), written(&backend, map.device_of(&key(0)))), (1, 1));
    // As nothing but a fault of the medium leaves it.
    let quiet = (1..80).find(|&n| map.shard(&key(n)) != map.shard(&key(0))).unwrap();
    let second = |n: u64| map.second_of(&key(n)).unwrap();
    for n in [0, quiet] {
        let key = PairKey::new(&key(n)).unwrap();
        backend.array.layout.read().with(second(n), |device| device.delete_pairs([key]).unwrap()).unwrap();
    }
    let sims: Vec<CrashSim> = sims.iter().map(copied).collect();
    let backend = open(&sims, &options).unwrap();
    let pairs = pairs_of_each(&backend);
    assert!(pairs[&second(0)].contains_key(&key(0)), "its shard was being written");
    assert!(!pairs[&second(quiet)].contains_key(&key(quiet)), "nobody was writing its shard");
    assert_eq!(all(&backend), 0);
    fill(&mut *backend.session().unwrap(), 5, 4);
    backend.close().unwrap();
    let backend = open(&sims, &options).unwrap();
    assert_eq!(all(&backend), 0);
}

/// Where a device may have lost changes to damage, all that it has is as on the other one.
#[test]
fn a_device_with_damage_does_not_have_the_last_word() {
    let (sims, options) = (sims(2), two_copies(AckMode::Buffered));
    let backend = open(&sims, &options).unwrap();
    let session = &mut *backend.session().unwrap();
    fill(session, 40, 1);
    answer(session, Command::Persist).unwrap();
    fill(session, 40, 2);
    for n in 30..40 {
        answer(session, Command::Delete { key: &key(n), expect: Expect::Present }).unwrap();
    }
    for _ in 0..2 {
        answer(session, Command::Persist).unwrap();
    }
    assert_eq!(written(&backend, 0) + written(&backend, 1), 0, "nothing is to be compared for the writes");
    let blocks = backend.with_device(0, |device| device.blocks_in_use()).unwrap();
    // What is damaged behind what a device knows to be durable is as what a power cut takes.
    backend.close().unwrap();
    let mut undone = 0;
    for (at, block) in (0..60).flat_map(|n| blocks.iter().map(move |(block, _)| (n * 331, block))) {
        if block.start + at >= block.end {
            continue;
        }
        let mut image = sims[0].walk();
        image.seek(sims[0].ops());
        let mut image = image.image(Survivors::All, 0);
        (0..24).for_each(|byte| image.corrupt(block.start + at + byte, 0x5A));
        let sims = [CrashSim::from_image(&image), copied(&sims[1])];
        let backend = open(&sims, &KvssdOptions { alone: true, ..options.clone() }).unwrap();
        undone += usize::from(backend.open_reports()[0].may_undo_changes());
        let session = &mut *backend.session().unwrap();
        all_are(session, 30, 2);
        assert!((30..40).all(|n| get(session, &key(n)).unwrap().is_none()));
    }
    assert!(undone > 5, "{undone}");
}

/// Whichever device fails at whichever sync while shards move: the move ends, nothing is lost, and there are two copies again in the end.
#[test]
fn a_device_that_fails_in_a_move_takes_nothing_with_it() {
    let mut ended = 0;
    for (device, after) in (0..4).flat_map(|device| [0, 3].map(|after| (device, after))) {
        let (sims, options) = (sims(4), two_copies(AckMode::Buffered));
        let backend = open(&sims[..3], &options).unwrap();
        let session = &mut *backend.session().unwrap();
        fill(session, 60, 1);
        backend.add_device(&ArrayMedium::Simulated(sims[3].clone())).unwrap();
        sims[device].fail_persist_after(after, true);
        let mut mover = backend.rebalance().unwrap().with_step_pairs(16);
        let mut n = 0;
        let moved = loop {
            if n % 4 == 0 {
                put(session, &key(n % 60), &[2; 100], Expect::Any).unwrap();
            }
            n += 1;
            assert!(n < 5_000, "device {device} after {after}: it comes to no end");
            match mover.step() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        drop(mover);
        ended += usize::from(moved.is_err());
        fill(session, 60, 3);
        answer(session, Command::Persist).unwrap();
        all_are(session, 60, 3);
        let what = format!("device {device} after {after}, {moved:?}");
        if let Some(mut left) = backend.unfinished_move().unwrap() {
            left.run().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        backend.rebuild().unwrap().run().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(
            (backend.copies_state().shards_alone, backend.copies_state().out),
            (0, vec![device + 1]),
            "{what}"
        );
        same_copies(&backend, &what);
        all_are(session, 60, 3);
        let sims: Vec<CrashSim> = sims.iter().map(copied).collect();
        let backend = open(&sims, &options).unwrap();
        all_are(&mut *backend.session().unwrap(), 60, 3);
    }
    assert!(ended > 0, "{ended}");
}

/// What devices say of their array when they are looked at.
#[test]
fn places_say_what_is_out() {
    let (sims, options) = (sims(3), two_copies(AckMode::Buffered));
    let backend = open(&sims, &options).unwrap();
    let place_of = |backend: &KvssdBackend, n: usize| {
        backend.with_device(n, |device| ArrayPlace::of(n + 1, device).unwrap()).flatten()
    };
    let before: Vec<_> = (0..3).map(|n| place_of(&backend, n)).collect();
    assert!(check_places(&before).is_empty());
    let place = before[1].clone().unwrap();
    assert_eq!((place.copies(), place.out(), place.shards_alone()), (2, vec![], 0));
    assert!(place.second_copies().abs_diff(1_024 / 3) < 3 && place.shards().0.abs_diff(1_024 / 3) < 3);
    sims[1].fail_persist_after(0, true);
    fill(&mut *backend.session().unwrap(), 20, 1);
    let places = [place_of(&backend, 0), before[1].clone(), place_of(&backend, 2)];
    let place = places[0].clone().unwrap();
    assert_eq!((place.out(), place.second_copies() + place.shards_alone() > 680), (vec![2], true));
    let wrong = check_places(&places);
    assert!(matches!(wrong[..], [ArrayError::Out { device: 2 }]), "{wrong:?}");
}

/// Random operations with conditions, batches and walks against a map, with devices that fail, are replaced, come and go, and openings between.
#[test]
fn answers_are_as_a_map_says_whatever_fails() {
    for seed in 0..6 {
        let options = two_copies(if seed % 2 == 0 { AckMode::Immediate } else { AckMode::Buffered });
        let (mut sims, mut random) = (sims(3), Random::from_seed(seed));
        let mut backend = open(&sims, &options).unwrap();
        let (mut model, mut out, mut outs) = (Model::new(), None, 0);
        // The lowest marks are those that a wrong one is drawn from.
        for n in 0..4 {
            put(&mut *backend.session().unwrap(), &pair_key(GROUP + 9, &[n]), b"", Expect::Any).unwrap();
        }
        for step in 0..1_200u64 {
            let mut session = backend.session().unwrap();
            let session = &mut *session;
            match random.below(40) {
                0 if out.is_none() => {
                    let device = random.below(3) as usize;
                    // Perhaps only its next sync but some fails.
                    sims[device].fail_persist_after(random.below(4), true);
                    out = Some(device);
                }
                1 if backend.copies_state().out.len() == 1 => {
                    let place = backend.copies_state().out[0] - 1;
                    sims[place].clear_faults();
                    sims[place] = if random.below(2) == 0 { new_sim() } else { copied(&sims[place]) };
                    let mut mover =
                        backend.replace_device(place, &ArrayMedium::Simulated(sims[place].clone())).unwrap();
                    for _ in 0..random.below(30) {
                        mover.step().unwrap();
                    }
                    drop(mover);
                    if let Some(mut left) = backend.unfinished_move().unwrap() {
                        left.run().unwrap();
                    }
                    (out, outs) = (None, outs + 1);
                }
                2 => {
                    answer(session, Command::Persist).unwrap();
                }
                3 => {
                    // Killed.
                    sims = sims.iter().map(copied).collect();
                    backend = open(&sims, &options).unwrap();
                    out = backend.copies_state().out.first().map(|place| place - 1);
                    same_copies(&backend, "opened");
                }
                4..=10 => batch_of(session, &mut model, &mut random, step),
                _ => single(session, &mut model, &mut random, step),
            }
        }
        assert!(outs > 0);
        same(&mut *backend.session().unwrap(), &model);
        same_copies(&backend, "in the end");
    }
}

fn single(session: &mut dyn Session, model: &mut Model, random: &mut Random, step: u64) {
    let key = key(random.below(60));
    let value = vec![step as u8; random.below(300) as usize];
    let (expect, holds) = expect_of(model, &key, random);
    let answered = match random.below(3) {
        0 => answer(session, Command::Delete { key: &key, expect }),
        1 => answer(session, Command::Get { key: &key }),
        _ => answer(session, Command::Put { key: &key, value: &value, expect }),
    };
    match answered {
        Ok(Answer::Got(pair)) => {
            assert_eq!(pair.map(|pair| (pair.value.to_vec(), pair.mark)).as_ref(), model.get(&key));
        }
        Ok(Answer::Stored(mark)) => {
            assert!(holds);
            model.insert(key, (value, mark));
        }
        Ok(Answer::Deleted(existed)) => {
            assert!(holds);
            assert_eq!(model.remove(&key).is_some(), existed);
        }
        Err(error) => assert!(!holds && error.kind() == ErrorKind::Conflict, "{error}"),
        other => panic!("{other:?}"),
    }
}

fn batch_of(session: &mut dyn Session, model: &mut Model, random: &mut Random, step: u64) {
    let first = random.below(60);
    let keys: Vec<Vec<u8>> = (0..random.below(4) + 1).map(|n| key((first + n * 7) % 60)).collect();
    let value = vec![step as u8; random.below(200) as usize];
    let mut all_hold = true;
    let changes: Vec<PairChange<'_>> = keys
        .iter()
        .map(|key| {
            let (expect, holds) = expect_of(model, key, random);
            all_hold &= holds;
            let becomes = match random.below(4) {
                0 => Becomes::Nothing,
                1 => Becomes::Unchanged,
                _ => Becomes::Value(&value),
            };
            PairChange { key, expect, becomes }
        })
        .collect();
    match answer(session, Command::Batch { changes: changes.clone() }) {
        Ok(Answer::Batched(marks)) => {
            assert!(all_hold);
            for (change, mark) in changes.iter().zip(marks) {
                match change.becomes {
                    Becomes::Nothing => drop(model.remove(change.key)),
                    Becomes::Value(value) => {
                        drop(model.insert(change.key.to_vec(), (value.to_vec(), mark.unwrap())))
                    }
                    Becomes::Unchanged => {}
                }
            }
        }
        Err(error) => assert!(!all_hold && error.kind() == ErrorKind::Conflict, "{error}"),
        other => panic!("{other:?}"),
    }
}
