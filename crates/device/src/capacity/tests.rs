//! The capacity tier on a file system and simulated: the same calls, the same answers; and what crashes and faults leave.
#![allow(unsafe_code)]

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use super::ring::injected::{self, Injected};
use super::*;
use crate::error::DeviceError;
use crate::file::cached_pages;
use crate::{CrashModel, Fault, FileCall, Image, Random, Refusal, Survivors, SyncOf, TierBytes};

/// A directory of this test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("hedgerow-capacity-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Scratch(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sim() -> CrashSim {
    CrashSim::new(CrashModel::Pages, 8 << 20)
}

fn on_each_medium(test: impl Fn(&CapacityTier)) {
    let scratch = Scratch::new();
    test(&CapacityTier::open(&scratch.0).unwrap());
    test(&CapacityTier::simulated(&sim()));
}

fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::from_seed(seed);
    (0..len).map(|_| random.below(256) as u8).collect()
}

fn write(tier: &CapacityTier, name: &str, bytes: &[u8]) -> Result<CapacityFile> {
    let mut file = tier.create(name, WritePath::PastPageCache)?;
    file.append(bytes)?;
    file.finish()
}

#[test]
fn what_was_appended_is_read_again() {
    on_each_medium(|tier| {
        let bytes = random_bytes(1, 3 * STEP_BYTES + 4321);
        let mut file = tier.create("one", WritePath::PastPageCache).unwrap();
        let (mut rest, mut random) = (&bytes[..], Random::from_seed(2));
        while !rest.is_empty() {
            let (now, later) = rest.split_at((random.below(200_000) as usize).min(rest.len()));
            file.append(now).unwrap();
            rest = later;
            assert_eq!(file.bytes() as usize, bytes.len() - rest.len());
        }
        let file = file.finish().unwrap();
        let whole = bytes.len().next_multiple_of(CAPACITY_PAGE_BYTES);
        assert_eq!(file.bytes().unwrap() as usize, whole);
        let mut read = vec![1; whole];
        file.read_at(0, &mut read).unwrap();
        assert_eq!(read[..bytes.len()], bytes);
        assert!(read[bytes.len()..].iter().all(|&byte| byte == 0));
        let places = [(4094, 5), (STEP_BYTES - 3, 9000), (whole - 1, 2), (7, 0)];
        let reads = places.map(|(offset, bytes)| FileRead {
            file: &file,
            offset: offset as u64,
            bytes,
            past_cache: false,
        });
        let answers = read_many(&reads);
        for ((offset, len), answer) in places.into_iter().zip(answers) {
            match answer {
                Ok(read) => assert_eq!(read, bytes[offset..offset + len]),
                Err(error) => assert!(offset + len > whole, "{error}"),
            }
        }
        assert!(matches!(file.read_at(whole as u64 - 1, &mut [0; 2]), Err(DeviceError::Io { .. })));
    });
}

