//! Devices that come and go, a step at a time: answers meanwhile, what is refused, and moves that cannot end.

use super::*;
use crate::code::KvError;
use crate::device::DeviceView;
use hedgerow_device::FastTier;

/// All pairs of a model as they are, and nothing besides on any device.
fn exactly(backend: &KvssdBackend, model: &Model) {
    same(&mut *backend.session().unwrap(), model);
    let bytes: usize = model.iter().map(|(key, (value, _))| key.len() + 8 + value.len()).sum();
    let map = map_of(backend);
    let own = map.members.len() * (b"map".len() + map.encode().len());
    let on = |place| backend.with_device(place, |device| device.info().logical_bytes).unwrap();
    let there: u64 = (0..map.members.len()).map(on).sum();
    assert_eq!(there, (bytes + own) as u64);
    assert!(map.moves.is_empty() && map.strays.is_empty() && map.work == MapWork::Nothing);
}

fn filled(backend: &KvssdBackend, pairs: u64, bytes: usize) -> Model {
    let session = &mut *backend.session().unwrap();
    let stored = |n| {
        let value = vec![n as u8; bytes];
        let mark = put(session, &key(n), &value, Expect::Any).unwrap();
        (key(n), (value, mark))
    };
    (0..pairs).map(stored).collect()
}

/// One random command against the model.
fn command(session: &mut dyn Session, model: &mut Model, random: &mut Random) {
    let key = key(random.below(60));
    let (expect, holds) = expect_of(model, &key, random);
    let value = vec![random.below(256) as u8; (random.below(16) * random.below(100)) as usize];
    match random.below(40) {
        0 => {
            answer(session, Command::Clear { group: GROUP }).unwrap();
            model.clear();
        }
        1..=9 => {
            let got = get(session, &key).unwrap().map(|pair| (pair.value.to_vec(), pair.mark));
            assert_eq!(got.as_ref(), model.get(&key));
        }
        10..=29 => match put(session, &key, &value, expect) {
            Ok(mark) => {
                assert!(holds);
                model.insert(key, (value, mark));
            }
            Err(error) => assert!(!holds && error.kind() == ErrorKind::Conflict, "{error}"),
        },
        _ => match answer(session, Command::Delete { key: &key, expect }) {
            Ok(answer) => assert_eq!(answer, Answer::Deleted(model.remove(&key).is_some())),
            Err(error) => assert!(!holds && error.kind() == ErrorKind::Conflict, "{error}"),
        },
    }
}

/// Several sessions, devices that come and go at any time, and movers that are left and taken up.
#[test]
fn answers_are_as_a_map_says_while_devices_come_and_go() {
    let backend = in_memory(2);
    let mut sessions: Vec<_> = (0..3).map(|_| backend.session().unwrap()).collect();
    let (mut model, mut random) = (Model::new(), Random::from_seed(7));
    let mut mover: Option<Mover> = None;
    let (mut ended, mut left) = (0, 0);
    for n in 0..12_000 {
        let session = &mut sessions[random.below(3) as usize];
        command(&mut **session, &mut model, &mut random);
        let devices = map_of(&backend).members.len();
        mover = match (mover.take(), random.below(12)) {
            (Some(mut going), 0..=7) => match going.step().unwrap() {
                true => Some(going),
                false => {
                    ended += 1;
                    None
                }
            },
            // It is left, and perhaps taken up later.
            (Some(_), 8) if random.below(6) == 0 => {
                left += 1;
                None
            }
            (None, 0) if devices < 6 => {
                backend.add_device(&ArrayMedium::Memory).unwrap();
                None
            }
            (None, 1) => Some(backend.rebalance().unwrap()),
            (None, 2) if devices > 1 => {
                Some(backend.remove_device(random.below(devices as u64) as usize).unwrap())
            }
            (None, 3) => backend.unfinished_move().unwrap(),
            (going, _) => going,
        }
        .map(|mover| mover.with_step_pairs(2));
        if n % 400 == 0 {
            same(&mut *backend.session().unwrap(), &model);
        }
    }
    assert!(ended > 60 && left > 10, "{ended} ended, {left} left");
    drop(mover);
    backend.unfinished_move().unwrap().map_or(Ok(()), |mut left| left.run()).unwrap();
    exactly(&backend, &model);
}

