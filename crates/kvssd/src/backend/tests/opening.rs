//! Arrays that are opened with what they were made of, and with something else.

use super::*;
use crate::command::{KvAnswer, KvCommand, PairKey};
use crate::device::Out;
use hedgerow_device::FastTier;

fn open(media: &[ArrayMedium]) -> std::result::Result<KvssdBackend, ArrayError> {
    KvssdBackend::open(media, &options(AckMode::Buffered))
}

/// Three devices with thirty pairs, closed.
fn three() -> Vec<CrashSim> {
    filled(sims(3))
}

fn filled(sims: Vec<CrashSim>) -> Vec<CrashSim> {
    let backend = open(&media(&sims)).unwrap();
    let mut session = backend.session().unwrap();
    for n in 0..30 {
        put(&mut *session, &key(n), b"v", Expect::Any).unwrap();
    }
    backend.close().unwrap();
    sims
}

fn has_all(sims: &[CrashSim]) {
    let backend = open(&media(sims)).unwrap();
    assert_eq!(walk(&mut *backend.session().unwrap(), GROUP, 100).len(), 30);
    backend.close().unwrap();
}

/// Nothing is opened, nor changed, but with all devices, each in its place.
#[test]
fn a_device_that_is_missing_foreign_or_in_anothers_place_is_refused() {
    let sims = three();
    // The same done to a medium gives the same numbers: more was done to these.
    let others = self::sims(3);
    formatted(&others[0]);
    let others = filled(others);
    let of = |numbers: &[usize]| {
        let media: Vec<_> = numbers.iter().map(|&n| ArrayMedium::Simulated(sims[n].clone())).collect();
        open(&media).unwrap_err()
    };
    assert!(matches!(of(&[0, 1]), ArrayError::Devices { given: 2, has: 3 }));
    assert!(matches!(of(&[0]), ArrayError::Devices { given: 1, has: 3 }));
    assert!(matches!(of(&[1, 0, 2]), ArrayError::Order { given: 1, is: 2 }));
    assert!(matches!(of(&[0, 2, 1]), ArrayError::Order { given: 2, is: 3 }));
    let with = |third: ArrayMedium| {
        open(&[ArrayMedium::Simulated(sims[0].clone()), ArrayMedium::Simulated(sims[1].clone()), third])
            .unwrap_err()
    };
    let foreign = with(ArrayMedium::Simulated(others[2].clone()));
    assert!(matches!(foreign, ArrayError::Foreign { device: 3, what: "another array" }), "{foreign}");
    let nothing = with(ArrayMedium::Memory);
    assert!(matches!(nothing, ArrayError::Missing { device: 3 }), "{nothing}");
    assert_eq!(hedgerow_row::Error::from(nothing).kind(), ErrorKind::Unavailable);
    let fresh = sims_of_one();
    formatted(&fresh);
    let new = with(ArrayMedium::Simulated(fresh.clone()));
    assert!(matches!(new, ArrayError::Foreign { device: 3, .. }), "{new}");
    let four = [media(&sims), vec![ArrayMedium::Memory]].concat();
    assert!(matches!(open(&four).unwrap_err(), ArrayError::Devices { given: 4, has: 3 }));
    assert!(matches!(open(&[]).unwrap_err(), ArrayError::Count { given: 0, .. }));
    has_all(&sims);
    has_all(&others);
}

/// Makes a device, with nothing in it.
fn formatted(sim: &CrashSim) {
    Device::format(FastTier::simulated(sim), SMALL, DeviceOptions::default()).unwrap().close().unwrap();
}

fn sims_of_one() -> CrashSim {
    sims(1).remove(0)
}

/// A copy of a device that was put back would have lost what was stored since.
#[test]
fn a_device_that_is_older_than_the_others_is_refused() {
    let sims = three();
    let older = copied(&sims[1]);
    let with_older = |sims: &[CrashSim]| [sims[0].clone(), older.clone(), sims[2].clone()];
    has_all(&sims);
    has_all(&sims);
    let refused = open(&media(&with_older(&sims))).unwrap_err();
    let ArrayError::Stale { device: 2, generation, newest } = refused else { panic!("{refused}") };
    assert_eq!(newest, generation + 2);
    has_all(&sims);
}

/// A device of somebody else's, with key spaces of its own, is not taken.
#[test]
fn a_device_of_another_program_is_left_alone() {
    let sim = sims_of_one();
    let mut device = Device::format(FastTier::simulated(&sim), SMALL, DeviceOptions::default()).unwrap();
    let mut out = Out::default();
    let name = PairKey::new(b"theirs").unwrap();
    device.submit(1, KvCommand::CreateSpace { name, bytes_max: 0 }).unwrap();
    while device.step(0, &mut out) {}
    device.close().unwrap();
    let refused = open(&[ArrayMedium::Simulated(sim.clone())]).unwrap_err();
    assert!(matches!(refused, ArrayError::Foreign { device: 1, .. }), "{refused}");
    let mut device = Device::open(FastTier::simulated(&sim), DeviceOptions::default()).unwrap();
    device.submit(1, KvCommand::ListSpaces).unwrap();
    out = Out::default();
    while device.step(0, &mut out) {}
    assert!(matches!(&out.completions[0].result, Ok(KvAnswer::Spaces(spaces)) if spaces.len() == 1));
}

/// Whenever the power goes while an array is made or opened, it is opened afterwards, with all that it had.
#[test]
fn an_array_whose_opening_was_cut_off_is_opened() {
    let made = sims(2);
    drop(open(&media(&made)).unwrap());
    let ends: Vec<u64> = made.iter().map(CrashSim::ops).collect();
    let (mut cuts, mut in_force) = (0, 0);
    for cut in 0..=ends[0] {
        for kind in [Survivors::None, Survivors::All, Survivors::Random, Survivors::ProcessKill] {
            let first = crashed(&made[0], cut, kind, cut);
            // The second device is not begun yet.
            let media = [first.clone(), sims(1).remove(0)].map(ArrayMedium::Simulated);
            match open(&media) {
                Ok(backend) => {
                    put(&mut *backend.session().unwrap(), &key(1), b"v", Expect::Absent).unwrap();
                    cuts += 1;
                }
                // The first device's map is in force, so the second had one by then: this is another one.
                Err(ArrayError::Missing { device: 2 }) => {
                    in_force += 1;
                    let media = [first, copied(&made[1])].map(ArrayMedium::Simulated);
                    drop(open(&media).unwrap());
                }
                Err(error) => panic!("cut at {cut}, {kind:?}: {error}"),
            }
        }
    }
    assert!(cuts > 10 && in_force > 0, "{cuts}, {in_force}");
}

/// An opening that ended between two devices leaves them a generation apart, and the next one evens them out.
#[test]
fn openings_that_are_cut_off_leave_a_generation_between_devices_at_most() {
    let mut sims = three();
    for round in 0..6 {
        let older: Vec<CrashSim> = sims.iter().map(copied).collect();
        drop(open(&media(&sims)).unwrap());
        // Some devices have the new generation, the others not.
        let newer = round % 3;
        sims = (0..3).map(|n| if n <= newer { copied(&sims[n]) } else { older[n].clone() }).collect();
    }
    has_all(&sims);
}
