//! Edits in two copies: their bytes, every cut, every fault, either copy rotten.

use hedgerow_device::{CrashModel, CrashSim, Fault, FileCall, Image, Random, Refusal, Survivors, SyncOf};

use super::*;
use crate::ErrorKind;

const STORE: u128 = 0x5_7012_3456_789a_bcde;
const PAIR: (u128, u64) = (STORE, 3);

fn sim() -> CrashSim {
    CrashSim::new(CrashModel::Pages, 1 << 20)
}

fn tier(sim: &CrashSim) -> CapacityTier {
    CapacityTier::simulated(sim)
}

fn range(number: u64, least: &[u8], greatest: &[u8]) -> FileRange {
    FileRange { number, keys: [least.into(), greatest.into()] }
}

/// The `n`-th edit of the tests: each adds a run, some take an older one away, and some say what was taken off a file.
fn edit(n: u64) -> Vec<SstChange> {
    let mut ops = vec![
        SstChange::Next { number: n + 1, run: n + 1 },
        SstChange::Add { run: n, range: range(n, b"\0\0\0\x01a", &vec![b'z'; 1 + n as usize * 37 % 900]) },
    ];
    if n % 3 == 2 {
        ops.push(SstChange::Remove { run: n - 1, number: n - 1 });
    }
    if n % 4 == 1 {
        ops.push(SstChange::Taken(TakenRecords { number: n, table: 1, rows: 7, deltas: n }));
    }
    ops.push(SstChange::Watermark { sequence: 100 * n });
    ops
}

/// The versions after 0, 1, 2, ... edits.
fn versions(edits: u64) -> Vec<SstVersion> {
    let mut versions = vec![SstVersion::default()];
    (0..edits).for_each(|n| versions.push(versions[n as usize].after(&edit(n)).unwrap()));
    versions
}

#[test]
fn golden_bytes() {
    let sim = sim();
    let mut manifest = SstManifest::create(&tier(&sim), PAIR, SstVersion::default()).unwrap();
    let ops = [
        SstChange::Next { number: 2, run: 1 },
        SstChange::Add { run: 0, range: range(1, b"\0\0\0\x07ada", b"\0\0\0\x07bob") },
        SstChange::Watermark { sequence: 1000 },
    ];
    manifest.append(&ops).unwrap();
    manifest.append(&[SstChange::Remove { run: 0, number: 1 }]).unwrap();
    let image = sim.process_kill();
    let [a, b] = pair_names(3).map(|name| image.read_file(&name).unwrap());
    assert_eq!((a.len(), &pair_names(3)[0][..]), (256 << 10, "manifest-00000003.a"));
    assert!(a == b, "the copies are the same");
    let hex =
        |from: usize, to: usize| a[from..to].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(
        hex(0, 40),
        "4844474d414e4931debc9a785634127005000000000000000300000000000000221396dd00000000"
    );
    assert_eq!(
        hex(4096, 4096 + 133),
        concat!(
            "1a000000a37c3bd503000000000000000000000000000000000400000000000000004100000042032de60302",
            "0000000000000001000000000000000100000000000000000100000000000000070000000000000761646107",
            "00000000000007626f6204e803000000000000110000002b7089df0200000000000000000100000000000000",
            "00",
        )
    );
    assert!(a[40..4096].iter().chain(&a[4096 + 133..]).all(|&byte| byte == 0));
}

/// What merges took off files that count on: operation 6, the file, the table, rows, deltas.
#[test]
fn golden_bytes_of_taken_records() {
    let taken = SstChange::Taken(TakenRecords { number: 9, table: 7, rows: 0x0102, deltas: 3 });
    let mut bytes = Vec::new();
    put_op(&taken, &mut bytes);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "060900000000000000070000000000000002010000000000000300000000000000");
}

/// A copy of a store: who wrote its files, in bytes of its own; and what is written elsewhere is what would have been made here.
#[test]
fn golden_bytes_of_origins() {
    let origin = FileOrigin { before: 2, store: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10 };
    let ops = [SstChange::Next { number: 2, run: 1 }, SstChange::Origin(origin)];
    let version = SstVersion::default().after(&ops).unwrap();
    let bytes = encode_copy(PAIR, &version);
    let hex: String = bytes[4096..4096 + 59].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        concat!(
            "33000000da2c3616030200000000000000010000000000000004000000000000000005020000000000000010",
            "0f0e0d0c0b0a090807060504030201",
        )
    );
    let sim = sim();
    let manifest = SstManifest::create(&tier(&sim), PAIR, version.clone()).unwrap();
    assert_eq!(manifest.version().origins(), [origin]);
    let image = sim.process_kill();
    pair_names(3).iter().for_each(|name| assert!(image.read_file(name).unwrap() == bytes));
    assert_eq!(SstManifest::read(&tier(&sim), PAIR).unwrap(), version);
}