/// A walk that has come by the device where a shard goes comes by what is in it all the same.
#[test]
fn a_walk_comes_by_what_moves_behind_it() {
    for steps in 0..8 {
        let backend = in_memory(3);
        let model = filled(&backend, 200, 10);
        let session = &mut *backend.session().unwrap();
        let (mut cursor, mut seen) = (Some(Cursor::START), Model::new());
        let mut turns = 0;
        while let Some(from) = cursor {
            let step = answer(session, Command::Walk { group: GROUP, from, pairs: 20 }).unwrap();
            let Answer::Walked(pairs, next) = step else { panic!("{step:?}") };
            seen.extend(pairs.into_iter().map(|pair| (pair.key.to_vec(), (pair.value.to_vec(), pair.mark))));
            if turns == steps {
                backend.remove_device(2).unwrap().run().unwrap();
            }
            (cursor, turns) = (next, turns + 1);
        }
        assert!(turns > steps && seen == model, "after {steps} steps");
    }
}

/// What is cleared, or deleted, after it was copied does not come back with the copy.
#[test]
fn what_is_deleted_after_it_was_copied_does_not_come_back() {
    let backend = in_memory(2);
    let mut model = filled(&backend, 100, 10);
    let session = &mut *backend.session().unwrap();
    let mut mover = backend.remove_device(0).unwrap().with_step_pairs(1);
    while mover.progress().pairs_copied < 20 {
        assert!(mover.step().unwrap());
    }
    for n in (0..100).step_by(2) {
        answer(session, Command::Delete { key: &key(n), expect: Expect::Present }).unwrap();
        model.remove(&key(n));
    }
    same(session, &model);
    answer(session, Command::Clear { group: GROUP }).unwrap();
    mover.run().unwrap();
    exactly(&backend, &Model::new());
}

/// Nothing is copied between the parts of a clear: it would be on the one device as the other's is gone.
#[test]
fn nothing_is_copied_while_a_table_is_cleared() {
    // Whichever of the two others the next pair goes to: to the first, as the second is cleared, it could.
    (5..15).for_each(|copied| clear_after(&in_memory(3), copied));
}

/// Clears as the last device has given so many pairs to the others.
fn clear_after(backend: &KvssdBackend, copied: u64) {
    filled(backend, 100, 10);
    let mut mover = backend.remove_device(2).unwrap().with_step_pairs(1);
    while mover.progress().pairs_copied < copied {
        assert!(mover.step().unwrap());
    }
    let (ask, asked) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    let mut mover = std::thread::scope(|scope| {
        let steps = scope.spawn(move || {
            for () in asked {
                assert!(mover.step().unwrap());
                // Nobody waits for it any more where it had to wait.
                let _ = tell.send(());
            }
            mover
        });
        // Before and after a device clears its part there is time for a step, if one can be taken.
        let watch = move || {
            ask.send(()).unwrap();
            let _ = told.recv_timeout(Duration::from_millis(15));
        };
        array_device::WATCHER.set(Some(Box::new(watch)));
        answer(&mut *backend.session().unwrap(), Command::Clear { group: GROUP }).unwrap();
        array_device::WATCHER.set(None);
        steps.join().unwrap()
    });
    mover.run().unwrap();
    exactly(backend, &Model::new());
}

/// Marks move with their pairs: who saw one before expects the same after.
#[test]
fn a_mark_stays_over_a_move() {
    let backend = in_memory(1);
    let model = filled(&backend, 50, 10);
    backend.add_device(&ArrayMedium::Memory).unwrap();
    backend.rebalance().unwrap().run().unwrap();
    exactly(&backend, &model);
    let session = &mut *backend.session().unwrap();
    for (key, (_, mark)) in &model {
        let next = put(session, key, b"next", Expect::Same(*mark)).unwrap();
        assert!(next.number() > mark.number());
    }
}

