//! Interleavings of writers that are held to a rate, explored by `shuttle`.
//!
//! Run as `index/shuttle.rs` says. The clock stands still, and what the writers take is less than what was saved before, so that
//! none of them sleeps.

use ::shuttle::{check_pct, check_random, thread};

use super::*;
use crate::sync::Arc;

const ROUNDS: usize = 1_000;

fn explore(test: fn()) {
    check_random(test, ROUNDS);
    check_pct(test, ROUNDS, 3);
}

/// Writers meet at the word of the time that is taken: what each took counts, and once.
#[test]
fn what_each_writer_takes_is_taken_from_all() {
    explore(|| {
        let throttle = Arc::new(Throttle::default());
        let (clock, each_ns) = (Clock::manual(10_000), SAVED_MAX_NS / 16);
        throttle.ns_per_kib.store(each_ns, Ordering::Relaxed);
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let (throttle, clock) = (throttle.clone(), clock.clone());
                thread::spawn(move || (0..3).for_each(|_| throttle.delay((1, 1024), &clock)))
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
        let taken_ns = throttle.taken_until_ns.load(Ordering::Relaxed);
        assert_eq!(taken_ns, clock.monotonic_ns() - SAVED_MAX_NS + 9 * each_ns);
    });
}

/// Writers that are at it when room is short no longer are delayed by what they find, and the next by nothing.
#[test]
fn nobody_is_held_once_there_is_room() {
    explore(|| {
        let throttle = Arc::new(Throttle::default());
        let clock = Clock::manual(10_000);
        throttle.ns_per_kib.store(SAVED_MAX_NS / 16, Ordering::Relaxed);
        let writer = {
            let (throttle, clock) = (throttle.clone(), clock.clone());
            thread::spawn(move || {
                let held = throttle.is_on();
                throttle.delay((1, 1024), &clock);
                assert!(held || !throttle.is_on(), "it was off, and nothing turned it on");
            })
        };
        let room = SpaceLeft { available: 20, low: 10, deltas: 0, deltas_even: 100, live: 1 };
        throttle.adjust(room, Work::default(), 1 << 20, clock.monotonic_ns());
        writer.join().expect("a writer");
        assert!(!throttle.is_on());
        let ahead_ns = throttle.taken_until_ns.load(Ordering::Relaxed);
        assert!(ahead_ns <= clock.monotonic_ns(), "the next would wait");
    });
}