/// What became of each read, in the order of `reads`; each is answered once.
fn read_many(reads: &[FileRead<'_>]) -> Vec<Result<Vec<u8>>> {
    let mut answers: Vec<_> = reads.iter().map(|_| None).collect();
    CapacityFile::read_many(reads, |number, answer| {
        let bytes = reads[number].bytes;
        let before = answers[number].replace(answer.map(|read| read.as_slice()[..bytes].to_vec()));
        assert!(before.is_none(), "read {number} is answered twice");
    });
    answers.into_iter().map(|answer| answer.expect("each is answered")).collect()
}

#[test]
fn what_is_in_memory_is_read_without_waiting() {
    let bytes = random_bytes(1, 5 * CAPACITY_PAGE_BYTES);
    on_each_medium(|tier| {
        let file = write(tier, "a", &bytes).unwrap();
        let (mut read, mut now) = (vec![0; 9000], vec![0; 9000]);
        if file.read_at_hand(77, &mut now).unwrap() {
            assert_eq!(now, bytes[77..9077], "the device was quick");
        }
        file.read_at(77, &mut read).unwrap();
        if file.read_at_hand(77, &mut now).unwrap() {
            assert_eq!((&read, &now[..]), (&now, &bytes[77..9077]));
            file.read_at(bytes.len() as u64 - 1, &mut [0]).unwrap();
            // The simulated disk says that this is the end; a kernel's answer may mean something else.
            match file.read_at_hand(bytes.len() as u64 - 1, &mut [0; 2]) {
                Ok(is_read) => assert!(!is_read),
                Err(error) => assert!(matches!(error, DeviceError::Io { .. }), "{error}"),
            }
        } else {
            let Opened::Directory(file) = &file.opened else { panic!("the simulated disk has it") };
            let refused = file.read_now(77, &mut now).unwrap_err().raw_os_error();
            assert_ne!(refused, Some(libc::EAGAIN), "what was read just now is in memory");
        }
    });
}

#[test]
fn a_simulated_disk_says_whether_files_are_in_memory() {
    let sim = sim();
    let file = write(&CapacityTier::simulated(&sim), "a", b"abc").unwrap();
    let mut read = [0; 3];
    sim.files_at_hand(false);
    assert!(!file.read_at_hand(0, &mut read).unwrap());
    file.read_at(0, &mut read).unwrap();
    assert!(!file.read_at_hand(0, &mut read).unwrap(), "nor does a read bring it there");
    sim.files_at_hand(true);
    assert!(file.read_at_hand(0, &mut read).unwrap() && read == *b"abc");
    sim.fail_file_calls(FileCall::Read, Fault { after: 0, sticky: false, refusal: Refusal::Io });
    assert!(matches!(file.read_at_hand(0, &mut read), Err(DeviceError::Io { .. })));
}

/// The kernel may have a part in memory, be interrupted, or know no such reads.
#[test]
fn a_read_at_hand_is_whole_or_none() {
    let bytes = random_bytes(2, 100);
    let read_by = |answers: &[io::Result<usize>]| {
        let mut answers = answers.iter();
        let mut into = vec![0; 100];
        let read = directory::read_exact_at_hand(1000, &mut into, |offset, into| {
            let from = offset as usize - 1000;
            assert_eq!(into.len(), 100 - from);
            match answers.next().expect("another read") {
                Ok(n) => {
                    into[..*n].copy_from_slice(&bytes[from..from + n]);
                    Ok(*n)
                }
                Err(error) => Err(io::Error::from_raw_os_error(error.raw_os_error().unwrap())),
            }
        });
        assert_eq!(answers.len(), 0, "it reads no more after that");
        read.map(|whole| whole.then_some(into)).map_err(|error| error.kind())
    };
    let no = |code| Err(io::Error::from_raw_os_error(code));
    assert_eq!(read_by(&[Ok(100)]), Ok(Some(bytes.clone())));
    assert_eq!(read_by(&[Ok(40), no(libc::EINTR), Ok(59), Ok(1)]), Ok(Some(bytes.clone())));
    assert_eq!(read_by(&[Ok(40), no(libc::EAGAIN)]), Ok(None));
    for refusal in [libc::EAGAIN, libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL] {
        assert_eq!(read_by(&[no(refusal)]), Ok(None));
    }
    assert_eq!(read_by(&[Ok(99), Ok(0)]), Ok(None), "the end, or a kernel that says so of what is not there");
    assert_eq!(read_by(&[Ok(1), no(libc::EACCES)]), Err(io::ErrorKind::PermissionDenied));
}

#[test]
fn pages_are_filled_and_nothing_makes_an_empty_file() {
    on_each_medium(|tier| {
        let mut file = tier.create("pages", WritePath::PastPageCache).unwrap();
        file.append(b"first").unwrap();
        file.fill_page().unwrap();
        file.fill_page().unwrap();
        assert_eq!(file.bytes() as usize, CAPACITY_PAGE_BYTES);
        file.append(&vec![7; STEP_BYTES - CAPACITY_PAGE_BYTES - 1]).unwrap();
        file.fill_page().unwrap();
        assert_eq!(file.bytes() as usize, STEP_BYTES);
        assert_eq!(file.finish().unwrap().bytes().unwrap() as usize, STEP_BYTES);
        assert_eq!(
            tier.create("empty", WritePath::PastPageCache).unwrap().finish().unwrap().bytes().unwrap(),
            0
        );
    });
}

#[test]
fn names_lead_to_files_until_they_are_removed() {
    on_each_medium(|tier| {
        let file = write(tier, "a", b"a").unwrap();
        write(tier, "b", b"b").unwrap();
        tier.sync_names().unwrap();
        let mut names = tier.names().unwrap();
        names.sort();
        assert_eq!(names, ["a", "b"]);
        assert!(
            matches!(tier.create("a", WritePath::PastPageCache), Err(DeviceError::Io { .. })),
            "there is one"
        );
        assert!(matches!(tier.create_allocated("a", 1), Err(DeviceError::Io { .. })), "there is one");
        tier.remove("a").unwrap();
        assert!(tier.remove("a").is_err() && tier.open_file("a").is_err());
        let mut byte = [0];
        file.read_at(0, &mut byte).unwrap();
        assert_eq!(&byte, b"a", "who has it open reads on");
        write(tier, "a", b"another").unwrap();
        file.read_at(0, &mut byte).unwrap();
        tier.open_file("a").unwrap().read_at(1, &mut byte).unwrap();
        assert_eq!(&byte, b"n");
        assert!(tier.free_bytes().is_none_or(|free| free > 0));
    });
}

#[test]
#[should_panic(expected = "no name of a file")]
fn a_name_does_not_lead_out_of_the_directory() {
    let _ = CapacityTier::simulated(&sim()).create("../up", WritePath::PastPageCache);
}

#[test]
fn an_allocated_file_is_written_anywhere() {
    on_each_medium(|tier| {
        let file = tier.create_allocated("fixed", 10_000).unwrap();
        file.write_at(9_990, b"the end").unwrap();
        file.sync().unwrap();
        drop(file);
        let file = tier.open_allocated("fixed").unwrap();
        let mut bytes = vec![1; 10_000];
        file.read_at(0, &mut bytes).unwrap();
        assert_eq!((file.bytes(), &bytes[9_989..9_998]), (10_000, &b"\0the end\0"[..]));
        assert!(bytes[..9_989].iter().all(|&byte| byte == 0));
    });
}

#[test]
#[should_panic(expected = "2 bytes at 3 of 4")]
fn an_allocated_file_is_not_written_beyond_its_end() {
    let _ = CapacityTier::simulated(&sim()).create_allocated("fixed", 4).unwrap().write_at(3, b"12");
}

#[test]
fn a_directory_is_open_once_for_writing_or_often_for_reading() {
    let scratch = Scratch::new();
    assert!(matches!(CapacityTier::open_read_only(&scratch.0), Err(DeviceError::Io { .. })));
    let tier = CapacityTier::open(&scratch.0).unwrap();
    let file = write(&tier, "a", b"a").unwrap();
    assert!(matches!(CapacityTier::open(&scratch.0), Err(DeviceError::Locked { .. })));
    assert!(matches!(CapacityTier::open_read_only(&scratch.0), Err(DeviceError::Locked { .. })));
    drop(tier);
    assert!(
        matches!(CapacityTier::open(&scratch.0), Err(DeviceError::Locked { .. })),
        "a file of it is open"
    );
    drop(file);
    let reader = CapacityTier::open_read_only(&scratch.0).unwrap();
    let _other = CapacityTier::open_read_only(&scratch.0).unwrap();
    assert!(matches!(CapacityTier::open(&scratch.0), Err(DeviceError::Locked { .. })));
    reader.open_file("a").unwrap().read_at(0, &mut [0]).unwrap();
    for refused in [
        reader.create("b", WritePath::PastPageCache).map(drop),
        reader.create_allocated("b", 1).map(drop),
        reader.open_allocated("a").map(drop),
        reader.remove("a"),
        reader.sync_names(),
    ] {
        assert!(matches!(refused, Err(DeviceError::ReadOnly { .. })));
    }
}

/// What other programs put there is none of ours.
#[test]
fn only_files_have_names() {
    let scratch = Scratch::new();
    let tier = CapacityTier::open(&scratch.0).unwrap();
    fs::create_dir(scratch.0.join("lost+found")).unwrap();
    write(&tier, "a", b"a").unwrap();
    assert_eq!(tier.names().unwrap(), ["a"]);
    fs::remove_dir_all(&scratch.0).unwrap();
    assert!(matches!(tier.names(), Err(DeviceError::Io { .. })), "gone is not empty");
}

/// Whatever the caller goes on with: what was lost in between would be missed by nobody.
#[test]
fn a_file_of_which_a_write_failed_is_never_finished() {
    for refusal in [Refusal::Io, Refusal::NoSpace] {
        let sim = sim();
        let tier = CapacityTier::simulated(&sim);
        let mut file = tier.create("a", WritePath::PastPageCache).unwrap();
        sim.fail_file_calls(FileCall::Write, Fault { after: 0, sticky: false, refusal });
        assert!(file.append(&[1; STEP_BYTES + 1]).is_err());
        assert!(matches!(file.append(&[2]), Err(DeviceError::Io { .. })));
        assert!(matches!(file.finish(), Err(DeviceError::Io { .. })));
    }
}

#[test]
fn a_file_that_could_not_be_allocated_is_not_in_the_way() {
    let sim = sim();
    sim.limit_disk(1 << 20);
    let tier = CapacityTier::simulated(&sim);
    assert!(matches!(tier.create_allocated("a", 2 << 20), Err(DeviceError::TargetFull { .. })));
    sim.fail_file_calls(FileCall::Sync, Fault { after: 0, sticky: false, refusal: Refusal::Io });
    assert!(matches!(tier.create_allocated("a", 1 << 19), Err(DeviceError::Io { .. })));
    let file = tier.create_allocated("a", 1 << 20).unwrap();
    file.write_at(0, b"no more of the disk is taken").unwrap();
    sim.limit_disk(0);
    file.write_at(0, b"nor here").unwrap();
}

/// As where direct writes are refused.
#[test]
fn a_file_is_written_through_the_page_cache_where_it_must_be() {
    let scratch = Scratch::new();
    let tier = CapacityTier::open(&scratch.0).unwrap();
    let bytes = random_bytes(3, STEP_BYTES + 5000);
    let mut file = tier.create("buffered", WritePath::PastPageCache).unwrap();
    let Target::Directory(writer) = &mut file.target else { panic!("on a file system") };
    writer.writer().make_buffered().unwrap();
    file.append(&bytes).unwrap();
    let mut read = vec![0; bytes.len()];
    file.finish().unwrap().read_at(0, &mut read).unwrap();
    assert_eq!(read, bytes);
}

/// What each kind of crash leaves at each place of the log.
fn images(sim: &CrashSim) -> Vec<Image> {
    let mut walk = sim.walk();
    let mut images = Vec::new();
    loop {
        images.extend(walk.images(&Survivors::EACH, 1));
        images.extend((0..20).map(|seed| walk.image(Survivors::Random, seed)));
        if !walk.next_op() {
            return images;
        }
    }
}

#[test]
fn a_power_cut_takes_what_was_not_synced_and_no_more() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let bytes = [random_bytes(4, 3 * CAPACITY_PAGE_BYTES), random_bytes(5, 2 * CAPACITY_PAGE_BYTES)];
    let mut marks = Vec::new();
    for (name, bytes) in ["a", "b"].iter().zip(&bytes) {
        write(&tier, name, bytes).unwrap();
        let synced = sim.ops();
        tier.sync_names().unwrap();
        marks.push((synced, sim.ops()));
    }
    tier.remove("a").unwrap();
    let (mut partial, mut lengths) = (0, 0);
    for image in images(&sim) {
        for ((name, bytes), (synced, named)) in ["a", "b"].iter().zip(&bytes).zip(&marks) {
            let left = image.read_file(name);
            if image.op_index >= *named && !(*name == "a" && image.op_index == sim.ops()) {
                assert_eq!(left.as_ref(), Some(bytes), "{name} at {}", image.op_index);
            } else if image.op_index >= *synced {
                assert!(left.is_none_or(|left| left == *bytes), "{name} is whole where its name is");
            } else if let Some(left) = left {
                lengths += u32::from(left.len() != bytes.len());
                partial += u32::from(left.len() == bytes.len() && left != *bytes);
            }
        }
    }
    assert!(partial > 0 && lengths > 0, "no crash fell into a file: {partial}, {lengths}");
    let left = |kind| {
        let mut walk = sim.walk();
        walk.seek(u64::MAX);
        walk.image(kind, 0).file_names()
    };
    assert_eq!((left(Survivors::None).len(), left(Survivors::All)), (2, vec!["b".to_owned()]));
}