/// Where there is no room for what goes the move ends, and the array is as it was.
#[test]
fn a_full_target_ends_the_move_with_the_array_as_it_was() {
    let backend = in_memory(2);
    let mut model = filled(&backend, 1_000, 700);
    let before = map_of(&backend);
    let session = &mut *backend.session().unwrap();
    let mut mover = backend.remove_device(1).unwrap();
    let ended = loop {
        match mover.step() {
            Ok(true) => {
                // Changes meanwhile are refused to nobody.
                let value = vec![9; 700];
                let n = mover.progress().pairs_copied % 1_000;
                let mark = put(session, &key(n), &value, Expect::Present).unwrap();
                model.insert(key(n), (value, mark));
            }
            ended => break ended,
        }
    };
    let Err(ArrayError::Device { device: 1, error: KvError::DeviceFull { .. } }) = ended else {
        panic!("{ended:?}")
    };
    assert!(matches!(mover.step(), Ok(false)), "no further step");
    drop(mover);
    assert!(map_of(&backend).shards == before.shards && map_of(&backend).members == before.members);
    exactly(&backend, &model);
    assert!(backend.unfinished_move().unwrap().is_none());
}

/// A pair that cannot be read cannot be copied: its device keeps it, and all others.
#[test]
fn a_pair_that_cannot_be_read_ends_the_move() {
    let backend = in_memory(2);
    let model = filled(&backend, 60, 500);
    let blocks = backend.with_device(0, |device| device.blocks_in_use()).unwrap();
    let at = blocks[0].0.start + 10_000;
    backend.with_device(0, |device| device.fail_reads(at..at + 10));
    let ended = backend.remove_device(0).unwrap().run();
    assert!(matches!(ended, Err(ArrayError::Device { device: 1, .. })), "{ended:?}");
    let session = &mut *backend.session().unwrap();
    let read = model.iter().filter(|(key, there)| {
        get(session, key).is_ok_and(|pair| pair.is_some_and(|pair| pair.value[..] == there.0[..]))
    });
    assert_eq!(read.count(), 59);
    assert_eq!(map_of(&backend).work, MapWork::Nothing);
}

/// A change that could not be copied was answered all the same: the move ends, though all works again by then.
#[test]
fn a_change_that_could_not_be_copied_ends_the_move() {
    let backend = in_memory(2);
    let mut model = filled(&backend, 60, 100);
    let mut mover = backend.remove_device(0).unwrap().with_step_pairs(1);
    while mover.progress().pairs_copied < 5 {
        assert!(mover.step().unwrap());
    }
    let session = &mut *backend.session().unwrap();
    // A key that was not there: nothing is read before it is stored.
    let new = (100..).map(key).find(|key| owner(&backend, key) == 0).unwrap();
    backend.with_device(0, |device| device.fail_reads(0..SMALL.bytes()));
    let mark = put(session, &new, b"new", Expect::Any).unwrap();
    model.insert(new, (b"new".to_vec(), mark));
    backend.with_device(0, |device| device.clear_read_faults());
    let ended = mover.run();
    assert!(matches!(ended, Err(ArrayError::Device { device: 1, .. })), "{ended:?}");
    drop(mover);
    exactly(&backend, &model);
    backend.remove_device(0).unwrap().run().unwrap();
    exactly(&backend, &model);
}

