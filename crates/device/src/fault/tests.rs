use super::*;
use crate::{FastTier, TierBytes};
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;

fn medium(model: CrashModel) -> (CrashSim, TierBytes) {
    let sim = CrashSim::new(model, MIB);
    let tier = FastTier::simulated(&sim).into_bytes();
    tier.grow(64 << 10).unwrap();
    tier.persist_all().unwrap();
    (sim, tier)
}

fn put(tier: &TierBytes, offset: u64, bytes: &[u8]) {
    tier.write(offset, bytes.len(), |place| place.copy_from_slice(bytes));
}

/// What a crash at the end of the log leaves.
fn crash(sim: &CrashSim, kind: Survivors) -> Image {
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    walk.image(kind, 7)
}

/// Every distinct thing that 2,000 random crashes at the end of the log leave at `offset`.
fn outcomes(sim: &CrashSim, offset: u64, len: usize) -> BTreeSet<Vec<u8>> {
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    (0..2_000).map(|seed| walk.image(Survivors::Random, seed).read(offset, len)).collect()
}

#[test]
fn a_line_keeps_a_prefix_of_its_stores() {
    let (sim, tier) = medium(CrashModel::CacheLines);
    tier.store_u64(0, 1);
    tier.store_u64(8, 2);
    tier.store_u64(0, 3);
    let words = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
    let legal = BTreeSet::from([words(0, 0), words(1, 0), words(1, 2), words(3, 2)]);
    assert_eq!(
        outcomes(&sim, 0, 16),
        legal,
        "all of the legal states, and no other such as (3, 0) or (0, 2)"
    );
}

#[test]
fn lines_survive_apart_from_each_other() {
    let (sim, tier) = medium(CrashModel::CacheLines);
    tier.store_u64(0, 1);
    tier.store_u64(64, 2);
    let both: BTreeSet<(u8, u8)> = {
        let mut walk = sim.walk();
        walk.seek(u64::MAX);
        (0..500)
            .map(|seed| walk.image(Survivors::Random, seed))
            .map(|image| (image.read(0, 1)[0], image.read(64, 1)[0]))
            .collect()
    };
    assert_eq!(
        both,
        BTreeSet::from([(0, 0), (1, 0), (0, 2), (1, 2)]),
        "the later line may overtake the earlier"
    );
}

#[test]
fn one_write_tears_between_words_and_never_inside() {
    let (sim, tier) = medium(CrashModel::CacheLines);
    put(&tier, 4, &[0xff; 16]);
    // The write covers half of word 0, all of word 1 and half of word 2.
    let mut legal = BTreeSet::new();
    for bits in 0..8u8 {
        let mut bytes = vec![0; 24];
        for word in 0..3 {
            if bits & (1 << word) != 0 {
                bytes[(word * 8).max(4)..((word + 1) * 8).min(20)].fill(0xff);
            }
        }
        legal.insert(bytes);
    }
    assert_eq!(outcomes(&sim, 0, 24), legal);
}

#[test]
fn a_persisted_line_is_durable_and_its_neighbour_is_not() {
    let (sim, tier) = medium(CrashModel::CacheLines);
    put(&tier, 0, &[1; 128]);
    tier.persist(10, 1).unwrap();
    let image = crash(&sim, Survivors::None);
    assert_eq!(
        (image.read(0, 64), image.read(64, 64)),
        (vec![1; 64], vec![0; 64]),
        "the whole line, and only it"
    );
    assert!(outcomes(&sim, 0, 64).into_iter().eq([vec![1; 64]]), "nothing takes a durable line back");
    tier.persist_all().unwrap();
    assert_eq!(crash(&sim, Survivors::None).read(0, 128), [1; 128]);
    assert!(outcomes(&sim, 0, 128).into_iter().eq([vec![1; 128]]));
}

#[test]
fn stores_after_a_persist_are_pending_again() {
    let (sim, tier) = medium(CrashModel::CacheLines);
    tier.store_u64(0, 1);
    tier.persist(0, 8).unwrap();
    tier.store_u64(0, 2);
    let legal = BTreeSet::from([1u64.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec()]);
    assert_eq!(outcomes(&sim, 0, 8), legal);
}

#[test]
fn a_page_is_any_version_since_its_persist() {
    let (sim, tier) = medium(CrashModel::Pages);
    // Three versions of a page that differ in one sector: never a mixture of versions inside it.
    for version in 1..4u8 {
        tier.store_u64(512, u64::from(version));
        tier.store_u64(520, u64::from(version));
    }
    let pairs: BTreeSet<(u8, u8)> =
        outcomes(&sim, 512, 16).iter().map(|bytes| (bytes[0], bytes[8])).collect();
    assert_eq!(pairs, BTreeSet::from([(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)]));
}