/// The order of two syncs holds between the two tiers: what the second covers is never there without what the first does.
#[test]
fn one_crash_cuts_both_tiers_at_one_moment() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let fast = crate::FastTier::simulated(&sim);
    fast.grow(4096).unwrap();
    // SAFETY: this thread alone uses the tier, and holds no slice of it.
    let fast = unsafe { TierBytes::new(Arc::new(fast)) }.unwrap();
    write(&tier, "rows", b"rows").unwrap();
    tier.sync_names().unwrap();
    fast.write(0, 8, |place| place.copy_from_slice(b"the root"));
    fast.persist(0, 8).unwrap();
    tier.remove("rows").unwrap();
    let (mut with, mut without) = (0, 0);
    for image in images(&sim) {
        let has_root = image.read(0, 8) == b"the root";
        let has_rows = image.read_file("rows").is_some_and(|bytes| bytes.starts_with(b"rows"));
        if has_root && image.op_index < sim.ops() {
            assert!(has_rows, "the root without its rows at {}", image.op_index);
            with += 1;
        }
        without += u32::from(has_rows && !has_root);
    }
    assert!(with > 0 && without > 0, "{with}, {without}");
}

#[test]
fn a_killed_process_leaves_all_and_the_next_syncs_it() {
    let sim = sim();
    let mut file = CapacityTier::simulated(&sim).create("a", WritePath::PastPageCache).unwrap();
    file.append(&[1; STEP_BYTES]).unwrap();
    drop(file);
    let next = CrashSim::from_image(&sim.process_kill());
    let tier = CapacityTier::simulated(&next);
    assert_eq!(tier.open_file("a").unwrap().bytes().unwrap() as usize, STEP_BYTES);
    let cut = |sim: &CrashSim| {
        let mut walk = sim.walk();
        walk.seek(u64::MAX);
        CrashSim::from_image(&walk.image(Survivors::None, 0))
    };
    assert!(CapacityTier::simulated(&cut(&next)).names().unwrap().is_empty(), "the name is not durable");
    tier.sync_names().unwrap();
    let after = CapacityTier::simulated(&cut(&next));
    assert_eq!(after.open_file("a").unwrap().bytes().unwrap(), 0, "nor are the bytes");
    let file = after.create_allocated("b", 100).unwrap();
    file.write_at(0, b"b").unwrap();
    file.sync().unwrap();
    after.sync_names().unwrap();
}