/// Whichever device fails in a move, and whenever: what was answered is there when the array is opened anew, once, and the move can be gone on with.
#[test]
fn a_device_that_fails_ends_the_move_and_loses_nothing() {
    let mut refused = 0;
    for failing in 0..3 {
        for after in (0..40).step_by(3) {
            let sims = sims(3);
            let options = options(AckMode::Immediate);
            let backend = KvssdBackend::open(&media(&sims[..2]), &options).unwrap();
            let mut model = filled(&backend, 60, 100);
            backend.add_device(&ArrayMedium::Simulated(sims[2].clone())).unwrap();
            let mut mover = backend.remove_device(0).unwrap().with_step_pairs(2);
            let session = &mut *backend.session().unwrap();
            let mut unsure = std::collections::BTreeSet::new();
            let (mut n, mut steps) = (0, 0);
            let ended = loop {
                if steps == after {
                    sims[failing].fail_persist_after(0, true);
                }
                steps += 1;
                let (of, value) = (key(n % 60), vec![n as u8; 90]);
                n += 7;
                match put(session, &of, &value, Expect::Present) {
                    Ok(mark) => drop(model.insert(of, (value, mark))),
                    Err(error) => {
                        // A device that holds a copy, and not the pair, fails nobody.
                        assert_eq!(owner(&backend, &of), failing, "{error}");
                        unsure.insert(of);
                    }
                }
                match mover.step() {
                    Ok(true) => {}
                    ended => break ended,
                }
            };
            refused += u32::from(ended.is_err());
            drop((mover, backend));
            sims.iter().for_each(CrashSim::clear_faults);
            let left: Vec<CrashSim> =
                sims.iter().map(|sim| CrashSim::from_image(&sim.process_kill())).collect();
            let backend = match KvssdBackend::open(&media(&left), &options) {
                Err(ArrayError::Removed { device: 1 }) => KvssdBackend::open(&media(&left[1..]), &options),
                opened => opened,
            };
            let backend = backend.unwrap();
            backend.unfinished_move().unwrap().map_or(Ok(()), |mut left| left.run()).unwrap();
            let session = &mut *backend.session().unwrap();
            for of in unsure {
                let pair = get(session, &of).unwrap().unwrap();
                model.insert(of, (pair.value.to_vec(), pair.mark));
            }
            exactly(&backend, &model);
        }
    }
    assert!(refused > 25, "{refused}");
}

/// A device that was removed is empty, says that it is of the array no more, and may be added again.
#[test]
fn a_device_that_was_removed_is_told_plainly() {
    let sims = sims(3);
    let open = |numbers: &[usize]| {
        let media: Vec<_> = numbers.iter().map(|&n| ArrayMedium::Simulated(sims[n].clone())).collect();
        KvssdBackend::open(&media, &options(AckMode::Buffered))
    };
    let place = |n: usize| {
        let tier = FastTier::simulated(&copied(&sims[n]));
        let mut view = DeviceView::open(tier).unwrap();
        ArrayPlace::of(1, view.device()).unwrap()
    };
    let backend = open(&[0, 1, 2]).unwrap();
    let model = filled(&backend, 50, 20);
    let stays = copied(&sims[0]);
    backend.remove_device(0).unwrap().run().unwrap();
    let gone = [place(0), place(1), place(2)];
    let told: Vec<_> = gone.iter().flatten().map(|place| (place.device(), place.devices())).collect();
    assert_eq!(told, [(0, 2), (1, 2), (2, 2)]);
    exactly(&backend, &model);
    assert!(backend.with_device(2, |_| ()).is_none());
    backend.close().unwrap();
    assert!(matches!(check_places(&gone)[..], [ArrayError::Removed { device: 1 }]));
    assert!(check_places(&gone[1..]).is_empty());
    assert!(matches!(open(&[0, 1, 2]).unwrap_err(), ArrayError::Removed { device: 1 }));
    assert!(matches!(open(&[1, 0, 2]).unwrap_err(), ArrayError::Removed { device: 2 }));
    assert!(matches!(open(&[0]).unwrap_err(), ArrayError::Removed { device: 1 }));
    assert!(matches!(open(&[2, 1]).unwrap_err(), ArrayError::Order { given: 1, is: 2 }));
    assert!(matches!(open(&[1]).unwrap_err(), ArrayError::Devices { given: 1, has: 2 }));
    let backend = open(&[1, 2]).unwrap();
    exactly(&backend, &model);
    // It comes behind the others. What it was before is refused: it has pairs.
    let refused = backend.add_device(&ArrayMedium::Simulated(stays)).unwrap_err();
    assert!(matches!(refused, ArrayError::Foreign { device: 3, .. }), "{refused}");
    backend.add_device(&ArrayMedium::Simulated(sims[0].clone())).unwrap();
    backend.rebalance().unwrap().run().unwrap();
    exactly(&backend, &model);
    backend.close().unwrap();
    let backend = open(&[1, 2, 0]).unwrap();
    exactly(&backend, &model);
    assert_eq!(place(0).unwrap().shards().0, 341);
    assert_eq!(place(0).unwrap().device(), 3);
}