#[test]
fn edits_are_there_when_it_is_opened_again() {
    let sim = sim();
    let versions = versions(60);
    let mut manifest = SstManifest::create(&tier(&sim), PAIR, SstVersion::default()).unwrap();
    for n in 0..60 {
        if n % 7 == 0 {
            manifest = SstManifest::open(&tier(&sim), PAIR).unwrap();
        }
        manifest.append(&edit(n)).unwrap();
        assert_eq!(SstManifest::read(&tier(&sim), PAIR).unwrap(), versions[n as usize + 1]);
        let refused = manifest.append(&[SstChange::Remove { run: 99, number: 99 }]).unwrap_err();
        assert_eq!((refused.kind(), manifest.version()), (ErrorKind::Corrupted, &versions[n as usize + 1]));
    }
    let next = SstManifest::create(&tier(&sim), (STORE, 4), versions[60].clone()).unwrap();
    assert_eq!(next.version(), &versions[60]);
    SstManifest::remove(&tier(&sim), 3).unwrap();
    SstManifest::remove(&tier(&sim), 3).unwrap();
    assert_eq!(SstManifest::read(&tier(&sim), (STORE, 4)).unwrap(), versions[60]);
    for (pair, said) in [((STORE, 3), "neither copy"), ((STORE + 1, 4), "another store")] {
        let error = SstManifest::open(&tier(&sim), pair).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupted && error.to_string().contains(said), "{error}");
    }
}

#[test]
fn a_pair_that_is_used_up_says_so() {
    let sim = sim();
    let mut manifest = SstManifest::create(&tier(&sim), PAIR, SstVersion::default()).unwrap();
    let mut n = 0;
    while manifest.has_room(&edit(n)) {
        manifest.append(&edit(n)).unwrap();
        n += 1;
    }
    let before = manifest.version().clone();
    assert_eq!(manifest.append(&edit(n)).unwrap_err().kind(), ErrorKind::Full);
    manifest.append(&[SstChange::Watermark { sequence: 1 << 40 }]).unwrap();
    let mut next = SstManifest::create(&tier(&sim), (STORE, 4), before).unwrap();
    next.append(&edit(n)).unwrap();
    assert!(n > 300 && next.has_room(&edit(n + 1)));
}

/// Writes edits, and notes after how many operations of the medium each was acknowledged.
fn script(sim: &CrashSim, edits: u64) -> Vec<u64> {
    let mut manifest = SstManifest::create(&tier(sim), PAIR, SstVersion::default()).unwrap();
    let mut acknowledged = vec![sim.ops()];
    for n in 0..edits {
        if n == edits / 2 {
            manifest = SstManifest::open(&tier(sim), PAIR).unwrap();
        }
        manifest.append(&edit(n)).unwrap();
        acknowledged.push(sim.ops());
    }
    acknowledged
}

/// What is wrong with what a crash left, if anything is.
fn wrong_with(image: &Image, versions: &[SstVersion], acknowledged: usize) -> Option<String> {
    let sim = CrashSim::from_image(image);
    let read = match SstManifest::read(&tier(&sim), PAIR) {
        Ok(version) => version,
        Err(error) => return Some(error.to_string()),
    };
    let Some(found) = versions.iter().position(|version| *version == read) else {
        return Some("a version that never was".to_owned());
    };
    if found < acknowledged || found > acknowledged + 1 {
        return Some(format!("{found} edits of {acknowledged}"));
    }
    let mut opened = SstManifest::open(&tier(&sim), PAIR).unwrap();
    assert_eq!(opened.version(), &read);
    if found < versions.len() - 1 {
        opened.append(&edit(found as u64)).unwrap();
        assert_eq!(SstManifest::read(&tier(&sim), PAIR).unwrap(), versions[found + 1]);
    }
    // What was opened is durable, though the next cut comes at once.
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let left = CrashSim::from_image(&walk.image(Survivors::None, 0));
    let again = SstManifest::read(&tier(&left), PAIR).unwrap();
    assert_eq!(again, *opened.version());
    None
}

/// The images after each operation, each also with either copy spoilt where its last edit may be, checked until one is wrong.
fn sweep(sim: &CrashSim, acknowledged: &[u64], versions: &[SstVersion]) -> Option<String> {
    let mut walk = sim.walk();
    walk.seek(acknowledged[0]);
    let mut random = Random::from_seed(9);
    loop {
        let done = acknowledged.iter().rposition(|&at| at <= walk.op_index())?;
        let is_between = acknowledged[done] < walk.op_index();
        let kinds = Survivors::EACH.into_iter().chain([Survivors::Random; 4]);
        for (seed, kind) in kinds.enumerate() {
            let mut image = walk.image(kind, seed as u64);
            let wrong = wrong_with(&image, versions, done);
            if wrong.is_some() {
                return wrong;
            }
            // One copy may rot, at rest: then the other has all that was acknowledged.
            if !is_between {
                let name = &pair_names(3)[random.below(2) as usize];
                (0..200).for_each(|_| image.corrupt_file(name, EDITS_START + random.below(6000), 0xff));
                let wrong = wrong_with(&image, versions, done);
                if wrong.is_some() {
                    return wrong.map(|wrong| format!("{name} rotten: {wrong}"));
                }
            }
        }
        if !walk.next_op() {
            return None;
        }
    }
}