#[test]
fn each_call_can_be_refused_once_or_for_good() {
    for refusal in [Refusal::Io, Refusal::NoSpace] {
        for call in [
            FileCall::Create,
            FileCall::Write,
            FileCall::Sync,
            FileCall::SyncNames,
            FileCall::Remove,
            FileCall::Read,
        ] {
            let sim = sim();
            let tier = CapacityTier::simulated(&sim);
            write(&tier, "there", b"there").unwrap();
            let calls = || {
                let mut file = tier.create("new", WritePath::PastPageCache)?;
                let written = file.append(&[1; STEP_BYTES]);
                let synced = file.finish().map(drop);
                let read = tier.open_file("there").and_then(|file| file.read_at(0, &mut [0; 5]));
                [written, synced, tier.sync_names(), tier.remove("new"), read]
                    .into_iter()
                    .collect::<Result<()>>()
            };
            for sticky in [false, true] {
                sim.fail_file_calls(call, Fault { after: 0, sticky, refusal });
                let is_full = matches!(calls(), Err(DeviceError::TargetFull { .. }));
                let takes_space = !matches!(call, FileCall::Read | FileCall::Remove);
                assert_eq!(is_full, takes_space && refusal == Refusal::NoSpace, "{call:?}");
                assert_eq!(
                    calls().is_err(),
                    sticky || call == FileCall::Remove,
                    "{call:?}: what was left has the name"
                );
                sim.clear_faults();
                let _ = tier.remove("new");
                calls().unwrap();
            }
        }
    }
}

