//! Two copies where more than one thing goes wrong: a device that fails and comes back, another one that fails as one is put out, damage beside a failure.

use hedgerow_device::{Fault, Refusal};
use hedgerow_row::backend::{Becomes, PairChange};

use super::super::opening::{MetDevice, meet};
use super::copies::two_copies;
use super::moments::Moments;
use super::moves_cut::POWER_CUTS;
use super::*;

fn open(sims: &[CrashSim], options: &KvssdOptions) -> std::result::Result<KvssdBackend, ArrayError> {
    KvssdBackend::open(&media(sims), options)
}

/// A key whose copies are on these devices, the first one's first.
fn key_on(map: &ArrayMap, first: usize, second: usize) -> Vec<u8> {
    let is_there = |key: &Vec<u8>| map.copies_of(key).eq([first, second]);
    (0..).map(key).find(is_there).unwrap()
}

/// The device of the first of two changes fails as it keeps the intent, and is there again after a power cut, wherever that comes before it is out: of the batch there is all or nothing.
#[test]
fn a_batch_is_whole_where_a_device_fails_and_comes_back() {
    let (sims, options) = (sims(3), two_copies(AckMode::Immediate));
    let backend = open(&sims, &options).unwrap();
    let session = &mut *backend.session().unwrap();
    let keys = [key_on(&map_of(&backend), 0, 1), key_on(&map_of(&backend), 1, 2)];
    for key in &keys {
        // From here on devices say that the shards are being written.
        put(session, key, b"before", Expect::Any).unwrap();
    }
    sims[0].fail_persist_after(0, true);
    let moments = Moments::watch(&sims);
    let changes = keys
        .iter()
        .map(|key| PairChange { key, expect: Expect::Any, becomes: Becomes::Value(b"after") })
        .collect();
    assert!(matches!(answer(session, Command::Batch { changes }), Ok(Answer::Batched(_))));
    assert_eq!(backend.copies_state().out, [1]);
    let (mut before, mut after) = (0, 0);
    for (_, ops) in moments.take() {
        for (seed, kind) in POWER_CUTS.into_iter().enumerate() {
            let sims: Vec<CrashSim> =
                (0..3).map(|n| crashed(&sims[n], ops[n], kind, (seed + n) as u64)).collect();
            let backend = open(&sims, &options).unwrap();
            let session = &mut *backend.session().unwrap();
            let values = keys.each_ref().map(|key| get(session, key).unwrap().unwrap().value.to_vec());
            assert_eq!(values[0], values[1], "{kind:?} at {ops:?}: some of a batch");
            *(if values[0] == b"before" { &mut before } else { &mut after }) += 1;
        }
    }
    assert!(before > 0 && after > 0, "{before} before, {after} after");
    // The intent goes once the device is out.
    for key in &keys {
        answer(session, Command::Delete { key, expect: Expect::Present }).unwrap();
    }
    assert_eq!(backend.array.intents.lock().len(), 0);
}

fn fill(session: &mut dyn Session, keys: u64, with: u8) {
    for n in 0..keys {
        put(session, &key(n), &[with; 100], Expect::Any).unwrap();
    }
}

fn all_are(session: &mut dyn Session, keys: u64, with: u8) {
    for n in 0..keys {
        assert_eq!(get(session, &key(n)).unwrap().unwrap().value[..], [with; 100], "{n}");
    }
}