#[test]
fn a_page_tears_between_sectors() {
    let (sim, tier) = medium(CrashModel::Pages);
    tier.store_u64(0, 1);
    tier.store_u64(512, 2);
    let pairs: BTreeSet<(u8, u8)> =
        outcomes(&sim, 0, 520).iter().map(|bytes| (bytes[0], bytes[512])).collect();
    assert_eq!(pairs, BTreeSet::from([(0, 0), (1, 0), (0, 2), (1, 2)]));
}

#[test]
fn persisting_a_page_takes_all_of_it() {
    let (sim, tier) = medium(CrashModel::Pages);
    put(&tier, 0, &[5; 4096 * 2]);
    tier.persist(4095, 1).unwrap();
    let image = crash(&sim, Survivors::None);
    assert_eq!((image.read(0, 4096), image.read(4096, 4096)), (vec![5; 4096], vec![0; 4096]));
}

#[test]
fn growth_is_lost_until_persisted_on_pages_only() {
    let lengths = |model| {
        let sim = CrashSim::new(model, MIB);
        let tier = FastTier::simulated(&sim).into_bytes();
        tier.grow(4096).unwrap();
        tier.persist_all().unwrap();
        tier.grow(8192).unwrap();
        tier.grow(16384).unwrap();
        put(&tier, 8192, &[9; 10]);
        let mut walk = sim.walk();
        walk.seek(u64::MAX);
        let images = (0..200).map(|seed| walk.image(Survivors::Random, seed));
        images.map(|image| image.bytes()).collect::<BTreeSet<u64>>()
    };
    assert_eq!(lengths(CrashModel::CacheLines), BTreeSet::from([16384]));
    assert_eq!(lengths(CrashModel::Pages), BTreeSet::from([4096, 8192, 16384]));

    let sim = CrashSim::new(CrashModel::Pages, MIB);
    let tier = FastTier::simulated(&sim).into_bytes();
    tier.grow(8192).unwrap();
    put(&tier, 4096, &[9; 10]);
    assert_eq!(crash(&sim, Survivors::None).bytes(), 0);
    tier.persist(0, 1).unwrap();
    let image = crash(&sim, Survivors::None);
    assert_eq!(
        (image.bytes(), image.read(4096, 10)),
        (8192, vec![0; 10]),
        "any persist makes the length durable"
    );
}