#[test]
fn files_and_the_fast_tier_share_the_disk() {
    let sim = sim();
    sim.limit_disk(3 << 20);
    let tier = CapacityTier::simulated(&sim);
    let fast = crate::FastTier::simulated(&sim);
    fast.grow(1 << 20).unwrap();
    write(&tier, "a", &[1; 1 << 20]).unwrap();
    assert_eq!(tier.free_bytes(), Some(1 << 20));
    assert!(matches!(write(&tier, "b", &[1; 3 << 19]), Err(DeviceError::TargetFull { .. })));
    tier.remove("b").unwrap();
    assert!(matches!(fast.grow(5 << 19), Err(DeviceError::Full { .. })));
    tier.remove("a").unwrap();
    fast.grow(3 << 20).unwrap();
}

#[test]
fn a_sync_that_lies_is_seen_by_a_power_cut() {
    for (lie, left) in [
        ((|of| of == SyncOf::File("a")) as fn(SyncOf<'_>) -> bool, Some(0)),
        (|of| of == SyncOf::Names, None),
        (|_| false, Some(CAPACITY_PAGE_BYTES)),
    ] {
        let sim = sim();
        sim.lie_about_file_syncs(Some(lie));
        let tier = CapacityTier::simulated(&sim);
        write(&tier, "a", b"a").unwrap();
        tier.sync_names().unwrap();
        let mut walk = sim.walk();
        walk.seek(u64::MAX);
        assert_eq!(walk.image(Survivors::None, 0).read_file("a").map(|bytes| bytes.len()), left);
    }
}

#[test]
fn a_failed_sync_leaves_pages_that_no_later_one_writes() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let file = tier.create_allocated("a", 8192).unwrap();
    tier.sync_names().unwrap();
    file.write_at(0, b"lost").unwrap();
    sim.fail_file_calls(FileCall::Sync, Fault { after: 0, sticky: false, refusal: Refusal::Io });
    assert!(file.sync().is_err());
    file.write_at(4096, b"kept").unwrap();
    file.sync().unwrap();
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let left = walk.image(Survivors::None, 0).read_file("a").unwrap();
    assert_eq!((&left[..4], &left[4096..4100]), (&[0; 4][..], &b"kept"[..]));
}

#[test]
fn a_decayed_byte_is_seen_at_once_and_after_a_crash() {
    let sim = sim();
    let tier = CapacityTier::simulated(&sim);
    let file = write(&tier, "a", b"abc").unwrap();
    tier.sync_names().unwrap();
    sim.corrupt_file("a", 1, 0x20);
    sim.corrupt_file("a", 1 << 20, 1);
    sim.corrupt_file("b", 0, 1);
    let mut bytes = [0; 3];
    file.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"aBc");
    let mut image = sim.process_kill();
    let before = image.fingerprint();
    assert_eq!(&image.read_file("a").unwrap()[..3], b"aBc");
    image.corrupt_file("a", 0, 0x20);
    assert_ne!(image.fingerprint(), before);
    CapacityTier::simulated(&CrashSim::from_image(&image))
        .open_file("a")
        .unwrap()
        .read_at(0, &mut bytes)
        .unwrap();
    assert_eq!(&bytes, b"ABc");
}