/// A device is to go out, and cannot, since another one does not take the map without it. That map does not count beside what is answered later, as the other one goes out.
#[test]
fn a_map_that_was_not_put_in_force_does_not_count() {
    let (sims, options) = (sims(3), two_copies(AckMode::Buffered));
    let backend = open(&sims, &options).unwrap();
    let session = &mut *backend.session().unwrap();
    fill(session, 90, 1);
    answer(session, Command::Persist).unwrap();
    sims[1].fail_persist_after(0, true);
    let refused = backend.replace_device(0, &ArrayMedium::Simulated(super::sims(1).remove(0)));
    assert!(matches!(refused, Err(ArrayError::NoCopy { .. })));
    assert_eq!(backend.copies_state().out, [0; 0]);
    let refused: Vec<CrashSim> = sims.iter().map(copied).collect();
    fill(session, 90, 2);
    answer(session, Command::Persist).unwrap();
    assert_eq!(backend.copies_state().out, [2]);
    let mut sims: Vec<CrashSim> = sims.iter().map(copied).collect();
    let whole: Vec<CrashSim> = sims.iter().map(copied).collect();
    sims[0] = super::sims(1).remove(0);
    let opened = open(&sims, &options);
    assert!(matches!(opened, Err(ArrayError::NoCopy { .. })), "the second of them is old");
    let backend = open(&whole, &options).unwrap();
    assert_eq!(backend.copies_state().out, [2]);
    all_are(&mut *backend.session().unwrap(), 90, 2);
    // As long as nothing else was put in force all are in as they come back.
    let backend = open(&refused, &options).unwrap();
    assert_eq!(backend.copies_state().out, [0; 0]);
    all_are(&mut *backend.session().unwrap(), 90, 1);
}

/// Two devices that have shards together fail: neither goes out, however often that is tried, and neither is too old as they come back.
#[test]
fn two_that_fail_together_are_not_left_behind() {
    let (sims, options) = (sims(4), two_copies(AckMode::Immediate));
    let backend = open(&sims, &options).unwrap();
    let session = &mut *backend.session().unwrap();
    fill(session, 90, 1);
    (0..2).for_each(|n| sims[n].fail_persist_after(0, true));
    let generation = map_of(&backend).generation;
    let answers: Vec<Result<Mark>> = (0..90).map(|n| put(session, &key(n), &[2; 100], Expect::Any)).collect();
    assert!(answers.iter().filter(|answer| answer.is_ok()).count() > 5, "of the other two");
    assert!(answers.iter().filter(|answer| answer.is_err()).count() > 5);
    assert_eq!(backend.copies_state().out, [0; 0]);
    assert_eq!(map_of(&backend).generation, generation + 1);
    let sims: Vec<CrashSim> = sims.iter().map(copied).collect();
    let backend = open(&sims, &options).unwrap();
    assert_eq!(backend.copies_state().out, [0; 0]);
    let session = &mut *backend.session().unwrap();
    for (n, answer) in answers.into_iter().enumerate() {
        let with = get(session, &key(n as u64)).unwrap().unwrap().value[0];
        match answer {
            Ok(_) => assert_eq!(with, 2, "{n}"),
            Err(error) if error.kind() == ErrorKind::Indeterminate => assert!(with == 1 || with == 2),
            Err(_) => assert_eq!(with, 1, "{n}"),
        }
    }
}

/// As one device goes out another one does not take the map without it, and a third one not the map without both, though it has the one before: all of them are out, also as they come back.
#[test]
fn who_fails_as_another_goes_out_is_out_too() {
    let (sims, options) = (sims(6), two_copies(AckMode::Buffered));
    let backend = open(&sims, &options).unwrap();
    let pairs = |map: &mut ArrayMap| {
        map.shards.iter_mut().for_each(|first| *first -= *first % 2);
        map.seconds = Some(map.shards.iter().map(|first| Some(first + 1)).collect());
    };
    backend.array.change_map(None, pairs).unwrap();
    let session = &mut *backend.session().unwrap();
    fill(session, 90, 1);
    answer(session, Command::Persist).unwrap();
    sims[2].fail_persist_after(0, true);
    sims[4].fail_persist_after(1, true);
    backend.array.put_out(0).unwrap();
    assert_eq!(backend.copies_state().out, [1, 3, 5]);
    fill(session, 90, 2);
    answer(session, Command::Persist).unwrap();
    let sims: Vec<CrashSim> = sims.iter().map(copied).collect();
    let backend = open(&sims, &options).unwrap();
    assert_eq!(backend.copies_state().out, [1, 3, 5]);
    all_are(&mut *backend.session().unwrap(), 90, 2);
}

