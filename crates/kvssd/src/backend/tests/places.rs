//! What a copy of the map says of all devices.

use super::copies::two_copies;
use super::*;

fn place(sims: &[CrashSim], n: usize) -> ArrayPlace {
    let mut view = crate::DeviceView::open(hedgerow_device::FastTier::simulated(&copied(&sims[n]))).unwrap();
    ArrayPlace::of(n + 1, view.device()).unwrap().unwrap()
}

/// Number, shards, shards that go and that come, and whether there may be strays.
type Told = (usize, usize, usize, usize, bool);

/// What these devices say of all by their places, each the same.
fn told(sims: &[CrashSim], of: &[usize]) -> (ArrayWork, Vec<Told>) {
    let all: Vec<_> = of.iter().map(|&n| (place(sims, n).work(), place(sims, n).members())).collect();
    assert!(all.iter().all(|place| *place == all[0]), "{all:?}");
    let member = |of: &ArrayMember| (of.number, of.shards, of.going, of.coming, of.has_strays);
    (all[0].0, all[0].1.iter().map(member).collect())
}

#[test]
fn what_is_under_way_is_told_of_each_device() {
    let sims = sims(3);
    let backend = KvssdBackend::open(&media(&sims), &options(AckMode::Buffered)).unwrap();
    let still = |number, shards| (number, shards, 0, 0, false);
    assert_eq!(
        told(&sims, &[0, 1, 2]),
        (ArrayWork::Nothing, vec![still(0, 342), still(1, 341), still(2, 341)])
    );
    let mut session = backend.session().unwrap();
    for n in 0..40 {
        put(&mut *session, &key(n), b"value", Expect::Any).unwrap();
    }
    let mut mover = backend.remove_device(1).unwrap();
    // It has said what is to be done, that nothing is in the way, and what goes.
    (0..3).for_each(|_| assert!(mover.step().unwrap()));
    let work = ArrayWork::Remove { device: 2 };
    let going = (1, 341, 341, 0, false);
    assert_eq!(
        told(&sims, &[0, 1, 2]),
        (work, vec![(0, 342, 0, 170, false), going, (2, 341, 0, 171, false)])
    );
    // Given up and begun again: what was copied is to be deleted.
    drop(mover);
    let mut mover = backend.unfinished_move().unwrap().unwrap();
    assert!(mover.step().unwrap());
    let stray = |number, shards| (number, shards, 0, 0, true);
    assert_eq!(told(&sims, &[0, 1, 2]), (work, vec![stray(0, 342), still(1, 341), stray(2, 341)]));
    mover.run().unwrap();
    assert_eq!(told(&sims, &[0, 2]), (ArrayWork::Nothing, vec![still(0, 512), still(2, 512)]));
    drop(mover);
    let mut mover = backend.rebalance().unwrap();
    assert!(mover.step().unwrap());
    assert_eq!(told(&sims, &[0, 2]).0, ArrayWork::Rebalance);
}

/// What looking says of these devices as an array.
fn looked(
    sims: &[CrashSim],
    alone: bool,
) -> std::result::Result<(ArrayPlace, BTreeMap<usize, ArrayError>), Vec<ArrayError>> {
    let look = |(n, sim): (usize, &CrashSim)| {
        let tier = hedgerow_device::FastTier::simulated(&copied(sim));
        let mut view =
            crate::DeviceView::open(tier).map_err(|error| ArrayError::Device { device: n, error })?;
        ArrayPlace::of(n, view.device())
    };
    next_opening((1..).zip(sims).map(look).collect(), alone)
}

/// Second copies that go and come are told of the devices that have them, and not of those of the first ones.
#[test]
fn copies_on_the_move_are_told() {
    let sims = sims(3);
    let backend = KvssdBackend::open(&media(&sims), &two_copies(AckMode::Buffered)).unwrap();
    let all = place(&sims, 0).members();
    assert!(all.iter().all(|of| (of.shards + of.second_copies).abs_diff(683) < 2 && !of.is_out), "{all:?}");
    let added = super::sims(1).remove(0);
    backend.add_device(&ArrayMedium::Simulated(added.clone())).unwrap();
    let to_move = place(&sims, 0).rebalance_moves();
    assert!(to_move.abs_diff(512) < 2, "{to_move}");
    let mut mover = backend.rebalance().unwrap();
    while place(&sims, 0).members().iter().all(|of| of.coming == 0) {
        assert!(mover.step().unwrap());
    }
    let all = place(&sims, 0).members();
    let from = all.iter().position(|of| of.going > 0).unwrap();
    assert_eq!(all[from].going, all[3].coming, "{all:?}");
    assert_eq!(all.iter().filter(|of| of.going > 0).count(), 1, "{all:?}");
    assert_eq!(place(&sims, from).moving(), (all[from].going, 0));
    // It is that device which has so many less then.
    while place(&sims, 0).members()[3].coming > 0 {
        assert!(mover.step().unwrap());
    }
    let then = place(&sims, 0).members();
    let copies = |of: &ArrayMember| of.shards + of.second_copies;
    assert_eq!(copies(&then[from]) + all[from].going, copies(&all[from]), "{all:?} {then:?}");
    mover.run().unwrap();
    assert_eq!(place(&sims, 0).rebalance_moves(), 0);
}

/// Looking at devices tells what opening them does, whichever are there.
#[test]
fn the_next_opening_is_told_as_it_comes() {
    let options = two_copies(AckMode::Buffered);
    let made = |count: usize| {
        let sims = sims(count);
        KvssdBackend::open(&media(&sims), &options).unwrap().close().unwrap();
        sims
    };
    let blank = || super::sims(1).remove(0);
    let without = |sims: &[CrashSim], gone: &[usize]| {
        let mut some = sims.to_vec();
        gone.iter().for_each(|&n| some[n] = blank());
        some
    };
    for (count, gone, alone) in [
        (3, &[][..], false),
        (3, &[1], false),
        (3, &[0, 1], false),
        (2, &[1], false),
        (2, &[1], true),
        (5, &[0, 2], false),
    ] {
        let sims = without(&made(count), gone);
        let told = looked(&sims, alone);
        let opened = KvssdBackend::open(&media(&sims), &KvssdOptions { alone, ..options.clone() });
        match (told, opened) {
            (Ok((place, lost)), Ok(backend)) => {
                let state = backend.copies_state();
                assert_eq!((place.out(), place.shards_alone()), (state.out, state.shards_alone));
                let gone: Vec<usize> = gone.iter().map(|n| n + 1).collect();
                assert_eq!(lost.into_keys().collect::<Vec<_>>(), gone);
                // And the one after that, by the map that says so.
                let (place, lost) = looked(&sims, false).unwrap();
                assert_eq!((place.out(), lost.len()), (gone, 0));
            }
            (Err(wrong), Err(refused)) => assert_eq!(wrong[0].to_string(), refused.to_string()),
            (told, opened) => panic!("{count} {gone:?}: {told:?} {opened:?}"),
        }
    }
    // Of one copy no device can be missing, and of none there is nothing.
    let one = sims(2);
    assert!(looked(&one, false).unwrap_err().iter().all(|error| matches!(error, ArrayError::Device { .. })));
    KvssdBackend::open(&media(&one), &super::options(AckMode::Buffered)).unwrap().close().unwrap();
    assert!(looked(&one, false).unwrap().1.is_empty());
    let refused = looked(&without(&one, &[1]), false).unwrap_err();
    assert!(
        matches!(refused[..], [ArrayError::Device { device: 2, error: crate::KvError::NoDevice }]),
        "{refused:?}"
    );
}