/// A file on a file system of so many pages, and its bytes; and some reads of it.
fn many_reads() -> (Scratch, CapacityFile, Vec<u8>, Vec<(u64, usize)>) {
    let scratch = Scratch::new();
    let tier = CapacityTier::open(&scratch.0).unwrap();
    let bytes = random_bytes(9, 400 * CAPACITY_PAGE_BYTES);
    let file = write(&tier, "many", &bytes).unwrap();
    let mut random = Random::from_seed(4);
    let place = |_| (random.below(bytes.len() as u64 - 20_000), 1 + random.below(20_000) as usize);
    let places = (0..300).map(place).collect();
    (scratch, file, bytes, places)
}

fn check_many(file: &CapacityFile, bytes: &[u8], places: &[(u64, usize)]) {
    let read = |&(offset, bytes)| FileRead { file, offset, bytes, past_cache: false };
    let answers = read_many(&places.iter().map(read).collect::<Vec<_>>());
    for (&(offset, len), answer) in places.iter().zip(answers) {
        assert!(answer.unwrap() == bytes[offset as usize..][..len], "{len} bytes at {offset}");
    }
}

#[test]
fn many_reads_answer_as_one_by_one_with_a_ring_and_without() {
    let (_scratch, file, bytes, places) = many_reads();
    injected::set(Injected::default());
    for _ in 0..3 {
        check_many(&file, &bytes, &places);
    }
    let by_ring = injected::set(Injected { no_rings: true, ..Injected::default() }).answered;
    assert!(by_ring == 3 * places.len() || by_ring == 0, "{by_ring} by a ring, if there are any here");
    check_many(&file, &bytes, &places);
    assert_eq!(injected::set(Injected::default()).answered, 0);
    // Files of both kinds in one call, and one that ends too soon.
    let simulated = write(&CapacityTier::simulated(&sim()), "a", &bytes[..5000]).unwrap();
    let read = |file, offset, bytes| FileRead { file, offset, bytes, past_cache: false };
    let answers = read_many(&[
        read(&file, 100, 50),
        read(&simulated, 90, 4000),
        read(&file, bytes.len() as u64 - 10, 11),
        read(&file, 300, 13),
        read(&simulated, 8000, 4000),
    ]);
    let answers: Vec<Option<Vec<u8>>> = answers.into_iter().map(Result::ok).collect();
    let expected = [Some(100..150), Some(90..4090), None, Some(300..313), None];
    assert_eq!(answers, expected.map(|range| range.map(|range| bytes[range].to_vec())));
}