/// Devices of which the second lost changes to damage: what an opening is to find is in the first 80 keys, and the ten behind them were deleted.
fn damaged() -> (KvssdOptions, Vec<[CrashSim; 3]>, ArrayMap) {
    let (sims, options) = (sims(3), two_copies(AckMode::Buffered));
    let backend = open(&sims, &options).unwrap();
    let session = &mut *backend.session().unwrap();
    fill(session, 90, 1);
    answer(session, Command::Persist).unwrap();
    fill(session, 90, 2);
    for n in 80..90 {
        answer(session, Command::Delete { key: &key(n), expect: Expect::Present }).unwrap();
    }
    // Nothing is to be compared for the writes.
    (0..2).for_each(|_| drop(answer(session, Command::Persist).unwrap()));
    let blocks = backend.with_device(1, |device| device.blocks_in_use()).unwrap();
    let map = map_of(&backend);
    backend.close().unwrap();
    let mut all = Vec::new();
    for (at, block) in (0..60).flat_map(|n| blocks.iter().map(move |(block, _)| (n * 331, block))) {
        if block.start + at >= block.end {
            continue;
        }
        let mut image = sims[1].walk();
        image.seek(sims[1].ops());
        let mut image = image.image(Survivors::All, 0);
        (0..24).for_each(|byte| image.corrupt(block.start + at + byte, 0x5A));
        let damaged = CrashSim::from_image(&image);
        let seen = meet(1, &ArrayMedium::Simulated(copied(&damaged)), &options);
        if let Ok(MetDevice::Device(mut device, Some(_))) = seen
            && device.device().open_report().may_undo_changes()
        {
            all.push([copied(&sims[0]), damaged, copied(&sims[2])]);
        }
    }
    assert!(all.len() > 5, "{}", all.len());
    (options, all, map)
}

/// All is as it was answered, of keys whose copies are on these devices.
fn is_right(backend: &KvssdBackend, map: &ArrayMap, on: &[usize], at: &str) {
    let session = &mut *backend.session().unwrap();
    let is_on = |n: &u64| map.copies_of(&key(*n)).all(|device| on.contains(&device));
    for n in (0..90).filter(is_on) {
        let found = get(session, &key(n)).unwrap().map(|pair| pair.value[..] == [2; 100]);
        assert_eq!(found, (n < 80).then_some(true), "{at}: {n}");
    }
}

/// Another device fails as one with damage is opened, at whichever of its syncs: the opening that goes on without that one believes the damaged one no more than before.
#[test]
fn damage_is_known_where_another_device_fails_in_the_opening() {
    let (options, all, map) = damaged();
    let mut opened = 0;
    for sims in all {
        for after in 0..5 {
            let sims = sims.each_ref().map(copied);
            sims[0].fail_persist_after(after, true);
            let Ok(backend) = open(&sims, &options) else { continue };
            opened += usize::from(backend.copies_state().out == [1]);
            is_right(&backend, &map, &[1, 2], &format!("after {after}"));
        }
    }
    assert!(opened > 20, "{opened}");
}

/// An opening of a device with damage is cut off, anywhere behind where the device was opened: the next one believes it no more.
#[test]
fn damage_is_known_after_an_opening_that_was_cut_off() {
    let (options, all, map) = damaged();
    for sims in all.into_iter().step_by(3) {
        let alone = copied(&sims[1]);
        drop(meet(1, &ArrayMedium::Simulated(alone.clone()), &options));
        let moments = Moments::watch(&sims);
        let mut backend = open(&sims, &options).unwrap();
        // What the damaged one is to say, it has said by then.
        let known = sims[1].ops().min(alone.ops());
        is_right(&backend, &map, &[0, 1, 2], "at first");
        let mut cuts = 0;
        for (_, ops) in moments.take().into_iter().filter(|(_, ops)| ops[1] >= known) {
            let cut: Vec<CrashSim> =
                (0..3).map(|n| crashed(&sims[n], ops[n], Survivors::All, cuts)).collect();
            backend = open(&cut, &options).unwrap();
            is_right(&backend, &map, &[0, 1, 2], &format!("{ops:?}"));
            super::copies::same_copies(&backend, &format!("{ops:?}"));
            cuts += 1;
        }
        drop(backend);
        assert!(cuts > 10, "{cuts}");
    }
}