#[test]
fn the_named_kinds_are_what_they_say() {
    for model in [CrashModel::CacheLines, CrashModel::Pages] {
        let (sim, tier) = medium(model);
        let granule = model.granule_bytes();
        let len = 3 * granule as usize;
        put(&tier, 0, &vec![1; len]);
        put(&tier, 4 * granule, &vec![2; len]);
        let kept = |kind| {
            let image = crash(&sim, kind);
            (0..7).map(|n| image.read(n * granule, 1)[0]).collect::<Vec<u8>>()
        };
        assert_eq!(kept(Survivors::None), [0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(kept(Survivors::All), [1, 1, 1, 0, 2, 2, 2]);
        assert_eq!(kept(Survivors::ProcessKill), [1, 1, 1, 0, 2, 2, 2]);
        assert_eq!(kept(Survivors::LastStore), [0, 0, 0, 0, 2, 2, 2]);
        assert_eq!(kept(Survivors::AllButLastStore), [1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(kept(Survivors::HeadersOnly), [1, 0, 0, 0, 2, 0, 0]);
        assert_eq!(kept(Survivors::BodiesOnly), [0, 1, 1, 0, 0, 2, 2]);
    }
}

#[test]
fn a_killed_process_loses_nothing_and_a_power_cut_changes_the_boot() {
    let (sim, tier) = medium(CrashModel::Pages);
    put(&tier, 100, b"pending");
    let boot = tier.boot_id();
    let killed = sim.process_kill();
    assert!(killed.same_boot);
    let next = FastTier::from_image(&killed).into_bytes();
    assert_eq!((next.boot_id(), next.read(100, 7)), (boot, b"pending".as_slice()));
    // It is still pending for the next process: a power cut may take it yet.
    let next_sim = next.crash_sim().unwrap();
    assert_eq!(crash(next_sim, Survivors::None).read(100, 7), [0; 7]);
    next.persist(100, 7).unwrap();
    assert_eq!(crash(next_sim, Survivors::None).read(100, 7), b"pending");

    let cut = crash(&sim, Survivors::All);
    assert!(!cut.same_boot);
    let next = FastTier::from_image(&cut).into_bytes();
    assert_ne!(next.boot_id(), boot);
    let next_sim = next.crash_sim().unwrap();
    assert_eq!(
        crash(next_sim, Survivors::None).read(100, 7),
        b"pending",
        "what survived a power cut is durable"
    );
    assert_eq!(FastTier::from_image(&crash(next_sim, Survivors::None)).into_bytes().boot_id(), boot + 2);
}

#[test]
fn a_process_kill_is_always_what_the_process_saw() {
    for model in [CrashModel::CacheLines, CrashModel::Pages] {
        let (sim, tier) = medium(model);
        sim.limit_log(20_000);
        let mut random = Random::from_seed(5);
        let mut sim_now = sim.clone();
        let mut tier = tier;
        for step in 0..3_000u64 {
            let offset = random.below(tier.bytes() - 300);
            match random.below(12) {
                0 => tier.persist(offset, random.below(9_000)).unwrap(),
                1 => {
                    sim_now.fail_persist_after(0, false);
                    tier.persist(offset, 5_000).unwrap_err();
                    drop(tier);
                    tier = FastTier::simulated(&sim_now).into_bytes();
                }
                2 if step % 10 == 0 => tier.grow(tier.bytes() + 4096).unwrap(),
                // SAFETY: on the one thread, and no slice is held.
                3 => unsafe { sim_now.corrupt(offset, 0x10) },
                4 => tier.store_u64(offset - offset % 8, step),
                _ => put(&tier, offset, &vec![step as u8; random.below(300) as usize]),
            }
            if step % 300 == 299 {
                let image = sim_now.process_kill();
                let next = FastTier::from_image(&image).into_bytes();
                assert_eq!(image.bytes(), tier.bytes());
                assert!(
                    next.read(0, next.bytes() as usize) == tier.read(0, tier.bytes() as usize),
                    "step {step}"
                );
                sim_now = next.crash_sim().unwrap().clone();
                sim_now.limit_log(20_000);
                tier = next;
            }
        }
    }
}

#[test]
fn a_walk_stops_before_every_persist_and_at_the_end() {
    let (sim, tier) = medium(CrashModel::CacheLines);
    let mut marks = Vec::new();
    for n in 1..=3u64 {
        tier.store_u64(0, n);
        tier.persist(0, 8).unwrap();
        marks.push(sim.ops());
    }
    tier.store_u64(0, 4);
    assert_eq!((sim.persist_points(), sim.ops()), (4, 9));
    let mut walk = sim.walk();
    let mut seen = Vec::new();
    while walk.next_point() {
        let durable = walk.image(Survivors::None, 0).read(0, 1)[0];
        let stored = walk.image(Survivors::All, 0).read(0, 1)[0];
        let acknowledged = marks.iter().filter(|&&mark| mark <= walk.op_index()).count();
        seen.push((walk.point(), durable, stored, acknowledged));
    }
    assert_eq!(seen, [(0, 0, 0, 0), (1, 0, 1, 0), (2, 1, 2, 1), (3, 2, 3, 2), (4, 3, 4, 3)]);
    assert!(!walk.next_point() && !walk.next_op());
}

#[test]
fn images_are_the_same_again_for_the_same_seed() {
    let (sim, tier) = medium(CrashModel::Pages);
    for n in 0..60u8 {
        put(&tier, u64::from(n) * 700, &[n; 900]);
    }
    let all = |seed| {
        let images = sim.images_at(40, seed, 20);
        assert_eq!(images.len(), 20);
        images.iter().map(|image| image.read(0, 64 << 10)).collect::<Vec<_>>()
    };
    assert!(all(1) == all(1));
    assert!(all(1) != all(2));
    assert!(sim.images_at(40, 1, 20).iter().all(|image| image.op_index == 40));
    let kinds: Vec<Survivors> = sim.images_at(40, 1, 10).iter().map(|image| image.survivors).collect();
    assert_eq!((&kinds[..8], &kinds[8..]), (&Survivors::EACH[..], &[Survivors::Random; 2][..]));
}

#[test]
fn a_settled_medium_has_one_power_cut() {
    let (sim, _tier) = medium(CrashModel::Pages);
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let kinds: Vec<_> = walk.images(&Survivors::EACH, 0).iter().map(|image| image.survivors).collect();
    assert_eq!((kinds, walk.pending_bytes()), (vec![Survivors::None, Survivors::ProcessKill], 0));
}

#[test]
fn a_failed_persist_may_lose_the_data_for_ever() {
    let (sim, tier) = medium(CrashModel::Pages);
    put(&tier, 0, b"dirty");
    sim.fail_persist_after(0, false);
    let refused = tier.persist(0, 5).unwrap_err();
    assert!(matches!(refused, DeviceError::Io { what: "msync", .. }), "{refused}");
    // Another process, which knows nothing of it: this one's tier is closed.
    drop(tier);
    let tier = FastTier::simulated(&sim).into_bytes();
    tier.persist(0, 5).unwrap();
    tier.persist_all().unwrap();
    let legal = BTreeSet::from([vec![0; 5], b"dirty".to_vec()]);
    assert_eq!(outcomes(&sim, 0, 5), legal, "later persists that succeed do not write it");
    assert_eq!(tier.read(0, 5), b"dirty", "the process does not notice");
    put(&tier, 100, b"again");
    tier.persist(100, 5).unwrap();
    assert_eq!(crash(&sim, Survivors::None).read(0, 5), b"dirty", "a page stored to again is written whole");
}

#[test]
fn what_was_forgotten_is_written_after_a_rewrite() {
    let (sim, tier) = medium(CrashModel::Pages);
    put(&tier, 4000, &[7; 9000]);
    sim.fail_write_back();
    assert!(tier.persist_all().is_err());
    drop(tier);
    let tier = FastTier::simulated(&sim).into_bytes();
    tier.rewrite(4000, 9000);
    assert_eq!(tier.read(4000, 9000), [7; 9000], "a rewrite changes nothing");
    tier.persist_all().unwrap();
    assert_eq!(crash(&sim, Survivors::None).read(4000, 9000), [7; 9000]);
}

#[test]
fn faults_come_when_told_and_stay_if_told() {
    let refusals = [(Refusal::Io, "Input/output error"), (Refusal::NoSpace, "No space left on device")];
    for (sticky, wanted) in
        [(false, [true, true, false, true, true]), (true, [true, true, false, false, false])]
    {
        for (refusal, text) in refusals {
            let (sim, tier) = medium(CrashModel::CacheLines);
            sim.fail_persists(Fault { after: 2, sticky, refusal });
            // A new tier each time: a tier is closed by the first failure.
            let got = [(); 5].map(|()| FastTier::simulated(&sim).persist(0, 1));
            assert_eq!(got.each_ref().map(Result::is_ok), wanted);
            assert!(got[2].as_ref().unwrap_err().to_string().contains(text));
            sim.clear_faults();
            assert!(tier.persist(0, 1).is_ok());
        }
    }
}

/// A failure is noted once and for all, whatever the medium says later.
#[test]
fn after_a_failed_persist_nothing_is_made_durable_any_more() {
    for model in [CrashModel::CacheLines, CrashModel::Pages] {
        let (sim, tier) = medium(model);
        assert_eq!((tier.has_failed(), tier.sync_failure()), (false, None));
        sim.fail_persist_after(0, false);
        tier.persist_all().unwrap_err();
        let failure = tier.sync_failure().unwrap().clone();
        let what = "could not fdatasync the simulated medium: Input/output error (os error 5)";
        assert_eq!((tier.has_failed(), failure.message.as_str()), (true, what));
        assert!(failure.at_ms > 1_600_000_000_000);
        for refused in [tier.persist(0, 1), tier.persist_all(), tier.grow(MIB)] {
            let refused = refused.unwrap_err();
            assert!(
                matches!(&refused, DeviceError::Closed { failure: told } if *told == failure),
                "{refused}"
            );
            assert!(refused.to_string().contains(what), "{refused}");
        }
    }
}

/// The kernel has written a page back by itself, and failed. One persist is told; whoever asks before its caller knows must be
/// told, too.
#[test]
fn an_error_told_to_one_persist_is_told_to_the_other_that_is_under_way() {
    const EVERYTHING: fn(&FastTier) -> Result<()> = FastTier::persist_all;
    const A_RANGE: fn(&FastTier) -> Result<()> = |tier| tier.persist(8192, 1);
    for (first, second) in [(A_RANGE, EVERYTHING), (EVERYTHING, A_RANGE)] {
        let (sim, tier) = medium(CrashModel::Pages);
        put(&tier, 0, b"acknowledged");
        let (told, asked) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel::<()>());
        sim.fail_write_back_at(
            |_, _| true,
            move || {
                told.0.send(()).unwrap();
                asked.1.recv().unwrap();
            },
        );
        let second_says = std::thread::scope(|scope| {
            let asker = scope.spawn(|| first(&tier).unwrap_err());
            told.1.recv().unwrap();
            let says = second(&tier);
            asked.0.send(()).unwrap();
            asker.join().unwrap();
            says
        });
        let lost = crash(&sim, Survivors::None).read(0, 12) == [0; 12];
        assert!(lost && second_says.is_err(), "it said that what is lost is durable");
    }
}

#[test]
fn a_failed_growth_is_full_and_changes_nothing() {
    let (sim, tier) = medium(CrashModel::Pages);
    sim.fail_grow_after(1);
    tier.grow(72 << 10).unwrap();
    for _ in 0..2 {
        let full = tier.grow(MIB).unwrap_err();
        assert!(matches!(full, DeviceError::Full { wanted: MIB, limit: 73_728, source: Some(_) }), "{full}");
    }
    assert_eq!(tier.bytes(), 72 << 10);
    sim.clear_faults();
    tier.grow(MIB).unwrap();
    assert!(matches!(tier.grow(MIB + 1), Err(DeviceError::Full { source: None, .. })), "its own limit stays");
}

#[test]
fn corruption_is_seen_at_once_and_by_every_crash() {
    for model in [CrashModel::CacheLines, CrashModel::Pages] {
        let (sim, tier) = medium(model);
        put(&tier, 0, b"abcdef");
        tier.persist(0, 3).unwrap();
        put(&tier, 200, b"pending");
        for (offset, xor) in [(1, 0x20), (200, 0x20), (u64::MAX, 1)] {
            // SAFETY: on the one thread, and no slice is held.
            unsafe { sim.corrupt(offset, xor) };
        }
        assert_eq!((tier.read(0, 3), tier.read(200, 7)), (b"aBc".as_slice(), b"Pending".as_slice()));
        for kind in Survivors::EACH {
            let image = crash(&sim, kind);
            assert_eq!((image.read(0, 3), image.read(200, 1)), (b"aBc".to_vec(), b"P".to_vec()), "{kind:?}");
        }
        let mut image = sim.process_kill();
        image.corrupt(2, 0x20);
        image.corrupt(201, 0x20);
        image.corrupt(image.bytes(), 1);
        let next = FastTier::from_image(&image).into_bytes();
        assert_eq!((next.read(0, 3), next.read(200, 7)), (b"aBC".as_slice(), b"PEnding".as_slice()));
        let cut = crash(next.crash_sim().unwrap(), Survivors::None);
        assert_eq!((cut.read(0, 3), cut.read(200, 2)), (b"aBC".to_vec(), b"PE".to_vec()));
    }
}

#[test]
fn a_log_over_its_limit_starts_later_and_stays_right() {
    let (sim, tier) = medium(CrashModel::CacheLines);
    sim.limit_log(10_000);
    for n in 0..2_000u64 {
        tier.store_u64(n % 64 * 8, n + 1);
        if n % 10 == 0 {
            tier.persist(0, 512).unwrap();
        }
    }
    assert!(sim.first_op() > 0 && sim.first_op() < sim.ops());
    let mut walk = sim.walk();
    assert_eq!(walk.op_index(), sim.first_op());
    while walk.next_op() {}
    assert_eq!(walk.op_index(), sim.ops());
    let image = walk.image(Survivors::ProcessKill, 0);
    assert_eq!(image.read(0, 512), tier.read(0, 512));
}

#[test]
fn a_granule_never_persisted_remembers_a_bounded_number_of_stores() {
    let (sim, tier) = medium(CrashModel::CacheLines);
    for n in 1..=1_000u64 {
        tier.store_u64(0, n);
    }
    let kept = u64::from_le_bytes(crash(&sim, Survivors::None).read(0, 8).try_into().unwrap());
    assert_eq!(kept, 1_000 - 256, "older ones count as written back");
    assert_eq!(crash(&sim, Survivors::All).read(0, 8), 1_000u64.to_le_bytes());
}

#[test]
fn a_medium_reopened_is_a_clean_restart() {
    let (sim, tier) = medium(CrashModel::Pages);
    put(&tier, 0, b"kept");
    drop(tier);
    let tier = FastTier::simulated(&sim).into_bytes();
    assert_eq!((tier.bytes(), tier.read(0, 4)), (64 << 10, b"kept".as_slice()));
    assert_eq!(crash(&sim, Survivors::None).read(0, 4), [0; 4], "and still pending");
}