/// Reads past the page cache answer alike, by a ring and without, and leave nothing in the page cache; what that has is taken from there.
#[test]
fn reads_past_the_page_cache_answer_alike_and_leave_nothing_there() {
    let (_scratch, file, bytes, _) = many_reads();
    let pages = (bytes.len() / CAPACITY_PAGE_BYTES) as u64;
    let read = |page: u64, count: usize, past_cache| FileRead {
        file: &file,
        offset: page * CAPACITY_PAGE_BYTES as u64,
        bytes: count * CAPACITY_PAGE_BYTES,
        past_cache,
    };
    let check = |reads: &[FileRead<'_>]| {
        for (read, answer) in reads.iter().zip(read_many(reads)) {
            assert!(answer.unwrap() == bytes[read.offset as usize..][..read.bytes], "at {}", read.offset);
        }
    };
    for no_rings in [false, true] {
        injected::set(Injected { no_rings, ..Injected::default() });
        check(&(0..pages - 2).step_by(3).map(|page| read(page, 2, true)).collect::<Vec<_>>());
        check(&[read(1, 1, true)]);
        // None of these is of whole pages.
        let odd = |offset, len| FileRead { offset, bytes: len, ..read(0, 1, true) };
        check(&[odd(1, 4096), odd(4096, 10), odd(8192, 4097)]);
    }
    injected::set(Injected::default());
    // Not by a read that may not wait: it asks the device, and a fast one may have answered before that looks.
    let opened = fs::File::open(file.path()).unwrap();
    let cached = || cached_pages(&opened, 300 * 4096, 2 * 4096).map(|(cached, _)| cached);
    if let Some(pages) = cached() {
        assert_eq!(pages, 0, "they were read past the page cache alone");
        check(&[read(300, 1, false), read(301, 1, false)]);
        assert_eq!(cached(), Some(2), "they were read through it");
    }
}

/// A file that was brought into the page cache is there, and is not read again; one may be stopped on the way.
#[test]
fn a_file_is_brought_into_memory_once() {
    let scratch = Scratch::new();
    let tier = CapacityTier::open(&scratch.0).unwrap();
    let bytes = random_bytes(9, (5 << 20) + 3 * CAPACITY_PAGE_BYTES);
    let file = write(&tier, "many", &bytes).unwrap();
    let opened = fs::File::open(file.path()).unwrap();
    let cached = || cached_pages(&opened, 0, bytes.len() as u64).map(|(cached, _)| cached);
    let pages = (bytes.len() / CAPACITY_PAGE_BYTES) as u64;
    let was_cached = cached();
    let mut steps = std::iter::repeat_n(true, 2).chain([false]);
    let steps = std::cell::RefCell::new(&mut steps);
    let some = file.bring(|| steps.borrow_mut().next().unwrap()).unwrap();
    let rest = file.bring(|| true).unwrap();
    if was_cached == Some(0) {
        assert_eq!(some, 512 << 10);
        assert_eq!((some + rest, cached()), (bytes.len() as u64, Some(pages)));
        assert_eq!(file.bring(|| true).unwrap(), 0);
    }
    let simulated = write(&CapacityTier::simulated(&sim()), "a", &bytes[..5000]).unwrap();
    assert_eq!(simulated.bring(|| true).unwrap(), 0);
}

/// What is written through the page cache is there at once, and is the same on the device; what is written past it is not.
#[test]
fn a_file_that_is_written_through_the_page_cache_stays_there() {
    let scratch = Scratch::new();
    let tier = CapacityTier::open(&scratch.0).unwrap();
    let bytes = random_bytes(11, 2 * STEP_BYTES + 3 * CAPACITY_PAGE_BYTES);
    for (path, name) in [(WritePath::PastPageCache, "past"), (WritePath::ThroughPageCache, "through")] {
        let mut file = tier.create(name, path).unwrap();
        file.append(&bytes).unwrap();
        let file = file.finish().unwrap();
        let opened = fs::File::open(file.path()).unwrap();
        // On a file system in memory both are there.
        let cached = cached_pages(&opened, 0, bytes.len() as u64).map(|(cached, _)| cached);
        let pages = (bytes.len() / CAPACITY_PAGE_BYTES) as u64;
        if path == WritePath::ThroughPageCache {
            assert!(cached.is_none_or(|cached| cached == pages), "{cached:?}");
            let unwritten = cached_pages(&opened, 0, bytes.len() as u64).map(|(_, unwritten)| unwritten);
            assert!(unwritten.is_none_or(|unwritten| unwritten == 0), "they are on the device as well");
        }
        let mut read = vec![0; bytes.len()];
        file.read_at(0, &mut read).unwrap();
        assert!(read == bytes);
    }
}

/// Answers that are errors or short, and calls of which the kernel takes a part or nothing, each at each place.
#[test]
fn what_a_ring_refuses_is_read_without_it() {
    let (_scratch, file, bytes, places) = many_reads();
    let places = &places[..150];
    for cut in [0, 1, 511] {
        for at in (0..150).step_by(7) {
            let answers = (0..150).map(|n| (n >= at && n % 3 == 0).then_some(cut)).collect();
            injected::set(Injected { answers, ..Injected::default() });
            check_many(&file, &bytes, places);
        }
    }
    let refusals = [Err(libc::EAGAIN), Err(libc::EBUSY), Ok(1), Ok(0)];
    for (first, second) in refusals.iter().flat_map(|first| refusals.map(|second| (*first, second))) {
        for at in 0..6 {
            let submits = (0..at).map(|_| None).chain([Some(first), Some(second), Some(Ok(2))]).collect();
            injected::set(Injected { submits, ..Injected::default() });
            check_many(&file, &bytes, places);
        }
    }
    injected::set(Injected::default());
    check_many(&file, &bytes, places);
}