/// Changes that are made together, more than a device takes at once.
const TOGETHER: usize = 140;

/// Both devices fail in changes that are made together, one of them later than the other. What is refused for sure is nowhere, whichever of the two comes back alone.
fn fails_twice(earlier: usize, command: impl for<'k> Fn([&'k [u8]; 2]) -> Command<'k>) {
    let (sims, options) = (sims(2), two_copies(AckMode::Immediate));
    let backend = open(&sims, &options).unwrap();
    let session = &mut *backend.session().unwrap();
    let map = map_of(&backend);
    let keys: Vec<Vec<u8>> =
        (0..).map(key).filter(|key| map.copies_of(key).eq([0, 1])).take(2 * TOGETHER).collect();
    for key in &keys {
        put(session, key, b"before", Expect::Any).unwrap();
    }
    sims[earlier].fail_persist_after(0, true);
    sims[1 - earlier].fail_persist_after(2, true);
    let commands: Vec<Command<'_>> =
        (0..TOGETHER).map(|n| command([&keys[n], &keys[TOGETHER + n]])).collect();
    let answers = ask(session, &commands);
    for alone in 0..2 {
        let mut some: Vec<CrashSim> = sims.iter().map(copied).collect();
        some[1 - alone] = super::sims(1).remove(0);
        let backend = open(&some, &KvssdOptions { alone: true, ..options.clone() }).unwrap();
        let session = &mut *backend.session().unwrap();
        let mut sure = 0;
        for (n, answer) in answers.iter().enumerate() {
            if answer.as_ref().is_err_and(|error| error.kind() != ErrorKind::Indeterminate) {
                let value = get(session, &keys[n]).unwrap().unwrap().value;
                assert_eq!(value[..], *b"before", "{alone} alone, change {n}: {answer:?}");
                sure += 1;
            }
        }
        assert!((1..TOGETHER).contains(&sure), "{sure} of {TOGETHER} refused for sure");
    }
}

fn becomes_after(key: &[u8]) -> PairChange<'_> {
    PairChange { key, expect: Expect::Any, becomes: Becomes::Value(b"after") }
}

#[test]
fn a_change_that_one_copy_may_have_is_not_refused_for_sure() {
    for earlier in 0..2 {
        fails_twice(earlier, |[key, _]| Command::Put { key, value: b"after", expect: Expect::Any });
    }
}

#[test]
fn a_batch_of_one_change_that_one_copy_may_have_is_not_refused_for_sure() {
    for earlier in 0..2 {
        fails_twice(earlier, |[key, _]| Command::Batch { changes: vec![becomes_after(key)] });
    }
}

#[test]
fn a_batch_that_one_device_may_have_kept_is_not_refused_for_sure() {
    for earlier in 0..2 {
        fails_twice(earlier, |keys| Command::Batch { changes: keys.map(becomes_after).to_vec() });
    }
}

/// A medium whose disk is full has its device fail as any other that refuses: what goes through all devices, and batches, go on without it.
#[test]
fn a_device_whose_disk_is_full_goes_out() {
    for is_batch in [false, true] {
        let (sims, options) = (sims(3), two_copies(AckMode::Buffered));
        let backend = open(&sims, &options).unwrap();
        let session = &mut *backend.session().unwrap();
        fill(session, 90, 1);
        sims[1].fail_persists(Fault { after: 0, sticky: true, refusal: Refusal::NoSpace });
        let keys = [key_on(&map_of(&backend), 0, 1), key_on(&map_of(&backend), 1, 2)];
        let changes = keys.iter().map(|key| PairChange {
            key,
            expect: Expect::Present,
            becomes: Becomes::Value(&[1; 100]),
        });
        let command = match is_batch {
            true => Command::Batch { changes: changes.collect() },
            false => Command::Persist,
        };
        answer(session, command).unwrap();
        assert_eq!(backend.copies_state().out, [2]);
        all_are(session, 90, 1);
    }
}
