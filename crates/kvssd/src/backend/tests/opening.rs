//! Arrays that are opened with what they were made of, and with something else.

use super::*;
use crate::command::{KvAnswer, KvCommand, PairKey};
use crate::device::Out;
use hedgerow_device::{FastTier, Fault, Refusal};

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
    assert_eq!(spaces_on(&fresh), 0, "it is as it was");
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

fn spaces_on(sim: &CrashSim) -> usize {
    let mut device = Device::open(FastTier::simulated(sim), DeviceOptions::default()).unwrap();
    let mut out = Out::default();
    device.submit(1, KvCommand::ListSpaces).unwrap();
    while device.step(0, &mut out) {}
    match &out.completions[0].result {
        Ok(KvAnswer::Spaces(spaces)) => spaces.len(),
        other => panic!("{other:?}"),
    }
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
    // One opening is enough.
    for openings in 1..=2 {
        has_all(&sims);
        let refused = open(&media(&with_older(&sims))).unwrap_err();
        let ArrayError::Stale { device: 2, generation, newest } = refused else { panic!("{refused}") };
        assert_eq!(newest, generation + 2 * openings);
    }
    has_all(&sims);
}

/// Files that are there are opened before one is made: where one of them is refused nothing is left that was not there.
#[test]
#[allow(clippy::disallowed_methods, reason = "it looks at which files there are")]
fn no_file_is_made_where_one_that_is_there_is_refused() {
    let dir = std::env::temp_dir().join(format!("hedgerow-opening-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = |name: &str| dir.join(name);
    let files = |names: &[&str]| names.iter().map(|name| ArrayMedium::File(path(name))).collect::<Vec<_>>();
    let names = || {
        let all = std::fs::read_dir(&dir).unwrap();
        let mut names: Vec<_> = all.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        // Those that say who has a file open are not what is made of it.
        names.retain(|name| !name.ends_with(".lock"));
        names.sort();
        names
    };
    open(&files(&["a", "b"])).unwrap().close().unwrap();
    // Of another array, in front and behind; and one whose name leads nowhere.
    assert!(matches!(open(&files(&["new", "a"])).unwrap_err(), ArrayError::Order { given: 2, is: 1 }));
    assert!(matches!(open(&files(&["a", "new"])).unwrap_err(), ArrayError::Missing { device: 2 }));
    std::fs::create_dir(path("directory")).unwrap();
    assert!(matches!(open(&files(&["new", "directory"])).unwrap_err(), ArrayError::Device { device: 2, .. }));
    assert_eq!(names(), ["a", "b", "directory"]);
    // One that is there, with nothing in it, and is given twice, or is somebody's.
    std::fs::write(path("empty"), b"").unwrap();
    let refused = open(&files(&["new", "empty", "empty"])).unwrap_err();
    assert!(matches!(refused, ArrayError::Device { device: 3, .. }), "{refused}");
    let theirs = FastTier::open_file(&path("empty"), &Default::default(), false).unwrap();
    let refused = open(&files(&["new", "empty"])).unwrap_err();
    assert!(matches!(refused, ArrayError::Device { device: 2, .. }), "{refused}");
    drop(theirs);
    assert_eq!(names(), ["a", "b", "directory", "empty"]);
    open(&files(&["new", "empty"])).unwrap().close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A map that is not in force, beside rows, is what damage left of the one that was: no new array is made there, which would give marks again.
#[test]
fn rows_without_a_map_in_force_are_left_alone() {
    let sims = filled(sims(1));
    let backend = open(&media(&sims)).unwrap();
    let map = ArrayMap { generation: 0, marks: 1, ..map_of(&backend) };
    backend.array.layout.read().with(0, |device| device.store_map(&map)).unwrap().unwrap();
    backend.close().unwrap();
    let refused = open(&media(&sims)).unwrap_err();
    assert!(matches!(refused, ArrayError::Map { device: 1 }), "{refused}");
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
    assert_eq!(spaces_on(&sim), 1);
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

/// An opening that ends between two devices leaves them a generation apart, and the next one evens them out; what was there before all of them is known for older still.
#[test]
fn openings_that_are_cut_off_leave_a_generation_between_devices_at_most() {
    let mut cuts = 0;
    for failing in 0..3 {
        for after in 0..12 {
            let sims = three();
            let older = copied(&sims[2]);
            // Two in a row, at different devices.
            let mut left = sims;
            for device in [failing, (failing + after as usize) % 3] {
                left[device].fail_persists(Fault { after, sticky: true, refusal: Refusal::Io });
                cuts += u64::from(open(&media(&left)).map(drop).is_err());
                left = left.iter().map(|sim| CrashSim::from_image(&sim.process_kill())).collect();
            }
            has_all(&left);
            let refused = open(&media(&[left[0].clone(), left[1].clone(), older])).unwrap_err();
            assert!(matches!(refused, ArrayError::Stale { device: 3, .. }), "{refused}");
            has_all(&left);
        }
    }
    assert!(cuts > 20, "{cuts}");
}

/// An array whose maps are in the format before this one is opened, with all that it had, and changes from then on.
#[test]
fn an_array_of_the_format_before_is_opened() {
    let sims = three();
    let backend = open(&media(&sims)).unwrap();
    for number in 0..3u16 {
        let mut bytes = ArrayMap { device: number, ..map_of(&backend) }.encode();
        bytes.truncate(44 + 2 * map::SHARDS);
        bytes[4] = 1;
        // Without the bits that say who is of the array.
        (0..3).for_each(|n| bytes[44 + 2 * n + 1] = 0);
        let crc = hedgerow_device::crc32c(0, &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        let store = |device: &mut array_device::ArrayDevice| device.store_own(b"map", bytes);
        backend.array.layout.read().with(usize::from(number), store).unwrap().unwrap();
    }
    drop(backend);
    has_all(&sims);
    let backend = open(&media(&sims)).unwrap();
    backend.remove_device(1).unwrap().run().unwrap();
    backend.close().unwrap();
    has_all(&[sims[0].clone(), sims[2].clone()]);
}