/// Reads of which some are known only once others were answered.
struct InTurn<'t> {
    file: &'t CapacityFile,
    bytes: &'t [u8],
    places: &'t [(u64, usize)],
    /// How many are known before any was answered; then one more with each answer.
    known: usize,
    begun: usize,
    answered: Vec<usize>,
    /// Of those that were answered so many were looked at meanwhile; no more are begun than this beyond them.
    looked_at: usize,
    window: usize,
}

impl ReadsInTurn for InTurn<'_> {
    fn next(&mut self) -> Option<(usize, FileRead<'_>)> {
        let number = self.begun;
        let end = self.known.min(self.looked_at.saturating_add(self.window));
        let &(offset, bytes) = self.places[..end].get(number)?;
        self.begun += 1;
        Some((number, FileRead { file: self.file, offset, bytes, past_cache: false }))
    }

    fn done(&mut self, number: usize, answer: Result<OwnedBytes>) {
        let (offset, len) = self.places[number];
        assert!(answer.unwrap().as_slice()[..len] == self.bytes[offset as usize..][..len]);
        self.known = (self.known + 1).min(self.places.len());
        self.answered.push(number);
    }

    fn meanwhile(&mut self) -> bool {
        let is_any = self.looked_at < self.answered.len();
        self.looked_at += usize::from(is_any);
        is_any
    }
}

/// With a ring, without, and with one that fails at each of its calls.
#[test]
fn a_read_may_come_about_once_another_was_answered() {
    let (_scratch, file, bytes, places) = many_reads();
    let rings = (0..12).map(|at| {
        let submits = (0..at).map(|_| None).chain([Some(Err(libc::EBUSY))]).collect();
        Injected { submits, ..Injected::default() }
    });
    let all = [Injected::default(), Injected { no_rings: true, ..Injected::default() }].into_iter();
    for injected in all.chain(rings) {
        injected::set(injected);
        for known in [1, 2, 7, 8, 9, 63, 64, 65, 150] {
            for window in [1, 2, 40, usize::MAX] {
                let (begun, answered, looked_at) = (0, Vec::new(), 0);
                let places = &places[..150];
                let mut reads =
                    InTurn { file: &file, bytes: &bytes, places, known, begun, answered, looked_at, window };
                CapacityFile::read_in_turn(&mut reads);
                reads.answered.sort_unstable();
                assert!(reads.answered.iter().copied().eq(0..150), "with {known}: {:?}", reads.answered);
                assert_eq!(reads.looked_at, 150);
            }
        }
    }
    injected::set(Injected::default());
}

/// Whoever is told of a read may panic, or read many itself: what is under way is waited for, and the next call is as ever.
#[test]
fn a_caller_may_panic_or_read_meanwhile() {
    let (_scratch, file, bytes, places) = many_reads();
    let reads: Vec<FileRead<'_>> = places
        .iter()
        .map(|&(offset, bytes)| FileRead { file: &file, offset, bytes, past_cache: false })
        .collect();
    for panics_at in [0, 1, 63, 64, 200] {
        let mut answered = 0;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            CapacityFile::read_many(&reads, |_, answer| {
                assert_ne!(answered, panics_at, "as it is told");
                answered += 1;
                answer.unwrap();
            });
        }));
        assert!(panicked.is_err());
        check_many(&file, &bytes, &places);
    }
    let mut answered = 0;
    CapacityFile::read_many(&reads[..70], |number, answer| {
        if number % 20 == 0 {
            check_many(&file, &bytes, &places[..80]);
        }
        let (offset, len) = places[number];
        assert!(answer.unwrap().as_slice()[..len] == bytes[offset as usize..][..len]);
        answered += 1;
    });
    assert_eq!(answered, 70);
}

#[test]
fn a_process_with_a_directory_open_may_open_many_files() {
    let limit_now = || {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: fills what it is given.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
        limit
    };
    let limit = libc::rlimit { rlim_cur: limit_now().rlim_max - 1, ..limit_now() };
    // SAFETY: reads what it is given.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let scratch = Scratch::new();
    let _tier = CapacityTier::open(&scratch.0).unwrap();
    assert_eq!(limit_now().rlim_cur, limit.rlim_max);
}