#[test]
fn a_cut_at_any_place_leaves_all_that_was_acknowledged() {
    let sim = sim();
    let acknowledged = script(&sim, 14);
    assert_eq!(sweep(&sim, &acknowledged, &versions(14)), None);
}

#[test]
fn the_sweep_notices_each_sync_that_is_left_out() {
    let lies: [fn(SyncOf<'_>) -> bool; 3] = [
        |of| of == SyncOf::File("manifest-00000003.a"),
        |of| of == SyncOf::File("manifest-00000003.b"),
        |of| of == SyncOf::Names,
    ];
    for lie in lies {
        let sim = sim();
        sim.lie_about_file_syncs(Some(lie));
        let acknowledged = script(&sim, 6);
        assert!(sweep(&sim, &acknowledged, &versions(6)).is_some());
    }
}

#[test]
fn either_copy_may_rot_at_any_byte() {
    let sim = sim();
    script(&sim, 14);
    let versions = versions(14);
    let end =
        sim.process_kill().read_file(&pair_names(3)[0]).unwrap().iter().rposition(|&byte| byte != 0).unwrap();
    for name in pair_names(3) {
        for at in 0..end as u64 + 100 {
            sim.corrupt_file(&name, at, 1 << (at % 8));
            let read = SstManifest::read(&tier(&sim), PAIR);
            match read {
                Ok(version) => assert_eq!(version, versions[14], "byte {at}"),
                Err(error) => panic!("byte {at} of {name}: {error}"),
            }
            sim.corrupt_file(&name, at, 1 << (at % 8));
        }
    }
    sim.corrupt_file(&pair_names(3)[0], 5000, 1);
    let opened = SstManifest::open(&tier(&sim), PAIR).unwrap();
    assert_eq!(opened.version(), &versions[14]);
    let image = sim.process_kill();
    let [a, b] = pair_names(3).map(|name| image.read_file(&name));
    assert!(a == b, "what rotted was mended");
    let removed = tier(&sim);
    removed.remove(&pair_names(3)[1]).unwrap();
    assert_eq!(SstManifest::open(&removed, PAIR).unwrap().version(), &versions[14]);
    assert_eq!(removed.names().unwrap().len(), 2, "the copy that was gone is there again");
}

#[test]
fn an_edit_that_failed_is_the_last_until_it_is_opened_again() {
    let versions = versions(8);
    for call in [FileCall::Write, FileCall::Sync] {
        for after in 0..12 {
            let sim = sim();
            let mut manifest = SstManifest::create(&tier(&sim), PAIR, SstVersion::default()).unwrap();
            sim.fail_file_calls(call, Fault { after, sticky: false, refusal: Refusal::Io });
            let written = (0..8).take_while(|&n| manifest.append(&edit(n)).is_ok()).count();
            assert_eq!(written as u64, after / 2);
            assert_eq!(manifest.append(&edit(written as u64)).unwrap_err().kind(), ErrorKind::Io, "{call:?}");
            assert_eq!(manifest.version(), &versions[written]);
            // The process goes on, is killed, or the power goes: what was acknowledged is there, and stays.
            let mut walk = sim.walk();
            walk.seek(u64::MAX);
            for kind in Survivors::EACH {
                assert_eq!(
                    wrong_with(&walk.image(kind, 1), &versions, written),
                    None,
                    "{call:?} {after} {kind:?}"
                );
            }
        }
    }
    for after in 0.. {
        let sim = sim();
        sim.fail_file_calls(FileCall::Create, Fault { after, sticky: false, refusal: Refusal::NoSpace });
        match SstManifest::create(&tier(&sim), PAIR, SstVersion::default()) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Full),
        }
        assert!(after < 2);
        assert!(tier(&sim).names().unwrap().is_empty(), "what was made of it is gone");
        SstManifest::create(&tier(&sim), PAIR, SstVersion::default()).unwrap();
    }
    // What has such a name already is somebody's, and stays: both copies, or the one that is there.
    let names = pair_names(PAIR.1);
    for there in [&names[..], &names[1..]] {
        let sim = sim();
        there.iter().for_each(|name| drop(tier(&sim).create_allocated(name, 4096).unwrap()));
        SstManifest::create(&tier(&sim), PAIR, SstVersion::default()).unwrap_err();
        assert_eq!(tier(&sim).names().unwrap(), there);
    }
}

#[test]
fn an_operation_of_a_later_build_is_refused_by_name() {
    let sim = sim();
    let manifest = SstManifest::create(&tier(&sim), PAIR, SstVersion::default()).unwrap();
    let mut unknown = encode_edit(3, 1, &[SstChange::Watermark { sequence: 1 }]);
    unknown[EDIT_HEAD_BYTES] = 200;
    let checksum = sum(3, 1, &unknown[EDIT_HEAD_BYTES..]);
    unknown[4..8].copy_from_slice(&checksum.to_le_bytes());
    manifest.copies.iter().for_each(|copy| copy.write_at(manifest.end, &unknown).unwrap());
    let error = SstManifest::open(&tier(&sim), PAIR).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Version, "{error}");
}
