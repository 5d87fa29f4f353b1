//! Interleavings of those who wait for space and those who free it, explored by `shuttle`.
//!
//! Run as `index/shuttle.rs` says. A wait may last here for ever unless it is woken (`sync.rs`), so that a wake-up which is lost ends
//! the model.

use std::sync::Arc as StdArc;

use ::shuttle::{check_pct, check_random, thread};
use hedgerow_device::{CrashModel, CrashSim, FastTier};

use super::*;
use crate::sync::Arc;
use crate::tier::bytes_of;

const ROUNDS: usize = 2_000;

/// Longer than any model.
const LONG: Duration = Duration::from_secs(3600);

fn explore(test: fn()) {
    check_random(test, ROUNDS);
    check_pct(test, ROUNDS, 3);
}

/// A space of so many extents, all of them in use.
fn used_up(extents: u32) -> Arc<Space> {
    let sim = CrashSim::new(CrashModel::Pages, 1 << 20);
    let layout =
        SpaceLayout { extent_shift: 16, root_extents: 1, grown: extents, extents_max: extents, per_large: 1 };
    let tier = bytes_of(StdArc::new(FastTier::simulated(&sim))).expect("nobody else has them");
    Arc::new(Space::new(tier, Clock::manual(1_000), layout, false))
}

/// Takes an extent as a writer does: refused, it waits, and tries again.
fn take_waiting(space: &Space, claim: Claim) {
    while let Err(refused) = space.take(1, claim).expect("no medium fails") {
        space.wait(refused.returns, LONG);
    }
}

/// Each of the waiters gets what is freed, whenever that is: between its refusal and its wait, too.
#[test]
fn nobody_sleeps_over_what_was_freed() {
    explore(|| {
        let space = used_up(8);
        let waiters: Vec<_> = [Claim::LastExtent, Claim::Gc]
            .map(|claim| {
                let space = space.clone();
                thread::spawn(move || take_waiting(&space, claim))
            })
            .into();
        for extent in [3, 4, 5] {
            space.free(extent..extent + 1);
        }
        waiters.into_iter().for_each(|waiter| waiter.join().expect("a waiter"));
    });
}

/// What is being touched ahead of its use can be had when that is over, and who was refused meanwhile is woken.
#[test]
fn nobody_sleeps_over_what_was_made_ready() {
    explore(|| {
        let space = used_up(8);
        // One more than a claim must leave, and not even that while it is being touched.
        space.free(1..2 + Claim::Overwrite.reserve());
        let prefault = {
            let space = space.clone();
            thread::spawn(move || space.prefault(false, || true))
        };
        take_waiting(&space, Claim::Overwrite);
        prefault.join().expect("who touches them");
    });
}

/// What comes back while nobody waits counts for whoever was refused before, and no longer.
#[test]
fn a_wait_knows_what_came_back_before_it() {
    explore(|| {
        let space = used_up(8);
        let refused = space.take(1, Claim::LastExtent).expect("no medium fails").expect_err("all are in use");
        let freer = {
            let space = space.clone();
            thread::spawn(move || space.free(3..4))
        };
        let woken = space.wait(refused.returns, LONG);
        freer.join().expect("who frees");
        assert!(space.wait(refused.returns, LONG), "one came back since");
        assert!(!woken || space.take(1, Claim::LastExtent).expect("no medium fails").is_ok());
    });
}