/// A number that was given again: the device that had it before, empty, is not taken for the one that has it.
#[test]
fn a_removed_device_does_not_stand_in_for_one_that_has_its_number() {
    let sims = sims(3);
    let options = options(AckMode::Buffered);
    let backend = KvssdBackend::open(&media(&sims[..2]), &options).unwrap();
    let model = filled(&backend, 50, 20);
    backend.remove_device(1).unwrap().run().unwrap();
    backend.add_device(&ArrayMedium::Simulated(sims[2].clone())).unwrap();
    drop(backend);
    let refused = KvssdBackend::open(&media(&sims[..2]), &options).unwrap_err();
    assert!(matches!(refused, ArrayError::Removed { device: 2 }), "{refused}");
    let backend = KvssdBackend::open(&media(&[sims[0].clone(), sims[2].clone()]), &options).unwrap();
    exactly(&backend, &model);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a folder for the files of devices")]
fn what_cannot_be_moved_is_refused() {
    let backend = in_memory(1);
    assert!(matches!(backend.remove_device(0), Err(ArrayError::LastDevice)));
    assert!(matches!(backend.remove_device(1), Err(ArrayError::NoDevice { device: 2, has: 1 })));
    let mover = backend.rebalance().unwrap();
    assert!(matches!(backend.rebalance(), Err(ArrayError::Moving)));
    assert!(matches!(backend.unfinished_move().map(drop), Ok(()) | Err(ArrayError::Moving)));
    assert!(matches!(backend.add_device(&ArrayMedium::Memory), Err(ArrayError::Moving)));
    drop(mover);
    backend.rebalance().unwrap().run().unwrap();
    let dir = std::env::temp_dir().join(format!("hedgerow-moves-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = |name: &str| ArrayMedium::File(dir.join(name));
    let other = KvssdBackend::open(&[file("a")], &options(AckMode::Buffered)).unwrap();
    let in_use = backend.add_device(&file("a")).unwrap_err();
    assert!(matches!(&in_use, ArrayError::Device { device: 2, .. }), "{in_use}");
    assert_eq!(Error::from(in_use).kind(), ErrorKind::Locked);
    other.close().unwrap();
    drop(other);
    let foreign = backend.add_device(&file("a")).unwrap_err();
    assert!(matches!(foreign, ArrayError::Foreign { device: 2, what: "another array" }), "{foreign}");
    // One that was begun and has shorter values.
    let tiny = Geometry { block_bytes: 16 << 10, ..SMALL };
    if let Ok(tier) = FastTier::open_file(&dir.join("tiny"), &Default::default(), true) {
        let made = Device::format(tier, tiny, DeviceOptions::default());
        if made.and_then(Device::close).is_ok() {
            let short = backend.add_device(&file("tiny")).unwrap_err();
            assert!(matches!(short, ArrayError::ValueBytes { needs: 4088, .. }), "{short}");
        }
    }
    assert_eq!(map_of(&backend).members.len(), 1);
    backend.add_device(&file("new")).unwrap();
    backend.close().unwrap();
    for closed in [backend.add_device(&ArrayMedium::Memory).err(), backend.rebalance().err()] {
        assert!(matches!(closed, Some(ArrayError::Closed)), "{closed:?}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A device of the highest number is followed by none. The map that says so is one that an array may have after many changes.
#[test]
fn the_last_number_is_followed_by_none() {
    let sims = sims(1);
    let backend = KvssdBackend::open(&media(&sims), &options(AckMode::Buffered)).unwrap();
    let last = DEVICES_MAX as u16 - 1;
    let shards = vec![last; map::SHARDS].into();
    let map = ArrayMap { device: last, members: [last].into(), shards, ..map_of(&backend) };
    backend.array.layout.read().with(0, |device| device.store_map(&map)).unwrap().unwrap();
    backend.close().unwrap();
    let backend = KvssdBackend::open(&media(&sims), &options(AckMode::Buffered)).unwrap();
    let model = filled(&backend, 10, 10);
    let refused = backend.add_device(&ArrayMedium::Memory).unwrap_err();
    assert!(matches!(refused, ArrayError::NumbersSpent { max: DEVICES_MAX }), "{refused}");
    exactly(&backend, &model);
}
