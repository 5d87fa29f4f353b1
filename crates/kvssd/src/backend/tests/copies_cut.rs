//! What a crash leaves of two copies at each operation of whichever device, also where one of the devices is lost with it.

use super::copies::two_copies;
use super::moves_cut::{CAPACITOR, LOOKS_WITHOUT, POWER_CUTS, Scene};
use super::*;

/// At least so many times there is a move to go on with.
fn sweep(scene: Scene, kinds: &[Survivors], unfinished_least: usize) {
    LOOKS_WITHOUT.set(0);
    let (cuts, unfinished) = scene.sweep_counted(kinds);
    assert!(cuts > 120 && unfinished >= unfinished_least, "{cuts} cuts, {unfinished} of them within a move");
    assert!(LOOKS_WITHOUT.get() > 20, "{} openings without one device", LOOKS_WITHOUT.get());
}

/// Changes, and what makes them durable now and then.
fn changes(scene: &mut Scene, count: u64) {
    for n in 0..count {
        scene.change();
        if n % 9 == 8 {
            scene.persist();
        }
    }
}

fn writes(ack: AckMode, kinds: &[Survivors]) {
    let mut scene = Scene::of(two_copies(ack), 3, 0, 11);
    scene.sets(&[&[0, 1, 2]]);
    changes(&mut scene, 60);
    sweep(scene, kinds, 0);
}

/// One device fails at one of its syncs, and is there again after the crash.
fn a_failure(ack: AckMode, kinds: &[Survivors], after: u64) {
    let mut scene = Scene::of(two_copies(ack), 3, 0, 12);
    scene.sets(&[&[0, 1, 2]]);
    changes(&mut scene, 10);
    scene.sims[1].fail_persist_after(after, true);
    changes(&mut scene, 50);
    assert_eq!(scene.backend.copies_state().out, [2]);
    sweep(scene, kinds, 0);
}

/// One device fails, and is replaced by another.
fn a_replacement(ack: AckMode, kinds: &[Survivors]) {
    let mut scene = Scene::of(two_copies(ack), 3, 1, 13);
    scene.sets(&[&[0, 1, 2]]);
    scene.sims[1].fail_persist_after(0, true);
    changes(&mut scene, 12);
    assert_eq!(scene.backend.copies_state().out, [2]);
    scene.sets(&[&[0, 3, 2]]);
    let medium = ArrayMedium::Simulated(scene.sims[3].clone());
    let mover = scene.backend.replace_device(1, &medium).unwrap();
    let progress = scene.run(mover);
    assert!(progress.pairs_copied > 3, "{progress:?}");
    assert_eq!(scene.backend.copies_state().shards_alone, 0);
    changes(&mut scene, 5);
    sweep(scene, kinds, 300);
}

/// A device comes and has its share, and another one goes.
fn moves(ack: AckMode, kinds: &[Survivors]) {
    let mut scene = Scene::of(two_copies(ack), 3, 1, 14);
    scene.sets(&[&[0, 1, 2, 3], &[0, 1, 2]]);
    scene.add(3);
    scene.sets(&[&[0, 1, 2, 3]]);
    let mover = scene.backend.rebalance().unwrap();
    let progress = scene.run(mover);
    assert!(progress.shards_done.abs_diff(512) < 4 && progress.pairs_deleted > 3, "{progress:?}");
    scene.sets(&[&[0, 1, 2, 3], &[1, 2, 3]]);
    let mover = scene.backend.remove_device(0).unwrap();
    scene.run(mover);
    scene.sets(&[&[1, 2, 3]]);
    changes(&mut scene, 5);
    sweep(scene, kinds, 1_000);
}

#[test]
fn copies_lose_nothing_with_a_capacitor() {
    writes(AckMode::Buffered, &CAPACITOR);
}

#[test]
fn copies_lose_nothing_that_was_durable() {
    writes(AckMode::Immediate, &POWER_CUTS);
    writes(AckMode::Buffered, &POWER_CUTS);
}

#[test]
fn a_failure_loses_nothing_with_a_capacitor() {
    a_failure(AckMode::Buffered, &CAPACITOR, 1);
    a_failure(AckMode::Immediate, &CAPACITOR, 3);
}

#[test]
fn a_failure_loses_nothing_that_was_durable() {
    for after in 0..7 {
        a_failure(AckMode::Immediate, &POWER_CUTS, after);
    }
}

#[test]
fn a_replacement_loses_nothing() {
    a_replacement(AckMode::Buffered, &CAPACITOR);
    a_replacement(AckMode::Immediate, &POWER_CUTS);
}

#[test]
fn moves_of_copies_lose_nothing() {
    moves(AckMode::Buffered, &CAPACITOR);
    moves(AckMode::Immediate, &POWER_CUTS);
}
