//! What a copy of the map says of all devices.

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
